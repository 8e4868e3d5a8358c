//! The oracle: records built from the RFCs' sentences over RustCrypto's AEADs, which share no code
//! with the AEADs in use, nor this file with the framing and nonces under test.

mod limits;
mod messages;
mod opening;
mod run;
mod sealing;
mod secrecy;
mod vectors;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;

use crate::{
    AeadLibrary, Alert, AlertDescription, Algorithm, ContentType, Inbound, Sealer, TrafficKey,
    Version,
};

/// Version, AEAD, key and IV of one direction, and who seals.
#[derive(Clone, Copy, Debug)]
struct Suite {
    version: Version,
    algorithm: Algorithm,
    aead_library: AeadLibrary,
    key: [u8; 32],
    iv: [u8; 12],
}

const KEY: [u8; 32] = *b"thirty-two bytes that are no key";
const IV: [u8; 12] = *b"twelve bytes";

const TLS13: Suite = suite(Version::Tls13, Algorithm::Aes128Gcm);
const TLS12: Suite = suite(Version::Tls12, Algorithm::Aes128Gcm);

/// Every version with every AEAD of each library.
const SUITES: [Suite; 12] = [
    TLS13,
    suite(Version::Tls13, Algorithm::Aes256Gcm),
    suite(Version::Tls13, Algorithm::ChaCha20Poly1305),
    TLS12,
    suite(Version::Tls12, Algorithm::Aes256Gcm),
    suite(Version::Tls12, Algorithm::ChaCha20Poly1305),
    by_ring(TLS13),
    by_ring(suite(Version::Tls13, Algorithm::Aes256Gcm)),
    by_ring(suite(Version::Tls13, Algorithm::ChaCha20Poly1305)),
    by_ring(TLS12),
    by_ring(suite(Version::Tls12, Algorithm::Aes256Gcm)),
    by_ring(suite(Version::Tls12, Algorithm::ChaCha20Poly1305)),
];

const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
const DATA: u8 = 23;

const fn suite(version: Version, algorithm: Algorithm) -> Suite {
    Suite {
        version,
        algorithm,
        aead_library: AeadLibrary::AwsLc,
        key: KEY,
        iv: IV,
    }
}

const fn by_ring(suite: Suite) -> Suite {
    Suite {
        aead_library: AeadLibrary::Ring,
        ..suite
    }
}

impl Suite {
    fn key_bytes(&self) -> &[u8] {
        match self.algorithm {
            Algorithm::Aes128Gcm => &self.key[..16],
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => &self.key,
        }
    }

    fn traffic_key(&self) -> TrafficKey {
        TrafficKey::new(self.version, self.algorithm, self.key_bytes(), self.iv).unwrap()
    }

    fn sealer(&self) -> Sealer {
        Sealer::with_library(self.aead_library, &self.traffic_key())
    }

    fn inbound(&self) -> Inbound {
        Inbound::new(&self.traffic_key(), 0)
    }

    /// Record `number` as the RFCs have it.
    fn record(&self, number: u64, type_code: u8, content: &[u8]) -> Vec<u8> {
        match self.version {
            Version::Tls13 => self.record_tls13(number, &[content, &[type_code]].concat()),
            Version::Tls12 => {
                let nonce = self.xored(number);
                self.record_tls12(number, type_code, content, &nonce[4..])
            }
        }
    }

    /// RFC 8446 s5.2, from the whole inner plaintext, padding and all.
    fn record_tls13(&self, number: u64, inner: &[u8]) -> Vec<u8> {
        let length = u16::try_from(inner.len() + 16).unwrap().to_be_bytes();
        let header = [23, 3, 3, length[0], length[1]];
        let sealed = self.seal(self.xored(number), &header, inner);
        [header.as_slice(), &sealed].concat()
    }

    /// RFC 5246 s6.2.3.3; the explicit nonce counts for AES-GCM only.
    fn record_tls12(&self, number: u64, type_code: u8, content: &[u8], nonce: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        let data = [&number.to_be_bytes(), [type_code, 3, 3].as_slice(), &length].concat();
        let body = if self.algorithm == Algorithm::ChaCha20Poly1305 {
            self.seal(self.xored(number), &data, content)
        } else {
            let whole = [&self.iv[..4], nonce].concat();
            let sealed = self.seal(whole.try_into().unwrap(), &data, content);
            [nonce, &sealed].concat()
        };
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [[type_code, 3, 3].as_slice(), &length, &body].concat()
    }

    /// The IV with the number, big-endian and padded on the left, XORed into it.
    fn xored(&self, number: u64) -> [u8; 12] {
        let padded = u128::from(number).to_be_bytes();
        core::array::from_fn(|index| self.iv[index] ^ padded[index + 4])
    }

    fn seal(&self, nonce: [u8; 12], associated_data: &[u8], content: &[u8]) -> Vec<u8> {
        let key = self.key_bytes();
        let nonce = (&nonce).into();
        let payload = Payload {
            msg: content,
            aad: associated_data,
        };
        match self.algorithm {
            Algorithm::Aes128Gcm => Aes128Gcm::new_from_slice(key)
                .unwrap()
                .encrypt(nonce, payload),
            Algorithm::Aes256Gcm => Aes256Gcm::new_from_slice(key)
                .unwrap()
                .encrypt(nonce, payload),
            Algorithm::ChaCha20Poly1305 => {
                let aead = ChaCha20Poly1305::new_from_slice(key).unwrap();
                aead.encrypt(nonce, payload)
            }
        }
        .unwrap()
    }
}

/// Seals into a vector of its own.
fn seal(sealer: &Sealer, number: u64, content_type: ContentType, content: &[u8]) -> Vec<u8> {
    let framing = sealer.framing();
    let header = vec![0; framing.header_bytes as usize];
    let trailer = vec![0; framing.trailer_bytes as usize];
    let mut record = [header.as_slice(), content, &trailer].concat();
    let tag = sealer.seal(number, content_type, &mut record);
    assert!(record.ends_with(&tag.0), "the tag is the record's end");
    record
}

/// What a refusal says.
fn refusal<T: core::fmt::Debug>(opened: Result<T, Alert>) -> AlertDescription {
    let alert = opened.unwrap_err();
    assert!(alert.is_fatal, "{alert:?}");
    alert.description
}

/// What `inbound` says to a record that it refuses.
fn refusal_of(inbound: &mut Inbound, mut record: Vec<u8>) -> AlertDescription {
    refusal(inbound.open(&mut record))
}

/// Content that does not repeat within a block, nor look like padding.
fn content(bytes: usize) -> Vec<u8> {
    (1..=u8::MAX).cycle().take(bytes).collect()
}
