//! What the stream we send consists of, from SND.UNA on: runs of text and runs of objects.
//!
//! This is what stands in for a socket buffer. Text (heads, multipart delimiters) is kept until it
//! is acknowledged; of objects only their place is kept, so a lost range is found again by
//! arithmetic. Bounds: [`REPLIES_MAX`] replies, each of at most `http`'s text and ranges.

use std::collections::VecDeque;

use http::Part;
use tcp::{StreamOffset, StreamRange};

use crate::{Object, ObjectHandle};

/// Replies queued on one connection before the next pipelined request is looked at.
pub(crate) const REPLIES_MAX: usize = 8;
/// Acknowledged text is cut off the buffer once it is this long; cutting less would copy more.
const DEAD_TEXT_BYTES_MAX: usize = 8192;

/// Where a run of the stream comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The text buffer, from this position of all text ever queued.
    Text(u64),
    /// An object, from this offset.
    Object {
        /// Which and how to read it.
        object: ObjectPlace,
        /// Offset of the run's first byte, bytes.
        start: u64,
    },
}

/// What reading an object needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectPlace {
    pub(crate) handle: ObjectHandle,
    pub(crate) block_bytes: u32,
    pub(crate) read_bytes_max: u32,
}

/// A run of the stream from one source.
#[derive(Clone, Copy, Debug)]
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
}

/// The runs, in stream order without gaps, and the text.
#[derive(Debug, Default)]
pub(crate) struct StreamMap {
    spans: VecDeque<Span>,
    /// Text not yet acknowledged, and some that is.
    pub(crate) text: Vec<u8>,
    /// Position of `text[0]` among all text ever queued.
    text_base: u64,
    /// The end of the stream so far.
    end: StreamOffset,
    /// Replies whose last byte is not acknowledged.
    replies: usize,
}

impl StreamMap {
    /// Replies whose last byte is not acknowledged.
    pub(crate) const fn replies(&self) -> usize {
        self.replies
    }

    /// A reply: `parts`, whose text is already at the end of `self.text`, from `text_before` on.
    /// Its use of `object` ends when its last byte is acknowledged. Returns the bytes added.
    pub(crate) fn push_reply(
        &mut self,
        parts: &[Part],
        text_before: usize,
        object: Option<&Object>,
    ) -> u64 {
        let before = self.end;
        let mut text_position = self.text_base + text_before as u64;
        for part in parts {
            let (bytes, source) = match *part {
                Part::Text(bytes) => {
                    let source = Source::Text(text_position);
                    text_position += u64::from(bytes);
                    (u64::from(bytes), source)
                }
                Part::Object { start, length } => {
                    let object = object.expect("invariant: parts of an object come with it");
                    let place = ObjectPlace {
                        handle: object.handle,
                        block_bytes: object.block_bytes,
                        read_bytes_max: object.read_bytes_max,
                    };
                    (
                        length,
                        Source::Object {
                            object: place,
                            start,
                        },
                    )
                }
            };
            if bytes > 0 {
                self.spans.push_back(Span {
                    start: self.end,
                    bytes,
                    source,
                    ends_reply: None,
                });
                self.end += bytes;
            }
        }
        let last = self.spans.back_mut().filter(|_| self.end > before);
        let last = last.expect("invariant: every reply has a head");
        last.ends_reply = Some(object.map(|object| object.handle));
        self.replies += 1;
        self.end.since(before)
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
        self.drop_dead_text();
    }

    /// The connection is over: every use of an object ends.
    pub(crate) fn release_all(&mut self, released: &mut Vec<ObjectHandle>) {
        self.release(self.end, released);
    }

    /// The run that holds `offset`; `None` at or past the end.
    pub(crate) fn find(&self, offset: StreamOffset) -> Option<&Span> {
        let index = self.spans.partition_point(|span| span.end() <= offset);
        self.spans.get(index).filter(|span| span.start <= offset)
    }

    /// Bytes of text from `offset` on, at most up to `end`, before the next run of an object. Runs
    /// of text that follow each other are contiguous in the buffer, so this is one slice.
    pub(crate) fn text_run(&self, offset: StreamOffset, end: StreamOffset) -> StreamRange {
        let first = self.spans.partition_point(|span| span.end() <= offset);
        let mut run_end = offset;
        for span in self.spans.iter().skip(first) {
            if !matches!(span.source, Source::Text(_)) || run_end >= end {
                break;
            }
            run_end = span.end();
        }
        StreamRange::new(offset, run_end.min(end).max(offset))
    }

    /// The bytes of a range that [`StreamMap::text_run`] returned, or of a part of it.
    pub(crate) fn text_bytes(&self, range: StreamRange) -> &[u8] {
        let Some(Span {
            start,
            source: Source::Text(position),
            ..
        }) = self.find(range.start)
        else {
            return &[];
        };
        let from = position + range.start.since(*start) - self.text_base;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let bytes = usize::try_from(range.bytes()).unwrap_or(usize::MAX);
        self.text
            .get(from..from.saturating_add(bytes))
            .expect("invariant: unacknowledged text is kept")
    }

    fn drop_dead_text(&mut self) {
        let live_from = self.spans.iter().find_map(|span| match span.source {
            Source::Text(position) => Some(position),
            Source::Object { .. } => None,
        });
        let dead = match live_from {
            None => self.text.len(),
            Some(position) => usize::try_from(position - self.text_base).unwrap_or(usize::MAX),
        };
        if dead == self.text.len() || dead > DEAD_TEXT_BYTES_MAX {
            self.text.drain(..dead);
            self.text_base += dead as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{ObjectMeta, Part};
    use tcp::{StreamOffset, StreamRange};

    use super::{Source, StreamMap};
    use crate::{Object, ObjectHandle};

    fn object(handle: u32) -> Object {
        Object {
            handle: ObjectHandle(handle),
            meta: ObjectMeta {
                size_bytes: 1 << 20,
                modified_unix_seconds: 0,
                entity_tag: String::new(),
                content_type: "video/mp4",
            },
            block_bytes: 4096,
            read_bytes_max: 65536,
        }
    }

    fn push(map: &mut StreamMap, head: &[u8], start: u64, length: u64, handle: u32) -> u64 {
        let before = map.text.len();
        map.text.extend_from_slice(head);
        let text = u32::try_from(head.len()).unwrap();
        let parts = [Part::Text(text), Part::Object { start, length }];
        map.push_reply(&parts, before, Some(&object(handle)))
    }

    fn range(start: u64, end: u64) -> StreamRange {
        StreamRange::new(StreamOffset(start), StreamOffset(end))
    }

    #[test]
    fn runs_are_found_by_offset() {
        let mut map = StreamMap::default();
        assert_eq!(push(&mut map, b"head", 4096, 100, 1), 104);
        assert_eq!(
            map.find(StreamOffset(3)).map(|span| span.source),
            Some(Source::Text(0))
        );
        let span = map.find(StreamOffset(4)).unwrap();
        assert!(matches!(span.source, Source::Object { start: 4096, .. }));
        assert!(map.find(StreamOffset(103)).is_some());
        assert!(map.find(StreamOffset(104)).is_none());
        assert_eq!(map.text_bytes(range(1, 3)), b"ea");
    }

    #[test]
    fn neighbouring_text_is_one_run() {
        let mut map = StreamMap::default();
        push(&mut map, b"one", 0, 0, 1);
        push(&mut map, b"two", 0, 5, 2);
        assert_eq!(map.text_run(StreamOffset(1), StreamOffset(99)), range(1, 6));
        assert_eq!(map.text_bytes(range(1, 6)), b"netwo");
        assert_eq!(map.text_run(StreamOffset(1), StreamOffset(4)), range(1, 4));
        assert_eq!(map.text_run(StreamOffset(6), StreamOffset(99)), range(6, 6));
    }

    #[test]
    fn objects_are_released_with_their_last_byte() {
        let mut map = StreamMap::default();
        push(&mut map, b"one", 0, 10, 1);
        push(&mut map, b"two", 0, 10, 2);
        let mut released = Vec::new();
        map.release(StreamOffset(12), &mut released);
        assert!(released.is_empty());
        map.release(StreamOffset(13), &mut released);
        assert_eq!(released, [ObjectHandle(1)]);
        assert_eq!(map.replies(), 1);
        map.release_all(&mut released);
        assert_eq!(released, [ObjectHandle(1), ObjectHandle(2)]);
        assert!(map.text.is_empty());
    }

    #[test]
    fn text_stays_right_after_its_beginning_was_cut_off() {
        let mut map = StreamMap::default();
        let long = vec![b'x'; 9000];
        push(&mut map, &long, 0, 1, 1);
        push(&mut map, b"second", 0, 1, 2);
        map.release(StreamOffset(9001), &mut Vec::new());
        assert_eq!(map.text, b"second");
        assert_eq!(map.text_bytes(range(9001, 9007)), b"second");
        push(&mut map, b"third", 0, 1, 3);
        assert_eq!(map.text_bytes(range(9008, 9013)), b"third");
    }
}
