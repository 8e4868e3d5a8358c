//! The fields of a request that this server acts on, gathered line by line.
//!
//! It refuses what has no one meaning: a condition or `Host` given twice, lengths that differ,
//! a length beside a transfer coding. All others are passed over. It keeps no copy of anything.

use super::{BODY_BYTES_MAX, Preflight, parse_decimal};
use crate::Status;
use crate::authority::is_authority;
use crate::conditional::Conditions;

/// See the module.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) conditions: Conditions<'a>,
    pub(super) range: Option<&'a [u8]>,
    pub(super) preflight: Preflight<'a>,
    pub(super) host: Option<&'a [u8]>,
    pub(super) cookie: Option<&'a [u8]>,
    pub(super) forwarded_for: Option<&'a [u8]>,
    pub(super) origin: Option<&'a [u8]>,
    pub(super) accept_encoding: Option<&'a [u8]>,
    content_length: Option<u64>,
    transfer: Option<Transfer>,
    expects_continue: bool,
    expectation_unknown: bool,
    close: bool,
    keep_alive: bool,
}

/// What the transfer codings, of all lines together, come to (RFC 9112 s6.1).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    /// The last one is not chunked.
    NotChunked,
    /// The last one is chunked, and no other is.
    Chunked,
    /// Something follows chunked.
    Faulty,
}

/// What follows a request's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// A body of so many bytes; without one, 0.
    Length(u64),
    /// Chunks.
    Chunked,
}

impl<'a> Fields<'a> {
    /// Takes one line in.
    pub(super) fn take(&mut self, name: &str, value: &'a [u8]) -> Result<(), Status> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // Most fields of a browser's request are none of ours: the first letter sorts them out.
        match name.as_bytes().first().map(u8::to_ascii_lowercase) {
            Some(b'h') if is("host") => put_once(&mut self.host, value)?,
            Some(b'c') if is("connection") => self.take_connection(value),
            Some(b'c') if is("cookie") => self.cookie = self.cookie.or(Some(value)),
            Some(b'x') if is("x-forwarded-for") => self.forwarded_for = Some(value),
            Some(b'o') if is("origin") => self.origin = self.origin.or(Some(value)),
            Some(b'c') if is("content-length") => self.take_content_length(value)?,
            Some(b't') if is("transfer-encoding") => self.take_transfer_encoding(value),
            Some(b'e') if is("expect") => {
                let is_known = value.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue |= is_known;
                self.expectation_unknown |= !is_known;
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
            Some(b'a') if is("accept-encoding") => {
                self.accept_encoding = self.accept_encoding.or(Some(value));
            }
            Some(b'a') if is("access-control-request-method") => {
                put_once(&mut self.preflight.method, value)?;
            }
            Some(b'a') if is("access-control-request-headers") => {
                put_once(&mut self.preflight.headers, value)?;
            }
            _ => {}
        }
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

    /// RFC 9112 s6.1: "A sender MUST NOT apply the chunked transfer coding more than once", and
    /// several lines are one list.
    fn take_transfer_encoding(&mut self, value: &[u8]) {
        for coding in value.split(|&byte| byte == b',') {
            let is_chunked = coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
            self.transfer = Some(match self.transfer {
                Some(Transfer::Chunked | Transfer::Faulty) => Transfer::Faulty,
                _ if is_chunked => Transfer::Chunked,
                _ => Transfer::NotChunked,
            });
        }
    }

    /// RFC 9112 s3.2: 400 to "any HTTP/1.1 request message that lacks a Host header field and to
    /// any request message that contains [...] a Host header field with an invalid field value".
    /// An empty value names no server; it is excused only where the target itself names one.
    pub(super) fn check_host(
        &self,
        version_minor: u8,
        target_has_authority: bool,
    ) -> Result<(), Status> {
        let is_right = match self.host {
            None => version_minor == 0,
            Some([]) => target_has_authority,
            Some(host) => is_authority(host),
        };
        if is_right {
            Ok(())
        } else {
            Err(Status::BadRequest)
        }
    }

    /// What body there is, or 400 if that cannot be told safely.
    pub(super) fn framing(&self, version_minor: u8) -> Result<Body, Status> {
        let Some(transfer) = self.transfer else {
            return Ok(Body::Length(self.content_length.unwrap_or(0)));
        };
        // RFC 9112 s6.1: in HTTP/1.0, or beside a length, a transfer coding means faulty framing.
        if version_minor == 0 || self.content_length.is_some() {
            return Err(Status::BadRequest);
        }
        // RFC 9112 s6.3 rule 4: if chunked is not the final coding, "the server MUST respond with
        // the 400 (Bad Request) status code and then close the connection".
        match transfer {
            Transfer::Chunked => Ok(Body::Chunked),
            Transfer::NotChunked | Transfer::Faulty => Err(Status::BadRequest),
        }
    }

    /// Bytes of the body, or how the request is refused although it is understood. RFC 9110 s9.3.1
    /// gives a body of a `GET` no meaning; some clients send a short one all the same.
    pub(super) fn check_willing(&self, version_minor: u8, body: Body) -> Result<u16, Status> {
        let bytes = match body {
            Body::Length(bytes) => u16::try_from(bytes).unwrap_or(u16::MAX),
            Body::Chunked => u16::MAX,
        };
        if bytes > BODY_BYTES_MAX {
            return Err(Status::ContentTooLarge);
        }
        // RFC 9110 s10.1.1: HTTP/1.0 knows no expectations.
        if self.expectation_unknown && version_minor > 0 {
            return Err(Status::ExpectationFailed);
        }
        Ok(bytes)
    }

    /// RFC 9112 s9.3. A client that waits for `100 (Continue)` gets the reply instead. It may send
    /// the body then or leave it out (RFC 9110 s10.1.1), so that nobody knows where the next request
    /// begins.
    pub(super) fn keep_alive(&self, version_minor: u8, body_bytes: u16) -> bool {
        let may_skip_body = self.expects_continue && version_minor > 0 && body_bytes > 0;
        !self.close && (version_minor > 0 || self.keep_alive) && !may_skip_body
    }
}

/// A field given twice has no one meaning for most of these fields; nginx refuses it as well.
fn put_once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Status> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Status::BadRequest),
    }
}
