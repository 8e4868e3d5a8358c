//! The peer's window shuts (RFC 9293 s3.8.6.1).

use super::Sent::{Again, New, Probe};
use super::{Config, Driver, PEER, PEER_WITHOUT_SACK, Peer, RTO, ack, millis, sequence};
use crate::connection::Claim;
use crate::verdict::{CloseReason, Outcome};

const SHUT: Peer = Peer { window: 0, ..PEER };

#[test]
fn a_shut_window_is_probed_ever_more_slowly_while_it_is_answered() {
    let mut driver = Driver::with(SHUT);
    driver.append(5000);
    assert_eq!(driver.flush(), []);
    let mut wait = RTO;
    // More often than `timeouts_max`: a peer that answers is never given up.
    for _ in 0..20 {
        assert_eq!(driver.wait(), wait);
        assert_eq!(driver.fire(), Outcome::Open);
        assert_eq!(driver.flush(), [Probe]);
        assert_eq!(driver.last_header().sequence.wrapping_add(1), sequence(0));
        wait = (wait * 2).min(millis(60_000));
        driver.accept(ack(0));
        assert_eq!(driver.flush(), []);
    }
}

#[test]
fn unanswered_zero_window_probes_time_out() {
    let mut driver = Driver::with(SHUT);
    driver.append(5000);
    for _ in 0..Config::default().timeouts_max {
        assert_eq!(driver.fire(), Outcome::Open);
        assert_eq!(driver.flush(), [Probe]);
    }
    assert_eq!(driver.fire(), Outcome::Closed(CloseReason::TimedOut));
}

#[test]
fn an_opened_window_ends_the_probing() {
    let mut driver = Driver::with(SHUT);
    driver.append(5000);
    for _ in 0..4 {
        let _ = driver.fire();
        assert_eq!(driver.flush(), [Probe]);
        driver.accept(ack(0));
    }
    driver.accept(ack(0).window(60_000));
    assert_eq!(driver.flush(), [New(0, 5000)]);
    assert!(driver.wait() <= RTO, "the backoff is gone");
}

#[test]
fn a_window_that_shuts_behind_what_was_sent_is_probed_when_that_arrived() {
    let mut driver = Driver::sending(
        Peer {
            window: 4000,
            ..PEER
        },
        50_000,
    );
    driver.pass(millis(100)).accept(ack(4000).window(0));
    assert_eq!(driver.flush(), []);
    assert_eq!(driver.wait(), RTO);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Probe]);
    assert_eq!(
        driver.last_header().sequence.wrapping_add(1),
        sequence(4000)
    );
}

#[test]
fn nothing_is_probed_without_something_to_send() {
    let mut driver = Driver::with(SHUT);
    assert_eq!(driver.wait(), Config::default().keep_alive_idle);
    driver.append(1);
    assert_eq!(driver.wait(), RTO);
}

#[test]
fn bytes_claimed_before_the_window_shrank_still_leave() {
    let mut driver = Driver::new();
    driver.append(5000);
    let range = driver.claim();
    driver.accept(ack(0).window(0));
    assert_eq!(
        driver.complete(range),
        Some((0, 5000)),
        "the window admitted them once"
    );
    assert_eq!(driver.flush(), []);
}

/// RFC 9293 s3.8.6: a window may shrink to nothing with data on its way. The peer drops that and
/// answers each resend; it must not be given up, and a window that opens is used at once.
#[test]
fn a_peer_that_shut_its_window_on_data_in_flight_is_not_given_up() {
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 5000);
    driver.accept(ack(0).window(0));
    for _ in 0..2 * Config::default().timeouts_max {
        assert_eq!(driver.fire(), Outcome::Open);
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        driver.pass(millis(100)).accept(ack(0).window(0));
    }
    assert!(driver.wait() > millis(50_000));
    driver.pass(millis(100)).accept(ack(0));
    assert_eq!(
        driver.wait(),
        RTO,
        "the backoff is gone, and the wait with it"
    );
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
}

#[test]
fn a_silent_peer_with_a_zero_window_times_out() {
    let mut driver = Driver::sending(PEER_WITHOUT_SACK, 5000);
    driver.accept(ack(0).window(0));
    for _ in 0..Config::default().timeouts_max {
        assert_eq!(driver.fire(), Outcome::Open);
        let _ = driver.flush();
    }
    assert_eq!(driver.fire(), Outcome::Closed(CloseReason::TimedOut));
}

/// A claim given back behind a window that shut meanwhile: somebody must ask for the window.
#[test]
fn a_claim_returned_to_a_shut_window_is_probed_for() {
    let mut driver = Driver::new();
    driver.append(5000);
    let fetch = driver.claim();
    driver.accept(ack(0).window(0));
    driver
        .pass(millis(10))
        .connection
        .return_claim(Claim::forged(fetch, false));
    assert_eq!(driver.flush(), []);
    assert_eq!(
        driver.wait(),
        RTO - millis(10),
        "since the window was last seen"
    );
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Probe]);
}

/// RFC 9293 s3.8.6.2.1: a little of a window is used only when the override timer fires. A
/// peer that hands out single bytes gets one small read a timeout, not one a round trip.
#[test]
fn a_silly_window_waits_for_the_override_timer() {
    // SND.WND; what leaves at once. The largest window was 60 000, a segment is 1000.
    for (window, at_once) in [(999, &[][..]), (1000, &[New(5000, 6000)])] {
        let mut driver = Driver::sending(PEER, 5000);
        driver.pass(millis(100)).accept(ack(5000).window(window));
        driver.append(50_000);
        assert_eq!(driver.flush(), at_once, "{window}");
    }
    let mut driver = Driver::sending(PEER, 5000);
    driver.append(50_000);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(10_000).window(1));
    for byte in 10_000..10_005 {
        assert_eq!(driver.flush(), []);
        assert!(driver.wait() >= millis(200));
        let _ = driver.fire();
        assert_eq!(driver.flush(), [New(byte, byte + 1)]);
        let acknowledged = i64::try_from(byte + 1).unwrap();
        driver.pass(millis(100)).accept(ack(acknowledged).window(1));
    }
    driver.accept(ack(10_005).window(1000));
    assert_eq!(driver.flush(), [New(10_005, 11_005)]);
}

/// A shut window is probed after a timeout, however long that is on a slow path.
#[test]
fn a_small_window_is_used_after_a_second_at_most_and_a_shut_one_probed_after_the_timeout() {
    for (window, is_bounded) in [(1, true), (0, false)] {
        let mut driver = Driver::sending(PEER, 5000);
        driver.append(50_000);
        let _ = driver.flush();
        driver.pass(millis(3000)).accept(ack(10_000).window(window));
        let wait = driver.wait();
        if is_bounded {
            assert_eq!(wait, millis(1000));
        } else {
            assert!(wait > millis(1000), "{wait:?}");
        }
    }
}

/// The override timer fired, but the disk had no room: the demand stays due, and no timer that began
/// in the past keeps the worker awake.
#[test]
fn a_small_claim_that_was_returned_is_demanded_again_without_another_timeout() {
    let mut driver = Driver::sending(PEER, 5000);
    driver.append(50_000);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(10_000).window(1));
    let _ = driver.fire();
    for _ in 0..3 {
        let fetch = driver.claim();
        driver.connection.return_claim(Claim::forged(fetch, false));
        let due = driver.connection.poll_timeout();
        assert!(due.is_none_or(|due| due > driver.now), "{due:?}");
    }
    assert_eq!(driver.flush(), [New(10_000, 10_001)]);
}

#[test]
fn the_end_of_the_stream_uses_a_little_window_at_once() {
    let mut driver = Driver::with(PEER);
    driver.accept(ack(0).window(10));
    driver.append(10);
    assert_eq!(driver.flush(), [New(0, 10)]);
}

/// Each demand is a read of a block at least. A peer whose window was never more than two bytes
/// gets them when the override timer fires, however fast it acknowledges.
#[test]
fn a_thousand_acks_of_a_tiny_window_make_a_handful_of_demands() {
    let mut driver = Driver::with(Peer { window: 2, ..PEER });
    driver.append(1_000_000);
    let start = driver.now;
    let mut demands = driver.flush().len();
    for _ in 0..1000 {
        driver.pass(millis(1));
        if driver.deadline() <= driver.now {
            assert_eq!(driver.expire(), Outcome::Open);
            demands += driver.flush().len();
        }
        let acknowledged = i64::try_from(driver.connection.send.nxt.0).unwrap();
        driver.accept(ack(acknowledged));
        demands += driver.flush().len();
    }
    assert_eq!(driver.now.since(start), millis(1000));
    assert!((3..=5).contains(&demands), "{demands}");
}

/// A receiver whose whole window is less than a segment: from so many bytes on, ACKs set the pace.
#[test]
fn a_small_receiver_is_served_by_acks_or_by_the_override_timer() {
    for (window, at_once) in [(535, false), (536, true), (999, true)] {
        let window_bytes = u64::from(window);
        let mut driver = Driver::with(Peer { window, ..PEER });
        driver.append(50_000);
        let mut at = 0;
        for _ in 0..5 {
            if !at_once {
                assert_eq!(driver.flush(), [], "{window}");
                assert_eq!(driver.fire(), Outcome::Open);
            }
            assert_eq!(driver.flush(), [New(at, at + window_bytes)], "{window}");
            at += window_bytes;
            let acknowledged = i64::try_from(at).unwrap();
            driver.pass(millis(100)).accept(ack(acknowledged));
        }
    }
    // A segment that is smaller still is worth a demand.
    let mut driver = Driver::with(Peer {
        window: 530,
        ..PEER
    });
    driver.report(530);
    driver.append(50_000);
    assert_eq!(driver.flush(), [New(0, 530)]);
}

/// Segments that move nothing do not put the override off, or a talkative peer would get nothing.
#[test]
fn other_segments_do_not_put_the_override_off() {
    let mut driver = Driver::with(Peer { window: 2, ..PEER });
    driver.append(50_000);
    let deadline = driver.deadline();
    for _ in 0..5 {
        driver.pass(millis(50)).accept(ack(0));
        assert_eq!(driver.deadline(), deadline);
    }
    let _ = driver.fire();
    assert_eq!(driver.flush(), [New(0, 2)]);
}
