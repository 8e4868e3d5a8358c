//! What may be sent, and when: by the peer's window, congestion control and pacing.
//!
//! Nothing here changes a connection. [`Connection::claim`] takes what is demanded.

use clock::{Duration, Instant};

use super::Connection;
use super::sack::SackReports;
use crate::congestion::{Controller as _, initial_window_bytes};
use crate::pacing::PacingRate;
use crate::recovery::{DUPLICATE_THRESHOLD, RecoveryState};
use crate::stream::{StreamOffset, StreamRange};

/// Least size of a demand while more is queued than the peer's window admits, unless a segment is
/// smaller. Each demand costs a read of at least 4 KiB, or of whole TLS records that are sealed
/// again, so a peer that opens its window by two bytes an ACK would make us read thousands of times
/// what we send. A receiver whose whole window is smaller is served when the override timer fires.
pub(super) const SMALL_DEMAND_BYTES: u64 = 536;

/// What the peer's window, congestion control and pacing permit.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Credit {
    /// Nothing may be sent until something arrives or a timer fires.
    Nothing,
    /// Something may be sent from this time on; pacing forbids it before.
    From(Instant),
    /// These bytes may be sent now.
    Now(Demand),
}

/// Whether the peer's window, congestion control and pacing permit anything: a [`Credit`] without its
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Permission {
    /// As [`Credit::Nothing`].
    Nothing,
    /// As [`Credit::From`].
    From(Instant),
    /// As [`Credit::Now`].
    Now,
}

/// What the windows permit, however much of it pacing permits at once.
struct Windowed {
    /// The first lost bytes, else the next new ones.
    run: StreamRange,
    is_retransmission: bool,
    /// Room in the congestion window, bytes.
    credit_bytes: u64,
    outstanding_bytes: u64,
    /// The congestion window, bytes.
    window_bytes: u64,
    /// A tail loss probe.
    is_probe: bool,
}

/// Bytes that may be sent now. [`Connection::claim`] takes them, once.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub struct Demand {
    /// The bytes: the first lost ones, else the next new ones.
    pub range: StreamRange,
    /// The bytes were sent before and are considered lost.
    pub is_retransmission: bool,
    /// Bytes in the network or being fetched. If there are some, an ACK or a completion will
    /// follow, and a demand too small for an efficient read can wait for it. Zero for a tail loss
    /// probe, which is sent because no ACK comes.
    pub outstanding_bytes: u64,
    /// The lesser of the congestion window and the peer's window, bytes.
    pub window_bytes: u64,
    /// Most bytes of one demand, by pacing: waiting brings no larger one. `u64::MAX` without pacing.
    pub quantum_bytes: u64,
}

impl Connection {
    /// Which bytes may be sent, and when. This changes no state; [`Connection::claim`] takes the
    /// bytes.
    pub fn credit(&self, now: Instant) -> Credit {
        let Some(windowed) = self.windowed() else {
            return Credit::Nothing;
        };
        match self.paced_until(now, &windowed) {
            Some(until) => Credit::From(until),
            None => Credit::Now(self.demand(now, &windowed)),
        }
    }

    /// Whether [`Connection::credit`] has bytes, and when: for callers that do not claim them at once.
    pub fn permission(&self, now: Instant) -> Permission {
        let Some(windowed) = self.windowed() else {
            return Permission::Nothing;
        };
        match self.paced_until(now, &windowed) {
            Some(until) => Permission::From(until),
            None => Permission::Now,
        }
    }

    /// When pacing permits the next bytes; `None`: now.
    pub(super) fn pacing_waits_until(&self, now: Instant) -> Option<Instant> {
        let round_trip = self.rtt.smoothed().unwrap_or_default();
        let until = self
            .pacer
            .waits_until(now, || self.pacing_rate(), round_trip);
        until.filter(|_| !self.is_window_one_burst())
    }

    /// Whether the window is no larger than the initial one: a burst that every path must take (RFC 6928). It is not paced, as
    /// bytes would wait after the ACKs that permit them (docs/develop/decisions/0020-paths.md). A rate that was measured or
    /// is the operator's is a limit beside the window.
    fn is_window_one_burst(&self) -> bool {
        let initial = initial_window_bytes(self.sizes.current.into());
        self.config.rate_max.is_none()
            && !self.congestion.needs_samples()
            && self.congestion.window() <= initial
    }

    /// When pacing permits it; `None`: now. A tail loss probe replaces a timeout, and the pacing rate is
    /// no reason to wait for that.
    fn paced_until(&self, now: Instant, windowed: &Windowed) -> Option<Instant> {
        let until = self.pacing_waits_until(now);
        until.filter(|_| !windowed.is_probe)
    }

    /// The bytes that the windows permit; `None` if there are none. A quantum of pacing is a segment at
    /// least, so it never makes some bytes none.
    fn windowed(&self) -> Option<Windowed> {
        let outstanding_bytes = self.outstanding_bytes();
        let window_bytes = self.congestion_window();
        let mut credit_bytes =
            (window_bytes + self.limited_transmit_bytes()).saturating_sub(outstanding_bytes);
        let is_probe = self.is_tail_probe_due();
        let first_lost = self.first_lost();
        if outstanding_bytes == 0 || is_probe || (first_lost.is_some() && self.is_hole_next()) {
            // With nothing outstanding one segment may always be sent, because otherwise no ACK
            // would ever arrive. A tail loss probe may exceed the window by its one segment.
            credit_bytes = credit_bytes.max(u64::from(self.sizes.current));
        }
        let (run, is_retransmission) = match (self.frto_new_data(), first_lost) {
            (Some(forward), _) => (forward, false),
            (None, Some(lost)) => (lost, true),
            (None, None) => (self.send.admitted(), false),
        };
        if !(is_retransmission || self.flight.has_room()) {
            return None;
        }
        let windowed = Windowed {
            run,
            is_retransmission,
            credit_bytes,
            outstanding_bytes,
            window_bytes,
            is_probe,
        };
        (self.sendable_bytes(&windowed, u64::MAX) > 0).then_some(windowed)
    }

    /// Whether the lost segment is the hole that duplicate ACKs or a partial ACK named: it leaves whatever the window is (RFC
    /// 6582 s3.2, steps 2 and 3). Rate reduction sees to that itself; a window that is not reduced may be full, as without
    /// SACK what has arrived behind the hole counts as outstanding.
    fn is_hole_next(&self) -> bool {
        !self.sack.is_used()
            && matches!(
                self.recovery,
                RecoveryState::Recovery {
                    reduction: None,
                    ..
                }
            )
    }

    /// Of what the windows permit, one quantum at most.
    fn demand(&self, now: Instant, windowed: &Windowed) -> Demand {
        let Windowed {
            run,
            is_retransmission,
            outstanding_bytes,
            window_bytes,
            is_probe,
            ..
        } = *windowed;
        let segment = u64::from(self.sizes.current);
        let rate = self.pacing_rate();
        let quantum_bytes = self.pacer.quantum_bytes(now, rate, window_bytes, segment);
        let bytes = self.sendable_bytes(windowed, quantum_bytes);
        debug_assert!(bytes > 0, "a quantum is a segment at least");
        Demand {
            range: StreamRange::new(run.start, run.start + bytes),
            is_retransmission,
            outstanding_bytes: if is_probe { 0 } else { outstanding_bytes },
            window_bytes: window_bytes.min(self.send.window()),
            quantum_bytes,
        }
    }

    /// Limited transmit (RFC 3042): the first two duplicate ACKs each permit a segment beyond cwnd, so
    /// that a small window brings the third. With SACK what was SACKed is not outstanding, which comes to
    /// the same.
    fn limited_transmit_bytes(&self) -> u64 {
        if self.sack == SackReports::Useful || !self.is_duplicate_meaningful() {
            return 0;
        }
        let duplicates = self.duplicate_acks.min(DUPLICATE_THRESHOLD - 1);
        u64::from(duplicates) * u64::from(self.sizes.current)
    }

    /// How fast the connection may send: by congestion control, once there is an RTT sample, and by
    /// [`super::Config::rate_max`]. By SRTT a small window would not be used whole where ACKs are delayed.
    pub(super) fn pacing_rate(&self) -> PacingRate {
        let rate = match self.rtt.prompt() {
            Some(rtt) if self.config.is_paced => self.congestion.pacing_rate(rtt),
            _ => PacingRate::Unlimited,
        };
        rate.at_most(self.config.rate_max)
    }

    /// What pacing and the congestion window let it send in `time`, or in a round trip if that is more, bytes; `None`:
    /// it is not paced. In several round trips the window may grow by a fifth.
    #[must_use]
    pub fn paced_bytes(&self, time: Duration) -> Option<u64> {
        let round_trip = self.rtt.smoothed().unwrap_or_default();
        let mut window = self.congestion_window();
        if time > round_trip {
            window += window / 5;
        }
        let time = time.max(round_trip);
        let paced = self.pacing_rate().bytes_in(time)?;
        let windowed = PacingRate::of(window, round_trip).bytes_in(time)?;
        Some(paced.min(windowed))
    }

    /// Whether the window was reduced because of a loss that its bursts have not recovered from.
    #[must_use]
    pub const fn has_lost(&self) -> bool {
        self.pacer.has_lost()
    }

    /// Whether the segment of a tail loss probe is to be claimed.
    fn is_tail_probe_due(&self) -> bool {
        self.tail_probe.is_some_and(|probe| probe.is_due)
    }

    /// The first run of lost bytes, without a lost FIN.
    fn first_lost(&self) -> Option<StreamRange> {
        let lost = self.flight.first_lost(u64::MAX)?;
        let end = lost.end.min(self.send.end);
        (lost.start < end).then(|| StreamRange::new(lost.start, end))
    }

    /// Of the runs of lost bytes that are not being fetched, those in `range`: how many, and where the last one ends.
    #[must_use]
    pub fn lost_within(&self, range: StreamRange) -> (u64, StreamOffset) {
        let end = range.end.min(self.send.end).max(range.start);
        self.flight.lost_within(StreamRange::new(range.start, end))
    }

    /// How much of that may be sent, `bytes_max` at most: full segments only, except at the end of what
    /// is lost or queued.
    fn sendable_bytes(&self, windowed: &Windowed, bytes_max: u64) -> u64 {
        let (run, bytes) = (windowed.run, windowed.run.bytes());
        let credit = windowed.credit_bytes.min(bytes_max);
        let is_whole = windowed.is_retransmission || run.end == self.send.end;
        if is_whole && bytes <= credit {
            return bytes;
        }
        let segment = u64::from(self.sizes.current);
        let bytes = bytes.min(credit);
        if bytes >= segment {
            bytes - bytes % segment
        } else if self.is_silly_window(bytes) {
            0
        } else {
            bytes
        }
    }

    /// Sender SWS avoidance (RFC 9293 s3.8.6.2.1): less than a segment is sent only if it is all
    /// that is queued, if it is at least half of the largest window the peer ever advertised and at
    /// least [`SMALL_DEMAND_BYTES`], or if the override timer fired.
    pub(super) fn is_silly_window(&self, bytes: u64) -> bool {
        let half = (self.send.window_max().div_ceil(2)).max(SMALL_DEMAND_BYTES);
        bytes < half.min(u64::from(self.sizes.current)) && !self.sws_override_due
    }
}
