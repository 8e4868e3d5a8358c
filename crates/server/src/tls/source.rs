//! The source of TLS configurations: certificates from files, keys for tickets, and the file for secrets.
//!
//! It refuses to log secrets unless it is told to, and then says so. Bounds: those of the files.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ProducesTickets, ResolvesServerCert};
use rustls::{KeyLog, NoKeyLog};
use tracing::warn;
use worker::tls::{Certificates, Loaded, server_config};

use super::pairs;
use super::tickets::SharedTickets;
use crate::failure::Failure;
use crate::reload::files::OperatorFiles;
use crate::settings::{Https, Origin};
use crate::start::own_file::{self, Writes};

/// What names the file for secrets.
const KEY_LOG_VARIABLE: &str = "SSLKEYLOGFILE";

/// Logs warnings about the validity of these certificates, by the wall clock.
pub(crate) fn warn_of_times(certificates: &Certificates) {
    // With a clock before 1970, all certificates count as not valid yet.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    for warning in certificates.warnings(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
        warn!("{warning}");
    }
}

/// The source of configurations, at start and at each SIGHUP. The ticket keys stay the same, so a
/// session from before a SIGHUP can be resumed after it; after a restart, and by other servers, if the operator
/// says what the keys are.
#[derive(Debug)]
pub(crate) struct Source {
    /// Keys change every six hours, and a ticket is taken for twelve at most.
    ticketer: Arc<dyn ProducesTickets>,
    key_log: Arc<dyn KeyLog>,
}

impl Source {
    /// Looks at the environment if secrets are to be logged, and not otherwise.
    ///
    /// # Errors
    /// Secrets are to be logged and cannot be.
    pub(crate) fn new(https: &Https) -> Result<Self, Failure> {
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
        Ok(Self { ticketer, key_log })
    }

    /// Reads the certificates, as the files are now, and warns of those that clients refuse, or
    /// will soon, and of chains that they cannot follow.
    ///
    /// # Errors
    /// The first file that is not what it must be.
    pub(crate) fn load(&self, https: &Https, files: &OperatorFiles) -> Result<Loaded, Failure> {
        let certificates = Arc::new(pairs::load(&https.pairs, https.folder.as_ref(), files)?);
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Certificates>::clone(&certificates);
        let mut config = server_config(resolver)
            .map_err(|error| Failure::refused(format!("TLS: {error}"), "report this as a bug"))?;
        config.ticketer = match &https.ticket_keys {
            Some(file) => Arc::new(SharedTickets::load(file, files)?),
            None => Arc::clone(&self.ticketer),
        };
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
