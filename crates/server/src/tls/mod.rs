//! What handshakes are configured with: certificates and keys from files, read at start and at each SIGHUP.
//!
//! [`worker::tls`] does the handshakes. It refuses certificates and keys that clients could not use. No `Debug` and
//! no log line here has a secret. Only `--log-tls-secrets` writes secrets, to the file that SSLKEYLOGFILE names.
//!
//! Bounds: [`worker::tls::CERTIFICATES_MAX`] certificates, [`FILE_BYTES_MAX`](crate::reload::files::FILE_BYTES_MAX) a file.

mod pairs;
mod pem;
mod source;
mod tickets;

pub(crate) use pairs::{NamedPath, PairPaths};
pub(crate) use source::{Source, warn_of_times};

#[cfg(test)]
pub(crate) mod tests;
