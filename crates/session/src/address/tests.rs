use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::{Duration, Instant};
use wire::{
    ArpOperation, ArpRepr, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, parse_frame,
};

use super::{AddressCheck, AddressConflict, DEFEND_INTERVAL, Defense, ProbeTimes};

const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const OTHER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const OTHER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, 2);
const START: Instant = Instant::from_millis(3);

fn check() -> AddressCheck {
    AddressCheck::new(START, OURS, &[V4.into(), V6.into()], ProbeTimes::NETWORK)
}

/// Every frame due at `now`.
fn due(check: &mut AddressCheck, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    core::iter::from_fn(|| {
        let length = check.poll_probe(now, &mut buffer)?;
        Some(buffer[..length].to_vec())
    })
    .collect()
}

fn frame(write: impl FnOnce(&mut [u8; HEADERS_BYTES_MAX]) -> usize) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = write(&mut buffer);
    buffer[..length].to_vec()
}

fn arp(operation: ArpOperation, mac: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let packet = ArpRepr {
        operation,
        sender_mac: mac,
        sender_address: sender,
        target_mac: OURS,
        target_address: target,
    };
    frame(|buffer| wire::emit_arp(buffer, OURS, &packet))
}

fn judge(frame: &[u8]) -> Option<AddressConflict> {
    check().judge(frame, ChecksumState::Unverified)
}

#[test]
fn each_address_is_asked_for_in_each_round_and_not_sooner() {
    let mut check = check();
    let times = ProbeTimes::NETWORK;
    let step = Duration::from_nanos(1);
    let mut now = START;
    for round in 0..times.probes {
        assert!(!check.is_over(now), "round {round}");
        let frames = due(&mut check, now);
        assert_eq!(frames.len(), 2, "round {round}");
        let parse = |frame| parse_frame(frame, ChecksumState::Unverified);
        let Ok(Incoming::Arp(probe)) = parse(&frames[0]) else {
            panic!("an ARP probe");
        };
        assert_eq!((probe.sender_mac, probe.target_address), (OURS, V4));
        assert!(probe.sender_address.is_unspecified());
        let Ok(Incoming::NeighborSolicitation { path, target, .. }) = parse(&frames[1]) else {
            panic!("a solicitation");
        };
        assert!(path.source.is_unspecified() && target == V6);
        now = check.poll_timeout();
        assert_eq!(now, START + times.interval * (round + 1));
        let before = START + (times.interval * (round + 1) - step);
        assert!(due(&mut check, before).is_empty() && !check.is_over(before));
    }
    assert!(due(&mut check, now).is_empty());
    assert!(check.is_over(now));
    assert_eq!(now, START + times.total());
}

#[test]
fn a_late_poll_keeps_the_whole_interval_after_the_last_probe() {
    let mut check = check();
    let mut now = START;
    for _ in 0..ProbeTimes::NETWORK.probes {
        now += Duration::from_secs(5);
        assert_eq!(due(&mut check, now).len(), 2);
        assert!(!check.is_over(now));
        assert_eq!(check.poll_timeout(), now + ProbeTimes::NETWORK.interval);
    }
    assert!(check.is_over(now + ProbeTimes::NETWORK.interval));
}

#[test]
fn a_station_with_one_of_our_addresses_is_a_conflict() {
    let conflict = |address: IpAddr| {
        Some(AddressConflict {
            address,
            mac: THEIRS,
        })
    };
    let nobody = Ipv4Addr::UNSPECIFIED;
    // The answer to a probe, an announcement, a question about a third.
    let reply = ArpOperation::Reply;
    assert_eq!(judge(&arp(reply, THEIRS, V4, nobody)), conflict(V4.into()));
    let request = ArpOperation::Request;
    assert_eq!(judge(&arp(request, THEIRS, V4, V4)), conflict(V4.into()));
    let question = arp(request, THEIRS, V4, OTHER_V4);
    assert_eq!(judge(&question), conflict(V4.into()));
    // Somebody else is about to take it.
    let probe = frame(|buffer| wire::emit_arp_probe(buffer, THEIRS, V4));
    assert_eq!(judge(&probe), conflict(V4.into()));

    let claims = frame(|buffer| wire::emit_unsolicited_advertisement(buffer, THEIRS, V6));
    assert_eq!(judge(&claims), conflict(V6.into()));
    let detects =
        frame(|buffer| wire::emit_neighbor_solicitation(buffer, THEIRS, Ipv6Addr::UNSPECIFIED, V6));
    assert_eq!(judge(&detects), conflict(V6.into()));
}

#[test]
fn frames_about_other_addresses_or_our_own_are_no_conflict() {
    let nobody = Ipv4Addr::UNSPECIFIED;
    let (request, reply) = (ArpOperation::Request, ArpOperation::Reply);
    assert_eq!(
        judge(&arp(request, THEIRS, OTHER_V4, V4)),
        None,
        "asks for it"
    );
    assert_eq!(judge(&arp(reply, THEIRS, OTHER_V4, V4)), None);
    assert_eq!(judge(&arp(reply, THEIRS, nobody, V4)), None, "says nothing");
    assert_eq!(judge(&arp(reply, OURS, V4, nobody)), None, "our own, back");
    for mac in [OURS, THEIRS] {
        let (v4, v6) = match mac {
            OURS => (V4, V6),
            _ => (OTHER_V4, OTHER_V6),
        };
        let probe = frame(|buffer| wire::emit_arp_probe(buffer, mac, v4));
        assert_eq!(judge(&probe), None, "{mac}");
        let claims = frame(|buffer| wire::emit_unsolicited_advertisement(buffer, mac, v6));
        assert_eq!(judge(&claims), None, "{mac}");
        let nobody = Ipv6Addr::UNSPECIFIED;
        let detects = frame(|buffer| wire::emit_neighbor_solicitation(buffer, mac, nobody, v6));
        assert_eq!(judge(&detects), None, "{mac}");
    }
    // RFC 4862 s5.4.3: who asks from an address of its own wants to talk.
    let asks = frame(|buffer| wire::emit_neighbor_solicitation(buffer, THEIRS, OTHER_V6, V6));
    assert_eq!(judge(&asks), None);
    assert_eq!(judge(&[0; 60]), None);
}

#[test]
fn an_address_is_defended_once_in_an_interval() {
    let mut defense = Defense::new(2);
    let conflict = |last| AddressConflict {
        address: V4.into(),
        mac: MacAddress([2, 0, 0, 0, 0, last]),
    };
    assert_eq!(defense.take(), None);
    assert!(defense.note(START, 0, conflict(7)));
    assert!(!defense.note(START, 0, conflict(8)));
    assert_eq!(defense.take(), Some(conflict(7)));
    assert_eq!(defense.take(), None, "told of once");
    assert!(
        defense.note(START, 1, conflict(9)),
        "each address by itself"
    );
    let again = START + DEFEND_INTERVAL;
    let before = START + (DEFEND_INTERVAL - Duration::from_nanos(1));
    assert!(!defense.note(before, 0, conflict(7)));
    assert!(defense.note(again, 0, conflict(7)));
    assert!(!defense.note(again, 2, conflict(7)), "no such address");
}
