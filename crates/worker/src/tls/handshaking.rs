//! One client's handshake: whole records in, flights out, keys at the end.
//!
//! rustls must be called until it answers that it needs more of the client's bytes
//! ([`ConnectionState`]); this calls it and collects the records to be sent. Only rustls refuses
//! records, except for a bound of ours, [`HANDSHAKE_BYTES_MAX`], and forbidden limits of records.
//!
//! rustls must know from the start how long its records may be. So it gets nothing before the
//! ClientHello is whole, and we have read the client's limits from it ([`ClientLimits`]).

use std::sync::Arc;

use record::{Alert, AlertDescription, CONTENT_BYTES_MAX, ClientLimits, HEADER_BYTES, Version};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, ExtractedSecrets, HandshakeKind, ProtocolVersion, ServerConfig};
use tracing::debug;

use super::names::HiddenName;

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
    /// What it was begun with. Kept until it is over: the loader waits for that, see
    /// [`super::Loader`].
    config: Arc<ServerConfig>,
    /// `None`: the ClientHello is not whole yet.
    connection: Option<UnbufferedServerConnection>,
    /// The beginning of a ClientHello that is cut into several records, without their headers.
    hello: Vec<u8>,
    limits: ClientLimits,
    /// The client's name is none of DNS, and rustls does not see it.
    is_name_hidden: bool,
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
    /// How long records the client takes.
    pub(super) limits: ClientLimits,
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
    /// Nothing has come yet.
    pub(super) fn new(config: &Arc<ServerConfig>) -> Box<Self> {
        Box::new(Self {
            config: Arc::clone(config),
            connection: None,
            hello: Vec::new(),
            limits: ClientLimits::default(),
            is_name_hidden: false,
            pending: Vec::new(),
            received_bytes: 0,
        })
    }

    /// Takes one whole record.
    pub(super) fn handle_record(mut self: Box<Self>, record: Vec<u8>) -> HandshakeStep {
        self.received_bytes = self.received_bytes.saturating_add(record.len());
        if self.received_bytes > HANDSHAKE_BYTES_MAX {
            debug!("a handshake is refused: more than {HANDSHAKE_BYTES_MAX} bytes");
            return HandshakeStep::Refused(self.alert(AlertDescription::IllegalParameter));
        }
        let is_begun = self.connection.is_some();
        let limits = if is_begun {
            None
        } else {
            self.read_limits(&record)
        };
        if self.pending.is_empty() {
            self.pending = record;
        } else {
            self.pending.extend_from_slice(&record);
        }
        match limits {
            _ if is_begun => self.drive_on(),
            None => HandshakeStep::More(self, Vec::new()),
            Some(Ok(limits)) => self.begin(limits),
            Some(Err(description)) => {
                debug!("a handshake is refused: a forbidden limit of records");
                HandshakeStep::Refused(self.alert(description))
            }
        }
    }

    /// The client's limits, if its ClientHello is whole with this record, and none of what is no
    /// ClientHello: rustls refuses it. `None`: more records are needed.
    fn read_limits(&mut self, record: &[u8]) -> Option<Result<ClientLimits, AlertDescription>> {
        let content = record.get(HEADER_BYTES..).unwrap_or_default();
        if record.first() != Some(&TYPE_HANDSHAKE) || content.is_empty() {
            return Some(Ok(ClientLimits::default()));
        }
        let message = if self.hello.is_empty() {
            content
        } else {
            self.hello.extend_from_slice(content);
            &self.hello
        };
        let is_whole = match record::hello_bytes(message) {
            None => false,
            // Nobody will see the end of a longer one.
            Some(bytes) => message.len() >= bytes || bytes > HANDSHAKE_BYTES_MAX,
        };
        if is_whole {
            return Some(ClientLimits::of_hello(message));
        }
        if self.hello.is_empty() {
            self.hello = content.to_vec();
        }
        None
    }

    /// The ClientHello is whole: hands it to rustls.
    fn begin(mut self: Box<Self>, limits: ClientLimits) -> HandshakeStep {
        let name = match self.hello.as_slice() {
            [] => self.pending.get(HEADER_BYTES..).and_then(HiddenName::of),
            hello => HiddenName::of(hello),
        };
        self.hello = Vec::new();
        self.limits = limits;
        self.is_name_hidden = name.is_some();
        // Which version will be spoken is not known yet; that of TLS 1.3 is the smaller one.
        let content_bytes = usize::from(limits.content_bytes_max(Version::Tls13));
        let config = if content_bytes < CONTENT_BYTES_MAX {
            let mut config = ServerConfig::clone(&self.config);
            config.max_fragment_size = Some(HEADER_BYTES + content_bytes);
            Arc::new(config)
        } else {
            Arc::clone(&self.config)
        };
        match UnbufferedServerConnection::new(config) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.drive_hiding(name)
            }
            Err(error) => {
                debug!("no handshake can begin: {error}");
                HandshakeStep::Failed
            }
        }
    }

    /// Whether it resumes a session of before; `false` as long as that is not known.
    pub(super) fn is_resumed(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.and_then(|connection| connection.handshake_kind())
            == Some(HandshakeKind::Resumed)
    }

    /// Whether this record, in the clear behind our flight of TLS 1.2, is the client's key share
    /// (RFC 5246 s7.4.7).
    pub(super) fn expects_key_exchange(&self, record: &[u8]) -> bool {
        self.version() == Some(ProtocolVersion::TLSv1_2) && record.first() == Some(&TYPE_HANDSHAKE)
    }

    /// Calls rustls with a further record. A second ClientHello, which we asked for, has the same name
    /// (RFC 8446 s4.1.2).
    fn drive_on(self: Box<Self>) -> HandshakeStep {
        let hello = self
            .pending
            .get(HEADER_BYTES..)
            .filter(|_| self.is_name_hidden);
        let name = hello.and_then(HiddenName::of);
        self.drive_hiding(name)
    }

    fn drive_hiding(mut self: Box<Self>, name: Option<HiddenName>) -> HandshakeStep {
        let Some(name) = name else {
            return self.drive();
        };
        debug!("a server name that is no name of DNS: passed over");
        name.hide_in(&mut self.pending);
        name.during(|| self.drive())
    }

    /// The version, once it is known.
    fn version(&self) -> Option<ProtocolVersion> {
        self.connection.as_ref()?.protocol_version()
    }

    /// Calls rustls until it wants no more calls.
    fn drive(mut self: Box<Self>) -> HandshakeStep {
        let mut flight = Vec::new();
        loop {
            let Some(connection) = self.connection.as_mut() else {
                return HandshakeStep::Failed;
            };
            let UnbufferedStatus { discard, state, .. } =
                connection.process_tls_records(&mut self.pending);
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
        while let Some(connection) = self.connection.as_mut()
            && connection.wants_write()
        {
            let UnbufferedStatus { state, .. } = connection.process_tls_records(&mut self.pending);
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
        let (is_resumed, limits) = (self.is_resumed(), self.limits);
        let Some(connection) = self.connection else {
            return HandshakeStep::Failed;
        };
        match connection.dangerous_into_kernel_connection() {
            Ok((secrets, kernel)) => HandshakeStep::Done(Box::new(Done {
                flight,
                secrets,
                kernel,
                is_resumed,
                limits,
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
        if self.version().is_some() {
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
