//! A client of the simulated server: smoltcp below, a script above, a checker in between.
//!
//! Each client is its own host: one MAC and one IP address, its own smoltcp interface, one
//! connection at a time. It asks, reads, compares **every delivered byte** with the object's
//! content function and, where its script says so, behaves badly. It refuses to judge whether a
//! failure was deserved beyond the [`Permits`] it was given. Bounded by its script: requests that
//! failed for a permitted reason are tried again at most [`ATTEMPTS_MAX`] times.

mod body;
pub(crate) mod device;
pub(crate) mod plan;
mod reply;

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;

use clock::{Duration, Instant};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, RecvError, State};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use crate::content::Content;
use device::QueueDevice;
use plan::{ClientPlan, Conduct, ConnectionPlan, Expected, Permits};
use reply::ReplyReader;

/// Requests refused for a permitted reason are sent this often before they are given up.
const ATTEMPTS_MAX: u32 = 12;
/// A second attempt waits this long.
const RETRY_GAP: Duration = Duration::from_secs(1);
/// A client that hears nothing for so long gives the connection up. Far longer than any backed-off
/// retransmission of a server that is still there.
const PATIENCE: Duration = Duration::from_secs(400);
/// First local port; each connection takes the next.
pub(crate) const PORT_FIRST: u16 = 40_000;
/// smoltcp's transmit buffer: a few request heads.
const TRANSMIT_BYTES: usize = 2048;
/// Prefix length of everybody's network, both versions.
const PREFIX_V4: u8 = 16;
const PREFIX_V6: u8 = 64;

thread_local! {
    /// smoltcp asks a plain function for the timestamp value; a run owns its thread.
    static TIMESTAMP: Cell<u32> = const { Cell::new(0) };
}

/// A promise the server broke: for people to read.
pub(crate) type Violation = String;

/// The MAC address of client `number`.
pub(crate) const fn mac_of(number: u8) -> [u8; 6] {
    [0x02, 0, 0, 0, 1, number]
}

/// What a client has to tell.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Replies read whole.
    pub(crate) replies: u64,
    /// Body bytes that were compared with their objects.
    pub(crate) verified_bytes: u64,
    /// Connections begun.
    pub(crate) connections: u64,
    /// Connections that ended early because the server's patience did.
    pub(crate) late: u64,
    /// Connections that ended early because a read failed or an object changed.
    pub(crate) broken: u64,
    /// Connections that ended early because the connection table was full.
    pub(crate) refused: u64,
    /// Requests answered 503 because the object table was full.
    pub(crate) busy: u64,
    /// Connections that ended early because the server was told to end.
    pub(crate) closed: u64,
    /// Requests given up after all attempts, each time for a permitted reason.
    pub(crate) given_up: u64,
    /// Promises the server broke.
    pub(crate) violations: Vec<Violation>,
}

/// One client.
pub(crate) struct Client {
    number: u8,
    server: (IpAddress, u16),
    plan: ClientPlan,
    permits: Permits,
    script: VecDeque<ConnectionPlan>,
    device: QueueDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Sockets of ended connections until TCP is done with them, or until our patience ends.
    lingering: Vec<(SocketHandle, Instant)>,
    phase: Phase,
    port_next: u16,
    due: Option<Instant>,
    vanished: bool,
    report: Report,
}

/// What a client is at.
enum Phase {
    /// Connects at this moment, if there is anything left to do.
    Between(Instant),
    /// Speaks.
    Talking(Box<Connection>),
}

/// A connection under way.
struct Connection {
    socket: SocketHandle,
    plan: ConnectionPlan,
    /// Bytes to send and how many of them smoltcp took.
    outbox: Vec<u8>,
    sent: usize,
    /// Requests written to the outbox.
    asked: usize,
    awaiting: VecDeque<Expected>,
    reader: ReplyReader,
    received_bytes: u64,
    /// When the next request, or the next dribbled byte, is due.
    next_request: Instant,
    next_byte: Instant,
    /// Nothing is read before this moment.
    next_read: Instant,
    /// When a byte last arrived, or the connection began.
    heard_at: Instant,
    /// When a misstep is due at the latest.
    misstep_at: Option<Instant>,
}

/// What ended a connection.
enum Ending {
    /// Everything asked for was answered.
    Complete,
    /// Our own misconduct.
    OurDoing,
    /// We send nothing any more.
    Vanished,
    /// The server's FIN.
    Closed,
    /// The server's RST.
    Reset,
    /// Nothing at all: an RST is not sent again when it is lost.
    Silence,
    /// A reply that refuses what was asked, for a permitted reason.
    Refused,
    /// A broken promise.
    Violation(Violation),
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
    /// A client that will act `plan` against the server at this address and port.
    pub(crate) fn new(plan: ClientPlan, server: (IpAddr, u16), permits: Permits) -> Self {
        let mut device = QueueDevice::new(plan.mtu_bytes);
        let mac = HardwareAddress::Ethernet(EthernetAddress(mac_of(plan.number)));
        let mut config = Config::new(mac);
        config.random_seed = plan.seed;
        let mut interface = Interface::new(config, &mut device, smoltcp_instant(Instant::ZERO));
        let prefix = if plan.address.is_ipv4() {
            PREFIX_V4
        } else {
            PREFIX_V6
        };
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(plan.address.into(), prefix);
            addresses
                .push(address)
                .expect("invariant: room for one address");
        });
        Self {
            number: plan.number,
            server: (server.0.into(), server.1),
            permits,
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

    /// A frame arrived for this client; it is looked at in the next `poll`.
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

    /// Whether the script is over and TCP has nothing left to say.
    pub(crate) fn is_done(&self) -> bool {
        let idle = matches!(self.phase, Phase::Between(_)) && self.script.is_empty();
        self.vanished || (idle && self.lingering.is_empty())
    }

    /// Which client this is.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// What it has to tell.
    pub(crate) const fn report(&self) -> &Report {
        &self.report
    }

    /// One line on where it stands, for a run that hangs.
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

    /// Makes this client believe that one byte in the middle of every object is another.
    pub(crate) fn plant_false_belief(&mut self) {
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
        // Heads go out as they are written: Nagle would hold a pipelined one back.
        socket.set_nagle_enabled(false);
        socket
            .connect(self.interface.context(), self.server, self.port_next)
            .expect("invariant: a new socket, both addresses of one version, ports not zero");
        self.port_next += 1;
        self.report.connections += 1;
        let socket = self.sockets.add(socket);
        self.phase = Phase::Talking(Box::new(Connection::new(now, socket, plan)));
    }

    fn end_connection(&mut self, now: Instant, ending: Ending) {
        let phase = core::mem::replace(&mut self.phase, Phase::Between(now));
        let Phase::Talking(connection) = phase else {
            unreachable!("only a connection ends");
        };
        self.report.replies += connection.reader.replies;
        self.report.verified_bytes += connection.reader.verified_bytes;
        self.lingering.push((connection.socket, now + PATIENCE));
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
        match &ending {
            Ending::Complete | Ending::Closed => socket.close(),
            _ => socket.abort(),
        }
        match ending {
            Ending::Complete => {}
            Ending::Vanished => self.vanished = true,
            Ending::Violation(violation) => self.accuse(&violation),
            _ if !connection.plan.conduct.is_proper() => {}
            ending => self.excuse_or_accuse(now, &connection, &ending),
        }
        if let (Phase::Between(at), Some(next)) = (&mut self.phase, self.script.front()) {
            *at = (*at).max(now + next.gap);
        }
    }

    /// A proper connection ended before all was answered: permitted, or a broken promise?
    fn excuse_or_accuse(&mut self, now: Instant, connection: &Connection, ending: &Ending) {
        let Some(excuse) = connection.excuse(now, ending, self.permits) else {
            self.accuse(&connection.complaint(now, ending));
            return;
        };
        match excuse {
            Excuse::Late => self.report.late += 1,
            Excuse::Broken => self.report.broken += 1,
            Excuse::Refused => self.report.refused += 1,
            Excuse::Busy => self.report.busy += 1,
            Excuse::Closed => {
                // Nobody will answer any more.
                self.report.closed += 1;
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
            self.report.given_up += left.len() as u64;
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

/// Why a connection may end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Excuse {
    Late,
    Broken,
    Refused,
    Busy,
    Closed,
}

impl Connection {
    fn new(now: Instant, socket: SocketHandle, plan: ConnectionPlan) -> Self {
        let misstep_at = match plan.conduct {
            Conduct::Reset(misstep) | Conduct::Vanish(misstep) => Some(now + misstep.after),
            _ => None,
        };
        Self {
            socket,
            plan,
            outbox: Vec::new(),
            sent: 0,
            asked: 0,
            awaiting: VecDeque::new(),
            reader: ReplyReader::default(),
            received_bytes: 0,
            next_request: now,
            next_byte: now,
            next_read: now,
            heard_at: now,
            misstep_at,
        }
    }

    /// Which of the permitted reasons explains this ending, if any.
    fn excuse(&self, now: Instant, ending: &Ending, permits: Permits) -> Option<Excuse> {
        let between = self.reader.is_between_replies();
        let waited = now.since(self.heard_at) >= permits.lateness_min;
        let late = (permits.lateness && waited && between).then_some(Excuse::Late);
        let broken = permits.broken_replies.then_some(Excuse::Broken);
        let refused = permits.refusals.then_some(Excuse::Refused);
        let has_come = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        let closed = (has_come(permits.closes_at) && between).then_some(Excuse::Closed);
        let aborted = has_come(permits.aborts_at).then_some(Excuse::Closed);
        match ending {
            Ending::Refused => match self.reader.refused {
                // A late head is answered at once: we heard from the server just now.
                Some(408) => permits.lateness.then_some(Excuse::Late),
                Some(500) => broken,
                _ => permits.busy.then_some(Excuse::Busy),
            },
            // In the middle of a reply a FIN says that the reply is whole: no excuse.
            Ending::Closed => closed.or(late),
            Ending::Reset if self.received_bytes == 0 => {
                aborted.or(closed).or(late).or(refused).or(broken)
            }
            Ending::Reset => aborted.or(closed).or(late).or(broken),
            // An RST that was lost.
            Ending::Silence => aborted.or(broken).filter(|_| permits.lateness),
            _ => unreachable!("an ending that needs no excuse"),
        }
    }

    fn complaint(&self, now: Instant, ending: &Ending) -> String {
        let what = match ending {
            Ending::Refused => "refusal",
            Ending::Closed => "FIN",
            Ending::Reset => "RST",
            _ => "silence",
        };
        let place = if self.reader.is_between_replies() {
            "between replies"
        } else {
            "in a reply"
        };
        format!(
            "{what} {place} with {} outstanding, {} of {} asked, {} bytes received, the last {} ms \
             ago, {:?}",
            self.awaiting.len(),
            self.asked,
            self.plan.requests.len(),
            self.received_bytes,
            now.since(self.heard_at).as_millis(),
            self.plan.conduct,
        )
    }

    /// Reads, asks and writes what is due; `Some` when the connection is over.
    fn act(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        permits: Permits,
    ) -> Option<Ending> {
        if self.misstep_at.is_some_and(|at| at <= now) {
            return self.misstep();
        }
        if self.silence_ends_at() <= now {
            return Some(Ending::Silence);
        }
        if let Some(ending) = self.read(now, socket, permits) {
            return Some(ending);
        }
        self.ask(now);
        self.write(now, socket);
        if self.plan.conduct == Conduct::HalfClose && self.has_sent_all() && socket.may_send() {
            socket.close();
        }
        None
    }

    /// Takes what arrived, up to `read_bytes_max`, and holds it against what was asked.
    fn read(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        permits: Permits,
    ) -> Option<Ending> {
        if now < self.next_read {
            return None;
        }
        let mut left = self.plan.read_bytes_max;
        let proper = !matches!(
            self.plan.conduct,
            Conduct::StallHead { .. } | Conduct::Garbage { .. }
        );
        while left > 0 {
            let (reader, awaiting) = (&mut self.reader, &mut self.awaiting);
            let taken = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(left)];
                let judged = if proper {
                    reader.handle_bytes(bytes, awaiting, permits)
                } else {
                    Ok(())
                };
                (bytes.len(), (bytes.len(), judged))
            });
            match taken {
                Ok((_, Err(violation))) => return Some(Ending::Violation(violation)),
                Ok((0, Ok(()))) => break,
                Ok((count, Ok(()))) => {
                    left -= count;
                    self.received_bytes += count as u64;
                    self.heard_at = now;
                }
                Err(RecvError::Finished) => return Some(self.ending_by_fin()),
                // Before the handshake is over nothing can be read either.
                Err(RecvError::InvalidState) if socket.is_open() => break,
                Err(RecvError::InvalidState) => return Some(Ending::Reset),
            }
            if let Some(ending) = self.ending_by_progress(now) {
                return Some(ending);
            }
        }
        if left == 0 {
            self.next_read = self.next_read.max(now + self.plan.read_interval);
        }
        None
    }

    /// The server's FIN, after everything it sent was read.
    fn ending_by_fin(&self) -> Ending {
        let conduct = self.plan.conduct;
        match self.is_answered() || !conduct.is_proper() {
            true => Ending::Complete,
            false => Ending::Closed,
        }
    }

    /// What the bytes read so far mean for the rest of the connection.
    fn ending_by_progress(&mut self, now: Instant) -> Option<Ending> {
        let read = self.received_bytes;
        if let Some(pause) = self.plan.pause.filter(|pause| read >= pause.after_bytes) {
            self.plan.pause = None;
            self.next_read = now + pause.lasts;
        }
        match self.plan.conduct {
            Conduct::Reset(misstep) | Conduct::Vanish(misstep) if read >= misstep.after_bytes => {
                return self.misstep();
            }
            _ => {}
        }
        if !self.reader.is_between_replies() {
            return None;
        }
        if self.reader.refused.is_some() {
            return Some(Ending::Refused);
        }
        self.next_request = self.next_request.max(now + self.plan.think);
        // Having asked for a close, we wait for the server's FIN.
        let server_closes = self.reader.last_reply;
        (self.is_answered() && !server_closes).then_some(Ending::Complete)
    }

    fn misstep(&self) -> Option<Ending> {
        match self.plan.conduct {
            Conduct::Reset(_) => Some(Ending::OurDoing),
            Conduct::Vanish(_) => Some(Ending::Vanished),
            _ => None,
        }
    }

    /// Writes the requests that are due into the outbox.
    fn ask(&mut self, now: Instant) {
        if now < self.next_request {
            return;
        }
        match self.plan.conduct {
            Conduct::StallHead { sent_bytes } if self.asked == 0 => {
                let head = self
                    .plan
                    .requests
                    .first()
                    .map(plan::RequestPlan::head_bytes);
                let head = head.unwrap_or_default();
                // The last byte, at least, is never sent.
                let sent = sent_bytes.min(head.len().saturating_sub(1));
                self.outbox.extend_from_slice(&head[..sent]);
                self.asked = self.plan.requests.len();
            }
            Conduct::Garbage { length, key } if self.asked == 0 => {
                self.outbox.resize(length, 0);
                Content::new(key, 0, 0).fill(0, &mut self.outbox);
                self.asked = self.plan.requests.len();
            }
            Conduct::StallHead { .. } | Conduct::Garbage { .. } => {}
            _ => self.ask_properly(),
        }
    }

    fn ask_properly(&mut self) {
        while self.awaiting.len() < self.plan.pipeline && !self.reader.last_reply {
            let Some(request) = self.plan.requests.get(self.asked) else {
                break;
            };
            self.outbox.extend(request.head_bytes());
            self.awaiting.push_back(request.expected());
            self.asked += 1;
        }
    }

    /// Gives smoltcp as much of the outbox as it takes and the script allows.
    fn write(&mut self, now: Instant, socket: &mut tcp::Socket<'_>) {
        if !socket.can_send() || self.sent == self.outbox.len() {
            return;
        }
        let mut part = &self.outbox[self.sent..];
        if let Conduct::Dribble { interval } = self.plan.conduct {
            if now < self.next_byte {
                return;
            }
            part = &part[..1];
            self.next_byte = now + interval;
        }
        self.sent += socket.send_slice(part).unwrap_or_default();
    }

    /// A reader that looks away hears nothing and has no right to complain.
    fn silence_ends_at(&self) -> Instant {
        self.heard_at.max(self.next_read).max(self.next_request) + PATIENCE
    }

    fn is_answered(&self) -> bool {
        self.asked == self.plan.requests.len()
            && self.awaiting.is_empty()
            && self.reader.is_between_replies()
    }

    fn has_sent_all(&self) -> bool {
        self.asked == self.plan.requests.len() && self.sent == self.outbox.len()
    }

    /// When the script, apart from TCP, next has something to do.
    fn next_due(&self, socket: &tcp::Socket<'_>) -> Option<Instant> {
        let wants_to_write = socket.can_send() && self.sent < self.outbox.len();
        let dribbles = matches!(self.plan.conduct, Conduct::Dribble { .. });
        let write = (wants_to_write && dribbles).then_some(self.next_byte);
        // A FIN or RST behind the bytes is seen by reading, too.
        let shaking_hands = matches!(socket.state(), State::SynSent | State::SynReceived);
        let ended = !socket.may_recv() && !shaking_hands;
        let read = (socket.can_recv() || ended).then_some(self.next_read);
        let may_ask = self.asked < self.plan.requests.len()
            && self.awaiting.len() < self.plan.pipeline
            && !self.reader.last_reply;
        let ask = may_ask.then_some(self.next_request);
        [
            write,
            read,
            ask,
            self.misstep_at,
            Some(self.silence_ends_at()),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Rounded down to microseconds: smoltcp never runs ahead of the world.
pub(crate) fn smoltcp_instant(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

pub(crate) fn our_instant(moment: smoltcp::time::Instant) -> Instant {
    Instant::from_micros(u64::try_from(moment.total_micros()).unwrap_or_default())
}
