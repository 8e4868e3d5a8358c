//! The files of `/proc` and `/sys`, under a root that tests choose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::DEVICES_MAX;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn of_this_machine() -> Self {
        Self {
            root: PathBuf::from("/"),
        }
    }

    #[cfg(test)]
    pub(crate) fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where a file is; `path` has no slash in front.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text without the white space around it; `None` if it cannot be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &str) -> io::Result<()> {
        fs::write(self.path(path), text)
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, sorted; none if it cannot be read. [`DEVICES_MAX`] at most.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.truncate(DEVICES_MAX);
        names
    }

    /// The last part of what a link points to: a device's driver, or its IOMMU group.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The number behind a name in a file of lines like `HugePages_Free:     128`.
    pub(crate) fn number(&self, path: impl AsRef<Path>, name: &str) -> Option<u64> {
        let text = self.read(path)?;
        let mut lines = text.lines();
        lines.find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix(':')?;
            value.split_whitespace().next()?.parse().ok()
        })
    }
}
