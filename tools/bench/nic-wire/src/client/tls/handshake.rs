//! A handshake under way: rustls gets whole records, its flights go out as they are.
//!
//! It refuses what rustls refuses, and records longer than any may be. What follows the last record of
//! the handshake is not rustls's to see: it is handed on. Bounded by one record, and by what rustls
//! keeps; the caller bounds how many are under way.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result as Outcome};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{CONTENT_BYTES_MAX, Fault, HEADER_BYTES, Keys, TlsFault};

/// Longest record (RFC 5246 s6.2.3), its header included.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX + 2048;

/// What all handshakes have in common.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    /// The certificate's name.
    name: ServerName<'static>,
}

impl TlsClient {
    /// One that trusts the authorities in a file, PEM. It offers X25519 first and P-256 beside it, so that every
    /// server does the same arithmetic if it can.
    ///
    /// # Errors
    /// A file that holds no certificate.
    pub fn new(authorities: &Path, name: ServerName<'static>) -> Outcome<Self> {
        let reading = || format!("reading {}", authorities.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(authorities).with_context(reading)? {
            roots.add(certificate.with_context(reading)?)?;
        }
        Self::trusting(roots, name)
    }

    /// One that trusts these authorities.
    pub(crate) fn trusting(roots: RootCertStore, name: ServerName<'static>) -> Outcome<Self> {
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        provider.kx_groups = vec![kx_group::X25519, kx_group::SECP256R1];
        let builder = ClientConfig::builder_with_provider(provider.into());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(Self {
            config: config.into(),
            name,
        })
    }
}

/// A handshake that is not over.
pub(crate) struct Handshake {
    tls: ClientConnection,
    /// The record that is coming.
    incoming: Vec<u8>,
    /// Records taken.
    records: u32,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

/// A fault and what rustls says about it.
pub(crate) type Failure = (Fault, String);

#[expect(
    clippy::needless_pass_by_value,
    reason = "it stands where an error is mapped"
)]
fn failure(error: impl ToString) -> Failure {
    (Fault::Tls(TlsFault::Handshake), error.to_string())
}

impl Handshake {
    /// Begins; the first flight is appended to `out`.
    pub(crate) fn new(client: &TlsClient, out: &mut Vec<u8>) -> Result<Self, Failure> {
        let tls = ClientConnection::new(Arc::clone(&client.config), client.name.clone());
        let mut handshake = Self {
            tls: tls.map_err(failure)?,
            incoming: Vec::new(),
            records: 0,
        };
        handshake.encode(out)?;
        Ok(handshake)
    }

    fn encode(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        while self.tls.wants_write() {
            self.tls.write_tls(out).map_err(failure)?;
        }
        Ok(())
    }

    /// Takes bytes of the stream; whether the handshake is over.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
        self.incoming.extend_from_slice(bytes);
        let mut at = 0;
        while self.tls.is_handshaking()
            && let Some([_, _, _, high, low]) = self.incoming.get(at..at + HEADER_BYTES)
        {
            let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
            if bytes > RECORD_BYTES_MAX {
                return Err(failure(format!("a record of {bytes} bytes")));
            }
            let Some(mut record) = self.incoming.get(at..at + bytes) else {
                break;
            };
            while !record.is_empty() {
                self.tls.read_tls(&mut record).map_err(failure)?;
            }
            let result = self.tls.process_new_packets();
            // An alert that says why goes out first.
            self.encode(out)?;
            result.map_err(failure)?;
            self.records += 1;
            at += bytes;
        }
        self.incoming.drain(..at);
        Ok(!self.tls.is_handshaking())
    }

    /// The keys of a handshake that is over, how many records it took, and what follows them.
    pub(crate) fn finish(self) -> Result<(Keys, u32, Vec<u8>), Failure> {
        let secrets = self.tls.dangerous_extract_secrets().map_err(failure)?;
        let keys = Keys::new(&secrets);
        let keys = keys.ok_or_else(|| failure("another suite"))?;
        Ok((keys, self.records, self.incoming))
    }
}
