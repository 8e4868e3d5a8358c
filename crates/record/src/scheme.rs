//! The differences between versions and AEADs: the bytes around the content, the nonce, and the
//! additional authenticated data.

use aws_lc_rs::aead::{LessSafeKey, UnboundKey};
use zeroize::Zeroize;

use crate::{Algorithm, ContentType, Framing, HEADER_BYTES, TrafficKey, Version};

/// Bytes of a nonce, the same for every AEAD here.
pub(crate) const NONCE_BYTES: usize = 12;
/// Bytes of the nonce that TLS 1.2 with AES-GCM keeps from the wire, `salt` (RFC 5288 s3).
pub(crate) const SALT_BYTES: usize = 4;
/// Bytes of the nonce that TLS 1.2 with AES-GCM puts on the wire (RFC 5288 s3).
pub(crate) const EXPLICIT_NONCE_BYTES: usize = NONCE_BYTES - SALT_BYTES;
/// What every record says its version is: TLS 1.2, also in TLS 1.3 (RFC 8446 s5.1).
pub(crate) const RECORD_VERSION: [u8; 2] = [3, 3];

/// How a version and an AEAD together protect a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scheme {
    /// RFC 8446 s5.2: the content type is sealed behind the content.
    Tls13,
    /// RFC 5288: AES-GCM in TLS 1.2, a part of the nonce before the content.
    Tls12ExplicitNonce,
    /// RFC 7905: ChaCha20-Poly1305 in TLS 1.2, nothing but the tag added.
    Tls12,
}

impl Scheme {
    pub(crate) const fn of(version: Version, algorithm: Algorithm) -> Self {
        match (version, algorithm) {
            (Version::Tls13, _) => Self::Tls13,
            (Version::Tls12, Algorithm::Aes128Gcm | Algorithm::Aes256Gcm) => {
                Self::Tls12ExplicitNonce
            }
            (Version::Tls12, Algorithm::ChaCha20Poly1305) => Self::Tls12,
        }
    }

    pub(crate) const fn version(self) -> Version {
        match self {
            Self::Tls13 => Version::Tls13,
            Self::Tls12ExplicitNonce | Self::Tls12 => Version::Tls12,
        }
    }

    pub(crate) const fn framing(self) -> Framing {
        let (header_bytes, trailer_bytes) = match self {
            Self::Tls13 => (5, 17),
            Self::Tls12ExplicitNonce => (13, 16),
            Self::Tls12 => (5, 16),
        };
        Framing {
            header_bytes,
            trailer_bytes,
        }
    }
}

/// The key in the form that seals and opens: about 600 bytes in one allocation of aws-lc, which
/// wipes it when it is freed (`EVP_AEAD_CTX_free` ends in `OPENSSL_free`, which cleanses whatever
/// it frees; read in aws-lc-sys 0.47.0, `crypto/mem.c`).
pub(crate) fn expand(key: &TrafficKey) -> LessSafeKey {
    let unbound = UnboundKey::new(key.algorithm().aead(), key.key())
        .expect("invariant: a TrafficKey is as long as its algorithm wants");
    LessSafeKey::new(unbound)
}

/// The IV of a direction, which with a record's number gives the record's nonce. Wiped on drop.
///
/// RFC 8446 s5.3: "The padded sequence number is XORed with either the static client_write_iv or
/// server_write_iv". RFC 7905 s2 is the same for TLS 1.2. For RFC 5288, which wants any explicit
/// nonce that does not repeat, it gives the counter from a secret start that rustls uses too.
///
/// Kept as two numbers of the lengths that a nonce is copied in, eight bytes and four: writing it
/// in other pieces delays the copy, by one or two in a hundred of a 4 KiB record's sealing.
pub(crate) struct Iv {
    head: u64,
    tail: u32,
}

impl Iv {
    pub(crate) const fn new([a, b, c, d, e, f, g, h, i, j, k, l]: [u8; NONCE_BYTES]) -> Self {
        Self {
            head: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            tail: u32::from_be_bytes([i, j, k, l]),
        }
    }

    pub(crate) fn nonce(&self, number: u64) -> [u8; NONCE_BYTES] {
        let head = (self.head ^ (number >> 32)).to_be_bytes();
        let [.., a, b, c, d] = number.to_be_bytes();
        let tail = (self.tail ^ u32::from_be_bytes([a, b, c, d])).to_be_bytes();
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&head);
        nonce[8..].copy_from_slice(&tail);
        nonce
    }
}

impl Drop for Iv {
    fn drop(&mut self) {
        self.head.zeroize();
        self.tail.zeroize();
    }
}

/// RFC 5246 s6.2.3.3: "additional_data = seq_num + TLSCompressed.type + TLSCompressed.version +
/// TLSCompressed.length", the length being the content's.
pub(crate) fn tls12_associated_data(number: u64, type_code: u8, content_bytes: usize) -> [u8; 13] {
    let mut data = [0; 13];
    data[..8].copy_from_slice(&number.to_be_bytes());
    data[8] = type_code;
    data[9..11].copy_from_slice(&RECORD_VERSION);
    data[11..].copy_from_slice(&length(content_bytes));
    data
}

/// A record's header: type, version, length of what follows (RFC 8446 s5.1).
pub(crate) fn header(content_type: ContentType, following_bytes: usize) -> [u8; HEADER_BYTES] {
    let [major, minor] = RECORD_VERSION;
    let [high, low] = length(following_bytes);
    [content_type.code(), major, minor, high, low]
}

fn length(bytes: usize) -> [u8; 2] {
    let bytes = u16::try_from(bytes).expect("invariant: a record is shorter than 2^16 bytes");
    bytes.to_be_bytes()
}
