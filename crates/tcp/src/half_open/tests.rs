//! SYN-RECEIVED, each verdict on both sides.

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::{ECN_SETUP, HalfOpen, HalfOpenVerdict, Offer, RETRIES_MAX};
use crate::table::FourTuple;

const OFFER: Offer = Offer {
    iss: SeqNumber(u32::MAX),
    timestamp_shift: 0,
    segment_bytes: 1460,
    window: 1000,
    accepts_ecn: true,
};

fn syn(options: TcpOptions) -> TcpRepr {
    TcpRepr {
        sequence: SeqNumber(100),
        flags: TcpFlags::SYN,
        options,
        ..TcpRepr::default()
    }
}

fn half_open(options: TcpOptions) -> HalfOpen {
    let tuple = FourTuple {
        local: "10.0.0.2:80".parse().unwrap(),
        peer: "10.0.0.1:5000".parse().unwrap(),
    };
    HalfOpen::new(Instant::ZERO, tuple, &syn(options), OFFER)
}

fn ack(sequence: u32, acknowledgment: u32) -> TcpRepr {
    TcpRepr {
        sequence: SeqNumber(sequence),
        acknowledgment: SeqNumber(acknowledgment),
        flags: TcpFlags::ACK,
        ..TcpRepr::default()
    }
}

#[test]
fn options_are_answered_only_if_they_were_offered() {
    let plain = half_open(TcpOptions::default()).syn_ack(Instant::ZERO);
    assert_eq!(
        plain.options,
        TcpOptions {
            mss: Some(1460),
            ..TcpOptions::default()
        }
    );
    assert_eq!(plain.acknowledgment, SeqNumber(101));
    let all = TcpOptions {
        mss: Some(9000),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 77, echo: 0 }),
        ..TcpOptions::default()
    };
    let full = half_open(all).syn_ack(Instant::from_millis(5)).options;
    assert_eq!(full.window_scale, Some(0));
    assert!(full.sack_permitted);
    assert_eq!(full.timestamps, Some(Timestamps { value: 5, echo: 77 }));
}

/// RFC 3168 s6.1.1: ECE and CWR together ask, ECE alone answers.
#[test]
fn ecn_is_agreed_if_the_syn_has_both_bits_and_it_is_accepted() {
    let answer = |asked: TcpFlags, accepts_ecn| {
        let syn = TcpRepr {
            flags: TcpFlags::SYN.union(asked),
            ..syn(TcpOptions::default())
        };
        let tuple = half_open(TcpOptions::default()).tuple();
        let offer = Offer {
            accepts_ecn,
            ..OFFER
        };
        let state = HalfOpen::new(Instant::ZERO, tuple, &syn, offer);
        (state.uses_ecn(), state.syn_ack(Instant::ZERO).flags)
    };
    let plain = TcpFlags::SYN.union(TcpFlags::ACK);
    assert_eq!(answer(ECN_SETUP, true), (true, plain.union(TcpFlags::ECE)));
    assert_eq!(answer(ECN_SETUP, false), (false, plain));
    for one in [TcpFlags::ECE, TcpFlags::CWR, TcpFlags::default()] {
        assert_eq!(answer(one, true), (false, plain));
    }
}

/// A client whose first SYN was lost, or its answer, tries without ECN.
#[test]
fn a_syn_repeated_without_ecn_withdraws_it() {
    let asking = TcpRepr {
        flags: TcpFlags::SYN.union(ECN_SETUP),
        ..syn(TcpOptions::default())
    };
    let tuple = half_open(TcpOptions::default()).tuple();
    let mut state = HalfOpen::new(Instant::ZERO, tuple, &asking, OFFER);
    state.on_syn_ack_retransmit(Instant::ZERO, &asking);
    state.on_syn_ack_retransmit(Instant::ZERO, &ack(101, 0));
    assert!(state.uses_ecn());
    state.on_syn_ack_retransmit(Instant::ZERO, &syn(TcpOptions::default()));
    assert!(!state.uses_ecn());
    state.on_syn_ack_retransmit(Instant::ZERO, &asking);
    assert!(!state.uses_ecn());
}

#[test]
fn the_segment_size_is_the_lesser_mss_less_options() {
    let with = |mss, stamped: bool| {
        half_open(TcpOptions {
            mss,
            timestamps: stamped.then_some(Timestamps { value: 0, echo: 0 }),
            ..TcpOptions::default()
        })
        .segment_bytes()
    };
    assert_eq!(with(None, false), 536);
    assert_eq!(with(Some(9000), false), 1460);
    assert_eq!(with(Some(1400), true), 1388);
    assert_eq!(with(Some(0), true), 536 - 12, "a tiny MSS is not obeyed");
}

#[test]
fn exactly_our_syn_must_be_acknowledged() {
    let state = half_open(TcpOptions::default());
    assert_eq!(
        state.handle_segment(&ack(101, 0), 0),
        HalfOpenVerdict::Establish
    );
    assert_eq!(
        state.handle_segment(&ack(101, 1), 0),
        HalfOpenVerdict::Reset
    );
    assert_eq!(
        state.handle_segment(&ack(101, u32::MAX), 0),
        HalfOpenVerdict::Reset
    );
}

#[test]
fn the_ack_must_lie_in_the_window() {
    let state = half_open(TcpOptions::default());
    assert_eq!(
        state.handle_segment(&ack(1100, 0), 0),
        HalfOpenVerdict::Establish
    );
    assert_eq!(
        state.handle_segment(&ack(1101, 0), 0),
        HalfOpenVerdict::Challenge
    );
    assert_eq!(
        state.handle_segment(&ack(100, 0), 1),
        HalfOpenVerdict::Challenge
    );
    assert_eq!(
        state.handle_segment(&ack(100, 0), 2),
        HalfOpenVerdict::Establish
    );
}

#[test]
fn resets_count_only_at_the_edge() {
    let state = half_open(TcpOptions::default());
    let reset = |sequence| TcpRepr {
        flags: TcpFlags::RST,
        ..ack(sequence, 0)
    };
    assert_eq!(
        state.handle_segment(&reset(101), 0),
        HalfOpenVerdict::Forget
    );
    assert_eq!(
        state.handle_segment(&reset(102), 0),
        HalfOpenVerdict::Ignore
    );
}

#[test]
fn a_retransmitted_syn_gets_another_syn_ack() {
    let state = half_open(TcpOptions::default());
    assert_eq!(
        state.handle_segment(&syn(TcpOptions::default()), 0),
        HalfOpenVerdict::RetransmitSynAck
    );
    let other = TcpRepr {
        sequence: SeqNumber(99),
        ..syn(TcpOptions::default())
    };
    assert_eq!(state.handle_segment(&other, 0), HalfOpenVerdict::Challenge);
}

#[test]
fn agreed_timestamps_may_be_missing_and_not_be_older() {
    let stamps = |value| TcpOptions {
        timestamps: Some(Timestamps { value, echo: 0 }),
        ..TcpOptions::default()
    };
    let state = half_open(stamps(50));
    let stamped = |value| TcpRepr {
        options: stamps(value),
        ..ack(101, 0)
    };
    assert_eq!(
        state.handle_segment(&stamped(50), 0),
        HalfOpenVerdict::Establish
    );
    assert_eq!(
        state.handle_segment(&stamped(49), 0),
        HalfOpenVerdict::Challenge
    );
    assert_eq!(
        state.handle_segment(&ack(101, 0), 0),
        HalfOpenVerdict::Establish
    );
}

#[test]
fn repetitions_double_and_end() {
    let mut state = half_open(TcpOptions::default());
    let mut waited = state.deadline().since(Instant::ZERO);
    assert_eq!(waited, Duration::from_secs(1));
    for _ in 0..RETRIES_MAX {
        let now = state.deadline();
        assert!(state.handle_timeout(now));
        waited += state.deadline().since(now);
    }
    assert_eq!(waited, Duration::from_secs(31));
    assert!(!state.handle_timeout(state.deadline()));
}

#[test]
fn a_repeated_syn_has_its_own_timestamp_echoed() {
    let stamps = |value| TcpOptions {
        timestamps: Some(Timestamps { value, echo: 0 }),
        ..TcpOptions::default()
    };
    let echo = |state: &HalfOpen| {
        state
            .syn_ack(Instant::ZERO)
            .options
            .timestamps
            .unwrap()
            .echo
    };
    let mut state = half_open(stamps(50));
    let mut other = syn(stamps(70));
    other.sequence = SeqNumber(99);
    for (segment, expected) in [(syn(stamps(60)), 60), (syn(stamps(59)), 60), (other, 60)] {
        state.on_syn_ack_retransmit(Instant::ZERO, &segment);
        assert_eq!(echo(&state), expected);
    }
}

#[test]
fn only_a_syn_ack_sent_once_is_a_sample() {
    let later = Instant::from_millis(1100);
    let mut state = half_open(TcpOptions::default());
    assert_eq!(state.round_trip(later), Some(Duration::from_millis(1100)));
    state.on_syn_ack_retransmit(Instant::from_millis(1000), &syn(TcpOptions::default()));
    assert_eq!(state.round_trip(later), None);
}
