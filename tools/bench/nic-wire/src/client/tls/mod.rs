//! One client's TLS: a real handshake, then as little as a standing connection needs.
//!
//! rustls makes the handshake and is dropped; the traffic secrets it leaves seal requests and open what
//! comes (`keys`). Of a stream whose frames are shortened only heads are decrypted, from the first
//! bytes of their records, without their tags: those are not there. The rest is counted by the BPF
//! program that sees each record's header (`follow`, [`crate::filter::records`]). Of a sampled
//! stream each record is opened (`open`), or those of one reply in so many: a stream may change between two replies.
//!
//! What proves the count: lengths that add up to the reply to the byte. A record's number is part of its nonce
//! too: the next head is legible only if every record before it was counted once.
//!
//! It speaks TLS 1.3 with AES-128-GCM. It refuses, each with a fault of its own: `KeyUpdate`, alerts but `close_notify`,
//! messages spread over records, padding in bodies (a sum that does not fit). Session tickets are
//! read and forgotten. Bounds: one record, one flight of the handshake (`handshake`).
//!
//! Reading first: RFC 8446 s4.6 and s5.

mod follow;
mod handshake;
mod keys;
mod open;
#[cfg(test)]
mod tests;

pub use handshake::TlsClient;

pub(crate) use follow::{Followed, Found};
pub(crate) use handshake::Handshake;
pub(crate) use keys::Keys;
pub(crate) use open::Opened;

use wire::SeqNumber;

use super::Fault;
use crate::filter::records::Lost;

/// Bytes of a record's header: type, version, length (RFC 8446 s5.1).
pub(crate) const HEADER_BYTES: usize = 5;

/// Most bytes of content in a record.
pub(crate) const CONTENT_BYTES_MAX: usize = 1 << 14;

// Types of content (RFC 8446 s5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// Handshake messages that may come after the handshake (RFC 8446 s4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The alert that ends a stream as it should (RFC 8446 s6.1).
const CLOSE_NOTIFY: u8 = 0;

/// What TLS itself can do wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TlsFault {
    /// The handshake failed, or was not over in time.
    Handshake,
    /// Bytes of a handshake or of a sampled stream that were not delivered.
    Unseen,
    /// The records cannot be followed any more.
    Lost(Lost),
    /// A record that cannot stand there.
    Header,
    /// A record that does not open.
    Open,
    /// An alert of this description.
    Alert(u8),
    /// The server has changed its keys.
    KeyUpdate,
    /// A handshake message of this type after the handshake.
    Message(u8),
}

impl TlsFault {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "tls_handshake",
            Self::Unseen => "tls_unseen",
            Self::Lost(_) => "tls_records_lost",
            Self::Header => "tls_header",
            Self::Open => "tls_open",
            Self::Alert(_) => "tls_alert",
            Self::KeyUpdate => "tls_key_update",
            Self::Message(_) => "tls_message",
        }
    }
}

/// What the BPF program knows of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watched {
    /// Where the next record's header is due.
    pub next_header: SeqNumber,
    /// Records before it since the stream's beginning.
    pub records: u32,
    /// Why that is all.
    pub lost: Option<Lost>,
}

/// TLS of one connection.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Bytes that were sent and not acknowledged, to be sent again.
    pub(crate) unacknowledged: Vec<u8>,
    pub(crate) stage: Stage,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The handshake is under way.
    Handshake(Box<Handshake>),
    /// It has ended, and no keys are there yet, or never will be.
    Over,
    /// Frames are shortened.
    Followed(Keys, Followed),
    /// Every byte comes.
    Opened(Keys, Opened),
}

impl Tls {
    pub(crate) fn keys(&mut self) -> Option<&mut Keys> {
        match &mut self.stage {
            Stage::Handshake(_) | Stage::Over => None,
            Stage::Followed(keys, _) | Stage::Opened(keys, _) => Some(keys),
        }
    }

    /// Whether records are opened, so that all bytes are to come in order.
    pub(crate) const fn is_opened(&self) -> bool {
        matches!(self.stage, Stage::Opened(..))
    }

    /// Whether a record has begun that is not understood yet.
    pub(crate) fn is_amid_record(&self) -> bool {
        match &self.stage {
            Stage::Handshake(_) | Stage::Over => false,
            Stage::Followed(_, followed) => followed.has_kept(),
            Stage::Opened(_, opened) => opened.has_kept(),
        }
    }
}

/// Type and length behind the header of a record that may come after a handshake.
pub(crate) fn parse_header(
    header: [u8; HEADER_BYTES],
    overhead: usize,
) -> Result<(u8, usize), Fault> {
    let [kind, major, minor, high, low] = header;
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    let is_sound = matches!(kind, ALERT | HANDSHAKE | APPLICATION_DATA)
        && [major, minor] == [3, 3]
        && (overhead..=overhead + CONTENT_BYTES_MAX).contains(&bytes);
    if is_sound {
        Ok((kind, bytes))
    } else {
        Err(Fault::Tls(TlsFault::Header))
    }
}

/// What stands in a record that is opened: data, or something that needs no answer.
pub(crate) fn take_content(kind: u8, content: &[u8]) -> Result<Option<&[u8]>, Fault> {
    match (kind, content) {
        (APPLICATION_DATA, _) => Ok(Some(content)),
        (HANDSHAKE, _) => take_messages(content).map(|()| None),
        (ALERT, [_, CLOSE_NOTIFY]) => Ok(None),
        (ALERT, [_, description]) => Err(Fault::Tls(TlsFault::Alert(*description))),
        _ => Err(Fault::Tls(TlsFault::Header)),
    }
}

/// Session tickets, whole ones.
fn take_messages(mut bytes: &[u8]) -> Result<(), Fault> {
    while let [kind, high, middle, low, rest @ ..] = bytes {
        match *kind {
            NEW_SESSION_TICKET => {}
            KEY_UPDATE => return Err(Fault::Tls(TlsFault::KeyUpdate)),
            other => return Err(Fault::Tls(TlsFault::Message(other))),
        }
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let rest = rest.get(length..);
        bytes = rest.ok_or(Fault::Tls(TlsFault::Message(*kind)))?;
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(Fault::Tls(TlsFault::Header))
    }
}
