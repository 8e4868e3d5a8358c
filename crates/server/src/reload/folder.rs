//! A folder of certificates: `NAME.crt` beside `NAME.key`, and directories with `fullchain.pem` and `privkey.pem`, as
//! certbot lays them out. Its files are read at once, into one buffer, since the process that reads them may be another
//! ([`super::reader`]).
//!
//! ```text
//!  length, u32; certificate's file ─▶ length; its text ─▶ length; key's file ─▶ length; its text ─▶ the next pair
//! ```
//!
//! It refuses nothing of what the files have in them: an empty text stands for a file that is missing. Bounds:
//! [`PEM_BYTES_MAX`] a file, [`FILE_BYTES_MAX`] together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::files::{FILE_BYTES_MAX, read_at_most};

/// Most bytes of a file of a folder: a chain has some thousand.
const PEM_BYTES_MAX: usize = 64 << 10;

/// The texts of a pair's files, and what the files are.
#[derive(Debug)]
pub(crate) struct PairTexts<'a> {
    pub(crate) certificate: (PathBuf, &'a [u8]),
    pub(crate) key: (PathBuf, &'a [u8]),
}

/// Reads the pairs of a folder, sorted by name.
pub(super) fn read(folder: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable();
    // It never grows, so that no copy of a key is left behind.
    let mut bundle = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX));
    for entry in entries {
        let (certificate, key) = if entry.extension().is_some_and(|end| end == "crt") {
            (entry.clone(), entry.with_extension("key"))
        } else {
            (entry.join("fullchain.pem"), entry.join("privkey.pem"))
        };
        let Some(chain) = read_if_there(&certificate)? else {
            continue;
        };
        let key_text = read_if_there(&key)?.unwrap_or_default();
        for part in [
            certificate.as_os_str().as_encoded_bytes(),
            &chain,
            key.as_os_str().as_encoded_bytes(),
            &key_text,
        ] {
            if bundle.len() + size_of::<u32>() + part.len() > FILE_BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let length = u32::try_from(part.len()).map_err(io::Error::other)?;
            bundle.extend_from_slice(&length.to_be_bytes());
            bundle.extend_from_slice(part);
        }
    }
    Ok(bundle)
}

fn read_if_there(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    match read_at_most(path, PEM_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The pairs in what [`read`] made; `None`: it is no such thing.
pub(crate) fn split(mut bundle: &[u8]) -> Option<Vec<PairTexts<'_>>> {
    let mut part = || {
        let (length, behind) = bundle.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (part, rest) = behind.split_at_checked(length)?;
        bundle = rest;
        Some(part)
    };
    let mut pairs = Vec::new();
    while let Some(file) = part() {
        let path = |bytes: &[u8]| Some(PathBuf::from(std::str::from_utf8(bytes).ok()?));
        pairs.push(PairTexts {
            certificate: (path(file)?, part()?),
            key: (path(part()?)?, part()?),
        });
    }
    bundle.is_empty().then_some(pairs)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::{FILE_BYTES_MAX, PEM_BYTES_MAX, read, split};

    #[test]
    fn pairs_of_both_layouts_are_read_and_nothing_else() {
        let folder = tempfile::TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b.crt", "chain b");
        write("b.key", "key b");
        write("a.example/fullchain.pem", "chain a");
        write("a.example/privkey.pem", "key a");
        write("a.example/cert.pem", "x");
        write("c.crt", "chain c");
        write("README", "x");
        write("d/other.pem", "x");
        write("e.key", "x");
        let bundle = read(folder.path()).unwrap();
        let pairs = split(&bundle).unwrap();
        let texts = pairs.iter().map(|pair| (pair.certificate.1, pair.key.1));
        let expected: [(&[u8], &[u8]); 3] = [
            (b"chain a", b"key a"),
            (b"chain b", b"key b"),
            (b"chain c", b""),
        ];
        assert!(texts.eq(expected), "{pairs:?}");
        assert_eq!(pairs[2].key.0, folder.path().join("c.key"));
        for cut in 1..bundle.len() {
            let whole = split(&bundle[..cut]);
            assert!(whole.is_none_or(|whole| whole.len() < 3), "{cut}");
        }
    }

    #[test]
    fn a_folder_is_as_large_as_an_answer_may_be() {
        let folder = tempfile::TempDir::new().unwrap();
        let text = vec![b'x'; PEM_BYTES_MAX];
        let mut count = 0;
        let refused = loop {
            fs::write(folder.path().join(format!("{count}.crt")), &text).unwrap();
            count += 1;
            match read(folder.path()) {
                Ok(bundle) => assert!(bundle.len() <= FILE_BYTES_MAX),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        assert_eq!(count, FILE_BYTES_MAX / PEM_BYTES_MAX);
        let folder = tempfile::TempDir::new().unwrap();
        fs::write(folder.path().join("a.crt"), [&text[..], b"x"].concat()).unwrap();
        let error = read(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
