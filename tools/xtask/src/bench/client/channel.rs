//! How a connection's bytes become replies: what to do with the socket next, and what was taken.
//!
//! No I/O here. A channel says which bytes it must see ([`Want::Copy`]) and which only need to be
//! counted ([`Want::Discard`]); the load takes just those off the socket and reports how many came.

use anyhow::{Context as _, Result, ensure};

use super::sealed::Sealed;

/// Largest reply head, bytes.
pub(super) const HEAD_BYTES_MAX: usize = 4096;

/// What a connection wants off its socket.
#[derive(Debug)]
pub(super) enum Want<'a> {
    /// Bytes to look at: at most these.
    Copy(&'a mut [u8]),
    /// Bytes to count: at most so many.
    Discard(u64),
    /// Nothing: no request is open.
    Nothing,
}

/// A connection's way to carry requests and replies.
#[derive(Debug)]
pub(super) enum Channel {
    /// HTTP as it is.
    Plain(Plain),
    /// HTTP in TLS records.
    Sealed(Box<Sealed>),
}

impl Channel {
    /// The bytes to send for a request; the channel then awaits its reply.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Plain(plain) => plain.reply.open().map(|()| request.to_vec()),
            Self::Sealed(sealed) => sealed.ask(request),
        }
    }

    /// What to take off the socket next.
    pub(super) fn want(&mut self) -> Want<'_> {
        match self {
            Self::Plain(plain) => plain.want(),
            Self::Sealed(sealed) => sealed.want(),
        }
    }

    /// Reports that `bytes` (above 0) of what was wanted have come.
    ///
    /// # Errors
    /// Anything but what a right reply brings.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        match self {
            Self::Plain(plain) => plain.take(bytes),
            Self::Sealed(sealed) => sealed.take(bytes),
        }
    }

    /// Whether the open request's reply is complete; asked once, and the channel is free again.
    pub(super) fn is_done(&mut self) -> bool {
        match self {
            Self::Plain(plain) => plain.reply.close(),
            Self::Sealed(sealed) => sealed.reply.close(),
        }
    }

    /// TLS records received since the handshake; none in plain HTTP.
    pub(super) fn records(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Sealed(sealed) => sealed.records(),
        }
    }
}

/// Where a connection is in its reply, whatever carries it.
#[derive(Debug)]
pub(super) struct Reply {
    object_bytes: u64,
    at: At,
}

#[derive(Debug)]
enum At {
    /// No request is open.
    Idle,
    Head(Vec<u8>),
    Body {
        left_bytes: u64,
    },
}

impl Reply {
    /// Every reply is to have `object_bytes` of body.
    pub(super) fn new(object_bytes: u64) -> Self {
        let at = At::Idle;
        Self { object_bytes, at }
    }

    /// A request has been made.
    pub(super) fn open(&mut self) -> Result<()> {
        ensure!(matches!(self.at, At::Idle), "one request at a time");
        self.at = At::Head(Vec::new());
        Ok(())
    }

    /// Whether the reply is complete; then nothing is open any more.
    pub(super) fn close(&mut self) -> bool {
        let is_done = matches!(self.at, At::Body { left_bytes: 0 });
        if is_done {
            self.at = At::Idle;
        }
        is_done
    }

    /// Bytes of the body that have not come; `None` outside it.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        match self.at {
            At::Body { left_bytes } => Some(left_bytes),
            At::Idle | At::Head(_) => None,
        }
    }

    /// Whether a request is open.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.at, At::Idle)
    }

    /// Bytes of the reply, seen.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let At::Head(head) = &mut self.at else {
            return self.count(bytes.len() as u64);
        };
        head.extend_from_slice(bytes);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            check_head(&head[..end], self.object_bytes)?;
            let early = (head.len() - end - 4) as u64;
            self.at = At::Body {
                left_bytes: self.object_bytes,
            };
            return self.count(early);
        }
        ensure!(head.len() < HEAD_BYTES_MAX, "a reply head above 4 KiB");
        Ok(())
    }

    /// Bytes of the body, unseen.
    pub(super) fn count(&mut self, bytes: u64) -> Result<()> {
        let At::Body { left_bytes } = &mut self.at else {
            ensure!(bytes == 0, "{bytes} bytes that belong to no reply");
            return Ok(());
        };
        *left_bytes = left_bytes
            .checked_sub(bytes)
            .with_context(|| format!("{bytes} bytes where {left_bytes} are left of a reply"))?;
        Ok(())
    }
}

/// A connection without TLS.
#[derive(Debug)]
pub(super) struct Plain {
    reply: Reply,
    piece: Box<[u8; HEAD_BYTES_MAX]>,
}

impl Plain {
    pub(super) fn new(object_bytes: u64) -> Self {
        Self {
            reply: Reply::new(object_bytes),
            piece: Box::new([0; HEAD_BYTES_MAX]),
        }
    }

    fn want(&mut self) -> Want<'_> {
        match self.reply.left_bytes() {
            Some(left_bytes) => Want::Discard(left_bytes),
            None if self.reply.is_open() => Want::Copy(&mut self.piece[..]),
            None => Want::Nothing,
        }
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        if self.reply.left_bytes().is_some() {
            return self.reply.count(bytes as u64);
        }
        let piece = self.piece.get(..bytes).context("more than was wanted")?;
        self.reply.read(piece)
    }
}

/// Refuses anything but 200 with the expected length.
pub(super) fn check_head(head: &[u8], object_bytes: u64) -> Result<()> {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    ensure!(
        text.starts_with("http/1.1 200 "),
        "not a 200: {:?}",
        text.lines().next()
    );
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|value| value.trim().parse::<u64>().ok());
    ensure!(
        length == Some(object_bytes),
        "Content-Length is {length:?}, not {object_bytes}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";

    #[test]
    fn only_the_expected_head_passes() {
        assert!(check_head(HEAD, 5).is_ok());
        assert!(check_head(HEAD, 6).is_err());
        assert!(check_head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n", 5).is_err());
        assert!(check_head(b"HTTP/1.1 200 OK\r\n\r\n", 5).is_err());
    }

    #[test]
    fn a_reply_in_pieces_is_complete_at_its_last_byte_and_not_before() {
        let mut reply = Reply::new(5);
        reply.open().expect("nothing is open");
        assert!(reply.open().is_err(), "one at a time");
        for byte in HEAD {
            assert_eq!(reply.left_bytes(), None);
            reply.read(&[*byte]).expect("a head");
        }
        reply.read(b"ab").expect("seen");
        reply.count(2).expect("unseen");
        assert!(!reply.close());
        reply.count(1).expect("the last");
        assert!(reply.close());
        assert!(!reply.close() && !reply.is_open(), "told once");
    }

    #[test]
    fn bytes_beyond_a_reply_are_an_error_however_they_come() {
        let body = |count: usize| [HEAD, &[b'x'; 6][..count]].concat();
        let mut reply = Reply::new(5);
        reply.open().expect("open");
        reply.read(&body(5)).expect("just right");
        assert!(reply.count(1).is_err());
        let mut reply = Reply::new(5);
        reply.open().expect("open");
        assert!(reply.read(&body(6)).is_err());
        assert!(Reply::new(5).read(b"x").is_err(), "nothing was asked for");
    }

    #[test]
    fn a_head_has_a_limit() {
        let mut reply = Reply::new(5);
        reply.open().expect("open");
        reply.read(&[b'x'; HEAD_BYTES_MAX - 1]).expect("below it");
        assert!(reply.read(b"x").is_err());
    }

    #[test]
    fn plain_bodies_are_never_copied() {
        let mut plain = Plain::new(5);
        assert!(matches!(plain.want(), Want::Nothing));
        plain.reply.open().expect("open");
        let Want::Copy(into) = plain.want() else {
            panic!("a head is to be seen");
        };
        into[..HEAD.len()].copy_from_slice(HEAD);
        plain.take(HEAD.len()).expect("a head");
        assert!(matches!(plain.want(), Want::Discard(5)));
        plain.take(5).expect("a body");
        assert!(plain.reply.close());
    }
}
