//! Limits of what anybody can provoke: challenge ACKs and resets of all connections together.

use clock::Duration;
use wire::{SeqNumber, TcpFlags, TcpOptions};

use super::{Bench, PORT, Peer, config, peer_route};
use crate::Config;
use crate::conductor::answer_limits::{CHALLENGES_PER_SECOND, RESETS_PER_SECOND};

const FIRST_PORT: u16 = 1000;

/// Half as many again as a limit permits on average: more than any second permits.
fn too_many(per_second: u32) -> u16 {
    u16::try_from(per_second * 3 / 2).unwrap()
}

/// Whether a second may permit so many.
pub(super) fn is_allowance(permitted: u64, per_second: u32) -> bool {
    let half = u64::from(per_second / 2);
    (half..3 * half).contains(&permitted)
}

/// Of `count` segments that a challenge ACK could answer, `sent` were answered: those of a second.
fn assert_challenges_limited(bench: &Bench, sent: u64, count: u16) {
    assert!(is_allowance(sent, CHALLENGES_PER_SECOND), "{sent}");
    let counters = bench.conductor.counters();
    assert_eq!(counters.tcp_challenge_count, sent);
    assert_eq!(
        counters.tcp_challenge_limited_count,
        u64::from(count) - sent
    );
}

#[test]
fn resets_for_segments_of_no_connection_are_limited_each_second() {
    let mut bench = Bench::new();
    let count = too_many(RESETS_PER_SECOND);
    let mut permitted = Vec::new();
    for second in 1..=3 {
        for port in FIRST_PORT..FIRST_PORT + count {
            let peer = Peer::new(peer_route(), PORT, port, SeqNumber(1));
            peer.send_with(&mut bench, TcpFlags::ACK, TcpOptions::default(), b"");
            bench.turn();
        }
        let resets = bench.sent.len() as u64;
        assert!(is_allowance(resets, RESETS_PER_SECOND), "{resets}");
        permitted.push(resets);
        let counters = bench.conductor.counters();
        let sent: u64 = permitted.iter().sum();
        assert_eq!(counters.tcp_refused_segments, sent);
        assert_eq!(
            counters.tcp_reset_limited_count,
            second * u64::from(count) - sent
        );
        bench.sent.clear();
        bench.pass(Duration::from_secs(1));
    }
    assert_ne!(permitted[0], permitted[1], "nobody can predict them");
}

/// RFC 5961 s7. Each connection has a limit of its own; this one is of all together.
#[test]
fn challenge_acks_of_all_connections_are_limited_each_second() {
    let count = too_many(CHALLENGES_PER_SECOND);
    let mut bench = Bench::with(
        Config {
            connections_max: count.into(),
            ..config()
        },
        8,
    );
    let ports = FIRST_PORT..FIRST_PORT + count;
    let peers: Vec<Peer> = ports.map(|port| Peer::connect(&mut bench, port)).collect();
    bench.pass(Duration::from_secs(1));
    bench.sent.clear();
    for peer in &peers {
        peer.send_with(&mut bench, TcpFlags::SYN, TcpOptions::default(), b"");
    }
    bench.turn();
    let sent = bench.sent.len() as u64;
    assert_challenges_limited(&bench, sent, count);
    // Resets have a limit of their own.
    let stranger = Peer::new(peer_route(), PORT, FIRST_PORT - 1, SeqNumber(1));
    stranger.send_with(&mut bench, TcpFlags::ACK, TcpOptions::default(), b"");
    bench.turn();
    assert_eq!(bench.conductor.counters().tcp_refused_segments, 1);
}

/// RFC 5961 s4.2 in SYN-RECEIVED: a SYN with another number gets the SYN-ACK again, as a challenge; the
/// client's own SYN is always answered.
#[test]
fn a_strange_syn_for_a_half_open_connection_counts_as_a_challenge() {
    let mut bench = Bench::new();
    let mut peer = Peer::send_syn(&mut bench, FIRST_PORT, SeqNumber(100));
    bench.sent.clear();
    for (number, challenges) in [(100, 0), (99, 1), (101, 2)] {
        peer.next = SeqNumber(number);
        peer.send_with(&mut bench, TcpFlags::SYN, TcpOptions::default(), b"");
        bench.turn();
        let replies = bench.take_segments(FIRST_PORT);
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].0.acknowledgment, SeqNumber(101));
        assert_eq!(bench.conductor.counters().tcp_challenge_count, challenges);
    }
}

/// What anybody may have forged is answered within the limit of challenge ACKs; the FIN again of a peer
/// that did not get its ACK always is.
#[test]
fn acks_of_time_wait_are_limited_each_second_but_for_the_peers_fin() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, FIRST_PORT);
    let request = "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    peer.ask(&mut bench, request);
    peer.drain(&mut bench);
    peer.close(&mut bench);
    assert_eq!(bench.conductor.connection_count(), 0);
    bench.pass(Duration::from_secs(1));
    bench.sent.clear();
    let count = too_many(CHALLENGES_PER_SECOND);
    for _ in 0..count {
        peer.send_with(&mut bench, TcpFlags::ACK, TcpOptions::default(), b"?");
        bench.turn();
    }
    let sent = bench.take_segments(FIRST_PORT).len() as u64;
    assert_challenges_limited(&bench, sent, count);
    let after_fin = peer.next;
    peer.next = after_fin.wrapping_add(u32::MAX);
    let fin = TcpFlags::ACK.union(TcpFlags::FIN);
    peer.send_with(&mut bench, fin, TcpOptions::default(), b"");
    bench.turn();
    let acks = bench.take_segments(FIRST_PORT);
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].0.acknowledgment, after_fin);
    // Another second permits others.
    bench.pass(Duration::from_secs(1));
    peer.send_with(&mut bench, TcpFlags::SYN, TcpOptions::default(), b"");
    bench.turn();
    assert_eq!(bench.take_segments(FIRST_PORT).len(), 1);
}
