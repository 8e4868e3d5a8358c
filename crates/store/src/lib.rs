//! A directory served as objects that do not change while anyone can be sent them.
//!
//! [`Store::look_up`] turns a path into an open file, and never waits for the disk: what the
//! kernel can resolve from its own caches is answered at once, and the rest is left to a few
//! threads, whose answers come out of [`Store::poll_answer`]. Who asks twice shares one
//! descriptor; descriptors that nobody uses are kept, the least recently used given up first.
//!
//! It refuses to serve what lies outside its directory: no path, however written, and no symbolic
//! link leads there (`openat2` with `RESOLVE_BENEATH`). A link that leaves the directory and ends
//! in it again, an absolute one for example, is followed. It serves regular files only. A file is
//! to be replaced by renaming another over it: then those who are being sent the old one get it to
//! its end, and the new one is found within [`StoreConfig::revalidate_after`]. Devices have no
//! business in a served directory: they are refused, but only after they were opened.
//!
//! **Whatever does not answer hurts its own objects only.** The worker itself asks nothing but the
//! caches of local file systems. In the threads, each mount is a [`Lane`] that may have a part of
//! them and of the look-ups; a look-up that takes longer than [`StoreConfig::lookup_time_max`] is
//! answered by [`StoreRefusal::TimedOut`].
//!
//! What bounds it: [`StoreConfig::objects_max`] open objects, [`StoreConfig::lookups_max`] look-ups
//! under way, [`PATH_BYTES_MAX`]. All tables are allocated at start, but for the threads' queues,
//! which grow to what look-ups and objects there may be. A hit allocates nothing; a path that is
//! new costs its own length once for each place in the table, and once more when it goes through
//! the threads.
//!
//! A look-up in the threads holds the place its object will have, so that files being opened count
//! like files that are open. A look-up that finds no room is [`StoreRefusal::Full`], and worth
//! asking again as soon as [`Store::has_room`]. Objects that nobody uses make room when it is
//! needed, and are closed after [`StoreConfig::unused_time_max`] in any case: a file that was
//! deleted keeps its space, and a file system cannot be unmounted, as long as it is open.
//! [`Store::expire_unused`] sees to it. Descriptors are closed by the threads
//! ([`Store::close_descriptor`]), because the last close of a deleted file frees its space.
//!
//! The life of an object:
//!
//! ```text
//!  look_up ─▶ Found { handle, opened: Some(source) }     first of all: open it, under this handle
//!  look_up ─▶ Found { handle, opened: None }             open already; one more use
//!  release(handle)                                       one use fewer
//!  expire_unused                                         long unused: nobody is given it again
//!  poll_closed ─▶ handle                                 nobody will be given it again: close it
//! ```

mod catalogue;
mod directory;
mod lookups;
mod mounts;
mod path;
mod root;
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
use lookups::Lookups;
use root::{Miss, Way};
use table::Table;
use threads::Reply;

/// Handles beyond [`StoreConfig::objects_max`] that may wait to be taken from
/// [`Store::poll_closed`]. When all do, new objects are refused as [`StoreRefusal::Full`].
pub const CLOSED_HANDLES_MAX: usize = 64;
/// Descriptors of one lane that may wait for the threads to close them before its look-ups find no
/// room. They count against the limit of open files.
pub const CLOSES_MAX: usize = 256;
/// Most long unused objects given up by one call of [`Store::expire_unused`].
pub const EXPIRED_OBJECTS_MAX: usize = 64;
/// Unused objects are looked for once in this time, so that a server where many become unused one
/// after the other wakes once for all of them. Divides a second.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// What a store may use, and how it opens files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Most objects open or being opened at once, each a descriptor; `1..=OBJECTS_MAX`.
    pub objects_max: usize,
    /// Most look-ups under way in the threads; at least 1. A lane may have a quarter of them: enough
    /// to keep its threads at work from one round of the worker to the next.
    pub lookups_max: usize,
    /// Threads that open what the kernel has not cached, and close files; at least 1. A lane may
    /// keep a quarter of them.
    pub threads: usize,
    /// Longest time a look-up may take in the threads.
    pub lookup_time_max: Duration,
    /// How long an object that nobody uses is kept open.
    pub unused_time_max: Duration,
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
            // threads, a lane's share, answer 20,000 a second. [guess]
            threads: 16,
            // Players give a request up after 10 s or more. [guess]
            lookup_time_max: Duration::from_secs(10),
            // An object asked for more seldom than this is opened for each request, which costs a
            // few microseconds more than to see whether it is still the same.
            unused_time_max: Duration::from_secs(30),
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
    /// An open regular file, with what [`Facts`] leave out of its status.
    File {
        /// The file. Whoever closes it may have to free its space: see
        /// [`Store::close_descriptor`].
        descriptor: OwnedFd,
        /// As of the same moment as the facts.
        attributes: Attributes,
        /// Whether the name of the object is the path of the file in the directory.
        links: Links,
    },
    /// A file of a simulated disk: [`CatalogueEntry::source`].
    Simulated(u32),
}

/// Symbolic links on the way to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// There was none: the path of the file ends with the name it was found by.
    Refused,
    /// There may have been some.
    Followed,
}

/// What may change of a file without its content changing, and moves [`Facts::changed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// How many names it has.
    pub links: u32,
    /// Type and rights, as `st_mode`.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// Who must answer before an object can be opened, read or closed: objects of one lane are on the
/// same file system, and wait for each other if it hangs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lane(u64);

impl Lane {
    /// Paths that lead from mount to mount by symbolic links, wherever they end.
    pub(crate) const ELSEWHERE: Self = Self(u64::MAX);

    /// The lane of a file system: see [`Facts::device`].
    #[must_use]
    pub const fn of_device(device: u64) -> Self {
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
    /// Every place for an open object is in use, or too many look-ups of this lane are under way.
    /// To be asked again when it [`Store::has_room`].
    #[error("too much open at once")]
    Full(Lane),
    /// Its file system did not answer within [`StoreConfig::lookup_time_max`].
    #[error("the file system does not answer")]
    TimedOut,
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
    lookups: Lookups,
    /// What the threads are to close, by lane.
    closing: Vec<Closing>,
    /// Unused objects are not looked for before this, unless something is closed.
    expiry_resumes: Instant,
    revalidate_after: Duration,
    lookup_time_max: Duration,
    unused_time_max: Duration,
    /// What became of the last [`Store::reopen`].
    reopened: Option<Result<(), StoreError>>,
    /// As last told.
    now: Instant,
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

/// Descriptors of a lane that the threads are to close.
#[derive(Clone, Copy, Debug)]
struct Closing {
    lane: Lane,
    count: usize,
    /// When one was last closed, or the first handed over.
    since: Instant,
}

/// What a backend says to a path.
#[derive(Debug)]
enum Opening {
    Done(Result<Opened, StoreRefusal>),
    /// Somebody has to be waited for, which the caller may not do: to be submitted.
    Waits(Lane, Way),
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
    /// Objects given up because nobody had used them for long.
    pub store_expired_objects: u64,
    /// Look-ups given up because their file system did not answer in time.
    pub store_overdue_lookups: u64,
    /// Look-ups that came back from the threads after they were given up.
    pub store_late_lookups: u64,
    /// Descriptors handed to the threads to be closed.
    pub store_threaded_closes: u64,
    /// Of these, closed.
    pub store_finished_closes: u64,
    /// Times the directory was opened again.
    pub store_reopened_roots: u64,
}

impl Counters {
    /// Name and value of every counter, in a fixed order.
    #[must_use]
    pub fn as_pairs(&self) -> [(&'static str, u64); 14] {
        [
            ("store_shared_lookups", self.store_shared_lookups),
            ("store_inline_lookups", self.store_inline_lookups),
            ("store_threaded_lookups", self.store_threaded_lookups),
            ("store_refused_lookups", self.store_refused_lookups),
            ("store_full_lookups", self.store_full_lookups),
            ("store_opened_objects", self.store_opened_objects),
            ("store_closed_objects", self.store_closed_objects),
            ("store_replaced_objects", self.store_replaced_objects),
            ("store_expired_objects", self.store_expired_objects),
            ("store_overdue_lookups", self.store_overdue_lookups),
            ("store_late_lookups", self.store_late_lookups),
            ("store_threaded_closes", self.store_threaded_closes),
            ("store_finished_closes", self.store_finished_closes),
            ("store_reopened_roots", self.store_reopened_roots),
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
            lookups: Lookups::new(config.lookups_max),
            backend,
            closing: Vec::new(),
            expiry_resumes: Instant::ZERO,
            revalidate_after: config.revalidate_after,
            lookup_time_max: config.lookup_time_max,
            unused_time_max: config.unused_time_max,
            reopened: None,
            now: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// Looks up a path that starts with `/`, is percent-decoded and has no dot segments; one that
    /// is not like this is not found. Never waits. `token` comes back with a later answer.
    pub fn look_up(&mut self, now: Instant, token: u64, path: &str) -> LookUp {
        self.now = now;
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
            None => return self.refuse(StoreRefusal::Full(self.backend.lane_of(name))),
        }
        match self.backend.open_object(name) {
            Opening::Waits(lane, way) if self.has_room(lane) && self.table.reserve() => {
                let id = self.lookups.begin(token, lane, now + self.lookup_time_max);
                self.backend.submit(id, name.to_owned(), lane, way);
                self.counters.store_threaded_lookups += 1;
                LookUp::Pending
            }
            Opening::Waits(lane, _) => self.refuse(StoreRefusal::Full(lane)),
            Opening::Done(result) => {
                self.counters.store_inline_lookups += 1;
                match self.admit(now, name, result, false) {
                    Ok(found) => LookUp::Ready(found),
                    Err(refusal) => self.refuse(refusal),
                }
            }
        }
    }

    /// The next answer to a pending look-up, with its token; each has one. Once it says `None`,
    /// the descriptor of [`Store::poll_fd`] is readable again only when there is another.
    pub fn poll_answer(&mut self, now: Instant) -> Option<(u64, Result<Found, StoreRefusal>)> {
        self.now = now;
        while let Some(reply) = self.backend.poll_reply() {
            match reply {
                Reply::LookUp { id, name, result } => {
                    if let Some(answer) = self.take_answer(now, id, name, result) {
                        return Some(answer);
                    }
                }
                Reply::Closed(lane, count) => self.note_closed(lane, count),
                Reply::Root(result) => {
                    self.counters.store_reopened_roots += u64::from(result.is_ok());
                    self.reopened = Some(result);
                }
            }
        }
        let (id, pending) = self.lookups.poll_overdue(now)?;
        self.counters.store_overdue_lookups += 1;
        if self.backend.withdraw(id, pending.lane) {
            self.lookups.finish(id);
            self.table.cancel();
        }
        let refusal = StoreRefusal::TimedOut;
        self.count(refusal);
        Some((pending.token, Err(refusal)))
    }

    /// What a thread brought; `None` if nobody waits for it any more, or it has to go on.
    fn take_answer(
        &mut self,
        now: Instant,
        id: u64,
        name: String,
        result: Result<Opened, Miss>,
    ) -> Option<(u64, Result<Found, StoreRefusal>)> {
        let lane = Lane::ELSEWHERE;
        if result.as_ref().is_err_and(|miss| *miss == Miss::Elsewhere)
            && self.lookups.redirect(id, lane)
        {
            self.backend.submit(id, name, lane, Way::Links);
            return None;
        }
        let pending = self.lookups.finish(id);
        let result = result.map_err(|miss| match miss {
            Miss::Refused(refusal) => refusal,
            Miss::Elsewhere => StoreRefusal::Full(lane),
        });
        if pending.is_abandoned {
            self.table.cancel();
            self.counters.store_late_lookups += 1;
            if let Ok(opened) = result {
                self.give_back(opened);
            }
            return None;
        }
        let admitted = self.admit(now, &name, result, true);
        let admitted = admitted.inspect_err(|refusal| self.count(*refusal));
        Some((pending.token, admitted))
    }

    /// When something is due even if nothing happens: a look-up's time is up, or an unused object
    /// is to be closed. Never before the `now` last told.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.lookups.poll_timeout(), self.next_expiry()]
            .into_iter()
            .flatten()
            .min()
            .map(|due| due.max(self.now))
    }

    /// Gives up the objects that nobody has used for [`StoreConfig::unused_time_max`], at most
    /// [`EXPIRED_OBJECTS_MAX`] of them: they come out of [`Store::poll_closed`]. To be called each
    /// round, and soon after [`Store::poll_timeout`].
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
            let lane = Lane::of_device(self.table.facts(handle).device);
            match self.closing.iter().find(|closing| closing.lane == lane) {
                Some(closing) if closing.count >= EXPIRED_OBJECTS_MAX => {
                    if now.since(closing.since) < EXPIRY_INTERVAL {
                        self.expiry_resumes = now + EXPIRY_INTERVAL;
                        return;
                    }
                    // Its file system hangs, and others behind it should not wait.
                    self.table.put_off(handle, now);
                }
                _ => {
                    self.counters.store_expired_objects += 1;
                    self.table.retire(handle);
                }
            }
        }
    }

    /// When an object has been unused for long enough, at the next whole [`EXPIRY_INTERVAL`].
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

    /// The lane that a look-up of `path` waits for, if no symbolic link leads it to another.
    #[must_use]
    pub fn lane_of(&self, path: &str) -> Lane {
        self.backend.lane_of(path::name_of(path).unwrap_or(""))
    }

    /// Whether a look-up in this lane would get an answer, now or later: worth asking before one
    /// that was [`StoreRefusal::Full`] is tried again.
    #[must_use]
    pub fn has_room(&self, lane: Lane) -> bool {
        self.table.has_room() && self.lookups.has_room(lane) && self.closing_in(lane) < CLOSES_MAX
    }

    /// Has a thread close the descriptor of an object of `device` (see [`Facts::device`]) that came
    /// out of [`Store::poll_closed`]: if its file is deleted, that frees its space, and for a file
    /// of gigabytes takes long.
    pub fn close_descriptor(&mut self, device: u64, descriptor: OwnedFd) {
        let lane = Lane::of_device(device);
        if self.backend.close(lane, descriptor) {
            self.counters.store_threaded_closes += 1;
            let known = self.closing.iter_mut().find(|closing| closing.lane == lane);
            match known {
                Some(closing) => closing.count += 1,
                None => self.closing.push(Closing {
                    lane,
                    count: 1,
                    since: self.now,
                }),
            }
        }
    }

    /// Has a thread open the directory again by its path, which may lead to another by now; if it
    /// cannot, the old one stays. Objects of the old one are served as long as they are in use; a
    /// path is looked up in the new one within [`StoreConfig::revalidate_after`].
    pub fn reopen(&mut self) {
        match &mut self.backend {
            Backend::Directory(directory) => directory.open_root(),
            Backend::Catalogue(_) => self.reopened = Some(Ok(())),
        }
    }

    /// What became of the last [`Store::reopen`], once. Known when [`Store::poll_answer`] has been
    /// called after it was done.
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
                    && !matches!(refusal, StoreRefusal::Busy | StoreRefusal::Full(_))
                {
                    self.replace(handle);
                }
                return Err(refusal);
            }
        };
        if let Some(handle) = known {
            if *self.table.facts(handle) == opened.facts {
                self.table.check(handle, now);
                if is_reserved {
                    self.give_back(opened);
                }
                return Ok(self.share(handle));
            }
            self.replace(handle);
        }
        if !self.table.reserve() {
            assert!(!is_reserved, "a place given back can be taken again");
            let lane = Lane::of_device(opened.facts.device);
            self.give_back(opened);
            return Err(StoreRefusal::Full(lane));
        }
        let handle = self.table.insert(name, opened.facts, now);
        self.counters.store_opened_objects += 1;
        Ok(Found {
            handle,
            opened: Some(opened.source),
            facts: opened.facts,
        })
    }

    /// What was opened is not needed. Only what a local file system's caches gave may be closed
    /// here, if it is open elsewhere too.
    fn give_back(&mut self, opened: Opened) {
        if let Source::File { descriptor, .. } = opened.source {
            self.close_descriptor(opened.facts.device, descriptor);
        }
    }

    fn note_closed(&mut self, lane: Lane, count: usize) {
        self.counters.store_finished_closes += u64::try_from(count).unwrap_or(u64::MAX);
        self.expiry_resumes = Instant::ZERO;
        let place = self.closing.iter().position(|closing| closing.lane == lane);
        let place = place.expect("invariant: threads close what they are given");
        self.closing[place].count -= count;
        self.closing[place].since = self.now;
        if self.closing[place].count == 0 {
            self.closing.swap_remove(place);
        }
    }

    fn closing_in(&self, lane: Lane) -> usize {
        let known = self.closing.iter().find(|closing| closing.lane == lane);
        known.map_or(0, |closing| closing.count)
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
            StoreRefusal::Full(_) => self.counters.store_full_lookups += 1,
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

    fn lane_of(&self, name: &str) -> Lane {
        match self {
            Self::Directory(directory) => directory.lane_of(name),
            Self::Catalogue(catalogue) => catalogue.lane_of(name),
        }
    }

    /// Has a name opened by whoever may wait for the disk.
    fn submit(&mut self, id: u64, name: String, lane: Lane, way: Way) {
        match self {
            Self::Directory(directory) => directory.submit(id, name, lane, way),
            Self::Catalogue(catalogue) => catalogue.submit(id, name),
        }
    }

    /// Takes back what was submitted and is not begun.
    fn withdraw(&mut self, id: u64, lane: Lane) -> bool {
        match self {
            Self::Directory(directory) => directory.withdraw(id, lane),
            // As if each had a thread that waits.
            Self::Catalogue(_) => false,
        }
    }

    /// Whether there is somebody to close it later.
    fn close(&mut self, lane: Lane, descriptor: OwnedFd) -> bool {
        match self {
            Self::Directory(directory) => {
                directory.close(lane, descriptor);
                true
            }
            Self::Catalogue(_) => false,
        }
    }

    fn poll_reply(&mut self) -> Option<Reply> {
        match self {
            Self::Directory(directory) => directory.poll_reply(),
            Self::Catalogue(catalogue) => catalogue.poll_reply(),
        }
    }
}
