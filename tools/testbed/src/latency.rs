//! Delays, and what is told of them.
//!
//! It refuses nothing: what is beyond the bounds counts as the bound. Bounded by: a histogram of fixed size.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest delay told apart, microseconds: an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// Decimal digits of a delay that count.
const LATENCY_DIGITS: u8 = 3;

/// Delays, in microseconds.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS);
        Self(histogram.expect("invariant: fixed bounds that fit"))
    }
}

impl Latency {
    /// One more; what is beyond the bounds counts as the bound.
    pub fn record(&mut self, delay: Duration) {
        let microseconds = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(microseconds.max(1));
    }

    /// The one in the middle, if there is any.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_micros(self.0.value_at_quantile(0.5)))
    }

    /// How many there were, their mean and their percentiles.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.0.len(),
            mean: self.0.mean(),
            p50: self.0.value_at_quantile(0.5),
            p90: self.0.value_at_quantile(0.9),
            p99: self.0.value_at_quantile(0.99),
            p99_9: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        }
    }
}

/// One histogram.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LatencySummary {
    pub count: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_within_the_bounds_are_told_apart_and_others_count_as_the_bound() {
        let mut latency = Latency::default();
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds));
        }
        let summary = latency.summary();
        assert_eq!((summary.count, summary.p50, summary.p99), (1000, 500, 990));
        assert_eq!((summary.p99_9, summary.max), (999, 1000));
        latency.record(Duration::from_secs(7200));
        latency.record(Duration::ZERO);
        let summary = latency.summary();
        assert_eq!(summary.count, 1002);
        assert!(summary.max.abs_diff(LATENCY_US_MAX) < LATENCY_US_MAX / 1000);
        assert_eq!(Latency::default().summary().p99, 0, "nothing is no delay");
    }
}
