//! What a configuration file would change against the server that runs: `atlas check FILE`.
//!
//! The server is asked at the file's own `metrics`, by `/config` and `/sites`. It refuses to take the absence of an answer
//! for anything, and does not know the flags of the server's start, which win over the file. Bounds: those of an answer
//! ([`crate::top::get`]).

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Map, Value};

use crate::observe::configuration::Configuration;
use crate::reload::RELOADED;
use crate::settings::Settings;
use crate::take_over::{NEEDS_RESTART, OWN_CONTROLLER};
use crate::top;

/// Longest value that is shown, bytes.
const SHOWN_BYTES_MAX: usize = 60;

/// What the file would change, as lines for the operator.
#[must_use]
pub(crate) fn changes(settings: &Settings) -> String {
    let Some(server) = settings.metrics else {
        return "not compared with a running server: metrics is off\n".into();
    };
    let told = |target| {
        let text = top::get(server, target).map_err(|error| error.to_string())?;
        serde_json::from_str::<Value>(&text).map_err(|error| format!("{target}: {error}"))
    };
    match told("/config").and_then(|config| Ok((config, told("/sites")?))) {
        Ok((Value::Object(config), sites)) => {
            let file = Configuration::of(settings);
            let parsed = |text: &str| serde_json::from_str(text).unwrap_or_default();
            let new = (&parsed(&file.config()), &parsed(&file.sites()));
            describe(server, (&Value::Object(config), &sites), new)
        }
        Ok(_) => format!("not compared: what answers at {server} is no server of this kind\n"),
        Err(error) => format!("not compared: no server answered at {server} ({error})\n"),
    }
}

/// The lines about settings and sites that are `running`, and those that would be.
fn describe(
    server: SocketAddr,
    (running, running_sites): (&Value, &Value),
    (new, new_sites): (&Value, &Value),
) -> String {
    let empty = Map::new();
    let members = |value: &Value| value.as_object().unwrap_or(&empty).clone();
    let (running, new) = (members(running), members(new));
    let mut keys: Vec<&String> = running.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut lines = String::new();
    let no_take_over = why_no_take_over(&running);
    // PATH is no key of the file.
    for key in keys.into_iter().filter(|key| *key != "path") {
        let (before, after) = (running.get(key), new.get(key));
        if before != after {
            let (before, after) = (shown(before), shown(after));
            let needs = needs(key, no_take_over);
            let _ = writeln!(lines, "  {key}: {before} -> {after}: {needs}");
        }
    }
    if running_sites != new_sites {
        let names = changed_sites(running_sites, new_sites);
        let _ = writeln!(lines, "  site: {names}: {}", needs("site", no_take_over));
    }
    if lines.is_empty() {
        return format!("the server at {server} has these settings already\n");
    }
    format!(
        "of the server at {server} this changes, where no flag of its start wins over the file:\n{lines}"
    )
}

fn needs(key: &str, no_take_over: Option<&str>) -> String {
    match no_take_over {
        _ if RELOADED.contains(&key) => "a reload applies it".into(),
        _ if NEEDS_RESTART.contains(&key) => "needs a restart".into(),
        Some(why) => format!("needs a restart, because {why}"),
        None => "a reload applies it by a take-over".into(),
    }
}

/// Why no process can take over from a server with these settings, if none can.
fn why_no_take_over(running: &Map<String, Value>) -> Option<&'static str> {
    let text = |key: &str| running.get(key).and_then(Value::as_str).unwrap_or_default();
    let is_set = |key: &str| running.get(key).is_some_and(|value| !value.is_null());
    let link = text("link");
    if text("path").starts_with("nvme:") {
        Some(OWN_CONTROLLER)
    } else if is_set("pcap") || is_set("trace") {
        Some("frames or connections are written to files")
    } else if link.starts_with("relay:") {
        Some("the relay's connections are those of one process")
    } else if link.starts_with("xdp:") && text("zero_copy") == "on" {
        Some("the sockets have the slots of one process")
    } else {
        None
    }
}

fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "not set".to_owned(), Value::to_string);
    if text.len() > SHOWN_BYTES_MAX {
        return "(another value)".into();
    }
    text
}

/// Which sites are new, other, or gone, by their first name.
fn changed_sites(running: &Value, new: &Value) -> String {
    let empty = Vec::new();
    let sites = |value: &Value| value.as_array().unwrap_or(&empty).clone();
    let (running, new) = (sites(running), sites(new));
    let name = |site: &Value| match &site["names"][0] {
        Value::String(name) => name.clone(),
        _ => "the one without names".to_owned(),
    };
    let find = |sites: &[Value], wanted: &str| {
        let mut sites = sites.iter();
        sites.find(|site| name(site) == wanted).cloned()
    };
    let mut told = Vec::new();
    for site in &new {
        let name = name(site);
        match find(&running, &name) {
            None => told.push(format!("{name} is new")),
            Some(before) if before != *site => told.push(format!("{name} is changed")),
            Some(_) => {}
        }
    }
    for site in &running {
        let name = name(site);
        if find(&new, &name).is_none() {
            told.push(format!("{name} is gone"));
        }
    }
    if told.is_empty() {
        told.push("their order".into());
    }
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::describe;

    fn changes(running: (Value, Value), new: (Value, Value)) -> String {
        let server = "127.0.0.1:9100".parse().unwrap();
        describe(server, (&running.0, &running.1), (&new.0, &new.1))
    }

    #[test]
    fn each_change_says_whether_a_reload_is_enough() {
        let site = |name: &str, root: &str| json!({"names": [name], "root": root});
        let running = (
            json!({"path": "/srv", "slots": "512", "cors": true, "mac": "a", "user": "a", "same": 1}),
            json!([site("a", "/a"), site("b", "/b"), {"rule": []}]),
        );
        let new = (
            json!({"path": "", "slots": "1024", "cors": false, "same": 1, "header": ["X".repeat(99)]}),
            json!([site("a", "/other"), site("c", "/c"), {"rule": []}]),
        );
        assert_eq!(
            changes(running.clone(), new),
            "of the server at 127.0.0.1:9100 this changes, where no flag of its start wins over the file:\n  \
             cors: true -> false: a reload applies it\n  \
             header: not set -> (another value): a reload applies it\n  \
             mac: \"a\" -> not set: needs a restart\n  \
             slots: \"512\" -> \"1024\": a reload applies it by a take-over\n  \
             user: \"a\" -> not set: a reload applies it by a take-over\n  \
             site: a is changed, c is new, b is gone: a reload applies it\n"
        );
        let same = "the server at 127.0.0.1:9100 has these settings already\n";
        assert_eq!(changes(running.clone(), running.clone()), same);
        let swapped = json!([site("b", "/b"), site("a", "/a"), {"rule": []}]);
        let told = changes(running.clone(), (running.0, swapped));
        assert!(told.contains("  site: their order: a reload"), "{told}");
    }

    #[test]
    fn where_no_process_can_take_over_a_change_needs_a_restart_and_why_is_told() {
        for (running, why) in [
            (json!({"path": "nvme:0000:01:00.0"}), "an NVMe controller"),
            (
                json!({"path": "/srv", "pcap": "/a"}),
                "frames or connections",
            ),
            (
                json!({"path": "/srv", "trace": "/a"}),
                "frames or connections",
            ),
            (json!({"path": "/srv", "link": "relay:::"}), "the relay's"),
            (
                json!({"path": "/srv", "link": "xdp:eth0", "zero_copy": "on"}),
                "the sockets have the slots",
            ),
        ] {
            let mut new = running.clone();
            new["slots"] = 300.into();
            new["cors"] = true.into();
            let told = changes((running, json!([])), (new, json!([])));
            let expected = format!("  slots: not set -> 300: needs a restart, because {why}");
            assert!(told.contains(&expected), "{told}");
            assert!(told.contains("  cors: not set -> true: a reload applies it\n"));
        }
        for running in [
            json!({"path": "/dev/nvme0n1", "link": "xdp:eth0", "zero_copy": "auto"}),
            json!({"path": "/srv", "link": "xdp+packet:eth0", "zero_copy": "on"}),
        ] {
            let mut new = running.clone();
            new["slots"] = 300.into();
            let told = changes((running, json!([])), (new, json!([])));
            assert!(told.contains("by a take-over"), "{told}");
        }
    }
}
