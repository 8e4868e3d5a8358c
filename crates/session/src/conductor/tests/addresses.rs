//! Addresses that come and go, and virtual ones, which another station answers for.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::Duration;
use wire::{HEADERS_BYTES_MAX, MacAddress, Route, TcpFlags};

use super::next_hop::{
    OTHER_MAC, OUR_ADDRESS_V6, arp, asks, begin, hop_of_the_next_flight, lose_flights,
    retransmit_at_once, route_v6,
};
use super::{
    Bench, OUR_ADDRESS, PEER_ADDRESS, PEER_MAC, PORT, Peer, assert_is_object, config, peer_route,
};
use crate::{Conductor, Config};

/// Another gateway.
const THIRD_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 4]);
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254));
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe));
const LATER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 22));

fn both() -> Vec<IpAddr> {
    vec![OUR_ADDRESS.into(), OUR_ADDRESS_V6.into()]
}

/// Both addresses are virtual.
fn bench() -> Bench {
    let config = Config {
        addresses: both(),
        virtual_addresses: both(),
        ..config()
    };
    Bench::with(config, 8)
}

#[test]
fn nothing_is_said_of_a_virtual_address() {
    let mut bench = bench();
    bench.conductor = Conductor::new(Config {
        addresses: both(),
        virtual_addresses: both(),
        ..config()
    });
    bench.receive(&arp(PEER_MAC, PEER_ADDRESS, OUR_ADDRESS));
    bench.receive(&asks(&route_v6(), PEER_MAC));
    // The station that has it says so.
    bench.receive(&arp(OTHER_MAC, OUR_ADDRESS, OUR_ADDRESS));
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = wire::emit_unsolicited_advertisement(&mut buffer, OTHER_MAC, OUR_ADDRESS_V6);
    bench.receive(&buffer[..length]);
    bench.conductor.announce();
    bench.pass(Duration::from_secs(30));
    assert!(bench.sent.is_empty(), "{} frames", bench.sent.len());
    assert_eq!(bench.conductor.poll_conflict(), None);
    assert_eq!(bench.conductor.counters().wire_conflict_frames, 0);
}

#[test]
fn from_a_virtual_address_everything_goes_to_the_gateway() {
    for route in [peer_route(), route_v6()] {
        let mut bench = bench();
        let gateways = [
            (GATEWAY, OTHER_MAC),
            (GATEWAY_V6, OTHER_MAC),
            (GATEWAY, THIRD_MAC),
        ];
        bench.conductor.set_gateways(bench.now, &gateways);
        // The load balancer brings the client's frames.
        let mut peer = Peer::connect_by(&mut bench, route, PORT, 1000);
        assert_eq!(bench.last_hop, OTHER_MAC, "SYN-ACK");
        peer.get(&mut bench, "/object");
        bench.complete_reads();
        peer.take(&mut bench);
        assert_eq!(bench.last_hop, OTHER_MAC);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.drain(&mut bench);
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(bench.last_hop, OTHER_MAC);
        assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 0);
        // A reset, too.
        peer.port = 1001;
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.last_hop = PEER_MAC;
        bench.turn();
        assert_eq!(bench.last_hop, OTHER_MAC);
    }
}

#[test]
fn what_a_gateway_brings_goes_back_to_it_and_without_one_it_goes_where_it_came_from() {
    let hop = |gateways: &[(IpAddr, MacAddress)], route: Route| {
        let mut bench = bench();
        bench.conductor.set_gateways(bench.now, gateways);
        let peer = Peer::connect_by(&mut bench, route, PORT, 1000);
        assert!(!peer.reset);
        bench.last_hop
    };
    let [first, second] = [(GATEWAY, OTHER_MAC), (LATER_ADDRESS, THIRD_MAC)];
    let of_second = Route {
        source_mac: THIRD_MAC,
        ..peer_route()
    };
    assert_eq!(hop(&[first, second], of_second), THIRD_MAC);
    assert_eq!(hop(&[first], of_second), OTHER_MAC);
    assert_eq!(hop(&[], of_second), THIRD_MAC);
    assert_eq!(hop(&[first], route_v6()), PEER_MAC, "one of IPv4 only");
}

#[test]
fn a_gateway_that_moves_takes_the_clients_of_virtual_addresses_along() {
    let mut bench = bench();
    bench
        .conductor
        .set_gateways(bench.now, &[(GATEWAY, OTHER_MAC)]);
    let mut peer = Peer::connect_by(&mut bench, peer_route(), PORT, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    peer.take(&mut bench);
    lose_flights(&mut bench, 1);
    assert_eq!(bench.last_hop, OTHER_MAC);
    // The client has nothing to say.
    bench
        .conductor
        .set_gateways(bench.now, &[(GATEWAY, THIRD_MAC)]);
    retransmit_at_once(&mut bench);
    assert_eq!(bench.last_hop, THIRD_MAC);
    assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 1);
}

/// Its question would have its stations send us what is the load balancer's.
#[test]
fn a_router_is_not_asked_for_from_a_virtual_address() {
    let (mut bench, _peer) = begin(peer_route());
    bench.receive(&asks(&peer_route(), PEER_MAC));
    bench.conductor.set_addresses(&both(), &both());
    bench.turn();
    bench.sent.clear();
    lose_flights(&mut bench, 3);
    assert_eq!(bench.conductor.counters().wire_neighbor_request_frames, 0);
}

#[test]
fn an_address_that_comes_is_served() {
    let route = Route {
        destination: LATER_ADDRESS,
        ..peer_route()
    };
    let mut bench = Bench::new();
    Peer::send_syn_by(&mut bench, route, PORT, 1000, wire::SeqNumber(5));
    assert!(bench.sent.is_empty());
    let now = [OUR_ADDRESS.into(), LATER_ADDRESS];
    assert_eq!(bench.conductor.set_addresses(&now, &[]), 0);
    let mut peer = Peer::connect_by(&mut bench, route, PORT, 1000);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 0);
}

#[test]
fn connections_of_an_address_that_goes_are_reset_and_others_go_on() {
    let (mut bench, mut peer) = begin(peer_route());
    let mut other = Peer::connect_by(&mut bench, route_v6(), PORT, 1001);
    Peer::send_syn(&mut bench, 1002, wire::SeqNumber(5));
    bench.sent.clear();
    let left = [OUR_ADDRESS_V6.into()];
    assert_eq!(bench.conductor.set_addresses(&left, &[]), 1);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
    assert_eq!(bench.conductor.connection_count(), 1, "nor a half-open one");
    other.get(&mut bench, "/object");
    assert_eq!(
        hop_of_the_next_flight(&mut bench, &mut other),
        PEER_MAC,
        "goes on"
    );
    assert!(!other.reset);
    // Nothing of the address is answered any more, not even by a reset.
    bench.sent.clear();
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    assert!(bench.sent.is_empty());
}
