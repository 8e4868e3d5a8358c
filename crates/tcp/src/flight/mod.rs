//! The log of transmissions that are not yet acknowledged, with their SACK state.
//!
//! The log covers SND.UNA..SND.NXT without a gap or an overlap, in stream order. One entry is one
//! large segment handed to the link at one moment; SACK blocks split entries at their edges. It is
//! the scoreboard of RFC 6675 and the per-segment state of RFC 8985 in one place.
//!
//! Bound: [`ENTRIES_MAX`]. A full log admits no new transmission, and a SACK edge that would need
//! another entry is ignored: SACK is advice (RFC 2018 s8), forgetting it only costs a resend.

use std::collections::VecDeque;

use clock::Instant;

use crate::stream::{StreamOffset, StreamRange};

/// Most entries of one connection's log: a window of 16 MiB in segments of 60 KB takes 280; the
/// rest is room for the edges of SACK blocks.
pub const ENTRIES_MAX: usize = 512;
/// No new transmission is admitted beyond this, so that SACK blocks can still split entries.
const ENTRIES_FOR_NEW_MAX: usize = ENTRIES_MAX - 64;

/// Packets sent at one moment share an entry up to this size, that of one large segment.
const MERGED_BYTES_MAX: u64 = 1 << 16;

/// What the sender knows of a transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// In the network.
    InFlight,
    /// Received above a hole (RFC 2018).
    Sacked,
    /// Considered lost; no fetch for it is under way.
    Lost,
    /// Considered lost; its bytes are being read from the disk again.
    Claimed,
}

/// One entry: a run of the stream that was sent at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Transmission {
    /// First byte.
    pub start: StreamOffset,
    /// One past the last byte.
    pub end: StreamOffset,
    /// When it was last sent.
    pub sent_at: Instant,
    /// What the sender knows of it.
    pub state: SegmentState,
    /// Whether it was sent more than once, or was SACKed and then reneged on: its ACK gives no RTT
    /// sample.
    pub retransmitted: bool,
}

impl Transmission {
    const fn bytes(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether `next`, which starts where this ends, can be merged into this entry because it has the
    /// same state. Packets of one large segment are sent at one moment and stay one entry.
    fn is_continued_by(&self, next: &Self) -> bool {
        match (self.state, next.state) {
            (SegmentState::Sacked, SegmentState::Sacked) => true,
            (SegmentState::InFlight, SegmentState::InFlight) => {
                self.sent_at == next.sent_at
                    && self.retransmitted == next.retransmitted
                    && next.end.since(self.start) <= MERGED_BYTES_MAX
            }
            _ => false,
        }
    }

    /// The entry's range of the stream.
    #[must_use]
    pub const fn range(&self) -> StreamRange {
        StreamRange {
            start: self.start,
            end: self.end,
        }
    }
}

/// The log, and sums over it.
#[derive(Clone, Debug, Default)]
pub struct Flight {
    entries: VecDeque<Transmission>,
    sacked_bytes: u64,
    lost_bytes: u64,
    claimed_bytes: u64,
    total_bytes: u64,
}

impl Flight {
    /// Whether everything sent was acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the log has room for another new transmission.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.entries.len() < ENTRIES_FOR_NEW_MAX
    }

    /// Bytes believed to be in the network ("pipe" of RFC 6675 s4).
    #[must_use]
    pub const fn in_flight_bytes(&self) -> u64 {
        self.total_bytes - self.sacked_bytes - self.lost_bytes - self.claimed_bytes
    }

    /// Bytes received above a hole.
    #[must_use]
    pub const fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Bytes considered lost that are not being fetched.
    #[must_use]
    pub const fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Bytes considered lost that are being fetched.
    #[must_use]
    pub const fn claimed_bytes(&self) -> u64 {
        self.claimed_bytes
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// All entries in stream order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Transmission> {
        self.entries.iter()
    }

    /// The oldest entry.
    #[must_use]
    pub fn first(&self) -> Option<&Transmission> {
        self.entries.front()
    }

    /// The newest entry.
    #[must_use]
    pub fn last(&self) -> Option<&Transmission> {
        self.entries.back()
    }

    /// New data was sent. `range` starts where the log ends.
    pub fn push(&mut self, now: Instant, range: StreamRange) {
        debug_assert!(
            self.entries
                .back()
                .is_none_or(|last| last.end == range.start),
            "the log has no gap"
        );
        self.total_bytes += range.bytes();
        let entry = Transmission {
            start: range.start,
            end: range.end,
            sent_at: now,
            state: SegmentState::InFlight,
            retransmitted: false,
        };
        match self.entries.back_mut() {
            Some(last) if last.is_continued_by(&entry) => last.end = entry.end,
            _ => self.entries.push_back(entry),
        }
    }

    /// Everything before `up_to` arrived. Calls `delivered` for each entry that was not known to
    /// have arrived before, cut to what was acknowledged.
    pub fn acknowledge(&mut self, up_to: StreamOffset, mut delivered: impl FnMut(&Transmission)) {
        while let Some(first) = self.entries.front().copied() {
            if first.start >= up_to {
                break;
            }
            let part = Transmission {
                end: first.end.min(up_to),
                ..first
            };
            self.subtract(part.state, part.bytes());
            self.total_bytes -= part.bytes();
            if part.state != SegmentState::Sacked {
                delivered(&part);
            }
            if first.end > up_to {
                self.entries[0].start = up_to;
                break;
            }
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            // The next entry begins the queue's memory again, and not a line that is in no cache.
            self.entries.clear();
        }
    }

    /// A SACK block arrived. Calls `delivered` for each entry newly known to have arrived.
    pub fn sack(&mut self, block: StreamRange, mut delivered: impl FnMut(&Transmission)) {
        let Ok(mut index) = self.split_at(block.start) else {
            return;
        };
        if self.split_at(block.end).is_err() {
            return;
        }
        while let Some(entry) = self.entries.get(index).copied() {
            if entry.start >= block.end {
                break;
            }
            if entry.state != SegmentState::Sacked {
                self.set_state(index, SegmentState::Sacked);
                delivered(&entry);
            }
            index += 1;
        }
        self.merge();
    }

    /// Marks as lost each entry in flight for which `is_lost` is true. Returns the bytes newly lost.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&Transmission) -> bool) -> u64 {
        let mut bytes = 0;
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            if entry.state == SegmentState::InFlight && is_lost(&entry) {
                self.set_state(index, SegmentState::Lost);
                bytes += entry.bytes();
            }
        }
        bytes
    }

    /// Marks the first `bytes` of the log as lost, for peers without SACK (RFC 6582 s3.2). Returns
    /// what is newly lost.
    pub fn mark_head_lost(&mut self, bytes: u64) -> Option<Transmission> {
        let first = self.entries.front().copied()?;
        if first.state != SegmentState::InFlight {
            return None;
        }
        if first.bytes() > bytes && self.split_at(first.start + bytes).is_err() {
            return None;
        }
        self.set_state(0, SegmentState::Lost);
        self.entries.front().copied()
    }

    /// Marks the last `bytes` of the log as lost, so that they are retransmitted (RFC 8985 s7.3).
    pub fn mark_tail_lost(&mut self, bytes: u64) {
        let Some(last) = self.entries.back().copied() else {
            return;
        };
        if last.state != SegmentState::InFlight {
            return;
        }
        if last.bytes() > bytes && self.split_at(last.end - bytes).is_err() {
            return;
        }
        self.set_state(self.entries.len() - 1, SegmentState::Lost);
    }

    /// The retransmission timer fired: everything that is not SACKed is lost, and claims are void.
    /// If the oldest byte itself was SACKed, the peer dropped data it had SACKed (RFC 2018 s8,
    /// "reneging"), and SACKed entries are lost, too. Returns whether the peer reneged.
    pub fn expire(&mut self) -> bool {
        let reneged = self
            .entries
            .front()
            .is_some_and(|first| first.state == SegmentState::Sacked);
        for index in 0..self.entries.len() {
            let state = self.entries[index].state;
            if state != SegmentState::Lost && (state != SegmentState::Sacked || reneged) {
                self.entries[index].retransmitted |= state == SegmentState::Sacked;
                self.set_state(index, SegmentState::Lost);
            }
        }
        reneged
    }

    /// The timeout was spurious: what [`Flight::expire`] marked as lost is in flight again. Bytes
    /// that are being fetched for retransmission need not be sent.
    pub fn undo_expiry(&mut self) {
        for index in 0..self.entries.len() {
            if matches!(
                self.entries[index].state,
                SegmentState::Lost | SegmentState::Claimed
            ) {
                self.set_state(index, SegmentState::InFlight);
            }
        }
        self.merge();
    }

    /// The first run of lost bytes that are not being fetched, at most `bytes_max` of it.
    #[must_use]
    pub fn first_lost(&self, bytes_max: u64) -> Option<StreamRange> {
        if self.lost_bytes == 0 {
            return None;
        }
        let mut lost = self
            .entries
            .iter()
            .skip_while(|entry| entry.state != SegmentState::Lost);
        let first = lost.next()?;
        let mut end = first.end;
        for entry in lost.take_while(|entry| entry.state == SegmentState::Lost) {
            end = entry.end;
        }
        let bytes = end.since(first.start).min(bytes_max);
        Some(StreamRange::new(first.start, first.start + bytes))
    }

    /// Of the runs of lost bytes that are not being fetched, those in `range`: how many, and where the last one ends.
    #[must_use]
    pub fn lost_within(&self, range: StreamRange) -> (u64, StreamOffset) {
        let (mut runs, mut end) = (0, range.start);
        if self.lost_bytes == 0 {
            return (runs, end);
        }
        let first = self
            .entries
            .partition_point(|entry| entry.end <= range.start);
        let lost = (self.entries.range(first..))
            .take_while(|entry| entry.start < range.end)
            .filter(|entry| entry.state == SegmentState::Lost);
        for entry in lost {
            runs += u64::from(runs == 0 || entry.start > end);
            end = entry.end.min(range.end);
        }
        (runs, end)
    }

    /// Lost bytes of `range` are being fetched from now on.
    pub fn claim(&mut self, range: StreamRange) {
        self.change_state(range, SegmentState::Lost, SegmentState::Claimed);
    }

    /// Claimed bytes of `range` are not being fetched after all.
    pub fn return_claim(&mut self, range: StreamRange) {
        self.change_state(range, SegmentState::Claimed, SegmentState::Lost);
    }

    /// Nothing is being fetched any more: claimed entries are lost again. A claim that was made while
    /// the log was full may cover more than its fetch did, and the rest would never be demanded.
    pub fn void_claims(&mut self) {
        if self.claimed_bytes == 0 {
            return;
        }
        for index in 0..self.entries.len() {
            if self.entries[index].state == SegmentState::Claimed {
                self.set_state(index, SegmentState::Lost);
            }
        }
    }

    /// The smallest run that covers all claimed bytes of `range`; `None` if there are none.
    #[must_use]
    pub fn claimed_within(&self, range: StreamRange) -> Option<StreamRange> {
        if self.claimed_bytes == 0 {
            return None;
        }
        let mut covered: Option<StreamRange> = None;
        for entry in self
            .entries
            .iter()
            .filter(|entry| entry.state == SegmentState::Claimed)
        {
            if let Some(part) = entry.range().intersection(range) {
                let start = covered.map_or(part.start, |covered| covered.start);
                covered = Some(StreamRange::new(start, part.end));
            }
        }
        covered
    }

    /// `range` was retransmitted.
    pub fn on_retransmitted(&mut self, now: Instant, range: StreamRange) {
        // Without room for an edge, the whole entry counts as sent; the timer repairs that.
        let (Ok(mut index) | Err(mut index)) = self.split_at(range.start);
        let _ = self.split_at(range.end);
        while let Some(entry) = self.entries.get(index).copied() {
            if entry.start >= range.end {
                break;
            }
            if entry.state != SegmentState::Sacked {
                self.set_state(index, SegmentState::InFlight);
                let entry = &mut self.entries[index];
                entry.sent_at = now;
                entry.retransmitted = true;
            }
            index += 1;
        }
        self.merge();
    }

    fn change_state(&mut self, range: StreamRange, from: SegmentState, to: SegmentState) {
        // Without room for an edge, the whole entry changes its state.
        let (Ok(mut index) | Err(mut index)) = self.split_at(range.start);
        let _ = self.split_at(range.end);
        while let Some(entry) = self.entries.get(index).copied() {
            if entry.start >= range.end {
                break;
            }
            if entry.state == from {
                self.set_state(index, to);
            }
            index += 1;
        }
    }

    /// Makes `offset` an edge between entries; returns the index of the entry that starts there
    /// (or the first one, for an offset before the log). If the log has no room, the error is the
    /// index of the entry that holds it.
    fn split_at(&mut self, offset: StreamOffset) -> Result<usize, usize> {
        let index = self.entries.partition_point(|entry| entry.end <= offset);
        let Some(entry) = self.entries.get(index).copied() else {
            return Ok(index);
        };
        if entry.start >= offset {
            return Ok(index);
        }
        if self.entries.len() >= ENTRIES_MAX {
            return Err(index);
        }
        self.entries[index].end = offset;
        self.entries.insert(
            index + 1,
            Transmission {
                start: offset,
                ..entry
            },
        );
        Ok(index + 1)
    }

    fn set_state(&mut self, index: usize, state: SegmentState) {
        let entry = &mut self.entries[index];
        let (old, bytes) = (entry.state, entry.bytes());
        entry.state = state;
        self.subtract(old, bytes);
        match state {
            SegmentState::InFlight => {}
            SegmentState::Sacked => self.sacked_bytes += bytes,
            SegmentState::Lost => self.lost_bytes += bytes,
            SegmentState::Claimed => self.claimed_bytes += bytes,
        }
    }

    fn subtract(&mut self, state: SegmentState, bytes: u64) {
        match state {
            SegmentState::InFlight => {}
            SegmentState::Sacked => self.sacked_bytes -= bytes,
            SegmentState::Lost => self.lost_bytes -= bytes,
            SegmentState::Claimed => self.claimed_bytes -= bytes,
        }
    }

    /// Merges adjacent entries of the same state.
    fn merge(&mut self) {
        let mut kept = 0;
        for index in 1..self.entries.len() {
            let entry = self.entries[index];
            if self.entries[kept].is_continued_by(&entry) {
                self.entries[kept].end = entry.end;
            } else {
                kept += 1;
                self.entries[kept] = entry;
            }
        }
        self.entries.truncate((kept + 1).min(self.entries.len()));
    }
}

#[cfg(test)]
mod tests;
