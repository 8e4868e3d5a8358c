//! The TLS handshaker: handshakes in progress, and the secrets that later keys are derived from, in a
//! table by [`TlsToken::index`].

use std::fmt;
use std::sync::Arc;

use counters::{CounterSet as _, Gauge, counters};
use record::{Algorithm, TrafficKey, Version};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, Error, ProtocolVersion, ServerConfig};
use session::{Direction, TlsAnswer, TlsPlan, TlsToken};

use super::certificates::take_chosen_us;
use super::cost;
use super::handshaking::{Done, HandshakeStep, Handshaking};

/// Carries out the conductor's [`TlsPlan`]s.
///
/// ```text
///              Handshake                Handshake
///   (vacant) ─────────────▶ Handshaking ──────────────▶ Streaming ⟲ NextKey
///       ▲                      │                            │
///       └── Refused, Failed, Forget ◀──────── Forget ───────┘
/// ```
///
/// The table is allocated at start. A handshake takes the memory of rustls, some KiB, and the part
/// received of an incomplete message; after it, a client takes some hundred bytes.
pub struct Handshaker {
    config: Arc<ServerConfig>,
    /// By [`TlsToken::index`].
    clients: Vec<Option<Client>>,
    counters: HandshakeCounters,
}

counters! {
    /// What a handshaker did, since start.
    #[derive(Clone, Copy, Debug)]
    pub struct HandshakeCounters prefix "tls_" {
        /// Records of TLS handshakes taken.
        handshake_records: u64,
        /// TLS handshakes in progress.
        handshakes_in_progress: Gauge,
        /// Times new certificates came into use.
        reload_count: u64,
        /// Estimated processor time of TLS handshakes, in microseconds.
        handshake_cost_us: u64,
        /// Unix time at which the first certificate in use ends; 0 without one.
        certificate_end_unix_seconds: Gauge,
    }
}

struct Client {
    /// [`TlsToken::serial`].
    serial: u32,
    stage: Stage,
}

enum Stage {
    Handshaking(Box<Handshaking>),
    /// With what later keys come from; TLS 1.2 has no later keys.
    Streaming(Option<Box<KernelConnection<ServerConnectionData>>>),
}

impl Stage {
    const fn is_handshaking(&self) -> bool {
        matches!(self, Self::Handshaking(_))
    }
}

impl Handshaker {
    /// `connections_max` is the conductor's.
    #[must_use]
    pub fn new(config: Arc<ServerConfig>, connections_max: usize) -> Self {
        Self {
            config,
            clients: (0..connections_max).map(|_| None).collect(),
            counters: HandshakeCounters::default(),
        }
    }

    /// Carries a plan out. [`TlsPlan::Forget`] has no answer.
    ///
    /// # Panics
    /// If the token's index is not below `connections_max`.
    pub fn handle(&mut self, plan: TlsPlan) -> Option<(TlsToken, TlsAnswer)> {
        match plan {
            TlsPlan::Handshake { token, record } => {
                Some((token, self.handle_record(token, record)))
            }
            TlsPlan::NextKey { token, direction } => Some((token, self.next_key(token, direction))),
            TlsPlan::Forget { token } => {
                self.take(token);
                None
            }
        }
    }

    /// For handshakes that begin from now on; those under way keep what they began with.
    pub fn set_config(&mut self, config: Arc<ServerConfig>) {
        self.config = config;
        self.counters.reload_count += 1;
    }

    /// Unix time at which the first certificate of the configuration expires, seconds. It is
    /// reported with the counters, as 0 if it is not known.
    pub fn set_certificate_end(&mut self, unix_seconds: Option<i64>) {
        let end = unix_seconds.unwrap_or_default();
        self.counters.certificate_end_unix_seconds = Gauge(u64::try_from(end).unwrap_or_default());
    }

    /// CPU time of all handshakes so far, microseconds: an estimate from the operations that were
    /// made in them and the types of the signing keys.
    #[must_use]
    pub const fn cost_us(&self) -> u64 {
        self.counters.handshake_cost_us
    }

    /// Names and values.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.as_pairs()
    }

    fn handle_record(&mut self, token: TlsToken, record: Vec<u8>) -> TlsAnswer {
        self.counters.handshake_records += 1;
        let handshaking = match self.take(token) {
            None => Handshaking::new(&self.config),
            Some(Stage::Handshaking(handshaking)) => handshaking,
            Some(Stage::Streaming(_)) => return TlsAnswer::Failed,
        };
        let is_key_exchange = handshaking.expects_key_exchange(&record);
        let step = handshaking.handle_record(record);
        self.counters.handshake_cost_us += match (&step, take_chosen_us()) {
            (HandshakeStep::Done(_), _) => cost::FINISHED_US,
            (HandshakeStep::Refused(_) | HandshakeStep::Failed, _) => cost::REFUSED_US,
            (HandshakeStep::More(handshaking, _), Some(_)) if handshaking.is_resumed() => {
                cost::RESUMED_HELLO_US
            }
            (_, Some(full_us)) => full_us,
            (_, None) if is_key_exchange => cost::KEY_EXCHANGE_US,
            (_, None) => cost::RECORD_US,
        };
        match step {
            HandshakeStep::More(handshaking, flight) => {
                self.put(token, Stage::Handshaking(handshaking));
                TlsAnswer::Continue { flight }
            }
            HandshakeStep::Done(done) => self.establish(token, *done),
            HandshakeStep::Refused(flight) => TlsAnswer::Refused { flight },
            HandshakeStep::Failed => TlsAnswer::Failed,
        }
    }

    fn establish(&mut self, token: TlsToken, done: Done) -> TlsAnswer {
        let version = done.kernel.protocol_version();
        let (send_number, send) = done.secrets.tx;
        let (receive_number, receive) = done.secrets.rx;
        let (Some(send), Some(receive)) =
            (traffic_key(version, &send), traffic_key(version, &receive))
        else {
            return TlsAnswer::Failed;
        };
        let content_bytes_max = done.limits.content_bytes_max(send.version());
        let kernel = (send.version() == Version::Tls13).then(|| Box::new(done.kernel));
        self.put(token, Stage::Streaming(kernel));
        TlsAnswer::Established {
            flight: done.flight,
            send: (send, send_number),
            receive: (receive, receive_number),
            is_resumed: done.is_resumed,
            content_bytes_max,
        }
    }

    fn next_key(&mut self, token: TlsToken, direction: Direction) -> TlsAnswer {
        let client = self.place(token).as_mut();
        let Some(Client {
            serial,
            stage: Stage::Streaming(Some(kernel)),
        }) = client
        else {
            return TlsAnswer::Failed;
        };
        if *serial != token.serial {
            return TlsAnswer::Failed;
        }
        let version = kernel.protocol_version();
        match next_secrets(kernel, direction) {
            Ok(secrets) => traffic_key(version, &secrets)
                .map_or(TlsAnswer::Failed, |key| TlsAnswer::NextKey { key }),
            Err(_) => TlsAnswer::Failed,
        }
    }

    /// Takes the client out of the table, if its serial number is the token's.
    fn take(&mut self, token: TlsToken) -> Option<Stage> {
        let is_same = |client: &mut Client| client.serial == token.serial;
        let stage = self.place(token).take_if(is_same)?.stage;
        self.counters.handshakes_in_progress.0 -= u64::from(stage.is_handshaking());
        Some(stage)
    }

    /// Puts the client into the table. An entry still at its index is of a client that left: no two
    /// clients have the same index at the same time.
    fn put(&mut self, token: TlsToken, stage: Stage) {
        self.counters.handshakes_in_progress.0 += u64::from(stage.is_handshaking());
        let client = Client {
            serial: token.serial,
            stage,
        };
        let gone = self.place(token).replace(client);
        let was_handshaking = gone.is_some_and(|client| client.stage.is_handshaking());
        self.counters.handshakes_in_progress.0 -= u64::from(was_handshaking);
    }

    fn place(&mut self, token: TlsToken) -> &mut Option<Client> {
        let index = usize::try_from(token.index).unwrap_or(usize::MAX);
        self.clients
            .get_mut(index)
            .expect("invariant: a token's index is below connections_max")
    }
}

impl fmt::Debug for Handshaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshaker")
            .field("connections_max", &self.clients.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

fn next_secrets(
    kernel: &mut KernelConnection<ServerConnectionData>,
    direction: Direction,
) -> Result<ConnectionTrafficSecrets, Error> {
    let (_, secrets) = match direction {
        Direction::Send => kernel.update_tx_secret(),
        Direction::Receive => kernel.update_rx_secret(),
    }?;
    Ok(secrets)
}

/// The key as the record room takes it. `None` for what [`super::server_config`] does not offer.
fn traffic_key(version: ProtocolVersion, secrets: &ConnectionTrafficSecrets) -> Option<TrafficKey> {
    let version = match version {
        ProtocolVersion::TLSv1_2 => Version::Tls12,
        ProtocolVersion::TLSv1_3 => Version::Tls13,
        _ => return None,
    };
    let (algorithm, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Algorithm::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Algorithm::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Algorithm::ChaCha20Poly1305, key, iv)
        }
        _ => return None,
    };
    let iv = iv.as_ref().try_into().ok()?;
    TrafficKey::new(version, algorithm, key.as_ref(), iv).ok()
}
