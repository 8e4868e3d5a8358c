//! The files in `deploy/`, checked by their linters. A check whose linter is not installed is skipped, and `make test` installs
//! none: promtool brings a server with it, and the others are no packages of Debian.
//!
//! It starts nothing that is in `deploy/`. Whether the settings there can be used is tested by the programs that read them.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::NamedTempFile;

use testbed::suite::{Outcome, Suite};
use testbed::workspace_root;

/// Prints a YAML file as JSON, its anchors and merges resolved.
const TO_JSON: &str =
    "import sys, json, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";

/// Reads all of it.
pub(crate) fn run(suite: &mut Suite) {
    suite.run("deploy: compose.yaml", compose);
    suite.run("deploy: kubernetes", kubernetes);
    suite.run("deploy: prometheus", prometheus);
}

fn folder() -> PathBuf {
    workspace_root().join("deploy")
}

/// A command's output, or nothing if there is no such program.
fn output(command: &mut Command) -> Result<Option<Output>> {
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        output => Ok(Some(output?)),
    }
}

fn succeeded(output: &Output) -> Result<()> {
    let told = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    ensure!(output.status.success(), "{}", told.join("\n"));
    Ok(())
}

/// What names something else names something that is there.
fn compose() -> Result<Outcome> {
    let mut python = Command::new("python3");
    python
        .args(["-c", TO_JSON])
        .arg(folder().join("compose.yaml"));
    let Some(read) = output(&mut python)? else {
        return Ok(Outcome::Skipped("no python3".into()));
    };
    if String::from_utf8_lossy(&read.stderr).contains("No module named 'yaml'") {
        return Ok(Outcome::Skipped(
            "no module yaml of Python's (Debian: python3-yaml)".into(),
        ));
    }
    succeeded(&read)?;
    let compose: Value = serde_json::from_slice(&read.stdout)?;
    let problems = problems_of(&compose, &folder());
    ensure!(problems.is_empty(), "\n  {}", problems.join("\n  "));
    Ok(Outcome::Passed)
}

/// The keys of a service that are used here. Others may be right, and are added with what they need checked.
const SERVICE_KEYS: [&str; 20] = [
    "build",
    "cap_add",
    "cap_drop",
    "command",
    "depends_on",
    "environment",
    "image",
    "network_mode",
    "networks",
    "ports",
    "profiles",
    "read_only",
    "restart",
    "security_opt",
    "stop_grace_period",
    "ulimits",
    "user",
    "volumes",
    "entrypoint",
    "healthcheck",
];

fn problems_of(compose: &Value, folder: &Path) -> Vec<String> {
    let names = |of: &str| -> BTreeSet<&str> {
        let table = compose[of].as_object();
        table
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect()
    };
    let (services, networks, volumes) = (names("services"), names("networks"), names("volumes"));
    let mut problems = Vec::new();
    if services.is_empty() {
        problems.push("no services".to_owned());
    }
    for name in &services {
        let service = &compose["services"][*name];
        let mut note = |what: String| problems.push(format!("{name}: {what}"));
        if !service["image"].is_string() {
            note("no image".to_owned());
        }
        let keys = service
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str());
        for key in keys.filter(|key| !SERVICE_KEYS.contains(key)) {
            note(format!("unknown key {key}"));
        }
        let used = strings(&service["networks"]);
        for network in used.iter().filter(|it| !networks.contains(it.as_str())) {
            note(format!("no network {network}"));
        }
        if let Some(mode) = service["network_mode"].as_str() {
            let of = mode.strip_prefix("service:").unwrap_or_default();
            if !services.contains(of) || !used.is_empty() {
                note(format!("network_mode {mode}"));
            }
        }
        for other in strings(&service["depends_on"]) {
            if !services.contains(other.as_str()) || other == **name {
                note(format!("depends on {other}"));
            }
        }
        for volume in strings(&service["volumes"]) {
            let mut parts = volume.split(':');
            let (source, target) = (parts.next().unwrap_or_default(), parts.next());
            let is_there = if source.starts_with('.') {
                folder.join(source).exists()
            } else {
                volumes.contains(source)
            };
            let is_target = target.is_some_and(|it| it.starts_with('/'));
            if !is_there || !is_target || parts.any(|it| it != "ro") {
                note(format!("volume {volume}"));
            }
        }
        if let Some(file) = service["build"]["dockerfile"].as_str() {
            let context = service["build"]["context"].as_str().unwrap_or(".");
            if !folder.join(context).join(file).exists() {
                note(format!("no {file}"));
            }
        }
    }
    problems
}

/// The strings of a list, or the keys of a table.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        Value::Object(table) => table.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// Kustomize builds it, and what it builds is of the schemas of Kubernetes.
fn kubernetes() -> Result<Outcome> {
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("kustomize").arg(folder().join("kubernetes"));
    let Some(built) = output(&mut kubectl)? else {
        return Ok(Outcome::Skipped("no kubectl".into()));
    };
    succeeded(&built)?;
    let mut manifests = NamedTempFile::new()?;
    manifests.write_all(&built.stdout)?;
    let mut validate = Command::new("kubernetes-validate");
    validate
        .args(["--strict", "--no-warn"])
        .arg(manifests.path());
    let Some(valid) = output(&mut validate)? else {
        let reason = "in part: no kubernetes-validate (pip), so its schemas were not read";
        return Ok(Outcome::Skipped(reason.into()));
    };
    succeeded(&valid)?;
    Ok(Outcome::Passed)
}

fn prometheus() -> Result<Outcome> {
    let config = folder().join("config");
    for (kind, file) in [("rules", "fleet-alerts.yml"), ("config", "prometheus.yml")] {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", kind]);
        if kind == "config" {
            // Its rules are elsewhere until they are mounted.
            promtool.arg("--syntax-only");
        }
        let Some(checked) = output(promtool.arg(config.join(file)))? else {
            return Ok(Outcome::Skipped("no promtool (Debian: prometheus)".into()));
        };
        succeeded(&checked).with_context(|| file.to_owned())?;
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_service_names_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.toml"), "").unwrap();
        let compose = |service: Value| {
            let other = json!({"image": "b"});
            let compose = json!({
                "services": {"a": service, "b": other}, "networks": {"n": null}, "volumes": {"v": null},
            });
            problems_of(&compose, folder.path())
        };
        let good = json!({
            "image": "a", "networks": ["n"], "depends_on": ["b"], "volumes": ["v:/v", "./a.toml:/a:ro"],
        });
        assert_eq!(compose(good), [""; 0]);
        let shared = json!({"image": "a", "network_mode": "service:b"});
        assert_eq!(compose(shared), [""; 0]);
        let bad = json!({
            "networks": {"m": {}}, "depends_on": ["a", "c"], "privilege": true, "network_mode": "service:c",
            "volumes": ["w:/v", "./b.toml:/b", "v", "v:/v:rw"], "build": {"dockerfile": "No"},
        });
        assert_eq!(compose(bad).len(), 11);
        assert_eq!(problems_of(&json!({}), folder.path()), ["no services"]);
    }
}
