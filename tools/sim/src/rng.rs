//! Seeded random numbers: one ChaCha8 stream for each purpose.
//!
//! It refuses to be seeded from anything but a number, so that a run is its seed. Streams
//! are apart by purpose, so that one more draw in one place does not move all others.

use core::ops::RangeInclusive;
use core::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    stream: ChaCha8Rng,
}

impl Rng {
    /// The stream of `seed` for one `purpose` (any constant; the same pair gives the same stream).
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&purpose.to_le_bytes());
        Self {
            stream: ChaCha8Rng::from_seed(key),
        }
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.stream.next_u64()
    }

    /// 32 random bytes.
    pub(crate) fn key(&mut self) -> [u8; 32] {
        let mut key = [0u8; 32];
        self.stream.fill_bytes(&mut key);
        key
    }

    /// A number in `range`, evenly (the bias of the multiplication is below 2^-32 here).
    pub(crate) fn range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        assert!(low <= high, "an empty range has no number: {low}..={high}");
        let span = u128::from(high - low) + 1;
        let scaled = (u128::from(self.bits()) * span) >> 64;
        low + u64::try_from(scaled).expect("invariant: scaled < span <= 2^64")
    }

    /// The same for sizes and counts.
    pub(crate) fn size(&mut self, range: RangeInclusive<usize>) -> usize {
        let (low, high) = range.into_inner();
        usize::try_from(self.range(low as u64..=high as u64)).expect("invariant: within usize")
    }

    /// A number in `range`, log-uniform: each power of two as likely as any other.
    pub(crate) fn log_range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        assert!(
            0 < low && low <= high,
            "a logarithm needs 0 < {low} <= {high}"
        );
        let doublings = (high / low).ilog2();
        let base = low << self.range(0..=u64::from(doublings));
        self.range(base..=base.saturating_mul(2).min(high))
    }

    /// A duration in `range` of microseconds, log-uniform.
    pub(crate) fn log_micros(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.log_range(range))
    }

    /// Whether an event of `permille` thousandths happens.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.range(1..=1000) <= permille
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.size(0..=choices.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn ranges_reach_both_ends_and_no_further() {
        let mut rng = Rng::new(1, 1);
        let drawn: Vec<u64> = (0..200).map(|_| rng.range(3..=5)).collect();
        assert!((3..=5).all(|n| drawn.contains(&n)));
        assert!(drawn.iter().all(|n| (3..=5).contains(n)));
        let drawn: Vec<u64> = (0..2000).map(|_| rng.log_range(10..=1000)).collect();
        assert!(drawn.iter().all(|n| (10..=1000).contains(n)));
        assert!(drawn.iter().filter(|n| **n < 100).count() > 500);
        assert_eq!(rng.range(7..=7), 7);
    }

    #[test]
    fn chances_of_nothing_and_of_everything_are_certain() {
        let mut rng = Rng::new(2, 1);
        assert!((0..100).all(|_| !rng.chance(0) && rng.chance(1000)));
    }

    #[test]
    fn seeds_and_purposes_have_streams_of_their_own() {
        assert_eq!(Rng::new(1, 1).bits(), Rng::new(1, 1).bits());
        assert_ne!(Rng::new(1, 1).bits(), Rng::new(1, 2).bits());
        assert_ne!(Rng::new(1, 1).bits(), Rng::new(2, 1).bits());
    }
}
