//! One of the four rings of an AF_XDP socket: entries of which one side writes and the other reads.
//!
//! Each side has an index, a free-running 32-bit number: the producer's counts the entries written, the
//! consumer's those read. Both are accessed atomically by both sides; an entry is accessed only by the side
//! that the indices say it belongs to, and never by reference.
//!
//! Ordering: entries are written before the producer's index is stored with `Release`, and read after it
//! was loaded with `Acquire`; the same for the consumer's index, so that an entry is written again only
//! after it was read.
//!
//! It refuses to trust the kernel's index: a difference larger than the ring counts as a full one.
//! Bound: the entries it was made with, a power of two.
//!
//! Reading first: Documentation/networking/af_xdp.rst; `net/xdp/xsk_queue.h`.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: reads and writes entries in memory that the kernel shares"
)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::mapping::Mapping;

/// Set by the kernel in a ring's flags: it acts on the ring only when it is called.
const NEED_WAKEUP: u32 = 1;

/// Where in a ring's mapping its parts are, bytes: `struct xdp_ring_offset`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingOffsets {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) entries: u64,
    pub(super) flags: u64,
}

/// What a ring can hold: plain numbers, any of whose bytes are valid.
///
/// # Safety
/// Every bit pattern must be a value of the type.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: any 64 bits are a number. (An address within the cells, in the fill and completion rings.)
unsafe impl Entry for u64 {}

/// A frame, or a part of one: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// From the first cell, bytes.
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);

// SAFETY: three numbers without padding.
unsafe impl Entry for Descriptor {}

/// The indices of one side: pure arithmetic modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Indices {
    entries: u32,
    /// Ours, not necessarily stored yet.
    own: u32,
    /// The kernel's, when it was last loaded.
    theirs: u32,
}

impl Indices {
    /// As a producer: entries that may be written.
    const fn free(&self) -> u32 {
        self.entries.saturating_sub(self.unread())
    }

    /// As a producer: entries that the kernel has not read.
    const fn unread(&self) -> u32 {
        self.own.wrapping_sub(self.theirs)
    }

    /// As a consumer: entries that may be read.
    fn ready(&self) -> u32 {
        self.theirs.wrapping_sub(self.own).min(self.entries)
    }
}

/// One ring.
#[derive(Debug)]
pub(super) struct Ring<E> {
    mapping: Mapping,
    offsets: RingOffsets,
    indices: Indices,
    kind: PhantomData<E>,
}

impl<E: Entry> Ring<E> {
    /// A ring in a mapping that begins at the ring's memory.
    ///
    /// # Panics
    /// If the offsets are not inside the mapping.
    pub(super) fn new(mapping: Mapping, offsets: RingOffsets, entries: u32) -> Self {
        assert!(entries.is_power_of_two(), "a ring of {entries} entries");
        let ring = Self {
            mapping,
            offsets,
            indices: Indices {
                entries,
                own: 0,
                theirs: 0,
            },
            kind: PhantomData,
        };
        // The last of each part is inside.
        let _ = ring.entry(entries - 1);
        for offset in [offsets.producer, offsets.consumer, offsets.flags] {
            let _ = ring.word(offset);
        }
        ring
    }

    /// Bytes of a ring's mapping.
    pub(super) fn mapping_bytes(offsets: &RingOffsets, entries: u32) -> usize {
        to_usize(offsets.entries) + entries as usize * size_of::<E>()
    }

    /// As a producer: goes on behind what another process has published last.
    pub(super) fn resume_producing(&mut self) {
        self.indices.own = self.word(self.offsets.producer).load(Ordering::Acquire);
        self.indices.theirs = self.word(self.offsets.consumer).load(Ordering::Acquire);
    }

    /// As a consumer: goes on behind what another process has released last.
    pub(super) fn resume_consuming(&mut self) {
        self.indices.own = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.indices.theirs = self.word(self.offsets.producer).load(Ordering::Acquire);
    }

    /// Our index: entries pushed as a producer, or taken as a consumer, modulo 2^32.
    pub(super) const fn own_index(&self) -> u32 {
        self.indices.own
    }

    /// As a producer: how many entries may be written.
    pub(super) fn free(&mut self) -> u32 {
        self.indices.theirs = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.indices.free()
    }

    /// As a producer: how many entries the kernel has not read.
    pub(super) fn unread(&mut self) -> u32 {
        self.indices.theirs = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.indices.unread()
    }

    /// As a producer: how many entries the kernel has not read at this moment.
    pub(super) fn unread_now(&self) -> u32 {
        let theirs = self.word(self.offsets.consumer).load(Ordering::Acquire);
        let indices = Indices {
            theirs,
            ..self.indices
        };
        indices.unread().min(indices.entries)
    }

    /// As a producer: writes an entry, which the kernel sees after [`Ring::publish`].
    ///
    /// # Panics
    /// If there is no room: the caller asks [`Ring::free`] first.
    pub(super) fn push(&mut self, entry: E) {
        assert!(self.indices.free() > 0, "a full ring");
        let place = self.entry(self.indices.own);
        // SAFETY: inside the mapping and aligned; the indices say that the entry is ours.
        unsafe { place.write(entry) };
        self.indices.own = self.indices.own.wrapping_add(1);
    }

    /// As a producer: hands the kernel what was pushed.
    pub(super) fn publish(&self) {
        let producer = self.word(self.offsets.producer);
        producer.store(self.indices.own, Ordering::Release);
    }

    /// As a consumer: whether there is an entry to take.
    pub(super) fn has_ready(&mut self) -> bool {
        if self.indices.ready() == 0 {
            self.indices.theirs = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        self.indices.ready() > 0
    }

    /// As a consumer: reads the next entry; the kernel may write it again after [`Ring::release`].
    pub(super) fn take(&mut self) -> Option<E> {
        if !self.has_ready() {
            return None;
        }
        let place = self.entry(self.indices.own);
        // SAFETY: inside the mapping and aligned; the indices say that the entry is ours. Any bytes
        // are a value.
        let entry = unsafe { place.read() };
        self.indices.own = self.indices.own.wrapping_add(1);
        Some(entry)
    }

    /// As a consumer: gives the kernel back the entries that were taken.
    pub(super) fn release(&self) {
        let consumer = self.word(self.offsets.consumer);
        consumer.store(self.indices.own, Ordering::Release);
    }

    /// As a producer: whether the kernel waits for a call to look at what was published.
    pub(super) fn needs_wakeup(&self) -> bool {
        // The index that was stored must be seen before this is read: the kernel sets the flag, then
        // looks at the ring once more.
        fence(Ordering::SeqCst);
        self.word(self.offsets.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// A word that both sides access.
    fn word(&self, offset: u64) -> &AtomicU32 {
        let word = self.mapping.pointer::<u32>(to_usize(offset));
        // SAFETY: an aligned word inside the mapping, which lives as long as `self`, and which both
        // sides access atomically only.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    fn entry(&self, index: u32) -> std::ptr::NonNull<E> {
        let place = (index & (self.indices.entries - 1)) as usize;
        self.mapping
            .pointer(to_usize(self.offsets.entries) + place * size_of::<E>())
    }
}

fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).expect("invariant: a ring fits the address space")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::mapping::Mapping;
    use super::{Indices, NEED_WAKEUP, Ring, RingOffsets};

    const OFFSETS: RingOffsets = RingOffsets {
        producer: 0,
        consumer: 64,
        entries: 192,
        flags: 128,
    };

    /// A ring in ordinary memory whose indices stand at `start`; the test is the other side.
    fn ring(entries: u32, start: u32) -> Ring<u64> {
        let bytes = Ring::<u64>::mapping_bytes(&OFFSETS, entries);
        let mut ring = Ring::new(Mapping::anonymous(bytes).unwrap(), OFFSETS, entries);
        for offset in [OFFSETS.producer, OFFSETS.consumer] {
            ring.word(offset).store(start, Ordering::Relaxed);
        }
        ring.indices.own = start;
        ring.indices.theirs = start;
        ring
    }

    #[test]
    fn a_producer_fills_the_ring_and_goes_on_over_the_wrap_of_its_index() {
        for start in [0, 5, u32::MAX - 2, u32::MAX] {
            let mut ring = ring(4, start);
            for round in 0..5_u64 {
                assert_eq!((ring.free(), ring.unread()), (4, 0));
                for number in 0..4 {
                    ring.push(round * 10 + number);
                }
                assert_eq!((ring.free(), ring.unread()), (0, 4), "from {start}");
                assert_eq!(ring.unread_now(), 4);
                ring.publish();
                let producer = ring.word(OFFSETS.producer).load(Ordering::Relaxed);
                assert_eq!(producer, ring.indices.own);
                // The kernel reads them all.
                let mut bytes = [0; 8];
                for number in 0..4 {
                    let place = ring.indices.own.wrapping_sub(4).wrapping_add(number) % 4;
                    assert!(ring.mapping.copy_out(192 + 8 * place as usize, &mut bytes));
                    assert_eq!(u64::from_ne_bytes(bytes), round * 10 + u64::from(number));
                }
                ring.word(OFFSETS.consumer)
                    .store(producer, Ordering::Relaxed);
            }
        }
    }

    #[test]
    #[should_panic(expected = "a full ring")]
    fn an_entry_too_many_is_a_programming_error() {
        let mut ring = ring(2, u32::MAX);
        (0..3).for_each(|number| ring.push(number));
    }

    #[test]
    fn a_consumer_takes_what_was_written_over_the_wrap_of_its_index() {
        for start in [0, 6, u32::MAX - 1] {
            let mut ring = ring(4, start);
            assert_eq!(ring.take(), None);
            for round in 0..4_u64 {
                for number in 0..3_u32 {
                    let index = ring.indices.own.wrapping_add(number) % 4;
                    let entry = round * 10 + u64::from(number);
                    let place = 192 + 8 * index as usize;
                    assert!(ring.mapping.copy_in(place, &entry.to_ne_bytes()));
                }
                let producer = ring.indices.own.wrapping_add(3);
                ring.word(OFFSETS.producer)
                    .store(producer, Ordering::Relaxed);
                for number in 0..3 {
                    assert_eq!(ring.take(), Some(round * 10 + number));
                }
                assert_eq!(ring.take(), None);
                ring.release();
                let consumer = ring.word(OFFSETS.consumer).load(Ordering::Relaxed);
                assert_eq!(consumer, producer);
            }
        }
    }

    #[test]
    fn an_index_that_cannot_be_is_taken_for_a_full_ring() {
        let indices = |own, theirs| Indices {
            entries: 8,
            own,
            theirs,
        };
        assert_eq!((indices(8, 0).free(), indices(9, 0).free()), (0, 0));
        assert_eq!((indices(0, 8).ready(), indices(0, 9).ready()), (8, 8));
        assert_eq!((indices(7, 0).free(), indices(0, 7).ready()), (1, 7));
        let wrapped = indices(3, u32::MAX - 1);
        assert_eq!((wrapped.unread(), wrapped.free()), (5, 3));
    }

    #[test]
    fn the_wake_up_flag_is_the_lowest_bit() {
        let ring = ring(4, 0);
        assert!(!ring.needs_wakeup());
        ring.word(OFFSETS.flags)
            .store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(ring.needs_wakeup());
        ring.word(OFFSETS.flags).store(2, Ordering::Relaxed);
        assert!(!ring.needs_wakeup());
    }
}
