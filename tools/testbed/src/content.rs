//! Files of seeded content: any byte of them can be computed, so nothing needs to be kept to
//! compare.
//!
//! Bounded by: 1 MiB of memory.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
pub use load::content::Content;

use crate::interrupt;

/// Bytes generated at a time.
const PIECE_BYTES: usize = 1 << 20;

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
