//! A connection over TLS whose bodies are counted by their records' headers, not decrypted.
//!
//! rustls shakes hands; its keys are then used here, through rustls's own record protection, to
//! seal requests and to open the records in which a reply's head stands. Of every other record the
//! five bytes of header are read and checked, and the ciphertext is thrown away inside the kernel:
//! a client that decrypted all would be measured itself. What proves the work is arithmetic: the
//! lengths must add up to the reply to the byte, and since a record's number is part of its nonce,
//! the next head opens only if every record before it was counted, once.
//!
//! It refuses renegotiation, alerts, and a change of the server's key: no server here sends so
//! much that it must ([`Sealed`] would take it for five bytes of body, and the sum would not fit).
//! Bounded by: one record of [`CONTENT_BYTES_MAX`].
//!
//! Reading first: RFC 8446 s5, RFC 5246 s6.2, RFC 5288 s3, RFC 7905 s2.

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, HandshakeKind,
    ProtocolVersion, SupportedCipherSuite,
};

use super::channel::{Reply, Want};
use crate::bench::tls::{check_group, server_name};

/// Bytes of a record's header: type, version, length.
const HEADER_BYTES: usize = 5;

/// Most bytes of content in a record (RFC 8446 s5.1).
const CONTENT_BYTES_MAX: usize = 1 << 14;

/// Bytes of a tag, of every AEAD here.
const TAG_BYTES: usize = 16;

/// What stands before the content in TLS 1.2 with GCM (RFC 5288 s3).
const EXPLICIT_NONCE_BYTES: usize = 8;

/// What stands behind the content in TLS 1.3 besides the tag: the type (RFC 8446 s5.2).
const TYPE_BYTES: usize = 1;

/// The first bytes of GCM's nonce in TLS 1.2, secret and fixed (RFC 5288 s3).
const SALT_BYTES: usize = 4;

/// The handshake message that carries a ticket (RFC 8446 s4.6.1).
const NEW_SESSION_TICKET: u8 = 4;

/// `application_data` (RFC 8446 s5.1).
const APPLICATION_DATA: u8 = 23;

/// The version every record says, 1.2, and 1.3 too (RFC 8446 s5.1).
const RECORD_VERSION: [u8; 2] = [3, 3];

/// How much longer than its content a record's ciphertext is. TLS 1.3 would allow padding: no
/// server here pads, and one that did would be found out by the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Overhead(usize);

impl Overhead {
    fn new(version: ProtocolVersion, secrets: &ConnectionTrafficSecrets) -> Result<Self> {
        let is_chacha = matches!(secrets, ConnectionTrafficSecrets::Chacha20Poly1305 { .. });
        Ok(Self(match version {
            ProtocolVersion::TLSv1_3 => TYPE_BYTES + TAG_BYTES,
            ProtocolVersion::TLSv1_2 if is_chacha => TAG_BYTES,
            ProtocolVersion::TLSv1_2 => EXPLICIT_NONCE_BYTES + TAG_BYTES,
            other => bail!("no rule for {other:?}"),
        }))
    }

    /// Checks a record's header: its content's length, bytes, if it is one of data.
    fn content_bytes(self, header: [u8; HEADER_BYTES]) -> Result<usize> {
        let [kind, major, minor, high, low] = header;
        ensure!(
            kind == APPLICATION_DATA,
            "a record of type {kind}, not of data"
        );
        ensure!(
            [major, minor] == RECORD_VERSION,
            "a record of version {major}.{minor}"
        );
        let sealed_bytes = usize::from(u16::from_be_bytes([high, low]));
        sealed_bytes
            .checked_sub(self.0)
            .filter(|content| *content <= CONTENT_BYTES_MAX)
            .with_context(|| format!("a record of {sealed_bytes} bytes"))
    }
}

/// The keys of both directions, and the numbers of their next records.
struct Protection {
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    sent: u64,
    received: u64,
    overhead: Overhead,
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("sent", &self.sent)
            .field("received", &self.received)
            .field("overhead", &self.overhead)
            .finish_non_exhaustive()
    }
}

impl Protection {
    /// Takes the keys of a finished handshake.
    fn new(connection: ClientConnection) -> Result<Self> {
        let suite = connection
            .negotiated_cipher_suite()
            .context("no suite was agreed on")?;
        let version = suite.version().version;
        let secrets = connection.dangerous_extract_secrets()?;
        let (sent, tx) = secrets.tx;
        let (received, rx) = secrets.rx;
        let overhead = Overhead::new(version, &rx)?;
        let is_chacha = matches!(rx, ConnectionTrafficSecrets::Chacha20Poly1305 { .. });
        let ((tx_key, tx_iv), (rx_key, rx_iv)) = (key_and_iv(tx)?, key_and_iv(rx)?);
        let (encrypter, decrypter) = match suite {
            SupportedCipherSuite::Tls13(suite) => (
                suite.aead_alg.encrypter(tx_key, tx_iv),
                suite.aead_alg.decrypter(rx_key, rx_iv),
            ),
            SupportedCipherSuite::Tls12(suite) => {
                // GCM's nonce is part salt and part sent along; ChaCha20's is all fixed.
                let fixed = if is_chacha {
                    rx_iv.as_ref().len()
                } else {
                    SALT_BYTES
                };
                let (tx_fixed, tx_explicit) = tx_iv.as_ref().split_at(fixed);
                let (rx_fixed, _) = rx_iv.as_ref().split_at(fixed);
                (
                    suite.aead_alg.encrypter(tx_key, tx_fixed, tx_explicit),
                    suite.aead_alg.decrypter(rx_key, rx_fixed),
                )
            }
        };
        let mut protection = Self {
            encrypter,
            decrypter,
            sent: 0,
            received,
            overhead,
        };
        // AWS-LC insists on sealing every number in order, from 0: those the handshake has used
        // (in TLS 1.2 one, for Finished) are sealed again, over nothing, and thrown away.
        while protection.sent < sent {
            protection.seal(&[])?;
        }
        Ok(protection)
    }

    /// A record of data.
    fn seal(&mut self, data: &[u8]) -> Result<Vec<u8>> {
        let message = OutboundPlainMessage {
            typ: ContentType::ApplicationData,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(data),
        };
        let sealed = self.encrypter.encrypt(message, self.sent)?;
        self.sent += 1;
        Ok(sealed.encode())
    }

    /// Opens a record's ciphertext and says what it holds.
    fn open<'a>(&mut self, ciphertext: &'a mut [u8]) -> Result<(ContentType, &'a [u8])> {
        let message = InboundOpaqueMessage::new(
            ContentType::ApplicationData,
            ProtocolVersion::TLSv1_2,
            ciphertext,
        );
        let opened = self
            .decrypter
            .decrypt(message, self.received)
            .with_context(|| format!("opening record {}", self.received))?;
        self.received += 1;
        Ok((opened.typ, opened.payload))
    }
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => bail!("keys of an unknown kind"),
    }
}

/// Where a connection is in the stream of records.
#[derive(Debug)]
enum At {
    /// `filled` bytes of a record's header have come.
    Header {
        header: [u8; HEADER_BYTES],
        filled: usize,
    },
    /// A record to be opened: `filled` bytes of its ciphertext have come.
    Opening { ciphertext: Vec<u8>, filled: usize },
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
pub(super) struct Sealed {
    protection: Protection,
    at: At,
    pub(super) reply: Reply,
    records: u64,
}

impl Sealed {
    /// Shakes hands over a blocking socket.
    pub(super) fn connect(
        socket: &mut (impl Read + Write),
        config: &Arc<ClientConfig>,
        object_bytes: u64,
    ) -> Result<Self> {
        let connection = shake_hands(socket, config)?;
        Ok(Self {
            protection: Protection::new(connection)?,
            at: At::NEXT,
            reply: Reply::new(object_bytes),
            records: 0,
        })
    }

    /// Records received since the handshake.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// The record to send for a request.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.reply.open()?;
        self.protection.seal(request)
    }

    /// What to take off the socket next.
    pub(super) fn want(&mut self) -> Want<'_> {
        match &mut self.at {
            At::Header { .. } if !self.reply.is_open() => Want::Nothing,
            At::Header { header, filled } => Want::Copy(&mut header[*filled..]),
            At::Opening { ciphertext, filled } => Want::Copy(&mut ciphertext[*filled..]),
            At::Counting { left_bytes, .. } => Want::Discard(*left_bytes),
        }
    }

    /// Reports that `bytes` of what was wanted have come.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        match &mut self.at {
            At::Header { header, filled } => {
                *filled += bytes;
                if *filled < HEADER_BYTES {
                    return Ok(());
                }
                let header = *header;
                self.handle_header(header)
            }
            At::Opening { ciphertext, filled } => {
                *filled += bytes;
                if *filled < ciphertext.len() {
                    return Ok(());
                }
                let mut ciphertext = std::mem::take(ciphertext);
                self.at = At::NEXT;
                self.handle_record(&mut ciphertext)
            }
            At::Counting {
                left_bytes,
                content_bytes,
            } => {
                *left_bytes = left_bytes
                    .checked_sub(bytes as u64)
                    .context("more than was wanted")?;
                if *left_bytes > 0 {
                    return Ok(());
                }
                let content_bytes = *content_bytes;
                self.at = At::NEXT;
                self.protection.received += 1;
                self.records += 1;
                self.reply.count(content_bytes)
            }
        }
    }

    /// Within a body a record is counted, elsewhere it must be seen.
    fn handle_header(&mut self, header: [u8; HEADER_BYTES]) -> Result<()> {
        let overhead = self.protection.overhead;
        let content_bytes = overhead.content_bytes(header)?;
        let sealed_bytes = content_bytes + overhead.0;
        self.at = match self.reply.left_bytes() {
            Some(left_bytes) => {
                let content_bytes = content_bytes as u64;
                ensure!(
                    content_bytes <= left_bytes,
                    "a record of {content_bytes} bytes where {left_bytes} are left of a reply"
                );
                At::Counting {
                    left_bytes: sealed_bytes as u64,
                    content_bytes,
                }
            }
            None => At::Opening {
                ciphertext: vec![0; sealed_bytes],
                filled: 0,
            },
        };
        Ok(())
    }

    fn handle_record(&mut self, ciphertext: &mut [u8]) -> Result<()> {
        let (kind, content) = self.protection.open(ciphertext)?;
        self.records += 1;
        match kind {
            ContentType::ApplicationData => self.reply.read(content),
            ContentType::Handshake => check_tickets(content),
            other => bail!("a record of {other:?}: {content:?}"),
        }
    }
}

/// After the handshake only tickets may come: not a new key, not a request for a certificate.
fn check_tickets(mut messages: &[u8]) -> Result<()> {
    while let [kind, high, middle, low, rest @ ..] = messages {
        ensure!(
            *kind == NEW_SESSION_TICKET,
            "a handshake message of type {kind}, not a ticket"
        );
        let length = usize::try_from(u32::from_be_bytes([0, *high, *middle, *low]))?;
        messages = rest
            .get(length..)
            .context("a ticket in more than one record")?;
    }
    ensure!(messages.is_empty(), "a broken handshake message");
    Ok(())
}

/// Shakes hands, taking whole records off the socket one by one: what follows the handshake is
/// not rustls's to see.
fn shake_hands(
    socket: &mut (impl Read + Write),
    config: &Arc<ClientConfig>,
) -> Result<ClientConnection> {
    let mut connection = ClientConnection::new(Arc::clone(config), server_name()?)?;
    loop {
        while connection.wants_write() {
            connection.write_tls(socket).context("shaking hands")?;
        }
        if !connection.is_handshaking() {
            break;
        }
        let mut record = vec![0; HEADER_BYTES];
        socket.read_exact(&mut record).context("shaking hands")?;
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(HEADER_BYTES + length, 0);
        socket
            .read_exact(&mut record[HEADER_BYTES..])
            .context("shaking hands")?;
        connection.read_tls(&mut &record[..])?;
        connection.process_new_packets()?;
    }
    ensure!(
        connection.handshake_kind() == Some(HandshakeKind::Full),
        "not a full handshake"
    );
    check_group(&connection)?;
    Ok(connection)
}

#[cfg(test)]
mod tests;
