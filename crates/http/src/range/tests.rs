//! What nginx answers, as facts; and range arithmetic against a twin that counts byte by byte.

use proptest::prelude::*;

use super::*;

/// Object size, field, and what nginx 1.22.1 with `max_ranges 16` answered: the ranges it sent
/// with 206, or `whole` for 200, or 416. Recorded by asking it, not by reading it.
const FACTS: &[(u64, &str, &str)] = &[
    (1000, "bytes=0-0", "0-0"),
    (1000, "bytes=0-499", "0-499"),
    (1000, "bytes=500-999", "500-999"),
    (1000, "bytes=999-999", "999-999"),
    (1000, "bytes=999-", "999-999"),
    (1000, "bytes=0-", "0-999"),
    (1000, "bytes=0-999", "0-999"),
    (1000, "bytes=0-1000", "0-999"),
    (1000, "bytes=0-99999", "0-999"),
    (1000, "bytes=500-99999", "500-999"),
    (1000, "bytes=1000-", "416"),
    (1000, "bytes=1000-1000", "416"),
    (1000, "bytes=1000-2000", "416"),
    (1000, "bytes=99999-", "416"),
    (1000, "bytes=-1", "999-999"),
    (1000, "bytes=-500", "500-999"),
    (1000, "bytes=-999", "1-999"),
    (1000, "bytes=-1000", "0-999"),
    (1000, "bytes=-1001", "0-999"),
    (1000, "bytes=-99999", "0-999"),
    (1000, "bytes=-0", "416"),
    (1000, "bytes=5-3", "416"),
    (1000, "bytes=0-0,5-3", "0-0"),
    (1000, "bytes=5-3,0-0", "0-0"),
    (1000, "bytes=1-0", "416"),
    (1000, "bytes=0-0,-1", "0-0 999-999"),
    (1000, "bytes=0-0,2-2,4-4", "0-0 2-2 4-4"),
    (1000, "bytes=9-9,0-0", "9-9 0-0"),
    (1000, "bytes=0-9,5-14", "0-9 5-14"),
    (1000, "bytes=0-0,0-0", "0-0 0-0"),
    (1000, "bytes=0-999,0-0", "whole"),
    (1000, "bytes=0-499,500-999", "0-499 500-999"),
    (1000, "bytes=0-499,499-999", "whole"),
    (1000, "bytes=0-499,500-", "0-499 500-999"),
    (1000, "bytes=-500,0-499", "500-999 0-499"),
    (1000, "bytes=-500,0-500", "whole"),
    (1000, "bytes=0-,0-", "whole"),
    (1000, "bytes=0-0,1000-", "0-0"),
    (1000, "bytes=1000-,0-0", "0-0"),
    (1000, "bytes=1000-,2000-", "416"),
    (1000, "bytes=0-0,-0", "0-0"),
    (1000, "bytes=-0,-0", "416"),
    (1000, "bytes=0-0,-0,1-1", "0-0 1-1"),
    (1000, "bytes=", "whole"),
    (1000, "bytes=-", "416"),
    (1000, "bytes=,", "416"),
    (1000, "bytes=,0-0", "416"),
    (1000, "bytes=0-0,", "416"),
    (1000, "bytes=0-0,,1-1", "416"),
    (1000, "bytes=0", "416"),
    (1000, "bytes=0,1", "416"),
    (1000, "bytes=a-b", "416"),
    (1000, "bytes=0-a", "416"),
    (1000, "bytes=a-0", "416"),
    (1000, "bytes=0-0a", "416"),
    (1000, "bytes=0x1-2", "416"),
    (1000, "bytes=--1", "416"),
    (1000, "bytes=-1-", "416"),
    (1000, "bytes=0--1", "416"),
    (1000, "bytes=1-2-3", "416"),
    (1000, "bytes=+1-2", "416"),
    (1000, "bytes=0-+1", "416"),
    (1000, "bytes=0-0,x", "416"),
    (1000, "bytes=0-0;1-1", "416"),
    (1000, "bytes=*", "416"),
    (1000, "bytes=0-*", "416"),
    (1000, "bytes= 0-0", "0-0"),
    (1000, "bytes=0 -0", "0-0"),
    (1000, "bytes=0- 0", "0-0"),
    (1000, "bytes=0 - 0", "0-0"),
    (1000, "bytes=0-0 ,1-1", "0-0 1-1"),
    (1000, "bytes=0-0, 1-1", "0-0 1-1"),
    (1000, "bytes= -5", "995-999"),
    (1000, "bytes=- 5", "416"),
    (1000, "bytes= 5 - ,-1", "5-999 999-999"),
    (1000, "bytes=\t0-0", "416"),
    (1000, "bytes=0-0,\t1-1", "416"),
    (1000, "bytes=0\t-0", "416"),
    (1000, "bytes=0 0-1", "416"),
    (1000, "bytes=0-1 1", "416"),
    (1000, "bytes =0-0", "whole"),
    (1000, "bytes=0-0 x", "416"),
    (1000, "bytes= ,0-0", "416"),
    (1000, "bytes=0-0,- 1", "416"),
    (1000, "BYTES=0-0", "0-0"),
    (1000, "Bytes=0-0", "0-0"),
    (1000, "byte=0-0", "whole"),
    (1000, "bytes0-0", "whole"),
    (1000, "items=0-0", "whole"),
    (1000, "", "whole"),
    (1000, "bytes", "whole"),
    (1000, "bytes:0-0", "whole"),
    (1000, "bits=0-0", "whole"),
    (1000, "none", "whole"),
    (1000, "bytesx=0-0", "whole"),
    (1000, "=0-0", "whole"),
    (1000, "0-0", "whole"),
    (1000, "bytes=00-00", "0-0"),
    (1000, "bytes=0000000000000000000000000000000-1", "0-1"),
    (1000, "bytes=9223372036854775807-", "416"),
    (1000, "bytes=9223372036854775808-", "416"),
    (1000, "bytes=0-9223372036854775806", "0-999"),
    (1000, "bytes=0-9223372036854775807", "0-999"),
    (1000, "bytes=0-9223372036854775808", "416"),
    (1000, "bytes=-9223372036854775807", "0-999"),
    (1000, "bytes=-9223372036854775808", "416"),
    (1000, "bytes=18446744073709551616-", "416"),
    (1000, "bytes=0-18446744073709551615", "416"),
    (1000, "bytes=0-99999999999999999999999", "416"),
    (1000, "bytes=-99999999999999999999999", "416"),
    (1000, "bytes=1-9223372036854775807", "1-999"),
    (
        1000,
        "bytes=0-0,9223372036854775807-9223372036854775807",
        "0-0",
    ),
    (1000, "bytes=0-999,x", "416"),
    (1000, "bytes=0-,0-,x", "416"),
    (1000, "bytes=0-,0-,1000-", "whole"),
    (0, "bytes=0-0", "whole"),
    (0, "bytes=0-499", "whole"),
    (0, "bytes=500-999", "416"),
    (0, "bytes=0-", "whole"),
    (0, "bytes=-1", "whole"),
    (0, "bytes=-500", "whole"),
    (0, "bytes=-0", "whole"),
    (0, "bytes=5-3", "416"),
    (0, "bytes=5-3,0-0", "whole"),
    (0, "bytes=1-0", "416"),
    (0, "bytes=0-0,-1", "whole"),
    (0, "bytes=0-0,0-0", "whole"),
    (0, "bytes=0-499,500-", "whole"),
    (0, "bytes=1000-,0-0", "whole"),
    (0, "bytes=1000-,2000-", "416"),
    (0, "bytes=0-0,-0", "whole"),
    (0, "bytes=-0,-0", "whole"),
    (0, "bytes=", "whole"),
    (0, "bytes=-", "416"),
    (0, "bytes=0-0,", "whole"),
    (0, "bytes=a-b", "416"),
    (1, "bytes=0-0", "0-0"),
    (1, "bytes=0-499", "0-0"),
    (1, "bytes=500-999", "416"),
    (1, "bytes=0-", "0-0"),
    (1, "bytes=-1", "0-0"),
    (1, "bytes=-500", "0-0"),
    (1, "bytes=-0", "416"),
    (1, "bytes=5-3", "416"),
    (1, "bytes=5-3,0-0", "0-0"),
    (1, "bytes=1-0", "416"),
    (1, "bytes=0-0,-1", "whole"),
    (1, "bytes=0-0,0-0", "whole"),
    (1, "bytes=0-499,500-", "0-0"),
    (1, "bytes=1000-,0-0", "0-0"),
    (1, "bytes=1000-,2000-", "416"),
    (1, "bytes=0-0,-0", "0-0"),
    (1, "bytes=-0,-0", "416"),
    (1, "bytes=", "whole"),
    (1, "bytes=-", "416"),
    (1, "bytes=0-0,", "416"),
    (1, "bytes=a-b", "416"),
];

/// The selection in the notation of [`FACTS`].
fn describe(selection: &Selection) -> String {
    match selection {
        Selection::Whole => "whole".to_owned(),
        Selection::Unsatisfiable => "416".to_owned(),
        Selection::Ranges(ranges) => {
            let each =
                |range: &ByteRange| format!("{}-{}", range.start, range.start + range.length - 1);
            ranges
                .as_slice()
                .iter()
                .map(each)
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

#[test]
fn ranges_are_answered_as_by_nginx() {
    for &(size_bytes, field, expected) in FACTS {
        let selection = select(field.as_bytes(), size_bytes);
        assert_eq!(
            describe(&selection),
            expected,
            "{field:?} of {size_bytes} bytes"
        );
    }
}

#[test]
fn as_many_ranges_as_allowed_and_one_more() {
    let set = |count: usize, tail: &str| {
        let ranges: Vec<String> = (0..count).map(|at| format!("{at}-{at}")).collect();
        format!("bytes={}{tail}", ranges.join(","))
    };
    for (field, expected) in [
        (set(RANGES_MAX, ""), Some(RANGES_MAX)),
        (set(RANGES_MAX, ",1000-"), Some(RANGES_MAX)),
        (set(RANGES_MAX + 1, ""), None),
        // nginx gives up at the range too many, before it sees the error.
        (set(RANGES_MAX + 1, ",x"), None),
    ] {
        let count = match select(field.as_bytes(), 1000) {
            Selection::Ranges(ranges) => Some(ranges.as_slice().len()),
            Selection::Whole => None,
            Selection::Unsatisfiable => panic!("{field}"),
        };
        assert_eq!(count, expected, "{field}");
    }
}

#[test]
fn more_than_a_few_ranges_must_ascend_without_overlap() {
    for (field, is_served) in [
        ("bytes=9-9,7-7,5-5,3-3", true),
        ("bytes=9-9,7-7,5-5,3-3,1-1", false),
        ("bytes=0-2,1-3,2-4,3-5", true),
        ("bytes=0-2,1-3,2-4,3-5,4-6", false),
        ("bytes=0-0,1-1,2-2,3-3,4-4", true),
        ("bytes=0-0,1-1,2-2,3-3,3-4", false),
        ("bytes=0-0,1-1,2-2,3-3,-1", true),
        ("bytes=0-0,1-1,2-2,-1,3-3", false),
        // Ranges that select nothing are in nobody's way.
        ("bytes=0-0,1000-,1-1,5-3,2-2,3-3,-1", true),
    ] {
        let selection = select(field.as_bytes(), 1000);
        let expected = matches!(selection, Selection::Ranges(_));
        assert_eq!(expected, is_served, "{field}");
    }
}

#[test]
fn the_largest_objects() {
    let last = OFFSET_MAX - 1;
    assert_eq!(
        describe(&select(b"bytes=-1", OFFSET_MAX)),
        format!("{last}-{last}")
    );
    let field = format!("bytes={last}-{OFFSET_MAX}");
    assert_eq!(
        describe(&select(field.as_bytes(), OFFSET_MAX)),
        format!("{last}-{last}")
    );
    assert_eq!(
        describe(&select(b"bytes=0-", OFFSET_MAX)),
        format!("0-{last}")
    );
    // Larger ones cannot be; that their sums do not overflow is all that is asked.
    for size_bytes in [OFFSET_MAX, OFFSET_MAX + 1, u64::MAX] {
        assert_eq!(select(b"bytes=0-,0-,0-", size_bytes), Selection::Whole);
    }
}

fn any_spec() -> impl Strategy<Value = Spec> {
    prop_oneof![
        (0..40_u64).prop_map(Spec::From),
        (0..40_u64, 0..40_u64).prop_map(|(first, last)| Spec::Between(first, last)),
        (0..40_u64).prop_map(Spec::Suffix),
    ]
}

fn written(spec: Spec) -> String {
    match spec {
        Spec::From(first) => format!("{first}-"),
        Spec::Between(first, last) => format!("{first}-{last}"),
        Spec::Suffix(length) => format!("-{length}"),
    }
}

/// RFC 9110 s14.1.2 by asking of each byte whether it is selected.
fn bytes_selected(spec: Spec, size_bytes: u64) -> Vec<u64> {
    let is_selected = |at: &u64| match spec {
        Spec::From(first) => *at >= first,
        Spec::Between(first, last) => *at >= first && *at <= last,
        Spec::Suffix(length) => *at + length >= size_bytes,
    };
    (0..size_bytes).filter(is_selected).collect()
}

proptest! {
    #[test]
    fn ranges_are_what_a_byte_by_byte_twin_selects(
        specs in prop::collection::vec(any_spec(), 1..5),
        size_bytes in 1..30_u64,
    ) {
        let texts: Vec<String> = specs.iter().map(|&spec| written(spec)).collect();
        let field = format!("bytes={}", texts.join(","));
        let expected: Vec<Vec<u64>> = specs
            .iter()
            .map(|&spec| bytes_selected(spec, size_bytes))
            .filter(|bytes| !bytes.is_empty())
            .collect();
        match select(field.as_bytes(), size_bytes) {
            Selection::Whole => {
                let total = expected.iter().map(Vec::len).sum::<usize>() as u64;
                prop_assert!(total > size_bytes, "{field} of {size_bytes}");
            }
            Selection::Unsatisfiable => prop_assert!(expected.is_empty(), "{field}"),
            Selection::Ranges(ranges) => {
                let bytes = |range: &ByteRange| -> Vec<u64> {
                    (range.start..range.start + range.length).collect()
                };
                let actual: Vec<_> = ranges.as_slice().iter().map(bytes).collect();
                prop_assert_eq!(actual, expected, "{} of {}", field, size_bytes);
            }
        }
    }

    #[test]
    fn any_field_selects_within_the_object(
        field in "bytes=[-0-9, a\t]{0,40}|[ -~]{0,20}",
        size_bytes in prop_oneof![0..2000_u64, any::<u64>()],
    ) {
        if let Selection::Ranges(ranges) = select(field.as_bytes(), size_bytes) {
            for range in ranges.as_slice() {
                prop_assert!(range.length > 0);
                let end = range.start.checked_add(range.length);
                prop_assert!(end.is_some_and(|end| end <= size_bytes), "{field}");
            }
        }
    }
}
