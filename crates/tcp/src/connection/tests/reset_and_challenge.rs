//! Resets, SYNs and other blind attacks (RFC 5961), and the limit on answers to them.

use wire::{Ecn, TcpFlags, Timestamps};

use super::Sent::Ack;
use super::{Driver, PEER, Peer, RECEIVE_WINDOW, ack, millis};
use crate::connection::State;
use crate::connection::timers::CHALLENGE_INTERVAL;
use crate::verdict::{CloseReason, Outcome, SegmentDrop};

const WINDOW: i32 = RECEIVE_WINDOW as i32;
const STAMPING: Peer = Peer {
    timestamps: true,
    ..PEER
};

/// RFC 5961 s3.2: exactly RCV.NXT, elsewhere in the window, outside.
#[test]
fn only_an_exact_reset_counts() {
    let rows = [
        (0, None, false),
        (1, Some(SegmentDrop::InexactReset), true),
        (WINDOW - 1, Some(SegmentDrop::InexactReset), true),
        (WINDOW, Some(SegmentDrop::OutOfWindow), false),
        (-1, Some(SegmentDrop::OutOfWindow), false),
    ];
    for flags in [TcpFlags::RST, TcpFlags::RST.union(TcpFlags::ACK)] {
        for (shift, drop, challenged) in rows {
            let mut driver = Driver::new();
            let mut segment = ack(0).at(shift);
            segment.flags = flags;
            let arrival = driver.receive(segment);
            assert_eq!(arrival.drop, drop, "{shift}");
            let outcome = if drop.is_none() {
                Outcome::Closed(CloseReason::Reset)
            } else {
                Outcome::Open
            };
            assert_eq!(arrival.outcome, outcome, "{shift}");
            let expected: &[_] = if challenged { &[Ack] } else { &[] };
            assert_eq!(driver.flush(), expected, "{shift}");
        }
    }
}

#[test]
fn a_reset_needs_no_timestamp() {
    let mut driver = Driver::with(STAMPING);
    let mut reset = driver.repr(ack(0).with(TcpFlags::RST));
    reset.options.timestamps = None;
    let arrival = driver.receive_repr(&reset, 0);
    assert_eq!(arrival.outcome, Outcome::Closed(CloseReason::Reset));
}

/// RFC 5961 s4.2: "irrespective of the sequence number".
#[test]
fn a_syn_is_challenged_wherever_it_lies() {
    for (shift, drop) in [
        (0, SegmentDrop::UnexpectedSyn),
        (WINDOW - 1, SegmentDrop::UnexpectedSyn),
        (WINDOW, SegmentDrop::OutOfWindow),
        (-1000, SegmentDrop::OutOfWindow),
    ] {
        for flags in [TcpFlags::SYN, TcpFlags::SYN.union(TcpFlags::ACK)] {
            let mut driver = Driver::new();
            let mut segment = ack(0).at(shift);
            segment.flags = flags;
            driver.expect_drop(segment, drop);
            assert_eq!(driver.flush(), [Ack], "{shift}");
            assert_eq!(driver.connection.state(), State::Established);
        }
    }
}

#[test]
fn challenges_are_limited_in_rate_whatever_provokes_them() {
    let inexact_reset = ack(0).at(1).with(TcpFlags::RST);
    let syn = ack(0).with(TcpFlags::SYN);
    let bad_ack = ack(1);
    let old = ack(0).at(-1);
    for first in [inexact_reset, syn, bad_ack, old] {
        for second in [inexact_reset, syn, bad_ack, old] {
            let mut driver = Driver::new();
            assert!(driver.receive(first).drop.is_some());
            assert_eq!(driver.flush(), [Ack]);
            let again = driver.now + CHALLENGE_INTERVAL;
            assert!(driver.receive(second).drop.is_some());
            assert_eq!(driver.flush(), []);
            driver.at(super::just_before(again));
            assert!(driver.receive(second).drop.is_some());
            assert_eq!(driver.flush(), [], "too soon");
            assert!(driver.at(again).receive(second).drop.is_some());
            assert_eq!(driver.flush(), [Ack]);
        }
    }
}

/// The connection asks, the host's limit decides: what it refuses does not count.
#[test]
fn a_challenge_that_the_host_does_not_permit_is_asked_for_again() {
    let mut driver = Driver::new();
    let reset = driver.repr(ack(0).at(1).with(TcpFlags::RST));
    let asks = |driver: &mut Driver| {
        let (now, connection) = (driver.now, &mut driver.connection);
        connection
            .handle_segment(now, &reset, Ecn::NotEct, 0)
            .challenge
    };
    assert!(asks(&mut driver) && asks(&mut driver));
    assert_eq!(driver.flush(), []);
    driver.connection.send_challenge(driver.now);
    assert_eq!(driver.flush(), [Ack]);
    assert!(!asks(&mut driver), "one in half a second");
}

/// A SYN may come with text and a FIN, and is no retransmission of them.
#[test]
fn a_syn_with_text_outside_the_window_is_limited_as_a_challenge() {
    let mut driver = Driver::new();
    let text = ack(0).at(-1000).text(100);
    for segment in [text.with(TcpFlags::SYN), text.with(TcpFlags::SYN).fin()] {
        driver.pass(CHALLENGE_INTERVAL);
        driver.expect_drop(segment, SegmentDrop::OutOfWindow);
        assert_eq!(driver.flush(), [Ack]);
        driver.expect_drop(segment, SegmentDrop::OutOfWindow);
        assert_eq!(driver.flush(), []);
    }
    driver.expect_drop(text, SegmentDrop::OutOfWindow);
    driver.expect_drop(text, SegmentDrop::OutOfWindow);
    assert_eq!(
        driver.flush(),
        [Ack],
        "retransmitted text is always answered"
    );
}

/// RFC 7323 s5.3 R1.
#[test]
fn a_stale_timestamp_is_answered_and_goes_no_further() {
    let mut driver = Driver::with(STAMPING);
    driver.pass(millis(100)).accept(ack(0));
    let fresh = driver.repr(ack(0).text(10));
    let stamp = fresh.options.timestamps.unwrap();
    for (value, drop) in [
        (stamp.value - 1, Some(SegmentDrop::StaleTimestamp)),
        (stamp.value, None),
        (stamp.value + 1, None),
    ] {
        let mut segment = driver.repr(ack(0).text(10));
        segment.options.timestamps = Some(Timestamps { value, ..stamp });
        let arrival = driver.receive_repr(&segment, 10);
        assert_eq!(arrival.drop, drop, "{value}");
        assert_eq!(arrival.text.is_empty(), drop.is_some(), "{value}");
        if drop.is_some() {
            assert_eq!(driver.flush(), [Ack]);
        }
    }
}

/// RFC 7323 s4.3, RFC 5961: TS.Recent follows only what passed every check. Else one segment that
/// guesses a sequence number in the window, and no more, would make each true one look stale.
#[test]
fn a_forged_segment_does_not_poison_ts_recent() {
    let rows = [
        (
            ack(0).with(TcpFlags::SYN).without_ack(),
            SegmentDrop::UnexpectedSyn,
        ),
        (ack(0).with(TcpFlags::SYN), SegmentDrop::UnexpectedSyn),
        (ack(0).without_ack(), SegmentDrop::NoAck),
        (ack(2_000_000_000), SegmentDrop::UnacceptableAck),
        (
            ack(10_001).at(-1400).text(1401),
            SegmentDrop::UnacceptableAck,
        ),
        (ack(0).at(-1), SegmentDrop::OutOfWindow),
    ];
    for (segment, drop) in rows {
        let mut driver = Driver::sending(STAMPING, 10_000);
        driver.pass(millis(100));
        let mut forged = driver.repr(segment);
        let stamp = forged.options.timestamps.unwrap();
        forged.options.timestamps = Some(Timestamps {
            value: stamp.value + (1 << 30),
            ..stamp
        });
        let arrival = driver.receive_repr(&forged, segment.payload_bytes);
        assert_eq!(arrival.drop, Some(drop));
        driver.pass(millis(10)).accept(ack(10_000));
    }
    // What passes is remembered.
    let mut driver = Driver::sending(STAMPING, 10_000);
    driver.pass(millis(100)).accept(ack(1000));
    let mut older = driver.repr(ack(2000));
    let stamp = older.options.timestamps.unwrap();
    older.options.timestamps = Some(Timestamps {
        value: stamp.value - 1,
        ..stamp
    });
    let arrival = driver.receive_repr(&older, 0);
    assert_eq!(arrival.drop, Some(SegmentDrop::StaleTimestamp));
}

/// RFC 7323 s3.2 says SHOULD, and middleboxes remove the option.
#[test]
fn a_segment_without_timestamp_is_accepted_and_changes_nothing_for_paws() {
    let mut driver = Driver::sending(STAMPING, 10_000);
    driver.pass(millis(100)).accept(ack(1000));
    let mut segment = driver.repr(ack(2000).text(10));
    let stamp = segment.options.timestamps.take().unwrap();
    let arrival = driver.receive_repr(&segment, 10);
    assert_eq!((arrival.text, arrival.drop), (0..10, None));
    assert!(arrival.acknowledged);
    let mut older = driver.repr(ack(3000));
    older.options.timestamps = Some(Timestamps {
        value: stamp.value - 1,
        ..stamp
    });
    let arrival = driver.receive_repr(&older, 0);
    assert_eq!(arrival.drop, Some(SegmentDrop::StaleTimestamp));
}

#[test]
fn an_unasked_timestamp_does_no_harm() {
    let mut driver = Driver::new();
    let mut segment = driver.repr(ack(0).text(10));
    segment.options.timestamps = Some(Timestamps { value: 9, echo: 9 });
    assert_eq!(driver.receive_repr(&segment, 10).text, 0..10);
    driver.append(10);
    let _ = driver.flush();
    assert_eq!(driver.last_header().options.timestamps, None);
}

/// A client that lost its state knows nothing of timestamps either; the challenge is what lets it
/// reset us (RFC 5961 s4.2).
#[test]
fn a_syn_without_timestamp_or_with_an_old_one_is_challenged() {
    for stamp in [None, Some(Timestamps { value: 1, echo: 0 })] {
        let mut driver = Driver::with(STAMPING);
        driver.accept(ack(0));
        let mut syn = driver.repr(ack(0).with(TcpFlags::SYN).without_ack());
        syn.options.timestamps = stamp;
        assert!(driver.receive_repr(&syn, 0).drop.is_some());
        assert_eq!(driver.flush(), [Ack], "{stamp:?}");
    }
}
