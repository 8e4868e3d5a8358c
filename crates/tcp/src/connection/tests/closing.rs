//! The closing states: each road through RFC 9293 s3.6, and the losses on it.

use clock::Instant;
use wire::TcpFlags;

use super::Sent::{Ack, Again, Fin, New};
use super::{Config, Driver, IRS, PEER, Segment, ack, millis, range, sequence};
use crate::connection::{Control, State};
use crate::stream::StreamOffset;
use crate::verdict::{CloseReason, Outcome};

const FINISHED: Outcome = Outcome::Closed(CloseReason::Finished);

/// A connection that sent `bytes` and its FIN.
fn finished(bytes: u64) -> Driver {
    let mut driver = Driver::new();
    driver.append(bytes);
    driver.connection.finish();
    let sent = driver.flush();
    assert_eq!(sent.last(), Some(&Fin));
    assert_eq!(driver.connection.state(), State::FinWait1);
    driver
}

#[test]
fn the_fin_follows_the_last_byte() {
    let mut driver = Driver::new();
    driver.append(2000);
    driver.connection.finish();
    assert!(driver.connection.is_finishing() && !driver.connection.can_append());
    let range = driver.claim();
    assert_eq!(driver.connection.control(), None, "the data has not left");
    assert_eq!(driver.connection.state(), State::Established);
    assert_eq!(driver.complete(range), Some((0, 2000)));
    assert_eq!(driver.flush(), [Fin]);
    let header = driver.last_header();
    assert_eq!(header.sequence, sequence(2000));
    assert_eq!(header.flags, TcpFlags::ACK.union(TcpFlags::FIN));
    assert_eq!(driver.connection.state(), State::FinWait1);
    assert_eq!(driver.flush(), [], "once");
}

#[test]
fn a_fin_waits_for_data_the_window_keeps_back() {
    let mut driver = Driver::new();
    driver.append(12_000);
    driver.connection.finish();
    assert_eq!(driver.flush(), [New(0, 10_000)]);
    driver.pass(millis(100)).accept(ack(1000));
    assert_eq!(driver.flush(), [New(10_000, 12_000), Fin]);
}

#[test]
#[should_panic(expected = "nothing follows a FIN")]
fn nothing_is_appended_after_the_fin() {
    let mut driver = finished(0);
    assert!(driver.connection.has_sent_fin());
    driver.append(1);
}

#[test]
fn data_appended_before_the_fin_was_sent_precedes_it() {
    let mut driver = Driver::new();
    driver.append(1000);
    driver.connection.finish();
    assert!(!driver.connection.has_sent_fin());
    driver.append(500);
    assert_eq!(driver.flush(), [New(0, 1500), Fin]);
    assert_eq!(driver.last_header().sequence, sequence(1500));
}

#[test]
fn withdrawn_bytes_are_not_sent() {
    let mut driver = Driver::new();
    driver.append(12_000);
    assert_eq!(driver.flush(), [New(0, 10_000)]);
    assert_eq!(driver.connection.claimed_once().0, 10_000);
    driver.connection.withdraw(2000);
    driver.append(100);
    driver.connection.finish();
    driver.pass(millis(100)).accept(ack(10_000));
    assert_eq!(driver.flush(), [New(10_000, 10_100), Fin]);
}

#[test]
#[should_panic(expected = "claimed bytes may have been sent")]
fn claimed_bytes_cannot_be_withdrawn() {
    let mut driver = Driver::new();
    driver.append(12_000);
    let _ = driver.flush();
    driver.connection.withdraw(2001);
}

#[test]
#[should_panic(expected = "claimed bytes may have been sent")]
fn bytes_claimed_before_a_timeout_cannot_be_withdrawn() {
    let mut driver = Driver::new();
    driver.append(12_000);
    let _ = driver.flush();
    driver.pass(millis(100)).accept(ack(500));
    driver.take(range(10_000, 12_000), false);
    driver.now += millis(100);
    driver.report(900);
    assert_eq!(driver.connection.send.unclaimed_bytes(), 2000);
    assert_eq!(driver.connection.claimed_once().0, 12_000);
    driver.connection.withdraw(1);
}

#[test]
fn unsent_bytes_give_way_to_others_though_they_were_claimed() {
    let mut driver = Driver::new();
    driver.append(3000);
    assert_eq!(driver.flush(), [New(0, 3000)]);
    driver.append(4000);
    let demand = driver.demand().expect("the window is open");
    let (start, end) = (demand.range.start, demand.range.end);
    let claim = driver.connection.claim(driver.now, demand, end);
    driver.connection.return_claim(claim);
    driver.connection.withdraw_unsent(driver.now, start);
    assert_eq!(driver.connection.claimed_once(), start);
    assert_eq!(driver.demanded(), None);
    assert_eq!(driver.admit(range(3000, 7000)), None);
    driver.append(500);
    assert_eq!(driver.flush(), [New(3000, 3500)]);
}

#[test]
fn bytes_claimed_before_a_timeout_give_way_too() {
    let mut driver = Driver::new();
    driver.append(1000);
    let _ = driver.flush();
    driver.append(1000);
    driver.take(range(1000, 2000), false);
    while driver.connection.timeouts_in_a_row() == 0 {
        let _ = driver.fire();
    }
    assert_eq!(driver.connection.send.unclaimed_bytes(), 1000);
    driver
        .connection
        .withdraw_unsent(driver.now, StreamOffset(1000));
    assert_eq!(driver.connection.claimed_once().0, 1000);
    assert_eq!(driver.flush(), [Again(0, 1000)]);
}

#[test]
fn nobody_is_asked_for_a_window_for_bytes_that_were_withdrawn() {
    let mut driver = Driver::new();
    driver.accept(Segment {
        window: Some(0),
        ..ack(0)
    });
    driver.append(1000);
    let probe_at = driver.deadline();
    driver
        .connection
        .withdraw_unsent(driver.now, StreamOffset(0));
    assert!(driver.deadline() > probe_at, "only keep-alive is left");
    assert_eq!(driver.flush(), []);
}

#[test]
#[should_panic(expected = "sent bytes stay")]
fn sent_bytes_cannot_be_withdrawn() {
    let mut driver = Driver::new();
    driver.append(1000);
    let _ = driver.flush();
    driver
        .connection
        .withdraw_unsent(driver.now, StreamOffset(999));
}

#[test]
fn finish_is_idempotent() {
    let mut driver = finished(0);
    driver.connection.finish();
    assert_eq!(driver.flush(), []);
}

#[test]
fn the_server_closes_first() {
    let mut driver = finished(2000);
    driver.pass(millis(100)).accept(ack(2000));
    assert_eq!(
        driver.connection.state(),
        State::FinWait1,
        "the FIN itself is not acknowledged"
    );
    driver.accept(ack(2001));
    let since = driver.now;
    assert_eq!(driver.connection.state(), State::FinWait2(since));
    assert!(driver.connection.is_idle());
    assert_eq!(driver.connection.acknowledged().0, 2000, "a FIN is no byte");
    driver.pass(millis(50));
    let arrival = driver.receive(ack(2001).fin());
    assert!(arrival.peer_finished);
    assert_eq!(arrival.outcome, Outcome::TimeWait);
    assert_eq!(driver.flush(), [Ack]);
    assert_eq!(driver.last_header().acknowledgment, IRS.wrapping_add(2));
    assert_eq!(driver.last_header().sequence, sequence(2001));
}

#[test]
fn the_peer_closes_first() {
    let mut driver = Driver::sending(PEER, 2000);
    let arrival = driver.receive(ack(0).text(5).fin());
    assert_eq!((arrival.text, arrival.peer_finished), (0..5, true));
    assert_eq!(arrival.outcome, Outcome::Open);
    assert_eq!(driver.connection.state(), State::CloseWait);
    assert_eq!(driver.flush(), [Ack], "a FIN is acknowledged at once");
    assert_eq!(driver.last_header().acknowledgment, IRS.wrapping_add(7));
    // Half-closed, we send as before.
    driver.pass(millis(100)).append(1000);
    assert_eq!(driver.flush(), [New(2000, 3000)]);
    driver.connection.finish();
    assert_eq!(driver.flush(), [Fin]);
    assert_eq!(driver.connection.state(), State::LastAck);
    driver.accept(ack(3000));
    assert_eq!(driver.connection.state(), State::LastAck);
    assert_eq!(driver.receive(ack(3001)).outcome, FINISHED);
}

#[test]
fn both_sides_close_simultaneously() {
    let mut driver = finished(0);
    driver.accept(ack(0).fin());
    assert_eq!(driver.connection.state(), State::Closing);
    assert_eq!(driver.flush(), [Ack]);
    driver.accept(ack(0));
    assert_eq!(driver.connection.state(), State::Closing);
    assert_eq!(driver.receive(ack(1)).outcome, Outcome::TimeWait);
}

#[test]
fn the_peers_fin_may_acknowledge_ours() {
    let mut driver = finished(500);
    let arrival = driver.receive(ack(501).text(3).fin());
    assert_eq!(arrival.text, 0..3);
    assert!(arrival.peer_finished && arrival.acknowledged);
    assert_eq!(arrival.outcome, Outcome::TimeWait);
    assert_eq!(driver.flush(), [Ack]);
}

#[test]
fn a_fin_beyond_a_hole_does_not_count() {
    let mut driver = Driver::new();
    let arrival = driver.receive(ack(0).at(1).fin());
    assert!(!arrival.peer_finished);
    assert_eq!(driver.connection.state(), State::Established);
    assert_eq!(driver.flush(), [Ack]);
    let arrival = driver.receive(ack(0).text(4001).fin());
    assert!(!arrival.peer_finished, "its text did not fit");
}

#[test]
fn the_peers_fin_again_is_answered_again() {
    let mut driver = Driver::new();
    driver.accept(ack(0).fin());
    assert_eq!(driver.flush(), [Ack]);
    for _ in 0..3 {
        let arrival = driver.receive(ack(0).at(-1).fin());
        assert!(!arrival.peer_finished);
        assert_eq!(driver.flush(), [Ack]);
    }
    assert_eq!(driver.connection.state(), State::CloseWait);
}

#[test]
fn fin_wait_2_waits_so_long_and_no_longer() {
    let mut driver = finished(0);
    driver.accept(ack(1));
    let deadline = driver.now + Config::default().fin_wait_2;
    assert_eq!(driver.deadline(), deadline);
    driver.pass(millis(10_000)).accept(ack(1).text(10));
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Ack]);
    assert_eq!(driver.deadline(), deadline, "text does not prolong it");
    assert_eq!(
        driver.at(super::just_before(deadline)).expire(),
        Outcome::Open
    );
    let timed_out = Outcome::Closed(CloseReason::TimedOut);
    assert_eq!(driver.at(deadline).expire(), timed_out);
}

/// Whatever it answers, a peer that acknowledges all but our FIN keeps the connection no longer
/// than [`Config::orphan`] from then.
#[test]
fn an_orphaned_connection_times_out_whatever_the_peer_answers() {
    let answers: [(&str, &[_]); 4] = [
        ("nothing", &[]),
        ("a shut window", &[ack(1000).window(0)]),
        ("an open window", &[ack(1000)]),
        ("both", &[ack(1000), ack(1000).window(0)]),
    ];
    for state in [State::FinWait1, State::LastAck, State::Closing] {
        for (name, answer) in answers {
            let mut driver = orphan(state);
            driver.pass(millis(100)).accept(ack(1000));
            let deadline = driver.now + Config::default().orphan;
            let outcome = loop {
                let at = driver.deadline();
                assert!(at <= deadline, "{state:?} {name}");
                let outcome = driver.at(at.max(driver.now)).expire();
                if outcome != Outcome::Open {
                    break outcome;
                }
                if driver.flush().contains(&Fin) && driver.now + millis(50) < deadline {
                    driver.pass(millis(50));
                    for segment in answer {
                        driver.accept(*segment);
                    }
                }
            };
            assert_eq!(outcome, Outcome::Closed(CloseReason::TimedOut), "{name}");
            assert_eq!(driver.now, deadline, "{state:?} {name}");
        }
    }
}

/// A connection in one of the states that wait for the ACK of our FIN, which left just now behind
/// 1000 bytes.
fn orphan(state: State) -> Driver {
    let mut driver = Driver::new();
    if state == State::LastAck {
        let _ = driver.receive(ack(0).fin());
    }
    driver.append(1000);
    driver.connection.finish();
    assert_eq!(driver.flush(), [New(0, 1000), Fin]);
    if state == State::Closing {
        let _ = driver.receive(ack(0).fin());
        let _ = driver.flush();
    }
    assert_eq!(driver.connection.state(), state);
    driver
}

/// While data is unacknowledged, how long a peer may take is the session's to say; the deadline
/// counts from the last of it.
#[test]
fn an_orphan_with_data_unacknowledged_has_no_deadline_of_its_own() {
    let mut driver = finished(5000);
    assert_eq!(driver.connection.orphan_deadline(), None);
    driver.pass(millis(80_000)).accept(ack(4999));
    assert_eq!(driver.connection.orphan_deadline(), None);
    driver.pass(millis(80_000)).accept(ack(5000));
    let deadline = driver.now + Config::default().orphan;
    assert_eq!(driver.connection.orphan_deadline(), Some(deadline));
    driver.pass(millis(50_000)).accept(ack(5000).window(0));
    assert_eq!(driver.connection.orphan_deadline(), Some(deadline));
    driver.at(super::just_before(deadline)).accept(ack(5001));
    assert_eq!(driver.connection.state(), State::FinWait2(driver.now));
    assert_eq!(driver.connection.orphan_deadline(), None);
}

#[test]
fn a_lost_fin_is_retransmitted() {
    let mut driver = finished(0);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Fin]);
    assert_eq!(driver.last_header().sequence, sequence(0));
    driver.pass(millis(100)).accept(ack(1));
    assert_eq!(driver.connection.state(), State::FinWait2(driver.now));
}

#[test]
fn time_wait_and_reset_carry_the_final_numbers() {
    let mut driver = finished(500);
    let reset = driver.connection.abort(driver.now);
    assert_eq!(reset.sequence, sequence(501));
    assert_eq!(reset.acknowledgment, IRS.wrapping_add(1));
    assert_eq!(reset.flags, TcpFlags::RST.union(TcpFlags::ACK));
    let arrival = driver.receive(ack(501).fin());
    assert_eq!(arrival.outcome, Outcome::TimeWait);
    let mut time_wait = driver.connection.time_wait(driver.now);
    assert_eq!(time_wait.tuple(), driver.connection.tuple());
    assert!(time_wait.expires_at() > Instant::from_millis(60_000));
    let fin_again = driver.repr(ack(501).at(-1).fin());
    let verdict = time_wait.handle_segment(driver.now, &fin_again, 0);
    let crate::TimeWaitVerdict::Acknowledge(reply) = verdict else {
        panic!("a FIN again is answered: {verdict:?}");
    };
    assert_eq!(reply.sequence, sequence(501));
    assert_eq!(reply.acknowledgment, IRS.wrapping_add(2));
}

#[test]
fn the_fin_counts_as_sent_only_when_it_left() {
    let mut driver = Driver::new();
    driver.connection.finish();
    assert_eq!(driver.connection.control(), Some(Control::Fin));
    assert_eq!(driver.connection.state(), State::Established);
    let _ = driver.receive(ack(0).fin());
    assert_eq!(driver.connection.state(), State::CloseWait);
    assert_eq!(driver.flush(), [Fin], "it carries the ACK too");
    assert_eq!(driver.connection.state(), State::LastAck);
}

#[test]
fn data_lost_before_the_fin_mends_without_the_fin() {
    let mut driver = finished(5000);
    driver.pass(millis(100)).accept(ack(1000).sack(2000, 5001));
    assert_eq!(driver.flush(), [Again(1000, 2000)]);
    driver.pass(millis(100)).accept(ack(5001));
    assert_eq!(driver.connection.state(), State::FinWait2(driver.now));
}

#[test]
fn lost_data_and_fin_are_both_retransmitted() {
    let mut driver = finished(5000);
    driver.pass(millis(100)).accept(ack(2000));
    while driver.connection.timeouts == 0 {
        let _ = driver.fire();
    }
    assert_eq!(
        driver.flush(),
        [Again(2000, 3000)],
        "the window is one segment"
    );
    driver.pass(millis(100)).accept(ack(3000));
    assert_eq!(driver.flush(), [Again(3000, 5000), Fin]);
    driver.pass(millis(100)).accept(ack(5001));
    assert_eq!(driver.connection.state(), State::FinWait2(driver.now));
}

#[test]
fn a_fin_lost_after_data_that_arrived_is_retransmitted_alone() {
    let mut driver = finished(5000);
    driver.pass(millis(100)).accept(ack(5000));
    assert_eq!(driver.flush(), []);
    let _ = driver.fire();
    assert_eq!(driver.flush(), [Fin]);
    assert_eq!(driver.last_header().sequence, sequence(5000));
}

#[test]
fn a_connection_closed_at_once_ends_with_its_unsent_text_and_leaves_a_time_wait_entry() {
    let mut driver = Driver::new();
    driver.append(1000);
    driver.flush();
    driver.accept(ack(1000));
    // A few bytes of text go with the FIN.
    driver.append(24);
    let (last, kept) = driver.connection.close_at_once(driver.now);
    assert_eq!(last.sequence, sequence(1000));
    assert_eq!(last.flags, TcpFlags::ACK.union(TcpFlags::FIN));
    assert!(last.window > 0);
    let answer = kept.acknowledgment(driver.now);
    assert_eq!(answer.sequence, sequence(1025));
}

#[test]
#[should_panic(expected = "would be lost")]
fn a_connection_with_data_under_way_is_not_closed_at_once() {
    let mut driver = Driver::new();
    driver.append(1000);
    driver.flush();
    let _ = driver.connection.close_at_once(driver.now);
}
