//! Writes outgoing frames.
//!
//! Control frames (ARP, neighbour discovery, echo) are written whole. Of a TCP frame only the headers
//! are written: the link gathers the payload from where it is, so its bytes are read here only if
//! the link cannot compute the checksum.
//!
//! Everything emitted is ours, so a frame that cannot exist (an IP length beyond 16 bits, addresses
//! of two families) is a broken invariant and panics.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::arp::{self, ArpOperation, ArpRepr};
use crate::checksum;
use crate::ethernet::{
    self, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetRepr, MacAddress,
};
use crate::icmpv4::Icmpv4Message;
use crate::icmpv6::{self, Icmpv6Message};
use crate::incoming::Path;
use crate::ipv4::{self, Ipv4Repr};
use crate::ipv6::{self, Ipv6Repr};
use crate::listener::{self, ListenerReport};
use crate::outgoing::{PartialChecksum, SegmentationKind};
use crate::tcp::{self, TcpRepr};

/// Bytes of the longest headers: Ethernet, IPv6, and TCP with all its options. Control frames other
/// than echo fit as well.
pub const HEADERS_BYTES_MAX: usize = 14 + 40 + 60;

const _: () = assert!(
    HEADERS_BYTES_MAX == ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + tcp::HEADER_BYTES_MAX
);

/// Hop limit and time to live of what we send, neighbour discovery apart (RFC 1700).
const HOP_LIMIT: u8 = 64;
const IPV4_HEADER_BYTES: u16 = 20;

/// All nodes on the link (RFC 4291 s2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The source and destination of a frame: the reverse of a received path, or any pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// Our MAC.
    pub source_mac: MacAddress,
    /// The peer's MAC, or its router's.
    pub destination_mac: MacAddress,
    /// Our address.
    pub source: IpAddr,
    /// The peer's address, of the same family.
    pub destination: IpAddr,
}

impl Path {
    /// The route of a reply: it goes to the MAC address the packet came from, without a routing
    /// table.
    #[must_use]
    pub const fn reply_route(&self) -> Route {
        Route {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            source: self.destination,
            destination: self.source,
        }
    }
}

impl Route {
    /// Under which IP version a large segment on this route is cut.
    #[must_use]
    pub const fn segmentation_kind(&self) -> SegmentationKind {
        match self.source {
            IpAddr::V4(_) => SegmentationKind::TcpV4,
            IpAddr::V6(_) => SegmentationKind::TcpV6,
        }
    }

    /// Where the link finds the TCP checksum of a frame emitted with [`TcpChecksum::Partial`].
    #[must_use]
    pub const fn partial_checksum(&self) -> PartialChecksum {
        #[expect(clippy::cast_possible_truncation, reason = "34 or 54, and 16")]
        PartialChecksum {
            start: self.transport_offset() as u16,
            offset: tcp::CHECKSUM_OFFSET as u16,
        }
    }

    /// Bytes of Ethernet and IP headers.
    const fn transport_offset(&self) -> usize {
        match self.source {
            IpAddr::V4(_) => ethernet::HEADER_BYTES + ipv4::HEADER_BYTES,
            IpAddr::V6(_) => ethernet::HEADER_BYTES + ipv6::HEADER_BYTES,
        }
    }
}

/// Who computes the TCP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpChecksum {
    /// The link: the field gets the folded, uncomplemented pseudo-header sum, and the frame leaves
    /// with [`Route::partial_checksum`] in its offload.
    Partial,
    /// We, here, reading the whole payload.
    Full,
}

/// Writes Ethernet, IP and TCP headers for a segment whose text is `payload`, in parts; returns
/// their length. IPv4 goes with DF, both with 64 hops to live and Not-ECT: [`crate::set_ecn`] sets
/// another ECN field.
///
/// For a segment to be cut ([`crate::Segmentation`]) lengths and checksum are those of the whole.
///
/// # Panics
/// If the route mixes IP versions, or the IP length does not fit 16 bits.
pub fn emit_tcp(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    route: &Route,
    segment: &TcpRepr,
    payload: &[&[u8]],
    checksum: TcpChecksum,
    identification: u16,
) -> usize {
    let mut header = [0; tcp::HEADER_BYTES_MAX];
    let header_bytes = segment.emit(&mut header);
    let (header, _) = header.split_at_mut(header_bytes);
    let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
    let transport_bytes = header_bytes + payload_bytes;

    let ip = IpPart::new(ipv4::PROTOCOL_TCP, transport_bytes)
        .expect("invariant: a segment fits an IP packet");
    IpPart {
        identification,
        ..ip
    }
    .emit(buffer, route);
    let start = route.transport_offset();
    let pseudo = checksum::pseudo_header(
        route.source,
        route.destination,
        ipv4::PROTOCOL_TCP,
        ip.payload_bytes.into(),
    );
    let value = match checksum {
        TcpChecksum::Partial => pseudo,
        TcpChecksum::Full => {
            let mut sum = checksum::Accumulator::new(checksum::sum(header, pseudo));
            for part in payload {
                sum.add(part);
            }
            !sum.sum()
        }
    };
    header[tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2].copy_from_slice(&value.to_be_bytes());
    buffer[start..start + header_bytes].copy_from_slice(header);
    start + header_bytes
}

/// Writes the answer to an ARP request for an address of ours; returns its length. It goes to the
/// sender alone.
pub fn emit_arp_reply(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    request: &ArpRepr,
    our_mac: MacAddress,
) -> usize {
    let reply = ArpRepr {
        operation: ArpOperation::Reply,
        sender_mac: our_mac,
        sender_address: request.target_address,
        target_mac: request.sender_mac,
        target_address: request.sender_address,
    };
    emit_arp(buffer, request.sender_mac, &reply)
}

/// Writes an announcement of `address` to all stations (RFC 5227 s2.3: a request whose sender and
/// target are the same); returns its length.
pub fn emit_gratuitous_arp(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    address: Ipv4Addr,
) -> usize {
    let announcement = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: our_mac,
        sender_address: address,
        target_mac: MacAddress::default(),
        target_address: address,
    };
    emit_arp(buffer, MacAddress::BROADCAST, &announcement)
}

/// Writes an ARP probe for `address`, to all stations (RFC 5227 s2.1.1: a request with an unspecified
/// sender address, so that no ARP cache changes); returns its length.
pub fn emit_arp_probe(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    address: Ipv4Addr,
) -> usize {
    let probe = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: our_mac,
        sender_address: Ipv4Addr::UNSPECIFIED,
        target_mac: MacAddress::default(),
        target_address: address,
    };
    emit_arp(buffer, MacAddress::BROADCAST, &probe)
}

/// Writes an ARP request for the address `target` of another station, to all stations; returns its
/// length.
pub fn emit_arp_request(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    our_address: Ipv4Addr,
    target: Ipv4Addr,
) -> usize {
    let request = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: our_mac,
        sender_address: our_address,
        target_mac: MacAddress::default(),
        target_address: target,
    };
    emit_arp(buffer, MacAddress::BROADCAST, &request)
}

/// Writes any ARP frame, from its sender's MAC; returns its length.
pub fn emit_arp(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    destination_mac: MacAddress,
    packet: &ArpRepr,
) -> usize {
    let source = packet.sender_mac;
    let ethernet = EthernetRepr {
        destination: destination_mac,
        source,
        ethertype: ETHERTYPE_ARP,
    };
    ethernet.emit(place(buffer, 0));
    packet.emit(place(buffer, ethernet::HEADER_BYTES));
    ethernet::HEADER_BYTES + arp::PACKET_BYTES
}

/// Writes the answer to a neighbour solicitation for an address of ours; returns its length.
///
/// `solicitation` is the path it came by. A solicitation from the unspecified address (duplicate
/// address detection) is answered to all nodes (RFC 4861 s7.2.4).
///
/// # Panics
/// If the path is not IPv6.
pub fn emit_neighbor_advertisement(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    solicitation: &Path,
    target: Ipv6Addr,
    our_mac: MacAddress,
) -> usize {
    let IpAddr::V6(asker) = solicitation.source else {
        panic!(
            "a neighbour solicitation comes over IPv6, not from {}",
            solicitation.source
        );
    };
    if asker.is_unspecified() {
        return emit_unsolicited_advertisement(buffer, our_mac, target);
    }
    let message = advertisement(target, our_mac, true);
    let macs = (our_mac, solicitation.source_mac);
    emit_neighbor(buffer, macs, target, asker, &message)
}

/// Writes an announcement of `address` to all nodes (RFC 4861 s7.2.6); returns its length.
pub fn emit_unsolicited_advertisement(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    address: Ipv6Addr,
) -> usize {
    let message = advertisement(address, our_mac, false);
    let macs = (our_mac, MacAddress::from_multicast_v6(ALL_NODES));
    emit_neighbor(buffer, macs, address, ALL_NODES, &message)
}

/// Writes a neighbour solicitation for `target`, to its solicited-node group; returns its length.
///
/// With `our_address` unspecified this is duplicate address detection (RFC 4862 s5.4.2) and names
/// no MAC.
pub fn emit_neighbor_solicitation(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    our_address: Ipv6Addr,
    target: Ipv6Addr,
) -> usize {
    let source_link = (!our_address.is_unspecified()).then_some(our_mac);
    let message = Icmpv6Message::NeighborSolicitation {
        target,
        source_link,
    };
    let group = icmpv6::solicited_node(target);
    let macs = (our_mac, MacAddress::from_multicast_v6(group));
    emit_neighbor(buffer, macs, our_address, group, &message)
}

/// Writes a multicast listener report that `group` is wanted (RFC 3810 s5.2); returns its length. With `source`
/// unspecified we have no link-local address, which RFC 3810 s5.2.13 permits: switches take such a report.
pub fn emit_listener_report(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    our_mac: MacAddress,
    source: Ipv6Addr,
    group: Ipv6Addr,
    report: ListenerReport,
) -> usize {
    let destination = listener::REPORTS_GROUP;
    let route = Route {
        source_mac: our_mac,
        destination_mac: MacAddress::from_multicast_v6(destination),
        source: source.into(),
        destination: destination.into(),
    };
    let start = route.transport_offset();
    let bytes = listener::HOP_BY_HOP_BYTES + listener::REPORT_BYTES;
    let ip = IpPart::new(ipv6::NEXT_HOP_BY_HOP, bytes).expect("invariant: 36 bytes");
    IpPart {
        hop_limit: listener::HOP_LIMIT,
        ..ip
    }
    .emit(buffer, &route);
    listener::emit_report(place(buffer, start), source, group, report);
    start + bytes
}

/// Writes the answer to an echo request; returns its length, or `None` if `buffer` is too short or
/// the answer too long for an IP packet.
///
/// # Panics
/// If the route mixes IP versions.
#[must_use]
pub fn emit_echo_reply(
    buffer: &mut [u8],
    route: &Route,
    identifier: u16,
    sequence: u16,
    data: &[u8],
) -> Option<usize> {
    let start = route.transport_offset();
    match (route.source, route.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let reply = Icmpv6Message::EchoReply {
                identifier,
                sequence,
                data,
            };
            let frame = buffer.get_mut(..start + reply.bytes())?;
            IpPart::new(ipv6::PROTOCOL_ICMP, reply.bytes())?.emit(frame, route);
            reply.emit(frame.get_mut(start..)?, source, destination);
            Some(frame.len())
        }
        _ => {
            let reply = Icmpv4Message::EchoReply {
                identifier,
                sequence,
                data,
            };
            let frame = buffer.get_mut(..start + reply.bytes())?;
            IpPart::new(ipv4::PROTOCOL_ICMP, reply.bytes())?.emit(frame, route);
            reply.emit(frame.get_mut(start..)?);
            Some(frame.len())
        }
    }
}

/// Our own advertisement of `target`.
const fn advertisement(
    target: Ipv6Addr,
    our_mac: MacAddress,
    is_solicited: bool,
) -> Icmpv6Message<'static> {
    Icmpv6Message::NeighborAdvertisement {
        target,
        is_router: false,
        is_solicited,
        is_override: true,
        target_link: Some(our_mac),
    }
}

/// Writes a neighbour message as a whole frame.
fn emit_neighbor(
    buffer: &mut [u8; HEADERS_BYTES_MAX],
    (source_mac, destination_mac): (MacAddress, MacAddress),
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &Icmpv6Message<'_>,
) -> usize {
    let route = Route {
        source_mac,
        destination_mac,
        source: source.into(),
        destination: destination.into(),
    };
    let start = route.transport_offset();
    let ip = IpPart::new(ipv6::PROTOCOL_ICMP, message.bytes())
        .expect("invariant: a neighbour message is 32 bytes at most");
    IpPart {
        hop_limit: icmpv6::NEIGHBOR_HOP_LIMIT,
        ..ip
    }
    .emit(buffer, &route);
    message.emit(&mut buffer[start..], source, destination);
    start + message.bytes()
}

/// The fields of an IP header besides its addresses, in either version.
#[derive(Clone, Copy, Debug)]
struct IpPart {
    protocol: u8,
    hop_limit: u8,
    /// IPv4 only.
    identification: u16,
    /// Bytes after the IP header.
    payload_bytes: u16,
}

impl IpPart {
    /// `None` if the packet would be longer than either IP version can say.
    fn new(protocol: u8, payload_bytes: usize) -> Option<Self> {
        let payload_bytes = u16::try_from(payload_bytes).ok()?;
        // IPv4 counts its header in; hold IPv6, which does not, to the same bound.
        payload_bytes.checked_add(IPV4_HEADER_BYTES)?;
        Some(Self {
            protocol,
            hop_limit: HOP_LIMIT,
            identification: 0,
            payload_bytes,
        })
    }

    /// Writes Ethernet and IP headers at the start of `frame`.
    fn emit(&self, frame: &mut [u8], route: &Route) {
        let (source, destination) = (route.source_mac, route.destination_mac);
        match (route.source, route.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ethertype = ETHERTYPE_IPV4;
                EthernetRepr {
                    destination,
                    source,
                    ethertype,
                }
                .emit(place(frame, 0));
                let header = Ipv4Repr {
                    source: from,
                    destination: to,
                    protocol: self.protocol,
                    time_to_live: self.hop_limit,
                    identification: self.identification,
                    total_bytes: self.payload_bytes + IPV4_HEADER_BYTES,
                };
                header.emit(place(frame, ethernet::HEADER_BYTES));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ethertype = ETHERTYPE_IPV6;
                EthernetRepr {
                    destination,
                    source,
                    ethertype,
                }
                .emit(place(frame, 0));
                let header = Ipv6Repr {
                    source: from,
                    destination: to,
                    protocol: self.protocol,
                    hop_limit: self.hop_limit,
                    payload_bytes: self.payload_bytes,
                };
                header.emit(place(frame, ethernet::HEADER_BYTES));
            }
            (from, to) => panic!("a route stays within one IP version, unlike {from} to {to}"),
        }
    }
}

/// The `N` bytes of a header's place.
fn place<const N: usize>(frame: &mut [u8], offset: usize) -> &mut [u8; N] {
    frame
        .get_mut(offset..)
        .and_then(|rest| rest.first_chunk_mut())
        .expect("invariant: the frame was measured before its headers are written")
}
