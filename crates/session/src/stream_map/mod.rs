//! The contents of the stream we send, from SND.UNA on: runs of text and runs of objects.
//!
//! This takes the place of a socket buffer. Text (heads, multipart delimiters, alerts) is kept until
//! it is acknowledged. Of objects only their position is kept, and a lost range is found again by
//! arithmetic: from the stream offset to the record and its number to the object offset
//! (`records`).
//!
//! Over TLS each run of text is one record, or several where the client takes short ones only, sealed in the text buffer when it is first sent; a run
//! of an object is sealed in its slots. Until then a record has a position and a number, but nothing
//! is computed, so a KeyUpdate can still be inserted before it ([`StreamMap::insert`]).
//!
//! Bounds: [`REPLIES_MAX`] replies, each of at most `http`'s text and ranges.

mod layout;
mod records;

use std::collections::VecDeque;
use std::rc::Rc;

use record::{ContentType, Framing, Sealer};
use tcp::{StreamOffset, StreamRange};

use crate::request_log::UnsentBytes;
use crate::{DeviceIndex, ObjectHandle};
pub(crate) use layout::{Layout, OVERHEAD_BYTES_MAX};
use records::TextSeal;
use records::{CONTENT_BYTES, SMALL_CONTENT_BYTES};
pub(crate) use records::{
    ContentChanged, LOSSY_CONTENT_BYTES, RECORDS_PER_FETCH_MAX, RecordRun, Records, Sealing,
};

/// Most replies queued on one connection; the next pipelined request is parsed once one of them is
/// acknowledged.
pub(crate) const REPLIES_MAX: usize = 8;
/// Acknowledged text is removed from the buffer once it is this long; removing it earlier would
/// copy the rest more often.
const DEAD_TEXT_BYTES_MAX: usize = 8192;

/// Over TLS, the text of a reply is one record, or several of its parts are one each.
const _: () = assert!(http::REPLY_TEXT_BYTES_MAX <= record::CONTENT_BYTES_MAX);

/// Where a run of the stream comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The text buffer.
    Text {
        /// The run's first byte among all text ever queued.
        position: u64,
        /// How it becomes a record; `None`: it is sent as it is.
        seal: Option<TextSeal>,
    },
    /// An object.
    Object {
        /// Which and how to read it.
        object: ObjectPlace,
        /// Offset of the run's first byte of content, bytes.
        start: u64,
        /// `None`: the content is sent as it is.
        records: Option<Records>,
    },
}

/// What reading an object needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectPlace {
    pub(crate) handle: ObjectHandle,
    pub(crate) block_bytes: u32,
    pub(crate) read_bytes_max: u32,
    pub(crate) device: DeviceIndex,
}

/// A run of the stream from one source.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) start: StreamOffset,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
    /// The last run of a reply, and the object whose use ends with it.
    ends_reply: Option<Option<ObjectHandle>>,
}

impl Span {
    pub(crate) fn end(&self) -> StreamOffset {
        self.start + self.bytes
    }

    /// The first boundary between records at or after `offset`, which lies in this run.
    fn boundary_after(&self, offset: StreamOffset) -> StreamOffset {
        match &self.source {
            Source::Text { seal: None, .. } | Source::Object { records: None, .. } => offset,
            Source::Text { .. } if offset == self.start => offset,
            Source::Text { .. } => self.end(),
            Source::Object {
                records: Some(records),
                ..
            } => {
                let count = records.count_in(offset.since(self.start));
                (self.start + count * records.record_bytes()).min(self.end())
            }
        }
    }

    /// Bytes of replies in the part of the run after `offset`: content, without the overhead and the
    /// own messages of TLS. A record that `offset` lies in counts as before it.
    fn content_behind(&self, offset: StreamOffset) -> u64 {
        let start = self.boundary_after(offset.clamp(self.start, self.end()));
        let behind = self.end().since(start);
        match &self.source {
            Source::Text { seal: None, .. } | Source::Object { records: None, .. } => behind,
            Source::Text {
                seal: Some(seal), ..
            } => match seal.content_type {
                ContentType::ApplicationData => {
                    behind.saturating_sub(seal.sealer.framing().overhead_bytes().into())
                }
                _ => 0,
            },
            Source::Object {
                records: Some(records),
                ..
            } => {
                let before = records.count_in(start.since(self.start));
                let all = records.count_in(self.bytes);
                records.content_before(all, self.bytes) - records.content_before(before, self.bytes)
            }
        }
    }

    /// What the run's records are sealed with; `None`: the run has no records.
    fn sealer(&self) -> Option<&Rc<Sealer>> {
        match &self.source {
            Source::Text { seal, .. } => seal.as_ref().map(|seal| &seal.sealer),
            Source::Object { records, .. } => records.as_ref().map(|records| &records.sealer),
        }
    }

    /// Whether it is a part of a reply, and no record of it was ever sealed.
    fn is_unsealed_reply(&self) -> bool {
        match &self.source {
            Source::Text { seal, .. } => seal.as_ref().is_none_or(|seal| {
                seal.content_type == ContentType::ApplicationData && !seal.is_sealed
            }),
            Source::Object { records, .. } => !records.as_ref().is_some_and(Records::is_any_sealed),
        }
    }

    /// Cuts the run in two at `at`, a boundary within it.
    fn split_at(&mut self, at: StreamOffset) -> Self {
        let bytes = at.since(self.start);
        let source = match &self.source {
            Source::Text { position, seal } => Source::Text {
                position: position + bytes,
                seal: seal.clone(),
            },
            Source::Object {
                object,
                start,
                records,
            } => {
                let (content, rest) = match records {
                    None => (bytes, None),
                    Some(records) => {
                        let count = records.count_in(bytes);
                        (
                            records.content_before(count, self.bytes),
                            Some(records.split_off(count)),
                        )
                    }
                };
                Source::Object {
                    object: *object,
                    start: start + content,
                    records: rest,
                }
            }
        };
        let rest = Self {
            start: at,
            bytes: self.bytes - bytes,
            source,
            ends_reply: self.ends_reply.take(),
        };
        self.bytes = bytes;
        rest
    }
}

/// The runs, in stream order without gaps, and the text.
#[derive(Debug, Default)]
pub(crate) struct StreamMap {
    spans: VecDeque<Span>,
    /// Text not yet acknowledged, and some that is acknowledged. Runs of text are in stream order
    /// here; runs that are adjacent in the stream are contiguous.
    text: Vec<u8>,
    /// Position of `text[0]` among all text ever queued.
    text_base: u64,
    /// The end of the stream so far.
    end: StreamOffset,
    /// Replies whose last byte is not acknowledged.
    replies: usize,
    /// Where the reply that was queued last begins.
    last_reply: StreamOffset,
    /// How bytes queued from now on are sealed; `None`: they are not sealed.
    sealing: Option<Sealing>,
}

impl StreamMap {
    /// Replies whose last byte is not acknowledged.
    pub(crate) const fn replies(&self) -> usize {
        self.replies
    }

    /// The end of the stream so far.
    pub(crate) const fn end(&self) -> StreamOffset {
        self.end
    }

    /// Where the reply that was queued last begins.
    pub(crate) const fn last_reply(&self) -> StreamOffset {
        self.last_reply
    }

    /// The number of the next record to be queued; 0 if none was queued yet.
    pub(crate) fn next_number(&self) -> u64 {
        let sealing = self.sealing.as_ref();
        sealing.map_or(0, |sealing| sealing.next_number)
    }

    /// Whether queued bytes are sealed.
    const fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    /// Bytes queued from now on are sealed like this.
    pub(crate) fn seal_from_here(&mut self, sealing: Sealing) {
        self.sealing = Some(sealing);
    }

    /// Queues text that is sent as it is.
    pub(crate) fn push_verbatim(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        let position = self.text_base + self.text.len() as u64;
        self.text.extend_from_slice(text);
        self.push(
            text.len() as u64,
            Source::Text {
                position,
                seal: None,
            },
        );
    }

    /// Most content bytes of a record that the client takes; without TLS it means nothing.
    pub(crate) fn content_bytes_max(&self) -> u32 {
        let sealing = self.sealing.as_ref();
        sealing.map_or(u32::MAX, |sealing| sealing.content_bytes_max)
    }

    /// Queues text; over TLS as one record of its own, or as many as the client's limit makes of it.
    pub(crate) fn push_text(&mut self, content_type: ContentType, text: &[u8]) {
        if self.sealing.is_none() || text.is_empty() {
            self.push_verbatim(text);
            return;
        }
        let content_bytes_max = as_index(self.content_bytes_max().into());
        for content in text.chunks(content_bytes_max) {
            self.push_text_record(content_type, content);
        }
    }

    fn push_text_record(&mut self, content_type: ContentType, text: &[u8]) {
        let sealing = self.sealing.as_mut().expect("invariant: TLS is spoken");
        let seal = TextSeal {
            sealer: Rc::clone(&sealing.sealer),
            number: sealing.take_numbers(1),
            content_type,
            is_sealed: false,
        };
        let framing = seal.sealer.framing();
        let position = self.text_base + self.text.len() as u64;
        let at = self.text.len();
        let bytes = splice_text(&mut self.text, at, framing, text);
        let seal = Some(seal);
        self.push(bytes, Source::Text { position, seal });
    }

    /// Queues `length` bytes of an object from `start` on, in records of `content_bytes`.
    fn push_object(&mut self, object: ObjectPlace, start: u64, length: u64, content_bytes: u32) {
        if length == 0 {
            return;
        }
        let (bytes, records) = match &mut self.sealing {
            None => (length, None),
            Some(sealing) => {
                let count = length.div_ceil(u64::from(content_bytes));
                let overhead = u64::from(sealing.sealer.framing().overhead_bytes());
                let first = sealing.take_numbers(count);
                let records = Records::new(Rc::clone(&sealing.sealer), first, content_bytes);
                (length + count * overhead, Some(records))
            }
        };
        self.push(
            bytes,
            Source::Object {
                object,
                start,
                records,
            },
        );
    }

    fn push(&mut self, bytes: u64, source: Source) {
        self.spans.push_back(Span {
            start: self.end,
            bytes,
            source,
            ends_reply: None,
        });
        self.end += bytes;
    }

    /// The last queued run was the end of a reply. Its use of `object` ends when the reply's last
    /// byte is acknowledged.
    fn end_reply(&mut self, object: Option<ObjectHandle>) {
        let last = self
            .spans
            .back_mut()
            .filter(|span| span.ends_reply.is_none());
        let last = last.expect("invariant: every reply has a head");
        last.ends_reply = Some(object);
        self.replies += 1;
    }

    /// The span that holds the oldest byte not yet acknowledged.
    pub(crate) fn first_span(&self) -> Option<&Span> {
        self.spans.front()
    }

    /// Everything before `up_to` arrived. Objects whose use has ended go to `released`.
    pub(crate) fn release(&mut self, up_to: StreamOffset, released: &mut Vec<ObjectHandle>) {
        while let Some(span) = self.spans.front()
            && span.end() <= up_to
        {
            if let Some(object) = span.ends_reply {
                self.replies -= 1;
                released.extend(object);
            }
            self.spans.pop_front();
        }
        if let Some(span) = self.spans.front_mut()
            && let Source::Object {
                records: Some(records),
                ..
            } = &mut span.source
            && up_to > span.start
        {
            records.release(up_to.since(span.start));
        }
        if self.spans.is_empty() {
            // The next run begins the queue's memory again, and not lines that are in no cache.
            self.spans.clear();
        }
        self.drop_dead_text();
    }

    /// Bytes of each reply after `offset`, heads and delimiters included, in stream order. A record
    /// that `offset` lies in counts as before it.
    pub(crate) fn content_behind(&self, offset: StreamOffset) -> UnsentBytes {
        let (mut unsent, mut index) = (UnsentBytes::default(), 0);
        for span in &self.spans {
            if let Some(bytes) = unsent.get_mut(index) {
                *bytes += span.content_behind(offset);
            }
            index += usize::from(span.ends_reply.is_some());
        }
        unsent
    }

    /// The connection is over: every use of an object ends.
    pub(crate) fn release_all(&mut self, released: &mut Vec<ObjectHandle>) {
        self.release(self.end, released);
    }

    /// Whether an object is one of these of which something is queued or not acknowledged.
    pub(crate) fn uses_any(&self, is_meant: &dyn Fn(ObjectHandle) -> bool) -> bool {
        let objects = self
            .spans
            .iter()
            .filter_map(|span| span.ends_reply.flatten());
        objects.into_iter().any(is_meant)
    }

    /// The run that holds `offset`; `None` at or past the end.
    pub(crate) fn find(&self, offset: StreamOffset) -> Option<&Span> {
        self.spans.get(self.index_of(offset)?)
    }

    fn index_of(&self, offset: StreamOffset) -> Option<usize> {
        let index = self.spans.partition_point(|span| span.end() <= offset);
        let span = self.spans.get(index)?;
        (span.start <= offset).then_some(index)
    }

    /// The first object of which bytes from `offset` on are queued.
    pub(crate) fn first_object(&self, offset: StreamOffset) -> Option<ObjectHandle> {
        let first = self.spans.partition_point(|span| span.end() <= offset);
        let objects = self.spans.iter().skip(first);
        objects
            .filter_map(|span| match &span.source {
                Source::Object { object, .. } => Some(object.handle),
                Source::Text { .. } => None,
            })
            .next()
    }

    /// The records of the run that holds `offset`, to seal some.
    pub(crate) fn records_mut(&mut self, offset: StreamOffset) -> Option<&mut Records> {
        let index = self.index_of(offset)?;
        match &mut self.spans.get_mut(index)?.source {
            Source::Object { records, .. } => records.as_mut(),
            Source::Text { .. } => None,
        }
    }

    /// The number of the record that `offset` lies in; `None` if there is none.
    pub(crate) fn record_number(&self, offset: StreamOffset) -> Option<u64> {
        let span = self.find(offset)?;
        match &span.source {
            Source::Text { seal, .. } => seal.as_ref().map(|seal| seal.number),
            Source::Object { records, .. } => records.as_ref().map(|records| {
                let index = offset.since(span.start) / records.record_bytes();
                records.first_number + index
            }),
        }
    }

    /// Whether the key changes after the record that `offset` lies in, or, if the handshake's last
    /// records are still queued there, after the first record that follows them.
    pub(crate) fn is_rekeyed_behind(&self, offset: StreamOffset) -> bool {
        let first = self.spans.partition_point(|span| span.end() <= offset);
        let sealer = self.spans.iter().skip(first).find_map(Span::sealer);
        match (sealer, &self.sealing) {
            (Some(sealer), Some(sealing)) => !Rc::ptr_eq(sealer, &sealing.sealer),
            _ => false,
        }
    }

    /// Bytes of text from `offset` on, at most up to `end`, before the next run of an object. Runs
    /// of text that follow each other are contiguous in the buffer, so this is one slice.
    pub(crate) fn text_run(&self, offset: StreamOffset, end: StreamOffset) -> StreamRange {
        let first = self.spans.partition_point(|span| span.end() <= offset);
        let mut run_end = offset;
        for span in self.spans.iter().skip(first) {
            if !matches!(span.source, Source::Text { .. }) || run_end >= end {
                break;
            }
            run_end = span.end();
        }
        StreamRange::new(offset, run_end.min(end).max(offset))
    }

    /// Seals the text of `range` that is not sealed yet. Afterwards it can be sent, and sent again.
    pub(crate) fn seal_text(&mut self, range: StreamRange) {
        let first = self.spans.partition_point(|span| span.end() <= range.start);
        for span in self.spans.iter_mut().skip(first) {
            if span.start >= range.end {
                break;
            }
            let Source::Text {
                position,
                seal: Some(seal),
            } = &mut span.source
            else {
                continue;
            };
            if seal.is_sealed {
                continue;
            }
            seal.is_sealed = true;
            let from = as_index(*position - self.text_base);
            let record = self.text.get_mut(from..from + as_index(span.bytes));
            let record = record.expect("invariant: unacknowledged text is kept");
            // Text is kept until it is acknowledged, so it is sealed once and needs no tag.
            let _ = seal.sealer.seal(seal.number, seal.content_type, record);
        }
    }

    /// The bytes of a range that [`StreamMap::text_run`] returned, or of a part of it.
    pub(crate) fn text_bytes(&self, range: StreamRange) -> &[u8] {
        let Some(Span {
            start,
            source: Source::Text { position, .. },
            ..
        }) = self.find(range.start)
        else {
            return &[];
        };
        let from = as_index(position + range.start.since(*start) - self.text_base);
        let bytes = as_index(range.bytes());
        self.text
            .get(from..from.saturating_add(bytes))
            .expect("invariant: unacknowledged text is kept")
    }

    /// Inserts a KeyUpdate at the earliest possible position: before the first record of which no
    /// byte was claimed. The records after it are sealed with `next` and numbered from 0. Returns
    /// the bytes added.
    pub(crate) fn rekey(&mut self, claimed: StreamOffset, text: &[u8], next: Rc<Sealer>) -> u64 {
        let index = self.split_at(claimed);
        let number = self.next_number_at(index);
        let sealing = self.sealing.as_mut().expect("invariant: TLS is spoken");
        let seal = TextSeal {
            sealer: std::mem::replace(&mut sealing.sealer, next),
            number,
            content_type: ContentType::Handshake,
            is_sealed: false,
        };
        sealing.next_number = 0;
        let position = self.text_position(index);
        let at = as_index(position - self.text_base);
        let bytes = splice_text(&mut self.text, at, seal.sealer.framing(), text);
        let start = self.spans.get(index).map_or(self.end, |span| span.start);
        let span = Span {
            start,
            bytes,
            source: Source::Text {
                position,
                seal: Some(seal),
            },
            ends_reply: None,
        };
        self.spans.insert(index, span);
        self.end += bytes;
        if start <= self.last_reply {
            self.last_reply += bytes;
        }
        self.renumber_from(index + 1, bytes);
        bytes
    }

    /// Drops all records of which no byte was claimed. Objects whose use ends with them go to
    /// `released`. Returns the bytes dropped.
    pub(crate) fn truncate(
        &mut self,
        claimed: StreamOffset,
        released: &mut Vec<ObjectHandle>,
    ) -> u64 {
        let index = self.split_at(claimed);
        let before = self.end;
        let mut ends = self.drop_from(index);
        // The part of a reply that is left still needs its object.
        if let Some(last) = self.spans.back_mut()
            && last.ends_reply.is_none()
        {
            last.ends_reply = ends.pop_front();
        }
        self.replies -= ends.len();
        released.extend(ends.into_iter().flatten());
        before.since(self.end)
    }

    /// Takes the reply that was queued last out, for another to take its place and its records' numbers. Its
    /// use of an object ends. Returns where it began.
    ///
    /// `None`, and nothing is changed: a record of it was sealed, so that its number has its content for good; or
    /// a record that belongs to no reply was queued behind its beginning.
    pub(crate) fn take_back_reply(
        &mut self,
        released: &mut Vec<ObjectHandle>,
    ) -> Option<StreamOffset> {
        let index = self.index_of(self.last_reply)?;
        if !self.spans.iter().skip(index).all(Span::is_unsealed_reply) {
            return None;
        }
        let ends = self.drop_from(index);
        self.replies -= ends.len();
        released.extend(ends.into_iter().flatten());
        Some(self.end)
    }

    /// Drops the runs from `index` on. Returns the ends of replies among them.
    fn drop_from(&mut self, index: usize) -> VecDeque<Option<ObjectHandle>> {
        let number = self.next_number_at(index);
        // If a KeyUpdate is dropped, its key was never in use.
        let sealer = self
            .spans
            .iter()
            .skip(index)
            .find_map(Span::sealer)
            .cloned();
        let text_end = as_index(self.text_position(index) - self.text_base);
        self.end = self.spans.get(index).map_or(self.end, |span| span.start);
        let dropped = self.spans.drain(index..);
        let ends = dropped.filter_map(|span| span.ends_reply).collect();
        self.text.truncate(text_end);
        if let Some(sealing) = &mut self.sealing {
            sealing.next_number = number;
            sealing.sealer = sealer.unwrap_or_else(|| Rc::clone(&sealing.sealer));
        }
        ends
    }

    /// Splits a run at the first boundary between records at or after `offset`. Returns the index of
    /// the run that begins there.
    ///
    /// Text that is sent as it is has no such boundary, not even at its start: it is the handshake's
    /// last records, tickets sealed under the first numbers of our key. No record can be inserted
    /// before them, and without them the numbers of later records would be wrong.
    fn split_at(&mut self, offset: StreamOffset) -> usize {
        let Some(mut index) = self.index_of(offset) else {
            return self.spans.len();
        };
        while let Some(span) = self.spans.get(index)
            && matches!(span.source, Source::Text { seal: None, .. })
        {
            index += 1;
        }
        let Some(span) = self.spans.get_mut(index) else {
            return index;
        };
        let at = span.boundary_after(offset.max(span.start));
        if at == span.start {
            return index;
        }
        if at < span.end() {
            let rest = span.split_at(at);
            self.spans.insert(index + 1, rest);
        }
        index + 1
    }

    /// The number of the first record at or after the run at `index`.
    fn next_number_at(&self, index: usize) -> u64 {
        let number = |span: &Span| match &span.source {
            Source::Text { seal, .. } => seal.as_ref().map(|seal| seal.number),
            Source::Object { records, .. } => records.as_ref().map(|records| records.first_number),
        };
        let queued = self.spans.iter().skip(index).find_map(number);
        queued.unwrap_or_else(|| self.next_number())
    }

    /// The position among all text of the first text at or after the run at `index`.
    fn text_position(&self, index: usize) -> u64 {
        let position = |span: &Span| match span.source {
            Source::Text { position, .. } => Some(position),
            Source::Object { .. } => None,
        };
        let queued = self.spans.iter().skip(index).find_map(position);
        queued.unwrap_or(self.text_base + self.text.len() as u64)
    }

    /// Moves the runs from `index` on by `bytes`, and seals them as [`Self::sealing`] says.
    fn renumber_from(&mut self, index: usize, bytes: u64) {
        let sealing = self.sealing.as_mut().expect("invariant: TLS is spoken");
        for span in self.spans.iter_mut().skip(index) {
            span.start += bytes;
            match &mut span.source {
                Source::Text { position, seal } => {
                    *position += bytes;
                    if let Some(seal) = seal {
                        assert!(!seal.is_sealed, "a sealed record keeps its number");
                        seal.sealer = Rc::clone(&sealing.sealer);
                        seal.number = sealing.take_numbers(1);
                    }
                }
                Source::Object { records, .. } => {
                    if let Some(records) = records {
                        records.sealer = Rc::clone(&sealing.sealer);
                        records.first_number = sealing.take_numbers(records.count_in(span.bytes));
                    }
                }
            }
        }
    }

    fn drop_dead_text(&mut self) {
        let dead = as_index(self.text_position(0) - self.text_base);
        if dead == self.text.len() || dead > DEAD_TEXT_BYTES_MAX {
            self.text.drain(..dead);
            self.text_base += dead as u64;
        }
    }
}

/// Appends the text of a record to the buffer, between zeroed room for its header and trailer.
fn splice_text(buffer: &mut Vec<u8>, at: usize, framing: Framing, text: &[u8]) -> u64 {
    let room = |bytes: u32| core::iter::repeat_n(0, bytes as usize);
    let before = buffer.len();
    let record = room(framing.header_bytes)
        .chain(text.iter().copied())
        .chain(room(framing.trailer_bytes));
    buffer.splice(at..at, record);
    (buffer.len() - before) as u64
}

/// A distance within the text buffer.
fn as_index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("invariant: the text buffer is in memory")
}

#[cfg(test)]
pub(crate) mod tests;
