//! Where copies are kept: what is there, and how a copy gets its name or loses it.

mod directory;
mod raw;
mod staging;

use std::path::Path;
use std::sync::Arc;

use crate::fault::Fault;
use crate::partial::{self, Finished};
use crate::plan::Name;
use crate::stamp::Stamp;

pub use directory::Directory;
use directory::free_bytes_at;
pub use raw::RawTarget;

/// Either of them.
#[derive(Debug)]
pub enum Target {
    /// A directory of files.
    Directory(Directory),
    /// A raw store.
    Raw(RawTarget),
}

/// What is there, the oldest first.
pub type Inventory = Vec<(Name, Stamp)>;

/// Names, and what came of each.
pub type Removed = Vec<(Name, Result<(), Fault>)>;

impl Target {
    /// Opens a directory, or devices or an image with a raw store; `staging` is for the latter. `tell` gets why it has to
    /// wait.
    ///
    /// # Errors
    /// Why it cannot be the target, and what to do.
    pub fn open(
        path: &Path,
        staging: Option<&Path>,
        adopt: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        if path.is_dir() {
            return Directory::open(path, adopt).map(Self::Directory);
        }
        let staging = staging.ok_or_else(|| {
            format!(
                "target {}: no directory; for a raw store say where objects are until they are whole (staging)",
                path.display()
            )
        })?;
        RawTarget::open(path, staging, adopt, tell).map(Self::Raw)
    }

    /// What is there, and the bytes that are left if that is known, without touching it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(path: &Path) -> Result<(Inventory, Option<u64>), String> {
        if path.is_dir() {
            return Ok((Directory::look(path)?, free_bytes_at(path)));
        }
        let (held, free_bytes) = RawTarget::look(path)?;
        Ok((held, Some(free_bytes)))
    }

    /// The folder of partial objects.
    #[must_use]
    pub fn partial_folder(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory.partial_folder(),
            Self::Raw(raw) => raw.partial_folder(),
        }
    }

    /// Bytes that are left, if that is known.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Directory(directory) => directory.free_bytes(),
            Self::Raw(raw) => Some(raw.free_bytes()),
        }
    }

    /// Bytes of the target that an object in flight takes already.
    #[must_use]
    pub fn partial_bytes(&self, name: &str) -> u64 {
        match self {
            Self::Directory(directory) => {
                partial::allocated_bytes(directory.partial_folder(), name)
            }
            // Its partial objects are on a file system.
            Self::Raw(_) => 0,
        }
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn inventory(&self) -> Result<Inventory, Fault> {
        match self {
            Self::Directory(directory) => directory.inventory(),
            Self::Raw(raw) => raw.inventory(),
        }
    }

    /// Whether a copy of this name and size may have a place, before it is fetched.
    ///
    /// # Errors
    /// Why it has none.
    pub fn check(&self, name: &str, size_bytes: u64) -> Result<(), Fault> {
        match self {
            Self::Directory(directory) => directory.check(name),
            Self::Raw(raw) => raw.check(name, size_bytes),
        }
    }

    /// Gives a copy its name, in place of an older one. It is there after a power cut, too.
    ///
    /// # Errors
    /// Why it has none.
    pub fn place(&self, finished: Finished, name: &str) -> Result<(), Fault> {
        match self {
            Self::Directory(directory) => directory.place(finished, name),
            Self::Raw(raw) => raw.place(finished, name),
        }
    }

    /// Removes copies. It is no error if one is not there.
    pub fn remove(&self, names: Vec<Name>) -> Removed {
        match self {
            Self::Directory(directory) => {
                let removed = |name: Name| {
                    let removed = directory.remove(&name);
                    (name, removed)
                };
                names.into_iter().map(removed).collect()
            }
            Self::Raw(raw) => {
                let removed = raw.remove(&names);
                let names = names.into_iter();
                names
                    .map(|name| (Arc::clone(&name), removed.clone()))
                    .collect()
            }
        }
    }
}
