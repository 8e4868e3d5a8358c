//! Recoveries and timeouts whose retransmissions were all needless (RFC 2883, RFC 3708).

use clock::Duration;
use wire::TcpFlags;

use super::Sent::{Again, New};
use super::{Driver, PEER, PEER_WITHOUT_SACK, Peer, ack, millis};
use crate::congestion::Controller as _;
use crate::connection::undo::RESENT_RUNS_MAX;
use crate::recovery::RecoveryState;

/// The round trip: what arrives sooner was sent before.
const RTT: Duration = Duration::from_millis(100);

/// It stamps what it sends.
const STAMPING: Peer = Peer {
    timestamps: true,
    ..PEER
};

/// Ten segments are out, all behind the first have arrived, and it was sent again.
fn resent(peer: Peer) -> Driver {
    let mut driver = Driver::sending(peer, 100_000);
    driver.pass(RTT).accept(ack(0).sack(1000, 10_000));
    assert_eq!(driver.flush()[0], Again(0, 1000));
    assert_eq!(threshold(&driver), 7000);
    driver
}

fn threshold(driver: &Driver) -> u64 {
    driver.connection.congestion.threshold()
}

fn is_undone(driver: &Driver) -> bool {
    let is_undone = threshold(driver) == u64::MAX;
    assert!(!is_undone || driver.connection.recovery == RecoveryState::Open);
    assert!(!is_undone || driver.window() >= 10_000);
    is_undone
}

#[test]
fn a_report_of_every_retransmission_undoes_the_reduction() {
    let mut driver = resent(PEER);
    driver.pass(RTT).accept(ack(10_000));
    assert!(!is_undone(&driver));
    let next = driver.connection.send.nxt.0;
    let arrival = driver.receive(ack(10_000).sack(0, 1000));
    assert!(arrival.loss_undone && is_undone(&driver));
    assert!(matches!(driver.flush()[0], New(start, _) if start == next));
}

/// RACK waits longer at once, by how long the segment was late after its retransmission.
#[test]
fn what_arrives_before_a_retransmission_can_was_overtaken() {
    for (time, is_late) in [(RTT - Duration::from_nanos(1), true), (RTT, false)] {
        let mut driver = resent(PEER);
        let arrival = driver.pass(time).receive(ack(10_000));
        assert_eq!(
            (arrival.loss_undone, is_undone(&driver)),
            (is_late, is_late)
        );
        assert_eq!(
            driver.connection.rack.multiple(),
            if is_late { 5 } else { 1 }
        );
    }
}

/// The round trip became shorter: the simulator's seed 35531 of `paths`.
#[test]
fn an_echo_of_the_retransmission_shows_that_it_was_not_overtaken() {
    for (earlier, is_late) in [(0, false), (1, true)] {
        let mut driver = resent(STAMPING);
        let echo = driver.now - millis(earlier);
        let arrival = driver.pass(RTT - millis(5)).receive(ack(10_000).echo(echo));
        assert_eq!(
            (arrival.loss_undone, is_undone(&driver)),
            (is_late, is_late)
        );
    }
}

/// Eifel (RFC 3522).
#[test]
fn an_echo_from_before_the_retransmission_shows_that_the_segment_was_overtaken() {
    for (earlier, is_late) in [(1, true), (0, false)] {
        let mut driver = resent(STAMPING);
        let echo = driver.now - millis(earlier);
        let arrival = driver.pass(2 * RTT).receive(ack(10_000).echo(echo));
        assert_eq!(
            (arrival.loss_undone, is_undone(&driver)),
            (is_late, is_late)
        );
    }
}

/// An ACK that does not move SND.UNA echoes an old timestamp, whatever it reports (RFC 7323 s4.3).
#[test]
fn an_echo_says_nothing_of_what_is_only_reported() {
    let mut driver = Driver::sending(STAMPING, 100_000);
    let blocks = ack(0).sack(1000, 2000).sack(3000, 10_000);
    let echo = driver.now;
    driver.pass(RTT).accept(blocks);
    assert_eq!(driver.flush()[..2], [Again(0, 1000), Again(2000, 3000)]);
    driver
        .pass(RTT)
        .accept(ack(0).sack(1000, 10_000).echo(echo));
    let arrival = driver.receive(ack(10_000).echo(echo));
    assert!(!arrival.loss_undone && !is_undone(&driver));
}

/// A receiver that reports its next byte instead of acknowledging it.
#[test]
fn a_report_of_the_next_byte_with_an_old_echo_says_nothing() {
    let mut driver = resent(STAMPING);
    let echo = driver.now - millis(1);
    driver.pass(2 * RTT);
    let arrival = driver.receive(ack(0).sack(0, 10_000).echo(echo));
    assert!(!arrival.loss_undone && !is_undone(&driver));
}

#[test]
fn a_retransmission_that_is_not_reported_was_needed() {
    let mut driver = Driver::sending(PEER, 100_000);
    let blocks = ack(0).sack(1000, 2000).sack(3000, 10_000);
    driver.pass(RTT).accept(blocks);
    assert_eq!(driver.flush()[..2], [Again(0, 1000), Again(2000, 3000)]);
    driver.pass(RTT);
    let arrival = driver.receive(ack(2000).sack(0, 1000).sack(3000, 10_000));
    assert!(!arrival.loss_undone && !is_undone(&driver));
    driver.accept(ack(10_000));
    assert!(!is_undone(&driver));
    let arrival = driver.receive(ack(10_000).sack(2000, 2999));
    assert!(!arrival.loss_undone, "a byte is missing");
    let arrival = driver.receive(ack(10_000).sack(2999, 3000));
    assert!(arrival.loss_undone && is_undone(&driver));
}

/// The network duplicated something else.
#[test]
fn a_report_of_bytes_that_were_sent_once_undoes_nothing() {
    let mut driver = resent(PEER);
    driver.pass(RTT).accept(ack(10_000));
    for (start, end) in [(1000, 2000), (3000, 4000)] {
        let arrival = driver.receive(ack(10_000).sack(start, end));
        assert!(!arrival.loss_undone && !is_undone(&driver));
    }
}

#[test]
fn a_segment_that_was_retransmitted_twice_undoes_nothing() {
    let mut driver = resent(PEER);
    driver.fire();
    while driver.connection.timeouts == 0 {
        driver.fire();
    }
    assert_eq!(driver.flush()[0], Again(0, 1000));
    for _ in 0..2 {
        let arrival = driver.pass(millis(10)).receive(ack(10_000).sack(0, 1000));
        assert!(!arrival.loss_undone && !is_undone(&driver));
    }
}

/// The disk was slower than the segments that had been overtaken. The recovery need not end first.
#[test]
fn a_recovery_is_undone_once_all_arrives_before_anything_is_retransmitted() {
    for (acknowledged, is_sent) in [(4000, false), (4000, true), (10_000, false), (10_000, true)] {
        let mut driver = Driver::sending(PEER, 100_000);
        driver.pass(RTT).accept(ack(0).sack(1000, 10_000));
        let claimed = driver.claim();
        if is_sent {
            driver.complete(claimed);
        }
        let arrival = driver.pass(RTT).receive(ack(acknowledged));
        assert_eq!(arrival.loss_undone, !is_sent);
        assert_eq!(is_undone(&driver), !is_sent);
    }
}

/// Two segments are missing, and one arrives before either is retransmitted.
#[test]
fn a_recovery_is_not_undone_while_something_is_missing() {
    let mut driver = Driver::sending(PEER, 100_000);
    let blocks = ack(0).sack(1000, 2000).sack(3000, 6000);
    driver.pass(RTT).accept(blocks);
    let arrival = driver.receive(ack(2000).sack(3000, 6000));
    assert!(!arrival.loss_undone && !is_undone(&driver));
    let arrival = driver.receive(ack(6000));
    assert!(arrival.loss_undone && is_undone(&driver));
}

/// A second recovery has begun before the report of the first one's retransmission comes; it may be over,
/// too. CUBIC leaves 0.7 of the window each time.
fn resent_twice(is_over: bool) -> (Driver, i64) {
    let mut driver = resent(PEER);
    driver.pass(RTT).accept(ack(10_000));
    let window = driver.window();
    assert!(threshold(&driver) == 7000 && (7000..8000).contains(&window));
    let _ = driver.flush();
    let sent = u32::try_from(driver.connection.send.nxt.0).unwrap();
    driver.pass(RTT).accept(ack(10_000).sack(11_000, sent));
    while driver.connection.recovery == RecoveryState::Open {
        driver.fire();
    }
    assert_eq!(threshold(&driver), window * 7 / 10);
    assert_eq!(driver.flush()[0], Again(10_000, 11_000));
    let end = i64::try_from(driver.connection.send.nxt.0).unwrap();
    driver.pass(RTT);
    if is_over {
        driver.accept(ack(end));
    }
    assert_eq!(driver.connection.recovery == RecoveryState::Open, is_over);
    (driver, end)
}

#[test]
fn an_earlier_reduction_is_undone_and_the_later_one_stays() {
    for is_over in [false, true] {
        let (mut driver, end) = resent_twice(is_over);
        let acknowledged = if is_over { end } else { 10_000 };
        let arrival = driver.receive(ack(acknowledged).sack(0, 1000));
        assert!(arrival.loss_undone);
        assert_eq!(threshold(&driver), 7000, "0.7 of 10,000, once");
        assert_eq!(driver.connection.recovery == RecoveryState::Open, is_over);
        if is_over {
            assert!((7000..8000).contains(&driver.window()));
        }
        // The later one was needless, too: all is as before the first.
        let arrival = driver.receive(ack(end).sack(10_000, 11_000));
        assert!(arrival.loss_undone && is_undone(&driver));
    }
}

#[test]
fn a_later_reduction_is_undone_and_the_earlier_one_stays() {
    for is_over in [false, true] {
        let (mut driver, end) = resent_twice(is_over);
        let arrival = driver.receive(ack(end).sack(10_000, 11_000));
        assert!(arrival.loss_undone);
        assert_eq!(driver.connection.recovery, RecoveryState::Open);
        assert_eq!(threshold(&driver), 7000);
        assert!((7000..8000).contains(&driver.window()));
        let arrival = driver.receive(ack(end).sack(0, 1000));
        assert!(arrival.loss_undone && is_undone(&driver));
    }
}

/// Three SACKed segments are a loss at once (RFC 8985 s6.2, step 4), until RACK knows that segments overtake
/// each other: an undone recovery shows it, and an undone timeout does not.
#[test]
fn an_undone_recovery_was_reordering() {
    for is_reported in [false, true] {
        let mut driver = resent(PEER);
        driver.pass(RTT).accept(ack(10_000));
        if is_reported {
            driver.accept(ack(10_000).sack(0, 1000));
        }
        assert_eq!(is_undone(&driver), is_reported);
        assert_eq!(waits_for_the_next(driver), is_reported);
    }
    let mut driver = Driver::sending(PEER, 10_000);
    driver.connection.rtt.on_timeout();
    while driver.connection.timeouts == 0 {
        driver.fire();
    }
    assert_eq!(driver.flush(), [Again(0, 1000)]);
    driver.pass(RTT).accept(ack(10_000));
    driver.accept(ack(10_000).sack(0, 1000));
    assert!(is_undone(&driver));
    driver.append(10_000);
    assert!(!waits_for_the_next(driver));
}

/// Whether it waits with a retransmission when three segments behind a hole arrive.
fn waits_for_the_next(mut driver: Driver) -> bool {
    let _ = driver.flush();
    driver.pass(RTT).accept(ack(10_000));
    let _ = driver.flush();
    driver.pass(RTT).accept(ack(10_000).sack(11_000, 14_000));
    driver.connection.recovery == RecoveryState::Open
}

/// One byte of each two is reported: so many runs are not waited for, and nothing is undone.
#[test]
fn reports_of_single_bytes_end_the_wait() {
    let mut driver = resent(PEER);
    driver.pass(RTT).accept(ack(10_000));
    for count in 1..=RESENT_RUNS_MAX {
        assert_eq!(driver.connection.loss_records.len(), 1, "{count}");
        let byte = 2 * u32::try_from(count).unwrap();
        driver.accept(ack(10_000).sack(byte, byte + 1));
    }
    assert!(driver.connection.loss_records.is_empty());
    let arrival = driver.receive(ack(10_000).sack(0, 1000));
    assert!(!arrival.loss_undone && !is_undone(&driver));
}

/// The same of a receiver that reports single bytes sooner than the retransmission can arrive.
#[test]
fn single_bytes_that_arrive_early_end_the_wait() {
    let mut driver = resent(PEER);
    for count in 1..=RESENT_RUNS_MAX {
        assert_eq!(driver.connection.loss_records.len(), 1, "{count}");
        let byte = 2 * u32::try_from(count).unwrap();
        driver.accept(ack(0).sack(byte, byte + 1));
    }
    assert!(driver.connection.loss_records.is_empty());
    let arrival = driver.receive(ack(10_000));
    assert!(!arrival.loss_undone && !is_undone(&driver));
}

#[test]
fn a_timeout_is_undone_by_reports_too() {
    // Without SACK nobody reports. The timer is backed off already, so F-RTO is not tried.
    for (peer, undone) in [(PEER, true), (PEER_WITHOUT_SACK, false)] {
        let mut driver = Driver::sending(peer, 10_000);
        driver.connection.rtt.on_timeout();
        while driver.connection.timeouts == 0 {
            driver.fire();
        }
        assert_eq!(driver.flush(), [Again(0, 1000)]);
        driver.pass(RTT).accept(ack(10_000));
        assert!(!is_undone(&driver));
        let arrival = driver.receive(ack(10_000).sack(0, 1000));
        assert_eq!((arrival.loss_undone, is_undone(&driver)), (undone, undone));
    }
}

/// What would be restored is no longer what the path is known to take.
#[test]
fn a_later_reduction_for_another_reason_stays() {
    let mut driver = resent(Peer { ecn: true, ..PEER });
    driver.pass(RTT).accept(ack(10_000));
    driver.flush();
    driver.accept(ack(10_001).with(TcpFlags::ECE));
    let arrival = driver.receive(ack(10_001).sack(0, 1000));
    assert!(!arrival.loss_undone && !is_undone(&driver));
}

#[test]
fn an_undo_withdraws_cwr() {
    let mut driver = resent(Peer { ecn: true, ..PEER });
    driver.pass(RTT).accept(ack(10_000));
    driver.accept(ack(10_000).sack(0, 1000));
    assert!(is_undone(&driver));
    driver.flush();
    assert!(!driver.last_header().flags.contains(TcpFlags::CWR));
}
