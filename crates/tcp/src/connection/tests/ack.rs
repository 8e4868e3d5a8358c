//! Fifth check: the ACK field, on both sides of each limit, and the window that comes with it.

use super::Sent::{Ack, New};
use super::{Driver, PEER, Peer, ack, millis};
use crate::congestion::Controller as _;
use crate::verdict::SegmentDrop;

/// RFC 5961 s5.2: acceptable are SND.UNA - MAX.SND.WND to SND.NXT.
#[test]
fn acks_from_a_window_back_to_snd_nxt_are_acceptable() {
    // SEG.ACK; whether it is acceptable, and whether it moves SND.UNA.
    let rows = [
        (8000, true, true),
        (8001, false, false),
        (5001, true, true),
        (5000, true, false),
        (4999, true, false),
        (0, true, false),
        (-1, true, false),
        (5000 - 60_000, true, false),
        (5000 - 60_001, false, false),
        (5000 - (1 << 30), false, false),
        (5000 + (1 << 30), false, false),
        ((1 << 31) + 5000, false, false),
    ];
    for (acknowledgment, acceptable, moves) in rows {
        let mut driver = Driver::sending(PEER, 8000);
        driver.accept(ack(5000));
        let arrival = driver.receive(ack(acknowledgment).text(10));
        let drop = (!acceptable).then_some(SegmentDrop::UnacceptableAck);
        assert_eq!(arrival.drop, drop, "{acknowledgment}");
        assert_eq!(arrival.acknowledged, moves, "{acknowledgment}");
        let text = if acceptable { 0..10 } else { 0..0 };
        assert_eq!(arrival.text, text, "{acknowledgment}");
        let expected: &[_] = if acceptable { &[] } else { &[Ack] };
        assert_eq!(driver.flush(), expected, "{acknowledgment}");
        let una = if moves { acknowledgment } else { 5000 };
        assert_eq!(i64::try_from(driver.connection.send.una.0), Ok(una));
    }
}

#[test]
fn before_the_stream_moved_the_same_limits_hold() {
    for (acknowledgment, acceptable) in [(0, true), (-60_000, true), (-60_001, false), (1, false)] {
        let mut driver = Driver::new();
        let drop = driver.receive(ack(acknowledgment)).drop;
        assert_eq!(drop.is_none(), acceptable, "{acknowledgment}");
    }
}

#[test]
fn data_claimed_but_not_sent_cannot_be_acknowledged() {
    let mut driver = Driver::new();
    driver.append(3000);
    let range = driver.claim();
    driver.expect_drop(ack(1), SegmentDrop::UnacceptableAck);
    assert_eq!(driver.complete(range), Some((0, 3000)));
    driver.accept(ack(3000));
}

#[test]
fn an_ack_may_cut_a_segment() {
    let mut driver = Driver::sending(PEER, 8000);
    driver.pass(millis(100)).accept(ack(1));
    assert_eq!(driver.connection.flight.in_flight_bytes(), 7999);
    driver.accept(ack(7999));
    assert_eq!(driver.connection.flight.in_flight_bytes(), 1);
    assert!(!driver.connection.is_idle());
    driver.accept(ack(8000));
    assert!(driver.connection.is_idle());
}

/// RFC 9293 s3.10.7.4: SND.WL1 and SND.WL2 keep old segments from moving the window.
#[test]
fn only_newer_segments_move_the_window() {
    let mut driver = Driver::sending(PEER, 8000);
    driver.accept(ack(4000).text(100).window(50_000));
    assert_eq!(driver.connection.send.window(), 50_000);
    // Text that overlaps what came before: acceptable, but its SEG.SEQ is older.
    assert_eq!(
        driver.receive(ack(4000).at(-101).text(102).window(10)).drop,
        None
    );
    assert_eq!(driver.connection.send.window(), 50_000, "older by SEG.SEQ");
    driver.accept(ack(4000).window(40_000));
    assert_eq!(driver.connection.send.window(), 40_000, "newer by SEG.SEQ");
    driver.accept(ack(3999).window(10));
    assert_eq!(driver.connection.send.window(), 40_000, "older by SEG.ACK");
    driver.accept(ack(4000).window(30_000));
    assert_eq!(driver.connection.send.window(), 30_000, "as new");
    driver.accept(ack(7000).window(20_000));
    assert_eq!(driver.connection.send.window(), 20_000, "newer by SEG.ACK");
    // The same text again, with what was acknowledged since: the right edge must not move by it.
    let again = ack(8000).at(-101).text(102).window(19_000);
    assert_eq!(driver.receive(again).drop, None);
    assert_eq!(
        driver.connection.send.window(),
        19_000,
        "newer by SEG.ACK alone"
    );
}

#[test]
fn refused_segments_move_no_window() {
    let mut driver = Driver::sending(PEER, 8000);
    driver.expect_drop(ack(8001).window(10), SegmentDrop::UnacceptableAck);
    driver.expect_drop(ack(0).at(-1).window(10), SegmentDrop::OutOfWindow);
    driver.expect_drop(ack(0).without_ack().window(10), SegmentDrop::NoAck);
    assert_eq!(driver.connection.send.window(), 60_000);
}

#[test]
fn an_opened_window_lets_data_leave_without_new_acknowledgment() {
    let mut driver = Driver::sending(
        Peer {
            window: 4000,
            ..PEER
        },
        50_000,
    );
    assert_eq!(driver.flush(), []);
    driver.accept(ack(0).window(7000));
    assert_eq!(driver.flush(), [New(4000, 7000)]);
}

/// RFC 9293 s3.8.6: a window that shrinks stops new data; what was sent stays sent.
#[test]
fn a_shrunken_window_stops_new_data_only() {
    let mut driver = Driver::sending(PEER, 50_000);
    driver.pass(millis(100)).accept(ack(2000).window(5000));
    assert_eq!(driver.flush(), [], "10 000 are sent, 7000 admitted");
    driver.accept(ack(5000).window(5000));
    assert_eq!(driver.flush(), [], "10 000 are admitted");
    driver.accept(ack(6000).window(5000));
    assert_eq!(driver.flush(), [New(10_000, 11_000)]);
}

/// RFC 7661: a window that was not in use tells nothing of the path.
#[test]
fn the_congestion_window_grows_only_if_more_than_half_of_it_was_in_use() {
    for (bytes, grown) in [(5000, 10_000), (5001, 15_001)] {
        let mut driver = Driver::sending(PEER, bytes);
        driver
            .pass(millis(100))
            .accept(ack(i64::try_from(bytes).unwrap()));
        assert_eq!(driver.window(), grown, "{bytes}");
    }
}

/// RFC 9438 s5.8: a player that takes little for a minute does not find the window racing ahead.
#[test]
fn time_with_little_to_send_opens_no_window() {
    let mut driver = Driver::new();
    let congestion = &mut driver.connection.congestion;
    congestion.force_window(40_000);
    congestion.on_loss();
    congestion.on_recovered();
    let mut at = 0;
    let mut round = |driver: &mut Driver, bytes: u64| {
        driver.append(bytes);
        let _ = driver.flush();
        driver.pass(millis(100));
        while at < driver.connection.send.nxt.0 {
            at = (at + 2 * super::MSS).min(driver.connection.send.nxt.0);
            driver.accept(ack(i64::try_from(at).unwrap()));
            let _ = driver.flush();
        }
    };
    round(&mut driver, 28_000);
    let before = driver.window();
    for _ in 0..600 {
        round(&mut driver, 1000);
    }
    assert_eq!(driver.window(), before);
    for _ in 0..3 {
        round(&mut driver, 28_000);
    }
    let after = driver.window();
    assert!(before < after && after < before * 6 / 5, "{before} {after}");
}
