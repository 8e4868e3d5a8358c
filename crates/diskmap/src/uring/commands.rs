//! The table of commands in flight: who a completion is for, and what becomes of it.
//!
//! A command's name in the ring is its place and a generation that changes with every issue, so a
//! completion that comes twice, late or from nowhere finds nobody. It refuses to grow: bounded by
//! the queue depth.

use memory::{FilledSlot, FreeSlot, ReadingSlot};

use crate::DiskError;

/// How often one command is issued again before it counts as failed. A partial read of 64 KiB in
/// steps of a page needs 15.
const REISSUES_MAX: u8 = 16;

/// The slot of a command. The kernel may touch it until its completion.
#[derive(Debug)]
pub(super) enum Held {
    /// Filled by the kernel.
    Reading(ReadingSlot),
    /// Read by the kernel.
    Writing(FilledSlot),
}

impl Held {
    /// The slot, when the kernel is done with it.
    pub(super) fn into_free(self) -> FreeSlot {
        match self {
            Self::Reading(slot) => slot.into_free(),
            Self::Writing(slot) => slot.into_free(),
        }
    }
}

/// A read or write in flight.
#[derive(Debug)]
pub(super) struct Command {
    /// The caller's.
    pub(super) token: u64,
    /// Place in the file table; `None` if the file was not open.
    pub(super) file: Option<u16>,
    /// Where it starts in the file.
    pub(super) offset_bytes: u64,
    /// Bytes wanted in all.
    pub(super) length_bytes: u32,
    /// Bytes done by earlier issues.
    pub(super) done_bytes: u32,
    /// Issues after the first.
    pub(super) reissues: u8,
    /// Where to or from.
    pub(super) held: Held,
}

/// What a completion means for its command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// All there is: `done_bytes` of it.
    Done,
    /// To be issued again, for the rest.
    Again,
    /// Less than there should be, and no way forward. A file that shrank looks like this.
    Stopped,
    /// The kernel said no.
    Failed(DiskError),
}

impl Command {
    /// Takes in one completion. `size_bytes` is where the file ended when it was opened; `block`
    /// is its block size.
    pub(super) fn handle_result(&mut self, result: i32, size_bytes: u64, block: u32) -> Verdict {
        let Ok(bytes) = u32::try_from(result) else {
            let errno = result.saturating_neg();
            let is_transient = errno == libc::EAGAIN || errno == libc::EINTR;
            return if is_transient && self.may_reissue() {
                Verdict::Again
            } else {
                Verdict::Failed(DiskError::Io(errno))
            };
        };
        if bytes > self.length_bytes - self.done_bytes {
            // More than was asked for: nothing this completion says can be trusted.
            return Verdict::Failed(DiskError::Io(libc::EIO));
        }
        self.done_bytes += bytes;
        let is_at_end = matches!(self.held, Held::Reading(_))
            && self.offset_bytes.saturating_add(self.done_bytes.into()) >= size_bytes;
        if self.done_bytes == self.length_bytes || is_at_end {
            Verdict::Done
        } else if bytes > 0 && self.done_bytes.is_multiple_of(block) && self.may_reissue() {
            Verdict::Again
        } else {
            Verdict::Stopped
        }
    }

    fn may_reissue(&mut self) -> bool {
        self.reissues += 1;
        self.reissues <= REISSUES_MAX
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    command: Option<Command>,
}

/// All commands enqueued or in flight.
#[derive(Debug)]
pub(super) struct Commands {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Commands {
    /// A table for `depth` commands.
    pub(super) fn new(depth: u32) -> Self {
        let places = (0..depth).map(|_| Place::default()).collect();
        Self {
            places,
            free: (0..depth).rev().collect(),
        }
    }

    /// Commands in the table.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// True if there is no place for another.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts a command into a table that is not full; returns the name of its first issue.
    pub(super) fn insert(&mut self, command: Command) -> u64 {
        let place = self
            .free
            .pop()
            .expect("invariant: the caller asked is_full");
        self.issue(place, command)
    }

    /// Takes out the command a completion is for; `None` if there is no such issue.
    pub(super) fn take(&mut self, name: u64) -> Option<(u32, Command)> {
        let (generation, place) = split(name);
        let entry = self.places.get_mut(usize::try_from(place).ok()?)?;
        if entry.generation != generation {
            return None;
        }
        let command = entry.command.take()?;
        Some((place, command))
    }

    /// Puts a command back where it was taken from, to be issued again; returns its new name.
    pub(super) fn issue(&mut self, place: u32, command: Command) -> u64 {
        let entry = &mut self.places[place as usize];
        debug_assert!(entry.command.is_none(), "place {place} is taken");
        entry.generation = entry.generation.wrapping_add(1);
        entry.command = Some(command);
        u64::from(entry.generation) << 32 | u64::from(place)
    }

    /// Ends the use of a place whose command was taken.
    pub(super) fn release(&mut self, place: u32) {
        debug_assert!(
            self.places[place as usize].command.is_none(),
            "place {place} is in use"
        );
        self.free.push(place);
    }
}

/// Generation and place.
fn split(name: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = name.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{Arena, ArenaConfig};

    const SIZE_BYTES: u64 = 1 << 20;
    const BLOCK: u32 = 4096;

    fn read(offset_bytes: u64) -> Command {
        let mut arena = Arena::new(ArenaConfig::new(1)).expect("2 MiB");
        let slot = arena.reserve().expect("one free");
        Command {
            token: 7,
            file: Some(0),
            offset_bytes,
            length_bytes: 65_536,
            done_bytes: 0,
            reissues: 0,
            held: Held::Reading(slot.into_reading()),
        }
    }

    fn write() -> Command {
        let command = read(0);
        let Held::Reading(slot) = command.held else {
            unreachable!("just made")
        };
        Command {
            held: Held::Writing(slot.into_filled(65_536)),
            ..command
        }
    }

    #[test]
    fn a_name_fits_one_issue_only() {
        let mut commands = Commands::new(2);
        let first = commands.insert(read(0));
        assert!(commands.take(first ^ 1).is_none(), "another place");
        assert!(
            commands.take(u64::from(u32::MAX)).is_none(),
            "no such place"
        );
        let (place, command) = commands.take(first).expect("it is in flight");
        assert!(commands.take(first).is_none(), "twice");
        let second = commands.issue(place, command);
        assert!(commands.take(first).is_none(), "late");
        let (place, _command) = commands.take(second).expect("it is in flight again");
        commands.release(place);
        assert_eq!(commands.len(), 0);
    }

    #[test]
    fn the_table_is_full_at_its_depth() {
        let mut commands = Commands::new(2);
        commands.insert(read(0));
        assert!(!commands.is_full());
        commands.insert(read(0));
        assert!(commands.is_full());
        assert_eq!(commands.len(), 2);
    }

    #[test]
    fn whole_reads_and_reads_to_the_end_are_done() {
        assert_eq!(
            read(0).handle_result(65_536, SIZE_BYTES, BLOCK),
            Verdict::Done
        );
        assert_eq!(
            read(SIZE_BYTES - 5).handle_result(5, SIZE_BYTES, BLOCK),
            Verdict::Done
        );
        assert_eq!(
            read(SIZE_BYTES - 5).handle_result(4, SIZE_BYTES, BLOCK),
            Verdict::Stopped
        );
        assert_eq!(
            read(SIZE_BYTES).handle_result(0, SIZE_BYTES, BLOCK),
            Verdict::Done
        );
    }

    #[test]
    fn partial_reads_go_on_if_whole_blocks_came() {
        let mut command = read(0);
        assert_eq!(
            command.handle_result(4096, SIZE_BYTES, BLOCK),
            Verdict::Again
        );
        assert_eq!(
            command.handle_result(65_536 - 4096, SIZE_BYTES, BLOCK),
            Verdict::Done
        );
        assert_eq!(
            read(0).handle_result(4095, SIZE_BYTES, BLOCK),
            Verdict::Stopped
        );
        assert_eq!(
            read(0).handle_result(0, SIZE_BYTES, BLOCK),
            Verdict::Stopped
        );
    }

    #[test]
    fn partial_writes_go_on_past_the_end() {
        let mut command = write();
        assert_eq!(command.handle_result(4096, 0, BLOCK), Verdict::Again);
        assert_eq!(command.handle_result(0, 0, BLOCK), Verdict::Stopped);
        assert_eq!(write().handle_result(65_536, 0, BLOCK), Verdict::Done);
    }

    #[test]
    fn more_than_asked_for_is_a_failure() {
        let failed = Verdict::Failed(DiskError::Io(libc::EIO));
        assert_eq!(read(0).handle_result(65_537, SIZE_BYTES, BLOCK), failed);
        let mut command = read(0);
        assert_eq!(
            command.handle_result(4096, SIZE_BYTES, BLOCK),
            Verdict::Again
        );
        assert_eq!(command.handle_result(65_536, SIZE_BYTES, BLOCK), failed);
    }

    #[test]
    fn transient_errors_are_tried_a_bounded_number_of_times() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            let mut command = read(0);
            for _ in 0..REISSUES_MAX {
                assert_eq!(
                    command.handle_result(-errno, SIZE_BYTES, BLOCK),
                    Verdict::Again
                );
            }
            let failed = Verdict::Failed(DiskError::Io(errno));
            assert_eq!(command.handle_result(-errno, SIZE_BYTES, BLOCK), failed);
        }
        let failed = Verdict::Failed(DiskError::Io(libc::EIO));
        assert_eq!(read(0).handle_result(-libc::EIO, SIZE_BYTES, BLOCK), failed);
        let failed = Verdict::Failed(DiskError::Io(i32::MAX));
        assert_eq!(read(0).handle_result(i32::MIN, SIZE_BYTES, BLOCK), failed);
    }
}
