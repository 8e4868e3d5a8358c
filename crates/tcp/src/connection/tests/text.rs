//! Seventh check: the segment's text, in each state and on both sides of the window's edges.

use super::Sent::Ack;
use super::{Driver, RECEIVE_WINDOW, ack};
use crate::connection::State;
use crate::verdict::SegmentDrop;

const WINDOW: i32 = RECEIVE_WINDOW as i32;

/// SEG.SEQ less RCV.NXT, bytes of text; then what the session gets, and whether an ACK must leave
/// at once.
type Row = (i32, usize, core::ops::Range<usize>, bool);

#[test]
fn text_is_taken_in_order_and_trimmed_to_what_is_new() {
    let rows: [Row; 9] = [
        (0, 1, 0..1, false),
        (0, 1000, 0..1000, false),
        (0, 4000, 0..4000, true),
        (0, 4001, 0..4000, true),
        (-10, 30, 10..30, false),
        (-10, 11, 10..11, false),
        (-10, 4010, 10..4010, true),
        (1, 30, 0..0, true),
        (WINDOW - 1, 30, 0..0, true),
    ];
    for (shift, bytes, text, at_once) in rows {
        let mut driver = Driver::new();
        let before = driver.connection.receive.nxt;
        let arrival = driver.receive(ack(0).at(shift).text(bytes));
        assert_eq!(arrival.drop, None, "{shift} {bytes}");
        assert_eq!(arrival.text, text, "{shift} {bytes}");
        assert!(!arrival.peer_finished && !arrival.acknowledged);
        let moved = driver.connection.receive.nxt.distance(before);
        assert_eq!(usize::try_from(moved), Ok(text.len()), "{shift} {bytes}");
        let expected: &[_] = if at_once { &[Ack] } else { &[] };
        assert_eq!(driver.flush(), expected, "{shift} {bytes}");
    }
}

#[test]
fn text_outside_the_window_is_answered_each_time() {
    // The last: by RFC 9293 s3.4's table it touches the window nowhere, though it spans it.
    for (shift, bytes) in [(-10, 10), (-10, 1), (WINDOW, 1), (WINDOW, 500), (-10, 4011)] {
        let mut driver = Driver::new();
        for _ in 0..3 {
            let segment = ack(0).at(shift).text(bytes);
            driver.expect_drop(segment, SegmentDrop::OutOfWindow);
            assert_eq!(driver.flush(), [Ack], "{shift} {bytes}");
        }
    }
}

#[test]
fn text_without_ack_is_dropped_silently() {
    let mut driver = Driver::new();
    driver.expect_drop(ack(0).without_ack().text(10), SegmentDrop::NoAck);
    assert_eq!(driver.flush(), []);
}

#[test]
fn text_with_an_old_ack_is_taken() {
    let mut driver = Driver::sending(super::PEER, 3000);
    driver.accept(ack(3000));
    let arrival = driver.receive(ack(1000).text(20));
    assert_eq!((arrival.text, arrival.acknowledged), (0..20, false));
}

#[test]
fn text_may_acknowledge() {
    let mut driver = Driver::sending(super::PEER, 3000);
    let arrival = driver.receive(ack(3000).text(20));
    assert_eq!((arrival.text, arrival.acknowledged), (0..20, true));
}

#[test]
fn the_window_closes_with_text_and_opens_by_the_session() {
    let mut driver = Driver::new();
    let arrival = driver.receive(ack(0).text(4000));
    assert_eq!(arrival.text, 0..4000);
    driver.expect_drop(ack(0).text(1), SegmentDrop::OutOfWindow);
    assert_eq!(driver.flush(), [Ack]);
    assert_eq!(driver.last_header().window, 0);
    driver.connection.set_receive_window(1023);
    assert_eq!(driver.flush(), [], "not worth a segment");
    driver.connection.set_receive_window(1024);
    assert_eq!(driver.flush(), [Ack]);
    assert_eq!(driver.last_header().window, 1024);
    assert_eq!(driver.receive(ack(0).text(1025)).text, 0..1024);
}

/// How to come to a state, and whether text is taken there.
type Road = (fn(&mut Driver), State, bool);

/// Text after the peer's FIN cannot be: RFC 9293 s3.10.7.4 has it ignored.
#[test]
fn text_counts_only_before_the_peers_fin() {
    let reach: [Road; 5] = [
        (|_| {}, State::Established, true),
        (
            |driver| driver.accept(ack(0).fin()),
            State::CloseWait,
            false,
        ),
        (
            |driver| {
                driver.connection.finish();
                let _ = driver.flush();
            },
            State::FinWait1,
            true,
        ),
        (
            |driver| {
                driver.connection.finish();
                let _ = driver.flush();
                driver.accept(ack(0).fin());
            },
            State::Closing,
            false,
        ),
        (
            |driver| {
                driver.accept(ack(0).fin());
                driver.connection.finish();
                let _ = driver.flush();
            },
            State::LastAck,
            false,
        ),
    ];
    for (reach, state, taken) in reach {
        let mut driver = Driver::new();
        reach(&mut driver);
        let _ = driver.flush();
        assert_eq!(driver.connection.state(), state);
        let before = driver.connection.receive.nxt;
        let arrival = driver.receive(ack(0).text(10));
        assert_eq!(!arrival.text.is_empty(), taken, "{state:?}");
        let moved = driver.connection.receive.nxt != before;
        assert_eq!(moved, taken, "{state:?}");
        let expected: &[_] = if taken { &[] } else { &[Ack] };
        assert_eq!(driver.flush(), expected, "{state:?}");
    }
}

#[test]
fn text_is_taken_while_we_wait_for_the_peers_fin() {
    let mut driver = Driver::new();
    driver.connection.finish();
    let _ = driver.flush();
    let arrival = driver.receive(ack(1).text(10));
    assert_eq!((arrival.text, arrival.acknowledged), (0..10, true));
    assert_eq!(driver.connection.state(), State::FinWait2(driver.now));
    assert_eq!(driver.receive(ack(1).text(10)).text, 0..10);
}
