//! The content of simulated files: given bytes, or bytes that are a function of their offset.
//!
//! With the function a simulation can serve terabytes, and its checker can compute every byte
//! without asking the disk. It refuses nothing but offsets beyond the file. Bounded by the size of
//! [`SimContent::Bytes`].

/// Content of a simulated file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimContent {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Byte `offset` is [`pattern_byte`]`(seed, offset)`.
    Pattern {
        /// Distinguishes files and versions.
        seed: u64,
        /// Size of the file, bytes.
        size_bytes: u64,
    },
}

impl SimContent {
    /// Size of the file, bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pattern { size_bytes, .. } => *size_bytes,
        }
    }

    /// Copies the bytes from `offset_bytes` on, which the file must have, to `target`.
    pub(super) fn fill(&self, offset_bytes: u64, target: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => {
                let start = to_index(offset_bytes).min(bytes.len());
                target.copy_from_slice(&bytes[start..start + target.len()]);
            }
            Self::Pattern { seed, .. } => fill_pattern(*seed, offset_bytes, target),
        }
    }

    /// Writes `source` at `offset_bytes`, growing the file if need be. A pattern becomes bytes.
    pub(super) fn overwrite(&mut self, offset_bytes: u64, source: &[u8]) {
        if let Self::Pattern { seed, size_bytes } = *self {
            let mut bytes = vec![0; to_index(size_bytes)];
            fill_pattern(seed, 0, &mut bytes);
            *self = Self::Bytes(bytes);
        }
        if let Self::Bytes(bytes) = self {
            let start = to_index(offset_bytes);
            let end = start + source.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(source);
        }
    }
}

/// Byte `offset` of the pattern with this seed.
#[must_use]
pub fn pattern_byte(seed: u64, offset: u64) -> u8 {
    pattern_word(seed, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

/// Fills `target` with the bytes of the pattern from `offset_bytes` on.
pub fn fill_pattern(seed: u64, offset_bytes: u64, target: &mut [u8]) {
    let mut offset = offset_bytes;
    let mut rest = target;
    while !rest.is_empty() {
        let word = pattern_word(seed, offset / 8).to_le_bytes();
        let from = &word[(offset % 8) as usize..];
        let taken = from.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(taken);
        head.copy_from_slice(&from[..taken]);
        offset += taken as u64;
        rest = tail;
    }
}

/// The finaliser of SplitMix64: adjacent words are unrelated, so a byte from a wrong offset or
/// version differs from the right one.
fn pattern_word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn to_index(offset_bytes: u64) -> usize {
    usize::try_from(offset_bytes).expect("invariant: bytes in memory have usize offsets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_agrees_with_single_bytes_from_any_offset() {
        let content = SimContent::Pattern {
            seed: 7,
            size_bytes: 1 << 50,
        };
        for offset in [0, 1, 7, 8, 9, (1 << 49) + 3] {
            for length in [0, 1, 7, 8, 9, 17] {
                let mut bytes = vec![0; length];
                content.fill(offset, &mut bytes);
                let expected: Vec<_> = (offset..offset + length as u64)
                    .map(|at| pattern_byte(7, at))
                    .collect();
                assert_eq!(bytes, expected, "{length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn seeds_give_different_bytes() {
        let same = (0..4096)
            .filter(|&at| pattern_byte(1, at) == pattern_byte(2, at))
            .count();
        // One in 256 is expected.
        assert!(same < 64, "{same} of 4096 bytes are the same");
    }

    #[test]
    fn overwriting_keeps_the_rest_and_grows() {
        let mut content = SimContent::Pattern {
            seed: 7,
            size_bytes: 4,
        };
        content.overwrite(6, b"xy");
        let mut expected: Vec<_> = (0..4).map(|at| pattern_byte(7, at)).collect();
        expected.extend_from_slice(b"\0\0xy");
        assert_eq!(content, SimContent::Bytes(expected));
    }
}
