//! CUBIC (RFC 9438), in integers so that the same seed gives the same bytes on any machine.
//!
//! Reading first: RFC 9438 s4. `W_cubic(t) = C * (t - K)^3 + W_max` with C = 0.4 segments/s^3 and
//! beta = 0.7. Times are in milliseconds, windows in bytes.

use clock::{Duration, Instant};

use super::window::Window;
use super::{AckEvent, Controller, GENUINE_TIMEOUT_SEGMENTS, Snapshot, WINDOW_BYTES_MAX};
use crate::canary::{Canary, Fault};
use crate::pacing::PacingRate;

/// beta_cubic = 7/10 (RFC 9438 s4.6).
const BETA_NUMERATOR: u64 = 7;
const BETA_DENOMINATOR: u64 = 10;
/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (RFC 9438 s4.3).
const ALPHA_NUMERATOR: u64 = 9;
const ALPHA_DENOMINATOR: u64 = 17;
/// Time since the start of an epoch is clamped here (17 minutes): far beyond it the window is at
/// its bound anyway, and the cube stays inside 128 bits.
const EPOCH_MILLIS_MAX: u64 = 1 << 20;

/// The congestion window of one connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cubic {
    window: Window,
    /// W_max: the window just before the last reduction, bytes.
    window_max: u64,
    /// The present congestion-avoidance epoch; `None` until its first ACK.
    epoch: Option<Epoch>,
}

/// A period of congestion avoidance without a loss.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// t_epoch, plus the application-limited time, which does not count.
    started: Instant,
    /// When the last ACK was counted.
    counted_at: Instant,
    /// Application-limited since then.
    is_paused: bool,
    /// K, milliseconds: when the curve is back at W_max.
    k_millis: u64,
    /// W_max of this epoch, bytes.
    origin: u64,
    /// W_est of the Reno-friendly region, bytes.
    reno_window: u64,
    /// Bytes acknowledged towards the next increment of `reno_window`.
    reno_acked: u64,
}

impl Cubic {
    pub(super) fn new(segment_bytes: u16) -> Self {
        Self {
            window: Window::new(segment_bytes),
            window_max: 0,
            epoch: None,
        }
    }

    /// One ACK of congestion avoidance; returns the new window.
    fn avoid_congestion(&mut self, now: Instant, bytes: u64, rtt: Duration) -> u64 {
        let (window, segment_bytes, window_max) = (
            self.window.bytes(),
            self.window.segment_bytes(),
            self.window_max,
        );
        let epoch = self
            .epoch
            .get_or_insert_with(|| Epoch::new(now, window, window_max, segment_bytes));
        epoch.count_time(now);
        epoch.grow_reno(bytes, window, segment_bytes);
        let target = epoch
            .curve(now.since(epoch.started) + rtt, segment_bytes)
            // RFC 9438 s4.2: the target stays between cwnd and 1.5 * cwnd.
            .clamp(window, window + window / 2);
        // RFC 9438 s4.4: per ACK, (target - cwnd) / cwnd segments; here by bytes acknowledged.
        let step = (target - window).saturating_mul(bytes) / window.max(1);
        (window + step).max(epoch.reno_window)
    }

    /// Sets ssthresh as if a loss had.
    #[cfg(test)]
    pub(super) fn force_threshold(&mut self, bytes: u64) {
        self.window.reduce_threshold(bytes);
    }

    pub(super) const fn plant(&mut self, canary: Canary) {
        self.window.canary = canary;
    }

    /// Sets cwnd as if the path had led to it.
    #[cfg(any(test, feature = "canaries"))]
    pub(super) fn force_window(&mut self, bytes: u64) {
        self.window.set(bytes);
    }
}

impl Controller for Cubic {
    fn window(&self) -> u64 {
        self.window.bytes()
    }

    fn threshold(&self) -> u64 {
        self.window.threshold()
    }

    fn pacing_rate(&self, rtt: Duration) -> PacingRate {
        self.window.pacing_rate(rtt)
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        let is_tested = self.window.is_tested(ack.outstanding_bytes_max);
        let left = self.window.slow_start(ack);
        if !is_tested {
            return self.on_application_limited();
        }
        if left > 0 {
            let grown = self.avoid_congestion(ack.now, left, ack.rtt);
            self.window.set(grown);
        }
    }

    /// ssthresh is beta times the window (RFC 9438 s4.6, s4.7).
    fn on_loss(&mut self) {
        self.epoch = None;
        let window = self.window.bytes();
        // RFC 9438 s4.7, fast convergence: a flow that has a loss below its old maximum leaves room
        // for newer flows.
        self.window_max = if window < self.window_max {
            window * (BETA_NUMERATOR + BETA_DENOMINATOR) / (2 * BETA_DENOMINATOR)
        } else {
            window
        };
        self.window
            .reduce_threshold(window * BETA_NUMERATOR / BETA_DENOMINATOR);
    }

    fn on_recovered(&mut self) {
        self.window.enter_avoidance();
    }

    fn on_timeout(&mut self) {
        self.on_loss();
        self.window.collapse();
    }

    fn on_timeout_again(&mut self) {
        self.epoch = None;
        self.window.collapse();
    }

    fn on_timeout_genuine(&mut self) {
        let segment_bytes = self.window.segment_bytes();
        self.window.set(GENUINE_TIMEOUT_SEGMENTS * segment_bytes);
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            window: self.window.bytes(),
            threshold: self.window.threshold(),
            window_max: self.window_max,
        }
    }

    fn restore(&mut self, before: Snapshot) {
        self.epoch = None;
        self.window.restore(before.window, before.threshold);
        self.window_max = before.window_max;
    }

    /// The time until the sender is limited by cwnd again does not count for the curve (RFC 9438
    /// s5.8), because the window was not tested in it.
    fn on_application_limited(&mut self) {
        if let Some(epoch) = &mut self.epoch
            && !self.window.canary.is(Fault::PauseCounts)
        {
            epoch.is_paused = true;
        }
    }

    fn on_idle(&mut self, timeouts: u64) {
        if self.window.decay(timeouts) {
            self.epoch = None;
        }
    }

    fn on_segment_bytes(&mut self, segment_bytes: u16) {
        self.window.set_segment_bytes(segment_bytes);
    }
}

impl Epoch {
    fn new(now: Instant, window: u64, window_max: u64, segment_bytes: u64) -> Self {
        let (origin, below) = if window < window_max {
            (window_max, window_max - window)
        } else {
            (window, 0)
        };
        // K = cbrt((W_max - cwnd) / C) seconds, with windows in segments and 1/C = 2.5.
        let cube = u128::from(below) * 2_500_000_000 / u128::from(segment_bytes.max(1));
        Self {
            started: now,
            counted_at: now,
            is_paused: false,
            k_millis: cube_root(u64::try_from(cube).unwrap_or(u64::MAX)),
            origin,
            reno_window: window,
            reno_acked: 0,
        }
    }

    /// An ACK is counted: adds the time since the last one to the epoch, unless the sender was
    /// application-limited.
    fn count_time(&mut self, now: Instant) {
        if self.is_paused {
            self.started += now.since(self.counted_at);
            self.is_paused = false;
        }
        self.counted_at = now;
    }

    /// W_cubic at `elapsed` since the epoch's start, bytes.
    fn curve(&self, elapsed: Duration, segment_bytes: u64) -> u64 {
        let millis = u64::try_from(elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .min(EPOCH_MILLIS_MAX);
        let distance = u128::from(millis.abs_diff(self.k_millis));
        // 0.4 segments/s^3 = 4 * segment_bytes / 10^10 bytes/ms^3.
        let bytes = distance.pow(3) * 4 * u128::from(segment_bytes) / 10_000_000_000;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if millis < self.k_millis {
            self.origin.saturating_sub(bytes)
        } else {
            self.origin.saturating_add(bytes)
        }
    }

    /// W_est (RFC 9438 s4.3): grows by alpha segments a round trip, also above the window before
    /// the loss, where the RFC has one segment: Linux has alpha there, too, and beside it a flow
    /// that grows faster takes more than its part (decision 0020).
    fn grow_reno(&mut self, bytes: u64, window: u64, segment_bytes: u64) {
        self.reno_acked += bytes;
        let step =
            self.reno_acked * segment_bytes * ALPHA_NUMERATOR / (window.max(1) * ALPHA_DENOMINATOR);
        if step > 0 {
            self.reno_window = (self.reno_window + step).min(WINDOW_BYTES_MAX);
            self.reno_acked = 0;
        }
    }
}

/// The whole part of the cube root.
fn cube_root(value: u64) -> u64 {
    let (mut low, mut high) = (0u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle.pow(3) <= value {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests;
