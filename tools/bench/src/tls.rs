//! The credentials of the servers of a bench over TLS: one key, one certificate, and an authority made
//! for the run and deleted with it.
//!
//! Bounded by: nothing to bound.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use testbed::certificate::{Authority, IdentityFiles, KeyKind};
use testbed::scratch_directory;

/// The name in the certificate, and the one the client asks for.
pub(crate) const NAME: &str = "atlas.test";

/// The key the server signs with.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// RSA, 2,048 bits
    Rsa,
    /// ECDSA on P-256
    Ecdsa,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa => "RSA-2048",
            Self::Ecdsa => "ECDSA P-256",
        })
    }
}

/// The credentials of the servers of a run, in files that are deleted when it is dropped.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// What the client is to trust.
    pub(crate) authority: PathBuf,
    /// The certificate and its key.
    pub(crate) identity: IdentityFiles,
    _directory: tempfile::TempDir,
}

impl Credentials {
    /// Makes an authority, and one certificate for all servers.
    pub(crate) fn new(key: Key) -> Result<Self> {
        let kind = match key {
            Key::Rsa => KeyKind::Rsa,
            Key::Ecdsa => KeyKind::Ecdsa,
        };
        let directory = scratch_directory("certificates")?;
        let authority = Authority::new()?;
        let trusted = directory.path().join("authority.pem");
        fs::write(&trusted, authority.pem())?;
        let identity = authority
            .issue(kind, &[NAME])?
            .write(directory.path(), "server")?;
        Ok(Self {
            authority: trusted,
            identity,
            _directory: directory,
        })
    }
}

/// Whether this kernel has kTLS, the rivals' way to `sendfile` over TLS. A module that is not
/// loaded counts as absent.
pub(crate) fn is_kernel_tls_available() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp")
        .is_ok_and(|available| available.split_whitespace().any(|name| name == "tls"))
}
