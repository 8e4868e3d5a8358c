//! The file or block device that is read, and the one file that is made.
//!
//! It is opened for reading only, past the page cache. Bounded by one piece of memory to write.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Disk as _, FileSource};
use memory::{Arena, ArenaConfig};

use crate::CONTENT;
use crate::plan::READ_BYTES_MAX;

/// Bytes made at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What is read.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    /// Reads are whole blocks.
    pub(crate) block_bytes: u32,
    /// Largest read the device takes in one piece.
    pub(crate) read_bytes_max: u32,
    /// Why `diskmap` is slower than it could be.
    pub(crate) fallback_reason: Option<String>,
}

impl Target {
    /// Asks the device for its limits.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let config = ArenaConfig {
            slot_bytes: READ_BYTES_MAX,
            ..ArenaConfig::new(1)
        };
        let arena = Arena::new(config)?;
        let mut disk = Uring::new(UringConfig::default(), &arena)?;
        let file = open_direct(path)?;
        let (_, limits) = disk
            .open(FileSource::Descriptor(file.into()))
            .with_context(|| {
                let path = path.display();
                format!("{path}: neither a regular file nor a block device that can be asked")
            })?;
        Ok(Self {
            path: path.to_owned(),
            size_bytes: limits.size_bytes,
            block_bytes: limits.block_bytes,
            read_bytes_max: limits.read_bytes_max,
            fallback_reason: disk.fallback_reason().map(str::to_owned),
        })
    }
}

/// Opens for reading, past the page cache.
pub(crate) fn open_direct(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    opened.map_err(|error| {
        let path = path.display();
        let is_refused = error.raw_os_error() == Some(libc::EINVAL);
        let context = if is_refused {
            format!("{path} refuses O_DIRECT: name a block device, or a file on a disk")
        } else {
            format!("opening {path} for reading")
        };
        anyhow::Error::new(error).context(context)
    })
}

/// Makes a file of `bytes` known bytes, unless the same is there already.
pub(crate) fn make(path: &Path, bytes: u64) -> Result<()> {
    let shown = path.display();
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let file = match created {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return check_made(path, bytes),
        Err(error) => return Err(error).with_context(|| format!("making {shown}")),
    };
    fill(file, bytes).or_else(|error| {
        // Half a file would be taken for somebody else's by the next run.
        let _ = std::fs::remove_file(path);
        Err(error).with_context(|| format!("making {shown} of {bytes} bytes"))
    })
}

fn fill(mut file: File, bytes: u64) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset_bytes = 0;
    while offset_bytes < bytes {
        let left = usize::try_from(bytes - offset_bytes).unwrap_or(PIECE_BYTES);
        let part = &mut piece[..left.min(PIECE_BYTES)];
        CONTENT.fill(offset_bytes, part);
        file.write_all(part)?;
        offset_bytes += part.len() as u64;
    }
    // What is not on the disk yet would be written while it is measured.
    file.sync_all()?;
    Ok(())
}

/// A file that is there is never written; one like ours will do.
fn check_made(path: &Path, bytes: u64) -> Result<()> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("opening {shown}"))?;
    let is_file = file.metadata()?.is_file();
    ensure!(
        is_file,
        "{shown} is there and no file; name it without --make to read it"
    );
    let size_bytes = file.metadata()?.len();
    ensure!(
        size_bytes == bytes,
        "{shown} is there with {size_bytes} bytes, not {bytes}: remove it, choose another name, \
         or name it without --make to read it as it is"
    );
    // First and last bytes: enough to tell ours from another's.
    let probe_bytes = bytes.min(4096);
    let mut probe = vec![0; usize::try_from(probe_bytes)?];
    for offset_bytes in [0, (bytes - probe_bytes) / 8 * 8] {
        file.read_exact_at(&mut probe, offset_bytes)?;
        if CONTENT.check(offset_bytes, &probe).is_err() {
            bail!("{shown} is there and was not made by --make: choose another name");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_file_is_used_again_and_nothing_else_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made");
        make(&path, 10_001).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 10_001);
        assert!(CONTENT.check(0, &bytes).is_ok());
        make(&path, 10_001).unwrap();
        let refusal = make(&path, 10_000).unwrap_err().to_string();
        assert!(refusal.contains("remove it"), "{refusal}");
        std::fs::write(&path, b"somebody's").unwrap();
        assert!(make(&path, 10).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Target::open(&directory.path().join("none")).is_err());
        let refusal = Target::open(Path::new("/dev/null")).unwrap_err();
        assert!(refusal.to_string().contains("O_DIRECT"), "{refusal:#}");
        assert!(make(&directory.path().join("no/such"), 10).is_err());
    }
}
