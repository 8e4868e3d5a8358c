//! What the instruments' TLS clients offer, and whom they trust.
//!
//! It refuses to trust nobody in particular unless told so. Bounded by: nothing to bound.

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
    CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};

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
