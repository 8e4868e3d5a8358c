//! Many handshakes at once: whose turn it is, who is refused, and who is reset.

use record::Version;
use wire::{SeqNumber, TcpFlags};

use super::tls::{HELLO, TLS_PORT, answer, established, handshake, tls_config};
use super::{Bench, PORT, Peer};
use crate::tls::{HANDSHAKES_MAX, HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED, HELLOS_QUEUED_MAX};
use crate::{Config, TlsAnswer, TlsToken};

/// A conductor with room for every handshake there can be.
fn crowd() -> Bench {
    let config = Config {
        connections_max: HANDSHAKES_MAX + HELLOS_QUEUED_MAX + 8,
        ..tls_config()
    };
    Bench::with(config, 8)
}

/// A client on the port of that number behind 1,000 that has sent its hello.
fn hello(bench: &mut Bench, place: usize) -> Peer {
    let mut peer = Peer::connect_to(bench, TLS_PORT, u16::try_from(1000 + place).unwrap());
    peer.send(bench, TcpFlags::ACK, HELLO);
    peer
}

/// Answers the next hello with a flight.
fn answer_hello(bench: &mut Bench) -> TlsToken {
    let (token, _) = handshake(bench.conductor.poll_hello());
    let flight = b"flight".to_vec();
    answer(bench, token, TlsAnswer::Continue { flight });
    token
}

fn is_reset(bench: &mut Bench, peer: &mut Peer) -> bool {
    bench.turn();
    peer.take(bench);
    peer.reset
}

#[test]
fn one_handshake_too_many_resets_the_oldest_that_waits_for_its_client() {
    let mut bench = crowd();
    let mut peers = Vec::new();
    for place in 0..HANDSHAKES_MAX {
        peers.push(hello(&mut bench, place));
        answer_hello(&mut bench);
    }
    // The eldest waits for us: what completes its handshake is here.
    peers[0].send(&mut bench, TcpFlags::ACK, HELLO);
    let mut one_more = hello(&mut bench, HANDSHAKES_MAX);
    for peer in &mut peers[..2] {
        assert!(
            !is_reset(&mut bench, peer),
            "a hello that waits costs nobody"
        );
    }
    answer_hello(&mut bench);
    let resets: Vec<bool> = peers[..3]
        .iter_mut()
        .map(|peer| is_reset(&mut bench, peer))
        .collect();
    assert_eq!(resets, [false, true, false]);
    assert!(!is_reset(&mut bench, &mut one_more));
    assert_eq!(bench.conductor.counters().tls_handshake_overflow_count, 1);
}

#[test]
fn no_handshake_is_reset_while_all_wait_for_the_server() {
    let mut bench = crowd();
    let mut peers = Vec::new();
    for place in 0..HANDSHAKES_MAX {
        peers.push(hello(&mut bench, place));
        answer_hello(&mut bench);
        peers[place].send(&mut bench, TcpFlags::ACK, HELLO);
    }
    hello(&mut bench, HANDSHAKES_MAX);
    assert!(bench.conductor.poll_hello().is_none(), "there is no room");
    // One is completed: room for the hello that waited.
    let (token, _) = handshake(bench.conductor.poll_tls());
    answer(&mut bench, token, established(Version::Tls13));
    answer_hello(&mut bench);
    assert_eq!(bench.conductor.counters().tls_handshake_overflow_count, 0);
    assert_eq!(bench.conductor.counters().tls_handshake_count, 1);
}

#[test]
fn final_handshake_records_come_before_client_hellos() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut first = hello(&mut bench, 0);
    let begun = answer_hello(&mut bench);
    hello(&mut bench, 1);
    first.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(bench.conductor.poll_tls());
    assert_eq!(token, begun);
    assert!(bench.conductor.poll_tls().is_none(), "a hello waits");
    let (token, _) = handshake(bench.conductor.poll_hello());
    assert_ne!(token, begun);
}

#[test]
fn a_client_hello_in_several_records_stays_in_the_hello_queue() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = hello(&mut bench, 0);
    let (token, _) = handshake(bench.conductor.poll_hello());
    let flight = Vec::new();
    answer(&mut bench, token, TlsAnswer::Continue { flight });
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    assert!(bench.conductor.poll_tls().is_none());
    assert_eq!(answer_hello(&mut bench), token);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    assert!(bench.conductor.poll_hello().is_none());
    assert_eq!(handshake(bench.conductor.poll_tls()).0, token);
}

#[test]
fn one_hello_too_many_in_the_queue_is_reset() {
    let mut bench = crowd();
    // Their SYNs were answered before the queue was long.
    let connected: Vec<Peer> = (0..=HELLOS_QUEUED_MAX)
        .map(|place| Peer::connect_to(&mut bench, TLS_PORT, u16::try_from(1000 + place).unwrap()))
        .collect();
    for mut peer in connected {
        let queued = bench.conductor.counters().tls_hello_refused_count;
        assert_eq!(queued, 0);
        peer.send(&mut bench, TcpFlags::ACK, HELLO);
        let is_last = usize::from(peer.port) == 1000 + HELLOS_QUEUED_MAX;
        assert_eq!(is_reset(&mut bench, &mut peer), is_last);
    }
    assert_eq!(bench.conductor.counters().tls_hello_refused_count, 1);
    // Each that leaves makes room.
    answer_hello(&mut bench);
    for _ in 1..HELLOS_QUEUED_MAX {
        answer_hello(&mut bench);
    }
    assert!(bench.conductor.poll_hello().is_none());
}

#[test]
fn a_long_hello_queue_drops_syns() {
    let mut bench = crowd();
    for place in 0..HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED {
        hello(&mut bench, place);
    }
    let port = 1000 + u16::try_from(HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED).unwrap();
    let established = |bench: &Bench| bench.conductor.counters().tcp_established_count;
    let before = established(&bench);
    let mut refused = Peer::send_syn_to(&mut bench, TLS_PORT, port, SeqNumber(7));
    assert!(!refused.take(&mut bench) && !refused.reset, "no answer");
    assert_eq!(bench.conductor.counters().tls_syn_dropped_count, 1);
    Peer::connect_to(&mut bench, PORT, port + 1);
    assert_eq!(established(&bench), before + 1, "the plain port is open");
    answer_hello(&mut bench);
    Peer::connect_to(&mut bench, TLS_PORT, port);
    assert_eq!(established(&bench), before + 2, "the queue is shorter");
    assert_eq!(bench.conductor.counters().tls_syn_dropped_count, 1);
}

#[test]
fn clients_that_leave_the_queue_make_room_in_it() {
    let mut bench = crowd();
    for place in 0..HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED {
        let mut peer = hello(&mut bench, place);
        peer.send(&mut bench, TcpFlags::RST, b"");
    }
    let last = hello(&mut bench, HELLOS_QUEUED_MAX);
    assert!(!last.reset);
    assert_eq!(bench.conductor.counters().tls_syn_dropped_count, 0);
    answer_hello(&mut bench);
    assert!(bench.conductor.poll_hello().is_none());
}
