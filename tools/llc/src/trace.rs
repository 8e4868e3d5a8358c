//! What devices and the processor do to slots, as a simulation reports it.
//!
//! An event names a slot and an offset, not an address, so that one run is replayed over many layouts and machines.
//! Bounded by: [`Region`](crate::layout::Region)'s size, which is the most that a worker's slots may span.

/// Who touches bytes of a slot, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// The disk's controller writes them (DMA).
    DiskWrite,
    /// The processor loads and stores them: it seals them in place.
    Seal,
    /// The NIC reads them (DMA).
    NicRead,
}

/// One touch of contiguous bytes of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, in nanoseconds since the start of the run. Events are taken in the order of their times.
    pub at_ns: u64,
    /// The worker whose slot it is, below [`WORKERS_MAX`](crate::layout::WORKERS_MAX).
    pub worker: u16,
    /// Who, and how.
    pub touch: Touch,
    /// The slot's index in the worker's arena.
    pub slot: u32,
    /// Where the touched bytes start, from the start of the slot's payload.
    pub offset_bytes: u32,
    /// How many. A line of which one byte is touched is touched whole.
    pub bytes: u32,
}
