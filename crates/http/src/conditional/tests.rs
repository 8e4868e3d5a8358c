//! Conditions, alone and in the order of RFC 9110 s13.2.2.

use clock::UnixTime;

use super::*;

/// Sun, 06 Nov 1994 08:49:37 GMT: the RFC's own example (s5.6.7).
const MODIFIED: u64 = 784_111_777;
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const EXACTLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

const PROCEED: Verdict = Verdict::Proceed;
const FAILED: Verdict = Verdict::PreconditionFailed;

/// The same, half a second after it was written.
fn young() -> ObjectMeta {
    let object = object();
    let seen = object.modified;
    let seconds = seen.seconds + 1;
    ObjectMeta {
        seen: UnixTime { seconds, nanos: 0 },
        ..object
    }
}

/// The object's strong tag, and its tag while it is young.
const STRONG: &str = "\"2ebc98a1-1\"";
const WEAK: &str = "W/\"2ebc98a1.1dcd6500-1\"";

fn object() -> ObjectMeta {
    ObjectMeta {
        size_bytes: 1,
        modified: UnixTime {
            seconds: MODIFIED.cast_signed(),
            nanos: 500_000_000,
        },
        seen: UnixTime {
            seconds: MODIFIED.cast_signed() + 1,
            nanos: 500_000_000,
        },
        content_hash: None,
        content_type: None,
    }
}

/// If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since; empty is absent.
fn evaluate(object: &ObjectMeta, values: [&str; 4]) -> Verdict {
    let [
        if_match,
        if_unmodified_since,
        if_none_match,
        if_modified_since,
    ] = values.map(|value| (!value.is_empty()).then_some(value.as_bytes()));
    let conditions = Conditions {
        if_match,
        if_none_match,
        if_modified_since,
        if_unmodified_since,
        if_range: None,
    };
    conditions.evaluate(object, &Validators::of(object))
}

#[test]
fn the_order_of_evaluation() {
    let not_modified = Verdict::NotModified(Validators::of(&object()));
    let (yes, no) = ("\"2ebc98a1-1\"", "\"z\"");
    for (values, verdict) in [
        (["", "", "", ""], PROCEED),
        // Step 1: If-Match, and then step 2 is skipped.
        ([yes, "", "", ""], PROCEED),
        ([no, "", "", ""], FAILED),
        ([yes, BEFORE, "", ""], PROCEED),
        ([no, AFTER, yes, AFTER], FAILED),
        // Step 2: If-Unmodified-Since.
        (["", BEFORE, "", ""], FAILED),
        (["", EXACTLY, "", ""], PROCEED),
        (["", AFTER, "", ""], PROCEED),
        (["", "yesterday", "", ""], PROCEED),
        // Step 3: If-None-Match, and then step 4 is skipped.
        (["", "", yes, ""], not_modified),
        (["", "", no, ""], PROCEED),
        (["", "", no, AFTER], PROCEED),
        ([yes, "", yes, ""], not_modified),
        (["", BEFORE, yes, ""], FAILED),
        // Step 4: If-Modified-Since.
        (["", "", "", BEFORE], PROCEED),
        (["", "", "", EXACTLY], not_modified),
        (["", "", "", AFTER], not_modified),
        (["", "", "", "yesterday"], PROCEED),
        (["", EXACTLY, "", EXACTLY], not_modified),
    ] {
        assert_eq!(evaluate(&object(), values), verdict, "{values:?}");
    }
}

#[test]
fn lists_of_entity_tags() {
    let ours = Validators::of(&object()).tag;
    for (list, strong, weak) in [
        ("*", false, false),
        ("\"2ebc98a1-1\"", true, true),
        ("W/\"2ebc98a1-1\"", false, true),
        ("w/\"2ebc98a1-1\"", false, false),
        ("\"a,b\",\"2ebc98a1-1\"", true, true),
        ("\"a\" , W/\"b\",\t\"2ebc98a1-1\"", true, true),
        (",, \"2ebc98a1-1\",", true, true),
        ("W/\"2ebc98a1-1\", \"2ebc98a1-1\"", true, true),
        ("", false, false),
        ("\"x\"", false, false),
        ("\"2ebc98a1-1", false, false),
        ("2ebc98a1-1", false, false),
        ("\"a\", *", false, false),
        ("oops, \"2ebc98a1-1\"", false, false),
        ("\"", false, false),
        ("W/", false, false),
        ("\"2EBC98A1-1\"", false, false),
    ] {
        let matches = |comparison| any_tag_matches(list.as_bytes(), ours, comparison);
        assert_eq!(matches(Comparison::Strong), strong, "{list:?}");
        assert_eq!(matches(Comparison::Weak), weak, "{list:?}");
    }
}

#[test]
fn ranges_apply_to_the_very_same_object_only() {
    for (if_range, applies) in [
        ("\"2ebc98a1-1\"", true),
        ("\"z\"", false),
        ("W/\"2ebc98a1-1\"", false),
        ("\"a\", \"2ebc98a1-1\"", false),
        ("*", false),
        (EXACTLY, true),
        (BEFORE, false),
        (AFTER, false),
        ("nonsense", false),
        ("", false),
    ] {
        let conditions = Conditions {
            if_range: Some(if_range.as_bytes()),
            ..Default::default()
        };
        assert_eq!(
            conditions.range_applies(&Validators::of(&object())),
            applies,
            "{if_range:?}"
        );
    }
    assert!(Conditions::default().range_applies(&Validators::of(&object())));
}

#[test]
fn a_young_object_is_known_by_its_tag_of_the_moment_only() {
    let young = young();
    let not_modified = Verdict::NotModified(Validators::of(&young));
    for (values, verdict) in [
        (["", "", WEAK, ""], not_modified),
        (["", "", &WEAK["W/".len()..], ""], not_modified),
        (["", "", "*", ""], not_modified),
        (["", "", STRONG, ""], PROCEED),
        // RFC 9110 s13.1.1 compares strongly.
        ([WEAK, "", "", ""], FAILED),
        ([STRONG, "", "", ""], FAILED),
        (["*", "", "", ""], PROCEED),
        // A date names the second, in which there may be another content yet.
        (["", "", "", EXACTLY], PROCEED),
        (["", "", "", AFTER], PROCEED),
        (["", BEFORE, "", ""], FAILED),
        (["", EXACTLY, "", ""], PROCEED),
    ] {
        assert_eq!(evaluate(&young, values), verdict, "{values:?}");
    }
    for if_range in [WEAK, STRONG, &WEAK["W/".len()..], EXACTLY, AFTER] {
        let conditions = Conditions {
            if_range: Some(if_range.as_bytes()),
            ..Default::default()
        };
        let applies = conditions.range_applies(&Validators::of(&young));
        assert!(!applies, "{if_range:?}");
    }
}

#[test]
fn an_object_that_has_aged_is_still_known_by_the_tag_of_its_youth() {
    let (young, settled) = (young(), object());
    let as_then = Verdict::NotModified(Validators::of(&young));
    let as_now = Verdict::NotModified(Validators::of(&settled));
    let both = [WEAK, STRONG].join(", ");
    for (if_none_match, verdict) in [(WEAK, as_then), (STRONG, as_now), (&both, as_now)] {
        assert_eq!(evaluate(&settled, ["", "", if_none_match, ""]), verdict);
    }
    assert_eq!(evaluate(&settled, [WEAK, "", "", ""]), FAILED);
    // Another content of that size, written in the same second.
    let mut other = settled;
    other.modified.nanos -= 1;
    assert_eq!(evaluate(&other, ["", "", WEAK, ""]), PROCEED);
    for if_range in [WEAK, &WEAK["W/".len()..]] {
        let conditions = Conditions {
            if_range: Some(if_range.as_bytes()),
            ..Default::default()
        };
        assert!(!conditions.range_applies(&Validators::of(&other)));
    }
}

#[test]
fn an_object_without_validators_matches_anything_only() {
    let mut object = young();
    object.seen = object.modified;
    let none = Validators::default();
    assert_eq!(Validators::of(&object), none);
    for (values, verdict) in [
        (["", "", "*", ""], Verdict::NotModified(none)),
        (["", "", WEAK, ""], PROCEED),
        (["", "", STRONG, ""], PROCEED),
        (["", "", "", AFTER], PROCEED),
        ([STRONG, "", "", ""], FAILED),
    ] {
        assert_eq!(evaluate(&object, values), verdict, "{values:?}");
    }
}

#[test]
fn the_three_forms_of_a_date_and_what_is_none() {
    for (date, seconds) in [
        ("Sun, 06 Nov 1994 08:49:37 GMT", Some(MODIFIED)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", Some(MODIFIED)),
        ("Sun Nov  6 08:49:37 1994", Some(MODIFIED)),
        ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799)),
        ("Wed, 31 Dec 1969 23:59:59 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37", None),
        ("Sun, 31 Feb 1994 08:49:37 GMT", None),
        ("784111777", None),
        ("", None),
    ] {
        assert_eq!(unix_seconds_of(date.as_bytes()), seconds, "{date:?}");
    }
    assert_eq!(unix_seconds_of(b"\xff"), None);
}
