//! Request heads (RFC 9112 s2 to s6): bytes in, a [`Request`] or a [`Refusal`] out.
//!
//! The request line is read here, byte by byte, so that each thing wrong with it has its own
//! status and is seen as soon as its byte arrives; field lines are httparse's. What two readers
//! could read in two ways is refused: whitespace before a colon, folded lines, two lengths,
//! a length beside a transfer coding, two `Host` fields.
//!
//! A prefix of a head is [`Parsed::Incomplete`] or has the verdict of the whole: it does not
//! matter how the network cut it. Any method but `GET`, `HEAD` and `OPTIONS` is refused, once the
//! whole head is known: a head whose framing is faulty is 400 whatever its method.

mod fields;

use self::fields::Fields;
use crate::coding::{Coding, Codings, preferred};
use crate::conditional::Conditions;
use crate::target::Target;
use crate::{INDEX_NAME, Status};

/// Longest request head, bytes: leading empty lines, request line, fields, final empty line.
/// A buffer of this size is always enough: at that length the verdict is no longer `Incomplete`.
pub const HEAD_BYTES_MAX: usize = 16_384;
/// Most header fields in a request.
pub const HEADERS_MAX: usize = 100;
/// Longest request target, bytes, before decoding. RFC 9112 s3 recommends 8000 at least: signed
/// URLs need them.
pub const TARGET_BYTES_MAX: usize = 8192;
/// Longest method looked at, bytes; `CONNECT` and `OPTIONS` are the longest known.
pub const METHOD_BYTES_MAX: usize = 16;
/// Longest body of a request, bytes: it is thrown away. As long as a head may be; who sends more wants
/// to store something here.
pub const BODY_BYTES_MAX: u16 = 16_384;
/// Most empty lines tolerated before a request line (RFC 9112 s2.2 asks for "at least one").
pub const LEADING_EMPTY_LINES_MAX: usize = 4;

/// A method this server carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The object, or ranges of it.
    Get,
    /// What `GET` would answer, without the body.
    Head,
    /// A CORS preflight: answered by [`crate::options_reply`], which needs no object.
    Options,
}

/// The verdict on the bytes received so far.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "it is on the stack, and looked at where it was made"
)]
pub enum Parsed<'a> {
    /// Correct so far: more bytes are needed.
    Incomplete,
    /// A whole head of `head_bytes` bytes; behind it and [`Request::body_bytes`] starts the next.
    Complete {
        /// What it asks for.
        request: Request<'a>,
        /// Length of the head, leading empty lines included.
        head_bytes: usize,
    },
    /// Not a request this server serves.
    Refused(Refusal),
}

/// Why a request is refused. A refusal always closes the connection: where the request ends, and
/// so where the next would start, is unknown or a body lies between that is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What to answer with [`crate::error_reply`].
    pub status: Status,
    /// The request was a `HEAD`: the answer has no body.
    pub head_only: bool,
}

/// A request, its fields borrowed from the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub method: Method,
    /// With what: percent-decoded, starts with `/`, holds no control character and no empty, `.`
    /// or `..` segment (one `/` may end it); query and fragment are cut off. At most
    /// [`TARGET_BYTES_MAX`] bytes.
    pub path: String,
    /// Query of the target, as it came (RFC 3986 s3.4).
    pub query: Option<&'a [u8]>,
    /// The authority of the target, or else `Host`, as it came; none in HTTP/1.0 perhaps (RFC 9112 s3.2).
    pub host: Option<&'a [u8]>,
    /// `Cookie`, the first if there are several (RFC 6265 s5.4: a client sends one).
    pub cookie: Option<&'a [u8]>,
    /// `X-Forwarded-For`, the last if there are several: each proxy adds to it, or writes one behind it.
    pub forwarded_for: Option<&'a [u8]>,
    /// `Origin`, the first if there are several (RFC 6454 s7.3: a client sends one).
    pub origin: Option<&'a [u8]>,
    /// `Accept-Encoding`, the first if there are several.
    pub(crate) accept_encoding: Option<&'a [u8]>,
    /// Whether the client can use the connection again (RFC 9112 s9.3).
    pub keep_alive: bool,
    /// Bytes of the body, which follows the head and means nothing: 0 to [`BODY_BYTES_MAX`]. The next
    /// request starts behind it.
    pub body_bytes: u16,
    pub(crate) conditions: Conditions<'a>,
    /// `Range`, the first if there are several.
    pub(crate) range: Option<&'a [u8]>,
    /// What a CORS preflight asks.
    pub(crate) preflight: Preflight<'a>,
}

impl Request<'_> {
    /// The path of the object to look up: of a directory, which is a path that ends with `/`, its
    /// [`INDEX_NAME`]. `other` is in place of the request's path, if it is given.
    #[must_use]
    pub fn into_object_path(self, other: Option<String>) -> String {
        let mut path = other.unwrap_or(self.path);
        if path.ends_with('/') {
            path.push_str(INDEX_NAME);
        }
        path
    }

    /// Those of these codings that the client takes, the most welcome first.
    #[must_use]
    pub fn preferred(&self, offered: &[Coding]) -> Codings {
        preferred(self.accept_encoding, offered)
    }

    /// Whether it asks for a directory by its right name: then the object is its [`INDEX_NAME`].
    #[must_use]
    pub fn is_for_directory(&self) -> bool {
        self.path.ends_with('/')
    }
}

/// The fields of a CORS preflight (the Fetch standard, "CORS-preflight request").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Preflight<'a> {
    /// `Access-Control-Request-Method`: its presence makes the request a preflight.
    pub(crate) method: Option<&'a [u8]>,
    /// `Access-Control-Request-Headers`.
    pub(crate) headers: Option<&'a [u8]>,
}

/// Parses the head that `input` starts with; `input` must start where a request does.
pub fn parse_request(input: &[u8]) -> Parsed<'_> {
    let window = input.get(..HEAD_BYTES_MAX).unwrap_or(input);
    match parse_head(window) {
        Ok(Some((request, head_bytes))) => Parsed::Complete {
            request,
            head_bytes,
        },
        Ok(None) if window.len() == HEAD_BYTES_MAX => Parsed::Refused(Refusal {
            status: Status::RequestHeaderFieldsTooLarge,
            head_only: window.starts_with(b"HEAD "),
        }),
        Ok(None) => Parsed::Incomplete,
        Err(refusal) => Parsed::Refused(refusal),
    }
}

/// `Ok(None)` is "more bytes are needed", here and in every function below.
fn parse_head(input: &[u8]) -> Result<Option<(Request<'_>, usize)>, Refusal> {
    let refuse = |status| Refusal {
        status,
        head_only: false,
    };
    let Some(start) = skip_empty_lines(input).map_err(refuse)? else {
        return Ok(None);
    };
    let Some((line, rest)) = parse_request_line(start).map_err(refuse)? else {
        return Ok(None);
    };
    let method = parse_method(line.method);
    let refuse = |status| Refusal {
        status,
        head_only: method == Ok(Method::Head),
    };
    // The target of a method that is refused means nothing here: that of CONNECT has a form of
    // its own.
    let asked = match method {
        Ok(method) => Ok((method, Target::parse(line.target).map_err(refuse)?)),
        Err(status) => Err(status),
    };
    let mut storage = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let (fields_bytes, headers) = match httparse::parse_headers(rest, &mut storage) {
        Ok(httparse::Status::Complete(complete)) => complete,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(refuse(Status::RequestHeaderFieldsTooLarge));
        }
        Err(_) => return Err(refuse(Status::BadRequest)),
    };
    let mut fields = Fields::default();
    for header in headers {
        fields.take(header.name, header.value).map_err(refuse)?;
    }
    let authority = asked.as_ref().ok().and_then(|(_, target)| target.authority);
    fields
        .check_host(line.version_minor, authority.is_some())
        .map_err(refuse)?;
    let body = fields.framing(line.version_minor).map_err(refuse)?;
    let (method, target) = asked.map_err(refuse)?;
    let body_bytes = fields
        .check_willing(line.version_minor, body)
        .map_err(refuse)?;
    let request = Request {
        method,
        path: target.path,
        query: target.query,
        host: authority.or(fields.host),
        cookie: fields.cookie,
        accept_encoding: fields.accept_encoding,
        forwarded_for: fields.forwarded_for,
        origin: fields.origin,
        keep_alive: fields.keep_alive(line.version_minor, body_bytes),
        body_bytes,
        conditions: fields.conditions,
        range: fields.range,
        preflight: fields.preflight,
    };
    Ok(Some((request, input.len() - rest.len() + fields_bytes)))
}

/// RFC 9112 s2.2: "a server that is expecting to receive and parse a request-line SHOULD ignore
/// at least one empty line (CRLF) received prior to the request-line."
fn skip_empty_lines(input: &[u8]) -> Result<Option<&[u8]>, Status> {
    let mut rest = input;
    for _ in 0..=LEADING_EMPTY_LINES_MAX {
        match rest {
            [b'\n', after @ ..] | [b'\r', b'\n', after @ ..] => rest = after,
            [] | [b'\r'] => return Ok(None),
            _ => return Ok(Some(rest)),
        }
    }
    Err(Status::BadRequest)
}

/// What was read and what follows it; `None` when more bytes are needed.
type Step<'a, T> = Result<Option<(T, &'a [u8])>, Status>;

struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    /// 0 for HTTP/1.0, 1 for HTTP/1.1, and more for what is then read as HTTP/1.1.
    version_minor: u8,
}

/// RFC 9112 s3: `method SP request-target SP HTTP-version`, ended by CRLF or a bare LF (s2.2).
fn parse_request_line(input: &[u8]) -> Step<'_, RequestLine<'_>> {
    let Some((method, rest)) = parse_word(
        input,
        is_token_byte,
        METHOD_BYTES_MAX,
        Status::NotImplemented,
    )?
    else {
        return Ok(None);
    };
    let Some((target, rest)) =
        parse_word(rest, is_target_byte, TARGET_BYTES_MAX, Status::UriTooLong)?
    else {
        return Ok(None);
    };
    let Some((version_minor, rest)) = parse_version(rest)? else {
        return Ok(None);
    };
    Ok(Some((
        RequestLine {
            method,
            target,
            version_minor,
        },
        rest,
    )))
}

/// The bytes that `belongs` accepts, at least one and at most `bytes_max` (else `too_long`), and
/// what follows the single space after them.
fn parse_word(
    input: &[u8],
    belongs: fn(u8) -> bool,
    bytes_max: usize,
    too_long: Status,
) -> Step<'_, &[u8]> {
    let end = input.iter().position(|&byte| !belongs(byte));
    let length = end.unwrap_or(input.len());
    if length > bytes_max {
        return Err(too_long);
    }
    match input.split_at(length) {
        (_, []) => Ok(None),
        (word, [b' ', rest @ ..]) if !word.is_empty() => Ok(Some((word, rest))),
        _ => Err(Status::BadRequest),
    }
}

/// The minor version, and what follows the line. RFC 9110 s2.5: a higher minor version is read
/// as the highest one known; another major version is another protocol.
fn parse_version(input: &[u8]) -> Step<'_, u8> {
    const NAME: &[u8] = b"HTTP/";
    let Some((name, rest)) = input.split_at_checked(NAME.len()) else {
        return if NAME.starts_with(input) {
            Ok(None)
        } else {
            Err(Status::BadRequest)
        };
    };
    if name != NAME {
        return Err(Status::BadRequest);
    }
    match rest {
        [] => Ok(None),
        [b'0' | b'2'..=b'9', ..] => Err(Status::HttpVersionNotSupported),
        [b'1'] | [b'1', b'.'] => Ok(None),
        [b'1', b'.', minor @ b'0'..=b'9', rest @ ..] => match rest {
            [b'\n', rest @ ..] | [b'\r', b'\n', rest @ ..] => Ok(Some((minor - b'0', rest))),
            [] | [b'\r'] => Ok(None),
            _ => Err(Status::BadRequest),
        },
        _ => Err(Status::BadRequest),
    }
}

/// RFC 9110 s9.1: 405 for a method that is known and not allowed, 501 for one not known.
fn parse_method(method: &[u8]) -> Result<Method, Status> {
    match method {
        b"GET" => Ok(Method::Get),
        b"HEAD" => Ok(Method::Head),
        b"OPTIONS" => Ok(Method::Options),
        b"POST" | b"PUT" | b"DELETE" | b"PATCH" | b"TRACE" | b"CONNECT" => {
            Err(Status::MethodNotAllowed)
        }
        _ => Err(Status::NotImplemented),
    }
}

/// RFC 9110 s5.6.2.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Visible ASCII, more than RFC 3986 allows, because browsers send `|` and the like unencoded;
/// and bytes above ASCII, because players send file names as they are.
fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte >= 0x80
}

/// A number of decimal digits and nothing else; `None` as well when it is too large.
pub(crate) fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests;
