//! Replies, whole: what a client would see on the wire, with the object's bytes filled in.

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
