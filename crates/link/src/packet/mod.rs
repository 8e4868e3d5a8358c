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
//! for the ring; `sender` has those of sending. One system call for each frame
//! sent, none for a small frame received.
//!
//! **Several queues** of one interface ([`Packet::open_queues`]) are for as many workers. Each has its
//! own sockets, ring, bypass and slots on loan, and notices by itself that the interface is down or
//! gone. The kernel divides the frames received among them (`fanout`). While the interface comes up
//! again after it was down, they join one after the other: frames of that moment may reach another
//! queue than later ones.
//!
//! **Known limits.** A wireless or cloud network may refuse a second MAC: then use
//! [`MacChoice::Interface`]. With that choice on a host that forwards packets, the kernel also tries
//! to forward the packets that are sent to Atlas.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clock::Instant;
use counters::CounterSet as _;
use memory::SlotMemory;
use wire::{MacAddress, Outgoing};

use crate::counters::LinkCounters;
use crate::error::{LinkError, SetupError, TransmitError};
use crate::interface::{InterfaceName, clamp_mtu, derived_mac, describe};
use crate::netlink::InterfaceDescription;
use crate::steering::{QUEUES_MAX, SEED};
use crate::sys;
use crate::{Capabilities, CopyReason, InterfaceState, Link, Received, STATE_CHECK_INTERVAL, Sent};

mod bpf;
mod fanout;
mod filter;
mod ring;
mod sender;
mod slot_rings;

pub use filter::ADDRESSES_MAX;
use ring::{ReceiveRing, RingFrame};
pub use sender::ZeroCopy;
pub(crate) use sender::{SendConfig, Sender};

/// Bytes that may wait in the kernel of received frames too large for the ring: about a hundred
/// frames of 64 KB. `[guess]`
const RECEIVE_BUFFER_BYTES: i32 = 16 << 20;

const CAPABILITY: &str = "cap_net_raw,cap_net_admin";

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of an existing Ethernet interface.
    pub interface: String,
    /// Our addresses, 1 to [`ADDRESSES_MAX`]; none of them may be the kernel's.
    pub addresses: Vec<IpAddr>,
    /// Those of them that another station answers ARP and neighbour discovery for, a load balancer, which
    /// sends us the packets to them: the filter passes no neighbour messages about these.
    pub virtual_addresses: Vec<IpAddr>,
    /// The MAC address they are reached at.
    pub mac: MacChoice,
    /// Bytes that may wait to be sent before `Full`; `None`: 16 MiB. The kernel doubles it; its
    /// minimum is 4,608.
    pub send_buffer_bytes: Option<u32>,
    /// Whether to bypass the queueing discipline where that is possible (see the module).
    pub qdisc_bypass: bool,
    /// Whether frames are sent from their slots.
    pub zero_copy: ZeroCopy,
    /// Whether frames reach the sockets at once, or from [`Link::set_receiving`] on.
    pub is_receiving: bool,
}

impl PacketConfig {
    /// The usual choices for these addresses on this interface.
    #[must_use]
    pub fn new(interface: &str, addresses: &[IpAddr]) -> Self {
        Self {
            interface: interface.to_owned(),
            addresses: addresses.to_vec(),
            virtual_addresses: Vec::new(),
            mac: MacChoice::Own,
            send_buffer_bytes: None,
            qdisc_bypass: true,
            zero_copy: ZeroCopy::Auto,
            is_receiving: true,
        }
    }

    const fn send(&self) -> SendConfig {
        SendConfig {
            buffer_bytes: self.send_buffer_bytes,
            qdisc_bypass: self.qdisc_bypass,
            zero_copy: self.zero_copy,
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
    sender: Sender,
    capabilities: Capabilities,
    ring: ReceiveRing,
    /// Passes the frames that are for us.
    filter: Vec<libc::sock_filter>,
    /// Without those of `sender`.
    counters: LinkCounters,
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
        let mut links: Vec<Self> = links.collect::<Result<_, _>>()?;
        if queues > 1 {
            station.steer(&mut links, config.is_receiving)?;
        }
        Ok(links)
    }

    /// Whether frames bypass the queueing discipline now.
    #[must_use]
    pub const fn bypasses_qdisc(&self) -> bool {
        self.sender.bypasses_qdisc()
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
        // A removal causes no error of its own: the interface goes down, which is told once, and later the
        // socket is bound to none.
        let fd = self.receiver.as_fd();
        match sys::bound_interface(fd) {
            Ok(index) if index > 0 => self.is_down = self.is_down && !is_up(fd, index),
            Ok(_) => self.gone = Some(libc::ENODEV),
            Err(errno) => self.gone = Some(errno),
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
        let sender = Sender::open(name, &self.found, &config.send()).map_err(failed)?;
        // Protocol 0: nothing is received before the filter is in place and we bind.
        let receiver = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(failed)?;
        let fd = receiver.as_fd();
        set_receive_options(fd).map_err(failed)?;
        let ring = ReceiveRing::new(fd).map_err(failed)?;
        let answered = answered(&config.addresses, &config.virtual_addresses);
        let filter = match queues {
            1 => filter::program(self.mac, &config.addresses, &answered),
            _ => filter::incoming_program(self.mac, &config.addresses, &answered),
        };
        // Before it is in the group, a socket would receive the frames of all queues.
        let first = match config.is_receiving && queues == 1 {
            true => &filter,
            false => &filter::refuse_all(),
        };
        sys::attach_filter(fd, first).map_err(failed)?;
        join(fd, index, self.mac, self.interface_mac, &answered).map_err(failed)?;
        sys::bind_to_interface(fd, index, libc::ETH_P_ALL).map_err(failed)?;
        let capabilities = Capabilities {
            mac: self.mac,
            mtu_bytes: clamp_mtu(self.found.mtu_bytes),
            segmentation_bytes_max: sender.segmentation_bytes_max(),
            checksum_offload: true,
        };
        Ok(Packet {
            receiver,
            sender,
            capabilities,
            ring,
            filter,
            counters: LinkCounters::default(),
            check_at: Instant::ZERO,
            is_down: false,
            gone: None,
        })
    }

    /// Has the kernel divide the frames among the queues, and lets these receive.
    fn steer(&self, queues: &mut [Packet], is_receiving: bool) -> Result<(), SetupError> {
        let sockets: Vec<_> = queues.iter().map(|queue| queue.receiver.as_fd()).collect();
        let failed = |errno| match errno {
            libc::EPERM | libc::EACCES => self.name.error("joining queues", CAPABILITY, errno),
            errno => SetupError::Fanout {
                name: self.name.as_str().to_owned(),
                errno,
            },
        };
        fanout::join(&sockets, &fanout::program(SEED)).map_err(failed)?;
        if !is_receiving {
            return Ok(());
        }
        let mut queues = queues.iter_mut();
        queues.try_for_each(|queue| queue.set_receiving(true).map_err(failed))
    }
}

impl Link for Packet {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        self.sender.apply_interface_state(state);
        self.capabilities.mtu_bytes = state.mtu_bytes;
        self.capabilities.segmentation_bytes_max = self.sender.segmentation_bytes_max();
        self.capabilities
    }

    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        let fd = self.receiver.as_fd();
        if is_receiving {
            sys::attach_filter(fd, &self.filter)
        } else {
            sys::attach_filter(fd, &filter::refuse_all())
        }
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
        let gone = self.gone.or(self.sender.gone());
        gone.map_or(Ok(0), |errno| Err(LinkError::Gone(errno)))
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
        Some(self.receiver.as_fd())
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sender.fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters.plus(&self.sender.counters())
    }
}

/// Whether an interface is known to be up. Frames received lately prove nothing: they may have come before it
/// went down. Without an answer it is not: it is being removed then.
fn is_up(fd: BorrowedFd<'_>, index: i32) -> bool {
    sys::interface_flags(fd, index).is_ok_and(|flags| i32::from(flags) & libc::IFF_UP != 0)
}

/// Whether an errno says that the interface of a packet socket was removed.
const fn is_gone(errno: i32) -> bool {
    matches!(errno, libc::ENXIO | libc::ENODEV)
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

/// The addresses that neighbour messages are taken about.
pub(crate) fn answered(addresses: &[IpAddr], virtual_addresses: &[IpAddr]) -> Vec<IpAddr> {
    let is_answered = |address: &&IpAddr| !virtual_addresses.contains(address);
    addresses.iter().filter(is_answered).copied().collect()
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
