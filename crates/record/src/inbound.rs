//! The client's records: framing, opening, and the messages in them.
//!
//! It refuses everything that a client may not send after its handshake, with the alert that the RFC
//! requires: plaintext records, records too long, messages other than KeyUpdate, messages with other
//! records between their parts, empty messages. After the first refusal nothing is opened any more,
//! so an attacker has one guess at a tag per connection.
//!
//! Bounds: [`RECORD_BYTES_MAX`]. No received byte is kept, not even of a message that is cut between
//! records.

use core::fmt;

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

use crate::scheme::{self, EXPLICIT_NONCE_BYTES, Iv, NONCE_BYTES, SALT_BYTES, Scheme};
use crate::{
    Alert, AlertDescription, CONTENT_BYTES_MAX, ContentType, TAG_BYTES, TrafficKey, Version,
};

/// Bytes of a record's header (RFC 8446 s5.1).
pub const HEADER_BYTES: usize = 5;
/// Most bytes of a client's record, header included: TLS 1.2 allows 2^14 + 2048 of ciphertext
/// (RFC 5246 s6.2.3), but no AEAD suite needs more than the 2^14 + 256 of TLS 1.3 (RFC 8446 s5.2).
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + (1 << 14) + 256;

/// Length of the record at the start of `bytes`, header included; `None` while its header is not
/// complete. For any record, sealed or not. The whole record need not be there yet.
///
/// # Errors
/// The alert for a header that no record can have: unknown type
/// (`unexpected_message`), version not 3.x (`protocol_version`), too long (`record_overflow`).
pub fn peek_record(bytes: &[u8]) -> Result<Option<usize>, AlertDescription> {
    let Some(&[type_code, major, _minor, high, low]) = bytes.first_chunk() else {
        return Ok(None);
    };
    if ContentType::from_code(type_code).is_none() {
        return Err(AlertDescription::UnexpectedMessage);
    }
    if major != 3 {
        return Err(AlertDescription::ProtocolVersion);
    }
    let record_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if record_bytes > RECORD_BYTES_MAX {
        return Err(AlertDescription::RecordOverflow);
    }
    Ok(Some(record_bytes))
}

/// What an opened record of the client's means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// Application data; may be empty.
    Data(&'a [u8]),
    /// The client's next records are under its next key: [`Inbound::rekey`] comes before them.
    KeyUpdate {
        /// The client wants us to change our key too, before our next application data
        /// (RFC 8446 s4.6.3).
        is_answer_wanted: bool,
    },
    /// `close_notify`: the client will send nothing more.
    CloseNotify,
    /// TLS 1.2: the client asks for renegotiation. The answer is a warning
    /// ([`AlertDescription::NoRenegotiation`]).
    Renegotiation,
    /// The client ended the connection by a fatal alert of this number.
    Aborted(u8),
    /// Nothing needs to be done: a part of a message, an alert that is ignored, anything after the
    /// client's `close_notify` or fatal alert.
    Nothing,
}

/// The receiving half of one connection's record layer.
///
/// Key and IV are wiped on drop and on [`Inbound::rekey`], and `Debug` prints neither.
pub struct Inbound {
    key: LessSafeKey,
    iv: Iv,
    scheme: Scheme,
    /// The next record's.
    number: u64,
    state: State,
    /// How many bytes of a KeyUpdate have come, if it is cut between records.
    message_bytes: u8,
}

/// What the next record can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Opened under the key at hand.
    Open,
    /// Under the client's next key, which is not here yet.
    AwaitsKey,
    /// Ignored. RFC 8446 s6.1: "Any data received after a closure alert has been received MUST be
    /// ignored."
    Closed,
    /// Not ours to see: the client broke the protocol.
    Failed,
}

/// Handshake type `key_update(24)`.
const TYPE_KEY_UPDATE: u8 = 24;
/// Handshake type `client_hello(1)`.
const TYPE_CLIENT_HELLO: u8 = 1;
/// Alert level `fatal(2)`, of importance in TLS 1.2 only.
const LEVEL_FATAL: u8 = 2;
/// Alert level `warning(1)`.
const LEVEL_WARNING: u8 = 1;
/// Alert `close_notify(0)`.
const CLOSE_NOTIFY: u8 = AlertDescription::CloseNotify as u8;
/// Alert `user_canceled(90)`: RFC 8446 s6.1 has it mean nothing without the `close_notify` that
/// follows.
const USER_CANCELED: u8 = 90;

impl Inbound {
    /// `number` is the next record's.
    #[must_use]
    pub fn new(key: &TrafficKey, number: u64) -> Self {
        Self {
            key: scheme::expand(key),
            iv: Iv::new(key.iv()),
            scheme: Scheme::of(key.version(), key.algorithm()),
            number,
            state: State::Open,
            message_bytes: 0,
        }
    }

    /// The version spoken.
    #[must_use]
    pub fn version(&self) -> Version {
        self.scheme.version()
    }

    /// Whether the client sent its `close_notify` or a fatal alert: everything after it is ignored.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The client's key after a KeyUpdate; its record numbers start at 0.
    ///
    /// # Panics
    /// If there was no [`Event::KeyUpdate`], or the key is for another version or kind of AEAD:
    /// such a key opens nothing.
    pub fn rekey(&mut self, key: &TrafficKey) {
        assert_eq!(
            self.state,
            State::AwaitsKey,
            "a key changes on KeyUpdate only"
        );
        assert!(
            self.version() == key.version() && self.key.algorithm() == key.algorithm().aead(),
            "a key changes, the suite does not"
        );
        *self = Self::new(key, 0);
    }

    /// Opens one whole record in place.
    ///
    /// # Errors
    /// The fatal alert to send to the client. Nothing can be opened afterwards: every further call
    /// is an `internal_error`. So is a call between [`Event::KeyUpdate`] and [`Inbound::rekey`], and
    /// a call with less or more than one record, because these are errors of ours.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Event<'a>, Alert> {
        let opened = match self.state {
            State::Open => self.open_next(record),
            State::Closed => Ok(Event::Nothing),
            State::AwaitsKey | State::Failed => Err(AlertDescription::InternalError),
        };
        opened.map_err(|description| {
            self.state = State::Failed;
            Alert::fatal(description)
        })
    }

    fn open_next<'a>(&mut self, record: &'a mut [u8]) -> Result<Event<'a>, AlertDescription> {
        if peek_record(record)? != Some(record.len()) {
            return Err(AlertDescription::InternalError);
        }
        // RFC 8446 s5.3: "Sequence numbers MUST NOT wrap."
        let next_number = self.number.checked_add(1);
        let next_number = next_number.ok_or(AlertDescription::InternalError)?;
        let (header, body) = record
            .split_first_chunk_mut()
            .ok_or(AlertDescription::InternalError)?;
        let event = match self.scheme {
            Scheme::Tls13 => {
                let (content_type, content) = self.open_tls13(*header, body)?;
                self.handle_tls13(content_type, content)?
            }
            Scheme::Tls12ExplicitNonce | Scheme::Tls12 => {
                let (content_type, content) = self.open_tls12(*header, body)?;
                self.handle_tls12(content_type, content)?
            }
        };
        self.number = next_number;
        Ok(event)
    }
}

/// Opening.
impl Inbound {
    /// RFC 8446 s5.2 and s5.4. The version in the header is authenticated, not looked at
    /// (s5.1: it "MUST be ignored for all purposes").
    fn open_tls13<'a>(
        &self,
        header: [u8; HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<(ContentType, &'a [u8]), AlertDescription> {
        // After the handshake there is no record in the clear: not even a change_cipher_spec
        // (s5), nor an alert.
        if header[0] != ContentType::ApplicationData.code() {
            return Err(AlertDescription::UnexpectedMessage);
        }
        // The type takes one byte more than the content. Known before anything is opened.
        if body.len() > CONTENT_BYTES_MAX + 1 + TAG_BYTES {
            return Err(AlertDescription::RecordOverflow);
        }
        let nonce = self.iv.nonce(self.number);
        let inner = self.open_body(nonce, &header, body)?;
        // s5.4: "scans the field from the end toward the beginning until it finds a non-zero
        // octet."
        let position = inner.iter().rposition(|&byte| byte != 0);
        let position = position.ok_or(AlertDescription::UnexpectedMessage)?;
        let (content, rest) = inner.split_at(position);
        let content_type = rest.first().copied().and_then(ContentType::from_code);
        let content_type = content_type.ok_or(AlertDescription::UnexpectedMessage)?;
        Ok((content_type, content))
    }

    /// RFC 5246 s6.2.3.3, RFC 5288 s3, RFC 7905 s2.
    fn open_tls12<'a>(
        &self,
        header: [u8; HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<(ContentType, &'a [u8]), AlertDescription> {
        let [type_code, major, minor, _, _] = header;
        let content_type = ContentType::from_code(type_code);
        let content_type = content_type.ok_or(AlertDescription::UnexpectedMessage)?;
        if [major, minor] != scheme::RECORD_VERSION {
            return Err(AlertDescription::ProtocolVersion);
        }
        let mut nonce = self.iv.nonce(self.number);
        let sealed = if self.scheme == Scheme::Tls12ExplicitNonce {
            let (explicit, sealed) = body
                .split_first_chunk_mut::<EXPLICIT_NONCE_BYTES>()
                .ok_or(AlertDescription::BadRecordMac)?;
            nonce[SALT_BYTES..].copy_from_slice(explicit);
            sealed
        } else {
            body
        };
        let content_bytes = sealed.len().checked_sub(TAG_BYTES);
        let content_bytes = content_bytes.ok_or(AlertDescription::BadRecordMac)?;
        if content_bytes > CONTENT_BYTES_MAX {
            return Err(AlertDescription::RecordOverflow);
        }
        let data = scheme::tls12_associated_data(self.number, type_code, content_bytes);
        Ok((content_type, self.open_body(nonce, &data, sealed)?))
    }

    /// Ciphertext and tag to what was sealed.
    fn open_body<'a>(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated_data: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8], AlertDescription> {
        let (ciphertext, tag) = sealed
            .split_last_chunk_mut::<TAG_BYTES>()
            .ok_or(AlertDescription::BadRecordMac)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place_separate_tag(
            nonce,
            Aad::from(associated_data),
            tag.as_slice(),
            ciphertext,
        );
        match opened {
            Ok(plaintext) => Ok(plaintext),
            Err(_) => Err(AlertDescription::BadRecordMac),
        }
    }
}

/// What was opened.
impl Inbound {
    fn handle_tls13<'a>(
        &mut self,
        content_type: ContentType,
        content: &'a [u8],
    ) -> Result<Event<'a>, AlertDescription> {
        // RFC 8446 s5.1: "if a handshake message is split over two or more records, there MUST
        // NOT be any other records between them."
        if self.message_bytes > 0 && content_type != ContentType::Handshake {
            return Err(AlertDescription::UnexpectedMessage);
        }
        match content_type {
            ContentType::ApplicationData => Ok(Event::Data(content)),
            ContentType::Handshake => self.handle_message(content),
            ContentType::Alert => self.handle_alert(content),
            ContentType::ChangeCipherSpec => Err(AlertDescription::UnexpectedMessage),
        }
    }

    /// KeyUpdate (RFC 8446 s4.6.3) is the only message that a client without a certificate has
    /// left to send: type, 24 bits of length, `request_update`. Each byte is judged as it comes,
    /// so what is remembered of a message cut between records is how much of it there was.
    fn handle_message<'a>(&mut self, content: &[u8]) -> Result<Event<'a>, AlertDescription> {
        // RFC 8446 s5.1: "Implementations MUST NOT send zero-length fragments of Handshake types."
        if content.is_empty() {
            return Err(AlertDescription::UnexpectedMessage);
        }
        let mut event = Event::Nothing;
        for &byte in content {
            match (self.message_bytes, byte) {
                (0, TYPE_KEY_UPDATE) | (1 | 2, 0) | (3, 1) => self.message_bytes += 1,
                (0, _) => return Err(AlertDescription::UnexpectedMessage),
                (1..=3, _) => return Err(AlertDescription::DecodeError),
                (4, 0 | 1) => {
                    self.message_bytes += 1;
                    event = Event::KeyUpdate {
                        is_answer_wanted: byte == 1,
                    };
                }
                (4, _) => return Err(AlertDescription::IllegalParameter),
                // s5.1: messages "immediately preceding a key change MUST align with a record
                // boundary".
                _ => return Err(AlertDescription::UnexpectedMessage),
            }
        }
        if event != Event::Nothing {
            self.state = State::AwaitsKey;
        }
        Ok(event)
    }

    /// RFC 5246 s7.2, s7.4: messages of a second handshake, which is not had. Of a ClientHello cut
    /// between records the second part is taken for a message of its own and ends the connection.
    fn handle_tls12<'a>(
        &mut self,
        content_type: ContentType,
        content: &'a [u8],
    ) -> Result<Event<'a>, AlertDescription> {
        match content_type {
            ContentType::ApplicationData => Ok(Event::Data(content)),
            ContentType::Alert => self.handle_alert(content),
            ContentType::Handshake if content.first() == Some(&TYPE_CLIENT_HELLO) => {
                Ok(Event::Renegotiation)
            }
            ContentType::Handshake | ContentType::ChangeCipherSpec => {
                Err(AlertDescription::UnexpectedMessage)
            }
        }
    }

    /// An alert is never cut, nor are two put into one record (RFC 8446 s5.1; we ask it of
    /// TLS 1.2 too, where no client is known to do either).
    fn handle_alert<'a>(&mut self, content: &[u8]) -> Result<Event<'a>, AlertDescription> {
        let &[level, number] = content else {
            return Err(if content.is_empty() {
                AlertDescription::UnexpectedMessage
            } else {
                AlertDescription::DecodeError
            });
        };
        let event = match (self.version(), level, number) {
            (_, _, CLOSE_NOTIFY) => Event::CloseNotify,
            // RFC 8446 s6: "The severity is implicit in the type of alert being sent, and the
            // 'level' field can safely be ignored"; "Unknown Alert types MUST be treated as error
            // alerts."
            (Version::Tls13, _, USER_CANCELED) => Event::Nothing,
            (Version::Tls13, ..) | (Version::Tls12, LEVEL_FATAL, _) => Event::Aborted(number),
            (Version::Tls12, LEVEL_WARNING, _) => Event::Nothing,
            (Version::Tls12, ..) => return Err(AlertDescription::IllegalParameter),
        };
        if event != Event::Nothing {
            self.state = State::Closed;
        }
        Ok(event)
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("scheme", &self.scheme)
            .field("number", &self.number)
            .field("state", &self.state)
            .field("message_bytes", &self.message_bytes)
            .finish_non_exhaustive()
    }
}
