//! The files of `/proc` and `/sys`, under a root that tests choose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// What a test has the kernel do after a write to this path.
    #[cfg(test)]
    kernel: Option<fn(&Tree, &Path)>,
}

impl Tree {
    pub(crate) fn of_this_machine() -> Self {
        Self {
            root: PathBuf::from("/"),
            #[cfg(test)]
            kernel: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            kernel: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_kernel(self, kernel: fn(&Tree, &Path)) -> Self {
        Self {
            kernel: Some(kernel),
            ..self
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
        let path = path.as_ref();
        fs::write(self.path(path), text)?;
        #[cfg(test)]
        if let Some(kernel) = self.kernel {
            kernel(self, path);
        }
        Ok(())
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// All names in a directory, sorted; none if it cannot be read, so that a check that must see all of them takes
    /// [`Self::list`].
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        self.list(path).unwrap_or_default()
    }

    /// All names in a directory, sorted; none if there is no such directory.
    ///
    /// # Errors
    /// It cannot be read, or not to its end. The text has its path.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>, String> {
        let path = self.path(path);
        let read = || -> io::Result<Vec<String>> {
            let name = |entry: io::Result<fs::DirEntry>| {
                Ok(entry?.file_name().to_string_lossy().into_owned())
            };
            fs::read_dir(&path)?.map(name).collect()
        };
        let mut names = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| format!("{}: {error}", path.display()))?,
        };
        names.sort();
        Ok(names)
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
