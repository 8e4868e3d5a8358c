//! How a connection's bytes become replies: what to take off the socket next, and how.
//!
//! No I/O here. A channel says which bytes it must see ([`Want::Copy`]) and which only need to be
//! counted ([`Want::Discard`]); the engine takes just those off the socket and hands them in.

use crate::fault::Fault;
use crate::reply::{Expectation, HEAD_BYTES_MAX, Reply};
use crate::tls::Sealed;

/// Most bytes of a body to see at once.
const BODY_PIECE_BYTES: usize = 1 << 16;

/// Bytes a buffer must have for any [`Want::Copy`].
pub(crate) const COPY_BYTES_MAX: usize = BODY_PIECE_BYTES;

/// What a connection wants off its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Bytes to look at: at most these.
    Copy(usize),
    /// Bytes to count: at most so many.
    Discard(u64),
}

/// A connection's way to carry requests and replies.
#[derive(Debug)]
pub(crate) enum Channel {
    /// HTTP as it is.
    Plain(Reply),
    /// HTTP in TLS records.
    Sealed(Box<Sealed>),
}

impl Channel {
    /// Appends the bytes of a request to `out`; the channel then awaits its reply.
    ///
    /// # Errors
    /// A request that cannot be sealed.
    pub(crate) fn ask(
        &mut self,
        request: &[u8],
        expected: Expectation,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.reply_mut().open(expected);
        match self {
            Self::Plain(_) => out.extend_from_slice(request),
            Self::Sealed(sealed) => out.extend_from_slice(&sealed.seal(request)?),
        }
        Ok(())
    }

    /// What to take off the socket next. Even when nothing was asked something may come: the
    /// end, a ticket, or what should not.
    pub(crate) fn want(&self) -> Want {
        match self {
            Self::Plain(reply) => match (reply.countable_bytes(), reply.left_bytes()) {
                (Some(bytes), _) => Want::Discard(bytes),
                // Never past the end of a body: the reply behind it would be another's.
                (None, Some(bytes)) => {
                    Want::Copy(usize::try_from(bytes).map_or(BODY_PIECE_BYTES, clamp))
                }
                (None, None) => Want::Copy(HEAD_BYTES_MAX),
            },
            Self::Sealed(sealed) => sealed.want(),
        }
    }

    /// Hands in the bytes of a [`Want::Copy`]; answers the server in `out` where TLS must.
    ///
    /// # Errors
    /// What leaves the connection useless.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            Self::Plain(reply) => reply.read(bytes),
            Self::Sealed(sealed) => sealed.take(bytes, out),
        }
    }

    /// Reports how many bytes of a [`Want::Discard`] have come.
    ///
    /// # Errors
    /// What leaves the connection useless.
    pub(crate) fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        match self {
            Self::Plain(reply) => reply.count(bytes),
            Self::Sealed(sealed) => sealed.skip(bytes),
        }
    }

    /// Appends to `out` what TLS says before a connection is closed.
    ///
    /// # Errors
    /// What cannot be sealed.
    pub(crate) fn take_leave(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if let Self::Sealed(sealed) = self {
            out.extend_from_slice(&sealed.close_notify()?);
        }
        Ok(())
    }

    /// Whether the server has said in TLS that nothing follows.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Sealed(sealed) => sealed.is_closed(),
        }
    }

    pub(crate) fn reply(&self) -> &Reply {
        match self {
            Self::Plain(reply) => reply,
            Self::Sealed(sealed) => &sealed.reply,
        }
    }

    pub(crate) fn reply_mut(&mut self) -> &mut Reply {
        match self {
            Self::Plain(reply) => reply,
            Self::Sealed(sealed) => &mut sealed.reply,
        }
    }

    /// Counts of TLS since this was last asked.
    pub(crate) fn take_counts(&mut self) -> RecordCounts {
        match self {
            Self::Plain(_) => RecordCounts::default(),
            Self::Sealed(sealed) => std::mem::take(&mut sealed.counts),
        }
    }
}

fn clamp(bytes: usize) -> usize {
    bytes.min(BODY_PIECE_BYTES)
}

/// What came in TLS records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordCounts {
    /// Records, of any kind.
    pub(crate) records: u64,
    /// Tickets.
    pub(crate) tickets: u64,
    /// Changes of the server's key.
    pub(crate) key_updates: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Reference;

    fn ask(expected: Expectation) -> Channel {
        let mut channel = Channel::Plain(Reply::default());
        let mut out = Vec::new();
        channel
            .ask(b"GET", expected, &mut out)
            .expect("never sealed");
        assert_eq!(out, b"GET");
        channel
    }

    fn take_head(channel: &mut Channel, body_bytes: u64) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body_bytes}\r\n\r\n");
        channel
            .take(head.as_bytes(), &mut Vec::new())
            .expect("a head");
    }

    #[test]
    fn plain_bodies_are_not_seen_unless_they_are_compared() {
        let mut channel = ask(Expectation::default());
        assert_eq!(channel.want(), Want::Copy(HEAD_BYTES_MAX));
        take_head(&mut channel, 5);
        assert_eq!(channel.want(), Want::Discard(5));
        channel.skip(5).expect("a body");
        assert!(channel.reply_mut().close().is_some());

        for (body_bytes, piece) in [(5, 5), (BODY_PIECE_BYTES as u64 + 1, BODY_PIECE_BYTES)] {
            let check = Reference::Seeded(0).open("/1");
            let mut channel = ask(Expectation {
                body_bytes: None,
                check: Some(Box::new(check.expect("a number"))),
            });
            take_head(&mut channel, body_bytes);
            assert_eq!(channel.want(), Want::Copy(piece));
        }
    }
}
