//! Losses with peers that speak SACK: RFC 2018, 2883, 8985, and the pace of mending them, RFC 9937.

use super::Sent::{Again, New};
use super::{Config, Driver, PEER, ack, millis};
use crate::congestion::{CongestionControl, Controller as _};
use crate::connection::Claim;
use crate::flight::SegmentState;
use crate::recovery::RecoveryState;
use crate::verdict::{CloseReason, Outcome};

/// Ten segments out; an ACK comes a round trip later.
fn sending() -> Driver {
    let mut driver = Driver::sending(PEER, 100_000);
    driver.pass(millis(100));
    driver
}

fn states(driver: &Driver) -> Vec<(u64, u64, SegmentState)> {
    driver
        .connection
        .flight
        .iter()
        .map(|entry| (entry.start.0, entry.end.0, entry.state))
        .collect()
}

#[test]
fn blocks_that_are_not_ours_are_ignored() {
    let rows = [
        ack(2000).sack(9000, 10_001),
        ack(2000).sack(10_000, 11_000),
        ack(2000).sack(1000, 3000),
        ack(2000).sack(5000, 4000),
        ack(2000).sack(4000, 4000),
    ];
    for segment in rows {
        let mut driver = sending();
        driver.accept(segment);
        assert_eq!(driver.connection.flight.sacked_bytes(), 0, "{segment:?}");
    }
    let mut driver = sending();
    driver.accept(ack(2000).sack(9000, 10_000));
    assert_eq!(driver.connection.flight.sacked_bytes(), 1000);
}

#[test]
fn an_old_ack_still_reports_what_arrived() {
    let mut driver = sending();
    driver.accept(ack(5000));
    driver.accept(ack(4000).sack(6000, 7000));
    assert_eq!(driver.connection.flight.sacked_bytes(), 1000);
}

#[test]
fn sack_blocks_are_ignored_if_sack_was_not_negotiated() {
    let mut driver = Driver::sending(super::PEER_WITHOUT_SACK, 50_000);
    driver.accept(ack(0).sack(5000, 6000));
    assert_eq!(driver.connection.flight.sacked_bytes(), 0);
}

/// RFC 8985 s6.2: fewer than three segments above the hole may be reordering, for a quarter RTT.
#[test]
fn few_segments_above_a_hole_wait_for_a_quarter_round_trip() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 3999));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    // Sent at 100 ms; RACK.rtt of 100 ms and 25 ms more.
    assert_eq!(driver.wait(), millis(25));
    let deadline = driver.deadline();
    let _ = driver.at(super::just_before(deadline)).expire();
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    let _ = driver.at(deadline).expire();
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Recovery { .. }
    ));
    assert_eq!(states(&driver)[0], (0, 1000, SegmentState::Lost));
}

#[test]
fn a_late_segment_that_comes_in_time_is_not_lost() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 3000));
    driver.pass(millis(20)).accept(ack(3000));
    let _ = driver.pass(millis(10)).expire();
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    let sent = driver.flush();
    assert!(sent.iter().all(|sent| matches!(sent, New(..))), "{sent:?}");
}

#[test]
fn three_segments_above_a_hole_mean_a_loss() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 4000));
    assert_eq!(states(&driver)[0], (0, 1000, SegmentState::Lost));
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    assert_eq!(driver.flush()[0], Again(0, 1000));
}

#[test]
fn one_round_trip_of_losses_lowers_the_window_once() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 4000));
    let _ = driver.flush();
    driver.accept(ack(0).sack(1000, 4000).sack(5000, 9000));
    assert_eq!(driver.connection.congestion.threshold(), 7000);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(10_000));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    // RFC 9937: ssthresh at the end, and what that ACK itself adds.
    assert!((7000..8000).contains(&driver.window()));
}

/// What was SACKed before does not count, and neither does a whole flight that the retransmission of a peer without SACK
/// uncovers (RFC 6582 s3.2).
#[test]
fn what_arrives_with_the_last_ack_of_a_recovery_lets_the_window_grow() {
    for (peer, counted) in [(PEER, 1), (super::PEER_WITHOUT_SACK, 0)] {
        let config = Config {
            is_paced: false,
            congestion: CongestionControl::Reno,
            ..Config::default()
        };
        let mut driver = Driver::configured(peer, config);
        driver.append(100_000);
        let _ = driver.flush();
        driver.pass(millis(100));
        for last in [2000, 3000, 10_000] {
            driver.accept(ack(0).sack(1000, last));
        }
        let _ = driver.flush();
        // Of the flight nothing but the first segment is missing.
        driver.pass(millis(100)).accept(ack(10_000));
        assert_eq!(driver.window(), 5000);
        let _ = driver.flush();
        // What is still missing for a window.
        driver.accept(ack(10_000 + 4999 - 1000 * counted));
        assert_eq!(driver.window(), 5000);
        driver.accept(ack(10_000 + 5000 - 1000 * counted));
        assert_eq!(driver.window(), 6000);
    }
}

#[test]
fn recovery_ends_when_all_that_was_out_arrived() {
    for (acknowledgment, over) in [(9999, false), (10_000, true)] {
        let mut driver = sending();
        driver.accept(ack(0).sack(1000, 4000));
        let _ = driver.flush();
        driver.pass(millis(100)).accept(ack(acknowledgment));
        assert_eq!(driver.connection.recovery == RecoveryState::Open, over);
    }
}

/// RFC 2018 s5.1 would void them; we wait for a sign that the peer dropped what it reported.
#[test]
fn reports_survive_the_timer_while_the_hole_is_below_them() {
    let mut driver = sending();
    driver.accept(ack(0).sack(5000, 6000));
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!(
        states(&driver),
        [
            (0, 5000, SegmentState::Lost),
            (5000, 6000, SegmentState::Sacked),
            (6000, 10_000, SegmentState::Lost)
        ]
    );
}

/// A retransmission lost again is found by time, not by counting (RFC 8985 s3.4).
#[test]
fn a_lost_retransmission_is_found() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 4000));
    let sent = driver.flush();
    assert_eq!(sent[0], Again(0, 1000));
    // What left after it arrives a round trip later; it did not.
    driver.pass(millis(10)).accept(ack(0).sack(1000, 10_000));
    let newer = driver.flush();
    assert!(matches!(newer[..], [New(10_000, _)]), "{newer:?}");
    let New(_, end) = newer[0] else {
        unreachable!("matched above")
    };
    driver
        .pass(millis(100))
        .accept(ack(0).sack(1000, u32::try_from(end).unwrap()));
    let sent = driver.flush();
    assert_eq!(sent[0], Again(0, 1000), "{sent:?}");
}

/// RFC 2018 s8: what was reported may be dropped nevertheless. The ACK that mends the hole stops
/// below what was reported, and only the timer can tell.
#[test]
fn a_peer_that_dropped_what_it_reported_gets_it_again() {
    let mut driver = Driver::sending(PEER, 10_000);
    driver.pass(millis(100)).accept(ack(0).sack(1000, 10_000));
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(states(&driver), [(1000, 10_000, SegmentState::Sacked)]);
    let _ = driver.fire();
    assert_eq!(states(&driver), [(1000, 10_000, SegmentState::Lost)]);
    assert_eq!(driver.flush(), [Again(1000, 2000)]);
}

#[test]
fn a_peer_that_reports_all_and_acknowledges_nothing_is_given_up() {
    let mut driver = Driver::sending(PEER, 10_000);
    for _ in 0..Config::default().timeouts_max {
        driver.pass(millis(100)).accept(ack(0).sack(0, 10_000));
        assert_eq!(driver.fire(), Outcome::Open);
        let _ = driver.flush();
    }
    let timed_out = Outcome::Closed(CloseReason::TimedOut);
    assert_eq!(driver.fire(), timed_out);
}

/// RFC 5681 s3.1: the window grows on ACKs that cumulatively acknowledge new data.
#[test]
fn reports_alone_do_not_open_the_window() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 2000));
    assert_eq!(driver.window(), 10_000);
    driver.accept(ack(2000));
    assert_eq!(
        driver.window(),
        11_000,
        "by what this ACK brought, not what was known"
    );
}

/// 30 000 to 70 000 are out, and more is queued.
fn forty_segments_out() -> Driver {
    let mut driver = Driver::sending(PEER, 200_000);
    driver.pass(millis(100)).accept(ack(10_000));
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(30_000));
    let _ = driver.flush();
    driver.pass(millis(100));
    driver
}

/// RFC 9937: while the pipe is above ssthresh, seven leave for ten that arrive.
#[test]
fn rate_reduction_paces_what_leaves_by_what_arrives() {
    // Before the loss was sure, 40 were out, and 28 shall be.
    let mut driver = forty_segments_out();
    let mut left = Vec::new();
    for segment in 1..=12 {
        driver.accept(ack(30_000).sack(31_000, 31_000 + segment * 1000));
        left.push((segment, driver.flush()));
    }
    let expected: [(u32, &[_]); 12] = [
        // The first two reports may be reordering: segment for segment.
        (1, &[New(70_000, 71_000)]),
        (2, &[New(71_000, 72_000)]),
        // The first resend leaves at once, 0.3 too early.
        (3, &[Again(30_000, 31_000)]),
        (4, &[]),
        (5, &[New(72_000, 73_000)]),
        (6, &[]),
        (7, &[New(73_000, 74_000)]),
        (8, &[New(74_000, 75_000)]),
        (9, &[]),
        (10, &[New(75_000, 76_000)]),
        (11, &[New(76_000, 77_000)]),
        (12, &[New(77_000, 78_000)]),
    ];
    for ((segment, sent), expected) in left.iter().zip(expected) {
        assert_eq!((*segment, &sent[..]), expected);
    }
}

/// Losses found by RACK's timer are mended at the same pace as those an ACK shows.
#[test]
fn the_reordering_timer_begins_rate_reduction_too() {
    let mut driver = sending();
    driver.accept(ack(0).sack(9000, 10_000));
    let _ = driver.flush();
    let _ = driver.fire();
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Recovery { .. }
    ));
    assert_eq!(driver.connection.flight.lost_bytes(), 9000);
    assert_eq!(
        driver.flush(),
        [Again(0, 1000)],
        "one, and not all nine at once"
    );
    // It left at 225 ms: the timer watches over it from there.
    assert_eq!(driver.wait(), millis(300));
    driver
        .pass(millis(100))
        .accept(ack(1000).sack(9000, 10_000));
    // The ACK shows another loss, of what left before the retransmission: no more than arrived.
    assert_eq!(driver.connection.flight.lost_bytes(), 9000);
    assert_eq!(driver.flush(), [Again(1000, 2000)]);
    // Nothing more is lost: a segment more than arrived.
    driver
        .pass(millis(100))
        .accept(ack(2000).sack(9000, 10_000));
    assert_eq!(driver.flush(), [Again(2000, 4000)]);
}

#[test]
fn a_claim_given_back_counts_as_not_sent() {
    let mut driver = forty_segments_out();
    driver.accept(ack(30_000).sack(31_000, 34_000));
    for _ in 0..20 {
        let claim = driver.claim();
        assert_eq!(claim, super::range(30_000, 31_000));
        driver.connection.return_claim(Claim::forged(claim, true));
    }
    // 37 are out and 28 shall be: three that arrived let 2.27 leave, three more 4.54 in all.
    assert_eq!(driver.flush(), [Again(30_000, 31_000), New(70_000, 71_000)]);
    driver.accept(ack(30_000).sack(31_000, 37_000));
    assert_eq!(driver.flush(), [New(71_000, 73_000)]);
}

/// RFC 2883 s4: a first block below the ACK, or inside the second block.
#[test]
fn a_dsack_widens_the_reordering_window() {
    let rows = [
        (ack(4000).sack(3000, 4000).sack(5000, 6000), millis(50)),
        (ack(4000).sack(3000, 4001).sack(5000, 6000), millis(25)),
        (ack(4000).sack(5000, 5500).sack(5000, 6000), millis(50)),
        (ack(4000).sack(5000, 6001).sack(5000, 6000), millis(25)),
        (ack(4000).sack(5000, 6000), millis(25)),
    ];
    for (segment, wait) in rows {
        let mut driver = sending();
        driver.accept(segment);
        // Sent a round trip of 100 ms ago.
        assert_eq!(driver.wait(), wait, "{segment:?}");
    }
}

#[test]
fn the_reordering_window_shrinks_again_after_sixteen_recoveries() {
    let mut driver = sending();
    driver.accept(ack(4000).sack(3000, 4000).sack(5000, 6000));
    for _ in 0..15 {
        driver.connection.rack.on_recovery_end();
    }
    driver.accept(ack(4000).sack(5000, 6000));
    assert_eq!(driver.wait(), millis(50));
    driver.connection.rack.on_recovery_end();
    driver.accept(ack(4000).sack(5000, 6000));
    assert_eq!(driver.wait(), millis(25));
}

/// A report that was taken back and then made again says nothing of the round trip.
#[test]
fn reports_made_again_give_no_sample() {
    let mut driver = Driver::sending(PEER, 10_000);
    driver.pass(millis(100)).accept(ack(0).sack(1000, 10_000));
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(1000));
    let _ = driver.fire();
    assert_eq!(driver.connection.flight.sacked_bytes(), 0);
    driver
        .pass(millis(5000))
        .accept(ack(1000).sack(3000, 10_000));
    assert_eq!(driver.connection.flight.sacked_bytes(), 7000);
    assert_eq!(driver.connection.smoothed_rtt(), Some(millis(100)));
}
