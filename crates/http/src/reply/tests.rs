//! Replies, whole: what a client would see on the wire, with the object's bytes filled in.

use proptest::prelude::*;

use super::*;
use crate::{Parsed, RANGES_MAX, parse_request};

const NOW: u64 = 1_700_000_000;
const OPTIONS: ReplyOptions = ReplyOptions {
    cors: false,
    unix_seconds_now: NOW,
    keep_alive: true,
};

fn object(size_bytes: u64) -> ObjectMeta {
    ObjectMeta {
        size_bytes,
        modified_unix_seconds: NOW - 3600,
        entity_tag: "\"5f-a\"".to_owned(),
        content_type: "video/mp4",
    }
}

/// The reply as bytes; byte `i` of the object is `i % 251`.
struct Wire {
    status: u16,
    close: bool,
    head: String,
    body: Vec<u8>,
}

impl Wire {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

fn assemble(made: Reply, text: &[u8], parts: &[Part]) -> Wire {
    let mut bytes = Vec::new();
    let mut rest = text;
    for part in parts {
        match *part {
            Part::Text(length) => {
                let (now, later) = rest.split_at(usize::try_from(length).unwrap());
                bytes.extend_from_slice(now);
                rest = later;
            }
            Part::Object { start, length } => {
                bytes.extend((start..start + length).map(|at| u8::try_from(at % 251).unwrap()));
            }
        }
    }
    assert!(rest.is_empty(), "text that no part covers");
    assert!(text.len() <= REPLY_TEXT_BYTES_MAX);
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap()
        + 4;
    let body = bytes.split_off(end);
    let head = String::from_utf8(bytes).unwrap();
    let status = head[9..12].parse().unwrap();
    assert_eq!(made.status.code(), status);
    Wire {
        status,
        close: made.close,
        head,
        body,
    }
}

fn ask_about(head: &str, object: &ObjectMeta, options: &ReplyOptions) -> Wire {
    let Parsed::Complete {
        request,
        head_bytes,
    } = parse_request(head.as_bytes())
    else {
        panic!("{head:?}: {:?}", parse_request(head.as_bytes()));
    };
    assert_eq!(head_bytes, head.len());
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = reply(&request, object, options, &mut text, &mut parts);
    assemble(made, &text, &parts)
}

fn ask(method: &str, fields: &str, size_bytes: u64) -> Wire {
    let head = format!("{method} /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    ask_about(&head, &object(size_bytes), &OPTIONS)
}

#[test]
fn a_whole_object() {
    let wire = ask("GET", "", 1000);
    assert_eq!(
        wire.head,
        "HTTP/1.1 200 OK\r\n\
         Server: Atlas\r\n\
         Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
         Connection: keep-alive\r\n\
         ETag: \"5f-a\"\r\n\
         Last-Modified: Tue, 14 Nov 2023 21:13:20 GMT\r\n\
         Accept-Ranges: bytes\r\n\
         Content-Type: video/mp4\r\n\
         Content-Length: 1000\r\n\r\n"
    );
    assert_eq!(
        (wire.status, wire.body.len(), wire.close),
        (200, 1000, false)
    );
}

#[test]
fn many_ranges_at_most() {
    let set: Vec<String> = (0..RANGES_MAX).map(|at| format!("{at}-{at}")).collect();
    let wire = ask("GET", &format!("Range: bytes={}\r\n", set.join(",")), 1000);
    assert_eq!(wire.status, 206);
    assert_eq!(
        wire.field("content-length"),
        Some(wire.body.len().to_string().as_str())
    );
}

#[test]
fn head_is_get_without_the_body() {
    for fields in ["", "If-Match: \"other\"\r\n", "If-None-Match: *\r\n"] {
        let (get, head) = (ask("GET", fields, 1000), ask("HEAD", fields, 1000));
        assert_eq!(get.head, head.head, "{fields}");
        assert!(head.body.is_empty());
    }
    // RFC 9110 s14.2: ranges are for GET.
    let head = ask("HEAD", "Range: bytes=0-0\r\n", 1000);
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some("1000"))
    );
}

#[test]
fn an_empty_object_has_no_object_part() {
    let wire = ask("GET", "Range: bytes=0-\r\n", 0);
    assert_eq!(
        (wire.status, wire.field("content-length")),
        (200, Some("0"))
    );
    assert!(wire.body.is_empty());
}

#[test]
fn one_range() {
    let wire = ask("GET", "Range: bytes=10-19\r\n", 1000);
    assert_eq!(wire.status, 206);
    assert_eq!(wire.field("content-range"), Some("bytes 10-19/1000"));
    assert_eq!(wire.field("content-length"), Some("10"));
    assert_eq!(wire.field("content-type"), Some("video/mp4"));
    assert_eq!(wire.field("etag"), Some("\"5f-a\""));
    assert_eq!(wire.body, (10..20).collect::<Vec<u8>>());
}

#[test]
fn several_ranges_as_multipart() {
    let wire = ask("GET", "Range: bytes=0-1,-2\r\n", 1000);
    assert_eq!(wire.status, 206);
    assert_eq!(wire.field("content-range"), None);
    let content_type = wire.field("content-type").unwrap();
    let boundary = content_type
        .strip_prefix("multipart/byteranges; boundary=")
        .unwrap();
    assert!(boundary.len() <= 70, "RFC 2046 s5.1.1");
    let mut expected = format!(
        "\r\n--{boundary}\r\nContent-Type: video/mp4\r\nContent-Range: bytes 0-1/1000\r\n\r\n"
    )
    .into_bytes();
    expected.extend_from_slice(&[0, 1]);
    expected.extend_from_slice(
        format!(
            "\r\n--{boundary}\r\nContent-Type: video/mp4\r\n\
             Content-Range: bytes 998-999/1000\r\n\r\n"
        )
        .as_bytes(),
    );
    expected.extend_from_slice(&[245, 246]);
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert_eq!(wire.body, expected);
    assert_eq!(
        wire.field("content-length"),
        Some(expected.len().to_string().as_str())
    );
    // The same bytes every time, and other bytes for another object.
    let again = ask("GET", "Range: bytes=0-1,-2\r\n", 1000);
    assert_eq!(again.body, wire.body);
    let other = ObjectMeta {
        entity_tag: "\"5f-b\"".to_owned(),
        ..object(1000)
    };
    assert_ne!(boundary_of(&other), boundary);
}

#[test]
fn no_range_satisfiable() {
    let wire = ask("GET", "Range: bytes=1000-\r\n", 1000);
    assert_eq!(wire.status, 416);
    assert_eq!(wire.field("content-range"), Some("bytes */1000"));
    assert_eq!(wire.body, b"416 Range Not Satisfiable\n");
    assert_eq!(wire.field("content-length"), Some("26"));
    assert!(!wire.close);
}

#[test]
fn if_range_guards_the_range() {
    for (if_range, status) in [("\"5f-a\"", 206), ("\"old\"", 200), ("W/\"5f-a\"", 200)] {
        let fields = format!("Range: bytes=0-0\r\nIf-Range: {if_range}\r\n");
        assert_eq!(ask("GET", &fields, 1000).status, status, "{if_range}");
    }
}

#[test]
fn conditions_come_before_ranges() {
    let wire = ask(
        "GET",
        "Range: bytes=5000-\r\nIf-None-Match: \"5f-a\"\r\n",
        1000,
    );
    assert_eq!(wire.status, 304);
    let wire = ask("GET", "Range: bytes=0-0\r\nIf-Match: \"old\"\r\n", 1000);
    assert_eq!(
        (wire.status, wire.body.as_slice()),
        (412, &b"412 Precondition Failed\n"[..])
    );
}

#[test]
fn not_modified_says_what_a_cache_needs() {
    let wire = ask("GET", "If-None-Match: \"5f-a\"\r\n", 1000);
    assert_eq!(wire.status, 304);
    assert_eq!(wire.field("etag"), Some("\"5f-a\""));
    assert_eq!(
        wire.field("last-modified"),
        Some("Tue, 14 Nov 2023 21:13:20 GMT")
    );
    assert_eq!(wire.field("date"), Some("Tue, 14 Nov 2023 22:13:20 GMT"));
    // A length here would be believed to be a body's by old clients.
    assert_eq!(
        (wire.field("content-length"), wire.field("content-type")),
        (None, None)
    );
    assert!(wire.body.is_empty());
}

#[test]
fn the_connection_closes_if_either_side_wants_it() {
    for (version, field, willing, close) in [
        ("1.1", "", true, false),
        ("1.1", "", false, true),
        ("1.1", "Connection: close\r\n", true, true),
        ("1.0", "", true, true),
        ("1.0", "Connection: keep-alive\r\n", true, false),
        ("1.0", "Connection: keep-alive\r\n", false, true),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: h\r\n{field}\r\n");
        let options = ReplyOptions {
            keep_alive: willing,
            ..OPTIONS
        };
        let wire = ask_about(&head, &object(1), &options);
        assert_eq!(wire.close, close, "{head} {willing}");
        let said = if close { "close" } else { "keep-alive" };
        assert_eq!(wire.field("connection"), Some(said));
    }
}

#[test]
fn an_object_from_the_future_is_dated_now() {
    let object = ObjectMeta {
        modified_unix_seconds: NOW + 10,
        ..object(1)
    };
    let head = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let wire = ask_about(head, &object, &OPTIONS);
    assert_eq!(wire.field("last-modified"), wire.field("date"));
    // And no time of any clock is too late to be written.
    let options = ReplyOptions {
        unix_seconds_now: u64::MAX,
        ..OPTIONS
    };
    let wire = ask_about(
        head,
        &ObjectMeta {
            modified_unix_seconds: u64::MAX,
            ..object
        },
        &options,
    );
    assert_eq!(wire.field("date"), Some("Fri, 31 Dec 9999 23:59:59 GMT"));
}

#[test]
fn cross_origin_reads_are_allowed_when_asked_for() {
    let cors = ReplyOptions {
        cors: true,
        ..OPTIONS
    };
    let get = "GET / HTTP/1.1\r\nHost: h\r\nOrigin: http://o\r\nRange: bytes=9-\r\n\r\n";
    for size_bytes in [5, 10] {
        let wire = ask_about(get, &object(size_bytes), &cors);
        assert_eq!(wire.field("access-control-allow-origin"), Some("*"));
        let exposed = wire.field("access-control-expose-headers").unwrap();
        assert!(exposed.contains("Content-Range") && exposed.contains("Content-Length"));
    }
    let wire = ask_about(get, &object(10), &OPTIONS);
    assert_eq!(wire.field("access-control-allow-origin"), None);
}

#[test]
fn preflights() {
    let cors = ReplyOptions {
        cors: true,
        ..OPTIONS
    };
    let preflight = "OPTIONS /a HTTP/1.1\r\nHost: h\r\nOrigin: http://o\r\n\
        Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: range\r\n\r\n";
    let wire = ask_about(preflight, &object(1), &cors);
    assert_eq!(wire.status, 204);
    assert_eq!(wire.field("access-control-allow-origin"), Some("*"));
    assert_eq!(
        wire.field("access-control-allow-methods"),
        Some("GET, HEAD, OPTIONS")
    );
    assert!(
        wire.field("access-control-allow-headers")
            .unwrap()
            .contains("Range")
    );
    assert_eq!(wire.field("content-length"), None);
    assert!(wire.body.is_empty() && !wire.close);

    let wire = ask_about(preflight, &object(1), &OPTIONS);
    assert_eq!((wire.status, wire.field("allow")), (405, Some("GET, HEAD")));
}

fn fail(status: Status, head_only: bool, close: bool, options: &ReplyOptions) -> Wire {
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = error_reply(status, head_only, close, options, &mut text, &mut parts);
    assemble(made, &text, &parts)
}

#[test]
fn every_error_says_so_in_its_body() {
    for status in Status::ALL.into_iter().filter(|status| status.is_error()) {
        for (head_only, close) in [(false, true), (true, false)] {
            let wire = fail(status, head_only, close, &OPTIONS);
            let body = format!("{}\n", status.line());
            assert_eq!(wire.status, status.code());
            assert_eq!(wire.close, close);
            assert_eq!(
                wire.field("content-length"),
                Some(body.len().to_string().as_str())
            );
            let sent = if head_only { "" } else { &body };
            assert_eq!(wire.body, sent.as_bytes());
            assert_eq!(
                wire.field("allow").is_some(),
                status == Status::MethodNotAllowed
            );
            assert_eq!(
                wire.field("retry-after").is_some(),
                status == Status::ServiceUnavailable
            );
        }
    }
    let cors = ReplyOptions {
        cors: true,
        ..OPTIONS
    };
    let wire = fail(Status::MethodNotAllowed, false, true, &cors);
    assert_eq!(wire.field("allow"), Some("GET, HEAD, OPTIONS"));
}

#[test]
#[should_panic(expected = "not an error")]
fn an_error_reply_is_for_errors() {
    let _wire = fail(Status::Ok, false, true, &OPTIONS);
}

#[test]
fn replies_follow_each_other_in_one_buffer() {
    let head = "GET /a HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2\r\n\r\n";
    let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
        panic!()
    };
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let _reply = reply(&request, &object(10), &OPTIONS, &mut text, &mut parts);
    }
    let half = u32::try_from(text.len() / 2).unwrap();
    let object = Part::Object {
        start: 1,
        length: 2,
    };
    assert_eq!(parts, [Part::Text(half), object, Part::Text(half), object]);
}

#[test]
fn the_longest_reply_stays_within_its_bound() {
    let object = ObjectMeta {
        size_bytes: i64::MAX.unsigned_abs(),
        modified_unix_seconds: NOW,
        entity_tag: format!("\"{}\"", "e".repeat(ENTITY_TAG_BYTES_MAX - 2)),
        content_type: "application/vnd.apple.mpegurl",
    };
    let ranges: Vec<String> = (0..u64::try_from(RANGES_MAX).unwrap())
        .map(|at| {
            format!(
                "{}-{}",
                object.size_bytes - 99 + at,
                object.size_bytes - 99 + at
            )
        })
        .collect();
    let head = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nRange: bytes={}\r\n\r\n",
        ranges.join(",")
    );
    let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
        panic!()
    };
    let options = ReplyOptions {
        cors: true,
        ..OPTIONS
    };
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = reply(&request, &object, &options, &mut text, &mut parts);
    assert_eq!(made.status, Status::PartialContent);
    assert_eq!(parts.len(), 2 * RANGES_MAX + 1);
    assert!(text.len() <= REPLY_TEXT_BYTES_MAX, "{}", text.len());
    // The bound is a bound, not a guess far off.
    assert!(text.len() > REPLY_TEXT_BYTES_MAX * 3 / 4, "{}", text.len());
}

proptest! {
    #[test]
    fn the_length_announced_is_the_length_sent(
        specs in prop::collection::vec((0..3000_u64, 0..300_u64), 0..20),
        size_bytes in 0..3000_u64,
        method in prop::sample::select(&["GET", "HEAD"][..]),
    ) {
        let set: Vec<String> =
            specs.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
        let wire = ask(method, &format!("Range: bytes={}\r\n", set.join(",")), size_bytes);
        let announced: usize = wire.field("content-length").unwrap().parse().unwrap();
        prop_assert_eq!(wire.body.len(), if method == "GET" { announced } else { 0 });
    }
}
