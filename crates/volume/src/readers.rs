//! What others read of a store that is being changed: whole catalogues, and single extents.
//!
//! It refuses nothing: what is read is left alone. Bounded by the extents it is given.

use crate::{Extent, Retired};

/// What others may be reading, as their locks say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Readers {
    /// The lowest sequence number of a catalogue that somebody reads.
    oldest: Option<u64>,
    /// Extents that somebody reads, of whatever catalogue; sorted, and no two have a block in common.
    extents: Vec<Extent>,
}

impl Readers {
    /// From the lowest sequence number of a catalogue that somebody reads, and the extents that are read
    /// beside it. The extents may overlap.
    #[must_use]
    pub fn new(oldest: Option<u64>, mut extents: Vec<Extent>) -> Self {
        extents.retain(|it| it.blocks > 0);
        extents.sort_unstable();
        extents.dedup_by(|next, before| {
            let overlap = next.device == before.device && next.start <= before.end();
            if overlap {
                before.blocks = before.end().max(next.end()) - before.start;
            }
            overlap
        });
        Self { oldest, extents }
    }

    /// The lowest sequence number of a catalogue that somebody reads.
    #[must_use]
    pub const fn oldest(&self) -> Option<u64> {
        self.oldest
    }

    /// Whether nobody reads anything.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.oldest.is_none() && self.extents.is_empty()
    }

    /// Whether somebody may be reading what was removed.
    #[must_use]
    pub(crate) fn reads(&self, retired: &Retired) -> bool {
        self.oldest.is_some_and(|oldest| oldest < retired.since) || self.overlaps(&retired.extent)
    }

    fn overlaps(&self, extent: &Extent) -> bool {
        let begins_before = |it: &Extent| (it.device, it.start) < (extent.device, extent.end());
        let count = self.extents.partition_point(begins_before);
        let last = count.checked_sub(1).map(|index| &self.extents[index]);
        last.is_some_and(|it| it.device == extent.device && it.end() > extent.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(device: u16, start: u64, blocks: u64) -> Extent {
        Extent {
            device,
            start,
            blocks,
        }
    }

    #[test]
    fn what_has_a_block_that_is_read_is_read() {
        let extents = vec![
            extent(1, 20, 5),
            extent(0, 100, 10),
            extent(0, 105, 2),
            extent(0, 110, 1),
            extent(0, 7, 0),
        ];
        let readers = Readers::new(None, extents);
        for (device, start, blocks, expected) in [
            (0, 99, 1, false),
            (0, 99, 2, true),
            (0, 90, 100, true),
            (0, 104, 1, true),
            (0, 110, 1, true),
            (0, 111, 1, false),
            (0, 7, 1, false),
            (1, 24, 9, true),
            (1, 25, 9, false),
            (1, 10, 10, false),
            (2, 20, 5, false),
        ] {
            let retired = Retired {
                extent: extent(device, start, blocks),
                since: 3,
            };
            assert_eq!(readers.reads(&retired), expected, "{retired:?}");
        }
    }

    #[test]
    fn a_catalogue_that_is_read_has_what_later_ones_are_without() {
        let readers = Readers::new(Some(4), Vec::new());
        let retired = |since| Retired {
            extent: extent(0, 100, 1),
            since,
        };
        assert!(!readers.reads(&retired(4)) && readers.reads(&retired(5)));
        assert!(!readers.is_empty() && Readers::default().is_empty());
    }
}
