//! smoltcp as a client in real time, with every option it has.
//!
//! One thread: frames of the socket pair in and out, all connections in turn. It refuses any reply but
//! 200 with the right length and bytes. Bounded by: [`LIMIT`] for everything;
//! `HEAD_BYTES_MAX` for a reply's head.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{self, RecvError, State};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use testbed::interrupt;
use testbed::namespace::VethPair;

use super::{Report, SLICE, await_input};
use crate::run::LIMIT;
use crate::scenario::{
    CLIENT_MAC, CLIENT_V4, CLIENT_V6, CONNECTIONS, FILE_BYTES, PORT, PREFIX_V4, PREFIX_V6, content,
    file_name,
};

/// The longest head of a reply.
const HEAD_BYTES_MAX: usize = 4096;

/// An Ethernet header and an MTU of 1500.
const FRAME_BYTES_MAX: usize = 1514;

/// Receive buffer of a connection: more than 64 KiB, so windows are scaled.
const RECEIVE_BYTES: usize = 1 << 18;

/// Transmit buffer of a connection: a request.
const TRANSMIT_BYTES: usize = 2048;

/// First local port.
const PORT_FIRST: u16 = 40_000;

/// Runs all connections to their ends, and stays until `is_over`.
pub(super) fn run(frames: OwnedFd, is_over: &mut dyn FnMut() -> Result<bool>) -> Result<Report> {
    rustix::io::ioctl_fionbio(&frames, true).context("a socket that does not block")?;
    let mut device = Frames {
        socket: File::from(frames),
    };
    let start = Instant::now();
    let mut interface = interface(&mut device, start)?;
    let mut sockets = SocketSet::new(Vec::new());
    let mut connections = (0..CONNECTIONS)
        .map(|index| Connection::open(index, &mut interface, &mut sockets))
        .collect::<Result<Vec<_>>>()?;
    loop {
        interface.poll(moment(start), &mut device, &mut sockets);
        let mut is_done = true;
        for (index, connection) in connections.iter_mut().enumerate() {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(connection.handle);
            let step = connection.step(socket);
            is_done &= step.with_context(|| format!("connection {index}"))?;
        }
        interface.poll(moment(start), &mut device, &mut sockets);
        if is_done && is_over()? {
            break;
        }
        ensure!(start.elapsed() < LIMIT, "it takes longer than {LIMIT:?}");
        interrupt::check()?;
        let wait = interface.poll_delay(moment(start), &sockets);
        let wait = wait.map_or(SLICE, |it| SLICE.min(it.into()));
        await_input(&device.socket, wait)?;
    }
    Ok(Report {
        connections: CONNECTIONS,
        replies: CONNECTIONS * FILE_BYTES.len() as u64,
        bytes: connections.iter().map(|it| it.bytes).sum(),
        ..Report::default()
    })
}

fn moment(start: Instant) -> smoltcp::time::Instant {
    let micros = i64::try_from(start.elapsed().as_micros()).unwrap_or(i64::MAX);
    smoltcp::time::Instant::from_micros(micros)
}

/// The timestamp value of a segment: milliseconds since the first one.
fn timestamp() -> u32 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    // RFC 7323 s4.1: modulo 2^32.
    u32::try_from(elapsed.as_millis() & 0xffff_ffff).unwrap_or(0)
}

fn interface(device: &mut Frames, start: Instant) -> Result<Interface> {
    let mac = HardwareAddress::Ethernet(EthernetAddress(CLIENT_MAC));
    let mut interface = Interface::new(Config::new(mac), device, moment(start));
    for (text, prefix) in [(CLIENT_V4, PREFIX_V4), (CLIENT_V6, PREFIX_V6)] {
        let address = IpCidr::new(ip(text)?, prefix);
        let mut is_added = false;
        interface.update_ip_addrs(|all| is_added = all.push(address).is_ok());
        ensure!(is_added, "no room for {text}");
    }
    Ok(interface)
}

fn ip(text: &str) -> Result<IpAddress> {
    let address: std::net::IpAddr = text.parse().with_context(|| format!("address {text}"))?;
    Ok(address.into())
}

/// One connection: requests one after the other, then its end.
struct Connection {
    handle: SocketHandle,
    /// Whether the server is asked to close behind the last reply; else the client closes.
    server_closes: bool,
    /// The file that is being fetched, or behind the last.
    file: usize,
    is_asked: bool,
    /// The head of the reply, as far as it has come; whole if `offset` is there.
    head: Vec<u8>,
    /// Bytes of the body that have come.
    offset: Option<u64>,
    /// Bytes of all bodies.
    bytes: u64,
}

impl Connection {
    fn open(index: u64, interface: &mut Interface, sockets: &mut SocketSet<'_>) -> Result<Self> {
        let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(RECEIVE_BYTES), buffer(TRANSMIT_BYTES));
        socket.set_tsval_generator(Some(timestamp));
        let server = [VethPair::ATLAS_V4, VethPair::ATLAS_V6][usize::from(index % 2 == 1)];
        let port = PORT_FIRST + u16::try_from(index).context("few connections")?;
        socket
            .connect(interface.context(), (ip(server)?, PORT), port)
            .map_err(|error| anyhow!("connecting: {error}"))?;
        Ok(Self {
            handle: sockets.add(socket),
            server_closes: (index / 2).is_multiple_of(2),
            file: 0,
            is_asked: false,
            head: Vec::new(),
            offset: None,
            bytes: 0,
        })
    }

    /// Does what can be done now; whether both sides have closed.
    fn step(&mut self, socket: &mut tcp::Socket<'_>) -> Result<bool> {
        loop {
            if self.file < FILE_BYTES.len() && !self.is_asked && socket.can_send() {
                self.ask(socket)?;
            }
            match socket.recv(|bytes| (bytes.len(), self.take(bytes))) {
                // A look at an empty buffer.
                Ok(Ok(0)) | Err(RecvError::InvalidState) => break,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(RecvError::Finished) => {
                    ensure!(self.file == FILE_BYTES.len(), "it ends before all replies");
                    socket.close();
                    return Ok(matches!(socket.state(), State::Closed | State::TimeWait));
                }
            }
        }
        if self.file == FILE_BYTES.len() && !self.server_closes && socket.may_send() {
            socket.close();
        }
        let is_open = socket.state() != State::Closed;
        ensure!(is_open, "closed or refused, at file {}", self.file);
        Ok(false)
    }

    fn ask(&mut self, socket: &mut tcp::Socket<'_>) -> Result<()> {
        let is_last = self.file + 1 == FILE_BYTES.len();
        let close = if is_last && self.server_closes {
            "Connection: close\r\n"
        } else {
            ""
        };
        let name = file_name(FILE_BYTES[self.file]);
        let text = format!("GET /{name} HTTP/1.1\r\nHost: atlas.test\r\n{close}\r\n");
        let sent = socket.send_slice(text.as_bytes());
        let sent = sent.map_err(|error| anyhow!("asking: {error}"))?;
        ensure!(sent == text.len(), "a request does not fit the buffer");
        self.is_asked = true;
        Ok(())
    }

    /// Takes what has arrived; how many bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = *FILE_BYTES
                .get(self.file)
                .context("bytes behind the last reply")?;
            ensure!(self.is_asked, "bytes behind a reply");
            let Some(offset) = self.offset else {
                rest = self.take_head(size, rest)?;
                continue;
            };
            let length = usize::try_from(size - offset)?.min(rest.len());
            let (now, later) = rest.split_at(length);
            let right = content(size).check(offset, now);
            right.with_context(|| file_name(size))?;
            rest = later;
            self.bytes += length as u64;
            self.offset = Some(offset + length as u64);
            if self.offset == Some(size) {
                (self.file, self.is_asked, self.offset) = (self.file + 1, false, None);
            }
        }
        Ok(bytes.len())
    }

    /// Takes bytes of a head; what is left behind it.
    fn take_head<'a>(&mut self, size: u64, bytes: &'a [u8]) -> Result<&'a [u8]> {
        for (index, byte) in bytes.iter().enumerate() {
            ensure!(self.head.len() < HEAD_BYTES_MAX, "a head without an end");
            self.head.push(*byte);
            if self.head.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8(std::mem::take(&mut self.head))?;
                check_head(&head, size)?;
                self.offset = Some(0);
                return Ok(&bytes[index + 1..]);
            }
        }
        Ok(&[])
    }
}

/// The head must be that of the whole file.
fn check_head(head: &str, size: u64) -> Result<()> {
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    ensure!(status.starts_with("HTTP/1.1 200 "), "status: {status}");
    let fields = lines.filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match lengths.next() {
        Some((_, value)) if value.trim() == size.to_string() => Ok(()),
        found => bail!("Content-Length {found:?}, not {size}"),
    }
}

/// The client's end of the socket pair: a frame a message.
struct Frames {
    socket: File,
}

struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(&self.0)
    }
}

struct Sending<'a>(&'a File);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        let mut socket = self.0;
        // A frame that finds no room is lost, as on any link.
        let _ = socket.write(&frame);
        result
    }
}

impl phy::Device for Frames {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _now: smoltcp::time::Instant) -> Option<(Received, Sending<'_>)> {
        let mut frame = vec![0; FRAME_BYTES_MAX];
        let bytes = loop {
            match self.socket.read(&mut frame) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return None,
                Ok(bytes) => break bytes,
            }
        };
        frame.truncate(bytes);
        Some((Received(frame), Sending(&self.socket)))
    }

    fn transmit(&mut self, _now: smoltcp::time::Instant) -> Option<Sending<'_>> {
        Some(Sending(&self.socket))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        capabilities
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_with_the_right_length_is_taken() {
        let head = |status, length| {
            format!("HTTP/1.1 {status}\r\nServer: x\r\ncontent-LENGTH: {length}\r\n\r\n")
        };
        assert!(check_head(&head("200 OK", 7), 7).is_ok());
        assert!(check_head(&head("200 OK", 8), 7).is_err());
        assert!(check_head(&head("206 Partial Content", 7), 7).is_err());
        assert!(check_head("HTTP/1.1 200 OK\r\n\r\n", 7).is_err());
    }

    fn connection() -> Connection {
        Connection {
            handle: SocketHandle::default(),
            server_closes: false,
            file: 1,
            is_asked: true,
            head: Vec::new(),
            offset: None,
            bytes: 0,
        }
    }

    fn reply() -> Vec<u8> {
        let size = FILE_BYTES[1];
        let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
        let head = bytes.len();
        bytes.resize(head + usize::try_from(size).unwrap(), 0);
        content(size).fill(0, &mut bytes[head..]);
        bytes
    }

    #[test]
    fn a_reply_is_the_same_however_it_is_cut() {
        for piece in [1, 7, 1_448, 100_000] {
            let mut connection = connection();
            for bytes in reply().chunks(piece) {
                assert_eq!(connection.take(bytes).unwrap(), bytes.len());
            }
            assert_eq!((connection.file, connection.bytes), (2, FILE_BYTES[1]));
            assert!(connection.take(b"x").is_err(), "nothing was asked for");
        }
    }

    #[test]
    fn one_wrong_byte_is_refused() {
        let mut bytes = reply();
        *bytes.last_mut().unwrap() ^= 1;
        let error = connection().take(&bytes).unwrap_err();
        assert!(format!("{error:#}").contains("15360"), "{error:#}");
    }
}
