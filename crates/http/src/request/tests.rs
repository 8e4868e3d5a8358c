//! Heads accepted and refused, each rule on both sides of its limit; and every cut of each.

use proptest::prelude::*;

use super::*;
use crate::authority::samples::{RIGHT, WRONG, WRONG_LITERALS};

fn accept(head: &[u8]) -> Request<'_> {
    match parse_request(head) {
        Parsed::Complete {
            request,
            head_bytes,
        } => {
            assert_eq!(head_bytes, head.len(), "{}", head.escape_ascii());
            request
        }
        other => panic!("{}: {other:?}", head.escape_ascii()),
    }
}

fn refuse(head: &[u8]) -> Status {
    match parse_request(head) {
        Parsed::Refused(refusal) => refusal.status,
        other => panic!("{}: {other:?}", head.escape_ascii()),
    }
}

/// However the network cuts a head, its verdict is the same.
fn check_every_cut(head: &[u8]) {
    let verdict = parse_request(head);
    for end in 0..head.len() {
        let cut = parse_request(&head[..end]);
        let same = cut == Parsed::Incomplete || cut == verdict;
        assert!(
            same,
            "{} cut at {end}: {cut:?}, whole: {verdict:?}",
            head.escape_ascii()
        );
    }
}

const ACCEPTED: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD /a HTTP/1.1\r\nhost:h:80\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
    "GET http://h/a HTTP/1.1\r\nHost:\r\n\r\n",
    "GET / HTTP/1.9\r\nHost: h\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.0\r\nHost: h\r\nExpect: miracles\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\n\r\n",
    "GET / HTTP/1.1\nHost: h\n\n",
    "\r\n\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 00\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nX: \t folded not \t\r\nY:\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\nRange: bytes=2-3\r\n\r\n",
    "OPTIONS /a HTTP/1.1\r\nHost: h\r\nOrigin: http://o\r\n\
     Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: range\r\n\r\n",
];

const REFUSED: &[(&str, Status)] = &[
    // The request line.
    (
        "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::BadRequest,
    ),
    (" GET / HTTP/1.1\r\n", Status::BadRequest),
    ("GET  / HTTP/1.1\r\n", Status::BadRequest),
    ("GET /  HTTP/1.1\r\n", Status::BadRequest),
    ("GET / HTTP/1.1 \r\n", Status::BadRequest),
    ("GET\t/ HTTP/1.1\r\n", Status::BadRequest),
    ("GET /\r\n", Status::BadRequest),
    ("GET\r\n", Status::BadRequest),
    ("\rGET", Status::BadRequest),
    ("GET / HTTP/1.1\rX", Status::BadRequest),
    ("GET / http/1.1\r\n", Status::BadRequest),
    ("GET / HTTP/1\r\n", Status::BadRequest),
    ("GET / HTTP/11.1\r\n", Status::BadRequest),
    ("GET / HTTP/1.11\r\n", Status::BadRequest),
    ("GET / HTTP/1.x\r\n", Status::BadRequest),
    ("GET / HTTP/x.1\r\n", Status::BadRequest),
    ("GET / HTTP/0.9\r\n", Status::HttpVersionNotSupported),
    ("GET / HTTP/2.0\r\n", Status::HttpVersionNotSupported),
    (
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Status::HttpVersionNotSupported,
    ),
    ("\x16\x03\x01\x02", Status::BadRequest),
    ("GET /\x01 HTTP/1.1\r\n", Status::BadRequest),
    // Methods.
    (
        "POST / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    (
        "PUT / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    (
        "DELETE / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    (
        "PATCH / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    (
        "TRACE / HTTP/1.1\r\nHost: h\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    (
        "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n",
        Status::MethodNotAllowed,
    ),
    ("get / HTTP/1.1\r\nHost: h\r\n\r\n", Status::NotImplemented),
    ("GETS / HTTP/1.1\r\nHost: h\r\n\r\n", Status::NotImplemented),
    ("BREW / HTTP/1.1\r\nHost: h\r\n\r\n", Status::NotImplemented),
    // Targets.
    ("GET a HTTP/1.1\r\n", Status::BadRequest),
    ("GET /%zz HTTP/1.1\r\n", Status::BadRequest),
    ("GET /%00 HTTP/1.1\r\n", Status::BadRequest),
    ("GET /../a HTTP/1.1\r\n", Status::BadRequest),
    // Host.
    ("GET / HTTP/1.1\r\n\r\n", Status::BadRequest),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.0\r\nHost: h\r\nhost: g\r\n\r\n",
        Status::BadRequest,
    ),
    ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Status::BadRequest),
    ("GET / HTTP/1.1\r\nHost: h/p\r\n\r\n", Status::BadRequest),
    ("GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", Status::BadRequest),
    // Field lines that two readers could read in two ways.
    ("GET / HTTP/1.1\r\nHost : h\r\n\r\n", Status::BadRequest),
    (
        "GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n",
        Status::BadRequest,
    ),
    ("GET / HTTP/1.1\r\n Host: h\r\n\r\n", Status::BadRequest),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX\0: b\r\n\r\n",
        Status::BadRequest,
    ),
    // Bodies.
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 16385\r\n\r\nx",
        Status::ContentTooLarge,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +0\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0, 0\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x0\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Status::ContentTooLarge,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip , Chunked\r\n\r\n",
        Status::ContentTooLarge,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, x\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
        Status::BadRequest,
    ),
    // Expectations, and conditions given twice.
    (
        "GET / HTTP/1.1\r\nHost: h\r\nExpect: miracles\r\n\r\n",
        Status::ExpectationFailed,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nIf-Match: *\r\nIf-Match: *\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nIf-None-Match: *\r\nIf-None-Match: *\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nIf-Range: x\r\nIf-Range: x\r\n\r\n",
        Status::BadRequest,
    ),
    (
        "OPTIONS / HTTP/1.1\r\nHost: h\r\nAccess-Control-Request-Method: GET\r\n\
         Access-Control-Request-Method: GET\r\n\r\n",
        Status::BadRequest,
    ),
];

#[test]
fn accepted_heads_however_they_are_cut() {
    for head in ACCEPTED {
        let _request = accept(head.as_bytes());
        check_every_cut(head.as_bytes());
    }
}

#[test]
fn refused_heads_however_they_are_cut() {
    for (head, status) in REFUSED {
        assert_eq!(refuse(head.as_bytes()), *status, "{head:?}");
        check_every_cut(head.as_bytes());
    }
}

#[test]
fn a_request_is_what_it_says() {
    let head = b"HEAD /a%20b?q HTTP/1.1\r\nHost: h\r\nRANGE:  bytes=0-1 \r\nrange: bytes=2-3\r\n\
        if-match: \"a\"\r\nIf-None-Match: \"b\"\r\nIf-Modified-Since: c\r\n\
        If-Unmodified-Since: d\r\nIf-Range: \"e\"\r\nCookie: f=g\r\nOrigin: http://h\r\n\
        X-Forwarded-For: 1\r\nX-Forwarded-For: 2\r\n\
        Accept-Encoding: i\r\nAccept-Encoding: j\r\n\r\n";
    assert_eq!(
        accept(head),
        Request {
            method: Method::Head,
            path: "/a b".to_owned(),
            query: Some(b"q"),
            host: Some(b"h"),
            cookie: Some(b"f=g"),
            forwarded_for: Some(b"2"),
            origin: Some(b"http://h"),
            accept_encoding: Some(b"i"),
            keep_alive: true,
            body_bytes: 0,
            conditions: Conditions {
                if_match: Some(b"\"a\""),
                if_none_match: Some(b"\"b\""),
                if_modified_since: Some(b"c"),
                if_unmodified_since: Some(b"d"),
                if_range: Some(b"\"e\""),
            },
            // As nginx: the first of several.
            range: Some(b"bytes=0-1"),
            preflight: Preflight::default(),
        }
    );
}

#[test]
fn the_next_request_starts_after_the_head() {
    let one = b"\r\nGET /1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let two = b"GET /2 HTTP/1.1\r\nHost: h\r\n\r\n";
    let both = [one.as_slice(), two].concat();
    let Parsed::Complete {
        request,
        head_bytes,
    } = parse_request(&both)
    else {
        panic!()
    };
    assert_eq!((request.path.as_str(), head_bytes), ("/1", one.len()));
    assert_eq!(accept(&both[head_bytes..]).path, "/2");
}

#[test]
fn a_host_is_an_authority() {
    let head = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for host in RIGHT {
        let _request = accept(head(host).as_bytes());
    }
    for host in WRONG.into_iter().chain(WRONG_LITERALS) {
        assert_eq!(
            refuse(head(host).as_bytes()),
            Status::BadRequest,
            "{host:?}"
        );
        check_every_cut(head(host).as_bytes());
    }
    // A second one is one too many, even if it is the same; HTTP/1.0 need have none.
    for (head, is_right) in [
        ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", false),
        ("GET / HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", false),
        ("GET / HTTP/1.1\r\n\r\n", false),
        ("GET / HTTP/1.0\r\n\r\n", true),
        ("GET / HTTP/1.0\r\nHost: a:b:c\r\n\r\n", false),
        // An empty one is excused where the target names the server, and there only.
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", false),
        ("GET / HTTP/1.0\r\nHost: \r\n\r\n", false),
        ("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", false),
        ("GET http://h/ HTTP/1.1\r\nHost:\r\n\r\n", true),
        ("GET http://h/ HTTP/1.1\r\nHost: :80\r\n\r\n", false),
        ("GET http://h/ HTTP/1.1\r\n\r\n", false),
        ("GET http://h:80:80/ HTTP/1.1\r\nHost: h\r\n\r\n", false),
        ("GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", false),
    ] {
        if is_right {
            let _request = accept(head.as_bytes());
        } else {
            assert_eq!(refuse(head.as_bytes()), Status::BadRequest, "{head:?}");
        }
        check_every_cut(head.as_bytes());
    }
}

#[test]
fn a_short_body_is_none_of_the_head_and_is_told() {
    let head = |method: &str, version: &str, fields: &str| {
        format!("{method} / HTTP/{version}\r\nHost: h\r\n{fields}\r\n")
    };
    let parsed = |head: &str| {
        let input = format!("{head}GET /b HTTP/1.1\r\n");
        match parse_request(input.as_bytes()) {
            Parsed::Complete {
                request,
                head_bytes,
            } => {
                assert_eq!(head_bytes, head.len());
                (request.body_bytes, request.keep_alive)
            }
            other => panic!("{other:?}"),
        }
    };
    for method in ["GET", "HEAD", "OPTIONS"] {
        for (fields, expected) in [
            ("", (0, true)),
            ("Content-Length: 0\r\n", (0, true)),
            ("Content-Length: 1\r\n", (1, true)),
            ("Content-Length: 16384\r\n", (BODY_BYTES_MAX, true)),
            ("Content-Length: 007\r\n", (7, true)),
            ("Content-Length: 7\r\nConnection: close\r\n", (7, false)),
            // The client may leave the body out once it has the reply.
            ("Content-Length: 7\r\nExpect: 100-Continue\r\n", (7, false)),
            ("Content-Length: 0\r\nExpect: 100-continue\r\n", (0, true)),
            ("Expect: 100-continue\r\n", (0, true)),
        ] {
            assert_eq!(parsed(&head(method, "1.1", fields)), expected, "{fields}");
        }
    }
    let old = "Connection: keep-alive\r\nContent-Length: 7\r\nExpect: 100-continue\r\n";
    assert_eq!(parsed(&head("GET", "1.0", old)), (7, true));
}

#[test]
fn framing_errors_take_precedence_over_refused_methods() {
    const FAULTY: Status = Status::BadRequest;
    for (fields, of_get, of_others) in [
        ("", None, None),
        ("Content-Length: 0\r\n", None, None),
        ("Content-Length: 5\r\n", None, None),
        (
            "Content-Length: 65536\r\n",
            Some(Status::ContentTooLarge),
            None,
        ),
        (
            "Transfer-Encoding: chunked\r\n",
            Some(Status::ContentTooLarge),
            None,
        ),
        (
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            Some(Status::ContentTooLarge),
            None,
        ),
        (
            "Expect: miracles\r\n",
            Some(Status::ExpectationFailed),
            None,
        ),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", None, None),
        (
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        ("Content-Length: 5, 5\r\n", Some(FAULTY), Some(FAULTY)),
        ("Content-Length: x\r\n", Some(FAULTY), Some(FAULTY)),
        ("Content-Length: -1\r\n", Some(FAULTY), Some(FAULTY)),
        (
            "Content-Length: 18446744073709551616\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        ("Transfer-Encoding: gzip\r\n", Some(FAULTY), Some(FAULTY)),
        (
            "Transfer-Encoding: chunked, gzip\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        (
            "Transfer-Encoding: chunked, chunked\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        (
            "Transfer-Encoding : chunked\r\n",
            Some(FAULTY),
            Some(FAULTY),
        ),
        ("Host: g\r\n", Some(FAULTY), Some(FAULTY)),
    ] {
        for (method, otherwise) in [
            ("POST", Status::MethodNotAllowed),
            ("DELETE", Status::MethodNotAllowed),
            ("BREW", Status::NotImplemented),
        ] {
            let head = format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let status = of_others.unwrap_or(otherwise);
            assert_eq!(refuse(head.as_bytes()), status, "{head:?}");
            check_every_cut(head.as_bytes());
        }
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        match of_get {
            Some(status) => assert_eq!(refuse(head.as_bytes()), status, "{head:?}"),
            None => drop(accept(head.as_bytes())),
        }
    }
    // HTTP/1.0 knows no transfer codings.
    let head = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refuse(head), FAULTY);
}

#[test]
fn a_directory_is_asked_for_by_its_index() {
    for (target, path, is_for_directory) in [
        ("/", "/index.html", true),
        ("/a/", "/a/index.html", true),
        ("/a/?q", "/a/index.html", true),
        ("/a/b/..", "/a/index.html", true),
        ("*", "/index.html", true),
        ("/a", "/a", false),
        ("/a/index.html", "/a/index.html", false),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let request = accept(head.as_bytes());
        assert_eq!(request.is_for_directory(), is_for_directory, "{target}");
        assert_eq!(request.into_object_path(None), path, "{target}");
    }
}

#[test]
fn keep_alive_depends_on_version_and_connection_field() {
    for (version, field, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: Keep-Alive, CLOSE\r\n", false),
        ("1.1", "Connection: upgrade\r\nConnection: close\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.2", "", true),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: x , Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: h\r\n{field}\r\n");
        assert_eq!(accept(head.as_bytes()).keep_alive, keep_alive, "{head:?}");
    }
}

#[test]
fn a_refused_head_request_gets_no_body() {
    for (head, head_only) in [
        ("HEAD /%zz HTTP/1.1\r\n", true),
        ("HEAD / HTTP/1.1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\n\r\n", false),
        ("HEAD  / HTTP/1.1\r\n", false),
    ] {
        let refusal = Refusal {
            status: Status::BadRequest,
            head_only,
        };
        assert_eq!(
            parse_request(head.as_bytes()),
            Parsed::Refused(refusal),
            "{head:?}"
        );
    }
}

/// A head of exactly `bytes`, filled up with one long field.
fn head_of(bytes: usize) -> Vec<u8> {
    let mut head = b"HEAD / HTTP/1.1\r\nHost: h\r\nX: ".to_vec();
    head.resize(bytes - 4, b'x');
    head.extend_from_slice(b"\r\n\r\n");
    head
}

#[test]
fn a_head_of_the_longest_and_one_byte_more() {
    let _request = accept(&head_of(HEAD_BYTES_MAX));
    let longer = head_of(HEAD_BYTES_MAX + 1);
    let too_large = Refusal {
        status: Status::RequestHeaderFieldsTooLarge,
        head_only: true,
    };
    assert_eq!(parse_request(&longer), Parsed::Refused(too_large));
    // A buffer of the bound suffices to know.
    assert_eq!(
        parse_request(&longer[..HEAD_BYTES_MAX]),
        Parsed::Refused(too_large)
    );
    assert_eq!(
        parse_request(&longer[..HEAD_BYTES_MAX - 1]),
        Parsed::Incomplete
    );
}

#[test]
fn as_many_fields_as_allowed_and_one_more() {
    let head = |fields: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "X: x\r\n".repeat(fields - 1)
        )
    };
    let _request = accept(head(HEADERS_MAX).as_bytes());
    let status = refuse(head(HEADERS_MAX + 1).as_bytes());
    assert_eq!(status, Status::RequestHeaderFieldsTooLarge);
    check_every_cut(head(HEADERS_MAX + 1).as_bytes());
}

#[test]
fn the_longest_target_and_one_byte_more() {
    let head = |bytes: usize| {
        format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "t".repeat(bytes - 1)).into_bytes()
    };
    assert_eq!(accept(&head(TARGET_BYTES_MAX)).path.len(), TARGET_BYTES_MAX);
    let longer = head(TARGET_BYTES_MAX + 1);
    assert_eq!(refuse(&longer), Status::UriTooLong);
    const { assert!(TARGET_BYTES_MAX >= 8000, "RFC 9112 s3") };
    let seen = b"GET ".len() + TARGET_BYTES_MAX;
    assert_eq!(parse_request(&longer[..seen]), Parsed::Incomplete);
    assert_eq!(refuse(&longer[..=seen]), Status::UriTooLong);
}

#[test]
fn the_longest_method_and_one_byte_more() {
    assert_eq!(parse_request(&[b'A'; METHOD_BYTES_MAX]), Parsed::Incomplete);
    assert_eq!(
        refuse(&[b'A'; METHOD_BYTES_MAX + 1]),
        Status::NotImplemented
    );
}

#[test]
fn a_target_may_fill_half_a_head_and_fields_the_rest() {
    let start = format!(
        "GET /{} HTTP/1.1\r\nHost: h\r\nX: ",
        "t".repeat(TARGET_BYTES_MAX - 1)
    );
    let mut head = start.into_bytes();
    head.resize(HEAD_BYTES_MAX - 4, b'x');
    head.extend_from_slice(b"\r\n\r\n");
    let _request = accept(&head);
    head.insert(head.len() - 4, b'x');
    assert_eq!(refuse(&head), Status::RequestHeaderFieldsTooLarge);
}

/// Heads with mistakes in them: pieces that are right, wrong, or cut.
fn any_head() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(ACCEPTED).prop_map(|head| head.as_bytes().to_vec()),
        4 => prop::sample::select(REFUSED).prop_map(|(head, _)| head.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let edit = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        any::<u8>(),
    );
    (piece, prop::collection::vec(edit, 0..4)).prop_map(|(mut head, edits)| {
        for (at, other, byte) in edits {
            if !head.is_empty() {
                let (at, other) = (at.index(head.len()), other.index(head.len()));
                match byte % 3 {
                    0 => head[at] = byte,
                    1 => head.swap(at, other),
                    _ => drop(head.remove(at)),
                }
            }
        }
        head
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_head_has_one_verdict_however_it_is_cut(head in any_head()) {
        check_every_cut(&head);
    }

    #[test]
    fn any_bytes_have_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_every_cut(&bytes);
    }

    #[test]
    fn any_path_accepted_is_safe(target in "/[a-c./%2eE\\\\é]{0,30}") {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        if let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) {
            let inner = request.path.strip_prefix('/').expect("an absolute path");
            let inner = inner.strip_suffix('/').unwrap_or(inner);
            for segment in inner.split('/').filter(|_| !inner.is_empty()) {
                prop_assert!(!["", ".", ".."].contains(&segment), "{target}: {}", request.path);
            }
        }
    }
}
