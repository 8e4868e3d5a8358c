//! How an object is cut into records when it is queued.

use http::Part;

use super::{CONTENT_BYTES, ObjectPlace, SMALL_CONTENT_BYTES, StreamMap};

/// A congestion window below this is small (see [`SMALL_CONTENT_BYTES`]): two full frames.
const SMALL_WINDOW_BYTES: u64 = 131_072;
/// Bytes of an object that are sent in small records while the window is small. After that slow start
/// has doubled the initial window at least twice.
const SMALL_RECORDS_BYTES: u64 = 15 * SMALL_CONTENT_BYTES as u64;
/// A run at least this long that does not begin on a block boundary begins with a short record, so
/// that the rest is aligned: this costs one small read, instead of a block that is read twice with
/// every frame.
const ALIGNED_LENGTH_MIN: u64 = 1 << 20;
/// More than the bytes that any record adds to its content.
const OVERHEAD_BYTES_MAX: u64 = 32;

/// The parameters of cutting an object into records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Payload bytes of the largest frame.
    pub(crate) frame_bytes: u64,
    /// The congestion window when the reply is queued.
    pub(crate) window_bytes: u64,
}

impl Layout {
    /// Content bytes of a record of `object` while the window is large: one read and one frame can
    /// hold the whole record.
    fn content_bytes(self, object: &ObjectPlace) -> u32 {
        let content = u64::from(CONTENT_BYTES);
        let fits_frame = self.frame_bytes >= content + OVERHEAD_BYTES_MAX;
        let read_bytes_max = u64::from(object.read_bytes_max);
        if fits_frame && read_bytes_max >= content + u64::from(object.block_bytes) {
            CONTENT_BYTES
        } else {
            SMALL_CONTENT_BYTES.min(object.read_bytes_max)
        }
    }
}

impl Layout {
    /// An upper bound of the records that a reply of `parts` is sealed in.
    pub(crate) fn records_max(self, parts: &[Part], object: Option<&ObjectPlace>) -> u64 {
        let content = object.map_or(CONTENT_BYTES, |object| self.content_bytes(object));
        let small = u64::from(SMALL_CONTENT_BYTES.min(content));
        let records = |part: &Part| match *part {
            Part::Text(_) => 1,
            // Full records and a last one, one for alignment, and the small ones of a small window.
            Part::Object { length, .. } => {
                length / u64::from(content) + 2 + SMALL_RECORDS_BYTES.div_ceil(small)
            }
        };
        parts.iter().map(records).sum()
    }
}

impl StreamMap {
    /// Queues a reply: `parts`, whose text is `text`. Its use of `object` ends when its last byte
    /// is acknowledged. Returns the bytes added to the stream.
    pub(crate) fn push_reply(
        &mut self,
        text: &[u8],
        parts: &[Part],
        object: Option<ObjectPlace>,
        layout: Layout,
    ) -> u64 {
        let before = self.end();
        let mut text = text;
        for part in parts {
            match *part {
                Part::Text(bytes) => {
                    let (head, rest) = text.split_at(bytes as usize);
                    self.push_text(record::ContentType::ApplicationData, head);
                    text = rest;
                }
                Part::Object { start, length } => {
                    let object = object.expect("invariant: parts of an object come with it");
                    self.lay_out(object, start, length, layout);
                }
            }
        }
        self.end_reply(object.map(|object| object.handle));
        self.end().since(before)
    }

    fn lay_out(&mut self, object: ObjectPlace, start: u64, length: u64, layout: Layout) {
        if !self.is_sealing() {
            self.push_object(object, start, length, u32::MAX);
            return;
        }
        let content = layout.content_bytes(&object);
        let small = SMALL_CONTENT_BYTES.min(content);
        let mut rest = (start, length);
        let mut push = |bytes: u64, content_bytes: u32| {
            let bytes = bytes.min(rest.1);
            self.push_object(object, rest.0, bytes, content_bytes);
            rest = (rest.0 + bytes, rest.1 - bytes);
        };
        // Small records of a device with small reads must each lie within one read.
        let must_align = content == small;
        let beyond_small = start % u64::from(small);
        if beyond_small > 0 && (must_align || length >= ALIGNED_LENGTH_MIN) {
            push(u64::from(small) - beyond_small, small);
        }
        if layout.window_bytes < SMALL_WINDOW_BYTES {
            push(SMALL_RECORDS_BYTES, small);
        }
        push(u64::MAX, content);
    }
}

#[cfg(test)]
mod tests {
    use http::Part;
    use tcp::StreamOffset;

    use super::{ALIGNED_LENGTH_MIN, Layout, SMALL_WINDOW_BYTES};
    use crate::stream_map::tests::{place, sealed_map};
    use crate::stream_map::{ObjectPlace, Source, StreamMap};

    const OPEN: Layout = Layout {
        frame_bytes: 65_463,
        window_bytes: SMALL_WINDOW_BYTES,
    };

    /// Start, content length and record size of each run of the object.
    fn runs(map: &StreamMap) -> Vec<(u64, u32)> {
        let run = |span: &crate::stream_map::Span| match &span.source {
            Source::Object { start, records, .. } => Some((
                *start,
                records
                    .as_ref()
                    .map_or(0, super::super::Records::content_bytes),
            )),
            Source::Text { .. } => None,
        };
        map.spans.iter().filter_map(run).collect()
    }

    fn laid_out(object: ObjectPlace, start: u64, length: u64, layout: Layout) -> Vec<(u64, u32)> {
        let mut map = sealed_map();
        let parts = [Part::Text(4), Part::Object { start, length }];
        let bytes = map.push_reply(b"head", &parts, Some(object), layout);
        assert_eq!(map.end(), StreamOffset(bytes));
        runs(&map)
    }

    #[test]
    fn an_open_window_gets_large_records_from_the_start() {
        assert_eq!(laid_out(place(1), 0, 300_000, OPEN), [(0, 15_360)]);
    }

    #[test]
    fn a_small_window_gets_small_records_first() {
        let layout = Layout {
            window_bytes: SMALL_WINDOW_BYTES - 1,
            ..OPEN
        };
        let runs = laid_out(place(1), 0, 300_000, layout);
        assert_eq!(runs, [(0, 4096), (61_440, 15_360)]);
        assert_eq!(laid_out(place(1), 0, 61_440, layout), [(0, 4096)]);
    }

    #[test]
    fn a_long_run_is_aligned_by_a_short_record() {
        let long = laid_out(place(1), 100, ALIGNED_LENGTH_MIN, OPEN);
        assert_eq!(long, [(100, 4096), (4096, 15_360)]);
        let short = laid_out(place(1), 100, ALIGNED_LENGTH_MIN - 1, OPEN);
        assert_eq!(short, [(100, 15_360)]);
    }

    #[test]
    fn a_record_fits_one_read_and_one_frame() {
        let object = |read_bytes_max| ObjectPlace {
            read_bytes_max,
            ..place(1)
        };
        assert_eq!(laid_out(object(19_456), 0, 99_999, OPEN), [(0, 15_360)]);
        assert_eq!(laid_out(object(19_455), 0, 99_999, OPEN), [(0, 4096)]);
        let unaligned = laid_out(object(4096), 1, 99_999, OPEN);
        assert_eq!(unaligned, [(1, 4096), (4096, 4096)]);
        let framed = |frame_bytes| Layout {
            frame_bytes,
            ..OPEN
        };
        assert_eq!(laid_out(place(1), 0, 99_999, framed(15_392)), [(0, 15_360)]);
        assert_eq!(laid_out(place(1), 0, 99_999, framed(15_391)), [(0, 4096)]);
    }

    #[test]
    fn without_tls_an_object_is_one_run() {
        let mut map = StreamMap::default();
        let parts = [
            Part::Text(4),
            Part::Object {
                start: 5,
                length: 99_999,
            },
        ];
        assert_eq!(
            map.push_reply(b"head", &parts, Some(place(1)), OPEN),
            100_003
        );
        assert_eq!(runs(&map), [(5, 0)]);
    }
}
