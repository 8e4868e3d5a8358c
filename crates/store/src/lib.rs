//! A directory served as objects that do not change while anyone can be sent them.
//!
//! [`Store::look_up`] turns a path into an open file, and never waits for the disk: what the
//! kernel can resolve from its own caches is answered at once, and the rest is left to a few
//! threads, whose answers come out of [`Store::poll_answer`]. Who asks twice shares one
//! descriptor; descriptors that nobody uses are kept, the least recently used given up first.
//!
//! It refuses to leave its directory: no path, however written, and no symbolic link leads above
//! it (`openat2` with `RESOLVE_BENEATH`). It serves regular files only. A file is to be replaced
//! by renaming another over it: then those who are being sent the old one get it to its end, and
//! the new one is found within [`StoreConfig::revalidate_after`]. Devices have no business in a
//! served directory: they are refused, but only after they were opened.
//!
//! What bounds it: [`StoreConfig::objects_max`] open objects, [`StoreConfig::lookups_max`] look-ups
//! under way, [`PATH_BYTES_MAX`]. All tables are allocated at start. A hit allocates nothing; a
//! path that is new costs its own length once for each place in the table, and once more when it
//! goes through the threads.
//!
//! A look-up in the threads holds the place its object will have, so that files being opened count
//! like files that are open. A look-up that finds no room is [`StoreRefusal::Full`], and worth
//! asking again as soon as [`Store::has_room`]. Nothing else need be done about objects that nobody
//! uses: they make room when it is needed.
//!
//! The life of an object:
//!
//! ```text
//!  look_up ─▶ Found { handle, opened: Some(source) }     first of all: open it, under this handle
//!  look_up ─▶ Found { handle, opened: None }             open already; one more use
//!  release(handle)                                       one use fewer
//!  poll_closed ─▶ handle                                 nobody will be given it again: close it
//! ```

mod catalogue;
mod directory;
mod path;
mod system;
mod table;
mod threads;

#[cfg(test)]
mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clock::Instant;

pub use catalogue::{Catalogue, CatalogueEntry};
pub use path::PATH_BYTES_MAX;

use directory::Directory;
use table::Table;

/// Handles beyond [`StoreConfig::objects_max`] that may wait to be taken from
/// [`Store::poll_closed`]. When all do, new objects are refused as [`StoreRefusal::Full`].
pub const CLOSED_HANDLES_MAX: usize = 64;

/// What a store may use, and how it opens files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Most objects open or being opened at once, each a descriptor; `1..=OBJECTS_MAX`.
    pub objects_max: usize,
    /// Most look-ups under way in the threads; at least 1. Enough to keep the threads at work from
    /// one round of the worker to the next.
    pub lookups_max: usize,
    /// Threads that open what the kernel has not cached; at least 1.
    pub threads: usize,
    /// Whether files must be readable without the page cache.
    pub direct: Direct,
    /// How long an open object is believed to be what its path names.
    pub revalidate_after: Duration,
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
            // A look-up that misses waits for one or two reads, 0.1 ms each on flash: four
            // threads answer 20,000 a second. [guess]
            threads: 4,
            direct: Direct::Required,
            revalidate_after: Duration::from_secs(1),
            cached_lookups: true,
        }
    }
}

/// Whether files must be readable without the page cache (`O_DIRECT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// A file system that cannot is an error at start, its files are refused.
    Required,
    /// A file system that cannot is read through the page cache.
    Preferred,
}

/// What a store saw, at start, of its file system's ability to read without the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectSupport {
    /// A file was opened with `O_DIRECT`.
    Direct,
    /// The file system refused `O_DIRECT`.
    Refused,
    /// No file was found to try it with.
    Unknown,
}

/// Where an object's bytes are to be read from: for the disk to open.
#[derive(Debug)]
pub enum Source {
    /// An open regular file.
    Descriptor(OwnedFd),
    /// A file of a simulated disk: [`CatalogueEntry::source`].
    Simulated(u32),
}

/// A moment as file systems count it: since 1970-01-01, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// What identifies the content of a file, as of the moment it was opened. If any of it differs,
/// it is another object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Facts {
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
}

impl Facts {
    /// Modification time in whole Unix seconds, 0 for anything before 1970: for `Last-Modified`.
    #[must_use]
    pub fn modified_unix_seconds(&self) -> u64 {
        u64::try_from(self.modified.seconds).unwrap_or(0)
    }

    /// A strong entity tag (RFC 9110 s8.8.3): modification time in whole seconds and size, in hex.
    /// At most [`ENTITY_TAG_BYTES_MAX`] bytes with its quotes.
    ///
    /// It is the same for a copy with the same times (`cp -p`, `rsync -t`) on another server, so
    /// that a download begun there goes on here; nginx writes the same one. Whether the file is
    /// still what it was when it was opened is told by all of [`Facts`], never by this tag: content
    /// of the same size written within the same second has the same tag.
    #[must_use]
    pub fn entity_tag(&self) -> String {
        format!("\"{:x}-{:x}\"", self.modified.seconds, self.size_bytes)
    }
}

/// Longest [`Facts::entity_tag`], bytes: two numbers of 64 bits, three marks.
pub const ENTITY_TAG_BYTES_MAX: usize = 2 * 16 + 3;

/// An object found: one use of it, to be ended by [`Store::release`].
#[derive(Debug)]
#[must_use = "a use that is never released keeps a descriptor open"]
pub struct Found {
    /// Names the object until it comes out of [`Store::poll_closed`]; below
    /// [`Store::handles_max`].
    pub handle: u32,
    /// The file, if this is the first that is heard of the handle.
    pub opened: Option<Source>,
    /// What is known of it.
    pub facts: Facts,
}

/// The first answer to a path.
#[derive(Debug)]
#[must_use]
pub enum LookUp {
    /// Here it is.
    Ready(Found),
    /// The answer will come out of [`Store::poll_answer`].
    Pending,
    /// There is nothing to be had.
    Refused(StoreRefusal),
}

/// Why a path leads to no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// Nothing there.
    #[error("no such object")]
    NotFound,
    /// A directory.
    #[error("a directory")]
    Directory,
    /// Something there that is not to be served: no permission, a symbolic link that leads out,
    /// not a regular file.
    #[error("not to be served")]
    Forbidden,
    /// Every place for an open object is in use, or too many look-ups are under way. To be asked
    /// again when [`Store::has_room`]; no answer of [`Store::poll_answer`].
    #[error("too much open at once")]
    Full,
    /// The process or system is out of descriptors or memory. It may succeed later.
    #[error("out of descriptors or memory")]
    Busy,
    /// The file cannot be read without the page cache, and must ([`Direct::Required`]).
    #[error("the file system refuses O_DIRECT")]
    NotDirect,
    /// The kernel said something else: errno.
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
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The kernel has no `openat2`, or a filter forbids it.
    #[error("openat2 is missing ({0}): Linux 5.6 or later is needed, or a filter must allow it")]
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
    /// Threads or their signal could not be made.
    #[error("cannot start the look-up threads: {0}")]
    Threads(std::io::Error),
}

/// Objects by path.
#[derive(Debug)]
pub struct Store {
    table: Table,
    backend: Backend,
    revalidate_after: Duration,
    counters: Counters,
}

#[derive(Debug)]
enum Backend {
    Directory(Directory),
    Catalogue(Catalogue),
}

/// A file just opened, and what it is.
#[derive(Debug)]
struct Opened {
    source: Source,
    facts: Facts,
}

/// What a backend says to a path.
#[derive(Debug)]
enum Opening {
    Done(Result<Opened, StoreRefusal>),
    /// It takes the disk, for which the caller may not wait: to be submitted.
    Waits,
}

/// A backend's later answer.
#[derive(Debug)]
struct Answer {
    token: u64,
    name: String,
    result: Result<Opened, StoreRefusal>,
}

/// What a store did since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Look-ups answered by an object already open.
    pub store_shared_lookups: u64,
    /// Look-ups that went to the file system and were answered at once.
    pub store_inline_lookups: u64,
    /// Look-ups left to the threads.
    pub store_threaded_lookups: u64,
    /// Look-ups refused, whatever the reason, but for want of room.
    pub store_refused_lookups: u64,
    /// Look-ups that found no room.
    pub store_full_lookups: u64,
    /// Objects opened.
    pub store_opened_objects: u64,
    /// Objects closed, for whatever reason.
    pub store_closed_objects: u64,
    /// Objects whose path was found to name another file, or none.
    pub store_replaced_objects: u64,
}

impl Counters {
    /// Name and value of every counter, in a fixed order.
    #[must_use]
    pub fn as_pairs(&self) -> [(&'static str, u64); 8] {
        [
            ("store_shared_lookups", self.store_shared_lookups),
            ("store_inline_lookups", self.store_inline_lookups),
            ("store_threaded_lookups", self.store_threaded_lookups),
            ("store_refused_lookups", self.store_refused_lookups),
            ("store_full_lookups", self.store_full_lookups),
            ("store_opened_objects", self.store_opened_objects),
            ("store_closed_objects", self.store_closed_objects),
            ("store_replaced_objects", self.store_replaced_objects),
        ]
    }
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
        let directory = Directory::open(path, &config)?;
        Ok(Self::new(Backend::Directory(directory), &config))
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

    fn new(backend: Backend, config: &StoreConfig) -> Self {
        let objects = 1..=StoreConfig::OBJECTS_MAX;
        assert!(
            objects.contains(&config.objects_max),
            "objects_max out of range: {config:?}"
        );
        Self {
            table: Table::new(config.objects_max, CLOSED_HANDLES_MAX),
            backend,
            revalidate_after: config.revalidate_after,
            counters: Counters::default(),
        }
    }

    /// Looks up a path that starts with `/`, is percent-decoded and has no dot segments; one that
    /// is not like this is not found. Never waits. `token` comes back with a later answer.
    pub fn look_up(&mut self, now: Instant, token: u64, path: &str) -> LookUp {
        let Some(name) = path::name_of(path) else {
            return self.refuse(StoreRefusal::NotFound);
        };
        match self.table.find(name) {
            Some(handle) if now.since(self.table.checked_at(handle)) < self.revalidate_after => {
                self.counters.store_shared_lookups += 1;
                return LookUp::Ready(self.share(handle));
            }
            // What is open and to be checked needs no place if it is still the same.
            Some(_) => {}
            None if self.table.has_room() => {}
            None => return self.refuse(StoreRefusal::Full),
        }
        match self.backend.open_object(name) {
            Opening::Waits if self.backend.has_room() && self.table.reserve() => {
                self.backend.submit(token, name);
                self.counters.store_threaded_lookups += 1;
                LookUp::Pending
            }
            Opening::Waits => self.refuse(StoreRefusal::Full),
            Opening::Done(result) => {
                self.counters.store_inline_lookups += 1;
                match self.admit(now, name, result, false) {
                    Ok(found) => LookUp::Ready(found),
                    Err(refusal) => self.refuse(refusal),
                }
            }
        }
    }

    /// The next answer to a pending look-up, with its token. Once it says `None`, the descriptor
    /// of [`Store::poll_fd`] is readable again only when there is another.
    pub fn poll_answer(&mut self, now: Instant) -> Option<(u64, Result<Found, StoreRefusal>)> {
        let Answer {
            token,
            name,
            result,
        } = self.backend.poll_answer()?;
        let admitted = self.admit(now, &name, result, true);
        Some((token, admitted.inspect_err(|refusal| self.count(*refusal))))
    }

    /// Whether a look-up of any path would get an answer, now or later: worth asking before one
    /// that was [`StoreRefusal::Full`] is tried again.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.table.has_room() && self.backend.has_room()
    }

    /// Ends one use of an object.
    ///
    /// # Panics
    /// If the object is not in use: every [`Found`] is released once.
    pub fn release(&mut self, handle: u32) {
        self.table.release(handle);
    }

    /// Lets nobody find this object again, because opening or reading it failed: the next look-up
    /// of its path opens the file anew. Uses of it are still to be released, the last of which
    /// closes it.
    ///
    /// # Panics
    /// If the object is not in use.
    pub fn retire(&mut self, handle: u32) {
        self.table.retire_used(handle);
    }

    /// The path that an object was found by; of one that [`Store::poll_closed`] has not returned.
    #[must_use]
    pub fn path_of(&self, handle: u32) -> String {
        format!("/{}", self.table.name(handle))
    }

    /// An object to close: unused, and its handle free to be given to another. Take them all
    /// after each round of look-ups and releases.
    pub fn poll_closed(&mut self) -> Option<u32> {
        let handle = self.table.poll_closed()?;
        self.counters.store_closed_objects += 1;
        Some(handle)
    }

    /// Readable when [`Store::poll_answer`] has something; `None` for a catalogue.
    #[must_use]
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Directory(directory) => Some(directory.poll_fd()),
            Backend::Catalogue(_) => None,
        }
    }

    /// Every handle is below this.
    #[must_use]
    pub fn handles_max(&self) -> usize {
        self.table.handles_max()
    }

    /// What was seen at start. A catalogue is all direct.
    #[must_use]
    pub fn direct_support(&self) -> DirectSupport {
        match &self.backend {
            Backend::Directory(directory) => directory.direct_support(),
            Backend::Catalogue(_) => DirectSupport::Direct,
        }
    }

    /// The catalogue, to change what is in it; `None` for a directory.
    pub fn catalogue_mut(&mut self) -> Option<&mut Catalogue> {
        match &mut self.backend {
            Backend::Directory(_) => None,
            Backend::Catalogue(catalogue) => Some(catalogue),
        }
    }

    /// What happened since start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Gives the file just opened its place, which may be reserved for it already, or finds that
    /// it is open.
    fn admit(
        &mut self,
        now: Instant,
        name: &str,
        result: Result<Opened, StoreRefusal>,
        is_reserved: bool,
    ) -> Result<Found, StoreRefusal> {
        if is_reserved {
            // For as long as it takes to see whether it is needed.
            self.table.cancel();
        }
        let known = self.table.find(name);
        let opened = match result {
            Ok(opened) => opened,
            Err(refusal) => {
                // Out of descriptors or the like says nothing about the object.
                if let Some(handle) = known
                    && refusal != StoreRefusal::Busy
                {
                    self.replace(handle);
                }
                return Err(refusal);
            }
        };
        if let Some(handle) = known {
            if *self.table.facts(handle) == opened.facts {
                self.table.check(handle, now);
                return Ok(self.share(handle));
            }
            self.replace(handle);
        }
        if !self.table.reserve() {
            assert!(!is_reserved, "a place given back can be taken again");
            return Err(StoreRefusal::Full);
        }
        let handle = self.table.insert(name, opened.facts, now);
        self.counters.store_opened_objects += 1;
        Ok(Found {
            handle,
            opened: Some(opened.source),
            facts: opened.facts,
        })
    }

    fn share(&mut self, handle: u32) -> Found {
        self.table.acquire(handle);
        Found {
            handle,
            opened: None,
            facts: *self.table.facts(handle),
        }
    }

    fn replace(&mut self, handle: u32) {
        self.counters.store_replaced_objects += 1;
        self.table.retire(handle);
    }

    fn refuse(&mut self, refusal: StoreRefusal) -> LookUp {
        self.count(refusal);
        LookUp::Refused(refusal)
    }

    fn count(&mut self, refusal: StoreRefusal) {
        match refusal {
            StoreRefusal::Full => self.counters.store_full_lookups += 1,
            _ => self.counters.store_refused_lookups += 1,
        }
    }
}

impl Backend {
    fn open_object(&mut self, name: &str) -> Opening {
        match self {
            Self::Directory(directory) => directory.open_object(name),
            Self::Catalogue(catalogue) => catalogue.open_object(name),
        }
    }

    /// Whether one more may be submitted.
    fn has_room(&self) -> bool {
        match self {
            Self::Directory(directory) => directory.has_room(),
            Self::Catalogue(catalogue) => catalogue.has_room(),
        }
    }

    /// Has a name opened by whoever may wait for the disk.
    fn submit(&mut self, token: u64, name: &str) {
        match self {
            Self::Directory(directory) => directory.submit(token, name),
            Self::Catalogue(catalogue) => catalogue.submit(token, name),
        }
    }

    fn poll_answer(&mut self) -> Option<Answer> {
        match self {
            Self::Directory(directory) => directory.poll_answer(),
            Self::Catalogue(catalogue) => catalogue.poll_answer(),
        }
    }
}
