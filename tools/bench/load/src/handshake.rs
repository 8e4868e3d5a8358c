//! A handshake under way: rustls speaks, the engine carries.
//!
//! Records are taken off the socket one by one: what follows the handshake is not rustls's to
//! see. Bounded by: the records of a handshake, each at most [`RECORD_BYTES_MAX`] long.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ClientConfig, ExtractedSecrets};

use crate::fault::{Fault, FaultKind};
use crate::{CONTENT_BYTES_MAX, HEADER_BYTES};

/// Longest record (RFC 5246 s6.2.3: content and 2,048 bytes), its header with it.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX + 2048;

/// Most bytes of flights that wait to be understood: long chains of certificates fit.
const INCOMING_BYTES_MAX: usize = 1 << 18;

/// A handshake that is not over.
pub(crate) struct Handshake {
    tls: UnbufferedClientConnection,
    /// Whole records rustls has not let go of, and behind them the one that is coming.
    incoming: Vec<u8>,
    /// Bytes of it that make whole records.
    whole_bytes: usize,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake")
            .field("incoming", &self.incoming.len())
            .finish_non_exhaustive()
    }
}

/// What a finished handshake leaves.
pub(crate) struct Established {
    pub(crate) secrets: ExtractedSecrets,
    /// Knows how keys change and what tickets are worth.
    pub(crate) keys: KernelConnection<ClientConnectionData>,
}

impl Handshake {
    /// Begins; what is to be sent is appended to `out`.
    ///
    /// # Errors
    /// What rustls refuses.
    pub(crate) fn new(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Self, Fault> {
        let mut handshake = Self {
            tls: UnbufferedClientConnection::new(Arc::clone(config), name).map_err(fault)?,
            incoming: Vec::new(),
            whole_bytes: 0,
        };
        handshake.advance(out)?;
        Ok(handshake)
    }

    /// How many bytes are missing to the record that is coming, or to its header.
    pub(crate) fn want_bytes(&self) -> usize {
        let coming = self.incoming.len() - self.whole_bytes;
        self.record_bytes().unwrap_or(HEADER_BYTES) - coming
    }

    /// Hands in at most as many bytes as were wanted; whether the handshake is over then.
    ///
    /// # Errors
    /// What rustls refuses, and records too long.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Fault> {
        debug_assert!(bytes.len() <= self.want_bytes(), "more than was wanted");
        self.incoming.extend_from_slice(bytes);
        if self.want_bytes() > 0 {
            return Ok(false);
        }
        let record_bytes = self.record_bytes().unwrap_or(HEADER_BYTES);
        self.whole_bytes += record_bytes;
        let is_bounded = record_bytes <= RECORD_BYTES_MAX;
        if !is_bounded || self.whole_bytes > INCOMING_BYTES_MAX {
            return Err(Fault::new(FaultKind::Handshake, "too long a flight"));
        }
        self.advance(out)
    }

    /// Takes the keys.
    ///
    /// # Errors
    /// A handshake that is not over.
    pub(crate) fn finish(self) -> Result<Established, Fault> {
        let (secrets, keys) = self.tls.dangerous_into_kernel_connection().map_err(fault)?;
        Ok(Established { secrets, keys })
    }

    /// Length of the record that is coming, once its header has.
    fn record_bytes(&self) -> Option<usize> {
        match self.incoming.get(self.whole_bytes..)? {
            [_, _, _, high, low, ..] => {
                Some(HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low])))
            }
            _ => None,
        }
    }

    /// Lets rustls do all it can; whether the handshake is over.
    fn advance(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        loop {
            let whole = self
                .incoming
                .get_mut(..self.whole_bytes)
                .unwrap_or_default();
            let UnbufferedStatus { discard, state, .. } = self.tls.process_tls_records(whole);
            let is_over = match state.map_err(fault)? {
                ConnectionState::EncodeTlsData(data) => {
                    encode(data, out)?;
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    None
                }
                ConnectionState::BlockedHandshake => Some(false),
                ConnectionState::WriteTraffic(_) => Some(true),
                other => {
                    let text = format!("{other:?} amid a handshake");
                    return Err(Fault::new(FaultKind::Handshake, text));
                }
            };
            self.incoming.drain(..discard);
            self.whole_bytes -= discard;
            if let Some(is_over) = is_over {
                return Ok(is_over);
            }
        }
    }
}

/// Appends what rustls has to send.
fn encode(
    mut data: EncodeTlsData<'_, ClientConnectionData>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let start = out.len();
    // Asked with no room, it tells how much it needs.
    let needed = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) => 0,
        Err(error) => return Err(Fault::new(FaultKind::Handshake, error.to_string())),
    };
    out.resize(start + needed, 0);
    match data.encode(out.get_mut(start..).unwrap_or_default()) {
        Ok(written) => {
            out.truncate(start + written);
            Ok(())
        }
        Err(error) => Err(Fault::new(FaultKind::Handshake, error.to_string())),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it stands where an error is mapped"
)]
fn fault(error: rustls::Error) -> Fault {
    Fault::new(FaultKind::Handshake, error.to_string())
}
