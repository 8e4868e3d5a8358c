//! Common Media Client Data (CTA-5004): what players say of their playback with a request, in a query argument
//! or in fields of the head.
//!
//! ```text
//! GET /a/7.m4s?CMCD=bl%3D2100%2Cbs%2Cmtp%3D25400%2Csid%3D%22f7a1%22 HTTP/1.1
//! CMCD-Request: bl=2100,mtp=25400
//! CMCD-Status: bs
//! ```
//!
//! It takes bytes of any kind and refuses nothing: keys that are unknown or have no value of theirs are skipped.
//! It keeps the keys that tell of starving players. Bounds: [`LIST_BYTES_MAX`] of a list, [`SESSION_BYTES_MAX`].

use crate::HeadText;

/// Bytes of a list that are looked at; of the query's, after decoding.
const LIST_BYTES_MAX: usize = 4096;
/// Bytes of a session's identifier; CTA-5004 allows 64 characters. A longer one is skipped.
const SESSION_BYTES_MAX: usize = 64;

/// What a player says with a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cmcd {
    /// `bs`: its buffer has run empty since the request before, so that playback stopped.
    pub is_starved: bool,
    /// `bl`: what it has buffered of the kind of media that it asks for, milliseconds.
    pub buffer_ms: Option<u32>,
    /// `mtp`: the throughput that it measured, kilobits a second.
    pub throughput_kbps: Option<u32>,
    /// `br`: the bitrate of what it asks for, kilobits a second.
    pub bitrate_kbps: Option<u32>,
    /// `sid`: which playback it is.
    pub session: Option<String>,
}

impl Cmcd {
    /// Finds it in a request's head; `None`: the player says nothing.
    #[must_use]
    pub fn find(text: &HeadText<'_>) -> Option<Self> {
        let argument = argument_of(text.request_line);
        if argument.is_none() && text.cmcd.iter().all(Option::is_none) {
            return None;
        }
        let mut found = Self::default();
        if let Some(argument) = argument {
            found.take(&decode(argument));
        }
        for list in text.cmcd.into_iter().flatten() {
            found.take(list.get(..LIST_BYTES_MAX).unwrap_or(list));
        }
        Some(found)
    }

    /// Takes the keys of a list.
    fn take(&mut self, list: &[u8]) {
        let mut rest = list;
        while !rest.is_empty() {
            let end = item_end(rest);
            let (item, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            let item = item.trim_ascii();
            let equals = item.iter().position(|&byte| byte == b'=');
            let (key, value) = match equals.and_then(|at| item.split_at_checked(at)) {
                Some((key, value)) => (key, value.get(1..).unwrap_or_default()),
                None => (item, &b"true"[..]),
            };
            match key {
                b"bs" => self.is_starved |= value == b"true",
                b"bl" => self.buffer_ms = number(value).or(self.buffer_ms),
                b"mtp" => self.throughput_kbps = number(value).or(self.throughput_kbps),
                b"br" => self.bitrate_kbps = number(value).or(self.bitrate_kbps),
                b"sid" => self.session = session(value).or(self.session.take()),
                _ => {}
            }
        }
    }
}

/// The value of `CMCD` in the query of a request line.
fn argument_of(request_line: &[u8]) -> Option<&[u8]> {
    let target = request_line.split(|&byte| byte == b' ').nth(1)?;
    let mark = target.iter().position(|&byte| byte == b'?')?;
    let query = target.get(mark + 1..)?;
    let mut arguments = query.split(|&byte| byte == b'&');
    arguments.find_map(|argument| argument.strip_prefix(b"CMCD="))
}

/// Percent-decoded, cut at [`LIST_BYTES_MAX`]. What is no escape stays as it is.
fn decode(argument: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = argument;
    while let Some((&first, behind)) = rest.split_first()
        && bytes.len() < LIST_BYTES_MAX
    {
        let escape = behind.first_chunk().filter(|_| first == b'%');
        let byte = escape.and_then(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        rest = match byte {
            Some(_) => behind.get(2..).unwrap_or_default(),
            None => behind,
        };
        bytes.push(byte.unwrap_or(first));
    }
    bytes
}

/// A hexadecimal digit's value.
fn digit(byte: u8) -> Option<u8> {
    let value = char::from(byte).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Where the first item of a list ends: at a comma outside quotes, or with the list.
fn item_end(list: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_end = |&byte: &u8| {
        let ends = byte == b',' && !is_quoted;
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    };
    list.iter().position(is_end).unwrap_or(list.len())
}

fn number(value: &[u8]) -> Option<u32> {
    // `parse` would take a sign.
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok()
}

/// The text between quotes, without its escapes.
fn session(value: &[u8]) -> Option<String> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut text = Vec::with_capacity(inner.len().min(SESSION_BYTES_MAX));
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        if text.len() == SESSION_BYTES_MAX {
            return None;
        }
        let byte = if byte == b'\\' { *bytes.next()? } else { byte };
        text.push(byte);
    }
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::{Cmcd, LIST_BYTES_MAX, SESSION_BYTES_MAX};
    use crate::HeadText;

    fn find(head: &str) -> Option<Cmcd> {
        Cmcd::find(&HeadText::find(head.as_bytes()))
    }

    fn queried(query: &str) -> Option<Cmcd> {
        find(&format!("GET /a?{query} HTTP/1.1\r\n\r\n"))
    }

    #[test]
    fn the_query_and_the_fields_say_the_same() {
        let expected = Cmcd {
            is_starved: true,
            buffer_ms: Some(21_300),
            throughput_kbps: Some(25_400),
            bitrate_kbps: Some(3_200),
            session: Some("6e2f\"b5,50".into()),
        };
        let query = "x=1&CMCD=bl%3D21300%2Cbr%3D3200%2Cbs%2Cmtp%3D25400%2C\
            nor%3D%22..%252F300kbps%252Ftrack.m4v%22%2Csid%3D%226e2f%5C%22b5%2C50%22&y";
        assert_eq!(queried(query), Some(expected.clone()));
        let head = "GET /a HTTP/1.1\r\nCMCD-Request: bl=21300,mtp=25400,su\r\n\
            cmcd-object:br=3200,d=4004,ot=v\r\nCMCD-Status: bs,rtp=12000\r\n\
            CMCD-Session: sf=h, sid=\"6e2f\\\"b5,50\"\r\n\r\n";
        assert_eq!(find(head), Some(expected));
    }

    #[test]
    fn who_says_nothing_says_nothing() {
        for query in ["", "cmcd=bs", "XCMCD=bs", "a=CMCD=bs"] {
            assert_eq!(queried(query), None, "{query}");
        }
        assert_eq!(find("GET /CMCD=bs HTTP/1.1\r\n\r\n"), None);
        assert_eq!(queried("CMCD="), Some(Cmcd::default()));
        assert_eq!(find("CMCD-Status: bs\r\n\r\n"), None);
    }

    #[test]
    fn what_is_no_value_of_its_key_is_skipped() {
        let skipped =
            "CMCD=bs%3Dfalse,bl%3D-1,bl%3D+1,mtp,br%3D4294967296,sid%3Dabc,sid%3D%22a,bl%3D";
        assert_eq!(queried(skipped), Some(Cmcd::default()));
        let found = queried("CMCD=br%3D4294967295,bl%3D%2,BL%3D5").unwrap();
        assert_eq!(
            (found.bitrate_kbps, found.buffer_ms),
            (Some(u32::MAX), None)
        );
    }

    #[test]
    fn a_session_and_a_list_have_limits() {
        let session = |bytes| {
            let text = "s".repeat(bytes);
            queried(&format!("CMCD=sid%3D%22{text}%22"))
                .unwrap()
                .session
        };
        assert_eq!(session(SESSION_BYTES_MAX).map(|it| it.len()), Some(64));
        assert_eq!(session(SESSION_BYTES_MAX + 1), None);
        let starved = |before: usize| {
            let list = format!("CMCD={}bs", ",".repeat(before));
            queried(&list).unwrap().is_starved
        };
        assert!(starved(LIST_BYTES_MAX - 2) && !starved(LIST_BYTES_MAX - 1));
    }
}
