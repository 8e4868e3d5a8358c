//! What the model remembers of its samples: the greatest bandwidth of two cycles, the least RTT, the
//! greatest aggregation of some rounds, whether the bandwidth still grows. Each is a few words; none
//! keeps samples.

use clock::{Duration, Instant};

/// ProbeRTTInterval: time between two ProbeRTT states.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// MinRTTFilterLen.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// Half of ExtraAckedFilterLen, round trips: two slots of so many rounds are remembered, so five to
/// ten rounds.
const AGGREGATION_SLOT_ROUNDS: u64 = 5;
/// Rounds with little growth after which the bandwidth counts as used up.
const FULL_ROUNDS: u32 = 3;
/// The bandwidth grows if it grows by a quarter in a round.
const FULL_GROWTH_PERCENT: u64 = 125;

/// max_bw: the greatest rate of the present and of the previous cycle, bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct MaxBandwidth {
    previous: u64,
    present: u64,
}

impl MaxBandwidth {
    /// BBR.max_bw.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.previous.max(self.present)
    }

    /// UpdateMaxBw(). A limited sample counts only if it exceeds what is known.
    pub(super) fn on_sample(&mut self, rate: u64, is_limited: bool) {
        if rate >= self.bytes_per_second() || !is_limited {
            self.present = self.present.max(rate);
        }
    }

    /// AdvanceMaxBwFilter(): the cycle is over. A cycle without a sample does not count, or nothing
    /// would be known after two of them.
    pub(super) fn on_cycle_end(&mut self) {
        if self.present > 0 {
            self.previous = self.present;
            self.present = 0;
        }
    }
}

/// min_rtt, and when it must be measured anew.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct MinRtt {
    /// min_rtt and min_rtt_stamp.
    least: Option<(Duration, Instant)>,
    /// probe_rtt_min_delay and probe_rtt_min_stamp.
    recent: Option<(Duration, Instant)>,
    /// probe_rtt_expired.
    is_expired: bool,
}

impl MinRtt {
    /// BBR.min_rtt; `None` before the first sample.
    pub(super) fn least(&self) -> Option<Duration> {
        self.least.map(|(rtt, _)| rtt)
    }

    /// Whether there was no sample as short as the least one for [`PROBE_RTT_INTERVAL`], at the last
    /// ACK.
    pub(super) const fn is_expired(&self) -> bool {
        self.is_expired
    }

    /// UpdateMinRTT().
    pub(super) fn on_ack(&mut self, now: Instant, sample: Option<Duration>) {
        let is_past = |known: Option<(Duration, Instant)>, window| {
            known.is_some_and(|(_, at)| now > at + window)
        };
        self.is_expired = is_past(self.recent, PROBE_RTT_INTERVAL);
        if let Some(sample) = sample
            && (self.is_expired || self.recent.is_none_or(|(least, _)| sample < least))
        {
            self.recent = Some((sample, now));
        }
        let is_less = match (self.recent, self.least) {
            (Some((recent, _)), Some((least, _))) => recent < least,
            _ => true,
        };
        if is_less || is_past(self.least, MIN_RTT_WINDOW) {
            self.least = self.recent;
        }
    }

    /// A ProbeRTT is over: the next is due [`PROBE_RTT_INTERVAL`] later.
    pub(super) fn on_probed(&mut self, now: Instant) {
        if let Some((_, at)) = &mut self.recent {
            *at = now;
        }
    }
}

/// extra_acked: bytes that ACKs report at once, beyond what the bandwidth would have delivered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Aggregation {
    /// extra_acked_interval_start.
    began_at: Instant,
    /// extra_acked_delivered, bytes.
    delivered: u64,
    /// Greatest of the present and of the previous slot, bytes.
    present: u64,
    previous: u64,
    /// Round in which the present slot began.
    slot_round: u64,
}

impl Aggregation {
    /// BBR.extra_acked, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.previous.max(self.present)
    }

    /// The connection was idle: what arrives from now on is counted from now on.
    pub(super) fn on_restart(&mut self, now: Instant) {
        self.began_at = now;
        self.delivered = 0;
    }

    /// UpdateACKAggregation(): `delivered` bytes are reported, of which at most `window` count.
    /// `is_full`: Startup is over; before, one round is remembered.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        delivered: u64,
        bandwidth: u64,
        window: u64,
        (round, is_full): (u64, bool),
    ) {
        let slot_rounds = if is_full { AGGREGATION_SLOT_ROUNDS } else { 1 };
        if round >= self.slot_round + slot_rounds {
            self.slot_round = round;
            self.previous = if is_full { self.present } else { 0 };
            self.present = 0;
        }
        let mut expected = super::volume(bandwidth, now.since(self.began_at));
        if self.delivered <= expected {
            self.delivered = 0;
            self.began_at = now;
            expected = 0;
        }
        self.delivered += delivered;
        let extra = self.delivered.saturating_sub(expected).min(window);
        self.present = self.present.max(extra);
    }
}

/// The "full pipe" estimator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct FullBandwidth {
    /// full_bw_reached: it was used up at some time.
    pub(super) is_reached: bool,
    /// full_bw_now: it is used up since the estimator was last reset.
    pub(super) is_now: bool,
    /// full_bw, bytes a second.
    baseline: u64,
    /// full_bw_count.
    rounds: u32,
}

impl FullBandwidth {
    /// ResetFullBW(), with the rate from which growth counts.
    pub(super) fn reset(&mut self, baseline: u64) {
        self.is_now = false;
        self.baseline = baseline;
        self.rounds = 0;
    }

    /// CheckFullBWReached(), with the sample at the start of a round, if the path limited it.
    pub(super) fn on_round(&mut self, rate: u64) {
        if self.is_now {
            return;
        }
        if u128::from(rate) * 100 >= u128::from(self.baseline) * u128::from(FULL_GROWTH_PERCENT) {
            self.reset(rate);
            return;
        }
        self.rounds += 1;
        self.is_now = self.rounds >= FULL_ROUNDS;
        self.is_reached |= self.is_now;
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{Aggregation, FullBandwidth, MaxBandwidth, MinRtt};

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn the_greatest_bandwidth_is_remembered_for_two_cycles() {
        let mut filter = MaxBandwidth::default();
        filter.on_sample(100, false);
        filter.on_sample(80, false);
        assert_eq!(filter.bytes_per_second(), 100);
        filter.on_cycle_end();
        filter.on_sample(70, false);
        assert_eq!(filter.bytes_per_second(), 100);
        filter.on_cycle_end();
        assert_eq!(filter.bytes_per_second(), 70);
        filter.on_cycle_end();
        filter.on_cycle_end();
        assert_eq!(filter.bytes_per_second(), 70, "no sample, no cycle");
    }

    #[test]
    fn a_limited_sample_counts_only_if_it_is_the_greatest() {
        let mut filter = MaxBandwidth::default();
        filter.on_sample(100, true);
        filter.on_cycle_end();
        filter.on_sample(99, true);
        filter.on_cycle_end();
        assert_eq!(filter.bytes_per_second(), 100, "99 was ignored");
        filter.on_sample(100, true);
        filter.on_sample(101, true);
        assert_eq!(filter.bytes_per_second(), 101);
    }

    #[test]
    fn the_least_rtt_expires_after_five_seconds_and_is_replaced_after_ten() {
        let mut filter = MinRtt::default();
        filter.on_ack(at(1000), None);
        assert_eq!((filter.least(), filter.is_expired()), (None, false));
        filter.on_ack(at(1000), Some(millis(40)));
        filter.on_ack(at(2000), Some(millis(50)));
        assert_eq!(filter.least(), Some(millis(40)));
        filter.on_ack(at(6000), Some(millis(50)));
        assert!(!filter.is_expired(), "exactly 5 s");
        filter.on_ack(at(6001), Some(millis(50)));
        assert!(filter.is_expired());
        assert_eq!(filter.least(), Some(millis(40)), "it holds for 10 s");
        filter.on_ack(at(11_000), Some(millis(60)));
        assert_eq!(filter.least(), Some(millis(40)));
        filter.on_ack(at(11_001), Some(millis(60)));
        assert_eq!(filter.least(), Some(millis(50)), "the one of 6.001 s");
    }

    #[test]
    fn a_shorter_or_equal_rtt_counts_at_once() {
        let mut filter = MinRtt::default();
        filter.on_ack(at(1000), Some(millis(40)));
        filter.on_ack(at(1001), Some(millis(39)));
        assert_eq!(filter.least(), Some(millis(39)));
        filter.on_probed(at(3000));
        filter.on_ack(at(8000), None);
        assert!(!filter.is_expired());
        filter.on_ack(at(8001), None);
        assert!(filter.is_expired());
    }

    #[test]
    fn aggregation_is_what_exceeds_the_bandwidth_since_the_interval_began() {
        let mut aggregation = Aggregation::default();
        // 1 MB/s: 1000 bytes each millisecond.
        let mut ack = |millis, bytes, round| {
            aggregation.on_ack(at(millis), bytes, 1_000_000, 50_000, (round, true));
            aggregation.bytes()
        };
        assert_eq!(ack(1000, 5000, 1), 5000);
        // 5 ms later exactly what was expected had come: a new interval.
        assert_eq!(ack(1005, 5000, 1), 5000);
        // 4 ms later: 10 000 of 4000 expected.
        assert_eq!(ack(1009, 5000, 1), 6000);
        assert_eq!(ack(1010, 90_000, 1), 50_000, "at most the window");
        // Five rounds later it is in the previous slot, ten rounds later forgotten.
        assert_eq!(ack(2000, 100, 6), 50_000);
        assert_eq!(ack(3000, 100, 10), 50_000);
        assert_eq!(ack(4000, 100, 11), 100);
    }

    #[test]
    fn in_startup_aggregation_is_remembered_for_a_round() {
        let mut aggregation = Aggregation::default();
        aggregation.on_ack(at(1000), 5000, 1_000_000, 50_000, (1, false));
        aggregation.on_ack(at(1100), 10, 1_000_000, 50_000, (1, false));
        assert_eq!(aggregation.bytes(), 5000);
        aggregation.on_ack(at(1200), 10, 1_000_000, 50_000, (2, false));
        assert_eq!(aggregation.bytes(), 10);
    }

    #[test]
    fn the_bandwidth_is_used_up_after_three_rounds_below_a_quarter_more() {
        let mut full = FullBandwidth::default();
        full.on_round(100);
        full.on_round(125);
        full.on_round(156);
        full.on_round(156);
        assert!(!full.is_now, "125 is a quarter more than 100");
        full.on_round(156);
        assert!(full.is_now && full.is_reached);
        full.reset(157);
        assert!(!full.is_now && full.is_reached);
        full.on_round(196);
        full.on_round(196);
        full.on_round(197);
        full.on_round(197);
        full.on_round(197);
        assert!(!full.is_now, "197 is a quarter more than 157");
        full.on_round(197);
        assert!(full.is_now);
    }
}
