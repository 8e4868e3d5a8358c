//! Where slots, and what else a server touches, are in physical memory.
//!
//! Memory is in huge pages of 2 MiB. A seed scatters the pages: bits 0-20 of an address are those of the offset in
//! the region, those above are as good as random, and no two pages share a place. It refuses more workers than
//! [`WORKERS_MAX`] and offsets past [`REGION_BYTES`].

/// Most workers: each has a few regions.
pub const WORKERS_MAX: u16 = 64;
/// Size of a region.
pub const REGION_BYTES: u64 = 1 << 29;

const PAGE_BITS: u32 = 21;
/// All of memory is 128 GiB: the number of a line of 64 B has 31 bits.
const PAGES_BITS: u32 = 37 - PAGE_BITS;
const REGION_PAGES: u64 = REGION_BYTES >> PAGE_BITS;
/// log2 of a cache line's bytes.
pub(crate) const LINE_BITS: u32 = 6;

/// How slots lie in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// From the start of a slot to that of the next.
    pub stride_bytes: u32,
    /// From the start of a slot to its payload.
    pub headroom_bytes: u32,
    /// Added to the headroom of slots with an odd index: 0, or the second of two colours.
    pub odd_shift_bytes: u32,
}

impl Layout {
    /// Slots lent to packet sockets, which begin at multiples of 128 KiB.
    pub const LENT: Self = Self {
        stride_bytes: 128 << 10,
        headroom_bytes: 4 << 10,
        odd_shift_bytes: 0,
    };
    /// The same in two colours: the payload of odd slots begins at 60 KiB of their 128 KiB.
    pub const TWO_COLOURS: Self = Self {
        odd_shift_bytes: 56 << 10,
        ..Self::LENT
    };
    /// Slots of an arena that are not lent: 64 KiB, and a page before and behind.
    pub const ARENA: Self = Self {
        stride_bytes: 72 << 10,
        ..Self::LENT
    };
    /// Buffers of 16 KiB, one behind the other.
    pub const PACKED: Self = Self {
        stride_bytes: 16 << 10,
        headroom_bytes: 0,
        odd_shift_bytes: 0,
    };

    /// Where a byte of a slot's payload is in its arena.
    #[must_use]
    pub fn offset_bytes(&self, slot: u32, offset_bytes: u32) -> u64 {
        let shift_bytes = if slot % 2 == 1 {
            self.odd_shift_bytes
        } else {
            0
        };
        let inside = u64::from(self.headroom_bytes) + u64::from(shift_bytes);
        u64::from(slot) * u64::from(self.stride_bytes) + inside + u64::from(offset_bytes)
    }
}

/// Memory of one worker for one purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// Its slots.
    Arena(u16),
    /// Where sealed bytes go that are not sealed in place.
    Output(u16),
    /// Connections, headers of frames, structures of a kernel.
    Metadata(u16),
}

impl Region {
    /// Whose it is.
    #[must_use]
    pub const fn worker(self) -> u16 {
        match self {
            Self::Arena(worker) | Self::Output(worker) | Self::Metadata(worker) => worker,
        }
    }

    fn index(self) -> u64 {
        let worker = self.worker();
        let kind = match self {
            Self::Arena(_) => 0,
            Self::Output(_) => 1,
            Self::Metadata(_) => 2,
        };
        assert!(
            worker < WORKERS_MAX,
            "worker {worker} has no regions: there are {WORKERS_MAX}"
        );
        kind * u64::from(WORKERS_MAX) + u64::from(worker)
    }
}

/// Where the pages of all regions are.
#[derive(Clone, Copy, Debug)]
pub struct PhysicalMemory {
    seed: u64,
}

impl PhysicalMemory {
    /// Scatters pages by `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The lines that so many bytes of a region touch, by number (address / 64), in order.
    ///
    /// # Panics
    /// The bytes pass the region's end.
    pub fn lines(self, region: Region, offset_bytes: u64, bytes: u64) -> impl Iterator<Item = u32> {
        assert!(
            offset_bytes + bytes <= REGION_BYTES,
            "{bytes} B at {offset_bytes} of {region:?} pass its {REGION_BYTES} B"
        );
        let first = offset_bytes >> LINE_BITS;
        let end = if bytes == 0 {
            first
        } else {
            ((offset_bytes + bytes - 1) >> LINE_BITS) + 1
        };
        let region = region.index();
        let line_bits = PAGE_BITS - LINE_BITS;
        let mut known = (u64::MAX, 0);
        (first..end).map(move |line| {
            let page = line >> line_bits;
            if known.0 != page {
                known = (page, self.place(region * REGION_PAGES + page));
            }
            let number = (known.1 << line_bits) | (line & ((1 << line_bits) - 1));
            u32::try_from(number).expect("invariant: memory has 2^31 lines")
        })
    }

    /// The place of a page: a permutation of 2^16 numbers (an odd multiplier and an xor with the number's own upper
    /// bits can be undone).
    fn place(self, page: u64) -> u64 {
        let mask = (1u64 << PAGES_BITS) - 1;
        let mut place = page ^ (self.seed & mask);
        for multiplier in [0x9E37_79B9, 0x85EB_CA6B, 0xC2B2_AE35] {
            place = (place.wrapping_mul(multiplier) + (self.seed >> PAGES_BITS)) & mask;
            place ^= place >> 8;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pages_have_places_of_their_own() {
        let memory = PhysicalMemory::new(7);
        let places: BTreeSet<u64> = (0..1 << PAGES_BITS)
            .map(|page| memory.place(page))
            .collect();
        assert_eq!(places.len(), 1 << PAGES_BITS);
        assert_eq!(places.last(), Some(&((1 << PAGES_BITS) - 1)));
    }

    #[test]
    fn a_byte_touches_its_line_and_none_touches_none() {
        let memory = PhysicalMemory::new(1);
        let count = |offset, bytes| memory.lines(Region::Arena(0), offset, bytes).count();
        assert_eq!(
            [
                count(0, 0),
                count(63, 1),
                count(63, 2),
                count(0, 64),
                count(0, 65)
            ],
            [0, 1, 2, 1, 2]
        );
    }

    #[test]
    fn a_slot_across_pages_is_in_both() {
        let memory = PhysicalMemory::new(1);
        let page = 1 << PAGE_BITS;
        let lines: Vec<u32> = memory.lines(Region::Arena(3), page - 128, 256).collect();
        assert_eq!(lines[1], lines[0] + 1);
        assert_eq!(lines[3], lines[2] + 1);
        assert_ne!(lines[2], lines[1] + 1);
        assert_eq!(lines[2] % (1 << 15), 0);
    }

    #[test]
    fn colours_shift_odd_slots_only() {
        let layout = Layout::TWO_COLOURS;
        assert_eq!(layout.offset_bytes(0, 5), 4096 + 5);
        assert_eq!(layout.offset_bytes(1, 0), (128 << 10) + (60 << 10));
        assert_eq!(layout.offset_bytes(2, 0), (256 << 10) + (4 << 10));
    }
}
