//! The served directory, shared by the worker and its threads: how files in it are opened.
//!
//! It refuses everything but regular files beneath the directory. `O_NONBLOCK` keeps the open of a
//! FIFO or device from waiting for its other end.
//!
//! Symbolic links are followed as the host follows them. A target beneath the directory is served,
//! any other is refused. The kernel checks links that never leave the directory
//! (`RESOLVE_BENEATH`). A link that leaves it, by `..` or because it is absolute, is followed in a
//! thread, in three steps:
//!
//! 1. Open the target with `O_PATH`, which neither reads nor blocks on it.
//! 2. Ask the kernel for the target's path, and refuse it unless it lies beneath the directory.
//! 3. Open that path with `RESOLVE_BENEATH`, and refuse the file unless it is the same inode.
//!
//! So only a file beneath the directory is ever opened, whatever is renamed meanwhile.
//!
//! A regular file that was opened and is not returned is put on a list of unneeded descriptors: if it
//! was deleted meanwhile, its last close frees its space, which the worker must not wait for.
//!
//! Files are opened with `O_NOATIME`, which spares each read the question whether to note its time. It
//! needs the file's owner or `CAP_FOWNER`. The first file that the kernel refuses so ends the attempts,
//! or each file of another owner would be opened twice.
//!
//! Bounds: [`RENAME_RETRIES_MAX`] attempts for each open.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fixed;
use crate::mounts::{Mounts, name_beneath};
use crate::path_watch::PathAnswer;
use crate::system::{self, FileId, Kind, Status};
use crate::{DeviceId, Direct, Metadata, Opened, Source, StoreError, StoreRefusal, Symlinks};

/// Most attempts of an open that a concurrent rename makes fail (`RESOLVE_BENEATH` returns `EAGAIN`
/// then).
const RENAME_RETRIES_MAX: usize = 8;

/// The directory, and the mounts beneath it.
#[derive(Debug)]
pub(crate) struct Root {
    descriptor: Arc<OwnedFd>,
    id: FileId,
    direct: Direct,
    mounts: Mounts,
    /// No file was refused with `O_NOATIME` so far.
    no_access_time: AtomicBool,
}

/// Which mounts and caches a path may be resolved with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolve {
    /// The kernel's caches of local file systems only: never blocks. For the worker.
    CachedOnly,
    /// The mount that the directory is in. May block, like the next two.
    OwnMount,
    /// Any mount beneath the directory.
    Beneath,
    /// Any mount, also outside of the directory, as long as the path ends beneath the directory.
    AnyMount,
    /// The same, in the directory that the served path leads to now.
    Anew,
}

impl Resolve {
    /// Whether a link may leave the directory, as long as it ends there.
    const fn may_leave(self) -> bool {
        matches!(self, Self::AnyMount | Self::Anew)
    }
}

/// What a name leads to, which is not read. Its last close may have to free its space.
#[derive(Debug)]
pub(crate) struct Pointer {
    descriptor: OwnedFd,
    id: FileId,
}

impl Pointer {
    /// The descriptor, for a thread to close, unless the file is open by another, too.
    pub(crate) fn into_unneeded(self, open: Option<&Metadata>) -> Option<OwnedFd> {
        (open.map(FileId::of) != Some(self.id)).then_some(self.descriptor)
    }
}

/// What the kernel's caches say of a name that an object was opened by.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It leads to that object, unchanged.
    Same,
    /// To another file, or the file has changed.
    Other(Pointer),
}

/// Why an open failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenError {
    Refused(StoreRefusal),
    /// The path leaves what [`Resolve`] allows: to be tried with [`Resolve::AnyMount`].
    OutOfScope,
}

impl Root {
    pub(crate) fn open(path: &Path, direct: Direct) -> Result<Self, StoreError> {
        let refuse = |error| StoreError::Directory {
            path: path.to_owned(),
            error,
        };
        // For reading, not with `O_PATH`: a directory that cannot be read is a configuration error.
        let descriptor: OwnedFd = fs::File::open(path).map_err(refuse)?.into();
        let status = system::stat(descriptor.as_fd(), false).map_err(refuse)?;
        if status.kind != Kind::Directory {
            return Err(refuse(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let mounts = read_mounts(descriptor.as_fd());
        Ok(Self {
            descriptor: Arc::new(descriptor),
            id: FileId::of(&status.metadata),
            direct,
            mounts,
            no_access_time: AtomicBool::new(true),
        })
    }

    /// The descriptor of the directory, unless another root has it, too.
    pub(crate) fn into_descriptor(self) -> Option<OwnedFd> {
        Arc::into_inner(self.descriptor)
    }

    pub(crate) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Asks the kernel's caches whether a name leads to an open object still. Opens nothing, so it costs no
    /// more than the walk, and no program that watches the file hears of it. The descriptor that it needs
    /// may be closed here if the file is the object's, which holds it; another is returned.
    pub(crate) fn ask(
        &self,
        name: &CStr,
        object: &Metadata,
        unneeded: &mut Vec<OwnedFd>,
    ) -> io::Result<Asked> {
        let (resolve, symlinks) = (Resolve::CachedOnly, Symlinks::Followed);
        let descriptor = self.open_file(name, resolve, symlinks, libc::O_PATH)?;
        match system::stat(descriptor.as_fd(), object.direct) {
            Ok(status) if status.metadata == *object => Ok(Asked::Same),
            Ok(status) => Ok(Asked::Other(Pointer {
                descriptor,
                id: FileId::of(&status.metadata),
            })),
            Err(error) => {
                unneeded.push(descriptor);
                Err(error)
            }
        }
    }

    /// Opens a file and may block. Called by the threads.
    pub(crate) fn open_object_blocking(
        &self,
        scratch: &mut Vec<u8>,
        name: &str,
        resolve: Resolve,
    ) -> Result<Opened, OpenError> {
        let name = c_string(scratch, name.as_bytes());
        for _ in 0..RENAME_RETRIES_MAX {
            // Closed here: this thread may wait.
            match self.open_object(name, resolve, &mut Vec::new()) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                result => return result.map_err(|error| open_error_of(&error, resolve)),
            }
        }
        Err(OpenError::Refused(StoreRefusal::Busy))
    }

    /// Opens a file. Regular files opened on the way and not returned are added to `unneeded`.
    pub(crate) fn open_object(
        &self,
        name: &CStr,
        resolve: Resolve,
        unneeded: &mut Vec<OwnedFd>,
    ) -> io::Result<Opened> {
        match self.open_beneath(name, resolve, unneeded) {
            Err(error) if resolve.may_leave() && error.raw_os_error() == Some(libc::EXDEV) => {
                self.open_link_target(name, unneeded)
            }
            result => result,
        }
    }

    /// Tries without symbolic links first: then the name is known to be the file's path.
    fn open_beneath(
        &self,
        name: &CStr,
        resolve: Resolve,
        unneeded: &mut Vec<OwnedFd>,
    ) -> io::Result<Opened> {
        match self.open_with(name, resolve, Symlinks::Refused, unneeded) {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                self.open_with(name, resolve, Symlinks::Followed, unneeded)
            }
            result => result,
        }
    }

    fn open_with(
        &self,
        name: &CStr,
        resolve: Resolve,
        symlinks: Symlinks,
        unneeded: &mut Vec<OwnedFd>,
    ) -> io::Result<Opened> {
        let (file, pointer) = match self.open_to_read(name, resolve, symlinks, libc::O_DIRECT) {
            Ok(file) => (file, None),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let opened = self.open_without_direct(name, resolve, symlinks, unneeded)?;
                (opened.0, Some(opened.1))
            }
            Err(error) => return Err(error),
        };
        let opened = stat_regular(file, pointer.is_none(), unneeded);
        if let Some((pointer, before)) = pointer
            && !opened
                .as_ref()
                .is_ok_and(|(_, now)| is_same_file(&before, now))
        {
            unneeded.push(pointer);
        }
        let (file, status) = opened?;
        let is_fixed = self.is_fixed(file.as_fd(), &status);
        let device = DeviceId::new(status.metadata.device);
        let (is_local, mount_notes) = match symlinks {
            Symlinks::Refused => {
                let mount = self.mounts.of(name.to_bytes());
                (mount.is_local, mount.notes_reads)
            }
            Symlinks::Followed => (
                self.mounts.is_local(device),
                self.mounts.may_note_reads(device),
            ),
        };
        let notes_reads = mount_notes && !self.no_access_time.load(Ordering::Relaxed);
        Ok(Opened {
            source: Source::File {
                descriptor: file,
                attributes: status.attributes,
                symlinks,
                is_fixed,
                is_local,
                notes_reads,
            },
            metadata: status.metadata,
        })
    }

    /// Opens a file that refused `O_DIRECT`. Files that are not regular refuse it, too, so the type
    /// is checked before the open. Returns also what was found then, which another file may have
    /// replaced in between.
    fn open_without_direct(
        &self,
        name: &CStr,
        resolve: Resolve,
        symlinks: Symlinks,
        unneeded: &mut Vec<OwnedFd>,
    ) -> io::Result<(OwnedFd, (OwnedFd, Status))> {
        let pointer = self.open_file(name, resolve, symlinks, libc::O_PATH)?;
        let pointer = stat_regular(pointer, false, unneeded)?;
        let opened = match self.direct {
            Direct::Required => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Direct::Preferred => self.open_to_read(name, resolve, symlinks, 0),
        };
        match opened {
            Ok(file) => Ok((file, pointer)),
            Err(error) => {
                unneeded.push(pointer.0);
                Err(error)
            }
        }
    }

    /// Whether the content of an open file cannot change. Asks the file for its file system only if
    /// there is a reason to expect that.
    fn is_fixed(&self, file: BorrowedFd<'_>, status: &Status) -> bool {
        let device = DeviceId::new(status.metadata.device);
        let is_likely = status.has_verity || self.mounts.may_be_read_only_type(device);
        is_likely
            && system::file_system_type(file)
                .is_ok_and(|kind| fixed::is_fixed(kind, status.has_verity))
    }

    /// Opens a path that leaves the directory and ends beneath it. `EXDEV` if it ends outside,
    /// whether or not a file exists there.
    fn open_link_target(&self, name: &CStr, unneeded: &mut Vec<OwnedFd>) -> io::Result<Opened> {
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
        let opened = self.open_with(inner, Resolve::Beneath, Symlinks::Followed, unneeded)?;
        if FileId::of(&system::stat(end.as_fd(), false)?.metadata) != FileId::of(&opened.metadata) {
            // Something was renamed between the two opens.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(opened)
    }

    /// Opens a file for reading, without noting the time of each read if the kernel permits that.
    fn open_to_read(
        &self,
        name: &CStr,
        resolve: Resolve,
        symlinks: Symlinks,
        more_flags: libc::c_int,
    ) -> io::Result<OwnedFd> {
        if !self.no_access_time.load(Ordering::Relaxed) {
            return self.open_file(name, resolve, symlinks, more_flags);
        }
        match self.open_file(name, resolve, symlinks, more_flags | libc::O_NOATIME) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                let opened = self.open_file(name, resolve, symlinks, more_flags);
                if opened.is_ok() {
                    self.no_access_time.store(false, Ordering::Relaxed);
                }
                opened
            }
            result => result,
        }
    }

    fn open_file(
        &self,
        name: &CStr,
        resolve: Resolve,
        symlinks: Symlinks,
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
        let resolve_flags = match resolve {
            Resolve::CachedOnly if self.mounts.are_all_local() => beneath | libc::RESOLVE_CACHED,
            Resolve::CachedOnly => beneath | libc::RESOLVE_CACHED | libc::RESOLVE_NO_XDEV,
            Resolve::OwnMount => beneath | libc::RESOLVE_NO_XDEV,
            Resolve::Beneath | Resolve::AnyMount | Resolve::Anew => beneath,
        };
        let resolve_flags = match symlinks {
            Symlinks::Refused => resolve_flags | libc::RESOLVE_NO_SYMLINKS,
            Symlinks::Followed => resolve_flags,
        };
        system::openat2(self.descriptor.as_fd(), name, flags, resolve_flags)
    }

    /// `RESOLVE_CACHED` came with Linux 5.12, six versions after `openat2`.
    pub(crate) fn supports_cached_lookups(&self) -> Result<bool, StoreError> {
        let open = |resolve| self.open_file(c".", resolve, Symlinks::Followed, libc::O_PATH);
        let _ = open(Resolve::Beneath).map_err(StoreError::OpenAt2)?;
        match open(Resolve::CachedOnly) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            _ => Ok(true),
        }
    }

    pub(crate) fn is_direct_required(&self) -> bool {
        self.direct == Direct::Required
    }

    /// Opens a file with `O_DIRECT`, and closes it.
    pub(crate) fn try_direct(&self, name: &[u8]) -> io::Result<()> {
        let mut scratch = Vec::new();
        let (resolve, symlinks) = (Resolve::Beneath, Symlinks::Followed);
        self.open_file(
            c_string(&mut scratch, name),
            resolve,
            symlinks,
            libc::O_DIRECT,
        )?;
        Ok(())
    }
}

/// The root for new look-ups. Threads reopen it and read its mounts again; a version number tells
/// the worker that it has changed.
#[derive(Debug)]
pub(crate) struct CurrentRoot {
    /// As the operator named it.
    path: PathBuf,
    /// The same, for the kernel.
    path_c: CString,
    root: Mutex<Arc<Root>>,
    version: AtomicU64,
}

impl CurrentRoot {
    pub(crate) fn new(path: &Path, root: Root) -> Self {
        let path_c = CString::new(path.as_os_str().as_bytes());
        Self {
            path: path.to_owned(),
            path_c: path_c.expect("invariant: a path that was opened holds no NUL"),
            root: Mutex::new(Arc::new(root)),
            version: AtomicU64::new(0),
        }
    }

    /// As the operator named it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Incremented when the root changes.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self) -> Arc<Root> {
        Arc::clone(&self.lock())
    }

    /// The root; `None` while a thread holds the lock to replace it, so that the worker never waits.
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

    /// Asks the kernel's caches whether the path leads to `root` still.
    pub(crate) fn ask_path(&self, root: &Root, unneeded: &mut Vec<OwnedFd>) -> PathAnswer {
        match self.open_path(libc::RESOLVE_CACHED) {
            Ok((_, id)) if id == root.id => PathAnswer::Same,
            Ok((descriptor, _)) => {
                unneeded.push(descriptor);
                PathAnswer::Elsewhere
            }
            Err(error) if leads_nowhere(&error) => PathAnswer::Same,
            Err(_) => PathAnswer::Unknown,
        }
    }

    /// Opens the directory that the path leads to now, unless it is open; whether it was not. If that
    /// fails, or the path leads nowhere, the old root stays.
    pub(crate) fn follow(&self) -> Result<bool, StoreError> {
        match self.open_path(0) {
            Ok((_, id)) if id == self.get().id => return Ok(false),
            Ok(_) => {}
            Err(error) if leads_nowhere(&error) => return Ok(false),
            Err(error) => {
                let path = self.path.clone();
                return Err(StoreError::Directory { path, error });
            }
        }
        let root = Root::open(&self.path, self.get().direct)?;
        let mut current = self.lock();
        let is_new = current.id != root.id;
        if is_new {
            self.set(&mut current, root);
        }
        Ok(is_new)
    }

    /// What the path leads to, with `O_PATH`.
    fn open_path(&self, resolve: u64) -> io::Result<(OwnedFd, FileId)> {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let directory = system::CURRENT_DIRECTORY;
        let descriptor = system::openat2(directory, &self.path_c, flags, resolve)?;
        let id = system::id_of(descriptor.as_fd())?;
        Ok((descriptor, id))
    }

    /// Reads the mount table again.
    pub(crate) fn read_mounts(&self) {
        // Under the lock, or this could restore a root that was replaced meanwhile.
        let mut current = self.lock();
        let mounts = read_mounts(current.descriptor.as_fd());
        if mounts != current.mounts {
            let root = Root {
                descriptor: Arc::clone(&current.descriptor),
                id: current.id,
                direct: current.direct,
                mounts,
                no_access_time: AtomicBool::new(true),
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

/// The mounts at and beneath an open directory; unknown without `/proc`.
fn read_mounts(directory: BorrowedFd<'_>) -> Mounts {
    path_of(directory).map_or(Mounts::UNKNOWN, |path| Mounts::read(&path))
}

/// The path of an open file by `/proc/self/fd`, without symbolic links. It asks no file system.
fn path_of(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The status of a file just opened, if it is a regular one. Another is closed at once: there is no
/// space to be freed.
fn stat_regular(
    file: OwnedFd,
    direct: bool,
    unneeded: &mut Vec<OwnedFd>,
) -> io::Result<(OwnedFd, Status)> {
    match system::stat(file.as_fd(), direct) {
        Ok(status) => {
            check_kind(status.kind)?;
            Ok((file, status))
        }
        Err(error) => {
            unneeded.push(file);
            Err(error)
        }
    }
}

fn is_same_file(one: &Status, other: &Status) -> bool {
    FileId::of(&one.metadata) == FileId::of(&other.metadata)
}

/// Whether nothing has taken the place of what a path led to.
fn leads_nowhere(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// `EISDIR` for a directory, and `EACCES` for what must not be served.
fn check_kind(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Kind::Other => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

/// The name as a C string. Names have no NUL: [`crate::path::name_of`] refuses them, and paths from
/// the kernel have none.
pub(crate) fn c_string<'a>(scratch: &'a mut Vec<u8>, name: &[u8]) -> &'a CStr {
    scratch.clear();
    scratch.extend_from_slice(name);
    scratch.push(0);
    CStr::from_bytes_with_nul(scratch).expect("invariant: a name holds no NUL")
}

/// Classifies the kernel's error for a look-up with `resolve`.
pub(crate) fn open_error_of(error: &io::Error, resolve: Resolve) -> OpenError {
    OpenError::Refused(match error.raw_os_error() {
        Some(libc::EXDEV) if !resolve.may_leave() => return OpenError::OutOfScope,
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => StoreRefusal::NotFound,
        Some(libc::EISDIR) => StoreRefusal::Directory,
        // EXDEV: out of the directory. ELOOP: too many symlinks, or a magic one. ENXIO and ENODEV:
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
