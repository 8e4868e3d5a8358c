//! Reproducible numbers for the instruments: SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014).
//!
//! It refuses nothing, and is no source of secrets. Bounded by: one word.

use std::time::Duration;

/// The increment of SplitMix64.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// A seeded generator: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// One that begins at a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(INCREMENT);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The number at an index of the sequence that begins at a seed.
    #[must_use]
    pub const fn at(seed: u64, index: u64) -> u64 {
        Self(seed.wrapping_add(index.wrapping_mul(INCREMENT))).next()
    }

    /// A number below `bound`, which is above 0; the bias of at most `bound / 2^64` does not matter
    /// here.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A time of at most `longest`, in nanoseconds; nothing is drawn if that is zero.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        if nanoseconds == 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.below(nanoseconds.saturating_add(1)))
    }

    /// Puts items in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }

    /// Whether something happens that happens so many times in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < per_million.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper_and_can_be_had_by_index() {
        // The first numbers of Vigna's reference implementation from seed 1234567.
        let mut random = Random::new(1_234_567);
        for (index, number) in [
            (0, 6_457_827_717_110_365_317),
            (1, 3_203_168_211_198_807_973),
            (2, 9_817_491_932_198_370_423),
        ] {
            assert_eq!(random.next(), number);
            assert_eq!(Random::at(1_234_567, index), number);
        }
    }

    #[test]
    fn numbers_reach_all_below_their_bound_and_no_further() {
        let mut random = Random::new(3);
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[usize::try_from(random.below(3)).expect("small")] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn times_reach_their_bound_and_no_further() {
        let mut random = Random::new(5);
        let longest = Duration::from_nanos(2);
        let times: Vec<_> = (0..100).map(|_| random.up_to(longest)).collect();
        assert_eq!(times.iter().max(), Some(&longest));
        assert_eq!(times.iter().min(), Some(&Duration::ZERO));
        let before = random.clone().next();
        assert_eq!(random.up_to(Duration::ZERO), Duration::ZERO);
        assert_eq!(random.next(), before);
    }

    #[test]
    fn chances_are_kept() {
        let mut random = Random::new(1);
        let count = (0..100_000).filter(|_| random.happens(10_000)).count();
        assert!((900..1100).contains(&count), "{count}");
        assert!(!random.happens(0) && random.happens(1_000_000));
    }
}
