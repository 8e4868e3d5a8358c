//! cwnd and ssthresh, and what all algorithms do with them alike: slow start, the collapse after a
//! timeout, the restart after an idle time, undo.

use clock::Duration;

use super::hystart::{CONSERVATIVE_DIVISOR, Growth, HyStart};
use super::{
    AckEvent, INITIAL_WINDOW_BYTES, INITIAL_WINDOW_SEGMENTS, THRESHOLD_SEGMENTS_MIN,
    WINDOW_BYTES_MAX,
};
use crate::canary::{Canary, Fault};
use crate::pacing::PacingRate;

/// So many segments more than the window are paced in a round trip at least: the initial window, a burst
/// that every path must take (RFC 6928). A fifth of a window of a few segments is less than one: each
/// burst waited for the rate behind the ACKs that permit it, and at 200 ms a tenth of the goodput was
/// lost (docs/develop/decisions/0020-paths.md).
const PACING_SPARE_SEGMENTS: u64 = INITIAL_WINDOW_SEGMENTS;

/// The two windows of one connection. Every change of cwnd passes through here, so its bounds hold
/// whatever an algorithm computes.
///
/// The order of the fields is that of how often they are needed; the compiler would change it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Window {
    bytes: u64,
    threshold: u64,
    segment_bytes: u64,
    /// The initial slow start.
    hystart: HyStart,
    pub(super) canary: Canary,
}

/// IW = min(10 * MSS, max(2 * MSS, 14,600)) (RFC 6928 s2).
pub(crate) fn initial_window_bytes(segment_bytes: u64) -> u64 {
    let large = INITIAL_WINDOW_BYTES.max(2 * segment_bytes);
    large.min(INITIAL_WINDOW_SEGMENTS * segment_bytes)
}

impl Window {
    /// The initial window of RFC 6928 and no threshold.
    pub(super) fn new(segment_bytes: u16) -> Self {
        let segment_bytes = u64::from(segment_bytes);
        Self {
            segment_bytes,
            bytes: initial_window_bytes(segment_bytes),
            threshold: u64::MAX,
            hystart: HyStart::new(),
            canary: Canary::NONE,
        }
    }

    /// cwnd, bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// ssthresh, bytes.
    pub(super) const fn threshold(&self) -> u64 {
        self.threshold
    }

    /// SMSS, bytes.
    pub(super) const fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Segments have this size from now on.
    pub(super) fn set_segment_bytes(&mut self, segment_bytes: u16) {
        self.segment_bytes = u64::from(segment_bytes);
    }

    /// Sets cwnd, within its bounds.
    pub(super) fn set(&mut self, bytes: u64) {
        self.bytes = bytes.clamp(self.segment_bytes, WINDOW_BYTES_MAX);
    }

    /// Whether an ACK tests the window, before which `outstanding_bytes_max` were outstanding at once in
    /// a round trip: more than half of it was in use. A window that is not tested must not grow.
    /// RFC 7661 s4.2 takes exactly half for enough. Linux does not, so that slow start leads no further
    /// than to twice of what was in use.
    pub(super) const fn is_tested(&self, outstanding_bytes_max: u64) -> bool {
        2 * outstanding_bytes_max > self.bytes
    }

    /// Whether cwnd is below ssthresh and grows by the bytes acknowledged.
    pub(super) const fn is_slow_start(&self) -> bool {
        self.bytes < self.threshold
    }

    /// The window in each round trip of `rtt`, and more, so that the window is the limit and not the
    /// rate: twice as much while slow start doubles the window, later a fifth more (as Linux, whose
    /// ratios are 200 and 120 %), but [`PACING_SPARE_SEGMENTS`] at least.
    pub(super) fn pacing_rate(&self, rtt: Duration) -> PacingRate {
        let bytes = if self.bytes < self.threshold / 2 {
            2 * self.bytes
        } else {
            self.bytes + (self.bytes / 5).max(PACING_SPARE_SEGMENTS * self.segment_bytes)
        };
        PacingRate::of(bytes, rtt)
    }

    /// Slow start takes of what an ACK covers the bytes that lead to ssthresh, also within a large ACK;
    /// returns the rest, which counts for congestion avoidance (RFC 5681 s3.1; Linux). A window that
    /// the ACK does not test stays as it is, and nothing is left.
    pub(super) fn slow_start(&mut self, ack: &AckEvent) -> u64 {
        let is_tested = self.is_tested(ack.outstanding_bytes_max);
        let growth = if self.threshold == u64::MAX {
            self.hystart.on_ack(ack)
        } else {
            Growth::Standard
        };
        let bytes = match growth {
            _ if !is_tested => return 0,
            Growth::Standard => ack.bytes,
            Growth::Conservative => ack.bytes / CONSERVATIVE_DIVISOR,
            Growth::Ended => {
                self.threshold = self.bytes;
                ack.bytes
            }
        };
        if !self.is_slow_start() {
            return bytes;
        }
        let mut step = bytes.min(self.threshold - self.bytes);
        if self.canary.is(Fault::SlowStartOvershoots) {
            step = bytes;
        }
        self.set(self.bytes + step);
        if self.is_slow_start() {
            // At the window's greatest size, too.
            return 0;
        }
        bytes - step
    }

    /// Sets ssthresh after a loss (RFC 5681 s3.1 eq. 4). cwnd follows at the end of the recovery.
    pub(super) fn reduce_threshold(&mut self, bytes: u64) {
        self.threshold = bytes.max(THRESHOLD_SEGMENTS_MIN * self.segment_bytes);
    }

    /// cwnd is ssthresh: at the end of a recovery.
    pub(super) fn enter_avoidance(&mut self) {
        self.set(self.threshold);
    }

    /// cwnd is one segment: the retransmission timer fired.
    pub(super) fn collapse(&mut self) {
        self.bytes = self.segment_bytes;
    }

    /// The windows are at least those before a reduction that turned out to be needless.
    pub(super) fn restore(&mut self, bytes: u64, threshold: u64) {
        self.bytes = self.bytes.max(bytes);
        self.threshold = self.threshold.max(threshold);
    }

    /// Nothing was sent for `timeouts` RTOs. The window is halved for each of them, but not below
    /// the initial window (RFC 2861 s3.2). RFC 5681 s4.1 would reduce it to the initial window at
    /// once, which costs three round trips of slow start after every pause of a player. ssthresh
    /// becomes at least three quarters of the old window, so slow start leads back to it. Returns
    /// whether anything changed.
    pub(super) fn decay(&mut self, timeouts: u64) -> bool {
        let restart = initial_window_bytes(self.segment_bytes);
        if timeouts == 0 || self.bytes <= restart {
            return false;
        }
        self.threshold = self.threshold.max(self.bytes - self.bytes / 4);
        let halvings = u32::try_from(timeouts).unwrap_or(u32::MAX);
        let halved = self.bytes.checked_shr(halvings).unwrap_or(0);
        self.bytes = halved.max(restart);
        true
    }
}
