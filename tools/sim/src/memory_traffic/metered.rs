//! A worker's link and disk with a core between them: each thing that is done in a round costs time, and what is handed
//! to a device is handed over when the core has got to it. What happens to slots on the way is put down as events.
//!
//! It refuses to know when a worker seals: over TLS it does right before it first offers bytes of a slot that a disk has
//! filled, and that is where it is charged and put down. Nothing is asked of the product.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use clock::{Duration, Instant};
use diskmap::sim::SimDisk;
use diskmap::{Completion, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write};
use link::sim::SimLink;
use link::{
    Capabilities, CopyReason, Link, LinkCounters, LinkError, Received, Sent, TransmitError,
};
use llc::trace::{Event, Touch};
use memory::{Arena, SlotMemory};
use wire::Outgoing;

/// What a core spends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// For a round, whatever it does, nanoseconds.
    pub(super) round_ns: u64,
    /// For a frame received.
    pub(super) received_frame_ns: u64,
    /// For a read, from its plan to its completion, half of it each.
    pub(super) read_ns: u64,
    /// For a frame sent.
    pub(super) sent_frame_ns: u64,
    /// For a byte that a disk has brought, picoseconds: sealing it, above all.
    pub(super) byte_ps: u64,
}

/// A core, which its worker's link and disk have in common.
#[derive(Debug)]
pub(super) struct Core {
    costs: Costs,
    worker: u16,
    is_sealing: bool,
    round_began: Cell<Instant>,
    /// In this round.
    spent_ps: Cell<u64>,
    /// When the commands enqueued in the last round are submitted.
    submits_at: Cell<Option<Instant>>,
    /// By slot: bytes that a disk has brought and that were not offered to the link yet.
    fresh_bytes: RefCell<Vec<u32>>,
    events: RefCell<Vec<Event>>,
    /// Bytes of TCP payload handed to the link, and of them those that it has copied out of slots.
    pub(super) payload_bytes: Cell<u64>,
    pub(super) copied_bytes: Cell<u64>,
}

impl Core {
    pub(super) fn new(worker: u16, is_sealing: bool, slots: usize, costs: Costs) -> Rc<Self> {
        Rc::new(Self {
            costs,
            worker,
            is_sealing,
            round_began: Cell::new(Instant::ZERO),
            spent_ps: Cell::new(0),
            submits_at: Cell::new(None),
            fresh_bytes: RefCell::new(vec![0; slots]),
            events: RefCell::new(Vec::new()),
            payload_bytes: Cell::new(0),
            copied_bytes: Cell::new(0),
        })
    }

    /// A round begins.
    pub(super) fn begin_round(&self, now: Instant) {
        self.round_began.set(now);
        self.spent_ps.set(0);
        self.spend(self.costs.round_ns);
    }

    fn spend(&self, nanos: u64) {
        self.spent_ps.set(self.spent_ps.get() + nanos * 1_000);
    }

    /// The moment that the core has got to.
    pub(super) fn now(&self) -> Instant {
        self.round_began.get() + Duration::from_nanos(self.spent_ps.get() / 1_000)
    }

    /// When the disk gets what was enqueued in the last round.
    pub(super) fn submits_at(&self) -> Option<Instant> {
        self.submits_at.get()
    }

    /// All events so far, not in order.
    pub(super) fn take_events(&self) -> Vec<Event> {
        self.events.take()
    }

    fn put_down(&self, at: Instant, touch: Touch, slot: u32, offset_bytes: u32, bytes: u32) {
        self.events.borrow_mut().push(Event {
            at_ns: at.as_nanos(),
            worker: self.worker,
            touch,
            slot,
            offset_bytes,
            bytes,
        });
    }

    /// A frame with bytes of this slot is offered for the first time: what the disk has brought is sealed.
    fn seal(&self, slot: u32) {
        let bytes = core::mem::take(&mut self.fresh_bytes.borrow_mut()[slot as usize]);
        if bytes > 0 {
            let cost_ps = u64::from(bytes) * self.costs.byte_ps;
            self.spent_ps.set(self.spent_ps.get() + cost_ps);
            if self.is_sealing {
                self.put_down(self.now(), Touch::Seal, slot, 0, bytes);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct MeteredLink {
    link: SimLink,
    slots: Option<SlotMemory>,
    core: Rc<Core>,
}

impl MeteredLink {
    pub(super) const fn new(link: SimLink, core: Rc<Core>) -> Self {
        Self {
            link,
            slots: None,
            core,
        }
    }

    pub(super) const fn link_mut(&mut self) -> &mut SimLink {
        &mut self.link
    }

    /// Puts down what the device has read.
    pub(super) fn put_down_reads(&mut self) {
        let Some(slots) = self.slots else { return };
        for read in self.link.take_slot_reads() {
            // What stands before the payload is a header of the first record.
            let payload_at = slots.payload_offset_bytes(read.slot);
            let offset = read.from_bytes.saturating_sub(payload_at);
            let end = (read.from_bytes + read.bytes).saturating_sub(payload_at);
            let short = |bytes: usize| u32::try_from(bytes).expect("invariant: a slot is small");
            let (offset, bytes) = (short(offset), short(end - offset));
            self.core
                .put_down(read.at, Touch::NicRead, read.slot, offset, bytes);
        }
    }
}

impl Link for MeteredLink {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let core = &self.core;
        self.link.receive(now, frames_max, &mut |received| {
            core.spend(core.costs.received_frame_ns);
            sink(received);
        })
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.link.zero_copy()
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.slots = Some(slots);
        self.link.borrow_slots(slots)
    }

    fn return_slots(&mut self) {
        self.link.return_slots();
    }

    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        self.link.give_back(now.max(self.core.now()), sink);
    }

    fn transmit(&mut self, _now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        let core = &self.core;
        let part = frame.payload.last().copied().unwrap_or_default();
        let slot = self.slots.and_then(|slots| slots.find(part));
        if let Some((slot, _)) = slot {
            core.seal(slot);
        }
        core.spend(core.costs.sent_frame_ns);
        let result = self.link.transmit(core.now(), frame);
        if result.is_ok() {
            let bytes = frame.bytes() - frame.headers.len();
            core.payload_bytes
                .set(core.payload_bytes.get() + bytes as u64);
            if result == Ok(Sent::Copied) && slot.is_some() {
                let copied_bytes = core.copied_bytes.get() + part.len() as u64;
                core.copied_bytes.set(copied_bytes);
            }
        }
        result
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct MeteredDisk {
    disk: SimDisk,
    core: Rc<Core>,
}

impl MeteredDisk {
    pub(super) const fn new(disk: SimDisk, core: Rc<Core>) -> Self {
        Self { disk, core }
    }

    /// The device gets what was enqueued.
    pub(super) fn submit(&mut self) {
        if let Some(at) = self.core.submits_at.take() {
            self.disk.sqsync(at).expect("invariant: it takes all");
        }
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.disk.next_event()
    }
}

impl Disk for MeteredDisk {
    fn open(&mut self, file: FileSource) -> Result<(FileIndex, FileLimits), DiskError> {
        self.disk.open(file)
    }

    fn close(&mut self, file: FileIndex) {
        self.disk.close(file);
    }

    fn read(&mut self, arena: &mut Arena, read: Read) -> Result<(), Read> {
        self.disk.read(arena, read)?;
        self.core.spend(self.core.costs.read_ns / 2);
        self.core.submits_at.set(Some(self.core.now()));
        Ok(())
    }

    fn write(&mut self, arena: &mut Arena, write: Write) -> Result<(), Write> {
        self.disk.write(arena, write)
    }

    /// Notes that the device gets it when the core has got here.
    fn sqsync(&mut self, _now: Instant) -> Result<(), DiskError> {
        Ok(())
    }

    fn consume_completions(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        completions_max: usize,
        sink: &mut dyn FnMut(&mut Arena, Completion),
    ) -> usize {
        let Self { disk, core } = self;
        let mut consumed = 0;
        while consumed < completions_max {
            let mut filled = None;
            let mut one = |arena: &mut Arena, completion: Completion| {
                let slot = completion.result.as_ref().expect("invariant: no faults");
                filled = Some((slot.index(), slot.filled_bytes()));
                sink(arena, completion);
            };
            disk.consume_completions(now, arena, 1, &mut one);
            let Some((slot, bytes)) = filled else { break };
            core.spend(core.costs.read_ns / 2);
            core.put_down(disk.completed_at(), Touch::DiskWrite, slot, 0, bytes);
            core.fresh_bytes.borrow_mut()[slot as usize] = bytes;
            consumed += 1;
        }
        consumed
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> diskmap::Counters {
        self.disk.counters()
    }
}
