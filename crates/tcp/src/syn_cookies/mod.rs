//! SYN cookies (RFC 4987 s3.6): a SYN-ACK whose initial sequence number is all the state there is of
//! a half-open connection.
//!
//! ```text
//!   ISS    | 27 bits of a keyed hash | tick, modulo 4 | index of the MSS |
//!   TSval  | our timestamp clock, rounded down  | ECN | SACK | scale     |
//! ```
//!
//! The hash is of the four-tuple, the client's ISN, the tick of 64 s, the MSS and the options. Window
//! scale, SACK and ECN are kept in the low six bits of the timestamp, which the client echoes, as in
//! Linux; a client without timestamps gets none of them. Such a timestamp is up to 63 ms behind our
//! clock and never ahead of it, so that the timestamps of the connection, which come from the clock, do
//! not decrease.
//!
//! Refused: cookies at times when none were sent ([`VALIDITY`] after the last one). So an attacker who
//! guesses must first fill the table of half-open connections, and then needs 2^28 ACKs on average
//! for a four-tuple of no use to it; with timestamps more. A forged ACK costs two hashes and no state.
//! Bounded: no state but the time of the last cookie.

use core::hash::Hasher;

use clock::{Duration, Instant};
use siphasher::sip::SipHasher13;
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::half_open::{ECN_SETUP, HalfOpen, Offer, segment_bytes_default};
use crate::table::{FourTuple, hash_tuple};

/// Unit of a cookie's age.
const TICK: Duration = Duration::from_secs(64);
/// A cookie is accepted in the tick in which it was sent and in the next one: for 64 s at least. A
/// client that has not answered a SYN-ACK by then has given up or sent its SYN again.
const TICKS_MAX: u64 = 2;
/// How long after the last SYN cookie was sent ACKs are checked for one. No cookie is valid longer.
pub const VALIDITY: Duration = TICK.saturating_mul(2);

/// MSS values that a cookie can express, in ascending order; the peer's is rounded down. The least is
/// that of [`crate::connection::SEGMENT_BYTES_MIN`]; the others are those of IPv6's least MTU, of
/// tunnels, of PPPoE and of Ethernet.
const SEGMENT_BYTES_V4: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1452, 1460];
/// The same for IPv6, whose header is 20 bytes longer.
const SEGMENT_BYTES_V6: [u16; 8] = [536, 1220, 1280, 1340, 1380, 1420, 1432, 1440];

const SEGMENT_BITS: u32 = 3;
const TICK_BITS: u32 = 2;
const HASH_SHIFT: u32 = SEGMENT_BITS + TICK_BITS;

/// Low bits of a timestamp that hold the options: four of the window scale, one of SACK, one of ECN.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// In place of a window scale: none was offered (RFC 7323 s2.3: a scale is 14 at most).
const NO_SCALE: u32 = 15;
const SCALE_MASK: u32 = 15;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;
/// Hashed in place of the options of a SYN without timestamps.
const NO_TIMESTAMPS: u32 = u32::MAX;

/// Makes and checks SYN cookies.
#[derive(Clone)]
pub struct SynCookies {
    key: [u8; 16],
    /// When the last cookie was sent.
    sent_at: Option<Instant>,
}

impl SynCookies {
    /// `key` is secret and new at each start. It may be that of [`crate::Listener`]: what is hashed
    /// has other lengths.
    #[must_use]
    pub const fn new(key: [u8; 16]) -> Self {
        Self { key, sent_at: None }
    }

    /// The SYN-ACK for a SYN of which nothing is kept; its ISS replaces that of `offer`.
    #[must_use]
    pub fn answer(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        syn: &TcpRepr,
        offer: Offer,
    ) -> TcpRepr {
        self.sent_at = Some(now);
        let mut syn = *syn;
        let mut options = NO_TIMESTAMPS;
        if syn.options.timestamps.is_some() {
            let uses_ecn = offer.accepts_ecn && syn.flags.contains(ECN_SETUP);
            options = encode_options(&syn.options, uses_ecn);
        } else {
            syn.options.window_scale = None;
            syn.options.sack_permitted = false;
            syn.flags = syn.flags.difference(ECN_SETUP);
        }
        let default = segment_bytes_default(&tuple.peer);
        let peer = syn.options.mss.unwrap_or(default);
        let fitting = |bytes: &&u16| **bytes <= peer;
        let fitting = segment_sizes(tuple).iter().filter(fitting).count();
        let segment_index = u32::try_from(fitting.saturating_sub(1)).unwrap_or(0);
        let iss = self.cookie(tuple, syn.sequence, tick(now), segment_index, options);
        let offer = Offer { iss, ..offer };
        let mut syn_ack = HalfOpen::new(now, *tuple, &syn, offer).syn_ack(now);
        if let Some(stamp) = &mut syn_ack.options.timestamps {
            stamp.value = with_options(stamp.value, options);
        }
        syn_ack
    }

    /// The half-open connection that `segment` completes, if the segment acknowledges one of our
    /// cookies: as [`HalfOpen::new`] with `offer` made it, but for the rounded MSS, and without a
    /// sample of the round trip.
    #[must_use]
    pub fn accept(
        &self,
        now: Instant,
        tuple: &FourTuple,
        segment: &TcpRepr,
        offer: Offer,
    ) -> Option<HalfOpen> {
        let refused = TcpFlags::SYN.0 | TcpFlags::RST.0;
        let is_ack = segment.flags.contains(TcpFlags::ACK) && segment.flags.0 & refused == 0;
        if !is_ack || !self.is_expecting(now) {
            return None;
        }
        let iss = segment.acknowledgment.wrapping_add(u32::MAX);
        let irs = segment.sequence.wrapping_add(u32::MAX);
        let segment_index = iss.0 & ((1 << SEGMENT_BITS) - 1);
        let age = (tick(now).wrapping_sub(u64::from(iss.0 >> SEGMENT_BITS))) % (1 << TICK_BITS);
        let sent = tick(now).checked_sub(age).filter(|_| age < TICKS_MAX)?;
        let stamp = segment.options.timestamps;
        let options = stamp.map_or(NO_TIMESTAMPS, |stamp| stamp.echo & OPTION_MASK);
        if self.cookie(tuple, irs, sent, segment_index, options) != iss {
            return None;
        }
        let segment_bytes = segment_sizes(tuple)[segment_index as usize];
        let uses_ecn = options != NO_TIMESTAMPS && options & ECN_BIT != 0;
        let asked = if uses_ecn {
            ECN_SETUP
        } else {
            TcpFlags::default()
        };
        let syn = TcpRepr {
            sequence: irs,
            flags: TcpFlags::SYN.union(asked),
            options: decode_options(options, segment_bytes, stamp),
            ..TcpRepr::default()
        };
        let half_open = HalfOpen::new(now, *tuple, &syn, Offer { iss, ..offer });
        let half_open = half_open.without_round_trip();
        // The hash does not cover the rest of the timestamp: it must be one of that time.
        let is_ours = |echo: u32| {
            let clock = half_open.timestamps()?.stamp(now).value;
            let age_millis = u64::from(clock.wrapping_sub(echo));
            let most = VALIDITY.as_millis() + u128::from(2 * OPTION_MASK);
            (u128::from(age_millis) <= most).then_some(())
        };
        stamp.map_or(Some(()), |stamp| is_ours(stamp.echo))?;
        Some(half_open)
    }

    /// Whether an ACK may be that of a cookie.
    #[must_use]
    pub fn is_expecting(&self, now: Instant) -> bool {
        self.sent_at.is_some_and(|at| now.since(at) <= VALIDITY)
    }

    #[expect(clippy::cast_possible_truncation, reason = "part of a hash is a hash")]
    fn cookie(
        &self,
        tuple: &FourTuple,
        irs: SeqNumber,
        tick: u64,
        segment_index: u32,
        options: u32,
    ) -> SeqNumber {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hash_tuple(&mut hasher, tuple);
        hasher.write_u32(irs.0);
        hasher.write_u64(tick);
        hasher.write_u32(segment_index);
        hasher.write_u32(options);
        let hash = (hasher.finish() as u32) << HASH_SHIFT;
        let tick = tick as u32 % (1 << TICK_BITS);
        SeqNumber(hash | tick << SEGMENT_BITS | segment_index)
    }
}

impl core::fmt::Debug for SynCookies {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter
            .debug_struct("SynCookies")
            .field("sent_at", &self.sent_at)
            .finish_non_exhaustive()
    }
}

/// The number of the tick that `now` is in.
const fn tick(now: Instant) -> u64 {
    now.as_millis() / (TICK.as_secs() * 1000)
}

const fn segment_sizes(tuple: &FourTuple) -> &'static [u16; 8] {
    if tuple.peer.is_ipv4() {
        &SEGMENT_BYTES_V4
    } else {
        &SEGMENT_BYTES_V6
    }
}

fn encode_options(options: &TcpOptions, uses_ecn: bool) -> u32 {
    let scale = options.window_scale.map_or(NO_SCALE, u32::from);
    let sack = if options.sack_permitted { SACK_BIT } else { 0 };
    let ecn = if uses_ecn { ECN_BIT } else { 0 };
    scale.min(NO_SCALE) | sack | ecn
}

/// The options of the SYN, as far as the cookie kept them.
fn decode_options(options: u32, segment_bytes: u16, stamp: Option<Timestamps>) -> TcpOptions {
    let agreed = if options == NO_TIMESTAMPS {
        NO_SCALE
    } else {
        options
    };
    let scale = agreed & SCALE_MASK;
    TcpOptions {
        mss: Some(segment_bytes),
        window_scale: u8::try_from(scale).ok().filter(|_| scale != NO_SCALE),
        sack_permitted: agreed & SACK_BIT != 0,
        timestamps: stamp,
        ..TcpOptions::default()
    }
}

/// The last timestamp at or before `value` whose low bits are `options`.
const fn with_options(value: u32, options: u32) -> u32 {
    let behind = value.wrapping_sub(options) & OPTION_MASK;
    value.wrapping_sub(behind)
}

#[cfg(test)]
mod tests;
