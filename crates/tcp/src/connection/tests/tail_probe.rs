//! Tail loss probes (RFC 8985 s7).

use super::Sent::{Again, Fin, New};
use super::{Driver, PEER, PEER_WITHOUT_SACK, RTO, ack, just_before, millis};
use crate::congestion::Controller as _;
use crate::connection::Claim;
use crate::connection::timers::TimerKind;
use crate::recovery::RecoveryState;

fn kind(driver: &Driver) -> Option<TimerKind> {
    driver.connection.retransmit.map(|(kind, _)| kind)
}

#[test]
fn the_tail_is_probed_after_two_round_trips() {
    let mut driver = Driver::sending(PEER, 5000);
    let deadline = driver.now + millis(202);
    assert_eq!(
        (driver.deadline(), kind(&driver)),
        (deadline, Some(TimerKind::TailProbe))
    );
    let _ = driver.at(just_before(deadline)).expire();
    assert_eq!(driver.flush(), []);
    let _ = driver.at(deadline).expire();
    assert_eq!(driver.flush(), [Again(4000, 5000)], "the last segment");
    assert_eq!(
        (driver.wait(), kind(&driver)),
        (RTO, Some(TimerKind::Timeout))
    );
    assert_eq!(driver.window(), 10_000, "nothing is known to be lost");
}

#[test]
fn a_short_tail_is_probed_whole() {
    let mut driver = Driver::sending(PEER, 2300);
    let _ = driver.fire();
    assert_eq!(
        driver.flush(),
        [Again(1300, 2300)],
        "the last segment's worth of bytes"
    );
}

#[test]
fn new_data_is_the_better_probe_and_may_exceed_the_window_by_a_segment() {
    let mut driver = Driver::sending(PEER, 50_000);
    assert_eq!(kind(&driver), Some(TimerKind::TailProbe));
    let _ = driver.fire();
    // It waits for no further credit, although ten segments are out.
    let demand = driver.demand();
    assert_eq!(demand.map(|demand| demand.outstanding_bytes), Some(0));
    assert_eq!(driver.flush(), [New(10_000, 11_000)]);
    driver.pass(millis(100)).accept(ack(11_000));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert_eq!(driver.window(), 21_000);
}

#[test]
fn a_lost_fin_is_the_tail() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.pass(millis(1)).connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    let _ = driver.fire();
    assert_eq!(
        driver.connection.tail_probe.map(|probe| probe.end.0),
        Some(5001)
    );
}

#[test]
fn only_peers_with_sack_get_tail_loss_probes() {
    let driver = Driver::sending(PEER_WITHOUT_SACK, 5000);
    assert_eq!(
        (driver.wait(), kind(&driver)),
        (RTO, Some(TimerKind::Timeout))
    );
}

#[test]
fn a_hole_that_is_known_needs_no_probe() {
    let mut driver = Driver::sending(PEER, 10_000);
    driver.pass(millis(100)).accept(ack(0).sack(1000, 2000));
    assert_eq!(kind(&driver), Some(TimerKind::Timeout));
}

/// RFC 8985 s7.4: a second copy was reported, so nothing was lost.
#[test]
fn a_dsack_ends_the_tail_loss_probe_without_a_loss() {
    let mut driver = Driver::sending(PEER, 5000);
    let _ = driver.fire();
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(5000).sack(4000, 5000));
    assert_eq!(driver.connection.tail_probe, None);
    assert!(driver.window() >= 10_000);
}

/// RFC 8985 s7.4.2: the probe mended what nobody else would have noticed.
#[test]
fn progress_beyond_the_probe_without_a_report_means_a_loss() {
    let mut driver = Driver::sending(PEER, 5000);
    let _ = driver.fire();
    let _ = driver.flush();
    driver.append(1000);
    assert_eq!(driver.flush(), [New(5000, 6000)]);
    driver.pass(millis(100)).accept(ack(6000));
    assert_eq!(driver.connection.tail_probe, None);
    assert!((7000..8000).contains(&driver.window()));
}

#[test]
fn an_ack_below_the_probe_decides_nothing() {
    let mut driver = Driver::sending(PEER, 5000);
    let _ = driver.fire();
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(4000));
    assert!(driver.connection.tail_probe.is_some());
}

#[test]
fn a_probe_reveals_the_losses_before_it() {
    let mut driver = Driver::sending(PEER, 5000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(4000, 5000)]);
    driver.pass(millis(100)).accept(ack(1000).sack(4000, 5000));
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Recovery { .. }
    ));
    assert!(matches!(driver.flush()[..], [Again(1000, _), ..]));
}

#[test]
fn no_second_probe_and_none_after_a_timeout() {
    let mut driver = Driver::sending(PEER, 5000);
    let _ = driver.fire();
    let _ = driver.flush();
    assert_eq!(kind(&driver), Some(TimerKind::Timeout));
    let _ = driver.fire();
    assert_eq!(driver.connection.timeouts, 1);
    let _ = driver.flush();
    assert_eq!(kind(&driver), Some(TimerKind::Timeout));
}

/// RFC 8985 s7.4.2: an ACK of just the probe's end may be of the first copy. What comes after it
/// tells.
#[test]
fn an_ack_of_just_the_probe_decides_nothing_yet() {
    let undecided = || {
        let mut driver = Driver::sending(PEER, 5000);
        let _ = driver.fire();
        assert_eq!(driver.flush(), [Again(4000, 5000)]);
        driver.pass(millis(100)).accept(ack(5000));
        assert!(driver.connection.tail_probe.is_some());
        assert!(driver.window() >= 10_000);
        driver
    };
    for second_copy in [ack(5000).sack(4000, 5000), ack(5000)] {
        let mut driver = undecided();
        driver.accept(second_copy);
        assert_eq!(driver.connection.tail_probe, None, "{second_copy:?}");
        assert!(driver.window() >= 10_000);
    }
    for not_a_copy in [ack(5000).text(1), ack(5000).window(50_000)] {
        let mut driver = undecided();
        driver.accept(not_a_copy);
        assert!(driver.connection.tail_probe.is_some(), "{not_a_copy:?}");
    }
    let mut driver = undecided();
    driver.append(1000);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(6000));
    assert_eq!(driver.connection.tail_probe, None);
    assert_eq!(driver.connection.congestion.threshold(), driver.window());
}

#[test]
fn one_segment_may_exceed_the_window_and_no_second_one() {
    let mut driver = Driver::sending(PEER, 50_000);
    let _ = driver.fire();
    assert_eq!(driver.claim(), super::range(10_000, 11_000));
    assert_eq!(driver.demanded(), None, "its fetch is under way");

    let mut driver = Driver::sending(PEER, 10_000);
    let _ = driver.fire();
    driver.append(50_000);
    assert_eq!(driver.claim(), super::range(9000, 10_000));
    assert_eq!(driver.demanded(), None);
}

/// The disk had no room for the probe's segment: the probe is as due as it was, and the congestion
/// window holds it back no more than before.
#[test]
fn a_probe_given_back_is_due_again() {
    // New data, then a segment that goes again; the window is full of what is out.
    for (bytes, probe) in [(50_000, (10_000, 11_000)), (10_000, (9000, 10_000))] {
        let mut driver = Driver::sending(PEER, bytes);
        let _ = driver.fire();
        for _ in 0..3 {
            let claim = driver.claim();
            assert_eq!((claim.start.0, claim.end.0), probe);
            assert_eq!(driver.demanded(), None, "one segment");
            let is_again = bytes == 10_000;
            driver
                .connection
                .return_claim(Claim::forged(claim, is_again));
        }
        let claim = driver.claim();
        assert_eq!(driver.complete(claim), Some(probe));
        assert_eq!(driver.demanded(), None, "it left, and one is enough");
    }
}

#[test]
fn a_claim_given_back_that_was_not_the_probe_makes_none_due() {
    let mut driver = Driver::sending(PEER, 50_000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [New(10_000, 11_000)]);
    driver.pass(millis(100)).accept(ack(2000));
    let claim = driver.claim();
    driver.connection.return_claim(Claim::forged(claim, false));
    let credit = driver.window() - driver.connection.outstanding_bytes();
    let demand = driver.demand().map(|demand| demand.range.bytes());
    assert_eq!(demand, Some(credit - credit % 1000));
}

#[test]
fn new_data_being_fetched_is_the_probe() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.append(2000);
    let fetch = driver.claim();
    let _ = driver.fire();
    assert_eq!(driver.demanded(), None);
    assert_eq!(driver.complete(fetch), Some((5000, 7000)));
    assert_eq!(driver.connection.retransmitted_bytes(), 0);
}

/// RFC 8985 s7.2: a probe takes the place of the timeout that would come before it.
#[test]
fn the_probe_waits_no_longer_than_the_timer_would() {
    let mut driver = Driver::sending(PEER, 1000);
    // 2 * SRTT + 200 ms for a delayed ACK is more than the RTO.
    assert_eq!(
        (driver.wait(), kind(&driver)),
        (RTO, Some(TimerKind::TailProbe))
    );
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    assert_eq!((driver.window(), driver.connection.timeouts), (10_000, 0));
    assert_eq!(
        (driver.wait(), kind(&driver)),
        (RTO, Some(TimerKind::Timeout))
    );
    let _ = driver.fire();
    assert_eq!(driver.connection.timeouts, 1);
}
