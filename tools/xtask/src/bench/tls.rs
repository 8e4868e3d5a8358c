//! What a bench over TLS fixes on both sides: one version, one suite, one group, one certificate.
//!
//! The client offers nothing else, so every server does the same arithmetic. It refuses to skip
//! verification: the certificate is checked up to an authority made for the run and forgotten with
//! it. Bounded by: nothing to bound.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConfig, ClientConnection, NamedGroup, RootCertStore};

use crate::harness::certificate::{Authority, IdentityFiles, KeyKind};
use crate::harness::scratch_directory;

/// The name in the certificate, and the one the client asks for.
const NAME: &str = "atlas.test";

/// A protocol version.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    /// TLS 1.3
    #[value(name = "1.3")]
    Tls13,
    /// TLS 1.2
    #[value(name = "1.2")]
    Tls12,
}

/// The AEAD of the suite.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suite {
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

/// The key the server signs with.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// RSA, 2,048 bits
    Rsa,
    /// ECDSA on P-256
    Ecdsa,
}

/// Its name on a command line: what a process passes on to the client's.
pub(crate) fn argument(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa => "RSA-2048",
            Self::Ecdsa => "ECDSA P-256",
        })
    }
}

impl Suite {
    /// The suites of a version that use it. TLS 1.2 names the certificate's kind too.
    fn suites(self, version: Version) -> &'static [CipherSuite] {
        use CipherSuite as S;
        match (version, self) {
            (Version::Tls13, Self::Aes128Gcm) => &[S::TLS13_AES_128_GCM_SHA256],
            (Version::Tls13, Self::Aes256Gcm) => &[S::TLS13_AES_256_GCM_SHA384],
            (Version::Tls13, Self::ChaCha20) => &[S::TLS13_CHACHA20_POLY1305_SHA256],
            (Version::Tls12, Self::Aes128Gcm) => &[
                S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ],
            (Version::Tls12, Self::Aes256Gcm) => &[
                S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            ],
            (Version::Tls12, Self::ChaCha20) => &[
                S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ],
        }
    }
}

/// What the servers of a run shake hands with, in files that go when it is dropped.
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

/// The name the client asks for.
pub(crate) fn server_name() -> Result<ServerName<'static>> {
    ServerName::try_from(NAME).context("a fixed name")
}

/// A client that offers one version, one AEAD and X25519 (see [`check_group`]), trusts one
/// authority and resumes nothing.
pub(crate) fn client_config(
    version: Version,
    suite: Suite,
    authority: &Path,
) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(authority)
        .with_context(|| format!("reading {}", authority.display()))?;
    roots.add(trusted).context("trusting the authority")?;
    let wanted = suite.suites(version);
    let mut provider = aws_lc_rs::default_provider();
    provider
        .cipher_suites
        .retain(|offered| wanted.contains(&offered.suite()));
    let mut kx_groups = vec![aws_lc_rs::kx_group::X25519];
    if version == Version::Tls12 {
        // There the list stands for certificates too (RFC 8422 s5.1.1): without their curve no
        // server may use an ECDSA key.
        kx_groups.push(aws_lc_rs::kx_group::SECP256R1);
    }
    let provider = CryptoProvider {
        kx_groups,
        ..provider
    };
    let version = match version {
        Version::Tls13 => &TLS13,
        Version::Tls12 => &TLS12,
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .context("one version and its suites")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(config)
}

/// Refuses a handshake over anything but X25519.
pub(crate) fn check_group(connection: &ClientConnection) -> Result<()> {
    let group = connection
        .negotiated_key_exchange_group()
        .map(|group| group.name());
    ensure!(
        group == Some(NamedGroup::X25519),
        "keys exchanged over {group:?}"
    );
    Ok(())
}

/// Whether this kernel has kTLS, the rivals' way to `sendfile` over TLS. A module that is not
/// loaded counts as absent.
pub(crate) fn is_kernel_tls_available() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp")
        .is_ok_and(|available| available.split_whitespace().any(|name| name == "tls"))
}

/// A server of rustls's own, for tests: every version and suite, tickets, no wish of its own.
#[cfg(test)]
pub(crate) fn server_config(credentials: &Credentials) -> rustls::ServerConfig {
    use rustls::pki_types::PrivateKeyDer;
    let identity = &credentials.identity;
    let certificate = CertificateDer::from_pem_file(&identity.certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
    rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("an identity")
}
