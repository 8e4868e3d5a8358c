//! Frames to and from a second TCP stack in this process, which passes bytes between its connections and
//! sockets of the host: a link that needs no right and no interface.
//!
//! The host listens at its own addresses, and a client's connection to the host becomes one from
//! [`RelayConfig::host_end`] to the server. So the server sees one client address, each byte is copied four times
//! more than on another link, and one thread does it all. It is for a first try, tests, and machines that permit no
//! other link; the worker's side of it is an ordinary link.
//!
//! Frames pass through a pair of datagram sockets, one frame each: the kernel takes a frame whole or not at all.
//! Nothing is lost between the two stacks but what the second one sends while the worker does not read.
//!
//! It refuses names of hosts, UDP, and connections that the server would open. Bounds: [`CONNECTIONS_MAX`]
//! connections, each with `RECEIVE_BYTES` and `SEND_BYTES` of memory and a socket of the host;
//! the kernel's limit on what waits between the sockets of a pair.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread::{self, JoinHandle};

use clock::Instant;
use wire::{ChecksumState, MacAddress, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{LinkError, SetupError, TransmitError};
use crate::interface::{InterfaceAddress, derived_mac};
use crate::sys::errno_of;
use crate::{Capabilities, ETHERNET_BYTES, Link, Received, Sent};

mod forwarder;
#[cfg(test)]
mod tests;

use forwarder::Forwarder;
pub use forwarder::{BYTES_MAX, CONNECTIONS_MAX, DRAIN_TIME_MAX};

/// Largest IP packet, bytes. A frame then fits the piece that the kernel allocates at once for a socket of a pair.
const MTU_BYTES: u16 = 32_768;

/// Largest frame either side sends, bytes.
const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + MTU_BYTES as usize;

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Addresses and ports of the host at which clients are taken, each with the server's port that it leads to.
    pub listen: Vec<(SocketAddr, u16)>,
    /// The server's address, on the inner side only.
    pub server: IpAddr,
    /// The address that all clients have on the inner side: another one of the server's subnet.
    pub host_end: InterfaceAddress,
}

/// The link. Dropping it waits until what the server has sent is with the host's TCP, at most
/// [`DRAIN_TIME_MAX`].
#[derive(Debug)]
pub struct Relay {
    frames: UnixDatagram,
    second_stack: SecondStack,
    buffer: Box<[u8]>,
    counters: LinkCounters,
}

/// What is at the other end of the frames.
#[derive(Debug)]
enum SecondStack {
    /// It has its sockets and no thread yet: a process with threads could not drop its privileges.
    Waiting(Box<Forwarder>),
    Running {
        thread: JoinHandle<()>,
        /// Its other end being closed ends the thread.
        end: UnixStream,
    },
    /// It could not be started, or has ended. Carries the errno.
    Ended(i32),
}

impl Relay {
    /// Listens. The thread starts with the first call of [`Link::receive`] or [`Link::transmit`].
    ///
    /// # Errors
    /// [`SetupError::Listen`], or another that the kernel gives a reason for.
    pub fn open(config: &RelayConfig) -> Result<Self, SetupError> {
        let failed = |error: std::io::Error| SetupError::Kernel {
            operation: "a pair of sockets",
            name: "relay".to_owned(),
            errno: errno_of(&error),
        };
        let (frames, theirs) = UnixDatagram::pair().map_err(failed)?;
        frames.set_nonblocking(true).map_err(failed)?;
        theirs.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            frames,
            second_stack: SecondStack::Waiting(Box::new(Forwarder::open(config, theirs)?)),
            buffer: vec![0; FRAME_BYTES_MAX + 1].into_boxed_slice(),
            counters: LinkCounters::default(),
        })
    }

    /// The addresses at which the host listens: with the port that the kernel chose where 0 was asked for.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        match &self.second_stack {
            SecondStack::Waiting(forwarder) => forwarder.listens_at(),
            SecondStack::Running { .. } | SecondStack::Ended(_) => Vec::new(),
        }
    }

    /// Starts the thread if there is none yet.
    ///
    /// # Errors
    /// The errno of why there is none.
    fn ensure_running(&mut self) -> Result<(), i32> {
        if let SecondStack::Running { thread, .. } = &self.second_stack
            && !thread.is_finished()
        {
            return Ok(());
        }
        match std::mem::replace(&mut self.second_stack, SecondStack::Ended(libc::EPIPE)) {
            SecondStack::Waiting(forwarder) => {
                let running = start(*forwarder);
                self.second_stack = match running {
                    Ok(running) => running,
                    Err(error) => SecondStack::Ended(errno_of(&error)),
                };
            }
            SecondStack::Running { .. } => {}
            ended @ SecondStack::Ended(_) => self.second_stack = ended,
        }
        match self.second_stack {
            SecondStack::Ended(errno) => Err(errno),
            _ => Ok(()),
        }
    }
}

fn start(forwarder: Forwarder) -> std::io::Result<SecondStack> {
    let (end, theirs) = UnixStream::pair()?;
    let thread = thread::Builder::new()
        .name("atlas-relay".to_owned())
        .spawn(move || forwarder.run(&theirs))?;
    Ok(SecondStack::Running { thread, end })
}

impl Drop for Relay {
    fn drop(&mut self) {
        let ended = SecondStack::Ended(libc::EPIPE);
        if let SecondStack::Running { thread, end } =
            std::mem::replace(&mut self.second_stack, ended)
        {
            drop(end);
            // A panic there was told by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Link for Relay {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: server_mac(),
            mtu_bytes: MTU_BYTES,
            segmentation_bytes_max: 0,
            checksum_offload: false,
        }
    }

    fn receive(
        &mut self,
        _now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        self.ensure_running().map_err(LinkError::Gone)?;
        let mut handed = 0;
        while handed < frames_max {
            match self.frames.recv(&mut self.buffer) {
                Ok(length) if length > FRAME_BYTES_MAX => self.counters.truncated_frames += 1,
                Ok(length) => {
                    self.counters.count_received(length);
                    handed += 1;
                    sink(Received {
                        frame: self.buffer.get(..length).unwrap_or_default(),
                        checksum: ChecksumState::Unverified,
                    });
                }
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        self.counters.receive_errors += 1;
                    }
                    break;
                }
            }
        }
        Ok(handed)
    }

    fn transmit(&mut self, _now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        let lost = |counters: &mut LinkCounters, errno| {
            counters.lost_frames += 1;
            Err(TransmitError::Lost(errno))
        };
        if let Err(errno) = self.ensure_running() {
            return lost(&mut self.counters, errno);
        }
        let length = frame.bytes();
        let Some(buffer) = self.buffer.get_mut(..length.min(FRAME_BYTES_MAX)) else {
            return lost(&mut self.counters, libc::EMSGSIZE);
        };
        if length > buffer.len() {
            return lost(&mut self.counters, libc::EMSGSIZE);
        }
        let mut rest = &mut *buffer;
        for piece in [frame.headers]
            .into_iter()
            .chain(frame.payload.iter().copied())
        {
            let (here, behind) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = behind;
        }
        match self.frames.send(buffer) {
            Ok(_) => {
                self.counters.count_transmitted(length);
                Ok(Sent::Copied)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.counters.full_frames += 1;
                Err(TransmitError::Full)
            }
            Err(error) => lost(&mut self.counters, errno_of(&error)),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.frames.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// The server's MAC address on the inner side.
fn server_mac() -> MacAddress {
    derived_mac(&[b"relay", b"server"])
}

/// The second stack's.
fn host_mac() -> MacAddress {
    derived_mac(&[b"relay", b"host"])
}
