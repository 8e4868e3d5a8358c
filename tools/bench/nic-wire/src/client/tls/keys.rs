//! The traffic keys of a connection as bytes: a cipher is made of them for each use, since its tables
//! are ten times as large.
//!
//! It refuses suites other than AES-GCM: only there can the beginning of a record be decrypted alone.
//! Bounded: the structure itself.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use testbed::tls_client::Version;

use super::{APPLICATION_DATA, Fault, HEADER_BYTES, TlsFault};

const NONCE_BYTES: usize = 12;

/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// What stands before the content in TLS 1.2 (RFC 5288 s3).
const EXPLICIT_BYTES: usize = 8;

/// The part of the nonce that is fixed there.
const SALT_BYTES: usize = 4;

/// Both keys, and the numbers of the next records.
pub(crate) struct Keys {
    version: Version,
    write: Secret,
    read: Secret,
    write_number: u64,
    /// The number of the record that is read next.
    pub(crate) read_number: u64,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("write_number", &self.write_number)
            .field("read_number", &self.read_number)
            .finish_non_exhaustive()
    }
}

struct Secret {
    key: [u8; 32],
    is_128: bool,
    iv: [u8; NONCE_BYTES],
}

impl Secret {
    fn new(secrets: &ConnectionTrafficSecrets) -> Option<Self> {
        let (from, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (key.as_ref(), iv.as_ref()),
            _ => return None,
        };
        let mut key = [0; 32];
        key.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self {
            key,
            is_128: from.len() == 16,
            iv: iv.try_into().ok()?,
        })
    }

    fn key(&self) -> &[u8] {
        let bytes = if self.is_128 { 16 } else { 32 };
        self.key.get(..bytes).unwrap_or_default()
    }

    fn aead(&self) -> Option<LessSafeKey> {
        let algorithm = if self.is_128 {
            &AES_128_GCM
        } else {
            &AES_256_GCM
        };
        UnboundKey::new(algorithm, self.key())
            .ok()
            .map(LessSafeKey::new)
    }

    /// The nonce of a record: the number added to the IV without carry (RFC 8446 s5.3).
    fn nonce(&self, number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce.iter_mut().skip(4).zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }

    /// The nonce of a record that begins with its explicit part.
    fn nonce_of(&self, explicit: &[u8]) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, explicit) in nonce.iter_mut().skip(SALT_BYTES).zip(explicit) {
            *byte = *explicit;
        }
        nonce
    }
}

/// What is authenticated beside the content in TLS 1.2 (RFC 5246 s6.2.3.3).
fn associated_data(number: u64, kind: u8, content_bytes: usize) -> [u8; 13] {
    let [n0, n1, n2, n3, n4, n5, n6, n7] = number.to_be_bytes();
    let [high, low] = u16::try_from(content_bytes)
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    [n0, n1, n2, n3, n4, n5, n6, n7, kind, 3, 3, high, low]
}

impl Keys {
    /// `None` if the suite is not AES-GCM.
    pub(crate) fn new(version: Version, secrets: &ExtractedSecrets) -> Option<Self> {
        Some(Self {
            version,
            write: Secret::new(&secrets.tx.1)?,
            read: Secret::new(&secrets.rx.1)?,
            write_number: secrets.tx.0,
            read_number: secrets.rx.0,
        })
    }

    /// How much longer than its content a record is, its header not counted.
    pub(crate) const fn overhead(&self) -> usize {
        match self.version {
            Version::Tls13 => 1 + TAG_BYTES,
            Version::Tls12 => EXPLICIT_BYTES + TAG_BYTES,
        }
    }

    /// The next record, of this type. `None` if there are too many bytes, or records.
    pub(crate) fn seal(&mut self, kind: u8, text: &[u8]) -> Option<Vec<u8>> {
        let number = self.write_number;
        self.write_number = number.checked_add(1)?;
        let nonce = self.write.nonce(number);
        let length = u16::try_from(text.len() + self.overhead()).ok()?;
        let [high, low] = length.to_be_bytes();
        let outer = match self.version {
            Version::Tls13 => APPLICATION_DATA,
            Version::Tls12 => kind,
        };
        let header = [outer, 3, 3, high, low];
        let mut content = text.to_vec();
        let mut record = header.to_vec();
        let aad = match self.version {
            Version::Tls13 => {
                content.push(kind);
                Aad::from(header.to_vec())
            }
            Version::Tls12 => {
                record.extend(nonce.iter().skip(SALT_BYTES));
                Aad::from(associated_data(number, kind, text.len()).to_vec())
            }
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aead = self.write.aead()?;
        aead.seal_in_place_append_tag(nonce, aad, &mut content)
            .ok()?;
        record.extend(content);
        Some(record)
    }

    /// Opens a record, `body` is what stands behind its header: type and content.
    pub(crate) fn open<'a>(
        &self,
        number: u64,
        header: [u8; HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<(u8, &'a [u8]), Fault> {
        let fault = Fault::Tls(TlsFault::Open);
        let [kind, ..] = header;
        let aead = self.read.aead().ok_or(fault)?;
        match self.version {
            Version::Tls13 => {
                let nonce = Nonce::assume_unique_for_key(self.read.nonce(number));
                let opened = aead.open_in_place(nonce, Aad::from(header), body);
                let opened: &[u8] = opened.map_err(|_| fault)?;
                // RFC 8446 s5.4: zeros behind the type are padding.
                let end = opened.iter().rposition(|byte| *byte != 0).ok_or(fault)?;
                let (content, rest) = opened.split_at(end);
                Ok((rest.first().copied().unwrap_or(0), content))
            }
            Version::Tls12 => {
                let content_bytes = body.len().saturating_sub(self.overhead());
                let explicit = body.split_at_mut_checked(EXPLICIT_BYTES);
                let (explicit, sealed) = explicit.ok_or(fault)?;
                let nonce = Nonce::assume_unique_for_key(self.read.nonce_of(explicit));
                let aad = Aad::from(associated_data(number, kind, content_bytes));
                let opened = aead.open_in_place(nonce, aad, sealed);
                Ok((kind, opened.map_err(|_| fault)?))
            }
        }
    }

    /// The beginning of a record's content, of as much of its body as is there, not authenticated.
    /// `body_bytes` is the whole body's length.
    pub(crate) fn peek(&self, number: u64, body: &[u8], body_bytes: usize) -> Option<Vec<u8>> {
        let (nonce, sealed) = match self.version {
            Version::Tls13 => (self.read.nonce(number), body),
            Version::Tls12 => match body.split_at_checked(EXPLICIT_BYTES) {
                Some((explicit, sealed)) => (self.read.nonce_of(explicit), sealed),
                None => return Some(Vec::new()),
            },
        };
        let content_bytes = body_bytes.checked_sub(self.overhead())?;
        let mut content = sealed.get(..content_bytes).unwrap_or(sealed).to_vec();
        // GCM is counter mode from 2 on; 1 is the tag's (NIST SP 800-38D s7.1).
        let [a, b, c, d, e, f, g, h, i, j, k, l] = nonce;
        let counter = [a, b, c, d, e, f, g, h, i, j, k, l, 0, 0, 0, 2];
        let algorithm = if self.read.is_128 { &AES_128 } else { &AES_256 };
        let key = UnboundCipherKey::new(algorithm, self.read.key()).ok()?;
        let cipher = DecryptingKey::ctr(key).ok()?;
        let context = DecryptionContext::Iv128((&counter).into());
        cipher.decrypt(&mut content, context).ok()?;
        Some(content)
    }
}

/// The keys of a client and of its server.
#[cfg(test)]
pub(crate) fn pair(version: Version, is_128: bool) -> (Keys, Keys) {
    let secret = |fill: u8| Secret {
        key: [fill; 32],
        is_128,
        iv: [fill + 1; NONCE_BYTES],
    };
    let keys = |write: u8, read: u8| Keys {
        version,
        write: secret(write),
        read: secret(read),
        write_number: 0,
        read_number: 0,
    };
    (keys(1, 7), keys(7, 1))
}
