//! Whether lines 128 KiB apart share sets of a cache, which decides whether lent slots need two colours
//! ([`memory::ArenaConfig::odd_shift_bytes`]): a chain of loads through one line of each of so many blocks of 128 KiB.
//!
//! ```text
//! one     each line at its block's beginning, as payloads that all begin at the same place
//! two     lines of odd blocks 56 KiB behind it, as with two colours
//! spread  each line 4,160 bytes behind that of the block before, as in slots 72 KiB apart
//! ```
//!
//! A load that finds its line in a cache takes as long in each column. Where `one` becomes slower with fewer lines
//! than `spread` does, that cache takes the set from bits of the address. It says nothing of physical addresses above
//! 2 MiB, and needs huge pages to say anything. Bounded by `LINES_MAX`.

use std::hint::black_box;
use std::io::{Write as _, stdout};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use memory::{Arena, ArenaConfig, FilledSlot, PageKind};

/// Distance of the blocks: what a packet socket's ring of a slot takes.
const BLOCK_BYTES: u32 = 128 << 10;
/// Most lines: 1 GiB of blocks.
const LINES_MAX: i64 = 8_192;
/// Loads of a measurement, and measurements, of which the shortest counts.
const LOADS: u32 = 20_000;
const TURNS: u32 = 40;

/// `atlas-bench sets`.
#[derive(Args, Clone, Debug)]
pub struct SetsArgs {
    /// Most lines, 128 KiB of memory each
    #[arg(long, value_name = "N", default_value_t = 2_048,
        value_parser = clap::value_parser!(u32).range(8..=LINES_MAX))]
    pub lines: u32,
}

/// Where in its block a line is, bytes.
type Layout = fn(usize) -> usize;

const LAYOUTS: [(&str, Layout); 3] = [
    ("one", |_| 0),
    ("two", |block| block % 2 * (56 << 10)),
    ("spread", |block| block * 4_160 % BLOCK_BYTES as usize),
];

/// Prints nanoseconds a load, by lines and layout.
///
/// # Errors
/// No memory, or no huge pages.
pub fn run(args: &SetsArgs) -> Result<()> {
    let mut arena = Arena::new(ArenaConfig {
        slot_bytes: BLOCK_BYTES,
        headroom_bytes: 0,
        tailroom_bytes: 0,
        ..ArenaConfig::new(args.lines)
    })?;
    ensure!(
        arena.pages() != PageKind::Ordinary,
        "physical addresses are not known without huge pages: sysctl vm.nr_hugepages={}",
        arena.bytes() >> 21
    );
    let mut slots: Vec<FilledSlot> = std::iter::from_fn(|| arena.reserve())
        .map(|slot| slot.into_reading().into_filled(BLOCK_BYTES))
        .collect();
    let mut out = stdout();
    writeln!(
        out,
        "{:>6} {:>7} {:>7} {:>7}  ns a load",
        "lines", "one", "two", "spread"
    )?;
    for count in counts(slots.len()) {
        write!(out, "{count:6}")?;
        for (_, layout) in LAYOUTS {
            let nanos = nanos_of(&mut arena, &mut slots[..count], layout);
            write!(out, " {nanos:7.1}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Powers of two and the numbers half-way, from 8 to `most`.
fn counts(most: usize) -> impl Iterator<Item = usize> {
    let powers = (3..usize::BITS).map(|bits| 1_usize << bits);
    powers
        .flat_map(|count| [count, count + count / 2])
        .take_while(move |count| *count <= most)
}

/// Least time of a load in a chain through a line of each slot.
fn nanos_of(arena: &mut Arena, slots: &mut [FilledSlot], layout: Layout) -> f64 {
    let order = shuffled(slots.len());
    for (place, &slot) in order.iter().enumerate() {
        let next = u32::try_from(order[(place + 1) % order.len()]).unwrap_or(0);
        let index = slots[slot].index() as usize;
        let line = &mut arena.payload_mut(&mut slots[slot])[layout(index)..];
        line[..4].copy_from_slice(&next.to_le_bytes());
    }
    let lines: Vec<&[u8; 4]> = slots
        .iter()
        .filter_map(|slot| arena.payload(slot)[layout(slot.index() as usize)..].first_chunk())
        .collect();
    let turn = |_| {
        let (begin, mut at) = (Instant::now(), 0);
        for _ in 0..LOADS {
            at = u32::from_le_bytes(*lines[at]) as usize;
        }
        black_box(at);
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(LOADS)
    };
    (0..TURNS).map(turn).fold(f64::INFINITY, f64::min)
}

/// The numbers below `count` in an order that no processor foresees, the same each time.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for place in (1..count).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let other = usize::try_from(random >> 33).unwrap_or(0) % (place + 1);
        order.swap(place, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_goes_through_all_lines_and_layouts_differ() {
        let mut order = shuffled(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        let places = LAYOUTS.map(|(_, layout)| [0, 1, 2, 32].map(layout));
        assert_eq!(places[0], [0; 4]);
        assert_eq!(places[1], [0, 57_344, 0, 0]);
        assert_eq!(places[2], [0, 4_160, 8_320, 2_048]);
        assert_eq!(counts(32).collect::<Vec<_>>(), [8, 12, 16, 24, 32]);
        let config = ArenaConfig {
            slot_bytes: BLOCK_BYTES,
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(8)
        };
        let mut arena = Arena::new(config).unwrap();
        let mut slots: Vec<_> = std::iter::from_fn(|| arena.reserve())
            .map(|slot| slot.into_reading().into_filled(BLOCK_BYTES))
            .collect();
        assert!(nanos_of(&mut arena, &mut slots, |_| 0) > 0.0);
    }
}
