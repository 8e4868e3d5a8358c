//! When credit may be claimed: pacing (see [`crate::pacing`]).

use clock::Instant;

use super::{
    Config, Driver, INITIAL_WINDOW, PEER, Peer, START, Sent, ack, credit, just_before, millis,
};
use crate::congestion::CongestionControl;
use crate::connection::{Claim, Credit, Permission};
use crate::pacing::PacingRate;
use crate::verdict::Outcome;

const WIDE: Peer = Peer {
    window_shift: Some(7),
    ..PEER
};

fn configured(is_paced: bool, rate_max: Option<u64>) -> Driver {
    let config = Config {
        is_paced,
        rate_max,
        ..Config::default()
    };
    Driver::configured(WIDE, config)
}

fn paced() -> Driver {
    configured(true, None)
}

/// The time from which more may be claimed.
fn from(driver: &Driver) -> Option<Instant> {
    match credit(&driver.connection, driver.now) {
        Credit::From(at) => Some(at),
        Credit::Nothing | Credit::Now(_) => None,
    }
}

#[test]
fn the_initial_window_is_one_burst() {
    let mut driver = paced();
    driver.append(100_000);
    let _ = driver.flush();
    assert_eq!(driver.connection.sent().0, INITIAL_WINDOW);
    // The window is the limit, not the pacer.
    assert_eq!(driver.connection.credit(driver.now), Credit::Nothing);
}

#[test]
fn in_slow_start_two_windows_take_a_round_trip() {
    let mut driver = paced();
    driver.append(100_000);
    let _ = driver.flush();
    // 10 segments at 20 in a round trip of 100 ms: 50 ms, of which 1 ms may be ahead of the clock.
    driver.pass(millis(10)).accept(ack(10_000).window(60_000));
    let due = START + millis(49);
    // SRTT is (7 * 100 + 10) / 8 ms now, but the schedule stays.
    assert_eq!(from(&driver), Some(due));
    driver.at(just_before(due));
    assert_eq!(driver.demanded(), None);
    driver.at(due);
    // A quantum of 16 KiB, in whole segments.
    assert_eq!(driver.demanded(), Some((10_000, 27_000)));
}

#[test]
fn above_half_of_ssthresh_the_rate_is_six_fifths_of_the_window() {
    let mut driver = paced();
    driver.connection.congestion.force_window(10_000_000);
    driver.append(10_000_000);
    // 1 ms of 1.2 or twice the window in 100 ms.
    let quantum = |driver: &Driver| driver.demand().map(|demand| demand.quantum_bytes);
    assert_eq!(quantum(&driver), Some(200_000));
    driver.connection.congestion.force_threshold(20_000_000);
    assert_eq!(quantum(&driver), Some(120_000));
    driver.connection.congestion.force_threshold(20_000_002);
    assert_eq!(quantum(&driver), Some(200_000));
}

#[test]
fn the_rate_of_a_small_window_is_that_of_an_initial_window_more() {
    let mut driver = paced();
    driver.connection.congestion.force_threshold(2000);
    for (window, in_a_round_trip) in [
        (2000, 12_000),
        (49_000, 59_000),
        (50_000, 60_000),
        (51_000, 61_200),
    ] {
        driver.connection.congestion.force_window(window);
        let rate = PacingRate::Limited(in_a_round_trip * 10);
        assert_eq!(driver.connection.pacing_rate(), rate, "{window}");
    }
}

/// RFC 6928. A rate that was measured or is the operator's holds whatever the window is.
#[test]
fn a_window_that_is_no_larger_than_the_initial_one_is_not_paced() {
    let is_paced = |congestion, rate_max, window| {
        let config = Config {
            congestion,
            rate_max,
            ..Config::default()
        };
        let mut driver = Driver::configured(WIDE, config);
        driver.append(100_000);
        driver.connection.congestion.force_window(window);
        driver.connection.pacer.on_loss();
        let far = PacingRate::Limited(2000);
        driver.connection.pacer.on_claimed(driver.now, 2000, far);
        from(&driver).is_some()
    };
    let limit = Some(10_000_000);
    for (congestion, rate_max, window, expected) in [
        (CongestionControl::Cubic, None, INITIAL_WINDOW, false),
        (CongestionControl::Cubic, None, INITIAL_WINDOW + 1, true),
        (CongestionControl::Reno, None, INITIAL_WINDOW, false),
        (CongestionControl::Reno, limit, INITIAL_WINDOW, true),
        (CongestionControl::Bbr, None, INITIAL_WINDOW, true),
    ] {
        let found = is_paced(congestion, rate_max, window);
        assert_eq!(found, expected, "{congestion:?}, {rate_max:?}, {window}");
    }
}

#[test]
fn no_more_than_the_window_is_of_use_in_a_round_trip_and_a_fifth_more_in_several() {
    let mut driver = paced();
    driver.connection.congestion.force_threshold(2000);
    driver.connection.congestion.force_window(4000);
    let bytes = |driver: &Driver, time| driver.connection.paced_bytes(millis(time));
    // The round trip is 100 ms.
    for (time, expected) in [(50, 4000), (100, 4000), (150, 7200)] {
        assert_eq!(bytes(&driver, time), Some(expected), "{time}");
    }
    let mut slow = configured(true, Some(10_000));
    slow.connection.congestion.force_window(4000);
    assert_eq!(bytes(&slow, 50), Some(1000));
    assert_eq!(bytes(&configured(false, None), 50), None);
}

#[test]
fn a_quantum_is_a_third_of_the_window_up_to_a_full_read_and_less_after_losses() {
    let mut driver = paced();
    driver.append(1_000_000);
    // The schedule is not behind the clock.
    let rate = PacingRate::Limited(1_000_000);
    driver.connection.pacer.on_claimed(driver.now, 1, rate);
    let quantum = |driver: &Driver| driver.demand().map(|demand| demand.quantum_bytes);
    assert_eq!(quantum(&driver), Some(17_000));
    driver.connection.congestion.force_window(120_000);
    assert_eq!(quantum(&driver), Some(40_000));
    driver.connection.congestion.force_window(600_000);
    assert_eq!(quantum(&driver), Some(62_000));
    driver.connection.pacer.on_loss();
    // A millisecond.
    assert_eq!(quantum(&driver), Some(12_000));
}

#[test]
fn the_schedule_stays_where_pacing_alone_held_bytes_back_and_the_server_came_late() {
    let due_next = |permission: Permission| {
        let mut driver = paced();
        driver.append(100_000);
        let _ = driver.flush();
        driver.pass(millis(10)).accept(ack(10_000).window(60_000));
        driver.connection.on_permission(driver.now, permission);
        driver.at(START + millis(53));
        driver.connection.on_permission(driver.now, Permission::Now);
        let _ = driver.claim();
        from(&driver).unwrap()
    };
    // The schedule was at 50 ms, so what is claimed is 3 ms late.
    let (kept, moved) = (
        due_next(Permission::From(START + millis(49))),
        due_next(Permission::Nothing),
    );
    assert_eq!(moved.since(kept), millis(3));
}

#[test]
fn a_tail_probe_does_not_wait_for_the_pacer() {
    let mut driver = configured(true, Some(1000));
    driver.append(20_000);
    let _ = driver.flush();
    assert!(from(&driver).is_none() && driver.demanded().is_none());
    // The rate allows one segment a second; the probe is due after 2 SRTT.
    driver.pass(millis(202));
    assert_eq!(driver.expire(), Outcome::Open);
    assert_eq!(driver.demanded(), Some((10_000, 11_000)));
}

#[test]
fn what_is_returned_may_be_claimed_again_at_once() {
    let mut driver = paced();
    driver.append(100_000);
    let claim = driver.claim();
    driver.connection.return_claim(Claim::forged(claim, false));
    assert_eq!(driver.demanded(), Some((0, INITIAL_WINDOW)));
}

#[test]
fn without_pacing_the_window_alone_decides() {
    let mut driver = configured(false, None);
    driver.append(100_000);
    let _ = driver.flush();
    driver.pass(millis(1)).accept(ack(10_000).window(60_000));
    assert_eq!(driver.demanded(), Some((10_000, 30_000)));
}

#[test]
fn a_greatest_rate_holds_without_pacing_too() {
    let mut driver = configured(false, Some(100_000));
    driver.append(100_000);
    let _ = driver.flush();
    driver.pass(millis(1)).accept(ack(10_000).window(60_000));
    // 10 KB at 100 KB a second.
    assert_eq!(from(&driver), Some(START + millis(99)));
}

#[test]
fn lost_bytes_wait_for_the_pacer_too() {
    let mut driver = configured(true, Some(10_000));
    driver.append(INITIAL_WINDOW);
    let _ = driver.flush();
    // Everything but the first segment arrives; what was sent takes a second at 10 KB/s.
    driver.pass(millis(100)).accept(ack(0).sack(1000, 10_000));
    assert_eq!(from(&driver), Some(START + millis(999)));
    driver.at(START + millis(999));
    assert_eq!(driver.flush(), [Sent::Again(0, 1000)]);
}
