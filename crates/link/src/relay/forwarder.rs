//! The second stack of a relay: one thread that passes bytes between sockets of the host and connections of
//! smoltcp to the server.
//!
//! It refuses to change, keep or look at a byte. An end is passed on as what it was: a FIN as a FIN behind the last
//! byte, a reset as a reset, so that a client never takes a part for the whole. Bounds: [`CONNECTIONS_MAX`]
//! connections (further ones wait in the host's queue); what a connection holds; [`CLOSING_TIME_MAX`] for
//! a client that does not close, [`CLIENT_TIME_MAX_MS`] for one that does not read.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet,
};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::Socket as AnySocket;
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

use super::{FRAME_BYTES_MAX, RelayConfig, host_mac};
use crate::error::SetupError;
use crate::sys::errno_of;

/// Most connections at once.
pub const CONNECTIONS_MAX: usize = 256;

/// How long the thread goes on after the link's end, for bytes that the host's TCP has not taken yet.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// Bytes of one connection that the host's TCP has not taken yet: four packets of the inner side and more. `[guess]`
const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes of one connection's requests on their way to the server. `[guess]`
const SEND_BYTES: usize = 32 << 10;

/// What all connections hold at most, bytes.
pub const BYTES_MAX: usize = CONNECTIONS_MAX * (RECEIVE_BYTES + SEND_BYTES);

/// How long a client may leave its side open behind the server's FIN.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a client may take nothing of what is before that FIN, until the host's TCP gives it up.
const CLIENT_TIME_MAX_MS: u32 = 60_000;

/// Local ports of the inner side: all but those that a privilege is for.
const PORTS: std::ops::Range<u16> = 1_024..65_535;

/// The sockets of the host, and the stack on the inner side.
pub(super) struct Forwarder {
    /// Each with the server's port.
    listeners: Vec<(TcpListener, u16)>,
    server: IpAddr,
    stack: Interface,
    sockets: SocketSet<'static>,
    port: Port,
    connections: Vec<Connection>,
    /// The next local port.
    local_port: u16,
    start: Instant,
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Forwarder")
            .field("listens_at", &self.listens_at())
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

/// A client of the host, and the connection to the server that stands for it.
struct Connection {
    client: TcpStream,
    inner: Inner,
    /// The client has closed its side, and that was passed on.
    is_client_done: bool,
    /// The server's FIN has come. It is passed on behind the bytes before it, and a reset that follows it is not.
    has_fin: bool,
    /// When the server's FIN was passed on, if it was.
    server_done_at: Option<Instant>,
    is_over: bool,
}

/// A connection to the server.
enum Inner {
    Open(SocketHandle),
    /// Both ends have closed it, and the client has not taken all bytes yet: the stack would throw them away when its TIME-WAIT
    /// is over, and announce room for more to a server that knows nothing of it any more.
    Closed(Box<Socket<'static>>),
}

impl Inner {
    fn socket<'a>(&'a self, sockets: &'a SocketSet<'static>) -> &'a Socket<'static> {
        match self {
            Self::Open(handle) => sockets.get(*handle),
            Self::Closed(socket) => socket,
        }
    }

    fn socket_mut<'a>(
        &'a mut self,
        sockets: &'a mut SocketSet<'static>,
    ) -> &'a mut Socket<'static> {
        match self {
            Self::Open(handle) => sockets.get_mut(*handle),
            Self::Closed(socket) => socket,
        }
    }

    /// Takes the connection out of the stack if both ends have closed it and there are bytes for the client.
    fn keep_bytes(&mut self, sockets: &mut SocketSet<'static>) {
        let Self::Open(handle) = *self else { return };
        let socket = sockets.get::<Socket<'_>>(handle);
        if socket.state() == State::TimeWait && socket.can_recv() {
            let AnySocket::Tcp(socket) = sockets.remove(handle);
            *self = Self::Closed(Box::new(socket));
        }
    }
}

impl Forwarder {
    /// Listens on all of `config.listen`; `frames` leads to the server.
    pub(super) fn open(config: &RelayConfig, frames: UnixDatagram) -> Result<Self, SetupError> {
        let listen = |&(address, server_port): &(SocketAddr, u16)| {
            let failed = |error: io::Error| SetupError::Listen {
                address,
                errno: errno_of(&error),
            };
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Ok((listener, server_port))
        };
        let listeners = config.listen.iter().map(listen);
        let listeners = listeners.collect::<Result<Vec<_>, SetupError>>()?;
        let mut port = Port {
            frames,
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
        };
        let seed = RandomState::new().hash_one(0);
        let mut stack_config = Config::new(EthernetAddress(host_mac().0).into());
        stack_config.random_seed = seed;
        let mut stack = Interface::new(stack_config, &mut port, StackInstant::ZERO);
        let end = config.host_end;
        stack.update_ip_addrs(|addresses| {
            let pushed = addresses.push(IpCidr::new(end.address.into(), end.prefix_bits));
            debug_assert!(pushed.is_ok(), "there is room for one address");
        });
        let span = u64::from(PORTS.end - PORTS.start);
        Ok(Self {
            listeners,
            server: config.server,
            stack,
            sockets: SocketSet::new(Vec::new()),
            port,
            connections: Vec::new(),
            local_port: PORTS.start + u16::try_from(seed % span).unwrap_or_default(),
            start: Instant::now(),
        })
    }

    pub(super) fn listens_at(&self) -> Vec<SocketAddr> {
        let bound = |(listener, _): &(TcpListener, u16)| listener.local_addr().ok();
        self.listeners.iter().filter_map(bound).collect()
    }

    /// Passes bytes on until the other end of `end` is closed.
    pub(super) fn run(mut self, end: &UnixStream) {
        let mut end_at = None;
        loop {
            if end_at.is_none() {
                self.accept();
            }
            // Before and behind the passing on: frames become bytes, and room for bytes becomes frames.
            self.drive_stack();
            let is_moving = self.pass_on();
            self.drive_stack();
            if end_at.is_none() && is_closed(end) {
                end_at = Some(Instant::now() + DRAIN_TIME_MAX);
            }
            if end_at.is_some_and(|at| self.is_drained() || Instant::now() >= at) {
                return;
            }
            if !is_moving {
                self.sleep(end, end_at);
            }
        }
    }

    fn now(&self) -> StackInstant {
        let micros = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        StackInstant::from_micros(micros)
    }

    fn drive_stack(&mut self) {
        let now = self.now();
        let (stack, port, sockets) = (&mut self.stack, &mut self.port, &mut self.sockets);
        stack.poll_maintenance(now);
        // Packet by packet: of a FIN and a reset behind it, the stack would show the reset alone.
        loop {
            match stack.poll_ingress_single(now, port, sockets) {
                PollIngressSingleResult::None => break,
                PollIngressSingleResult::PacketProcessed => {}
                PollIngressSingleResult::SocketStateChanged => {
                    for connection in &mut self.connections {
                        connection.note_fin(sockets);
                    }
                }
            }
        }
        while stack.poll_egress(now, port, sockets) == PollResult::SocketStateChanged {}
    }

    /// Takes clients while there is room.
    fn accept(&mut self) {
        for (listener, server_port) in &self.listeners {
            while self.connections.len() < CONNECTIONS_MAX {
                // No descriptor, or the client has gone: the next round tries again.
                let Ok((client, _)) = listener.accept() else {
                    break;
                };
                if client.set_nonblocking(true).is_err() {
                    continue;
                }
                // Segments are as large as they come; waiting for more only delays.
                let _ = client.set_nodelay(true);
                let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
                let mut socket = Socket::new(buffer(RECEIVE_BYTES), buffer(SEND_BYTES));
                socket.set_ack_delay(None);
                socket.set_nagle_enabled(false);
                let local = self.local_port;
                self.local_port = if local + 1 < PORTS.end {
                    local + 1
                } else {
                    PORTS.start
                };
                let remote = IpEndpoint::new(self.server.into(), *server_port);
                if socket.connect(self.stack.context(), remote, local).is_err() {
                    continue;
                }
                self.connections.push(Connection {
                    client,
                    inner: Inner::Open(self.sockets.add(socket)),
                    is_client_done: false,
                    has_fin: false,
                    server_done_at: None,
                    is_over: false,
                });
            }
        }
    }

    /// Moves bytes in both directions; whether any moved, or a connection ended.
    fn pass_on(&mut self) -> bool {
        let now = Instant::now();
        let mut is_moving = false;
        for connection in &mut self.connections {
            is_moving |= connection.pass_on(&mut self.sockets, now);
        }
        let (sockets, before) = (&mut self.sockets, self.connections.len());
        self.connections.retain(|connection| {
            let Inner::Open(handle) = connection.inner else {
                return !connection.is_over;
            };
            let socket = sockets.get::<Socket<'_>>(handle);
            // An aborted one is kept until its reset has left.
            let is_aborting = socket.remote_endpoint().is_some() && socket.state() == State::Closed;
            let is_kept = !connection.is_over || is_aborting;
            if !is_kept {
                sockets.remove(handle);
            }
            is_kept
        });
        is_moving || self.connections.len() < before
    }

    /// Whether the host's TCP has all that the server sent.
    fn is_drained(&self) -> bool {
        let mut inner = self.connections.iter().map(|it| &it.inner);
        !inner.any(|inner| inner.socket(&self.sockets).can_recv())
    }

    /// Waits until something can be done.
    fn sleep(&mut self, end: &UnixStream, end_at: Option<Instant>) {
        let now = self.now();
        let stack = self.stack.poll_delay(now, &self.sockets);
        let mut wait = stack.map(|it| Duration::from_micros(it.total_micros()));
        let mut at_most = |limit: Duration| wait = Some(wait.map_or(limit, |it| it.min(limit)));
        if self
            .connections
            .iter()
            .any(|it| it.server_done_at.is_some())
        {
            at_most(Duration::from_secs(1));
        }
        if let Some(at) = end_at {
            at_most(at.saturating_duration_since(Instant::now()));
        }
        let mut fds = vec![PollFd::new(&self.port.frames, PollFlags::IN)];
        if end_at.is_none() {
            fds.push(PollFd::new(end, PollFlags::IN));
            if self.connections.len() < CONNECTIONS_MAX {
                let listeners = self.listeners.iter();
                fds.extend(listeners.map(|(it, _)| PollFd::new(it, PollFlags::IN)));
            }
        }
        for connection in &self.connections {
            let socket = connection.inner.socket(&self.sockets);
            let mut flags = PollFlags::empty();
            flags.set(
                PollFlags::IN,
                !connection.is_client_done && socket.can_send(),
            );
            flags.set(PollFlags::OUT, socket.can_recv());
            if !flags.is_empty() {
                fds.push(PollFd::new(&connection.client, flags));
            }
        }
        let wait = wait.and_then(|it| Timespec::try_from(it).ok());
        // Interrupted or not: the next round looks at everything.
        let _ = poll(&mut fds, wait.as_ref());
    }
}

impl Connection {
    fn pass_on(&mut self, sockets: &mut SocketSet<'static>, now: Instant) -> bool {
        if self.is_over {
            return false;
        }
        let was = (self.is_client_done, self.server_done_at);
        self.inner.keep_bytes(sockets);
        let is_moving = self.pass_requests(sockets) | self.pass_replies(sockets);
        if !self.is_over {
            self.pass_ends(sockets, now);
        }
        is_moving || self.is_over || was != (self.is_client_done, self.server_done_at)
    }

    /// From the client to the server.
    fn pass_requests(&mut self, sockets: &mut SocketSet<'static>) -> bool {
        let socket = self.inner.socket_mut(sockets);
        let mut moved = 0;
        while !self.is_client_done && socket.can_send() {
            let client = &mut self.client;
            let read = socket.send(|room| match client.read(room) {
                Ok(length) => (length, Ok(length)),
                Err(error) => (0, Err(error.kind())),
            });
            match read {
                Ok(Ok(0)) => {
                    self.is_client_done = true;
                    socket.close();
                }
                Ok(Ok(length)) => moved += length,
                Ok(Err(ErrorKind::WouldBlock | ErrorKind::Interrupted)) | Err(_) => break,
                Ok(Err(_)) => {
                    socket.abort();
                    self.is_over = true;
                    break;
                }
            }
        }
        moved > 0
    }

    /// From the server to the client.
    fn pass_replies(&mut self, sockets: &mut SocketSet<'static>) -> bool {
        let socket = self.inner.socket_mut(sockets);
        let mut moved = 0;
        while !self.is_over && socket.can_recv() {
            let client = &mut self.client;
            let written = socket.recv(|bytes| match client.write(bytes) {
                Ok(length) => (length, Ok(length)),
                Err(error) => (0, Err(error.kind())),
            });
            match written {
                Ok(Ok(length)) => moved += length,
                Ok(Err(ErrorKind::WouldBlock | ErrorKind::Interrupted)) | Err(_) => break,
                Ok(Err(_)) => {
                    socket.abort();
                    self.is_over = true;
                }
            }
        }
        moved > 0
    }

    /// Notes whether the server's FIN has come.
    fn note_fin(&mut self, sockets: &SocketSet<'static>) {
        let state = self.inner.socket(sockets).state();
        let is_behind_fin = matches!(
            state,
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        if is_behind_fin && !self.has_fin {
            self.has_fin = true;
            // The server may have forgotten the connection, so only this bounds how long the client takes.
            let _ = sockopt::set_tcp_user_timeout(&self.client, CLIENT_TIME_MAX_MS);
        }
    }

    /// Passes a FIN or a reset of the server on, once the client has all before it.
    fn pass_ends(&mut self, sockets: &mut SocketSet<'static>, now: Instant) {
        let socket = self.inner.socket_mut(sockets);
        if socket.can_recv() {
            return;
        }
        if self.has_fin && self.server_done_at.is_none() {
            self.server_done_at = Some(now);
            let _ = self.client.shutdown(std::net::Shutdown::Write);
        }
        match (socket.state(), self.server_done_at) {
            (State::TimeWait, Some(_)) if self.is_client_done => self.is_over = true,
            (State::Closed, Some(_)) => self.is_over = true,
            (State::Closed, None) => {
                // A reset, also of a connection that was never made.
                let at_once = Some(Duration::ZERO);
                let _ = sockopt::set_socket_linger(&self.client, at_once);
                self.is_over = true;
            }
            (_, Some(at)) if now.duration_since(at) >= CLOSING_TIME_MAX => {
                socket.abort();
                self.is_over = true;
            }
            _ => {}
        }
    }
}

fn is_closed(end: &UnixStream) -> bool {
    let mut fds = [PollFd::new(end, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// The device of the second stack.
struct Port {
    frames: UnixDatagram,
    /// Of the frame that passes.
    buffer: Box<[u8]>,
}

struct Arrived<'a>(&'a [u8]);

struct Leaving<'a>(&'a UnixDatagram);

impl phy::Device for Port {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _now: StackInstant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        let length = self.frames.recv(&mut self.buffer).ok()?;
        let frame = self.buffer.get(..length)?;
        Some((Arrived(frame), Leaving(&self.frames)))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Leaving<'_>> {
        Some(Leaving(&self.frames))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        capabilities
    }
}

impl phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        // A frame that the worker has no room for is lost, as on any wire; TCP sends it again.
        let _ = self.0.send(&frame);
        result
    }
}
