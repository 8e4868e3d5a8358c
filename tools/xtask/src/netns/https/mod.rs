//! HTTP over TLS with real programs: curl (OpenSSL), ffmpeg (GnuTLS), Chromium
//! (BoringSSL).
//!
//! What they fetch is compared byte by byte; what they refuse, and how they are refused, by what
//! they say.

mod players;
mod transfers;

use anyhow::Result;

use super::files::{Access, Library, name};
use super::identities::Identities;
use super::setup::{Family, Setup};

pub(crate) use self::players::run as run_players;
pub(crate) use self::transfers::{KEY_RECORDS_MAX, run as run_transfers, run_many_keys};

/// The server under test, and what it serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixture<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) library: &'a Library,
    pub(crate) identities: &'a Identities,
}

impl<'a> Fixture<'a> {
    /// How a check is called here.
    fn label(&self, what: &str) -> String {
        format!("{} https {what}", self.setup.name())
    }

    pub(crate) fn access(&self) -> Access<'a> {
        Access::Https(self.identities)
    }

    /// Where a file is by the name of a certificate, and how curl finds its way there.
    fn named(&self, host: &str, size_bytes: u64) -> Result<[String; 3]> {
        let address = self.setup.https_address(Family::V4)?;
        Ok([
            "--resolve".to_owned(),
            format!("{host}:{}:{}", address.port(), address.ip()),
            format!("https://{host}:{}{}", address.port(), name(size_bytes)),
        ])
    }
}
