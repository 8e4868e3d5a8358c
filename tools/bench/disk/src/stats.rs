//! From reads to samples, from samples to medians. No clock, no I/O.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency told apart, nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Shortest one.
const LATENCY_NS_MIN: u64 = 100;
/// Decimal digits that count.
const LATENCY_DIGITS: u8 = 3;

/// Latencies of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, LATENCY_DIGITS);
        Self(histogram.expect("invariant: fixed bounds that fit"))
    }

    /// One more; what is beyond the bounds counts as the bound.
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanoseconds);
    }

    fn microseconds(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// What one measurement counted.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    /// CPU time of this process.
    pub(crate) cpu: Duration,
    /// Time of all cores that were not idle.
    pub(crate) busy: Duration,
    pub(crate) system_calls: u64,
    /// Fewest reads in flight whenever it waited for one.
    pub(crate) in_flight_min: u32,
    pub(crate) latencies: Latencies,
}

/// Middle, least and most over the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Median {
    /// The middle one; of two the mean.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Median {
    /// `None` of nothing.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, min, max })
    }
}

/// One measurement over all rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Reads of all rounds.
    pub reads: u64,
    /// Payload, 10^9 bits a second.
    pub gigabits_per_second: Median,
    /// Reads a second.
    pub reads_per_second: Median,
    /// Mean latency, microseconds: from the hand-over of a read to when its bytes are at hand.
    pub latency_mean_us: Median,
    /// Half of the reads took less.
    pub latency_p50_us: Median,
    /// Nine of ten took less.
    pub latency_p90_us: Median,
    /// All but one in a hundred took less.
    pub latency_p99_us: Median,
    /// All but one in a thousand took less.
    pub latency_p99_9_us: Median,
    /// The longest.
    pub latency_max_us: Median,
    /// CPU seconds of this process for 10^9 bytes.
    pub cpu_seconds_per_gb: Median,
    /// Seconds in which some core was not idle, for 10^9 bytes; whoever kept it busy.
    pub busy_seconds_per_gb: Median,
    /// System calls to submit, to wait and to reap, a read.
    pub system_calls_per_read: Median,
    /// Fewest reads in flight whenever there was a wait.
    pub in_flight_min: u32,
}

impl Summary {
    /// `None` without samples.
    pub(crate) fn of(samples: &[Sample]) -> Option<Self> {
        let over = |value: &dyn Fn(&Sample) -> f64| Median::of(samples.iter().map(value));
        let latency = |quantile: f64| over(&|sample| sample.latencies.microseconds(quantile));
        Some(Self {
            reads: samples.iter().map(|sample| sample.reads).sum(),
            gigabits_per_second: over(&|sample| {
                sample.bytes as f64 * 8.0 / 1e9 / sample.elapsed.as_secs_f64()
            })?,
            reads_per_second: over(&|sample| sample.reads as f64 / sample.elapsed.as_secs_f64())?,
            latency_mean_us: over(&|sample| sample.latencies.0.mean() / 1e3)?,
            latency_p50_us: latency(0.5)?,
            latency_p90_us: latency(0.9)?,
            latency_p99_us: latency(0.99)?,
            latency_p99_9_us: latency(0.999)?,
            latency_max_us: over(&|sample| sample.latencies.0.max() as f64 / 1e3)?,
            cpu_seconds_per_gb: over(&|sample| per_gb(sample.cpu, sample.bytes))?,
            busy_seconds_per_gb: over(&|sample| per_gb(sample.busy, sample.bytes))?,
            system_calls_per_read: over(&|sample| {
                sample.system_calls as f64 / sample.reads.max(1) as f64
            })?,
            in_flight_min: samples.iter().map(|sample| sample.in_flight_min).min()?,
        })
    }
}

fn per_gb(time: Duration, bytes: u64) -> f64 {
    time.as_secs_f64() * 1e9 / bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reads: u64, seconds: u64) -> Sample {
        let mut latencies = Latencies::new();
        for count in 1..=100 {
            latencies.record(Duration::from_micros(count));
        }
        Sample {
            reads,
            bytes: reads * 1000,
            elapsed: Duration::from_secs(seconds),
            cpu: Duration::from_secs(1),
            busy: Duration::from_secs(2),
            system_calls: reads / 2,
            in_flight_min: 4,
            latencies,
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Median::of([]), None);
        let odd = Median::of([3.0, 1.0, 10.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 10.0));
        assert_eq!(Median::of([1.0, 4.0, 2.0, 9.0]).unwrap().median, 3.0);
    }

    #[test]
    fn a_summary_counts_in_its_units() {
        let samples = [sample(1_000_000, 1), sample(1_000_000, 2)];
        let summary = Summary::of(&samples).unwrap();
        assert_eq!(summary.reads, 2_000_000);
        assert_eq!(summary.gigabits_per_second.max, 8.0);
        assert_eq!(summary.reads_per_second.min, 500_000.0);
        assert_eq!(summary.cpu_seconds_per_gb.median, 1.0);
        assert_eq!(summary.busy_seconds_per_gb.median, 2.0);
        assert_eq!(summary.system_calls_per_read.median, 0.5);
        assert!((summary.latency_p50_us.median - 50.0).abs() < 0.1);
        assert!((summary.latency_p99_us.median - 99.0).abs() < 0.1);
        assert!(Summary::of(&[]).is_none());
    }
}
