//! Files of certificates and keys, made here.

pub(crate) mod certificates;

use std::sync::{Arc, LazyLock};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

/// The name of every server here, but where a test is about names.
const NAME: &str = "video.example";

/// The issuer of every certificate here.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    Authority {
        issuer,
        certificate,
    }
});

/// Made once: an RSA key takes a while.
static RSA_KEY: LazyLock<KeyPair> =
    LazyLock::new(|| KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap());
static ECDSA_KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());

/// A certificate for `names` with that key, as PEM.
fn certificate_pem(names: &[&str], key: &KeyPair) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
    let params = CertificateParams::new(names).unwrap();
    params.signed_by(key, &AUTHORITY.issuer).unwrap().pem()
}

/// A certificate with [`ECDSA_KEY`] whose last second is the first of that day, as PEM.
fn certificate_until(year: i32, month: u8, day: u8) -> String {
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2_020, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, month, day);
    let certificate = params.signed_by(&*ECDSA_KEY, &AUTHORITY.issuer);
    certificate.unwrap().pem()
}

/// A client of TLS 1.3 that trusts [`AUTHORITY`].
fn client() -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(AUTHORITY.certificate.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}
