//! What the bodies of sampled replies are to be: files below a directory, or seeded content.
//!
//! It refuses to guess: a byte is compared or the reply is not called verified. Reading the files
//! brings them into the page cache: a bench of cold files samples few connections, or uses seeded
//! content. Bounds: 64 KiB for a comparison, `FILES_MAX` open files.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use testbed::content::Content;

/// Open files; beyond it all are closed and opened again as needed.
const FILES_MAX: usize = 256;

/// Where the right bodies come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A directory with each object at its path.
    Directory(PathBuf),
    /// [`Content`] of this seed plus the number that stands last in the path.
    Seeded(u64),
}

/// Compares.
#[derive(Debug)]
pub struct Samples {
    reference: Reference,
    files: HashMap<u32, File>,
    expected: Box<[u8]>,
}

impl Samples {
    /// Compares with this.
    #[must_use]
    pub fn new(reference: Reference) -> Self {
        Self {
            reference,
            files: HashMap::new(),
            expected: vec![0; 1 << 16].into_boxed_slice(),
        }
    }

    /// Whether these bytes stand at this offset of the object with this number and path.
    pub fn is_content(&mut self, number: u32, path: &str, offset: u64, bytes: &[u8]) -> bool {
        let directory = match &self.reference {
            Reference::Seeded(seed) => {
                let Some(last) = last_number(path) else {
                    return false;
                };
                let content = Content::new(seed.wrapping_add(last), u64::MAX);
                return content.check(offset, bytes).is_ok();
            }
            Reference::Directory(directory) => directory,
        };
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&number) {
            self.files.clear();
        }
        let relative = path.trim_start_matches('/');
        let file = match self.files.entry(number) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let Ok(file) = File::open(directory.join(relative)) else {
                    return false;
                };
                entry.insert(file)
            }
        };
        let mut at = offset;
        bytes.chunks(self.expected.len()).all(|piece| {
            let expected = self.expected.get_mut(..piece.len()).unwrap_or_default();
            let is_read = file.read_exact_at(expected, at).is_ok();
            at += piece.len() as u64;
            is_read && *piece == *expected
        })
    }
}

/// The number whose digits stand last in a text.
fn last_number(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(|it: char| !it.is_ascii_digit());
    let digits = text.rsplit(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compared_at_their_offsets_and_not_beyond_their_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("a"), "0123456789").expect("written");
        let reference = Reference::Directory(directory.path().to_path_buf());
        let mut samples = Samples::new(reference);
        assert!(samples.is_content(0, "/a", 3, b"3456789"));
        assert!(!samples.is_content(0, "/a", 3, b"345678x"));
        assert!(!samples.is_content(0, "/a", 3, b"34567890"));
        assert!(!samples.is_content(1, "/b", 0, b""));
    }

    #[test]
    fn seeded_content_goes_by_the_last_number_of_a_path() {
        assert_eq!(last_number("/d1/o0027.bin"), Some(27));
        assert_eq!((last_number("/a"), last_number("/7")), (None, Some(7)));
        let mut bytes = [0; 100];
        Content::new(5 + 27, u64::MAX).fill(40, &mut bytes);
        let mut samples = Samples::new(Reference::Seeded(5));
        assert!(samples.is_content(0, "/d1/o0027.bin", 40, &bytes));
        assert!(!samples.is_content(0, "/d1/o0028.bin", 40, &bytes));
    }
}
