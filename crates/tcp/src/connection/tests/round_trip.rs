//! What the round trip is learned from: segments that left once, and echoed timestamps (RFC 6298,
//! RFC 7323 s4).

use super::Sent::{Again, New};
use super::{
    Driver, PEER, PEER_WITHOUT_SACK, Peer, RTO, STAMPING_WITHOUT_SACK, ack, just_before, millis,
};
use crate::verdict::Outcome;

/// A path grows from 100 ms to `round_trip`, and each reply of 900 bytes fits one segment. Returns
/// how often something was sent again for each of `replies`.
fn resends_by_reply(peer: Peer, round_trip: u64, replies: usize) -> Vec<usize> {
    let mut driver = Driver::with(peer);
    let mut at = 0;
    let mut resends = Vec::new();
    for _ in 0..replies {
        driver.append(900);
        at += 900;
        assert_eq!(driver.flush(), [New(at - 900, at)]);
        let left_at = driver.now;
        let answer = driver.now + millis(round_trip);
        let mut again = 0;
        while driver.deadline() < answer {
            assert_eq!(driver.fire(), Outcome::Open);
            let sent = driver.flush();
            again += sent.iter().filter(|sent| matches!(sent, Again(..))).count();
        }
        let acknowledged = i64::try_from(at).unwrap();
        driver.at(answer).accept(ack(acknowledged).echo(left_at));
        resends.push(again);
    }
    resends
}

/// By an echo at once; else Karn's rule needs a reply that leaves once, which the kept backoff
/// gives, and a tail probe may not take away.
#[test]
fn a_longer_rtt_is_learned_from_few_replies() {
    let with_stamps = |peer| Peer {
        timestamps: true,
        ..peer
    };
    let rows = [
        ("stamps, no SACK", STAMPING_WITHOUT_SACK, 2),
        ("stamps, SACK", with_stamps(PEER), 6),
        ("no SACK", PEER_WITHOUT_SACK, 2),
        ("SACK", PEER, 8),
    ];
    for (name, peer, most) in rows {
        let resends = resends_by_reply(peer, 900, 40);
        let total: usize = resends.iter().sum();
        assert!((1..=most).contains(&total), "{name}: {resends:?}");
        let later: usize = resends[20..].iter().sum();
        assert_eq!(later, 0, "{name}: {resends:?}");
        // As long as at the start, nothing is ever needless.
        let resends: usize = resends_by_reply(peer, 100, 40).iter().sum();
        assert_eq!(resends, 0, "{name}");
    }
}

/// RFC 7323 s4.1: a sample of each ACK that moves SND.UNA, of a segment that left twice too.
#[test]
fn an_echo_makes_a_sample_of_what_left_twice() {
    let resent = || {
        let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 5000);
        let first = driver.now;
        let _ = driver.fire();
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        let again = driver.now;
        driver.pass(millis(400));
        (driver, first, again)
    };
    // SRTT of 100 ms moves by an eighth of the way to 700 ms, or to 400 ms.
    let (mut driver, first, _) = resent();
    driver.accept(ack(1000).echo(first));
    assert_eq!(driver.connection.smoothed_rtt(), Some(millis(175)));
    let (mut driver, _, again) = resent();
    driver.accept(ack(1000).echo(again));
    assert_eq!(
        driver.connection.smoothed_rtt(),
        Some(millis(137) + millis(1) / 2)
    );
    // An echo that cannot be ours, and an ACK that moves nothing, say nothing.
    let (mut driver, ..) = resent();
    driver.accept(ack(1000));
    assert_eq!(driver.connection.smoothed_rtt(), Some(millis(100)));
    let (mut driver, first, _) = resent();
    driver.accept(ack(0).echo(first));
    assert_eq!(driver.connection.smoothed_rtt(), Some(millis(100)));
}

/// The clock of timestamps is coarse; what left once is measured by ours.
#[test]
fn segments_sent_once_are_timed_by_our_own_clock() {
    let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 1000);
    let left_at = driver.now;
    driver
        .pass(millis(50))
        .accept(ack(1000).echo(just_before(left_at)));
    // An eighth of the way from 100 ms to 50 ms.
    let expected = millis(93) + millis(3) / 4;
    assert_eq!(driver.connection.smoothed_rtt(), Some(expected));
}

/// RFC 6298 s5: the timer stays backed off until there is a sample, whatever else arrives.
#[test]
fn progress_alone_does_not_end_the_backoff() {
    let mut driver = Driver::sending(STAMPING_WITHOUT_SACK, 3000);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.wait(), RTO * 2, "of either sending");
    driver.accept(ack(1000).window(61_000));
    assert_eq!(driver.flush(), [Again(1000, 3000)]);
    driver.pass(millis(100)).accept(ack(3000));
    driver.append(1000);
    assert_eq!(driver.flush(), [New(3000, 4000)]);
    assert_eq!(driver.wait(), RTO * 2);
    driver.pass(millis(100)).accept(ack(3999));
    assert_eq!(driver.wait(), RTO, "it left once");
}

/// A probe that was needless makes the next ACK ambiguous; another would do the same for ever.
#[test]
fn no_tail_loss_probe_while_srtt_is_unconfirmed() {
    let mut driver = Driver::sending(PEER, 900);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Again(0, 900)]);
    assert_eq!(driver.connection.timeouts, 0, "a probe");
    driver.pass(millis(100)).accept(ack(900));
    driver.append(900);
    assert_eq!(driver.flush(), [New(900, 1800)]);
    driver.pass(RTO);
    assert_eq!(driver.expire(), Outcome::Open);
    assert_eq!(driver.connection.timeouts, 1, "no probe, but the timer");
    // A sample ends the doubt.
    let mut driver = Driver::sending(PEER, 900);
    let _ = driver.fire();
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(900));
    driver.append(900);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(1800));
    driver.append(900);
    let _ = driver.flush();
    let _ = driver.fire();
    assert_eq!(driver.connection.timeouts, 0, "a probe again");
}
