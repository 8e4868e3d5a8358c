//! Frames that are answered without a connection, and frames that are not.

use core::net::{IpAddr, Ipv4Addr};

use wire::{
    ArpOperation, ArpRepr, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, TcpFlags,
    TcpRepr,
};

use super::{Bench, OUR_ADDRESS, OUR_MAC, PEER_ADDRESS, PEER_MAC, Peer, Sent, config};
use crate::Conductor;

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
fn every_address_is_announced_at_start() {
    let mut config = config();
    config
        .addresses
        .push(IpAddr::V6("fd00::2".parse().unwrap()));
    let mut conductor = Conductor::new(config);
    let mut arena = Bench::new().arena;
    let mut frames = 0;
    let _ = conductor.transmit(clock::Instant::ZERO, &mut arena, &mut |_| {
        frames += 1;
        crate::Transmitted::Taken
    });
    assert_eq!(frames, 2);
}

#[test]
fn a_segment_for_nobody_is_refused_and_a_reset_is_not() {
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
fn rubbish_is_counted_by_reason() {
    let mut bench = Bench::new();
    bench.receive(&[0; 5]);
    bench.receive(&[]);
    assert_eq!(bench.conductor.counters().wire_drops.iter().sum::<u64>(), 2);
    assert!(bench.conductor.counters().wire_drop_pairs().count() >= 1);
}

#[test]
fn a_lost_syn_ack_is_repeated_and_at_last_forgotten() {
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
