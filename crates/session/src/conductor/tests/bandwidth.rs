//! Bandwidth that connections share: together they are sent what it permits, each its part, on whichever worker.

use std::sync::Arc;

use super::{Bench, Peer, config};
use crate::Config;
use clock::Duration;
use sites::bandwidth::{Bandwidth, LATE_MAX_NS};
use sites::rules::Rule;
use sites::{Site, Sites};
use wire::TcpFlags;

/// Bytes a second: 1,000 in each step of a run.
const RATE: u64 = 1_000_000;
const RUN_MS: u64 = 4000;
/// What a connection may be sent beyond its share: a grant, a read that is larger than one, and what is made up for.
const BEYOND_BYTES: u64 = 16_384 + 65_536 + RATE * LATE_MAX_NS / 1_000_000_000;

/// A server whose `/object`, which never ends, has that bandwidth.
fn with_bandwidth(rate: u64) -> Config {
    let limited = Rule {
        bandwidth: Some(Bandwidth::new(rate)),
        ..Rule::default()
    };
    let site = Site {
        rules: vec![(vec!["/object".into()], limited)],
        ..Site::default()
    };
    Config {
        sites: Arc::new(Sites::new(Vec::new(), site).unwrap()),
        ..config()
    }
}

fn worker(config: &Config) -> Bench {
    let mut bench = Bench::with(config.clone(), 8);
    bench.object_bytes = 1 << 40;
    bench
}

/// Who asks for the object, of which worker, and every how many milliseconds he acknowledges.
struct Viewer {
    peer: Peer,
    worker: usize,
    period_ms: u64,
}

/// Viewers of these workers; one that does not acknowledge at once has a window of 4 KiB.
fn viewers(workers: &mut [Bench], of: &[(usize, u64)]) -> Vec<Viewer> {
    let view = |(port, &(worker, period_ms))| {
        let bench = &mut workers[worker];
        let mut peer = Peer::connect(bench, port);
        if period_ms > 1 {
            // In units of 256 bytes.
            peer.window = 16;
        }
        peer.get(bench, "/object");
        Viewer {
            peer,
            worker,
            period_ms,
        }
    };
    (1000..).zip(of).map(view).collect()
}

/// Lets time pass; what each viewer received in it.
fn run(workers: &mut [Bench], viewers: &mut [Viewer]) -> Vec<u64> {
    for viewer in viewers.iter_mut() {
        viewer.peer.received.clear();
    }
    for ms in 1..=RUN_MS {
        for bench in workers.iter_mut() {
            bench.pass(Duration::from_millis(1));
            bench.complete_reads();
        }
        for viewer in viewers.iter_mut().filter(|it| ms % it.period_ms == 0) {
            let bench = &mut workers[viewer.worker];
            if viewer.peer.take(bench) {
                viewer.peer.send(bench, TcpFlags::ACK, b"");
                bench.turn();
                bench.complete_reads();
            }
        }
    }
    let received = |viewer: &Viewer| u64::try_from(viewer.peer.received.len()).unwrap();
    viewers.iter().map(received).collect()
}

fn assert_is_used(received: &[u64]) {
    let (sum, permitted) = (received.iter().sum::<u64>(), RATE * RUN_MS / 1000);
    let most = permitted + BEYOND_BYTES * u64::try_from(received.len()).unwrap();
    assert!(sum <= most, "{sum} of {permitted}");
    assert!(sum >= permitted * 97 / 100, "{sum} of {permitted}");
}

fn assert_is_about(received: u64, expected: u64) {
    // And a turn, which some have had when the run ends and others have not.
    let difference = received.abs_diff(expected);
    assert!(
        difference <= BEYOND_BYTES + 65_536,
        "{received} of {expected}"
    );
}

#[test]
fn one_connection_has_all_of_a_bandwidth_and_many_have_equal_parts_on_whichever_worker() {
    for of in [&[(0, 1)][..], &[(0, 1), (0, 1), (0, 1), (1, 1)]] {
        let config = with_bandwidth(RATE);
        let mut workers = [worker(&config), worker(&config)];
        let mut viewers = viewers(&mut workers, of);
        let received = run(&mut workers, &mut viewers);
        assert_is_used(&received);
        let part = RATE * RUN_MS / 1000 / u64::try_from(of.len()).unwrap();
        for bytes in received {
            assert_is_about(bytes, part);
        }
        let deferred = workers[0].conductor.counters();
        assert!(deferred.session_bandwidth_deferred_count > 0);
    }
}

#[test]
fn what_a_slow_connection_leaves_is_the_others() {
    let config = with_bandwidth(RATE);
    let mut workers = [worker(&config), worker(&config)];
    // A window in 100 ms.
    let mut viewers = viewers(&mut workers, &[(0, 1), (1, 1), (0, 100)]);
    let received = run(&mut workers, &mut viewers);
    assert_is_used(&received);
    // Whole segments of it.
    let slow = 2 * 1460 * RUN_MS / 100;
    assert!(received[2] >= slow * 9 / 10, "{received:?} of {slow}");
    for bytes in &received[..2] {
        assert_is_about(*bytes, (RATE * RUN_MS / 1000 - received[2]) / 2);
    }
    // So is what one leaves that goes.
    viewers[0].peer.send(&mut workers[0], TcpFlags::RST, b"");
    let received = run(&mut workers, &mut viewers);
    assert_is_used(&received);
    assert_eq!(received[0], 0);
}

#[test]
fn who_asks_for_something_else_does_not_wait() {
    let mut workers = [worker(&with_bandwidth(RATE))];
    let mut viewers = viewers(&mut workers, &[(0, 1)]);
    let [bench] = &mut workers;
    bench.object_bytes = 3_000_000;
    let mut other = Peer::connect(bench, 2000);
    let start = bench.now;
    other.get(bench, "/folder/");
    other.drain(bench);
    assert!(other.received.len() > 3_000_000 && bench.now == start);
    let waiting = &mut viewers[0].peer;
    assert!(waiting.take(bench) && waiting.received.len() < 100_000);
}

#[test]
fn what_is_lost_does_not_wait_for_a_grant() {
    // A grant of 16 KiB in 1.6 s.
    let mut bench = worker(&with_bandwidth(10_000));
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let first = peer.expected;
    let burst: usize = (bench.take_segments(1000).iter().map(|(_, text)| text.len())).sum();
    let burst = u32::try_from(burst).unwrap();
    assert!(burst > 10 * 1000, "{burst}");
    // Of the burst the first segment is lost.
    let (left, right) = (first.wrapping_add(1460), first.wrapping_add(burst));
    peer.acknowledge_with_sack(&mut bench, left, right);
    for _ in 0..100 {
        bench.pass(Duration::from_millis(1));
        bench.complete_reads();
    }
    let sent = bench.take_segments(1000);
    let again = sent.iter().filter(|(segment, _)| segment.sequence == first);
    assert_eq!(again.count(), 1);
    // What is new does.
    let is_new = sent
        .iter()
        .any(|(segment, text)| !text.is_empty() && segment.sequence.distance(right) >= 16_384);
    assert!(!is_new);
}
