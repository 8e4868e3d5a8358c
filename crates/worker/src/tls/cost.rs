//! Estimated costs of handshake records, in microseconds of a core, to limit handshakes in a round.
//!
//! It refuses to measure while serving, because a round reads no clock and the simulator must repeat
//! a run exactly. On another machine all costs are wrong by about the same factor; handshakes then
//! get a larger or smaller share of the core, but the ratios stay right. Bound: a fixed table.

use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

/// A record without cryptography: a part of a hello, `change_cipher_spec`.
pub(super) const RECORD_US: u64 = 3;
/// A record that is refused: at most a key exchange comes before the fault is found `[guess]`. One
/// cost for all, so that it does not depend on which random byte of a hello was altered.
pub(super) const REFUSED_US: u64 = 45;
/// The client's Finished, and our tickets behind it.
pub(super) const FINISHED_US: u64 = 30;
/// The client's key share of TLS 1.2, which comes in a record of its own.
pub(super) const KEY_EXCHANGE_US: u64 = 45;
/// A hello that resumes a session: a key exchange, and no signature.
pub(super) const RESUMED_HELLO_US: u64 = 65;

/// A hello answered with a full handshake: a key exchange, and a signature by that key. ECDSA on
/// P-256 and RSA of 2048 bits were measured (with opt-level 1), the others are `[guess]`.
pub(super) fn full_hello_us(key: &dyn SigningKey) -> u64 {
    let can = |scheme| key.choose_scheme(&[scheme]).is_some();
    match key.algorithm() {
        SignatureAlgorithm::ED25519 => 80,
        SignatureAlgorithm::ECDSA if can(SignatureScheme::ECDSA_NISTP256_SHA256) => 80,
        SignatureAlgorithm::ECDSA if can(SignatureScheme::ECDSA_NISTP384_SHA384) => 200,
        SignatureAlgorithm::ECDSA => 400,
        // The public key is as long as the modulus and some 40 bytes.
        _ => match key.public_key().map_or(0, |public| public.as_ref().len()) {
            0..=300 => 340,
            301..=430 => 900,
            _ => 1_900,
        },
    }
}
