//! From credit to a disk read: how many bytes to read, from where, and when to wait for more credit.
//!
//! A fetch covers one frame's worth of the stream: some text, then at most one read of an object.
//! The rules for its size (docs/develop/decisions/0003-read-size.md):
//!
//! * It is as large as credit, one slot, one read and one frame allow.
//! * It ends on a block boundary if that shortens it by an eighth at most. The next read then
//!   starts aligned and no block is read twice: 15 blocks of 4 KiB in a 64 KiB frame. A small window
//!   is used to the byte instead, because a block read twice costs less than idle credit. A burst of
//!   pacing may be shortened to any number of blocks but one: no credit is idle then, since the next burst
//!   comes sooner. So may any fetch of a path that loses while the worker is busy.
//! * What its client can use soon is read too ([`FetchLimits::ahead_bytes`]), if its slot can be kept for the next
//!   fetches ([`crate::kept_slots`]). The read then ends on a block boundary, and the fetch where the credit does.
//! * The last bytes of a kept slot, if they are fewer than a packet has, leave in a packet with the first ones of the next
//!   read. A short packet in each slot costs a frame and an ACK, and may be lost like any other.
//! * Over TLS whole records are read, even if only a part of one is sent, because only a whole
//!   record can be sealed. New data ends with a record if at least one fits, and waits for credit
//!   for its first record if the window can hold two.
//! * New data waits while bytes are outstanding and the credit is below a third of the window, below
//!   one full fetch and below the pacing quantum. ACKs that arrive together then cause one read
//!   instead of many, and more than two thirds of the window are still outstanding meanwhile. Where the path loses and the
//!   slot is kept nothing waits, unless the worker is busy: a segment that does is a tenth of such a window.

use core::ops::Range;

use clock::Instant;
use memory::{Arena, FilledSlot};
use tcp::{Claim, Demand, StreamOffset, StreamRange};

use crate::kept_slots::KeptKey;
use crate::stream_map::{
    ObjectPlace, RECORDS_PER_FETCH_MAX, RecordRun, Records, Source, Span, StreamMap,
};

/// Most fetches of one connection, under way or complete and not yet sent: 1 MiB with slots of
/// 64 KiB, or 80 Gb/s with a disk latency of 100 microseconds.
pub(crate) const FETCHES_MAX: usize = 16;
/// A fetch may be shortened by one part in this many to end on a block boundary.
const ALIGNMENT_SHARE: u64 = 8;
/// A fetch that pacing limits ends on a block boundary if it then has so many blocks. Its last packet is
/// short, and where each packet may be lost goodput depends on the mean size of packets
/// (docs/develop/decisions/0003-read-size.md).
const PACED_BLOCKS_MIN: u64 = 2;
/// New data waits while the credit is below one part in this many of the window.
const WINDOW_SHARE: u64 = 3;

/// What one frame and one read can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchLimits {
    /// Payload bytes of the largest frame.
    pub(crate) frame_bytes: u64,
    /// Payload bytes of a slot.
    pub(crate) slot_bytes: u64,
    /// How much of the stream, from the fetch's first byte on, a read may take even if the demand is for less. 0: nothing
    /// of it could be kept.
    pub(crate) ahead_bytes: u64,
    /// New data never waits for more credit, and a burst is not cut at a block: a fetch costs no read of its own, and the
    /// path loses, so its window is small.
    pub(crate) is_prompt: bool,
    /// What the windows limit ends on a block boundary as a burst does: the worker is busy, so credit that waits costs less
    /// than a block read twice.
    pub(crate) is_in_blocks: bool,
    /// Payload bytes of a packet. 0: a kept slot is sent to its end, because no slot is free for a read that would go on.
    pub(crate) packet_bytes: u64,
}

impl FetchLimits {
    /// Whether a kept slot that ends at `end` has only a part of a packet for the demand, which is for more.
    pub(crate) fn is_rest(self, demand: &Demand, end: StreamOffset) -> bool {
        let bytes = end.since(demand.range.start);
        !demand.is_retransmission && end < demand.range.end && bytes < self.packet_bytes
    }

    /// The size of a full fetch, less what alignment and a head may take of it.
    const fn worthwhile_bytes(self) -> u64 {
        let full = if self.frame_bytes < self.slot_bytes {
            self.frame_bytes
        } else {
            self.slot_bytes
        };
        full - full / 8
    }

    /// How much of the stream the read for a demand may take: of new data as many fetches of the demand's size as there
    /// is use for, so that the last one from a slot is no small rest. `None`: no more than is demanded, and nothing is
    /// kept.
    fn reach_bytes(self, demand: &Demand, read_bytes_max: u64) -> Option<u64> {
        let once = demand.range.bytes().max(1);
        let most = self.ahead_bytes.min(read_bytes_max);
        if demand.is_retransmission {
            return (most > once).then_some(most);
        }
        let fetches = most / once;
        (fetches > u64::from(!self.is_prompt)).then_some(fetches * once)
    }
}

/// The read a fetch needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadShape {
    pub(crate) object: ObjectPlace,
    /// Aligned offset, bytes.
    pub(crate) offset_bytes: u64,
    /// Aligned length, bytes.
    pub(crate) length_bytes: u32,
    /// Offset in the slot of the first byte to send.
    pub(crate) skip_bytes: u32,
    /// Stream offset at which the run's part of the fetch starts; everything before is text.
    pub(crate) stream_start: StreamOffset,
    /// Stream offset at which what is read ends, which may be behind the fetch's end.
    pub(crate) end: StreamOffset,
    /// The records that hold this part; the first of them may start before it.
    pub(crate) records: Option<RecordRun>,
}

impl ReadShape {
    /// Bytes of the stream that a slot holds into which this was read, and sealed over TLS.
    pub(crate) fn content<'a>(
        &self,
        arena: &'a Arena,
        slot: &'a FilledSlot,
        range: StreamRange,
    ) -> &'a [u8] {
        let (window, from) = match &self.records {
            None => {
                let skip = u64::from(self.skip_bytes);
                let from = skip + range.start.since(self.stream_start);
                (Some(arena.payload(slot)), from)
            }
            Some(run) => {
                let (before, behind) = run.room();
                let window = arena.window(slot, before, behind);
                let from = range.start.since(run.start);
                (window.get(self.records_place(run)), from)
            }
        };
        let part = as_index(from)..as_index(from + range.bytes());
        let content = window.and_then(|window| window.get(part));
        content.expect("invariant: a ready slot holds all bytes of its fetch")
    }

    /// Where the records are in a window with their room ([`RecordRun::room`]).
    pub(crate) fn records_place(&self, run: &RecordRun) -> Range<usize> {
        let from = as_index(self.skip_bytes.into());
        from..from + as_index(run.bytes())
    }
}

/// A distance within a slot.
fn as_index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A decision to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FetchPlan {
    pub(crate) range: StreamRange,
    pub(crate) is_retransmission: bool,
    /// `None`: text only, or kept; ready at once.
    pub(crate) read: Option<ReadShape>,
    /// It begins in this slot; all of it is there unless there is a read, too.
    pub(crate) kept: Option<KeptKey>,
}

impl FetchPlan {
    /// Where its text ends; what follows is of an object.
    pub(crate) fn text_end(&self) -> StreamOffset {
        match (self.kept, self.read) {
            (Some(_), _) => self.range.start,
            (None, Some(read)) => read.stream_start,
            (None, None) => self.range.end,
        }
    }

    /// Where its part of the kept slot ends, if it has one.
    pub(crate) fn kept_end(&self) -> StreamOffset {
        match (self.kept, self.read) {
            (Some(_), Some(read)) => read.stream_start,
            (Some(_), None) => self.range.end,
            (None, _) => self.range.start,
        }
    }
}

/// A fetch under way.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// Unique among all fetches of the worker.
    pub(crate) id: u32,
    pub(crate) plan: FetchPlan,
    /// The plan's range, claimed.
    pub(crate) claim: Claim,
    pub(crate) state: FetchState,
}

/// Where a fetch's bytes are.
#[derive(Debug)]
pub(crate) enum FetchState {
    /// The read is under way, since this time; the device owns the slot.
    Reading(Instant),
    /// The bytes are in memory; `None` for what is text only, or in a slot that was kept.
    Ready(Option<Arrived>),
}

/// A completed read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) slot: FilledSlot,
    /// Its records were sealed and may be sent.
    pub(crate) is_sealed: bool,
    /// From here on its bytes are what they were: a link may write headers before a frame that it sends from the slot.
    pub(crate) usable_from: StreamOffset,
}

/// Decides what to fetch for a demand; `None`: wait for more credit. `kept`: the slot that holds the demand's first
/// byte, and where its bytes end.
pub(crate) fn plan(
    demand: &Demand,
    stream: &StreamMap,
    limits: FetchLimits,
    kept: Option<(KeptKey, StreamOffset)>,
) -> Option<FetchPlan> {
    let plan = match kept {
        Some((key, end)) => plan_kept(demand, stream, limits, key, end)?,
        None => plan_read(demand, stream, limits)?,
    };
    (!is_worth_waiting(demand, &plan, stream, limits)).then_some(plan)
}

/// A fetch of what a slot holds already, in whole packets if the object goes on behind it.
fn plan_kept(
    demand: &Demand,
    stream: &StreamMap,
    limits: FetchLimits,
    key: KeptKey,
    end: StreamOffset,
) -> Option<FetchPlan> {
    let goes_on = || stream.find(end).is_some_and(|span| span.start < end);
    if limits.is_rest(demand, end) && goes_on() {
        return plan_joined(demand, stream, limits, key, end);
    }
    let start = demand.range.start;
    let bytes = end.min(demand.range.end).since(start);
    let bytes = bytes.min(limits.frame_bytes);
    let is_cut = end < demand.range.end && !demand.is_retransmission && goes_on();
    let beyond = bytes.checked_rem(limits.packet_bytes).filter(|_| is_cut);
    let bytes = bytes - beyond.unwrap_or(0);
    Some(FetchPlan {
        range: StreamRange::new(start, start + bytes),
        is_retransmission: demand.is_retransmission,
        read: None,
        kept: Some(key),
    })
}

/// A fetch that begins with the last bytes of a kept slot, up to `end`, and goes on with a read.
fn plan_joined(
    demand: &Demand,
    stream: &StreamMap,
    limits: FetchLimits,
    key: KeptKey,
    end: StreamOffset,
) -> Option<FetchPlan> {
    let start = demand.range.start;
    let room = limits.frame_bytes.saturating_sub(end.since(start));
    let rest = StreamRange::new(end, demand.range.end);
    let (shape, to) = shape_read(demand, stream, rest, room, limits)?;
    Some(FetchPlan {
        range: StreamRange::new(start, to),
        is_retransmission: false,
        read: Some(shape),
        kept: Some(key),
    })
}

fn plan_read(demand: &Demand, stream: &StreamMap, limits: FetchLimits) -> Option<FetchPlan> {
    let range = demand.range;
    let text = stream.text_run(range.start, range.end);
    let text_bytes = text.bytes().min(limits.frame_bytes);
    let text_end = range.start + text_bytes;
    let read = if text_end < range.end && text_bytes < limits.frame_bytes {
        let room = limits.frame_bytes - text_bytes;
        let rest = StreamRange::new(text_end, range.end);
        shape_read(demand, stream, rest, room, limits)
    } else {
        None
    };
    let end = read.map_or(text_end, |(_, end)| end);
    let range = StreamRange::new(range.start, end);
    if range.is_empty() {
        return None;
    }
    Some(FetchPlan {
        range,
        is_retransmission: demand.is_retransmission,
        read: read.map(|(shape, _)| shape),
        kept: None,
    })
}

/// The read for the object run at the start of `range`, and the stream offset at which the fetch ends;
/// `None` if there is no such run, or if it is better to wait for credit.
fn shape_read(
    demand: &Demand,
    stream: &StreamMap,
    range: StreamRange,
    room_bytes: u64,
    limits: FetchLimits,
) -> Option<(ReadShape, StreamOffset)> {
    let span = stream.find(range.start)?;
    let Source::Object {
        object,
        start,
        records,
    } = &span.source
    else {
        return None;
    };
    let block = u64::from(object.block_bytes);
    let read_bytes_max = limits.slot_bytes.min(u64::from(object.read_bytes_max));
    let read_bytes_max = read_bytes_max - read_bytes_max % block;
    let wanted = span.end().min(range.end).since(range.start);
    let range = StreamRange::new(range.start, range.start + wanted.min(room_bytes));
    let reach = limits.reach_bytes(demand, read_bytes_max);
    let ahead_to = reach.map(|bytes| (demand.range.start + bytes).min(span.end()));
    let ahead_to = ahead_to.filter(|to| *to >= range.end);
    let (content_start, content_bytes, run) = match records {
        None => {
            let offset = start + range.start.since(span.start);
            let sizes = (block, read_bytes_max);
            let is_burst = limits.is_in_blocks || demand.range.bytes() >= demand.quantum_bytes;
            let bytes = match ahead_to {
                Some(to) => plain_bytes_ahead(span, range.start, to, offset, sizes),
                None => plain_bytes(is_burst, span, range, offset, sizes),
            };
            (offset, bytes, None)
        }
        Some(records) => {
            let to = StreamRange::new(range.start, ahead_to.unwrap_or(range.end));
            let is_ahead = ahead_to.is_some();
            let sizes = (block, read_bytes_max);
            let run = shape_records(demand, span, *start, records, to, is_ahead, sizes)?;
            let offset = start + run.first * u64::from(run.content_bytes);
            (offset, run.all_content_bytes(), Some(run))
        }
    };
    let read_end = run.map_or(range.start + content_bytes, |run| run.end());
    let aligned = content_start - content_start % block;
    let length = (content_start + content_bytes).next_multiple_of(block) - aligned;
    let shape = ReadShape {
        object: *object,
        offset_bytes: aligned,
        length_bytes: u32::try_from(length).ok()?,
        skip_bytes: u32::try_from(content_start - aligned).ok()?,
        stream_start: range.start,
        end: read_end,
        records: run,
    };
    Some((shape, read_end.min(range.end)))
}

/// How much of `range`, which starts at `offset` of its object, one read serves. `is_burst`: what does not end on a block
/// boundary may be claimed later.
fn plain_bytes(
    is_burst: bool,
    span: &Span,
    range: StreamRange,
    offset: u64,
    (block, read_bytes_max): (u64, u64),
) -> u64 {
    let aligned = offset - offset % block;
    let bytes = range.bytes().min(aligned + read_bytes_max - offset);
    let beyond_block = (offset + bytes) % block;
    let Some(left) = bytes.checked_sub(beyond_block) else {
        return bytes;
    };
    let is_worthwhile =
        beyond_block <= bytes / ALIGNMENT_SHARE || is_burst && left >= PACED_BLOCKS_MIN * block;
    // If the run ends here, there is no next read to align.
    let has_next = range.start + bytes < span.end();
    if has_next && is_worthwhile {
        left
    } else {
        bytes
    }
}

/// How much of the run from `from` to `to`, which starts at `offset` of its object, one read takes: whole blocks, so
/// that none is read twice.
fn plain_bytes_ahead(
    span: &Span,
    from: StreamOffset,
    to: StreamOffset,
    offset: u64,
    (block, read_bytes_max): (u64, u64),
) -> u64 {
    let aligned = offset - offset % block;
    let end = (offset + to.since(from)).next_multiple_of(block);
    let end = end.min(aligned + read_bytes_max);
    (end - offset).min(span.end().since(from))
}

/// The records that one read serves, of those of the run that hold `range`. `is_ahead`: the demand is for less, and
/// what is read beyond it is kept.
fn shape_records(
    demand: &Demand,
    span: &Span,
    object_start: u64,
    records: &Records,
    range: StreamRange,
    is_ahead: bool,
    (block, read_bytes_max): (u64, u64),
) -> Option<RecordRun> {
    let from = range.start.since(span.start);
    let record = records.record_bytes();
    let first = from / record;
    let content = u64::from(records.content_bytes());
    let skip = (object_start + first * content) % block;
    let most = ((read_bytes_max - skip) / content).clamp(1, u64::from(RECORDS_PER_FETCH_MAX));
    let to = range.end.since(span.start).min((first + most) * record);
    let whole = to - to % record;
    let to = if demand.is_retransmission || to == span.bytes || whole == to {
        to
    } else if is_ahead {
        (whole + record).min(span.bytes)
    } else if whole > from {
        whole
    } else {
        let is_worth_waiting = demand.outstanding_bytes > 0
            && range.end.since(range.start) < record
            && demand.window_bytes >= 2 * record;
        if is_worth_waiting {
            return None;
        }
        to
    };
    Some(records.run(span.start, span.bytes, from, to))
}

fn is_worth_waiting(
    demand: &Demand,
    plan: &FetchPlan,
    stream: &StreamMap,
    limits: FetchLimits,
) -> bool {
    if demand.is_retransmission || demand.outstanding_bytes == 0 || limits.is_prompt {
        return false;
    }
    // The end of the run or of the stream: waiting would bring no more bytes.
    let Some(next) = stream.find(plan.range.end) else {
        return false;
    };
    if next.start == plan.range.end {
        return false;
    }
    demand.range.bytes()
        < limits
            .worthwhile_bytes()
            .min(demand.window_bytes / WINDOW_SHARE)
            .min(demand.quantum_bytes)
}

#[cfg(test)]
mod tests;
