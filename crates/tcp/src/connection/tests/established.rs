//! ESTABLISHED: what the handshake leaves behind, and the plain road of data.

use clock::Instant;
use wire::{TcpFlags, Timestamps};

use super::Sent::{Ack, New};
use super::{
    Config, Connection, Credit, Driver, INITIAL_WINDOW, IRS, MSS, OFFER, PEER, Peer,
    RECEIVE_WINDOW, RTO, START, ack, millis, peer_stamp, sequence, syn, tuple,
};
use crate::congestion::Controller as _;
use crate::connection::State;
use crate::half_open::HalfOpen;

#[test]
fn the_handshake_gives_round_trip_windows_and_segment_size() {
    let driver = Driver::with(Peer {
        window: 500,
        window_shift: Some(3),
        ..PEER
    });
    let connection = &driver.connection;
    assert_eq!(connection.state(), State::Established);
    assert_eq!(connection.smoothed_rtt(), Some(millis(100)));
    assert_eq!(connection.congestion_window(), INITIAL_WINDOW);
    assert_eq!(u64::from(connection.segment_bytes()), MSS);
    assert_eq!(connection.send.window(), 4000, "500 << 3");
    assert_eq!(connection.control(), None);
    assert!(connection.is_idle() && !connection.is_finishing());
}

#[test]
fn a_repeated_syn_ack_gives_no_sample() {
    let mut half_open = HalfOpen::new(Instant::ZERO, tuple(), &syn(PEER), OFFER);
    assert!(half_open.handle_timeout(half_open.deadline()));
    let now = Instant::from_millis(1100);
    let mut connection = Connection::new(Config::default(), &half_open, now, 1000);
    assert_eq!(connection.smoothed_rtt(), None);
    connection.append(now, 10);
    let Credit::Now(demand) = connection.credit(now) else {
        panic!("the first data may be sent at once");
    };
    let end = demand.range.end;
    let claim = connection.claim(now, demand, end);
    let admitted = connection.admit(&claim).unwrap();
    connection.on_transmitted(now, admitted);
    assert_eq!(
        connection.poll_timeout(),
        Some(now + millis(3000)),
        "RFC 6298 s5.7"
    );
}

/// RFC 6928 s2: one segment if the SYN-ACK was lost more than once.
#[test]
fn a_syn_ack_that_was_lost_twice_leaves_one_segment() {
    for (timeouts, segments) in [(0, 10), (1, 10), (2, 1), (3, 1)] {
        let mut half_open = HalfOpen::new(Instant::ZERO, tuple(), &syn(PEER), OFFER);
        for _ in 0..timeouts {
            assert!(half_open.handle_timeout(half_open.deadline()));
        }
        let now = half_open.deadline();
        let connection = Connection::new(Config::default(), &half_open, now, 60_000);
        assert_eq!(connection.congestion_window(), segments * MSS);
        assert_eq!(connection.congestion.threshold(), u64::MAX, "slow start");
    }
}

#[test]
fn the_initial_window_leaves_at_once_and_no_more() {
    let mut driver = Driver::new();
    driver.append(50_000);
    assert_eq!(driver.flush(), [New(0, INITIAL_WINDOW)]);
    assert_eq!(driver.flush(), []);
    assert_eq!(
        driver.deadline(),
        START + millis(202),
        "the tail probe: 2 * SRTT + 2 ms"
    );
}

#[test]
fn acks_open_credit_for_as_much_again_and_slow_start_doubles_it() {
    let mut driver = Driver::sending(PEER, 100_000);
    driver.pass(millis(100)).accept(ack(2000));
    assert_eq!(driver.flush(), [New(10_000, 14_000)]);
    driver.accept(ack(10_000));
    assert_eq!(driver.flush(), [New(14_000, 30_000)]);
    assert_eq!(driver.window(), 20_000);
}

#[test]
fn headers_say_where_their_range_lies() {
    let mut driver = Driver::new();
    driver.append(7000);
    let _ = driver.receive(ack(0).text(100));
    assert_eq!(driver.flush(), [New(0, 7000)]);
    let header = *driver.last_header();
    assert_eq!((header.source_port, header.destination_port), (80, 5000));
    assert_eq!(header.sequence, sequence(0));
    assert_eq!(header.acknowledgment, IRS.wrapping_add(101));
    assert_eq!(header.window, RECEIVE_WINDOW - 100);
    assert_eq!(header.flags, TcpFlags::ACK.union(TcpFlags::PSH));
    let connection = &driver.connection;
    let middle = connection.segment(START, &super::Admitted::forged(super::range(5000, 6000)));
    assert_eq!(middle.sequence, sequence(5000));
    assert_eq!(middle.flags, TcpFlags::ACK, "more follows");
    assert_eq!(
        middle.options.timestamps, None,
        "the peer did not offer them"
    );
}

#[test]
fn every_segment_is_stamped_if_both_sides_agreed() {
    let mut driver = Driver::with(Peer {
        timestamps: true,
        ..PEER
    });
    assert_eq!(
        u64::from(driver.connection.segment_bytes()),
        MSS,
        "1012 less the option"
    );
    let _ = driver.pass(millis(20)).receive(ack(0).text(10));
    let stamp = peer_stamp(driver.now).value;
    driver.pass(millis(20)).append(10);
    assert_eq!(driver.flush(), [New(0, 10)]);
    let expected = Some(Timestamps {
        value: 140,
        echo: stamp,
    });
    assert_eq!(driver.last_header().options.timestamps, expected);
    let _ = driver.receive(ack(10).text(10));
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Ack]);
    assert!(driver.last_header().options.timestamps.is_some());
}

#[test]
fn samples_are_of_the_time_since_data_left_not_since_it_was_claimed() {
    let mut driver = Driver::new();
    driver.append(1000);
    let range = driver.claim();
    driver.pass(millis(5000));
    assert_eq!(driver.complete(range), Some((0, 1000)));
    assert_eq!(driver.wait(), RTO);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.connection.smoothed_rtt(), Some(millis(100)));
}

#[test]
fn progress_is_counted_from_the_first_byte_queued_after_idleness() {
    let mut driver = Driver::new();
    driver.pass(millis(1000)).append(500);
    let queued_at = driver.now;
    assert_eq!(driver.connection.progress_at(), queued_at);
    driver.pass(millis(10)).append(500);
    assert_eq!(
        driver.connection.progress_at(),
        queued_at,
        "it was not idle"
    );
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(400));
    assert_eq!(driver.connection.progress_at(), driver.now);
    let moved_at = driver.now;
    driver.pass(millis(1)).accept(ack(400));
    assert_eq!(driver.connection.progress_at(), moved_at);
    assert_eq!(driver.connection.acknowledged().0, 400);
    assert!(!driver.connection.is_idle());
}

#[test]
fn the_stream_outlives_the_wrap_of_its_sequence_numbers() {
    let mut driver = Driver::sending(PEER, 1 << 20);
    let mut left = INITIAL_WINDOW;
    while left < 1 << 20 {
        let acknowledged = i64::try_from(left).unwrap();
        driver.pass(millis(100)).accept(ack(acknowledged));
        for sent in driver.flush() {
            let New(start, end) = sent else {
                panic!("nothing was lost: {sent:?}");
            };
            assert_eq!(start, left);
            left = end;
        }
    }
    driver.accept(ack(1 << 20));
    assert!(driver.connection.is_idle());
    assert_eq!(driver.connection.retransmitted_bytes(), 0);
}
