//! The link of a worker: one of those that a server opens, with or without a capture.
//!
//! It refuses nothing itself: each verb is that of the link it is. Bounded as they are.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use clock::Instant;
use link::{
    Capabilities, Captured, CopyReason, FramePath, InterfaceState, Link, LinkCounters, LinkError,
    Packet, Received, Relay, Sent, Tap, TransmitError, Xdp, XdpPacket, XdpShape,
};
use memory::SlotMemory;
use wire::Outgoing;

/// One of the links that a server has.
#[derive(Debug)]
pub(super) enum WorkerLink {
    /// A queue of a TAP.
    Tap(Box<Tap>),
    /// A packet socket.
    Packet(Box<Packet>),
    /// An AF_XDP socket.
    Xdp(Box<Xdp>),
    /// An AF_XDP socket that receives, and a packet socket that sends.
    XdpPacket(Box<XdpPacket>),
    /// A relay to the host's own TCP.
    Relay(Box<Relay>),
    /// One of these, with its frames written to a file.
    Captured(Box<Captured<Self>>),
}

/// Calls the link that it is; known when it is compiled, so that a verb costs one comparison.
macro_rules! each {
    ($link:expr, $it:ident => $call:expr) => {
        match $link {
            WorkerLink::Tap($it) => $call,
            WorkerLink::Packet($it) => $call,
            WorkerLink::Xdp($it) => $call,
            WorkerLink::XdpPacket($it) => $call,
            WorkerLink::Relay($it) => $call,
            WorkerLink::Captured($it) => $call,
        }
    };
}

impl WorkerLink {
    /// What a process that takes over receives by, and what the sockets are if they are AF_XDP's; nothing: sockets of
    /// its own.
    pub(super) fn share(&self) -> io::Result<(Option<XdpShape>, Vec<OwnedFd>)> {
        let of_xdp = |xdp: &Xdp| xdp.share().map(|(shape, all)| (Some(shape), all));
        match self {
            Self::Tap(tap) => Ok((None, vec![tap.share()?])),
            Self::Xdp(xdp) => of_xdp(xdp),
            Self::XdpPacket(both) => of_xdp(both.receiver()),
            Self::Captured(captured) => captured.link().share(),
            Self::Packet(_) | Self::Relay(_) => Ok((None, Vec::new())),
        }
    }
}

impl Link for WorkerLink {
    fn capabilities(&self) -> Capabilities {
        each!(self, it => it.capabilities())
    }

    fn frame_path(&self) -> FramePath {
        each!(self, it => it.frame_path())
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        each!(self, it => it.apply_interface_state(state))
    }

    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        each!(self, it => it.share_addresses(addresses))
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        each!(self, it => it.set_receiving(is_receiving))
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        each!(self, it => it.receive(now, frames_max, sink))
    }

    fn is_polling_in_vain(&self) -> bool {
        each!(self, it => it.is_polling_in_vain())
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        each!(self, it => it.zero_copy())
    }

    fn lent_stride_bytes(&self, stride_bytes: usize) -> usize {
        each!(self, it => it.lent_stride_bytes(stride_bytes))
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        each!(self, it => it.borrow_slots(slots))
    }

    fn return_slots(&mut self) {
        each!(self, it => it.return_slots());
    }

    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        each!(self, it => it.give_back(now, sink));
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        each!(self, it => it.transmit(now, frame))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, it => it.poll_fd())
    }

    fn request_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, it => it.request_fd())
    }

    fn clear_requests(&mut self) -> bool {
        each!(self, it => it.clear_requests())
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, it => it.writable_fd())
    }

    fn counters(&self) -> LinkCounters {
        each!(self, it => it.counters())
    }
}
