//! Where the emulated controller's choices come from: a seed, or bytes that a fuzzer made up.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use clock::Duration;

use crate::sim::CHANCE_SCALE;

/// A source of choices.
#[derive(Debug)]
pub(super) enum Choices {
    Seeded(Box<ChaCha8Rng>),
    /// Each choice takes bytes from here. When none are left, nothing unusual happens any more.
    Script {
        bytes: Vec<u8>,
        at: usize,
    },
}

impl Choices {
    pub(super) fn seeded(seed: u64) -> Self {
        Self::Seeded(Box::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    pub(super) const fn script(bytes: Vec<u8>) -> Self {
        Self::Script { bytes, at: 0 }
    }

    /// Whether something with a chance in millionths happens.
    pub(super) fn happens(&mut self, chance: u32) -> bool {
        if chance == 0 {
            return false;
        }
        match self {
            Self::Seeded(random) => random.next_u32() % CHANCE_SCALE < chance,
            Self::Script { bytes, at } => {
                let byte = bytes.get(*at).copied();
                *at += 1;
                byte.is_some_and(|byte| u32::from(byte) * (CHANCE_SCALE / 256) < chance)
            }
        }
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        match self {
            Self::Seeded(random) => random.next_u32() % bound,
            Self::Script { bytes, at } => {
                let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
                let number = u16::from_le_bytes([byte(*at), byte(*at + 1)]);
                *at += 2;
                u32::from(number) % bound
            }
        }
    }

    /// A time in between, to the microsecond.
    pub(super) fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let span = longest.saturating_sub(shortest).as_micros();
        let span = u32::try_from(span).unwrap_or(u32::MAX - 1);
        shortest + Duration::from_micros(self.below(span + 1).into())
    }
}
