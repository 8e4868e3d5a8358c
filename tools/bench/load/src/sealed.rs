//! A connection over TLS 1.3 whose bodies are counted by their records' headers, not decrypted.
//!
//! rustls makes the handshake; its keys are then used here, through rustls's own record protection, to
//! seal requests and to open the records in which a reply's head stands. Of every other record the
//! five bytes of header are read and checked, and the ciphertext is thrown away inside the kernel:
//! a client that decrypted all would be measured itself. What proves the work is arithmetic: the
//! lengths must add up to the reply to the byte, and since a record's number is part of its nonce,
//! the next head opens only if every record before it was counted, once.
//!
//! A record does not say what it holds. What a server may send amid a body besides body
//! is short (a ticket, five bytes of `KeyUpdate`, two of alert), so records of at most
//! [`OPENED_BYTES_MAX`] are always opened and never taken for what they are not: a new key is
//! followed, a ticket is kept. Something longer, or a body padded, makes a sum that does not fit.
//!
//! It refuses messages spread over records. Bounded by: one record.
//!
//! Reading first: RFC 8446 s4.6 and s5.

use std::fmt;

use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite, Tls13CipherSuite,
};

use crate::fault::{Fault, FaultKind};
use crate::handshake::Established;
use crate::reply::Reply;
use crate::{CONTENT_BYTES_MAX, HEADER_BYTES};

/// Longest content, bytes, that is opened although it could be body: longer than any ticket that
/// servers are known to send (OpenSSL's are some 250 bytes, rustls's below 300).
const OPENED_BYTES_MAX: usize = 1024;

/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// What stands behind the content besides the tag: the type (RFC 8446 s5.2).
const TYPE_BYTES: usize = 1;

/// The handshake message that carries a ticket (RFC 8446 s4.6.1).
const NEW_SESSION_TICKET: u8 = 4;

/// The handshake message that changes a key (RFC 8446 s4.6.3).
const KEY_UPDATE: u8 = 24;

/// A `KeyUpdate` that asks for one in return begins so; one that answers ends in 0.
const KEY_UPDATE_ANSWER: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// The alert that ends a connection as it should end (RFC 8446 s6.1).
const CLOSE_NOTIFY: u8 = 0;

/// The level of that alert, which means nothing any more (RFC 8446 s6).
const WARNING: u8 = 1;

/// The version every record says, 1.2 (RFC 8446 s5.1).
const RECORD_VERSION: [u8; 2] = [3, 3];

/// How much longer than its content a record's ciphertext is.
const OVERHEAD_BYTES: usize = TYPE_BYTES + TAG_BYTES;

/// What a connection needs next of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// At most so many bytes, to be seen.
    Copy(usize),
    /// At most so many bytes, to be counted.
    Discard(u64),
}

/// Checks a record's header: its content's length, bytes.
pub(crate) fn content_bytes(header: [u8; HEADER_BYTES]) -> Result<usize, Fault> {
    let [kind, major, minor, high, low] = header;
    let kind = ContentType::from(kind);
    if kind != ContentType::ApplicationData {
        return Err(records(format!("a record of {kind:?}, not of data")));
    }
    if [major, minor] != RECORD_VERSION {
        return Err(records(format!("a record of version {major}.{minor}")));
    }
    let sealed_bytes = usize::from(u16::from_be_bytes([high, low]));
    sealed_bytes
        .checked_sub(OVERHEAD_BYTES)
        .filter(|content| *content <= CONTENT_BYTES_MAX)
        .ok_or_else(|| records(format!("a record of {sealed_bytes} bytes")))
}

/// The keys of both directions, and the numbers of their next records.
struct Protection {
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    keys: KernelConnection<ClientConnectionData>,
    sent: u64,
    received: u64,
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("sent", &self.sent)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl Protection {
    /// Takes the keys of a finished handshake.
    fn new(established: Established) -> Result<Self, Fault> {
        let Established { secrets, keys } = established;
        let suite = keys.negotiated_cipher_suite();
        let (sent, tx) = secrets.tx;
        let (received, rx) = secrets.rx;
        let protection = Self {
            encrypter: encrypter(suite, tx)?,
            decrypter: decrypter(suite, rx)?,
            keys,
            sent,
            received,
        };
        Ok(protection)
    }

    /// A record.
    fn seal(&mut self, kind: ContentType, data: &[u8]) -> Result<Vec<u8>, Fault> {
        let message = OutboundPlainMessage {
            typ: kind,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(data),
        };
        let sealed = self
            .encrypter
            .encrypt(message, self.sent)
            .map_err(|error| records(error.to_string()))?;
        self.sent += 1;
        Ok(sealed.encode())
    }

    /// Opens a record's ciphertext and says what it holds.
    fn open<'a>(&mut self, ciphertext: &'a mut [u8]) -> Result<(ContentType, &'a [u8]), Fault> {
        let kind = ContentType::ApplicationData;
        let message = InboundOpaqueMessage::new(kind, ProtocolVersion::TLSv1_2, ciphertext);
        let number = self.received;
        let opened = self.decrypter.decrypt(message, number).map_err(|error| {
            let text = "records before it may have held something else than body: \
                        padding or a long message";
            records(format!("record {number} does not open ({error}); {text}"))
        })?;
        self.received += 1;
        Ok((opened.typ, opened.payload))
    }

    /// The server's key has changed.
    fn follow(&mut self) -> Result<(), Fault> {
        let (received, secrets) = self.keys.update_rx_secret().map_err(of_rustls)?;
        self.decrypter = decrypter(self.keys.negotiated_cipher_suite(), secrets)?;
        self.received = received;
        Ok(())
    }

    /// Changes the key of this side, as the server has asked; the record that tells it.
    fn answer(&mut self) -> Result<Vec<u8>, Fault> {
        let record = self.seal(ContentType::Handshake, &KEY_UPDATE_ANSWER)?;
        let (sent, secrets) = self.keys.update_tx_secret().map_err(of_rustls)?;
        self.encrypter = encrypter(self.keys.negotiated_cipher_suite(), secrets)?;
        self.sent = sent;
        Ok(record)
    }
}

fn encrypter(
    suite: SupportedCipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageEncrypter>, Fault> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite_of(suite)?.aead_alg.encrypter(key, iv))
}

fn decrypter(
    suite: SupportedCipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageDecrypter>, Fault> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite_of(suite)?.aead_alg.decrypter(key, iv))
}

fn suite_of(suite: SupportedCipherSuite) -> Result<&'static Tls13CipherSuite, Fault> {
    suite.tls13().ok_or_else(|| records("a suite of TLS 1.2"))
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), Fault> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => Ok((key, iv)),
        _ => Err(records("keys of an unknown kind")),
    }
}

fn records(text: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Records, text)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it stands where an error is mapped"
)]
fn of_rustls(error: rustls::Error) -> Fault {
    records(error.to_string())
}

/// Where a connection is in the stream of records.
#[derive(Debug)]
enum At {
    /// `filled` bytes of a record's header have come.
    Header {
        header: [u8; HEADER_BYTES],
        filled: usize,
    },
    /// A record to be opened, of `bytes` of ciphertext: what has come of it.
    Opening { ciphertext: Vec<u8>, bytes: usize },
    /// A record of body: so much of its ciphertext is still to come.
    Counting { left_bytes: u64, content_bytes: u64 },
}

impl At {
    const NEXT: Self = Self::Header {
        header: [0; HEADER_BYTES],
        filled: 0,
    };
}

/// A connection whose handshake is over.
#[derive(Debug)]
pub(crate) struct Sealed {
    protection: Protection,
    at: At,
    is_closed: bool,
    /// Where the reply is that the records carry.
    pub(crate) reply: Reply,
}

impl Sealed {
    /// Goes on where a handshake ended.
    ///
    /// # Errors
    /// Keys of a kind nobody knows.
    pub(crate) fn new(established: Established) -> Result<Self, Fault> {
        Ok(Self {
            protection: Protection::new(established)?,
            at: At::NEXT,
            is_closed: false,
            reply: Reply::default(),
        })
    }

    /// The record to send for a request.
    pub(crate) fn seal(&mut self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        self.protection.seal(ContentType::ApplicationData, request)
    }

    /// The record that says that nothing follows.
    pub(crate) fn close_notify(&mut self) -> Result<Vec<u8>, Fault> {
        self.protection
            .seal(ContentType::Alert, &[WARNING, CLOSE_NOTIFY])
    }

    /// Whether the server has said that nothing follows.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What to take off the socket next.
    pub(crate) fn want(&self) -> Want {
        match &self.at {
            At::Header { filled, .. } => Want::Copy(HEADER_BYTES - filled),
            At::Opening { ciphertext, bytes } => Want::Copy(bytes - ciphertext.len()),
            At::Counting { left_bytes, .. } => Want::Discard(*left_bytes),
        }
    }

    /// Hands in at most as many bytes as were wanted.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match &mut self.at {
            At::Header { header, filled } => {
                for (to, from) in header.iter_mut().skip(*filled).zip(bytes) {
                    *to = *from;
                }
                *filled += bytes.len();
                if *filled < HEADER_BYTES {
                    return Ok(());
                }
                let header = *header;
                self.handle_header(header)
            }
            At::Opening {
                ciphertext,
                bytes: whole,
            } => {
                ciphertext.extend_from_slice(bytes);
                if ciphertext.len() < *whole {
                    return Ok(());
                }
                let mut ciphertext = std::mem::take(ciphertext);
                self.at = At::NEXT;
                self.handle_record(&mut ciphertext, out)
            }
            At::Counting { .. } => Err(records("bytes seen that were to be counted")),
        }
    }

    /// Reports that so many bytes of those to be counted have come.
    pub(crate) fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        let At::Counting {
            left_bytes,
            content_bytes,
        } = &mut self.at
        else {
            return Err(records("bytes counted that were to be seen"));
        };
        *left_bytes = left_bytes
            .checked_sub(bytes)
            .ok_or_else(|| records("more than was wanted"))?;
        if *left_bytes > 0 {
            return Ok(());
        }
        let content_bytes = *content_bytes;
        self.at = At::NEXT;
        self.protection.received += 1;
        self.reply.count(content_bytes)
    }

    /// Within a body a long record is counted, elsewhere and otherwise it must be seen.
    fn handle_header(&mut self, header: [u8; HEADER_BYTES]) -> Result<(), Fault> {
        let content_bytes = content_bytes(header)?;
        let sealed_bytes = content_bytes + OVERHEAD_BYTES;
        self.at = match self.reply.countable_bytes() {
            Some(left_bytes) if content_bytes > OPENED_BYTES_MAX => {
                let content_bytes = content_bytes as u64;
                if content_bytes > left_bytes {
                    return Err(Fault::new(
                        FaultKind::Length,
                        format!(
                            "a record of {content_bytes} bytes where {left_bytes} are left of \
                             a reply"
                        ),
                    ));
                }
                At::Counting {
                    left_bytes: sealed_bytes as u64,
                    content_bytes,
                }
            }
            _ => At::Opening {
                ciphertext: Vec::with_capacity(sealed_bytes),
                bytes: sealed_bytes,
            },
        };
        Ok(())
    }

    fn handle_record(&mut self, ciphertext: &mut [u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let (kind, content) = self.protection.open(ciphertext)?;
        match (kind, content) {
            (ContentType::ApplicationData, _) => self.reply.read(content),
            (ContentType::Handshake, _) => self.handle_messages(content, out),
            (ContentType::Alert, [_, CLOSE_NOTIFY]) => {
                self.is_closed = true;
                Ok(())
            }
            (ContentType::Alert, _) => Err(records(format!("the alert {content:?}"))),
            (other, _) => Err(records(format!("a record of {other:?}"))),
        }
    }

    /// After the handshake tickets may come, and a new key: not a request for a certificate.
    fn handle_messages(&mut self, messages: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        for message in split_messages(messages)? {
            match message {
                (NEW_SESSION_TICKET, ticket) => {
                    let keys = &mut self.protection.keys;
                    keys.handle_new_session_ticket(ticket).map_err(of_rustls)?;
                }
                (KEY_UPDATE, [asks @ (0 | 1)]) => {
                    self.protection.follow()?;
                    if *asks == 1 {
                        out.extend_from_slice(&self.protection.answer()?);
                    }
                }
                (kind, _) => {
                    let text = format!("a handshake message of type {kind} after the handshake");
                    return Err(records(text));
                }
            }
        }
        Ok(())
    }
}

/// The handshake messages of a record: type and body of each. All must be whole.
pub(crate) fn split_messages(mut bytes: &[u8]) -> Result<Vec<(u8, &[u8])>, Fault> {
    let mut messages = Vec::new();
    while let [kind, high, middle, low, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *high, *middle, *low]);
        let (body, after) = usize::try_from(length)
            .ok()
            .and_then(|length| rest.split_at_checked(length))
            .ok_or_else(|| records("a handshake message in more than one record"))?;
        messages.push((*kind, body));
        bytes = after;
    }
    if bytes.is_empty() {
        Ok(messages)
    } else {
        Err(records("a broken handshake message"))
    }
}
