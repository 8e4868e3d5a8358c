//! Receives through AF_XDP sockets, sends through packet sockets.
//!
//! It is for devices that segment TCP. A received frame reaches us before the kernel has made a socket
//! buffer of it, or asked the host's firewall; and a large frame is sent in one piece, from its slot where
//! that pays, which AF_XDP can't do (`docs/develop/decisions/0027-receive-by-xdp-send-by-packet.md`). Addresses may
//! be shared with the host, as with [`Xdp`].
//!
//! It refuses what either of its halves refuses: [`Xdp`] says what is received, and at which MTU;
//! [`packet`](crate::packet) how frames are sent. Bounds, for each queue: a page for each cell to
//! receive, and [`CELLS_MIN`] more, which the AF_XDP socket has for sending and nobody uses; the send
//! buffer of a packet socket.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use clock::Instant;
use counters::CounterSet as _;
use memory::SlotMemory;
use wire::Outgoing;

use crate::counters::LinkCounters;
use crate::error::{LinkError, SetupError, TransmitError};
use crate::interface::{InterfaceName, describe};
use crate::packet::{SendConfig, Sender, ZeroCopy};
use crate::xdp::{CELLS_MIN, XdpShape};
use crate::{
    Capabilities, ChecksumOffload, Checksums, CopyReason, FramePath, InterfaceState, Link,
    Received, Sent, Xdp, XdpConfig,
};

/// One receive queue's AF_XDP socket and a packet socket that sends on the same interface. Usually moved
/// to a thread of its own.
#[derive(Debug)]
pub struct XdpPacket {
    receiver: Xdp,
    sender: Sender,
}

impl XdpPacket {
    /// Opens a link for each receive queue of the interface, as [`Xdp::open_queues`] does.
    /// `zero_copy` of the configuration is for frames sent, as in
    /// [`PacketConfig`](crate::PacketConfig); frames received are copied by the kernel only where
    /// the driver can't do without.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do. Nothing is left on the interface.
    pub fn open_queues(config: &XdpConfig) -> Result<Vec<Self>, SetupError> {
        Self::with_senders(config, Xdp::open_receivers(&receiving(config))?)
    }

    /// The same with the AF_XDP sockets of another process, as [`Xdp::of_shared`] does it.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do. The other process notices nothing.
    pub fn of_shared(
        config: &XdpConfig,
        shapes: &[XdpShape],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<Self>, SetupError> {
        let receive = receiving(config);
        let receivers = Xdp::take_over(&receive, shapes, descriptors, false)?;
        Self::with_senders(config, receivers)
    }

    fn with_senders(config: &XdpConfig, receivers: Vec<Xdp>) -> Result<Vec<Self>, SetupError> {
        let send = SendConfig {
            zero_copy: config.zero_copy,
            ..SendConfig::default()
        };
        let name = InterfaceName::parse(&config.interface)?;
        let found = describe(name)?;
        let open = |receiver| {
            let sender = Sender::open(name, &found, &send)
                .map_err(|errno| name.error("opening a packet socket", CAPABILITY, errno))?;
            Ok(Self { receiver, sender })
        };
        receivers.into_iter().map(open).collect()
    }

    /// The half that receives.
    #[must_use]
    pub const fn receiver(&self) -> &Xdp {
        &self.receiver
    }

    /// Whether frames that are sent bypass the queueing discipline now.
    #[must_use]
    pub const fn bypasses_qdisc(&self) -> bool {
        self.sender.bypasses_qdisc()
    }
}

/// The half that receives.
fn receiving(config: &XdpConfig) -> XdpConfig {
    XdpConfig {
        zero_copy: ZeroCopy::Auto,
        loans: ZeroCopy::Off,
        checksum_offload: ChecksumOffload::Off,
        slots_bytes: 0,
        transmit_cells: CELLS_MIN,
        ..config.clone()
    }
}

const CAPABILITY: &str = "cap_net_raw,cap_net_admin";

impl Link for XdpPacket {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            segmentation_bytes_max: self.sender.segmentation_bytes_max(),
            ..self.receiver.capabilities()
        }
    }

    fn frame_path(&self) -> FramePath {
        FramePath {
            checksums: Checksums::Device,
            ..self.receiver.frame_path()
        }
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.receiver.apply_interface_state(state);
        self.sender.apply_interface_state(state);
        self.capabilities()
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        self.receiver.set_receiving(is_receiving)
    }

    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        self.receiver.share_addresses(addresses)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let received = self.receiver.receive(now, frames_max, sink)?;
        match self.sender.gone() {
            Some(errno) if received == 0 => Err(LinkError::Gone(errno)),
            _ => Ok(received),
        }
    }

    fn is_polling_in_vain(&self) -> bool {
        self.receiver.is_polling_in_vain()
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.sender.zero_copy()
    }

    fn lent_stride_bytes(&self, stride_bytes: usize) -> usize {
        Sender::lent_stride_bytes(stride_bytes)
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.sender.borrow_slots(slots)
    }

    fn return_slots(&mut self) {
        self.sender.return_slots();
    }

    fn give_back(&mut self, _now: Instant, sink: &mut dyn FnMut(u32)) {
        self.sender.give_back(sink);
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        self.sender.transmit(now, frame)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.poll_fd()
    }

    fn request_fd(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.request_fd()
    }

    fn clear_requests(&mut self) -> bool {
        self.receiver.clear_requests()
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sender.fd())
    }

    fn counters(&self) -> LinkCounters {
        self.receiver.counters().plus(&self.sender.counters())
    }
}
