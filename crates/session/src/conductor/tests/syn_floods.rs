//! A full table of half-open connections: SYN cookies, and what they keep.

use core::net::{IpAddr, Ipv6Addr};

use clock::Duration;
use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpRepr};

use super::{Bench, OBJECT_BYTES, OUR_ADDRESS, PORT, Peer, assert_is_object, config, peer_route};
use crate::Config;
use crate::conductor::connections::HALF_OPEN_MAX;
use crate::conductor::listening::COOKIES_PER_BATCH_MAX;

/// Ports of the flood.
const FLOOD_FIRST: u16 = 10_000;

/// Sends that many SYNs that nobody will complete, on ports behind those of earlier ones.
fn flood(bench: &mut Bench, from: u16, count: u32) -> u16 {
    let end = from + u16::try_from(count).unwrap();
    for port in from..end {
        Peer::send_syn(bench, port, SeqNumber(0));
    }
    bench.sent.clear();
    end
}

/// A conductor whose table of half-open connections is full.
pub(super) fn flooded() -> Bench {
    let mut bench = Bench::with(
        Config {
            addresses: vec![IpAddr::V4(OUR_ADDRESS), address_v6(2).into()],
            ..config()
        },
        8,
    );
    flood(&mut bench, FLOOD_FIRST, HALF_OPEN_MAX);
    assert_eq!(bench.conductor.counters().tcp_cookie_sent_count, 0);
    bench
}

const fn address_v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn route_v6() -> Route {
    Route {
        source: address_v6(1).into(),
        destination: address_v6(2).into(),
        ..peer_route()
    }
}

/// Sends a SYN and takes the SYN-ACK.
fn open(bench: &mut Bench, peer: &mut Peer) -> TcpRepr {
    peer.open(bench);
    let replies = bench.take_segments(peer.port);
    let [(syn_ack, _)] = &replies[..] else {
        panic!("one SYN-ACK");
    };
    assert!(syn_ack.flags.contains(TcpFlags::SYN));
    peer.expected = syn_ack.sequence.wrapping_add(1);
    if peer.echo.is_some() {
        peer.echo = syn_ack.options.timestamps.map(|stamp| stamp.value);
    }
    *syn_ack
}

fn client(port: u16, route: Route) -> Peer {
    Peer::new(route, PORT, port, SeqNumber(u32::MAX - 3))
}

/// The same, with timestamps.
fn stamping_client(port: u16, route: Route) -> Peer {
    Peer {
        echo: Some(0),
        ..client(port, route)
    }
}

fn assert_serves(bench: &mut Bench, peer: &mut Peer) {
    peer.get(bench, "/object");
    peer.drain(bench);
    let (_, body) = peer.head_and_rest();
    assert_eq!(body.len() as u64, OBJECT_BYTES);
    assert_is_object(body, 0);
}

#[test]
fn syn_flood_does_not_block_legitimate_clients() {
    for route in [peer_route(), route_v6()] {
        for peer in [client(1000, route), stamping_client(1000, route)] {
            let mut peer = peer;
            let mut bench = flooded();
            open(&mut bench, &mut peer);
            flood(&mut bench, FLOOD_FIRST + 5000, HALF_OPEN_MAX);
            // The request comes with the ACK.
            assert_serves(&mut bench, &mut peer);
            let counters = bench.conductor.counters();
            assert_eq!(counters.tcp_cookie_accepted_count, 1);
            assert_eq!(counters.tcp_cookie_refused_count, 0);
            assert_eq!(counters.tcp_cookie_sent_count, u64::from(HALF_OPEN_MAX) + 1);
            assert_eq!(counters.tcp_overflow_count, 0);
        }
    }
}

#[test]
fn a_full_table_evicts_no_half_open_connection() {
    let mut bench = Bench::new();
    let mut early = client(1000, peer_route());
    open(&mut bench, &mut early);
    let next = flood(&mut bench, FLOOD_FIRST, HALF_OPEN_MAX - 1);
    flood(&mut bench, next, 2 * HALF_OPEN_MAX);
    assert_eq!(
        bench.conductor.counters().tcp_cookie_sent_count,
        2 * u64::from(HALF_OPEN_MAX)
    );
    assert_serves(&mut bench, &mut early);
    assert_eq!(bench.conductor.counters().tcp_cookie_accepted_count, 0);
    // There is one place again.
    flood(&mut bench, next, 1);
    assert_eq!(
        bench.conductor.counters().tcp_cookie_sent_count,
        2 * u64::from(HALF_OPEN_MAX)
    );
}

#[test]
fn a_cookie_is_sent_once_and_holds_no_state() {
    let mut bench = flooded();
    let before = bench.conductor.connection_count();
    open(&mut bench, &mut client(1000, peer_route()));
    assert_eq!(bench.conductor.connection_count(), before);
    for _ in 0..40 {
        bench.pass(Duration::from_secs(1));
    }
    assert!(bench.take_segments(1000).is_empty());
    bench.assert_quiet();
}

#[test]
fn a_batch_of_frames_is_answered_by_a_bounded_number_of_cookies() {
    let mut bench = flooded();
    bench.is_batch_open = true;
    let next = flood(&mut bench, FLOOD_FIRST + 5000, COOKIES_PER_BATCH_MAX - 1);
    open(&mut bench, &mut client(1000, peer_route()));
    assert_eq!(bench.conductor.counters().tcp_cookie_limited_count, 0);
    // One more than the limit is dropped.
    Peer::send_syn(&mut bench, next, SeqNumber(0));
    assert!(bench.take_segments(next).is_empty());
    assert_eq!(bench.conductor.counters().tcp_cookie_limited_count, 1);
    assert_eq!(
        bench.conductor.counters().tcp_cookie_sent_count,
        u64::from(COOKIES_PER_BATCH_MAX)
    );
    // The next batch is answered.
    let now = bench.now;
    bench.conductor.end_batch(now, &mut bench.arena);
    open(&mut bench, &mut client(next, peer_route()));
}

#[test]
fn a_table_with_room_answers_every_syn_of_a_batch() {
    let mut bench = Bench::new();
    bench.is_batch_open = true;
    for port in FLOOD_FIRST..FLOOD_FIRST + 2 * u16::try_from(COOKIES_PER_BATCH_MAX).unwrap() {
        open(&mut bench, &mut client(port, peer_route()));
    }
    assert_eq!(bench.conductor.counters().tcp_cookie_limited_count, 0);
}

#[test]
fn forged_acks_are_reset_and_open_nothing() {
    let mut bench = flooded();
    open(&mut bench, &mut client(1000, peer_route()));
    let established = bench.conductor.counters().tcp_established_count;
    for port in 2000..3000 {
        let mut forger = client(port, peer_route());
        forger.expected = SeqNumber(u32::from(port).wrapping_mul(2_654_435_761));
        forger.send(&mut bench, TcpFlags::ACK, b"GET /object HTTP/1.1\r\n");
        bench.turn();
        forger.take(&mut bench);
        assert!(forger.reset);
        if port % 400 == 0 {
            // Resets are limited in a second.
            bench.pass(Duration::from_secs(1));
        }
    }
    let counters = bench.conductor.counters();
    assert_eq!(counters.tcp_established_count, established);
    assert_eq!(counters.tcp_cookie_refused_count, 1000);
}

#[test]
fn acks_are_not_checked_while_no_cookies_are_sent() {
    let mut bench = flooded();
    let mut late = client(1000, peer_route());
    open(&mut bench, &mut late);
    // The flood's entries have gone.
    for _ in 0..128 {
        bench.pass(Duration::from_secs(1));
    }
    bench.pass(Duration::from_millis(1));
    late.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    late.take(&mut bench);
    assert!(late.reset);
    assert_eq!(bench.conductor.counters().tcp_cookie_refused_count, 0);
}

#[test]
fn a_cookie_is_not_accepted_during_shutdown() {
    let mut bench = flooded();
    let mut peer = client(1000, peer_route());
    open(&mut bench, &mut peer);
    bench.conductor.shut_down(bench.now);
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
}

#[test]
fn window_scale_and_sack_work_over_a_cookie_connection() {
    let mut bench = flooded();
    let mut peer = stamping_client(1000, peer_route());
    let syn_ack = open(&mut bench, &mut peer);
    assert!(syn_ack.options.sack_permitted && syn_ack.options.window_scale.is_some());
    // 12 times 256 bytes, of which no segment is too large a part.
    peer.window = 12;
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let flight: Vec<_> = bench.take_segments(1000);
    let sent = |flight: &[(TcpRepr, Vec<u8>)]| flight.iter().map(|(_, text)| text.len()).sum();
    let bytes: usize = sent(&flight);
    assert!(
        (1448..=3072).contains(&bytes),
        "{bytes} bytes are the window"
    );
    // All arrives, and the window opens.
    peer.window = u16::MAX;
    peer.expected = peer.expected.wrapping_add(u32::try_from(bytes).unwrap());
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    bench.complete_reads();
    let flight = bench.take_segments(1000);
    let bytes: usize = sent(&flight);
    assert!(bytes > 4 * 1448, "{bytes} bytes");
    // The first segment is lost: one SACK block is enough for its retransmission.
    let left = peer.expected.wrapping_add(1448);
    let right = peer.expected.wrapping_add(u32::try_from(bytes).unwrap());
    bench.pass(Duration::from_millis(20));
    // Meanwhile a tail loss probe left: new data.
    bench.complete_reads();
    bench.take_segments(1000);
    peer.acknowledge_with_sack(&mut bench, left, right);
    bench.complete_reads();
    let flight = bench.take_segments(1000);
    let (first, text) = &flight[0];
    assert_eq!(first.sequence, peer.expected);
    assert!((1..=1448).contains(&text.len()), "{} bytes", text.len());
}

#[test]
fn timestamps_never_go_back_behind_the_cookie() {
    for millis in 0..70 {
        let mut bench = flooded_at(millis);
        let mut peer = stamping_client(1000, peer_route());
        let syn_ack = open(&mut bench, &mut peer);
        peer.get(&mut bench, "/nothing");
        let cookie = syn_ack.options.timestamps.unwrap().value;
        for (segment, _) in bench.take_segments(1000) {
            let value = segment.options.timestamps.unwrap().value;
            assert!(value.wrapping_sub(cookie) < 64);
        }
    }
}

fn flooded_at(millis: u64) -> Bench {
    let mut bench = flooded();
    bench.now += Duration::from_millis(millis);
    bench
}

#[test]
fn the_cookie_is_accepted_though_a_later_syn_got_an_entry() {
    let mut bench = flooded();
    let mut peer = client(1000, peer_route());
    open(&mut bench, &mut peer);
    let cookie = peer.expected;
    // One of the flood goes, and the client's SYN comes again.
    let mut gone = client(FLOOD_FIRST, peer_route());
    gone.next = SeqNumber(1);
    gone.send(&mut bench, TcpFlags::RST, b"");
    peer.next = SeqNumber(u32::MAX - 3);
    open(&mut bench, &mut peer);
    assert_eq!(bench.conductor.counters().tcp_cookie_sent_count, 1);
    peer.expected = cookie;
    let before = bench.conductor.connection_count();
    assert_serves(&mut bench, &mut peer);
    assert_eq!(
        bench.conductor.connection_count(),
        before,
        "its entry is gone"
    );
}

#[test]
fn frames_go_to_the_mac_address_the_ack_came_from() {
    let mut bench = flooded();
    let mut peer = client(1000, peer_route());
    open(&mut bench, &mut peer);
    let other = MacAddress([2, 0, 0, 0, 0, 9]);
    peer.route.source_mac = other;
    peer.get(&mut bench, "/nothing");
    assert_eq!(bench.last_hop, other);
}

#[test]
fn a_four_tuple_in_time_wait_gets_no_cookie() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let request = "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    peer.ask(&mut bench, request);
    peer.drain(&mut bench);
    peer.close(&mut bench);
    let again = peer.next.wrapping_add(1);
    flood(&mut bench, FLOOD_FIRST, HALF_OPEN_MAX);
    Peer::send_syn(&mut bench, 1000, again);
    assert!(bench.take_segments(1000).is_empty());
    assert_eq!(bench.conductor.counters().tcp_overflow_count, 1);
    // The table has room again.
    for _ in 0..32 {
        bench.pass(Duration::from_secs(1));
    }
    bench.sent.clear();
    Peer::send_syn(&mut bench, 1000, again);
    let syn_ack = bench.take_segments(1000)[0].0;
    assert!(syn_ack.sequence.distance(peer.expected) > 0);
}
