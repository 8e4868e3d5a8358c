//! What the client offers and whom it trusts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, NamedGroup, ProtocolVersion, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};
use serde::{Deserialize, Serialize};

/// Sessions a connection keeps for its next handshake: a server gives one or two each time.
const SESSIONS_MAX: usize = 8;

/// A protocol version.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// TLS 1.3
    #[value(name = "1.3")]
    Tls13,
    /// TLS 1.2
    #[value(name = "1.2")]
    Tls12,
}

/// The AEAD of the suite.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// AES-128-GCM
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    /// AES-256-GCM
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    /// ChaCha20-Poly1305
    #[value(name = "chacha20")]
    ChaCha20,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls13 => "TLS 1.3",
            Self::Tls12 => "TLS 1.2",
        })
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20 => "ChaCha20-Poly1305",
        })
    }
}

impl Suite {
    /// The suites of any version that use it.
    fn suites(self) -> [CipherSuite; 3] {
        use CipherSuite as S;
        match self {
            Self::Aes128Gcm => [
                S::TLS13_AES_128_GCM_SHA256,
                S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ],
            Self::Aes256Gcm => [
                S::TLS13_AES_256_GCM_SHA384,
                S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            ],
            Self::ChaCha20 => [
                S::TLS13_CHACHA20_POLY1305_SHA256,
                S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ],
        }
    }
}

/// What a run over TLS fixes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientOptions<'a> {
    /// The one version that is offered.
    pub version: Option<Version>,
    /// The AEAD of the suites that are offered.
    pub suite: Option<Suite>,
    /// A file of authorities to trust, PEM.
    pub authorities: Option<&'a Path>,
    /// Trusts whoever answers.
    pub is_insecure: bool,
}

/// How a handshake went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All of it.
    Full,
    /// All of it, after the server had asked for another key share.
    Retried,
    /// A session went on.
    Resumed,
}

/// What the ends of one handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) version: Option<ProtocolVersion>,
    pub(crate) suite: Option<CipherSuite>,
    /// None where no keys were exchanged.
    pub(crate) group: Option<NamedGroup>,
    pub(crate) kind: Kind,
}

/// Handshakes that agreed on the same, and how many they were. Names are those of rustls, empty
/// for what was not agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Agreed {
    pub version: String,
    pub suite: String,
    pub group: String,
    pub kind: Kind,
    pub handshakes: u64,
}

impl Agreed {
    pub(crate) fn new(agreement: Agreement, handshakes: u64) -> Self {
        Self {
            version: shown(agreement.version),
            suite: shown(agreement.suite),
            group: shown(agreement.group),
            kind: agreement.kind,
            handshakes,
        }
    }

    /// Whether it is that version and that AEAD, with keys exchanged over X25519.
    #[must_use]
    pub fn is(&self, version: Version, suite: Suite) -> bool {
        let version = match version {
            Version::Tls13 => ProtocolVersion::TLSv1_3,
            Version::Tls12 => ProtocolVersion::TLSv1_2,
        };
        let suites = suite.suites().map(|it| shown(Some(it)));
        self.version == shown(Some(version))
            && suites.contains(&self.suite)
            && self.group == shown(Some(NamedGroup::X25519))
    }
}

fn shown(value: Option<impl fmt::Debug>) -> String {
    value.map_or_else(String::new, |value| format!("{value:?}"))
}

/// A client of these options. It offers X25519 first and P-256 beside it, so that every server
/// does the same arithmetic if it can.
///
/// # Errors
/// Nobody to trust; a file that holds no certificate.
pub fn client_config(options: ClientOptions<'_>) -> Result<Arc<ClientConfig>> {
    let mut provider = aws_lc_rs::default_provider();
    if let Some(suite) = options.suite {
        provider
            .cipher_suites
            .retain(|offered| suite.suites().contains(&offered.suite()));
    }
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1];
    let provider = Arc::new(provider);
    let versions: &[&SupportedProtocolVersion] = match options.version {
        Some(Version::Tls13) => &[&TLS13],
        Some(Version::Tls12) => &[&TLS12],
        None => &[&TLS13, &TLS12],
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .context("the versions and suites")?;
    let builder = match options.authorities {
        _ if options.is_insecure => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Some(file) => builder.with_root_certificates(authorities(file)?),
        None => bail!("https:// needs --ca FILE or --insecure"),
    };
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// The same client, with a memory of its own for sessions to resume. Each connection needs one:
/// rustls keeps so few tickets for a server that thousands of connections would have none left.
pub(crate) fn with_sessions(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
    Arc::new(config)
}

fn authorities(file: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let reading = || format!("reading {}", file.display());
    for certificate in CertificateDer::pem_file_iter(file).with_context(reading)? {
        roots
            .add(certificate.with_context(reading)?)
            .with_context(reading)?;
    }
    if roots.is_empty() {
        bail!("{} holds no certificate", file.display());
    }
    Ok(roots)
}

/// Trusts whoever answers; signatures are still checked, as their cost is part of a handshake.
struct Anybody(Arc<CryptoProvider>);

impl fmt::Debug for Anybody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anybody")
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_suite_or_group_is_not_what_was_wanted() {
        let agreement = Agreement {
            version: Some(ProtocolVersion::TLSv1_3),
            suite: Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
            group: Some(NamedGroup::X25519),
            kind: Kind::Full,
        };
        let is = |agreement, version, suite| Agreed::new(agreement, 1).is(version, suite);
        assert!(is(agreement, Version::Tls13, Suite::Aes128Gcm));
        assert!(!is(agreement, Version::Tls12, Suite::Aes128Gcm));
        assert!(!is(agreement, Version::Tls13, Suite::Aes256Gcm));
        for group in [None, Some(NamedGroup::secp256r1)] {
            let other = Agreement { group, ..agreement };
            assert!(!is(other, Version::Tls13, Suite::Aes128Gcm), "{group:?}");
        }
    }
}
