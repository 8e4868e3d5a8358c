#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration as RealDuration;

use clock::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, IpCidr};
use wire::{Offload, Outgoing};

use super::{FRAME_BYTES_MAX, Relay, RelayConfig};
use crate::error::{SetupError, TransmitError};
use crate::{InterfaceAddress, Link};

const SERVER: [u8; 4] = [10, 77, 0, 2];
const SERVER_PORT: u16 = 80;

fn config(listen: SocketAddr) -> RelayConfig {
    RelayConfig {
        listen: vec![(listen, SERVER_PORT)],
        server: SERVER.into(),
        host_end: InterfaceAddress {
            address: [10, 77, 0, 1].into(),
            prefix_bits: 24,
        },
    }
}

/// The server's side: a stack over the relay's frames.
struct Server {
    relay: OverRelay,
    stack: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    start: std::time::Instant,
}

struct OverRelay(Relay);

struct Arrived(Vec<u8>);

struct Leaving<'a>(&'a mut Relay);

impl phy::Device for OverRelay {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _now: StackInstant) -> Option<(Arrived, Leaving<'_>)> {
        let mut frame = None;
        let mut sink = |received: crate::Received<'_>| frame = Some(received.frame.to_vec());
        self.0.receive(Instant::ZERO, 1, &mut sink).unwrap();
        Some((Arrived(frame?), Leaving(&mut self.0)))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        capabilities
    }
}

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        // In two pieces, as the server sends them.
        let (headers, payload) = frame.split_at(length.min(54));
        let frame = Outgoing {
            headers,
            payload: &[payload],
            offload: Offload::default(),
        };
        // What it has no room for is lost.
        let _ = self.0.transmit(Instant::ZERO, &frame);
        result
    }
}

impl Server {
    /// Listens; and where clients reach it.
    fn start() -> (Self, SocketAddr) {
        let relay = Relay::open(&config(([127, 0, 0, 1], 0).into())).unwrap();
        let address = relay.listens_at()[0];
        let mac = EthernetAddress(relay.capabilities().mac.0);
        let mut relay = OverRelay(relay);
        let mut stack = Interface::new(Config::new(mac.into()), &mut relay, StackInstant::ZERO);
        stack.update_ip_addrs(|all| {
            all.push(IpCidr::new(std::net::IpAddr::from(SERVER).into(), 24))
                .unwrap()
        });
        let buffer = || SocketBuffer::new(vec![0; 128 << 10]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.listen(SERVER_PORT).unwrap();
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        let start = std::time::Instant::now();
        let server = Self {
            relay,
            stack,
            sockets,
            handle,
            start,
        };
        (server, address)
    }

    /// Hands its socket over, and runs the stack once.
    fn poll<R>(&mut self, f: impl FnOnce(&mut Socket<'static>) -> R) -> R {
        let result = f(self.sockets.get_mut(self.handle));
        let micros = i64::try_from(self.start.elapsed().as_micros()).unwrap();
        let now = StackInstant::from_micros(micros);
        self.stack.poll(now, &mut self.relay, &mut self.sockets);
        result
    }

    /// The same, and lets others run.
    fn round<R>(&mut self, f: impl FnOnce(&mut Socket<'static>) -> R) -> R {
        let result = self.poll(f);
        // Both are on one processor, perhaps.
        thread::yield_now();
        result
    }

    /// Runs until the thread ends.
    fn until_ended<T>(
        &mut self,
        client: thread::JoinHandle<T>,
        mut f: impl FnMut(&mut Socket<'static>),
    ) -> T {
        while !client.is_finished() {
            self.round(&mut f);
        }
        client.join().unwrap()
    }
}

/// Bytes none of whose pieces looks like another.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33).to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// The request's bytes back, and a FIN behind the client's.
fn echo(socket: &mut Socket<'static>) {
    if socket.can_recv() && socket.can_send() {
        let room = socket.send_capacity() - socket.send_queue();
        let bytes = socket.recv(|bytes| {
            let length = bytes.len().min(room);
            (length, bytes[..length].to_vec())
        });
        assert_eq!(
            socket.send_slice(&bytes.as_ref().unwrap()[..]).unwrap(),
            bytes.unwrap().len()
        );
    }
    if socket.state() == State::CloseWait && !socket.can_recv() {
        socket.close();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client
        .set_read_timeout(Some(RealDuration::from_secs(60)))
        .unwrap();
    client
}

#[test]
fn all_bytes_pass_in_both_directions_also_to_a_client_that_reads_late() {
    let (mut server, address) = Server::start();
    let sent = pattern(3 << 20);
    let expected = sent.clone();
    let client = thread::spawn(move || {
        let mut client = connect(address);
        let mut writer = client.try_clone().unwrap();
        let writing = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        // All buffers on the way fill up before the first read.
        thread::sleep(RealDuration::from_millis(200));
        client.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        received
    });
    let received = server.until_ended(client, echo);
    assert_eq!(received.len(), expected.len());
    assert!(received == expected, "other bytes");
    let counters = server.relay.0.counters();
    assert!(counters.transmitted_bytes > 3 << 20 && counters.received_bytes > 3 << 20);
}

/// A reply whose end the server has sent and forgotten while much of it waits between it and a client that does not read:
/// that client, and the reply. `is_closed`: the client has closed its side before.
fn reply_that_waits(
    server: &mut Server,
    address: SocketAddr,
    is_closed: bool,
) -> (TcpStream, Vec<u8>) {
    let mut client = connect(address);
    client.set_nonblocking(true).unwrap();
    while server.round(|socket| socket.state()) != State::Established {}
    if is_closed {
        client.shutdown(Shutdown::Write).unwrap();
        while server.round(|socket| socket.state()) != State::CloseWait {}
    }
    let sent = pattern(16 << 20);
    let (mut offset, mut read, mut piece) = (0, Vec::new(), [0; 4 << 10]);
    // As much as there is room for: then some bytes are taken for those that come.
    let mut rounds_without = 0;
    while offset < sent.len() && rounds_without < 5_000 {
        let length = server.round(|socket| socket.send_slice(&sent[offset..]).unwrap());
        offset += length;
        rounds_without = if length > 0 { 0 } else { rounds_without + 1 };
    }
    while server.round(|socket| socket.send_queue()) > 0 {
        if let Ok(length) = client.read(&mut piece) {
            read.extend_from_slice(&piece[..length]);
        }
    }
    assert!(offset < sent.len(), "all buffers are full");
    server.round(|socket| socket.close());
    assert!(read[..] == sent[..read.len()]);
    client.set_nonblocking(false).unwrap();
    (client, sent[read.len()..offset].to_vec())
}

#[test]
fn who_reads_late_gets_all_and_an_end_though_the_server_knows_nothing_of_the_connection_any_more() {
    for is_closed in [true, false] {
        let (mut server, address) = Server::start();
        let (mut client, expected) = reply_that_waits(&mut server, address, is_closed);
        let forgotten = if is_closed {
            State::Closed
        } else {
            State::FinWait2
        };
        while server.round(|socket| socket.state()) != forgotten {}
        // What a server does whose client does not close: it answers all that comes by a reset.
        server.round(Socket::abort);
        let client = thread::spawn(move || {
            let mut received = Vec::new();
            client.read_to_end(&mut received).map(|_| received)
        });
        let received = server.until_ended(client, |_| ()).unwrap();
        assert_eq!(received.len(), expected.len(), "{is_closed}");
        assert!(received == expected, "other bytes");
    }
}

#[test]
fn a_fin_is_an_end_though_a_reset_comes_right_behind_it() {
    let (mut server, address) = Server::start();
    for _ in 0..100 {
        let mut client = connect(address);
        while server.round(|socket| socket.state()) != State::Established {}
        server.poll(|socket| {
            assert_eq!(socket.send_slice(b"reply").unwrap(), 5);
            socket.close();
        });
        server.poll(Socket::abort);
        let client = thread::spawn(move || {
            let mut received = Vec::new();
            client.read_to_end(&mut received).map(|_| received)
        });
        assert_eq!(server.until_ended(client, |_| ()).unwrap(), b"reply");
        server.round(|socket| socket.listen(SERVER_PORT).unwrap());
    }
}

#[test]
fn a_reset_of_the_server_is_a_reset_to_the_client_and_never_an_end() {
    let (mut server, address) = Server::start();
    let client = thread::spawn(move || {
        let mut client = connect(address);
        client.write_all(b"x").unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap_err().kind()
    });
    let ended = server.until_ended(client, |socket| {
        if socket.can_recv() {
            socket.abort();
        }
    });
    assert_eq!(ended, ErrorKind::ConnectionReset);
}

#[test]
fn a_port_that_the_server_refuses_is_a_reset_to_the_client() {
    let (mut server, address) = Server::start();
    server.round(|socket| {
        socket.abort();
    });
    let client = thread::spawn(move || {
        let mut received = Vec::new();
        connect(address)
            .read_to_end(&mut received)
            .unwrap_err()
            .kind()
    });
    assert_eq!(
        server.until_ended(client, |_| ()),
        ErrorKind::ConnectionReset
    );
}

#[test]
fn a_client_that_resets_resets_the_server_s_connection() {
    let (mut server, address) = Server::start();
    let client = connect(address);
    while server.round(|socket| socket.state()) != State::Established {}
    rustix::net::sockopt::set_socket_linger(&client, Some(RealDuration::ZERO)).unwrap();
    drop(client);
    while server.round(|socket| socket.state()) != State::Closed {}
}

#[test]
fn what_the_server_sent_arrives_though_its_link_is_dropped() {
    let (mut server, address) = Server::start();
    let sent = pattern(100_000);
    let mut client = connect(address);
    while server.round(|socket| socket.state()) != State::Established {}
    server.round(|socket| {
        assert_eq!(socket.send_slice(&sent).unwrap(), sent.len());
        socket.close();
    });
    while server.round(|socket| socket.send_queue()) > 0 {}
    drop(server);
    let mut received = vec![0; sent.len()];
    client.read_exact(&mut received).unwrap();
    assert!(received == sent, "other bytes");
}

#[test]
fn a_port_that_is_taken_says_what_to_do() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let error = Relay::open(&config(address)).unwrap_err();
    let errno = libc::EADDRINUSE;
    assert_eq!(error, SetupError::Listen { address, errno });
    assert!(error.may_pass());
    assert!(error.to_string().contains("ss -ltnp"), "{error}");
}

#[test]
fn the_largest_frame_passes_and_one_byte_more_does_not() {
    let mut relay = Relay::open(&config(([127, 0, 0, 1], 0).into())).unwrap();
    let bytes = vec![0; FRAME_BYTES_MAX];
    let mut send = |payload: &[u8]| {
        let frame = Outgoing {
            headers: &bytes[..54],
            payload: &[payload],
            offload: Offload::default(),
        };
        relay.transmit(Instant::ZERO, &frame)
    };
    assert_eq!(send(&bytes[54..]), Ok(crate::Sent::Copied));
    assert_eq!(send(&bytes[53..]), Err(TransmitError::Lost(libc::EMSGSIZE)));
}
