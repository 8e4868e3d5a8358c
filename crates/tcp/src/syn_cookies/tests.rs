//! SYN cookies, each check on both sides of its limit.

use clock::{Duration, Instant};
use proptest::prelude::*;
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::{SEGMENT_BYTES_V4, SEGMENT_BYTES_V6, SynCookies, TICK, VALIDITY, with_options};
use crate::connection::{Config, Connection};
use crate::half_open::{ECN_SETUP, HalfOpen, HalfOpenVerdict, Offer};
use crate::table::FourTuple;

/// Our timestamp clock is ahead of the time by this.
const SHIFT: u32 = 1_000_003;

const OFFER: Offer = Offer {
    iss: SeqNumber(77),
    timestamp_shift: SHIFT,
    segment_bytes: 8960,
    window: 17_000,
    accepts_ecn: true,
};

fn tuple() -> FourTuple {
    FourTuple {
        local: "10.0.0.2:80".parse().unwrap(),
        peer: "10.0.0.1:5000".parse().unwrap(),
    }
}

fn tuple_v6() -> FourTuple {
    FourTuple {
        local: "[fd00::2]:80".parse().unwrap(),
        peer: "[fd00::1]:5000".parse().unwrap(),
    }
}

fn cookies() -> SynCookies {
    SynCookies::new([5; 16])
}

/// Some moment in a tick.
fn start() -> Instant {
    Instant::from_millis(640_000) + Duration::from_secs(10)
}

fn all_options() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 50, echo: 0 }),
        ..TcpOptions::default()
    }
}

fn syn(options: TcpOptions) -> TcpRepr {
    TcpRepr {
        sequence: SeqNumber(u32::MAX),
        flags: TcpFlags::SYN,
        options,
        ..TcpRepr::default()
    }
}

/// What a client answers.
fn ack_of(syn_ack: &TcpRepr) -> TcpRepr {
    TcpRepr {
        sequence: syn_ack.acknowledgment,
        acknowledgment: syn_ack.sequence.wrapping_add(1),
        flags: TcpFlags::ACK,
        window: 500,
        options: TcpOptions {
            timestamps: syn_ack.options.timestamps.map(|stamp| Timestamps {
                value: 60,
                echo: stamp.value,
            }),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    }
}

/// A cookie for these options, and the ACK that answers it.
fn exchange(options: TcpOptions) -> (SynCookies, TcpRepr, TcpRepr) {
    let mut cookies = cookies();
    let syn_ack = cookies.answer(start(), &tuple(), &syn(options), OFFER);
    (cookies, syn_ack, ack_of(&syn_ack))
}

#[test]
fn the_connection_has_what_the_syn_offered() {
    let (cookies, syn_ack, ack) = exchange(all_options());
    let half_open = cookies.accept(start(), &tuple(), &ack, OFFER).unwrap();
    assert_eq!(
        half_open.handle_segment(&ack, 0),
        HalfOpenVerdict::Establish
    );
    let usual = HalfOpen::new(start(), tuple(), &syn(all_options()), OFFER);
    assert_eq!(half_open.iss(), syn_ack.sequence);
    assert_eq!(half_open.receive_next(), usual.receive_next());
    assert_eq!(half_open.peer_window_shift(), 7);
    assert!(half_open.sack_permitted());
    assert_eq!(half_open.segment_bytes(), usual.segment_bytes());
    assert_eq!(half_open.round_trip(start()), None);
    assert_eq!(syn_ack.options.window_scale, Some(0));
    assert!(syn_ack.options.sack_permitted);
    assert_eq!(syn_ack.options.timestamps.unwrap().echo, 50);
}

#[test]
fn each_option_is_kept_by_itself() {
    for window_scale in [None].into_iter().chain((0..=14).map(Some)) {
        for sack_permitted in [false, true] {
            let options = TcpOptions {
                window_scale,
                sack_permitted,
                ..all_options()
            };
            let (cookies, syn_ack, ack) = exchange(options);
            let half_open = cookies.accept(start(), &tuple(), &ack, OFFER).unwrap();
            assert_eq!(half_open.peer_window_shift(), window_scale.unwrap_or(0));
            assert_eq!(half_open.sack_permitted(), sack_permitted);
            let agreed = syn_ack.options;
            assert_eq!(agreed.window_scale.is_some(), window_scale.is_some());
            assert_eq!(agreed.sack_permitted, sack_permitted);
        }
    }
}

#[test]
fn without_timestamps_there_is_neither_window_scale_nor_sack() {
    let options = TcpOptions {
        timestamps: None,
        ..all_options()
    };
    let (cookies, syn_ack, ack) = exchange(options);
    let agreed = TcpOptions {
        mss: Some(OFFER.segment_bytes),
        ..TcpOptions::default()
    };
    assert_eq!(syn_ack.options, agreed);
    let half_open = cookies.accept(start(), &tuple(), &ack, OFFER).unwrap();
    assert_eq!(half_open.peer_window_shift(), 0);
    assert!(!half_open.sack_permitted() && half_open.timestamps().is_none());
    assert_eq!(half_open.segment_bytes(), 1460);
}

#[test]
fn ecn_is_kept_beside_the_options_and_not_without_timestamps() {
    let agreed = |asked: TcpFlags, options: TcpOptions, accepts_ecn| {
        let mut cookies = cookies();
        let syn = TcpRepr {
            flags: TcpFlags::SYN.union(asked),
            ..syn(options)
        };
        let offer = Offer {
            accepts_ecn,
            ..OFFER
        };
        let syn_ack = cookies.answer(start(), &tuple(), &syn, offer);
        let ack = ack_of(&syn_ack);
        let half_open = cookies.accept(start(), &tuple(), &ack, OFFER).unwrap();
        let is_answered = syn_ack.flags.contains(TcpFlags::ECE);
        assert_eq!(half_open.uses_ecn(), is_answered);
        assert_eq!(
            half_open.peer_window_shift(),
            syn_ack.options.window_scale.map_or(0, |_| 7)
        );
        is_answered
    };
    let without_timestamps = TcpOptions {
        timestamps: None,
        ..all_options()
    };
    assert!(agreed(ECN_SETUP, all_options(), true));
    assert!(!agreed(ECN_SETUP, all_options(), false));
    assert!(!agreed(TcpFlags::ECE, all_options(), true));
    assert!(!agreed(ECN_SETUP, without_timestamps, true));
}

#[test]
fn the_mss_is_rounded_down_to_one_of_the_table() {
    let kept = |tuple: FourTuple, mss| {
        let mut cookies = cookies();
        let options = TcpOptions {
            mss,
            ..TcpOptions::default()
        };
        let syn_ack = cookies.answer(start(), &tuple, &syn(options), OFFER);
        let ack = ack_of(&syn_ack);
        let half_open = cookies.accept(start(), &tuple, &ack, OFFER).unwrap();
        half_open.segment_bytes()
    };
    for (tuple, table) in [(tuple(), SEGMENT_BYTES_V4), (tuple_v6(), SEGMENT_BYTES_V6)] {
        for pair in table.windows(2) {
            assert_eq!(kept(tuple, Some(pair[0])), pair[0]);
            assert_eq!(kept(tuple, Some(pair[1] - 1)), pair[0]);
        }
        assert_eq!(kept(tuple, Some(u16::MAX)), table[7]);
        assert_eq!(kept(tuple, Some(0)), 536, "as with other half-open ones");
    }
    assert_eq!(kept(tuple(), None), 536);
    assert_eq!(kept(tuple_v6(), None), 1220);
}

#[test]
fn the_link_bounds_the_segment_size() {
    let (cookies, _, ack) = exchange(TcpOptions {
        mss: Some(1460),
        ..TcpOptions::default()
    });
    let offer = Offer {
        segment_bytes: 1000,
        ..OFFER
    };
    let half_open = cookies.accept(start(), &tuple(), &ack, offer).unwrap();
    assert_eq!(half_open.segment_bytes(), 1000);
}

#[test]
fn a_cookie_is_valid_in_its_tick_and_the_next() {
    let (mut cookies, _, ack) = exchange(all_options());
    let tick_start = Instant::from_millis(640_000);
    let end = tick_start + TICK.saturating_mul(2);
    let last = Instant::from_nanos(end.as_nanos() - 1);
    // Others are sent all the time.
    let mut accepts = |now| {
        let other = FourTuple {
            peer: "10.0.0.9:9".parse().unwrap(),
            ..tuple()
        };
        let _ = cookies.answer(now, &other, &syn(all_options()), OFFER);
        cookies.accept(now, &tuple(), &ack, OFFER).is_some()
    };
    assert!(accepts(start()));
    assert!(accepts(last));
    assert!(!accepts(end));
    // The tick's two bits are the same again.
    assert!(!accepts(start() + TICK.saturating_mul(4)));
}

#[test]
fn a_cookie_of_a_later_tick_is_refused() {
    let mut cookies = cookies();
    let later = start() + TICK;
    let syn_ack = cookies.answer(later, &tuple(), &syn(all_options()), OFFER);
    let ack = ack_of(&syn_ack);
    assert!(cookies.accept(start(), &tuple(), &ack, OFFER).is_none());
    assert!(
        cookies
            .accept(Instant::ZERO, &tuple(), &ack, OFFER)
            .is_none()
    );
    assert!(cookies.accept(later, &tuple(), &ack, OFFER).is_some());
}

#[test]
fn nothing_is_accepted_unless_cookies_were_sent_of_late() {
    let (cookies, _, ack) = exchange(all_options());
    let fresh = self::cookies();
    assert!(fresh.accept(start(), &tuple(), &ack, OFFER).is_none());
    assert!(!fresh.is_expecting(start()));
    assert!(cookies.is_expecting(start() + VALIDITY));
    let beyond = start() + VALIDITY + Duration::from_nanos(1);
    assert!(!cookies.is_expecting(beyond));
}

#[test]
fn another_tuple_key_or_number_is_refused() {
    let (cookies, _, ack) = exchange(all_options());
    let accepts = |cookies: &SynCookies, tuple: FourTuple, ack: TcpRepr| {
        cookies.accept(start(), &tuple, &ack, OFFER).is_some()
    };
    assert!(accepts(&cookies, tuple(), ack));
    let strange = FourTuple {
        peer: "10.0.0.1:5001".parse().unwrap(),
        ..tuple()
    };
    assert!(!accepts(&cookies, strange, ack));
    let strange = FourTuple {
        local: "10.0.0.2:443".parse().unwrap(),
        ..tuple()
    };
    assert!(!accepts(&cookies, strange, ack));
    let mut other_key = SynCookies::new([6; 16]);
    other_key.sent_at = cookies.sent_at;
    assert!(!accepts(&other_key, tuple(), ack));
    for bit in 0..32 {
        let flipped = |number: SeqNumber| SeqNumber(number.0 ^ 1 << bit);
        let acknowledgment = ack.acknowledgment.wrapping_add(u32::MAX);
        let acknowledgment = flipped(acknowledgment).wrapping_add(1);
        assert!(!accepts(
            &cookies,
            tuple(),
            TcpRepr {
                acknowledgment,
                ..ack
            }
        ));
        let sequence = flipped(ack.sequence);
        assert!(!accepts(&cookies, tuple(), TcpRepr { sequence, ..ack }));
    }
}

#[test]
fn only_an_ack_carries_a_cookie() {
    let (cookies, _, ack) = exchange(all_options());
    let accepts = |flags| {
        let segment = TcpRepr { flags, ..ack };
        cookies.accept(start(), &tuple(), &segment, OFFER).is_some()
    };
    assert!(accepts(TcpFlags::ACK.union(TcpFlags::PSH)));
    assert!(accepts(TcpFlags::ACK.union(TcpFlags::FIN)));
    assert!(!accepts(TcpFlags::PSH));
    assert!(!accepts(TcpFlags::ACK.union(TcpFlags::RST)));
    assert!(!accepts(TcpFlags::ACK.union(TcpFlags::SYN)));
}

#[test]
fn the_echoed_timestamp_must_be_ours_and_of_that_time() {
    let (cookies, syn_ack, ack) = exchange(all_options());
    let sent = syn_ack.options.timestamps.unwrap().value;
    let accepts = |at: Instant, stamp: Option<u32>| {
        let timestamps = stamp.map(|echo| Timestamps { value: 60, echo });
        let options = TcpOptions {
            timestamps,
            ..TcpOptions::default()
        };
        let segment = TcpRepr { options, ..ack };
        cookies.accept(at, &tuple(), &segment, OFFER).is_some()
    };
    assert!(accepts(start(), Some(sent)));
    assert!(!accepts(start(), None), "timestamps were agreed");
    for bit in 0..6 {
        assert!(!accepts(start(), Some(sent ^ 1 << bit)), "other options");
    }
    assert!(!accepts(start(), Some(sent.wrapping_add(64))), "the future");
    assert!(accepts(start(), Some(sent.wrapping_sub(128_000))));
    assert!(!accepts(start(), Some(sent.wrapping_sub(128_000 + 128))));
    let (cookies, _, plain) = exchange(TcpOptions::default());
    let stamped = TcpRepr {
        options: ack.options,
        ..plain
    };
    assert!(cookies.accept(start(), &tuple(), &plain, OFFER).is_some());
    let accepted = cookies.accept(start(), &tuple(), &stamped, OFFER);
    assert!(accepted.is_none(), "timestamps were not agreed");
}

#[test]
fn timestamps_of_the_connection_do_not_decrease() {
    for millis in 0..128 {
        let now = start() + Duration::from_millis(millis);
        let mut cookies = cookies();
        let syn_ack = cookies.answer(now, &tuple(), &syn(all_options()), OFFER);
        let ack = ack_of(&syn_ack);
        let half_open = cookies.accept(now, &tuple(), &ack, OFFER).unwrap();
        let connection = Connection::new(Config::default(), &half_open, now, ack.window);
        let first = connection.abort(now).options.timestamps.unwrap();
        let cookie = syn_ack.options.timestamps.unwrap();
        let ahead = first.value.wrapping_sub(cookie.value);
        assert!(ahead < 64, "{ahead} ms behind the clock");
        assert_eq!(first.echo, 60);
    }
}

proptest! {
    #[test]
    fn a_timestamp_is_rounded_down_to_its_options(value in any::<u32>(), options in 0u32..64) {
        let rounded = with_options(value, options);
        prop_assert_eq!(rounded % 64, options);
        prop_assert!(value.wrapping_sub(rounded) < 64);
    }
}
