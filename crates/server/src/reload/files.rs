//! Reads the operator's files: configuration, certificates and keys, in this process or through the reader process.
//!
//! It refuses files larger than [`FILE_BYTES_MAX`], and leaves no copy of a key behind: the one
//! buffer a file is read into never grows, and is wiped when it is dropped.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::folder;
use super::reader::Reader;
use crate::start::privileges::Identity;

/// Most bytes of a file. A chain of certificates has some thousand, 200 sites with 20 rules each some hundred thousand.
pub(crate) const FILE_BYTES_MAX: usize = 4 << 20;

/// Who reads the files.
#[derive(Debug)]
pub(crate) struct OperatorFiles {
    /// `None`: this process.
    reader: Option<Reader>,
}

impl OperatorFiles {
    /// This process reads them itself, with the rights it has at the time.
    #[must_use]
    pub(crate) const fn direct() -> Self {
        Self { reader: None }
    }

    /// A process of its own reads `paths` and nothing else, also when this one no longer may. It
    /// becomes `identity`, and ends when this process does.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn by_reader(paths: Vec<PathBuf>, identity: &Identity) -> io::Result<Self> {
        let reader = Reader::start(paths, identity)?;
        Ok(Self {
            reader: Some(reader),
        })
    }

    /// The bytes of a file; may wait for the disk.
    ///
    /// # Errors
    /// What the kernel said, or [`io::ErrorKind::FileTooLarge`] beyond [`FILE_BYTES_MAX`].
    pub(crate) fn read_file(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match &self.reader {
            Some(reader) => reader.read_file(path),
            None => read_bounded(path),
        }
    }

    /// The pairs of a folder of certificates, for [`folder::split`]; may wait for the disk.
    ///
    /// # Errors
    /// As [`OperatorFiles::read_file`], for all of them together.
    pub(crate) fn read_folder(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match &self.reader {
            Some(reader) => reader.read_folder(path),
            None => folder::read(path),
        }
    }
}

/// At most [`FILE_BYTES_MAX`] bytes.
pub(super) fn read_bounded(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    read_at_most(path, FILE_BYTES_MAX)
}

/// One byte more than allowed is read at most: who names a device by mistake is told so at once.
pub(super) fn read_at_most(path: &Path, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    // With room for one byte more, `read_to_end` sees the end without growing.
    let mut text = Zeroizing::new(Vec::with_capacity(bytes_max + 2));
    let file = File::open(path)?;
    let limit = bytes_max as u64 + 1;
    file.take(limit).read_to_end(&mut text)?;
    if text.len() > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{FILE_BYTES_MAX, OperatorFiles};
    use std::io::ErrorKind;

    #[test]
    fn a_file_larger_than_pem_bytes_max_is_refused() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("chain.pem");
        let files = OperatorFiles::direct();
        for bytes in [0, FILE_BYTES_MAX] {
            std::fs::write(&path, vec![b'x'; bytes]).unwrap();
            assert_eq!(files.read_file(&path).unwrap().len(), bytes);
        }
        std::fs::write(&path, vec![b'x'; FILE_BYTES_MAX + 1]).unwrap();
        let error = files.read_file(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        let endless = files.read_file("/dev/zero".as_ref()).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        std::fs::remove_file(&path).unwrap();
        let error = files.read_file(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
