//! The served directory as the worker and its threads share it: how files in it are opened.
//!
//! It refuses whatever is not a regular file beneath the directory. `O_NONBLOCK` keeps the open of
//! a FIFO or device from waiting for its other end.
//!
//! Symbolic links are followed as the host follows them, and what counts is where they end: a file
//! that lies beneath the directory is served, any other is refused. The kernel sees to the links
//! that never leave the directory (`RESOLVE_BENEATH`). One that leaves it, by `..` or because it is
//! absolute, is followed in a thread with `O_PATH`, which touches nothing at its end; the kernel
//! is asked for the path of that end, and if it lies beneath the directory, the file is opened by
//! it, beneath the directory and without links, and must be the same. So whatever is renamed
//! meanwhile, only a file beneath the directory is ever opened.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mounts::{Mounts, name_beneath};
use crate::system::{self, Kind};
use crate::{Direct, DirectSupport, Links, Opened, Source, StoreError, StoreRefusal};

/// Most directory entries looked at, at start, for a file to try `O_DIRECT` with.
const PROBE_ENTRIES_MAX: usize = 1024;
/// Most times an open is tried again because a rename crossed it (`RESOLVE_BENEATH` answers
/// `EAGAIN` then).
const CROSSED_TRIES_MAX: usize = 8;

/// The directory, and what is mounted in it.
#[derive(Debug)]
pub(crate) struct Root {
    descriptor: Arc<OwnedFd>,
    direct: Direct,
    mounts: Mounts,
}

/// How far a look-up may go for its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The kernel's caches only, and local file systems only. The worker's.
    Cached,
    /// The mount that the directory is in, waiting for its disk.
    OwnMount,
    /// Any mount beneath the directory.
    Beneath,
    /// Anywhere, as long as it ends beneath the directory.
    Links,
}

/// Why a way did not lead to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Miss {
    Refused(StoreRefusal),
    /// It leads out of what [`Way`] allows: to be tried by [`Way::Links`].
    Elsewhere,
}

impl Root {
    pub(crate) fn open(path: &Path, direct: Direct) -> Result<Self, StoreError> {
        let refuse = |error| StoreError::Directory {
            path: path.to_owned(),
            error,
        };
        // Opened for reading, not just as a path: a directory that cannot be read is a mistake.
        let descriptor: OwnedFd = fs::File::open(path).map_err(refuse)?.into();
        let status = system::stat(descriptor.as_fd(), false).map_err(refuse)?;
        if status.kind != Kind::Directory {
            return Err(refuse(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let mounts = read_mounts(descriptor.as_fd());
        Ok(Self {
            descriptor: Arc::new(descriptor),
            direct,
            mounts,
        })
    }

    pub(crate) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Opens for as long as it takes. Called by the threads.
    pub(crate) fn open_object_waiting(
        &self,
        scratch: &mut Vec<u8>,
        name: &str,
        way: Way,
    ) -> Result<Opened, Miss> {
        let name = c_string(scratch, name.as_bytes());
        for _ in 0..CROSSED_TRIES_MAX {
            match self.open_object(name, way) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                result => return result.map_err(|error| miss_of(&error, way)),
            }
        }
        Err(Miss::Refused(StoreRefusal::Busy))
    }

    pub(crate) fn open_object(&self, name: &CStr, way: Way) -> io::Result<Opened> {
        match self.open_in_place(name, way) {
            Err(error) if way == Way::Links && error.raw_os_error() == Some(libc::EXDEV) => {
                self.open_at_end_of_links(name)
            }
            result => result,
        }
    }

    /// First as if there were no symbolic links: of what is found so, the name is the path.
    fn open_in_place(&self, name: &CStr, way: Way) -> io::Result<Opened> {
        match self.open_with(name, way, Links::Refused) {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                self.open_with(name, way, Links::Followed)
            }
            result => result,
        }
    }

    fn open_with(&self, name: &CStr, way: Way, links: Links) -> io::Result<Opened> {
        let (file, direct) = match self.open_file(name, way, links, libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (self.open_refused_directly(name, way, links)?, false)
            }
            Err(error) => return Err(error),
        };
        let status = system::stat(file.as_fd(), direct)?;
        check_kind(status.kind)?;
        Ok(Opened {
            source: Source::File {
                descriptor: file,
                attributes: status.attributes,
                links,
            },
            facts: status.facts,
        })
    }

    /// The file refused `O_DIRECT`. What is no regular file does that too, and is not to be
    /// opened before it is known to be one.
    fn open_refused_directly(&self, name: &CStr, way: Way, links: Links) -> io::Result<OwnedFd> {
        let pointer = self.open_file(name, way, links, libc::O_PATH)?;
        check_kind(system::stat(pointer.as_fd(), false)?.kind)?;
        match self.direct {
            Direct::Required => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Direct::Preferred => self.open_file(name, way, links, 0),
        }
    }

    /// A path that leaves the directory on its way. `EXDEV` unless it ends beneath it; whether
    /// there is anything outside is not told.
    fn open_at_end_of_links(&self, name: &CStr) -> io::Result<Opened> {
        let outside = || io::Error::from_raw_os_error(libc::EXDEV);
        let flags = libc::O_CLOEXEC | libc::O_PATH;
        let end = system::openat2(
            self.descriptor.as_fd(),
            name,
            flags,
            libc::RESOLVE_NO_MAGICLINKS,
        )
        .map_err(|_| outside())?;
        let path = path_of(end.as_fd())?;
        let root = path_of(self.descriptor.as_fd())?;
        let inner = name_beneath(root.as_os_str().as_bytes(), path.as_os_str().as_bytes());
        let inner = inner.ok_or_else(outside)?;
        if inner.is_empty() {
            // The directory itself.
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        let mut scratch = Vec::new();
        let inner = c_string(&mut scratch, inner);
        let opened = self.open_with(inner, Way::Beneath, Links::Followed)?;
        let facts = system::stat(end.as_fd(), false)?.facts;
        if (facts.device, facts.inode) != (opened.facts.device, opened.facts.inode) {
            // Something was renamed between the two opens.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(opened)
    }

    fn open_file(
        &self,
        name: &CStr,
        way: Way,
        links: Links,
        more_flags: libc::c_int,
    ) -> io::Result<OwnedFd> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // With `O_PATH` the kernel accepts few other flags.
        let flags = if more_flags == libc::O_PATH {
            libc::O_CLOEXEC
        } else {
            flags
        } | more_flags;
        let beneath = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
        let resolve = match way {
            Way::Cached if self.mounts.are_all_local() => beneath | libc::RESOLVE_CACHED,
            Way::Cached => beneath | libc::RESOLVE_CACHED | libc::RESOLVE_NO_XDEV,
            Way::OwnMount => beneath | libc::RESOLVE_NO_XDEV,
            Way::Beneath | Way::Links => beneath,
        };
        let resolve = match links {
            Links::Refused => resolve | libc::RESOLVE_NO_SYMLINKS,
            Links::Followed => resolve,
        };
        system::openat2(self.descriptor.as_fd(), name, flags, resolve)
    }

    /// `RESOLVE_CACHED` came with Linux 5.12, six versions after `openat2`.
    pub(crate) fn kernel_knows_cached_lookups(&self) -> Result<bool, StoreError> {
        let open = |way| self.open_file(c".", way, Links::Followed, libc::O_PATH);
        let _ = open(Way::Beneath).map_err(StoreError::OpenAt2)?;
        match open(Way::Cached) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Tries `O_DIRECT` with the first regular file met, so that an operator hears at start what
    /// would otherwise be heard by every client.
    pub(crate) fn probe_direct(&self, path: &Path) -> Result<DirectSupport, StoreError> {
        let Some(file) = first_file_beneath(path) else {
            return Ok(DirectSupport::Unknown);
        };
        let Some(name) = file.strip_prefix(path).ok().and_then(Path::to_str) else {
            return Ok(DirectSupport::Unknown);
        };
        let name = format!("{name}\0");
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            return Ok(DirectSupport::Unknown);
        };
        match self.open_file(name, Way::Beneath, Links::Followed, libc::O_DIRECT) {
            Ok(_) => Ok(DirectSupport::Direct),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match self.direct {
                Direct::Required => Err(StoreError::NotDirect { path: file }),
                Direct::Preferred => Ok(DirectSupport::Refused),
            },
            // No permission, or gone: it says nothing about the others.
            Err(_) => Ok(DirectSupport::Unknown),
        }
    }
}

/// The root that look-ups use from now on. It is opened again, and its mounts are read again, by
/// threads; the worker sees by a number that it has changed.
#[derive(Debug)]
pub(crate) struct CurrentRoot {
    /// As the operator named it.
    path: PathBuf,
    root: Mutex<Arc<Root>>,
    version: AtomicU64,
}

impl CurrentRoot {
    pub(crate) fn new(path: &Path, root: Root) -> Self {
        Self {
            path: path.to_owned(),
            root: Mutex::new(Arc::new(root)),
            version: AtomicU64::new(0),
        }
    }

    /// Changes with the root.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self) -> Arc<Root> {
        Arc::clone(&self.lock())
    }

    /// The root, unless a thread is just about to replace it: the worker does not wait for that.
    pub(crate) fn try_get(&self) -> Option<Arc<Root>> {
        self.root.try_lock().ok().map(|root| Arc::clone(&root))
    }

    /// Opens the path again. If that fails, the old root stays.
    pub(crate) fn reopen(&self) -> Result<(), StoreError> {
        let direct = self.get().direct;
        let root = Root::open(&self.path, direct)?;
        self.set(&mut self.lock(), root);
        Ok(())
    }

    /// Reads again what is mounted where.
    pub(crate) fn read_mounts(&self) {
        // Under the lock, or this could put back a root that was replaced meanwhile.
        let mut current = self.lock();
        let mounts = read_mounts(current.descriptor.as_fd());
        if mounts != current.mounts {
            let root = Root {
                descriptor: Arc::clone(&current.descriptor),
                direct: current.direct,
                mounts,
            };
            self.set(&mut current, root);
        }
    }

    fn set(&self, current: &mut Arc<Root>, root: Root) {
        *current = Arc::new(root);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Root>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is mounted in and beneath an open directory; without `/proc`, nobody knows.
fn read_mounts(directory: BorrowedFd<'_>) -> Mounts {
    path_of(directory).map_or(Mounts::UNKNOWN, |path| Mounts::read(&path))
}

/// The path that the kernel gives an open file, without symbolic links. It asks no file system.
fn path_of(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A regular file among the first [`PROBE_ENTRIES_MAX`] entries, wherever it is.
fn first_file_beneath(path: &Path) -> Option<PathBuf> {
    let mut directories = vec![path.to_owned()];
    let mut entries_left = PROBE_ENTRIES_MAX;
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            entries_left = entries_left.checked_sub(1)?;
            match entry.file_type() {
                Ok(kind) if kind.is_file() => return Some(entry.path()),
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                _ => {}
            }
        }
    }
    None
}

/// `EISDIR` for a directory, and `EACCES` for what must not be served.
fn check_kind(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Kind::Other => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

/// The name as a C string. Names hold no NUL: [`crate::path::name_of`] sees to it, and so does the
/// kernel for those that it gave.
pub(crate) fn c_string<'a>(scratch: &'a mut Vec<u8>, name: &[u8]) -> &'a CStr {
    scratch.clear();
    scratch.extend_from_slice(name);
    scratch.push(0);
    CStr::from_bytes_with_nul(scratch).expect("invariant: a name holds no NUL")
}

/// What an error of the kernel means for a look-up that went this way.
pub(crate) fn miss_of(error: &io::Error, way: Way) -> Miss {
    Miss::Refused(match error.raw_os_error() {
        Some(libc::EXDEV) if way != Way::Links => return Miss::Elsewhere,
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => StoreRefusal::NotFound,
        Some(libc::EISDIR) => StoreRefusal::Directory,
        // EXDEV: out of the directory. ELOOP: too many links, or a magic one. ENXIO and ENODEV:
        // a socket, or a device without a driver.
        Some(
            libc::EACCES | libc::EPERM | libc::EXDEV | libc::ELOOP | libc::ENXIO | libc::ENODEV,
        ) => StoreRefusal::Forbidden,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => StoreRefusal::Busy,
        Some(libc::EINVAL) => StoreRefusal::NotDirect,
        Some(errno) => StoreRefusal::Failed(errno),
        None => StoreRefusal::Failed(libc::EIO),
    })
}
