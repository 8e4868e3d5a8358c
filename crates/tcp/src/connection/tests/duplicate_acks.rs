//! Losses with peers that do not speak SACK: RFC 6582.

use super::{Driver, PEER_WITHOUT_SACK, ack, millis};
use crate::recovery::Episode;

fn sending() -> Driver {
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 100_000);
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
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.connection.episode, Episode::Open);
}

#[test]
fn new_data_acknowledged_begins_the_count_anew() {
    let mut driver = sending();
    duplicates(&mut driver, 0, 2);
    driver.accept(ack(1000));
    let _ = driver.flush();
    duplicates(&mut driver, 1000, 2);
    assert_eq!(driver.connection.episode, Episode::Open);
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
        assert_eq!(driver.connection.episode, Episode::Open, "{segment:?}");
    }
    let mut driver = Driver::with(PEER_WITHOUT_SACK);
    duplicates(&mut driver, 0, 5);
    assert_eq!(driver.connection.episode, Episode::Open, "nothing is out");
}
