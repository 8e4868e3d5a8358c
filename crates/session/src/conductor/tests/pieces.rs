//! Input in small pieces: work is counted, no time.

use record::{ContentType, Version};
use wire::TcpFlags;

use super::tls::{TlsPeer, tls_config};
use super::{Bench, Peer, assert_is_object};

/// A head of so many bytes, most of them in one field.
fn long_head(bytes: usize) -> String {
    let start = "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes=5-8\r\nCookie: ";
    let rest = bytes - start.len() - 4;
    format!("{start}{}\r\n\r\n", "c".repeat(rest))
}

#[test]
fn a_head_that_arrives_byte_by_byte_is_parsed_a_few_times_only() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let head = long_head(8000);
    for byte in head.as_bytes() {
        peer.send(&mut bench, TcpFlags::ACK, &[*byte]);
    }
    bench.turn();
    peer.drain(&mut bench);
    assert_is_object(peer.head_and_rest().1, 5);
    // Byte by byte it would be looked at 8,000 times: 32 MB.
    let counters = bench.conductor.counters();
    assert!(
        counters.http_parse_count <= 20,
        "{}",
        counters.http_parse_count
    );
    assert!(
        counters.http_parse_bytes <= 40_000,
        "{}",
        counters.http_parse_bytes
    );
}

#[test]
fn a_head_of_many_lines_is_parsed_once_a_line() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    let lines = "X: y\r\n".repeat(http::HEADERS_MAX - 1);
    let head = format!("GET /object HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    for byte in head.as_bytes() {
        peer.send(&mut bench, TcpFlags::ACK, &[*byte]);
    }
    let counters = bench.conductor.counters();
    assert_eq!(counters.http_request_count, 1);
    let most = http::HEADERS_MAX as u64 + 2 + 6;
    assert!(
        counters.http_parse_count <= most,
        "{}",
        counters.http_parse_count
    );
}

#[test]
fn frames_without_text_parse_no_head() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.get(&mut bench, "/object");
    let before = bench.conductor.counters().http_parse_count;
    peer.drain(&mut bench);
    for _ in 0..10 {
        peer.send(&mut bench, TcpFlags::ACK, b"");
    }
    assert_eq!(bench.conductor.counters().http_parse_count, before);
    // A part of one is not looked at again either.
    peer.ask(&mut bench, "GET /ob");
    peer.send(&mut bench, TcpFlags::ACK, b"");
    assert_eq!(bench.conductor.counters().http_parse_count, before + 1);
}

#[test]
fn an_error_in_a_line_is_found_before_the_line_ends() {
    let mut bench = Bench::new();
    let mut peer = Peer::connect(&mut bench, 1000);
    for byte in "GET  /object".as_bytes() {
        peer.ask(&mut bench, core::str::from_utf8(&[*byte]).unwrap());
    }
    peer.drain(&mut bench);
    assert!(peer.head_and_rest().0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn many_tiny_records_are_taken_without_moving_the_rest() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let request = b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut sent = 0;
    for _ in 0..10 {
        client.text.clear();
        // As many records as the window takes: of nothing, then of a byte each.
        let mut records = Vec::new();
        for _ in 0..600 {
            records.extend(client.seal(ContentType::ApplicationData, b""));
        }
        for byte in request {
            records.extend(client.seal(ContentType::ApplicationData, &[*byte]));
        }
        sent += records.len();
        // In packets that cut the records anywhere.
        for packet in records.chunks(1000) {
            client.peer.send(&mut bench, TcpFlags::ACK, packet);
        }
        bench.turn();
        client.drain(&mut bench);
        client.assert_has_object();
    }
    let moved = bench.conductor.moved_input_bytes(0);
    assert!(moved <= sent, "{moved} bytes moved of {sent}");
    assert_eq!(bench.conductor.counters().http_request_count, 10);
}
