//! Frames that are answered without a connection, and frames that are not.

use core::net::{IpAddr, Ipv4Addr};

use wire::{
    ArpOperation, ArpRepr, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, SeqNumber,
    TcpFlags, TcpRepr,
};

use super::{
    Bench, OBJECT_BYTES, OUR_ADDRESS, OUR_MAC, PEER_ADDRESS, PEER_MAC, Peer, Sent, config,
};
use crate::{AddressConflict, Conductor};

fn arp_request(target: Ipv4Addr) -> Vec<u8> {
    let request = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: PEER_MAC,
        sender_address: PEER_ADDRESS,
        target_mac: MacAddress([0; 6]),
        target_address: target,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = wire::emit_arp(&mut buffer, MacAddress([0xff; 6]), &request);
    buffer[..length].to_vec()
}

#[test]
fn arp_is_answered_for_our_address_only() {
    let mut bench = Bench::new();
    bench.receive(&arp_request(OUR_ADDRESS));
    bench.turn();
    let Some((Sent::Other, frame)) = bench.sent.pop() else {
        panic!("an answer")
    };
    let Ok(Incoming::Arp(reply)) = wire::parse_frame(&frame, ChecksumState::Unverified) else {
        panic!("an ARP packet");
    };
    assert_eq!(
        (reply.operation, reply.sender_mac),
        (ArpOperation::Reply, OUR_MAC)
    );
    assert_eq!(
        (reply.sender_address, reply.target_mac),
        (OUR_ADDRESS, PEER_MAC)
    );
    bench.receive(&arp_request(Ipv4Addr::new(10, 0, 0, 3)));
    bench.turn();
    assert!(bench.sent.is_empty());
    assert_eq!(bench.conductor.counters().wire_foreign_frames, 1);
}

#[test]
fn a_frame_with_a_priority_tag_is_answered_without_a_tag() {
    let mut bench = Bench::new();
    let mut request = arp_request(OUR_ADDRESS);
    request.splice(12..12, [0x81, 0x00, 0xe0, 0x00]);
    bench.receive(&request);
    bench.turn();
    let Some((Sent::Other, frame)) = bench.sent.pop() else {
        panic!("an answer")
    };
    assert_eq!(frame[12..14], [0x08, 0x06]);
}

#[test]
fn every_address_is_announced_at_start() {
    let mut config = config();
    config
        .addresses
        .push(IpAddr::V6("fd00::2".parse().unwrap()));
    let announced = |config| {
        let mut conductor = Conductor::new(config);
        let mut arena = Bench::new().arena;
        let mut frames = 0;
        let _ = conductor.transmit(clock::Instant::ZERO, &mut arena, &mut |_| {
            frames += 1;
            crate::Transmitted::Taken
        });
        frames
    };
    // That of IPv6 with the report of its group.
    assert_eq!(announced(config.clone()), 3);
    config.are_addresses_announced = false;
    assert_eq!(announced(config), 0, "another worker does");
}

#[test]
fn an_unmatched_segment_is_reset_unless_it_is_a_reset() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.port = 1001;
    peer.send(&mut bench, TcpFlags::ACK, b"x");
    bench.turn();
    let [(reset, _)] = &bench.take_segments(1001)[..] else {
        panic!("one reset")
    };
    assert!(reset.flags.contains(TcpFlags::RST));
    peer.send(&mut bench, TcpFlags::RST, b"");
    bench.turn();
    assert!(bench.take_segments(1001).is_empty());
}

#[test]
fn a_closed_port_refuses() {
    let mut bench = Bench::with(
        crate::Config {
            http_port: Some(8080),
            ..config()
        },
        2,
    );
    assert!(Peer::connect(&mut bench, 1000).reset);
    bench.assert_quiet();
}

#[test]
fn malformed_frames_are_counted_by_reason() {
    let mut bench = Bench::new();
    bench.receive(&[0; 5]);
    bench.receive(&[]);
    assert_eq!(
        bench
            .conductor
            .counters()
            .wire_drop_count
            .iter()
            .sum::<u64>(),
        2
    );
    assert!(bench.conductor.counters().wire_drop_pairs().count() >= 1);
}

#[test]
fn a_lost_syn_ack_is_retransmitted_and_finally_dropped() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.port = 1002;
    peer.send(&mut bench, TcpFlags::SYN, b"");
    bench.turn();
    let count = |segments: Vec<(TcpRepr, Vec<u8>)>| segments.len();
    assert_eq!(count(bench.take_segments(1002)), 1);
    let mut repeated = 0;
    for _ in 0..40 {
        bench.pass(clock::Duration::from_secs(1));
        repeated += count(bench.take_segments(1002));
    }
    assert_eq!(repeated, 4);
    assert_eq!(bench.conductor.counters().tcp_handshake_timeout_count, 1);
}

/// What another station at `mac` says of `address` to all.
fn claim_of(mac: MacAddress, address: IpAddr) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = match address {
        IpAddr::V4(address) => wire::emit_gratuitous_arp(&mut buffer, mac, address),
        IpAddr::V6(address) => wire::emit_unsolicited_advertisement(&mut buffer, mac, address),
    };
    buffer[..length].to_vec()
}

#[test]
fn an_address_conflict_is_defended_once_in_an_interval() {
    let mut bench = Bench::new();
    let ours = IpAddr::V4(OUR_ADDRESS);
    let conflict = AddressConflict {
        address: ours,
        mac: PEER_MAC,
    };
    for (now_and_then, defended) in [(0, 1), (0, 0), (9_999, 0), (1, 1)] {
        bench.pass(clock::Duration::from_millis(now_and_then));
        bench.sent.clear();
        bench.receive(&claim_of(PEER_MAC, ours));
        bench.turn();
        assert_eq!(bench.sent.len(), defended);
        for (_, frame) in &bench.sent {
            assert_eq!(
                *frame,
                claim_of(OUR_MAC, ours),
                "an announcement, no answer"
            );
        }
        let told = bench.conductor.poll_conflict();
        assert_eq!(told, (defended == 1).then_some(conflict));
    }
    let counters = bench.conductor.counters();
    assert_eq!(
        (counters.wire_conflict_frames, counters.wire_defense_frames),
        (4, 2)
    );
    assert_eq!(counters.wire_foreign_frames, 0);
}

#[test]
fn an_ipv6_address_conflict_is_reported() {
    let ours = IpAddr::V6("fd00::2".parse().unwrap());
    let mut config = config();
    config.addresses.push(ours);
    let mut bench = Bench::with(config, 2);
    bench.receive(&claim_of(PEER_MAC, ours));
    bench.turn();
    assert!(bench.sent.is_empty());
    let conflict = bench.conductor.poll_conflict();
    assert_eq!(
        conflict.map(|conflict| (conflict.address, conflict.mac)),
        Some((ours, PEER_MAC))
    );
    assert_eq!(bench.conductor.counters().wire_conflict_frames, 1);
}

#[test]
fn our_own_frames_and_other_addresses_are_no_conflict() {
    let ours = IpAddr::V4(OUR_ADDRESS);
    let mut bench = Bench::new();
    bench.receive(&claim_of(OUR_MAC, ours));
    bench.receive(&claim_of(PEER_MAC, IpAddr::V4(PEER_ADDRESS)));
    bench.receive(&claim_of(PEER_MAC, IpAddr::V6("fd00::2".parse().unwrap())));
    assert_eq!(bench.conductor.poll_conflict(), None);
    let counters = bench.conductor.counters();
    assert_eq!(counters.wire_conflict_frames, 0);
    assert_eq!(counters.wire_foreign_frames, 2);
}

#[test]
fn addresses_are_announced_again_when_asked() {
    let mut bench = Bench::new();
    bench.conductor.announce();
    bench.turn();
    let ours = IpAddr::V4(OUR_ADDRESS);
    let [(_, frame)] = &bench.sent[..] else {
        panic!("one announcement");
    };
    assert_eq!(*frame, claim_of(OUR_MAC, ours));
}

#[test]
fn a_link_that_takes_smaller_packets_is_followed_by_connections_old_and_new() {
    let mut bench = Bench::new();
    let mut old = Peer::connect(&mut bench, 1000);
    let now = bench.now;
    bench.conductor.set_link_limits(now, 1_400, 9_000);
    old.get(&mut bench, "/object");
    for read in core::mem::take(&mut bench.reads) {
        bench.complete(read, OBJECT_BYTES);
    }
    let mut large = Vec::new();
    let _ = bench
        .conductor
        .transmit(now, &mut bench.arena, &mut |frame| {
            let parts: usize = frame.payload.iter().map(|part| part.len()).sum();
            if let Some(segmentation) = frame.offload.segmentation {
                large.push((frame.headers.len() + parts, segmentation.segment_bytes));
            }
            crate::Transmitted::Taken
        });
    assert!(!large.is_empty());
    for (frame_bytes, segment_bytes) in large {
        assert!(frame_bytes <= 14 + 9_000);
        assert_eq!(segment_bytes, 1_400 - 20 - 20, "no timestamps were agreed");
    }
    let _new = Peer::send_syn(&mut bench, 1001, SeqNumber(7));
    let [(syn_ack, _)] = &bench.take_segments(1001)[..] else {
        panic!("a SYN-ACK");
    };
    assert_eq!(syn_ack.options.mss, Some(1_400 - 20 - 20));
}
