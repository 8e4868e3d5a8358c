//! Reads that fail, are short, come late, come back, or find no slot.

use clock::Duration;
use wire::{SeqNumber, TcpFlags};

use super::{Bench, OBJECT_BYTES, Peer, Sent, assert_is_object, config, taken};
use crate::{Config, CongestionControl, ReadError, TcpConfig, TransmitProgress, Transmitted};

fn asked(bench: &mut Bench, port: u16) -> Peer {
    let mut peer = Peer::connect(bench, port);
    peer.get(bench, "/object");
    peer
}

#[test]
fn a_failed_read_resets_its_connection_and_no_other() {
    let mut bench = Bench::new();
    let mut unlucky = asked(&mut bench, 1000);
    let read = bench.reads.pop().unwrap();
    let mut other = asked(&mut bench, 1001);
    let failed = Err((read.slot, ReadError::Io));
    bench
        .conductor
        .handle_completion(bench.now, &mut bench.arena, read.token, failed);
    bench.turn();
    unlucky.take(&mut bench);
    assert!(unlucky.reset);
    other.drain(&mut bench);
    assert_eq!(other.head_and_rest().1.len() as u64, OBJECT_BYTES);
    let counters = bench.conductor.counters();
    assert_eq!(
        (counters.session_read_error_count, counters.tcp_abort_count),
        (1, 1)
    );
}

#[test]
fn a_changed_object_resets_and_sends_nothing_of_it() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    // The reply has begun.
    bench.complete_reads();
    peer.take(&mut bench);
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    let sent = peer.received.len();
    assert!(sent > 0);
    let read = bench.reads.pop().unwrap();
    bench.find_changed(read);
    while let Some(read) = bench.reads.pop() {
        bench.complete(read, OBJECT_BYTES);
    }
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset && peer.received.len() == sent);
    assert!(bench.conductor.poll_lookup().is_none());
    let counters = bench.conductor.counters();
    assert_eq!(
        (
            counters.session_read_changed_count,
            counters.session_reply_anew_count
        ),
        (1, 0)
    );
    assert_eq!(bench.released(), 1);
    bench.assert_quiet();
}

#[test]
fn a_short_read_is_a_truncated_object() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    let read = bench.reads.pop().unwrap();
    bench.complete(read, 5000);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
    assert_eq!(bench.conductor.counters().session_read_short_count, 1);
    bench.assert_quiet();
}

#[test]
fn a_completion_for_a_client_that_left_gives_its_slot_back() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    peer.send(&mut bench, TcpFlags::RST, b"");
    let read = bench.reads.pop().unwrap();
    assert_eq!(bench.arena.free_count() + 1, bench.arena.slot_count());
    bench.complete(read, OBJECT_BYTES);
    assert_eq!(bench.conductor.counters().session_read_stale_count, 1);
    bench.assert_quiet();
}

#[test]
fn a_read_the_disk_had_no_room_for_is_planned_again() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    let read = bench.reads.pop().unwrap();
    let offset = read.offset_bytes;
    bench.conductor.return_read(&mut bench.arena, read);
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
    bench.turn();
    assert_eq!(
        bench.reads.first().map(|read| read.offset_bytes),
        Some(offset)
    );
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
}

#[test]
fn clients_share_a_single_slot() {
    let mut bench = Bench::with(config(), 1);
    let mut peers: Vec<Peer> = (1000..1003).map(|port| asked(&mut bench, port)).collect();
    assert_eq!(bench.reads.len(), 1);
    assert!(bench.conductor.counters().session_slot_famine_count > 0);
    for _ in 0..200 {
        peers.iter_mut().for_each(|peer| peer.drain(&mut bench));
    }
    for peer in &peers {
        assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
        assert_is_object(peer.head_and_rest().1, 0);
    }
}

/// The worker plans no read for a while, because it has as many in flight as it keeps up with.
#[test]
fn a_read_planned_long_after_it_was_demanded_limits_samples_of_the_delivery_rate() {
    let round_trip = Duration::from_millis(20);
    for (wait_ms, is_limited) in [(1, false), (50, true)] {
        let config = Config {
            tcp: TcpConfig {
                congestion: CongestionControl::Bbr,
                ..config().tcp
            },
            ..config()
        };
        let mut bench = Bench::with(config, 64);
        bench.object_bytes = 30_000_000;
        let mut peer = Peer::send_syn(&mut bench, 1000, SeqNumber(0));
        bench.now += round_trip;
        let (syn_ack, _) = bench.take_segments(1000).remove(0);
        peer.expected = syn_ack.sequence.wrapping_add(1);
        peer.get(&mut bench, "/object");
        let acknowledge = |bench: &mut Bench, peer: &mut Peer| {
            bench.complete_reads();
            // What is left of the window is too little for a read.
            bench.turn();
            bench.now += round_trip;
            peer.take(bench);
            peer.send(bench, TcpFlags::ACK, b"");
        };
        for _ in 0..4 {
            acknowledge(&mut bench, &mut peer);
            bench.turn();
        }
        acknowledge(&mut bench, &mut peer);
        bench.now += Duration::from_millis(wait_ms);
        bench.turn();
        bench.complete_reads();
        let clients = &bench.conductor.connections.clients;
        let index = clients.indexes().next().expect("a client");
        let client = clients.entry(index).expect("at its index");
        let info = client.tcp.info(bench.now);
        assert_eq!(info.is_rate_limited, is_limited, "{wait_ms} ms");
    }
}

#[test]
fn clients_take_turns_of_several_adjacent_reads() {
    let mut bench = Bench::with(config(), 64);
    bench.object_bytes = 3_000_000;
    let mut peers: Vec<Peer> = (1000..1002).map(|port| asked(&mut bench, port)).collect();
    // Their windows grow by the first reply.
    for _ in 0..30 {
        peers.iter_mut().for_each(|peer| peer.drain(&mut bench));
    }
    assert!(bench.reads.is_empty());
    bench.is_batch_open = true;
    for peer in &mut peers {
        peer.get(&mut bench, "/object");
    }
    bench.is_batch_open = false;
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    bench.turn();
    let most = crate::read_turns::FETCHES_PER_TURN as usize;
    let of = |read: &crate::ReadPlan| super::super::fetching::client_of(read.token);
    let turns: Vec<_> = bench.reads.chunk_by(|a, b| of(a) == of(b)).collect();
    assert_eq!(
        turns.iter().map(|turn| turn.len()).collect::<Vec<_>>(),
        [most; 4]
    );
    for turn in turns {
        let is_adjacent = |pair: &[crate::ReadPlan]| {
            pair[0].offset_bytes + u64::from(pair[0].length_bytes) == pair[1].offset_bytes
        };
        assert!(turn.windows(2).all(is_adjacent));
    }
    for _ in 0..30 {
        peers.iter_mut().for_each(|peer| peer.drain(&mut bench));
    }
}

#[test]
fn a_full_link_delays_and_loses_nothing() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    for _ in 0..3 {
        for read in std::mem::take(&mut bench.reads) {
            bench.complete(read, OBJECT_BYTES);
        }
        let progress = bench
            .conductor
            .transmit(bench.now, &mut bench.arena, &mut |_| Transmitted::Full);
        assert_eq!(progress, TransmitProgress::Full);
    }
    assert_eq!(bench.conductor.counters().tcp_send_segments, 0);
    bench.turn();
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 0);
    assert_eq!(bench.conductor.counters().tcp_retransmit_bytes, 0);
}

#[test]
fn a_client_interrupted_by_a_full_link_is_resumed_first() {
    let mut bench = Bench::new();
    let ports = [1000, 1001];
    let peers = ports.map(|port| asked(&mut bench, port));
    for read in std::mem::take(&mut bench.reads) {
        bench.complete(read, OBJECT_BYTES);
    }
    let mut offered = Vec::new();
    for _ in 0..2 {
        let now = bench.now;
        bench
            .conductor
            .transmit(now, &mut bench.arena, &mut |frame| {
                if let (Sent::Tcp(segment), _) = taken(frame) {
                    offered.push(segment.destination_port);
                }
                Transmitted::Full
            });
    }
    assert_eq!(offered, [1000, 1000]);
    bench.turn();
    assert!(
        peers
            .iter()
            .all(|peer| !bench.take_segments(peer.port).is_empty())
    );
}

#[test]
fn lost_bytes_are_read_again_from_the_same_place() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    bench.complete_reads();
    let first = bench.take_segments(1000);
    let bytes: usize = first.iter().map(|(_, text)| text.len()).sum();
    // Only the last 5 KB of the first flight arrived.
    let end = peer.expected.wrapping_add(u32::try_from(bytes).unwrap());
    bench.now += Duration::from_millis(10);
    let before = bench.conductor.counters().session_reread_count;
    let hole_end = end.wrapping_add(0u32.wrapping_sub(5000));
    peer.acknowledge_with_sack(&mut bench, hole_end, end);
    assert!(
        bench.conductor.counters().session_reread_count > before,
        "the hole is read again"
    );
    while peer.expected != hole_end {
        bench.complete_reads();
        assert!(peer.take(&mut bench), "the hole is being filled");
        peer.acknowledge_with_sack(&mut bench, hole_end, end);
    }
    // The peer has kept what it reported.
    let flight: Vec<u8> = first.into_iter().flat_map(|(_, text)| text).collect();
    peer.received
        .extend_from_slice(&flight[flight.len() - 5000..]);
    peer.expected = end;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    // New data may have left meanwhile and been dropped by this simple peer: it comes again.
    for _ in 0..10 {
        peer.drain(&mut bench);
        bench.pass(Duration::from_millis(100));
    }
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
    assert_is_object(peer.head_and_rest().1, 0);
    assert!(bench.conductor.counters().tcp_retransmit_bytes > 0);
}

#[test]
fn a_silent_network_is_tried_again_after_the_timeout() {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    bench.complete_reads();
    bench.take_segments(1000);
    for _ in 0..30 {
        bench.pass(Duration::from_millis(100));
        bench.complete_reads();
    }
    assert!(bench.conductor.counters().tcp_retransmit_segments > 0);
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 0);
}

#[test]
fn a_paced_connection_is_read_for_when_its_time_comes() {
    let mut config = config();
    // A byte a microsecond, so a quantum of 16 KiB takes 16 ms, of which 1 ms may be ahead.
    config.tcp.rate_max = Some(1_000_000);
    config.kept_slots_max = 0;
    let mut bench = Bench::with(config, 8);
    let mut peer = asked(&mut bench, 1000);
    let started = bench.now;
    bench.complete_reads();
    peer.take(&mut bench);
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    assert!(
        bench.reads.is_empty(),
        "the window is open, but it is early"
    );
    let sent = u64::try_from(peer.received.len()).unwrap();
    let due = started + Duration::from_micros(sent - 1000);
    assert!(bench.conductor.poll_timeout().is_some_and(|at| at <= due));
    bench.pass(due.since(bench.now) - Duration::from_nanos(1));
    assert!(bench.reads.is_empty());
    bench.pass(Duration::from_nanos(1));
    assert_eq!(bench.reads.len(), 1);
}

/// What the server reads after two ACKs of one segment each: the reads' sizes.
fn reads_after_two_acks(is_one_batch: bool) -> Vec<u32> {
    let mut bench = Bench::new();
    let mut peer = asked(&mut bench, 1000);
    bench.complete_reads();
    let segments = bench.take_segments(1000);
    let start = segments[0].0.sequence;
    bench.is_batch_open = is_one_batch;
    // Half of the initial window each.
    for acknowledged in [7300, 14_600] {
        peer.expected = start.wrapping_add(acknowledged);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
    }
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    bench.turn();
    bench.reads.iter().map(|read| read.length_bytes).collect()
}

#[test]
fn the_acks_of_one_batch_become_one_read() {
    let apart = reads_after_two_acks(false);
    let together = reads_after_two_acks(true);
    assert_eq!(apart.len(), 2, "{apart:?}");
    assert_eq!(together.len(), 1, "{together:?}");
    assert!(together[0] > apart[0], "{apart:?} {together:?}");
}

#[test]
fn a_request_is_taken_when_its_batch_ends() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    bench.is_batch_open = true;
    peer.send(&mut bench, TcpFlags::ACK, b"GET /object HTTP/1.1\r\n");
    peer.send(&mut bench, TcpFlags::ACK, b"Host: a\r\n\r\n");
    assert!(bench.conductor.poll_lookup().is_none());
    bench.conductor.end_batch(bench.now, &mut bench.arena);
    assert!(bench.conductor.poll_lookup().is_some());
    assert_eq!(bench.conductor.counters().http_parse_count, 1, "once");
}
