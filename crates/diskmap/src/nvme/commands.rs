//! The table of reads, writes and flushes: matches completions to commands.
//!
//! A Command Identifier is a table index and a generation that changes with every issue: six bits of
//! it fit. So a completion that is duplicate, late or unknown matches no command, until its
//! entry has been issued 64 times more; a controller that repeats one so late is not detected. The
//! identifier FFFFh, which the specification reserves for error logs, is never used, because the last
//! index is not.
//!
//! The table refuses to grow: bounded by the queue depth, at most [`super::QUEUE_DEPTH_MAX`].

use clock::Instant;
use memory::{FilledSlot, FreeSlot, ReadingSlot};

use super::canary::{Canary, Fault};
use super::command::io;
use super::ranges::OpenRange;
use crate::DiskError;

/// Bits of an identifier that are the index.
const INDEX_BITS: u32 = 10;
/// Mask of those.
const INDEX_MASK: u16 = (1 << INDEX_BITS) - 1;
/// Generations there are.
const GENERATIONS: u8 = 1 << (16 - INDEX_BITS);

/// The slot of a command. The controller may access it while the command is issued.
#[derive(Debug)]
pub(crate) enum CommandSlot {
    /// Filled by the controller; for Flush, left alone.
    Reading(ReadingSlot),
    /// Read by the controller.
    Writing(FilledSlot),
}

impl CommandSlot {
    pub(super) fn into_free(self) -> FreeSlot {
        match self {
            Self::Reading(slot) => slot.into_free(),
            Self::Writing(slot) => slot.into_free(),
        }
    }

    pub(crate) fn index(&self) -> u32 {
        match self {
            Self::Reading(slot) => slot.index(),
            Self::Writing(slot) => slot.index(),
        }
    }
}

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

impl Kind {
    /// Its opcode in the NVM command set.
    pub(crate) const fn opcode(self) -> u8 {
        match self {
            Self::Read => io::READ,
            Self::Write => io::WRITE,
            Self::Flush => io::FLUSH,
        }
    }
}

/// Where a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// With us, to be issued.
    Waiting,
    /// With the controller since then.
    Issued {
        /// When the doorbell rang.
        at: Instant,
        /// An Abort was asked for.
        is_aborted: bool,
    },
    /// To be handed out.
    Ended(Result<(), DiskError>),
}

/// A read, write or flush.
#[derive(Debug)]
pub(crate) struct Command {
    /// The caller's token.
    pub(super) token: u64,
    pub(crate) kind: Kind,
    /// As it was when the command came; `None` if it was not open.
    pub(super) range: Option<OpenRange>,
    /// Where it starts in the range.
    pub(super) offset_bytes: u64,
    /// Bytes to transfer: whole blocks within the namespace.
    pub(super) length_bytes: u32,
    /// Bytes to hand out: fewer at the end of the range.
    pub(super) wanted_bytes: u32,
    /// Bytes done by earlier parts of it.
    pub(crate) done_bytes: u32,
    /// Bytes of the part that is issued, or that will be next.
    pub(crate) part_bytes: u32,
    /// Where the slot's payload is for the controller: its bus address, or for the kernel's driver its own.
    pub(crate) payload: u64,
    /// Issues after the first of the part, caused by failures.
    pub(super) reissues: u8,
    pub(crate) slot: CommandSlot,
    pub(crate) progress: Progress,
}

impl Command {
    /// One without a range, which transfers nothing.
    pub(super) const fn new(token: u64, kind: Kind, slot: CommandSlot) -> Self {
        Self {
            token,
            kind,
            range: None,
            offset_bytes: 0,
            length_bytes: 0,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload: 0,
            reissues: 0,
            slot,
            progress: Progress::Waiting,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u8,
    command: Option<Command>,
}

/// All commands that are waiting, issued, or ended and not handed out.
#[derive(Debug)]
pub(crate) struct Commands {
    entries: Vec<Entry>,
    free: Vec<u16>,
    canary: Canary,
}

impl Commands {
    pub(super) fn new(depth: u16, canary: Canary) -> Self {
        debug_assert!(depth <= INDEX_MASK);
        Self {
            entries: (0..depth).map(|_| Entry::default()).collect(),
            free: (0..depth).rev().collect(),
            canary,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Inserts a command into a table that is not full; returns its index.
    pub(super) fn insert(&mut self, command: Command) -> u16 {
        let index = self.free.pop();
        let index = index.expect("invariant: the caller asked is_full");
        self.entries[usize::from(index)].command = Some(command);
        index
    }

    /// The command at an index in use.
    pub(crate) fn at(&mut self, index: u16) -> &mut Command {
        let command = self.entries[usize::from(index)].command.as_mut();
        command.expect("invariant: the index is in use")
    }

    /// A new identifier for the command at an index, which is about to be issued.
    pub(crate) fn next_id(&mut self, index: u16) -> u16 {
        let entry = &mut self.entries[usize::from(index)];
        entry.generation = (entry.generation + 1) % GENERATIONS;
        command_id(index, entry.generation)
    }

    /// The index of the issued command with this identifier; `None` if there is none.
    pub(crate) fn find_issued(&self, id: u16) -> Option<u16> {
        let index = id & INDEX_MASK;
        let entry = self.entries.get(usize::from(index))?;
        let command = entry.command.as_ref()?;
        let is_current =
            command_id(index, entry.generation) == id || self.canary.is(Fault::GenerationIgnored);
        let is_issued = matches!(command.progress, Progress::Issued { .. });
        (is_current && is_issued).then_some(index)
    }

    /// Indexes, identifiers and issue times of the commands that the controller has.
    pub(crate) fn issued(&self) -> impl Iterator<Item = (u16, u16, Instant, bool)> + '_ {
        self.entries.iter().zip(0..).filter_map(|(entry, index)| {
            let Progress::Issued { at, is_aborted } = entry.command.as_ref()?.progress else {
                return None;
            };
            Some((index, command_id(index, entry.generation), at, is_aborted))
        })
    }

    /// Removes a command.
    pub(super) fn remove(&mut self, index: u16) -> Command {
        let command = self.entries[usize::from(index)].command.take();
        self.free.push(index);
        command.expect("invariant: the index is in use")
    }
}

fn command_id(index: u16, generation: u8) -> u16 {
    u16::from(generation) << INDEX_BITS | index
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{Arena, ArenaConfig};

    fn read() -> Command {
        let mut arena = Arena::new(ArenaConfig::new(1)).expect("2 MiB");
        read_into(arena.reserve().expect("one free"))
    }

    fn read_into(slot: FreeSlot) -> Command {
        Command::new(7, Kind::Read, CommandSlot::Reading(slot.into_reading()))
    }

    const ISSUED: Progress = Progress::Issued {
        at: Instant::ZERO,
        is_aborted: false,
    };

    #[test]
    fn an_identifier_matches_one_issue_only() {
        let mut commands = Commands::new(2, Canary::default());
        let index = commands.insert(read());
        let first = commands.next_id(index);
        assert_eq!(commands.find_issued(first), None, "not issued yet");
        commands.at(index).progress = ISSUED;
        assert_eq!(commands.find_issued(first), Some(index));
        assert_eq!(commands.find_issued(first ^ 1), None, "another entry");
        assert_eq!(commands.find_issued(u16::MAX), None, "no such entry");
        let second = commands.next_id(index);
        assert_eq!(commands.find_issued(first), None, "late");
        assert_eq!(commands.find_issued(second), Some(index));
        let _command = commands.remove(index);
        assert_eq!(commands.find_issued(second), None, "twice");
        assert_eq!(commands.len(), 0);
    }

    #[test]
    fn generations_come_back_after_64_issues_and_ffff_never_comes() {
        let depth = super::super::QUEUE_DEPTH_MAX;
        let mut commands = Commands::new(depth, Canary::default());
        let mut arena = Arena::new(ArenaConfig {
            slot_bytes: 4096,
            headroom_bytes: 0,
            tailroom_bytes: 0,
            ..ArenaConfig::new(depth.into())
        })
        .expect("4 MiB");
        let mut index = 0;
        while !commands.is_full() {
            index = commands.insert(read_into(arena.reserve().expect("one for each")));
        }
        let first = commands.next_id(index);
        for _ in 1..GENERATIONS {
            let id = commands.next_id(index);
            assert!(id != first && id != u16::MAX);
        }
        assert_eq!(commands.next_id(index), first);
    }
}
