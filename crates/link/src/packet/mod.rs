//! Frames through `AF_PACKET` sockets, on an interface that the kernel's own stack also uses.
//!
//! The kernel keeps the interface, its addresses and its traffic. Atlas has other IP addresses and,
//! by default, another MAC; a BPF filter passes only frames for those (see `filter`). Every frame
//! sent carries a virtio-net header, so it may be 64 KB large and lack its checksum; the kernel does
//! in software what the device cannot. A second socket, without that header, receives (`ring` says
//! why).
//!
//! It refuses interfaces that are not Ethernet, and tagged frames. It does not send from a transmit
//! ring (`PACKET_TX_RING`), although that is safe: the kernel takes a ring's frames in order only,
//! and reads complete in any order.
//!
//! Bounds: for each queue, a receive ring (see `ring`), `RECEIVE_BUFFER_BYTES` in the kernel for frames too large
//! for the ring, `SEND_BUFFER_BYTES` for frames that wait to be sent. One system call for each frame
//! sent, none for a small frame received.
//!
//! **Several queues** of one interface ([`Packet::open_queues`]) are for as many workers. Each has its
//! own sockets, ring, bypass and slots on loan, and notices by itself that the interface is down or
//! gone. The kernel divides the frames received among them (`fanout`). While the interface comes up
//! again after it was down, they join one after the other: frames of that moment may reach another
//! queue than later ones.
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
//! **Known limits.** Multicast listener reports are not sent: behind a switch with MLD snooping,
//! neighbour solicitations may not arrive (IPv4 is not affected). A wireless or cloud network may
//! refuse a second MAC: then use [`MacChoice::Interface`]. With that choice on a host that
//! forwards packets, the kernel also tries to forward the packets that are sent to Atlas.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clock::Instant;
use memory::SlotMemory;
use wire::{MacAddress, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{LinkError, SetupError, TransmitError};
use crate::interface::{InterfaceName, clamp_mtu, derived_mac, describe};
use crate::netlink::InterfaceDescription;
use crate::refusal::RefusalPeriod;
use crate::steering::{QUEUES_MAX, SEED};
use crate::sys;
use crate::vnet::VnetHeader;
use crate::{
    Capabilities, CopyReason, ETHERNET_BYTES, InterfaceState, Link, Received, STATE_CHECK_INTERVAL,
    Sent, gather, linear_bytes, segmentation_bytes_max,
};

mod bpf;
mod fanout;
mod features;
mod filter;
mod ring;
mod slot_rings;

use features::SegmentationFeatures;
pub use filter::ADDRESSES_MAX;
use ring::{ReceiveRing, RingFrame};
use slot_rings::{Offered, SlotRings};

/// Bytes that may wait in the kernel of received frames too large for the ring: about a hundred
/// frames of 64 KB. `[guess]`
const RECEIVE_BUFFER_BYTES: i32 = 16 << 20;

/// Bytes of frames that may wait in a queueing discipline before `transmit` answers `Full`.
/// Bypassing it, frames wait only in the device's own ring. `[guess]`
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// Drivers that hold a frame until its device has read it: what they send may be overwritten when they
/// release it. Others release it when they queue it, or copy it, and cannot tell.
const COMPLETING_DRIVERS: [&str; 8] = [
    "bnxt_en",
    "e1000e",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mlx5_core",
];

const CAPABILITY: &str = "cap_net_raw,cap_net_admin";

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of an existing Ethernet interface.
    pub interface: String,
    /// Our addresses, 1 to [`ADDRESSES_MAX`]; none of them may be the kernel's.
    pub addresses: Vec<IpAddr>,
    /// The MAC address they are reached at.
    pub mac: MacChoice,
    /// Bytes that may wait to be sent before `Full`; `None`: 16 MiB. The kernel doubles it; its
    /// minimum is 4,608.
    pub send_buffer_bytes: Option<u32>,
    /// Whether to bypass the queueing discipline where that is possible (see the module).
    pub qdisc_bypass: bool,
    /// Whether frames are sent from their slots.
    pub zero_copy: ZeroCopy,
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

impl PacketConfig {
    /// The usual choices for these addresses on this interface.
    #[must_use]
    pub fn new(interface: &str, addresses: &[IpAddr]) -> Self {
        Self {
            interface: interface.to_owned(),
            addresses: addresses.to_vec(),
            mac: MacChoice::Own,
            send_buffer_bytes: None,
            qdisc_bypass: true,
            zero_copy: ZeroCopy::Auto,
        }
    }
}

/// Which MAC address is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacChoice {
    /// A locally administered one, derived from the interface's name and MAC and our first address:
    /// the same at every start, different on every host and for every server.
    #[default]
    Own,
    /// The interface's, shared with the kernel.
    Interface,
    /// This one.
    Given(MacAddress),
}

/// A packet socket on one interface, opened.
#[derive(Debug)]
pub struct Packet {
    receiver: OwnedFd,
    /// Bound to no protocol, so it receives nothing.
    sender: OwnedFd,
    name: InterfaceName,
    capabilities: Capabilities,
    ring: ReceiveRing,
    counters: LinkCounters,
    zero_copy: ZeroCopy,
    interface_index: i32,
    send_buffer_bytes: Option<u32>,
    /// Present while frames are sent from their slots.
    slot_rings: Option<SlotRings>,
    /// Present while the queueing discipline is bypassed.
    bypass: Option<SegmentationFeatures>,
    /// For how long the device has refused every frame.
    refusals: RefusalPeriod,
    /// When to ask next for the interface's state, if nothing is received.
    check_at: Instant,
    /// Whether the interface was down at the last query.
    is_down: bool,
    /// The errno that reported the removal of the interface.
    gone: Option<i32>,
}

impl Packet {
    /// Opens a socket on the interface and joins it with our addresses.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn open(config: &PacketConfig) -> Result<Self, SetupError> {
        let mut queues = Self::open_queues(config, 1)?;
        Ok(queues.remove(0))
    }

    /// Opens as many queues of the interface, 1 to [`QUEUES_MAX`], each with sockets and a ring of its
    /// own and for one worker. A frame reaches one of them, by [`crate::steering::queue_of`]; all of
    /// them send. Each has joined the interface with our addresses, so they may be dropped in any
    /// order; but the frames of a queue that is dropped go to others.
    ///
    /// # Errors
    /// [`SetupError`], which says what to do.
    pub fn open_queues(config: &PacketConfig, queues: usize) -> Result<Vec<Self>, SetupError> {
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(SetupError::QueueCount {
                count: queues,
                max: QUEUES_MAX,
            });
        }
        let station = Station::find(config)?;
        // In this order: the kernel numbers the sockets of a group by it (see `fanout`).
        let links = (0..queues).map(|_| station.open_queue(config, queues));
        let links: Vec<Self> = links.collect::<Result<_, _>>()?;
        if queues > 1 {
            station.steer(config, &links)?;
        }
        Ok(links)
    }

    /// Whether frames bypass the queueing discipline now.
    #[must_use]
    pub const fn bypasses_qdisc(&self) -> bool {
        self.bypass.is_some()
    }

    /// Asks for the interface's state at most every `STATE_CHECK_INTERVAL`: an empty ring does not
    /// tell an idle interface from one that is down or removed.
    fn poll_interface_state(&mut self, now: Instant) {
        if now < self.check_at {
            return;
        }
        self.check_at = now + STATE_CHECK_INTERVAL;
        let waiting = sys::take_error(self.receiver.as_fd()).unwrap_or_else(|errno| errno);
        if waiting != 0 {
            self.classify_receive_error(waiting);
        }
        // It may be down because it was removed, which causes no error of its own.
        if self.is_down {
            let fd = self.receiver.as_fd();
            match sys::bound_interface(fd) {
                Ok(index) if index > 0 => {
                    // Frames received lately prove nothing: they may have come before it went down.
                    let flags = sys::interface_flags(fd, self.name).map(i32::from);
                    self.is_down = flags.is_ok_and(|flags| flags & libc::IFF_UP == 0);
                }
                Ok(_) => self.gone = Some(libc::ENODEV),
                Err(errno) => self.gone = Some(errno),
            }
        }
    }

    /// Classifies a pending error of the receiving socket.
    fn classify_receive_error(&mut self, errno: i32) {
        match errno {
            libc::ENETDOWN => {
                self.counters.down_events += 1;
                self.is_down = true;
            }
            errno if is_gone(errno) => self.gone = Some(errno),
            _ => self.counters.receive_errors += 1,
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
        let fd = self.sender.as_fd();
        let needed = libc::IFF_UP | libc::IFF_RUNNING;
        let flags = sys::interface_flags(fd, self.name).map(i32::from);
        let is_down = flags.is_ok_and(|flags| flags & needed != needed);
        if is_down || features::has_carrier(fd, self.name) == Some(false) {
            self.counters.down_events += 1;
            return SendFailure::Lost(libc::ENETDOWN);
        }
        let has_stopped_segmenting = self
            .bypass
            .is_some_and(|features| large && !features.are_active(fd, self.name));
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
        let fd = self.sender.as_fd();
        sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 0).is_ok()
    }
}

/// The interface as it was found, and our MAC on it.
struct Station {
    name: InterfaceName,
    found: InterfaceDescription,
    interface_mac: MacAddress,
    mac: MacAddress,
}

impl Station {
    fn find(config: &PacketConfig) -> Result<Self, SetupError> {
        let name = InterfaceName::parse(&config.interface)?;
        let count = config.addresses.len();
        if !(1..=ADDRESSES_MAX).contains(&count) {
            return Err(SetupError::AddressCount {
                count,
                max: ADDRESSES_MAX,
            });
        }
        let found = describe(name)?;
        let interface_mac = found.ethernet_mac(name)?;
        let mac = match config.mac {
            MacChoice::Own => own_mac(name, interface_mac, &config.addresses),
            MacChoice::Interface => interface_mac,
            MacChoice::Given(mac) => mac,
        };
        Ok(Self {
            name,
            found,
            interface_mac,
            mac,
        })
    }

    /// Opens one of `queues` queues. With more than one it receives nothing yet.
    fn open_queue(&self, config: &PacketConfig, queues: usize) -> Result<Packet, SetupError> {
        let (name, index) = (self.name, self.found.index);
        let failed = |errno| name.error("opening a packet socket", CAPABILITY, errno);
        let sender = open_sender(config.send_buffer_bytes).map_err(failed)?;
        sys::bind_to_interface(sender.as_fd(), index, 0).map_err(failed)?;
        let bypass = if config.qdisc_bypass {
            start_bypass(sender.as_fd(), name)
        } else {
            None
        };
        // Protocol 0: nothing is received before the filter is in place and we bind.
        let receiver = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(failed)?;
        let fd = receiver.as_fd();
        set_receive_options(fd).map_err(failed)?;
        let ring = ReceiveRing::new(fd).map_err(failed)?;
        let filter = match queues {
            1 => filter::program(self.mac, &config.addresses),
            // Before it is in the group, a socket would receive the frames of all queues.
            _ => filter::refuse_all(),
        };
        sys::attach_filter(fd, &filter).map_err(failed)?;
        let addresses = &config.addresses;
        join(fd, index, self.mac, self.interface_mac, addresses).map_err(failed)?;
        sys::bind_to_interface(fd, index, libc::ETH_P_ALL).map_err(failed)?;
        let capabilities = Capabilities {
            mac: self.mac,
            mtu_bytes: clamp_mtu(self.found.mtu_bytes),
            segmentation_bytes_max: segmentation_bytes_max(self.found.gso_bytes_max),
            checksum_offload: true,
        };
        Ok(Packet {
            receiver,
            sender,
            name,
            capabilities,
            ring,
            counters: LinkCounters::default(),
            zero_copy: config.zero_copy,
            interface_index: index,
            send_buffer_bytes: config.send_buffer_bytes,
            slot_rings: None,
            bypass,
            refusals: RefusalPeriod::default(),
            check_at: Instant::ZERO,
            is_down: false,
            gone: None,
        })
    }

    /// Has the kernel divide the frames among the queues, and lets these receive.
    fn steer(&self, config: &PacketConfig, queues: &[Packet]) -> Result<(), SetupError> {
        let sockets: Vec<_> = queues.iter().map(|queue| queue.receiver.as_fd()).collect();
        let failed = |errno| match errno {
            libc::EPERM | libc::EACCES => self.name.error("joining queues", CAPABILITY, errno),
            errno => SetupError::Fanout {
                name: self.name.as_str().to_owned(),
                errno,
            },
        };
        fanout::join(&sockets, &fanout::program(SEED)).map_err(failed)?;
        let filter = filter::incoming_program(self.mac, &config.addresses);
        let mut sockets = sockets.into_iter();
        sockets.try_for_each(|fd| sys::attach_filter(fd, &filter).map_err(failed))
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

impl Link for Packet {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.capabilities.mtu_bytes = state.mtu_bytes;
        self.capabilities.segmentation_bytes_max = state.segmentation_bytes_max;
        self.capabilities
    }

    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        let (mut taken, mut handed) = (0, 0);
        while taken < frames_max {
            let Some(frame) = self.ring.take(self.receiver.as_fd()) else {
                break;
            };
            taken += 1;
            let RingFrame::Complete(frame, checksum) = frame else {
                self.counters.truncated_frames += 1;
                continue;
            };
            self.counters.count_received(frame.len());
            handed += 1;
            sink(Received { frame, checksum });
        }
        if self.ring.take_losing() {
            let dropped = sys::take_drops(self.receiver.as_fd()).unwrap_or_default();
            self.counters.overflow_frames += u64::from(dropped);
        }
        if let Some(errno) = self.ring.take_error() {
            self.classify_receive_error(errno);
        }
        if taken > 0 {
            return Ok(handed);
        }
        self.poll_interface_state(now);
        self.gone.map_or(Ok(0), |errno| Err(LinkError::Gone(errno)))
    }

    fn zero_copy(&self) -> Result<(), CopyReason> {
        match self.zero_copy {
            ZeroCopy::On => Ok(()),
            ZeroCopy::Off => Err(CopyReason::Off),
            ZeroCopy::Auto if self.bypass.is_none() => Err(CopyReason::NoSegmentation),
            ZeroCopy::Auto => {
                let driver = features::driver(self.sender.as_fd(), self.name);
                let driver = driver.unwrap_or_default();
                if COMPLETING_DRIVERS.contains(&driver.as_str()) {
                    Ok(())
                } else {
                    Err(CopyReason::UnknownDriver { driver })
                }
            }
        }
    }

    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        self.zero_copy()?;
        let (bypasses, bytes) = (self.bypass.is_some(), self.send_buffer_bytes);
        let open = || {
            let socket = open_sender(bytes)?;
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

    fn return_slots(&mut self) {
        if let Some(rings) = self.slot_rings.take() {
            rings.end();
        }
    }

    fn give_back(&mut self, _now: Instant, sink: &mut dyn FnMut(u32)) {
        if let Some(rings) = &mut self.slot_rings {
            rings.give_back(sink);
        }
    }

    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError> {
        let bytes = frame.bytes();
        let large = frame.offload.segmentation.is_some();
        // The kernel segments a larger frame in software. With the queueing discipline bypassed it
        // would refuse the frame for ever instead, with the errno of a full queue.
        let bytes_max = ETHERNET_BYTES + self.capabilities.segmentation_bytes_max as usize;
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
                Offered::Refused => send_copied(self.sender.as_fd(), frame),
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

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.as_fd())
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sender.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// Whether an errno says that the interface of a packet socket was removed.
const fn is_gone(errno: i32) -> bool {
    matches!(errno, libc::ENXIO | libc::ENODEV)
}

/// Sends a frame that the kernel copies.
fn send_copied(sender: BorrowedFd<'_>, frame: &Outgoing<'_>) -> Result<(), i32> {
    let header = VnetHeader::from_offload(&frame.offload, linear_bytes(frame)).to_bytes();
    let (parts, count) = gather(&header, frame);
    sys::send_gathered(sender, parts.get(..count).unwrap_or_default())
}

/// Opens a socket that sends with virtio-net headers and receives nothing, not bound to an interface.
fn open_sender(send_buffer_bytes: Option<u32>) -> Result<OwnedFd, i32> {
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let fd = socket.as_fd();
    sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    let send_bytes = send_buffer_bytes.map(i32::try_from);
    let send_bytes = send_bytes.map_or(SEND_BUFFER_BYTES, |bytes| bytes.unwrap_or(i32::MAX));
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_bytes)?;
    Ok(socket)
}

/// Sets the options that must hold before the first frame.
fn set_receive_options(fd: BorrowedFd<'_>) -> Result<(), i32> {
    // Frames that this host sends on the interface are not received.
    sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set_buffer(
        fd,
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        RECEIVE_BUFFER_BYTES,
    )
}

/// Sets a buffer size past the system's limit, or up to it without `CAP_NET_ADMIN`.
pub(crate) fn set_buffer(
    fd: BorrowedFd<'_>,
    force: i32,
    limited: i32,
    bytes: i32,
) -> Result<(), i32> {
    sys::set_integer(fd, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sys::set_integer(fd, libc::SOL_SOCKET, limited, bytes))
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

/// Lets frames to our MAC, our solicited-node groups and all nodes through the device's filter.
pub(crate) fn join(
    fd: BorrowedFd<'_>,
    index: i32,
    mac: MacAddress,
    interface_mac: MacAddress,
    addresses: &[IpAddr],
) -> Result<(), i32> {
    if mac != interface_mac {
        // A device that cannot filter a second address has to receive everything.
        sys::add_membership(fd, index, libc::PACKET_MR_UNICAST, mac)
            .or_else(|_| sys::add_membership(fd, index, libc::PACKET_MR_PROMISC, mac))?;
    }
    for address in addresses {
        if let IpAddr::V6(address) = address {
            // A host that has one of our addresses announces it to the all-nodes group. The kernel
            // may not have joined that group: IPv6 can be disabled on this interface.
            for group in [solicited_node_mac(*address), ALL_NODES_MAC] {
                sys::add_membership(fd, index, libc::PACKET_MR_MULTICAST, group)?;
            }
        }
    }
    Ok(())
}

/// The group MAC of all IPv6 nodes (RFC 4291 s2.7.1, RFC 2464 s7).
const ALL_NODES_MAC: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);

/// RFC 4291 s2.7.1 and RFC 2464 s7: the group MAC that solicitations of an address are sent to.
const fn solicited_node_mac(address: Ipv6Addr) -> MacAddress {
    let [.., d, e, f] = address.octets();
    MacAddress([0x33, 0x33, 0xff, d, e, f])
}

/// Our MAC if it is our choice ([`MacChoice::Own`]).
pub(crate) fn own_mac(
    name: InterfaceName,
    interface_mac: MacAddress,
    addresses: &[IpAddr],
) -> MacAddress {
    let first = addresses
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    let parts: [&[u8]; 4] = [
        b"packet",
        name.as_str().as_bytes(),
        &interface_mac.0,
        first.as_bytes(),
    ];
    derived_mac(&parts)
}

#[cfg(test)]
mod tests {
    use super::{
        InterfaceName, MacAddress, Packet, PacketConfig, QUEUES_MAX, own_mac, solicited_node_mac,
    };
    use crate::error::SetupError;

    #[test]
    fn the_solicited_node_group_keeps_the_last_three_bytes() {
        let group = solicited_node_mac("fd00::12:3456".parse().unwrap());
        assert_eq!(group, MacAddress([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
    }

    #[test]
    fn own_macs_differ_by_host_interface_and_address() {
        let name = |name| InterfaceName::parse(name).unwrap();
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let one = ["10.0.0.1".parse().unwrap()];
        let two = ["10.0.0.2".parse().unwrap()];
        let usual = own_mac(name("eth0"), mac(1), &one);
        assert_eq!(usual, own_mac(name("eth0"), mac(1), &one));
        assert_ne!(usual, own_mac(name("eth1"), mac(1), &one));
        assert_ne!(usual, own_mac(name("eth0"), mac(2), &one));
        assert_ne!(usual, own_mac(name("eth0"), mac(1), &two));
    }

    #[test]
    fn a_link_may_be_driven_by_another_thread_than_opened_it() {
        const fn is_send<T: Send>() {}
        is_send::<Packet>();
    }

    #[test]
    fn no_queue_and_one_more_than_possible_are_refused() {
        let config = PacketConfig::new("no-such-link", &["10.0.0.1".parse().unwrap()]);
        let refusal = |queues| Packet::open_queues(&config, queues).unwrap_err();
        for count in [0, QUEUES_MAX + 1] {
            let max = QUEUES_MAX;
            assert_eq!(refusal(count), SetupError::QueueCount { count, max });
        }
        for count in [1, QUEUES_MAX] {
            assert!(matches!(refusal(count), SetupError::NoInterface { .. }));
        }
    }

    #[test]
    fn bad_names_addresses_and_devices_are_refused_with_their_reason() {
        let address = "10.0.0.1".parse().unwrap();
        let refusal =
            |name, addresses: &[_]| Packet::open(&PacketConfig::new(name, addresses)).unwrap_err();
        assert!(matches!(
            refusal("", &[address]),
            SetupError::BadName { .. }
        ));
        assert_eq!(
            refusal("lo", &[]),
            SetupError::AddressCount { count: 0, max: 64 }
        );
        let many = refusal("lo", &[address; 65]);
        assert_eq!(many, SetupError::AddressCount { count: 65, max: 64 });
        let missing = refusal("no-such-link", &[address]);
        assert_eq!(
            missing,
            SetupError::NoInterface {
                name: "no-such-link".to_owned()
            }
        );
        assert!(matches!(
            refusal("lo", &[address]),
            SetupError::NotEthernet { .. }
        ));
    }
}
