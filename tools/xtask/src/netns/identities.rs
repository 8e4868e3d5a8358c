//! What the server under test proves itself with, and how each program is told of it.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use testbed::certificate::{Authority, IdentityFiles, KeyKind};
use testbed::namespace::VethPair;
use testbed::scratch_directory;

/// Two certificates of an authority of our own, in a directory that goes with this.
#[derive(Debug)]
pub(crate) struct Identities {
    directory: tempfile::TempDir,
    authority: Authority,
    first: IdentityFiles,
    second: IdentityFiles,
}

impl Identities {
    /// What clients get who name nobody, or nobody known; an ECDSA key, and the addresses too.
    pub(crate) const FIRST: &str = "first.test";
    /// The other name; an RSA key.
    pub(crate) const SECOND: &str = "second.test";

    const NAMES: [&str; 3] = [Self::FIRST, VethPair::ATLAS_V4, VethPair::ATLAS_V6];

    /// Puts another certificate with another key in the first one's place.
    pub(crate) fn renew_first(&self) -> Result<()> {
        let renewed = self.authority.issue(KeyKind::Ecdsa, &Self::NAMES)?;
        renewed.write(self.directory.path(), "first").map(drop)
    }

    /// The first one as it is now, PEM.
    pub(crate) fn first_certificate(&self) -> Result<String> {
        fs::read_to_string(&self.first.certificate).context("reading a certificate")
    }

    /// Makes both.
    pub(crate) fn new() -> Result<Self> {
        let directory = scratch_directory("identities")?;
        let authority = Authority::new()?;
        fs::write(directory.path().join("authority.pem"), authority.pem())
            .context("writing the authority's certificate")?;
        let first = authority
            .issue(KeyKind::Ecdsa, &Self::NAMES)?
            .write(directory.path(), "first")?;
        let second = authority
            .issue(KeyKind::Rsa, &[Self::SECOND])?
            .write(directory.path(), "second")?;
        Ok(Self {
            directory,
            authority,
            first,
            second,
        })
    }

    /// Whom clients trust, PEM.
    pub(crate) fn authority_file(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// Whom clients trust, PEM.
    pub(crate) fn authority(&self) -> String {
        self.authority.pem()
    }

    /// How curl is told whom to trust.
    pub(crate) fn curl_options(&self) -> Vec<String> {
        let authority = self.authority_file().to_string_lossy().into_owned();
        vec!["--cacert".to_owned(), authority]
    }

    /// How Atlas is told of both.
    pub(crate) fn atlas_options(&self) -> Vec<OsString> {
        [&self.first, &self.second]
            .into_iter()
            .flat_map(|files| {
                [
                    "--cert".into(),
                    files.certificate.clone().into(),
                    "--key".into(),
                    files.key.clone().into(),
                ]
            })
            .collect()
    }
}
