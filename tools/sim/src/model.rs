//! A server and a network without any of the product's code, to test the simulator itself: an error
//! of its clients, checks or event loop shows here, too.
//!
//! smoltcp, a few listening sockets, rustls, and as much HTTP as the clients need.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use clock::{Duration, Instant};
use rustls::{ServerConfig, ServerConnection};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use crate::atlas::REPEATED_BYTES;
use crate::client::device::QueueDevice;
use crate::client::plan::{ClientPlan, DIRECTORY, Expected, ExpectedBody, ObjectPlan};
use crate::client::{Violation, our_instant, smoltcp_instant};
use crate::credentials::server_config;
use crate::retransmissions::Retransmissions;
use crate::rng::Rng;
use crate::scenario::{Event, PORT, Path, SECURE_PORT, SERVER_V4, SERVER_V6};
use crate::segment::End;
use crate::world::{Canary, Network, Reading, Resources, Server, swap_payload_words};

/// Listening sockets of each port, besides one for each client.
const SOCKETS: usize = 24;
/// Certificates in its handshake.
const CHAIN: usize = 2;
const SERVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// Idle connections are closed after this.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Both directions of a lossy network, shared by its two ends.
pub(crate) struct ModelNetwork {
    rng: Rng,
    path: Path,
    order: u64,
    to_server: BTreeMap<(Instant, u64), Vec<u8>>,
    to_clients: BTreeMap<(Instant, u64), Vec<u8>>,
}

impl ModelNetwork {
    pub(crate) fn new(seed: u64, path: Path) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            rng: Rng::new(seed, 77),
            path,
            order: 0,
            to_server: BTreeMap::new(),
            to_clients: BTreeMap::new(),
        }))
    }

    fn carry(&mut self, now: Instant, frame: &[u8], to_server: bool) {
        let path = self.path;
        if self.rng.chance(path.loss_permille.into()) {
            return;
        }
        let copies = 1 + u32::from(self.rng.chance(path.duplicate_permille.into()));
        for _ in 0..copies {
            let mut frame = frame.to_vec();
            if self.rng.chance(path.corrupt_permille.into()) && frame.len() > 34 {
                let place = self.rng.size(34..=frame.len() - 1);
                frame[place] ^= 0x10;
            }
            let late = self.rng.chance(path.reorder_permille.into());
            let extra = if late {
                self.rng.log_micros(10..=20_000)
            } else {
                Duration::ZERO
            };
            self.order += 1;
            let key = (now + path.delay + extra, self.order);
            let queue = if to_server {
                &mut self.to_server
            } else {
                &mut self.to_clients
            };
            queue.insert(key, frame);
        }
    }
}

fn pop_due(queue: &mut BTreeMap<(Instant, u64), Vec<u8>>, now: Instant) -> Option<Vec<u8>> {
    let first = queue.first_entry()?;
    (first.key().0 <= now).then(|| first.remove())
}

impl Network for Rc<RefCell<ModelNetwork>> {
    fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        pop_due(&mut self.borrow_mut().to_clients, now)
    }

    fn transmit(&mut self, now: Instant, frame: Vec<u8>) {
        self.borrow_mut().carry(now, &frame, true);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let network = self.borrow();
        let first = |queue: &BTreeMap<(Instant, u64), Vec<u8>>| {
            queue.first_key_value().map(|((at, _), _)| *at)
        };
        [first(&network.to_server), first(&network.to_clients)]
            .into_iter()
            .flatten()
            .min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The connection of one socket.
struct Talk {
    port: u16,
    secure: Option<ServerConnection>,
    asked: Vec<u8>,
    /// Replies, encrypted over TLS, and how many of their bytes smoltcp took.
    answer: Vec<u8>,
    written: usize,
    closing: bool,
    has_sent_stream_end: bool,
    received_at: Option<Instant>,
}

/// The server.
pub(crate) struct ModelServer {
    network: Rc<RefCell<ModelNetwork>>,
    /// The reply to each request head.
    answers: BTreeMap<Vec<u8>, Expected>,
    device: QueueDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    talks: Vec<(SocketHandle, Talk)>,
    tls: Arc<ServerConfig>,
    due: Option<Instant>,
    retransmissions: Retransmissions,
    alters_retransmissions: bool,
}

impl ModelServer {
    pub(crate) fn new(
        network: Rc<RefCell<ModelNetwork>>,
        mtu_bytes: u16,
        clients: &[ClientPlan],
    ) -> Self {
        let connections = clients.iter().flat_map(|client| &client.connections);
        let answers = connections
            .flat_map(|connection| &connection.requests)
            .map(|request| (request.head_bytes(), request.expected()))
            .collect();
        let mut device = QueueDevice::new(mtu_bytes);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(SERVER_MAC)));
        config.random_seed = 5;
        let mut interface = Interface::new(config, &mut device, smoltcp_instant(Instant::ZERO));
        interface.update_ip_addrs(|addresses| {
            for (address, prefix) in [(IpAddr::from(SERVER_V4), 16), (SERVER_V6.into(), 64)] {
                addresses
                    .push(IpCidr::new(address.into(), prefix))
                    .expect("room for two");
            }
        });
        let mut sockets = SocketSet::new(Vec::new());
        let tls = server_config(CHAIN);
        let count = SOCKETS + clients.len();
        let ports = [PORT, SECURE_PORT].into_iter();
        let ports = ports.flat_map(|port| core::iter::repeat_n(port, count));
        let talks = ports.map(|port| (sockets.add(listening(port)), Talk::new(port, &tls)));
        let talks = talks.collect();
        Self {
            network,
            answers,
            device,
            interface,
            sockets,
            talks,
            tls,
            due: None,
            retransmissions: Retransmissions::default(),
            alters_retransmissions: false,
        }
    }

    fn talk(&mut self, now: Instant) {
        for (handle, talk) in &mut self.talks {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if matches!(socket.state(), State::Closed | State::TimeWait) {
                *talk = Talk::new(talk.port, &self.tls);
                *socket = listening(talk.port);
                continue;
            }
            if socket.state() == State::Listen {
                continue;
            }
            talk.step(now, socket, &self.answers);
        }
    }
}

impl Talk {
    fn new(port: u16, tls: &Arc<ServerConfig>) -> Self {
        let secure = (port == SECURE_PORT).then(|| ServerConnection::new(Arc::clone(tls)));
        Self {
            port,
            secure: secure.map(|secure| secure.expect("a valid configuration")),
            asked: Vec::new(),
            answer: Vec::new(),
            written: 0,
            closing: false,
            has_sent_stream_end: false,
            received_at: None,
        }
    }

    fn step(
        &mut self,
        now: Instant,
        socket: &mut tcp::Socket<'_>,
        answers: &BTreeMap<Vec<u8>, Expected>,
    ) {
        while socket.can_recv() {
            let heard = socket.recv(|bytes| (bytes.len(), bytes.to_vec()));
            self.hear(&heard.expect("can_recv said so"));
            self.received_at = Some(now);
        }
        loop {
            self.take_output();
            if self.written < self.answer.len() && socket.can_send() {
                let rest = &self.answer[self.written..];
                self.written += socket.send_slice(rest).unwrap_or_default();
                self.received_at = Some(now);
            }
            if self.written < self.answer.len() || self.closing {
                break;
            }
            let Some(end) = self.asked.windows(4).position(|four| four == b"\r\n\r\n") else {
                self.closing = self.asked.len() > 4000;
                break;
            };
            let head: Vec<u8> = self.asked.drain(..end + 4).collect();
            let (answer, closing) = answer(&head, answers);
            self.closing = closing;
            self.say(&answer);
        }
        let spoken = self.written == self.answer.len();
        let received_at = *self.received_at.get_or_insert(now);
        let is_idle = now.since(received_at) >= REPLY_TIMEOUT;
        if spoken && (self.closing || socket.state() == State::CloseWait) {
            self.send_stream_end();
            if self.written == self.answer.len() {
                socket.close();
            }
        } else if spoken && is_idle && socket.send_queue() == 0 {
            socket.abort();
        }
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        let Some(secure) = &mut self.secure else {
            self.asked.extend_from_slice(bytes);
            return;
        };
        while !bytes.is_empty() && !self.closing {
            let taken = secure.read_tls(&mut bytes).expect("taken out each time");
            // Data behind close_notify, or behind an invalid record, is ignored.
            self.closing = secure.process_new_packets().is_err() || taken == 0;
            let mut text = [0; 4096];
            while let Ok(count @ 1..) = secure.reader().read(&mut text) {
                self.asked.extend_from_slice(&text[..count]);
            }
        }
    }

    fn say(&mut self, text: &[u8]) {
        self.answer.clear();
        self.written = 0;
        match &mut self.secure {
            None => self.answer.extend_from_slice(text),
            Some(secure) => {
                secure.set_buffer_limit(None);
                secure.writer().write_all(text).expect("without a limit");
            }
        }
        self.take_output();
    }

    fn send_stream_end(&mut self) {
        if let Some(secure) = &mut self.secure
            && !core::mem::replace(&mut self.has_sent_stream_end, true)
        {
            secure.send_close_notify();
            self.take_output();
        }
    }

    fn take_output(&mut self) {
        while let Some(secure) = self.secure.as_mut().filter(|secure| secure.wants_write()) {
            secure
                .write_tls(&mut self.answer)
                .expect("a vector takes everything");
        }
    }
}

fn listening(port: u16) -> tcp::Socket<'static> {
    let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
    let mut socket = tcp::Socket::new(buffer(8192), buffer(65_536));
    socket.listen(port).expect("a new socket");
    socket.set_timeout(Some(smoltcp::time::Duration::from_secs(900)));
    socket
}

/// The reply to one head, and whether the connection closes after it.
fn answer(head: &[u8], answers: &BTreeMap<Vec<u8>, Expected>) -> (Vec<u8>, bool) {
    let Some(expected) = answers.get(head) else {
        return (
            b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n".to_vec(),
            true,
        );
    };
    let (mut fields, mut body) = (String::new(), Vec::new());
    match expected.body {
        ExpectedBody::Text if expected.status == 301 => {
            fields = format!("Location: {DIRECTORY}\r\n");
        }
        ExpectedBody::Nothing | ExpectedBody::Text => {}
        ExpectedBody::Part {
            object,
            offset_bytes,
            length_bytes,
        } => {
            if expected.status == 206 {
                fields = content_range(&object, offset_bytes, length_bytes);
            }
            if !expected.head {
                append(&mut body, &object, offset_bytes, length_bytes);
            }
        }
        ExpectedBody::Parts { object, parts } => {
            fields = "Content-Type: multipart/byteranges; boundary=cut\r\n".to_owned();
            for &(offset_bytes, length_bytes) in parts.as_slice() {
                body.extend(b"\r\n--cut\r\nContent-Type: model\r\n");
                body.extend(content_range(&object, offset_bytes, length_bytes).into_bytes());
                body.extend(b"\r\n");
                append(&mut body, &object, offset_bytes, length_bytes);
            }
            body.extend(b"\r\n--cut--\r\n");
        }
    }
    let length = match expected.body {
        ExpectedBody::Part { length_bytes, .. } => length_bytes,
        _ => body.len() as u64,
    };
    let close = if expected.close {
        "Connection: close\r\n"
    } else {
        ""
    };
    let status = expected.status;
    let head =
        format!("HTTP/1.1 {status} Model\r\nContent-Length: {length}\r\n{fields}{close}\r\n");
    ([head.into_bytes(), body].concat(), expected.close)
}

fn content_range(object: &ObjectPlan, offset: u64, length: u64) -> String {
    format!(
        "Content-Range: bytes {offset}-{}/{}\r\n",
        offset + length - 1,
        object.size_bytes
    )
}

fn append(body: &mut Vec<u8>, object: &ObjectPlan, offset: u64, length: u64) {
    let from = body.len();
    body.resize(from + usize::try_from(length).expect("small"), 0);
    object.content.fill(offset, &mut body[from..]);
}

impl Server for ModelServer {
    fn step(&mut self, now: Instant) -> bool {
        let mut moved = false;
        while let Some(frame) = pop_due(&mut self.network.borrow_mut().to_server, now) {
            self.device.arrived.push_back(frame);
            moved = true;
        }
        if !moved && self.due.is_none_or(|due| due > now) {
            return false;
        }
        let moment = smoltcp_instant(now);
        self.interface
            .poll(moment, &mut self.device, &mut self.sockets);
        self.talk(now);
        self.interface
            .poll(moment, &mut self.device, &mut self.sockets);
        while let Some(mut frame) = self.device.leaving.pop_front() {
            if self.alters_retransmissions && self.retransmissions.is_repeat(&frame) {
                swap_payload_words(&mut frame);
            }
            self.retransmissions.handle_frame(&frame);
            self.network.borrow_mut().carry(now, &frame, false);
        }
        let tcp = self
            .interface
            .poll_at(moment, &self.sockets)
            .map(our_instant);
        let idle_at = self
            .talks
            .iter()
            .filter_map(|(_, talk)| Some(talk.received_at? + REPLY_TIMEOUT));
        self.due = idle_at.filter(|at| *at > now).chain(tcp).min();
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_event(&mut self, _now: Instant, event: Event) {
        panic!("the model has no {event:?}");
    }

    fn resources(&self) -> Resources {
        let open = |handle| {
            let state = self.sockets.get::<tcp::Socket<'_>>(handle).state();
            !matches!(state, State::Listen | State::Closed | State::TimeWait)
        };
        let connections = self
            .talks
            .iter()
            .filter(|(handle, _)| open(*handle))
            .count();
        Resources {
            slots: 4,
            free_slots: 4,
            connections,
            reads_in_flight: 0,
        }
    }

    fn held_objects(&mut self, _now: Instant) -> u64 {
        0
    }

    fn failure(&self) -> Option<&str> {
        None
    }

    fn violations(&self) -> Vec<Violation> {
        self.retransmissions.complaints().to_vec()
    }

    /// It has a socket for each client.
    fn may_have_been_full(&self, _server: End, _client: End) -> bool {
        false
    }

    /// It has no disk.
    fn reading(&self) -> Reading {
        Reading::default()
    }

    fn plant(&mut self, canary: Canary) {
        self.alters_retransmissions = canary == Canary::Repeat;
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![(REPEATED_BYTES, self.retransmissions.repeated_bytes())]
    }
}
