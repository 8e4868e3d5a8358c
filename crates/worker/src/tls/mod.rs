//! TLS handshakes: rustls's configuration, the certificates to choose from, and the table of handshakes.
//!
//! rustls does handshakes and derives keys, and nothing else: it gets a client's records one at a
//! time until the client's Finished, and exports the traffic keys once ([`Handshaker`]). Then the
//! `record` room seals and opens records, and rustls only derives the next key after a KeyUpdate
//! (RFC 8446 s7.2).
//!
//! It refuses TLS 1.1 and older, suites that are not AEAD or have no forward secrecy, early data
//! (a request could be replayed), client certificates and renegotiation. No `Debug` here has a secret.
//!
//! This is the one part of the worker that allocates while serving, because rustls does. Bounds:
//! [`HANDSHAKE_BYTES_MAX`] from each client, [`CERTIFICATES_MAX`] certificates, and as many clients as the
//! conductor has connections.

mod certificates;
mod config;
mod cost;
mod handshaker;
mod handshaking;
mod names;
mod validity;

pub use certificates::{CERTIFICATES_MAX, Certificates, FOLDER_CERTIFICATES_MAX};
pub use config::{Loaded, server_config};
pub use handshaker::{HandshakeCounters, Handshaker};
pub use handshaking::HANDSHAKE_BYTES_MAX;
pub use validity::{EXPIRY_NOTICE_LIFE_PART, EXPIRY_NOTICE_SECONDS_MAX};

#[cfg(test)]
pub(crate) mod tests;
