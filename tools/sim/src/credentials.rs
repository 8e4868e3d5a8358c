//! The certificate and the time that both ends of a TLS connection use.
//!
//! Key material is the only part of a run that its seed does not determine: the shared secrets of
//! a handshake come from random numbers of the cryptographic library. They must not influence
//! lengths or times in a run, so signatures and certificate have a fixed size (Ed25519; signatures
//! of ECDSA vary by a few bytes), and the time is fixed. Clients draw everything else that is
//! random in a handshake, such as the order of a ClientHello's extensions, from [`SeededRandom`]:
//! which extension a flipped bit hits is part of the seed.
//!
//! It refuses to trust anything but that one certificate.

use std::sync::{Arc, OnceLock};

use core::time::Duration;

use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::ProducesTickets;
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite};
use worker::tls::Certificates;

use crate::rng::Rng;

/// Unix time at which every run begins.
pub(crate) const UNIX_SECONDS: u64 = 1_800_000_000;
/// The name of the server.
pub(crate) const SERVER_NAME: &str = "sim";

/// The certificate of this process and its key.
fn identity() -> &'static CertifiedKey {
    static IDENTITY: OnceLock<CertifiedKey> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("invariant: a key");
        let mut params = rcgen::CertificateParams::new(vec![SERVER_NAME.to_owned()])
            .expect("invariant: a valid name");
        // A serial number made from the key may need a byte less.
        params.serial_number = Some(1.into());
        let certificate = params
            .self_signed(&key)
            .expect("invariant: valid parameters");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = aws_lc_rs::default_provider();
        CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider)
            .expect("invariant: a key that fits its certificate")
    })
}

/// The server's configuration, as the product makes it, with the certificate of this process
/// `chain` times, so that the size of its handshake varies.
pub(crate) fn server_config(chain: usize) -> Arc<ServerConfig> {
    /// One set of ticket keys for the process.
    static TICKETER: OnceLock<Arc<dyn ProducesTickets>> = OnceLock::new();
    let identity = identity();
    let pair = CertifiedKey {
        cert: vec![identity.cert[0].clone(); chain],
        ..identity.clone()
    };
    let certificates = Certificates::new(vec![(pair, String::new())]);
    let mut config = worker::tls::server_config(Arc::new(certificates))
        .expect("invariant: the product's own configuration");
    let ticketer = TICKETER
        .get_or_init(|| aws_lc_rs::Ticketer::new().expect("invariant: random numbers are at hand"));
    config.ticketer = Arc::clone(ticketer);
    config.time_provider = Arc::new(FixedTime);
    Arc::new(config)
}

/// A provider of one suite. `is_sent_back`: the first key exchange it offers is one that servers do
/// not have, so that they send a HelloRetryRequest (RFC 8446 s4.1.4). `seed`: of its random
/// numbers, of which there are [`ORDERS`].
pub(crate) fn client_provider(
    suite: SupportedCipherSuite,
    is_sent_back: bool,
    seed: u64,
) -> CryptoProvider {
    static RANDOM: [SeededRandom; ORDERS] = {
        let mut all = [SeededRandom(0); ORDERS];
        let mut index = 0;
        while index < ORDERS {
            all[index] = SeededRandom(index as u64);
            index += 1;
        }
        all
    };
    let random = usize::try_from(seed % ORDERS as u64).expect("invariant: an index");
    let mut kx_groups = vec![aws_lc_rs::kx_group::X25519];
    if is_sent_back {
        kx_groups.insert(0, aws_lc_rs::kx_group::MLKEM768);
    }
    CryptoProvider {
        cipher_suites: vec![suite],
        kx_groups,
        secure_random: &RANDOM[random],
        ..aws_lc_rs::default_provider()
    }
}

/// Orders in which the clients of all runs put the extensions of a ClientHello, at most: rustls
/// keeps a reference to its source of random numbers for as long as the process runs.
const ORDERS: usize = 64;

/// The same bytes each time: a connection's random numbers do not depend on which came before it.
#[derive(Clone, Copy, Debug)]
struct SeededRandom(u64);

impl SecureRandom for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        /// Its purpose: see [`Rng::new`].
        const CLIENT_RANDOM: u64 = 0x7265_6c6c_6f68;
        let mut rng = Rng::new(self.0, CLIENT_RANDOM);
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&rng.bits().to_le_bytes()[..piece.len()]);
        }
        Ok(())
    }
}

/// A clock that stands still: tickets do not age.
#[derive(Debug)]
pub(crate) struct FixedTime;

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            UNIX_SECONDS,
        )))
    }
}

/// Trusts the certificate of this process, and no other.
pub(crate) fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let certificate = identity().cert[0].clone();
    roots
        .add(certificate)
        .expect("invariant: a valid certificate");
    roots
}
