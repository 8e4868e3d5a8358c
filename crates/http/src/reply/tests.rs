//! Replies, whole: what a client would see on the wire, with the object's bytes filled in.

use proptest::prelude::*;

use std::sync::LazyLock;

use clock::UnixTime;

use super::*;
use crate::{CONTENT_TYPE_BYTES_MAX, Parsed, parse_request};

const NOW: u64 = 1_700_000_000;

static PLAIN: LazyLock<ReplyConfig> = LazyLock::new(ReplyConfig::default);
static CORS: LazyLock<ReplyConfig> = LazyLock::new(|| ReplyConfig {
    cors: Cors::AnyOrigin,
    ..ReplyConfig::default()
});
static OPTIONS: LazyLock<ReplyOptions<'_>> = LazyLock::new(|| with(&PLAIN));

/// What a configuration comes to, at [`NOW`].
fn with(config: &ReplyConfig) -> ReplyOptions<'_> {
    ReplyOptions {
        config,
        unix_seconds_now: NOW,
        keep_alive: true,
        is_secure: false,
        origin: None,
        is_private: false,
    }
}

/// A configuration with these fields added.
fn adding(fields: &[&str]) -> ReplyConfig {
    let mut config = ReplyConfig::default();
    for field in fields {
        config.extra_fields.push(field).unwrap();
    }
    config
}

fn at(unix_seconds: u64, nanos: u32) -> UnixTime {
    let seconds = unix_seconds.cast_signed();
    UnixTime { seconds, nanos }
}

fn object(size_bytes: u64) -> ObjectMeta {
    ObjectMeta {
        size_bytes,
        modified: at(NOW - 3600, 5),
        seen: at(NOW, 5),
        content_hash: None,
        content_type: None,
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

fn ask_about(head: &str, object: &ObjectMeta, options: &ReplyOptions<'_>) -> Wire {
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
    let head = format!("{method} /a.mp4 HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
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
         ETag: \"6553e2f0-3e8\"\r\n\
         Last-Modified: Tue, 14 Nov 2023 21:13:20 GMT\r\n\
         Cache-Control: public, max-age=3600\r\n\
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
    assert_eq!(wire.field("etag"), Some("\"6553e2f0-3e8\""));
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
        modified: at(NOW - 3600, 6),
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
    for (if_range, status) in [
        ("\"6553e2f0-3e8\"", 206),
        ("\"old\"", 200),
        ("W/\"6553e2f0-3e8\"", 200),
    ] {
        let fields = format!("Range: bytes=0-0\r\nIf-Range: {if_range}\r\n");
        assert_eq!(ask("GET", &fields, 1000).status, status, "{if_range}");
    }
}

#[test]
fn conditions_come_before_ranges() {
    let wire = ask(
        "GET",
        "Range: bytes=5000-\r\nIf-None-Match: \"6553e2f0-3e8\"\r\n",
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
    let wire = ask("GET", "If-None-Match: \"6553e2f0-3e8\"\r\n", 1000);
    assert_eq!(wire.status, 304);
    assert_eq!(wire.field("etag"), Some("\"6553e2f0-3e8\""));
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
            ..*OPTIONS
        };
        let wire = ask_about(&head, &object(1), &options);
        assert_eq!(wire.close, close, "{head} {willing}");
        let said = if close { "close" } else { "keep-alive" };
        assert_eq!(wire.field("connection"), Some(said));
    }
}

#[test]
fn an_object_from_the_future_has_no_last_modified() {
    let head = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    // A second after it was written the reply's own date is set back.
    for (ahead, is_said) in [(0, true), (1, false), (1 << 40, false)] {
        let object = ObjectMeta {
            modified: at(NOW + ahead, 5),
            seen: at(NOW + ahead + 1, 5),
            ..object(1000)
        };
        let wire = ask_about(head, &object, &OPTIONS);
        assert_eq!(wire.field("last-modified").is_some(), is_said, "{ahead}");
        assert!(wire.field("etag").is_some_and(|tag| !tag.starts_with("W/")));
    }
    // And no time of any clock is too late to be written.
    let object = ObjectMeta {
        modified: at(i64::MAX.cast_unsigned() - 1, 0),
        seen: at(i64::MAX.cast_unsigned(), 0),
        ..object(1)
    };
    let options = ReplyOptions {
        unix_seconds_now: u64::MAX,
        ..*OPTIONS
    };
    let wire = ask_about(head, &object, &options);
    assert_eq!(wire.field("date"), Some("Fri, 31 Dec 9999 23:59:59 GMT"));
    assert_eq!(wire.field("last-modified"), wire.field("date"));
}

#[test]
fn validators_do_not_follow_the_clock() {
    let head = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let said = |unix_seconds_now| {
        let options = ReplyOptions {
            unix_seconds_now,
            ..*OPTIONS
        };
        let wire = ask_about(head, &object(1), &options);
        let field = |name| wire.field(name).map(str::to_owned);
        (field("date"), field("etag"), field("last-modified"))
    };
    let (date, tag, modified) = said(NOW);
    for later in [NOW + 1, NOW + 20 * 365 * 86_400] {
        let (date_then, tag_then, modified_then) = said(later);
        assert_ne!(date_then, date);
        assert_eq!((tag_then, modified_then), (tag.clone(), modified.clone()));
    }
    // Years before the object was made it has no date that may be said, but the same tag.
    let (_, tag_then, modified_then) = said(NOW - 20 * 365 * 86_400);
    assert_eq!((tag_then, modified_then), (tag, None));
}

#[test]
fn cross_origin_reads_are_allowed_when_asked_for() {
    let cors = with(&CORS);
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
fn a_page_of_a_listed_origin_may_read_replies_and_no_other() {
    let origins = [
        "https://a.example".to_owned(),
        "https://b.example".to_owned(),
    ];
    let config = ReplyConfig {
        cors: Cors::Origins(crate::Origins::new(&origins, true).unwrap()),
        ..ReplyConfig::default()
    };
    let get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for (origin, allowed) in [
        (Some("https://b.example"), Some("https://b.example")),
        (Some("https://c.example"), None),
        (None, None),
    ] {
        let options = ReplyOptions {
            origin: origin.map(str::as_bytes),
            ..with(&config)
        };
        let wire = ask_about(get, &object(5), &options);
        assert_eq!(wire.field("access-control-allow-origin"), allowed);
        let credentials = allowed.map(|_| "true");
        assert_eq!(wire.field("access-control-allow-credentials"), credentials);
        assert_eq!(wire.field("vary"), Some("Origin"));
        let is_exposed = wire.field("access-control-expose-headers").is_some();
        assert_eq!(is_exposed, allowed.is_some());
    }
}

#[test]
fn a_redirect_says_where_to_and_keeps_to_the_length_of_a_target() {
    let head = b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let Parsed::Complete { request, .. } = parse_request(head) else {
        panic!("a whole head");
    };
    for (bytes, status) in [(TARGET_BYTES_MAX, 308), (TARGET_BYTES_MAX + 1, 414)] {
        let location = "x".repeat(bytes);
        let (mut text, mut parts) = (Vec::new(), Vec::new());
        let made = redirect_reply(
            Status::PermanentRedirect,
            &location,
            &request,
            &OPTIONS,
            &mut text,
            &mut parts,
        );
        let wire = assemble(made, &text, &parts);
        assert_eq!(wire.status, status);
        let said = wire.field("location");
        assert_eq!(said, (status == 308).then_some(location.as_str()));
    }
}

#[test]
fn fields_for_other_origins_are_in_errors_and_preflights_too() {
    let of_operator = adding(&[
        "Access-Control-Allow-Origin: https://a.example",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Expose-Headers: X-Viewer",
        "Access-Control-Max-Age: 60",
        "X-Viewer: 7",
    ]);
    let both = ReplyConfig {
        cors: Cors::AnyOrigin,
        ..of_operator.clone()
    };
    let get = "GET / HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\n\r\n";
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    for config in [&of_operator, &both] {
        let found = ask_about(get, &object(5), &with(config));
        let missing = {
            text.clear();
            let _ = error_reply(
                Status::NotFound,
                false,
                false,
                &with(config),
                &mut text,
                &mut parts,
            );
            String::from_utf8(text.clone()).unwrap()
        };
        let preflight = preflight("range", config);
        assert_eq!(preflight.status, 200);
        assert_eq!(
            preflight.field("access-control-allow-methods"),
            Some("GET, HEAD, OPTIONS")
        );
        assert_eq!(
            preflight.field("access-control-allow-headers"),
            Some("range")
        );
        let own = if config.cors != Cors::Off {
            "Accept-Ranges, Content-Length, Content-Range, Date, ETag, "
        } else {
            ""
        };
        for (name, value) in [
            ("Access-Control-Allow-Origin", "https://a.example"),
            ("Access-Control-Allow-Credentials", "true"),
            ("Access-Control-Expose-Headers", &format!("{own}X-Viewer")),
            ("Access-Control-Max-Age", "60"),
        ] {
            let line = format!("\r\n{name}: {value}\r\n");
            assert!(missing.contains(&line), "{missing}");
            for wire in [&found, &preflight] {
                assert_eq!(wire.field(&name.to_ascii_lowercase()), Some(value));
            }
            for head in [&missing, &found.head, &preflight.head] {
                assert_eq!(head.matches(&format!("{name}:")).count(), 1, "{head}");
            }
        }
        assert!(!missing.contains("X-Viewer: 7"), "{missing}");
    }
}

#[test]
fn strict_transport_security_goes_out_over_tls_only() {
    let config = adding(&["Strict-Transport-Security: max-age=1", "X: y"]);
    let get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    for is_secure in [false, true] {
        let options = ReplyOptions {
            is_secure,
            ..with(&config)
        };
        let wire = ask_about(get, &object(5), &options);
        let said = wire.field("strict-transport-security");
        assert_eq!(said, is_secure.then_some("max-age=1"));
        assert_eq!(wire.field("x"), Some("y"));
        let (mut text, mut parts) = (Vec::new(), Vec::new());
        let Parsed::Complete { request, .. } = parse_request(get.as_bytes()) else {
            panic!("a whole head");
        };
        let _ = directory_reply(&request, &options, &mut text, &mut parts);
        let redirect = String::from_utf8(text).unwrap();
        assert_eq!(
            redirect.contains("Strict-Transport"),
            is_secure,
            "{redirect}"
        );
    }
}

/// A preflight for `/a` that asks to send these fields; empty: none.
fn preflight(headers: &str, config: &ReplyConfig) -> Wire {
    let headers = match headers {
        "" => String::new(),
        names => format!("Access-Control-Request-Headers: {names}\r\n"),
    };
    let head = format!(
        "OPTIONS /a HTTP/1.1\r\nHost: h\r\nOrigin: http://o\r\n\
         Access-Control-Request-Method: GET\r\n{headers}\r\n"
    );
    ask_about(&head, &object(1), &with(config))
}

#[test]
fn preflights() {
    let wire = preflight("range", &CORS);
    assert_eq!(wire.status, 200);
    assert_eq!(wire.field("access-control-allow-origin"), Some("*"));
    assert_eq!(
        wire.field("access-control-allow-methods"),
        Some("GET, HEAD, OPTIONS")
    );
    assert_eq!(wire.field("access-control-max-age"), Some("86400"));
    assert_eq!(
        wire.field("vary"),
        Some("Access-Control-Request-Method, Access-Control-Request-Headers")
    );
    assert_eq!(wire.field("content-length"), Some("0"));
    assert!(wire.body.is_empty() && !wire.close);

    let wire = preflight("range", &PLAIN);
    assert_eq!((wire.status, wire.field("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn an_options_request_that_is_no_preflight_is_told_the_methods() {
    let head = "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n";
    let wire = ask_about(head, &object(1), &with(&CORS));
    assert_eq!(
        (wire.status, wire.field("allow")),
        (200, Some("GET, HEAD, OPTIONS"))
    );
    assert_eq!(wire.field("access-control-allow-methods"), None);
    assert_eq!(wire.field("access-control-allow-headers"), None);
}

#[test]
fn a_preflight_is_granted_the_fields_it_asks_for() {
    let longest = "x".repeat(PREFLIGHT_HEADERS_BYTES_MAX);
    let cmcd = "cmcd-object,cmcd-request,cmcd-session,cmcd-status";
    for names in ["range", cmcd, "a, b ,\tc", "X!#$%&'*+-.^_`|~", &longest] {
        let wire = preflight(names, &CORS);
        let granted = wire.field("access-control-allow-headers");
        assert_eq!(granted, Some(names));
    }
    let too_long = format!("{longest}x");
    for names in [
        "", "a b", "a,,b", ",", "a,", "a;b", "a(b)", "\u{e9}", &too_long,
    ] {
        let wire = preflight(names, &CORS);
        let granted = wire.field("access-control-allow-headers");
        assert_eq!(
            (wire.status, granted),
            (200, Some(ALLOW_HEADERS)),
            "{names:?}"
        );
    }
}

#[test]
fn a_directory_without_its_slash_is_redirected() {
    for (target, location) in [
        ("/a", "/a/"),
        ("/a/b?c=d&e", "/a/b/?c=d&e"),
        ("/a?", "/a/?"),
        ("/a#f", "/a/"),
        ("//evil.example/a", "/evil.example/a/"),
        ("/a%20b%3f%23%25", "/a%20b%3F%23%25/"),
        ("/caf\u{e9}?\u{e9}", "/caf%C3%A9/?%C3%A9"),
        ("/a:b@c;d=e,f!$&'()*+~", "/a:b@c;d=e,f!$&'()*+~/"),
        ("/%22%3Cx%3E", "/%22%3Cx%3E/"),
        ("http://h/a?b", "/a/?b"),
    ] {
        let wires = ["GET", "HEAD"].map(|method| {
            let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            redirect(&head, &OPTIONS)
        });
        let [get, head] = &wires;
        assert_eq!(get.status, 301, "{target}");
        assert_eq!(get.field("location"), Some(location), "{target}");
        assert_eq!(get.body, b"301 Moved Permanently\n");
        assert_eq!(get.field("content-length"), Some("22"));
        assert!(!get.close);
        assert_eq!(head.head, get.head);
        assert!(head.body.is_empty());
    }
}

#[test]
fn the_longest_redirect_and_one_byte_more() {
    let head = |bytes: usize| {
        let path = "d".repeat(bytes - "/?q".len());
        format!("GET /{path}?q HTTP/1.1\r\nHost: h\r\n\r\n")
    };
    // The slash makes it one byte longer than what was asked for.
    let wire = redirect(&head(TARGET_BYTES_MAX - 1), &OPTIONS);
    assert_eq!(
        (wire.status, wire.field("location").map(str::len)),
        (301, Some(TARGET_BYTES_MAX))
    );
    assert_eq!(redirect(&head(TARGET_BYTES_MAX), &OPTIONS).status, 414);
}

fn redirect(head: &str, options: &ReplyOptions<'_>) -> Wire {
    let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
        panic!("{head:?}: {:?}", parse_request(head.as_bytes()));
    };
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = directory_reply(&request, options, &mut text, &mut parts);
    assemble(made, &text, &parts)
}

#[test]
fn a_content_type_that_was_stored_comes_before_that_of_the_name() {
    for (stored, sent) in [
        (None, "video/mp4"),
        (Some("application/dash+xml"), "application/dash+xml"),
        (Some("text/vtt"), "text/vtt; charset=utf-8"),
        (Some("no type"), "video/mp4"),
        (Some(""), "video/mp4"),
        (Some("a/b\r\nX: y"), "video/mp4"),
    ] {
        let object = ObjectMeta {
            content_type: stored.map(Into::into),
            ..object(1)
        };
        let wire = ask_about(
            "GET /film.mp4 HTTP/1.1\r\nHost: h\r\n\r\n",
            &object,
            &OPTIONS,
        );
        assert_eq!(wire.field("content-type"), Some(sent), "{stored:?}");
    }
}

#[test]
fn cache_control_is_sent_by_content_type_unless_it_is_off() {
    let said = |path: &str, config: &ReplyConfig| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let wire = ask_about(&head, &object(1), &with(config));
        wire.field("cache-control").map(str::to_owned)
    };
    let off = ReplyConfig {
        cache_control: false,
        ..ReplyConfig::default()
    };
    for (path, by_default) in [
        ("/a.m3u8", Some("no-cache")),
        ("/a.ts", Some("public, max-age=3600")),
        ("/", None),
    ] {
        assert_eq!(said(path, &PLAIN).as_deref(), by_default, "{path}");
        assert_eq!(said(path, &off), None, "{path}");
        let own = adding(&["cache-control: max-age=1"]);
        assert_eq!(said(path, &own).as_deref(), Some("max-age=1"), "{path}");
    }
}

#[test]
fn a_private_reply_is_for_no_shared_cache_unless_the_operator_says_otherwise() {
    let said = |path: &str, config: &ReplyConfig, field: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{field}\r\n");
        let options = ReplyOptions {
            is_private: true,
            ..with(config)
        };
        let wire = ask_about(&head, &object(1), &options);
        wire.field("cache-control").map(str::to_owned)
    };
    let off = ReplyConfig {
        cache_control: false,
        ..ReplyConfig::default()
    };
    let own = adding(&["cache-control: max-age=1"]);
    for (path, by_default) in [
        ("/a.m3u8", "private, no-cache"),
        ("/a.ts", "private, max-age=3600"),
        ("/a.png", "private"),
    ] {
        for field in ["", "Range: bytes=0-0\r\n", "If-None-Match: *\r\n"] {
            assert_eq!(
                said(path, &PLAIN, field).as_deref(),
                Some(by_default),
                "{path} {field}"
            );
        }
        assert_eq!(said(path, &off, ""), None, "{path}");
        assert_eq!(said(path, &own, "").as_deref(), Some("max-age=1"), "{path}");
    }
}

#[test]
fn media_may_be_kept_for_as_long_as_they_have_been_unchanged() {
    const YEARS: u64 = 10 * 365 * 86_400;
    let said = |path: &str, modified: UnixTime| {
        let object = ObjectMeta {
            modified,
            ..object(1)
        };
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let wire = ask_about(&head, &object, &OPTIONS);
        wire.field("cache-control").map(str::to_owned)
    };
    // It is seen 5 ns behind the second.
    for (modified, seconds) in [
        (at(NOW + YEARS, 0), 1),
        (at(NOW, 6), 1),
        (at(NOW, 5), 1),
        (at(NOW - 1, 6), 1),
        (at(NOW - 1, 5), 1),
        (at(NOW - 2, 6), 1),
        (at(NOW - 2, 5), 2),
        (at(NOW - 3599, 5), 3599),
        (at(NOW - 3600, 6), 3599),
        (at(NOW - 3600, 5), 3600),
        (at(NOW - YEARS, 5), 3600),
    ] {
        let expected = format!("public, max-age={seconds}");
        assert_eq!(said("/a.m4s", modified), Some(expected), "{modified:?}");
        assert_eq!(said("/a.mpd", modified).as_deref(), Some("no-cache"));
        assert_eq!(said("/a", modified), None);
    }
    let hashed = ObjectMeta {
        modified: at(NOW - 2, 5),
        content_hash: Some([0xa5; 16]),
        ..object(1)
    };
    let wire = ask_about("GET /a.ts HTTP/1.1\r\nHost: h\r\n\r\n", &hashed, &OPTIONS);
    assert_eq!(wire.field("cache-control"), Some("public, max-age=2"));
    assert_eq!(
        wire.field("etag"),
        Some(&*format!("\"{}\"", "a5".repeat(16)))
    );
}

/// What a client does that asks for a file again and again while it is changed.
#[test]
fn two_contents_of_one_size_within_a_second_are_told_apart() {
    let ask = |object: &ObjectMeta, fields: &str| {
        let head = format!("GET /a.mp4 HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        ask_about(&head, object, &OPTIONS)
    };
    let seen_at = |modified, seen| ObjectMeta {
        modified,
        seen,
        ..object(1000)
    };
    let (first, second) = (at(NOW, 200_000_000), at(NOW, 700_000_000));
    let before = ask(&seen_at(first, at(NOW, 500_000_000)), "");
    let tag = before.field("etag").unwrap();
    assert!(tag.starts_with("W/"), "{tag}");
    assert_eq!(before.field("last-modified"), None);
    // The second content, while it is young and when it is not.
    for seen in [at(NOW, 900_000_000), at(NOW + 9, 0)] {
        let object = seen_at(second, seen);
        assert_eq!(
            ask(&object, &format!("If-None-Match: {tag}\r\n")).status,
            200
        );
        let part = format!("Range: bytes=10-\r\nIf-Range: {tag}\r\n");
        let wire = ask(&object, &part);
        assert_eq!((wire.status, wire.body.len()), (200, 1000));
        assert_ne!(wire.field("etag"), Some(tag));
    }
    // The first, which was not changed after all.
    let aged = seen_at(first, at(NOW + 9, 0));
    let wire = ask(&aged, &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((wire.status, wire.field("etag")), (304, Some(tag)));
    assert_eq!(wire.field("last-modified"), None);
    let wire = ask(&aged, &format!("Range: bytes=10-\r\nIf-Range: {tag}\r\n"));
    assert_eq!(wire.status, 200);
    let strong = wire.field("etag").unwrap();
    let wire = ask(
        &aged,
        &format!("Range: bytes=10-\r\nIf-Range: {strong}\r\n"),
    );
    assert_eq!((wire.status, wire.body.len()), (206, 990));
}

#[test]
fn added_fields_are_on_every_reply_that_succeeds() {
    let config = adding(&["X-One: 1", "X-Two: a, b"]);
    let options = with(&config);
    let head = |fields: &str| format!("GET /a.mp4 HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    for (fields, status) in [
        ("", 200),
        ("Range: bytes=0-1\r\n", 206),
        ("Range: bytes=0-1,5-6\r\n", 206),
        ("If-None-Match: *\r\n", 304),
        ("Range: bytes=99-\r\n", 416),
        ("If-Match: \"other\"\r\n", 412),
    ] {
        let wire = ask_about(&head(fields), &object(10), &options);
        assert_eq!(wire.status, status);
        let is_added = status < 400;
        let said = |name| wire.field(name);
        assert_eq!(said("x-one"), is_added.then_some("1"), "{status}");
        assert_eq!(said("x-two"), is_added.then_some("a, b"), "{status}");
        assert_eq!(
            said("cache-control"),
            is_added.then_some("public, max-age=3600"),
            "{status}"
        );
    }
    assert_eq!(redirect(&head(""), &options).field("x-one"), Some("1"));
}

#[test]
fn the_type_is_that_of_the_object_looked_up() {
    let mut own = ReplyConfig::default();
    own.types.insert("xyz", "text/x-own").unwrap();
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/a.mp4/", "text/html; charset=utf-8"),
        ("/a.mp4", "video/mp4"),
        ("/a.mp4?x.html", "video/mp4"),
        ("/a.XYZ", "text/x-own; charset=utf-8"),
        ("/a", "application/octet-stream"),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let wire = ask_about(&head, &object(1), &with(&own));
        assert_eq!(wire.field("content-type"), Some(content_type), "{path}");
    }
}

fn fail(status: Status, head_only: bool, close: bool, options: &ReplyOptions<'_>) -> Wire {
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
                matches!(status, Status::ServiceUnavailable | Status::TooManyRequests)
            );
        }
    }
    let cors = with(&CORS);
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

/// As many bytes of added fields as there may be.
fn longest_config() -> ReplyConfig {
    let name = "X: \r\n".len();
    let field = format!("X: {}", "v".repeat(EXTRA_FIELDS_BYTES_MAX - name));
    let mut config = ReplyConfig {
        cors: Cors::AnyOrigin,
        ..adding(&[&field])
    };
    let content_type = format!(
        "text/{}",
        "t".repeat(CONTENT_TYPE_BYTES_MAX - "text/".len())
    );
    config.types.insert("t", &content_type).unwrap();
    config
}

#[test]
fn the_longest_replies_stay_within_their_bound() {
    let config = longest_config();
    let object = ObjectMeta {
        size_bytes: i64::MAX.unsigned_abs(),
        // Of all tags with a date beside them, the longest.
        modified: UnixTime {
            seconds: -1,
            nanos: 0,
        },
        seen: at(NOW, 0),
        content_hash: None,
        content_type: None,
    };
    let ranges: Vec<String> = (0..u64::try_from(RANGES_MAX).unwrap())
        .map(|at| {
            let first = object.size_bytes - 99 + at;
            format!("{first}-{first}")
        })
        .collect();
    let head = format!(
        "GET /a.t HTTP/1.1\r\nHost: h\r\nRange: bytes={}\r\n\r\n",
        ranges.join(",")
    );
    let wire = ask_about(&head, &object, &with(&config));
    assert_eq!(wire.status, 206);
    let delimiters = wire.body.len() - RANGES_MAX;
    assert!(
        delimiters <= RANGES_MAX * DELIMITER_BYTES_MAX,
        "{delimiters}"
    );
    let fixed = wire.head.len() - EXTRA_FIELDS_BYTES_MAX;
    assert!(fixed <= HEAD_FIXED_BYTES_MAX, "{fixed}");

    let head = format!(
        "GET /{} HTTP/1.1\r\nHost: h\r\n\r\n",
        "d".repeat(TARGET_BYTES_MAX - 2)
    );
    let wire = redirect(&head, &with(&config));
    let bytes = wire.head.len() + wire.body.len();
    assert!(bytes <= REPLY_TEXT_BYTES_MAX, "{bytes}");
    // The bound is a bound, not a guess far off.
    assert!(bytes > REPLY_TEXT_BYTES_MAX * 3 / 4, "{bytes}");
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
