//! Records of the stream: where each begins, its number, its key, and the tag it was sealed with.
//!
//! Everything except the tags is computed: a run's records are numbered in order and have the same
//! size, except the last. Tags are kept from a record's first sealing until it is acknowledged, 16
//! bytes each. A record that is sealed again, because it was lost or only a part of it could be sent,
//! must have the same tag. Otherwise its content has changed meanwhile, and sending it would reuse
//! the nonce and reveal the authentication key.

use std::collections::VecDeque;
use std::rc::Rc;

use record::{ContentType, Framing, Sealer, Tag};
use tcp::StreamOffset;

/// Content bytes of a record of an object, once the congestion window is open. Four of them are 15
/// blocks of 4 KiB and fill a 64 KiB frame; of the 16 KiB that TLS allows, only three would fit.
pub(crate) const CONTENT_BYTES: u32 = 15_360;
/// The same of an object that is queued after a loss, which is read a record or two at a time: three blocks, so that no two
/// records share one. Five fill a frame; sealing them costs a twelfth more than four.
pub(crate) const LOSSY_CONTENT_BYTES: u32 = 12_288;
/// Content bytes of a record while the congestion window is small: a client can open the first
/// ones without waiting a round trip for their ends.
pub(crate) const SMALL_CONTENT_BYTES: u32 = 4096;
/// Most records one fetch seals: a slot of small ones.
pub(crate) const RECORDS_PER_FETCH_MAX: u32 = record::RUN_RECORDS_MAX;

/// How the stream is sealed from some record on.
#[derive(Clone, Debug)]
pub(crate) struct Sealing {
    pub(crate) sealer: Rc<Sealer>,
    /// The next record's number.
    pub(crate) next_number: u64,
    /// Most content bytes of a record that the client takes.
    pub(crate) content_bytes_max: u32,
}

impl Sealing {
    pub(super) fn take_numbers(&mut self, count: u64) -> u64 {
        let first = self.next_number;
        self.next_number += count;
        first
    }
}

/// How a run of text, which is one record, is sealed when it is first sent.
#[derive(Clone, Debug)]
pub(crate) struct TextSeal {
    pub(super) sealer: Rc<Sealer>,
    pub(super) number: u64,
    pub(super) content_type: ContentType,
    pub(super) is_sealed: bool,
}

/// The records of a run of an object.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(super) sealer: Rc<Sealer>,
    /// Number of the run's first record.
    pub(super) first_number: u64,
    /// Content bytes of every record but the last.
    pub(super) content_bytes: u32,
    /// Of records `released..`, in order.
    tags: VecDeque<Tag>,
    /// Records of the run that were acknowledged.
    released: u64,
}

/// A record that was sealed again has another tag than before: the object has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContentChanged;

/// Consecutive records of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordRun {
    /// Stream offset of the first one's header.
    pub(crate) start: StreamOffset,
    /// The first one's index in its run.
    pub(crate) first: u64,
    /// How many; at most [`RECORDS_PER_FETCH_MAX`].
    pub(crate) count: u32,
    /// Content bytes of each but the last.
    pub(crate) content_bytes: u32,
    /// Content bytes of the last.
    pub(crate) last_content_bytes: u32,
    pub(crate) framing: Framing,
}

impl RecordRun {
    /// Room that the records need in their slot, before what was read and behind it, bytes: the first content stays where
    /// the disk put it.
    pub(crate) const fn room(&self) -> (u32, u32) {
        (self.framing.header_bytes, self.framing_bytes())
    }

    /// Content bytes of all.
    pub(crate) fn all_content_bytes(&self) -> u64 {
        u64::from(self.count.saturating_sub(1)) * u64::from(self.content_bytes)
            + u64::from(self.last_content_bytes)
    }

    /// Stream offset at which the last one ends.
    pub(crate) fn end(&self) -> StreamOffset {
        self.start + self.bytes()
    }

    /// Stream bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.all_content_bytes() + u64::from(self.framing_bytes())
    }

    /// Header and trailer bytes of all.
    pub(crate) const fn framing_bytes(&self) -> u32 {
        self.count * self.framing.overhead_bytes()
    }
}

impl Records {
    pub(super) fn new(sealer: Rc<Sealer>, first_number: u64, content_bytes: u32) -> Self {
        Self {
            sealer,
            first_number,
            content_bytes,
            tags: VecDeque::new(),
            released: 0,
        }
    }

    /// Content bytes of every record but the last.
    pub(crate) const fn content_bytes(&self) -> u32 {
        self.content_bytes
    }

    /// Stream bytes of every record but the last.
    pub(crate) fn record_bytes(&self) -> u64 {
        u64::from(self.content_bytes + self.sealer.framing().overhead_bytes())
    }

    /// The number of records in `bytes` of stream.
    pub(super) fn count_in(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.record_bytes())
    }

    /// Content bytes in the first `count` of a run's records that is `bytes` of stream long.
    pub(super) fn content_before(&self, count: u64, bytes: u64) -> u64 {
        let stream_bytes = (count * self.record_bytes()).min(bytes);
        let overhead = u64::from(self.sealer.framing().overhead_bytes());
        stream_bytes - self.count_in(stream_bytes) * overhead
    }

    /// The records from the one that `from` lies in to the one that `to` ends in, both counted
    /// from the run's start, which is at `start`; the run is `bytes` long.
    pub(crate) fn run(&self, start: StreamOffset, bytes: u64, from: u64, to: u64) -> RecordRun {
        let first = from / self.record_bytes();
        let end = self.count_in(to);
        let last_content = self.content_before(end, bytes) - self.content_before(end - 1, bytes);
        RecordRun {
            start: start + first * self.record_bytes(),
            first,
            count: u32::try_from(end - first).unwrap_or(u32::MAX),
            content_bytes: self.content_bytes,
            last_content_bytes: u32::try_from(last_content).unwrap_or(u32::MAX),
            framing: self.sealer.framing(),
        }
    }

    /// The first `bytes` of the run's stream were acknowledged: drops the tags of their records.
    pub(super) fn release(&mut self, bytes: u64) {
        let done = bytes / self.record_bytes();
        while self.released < done {
            self.released += 1;
            self.tags.pop_front();
        }
    }

    /// Whether one of the records was ever sealed.
    pub(super) fn is_any_sealed(&self) -> bool {
        self.released > 0 || !self.tags.is_empty()
    }

    /// The rest of a run after its first `count` records; none of the rest was sealed yet.
    pub(super) fn split_off(&self, count: u64) -> Self {
        Self::new(
            Rc::clone(&self.sealer),
            self.first_number + count,
            self.content_bytes,
        )
    }

    /// Seals `run` in place in `bytes`, of which it fills all: before, the contents stand one behind
    /// another, behind the room for the first header; afterwards these are the bytes of the stream.
    /// Returns how many records were sealed for the first time and again.
    ///
    /// # Errors
    /// A record differs from its first sealing. None of these records may be sent.
    pub(crate) fn seal(
        &mut self,
        run: &RecordRun,
        bytes: &mut [u8],
    ) -> Result<(u64, u64), ContentChanged> {
        let number = self.first_number + run.first;
        let tags = record::seal_run(&self.sealer, number, run.content_bytes, bytes);
        let (mut fresh, mut again) = (0, 0);
        for (index, tag) in (run.first..).zip(tags.into_iter().flatten()) {
            if index < self.released {
                // Acknowledged while it was being read: nothing of it will be sent.
                continue;
            }
            let kept = usize::try_from(index - self.released).unwrap_or(usize::MAX);
            match self.tags.get(kept) {
                Some(before) if *before == tag => again += 1,
                Some(_) => return Err(ContentChanged),
                None => {
                    assert_eq!(kept, self.tags.len(), "records are first sealed in order");
                    self.tags.push_back(tag);
                    fresh += 1;
                }
            }
        }
        Ok((fresh, again))
    }
}
