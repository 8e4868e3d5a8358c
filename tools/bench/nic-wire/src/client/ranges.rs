//! What a connection has received beyond a gap: ranges of sequence numbers, no bytes.
//!
//! It refuses to merge across a gap and to hold more than [`RANGES_MAX`] ranges: what finds no place
//! counts as lost, and the server sends it again. Nothing is allocated before the first gap.

use wire::{SackBlocks, SeqNumber};

/// Ranges a connection may hold: at one lost packet in a hundred, a window of 6,400 packets.
pub const RANGES_MAX: usize = 64;

/// Disjoint ranges beyond RCV.NXT, ascending.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// First and one past the last sequence number of each.
    ranges: Vec<(SeqNumber, SeqNumber)>,
    /// The range that grew last: it is reported first (RFC 2018 s4).
    latest: usize,
}

impl Ranges {
    /// Adds `start..end`, which may touch or overlap others; `false` if there is no place.
    pub(crate) fn insert(&mut self, start: SeqNumber, end: SeqNumber) -> bool {
        let is_before = |it: &(SeqNumber, SeqNumber)| it.1.distance(start) < 0;
        let first = self.ranges.partition_point(is_before);
        let touched = self.ranges.get(first..).unwrap_or_default();
        let count = touched.iter().take_while(|it| it.0.distance(end) <= 0);
        let count = count.count();
        if count == 0 {
            if self.ranges.len() == RANGES_MAX {
                return false;
            }
            self.ranges.insert(first, (start, end));
        } else {
            let last = touched.get(count - 1).map_or(end, |it| it.1);
            let merged = touched.first().map_or(start, |it| earlier(it.0, start));
            let merged = (merged, if last.distance(end) > 0 { last } else { end });
            self.ranges.drain(first + 1..first + count);
            if let Some(range) = self.ranges.get_mut(first) {
                *range = merged;
            }
        }
        self.latest = first;
        true
    }

    /// Takes the first range out if it begins at or before `next`: its end.
    pub(crate) fn take_reached(&mut self, next: SeqNumber) -> Option<SeqNumber> {
        let (start, end) = *self.ranges.first()?;
        if start.distance(next) > 0 {
            return None;
        }
        self.ranges.remove(0);
        self.latest = self.latest.saturating_sub(1);
        Some(end)
    }

    /// As selective acknowledgments, the latest first; `duplicate` before all others (RFC 2883 s4).
    pub(crate) fn blocks(&self, duplicate: Option<(SeqNumber, SeqNumber)>) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let latest = self.ranges.get(self.latest).copied();
        let others = self.ranges.iter().enumerate();
        let others = others.filter(|(index, _)| *index != self.latest);
        let all = duplicate.into_iter().chain(latest);
        for (left, right) in all.chain(others.map(|(_, it)| *it)).take(4) {
            blocks.push(left, right);
        }
        blocks
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.latest = 0;
    }
}

fn earlier(a: SeqNumber, b: SeqNumber) -> SeqNumber {
    if a.distance(b) < 0 { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u32 = u32::MAX - 99;

    fn at(offset: u32) -> SeqNumber {
        SeqNumber(BASE.wrapping_add(offset))
    }

    fn ranges(of: &[(u32, u32)]) -> Ranges {
        let mut ranges = Ranges::default();
        for (start, end) in of {
            assert!(ranges.insert(at(*start), at(*end)));
        }
        ranges
    }

    fn offsets(blocks: SackBlocks) -> Vec<(u32, u32)> {
        let offset = |number: SeqNumber| number.0.wrapping_sub(BASE);
        let blocks = blocks.as_slice().iter();
        blocks.map(|it| (offset(it.0), offset(it.1))).collect()
    }

    #[test]
    fn ranges_merge_where_they_touch_across_the_wrap() {
        let all = ranges(&[(50, 60), (200, 210), (120, 130)]);
        assert_eq!(
            offsets(all.blocks(None)),
            [(120, 130), (50, 60), (200, 210)]
        );
        let touched = ranges(&[(50, 60), (200, 210), (60, 200)]);
        assert_eq!(offsets(touched.blocks(None)), [(50, 210)]);
        let inside = ranges(&[(50, 90), (60, 70)]);
        assert_eq!(offsets(inside.blocks(None)), [(50, 90)]);
        let wider = ranges(&[(50, 90), (95, 99), (40, 120)]);
        assert_eq!(offsets(wider.blocks(None)), [(40, 120)]);
        let apart = ranges(&[(50, 60), (61, 62)]);
        assert_eq!(offsets(apart.blocks(None)), [(61, 62), (50, 60)]);
    }

    #[test]
    fn what_is_reached_is_taken_in_order() {
        let mut all = ranges(&[(50, 60), (70, 80)]);
        assert_eq!(all.take_reached(at(49)), None);
        assert_eq!(all.take_reached(at(50)), Some(at(60)));
        assert_eq!(all.take_reached(at(60)), None);
        assert_eq!(all.take_reached(at(75)), Some(at(80)));
        assert_eq!(all.take_reached(at(100)), None);
    }

    #[test]
    fn one_more_than_there_is_room_for_has_no_place() {
        let mut all = Ranges::default();
        for index in 0..u32::try_from(RANGES_MAX).expect("small") {
            assert!(all.insert(at(index * 10 + 5), at(index * 10 + 8)));
        }
        assert!(!all.insert(at(5000), at(5001)));
        assert!(all.insert(at(8), at(9)), "what touches another needs none");
        assert_eq!(all.blocks(None).as_slice().len(), 4);
    }

    #[test]
    fn a_duplicate_is_reported_first() {
        let all = ranges(&[(50, 60)]);
        let blocks = all.blocks(Some((at(1), at(2))));
        assert_eq!(offsets(blocks), [(1, 2), (50, 60)]);
    }
}
