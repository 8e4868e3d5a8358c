//! `atlas store trim`: discards free blocks (`BLKDISCARD`), so that an SSD can use it and an image takes less of
//! its disk.
//!
//! **Nothing is discarded that an object of one of the two newest catalogues has, or one that a server may be
//! sending**: it is what the next `add` could write over. What a removed object had, and what waits for
//! nothing but another catalogue, is freed first. It refuses devices without discard. Bounded by
//! [`PIECE_BYTES`] at a time, between which a signal ends it: what was not discarded then stays free.

use std::io::{self, Write as _};
use std::path::Path;

use store::raw::RawError;
use volume::BLOCK_BYTES;

use super::{Stop, units};
use crate::failure::Failure;
use crate::start::refuse_raw;
use writer::Writing;

/// Most that a device is told at once, bytes: some need long for it.
const PIECE_BYTES: u64 = 1 << 30;

/// Trims all devices of a store.
pub(super) fn run(store: &Path, stop: &Stop) -> Result<(), Failure> {
    let (mut writing, editor) = Writing::open(store)?;
    let editor = writing.free_space(editor)?;
    // The catalogue may be there and not be durable, if its writer was killed: after a cut the one before
    // would count, which has more.
    writing.transfer.flush()?;
    let block = u64::from(BLOCK_BYTES);
    let mut trimmed_bytes = 0;
    for extent in editor.free_extents() {
        let device = &writing.raw.devices()[usize::from(extent.device)];
        let (mut next, end) = (extent.start * block, (extent.start + extent.blocks) * block);
        while next < end {
            stop.check()?;
            let length_bytes = (end - next).min(PIECE_BYTES);
            device.discard(next, length_bytes).map_err(refuse)?;
            next += length_bytes;
            trimmed_bytes += length_bytes;
        }
    }
    let mut text = format!("{} trimmed", units::size(trimmed_bytes));
    let waiting_bytes = editor.waiting_bytes();
    if waiting_bytes > 0 {
        text += &format!(
            ", {} of removed objects not yet: a server may be sending them",
            units::size(waiting_bytes)
        );
    }
    let _ = writeln!(io::stdout(), "{text}");
    Ok(())
}

fn refuse(error: RawError) -> Failure {
    match error {
        RawError::Io { path, error } if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Failure::refused(
                format!("{}: it does not support discard", path.display()),
                "leave it: the store does not need it",
            )
        }
        error => refuse_raw(error),
    }
}
