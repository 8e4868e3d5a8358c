//! Replies: heads as text, bodies as ranges of the object.
//!
//! It refuses nothing: every request that was parsed has an answer. One reply appends at most
//! [`REPLY_TEXT_BYTES_MAX`] bytes of text and `2 * RANGES_MAX + 1` parts.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use crate::conditional::Verdict;
use crate::range::{ByteRange, Selection, select};
use crate::{ENTITY_TAG_BYTES_MAX, Method, ObjectMeta, Request, Status};

/// Most text one reply appends, bytes: a head, and the delimiters of
/// [`crate::RANGES_MAX`] ranges, with the longest entity tag, content type and numbers.
pub const REPLY_TEXT_BYTES_MAX: usize = 4096;

/// Unix seconds of the last date HTTP can write: 9999-12-31 23:59:59 (RFC 9110 s5.6.7).
const DATE_UNIX_SECONDS_MAX: u64 = 253_402_300_799;

/// What the server adds to every reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyOptions {
    /// Lets pages of any origin read the reply (`Access-Control-Allow-Origin: *`).
    pub cors: bool,
    /// For `Date`, Unix seconds.
    pub unix_seconds_now: u64,
    /// Whether the server is willing to use the connection again.
    pub keep_alive: bool,
}

/// A piece of a reply, in the order of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The next so many bytes of the reply's text.
    Text(u32),
    /// `length` bytes of the object from `start`; `length > 0`, within its size.
    Object {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
    },
}

/// What was replied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// For counters and logs.
    pub status: Status,
    /// The connection is to be closed once the reply has been sent.
    pub close: bool,
}

/// Replies to a request for an object that exists: appends text to `text`, and to `parts` how it
/// and the object's bytes follow each other. The caller may have text and parts of earlier,
/// pipelined replies in both.
pub fn reply(
    request: &Request<'_>,
    object: &ObjectMeta,
    options: &ReplyOptions,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    if request.method == Method::Options {
        return options_reply(request, options, text, parts);
    }
    debug_assert!(
        object.entity_tag.len() <= ENTITY_TAG_BYTES_MAX,
        "{object:?}"
    );
    let close = !(request.keep_alive && options.keep_alive);
    let mut writer = Writer {
        text,
        parts,
        unsent: 0,
    };
    let status = match request.conditions.evaluate(object) {
        Verdict::NotModified => writer.not_modified(object, options, close),
        Verdict::PreconditionFailed => {
            let head_only = request.method == Method::Head;
            writer.error(Status::PreconditionFailed, head_only, options, close)
        }
        Verdict::Proceed => match selection(request, object) {
            Selection::Whole => writer.whole(request.method, object, options, close),
            Selection::Unsatisfiable => writer.unsatisfiable(object, options, close),
            Selection::Ranges(ranges) => match ranges.as_slice() {
                [range] => writer.single_range(*range, object, options, close),
                ranges => writer.multiple_ranges(ranges, object, options, close),
            },
        },
    };
    writer.flush();
    Reply { status, close }
}

/// RFC 9110 s14.2: "A server MUST ignore a Range header field received with a request method" for
/// which ranges are not defined, and they are for `GET` only.
fn selection(request: &Request<'_>, object: &ObjectMeta) -> Selection {
    match request.range {
        Some(field)
            if request.method == Method::Get && request.conditions.range_applies(object) =>
        {
            select(field, object.size_bytes)
        }
        _ => Selection::Whole,
    }
}

/// Replies to `OPTIONS`, for which no object is needed: 204 to a CORS preflight when `cors` is
/// on, else 405.
pub fn options_reply(
    request: &Request<'_>,
    options: &ReplyOptions,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    let close = !(request.keep_alive && options.keep_alive);
    if !options.cors {
        return error_reply(Status::MethodNotAllowed, false, close, options, text, parts);
    }
    let mut writer = Writer {
        text,
        parts,
        unsent: 0,
    };
    let status = writer.preflight(options, close);
    writer.flush();
    Reply { status, close }
}

/// An error reply with a short `text/plain` body, which `head_only` (a `HEAD` request) leaves out.
/// `status` must be an error. `close` says that the connection is closed afterwards, as it must be
/// after a [`crate::Refusal`].
pub fn error_reply(
    status: Status,
    head_only: bool,
    close: bool,
    options: &ReplyOptions,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    assert!(status.is_error(), "{status:?} is not an error");
    let mut writer = Writer {
        text,
        parts,
        unsent: 0,
    };
    let status = writer.error(status, head_only, options, close);
    writer.flush();
    Reply { status, close }
}

/// Appends one reply; counts the text that no part covers yet.
struct Writer<'a> {
    text: &'a mut Vec<u8>,
    parts: &'a mut Vec<Part>,
    unsent: u32,
}

impl Writer<'_> {
    fn whole(
        &mut self,
        method: Method,
        object: &ObjectMeta,
        options: &ReplyOptions,
        close: bool,
    ) -> Status {
        self.object_head(Status::Ok, object, options, close);
        self.field("Accept-Ranges", "bytes");
        self.field("Content-Type", object.content_type);
        self.number_field("Content-Length", object.size_bytes);
        self.end_head();
        if method == Method::Get && object.size_bytes > 0 {
            self.object(ByteRange {
                start: 0,
                length: object.size_bytes,
            });
        }
        Status::Ok
    }

    fn single_range(
        &mut self,
        range: ByteRange,
        object: &ObjectMeta,
        options: &ReplyOptions,
        close: bool,
    ) -> Status {
        self.object_head(Status::PartialContent, object, options, close);
        self.field("Content-Type", object.content_type);
        self.number_field("Content-Length", range.length);
        self.content_range(range, object.size_bytes);
        self.end_head();
        self.object(range);
        Status::PartialContent
    }

    /// RFC 9110 s14.6: `multipart/byteranges`.
    fn multiple_ranges(
        &mut self,
        ranges: &[ByteRange],
        object: &ObjectMeta,
        options: &ReplyOptions,
        close: bool,
    ) -> Status {
        let boundary = boundary_of(object);
        let delimiters = Delimiters {
            boundary: &boundary,
            object,
        };
        let body_bytes = ranges.iter().fold(delimiters.last_bytes(), |sum, &range| {
            sum + delimiters.part_bytes(range) + range.length
        });
        self.object_head(Status::PartialContent, object, options, close);
        self.push("Content-Type: multipart/byteranges; boundary=");
        self.push(&boundary);
        self.push("\r\n");
        self.number_field("Content-Length", body_bytes);
        self.end_head();
        for &range in ranges {
            self.part_head(&delimiters, range);
            self.object(range);
        }
        self.push("\r\n--");
        self.push(&boundary);
        self.push("--\r\n");
        Status::PartialContent
    }

    fn part_head(&mut self, delimiters: &Delimiters<'_>, range: ByteRange) {
        let before = self.text.len();
        self.push("\r\n--");
        self.push(delimiters.boundary);
        self.push("\r\n");
        self.field("Content-Type", delimiters.object.content_type);
        self.content_range(range, delimiters.object.size_bytes);
        self.push("\r\n");
        let written = u64::try_from(self.text.len() - before);
        debug_assert_eq!(
            written,
            Ok(delimiters.part_bytes(range)),
            "Content-Length counts on it"
        );
    }

    /// RFC 9110 s15.5.17.
    fn unsatisfiable(
        &mut self,
        object: &ObjectMeta,
        options: &ReplyOptions,
        close: bool,
    ) -> Status {
        let status = Status::RangeNotSatisfiable;
        self.common_head(status, options, close);
        self.push("Content-Range: bytes */");
        self.number(object.size_bytes);
        self.push("\r\n");
        self.error_body(status, false);
        status
    }

    /// RFC 9110 s15.4.5: the fields of a 200 that a cache updates its copy from, and no body.
    fn not_modified(&mut self, object: &ObjectMeta, options: &ReplyOptions, close: bool) -> Status {
        self.object_head(Status::NotModified, object, options, close);
        self.end_head();
        Status::NotModified
    }

    /// The Fetch standard, "CORS protocol". RFC 9110 s8.6 forbids `Content-Length` in a 204.
    fn preflight(&mut self, options: &ReplyOptions, close: bool) -> Status {
        self.common_head(Status::NoContent, options, close);
        self.field("Access-Control-Allow-Methods", ALLOW_WITH_CORS);
        self.field("Access-Control-Allow-Headers", ALLOW_HEADERS);
        self.number_field("Access-Control-Max-Age", PREFLIGHT_SECONDS);
        self.end_head();
        Status::NoContent
    }

    fn error(
        &mut self,
        status: Status,
        head_only: bool,
        options: &ReplyOptions,
        close: bool,
    ) -> Status {
        self.common_head(status, options, close);
        match status {
            // RFC 9110 s15.5.6: "The origin server MUST generate an Allow header field".
            Status::MethodNotAllowed if options.cors => self.field("Allow", ALLOW_WITH_CORS),
            Status::MethodNotAllowed => self.field("Allow", ALLOW),
            Status::ServiceUnavailable => self.number_field("Retry-After", RETRY_AFTER_SECONDS),
            _ => {}
        }
        self.error_body(status, head_only);
        status
    }

    /// The status line as the body: enough for a person with curl.
    fn error_body(&mut self, status: Status, head_only: bool) {
        let line = status.line();
        self.field("Content-Type", "text/plain; charset=utf-8");
        self.number_field("Content-Length", line.len() as u64 + 1);
        self.end_head();
        if !head_only {
            self.push(line);
            self.push("\n");
        }
    }

    fn object_head(
        &mut self,
        status: Status,
        object: &ObjectMeta,
        options: &ReplyOptions,
        close: bool,
    ) {
        self.common_head(status, options, close);
        self.field("ETag", &object.entity_tag);
        // RFC 9110 s8.8.2.1: "MUST NOT generate a Last-Modified date that is later than the
        // server's time of message origination (Date)".
        let modified = object.modified_unix_seconds.min(options.unix_seconds_now);
        self.date_field("Last-Modified", modified);
    }

    fn common_head(&mut self, status: Status, options: &ReplyOptions, close: bool) {
        self.push("HTTP/1.1 ");
        self.push(status.line());
        self.push("\r\nServer: Atlas\r\n");
        self.date_field("Date", options.unix_seconds_now);
        if options.cors {
            self.field("Access-Control-Allow-Origin", "*");
            self.field("Access-Control-Expose-Headers", EXPOSE_HEADERS);
        }
        // RFC 9112 s9.3: an HTTP/1.0 client must be told either way; the others lose nothing.
        self.field("Connection", if close { "close" } else { "keep-alive" });
    }

    fn content_range(&mut self, range: ByteRange, size_bytes: u64) {
        self.push("Content-Range: bytes ");
        self.number(range.start);
        self.push("-");
        self.number(range.start + (range.length - 1));
        self.push("/");
        self.number(size_bytes);
        self.push("\r\n");
    }

    fn field(&mut self, name: &str, value: &str) {
        self.push(name);
        self.push(": ");
        self.push(value);
        self.push("\r\n");
    }

    fn number_field(&mut self, name: &str, value: u64) {
        self.push(name);
        self.push(": ");
        self.number(value);
        self.push("\r\n");
    }

    fn date_field(&mut self, name: &str, unix_seconds: u64) {
        let seconds = Duration::from_secs(unix_seconds.min(DATE_UNIX_SECONDS_MAX));
        let date = httpdate::HttpDate::from(UNIX_EPOCH + seconds);
        self.push(name);
        self.formatted(format_args!(": {date}\r\n"));
    }

    fn number(&mut self, value: u64) {
        self.formatted(format_args!("{value}"));
    }

    fn formatted(&mut self, arguments: std::fmt::Arguments<'_>) {
        let before = self.text.len();
        self.text
            .write_fmt(arguments)
            .expect("invariant: a Vec takes every byte");
        self.count(self.text.len() - before);
    }

    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
        self.count(text.len());
    }

    fn count(&mut self, bytes: usize) {
        self.unsent += u32::try_from(bytes).expect("invariant: a reply's text is short");
    }

    fn end_head(&mut self) {
        self.push("\r\n");
    }

    fn object(&mut self, range: ByteRange) {
        self.flush();
        self.parts.push(Part::Object {
            start: range.start,
            length: range.length,
        });
    }

    /// Makes a part of the text that no part covers yet.
    fn flush(&mut self) {
        if self.unsent > 0 {
            self.parts.push(Part::Text(self.unsent));
            self.unsent = 0;
        }
    }
}

const ALLOW: &str = "GET, HEAD";
const ALLOW_WITH_CORS: &str = "GET, HEAD, OPTIONS";

/// Request fields a player's script may set. `Range` needs no permission in its simplest form.
const ALLOW_HEADERS: &str =
    "Range, If-Range, If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since";

/// Reply fields a player's script may read beyond those always readable, which are
/// `Cache-Control`, `Content-Length`, `Content-Type`, `Last-Modified` and the like.
const EXPOSE_HEADERS: &str = "Accept-Ranges, Content-Length, Content-Range, Date, ETag";

/// How long a browser may remember a preflight, seconds; browsers cap it at 2 h (Chromium) or 24 h.
const PREFLIGHT_SECONDS: u64 = 86_400;

/// A full table drains within a request or two. [guess]
const RETRY_AFTER_SECONDS: u64 = 1;

/// The delimiters of one multipart reply, whose lengths must be known before its head is written.
struct Delimiters<'a> {
    boundary: &'a str,
    object: &'a ObjectMeta,
}

impl Delimiters<'_> {
    fn part_bytes(&self, range: ByteRange) -> u64 {
        const FIXED: &str = "\r\n--\r\nContent-Type: \r\nContent-Range: bytes -/\r\n\r\n";
        let text = FIXED.len() + self.boundary.len() + self.object.content_type.len();
        let last = range.start + (range.length - 1);
        text as u64
            + decimal_digits(range.start)
            + decimal_digits(last)
            + decimal_digits(self.object.size_bytes)
    }

    fn last_bytes(&self) -> u64 {
        "\r\n----\r\n".len() as u64 + self.boundary.len() as u64
    }
}

fn decimal_digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

/// A boundary (RFC 2046 s5.1.1) that is the same for the same object, so that a retransmitted
/// reply is the same bytes, and that an object holds by intent only, since its entity tag tells
/// of when and where it was written. 128 bits of FNV-1a.
fn boundary_of(object: &ObjectMeta) -> String {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = object.entity_tag.bytes().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests;
