//! The filler's own folder: partial objects, and a lock against a second filler.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::partial;

/// The ids of stores that were filled from here, a line each.
const FILLED: &str = "filled";

/// The folder.
#[derive(Debug)]
pub(super) struct Staging {
    path: PathBuf,
    partial: PathBuf,
    /// Held as long as this process runs.
    _lock: File,
}

impl Staging {
    /// Makes it, and removes what cannot be gone on with.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let partial = path.join("partial");
        std::fs::create_dir_all(&partial).map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(format!("{}: another atlas-fill uses it", path.display()));
            }
            Err(error) => return Err(failed(error.into())),
        }
        partial::clean(&partial).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            _lock: lock,
        })
    }

    pub(super) fn partial_folder(&self) -> &Path {
        &self.partial
    }

    /// Whether a store was filled from here.
    pub(super) fn has_filled(&self, store: &str) -> bool {
        let text = std::fs::read_to_string(self.path.join(FILLED));
        text.is_ok_and(|text| text.lines().any(|line| line == store))
    }

    /// Remembers that a store is filled from here.
    pub(super) fn note_filled(&self, store: &str) -> Result<(), String> {
        if self.has_filled(store) {
            return Ok(());
        }
        let path = self.path.join(FILLED);
        let written = || -> io::Result<()> {
            let before = match std::fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                before => before?,
            };
            // Renamed into place: whatever ends the process, the old lines or all of them are there.
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(format!("{before}{store}\n").as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        written().map_err(|error| format!("{}: {error}", path.display()))
    }
}
