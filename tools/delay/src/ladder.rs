//! How late frames left, counted in steps that double.
//!
//! Bounded: a fixed array. A percentile is known to within its step, and told as the step's upper
//! end, so it is never better than the truth.

use clock::Duration;

/// Steps: below 1 us, below 2 us, ..., below 2^22 us (4 s), and everything beyond.
const STEPS: usize = 24;

/// Counts of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ladder {
    counts: [u64; STEPS],
    max: Duration,
}

impl Ladder {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let step = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(STEPS);
        if let Some(count) = self.counts.get_mut(step.min(STEPS - 1)) {
            *count += 1;
        }
        self.max = self.max.max(duration);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest, exactly; zero if none was counted.
    #[must_use]
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// A duration, in microseconds, that `permille` thousandths of all are not above.
    #[must_use]
    pub fn percentile_us(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(permille)).div_ceil(1000);
        let max_us = u64::try_from(self.max.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return (1 << step).min(max_us);
            }
        }
        max_us
    }

    /// The steps that hold something: their upper end in microseconds, and their count.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|(_, count)| **count > 0)
            .map(|(step, count)| (1 << step, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Ladder, STEPS};

    #[test]
    fn each_step_ends_where_the_next_begins() {
        let mut ladder = Ladder::default();
        for nanos in [0, 999, 1_000, 1_999, 2_000, 4_000_000_000_000] {
            ladder.record(Duration::from_nanos(nanos));
        }
        let steps: Vec<(u64, u64)> = ladder.steps().collect();
        assert_eq!(steps, [(1, 2), (2, 2), (4, 1), (1 << (STEPS - 1), 1)]);
        assert_eq!((ladder.count(), ladder.max().as_secs()), (6, 4_000));
    }

    #[test]
    fn percentiles_are_upper_ends_and_never_above_the_longest() {
        let mut ladder = Ladder::default();
        assert_eq!(ladder.percentile_us(990), 0, "nothing was late by nothing");
        for _ in 0..99 {
            ladder.record(Duration::from_micros(3));
        }
        ladder.record(Duration::from_micros(1_500));
        assert_eq!(ladder.percentile_us(500), 4);
        assert_eq!(ladder.percentile_us(990), 4);
        assert_eq!(ladder.percentile_us(991), 1_500);
        assert_eq!(ladder.percentile_us(1000), 1_500);
    }
}
