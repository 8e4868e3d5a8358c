//! The text of a request head for the access log: the request line and some fields, unchanged.
//!
//! It is apart from [`crate::parse_request`], because a request that was refused is logged too: it
//! takes bytes of any kind, whole or cut anywhere, and refuses nothing. It looks at no more than
//! [`HEAD_BYTES_MAX`] bytes and allocates nothing.

use crate::HEAD_BYTES_MAX;

/// The parts of a request head that access logs have, borrowed from the input, byte for
/// byte as they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadText<'a> {
    /// The request line without its end, or as much of it as has arrived. Empty: only empty lines
    /// have arrived.
    pub request_line: &'a [u8],
    /// The value of the first `Host` field whose line is complete.
    pub host: Option<&'a [u8]>,
    /// The value of the first `Referer` field whose line is complete.
    pub referer: Option<&'a [u8]>,
    /// The value of the first `User-Agent` field whose line is complete.
    pub user_agent: Option<&'a [u8]>,
    /// The values of the first `CMCD-Request`, `CMCD-Object`, `CMCD-Status` and `CMCD-Session` fields whose
    /// lines are complete ([`crate::Cmcd`]).
    pub cmcd: [Option<&'a [u8]>; 4],
}

impl<'a> HeadText<'a> {
    /// Finds them in the head, or the beginning of one, that `input` starts with.
    #[must_use]
    pub fn find(input: &'a [u8]) -> Self {
        let input = input.get(..HEAD_BYTES_MAX).unwrap_or(input);
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let start = input.iter().position(|byte| !is_line_end(byte));
        let mut rest = input
            .get(start.unwrap_or(input.len())..)
            .unwrap_or_default();
        let Some(request_line) = take_line(&mut rest) else {
            return Self {
                request_line: rest,
                ..Self::default()
            };
        };
        let mut found = Self {
            request_line,
            ..Self::default()
        };
        while let Some(line) = take_line(&mut rest)
            && !line.is_empty()
        {
            found.take_field(line);
        }
        found
    }

    fn take_field(&mut self, line: &'a [u8]) {
        // Most fields are none of these: the first letter excludes them.
        let place = match line.first().map(u8::to_ascii_lowercase) {
            Some(b'c') if has_name(line, b"cmcd-request") => &mut self.cmcd[0],
            Some(b'c') if has_name(line, b"cmcd-object") => &mut self.cmcd[1],
            Some(b'c') if has_name(line, b"cmcd-status") => &mut self.cmcd[2],
            Some(b'c') if has_name(line, b"cmcd-session") => &mut self.cmcd[3],
            Some(b'h') if has_name(line, b"host") => &mut self.host,
            Some(b'r') if has_name(line, b"referer") => &mut self.referer,
            Some(b'u') if has_name(line, b"user-agent") => &mut self.user_agent,
            _ => return,
        };
        let colon = line.iter().position(|&byte| byte == b':');
        let value = colon.and_then(|colon| line.get(colon + 1..));
        *place = place.or(value.map(<[u8]>::trim_ascii));
    }
}

/// The line that `rest` starts with, without its end; `None` if its end has not arrived.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let (line, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    Some(line.strip_suffix(b"\r").unwrap_or(line))
}

fn has_name(line: &[u8], name: &[u8]) -> bool {
    match line.split_at_checked(name.len()) {
        Some((start, [b':', ..])) => start.eq_ignore_ascii_case(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::HeadText;
    use crate::HEAD_BYTES_MAX;

    fn find(input: &[u8]) -> (&[u8], Option<&[u8]>, Option<&[u8]>) {
        let text = HeadText::find(input);
        (text.request_line, text.referer, text.user_agent)
    }

    #[test]
    fn the_line_and_both_fields_are_found() {
        let head =
            b"\r\nGET /a?b HTTP/1.1\r\nhost: x\r\nREFERER: http://a/ \r\nUser-Agent:b c\r\n\r\n";
        let expected: (&[u8], Option<&[u8]>, Option<&[u8]>) =
            (b"GET /a?b HTTP/1.1", Some(b"http://a/"), Some(b"b c"));
        assert_eq!(find(head), expected);
        assert_eq!(HeadText::find(head).host, Some(&b"x"[..]));
    }

    #[test]
    fn absent_fields_are_none_and_empty_ones_are_empty() {
        assert_eq!(find(b""), (&b""[..], None, None));
        assert_eq!(find(b"\r\n\n"), (&b""[..], None, None));
        let head = b"GET / HTTP/1.1\nUser-Agent:\nReferers: a\nUser-Agent : b\n\n";
        assert_eq!(find(head), (&b"GET / HTTP/1.1"[..], None, Some(&b""[..])));
    }

    #[test]
    fn fields_end_with_the_head_and_the_first_of_several_counts() {
        let head = b"GET / HTTP/1.1\r\nReferer: 1\r\nReferer: 2\r\n\r\nUser-Agent: next\r\n";
        assert_eq!(find(head), (&b"GET / HTTP/1.1"[..], Some(&b"1"[..]), None));
    }

    #[test]
    fn a_head_cut_anywhere_has_what_came_whole() {
        let head = b"GET / HTTP/1.1\r\nReferer: 1\r\nUser-Agent: 2\r\n\r\n";
        for end in 0..=head.len() {
            let (line, referer, agent) = find(&head[..end]);
            assert!(head.starts_with(line), "{end}");
            assert_eq!(referer.is_some(), end >= 28, "{end}");
            assert_eq!(agent.is_some(), end >= 43, "{end}");
        }
    }

    #[test]
    fn no_more_than_a_head_is_looked_at() {
        let long = vec![0xff; HEAD_BYTES_MAX + 1];
        assert_eq!(find(&long).0.len(), HEAD_BYTES_MAX);
        assert_eq!(find(&long[1..]).0.len(), HEAD_BYTES_MAX);
        assert_eq!(find(&long[2..]).0.len(), HEAD_BYTES_MAX - 1);
    }
}
