//! Retransmission timeouts that fired for nothing: Eifel (RFC 3522, 4015), F-RTO (RFC 5682).

use clock::Instant;

use super::Sent::{Again, New};
use super::{
    Driver, PEER, PEER_WITHOUT_SACK, Peer, STAMPING_WITHOUT_SACK, Segment, ack, millis, range,
};
use crate::congestion::Controller as _;
use crate::recovery::RecoveryState;

const STAMPING: Peer = Peer {
    timestamps: true,
    ..PEER
};

/// Ten segments are out and the window is theirs; the timer fires. Returns when they left.
fn timed_out(peer: Peer) -> (Driver, Instant) {
    let mut driver = Driver::sending(peer, 100_000);
    let left_at = driver.now;
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!((driver.window(), threshold(&driver)), (1000, 7000));
    (driver, left_at)
}

/// The same, and the first segment left again.
fn resent(peer: Peer) -> (Driver, Instant) {
    let (mut driver, left_at) = timed_out(peer);
    driver.pass(millis(5));
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    (driver, left_at)
}

fn threshold(driver: &Driver) -> u64 {
    driver.connection.congestion.threshold()
}

fn is_undone(driver: &Driver) -> bool {
    let is_open = driver.connection.recovery == RecoveryState::Open;
    assert_eq!(is_open, driver.window() >= 10_000);
    assert_eq!(is_open, threshold(driver) == u64::MAX);
    assert_eq!(is_open, driver.connection.flight.lost_bytes() == 0);
    is_open
}

/// RFC 3522 s3.2: the first ACK tells by its echo, on both sides of the resend's stamp.
#[test]
fn an_echo_from_before_the_resend_undoes_the_timeout() {
    for peer in [STAMPING, STAMPING_WITHOUT_SACK] {
        let (mut driver, left_at) = resent(peer);
        let resent_at = driver.now;
        driver.pass(millis(100));
        let arrival = driver.receive(ack(1000).echo(left_at));
        assert!(arrival.timeout_undone && is_undone(&driver));
        assert_eq!(driver.flush(), [New(10_000, 11_000)], "nothing goes again");
        driver.pass(millis(1)).accept(ack(10_000).echo(left_at));
        assert!(is_undone(&driver));

        let just_before = Instant::from_millis(resent_at.as_millis() - 1);
        for (echoed, undone) in [(just_before, true), (resent_at, false)] {
            let (mut driver, _) = resent(peer);
            assert_eq!(driver.now, resent_at);
            driver.pass(millis(100));
            let arrival = driver.receive(ack(1000).echo(echoed));
            assert_eq!(arrival.timeout_undone, undone);
            assert_eq!(is_undone(&driver), undone);
        }
    }
}

/// The resend was needed; an older echo later, of a segment out of order, changes nothing.
#[test]
fn the_first_ack_decides() {
    let (mut driver, left_at) = resent(STAMPING);
    let resent_at = driver.now;
    driver.pass(millis(100)).accept(ack(1000).echo(resent_at));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    driver.pass(millis(1)).accept(ack(2000).echo(left_at));
    assert!(!is_undone(&driver));
}

#[test]
fn an_ack_that_moves_nothing_decides_nothing() {
    let (mut driver, left_at) = resent(STAMPING);
    driver.pass(millis(50)).accept(ack(0).echo(left_at));
    assert!(!is_undone(&driver));
    driver.pass(millis(50)).accept(ack(1000).echo(left_at));
    assert!(is_undone(&driver));
}

/// All that was out is acknowledged by one late ACK.
#[test]
fn one_ack_of_everything_undoes_the_timeout() {
    for (early, window) in [(true, 10_000), (false, 1000)] {
        let (mut driver, left_at) = resent(STAMPING);
        let echoed = if early { left_at } else { driver.now };
        driver.pass(millis(100));
        let arrival = driver.receive(ack(10_000).echo(echoed));
        assert_eq!(arrival.timeout_undone, early);
        assert_eq!(driver.connection.recovery, RecoveryState::Open);
        assert!(driver.window() >= window);
        assert_eq!(threshold(&driver) == u64::MAX, early);
    }
}

/// The disk had not brought the resend yet: what arrives cannot be of it.
#[test]
fn an_ack_before_any_retransmission_undoes_the_timeout() {
    for peer in [PEER, PEER_WITHOUT_SACK, STAMPING] {
        let (mut driver, _) = timed_out(peer);
        let fetch = driver.claim();
        assert_eq!(fetch, range(0, 1000));
        driver.pass(millis(10)).accept(ack(0));
        assert!(!is_undone(&driver), "a duplicate brings nothing");
        assert!(driver.receive(ack(1000)).timeout_undone);
        assert!(is_undone(&driver));
        assert_eq!(driver.complete(fetch), None, "and it need not leave");
        assert_eq!(driver.flush(), [New(10_000, 11_000)]);
    }
}

/// The same fetch, of bytes that are still out: they are on their way.
#[test]
fn a_resend_being_fetched_does_not_leave_after_all() {
    let (mut driver, left_at) = resent(STAMPING);
    driver.take(range(1000, 2000), true);
    driver.pass(millis(10)).accept(ack(1000).echo(left_at));
    assert!(is_undone(&driver));
    assert_eq!(driver.complete(range(1000, 2000)), None);
    assert_eq!(driver.connection.flight.claimed_bytes(), 0);
}

/// RFC 5682 s2.1, steps 2b and 3b.
#[test]
fn new_data_after_the_first_ack_shows_a_spurious_timeout() {
    for peer in [PEER, PEER_WITHOUT_SACK] {
        let (mut driver, _) = resent(peer);
        driver.pass(millis(100)).accept(ack(1000));
        assert!(!is_undone(&driver));
        assert_eq!(driver.flush(), [New(10_000, 12_000)], "and nothing again");
        driver.pass(millis(1));
        assert!(driver.receive(ack(2000)).timeout_undone);
        assert!(is_undone(&driver));
        assert!(matches!(driver.flush()[..], [] | [New(12_000, _)]));
    }
}

/// RFC 5682 s2.1, step 3a: new data arrived above a hole.
#[test]
fn a_duplicate_ack_after_new_data_means_a_genuine_timeout() {
    let rows = [
        (PEER_WITHOUT_SACK, ack(1000)),
        (PEER, ack(1000).sack(10_000, 11_000)),
    ];
    for (peer, duplicate) in rows {
        let (mut driver, _) = resent(peer);
        driver.pass(millis(100)).accept(ack(1000));
        assert_eq!(driver.flush(), [New(10_000, 12_000)]);
        driver.pass(millis(100)).accept(duplicate);
        assert!(!is_undone(&driver));
        assert_eq!(driver.window(), 3000);
        assert!(matches!(driver.flush()[..], [Again(1000, _)]));
        driver.pass(millis(1)).accept(ack(2000));
        assert!(!is_undone(&driver), "it is decided");
    }
}

/// RFC 5682 s2.1, step 2a: conventional recovery.
#[test]
fn without_new_data_or_after_a_duplicate_retransmission_continues() {
    // Nothing more to send.
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 10_000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    // The window admits nothing.
    let (mut driver, _) = resent(PEER_WITHOUT_SACK);
    driver.pass(millis(100)).accept(ack(1000).window(9000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    // A duplicate comes first.
    let (mut driver, _) = resent(PEER_WITHOUT_SACK);
    driver.pass(millis(100)).accept(ack(0));
    driver.accept(ack(1000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    // The ACK stops within what was resent.
    let (mut driver, _) = resent(PEER_WITHOUT_SACK);
    driver.pass(millis(100)).accept(ack(500));
    assert!(matches!(driver.flush()[..], [Again(1000, _)]));
}

/// The window shrank before the new data could leave, and nothing is out: no ACK would come.
#[test]
fn retransmission_continues_if_new_data_cannot_be_sent() {
    for window in [9000, 9400, 60_000] {
        let (mut driver, _) = resent(PEER_WITHOUT_SACK);
        driver.pass(millis(100)).accept(ack(1000));
        driver.accept(ack(1000).text(10).window(window));
        let expected: &[_] = if window == 60_000 {
            &[New(10_000, 12_000)]
        } else {
            &[Again(1000, 3000)]
        };
        let sent = driver.flush();
        assert!(sent.starts_with(expected), "{window}: {sent:?}");
    }
}

/// RFC 5682 s3.1 and Linux: with SACK, what left once and is newly reported was merely late.
/// Without, it may have waited above the hole.
#[test]
fn with_sack_the_first_ack_can_show_a_spurious_timeout() {
    for (peer, undone) in [(PEER, true), (PEER_WITHOUT_SACK, false)] {
        let (mut driver, _) = resent(peer);
        driver.pass(millis(100)).accept(ack(3000));
        assert_eq!(is_undone(&driver), undone);
    }
    let (mut driver, _) = resent(PEER);
    driver.pass(millis(100)).accept(ack(0).sack(8000, 9000));
    assert!(is_undone(&driver));
}

/// RFC 5682 s2.1, step 1: F-RTO is for the first timeout. The first resend's stamp still tells.
#[test]
fn a_second_timeout_leaves_only_the_echo() {
    for (peer, undone) in [(PEER_WITHOUT_SACK, false), (STAMPING_WITHOUT_SACK, true)] {
        let (mut driver, left_at) = resent(peer);
        while driver.connection.timeouts == 1 {
            let _ = driver.fire();
        }
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        driver.pass(millis(10)).accept(ack(1000).echo(left_at));
        driver.accept(ack(2000).echo(left_at));
        assert_eq!(is_undone(&driver), undone);
    }
}

/// A receiver that keeps nothing out of order drops F-RTO's new data, which costs it another
/// timeout. That one resends everything, and no third follows.
#[test]
fn new_data_is_not_tried_again_before_there_is_a_sample() {
    let (mut driver, _) = resent(PEER_WITHOUT_SACK);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [New(10_000, 12_000)]);
    driver.pass(millis(100)).accept(ack(1000));
    while driver.connection.send.una.0 < 10_000 {
        let end = driver.flush().iter().rev().find_map(|sent| match sent {
            Again(_, end) => Some(*end),
            _ => None,
        });
        let end = i64::try_from(end.expect("it is resent")).unwrap();
        driver.pass(millis(100)).accept(ack(end));
    }
    assert_eq!(driver.connection.recovery, RecoveryState::Open);
    let _ = driver.flush();
    let _ = driver.fire();
    assert_eq!(driver.connection.timeouts, 1);
    assert_eq!(driver.flush(), [Again(10_000, 11_000)]);
    driver.pass(millis(100)).accept(ack(11_000));
    assert!(matches!(driver.flush()[..], [Again(11_000, _)]));
}

/// The loss that began the recovery was a true one.
#[test]
fn a_timeout_during_recovery_is_not_undone() {
    let mut driver = Driver::sending(STAMPING, 100_000);
    let left_at = driver.now;
    driver.pass(millis(100)).accept(ack(0).sack(1000, 4000));
    let _ = driver.flush();
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!(threshold(&driver), 7000);
    let _ = driver.flush();
    driver.pass(millis(10)).accept(ack(4000).echo(left_at));
    assert_eq!(threshold(&driver), 7000);
    assert!(matches!(
        driver.connection.recovery,
        RecoveryState::Loss { .. }
    ));
}

/// RFC 8985 s6.2, step 2: the delivery of a first sending makes nothing look overdue that left with
/// it.
#[test]
fn after_an_undone_timeout_nothing_is_taken_for_lost() {
    for peer in [STAMPING, PEER] {
        let (mut driver, left_at) = resent(peer);
        driver.pass(millis(300));
        for at in 1..=5 {
            driver.pass(millis(1)).accept(ack(at * 1000).echo(left_at));
            let sent = driver.flush();
            assert!(
                sent.iter().all(|sent| matches!(sent, New(..))),
                "{at}: {sent:?}"
            );
        }
        assert!(is_undone(&driver));
    }
}

/// A middlebox takes the peer's timestamps away: F-RTO finds out what they would have told.
#[test]
fn frto_judges_a_timeout_where_agreed_timestamps_do_not_arrive() {
    let receive = |driver: &mut Driver, segment: Segment| {
        let mut repr = driver.repr(segment);
        repr.options.timestamps = None;
        driver.receive_repr(&repr, 0)
    };
    let mut driver = Driver::sending(STAMPING, 100_000);
    let _ = receive(&mut driver, ack(0));
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100));
    assert!(!receive(&mut driver, ack(1000)).timeout_undone);
    assert_eq!(driver.flush(), [New(10_000, 12_000)], "and nothing again");
    driver.pass(millis(1));
    assert!(receive(&mut driver, ack(2000)).timeout_undone);
    assert!(is_undone(&driver));
}
