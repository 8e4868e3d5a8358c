//! The path's MTU falls (RFC 1191, RFC 8201).

use super::Sent::{Again, Fin, New};
use super::{Driver, PEER, PEER_WITHOUT_SACK, ack, millis};
use crate::connection::{PATH_REPORT_INTERVAL, SEGMENT_BYTES_MIN};

#[test]
fn packet_too_big_retransmits_the_flight_and_keeps_cwnd() {
    let mut driver = Driver::sending(PEER, 50_000);
    driver.report(800);
    assert_eq!(driver.connection.segment_bytes(), 800);
    assert_eq!(driver.window(), 10_000);
    assert_eq!(driver.flush(), [Again(0, 10_000)]);
    driver.pass(millis(100)).accept(ack(10_000));
    assert_eq!(driver.window(), 20_000);
    assert_eq!(driver.flush(), [New(10_000, 30_000)]);
}

#[test]
fn only_a_smaller_size_counts() {
    for (size, after) in [(1001, 1000), (1000, 1000), (999, 999)] {
        let mut driver = Driver::sending(PEER, 5000);
        driver.report(size);
        assert_eq!(driver.connection.segment_bytes(), after);
        let expected: &[_] = if after < 1000 { &[Again(0, 5000)] } else { &[] };
        assert_eq!(driver.flush(), expected);
    }
}

#[test]
fn packet_too_big_is_rate_limited() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.report(900);
    let _ = driver.flush();
    driver.pass(PATH_REPORT_INTERVAL - millis(1));
    driver.report(899);
    assert_eq!(driver.connection.segment_bytes(), 900);
    driver.pass(millis(1));
    driver.report(898);
    assert_eq!(driver.connection.segment_bytes(), 898);
}

#[test]
fn a_forged_tiny_size_is_not_obeyed() {
    let least = SEGMENT_BYTES_MIN - 12;
    for (size, after) in [(0, least), (least - 1, least), (least + 1, least + 1)] {
        let mut driver = Driver::sending(PEER, 5000);
        driver.report(size);
        assert_eq!(driver.connection.segment_bytes(), after);
    }
}

#[test]
fn fetches_under_way_are_void_and_demanded_again() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.append(2000);
    let fetch = driver.claim();
    driver.report(800);
    assert_eq!(driver.complete(fetch), None);
    assert_eq!(driver.flush(), [Again(0, 5000), New(5000, 7000)]);
}

#[test]
fn a_fin_in_flight_is_retransmitted_too() {
    let mut driver = Driver::new();
    driver.connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    driver.report(800);
    assert_eq!(driver.flush(), [Fin]);
}

#[test]
fn reports_of_the_peer_are_kept() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.pass(millis(100)).accept(ack(0).sack(4300, 5000));
    driver.report(800);
    assert_eq!(driver.flush(), [Again(0, 4300)]);
}

/// RFC 5927 s7.2: larger packets arrived, so the report waits for the timer. On both sides of the
/// largest that arrived.
#[test]
fn packet_too_big_for_a_size_that_arrived_waits_for_the_timer() {
    for (arrived, size, at_once) in [
        (1000, 999, false),
        (1000, 800, false),
        (800, 801, true),
        (800, 800, true),
        (800, 799, false),
    ] {
        let mut driver = Driver::sending(PEER_WITHOUT_SACK, 50_000);
        driver.pass(millis(100)).accept(ack(arrived));
        let _ = driver.flush();
        driver.report(size);
        let is_smaller = driver.connection.segment_bytes() == size;
        assert_eq!(is_smaller, at_once, "{arrived} {size}");
        assert_eq!(driver.flush().is_empty(), !at_once);
        if !at_once {
            let window = driver.window();
            let _ = driver.fire();
            assert_eq!(driver.connection.segment_bytes(), size);
            assert_eq!(driver.window(), window, "it is not blamed");
            assert!(matches!(driver.flush()[..], [Again(..), ..]));
        }
    }
}

/// A forged report is refuted by the acknowledgment of what it quotes, again and again.
#[test]
fn forged_reports_resend_nothing_while_what_they_quote_arrives() {
    let mut driver = Driver::sending(PEER, 10_000_000);
    driver.pass(millis(100)).accept(ack(10_000));
    let _ = driver.flush();
    for step in 1..=5 {
        driver.report(1000 - step);
        let out = i64::try_from(driver.connection.send.nxt.0).unwrap();
        driver.pass(millis(100)).accept(ack(out));
        let _ = driver.flush();
        driver.pass(PATH_REPORT_INTERVAL);
    }
    assert_eq!(driver.connection.segment_bytes(), 1000);
    assert_eq!(driver.connection.retransmitted_bytes(), 0);
    assert_eq!(driver.connection.waiting_report(), None);
}

/// What was acknowledged is what the report quotes, not what was sent before it.
#[test]
fn only_the_quoted_packet_refutes_a_report() {
    let mut driver = Driver::sending(PEER, 20_000);
    driver.pass(millis(100)).accept(ack(2000));
    driver.report(800);
    for (acknowledged, refuted) in [(2000, false), (2001, true)] {
        driver.accept(ack(acknowledged));
        assert_eq!(driver.connection.waiting_report().is_none(), refuted);
    }
}
