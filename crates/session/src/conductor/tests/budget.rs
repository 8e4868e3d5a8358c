//! What a client may have read for what it acknowledges, and how long it may take to.

use clock::Duration;
use wire::TcpFlags;

use super::tls::{TlsPeer, tls_config};
use super::{Bench, OBJECT_BYTES, Peer, assert_is_object, config};
use crate::client::SEND_RATE_MIN_BYTES_PER_SECOND;
use crate::{Config, ReadLimits};
use record::Version;

/// Between two ACKs of a client that wastes no time.
const ROUND: Duration = Duration::from_micros(100);

const UNLIMITED: ReadLimits = ReadLimits {
    factor: u64::MAX,
    burst_bytes: u64::MAX,
    floor_bytes_per_second: u64::MAX,
};

/// Most bytes that may have been read for a client that was sent so many, after so long.
fn most_bytes_read(sent_bytes: u64, lasted: Duration) -> u64 {
    let limits = ReadLimits::default();
    let floor = u64::try_from(lasted.as_millis()).unwrap() * limits.floor_bytes_per_second / 1000;
    // The last read may have been begun on the last byte of the allowance.
    limits.factor * sent_bytes + limits.burst_bytes + floor + 65_536
}

/// Acts `round` many times on a bench; returns bytes read, and how many there may be.
fn bytes_read(
    config: Config,
    limits: ReadLimits,
    begin: impl Fn(&mut Bench) -> Peer,
    round: impl Fn(&mut Bench, &mut Peer),
) -> (u64, u64) {
    let config = Config {
        read_limits: limits,
        ..config
    };
    let mut bench = Bench::with(config, 64);
    let mut peer = begin(&mut bench);
    let began = bench.now;
    for _ in 0..600 {
        round(&mut bench, &mut peer);
        bench.pass(ROUND);
        bench.complete_reads();
        peer.take(&mut bench);
        assert!(!peer.reset && !peer.finished);
    }
    let counters = bench.conductor.counters();
    let sent = counters.tcp_send_bytes - counters.tcp_retransmit_bytes;
    let most = most_bytes_read(sent, bench.now.since(began));
    (counters.session_read_bytes, most)
}

/// A window of three small packets over TLS: each is a part of a record of 15 KiB, which is read
/// and sealed as a whole.
fn begin_with_a_small_window(bench: &mut Bench) -> Peer {
    bench.peer_segment_bytes = 536;
    let mut client = TlsPeer::connect(bench, 1000, Version::Tls13);
    client.get(bench);
    client.drain(bench);
    client.peer.window = 3;
    client.get(bench);
    bench.complete_reads();
    client.peer.take(bench);
    client.peer
}

#[test]
fn a_small_window_cannot_exceed_the_read_budget() {
    let large = Config {
        idle_timeout: Duration::from_secs(1000),
        kept_slots_max: 0,
        ..tls_config()
    };
    let acknowledge = |bench: &mut Bench, peer: &mut Peer| {
        // A packet at a time: as much as makes room for the next.
        peer.send(bench, TcpFlags::ACK, b"");
        bench.turn();
    };
    let run = |limits| {
        bytes_read(
            large.clone(),
            limits,
            begin_with_a_small_window,
            acknowledge,
        )
    };
    let (read, most) = run(ReadLimits::default());
    assert!(read <= most, "{read} of at most {most}");
    let (read, most) = run(UNLIMITED);
    assert!(
        read > most,
        "{read} of at most {most}: the test is too tame"
    );
}

/// Sixteen ranges of a byte, a block apart, in each of eight requests at once.
fn ask_for_crumbs(bench: &mut Bench, peer: &mut Peer) {
    let ranges: Vec<_> = (0..16).map(|n| format!("{0}-{0}", n * 8192)).collect();
    let request = format!(
        "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes={}\r\n\r\n",
        ranges.join(",")
    );
    peer.ask(bench, &request.repeat(8));
}

#[test]
fn many_tiny_ranges_cannot_exceed_the_read_budget() {
    let run = |limits| {
        bytes_read(
            config(),
            limits,
            |bench| Peer::connect(bench, 1000),
            |bench, peer| {
                if bench.conductor.counters().http_reply_count
                    == bench.conductor.counters().http_request_count
                    && peer.has_all(bench)
                {
                    ask_for_crumbs(bench, peer);
                } else {
                    peer.send(bench, TcpFlags::ACK, b"");
                    bench.turn();
                }
            },
        )
    };
    let (read, most) = run(ReadLimits::default());
    assert!(read <= most, "{read} of at most {most}");
    let (read, most) = run(UNLIMITED);
    assert!(
        read > most,
        "{read} of at most {most}: the test is too tame"
    );
}

#[test]
fn reads_that_wait_for_the_budget_are_made_later() {
    let limits = ReadLimits {
        factor: 0,
        burst_bytes: 20_000,
        floor_bytes_per_second: 10_000,
    };
    let config = Config {
        read_limits: limits,
        ..config()
    };
    let mut bench = Bench::with(config, 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert!(bench.conductor.counters().session_read_deferred_count > 0);
    assert!((peer.received.len() as u64) < OBJECT_BYTES);
    assert!(
        bench.conductor.poll_timeout().is_some(),
        "somebody comes back to it"
    );
    // 300 KB at 10 KB a second; nothing is asked of the client meanwhile.
    for _ in 0..40 {
        bench.pass(Duration::from_secs(1));
        peer.drain(&mut bench);
    }
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
    assert_is_object(peer.head_and_rest().1, 0);
    assert_eq!(bench.conductor.counters().http_stall_count, 0);
}

#[test]
fn a_client_that_acknowledges_never_waits_for_the_budget() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut plain = Peer::connect(&mut bench, 1000);
    let mut sealed = TlsPeer::connect(&mut bench, 1001, Version::Tls13);
    for _ in 0..3 {
        plain.get(&mut bench, "/object");
        plain.drain(&mut bench);
        sealed.get(&mut bench);
        sealed.drain(&mut bench);
    }
    // Small files: a block each for a head and a byte.
    for _ in 0..1000 {
        let request = "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=9-9\r\n\r\n";
        plain.ask(&mut bench, request);
        plain.drain(&mut bench);
    }
    assert_eq!(bench.conductor.counters().http_reply_count, 1006);
    assert_eq!(bench.conductor.counters().session_read_deferred_count, 0);
}

#[test]
fn a_read_the_disk_had_no_room_for_costs_nothing() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    for _ in 0..1000 {
        let read = bench.reads.pop().unwrap();
        bench.conductor.return_read(&mut bench.arena, read);
        bench.turn();
    }
    assert_eq!(bench.conductor.counters().session_read_deferred_count, 0);
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
}

/// Answers like a client whose receiver takes so many bytes a second.
fn trickle(bytes: u32) -> (Bench, Peer, u32) {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    bench.take_segments(1000);
    let mut seconds = 0;
    while seconds < 200 {
        peer.expected = peer.expected.wrapping_add(bytes);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.pass(Duration::from_secs(1));
        bench.complete_reads();
        for (segment, _) in bench.take_segments(1000) {
            peer.reset |= segment.flags.contains(TcpFlags::RST);
        }
        if peer.reset {
            break;
        }
        seconds += 1;
    }
    (bench, peer, seconds)
}

#[test]
fn acknowledging_less_than_the_least_rate_is_no_progress() {
    // A byte, a segment of 1,460 bytes each minute, and just too little.
    let least = u32::try_from(SEND_RATE_MIN_BYTES_PER_SECOND).unwrap();
    for bytes in [1, 25, least - 1] {
        let (mut bench, peer, seconds) = trickle(bytes);
        assert!(peer.reset);
        assert!((59..=61).contains(&seconds), "{seconds} s");
        assert_eq!(bench.conductor.counters().http_stall_count, 1);
        bench.assert_quiet();
    }
    // The 60th ACK comes after the minute: 59 have to do.
    let (bench, peer, _) = trickle(least * 60 / 59 + 1);
    assert!(!peer.reset);
    assert_eq!(bench.conductor.counters().http_stall_count, 0);
}

#[test]
fn a_player_that_pauses_for_less_than_the_timeout_goes_on() {
    let mut bench = Bench::new();
    bench.object_bytes = 10 * OBJECT_BYTES;
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    for _ in 0..3 {
        bench.complete_reads();
        // Takes what was sent, shuts its window, and answers probes.
        peer.take(&mut bench);
        peer.window = 0;
        peer.send(&mut bench, TcpFlags::ACK, b"");
        for _ in 0..55 {
            bench.pass(Duration::from_secs(1));
            if peer.take(&mut bench) {
                peer.send(&mut bench, TcpFlags::ACK, b"");
                bench.turn();
            }
        }
        // Its program reads again, and as much as comes in a round trip.
        peer.window = u16::MAX;
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        bench.complete_reads();
        peer.take(&mut bench);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        assert!(!peer.reset && bench.conductor.connection_count() == 1);
    }
    assert!((peer.received.len() as u64) < OBJECT_BYTES * 9);
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, 10 * OBJECT_BYTES);
}

#[test]
fn the_end_of_a_reply_is_progress_however_short() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    for _ in 0..5 {
        bench.pass(Duration::from_secs(50));
        peer.drain(&mut bench);
        peer.get(&mut bench, "/nothing");
        peer.take(&mut bench);
        bench.pass(Duration::from_secs(20));
        // The first byte, then all of the rest.
        let all = peer.expected;
        peer.expected = all.wrapping_add(u32::MAX - 99);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.pass(Duration::from_millis(20));
        peer.expected = all;
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.turn();
        peer.drain(&mut bench);
        assert!(!peer.reset);
    }
}
