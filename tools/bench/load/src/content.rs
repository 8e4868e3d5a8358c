//! What a body is to be: a file below a reference directory, or content computed from a seed.
//!
//! Any byte of a seeded object can be computed, so nothing needs to be kept to compare: each
//! eight-byte word is a mix of the seed and the word's index, and a byte from the wrong object,
//! the wrong offset or the wrong version differs with near certainty.
//! It refuses to guess: a body is compared or it is not, and what differs is named by its offset.
//! Bounded by: 64 KiB of memory for a comparison.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::random::Random;

/// Bytes generated, read or compared at a time.
const PIECE_BYTES: usize = 1 << 16;

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
        let source = Source::Seeded(self);
        compare(&source, offset, bytes)
    }
}

/// Where the right bodies come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A directory with each object at its URL's path.
    Directory(PathBuf),
    /// [`Content`] of this seed plus the number that stands last in the URL's path.
    Seeded(u64),
}

impl Reference {
    /// The body of the object at `path`; its length, bytes, if the reference knows it.
    ///
    /// # Errors
    /// A path that names no object of the reference.
    pub(crate) fn open(&self, path: &str) -> Result<Check> {
        let path = path.split('?').next().unwrap_or(path);
        let source = match self {
            Self::Directory(directory) => {
                let relative = path.trim_start_matches('/');
                ensure!(
                    !relative.split('/').any(|part| part == ".."),
                    "{path} leads out of the reference directory"
                );
                Source::open(&directory.join(relative))?
            }
            Self::Seeded(seed) => {
                let number = last_number(path)
                    .with_context(|| format!("no number in {path} to compute its content from"))?;
                Source::Seeded(Content::new(seed.wrapping_add(number), u64::MAX))
            }
        };
        Ok(Check { source, offset: 0 })
    }
}

/// The number whose digits stand last in a text.
fn last_number(text: &str) -> Option<u64> {
    let end = text.rfind(|it: char| it.is_ascii_digit())? + 1;
    let head = text.get(..end)?;
    let start = head
        .rfind(|it: char| !it.is_ascii_digit())
        .map_or(0, |at| at + 1);
    head.get(start..)?.parse().ok()
}

#[derive(Debug)]
enum Source {
    File { file: File, size_bytes: u64 },
    Seeded(Content),
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let size_bytes = file.metadata()?.len();
        Ok(Self::File { file, size_bytes })
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::File { size_bytes, .. } => *size_bytes,
            Self::Seeded(content) => content.size_bytes,
        }
    }

    fn fill(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Self::File { file, .. } => file
                .read_exact_at(out, offset)
                .context("reading the reference"),
            Self::Seeded(content) => {
                content.fill(offset, out);
                Ok(())
            }
        }
    }
}

/// A body under comparison, front to back.
#[derive(Debug)]
pub(crate) struct Check {
    source: Source,
    offset: u64,
}

impl Check {
    /// How long the body is to be, if the reference knows.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        Some(self.source.size_bytes()).filter(|bytes| *bytes != u64::MAX)
    }

    /// Compares the bytes that come next.
    ///
    /// # Errors
    /// The offset of the first byte that is not as it is to be.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        compare(&self.source, offset, bytes)
    }
}

fn compare(source: &Source, offset: u64, bytes: &[u8]) -> Result<()> {
    let end = offset.saturating_add(bytes.len() as u64);
    if end > source.size_bytes() {
        bail!("{} bytes past the end", end - source.size_bytes());
    }
    let mut expected = vec![0; bytes.len().min(PIECE_BYTES)];
    let mut at = offset;
    for piece in bytes.chunks(PIECE_BYTES) {
        let expected = &mut expected[..piece.len()];
        source.fill(at, expected)?;
        if piece != expected {
            let wrong = piece.iter().zip(&*expected).position(|(a, b)| a != b);
            bail!("wrong byte at offset {}", at + wrong.unwrap_or(0) as u64);
        }
        at += piece.len() as u64;
    }
    Ok(())
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

    #[test]
    fn an_objects_number_is_the_last_in_its_path() {
        for (path, number) in [
            ("/d000/o000123.bin", Some(123)),
            ("/7", Some(7)),
            ("/a3b", Some(3)),
            ("/a", None),
            ("", None),
            ("/99999999999999999999", None),
        ] {
            assert_eq!(last_number(path), number, "{path}");
        }
    }

    #[test]
    fn a_directory_is_compared_in_pieces_and_does_not_lead_out() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("a"), b"0123456789").expect("a file");
        let reference = Reference::Directory(directory.path().to_path_buf());
        let mut check = reference.open("/a?x=1").expect("there");
        assert_eq!(check.size_bytes(), Some(10));
        check.read(b"01234").expect("the first half");
        check.read(b"56789").expect("the second");
        assert!(check.read(b"x").is_err(), "past the end");
        assert!(reference.open("/b").is_err());
        assert!(reference.open("/x/../a").is_err());
        let mut check = reference.open("/a").expect("there");
        check.read(b"01").expect("right");
        let error = check.read(b"2x").expect_err("wrong");
        assert!(error.to_string().contains("offset 3"), "{error}");
    }
}
