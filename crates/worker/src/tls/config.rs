//! The rustls configuration: versions, cipher suites, ALPN, tickets. It refuses everything listed in
//! [`crate::tls`]. Bounds: fixed lists, [`crate::tls::CERTIFICATES_MAX`] certificates.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suite};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedCipherSuite};

use super::certificates::Certificates;
use super::names;

/// The suites: AEAD with forward secrecy. The client's order decides, as in nginx: only the client
/// knows whether it has AES in hardware.
static SUITES: [SupportedCipherSuite; 9] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// The same for names that rustls does not take.
static SUITES_FOR_ALL_NAMES: LazyLock<Vec<SupportedCipherSuite>> =
    LazyLock::new(|| names::suites(&SUITES));

/// The protocols spoken inside, the preferred one first (RFC 7301; `http/1.0` is what `curl -0`
/// asks for). Clients that name none are served as well.
const PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];
/// Tickets of TLS 1.3 after a handshake. A ticket is used once (RFC 8446 appendix C.4), and
/// players open two connections at a time, for pictures and for sound.
const TICKETS: usize = 2;

/// The configuration without tickets, so that no session is resumed.
///
/// # Errors
/// rustls refuses it, which is a programming error.
pub fn server_config(
    certificates: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = CryptoProvider {
        cipher_suites: SUITES_FOR_ALL_NAMES.clone(),
        ..aws_lc_rs::default_provider()
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.enable_secret_extraction = true;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.send_tls13_tickets = TICKETS;
    // Early data can be replayed by anyone who captured it (RFC 8446 s8).
    config.max_early_data_size = 0;
    // Tickets suffice: the server stores no sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// A configuration loaded from the files.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration for handshakes.
    pub config: Arc<ServerConfig>,
    /// The certificates in it.
    pub certificates: Arc<Certificates>,
}
