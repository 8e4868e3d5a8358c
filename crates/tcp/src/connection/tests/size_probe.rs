//! Probes of a larger segment (RFC 4821 s7, RFC 8899): when one is sent, and what its loss and its
//! arrival change.

use super::Sent::{Again, New};
use super::{Driver, PEER, Peer, Sent, ack, millis};
use crate::connection::Framing;
use crate::recovery::RecoveryState;
use crate::size_search::{PROBE_INTERVAL, RAISE_INTERVAL};

/// The peer and our link permit 1460; a router reported 1160.
const LARGE: Peer = Peer {
    segment_bytes: 1460,
    ..PEER
};
const SMALL: u64 = 1160;
const PROBE: u64 = 1460;
/// A probe, and three segments behind it.
const NEEDED: u64 = PROBE + 3 * SMALL;

/// A connection whose size a router reduced so long ago that a probe is due, with nothing in flight and
/// nothing to send. Returns where its stream is.
fn due(peer: Peer) -> (Driver, u64) {
    let mut driver = Driver::sending(peer, 2 * SMALL);
    driver.report(1160);
    let _ = driver.flush();
    driver.pass(RAISE_INTERVAL).accept(ack(2320));
    assert_eq!(driver.connection.segment_bytes(), 1160);
    (driver, 2 * SMALL)
}

/// The same, and the probe and what follows it are in flight.
fn probing(peer: Peer, bytes: u64) -> (Driver, u64) {
    let (mut driver, at) = due(peer);
    driver.append(bytes);
    assert_eq!(driver.flush()[0], New(at, at + PROBE));
    (driver, at)
}

/// Whether a probe was the first that left.
fn starts_with_probe(sent: &[Sent], at: u64) -> bool {
    sent.first() == Some(&New(at, at + PROBE))
}

fn offset(at: u64) -> i64 {
    i64::try_from(at).unwrap()
}

fn place(at: u64) -> u32 {
    u32::try_from(at).unwrap()
}

#[test]
fn a_probe_is_one_packet_of_new_data_and_the_rest_has_the_old_size() {
    let (mut driver, at) = due(LARGE);
    driver.append(8000);
    let sent = driver.flush();
    assert_eq!(sent, [New(at, at + PROBE), New(at + PROBE, at + 8000)]);
    let framings = &driver.framings[driver.framings.len() - 2..];
    let sizes: Vec<_> = framings
        .iter()
        .map(|it| (it.segment_bytes, it.is_single))
        .collect();
    assert_eq!(sizes, [(1460, true), (1160, false)]);
    assert_eq!(driver.connection.path_events().probes_sent, 1);
    driver.append(8000);
    let _ = driver.flush();
    assert_eq!(
        driver.connection.path_events().probes_sent,
        1,
        "one at a time"
    );
}

#[test]
fn a_probe_is_sent_at_its_time() {
    for (early, is_probe) in [(millis(1), false), (millis(0), true)] {
        let mut driver = Driver::sending(LARGE, 2 * SMALL);
        driver.report(1160);
        let _ = driver.flush();
        driver.pass(RAISE_INTERVAL - early).accept(ack(2320));
        driver.append(20_000);
        assert_eq!(starts_with_probe(&driver.flush(), 2320), is_probe);
    }
}

#[test]
fn a_probe_needs_three_segments_behind_it() {
    for (bytes, is_probe) in [(NEEDED - 1, false), (NEEDED, true)] {
        let (mut driver, at) = due(LARGE);
        driver.append(bytes);
        assert_eq!(starts_with_probe(&driver.flush(), at), is_probe, "{bytes}");
    }
}

#[test]
fn a_probe_and_what_follows_it_fit_both_windows() {
    for (window, is_probe) in [(NEEDED - 1, false), (NEEDED, true)] {
        let (mut driver, at) = due(LARGE);
        driver.connection.congestion.force_window(window);
        driver.append(50_000);
        assert_eq!(starts_with_probe(&driver.flush(), at), is_probe, "{window}");

        let (mut driver, at) = due(LARGE);
        let raw = u16::try_from(window).unwrap();
        driver.accept(ack(offset(at)).window(raw));
        driver.append(50_000);
        assert_eq!(starts_with_probe(&driver.flush(), at), is_probe, "{window}");
    }
}

#[test]
fn nothing_is_probed_while_a_loss_is_repaired() {
    let (mut driver, at) = due(LARGE);
    driver.connection.recovery = RecoveryState::Loss {
        high: driver.connection.send.nxt,
    };
    driver.append(50_000);
    assert!(!starts_with_probe(&driver.flush(), at));
}

#[test]
fn a_probe_that_arrives_raises_the_size() {
    let (mut driver, at) = probing(LARGE, 50_000);
    let window = driver.window();
    driver.pass(millis(100)).accept(ack(offset(at + PROBE - 1)));
    assert_eq!(driver.connection.segment_bytes(), 1160);
    driver.accept(ack(offset(at + PROBE)));
    assert_eq!(driver.connection.segment_bytes(), 1460);
    assert!(driver.window() >= window);
    let _ = driver.flush();
    assert_eq!(
        driver.framings.last().map(|it| it.segment_bytes),
        Some(1460)
    );
    let events = driver.connection.take_path_events().unwrap();
    assert_eq!((events.probes_passed, events.probes_lost), (1, 0));
    assert!(
        driver.connection.path.is_none(),
        "nothing is left to search"
    );
}

#[test]
fn a_probe_that_alone_is_lost_is_sent_again_small_and_reduces_nothing() {
    let (mut driver, at) = probing(LARGE, 50_000);
    let window = driver.window();
    let end = driver.connection.send.nxt.0;
    driver
        .pass(millis(100))
        .accept(ack(offset(at)).sack(place(at + PROBE), place(end)));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert_eq!(driver.window(), window);
    let sent = driver.flush();
    assert_eq!(sent[0], Again(at, at + PROBE));
    let again = driver.framings[driver.framings.len() - sent.len()];
    assert_eq!((again.segment_bytes, again.is_single), (1160, false));
    let end = driver.connection.send.nxt.0;
    driver.pass(millis(100)).accept(ack(offset(end)));
    assert_eq!(driver.connection.segment_bytes(), 1160);
    let events = driver.connection.path_events();
    assert_eq!((events.probes_passed, events.probes_lost), (0, 1));
    // The next one waits its time.
    assert!(!starts_with_probe(&driver.flush(), end));
    let end = driver.connection.send.nxt.0;
    driver.pass(PROBE_INTERVAL).accept(ack(offset(end)));
    driver.append(50_000);
    assert!(starts_with_probe(&driver.flush(), end));
}

#[test]
fn a_probe_that_is_lost_with_another_packet_is_a_loss_like_any_other() {
    let (mut driver, at) = probing(LARGE, 50_000);
    let window = driver.window();
    let end = driver.connection.send.nxt.0;
    let from = place(at + PROBE + SMALL);
    driver
        .pass(millis(100))
        .accept(ack(offset(at)).sack(from, place(end)));
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Recovery { .. }
    ));
    let _ = driver.flush();
    let end = driver.connection.send.nxt.0;
    driver.pass(millis(100)).accept(ack(offset(end)));
    assert!(driver.window() < window);
    assert_eq!(driver.connection.path_events().probes_lost, 1);
}

#[test]
fn without_sack_the_third_duplicate_shows_the_loss_of_a_probe() {
    let without_sack = Peer {
        sack: false,
        ..LARGE
    };
    let (mut driver, at) = probing(without_sack, 50_000);
    let window = driver.window();
    driver.pass(millis(100));
    for _ in 0..2 {
        driver.accept(ack(offset(at)));
        assert!(!driver.flush().iter().any(|sent| matches!(sent, Again(..))));
    }
    driver.accept(ack(offset(at)));
    assert_eq!(driver.flush(), [Again(at, at + PROBE)]);
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert_eq!(driver.window(), window);
}

#[test]
fn a_timeout_is_a_loss_of_the_probe_and_congestion() {
    let (mut driver, _) = probing(LARGE, NEEDED);
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
        let _ = driver.flush();
    }
    assert_eq!(driver.connection.path_events().probes_lost, 1);
    assert!(driver.window() <= 1160);
}

#[test]
fn bbr_is_not_told_of_the_loss_of_a_probe() {
    use crate::congestion::CongestionControl;
    use crate::connection::Config;
    let config = Config {
        congestion: CongestionControl::Bbr,
        is_paced: false,
        ..Config::default()
    };
    let mut driver = Driver::configured(LARGE, config);
    driver.append(2 * SMALL);
    let _ = driver.flush();
    driver.report(1160);
    let _ = driver.flush();
    driver.pass(RAISE_INTERVAL).accept(ack(2320));
    driver.append(50_000);
    assert!(starts_with_probe(&driver.flush(), 2320));
    let (window, end) = (driver.window(), driver.connection.send.nxt.0);
    let from = place(2320 + PROBE);
    driver
        .pass(millis(100))
        .accept(ack(2320).sack(from, place(end)));
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    assert!(driver.window() >= window);
    assert_eq!(driver.flush()[0], Again(2320, 2320 + PROBE));
}

/// A router that says what fits a probe is believed as far as a probe confirms it.
#[test]
fn the_size_that_a_report_about_a_probe_names_is_probed_next() {
    let (mut driver, at) = probing(LARGE, 50_000);
    driver.report(1400);
    assert_eq!(driver.connection.segment_bytes(), 1160, "it raises nothing");
    let end = driver.connection.send.nxt.0;
    driver
        .pass(millis(100))
        .accept(ack(offset(at)).sack(place(at + PROBE), place(end)));
    let _ = driver.flush();
    let end = driver.connection.send.nxt.0;
    driver.pass(PROBE_INTERVAL).accept(ack(offset(end)));
    driver.append(50_000);
    let sent = driver.flush();
    assert_eq!(sent[0], New(end, end + 1400));
    driver.pass(millis(100)).accept(ack(offset(end + 1400)));
    assert_eq!(driver.connection.segment_bytes(), 1400);
}

#[test]
fn a_report_about_something_else_than_the_probe_is_a_report() {
    let (mut driver, at) = probing(LARGE, 50_000);
    let quoted = driver
        .connection
        .send
        .sequence_of(crate::stream::StreamOffset(at + PROBE));
    driver
        .connection
        .on_packet_too_big(driver.now, quoted, 1000);
    // It waits: packets of 1160 arrived.
    assert_eq!(driver.connection.waiting_report(), Some(1000));
}

/// A frame with CWR has one packet of the ordinary size: it is what tells of a reduction.
#[test]
fn cwr_comes_before_a_probe() {
    let (mut driver, at) = due(Peer { ecn: true, ..LARGE });
    driver.connection.note_reduction();
    driver.append(50_000);
    let sent = driver.flush();
    assert_eq!(
        sent[..2],
        [New(at, at + SMALL), New(at + SMALL, at + SMALL + PROBE)]
    );
}

#[test]
fn our_link_that_takes_more_again_is_probed_at_once() {
    let mut driver = Driver::sending(LARGE, 2 * SMALL);
    driver.connection.on_link_limit(driver.now, 1200);
    assert_eq!(driver.connection.segment_bytes(), 1200);
    let _ = driver.flush();
    assert_eq!(driver.connection.take_path_events(), None);
    assert!(driver.connection.path.is_none());
    driver.connection.on_link_limit(driver.now, 1300);
    driver.pass(millis(100)).accept(ack(2320));
    driver.append(50_000);
    assert_eq!(driver.flush()[0], New(2320, 2320 + 1300));
    driver.pass(millis(100)).accept(ack(2320 + 1300));
    assert_eq!(driver.connection.segment_bytes(), 1300);
    // More than the peer takes is never tried.
    driver.connection.on_link_limit(driver.now, 8960);
    let end = driver.connection.send.nxt.0;
    driver.pass(millis(100)).accept(ack(offset(end)));
    let sent = driver.flush();
    assert_eq!(sent[0], New(end, end + 1460));
}

#[test]
fn a_link_that_takes_less_meanwhile_bounds_what_a_probe_raises() {
    let (mut driver, at) = probing(LARGE, 50_000);
    driver.connection.on_link_limit(driver.now, 1300);
    driver.pass(millis(100)).accept(ack(offset(at + PROBE)));
    assert_eq!(driver.connection.segment_bytes(), 1300);
}

#[test]
fn a_link_that_permits_no_more_than_the_peer_costs_no_memory() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.connection.on_link_limit(driver.now, 8960);
    assert!(driver.connection.path.is_none());
    assert_ne!(driver.framings.last(), Some(&Framing::CONTROL));
}
