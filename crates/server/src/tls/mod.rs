//! TLS handshakes: certificates, rustls's configuration, and the table of who shakes hands.
//!
//! rustls shakes hands and computes keys, and does nothing else: it is given a client's records
//! one at a time until its Finished, and hands the traffic keys over once ([`Handshaker`]). From
//! then on the `record` room seals and opens, and rustls is asked only for the next key of a
//! connection that changes it (RFC 8446 s7.2).
//!
//! It refuses TLS 1.1 and older, suites that are not AEAD or have no forward secrecy, early data
//! (a request could be played back), client certificates, renegotiation, and to say a secret: no
//! `Debug` and no log line here has one. Only `--log-tls-secrets` writes them, to the file that
//! SSLKEYLOGFILE names.
//!
//! This is the one part of the worker that allocates while serving, because rustls does. Bounds:
//! [`HANDSHAKE_BYTES_MAX`] from each client, [`CERTIFICATES_MAX`] certificates,
//! [`PEM_BYTES_MAX`] a file, and as many clients as the conductor has connections.

mod certificates;
mod config;
mod cost;
mod files;
mod handshaker;
mod handshaking;
mod loader;
mod pem;
pub mod reader;
mod validity;

pub use certificates::{CERTIFICATES_MAX, Certificates, NamedPath, PairPaths};
pub use config::{Loaded, Source, server_config};
pub use files::{PEM_BYTES_MAX, PemFiles};
pub use handshaker::Handshaker;
pub use handshaking::HANDSHAKE_BYTES_MAX;
pub use loader::Loader;
pub use validity::{EXPIRY_NOTICE_LIFE_PART, EXPIRY_NOTICE_SECONDS_MAX};

#[cfg(test)]
pub(crate) mod tests;
