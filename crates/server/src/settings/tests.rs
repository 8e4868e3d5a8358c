use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::{LinkChoice, Settings};
use crate::cli::ServeArgs;
use crate::config::{FileConfig, documentation};

fn args() -> ServeArgs {
    ServeArgs {
        path: "/srv".into(),
        ..ServeArgs::default()
    }
}

fn with_flags(change: impl FnOnce(&mut ServeArgs)) -> Result<Settings, String> {
    let mut args = args();
    change(&mut args);
    Settings::merge(args, FileConfig::default()).map_err(|failure| failure.to_string())
}

fn with_file(text: &str) -> Result<Settings, String> {
    with_both(text, |_| {})
}

fn with_both(text: &str, change: impl FnOnce(&mut ServeArgs)) -> Result<Settings, String> {
    let mut args = ServeArgs {
        config: Some("atlas.toml".into()),
        ..args()
    };
    change(&mut args);
    let file = FileConfig::parse(text).unwrap();
    Settings::merge(args, file).map_err(|failure| failure.to_string())
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let settings = with_file("").unwrap();
    assert_eq!(settings.link, LinkChoice::Tap("atlas0".into()));
    assert_eq!(settings.addresses[0].to_string(), "10.77.0.2/24");
    assert_eq!(settings.urls(), "http://10.77.0.2/");
    assert_eq!(settings.limits.head_timeout, Duration::from_secs(20));
    assert_eq!(settings.limits.idle_timeout, Duration::from_secs(75));
    assert_eq!(settings.limits.shutdown_grace, Duration::from_secs(10));
    assert_eq!(settings.limits.objects_max, None);
    assert!(!settings.cors && !settings.buffered && settings.pcap.is_none());
    assert!(documentation().contains("| `slots` | - | buffers of 64 KiB | `512` |"));
    assert_eq!(settings.limits.slots, 512);
}

#[test]
fn the_file_wins_over_defaults_and_flags_over_the_file() {
    let text = "link = \"packet:eth1\"\naddress = [\"10.1.0.2/24\"]\nhttp = 81\npcap = \"a\"";
    let from_file = with_file(text).unwrap();
    assert_eq!(from_file.link, LinkChoice::Packet("eth1".into()));
    assert_eq!(from_file.urls(), "http://10.1.0.2:81/");
    assert_eq!(from_file.pcap, Some(PathBuf::from("a")));
    let from_flags = with_both(text, |args| {
        args.link = Some("tap:t".into());
        args.addresses = vec!["fd77::2/64".into(), "10.2.0.2/24".into()];
        args.http = Some("80".into());
        args.pcap = Some("b".into());
        args.cors = true;
    })
    .unwrap();
    assert_eq!(from_flags.link, LinkChoice::Tap("t".into()));
    assert_eq!(from_flags.urls(), "http://[fd77::2]/ http://10.2.0.2/");
    assert_eq!(from_flags.pcap, Some(PathBuf::from("b")));
    assert!(from_flags.cors);
}

#[test]
fn a_refusal_names_the_flag_or_the_key() {
    let flag = with_flags(|args| args.http = Some("0".into())).unwrap_err();
    assert_eq!(flag, "--http 0: out of range; use 1 to 65535 (TCP port)");
    let key = with_file("http = 65536").unwrap_err();
    assert_eq!(
        key,
        "atlas.toml: http 65536: out of range; use 1 to 65535 (TCP port)"
    );
    let word = with_flags(|args| args.http = Some("www".into())).unwrap_err();
    assert!(word.starts_with("--http www: out of range"), "{word}");
    assert!(with_flags(|args| args.http = Some("65535".into())).is_ok());
    assert!(with_flags(|args| args.http = Some("1".into())).is_ok());
}

#[test]
fn each_limit_holds_on_both_sides() {
    for (key, least, most) in [
        ("connections_max", 1, 1_048_576),
        ("slots", 16, 65_536),
        ("disk_queue_depth", 1, 4_096),
        ("objects_max", 1, 65_000),
        ("head_timeout_seconds", 1, 3_600),
        ("idle_timeout_seconds", 1, 86_400),
        ("send_timeout_seconds", 1, 3_600),
        ("shutdown_grace_seconds", 0, 3_600),
    ] {
        for good in [least, most] {
            assert!(
                with_file(&format!("{key} = {good}")).is_ok(),
                "{key} = {good}"
            );
        }
        for bad in [least - 1, most + 1] {
            let message = with_file(&format!("{key} = {bad}")).unwrap_err();
            assert!(
                message.starts_with(&format!("atlas.toml: {key} {bad}: ")),
                "{message}"
            );
            assert!(
                message.contains(&format!("use {least} to {most}")),
                "{message}"
            );
        }
    }
}

#[test]
fn only_one_worker_is_supported() {
    assert!(with_flags(|args| args.workers = Some("1".into())).is_ok());
    let two = with_flags(|args| args.workers = Some("2".into())).unwrap_err();
    assert!(
        two.starts_with("--workers 2: more than one worker is not supported yet;"),
        "{two}"
    );
    for bad in ["0", "-1", "many"] {
        let message = with_flags(|args| args.workers = Some(bad.into())).unwrap_err();
        assert_eq!(
            message,
            format!("--workers {bad}: not a number of workers; use 1")
        );
    }
}

#[test]
fn a_link_is_a_kind_and_a_name() {
    let link = |text: &str| with_flags(|args| args.link = Some(text.into())).map(|s| s.link);
    assert_eq!(link("tap:a"), Ok(LinkChoice::Tap("a".into())));
    assert_eq!(
        link("packet:eth0.7"),
        Ok(LinkChoice::Packet("eth0.7".into()))
    );
    for bad in ["tap", "eth0", "xdp:eth0", ":eth0"] {
        let message = link(bad).unwrap_err();
        assert!(message.starts_with(&format!("--link {bad}: ")), "{message}");
        assert!(message.contains("write tap:NAME"), "{message}");
    }
}

#[test]
fn addresses_are_one_to_sixteen_without_repetition() {
    let addresses = |texts: Vec<String>| with_flags(|args| args.addresses = texts);
    let some = |count: u32| {
        (1..=count)
            .map(|host| format!("10.0.0.{host}/24"))
            .collect()
    };
    assert_eq!(addresses(some(16)).unwrap().addresses.len(), 16);
    assert!(
        addresses(some(17))
            .unwrap_err()
            .starts_with("--address: 17 addresses;")
    );
    assert!(
        with_file("address = []")
            .unwrap_err()
            .starts_with("atlas.toml: address: 0 ")
    );
    let twice = addresses(vec!["10.0.0.1/24".into(), "10.0.0.1/8".into()]).unwrap_err();
    assert!(
        twice.contains("10.0.0.1/8: the address is given twice"),
        "{twice}"
    );
    let network = addresses(vec!["10.0.0.0/24".into()]).unwrap_err();
    assert!(
        network.contains("--address 10.0.0.0/24: that is the network's own"),
        "{network}"
    );
    assert!(network.contains("like 10.0.0.2/24"), "{network}");
}

#[test]
fn levels_step_from_the_default_and_flags_win_over_the_file() {
    let level = |verbose, quiet, text| {
        let change = |args: &mut ServeArgs| (args.verbose, args.quiet) = (verbose, quiet);
        with_both(text, change).map(|settings| settings.log)
    };
    assert_eq!(level(0, 0, ""), Ok(LevelFilter::INFO));
    assert_eq!(level(1, 0, "log = \"error\""), Ok(LevelFilter::DEBUG));
    assert_eq!(level(200, 0, ""), Ok(LevelFilter::TRACE));
    assert_eq!(level(0, 1, ""), Ok(LevelFilter::WARN));
    assert_eq!(level(0, 200, ""), Ok(LevelFilter::ERROR));
    assert_eq!(level(0, 0, "log = \"error\""), Ok(LevelFilter::ERROR));
    let message = level(0, 0, "log = \"loud\"").unwrap_err();
    assert!(
        message.starts_with("atlas.toml: log loud: not a level;"),
        "{message}"
    );
}
