//! One client's handshake: whole records in, flights out, keys at the end.
//!
//! rustls must be called until it answers that it needs more of the client's bytes
//! ([`ConnectionState`]); this calls it and collects the records to be sent. Only rustls refuses
//! records, except for one bound of ours: [`HANDSHAKE_BYTES_MAX`].

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
pub(super) struct Handshaking {
    connection: UnbufferedServerConnection,
    /// What rustls has not finished with: the beginning of a message that goes on in the next
    /// record. rustls remembers places in it, and moves fragments together.
    pending: Vec<u8>,
    /// Sum of the client's records.
    received_bytes: usize,
}

/// The result of handling one record of the client's.
pub(super) enum HandshakeStep {
    /// It goes on; whole records for the client.
    More(Box<Handshaking>, Vec<u8>),
    /// It is complete.
    Done(Box<Done>),
    /// The client broke a rule, or there is no common version or cipher suite; whole records for
    /// the client.
    Refused(Vec<u8>),
    /// rustls is in a state that cannot occur here.
    Failed,
}

/// A completed handshake.
pub(super) struct Done {
    /// Whole records for the client.
    pub(super) flight: Vec<u8>,
    /// Keys of both halves, each with the number of the next record.
    pub(super) secrets: ExtractedSecrets,
    /// Derives later keys.
    pub(super) kernel: KernelConnection<ServerConnectionData>,
    /// Whether the session was resumed.
    pub(super) is_resumed: bool,
}

/// What to do next, after a call of rustls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextAction {
    /// Call rustls again.
    Call,
    /// Wait for more bytes of the client.
    WaitForBytes,
    /// The handshake is complete.
    Finish,
    /// A state that cannot occur: rustls is given no record after the client's Finished.
    Fail,
}

impl Handshaking {
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
    pub(super) fn handle_record(mut self: Box<Self>, record: Vec<u8>) -> HandshakeStep {
        self.received_bytes = self.received_bytes.saturating_add(record.len());
        if self.received_bytes > HANDSHAKE_BYTES_MAX {
            debug!("a handshake is refused: more than {HANDSHAKE_BYTES_MAX} bytes");
            return HandshakeStep::Refused(self.alert(AlertDescription::IllegalParameter));
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
    fn drive(mut self: Box<Self>) -> HandshakeStep {
        let mut flight = Vec::new();
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process_tls_records(&mut self.pending);
            let next = match state {
                Ok(state) => apply_state(state, &mut flight),
                Err(error) => {
                    debug!("a handshake is refused: {error}");
                    return self.refuse(flight, &error);
                }
            };
            self.pending.drain(..discard);
            match next {
                NextAction::Call => {}
                NextAction::WaitForBytes => return HandshakeStep::More(self, flight),
                NextAction::Finish => return self.finish(flight),
                NextAction::Fail => return HandshakeStep::Failed,
            }
        }
    }

    /// After an error rustls still returns what it has queued: the flight it was working on, and
    /// the alert. It is called only as long as something is queued, because only then does it not
    /// parse the client's bytes again.
    ///
    /// For a few errors rustls queues no alert; then we send one.
    fn refuse(mut self: Box<Self>, mut flight: Vec<u8>, error: &Error) -> HandshakeStep {
        while self.connection.wants_write() {
            let UnbufferedStatus { state, .. } =
                self.connection.process_tls_records(&mut self.pending);
            if !state.is_ok_and(|state| apply_state(state, &mut flight) == NextAction::Call) {
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
        HandshakeStep::Refused(flight)
    }

    fn finish(self: Box<Self>, flight: Vec<u8>) -> HandshakeStep {
        if !self.pending.is_empty() {
            return HandshakeStep::Failed;
        }
        let is_resumed = self.is_resumed();
        match self.connection.dangerous_into_kernel_connection() {
            Ok((secrets, kernel)) => HandshakeStep::Done(Box::new(Done {
                flight,
                secrets,
                kernel,
                is_resumed,
            })),
            Err(error) => {
                debug!("no keys after a handshake: {error}");
                HandshakeStep::Failed
            }
        }
    }

    /// An alert of ours. Once there are keys only rustls could seal it, and it has no interface for
    /// that; the connection then ends without an alert.
    fn alert(&self, description: AlertDescription) -> Vec<u8> {
        if self.connection.protocol_version().is_some() {
            return Vec::new();
        }
        let alert = Alert::fatal(description).to_bytes();
        [&PLAIN_ALERT_HEADER[..], &alert].concat()
    }
}

/// Carries out the state that rustls returned, and says what to do next.
fn apply_state(
    state: ConnectionState<'_, '_, ServerConnectionData>,
    flight: &mut Vec<u8>,
) -> NextAction {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            append(&mut data, flight);
            NextAction::Call
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            NextAction::Call
        }
        ConnectionState::BlockedHandshake => NextAction::WaitForBytes,
        ConnectionState::WriteTraffic(_) => NextAction::Finish,
        _ => NextAction::Fail,
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
