//! What handshakes are configured with: certificates and keys from files, read at start and at each SIGHUP.
//!
//! [`worker::tls`] does the handshakes. It refuses certificates and keys that clients could not use. No `Debug` and
//! no log line here has a secret. Only `--log-tls-secrets` writes secrets, to the file that SSLKEYLOGFILE names.
//!
//! Bounds: [`worker::tls::CERTIFICATES_MAX`] certificates, [`PEM_BYTES_MAX`] a file.

mod files;
mod loader;
mod pairs;
mod pem;
pub mod reader;
mod source;

pub use files::{PEM_BYTES_MAX, PemFiles};
pub use loader::Loader;
pub use pairs::{NamedPath, PairPaths};
pub use source::Source;

#[cfg(test)]
mod tests;
