//! Sockets: made, connected, read and written without ever waiting.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fault::{Fault, FaultKind};

/// Descriptors of a process besides its connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// The most that is seen of one read: a record.
const COPY_BYTES_MAX: usize = 1 << 16;

/// The most a single discarding read may take: more than a socket ever holds.
const DISCARD_BYTES: usize = 16 << 20;

/// Makes sure that so many sockets may be open.
///
/// # Errors
/// The limit cannot be raised; the error says how an operator can.
pub(crate) fn raise_descriptor_limit(connections: usize) -> Result<()> {
    let needed = connections as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    let current = Some(needed);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).with_context(|| {
        let hard = limit.maximum.unwrap_or(u64::MAX);
        format!(
            "{connections} connections need {needed} file descriptors and {hard} are allowed: \
             run `ulimit -Hn {needed}` as root first (fs.nr_open may have to be raised), or \
             run several loads at once"
        )
    })
}

/// Begins to connect.
///
/// # Errors
/// No socket, no port, no route.
pub(crate) fn open(server: SocketAddr) -> Result<OwnedFd, Fault> {
    begin(server).map_err(|error| {
        let why = match error {
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => {
                ": no port is free; widen net.ipv4.ip_local_port_range"
            }
            Errno::MFILE | Errno::NFILE => ": too many files open, see ulimit -n",
            _ => "",
        };
        Fault::new(
            FaultKind::Connect,
            format!("connecting to {server}: {error}{why}"),
        )
    })
}

fn begin(server: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Whether a connection that was begun stands; an event must have told that it is decided.
///
/// # Errors
/// It failed.
pub(crate) fn connected(socket: &OwnedFd, server: SocketAddr) -> Result<(), Fault> {
    let outcome = sockopt::socket_error(socket).and_then(|it| it);
    outcome.map_err(|error| {
        Fault::new(
            FaultKind::Connect,
            format!("connecting to {server}: {error}"),
        )
    })
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(usize),
    /// Nothing waits.
    Nothing,
    /// Nothing will come any more.
    End,
}

/// What reads go to: shared by all connections.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Bytes to be seen.
    pub(crate) copy: Vec<u8>,
    /// Never written: `MSG_TRUNC` on TCP throws the bytes away in the kernel. Never touched, so it
    /// takes no memory either.
    discard: Vec<u8>,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            copy: vec![0; COPY_BYTES_MAX],
            discard: vec![0; DISCARD_BYTES],
        }
    }

    /// Takes at most so many bytes to the front of `copy`.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn receive(&mut self, socket: &OwnedFd, bytes: usize) -> Result<Received, Fault> {
        let bytes = bytes.min(self.copy.len());
        let into = self.copy.get_mut(..bytes).unwrap_or_default();
        receive(socket, into, RecvFlags::empty())
    }

    /// Throws away at most so many bytes.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn discard(&mut self, socket: &OwnedFd, bytes: u64) -> Result<Received, Fault> {
        let bytes = usize::try_from(bytes).map_or(DISCARD_BYTES, |it| it.min(DISCARD_BYTES));
        let into = self.discard.get_mut(..bytes).unwrap_or_default();
        receive(socket, into, RecvFlags::TRUNC)
    }
}

fn receive(socket: &OwnedFd, into: &mut [u8], flags: RecvFlags) -> Result<Received, Fault> {
    debug_assert!(!into.is_empty(), "a read of nothing looks like the end");
    loop {
        return match recv(socket, &mut *into, flags) {
            Ok((_, 0)) => Ok(Received::End),
            Ok((_, bytes)) => Ok(Received::Bytes(bytes)),
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(Errno::INTR) => continue,
            Err(error) => Err(Fault::of_socket("receiving", error)),
        };
    }
}

/// Sends what it can of `unsent` and keeps the rest.
///
/// # Errors
/// The socket's.
pub(crate) fn flush(socket: &OwnedFd, unsent: &mut Vec<u8>) -> Result<(), Fault> {
    while !unsent.is_empty() {
        match send(socket, unsent, SendFlags::NOSIGNAL) {
            Ok(bytes) => drop(unsent.drain(..bytes)),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Fault::of_socket("sending", error)),
        }
    }
    // Sixty thousand connections are not to keep a request each.
    unsent.shrink_to(0);
    Ok(())
}
