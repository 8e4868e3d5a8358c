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
fn a_missing_object_gets_404_and_the_connection_stays_open() {
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
fn a_short_body_is_thrown_away_and_the_next_request_is_behind_it() {
    let body = "GET /body HTTP/1.1\r\nHost: a\r\n\r\n";
    let first = format!(
        "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=5-8\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let second = "HEAD /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n\r\n";
    let third = "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=9-9\r\n\r\n";
    let all = format!("{first}{second}{third}");
    // However the network cuts it.
    for piece_bytes in [1, 7, 60, all.len()] {
        let mut bench = Bench::new();
        let mut peer = Peer::connect(&mut bench, 1000);
        for piece in all.as_bytes().chunks(piece_bytes) {
            peer.ask(&mut bench, std::str::from_utf8(piece).unwrap());
        }
        peer.drain(&mut bench);
        let (_, rest) = peer.head_and_rest();
        assert_is_object(&rest[..4], 5);
        peer.received = rest[4..].to_vec();
        let (head, rest) = peer.head_and_rest();
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        peer.received = rest.to_vec();
        let (head, rest) = peer.head_and_rest();
        assert!(
            head.starts_with("HTTP/1.1 206 ") && rest.len() == 1,
            "{head}"
        );
        assert_eq!(bench.conductor.counters().http_request_count, 3);
    }
}

#[test]
fn a_body_that_is_long_or_may_be_left_out_ends_the_connection() {
    let next = "GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
    for (fields, status) in [
        ("Content-Length: 16385\r\n", "413"),
        ("Transfer-Encoding: chunked\r\n", "413"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "400"),
        ("Content-Length: 5\r\nExpect: 100-continue\r\n", "404"),
    ] {
        let mut bench = Bench::new();
        let mut peer = Peer::connect(&mut bench, 1000);
        peer.ask(
            &mut bench,
            &format!("GET /nothing HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
        );
        peer.ask(&mut bench, next);
        peer.drain(&mut bench);
        let (head, rest) = peer.head_and_rest();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert!(!rest.windows(5).any(|place| place == b"HTTP/"));
        assert!(peer.finished);
    }
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
fn a_late_lookup_answer_is_used() {
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
        &format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(http::HEAD_BYTES_MAX)),
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

#[test]
fn a_directory_is_answered_with_its_index_or_its_right_name() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    for (path, status, location) in [
        ("/folder/", "200 OK", None),
        ("/folder/?a=b", "200 OK", None),
        ("/folder", "301 Moved Permanently", Some("/folder/")),
        ("/folder?a=b", "301 Moved Permanently", Some("/folder/?a=b")),
        // Its index is a directory itself, whose right name is no better.
        ("/deep/", "404 Not Found", None),
        ("/none/", "404 Not Found", None),
        ("/", "404 Not Found", None),
    ] {
        peer.received.clear();
        peer.get(&mut bench, path);
        peer.drain(&mut bench);
        let (head, _) = peer.head_and_rest();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{path}: {head}"
        );
        let named = head
            .lines()
            .find_map(|line| line.strip_prefix("Location: "));
        assert_eq!(named, location, "{path}");
    }
    assert_eq!(bench.released(), 2);
}

#[test]
fn date_follows_the_wall_clock_and_nothing_else_does() {
    const YEARS: u64 = 20 * 365 * 86_400;
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let mut field = |bench: &mut Bench, name: &str| {
        peer.received.clear();
        peer.ask(bench, "HEAD /object HTTP/1.1\r\nHost: a\r\n\r\n");
        peer.drain(bench);
        let (head, _) = peer.head_and_rest();
        let prefix = format!("{name}: ");
        let value = head.lines().find_map(|line| line.strip_prefix(&prefix));
        value.map(str::to_owned)
    };
    // What it was told at start, until it is told otherwise.
    assert_eq!(
        field(&mut bench, "Date").as_deref(),
        Some("Tue, 14 Nov 2023 22:13:20 GMT")
    );
    let tag = field(&mut bench, "ETag");
    let modified = field(&mut bench, "Last-Modified");
    assert!(tag.is_some() && modified.is_some());
    for (unix_seconds, date) in [
        (1_700_000_001, "Tue, 14 Nov 2023 22:13:21 GMT"),
        (1_700_000_000 + YEARS, "Mon, 09 Nov 2043 22:13:20 GMT"),
        (1_700_000_000, "Tue, 14 Nov 2023 22:13:20 GMT"),
    ] {
        bench.conductor.set_unix_seconds(unix_seconds);
        assert_eq!(field(&mut bench, "Date").as_deref(), Some(date));
        assert_eq!(field(&mut bench, "ETag"), tag);
        assert_eq!(field(&mut bench, "Last-Modified"), modified);
        // Time that passes is another clock's: an idle connection outlives any step.
        bench.pass(clock::Duration::from_secs(10));
    }
    // Set to years before the object was made: its date is not said, its tag is the same.
    bench.conductor.set_unix_seconds(1_600_000_000 - YEARS);
    assert_eq!(
        field(&mut bench, "Date").as_deref(),
        Some("Mon, 18 Sep 2000 12:26:40 GMT")
    );
    assert_eq!(field(&mut bench, "ETag"), tag);
    assert_eq!(field(&mut bench, "Last-Modified"), None);
    bench.pass(clock::Duration::from_secs(10));
    assert!(!peer.reset && !peer.finished);
    assert_eq!(bench.conductor.connection_count(), 1);
}

#[test]
fn a_head_of_the_greatest_length_is_answered() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let target = format!(
        "/object?{}",
        "s".repeat(http::TARGET_BYTES_MAX - "/object?".len())
    );
    let start = format!("GET {target} HTTP/1.1\r\nHost: a\r\nX: ");
    let filling = http::HEAD_BYTES_MAX - start.len() - 4;
    let head = format!("{start}{}\r\n\r\n", "x".repeat(filling));
    for part in head.as_bytes().chunks(1460) {
        peer.send(&mut bench, TcpFlags::ACK, part);
    }
    bench.turn();
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 200 OK\r\n"));
    // One byte more, and then a target one byte longer.
    for (head, status) in [
        (format!("{start}{}\r\n\r\n", "x".repeat(filling + 1)), 431),
        (format!("GET {target}s HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
    ] {
        let mut peer = Peer::connect(&mut bench, 1000 + status);
        for part in head.as_bytes().chunks(1460) {
            peer.send(&mut bench, TcpFlags::ACK, part);
        }
        bench.turn();
        peer.drain(&mut bench);
        let (head, _) = peer.head_and_rest();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
}
