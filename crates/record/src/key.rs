//! Traffic keys, as the handshake provides them.

use core::fmt;

use aws_lc_rs::aead;
use zeroize::Zeroize;

/// Protocol version (RFC 8446, RFC 5246).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// AEAD of the negotiated suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Algorithm {
    /// Key length, bytes.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Records one key may seal, well below what RFC 8446 s5.5 allows: 2^24.5 for AES-GCM, so we
    /// stop at 2^23; ChaCha20-Poly1305 would wrap its record numbers first, so 2^48 is as good.
    #[must_use]
    pub const fn records_max(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 23,
            Self::ChaCha20Poly1305 => 1 << 48,
        }
    }

    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// Why there is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key's length is not the algorithm's.
    #[error("a key of {bytes} bytes does not fit the algorithm")]
    KeyLength {
        /// As given.
        bytes: usize,
    },
}

/// One direction's traffic key and IV. Wiped on drop; its `Debug` prints neither.
pub struct TrafficKey {
    version: Version,
    algorithm: Algorithm,
    key: [u8; 32],
    iv: [u8; 12],
}

impl TrafficKey {
    /// `iv` is XORed with the record number to a nonce (RFC 8446 s5.3, RFC 7905 s2). For TLS 1.2
    /// with AES-GCM it is the 4 bytes of salt and the 8 bytes the explicit nonces start from.
    ///
    /// # Errors
    /// A key of the wrong length.
    pub fn new(
        version: Version,
        algorithm: Algorithm,
        key: &[u8],
        iv: [u8; 12],
    ) -> Result<Self, KeyError> {
        if key.len() != algorithm.key_bytes() {
            return Err(KeyError::KeyLength { bytes: key.len() });
        }
        let mut padded = [0; 32];
        padded[..key.len()].copy_from_slice(key);
        Ok(Self {
            version,
            algorithm,
            key: padded,
            iv,
        })
    }

    /// Protocol version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// AEAD.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.algorithm.key_bytes()]
    }

    pub(crate) const fn iv(&self) -> [u8; 12] {
        self.iv
    }
}

impl Drop for TrafficKey {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficKey")
            .field("version", &self.version)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}
