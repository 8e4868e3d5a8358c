//! Reno (RFC 5681), with bytes counted (RFC 3465): one segment for each window acknowledged, half
//! after a loss.

use clock::Duration;

use super::window::Window;
use super::{AckEvent, Controller, GENUINE_TIMEOUT_SEGMENTS, Snapshot};
use crate::canary::Canary;
use crate::pacing::PacingRate;

/// The congestion window of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Reno {
    window: Window,
    /// Bytes acknowledged towards the next increment.
    acked: u64,
}

impl Reno {
    pub(super) fn new(segment_bytes: u16) -> Self {
        Self {
            window: Window::new(segment_bytes),
            acked: 0,
        }
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

impl Controller for Reno {
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
        self.acked += self.window.slow_start(ack);
        if self.window.is_slow_start() {
            return;
        }
        // RFC 5681 s3.1: "at least one and at most SMSS bytes per RTT".
        let grown = self.acked / self.window.bytes();
        self.acked %= self.window.bytes();
        let grown = grown * self.window.segment_bytes();
        self.window.set(self.window.bytes() + grown);
    }

    fn on_loss(&mut self) {
        self.acked = 0;
        // Whole segments, as Linux: the rest of one is never sent, but more would have to be acknowledged for the next.
        let half = self.window.bytes() / 2;
        self.window
            .reduce_threshold(half - half % self.window.segment_bytes());
    }

    fn on_recovered(&mut self) {
        self.window.enter_avoidance();
    }

    fn on_timeout(&mut self) {
        self.on_loss();
        self.window.collapse();
    }

    fn on_timeout_again(&mut self) {
        self.acked = 0;
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
            window_max: 0,
        }
    }

    fn restore(&mut self, before: Snapshot) {
        self.acked = 0;
        self.window.restore(before.window, before.threshold);
    }

    fn on_application_limited(&mut self) {}

    fn on_idle(&mut self, timeouts: u64) {
        if self.window.decay(timeouts) {
            self.acked = 0;
        }
    }

    fn on_segment_bytes(&mut self, segment_bytes: u16) {
        self.window.set_segment_bytes(segment_bytes);
    }
}
