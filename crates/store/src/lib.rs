//! Directories, or a raw store ([`raw`]), served as objects whose content does not change while they are
//! sent.
//!
//! [`Store::look_up`] resolves a path to an open file and never waits for the disk. A path that the
//! kernel can resolve from its caches is answered at once; the look-up threads resolve the others,
//! and [`Store::poll_answer`] returns their answers. Clients of the same path share one descriptor.
//! Unused descriptors are cached; the least recently used is closed first.
//!
//! It refuses to serve files outside its directory: no path and no symbolic link leads there
//! (`openat2` with `RESOLVE_BENEATH`). A link that leaves the directory and ends in it again, an
//! absolute one for example, is followed. It serves regular files only; device nodes are refused,
//! but only after they were opened. Replace a file by renaming another over it: transfers of the old
//! file then complete.
//!
//! **No look-up is answered by anything older than itself.** Each asks the kernel what its path leads to
//! now, whether or not that is open; only look-ups of one turn of the worker, which have the same `now`,
//! share an answer. So a client that was sent a new playlist by one worker finds its segments at every
//! other. The served directory is looked for by its path in the same way (`path_watch`).
//!
//! **A file system that hangs blocks its own objects only.** The worker asks nothing but the
//! kernel's caches of local file systems. In the threads, each file system ([`DeviceId`]) may have a
//! share of the threads and of the look-ups. A look-up that takes longer than
//! [`StoreConfig::lookup_time_max`] is answered with [`StoreRefusal::TimedOut`].
//!
//! Bounds: [`StoreConfig::objects_max`] open objects, [`StoreConfig::lookups_max`] pending look-ups,
//! [`PATH_BYTES_MAX`]. All tables are allocated at start, except the threads' queues, which grow up
//! to those limits. A hit allocates nothing. A new path is copied once into its table entry, and
//! once more if it goes through the threads.
//!
//! A look-up in the threads reserves the table entry of its object, so that files being opened count
//! as open. A look-up without room is refused with [`StoreRefusal::Full`]; ask again when
//! [`Store::has_room`]. Unused objects are evicted when their entry is needed, and closed after
//! [`StoreConfig::unused_time_max`] in any case ([`Store::expire_unused`]): an open file keeps the
//! space of a deleted file and prevents its file system from being unmounted. Threads close the
//! descriptors ([`Store::close_descriptor`]), because the last close of a deleted file frees its
//! space, which may take long.
//!
//! An object in use that its name does not lead to any more keeps its space, too. Its users have
//! [`StoreConfig::retired_time_max`]; then [`Store::poll_outdated`] names it.
//!
//! The life of an object:
//!
//! ```text
//!  look_up ─▶ Found { handle, opened: Some(source) }     first use: open it under this handle
//!  look_up ─▶ Found { handle, opened: None }             open already; one more use
//!  release(handle)                                       one use fewer
//!  expire_unused                                         long unused: not found any more
//!  poll_closed ─▶ handle                                 not found any more and unused: close it
//! ```

mod backend;
mod catalogue;
mod coldness;
mod counters;
mod directory;
mod fixed;
mod lookups;
mod mounts;
mod notice;
mod path;
mod path_watch;
mod probe;
pub mod raw;
mod root;
mod system;
mod table;
mod threads;

#[cfg(test)]
mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;

pub use catalogue::{Catalogue, CatalogueEntry};
pub use counters::Counters;
pub use notice::Notice;
pub use path::PATH_BYTES_MAX;

use backend::Backend;
use directory::Directories;
use lookups::Lookups;
use raw::{Served, Volume};
use root::{OpenError, Resolve};
use table::Table;
use threads::Reply;

/// Closed handles beyond [`StoreConfig::objects_max`] that may wait for [`Store::poll_closed`]. With
/// more, new objects are refused with [`StoreRefusal::Full`].
pub const CLOSED_HANDLES_MAX: usize = 64;
/// Most descriptors of one device that may wait for the threads to close them; with more, its
/// look-ups are refused as [`StoreRefusal::Full`]. They count against the limit of open files.
pub const CLOSES_MAX: usize = 256;
/// Threads for look-ups and closes unless [`StoreConfig::threads`] says otherwise. A look-up that misses
/// waits for one or two reads, 0.1 ms each on flash: four threads, a device's share, answer 20,000 a
/// second. `[guess]`
pub const LOOKUP_THREADS: usize = 16;
/// Most objects expired by one call of [`Store::expire_unused`].
pub const EXPIRED_OBJECTS_MAX: usize = 64;
/// Interval of the checks for expired objects: objects that become unused one after the other then
/// need one wake-up in this time. Divides a second.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// What a store may use, and how it opens files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Most objects open or being opened at once, each a descriptor; `1..=OBJECTS_MAX`.
    pub objects_max: usize,
    /// Most look-ups pending in the threads; at least 1. A device may have a quarter of them: enough
    /// to keep its threads busy from one round of the worker to the next.
    pub lookups_max: usize,
    /// Threads that open paths the kernel has not cached, and close files; at least 1. A device may
    /// occupy a quarter of them.
    pub threads: usize,
    /// Longest time a look-up may take in the threads.
    pub lookup_time_max: Duration,
    /// How long an unused object is kept open.
    pub unused_time_max: Duration,
    /// How long an object may be in use after its name leads to another, or to none:
    /// [`Store::poll_outdated`].
    pub retired_time_max: Duration,
    /// Whether files must be readable without the page cache.
    pub direct: Direct,
    /// Whether to ask the kernel's caches before the threads. Off only to test the threads.
    pub cached_lookups: bool,
}

impl StoreConfig {
    /// Largest `objects_max`.
    pub const OBJECTS_MAX: usize = 1 << 24;
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            objects_max: 4096,
            lookups_max: 256,
            threads: LOOKUP_THREADS,
            // Players time a request out after 10 s or more. [guess]
            lookup_time_max: Duration::from_secs(10),
            // An object requested less often is opened for each request, which costs a few
            // microseconds more than a check of an open one.
            unused_time_max: Duration::from_secs(30),
            // Longer than a film. [guess]
            retired_time_max: Duration::from_secs(4 * 3600),
            direct: Direct::Required,
            cached_lookups: true,
        }
    }
}

/// Whether files must be readable without the page cache (`O_DIRECT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// If the file system refuses: an error at start, and its files are refused.
    Required,
    /// If the file system refuses: its files are read through the page cache.
    Preferred,
}

/// Whether the file system supports reads without the page cache, as tried at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectSupport {
    /// A file was opened with `O_DIRECT`.
    Direct,
    /// The file system refused `O_DIRECT`.
    Refused,
    /// No file was found to try it with.
    Unknown,
}

/// A namespace among those of the disk's NVMe controllers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceId {
    /// Number of the controller, from 0: which of the disk's it is.
    pub controller: u16,
    /// Namespace Identifier (NSID).
    pub id: u32,
}

/// What the disk opens to read an object.
#[derive(Debug)]
pub enum Source {
    /// An open regular file, and the part of its status that is not in [`Metadata`].
    File {
        /// The file. Its last close may have to free its space: see [`Store::close_descriptor`].
        descriptor: OwnedFd,
        /// From the same `statx` as the metadata.
        attributes: Attributes,
        /// Whether the object's name is the path of the file in its directory.
        symlinks: Symlinks,
        /// Nobody can change its content while it is open: nothing to check after reads.
        is_fixed: bool,
        /// Its file system answers from memory, or waits for a local disk only.
        is_local: bool,
        /// A read may note its time in it: the kernel refused `O_NOATIME`, and the mount notes them.
        notes_reads: bool,
    },
    /// A part of a device of a raw store, as long as the object. Its content cannot change.
    Range {
        /// The device, which stays open.
        device: Arc<OwnedFd>,
        /// Where it begins, bytes.
        start_bytes: u64,
    },
    /// The same of a namespace of an NVMe controller that the disk is.
    Namespace {
        /// Which one.
        namespace: NamespaceId,
        /// Where the object begins, bytes.
        start_bytes: u64,
    },
    /// A file of a simulated disk: [`CatalogueEntry::source`].
    Simulated(u32),
}

/// Symbolic links on the way to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Symlinks {
    /// Opened with `RESOLVE_NO_SYMLINKS`: the path of the file ends with the name of the object.
    Refused,
    /// There may have been symbolic links.
    Followed,
}

/// Attributes that may change without the content; a change moves [`Metadata::changed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Number of hard links.
    pub links: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// The file system that must answer before an object can be opened, read or closed, by its device
/// number. If it hangs, all its look-ups wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceId(u64);

impl DeviceId {
    /// For paths that cross mounts by symbolic links, and for the served path where it may have changed:
    /// their file system is not known before they are resolved.
    pub(crate) const UNKNOWN: Self = Self(u64::MAX);

    /// From a device number: see [`Metadata::device`].
    #[must_use]
    pub const fn new(device: u64) -> Self {
        Self(device)
    }
}

/// A moment as file systems count it: since 1970-01-01, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// Metadata of a file when it was opened, which identifies its content. If any field differs, it is
/// another object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Metadata {
    /// Size, bytes.
    pub size_bytes: u64,
    /// When the content changed last.
    pub modified: FileTime,
    /// When the content or the inode changed last; unlike `modified` it cannot be set.
    pub changed: FileTime,
    /// Inode number.
    pub inode: u64,
    /// Device, major and minor number in one.
    pub device: u64,
    /// Reads must start and end at multiples of this, bytes; 0 if the file system does not say.
    pub direct_offset_align_bytes: u32,
    /// Memory read into must be aligned to this, bytes; 0 if the file system does not say.
    pub direct_memory_align_bytes: u32,
    /// Whether it is read without the page cache.
    pub direct: bool,
    /// Stands for its content, if that was hashed: objects of a raw store.
    pub content: Option<[u8; 16]>,
}

/// An object found: one use of it, which [`Store::release`] ends.
#[derive(Debug)]
#[must_use = "a use that is never released keeps a descriptor open"]
pub struct Found {
    /// Identifies the object until [`Store::poll_closed`] returns it; below
    /// [`Store::handles_max`].
    pub handle: u32,
    /// The file, if the object was opened by this look-up.
    pub opened: Option<Source>,
    /// The file's metadata.
    pub metadata: Metadata,
}

/// The first answer to a path.
#[derive(Debug)]
#[must_use]
pub enum LookUp {
    /// The object.
    Ready(Found),
    /// [`Store::poll_answer`] will return the answer.
    Pending,
    /// No object, and why.
    Refused(StoreRefusal),
}

/// Why a path leads to no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// The path does not exist.
    #[error("no such object")]
    NotFound,
    /// A directory.
    #[error("a directory")]
    Directory,
    /// The path exists and must not be served: no permission, a symbolic link that leads outside,
    /// not a regular file.
    #[error("not to be served")]
    Forbidden,
    /// Every table entry is in use, or too many look-ups of this device are pending. Ask again when
    /// [`Store::has_room`].
    #[error("too much open at once")]
    Full(DeviceId),
    /// Its file system did not answer within [`StoreConfig::lookup_time_max`].
    #[error("the file system does not answer")]
    TimedOut,
    /// The process or system is out of descriptors or memory. It may succeed later.
    #[error("out of descriptors or memory")]
    Busy,
    /// The file cannot be read without the page cache, and must ([`Direct::Required`]).
    #[error("the file system refuses O_DIRECT; buffered = true reads it through the page cache")]
    NotDirect,
    /// Another errno of the kernel.
    #[error("opening failed (errno {0})")]
    Failed(i32),
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory cannot be opened.
    #[error("cannot open the directory {}: {error}", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// The kernel has no `openat2`, or a filter refuses it. There is nothing in its place: no other
    /// call keeps a path beneath a directory.
    #[error(
        "the system call openat2 is refused ({0}); allow it in the seccomp profile; in a unit for systemd \
         leave out RestrictSUIDSGID= and DynamicUser=, which implies it; before Linux 5.6 there is none"
    )]
    OpenAt2(std::io::Error),
    /// The file system refuses `O_DIRECT`.
    #[error(
        "{} cannot be read without the page cache (its file system refuses O_DIRECT): serve a \
         directory on ext4, xfs or btrfs, or allow buffered reads",
        path.display()
    )]
    NotDirect {
        /// The file it was tried with.
        path: PathBuf,
    },
    /// A raw store has no newer catalogue than the one that is served, since it cannot be read.
    #[error("no new catalogue of the raw store: {0}")]
    Volume(String),
    /// Threads or their signal could not be made.
    #[error("cannot start the look-up threads: {0}")]
    Threads(std::io::Error),
}

/// Objects by path.
#[derive(Debug)]
pub struct Store {
    table: Table,
    backend: Backend,
    lookups: Lookups,
    /// Descriptors that the threads are to close, by device.
    closing: Vec<Closing>,
    /// Objects are not expired before this, unless the threads close a descriptor.
    expiry_resumes: Instant,
    lookup_time_max: Duration,
    unused_time_max: Duration,
    retired_time_max: Duration,
    /// Result of the last [`Store::reopen`].
    reopened: Option<Result<(), StoreError>>,
    /// Buffer for the key of a name.
    key: String,
    /// The latest `now` of a caller.
    now: Instant,
    counters: Counters,
}

/// A file just opened, and its metadata.
#[derive(Debug)]
struct Opened {
    source: Source,
    metadata: Metadata,
}

/// Descriptors of a device that the threads are to close.
#[derive(Clone, Copy, Debug)]
struct Closing {
    device: DeviceId,
    count: usize,
    /// When a thread last closed one, or the first was handed over.
    since: Instant,
}

/// A backend's first answer to a path.
#[derive(Debug)]
enum Opening {
    /// It leads to the object that it led to before.
    Unchanged,
    Done(Result<Opened, StoreRefusal>),
    /// Opening it may block, so it has to be submitted to the threads.
    WouldBlock(DeviceId, Resolve),
}

impl Store {
    /// Serves the files of a directory. Starts the threads.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    ///
    /// # Panics
    /// If a number in `config` is out of its range.
    pub fn open_directory(path: &Path, config: StoreConfig) -> Result<Self, StoreError> {
        Self::open_directories(&[path], config)
    }

    /// Serves the files of several directories, which share the threads and all bounds: [`Store::look_up_in`].
    ///
    /// # Errors
    /// As [`Store::open_directory`].
    ///
    /// # Panics
    /// The same, and without a directory.
    pub fn open_directories(paths: &[&Path], config: StoreConfig) -> Result<Self, StoreError> {
        let directories = Directories::open(paths, &config)?;
        Ok(Self::new(Backend::Directories(directories), &config))
    }

    /// Serves the entries of a catalogue, without a file system, descriptors or threads. The same
    /// calls have the same answers, on any machine.
    ///
    /// # Panics
    /// If a number in `config` is out of its range.
    #[must_use]
    pub fn catalogue(catalogue: Catalogue, config: StoreConfig) -> Self {
        Self::new(Backend::Catalogue(catalogue), &config)
    }

    /// Serves the objects of a raw store. Look-ups are answered at once, and a new catalogue of the store
    /// is found within [`raw::LOOK_INTERVAL`].
    ///
    /// # Errors
    /// There is no eventfd to be had.
    ///
    /// # Panics
    /// If a number in `config` is out of its range.
    pub fn open_volume(volume: &Volume, config: StoreConfig) -> Result<Self, StoreError> {
        let handles_max = config.objects_max + CLOSED_HANDLES_MAX;
        let served = Served::new(volume.clone(), handles_max).map_err(StoreError::Threads)?;
        Ok(Self::new(Backend::Volume(Box::new(served)), &config))
    }

    fn new(backend: Backend, config: &StoreConfig) -> Self {
        let objects = 1..=StoreConfig::OBJECTS_MAX;
        assert!(
            objects.contains(&config.objects_max),
            "objects_max out of range: {config:?}"
        );
        Self {
            table: Table::new(config.objects_max, CLOSED_HANDLES_MAX),
            lookups: Lookups::new(config.lookups_max),
            backend,
            closing: Vec::new(),
            expiry_resumes: Instant::ZERO,
            lookup_time_max: config.lookup_time_max,
            unused_time_max: config.unused_time_max,
            retired_time_max: config.retired_time_max,
            reopened: None,
            key: String::new(),
            now: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// Looks up a path that starts with `/`, is percent-decoded and has no dot segments; other paths
    /// are not found. Never blocks. A later answer carries `token`.
    pub fn look_up(&mut self, now: Instant, token: u64, path: &str) -> LookUp {
        self.look_up_in(now, token, 0, path)
    }

    /// The same in the directory with this index, of several; without one of this index, nothing is found.
    pub fn look_up_in(&mut self, now: Instant, token: u64, directory: u16, path: &str) -> LookUp {
        self.now = now;
        match path::name_of(path) {
            Some(name) if directory == 0 => self.look_up_key(now, token, name),
            Some(name) if usize::from(directory) < self.backend.count() => {
                let mut key = core::mem::take(&mut self.key);
                path::key_of(directory, name, &mut key);
                let answer = self.look_up_key(now, token, &key);
                self.key = key;
                answer
            }
            _ => self.refuse(StoreRefusal::NotFound),
        }
    }

    /// Looks up what a key of the table is for: a name in one of the directories.
    fn look_up_key(&mut self, now: Instant, token: u64, name: &str) -> LookUp {
        if matches!(self.backend, Backend::Volume(_)) {
            return self.look_up_in_volume(now, name);
        }
        let known = self.table.find(name);
        match known {
            // Asked in this turn, so after this request was received.
            Some(handle) if self.table.asked_at(handle) == Some(now) => {
                self.counters.store_shared_lookups += 1;
                return LookUp::Ready(self.share(handle));
            }
            // An open object needs no new entry if it is unchanged.
            Some(_) => {}
            None if self.table.has_room() => {}
            None => return self.refuse(StoreRefusal::Full(self.backend.device_of_key(name))),
        }
        let metadata = known.map(|handle| self.table.metadata(handle));
        let opening = self.backend.open_object(now, name, metadata);
        self.close_unneeded();
        match opening {
            Opening::Unchanged => {
                let handle = known.expect("invariant: it was asked whether it is unchanged");
                self.table.set_asked(handle, Some(now));
                self.counters.store_shared_lookups += 1;
                LookUp::Ready(self.share(handle))
            }
            Opening::WouldBlock(device, resolve)
                if self.has_room(device) && self.table.reserve(self.now) =>
            {
                let id = self
                    .lookups
                    .begin(token, device, now + self.lookup_time_max);
                self.backend.submit(id, name.to_owned(), device, resolve);
                self.counters.store_threaded_lookups += 1;
                LookUp::Pending
            }
            Opening::WouldBlock(device, _) => self.refuse(StoreRefusal::Full(device)),
            Opening::Done(result) => {
                self.counters.store_inline_lookups += 1;
                match self.admit(Some(now), name, result, false) {
                    Ok(found) => LookUp::Ready(found),
                    Err(refusal) => self.refuse(refusal),
                }
            }
        }
    }

    /// Looks a name up in the newest catalogue of a raw store.
    fn look_up_in_volume(&mut self, now: Instant, name: &str) -> LookUp {
        let Backend::Volume(served) = &mut self.backend else {
            unreachable!("asked for a raw store only");
        };
        served.refresh();
        if let Some(handle) = self.table.find(name) {
            if served.keep(handle, name, self.table.metadata(handle)) {
                self.counters.store_shared_lookups += 1;
                return LookUp::Ready(self.share(handle));
            }
            served.leave(handle);
            self.replace(handle);
        }
        if !self.table.has_room() {
            return self.refuse(StoreRefusal::Full(self.backend.device_of_key(name)));
        }
        let Backend::Volume(served) = &mut self.backend else {
            unreachable!("asked for a raw store only");
        };
        let opened = served.open_object(name);
        self.counters.store_inline_lookups += 1;
        let admitted = opened.and_then(|(index, opened)| {
            let found = self.admit(Some(now), name, Ok(opened), false)?;
            Ok((index, found))
        });
        match admitted {
            Ok((index, found)) => {
                if let Backend::Volume(served) = &mut self.backend {
                    served.pin(found.handle, index);
                }
                LookUp::Ready(found)
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Takes a new catalogue of a raw store over, and moves some of the open objects to it: those that it
    /// does not have are found no more, and closed when they are unused.
    fn follow_volume(&mut self) {
        let Backend::Volume(served) = &mut self.backend else {
            return;
        };
        served.refresh();
        self.counters.store_failed_catalogues += served.take_failures();
        if let Some(answer) = served.poll_answer() {
            self.reopened = Some(answer.map_err(StoreError::Volume));
        }
        for _ in 0..raw::MOVED_MAX {
            let Some(handle) = served.next_to_move() else {
                return;
            };
            let name = self.table.name(handle);
            let is_found = self.table.find(name) == Some(handle);
            if is_found && served.keep(handle, name, self.table.metadata(handle)) {
                continue;
            }
            served.leave(handle);
            if is_found {
                self.counters.store_replaced_objects += 1;
                self.table.retire(handle, self.now);
            }
        }
    }

    /// What the store has to say for the log; of several, the last.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        match &mut self.backend {
            Backend::Directories(directories) => directories.poll_notice(),
            Backend::Volume(served) => served.poll_notice(),
            Backend::Catalogue(_) => None,
        }
    }

    /// The content type that was given to an object when it was stored; `None`: its name says it.
    #[must_use]
    pub fn content_type(&self, handle: u32) -> Option<&str> {
        let Backend::Volume(served) = &self.backend else {
            return None;
        };
        let name = served.content_type(handle);
        (!name.is_empty()).then_some(name)
    }

    /// The next answer to a pending look-up, with its token; each pending look-up is answered once.
    /// After `None`, [`Store::poll_fd`] is readable again only when there is another answer.
    pub fn poll_answer(&mut self, now: Instant) -> Option<(u64, Result<Found, StoreRefusal>)> {
        self.now = now;
        self.follow_volume();
        while let Some(reply) = self.backend.poll_reply(now) {
            match reply {
                Reply::LookUp { id, key, result } => {
                    if let Some(answer) = self.take_answer(id, key, result) {
                        return Some(answer);
                    }
                }
                Reply::Closed(device, count) => self.note_closed(device, count),
                Reply::Followed(_, followed) => {
                    self.close_unneeded();
                    let is_new = followed.is_ok_and(|is_new| is_new);
                    self.counters.store_reopened_roots += u64::from(is_new);
                }
                Reply::Roots(result) => {
                    self.close_unneeded();
                    self.counters.store_reopened_roots += u64::from(result.is_ok());
                    self.reopened = Some(result);
                }
            }
        }
        let (id, pending) = self.lookups.poll_overdue(now)?;
        self.counters.store_overdue_lookups += 1;
        if self.backend.withdraw(id, pending.device) {
            self.close_unneeded();
            self.lookups.finish(id);
            self.table.cancel();
        }
        let refusal = StoreRefusal::TimedOut;
        self.count(refusal);
        Some((pending.token, Err(refusal)))
    }

    /// Handles a thread's answer; `None` if it was abandoned or is submitted again.
    fn take_answer(
        &mut self,
        id: u64,
        name: String,
        result: Result<Opened, OpenError>,
    ) -> Option<(u64, Result<Found, StoreRefusal>)> {
        let device = DeviceId::UNKNOWN;
        if result
            .as_ref()
            .is_err_and(|error| *error == OpenError::OutOfScope)
            && self.lookups.redirect(id, device)
        {
            self.backend.submit(id, name, device, Resolve::AnyMount);
            return None;
        }
        let pending = self.lookups.finish(id);
        let result = result.map_err(|error| match error {
            OpenError::Refused(refusal) => refusal,
            OpenError::OutOfScope => StoreRefusal::Full(device),
        });
        if pending.is_abandoned {
            self.table.cancel();
            self.counters.store_late_lookups += 1;
            if let Ok(opened) = result {
                self.close_opened(opened);
            }
            return None;
        }
        let admitted = self.admit(None, &name, result, true);
        let admitted = admitted.inspect_err(|refusal| self.count(*refusal));
        Some((pending.token, admitted))
    }

    /// The next deadline: of a pending look-up, of an unused object, or of one that its name does not lead to. Never before the latest
    /// `now`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let moving = match &self.backend {
            Backend::Volume(served) if served.is_moving() => Some(self.now),
            _ => None,
        };
        [
            self.lookups.poll_timeout(),
            self.next_expiry(),
            self.next_outdated(),
            moving,
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|due| due.max(self.now))
    }

    /// Retires the objects unused for [`StoreConfig::unused_time_max`], at most
    /// [`EXPIRED_OBJECTS_MAX`] of them; [`Store::poll_closed`] returns them. Call it each round, and
    /// soon after [`Store::poll_timeout`].
    pub fn expire_unused(&mut self, now: Instant) {
        self.now = now;
        if self.next_expiry().is_none_or(|due| now < due) {
            return;
        }
        for _ in 0..EXPIRED_OBJECTS_MAX {
            let Some((handle, unused_since)) = self.table.oldest_unused() else {
                return;
            };
            if now.since(unused_since) < self.unused_time_max {
                return;
            }
            let device = DeviceId::new(self.table.metadata(handle).device);
            match self.closing.iter().find(|closing| closing.device == device) {
                Some(closing) if closing.count >= EXPIRED_OBJECTS_MAX => {
                    if now.since(closing.since) < EXPIRY_INTERVAL {
                        self.expiry_resumes = now + EXPIRY_INTERVAL;
                        return;
                    }
                    // Its file system hangs; objects of others must not wait behind it.
                    self.table.postpone(handle, now);
                }
                _ => {
                    self.counters.store_expired_objects += 1;
                    self.table.retire(handle, self.now);
                }
            }
        }
    }

    /// An object that has been in use for [`StoreConfig::retired_time_max`] since its name led elsewhere, once:
    /// its uses are to be ended, so that it can be closed and its space be used again. A client that reads
    /// slowly would keep it for as long as it likes.
    pub fn poll_outdated(&mut self, now: Instant) -> Option<u32> {
        self.now = now;
        self.next_outdated().filter(|due| *due <= now)?;
        let (handle, _) = self.table.oldest_retired()?;
        self.table.forget_retired(handle);
        self.counters.store_outdated_objects += 1;
        Some(handle)
    }

    fn next_outdated(&self) -> Option<Instant> {
        let (_, retired_at) = self.table.oldest_retired()?;
        Some(retired_at + self.retired_time_max)
    }

    /// When the next object expires, rounded up to a whole [`EXPIRY_INTERVAL`].
    fn next_expiry(&self) -> Option<Instant> {
        let (_, unused_since) = self.table.oldest_unused()?;
        let due = unused_since + self.unused_time_max;
        let past = due.since(Instant::ZERO).as_nanos() % EXPIRY_INTERVAL.as_nanos();
        let past = Duration::from_nanos(u64::try_from(past).unwrap_or(0));
        let due = if past.is_zero() {
            due
        } else {
            due + (EXPIRY_INTERVAL - past)
        };
        Some(due.max(self.expiry_resumes))
    }

    /// The device that a look-up of `path` depends on, if no symbolic link leads to another.
    #[must_use]
    pub fn device_of_name(&self, path: &str) -> DeviceId {
        self.backend
            .device_of_key(path::name_of(path).unwrap_or(""))
    }

    /// Whether a look-up of this device would not be refused as [`StoreRefusal::Full`].
    #[must_use]
    pub fn has_room(&self, device: DeviceId) -> bool {
        self.table.has_room()
            && self.lookups.has_room(device)
            && self.closing_in(device) < CLOSES_MAX
    }

    /// Has a thread close the descriptor of a closed object of `device` (see [`Metadata::device`]).
    /// For a deleted file this frees its space, which takes long for gigabytes.
    pub fn close_descriptor(&mut self, device: u64, descriptor: OwnedFd) {
        self.hand_over(DeviceId::new(device), descriptor);
    }

    /// Has a thread close a descriptor.
    fn hand_over(&mut self, device: DeviceId, descriptor: OwnedFd) {
        if self.backend.close(device, descriptor) {
            self.counters.store_threaded_closes += 1;
            let known = self
                .closing
                .iter_mut()
                .find(|closing| closing.device == device);
            match known {
                Some(closing) => closing.count += 1,
                None => self.closing.push(Closing {
                    device,
                    count: 1,
                    since: self.now,
                }),
            }
        }
    }

    /// Has a thread open each directory again by its path, which may name another directory by now;
    /// if that fails, the old directory stays. Objects of the old one are served while they are in use. A
    /// raw store looks for a new catalogue at once.
    pub fn reopen(&mut self) {
        match &mut self.backend {
            Backend::Directories(directories) => directories.open_roots(),
            Backend::Catalogue(_) => self.reopened = Some(Ok(())),
            Backend::Volume(served) => served.look_now(),
        }
    }

    /// The result of the last [`Store::reopen`], once. [`Store::poll_answer`] receives it.
    pub fn poll_reopened(&mut self) -> Option<Result<(), StoreError>> {
        self.reopened.take()
    }

    /// Ends one use of an object.
    ///
    /// # Panics
    /// If the object is not in use: every [`Found`] is released once.
    pub fn release(&mut self, handle: u32) {
        self.table.release(handle, self.now);
    }

    /// Retires an object whose open or read failed: the next look-up of its path opens the file
    /// anew. The release of its last use closes it.
    ///
    /// # Panics
    /// If the object is not in use.
    pub fn retire(&mut self, handle: u32) {
        self.table.retire_used(handle, self.now);
    }

    /// The path of an object that [`Store::poll_closed`] has not returned yet, for the log. In another directory
    /// than the first, that directory's path precedes.
    #[must_use]
    pub fn path_of(&self, handle: u32) -> String {
        let key = self.table.name(handle);
        match &self.backend {
            Backend::Directories(directories) => directories.path_of(key),
            Backend::Catalogue(_) | Backend::Volume(_) => format!("/{key}"),
        }
    }

    /// The same as it was looked up, without the directory.
    #[must_use]
    pub fn path_beneath(&self, handle: u32) -> String {
        let (_, name) = path::split_key(self.table.name(handle));
        format!("/{name}")
    }

    /// An unused object to close; its handle is free for another from now on. Take them all after
    /// each round of look-ups and releases.
    pub fn poll_closed(&mut self) -> Option<u32> {
        let handle = self.table.poll_closed()?;
        if let Backend::Volume(served) = &mut self.backend {
            served.unpin(handle);
        }
        self.counters.store_closed_objects += 1;
        Some(handle)
    }

    /// Readable when [`Store::poll_answer`] has something to do; `None` for a catalogue.
    #[must_use]
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Directories(directories) => Some(directories.poll_fd()),
            Backend::Volume(served) => Some(served.poll_fd()),
            Backend::Catalogue(_) => None,
        }
    }

    /// Every handle is below this.
    #[must_use]
    pub fn handles_max(&self) -> usize {
        self.table.handles_max()
    }

    /// Whether `O_DIRECT` worked at start, in the first directory. A catalogue is always direct.
    #[must_use]
    pub fn direct_support(&self) -> DirectSupport {
        match &self.backend {
            Backend::Directories(directories) => {
                let first = directories.probed().next();
                first.map_or(DirectSupport::Unknown, |probed| probed.support)
            }
            Backend::Catalogue(_) | Backend::Volume(_) => DirectSupport::Direct,
        }
    }

    /// The mounts beneath the directories whose file systems refused `O_DIRECT` at start: their files are
    /// refused, or read through the page cache, as [`StoreConfig::direct`] says. Only local file systems
    /// were tried.
    #[must_use]
    pub fn mounts_without_direct(&self) -> Vec<&Path> {
        match &self.backend {
            Backend::Directories(directories) => {
                let mounts = directories
                    .probed()
                    .flat_map(|probed| &probed.refusing_mounts);
                mounts.map(PathBuf::as_path).collect()
            }
            Backend::Catalogue(_) | Backend::Volume(_) => Vec::new(),
        }
    }

    /// The catalogue, to change its entries; `None` for directories.
    pub fn catalogue_mut(&mut self) -> Option<&mut Catalogue> {
        match &mut self.backend {
            Backend::Directories(_) | Backend::Volume(_) => None,
            Backend::Catalogue(catalogue) => Some(catalogue),
        }
    }

    /// What happened since start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Enters a file just opened into the table, where an entry may be reserved for it, or finds
    /// that it is open already. `asked_at`: the turn, if the worker has opened it.
    fn admit(
        &mut self,
        asked_at: Option<Instant>,
        name: &str,
        result: Result<Opened, StoreRefusal>,
        is_reserved: bool,
    ) -> Result<Found, StoreRefusal> {
        if is_reserved {
            // Reserved again below if the entry is needed.
            self.table.cancel();
        }
        let known = self.table.find(name);
        let opened = match result {
            Ok(opened) => opened,
            Err(refusal) => {
                // A lack of descriptors or room says nothing about the object.
                if let Some(handle) = known
                    && !matches!(refusal, StoreRefusal::Busy | StoreRefusal::Full(_))
                {
                    self.replace(handle);
                }
                return Err(refusal);
            }
        };
        if let Some(handle) = known {
            if *self.table.metadata(handle) == opened.metadata {
                self.table.set_asked(handle, asked_at);
                if is_reserved {
                    self.close_opened(opened);
                }
                return Ok(self.share(handle));
            }
            self.replace(handle);
        }
        if !self.table.reserve(self.now) {
            assert!(!is_reserved, "a cancelled reservation can be made again");
            let device = DeviceId::new(opened.metadata.device);
            self.close_opened(opened);
            return Err(StoreRefusal::Full(device));
        }
        let handle = self.table.insert(name, opened.metadata, asked_at);
        self.counters.store_opened_objects += 1;
        Ok(Found {
            handle,
            opened: Some(opened.source),
            metadata: opened.metadata,
        })
    }

    /// Has a thread close a file that is not needed. The worker may only close a file of a local
    /// file system that is open by another descriptor, too.
    fn close_opened(&mut self, opened: Opened) {
        if let Source::File { descriptor, .. } = opened.source {
            self.close_descriptor(opened.metadata.device, descriptor);
        }
    }

    /// Has threads close what the backend does not need any more.
    fn close_unneeded(&mut self) {
        while let Some((device, descriptor)) = self.backend.poll_unneeded() {
            self.hand_over(device, descriptor);
        }
    }

    fn note_closed(&mut self, device: DeviceId, count: usize) {
        self.counters.store_finished_closes += u64::try_from(count).unwrap_or(u64::MAX);
        self.expiry_resumes = Instant::ZERO;
        let index = self
            .closing
            .iter()
            .position(|closing| closing.device == device);
        let index = index.expect("invariant: threads close what they are given");
        self.closing[index].count -= count;
        self.closing[index].since = self.now;
        if self.closing[index].count == 0 {
            self.closing.swap_remove(index);
        }
    }

    fn closing_in(&self, device: DeviceId) -> usize {
        let known = self.closing.iter().find(|closing| closing.device == device);
        known.map_or(0, |closing| closing.count)
    }

    fn share(&mut self, handle: u32) -> Found {
        self.table.acquire(handle);
        Found {
            handle,
            opened: None,
            metadata: *self.table.metadata(handle),
        }
    }

    fn replace(&mut self, handle: u32) {
        self.counters.store_replaced_objects += 1;
        self.table.retire(handle, self.now);
    }

    fn refuse(&mut self, refusal: StoreRefusal) -> LookUp {
        self.count(refusal);
        LookUp::Refused(refusal)
    }

    fn count(&mut self, refusal: StoreRefusal) {
        match refusal {
            StoreRefusal::Full(_) => self.counters.store_full_lookups += 1,
            _ => self.counters.store_refused_lookups += 1,
        }
    }
}
