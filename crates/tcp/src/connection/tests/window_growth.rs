//! The window grows if more than half of it was in use in the last round trip, and for each ACK of that
//! round trip (RFC 7661 s4.2).

use super::Sent::Again;
use super::{Driver, INITIAL_WINDOW, MSS, PEER, ack, millis};

/// The window after each of the ACKs up to these segments.
fn windows(driver: &mut Driver, acks: &[u64]) -> Vec<u64> {
    let after = |segments: &u64| {
        driver.accept(ack(i64::try_from(segments * MSS).unwrap()));
        let _ = driver.flush();
        driver.window() / MSS
    };
    acks.iter().map(after).collect()
}

/// A flight with nothing behind it, acknowledged by every second segment.
fn windows_of_a_flight(segments: u64) -> Vec<u64> {
    let mut driver = Driver::sending(PEER, segments * MSS);
    let acks: Vec<u64> = (2..segments).step_by(2).chain([segments]).collect();
    windows(driver.pass(millis(100)), &acks)
}

#[test]
fn the_last_acks_of_a_full_flight_let_the_window_grow() {
    assert_eq!(windows_of_a_flight(10), [12, 14, 16, 18, 20]);
}

#[test]
fn slow_start_leads_to_twice_of_what_was_in_use() {
    assert_eq!(windows_of_a_flight(9), [12, 14, 16, 18, 18]);
    assert_eq!(windows_of_a_flight(6), [12, 12, 12]);
    assert_eq!(windows_of_a_flight(5), [10, 10, 10]);
}

#[test]
fn a_small_flight_after_a_full_one_lets_nothing_grow() {
    let mut driver = Driver::sending(PEER, INITIAL_WINDOW);
    assert_eq!(windows(driver.pass(millis(100)), &[2, 6, 10]), [12, 16, 20]);
    driver.append(3 * MSS);
    let _ = driver.flush();
    assert_eq!(windows(driver.pass(millis(100)), &[11, 13]), [20, 20]);
    // As much as half of the window, and a segment more.
    for (segments, first, grown) in [(10, 13, [20, 20]), (11, 23, [21, 22])] {
        driver.append(segments * MSS);
        let _ = driver.flush();
        let acks = [first + 1, first + 2];
        assert_eq!(windows(driver.pass(millis(100)), &acks), grown);
        let _ = windows(&mut driver, &[first + segments]);
    }
}

/// What is sent while the last ACKs of a full flight are on their way belongs to the next round trip.
#[test]
fn a_round_trip_ends_with_the_last_byte_that_was_sent_when_it_began() {
    let mut driver = Driver::sending(PEER, INITIAL_WINDOW);
    assert_eq!(windows(driver.pass(millis(100)), &[2, 8]), [12, 18]);
    driver.append(3 * MSS);
    let _ = driver.flush();
    assert_eq!(
        windows(driver.pass(millis(50)), &[10, 11, 13]),
        [20, 20, 20]
    );
}

/// What was outstanding when the timer fired is no use of the window of one segment after it.
#[test]
fn a_timeout_begins_anew() {
    let mut driver = Driver::sending(PEER, INITIAL_WINDOW);
    driver.pass(millis(100)).accept(ack(1000));
    // The timer is backed off already, so F-RTO is not tried.
    driver.connection.rtt.on_timeout();
    while driver.connection.timeouts == 0 {
        driver.fire();
    }
    assert_eq!(driver.flush(), [Again(MSS, 2 * MSS)]);
    driver.accept(ack(2000));
    assert_eq!(driver.window(), 2 * MSS, "one of one was in use");
    // The disk is slow, and nothing else was retransmitted.
    driver.accept(ack(3000));
    assert_eq!(driver.window(), 2 * MSS, "one of two was");
}

/// Segments that overtake a late one let the window grow like those in order, as soon as one that was late
/// has shown that the path reorders. Before that a SACK may show a loss.
#[test]
fn what_overtakes_a_late_segment_counts_where_segments_have_been_late() {
    let mut driver = Driver::sending(PEER, 100 * MSS);
    driver.pass(millis(100));
    let mut accept = |segment| {
        driver.accept(segment);
        let _ = driver.flush();
        driver.window() / MSS
    };
    let at = |segments: u64| i64::try_from(segments * MSS).unwrap();
    assert_eq!(accept(ack(at(1))), 11);
    assert_eq!(accept(ack(at(1)).sack(2000, 3000)), 11, "a hint at a loss");
    assert_eq!(accept(ack(at(3))), 12, "it was late");
    assert_eq!(accept(ack(at(3)).sack(4000, 5000)), 13);
    assert_eq!(accept(ack(at(3)).sack(4000, 5000)), 13, "nothing new");
    assert_eq!(accept(ack(at(5))), 14);
}
