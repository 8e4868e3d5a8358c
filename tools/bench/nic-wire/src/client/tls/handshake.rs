//! A handshake under way: rustls gets whole records, its flights go out as they are.
//!
//! It refuses what rustls refuses, and records longer than any may be. What follows the last record of
//! the handshake is not rustls's to see: it is handed on. Bounded by one record, and by what rustls
//! keeps; the caller bounds how many are under way.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use testbed::tls_client::Version;

use super::{CONTENT_BYTES_MAX, Fault, HEADER_BYTES, Keys, TlsFault};

/// Longest record (RFC 5246 s6.2.3), its header included.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX + 2048;

/// What all handshakes have in common.
#[derive(Clone, Debug)]
pub struct TlsClient {
    /// One version, one AEAD of AES-GCM; secrets may be taken out.
    pub config: Arc<ClientConfig>,
    /// The certificate's name.
    pub name: ServerName<'static>,
    /// The version of `config`.
    pub version: Version,
}

/// A handshake that is not over.
pub(crate) struct Handshake {
    tls: ClientConnection,
    version: Version,
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
            version: client.version,
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
        let keys = Keys::new(self.version, &secrets);
        let keys = keys.ok_or_else(|| failure("a suite without AES-GCM"))?;
        Ok((keys, self.records, self.incoming))
    }
}
