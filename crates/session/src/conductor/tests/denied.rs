//! Sources that are not served.

use core::net::IpAddr;

use wire::{Route, SeqNumber, TcpFlags};

use super::{Bench, OUR_MAC, PORT, Peer, assert_is_object, config, fragments, peer_route};
use sites::networks::{Network, SourceFilter};

use crate::Config;

/// Serves all but the hosts of 10.0.0.128/25.
fn bench() -> Bench {
    let denied = Network::new(IpAddr::from([10, 0, 0, 128]), 25).unwrap();
    let config = Config {
        source_filter: SourceFilter::new(None, &[denied]),
        ..config()
    };
    Bench::with(config, 8)
}

fn route_from(last: u8) -> Route {
    Route {
        source: IpAddr::from([10, 0, 0, last]),
        ..peer_route()
    }
}

/// An echo request of a few bytes from that host.
fn echo_request(last: u8) -> Vec<u8> {
    let mut frame = vec![0; 14 + 28 + 8];
    wire::emit_echo_reply(&mut frame, &route_from(last), 1, 2, &[7; 8]).unwrap();
    // The checksum changes by as much as the type.
    frame[34] = 8;
    frame[36] -= 8;
    frame
}

#[test]
fn a_denied_source_gets_no_answer_and_takes_no_room() {
    let mut bench = bench();
    let mut peer = Peer::send_syn_by(&mut bench, route_from(128), PORT, 1000, SeqNumber(1));
    // To a closed port, a segment of no connection, an echo request, and half of a packet.
    let _ = Peer::send_syn_by(&mut bench, route_from(255), 81, 1000, SeqNumber(1));
    peer.send(&mut bench, TcpFlags::ACK, b"x");
    let echo = echo_request(128);
    bench.receive(&echo);
    bench.receive(&fragments::cut(&echo, 8)[0]);
    bench.turn();
    assert!(bench.sent.is_empty());
    assert_eq!(bench.conductor.connection_count(), 0);
    assert_eq!(bench.conductor.poll_timeout(), None, "nothing is kept");
    let counters = bench.conductor.counters();
    assert_eq!(counters.wire_denied_frames, 5);
    assert_eq!(counters.wire_fragment_frames, 0);
    assert_eq!(counters.tcp_open_count + counters.tcp_refused_segments, 0);
}

#[test]
fn others_are_served_beside_it() {
    let mut bench = bench();
    let mut peer = Peer::connect_by(&mut bench, route_from(127), PORT, 1000);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 0);
    bench.receive(&echo_request(127));
    bench.turn();
    assert_eq!(bench.sent.len(), 1);
    assert_eq!(bench.conductor.counters().wire_denied_frames, 0);
}

#[test]
fn its_segments_are_not_passed_to_other_workers() {
    let mut bench = bench();
    bench.conductor.set_other_workers(1);
    for (last, is_passed) in [(127, true), (128, false)] {
        let peer = Peer::new(route_from(last), PORT, 1000, SeqNumber(1));
        peer.send_with(&mut bench, TcpFlags::ACK, wire::TcpOptions::default(), b"x");
        assert_eq!(bench.conductor.poll_stray().is_some(), is_passed, "{last}");
    }
}

/// Its clients may be behind a router that is served, and the link needs both.
#[test]
fn its_arp_is_answered() {
    let request = wire::ArpRepr {
        operation: wire::ArpOperation::Request,
        sender_mac: wire::MacAddress([2, 0, 0, 0, 0, 9]),
        sender_address: [10, 0, 0, 200].into(),
        target_mac: wire::MacAddress::default(),
        target_address: super::OUR_ADDRESS,
    };
    let mut buffer = [0; wire::HEADERS_BYTES_MAX];
    let length = wire::emit_arp(&mut buffer, wire::MacAddress::BROADCAST, &request);
    let mut bench = bench();
    bench.receive(&buffer[..length]);
    bench.turn();
    assert_eq!(bench.sent.len(), 1);
    assert_eq!(bench.sent[0].1[6..12], OUR_MAC.0);
}
