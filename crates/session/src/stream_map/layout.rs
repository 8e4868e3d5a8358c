//! How an object is cut into records when it is queued.

use http::Part;

use super::{CONTENT_BYTES, LOSSY_CONTENT_BYTES, ObjectPlace, SMALL_CONTENT_BYTES, StreamMap};

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
pub(crate) const OVERHEAD_BYTES_MAX: u32 = 32;

/// The parameters of cutting an object into records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Payload bytes of the largest frame.
    pub(crate) frame_bytes: u64,
    /// The congestion window when the reply is queued.
    pub(crate) window_bytes: u64,
    /// Most content bytes of a record that the client takes.
    pub(crate) content_bytes_max: u32,
    /// The path loses then ([`tcp::Connection::has_lost`]).
    pub(crate) has_lost: bool,
}

impl Layout {
    /// Content bytes of a record of `object` while the window is large: one read and one frame can
    /// hold the whole record, and the client takes it.
    fn content_bytes(self, object: &ObjectPlace) -> u32 {
        let usual = self.usual_content_bytes(object);
        let limit = self.content_bytes_max;
        if usual <= limit {
            usual
        } else if object.read_bytes_max >= limit.saturating_add(object.block_bytes) {
            limit
        } else {
            // Each record must lie within one read, which ends where a block does.
            1 << limit.ilog2()
        }
    }

    /// The same for a client that takes records of any length.
    fn usual_content_bytes(self, object: &ObjectPlace) -> u32 {
        let content = if self.has_lost {
            LOSSY_CONTENT_BYTES
        } else {
            CONTENT_BYTES
        };
        let fits_frame = self.frame_bytes >= u64::from(content + OVERHEAD_BYTES_MAX);
        if fits_frame && object.read_bytes_max >= content.saturating_add(object.block_bytes) {
            content
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
            Part::Text(bytes) => u64::from(bytes.div_ceil(self.content_bytes_max)),
            // Full records and a last one, those for alignment, and the small ones of a small window.
            Part::Object { length, .. } => {
                let aligning = u64::from(SMALL_CONTENT_BYTES).div_ceil(small);
                length / u64::from(content) + 1 + aligning + SMALL_RECORDS_BYTES.div_ceil(small)
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
        self.last_reply = before;
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
        let alignment = u64::from(SMALL_CONTENT_BYTES.min(object.read_bytes_max));
        let beyond = start % alignment;
        if beyond > 0 && (must_align || length >= ALIGNED_LENGTH_MIN) {
            push(alignment - beyond, small);
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
        content_bytes_max: 16_384,
        has_lost: false,
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
    fn after_a_loss_records_are_three_blocks() {
        let lossy = Layout {
            has_lost: true,
            ..OPEN
        };
        assert_eq!(laid_out(place(1), 0, 300_000, lossy), [(0, 12_288)]);
        let object = |read_bytes_max| ObjectPlace {
            read_bytes_max,
            ..place(1)
        };
        let content_of = |read_bytes_max, frame_bytes| {
            let layout = Layout {
                frame_bytes,
                ..lossy
            };
            laid_out(object(read_bytes_max), 0, 99_999, layout)[0].1
        };
        assert_eq!(content_of(16_384, 12_320), 12_288);
        assert_eq!(content_of(16_383, 12_320), 4096);
        assert_eq!(content_of(16_384, 12_319), 4096);
    }

    #[test]
    fn no_record_is_longer_than_the_client_takes() {
        let limited = |content_bytes_max| Layout {
            content_bytes_max,
            ..OPEN
        };
        for (limit, content) in [
            (63, 63),
            (512, 512),
            (4095, 4095),
            (4097, 4097),
            (15_359, 15_359),
            (15_360, 15_360),
            (15_361, 15_360),
        ] {
            let layout = limited(limit);
            let small = content.min(4096);
            let starts = laid_out(place(1), 0, 300_000, layout);
            assert_eq!(starts, [(0, content)], "{limit}");
            let layout = Layout {
                window_bytes: 0,
                ..layout
            };
            let starts = laid_out(place(1), 0, 300_000, layout);
            let expected = [(0, small), (61_440, content)];
            assert_eq!(starts, expected, "{limit}");
        }
        // A run that begins anywhere is aligned to blocks by short records.
        let long = laid_out(place(1), 100, ALIGNED_LENGTH_MIN, limited(1000));
        assert_eq!(long, [(100, 1000), (4096, 1000)]);
        // Reads of one block: each record lies within one.
        let object = ObjectPlace {
            read_bytes_max: 4096,
            ..place(1)
        };
        assert_eq!(laid_out(object, 0, 99_999, limited(4095)), [(0, 2048)]);
        assert_eq!(laid_out(object, 0, 99_999, limited(511)), [(0, 256)]);
    }

    #[test]
    fn a_reply_has_no_more_records_than_was_said() {
        let parts = [
            Part::Text(4),
            Part::Object {
                start: 100,
                length: 1 << 21,
            },
        ];
        for content_bytes_max in [63, 512, 4096, 16_384] {
            for (window_bytes, has_lost) in [(0, true), (0, false), (SMALL_WINDOW_BYTES, false)] {
                let layout = Layout {
                    window_bytes,
                    content_bytes_max,
                    has_lost,
                    ..OPEN
                };
                let mut map = sealed_map();
                map.limit_content(content_bytes_max);
                let _ = map.push_reply(b"head", &parts, Some(place(1)), layout);
                let most = layout.records_max(&parts, Some(&place(1)));
                let records = map.next_number();
                assert!(
                    records <= most && most <= records + records / 2,
                    "{records} {most}"
                );
            }
        }
    }

    #[test]
    fn text_is_cut_into_records_that_the_client_takes() {
        let mut map = sealed_map();
        map.limit_content(512);
        let text = [7; 1025];
        let layout = Layout {
            content_bytes_max: 512,
            ..OPEN
        };
        let parts = [Part::Text(1025)];
        let bytes = map.push_reply(&text, &parts, None, layout);
        assert_eq!(map.next_number(), 3);
        assert_eq!(layout.records_max(&parts, None), 3);
        let lengths: Vec<u64> = map.spans.iter().map(|span| span.bytes).collect();
        let overhead = lengths[2] - 1;
        assert_eq!(lengths, [512 + overhead, 512 + overhead, 1 + overhead]);
        assert_eq!((bytes, map.replies()), (1025 + 3 * overhead, 1));
        assert_eq!(map.content_behind(StreamOffset(0))[0], 1025);
        let mut released = Vec::new();
        map.release(StreamOffset(bytes), &mut released);
        assert_eq!(map.replies(), 0);
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
