//! The TLS record layer after the handshake: framing, nonces, sealing in place, opening.
//!
//! **A record's bytes are a pure function of (key, record number, content type, content)**, so a
//! record that was lost can be read and sealed again, and is the same record. A caller that seals
//! the same number twice compares the [`Tag`]s: if they differ, the content has changed, and sending
//! both records would reveal the authentication key, because the nonce was used twice (Joux,
//! "Authentication failures in NIST version of GCM", 2006).
//!
//! How long records may be for a client is read from its ClientHello ([`ClientLimits`]).
//!
//! It makes no handshake and computes no key (both are rustls's, see the `server` room), does not
//! count records on the sending side (the stream's layout does), does not allocate per record, and
//! prints no key in `Debug`. Versions: TLS 1.3 (RFC 8446) and TLS 1.2 with AEAD suites (RFC 5246,
//! RFC 5288, RFC 7905).
//!
//! Bounds: [`CONTENT_BYTES_MAX`] bytes of content a record, [`RECORD_BYTES_MAX`] bytes a record of
//! the client's.
#![forbid(unsafe_code)]

mod aead;
mod alert;
mod client_limits;
mod inbound;
mod key;
mod run;
mod scheme;
mod sealer;
#[cfg(test)]
mod tests;

pub use aead::AeadLibrary;
pub use alert::{Alert, AlertDescription};
pub use client_limits::{ClientLimits, find_extension, hello_bytes};
pub use inbound::{Event, HEADER_BYTES, Inbound, RECORD_BYTES_MAX, peek_record};
pub use key::{Algorithm, KeyError, TrafficKey, Version};
pub use run::{RUN_RECORDS_MAX, RunTags, seal_run};
pub use sealer::{Framing, Sealer, TAG_BYTES, Tag};

/// Most bytes of content in a record (RFC 8446 s5.1, RFC 5246 s6.2.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 14;

/// What a record's content is (RFC 8446 s5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentType {
    /// `change_cipher_spec(20)`: means nothing after the handshake.
    ChangeCipherSpec,
    /// `alert(21)`.
    Alert,
    /// `handshake(22)`.
    Handshake,
    /// `application_data(23)`.
    ApplicationData,
}

impl ContentType {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::ChangeCipherSpec => 20,
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::ApplicationData => 23,
        }
    }

    /// The type of this number; `None` for those that TLS 1.3 and TLS 1.2 do not know, such as
    /// `heartbeat(24)` (RFC 6520), which nobody may send without asking first.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            20 => Some(Self::ChangeCipherSpec),
            21 => Some(Self::Alert),
            22 => Some(Self::Handshake),
            23 => Some(Self::ApplicationData),
            _ => None,
        }
    }
}

/// The KeyUpdate message that asks for no answer (RFC 8446 s4.6.3): type 24, length 1, 0.
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
