//! Slots on loan to an AF_XDP socket: their pages are part of the socket's memory, so that a frame's
//! descriptors name its headers, in a cell, and the pieces of a slot behind them.
//!
//! A descriptor may not cross a cell's end (net/xdp, `xp_aligned_validate_desc`), so a piece ends where a
//! page does. Where the memory is registered for metadata, a piece begins no earlier than 24 bytes behind a page's
//! start, and the queue copies what is before. A slot comes back when all its descriptors have, in any order.
//!
//! It refuses a second loan of a slot, and addresses that are of no slot on loan. Bounds:
//! [`SlotMemory::lent_max`]; a few numbers for each slot.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: an address of the slots goes to another thread"
)]

use std::ops::Range;

use memory::SlotMemory;
use wire::Outgoing;

use super::queue::CELL_BYTES;
use crate::LENT_BYTES_MIN;

/// The part of a frame's payload that is sent from its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LentPart {
    pub(super) slot: u32,
    /// Where its bytes are, in this process.
    addresses: Range<usize>,
}

impl LentPart {
    /// Whether `part`, of the same frame, is sent from the slot.
    pub(super) fn has(&self, part: &[u8]) -> bool {
        let start = part.as_ptr().addr();
        self.addresses.start <= start && start + part.len() <= self.addresses.end
    }
}

/// All slots, and which are on loan.
#[derive(Debug)]
pub(super) struct Loans {
    slots: SlotMemory,
    /// Where they begin in the socket's memory, bytes.
    start: u64,
    /// By slot: descriptors that have not come back, if it is on loan.
    outstanding: Vec<Option<u32>>,
    /// Slots whose descriptors have all come back, and which were not named yet.
    returned: Vec<u32>,
    lent_count: usize,
    /// Whether nothing is lent any more.
    is_ended: bool,
}

// SAFETY: `slots` is an address of the process, good for every thread. The arena it belongs to is used by
// the thread that drives the link, and goes to another thread with the link if it does at all.
unsafe impl Send for Loans {}

impl Loans {
    pub(super) fn new(slots: SlotMemory, start: u64) -> Self {
        let count = slots.slot_count() as usize;
        Self {
            slots,
            start,
            outstanding: vec![None; count],
            returned: Vec::with_capacity(count),
            lent_count: 0,
            is_ended: false,
        }
    }

    /// The part of a frame that can be lent now: the last one of its payload.
    pub(super) fn find(&self, frame: &Outgoing<'_>) -> Option<LentPart> {
        let last = frame.payload.last()?;
        if self.is_ended || last.len() < LENT_BYTES_MIN || self.lent_count >= self.slots.lent_max()
        {
            return None;
        }
        let (slot, _) = self.slots.find(last)?;
        let start = last.as_ptr().addr();
        (self.outstanding.get(slot as usize) == Some(&None)).then_some(LentPart {
            slot,
            addresses: start..start + last.len(),
        })
    }

    /// The pieces of `part`, which is in a slot: address in the socket's memory, and bytes.
    pub(super) fn pieces(&self, part: &[u8]) -> impl Iterator<Item = (u64, u32)> + use<> {
        let distance = part.as_ptr().addr() - self.slots.address().addr();
        pieces(self.start + distance as u64, part.len() as u64)
    }

    /// The slot is on loan, with so many descriptors on their way.
    pub(super) fn begin(&mut self, slot: u32, descriptors: u32) {
        assert!(descriptors > 0, "a loan of nothing");
        let state = &mut self.outstanding[slot as usize];
        assert!(state.is_none(), "slot {slot} is on loan already");
        *state = Some(descriptors);
        self.lent_count += 1;
    }

    /// A descriptor has come back. `false` if it is of no slot on loan.
    pub(super) fn complete(&mut self, address: u64) -> bool {
        let Some(distance) = address.checked_sub(self.start) else {
            return false;
        };
        let slot = usize::try_from(distance / self.slots.stride_bytes() as u64);
        let slot = slot.unwrap_or(usize::MAX);
        let Some(Some(left)) = self.outstanding.get_mut(slot) else {
            return false;
        };
        if *left == 0 {
            return false;
        }
        *left -= 1;
        if *left == 0 {
            self.returned.push(u32::try_from(slot).unwrap_or(u32::MAX));
        }
        true
    }

    /// Whether a slot is on loan, as far as was named.
    pub(super) const fn is_lending(&self) -> bool {
        self.lent_count > 0
    }

    /// Whether the device has read all slots, as far as was reaped.
    pub(super) const fn are_all_back(&self) -> bool {
        self.lent_count == self.returned.len()
    }

    /// Names the slots that have come back.
    pub(super) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
        for slot in self.returned.drain(..) {
            self.outstanding[slot as usize] = None;
            self.lent_count -= 1;
            if !self.is_ended {
                sink(slot);
            }
        }
    }

    /// Lends nothing any more. What is on its way still comes back.
    pub(super) const fn end(&mut self) -> SlotMemory {
        self.is_ended = true;
        self.slots
    }
}

/// Cuts bytes of the socket's memory where cells end.
fn pieces(start: u64, bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    let (mut at, end) = (start, start + bytes);
    std::iter::from_fn(move || {
        let cell_end = (at / u64::from(CELL_BYTES) + 1) * u64::from(CELL_BYTES);
        let length = u32::try_from(cell_end.min(end) - at).unwrap_or(0);
        let piece = (at, length);
        at += u64::from(length);
        (length > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use memory::{Arena, ArenaConfig, PageKind};
    use wire::{Offload, Outgoing};

    use super::{LENT_BYTES_MIN, Loans, pieces};

    fn arena() -> Arena {
        Arena::new(ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(4)
        })
        .unwrap()
    }

    #[test]
    fn pieces_end_where_cells_do() {
        let cut = |start, bytes| pieces(start, bytes).collect::<Vec<_>>();
        assert_eq!(cut(4_096, 1_448), [(4_096, 1_448)]);
        assert_eq!(cut(8_000, 192), [(8_000, 192)]);
        assert_eq!(cut(8_000, 193), [(8_000, 192), (8_192, 1)]);
        assert_eq!(cut(8_191, 4_098), [(8_191, 1), (8_192, 4_096), (12_288, 1)]);
        assert_eq!(cut(8_191, 0), []);
    }

    #[test]
    fn a_slot_comes_back_with_its_last_descriptor() {
        let mut arena = arena();
        let slot = arena.reserve().unwrap().into_reading();
        let slot = slot.into_filled(65_536);
        let mut loans = Loans::new(arena.slot_memory(), 1 << 20);
        let body = arena.payload(&slot);
        let frame = |bytes: usize| (body.get(..bytes).unwrap(), bytes);
        let find = |loans: &Loans, bytes| {
            let (part, _) = frame(bytes);
            let payload = [part];
            let outgoing = Outgoing {
                headers: &[],
                payload: &payload,
                offload: Offload::default(),
            };
            loans.find(&outgoing)
        };
        assert_eq!(find(&loans, LENT_BYTES_MIN - 1), None);
        let part = find(&loans, LENT_BYTES_MIN).unwrap();
        assert!(part.has(&body[..100]) && part.has(&body[3_996..LENT_BYTES_MIN]));
        assert!(!part.has(&body[4_000..LENT_BYTES_MIN + 1]) && !part.has(&[0; 8]));
        let addresses: Vec<_> = loans.pieces(&body[..5_000]).collect();
        assert_eq!(addresses.len(), 2);
        loans.begin(part.slot, 2);
        assert_eq!(find(&loans, LENT_BYTES_MIN), None, "one loan at a time");
        let mut named = Vec::new();
        assert!(!loans.complete(0) && !loans.complete(1 << 40));
        assert!(loans.complete(addresses[1].0));
        loans.give_back(&mut |slot| named.push(slot));
        assert!(named.is_empty());
        assert!(loans.complete(addresses[0].0) && !loans.complete(addresses[0].0));
        loans.give_back(&mut |slot| named.push(slot));
        assert_eq!(named, [part.slot]);
        assert!(find(&loans, LENT_BYTES_MIN).is_some());
        loans.end();
        assert_eq!(find(&loans, LENT_BYTES_MIN), None);
        arena.release(slot.into_free());
    }
}
