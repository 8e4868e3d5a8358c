//! Demands, claims, and what is still wanted of a fetch when it comes back.

use clock::Duration;

use super::Sent::{Again, New};
use super::{Driver, MSS, PEER, Peer, STAMPING_WITHOUT_SACK, ack, millis, range};
use crate::connection::{Admitted, Claim, Demand};

#[test]
fn a_demand_reports_outstanding_bytes_and_the_window() {
    let mut driver = Driver::with(Peer {
        window: 8000,
        ..PEER
    });
    assert_eq!(driver.demand(), None, "nothing was appended");
    driver.append(50_000);
    let expected = |demanded, outstanding_bytes, window_bytes| Demand {
        range: demanded,
        is_retransmission: false,
        outstanding_bytes,
        window_bytes,
        quantum_bytes: u64::MAX,
    };
    let all = || Some(expected(range(0, 8000), 0, 8000));
    assert_eq!(driver.demand(), all());
    assert_eq!(driver.demand(), all(), "asking changes nothing");
    driver.take(range(0, 3000), false);
    let rest = expected(range(3000, 8000), 3000, 8000);
    assert_eq!(driver.demand(), Some(rest));
    driver.accept(ack(0).window(60_000));
    let wider = expected(range(3000, 10_000), 3000, 10_000);
    assert_eq!(driver.demand(), Some(wider));
}

#[test]
#[should_panic(expected = "new bytes are claimed in order")]
fn new_bytes_are_claimed_in_order() {
    let mut driver = Driver::new();
    driver.append(5000);
    driver.take(range(1, 5000), false);
}

#[test]
#[should_panic(expected = "what is claimed was demanded")]
fn no_more_is_claimed_than_was_demanded() {
    let mut driver = Driver::new();
    driver.append(5000);
    let demand = driver.demand().unwrap();
    let beyond = demand.range.end + 1;
    let _ = driver.connection.claim(driver.now, demand, beyond);
}

#[test]
#[should_panic(expected = "new bytes are claimed in order")]
fn a_demand_is_claimed_once() {
    let mut driver = Driver::new();
    driver.append(5000);
    let (demand, same) = (driver.demand().unwrap(), driver.demand().unwrap());
    let end = demand.range.end;
    let _ = driver.connection.claim(driver.now, demand, end);
    let _ = driver.connection.claim(driver.now, same, end);
}

#[test]
#[should_panic(expected = "sent bytes were claimed")]
fn only_claimed_bytes_leave() {
    let mut driver = Driver::new();
    driver.append(5000);
    driver.take(range(0, 1000), false);
    driver
        .connection
        .on_transmitted(driver.now, Admitted::forged(range(0, 1001)));
}

#[test]
#[should_panic(expected = "retransmitted bytes were sent before")]
fn new_bytes_leave_in_order() {
    let mut driver = Driver::new();
    driver.append(5000);
    driver.take(range(0, 5000), false);
    driver
        .connection
        .on_transmitted(driver.now, Admitted::forged(range(1000, 2000)));
}

/// RFC 9293 s3.8.6.2.1: small segments leave only at the end or if nothing is out.
#[test]
fn a_window_with_less_than_a_segment_in_it_can_wait() {
    let mut driver = Driver::sending(
        Peer {
            window: 2000,
            ..PEER
        },
        50_000,
    );
    driver.accept(ack(0).window(2999));
    assert_eq!(driver.flush(), []);
    driver.accept(ack(0).window(3000));
    assert_eq!(driver.flush(), [New(2000, 3000)]);
}

#[test]
fn the_end_of_the_stream_leaves_however_small() {
    let mut driver = Driver::sending(PEER, 2000);
    driver.append(1);
    assert_eq!(driver.flush(), [New(2000, 2001)]);
}

#[test]
fn a_returned_claim_is_demanded_again() {
    let mut driver = Driver::new();
    driver.append(8000);
    driver.take(range(0, 3000), false);
    driver.take(range(3000, 5000), false);
    driver
        .connection
        .return_claim(Claim::forged(range(3000, 5000), false));
    assert_eq!(driver.demanded(), Some((3000, 8000)));
    assert_eq!(driver.connection.outstanding_bytes(), 3000);
    driver
        .connection
        .return_claim(Claim::forged(range(1000, 3000), false));
    assert_eq!(driver.demanded(), Some((1000, 8000)), "or a part of it");
    assert_eq!(driver.complete(range(0, 3000)), Some((0, 1000)));
}

#[test]
fn a_returned_claim_of_lost_bytes_is_demanded_again() {
    let mut driver = Driver::sending(PEER, 10_000);
    driver.pass(millis(100)).accept(ack(0).sack(4000, 10_000));
    let lost = driver.claim();
    driver.connection.return_claim(Claim::forged(lost, true));
    assert_eq!(driver.claim(), lost);
    assert!(driver.complete(lost).is_some());
}

#[test]
fn fetches_that_overtook_others_are_refused() {
    let mut driver = Driver::new();
    driver.append(8000);
    driver.take(range(0, 3000), false);
    driver.take(range(3000, 5000), false);
    assert_eq!(driver.admit(range(3000, 5000)), None);
    assert_eq!(driver.complete(range(0, 3000)), Some((0, 3000)));
    assert_eq!(driver.complete(range(3000, 5000)), Some((3000, 5000)));
    assert_eq!(driver.admit(range(0, 3000)), None, "it left already");
    assert_eq!(driver.admit(range(3000, 8000)), None, "it was not claimed");
}

#[test]
fn a_fetch_may_leave_in_pieces() {
    let mut driver = Driver::new();
    driver.append(5000);
    let fetch = driver.claim();
    driver.transmit(range(0, 1));
    driver.transmit(range(1, 3000));
    assert_eq!(driver.complete(fetch), Some((3000, 5000)));
    assert_eq!(driver.admit(fetch), None);
}

/// The peer had everything after all, or a part, while the disk was asked again.
#[test]
fn bytes_acknowledged_during_a_fetch_are_not_sent() {
    let rows = [
        (ack(10_000), None),
        (ack(4000).sack(6000, 10_000), None),
        (ack(1500).sack(6000, 10_000), Some((1500, 4000))),
        (ack(0).sack(6000, 10_000), Some((0, 4000))),
        (ack(0).sack(0, 1000).sack(6000, 10_000), Some((1000, 4000))),
        (ack(0).sack(3000, 4000).sack(6000, 10_000), Some((0, 3000))),
        // A hole in the middle is cheaper to send than to cut out.
        (ack(0).sack(2000, 3000).sack(6000, 10_000), Some((0, 4000))),
    ];
    for (segment, wanted) in rows {
        let mut driver = Driver::sending(PEER, 10_000);
        driver.pass(millis(100)).accept(ack(0).sack(6000, 10_000));
        // The claim is taken whole, whatever the pace of recovery.
        driver.take(range(0, 4000), true);
        driver.accept(segment);
        assert_eq!(driver.complete(range(0, 4000)), wanted, "{segment:?}");
        assert_eq!(driver.admit(range(0, 4000)), None);
    }
}

#[test]
fn lost_bytes_are_demanded_before_new_ones() {
    let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 50_000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, MSS)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    driver.pass(millis(100)).accept(ack(10_000));
    let sent = driver.flush();
    assert!(matches!(sent[..], [New(10_000, _)]), "{sent:?}");
}

#[test]
fn a_full_log_admits_nothing_new() {
    let mut driver = Driver::with(Peer {
        window_shift: Some(5),
        ..PEER
    });
    driver.append(1 << 20);
    // One entry each: they leave at different moments.
    let mut sent = 0;
    while let Some(demand) = driver.demand() {
        let piece = range(demand.range.start.0, demand.range.start.0 + 1);
        driver.take(piece, false);
        driver.transmit(piece);
        driver.now += Duration::from_nanos(1);
        sent += 1;
        assert!(sent <= crate::flight::ENTRIES_MAX, "the log is bounded");
    }
    assert!(!driver.connection.flight.has_room());
    driver.accept(ack(1));
    assert!(driver.demand().is_some());
}

#[test]
fn the_window_cuts_data_between_segments() {
    for (window, sent) in [(1999, 1000), (2000, 2000), (2999, 2000), (60_000, 10_000)] {
        let mut driver = Driver::with(Peer { window, ..PEER });
        driver.append(50_000);
        assert_eq!(driver.flush(), [New(0, sent)], "{window}");
    }
    // The congestion window: 1000 and what arrived, less what is out.
    for (arrived, end) in [
        (1, 1000),
        (499, 1000),
        (500, 2000),
        (999, 2000),
        (1000, 3000),
    ] {
        let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 50_000);
        let _ = driver.fire();
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        driver.pass(millis(100)).accept(ack(arrived));
        let expected: &[_] = if end > 1000 { &[Again(1000, end)] } else { &[] };
        assert_eq!(driver.flush(), expected, "{arrived}");
    }
}

/// RFC 9293 s3.8.6.2.1 (3): a peer whose window never holds a segment gets halves of it.
#[test]
fn half_of_the_largest_window_is_worth_a_segment() {
    for (window, expected) in [(1199, &[][..]), (1200, &[New(600, 1200)])] {
        let mut driver = Driver::with(Peer {
            window: 600,
            ..PEER
        });
        driver.append(50_000);
        assert_eq!(driver.flush(), [New(0, 600)], "nothing else is out");
        driver.accept(ack(0).window(window));
        assert_eq!(driver.flush(), expected, "{window}");
    }
}
