//! Connections over TLS: the handshake by rustls, the records counted here.

mod config;
mod handshake;
mod sealed;
#[cfg(test)]
mod tests;

pub use config::{Agreed, ClientOptions, Kind, Suite, Version, client_config};
pub(crate) use config::{Agreement, with_sessions};
pub(crate) use handshake::{Established, Handshake};
pub(crate) use sealed::Sealed;

/// Bytes of a record's header: type, version, length (RFC 8446 s5.1).
const HEADER_BYTES: usize = 5;

/// Most bytes of content in a record (RFC 8446 s5.1).
const CONTENT_BYTES_MAX: usize = 1 << 14;
