//! CUBIC (RFC 9438), in integers so that the same seed gives the same bytes on any machine.
//!
//! Reading first: RFC 9438 s4. `W_cubic(t) = C * (t - K)^3 + W_max` with C = 0.4 segments/s^3 and
//! beta = 0.7. Times are in milliseconds, windows in bytes.

use clock::{Duration, Instant};

use super::{INITIAL_WINDOW_SEGMENTS, THRESHOLD_SEGMENTS_MIN, WINDOW_BYTES_MAX};

/// beta_cubic = 7/10 (RFC 9438 s4.6).
const BETA_NUMERATOR: u64 = 7;
const BETA_DENOMINATOR: u64 = 10;
/// Time since the start of an epoch is clamped here (17 minutes): far beyond it the window is at
/// its bound anyway, and the cube stays inside 128 bits.
const EPOCH_MILLIS_MAX: u64 = 1 << 20;

/// The growth of one connection's congestion window.
#[derive(Clone, Copy, Debug)]
pub struct Cubic {
    /// Sender maximum segment size (SMSS), bytes.
    segment_bytes: u64,
    /// cwnd, bytes.
    window: u64,
    /// ssthresh, bytes; `u64::MAX` before the first loss.
    threshold: u64,
    /// W_max: the window just before the last reduction, bytes.
    window_max: u64,
    /// The present congestion-avoidance epoch; `None` until its first ACK.
    epoch: Option<Epoch>,
}

/// The state that a reduction of the window changes; see [`Cubic::restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    window: u64,
    threshold: u64,
    window_max: u64,
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
    /// The initial window of RFC 6928 and no threshold.
    #[must_use]
    pub fn new(segment_bytes: u16) -> Self {
        let segment_bytes = u64::from(segment_bytes);
        Self {
            segment_bytes,
            window: INITIAL_WINDOW_SEGMENTS * segment_bytes,
            threshold: u64::MAX,
            window_max: 0,
            epoch: None,
        }
    }

    /// cwnd, bytes.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// ssthresh, bytes; `u64::MAX` before the first loss.
    #[must_use]
    pub const fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Whether cwnd is below ssthresh and grows by the bytes acknowledged.
    #[must_use]
    pub const fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// The path MTU was reduced: segments are smaller from now on.
    pub fn on_segment_bytes(&mut self, segment_bytes: u16) {
        self.segment_bytes = u64::from(segment_bytes);
    }

    /// `bytes` were newly acknowledged outside recovery, while the sender was limited by cwnd.
    pub fn on_ack(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        let mut left = bytes;
        if self.is_slow_start() {
            // Slow start ends at ssthresh, also within a large ACK: the rest of its bytes count for
            // congestion avoidance (RFC 5681 s3.1; Linux).
            let step = left.min(self.threshold - self.window);
            self.window = (self.window + step).min(WINDOW_BYTES_MAX);
            left -= step;
        }
        if left > 0 && !self.is_slow_start() {
            let grown = self.avoid_congestion(now, left, rtt);
            self.window = grown.min(WINDOW_BYTES_MAX);
        }
    }

    /// The sender is application-limited. The time until it is limited by cwnd again does not count
    /// for the cubic curve (RFC 9438 s5.8), because the window was not tested in it.
    pub fn on_application_limited(&mut self) {
        if let Some(epoch) = &mut self.epoch {
            epoch.is_paused = true;
        }
    }

    /// A loss was detected: sets ssthresh to beta times the window (RFC 9438 s4.6, s4.7). During the
    /// recovery proportional rate reduction sets the window itself.
    pub fn on_loss(&mut self) {
        self.epoch = None;
        // RFC 9438 s4.7, fast convergence: a flow that has a loss below its old maximum leaves room
        // for newer flows.
        self.window_max = if self.window < self.window_max {
            self.window * (BETA_NUMERATOR + BETA_DENOMINATOR) / (2 * BETA_DENOMINATOR)
        } else {
            self.window
        };
        let least = THRESHOLD_SEGMENTS_MIN * self.segment_bytes;
        self.threshold = (self.window * BETA_NUMERATOR / BETA_DENOMINATOR).max(least);
    }

    /// The retransmission timer fired: one segment, and slow start (RFC 5681 s3.1).
    pub fn on_timeout(&mut self) {
        self.on_loss();
        self.window = self.segment_bytes;
    }

    /// The timer fired again, or during a recovery: one segment and slow start, but ssthresh stays as
    /// it was set at the start of this loss event (RFC 5681 s3.1; Linux). The current window is no
    /// measure of the path, because rate reduction or the first timeout set it.
    pub fn on_timeout_again(&mut self) {
        self.epoch = None;
        self.window = self.segment_bytes;
    }

    /// The current cwnd, ssthresh and W_max.
    #[must_use]
    pub const fn snapshot(&self) -> Snapshot {
        Snapshot {
            window: self.window,
            threshold: self.threshold,
            window_max: self.window_max,
        }
    }

    /// Undoes the reduction since `before`, because there was no loss (RFC 4015 s3.2): the window is
    /// the one before, or the current one if that is larger.
    pub fn restore(&mut self, before: Snapshot) {
        self.epoch = None;
        self.window = self.window.max(before.window);
        self.threshold = self.threshold.max(before.threshold);
        self.window_max = before.window_max;
    }

    /// Sets the window, during a recovery and at its end.
    pub fn set_window(&mut self, bytes: u64) {
        self.window = bytes.clamp(self.segment_bytes, WINDOW_BYTES_MAX);
    }

    /// Nothing was sent for `timeouts` RTOs. The window is halved for each of them, but not below
    /// the initial window (RFC 2861 s3.2). RFC 5681 s4.1 would reduce it to the initial window at
    /// once, which costs three round trips of slow start after every pause of a player. ssthresh
    /// becomes at least three quarters of the old window, so slow start leads back to it.
    pub fn on_idle(&mut self, timeouts: u64) {
        let restart = INITIAL_WINDOW_SEGMENTS * self.segment_bytes;
        if timeouts == 0 || self.window <= restart {
            return;
        }
        self.threshold = self.threshold.max(self.window - self.window / 4);
        let halvings = u32::try_from(timeouts).unwrap_or(u32::MAX);
        let halved = self.window.checked_shr(halvings).unwrap_or(0);
        self.window = halved.max(restart);
        self.epoch = None;
    }

    /// One ACK of congestion avoidance; returns the new window.
    fn avoid_congestion(&mut self, now: Instant, bytes: u64, rtt: Duration) -> u64 {
        let (window, segment_bytes, window_max) =
            (self.window, self.segment_bytes, self.window_max);
        let epoch = self
            .epoch
            .get_or_insert_with(|| Epoch::new(now, window, window_max, segment_bytes));
        epoch.count_time(now);
        epoch.grow_reno(bytes, window, segment_bytes, window_max);
        let target = epoch
            .curve(now.since(epoch.started) + rtt, segment_bytes)
            // RFC 9438 s4.2: the target stays between cwnd and 1.5 * cwnd.
            .clamp(window, window + window / 2);
        // RFC 9438 s4.4: per ACK, (target - cwnd) / cwnd segments; here by bytes acknowledged.
        let step = (target - window).saturating_mul(bytes) / window.max(1);
        (window + step).max(epoch.reno_window)
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

    /// W_est (RFC 9438 s4.3): grows by alpha = 3 * (1 - beta) / (1 + beta) = 9/17 segments a round
    /// trip until the window before the loss is reached, and by one segment after.
    fn grow_reno(&mut self, bytes: u64, window: u64, segment_bytes: u64, window_max: u64) {
        self.reno_acked += bytes;
        let (numerator, denominator) = if self.reno_window < window_max {
            (9, 17)
        } else {
            (1, 1)
        };
        let step = self.reno_acked * segment_bytes * numerator / (window.max(1) * denominator);
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
