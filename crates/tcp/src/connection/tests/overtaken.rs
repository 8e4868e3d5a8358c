//! ACKs that later ones have overtaken.

use wire::Timestamps;

use super::{Driver, PEER, Peer, Segment, ack, millis, range};
use crate::verdict::{Arrival, SegmentDrop};

const STAMPING: Peer = Peer {
    timestamps: true,
    ..PEER
};

/// An ACK whose timestamp is so many ticks older than the newest.
fn receive_older(driver: &mut Driver, segment: Segment, ticks: u32) -> Arrival {
    let mut repr = driver.repr(segment);
    let stamp = repr.options.timestamps.unwrap();
    repr.options.timestamps = Some(Timestamps {
        value: stamp.value.wrapping_sub(ticks),
        ..stamp
    });
    driver.receive_repr(&repr, segment.payload_bytes)
}

/// Ten segments are out, four of them acknowledged.
fn sending() -> Driver {
    let mut driver = Driver::sending(STAMPING, 10_000);
    driver.pass(millis(100)).accept(ack(4000));
    driver
}

/// RFC 7323 s5.3, but for the exception that Linux has as well.
#[test]
fn only_an_ack_of_the_last_moments_that_acknowledges_nothing_new_is_no_old_duplicate() {
    for (segment, ticks, is_taken) in [
        (ack(4000), 1, true),
        (ack(4000), 200, true),
        (ack(4000), 201, false),
        (ack(3000), 1, true),
        (ack(4001), 1, false),
        (ack(4000).text(1), 1, false),
        (ack(4000).fin(), 1, false),
        (ack(4000).at(1), 1, false),
    ] {
        let arrival = receive_older(&mut sending(), segment, ticks);
        let expected = (!is_taken).then_some(SegmentDrop::StaleTimestamp);
        assert_eq!(arrival.drop, expected, "{segment:?} {ticks}");
    }
}

/// What is compared with later timestamps is the newest.
#[test]
fn an_overtaken_ack_changes_nothing_that_timestamps_are_compared_with() {
    let mut driver = sending();
    assert!(receive_older(&mut driver, ack(4000), 200).drop.is_none());
    let arrival = receive_older(&mut driver, ack(5000), 1);
    assert_eq!(arrival.drop, Some(SegmentDrop::StaleTimestamp));
}

/// RFC 2018, RFC 2883: reports count, whichever ACK brings them. A block below what is acknowledged by now
/// was no duplicate when it was sent.
#[test]
fn an_overtaken_ack_still_reports_what_arrived() {
    for ticks in [0, 5] {
        let mut driver = sending();
        let _ = receive_older(&mut driver, ack(1000).sack(6000, 7000), ticks);
        assert_eq!(driver.connection.flight.sacked_bytes(), 1000);
        let una = driver.connection.send.una;
        let late = driver.repr(ack(1000).sack(2000, 3000));
        let own = driver.connection.send.offset_of(late.acknowledgment);
        let reported = |at| driver.connection.reported_duplicate(&late, at);
        assert_eq!(reported(own.unwrap()), None);
        assert_eq!(reported(una), Some(range(2000, 3000)));
    }
}
