//! Slots that are kept for the next bursts of their clients, and for what is lost.

use clock::Duration;
use record::Version;
use wire::{SeqNumber, TcpFlags, TcpOptions};

use super::tls::{TLS_PORT, TlsPeer};
use super::{Bench, OBJECT_BYTES, Peer, Sent, assert_is_object, config, taken};
use crate::{Config, Transmitted};

/// A byte a microsecond, so that an object takes several bursts.
fn paced(kept_slots_max: usize) -> Config {
    let mut config = config();
    config.tcp.rate_max = Some(1_000_000);
    config.kept_slots_max = kept_slots_max;
    config
}

fn asked(bench: &mut Bench, port: u16) -> Peer {
    let mut peer = Peer::connect(bench, port);
    peer.get(bench, "/object");
    peer
}

/// The disk answers, the peer acknowledges, and time passes until the next burst.
fn go_on(bench: &mut Bench, peer: &mut Peer) {
    bench.complete_reads();
    peer.take(bench);
    peer.send(bench, TcpFlags::ACK, b"");
    bench.turn();
    if let Some(at) = bench.conductor.poll_timeout() {
        bench.pass(at.since(bench.now).min(Duration::from_millis(20)));
    }
}

fn take_object(bench: &mut Bench, peer: &mut Peer) {
    for _ in 0..100 {
        go_on(bench, peer);
    }
    let (_, body) = peer.head_and_rest();
    assert_eq!(body.len() as u64, OBJECT_BYTES);
    assert_is_object(body, 0);
}

/// As a link that lends slots, or copies them. The sequence number behind the last frame.
fn transmit_as(bench: &mut Bench, is_lent: bool) -> Option<SeqNumber> {
    let (now, sent) = (bench.now, &mut bench.sent);
    let mut end = None;
    let mut sink = |frame: &wire::Outgoing<'_>| {
        let (segment, payload) = taken(frame);
        if let Sent::Tcp(segment) = &segment {
            let bytes = u32::try_from(payload.len()).unwrap();
            end = Some(segment.sequence.wrapping_add(bytes));
        }
        let has_slot = frame.payload.last().is_some_and(|part| part.len() > 2048);
        sent.push((segment, payload));
        if has_slot && is_lent {
            Transmitted::Lent
        } else {
            Transmitted::Taken
        }
    };
    bench.conductor.transmit(now, &mut bench.arena, &mut sink);
    end
}

#[test]
fn several_bursts_leave_from_one_slot() {
    let reads_of = |kept_slots_max| {
        let mut bench = Bench::with(paced(kept_slots_max), 8);
        let mut peer = asked(&mut bench, 1000);
        take_object(&mut bench, &mut peer);
        assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
        let counters = bench.conductor.counters();
        (
            counters.session_read_count,
            counters.session_kept_fetch_count > 0,
        )
    };
    let (each, without) = reads_of(0);
    let (fewer, with) = reads_of(1);
    assert!(!without && with);
    assert!(fewer * 2 <= each, "{fewer} reads instead of {each}");
}

#[test]
fn what_is_lost_is_sent_again_from_the_slot() {
    let mut bench = Bench::with(paced(4), 8);
    let mut peer = asked(&mut bench, 1000);
    bench.complete_reads();
    // The first segment begins with the head, which is in no slot.
    peer.expected = peer.expected.wrapping_add(1460);
    let start = peer.expected;
    let segments = bench.take_segments(1000);
    let end = segments
        .last()
        .map(|(segment, text)| (segment.sequence).wrapping_add(u32::try_from(text.len()).unwrap()));
    // All but the second segment of the burst arrives.
    let hole_end = start.wrapping_add(1460);
    peer.acknowledge_with_sack(&mut bench, hole_end, end.unwrap());
    bench.pass(Duration::from_millis(20));
    bench.complete_reads();
    let counters = bench.conductor.counters();
    assert!(counters.tcp_retransmit_bytes >= 1460);
    assert_eq!(counters.session_reread_count, 0);
    let again = bench.take_segments(1000);
    let lost = segments[0].1.get(1460..2920).unwrap();
    let is_lost = |sequence: SeqNumber| sequence == start;
    let found = again.iter().find(|(segment, _)| is_lost(segment.sequence));
    assert_eq!(found.unwrap().1.get(..1460), Some(lost));
}

#[test]
fn what_is_lost_nearby_comes_with_one_read() {
    for (kept_slots_max, reads) in [(0, 2), (4, 1)] {
        let mut config = config();
        config.kept_slots_max = kept_slots_max;
        let mut bench = Bench::with(config, 8);
        let mut peer = asked(&mut bench, 1000);
        bench.complete_reads();
        bench.take_segments(1000);
        // The first segment begins with the head; the second and the fourth are lost.
        peer.expected = peer.expected.wrapping_add(1460);
        let holes = [0, 2].map(|segments| peer.expected.wrapping_add(segments * 1460));
        let mut options = TcpOptions::default();
        for (from, to) in [(1, 2), (3, 8)] {
            let [left, right] =
                [from, to].map(|segments| peer.expected.wrapping_add(segments * 1460));
            options.sack.push(left, right);
        }
        peer.send_with(&mut bench, TcpFlags::ACK, options, b"");
        bench.pass(Duration::from_millis(20));
        bench.complete_reads();
        bench.pass(Duration::from_millis(20));
        let resent = bench.take_segments(1000);
        for hole in holes {
            assert!(resent.iter().any(|(segment, _)| segment.sequence == hole));
        }
        let counters = bench.conductor.counters();
        assert_eq!(counters.session_reread_count, reads, "{kept_slots_max}");
    }
}

#[test]
fn what_a_link_may_have_overwritten_is_read_again() {
    for (is_lent, rereads) in [(false, 0), (true, 1)] {
        let mut bench = Bench::with(paced(4), 8);
        let mut peer = asked(&mut bench, 1000);
        let read = bench.reads.pop().unwrap();
        let slot = read.slot.index();
        bench.complete(read, OBJECT_BYTES);
        transmit_as(&mut bench, is_lent);
        // A part of the first burst arrives, and the second leaves from the same slot, behind headers.
        peer.expected = peer.expected.wrapping_add(5 * 1460);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.now += Duration::from_millis(20);
        let mut end = None;
        for _ in 0..2 {
            if bench.arena.lent_count() > 0 {
                bench.arena.give_back(slot);
            }
            let (now, arena) = (bench.now, &mut bench.arena);
            bench.conductor.handle_timeouts(now, arena);
            assert!(bench.conductor.poll_read(now, arena).is_none());
            end = transmit_as(&mut bench, is_lent).or(end);
        }
        assert_eq!(bench.conductor.counters().session_kept_fetch_count, 1);
        // The rest of the first is lost.
        let left = peer.expected.wrapping_add(5 * 1460);
        peer.acknowledge_with_sack(&mut bench, left, end.unwrap());
        bench.pass(Duration::from_millis(20));
        bench.complete_reads();
        let counters = bench.conductor.counters();
        assert!(counters.tcp_retransmit_bytes > 0);
        assert_eq!(counters.session_reread_count, rereads, "{is_lent}");
    }
}

#[test]
fn a_read_takes_the_slot_that_is_kept_for_another_client() {
    let mut bench = Bench::with(paced(1), 1);
    let mut first = asked(&mut bench, 1000);
    bench.complete_reads();
    assert_eq!(bench.conductor.kept_slots(), 1);
    let mut second = asked(&mut bench, 1001);
    bench.complete_reads();
    assert_eq!(bench.conductor.counters().session_kept_given_up_count, 1);
    for _ in 0..200 {
        go_on(&mut bench, &mut first);
        go_on(&mut bench, &mut second);
    }
    for peer in [&first, &second] {
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
    }
    assert_eq!(bench.arena.free_count(), 1);
}

#[test]
fn nothing_is_kept_for_a_client_that_has_gone() {
    let mut bench = Bench::with(paced(4), 8);
    let mut peer = asked(&mut bench, 1000);
    bench.complete_reads();
    assert_eq!(bench.conductor.kept_slots(), 1);
    peer.send(&mut bench, TcpFlags::RST, b"");
    bench.turn();
    assert_eq!(bench.conductor.kept_slots(), 0);
    bench.assert_quiet();
}

#[test]
fn records_are_sealed_once_however_many_bursts_they_leave_in() {
    for (kept_slots_max, is_once) in [(4, true), (0, false)] {
        let config = Config {
            https_port: Some(TLS_PORT),
            ..paced(kept_slots_max)
        };
        let mut bench = Bench::with(config, 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
        client.get(&mut bench);
        let peer = &mut client.peer;
        for round in 0..15 {
            bench.complete_reads();
            let segments = bench.take_segments(1000);
            let mut end = segments.iter().map(|(segment, text)| {
                (segment.sequence).wrapping_add(u32::try_from(text.len()).unwrap())
            });
            let end = end.next_back().unwrap_or(peer.expected);
            if round == 0 {
                // A segment of the first burst is lost, once: not the one with the head, which is in no slot.
                peer.expected = peer.expected.wrapping_add(1460);
                let left = peer.expected.wrapping_add(1460);
                peer.acknowledge_with_sack(&mut bench, left, end);
                bench.pass(Duration::from_millis(20));
                bench.complete_reads();
                bench.take_segments(1000);
            }
            peer.expected = end;
            peer.send(&mut bench, TcpFlags::ACK, b"");
            bench.turn();
            bench.pass(Duration::from_millis(20));
        }
        let resealed = bench.conductor.counters().record_reseal_count;
        assert_eq!(resealed == 0, is_once, "{resealed}");
    }
}

/// Lengths of the frames that a path at 4 KB in a millisecond gets after a loss, if there is one. The peer has room for
/// `window` units of 256 bytes.
fn frames_after(bench: &mut Bench, has_lost: bool, window: u16) -> Vec<usize> {
    let mut peer = Peer::connect(bench, 1000);
    peer.window = window;
    peer.get(bench, "/object");
    let mut lengths = Vec::new();
    let mut go_on = |bench: &mut Bench, peer: &mut Peer, rounds| {
        lengths.clear();
        for _ in 0..rounds {
            bench.complete_reads();
            lengths.extend(bench.sent.iter().map(|(_, text)| text.len()));
            peer.take(bench);
            peer.send(bench, TcpFlags::ACK, b"");
            bench.turn();
            // As pacing's timers are due, or what was missed would leave in several bursts.
            for _ in 0..20 {
                bench.pass(Duration::from_millis(1));
                bench.complete_reads();
            }
        }
    };
    go_on(bench, &mut peer, 3);
    if has_lost {
        bench.complete_reads();
        let segments = bench.take_segments(1000);
        let (last, text) = segments.last().unwrap();
        let end = last
            .sequence
            .wrapping_add(u32::try_from(text.len()).unwrap());
        // The first segment comes when it is sent again only.
        let hole_end = peer.expected.wrapping_add(1460);
        peer.acknowledge_with_sack(bench, hole_end, end);
        bench.pass(Duration::from_millis(20));
        bench.complete_reads();
        bench.take_segments(1000);
        peer.expected = end;
    }
    go_on(bench, &mut peer, 6);
    lengths
}

fn lossy_bench(is_busy: bool) -> Bench {
    let mut config = paced(4);
    config.tcp.rate_max = Some(4_000_000);
    config.kept_copy_bytes = 1 << 20;
    let mut bench = Bench::with(config, 8);
    bench.conductor.set_busy(is_busy);
    bench
}

#[test]
fn a_busy_worker_copies_what_is_behind_short_bursts_of_a_path_that_loses() {
    let copied = |has_lost, window| {
        let mut bench = lossy_bench(true);
        frames_after(&mut bench, has_lost, window);
        bench.conductor.counters().session_kept_copied_bytes
    };
    assert!(copied(true, 5888 / 256) > 0);
    // Two blocks, and what is left of the window is less than a packet.
    assert_eq!(copied(true, 9216 / 256), 0);
    assert_eq!(copied(false, 5888 / 256), 0);
}

#[test]
fn after_a_loss_bursts_are_short_unless_the_worker_is_busy() {
    let longest = |is_busy, has_lost| {
        let mut bench = lossy_bench(is_busy);
        let lengths = frames_after(&mut bench, has_lost, u16::MAX);
        lengths.into_iter().max().unwrap()
    };
    assert_eq!(longest(false, true), 3 * 1460);
    assert_eq!(longest(true, true), 24 << 10);
    for is_busy in [false, true] {
        assert_eq!(longest(is_busy, false), 60 << 10);
    }
}

/// Lengths of the packets that a paced client gets of the object, in the order of the stream.
fn packets_of(bench: &mut Bench, peer: &mut Peer) -> Vec<usize> {
    let mut lengths = Vec::new();
    for _ in 0..200 {
        bench.complete_reads();
        for (segment, text) in bench.take_segments(1000) {
            let end = (segment.sequence).wrapping_add(u32::try_from(text.len()).unwrap());
            lengths.extend(text.chunks(1460).map(<[u8]>::len));
            peer.expected = end;
        }
        peer.send(bench, TcpFlags::ACK, b"");
        bench.turn();
        bench.pass(Duration::from_millis(20));
    }
    lengths
}

#[test]
fn the_rest_of_a_kept_slot_leaves_in_a_packet_with_what_is_read_next() {
    let mut bench = Bench::with(paced(4), 8);
    let mut peer = asked(&mut bench, 1000);
    let lengths = packets_of(&mut bench, &mut peer);
    let counters = bench.conductor.counters();
    assert!(counters.session_read_count > 5 && counters.session_kept_fetch_count > 5);
    let is_short = |length: &usize| *length < 1460;
    let short = lengths.iter().filter(|length| is_short(length)).count();
    // The last one of the object.
    assert_eq!((short, lengths.last().map(is_short)), (1, Some(true)));
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
}

#[test]
fn the_rest_of_the_only_slot_leaves_by_itself() {
    let mut bench = Bench::with(paced(1), 1);
    let mut peer = asked(&mut bench, 1000);
    let lengths = packets_of(&mut bench, &mut peer);
    assert!(bench.conductor.counters().session_kept_fetch_count > 0);
    assert!(lengths.iter().filter(|length| **length < 1460).count() > 1);
    assert!(lengths.iter().sum::<usize>() as u64 > OBJECT_BYTES);
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
}
