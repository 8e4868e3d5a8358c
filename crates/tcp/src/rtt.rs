//! Round-trip time and the retransmission timeout (RFC 6298).
//!
//! A sample is the time from when a segment was **sent** to its acknowledgment. The disk read before
//! it is not part of the round trip, so it must not lengthen the timeout.
//!
//! Dozens of ACKs may arrive at one moment (a radio link that releases them together), and each gives a
//! sample. If each moved RTTVAR alike, one such moment would let it forget all that came before, and the
//! next wait of the link would be a spurious timeout (RFC 7323 appendix G). So RTTVAR grows with each
//! sample and falls by a quarter of the distance once a round trip, as in Linux (`mdev_max`).
//!
//! A retransmitted segment gives no sample (Karn's rule), unless the peer echoes timestamps (RFC
//! 7323 s4). The backoff of the timeout stays until there is a sample.

use clock::Duration;

use crate::canary::{Canary, Fault};

/// RTO before the first sample (RFC 6298 s2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// RTO before the first sample, if the timer of the SYN-ACK fired: the round trip may be longer than
/// [`RTO_INITIAL`] (RFC 6298 s5.7).
pub const RTO_AFTER_LOST_SYN_ACK: Duration = Duration::from_secs(3);
/// Least variance term of the RTO. It is added to SRTT, so it is also the least RTO. RFC 6298 s2.4
/// asks for an RTO of at least 1 s; large deployments use 200 ms, which still exceeds the peer's
/// delayed ACK (40 ms on Linux). Like Linux we floor this term and not the sum: a steady path has
/// no variance, so a floor of the sum would leave a long path no margin for the first delayed ACK.
pub const RTO_VARIANCE_MIN: Duration = Duration::from_millis(200);
/// Greatest RTO (RFC 6298 s2.5 allows a bound of at least 60 s).
pub const RTO_MAX: Duration = Duration::from_secs(60);
/// Most doublings that are counted; the RTO reaches [`RTO_MAX`] long before.
const BACKOFF_MAX: u32 = 16;

/// SRTT, RTTVAR and the backed-off RTO of one connection.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// RTO before the first sample.
    initial: Duration,
    /// SRTT; `None` before the first sample.
    smoothed: Option<Duration>,
    /// RTTVAR: the greatest value of `deviation` in a round trip, and what is left of earlier ones.
    variation: Duration,
    /// Mean deviation of the samples from SRTT, moved by each sample.
    deviation: Duration,
    /// Its greatest value in this round trip.
    deviation_max: Duration,
    /// Least RTT seen; RACK's reordering window is a quarter of it.
    minimum: Duration,
    /// How often the RTO was doubled since the last sample.
    backoff: u32,
    /// Something was retransmitted because it was overdue by SRTT, and there was no sample since:
    /// the round trip may be longer than SRTT.
    is_unconfirmed: bool,
    canary: Canary,
}

impl RttEstimator {
    /// No sample yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            initial: RTO_INITIAL,
            smoothed: None,
            variation: Duration::ZERO,
            deviation: Duration::ZERO,
            deviation_max: Duration::ZERO,
            minimum: Duration::MAX,
            backoff: 0,
            is_unconfirmed: false,
            canary: Canary::NONE,
        }
    }

    /// The same with a fault.
    pub(crate) fn plant(&mut self, canary: Canary) {
        self.canary = canary;
    }

    /// No sample yet, and the timer of the SYN-ACK fired.
    #[must_use]
    pub const fn after_lost_syn_ack() -> Self {
        let mut estimator = Self::new();
        estimator.initial = RTO_AFTER_LOST_SYN_ACK;
        estimator
    }

    /// Takes a sample, of a segment sent once (Karn's rule) or from an echoed timestamp. It ends the
    /// backoff (RFC 6298 s5: "once a new RTT measurement is obtained"). `ends_round`: everything that
    /// was sent before the last sample that ended a round trip is acknowledged.
    pub fn on_sample(&mut self, sample: Duration, ends_round: bool) {
        self.backoff = 0;
        self.is_unconfirmed = false;
        self.minimum = self.minimum.min(sample);
        match self.smoothed {
            None => {
                // RFC 6298 s2.2.
                self.smoothed = Some(sample);
                self.deviation = sample / 2;
            }
            Some(smoothed) => {
                // RFC 6298 s2.3: RTTVAR first, with the old SRTT.
                let error = smoothed.abs_diff(sample);
                self.deviation = (self.deviation * 3 + error) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
        self.deviation_max = self.deviation_max.max(self.deviation);
        self.variation = self.variation.max(self.deviation);
        if ends_round {
            self.variation -= (self.variation - self.deviation_max) / 4;
            self.deviation_max = self.deviation;
        }
    }

    /// The timer fired: the next one waits twice as long (RFC 6298 s5.5).
    pub fn on_timeout(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.is_unconfirmed = true;
    }

    /// A tail loss probe retransmits data: its ACK will be ambiguous (Karn's rule).
    pub fn on_tail_probe(&mut self) {
        self.is_unconfirmed = true;
    }

    /// The timer was waiting for something else than the path it is for now: for the peer's window, or for a
    /// next hop that failed (as RFC 6069 does it after reports that the destination was unreachable).
    pub fn end_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Whether the timer fired since the last sample.
    #[must_use]
    pub const fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// Whether nothing was retransmitted for being overdue since the last sample.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        !self.is_unconfirmed
    }

    /// The retransmission timeout with its backoff, at most [`RTO_MAX`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout_doubled(self.backoff)
    }

    /// The retransmission timeout doubled `times` times, at most [`RTO_MAX`]. For zero-window
    /// probes, which have a backoff of their own (RFC 9293 s3.8.6.1).
    #[must_use]
    pub fn timeout_doubled(&self, times: u32) -> Duration {
        let base = match self.smoothed {
            None => self.initial,
            Some(smoothed) if self.canary.is(Fault::TimeoutWithoutMargin) => {
                RTO_VARIANCE_MIN.max(smoothed + self.variation * 4)
            }
            Some(smoothed) => smoothed + RTO_VARIANCE_MIN.max(self.variation * 4),
        };
        base.saturating_mul(1 << times.min(BACKOFF_MAX))
            .min(RTO_MAX)
    }

    /// SRTT; `None` before the first sample.
    #[must_use]
    pub const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// SRTT less RTTVAR, but no less than the least sample: about what the path takes. A peer that delays some of its ACKs,
    /// by up to 40 ms (Linux) or 200 (others), makes SRTT longer than most round trips are.
    #[must_use]
    pub fn prompt(&self) -> Option<Duration> {
        let smoothed = self.smoothed?;
        Some(smoothed.saturating_sub(self.variation).max(self.minimum))
    }

    /// RTTVAR; zero before the first sample.
    #[must_use]
    pub const fn variation(&self) -> Duration {
        self.variation
    }

    /// How often the RTO was doubled since the last sample.
    #[must_use]
    pub const fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Least RTT seen; `Duration::MAX` before the first sample.
    #[must_use]
    pub const fn minimum(&self) -> Duration {
        self.minimum
    }
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Duration, RTO_AFTER_LOST_SYN_ACK, RTO_INITIAL, RTO_MAX, RTO_VARIANCE_MIN, RttEstimator,
    };

    #[test]
    fn first_sample_sets_srtt_and_half_as_variation() {
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.timeout(), RTO_INITIAL);
        rtt.on_sample(Duration::from_millis(400), true);
        // 400 + 4 * 200
        assert_eq!(rtt.timeout(), Duration::from_millis(1200));
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(400)));
    }

    #[test]
    fn later_samples_move_by_an_eighth_and_a_quarter() {
        let mut rtt = RttEstimator::new();
        rtt.on_sample(Duration::from_millis(400), true);
        rtt.on_sample(Duration::from_millis(800), true);
        // RTTVAR = (3 * 200 + 400) / 4 = 250; SRTT = (7 * 400 + 800) / 8 = 450.
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(450)));
        assert_eq!(rtt.timeout(), Duration::from_millis(450 + 1000));
        assert_eq!(rtt.minimum(), Duration::from_millis(400));
    }

    #[test]
    fn acks_that_are_delayed_now_and_then_do_not_lengthen_the_prompt_round_trip() {
        let [path, delayed] = [40, 80].map(Duration::from_millis);
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.prompt(), None);
        for sample in 0..100 {
            rtt.on_sample(
                if sample % 4 == 3 { delayed } else { path },
                sample % 4 == 0,
            );
        }
        assert!(rtt.smoothed() > Some(path + Duration::from_millis(5)));
        assert!(rtt.prompt() < Some(path + Duration::from_millis(1)));
        // A queue that stays is a part of the path.
        for sample in 0..100 {
            rtt.on_sample(delayed, sample % 4 == 0);
        }
        assert!(rtt.prompt() > Some(delayed - Duration::from_millis(1)));
    }

    #[test]
    fn timeout_stays_between_its_bounds() {
        let mut rtt = RttEstimator::new();
        let sample = Duration::from_micros(50);
        rtt.on_sample(sample, true);
        assert_eq!(rtt.timeout(), sample + RTO_VARIANCE_MIN);
        for _ in 0..40 {
            rtt.on_timeout();
        }
        assert_eq!(rtt.timeout(), RTO_MAX);
        rtt.on_sample(sample, true);
        assert_eq!(rtt.timeout(), sample + RTO_VARIANCE_MIN);
    }

    /// ACKs of a round trip that arrive at one moment give a sample each. The next round trip may be as
    /// long as those before.
    #[test]
    fn one_round_trip_does_not_make_it_forget_the_variance() {
        let (long, short) = (Duration::from_millis(879), Duration::from_millis(586));
        let mut rtt = RttEstimator::new();
        for _ in 0..20 {
            for sample in 0..30 {
                rtt.on_sample(long, sample == 0);
            }
        }
        assert_eq!(rtt.timeout(), long + RTO_VARIANCE_MIN);
        for sample in 0..60 {
            rtt.on_sample(short, sample == 0);
        }
        assert!(rtt.smoothed() < Some(short + Duration::from_millis(1)));
        assert!(rtt.timeout() > long, "{:?}", rtt.timeout());
        // And it falls when no round trip varies any more, by a quarter each.
        let before = rtt.variation();
        rtt.on_sample(short, true);
        rtt.on_sample(short, true);
        let least = (before * 3 / 4) * 3 / 4;
        assert!(rtt.variation() >= least && rtt.variation() < before);
        for _ in 0..20 {
            rtt.on_sample(short, true);
        }
        assert!(rtt.timeout() < short + RTO_VARIANCE_MIN + Duration::from_millis(1));
    }

    /// A path without variance keeps the margin, however long it is, as in Linux.
    #[test]
    fn the_variance_term_has_a_floor_and_not_the_sum() {
        let mut rtt = RttEstimator::new();
        for _ in 0..100 {
            rtt.on_sample(Duration::from_millis(300), true);
        }
        assert_eq!(rtt.timeout(), Duration::from_millis(500));
        // RTTVAR above a quarter of the floor counts in full: 300 and 4 * 51.
        rtt.variation = Duration::from_millis(51);
        assert_eq!(rtt.timeout(), Duration::from_millis(504));
        rtt.variation = Duration::from_millis(49);
        assert_eq!(rtt.timeout(), Duration::from_millis(500));
    }

    #[test]
    fn only_a_sample_or_an_opened_window_ends_the_backoff() {
        let mut rtt = RttEstimator::new();
        rtt.on_timeout();
        rtt.on_tail_probe();
        assert_eq!(rtt.timeout(), RTO_INITIAL * 2);
        assert!(!rtt.is_confirmed());
        rtt.end_backoff();
        assert_eq!(rtt.timeout(), RTO_INITIAL);
        assert!(!rtt.is_confirmed(), "it says nothing of the round trip");
        rtt.on_timeout();
        rtt.on_sample(Duration::from_millis(500), true);
        assert_eq!(rtt.timeout(), Duration::from_millis(1500));
        assert!(rtt.is_confirmed());
    }

    #[test]
    fn a_lost_syn_ack_lengthens_the_timeout_until_there_is_a_sample() {
        let mut rtt = RttEstimator::after_lost_syn_ack();
        assert_eq!(rtt.timeout(), RTO_AFTER_LOST_SYN_ACK);
        rtt.on_timeout();
        assert_eq!(rtt.timeout(), RTO_AFTER_LOST_SYN_ACK * 2);
        rtt.on_sample(Duration::from_millis(400), true);
        assert_eq!(rtt.timeout(), Duration::from_millis(1200));
    }

    #[test]
    fn each_timeout_doubles_the_next() {
        let mut rtt = RttEstimator::new();
        rtt.on_timeout();
        assert_eq!(rtt.timeout(), RTO_INITIAL * 2);
        rtt.on_timeout();
        assert_eq!(rtt.timeout(), RTO_INITIAL * 4);
    }
}
