//! The table of open files, and the check that they are still what they were.
//!
//! **Bytes of a file that changed since it was opened are not handed out.** After a read has
//! ended, its file is asked for its status and compared with the status at open. The order is what
//! makes it sound: a writer's `mtime` is updated before its bytes can be seen (in `write`, before
//! the copy to the page cache or the submission; through a mapping, when the page is made
//! writable), so bytes read earlier than an unchanged `mtime` are the old ones.
//!
//! - `size` or `mtime` differ: changed, for good. A later restoration does not mend it.
//! - Only `ctime` differs, and so does the link count, the mode or the owner: nobody wrote. This
//!   is a file that was unlinked, replaced by a rename over it, linked or given away: it is
//!   served on, and its new `ctime` is what the next check compares with.
//! - Only `ctime` differs and nothing explains it: changed. Who overwrites a file and puts back
//!   its `mtime` (`touch -r`, `cp -p`) looks like this. So does a file that was itself renamed or
//!   had an extended attribute set; its transfers are given up for the sake of the others.
//!
//! What it cannot see, and why it is so: `docs/decisions/0004-file-change-detection.md`.
//! Block devices have no timestamps and are not checked; neither is a file written by ourselves.
//!
//! One `fstat` serves all completions of a file that were reaped together. It costs 170 ns of CPU
//! time here (`examples/read_speed.rs --check`); a read costs 1,700 to 4,000 ns and takes 75,000.
//! Bounded by the length of the table.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::limits::{Devices, status};
use crate::{DiskError, FileIndex, FileLimits};

/// The parts of a status that tell whether somebody wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    size_bytes: i64,
    modified: (i64, i64),
    changed: (i64, i64),
    attributes: (u64, u32, u32, u32),
}

impl Identity {
    fn of(status: &libc::stat) -> Self {
        #[cfg_attr(
            target_arch = "x86_64",
            expect(clippy::useless_conversion, reason = "st_nlink is 32 bits on others")
        )]
        let links = u64::from(status.st_nlink);
        Self {
            size_bytes: status.st_size,
            modified: (status.st_mtime, status.st_mtime_nsec),
            changed: (status.st_ctime, status.st_ctime_nsec),
            attributes: (links, status.st_mode, status.st_uid, status.st_gid),
        }
    }

    /// Whether a file that was `self` and is `now` may have been written to.
    fn was_written(&self, now: &Self) -> bool {
        if (self.size_bytes, self.modified) != (now.size_bytes, now.modified) {
            return true;
        }
        self.changed != now.changed && self.attributes == now.attributes
    }
}

/// How a file stands with its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// A block device, or written by ourselves.
    Off,
    /// As it was when last looked at, in check round `.1`.
    Same(Identity, u64),
    /// Changed, for good.
    Changed,
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    descriptor: OwnedFd,
    /// As they were at open; the size grows with our own writes.
    pub(super) limits: FileLimits,
    /// The kernel knows the descriptor by its place.
    pub(super) is_registered: bool,
    watch: Watch,
    /// Commands enqueued or in flight on it.
    commands: u32,
    is_closing: bool,
}

impl OpenFile {
    /// Its descriptor's number.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// A write through us has reached `end_bytes`.
    pub(super) fn note_write(&mut self, end_bytes: u64) {
        self.watch = Watch::Off;
        self.limits.size_bytes = self.limits.size_bytes.max(end_bytes);
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    file: Option<OpenFile>,
}

/// All open files.
#[derive(Debug)]
pub(super) struct Files {
    places: Vec<Place>,
    free: Vec<u16>,
    devices: Devices,
    round: u64,
    /// `fstat` calls made by [`Files::check`].
    pub(super) check_calls: u64,
}

impl Files {
    /// A table for `files_max` files, at most 65,536.
    pub(super) fn new(files_max: u32) -> Self {
        let places = (0..files_max).map(|_| Place::default()).collect();
        let free = (0..=u16::MAX).take(files_max as usize).rev().collect();
        Self {
            places,
            free,
            devices: Devices::default(),
            round: 0,
            check_calls: 0,
        }
    }

    /// Takes over a descriptor; returns its place and name.
    pub(super) fn open(
        &mut self,
        descriptor: OwnedFd,
        slot_bytes: u32,
    ) -> Result<(u16, FileIndex, FileLimits), DiskError> {
        // Asked before the limits: a change in between must not pass for the state at open.
        let status = status(descriptor.as_fd())?;
        let limits = self.devices.ask(descriptor.as_fd(), &status, slot_bytes)?;
        let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        let watch = if is_regular {
            Watch::Same(Identity::of(&status), self.round)
        } else {
            Watch::Off
        };
        let place = self.free.pop().ok_or(DiskError::TableFull)?;
        let entry = &mut self.places[usize::from(place)];
        entry.file = Some(OpenFile {
            descriptor,
            limits,
            is_registered: false,
            watch,
            commands: 0,
            is_closing: false,
        });
        Ok((place, FileIndex::new(place, entry.generation), limits))
    }

    /// The place of a file that is open and not closing.
    pub(super) fn find(&self, file: FileIndex) -> Option<u16> {
        let entry = self.places.get(usize::from(file.place()))?;
        let is_open = entry.file.as_ref().is_some_and(|file| !file.is_closing);
        (is_open && entry.generation == file.generation()).then_some(file.place())
    }

    /// The file at a place that [`Files::find`] or [`Files::open`] returned.
    pub(super) fn at(&mut self, place: u16) -> &mut OpenFile {
        let file = self.places[usize::from(place)].file.as_mut();
        file.expect("invariant: a file stays as long as a command names its place")
    }

    /// One more command is in flight on the file.
    pub(super) fn note_command(&mut self, place: u16) {
        self.at(place).commands += 1;
    }

    /// One command on the file has ended. True if the file is to be taken out now.
    pub(super) fn note_completion(&mut self, place: u16) -> bool {
        let file = self.at(place);
        file.commands -= 1;
        file.is_closing && file.commands == 0
    }

    /// No more commands for this file. True if the file is to be taken out now.
    pub(super) fn close(&mut self, place: u16) -> bool {
        let file = self.at(place);
        file.is_closing = true;
        file.commands == 0
    }

    /// Takes out a file with no commands; its name is not given to the next one.
    pub(super) fn remove(&mut self, place: u16) -> Option<OpenFile> {
        let entry = &mut self.places[usize::from(place)];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(place);
        entry.file.take()
    }

    /// Starts a round of checks. To be called after the last completion of the batch was reaped:
    /// a status asked earlier says nothing of bytes read later.
    pub(super) fn start_round(&mut self) {
        self.round += 1;
    }

    /// Whether the file is still what it was; asks the kernel once a round.
    pub(super) fn check(&mut self, place: u16) -> Result<(), DiskError> {
        let round = self.round;
        let file = self.places[usize::from(place)].file.as_mut();
        let file = file.expect("invariant: a file stays as long as a command names its place");
        match file.watch {
            Watch::Off => Ok(()),
            Watch::Changed => Err(DiskError::Changed),
            Watch::Same(_, asked) if asked == round => Ok(()),
            Watch::Same(before, _) => {
                self.check_calls += 1;
                let now = Identity::of(&status(file.descriptor.as_fd())?);
                if before.was_written(&now) {
                    file.watch = Watch::Changed;
                    return Err(DiskError::Changed);
                }
                file.watch = Watch::Same(now, round);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Identity = Identity {
        size_bytes: 1000,
        modified: (50, 1),
        changed: (60, 1),
        attributes: (1, 0o100_644, 0, 0),
    };

    #[test]
    fn size_and_modification_time_always_count() {
        assert!(!BEFORE.was_written(&BEFORE));
        let attributes = (0, 0, 0, 0);
        assert!(BEFORE.was_written(&Identity {
            size_bytes: 999,
            attributes,
            ..BEFORE
        }));
        assert!(BEFORE.was_written(&Identity {
            modified: (50, 2),
            attributes,
            ..BEFORE
        }));
        assert!(BEFORE.was_written(&Identity {
            modified: (49, 1),
            attributes,
            ..BEFORE
        }));
    }

    #[test]
    fn a_moved_change_time_has_to_be_explained() {
        let after = Identity {
            changed: (60, 2),
            ..BEFORE
        };
        assert!(BEFORE.was_written(&after));
        for attributes in [
            (0, 0o100_644, 0, 0),
            (2, 0o100_644, 0, 0),
            (1, 0o100_600, 0, 0),
            (1, 0o100_644, 1, 0),
            (1, 0o100_644, 0, 1),
        ] {
            assert!(
                !BEFORE.was_written(&Identity {
                    attributes,
                    ..after
                }),
                "{attributes:?}"
            );
        }
    }
}
