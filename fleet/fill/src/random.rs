//! SplitMix64: numbers that spread retries, and the traces of tests. It refuses to be used for secrets.

/// A sequence of numbers that its seed decides.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to this one, without it; 0 of 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw().checked_rem(end).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_sequence_is_that_of_the_reference() {
        // Of the seed 1234567, as Vigna's reference implementation gives it.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.draw(), 6_457_827_717_110_365_317);
        assert_eq!(random.draw(), 3_203_168_211_198_807_973);
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| random.below(3) < 3));
    }
}
