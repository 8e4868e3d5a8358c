//! Reading the files of certificates and keys.
//!
//! It refuses an unusable pair when it reads it, in one line with the remedy. Messages about a key
//! have its file and the expected kind only, never its content.
//!
//! Files are read as nginx would, and a chain is never shortened: a part of the file that cannot be
//! read is refused.
//!
//! The bytes of a key file are wiped as soon as they are parsed. AWS-LC holds the parsed key and
//! wipes memory that it frees. Bound: [`FILE_BYTES_MAX`] a file.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error, InconsistentKeys};
use worker::tls::{Certificates, FOLDER_CERTIFICATES_MAX};
use zeroize::Zeroizing;

use super::pem::{KeySection, PemProblem, Sections};
use crate::failure::Failure;
use crate::reload::files::{FILE_BYTES_MAX, OperatorFiles};
use crate::reload::folder::split;
use crate::settings::Origin;

/// A certificate (RFC 7468 s5.1), and what X.509's own tools once wrote.
const CERTIFICATE_LABELS: [&[u8]; 3] = [b"CERTIFICATE", b"X509 CERTIFICATE", TRUSTED_LABEL];
/// OpenSSL's `x509 -trustout`: a certificate and what it may be trusted for.
const TRUSTED_LABEL: &[u8] = b"TRUSTED CERTIFICATE";
/// The end of every label of a private key.
const KEY_LABEL: &[u8] = b"PRIVATE KEY";
/// DER of id-RSASSA-PSS (RFC 8017 appendix C), 1.2.840.113549.1.1.10.
const PSS_ALGORITHM: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0a];

/// A file, and how the operator named it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamedPath {
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
pub(crate) struct PairPaths {
    /// PEM file of the certificate chain: the server's own first, then its issuers.
    pub certificate: NamedPath,
    /// PEM file of its private key.
    pub key: NamedPath,
}

/// Reads every pair, and those of the folder.
///
/// # Errors
/// Of each pair the first file that is not what it must be, or does not belong to the other.
pub(super) fn load(
    paths: &[PairPaths],
    folder: Option<&NamedPath>,
    files: &OperatorFiles,
) -> Result<Certificates, Failure> {
    let load = |paths: &PairPaths| {
        let (chain, key) = (read(&paths.certificate, files)?, read(&paths.key, files)?);
        load_pair(paths, &chain, &key).map(|pair| (pair, paths.certificate.to_string()))
    };
    let (loaded, failures): (Vec<_>, Vec<_>) = paths.iter().map(load).partition(Result::is_ok);
    let mut failures: Vec<Failure> = failures.into_iter().filter_map(Result::err).collect();
    let mut pairs: Vec<_> = loaded.into_iter().flatten().collect();
    if let Some(folder) = folder {
        match load_folder(folder, files) {
            Ok(found) => pairs.extend(found),
            Err(failure) => failures.push(failure),
        }
    }
    Failure::all(failures)?;
    if pairs.is_empty() {
        let folder = folder.map(NamedPath::to_string).unwrap_or_default();
        return Err(Failure::refused(
            format!("{folder}: no certificate in it"),
            "put NAME.crt and NAME.key into it, or NAME/fullchain.pem and NAME/privkey.pem",
        ));
    }
    Ok(Certificates::new(pairs))
}

/// The pairs of a folder, each with its name.
fn load_folder(
    folder: &NamedPath,
    files: &OperatorFiles,
) -> Result<Vec<(CertifiedKey, String)>, Failure> {
    let bundle = files.read_folder(&folder.path).map_err(|error| {
        Failure::refused(
            format!("{folder}: {error}"),
            format!("name a folder whose certificates and keys have at most {FILE_BYTES_MAX} bytes together"),
        )
    })?;
    let texts = split(&bundle).ok_or_else(|| {
        Failure::refused(format!("{folder}: a name that is no UTF-8"), "rename it")
    })?;
    if texts.len() > FOLDER_CERTIFICATES_MAX {
        return Err(Failure::refused(
            format!("{folder}: {} certificates", texts.len()),
            format!("give at most {FOLDER_CERTIFICATES_MAX}"),
        ));
    }
    let named = |path| NamedPath {
        origin: folder.origin.clone(),
        path,
    };
    let pairs = texts.into_iter().map(|texts| {
        let (certificate, chain) = texts.certificate;
        let (key, key_text) = texts.key;
        let paths = PairPaths {
            certificate: named(certificate),
            key: named(key),
        };
        let name = paths.certificate.to_string();
        load_pair(&paths, chain, key_text).map(|pair| (pair, name))
    });
    pairs.collect()
}

fn load_pair(paths: &PairPaths, chain: &[u8], key: &[u8]) -> Result<CertifiedKey, Failure> {
    let chain = load_chain(&paths.certificate, chain)?;
    let key = load_key(&paths.key, key)?;
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

fn load_chain(file: &NamedPath, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let (mut chain, mut has_key, mut has_pkcs7) = (Vec::new(), false, false);
    for section in Sections::of(text) {
        let section = section.map_err(|problem| not_whole(file, problem))?;
        let is_trusted = section.label == TRUSTED_LABEL;
        has_key |= section.label.ends_with(KEY_LABEL);
        has_pkcs7 |= section.label.starts_with(b"PKCS");
        if is_trusted || CERTIFICATE_LABELS.contains(&section.label) {
            let der = section
                .decode()
                .map_err(|problem| not_whole(file, problem))?;
            let bytes = if is_trusted {
                first_element(&der)
            } else {
                &der
            };
            chain.push(CertificateDer::from(bytes.to_vec()));
        }
    }
    if !chain.is_empty() {
        return Ok(chain);
    }
    Err(if has_key {
        Failure::refused(
            format!("{file}: a private key and no certificate"),
            "certificate and key seem to be swapped",
        )
    } else if has_pkcs7 {
        Failure::refused(
            format!("{file}: a PKCS #7 container and no certificate as it is"),
            "take the certificates out: openssl pkcs7 -print_certs -in FILE -out NEW",
        )
    } else {
        not_pem(file, text, "certificate", "-----BEGIN CERTIFICATE-----")
    })
}

/// What OpenSSL adds behind a trusted certificate, its uses and names, is another element.
fn first_element(der: &[u8]) -> &[u8] {
    let behind = x509_parser::parse_x509_certificate(der).map_or(0, |(behind, _)| behind.len());
    der.get(..der.len() - behind).unwrap_or(der)
}

fn load_key(file: &NamedPath, text: &[u8]) -> Result<Arc<dyn SigningKey>, Failure> {
    let (mut has_certificate, mut encrypted, mut unknown) = (false, false, false);
    for section in Sections::of(text) {
        let section = section.map_err(|problem| not_whole(file, problem))?;
        has_certificate |= CERTIFICATE_LABELS.contains(&section.label);
        if section.is_encrypted() {
            encrypted = true;
        } else if let Some(key) = KeySection::of(&section) {
            let key = key.map_err(|problem| not_whole(file, problem))?;
            return any_supported_type(&key.der()).map_err(|_| {
                let is_pss = has(key.der().secret_der(), PSS_ALGORITHM);
                unsupported_key(file, is_pss)
            });
        } else {
            unknown |= section.label.ends_with(KEY_LABEL);
        }
    }
    Err(if encrypted {
        Failure::refused(
            format!("{file}: the key is encrypted"),
            "decrypt it: openssl pkey -in KEY -out NEW, and keep NEW from others' eyes",
        )
    } else if unknown {
        unsupported_key(file, false)
    } else if has_certificate {
        Failure::refused(
            format!("{file}: a certificate and no private key"),
            "certificate and key seem to be swapped",
        )
    } else {
        not_pem(file, text, "private key", "-----BEGIN PRIVATE KEY-----")
    })
}

fn unsupported_key(file: &NamedPath, is_pss: bool) -> Failure {
    let kind = if is_pss {
        "an RSA key for RSA-PSS alone, which is not supported"
    } else {
        "a key of a kind that is not supported"
    };
    Failure::refused(
        format!("{file}: {kind}"),
        "use RSA (rsaEncryption) of 2048 bits or more, ECDSA (P-256, P-384, P-521) or Ed25519",
    )
}

fn not_whole(file: &NamedPath, problem: PemProblem) -> Failure {
    Failure::refused(
        format!("{file}: {problem}"),
        "name a whole PEM file, in which each part has its BEGIN line and its END line",
    )
}

/// There is no section in it that could be meant.
fn not_pem(file: &NamedPath, text: &[u8], wanted: &str, boundary: &str) -> Failure {
    match text {
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => Failure::refused(
            format!("{file}: text in UTF-16"),
            "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW",
        ),
        // A SEQUENCE of more than 127 bytes, as certificates and most keys are.
        [0x30, 0x81..=0x84, ..] => Failure::refused(
            format!("{file}: DER, which is not PEM"),
            "convert it: openssl x509 -inform DER (or pkey, or pkcs12) -in FILE -out NEW",
        ),
        _ => Failure::refused(
            format!("{file}: no {wanted} in it"),
            format!("name a PEM file: it has {boundary} in it"),
        ),
    }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|place| place == part)
}

fn read(file: &NamedPath, files: &OperatorFiles) -> Result<Zeroizing<Vec<u8>>, Failure> {
    files
        .read_file(&file.path)
        .map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => Failure::refused(
                format!("{file}: more than {FILE_BYTES_MAX} bytes"),
                "name a PEM file",
            ),
            _ => Failure::refused(
                format!("{file}: {error}"),
                "name a PEM file that this user can read",
            ),
        })
}
