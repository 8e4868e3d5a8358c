//! Losses with peers that do not speak SACK: RFC 6582.

use super::Sent::{Again, New};
use super::{Config, Driver, PEER_WITHOUT_SACK, Peer, STAMPING_WITHOUT_SACK, ack, millis};
use crate::congestion::{CongestionControl, Controller as _};
use crate::recovery::RecoveryState;

fn sending() -> Driver {
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 100_000);
    driver.pass(millis(100));
    driver
}

fn unpaced(congestion: CongestionControl) -> Driver {
    let config = Config {
        is_paced: false,
        congestion,
        ..Config::default()
    };
    let mut driver = Driver::configured(PEER_WITHOUT_SACK, config);
    driver.append(100_000);
    driver.flush();
    driver.pass(millis(100));
    driver
}

fn duplicates(driver: &mut Driver, offset: i64, count: usize) {
    for _ in 0..count {
        driver.accept(ack(offset));
    }
}

#[test]
fn two_duplicates_are_reordering() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 2);
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
}

/// RFC 3042: a segment of new data for each of the first two, and no more.
#[test]
fn the_first_two_duplicates_each_let_a_new_segment_leave() {
    let mut driver = sending();
    for (count, sent) in [(1, New(10_000, 11_000)), (2, New(11_000, 12_000))] {
        duplicates(&mut driver, 0, 1);
        assert_eq!(driver.connection.duplicate_acks, count);
        assert_eq!(driver.flush(), [sent]);
        assert_eq!(driver.window(), 10_000, "cwnd stays");
    }
    duplicates(&mut driver, 0, 1);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    // It was reordering: the window is full again.
    let mut driver = sending();
    duplicates(&mut driver, 0, 2);
    driver.flush();
    driver.connection.congestion.force_threshold(10_000);
    driver.accept(ack(1000));
    assert_eq!(driver.flush(), [], "11 are outstanding");
}

/// The peer's window is a limit, and new data is needed.
#[test]
fn duplicates_let_no_more_leave_than_the_peer_takes_or_is_queued() {
    let small = Peer {
        window: 10_500,
        ..PEER_WITHOUT_SACK
    };
    for (peer, bytes) in [(small, 100_000), (PEER_WITHOUT_SACK, 10_000)] {
        let mut driver = Driver::sending(peer, bytes);
        driver.pass(millis(100));
        duplicates(&mut driver, 0, 2);
        assert_eq!(driver.flush(), []);
    }
}

/// RFC 6582 s3.2, step 2: after a recovery they may answer needless retransmissions.
#[test]
fn duplicates_at_the_end_of_a_recovery_let_nothing_leave() {
    for (acknowledgment, is_limited) in [(10_000, true), (10_001, false)] {
        let mut driver = sending();
        duplicates(&mut driver, 0, 3);
        let _ = driver.flush();
        driver.pass(millis(100)).accept(ack(10_000));
        driver.flush();
        driver.accept(ack(acknowledgment));
        driver.flush();
        duplicates(&mut driver, acknowledgment, 1);
        assert_eq!(driver.flush().is_empty(), is_limited, "{acknowledgment}");
    }
}

#[test]
fn new_data_acknowledged_resets_the_duplicate_count() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 2);
    driver.accept(ack(1000));
    let _ = driver.flush();
    duplicates(&mut driver, 1000, 2);
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
}

/// RFC 5681 s2: what is a duplicate acknowledgment and what only looks like one.
#[test]
fn text_window_and_fin_make_no_duplicate() {
    let rows = [
        ack(0).text(1),
        ack(0).window(59_000),
        ack(0).window(61_000),
        ack(0).fin(),
    ];
    for segment in rows {
        let mut driver = sending();
        duplicates(&mut driver, 0, 2);
        driver.accept(segment);
        assert_eq!(
            driver.connection.recovery,
            RecoveryState::Open,
            "{segment:?}"
        );
    }
    let mut driver = Driver::with(PEER_WITHOUT_SACK);
    duplicates(&mut driver, 0, 5);
    assert_eq!(
        driver.connection.recovery,
        RecoveryState::Open,
        "nothing is out"
    );
}

/// RFC 6582 s3.2, steps 2 and 3.
#[test]
fn three_duplicates_resend_the_oldest_segment() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 3);
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Recovery { .. }
    ));
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    assert_eq!(driver.flush(), []);
}

/// RFC 9937 s5: without SACK each duplicate stands for a segment that arrived.
#[test]
fn duplicates_let_new_data_leave_at_the_reduced_rate() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 3);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    let mut left = Vec::new();
    // Six more, for the rest of the ten. 0.7 * 7 segments are 4.9, the resent one among them.
    for _ in 0..6 {
        duplicates(&mut driver, 0, 1);
        left.extend(driver.flush());
    }
    assert_eq!(
        left,
        [
            New(10_000, 11_000),
            New(11_000, 12_000),
            New(12_000, 13_000)
        ]
    );
}

/// RFC 6582 s3.2, step 3: a partial ACK names the next hole, and the window is lowered once.
#[test]
fn a_partial_ack_resends_the_next_hole() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 3);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(4000));
    assert_eq!(driver.flush()[0], Again(4000, 5000));
    driver.pass(millis(100)).accept(ack(6000));
    assert_eq!(driver.flush()[0], Again(6000, 7000));
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    driver.pass(millis(100)).accept(ack(10_000));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert!((7000..8000).contains(&driver.window()));
}

/// RFC 6582 s3.2, step 3: a round trip for each hole would take long.
#[test]
fn after_the_first_partial_ack_a_timeout_repairs_what_partial_acks_have_not() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 3);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    for acknowledged in [2000, 4000, 6000] {
        driver.pass(millis(100)).accept(ack(acknowledged));
        let sent = driver.flush();
        let start = u64::try_from(acknowledged).unwrap();
        assert_eq!(sent[0], Again(start, start + 1000));
    }
    let timeout = driver.connection.rtt.timeout();
    assert_eq!(timeout, millis(300), "of the first partial ACK");
    driver.pass(millis(99));
    let _ = driver.connection.handle_timeout(driver.now);
    let is_recovering = matches!(driver.connection.recovery, RecoveryState::Recovery { .. });
    assert!(is_recovering);
    driver.pass(millis(1));
    let _ = driver.connection.handle_timeout(driver.now);
    let is_lost = matches!(driver.connection.recovery, RecoveryState::Loss { .. });
    assert!(is_lost);
    assert_eq!(driver.flush(), [Again(6000, 7000)]);
}

/// RFC 6582 s3.2, step 3: cwnd is ssthresh then. The ACK covers a window, which congestion avoidance would
/// take for a round trip. What it covers beyond the recovery counts.
#[test]
fn the_ack_that_ends_a_recovery_does_not_let_the_window_grow() {
    let mut driver = unpaced(CongestionControl::Reno);
    duplicates(&mut driver, 0, 3);
    driver.flush();
    driver.pass(millis(100)).accept(ack(10_000));
    assert_eq!(driver.window(), 5000);
    assert_eq!(driver.flush(), [New(10_000, 15_000)]);
    driver.pass(millis(100)).accept(ack(14_999));
    assert_eq!(driver.window(), 5000);
    driver.flush();
    driver.accept(ack(15_000));
    assert_eq!(driver.window(), 6000, "a window was acknowledged since");
}

#[test]
fn after_a_timeout_every_partial_ack_restarts_the_timer_until_there_is_a_sample() {
    let mut driver = sending();
    driver.connection.rtt.on_timeout();
    duplicates(&mut driver, 0, 3);
    driver.flush();
    for acknowledged in [2000, 4000, 6000] {
        driver.pass(millis(100)).accept(ack(acknowledged));
        driver.flush();
    }
    let deadline = driver.connection.poll_timeout();
    let timeout = driver.connection.rtt.timeout();
    assert_eq!(deadline, Some(driver.now + timeout));
}

/// What lies above the hole arrived before the ACK that covers it.
#[test]
fn an_ack_that_fills_a_hole_gives_bbr_no_rate() {
    let bandwidth_after = |is_repaired: bool| {
        let mut driver = unpaced(CongestionControl::Bbr);
        if is_repaired {
            duplicates(&mut driver, 0, 3);
            assert_eq!(driver.flush(), [Again(0, 1000)]);
            driver.pass(millis(100));
        }
        driver.accept(ack(10_000));
        driver.connection.congestion.bbr().1
    };
    assert_eq!(bandwidth_after(true), 0);
    assert_eq!(bandwidth_after(false), 100_000);
}

/// RFC 6582 s3.2, steps 2 and 3. BBR has no rate reduction, which sees to it elsewhere.
#[test]
fn with_bbr_a_full_window_lets_the_hole_leave_and_no_more() {
    let mut driver = unpaced(CongestionControl::Bbr);
    duplicates(&mut driver, 0, 2);
    driver.connection.congestion.force_window(4000);
    assert_eq!(driver.flush(), []);
    duplicates(&mut driver, 0, 1);
    driver.connection.congestion.force_window(4000);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(3000));
    driver.connection.congestion.force_window(4000);
    assert_eq!(driver.flush(), [Again(3000, 4000)]);
}

/// RFC 6582 s3.2, step 2: after a timeout, duplicates come from what was resent needlessly.
#[test]
fn duplicates_after_a_timeout_resend_nothing() {
    let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 100_000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    duplicates(&mut driver, 1000, 5);
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.connection.flight.lost_bytes(), 7000);
}

/// RFC 6582 s3.2, step 3: the next hole is resent at once, whatever rate reduction has left.
#[test]
fn a_partial_ack_waits_for_no_allowance() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 3);
    let _ = driver.flush();
    for _ in 0..6 {
        duplicates(&mut driver, 0, 1);
        let _ = driver.flush();
    }
    // 4.9 segments may have left, four did; this ACK tells of none that duplicates did not.
    driver.pass(millis(100)).accept(ack(4000));
    assert_eq!(driver.flush(), [Again(4000, 5000)]);
}

/// RFC 6582 s3.2, step 2: what was resent needlessly is answered by duplicates of the last ACK.
/// They name a loss only once more is acknowledged than had left when the timer fired.
#[test]
fn duplicates_at_the_end_of_a_timeout_are_no_loss() {
    for (acknowledgment, is_loss) in [(10_000, false), (10_001, true)] {
        let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 30_000);
        let _ = driver.fire();
        let _ = driver.flush();
        // The originals were merely late: one ACK for all ten, which ends the recovery.
        driver.pass(millis(10)).accept(ack(10_000));
        assert!(!driver.flush().is_empty(), "new data is out");
        driver.pass(millis(100)).accept(ack(acknowledgment));
        duplicates(&mut driver, acknowledgment, 3);
        let is_recovering = matches!(driver.connection.recovery, RecoveryState::Recovery { .. });
        assert_eq!(is_recovering, is_loss, "{acknowledgment}");
    }
}

/// The same after a recovery: its resends may have been needless, too.
#[test]
fn duplicates_at_the_end_of_a_recovery_are_no_loss() {
    for (acknowledgment, is_loss) in [(10_000, false), (10_001, true)] {
        let mut driver = sending();
        duplicates(&mut driver, 0, 3);
        let _ = driver.flush();
        driver.pass(millis(100)).accept(ack(10_000));
        assert_eq!(driver.connection.recovery, RecoveryState::Open);
        assert!(!driver.flush().is_empty(), "new data is out");
        driver.pass(millis(100)).accept(ack(acknowledgment));
        duplicates(&mut driver, acknowledgment, 3);
        let is_recovering = matches!(driver.connection.recovery, RecoveryState::Recovery { .. });
        assert_eq!(is_recovering, is_loss, "{acknowledgment}");
    }
}
