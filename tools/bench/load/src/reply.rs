//! Where a connection is in its reply, whatever carries it.
//!
//! A head is parsed, a body counted. It refuses replies without a `Content-Length`:
//! what is chunked or ends with the connection cannot be counted without being read. A wrong
//! status or length is noted and the body still taken, so that the connection lives on.
//! Bounded by: [`HEAD_BYTES_MAX`], [`HEADERS_MAX`].

use crate::fault::{Fault, FaultKind};

/// Largest reply head, bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 8192;

/// Most header lines of a reply.
const HEADERS_MAX: usize = 64;

/// A reply under way.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    at: At,
    /// What the body's length is to be, if it is known.
    expected_bytes: Option<u64>,
    fault: Option<Fault>,
    total_bytes: u64,
    /// Bytes of bodies that have come since they were last taken account of.
    fresh_bytes: u64,
}

#[derive(Debug, Default)]
enum At {
    /// No request is open.
    #[default]
    Idle,
    Head(Vec<u8>),
    Body {
        left_bytes: u64,
    },
}

impl Reply {
    /// A request has been made.
    pub(crate) fn open(&mut self, expected_bytes: Option<u64>) {
        assert!(matches!(self.at, At::Idle), "one request at a time");
        self.at = At::Head(Vec::new());
        self.expected_bytes = expected_bytes;
        self.fault = None;
    }

    /// What was wrong with the reply, if anything, once it is complete; told once. Then nothing is open
    /// any more.
    pub(crate) fn close(&mut self) -> Option<Option<Fault>> {
        if !matches!(self.at, At::Body { left_bytes: 0 }) {
            return None;
        }
        self.at = At::Idle;
        Some(self.fault.take())
    }

    /// Bytes of the body that are still to come; none outside it.
    pub(crate) fn countable_bytes(&self) -> Option<u64> {
        match self.at {
            At::Body { left_bytes } => Some(left_bytes),
            At::Idle | At::Head(_) => None,
        }
    }

    /// Bytes of bodies that have come since this was last asked.
    pub(crate) fn take_fresh_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.fresh_bytes)
    }

    /// Bytes of the reply, seen.
    ///
    /// # Errors
    /// What leaves no hope of finding the next reply.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let At::Head(head) = &mut self.at else {
            return self.count(bytes.len() as u64);
        };
        // Almost always the head comes whole: then nothing is kept.
        if !head.is_empty() {
            head.extend_from_slice(bytes);
            let whole = std::mem::take(head);
            return self.read_head(&whole);
        }
        self.read_head(bytes)
    }

    /// Bytes of the body, unseen.
    ///
    /// # Errors
    /// More of them than belong to the reply.
    pub(crate) fn count(&mut self, bytes: u64) -> Result<(), Fault> {
        let left_bytes = match &mut self.at {
            At::Body { left_bytes } => left_bytes,
            At::Idle | At::Head(_) if bytes == 0 => return Ok(()),
            At::Idle | At::Head(_) => return Err(stray(bytes)),
        };
        let Some(left) = left_bytes.checked_sub(bytes) else {
            return Err(stray(bytes - *left_bytes));
        };
        *left_bytes = left;
        self.fresh_bytes += bytes;
        Ok(())
    }

    /// What it means that the server has closed now.
    pub(crate) fn ended(&self) -> Fault {
        let (kind, text) = match &self.at {
            At::Idle => (FaultKind::Closed, "the server closed".to_owned()),
            At::Head(head) if head.is_empty() => (
                FaultKind::Closed,
                "the server closed before a reply it owed".to_owned(),
            ),
            At::Head(head) => (
                FaultKind::Length,
                format!("closed after {} bytes of a head", head.len()),
            ),
            At::Body { left_bytes } => (
                FaultKind::Length,
                format!(
                    "closed with {left_bytes} of {} bytes missing",
                    self.total_bytes
                ),
            ),
        };
        Fault::new(kind, text)
    }

    fn read_head(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(head) = Head::parse(bytes)? else {
            if bytes.len() >= HEAD_BYTES_MAX {
                let text = format!("no end within {HEAD_BYTES_MAX} bytes");
                return Err(Fault::new(FaultKind::Head, text));
            }
            self.at = At::Head(bytes.to_vec());
            return Ok(());
        };
        self.begin_body(&head);
        self.count(bytes.len().saturating_sub(head.bytes) as u64)
    }

    fn begin_body(&mut self, head: &Head) {
        self.total_bytes = head.body_bytes;
        self.at = At::Body {
            left_bytes: head.body_bytes,
        };
        let expected = self.expected_bytes;
        let wrong_length = expected.filter(|bytes| *bytes != head.body_bytes);
        self.fault = if head.status != STATUS_OK {
            let text = format!("{} with {} bytes", head.status, head.body_bytes);
            Some(Fault::new(FaultKind::Status, text))
        } else {
            wrong_length.map(|bytes| {
                let text = format!("{} bytes instead of {bytes}", head.body_bytes);
                Fault::new(FaultKind::Length, text)
            })
        };
    }
}

/// The one status a reply is to have (RFC 9110 s15.3.1).
const STATUS_OK: u16 = 200;

fn stray(bytes: u64) -> Fault {
    Fault::new(
        FaultKind::Length,
        format!("{bytes} bytes that belong to no reply"),
    )
}

/// What matters of a reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Length of the head itself.
    bytes: usize,
    status: u16,
    body_bytes: u64,
}

impl Head {
    /// The head `bytes` begin with; none if its end has not come.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let bytes = match response.parse(bytes) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(Fault::new(FaultKind::Head, error.to_string())),
        };
        let status = response.code.unwrap_or(0);
        let value = |name: &str| {
            let mut found = response
                .headers
                .iter()
                .filter(|it| it.name.eq_ignore_ascii_case(name));
            let value = found.next().map(|it| it.value.trim_ascii());
            value.filter(|_| found.next().is_none())
        };
        let length = value("content-length").and_then(|value| std::str::from_utf8(value).ok());
        let body_bytes = length.and_then(|value| value.parse().ok());
        let body_bytes = match (body_bytes, status) {
            // RFC 9110 s8.6: these have no body and need not say so.
            (_, 204 | 304) => 0,
            (Some(bytes), _) => bytes,
            (None, _) => {
                let text = format!("{status} without a Content-Length");
                return Err(Fault::new(FaultKind::Head, text));
            }
        };
        Ok(Some(Self {
            bytes,
            status,
            body_bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";

    fn open(expected: Option<u64>) -> Reply {
        let mut reply = Reply::default();
        reply.open(expected);
        reply
    }

    fn outcome(head: &str, body: &[u8]) -> Option<Fault> {
        let mut reply = open(None);
        reply.read(head.as_bytes()).expect("a head");
        reply.read(body).expect("a body");
        reply.close().expect("complete")
    }

    fn kind_of(result: Result<(), Fault>) -> FaultKind {
        result.expect_err("wrong").kind
    }

    #[test]
    fn a_reply_in_pieces_is_complete_at_its_last_byte_and_not_before() {
        let mut reply = open(None);
        for byte in HEAD {
            assert_eq!(reply.countable_bytes(), None);
            reply.read(&[*byte]).expect("a head");
        }
        reply.read(b"ab").expect("seen");
        reply.count(2).expect("unseen");
        assert_eq!(reply.close(), None);
        assert_eq!(reply.countable_bytes(), Some(1));
        reply.count(1).expect("the last");
        assert_eq!(reply.take_fresh_bytes(), 5);
        assert_eq!(reply.take_fresh_bytes(), 0);
        assert_eq!(reply.close(), Some(None));
        assert_eq!(reply.close(), None, "told once");
    }

    #[test]
    fn bytes_beyond_a_reply_are_an_error_however_they_come() {
        let body = |count: usize| [HEAD, &[b'x'; 6][..count]].concat();
        let mut reply = open(None);
        reply.read(&body(5)).expect("just right");
        assert_eq!(kind_of(reply.count(1)), FaultKind::Length);
        let mut reply = open(None);
        assert_eq!(kind_of(reply.read(&body(6))), FaultKind::Length);
        let mut idle = Reply::default();
        assert_eq!(
            kind_of(idle.read(b"x")),
            FaultKind::Length,
            "nothing was asked"
        );
    }

    #[test]
    fn a_head_has_a_limit() {
        let long = |bytes: usize| {
            let mut head = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
            head.resize(bytes, b'x');
            head
        };
        let mut reply = open(None);
        reply.read(&long(HEAD_BYTES_MAX - 1)).expect("below it");
        assert_eq!(kind_of(reply.read(b"x")), FaultKind::Head);
    }

    #[test]
    fn another_status_or_length_is_noted_and_the_connection_lives() {
        let wrong = outcome("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n", b"no");
        assert_eq!(wrong.expect("a status").kind, FaultKind::Status);
        assert!(outcome("HTTP/1.1 304 Not Modified\r\n\r\n", b"").is_some());
        for (expected, is_right) in [(4, false), (5, true), (6, false)] {
            let mut reply = open(Some(expected));
            reply.read(HEAD).expect("a head");
            reply.count(5).expect("a body");
            let fault = reply.close().expect("complete");
            assert_eq!(fault.is_none(), is_right, "{expected}");
        }
    }

    #[test]
    fn heads_that_do_not_tell_the_length_are_refused() {
        for head in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
        ] {
            let mut reply = open(None);
            assert_eq!(
                kind_of(reply.read(head.as_bytes())),
                FaultKind::Head,
                "{head}"
            );
        }
    }

    #[test]
    fn an_end_amid_a_reply_is_a_wrong_length() {
        assert_eq!(Reply::default().ended().kind, FaultKind::Closed);
        let mut reply = open(None);
        let ended = |reply: &Reply| reply.ended().kind;
        assert_eq!(ended(&reply), FaultKind::Closed);
        reply.read(b"HTTP").expect("a part");
        assert_eq!(ended(&reply), FaultKind::Length);
        reply.read(&HEAD[4..]).expect("the rest");
        assert_eq!(ended(&reply), FaultKind::Length);
    }
}
