//! Certificates and their keys: reading the files, and choosing one for a client.
//!
//! It refuses an unusable pair when it reads it, in one line with the remedy. Messages about a key
//! have its file and the expected kind only, never its content.
//!
//! The bytes of a key file are wiped as soon as they are parsed. AWS-LC holds the parsed key and
//! wipes memory that it frees. Bound: [`CERTIFICATES_MAX`] pairs.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error, InconsistentKeys, SignatureScheme};
use zeroize::Zeroizing;

use super::cost::full_hello_us;
use super::files::{PEM_BYTES_MAX, PemFiles};
use super::pem::KeySection;
use super::validity::CertificateInfo;
use crate::failure::Failure;
use crate::settings::Origin;

thread_local! {
    /// See [`take_chosen_us`].
    static CHOSEN_US: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Most certificates; each may be for many names. The one for a client is looked for from the
/// first to the last.
pub const CERTIFICATES_MAX: usize = 16;

/// A file, and how the operator named it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPath {
    /// Flag or key.
    pub origin: Origin,
    /// The file.
    pub path: PathBuf,
}

impl fmt::Display for NamedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.origin, self.path.display())
    }
}

/// Where a certificate and its key are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairPaths {
    /// PEM file of the certificate chain: the server's own first, then its issuers.
    pub certificate: NamedPath,
    /// PEM file of its private key.
    pub key: NamedPath,
}

/// The server's certificates; the first one is the default, for clients whose server name matches none.
#[derive(Debug)]
pub struct Certificates {
    pairs: Vec<Pair>,
}

/// A certificate with its key, and properties of both, determined when they were loaded.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    /// Of each certificate of the chain that could be parsed, the server's own first.
    chain: Vec<CertificateInfo>,
    /// What a full handshake with it costs, microseconds.
    hello_us: u64,
    /// Where its certificate came from.
    file: String,
}

impl Pair {
    fn new(certified: CertifiedKey, file: String) -> Self {
        Self {
            chain: certified
                .cert
                .iter()
                .filter_map(CertificateInfo::of)
                .collect(),
            hello_us: full_hello_us(&*certified.key),
            certified: Arc::new(certified),
            file,
        }
    }

    fn is_for(&self, name: &str) -> bool {
        self.chain.first().is_some_and(|own| own.is_for(name))
    }
}

impl Certificates {
    /// Those pairs, in this order.
    #[must_use]
    pub fn new(pairs: Vec<CertifiedKey>) -> Self {
        let pair = |certified| Pair::new(certified, String::new());
        Self {
            pairs: pairs.into_iter().map(pair).collect(),
        }
    }

    /// Reads every pair.
    ///
    /// # Errors
    /// The first file that is not what it must be, or does not belong to the other.
    pub fn load(paths: &[PairPaths], files: &PemFiles) -> Result<Self, Failure> {
        let load = |paths: &PairPaths| {
            let file = paths.certificate.to_string();
            load_pair(paths, files).map(|certified| Pair::new(certified, file))
        };
        let pairs: Vec<_> = paths.iter().map(load).collect::<Result<_, _>>()?;
        Ok(Self { pairs })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pairs.len()
    }

    /// A warning for each certificate that is expired, not valid yet, or expires soon, at
    /// `unix_seconds`.
    #[must_use]
    pub fn warnings(&self, unix_seconds: i64) -> Vec<String> {
        let of_pair = |pair: &Pair| -> Vec<String> {
            let warn = |info: &CertificateInfo| info.warning(&pair.file, unix_seconds);
            pair.chain.iter().filter_map(warn).collect()
        };
        self.pairs.iter().flat_map(of_pair).collect()
    }

    /// Unix time at which the first of them ends, chains included, seconds.
    #[must_use]
    pub fn earliest_end(&self) -> Option<i64> {
        let all = self.pairs.iter().flat_map(|pair| &pair.chain);
        all.map(|info| info.not_after).min()
    }

    /// The first pair for `name` whose key has a signature scheme of the client's, else the first of
    /// any name that has one, else the first pair: then the handshake fails, and rustls sends a more
    /// precise alert than "no certificate".
    pub(super) fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Pair> {
        let fits = |pair: &&Pair| pair.certified.key.choose_scheme(schemes).is_some();
        let named = name.and_then(|name| {
            let mut fitting = self.pairs.iter().filter(fits);
            fitting.find(|pair| pair.is_for(name))
        });
        named
            .or_else(|| self.pairs.iter().find(fits))
            .or_else(|| self.pairs.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pair = self.choose(hello.server_name(), hello.signature_schemes())?;
        CHOSEN_US.set(Some(pair.hello_us));
        Some(Arc::clone(&pair.certified))
    }
}

/// If a certificate was chosen on this thread since the last call: what a full handshake with it
/// costs, microseconds. rustls chooses in the middle of a call and does not tell its caller.
pub(super) fn take_chosen_us() -> Option<u64> {
    CHOSEN_US.take()
}

fn load_pair(paths: &PairPaths, files: &PemFiles) -> Result<CertifiedKey, Failure> {
    let chain = load_chain(&paths.certificate, files)?;
    let key = load_key(&paths.key, files)?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // A key without a public half cannot be checked, and is accepted.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(Error::InconsistentKeys(_)) => Err(Failure::refused(
            format!("{}: not the key of {}", paths.key, paths.certificate),
            "give each certificate its own key; in the file of a chain the server's own \
             certificate comes first",
        )),
        Err(error) => Err(Failure::refused(
            format!("{}: not usable: {error}", paths.certificate),
            "the first certificate in it must be an X.509 certificate of version 3",
        )),
    }
}

fn load_chain(file: &NamedPath, files: &PemFiles) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = read(file, files)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) if has(&text, "PRIVATE KEY-----") => Err(Failure::refused(
            format!("{file}: a private key and no certificate"),
            "certificate and key seem to be swapped",
        )),
        Ok(_) => Err(Failure::refused(
            format!("{file}: no certificate in it"),
            "name a PEM file: it has -----BEGIN CERTIFICATE----- in it",
        )),
        Err(error) => Err(Failure::refused(
            format!("{file}: {}", describe(&error)),
            "name a whole PEM file",
        )),
    }
}

fn load_key(file: &NamedPath, files: &PemFiles) -> Result<Arc<dyn SigningKey>, Failure> {
    let text = read(file, files)?;
    let sign_with = |key: &PrivateKeyDer<'_>| {
        any_supported_type(key).map_err(|_| {
            Failure::refused(
                format!("{file}: a key of a kind that is not supported"),
                "use RSA of 2048 bits or more, ECDSA (P-256, P-384, P-521) or Ed25519",
            )
        })
    };
    if let Some(key) = KeySection::find(&text) {
        return sign_with(&key.der());
    }
    let problem = match PrivateKeyDer::from_pem_slice(&text).map(Zeroizing::new) {
        Ok(key) => return sign_with(&key),
        Err(problem) => problem,
    };
    // PKCS #8 says it in the section's name, OpenSSL's old format in a header of the section.
    if has(&text, "ENCRYPTED PRIVATE KEY-----") || has(&text, "Proc-Type: 4,ENCRYPTED") {
        return Err(Failure::refused(
            format!("{file}: the key is encrypted"),
            "decrypt it: openssl pkey -in KEY -out NEW, and keep NEW from others' eyes",
        ));
    }
    Err(match problem {
        PemError::NoItemsFound if has(&text, "-----BEGIN CERTIFICATE-----") => Failure::refused(
            format!("{file}: a certificate and no private key"),
            "certificate and key seem to be swapped",
        ),
        PemError::NoItemsFound => Failure::refused(
            format!("{file}: no private key in it"),
            "name a PEM file: it has -----BEGIN PRIVATE KEY----- in it",
        ),
        problem => Failure::refused(
            format!("{file}: {}", describe(&problem)),
            "name a whole PEM file",
        ),
    })
}

/// What is wrong with a PEM file, without any of its content.
const fn describe(error: &PemError) -> &'static str {
    match error {
        PemError::MissingSectionEnd { .. } => "a section without an end",
        PemError::IllegalSectionStart { .. } => "a section whose first line is broken",
        PemError::Base64Decode(_) => "a section that is not Base64",
        _ => "not PEM",
    }
}

fn has(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|place| place == part.as_bytes())
}

fn read(file: &NamedPath, files: &PemFiles) -> Result<Zeroizing<Vec<u8>>, Failure> {
    files
        .read_file(&file.path)
        .map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => Failure::refused(
                format!("{file}: more than {PEM_BYTES_MAX} bytes"),
                "name a PEM file",
            ),
            _ => Failure::refused(
                format!("{file}: {error}"),
                "name a PEM file that this user can read",
            ),
        })
}
