//! Certificates and their keys: reading the files, and choosing one for a client.
//!
//! A pair that cannot be served with is refused when it is read, in one line with the remedy; no
//! client ever meets it. Nothing is said of a key but where it is and what kind it is not.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, SignatureScheme};
use zeroize::Zeroizing;

use super::files::{PEM_BYTES_MAX, PemFiles};
use crate::failure::Failure;
use crate::settings::Origin;

/// Most certificates; each may be for many names. The one for a client is looked for from the
/// first to the last: 21 us for this many, where a handshake costs 80 us or more (both measured
/// with opt-level 1).
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
    /// PEM file of the certificate, the server's own first, then those that vouch for it.
    pub certificate: NamedPath,
    /// PEM file of its private key.
    pub key: NamedPath,
}

/// The certificates the server has, the first one for clients that name none of them.
#[derive(Debug)]
pub struct Certificates {
    pairs: Vec<Arc<CertifiedKey>>,
}

impl Certificates {
    /// Those pairs, in this order.
    #[must_use]
    pub fn new(pairs: Vec<CertifiedKey>) -> Self {
        let pairs = pairs.into_iter().map(Arc::new).collect();
        Self { pairs }
    }

    /// Reads every pair.
    ///
    /// # Errors
    /// The first file that is not what it must be, or does not belong to the other.
    pub fn load(paths: &[PairPaths], files: &PemFiles) -> Result<Self, Failure> {
        let provider = aws_lc_rs::default_provider();
        let load = |paths| load_pair(paths, files, &provider);
        let pairs: Vec<_> = paths.iter().map(load).collect::<Result<_, _>>()?;
        Ok(Self::new(pairs))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pairs.len()
    }

    /// The first pair made for `name` whose key can sign as the client understands it, else the
    /// first of any name that can, else the first: then nothing suits both, which rustls finds
    /// out and tells the client better than "no certificate" would.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<&Arc<CertifiedKey>> {
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let fits = |pair: &&Arc<CertifiedKey>| pair.key.choose_scheme(schemes).is_some();
        let named = name.and_then(|name| {
            let mut fitting = self.pairs.iter().filter(fits);
            fitting.find(|pair| is_for(pair, &name))
        });
        named
            .or_else(|| self.pairs.iter().find(fits))
            .or_else(|| self.pairs.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes())
            .cloned()
    }
}

fn is_for(pair: &CertifiedKey, name: &ServerName<'_>) -> bool {
    pair.end_entity_cert()
        .and_then(ParsedCertificate::try_from)
        .is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

fn load_pair(
    paths: &PairPaths,
    files: &PemFiles,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Failure> {
    let chain = load_chain(&paths.certificate, files)?;
    let key = load_key(&paths.key, files)?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| {
        Failure::refused(
            format!("{}: a key of a kind that is not supported", paths.key),
            "use RSA of 2048 bits or more, ECDSA (P-256, P-384, P-521) or Ed25519",
        )
    })?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // A key that does not tell its public half is believed.
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

fn load_key(file: &NamedPath, files: &PemFiles) -> Result<PrivateKeyDer<'static>, Failure> {
    let text = read(file, files)?;
    let problem = match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => return Ok(key),
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

/// What is wrong with a PEM file, without a word of what is in it.
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
