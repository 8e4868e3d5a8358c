//! Where frames go when the router in front of a client changes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::Duration;
use wire::{
    ArpOperation, ArpRepr, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, Path, Route,
    SeqNumber, TcpFlags, TcpOptions,
};

use super::strays::Ring;
use super::{
    Bench, OUR_ADDRESS, OUR_MAC, PEER_MAC, PORT, Peer, Sent, assert_is_object, config, peer_route,
};
use crate::Config;

/// The router that takes over.
pub(super) const OTHER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
pub(super) const OUR_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PEER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// The router's address on our link.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
/// An address that only the router has which takes over.
const OTHER_ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfd);

pub(super) fn route_v6() -> Route {
    Route {
        source: PEER_ADDRESS_V6.into(),
        destination: OUR_ADDRESS_V6.into(),
        ..peer_route()
    }
}

/// A client in the middle of its object, whose first flight it has received.
pub(super) fn begin(route: Route) -> (Bench, Peer) {
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
pub(super) fn hop_of_the_next_flight(bench: &mut Bench, peer: &mut Peer) -> MacAddress {
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

/// An ARP packet from the station at `mac`, whose address is `sender`.
pub(super) fn arp(mac: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let packet = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: mac,
        sender_address: sender,
        target_mac: MacAddress::default(),
        target_address: target,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = wire::emit_arp(&mut buffer, MacAddress::BROADCAST, &packet);
    buffer[..length].to_vec()
}

/// The router asks for one of our addresses.
pub(super) fn asks(route: &Route, mac: MacAddress) -> Vec<u8> {
    if route.source.is_ipv4() {
        return arp(mac, ROUTER, OUR_ADDRESS);
    }
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = wire::emit_neighbor_solicitation(&mut buffer, mac, ROUTER_V6, OUR_ADDRESS_V6);
    buffer[..length].to_vec()
}

/// The router answers our question, without the override flag.
fn answers_softly(mac: MacAddress) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let question = Path {
        source_mac: OUR_MAC,
        destination_mac: mac,
        source: OUR_ADDRESS_V6.into(),
        destination: ROUTER_V6.into(),
    };
    let length = wire::emit_neighbor_advertisement(&mut buffer, &question, ROUTER_V6, mac);
    soften(&mut buffer[..length]);
    buffer[..length].to_vec()
}

/// Takes the override flag out of a neighbour advertisement.
fn soften(advertisement: &mut [u8]) {
    let (flags, sum) = (14 + 40 + 4, 14 + 40 + 2);
    assert_eq!(advertisement[flags] & 0x20, 0x20);
    advertisement[flags] &= !0x20;
    // The checksum makes up for it.
    let before = u16::from_be_bytes([advertisement[sum], advertisement[sum + 1]]);
    let after = u32::from(before) + 0x2000;
    let folded = u16::try_from((after & 0xffff) + (after >> 16)).unwrap();
    advertisement[sum..sum + 2].copy_from_slice(&folded.to_be_bytes());
}

/// The router announces its address to all.
fn announces(route: &Route, mac: MacAddress) -> Vec<u8> {
    if route.source.is_ipv4() {
        return arp(mac, ROUTER, ROUTER);
    }
    announces_v6(mac, ROUTER_V6)
}

fn announces_v6(mac: MacAddress, address: Ipv6Addr) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = wire::emit_unsolicited_advertisement(&mut buffer, mac, address);
    buffer[..length].to_vec()
}

/// The client's flight was lost, and so are retransmissions; until `timeouts` went by.
pub(super) fn lose_flights(bench: &mut Bench, timeouts: u32) {
    let done = |bench: &Bench| {
        let clients = &bench.conductor.connections.clients;
        let index = clients.indexes().next().expect("a client");
        clients.entry(index).expect("it").tcp.timeouts_in_a_row() >= timeouts
    };
    while !done(bench) {
        let next = bench.conductor.poll_timeout().expect("a timer");
        bench.now = bench.now.max(next);
        bench.pass(Duration::ZERO);
        bench.complete_reads();
    }
}

/// The read that a retransmission asks for, without waiting for a timer, is answered.
pub(super) fn retransmit_at_once(bench: &mut Bench) {
    bench.turn();
    bench.complete_reads();
}

/// Frames that ask for an address, taken out of what was sent.
fn questions(bench: &mut Bench) -> Vec<IpAddr> {
    let mut targets = Vec::new();
    bench.sent.retain(|(frame, bytes)| {
        let Sent::Other = frame else { return true };
        match wire::parse_frame(bytes, ChecksumState::Unverified) {
            Ok(Incoming::Arp(arp)) if arp.operation == ArpOperation::Request => {
                assert_eq!((arp.sender_mac, arp.sender_address), (OUR_MAC, OUR_ADDRESS));
                targets.push(arp.target_address.into());
            }
            Ok(Incoming::NeighborSolicitation { path, target, .. }) => {
                assert_eq!(path.source, IpAddr::from(OUR_ADDRESS_V6));
                targets.push(target.into());
            }
            other => panic!("{other:?}"),
        }
        false
    });
    targets
}

#[test]
fn a_router_that_announces_itself_elsewhere_is_followed_at_once() {
    for route in [peer_route(), route_v6()] {
        let (mut bench, mut peer) = begin(route);
        bench.receive(&asks(&route, PEER_MAC));
        bench.turn();
        bench.sent.clear();
        peer.take(&mut bench);
        lose_flights(&mut bench, 1);
        bench.sent.clear();
        bench.receive(&announces(&route, OTHER_MAC));
        retransmit_at_once(&mut bench);
        assert_eq!(
            bench.last_hop, OTHER_MAC,
            "a retransmission that is not waited for"
        );
        peer.take(&mut bench);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.drain(&mut bench);
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 1);
    }
}

#[test]
fn an_unknown_station_that_announces_itself_is_tried_for_clients_that_do_not_answer() {
    for (timeouts, hop) in [(1, PEER_MAC), (2, OTHER_MAC)] {
        let route = peer_route();
        let (mut bench, _peer) = begin(route);
        lose_flights(&mut bench, timeouts);
        bench.receive(&announces(&route, OTHER_MAC));
        if hop == OTHER_MAC {
            retransmit_at_once(&mut bench);
        }
        assert_eq!(bench.last_hop, hop, "after {timeouts} timeouts");
    }
}

/// The station that takes over announces an address of its own first, and is tried; then it says that it has the
/// router's. Where the router was, nothing is sent any more.
#[test]
fn nothing_goes_back_to_where_a_router_s_address_was() {
    let route = peer_route();
    let (mut bench, _peer) = begin(route);
    bench.receive(&asks(&route, PEER_MAC));
    lose_flights(&mut bench, 2);
    let own = Ipv4Addr::new(10, 0, 0, 253);
    bench.receive(&arp(OTHER_MAC, own, own));
    retransmit_at_once(&mut bench);
    bench.receive(&announces(&route, OTHER_MAC));
    for timeouts in 3..6 {
        lose_flights(&mut bench, timeouts);
        assert_eq!(bench.last_hop, OTHER_MAC, "after {timeouts} timeouts");
    }
}

#[test]
fn a_router_that_does_not_answer_is_asked_for() {
    for route in [peer_route(), route_v6()] {
        let (mut bench, _peer) = begin(route);
        bench.receive(&asks(&route, PEER_MAC));
        bench.turn();
        bench.sent.clear();
        lose_flights(&mut bench, 1);
        assert!(questions(&mut bench).is_empty());
        lose_flights(&mut bench, 2);
        let router: IpAddr = match route.source {
            IpAddr::V4(_) => ROUTER.into(),
            IpAddr::V6(_) => ROUTER_V6.into(),
        };
        assert_eq!(questions(&mut bench), [router]);
        assert_eq!(bench.last_hop, PEER_MAC);
        // The answer comes to us.
        bench.receive(&asks(&route, OTHER_MAC));
        retransmit_at_once(&mut bench);
        assert_eq!(bench.last_hop, OTHER_MAC);
        assert_eq!(bench.conductor.counters().wire_neighbor_request_frames, 1);
    }
}

#[test]
fn a_client_on_our_link_is_asked_for_itself_and_given_to_no_router() {
    let (mut bench, peer) = begin(peer_route());
    let IpAddr::V4(address) = peer.route.source else {
        panic!("IPv4");
    };
    bench.receive(&arp(PEER_MAC, address, OUR_ADDRESS));
    bench.receive(&arp(OTHER_MAC, ROUTER, ROUTER));
    bench.turn();
    bench.sent.clear();
    lose_flights(&mut bench, 3);
    assert_eq!(questions(&mut bench)[0], IpAddr::V4(address));
    assert_eq!(bench.last_hop, PEER_MAC);
    bench.receive(&arp(OTHER_MAC, address, OUR_ADDRESS));
    retransmit_at_once(&mut bench);
    assert_eq!(bench.last_hop, OTHER_MAC);
}

#[test]
fn another_router_that_brings_segments_is_tried_after_two_timeouts() {
    let (mut bench, _peer) = begin(peer_route());
    lose_flights(&mut bench, 1);
    let other = Route {
        source_mac: OTHER_MAC,
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77)),
        ..peer_route()
    };
    let _other = Peer::connect_by(&mut bench, other, PORT, 1001);
    let other = Route {
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 78)),
        ..other
    };
    let _other = Peer::connect_by(&mut bench, other, PORT, 1002);
    bench.last_hop = PEER_MAC;
    // It brings no answer either: after two more timeouts it is the first one's turn again.
    let mut hops = Vec::new();
    for _ in 0..5 {
        let next = bench.conductor.poll_timeout().expect("a timer");
        bench.now = bench.now.max(next);
        bench.pass(Duration::ZERO);
        bench.complete_reads();
        hops.push(bench.last_hop);
    }
    let (first, other) = (PEER_MAC, OTHER_MAC);
    assert_eq!(hops, [other, other, first, first, other]);
}

#[test]
fn a_router_that_brings_segments_of_others_is_kept() {
    let (mut bench, _peer) = begin(peer_route());
    bench.receive(&announces(&peer_route(), OTHER_MAC));
    lose_flights(&mut bench, 1);
    bench.now = bench.conductor.poll_timeout().expect("a timer");
    let other = Peer::connect(&mut bench, 1001);
    lose_flights(&mut bench, 2);
    assert_eq!(bench.last_hop, PEER_MAC, "a path with losses behind it");
    assert!(!other.reset);
}

#[test]
fn statements_that_do_not_count_move_nothing() {
    let (mut bench, _peer) = begin(route_v6());
    bench.receive(&asks(&route_v6(), PEER_MAC));
    bench.turn();
    // An advertisement without the override flag, and a question of another station to another.
    let mut soft = announces(&route_v6(), OTHER_MAC);
    soften(&mut soft);
    bench.receive(&soft);
    bench.receive(&arp(OTHER_MAC, ROUTER, Ipv4Addr::new(10, 0, 0, 9)));
    // Nor does our own frame that a switch returns.
    bench.receive(&announces(&route_v6(), OUR_MAC));
    lose_flights(&mut bench, 2);
    assert_eq!(bench.last_hop, PEER_MAC);
    assert_eq!(bench.conductor.counters().tcp_next_hop_change_count, 0);
    assert!(
        bench
            .conductor
            .counters()
            .wire_drop_pairs()
            .next()
            .is_none()
    );
}

/// Timers fire until one has sent a segment; where it went, and how long that took.
fn next_retransmission(bench: &mut Bench) -> (MacAddress, Duration) {
    let (since, sent) = (bench.now, bench.sent.len());
    let is_segment = |(frame, _): &(Sent, Vec<u8>)| matches!(frame, Sent::Tcp(_));
    while !bench.sent[sent..].iter().any(is_segment) {
        let next = bench.conductor.poll_timeout().expect("a timer");
        bench.now = bench.now.max(next);
        // What is sent besides, as questions, leaves before it.
        bench.pass(Duration::ZERO);
        bench.complete_reads();
    }
    (bench.last_hop, bench.now.since(since))
}

/// Where four retransmissions go, from a second from now on. After each, a router may speak.
fn later_hops(bench: &mut Bench, speech: Option<&[u8]>) -> Vec<MacAddress> {
    let from = bench.now + Duration::from_secs(1);
    let mut hops = Vec::new();
    while hops.len() < 4 {
        let (hop, _) = next_retransmission(bench);
        if bench.now >= from {
            hops.push(hop);
        }
        speech.into_iter().for_each(|frame| bench.receive(frame));
    }
    hops
}

/// The one that takes over says so a moment before it forwards: the retransmission that it draws is lost. The
/// next one comes after a timeout of this path, and not after one that was doubled for the last.
#[test]
fn a_router_that_was_announced_too_early_gets_the_next_retransmission_soon() {
    for route in [peer_route(), route_v6()] {
        let (mut bench, _peer) = begin(route);
        bench.receive(&asks(&route, PEER_MAC));
        lose_flights(&mut bench, 3);
        let own = Ipv4Addr::new(10, 0, 0, 253);
        let announcement = match route.source {
            IpAddr::V4(_) => arp(OTHER_MAC, own, own),
            IpAddr::V6(_) => announces_v6(OTHER_MAC, OTHER_ROUTER_V6),
        };
        bench.receive(&announcement);
        retransmit_at_once(&mut bench);
        assert_eq!(bench.last_hop, OTHER_MAC);
        let (hop, after) = next_retransmission(&mut bench);
        assert_eq!(hop, OTHER_MAC);
        assert!(after < Duration::from_millis(300), "{after:?}");
    }
}

#[test]
fn a_router_that_was_asked_in_vain_is_not_tried_again_until_it_speaks() {
    for speaks in [false, true] {
        let route = route_v6();
        let (mut bench, _peer) = begin(route);
        bench.receive(&asks(&route, PEER_MAC));
        lose_flights(&mut bench, 2);
        bench.receive(&announces_v6(OTHER_MAC, OTHER_ROUTER_V6));
        retransmit_at_once(&mut bench);
        let speech = asks(&route, PEER_MAC);
        let hops = later_hops(&mut bench, speaks.then_some(&speech));
        assert_eq!(hops.contains(&PEER_MAC), speaks, "{hops:?}");
        assert!(hops.contains(&OTHER_MAC), "{hops:?}");
    }
}

#[test]
fn the_question_is_repeated_each_second_and_an_answer_from_elsewhere_moves_the_clients() {
    let route = route_v6();
    for (answered, expected) in [(None, 3), (Some(2), 2)] {
        let (mut bench, _peer) = begin(route);
        bench.receive(&asks(&route, PEER_MAC));
        bench.turn();
        bench.sent.clear();
        lose_flights(&mut bench, 2);
        let mut count = questions(&mut bench).len();
        let asked_at = bench.now;
        while bench.now.since(asked_at) < Duration::from_secs(5) && Some(count) != answered {
            let next = bench.conductor.poll_timeout().expect("a timer");
            bench.now = bench.now.max(next);
            bench.pass(Duration::ZERO);
            bench.complete_reads();
            let asked = questions(&mut bench).len();
            // Those of later retransmissions are counted by another test.
            let is_repeated = asked > 0 && count < 3;
            if is_repeated {
                let seconds = u32::try_from(count).unwrap();
                assert_eq!(bench.now.since(asked_at), Duration::from_secs(1) * seconds);
                count += asked;
            }
        }
        assert_eq!(count, expected);
        if answered.is_some() {
            bench.receive(&answers_softly(OTHER_MAC));
            retransmit_at_once(&mut bench);
            assert_eq!(bench.last_hop, OTHER_MAC);
        }
    }
}

#[test]
fn an_answer_that_reaches_one_worker_keeps_the_others_from_giving_the_router_up() {
    let route = route_v6();
    for is_answered in [false, true] {
        let (first, _) = begin(route);
        let (second, _) = begin(route);
        let mut ring = Ring::of(vec![first, second]);
        ring.0[0].receive(&asks(&route, PEER_MAC));
        ring.carry();
        lose_flights(&mut ring.0[1], 2);
        ring.0[1].receive(&announces_v6(OTHER_MAC, OTHER_ROUTER_V6));
        ring.0[0].now = ring.0[1].now;
        if is_answered {
            ring.0[0].receive(&asks(&route, PEER_MAC));
            ring.carry();
        }
        let hops = later_hops(&mut ring.0[1], None);
        assert_eq!(hops.contains(&PEER_MAC), is_answered, "{hops:?}");
    }
}

#[test]
fn what_one_worker_is_told_of_a_router_moves_the_clients_of_all() {
    let (first, _) = begin(peer_route());
    let (second, mut peer) = begin(peer_route());
    let mut ring = Ring::of(vec![first, second]);
    ring.0[0].receive(&asks(&peer_route(), PEER_MAC));
    ring.carry();
    ring.0[0].receive(&announces(&peer_route(), OTHER_MAC));
    ring.carry();
    for worker in &mut ring.0 {
        assert_eq!(worker.conductor.counters().tcp_next_hop_change_count, 1);
    }
    peer.take(&mut ring.0[1]);
    lose_flights(&mut ring.0[1], 1);
    assert_eq!(ring.0[1].last_hop, OTHER_MAC);
}
