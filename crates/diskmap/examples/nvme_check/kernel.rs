//! The same disk through the kernel's own driver, as a block device.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crate::{Outcome, content};

/// Bytes at a time.
const PIECE_BYTES: usize = 1 << 18;

/// Writes all of a block device.
pub(crate) fn fill(file: &Path, seed: u64) -> Outcome {
    let mut file = OpenOptions::new().write(true).open(file)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let content = content((seed, seed), size_bytes);
    let mut piece = vec![0; PIECE_BYTES];
    for offset in (0..size_bytes).step_by(PIECE_BYTES) {
        let length = usize::try_from(size_bytes - offset)?.min(PIECE_BYTES);
        content.fill(offset, &mut piece[..length]);
        file.write_all(&piece[..length])?;
    }
    file.sync_all()?;
    println!("check: {size_bytes} bytes written by the kernel");
    Ok(())
}

/// Reads all of a block device, of which the kernel must have cached nothing, and compares it.
pub(crate) fn compare(file: &Path, seeds: (u64, u64)) -> Outcome {
    let mut file = OpenOptions::new().read(true).open(file)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let content = content(seeds, size_bytes);
    let mut piece = vec![0; PIECE_BYTES];
    for offset in (0..size_bytes).step_by(PIECE_BYTES) {
        let length = usize::try_from(size_bytes - offset)?.min(PIECE_BYTES);
        file.read_exact(&mut piece[..length])?;
        content.compare(offset, &piece[..length])?;
    }
    println!("check: {size_bytes} bytes read by the kernel are right");
    Ok(())
}
