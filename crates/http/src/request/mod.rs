//! Request heads (RFC 9112 s2 to s6): bytes in, a [`Request`] or a [`Refusal`] out.
//!
//! The request line is read here, byte by byte, so that each thing wrong with it has its own
//! status and is seen as soon as its byte arrives; field lines are httparse's. What two readers
//! could read in two ways is refused: whitespace before a colon, folded lines, two lengths,
//! a length beside a transfer coding, two `Host` fields.
//!
//! A prefix of a head is [`Parsed::Incomplete`] or has the verdict of the whole: it does not
//! matter how the network cut it. Any method but `GET`, `HEAD` and `OPTIONS` is refused.

use crate::Status;
use crate::conditional::Conditions;
use crate::target::path_of_target;

/// Longest request head, bytes: leading empty lines, request line, fields, final empty line.
/// A buffer of this size is always enough: at that length the verdict is no longer `Incomplete`.
pub const HEAD_BYTES_MAX: usize = 8192;
/// Most header fields in a request.
pub const HEADERS_MAX: usize = 64;
/// Longest request target, bytes, before decoding.
pub const TARGET_BYTES_MAX: usize = 4096;
/// Longest method looked at, bytes; `CONNECT` and `OPTIONS` are the longest known.
pub const METHOD_BYTES_MAX: usize = 16;
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
pub enum Parsed<'a> {
    /// Correct so far: more bytes are needed.
    Incomplete,
    /// A whole head of `head_bytes` bytes; the next request starts right after it.
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
/// so where the next would start, is unknown or a body lies between.
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
    /// Whether the client can use the connection again (RFC 9112 s9.3).
    pub keep_alive: bool,
    pub(crate) conditions: Conditions<'a>,
    /// `Range`, the first if there are several.
    pub(crate) range: Option<&'a [u8]>,
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
    let method = parse_method(line.method).map_err(refuse)?;

    let refuse = |status| Refusal {
        status,
        head_only: method == Method::Head,
    };
    let path = path_of_target(line.target).map_err(refuse)?;
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
    fields.check(line.version_minor).map_err(refuse)?;
    let request = Request {
        method,
        path,
        keep_alive: fields.keep_alive(line.version_minor),
        conditions: fields.conditions,
        range: fields.range,
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
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Visible ASCII, more than RFC 3986 allows, because browsers send `|` and the like unencoded;
/// and bytes above ASCII, because players send file names as they are.
fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte >= 0x80
}

/// RFC 9110 s7.2 with RFC 3986 s3.2.2: what a host and port are written with. An empty field is
/// what RFC 9112 s3.2 has a client send when its target has no authority.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:[]".contains(&byte)
}

/// The fields this server acts on, gathered line by line.
#[derive(Default)]
struct Fields<'a> {
    conditions: Conditions<'a>,
    range: Option<&'a [u8]>,
    host_seen: bool,
    content_length: Option<u64>,
    transfer_encoding: Option<&'a [u8]>,
    expectation_unknown: bool,
    close: bool,
    keep_alive: bool,
}

impl<'a> Fields<'a> {
    fn take(&mut self, name: &str, value: &'a [u8]) -> Result<(), Status> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // Most fields of a browser's request are none of ours: the first letter sorts them out.
        match name.as_bytes().first().map(u8::to_ascii_lowercase) {
            Some(b'h') if is("host") => self.take_host(value)?,
            Some(b'c') if is("connection") => self.take_connection(value),
            Some(b'c') if is("content-length") => self.take_content_length(value)?,
            Some(b't') if is("transfer-encoding") => self.transfer_encoding = Some(value),
            Some(b'e') if is("expect") => {
                self.expectation_unknown |= !value.eq_ignore_ascii_case(b"100-continue");
            }
            Some(b'r') if is("range") => self.range = self.range.or(Some(value)),
            Some(b'i') if is("if-match") => put_once(&mut self.conditions.if_match, value)?,
            Some(b'i') if is("if-none-match") => {
                put_once(&mut self.conditions.if_none_match, value)?;
            }
            Some(b'i') if is("if-modified-since") => {
                put_once(&mut self.conditions.if_modified_since, value)?;
            }
            Some(b'i') if is("if-unmodified-since") => {
                put_once(&mut self.conditions.if_unmodified_since, value)?;
            }
            Some(b'i') if is("if-range") => put_once(&mut self.conditions.if_range, value)?,
            _ => {}
        }
        Ok(())
    }

    /// RFC 9112 s3.2: 400 to "any request message that contains more than one Host header field
    /// line or a Host header field with an invalid field value".
    fn take_host(&mut self, value: &[u8]) -> Result<(), Status> {
        if self.host_seen || !value.iter().all(|&byte| is_host_byte(byte)) {
            return Err(Status::BadRequest);
        }
        self.host_seen = true;
        Ok(())
    }

    fn take_connection(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',') {
            let option = option.trim_ascii();
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// RFC 9112 s6.3 rule 5: a length that is not a number, or two that differ, is "an
    /// unrecoverable error". A list of equal lengths might be excused; it is not.
    fn take_content_length(&mut self, value: &[u8]) -> Result<(), Status> {
        let length = parse_decimal(value).ok_or(Status::BadRequest)?;
        if self.content_length.is_some_and(|earlier| earlier != length) {
            return Err(Status::BadRequest);
        }
        self.content_length = Some(length);
        Ok(())
    }

    /// What can only be judged once every field is known.
    fn check(&self, version_minor: u8) -> Result<(), Status> {
        // RFC 9112 s3.2: 400 to "any HTTP/1.1 request message that lacks a Host header field".
        if !self.host_seen && version_minor > 0 {
            return Err(Status::BadRequest);
        }
        self.check_framing(version_minor)?;
        // RFC 9110 s10.1.1: HTTP/1.0 knows no expectations. `100-continue` needs no answer, for
        // no body is ever awaited.
        if self.expectation_unknown && version_minor > 0 {
            return Err(Status::ExpectationFailed);
        }
        Ok(())
    }

    /// RFC 9110 s9.3.1: a body in a `GET` "might lead some implementations to reject the request
    /// and close the connection because of its potential as a request smuggling attack". We do.
    fn check_framing(&self, version_minor: u8) -> Result<(), Status> {
        let Some(coding) = self.transfer_encoding else {
            return match self.content_length {
                None | Some(0) => Ok(()),
                Some(_) => Err(Status::ContentTooLarge),
            };
        };
        // RFC 9112 s6.1: in HTTP/1.0, or beside a length, a transfer coding means faulty framing.
        if version_minor == 0 || self.content_length.is_some() {
            return Err(Status::BadRequest);
        }
        // RFC 9112 s6.3 rule 4: if chunked is not the final coding, "the server MUST respond with
        // the 400 (Bad Request) status code and then close the connection".
        let last = coding.rsplit(|&byte| byte == b',').next().unwrap_or(coding);
        if last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            Err(Status::ContentTooLarge)
        } else {
            Err(Status::BadRequest)
        }
    }

    /// RFC 9112 s9.3.
    fn keep_alive(&self, version_minor: u8) -> bool {
        !self.close && (version_minor > 0 || self.keep_alive)
    }
}

/// A condition given twice has no one meaning for most of these fields; nginx refuses it as well.
fn put_once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Status> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Status::BadRequest),
    }
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
