//! SYN-RECEIVED: the small state between a SYN and the ACK of our SYN-ACK (RFC 9293 s3.5).

use core::net::SocketAddr;

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::connection::SEGMENT_BYTES_MIN;
use crate::receive::{TimestampState, WINDOW_SHIFT};
use crate::table::FourTuple;

/// Time to the first retransmission of a SYN-ACK; doubled each time (RFC 6298 s2.1).
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Retransmissions of a SYN-ACK before the half-open connection is removed: 31 s in all.
pub const RETRIES_MAX: u32 = 4;
/// Bytes of the timestamp option with its padding (RFC 7323 appendix A).
pub(crate) const TIMESTAMP_OPTION_BYTES: u16 = 12;
/// MSS assumed when the SYN names none (RFC 9293 s3.7.1), IPv4 and IPv6.
const SEGMENT_BYTES_DEFAULT_V4: u16 = 536;
const SEGMENT_BYTES_DEFAULT_V6: u16 = 1220;
/// A SYN with both asks for ECN (RFC 3168 s6.1.1).
pub(crate) const ECN_SETUP: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR);

/// What we choose for a connection when its SYN arrives.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Our initial sequence number.
    pub iss: SeqNumber,
    /// Added to our timestamp clock.
    pub timestamp_shift: u32,
    /// The MSS we announce and the most we send: link MTU less the IP and TCP headers, bytes.
    pub segment_bytes: u16,
    /// Our receive window, bytes.
    pub window: u16,
    /// Whether ECN is accepted if the SYN asks for it. Not if the SYN's IP header is anything but
    /// Not-ECT (RFC 3168 s6.1.1 forbids that): something on the path changes the field.
    pub accepts_ecn: bool,
}

/// A half-open connection: the SYN was answered, and the ACK of the SYN-ACK has not arrived.
#[derive(Clone, Copy, Debug)]
pub struct HalfOpen {
    tuple: FourTuple,
    offer: Offer,
    /// IRS + 1.
    receive_next: SeqNumber,
    peer_segment_bytes: u16,
    peer_window_shift: Option<u8>,
    sack_permitted: bool,
    uses_ecn: bool,
    timestamps: Option<TimestampState>,
    retries: u32,
    /// When the SYN-ACK was sent; `None` once it was retransmitted, or if it was a SYN cookie.
    answered_at: Option<Instant>,
    deadline: Instant,
}

/// What a segment means to a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HalfOpenVerdict {
    /// Ignore the segment.
    Ignore,
    /// The SYN-ACK was lost: retransmit it.
    RetransmitSynAck,
    /// The segment may be forged: answer with the same SYN-ACK, as a challenge ACK (RFC 5961 s4.2), if
    /// the host's limit permits one.
    Challenge,
    /// The handshake is complete; the segment goes on to the new connection.
    Establish,
    /// The peer reset the connection: remove it.
    Forget,
    /// The segment acknowledges what we never sent: answer with a reset (RFC 9293 s3.10.7.4, fifth
    /// check).
    Reset,
}

impl HalfOpen {
    /// A SYN arrived and is to be answered with `offer`.
    #[must_use]
    pub fn new(now: Instant, tuple: FourTuple, syn: &TcpRepr, offer: Offer) -> Self {
        let default = segment_bytes_default(&tuple.peer);
        let timestamps = syn
            .options
            .timestamps
            .map(|stamp| TimestampState::new(now, stamp.value, offer.timestamp_shift));
        Self {
            tuple,
            offer,
            receive_next: syn.sequence.wrapping_add(1),
            peer_segment_bytes: syn.options.mss.unwrap_or(default),
            peer_window_shift: syn.options.window_scale,
            sack_permitted: syn.options.sack_permitted,
            uses_ecn: offer.accepts_ecn && syn.flags.contains(ECN_SETUP),
            timestamps,
            retries: 0,
            answered_at: Some(now),
            deadline: now + RETRY_FIRST,
        }
    }

    /// The same, if it is not known when the SYN-ACK was sent.
    pub(crate) const fn without_round_trip(mut self) -> Self {
        self.answered_at = None;
        self
    }

    /// The SYN-ACK.
    #[must_use]
    pub fn syn_ack(&self, now: Instant) -> TcpRepr {
        let mut flags = TcpFlags::SYN.union(TcpFlags::ACK);
        if self.uses_ecn {
            // RFC 3168 s6.1.1: ECE without CWR.
            flags = flags.union(TcpFlags::ECE);
        }
        TcpRepr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.peer.port(),
            sequence: self.offer.iss,
            acknowledgment: self.receive_next,
            flags,
            window: self.offer.window,
            options: TcpOptions {
                mss: Some(self.offer.segment_bytes),
                // RFC 7323 s2.2: only if the SYN had it.
                window_scale: self.peer_window_shift.map(|_| WINDOW_SHIFT),
                sack_permitted: self.sack_permitted,
                timestamps: self.timestamps.map(|state| state.stamp(now)),
                ..TcpOptions::default()
            },
        }
    }

    /// A segment with this four-tuple arrived.
    #[must_use]
    pub fn handle_segment(&self, segment: &TcpRepr, payload_bytes: usize) -> HalfOpenVerdict {
        let start = segment.sequence.distance(self.receive_next);
        if segment.flags.contains(TcpFlags::RST) {
            // RFC 5961 s3.2: a reset is accepted only exactly at RCV.NXT.
            return if start == 0 {
                HalfOpenVerdict::Forget
            } else {
                HalfOpenVerdict::Ignore
            };
        }
        if segment.flags.contains(TcpFlags::SYN) {
            return if start == -1 {
                HalfOpenVerdict::RetransmitSynAck
            } else {
                HalfOpenVerdict::Challenge
            };
        }
        if !segment.flags.contains(TcpFlags::ACK) {
            return HalfOpenVerdict::Ignore;
        }
        if segment.acknowledgment != self.offer.iss.wrapping_add(1) {
            return HalfOpenVerdict::Reset;
        }
        let in_window = start == 0
            || (start > 0 && start < i32::from(self.offer.window))
            || (start < 0 && payload_bytes > start.unsigned_abs() as usize);
        if !in_window || self.is_stale(segment.options.timestamps) {
            return HalfOpenVerdict::Challenge;
        }
        HalfOpenVerdict::Establish
    }

    /// PAWS (RFC 7323 s5.3). A client whose SYN-ACK lost its timestamp on the way sends none.
    fn is_stale(&self, stamp: Option<Timestamps>) -> bool {
        let state = self.timestamps.as_ref();
        state
            .zip(stamp)
            .is_some_and(|(state, stamp)| state.is_older(stamp.value))
    }

    /// The SYN-ACK is retransmitted because of `segment`. It echoes the timestamp of a retransmitted
    /// SYN (RFC 7323 s4.3), because otherwise the peer's RTT sample would include its own wait. The
    /// ACK of a retransmitted SYN-ACK gives us no sample (Karn's rule). A client that repeats its SYN
    /// without asking for ECN does not use it (RFC 3168 s6.1.1).
    pub fn on_syn_ack_retransmit(&mut self, now: Instant, segment: &TcpRepr) {
        self.answered_at = None;
        let is_its_syn = segment.flags.contains(TcpFlags::SYN)
            && segment.sequence.wrapping_add(1) == self.receive_next;
        if is_its_syn {
            self.uses_ecn &= segment.flags.contains(ECN_SETUP);
        }
        if let (true, Some(state), Some(stamp)) =
            (is_its_syn, self.timestamps, segment.options.timestamps)
            && state.is_newer(stamp.value)
        {
            self.timestamps = Some(TimestampState::new(
                now,
                stamp.value,
                self.offer.timestamp_shift,
            ));
        }
    }

    /// When [`HalfOpen::handle_timeout`] has work.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The deadline passed. `true`: retransmit the SYN-ACK; `false`: remove the half-open connection.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.retries += 1;
        self.answered_at = None;
        self.deadline = now + RETRY_FIRST.saturating_mul(1 << self.retries.min(16));
        self.retries <= RETRIES_MAX
    }

    /// Both ends.
    #[must_use]
    pub const fn tuple(&self) -> FourTuple {
        self.tuple
    }

    pub(crate) const fn iss(&self) -> SeqNumber {
        self.offer.iss
    }

    pub(crate) const fn receive_next(&self) -> SeqNumber {
        self.receive_next
    }

    pub(crate) const fn window(&self) -> u16 {
        self.offer.window
    }

    pub(crate) fn peer_window_shift(&self) -> u8 {
        self.peer_window_shift.unwrap_or(0)
    }

    pub(crate) const fn sack_permitted(&self) -> bool {
        self.sack_permitted
    }

    pub(crate) const fn uses_ecn(&self) -> bool {
        self.uses_ecn
    }

    pub(crate) fn timestamps(&self) -> Option<TimestampState> {
        self.timestamps
    }

    /// The handshake's round trip, unless the SYN-ACK was retransmitted (Karn's rule).
    pub(crate) fn round_trip(&self, now: Instant) -> Option<Duration> {
        self.answered_at.map(|at| now.since(at))
    }

    /// Whether the SYN-ACK was retransmitted by its timer more than once. RFC 6928 s2 starts with one
    /// segment then; after one timeout the round trip may just be longer than a second.
    pub(crate) const fn has_timed_out_again(&self) -> bool {
        self.retries > 1
    }

    /// Whether the timer of the SYN-ACK fired.
    pub(crate) const fn has_timed_out(&self) -> bool {
        self.retries > 0
    }

    /// Eff.snd.MSS of RFC 9293 s3.7.1: the peer's MSS and our link's, less the options of every
    /// segment.
    pub(crate) fn segment_bytes(&self) -> u16 {
        let (peer, link) = self.segment_bytes_of_peer_and_link();
        peer.min(link)
    }

    /// Its two parts: what the peer's MSS permits, and what our link does.
    pub(crate) fn segment_bytes_of_peer_and_link(&self) -> (u16, u16) {
        let options = if self.timestamps.is_some() {
            TIMESTAMP_OPTION_BYTES
        } else {
            0
        };
        let peer = self.peer_segment_bytes.max(SEGMENT_BYTES_MIN);
        (peer - options, self.offer.segment_bytes - options)
    }
}

/// MSS assumed when a SYN names none.
pub(crate) const fn segment_bytes_default(peer: &SocketAddr) -> u16 {
    if peer.is_ipv4() {
        SEGMENT_BYTES_DEFAULT_V4
    } else {
        SEGMENT_BYTES_DEFAULT_V6
    }
}

#[cfg(test)]
mod tests;
