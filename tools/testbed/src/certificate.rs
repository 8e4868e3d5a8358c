//! Certificates for servers under test: an authority of our own and what it vouches for.
//!
//! Nothing here is a secret worth keeping: keys are made for one run and die with its directory.
//! It refuses to be trusted by anybody who was not handed [`Authority::pem`].

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize,
};

/// What a server signs its handshakes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA on P-256.
    Ecdsa,
    /// RSA of 2048 bits.
    Rsa,
}

impl KeyKind {
    fn generate(self) -> Result<KeyPair> {
        match self {
            Self::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        }
        .context("making a key")
    }
}

/// Who vouches for the servers of a test.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority, valid at any time.
    pub fn new() -> Result<Self> {
        let mut params = named("Atlas test authority", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyKind::Ecdsa.generate()?)?;
        Ok(Self { issuer })
    }

    /// What clients are to trust.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server of these names and addresses; the first is its subject.
    pub fn issue(&self, kind: KeyKind, names: &[&str]) -> Result<Identity> {
        let key = kind.generate()?;
        let certificate = server_params(names)?.signed_by(&key, &self.issuer)?;
        Ok(Identity::new(&certificate, &key))
    }
}

/// A server's certificate and its key.
#[derive(Debug)]
pub struct Identity {
    certificate_pem: String,
    key_pem: String,
}

/// Where an [`Identity`] is on the disk.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM (PKCS #8).
    pub key: PathBuf,
}

impl Identity {
    /// A certificate nobody vouches for.
    pub fn self_signed(names: &[&str]) -> Result<Self> {
        let key = KeyKind::Ecdsa.generate()?;
        let certificate = server_params(names)?.self_signed(&key)?;
        Ok(Self::new(&certificate, &key))
    }

    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    /// Writes `STEM.pem` and `STEM.key` over what was there.
    pub fn write(&self, directory: &Path, stem: &str) -> Result<IdentityFiles> {
        let files = IdentityFiles {
            certificate: directory.join(format!("{stem}.pem")),
            key: directory.join(format!("{stem}.key")),
        };
        let write = |path: &Path, text: &str, mode| -> Result<()> {
            fs::write(path, text).with_context(|| format!("writing {path:?}"))?;
            Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
        };
        write(&files.certificate, &self.certificate_pem, 0o644)?;
        write(&files.key, &self.key_pem, 0o600)?;
        Ok(files)
    }
}

fn server_params(names: &[&str]) -> Result<CertificateParams> {
    let mut params = named(names.first().context("a server has a name")?, names)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn named(subject: &str, alternatives: &[&str]) -> Result<CertificateParams> {
    let alternatives: Vec<String> = alternatives.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(alternatives).context("naming a certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_kind_gives_a_certificate_and_a_key_of_its_own() {
        let authority = Authority::new().expect("an authority");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut keys = Vec::new();
        for kind in [KeyKind::Ecdsa, KeyKind::Rsa] {
            let files = authority
                .issue(kind, &["a.test", "10.77.0.2", "fd77::2"])
                .and_then(|identity| identity.write(directory.path(), "a"))
                .expect("an identity");
            let certificate = fs::read_to_string(&files.certificate).expect("the certificate");
            assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"));
            keys.push(fs::read_to_string(&files.key).expect("the key"));
            let mode = fs::metadata(&files.key).expect("the key").permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
        }
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn a_server_without_a_name_is_refused() {
        assert!(Identity::self_signed(&[]).is_err());
    }
}
