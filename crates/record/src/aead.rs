//! What seals: the AEADs of two libraries. Which of them is faster depends on the processor
//! (`docs/develop/decisions/0013-aead-by-machine.md`).
//!
//! An AEAD is a function, so both libraries give the same bytes, and nothing beyond this file knows
//! which one seals. It does not choose: the caller does. It does not open either: what clients send
//! is little, and is opened by aws-lc.
//!
//! Bound: one allocation for each key, about 600 bytes, and none for a record.

use aws_lc_rs::aead as aws_lc;
use ring::aead as ring;

use crate::scheme::{self, NONCE_BYTES};
use crate::sealer::TAG_BYTES;
use crate::{Algorithm, TrafficKey};

/// The library whose AEADs seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AeadLibrary {
    /// aws-lc. It wipes a key when the key is dropped.
    #[default]
    AwsLc,
    /// ring. It does not wipe keys: the memory keeps a dropped key until it is used again.
    Ring,
}

impl AeadLibrary {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::AwsLc, Self::Ring];

    /// Its name in settings and in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AwsLc => "aws-lc",
            Self::Ring => "ring",
        }
    }

    /// The library of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|library| library.name() == name)
    }
}

/// A key expanded for sealing, on the heap with either library: about 600 bytes.
pub(crate) enum SealingKey {
    AwsLc(aws_lc::LessSafeKey),
    Ring(Box<ring::LessSafeKey>),
}

impl SealingKey {
    pub(crate) fn new(library: AeadLibrary, key: &TrafficKey) -> Self {
        match library {
            AeadLibrary::AwsLc => Self::AwsLc(scheme::expand(key)),
            AeadLibrary::Ring => {
                let algorithm = match key.algorithm() {
                    Algorithm::Aes128Gcm => &ring::AES_128_GCM,
                    Algorithm::Aes256Gcm => &ring::AES_256_GCM,
                    Algorithm::ChaCha20Poly1305 => &ring::CHACHA20_POLY1305,
                };
                let unbound = ring::UnboundKey::new(algorithm, key.key())
                    .expect("invariant: a TrafficKey is as long as its algorithm wants");
                Self::Ring(Box::new(ring::LessSafeKey::new(unbound)))
            }
        }
    }

    /// Seals `text` in place and returns the tag. The caller uses each nonce for one text only.
    pub(crate) fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated_data: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        const SHORT: &str = "invariant: a record is short enough for every AEAD";
        const TAG: &str = "invariant: every AEAD here has a tag of this length";
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let data = aws_lc::Aad::from(associated_data);
                let tag = key.seal_in_place_separate_tag(nonce, data, text);
                *tag.expect(SHORT).as_ref().first_chunk().expect(TAG)
            }
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let data = ring::Aad::from(associated_data);
                let tag = key.seal_in_place_separate_tag(nonce, data, text);
                *tag.expect(SHORT).as_ref().first_chunk().expect(TAG)
            }
        }
    }
}
