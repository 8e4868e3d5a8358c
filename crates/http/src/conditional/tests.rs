//! Conditions, alone and in the order of RFC 9110 s13.2.2.

use super::*;

/// Sun, 06 Nov 1994 08:49:37 GMT: the RFC's own example (s5.6.7).
const MODIFIED: u64 = 784_111_777;
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const EXACTLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

const PROCEED: Verdict = Verdict::Proceed;
const NOT_MODIFIED: Verdict = Verdict::NotModified;
const FAILED: Verdict = Verdict::PreconditionFailed;

fn object() -> ObjectMeta {
    ObjectMeta {
        size_bytes: 1,
        modified_unix_seconds: MODIFIED,
        entity_tag: "\"x,y\"".to_owned(),
        content_type: None,
    }
}

/// If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since; empty is absent.
fn evaluate(values: [&str; 4]) -> Verdict {
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
    conditions.evaluate(&object())
}

#[test]
fn the_order_of_evaluation() {
    let (yes, no) = ("\"x,y\"", "\"z\"");
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
        (["", "", yes, ""], NOT_MODIFIED),
        (["", "", no, ""], PROCEED),
        (["", "", no, AFTER], PROCEED),
        ([yes, "", yes, ""], NOT_MODIFIED),
        (["", BEFORE, yes, ""], FAILED),
        // Step 4: If-Modified-Since.
        (["", "", "", BEFORE], PROCEED),
        (["", "", "", EXACTLY], NOT_MODIFIED),
        (["", "", "", AFTER], NOT_MODIFIED),
        (["", "", "", "yesterday"], PROCEED),
        (["", EXACTLY, "", EXACTLY], NOT_MODIFIED),
    ] {
        assert_eq!(evaluate(values), verdict, "{values:?}");
    }
}

#[test]
fn lists_of_entity_tags() {
    for (list, strong, weak) in [
        ("*", true, true),
        ("\"x,y\"", true, true),
        ("W/\"x,y\"", false, true),
        ("w/\"x,y\"", false, false),
        ("\"a\",\"x,y\"", true, true),
        ("\"a\" , W/\"b\",\t\"x,y\"", true, true),
        (",, \"x,y\",", true, true),
        ("W/\"x,y\", \"x,y\"", true, true),
        ("", false, false),
        ("\"x\"", false, false),
        ("\"x,y", false, false),
        ("x,y", false, false),
        ("\"a\", *", false, false),
        ("oops, \"x,y\"", false, false),
        ("\"", false, false),
        ("W/", false, false),
        ("\"X,Y\"", false, false),
    ] {
        let matches = |comparison| any_tag_matches(list.as_bytes(), &object(), comparison);
        assert_eq!(matches(Comparison::Strong), strong, "{list:?}");
        assert_eq!(matches(Comparison::Weak), weak, "{list:?}");
    }
}

#[test]
fn ranges_apply_to_the_very_same_object_only() {
    for (if_range, applies) in [
        ("\"x,y\"", true),
        ("\"z\"", false),
        ("W/\"x,y\"", false),
        ("\"a\", \"x,y\"", false),
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
        assert_eq!(conditions.range_applies(&object()), applies, "{if_range:?}");
    }
    assert!(Conditions::default().range_applies(&object()));
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
