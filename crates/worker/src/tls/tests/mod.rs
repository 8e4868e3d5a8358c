//! rustls's own client against the [`Handshaker`], with the record room behind it, as the session
//! has them. No socket: records are handed over.

mod handshakes;
mod refusals;
mod streams;

use std::sync::{Arc, LazyLock};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use record::{AeadLibrary, Inbound, Sealer, TrafficKey};
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use session::{TlsAnswer, TlsPlan, TlsToken};

use super::{Certificates, Handshaker, Loaded, server_config};

/// The name of every server here, but where a test is about names.
pub(crate) const NAME: &str = "video.example";

/// The first client of a handshaker.
const TOKEN: TlsToken = TlsToken {
    index: 0,
    serial: 7,
};

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

/// A pair without a name for warnings.
fn certified(names: &[&str], key: &KeyPair) -> (CertifiedKey, String) {
    let pem = certificate_pem(names, key);
    let chain = rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let pair = CertifiedKey::from_der(vec![chain], key, &aws_lc_rs::default_provider());
    (pair.unwrap(), String::new())
}

/// With tickets, and one certificate for [`NAME`].
fn config_with(key: &KeyPair) -> Arc<ServerConfig> {
    let certificates = Certificates::new(vec![certified(&[NAME], key)]);
    let mut config = server_config(Arc::new(certificates)).unwrap();
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    Arc::new(config)
}

/// The same with a certificate of its own.
pub(crate) fn config() -> Arc<ServerConfig> {
    config_with(&ECDSA_KEY)
}

/// The same with a key of RSA.
pub(crate) fn dear_config() -> Arc<ServerConfig> {
    config_with(&RSA_KEY)
}

/// The same as it comes from files, without tickets.
pub(crate) fn loaded() -> Loaded {
    let pair = certified(&[NAME], &ECDSA_KEY);
    let certificates = Arc::new(Certificates::new(vec![pair]));
    let resolver = Arc::<Certificates>::clone(&certificates);
    Loaded {
        config: Arc::new(server_config(resolver).unwrap()),
        certificates,
    }
}

fn handshaker() -> Handshaker {
    Handshaker::new(config_with(&ECDSA_KEY), 2)
}

fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(AUTHORITY.certificate.der().clone()).unwrap();
    roots
}

/// A client that speaks nothing but that.
fn client_config(
    version: &'static SupportedProtocolVersion,
    suites: &[SupportedCipherSuite],
) -> ClientConfig {
    let provider = CryptoProvider {
        cipher_suites: suites.to_vec(),
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots())
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(8);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// A client of that version with every suite.
pub(crate) fn client_of(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let suites = aws_lc_rs::default_provider().cipher_suites;
    Arc::new(client_config(version, &suites))
}

pub(crate) fn connect(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

/// Everything the client has to send now, as records.
fn records_of(client: &mut ClientConnection) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    split(&bytes)
}

/// The records that `bytes` consist of.
fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let length = 5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        let (record, rest) = bytes.split_at(length);
        records.push(record.to_vec());
        bytes = rest;
    }
    records
}

/// Hands the client what was sent to it.
fn give(client: &mut ClientConnection, mut bytes: &[u8]) -> Result<(), rustls::Error> {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

fn handshake(handshaker: &mut Handshaker, token: TlsToken, record: Vec<u8>) -> TlsAnswer {
    let plan = TlsPlan::Handshake { token, record };
    let (answered, answer) = handshaker.handle(plan).expect("it has an answer");
    assert_eq!(answered, token);
    answer
}

fn sealers(key: &TrafficKey) -> [Sealer; 2] {
    AeadLibrary::ALL.map(|library| Sealer::with_library(library, key))
}

/// What the session has after a handshake.
struct Streaming {
    /// One of each library.
    sealers: [Sealer; 2],
    number: u64,
    inbound: Inbound,
    is_resumed: bool,
    content_bytes_max: u16,
    /// The client's records behind its Finished.
    rest: Vec<Vec<u8>>,
}

/// A whole handshake; if the server sends an alert, the client returns it as its error.
fn establish(
    handshaker: &mut Handshaker,
    client: &mut ClientConnection,
    token: TlsToken,
) -> Result<Streaming, rustls::Error> {
    establish_changing(handshaker, client, token, |_| ())
}

/// The same with the client's records changed on the way.
fn establish_changing(
    handshaker: &mut Handshaker,
    client: &mut ClientConnection,
    token: TlsToken,
    change: fn(&mut [u8]),
) -> Result<Streaming, rustls::Error> {
    for _ in 0..10 {
        let mut records = records_of(client).into_iter();
        while let Some(mut record) = records.next() {
            change(&mut record);
            match handshake(handshaker, token, record) {
                TlsAnswer::Continue { flight } => give(client, &flight)?,
                TlsAnswer::Refused { flight } => {
                    give(client, &flight)?;
                    panic!("refused with {flight:?}");
                }
                TlsAnswer::Established {
                    flight,
                    send: (send, number),
                    receive: (receive, receive_number),
                    is_resumed,
                    content_bytes_max,
                } => {
                    give(client, &flight)?;
                    return Ok(Streaming {
                        sealers: sealers(&send),
                        number,
                        inbound: Inbound::new(&receive, receive_number),
                        is_resumed,
                        content_bytes_max,
                        rest: records.collect(),
                    });
                }
                answer => panic!("{answer:?}"),
            }
        }
    }
    panic!("ten flights and no end");
}
