//! What callers ask of namespaces: ranges that are open, and commands from the verb that brought them to
//! their completion. Queue pairs and `io_uring` passthrough have it in common.
//!
//! What comes is *enqueued*; `sqsync` makes it *pending*; whoever has this issues it, in parts that the
//! controller takes (MDTS), and reports each part's status; then it is pending again or *ended*, and waits
//! to be handed out. It refuses commands beyond the depth. Bounded by the depth: the table of commands has
//! an entry for each, and each list has room for all.

use std::collections::VecDeque;

use memory::{Arena, FilledSlot, ReadingSlot};

use super::canary::Canary;
use super::command::block_dwords;
use super::commands::{Command, CommandSlot, Commands, Kind, Progress};
use super::ranges::{OpenRange, Ranges};
use super::status::REISSUES_MAX;
use super::{Flush, Namespace, Status};
use crate::{
    Completion, Counters, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
    check_alignment,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Requests {
    /// With the numbers of their controllers.
    namespaces: Vec<(u16, Namespace)>,
    slot_bytes: u32,
    /// Most bytes of one part of a command.
    part_bytes_max: u32,
    pub(crate) commands: Commands,
    ranges: Ranges,
    /// Indexes of commands that came since the last `sqsync`.
    enqueued: Vec<u16>,
    /// Those to be issued as soon as the controller takes them.
    pub(crate) pending: VecDeque<u16>,
    /// Those to be handed out.
    pub(crate) ended: VecDeque<u16>,
    pub(crate) counters: Counters,
}

impl Requests {
    /// For `depth` commands and `files_max` open ranges of these namespaces.
    pub(crate) fn new(
        (depth, files_max): (u16, u32),
        namespaces: Vec<(u16, Namespace)>,
        (slot_bytes, part_bytes_max): (u32, u32),
        canary: Canary,
    ) -> Self {
        Self {
            namespaces,
            slot_bytes,
            part_bytes_max: part_bytes_max.min(slot_bytes),
            commands: Commands::new(depth, canary),
            ranges: Ranges::new(files_max),
            enqueued: Vec::with_capacity(depth.into()),
            pending: VecDeque::with_capacity(depth.into()),
            ended: VecDeque::with_capacity(depth.into()),
            counters: Counters::default(),
        }
    }

    /// As [`crate::Disk::open`].
    pub(crate) fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        let FileSource::Namespace(wanted) = file else {
            return Err(DiskError::Io(libc::ENOTSUP));
        };
        let (_, namespace) = self
            .namespaces
            .iter()
            .find(|(controller, namespace)| {
                *controller == wanted.controller && namespace.id == wanted.namespace_id
            })
            .ok_or(DiskError::Io(libc::ENODEV))?;
        let format = namespace
            .format
            .map_err(|_| DiskError::Io(libc::EMEDIUMTYPE))?;
        let block_bytes = format.block_bytes();
        let end = wanted.start_bytes.checked_add(wanted.length_bytes);
        let is_inside = end.is_some_and(|end| end <= format.size_bytes());
        if !is_inside || !wanted.start_bytes.is_multiple_of(block_bytes.into()) {
            return Err(DiskError::Io(libc::EINVAL));
        }
        let index = self.ranges.insert(OpenRange {
            controller: wanted.controller,
            namespace_id: wanted.namespace_id,
            format,
            first_block: wanted.start_bytes >> format.block_shift,
            length_bytes: wanted.length_bytes,
        })?;
        let limits = FileLimits {
            size_bytes: wanted.length_bytes,
            block_bytes,
            read_bytes_max: self.part_bytes_max,
        };
        Ok((index, limits))
    }

    /// As [`crate::Disk::close`].
    pub(crate) fn close(&mut self, file: FileIndex) {
        self.ranges.remove(file);
    }

    /// As [`crate::Disk::read`]; `payload` says where the slot's payload begins for the controller.
    pub(crate) fn read(
        &mut self,
        read: Read,
        payload: impl FnOnce(&ReadingSlot) -> u64,
    ) -> Result<(), Read> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(read);
        }
        assert!(
            (1..=self.slot_bytes).contains(&read.length_bytes),
            "a read fits its slot"
        );
        let range = self.find(read.file, read.offset_bytes, read.length_bytes);
        self.counters.disk_read_commands += 1;
        let slot = read.slot.into_reading();
        self.enqueue(Command {
            payload: payload(&slot),
            range,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            ..Command::new(read.token, Kind::Read, CommandSlot::Reading(slot))
        });
        Ok(())
    }

    /// As [`crate::Disk::write`]; `payload` says where the slot's payload begins for the controller.
    pub(crate) fn write(
        &mut self,
        write: Write,
        payload: impl FnOnce(&FilledSlot) -> u64,
    ) -> Result<(), Write> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(write);
        }
        let filled_bytes = write.slot.filled_bytes();
        assert!(
            (1..=filled_bytes).contains(&write.length_bytes),
            "a write is within its slot"
        );
        let range = self.find(write.file, write.offset_bytes, write.length_bytes);
        self.counters.disk_write_commands += 1;
        self.enqueue(Command {
            payload: payload(&write.slot),
            range,
            offset_bytes: write.offset_bytes,
            length_bytes: write.length_bytes,
            ..Command::new(write.token, Kind::Write, CommandSlot::Writing(write.slot))
        });
        Ok(())
    }

    /// Enqueues a flush; it is given back if the queue is full.
    pub(crate) fn flush(&mut self, flush: Flush) -> Result<(), Flush> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(flush);
        }
        let slot = CommandSlot::Reading(flush.slot.into_reading());
        self.enqueue(Command {
            range: self.ranges.find(flush.file),
            ..Command::new(flush.token, Kind::Flush, slot)
        });
        Ok(())
    }

    fn find(&self, file: FileIndex, offset_bytes: u64, length_bytes: u32) -> Option<OpenRange> {
        let range = self.ranges.find(file);
        if let Some(range) = &range {
            check_alignment(offset_bytes, length_bytes, &limits_of(range));
        }
        range
    }

    fn enqueue(&mut self, command: Command) {
        let index = self.commands.insert(command);
        self.enqueued.push(index);
    }

    /// Makes what is enqueued pending, or ends what the controller need not hear of; false if there is
    /// nothing.
    pub(crate) fn admit_all(&mut self) -> bool {
        if self.enqueued.is_empty() {
            return false;
        }
        let mut enqueued = core::mem::take(&mut self.enqueued);
        for index in enqueued.drain(..) {
            self.admit(index);
        }
        // Its room is used again.
        self.enqueued = enqueued;
        true
    }

    fn admit(&mut self, index: u16) {
        let part_bytes_max = self.part_bytes_max;
        let command = self.commands.at(index);
        let outcome = match &command.range {
            None => Some(Err(DiskError::Io(libc::EBADF))),
            Some(range) => clip(
                command.kind,
                range,
                command.offset_bytes,
                &mut command.length_bytes,
            )
            .map(|result| result.map_err(DiskError::Io)),
        };
        if let Some(range) = &command.range {
            let left = range.length_bytes.saturating_sub(command.offset_bytes);
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            command.wanted_bytes = command.length_bytes.min(left);
        }
        command.part_bytes = command.length_bytes.min(part_bytes_max);
        match outcome {
            None => self.pending.push_back(index),
            Some(result) => self.end(index, result),
        }
    }

    pub(crate) fn end(&mut self, index: u16, result: Result<(), DiskError>) {
        self.commands.at(index).progress = Progress::Ended(result);
        self.ended.push_back(index);
    }

    /// A part of a command has this status: it ended, or its next part or the same again is pending.
    pub(crate) fn handle_status(&mut self, index: u16, status: Status) {
        let part_bytes_max = self.part_bytes_max;
        let command = self.commands.at(index);
        if status.is_success() {
            command.done_bytes += command.part_bytes;
            if command.done_bytes == command.length_bytes {
                self.end(index, Ok(()));
                return;
            }
            // The next part.
            command.part_bytes = (command.length_bytes - command.done_bytes).min(part_bytes_max);
            command.reissues = 0;
            self.wait_again(index);
        } else if command.reissues < status.reissues_max() {
            self.reissue(index);
        } else {
            self.end(index, Err(DiskError::Nvme(status)));
        }
    }

    /// The same part is pending again.
    pub(crate) fn reissue(&mut self, index: u16) {
        self.commands.at(index).reissues += 1;
        self.counters.disk_reissued_commands += 1;
        self.wait_again(index);
    }

    /// The same part is pending again, unless it was often enough.
    pub(crate) fn reissue_or_end(&mut self, index: u16, error: DiskError) {
        if self.commands.at(index).reissues < REISSUES_MAX {
            self.reissue(index);
        } else {
            self.end(index, Err(error));
        }
    }

    fn wait_again(&mut self, index: u16) {
        self.commands.at(index).progress = Progress::Waiting;
        self.pending.push_back(index);
    }

    /// Hands out what has ended, as [`crate::Disk::consume_completions`] does; `sync_for_cpu` makes bytes that
    /// were read visible.
    pub(crate) fn hand_out(
        &mut self,
        arena: &mut Arena,
        completions_max: usize,
        sync_for_cpu: &mut dyn FnMut(&mut Arena, &mut FilledSlot),
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        let mut consumed = 0;
        while consumed < completions_max {
            let Some(index) = self.ended.pop_front() else {
                break;
            };
            let mut completion = self.complete(index);
            if let (true, Ok(slot)) = (completion.1, &mut completion.0.result) {
                sync_for_cpu(arena, slot);
            }
            sink(arena, completion.0);
            consumed += 1;
        }
        consumed
    }

    /// The completion of a command that has ended, and whether bytes were read.
    fn complete(&mut self, index: u16) -> (Completion, bool) {
        let command = self.commands.remove(index);
        let Progress::Ended(outcome) = command.progress else {
            unreachable!("only commands that have ended are in the list of those");
        };
        let wanted_bytes = command.wanted_bytes;
        let mut has_read = false;
        let result = match (outcome, command.slot) {
            (Err(error), slot) => {
                self.counters.count_failure(error);
                Err((slot.into_free(), error))
            }
            (Ok(()), CommandSlot::Reading(slot)) => {
                has_read = wanted_bytes > 0;
                self.counters.disk_read_bytes += u64::from(wanted_bytes);
                Ok(slot.into_filled(wanted_bytes))
            }
            (Ok(()), CommandSlot::Writing(slot)) => {
                self.counters.disk_write_bytes += u64::from(command.length_bytes);
                Ok(slot)
            }
        };
        let completion = Completion {
            token: command.token,
            result,
        };
        (completion, has_read)
    }
}

impl Command {
    /// The number of its controller.
    pub(crate) fn controller(&self) -> u16 {
        self.issued_range().controller
    }

    fn issued_range(&self) -> &OpenRange {
        let range = self.range.as_ref();
        range.expect("invariant: a command without a range never waits to be issued")
    }

    /// Namespace Identifier, and dwords 10 to 12, of its next part.
    pub(crate) fn target(&self) -> (u32, [u32; 3]) {
        let range = self.issued_range();
        if self.kind == Kind::Flush {
            return (range.namespace_id, [0; 3]);
        }
        let shift = range.format.block_shift;
        let first_block =
            range.first_block + ((self.offset_bytes + u64::from(self.done_bytes)) >> shift);
        let dwords = block_dwords(first_block, self.part_bytes >> shift);
        (range.namespace_id, dwords)
    }
}

fn limits_of(range: &OpenRange) -> FileLimits {
    FileLimits {
        size_bytes: range.length_bytes,
        block_bytes: range.format.block_bytes(),
        read_bytes_max: 0,
    }
}

/// Limits a command to its range. `Some` if the controller need not hear of it.
fn clip(
    kind: Kind,
    range: &OpenRange,
    offset_bytes: u64,
    length_bytes: &mut u32,
) -> Option<Result<(), i32>> {
    if kind == Kind::Flush {
        return None;
    }
    let block_bytes = range.format.block_bytes();
    if !offset_bytes.is_multiple_of(block_bytes.into()) || !length_bytes.is_multiple_of(block_bytes)
    {
        return Some(Err(libc::EINVAL));
    }
    let left = range.whole_bytes().saturating_sub(offset_bytes);
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    match kind {
        Kind::Read => {
            *length_bytes = (*length_bytes).min(left);
            (*length_bytes == 0).then_some(Ok(()))
        }
        _ => (*length_bytes > left).then_some(Err(libc::ENOSPC)),
    }
}
