//! The verbs of a [`Disk`] on a queue pair.

use std::os::fd::BorrowedFd;

use clock::Instant;
use memory::Arena;

use super::{COMPLETION_POLL_INTERVAL, Nvme};
use crate::nvme::access::{DmaMemory, DmaSlots, Registers};
use crate::nvme::commands::{Command, CommandSlot, Kind, Progress};
use crate::nvme::ranges::OpenRange;
use crate::{
    Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
    check_alignment,
};

impl<R: Registers, D: DmaMemory, S: DmaSlots> Disk for Nvme<R, D, S> {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        let FileSource::Namespace(wanted) = file else {
            return Err(DiskError::Io(libc::ENOTSUP));
        };
        let namespace = self
            .namespaces
            .iter()
            .find(|namespace| namespace.id == wanted.namespace_id)
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

    fn close(&mut self, file: FileIndex) {
        self.ranges.remove(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(read);
        }
        assert!(
            (1..=self.slot_bytes).contains(&read.length_bytes),
            "a read fits its slot"
        );
        let range = self.ranges.find(read.file);
        if let Some(range) = &range {
            check_alignment(read.offset_bytes, read.length_bytes, &limits_of(range));
        }
        self.counters.disk_read_commands += 1;
        let slot = read.slot.into_reading();
        let payload = self.bus_address_of(arena.device_address(&slot).addr());
        self.enqueue(Command {
            token: read.token,
            kind: Kind::Read,
            range,
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload,
            reissues: 0,
            slot: CommandSlot::Reading(slot),
            progress: Progress::Waiting,
        });
        Ok(())
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        if self.commands.is_full() {
            self.counters.disk_queue_full_commands += 1;
            return Err(write);
        }
        let filled_bytes = write.slot.filled_bytes();
        assert!(
            (1..=filled_bytes).contains(&write.length_bytes),
            "a write is within its slot"
        );
        let range = self.ranges.find(write.file);
        if let Some(range) = &range {
            check_alignment(write.offset_bytes, write.length_bytes, &limits_of(range));
        }
        self.counters.disk_write_commands += 1;
        self.slots.sync_for_device(arena, &write.slot);
        let payload = self.bus_address_of(arena.device_source(&write.slot).addr());
        self.enqueue(Command {
            token: write.token,
            kind: Kind::Write,
            range,
            offset_bytes: write.offset_bytes,
            length_bytes: write.length_bytes,
            wanted_bytes: 0,
            done_bytes: 0,
            part_bytes: 0,
            payload,
            reissues: 0,
            slot: CommandSlot::Writing(write.slot),
            progress: Progress::Waiting,
        });
        Ok(())
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        if self.enqueued.is_empty() {
            return Ok(());
        }
        let mut enqueued = core::mem::take(&mut self.enqueued);
        for index in enqueued.drain(..) {
            self.admit(index);
        }
        // Its room is used again.
        self.enqueued = enqueued;
        self.follow(now);
        self.issue_pending(now);
        Ok(())
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        if self.commands.len() == 0 {
            return 0;
        }
        self.reap(completions_max);
        self.follow(now);
        self.issue_pending(now);
        let mut consumed = 0;
        while consumed < completions_max {
            let Some(index) = self.ended.pop_front() else {
                break;
            };
            let completion = self.complete(arena, index);
            sink(arena, completion);
            consumed += 1;
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_poll(&self, now: Instant) -> Option<Instant> {
        let in_time = now + COMPLETION_POLL_INTERVAL;
        self.next_deadline().map(|deadline| deadline.min(in_time))
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn limits_of(range: &OpenRange) -> FileLimits {
    FileLimits {
        size_bytes: range.length_bytes,
        block_bytes: range.format.block_bytes(),
        read_bytes_max: 0,
    }
}
