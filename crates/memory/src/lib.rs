//! Slots in a huge-page arena, with a LIFO free list and one owner for each slot.
//!
//! **Every slot has exactly one owner, and the owner's token says what may be done to it:**
//!
//! ```text
//!   reserve          into_reading            into_filled
//!  Arena ──▶ FreeSlot ─────────▶ ReadingSlot ─────────▶ FilledSlot
//!    ▲          │ ▲                  │ into_free            │ into_free
//!    └──────────┘ └──────────────────┴──────────────────────┘
//!     release        (only a device may touch)   (only the CPU may write)
//! ```
//!
//! Tokens are neither `Clone` nor `Copy` and cannot be made outside this crate, so bytes are
//! reachable only through the state that owns them: there is no way to form a reference to a slot
//! a device writes, because a [`ReadingSlot`] yields nothing but a raw address. An assertion
//! refuses tokens of another arena, in release builds too: with one, a slot could have two owners.
//!
//! **A filled slot may be on loan to a link**, whose device reads it after the frame was handed over:
//! its owner keeps the token and may read the bytes, but nobody may write them. A slot that is
//! released while it is on loan is free only when the link has given it back:
//!
//! ```text
//!              lend                      release
//!   FilledSlot ────▶ the same, on loan ─────────▶ parked ──▶ free
//!        ▲                  │                        give_back
//!        └──────────────────┘ give_back
//! ```
//!
//! It refuses to grow, to zero slots between uses (the next read overwrites them, and only bytes
//! a device reported can be reached), and to free a slot behind its owner's back. A token that is
//! dropped is a slot lost: tokens have no `Drop`, because they have no reference to their arena;
//! callers check `free_count() == slot_count()` whenever they have no work.
//!
//! [`traffic`] is apart from that: what the machine's memory reads and writes.
//!
//! Bounded by [`ArenaConfig`]: all memory is mapped, touched and counted in [`Arena::new`].

#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps the arena and lends out slices of it"
)]

mod mapping;
mod prefetch;
pub mod traffic;

use core::sync::atomic::{AtomicU32, Ordering};

use mapping::Mapping;
pub use mapping::PageKind;
pub use prefetch::{prefetch, prefetch_beginning};

/// Payload starts, and slots, are aligned to this: no disk asks for more than a 4 KiB block in
/// `O_DIRECT`, and it is the size of an ordinary page.
pub const SLOT_ALIGNMENT_BYTES: u32 = 4096;
/// Most payload bytes of a slot. A read larger than this gains nothing on any disk we know.
pub const SLOT_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of room before or after the payload.
pub const ROOM_BYTES_MAX: u32 = 1 << 16;
/// Most slots of one arena.
pub const SLOT_COUNT_MAX: u32 = 1 << 20;
/// Most bytes of one [`Region`]: `io_uring` registers no larger buffer.
pub const REGION_BYTES_MAX: usize = 1 << 30;

/// Shape of an arena. Every value in it is a bound on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Number of slots, 1..=[`SLOT_COUNT_MAX`].
    pub slot_count: u32,
    /// Payload bytes of a slot: a multiple of [`SLOT_ALIGNMENT_BYTES`], 4096..=[`SLOT_BYTES_MAX`].
    pub slot_bytes: u32,
    /// Room before the payload: a multiple of [`SLOT_ALIGNMENT_BYTES`], 0..=[`ROOM_BYTES_MAX`].
    pub headroom_bytes: u32,
    /// Room after the payload: a multiple of [`SLOT_ALIGNMENT_BYTES`], 0..=[`ROOM_BYTES_MAX`].
    pub tailroom_bytes: u32,
    /// How much farther from their slot's start the payloads of odd slots begin than those of even ones: a multiple of
    /// [`SLOT_ALIGNMENT_BYTES`], with `headroom_bytes` at most [`ROOM_BYTES_MAX`]. Where slots are a power of two
    /// apart, payloads that all begin at the same place of it use a part of the sets of a cache that takes the set from
    /// bits of the address; in two places they use all.
    pub odd_shift_bytes: u32,
    /// The kind of pages to try first; if there are none, the next kind is used.
    pub pages: PageKind,
}

impl ArenaConfig {
    /// Payload of a slot: one 64 KiB read, which is also the largest GSO packet's payload.
    pub const SLOT_BYTES: u32 = 65_536;
    /// One page: the first record's header goes there without moving the payload off its alignment.
    pub const HEADROOM_BYTES: u32 = 4096;
    /// One page: the trailers of a full payload's records, and the headers between them. Together
    /// with the headroom it makes the stride 72 KiB, no power of two, so that payloads of neighbours do not
    /// share cache sets. Where a link wants a power of two, see [`ArenaConfig::odd_shift_bytes`].
    pub const TAILROOM_BYTES: u32 = 4096;

    /// `slot_count` slots of the usual shape, in the best pages there are.
    #[must_use]
    pub const fn new(slot_count: u32) -> Self {
        Self {
            slot_count,
            slot_bytes: Self::SLOT_BYTES,
            headroom_bytes: Self::HEADROOM_BYTES,
            tailroom_bytes: Self::TAILROOM_BYTES,
            odd_shift_bytes: 0,
            pages: PageKind::Huge2M,
        }
    }

    /// The same with so many bytes from one slot to the next, as far as [`ROOM_BYTES_MAX`] allows; never with less. The
    /// payloads of odd slots are shifted by what is more.
    #[must_use]
    pub fn with_stride_bytes(self, stride_bytes: usize) -> Self {
        let more = stride_bytes.saturating_sub(self.stride_bytes());
        let room = ROOM_BYTES_MAX.saturating_sub(self.headroom_bytes + self.odd_shift_bytes);
        Self {
            odd_shift_bytes: self.odd_shift_bytes + u32::try_from(more).unwrap_or(room).min(room),
            ..self
        }
    }

    /// Bytes of all slots, head- and tailroom included.
    #[must_use]
    pub const fn slots_bytes(&self) -> usize {
        self.slot_count as usize * self.stride_bytes()
    }

    /// Distance from one slot to the next, bytes.
    #[must_use]
    pub const fn stride_bytes(&self) -> usize {
        let room_bytes = self.headroom_bytes as usize + self.tailroom_bytes as usize;
        room_bytes + self.odd_shift_bytes as usize + self.slot_bytes as usize
    }

    /// Bytes of a slot before its payload.
    const fn payload_offset_bytes(&self, index: u32) -> usize {
        payload_offset_bytes(self.headroom_bytes, self.odd_shift_bytes, index)
    }

    fn check(&self) -> Result<(), ArenaError> {
        let is_aligned = |bytes: u32| bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES);
        if self.slot_count == 0 || self.slot_count > SLOT_COUNT_MAX {
            return Err(ArenaError::SlotCount {
                slot_count: self.slot_count,
            });
        }
        if self.slot_bytes == 0 || self.slot_bytes > SLOT_BYTES_MAX || !is_aligned(self.slot_bytes)
        {
            return Err(ArenaError::SlotBytes {
                slot_bytes: self.slot_bytes,
            });
        }
        let before_bytes = self.headroom_bytes.saturating_add(self.odd_shift_bytes);
        for room_bytes in [self.headroom_bytes, before_bytes, self.tailroom_bytes] {
            if room_bytes > ROOM_BYTES_MAX || !is_aligned(room_bytes) {
                return Err(ArenaError::RoomBytes { room_bytes });
            }
        }
        Ok(())
    }
}

const fn payload_offset_bytes(headroom_bytes: u32, odd_shift_bytes: u32, index: u32) -> usize {
    headroom_bytes as usize + (index % 2) as usize * odd_shift_bytes as usize
}

/// Why the arena cannot be made; each message ends in what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Zero slots, or too many.
    #[error("{slot_count} slots: choose 1 to {SLOT_COUNT_MAX}")]
    SlotCount {
        /// As configured.
        slot_count: u32,
    },
    /// A payload size that is no multiple of the block size of `O_DIRECT`.
    #[error(
        "slots of {slot_bytes} bytes: choose a multiple of {SLOT_ALIGNMENT_BYTES}, \
         at most {SLOT_BYTES_MAX}"
    )]
    SlotBytes {
        /// As configured.
        slot_bytes: u32,
    },
    /// Headroom or tailroom with which payloads would not be aligned.
    #[error(
        "head- or tailroom of {room_bytes} bytes: choose a multiple of {SLOT_ALIGNMENT_BYTES}, \
         at most {ROOM_BYTES_MAX}"
    )]
    RoomBytes {
        /// As configured.
        room_bytes: u32,
    },
    /// The kernel refused even ordinary pages.
    #[error(
        "cannot map {bytes} bytes for the slots (errno {errno}): configure fewer slots, or raise \
         the memory limit (ulimit -v, cgroup memory.max, vm.overcommit_memory)"
    )]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// The errno of `mmap`.
        errno: i32,
    },
}

/// What a freed slot's payload is full of, in builds with debug assertions.
#[cfg(debug_assertions)]
const FREED_BYTE: u8 = 0xdb;

/// What every token holds: the arena, the slot, and the number of bytes in it.
#[derive(PartialEq, Eq, Debug)]
struct Key {
    arena: u32,
    index: u32,
    slot_bytes: u32,
}

/// A slot that is not in use. Only [`Arena::release`] makes it reusable.
#[derive(Debug)]
#[must_use = "a dropped slot is lost to the arena"]
pub struct FreeSlot {
    key: Key,
}

/// A slot the disk is reading into; its bytes cannot be reached.
#[derive(Debug)]
#[must_use = "a dropped slot is lost to the arena"]
pub struct ReadingSlot {
    key: Key,
}

/// A slot with bytes in it.
#[derive(Debug)]
#[must_use = "a dropped slot is lost to the arena"]
pub struct FilledSlot {
    key: Key,
    filled_bytes: u32,
}

impl FreeSlot {
    /// Hands the slot to a device.
    pub fn into_reading(self) -> ReadingSlot {
        ReadingSlot { key: self.key }
    }

    /// Its number in the arena, `0..slot_count`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.key.index
    }
}

impl ReadingSlot {
    /// The device is done and wrote `filled_bytes`.
    ///
    /// # Panics
    /// If `filled_bytes` is more than the slot's payload.
    pub fn into_filled(self, filled_bytes: u32) -> FilledSlot {
        assert!(
            filled_bytes <= self.key.slot_bytes,
            "a slot of {} bytes cannot hold {filled_bytes}",
            self.key.slot_bytes
        );
        FilledSlot {
            key: self.key,
            filled_bytes,
        }
    }

    /// The device is done, and the slot holds no valid bytes.
    pub fn into_free(self) -> FreeSlot {
        FreeSlot { key: self.key }
    }

    /// Its number in the arena, `0..slot_count`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.key.index
    }

    /// Payload bytes a device may write into it.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.key.slot_bytes
    }
}

impl FilledSlot {
    /// The bytes are no longer needed.
    pub fn into_free(self) -> FreeSlot {
        FreeSlot { key: self.key }
    }

    /// Its number in the arena, `0..slot_count`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.key.index
    }

    /// Bytes of payload in it, `0..=slot_bytes`.
    #[must_use]
    pub fn filled_bytes(&self) -> u32 {
        self.filled_bytes
    }
}

/// A run of whole slots to be registered with a device as one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte.
    pub address: *mut u8,
    /// Bytes, at most [`REGION_BYTES_MAX`].
    pub length_bytes: usize,
}

/// Where an arena's slots are, for a link that sends from them without a copy. It may read a slot that
/// is on loan to it, and write the bytes of it that no reference covers; the memory stays mapped
/// while a slot is on loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotMemory {
    address: *mut u8,
    stride_bytes: usize,
    headroom_bytes: u32,
    odd_shift_bytes: u32,
    slot_count: u32,
}

impl SlotMemory {
    /// First byte of the first slot's headroom.
    #[must_use]
    pub const fn address(&self) -> *mut u8 {
        self.address
    }

    /// Distance from one slot to the next, bytes.
    #[must_use]
    pub const fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }

    /// Bytes of a slot before its payload, by its number ([`ArenaConfig::odd_shift_bytes`]).
    #[must_use]
    pub const fn payload_offset_bytes(&self, index: u32) -> usize {
        payload_offset_bytes(self.headroom_bytes, self.odd_shift_bytes, index)
    }

    /// Number of slots.
    #[must_use]
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Most slots that a link should have on loan at once: three of four. The rest is for reads, also if
    /// the link's device never gives one back.
    #[must_use]
    pub const fn lent_max(&self) -> usize {
        self.slot_count as usize * 3 / 4
    }

    /// Which slot `part` lies in, and how many bytes it begins behind the slot's first; `None` if
    /// it is not whole in one.
    #[must_use]
    pub fn find(&self, part: &[u8]) -> Option<(u32, usize)> {
        let distance = part.as_ptr().addr().checked_sub(self.address.addr())?;
        let (index, place) = (distance / self.stride_bytes, distance % self.stride_bytes);
        let index = u32::try_from(index).ok()?;
        let is_inside = index < self.slot_count && place + part.len() <= self.stride_bytes;
        is_inside.then_some((index, place))
    }
}

/// The memory of all slots, and the list of the free ones.
#[derive(Debug)]
pub struct Arena {
    /// Different for each arena of this process.
    id: u32,
    config: ArenaConfig,
    mapping: Mapping,
    /// Free slots, the one that was freed last at the end.
    free: Vec<u32>,
    /// By slot.
    loans: Vec<Loan>,
    lent_count: usize,
    slots_per_region: u32,
}

/// Whether a link's device may read a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loan {
    /// It does not.
    None,
    /// It does, and the slot has an owner.
    Lent,
    /// It does, and the slot's owner has released it.
    Parked,
}

impl Arena {
    /// Maps and touches all slots, so that nothing faults later. They start as zeroes.
    ///
    /// # Errors
    /// A shape out of range, or no memory even in ordinary pages.
    pub fn new(config: ArenaConfig) -> Result<Self, ArenaError> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);

        config.check()?;
        let stride_bytes = config.stride_bytes();
        // At most 2^20 slots of 1.125 MiB: no overflow in 64 bits.
        let bytes = stride_bytes * config.slot_count as usize;
        let mapping =
            Mapping::new(bytes, config.pages).map_err(|errno| ArenaError::Map { bytes, errno })?;
        let slots_per_region = u32::try_from(REGION_BYTES_MAX / stride_bytes)
            .expect("invariant: a slot has at least 4096 bytes");
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        assert!(id != u32::MAX, "arena identities are used up");
        // The lowest slot is taken first.
        let free = (0..config.slot_count).rev().collect();
        Ok(Self {
            id,
            config,
            mapping,
            free,
            loans: vec![Loan::None; config.slot_count as usize],
            lent_count: 0,
            slots_per_region,
        })
    }

    /// Takes the free slot that was freed last, whose bytes are most likely in the cache; `None`
    /// when all are in use.
    pub fn reserve(&mut self) -> Option<FreeSlot> {
        let index = self.free.pop()?;
        let slot_bytes = self.config.slot_bytes;
        Some(FreeSlot {
            key: Key {
                arena: self.id,
                index,
                slot_bytes,
            },
        })
    }

    /// Frees a slot; [`Arena::reserve`] takes it first. A slot on loan is free when it was given back.
    ///
    /// # Panics
    /// If the slot is of another arena.
    pub fn release(&mut self, slot: FreeSlot) {
        self.check(&slot.key);
        match self.loan_of(slot.key.index) {
            Loan::None => self.free_slot(slot.key.index),
            Loan::Lent => self.loans[slot.key.index as usize] = Loan::Parked,
            Loan::Parked => panic!("slot {} was released twice", slot.key.index),
        }
    }

    /// Lends a slot to a link: from now on its device may read all of it, until
    /// [`Arena::give_back`].
    ///
    /// # Panics
    /// If the slot is on loan already, or of another arena.
    pub fn lend(&mut self, slot: &FilledSlot) {
        self.check(&slot.key);
        let index = slot.key.index;
        assert!(
            self.loan_of(index) == Loan::None,
            "slot {index} is on loan already"
        );
        self.loans[index as usize] = Loan::Lent;
        self.lent_count += 1;
    }

    /// The link's device reads the slot no more, by its `index()`.
    ///
    /// # Panics
    /// If there is no such slot, or it is not on loan.
    pub fn give_back(&mut self, slot_index: u32) {
        let loan = self.loan_of(slot_index);
        assert!(loan != Loan::None, "slot {slot_index} is not on loan");
        self.loans[slot_index as usize] = Loan::None;
        self.lent_count -= 1;
        if loan == Loan::Parked {
            self.free_slot(slot_index);
        }
    }

    /// Slots on loan now, released ones included.
    #[must_use]
    pub fn lent_count(&self) -> usize {
        self.lent_count
    }

    /// Slots on loan that have no owner any more.
    #[must_use]
    pub fn parked_count(&self) -> usize {
        let parked = self.loans.iter().filter(|loan| **loan == Loan::Parked);
        parked.count()
    }

    /// Whether a slot is on loan.
    ///
    /// # Panics
    /// If the slot is of another arena.
    #[must_use]
    pub fn is_lent(&self, slot: &FilledSlot) -> bool {
        self.check(&slot.key);
        self.loan_of(slot.key.index) != Loan::None
    }

    fn loan_of(&self, index: u32) -> Loan {
        let loan = self.loans.get(index as usize).copied();
        loan.unwrap_or_else(|| panic!("there is no slot {index}"))
    }

    fn free_slot(&mut self, index: u32) {
        assert!(
            self.free.len() < self.slot_count(),
            "more slots came home than ever left"
        );
        #[cfg(debug_assertions)]
        self.overwrite(index);
        self.free.push(index);
    }

    /// Fills a payload that has become free, so that whoever still sends it sends something else.
    #[cfg(debug_assertions)]
    fn overwrite(&mut self, index: u32) {
        let bytes = self.config.slot_bytes as usize;
        // SAFETY: the payload of a slot without an owner and not on loan: nothing else refers to it,
        // and it lies within the mapping.
        unsafe { core::ptr::write_bytes(self.payload_address(index), FREED_BYTE, bytes) };
    }

    /// The same as [`Arena::payload`], to be sealed in place.
    ///
    /// # Panics
    /// If the slot is on loan or of another arena.
    pub fn payload_mut<'a>(&'a mut self, slot: &'a mut FilledSlot) -> &'a mut [u8] {
        self.window_mut(slot, 0, 0)
    }

    /// The payload with `before_bytes` of headroom in front and `after_bytes` of room behind, in
    /// one piece. The room behind is what the read left of the slot, and the tailroom. Bytes
    /// outside the payload are whatever was last there.
    ///
    /// # Panics
    /// If there is not that much room, or the slot is on loan or of another arena.
    pub fn window_mut<'a>(
        &'a mut self,
        slot: &'a mut FilledSlot,
        before_bytes: u32,
        after_bytes: u32,
    ) -> &'a mut [u8] {
        // What a link's device sends must not change under it.
        assert!(
            !self.is_lent(slot),
            "slot {} is on loan: it may be read only",
            slot.key.index
        );
        let (start, length_bytes) = self.window_bounds(slot, before_bytes, after_bytes);
        // SAFETY: `window_bounds` stays within one slot, which lies within the mapping, whose
        // bytes are initialised (zeroed by the kernel). `&mut FilledSlot` is the only key to the
        // slot, so no other reference to its bytes exists while it is borrowed, and no device
        // writes a slot whose token says Filled.
        unsafe { core::slice::from_raw_parts_mut(start, length_bytes) }
    }

    /// The bytes read into a slot: exactly `filled_bytes` of them.
    ///
    /// # Panics
    /// If the slot is of another arena.
    #[must_use]
    pub fn payload<'a>(&'a self, slot: &'a FilledSlot) -> &'a [u8] {
        self.window(slot, 0, 0)
    }

    /// What [`Arena::window_mut`] gives, to be read.
    ///
    /// # Panics
    /// If there is not that much room, or the slot is of another arena.
    #[must_use]
    pub fn window<'a>(
        &'a self,
        slot: &'a FilledSlot,
        before_bytes: u32,
        after_bytes: u32,
    ) -> &'a [u8] {
        let (start, length_bytes) = self.window_bounds(slot, before_bytes, after_bytes);
        // SAFETY: as in `window_mut`; a shared borrow of the token lets nobody write the slot.
        unsafe { core::slice::from_raw_parts(start, length_bytes) }
    }

    /// Where a device writes the payload: `slot_bytes` bytes, aligned to
    /// [`SLOT_ALIGNMENT_BYTES`]. A device may write there only while the token it was asked for
    /// is kept as a [`ReadingSlot`]; the memory stays mapped for at least as long, even if the
    /// arena is dropped (see its `Drop`).
    ///
    /// # Panics
    /// If the slot is on loan or of another arena.
    #[must_use]
    pub fn device_address(&self, slot: &ReadingSlot) -> *mut u8 {
        self.check(&slot.key);
        assert!(
            self.loan_of(slot.key.index) == Loan::None,
            "slot {} is on loan: it may be read only",
            slot.key.index
        );
        self.payload_address(slot.key.index)
    }

    /// Where a device reads the payload from, to write it to a disk. Valid while the token is
    /// kept and not borrowed mutably.
    ///
    /// # Panics
    /// If the slot is of another arena.
    #[must_use]
    pub fn device_source(&self, slot: &FilledSlot) -> *const u8 {
        self.check(&slot.key);
        self.payload_address(slot.key.index)
    }

    /// The whole arena as few buffers to register with a device: one per started GiB, each of
    /// whole slots, so that every slot lies in exactly one of them. In order of
    /// [`Arena::region_index`].
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        let region_count = self.config.slot_count.div_ceil(self.slots_per_region);
        (0..region_count).map(|region| {
            let first_slot = region * self.slots_per_region;
            let slot_count = self
                .slots_per_region
                .min(self.config.slot_count - first_slot);
            Region {
                address: self.slot_address(first_slot),
                length_bytes: self.config.stride_bytes() * slot_count as usize,
            }
        })
    }

    /// Where the slots are, for a link that borrows them.
    #[must_use]
    pub fn slot_memory(&self) -> SlotMemory {
        SlotMemory {
            address: self.slot_address(0),
            stride_bytes: self.config.stride_bytes(),
            headroom_bytes: self.config.headroom_bytes,
            odd_shift_bytes: self.config.odd_shift_bytes,
            slot_count: self.config.slot_count,
        }
    }

    /// Which of [`Arena::regions`] a slot lies in, from its `index()`.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn region_index(&self, slot_index: u32) -> u16 {
        assert!(
            slot_index < self.config.slot_count,
            "there is no slot {slot_index}"
        );
        u16::try_from(slot_index / self.slots_per_region)
            .expect("invariant: at most 2^20 slots of 1.125 MiB are less than 2^16 GiB")
    }

    /// Free slots now.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// All slots.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.config.slot_count as usize
    }

    /// Payload bytes a slot holds at most.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.config.slot_bytes
    }

    /// Bytes mapped in all, rounding to whole pages included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.length_bytes()
    }

    /// The kind of pages the slots are in.
    #[must_use]
    pub fn pages(&self) -> PageKind {
        self.mapping.pages()
    }

    /// Why the pages are not the kind that was configured, and what to do; `None` if they are.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<&str> {
        self.mapping.fallback_reason()
    }

    /// A token of another arena would alias a slot that has an owner here.
    fn check(&self, key: &Key) {
        assert!(
            key.arena == self.id,
            "slot {} belongs to another arena",
            key.index
        );
    }

    fn slot_address(&self, index: u32) -> *mut u8 {
        self.mapping
            .address(index as usize * self.config.stride_bytes())
    }

    fn payload_address(&self, index: u32) -> *mut u8 {
        let start_bytes = index as usize * self.config.stride_bytes();
        self.mapping
            .address(start_bytes + self.config.payload_offset_bytes(index))
    }

    /// Start and length of a window, checked to lie within the slot.
    fn window_bounds(&self, slot: &FilledSlot, before: u32, after: u32) -> (*mut u8, usize) {
        self.check(&slot.key);
        let headroom_bytes = self.config.headroom_bytes;
        // `into_filled` checked `filled_bytes`, so the subtraction holds.
        let behind_bytes = self.config.slot_bytes - slot.filled_bytes + self.config.tailroom_bytes;
        assert!(
            before <= headroom_bytes,
            "{before} bytes do not fit a headroom of {headroom_bytes}"
        );
        assert!(
            after <= behind_bytes,
            "{after} bytes do not fit the {behind_bytes} behind"
        );
        let start = self.payload_address(slot.key.index);
        let length_bytes = before as usize + slot.filled_bytes as usize + after as usize;
        (start.wrapping_sub(before as usize), length_bytes)
    }
}

impl Drop for Arena {
    /// Unmaps the slots if all are free. Else a device may still write to one, or read one that is on
    /// loan: then the memory stays mapped for good, because a leak is better than a write into memory
    /// with another use, or than sending what is there then. So nothing depends on the order in which
    /// an arena, its disk and its link are dropped.
    fn drop(&mut self) {
        if self.free.len() == self.slot_count() {
            // SAFETY: no token exists, hence no reference, and no device knows an address it may
            // still use (the rule of `device_address`). The mapping is not used again.
            unsafe { self.mapping.unmap() };
        }
    }
}

#[cfg(test)]
mod tests;
