//! Storage I/O for one worker: open, close, read, write, submit (`sqsync`), consume completions.
//!
//! **A slot given to the device returns only by its completion.** A read is enqueued with a
//! [`FreeSlot`] and a token; one [`Disk::sqsync`] submits all enqueued reads; completions come back
//! in any order, each with its token and its slot.
//!
//! Four implementations: [`uring`] (`io_uring` on files and block devices, `O_DIRECT` if the
//! descriptor says so), [`nvme`] (a driver of our own for NVMe controllers, which reaches them by
//! [`vfio`]), [`passthru`] (NVMe commands through the kernel's driver) and [`sim`] (seeded, virtual time).
//! They keep the same promises (`tests/conformance`):
//!
//! - A read that succeeds brings exactly the bytes asked for, or those up to the end of the file.
//! - Bytes of a regular file that was overwritten since it was opened are not handed out: such a read
//!   ends in [`DiskError::Changed`] (`docs/develop/decisions/0004-file-change-detection.md`). One that was appended
//!   to is read to the length that it had.
//! - Every accepted read and write completes once, after [`Disk::close`] too.
//!
//! It refuses to cache, to read ahead, to resolve paths (it is given open descriptors) and to make a
//! write durable (the caller calls `fdatasync`). Bounded by the queue depth and the file table of
//! the chosen disk; a full queue returns the read to the caller.

/// The example of the README compiles, and reads what it says.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod nvme;
pub mod passthru;
mod ring;
pub mod sim;
pub mod uring;
pub mod vfio;

use std::hash::{DefaultHasher, Hasher as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use clock::Instant;
use counters::counters;
use memory::{Arena, FilledSlot, FreeSlot};

pub use ring::probe_io_uring;

/// Smallest block, bytes: the sector size that every disk supports, and the smallest alignment of
/// `O_DIRECT`.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// Identifies an open file or block device of one disk: index and generation, opaque to callers.
/// The generation keeps a closed file's identifier from being reused soon.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileIndex(pub u32);

impl FileIndex {
    fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(index))
    }

    /// Index in the table of open files.
    fn table_index(self) -> u16 {
        let [_, _, high, low] = self.0.to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Tells the file from earlier files of the same index.
    fn generation(self) -> u16 {
        let [high, low, _, _] = self.0.to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

/// The file to open.
#[derive(Debug)]
pub enum FileSource {
    /// A regular file or block device; `open` asks for its status. With `O_DIRECT` the page cache is
    /// not used.
    Descriptor(OwnedFd),
    /// A regular file whose status is known. Its content counts as changed if it changed after that
    /// status was taken. The file system is asked nothing before the first read, unless the file was modified in the
    /// last minute: then its status must still be this one, and the page cache is asked for its first and last bytes.
    File {
        /// The file.
        descriptor: OwnedFd,
        /// The known status.
        status: FileStatus,
    },
    /// A range of a block device or image that is open already ([`uring`]). Its content is not checked for
    /// changes.
    Range(DeviceRange),
    /// A range of a namespace of an NVMe controller ([`nvme::Nvme`], [`passthru::Passthru`]).
    Namespace(nvme::NamespaceRange),
    /// A file of the simulation's catalogue ([`sim::SimDisk::add_file`]).
    Simulated(u32),
}

/// A part of a block device or of a regular file, opened as a file of its own. Many may share one
/// descriptor.
#[derive(Clone, Debug)]
pub struct DeviceRange {
    /// The device. Closing the range does not close it.
    pub device: Arc<OwnedFd>,
    /// Where it begins, bytes; a multiple of the device's block.
    pub start_bytes: u64,
    /// Its size, bytes. Its last block belongs to it as a whole; a write beyond that panics.
    pub length_bytes: u64,
}

/// The status of a regular file at some moment: from then on the content that it had must not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileStatus {
    /// Size, bytes.
    pub size_bytes: u64,
    /// When the content changed last: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// When the content or the inode changed last.
    pub changed: (i64, u32),
    /// How many names it has.
    pub links: u32,
    /// Type and rights, as `st_mode`.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its file system's device: major and minor number.
    pub device: (u32, u32),
    /// Whether it is read without the page cache. The next two matter only then.
    pub direct: bool,
    /// Reads must start and end at multiples of this, bytes; 0 if the file system does not say.
    pub direct_offset_align_bytes: u32,
    /// Memory read into must be aligned to this, bytes; 0 if the file system does not say.
    pub direct_memory_align_bytes: u32,
    /// The last bytes of its path, if they are known without asking the kernel.
    pub path_end: Option<PathEnd>,
    /// Its content cannot change, so it is not checked for changes
    /// (`docs/develop/decisions/0014-when-status-is-not-compared.md`).
    pub is_fixed: bool,
    /// Its file system waits for nobody but its disk. If not (NFS, FUSE), reading it and asking for its status are
    /// left to threads of the kernel's, so that one that hangs keeps nobody else waiting.
    pub is_local: bool,
    /// Reads of it may note their time (`atime`): it is open without `O_NOATIME`, on a mount that notes them.
    pub notes_reads: bool,
}

/// Length and hash of the last bytes of a path, to compare another path with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEnd {
    length_bytes: usize,
    hash: u64,
}

impl PathEnd {
    /// Of all of `bytes`. With a leading slash they match whole path components only.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self {
            length_bytes: bytes.len(),
            hash: hasher.finish(),
        }
    }

    /// Whether `path` ends so.
    #[must_use]
    pub fn is_end_of(&self, path: &[u8]) -> bool {
        let start = path.len().checked_sub(self.length_bytes);
        let end = start.and_then(|start| path.get(start..));
        end.is_some_and(|end| Self::of(end) == *self)
    }
}

/// A file that was closed and that no command uses any more.
#[derive(Debug)]
pub struct ClosedFile {
    /// The last descriptor of it in this process. Dropping it may take long: for a deleted file,
    /// the last close frees the space.
    pub descriptor: OwnedFd,
    /// Its file system's device: major and minor number.
    pub device: (u32, u32),
}

/// Alignment and size limits of one open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLimits {
    /// File or device size, bytes.
    pub size_bytes: u64,
    /// Offsets and lengths of reads must be multiples of this (power of two, 512..=slot).
    pub block_bytes: u32,
    /// Largest single read worth asking for, bytes: a multiple of the block, at most the slot.
    pub read_bytes_max: u32,
}

/// A read to be enqueued.
#[derive(Debug)]
pub struct Read {
    /// Which file.
    pub file: FileIndex,
    /// Byte offset, a multiple of the block size.
    pub offset_bytes: u64,
    /// Bytes wanted, a multiple of the block size, at most the slot; may reach past the end of the
    /// file within its last block.
    pub length_bytes: u32,
    /// Target; the disk owns it until the completion.
    pub slot: FreeSlot,
    /// Comes back with the completion.
    pub token: u64,
}

/// A write to be enqueued. A file that was written to through this disk is no longer checked for
/// changes: the disk would detect its own.
#[derive(Debug)]
pub struct Write {
    /// Which file.
    pub file: FileIndex,
    /// Byte offset, a multiple of the block size.
    pub offset_bytes: u64,
    /// Bytes to write, a multiple of the block size, at most what the slot is filled with.
    pub length_bytes: u32,
    /// Source; the disk owns it until the completion.
    pub slot: FilledSlot,
    /// Comes back with the completion.
    pub token: u64,
}

/// A finished read or write.
#[derive(Debug)]
pub struct Completion {
    /// The token of the [`Read`] or [`Write`].
    pub token: u64,
    /// A successful read: the slot, filled with the bytes read (fewer than asked only at the end of
    /// the file). A complete write: its slot, unchanged. Otherwise the free slot and the error.
    pub result: Result<FilledSlot, (FreeSlot, DiskError)>,
}

/// Why a command or open failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// errno of the device or kernel. `EBADF` also means that the file is not open, `ENOTSUP` that
    /// the [`FileSource`] is for another kind of disk, `EIO` also that a read stopped before the end
    /// of an unchanged file.
    #[error("storage error (errno {0})")]
    Io(i32),
    /// The file is no longer what it was when it was opened.
    #[error("the file changed since it was opened")]
    Changed,
    /// Too many open files for the table.
    #[error("the table of open files is full")]
    TableFull,
    /// The status of an NVMe command that failed.
    #[error("the NVMe controller's status: {0}")]
    Nvme(nvme::Status),
}

/// What happened to a disk as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DiskNotice {
    /// An NVMe controller was stopped because something failed, and is started again. Whoever had
    /// commands with it says so: each worker, of its own.
    Reset {
        /// Its name ([`nvme::QueuePairs::new`]).
        controller: Arc<str>,
        /// Why it was stopped.
        error: nvme::ControllerError,
        /// Commands of this disk that it had, and that are issued again.
        commands: u64,
    },
    /// An NVMe controller is of no use any more: all commands for it fail.
    Failed {
        /// Its name.
        controller: Arc<str>,
        /// Why.
        error: nvme::ControllerError,
    },
}

counters! {
    /// What one disk did since start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Counters {
        /// Reads accepted.
        pub disk_read_commands: u64,
        /// Bytes read.
        pub disk_read_bytes: u64,
        /// Writes accepted; the server makes none.
        pub disk_write_commands: u64,
        /// Bytes written; the server writes none.
        pub disk_write_bytes: u64,
        /// Reads returned because the disk's queue was full.
        pub disk_queue_full_commands: u64,
        /// Reads issued again: for the rest of a partial one, when interrupted, or when one merged with
        /// others failed or was cut short.
        pub disk_reissued_commands: u64,
        /// Reads that went to the kernel in one entry with the read before them.
        pub disk_merged_commands: u64,
        /// Reads the device or the kernel failed.
        pub disk_failed_commands: u64,
        /// Reads refused because the file had changed since it was opened.
        pub disk_changed_commands: u64,
        /// Completions with unknown or stale user data; ignored.
        pub disk_stale_completions: u64,
        /// System calls made to submit and to reap reads.
        pub disk_enter_calls: u64,
        /// System calls made to check whether a file changed; of files on mounts that are not local, entries of
        /// io_uring.
        pub disk_check_calls: u64,
        /// Files whose links, name, mode or owner changed while their content stayed.
        pub disk_touched_files: u64,
        /// Times that a file was touched or appended to, and served on because what was read of it is still there.
        pub disk_verified_files: u64,
        /// Reads made to find that out.
        pub disk_verify_commands: u64,
        /// Files registered with the kernel because they are read often, and devices of a raw store.
        pub disk_registered_files: u64,
        /// Files the kernel refused to register: each of their reads costs a little more.
        pub disk_unregistered_files: u64,
        /// Times the kernel refused to unregister a file; tried again later.
        pub disk_kept_registrations: u64,
    }
}

impl Counters {
    /// Counts a command that ended in `error`.
    fn count_failure(&mut self, error: DiskError) {
        match error {
            DiskError::Changed => self.disk_changed_commands += 1,
            DiskError::Io(_) | DiskError::Nvme(_) | DiskError::TableFull => {
                self.disk_failed_commands += 1
            }
        }
    }
}

/// Storage for one worker.
pub trait Disk {
    /// Takes ownership of a file and asks its device for its limits. Not for the data path: it makes
    /// several system calls.
    ///
    /// # Errors
    /// The table is full, the kernel refused, or the file has changed since its status was taken
    /// ([`DiskError::Changed`]); the file counts as closed then.
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError>;

    /// Closes a file. Commands in flight on it still complete. A file that is not open is ignored.
    fn close(&mut self, file: FileIndex);

    /// A closed file, for the caller to drop on a thread that may block; `None` from a disk that
    /// drops them itself. Take them all after each round of closes and completions.
    fn poll_closed(&mut self) -> Option<ClosedFile> {
        None
    }

    /// Enqueues a read; nothing is submitted before `sqsync`. `Err` returns the read when the queue
    /// is full. A read of a file that is not open completes with `EBADF`.
    ///
    /// # Panics
    /// If `length_bytes` is zero or more than the slot holds.
    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read>;

    /// Enqueues a write, like [`Disk::read`].
    ///
    /// # Panics
    /// If `length_bytes` is zero or more than the slot is filled with.
    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write>;

    /// Submits all enqueued commands by one system call. Costs nothing if there are none.
    ///
    /// # Errors
    /// The kernel refused the submission; the commands stay enqueued.
    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError>;

    /// Hands up to `completions_max` completions, in any order, to `sink`; never blocks; returns
    /// how many. Costs nothing if nothing is in flight.
    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize;

    /// Commands enqueued or in flight.
    fn in_flight(&self) -> usize;

    /// The descriptor that is readable when completions wait to be consumed; `None` in simulation.
    /// It never changes. It may stay readable until [`Disk::clear_wake`]. A poll that ends in `EINTR`
    /// counts as readable: the kernel may have interrupted it to complete a command.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// When to look for completions at the latest, if nothing else is to be done before; `None` while
    /// [`Disk::poll_fd`] tells of them, and while nothing is in flight.
    fn next_poll(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Call whenever [`Disk::poll_fd`] was readable, before consuming completions until fewer come than
    /// asked for: it is readable again only for others.
    fn clear_wake(&mut self) {}

    /// What happened since start.
    fn counters(&self) -> Counters;

    /// Names and values of what only this kind of disk counts, in a fixed order.
    fn own_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Something for the log that happened to the disk; to be asked for in each round.
    fn poll_notice(&mut self) -> Option<DiskNotice> {
        None
    }
}

/// What the last system call of this thread failed with.
fn last_errno() -> i32 {
    let error = std::io::Error::last_os_error();
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A misaligned command is a programming error, which a real device answers with `EINVAL`.
fn check_alignment(offset_bytes: u64, length_bytes: u32, limits: &FileLimits) {
    debug_assert!(
        offset_bytes.is_multiple_of(limits.block_bytes.into())
            && length_bytes.is_multiple_of(limits.block_bytes),
        "{length_bytes} bytes at {offset_bytes} are not whole blocks of {}",
        limits.block_bytes
    );
}
