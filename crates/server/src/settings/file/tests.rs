use std::sync::Arc;

use clap::Parser as _;

use super::{Amount, FileConfig};
use crate::settings::cli::{Cli, Command};
use crate::settings::documentation;
use crate::settings::key::{ADDRESS_DEFAULT, LINK_DEFAULT, LOG_DEFAULT, MAC_DEFAULT};
use crate::settings::{CommonArgs, Settings};

const PAGE: &str = include_str!("../../../../../docs/run/configuration.md");

#[test]
fn every_row_says_what_holds_if_nothing_is_configured() {
    for row in documentation().lines() {
        assert!(
            row.split(" | ").all(|cell| !cell.trim().is_empty()),
            "{row}"
        );
    }
}

fn read(text: &str) -> FileConfig {
    FileConfig::of_text("a.toml".as_ref(), Ok(text.to_owned()))
}

/// All that is wrong, a line each, with the lines that are shown.
fn told(text: &str) -> String {
    let file = read(text);
    let source = Arc::clone(&file.source);
    let failure = Settings::merge(CommonArgs::default(), file).unwrap_err();
    let lines = failure.reasons().iter().map(|reason| {
        let text = reason.to_string();
        let excerpt = source.excerpt(&text).unwrap_or_else(|| "nothing".into());
        format!("{text}\n{excerpt}\n")
    });
    lines.collect()
}

#[test]
fn the_example_in_the_documentation_parses() {
    let example = PAGE
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let file = read(example.unwrap());
    assert_eq!(file.source.problems(), []);
    assert_eq!(file.http, Some(Amount("8080".into())));
    assert_eq!(file.certificate.unwrap().len(), 2);
}

#[test]
fn all_that_is_wrong_is_told_at_once_with_the_line_of_each() {
    let text = "htpp = 81\nslots = 8\ncors = \"yes\"\nhead_timeout_seconds = 1.5\n\
                address = [\"a\", 7]\nlink = 'tap:x'\n[types]\nmkv = 3\nm4s = \"x\"\n";
    assert_eq!(
        told(text),
        "a.toml:1:1: htpp: unknown key; did you mean http?\n\
         \x20 | htpp = 81\n  | ^\n\
         a.toml:2:9: slots 8: out of range; use 16 to 65536 (buffers of 64 KiB)\n\
         \x20 | slots = 8\n  |         ^\n\
         a.toml:3:8: cors \"yes\": expected true or false, without quotes\n\
         \x20 | cors = \"yes\"\n  |        ^\n\
         a.toml:4:24: head_timeout_seconds 1.5: expected a duration such as 20s or 1h30m\n\
         \x20 | head_timeout_seconds = 1.5\n  |                        ^\n\
         a.toml:5:17: address 7: expected a text in quotes\n\
         \x20 | address = [\"a\", 7]\n  |                 ^\n\
         a.toml:8:7: types.mkv 3: expected a text in quotes\n\
         \x20 | mkv = 3\n  |       ^\n\
         a.toml:9:7: types.\"m4s\" \"x\": not a content type (type/subtype of at most 128 bytes); write extension = \"type/subtype\", like mkv = \
         \"video/x-matroska\"\n\
         \x20 | m4s = \"x\"\n  |       ^\n"
    );
}

#[test]
fn a_key_in_the_wrong_table_is_told_where_it_belongs() {
    let text = "https = 443\n[[certificate]]\ncert = \"a\"\nhttp = 80\n\n[[site]]\nnames = [\"a.example\"]\n\
                redirect = \"/x\"\n[[site.rule]]\npaths = [\"/x\"]\nstatus = 404\nstatsu = 1\nlink = { key = 1 }\n";
    let told = told(text);
    for line in [
        "a.toml:2:1: [[certificate]]: key is missing beside cert \"a\"\n",
        "a.toml:4:1: http: unknown key inside [[certificate]]; it is a key of the file: write it above the \
         first line with a [table]\n",
        "a.toml:8:1: redirect: unknown key inside [[site]]; it is a key of [[site.rule]] and of on_miss\n",
        "a.toml:12:1: statsu: unknown key inside [[site.rule]]; did you mean status?\n",
        "a.toml:13:10: key: unknown key inside link; did you mean keys?\n",
        "a.toml:13:8: site 1, rule 1: link: keys is missing; name a file with a secret in each line\n",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    // Nothing is said of https, which may have been meant otherwise.
    assert_eq!(told.matches("a.toml:").count(), 6, "{told}");
}

#[test]
fn a_directive_of_nginx_is_told_as_what_it_is_here() {
    let told = told(
        "send_timeout = 5\nkeepalive_timeout = 65\n\
         [[site]]\nserver_name = \"a.example\"\nlocation = {}\ngzip_static = true\n\
         limit = { connections = 8, limit_req = \"10r/s\" }\n",
    );
    for line in [
        "a.toml:1:1: send_timeout: unknown key; did you mean send_timeout_seconds?\n",
        "a.toml:2:1: keepalive_timeout: unknown key; what nginx says so is here idle_timeout_seconds\n",
        "a.toml:4:1: server_name: unknown key inside [[site]]; what nginx says so is here names\n",
        "a.toml:6:1: gzip_static: unknown key inside [[site]]; what nginx says so is here precompressed = [\"gzip\"]\n",
        "a.toml:7:28: limit_req: unknown key inside limit; what nginx says so is here limit = { requests = ",
        "a.toml:5:1: location: unknown key inside [[site]]; what nginx says so is here [[site.rule]] with \
         paths\n",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
}

#[test]
fn values_of_sites_are_told_with_the_line_of_their_key() {
    let text = "[[site]]\nnames = [\"a.example\"]\ncors = [\"x\"]\nroot = \"a/\"\n\
                [[site.rule]]\npaths = [\"/a\"]\n[[site]]\nnames = [\"b.example\"]\n\
                [[site.rule]]\npaths = [\"/a\"]\nstatus = 200\n[[site.rule]]\npaths = [\"/b\"]\n\
                allow = [\"10.0.0.1/8\"]\nheader = [\"x\"]\n";
    let told = told(text);
    for start in [
        "a.toml:3:8: site 1: cors: ",
        "a.toml:4:8: site 1: root \"a/\": ",
        "a.toml:11:10: site 2, rule 1: status 200; use",
        "a.toml:14:9: site 2, rule 2: allow 10.0.0.1/8: ",
        "a.toml:15:10: site 2, rule 2: header \"x\": ",
    ] {
        assert!(told.contains(start), "{start}\n{told}");
    }
    // The rule beneath the folder that is none is not blamed for it.
    assert_eq!(told.matches("a.toml:").count(), 5, "{told}");
}

#[test]
fn settings_that_do_not_suit_each_other_are_told_when_each_is_right() {
    let text = "http = 443\nhttps = 443\ncongestion_control = \"bbr\"\npacing = false\n\
                [[certificate]]\ncert = \"a\"\nkey = \"b\"\n";
    let both = told(text);
    assert!(
        both.contains("a.toml:2:9: https 443: that is the port of plain HTTP"),
        "{both}"
    );
    assert!(
        both.contains("a.toml:3:22: congestion_control bbr: needs pacing"),
        "{both}"
    );
    let other = told(&format!("slots = 1\n{text}"));
    assert_eq!(other.matches("a.toml:").count(), 1, "{other}");
}

#[test]
fn no_more_than_twenty_problems_are_told() {
    let wrong = |count: usize| {
        let lines = (0..count).map(|index| format!("wholly_unknown_{index} = 1\n"));
        told(&lines.collect::<String>())
    };
    assert_eq!(wrong(20).matches("wholly_unknown").count(), 40);
    assert!(!wrong(20).contains("more"));
    let more = wrong(22);
    assert_eq!(more.matches("wholly_unknown").count(), 40, "{more}");
    assert!(more.contains("and 2 more that are not told"), "{more}");
}

#[test]
fn what_is_no_toml_is_told_alone() {
    let told = told("http = 80\nslots = \ncors = true\nhttp = 81\n");
    assert!(
        told.contains("a.toml:2:") && told.contains("a.toml:4:1: duplicate key"),
        "{told}"
    );
    let long = format!("header = [\"{}\", x]\n", "é".repeat(200));
    let told = self::told(&long);
    assert!(told.starts_with("a.toml:1:215: "), "{told}");
    assert!(
        told.lines().all(|line| line.chars().count() < 130),
        "{told}"
    );
}

#[test]
fn the_text_defaults_in_the_table_are_those_of_the_code() {
    let table = documentation();
    for default in [LINK_DEFAULT, ADDRESS_DEFAULT, MAC_DEFAULT, LOG_DEFAULT] {
        assert_eq!(
            table.matches(&format!("\"{default}\"")).count(),
            1,
            "{default}"
        );
    }
}

/// What is shipped in `dist/`.
const EXAMPLE: &str = include_str!("../../../../../dist/atlas.toml");
const UNIT: &str = include_str!("../../../../../dist/atlas.service");
const USERS: &str = include_str!("../../../../../dist/atlas-sysusers.conf");

#[test]
fn the_example_is_a_configuration_as_it_stands_and_with_its_options() {
    let resolve = |text: &str| Settings::merge(CommonArgs::default(), read(text)).unwrap();
    let settings = resolve(EXAMPLE);
    assert!(settings.https.is_none());
    assert_eq!(settings.replies.cors, http::Cors::AnyOrigin);
    let options = [
        "https = ",
        "user = ",
        "[[certificate]]",
        "cert = ",
        "key = ",
    ];
    let with_options: Vec<&str> = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if options.iter().any(|option| setting.starts_with(option)) => {
                // The sentence about tables begins like one.
                setting.strip_suffix("see below.").map_or(setting, |_| line)
            }
            _ => line,
        })
        .collect();
    let settings = resolve(&with_options.join("\n"));
    assert_eq!(settings.https.unwrap().pairs.len(), 1);
    assert_eq!(settings.user.unwrap().0.to_string(), "atlas");
}

#[test]
fn the_unit_starts_the_server_with_flags_it_has() {
    let commands = UNIT
        .lines()
        .filter(|line| line.starts_with("ExecStart=") || line.starts_with("ExecReload="))
        .filter_map(|line| line.split_once('=')?.1.strip_prefix("/usr/local/bin/"))
        .map(|words| words.replace("$MAINPID", "4711"))
        .map(|words| Cli::try_parse_from(words.split(' ')).unwrap().command);
    let commands: Vec<Command> = commands.collect();
    assert!(matches!(
        commands[..],
        [Command::Serve(_), Command::Reload(_)]
    ));
    // Its user must be able to give up what it is given, and needs all that links ask for.
    for line in [
        "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_READ_SEARCH",
        "NoNewPrivileges=yes",
        "DeviceAllow=/dev/net/tun rw",
    ] {
        assert!(UNIT.lines().any(|other| other == line), "{line}");
    }
}

/// systemd refuses openat2 with ENOSYS where it is to keep a service from making set-user-id files,
/// since its filter cannot read the mode; and a dynamic user implies that.
#[test]
fn the_unit_lets_the_server_open_files_beneath_its_directory() {
    for directive in ["RestrictSUIDSGID=", "DynamicUser="] {
        let is_there = UNIT.lines().any(|line| line.starts_with(directive));
        assert!(!is_there, "{directive}");
    }
    // So its user is one that the other file makes.
    assert!(UNIT.lines().any(|line| line == "User=atlas"));
    let makes = |line: &str| line.starts_with("u atlas ");
    assert!(USERS.lines().any(makes), "{USERS}");
}
