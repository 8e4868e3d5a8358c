//! What every command that runs a server for real needs: namespaces, children, undoing, content.
//!
//! Everything set up here is undone when its guard is dropped, in reverse order, whether the
//! command succeeded, failed, panicked or was interrupted: signals only set a flag
//! ([`interrupt`]), every wait looks at it, and the error travels up through the guards.
//! It refuses to touch anything it did not make, bar a few kernel settings that are read first
//! and written back ([`undo::Undo::set`]). Bounded by: every wait takes a limit.

pub(crate) mod certificate;
pub(crate) mod client;
pub(crate) mod content;
pub(crate) mod curl;
pub(crate) mod film;
pub(crate) mod interrupt;
pub(crate) mod namespace;
pub(crate) mod openssl;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod rivals;
pub(crate) mod server;
pub(crate) mod suite;
pub(crate) mod undo;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Whether this process may make namespaces, mounts and interfaces.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The workspace's top directory: the parent of the folder this crate lives in, as cargo saw it.
pub(crate) fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Where cargo puts what it builds: `CARGO_TARGET_DIR`, else `target` of the workspace.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// Finds a program on PATH or in the system directories a plain user's PATH leaves out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// The program itself, to be run again as another process.
pub(crate) fn own_program() -> Result<PathBuf> {
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
pub(crate) fn scratch_directory(purpose: &str) -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::Builder::new()
        .prefix(&format!("atlas-{purpose}-"))
        .tempdir_in("/var/tmp")
        .context("making a temporary directory in /var/tmp")?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}
