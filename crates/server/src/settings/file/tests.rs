use clap::Parser as _;

use super::{Amount, FileConfig};
use crate::settings::cli::{Cli, Command, ServeArgs};
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

#[test]
fn the_example_in_the_documentation_parses() {
    let example = PAGE
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let file = FileConfig::parse(example.unwrap()).unwrap();
    assert_eq!(file.http, Some(Amount("8080".into())));
    assert_eq!(file.certificate.unwrap().len(), 2);
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let message = FileConfig::parse("http = 80\nhtpp = 81\n").unwrap_err();
    assert!(
        message.starts_with("line 2: unknown field `htpp`"),
        "{message}"
    );
}

#[test]
fn a_wrong_type_is_refused_with_its_line() {
    let message = FileConfig::parse("slots = true").unwrap_err();
    assert!(message.starts_with("line 1: invalid type"), "{message}");
    assert!(message.contains("expected a whole number"), "{message}");
    let message = FileConfig::parse("[[certificate]]\ncert = \"a\"").unwrap_err();
    assert!(message.ends_with("missing field `key`"), "{message}");
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
    let resolve = |text: &str| {
        let file = FileConfig::parse(text).unwrap();
        Settings::merge(CommonArgs::default(), file).unwrap()
    };
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
    let commands: Vec<ServeArgs> = UNIT
        .lines()
        .filter(|line| line.starts_with("ExecStart=") || line.starts_with("ExecReload="))
        .filter_map(|line| line.split_once('=')?.1.strip_prefix("/usr/local/bin/"))
        .map(|words| match Cli::try_parse_from(words.split(' ')) {
            Ok(Cli {
                command: Command::Serve(args),
            }) => args,
            other => panic!("{words}: {other:?}"),
        })
        .collect();
    assert_eq!(commands.len(), 2);
    // Before a reload, the same is looked at as was started.
    assert!(!commands[0].check && commands[1].check);
    assert_eq!(commands[0].common.config, commands[1].common.config);
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
