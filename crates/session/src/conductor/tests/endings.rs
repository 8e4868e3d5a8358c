//! Timeouts, limits and shutdown of the server.

use clock::Duration;
use wire::TcpFlags;

use super::{Bench, OBJECT_BYTES, Peer, config};
use crate::Config;

#[test]
fn a_head_that_never_ends_gets_a_408() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, "GET / HT");
    bench.pass(Duration::from_millis(19_999));
    peer.take(&mut bench);
    assert!(peer.received.is_empty());
    bench.pass(Duration::from_millis(1));
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 408 "));
    assert!(peer.finished);
    assert_eq!(bench.conductor.counters().http_timeout_count, 1);
}

#[test]
fn an_idle_connection_without_a_request_is_closed() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    // Keep-alive probes are answered, as a living client does.
    for _ in 0..74 {
        bench.pass(Duration::from_secs(1));
        peer.drain(&mut bench);
    }
    bench.pass(Duration::from_millis(999));
    peer.drain(&mut bench);
    assert!(!peer.finished);
    bench.pass(Duration::from_millis(1));
    peer.drain(&mut bench);
    assert!(peer.finished && peer.received.is_empty());
}

#[test]
fn an_idle_connection_is_closed_after_its_time_from_the_last_reply() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    bench.pass(Duration::from_secs(10));
    peer.get(&mut bench, "/nothing");
    peer.drain(&mut bench);
    // Keep-alive probes are answered, as a living client does.
    for _ in 0..74 {
        bench.pass(Duration::from_secs(1));
        peer.drain(&mut bench);
        assert!(!peer.finished);
    }
    bench.pass(Duration::from_secs(1));
    peer.drain(&mut bench);
    assert!(peer.finished);
    assert_eq!(bench.conductor.counters().http_idle_close_count, 1);
}

#[test]
fn the_time_to_ask_begins_with_the_acknowledgment_of_the_last_reply() {
    let config = Config {
        idle_timeout: Duration::from_secs(10),
        ..config()
    };
    let mut bench = Bench::with(config, 32);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/nothing");
    // The reply is lost for longer than the idle time.
    bench.pass(Duration::from_secs(20));
    assert!(peer.take(&mut bench) && !peer.finished);
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    bench.pass(Duration::from_millis(9_999));
    peer.take(&mut bench);
    assert!(!peer.finished);
    bench.pass(Duration::from_millis(1));
    peer.take(&mut bench);
    assert!(peer.finished);
    assert_eq!(bench.conductor.counters().http_idle_close_count, 1);
}

#[test]
fn a_client_that_takes_nothing_is_reset() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.window = 0;
    peer.get(&mut bench, "/object");
    for _ in 0..59 {
        bench.pass(Duration::from_secs(1));
        peer.drain(&mut bench);
        assert!(!peer.reset, "it answers the probes of its window");
    }
    bench.pass(Duration::from_secs(2));
    peer.take(&mut bench);
    assert!(peer.reset);
    assert_eq!(bench.conductor.counters().http_stall_count, 1);
    bench.assert_quiet();
}

/// A client that answers each of our FINs by a shut window and never acknowledges it: the
/// connection ends, whatever it answers. If it acknowledges no data either, it is reset.
#[test]
fn an_unacknowledged_fin_times_out() {
    for (acknowledges_data, seconds) in [(true, 100), (false, 60)] {
        let mut bench = Bench::new();
        let mut peer = Peer::connect(&mut bench, 1000);
        peer.ask(
            &mut bench,
            "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        );
        let first = peer.expected;
        peer.window = 0;
        for second in 0..seconds + 2 {
            let is_open = bench.conductor.connection_count() == 1;
            assert!(is_open || second >= seconds, "{second} of {seconds}");
            if peer.take(&mut bench) {
                if !acknowledges_data {
                    peer.expected = first;
                } else if peer.finished {
                    peer.finished = false;
                    peer.expected = peer.expected.wrapping_add(u32::MAX);
                }
                peer.send(&mut bench, TcpFlags::ACK, b"");
                bench.turn();
            }
            bench.pass(Duration::from_secs(1));
        }
        bench.assert_quiet();
        let counters = bench.conductor.counters();
        let expected = if acknowledges_data { (1, 0) } else { (0, 1) };
        let ended = (counters.tcp_timeout_count, counters.http_stall_count);
        assert_eq!(ended, expected);
    }
}

#[test]
fn a_client_that_reads_again_in_time_gets_the_rest() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.window = 0;
    peer.get(&mut bench, "/object");
    for _ in 0..50 {
        bench.pass(Duration::from_secs(1));
        peer.drain(&mut bench);
    }
    peer.window = u16::MAX;
    peer.send(&mut bench, TcpFlags::ACK, b"");
    bench.turn();
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
}

#[test]
fn a_client_that_vanished_times_out() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    for _ in 0..120 {
        bench.complete_reads();
        bench.pass(Duration::from_secs(1));
    }
    bench.assert_quiet();
}

#[test]
fn one_more_than_the_table_holds_is_refused_at_once() {
    let mut bench = Bench::new();
    let mut peers: Vec<Peer> = (1000..1004)
        .map(|port| Peer::connect(&mut bench, port))
        .collect();
    assert!(peers.iter().all(|peer| !peer.reset));
    assert!(Peer::connect(&mut bench, 1004).reset);
    assert_eq!(bench.conductor.counters().tcp_overflow_count, 1);
    peers[0].close(&mut bench);
    assert!(
        !Peer::connect(&mut bench, 1005).reset,
        "a place is free again"
    );
}

#[test]
fn shutting_down_finishes_replies_and_refuses_the_rest() {
    let mut bench = Bench::new();
    let mut busy = Peer::connect(&mut bench, 1000);
    let mut idle = Peer::connect(&mut bench, 1001);
    busy.get(&mut bench, "/object");
    bench.conductor.shut_down(bench.now);
    bench.turn();
    assert!(Peer::connect(&mut bench, 1002).reset);
    idle.drain(&mut bench);
    assert!(idle.finished);
    assert!(!bench.conductor.is_finished(), "a reply is under way");
    busy.drain(&mut bench);
    assert_eq!(busy.head_and_rest().1.len() as u64, OBJECT_BYTES);
    assert!(busy.finished);
    assert!(bench.conductor.is_finished(), "nobody need close for that");
    busy.close(&mut bench);
    idle.close(&mut bench);
    bench.assert_quiet();
}

#[test]
fn who_has_everything_is_not_reset_at_the_end() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    bench.conductor.shut_down(bench.now);
    bench.turn();
    peer.drain(&mut bench);
    assert!(peer.finished && bench.conductor.connection_count() == 1);
    bench.conductor.abort_all();
    bench.turn();
    peer.take(&mut bench);
    assert!(!peer.reset, "it may still read what has come");
}

#[test]
fn remaining_connections_can_be_reset() {
    let mut bench = Bench::with(
        Config {
            connections_max: 2,
            ..config()
        },
        4,
    );
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.conductor.abort_all();
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
    bench.complete_reads();
    bench.assert_quiet();
}

#[test]
fn more_resets_than_the_outbox_holds_are_all_sent() {
    let connections_max = 2 * crate::outbox::FRAMES_MAX + 1;
    let mut bench = Bench::with(
        Config {
            connections_max,
            ..config()
        },
        4,
    );
    let ports = 1000..1000 + u16::try_from(connections_max).unwrap();
    let mut peers: Vec<Peer> = ports.map(|port| Peer::connect(&mut bench, port)).collect();
    bench.conductor.abort_all();
    bench.turn();
    for peer in &mut peers {
        peer.take(&mut bench);
        assert!(peer.reset, "port {}", peer.port);
    }
    bench.assert_quiet();
}

#[test]
fn a_reused_four_tuple_starts_beyond_its_old_sequence_numbers() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(
        &mut bench,
        "GET /object HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    peer.drain(&mut bench);
    assert!(peer.finished);
    peer.close(&mut bench);
    bench.assert_quiet();
    Peer::send_syn(&mut bench, 1000, peer.next.wrapping_add(1));
    let replies = bench.take_segments(1000);
    let syn_ack = &replies.last().expect("a SYN-ACK").0;
    assert!(syn_ack.flags.contains(TcpFlags::SYN));
    assert!(
        syn_ack.sequence.distance(peer.expected) > 0,
        "or late segments of the old connection could be taken for the new one's"
    );
}
