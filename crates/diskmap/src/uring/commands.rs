//! The table of commands in flight: matches completions to commands, and decides what follows. A command whose
//! completion is held keeps its index (`verification`).
//!
//! A command's `user_data` is its table index and a generation that changes with every issue. So a
//! duplicate, late or unknown completion matches no command. The table refuses to grow: bounded by
//! the queue depth.

use memory::{FilledSlot, FreeSlot, ReadingSlot};

use crate::DiskError;

/// How often one command is reissued before it fails. A read of 64 KiB that completes in steps of a
/// page needs 15.
const REISSUES_MAX: u8 = 16;

/// The slot of a command. The kernel may touch it until its completion.
#[derive(Debug)]
pub(super) enum CommandSlot {
    /// Filled by the kernel.
    Reading(ReadingSlot),
    /// Read by the kernel.
    Writing(FilledSlot),
}

/// A command of the table.
#[derive(Debug)]
pub(super) enum Entered {
    /// The caller's.
    Command(Command),
    /// A read of the verification of a file, at this index of the table of files.
    Verification(u16),
}

impl CommandSlot {
    /// The slot, after the completion.
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
    /// The caller's token.
    pub(super) token: u64,
    /// Entry in the file table; `None` if the file was not open.
    pub(super) file: Option<u16>,
    /// Where it starts in the file.
    pub(super) offset_bytes: u64,
    /// Bytes wanted in all.
    pub(super) length_bytes: u32,
    /// Bytes done by earlier issues.
    pub(super) done_bytes: u32,
    /// Issues after the first.
    pub(super) reissues: u8,
    /// `user_data` of the next command of its run, which is ended with it ([`runs`](super::runs)).
    pub(super) next: Option<u64>,
    /// Target of a read, source of a write.
    pub(super) slot: CommandSlot,
}

/// What a completion means for its command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Complete: `done_bytes`.
    Done,
    /// To be issued again, for the rest.
    Reissue,
    /// Ended before the end of the file, and reissuing would not help: the file may have shrunk.
    Short,
    /// The kernel returned an error.
    Failed(DiskError),
}

impl Command {
    /// Handles one completion. `size_bytes` is the file's size at open; `block` is its block size.
    pub(super) fn handle_result(&mut self, result: i32, size_bytes: u64, block: u32) -> Verdict {
        let Ok(bytes) = u32::try_from(result) else {
            let errno = result.saturating_neg();
            let is_transient = errno == libc::EAGAIN || errno == libc::EINTR;
            return if is_transient && self.may_reissue() {
                Verdict::Reissue
            } else {
                Verdict::Failed(DiskError::Io(errno))
            };
        };
        if bytes > self.length_bytes - self.done_bytes {
            // More than was asked for: the completion is invalid.
            return Verdict::Failed(DiskError::Io(libc::EIO));
        }
        self.done_bytes += bytes;
        let is_at_end = matches!(self.slot, CommandSlot::Reading(_))
            && self.offset_bytes.saturating_add(self.done_bytes.into()) >= size_bytes;
        if self.done_bytes == self.length_bytes || is_at_end {
            Verdict::Done
        } else if bytes > 0 && self.done_bytes.is_multiple_of(block) && self.may_reissue() {
            Verdict::Reissue
        } else {
            Verdict::Short
        }
    }

    /// Leaves out what a read of a range brought from behind its end, at `size_bytes`.
    pub(super) fn clip_read(&mut self, size_bytes: u64) {
        if matches!(self.slot, CommandSlot::Reading(_)) {
            let left = size_bytes.saturating_sub(self.offset_bytes);
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            self.done_bytes = self.done_bytes.min(left);
        }
    }

    fn may_reissue(&mut self) -> bool {
        self.reissues += 1;
        self.reissues <= REISSUES_MAX
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    entered: Option<Entered>,
}

/// All commands enqueued or in flight.
#[derive(Debug)]
pub(super) struct Commands {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Commands {
    /// A table for `depth` commands.
    pub(super) fn new(depth: u32) -> Self {
        let entries = (0..depth).map(|_| Entry::default()).collect();
        Self {
            entries,
            free: (0..depth).rev().collect(),
        }
    }

    /// Commands in the table, and those whose completions are held.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if there is no room for another.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Inserts a command into a table that is not full; returns the `user_data` of its first issue.
    pub(super) fn insert(&mut self, command: Command) -> u64 {
        let index = self
            .free
            .pop()
            .expect("invariant: the caller asked is_full");
        self.issue(index, Entered::Command(command))
    }

    /// Removes the command that a completion is for; `None` if no issue matches.
    pub(super) fn take(&mut self, user_data: u64) -> Option<(u32, Entered)> {
        let (generation, index) = split_user_data(user_data);
        let entry = self.entries.get_mut(usize::try_from(index).ok()?)?;
        if entry.generation != generation {
            return None;
        }
        let entered = entry.entered.take()?;
        Some((index, entered))
    }

    /// Notes which command of its run comes behind a command.
    pub(super) fn link(&mut self, user_data: u64, next: u64) {
        let (_, index) = split_user_data(user_data);
        let entry = self.entries.get_mut(index as usize);
        if let Some(Entered::Command(command)) = entry.and_then(|entry| entry.entered.as_mut()) {
            command.next = Some(next);
        }
    }

    /// Puts a command at an index whose command was taken, to be issued; returns its `user_data`.
    pub(super) fn issue(&mut self, index: u32, entered: Entered) -> u64 {
        let entry = &mut self.entries[index as usize];
        debug_assert!(entry.entered.is_none(), "index {index} is taken");
        entry.generation = entry.generation.wrapping_add(1);
        entry.entered = Some(entered);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    /// Frees an index whose command was taken.
    pub(super) fn release(&mut self, index: u32) {
        debug_assert!(
            self.entries[index as usize].entered.is_none(),
            "index {index} is in use"
        );
        self.free.push(index);
    }
}

/// Generation and index.
fn split_user_data(user_data: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = user_data.to_be_bytes();
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
            next: None,
            slot: CommandSlot::Reading(slot.into_reading()),
        }
    }

    fn write() -> Command {
        let command = read(0);
        let CommandSlot::Reading(slot) = command.slot else {
            unreachable!("just made")
        };
        Command {
            slot: CommandSlot::Writing(slot.into_filled(65_536)),
            ..command
        }
    }

    #[test]
    fn user_data_matches_one_issue_only() {
        let mut commands = Commands::new(2);
        let first = commands.insert(read(0));
        assert!(commands.take(first ^ 1).is_none(), "another entry");
        assert!(
            commands.take(u64::from(u32::MAX)).is_none(),
            "no such entry"
        );
        let (index, command) = commands.take(first).expect("it is in flight");
        assert!(commands.take(first).is_none(), "twice");
        let second = commands.issue(index, command);
        assert!(commands.take(first).is_none(), "late");
        let (index, _command) = commands.take(second).expect("it is in flight again");
        commands.release(index);
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
            Verdict::Short
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
            Verdict::Reissue
        );
        assert_eq!(
            command.handle_result(65_536 - 4096, SIZE_BYTES, BLOCK),
            Verdict::Done
        );
        assert_eq!(
            read(0).handle_result(4095, SIZE_BYTES, BLOCK),
            Verdict::Short
        );
        assert_eq!(read(0).handle_result(0, SIZE_BYTES, BLOCK), Verdict::Short);
    }

    #[test]
    fn partial_writes_go_on_past_the_end() {
        let mut command = write();
        assert_eq!(command.handle_result(4096, 0, BLOCK), Verdict::Reissue);
        assert_eq!(command.handle_result(0, 0, BLOCK), Verdict::Short);
        assert_eq!(write().handle_result(65_536, 0, BLOCK), Verdict::Done);
    }

    #[test]
    fn more_than_asked_for_is_a_failure() {
        let failed = Verdict::Failed(DiskError::Io(libc::EIO));
        assert_eq!(read(0).handle_result(65_537, SIZE_BYTES, BLOCK), failed);
        let mut command = read(0);
        assert_eq!(
            command.handle_result(4096, SIZE_BYTES, BLOCK),
            Verdict::Reissue
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
                    Verdict::Reissue
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
