//! Several workers in a ring, and segments that reach another one than has their connection.

use clock::Duration;
use wire::{MacAddress, OriginalTcp, SeqNumber, TcpFlags, TcpOptions};

use super::answer_limits::is_allowance;
use super::syn_floods::flooded;
use super::{Bench, OUR_ADDRESS, PEER_ADDRESS, PORT, Peer, assert_is_object, peer_route};
use crate::conductor::answer_limits::RESETS_PER_SECOND;
use crate::{STRAYS_MAX, Stray};

const CLIENT_PORT: u16 = 1000;

/// Workers, each of which passes strays on to the next.
pub(super) struct Ring(pub(super) Vec<Bench>);

impl Ring {
    fn new(workers: u8) -> Self {
        Self::of((0..workers).map(|_| Bench::new()).collect())
    }

    pub(super) fn of(mut workers: Vec<Bench>) -> Self {
        let others = u8::try_from(workers.len() - 1).unwrap();
        for worker in &mut workers {
            worker.conductor.set_other_workers(others);
        }
        Self(workers)
    }

    /// Brings strays to the next workers until there are none. Each goes around once at most.
    pub(super) fn carry(&mut self) {
        let count = self.0.len();
        for step in 0..2 * count {
            let from = step % count;
            while let Some(stray) = self.0[from].conductor.poll_stray() {
                let next = &mut self.0[(from + 1) % count];
                let (now, arena) = (next.now, &mut next.arena);
                next.conductor.handle_stray(now, arena, stray);
                next.conductor.end_batch(now, arena);
                next.turn();
            }
        }
        let mut strays = self
            .0
            .iter_mut()
            .map(|worker| worker.conductor.poll_stray());
        assert!(
            strays.all(|stray| stray.is_none()),
            "a stray goes in circles"
        );
    }

    /// By worker: strays passed on, taken, dropped, unclaimed.
    fn strays(&self) -> Vec<[u64; 4]> {
        let counters = self.0.iter().map(|worker| worker.conductor.counters());
        let strays = counters.map(|counters| {
            [
                counters.tcp_stray_passed_count,
                counters.tcp_stray_taken_count,
                counters.tcp_stray_dropped_count,
                counters.tcp_stray_unclaimed_count,
            ]
        });
        strays.collect()
    }

    /// By worker: frames sent since the last call.
    fn sent(&mut self) -> Vec<usize> {
        let sent = self
            .0
            .iter_mut()
            .map(|worker| std::mem::take(&mut worker.sent).len());
        sent.collect()
    }

    /// By worker: segments answered by a reset.
    fn refused(&self) -> Vec<u64> {
        let counters = self.0.iter().map(|worker| worker.conductor.counters());
        counters
            .map(|counters| counters.tcp_refused_segments)
            .collect()
    }
}

/// A peer without a connection.
fn stranger(port: u16) -> Peer {
    Peer::new(peer_route(), PORT, port, SeqNumber(7))
}

#[test]
fn a_client_whose_segments_reach_another_worker_is_served_to_its_end() {
    for workers in [2, 3, 5] {
        let mut ring = Ring::new(workers);
        let mut peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
        assert!(!peer.reset);
        peer.get(&mut ring.0[1], "/object");
        ring.carry();
        loop {
            ring.0[0].turn();
            ring.0[0].complete_reads();
            if !peer.take(&mut ring.0[0]) {
                break;
            }
            peer.send(&mut ring.0[1], TcpFlags::ACK, b"");
            ring.carry();
        }
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(peer.head_and_rest().1.len(), 300_000);
        peer.send(&mut ring.0[1], TcpFlags::ACK.union(TcpFlags::FIN), b"");
        ring.carry();
        peer.take(&mut ring.0[0]);
        peer.send(&mut ring.0[1], TcpFlags::ACK, b"");
        ring.carry();
        assert!(peer.finished && !peer.reset);
        ring.0.iter_mut().for_each(Bench::assert_quiet);
        let strays = ring.strays();
        let count = strays[0][1];
        assert!(count > 5, "{strays:?}");
        assert_eq!(strays[0], [0, count, 0, 0]);
        for others in &strays[1..] {
            assert_eq!(*others, [count, 0, 0, 0]);
        }
        // All of it left where the connection is.
        assert_eq!(ring.sent()[1..], vec![0; usize::from(workers) - 1]);
    }
}

#[test]
fn a_segment_of_no_worker_is_refused_by_the_last_and_a_reset_by_none() {
    for workers in [1, 2, 3] {
        let mut ring = Ring::new(workers);
        let last = usize::from(workers) - 1;
        for flags in [
            TcpFlags::ACK,
            TcpFlags::SYN.union(TcpFlags::ACK),
            TcpFlags::FIN,
        ] {
            let before = ring.refused();
            stranger(CLIENT_PORT).send_with(&mut ring.0[0], flags, TcpOptions::default(), b"?");
            ring.0[0].turn();
            ring.carry();
            let mut expected = vec![0; last];
            expected.push(1);
            assert_eq!(ring.sent(), expected, "{flags}");
            assert_eq!(ring.refused()[last], before[last] + 1);
        }
        let (rst, options) = (TcpFlags::RST, TcpOptions::default());
        stranger(CLIENT_PORT).send_with(&mut ring.0[0], rst, options, b"");
        ring.0[0].turn();
        ring.carry();
        assert_eq!(ring.sent(), vec![0; last + 1]);
        // Without other workers there are no strays at all.
        let mut expected = vec![[4, 0, 0, 0]; last];
        expected.push([0, 0, 0, if workers == 1 { 0 } else { 4 }]);
        assert_eq!(ring.strays(), expected);
    }
}

/// The one that refuses has its share of what a single worker would send.
#[test]
fn the_last_worker_s_resets_are_limited_each_second_to_its_share() {
    for workers in [1, 2, 5] {
        let mut ring = Ring::new(workers);
        let share = RESETS_PER_SECOND / u32::from(workers);
        let count = u16::try_from(share * 3 / 2).unwrap();
        for port in CLIENT_PORT..CLIENT_PORT + count {
            let options = TcpOptions::default();
            stranger(port).send_with(&mut ring.0[0], TcpFlags::ACK, options, b"");
            ring.0[0].turn();
            ring.carry();
        }
        let counters = ring.0[usize::from(workers) - 1].conductor.counters();
        let (sent, limited) = (
            counters.tcp_refused_segments,
            counters.tcp_reset_limited_count,
        );
        assert_eq!(sent + limited, u64::from(count));
        assert!(is_allowance(sent, share), "{workers} workers: {sent}");
    }
}

#[test]
fn a_syn_opens_a_connection_where_it_arrives() {
    let mut ring = Ring::new(2);
    let mut first = Peer::connect(&mut ring.0[0], CLIENT_PORT);
    let mut second = Peer::connect(&mut ring.0[1], CLIENT_PORT + 1);
    for (worker, peer) in [&mut first, &mut second].into_iter().enumerate() {
        assert!(!peer.reset);
        peer.get(&mut ring.0[worker], "/object");
        peer.drain(&mut ring.0[worker]);
        assert_is_object(peer.head_and_rest().1, 0);
    }
    assert_eq!(ring.strays(), [[0; 4]; 2]);
}

#[test]
fn strays_beyond_the_limit_are_dropped_and_counted() {
    let mut ring = Ring::new(2);
    let limit = u16::try_from(STRAYS_MAX).unwrap();
    for port in CLIENT_PORT..CLIENT_PORT + limit + 3 {
        let options = TcpOptions::default();
        stranger(port).send_with(&mut ring.0[0], TcpFlags::ACK, options, b"");
    }
    ring.0[0].turn();
    assert_eq!(ring.strays()[0], [u64::from(limit), 0, 3, 0]);
    ring.carry();
    // Those are lost like segments that the network loses: nobody answers them.
    assert_eq!(ring.sent(), [0, STRAYS_MAX]);
    assert_eq!(ring.strays()[1], [0, 0, 0, u64::from(limit)]);
    // There is room again.
    let options = TcpOptions::default();
    stranger(CLIENT_PORT).send_with(&mut ring.0[0], TcpFlags::ACK, options, b"");
    assert_eq!(ring.strays()[0], [u64::from(limit) + 1, 0, 3, 0]);
}

/// Takes the SYN-ACK, and acknowledges it at another worker than sent it.
fn acknowledge_elsewhere(ring: &mut Ring, peer: &mut Peer) {
    let replies = ring.0[0].take_segments(peer.port);
    let [(syn_ack, _)] = &replies[..] else {
        panic!("one SYN-ACK");
    };
    peer.expected = syn_ack.sequence.wrapping_add(1);
    peer.send(&mut ring.0[1], TcpFlags::ACK, b"");
    ring.carry();
}

fn assert_serves(bench: &mut Bench, peer: &mut Peer) {
    peer.get(bench, "/object");
    peer.drain(bench);
    assert!(!peer.reset);
    assert_is_object(peer.head_and_rest().1, 0);
}

#[test]
fn a_handshake_completes_though_its_ack_reaches_another_worker() {
    let mut ring = Ring::new(3);
    let mut peer = Peer::send_syn(&mut ring.0[0], CLIENT_PORT, SeqNumber(100));
    acknowledge_elsewhere(&mut ring, &mut peer);
    assert_eq!(ring.0[0].conductor.counters().tcp_established_count, 1);
    assert_eq!(ring.strays(), [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]);
    assert_serves(&mut ring.0[0], &mut peer);
}

#[test]
fn a_syn_cookie_is_accepted_by_the_worker_that_sent_it() {
    let mut ring = Ring::of(vec![flooded(), Bench::new()]);
    let mut peer = Peer::send_syn(&mut ring.0[0], CLIENT_PORT, SeqNumber(100));
    assert_eq!(ring.0[0].conductor.counters().tcp_cookie_sent_count, 1);
    acknowledge_elsewhere(&mut ring, &mut peer);
    assert_eq!(ring.0[0].conductor.counters().tcp_cookie_accepted_count, 1);
    assert_eq!(ring.strays(), [[0, 1, 0, 0], [1, 0, 0, 0]]);
    assert_serves(&mut ring.0[0], &mut peer);
    // And one that nobody sent is refused by the last.
    let options = TcpOptions::default();
    stranger(CLIENT_PORT + 1).send_with(&mut ring.0[1], TcpFlags::ACK, options, b"");
    ring.carry();
    assert_eq!(ring.refused(), [1, 0]);
    assert_eq!(ring.0[0].conductor.counters().tcp_cookie_refused_count, 1);
}

/// The network delivers a client's first SYN a second time, to another worker: that opens a half-open
/// connection beside the connection. Answering what does not fit that by a reset would end the
/// connection.
#[test]
fn a_late_duplicate_of_the_syn_at_another_worker_does_not_end_the_connection() {
    let mut ring = Ring::new(3);
    let mut peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
    // Later, so that it gets another initial sequence number, though all workers have one secret.
    ring.0[1].pass(Duration::from_millis(10));
    let mut duplicate = stranger(CLIENT_PORT);
    duplicate.next = SeqNumber(u32::MAX - 3);
    duplicate.open(&mut ring.0[1]);
    assert_eq!(ring.0[1].conductor.counters().tcp_open_count, 1);
    ring.sent();
    peer.get(&mut ring.0[1], "/object");
    ring.carry();
    assert_eq!(ring.refused(), [0; 3]);
    peer.drain(&mut ring.0[0]);
    assert_is_object(peer.head_and_rest().1, 0);
    // Where there is no connection beside it, the segment is refused, by the last worker.
    let lonely = Peer::send_syn(&mut ring.0[1], CLIENT_PORT + 1, SeqNumber(100));
    lonely.send_with(&mut ring.0[1], TcpFlags::ACK, TcpOptions::default(), b"");
    ring.carry();
    assert_eq!(ring.refused(), [1, 0, 0]);
}

#[test]
fn a_reset_that_reaches_another_worker_ends_the_connection() {
    let mut ring = Ring::new(3);
    let peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
    peer.send_with(&mut ring.0[1], TcpFlags::RST, TcpOptions::default(), b"");
    ring.carry();
    assert_eq!(ring.0[0].conductor.counters().tcp_reset_count, 1);
    ring.0[0].assert_quiet();
}

#[test]
fn a_fin_that_reaches_another_worker_is_acknowledged_in_time_wait() {
    let mut ring = Ring::new(2);
    let mut peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
    let request = "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    peer.ask(&mut ring.0[0], request);
    peer.drain(&mut ring.0[0]);
    peer.close(&mut ring.0[0]);
    assert_eq!(ring.0[0].conductor.connection_count(), 0);
    ring.sent();
    peer.next = peer.next.wrapping_add(u32::MAX);
    let fin = TcpFlags::ACK.union(TcpFlags::FIN);
    peer.send_with(&mut ring.0[1], fin, TcpOptions::default(), b"");
    ring.carry();
    assert_eq!(ring.sent(), [1, 0]);
    assert_eq!(ring.strays(), [[0, 1, 0, 0], [1, 0, 0, 0]]);
    // When TIME-WAIT is over nobody knows it any more.
    ring.0[0].pass(Duration::from_secs(61));
    peer.send_with(&mut ring.0[1], fin, TcpOptions::default(), b"");
    ring.carry();
    assert_eq!(ring.refused(), [1, 0]);
}

#[test]
fn the_next_hop_is_that_of_the_stray_at_the_worker_that_has_the_connection() {
    const OTHER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
    let mut ring = Ring::new(2);
    let mut peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
    peer.route.source_mac = OTHER_MAC;
    peer.get(&mut ring.0[1], "/object");
    ring.carry();
    ring.0[0].complete_reads();
    assert_eq!(ring.0[0].last_hop, OTHER_MAC);
    let changes = |worker: &Bench| worker.conductor.counters().tcp_next_hop_change_count;
    assert_eq!(ring.0.iter().map(changes).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn packet_too_big_is_passed_on_to_its_connection_and_dropped_if_nobody_has_it() {
    for workers in [1, 2, 3] {
        let mut ring = Ring::new(workers);
        let arrives_at = usize::from(workers) - 1;
        let mut peer = Peer::connect(&mut ring.0[0], CLIENT_PORT);
        peer.get(&mut ring.0[0], "/object");
        ring.0[0].complete_reads();
        let original = OriginalTcp {
            source: OUR_ADDRESS.into(),
            destination: PEER_ADDRESS.into(),
            source_port: PORT,
            destination_port: CLIENT_PORT,
            sequence: peer.expected,
        };
        let unknown = OriginalTcp {
            destination_port: CLIENT_PORT + 1,
            ..original
        };
        for report in [original, unknown] {
            let now = ring.0[arrives_at].now;
            let conductor = &mut ring.0[arrives_at].conductor;
            conductor.handle_packet_too_big(now, 1400, &report);
            ring.carry();
        }
        let reports = |worker: &Bench| worker.conductor.counters().tcp_packet_too_big_count;
        let mut expected = vec![1];
        expected.resize(usize::from(workers), 0);
        assert_eq!(ring.0.iter().map(reports).collect::<Vec<_>>(), expected);
        assert_eq!(ring.refused(), vec![0; usize::from(workers)]);
        let expected: &[[u64; 4]] = match workers {
            1 => &[[0; 4]],
            2 => &[[0, 1, 0, 1], [2, 0, 0, 0]],
            // The unknown one goes on from the first to the second.
            _ => &[[1, 1, 0, 0], [0, 0, 0, 1], [2, 0, 0, 0]],
        };
        assert_eq!(ring.strays(), expected);
    }
}

#[test]
fn a_stray_may_go_to_another_thread() {
    const fn is_send<T: Send>() {}
    is_send::<Stray>();
}
