//! The rings: entries are written behind the tail of a submission queue, and read at the head of a
//! completion queue (NVM Express Base Specification 2.0, NVM Queue Models).
//!
//! **First the entries, then the fence, then the doorbell, and only if something moved.** A completion
//! entry is read only if its phase tag says that it is new, and the tag is loaded first.
//!
//! It refuses to judge an entry: whether a completion is for a command is for the tables of commands to
//! say. Bounded by the number of entries, which the controller agreed to.

use super::access::{DmaMemory, Registers};
use super::canary::{Canary, Fault};
use super::command::{
    COMPLETION_ENTRY_BYTES, CompletionEntry, SUBMISSION_ENTRY_BYTES, SubmissionEntry,
};

/// A submission queue in memory. The caller sees to it that fewer commands are in flight than there
/// are entries, so that the ring cannot overflow.
#[derive(Debug)]
pub(super) struct SubmissionRing {
    /// Where its entries begin.
    offset_bytes: usize,
    entry_count: u16,
    tail: u16,
    /// The tail that the controller knows.
    rung: u16,
    /// Where its doorbell is.
    doorbell: u64,
}

impl SubmissionRing {
    pub(super) const fn new(offset_bytes: usize, entry_count: u16, doorbell: u64) -> Self {
        Self {
            offset_bytes,
            entry_count,
            tail: 0,
            rung: 0,
            doorbell,
        }
    }

    /// As after its creation.
    pub(super) const fn clear(&mut self) {
        (self.tail, self.rung) = (0, 0);
    }

    /// Writes an entry; the controller learns of it by [`Self::ring`].
    pub(super) fn push<D: DmaMemory>(&mut self, memory: &mut D, entry: SubmissionEntry) {
        let at = self.offset_bytes + usize::from(self.tail) * SUBMISSION_ENTRY_BYTES;
        memory.write(at, &entry.to_bytes());
        self.tail = (self.tail + 1) % self.entry_count;
    }

    /// Rings the doorbell, if there are entries that the controller does not know.
    pub(super) fn ring<R: Registers, D: DmaMemory>(&mut self, registers: &R, memory: &D) {
        if self.rung != self.tail {
            memory.release();
            registers.write_u32(self.doorbell, self.tail.into());
            self.rung = self.tail;
        }
    }

    /// The fault [`Fault::DoorbellBeforeFence`].
    pub(super) fn ring_without_fence<R: Registers>(&mut self, registers: &R) {
        registers.write_u32(self.doorbell, self.tail.into());
        self.rung = self.tail;
    }

    /// Whether a controller with at most `in_flight_max` commands may say that it has fetched entries
    /// up to `head`: not beyond the tail, nor further behind it.
    pub(super) const fn is_plausible_head(&self, head: u16, in_flight_max: u16) -> bool {
        if head >= self.entry_count {
            return false;
        }
        let behind = if head <= self.rung {
            self.rung - head
        } else {
            self.rung + (self.entry_count - head)
        };
        behind <= in_flight_max
    }
}

/// A completion queue in memory.
#[derive(Debug)]
pub(super) struct CompletionRing {
    /// Where its entries begin.
    offset_bytes: usize,
    entry_count: u16,
    head: u16,
    /// The head that the controller knows.
    rung: u16,
    /// Phase tag of a new entry: inverted with each pass, at first 1.
    phase: bool,
    /// Where its doorbell is.
    doorbell: u64,
    canary: Canary,
}

impl CompletionRing {
    pub(super) const fn new(
        offset_bytes: usize,
        entry_count: u16,
        doorbell: u64,
        canary: Canary,
    ) -> Self {
        Self {
            offset_bytes,
            entry_count,
            head: 0,
            rung: 0,
            phase: true,
            doorbell,
            canary,
        }
    }

    /// As after its creation: all phase tags are 0. Only while the controller does not write it.
    pub(super) fn clear<D: DmaMemory>(&mut self, memory: &mut D) {
        (self.head, self.rung, self.phase) = (0, 0, true);
        for index in 0..self.entry_count {
            let at = self.offset_bytes + usize::from(index) * COMPLETION_ENTRY_BYTES;
            memory.write(at, &[0; COMPLETION_ENTRY_BYTES]);
        }
    }

    pub(super) const fn entry_count(&self) -> u16 {
        self.entry_count
    }

    /// Takes the next entry, if there is a new one.
    pub(super) fn pop<D: DmaMemory>(&mut self, memory: &D) -> Option<CompletionEntry> {
        let at = self.offset_bytes + usize::from(self.head) * COMPLETION_ENTRY_BYTES;
        // Bit 16 of the last dword: what is read behind it is the entry that it belongs to.
        let phase = memory.load_u32(at + 12) >> 16 & 1 != 0;
        if phase != self.phase && !self.canary.is(Fault::PhaseIgnored) {
            return None;
        }
        let mut bytes = [0; COMPLETION_ENTRY_BYTES];
        memory.read(at, &mut bytes);
        let entry = CompletionEntry::from_bytes(&bytes);
        if self.canary.is(Fault::PhaseIgnored) && bytes == [0; COMPLETION_ENTRY_BYTES] {
            return None;
        }
        self.head += 1;
        if self.head == self.entry_count {
            self.head = 0;
            self.phase = !self.phase;
        }
        Some(entry)
    }

    /// Tells the controller which entries may be overwritten, if any were taken.
    pub(super) fn ring<R: Registers>(&mut self, registers: &R) {
        if self.rung != self.head {
            registers.write_u32(self.doorbell, self.head.into());
            self.rung = self.head;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_plausible_between_the_oldest_command_and_the_tail() {
        let mut ring = SubmissionRing::new(0, 8, 0);
        ring.rung = 3;
        let plausible = |ring: &SubmissionRing| -> Vec<u16> {
            (0..10)
                .filter(|head| ring.is_plausible_head(*head, 4))
                .collect()
        };
        assert_eq!(plausible(&ring), [0, 1, 2, 3, 7]);
        ring.rung = 6;
        assert_eq!(plausible(&ring), [2, 3, 4, 5, 6]);
    }
}
