//! The table of open files, and the check that their content has not changed since open.
//!
//! **Bytes of a file that changed since it was opened are not handed out.** After a read has
//! completed, the file's status is compared with its status at open. This order is sound because
//! the kernel updates `mtime` before a writer's bytes can be read: in `write`, before the copy to the
//! page cache or the submission; through a mapping, when the page is made writable. So bytes read
//! before a check that finds the old `mtime` are the old bytes.
//!
//! | what differs | verdict |
//! |---|---|
//! | `size` or `mtime` | changed, for good, even if the old values are restored |
//! | `ctime`, and also link count, mode, owner or path | not written: unlinked, renamed or replaced, linked, `chmod`, `chown`. Served on; the next check compares with the new `ctime` |
//! | only `ctime` | changed: overwritten, and its `mtime` restored (`touch -r`, `cp -p`) |
//!
//! What this cannot detect, and why: `docs/develop/decisions/0004-file-change-detection.md`. It refuses to
//! check block devices, which have no timestamps, ranges of devices and images ([`DeviceRange`]), files
//! written through this disk, and files whose content cannot change ([`FileStatus::is_fixed`]).
//!
//! One `fstat` serves all completions of a file that were reaped together. It costs 170 ns of CPU
//! time here (decision 4); a read costs 1,700 to 4,000 ns and takes 75,000.
//! Bounded by the length of the table.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use super::limits::{Devices, status};
use super::ranges::RangedDevices;
use crate::{
    ClosedFile, DeviceRange, DiskError, FileIndex, FileLimits, FileSource, FileStatus, PathEnd,
};

/// The parts of a status that tell whether the content was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    attributes: (u64, u32, u32, u32),
}

/// A file's identity at the last check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Baseline {
    identity: Identity,
    /// `None` where there is no `/proc`.
    path_end: Option<PathEnd>,
}

impl Identity {
    /// From a status just asked for.
    fn from_stat(status: &libc::stat) -> Self {
        #[cfg_attr(
            target_arch = "x86_64",
            expect(clippy::useless_conversion, reason = "st_nlink is 32 bits on others")
        )]
        let links = u64::from(status.st_nlink);
        Self {
            size_bytes: u64::try_from(status.st_size).unwrap_or(0),
            modified: (status.st_mtime, status.st_mtime_nsec),
            changed: (status.st_ctime, status.st_ctime_nsec),
            attributes: (links, status.st_mode, status.st_uid, status.st_gid),
        }
    }

    /// From a status known at open.
    fn from_status(status: &FileStatus) -> Self {
        let time = |(seconds, nanos): (i64, u32)| (seconds, i64::from(nanos));
        let &FileStatus {
            links,
            mode,
            user,
            group,
            ..
        } = status;
        Self {
            size_bytes: status.size_bytes,
            modified: time(status.modified),
            changed: time(status.changed),
            attributes: (links.into(), mode, user, group),
        }
    }
}

impl Baseline {
    /// Whether size and times are the same: neither content nor inode changed.
    fn is_untouched(&self, now: &Identity) -> bool {
        let times =
            |identity: &Identity| (identity.size_bytes, identity.modified, identity.changed);
        times(&self.identity) == times(now)
    }

    /// Whether the file, whose identity is `now` and path is `path`, may have been written to.
    fn was_written(&self, now: &Identity, path: Option<&[u8]>) -> bool {
        let before = &self.identity;
        if (before.size_bytes, before.modified) != (now.size_bytes, now.modified) {
            return true;
        }
        let is_renamed = match (self.path_end, path) {
            (Some(end), Some(path)) => !end.is_end_of(path),
            _ => false,
        };
        before.changed != now.changed && before.attributes == now.attributes && !is_renamed
    }
}

/// The path of an open file by `/proc/self/fd`. It asks no file system, so it never blocks; it takes
/// some 6 us (3.6 % of the core while 13,020 objects of 300 KB were opened and sent), because the
/// kernel makes an inode of `/proc` for each.
fn kernel_path(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some(path.into_os_string().into_vec())
}

fn path_end(file: BorrowedFd<'_>) -> Option<PathEnd> {
    kernel_path(file).as_deref().map(PathEnd::of)
}

/// What is known of a file's changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChangeState {
    /// Not checked: a block device, a file written through this disk, or one that cannot change.
    Unchecked,
    /// Unchanged at its last check, in round `.1`; `None`: not checked since open.
    Unchanged(Baseline, Option<u64>),
    /// Changed, for good.
    Changed,
}

/// A file's descriptor, or that of the device that it is a range of.
#[derive(Debug)]
enum Descriptor {
    Own(OwnedFd),
    /// And the device's place in the table of those with open ranges, if it has one.
    Shared(Arc<OwnedFd>, Option<u8>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => descriptor.as_fd(),
            Self::Shared(descriptor, _) => descriptor.as_fd(),
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    descriptor: Descriptor,
    /// Where it begins in its descriptor, bytes.
    start_bytes: u64,
    /// The limits at open; the size grows with writes through this disk.
    pub(super) limits: FileLimits,
    /// Registered with the ring under its table index; a range's device has a registration of its own.
    pub(super) is_registered: bool,
    /// Reads before it is registered, and that one; not counted further.
    reads: u32,
    /// Its file system's device.
    device: (u32, u32),
    change_state: ChangeState,
    /// Commands enqueued or in flight on it.
    commands: u32,
    is_closing: bool,
}

impl OpenFile {
    /// Its descriptor's number.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.descriptor.as_fd().as_raw_fd()
    }

    /// Whether it is a part of its descriptor's file.
    pub(super) const fn is_range(&self) -> bool {
        matches!(self.descriptor, Descriptor::Shared(..))
    }

    /// The place of the device that it is a range of, if that has one.
    pub(super) const fn device_place(&self) -> Option<u8> {
        match self.descriptor {
            Descriptor::Own(_) => None,
            Descriptor::Shared(_, place) => place,
        }
    }

    /// Bytes from its start to the end of its last block.
    pub(super) fn whole_bytes(&self) -> u64 {
        let FileLimits {
            size_bytes,
            block_bytes,
            ..
        } = self.limits;
        size_bytes.div_ceil(block_bytes.into()) * u64::from(block_bytes)
    }

    /// Where a byte of it is in its descriptor.
    pub(super) const fn place(&self, offset_bytes: u64) -> u64 {
        self.start_bytes.saturating_add(offset_bytes)
    }

    /// Counts a read; true for the one after `register_after` others, once.
    pub(super) fn count_read(&mut self, register_after: u32) -> bool {
        let is_due = self.reads == register_after;
        if self.reads <= register_after {
            self.reads = self.reads.saturating_add(1);
        }
        is_due
    }

    /// The closed file, once no command uses it any more; `None` for a range, whose device stays open.
    pub(super) fn into_closed(self) -> Option<ClosedFile> {
        match self.descriptor {
            Descriptor::Own(descriptor) => Some(ClosedFile {
                descriptor,
                device: self.device,
            }),
            Descriptor::Shared(..) => None,
        }
    }

    /// A write through us has reached `end_bytes`.
    pub(super) fn note_write(&mut self, end_bytes: u64) {
        self.change_state = ChangeState::Unchecked;
        if !self.is_range() {
            self.limits.size_bytes = self.limits.size_bytes.max(end_bytes);
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u16,
    file: Option<OpenFile>,
}

/// All open files.
#[derive(Debug)]
pub(super) struct Files {
    entries: Vec<Entry>,
    free: Vec<u16>,
    devices: Devices,
    pub(super) ranged: RangedDevices,
    round: u64,
    /// `fstat` calls made by [`Files::check`].
    pub(super) check_calls: u64,
    /// Files whose `ctime` moved without a write.
    pub(super) touched_files: u64,
}

impl Files {
    /// A table for `files_max` files, at most 65,536.
    pub(super) fn new(files_max: u32) -> Self {
        let entries = (0..files_max).map(|_| Entry::default()).collect();
        let free = (0..=u16::MAX).take(files_max as usize).rev().collect();
        Self {
            entries,
            free,
            devices: Devices::default(),
            ranged: RangedDevices::default(),
            round: 0,
            check_calls: 0,
            touched_files: 0,
        }
    }

    /// Takes ownership of a file; returns its identifier. `Err` returns the refused file, if it has a
    /// descriptor.
    pub(super) fn open(
        &mut self,
        file: FileSource,
        slot_bytes: u32,
    ) -> Result<(FileIndex, FileLimits), (Option<ClosedFile>, DiskError)> {
        let (descriptor, known) = match file {
            FileSource::Descriptor(descriptor) => (descriptor, None),
            FileSource::File { descriptor, status } => (descriptor, Some(status)),
            FileSource::Range(range) => {
                let opened = self.open_range(&range, slot_bytes);
                return opened.map_err(|error| (None, error));
            }
            FileSource::Namespace(_) | FileSource::Simulated(_) => {
                return Err((None, DiskError::Io(libc::ENOTSUP)));
            }
        };
        let described = match &known {
            Some(status) => self.describe_known(descriptor.as_fd(), status, slot_bytes),
            None => self.describe(descriptor.as_fd(), slot_bytes),
        };
        let index = described.and_then(|described| {
            let index = self.free.pop().ok_or(DiskError::TableFull)?;
            Ok((index, described))
        });
        let (index, (limits, change_state, device)) = match index {
            Ok(index) => index,
            Err(error) => {
                let device = known.unwrap_or_default().device;
                let closed = ClosedFile { descriptor, device };
                return Err((Some(closed), error));
            }
        };
        let descriptor = Descriptor::Own(descriptor);
        Ok(self.insert(index, descriptor, 0, (limits, change_state, device)))
    }

    /// Enters a file at a free index.
    fn insert(
        &mut self,
        index: u16,
        descriptor: Descriptor,
        start_bytes: u64,
        (limits, change_state, device): (FileLimits, ChangeState, (u32, u32)),
    ) -> (FileIndex, FileLimits) {
        let entry = &mut self.entries[usize::from(index)];
        entry.file = Some(OpenFile {
            descriptor,
            start_bytes,
            limits,
            is_registered: false,
            reads: 0,
            device,
            change_state,
            commands: 0,
            is_closing: false,
        });
        (FileIndex::new(index, entry.generation), limits)
    }

    /// Opens a range. Its blocks are all within the device.
    fn open_range(
        &mut self,
        range: &DeviceRange,
        slot_bytes: u32,
    ) -> Result<(FileIndex, FileLimits), DiskError> {
        let facts = self.ranged.facts(range, &mut self.devices, slot_bytes)?;
        let limits = facts.limits;
        let block_bytes = u64::from(limits.block_bytes);
        let whole_bytes = range.length_bytes.checked_next_multiple_of(block_bytes);
        let end_bytes = whole_bytes.and_then(|whole| whole.checked_add(range.start_bytes));
        let is_within = end_bytes.is_some_and(|end| end <= limits.size_bytes);
        if !range.start_bytes.is_multiple_of(block_bytes) || !is_within {
            return Err(DiskError::Io(libc::EINVAL));
        }
        let limits = FileLimits {
            size_bytes: range.length_bytes,
            ..limits
        };
        let index = self.free.pop().ok_or(DiskError::TableFull)?;
        let place = self.ranged.enter(&range.device, facts);
        let descriptor = Descriptor::Shared(Arc::clone(&range.device), place);
        let described = (limits, ChangeState::Unchecked, facts.device);
        Ok(self.insert(index, descriptor, range.start_bytes, described))
    }

    fn describe_known(
        &mut self,
        file: BorrowedFd<'_>,
        status: &FileStatus,
        slot_bytes: u32,
    ) -> Result<(FileLimits, ChangeState, (u32, u32)), DiskError> {
        let limits = self.devices.look_up(status, slot_bytes)?;
        if status.is_fixed {
            return Ok((limits, ChangeState::Unchecked, status.device));
        }
        let baseline = Baseline {
            identity: Identity::from_status(status),
            path_end: status.path_end.or_else(|| path_end(file)),
        };
        // `None`: even reads of the current round must be checked.
        Ok((
            limits,
            ChangeState::Unchanged(baseline, None),
            status.device,
        ))
    }

    fn describe(
        &mut self,
        file: BorrowedFd<'_>,
        slot_bytes: u32,
    ) -> Result<(FileLimits, ChangeState, (u32, u32)), DiskError> {
        // Asked before the limits, so that a change in between is detected.
        let status = status(file)?;
        let limits = self.devices.ask(file, &status, slot_bytes)?;
        let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        let change_state = if is_regular {
            let baseline = Baseline {
                identity: Identity::from_stat(&status),
                path_end: path_end(file),
            };
            ChangeState::Unchanged(baseline, None)
        } else {
            ChangeState::Unchecked
        };
        let device = (libc::major(status.st_dev), libc::minor(status.st_dev));
        Ok((limits, change_state, device))
    }

    /// The table index of a file that is open and not closing.
    pub(super) fn find(&self, file: FileIndex) -> Option<u16> {
        let entry = self.entries.get(usize::from(file.table_index()))?;
        let is_open = entry.file.as_ref().is_some_and(|file| !file.is_closing);
        (is_open && entry.generation == file.generation()).then_some(file.table_index())
    }

    /// The file at an index that [`Files::find`] returned.
    pub(super) fn at(&mut self, index: u16) -> &mut OpenFile {
        let file = self.entries[usize::from(index)].file.as_mut();
        file.expect("invariant: a file stays as long as a command names its index")
    }

    /// Counts one more command on the file.
    pub(super) fn note_command(&mut self, index: u16) {
        self.at(index).commands += 1;
    }

    /// Counts one command less on the file. True if the file is to be removed now.
    pub(super) fn note_completion(&mut self, index: u16) -> bool {
        let file = self.at(index);
        file.commands -= 1;
        file.is_closing && file.commands == 0
    }

    /// Refuses further commands on the file. True if the file is to be removed now.
    pub(super) fn close(&mut self, index: u16) -> bool {
        let file = self.at(index);
        file.is_closing = true;
        file.commands == 0
    }

    /// Removes a file without commands and increments the generation of its index.
    pub(super) fn remove(&mut self, index: u16) -> Option<OpenFile> {
        let entry = &mut self.entries[usize::from(index)];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
        entry.file.take()
    }

    /// Starts a round of checks. Call it after the last completion of the batch was reaped: an
    /// earlier check does not cover bytes read later.
    pub(super) fn start_round(&mut self) {
        self.round += 1;
    }

    /// Whether the content is unchanged; asks the kernel once a round.
    pub(super) fn check(&mut self, index: u16) -> Result<(), DiskError> {
        let round = self.round;
        let file = self.entries[usize::from(index)].file.as_mut();
        let file = file.expect("invariant: a file stays as long as a command names its index");
        match file.change_state {
            ChangeState::Unchecked => Ok(()),
            ChangeState::Changed => Err(DiskError::Changed),
            ChangeState::Unchanged(_, asked) if asked == Some(round) => Ok(()),
            ChangeState::Unchanged(before, _) => {
                self.check_calls += 1;
                let descriptor = file.descriptor.as_fd();
                let now = Identity::from_stat(&status(descriptor)?);
                if before.is_untouched(&now) {
                    file.change_state = ChangeState::Unchanged(before, Some(round));
                    return Ok(());
                }
                let path = kernel_path(descriptor);
                if before.was_written(&now, path.as_deref()) {
                    file.change_state = ChangeState::Changed;
                    return Err(DiskError::Changed);
                }
                self.touched_files += 1;
                let now = Baseline {
                    identity: now,
                    path_end: path.as_deref().map(PathEnd::of),
                };
                file.change_state = ChangeState::Unchanged(now, Some(round));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        size_bytes: 1000,
        modified: (50, 1),
        changed: (60, 1),
        attributes: (1, 0o100_644, 0, 0),
    };

    const PATH: Option<&[u8]> = Some(b"/srv/films/a");

    fn before() -> Baseline {
        Baseline {
            identity: IDENTITY,
            path_end: Some(PathEnd::of(b"/films/a")),
        }
    }

    #[test]
    fn a_changed_size_or_modification_time_means_written() {
        let before = before();
        assert!(!before.was_written(&IDENTITY, PATH));
        let attributes = (0, 0, 0, 0);
        for now in [
            Identity {
                size_bytes: 999,
                ..IDENTITY
            },
            Identity {
                modified: (50, 2),
                ..IDENTITY
            },
            Identity {
                modified: (49, 1),
                ..IDENTITY
            },
        ] {
            let now = Identity { attributes, ..now };
            assert!(before.was_written(&now, PATH));
            assert!(before.was_written(&now, Some(b"/srv/moved")));
        }
    }

    #[test]
    fn a_changed_ctime_means_written_unless_attributes_or_path_differ() {
        let before = before();
        let after = Identity {
            changed: (60, 2),
            ..IDENTITY
        };
        assert!(before.was_written(&after, PATH));
        for attributes in [
            (0, 0o100_644, 0, 0),
            (2, 0o100_644, 0, 0),
            (1, 0o100_600, 0, 0),
            (1, 0o100_644, 1, 0),
            (1, 0o100_644, 0, 1),
        ] {
            let now = Identity {
                attributes,
                ..after
            };
            assert!(!before.was_written(&now, PATH), "{attributes:?}");
        }
        let all = Some(PathEnd::of(b"/srv/films/a"));
        for (path_end, path, is_written) in [
            (before.path_end, "/srv/films/b", false),
            (before.path_end, "/srv/old/a", false),
            (before.path_end, "films/a", false),
            (before.path_end, "/srv/old-films/a", false),
            (before.path_end, "/films/a", true),
            // The directory that is served was moved.
            (before.path_end, "/srv2/films/a", true),
            (all, "/srv/films/a", true),
            (all, "/srv2/films/a", false),
            (None, "/srv/films/b", true),
        ] {
            let before = Baseline { path_end, ..before };
            let path = Some(path.as_bytes());
            assert_eq!(before.was_written(&after, path), is_written, "{path:?}");
        }
        assert!(before.was_written(&after, None));
    }

    #[test]
    fn a_file_is_untouched_if_size_and_times_are_the_same() {
        let before = before();
        assert!(before.is_untouched(&IDENTITY));
        for now in [
            Identity {
                size_bytes: 1,
                ..IDENTITY
            },
            Identity {
                modified: (0, 0),
                ..IDENTITY
            },
            Identity {
                changed: (60, 2),
                ..IDENTITY
            },
        ] {
            assert!(!before.is_untouched(&now));
        }
    }
}
