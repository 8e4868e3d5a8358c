//! Something on the path drops large packets and reports nothing (RFC 4821 s7.7).

use core::net::SocketAddr;

use super::Sent::{Again, New};
use super::{Driver, OFFER, PEER, PEER_WITHOUT_SACK, Peer, START, ack, millis, syn};
use crate::congestion::Controller as _;
use crate::connection::{
    BASE_PACKET_BYTES_V4, BASE_PACKET_BYTES_V6, BLACK_HOLE_TIMEOUTS, BLACK_HOLE_TIMEOUTS_UNPROVEN,
    Config, Connection,
};
use crate::half_open::HalfOpen;
use crate::size_search::PROBE_INTERVAL;
use crate::table::FourTuple;

/// Segments of an Ethernet; nothing but the retransmission timer notices a loss.
const LARGE: Peer = Peer {
    segment_bytes: 1460,
    ..PEER_WITHOUT_SACK
};
/// Payload of a packet of the base size.
const BASE: u16 = BASE_PACKET_BYTES_V4 - 40;

/// The retransmission timer fires so often, and each time what it permits is sent.
fn time_out(driver: &mut Driver, times: u8) {
    for _ in 0..times {
        let _ = driver.fire();
        let _ = driver.flush();
    }
}

#[test]
fn large_packets_that_never_arrived_are_given_up_after_two_timeouts() {
    let mut driver = Driver::sending(LARGE, 100_000);
    time_out(&mut driver, BLACK_HOLE_TIMEOUTS_UNPROVEN - 1);
    assert_eq!(driver.connection.segment_bytes(), 1460);
    let _ = driver.fire();
    assert_eq!(driver.connection.segment_bytes(), BASE);
    assert_eq!(driver.flush(), [Again(0, BASE.into())]);
    driver.pass(millis(100)).accept(ack(BASE.into()));
    assert_eq!(
        driver.flush(),
        [Again(1160, 3480)],
        "slow start, in small segments"
    );
    assert_eq!(driver.connection.path_events().black_holes, 1);
}

#[test]
fn large_packets_that_arrived_before_get_a_timeout_more() {
    let mut driver = Driver::sending(LARGE, 100_000);
    driver.pass(millis(100)).accept(ack(1460));
    let _ = driver.flush();
    time_out(&mut driver, BLACK_HOLE_TIMEOUTS - 1);
    assert_eq!(driver.connection.segment_bytes(), 1460);
    let _ = driver.fire();
    assert_eq!(driver.connection.segment_bytes(), BASE);
}

/// What counts is the packet that is lost: a larger one may have arrived, or only smaller ones.
#[test]
fn the_lost_packet_is_compared_with_those_that_arrived() {
    for (arrived, timeouts) in [
        (1299, BLACK_HOLE_TIMEOUTS_UNPROVEN),
        (1300, BLACK_HOLE_TIMEOUTS),
    ] {
        let mut driver = Driver::sending(LARGE, arrived);
        driver.pass(millis(100)).accept(ack(arrived.cast_signed()));
        driver.append(1300);
        let _ = driver.flush();
        time_out(&mut driver, timeouts - 1);
        assert_eq!(driver.connection.segment_bytes(), 1460);
        time_out(&mut driver, 1);
        assert_eq!(driver.connection.segment_bytes(), BASE);
    }
}

#[test]
fn the_window_is_what_the_timeouts_made_it() {
    let config = |probes_path_mtu| Config {
        is_paced: false,
        probes_path_mtu,
        ..Config::default()
    };
    let windows = [true, false].map(|probes| {
        let mut driver = Driver::configured(LARGE, config(probes));
        driver.append(100_000);
        let _ = driver.flush();
        time_out(&mut driver, 5);
        let is_reduced = driver.connection.segment_bytes() == BASE;
        assert_eq!(is_reduced, probes);
        let segments = driver.window() / u64::from(driver.connection.segment_bytes());
        (segments, driver.connection.congestion.threshold())
    });
    assert_eq!(windows[0], windows[1]);
}

#[test]
fn packets_of_the_base_size_are_lost_for_other_reasons() {
    for (segment_bytes, after) in [(BASE, BASE), (BASE + 1, BASE)] {
        let mut driver = Driver::sending(
            Peer {
                segment_bytes,
                ..LARGE
            },
            50_000,
        );
        time_out(&mut driver, 6);
        assert_eq!(driver.connection.segment_bytes(), after);
        let holes = u32::from(segment_bytes > BASE);
        assert_eq!(driver.connection.path_events().black_holes, holes);
    }
    // A small reply, of a connection with large segments.
    for (bytes, holes) in [(u64::from(BASE), 0), (u64::from(BASE) + 1, 1)] {
        let mut driver = Driver::sending(LARGE, bytes);
        time_out(&mut driver, 6);
        assert_eq!(driver.connection.path_events().black_holes, holes);
    }
}

#[test]
fn a_large_packet_that_arrives_between_timeouts_refutes_the_guess() {
    let with_sack = Peer {
        sack: true,
        ..LARGE
    };
    // The last packet, of 1400 bytes, or a part of it as after a split, and the whole.
    for (from, is_refuted) in [(13_140 + 1, false), (13_140, true)] {
        let mut driver = Driver::sending(with_sack, 100_000);
        // The tail loss probe, then a timeout.
        time_out(&mut driver, 2);
        assert_eq!(driver.connection.timeouts, 1);
        driver.accept(ack(0).sack(from, 14_600));
        let _ = driver.flush();
        while driver.connection.timeouts < 2 {
            time_out(&mut driver, 1);
        }
        assert_eq!(driver.connection.segment_bytes() == 1460, is_refuted);
    }
}

/// RFC 9293 s3.8.6: a peer may drop what its window does not take.
#[test]
fn a_window_too_small_for_the_packet_explains_its_loss() {
    for (window, after) in [(1459, 1460), (1460, BASE)] {
        let mut driver = Driver::sending(LARGE, 50_000);
        driver.accept(ack(0).window(window));
        time_out(&mut driver, 4);
        assert_eq!(driver.connection.segment_bytes(), after, "{window}");
    }
}

#[test]
fn the_base_is_a_packet_and_its_payload_depends_on_its_headers() {
    let stamping = Peer {
        timestamps: true,
        segment_bytes: 1448,
        ..LARGE
    };
    let mut driver = Driver::sending(stamping, 50_000);
    time_out(&mut driver, 2);
    assert_eq!(driver.connection.segment_bytes(), BASE - 12);

    let tuple = FourTuple {
        local: SocketAddr::new("2001:db8::2".parse().unwrap(), 80),
        peer: SocketAddr::new("2001:db8::1".parse().unwrap(), 5000),
    };
    let half_open = HalfOpen::new(START, tuple, &syn(LARGE), OFFER);
    let mut connection = Connection::new(Config::default(), &half_open, START, 60_000);
    connection.append(START, 3000);
    let mut driver = Driver {
        connection,
        ..Driver::with(LARGE)
    };
    let _ = driver.flush();
    time_out(&mut driver, 2);
    assert_eq!(driver.connection.segment_bytes(), BASE_PACKET_BYTES_V6 - 60);
}

/// The round trip has grown to seconds: the first transmissions arrive, and their echoes prove it.
#[test]
fn a_spurious_timeout_has_the_size_probed_at_once() {
    let stamping = Peer {
        timestamps: true,
        segment_bytes: 1448,
        ..LARGE
    };
    let mut driver = Driver::sending(stamping, 1_000_000);
    let sent = driver.now;
    time_out(&mut driver, 2);
    assert_eq!(driver.connection.segment_bytes(), BASE - 12);
    driver.accept(ack(1448).echo(sent));
    let _ = driver.flush();
    let at = driver.connection.send.nxt.0;
    driver.pass(millis(1)).accept(ack(14_480).echo(sent));
    assert!(millis(1) < PROBE_INTERVAL);
    assert_eq!(driver.flush()[0], New(at, at + 1448), "a probe");
}

#[test]
fn a_connection_that_may_not_probe_keeps_its_size() {
    let config = Config {
        probes_path_mtu: false,
        ..Config::default()
    };
    let mut driver = Driver::configured(LARGE, config);
    driver.append(50_000);
    let _ = driver.flush();
    time_out(&mut driver, 8);
    assert_eq!(driver.connection.segment_bytes(), 1460);
    assert!(driver.connection.path.is_none());
}

/// A connection without trouble has no state of its path.
#[test]
fn one_timeout_costs_no_memory() {
    let mut driver = Driver::sending(Peer { sack: true, ..PEER }, 50_000);
    time_out(&mut driver, 2);
    assert!(driver.connection.path.is_none());
}
