//! What every program that runs a server for real needs: network namespaces and veth pairs, disks,
//! children, other servers to compare with, test content, and undoing; and what all instruments need: seeded
//! numbers, delays, times of cores.
//!
//! Everything set up here is undone when its guard is dropped, in reverse order, whether the
//! command succeeded, failed, panicked or was interrupted: signals only set a flag
//! ([`interrupt`]), every wait looks at it, and the error travels up through the guards.
//! It refuses to touch anything it did not make, bar a few kernel settings that are read first
//! and written back ([`undo::Undo::set`]). Bounded by: every wait takes a limit.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "commands use it, and it says at their terminal what passed and what could not be undone"
)]

pub mod bench_disk;
pub mod certificate;
pub mod client;
pub mod content;
pub mod cores;
pub mod corpus;
pub mod curl;
pub mod film;
pub mod interrupt;
pub mod latency;
pub mod namespace;
pub mod packages;
pub mod pages;
pub mod process;
pub mod program;
pub mod random;
pub mod raw_store;
pub mod rivals;
pub mod server;
pub mod suite;
pub mod traffic_server;
pub mod undo;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Whether this process may make namespaces, mounts and interfaces.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The workspace's top directory: the parent of the folder this crate lives in, as cargo saw it.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Where cargo puts what it builds: `CARGO_TARGET_DIR`, else `target` of the workspace.
pub fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// Finds a program on PATH or in the system directories a plain user's PATH leaves out.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// The program itself, to be run again as another process.
pub fn own_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding our own program")?;
    // Linux marks a file that was replaced while it runs; the new one is at the same place.
    let text = program.to_string_lossy();
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or(program.clone(), PathBuf::from))
}

/// A temporary directory on a real filesystem, readable by every user.
///
/// Not `/tmp`, which is often a tmpfs, where `O_DIRECT` may be refused.
pub fn scratch_directory(purpose: &str) -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::Builder::new()
        .prefix(&format!("atlas-{purpose}-"))
        .tempdir_in("/var/tmp")
        .context("making a temporary directory in /var/tmp")?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}
