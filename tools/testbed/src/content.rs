//! Files of seeded content: any byte of them can be computed, so nothing needs to be kept to
//! compare.
//!
//! Each eight-byte word is a mix of the seed and the word's index: a byte from the wrong object, the wrong
//! offset or the wrong version differs with near certainty. What differs is named by its offset. Bounded
//! by: 1 MiB of memory.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::interrupt;
use crate::random::Random;

/// Bytes generated at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes compared at a time.
const CHECKED_BYTES: usize = 1 << 16;

/// The seed of the bench's objects: object `n` has the content of seed `OBJECT_SEED + n`.
pub const OBJECT_SEED: u64 = 0x0061_746C_6173;

/// The bytes of one seeded object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Names the stream of bytes.
    pub seed: u64,
    /// Length of the object, bytes.
    pub size_bytes: u64,
}

impl Content {
    /// The object of this seed and size.
    #[must_use]
    pub const fn new(seed: u64, size_bytes: u64) -> Self {
        Self { seed, size_bytes }
    }

    /// The word at `index`.
    fn word(self, index: u64) -> [u8; 8] {
        let seed = self.seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
        Random::at(seed, index).to_le_bytes()
    }

    /// Writes the bytes that stand at `offset` into `out`.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        let mut index = offset / 8;
        let skip = usize::try_from(offset % 8).unwrap_or(0);
        let mut rest = out;
        if skip != 0 {
            let word = self.word(index);
            let head = rest.len().min(8 - skip);
            let (first, tail) = rest.split_at_mut(head);
            first.copy_from_slice(&word[skip..skip + head]);
            rest = tail;
            index += 1;
        }
        for piece in rest.chunks_mut(8) {
            piece.copy_from_slice(&self.word(index)[..piece.len()]);
            index += 1;
        }
    }

    /// Compares `bytes` with what stands at `offset`.
    ///
    /// # Errors
    /// The first byte that differs, by its offset; bytes past the end of the object.
    pub fn check(self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.size_bytes {
            bail!("{} bytes past the end", end - self.size_bytes);
        }
        let mut expected = vec![0; bytes.len().min(CHECKED_BYTES)];
        let mut at = offset;
        for piece in bytes.chunks(CHECKED_BYTES) {
            let expected = &mut expected[..piece.len()];
            self.fill(at, expected);
            if piece != expected {
                let wrong = piece.iter().zip(&*expected).position(|(a, b)| a != b);
                bail!("wrong byte at offset {}", at + wrong.unwrap_or(0) as u64);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// Makes the file, and makes sure it is on the disk.
pub fn write(content: Content, path: &Path) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("creating {path:?}"))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < content.size_bytes {
        interrupt::check()?;
        let length = (content.size_bytes - at).min(PIECE_BYTES as u64);
        let piece = &mut piece[..usize::try_from(length).unwrap_or(PIECE_BYTES)];
        content.fill(at, piece);
        file.write_all(piece)
            .with_context(|| format!("writing {path:?}"))?;
        at += length;
    }
    file.sync_all().with_context(|| format!("syncing {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_window_is_the_same_bytes() {
        let content = Content::new(7, 1000);
        let mut whole = vec![0; 1000];
        content.fill(0, &mut whole);
        for (from, to) in [(0, 1), (1, 2), (7, 9), (3, 5), (8, 16), (13, 1000)] {
            let mut window = vec![0; to - from];
            content.fill(from as u64, &mut window);
            assert_eq!(window, whole[from..to], "{from}..{to}");
        }
    }

    #[test]
    fn check_sees_one_wrong_byte_the_wrong_place_and_the_end() {
        let content = Content::new(7, 1000);
        let mut bytes = vec![0; 900];
        content.fill(100, &mut bytes);
        assert!(content.check(100, &bytes).is_ok());
        assert!(content.check(92, &bytes).is_err());
        assert!(Content::new(8, 1000).check(100, &bytes).is_err());
        assert!(content.check(101, &bytes).is_err(), "past the end");
        bytes[500] ^= 1;
        let error = content.check(100, &bytes).expect_err("a wrong byte");
        assert!(error.to_string().contains("600"), "{error}");
    }
}
