//! Replies: heads as text, bodies as ranges of the object.
//!
//! It refuses nothing: every parsed request gets a reply. One reply appends at most
//! [`REPLY_TEXT_BYTES_MAX`] bytes of text and `2 * RANGES_MAX + 1` parts.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use crate::Coding;
use crate::authority::{is_sub_delimiter, is_unreserved};
use crate::conditional::Verdict;
use crate::content_type::{
    Caching, ContentType, ContentTypes, MAX_AGE_SECONDS_MAX, MAX_AGE_SECONDS_MIN,
};
use crate::cors::{Cors, ORIGIN_BYTES_MAX};
use crate::extra_fields::{EXTRA_FIELDS_BYTES_MAX, ExtraFields};
use crate::range::{ByteRange, Selection, select};
use crate::request::is_token_byte;
use crate::validators::{Validators, exact_name};
use crate::{INDEX_NAME, Method, ObjectMeta, Request, Status};
use crate::{RANGES_MAX, TARGET_BYTES_MAX};

/// Most text one reply appends, bytes: a head with all fields that were configured and the longest
/// target to be redirected to, or with the delimiters of [`crate::RANGES_MAX`] ranges.
pub const REPLY_TEXT_BYTES_MAX: usize = HEAD_FIXED_BYTES_MAX
    + EXTRA_FIELDS_BYTES_MAX
    + max_of(TARGET_BYTES_MAX, RANGES_MAX * DELIMITER_BYTES_MAX);

/// Most bytes of a head without what was configured: status line, the fields, numbers and entity
/// tag at their longest. Of a preflight's answer, [`PREFLIGHT_HEADERS_BYTES_MAX`] besides.
const HEAD_FIXED_BYTES_MAX: usize = 1024 + ORIGIN_BYTES_MAX;

/// Most bytes of a delimiter between two ranges, with the longest content type and numbers.
const DELIMITER_BYTES_MAX: usize = 320;

const fn max_of(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// Unix seconds of the last date HTTP can write: 9999-12-31 23:59:59 (RFC 9110 s5.6.7).
const DATE_UNIX_SECONDS_MAX: u64 = 253_402_300_799;

/// Configuration of all replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplyConfig {
    /// Pages of which origins may read the reply, beside the one origin that `extra_fields` names.
    pub cors: Cors,
    /// Sends `Cache-Control` for media and playlists, unless `extra_fields` does.
    pub cache_control: bool,
    /// Content types by extension.
    pub types: ContentTypes,
    /// Fields of the operator's.
    pub extra_fields: ExtraFields,
    /// The codings in which objects may be stored beside what is asked for. Their replies are told apart by caches.
    pub precompressed: Vec<Coding>,
}

impl Default for ReplyConfig {
    /// No CORS, `Cache-Control` by the kind of content, no types or fields of the operator.
    fn default() -> Self {
        Self {
            cors: Cors::Off,
            cache_control: true,
            types: ContentTypes::default(),
            extra_fields: ExtraFields::default(),
            precompressed: Vec::new(),
        }
    }
}

impl ReplyConfig {
    /// Whether `OPTIONS` is a method of this server: where pages of another origin may read replies.
    fn answers_preflights(&self) -> bool {
        self.cors != Cors::Off || self.extra_fields.allow_origin().is_some()
    }
}

/// What a reply depends on besides the request and its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyOptions<'a> {
    /// The configuration.
    pub config: &'a ReplyConfig,
    /// For `Date`, Unix seconds.
    pub unix_seconds_now: u64,
    /// Whether the connection may stay open after the reply.
    pub keep_alive: bool,
    /// Whether the reply goes out over TLS.
    pub is_secure: bool,
    /// The request's `Origin`, if there was a whole request.
    pub origin: Option<&'a [u8]>,
    /// Whether the reply is for this client only, though others may ask by the same URL: the `Cache-Control` of the
    /// server then keeps it from shared caches (RFC 9111 s5.2.2.7).
    pub is_private: bool,
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

impl Part {
    /// Its length, bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match *self {
            Self::Text(bytes) => bytes as u64,
            Self::Object { length, .. } => length,
        }
    }
}

/// The result of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Its status, for counters and logs.
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
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    coded_reply(None, request, object, options, text, parts)
}

/// The same with an object that is what was asked for in this coding. Its ranges and validators are those of the
/// coded bytes (RFC 9110 s8.8.3.3, s14.2), its type is that of the request's path.
pub fn coded_reply(
    coding: Option<Coding>,
    request: &Request<'_>,
    object: &ObjectMeta,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    if request.method == Method::Options {
        return options_reply(request, options, text, parts);
    }
    let close = !(request.keep_alive && options.keep_alive);
    let object = &Described {
        meta: object,
        coding,
        validators: Validators::of(object),
        content_type: object
            .content_type
            .as_deref()
            .filter(|_| coding.is_none())
            .and_then(ContentType::given)
            .unwrap_or_else(|| content_type_of(request, options.config)),
    };
    let mut writer = Writer::new(text, parts);
    let (conditions, now) = (&request.conditions, &object.validators);
    let status = match conditions.evaluate(object.meta, now) {
        Verdict::NotModified(validators) => {
            let object = &Described {
                validators,
                ..*object
            };
            writer.not_modified(object, options, close)
        }
        Verdict::PreconditionFailed => {
            let head_only = request.method == Method::Head;
            writer.error(Status::PreconditionFailed, head_only, options, close)
        }
        Verdict::Proceed => match selection(request, object) {
            Selection::Whole => writer.whole(request.method, object, options, close),
            Selection::Unsatisfiable => writer.unsatisfiable(object.meta, options, close),
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
fn selection(request: &Request<'_>, object: &Described<'_>) -> Selection {
    match request.range {
        Some(field)
            if request.method == Method::Get
                && request.conditions.range_applies(&object.validators) =>
        {
            select(field, object.meta.size_bytes)
        }
        _ => Selection::Whole,
    }
}

/// The type of the object a request leads to.
fn content_type_of<'a>(request: &Request<'_>, config: &'a ReplyConfig) -> ContentType<'a> {
    let path = if request.is_for_directory() {
        INDEX_NAME
    } else {
        &request.path
    };
    config.types.of(path)
}

/// Replies to a request for a directory without its final slash: 301 to the same path with one,
/// and with the query.
///
/// RFC 9110 s10.2.2: a reference relative to the request's own URI holds whatever name and scheme the
/// client knows us by. It begins with one slash, since paths do, and so is never taken for an authority.
pub fn directory_reply(
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    let mut location = String::with_capacity(request.path.len() + 1);
    request.push_path(&mut location);
    location.push('/');
    request.push_query(&mut location);
    let status = Status::MovedPermanently;
    redirect_reply(status, &location, request, options, text, parts)
}

/// Replies with `status`, a redirect, to `location`, which is a valid URI reference (RFC 3986). One that is
/// longer than a target may be is too long: 414.
pub fn redirect_reply(
    status: Status,
    location: &str,
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    let close = !(request.keep_alive && options.keep_alive);
    let head_only = request.method == Method::Head;
    if location.len() > TARGET_BYTES_MAX {
        return error_reply(Status::UriTooLong, head_only, close, options, text, parts);
    }
    let mut writer = Writer::new(text, parts);
    writer.common_head(status, options, close);
    writer.field("Location", location);
    writer.extra_fields(options);
    writer.status_body(status, head_only);
    writer.flush();
    Reply { status, close }
}

/// Replies by 307: the object is at `location` for now. No cache may keep the redirect (`no-store`), since the object may be
/// here at the next request. So the reply has none of the fields that are configured for objects, such as `Cache-Control`.
pub fn miss_redirect_reply(
    location: &str,
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    let (status, head_only) = (Status::TemporaryRedirect, request.method == Method::Head);
    let close = !(request.keep_alive && options.keep_alive);
    if location.len() > TARGET_BYTES_MAX {
        return error_reply(Status::UriTooLong, head_only, close, options, text, parts);
    }
    let mut writer = Writer::new(text, parts);
    writer.common_head(status, options, close);
    writer.field("Location", location);
    writer.field("Cache-Control", "no-store");
    writer.status_body(status, head_only);
    writer.flush();
    Reply { status, close }
}

impl Request<'_> {
    /// Appends the path as a URI has it.
    pub fn push_path(&self, location: &mut String) {
        push_encoded(location, self.path.as_bytes(), is_path_byte);
    }

    /// Appends `?` and the query as a URI has it, if there is one.
    pub fn push_query(&self, location: &mut String) {
        if let Some(query) = self.query {
            location.push('?');
            push_encoded(location, query, |byte| byte.is_ascii_graphic());
        }
    }
}

/// Appends a piece of a decoded path as a URI has it: to the path of `location`, or as a value if that has a query or
/// a fragment already. A value ends at nothing that it holds.
pub fn push_path_piece(location: &mut String, piece: &str) {
    if location.contains(['?', '#']) {
        let is_value_byte = |byte| is_unreserved(byte) || byte == b'/';
        push_encoded(location, piece.as_bytes(), is_value_byte);
    } else {
        push_encoded(location, piece.as_bytes(), is_path_byte);
    }
}

/// RFC 3986 s3.3: `pchar` or a slash.
fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte) || is_sub_delimiter(byte) || b":@/".contains(&byte)
}

/// RFC 3986 s2.1: percent-encodes all bytes but those that stay as they are.
fn push_encoded(text: &mut String, bytes: &[u8], stays: impl Fn(u8) -> bool) {
    const DIGITS: [u8; 16] = *b"0123456789ABCDEF";
    for &byte in bytes {
        if stays(byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Replies to `OPTIONS`, for which no object is needed: 200 without a body where pages of another
/// origin may read replies, else 405.
pub fn options_reply(
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    let close = !(request.keep_alive && options.keep_alive);
    if !options.config.answers_preflights() {
        return error_reply(Status::MethodNotAllowed, false, close, options, text, parts);
    }
    let mut writer = Writer::new(text, parts);
    let status = writer.preflight(request, options, close);
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
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    assert!(status.is_error(), "{status:?} is not an error");
    let mut writer = Writer::new(text, parts);
    let status = writer.error(status, head_only, options, close);
    writer.flush();
    Reply { status, close }
}

/// An error reply whose body is an object, with the path that says its type. `status` must be an error.
/// It has neither validators nor ranges, since it stands for nothing that was asked for.
pub fn error_page_reply(
    status: Status,
    (path, page): (&str, &ObjectMeta),
    request: &Request<'_>,
    options: &ReplyOptions<'_>,
    text: &mut Vec<u8>,
    parts: &mut Vec<Part>,
) -> Reply {
    assert!(status.is_error(), "{status:?} is not an error");
    let close = !(request.keep_alive && options.keep_alive);
    let given = page.content_type.as_deref().and_then(ContentType::given);
    let content_type = given.unwrap_or_else(|| options.config.types.of(path));
    let mut writer = Writer::new(text, parts);
    writer.error_head(status, options, close);
    writer.content_type(content_type);
    writer.number_field("Content-Length", page.size_bytes);
    writer.end_head();
    if request.method == Method::Get && page.size_bytes > 0 {
        writer.object(ByteRange {
            start: 0,
            length: page.size_bytes,
        });
    }
    writer.flush();
    Reply { status, close }
}

/// An object, its validators, and the type it is of.
#[derive(Clone, Copy)]
struct Described<'a> {
    meta: &'a ObjectMeta,
    /// The coding that its bytes are in.
    coding: Option<Coding>,
    validators: Validators,
    content_type: ContentType<'a>,
}

/// Appends one reply; counts the text that no part covers yet.
struct Writer<'a> {
    text: &'a mut Vec<u8>,
    parts: &'a mut Vec<Part>,
    unsent: u32,
}

impl<'a> Writer<'a> {
    fn new(text: &'a mut Vec<u8>, parts: &'a mut Vec<Part>) -> Self {
        Self {
            text,
            parts,
            unsent: 0,
        }
    }
    fn whole(
        &mut self,
        method: Method,
        object: &Described<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        self.object_head(Status::Ok, object, options, close);
        let size_bytes = object.meta.size_bytes;
        self.field("Accept-Ranges", "bytes");
        self.content_type(object.content_type);
        self.number_field("Content-Length", size_bytes);
        self.end_head();
        if method == Method::Get && size_bytes > 0 {
            self.object(ByteRange {
                start: 0,
                length: size_bytes,
            });
        }
        Status::Ok
    }

    fn single_range(
        &mut self,
        range: ByteRange,
        object: &Described<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        self.object_head(Status::PartialContent, object, options, close);
        self.content_type(object.content_type);
        self.number_field("Content-Length", range.length);
        self.content_range(range, object.meta.size_bytes);
        self.end_head();
        self.object(range);
        Status::PartialContent
    }

    /// RFC 9110 s14.6: `multipart/byteranges`.
    fn multiple_ranges(
        &mut self,
        ranges: &[ByteRange],
        object: &Described<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        let boundary = boundary_of(object.meta);
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
        self.content_type(delimiters.object.content_type);
        self.content_range(range, delimiters.object.meta.size_bytes);
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
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        let status = Status::RangeNotSatisfiable;
        self.common_head(status, options, close);
        self.push("Content-Range: bytes */");
        self.number(object.size_bytes);
        self.push("\r\n");
        self.status_body(status, false);
        status
    }

    /// RFC 9110 s15.4.5: the fields of a 200 that a cache updates its copy from, and no body.
    fn not_modified(
        &mut self,
        object: &Described<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        self.object_head(Status::NotModified, object, options, close);
        self.end_head();
        Status::NotModified
    }

    /// The Fetch standard, "CORS-preflight fetch". The status is 200 and not 204: browsers of some
    /// television sets take no other. What the operator's fields say is not said again.
    fn preflight(
        &mut self,
        request: &Request<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        let own = |name: &str| !options.config.extra_fields.has_cors_field(name);
        self.common_head(Status::Ok, options, close);
        self.field("Allow", ALLOW_WITH_CORS);
        if request.preflight.method.is_some() {
            if own(ALLOW_METHODS_NAME) {
                self.field(ALLOW_METHODS_NAME, ALLOW_WITH_CORS);
            }
            if own(ALLOW_HEADERS_NAME) {
                let asked = request.preflight.headers.and_then(header_names);
                self.field(ALLOW_HEADERS_NAME, asked.unwrap_or(ALLOW_HEADERS));
            }
            if own(MAX_AGE_NAME) {
                self.number_field(MAX_AGE_NAME, PREFLIGHT_SECONDS);
            }
            // Some caches keep answers to OPTIONS, whatever RFC 9110 s9.3.7 says.
            self.field(
                "Vary",
                "Access-Control-Request-Method, Access-Control-Request-Headers",
            );
        }
        self.number_field("Content-Length", 0);
        self.end_head();
        Status::Ok
    }

    fn error(
        &mut self,
        status: Status,
        head_only: bool,
        options: &ReplyOptions<'_>,
        close: bool,
    ) -> Status {
        self.error_head(status, options, close);
        self.status_body(status, head_only);
        status
    }

    /// What the head of every error begins with.
    fn error_head(&mut self, status: Status, options: &ReplyOptions<'_>, close: bool) {
        self.common_head(status, options, close);
        match status {
            // RFC 9110 s15.5.6: "The origin server MUST generate an Allow header field".
            Status::MethodNotAllowed if options.config.answers_preflights() => {
                self.field("Allow", ALLOW_WITH_CORS)
            }
            Status::MethodNotAllowed => self.field("Allow", ALLOW),
            Status::ServiceUnavailable | Status::TooManyRequests => {
                self.number_field("Retry-After", RETRY_AFTER_SECONDS);
            }
            _ => {}
        }
    }

    /// The status line as the body: enough for a person with curl.
    fn status_body(&mut self, status: Status, head_only: bool) {
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
        object: &Described<'_>,
        options: &ReplyOptions<'_>,
        close: bool,
    ) {
        self.common_head(status, options, close);
        if let Some(tag) = object.validators.tag {
            self.push("ETag: ");
            self.push_bytes(tag.as_bytes());
            self.push("\r\n");
        }
        // RFC 9110 s8.8.2.1: "MUST NOT generate a Last-Modified date that is later than the
        // server's time of message origination (Date)". The date of the message in its place would
        // be another validator in each reply, so there is none, and the entity tag is left.
        let has_passed = |modified: &u64| *modified <= options.unix_seconds_now;
        if let Some(modified) = object.validators.modified.filter(has_passed) {
            self.date_field("Last-Modified", modified);
        }
        if !options.config.precompressed.is_empty() {
            self.field("Vary", "Accept-Encoding");
        }
        // RFC 9110 s15.4.5: a 304 has no other fields of the representation than a cache needs.
        let coding = object.coding.filter(|_| status != Status::NotModified);
        if let Some(coding) = coding {
            self.field("Content-Encoding", coding.name());
        }
        self.configured_fields(object, options);
    }

    /// What the operator wants said of every object.
    fn configured_fields(&mut self, object: &Described<'_>, options: &ReplyOptions<'_>) {
        let config = options.config;
        let is_said = config.cache_control && !config.extra_fields.has_cache_control();
        let is_private = options.is_private;
        match object.content_type.caching() {
            _ if !is_said => {}
            Some(Caching::Revalidated) if is_private => {
                self.field("Cache-Control", "private, no-cache");
            }
            Some(Caching::Revalidated) => self.field("Cache-Control", "no-cache"),
            Some(Caching::ByAge) => {
                let whose = if is_private { "private" } else { "public" };
                self.push("Cache-Control: ");
                self.push(whose);
                self.push(", max-age=");
                self.number(max_age(object.meta));
                self.push("\r\n");
            }
            // Caches keep a 200 that says nothing, too (RFC 9111 s4.2.2).
            None if is_private => self.field("Cache-Control", "private"),
            None => {}
        }
        self.extra_fields(options);
    }

    fn extra_fields(&mut self, options: &ReplyOptions<'_>) {
        let fields = &options.config.extra_fields;
        self.push(fields.as_str());
        if options.is_secure {
            self.push(fields.secure());
        }
    }

    /// What lets pages of other origins read the reply (the Fetch standard, "CORS protocol").
    fn cors_fields(&mut self, options: &ReplyOptions<'_>) {
        let fields = &options.config.extra_fields;
        let grant = options.config.cors.grant(options.origin);
        if let Some(origin) = fields.allow_origin().or(grant.origin) {
            self.field("Access-Control-Allow-Origin", origin);
        }
        if grant.has_credentials && !fields.has_cors_field(ALLOW_CREDENTIALS_NAME) {
            self.field(ALLOW_CREDENTIALS_NAME, "true");
        }
        if grant.varies {
            self.field("Vary", "Origin");
        }
        let own = grant.origin.map(|_| EXPOSE_HEADERS);
        if own.is_some() || fields.expose_headers().is_some() {
            self.push("Access-Control-Expose-Headers: ");
            self.push(own.unwrap_or_default());
            if own.is_some() && fields.expose_headers().is_some() {
                self.push(", ");
            }
            self.push(fields.expose_headers().unwrap_or_default());
            self.push("\r\n");
        }
        self.push(fields.cors());
    }

    fn content_type(&mut self, content_type: ContentType<'_>) {
        self.push("Content-Type: ");
        for part in content_type.parts() {
            self.push(part);
        }
        self.push("\r\n");
    }

    fn common_head(&mut self, status: Status, options: &ReplyOptions<'_>, close: bool) {
        self.push("HTTP/1.1 ");
        self.push(status.line());
        self.push("\r\nServer: Atlas\r\n");
        self.date_field("Date", options.unix_seconds_now);
        self.cors_fields(options);
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
        self.push_bytes(text.as_bytes());
    }

    fn push_bytes(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
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

const ALLOW_CREDENTIALS_NAME: &str = "Access-Control-Allow-Credentials";
const ALLOW_METHODS_NAME: &str = "Access-Control-Allow-Methods";
const ALLOW_HEADERS_NAME: &str = "Access-Control-Allow-Headers";
const MAX_AGE_NAME: &str = "Access-Control-Max-Age";

const ALLOW: &str = "GET, HEAD";
const ALLOW_WITH_CORS: &str = "GET, HEAD, OPTIONS";

/// The list of names in `Access-Control-Request-Headers`, if it is one (RFC 9110 s5.6.1) of at most
/// [`PREFLIGHT_HEADERS_BYTES_MAX`] bytes. A page may send what fields it likes: none gives it
/// anything it would not get without, and players send some of their own (CTA-5004, `CMCD-*`).
fn header_names(value: &[u8]) -> Option<&str> {
    let is_name = |name: &[u8]| {
        let name = name.trim_ascii();
        !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte))
    };
    let is_list = value.len() <= PREFLIGHT_HEADERS_BYTES_MAX
        && value.split(|&byte| byte == b',').all(is_name);
    std::str::from_utf8(value).ok().filter(|_| is_list)
}

/// Longest list of request fields that a preflight is granted as asked, bytes.
pub const PREFLIGHT_HEADERS_BYTES_MAX: usize = 1024;

/// What a preflight is granted that asks for nothing, or for what is no list of field names:
/// request fields a player's script may set. `Range` needs no permission in its simplest form.
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
    object: &'a Described<'a>,
}

impl Delimiters<'_> {
    fn part_bytes(&self, range: ByteRange) -> u64 {
        const FIXED: &str = "\r\n--\r\nContent-Type: \r\nContent-Range: bytes -/\r\n\r\n";
        let text = FIXED.len() + self.boundary.len() + self.object.content_type.length_bytes();
        let last = range.start + (range.length - 1);
        text as u64
            + decimal_digits(range.start)
            + decimal_digits(last)
            + decimal_digits(self.object.meta.size_bytes)
    }

    fn last_bytes(&self) -> u64 {
        "\r\n----\r\n".len() as u64 + self.boundary.len() as u64
    }
}

fn decimal_digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

/// How long caches may keep an object, seconds; see [`Caching::ByAge`].
fn max_age(object: &ObjectMeta) -> u64 {
    let age = object.seen.nanos_since(object.modified) / 1_000_000_000;
    let seconds = age.clamp(MAX_AGE_SECONDS_MIN.into(), MAX_AGE_SECONDS_MAX.into());
    u64::try_from(seconds).unwrap_or(MAX_AGE_SECONDS_MAX)
}

/// A boundary (RFC 2046 s5.1.1) that is the same for the same object, so that a retransmitted
/// reply is the same bytes, and that an object holds by intent only, since it is made of its
/// size and of when it was written, or of its hash. 128 bits of FNV-1a.
fn boundary_of(object: &ObjectMeta) -> String {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let name = exact_name(object);
    let hash = name.as_bytes().iter().fold(OFFSET_BASIS, |hash, &byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests;
