//! Free runs of one device. Best fit, so that large runs stay for large objects.
//!
//! It refuses to free what is free: that would be two owners of a block. Bounded by the number of
//! extents.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs. No two touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Space {
    /// Blocks of each, by its first block.
    runs: BTreeMap<u64, u64>,
    /// The same, as blocks and first block.
    by_blocks: BTreeSet<(u64, u64)>,
    free_blocks: u64,
}

impl Space {
    /// One free run.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        let mut space = Self::default();
        if start < end {
            space.insert(start, end - start);
        }
        space
    }

    pub(crate) const fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// First block and blocks of each run, in ascending order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(start, blocks)| (*start, *blocks))
    }

    pub(crate) fn largest_run(&self) -> u64 {
        self.by_blocks.last().map_or(0, |(blocks, _)| *blocks)
    }

    /// Takes `blocks` from the smallest run that has them, the first of those; returns their start.
    pub(crate) fn allocate(&mut self, blocks: u64) -> Option<u64> {
        let &(run_blocks, start) = self.by_blocks.range((blocks, 0)..).next()?;
        self.remove(start, run_blocks);
        if run_blocks > blocks {
            self.insert(start + blocks, run_blocks - blocks);
        }
        Some(start)
    }

    /// Takes exactly these blocks; `false`, and nothing taken, if not all of them are free.
    pub(crate) fn take(&mut self, start: u64, blocks: u64) -> bool {
        let Some(end) = start.checked_add(blocks) else {
            return false;
        };
        let Some((&run_start, &run_blocks)) = self.runs.range(..=start).next_back() else {
            return false;
        };
        let run_end = run_start + run_blocks;
        if end > run_end {
            return false;
        }
        self.remove(run_start, run_blocks);
        if run_start < start {
            self.insert(run_start, start - run_start);
        }
        if end < run_end {
            self.insert(end, run_end - end);
        }
        true
    }

    /// Gives blocks back.
    ///
    /// # Panics
    /// If one of them is free already.
    pub(crate) fn release(&mut self, start: u64, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let (mut begin, mut end) = (start, start + blocks);
        if let Some((&before, &run_blocks)) = self.runs.range(..=start).next_back() {
            assert!(
                before + run_blocks <= start,
                "block {start} is free already"
            );
            if before + run_blocks == start {
                self.remove(before, run_blocks);
                begin = before;
            }
        }
        if let Some((&next, &run_blocks)) = self.runs.range(start..).next() {
            assert!(next >= end, "block {next} is free already");
            if next == end {
                self.remove(next, run_blocks);
                end = next + run_blocks;
            }
        }
        self.insert(begin, end - begin);
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        self.runs.insert(start, blocks);
        self.by_blocks.insert((blocks, start));
        self.free_blocks += blocks;
    }

    fn remove(&mut self, start: u64, blocks: u64) {
        self.runs.remove(&start);
        self.by_blocks.remove(&(blocks, start));
        self.free_blocks -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::Space;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_run_that_fits_is_taken() {
        let mut space = Space::new(10, 110);
        assert!(space.take(20, 10) && space.take(35, 5));
        // Free: 10 to 20, 30 to 35, 40 to 110.
        assert_eq!((space.free_blocks(), space.largest_run()), (85, 70));
        assert_eq!(space.allocate(6), Some(10));
        assert_eq!(space.allocate(5), Some(30));
        assert_eq!(space.allocate(5), Some(40));
        assert_eq!(space.allocate(66), None);
        assert_eq!(space.allocate(65), Some(45));
        assert_eq!(space.allocate(4), Some(16));
        assert_eq!(space.free_blocks(), 0);
        assert_eq!(space.allocate(1), None);
    }

    #[test]
    fn only_free_blocks_are_taken() {
        let mut space = Space::new(10, 20);
        for (start, blocks) in [(9, 1), (9, 2), (19, 2), (20, 1), (15, u64::MAX)] {
            assert!(!space.take(start, blocks), "{start} {blocks}");
        }
        assert!(space.take(10, 10));
        assert!(!space.take(10, 1));
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn blocks_are_given_back_once() {
        let mut space = Space::new(0, 10);
        assert!(space.take(2, 2));
        space.release(2, 2);
        space.release(3, 1);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list_of_blocks(choices in proptest::collection::vec(any::<(bool, u8, u8)>(), 0..200)) {
            let mut space = Space::new(0, 256);
            let mut free = [true; 256];
            let mut owned: Vec<(u64, u64)> = Vec::new();
            for (is_allocation, size, which) in choices {
                if is_allocation || owned.is_empty() {
                    let blocks = u64::from(size % 40) + 1;
                    let Some(start) = space.allocate(blocks) else {
                        let runs = free.split(|it| !it);
                        prop_assert!(runs.into_iter().all(|run| (run.len() as u64) < blocks));
                        continue;
                    };
                    for block in start..start + blocks {
                        prop_assert!(core::mem::replace(&mut free[usize::try_from(block).unwrap()], false));
                    }
                    owned.push((start, blocks));
                } else {
                    let (start, blocks) = owned.swap_remove(usize::from(which) % owned.len());
                    space.release(start, blocks);
                    free[usize::try_from(start).unwrap()..][..usize::try_from(blocks).unwrap()].fill(true);
                }
                let count = free.iter().filter(|it| **it).count() as u64;
                let largest = free.split(|it| !it).map(<[bool]>::len).max().unwrap_or(0) as u64;
                prop_assert_eq!((space.free_blocks(), space.largest_run()), (count, largest));
            }
        }
    }
}
