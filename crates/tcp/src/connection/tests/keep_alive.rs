//! Keep-alive (RFC 9293 s3.8.4).

use super::Sent::{New, Probe};
use super::{Config, Driver, PEER, START, ack, just_before, millis, sequence};
use crate::congestion::CongestionControl;
use crate::verdict::{CloseReason, Outcome, SegmentDrop};

const CONFIG: Config = Config {
    keep_alive_idle: millis(60_000),
    keep_alive_interval: millis(10_000),
    probes_max: 2,
    timeouts_max: 10,
    orphan: millis(100_000),
    fin_wait_2: millis(60_000),
    ack_delay: millis(40),
    congestion: CongestionControl::Cubic,
    accepts_ecn: false,
    probes_path_mtu: true,
    is_paced: false,
    reduces_idle_window: true,
    rate_max: None,
    canary: crate::Canary::NONE,
};

fn idle() -> Driver {
    Driver::configured(PEER, CONFIG)
}

#[test]
fn an_idle_peer_gets_keep_alive_probes_and_times_out() {
    let mut driver = idle();
    let first = START + millis(60_000);
    assert_eq!(driver.deadline(), first);
    assert_eq!(driver.at(just_before(first)).expire(), Outcome::Open);
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.at(first).expire(), Outcome::Open);
    assert_eq!(driver.flush(), [Probe]);
    // One number before SND.NXT, so that the peer must answer.
    assert_eq!(driver.last_header().sequence.wrapping_add(1), sequence(0));
    assert_eq!(driver.wait(), millis(10_000));
    assert_eq!(driver.fire(), Outcome::Open);
    assert_eq!(driver.flush(), [Probe]);
    assert_eq!(driver.wait(), millis(10_000));
    let just_before = just_before(driver.deadline());
    assert_eq!(driver.at(just_before).expire(), Outcome::Open);
    assert_eq!(driver.fire(), Outcome::Closed(CloseReason::TimedOut));
}

#[test]
fn an_answer_restarts_the_keep_alive_timer() {
    let mut driver = idle();
    for _ in 0..4 {
        assert_eq!(driver.fire(), Outcome::Open);
        assert_eq!(driver.flush(), [Probe]);
        assert_eq!(driver.fire(), Outcome::Open);
        assert_eq!(driver.flush(), [Probe]);
        driver.pass(millis(100)).accept(ack(0));
        assert_eq!(driver.wait(), millis(60_000));
    }
}

#[test]
fn a_segment_outside_the_window_is_no_answer() {
    let mut driver = idle();
    let deadline = driver.deadline();
    driver
        .pass(millis(1000))
        .expect_drop(ack(0).at(-1), SegmentDrop::OutOfWindow);
    assert_eq!(driver.deadline(), deadline);
}

#[test]
fn an_answer_before_the_probe_left_makes_it_needless() {
    let mut driver = idle();
    assert_eq!(driver.fire(), Outcome::Open);
    driver.accept(ack(0));
    assert_eq!(driver.flush(), []);
}

/// The worker was stopped, and its machine with it: the peer could not be heard, and is asked as
/// often as any other before it is given up.
#[test]
fn a_suspended_worker_sends_all_probes_before_timing_out() {
    let mut driver = idle();
    driver.pass(millis(300_000));
    for _ in 0..CONFIG.probes_max {
        assert!(driver.deadline() <= driver.now);
        assert_eq!(driver.expire(), Outcome::Open);
        assert!(
            driver
                .connection
                .poll_timeout()
                .is_none_or(|at| at > driver.now),
            "one look asks once"
        );
        assert_eq!(driver.flush(), [Probe]);
        assert_eq!(driver.wait(), CONFIG.keep_alive_interval);
        driver.pass(CONFIG.keep_alive_interval);
    }
    assert_eq!(driver.expire(), Outcome::Closed(CloseReason::TimedOut));

    let mut driver = idle();
    driver.pass(millis(300_000));
    assert_eq!(driver.expire(), Outcome::Open);
    assert_eq!(driver.flush(), [Probe]);
    driver.accept(ack(0));
    assert_eq!(driver.wait(), CONFIG.keep_alive_idle, "it is alive");
}

/// A link that is full for long lets no probe leave: the peer had nothing to answer.
#[test]
fn a_probe_that_did_not_leave_is_not_counted() {
    let mut driver = idle();
    assert_eq!(driver.fire(), Outcome::Open);
    for _ in 0..2 * CONFIG.probes_max {
        driver.pass(millis(60_000));
        assert_eq!(driver.expire(), Outcome::Open);
    }
    assert_eq!(driver.flush(), [Probe]);
    assert_eq!(driver.wait(), CONFIG.keep_alive_interval);
}

#[test]
fn data_in_flight_or_being_fetched_is_watched_by_other_timers() {
    let mut driver = idle();
    driver.append(1000);
    let range = driver.claim();
    assert_eq!(
        driver.connection.poll_timeout(),
        None,
        "the disk is awaited, not the peer"
    );
    assert_eq!(driver.complete(range), Some((0, 1000)));
    assert!(driver.wait() < millis(1000));
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.wait(), millis(60_000));
    driver.append(1000);
    assert_eq!(driver.flush(), [New(1000, 2000)]);
}
