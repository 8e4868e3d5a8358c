//! The acceptance table, trimming, and PAWS, on both sides of each limit.

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::{ReceiveState, Text, TimestampState, Unacceptable};

const NXT: u32 = u32::MAX - 50;

fn state() -> ReceiveState {
    ReceiveState::new(SeqNumber(NXT), 100, None)
}

fn at(distance: i32, flags: TcpFlags) -> TcpRepr {
    let sequence = SeqNumber(NXT.wrapping_add_signed(distance));
    TcpRepr {
        sequence,
        flags,
        ..TcpRepr::default()
    }
}

fn accepts(distance: i32, payload_bytes: usize) -> bool {
    state()
        .check_sequence(Instant::ZERO, &at(distance, TcpFlags::ACK), payload_bytes)
        .is_ok()
}

#[test]
fn empty_segments_must_start_inside_the_window() {
    assert!(accepts(0, 0));
    assert!(accepts(99, 0));
    assert!(!accepts(100, 0));
    assert!(!accepts(-1, 0));
}

#[test]
fn segments_with_text_must_touch_the_window() {
    assert!(accepts(99, 50));
    assert!(!accepts(100, 50));
    assert!(accepts(-9, 10));
    assert!(!accepts(-10, 10));
}

#[test]
fn a_closed_window_accepts_only_the_empty_segment_at_its_edge() {
    let mut closed = ReceiveState::new(SeqNumber(NXT), 0, None);
    let ok = |closed: &mut ReceiveState, distance, bytes| {
        closed
            .check_sequence(Instant::ZERO, &at(distance, TcpFlags::ACK), bytes)
            .is_ok()
    };
    assert!(ok(&mut closed, 0, 0));
    assert!(!ok(&mut closed, 0, 1));
    assert!(!ok(&mut closed, 1, 0));
}

#[test]
fn text_is_trimmed_on_both_sides() {
    let mut receive = state();
    let text = receive.process_text(&at(-10, TcpFlags::ACK), 200);
    assert_eq!(
        text,
        Text {
            payload: 10..110,
            fin: false,
            dropped: true
        }
    );
    assert_eq!(receive.nxt, SeqNumber(NXT.wrapping_add(100)));
    assert_eq!(receive.window(), 0);
}

#[test]
fn text_beyond_a_hole_comes_again() {
    let mut receive = state();
    let text = receive.process_text(&at(1, TcpFlags::ACK), 10);
    assert_eq!(
        text,
        Text {
            payload: 0..0,
            fin: false,
            dropped: true
        }
    );
    assert_eq!(receive.nxt, SeqNumber(NXT));
}

#[test]
fn a_fin_counts_once_and_only_after_the_last_byte() {
    let fin = TcpFlags::ACK.union(TcpFlags::FIN);
    let mut receive = state();
    assert!(
        !receive.process_text(&at(0, fin), 101).fin,
        "its text did not fit"
    );
    let mut receive = state();
    assert!(receive.process_text(&at(0, fin), 100).fin);
    assert_eq!(receive.nxt, SeqNumber(NXT.wrapping_add(101)));
    assert!(
        !receive.process_text(&at(0, fin), 100).fin,
        "the same FIN again"
    );
    assert_eq!(receive.nxt, SeqNumber(NXT.wrapping_add(101)));
}

#[test]
fn the_advertised_edge_never_moves_left() {
    let mut receive = state();
    receive.on_ack_sent();
    assert!(!receive.set_window(10));
    assert_eq!(receive.window(), 100, "what was promised stays promised");
    let _ = receive.process_text(&at(0, TcpFlags::ACK), 95);
    assert_eq!(receive.window(), 5);
    assert!(!receive.set_window(1028));
    assert!(
        receive.set_window(1029),
        "a kilobyte more is worth a window update"
    );
}

#[test]
fn paws_refuses_older_timestamps_until_they_age() {
    let stamps = TimestampState::new(Instant::ZERO, 1000, 0);
    let receive = ReceiveState::new(SeqNumber(NXT), 100, Some(stamps));
    let stamped = |value| TcpRepr {
        options: TcpOptions {
            timestamps: Some(Timestamps { value, echo: 0 }),
            ..TcpOptions::default()
        },
        ..at(0, TcpFlags::ACK)
    };
    let soon = Instant::from_millis(5);
    assert_eq!(receive.check_sequence(soon, &stamped(1000), 1), Ok(()));
    assert_eq!(
        receive.check_sequence(soon, &stamped(999), 1),
        Err(Unacceptable::StaleTimestamp)
    );
    let aged = Instant::ZERO + Duration::from_secs(24 * 24 * 3600) + Duration::from_secs(1);
    assert_eq!(receive.check_sequence(aged, &stamped(999), 1), Ok(()));
    // Without a timestamp, and a reset with any (RFC 7323 s5.2).
    let reset = TcpRepr {
        flags: TcpFlags::RST,
        ..stamped(999)
    };
    for passing in [at(0, TcpFlags::ACK), at(0, TcpFlags::RST), reset] {
        assert_eq!(receive.check_sequence(soon, &passing, 0), Ok(()));
    }
    let beyond = at(100, TcpFlags::ACK);
    assert_eq!(
        receive.check_sequence(soon, &beyond, 1),
        Err(Unacceptable::OutOfWindow)
    );
}

#[test]
fn only_segments_at_the_acknowledged_edge_move_ts_recent() {
    let stamps = TimestampState::new(Instant::ZERO, 1000, 7);
    let mut receive = ReceiveState::new(SeqNumber(NXT), 100, Some(stamps));
    let mut segment = at(1, TcpFlags::ACK);
    segment.options.timestamps = Some(Timestamps {
        value: 2000,
        echo: 0,
    });
    receive.remember_timestamp(Instant::ZERO, &segment);
    assert_eq!(
        receive
            .timestamps
            .unwrap()
            .stamp(Instant::from_millis(3))
            .echo,
        1000
    );
    segment.sequence = SeqNumber(NXT);
    assert_eq!(receive.check_sequence(Instant::ZERO, &segment, 1), Ok(()));
    let stamp = receive.timestamps.unwrap().stamp(Instant::from_millis(3));
    assert_eq!(stamp.echo, 1000, "the sequence check alone decides nothing");
    receive.remember_timestamp(Instant::ZERO, &segment);
    let stamp = receive.timestamps.unwrap().stamp(Instant::from_millis(3));
    assert_eq!((stamp.echo, stamp.value), (2000, 10));
}

/// RFC 7323 s3.2, s4.1: what is echoed was ours once, or tells nothing.
#[test]
fn an_echoed_timestamp_must_be_plausible() {
    let shift = u32::MAX - 1000;
    let stamps = TimestampState::new(Instant::ZERO, 1, shift);
    let now = Instant::from_micros(100_000_900);
    let stamp = |at: Instant| stamps.stamp(at).value;
    let sent_at = Instant::from_millis(99_300);
    assert_eq!(stamps.echoed_at(now, stamp(sent_at)), Some(sent_at));
    let this_millisecond = Instant::from_millis(100_000);
    assert_eq!(stamps.echoed_at(now, stamp(now)), Some(this_millisecond));
    assert_eq!(stamps.echoed_at(now, stamp(now) + 1), None, "not sent yet");
    let oldest = Instant::from_millis(40_000);
    assert_eq!(stamps.echoed_at(now, stamp(oldest)), Some(oldest));
    assert_eq!(stamps.echoed_at(now, stamp(oldest) - 1), None, "too old");
    let early = Instant::from_millis(5);
    assert_eq!(
        stamps.echoed_at(early, stamp(Instant::ZERO)),
        Some(Instant::ZERO)
    );
    assert_eq!(stamps.echoed_at(early, shift - 1), None, "before our start");
    // The clock's value at 1001 ms is 0.
    assert_eq!(stamp(Instant::from_millis(1001)), 0);
    assert_eq!(stamps.echoed_at(Instant::from_millis(1001), 0), None);
    assert!(stamps.echoed_at(Instant::from_millis(1003), 1).is_some());
}
