//! Where frames go when the router in front of a client changes.

use core::net::{IpAddr, Ipv6Addr};

use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions};

use super::{Bench, OUR_MAC, PEER_MAC, PORT, Peer, assert_is_object, config, peer_route};
use crate::Config;

/// The router that takes over.
const OTHER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
const OUR_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PEER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fn route_v6() -> Route {
    Route {
        source: PEER_ADDRESS_V6.into(),
        destination: OUR_ADDRESS_V6.into(),
        ..peer_route()
    }
}

/// A client in the middle of its object, whose first flight it has received.
fn begin(route: Route) -> (Bench, Peer) {
    let config = Config {
        addresses: vec![IpAddr::V4(super::OUR_ADDRESS), OUR_ADDRESS_V6.into()],
        ..config()
    };
    let mut bench = Bench::with(config, 8);
    let mut peer = Peer::connect_by(&mut bench, route, PORT, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    peer.take(&mut bench);
    assert_eq!(bench.last_hop, PEER_MAC);
    peer.route.source_mac = OTHER_MAC;
    (bench, peer)
}

/// Where the next flight goes.
fn hop_of_the_next_flight(bench: &mut Bench, peer: &mut Peer) -> MacAddress {
    bench.turn();
    bench.complete_reads();
    assert!(peer.take(bench), "a flight is due");
    bench.last_hop
}

#[test]
fn the_next_hop_follows_a_router_failover() {
    for route in [peer_route(), route_v6()] {
        let (mut bench, mut peer) = begin(route);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        assert_eq!(hop_of_the_next_flight(&mut bench, &mut peer), OTHER_MAC);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.drain(&mut bench);
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 1);
    }
}

#[test]
fn a_request_and_a_window_move_the_next_hop_too() {
    let (mut bench, mut peer) = begin(peer_route());
    peer.route.source_mac = PEER_MAC;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    peer.drain(&mut bench);
    // Nothing is in flight: the ACK is one that was heard before.
    peer.route.source_mac = OTHER_MAC;
    peer.window -= 1;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    peer.route.source_mac = PEER_MAC;
    assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 1);
    peer.get(&mut bench, "/nothing");
    peer.take(&mut bench);
    assert_eq!(bench.last_hop, PEER_MAC);
    assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 2);
}

/// Who knows the connection's name and not its numbers, or repeats what was said, moves nothing.
#[test]
fn refused_or_old_segments_do_not_change_the_next_hop() {
    type Forge = fn(&mut Peer);
    let forgeries: [(Forge, TcpFlags); 6] = [
        // Beyond the window, before it.
        (
            |peer| peer.next = peer.next.wrapping_add(20_000),
            TcpFlags::ACK,
        ),
        (
            |peer| peer.next = peer.next.wrapping_add(u32::MAX),
            TcpFlags::ACK,
        ),
        // Acknowledges what was never sent; what was acknowledged long ago.
        (
            |peer| peer.expected = peer.expected.wrapping_add(1),
            TcpFlags::ACK,
        ),
        (
            |peer| {
                let since = u32::try_from(peer.received.len()).unwrap() - 10_000;
                peer.expected = peer.expected.wrapping_add(0u32.wrapping_sub(since));
            },
            TcpFlags::ACK,
        ),
        (|_| (), TcpFlags::SYN),
        (|peer| peer.next = peer.next.wrapping_add(9), TcpFlags::RST),
    ];
    for (place, (forge, flags)) in forgeries.into_iter().enumerate() {
        let (mut bench, mut peer) = begin(peer_route());
        // Twice, so that more than 10,000 bytes were acknowledged.
        for _ in 0..2 {
            peer.route.source_mac = PEER_MAC;
            peer.send(&mut bench, TcpFlags::ACK, b"");
            hop_of_the_next_flight(&mut bench, &mut peer);
        }
        let (next, expected) = (peer.next, peer.expected);
        forge(&mut peer);
        peer.route.source_mac = OTHER_MAC;
        peer.send_with(&mut bench, flags, TcpOptions::default(), b"");
        (peer.next, peer.expected) = (next, expected);
        bench.turn();
        assert_ne!(bench.last_hop, OTHER_MAC, "{place}");
        let moved = bench.conductor.counters().tcp_next_hop_change_count;
        assert_eq!(moved, 0, "{place}");
    }
}

#[test]
fn a_group_mac_is_never_a_next_hop() {
    let (mut bench, mut peer) = begin(peer_route());
    peer.route.source_mac = MacAddress::BROADCAST;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    // The frame is refused as a whole.
    assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 0);
    peer.route.source_mac = PEER_MAC;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    assert_eq!(hop_of_the_next_flight(&mut bench, &mut peer), PEER_MAC);
}

#[test]
fn a_retransmitted_syn_is_answered_by_its_own_next_hop() {
    let mut bench = Bench::new();
    let mut peer = Peer::send_syn(&mut bench, 1000, SeqNumber(7));
    assert_eq!(bench.last_hop, PEER_MAC);
    peer.route.source_mac = OTHER_MAC;
    peer.next = SeqNumber(7);
    peer.send_with(&mut bench, TcpFlags::SYN, TcpOptions::default(), b"");
    bench.turn();
    assert_eq!(bench.last_hop, OTHER_MAC);
    // Established by that way, it stays there.
    let replies = bench.take_segments(1000);
    peer.next = SeqNumber(8);
    peer.expected = replies[0].0.sequence.wrapping_add(1);
    peer.get(&mut bench, "/nothing");
    assert_eq!(bench.last_hop, OTHER_MAC);
    assert_eq!(peer.route.destination_mac, OUR_MAC);
}
