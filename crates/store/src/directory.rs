//! A directory of the host: opens beneath it, at once if the kernel has the path in its caches,
//! else in a thread.
//!
//! It refuses whatever is not a regular file beneath the directory. `O_NONBLOCK` keeps the open of
//! a FIFO or device from waiting for its other end.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::system::{self, Kind};
use crate::threads::Threads;
use crate::{
    Answer, Direct, DirectSupport, Opened, Opening, Source, StoreConfig, StoreError, StoreRefusal,
};

/// Most directory entries looked at, at start, for a file to try `O_DIRECT` with.
const PROBE_ENTRIES_MAX: usize = 1024;
/// Most times an open is tried again because a rename crossed it (`RESOLVE_BENEATH` answers
/// `EAGAIN` then).
const CROSSED_TRIES_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Directory {
    root: Arc<Root>,
    threads: Threads,
    /// Whether to ask the kernel's caches first.
    cached_lookups: bool,
    direct_support: DirectSupport,
    /// The name with its NUL, built anew for each open.
    scratch: Vec<u8>,
}

/// What the worker and its threads share: the directory, and how to open files in it.
#[derive(Debug)]
pub(crate) struct Root {
    descriptor: OwnedFd,
    direct: Direct,
}

/// How far a look-up may go for its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// The kernel's caches only; anything else is `EAGAIN`.
    Cached,
    /// Wherever the path leads, waiting for the disk.
    Waits,
}

impl Directory {
    pub(crate) fn open(path: &Path, config: &StoreConfig) -> Result<Self, StoreError> {
        let refuse = |error| StoreError::Directory {
            path: path.to_owned(),
            error,
        };
        // Opened for reading, not just as a path: a directory that cannot be read is a mistake.
        let descriptor: OwnedFd = fs::File::open(path).map_err(refuse)?.into();
        let (kind, _) = system::stat(descriptor.as_fd(), false).map_err(refuse)?;
        if kind != Kind::Directory {
            return Err(refuse(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let root = Arc::new(Root {
            descriptor,
            direct: config.direct,
        });
        let cached_lookups = config.cached_lookups && root.kernel_knows_cached_lookups()?;
        let direct_support = root.probe_direct(path)?;
        let threads = Threads::start(&root, config.threads, config.lookups_max)
            .map_err(StoreError::Threads)?;
        Ok(Self {
            root,
            threads,
            cached_lookups,
            direct_support,
            scratch: Vec::new(),
        })
    }

    pub(crate) fn open_object(&mut self, name: &str) -> Opening {
        if !self.cached_lookups {
            return Opening::Waits;
        }
        let name = c_string(&mut self.scratch, name);
        match self.root.open_object(name, Patience::Cached) {
            Ok(opened) => Opening::Done(Ok(opened)),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Opening::Waits,
            Err(error) => Opening::Done(Err(refusal_of(&error))),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.threads.has_room()
    }

    pub(crate) fn submit(&mut self, token: u64, name: &str) {
        self.threads.submit(token, name);
    }

    pub(crate) fn poll_answer(&mut self) -> Option<Answer> {
        self.threads.poll_answer()
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.threads.poll_fd()
    }

    #[cfg(test)]
    pub(crate) fn signals_due(&self) -> i64 {
        self.threads.signals_due()
    }

    pub(crate) fn direct_support(&self) -> DirectSupport {
        self.direct_support
    }
}

impl Root {
    /// Opens for as long as it takes. Called by the threads.
    pub(crate) fn open_object_waiting(
        &self,
        scratch: &mut Vec<u8>,
        name: &str,
    ) -> Result<Opened, StoreRefusal> {
        let name = c_string(scratch, name);
        for _ in 0..CROSSED_TRIES_MAX {
            match self.open_object(name, Patience::Waits) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                result => return result.map_err(|error| refusal_of(&error)),
            }
        }
        Err(StoreRefusal::Busy)
    }

    fn open_object(&self, name: &CStr, patience: Patience) -> io::Result<Opened> {
        let (file, direct) = match self.open_file(name, patience, libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (self.open_refused_directly(name, patience)?, false)
            }
            Err(error) => return Err(error),
        };
        let (kind, facts) = system::stat(file.as_fd(), direct)?;
        check_kind(kind)?;
        Ok(Opened {
            source: Source::Descriptor(file),
            facts,
        })
    }

    /// The file refused `O_DIRECT`. What is no regular file does that too, and is not to be
    /// opened before it is known to be one.
    fn open_refused_directly(&self, name: &CStr, patience: Patience) -> io::Result<OwnedFd> {
        let pointer = self.open_file(name, patience, libc::O_PATH)?;
        check_kind(system::stat(pointer.as_fd(), false)?.0)?;
        match self.direct {
            Direct::Required => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Direct::Preferred => self.open_file(name, patience, 0),
        }
    }

    fn open_file(
        &self,
        name: &CStr,
        patience: Patience,
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
        let resolve = match patience {
            Patience::Cached => beneath | libc::RESOLVE_CACHED,
            Patience::Waits => beneath,
        };
        system::openat2(self.descriptor.as_fd(), name, flags, resolve)
    }

    /// `RESOLVE_CACHED` came with Linux 5.12, six versions after `openat2`.
    fn kernel_knows_cached_lookups(&self) -> Result<bool, StoreError> {
        let open = |patience| self.open_file(c".", patience, libc::O_PATH);
        let _ = open(Patience::Waits).map_err(StoreError::OpenAt2)?;
        match open(Patience::Cached) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Tries `O_DIRECT` with the first regular file met, so that an operator hears at start what
    /// would otherwise be heard by every client.
    fn probe_direct(&self, path: &Path) -> Result<DirectSupport, StoreError> {
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
        match self.open_file(name, Patience::Waits, libc::O_DIRECT) {
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

/// The name as a C string. Names hold no NUL: [`crate::path::name_of`] sees to it.
fn c_string<'a>(scratch: &'a mut Vec<u8>, name: &str) -> &'a CStr {
    scratch.clear();
    scratch.extend_from_slice(name.as_bytes());
    scratch.push(0);
    CStr::from_bytes_with_nul(scratch).expect("invariant: a name holds no NUL")
}

fn refusal_of(error: &io::Error) -> StoreRefusal {
    match error.raw_os_error() {
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
    }
}
