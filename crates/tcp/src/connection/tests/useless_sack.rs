//! Peers that agreed on SACK and whose blocks report nothing that we sent.

use super::Sent::{Again, New};
use super::{Config, Driver, PEER, Segment, ack, millis};
use crate::congestion::CongestionControl;
use crate::connection::sack::SackReports;
use crate::recovery::RecoveryState;

/// What comes instead of a report: nothing, and blocks whose numbers a firewall has not shifted, which
/// seem to lie beyond what was sent, or far below the ACK, where a DSACK would be.
const SHIFTS: [Option<u32>; 3] = [None, Some(1 << 30), Some(u32::MAX - (1 << 30))];

fn duplicate(offset: u32, shift: Option<u32>) -> Segment {
    let duplicate = ack(i64::from(offset));
    let Some(shift) = shift else {
        return duplicate;
    };
    let block = shift.wrapping_add(offset);
    duplicate.sack(block.wrapping_add(1000), block.wrapping_add(2000))
}

fn sending() -> Driver {
    let mut driver = Driver::sending(PEER, 100_000);
    driver.pass(millis(100));
    driver
}

#[test]
fn three_duplicates_that_report_nothing_resend_the_oldest_segment() {
    for shift in SHIFTS {
        let mut driver = sending();
        for sent in [New(10_000, 11_000), New(11_000, 12_000)] {
            driver.accept(duplicate(0, shift));
            assert_eq!(driver.connection.recovery, RecoveryState::Open);
            assert_eq!(driver.flush(), [sent], "limited transmit (RFC 3042)");
        }
        driver.accept(duplicate(0, shift));
        assert_eq!(driver.connection.sack, SackReports::Useless);
        assert_eq!(driver.flush(), [Again(0, 1000)], "{shift:?}");
        // RFC 6582 s3.2, step 3: a partial ACK.
        driver.pass(millis(100)).accept(ack(4000));
        assert_eq!(driver.flush()[0], Again(4000, 5000));
        driver.pass(millis(100)).accept(ack(12_000));
        assert_eq!(driver.connection.recovery, RecoveryState::Open);
    }
}

#[test]
fn bbr_knows_that_blocks_are_useless() {
    let config = Config {
        congestion: CongestionControl::Bbr,
        ..Config::default()
    };
    let mut driver = Driver::configured(PEER, config);
    driver.append(100_000);
    driver.flush();
    driver.pass(millis(100));
    let has_sack = |driver: &Driver| {
        let model = format!("{:?}", driver.connection.congestion);
        model.contains("has_sack: true")
    };
    for _ in 0..3 {
        assert!(has_sack(&driver));
        driver.accept(duplicate(0, None));
    }
    assert!(!has_sack(&driver));
}

#[test]
fn blocks_of_what_was_not_sent_lengthen_no_wait_for_reordering() {
    let mut driver = sending();
    let before = format!("{:?}", driver.connection.rack);
    for shift in SHIFTS {
        driver.accept(duplicate(0, shift));
    }
    assert_eq!(format!("{:?}", driver.connection.rack), before);
}

#[test]
fn after_a_report_duplicates_without_one_are_not_counted() {
    let mut driver = sending();
    driver.accept(ack(0).sack(1000, 2000));
    assert_eq!(driver.connection.sack, SackReports::Useful);
    for _ in 0..5 {
        driver.accept(duplicate(0, Some(1 << 30)));
    }
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert_eq!(driver.connection.sack, SackReports::Useful);
}

#[test]
fn a_report_ends_the_counting_of_duplicates() {
    let mut driver = sending();
    for _ in 0..3 {
        driver.accept(duplicate(0, None));
    }
    driver.flush();
    driver.accept(ack(0).sack(1000, 2000).sack(3000, 10_000));
    assert_eq!(driver.connection.sack, SackReports::Useful);
    driver
        .pass(millis(100))
        .accept(ack(2000).sack(3000, 10_000));
    assert_eq!(driver.flush()[0], Again(2000, 3000));
}

/// RFC 2883 s4 has no age; Linux has this one, too.
#[test]
fn a_duplicate_is_reported_within_a_window_of_the_ack() {
    let mut driver = Driver::sending(PEER, 1_000_000);
    for step in 1..=100 {
        driver.pass(millis(100)).accept(ack(10_000 * step));
        driver.flush();
    }
    let una = u32::try_from(driver.connection.send.una.0).unwrap();
    let window = u32::try_from(driver.connection.send.window_max()).unwrap();
    for (start, is_recent) in [(una - window, true), (una - window - 1, false)] {
        let repr = driver.repr(ack(una.into()).sack(start, start + 1));
        let reported = driver
            .connection
            .reported_duplicate(&repr, driver.connection.send.una);
        assert_eq!(reported.is_some(), is_recent);
    }
}
