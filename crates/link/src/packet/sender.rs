//! The half of a packet socket that sends: whole frames with a virtio-net header, by copying them or from
//! the slots that the disk filled.
//!
//! It is used by [`Packet`](super::Packet), and by [`XdpPacket`](crate::XdpPacket), which receives in
//! another way.
//!
//! **Bypassing the queueing discipline** saves its cost, but then the kernel does not segment. It
//! would refuse a large frame on a device without TCP segmentation for ever, with the errno of a
//! full queue. So the bypass is used only while the device segments. It ends for good when the
//! device has stopped segmenting, or has refused every frame for
//! [`REFUSED_FOR_MAX`](crate::REFUSED_FOR_MAX). Without the bypass, a frame refused for that long is
//! dropped, so that the frames behind it can be sent. Slots are lent only as long as the bypass lasts,
//! if it was there at the start: where the kernel segments a frame it copies the pages, so that a loan
//! saves nothing.
//!
//! It refuses frames larger than the device takes uncut. Bounded by: `SEND_BUFFER_BYTES` in the kernel;
//! what `slot_rings` says of loans. One system call for each frame.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use clock::Instant;
use memory::SlotMemory;
use wire::Outgoing;

use super::slot_rings::{Offered, SlotRings};
use super::{is_gone, set_buffer};
use crate::counters::LinkCounters;
use crate::error::TransmitError;
use crate::features::{self, SegmentationFeatures};
use crate::interface::{InterfaceName, device_of};
use crate::netlink::InterfaceDescription;
use crate::refusal::RefusalPeriod;
use crate::sys;
use crate::vnet::VnetHeader;
use crate::{
    CopyReason, ETHERNET_BYTES, InterfaceState, Sent, gather, linear_bytes, segmentation_bytes_max,
};

/// Bytes of frames that may wait in a queueing discipline before `transmit` answers `Full`.
/// Bypassing it, frames wait only in the device's own ring. `[guess]`
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// How frames are sent through a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendConfig {
    /// Bytes that may wait to be sent before `Full`; `None`: 16 MiB. The kernel doubles it; its
    /// minimum is 4,608.
    pub(crate) buffer_bytes: Option<u32>,
    /// Whether to bypass the queueing discipline where that is possible (see `packet`).
    pub(crate) qdisc_bypass: bool,
    /// Whether frames are sent from their slots.
    pub(crate) zero_copy: ZeroCopy,
}

impl Default for SendConfig {
    fn default() -> Self {
        Self {
            buffer_bytes: None,
            qdisc_bypass: true,
            zero_copy: ZeroCopy::Auto,
        }
    }
}

/// Whether frames are sent from the slots that the disk filled, without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the device segments, and its driver is one that tells when it has read a frame.
    #[default]
    Auto,
    /// Wherever the kernel allows it.
    On,
    /// Never.
    Off,
}

/// Sends on one interface and receives nothing.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Bound to no protocol.
    socket: OwnedFd,
    /// The one whose driver sends the frames.
    device: InterfaceName,
    interface_index: i32,
    config: SendConfig,
    segmentation_bytes_max: u32,
    /// Present while frames are sent from their slots.
    slot_rings: Option<SlotRings>,
    /// Present while the queueing discipline is bypassed.
    bypass: Option<SegmentationFeatures>,
    /// For how long the device has refused every frame.
    refusals: RefusalPeriod,
    counters: LinkCounters,
    /// The errno that reported the removal of the interface.
    gone: Option<i32>,
}

impl Sender {
    /// Opens a socket on an interface.
    ///
    /// # Errors
    /// The errno of the call that failed.
    pub(crate) fn open(
        name: InterfaceName,
        found: &InterfaceDescription,
        config: &SendConfig,
    ) -> Result<Self, i32> {
        let socket = open_socket(config.buffer_bytes)?;
        sys::bind_to_interface(socket.as_fd(), found.index, 0)?;
        let bypass = if config.qdisc_bypass {
            start_bypass(socket.as_fd(), name)
        } else {
            None
        };
        Ok(Self {
            socket,
            device: device_of(name, found),
            interface_index: found.index,
            config: *config,
            segmentation_bytes_max: segmentation_bytes_max(found.gso_bytes_max),
            slot_rings: None,
            bypass,
            refusals: RefusalPeriod::default(),
            counters: LinkCounters::default(),
            gone: None,
        })
    }

    /// Whether frames bypass the queueing discipline now.
    pub(crate) const fn bypasses_qdisc(&self) -> bool {
        self.bypass.is_some()
    }

    /// Largest IP packet that the device takes uncut, bytes.
    pub(crate) const fn segmentation_bytes_max(&self) -> u32 {
        self.segmentation_bytes_max
    }

    pub(crate) const fn apply_interface_state(&mut self, state: &InterfaceState) {
        self.segmentation_bytes_max = state.segmentation_bytes_max;
    }

    /// The descriptor that is writable when the kernel has room for a frame.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What was sent and what was not; nothing of what was received.
    pub(crate) const fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// The errno that reported the removal of the interface.
    pub(crate) const fn gone(&self) -> Option<i32> {
        self.gone
    }

    /// As [`Link::zero_copy`](crate::Link::zero_copy).
    pub(crate) fn zero_copy(&self) -> Result<(), CopyReason> {
        match self.config.zero_copy {
            ZeroCopy::On => Ok(()),
            ZeroCopy::Off => Err(CopyReason::Off),
            ZeroCopy::Auto if self.bypass.is_none() => Err(CopyReason::NoSegmentation),
            ZeroCopy::Auto => {
                let driver = features::driver(self.socket.as_fd(), self.device);
                let driver = driver.unwrap_or_default();
                if features::is_completing_driver(&driver) {
                    Ok(())
                } else {
                    Err(CopyReason::UnknownDriver { driver })
                }
            }
        }
    }

    /// As [`Link::lent_stride_bytes`](crate::Link::lent_stride_bytes): the kernel allocates the memory of a ring as one
    /// block of a power of two of pages, whatever the ring takes of it. A slot that is all of its block is one piece
    /// for `io_uring`'s registered buffers, and not a piece for each page; seen with Linux 6.18.
    pub(crate) const fn lent_stride_bytes(stride_bytes: usize) -> usize {
        stride_bytes.next_power_of_two()
    }

    /// As [`Link::borrow_slots`](crate::Link::borrow_slots).
    pub(crate) fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.zero_copy()?;
        let (bypasses, bytes) = (self.bypass.is_some(), self.config.buffer_bytes);
        let open = || {
            let socket = open_socket(bytes)?;
            if bypasses {
                let fd = socket.as_fd();
                sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
            }
            Ok(socket)
        };
        let rings = SlotRings::new(slots, self.interface_index, open);
        self.slot_rings = Some(rings.map_err(CopyReason::NoRing)?);
        Ok(())
    }

    /// As [`Link::return_slots`](crate::Link::return_slots).
    pub(crate) fn return_slots(&mut self) {
        if let Some(rings) = self.slot_rings.take() {
            rings.end();
        }
    }

    /// As [`Link::give_back`](crate::Link::give_back).
    pub(crate) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
        if let Some(rings) = &mut self.slot_rings {
            rings.give_back(sink);
        }
    }

    /// As [`Link::transmit`](crate::Link::transmit).
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        frame: &Outgoing<'_>,
    ) -> Result<Sent, TransmitError> {
        let bytes = frame.bytes();
        let large = frame.offload.segmentation.is_some();
        // The kernel segments a larger frame in software. With the queueing discipline bypassed it
        // would refuse the frame for ever instead, with the errno of a full queue.
        let bytes_max = ETHERNET_BYTES + self.segmentation_bytes_max as usize;
        if large && bytes > bytes_max {
            self.counters.lost_frames += 1;
            return Err(TransmitError::Lost(libc::EMSGSIZE));
        }
        loop {
            let offered = match &mut self.slot_rings {
                Some(rings) => rings.transmit(frame),
                None => Offered::Refused,
            };
            let result = match offered {
                Offered::Lent(slot) => {
                    self.refusals.reset();
                    self.counters.count_transmitted(bytes);
                    self.counters.lent_frames += 1;
                    return Ok(Sent::Lent(slot));
                }
                Offered::Failed(errno) => Err(errno),
                Offered::Refused => send_copied(self.socket.as_fd(), frame),
            };
            let Err(errno) = result else {
                self.refusals.reset();
                self.counters.count_transmitted(bytes);
                return Ok(Sent::Copied);
            };
            // Runs at most twice: only the end of the bypass returns `Retry`.
            match self.classify_send_error(now, errno, large) {
                SendFailure::Retry => {}
                SendFailure::Full => {
                    self.counters.full_frames += 1;
                    return Err(TransmitError::Full);
                }
                SendFailure::Lost(errno) => {
                    self.refusals.reset();
                    self.counters.lost_frames += 1;
                    return Err(TransmitError::Lost(errno));
                }
            }
        }
    }

    /// Classifies the errno of a failed send. `large`: the frame is to be segmented.
    fn classify_send_error(&mut self, now: Instant, errno: i32, large: bool) -> SendFailure {
        match errno {
            // The socket's send buffer: the descriptor becomes writable when there is room.
            libc::EAGAIN => SendFailure::Full,
            libc::ENOBUFS => self.handle_enobufs(now, large),
            libc::ENETDOWN => {
                self.counters.down_events += 1;
                SendFailure::Lost(errno)
            }
            errno => {
                if is_gone(errno) {
                    self.gone = Some(errno);
                }
                SendFailure::Lost(errno)
            }
        }
    }

    /// `ENOBUFS`: the kernel dropped the frame. Decides whether a later attempt can succeed.
    fn handle_enobufs(&mut self, now: Instant, large: bool) -> SendFailure {
        let fd = self.socket.as_fd();
        let needed = libc::IFF_UP | libc::IFF_RUNNING;
        let flags = sys::interface_flags(fd, self.interface_index).map(i32::from);
        let is_running = flags.is_ok_and(|flags| flags & needed == needed);
        // It may have another name by now. An interface that does not answer is being removed.
        let name = sys::interface_name(fd, self.interface_index).ok();
        let name =
            name.filter(|name| is_running && features::has_carrier(fd, *name) != Some(false));
        let Some(name) = name else {
            self.counters.down_events += 1;
            return SendFailure::Lost(libc::ENETDOWN);
        };
        let has_stopped_segmenting = self
            .bypass
            .is_some_and(|features| large && !features.are_active(fd, name));
        let is_limit_reached = self.refusals.record(now);
        // The queueing discipline segments for a device that does not, queues frames that the
        // device has no room for, and makes the descriptor writable when there is room.
        if (has_stopped_segmenting || is_limit_reached) && self.end_bypass() {
            return SendFailure::Retry;
        }
        if is_limit_reached {
            self.counters.refused_frames += 1;
            return SendFailure::Lost(libc::ENOBUFS);
        }
        SendFailure::Full
    }

    /// Goes back to the queueing discipline for good. `false` if it was not bypassed, or the kernel
    /// does not let us.
    fn end_bypass(&mut self) -> bool {
        if self.bypass.take().is_none() {
            return false;
        }
        self.counters.bypass_end_events += 1;
        if let Some(rings) = &mut self.slot_rings {
            rings.stop();
        }
        let fd = self.socket.as_fd();
        sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 0).is_ok()
    }
}

/// What to do after a failed send.
enum SendFailure {
    /// Send it again now: the cause was removed.
    Retry,
    /// [`TransmitError::Full`].
    Full,
    /// [`TransmitError::Lost`].
    Lost(i32),
}

/// Sends a frame that the kernel copies.
fn send_copied(sender: BorrowedFd<'_>, frame: &Outgoing<'_>) -> Result<(), i32> {
    let header = VnetHeader::from_offload(&frame.offload, linear_bytes(frame)).to_bytes();
    let (parts, count) = gather(&header, frame);
    sys::send_gathered(sender, parts.get(..count).unwrap_or_default())
}

/// Opens a socket that sends with virtio-net headers and receives nothing, not bound to an interface.
fn open_socket(send_buffer_bytes: Option<u32>) -> Result<OwnedFd, i32> {
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let fd = socket.as_fd();
    sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    let send_bytes = send_buffer_bytes.map(i32::try_from);
    let send_bytes = send_bytes.map_or(SEND_BUFFER_BYTES, |bytes| bytes.unwrap_or(i32::MAX));
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_bytes)?;
    Ok(socket)
}

/// Bypasses the queueing discipline if the device cuts large segments itself.
fn start_bypass(fd: BorrowedFd<'_>, name: InterfaceName) -> Option<SegmentationFeatures> {
    let features = SegmentationFeatures::look_up(fd, name)?;
    if !features.are_active(fd, name) {
        return None;
    }
    let on = sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1);
    on.ok().map(|()| features)
}
