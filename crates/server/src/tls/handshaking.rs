//! One client's handshake: whole records in, flights out, keys at the end.
//!
//! rustls wants to be called until it has nothing left to say but that it needs more of the
//! client's bytes ([`ConnectionState`]); this calls it and collects what it wants sent. Records
//! are refused by rustls alone, but for one bound of ours: [`HANDSHAKE_BYTES_MAX`].

use std::sync::Arc;

use record::{Alert, AlertDescription};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, ExtractedSecrets, HandshakeKind, ProtocolVersion, ServerConfig};
use tracing::debug;

/// Most bytes a client may send before its handshake is complete: a ClientHello, another after a
/// HelloRetryRequest, its Finished (some 2 KB each, in browsers), and one record's worth of early
/// data to be thrown away (RFC 8446 s4.2.10), which is what rustls drops. rustls alone would take
/// 64 KiB a message, and keep them.
pub const HANDSHAKE_BYTES_MAX: usize = 2 * record::RECORD_BYTES_MAX;

/// An alert record without protection, but for the alert (RFC 8446 s5.1): type 21, version 3.3 as
/// every record after the first has it, length 2.
const PLAIN_ALERT_HEADER: [u8; 5] = [21, 3, 3, 0, 2];

/// Content type `handshake(22)`.
const TYPE_HANDSHAKE: u8 = 22;

/// A handshake under way.
pub(super) struct Shaking {
    connection: UnbufferedServerConnection,
    /// What rustls has not finished with: the beginning of a message that goes on in the next
    /// record. rustls remembers places in it, and moves fragments together.
    pending: Vec<u8>,
    /// Sum of the client's records.
    received_bytes: usize,
}

/// What a record of the client's came to.
pub(super) enum Shaken {
    /// It goes on; whole records for the client.
    More(Box<Shaking>, Vec<u8>),
    /// It is complete.
    Done(Box<Done>),
    /// The client broke a rule, or nothing suits both; whole records for the client.
    Refused(Vec<u8>),
    /// rustls is where it cannot be.
    Failed,
}

/// A completed handshake.
pub(super) struct Done {
    /// Whole records for the client.
    pub(super) flight: Vec<u8>,
    /// Keys of both halves, each with the number of the next record.
    pub(super) secrets: ExtractedSecrets,
    /// What later keys come from.
    pub(super) kernel: KernelConnection<ServerConnectionData>,
    /// Whether it was a session of before.
    pub(super) is_resumed: bool,
}

/// What rustls wants after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Call,
    Bytes,
    Nothing,
    /// Something it has no reason for: it was given no record after the client's Finished.
    Other,
}

impl Shaking {
    /// `None` if rustls refuses the configuration.
    pub(super) fn new(config: &Arc<ServerConfig>) -> Option<Box<Self>> {
        let connection = UnbufferedServerConnection::new(Arc::clone(config)).ok()?;
        Some(Box::new(Self {
            connection,
            pending: Vec::new(),
            received_bytes: 0,
        }))
    }

    /// Takes one whole record.
    pub(super) fn handle_record(mut self: Box<Self>, record: Vec<u8>) -> Shaken {
        self.received_bytes = self.received_bytes.saturating_add(record.len());
        if self.received_bytes > HANDSHAKE_BYTES_MAX {
            debug!("a handshake is refused: more than {HANDSHAKE_BYTES_MAX} bytes");
            return Shaken::Refused(self.alert(AlertDescription::IllegalParameter));
        }
        if self.pending.is_empty() {
            self.pending = record;
        } else {
            self.pending.extend_from_slice(&record);
        }
        self.drive()
    }

    /// Whether it resumes a session of before; `false` as long as that is not known.
    pub(super) fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether this record, in the clear behind our flight of TLS 1.2, is the client's key share
    /// (RFC 5246 s7.4.7).
    pub(super) fn expects_key_exchange(&self, record: &[u8]) -> bool {
        self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_2)
            && record.first() == Some(&TYPE_HANDSHAKE)
    }

    /// Calls rustls until it wants no more calls.
    fn drive(mut self: Box<Self>) -> Shaken {
        let mut flight = Vec::new();
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process_tls_records(&mut self.pending);
            let wish = match state {
                Ok(state) => heed(state, &mut flight),
                Err(error) => {
                    debug!("a handshake is refused: {error}");
                    return self.refuse(flight, &error);
                }
            };
            self.pending.drain(..discard);
            match wish {
                Wish::Call => {}
                Wish::Bytes => return Shaken::More(self, flight),
                Wish::Nothing => return self.finish(flight),
                Wish::Other => return Shaken::Failed,
            }
        }
    }

    /// After an error rustls still gives what it has queued: the flight it was working on, and the
    /// alert. It is called just as long as there is something, because then it does not look at
    /// the client's bytes, and to look at them again is what it must not do.
    ///
    /// For a few errors it queues no alert; then the client is told by one of ours.
    fn refuse(mut self: Box<Self>, mut flight: Vec<u8>, error: &Error) -> Shaken {
        while self.connection.wants_write() {
            let UnbufferedStatus { state, .. } =
                self.connection.process_tls_records(&mut self.pending);
            if !state.is_ok_and(|state| heed(state, &mut flight) == Wish::Call) {
                break;
            }
        }
        if flight.is_empty() {
            flight = match error {
                Error::InvalidMessage(_) => self.alert(AlertDescription::DecodeError),
                Error::PeerMisbehaved(_) => self.alert(AlertDescription::UnexpectedMessage),
                _ => flight,
            };
        }
        Shaken::Refused(flight)
    }

    fn finish(self: Box<Self>, flight: Vec<u8>) -> Shaken {
        if !self.pending.is_empty() {
            return Shaken::Failed;
        }
        let is_resumed = self.is_resumed();
        match self.connection.dangerous_into_kernel_connection() {
            Ok((secrets, kernel)) => Shaken::Done(Box::new(Done {
                flight,
                secrets,
                kernel,
                is_resumed,
            })),
            Err(error) => {
                debug!("no keys after a handshake: {error}");
                Shaken::Failed
            }
        }
    }

    /// An alert of ours. Once there are keys only rustls could seal it, and it cannot be asked to;
    /// then the connection ends without.
    fn alert(&self, description: AlertDescription) -> Vec<u8> {
        if self.connection.protocol_version().is_some() {
            return Vec::new();
        }
        let alert = Alert::fatal(description).to_bytes();
        [&PLAIN_ALERT_HEADER[..], &alert].concat()
    }
}

/// Does what rustls asks for, as far as it can be done here.
fn heed(state: ConnectionState<'_, '_, ServerConnectionData>, flight: &mut Vec<u8>) -> Wish {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            append(&mut data, flight);
            Wish::Call
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Wish::Call
        }
        ConnectionState::BlockedHandshake => Wish::Bytes,
        ConnectionState::WriteTraffic(_) => Wish::Nothing,
        _ => Wish::Other,
    }
}

/// Appends one record. rustls says how long it is by refusing to write it into nothing.
fn append(data: &mut EncodeTlsData<'_, ServerConnectionData>, flight: &mut Vec<u8>) {
    let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) else {
        return;
    };
    let before = flight.len();
    flight.resize(before + size.required_size, 0);
    let written = data.encode(&mut flight[before..]);
    debug_assert!(
        matches!(written, Ok(bytes) if bytes == size.required_size),
        "a record is as long as rustls said: {written:?}"
    );
}
