use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use http::Cors;
use link::ZeroCopy;
use record::AeadLibrary;
use session::CongestionControl;

use super::{CommonArgs, FileConfig, LinkChoice, MacSetting, Origin, Settings, documentation};
use crate::observe::access_log::AccessLogTarget;
use crate::run::coalescing::Pauses;

fn args() -> CommonArgs {
    CommonArgs {
        path: "/srv".into(),
        ..CommonArgs::default()
    }
}

fn with_flags(change: impl FnOnce(&mut CommonArgs)) -> Result<Settings, String> {
    let mut args = args();
    change(&mut args);
    Settings::merge(args, FileConfig::default()).map_err(|failure| failure.to_string())
}

pub(super) fn with_file(text: &str) -> Result<Settings, String> {
    with_both(text, |_| {})
}

fn with_both(text: &str, change: impl FnOnce(&mut CommonArgs)) -> Result<Settings, String> {
    let mut args = args();
    args.config = Some("atlas.toml".into());
    change(&mut args);
    let file = FileConfig::of_text("atlas.toml".as_ref(), Ok(text.to_owned()));
    Settings::merge(args, file).map_err(|failure| without_places(&failure.to_string()))
}

/// A message as if the file's values had no lines.
fn without_places(message: &str) -> String {
    let mut parts = message.split("atlas.toml:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let digits = |it: char| it.is_ascii_digit() || it == ':';
        format!("{text}atlas.toml:{}", part.trim_start_matches(digits))
    })
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let settings = with_file("").unwrap();
    assert_eq!(settings.link, LinkChoice::Tap("atlas0".into()));
    assert_eq!(settings.addresses[0].to_string(), "10.77.0.2/24");
    assert_eq!(settings.urls(), "http://10.77.0.2/");
    assert_eq!(settings.conductor.head_timeout, Duration::from_secs(20));
    assert_eq!(settings.conductor.idle_timeout, Duration::from_secs(75));
    assert_eq!(settings.limits.shutdown_grace, Duration::from_secs(10));
    assert_eq!(settings.limits.coalesce, Pauses::ByRoundTrip);
    assert_eq!(settings.limits.objects_max, None);
    assert_eq!(settings.limits.tls_key_records_max, None);
    assert!(settings.https.is_none());
    assert_eq!(settings.replies.cors, Cors::Off);
    assert!(!settings.buffered && settings.pcap.is_none());
    assert!(settings.access_log.is_none() && settings.metrics.is_none());
    assert!(settings.trace.is_none());
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
    assert_eq!(from_flags.replies.cors, Cors::AnyOrigin);
}

#[test]
fn zero_copy_is_left_to_the_link_forced_or_off() {
    assert_eq!(with_file("").unwrap().zero_copy, ZeroCopy::Auto);
    let packet = "link = \"packet:eth1\"\naddress = [\"10.1.0.2/24\"]\n";
    let written = |choice: &str| with_file(&format!("{packet}zero_copy = \"{choice}\""));
    assert_eq!(written("auto").unwrap().zero_copy, ZeroCopy::Auto);
    assert_eq!(written("on").unwrap().zero_copy, ZeroCopy::On);
    assert_eq!(written("off").unwrap().zero_copy, ZeroCopy::Off);
    assert_eq!(
        written("yes").unwrap_err(),
        "atlas.toml: zero_copy yes: unknown choice; write auto, on or off"
    );
    let on_a_tap = |choice: &str| with_flags(|args| args.zero_copy = Some(choice.into()));
    assert_eq!(on_a_tap("off").unwrap().zero_copy, ZeroCopy::Off);
    assert_eq!(
        on_a_tap("on").unwrap_err(),
        "--zero-copy on: means nothing with tap:atlas0; leave it out, or use --link packet:IFACE"
    );
}

#[test]
fn congestion_control_is_cubic_or_what_is_named() {
    let algorithm = |text: &str| with_file(text).map(|settings| settings.conductor.tcp.congestion);
    assert_eq!(algorithm(""), Ok(CongestionControl::Cubic));
    for known in CongestionControl::ALL {
        let text = format!("congestion_control = \"{}\"", known.name());
        assert_eq!(algorithm(&text), Ok(known));
    }
    assert_eq!(
        algorithm("congestion_control = \"vegas\""),
        Err(
            "atlas.toml: congestion_control vegas: unknown algorithm; write cubic, reno or bbr"
                .into()
        )
    );
}

#[test]
fn bbr_without_pacing_is_refused() {
    let with = |name: &str, pacing: bool| {
        with_file(&format!(
            "congestion_control = \"{name}\"\npacing = {pacing}"
        ))
        .map(|settings| settings.conductor.tcp.is_paced)
    };
    assert_eq!(with("bbr", true), Ok(true));
    assert_eq!(with("reno", false), Ok(false));
    assert_eq!(
        with("bbr", false),
        Err(
            "atlas.toml: congestion_control bbr: needs pacing; write pacing = true, or cubic or reno"
                .into()
        )
    );
}

#[test]
fn pacing_is_on_unless_it_is_switched_off() {
    let is_paced = |text: &str| with_file(text).unwrap().conductor.tcp.is_paced;
    assert!(is_paced(""));
    assert!(is_paced("pacing = true"));
    assert!(!is_paced("pacing = false"));
}

#[test]
fn ecn_is_accepted_unless_it_is_switched_off() {
    let accepts_ecn = |text: &str| with_file(text).unwrap().conductor.tcp.accepts_ecn;
    assert!(accepts_ecn(""));
    assert!(accepts_ecn("ecn = true"));
    assert!(!accepts_ecn("ecn = false"));
}

#[test]
fn the_window_is_reduced_after_an_idle_time_unless_that_is_switched_off() {
    let reduces = |text: &str| with_file(text).unwrap().conductor.tcp.reduces_idle_window;
    assert!(reduces(""));
    assert!(reduces("slow_start_after_idle = true"));
    assert!(!reduces("slow_start_after_idle = false"));
}

#[test]
fn the_path_mtu_is_probed_unless_it_is_switched_off() {
    let probes = |text: &str| with_file(text).unwrap().conductor.tcp.probes_path_mtu;
    assert!(probes(""));
    assert!(probes("mtu_probing = true"));
    assert!(!probes("mtu_probing = false"));
}

#[test]
fn a_connection_has_no_greatest_rate_unless_one_is_given() {
    let rate_max = |text: &str| with_file(text).unwrap().conductor.tcp.rate_max;
    assert_eq!(rate_max(""), None);
    assert_eq!(rate_max("connection_rate_max = 5_000_000"), Some(5_000_000));
}

#[test]
fn the_library_that_seals_is_measured_or_named() {
    let library = |text: &str| with_file(text).map(|settings| settings.aead_library);
    assert_eq!(library(""), Ok(None));
    assert_eq!(library("aead_library = \"auto\""), Ok(None));
    let named = library("aead_library = \"ring\"");
    assert_eq!(named, Ok(Some(AeadLibrary::Ring)));
    let named = library("aead_library = \"aws-lc\"");
    assert_eq!(named, Ok(Some(AeadLibrary::AwsLc)));
    assert_eq!(
        library("aead_library = \"openssl\""),
        Err("atlas.toml: aead_library openssl: unknown library; write auto, aws-lc or ring".into())
    );
}

#[test]
fn the_mac_address_is_our_own_or_the_interface_s() {
    assert_eq!(with_file("").unwrap().mac, MacSetting::Own);
    let packet = "link = \"packet:eth1\"\naddress = [\"10.1.0.2/24\"]\n";
    let written = |mac: &str| with_file(&format!("{packet}mac = \"{mac}\""));
    assert_eq!(written("interface").unwrap().mac, MacSetting::Interface);
    assert_eq!(written("own").unwrap().mac, MacSetting::Own);
    let typed = with_both(&format!("{packet}mac = \"own\""), |args| {
        args.mac = Some("interface".into());
    });
    assert_eq!(typed.unwrap().mac, MacSetting::Interface);
    assert_eq!(
        written("02:00:00:00:00:01").unwrap_err(),
        "atlas.toml: mac 02:00:00:00:00:01: unknown MAC address; write own or interface"
    );
    let on_a_tap = with_flags(|args| args.mac = Some("interface".into())).unwrap_err();
    assert_eq!(
        on_a_tap,
        "--mac interface: means nothing with tap:atlas0; leave it out, or use --link packet:IFACE"
    );
    let own = with_flags(|args| args.mac = Some("own".into())).unwrap();
    assert_eq!(own.mac, MacSetting::Own);
}

#[test]
fn xdp_without_addresses_shares_those_of_the_host() {
    let xdp = |address: Option<&str>, mac: Option<&str>| {
        with_flags(|args| {
            args.link = Some("xdp:eth0".into());
            args.addresses = address.into_iter().map(str::to_owned).collect();
            args.mac = mac.map(str::to_owned);
        })
    };
    let shared = xdp(None, None).unwrap();
    assert!(shared.is_address_shared && !shared.is_address_checked);
    assert!(shared.addresses.is_empty() && shared.mac == MacSetting::Interface);
    assert!(xdp(None, Some("interface")).is_ok());
    let refusal = xdp(None, Some("own")).unwrap_err();
    assert!(
        refusal.starts_with("--mac own: the host's own addresses"),
        "{refusal}"
    );
    let own = xdp(Some("10.0.0.2/24"), None).unwrap();
    assert!(!own.is_address_shared && own.is_address_checked && own.mac == MacSetting::Own);
    let interface = xdp(Some("10.0.0.2/24"), Some("interface")).unwrap();
    assert_eq!(interface.mac, MacSetting::Interface);
    // Other links have an address of their own when none is given.
    assert!(!with_flags(|_| ()).unwrap().is_address_shared);
}

#[test]
fn addresses_are_checked_unless_the_file_says_otherwise() {
    assert!(with_file("").unwrap().is_address_checked);
    assert!(
        with_file("address_check = true")
            .unwrap()
            .is_address_checked
    );
    assert!(
        !with_file("address_check = false")
            .unwrap()
            .is_address_checked
    );
}

#[test]
fn a_refusal_names_the_flag_or_the_key() {
    let flag = with_flags(|args| args.http = Some("0".into())).unwrap_err();
    assert_eq!(
        flag,
        "--http 0: out of range; use 1 to 65535 (TCP port), or off"
    );
    let key = with_file("http = 65536").unwrap_err();
    assert_eq!(
        key,
        "atlas.toml: http 65536: out of range; use 1 to 65535 (TCP port), or off"
    );
    for word in ["www", "", "-", "8o", "8.0"] {
        let refusal = with_flags(|args| args.http = Some(word.into())).unwrap_err();
        let start = format!("--http {word}: expected a whole number; use 1 to 65535");
        assert!(refusal.starts_with(&start), "{refusal}");
    }
    for number in ["-1", "65536", "99999999999999999999"] {
        let refusal = with_flags(|args| args.http = Some(number.into())).unwrap_err();
        let start = format!("--http {number}: out of range; use 1 to 65535");
        assert!(refusal.starts_with(&start), "{refusal}");
    }
    assert!(with_flags(|args| args.http = Some("65535".into())).is_ok());
    assert!(with_flags(|args| args.http = Some("1".into())).is_ok());
}

#[test]
fn only_the_device_of_an_xdp_link_is_polled() {
    let file = |link: &str, rest: &str| with_file(&format!("link = \"{link}\"\n{rest}"));
    let polled = "busy_poll_us = 50";
    for link in ["xdp:eth0", "xdp+packet:eth0"] {
        let settings = file(link, polled).unwrap();
        assert_eq!(settings.busy_poll, Duration::from_micros(50));
        let settings = file(link, "busy_poll_us = 50\ncoalesce_us = 0").unwrap();
        assert_eq!(settings.busy_poll, Duration::from_micros(50));
        let settings = file(link, "busy_poll_us = 50\ncoalesce_us = \"0us\"").unwrap();
        assert_eq!(settings.busy_poll, Duration::from_micros(50));
        let settings = file(link, "busy_poll_us = 0\ncoalesce_us = 7").unwrap();
        assert_eq!(settings.busy_poll, Duration::ZERO);
        let pauses = Pauses::Fixed(Duration::from_micros(7));
        assert_eq!(settings.limits.coalesce, pauses);
        assert_eq!(
            file(link, "busy_poll_us = 50\ncoalesce_us = 7").unwrap_err(),
            "atlas.toml: busy_poll_us 50: a worker that polls does not pause, and coalesce_us says how \
             long it pauses; leave out one of the two"
        );
    }
    let given = "address = [\"10.1.0.2/24\"]\n";
    for (link, rest) in [("packet:eth0", given), ("tap:t0", "")] {
        assert_eq!(
            file(link, &format!("{rest}{polled}")).unwrap_err(),
            "atlas.toml: busy_poll_us 50: only AF_XDP links have their device polled; leave it out, or \
             use --link xdp:IFACE or xdp+packet:IFACE"
        );
        assert_eq!(file(link, rest).unwrap().busy_poll, Duration::ZERO);
    }
    let refusal = file("auto:eth0", polled).unwrap_err();
    assert!(
        refusal.contains("busy_poll_us 50: auto may choose"),
        "{refusal}"
    );
    let typed = |text: &str| {
        with_flags(|args| {
            args.link = Some("xdp:eth0".into());
            args.busy_poll = Some(text.into());
        })
    };
    assert_eq!(typed("1000000").unwrap().busy_poll, Duration::from_secs(1));
    assert!(
        typed("-1")
            .unwrap_err()
            .starts_with("--busy-poll -1: out of range")
    );
    assert_eq!(typed("0").unwrap().busy_poll, Duration::ZERO);
    assert!(
        typed("1000001")
            .unwrap_err()
            .starts_with("--busy-poll 1000001: out of range")
    );
    assert_eq!(typed("5us").unwrap().busy_poll, Duration::from_micros(5));
    assert!(
        typed("5 x")
            .unwrap_err()
            .starts_with("--busy-poll 5 x: expected a duration such as 50us or 1ms")
    );
}

#[test]
fn each_limit_holds_on_both_sides() {
    for (key, least, most) in [
        ("connections_max", 1, 1_048_576),
        ("connections_per_source_max", 1, 1_048_576),
        ("slots", 16, 65_536),
        ("disk_queue_depth", 1, 4_096),
        ("coalesce_us", 0, 10_000),
        ("connection_rate_max", 10_000, 100_000_000_000_i64),
        ("objects_max", 1, 65_000),
        ("tls_key_records_max", 64, 8_388_608),
        ("head_timeout_seconds", 1, 3_600),
        ("idle_timeout_seconds", 1, 86_400),
        ("send_timeout_seconds", 1, 3_600),
        ("replaced_timeout_seconds", 1, 604_800),
        ("shutdown_delay_seconds", 0, 3_600),
        ("shutdown_grace_seconds", 0, 3_600),
        ("take_over_start_seconds", 1, 600),
        ("take_over_deadline_seconds", 1, 604_800),
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
fn times_are_seconds_or_have_a_unit() {
    let of = |text: &str| {
        let settings = with_file(&format!("idle_timeout_seconds = {text}"))?;
        Ok::<_, String>(settings.conductor.idle_timeout)
    };
    for (text, milliseconds) in [
        ("20", 20_000),
        ("\"20\"", 20_000),
        ("\"75 s\"", 75_000),
        ("\"1h30m\"", 5_400_000),
        ("\"24h\"", 86_400_000),
        ("\"1500ms\"", 1_500),
    ] {
        assert_eq!(of(text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
    for (text, problem) in [
        ("25h", "out of range"),
        ("999ms", "out of range"),
        ("1.5m", "expected a duration such as 20s or 1h30m"),
    ] {
        assert_eq!(
            of(&format!("\"{text}\"")).unwrap_err(),
            format!("atlas.toml: idle_timeout_seconds {text}: {problem}; use 1 to 86400 (seconds)")
        );
    }
}

#[test]
fn rates_are_bytes_a_second_or_have_a_unit() {
    let of = |text: &str| {
        let settings = with_file(&format!("connection_rate_max = {text}"))?;
        Ok::<_, String>(settings.conductor.tcp.rate_max)
    };
    for text in ["10_000", "\"10kB/s\"", "\"80kbit/s\""] {
        assert_eq!(of(text), Ok(Some(10_000)), "{text}");
    }
    assert_eq!(
        of("\"10M\"").unwrap_err(),
        "atlas.toml: connection_rate_max 10M: bits or bytes? expected a rate such as 10MB/s or 80Mbit/s; \
         use 10000 to 100000000000 (bytes a second)"
    );
    assert!(of("\"79kbit/s\"").unwrap_err().contains("out of range"));
}

#[test]
fn the_user_is_taken_from_the_flag_or_the_file() {
    let user = |settings: super::Settings| settings.user.map(|(name, _)| name.to_string());
    assert_eq!(user(with_flags(|_| ()).unwrap()), None);
    assert_eq!(
        user(with_file("user = \"atlas:media\"").unwrap()).as_deref(),
        Some("atlas:media")
    );
    let flag = with_flags(|args| args.user = Some("root".into())).unwrap();
    assert_eq!(user(flag).as_deref(), Some("root"));
    let refusal = with_flags(|args| args.user = Some("a:".into())).unwrap_err();
    assert!(refusal.starts_with("--user a:: not a user;"), "{refusal}");
    assert!(with_file("core_dumps = true").unwrap().core_dumps);
    assert!(!with_flags(|_| ()).unwrap().core_dumps);
}

#[test]
fn workers_are_a_number_or_as_many_as_processors() {
    let workers =
        |text: &str| with_flags(|args| args.workers = Some(text.into())).map(|it| it.workers);
    assert_eq!(with_flags(|_| ()).unwrap().workers, 1);
    assert_eq!((workers("1"), workers("64")), (Ok(1), Ok(64)));
    let processors = std::thread::available_parallelism().unwrap().get();
    let expected = u32::try_from(processors.min(64)).unwrap();
    assert_eq!(workers("auto"), Ok(expected));
    for bad in ["0", "65", "-1", "many"] {
        assert_eq!(
            workers(bad).unwrap_err(),
            format!(
                "--workers {bad}: not a number of workers; use 1 to 64, best one for each \
                 processor, or auto"
            )
        );
    }
    let written = |text: &str| with_file(text).map(|it| it.workers);
    assert_eq!(
        (written("workers = 3"), written("workers = \"3\"")),
        (Ok(3), Ok(3))
    );
    assert_eq!(written("workers = \"auto\""), Ok(expected));
    let problem = written("workers = true").unwrap_err();
    assert!(problem.contains("expected a whole number"), "{problem}");
}

#[test]
fn workers_share_the_limits_that_are_set_and_have_a_default_each() {
    let each = |text: &str| {
        with_file(text).map(|it| {
            let share = it.limits.share(it.workers);
            (share.connections_max, share.slots, share.disk_queue_depth)
        })
    };
    assert_eq!(each("workers = 1"), Ok((16_384, 512, 128)));
    assert_eq!(each("workers = 3"), Ok((16_384, 512, 128)));
    // Their most, in all.
    assert_eq!(each("workers = 64"), Ok((16_384, 512, 64)));
    let set = "connections_max = 7\nslots = 50\ndisk_queue_depth = 9\n";
    assert_eq!(each(&format!("{set}workers = 3")), Ok((2, 16, 3)));
    let refusal = each(&format!("{set}workers = 4")).unwrap_err();
    assert!(
        refusal.ends_with("slots 50: too few for 4 workers; use at least 64, or fewer workers"),
        "{refusal}"
    );
    let refusal = each("workers = 2\nconnections_max = 1").unwrap_err();
    assert!(
        refusal.contains("connections_max 1: too few for 2 workers;"),
        "{refusal}"
    );
    let source = with_file("connections_per_source_max = 5").unwrap().limits;
    assert_eq!(source.share(1).connections_per_source_max, Some(5));
    assert_eq!(source.share(2).connections_per_source_max, Some(3));
    assert_eq!(source.share(5).connections_per_source_max, Some(1));
    assert_eq!(source.share(9).connections_per_source_max, Some(1));
}

#[test]
fn a_link_is_a_kind_and_a_name() {
    let link = |text: &str| {
        let settings = with_flags(|args| {
            args.link = Some(text.into());
            args.addresses = vec!["10.1.0.2/24".into()];
        });
        settings.map(|settings| settings.link)
    };
    assert_eq!(link("tap:a"), Ok(LinkChoice::Tap("a".into())));
    assert_eq!(
        link("packet:eth0.7"),
        Ok(LinkChoice::Packet("eth0.7".into()))
    );
    assert_eq!(link("xdp:eth0"), Ok(LinkChoice::Xdp("eth0".into())));
    let both = LinkChoice::XdpPacket("eth0".into());
    assert_eq!(link("xdp+packet:eth0"), Ok(both));
    assert_eq!(link("auto:eth0"), Ok(LinkChoice::Auto("eth0".into())));
    let here = LinkChoice::Relay(Ipv4Addr::LOCALHOST.into());
    assert_eq!(link("relay"), Ok(here));
    for text in [
        "tap:a",
        "packet:a",
        "xdp:a",
        "xdp+packet:a",
        "auto:a",
        "relay:0.0.0.0",
        "relay:::1",
    ] {
        assert_eq!(link(text).unwrap().to_string(), text);
    }
    for bad in ["tap", "eth0", "wire:eth0", ":eth0", "relay:eth0", "relay:"] {
        let message = link(bad).unwrap_err();
        assert!(message.starts_with(&format!("--link {bad}: ")), "{message}");
        assert!(message.contains("write tap:NAME"), "{message}");
    }
}

#[test]
fn a_relay_is_private_has_one_worker_and_is_found_at_the_host_s_address() {
    let relay = |change: &dyn Fn(&mut CommonArgs)| {
        with_flags(|args| {
            args.link = Some("relay:127.0.0.1".into());
            args.http = Some("8080".into());
            change(args);
        })
    };
    let settings = relay(&|_| ()).unwrap();
    assert_eq!(settings.urls(), "http://127.0.0.1:8080/");
    assert_eq!(settings.own_addresses(), [Ipv4Addr::new(10, 77, 0, 2)]);
    assert!(!settings.is_address_checked && !settings.is_address_shared);
    assert_eq!(settings.link.interface(), "lo");
    for workers in ["1", "auto"] {
        let settings = relay(&|args| args.workers = Some(workers.into()));
        assert_eq!(settings.unwrap().workers, 1, "{workers}");
    }
    let refusal = relay(&|args| args.workers = Some("2".into())).unwrap_err();
    assert!(refusal.contains("--workers 2: "), "{refusal}");
    for (flag, value) in [("--mac", "interface"), ("--zero-copy", "on")] {
        let refusal = relay(&|args| match flag {
            "--mac" => args.mac = Some(value.into()),
            _ => args.zero_copy = Some(value.into()),
        });
        let expected = format!("{flag} {value}: means nothing with relay:127.0.0.1");
        assert!(refusal.unwrap_err().starts_with(&expected), "{expected}");
    }
}

#[test]
fn on_a_network_no_address_is_taken_that_was_not_given() {
    let link = |text: &str| with_flags(|args| args.link = Some(text.into()));
    assert_eq!(
        link("packet:eth0").unwrap_err(),
        "--link packet:eth0: no address to serve at; name one that no host has: --address ADDRESS/BITS, \
         or address = [...] in the configuration file"
    );
    assert_eq!(link("tap:a").unwrap().urls(), "http://10.77.0.2/");
    for text in ["xdp:a", "xdp+packet:a", "auto:a"] {
        let settings = link(text).unwrap();
        assert!(settings.is_address_shared && settings.addresses.is_empty());
    }
}

#[test]
fn an_address_may_be_one_that_another_station_answers_arp_for() {
    let settings = with_flags(|args| {
        args.addresses = vec!["10.0.0.2/24".into(), "10.0.0.80/32,noarp".into()];
    })
    .unwrap();
    let [own, virtual_address]: [IpAddr; 2] = settings.own_addresses().try_into().unwrap();
    assert_eq!(settings.virtual_addresses, [virtual_address]);
    assert_eq!(settings.answered_addresses(), [own]);
    let refusal = with_flags(|args| {
        args.addresses = vec!["10.0.0.2/24,arp".into()];
    });
    let refusal = refusal.unwrap_err();
    assert!(
        refusal.starts_with("--address 10.0.0.2/24,arp: "),
        "{refusal}"
    );
    let text = "link = \"packet:eth1\"\naddress = [\"fd77::80/128,noarp\"]";
    assert_eq!(with_file(text).unwrap().virtual_addresses.len(), 1);
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
        let change = |args: &mut CommonArgs| (args.verbose, args.quiet) = (verbose, quiet);
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

/// `[[certificate]]` with files of this name.
fn table(name: &str) -> String {
    format!("[[certificate]]\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n")
}

/// `--cert` and `--key` so many times, and `--https` if a port is given.
fn with_certificates(count: usize, https: Option<&str>) -> Result<Settings, String> {
    with_flags(|args| {
        args.https = https.map(Into::into);
        args.certificates = vec!["a.pem".into(); count];
        args.keys = vec!["a.key".into(); count];
    })
}

#[test]
fn https_is_a_port_and_certificates() {
    let settings = with_certificates(1, Some("443")).unwrap();
    assert_eq!(settings.urls(), "http://10.77.0.2/ https://10.77.0.2/");
    let https = settings.https.unwrap();
    assert_eq!((https.port, https.pairs.len()), (443, 1));
    assert_eq!(https.pairs[0].certificate.to_string(), "--cert a.pem");
    assert_eq!(https.pairs[0].key.to_string(), "--key a.key");
    assert_eq!(https.secrets_origin, None);
    assert_eq!(
        with_certificates(1, Some("8443")).unwrap().urls(),
        "http://10.77.0.2/ https://10.77.0.2:8443/"
    );
    assert!(with_certificates(1, Some("0")).is_err());
    assert_eq!(
        with_certificates(1, Some("80")).unwrap_err(),
        "--https 80: that is the port of plain HTTP; use another, or --http off"
    );
    assert_eq!(
        with_certificates(0, Some("443")).unwrap_err(),
        "--https 443: there is no certificate; \
         give --cert and --key, or [[certificate]] in the configuration file"
    );
    assert_eq!(
        with_certificates(1, None).unwrap_err(),
        "--cert: means nothing without --https; give --https a port, like 443, or leave it out"
    );
}

#[test]
fn certificates_come_in_pairs_and_not_too_many() {
    let with = |certificates: usize, keys: usize| {
        with_flags(|args| {
            args.https = Some("443".into());
            args.certificates = vec!["a".into(); certificates];
            args.keys = vec!["b".into(); keys];
        })
        .map(|settings| settings.https.map_or(0, |https| https.pairs.len()))
    };
    assert_eq!(with(16, 16), Ok(16));
    assert_eq!(
        with(17, 17).unwrap_err(),
        "--cert: 17 certificates; give at most 16"
    );
    assert_eq!(
        with(1, 0).unwrap_err(),
        "--cert without --key; give the key of each --cert"
    );
    assert_eq!(
        with(0, 1).unwrap_err(),
        "--key without --cert; give the --cert of each key"
    );
    assert_eq!(
        with(2, 1).unwrap_err(),
        "--cert is given 2 times, --key 1 times; give them in pairs"
    );
}

#[test]
fn the_file_can_have_all_of_https_and_flags_win() {
    let text = format!(
        "http = \"off\"\nhttps = 8443\nlog_tls_secrets = true\n{}{}",
        table("x"),
        table("y")
    );
    let settings = with_file(&text).unwrap();
    assert_eq!(settings.http_port, None);
    assert_eq!(settings.urls(), "https://10.77.0.2:8443/");
    let https = settings.https.unwrap();
    let [first, second] = &https.pairs[..] else {
        panic!("two pairs: {https:?}");
    };
    assert_eq!(
        without_places(&first.certificate.to_string()),
        "atlas.toml: certificate.cert x.pem"
    );
    let second = without_places(&second.key.to_string());
    assert_eq!(second, "atlas.toml: certificate.key y.key");
    let origin = https.secrets_origin.unwrap().to_string();
    assert_eq!(without_places(&origin), "atlas.toml: log_tls_secrets");
    let settings = with_both(&text, |args| {
        args.http = Some("80".into());
        args.https = Some("443".into());
        args.certificates = vec!["a.pem".into()];
        args.keys = vec!["a.key".into()];
        args.log_tls_secrets = true;
    })
    .unwrap();
    assert_eq!(settings.urls(), "http://10.77.0.2/ https://10.77.0.2/");
    let https = settings.https.unwrap();
    assert_eq!(https.pairs.len(), 1, "flags replace all of the file's");
    assert_eq!(
        https.secrets_origin,
        Some(Origin::Flag("--log-tls-secrets"))
    );
    // Switched off by a flag, the rest of the file may stay as it is.
    let both_flags = |args: &mut CommonArgs| {
        args.http = Some("80".into());
        args.https = Some("off".into());
    };
    assert!(with_both(&text, both_flags).unwrap().https.is_none());
}

#[test]
fn at_least_one_port_is_served_and_words_other_than_off_are_refused() {
    let off = with_flags(|args| args.http = Some("off".into())).unwrap_err();
    assert_eq!(
        off,
        "--http off: nothing is left to serve on; give --https a port, or --http"
    );
    let off = with_file("http = \"off\"").unwrap_err();
    assert!(off.starts_with("atlas.toml: http off: nothing"), "{off}");
    let word = with_file("https = \"on\"").unwrap_err();
    assert_eq!(
        word,
        "atlas.toml: https on: expected a whole number; use 1 to 65535 (TCP port), or off"
    );
    let useless = with_flags(|args| args.log_tls_secrets = true).unwrap_err();
    assert!(
        useless.starts_with("--log-tls-secrets: means nothing without --https;"),
        "{useless}"
    );
    let useless = with_file(&table("x")).unwrap_err();
    assert!(
        useless.starts_with("atlas.toml: certificate: means nothing"),
        "{useless}"
    );
}

#[test]
fn header_fields_come_from_flags_or_the_file() {
    let expected = |fields: &[&str]| {
        let mut extra = http::ExtraFields::default();
        for field in fields {
            extra.push(field).unwrap();
        }
        extra
    };
    let text = "header = [\"X-A: 1\", \"X-B: 2\"]";
    let file = with_file(text).unwrap().replies;
    assert_eq!(file.extra_fields, expected(&["X-A: 1", "X-B: 2"]));
    let flags = with_both(text, |args| args.headers = vec!["X-C: 3".into()]);
    assert_eq!(flags.unwrap().replies.extra_fields, expected(&["X-C: 3"]));
    assert_eq!(with_file("").unwrap().replies, http::ReplyConfig::default());

    let flag = |line: &str| {
        let refused = with_flags(|args| args.headers = vec!["X: 1".into(), line.into()]);
        refused.unwrap_err()
    };
    assert_eq!(
        flag("X"),
        "--header \"X\": not a field name with a colon behind it; write 'Name: value'"
    );
    assert_eq!(
        flag("X: a\r\nY: b"),
        "--header \"X: a\\r\\nY: b\": the value is empty or has a control character; \
         write 'Name: value'"
    );
    assert_eq!(
        flag("Content-Length: 1"),
        "--header \"Content-Length: 1\": the server writes this field itself; leave it out; \
         content types are set by [types]"
    );
    let long = flag(&format!("X: {}", "v".repeat(http::EXTRA_FIELDS_BYTES_MAX)));
    assert!(long.ends_with("give fewer or shorter ones"), "{long}");
    let refused = with_file("header = [\"X :1\"]").unwrap_err();
    assert!(
        refused.starts_with("atlas.toml: header \"X :1\": "),
        "{refused}"
    );
}

#[test]
fn credentials_need_an_origin_of_ones_own() {
    let origin = "\"Access-Control-Allow-Origin: https://a.example\"";
    let credentials = "\"Access-Control-Allow-Credentials: true\"";
    let fields =
        |cors: bool, fields: &str| with_file(&format!("cors = {cors}\nheader = [{fields}]"));
    for cors in [true, false] {
        assert!(fields(cors, origin).is_ok());
        assert!(fields(cors, &format!("{credentials}, {origin}")).is_ok());
    }
    assert!(fields(false, credentials).is_ok());
    let any = format!("\"Access-Control-Allow-Origin: *\", {credentials}");
    for refused in [fields(true, credentials), fields(false, &any)] {
        let refused = refused.unwrap_err();
        assert!(
            refused.starts_with(
                "atlas.toml: header: Access-Control-Allow-Credentials for pages of any"
            ),
            "{refused}"
        );
    }
    let twice = fields(true, &format!("{origin}, {origin}")).unwrap_err();
    assert!(
        twice.ends_with(": given twice; leave out one of the two"),
        "{twice}"
    );
}

#[test]
fn content_types_are_checked_at_start() {
    let right = with_file("[types]\nabc = \"video/x-abc\"\n\"d-e\" = \"text/plain\"").unwrap();
    let mut types = http::ContentTypes::default();
    types.insert("abc", "video/x-abc").unwrap();
    types.insert("d-e", "text/plain").unwrap();
    assert_eq!(right.replies.types, types);
    for (wrong, problem) in [
        ("abc = \"video\"", "not a content type"),
        ("\".abc\" = \"video/mp4\"", "not an extension"),
    ] {
        let refused = with_file(&format!("[types]\n{wrong}")).unwrap_err();
        assert!(refused.starts_with("atlas.toml: types."), "{refused}");
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn cache_control_is_sent_unless_it_is_off() {
    assert!(with_file("").unwrap().replies.cache_control);
    assert!(
        !with_file("cache_control = false")
            .unwrap()
            .replies
            .cache_control
    );
}

#[test]
fn the_access_log_is_a_file_or_stdout() {
    let file = with_file("access_log = \"a.log\"").unwrap().access_log;
    assert_eq!(file, Some(AccessLogTarget::File("a.log".into())));
    let flag = with_both("access_log = \"a.log\"", |args| {
        args.access_log = Some("-".into());
    });
    assert_eq!(flag.unwrap().access_log, Some(AccessLogTarget::Stdout));
}

#[test]
fn a_trace_needs_a_file_and_a_peer() {
    let traced = with_file("trace = \"t.sqlog\"\ntrace_peer = \"192.0.2.7\"").unwrap();
    let trace = traced.trace.unwrap();
    assert_eq!(trace.file, PathBuf::from("t.sqlog"));
    assert_eq!(trace.peers.to_string(), "192.0.2.7");
    let flags = |file: Option<&str>, peer: Option<&str>| {
        with_flags(|args| {
            args.trace = file.map(PathBuf::from);
            args.trace_peer = peer.map(str::to_owned);
        })
    };
    let trace = flags(Some("a"), Some("[fd77::7]:50000"))
        .unwrap()
        .trace
        .unwrap();
    assert_eq!(trace.peers.to_string(), "[fd77::7]:50000");
    let refused = |file, peer| flags(file, peer).unwrap_err();
    let message = refused(Some("a"), None);
    assert_eq!(
        message,
        "--trace a: whose connections?; name a client with --trace-peer"
    );
    let message = refused(None, Some("192.0.2.7"));
    assert_eq!(
        message,
        "--trace-peer 192.0.2.7: there is no file; name one with --trace"
    );
    let message = refused(Some("a"), Some("client"));
    assert!(
        message.starts_with("--trace-peer client: not an address; write"),
        "{message}"
    );
    let message = with_file("trace = \"a\"\ntrace_peer = \"client\"").unwrap_err();
    assert!(
        message.starts_with("atlas.toml: trace_peer client: "),
        "{message}"
    );
}

#[test]
fn metrics_need_an_address_and_a_port() {
    let flag = |text: &str| with_flags(|args| args.metrics = Some(text.into()));
    for good in ["127.0.0.1:1", "[::1]:65535"] {
        let metrics = flag(good).unwrap().metrics.unwrap();
        assert_eq!(metrics.to_string(), good);
    }
    for bad in [
        "127.0.0.1",
        "127.0.0.1:0",
        "[::1]:65536",
        ":9100",
        "localhost:9100",
    ] {
        let message = flag(bad).unwrap_err();
        assert!(
            message.starts_with(&format!("--metrics {bad}: not an address")),
            "{message}"
        );
    }
    let key = with_file("metrics = \"x\"").unwrap_err();
    assert!(key.starts_with("atlas.toml: metrics x: "), "{key}");
}

/// Whether each source is served, or why not at all.
fn served(text: &str, sources: &[&str]) -> Result<Vec<bool>, String> {
    let filter = with_file(text)?.conductor.source_filter;
    let sources = sources.iter().map(|source| source.parse().unwrap());
    Ok(sources.map(|source| filter.serves(source)).collect())
}

#[test]
fn sources_are_allowed_and_denied_by_network() {
    let sources = ["192.0.2.7", "192.0.2.8", "198.51.100.1", "2001:db8::1"];
    assert_eq!(served("", &sources), Ok(vec![true; 4]));
    let text = "allow = [\"192.0.2.0/24\", \"2001:db8::/32\"]\ndeny = [\"192.0.2.7\"]";
    assert_eq!(served(text, &sources), Ok(vec![false, true, false, true]));
    let everybody = "deny = [\"0.0.0.0/0\", \"::/0\"]";
    assert_eq!(served(everybody, &sources), Ok(vec![false; 4]));
}

#[test]
fn flags_replace_the_networks_of_the_file() {
    let text = "allow = [\"192.0.2.0/24\"]\ndeny = [\"10.0.0.0/8\"]";
    let settings = with_both(text, |args| args.allow = vec!["198.51.100.0/24".into()]);
    let filter = settings.unwrap().conductor.source_filter;
    let serves = |source: &str| filter.serves(source.parse().unwrap());
    assert!(serves("198.51.100.1") && !serves("192.0.2.1") && !serves("10.0.0.1"));
}

#[test]
fn networks_that_are_none_are_refused_with_the_remedy() {
    for (text, problem) in [
        (
            "allow = []",
            "allow: 0 networks; name 1 to 16384, or leave it out",
        ),
        (
            "deny = [\"192.0.2.0/+24\"]",
            "deny 192.0.2.0/+24: not a network; write it like 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7",
        ),
        (
            "deny = [\"example.org\"]",
            "deny example.org: not a network; write it like 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7",
        ),
        (
            "allow = [\"192.0.2.0/33\"]",
            "allow 192.0.2.0/33: the prefix length is out of range; use 0 to 32",
        ),
        (
            "allow = [\"::/300\"]",
            "allow ::/300: the prefix length is out of range; use 0 to 128",
        ),
        (
            "allow = [\"192.0.2.7/24\"]",
            "allow 192.0.2.7/24: the address has bits behind the prefix; write 192.0.2.0/24 for the \
             network, or 192.0.2.7 for the address",
        ),
    ] {
        let refusal = with_file(text).unwrap_err();
        assert!(refusal.ends_with(problem), "{refusal}");
    }
}
