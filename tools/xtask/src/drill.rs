//! `cargo xtask drill`: scripts of a peer and a disk, with everything that happens in them.

use anyhow::Result;

/// Runs these scripts.
pub(crate) fn run_command(files: &[String]) -> Result<()> {
    Ok(::drill::run_command(files.iter().cloned())?)
}
