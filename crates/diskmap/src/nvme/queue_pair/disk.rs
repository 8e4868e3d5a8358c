//! The verbs of a [`Disk`] on a queue pair.

use std::os::fd::BorrowedFd;

use clock::Instant;
use counters::CounterSet as _;
use memory::Arena;

use super::Nvme;
use crate::nvme::COMPLETION_POLL_INTERVAL;
use crate::nvme::access::{DmaMemory, DmaSlots, Registers};
use crate::{
    Completion, Counters, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
};

impl<R: Registers, D: DmaMemory, S: DmaSlots> Disk for Nvme<R, D, S> {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        self.requests.open(file)
    }

    fn close(&mut self, file: FileIndex) {
        self.requests.close(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        let bus = self.bus();
        self.requests.read(read, |slot| {
            bus.address_of(arena.device_address(slot).addr())
        })
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        let bus = self.bus();
        let slots = &mut self.slots;
        self.requests.write(write, |slot| {
            slots.sync_for_device(arena, slot);
            bus.address_of(arena.device_source(slot).addr())
        })
    }

    fn sqsync(&mut self, now: Instant) -> Result<(), DiskError> {
        if self.requests.admit_all() {
            self.follow(now);
            self.issue_pending(now);
        }
        Ok(())
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        if self.requests.commands.len() == 0 {
            return 0;
        }
        self.reap(completions_max);
        self.follow(now);
        self.issue_pending(now);
        let slots = &mut self.slots;
        let mut sync = |arena: &mut Arena, slot: &mut _| slots.sync_for_cpu(arena, slot);
        self.requests
            .hand_out(arena, completions_max, &mut sync, sink)
    }

    fn in_flight(&self) -> usize {
        self.requests.commands.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_poll(&self, now: Instant) -> Option<Instant> {
        let in_time = now + COMPLETION_POLL_INTERVAL;
        self.next_deadline().map(|deadline| deadline.min(in_time))
    }

    fn counters(&self) -> Counters {
        self.requests.counters
    }

    fn own_counters(&self) -> Vec<(&'static str, u64)> {
        self.nvme_counters.as_pairs()
    }
}
