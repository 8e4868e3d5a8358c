//! Take-over: another process with other settings, or another version, takes the place of this one, and no viewer
//! notices ([decision 47](../../../../docs/develop/decisions/0047-take-over.md)).
//!
//! ```text
//!  predecessor (serves)                   launcher                 successor
//!    ── a socket ────────────────────────────▶ starts ──────────────▶
//!    ── Hello: what cannot change, shared sockets ──────────────────▶  opens everything
//!    ◀──────────────────── Ready: sockets for packets ──────────────
//!  gives SYNs to the successor
//!  (tells its own predecessor: Relaying)
//!    ── Given ──────────────────────────────────────────────────────▶  receives
//!    ◀─────────────────────────────────────────────────────── Taken ─
//!  receives no more, finishes what it has, ends
//! ```
//!
//! With AF_XDP sockets, whose rings one process at a time uses, the predecessor stops before `Given`, and frames wait.
//!
//! A successor that fails before `Taken` is killed. Once it has ended, the predecessor goes on as before it gave anything
//! away, and tells its own predecessor `Taken`. If the successor ends after its `Taken`, the predecessor takes everything
//! back, unless it was told [`Message::Relaying`]: then a third process may have the link, and what is left here is reset.
//! A process tells that before its own `Given`, so that whenever it dies two others never receive at once. If it dies
//! between the two, nobody does, and all end. A successor that hangs after `Taken` is not noticed, as little as any other
//! server that hangs.
//!
//! What is handed over is packets: what they need is in [`Hello`], and segments of connections that the successor
//! does not know cross over sockets ([`session::Process`]). It refuses another [`VERSION`], and a change of what
//! the predecessor's connections need: interface, addresses, MAC address. Bounds: [`MESSAGE_BYTES_MAX`] a message,
//! [`DESCRIPTORS_MAX`] descriptors, `take_over_start_seconds`, [`SWITCH_TIME_MAX`], [`PAUSE_TIME_MAX`],
//! [`GENERATIONS_MAX`], [`PACKETS_BYTES_MAX`] of packets that wait.

pub(crate) mod launcher;
pub(crate) mod packets;
pub(crate) mod predecessor;
pub(crate) mod request;
pub(crate) mod successor;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use link::XdpShape;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt,
};
use serde::{Deserialize, Serialize};

use crate::settings::{LinkChoice, Settings};

/// Of the messages. Another one is refused, and the predecessor serves on.
pub(crate) const VERSION: u32 = 1;
/// Tells a process that it is a successor, whose standard input is the socket.
pub(crate) const VARIABLE: &str = "ATLAS_TAKE_OVER";
/// How long either may take for its part of the switch.
pub(crate) const SWITCH_TIME_MAX: Duration = Duration::from_secs(5);
/// The same where nobody receives meanwhile: a few rounds of the workers' and some messages, on a machine that is busy.
pub(crate) const PAUSE_TIME_MAX: Duration = Duration::from_secs(1);
/// Longest message, bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 32_768;
/// Most descriptors with a message: the kernel's limit is 253.
pub(crate) const DESCRIPTORS_MAX: usize = 253;
/// Processes at once that finish what they have; each keeps its memory.
pub(crate) const GENERATIONS_MAX: u32 = 16;
/// Bytes of packets that wait for each worker of the other process, with what the kernel adds to each; further ones
/// are lost, as in a router that is too busy. `[guess]`
pub(crate) const PACKETS_BYTES_MAX: usize = 8 << 20;

/// Why no process can take over from a server with an NVMe controller of its own.
pub(crate) const OWN_CONTROLLER: &str =
    "an NVMe controller with a driver of Atlas's own (nvme:) belongs to one process";

/// Keys of the configuration file that no process that takes over can change.
pub(crate) const NEEDS_RESTART: [&str; 4] = ["address", "busy_poll_us", "link", "mac"];

/// What the predecessor says first: all that cannot change, and what its sockets are, in the order of descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Its workers, each of which gets packets over a socket of its own.
    pub workers: usize,
    /// Kind and interface.
    pub link: String,
    /// Addresses, MAC address and whose they are.
    pub station: Vec<String>,
    /// How many processes finish what they have when this one does.
    pub generation: u32,
    /// How many descriptors its queues have.
    pub queues: usize,
    /// Its AF_XDP sockets, of which one process at a time uses the rings.
    #[serde(default)]
    pub xdp: Vec<XdpQueue>,
    /// The ports that it takes of the host's addresses.
    #[serde(default)]
    pub shared_ports: Vec<u16>,
    /// Names of the locks on addresses.
    pub locks: Vec<String>,
    /// Where metrics are asked for.
    pub metrics: Option<SocketAddr>,
    /// It knows [`Message::Taken`] after [`Message::Relaying`]; version 0.2.0 does not.
    #[serde(default)]
    pub knows_return: bool,
}

/// [`XdpShape`] in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct XdpQueue {
    receive_cells: u32,
    transmit_cells: u32,
    slots_bytes: u64,
    has_pieces: bool,
    has_metadata: bool,
    finishes_checksums: bool,
    is_in_driver: bool,
}

impl From<XdpShape> for XdpQueue {
    fn from(shape: XdpShape) -> Self {
        Self {
            receive_cells: shape.receive_cells,
            transmit_cells: shape.transmit_cells,
            slots_bytes: shape.slots_bytes,
            has_pieces: shape.has_pieces,
            has_metadata: shape.has_metadata,
            finishes_checksums: shape.finishes_checksums,
            is_in_driver: shape.is_in_driver,
        }
    }
}

impl From<XdpQueue> for XdpShape {
    fn from(queue: XdpQueue) -> Self {
        Self {
            receive_cells: queue.receive_cells,
            transmit_cells: queue.transmit_cells,
            slots_bytes: queue.slots_bytes,
            has_pieces: queue.has_pieces,
            has_metadata: queue.has_metadata,
            finishes_checksums: queue.finishes_checksums,
            is_in_driver: queue.is_in_driver,
        }
    }
}

/// What the two processes tell each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// From the predecessor, with queues, locks and the socket of metrics.
    Hello(Box<Hello>),
    /// From the successor: it can receive at once. With a socket for each worker of the predecessor, which packets come
    /// from, and one to send to.
    Ready,
    /// From the predecessor: it answers no SYN any more, and uses the rings of AF_XDP sockets no more.
    Given,
    /// From the successor: it receives; after `Relaying`: again, as its own successor has ended.
    Taken,
    /// From the successor: a successor of its own may receive from now on, and it only passes packets on.
    Relaying,
    /// From the successor: the operator has moved the access log away.
    Reopen,
    /// From the successor: it ends, and so must its predecessor within these milliseconds.
    End(u64),
    /// From the successor: why it cannot take over.
    Failed(String),
}

/// Why a message was not received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The other process has ended.
    #[error("the other process has ended")]
    Ended,
    /// None is there.
    #[error("it does not answer")]
    Nothing,
    /// The kernel's.
    #[error("{0}")]
    Io(io::Error),
    /// It is none of this version.
    #[error("its message is none of version {VERSION}: {0}")]
    Malformed(String),
}

/// A socket between the two.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
}

/// Two ends that keep the limits of messages.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl Control {
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends without waiting: as many messages as there are fit its buffer.
    ///
    /// # Errors
    /// The kernel's: the other process has ended, for example.
    pub(crate) fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub(crate) fn receive(&self) -> Result<(Message, Vec<OwnedFd>), ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.socket, &mut parts, &mut control, flags)
        });
        let received = received.map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => ReceiveError::Nothing,
            rustix::io::Errno::CONNRESET => ReceiveError::Ended,
            errno => ReceiveError::Io(errno.into()),
        })?;
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        if received.bytes == 0 {
            return Err(ReceiveError::Ended);
        }
        let bytes = bytes.get(..received.bytes).unwrap_or_default();
        let message = serde_json::from_slice(bytes);
        let message = message.map_err(|error| ReceiveError::Malformed(error.to_string()))?;
        Ok((message, descriptors))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What of the settings is that of the predecessor's connections as well, one line for each.
pub(crate) fn station(settings: &Settings) -> Vec<String> {
    let addresses = settings
        .addresses
        .iter()
        .map(|cidr| format!("address {cidr}"));
    let virtual_addresses = &settings.virtual_addresses;
    let virtual_addresses = virtual_addresses
        .iter()
        .map(|it| format!("virtual address {it}"));
    let mac = format!("MAC address {:?}", settings.mac);
    let shared = format!(
        "addresses shared with the host: {}",
        settings.is_address_shared
    );
    let mut lines: Vec<_> = addresses.chain(virtual_addresses).collect();
    if settings.is_address_shared {
        // The host's come and go.
        lines.clear();
    }
    lines.extend([mac, shared]);
    if matches!(settings.link, LinkChoice::Xdp(_)) {
        // The sockets stay bound as they are.
        lines.push(format!("zero copy {:?}", settings.zero_copy).to_lowercase());
    }
    if matches!(settings.link, LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_)) {
        // An option of the sockets, which the predecessor may go on with.
        lines.push(format!(
            "busy_poll_us {}",
            settings.busy_poll.as_nanos() / 1_000
        ));
    }
    lines
}

/// Room for [`PACKETS_BYTES_MAX`], or, without the right to that, what the system allows.
fn make_room(socket: &OwnedFd) {
    let bytes = PACKETS_BYTES_MAX / 2;
    // With less room more packets are lost, which TCP sends again.
    let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
}

#[cfg(test)]
mod tests;
