//! Request targets (RFC 9112 s3.2, RFC 3986): from the bytes of a request line to a path.
//!
//! It refuses what has no single safe meaning: a percent sign without two hex digits, a byte that
//! decodes to a control character or a backslash, a path that is not UTF-8, a path that leads above
//! the root, and an invalid authority. The path that comes out starts
//! with `/` and has no empty, `.` or `..` segment, except that one `/` may end it. Its length is
//! bounded by the target's.

use crate::Status;
use crate::authority::is_authority;

/// A parsed request target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target<'a> {
    /// Percent-decoded, with dot segments resolved.
    pub(crate) path: String,
    /// The text behind the first `?`, not decoded, without a fragment.
    pub(crate) query: Option<&'a [u8]>,
    /// The authority of a target in absolute-form: then the value of `Host` is ignored (RFC 9112 s3.2.2).
    pub(crate) authority: Option<&'a [u8]>,
}

impl<'a> Target<'a> {
    /// Reads a target in origin-form, absolute-form or asterisk-form.
    ///
    /// The query names no object: an object has no variants.
    pub(crate) fn parse(target: &'a [u8]) -> Result<Self, Status> {
        let (before, _fragment) = split_at_byte(target, b'#');
        let (before, query) = split_at_byte(before, b'?');
        let (authority, encoded) = authority_and_path(before)?;
        Ok(Self {
            path: decode_path(encoded)?,
            query,
            authority,
        })
    }
}

/// What stands before the first `separator`, and what behind it, if there is one.
fn split_at_byte(bytes: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|&byte| byte == separator) {
        Some(at) => (&bytes[..at], bytes.get(at + 1..)),
        None => (bytes, None),
    }
}

/// The path, percent-decoded and with its dot segments resolved.
///
/// Decoding comes first and dots are resolved after, so that `%2e%2e` cannot climb where `..` may
/// not; an encoded slash is a slash. Repeated slashes are one, as nginx does by default.
fn decode_path(encoded: &[u8]) -> Result<String, Status> {
    let mut path: Vec<u8> = Vec::with_capacity(encoded.len().max(1));
    let mut segment_start = 0;
    let mut bytes = Decoded { rest: encoded };
    while let Some(byte) = bytes.next()? {
        if byte != b'/' {
            path.push(byte);
            continue;
        }
        resolve_last_segment(&mut path, segment_start)?;
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        segment_start = path.len();
    }
    resolve_last_segment(&mut path, segment_start)?;
    debug_assert_eq!(path.first(), Some(&b'/'), "a decoded path is absolute");
    String::from_utf8(path).map_err(|_| Status::BadRequest)
}

/// Removes the segment that starts at `start` if it is a dot segment, and for `..` the one before
/// (RFC 3986 s5.2.4). A path that leads above the root is refused.
fn resolve_last_segment(path: &mut Vec<u8>, start: usize) -> Result<(), Status> {
    match path.get(start..) {
        Some(b".") => path.truncate(start),
        Some(b"..") => {
            path.truncate(start.saturating_sub(1));
            let parent_slash = path.iter().rposition(|&byte| byte == b'/');
            path.truncate(parent_slash.ok_or(Status::BadRequest)? + 1);
        }
        _ => {}
    }
    Ok(())
}

/// The authority, if there is one, and the path's bytes, still encoded, of a target without query and fragment.
fn authority_and_path(target: &[u8]) -> Result<(Option<&[u8]>, &[u8]), Status> {
    if target.first() == Some(&b'/') {
        return Ok((None, target));
    }
    // RFC 9112 s3.2.4: `OPTIONS *` is about the server as a whole; here it is about its root.
    if target == b"*" {
        return Ok((None, b"/"));
    }
    // RFC 9112 s3.2.2: "A server MUST accept the absolute-form in requests".
    let after_scheme = strip_prefix_ignoring_case(target, b"http://")
        .or_else(|| strip_prefix_ignoring_case(target, b"https://"))
        .ok_or(Status::BadRequest)?;
    let slash = after_scheme.iter().position(|&byte| byte == b'/');
    let (authority, path) = after_scheme.split_at(slash.unwrap_or(after_scheme.len()));
    if !is_authority(authority) {
        return Err(Status::BadRequest);
    }
    Ok((Some(authority), if path.is_empty() { b"/" } else { path }))
}

fn strip_prefix_ignoring_case<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Percent-decoding, one byte at a time.
struct Decoded<'a> {
    rest: &'a [u8],
}

impl Decoded<'_> {
    fn next(&mut self) -> Result<Option<u8>, Status> {
        let (byte, rest) = match self.rest {
            [] => return Ok(None),
            [b'%', high, low, rest @ ..] => {
                let high = hex_digit(*high).ok_or(Status::BadRequest)?;
                let low = hex_digit(*low).ok_or(Status::BadRequest)?;
                (high * 16 + low, rest)
            }
            [b'%', ..] => return Err(Status::BadRequest),
            [byte, rest @ ..] => (*byte, rest),
        };
        self.rest = rest;
        // A NUL would end the name in the kernel, other controls would corrupt logs, and a
        // backslash is a separator for some clients and an ordinary character for Linux.
        if byte.is_ascii_control() || byte == b'\\' {
            return Err(Status::BadRequest);
        }
        Ok(Some(byte))
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::samples::{RIGHT, WRONG, WRONG_LITERALS};

    fn path_of_target(target: &[u8]) -> Result<String, Status> {
        Target::parse(target).map(|target| target.path)
    }

    #[test]
    fn queries_and_authorities() {
        for (target, query, authority) in [
            ("/a", None, None),
            ("/a?", Some(""), None),
            ("/a?b?c", Some("b?c"), None),
            ("/a?b#c?d", Some("b"), None),
            ("/a#b?c", None, None),
            ("*", None, None),
            ("http://h", None, Some("h")),
            ("http://h?q", Some("q"), Some("h")),
            ("https://h/a?q#f", Some("q"), Some("h")),
        ] {
            let parsed = Target::parse(target.as_bytes()).unwrap();
            assert_eq!(parsed.query, query.map(str::as_bytes), "{target}");
            assert_eq!(parsed.authority, authority.map(str::as_bytes), "{target}");
        }
    }

    #[test]
    fn an_absolute_target_has_an_authority_of_the_grammar() {
        for authority in RIGHT {
            let target = format!("http://{authority}/x");
            assert_eq!(path_of_target(target.as_bytes()).as_deref(), Ok("/x"));
        }
        // A path, query or fragment would begin there.
        let ends = |authority: &&str| authority.contains(['/', '?', '#']);
        let wrong = WRONG.into_iter().chain(WRONG_LITERALS);
        for authority in wrong.filter(|authority| !ends(authority)) {
            let target = format!("http://{authority}/x");
            let refused = path_of_target(target.as_bytes());
            assert_eq!(refused, Err(Status::BadRequest), "{target}");
        }
    }

    #[test]
    fn accepted_targets() {
        for (target, path) in [
            ("/", "/"),
            ("/a/b.mp4", "/a/b.mp4"),
            ("/a/b.mp4?t=1&u=/../x", "/a/b.mp4"),
            ("/a#f?q", "/a"),
            ("/a%20b%2Fc", "/a b/c"),
            ("/%41%4a%4A", "/AJJ"),
            ("/%C3%A9", "/é"),
            ("/é", "/é"),
            ("/a/./b/.", "/a/b/"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/../../c", "/c"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2f..%2fb", "/b"),
            ("//a///b//", "/a/b/"),
            ("/a//../b", "/b"),
            ("/...", "/..."),
            ("/..a/.b./c..", "/..a/.b./c.."),
            ("/%2525", "/%25"),
            ("*", "/"),
            ("http://h", "/"),
            ("http://h?q", "/"),
            ("HTTP://h:80/x/y?q", "/x/y"),
            ("https://h/x", "/x"),
        ] {
            assert_eq!(
                path_of_target(target.as_bytes()).as_deref(),
                Ok(path),
                "{target}"
            );
        }
    }

    #[test]
    fn refused_targets() {
        for target in [
            "",
            "a",
            "?",
            "h:80",
            "ftp://h/x",
            "http://",
            "http:///x",
            "http:/x",
            "/..",
            "/../a",
            "/a/../..",
            "/a/../../b",
            "/%2e%2e/a",
            "/..%2fa",
            "/.//..",
            "/%",
            "/%4",
            "/%4g",
            "/%g4",
            "/%+1",
            "/%00",
            "/a%0a",
            "/%7f",
            "/%ff",
            "/%C3",
            "/a\\b",
            "/%5c..%5c",
            "**",
        ] {
            assert_eq!(
                path_of_target(target.as_bytes()),
                Err(Status::BadRequest),
                "{target}"
            );
        }
    }
}
