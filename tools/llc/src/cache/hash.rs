//! Which set of which slice a line is in: an XOR of what each bit of its address contributes.
//!
//! Plain bits and the hashes that Intel and AMD use are all of that form. So three look-ups by parts of the line's
//! number give the set, whatever the hash.

use crate::layout::LINE_BITS;
use crate::machine::{Index, Machine, PrivateCache};
use crate::rng::Rng;

/// Bits of a line's number that one look-up takes, and how many look-ups.
const PART_BITS: u32 = 11;
const PARTS: usize = 3;

/// The slices of an Intel with eight: the address bits whose parity is bit 0, 1 and 2 of the slice (Maurice et al.,
/// "Reverse Engineering Intel Last-Level Cache Complex Addressing Using Performance Counters", RAID 2015).
pub const EIGHT_SLICES: [&[u32]; 3] = [
    &[
        6, 10, 12, 14, 16, 17, 18, 20, 22, 24, 25, 26, 27, 28, 30, 32, 33, 35, 36,
    ],
    &[
        7, 11, 13, 15, 17, 19, 20, 21, 22, 23, 24, 26, 28, 29, 31, 33, 34, 35, 37,
    ],
    &[8, 12, 13, 16, 19, 22, 23, 26, 27, 30, 31, 34, 35, 36, 37],
];

/// A line's number to the number of its set.
#[derive(Debug)]
pub(super) struct SetHash {
    parts: [Vec<u32>; PARTS],
}

impl SetHash {
    /// The sets of a LLC: set 0 of all slices, then set 1, so that neighbours in memory are neighbours here.
    pub(super) fn of_llc(machine: &Machine) -> Self {
        let slice_bits = machine.slices.ilog2();
        // Hashes that nobody has published: any bit above the set's may count for any bit of it.
        let mut any = Rng::new(1);
        Self::new(|bit| {
            let random = any.bits();
            let slice = if machine.slices == 8 {
                let has = |bits: &[u32]| u32::from(bits.contains(&(bit + LINE_BITS)));
                (0..3).fold(0, |slice, it| slice | has(EIGHT_SLICES[it]) << it)
            } else {
                (random >> 32) as u32 & (machine.slices - 1)
            };
            let set = set_of_bit(bit, machine.sets, machine.index, random);
            debug_assert!(slice >> slice_bits == 0, "a slice that the LLC lacks");
            set << slice_bits | slice
        })
    }

    /// The sets of a private cache.
    pub(super) fn of_private(shape: PrivateCache, index: Index) -> Self {
        let mut any = Rng::new(2);
        Self::new(|bit| set_of_bit(bit, shape.sets, index, any.bits()))
    }

    /// From what each bit of a line's number contributes.
    fn new(mut contribution: impl FnMut(u32) -> u32) -> Self {
        let mut part = |part: u32| {
            let bits: Vec<u32> = (0..PART_BITS)
                .map(|bit| contribution(part * PART_BITS + bit))
                .collect();
            let of = |number: u32| {
                let set = bits.iter().enumerate();
                set.filter(|(bit, _)| number >> bit & 1 == 1)
                    .fold(0, |sum, (_, it)| sum ^ it)
            };
            (0..1 << PART_BITS).map(of).collect()
        };
        Self {
            parts: [part(0), part(1), part(2)],
        }
    }

    /// The set of a line.
    #[inline]
    pub(super) fn set(&self, line: u32) -> usize {
        let part = |index: usize| {
            let number = line >> (index as u32 * PART_BITS) & ((1 << PART_BITS) - 1);
            self.parts[index][number as usize]
        };
        (part(0) ^ part(1) ^ part(2)) as usize
    }
}

/// What a bit of a line's number contributes to the set inside of a slice.
fn set_of_bit(bit: u32, sets: u32, index: Index, random: u64) -> u32 {
    match index {
        _ if bit < sets.ilog2() => 1 << bit,
        Index::PlainBits => 0,
        Index::Hash => random as u32 & (sets - 1),
    }
}
