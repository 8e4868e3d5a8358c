//! Seeded content: each byte is a function of its offset, so that none needs to be kept.

/// Bytes of two seeds, one below `middle` and one from there on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// A multiple of eight.
    pub(crate) middle: u64,
}

impl Content {
    /// The bytes from `offset` on, both multiples of eight.
    pub(crate) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        for (word, at) in bytes.chunks_exact_mut(8).zip((offset..).step_by(8)) {
            let seed = if at < self.middle {
                self.low
            } else {
                self.high
            };
            word.copy_from_slice(&mixed(seed, at).to_le_bytes());
        }
    }

    /// Fails with the first byte that is another one.
    pub(crate) fn compare(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let mut expected = vec![0; bytes.len()];
        self.fill(offset, &mut expected);
        if expected == bytes {
            return Ok(());
        }
        let pairs = expected.iter().zip(bytes);
        let at = pairs.take_while(|(expected, is)| expected == is).count();
        let end = bytes.len().min(at + 8);
        Err(format!(
            "wrong bytes at {}: {:02x?} instead of {:02x?}",
            offset + at as u64,
            &bytes[at..end],
            &expected[at..end]
        ))
    }
}

/// A word of the pattern (SplitMix64).
fn mixed(seed: u64, at: u64) -> u64 {
    let mut word = (seed << 32)
        .wrapping_add(at)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
