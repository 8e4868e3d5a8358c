//! Whether files can be read without the page cache, tried at start with the first file of the directory
//! and of each mount beneath it, so that a file system without `O_DIRECT` is reported then and not by the
//! failure of every request.
//!
//! It refuses to ask mounts that are not local, and what is beneath them: they may hang. Nor is a mount
//! tried that comes later; its files are refused one by one ([`crate::StoreRefusal::NotDirect`]). Bounds:
//! [`PROBE_ENTRIES_MAX`] entries for each mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::root::Root;
use crate::{DirectSupport, StoreError};

/// Most directory entries read, of each mount, to find a file to try `O_DIRECT` with.
const PROBE_ENTRIES_MAX: usize = 1024;

/// What was found out about `O_DIRECT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Probed {
    /// Of the first file in the directory.
    pub(crate) support: DirectSupport,
    /// Mounts beneath it whose first file was refused.
    pub(crate) refusing_mounts: Vec<PathBuf>,
}

/// Tries `O_DIRECT` in the directory that `path` leads to, which is `root`.
pub(crate) fn probe(root: &Root, path: &Path) -> Result<Probed, StoreError> {
    let support = match try_first_file(root, path, path) {
        None => DirectSupport::Unknown,
        Some((_, true)) => DirectSupport::Direct,
        Some((file, false)) if root.is_direct_required() => {
            return Err(StoreError::NotDirect { path: file });
        }
        Some((_, false)) => DirectSupport::Refused,
    };
    let points = root.mounts().local_beneath();
    let points = points.map(|name| path.join(OsStr::from_bytes(name)));
    let refuses = |point: &PathBuf| matches!(try_first_file(root, path, point), Some((_, false)));
    Ok(Probed {
        support,
        refusing_mounts: points.filter(refuses).collect(),
    })
}

/// The first file in the mount of `directory`, which is `path` or beneath it, and whether it was opened with
/// `O_DIRECT`; `None` if there is none, or that was not found out.
fn try_first_file(root: &Root, path: &Path, directory: &Path) -> Option<(PathBuf, bool)> {
    let name_of = |inner: &Path| Some(inner.strip_prefix(path).ok()?.as_os_str().to_owned());
    let is_mount =
        |inner: &Path| name_of(inner).is_none_or(|name| root.mounts().is_point(name.as_bytes()));
    let file = first_file_in(directory, is_mount)?;
    match root.try_direct(name_of(&file)?.as_bytes()) {
        Ok(()) => Some((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some((file, false)),
        // No permission, or removed meanwhile: inconclusive.
        Err(_) => None,
    }
}

/// A regular file among the first [`PROBE_ENTRIES_MAX`] entries, in the mount that the directory is in.
fn first_file_in(directory: &Path, is_mount: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut directories = vec![directory.to_owned()];
    let mut entries_left = PROBE_ENTRIES_MAX;
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            entries_left = entries_left.checked_sub(1)?;
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_file() => return Some(path),
                Ok(kind) if kind.is_dir() && !is_mount(&path) => directories.push(path),
                _ => {}
            }
        }
    }
    None
}
