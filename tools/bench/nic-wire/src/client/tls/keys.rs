//! The traffic keys of a connection as bytes, of TLS 1.3 with AES-128-GCM: a cipher is made of them for each use, since
//! its tables are ten times as large.
//!
//! It refuses other suites. Bounded: the structure itself.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, UnboundCipherKey};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};

use super::{APPLICATION_DATA, Fault, HEADER_BYTES, TlsFault};

const NONCE_BYTES: usize = 12;

/// How much longer than its content a record is, its header not counted: the type and the tag.
pub(super) const OVERHEAD_BYTES: usize = 1 + 16;

/// Both keys, and the numbers of the next records.
pub(crate) struct Keys {
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
    key: [u8; 16],
    iv: [u8; NONCE_BYTES],
}

impl Secret {
    fn new(secrets: &ConnectionTrafficSecrets) -> Option<Self> {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
            return None;
        };
        Some(Self {
            key: key.as_ref().try_into().ok()?,
            iv: iv.as_ref().try_into().ok()?,
        })
    }

    fn aead(&self) -> Option<LessSafeKey> {
        let key = UnboundKey::new(&AES_128_GCM, &self.key).ok()?;
        Some(LessSafeKey::new(key))
    }

    /// The nonce of a record: the number added to the IV without carry (RFC 8446 s5.3).
    fn nonce(&self, number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce.iter_mut().skip(4).zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }
}

impl Keys {
    /// `None` if the suite is another.
    pub(crate) fn new(secrets: &ExtractedSecrets) -> Option<Self> {
        Some(Self {
            write: Secret::new(&secrets.tx.1)?,
            read: Secret::new(&secrets.rx.1)?,
            write_number: secrets.tx.0,
            read_number: secrets.rx.0,
        })
    }

    /// The next record, of this type. `None` if there are too many bytes, or records.
    pub(crate) fn seal(&mut self, kind: u8, text: &[u8]) -> Option<Vec<u8>> {
        let number = self.write_number;
        self.write_number = number.checked_add(1)?;
        let length = u16::try_from(text.len() + OVERHEAD_BYTES).ok()?;
        let [high, low] = length.to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let mut content = [text, &[kind]].concat();
        let nonce = Nonce::assume_unique_for_key(self.write.nonce(number));
        let aead = self.write.aead()?;
        aead.seal_in_place_append_tag(nonce, Aad::from(header), &mut content)
            .ok()?;
        Some([&header[..], &content].concat())
    }

    /// Opens a record, `body` is what stands behind its header: type and content.
    pub(crate) fn open<'a>(
        &self,
        number: u64,
        header: [u8; HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<(u8, &'a [u8]), Fault> {
        let fault = Fault::Tls(TlsFault::Open);
        let aead = self.read.aead().ok_or(fault)?;
        let nonce = Nonce::assume_unique_for_key(self.read.nonce(number));
        let opened = aead.open_in_place(nonce, Aad::from(header), body);
        let opened: &[u8] = opened.map_err(|_| fault)?;
        // RFC 8446 s5.4: zeros behind the type are padding.
        let end = opened.iter().rposition(|byte| *byte != 0).ok_or(fault)?;
        let (content, rest) = opened.split_at(end);
        Ok((rest.first().copied().unwrap_or(0), content))
    }

    /// The beginning of a record's content, of as much of its body as is there, not authenticated.
    /// `body_bytes` is the whole body's length.
    pub(crate) fn peek(&self, number: u64, body: &[u8], body_bytes: usize) -> Option<Vec<u8>> {
        let content_bytes = body_bytes.checked_sub(OVERHEAD_BYTES)?;
        let mut content = body.get(..content_bytes).unwrap_or(body).to_vec();
        // GCM is counter mode from 2 on; 1 is the tag's (NIST SP 800-38D s7.1).
        let mut counter = [0; 16];
        counter[..NONCE_BYTES].copy_from_slice(&self.read.nonce(number));
        counter[15] = 2;
        let key = UnboundCipherKey::new(&AES_128, &self.read.key).ok()?;
        let cipher = DecryptingKey::ctr(key).ok()?;
        let context = DecryptionContext::Iv128((&counter).into());
        cipher.decrypt(&mut content, context).ok()?;
        Some(content)
    }
}

/// The keys of a client and of its server.
#[cfg(test)]
pub(crate) fn pair() -> (Keys, Keys) {
    let secret = |fill: u8| Secret {
        key: [fill; 16],
        iv: [fill + 1; NONCE_BYTES],
    };
    let keys = |write: u8, read: u8| Keys {
        write: secret(write),
        read: secret(read),
        write_number: 0,
        read_number: 0,
    };
    (keys(1, 7), keys(7, 1))
}
