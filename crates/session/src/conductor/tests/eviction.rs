//! A full table of connections: which connection makes room for a new one; and the limit of one
//! source.

use core::net::IpAddr;

use clock::Duration;
use wire::{Route, SeqNumber, TcpFlags};

use super::tls::{HELLO, TLS_PORT, TlsPeer, tls_config};
use super::{Bench, OBJECT_BYTES, PORT, Peer, config, peer_route};
use crate::Config;
use crate::conductor::connections::EVICTION_IDLE_MIN;
use record::Version;

/// As many connections as the table of [`super::config`] holds, a second after the next each.
fn full() -> (Bench, Vec<Peer>) {
    let mut bench = Bench::new();
    let peers = (1000..1004)
        .map(|port| {
            let peer = Peer::connect(&mut bench, port);
            bench.pass(Duration::from_secs(1));
            peer
        })
        .collect();
    (bench, peers)
}

fn finished(bench: &mut Bench, peers: &mut [Peer]) -> Vec<bool> {
    peers
        .iter_mut()
        .map(|peer| {
            peer.take(bench);
            assert!(!peer.reset);
            peer.finished
        })
        .collect()
}

#[test]
fn the_connection_idle_for_longest_makes_room() {
    let (mut bench, mut peers) = full();
    // The first was opened first, and has asked since.
    peers[0].get(&mut bench, "/nothing");
    peers[0].drain(&mut bench);
    let mut newcomer = Peer::connect(&mut bench, 1004);
    assert!(!newcomer.reset);
    assert_eq!(
        finished(&mut bench, &mut peers),
        [false, true, false, false]
    );
    newcomer.get(&mut bench, "/object");
    newcomer.drain(&mut bench);
    assert_eq!(newcomer.head_and_rest().1.len() as u64, OBJECT_BYTES);
    let counters = bench.conductor.counters();
    let counts = (counters.tcp_evicted_count, counters.tcp_overflow_count);
    assert_eq!(counts, (1, 0));
}

#[test]
fn a_connection_idle_for_less_than_the_least_time_stays() {
    for (idle, is_refused) in [
        (EVICTION_IDLE_MIN - Duration::from_nanos(1), true),
        (EVICTION_IDLE_MIN, false),
    ] {
        let mut bench = Bench::new();
        for port in 1000..1004 {
            Peer::connect(&mut bench, port);
        }
        bench.pass(idle);
        assert_eq!(Peer::connect(&mut bench, 1004).reset, is_refused);
        let counters = bench.conductor.counters();
        let counts = (counters.tcp_evicted_count, counters.tcp_overflow_count);
        assert_eq!(counts, if is_refused { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn a_syn_alone_evicts_nobody() {
    let (mut bench, mut peers) = full();
    for port in 2000..3000 {
        Peer::send_syn(&mut bench, port, SeqNumber(0));
    }
    assert_eq!(finished(&mut bench, &mut peers), [false; 4]);
}

#[test]
fn a_client_with_a_reply_or_a_request_under_way_is_not_evicted() {
    let (mut bench, mut peers) = full();
    // A reply not acknowledged, a look-up not answered, a part of a head, a request that waits.
    peers[0].get(&mut bench, "/nothing");
    peers[1].send(
        &mut bench,
        TcpFlags::ACK,
        b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let lookup = bench.conductor.poll_lookup().unwrap();
    peers[2].ask(&mut bench, "GET /obj");
    peers[3].get(&mut bench, "/object");
    bench.pass(Duration::from_secs(5));
    assert!(Peer::connect(&mut bench, 1004).reset);
    bench.answer(&lookup, None);
    bench.turn();
    for peer in &mut peers {
        peer.take(&mut bench);
        assert!(!peer.reset && !peer.finished);
    }
    // Once it has its reply, and a second later, it may be.
    peers[3].drain(&mut bench);
    bench.pass(EVICTION_IDLE_MIN);
    assert!(!Peer::connect(&mut bench, 1005).reset);
    peers[3].take(&mut bench);
    assert!(peers[3].finished);
}

#[test]
fn the_last_to_complete_its_handshake_is_refused_if_nobody_is_idle() {
    let mut bench = Bench::new();
    let mut peers: Vec<Peer> = (1000..1006)
        .map(|port| Peer::send_syn(&mut bench, port, SeqNumber(7)))
        .collect();
    for peer in &mut peers {
        let (syn_ack, _) = bench.take_segments(peer.port)[0].clone();
        peer.expected = syn_ack.sequence.wrapping_add(1);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.take(&mut bench);
        assert_eq!(peer.reset, peer.port >= 1004);
    }
}

#[test]
fn an_evicted_client_may_close_or_learns_that_its_request_was_not_taken() {
    let (mut bench, mut peers) = full();
    Peer::connect(&mut bench, 1004);
    bench.pass(EVICTION_IDLE_MIN);
    Peer::connect(&mut bench, 1005);
    assert_eq!(finished(&mut bench, &mut peers), [true, true, false, false]);
    // One closes, too.
    peers[0].send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    assert!(bench.take_segments(1000).is_empty());
    peers[0].send(&mut bench, TcpFlags::ACK.union(TcpFlags::FIN), b"");
    bench.turn();
    let (ack, _) = &bench.take_segments(1000)[0];
    assert_eq!(
        (ack.flags, ack.acknowledgment),
        (TcpFlags::ACK, peers[0].next)
    );
    // The request of another crossed our FIN.
    peers[1].get(&mut bench, "/object");
    peers[1].take(&mut bench);
    assert!(peers[1].reset);
}

#[test]
fn a_source_has_no_more_connections_than_its_limit() {
    let config = Config {
        connections_per_source_max: Some(2),
        ..config()
    };
    let mut bench = Bench::with(config, 8);
    let mut peers: Vec<Peer> = (1000..1002)
        .map(|port| Peer::connect(&mut bench, port))
        .collect();
    bench.pass(EVICTION_IDLE_MIN);
    assert!(Peer::connect(&mut bench, 1002).reset);
    let elsewhere = Route {
        source: IpAddr::from([10, 0, 0, 7]),
        ..peer_route()
    };
    assert!(!Peer::connect_by(&mut bench, elsewhere, PORT, 1000).reset);
    let counters = bench.conductor.counters();
    let counts = (
        counters.tcp_source_refused_count,
        counters.tcp_evicted_count,
    );
    assert_eq!(counts, (1, 0));
    peers[0].close(&mut bench);
    assert!(!Peer::connect(&mut bench, 1003).reset, "one has left");
    assert!(Peer::connect(&mut bench, 1004).reset);
}

#[test]
fn half_open_connections_do_not_count_for_their_source_until_they_are_complete() {
    let config = Config {
        connections_per_source_max: Some(2),
        ..config()
    };
    let mut bench = Bench::with(config, 8);
    let mut peers: Vec<Peer> = (1000..1003)
        .map(|port| Peer::send_syn(&mut bench, port, SeqNumber(7)))
        .collect();
    for peer in &mut peers {
        let (syn_ack, _) = bench.take_segments(peer.port)[0].clone();
        assert!(syn_ack.flags.contains(TcpFlags::SYN));
        peer.expected = syn_ack.sequence.wrapping_add(1);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.take(&mut bench);
        assert_eq!(peer.reset, peer.port == 1002);
    }
}

#[test]
fn evicting_while_a_flood_goes_on_leaves_no_connection_behind() {
    let (mut bench, _) = full();
    for port in 2000..2100 {
        bench.pass(EVICTION_IDLE_MIN);
        assert!(!Peer::connect(&mut bench, port).reset);
    }
    assert_eq!(bench.conductor.counters().tcp_evicted_count, 100);
    assert_eq!(bench.conductor.connection_count(), 4);
}

#[test]
fn a_tls_handshake_under_way_is_not_evicted_and_a_silent_or_open_client_is() {
    let mut bench = Bench::with(tls_config(), 8);
    let most = bench.conductor.connections_max();
    let mut shaking = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    shaking.send(&mut bench, TcpFlags::ACK, &HELLO[..3]);
    let mut silent = Peer::connect_to(&mut bench, TLS_PORT, 1001);
    bench.pass(Duration::from_millis(1));
    let mut open = TlsPeer::connect(&mut bench, 1002, Version::Tls13);
    open.peer.send(&mut bench, TcpFlags::ACK, b"");
    for place in 3..most {
        let mut busy = Peer::connect_to(&mut bench, PORT, u16::try_from(1000 + place).unwrap());
        busy.ask(&mut bench, "GET");
    }
    bench.pass(EVICTION_IDLE_MIN);
    let connect = |bench: &mut Bench, port| {
        let mut newcomer = Peer::connect_to(bench, PORT, port);
        newcomer.ask(bench, "GET");
        !newcomer.reset
    };
    assert!(connect(&mut bench, 2000));
    silent.take(&mut bench);
    assert!(silent.finished);
    assert!(connect(&mut bench, 2001));
    open.peer.take(&mut bench);
    open.open();
    assert!(open.peer.finished && open.is_notified);
    assert!(!connect(&mut bench, 2002));
    shaking.take(&mut bench);
    assert!(!shaking.finished && !shaking.reset);
}

/// As many connections of one source as the table holds, each with a reply that is not acknowledged.
fn held_by_one_source(most: u16) -> (Bench, Vec<Peer>) {
    let config = Config {
        connections_max: usize::from(most),
        ..config()
    };
    let mut bench = Bench::with(config, 64);
    let peers = (1000..1000 + most)
        .map(|port| {
            let mut peer = Peer::connect(&mut bench, port);
            assert!(!peer.reset, "{port}");
            peer.get(&mut bench, "/object");
            bench.pass(Duration::from_millis(1));
            peer.take(&mut bench);
            peer
        })
        .collect();
    (bench, peers)
}

fn elsewhere(host: u8) -> Route {
    Route {
        source: IpAddr::from([10, 0, 1, host]),
        ..peer_route()
    }
}

#[test]
fn a_source_that_holds_the_table_makes_room_for_others() {
    let most = 40;
    let (mut bench, mut peers) = held_by_one_source(u16::from(most));
    for host in 0..most - 16 {
        let mut newcomer = Peer::connect_by(&mut bench, elsewhere(host), PORT, 5000);
        assert!(!newcomer.reset, "{host}");
        newcomer.get(&mut bench, "/object");
        bench.complete_reads();
        assert!(newcomer.take(&mut bench) && !newcomer.reset);
    }
    assert_eq!(bench.conductor.counters().tcp_source_evicted_count, 24);
    let reset = peers.iter_mut().filter_map(|peer| {
        peer.take(&mut bench);
        peer.reset.then_some(peer.port)
    });
    assert_eq!(reset.count(), 24);
    // What is left of the source is no more than others may have.
    assert!(Peer::connect_by(&mut bench, elsewhere(99), PORT, 5000).reset);
    assert_eq!(bench.conductor.counters().tcp_overflow_count, 1);
}

#[test]
fn a_source_that_holds_the_table_takes_no_place_of_others() {
    let (mut bench, mut peers) = held_by_one_source(40);
    assert!(Peer::connect(&mut bench, 2000).reset);
    let mut other = Peer::connect_by(&mut bench, elsewhere(1), PORT, 5000);
    other.get(&mut bench, "/object");
    for port in 2001..2010 {
        assert!(Peer::connect(&mut bench, port).reset);
    }
    other.take(&mut bench);
    assert!(!other.reset);
    let resets = peers.iter_mut().filter_map(|peer| {
        peer.take(&mut bench);
        peer.reset.then_some(())
    });
    assert_eq!(resets.count(), 1);
}

#[test]
fn the_connection_without_progress_for_longest_makes_room() {
    // As many as are looked at, and one that moves.
    let (mut bench, mut peers) = held_by_one_source(17);
    // The second flight too: the first is less than what counts as progress.
    for _ in 0..2 {
        bench.complete_reads();
        peers[0].take(&mut bench);
        peers[0].send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
    }
    assert!(!Peer::connect_by(&mut bench, elsewhere(1), PORT, 5000).reset);
    let reset: Vec<bool> = peers
        .iter_mut()
        .map(|peer| {
            peer.take(&mut bench);
            peer.reset
        })
        .collect();
    assert!(!reset[0] && reset[1], "{reset:?}");
}
