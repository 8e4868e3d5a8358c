//! The retransmission timer (RFC 6298), what it voids, and the restart after idleness (RFC 5681).

use clock::Duration;

use super::Sent::{Again, Fin, New};
use super::{
    Config, Driver, MSS, PEER, PEER_WITHOUT_SACK, RTO, STAMPING_WITHOUT_SACK, ack, just_before,
    millis, range,
};
use crate::congestion::Controller as _;
use crate::connection::Claim;
use crate::recovery::RecoveryState;
use crate::rtt::RTO_MAX;
use crate::verdict::{CloseReason, Outcome};

fn sending(bytes: u64) -> Driver {
    Driver::sending(PEER_WITHOUT_SACK, bytes)
}

#[test]
fn a_timeout_marks_everything_lost_and_starts_slow_start() {
    let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 50_000);
    let deadline = driver.now + RTO;
    assert_eq!(driver.deadline(), deadline);
    let _ = driver.at(just_before(deadline)).expire();
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.at(deadline).expire(), Outcome::Open);
    assert_eq!(driver.window(), MSS);
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [Again(1000, 3000)], "slow start");
}

/// RFC 6298 s5.5, and s5 at its end: a new measurement ends the backoff. An ACK of what left twice
/// is none.
#[test]
fn waits_double_up_to_a_minute_until_there_is_a_sample() {
    let mut driver = sending(1000);
    let mut wait = RTO;
    for _ in 0..9 {
        assert_eq!(driver.wait(), wait);
        let _ = driver.fire();
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        wait = (wait * 2).min(RTO_MAX);
    }
    driver.pass(millis(100)).accept(ack(500));
    assert_eq!(
        driver.wait(),
        RTO_MAX,
        "Karn's rule: it may be of any of them"
    );
    driver.accept(ack(1000));
    driver.append(1000);
    assert_eq!(driver.flush(), [New(1000, 2000)]);
    assert_eq!(driver.wait(), RTO_MAX);
    driver.pass(millis(100)).accept(ack(1500));
    assert_eq!(driver.wait(), RTO);
}

/// RFC 9293 s3.8.3: R2.
#[test]
fn a_silent_peer_times_out() {
    let mut driver = sending(1000);
    for _ in 0..Config::default().timeouts_max {
        assert_eq!(driver.fire(), Outcome::Open);
        let _ = driver.flush();
    }
    assert_eq!(driver.fire(), Outcome::Closed(CloseReason::TimedOut));
}

/// RFC 6298 s5.1, s5.2, s5.3.
#[test]
fn progress_restarts_the_timer_and_sending_or_duplicates_do_not() {
    let mut driver = sending(12_000);
    let deadline = driver.deadline();
    driver.pass(millis(50)).accept(ack(0));
    assert_eq!(driver.deadline(), deadline, "a duplicate");
    driver.pass(millis(50)).accept(ack(1000));
    // SRTT 100 ms; 4 * RTTVAR is 150 ms after a second sample of 100 ms, and the least is 200 ms.
    let deadline = driver.now + millis(300);
    assert_eq!(driver.deadline(), deadline, "progress");
    driver.pass(millis(50));
    assert_eq!(driver.flush(), [New(10_000, 12_000)]);
    assert_eq!(driver.deadline(), deadline, "sending");
    driver.accept(ack(12_000));
    assert!(
        driver.wait() > millis(10_000),
        "all arrived: only keep-alive is left"
    );
}

#[test]
fn loss_recovery_ends_at_the_snd_nxt_of_the_timeout() {
    for (acknowledgment, over) in [(9999, false), (10_000, true)] {
        let mut driver = sending(50_000);
        let _ = driver.fire();
        let _ = driver.flush();
        driver.pass(millis(100)).accept(ack(acknowledgment));
        assert_eq!(driver.connection.recovery == RecoveryState::Open, over);
    }
}

#[test]
fn a_second_timeout_lowers_the_threshold_no_further() {
    let mut driver = sending(50_000);
    let _ = driver.fire();
    let _ = driver.flush();
    let _ = driver.fire();
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    assert_eq!(driver.window(), MSS);
}

/// RFC 5681 s3.1, RFC 6582 s3.2: one loss event, one reduction. Rate reduction's window of the
/// moment, when few of many arrive, is no measure of the path.
#[test]
fn a_timeout_during_recovery_lowers_the_threshold_no_further() {
    let mut driver = Driver::sending(PEER, 1_000_000);
    let mut at = 0;
    while driver.window() < 80_000 {
        let left = i64::try_from(driver.connection.send.nxt.0).unwrap();
        driver.pass(millis(100));
        while at < left {
            at += 2000.min(left - at);
            driver.accept(ack(at));
        }
        let _ = driver.flush();
    }
    assert_eq!(driver.window(), 80_000);
    // The last three arrive.
    let end = u32::try_from(driver.connection.send.nxt.0).unwrap();
    driver
        .pass(millis(100))
        .accept(ack(at).sack(end - 3000, end));
    let _ = driver.flush();
    assert_eq!(driver.window(), 3000);
    assert_eq!(driver.connection.congestion.threshold(), 56_000);
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!(driver.window(), MSS);
    assert_eq!(driver.connection.congestion.threshold(), 56_000);
    // Another loss event is another reduction.
    driver.pass(millis(100)).accept(ack(i64::from(end)));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    let window = driver.window();
    let _ = driver.flush();
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    let threshold = driver.connection.congestion.threshold();
    assert_eq!(threshold, (window * 7 / 10).max(2 * MSS));
}

/// The disk is slow, not the network: nothing of ours is out.
#[test]
fn a_pending_disk_read_is_not_a_retransmission_timeout() {
    let mut driver = sending(5000);
    let _ = driver.fire();
    let fetch = driver.claim();
    assert_eq!(fetch, range(0, 1000));
    for _ in 0..20 {
        assert_eq!(driver.fire(), Outcome::Open);
    }
    assert_eq!(driver.connection.timeouts, 1);
    assert_eq!(driver.complete(fetch), Some((0, 1000)));
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.connection.timeouts, 0);
}

/// What was being fetched when the timer fired comes back before, between and after the new
/// claims.
#[test]
fn voided_fetches_of_new_data_leave_only_if_claimed_again() {
    let sent_then_claimed = || {
        let mut driver = sending(5000);
        driver.append(4000);
        driver.take(range(5000, 7000), false);
        driver.take(range(7000, 9000), false);
        let _ = driver.fire();
        assert_eq!(driver.connection.send.fetching_bytes(), 0);
        driver
    };
    // They come back at once: void.
    let mut driver = sent_then_claimed();
    assert_eq!(driver.complete(range(5000, 7000)), None);
    assert_eq!(driver.complete(range(7000, 9000)), None);
    assert_eq!(driver.demanded(), Some((0, 1000)));

    // All that was lost arrives; new data is claimed again, in another cut, while they are out.
    let mut driver = sent_then_claimed();
    driver.pass(millis(100)).accept(ack(5000));
    driver.take(range(5000, 6000), false);
    assert_eq!(driver.complete(range(7000, 9000)), None, "it overtook");
    assert_eq!(
        driver.complete(range(5000, 7000)),
        Some((5000, 6000)),
        "as far as claimed"
    );
    assert_eq!(
        driver.complete(range(5000, 6000)),
        None,
        "the other fetch was first"
    );
    driver.take(range(6000, 9000), false);
    assert_eq!(driver.complete(range(6000, 9000)), Some((6000, 9000)));
    assert_eq!(driver.complete(range(7000, 9000)), None);

    // The new claim's fetch comes first, then the void ones.
    let mut driver = sent_then_claimed();
    driver.pass(millis(100)).accept(ack(5000));
    driver.take(range(5000, 8000), false);
    assert_eq!(driver.complete(range(5000, 8000)), Some((5000, 8000)));
    assert_eq!(driver.complete(range(5000, 7000)), None);
    assert_eq!(driver.complete(range(7000, 9000)), None);
    driver.take(range(8000, 9000), false);
    assert_eq!(
        driver.complete(range(7000, 9000)),
        Some((8000, 9000)),
        "its tail is new"
    );
}

#[test]
fn voided_fetches_of_lost_data_leave_only_if_claimed_again() {
    let lost_and_claimed = || {
        let mut driver = sending(5000);
        let _ = driver.fire();
        driver.take(range(0, 1000), true);
        // Another segment is out, so that the timer has something to blame.
        driver.take(range(1000, 2000), true);
        assert_eq!(driver.complete(range(0, 1000)), Some((0, 1000)));
        driver.append(1000);
        let _ = driver.fire();
        assert_eq!(driver.connection.timeouts, 2);
        driver
    };
    let mut driver = lost_and_claimed();
    assert_eq!(driver.complete(range(1000, 2000)), None);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.accept(ack(1000));
    driver.take(range(1000, 1500), true);
    assert_eq!(driver.complete(range(1000, 2000)), Some((1000, 1500)));
    assert_eq!(driver.complete(range(1000, 1500)), None);
}

#[test]
fn returning_a_void_claim_does_nothing() {
    let mut driver = sending(5000);
    driver.append(4000);
    driver.take(range(5000, 7000), false);
    let _ = driver.fire();
    driver
        .connection
        .return_claim(Claim::forged(range(5000, 7000), false));
    assert_eq!(driver.connection.send.claimed.0, 5000);
    driver
        .connection
        .return_claim(Claim::forged(range(0, 1000), true));
    assert_eq!(driver.demanded(), Some((0, 1000)));
}

/// RFC 2861 s3.2: the longer nothing was sent, the less the window says of the path.
#[test]
fn idleness_halves_the_window_for_each_timeout_that_passed() {
    let after = |idle: Duration| {
        let mut driver = sending(10_000);
        driver.pass(millis(100)).accept(ack(10_000));
        driver.append(20_000);
        let _ = driver.flush();
        driver.pass(millis(100)).accept(ack(30_000));
        let before = driver.window();
        driver.pass(idle).append(50_000);
        (before, driver.window())
    };
    // Found by trying, since the RTO depends on the round trips seen.
    let mut timeout = Duration::ZERO;
    while after(timeout).0 == after(timeout).1 {
        timeout += millis(1);
    }
    let (before, once) = after(timeout);
    assert_eq!((before, once), (40_000, 20_000));
    assert_eq!(after(timeout + millis(50)).1, 20_000);
    assert_eq!(after(timeout * 20).1, 10_000);
}

#[test]
fn idleness_does_not_enlarge_a_small_window() {
    let mut driver = sending(1000);
    let _ = driver.fire();
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(1000));
    let window = driver.window();
    assert!(window < 10_000);
    driver.pass(millis(60_000)).append(1000);
    assert_eq!(driver.window(), window);
}

#[test]
fn a_pause_with_data_in_flight_is_not_idleness() {
    let mut driver = sending(10_000);
    driver.pass(millis(100)).accept(ack(9999));
    driver.pass(millis(100)).append(10);
    assert_eq!(driver.window(), 19_999);
    driver.pass(millis(149)).append(10);
    assert_eq!(driver.window(), 19_999);
}

/// RFC 6298 s3, Karn's rule: an ACK that covers what was resent came for its sake, and what it
/// covers besides arrived long before.
#[test]
fn an_ack_that_covers_a_resent_segment_gives_no_sample() {
    for (resent, smoothed) in [(true, millis(100)), (false, millis(150))] {
        let mut driver = sending(10_000);
        if resent {
            driver.pass(millis(100));
            for _ in 0..3 {
                driver.accept(ack(0));
            }
            assert_eq!(driver.flush(), [Again(0, 1000)]);
            driver.pass(millis(400));
        } else {
            driver.pass(millis(500));
        }
        driver.accept(ack(10_000));
        assert_eq!(driver.connection.smoothed_rtt(), Some(smoothed));
    }
}

/// The timer watches over what is in the network, from the moment it left.
#[test]
fn a_slow_read_does_not_shorten_the_peers_timeout() {
    let mut driver = sending(5000);
    let _ = driver.fire();
    let fetch = driver.claim();
    assert_eq!(driver.wait(), RTO * 2);
    driver.pass(millis(599));
    assert_eq!(driver.complete(fetch), Some((0, 1000)));
    assert_eq!(driver.wait(), RTO * 2);
    // What leaves while something else is out does not prolong its wait (RFC 6298 s5.1).
    driver.pass(millis(100)).accept(ack(1000));
    let _ = driver.flush();
    let deadline = driver.deadline();
    driver.pass(millis(50)).accept(ack(1500));
    driver.pass(millis(10));
    let restarted = driver.deadline();
    assert!(restarted > deadline);
    assert_eq!(driver.flush(), [Again(3000, 4000)]);
    assert_eq!(driver.deadline(), restarted);
}

#[test]
fn a_retransmitted_fin_gets_a_full_timeout() {
    let mut driver = sending(0);
    driver.connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    let _ = driver.fire();
    driver.pass(millis(599));
    assert_eq!(driver.flush(), [Fin]);
    assert_eq!(driver.wait(), RTO * 2);
}
