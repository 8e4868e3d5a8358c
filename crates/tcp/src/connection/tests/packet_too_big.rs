//! The path's MTU falls (RFC 1191, RFC 8201).

use super::Sent::{Again, Fin, New};
use super::{Driver, PEER, ack, millis};
use crate::connection::{PATH_REPORT_INTERVAL, SEGMENT_BYTES_MIN};

#[test]
fn what_is_in_flight_goes_again_and_the_window_is_not_blamed() {
    let mut driver = Driver::sending(PEER, 50_000);
    driver.connection.on_packet_too_big(driver.now, 800);
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
        driver.connection.on_packet_too_big(driver.now, size);
        assert_eq!(driver.connection.segment_bytes(), after);
        let expected: &[_] = if after < 1000 { &[Again(0, 5000)] } else { &[] };
        assert_eq!(driver.flush(), expected);
    }
}

#[test]
fn another_report_is_believed_only_after_a_while() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.connection.on_packet_too_big(driver.now, 900);
    let _ = driver.flush();
    driver.pass(PATH_REPORT_INTERVAL - millis(1));
    driver.connection.on_packet_too_big(driver.now, 899);
    assert_eq!(driver.connection.segment_bytes(), 900);
    driver.pass(millis(1));
    driver.connection.on_packet_too_big(driver.now, 898);
    assert_eq!(driver.connection.segment_bytes(), 898);
}

#[test]
fn a_forged_tiny_size_is_not_obeyed() {
    let least = SEGMENT_BYTES_MIN - 12;
    for (size, after) in [(0, least), (least - 1, least), (least + 1, least + 1)] {
        let mut driver = Driver::sending(PEER, 5000);
        driver.connection.on_packet_too_big(driver.now, size);
        assert_eq!(driver.connection.segment_bytes(), after);
    }
}

#[test]
fn fetches_under_way_are_void_and_demanded_again() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.append(2000);
    let fetch = driver.claim();
    driver.connection.on_packet_too_big(driver.now, 800);
    assert_eq!(driver.complete(fetch), None);
    assert_eq!(driver.flush(), [Again(0, 5000), New(5000, 7000)]);
}

#[test]
fn a_fin_in_flight_goes_again_too() {
    let mut driver = Driver::new();
    driver.connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    driver.connection.on_packet_too_big(driver.now, 800);
    assert_eq!(driver.flush(), [Fin]);
}

#[test]
fn reports_of_the_peer_are_kept() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.pass(millis(100)).accept(ack(0).sack(4000, 5000));
    driver.connection.on_packet_too_big(driver.now, 800);
    assert_eq!(driver.flush(), [Again(0, 4000)]);
}
