//! The table of open files, and the check that they are still what they were.
//!
//! **Bytes of a file that changed since it was opened are not handed out.** After a read has
//! ended, its file is asked for its status and compared with the status at open. The order is what
//! makes it sound: a writer's `mtime` is updated before its bytes can be seen (in `write`, before
//! the copy to the page cache or the submission; through a mapping, when the page is made
//! writable), so bytes read earlier than an unchanged `mtime` are the old ones.
//!
//! - `size` or `mtime` differ: changed, for good. A later restoration does not mend it.
//! - Only `ctime` differs, and so does the link count, the mode, the owner or the path: nobody
//!   wrote. This is a file that was unlinked, replaced by a rename over it, linked, renamed or given
//!   away: it is served on, and its new `ctime` is what the next check compares with.
//! - Only `ctime` differs and nothing explains it: changed. Who overwrites a file and puts back
//!   its `mtime` (`touch -r`, `cp -p`) looks like this.
//!
//! What it cannot see, and why it is so: `docs/decisions/0004-file-change-detection.md`.
//! Block devices have no timestamps and are not checked; neither is a file written by ourselves.
//!
//! One `fstat` serves all completions of a file that were reaped together. It costs 170 ns of CPU
//! time here (`examples/read_speed.rs --check`); a read costs 1,700 to 4,000 ns and takes 75,000.
//! Bounded by the length of the table.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;

use super::limits::{Devices, status};
use crate::{ClosedFile, DiskError, FileIndex, FileLimits, FileSource, FileStatus, PathEnd};

/// The parts of a status that tell whether somebody wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    attributes: (u64, u32, u32, u32),
}

/// A file as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Baseline {
    identity: Identity,
    /// `None` where there is no `/proc`.
    path_end: Option<PathEnd>,
}

impl Identity {
    /// What is now the case.
    fn of(status: &libc::stat) -> Self {
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

    /// What was the case.
    fn then(status: &FileStatus) -> Self {
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
    /// Whether size and times are the same, so that nothing happened to the file at all.
    fn is_untouched(&self, now: &Identity) -> bool {
        let times =
            |identity: &Identity| (identity.size_bytes, identity.modified, identity.changed);
        times(&self.identity) == times(now)
    }

    /// Whether the file, which is `now` and at `path`, may have been written to.
    fn was_written(&self, now: &Identity, path: Option<&[u8]>) -> bool {
        let before = &self.identity;
        if (before.size_bytes, before.modified) != (now.size_bytes, now.modified) {
            return true;
        }
        let is_moved = match (self.path_end, path) {
            (Some(end), Some(path)) => !end.is_end_of(path),
            _ => false,
        };
        before.changed != now.changed && before.attributes == now.attributes && !is_moved
    }
}

/// The kernel's own name for an open file. Asks no file system, so never waits; some 15 us, for the
/// kernel makes an inode of `/proc` for each.
fn kernel_path(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some(path.into_os_string().into_vec())
}

fn path_end(file: BorrowedFd<'_>) -> Option<PathEnd> {
    kernel_path(file).as_deref().map(PathEnd::of)
}

/// How a file stands with its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// A block device, or written by ourselves.
    Off,
    /// As it was when last looked at, in check round `.1`; `None`: not since it was opened.
    Same(Baseline, Option<u64>),
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
    /// Its file system's.
    device: (u32, u32),
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

    /// What is left when no command uses it any more.
    pub(super) fn into_closed(self) -> ClosedFile {
        ClosedFile {
            descriptor: self.descriptor,
            device: self.device,
        }
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
    /// Files found touched, and not written to.
    pub(super) touched_files: u64,
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
            touched_files: 0,
        }
    }

    /// Takes over a file; returns its place and name. A file that is refused comes back, if
    /// there is one.
    pub(super) fn open(
        &mut self,
        file: FileSource,
        slot_bytes: u32,
    ) -> Result<(u16, FileIndex, FileLimits), (Option<ClosedFile>, DiskError)> {
        let (descriptor, known) = match file {
            FileSource::Descriptor(descriptor) => (descriptor, None),
            FileSource::File { descriptor, status } => (descriptor, Some(status)),
            FileSource::Simulated(_) => return Err((None, DiskError::Io(libc::ENOTSUP))),
        };
        let described = match &known {
            Some(status) => self.describe_known(descriptor.as_fd(), status, slot_bytes),
            None => self.describe(descriptor.as_fd(), slot_bytes),
        };
        let place = described.and_then(|described| {
            let place = self.free.pop().ok_or(DiskError::TableFull)?;
            Ok((place, described))
        });
        let (place, (limits, watch, device)) = match place {
            Ok(place) => place,
            Err(error) => {
                let device = known.unwrap_or_default().device;
                let closed = ClosedFile { descriptor, device };
                return Err((Some(closed), error));
            }
        };
        let entry = &mut self.places[usize::from(place)];
        entry.file = Some(OpenFile {
            descriptor,
            limits,
            is_registered: false,
            device,
            watch,
            commands: 0,
            is_closing: false,
        });
        Ok((place, FileIndex::new(place, entry.generation), limits))
    }

    fn describe_known(
        &mut self,
        file: BorrowedFd<'_>,
        status: &FileStatus,
        slot_bytes: u32,
    ) -> Result<(FileLimits, Watch, (u32, u32)), DiskError> {
        let limits = self.devices.look_up(status, slot_bytes)?;
        let baseline = Baseline {
            identity: Identity::then(status),
            path_end: status.path_end.or_else(|| path_end(file)),
        };
        // Not even a read of this very round may pass for looked at.
        Ok((limits, Watch::Same(baseline, None), status.device))
    }

    fn describe(
        &mut self,
        file: BorrowedFd<'_>,
        slot_bytes: u32,
    ) -> Result<(FileLimits, Watch, (u32, u32)), DiskError> {
        // Asked before the limits: a change in between must not pass for the state at open.
        let status = status(file)?;
        let limits = self.devices.ask(file, &status, slot_bytes)?;
        let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        let watch = if is_regular {
            let baseline = Baseline {
                identity: Identity::of(&status),
                path_end: path_end(file),
            };
            Watch::Same(baseline, None)
        } else {
            Watch::Off
        };
        let device = (libc::major(status.st_dev), libc::minor(status.st_dev));
        Ok((limits, watch, device))
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
            Watch::Same(_, asked) if asked == Some(round) => Ok(()),
            Watch::Same(before, _) => {
                self.check_calls += 1;
                let descriptor = file.descriptor.as_fd();
                let now = Identity::of(&status(descriptor)?);
                if before.is_untouched(&now) {
                    file.watch = Watch::Same(before, Some(round));
                    return Ok(());
                }
                let path = kernel_path(descriptor);
                if before.was_written(&now, path.as_deref()) {
                    file.watch = Watch::Changed;
                    return Err(DiskError::Changed);
                }
                self.touched_files += 1;
                let now = Baseline {
                    identity: now,
                    path_end: path.as_deref().map(PathEnd::of),
                };
                file.watch = Watch::Same(now, Some(round));
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
    fn size_and_modification_time_always_count() {
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
    fn a_moved_change_time_has_to_be_explained() {
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
    fn nothing_happened_if_size_and_times_are_the_same() {
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
