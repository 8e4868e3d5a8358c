//! A received frame, taken apart in one call.
//!
//! [`parse_frame`] returns a message a server can act on, or the one reason why the frame is refused.
//! It refuses source and destination addresses that no packet may have; whether a frame is for one
//! of our addresses is for the caller to decide.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use crate::arp::ArpRepr;
use crate::checksum;
use crate::ecn::Ecn;
use crate::ethernet::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetFrame, EthernetRepr, MacAddress,
};
use crate::fragment::Fragment;
use crate::icmpv4::{CODE_FRAGMENTATION_NEEDED, Icmpv4Message};
use crate::icmpv6::Icmpv6Message;
use crate::ipv4::{self, Ipv4Packet};
use crate::ipv6::{self, Ipv6Packet};
use crate::listener;
use crate::quote::OriginalTcp;
use crate::reason::DropReason;
use crate::tcp::{TcpRepr, TcpSegment};

/// What the link knows of a received frame's transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumState {
    /// Verified by hardware, or never computed because the sender shares this host's memory
    /// (virtio-net `DATA_VALID` / `NEEDS_CSUM`): parsing skips the TCP/ICMP checksum.
    Trusted,
    /// Unknown: parsing verifies it.
    Unverified,
}

/// Both ends of a received packet, link and network layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// The station that sent the frame on our link: the peer, or its router.
    pub source_mac: MacAddress,
    /// Our MAC, or a group we are in.
    pub destination_mac: MacAddress,
    /// The peer's address.
    pub source: IpAddr,
    /// Our address, or a group we are in; of the same family as `source`.
    pub destination: IpAddr,
}

/// The contents of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Incoming<'a> {
    /// ARP, request or reply.
    Arp(ArpRepr),
    /// A TCP segment.
    Tcp {
        /// Where it came from.
        path: Path,
        /// Its header.
        segment: TcpRepr,
        /// The ECN field of its IP header.
        ecn: Ecn,
        /// Its text; Ethernet padding is cut off. Up to 65,515 bytes with receive offload.
        payload: &'a [u8],
    },
    /// An echo request over IPv4.
    EchoV4 {
        /// Where it came from.
        path: Path,
        /// To be returned.
        identifier: u16,
        /// To be returned.
        sequence: u16,
        /// To be returned.
        data: &'a [u8],
    },
    /// An echo request over IPv6.
    EchoV6 {
        /// Where it came from.
        path: Path,
        /// To be returned.
        identifier: u16,
        /// To be returned.
        sequence: u16,
        /// To be returned.
        data: &'a [u8],
    },
    /// A neighbour solicitation for `target`.
    NeighborSolicitation {
        /// Where it came from; the source is unspecified in duplicate detection, the destination
        /// mostly a solicited-node group.
        path: Path,
        /// The address asked for.
        target: Ipv6Addr,
        /// The asker's MAC, if it says so.
        source_link: Option<MacAddress>,
    },
    /// Someone on our link says that it has `target`.
    NeighborAdvertisement {
        /// Where it came from; the destination is a group, or who asked.
        path: Path,
        /// The address spoken of.
        target: Ipv6Addr,
        /// The MAC it is said to be at, if any is.
        target_link: Option<MacAddress>,
        /// It replaces what is known of the address (RFC 4861 s4.4, the flag O).
        is_override: bool,
    },
    /// A router or a switch asks which groups we listen to.
    ListenerQuery {
        /// Where it came from.
        path: Path,
        /// The group asked for; unspecified: all.
        group: Ipv6Addr,
        /// It is to be answered after a random part of this time.
        response_time_max: Duration,
    },
    /// A segment of ours was larger than a link on its way: ICMP type 3 code 4, ICMPv6 type 2.
    PacketTooBig {
        /// Where it came from: some router.
        path: Path,
        /// MTU of that link, bytes, as claimed: any value, and 0 from IPv4 routers older than
        /// RFC 1191. The caller has the floor (RFC 8201 s4: 1280 for IPv6).
        mtu_bytes: u32,
        /// The segment.
        original: OriginalTcp,
    },
    /// A part of a packet.
    Fragment(Fragment<'a>),
    /// A segment of ours could not be delivered: other codes of ICMP type 3, ICMPv6 type 1.
    Unreachable {
        /// Where it came from: some router, or the peer's host.
        path: Path,
        /// The segment.
        original: OriginalTcp,
    },
}

/// Takes an Ethernet frame apart.
///
/// With `ChecksumState::Trusted` the checksums of TCP, ICMP and ICMPv6 are not looked at; that of
/// the IPv4 header always is. Does a bounded amount of work beyond those sums and never allocates.
///
/// # Errors
/// The first [`DropReason`] met, outermost header first.
pub fn parse_frame(frame: &[u8], checksum: ChecksumState) -> Result<Incoming<'_>, DropReason> {
    let frame = EthernetFrame::parse(frame)?;
    let ethernet = frame.repr();
    if ethernet.source.is_group() {
        return Err(DropReason::SourceMacInvalid);
    }
    match ethernet.ethertype {
        ETHERTYPE_ARP => ArpRepr::parse(frame.payload()).map(Incoming::Arp),
        ETHERTYPE_IPV4 => parse_ipv4(&ethernet, frame.payload(), checksum),
        ETHERTYPE_IPV6 => parse_ipv6(&ethernet, frame.payload(), checksum),
        _ => Err(DropReason::EthertypeUnknown),
    }
}

/// Takes a packet apart that was put together of its fragments: `payload` is what they carried, in
/// order, and `protocol` what the first one says that it begins with. Its checksum is verified.
///
/// # Errors
/// The first [`DropReason`] met, outermost header first.
pub fn parse_reassembled(
    path: Path,
    protocol: u8,
    ecn: Ecn,
    payload: &[u8],
) -> Result<Incoming<'_>, DropReason> {
    let checksum = ChecksumState::Unverified;
    match (path.source, path.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ends = [source, destination];
            let packet = Ipv6Packet::reassembled(ends, ecn, protocol, payload)?;
            sort_ipv6(path, &packet, checksum)
        }
        _ => sort_ipv4(path, protocol, ecn, payload, checksum),
    }
}

fn parse_ipv4<'a>(
    ethernet: &EthernetRepr,
    bytes: &'a [u8],
    checksum: ChecksumState,
) -> Result<Incoming<'a>, DropReason> {
    let packet = Ipv4Packet::parse(bytes)?;
    let path = path(
        ethernet,
        packet.source().into(),
        packet.destination().into(),
    );
    let (protocol, ecn, payload) = (packet.protocol(), packet.ecn(), packet.payload());
    let Some(place) = packet.fragment() else {
        return sort_ipv4(path, protocol, ecn, payload, checksum);
    };
    sort_fragment(Fragment {
        path,
        place,
        protocol,
        ecn,
        payload,
    })
}

fn sort_ipv4(
    path: Path,
    protocol: u8,
    ecn: Ecn,
    payload: &[u8],
    checksum: ChecksumState,
) -> Result<Incoming<'_>, DropReason> {
    match protocol {
        ipv4::PROTOCOL_TCP => parse_tcp(path, ecn, payload, checksum),
        ipv4::PROTOCOL_ICMP => {
            check_ends(&path)?;
            sort_icmpv4(path, Icmpv4Message::parse(payload, checksum)?)
        }
        _ => Err(DropReason::ProtocolUnsupported),
    }
}

fn parse_ipv6<'a>(
    ethernet: &EthernetRepr,
    bytes: &'a [u8],
    checksum: ChecksumState,
) -> Result<Incoming<'a>, DropReason> {
    let packet = Ipv6Packet::parse(bytes)?;
    let path = path(
        ethernet,
        packet.source().into(),
        packet.destination().into(),
    );
    let Some(place) = packet.fragment() else {
        return sort_ipv6(path, &packet, checksum);
    };
    sort_fragment(Fragment {
        path,
        place,
        protocol: packet.protocol(),
        ecn: packet.ecn(),
        payload: packet.payload(),
    })
}

fn sort_ipv6<'a>(
    path: Path,
    packet: &Ipv6Packet<'a>,
    checksum: ChecksumState,
) -> Result<Incoming<'a>, DropReason> {
    match packet.protocol() {
        ipv6::PROTOCOL_TCP => parse_tcp(path, packet.ecn(), packet.payload(), checksum),
        ipv6::PROTOCOL_ICMP if listener::is_query(packet) => {
            let query = listener::parse_query(packet, checksum)?;
            Ok(Incoming::ListenerQuery {
                path,
                group: query.group,
                response_time_max: query.response_time_max,
            })
        }
        ipv6::PROTOCOL_ICMP => sort_icmpv6(path, Icmpv6Message::parse(packet, checksum)?),
        _ => Err(DropReason::ProtocolUnsupported),
    }
}

/// Refuses fragments of what would be refused as a whole.
fn sort_fragment(fragment: Fragment<'_>) -> Result<Incoming<'_>, DropReason> {
    let is_supported = match fragment.path.source {
        IpAddr::V4(_) => matches!(fragment.protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_ICMP),
        // Of IPv6, only the first part says what the packet carries, and may begin with options.
        IpAddr::V6(_) => true,
    };
    if !is_supported {
        return Err(DropReason::ProtocolUnsupported);
    }
    check_ends(&fragment.path)?;
    fragment.check()?;
    Ok(Incoming::Fragment(fragment))
}

fn parse_tcp(
    path: Path,
    ecn: Ecn,
    bytes: &[u8],
    checksum: ChecksumState,
) -> Result<Incoming<'_>, DropReason> {
    check_ends(&path)?;
    let view = TcpSegment::parse(bytes)?;
    if checksum == ChecksumState::Unverified {
        let length_bytes =
            u32::try_from(bytes.len()).expect("invariant: the IP length field has sixteen bits");
        let pseudo = checksum::pseudo_header(
            path.source,
            path.destination,
            ipv4::PROTOCOL_TCP,
            length_bytes,
        );
        if !checksum::is_valid(pseudo, bytes) {
            return Err(DropReason::TcpBadChecksum);
        }
    }
    Ok(Incoming::Tcp {
        path,
        segment: view.repr()?,
        ecn,
        payload: view.payload(),
    })
}

fn sort_icmpv4(path: Path, message: Icmpv4Message<'_>) -> Result<Incoming<'_>, DropReason> {
    match message {
        Icmpv4Message::EchoRequest {
            identifier,
            sequence,
            data,
        } => Ok(Incoming::EchoV4 {
            path,
            identifier,
            sequence,
            data,
        }),
        Icmpv4Message::EchoReply { .. } => Err(DropReason::Icmpv4Other),
        Icmpv4Message::Unreachable {
            code,
            mtu_bytes,
            quote,
        } => {
            let original = OriginalTcp::parse_v4(quote)?;
            Ok(if code == CODE_FRAGMENTATION_NEEDED {
                Incoming::PacketTooBig {
                    path,
                    mtu_bytes: mtu_bytes.into(),
                    original,
                }
            } else {
                Incoming::Unreachable { path, original }
            })
        }
    }
}

fn sort_icmpv6(path: Path, message: Icmpv6Message<'_>) -> Result<Incoming<'_>, DropReason> {
    match message {
        Icmpv6Message::EchoRequest {
            identifier,
            sequence,
            data,
        } => {
            check_ends(&path)?;
            Ok(Incoming::EchoV6 {
                path,
                identifier,
                sequence,
                data,
            })
        }
        Icmpv6Message::NeighborSolicitation {
            target,
            source_link,
        } => {
            // A group is the usual destination, and RFC 4861 s7.1.1, which allows no source in some
            // cases, has been seen to.
            if !path.source.is_unspecified() {
                check_source(path.source)?;
            }
            Ok(Incoming::NeighborSolicitation {
                path,
                target,
                source_link,
            })
        }
        Icmpv6Message::NeighborAdvertisement {
            target,
            target_link,
            is_override,
            ..
        } => {
            check_source(path.source)?;
            Ok(Incoming::NeighborAdvertisement {
                path,
                target,
                target_link,
                is_override,
            })
        }
        Icmpv6Message::PacketTooBig { mtu_bytes, quote } => {
            check_ends(&path)?;
            let original = OriginalTcp::parse_v6(quote)?;
            Ok(Incoming::PacketTooBig {
                path,
                mtu_bytes,
                original,
            })
        }
        Icmpv6Message::Unreachable { quote, .. } => {
            check_ends(&path)?;
            let original = OriginalTcp::parse_v6(quote)?;
            Ok(Incoming::Unreachable { path, original })
        }
        Icmpv6Message::EchoReply { .. } => Err(DropReason::Icmpv6Other),
    }
}

fn path(ethernet: &EthernetRepr, source: IpAddr, destination: IpAddr) -> Path {
    Path {
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        source,
        destination,
    }
}

/// Refuses whatever was not sent by one station at one address to one other.
fn check_ends(path: &Path) -> Result<(), DropReason> {
    check_source(path.source)?;
    check_destination(path.destination)?;
    // RFC 1122 s3.3.6: "a host SHOULD silently discard a datagram that is received via a link-layer
    // broadcast [...] but does not specify an IP multicast or broadcast destination address."
    if path.destination_mac.is_group() {
        return Err(DropReason::DestinationMacInvalid);
    }
    Ok(())
}

/// Refuses sources no packet on the wire may have (RFC 1122 s3.2.1.3; RFC 4291 s2.5.2, s2.5.3,
/// s2.7), and mapped ones, which would be the same peer under two names.
fn check_source(address: IpAddr) -> Result<(), DropReason> {
    let is_refused = match address {
        IpAddr::V4(address) => {
            let is_this_network = address.octets()[0] == 0;
            is_this_network || address.is_loopback() || is_group_v4(address)
        }
        IpAddr::V6(address) => {
            address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || address.to_ipv4_mapped().is_some()
        }
    };
    if is_refused {
        Err(DropReason::SourceInvalid)
    } else {
        Ok(())
    }
}

/// Refuses destinations that name no single host, or this one to itself. Broadcasts of a subnet are
/// not known here; they are nobody's own address either.
fn check_destination(address: IpAddr) -> Result<(), DropReason> {
    let is_group = match address {
        IpAddr::V4(address) => is_group_v4(address),
        IpAddr::V6(address) => address.is_multicast(),
    };
    if is_group || address.is_unspecified() || address.is_loopback() {
        return Err(DropReason::DestinationInvalid);
    }
    Ok(())
}

fn is_group_v4(address: Ipv4Addr) -> bool {
    address.is_multicast() || address.is_broadcast()
}
