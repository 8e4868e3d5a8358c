//! The read-sizing rule, each clause on both sides.

use http::Part;
use proptest::prelude::*;
use tcp::{Demand, StreamOffset, StreamRange};

use super::{FetchLimits, FetchPlan, plan};
use crate::stream_map::tests::{place, sealed_map};
use crate::stream_map::{Layout, ObjectPlace, RECORDS_PER_FETCH_MAX, StreamMap};
use crate::{DeviceIndex, ObjectHandle};

const LIMITS: FetchLimits = FetchLimits {
    frame_bytes: 65_463,
    slot_bytes: 65_536,
    ahead_bytes: 0,
    is_prompt: false,
    is_in_blocks: false,
    packet_bytes: 0,
};
const LAYOUT: Layout = Layout {
    frame_bytes: LIMITS.frame_bytes,
    window_bytes: 1 << 20,
    content_bytes_max: 16_384,
    has_lost: false,
};
const HEAD: u64 = 300;

fn stream(start: u64, length: u64, block_bytes: u32) -> StreamMap {
    let object = ObjectPlace {
        handle: ObjectHandle(0),
        device: DeviceIndex::default(),
        block_bytes,
        read_bytes_max: 1 << 20,
    };
    let mut map = StreamMap::default();
    let text = Part::Text(u32::try_from(HEAD).unwrap());
    let parts = [text, Part::Object { start, length }];
    let head = vec![b'h'; usize::try_from(HEAD).unwrap()];
    map.push_reply(&head, &parts, Some(object), LAYOUT);
    map
}

fn demand(start: u64, end: u64) -> Demand {
    Demand {
        range: StreamRange::new(StreamOffset(start), StreamOffset(end)),
        is_retransmission: false,
        outstanding_bytes: 0,
        window_bytes: 1 << 20,
        quantum_bytes: u64::MAX,
    }
}

fn planned(stream: &StreamMap, demand: &Demand) -> FetchPlan {
    plan(demand, stream, LIMITS, None).unwrap()
}

#[test]
fn the_head_travels_with_the_first_blocks() {
    let stream = stream(0, 307_200, 4096);
    let first = planned(&stream, &demand(0, 300_000));
    assert_eq!(first.range.bytes(), HEAD + 61_440);
    let read = first.read.unwrap();
    assert_eq!(
        (read.offset_bytes, read.length_bytes, read.skip_bytes),
        (0, 61_440, 0)
    );
    assert_eq!(read.stream_start, StreamOffset(HEAD));
}

#[test]
fn three_hundred_kilobytes_are_five_reads() {
    let stream = stream(0, 307_200, 4096);
    let (mut at, mut reads) = (0, 0);
    while at < HEAD + 307_200 {
        let fetch = planned(&stream, &demand(at, HEAD + 307_200));
        assert_eq!(
            fetch.read.map(|read| read.skip_bytes),
            Some(0),
            "no block is read twice"
        );
        at = fetch.range.end.0;
        reads += 1;
    }
    assert_eq!(reads, 5);
}

#[test]
fn an_unaligned_start_reads_its_block_and_ends_aligned() {
    let stream = stream(5000, 200_000, 4096);
    let fetch = planned(&stream, &demand(HEAD, HEAD + 100_000));
    let read = fetch.read.unwrap();
    assert_eq!((read.offset_bytes, read.skip_bytes), (4096, 904));
    assert_eq!((5000 + fetch.range.bytes()) % 4096, 0);
    assert_eq!(read.length_bytes, 65_536);
}

#[test]
fn small_credit_is_used_to_the_byte() {
    let stream = stream(0, 200_000, 4096);
    let fetch = planned(&stream, &demand(HEAD, HEAD + 1448));
    assert_eq!(fetch.range.bytes(), 1448);
    assert_eq!(fetch.read.unwrap().length_bytes, 4096);
    // 4095 bytes are an eighth of 32,760 and more.
    let aligned = planned(&stream, &demand(HEAD, HEAD + 32_768 + 4095));
    assert_eq!(aligned.range.bytes(), 32_768);
    let kept = planned(&stream, &demand(HEAD, HEAD + 24_576 + 4095));
    assert_eq!(kept.range.bytes(), 24_576 + 4095);
}

#[test]
fn a_burst_of_pacing_ends_aligned_if_that_leaves_two_blocks() {
    let planned = |start, bytes, quantum_bytes| {
        let stream = stream(start, 200_000, 4096);
        let wanted = Demand {
            quantum_bytes,
            ..demand(HEAD, HEAD + bytes)
        };
        planned(&stream, &wanted).range.bytes()
    };
    // Eight segments, of which two blocks remain.
    assert_eq!(planned(0, 11_584, 11_584), 8192);
    // Credit and not pacing limits it.
    assert_eq!(planned(0, 11_584, 11_585), 11_584);
    // One block would be left.
    assert_eq!(planned(0, 8191, 8191), 8191);
    // From 96 bytes before the end of a block: two blocks and more would be left, and less than two.
    assert_eq!(planned(4000, 96 + 8192 + 2000, 96 + 8192 + 2000), 96 + 8192);
    assert_eq!(planned(4000, 8191, 8191), 8191);
}

#[test]
fn what_credit_limits_ends_aligned_while_a_busy_worker_sends_to_a_path_that_loses() {
    let stream = stream(0, 200_000, 4096);
    let planned = |bytes, is_in_blocks| {
        let limits = FetchLimits {
            is_in_blocks,
            ..LIMITS
        };
        let fetch = plan(&demand(HEAD, HEAD + bytes), &stream, limits, None).unwrap();
        fetch.range.bytes()
    };
    assert_eq!(planned(11_584, true), 8192);
    assert_eq!(planned(11_584, false), 11_584);
    assert_eq!(planned(8191, true), 8191, "one block would be left");
}

#[test]
fn a_burst_of_a_path_that_loses_is_sent_whole_and_its_last_block_kept_if_as_much_is_of_use() {
    let stream = stream(0, 200_000, 512);
    let wanted = Demand {
        quantum_bytes: 2896,
        ..demand(HEAD, HEAD + 2896)
    };
    let planned = |ahead_bytes, is_prompt| {
        let limits = FetchLimits {
            ahead_bytes,
            is_prompt,
            ..LIMITS
        };
        let fetch = plan(&wanted, &stream, limits, None).unwrap();
        let read = fetch.read.unwrap();
        let kept_bytes = read.end.since(fetch.range.end);
        (fetch.range.bytes(), read.length_bytes, kept_bytes)
    };
    // Two packets end 336 bytes into a block, which is read and kept; the next burst begins with the rest of it.
    assert_eq!(planned(2896, true), (2896, 3072, 176));
    assert_eq!(planned(2 * 2896 - 1, true), (2896, 3072, 176));
    // Twice as much is of use: the read ends with the block in which that ends.
    assert_eq!(planned(2 * 2896, true), (2896, 6144, 3248));
    assert_eq!(planned(2 * 2896, false), (2896, 6144, 3248));
    // Less is of use than the burst, nothing may be kept, or the path does not lose: whole blocks are sent, of which
    // the last packet is short.
    assert_eq!(planned(2895, true), (2560, 2560, 0));
    assert_eq!(planned(0, true), (2560, 2560, 0));
    assert_eq!(planned(2 * 2896 - 1, false), (2560, 2560, 0));
}

#[test]
fn small_credit_waits_only_while_something_is_outstanding() {
    let stream = stream(0, 400_000, 4096);
    let mut wanted = demand(HEAD, HEAD + 20_000);
    assert!(plan(&wanted, &stream, LIMITS, None).is_some());
    wanted.outstanding_bytes = 1;
    assert!(plan(&wanted, &stream, LIMITS, None).is_none());
    wanted.is_retransmission = true;
    assert!(
        plan(&wanted, &stream, LIMITS, None).is_some(),
        "a lost range never waits"
    );
    wanted.is_retransmission = false;
    let prompt = FetchLimits {
        is_prompt: true,
        ..LIMITS
    };
    assert!(plan(&wanted, &stream, prompt, None).is_some());
    wanted.window_bytes = 60_000;
    assert!(
        plan(&wanted, &stream, LIMITS, None).is_some(),
        "a third of the window is enough"
    );
    wanted.window_bytes = 60_003;
    assert!(plan(&wanted, &stream, LIMITS, None).is_none());
    let plenty = |bytes| Demand {
        outstanding_bytes: 1,
        window_bytes: 1 << 20,
        ..demand(HEAD, HEAD + bytes)
    };
    assert!(
        plan(
            &plenty(LIMITS.worthwhile_bytes() - 1),
            &stream,
            LIMITS,
            None
        )
        .is_none()
    );
    assert!(plan(&plenty(LIMITS.worthwhile_bytes()), &stream, LIMITS, None).is_some());
}

#[test]
fn a_pacing_quantum_is_enough() {
    let stream = stream(0, 400_000, 4096);
    let mut wanted = Demand {
        outstanding_bytes: 1,
        quantum_bytes: 20_000,
        ..demand(HEAD, HEAD + 20_000)
    };
    assert!(plan(&wanted, &stream, LIMITS, None).is_some());
    wanted.quantum_bytes = 20_001;
    assert!(plan(&wanted, &stream, LIMITS, None).is_none());
}

#[test]
fn the_end_of_an_object_never_waits() {
    let stream = stream(0, 100, 4096);
    let mut wanted = demand(HEAD, HEAD + 100);
    wanted.outstanding_bytes = 1;
    let fetch = planned(&stream, &wanted);
    assert_eq!(fetch.range.bytes(), 100);
    wanted.range = StreamRange::new(StreamOffset(HEAD), StreamOffset(HEAD + 99));
    assert!(plan(&wanted, &stream, LIMITS, None).is_none());
}

#[test]
fn text_alone_needs_no_read() {
    let stream = stream(0, 100, 4096);
    let fetch = planned(&stream, &demand(10, 200));
    assert_eq!((fetch.range.bytes(), fetch.read), (190, None));
}

proptest! {
    #[test]
    fn fetches_cover_the_stream_with_reads_that_fit(
        start in 0u64..20_000,
        length in 1u64..400_000,
        shift in 9u32..=16,
        frame_bytes in 1400u64..70_000,
        credits in proptest::collection::vec(1u64..100_000, 1..50),
    ) {
        let block = 1u32 << shift;
        let stream = stream(start, length, block);
        let limits = FetchLimits { frame_bytes, ..LIMITS };
        let end = HEAD + length;
        let mut at = 0;
        for credit in credits.into_iter().chain(std::iter::repeat(u64::MAX / 2)) {
            if at == end {
                break;
            }
            let wanted = demand(at, end.min(at.saturating_add(credit)));
            let fetch = plan(&wanted, &stream, limits, None).unwrap();
            prop_assert_eq!(fetch.range.start.0, at);
            prop_assert!(fetch.range.end <= wanted.range.end);
            prop_assert!(fetch.range.bytes() <= frame_bytes);
            if let Some(read) = fetch.read {
                let block = u64::from(block);
                prop_assert_eq!(read.offset_bytes % block, 0);
                prop_assert_eq!(u64::from(read.length_bytes) % block, 0);
                prop_assert!(read.length_bytes <= 65_536);
                let object_bytes = fetch.range.end.since(read.stream_start);
                let first = start + read.stream_start.0 - HEAD;
                prop_assert_eq!(read.offset_bytes + u64::from(read.skip_bytes), first);
                prop_assert!(u64::from(read.skip_bytes) + object_bytes
                    <= u64::from(read.length_bytes));
            }
            at = fetch.range.end.0;
        }
    }
}

/// A sealed stream: a head of its own record, then `length` bytes of an object in large records.
fn sealed_stream(length: u64) -> StreamMap {
    sealed_stream_as(length, LAYOUT)
}

fn sealed_stream_as(length: u64, layout: Layout) -> StreamMap {
    let mut map = sealed_map();
    let object = ObjectPlace {
        read_bytes_max: 65_536,
        ..place(0)
    };
    let text = Part::Text(u32::try_from(HEAD).unwrap());
    let parts = [text, Part::Object { start: 0, length }];
    let head = vec![b'h'; usize::try_from(HEAD).unwrap()];
    map.push_reply(&head, &parts, Some(object), layout);
    map
}

/// Stream bytes of the head, and of a large record.
const SEALED_HEAD: u64 = HEAD + 22;
const RECORD: u64 = 15_360 + 22;

#[test]
fn four_records_are_fifteen_blocks_and_fill_a_frame() {
    let stream = sealed_stream(307_200);
    let end = stream.end().0;
    let (mut at, mut reads) = (0, 0);
    while at < end {
        let fetch = planned(&stream, &demand(at, end));
        let read = fetch.read.unwrap();
        assert_eq!((read.skip_bytes, read.length_bytes), (0, 61_440));
        assert_eq!(read.records.unwrap().count, 4);
        at = fetch.range.end.0;
        reads += 1;
    }
    assert_eq!(reads, 5);
}

#[test]
fn records_after_a_loss_share_no_block_however_few_a_fetch_takes() {
    let read_bytes = |has_lost, credit| {
        let layout = Layout { has_lost, ..LAYOUT };
        let stream = sealed_stream_as(245_760, layout);
        let end = stream.end().0;
        let (mut at, mut bytes) = (0, 0);
        while at < end {
            let fetch = planned(&stream, &demand(at, end.min(at + credit)));
            bytes += fetch.read.map_or(0, |read| read.length_bytes);
            at = fetch.range.end.0;
        }
        bytes
    };
    for credit in [16_000, 26_000, 65_463] {
        assert_eq!(read_bytes(true, credit), 245_760, "{credit}");
    }
    assert!(read_bytes(false, 16_000) > 245_760 * 11 / 10);
}

#[test]
fn new_data_ends_with_a_record_if_one_fits() {
    let stream = sealed_stream(307_200);
    let busy = |credit| Demand {
        outstanding_bytes: 1,
        window_bytes: 2 * RECORD,
        ..demand(SEALED_HEAD, SEALED_HEAD + credit)
    };
    let one = planned(&stream, &busy(2 * RECORD - 1));
    assert_eq!(one.range.bytes(), RECORD);
    assert_eq!(one.read.unwrap().length_bytes, 16_384);
    assert_eq!(planned(&stream, &busy(RECORD)).range.bytes(), RECORD);
    assert!(
        plan(&busy(RECORD - 1), &stream, LIMITS, None).is_none(),
        "waits for a whole one"
    );
}

#[test]
fn a_partial_record_is_sent_if_waiting_would_not_help() {
    let stream = sealed_stream(307_200);
    let idle = demand(SEALED_HEAD + 100, SEALED_HEAD + 3000);
    let narrow = Demand {
        outstanding_bytes: 1,
        window_bytes: 2 * RECORD - 1,
        ..demand(SEALED_HEAD, SEALED_HEAD + 10_254)
    };
    let lost = Demand {
        is_retransmission: true,
        outstanding_bytes: 1,
        ..demand(SEALED_HEAD + RECORD - 10, SEALED_HEAD + RECORD + 10)
    };
    for (demand, records, read_bytes) in [(idle, 1, 16_384), (narrow, 1, 16_384), (lost, 2, 32_768)]
    {
        let fetch = planned(&stream, &demand);
        assert_eq!(fetch.range, demand.range);
        let read = fetch.read.unwrap();
        assert_eq!(
            (read.records.unwrap().count, read.offset_bytes),
            (records, 0)
        );
        assert_eq!(read.length_bytes, read_bytes, "the whole records are read");
        assert_eq!(read.records.unwrap().start, StreamOffset(SEALED_HEAD));
    }
}

#[test]
fn the_head_does_not_wait_for_the_first_record() {
    let stream = sealed_stream(307_200);
    let demand = Demand {
        outstanding_bytes: 1,
        ..demand(0, SEALED_HEAD + 1000)
    };
    let fetch = planned(&stream, &demand);
    assert_eq!((fetch.range.bytes(), fetch.read), (SEALED_HEAD, None));
}

proptest! {
    /// Whatever the credit, each byte of a sealed stream is fetched once and in order, its records
    /// lie in the read, and the read in a slot.
    #[test]
    fn sealed_fetches_cover_the_stream(
        start in 0_u64..10_000,
        length in 1_u64..400_000,
        window_bytes in 3_000_u64..1_000_000,
        read_bytes_max in prop::sample::select(vec![4096_u32, 8192, 16_384, 65_536]),
        credits in prop::collection::vec(1_u64..200_000, 1..8),
        has_lost in any::<bool>(),
    ) {
        let mut stream = sealed_map();
        let object = ObjectPlace { read_bytes_max, ..place(0) };
        let parts = [Part::Text(3), Part::Object { start, length }];
        let layout = Layout { window_bytes, has_lost, ..LAYOUT };
        stream.push_reply(b"abc", &parts, Some(object), layout);
        let (mut at, end) = (0, stream.end().0);
        for credit in credits.iter().cycle() {
            let demand = Demand { window_bytes, ..demand(at, end.min(at + credit)) };
            let fetch = planned(&stream, &demand);
            prop_assert_eq!(fetch.range.start.0, at);
            prop_assert!(fetch.range.bytes() > 0 && fetch.range.end <= demand.range.end);
            if let Some(read) = fetch.read {
                prop_assert!(read.length_bytes <= read_bytes_max);
                prop_assert_eq!(read.offset_bytes % 4096, 0);
                let run = read.records.unwrap();
                let held = u64::from(read.length_bytes - read.skip_bytes);
                prop_assert!(run.all_content_bytes() <= held);
                prop_assert!(run.start <= read.stream_start && run.end() >= fetch.range.end);
                prop_assert!(run.count <= RECORDS_PER_FETCH_MAX);
            }
            at = fetch.range.end.0;
            if at == end {
                break;
            }
        }
        prop_assert_eq!(at, end);
    }
}
