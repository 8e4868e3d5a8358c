//! Frames through AF_XDP sockets: an XDP program takes those that are ours before the kernel's stack
//! sees them, and every other frame passes on as if the program were not there.
//!
//! One [`Xdp`] for each receive queue of the interface; together they hold the program, which is attached
//! by a BPF link and so leaves the interface with the last of them, also if the process is killed. Frames
//! are in cells of a page, shared with the kernel; where the driver can, its device accesses the cells
//! itself (zero copy). The program's rules are in `program`: addresses of our own, as with a packet
//! socket, or **addresses shared with the host**, of which only TCP to our ports is taken.
//!
//! A frame is in the kernel's hands when it is in the transmit ring. If the device has no room, frames wait
//! there, those of one large segment at most, until the next call or poll of the socket.
//!
//! AF_XDP has no segmentation: a large segment is cut by `wire::cut`, and each frame's checksum is computed
//! while its bytes are in the cache; or left to the device ([`ChecksumOffload`]), so that the bytes of a slot
//! need not be read at all. All frames of a large segment are queued together or none is.
//!
//! On a VLAN device the program is attached to the interface below and takes frames with that VLAN's tag
//! (`vlan`); the link removes the tag and adds it. All of it is at the VLAN device's addresses and MTU.
//!
//! It refuses interfaces that are not Ethernet, other tagged frames, and to send frames larger than the MTU.
//!
//! **Frames larger than a cell** are in several, sent and received, where the MTU is above
//! [`MTU_BYTES_MAX`] or the program runs behind the driver, so that GRO merges frames: then the socket is
//! bound with `XDP_USE_SG` (Linux 6.6). Where it can't be, the MTU counts as [`MTU_BYTES_MAX`], which is what
//! peers are told (MSS); larger frames are dropped and counted.
//!
//! Frames are copied into cells, or sent from slots on loan (`loans`), whose pages are then part of the
//! sockets' memory.
//!
//! **Busy polling** ([`XdpConfig::busy_poll_us`]): the sockets prefer it (`SO_PREFER_BUSY_POLL`), so that a
//! call on the socket has the kernel run the driver's poll function, in our thread, and no interrupt does
//! while such calls come within the interface's `gro_flush_timeout`. What this relies on (net/xdp/xsk.c):
//! - `recvfrom` and `sendto` poll once if the socket does not block, whatever the rings' flags say.
//!   [`Link::receive`] calls `recvfrom` for it when the receive ring is empty: the fill ring's flag does not
//!   ask for that call while the device has cells.
//! - Where the device accesses the cells, `sendto` is that poll and nothing else. Drivers leave the transmit
//!   ring's flag set when their poll function ends (ice, ixgbe, igb, virtio_net, stmmac), so that a frame's
//!   own call is made as ever. One that clears it reads the ring in its poll function, which the next
//!   `recvfrom` runs.
//! - `poll` does not poll the device, but for the sysctl net.core.busy_poll. A caller that sleeps is woken
//!   by a frame when the kernel's timer or an interrupt has had the device polled.
//! - The kernel must know the queue's NAPI context (`SO_INCOMING_NAPI_ID`). Before Linux 6.13 it learns it from
//!   the first frame; since then from the driver, when the socket is bound, if that has told it
//!   (`netif_queue_set_napi`), and from 6.13 to 6.15 only where the device accesses the cells (commits
//!   5ef44b3cb43b, b95ed5517354). veth has not told, on Linux 6.18. Then nothing is polled
//!   ([`Link::is_polling_in_vain`]). Behind the driver there is no context, which is refused.
//!
//! Bounds, for each queue: a pinned page for each cell, 16 MiB with the usual numbers; rings of 24 bytes
//! for each cell, and one of a page that tells of requests (`request_ring`); one receive buffer, of a cell or of
//! 64 KiB. Two system calls for each large frame sent by copying (the kernel takes 32 frames a call), none for a frame
//! received; with busy polling one for each call of
//! [`Link::receive`], and one more for each 64 frames.
//!
//! **Known limits.**
//! - A device that removes VLAN tags hides them from XDP: a tagged frame to our MAC and address is taken
//!   as if it had no tag. Switch that off (`ethtool -K IFACE rxvlan off`) where VLANs use our addresses. A
//!   link in a VLAN is not opened on such a device; if it removes them later, its frames pass to the kernel.
//! - A local sender's tag may be kept beside the frame, as an offload, where XDP cannot see it: behind a
//!   veth, switch that off at the sender's end (`ethtool -K IFACE txvlan off`).
//! - Attached behind the driver ([`AttachMode::Generic`]), the program sees what GRO has merged: before
//!   Linux 6.6 a large upload may be dropped. `ethtool -K IFACE gro off` helps.
//! - A local sender and GRO leave checksums unfinished, and XDP cannot see which. On virtual interfaces, and
//!   behind the driver, a frame whose checksum field holds the pseudo-header's sum, as an unfinished one
//!   does, is trusted; one damaged frame in 65,536 may be, too. Other devices are not trusted so.
//! - When the interface goes down, frames already queued, one large segment at most, may be sent when it
//!   is up again, though they were reported as lost. To TCP they are old duplicates.
//! - A queue added later (`ethtool -L`) has no socket: frames that arrive there pass to the kernel.
//! - What a packet socket's module says of a second MAC holds here.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use clock::Instant;
use counters::CounterSet as _;
use memory::SlotMemory;
use wire::{ChecksumState, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{CopyReason, LinkError, SetupError, TransmitError};
use crate::interface::InterfaceName;
use crate::packet::{ADDRESSES_MAX, MacChoice, Sender, ZeroCopy};
use crate::refusal::RefusalPeriod;
use crate::{
    Capabilities, Checksums, ETHERNET_BYTES, FramePath, IP_PACKET_BYTES_MAX, InterfaceState, Link,
    ProgramPlace, Received, STATE_CHECK_INTERVAL, Sent, VlanTag,
};

mod address_table;
mod assembler;
mod bpf;
mod loans;
mod mapping;
mod metadata;
mod program;
mod queue;
mod request_ring;
mod ring;
mod setup;
mod sharing;
mod socket;
mod unfinished;
mod vlan;

use address_table::AddressTable;
use bpf::Place;
pub use program::PORTS_MAX;
use queue::{CELL_BYTES, HEADROOM_BYTES, Queue, Room, Taken};
use request_ring::RequestRing;
use setup::{Attachment, Plan};
use sharing::SharedSockets;
pub use sharing::XdpShape;
use socket::POLL_FRAMES_MAX;
pub use socket::XdpStatistics;
pub(crate) use socket::receive_queues;
use unfinished::has_unfinished_checksum;

/// Largest MTU of frames in one cell: a received frame and its Ethernet header fit it behind the kernel's
/// headroom.
pub const MTU_BYTES_MAX: u16 = 3_826;

/// Largest MTU of frames that may be in several cells (Linux 6.6): what is sent fits three. Interfaces may
/// have a larger one. Where checksums are left to the device it is 72 bytes less, for the metadata.
pub const MTU_BYTES_MAX_IN_CELLS: u16 = 12_274;

const _: () = assert!(
    MTU_BYTES_MAX_IN_CELLS as usize + ETHERNET_BYTES == queue::SENT_BYTES_MAX as usize,
    "the largest frame fills its cells"
);
const _: () = assert!(
    MTU_BYTES_MAX as usize + ETHERNET_BYTES == (CELL_BYTES - HEADROOM_BYTES) as usize,
    "the largest frame fills a cell"
);
const _: () = assert!(vlan::TAG_BYTES == 4, "as `mtu_bytes_max` has it");

/// Most receive queues of an interface.
pub const QUEUES_MAX: u32 = 64;

/// Fewest and most cells of each kind. With the fewest, no segment of more than 32 KiB is taken, or 24 KiB
/// where slots are lent and the device computes checksums; the most are 128 MiB.
pub const CELLS_MIN: u32 = 64;
/// See [`CELLS_MIN`].
pub const CELLS_MAX: u32 = 32_768;

/// Cells for receiving, and for sending, that a link usually has: 2 ms of a million acknowledgments a
/// second, as a packet socket's ring; and 45 segments of 64 KB.
const CELLS: u32 = 2_048;

/// Bytes of frames that may wait in the kernel; more than all cells of the usual number can hold, so that
/// the cells are the limit.
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// Payload bytes of a segment that the largest frame is to be cut into at least. TCP sends none smaller
/// than 524 bytes (536 less the timestamps).
const SEGMENT_BYTES_MIN: u32 = 512;

/// The same, per cell, where frames from a slot have a cell more for each page of it.
const SEGMENT_BYTES_MIN_LENT: u32 = 384;

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Name of an existing Ethernet interface.
    pub interface: String,
    /// The tag that our frames have on an interface that is no VLAN device; of a VLAN device, its own is
    /// taken.
    pub vlan: Option<VlanTag>,
    /// Our addresses, 1 to [`ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
    /// Those of them that another station answers ARP and neighbour discovery for; see
    /// [`PacketConfig`](crate::PacketConfig). Means nothing where addresses are shared.
    pub virtual_addresses: Vec<IpAddr>,
    /// Whether they are ours alone.
    pub address_use: AddressUse,
    /// Where the program runs.
    pub attach: AttachMode,
    /// Whether the device accesses the cells: `Auto`, if its driver can; `On`, or opening fails; `Off`,
    /// the kernel copies.
    pub zero_copy: ZeroCopy,
    /// Whether frames are sent from slots ([`Link::borrow_slots`]): `Auto`, where the device accesses the
    /// cells itself and takes frames of several buffers; `On`, also where the kernel copies, or opening
    /// fails; `Off`, never.
    pub loans: ZeroCopy,
    /// Who computes the checksums of frames that are sent.
    pub checksum_offload: ChecksumOffload,
    /// Bytes of the slots that each queue is to be lent, whole pages; 0: none are.
    pub slots_bytes: usize,
    /// Cells for receiving, for each queue: a power of two from [`CELLS_MIN`] to [`CELLS_MAX`].
    pub receive_cells: u32,
    /// Cells for sending, for each queue: the same.
    pub transmit_cells: u32,
    /// Above 0, busy polling: the kernel polls the device's queues when the link is driven, which is to be
    /// done without a pause, and not otherwise. It is the sockets' `SO_BUSY_POLL`, microseconds; for how long
    /// the link is driven without anything to do is the caller's choice. It takes `CAP_NET_ADMIN`, a kernel
    /// with `CONFIG_NET_RX_BUSY_POLL` and a driver that runs the program. 0: interrupts.
    pub busy_poll_us: u32,
}

/// Who computes the checksums of frames that are sent, where the kernel has metadata for it (Linux 6.8; the
/// flag that some later kernels want, 6.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumOffload {
    /// The device, where it accesses the cells itself and its driver says that it finishes checksums;
    /// otherwise the link.
    #[default]
    Auto,
    /// As `Auto`, and where the kernel copies, the kernel, which has the device do it if that can.
    On,
    /// The link.
    Off,
}

/// Whose the addresses are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressUse {
    /// Ours alone: we take all packets to them, and answer ARP and neighbour solicitations.
    Own {
        /// The MAC address they are reached at.
        mac: MacChoice,
    },
    /// The host's as well, at the interface's MAC: we take TCP to these ports, and the ICMP errors about
    /// it. The kernel keeps the rest: ARP, neighbour discovery, ping, other ports.
    Shared {
        /// Our ports, 1 to [`PORTS_MAX`]. No socket of the kernel's hears of them any more.
        ports: Vec<u16>,
    },
}

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver if it can, behind it otherwise.
    #[default]
    Auto,
    /// In the driver, or opening fails.
    Driver,
    /// Behind the driver, on frames as the kernel's stack gets them: slower, on every interface.
    Generic,
}

impl XdpConfig {
    /// The usual choices for addresses of our own on this interface.
    #[must_use]
    pub fn new(interface: &str, addresses: &[IpAddr]) -> Self {
        Self {
            interface: interface.to_owned(),
            vlan: None,
            addresses: addresses.to_vec(),
            virtual_addresses: Vec::new(),
            address_use: AddressUse::Own {
                mac: MacChoice::Own,
            },
            attach: AttachMode::Auto,
            zero_copy: ZeroCopy::Auto,
            loans: ZeroCopy::Auto,
            checksum_offload: ChecksumOffload::Auto,
            slots_bytes: 0,
            receive_cells: CELLS,
            transmit_cells: CELLS,
            busy_poll_us: 0,
        }
    }

    /// The usual choices for these ports of addresses that the host also has.
    #[must_use]
    pub fn shared(interface: &str, addresses: &[IpAddr], ports: &[u16]) -> Self {
        Self {
            address_use: AddressUse::Shared {
                ports: ports.to_vec(),
            },
            ..Self::new(interface, addresses)
        }
    }
}

/// An AF_XDP socket on one receive queue of an interface, opened. Usually moved to a thread of its own.
#[derive(Debug)]
pub struct Xdp {
    queue: Queue,
    /// Which frames somebody waits for.
    requests: RequestRing,
    /// Sends while another process uses the rings.
    sender: Option<Sender>,
    /// Whether it is this process that uses the rings (`sharing`).
    is_using: bool,
    /// Whether the program knows the socket.
    is_in_map: bool,
    /// The largest IP packet that there are cells for, bytes.
    cut_bytes_max: u32,
    /// What the kernel had counted when this process began to use the rings, and what counts of before.
    statistics_before: XdpStatistics,
    statistics_kept: XdpStatistics,
    queue_index: u32,
    /// Shared by the links of all queues.
    attachment: Arc<Attachment>,
    name: InterfaceName,
    capabilities: Capabilities,
    counters: LinkCounters,
    /// For how long there has been no room for a frame.
    refusals: RefusalPeriod,
    /// When to ask next for the interface's state, if nothing is received.
    check_at: Instant,
    /// Whether the interface was down at the last query.
    is_down: bool,
    /// The errno that reported the removal of the interface.
    gone: Option<i32>,
    /// Whether frames may have unfinished checksums: they come from this host, or were merged by GRO.
    has_unfinished_checksums: bool,
    /// Why frames are not sent from slots, if they are not.
    copy_reason: Option<CopyReason>,
    /// The addresses of the last [`Link::share_addresses`].
    shared_addresses: AddressTable,
    /// Whether receiving has the kernel poll the device ([`XdpConfig::busy_poll_us`]).
    polling: Polling,
}

/// Whether receiving has the kernel poll the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polling {
    /// It was not chosen.
    Off,
    /// It was, and no frame has come yet.
    Untried,
    On,
    /// The driver has not told the kernel what to poll.
    InVain,
}

impl Xdp {
    /// Opens a socket on each receive queue of the interface and attaches the program. Frames may arrive
    /// at any queue, so each link must be driven, by a thread of its own or with others by one.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do. Nothing is left on the interface.
    pub fn open_queues(config: &XdpConfig) -> Result<Vec<Self>, SetupError> {
        let plan = Plan {
            has_sender: true,
            shared: None,
        };
        setup::open_queues(config, plan)
    }

    /// The same for a link that only receives.
    pub(crate) fn open_receivers(config: &XdpConfig) -> Result<Vec<Self>, SetupError> {
        setup::open_queues(config, Plan::default())
    }

    /// The same with the sockets of another process ([`Xdp::share`]), and new ones for queues that the device has
    /// beyond those. Nothing is received before [`Link::set_receiving`], and the other process must have stopped by
    /// then: it does by the same call.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do. The other process notices nothing.
    pub fn of_shared(
        config: &XdpConfig,
        shapes: &[XdpShape],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<Self>, SetupError> {
        Self::take_over(config, shapes, descriptors, true)
    }

    /// The same for a link that only receives.
    pub(crate) fn take_over(
        config: &XdpConfig,
        shapes: &[XdpShape],
        descriptors: Vec<OwnedFd>,
        has_sender: bool,
    ) -> Result<Vec<Self>, SetupError> {
        let shared = SharedSockets::new(shapes, descriptors);
        let shared = shared.ok_or_else(|| SetupError::Kernel {
            operation: "taking AF_XDP sockets over",
            name: config.interface.clone(),
            errno: libc::EPROTO,
        })?;
        let plan = Plan {
            has_sender,
            shared: Some(shared),
        };
        setup::open_queues(config, plan)
    }

    /// The interface's name.
    #[must_use]
    pub fn interface(&self) -> &str {
        self.name.as_str()
    }

    /// The name of the interface that the program is attached to: below a VLAN device, another one.
    #[must_use]
    pub fn device(&self) -> &str {
        self.attachment.device.name.as_str()
    }

    /// The receive queue, from 0.
    #[must_use]
    pub const fn queue_index(&self) -> u32 {
        self.queue_index
    }

    /// Whether the program runs in the driver, not behind it.
    #[must_use]
    pub fn is_in_driver(&self) -> bool {
        self.attachment.place == Place::Driver
    }

    /// Whether the device accesses the cells itself, so that the kernel copies nothing.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.queue.is_zero_copy()
    }

    /// Cells of frames that were sent which have not come back yet.
    #[must_use]
    pub const fn in_flight_cells(&self) -> usize {
        self.queue.in_flight_count()
    }

    /// What the kernel has counted for the socket.
    #[must_use]
    pub fn statistics(&self) -> XdpStatistics {
        if self.is_using {
            let since = self.queue.statistics().less(&self.statistics_before);
            self.statistics_kept.plus(&since)
        } else {
            self.statistics_kept
        }
    }

    /// Whether frames leave by the packet socket: another process uses the rings, or has left frames in them.
    const fn sends_by_packet_socket(&self) -> bool {
        !self.is_using || !self.queue.is_settled()
    }

    /// Asks for the interface's state at most every `STATE_CHECK_INTERVAL`: an empty ring does not
    /// tell an idle interface from one that is down or removed.
    fn poll_interface_state(&mut self, now: Instant) {
        if now < self.check_at {
            return;
        }
        self.check_at = now + STATE_CHECK_INTERVAL;
        match self.check_interface() {
            Ok(()) => self.is_down = false,
            Err(errno) => self.note_error(errno),
        }
    }

    /// `ENETDOWN` if the interface is down, another errno if it was removed.
    fn check_interface(&self) -> Result<(), i32> {
        if let Some(vlan) = &self.attachment.vlan_device {
            vlan.check()?;
        }
        self.queue.check_interface()
    }

    /// The first frame tells whether the device can be polled.
    fn try_polling(&mut self) {
        self.polling = if socket::knows_napi(self.queue.fd()) {
            Polling::On
        } else {
            Polling::InVain
        };
    }

    /// Has the kernel poll the device's queue once, for up to [`POLL_FRAMES_MAX`] frames. How the interface is,
    /// is asked elsewhere.
    fn poll_device(&mut self) {
        // The device may use the cells of frames taken before.
        self.queue.release();
        let _ = self.queue.check_interface();
    }

    /// Whether a VLAN device was named that is down or was removed: its frames still arrive below it.
    fn is_vlan_device_down(&self) -> bool {
        self.attachment.vlan_device.is_some() && (self.is_down || self.gone.is_some())
    }

    /// Notes what the errno of a call says of the interface.
    fn note_error(&mut self, errno: i32) {
        match errno {
            libc::ENETDOWN => {
                // Once for each time it goes down: it is asked again and again.
                self.counters.down_events += u64::from(!self.is_down);
                self.is_down = true;
            }
            libc::ENXIO | libc::ENODEV => self.gone = Some(errno),
            _ => self.counters.receive_errors += 1,
        }
    }

    /// Has the kernel send what waits. Returns the errno if the frame that was offered last, or one before
    /// it, did not leave: `EBUSY` if the driver dropped it, or the kernel because there is no carrier.
    fn kick(&mut self) -> Result<(), i32> {
        let kicked = self.queue.kick();
        if let Some(errno) = kicked.error {
            self.note_error(errno);
            return Err(errno);
        }
        if kicked.dropped_frames > 0 {
            return Err(libc::EBUSY);
        }
        Ok(())
    }

    /// Whether frames that were queued before still wait for room in the device. Where it reads the ring
    /// itself they always do for a moment.
    fn is_stuck(&mut self) -> bool {
        !self.queue.is_zero_copy() && self.queue.waiting_frames() > 0
    }

    /// Makes room for frames.
    fn make_room(&mut self, now: Instant, room: Room) -> Result<(), TransmitError> {
        self.queue.reap();
        if self.queue.has_room(room) && !self.is_stuck() {
            return Ok(());
        }
        // A frame dropped here was reported as sent: the network may drop it as well.
        if let Err(errno) = self.kick()
            && errno != libc::EBUSY
        {
            return Err(self.lose(errno));
        }
        self.queue.reap();
        if self.queue.has_room(room) && !self.is_stuck() {
            return Ok(());
        }
        if self.refusals.record(now) {
            self.counters.refused_frames += 1;
            return Err(self.lose(libc::ENOBUFS));
        }
        self.counters.full_frames += 1;
        Err(TransmitError::Full)
    }

    fn lose(&mut self, errno: i32) -> TransmitError {
        self.refusals.reset();
        self.counters.lost_frames += 1;
        TransmitError::Lost(errno)
    }
}

impl Link for Xdp {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn frame_path(&self) -> FramePath {
        let place = match self.attachment.place {
            Place::Driver => ProgramPlace::Driver,
            Place::Generic => ProgramPlace::Generic,
        };
        FramePath {
            program: Some(place),
            is_zero_copy: self.queue.is_zero_copy(),
            checksums: if self.queue.finishes_checksums() {
                Checksums::Device
            } else {
                Checksums::Software
            },
        }
    }

    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        let Some(map) = &self.attachment.address_map else {
            return Ok(());
        };
        if addresses.len() > ADDRESSES_MAX {
            return Err(libc::E2BIG);
        }
        self.shared_addresses.keep(addresses);
        bpf::set_addresses(map, &self.shared_addresses)?;
        self.shared_addresses.add(addresses);
        bpf::set_addresses(map, &self.shared_addresses)
    }

    /// An MTU beyond what the socket was opened for is taken for that; the kernel drops larger received
    /// frames. The device's GSO limit matters to the packet socket alone: the link cuts.
    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.capabilities.mtu_bytes = state.mtu_bytes.min(self.queue.mtu_bytes_max());
        if let Some(sender) = &mut self.sender {
            sender.apply_interface_state(state);
            let most = sender.segmentation_bytes_max();
            self.capabilities.segmentation_bytes_max = self.cut_bytes_max.min(most);
        }
        self.capabilities
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        self.set_using(is_receiving)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        if !self.is_using {
            self.poll_interface_state(now);
            return self.gone.map_or(Ok(0), |errno| Err(LinkError::Gone(errno)));
        }
        // So that the cells come back when nothing more is sent, nor lent.
        if !self.queue.is_lending() {
            self.queue.reap();
        }
        // The interface below a VLAN device receives also if that is down or gone.
        if self.attachment.vlan_device.is_some() {
            self.poll_interface_state(now);
        }
        let is_down = self.is_vlan_device_down();
        let (mut taken, mut handed) = (0, 0);
        // With so many taken, an empty ring means that the device is to be polled: once at first, and again
        // if the last poll handed on as many frames as one may.
        let mut poll_at = matches!(self.polling, Polling::Untried | Polling::On).then_some(0);
        while taken < frames_max {
            let Some(frame) = self.queue.take() else {
                if poll_at.is_none_or(|frames| taken < frames) {
                    break;
                }
                poll_at = Some(taken + POLL_FRAMES_MAX);
                self.poll_device();
                continue;
            };
            taken += 1;
            let frame = match frame {
                Taken::Frame(frame) => frame,
                Taken::TooLarge => {
                    self.counters.truncated_frames += 1;
                    continue;
                }
                Taken::Invalid => {
                    self.counters.receive_errors += 1;
                    continue;
                }
            };
            if is_down {
                continue;
            }
            self.counters.count_received(frame.len());
            handed += 1;
            let is_trusted = self.has_unfinished_checksums && has_unfinished_checksum(frame);
            let checksum = if is_trusted {
                ChecksumState::Trusted
            } else {
                ChecksumState::Unverified
            };
            sink(Received { frame, checksum });
        }
        self.queue.release();
        if self.is_stuck() {
            // What a frame's own call could not send.
            let _ = self.kick();
        }
        if handed > 0 {
            if self.polling == Polling::Untried {
                self.try_polling();
            }
            return Ok(handed);
        }
        self.poll_interface_state(now);
        self.gone.map_or(Ok(0), |errno| Err(LinkError::Gone(errno)))
    }

    fn is_polling_in_vain(&self) -> bool {
        self.polling == Polling::InVain
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        self.copy_reason.clone().map_or(Ok(()), Err)
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.zero_copy()?;
        self.queue.borrow_slots(slots).map_err(CopyReason::NoRing)
    }

    fn return_slots(&mut self) {
        self.queue.return_slots();
    }

    fn give_back(&mut self, _now: Instant, sink: &mut dyn FnMut(u32)) {
        if self.is_using {
            self.queue.reap();
        }
        self.queue.give_back(sink);
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        if self.is_using && !self.queue.is_settled() {
            self.queue.reap();
        }
        if self.sends_by_packet_socket()
            && let Some(sender) = &mut self.sender
        {
            return sender.transmit(now, frame);
        }
        let bytes = frame.bytes();
        let payload_bytes = bytes - frame.headers.len();
        let segment_bytes = frame.offload.segmentation.map(|segmentation| {
            assert!(
                frame.offload.checksum.is_some(),
                "segmentation without a partial checksum: each cut segment needs its own"
            );
            usize::from(segmentation.segment_bytes)
        });
        let first_bytes = segment_bytes.map_or(payload_bytes, |bytes| bytes.min(payload_bytes));
        let frames = segment_bytes.map_or(1, |bytes| payload_bytes.div_ceil(bytes.max(1)).max(1));
        let frame_bytes = frame.headers.len() + first_bytes;
        let room = self.queue.room_of(frames, frame_bytes, payload_bytes);
        let is_too_large = frame_bytes > ETHERNET_BYTES + usize::from(self.capabilities.mtu_bytes)
            || bytes > ETHERNET_BYTES + IP_PACKET_BYTES_MAX as usize
            || room.cells > self.queue.cell_count();
        if is_too_large {
            return Err(self.lose(libc::EMSGSIZE));
        }
        if let Some(errno) = self.gone {
            return Err(self.lose(errno));
        }
        // Not queued while it is known to be down: a frame would wait there until it is up.
        if self.is_down {
            if let Err(errno) = self.check_interface() {
                self.note_error(errno);
                return Err(self.lose(errno));
            }
            self.is_down = false;
        }
        self.make_room(now, room)?;
        let lent = self.queue.find_lent(frame);
        let queue = &mut self.queue;
        let mut lent_descriptors = 0;
        if queue.finishes_checksums() {
            wire::cut_unfinished(frame, &mut |headers, parts| {
                let checksum = frame.offload.checksum;
                lent_descriptors += queue.push(headers, parts, lent.as_ref(), checksum);
            });
        } else {
            wire::cut(frame, &mut |headers, parts| {
                lent_descriptors += queue.push(headers, parts, lent.as_ref(), None);
            });
        }
        if let Some(part) = &lent {
            self.queue.lend(part, lent_descriptors);
        }
        self.queue.publish();
        match (self.kick(), lent) {
            (Ok(()), None) => {
                self.refusals.reset();
                self.counters.count_transmitted(bytes);
                Ok(Sent::Copied)
            }
            // Also if it did not leave: the slot's descriptors are in the ring, or on their way back.
            (_, Some(part)) => {
                self.refusals.reset();
                self.counters.count_transmitted(bytes);
                self.counters.lent_frames += 1;
                Ok(Sent::Lent(part.slot))
            }
            (Err(errno), None) => Err(self.lose(errno)),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_using.then(|| self.queue.fd())
    }

    fn request_fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_using.then(|| self.requests.fd())
    }

    fn clear_requests(&mut self) -> bool {
        self.requests.clear();
        // Behind it: a frame that comes later has a record of its own.
        self.is_using && self.queue.has_received()
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.sender {
            Some(sender) if self.sends_by_packet_socket() => Some(sender.fd()),
            _ => self.poll_fd(),
        }
    }

    fn counters(&self) -> LinkCounters {
        let kernel = self.statistics();
        let (queued_descriptors, completed_descriptors) = self.queue.descriptor_counts();
        let [offered_cells, accepted_cells, received_cells] = self.queue.receive_counts();
        let own = LinkCounters {
            overflow_frames: kernel.receive_dropped_frames + kernel.receive_ring_full_frames,
            receive_errors: self.counters.receive_errors
                + kernel.receive_invalid_descriptors
                + self.queue.stray_cells(),
            lost_frames: self.counters.lost_frames + kernel.transmit_invalid_descriptors,
            queued_descriptors,
            completed_descriptors,
            offered_cells,
            accepted_cells,
            received_cells,
            ..self.counters
        };
        match &self.sender {
            Some(sender) => own.plus(&sender.counters()),
            None => own,
        }
    }
}

/// The largest MTU of frames in one cell, of an interface without a tag or of a VLAN's, whose frames have
/// one.
const fn mtu_bytes_max(has_tag: bool) -> u16 {
    if has_tag {
        MTU_BYTES_MAX - 4
    } else {
        MTU_BYTES_MAX
    }
}

/// The largest IP packet that the link takes to cut it: all of its frames have cells. `has_lent_cells`: slots
/// are lent, and the memory is registered for metadata.
fn segmentation_bytes_max(transmit_cells: u32, has_lent_cells: bool) -> u32 {
    let bytes_per_cell = if has_lent_cells {
        SEGMENT_BYTES_MIN_LENT
    } else {
        SEGMENT_BYTES_MIN
    };
    IP_PACKET_BYTES_MAX.min(transmit_cells * bytes_per_cell)
}

#[cfg(test)]
mod tests;
