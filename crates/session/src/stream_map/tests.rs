//! The map against hand-made streams; the record layer's own sealing is tested in its room.

use std::rc::Rc;

use http::Part;
use proptest::prelude::*;
use record::{Algorithm, ContentType, Sealer, TrafficKey, Version};
use tcp::{StreamOffset, StreamRange};

use super::{ContentChanged, Layout, ObjectPlace, Sealing, Source, StreamMap};
use crate::{DeviceIndex, ObjectHandle};

/// Bytes a TLS 1.3 record is longer than its content.
const OVERHEAD: u64 = 22;

pub(crate) fn place(handle: u32) -> ObjectPlace {
    ObjectPlace {
        handle: ObjectHandle(handle),
        device: DeviceIndex::default(),
        block_bytes: 4096,
        read_bytes_max: 65_536,
    }
}

pub(crate) fn sealer(key: u8) -> Rc<Sealer> {
    let key = TrafficKey::new(Version::Tls13, Algorithm::Aes128Gcm, &[key; 16], [7; 12]);
    Rc::new(Sealer::new(&key.unwrap()))
}

/// A map whose stream is sealed from its start.
pub(crate) fn sealed_map() -> StreamMap {
    let mut map = StreamMap::default();
    map.seal_from_here(Sealing {
        sealer: sealer(1),
        next_number: 0,
        content_bytes_max: 16_384,
    });
    map
}

impl StreamMap {
    /// As for a client that takes no longer records.
    pub(crate) fn limit_content(&mut self, content_bytes_max: u32) {
        self.sealing.as_mut().unwrap().content_bytes_max = content_bytes_max;
    }
}

/// A head and `length` bytes of an object, one reply.
fn push(map: &mut StreamMap, head: &[u8], start: u64, length: u64, handle: u32) -> u64 {
    let before = map.end();
    map.push_text(ContentType::ApplicationData, head);
    map.push_object(place(handle), start, length, 1000);
    map.end_reply(Some(ObjectHandle(handle)));
    map.end().since(before)
}

fn range(start: u64, end: u64) -> StreamRange {
    StreamRange::new(StreamOffset(start), StreamOffset(end))
}

fn numbers(map: &StreamMap) -> Vec<u64> {
    let starts = map.spans.iter().map(|span| span.start);
    starts
        .filter_map(|start| map.record_number(start))
        .collect()
}

#[test]
fn runs_are_found_by_offset() {
    let mut map = StreamMap::default();
    assert_eq!(push(&mut map, b"head", 4096, 100, 1), 104);
    let text = map.find(StreamOffset(3)).unwrap();
    assert!(matches!(text.source, Source::Text { position: 0, .. }));
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

#[test]
fn records_are_numbered_in_stream_order() {
    let mut map = sealed_map();
    // One record of text, three of the object, one of text.
    assert_eq!(push(&mut map, b"head", 0, 2500, 1), 4 + 2500 + 4 * OVERHEAD);
    push(&mut map, b"head", 0, 0, 2);
    assert_eq!(numbers(&map), [0, 1, 4]);
    let second = StreamOffset(4 + OVERHEAD + 1000 + OVERHEAD);
    assert_eq!(map.record_number(second), Some(2));
    assert_eq!(map.record_number(second + 1021), Some(2));
    assert_eq!(map.record_number(second + 1022), Some(3));
}

#[test]
fn text_is_sealed_once_and_only_when_it_is_to_leave() {
    let mut map = sealed_map();
    push(&mut map, b"first", 0, 0, 1);
    push(&mut map, b"second", 0, 0, 2);
    let first = range(0, 5 + OVERHEAD);
    map.seal_text(first);
    let sealed = map.text_bytes(first).to_vec();
    assert_eq!(sealed[..5], [23, 3, 3, 0, 22]);
    assert_eq!(&map.text[27..38], b"\0\0\0\0\0second", "not yet sealed");
    map.seal_text(range(0, 5 + OVERHEAD + 1));
    assert_eq!(map.text_bytes(first), sealed, "not sealed again");
    assert_ne!(&map.text[32..38], b"second");
}

/// Seals the records of the object run that holds `from..to` over content of one byte.
fn seal(map: &mut StreamMap, from: u64, to: u64, byte: u8) -> Result<(u64, u64), ContentChanged> {
    let span = map.find(StreamOffset(from)).unwrap();
    let (start, bytes) = (span.start, span.bytes);
    let records = map.records_mut(StreamOffset(from)).unwrap();
    let run = records.run(start, bytes, from - start.0, to - start.0);
    let mut bytes = vec![byte; usize::try_from(run.bytes()).unwrap()];
    records.seal(&run, &mut bytes)
}

#[test]
fn a_record_sealed_again_must_be_the_same() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    let start = 4 + OVERHEAD;
    assert_eq!(seal(&mut map, start, start + 1022, 5), Ok((1, 0)));
    // The first again, the second for the first time: a part of each is wanted.
    assert_eq!(seal(&mut map, start + 1000, start + 1030, 5), Ok((1, 1)));
    assert_eq!(seal(&mut map, start, start + 1, 6), Err(ContentChanged));
    assert_eq!(seal(&mut map, start, start + 1, 5), Ok((0, 1)));
}

#[test]
fn tags_are_kept_until_their_records_are_acknowledged() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    let start = 4 + OVERHEAD;
    seal(&mut map, start, start + 2 * 1022, 5).unwrap();
    map.release(StreamOffset(start + 1021), &mut Vec::new());
    assert_eq!(seal(&mut map, start, start + 1, 6), Err(ContentChanged));
    map.release(StreamOffset(start + 1022), &mut Vec::new());
    assert_eq!(
        seal(&mut map, start, start + 1, 6),
        Ok((0, 0)),
        "nothing of an acknowledged record can leave"
    );
    assert_eq!(
        seal(&mut map, start + 1022, start + 1023, 6),
        Err(ContentChanged)
    );
}

#[test]
fn a_key_update_comes_before_the_first_unclaimed_record() {
    let start = 4 + OVERHEAD;
    let update = 5 + OVERHEAD;
    // Claimed up to, the key update's place, and the numbers of the runs.
    let cases: [(u64, u64, &[u64]); 6] = [
        (0, 0, &[0, 0, 1, 4]),
        (1, start, &[0, 1, 0, 3]),
        (start, start, &[0, 1, 0, 3]),
        (start + 1, start + 1022, &[0, 1, 2, 0, 2]),
        (start + 1022, start + 1022, &[0, 1, 2, 0, 2]),
        (
            start + 2 * 1022 + 1,
            start + 2500 + 3 * OVERHEAD,
            &[0, 1, 4, 0],
        ),
    ];
    for (claimed, place, expected) in cases {
        let mut map = sealed_map();
        push(&mut map, b"head", 0, 2500, 1);
        map.push_text(ContentType::Alert, b"end");
        let end = map.end();
        assert_eq!(
            map.rekey(StreamOffset(claimed), b"12345", sealer(2)),
            update
        );
        assert_eq!(map.end(), end + update, "claimed {claimed}");
        assert_eq!(numbers(&map), expected, "claimed {claimed}");
        let text = map.text_run(StreamOffset(place), StreamOffset(place + update));
        assert_eq!(text.bytes(), update, "claimed {claimed}");
        assert_eq!(map.text_bytes(text)[5..10], *b"12345");
        assert_eq!(
            map.next_number_at(map.spans.len()),
            expected[expected.len() - 1] + 1
        );
    }
}

#[test]
fn a_key_update_leaves_what_was_sealed_alone() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    let start = 4 + OVERHEAD;
    seal(&mut map, start, start + 1022, 5).unwrap();
    map.rekey(StreamOffset(start + 10), b"12345", sealer(2));
    assert_eq!(seal(&mut map, start, start + 1022, 5), Ok((0, 1)));
    let behind = start + 1022 + 5 + OVERHEAD;
    let span = map.find(StreamOffset(behind)).unwrap();
    assert!(matches!(span.source, Source::Object { start: 1000, .. }));
    assert_eq!(seal(&mut map, behind, behind + 1, 5), Ok((1, 0)));
    // A second one, right behind the first.
    map.rekey(StreamOffset(behind), b"12345", sealer(3));
    assert_eq!(numbers(&map), [0, 1, 2, 0, 0]);
}

#[test]
fn queued_handshake_records_keep_their_position() {
    let after_handshake = || {
        let mut map = StreamMap::default();
        map.push_verbatim(b"flight");
        map.push_verbatim(b"more");
        map.seal_from_here(Sealing {
            sealer: sealer(1),
            next_number: 1,
            content_bytes_max: 16_384,
        });
        push(&mut map, b"head", 0, 1500, 1);
        map
    };
    for claimed in [0, 3, 6, 10] {
        let mut map = after_handshake();
        let added = map.rekey(StreamOffset(claimed), b"new", sealer(2));
        assert_eq!(added, 3 + OVERHEAD);
        assert_eq!(numbers(&map), [1, 0, 1], "claimed {claimed}");
        assert_eq!(map.text_bytes(range(0, 10)), b"flightmore");
        assert_eq!(map.find(StreamOffset(10)).unwrap().bytes, added);

        assert!(map.is_rekeyed_behind(StreamOffset(claimed)));

        let mut map = after_handshake();
        assert!(!map.is_rekeyed_behind(StreamOffset(claimed)));
        map.truncate(StreamOffset(claimed), &mut Vec::new());
        assert_eq!(map.end(), StreamOffset(10), "claimed {claimed}");
        assert_eq!(map.text_bytes(range(0, 10)), b"flightmore");
        map.push_text(ContentType::Alert, b"no");
        assert_eq!(numbers(&map), [1], "claimed {claimed}");
    }
}

#[test]
fn truncation_ends_with_a_record_and_keeps_the_object_in_use() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    push(&mut map, b"head", 0, 2500, 2);
    let end = map.end();
    let mut released = Vec::new();
    let start = 4 + OVERHEAD;
    let dropped = map.truncate(StreamOffset(start + 1), &mut released);
    assert_eq!(map.end(), StreamOffset(start + 1022));
    assert_eq!(map.end() + dropped, end);
    assert_eq!((&released[..], map.replies()), (&[ObjectHandle(2)][..], 1));
    map.push_text(ContentType::Alert, b"no");
    assert_eq!(numbers(&map), [0, 1, 2]);
    map.release_all(&mut released);
    assert_eq!(released, [ObjectHandle(2), ObjectHandle(1)]);
    assert_eq!(map.replies(), 0);
}

#[test]
fn a_key_update_that_is_dropped_changes_no_key() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    let claimed = StreamOffset(4 + OVERHEAD + 1);
    let (old, new) = (Rc::clone(map.spans[0].sealer().unwrap()), sealer(2));
    map.rekey(claimed, b"new", Rc::clone(&new));
    assert!(map.is_rekeyed_behind(claimed));
    let mut kept = map.end();
    map.truncate(claimed, &mut Vec::new());
    assert!(map.end() < kept);
    kept = map.end();
    map.push_text(ContentType::Alert, b"no");
    let alert = map.find(kept).unwrap();
    assert!(Rc::ptr_eq(alert.sealer().unwrap(), &old));
    assert_eq!(numbers(&map), [0, 1, 2], "head, a record, the alert");
}

#[test]
fn everything_can_be_dropped() {
    let mut map = sealed_map();
    push(&mut map, b"head", 0, 2500, 1);
    let mut released = Vec::new();
    map.truncate(StreamOffset(0), &mut released);
    assert_eq!((map.end(), released.len()), (StreamOffset(0), 1));
    map.push_text(ContentType::Alert, b"no");
    assert_eq!(numbers(&map), [0]);
}

proptest! {
    /// Stream offsets, records and object offsets agree, however a stream was queued, cut and
    /// re-keyed: each record's content follows the last one's, and the runs have no gaps.
    #[test]
    fn stream_offsets_and_object_offsets_agree(
        replies in prop::collection::vec((1_usize..50, 0_u64..9000, 0_u64..5000), 1..5),
        claims in prop::collection::vec(0_u64..40_000, 0..4),
    ) {
        let mut map = sealed_map();
        for (handle, (head, start, length)) in (0..).zip(&replies) {
            push(&mut map, &vec![b'h'; *head], *start, *length, handle);
        }
        let mut claims = claims;
        claims.sort_unstable();
        for (key, claimed) in (2..).zip(&claims) {
            map.rekey(StreamOffset(*claimed), b"12345", sealer(key));
        }
        let mut at = StreamOffset(0);
        let mut content = vec![(u64::MAX, 0); replies.len()];
        for span in &map.spans {
            prop_assert_eq!(span.start, at);
            at = span.end();
            let Source::Object { object, start, records: Some(records) } = &span.source else {
                continue;
            };
            let count = records.count_in(span.bytes);
            let bytes = records.content_before(count, span.bytes);
            prop_assert_eq!(bytes + count * OVERHEAD, span.bytes);
            let run = records.run(span.start, span.bytes, 0, span.bytes);
            prop_assert_eq!(run.all_content_bytes(), bytes);
            prop_assert_eq!(run.end(), span.end());
            let (from, to) = &mut content[object.handle.0 as usize];
            if *from == u64::MAX {
                (*from, *to) = (*start, *start);
            }
            prop_assert_eq!(*to, *start);
            *to += bytes;
        }
        prop_assert_eq!(at, map.end());
        for ((_, start, length), (from, to)) in replies.iter().zip(&content) {
            if *length > 0 {
                prop_assert_eq!((*from, *to), (*start, start + length));
            }
        }
    }
}

/// As a reply is queued.
fn push_reply(map: &mut StreamMap, head: &[u8], length: u64, handle: u32) -> u64 {
    let parts = [
        Part::Text(u32::try_from(head.len()).unwrap()),
        Part::Object { start: 0, length },
    ];
    let layout = Layout {
        frame_bytes: 65_463,
        window_bytes: u64::MAX,
        content_bytes_max: map.content_bytes_max(),
        has_lost: false,
    };
    map.push_reply(head, &parts, Some(place(handle)), layout)
}

#[test]
fn a_reply_is_taken_back_and_another_takes_its_place() {
    for mut map in [StreamMap::default(), sealed_map()] {
        let mut released = Vec::new();
        let first = StreamOffset(push_reply(&mut map, b"first", 100, 1));
        let number = map.next_number();
        let all = push_reply(&mut map, b"second", 100_000, 2);
        assert_eq!(map.last_reply(), first);
        assert_eq!(map.take_back_reply(&mut released), Some(first));
        assert_eq!(released, [ObjectHandle(2)]);
        assert_eq!(
            (map.end(), map.next_number(), map.replies()),
            (first, number, 1)
        );
        assert_eq!(push_reply(&mut map, b"longer", 100_000, 3), all);
        let text = map.find(first).unwrap();
        let bytes = map.text_bytes(range(text.start.0, text.end().0));
        assert!(bytes.windows(6).any(|bytes| bytes == b"longer"));
        map.release_all(&mut released);
        assert_eq!(released, [2, 1, 3].map(ObjectHandle));
        assert!(map.text.is_empty());
    }
}

#[test]
fn a_reply_of_which_a_record_was_sealed_stays() {
    let mut released = Vec::new();
    let mut map = sealed_map();
    let end = push_reply(&mut map, b"head", 100, 1);
    let head = range(0, 4 + OVERHEAD);
    map.seal_text(head);
    assert_eq!(map.take_back_reply(&mut released), None, "the head");
    assert_eq!((map.end().0, map.replies()), (end, 1));

    let mut map = sealed_map();
    push_reply(&mut map, b"head", 100, 1);
    let (start, bytes) = (head.end, 100 + OVERHEAD);
    let records = map.records_mut(start).unwrap();
    let run = records.run(start, bytes, 0, bytes);
    let mut slot = vec![0; usize::try_from(run.bytes()).unwrap()];
    records.seal(&run, &mut slot).unwrap();
    assert_eq!(map.take_back_reply(&mut released), None, "the object");

    // The text of the reply before may be sealed.
    let mut map = sealed_map();
    push_reply(&mut map, b"head", 100, 1);
    map.seal_text(head);
    push_reply(&mut map, b"head", 100, 2);
    assert!(map.take_back_reply(&mut released).is_some());
    assert_eq!(released, [ObjectHandle(2)]);
}

#[test]
fn a_key_update_or_an_alert_in_or_behind_a_reply_keeps_it() {
    let mut released = Vec::new();
    let mut map = sealed_map();
    push_reply(&mut map, b"head", 100_000, 1);
    map.push_text(ContentType::Alert, &[1, 0]);
    assert_eq!(map.take_back_reply(&mut released), None);
    for claimed in [1, 30_000, 200_000] {
        let mut map = sealed_map();
        push_reply(&mut map, b"head", 100_000, 1);
        let claimed = StreamOffset(claimed).min(map.end());
        map.rekey(claimed, b"update", sealer(2));
        assert_eq!(map.take_back_reply(&mut released), None, "{claimed:?}");
    }
    // Before the reply it stays, and the next reply is sealed with its key.
    let mut map = sealed_map();
    push_reply(&mut map, b"head", 100, 1);
    let first = map.end();
    push_reply(&mut map, b"head", 100, 2);
    let added = map.rekey(first, b"update", sealer(2));
    assert_eq!(map.last_reply(), first + added);
    assert_eq!(map.take_back_reply(&mut released), Some(first + added));
    assert_eq!((released, map.next_number()), (vec![ObjectHandle(2)], 0));
    push_reply(&mut map, b"head", 100, 3);
    assert!(map.is_rekeyed_behind(StreamOffset(0)));
    assert!(!map.is_rekeyed_behind(first + added));
}

#[test]
fn the_handshakes_last_records_stay_before_a_reply_that_is_taken_back() {
    let mut map = StreamMap::default();
    map.push_verbatim(b"tickets");
    map.seal_from_here(Sealing {
        sealer: sealer(1),
        next_number: 2,
        content_bytes_max: 16_384,
    });
    push_reply(&mut map, b"head", 100, 1);
    let mut released = Vec::new();
    assert_eq!(map.take_back_reply(&mut released), Some(StreamOffset(7)));
    assert_eq!((map.next_number(), map.replies()), (2, 0));
    assert_eq!(map.text_bytes(range(0, 7)), b"tickets");
}
