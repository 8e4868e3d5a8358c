//! A directory that `atlas serve` serves.
//!
//! A copy gets its name by rename, when all of it is on the disk, so nobody ever sees a part of one. The server keeps an
//! object that it sends open: a copy that is unlinked or replaced meanwhile is sent to its end, and its space is free
//! when the last viewer has it. So nothing needs to be asked before a copy is removed.
//!
//! **The directory belongs to the filler**: what is in it and not wanted is removed. So it refuses one that has files and
//! was never its own, unless it is told to adopt it. What begins with a dot is never touched, nor served. It refuses to
//! follow symbolic links, and a second filler. Bounded by [`HELD_MAX`] files.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Inventory;
use super::staging::Staging;
use crate::fault::{Fault, Kind};
use crate::origin::is_name;
use crate::partial::Finished;
use crate::stamp::Stamp;

/// The filler's own folder in the directory: not served, since it begins with a dot.
const OWN: &str = ".atlas-fill";
/// Most files.
const HELD_MAX: usize = 20_000_000;
/// The nanoseconds that a file system is tried with.
const TRIED_NANOS: u32 = 123_456_789;

/// The directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
    staging: Staging,
}

impl Directory {
    /// Opens it; `adopt`: also if it has files that are not the filler's.
    ///
    /// # Errors
    /// Why it cannot be the target, and what to do.
    pub fn open(path: &Path, adopt: bool) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("target {shown}: {error}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let own = path.join(OWN);
        if !own.is_dir() {
            let mut entries = std::fs::read_dir(path).map_err(failed)?;
            let is_other = |entry: &io::Result<std::fs::DirEntry>| {
                entry
                    .as_ref()
                    .is_ok_and(|it| !it.file_name().as_bytes().starts_with(b"."))
            };
            // A file system's own folder is in every new one.
            let is_used = entries.any(|entry| is_other(&entry) && !is_lost_and_found(&entry));
            if is_used && !adopt {
                return Err(format!(
                    "target {shown}: it has files that atlas-fill did not put there, and would remove what the origin \
                     does not have; name an empty directory, or say --adopt once"
                ));
            }
        }
        let staging = Staging::open(&own).map_err(|problem| format!("target {problem}"))?;
        let directory = Self {
            path: path.to_owned(),
            root,
            staging,
        };
        directory.check_times()?;
        Ok(directory)
    }

    /// What is in a directory, without touching it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(path: &Path) -> Result<Inventory, String> {
        inventory_of(path).map_err(|fault| format!("target {fault}"))
    }

    /// The folder of partial objects.
    #[must_use]
    pub fn partial_folder(&self) -> &Path {
        self.staging.partial_folder()
    }

    /// Bytes that the file system has left for this user.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        free_bytes_at(&self.path)
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn inventory(&self) -> Result<Inventory, Fault> {
        inventory_of(&self.path)
    }

    /// Whether a file can have this name, before its content is fetched.
    ///
    /// # Errors
    /// A folder is in its place or a file in its folder's, or this user may not write there.
    pub fn check(&self, name: &str) -> Result<(), Fault> {
        let failed = |error: Errno| fault(name, error);
        if self.open_folder(name).is_ok() {
            return Err(failed(Errno::ISDIR));
        }
        let mut folder = name;
        let parent = loop {
            folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
            match self.open_folder(folder) {
                // It will be made in the one above.
                Err(Errno::NOENT) if !folder.is_empty() => {}
                found => break found.map_err(failed)?,
            }
        };
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&parent, ".", access, AtFlags::EACCESS).map_err(failed)
    }

    /// Gives a copy its name, in place of an older one. It is there after a power cut, too.
    ///
    /// # Errors
    /// What the kernel said; a name that cannot be.
    pub fn place(&self, finished: Finished, name: &str) -> Result<(), Fault> {
        let placed = self.rename(&finished.path, name);
        match placed {
            Ok(()) => {
                finished.placed();
                Ok(())
            }
            Err(fault) => {
                // What this machine failed at may succeed the next time.
                if fault.kind != Kind::Local {
                    finished.discard();
                }
                Err(fault)
            }
        }
    }

    fn rename(&self, from: &Path, name: &str) -> Result<(), Fault> {
        let failed = |error: Errno| fault(name, error);
        let (folder, leaf) = name.rsplit_once('/').unwrap_or(("", name));
        let parent = self.make_folder(folder).map_err(failed)?;
        rustix::fs::renameat(CWD, from, &parent, leaf).map_err(failed)?;
        rustix::fs::fsync(&parent).map_err(failed)
    }

    /// Removes a copy, and folders that are empty then. It is no error if it is not there.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn remove(&self, name: &str) -> Result<(), Fault> {
        let failed = |error: Errno| fault(name, error);
        let (mut folder, mut leaf) = name.rsplit_once('/').unwrap_or(("", name));
        let mut flags = AtFlags::empty();
        loop {
            let parent = match self.open_folder(folder) {
                Err(Errno::NOENT) => return Ok(()),
                parent => parent.map_err(failed)?,
            };
            match rustix::fs::unlinkat(&parent, leaf, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                // A folder with something in it stays.
                Err(_) if flags == AtFlags::REMOVEDIR => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
            if folder.is_empty() {
                return Ok(());
            }
            (folder, leaf) = folder.rsplit_once('/').unwrap_or(("", folder));
            flags = AtFlags::REMOVEDIR;
        }
    }

    /// The folder of a name, made if it is not there. New ones are durable.
    fn make_folder(&self, folder: &str) -> Result<OwnedFd, Errno> {
        match self.open_folder(folder) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let (parent, leaf) = folder.rsplit_once('/').unwrap_or(("", folder));
        let parent = self.make_folder(parent)?;
        match rustix::fs::mkdirat(&parent, leaf, Mode::from_raw_mode(0o755)) {
            Ok(()) => rustix::fs::fsync(&parent)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        self.open_folder(folder)
    }

    /// Opens a folder beneath the root, by no link.
    fn open_folder(&self, folder: &str) -> Result<OwnedFd, Errno> {
        let folder = if folder.is_empty() { "." } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, folder, flags, Mode::empty(), resolve)
    }

    /// # Errors
    /// The file system does not keep nanoseconds, by which copies say of which version they are.
    fn check_times(&self) -> Result<(), String> {
        let shown = self.path.display();
        let failed = |error: io::Error| format!("target {shown}: {error}");
        let path = self.partial_folder().join("times");
        let file = File::create(&path).map_err(failed)?;
        let time = rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: TRIED_NANOS.into(),
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::futimens(&file, &times).map_err(|error| failed(error.into()))?;
        let kept = file.metadata().map_err(failed)?.mtime_nsec();
        std::fs::remove_file(&path).map_err(failed)?;
        if kept == i64::from(TRIED_NANOS) {
            return Ok(());
        }
        Err(format!(
            "target {shown}: its file system does not keep nanoseconds of modification times, by which copies say of which \
             version they are; use ext4 (with inodes of 256 bytes), XFS, Btrfs or ZFS"
        ))
    }
}

/// Bytes that the file system of a directory has left for this user.
pub(super) fn free_bytes_at(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What is in a directory, the oldest first.
fn inventory_of(root: &Path) -> Result<Inventory, Fault> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        let failed = |error: io::Error| Fault::of_io(&path.display().to_string(), &error);
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file_name = entry.file_name();
            let Some(part) = file_name.to_str() else {
                continue;
            };
            let name = format!("{folder}{part}");
            if !is_name(&name) {
                continue;
            }
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if metadata.is_dir() {
                folders.push(name + "/");
            } else if metadata.is_file() {
                let stamp = Stamp {
                    size_bytes: metadata.len(),
                    seconds: metadata.mtime(),
                    nanos: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
                };
                found.push(((metadata.ctime(), metadata.ctime_nsec()), name, stamp));
            }
            if found.len() > HELD_MAX {
                let text = format!("{}: more than {HELD_MAX} files", root.display());
                return Err(Fault::new(Kind::Local, text));
            }
        }
    }
    found.sort_unstable();
    let found = found
        .into_iter()
        .map(|(_, name, stamp)| (name.into(), stamp));
    Ok(found.collect())
}

fn is_lost_and_found(entry: &io::Result<std::fs::DirEntry>) -> bool {
    entry
        .as_ref()
        .is_ok_and(|it| it.file_name() == OsStr::new("lost+found"))
}

fn fault(name: &str, error: Errno) -> Fault {
    match error {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let text = format!(
                "{name}: no file can be made there: {error}; its folder must belong to the user that atlas-fill runs as"
            );
            Fault::new(Kind::Name, text)
        }
        Errno::ISDIR | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTEMPTY => {
            let text = format!("{name}: a file cannot have this name here: {error}");
            Fault::new(Kind::Name, text)
        }
        error => Fault::of_io(name, &error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::partial::Partial;
    use crate::plan::Name;

    fn put(directory: &Directory, name: &str, content: &[u8]) -> Result<Stamp, Fault> {
        let size_bytes = u64::try_from(content.len()).unwrap();
        let stamp = Stamp::new(size_bytes, 1_700_000_000, Some(name));
        let folder = directory.partial_folder();
        let mut partial = Partial::create(folder, name, stamp, 1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&*partial.file(), content, 0).unwrap();
        if !content.is_empty() {
            partial.mark_done(0).unwrap();
        }
        directory
            .place(partial.finish().unwrap(), name)
            .map(|()| stamp)
    }

    #[test]
    fn a_copy_says_itself_of_which_version_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), false).unwrap();
        let mut stamps = Vec::new();
        for name in ["a/b/c", "a/d", "e"] {
            stamps.push((
                Name::from(name),
                put(&directory, name, name.as_bytes()).unwrap(),
            ));
        }
        stamps.push(("empty".into(), put(&directory, "empty", b"").unwrap()));
        std::fs::write(folder.path().join("a/.hidden"), "x").unwrap();
        symlink("d", folder.path().join("a/link")).unwrap();
        let mut found = directory.inventory().unwrap();
        found.sort();
        assert_eq!(found, stamps);
        assert_eq!(
            std::fs::read_dir(directory.partial_folder())
                .unwrap()
                .count(),
            0
        );
        // The folders go with their last file, and not before.
        directory.remove("a/b/c").unwrap();
        directory.remove("a/b/c").unwrap();
        assert!(!folder.path().join("a/b").exists() && folder.path().join("a").exists());
    }

    #[test]
    fn a_file_where_a_folder_is_wanted_is_an_error_of_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), false).unwrap();
        put(&directory, "a", b"x").unwrap();
        put(&directory, "b/c", b"x").unwrap();
        for name in ["a/b", "a/b/c/d", "b"] {
            let fault = put(&directory, name, b"y").unwrap_err();
            assert_eq!(fault.kind, Kind::Name, "{fault}");
            assert_eq!(directory.check(name), Err(fault));
        }
        for name in ["a", "c", "b/c", "b/d", "b/e/f/g"] {
            assert_eq!(directory.check(name), Ok(()), "{name}");
        }
        assert_eq!(
            std::fs::read_dir(directory.partial_folder())
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn a_folder_of_another_user_is_an_error_of_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path(), false).unwrap();
        for error in [Errno::ACCESS, Errno::PERM, Errno::ROFS] {
            assert_eq!(fault("a", error).kind, Kind::Name);
        }
        assert_eq!(fault("a", Errno::IO).kind, Kind::Local);
        for (name, mode) in [("", 0o755), ("a", 0o555), ("b", 0o777)] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let check = || {
            // Root may write anywhere, so the thread is nobody.
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
            }
            ["a/c", "a/c/d", "b/c", "b/c/d"].map(|name| directory.check(name))
        };
        let checked = std::thread::scope(|scope| scope.spawn(check).join().unwrap());
        let kinds = checked.map(|it| it.err().map(|fault| fault.kind));
        assert_eq!(kinds, [Some(Kind::Name), Some(Kind::Name), None, None]);
    }

    #[test]
    fn no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("b"), "mine").unwrap();
        let directory = Directory::open(folder.path(), false).unwrap();
        symlink(outside.path(), folder.path().join("a")).unwrap();
        let fault = put(&directory, "a/b", b"y").unwrap_err();
        assert_eq!(fault.kind, Kind::Name, "{fault}");
        assert!(directory.remove("a/b").is_err());
        let left = std::fs::read_to_string(outside.path().join("b")).unwrap();
        assert_eq!(left, "mine");
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_until_it_is_adopted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lost+found")).unwrap();
        drop(Directory::open(folder.path(), false).unwrap());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "x").unwrap();
        let error = Directory::open(folder.path(), false).unwrap_err();
        assert!(error.contains("--adopt"), "{error}");
        drop(Directory::open(folder.path(), true).unwrap());
        let first = Directory::open(folder.path(), false).unwrap();
        let error = Directory::open(folder.path(), false).unwrap_err();
        assert!(error.contains("another atlas-fill"), "{error}");
        drop(first);
        assert!(Directory::open(folder.path(), false).is_ok());
    }
}
