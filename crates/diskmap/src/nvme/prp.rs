//! Physical Region Pages: how a command names the pages of a slot (NVM Express Base Specification 2.0,
//! Physical Region Page Entry and List).
//!
//! A slot is in one piece on the bus, so its list never changes: the lists of all slots are written
//! once, when the queue pair is made, and a read writes none. The list of a slot names all its pages
//! but the first; a command for the pages from *k* on enters it at entry *k*. No list crosses
//! a page, so no entry is a pointer to another list.
//!
//! Bounded by the arena: [`Lists::bytes`].

use super::PAGE_BYTES;
use super::access::DmaMemory;
use super::canary::{Canary, Fault};

/// Size of an entry of a list.
const ENTRY_BYTES: u32 = 8;

/// The lists of all slots, and where the slots are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lists {
    /// Where the first list begins in memory.
    pub(super) offset_bytes: usize,
    /// Distance from one list to the next: a power of two, at most half a page; 0 if slots are so small
    /// that they need none.
    list_bytes: u32,
    slot_count: u32,
    /// Pages of a slot's payload.
    page_count: u32,
    canary: Canary,
}

impl Lists {
    /// Of `slot_count` slots of `slot_bytes` each, at most 1 MiB: so a list has at most 255 entries.
    pub(super) fn new(slot_count: u32, slot_bytes: u32, canary: Canary) -> Self {
        debug_assert!(slot_bytes <= memory::SLOT_BYTES_MAX);
        let page_count = slot_bytes.div_ceil(PAGE_BYTES);
        let list_bytes = match page_count {
            0..=2 => 0,
            pages => ((pages - 1) * ENTRY_BYTES).next_power_of_two(),
        };
        Self {
            offset_bytes: 0,
            list_bytes,
            slot_count,
            page_count,
            canary,
        }
    }

    /// Memory for all of them.
    pub(super) fn bytes(&self) -> usize {
        self.slot_count as usize * self.list_bytes as usize
    }

    /// Writes the lists; `payload_address` says where on the bus the payload of a slot begins.
    pub(super) fn write<D: DmaMemory>(&self, memory: &mut D, payload_address: impl Fn(u32) -> u64) {
        if self.list_bytes == 0 {
            return;
        }
        for slot in 0..self.slot_count {
            let first = payload_address(slot);
            let start = self.offset_bytes + (slot * self.list_bytes) as usize;
            for page in 1..self.page_count {
                let address = first + u64::from(page * PAGE_BYTES);
                let at = start + ((page - 1) * ENTRY_BYTES) as usize;
                memory.write(at, &address.to_le_bytes());
            }
        }
    }

    /// PRP Entries 1 and 2 for `length_bytes` of a slot from `start_bytes` on, a multiple of the page,
    /// with the payload at `payload` on the bus.
    pub(super) fn entries<D: DmaMemory>(
        &self,
        memory: &D,
        slot: u32,
        payload: u64,
        start_bytes: u32,
        length_bytes: u32,
    ) -> (u64, u64) {
        debug_assert!(start_bytes.is_multiple_of(PAGE_BYTES));
        let prp1 = payload + u64::from(start_bytes);
        let prp2 = match length_bytes.div_ceil(PAGE_BYTES) {
            0 | 1 => 0,
            2 => prp1 + u64::from(PAGE_BYTES),
            _ => {
                let mut entry = start_bytes / PAGE_BYTES;
                if self.canary.is(Fault::ListShifted) {
                    entry += 1;
                }
                let list = self.offset_bytes as u64
                    + u64::from(slot) * u64::from(self.list_bytes)
                    + u64::from(entry * ENTRY_BYTES);
                memory.bus_address() + list
            }
        };
        (prp1, prp2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_crosses_a_page() {
        for pages in 1..=256 {
            let lists = Lists::new(64, pages * PAGE_BYTES, Canary::default());
            let used = pages.saturating_sub(1) * ENTRY_BYTES;
            if lists.list_bytes == 0 {
                assert!(pages <= 2);
                continue;
            }
            assert!(lists.list_bytes <= PAGE_BYTES / 2 && lists.list_bytes.is_power_of_two());
            assert!(used <= lists.list_bytes, "{pages} pages");
            // The last entry of a page would be a pointer if more followed: there are none.
            assert_eq!(PAGE_BYTES % lists.list_bytes, 0);
        }
    }
}
