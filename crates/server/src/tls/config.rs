//! The rustls configuration: versions, cipher suites, ALPN, tickets. It refuses everything listed in
//! [`crate::tls`]. Bounds: fixed lists, [`crate::tls::CERTIFICATES_MAX`] certificates.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer, cipher_suite as suite};
use rustls::server::{NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::version::{TLS12, TLS13};
use rustls::{KeyLog, NoKeyLog, ServerConfig, SupportedCipherSuite};
use tracing::warn;

use super::certificates::{Certificates, PairPaths};
use super::files::PemFiles;
use super::names;
use crate::failure::Failure;
use crate::own_file::{self, Writes};
use crate::settings::{Https, Origin};

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
/// What names the file for secrets.
const KEY_LOG_VARIABLE: &str = "SSLKEYLOGFILE";

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

/// Logs warnings about the validity of these certificates, by the wall clock.
pub(super) fn warn_of_times(certificates: &Certificates) {
    // With a clock before 1970, all certificates count as not valid yet.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    for warning in certificates.warnings(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
        warn!("{warning}");
    }
}

/// The source of configurations, at start and at each SIGHUP. The ticket keys stay the same, so a
/// session from before a SIGHUP can be resumed after it, but not after a restart.
#[derive(Debug)]
pub struct Source {
    pairs: Vec<PairPaths>,
    files: PemFiles,
    /// Keys change every six hours, and a ticket is taken for twelve at most.
    ticketer: Arc<dyn ProducesTickets>,
    key_log: Arc<dyn KeyLog>,
}

impl Source {
    /// Looks at the environment if secrets are to be logged, and not otherwise. `files` reads the
    /// certificates and keys, now and later.
    ///
    /// # Errors
    /// Secrets are to be logged and cannot be.
    pub fn new(https: &Https, files: PemFiles) -> Result<Self, Failure> {
        let ticketer = Ticketer::new().map_err(|error| {
            Failure::refused(
                format!("keys for tickets: {error}"),
                "allow getrandom in the seccomp profile",
            )
        })?;
        let key_log: Arc<dyn KeyLog> = match &https.secrets_origin {
            Some(origin) => open_key_log(origin, env::var_os(KEY_LOG_VARIABLE).as_deref())?,
            None => Arc::new(NoKeyLog {}),
        };
        Ok(Self {
            pairs: https.pairs.clone(),
            files,
            ticketer,
            key_log,
        })
    }

    /// Reads the certificates, as the files are now, and warns of those that clients refuse, or
    /// will soon, and of chains that they cannot follow.
    ///
    /// # Errors
    /// The first file that is not what it must be.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let certificates = Arc::new(Certificates::load(&self.pairs, &self.files)?);
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Certificates>::clone(&certificates);
        let mut config = server_config(resolver)
            .map_err(|error| Failure::refused(format!("TLS: {error}"), "report this as a bug"))?;
        config.ticketer = Arc::clone(&self.ticketer);
        config.key_log = Arc::clone(&self.key_log);
        for warning in certificates.chain_warnings() {
            warn!("{warning}");
        }
        warn_of_times(&certificates);
        Ok(Loaded {
            config: Arc::new(config),
            certificates,
        })
    }
}

fn open_key_log(origin: &Origin, file: Option<&OsStr>) -> Result<Arc<dyn KeyLog>, Failure> {
    let Some(file) = file.filter(|file| !file.is_empty()) else {
        return Err(Failure::refused(
            format!("{origin}: the variable {KEY_LOG_VARIABLE} is not set"),
            "set it to the file the secrets shall go to, or leave them unlogged",
        ));
    };
    let opened = own_file::open(Path::new(file), Writes::AtTheEnd).map_err(|error| {
        Failure::refused(
            format!("{origin}: {KEY_LOG_VARIABLE} {}: {error}", file.display()),
            "set it to a file that can be written",
        )
    })?;
    warn!(
        "TLS secrets go to {}: whoever reads it can read every connection",
        file.display()
    );
    Ok(Arc::new(SecretsFile(Mutex::new(opened))))
}

/// TLS secrets in the format of NSS (`SSLKEYLOGFILE`). The file is opened once: by its path another could be
/// there later. What cannot be written is lost.
#[derive(Debug)]
struct SecretsFile(Mutex<File>);

impl KeyLog for SecretsFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = format!("{label} ");
        let mut push_hex = |bytes: &[u8], end| {
            for byte in bytes {
                let _ = write!(line, "{byte:02x}");
            }
            line.push(end);
        };
        push_hex(client_random, ' ');
        push_hex(secret, '\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(line.as_bytes());
    }
}
