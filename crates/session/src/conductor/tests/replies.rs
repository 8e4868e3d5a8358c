//! Requests answered: whole objects, errors, pipelines, ranges.

use wire::TcpFlags;

use super::{Bench, OBJECT_BYTES, Peer, assert_is_object, config};
use crate::{Config, LookupError};

#[test]
fn an_object_arrives_whole_and_everything_is_given_back() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    let (head, body) = peer.head_and_rest();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(body.len() as u64, OBJECT_BYTES);
    assert_is_object(body, 0);
    assert_eq!(bench.released(), 1);
    peer.close(&mut bench);
    assert!(peer.finished);
    bench.assert_quiet();
    assert_eq!(bench.conductor.counters().tcp_finished_count, 1);
}

#[test]
fn without_segmentation_no_frame_exceeds_the_mtu() {
    let plain = Config {
        segmentation_bytes_max: 0,
        checksum_offload: false,
        ..config()
    };
    let mut bench = Bench::with(plain, 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let segments = bench.take_segments(1000);
    assert!(
        segments.len() >= 10,
        "an initial window of packets, got {}",
        segments.len()
    );
    assert!(segments.iter().all(|(_, payload)| payload.len() <= 1460));
}

#[test]
fn the_first_flight_is_the_initial_window() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    bench.complete_reads();
    let bytes: usize = bench
        .take_segments(1000)
        .iter()
        .map(|(_, text)| text.len())
        .sum();
    assert!(
        (13_000..=14_600).contains(&bytes),
        "ten segments of 1460, got {bytes}"
    );
}

#[test]
fn what_does_not_exist_is_said_and_the_connection_goes_on() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/nothing");
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 404 "));
    peer.received.clear();
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 200 "));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let range = |range: &str| format!("GET /object HTTP/1.1\r\nHost: a\r\nRange: {range}\r\n\r\n");
    // More than the queue of replies holds at once.
    let asked: Vec<u64> = (0..20).map(|place| place * 1000).collect();
    let all: String = asked
        .iter()
        .map(|at| range(&format!("bytes={at}-{}", at + 9)))
        .collect();
    peer.ask(&mut bench, &all);
    peer.drain(&mut bench);
    for at in asked {
        let (head, rest) = peer.head_and_rest();
        assert!(head.contains(&format!("bytes {at}-{}/", at + 9)), "{head}");
        assert_is_object(&rest[..10], at);
        peer.received = rest[10..].to_vec();
    }
    assert!(peer.received.is_empty());
    assert_eq!(bench.released(), 20);
}

#[test]
fn a_request_in_pieces_is_one_request() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    for byte in "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=5-8\r\n\r\n".chars() {
        peer.ask(&mut bench, &byte.to_string());
    }
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 5);
    assert_eq!(bench.conductor.counters().http_request_count, 1);
}

#[test]
fn a_client_that_closed_its_side_gets_its_reply() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let flags = TcpFlags::ACK.union(TcpFlags::FIN);
    peer.send(
        &mut bench,
        flags,
        b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    bench.turn();
    peer.drain(&mut bench);
    assert_eq!(peer.head_and_rest().1.len() as u64, OBJECT_BYTES);
    assert!(peer.finished);
    bench.assert_quiet();
}

#[test]
fn a_late_answer_of_the_store_is_an_answer() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let request = b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
    peer.send(&mut bench, TcpFlags::ACK, request);
    let plan = bench.conductor.poll_lookup().unwrap();
    assert_eq!(plan.path, "/object");
    bench.turn();
    bench.answer(&plan, Some(LookupError::Busy));
    bench.turn();
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 503 "));
}

#[test]
fn an_answer_for_a_client_that_left_is_released() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.send(
        &mut bench,
        TcpFlags::ACK,
        b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let plan = bench.conductor.poll_lookup().unwrap();
    peer.send(&mut bench, TcpFlags::RST, b"");
    bench.answer(&plan, None);
    assert_eq!(bench.released(), 1);
    bench.assert_quiet();
}

#[test]
fn a_bad_head_is_refused_and_the_connection_closed() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, "BREW / HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 501 "));
    let mut peer = Peer::connect(&mut bench, 1001);
    peer.ask(
        &mut bench,
        &format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9000)),
    );
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 431 "));
    assert!(peer.finished);
}

#[test]
fn a_client_that_closed_its_side_gets_all_replies_it_asked_for() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let request = "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(11);
    let flags = TcpFlags::ACK.union(TcpFlags::FIN);
    peer.send(&mut bench, flags, request.as_bytes());
    bench.turn();
    peer.drain(&mut bench);
    let text = String::from_utf8(std::mem::take(&mut peer.received)).unwrap();
    assert_eq!(text.matches("HTTP/1.1 404 ").count(), 11);
    assert!(peer.finished);
    bench.assert_quiet();
}
