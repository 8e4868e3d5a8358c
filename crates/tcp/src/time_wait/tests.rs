//! TIME-WAIT: what is answered, what reopens, what makes room.

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::{DURATION, TimeWait, TimeWaitTable, TimeWaitVerdict};
use crate::receive::TimestampState;
use crate::table::FourTuple;

fn tuple(port: u16) -> FourTuple {
    FourTuple {
        local: "10.0.0.2:80".parse().unwrap(),
        peer: format!("10.0.0.1:{port}").parse().unwrap(),
    }
}

fn waiting(port: u16, now: Instant) -> TimeWait {
    let stamps = TimestampState::new(now, 5000, 0);
    TimeWait::new(
        now,
        tuple(port),
        SeqNumber(900),
        SeqNumber(100),
        Some(stamps),
    )
}

fn segment(sequence: u32, flags: TcpFlags, stamp: u32) -> TcpRepr {
    TcpRepr {
        sequence: SeqNumber(sequence),
        flags,
        options: TcpOptions {
            timestamps: Some(Timestamps {
                value: stamp,
                echo: 0,
            }),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    }
}

#[test]
fn a_retransmitted_fin_is_acknowledged_again() {
    let mut entry = waiting(1, Instant::ZERO);
    let fin = segment(99, TcpFlags::FIN.union(TcpFlags::ACK), 5000);
    let TimeWaitVerdict::Acknowledge(ack) = entry.handle_segment(Instant::ZERO, &fin, 0) else {
        panic!("the peer's FIN must be acknowledged");
    };
    assert_eq!(
        (ack.sequence, ack.acknowledgment),
        (SeqNumber(900), SeqNumber(100))
    );
}

/// The FIN may come with the text before it. What does not end with it may be forged.
#[test]
fn what_does_not_end_with_the_peers_fin_is_a_challenge() {
    let closing = TcpFlags::FIN.union(TcpFlags::ACK);
    for (sequence, flags, payload, is_peers) in [
        (99, closing, 0, true),
        (89, closing, 10, true),
        (98, closing, 0, false),
        (100, closing, 0, false),
        (89, closing, 9, false),
        (89, TcpFlags::ACK, 10, false),
        (101, TcpFlags::ACK, 0, false),
        (99, closing.union(TcpFlags::SYN), 0, false),
        (99, TcpFlags::SYN, 0, false),
    ] {
        let mut entry = waiting(1, Instant::ZERO);
        let ack = entry.acknowledgment(Instant::ZERO);
        let expected = if is_peers {
            TimeWaitVerdict::Acknowledge(ack)
        } else {
            TimeWaitVerdict::Challenge(ack)
        };
        let verdict = entry.handle_segment(Instant::ZERO, &segment(sequence, flags, 5000), payload);
        assert_eq!(verdict, expected, "{sequence} {flags:?} {payload}");
    }
}

#[test]
fn resets_and_old_acks_are_ignored() {
    let mut entry = waiting(1, Instant::ZERO);
    for (sequence, flags) in [(100, TcpFlags::RST), (100, TcpFlags::ACK)] {
        let verdict = entry.handle_segment(Instant::ZERO, &segment(sequence, flags, 5000), 0);
        assert_eq!(verdict, TimeWaitVerdict::Ignore);
    }
}

#[test]
fn an_open_peer_may_close_and_gets_a_reset_for_data() {
    let mut entry = waiting(1, Instant::ZERO).with_open_peer();
    let mut verdict = |sequence, flags, payload| {
        entry.handle_segment(Instant::ZERO, &segment(sequence, flags, 5000), payload)
    };
    assert_eq!(verdict(100, TcpFlags::ACK, 0), TimeWaitVerdict::Ignore);
    assert_eq!(verdict(100, TcpFlags::ACK, 1), TimeWaitVerdict::Reset);
    let closing = TcpFlags::FIN.union(TcpFlags::ACK);
    assert_eq!(verdict(100, closing, 1), TimeWaitVerdict::Reset);
    let TimeWaitVerdict::Acknowledge(ack) = verdict(100, closing, 0) else {
        panic!("a FIN is answered");
    };
    assert_eq!(ack.acknowledgment, SeqNumber(101));
    for sequence in [99, 101] {
        let TimeWaitVerdict::Challenge(ack) = verdict(sequence, closing, 0) else {
            panic!("this FIN is not the peer's");
        };
        assert_eq!(ack.acknowledgment, SeqNumber(100));
    }
    let mut closed = waiting(1, Instant::ZERO);
    let late = closed.handle_segment(Instant::ZERO, &segment(100, TcpFlags::ACK, 5000), 1);
    assert!(matches!(late, TimeWaitVerdict::Challenge(_)));
}

#[test]
fn only_a_newer_syn_reopens() {
    let mut entry = waiting(1, Instant::ZERO);
    let mut verdict = |sequence, stamp| {
        entry.handle_segment(Instant::ZERO, &segment(sequence, TcpFlags::SYN, stamp), 0)
    };
    let reopen = TimeWaitVerdict::Reopen {
        iss_min: SeqNumber(900 + (1 << 16)),
    };
    assert_eq!(verdict(101, 4000), reopen);
    assert_eq!(verdict(50, 5001), reopen);
    assert!(matches!(verdict(100, 5000), TimeWaitVerdict::Challenge(_)));
}

/// RFC 1337 s3, RFC 9293 s3.10.7.3: a client that knows nothing of the connection answers our ACK by a
/// reset at its number.
#[test]
fn a_reset_at_the_next_number_lets_any_syn_open_and_changes_nothing_else() {
    let mut entry = waiting(1, Instant::ZERO);
    let older = segment(50, TcpFlags::SYN, 4000);
    let fin = segment(99, TcpFlags::FIN.union(TcpFlags::ACK), 5000);
    for (sequence, reopens) in [(99, false), (101, false), (100, true)] {
        // Of another client, with another clock.
        let reset = segment(sequence, TcpFlags::RST, 1);
        assert_eq!(
            entry.handle_segment(Instant::ZERO, &reset, 0),
            TimeWaitVerdict::Ignore
        );
        let verdict = entry.handle_segment(Instant::ZERO, &older, 0);
        assert_eq!(
            matches!(verdict, TimeWaitVerdict::Reopen { iss_min } if iss_min == SeqNumber(900 + (1 << 16))),
            reopens,
            "{sequence}"
        );
        assert!(matches!(
            entry.handle_segment(Instant::ZERO, &fin, 0),
            TimeWaitVerdict::Acknowledge(_)
        ));
        assert_eq!(entry.expires_at(), Instant::ZERO + DURATION);
    }
    let not_a_request = segment(50, TcpFlags::SYN.union(TcpFlags::FIN), 4000);
    assert!(matches!(
        entry.handle_segment(Instant::ZERO, &not_a_request, 0),
        TimeWaitVerdict::Challenge(_)
    ));
}

#[test]
fn tuples_expire_in_order_and_not_before_their_time() {
    let mut table = TimeWaitTable::new(4);
    table.insert(waiting(1, Instant::ZERO));
    let (second, _) = table.insert(waiting(2, Instant::from_millis(10)));
    table.insert(waiting(3, Instant::from_millis(20)));
    let due = Instant::ZERO + DURATION;
    assert_eq!(table.next_expiry(), Some(due));
    assert_eq!(
        table.pop_expired(Instant::from_nanos(due.as_nanos() - 1)),
        None
    );
    assert_eq!(table.pop_expired(due), Some(tuple(1)));
    table.remove(second);
    assert!(table.entry_mut(second).is_none());
    assert_eq!(
        table.pop_expired(due + Duration::from_millis(20)),
        Some(tuple(3))
    );
    assert_eq!(table.next_expiry(), None);
}

#[test]
fn removed_entries_do_not_slow_down_the_next_expiry() {
    let mut table = TimeWaitTable::new(4);
    let indexes: Vec<u32> = (1..=4)
        .map(|port| {
            table
                .insert(waiting(port, Instant::from_millis(port.into())))
                .0
        })
        .collect();
    table.remove(indexes[1]);
    assert_eq!(table.used, 4, "a hole behind the oldest waits for it");
    table.remove(indexes[0]);
    assert_eq!((table.used, table.oldest), (2, 2));
    assert_eq!(
        table.next_expiry(),
        Some(Instant::from_millis(3) + DURATION)
    );
    let (_, evicted) = table.insert(waiting(5, Instant::from_millis(5)));
    assert_eq!(evicted, None, "holes are room");
    table.remove(indexes[2]);
    table.remove(indexes[3]);
    assert_eq!(
        table.pop_expired(Instant::from_millis(5) + DURATION),
        Some(tuple(5))
    );
    assert_eq!((table.used, table.next_expiry()), (0, None));
}

#[test]
fn a_full_table_evicts_the_oldest() {
    let mut table = TimeWaitTable::new(2);
    assert_eq!(table.insert(waiting(1, Instant::ZERO)).1, None);
    assert_eq!(table.insert(waiting(2, Instant::ZERO)).1, None);
    let (index, evicted) = table.insert(waiting(3, Instant::ZERO));
    assert_eq!(evicted, Some(tuple(1)));
    assert_eq!(
        table.entry_mut(index).map(|entry| entry.tuple()),
        Some(tuple(3))
    );
}
