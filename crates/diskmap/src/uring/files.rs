//! The table of open files, and the check that their content has not changed since open.
//!
//! **Bytes of a file that changed since it was opened are not handed out.** After a read has
//! completed, the file's status is compared with its status at open (`change`). This order is sound because
//! the kernel updates `mtime` before a writer's bytes can be read: in `write`, before the copy to the
//! page cache or the submission; through a mapping, when the page is made writable. So bytes read
//! before a check that finds the old `mtime` are the old bytes.
//!
//! | what differs | verdict |
//! |---|---|
//! | the size is smaller, or the same with another `mtime` | changed, for good, even if the old values are restored |
//! | `ctime`, and also link count, mode, owner or path | not written: unlinked, renamed or replaced, linked, `chmod`, `chown`. Served on; the next check compares with the new status |
//! | only `ctime`; or all three times are one (`touch`); or the size grew | verified: places that were read are read again and compared (`witness`, `verification`). Served on to the length at open if they are the same, else changed |
//!
//! What this cannot detect, and why: `docs/develop/decisions/0004-file-change-detection.md`. It refuses to
//! check block devices, which have no timestamps, ranges of devices and images ([`DeviceRange`]), files
//! written through this disk, and files whose content cannot change ([`FileStatus::is_fixed`]).
//!
//! The status of a file on a mount that is not local is asked for by the ring, because whoever asks may wait for
//! ever; its completions are held until it has answered.
//!
//! One `fstat` serves all completions of a file that were reaped together. It costs 170 ns of CPU
//! time here (decision 4); a read costs 1,700 to 4,000 ns and takes 75,000. Where reads note their time in the file, one
//! more is made before they are submitted (`touched`).
//! Bounded by the length of the table.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::time::SystemTime;

use super::change::{Baseline, Finding, Identity, Seen};
use super::commands::Command;
use super::limits::{Devices, status};
use super::page_cache;
use super::ranges::RangedDevices;
use super::touched;
use super::verification::{Held, Progress, Verification};
use super::witness::Witnesses;
use crate::{
    ClosedFile, DeviceRange, DiskError, FileIndex, FileLimits, FileSource, FileStatus, PathEnd,
};

/// A file modified within so many seconds before its open may still be written: its ends are witnesses from the
/// start. Encoders write a piece in a few seconds, and a playlist every few.
const YOUNG_SECONDS: i64 = 60;

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
#[derive(Debug)]
enum ChangeState {
    /// Not checked: a block device, a file written through this disk, or one that cannot change.
    Unchecked,
    /// Unchanged at its last check, in round `.1`; `None`: not checked since open.
    Unchanged(Baseline, Option<u64>),
    /// The status does not tell.
    Verifying(Box<Verification>),
    /// Changed, for good.
    Changed,
}

/// What a check says of bytes that were read before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Check {
    /// They are the file's.
    Same,
    /// They are to be held ([`Files::hold`]) until its verification ends.
    Unclear,
}

/// What is known of a file when it is opened.
#[derive(Debug)]
struct Described {
    limits: FileLimits,
    change_state: ChangeState,
    witnesses: Witnesses,
    device: (u32, u32),
    is_local: bool,
    notes_reads: bool,
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
    /// Asking for its status waits for nobody.
    is_local: bool,
    /// A read may note its time in it, and asking for its status waits for nobody.
    notes_reads: bool,
    /// It is one of [`Files::to_be_read`].
    is_to_be_read: bool,
    change_state: ChangeState,
    witnesses: Witnesses,
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

    /// Whether reads and questions of it wait for nobody but its disk.
    pub(super) const fn is_local(&self) -> bool {
        self.is_local
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

    /// Notes bytes that are handed out, which `bytes` returns: they may become a witness.
    pub(super) fn note_handed_out<'a>(
        &mut self,
        offset_bytes: u64,
        bytes: impl FnOnce() -> &'a [u8],
    ) {
        if matches!(self.change_state, ChangeState::Unchanged(..)) {
            self.witnesses.note_read(offset_bytes, bytes);
        }
    }

    /// A write through us has reached `end_bytes`.
    pub(super) fn note_write(&mut self, end_bytes: u64) {
        match &mut self.change_state {
            // Those that it holds are handed out when its read ends.
            ChangeState::Verifying(verification) => verification.is_moot = true,
            state => *state = ChangeState::Unchecked,
        }
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
    /// Files whose reads may note their time, and of which reads were enqueued and not submitted yet.
    to_be_read: Vec<u16>,
    /// `fstat` calls made by [`Files::check`] and [`Files::look_before_reads`].
    pub(super) check_calls: u64,
    /// Files whose `ctime` moved without a write.
    pub(super) touched_files: u64,
    /// Verifications that found the same bytes.
    pub(super) verified_files: u64,
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
            to_be_read: Vec::new(),
            check_calls: 0,
            touched_files: 0,
            verified_files: 0,
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
        let (index, described) = match index {
            Ok(index) => index,
            Err(error) => {
                let device = known.unwrap_or_default().device;
                let closed = ClosedFile { descriptor, device };
                return Err((Some(closed), error));
            }
        };
        let descriptor = Descriptor::Own(descriptor);
        Ok(self.insert(index, descriptor, 0, described))
    }

    /// Enters a file at a free index.
    fn insert(
        &mut self,
        index: u16,
        descriptor: Descriptor,
        start_bytes: u64,
        described: Described,
    ) -> (FileIndex, FileLimits) {
        let Described {
            limits,
            change_state,
            witnesses,
            device,
            is_local,
            notes_reads,
        } = described;
        let entry = &mut self.entries[usize::from(index)];
        entry.file = Some(OpenFile {
            descriptor,
            start_bytes,
            limits,
            is_registered: false,
            reads: 0,
            device,
            is_local,
            notes_reads,
            is_to_be_read: false,
            change_state,
            witnesses,
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
        let described = Described {
            limits,
            change_state: ChangeState::Unchecked,
            witnesses: Witnesses::default(),
            device: facts.device,
            is_local: true,
            notes_reads: false,
        };
        Ok(self.insert(index, descriptor, range.start_bytes, described))
    }

    fn describe_known(
        &mut self,
        file: BorrowedFd<'_>,
        status: &FileStatus,
        slot_bytes: u32,
    ) -> Result<Described, DiskError> {
        let limits = self.devices.look_up(status, slot_bytes)?;
        let &FileStatus {
            device,
            is_local,
            notes_reads,
            ..
        } = status;
        let (change_state, witnesses) = if status.is_fixed {
            (ChangeState::Unchecked, Witnesses::default())
        } else {
            let path_end = status.path_end.or_else(|| path_end(file));
            let witnesses = if is_local {
                ends(file, Identity::from(status))?
            } else {
                Witnesses::default()
            };
            (unchanged(Identity::from(status), path_end), witnesses)
        };
        Ok(Described {
            limits,
            change_state,
            witnesses,
            device,
            is_local,
            notes_reads: notes_reads && is_local,
        })
    }

    fn describe(&mut self, file: BorrowedFd<'_>, slot_bytes: u32) -> Result<Described, DiskError> {
        // Asked before the limits, so that a change in between is detected.
        let status = status(file)?;
        let limits = self.devices.ask(file, &status, slot_bytes)?;
        let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        let (change_state, witnesses) = if is_regular {
            let identity = Seen::from(&status).identity;
            (unchanged(identity, path_end(file)), ends(file, identity)?)
        } else {
            (ChangeState::Unchecked, Witnesses::default())
        };
        Ok(Described {
            limits,
            change_state,
            witnesses,
            device: (libc::major(status.st_dev), libc::minor(status.st_dev)),
            is_local: true,
            notes_reads: false,
        })
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

    /// A read of the file is enqueued: if it may note its time, the file is looked at before.
    pub(super) fn expect_read(&mut self, index: u16) {
        let file = self.at(index);
        if file.notes_reads && !file.is_to_be_read {
            file.is_to_be_read = true;
            self.to_be_read.push(index);
        }
    }

    /// Looks at the files that are about to be read, and notes those that were touched: the read moves what tells that
    /// from a write (`touched`).
    pub(super) fn look_before_reads(&mut self) {
        while let Some(index) = self.to_be_read.pop() {
            let Some(file) = &mut self.entries[usize::from(index)].file else {
                continue;
            };
            file.is_to_be_read = false;
            let before = match &file.change_state {
                ChangeState::Unchecked | ChangeState::Changed => continue,
                ChangeState::Unchanged(before, _) => before,
                ChangeState::Verifying(verification) => &verification.status,
            };
            self.check_calls += 1;
            // What a failure means is found out by the check behind the read.
            if let Ok(status) = status(file.descriptor.as_fd()) {
                let now = Seen::from(&status);
                if !before.identity.is_same(&now.identity) && now.is_touched() {
                    touched::note(&now);
                }
            }
        }
    }

    /// Whether the content is unchanged; asks the kernel once a round.
    pub(super) fn check(&mut self, index: u16) -> Result<Check, DiskError> {
        let round = self.round;
        let file = self.entries[usize::from(index)].file.as_mut();
        let file = file.expect("invariant: a file stays as long as a command names its index");
        match &mut file.change_state {
            ChangeState::Unchecked => Ok(Check::Same),
            ChangeState::Changed => Err(DiskError::Changed),
            ChangeState::Verifying(_) => Ok(Check::Unclear),
            ChangeState::Unchanged(_, asked) if *asked == Some(round) => Ok(Check::Same),
            ChangeState::Unchanged(before, _) if !file.is_local => {
                let verification = Verification::begin_with_status(*before, round);
                file.change_state = ChangeState::Verifying(Box::new(verification));
                Ok(Check::Unclear)
            }
            ChangeState::Unchanged(before, asked) => {
                self.check_calls += 1;
                let now = Seen::from(&status(file.descriptor.as_fd())?);
                if before.identity.is_same(&now.identity) {
                    *asked = Some(round);
                    return Ok(Check::Same);
                }
                let before = *before;
                self.judge(index, before, &now)
            }
        }
    }

    /// The status is another one than before.
    #[cold]
    fn judge(&mut self, index: u16, before: Baseline, now: &Seen) -> Result<Check, DiskError> {
        let round = self.round;
        let file = self.at(index);
        let (finding, after) = compare(file.descriptor.as_fd(), &before, now);
        let block = file.limits.block_bytes;
        let verification = match finding {
            Finding::Unclear => Verification::begin(before, after, round, &file.witnesses, block),
            Finding::Dated => Verification::begin_with_look(before, round),
            Finding::Same | Finding::Explained | Finding::Changed => None,
        };
        let (state, check) = match (finding, verification) {
            (Finding::Same | Finding::Explained, _) => {
                (ChangeState::Unchanged(after, Some(round)), Ok(Check::Same))
            }
            (Finding::Unclear | Finding::Dated, Some(verification)) => {
                let state = ChangeState::Verifying(Box::new(verification));
                (state, Ok(Check::Unclear))
            }
            // Without a witness nothing speaks for it.
            (Finding::Unclear | Finding::Dated, None) | (Finding::Changed, _) => {
                (ChangeState::Changed, Err(DiskError::Changed))
            }
        };
        file.change_state = state;
        self.touched_files += u64::from(finding == Finding::Explained);
        check
    }

    /// Holds a completion of a file whose [`Files::check`] is unclear; whether it is the first.
    pub(super) fn hold(
        &mut self,
        file: u16,
        index: u32,
        command: Command,
        outcome: Result<(), DiskError>,
    ) -> bool {
        let round = self.round;
        let verification = self.verification(file);
        let verification = verification.expect("invariant: a check has begun a verification");
        verification.hold(Held {
            index,
            command,
            outcome,
            round,
        })
    }

    /// The verification of a file that is under way.
    pub(super) fn verification(&mut self, file: u16) -> Option<&mut Verification> {
        match &mut self.at(file).change_state {
            ChangeState::Verifying(verification) => Some(verification),
            _ => None,
        }
    }

    /// A step of a file's verification ended. `None`: another one is to be made. Else those that were held, and
    /// what becomes of those that its status covers.
    pub(super) fn advance(
        &mut self,
        index: u16,
        result: i32,
    ) -> Option<(Vec<Held>, u64, Result<(), DiskError>)> {
        let file = self.entries[usize::from(index)].file.as_mut()?;
        let block = file.limits.block_bytes;
        let ChangeState::Verifying(verification) = &mut file.change_state else {
            return None;
        };
        let Verification { before, status, .. } = **verification;
        let round = verification.round;
        let unchanged = |baseline| (ChangeState::Unchanged(baseline, Some(round)), Ok(()));
        let changed = || (ChangeState::Changed, Err(DiskError::Changed));
        let (state, outcome) = match verification.advance(result, &file.witnesses, block) {
            Progress::Next => return None,
            Progress::Same if verification.is_moot => (ChangeState::Unchecked, Ok(())),
            Progress::Same => {
                self.verified_files += 1;
                unchanged(status)
            }
            Progress::Changed => changed(),
            Progress::Failed(error) => (ChangeState::Unchanged(before, None), Err(error)),
            Progress::Asked(now) => {
                let (finding, after) = compare(file.descriptor.as_fd(), &before, &now);
                self.touched_files += u64::from(finding == Finding::Explained);
                match finding {
                    Finding::Same | Finding::Explained => unchanged(after),
                    Finding::Unclear if verification.judge(after, &file.witnesses, block) => {
                        return None;
                    }
                    Finding::Dated if verification.look_again() => return None,
                    Finding::Unclear | Finding::Dated | Finding::Changed => changed(),
                }
            }
        };
        match core::mem::replace(&mut file.change_state, state) {
            ChangeState::Verifying(verification) => {
                Some((verification.into_held(), round, outcome))
            }
            _ => None,
        }
    }

    /// Ends all verifications, of a disk that is dropped.
    pub(super) fn take_verifications(&mut self) -> Vec<Verification> {
        let files = self
            .entries
            .iter_mut()
            .filter_map(|entry| entry.file.as_mut());
        let states = files.map(|file| &mut file.change_state);
        let taken = states.filter_map(|state| {
            if !matches!(state, ChangeState::Verifying(_)) {
                return None;
            }
            match core::mem::replace(state, ChangeState::Changed) {
                ChangeState::Verifying(verification) => Some(*verification),
                _ => None,
            }
        });
        taken.collect()
    }
}

/// What a status means, and what to compare with from then on if it means no change.
fn compare(file: BorrowedFd<'_>, before: &Baseline, now: &Seen) -> (Finding, Baseline) {
    if before.identity.is_same(&now.identity) {
        return (Finding::Same, *before);
    }
    let path = kernel_path(file);
    let after = Baseline {
        identity: now.identity,
        path_end: path.as_deref().map(PathEnd::of),
    };
    let finding = match before.compare(now, path.as_deref()) {
        Finding::Dated if touched::is_noted(now) => Finding::Unclear,
        finding => finding,
    };
    (finding, after)
}

/// The state of a file just opened, whose identity is known since before.
const fn unchanged(identity: Identity, path_end: Option<PathEnd>) -> ChangeState {
    // `None`: even reads of the current round must be checked.
    ChangeState::Unchanged(Baseline { identity, path_end }, None)
}

/// The witnesses of a local file just opened: its ends, if it is young and they are cached. A young file that was
/// written since its identity was asked for has changed: nothing could tell what of it was there before.
fn ends(file: BorrowedFd<'_>, identity: Identity) -> Result<Witnesses, DiskError> {
    let mut witnesses = Witnesses::default();
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed();
    let now = since_1970.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    });
    if !identity.is_younger_than(YOUNG_SECONDS, now) {
        return Ok(witnesses);
    }
    let ends = page_cache::ends(file, identity.size_bytes());
    // Like any read: what was read before a status that is the same is the file's.
    if !identity.is_same(&Seen::from(&status(file)?).identity) {
        return Err(DiskError::Changed);
    }
    if let Some(ends) = ends {
        witnesses.note_open(ends.first(), ends.last_start, ends.last());
    }
    Ok(witnesses)
}
