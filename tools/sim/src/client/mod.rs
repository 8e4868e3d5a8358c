//! A client of the simulated server: smoltcp, TLS if its plan says so, and a script of requests.
//!
//! Each client is a host with one MAC and one IP address, a smoltcp interface, and one connection
//! at a time. It sends requests, reads the replies, compares **every delivered byte** with the
//! object's content function and, if its plan says so, misbehaves. It refuses to excuse failures
//! other than those of the [`Permits`] it was given. Bounded by its plan: requests that failed for
//! a permitted reason are tried at most [`ATTEMPTS_MAX`] times.

mod body;
mod connection;
mod device;
pub(crate) mod plan;
mod reply;
pub(crate) mod secure;

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use clock::{Duration, Instant};
use rustls::{ClientConfig, HandshakeKind};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use connection::{Connection, Ending, Excuse};
use device::QueueDevice;
use plan::{ClientPlan, ConnectionPlan, Permits};

use crate::scenario::{SERVER_V4, SERVER_V6};

/// Most attempts of a request that fails for a permitted reason.
const ATTEMPTS_MAX: u32 = 12;
/// A second attempt waits this long.
const RETRY_GAP: Duration = Duration::from_secs(1);
/// A client that receives nothing for so long gives the connection up. Far longer than any
/// backed-off retransmission timeout of a live server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(400);
/// First local port; each connection takes the next.
pub(crate) const PORT_FIRST: u16 = 40_000;
/// smoltcp's transmit buffer: a few request heads.
const TRANSMIT_BYTES: usize = 2048;
/// Prefix length of all addresses, IPv4 and IPv6.
const PREFIX_V4: u8 = 16;
const PREFIX_V6: u8 = 64;

thread_local! {
    /// smoltcp takes the timestamp value from a plain function; each run has a thread of its own.
    static TIMESTAMP: Cell<u32> = const { Cell::new(0) };
}

/// A check that failed, in words.
pub(crate) type Violation = String;

/// The MAC address of client `number`.
pub(crate) const fn mac_of(number: u8) -> [u8; 6] {
    [0x02, 0, 0, 0, 1, number]
}

counters::counters! {
    /// What clients met; of connections that ended early, the reason.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Tally prefix "client_" {
        /// Replies read whole.
        pub(crate) reply_count: u64,
        /// Body bytes that were compared with their objects.
        pub(crate) verified_bytes: u64,
        /// Completed TLS handshakes.
        pub(crate) handshake_count: u64,
        /// Of these, resumed ones.
        pub(crate) resumed_count: u64,
        /// Of these, those with a HelloRetryRequest.
        pub(crate) sent_back_count: u64,
        /// KeyUpdates requested.
        pub(crate) key_update_count: u64,
        /// A timeout of the server.
        pub(crate) late_count: u64,
        /// A read that failed, or an object that changed.
        pub(crate) broken_count: u64,
        /// A full connection table.
        pub(crate) refused_count: u64,
        /// A full object table: a request was answered 503.
        pub(crate) busy_count: u64,
        /// The server was shut down.
        pub(crate) closed_count: u64,
        /// Half of the records of a TLS 1.2 key were used: the connection was closed between replies.
        pub(crate) key_used_count: u64,
        /// Requests given up after all attempts, each time for such a reason.
        pub(crate) given_up_count: u64,
    }
}

/// The results of a client.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) tally: Tally,
    /// Connections that may have ended early because the connection table was full.
    pub(crate) refusals: Vec<Refusal>,
    /// Checks that failed.
    pub(crate) violations: Vec<Violation>,
}

/// A connection that may have ended early because the connection table was full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The client's port.
    pub(crate) port: u16,
    /// If the table was not full: a failed read may be the reason.
    pub(crate) may_be_broken: bool,
    /// How it ended.
    pub(crate) description: String,
}

/// One client.
pub(crate) struct Client {
    number: u8,
    server: (IpAddress, u16),
    plan: ClientPlan,
    permits: Permits,
    /// Its TLS configuration; `None`: no TLS.
    secure: Option<Arc<ClientConfig>>,
    script: VecDeque<ConnectionPlan>,
    device: QueueDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Sockets of ended connections, until TCP has closed them or a limit has passed.
    lingering: Vec<(SocketHandle, Instant)>,
    phase: Phase,
    port_next: u16,
    due: Option<Instant>,
    vanished: bool,
    report: Report,
}

/// The state of a client.
enum Phase {
    /// Connects at this moment, if requests are left.
    Between(Instant),
    /// Has a connection.
    Talking(Box<Connection>),
}

impl Tally {
    fn count(&mut self, connection: &Connection) {
        self.reply_count += connection.reader.replies;
        self.verified_bytes += connection.reader.verified_bytes;
        let kind = connection.handshake_kind();
        let is = |wanted| u64::from(kind == Some(wanted));
        self.handshake_count += u64::from(kind.is_some());
        self.resumed_count += is(HandshakeKind::Resumed);
        self.sent_back_count += is(HandshakeKind::FullWithHelloRetryRequest);
        self.key_update_count += u64::from(connection.refreshes);
    }
}

impl core::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("Client")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client that carries out `plan`.
    pub(crate) fn new(plan: ClientPlan, permits: Permits) -> Self {
        let mut device = QueueDevice::new(plan.mtu_bytes);
        let mac = HardwareAddress::Ethernet(EthernetAddress(mac_of(plan.number)));
        let mut config = Config::new(mac);
        config.random_seed = plan.seed;
        let mut interface = Interface::new(config, &mut device, smoltcp_instant(Instant::ZERO));
        let (server, prefix) = match plan.address {
            IpAddr::V4(_) => (SERVER_V4.into(), PREFIX_V4),
            IpAddr::V6(_) => (SERVER_V6.into(), PREFIX_V6),
        };
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(plan.address.into(), prefix);
            addresses
                .push(address)
                .expect("invariant: room for one address");
        });
        Self {
            number: plan.number,
            server: (server, plan.port()),
            permits,
            secure: (plan.secure.as_ref()).map(|tls| secure::client_config(tls, plan.seed)),
            script: plan.connections.iter().cloned().collect(),
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            lingering: Vec::new(),
            phase: Phase::Between(plan.starts),
            port_next: PORT_FIRST,
            due: Some(plan.starts),
            vanished: false,
            report: Report::default(),
            plan,
        }
    }

    /// A frame arrived for this client; the next `poll` handles it.
    pub(crate) fn handle_frame(&mut self, now: Instant, frame: Vec<u8>) {
        if !self.vanished {
            self.device.arrived.push_back(frame);
            self.due = Some(now);
        }
    }

    /// Does everything that is due at `now` and hands leaving frames to `sink`. Returns whether
    /// anything was due.
    pub(crate) fn poll(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) -> bool {
        if self.vanished || self.due.is_none_or(|due| due > now) {
            return false;
        }
        // RFC 7323 s4.1: modulo 2^32.
        TIMESTAMP.set(u32::try_from(now.as_millis() & 0xffff_ffff).expect("invariant: 32 bits"));
        let moment = smoltcp_instant(now);
        self.interface
            .poll(moment, &mut self.device, &mut self.sockets);
        self.act(now);
        self.retire_lingering(now);
        self.interface
            .poll(moment, &mut self.device, &mut self.sockets);
        if self.vanished {
            self.device.leaving.clear();
            self.due = None;
            return true;
        }
        while let Some(frame) = self.device.leaving.pop_front() {
            sink(frame);
        }
        self.due = self.next_due(now);
        true
    }

    /// When `poll` next has work.
    pub(crate) const fn poll_at(&self) -> Option<Instant> {
        if self.vanished { None } else { self.due }
    }

    /// Whether the plan is carried out and TCP has nothing left to send.
    pub(crate) fn is_done(&self) -> bool {
        let idle = matches!(self.phase, Phase::Between(_)) && self.script.is_empty();
        self.vanished || (idle && self.lingering.is_empty())
    }

    /// Which client this is.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// Its IP address.
    pub(crate) const fn address(&self) -> IpAddr {
        self.plan.address
    }

    /// The server's address and port.
    pub(crate) fn server(&self) -> (IpAddr, u16) {
        (self.server.0.into(), self.server.1)
    }

    /// Its results so far.
    pub(crate) const fn report(&self) -> &Report {
        &self.report
    }

    /// One line on its state, for a run that hangs.
    pub(crate) fn describe(&self) -> String {
        let place = match &self.phase {
            _ if self.vanished => "vanished".to_owned(),
            Phase::Between(at) => {
                format!(
                    "between connections until {} us, {} left, {} lingering",
                    at.as_micros(),
                    self.script.len(),
                    self.lingering.len()
                )
            }
            Phase::Talking(connection) => {
                let state = self
                    .sockets
                    .get::<tcp::Socket<'_>>(connection.socket)
                    .state();
                format!(
                    "{state}, {} of {} asked, {} awaited, {} bytes received",
                    connection.asked,
                    connection.plan.requests.len(),
                    connection.awaiting.len(),
                    connection.received_bytes
                )
            }
        };
        format!("client {}: {place}", self.number)
    }

    /// Makes this client expect another byte in the middle of every object: a canary.
    pub(crate) fn expect_wrong_byte(&mut self) {
        let requests = self
            .script
            .iter_mut()
            .flat_map(|connection| &mut connection.requests);
        for object in requests.filter_map(|request| request.object.as_mut()) {
            object.content = object.content.flipped(object.size_bytes / 2);
            object.later = None;
        }
    }

    fn act(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Between(at) if *at <= now => self.connect(now),
            Phase::Between(_) => {}
            Phase::Talking(connection) => {
                let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
                if let Some(ending) = connection.act(now, socket, self.permits) {
                    self.end_connection(now, ending);
                }
            }
        }
    }

    fn connect(&mut self, now: Instant) {
        let Some(plan) = self.script.pop_front() else {
            return;
        };
        let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(self.plan.receive_bytes), buffer(TRANSMIT_BYTES));
        if !self.plan.delays_acks {
            socket.set_ack_delay(None);
        }
        if self.plan.timestamps {
            socket.set_tsval_generator(Some(|| TIMESTAMP.get()));
        }
        // Without Nagle: it would delay pipelined requests.
        socket.set_nagle_enabled(false);
        socket
            .connect(self.interface.context(), self.server, self.port_next)
            .expect("invariant: a new socket, both addresses of one version, ports not zero");
        self.port_next += 1;
        let socket = self.sockets.add(socket);
        let keeps_keys = self.plan.secure.is_some_and(|secure| !secure.is_tls13());
        let connection = Connection::new(now, socket, plan, self.secure.as_ref(), keeps_keys);
        self.phase = Phase::Talking(Box::new(connection));
    }

    fn end_connection(&mut self, now: Instant, ending: Ending) {
        let phase = core::mem::replace(&mut self.phase, Phase::Between(now));
        let Phase::Talking(mut connection) = phase else {
            unreachable!("only a connection ends");
        };
        self.report.tally.count(&connection);
        self.lingering
            .push((connection.socket, now + REPLY_TIMEOUT));
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
        match &ending {
            Ending::Complete | Ending::Closed => {
                connection.part(socket);
                socket.close();
            }
            _ => socket.abort(),
        }
        match ending {
            Ending::Complete => {}
            Ending::Vanished => self.vanished = true,
            Ending::Violation(violation) => self.accuse(&violation),
            // A server may keep a connection of a misbehaving client, but must end it in time.
            Ending::Silence if !self.permits.lateness => {
                self.accuse(&connection.describe_ending(now, &ending));
            }
            _ if !connection.plan.conduct.is_proper() => {}
            ending => self.excuse_or_accuse(now, &connection, &ending),
        }
        if let (Phase::Between(at), Some(next)) = (&mut self.phase, self.script.front()) {
            *at = (*at).max(now + next.gap);
        }
    }

    /// A well-behaved connection ended before all was answered: permitted, or a violation.
    fn excuse_or_accuse(&mut self, now: Instant, connection: &Connection, ending: &Ending) {
        let Some(excuse) = connection.excuse(now, ending, self.permits) else {
            self.accuse(&connection.describe_ending(now, ending));
            return;
        };
        match excuse {
            Excuse::Late => self.report.tally.late_count += 1,
            Excuse::Broken => self.report.tally.broken_count += 1,
            Excuse::Refused { may_be_broken } => self.report.refusals.push(Refusal {
                port: self.port_next - 1,
                may_be_broken,
                description: connection.describe_ending(now, ending),
            }),
            Excuse::Busy => self.report.tally.busy_count += 1,
            Excuse::KeyUsed => self.report.tally.key_used_count += 1,
            Excuse::Closed => {
                // The server is gone.
                self.report.tally.closed_count += 1;
                self.script.clear();
                return;
            }
        }
        let answered = connection.asked - connection.awaiting.len();
        let left = connection.plan.requests[answered..].to_vec();
        if left.is_empty() {
            return;
        }
        if connection.plan.attempt + 1 >= ATTEMPTS_MAX {
            self.report.tally.given_up_count += left.len() as u64;
            return;
        }
        let attempt = connection.plan.attempt + 1;
        let plan = &connection.plan;
        let again = ConnectionPlan {
            requests: left,
            attempt,
            gap: RETRY_GAP,
            ..plan.clone()
        };
        self.script.push_front(again);
        self.phase = Phase::Between(now + RETRY_GAP);
    }

    fn accuse(&mut self, violation: &str) {
        let (number, ports) = (self.number, self.port_next - 1);
        self.report
            .violations
            .push(format!("client {number} port {ports}: {violation}"));
    }

    fn retire_lingering(&mut self, now: Instant) {
        let sockets = &mut self.sockets;
        self.lingering.retain(|&(handle, until)| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            // An aborted socket keeps its addresses until its RST has left.
            let over = socket.state() == State::Closed && socket.remote_endpoint().is_none();
            // Data that still arrives is discarded, so that the FIN behind it fits the window.
            let _ = socket.recv(|bytes| (bytes.len(), ()));
            if over {
                sockets.remove(handle);
            } else if until <= now {
                socket.abort();
            }
            !over
        });
    }

    fn next_due(&mut self, now: Instant) -> Option<Instant> {
        let tcp = self
            .interface
            .poll_at(smoltcp_instant(now), &self.sockets)
            .map(our_instant);
        let script = match &self.phase {
            Phase::Between(_) if self.script.is_empty() => None,
            Phase::Between(at) => Some(*at),
            Phase::Talking(connection) => {
                connection.next_due(self.sockets.get::<tcp::Socket<'_>>(connection.socket))
            }
        };
        let lingering = self.lingering.iter().map(|(_, until)| *until).min();
        // An aborted socket that only waits for its RST to leave has nothing more to wait for.
        let lingering = lingering.filter(|until| *until > now);
        [tcp, script, lingering].into_iter().flatten().min()
    }
}

/// Rounded down to microseconds, so that smoltcp is never ahead of the virtual clock.
fn smoltcp_instant(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

fn our_instant(moment: smoltcp::time::Instant) -> Instant {
    Instant::from_micros(u64::try_from(moment.total_micros()).unwrap_or_default())
}
