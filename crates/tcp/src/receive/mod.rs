//! The receive side of one connection: RCV.NXT and RCV.WND (RFC 9293 s3.3.1), timestamps and PAWS
//! (RFC 7323).
//!
//! Received data are requests of a few hundred bytes. Out-of-order text is therefore dropped instead
//! of being kept, and the client retransmits it: RFC 9293 s3.10.7.4 permits that, and an attacker
//! cannot make us keep out-of-order data.

use core::ops::Range;

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpRepr, Timestamps};

use crate::rtt::RTO_MAX;

/// Rcv.Wind.Shift we offer. Our window never exceeds 64 KiB, so it needs none; offering zero lets
/// the peer scale its own (RFC 7323 s2.2).
pub const WINDOW_SHIFT: u8 = 0;
/// Age at which TS.Recent is no longer trusted (RFC 7323 s5.5: 24 days).
const TIMESTAMP_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 3600);
/// By so many ticks of the peer's clock, mostly milliseconds, one segment may overtake another: no less
/// than the least retransmission timeout, and less than a link of 100 Gb/s takes for all sequence numbers.
const OVERTAKEN_TICKS_MAX: u32 = 200;

/// Timestamp state; present only if both sides offered the option.
#[derive(Clone, Copy, Debug)]
pub struct TimestampState {
    /// TS.Recent.
    recent: u32,
    /// When TS.Recent was taken.
    recent_at: Instant,
    /// Added to our clock, so that timestamps do not reveal the server's uptime (RFC 7323 s7.1).
    shift: u32,
}

impl TimestampState {
    /// From the value of the peer's SYN.
    #[must_use]
    pub const fn new(now: Instant, recent: u32, shift: u32) -> Self {
        Self {
            recent,
            recent_at: now,
            shift,
        }
    }

    /// The option of a segment sent at `now`; its clock ticks each millisecond.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "timestamp clocks wrap (RFC 7323 s5.4)"
    )]
    pub const fn stamp(&self, now: Instant) -> Timestamps {
        Timestamps {
            value: (now.as_millis() as u32).wrapping_add(self.shift),
            echo: self.recent,
        }
    }

    /// When the segment was sent whose timestamp is echoed in `echo` (TSecr), rounded down to the
    /// millisecond. `None` if the echo is not plausible: zero means that the peer has nothing to
    /// echo (RFC 7323 s3.2), and a timestamp from the future, from before our start, or older than
    /// [`RTO_MAX`] is not ours.
    #[must_use]
    pub fn echoed_at(&self, now: Instant, echo: u32) -> Option<Instant> {
        let age_millis = u64::from(self.stamp(now).value.wrapping_sub(echo));
        let plausible = echo != 0 && u128::from(age_millis) <= RTO_MAX.as_millis();
        let at_millis = now.as_millis().checked_sub(age_millis)?;
        plausible.then(|| Instant::from_millis(at_millis))
    }

    /// Whether a value was stamped after TS.Recent (RFC 6191 s2).
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "timestamp comparison is modular")]
    pub const fn is_newer(&self, value: u32) -> bool {
        (value.wrapping_sub(self.recent) as i32) > 0
    }

    /// Whether a value was stamped before TS.Recent.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "timestamp comparison is modular")]
    pub const fn is_older(&self, value: u32) -> bool {
        (value.wrapping_sub(self.recent) as i32) < 0
    }

    /// Whether a value was stamped at most [`OVERTAKEN_TICKS_MAX`] before TS.Recent.
    const fn is_just_before(&self, value: u32) -> bool {
        self.recent.wrapping_sub(value) <= OVERTAKEN_TICKS_MAX
    }

    /// PAWS (RFC 7323 s5.3 R1): whether a value is older than TS.Recent and thus a duplicate.
    const fn is_stale(&self, now: Instant, value: u32) -> bool {
        self.is_older(value) && now.since(self.recent_at).as_secs() < TIMESTAMP_AGE_MAX.as_secs()
    }
}

/// Why a segment did not pass the sequence check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unacceptable {
    /// Outside the window (RFC 9293 s3.10.7.4, first check).
    OutOfWindow,
    /// An old timestamp (RFC 7323 s5.3).
    StaleTimestamp,
}

/// The text of a segment after trimming.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// The part of the payload that is new and in order.
    pub payload: Range<usize>,
    /// The segment's FIN is in order too.
    pub fin: bool,
    /// Some of it was beyond a hole or the window, was dropped, and must be retransmitted.
    pub dropped: bool,
}

/// The receive state.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveState {
    /// RCV.NXT.
    pub nxt: SeqNumber,
    /// Bytes the session has room for.
    window: u16,
    /// RCV.NXT as last acknowledged (Last.ACK.sent, RFC 7323 s4.3).
    pub last_ack_sent: SeqNumber,
    /// The right edge last advertised; the window never shrinks left of it.
    edge: SeqNumber,
    /// Timestamps, if agreed.
    pub timestamps: Option<TimestampState>,
    /// The last segment that passed all checks had a timestamp.
    is_stamped: bool,
}

impl ReceiveState {
    /// After the handshake: `nxt` is IRS + 1.
    #[must_use]
    pub const fn new(nxt: SeqNumber, window: u16, timestamps: Option<TimestampState>) -> Self {
        let edge = nxt.wrapping_add(window as u32);
        Self {
            nxt,
            window,
            last_ack_sent: nxt,
            edge,
            timestamps,
            is_stamped: timestamps.is_some(),
        }
    }

    /// RCV.WND as the next segment advertises it, bytes.
    #[must_use]
    pub fn window(&self) -> u16 {
        let promised = u16::try_from(self.edge.distance(self.nxt)).unwrap_or(0);
        self.window.max(promised)
    }

    /// The session has room for `bytes`. Returns whether to send a window update: the window was
    /// nearly closed and is open again (RFC 9293 s3.8.6.2.2).
    pub fn set_window(&mut self, bytes: u16) -> bool {
        let promised = self.edge.distance(self.nxt);
        self.window = bytes;
        promised < 512 && i32::from(bytes) >= promised + 1024
    }

    /// A segment with our ACK was sent.
    pub fn on_ack_sent(&mut self) {
        self.edge = self.nxt.wrapping_add(u32::from(self.window()));
        self.last_ack_sent = self.nxt;
    }

    /// First check: sequence number and timestamp.
    ///
    /// A segment without the agreed timestamp passes, as in Linux. RFC 7323 s3.2 would drop it, but
    /// middleboxes remove the option, from our SYN-ACK alone or from all that a client sends later, and
    /// keep-alives of some systems have none: such a connection would never get a byte. What PAWS protects
    /// from is an old duplicate 4 GiB of requests later.
    ///
    /// # Errors
    /// Why the segment is not acceptable.
    pub fn check_sequence(
        &self,
        now: Instant,
        segment: &TcpRepr,
        payload_bytes: usize,
    ) -> Result<(), Unacceptable> {
        let is_reset = segment.flags.contains(TcpFlags::RST);
        // RFC 7323 s5.2: RST segments are not subject to PAWS.
        if let (Some(state), Some(stamp), false) =
            (&self.timestamps, segment.options.timestamps, is_reset)
            && state.is_stale(now, stamp.value)
        {
            return Err(Unacceptable::StaleTimestamp);
        }
        if !self.is_in_window(segment, payload_bytes) {
            return Err(Unacceptable::OutOfWindow);
        }
        Ok(())
    }

    /// The four cases of RFC 9293 s3.4, table 6.
    fn is_in_window(&self, segment: &TcpRepr, payload_bytes: usize) -> bool {
        let window = i64::from(self.window());
        let start = i64::from(segment.sequence.distance(self.nxt));
        let length = sequence_length(segment, payload_bytes);
        if length == 0 {
            return start == 0 || (0 <= start && start < window);
        }
        let last = start + length - 1;
        window > 0 && ((0 <= start && start < window) || (0 <= last && last < window))
    }

    /// Whether the segment was stamped so little before the newest one that others may have overtaken it.
    #[must_use]
    pub fn is_stamped_lately(&self, segment: &TcpRepr) -> bool {
        let stamps = self.timestamps.as_ref().zip(segment.options.timestamps);
        stamps.is_some_and(|(state, stamp)| state.is_just_before(stamp.value))
    }

    /// When the segment was sent whose timestamp this one echoes, rounded down to the millisecond;
    /// `None` without timestamps, or if the echo is not plausible ([`TimestampState::echoed_at`]).
    #[must_use]
    pub fn echoed_at(&self, now: Instant, segment: &TcpRepr) -> Option<Instant> {
        let stamp = segment.options.timestamps?;
        self.timestamps?.echoed_at(now, stamp.echo)
    }

    /// RFC 7323 s4.3 (2): TS.Recent is updated from segments that span Last.ACK.sent. The segment
    /// must have passed every check, that of its ACK field included (RFC 5961 s5.2): otherwise an
    /// attacker who guesses a sequence number in the window could make genuine segments look stale.
    pub fn remember_timestamp(&mut self, now: Instant, segment: &TcpRepr) {
        self.is_stamped = segment.options.timestamps.is_some();
        let spans = segment.sequence.distance(self.last_ack_sent) <= 0;
        if let (Some(state), Some(stamp), true) =
            (&mut self.timestamps, segment.options.timestamps, spans)
            && !state.is_stale(now, stamp.value)
        {
            state.recent = stamp.value;
            state.recent_at = now;
        }
    }

    /// Whether the peer's segments echo our timestamps: both sides agreed on that, and the last segment
    /// had the option.
    #[must_use]
    pub const fn has_echoes(&self) -> bool {
        self.timestamps.is_some() && self.is_stamped
    }

    /// Takes the part of the segment's text that is in order and fits, and its FIN.
    pub fn process_text(&mut self, segment: &TcpRepr, payload_bytes: usize) -> Text {
        let fin = segment.flags.contains(TcpFlags::FIN);
        let start = segment.sequence.distance(self.nxt);
        if start > 0 {
            let dropped = payload_bytes > 0 || fin;
            return Text {
                payload: 0..0,
                fin: false,
                dropped,
            };
        }
        let known = usize::try_from(start.unsigned_abs())
            .unwrap_or(usize::MAX)
            .min(payload_bytes);
        let room = usize::from(self.window());
        let taken = (payload_bytes - known).min(room);
        let dropped = known + taken < payload_bytes;
        // The FIN counts only right after the last byte, and only once.
        let fin_distance = i64::from(start) + i64::try_from(payload_bytes).unwrap_or(i64::MAX);
        let fin = fin && !dropped && fin_distance >= 0;
        self.advance(taken + usize::from(fin));
        // The bytes taken reduce the window until the session sets it again.
        self.window = self
            .window
            .saturating_sub(u16::try_from(taken).unwrap_or(u16::MAX));
        Text {
            payload: known..known + taken,
            fin,
            dropped,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.nxt = self
            .nxt
            .wrapping_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// SEG.LEN: text, and one each for SYN and FIN.
fn sequence_length(segment: &TcpRepr, payload_bytes: usize) -> i64 {
    let control = i64::from(segment.flags.contains(TcpFlags::SYN))
        + i64::from(segment.flags.contains(TcpFlags::FIN));
    i64::try_from(payload_bytes).unwrap_or(i64::MAX - 2) + control
}

#[cfg(test)]
mod tests;
