//! Multicast listener reports: what a switch hears that snoops on them.

use core::net::{IpAddr, Ipv6Addr};

use clock::Duration;
use wire::icmpv6::solicited_node;

use super::{Bench, OUR_ADDRESS, Sent, config};
use crate::{Conductor, Config};

const OURS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456);
const SECOND: Duration = Duration::from_secs(1);

fn bench_with(addresses: Vec<IpAddr>) -> Bench {
    let config = Config {
        addresses,
        ..config()
    };
    Bench::with(config, 8)
}

/// A general query, or one of a group, that leaves this many milliseconds.
fn query(group: Ipv6Addr, millis: u16) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 36, 0, 1]);
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
    frame.extend_from_slice(&router.octets());
    frame.extend_from_slice(&all.octets());
    frame.extend_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
    let mut message = vec![130, 0, 0, 0];
    message.extend_from_slice(&millis.to_be_bytes());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&group.octets());
    message.extend_from_slice(&[2, 125, 0, 0]);
    let pseudo = wire::checksum::pseudo_header(router.into(), all.into(), 58, 28);
    let sum = wire::checksum::complete(pseudo, &[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&message);
    frame
}

/// Kind of record, and group, of each report in these frames; each is checked byte by byte.
fn reports(frames: Vec<(Sent, Vec<u8>)>) -> Vec<(u8, Ipv6Addr)> {
    let of = |(_, bytes): (Sent, Vec<u8>)| {
        let is_report = bytes.len() == 14 + 40 + 8 + 28 && bytes[62] == 143;
        if !is_report {
            return None;
        }
        assert_eq!(bytes[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!((bytes[20], bytes[21]), (0, 1), "hop-by-hop, one hop");
        assert_eq!(bytes[54..62], [58, 0, 5, 2, 0, 0, 1, 0], "router alert");
        let address =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap());
        assert_eq!(address(38), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16));
        let (source, to) = (address(22).into(), address(38).into());
        let pseudo = wire::checksum::pseudo_header(source, to, 58, 28);
        assert!(wire::checksum::is_valid(pseudo, &bytes[62..]));
        assert_eq!(bytes[66..70], [0, 0, 0, 1], "one record");
        assert_eq!(bytes[71..74], [0, 0, 0], "no sources");
        Some((bytes[70], address(74)))
    };
    frames.into_iter().filter_map(of).collect()
}

#[test]
fn groups_are_reported_with_each_announcement() {
    let addresses = vec![OUR_ADDRESS.into(), OURS.into()];
    let mut bench = bench_with(addresses.clone());
    bench.conductor.announce();
    bench.turn();
    let sent = std::mem::take(&mut bench.sent);
    assert_eq!(reports(sent), [(4, solicited_node(OURS))]);
    // Addresses that are the host's are the host's to report.
    let mut bench = Bench::new();
    bench.conductor = Conductor::new(Config {
        addresses,
        are_addresses_announced: false,
        ..config()
    });
    bench.receive(&query(Ipv6Addr::UNSPECIFIED, 1));
    assert_eq!(bench.conductor.poll_timeout(), None);
    bench.turn();
    assert!(reports(std::mem::take(&mut bench.sent)).is_empty());
}

#[test]
fn a_query_is_answered_once_within_its_time() {
    for group in [Ipv6Addr::UNSPECIFIED, solicited_node(OURS)] {
        let mut bench = bench_with(vec![OURS.into()]);
        bench.receive(&query(group, 1000));
        bench.receive(&query(group, 1000));
        let due = bench.conductor.poll_timeout().expect("an answer is due");
        assert!(due.since(bench.now) < SECOND);
        bench.turn();
        assert!(bench.sent.is_empty(), "not yet");
        bench.now = due;
        bench.pass(Duration::ZERO);
        let sent = std::mem::take(&mut bench.sent);
        assert_eq!(reports(sent), [(2, solicited_node(OURS))]);
        assert_eq!(bench.conductor.poll_timeout(), None);
    }
}

#[test]
fn a_query_for_another_group_or_from_elsewhere_is_not_answered() {
    let mut bench = bench_with(vec![OURS.into()]);
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3457);
    bench.receive(&query(solicited_node(other), 1000));
    assert_eq!(bench.conductor.counters().wire_foreign_frames, 1);
    let mut far = query(Ipv6Addr::UNSPECIFIED, 1000);
    far[21] = 2;
    bench.receive(&far);
    let mut short = query(Ipv6Addr::UNSPECIFIED, 1000);
    short.truncate(short.len() - 1);
    bench.receive(&short);
    assert_eq!(bench.conductor.poll_timeout(), None);
    let drops: u64 = bench
        .conductor
        .counters()
        .wire_drop_pairs()
        .map(|(_, count)| count)
        .sum();
    assert_eq!(drops, 2);
}

#[test]
fn reports_come_from_our_link_local_address_if_there_is_one() {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
    for (addresses, source) in [
        (vec![OURS.into(), link_local.into()], link_local),
        (vec![OURS.into()], Ipv6Addr::UNSPECIFIED),
    ] {
        let mut bench = bench_with(addresses);
        bench.conductor.announce();
        bench.turn();
        let (_, bytes) = &bench.sent[0];
        assert_eq!(bytes[22..38], source.octets());
    }
}
