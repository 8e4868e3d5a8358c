//! What a receiver has: the stream up to RCV.NXT and the ranges beyond it, with the blocks that it
//! reports (RFC 2018 s4, RFC 2883 s4).
//!
//! Positions are bytes of the stream. Bounded by the receive window.

use std::collections::BTreeMap;

/// A range of the stream, its end excluded.
pub(crate) type Span = (u64, u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    next: u64,
    /// Beyond `next`: start and payload, without overlap.
    beyond: BTreeMap<u64, Vec<u8>>,
    /// Blocks that contain what arrived last, the newest first (RFC 2018 s4).
    newest: Vec<u64>,
    /// What the last segment repeated: its DSACK.
    duplicate: Option<Span>,
    duplicate_bytes: u64,
}

impl Ranges {
    /// RCV.NXT.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Whether something is missing before what has arrived.
    pub(crate) fn has_hole(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Bytes that arrived more than once.
    pub(crate) const fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// A segment arrived; appends what is in order now to `text`. Returns whether all of it was new
    /// and in order, and nothing is missing.
    pub(crate) fn insert(&mut self, start: u64, payload: &[u8], text: &mut Vec<u8>) -> bool {
        let end = start + payload.len() as u64;
        let had_hole = self.has_hole();
        let fresh = self.fresh_parts(start, end);
        let fresh_bytes: u64 = fresh.iter().map(|(from, to)| to - from).sum();
        self.duplicate = None;
        if fresh_bytes < end - start {
            self.duplicate_bytes += end - start - fresh_bytes;
            self.duplicate = Some(self.first_known(start, end));
        }
        for (from, to) in fresh {
            let part = &payload[index(from - start)..index(to - start)];
            self.beyond.insert(from, part.to_vec());
        }
        while let Some(part) = self.beyond.remove(&self.next) {
            self.next += part.len() as u64;
            text.extend_from_slice(&part);
        }
        if start >= self.next {
            self.newest.insert(0, start);
        }
        self.duplicate.is_none() && !had_hole && !self.has_hole()
    }

    /// The blocks to report, `most` at most, and forgets the DSACK.
    pub(crate) fn take_blocks(&mut self, most: usize, reports_duplicates: bool) -> Vec<Span> {
        let mut blocks: Vec<Span> = Vec::new();
        blocks.extend(self.duplicate.take().filter(|_| reports_duplicates));
        let islands = self.islands();
        let is_dsack = !blocks.is_empty();
        let mut known = Vec::new();
        for start in core::mem::take(&mut self.newest) {
            let island = islands
                .iter()
                .find(|(from, to)| *from <= start && start < *to);
            if let Some(island) = island
                && !known.contains(island)
            {
                known.push(*island);
            }
        }
        self.newest = known.iter().map(|(from, _)| *from).collect();
        blocks.extend(known);
        blocks.truncate(most.max(usize::from(is_dsack)));
        blocks
    }

    /// Contiguous ranges beyond `next`.
    fn islands(&self) -> Vec<Span> {
        let mut islands: Vec<Span> = Vec::new();
        for (start, part) in &self.beyond {
            let end = start + part.len() as u64;
            match islands.last_mut() {
                Some(last) if last.1 == *start => last.1 = end,
                _ => islands.push((*start, end)),
            }
        }
        islands
    }

    /// The parts of a range that have not arrived.
    fn fresh_parts(&self, start: u64, end: u64) -> Vec<Span> {
        let mut parts = Vec::new();
        let mut from = start.max(self.next);
        for (known, part) in &self.beyond {
            let known_end = known + part.len() as u64;
            if known_end <= from {
                continue;
            }
            if *known >= end {
                break;
            }
            if *known > from {
                parts.push((from, *known));
            }
            from = known_end;
        }
        if from < end {
            parts.push((from, end));
        }
        parts
    }

    /// The first known part of a range, before it is inserted.
    fn first_known(&self, start: u64, end: u64) -> Span {
        if start < self.next {
            return (start, end.min(self.next));
        }
        let islands = self.islands();
        let first = islands.iter().find(|(from, to)| *from < end && start < *to);
        first.map_or((start, end), |(from, to)| (start.max(*from), end.min(*to)))
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("invariant: within a segment")
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    fn insert(ranges: &mut Ranges, start: u64, end: u64) -> (bool, usize) {
        let mut text = Vec::new();
        let payload = vec![7; usize::try_from(end - start).expect("small")];
        let is_next = ranges.insert(start, &payload, &mut text);
        (is_next, text.len())
    }

    #[test]
    fn text_is_in_order_and_each_byte_comes_once() {
        let mut ranges = Ranges::default();
        assert_eq!(insert(&mut ranges, 0, 10), (true, 10));
        assert_eq!(insert(&mut ranges, 20, 30), (false, 0));
        assert_eq!(insert(&mut ranges, 5, 25), (false, 20));
        assert_eq!((ranges.next(), ranges.has_hole()), (30, false));
        assert_eq!(ranges.duplicate_bytes(), 10);
        assert_eq!(insert(&mut ranges, 30, 31), (true, 1));
    }

    /// RFC 2018 s4: the block of the newest segment comes first, then those reported before.
    #[test]
    fn blocks_are_reported_newest_first() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (70, 80)] {
            insert(&mut ranges, start, end);
        }
        let newest = [(70, 80), (50, 60), (30, 40)];
        assert_eq!(ranges.take_blocks(3, true), newest);
        insert(&mut ranges, 20, 25);
        assert_eq!(ranges.take_blocks(1, true), [(10, 25)]);
        assert_eq!(ranges.take_blocks(4, true)[..2], [(10, 25), (70, 80)]);
    }

    /// RFC 2883 s4: the first block is the duplicate, and only in the next ACK.
    #[test]
    fn a_duplicate_is_the_first_block_once() {
        let mut ranges = Ranges::default();
        insert(&mut ranges, 0, 10);
        insert(&mut ranges, 20, 30);
        insert(&mut ranges, 5, 10);
        assert_eq!(ranges.take_blocks(3, true), [(5, 10), (20, 30)]);
        assert_eq!(ranges.take_blocks(3, true), [(20, 30)]);
        insert(&mut ranges, 22, 35);
        assert_eq!(ranges.take_blocks(3, true), [(22, 30), (20, 35)]);
        insert(&mut ranges, 0, 1);
        assert_eq!(ranges.take_blocks(3, false), [(20, 35)]);
    }
}
