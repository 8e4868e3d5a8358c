//! Delayed acknowledgment (RFC 9293 s3.8.6.3).

use super::Sent::{Ack, New};
use super::{Config, Driver, MSS, RECEIVE_WINDOW, START, ack, just_before, millis};

#[test]
fn a_first_text_waits_for_data_to_travel_with() {
    let mut driver = Driver::new();
    let _ = driver.receive(ack(0).text(100));
    let deadline = START + Config::default().ack_delay;
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.deadline(), deadline);
    let _ = driver.at(just_before(deadline)).expire();
    assert_eq!(driver.flush(), []);
    let _ = driver.at(deadline).expire();
    assert_eq!(driver.flush(), [Ack]);
    assert_eq!(
        driver.last_header().acknowledgment,
        driver.connection.receive.nxt
    );
}

#[test]
fn a_second_text_is_acknowledged_at_once() {
    let mut driver = Driver::new();
    let _ = driver.receive(ack(0).text(100));
    let _ = driver.receive(ack(0).text(100));
    assert_eq!(driver.flush(), [Ack]);
    let _ = driver.receive(ack(0).text(100));
    assert_eq!(driver.flush(), [], "counting begins anew");
}

/// The kernel merges segments into one frame (GRO). Each second segment has an ACK all the same.
#[test]
fn text_of_more_than_a_segment_in_one_frame_is_acknowledged_at_once() {
    for (bytes, sent) in [
        (MSS, vec![]),
        (MSS + 1, vec![Ack]),
        (2 * MSS, vec![Ack]),
        (RECEIVE_WINDOW.into(), vec![Ack]),
    ] {
        let mut driver = Driver::new();
        let bytes = usize::try_from(bytes).unwrap();
        let arrival = driver.receive(ack(0).text(bytes));
        assert_eq!(arrival.text, 0..bytes);
        assert_eq!(driver.flush(), sent, "{bytes}");
    }
}

#[test]
fn data_carries_the_ack() {
    let mut driver = Driver::new();
    let _ = driver.receive(ack(0).text(100));
    driver.append(10);
    assert_eq!(driver.flush(), [New(0, 10)]);
    assert_eq!(
        driver.last_header().acknowledgment,
        driver.connection.receive.nxt
    );
    let _ = driver.pass(millis(40)).expire();
    assert_eq!(driver.flush(), []);
}

#[test]
fn a_pure_ack_is_not_acknowledged() {
    let mut driver = Driver::new();
    driver.accept(ack(0));
    assert_eq!(driver.flush(), []);
    assert!(driver.wait() > millis(500), "no timer for it either");
}
