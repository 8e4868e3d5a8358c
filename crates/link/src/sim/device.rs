//! A device that sends from slots on loan: it reads a frame's slot when the frame's turn has come, not
//! when the frame is handed to it. So whoever writes a slot on loan changes what is sent.
//!
//! Frames leave in order. Bounded by the link's transmit queue, and by the slots that may be on loan.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: a simulated device reads slots on loan, as a real one does"
)]

use std::collections::VecDeque;

use clock::Instant;
use memory::SlotMemory;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use wire::{Offload, Outgoing};

use super::path::{MILLION, random};
use crate::Sent;

/// The stream of random numbers of a device; those of the paths are 0 and 1.
const STREAM: u64 = 2;

/// A device, and the slots that it was lent.
#[derive(Debug)]
pub(super) struct Device {
    slots: SlotMemory,
    /// Frames that it has not read yet, in order.
    waiting: VecDeque<WaitingFrame>,
    /// How many of them have had their turn at the line that they share.
    decided: usize,
    /// Slots that it has read and that were not given back yet.
    read_slots: Vec<u32>,
    /// What it has read of slots, if that is recorded.
    record: Option<Vec<SlotRead>>,
    /// By slot.
    is_lent: Vec<bool>,
    lent_count: usize,
    /// Slots in a million that are never given back.
    kept_slots_ppm: u32,
    random: ChaCha8Rng,
    is_stopped: bool,
    /// Whether slots are given back before they are read: a deliberate fault.
    is_early: bool,
}

/// A device has read a part of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRead {
    /// When it had.
    pub at: Instant,
    /// The slot.
    pub slot: u32,
    /// From the slot's first byte on, headroom included.
    pub from_bytes: usize,
    /// How many.
    pub bytes: usize,
}

/// A frame that the device has been told of.
#[derive(Debug)]
struct WaitingFrame {
    /// When it will have been read; `None`: its turn at the line has not come.
    reads_at: Option<Instant>,
    headers: Vec<u8>,
    /// The payload, or what of it stands before the slot's part.
    copied: Vec<u8>,
    /// The part that is read when the device does.
    lent: Option<LentPart>,
    offload: Offload,
}

/// Bytes of a slot on loan.
#[derive(Clone, Copy, Debug)]
struct LentPart {
    slot: u32,
    address: *const u8,
    length_bytes: usize,
}

impl Device {
    pub(super) fn new(slots: SlotMemory, kept_slots_ppm: u32, seed: u64) -> Self {
        assert!(
            kept_slots_ppm <= MILLION,
            "a rate of {kept_slots_ppm} in a million"
        );
        Self {
            slots,
            waiting: VecDeque::new(),
            decided: 0,
            record: None,
            read_slots: Vec::new(),
            is_lent: vec![false; slots.slot_count() as usize],
            lent_count: 0,
            kept_slots_ppm,
            random: random(seed, STREAM),
            is_stopped: false,
            is_early: false,
        }
    }

    pub(super) fn waiting_frames(&self) -> usize {
        self.waiting.len()
    }

    /// When it reads its next frame.
    pub(super) fn next_read(&self) -> Option<Instant> {
        let next = self.waiting.front().filter(|_| !self.is_stopped);
        next?.reads_at
    }

    /// The first frame without a moment will have been read then.
    pub(super) fn decide(&mut self, reads_at: Instant) {
        let frame = &mut self.waiting[self.decided];
        frame.reads_at = Some(reads_at);
        self.decided += 1;
    }

    /// Records from now on what is read of slots.
    pub(super) fn set_recording(&mut self) {
        self.record = Some(Vec::new());
    }

    /// What was recorded.
    pub(super) fn take_record(&mut self) -> Vec<SlotRead> {
        self.record
            .as_mut()
            .map(core::mem::take)
            .unwrap_or_default()
    }

    pub(super) fn set_stopped(&mut self, is_stopped: bool) {
        self.is_stopped = is_stopped;
    }

    pub(super) fn set_early(&mut self) {
        self.is_early = true;
    }

    /// Takes a frame, to be read at `reads_at` or when that is decided, and its last payload part on loan if that
    /// may be.
    pub(super) fn accept(&mut self, reads_at: Option<Instant>, frame: &Outgoing<'_>) -> Sent {
        let lent = self.lendable(frame);
        let copied = match (&lent, frame.payload) {
            (Some(_), [before @ .., _]) => before.concat(),
            (_, all) => all.concat(),
        };
        if let Some(part) = &lent {
            self.is_lent[part.slot as usize] = true;
            self.lent_count += 1;
            if self.is_early {
                self.read_slots.push(part.slot);
            }
        }
        let waiting = WaitingFrame {
            reads_at,
            headers: frame.headers.to_vec(),
            copied,
            lent,
            offload: frame.offload,
        };
        self.waiting.push_back(waiting);
        lent.map_or(Sent::Copied, |part| Sent::Lent(part.slot))
    }

    /// The last part of a frame, if it may be lent.
    fn lendable(&self, frame: &Outgoing<'_>) -> Option<LentPart> {
        let last = frame.payload.last()?;
        let (slot, _) = self.slots.find(last)?;
        let is_free = !self.is_lent[slot as usize] && self.lent_count < self.slots.lent_max();
        is_free.then_some(LentPart {
            slot,
            address: last.as_ptr(),
            length_bytes: last.len(),
        })
    }

    /// Reads the next frame whose turn has come by `now`, and sends it at its moment.
    pub(super) fn read(&mut self, now: Instant, send: impl FnOnce(Instant, &Outgoing<'_>)) -> bool {
        let Some(at) = self.next_read().filter(|at| *at <= now) else {
            return false;
        };
        let Some(frame) = self.waiting.pop_front() else {
            return false;
        };
        self.decided = self.decided.saturating_sub(1);
        let lent: &[u8] = match &frame.lent {
            // SAFETY: the slot is on loan, so it is mapped and nobody writes it (the rule of
            // `memory::SlotMemory`): the arena hands no reference out that could. If it was given
            // back early, it is mapped all the same while the arena lives, and nothing runs meanwhile.
            Some(part) => unsafe { core::slice::from_raw_parts(part.address, part.length_bytes) },
            None => &[],
        };
        let payload = [frame.copied.as_slice(), lent];
        let outgoing = Outgoing {
            headers: &frame.headers,
            payload: &payload,
            offload: frame.offload,
        };
        send(at, &outgoing);
        if let (Some(record), Some(part)) = (&mut self.record, frame.lent)
            && let Some((slot, from_bytes)) = self.slots.find(lent)
        {
            record.push(SlotRead {
                at,
                slot,
                from_bytes,
                bytes: part.length_bytes,
            });
        }
        if let Some(part) = frame.lent
            && !self.is_early
            && self.random.next_u32() % MILLION >= self.kept_slots_ppm
        {
            self.read_slots.push(part.slot);
        }
        true
    }

    /// Names the slots that it has read.
    pub(super) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
        for slot in self.read_slots.drain(..) {
            self.is_lent[slot as usize] = false;
            self.lent_count -= 1;
            sink(slot);
        }
    }
}
