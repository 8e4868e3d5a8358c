//! ICMPv6 (RFC 4443) and the half of neighbour discovery a server needs (RFC 4861): echo, packet
//! too big, destination unreachable, neighbour solicitation and advertisement.
//!
//! Everything else is refused as [`DropReason::Icmpv6Other`]: router advertisements and redirects,
//! because our answers go back to the MAC address they came from and need no router. Multicast listener
//! queries are in [`crate::listener`].
//! Neighbour discovery is accepted only with a hop limit of 255, that is, from our own link.

use core::net::{IpAddr, Ipv6Addr};

use crate::checksum;
use crate::ethernet::MacAddress;
use crate::field;
use crate::incoming::ChecksumState;
use crate::ipv6::{Ipv6Packet, PROTOCOL_ICMP};
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of the header common to echo and errors.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a neighbour message without options.
const NEIGHBOR_BYTES: usize = 24;
/// Bytes of a link-layer option on Ethernet, which is one unit (RFC 2464 s6).
const LINK_OPTION_BYTES: usize = 8;
/// Hop limit of neighbour discovery: every router decrements it, so it proves that the packet is from
/// our own link (RFC 4861 s7.1).
pub const NEIGHBOR_HOP_LIMIT: u8 = 255;

const TYPE_UNREACHABLE: u8 = 1;
const TYPE_PACKET_TOO_BIG: u8 = 2;
const TYPE_ECHO_REQUEST: u8 = 128;
const TYPE_ECHO_REPLY: u8 = 129;
const TYPE_NEIGHBOR_SOLICITATION: u8 = 135;
const TYPE_NEIGHBOR_ADVERTISEMENT: u8 = 136;

const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_TARGET_LINK: u8 = 2;

const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// A message this stack acts on or sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6Message<'a> {
    /// Type 128: to be answered with the same content.
    EchoRequest {
        /// Chosen by the sender.
        identifier: u16,
        /// Chosen by the sender.
        sequence: u16,
        /// To be returned as it is.
        data: &'a [u8],
    },
    /// Type 129.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// Type 2: a packet of ours was larger than a link on its way.
    PacketTooBig {
        /// MTU of that link, bytes. Implausible values are passed on as they are.
        mtu_bytes: u32,
        /// The packet this is about, cut off where the error would have grown beyond 1280 bytes.
        quote: &'a [u8],
    },
    /// Type 1.
    Unreachable {
        /// What could not be reached, or why.
        code: u8,
        /// The packet this is about, cut off likewise.
        quote: &'a [u8],
    },
    /// Type 135: neighbour solicitation.
    NeighborSolicitation {
        /// The address asked for; never multicast.
        target: Ipv6Addr,
        /// MAC of the soliciting station; absent in duplicate address detection.
        source_link: Option<MacAddress>,
    },
    /// Type 136: neighbour advertisement.
    NeighborAdvertisement {
        /// The address advertised; never multicast.
        target: Ipv6Addr,
        /// The sender is a router.
        is_router: bool,
        /// This answers a solicitation.
        is_solicited: bool,
        /// Override: a cached link-layer address shall be replaced.
        is_override: bool,
        /// MAC of the target.
        target_link: Option<MacAddress>,
    },
}

impl<'a> Icmpv6Message<'a> {
    /// Parses the payload of an IPv6 packet, whose addresses and hop limit take part.
    ///
    /// # Errors
    /// The `Icmpv6...` and `Neighbor...` reasons.
    pub fn parse(packet: &Ipv6Packet<'a>, checksum: ChecksumState) -> Result<Self, DropReason> {
        let bytes = packet.payload();
        let (header, body) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(DropReason::Icmpv6TooShort)?;
        if checksum == ChecksumState::Unverified && !is_checksum_valid(packet) {
            return Err(DropReason::Icmpv6BadChecksum);
        }
        let identifier = field::u16::<4, _>(header);
        let sequence = field::u16::<6, _>(header);
        match (header[0], header[1]) {
            (TYPE_ECHO_REQUEST, 0) => Ok(Self::EchoRequest {
                identifier,
                sequence,
                data: body,
            }),
            (TYPE_ECHO_REPLY, 0) => Ok(Self::EchoReply {
                identifier,
                sequence,
                data: body,
            }),
            // RFC 4443 s3.2: the code of a packet too big is ignored by the receiver.
            (TYPE_PACKET_TOO_BIG, _) => Ok(Self::PacketTooBig {
                mtu_bytes: field::u32::<4, _>(header),
                quote: body,
            }),
            (TYPE_UNREACHABLE, code) => Ok(Self::Unreachable { code, quote: body }),
            (TYPE_NEIGHBOR_SOLICITATION, code) => parse_solicitation(packet, code),
            (TYPE_NEIGHBOR_ADVERTISEMENT, code) => parse_advertisement(packet, code),
            _ => Err(DropReason::Icmpv6Other),
        }
    }

    /// Bytes of the message when emitted.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => {
                HEADER_BYTES + data.len()
            }
            Self::PacketTooBig { quote, .. } | Self::Unreachable { quote, .. } => {
                HEADER_BYTES + quote.len()
            }
            Self::NeighborSolicitation {
                source_link: link, ..
            }
            | Self::NeighborAdvertisement {
                target_link: link, ..
            } => NEIGHBOR_BYTES + if link.is_some() { LINK_OPTION_BYTES } else { 0 },
        }
    }

    /// Writes the message, checksum included, at the start of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Self::bytes`].
    pub fn emit(&self, buffer: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
        let (message, _) = buffer
            .split_at_mut_checked(self.bytes())
            .expect("invariant: the caller measured the message");
        let mut writer = Writer::new(message);
        match *self {
            Self::EchoRequest {
                identifier,
                sequence,
                data,
            } => {
                writer
                    .bytes(&[TYPE_ECHO_REQUEST, 0, 0, 0])
                    .u16(identifier)
                    .u16(sequence);
                writer.bytes(data);
            }
            Self::EchoReply {
                identifier,
                sequence,
                data,
            } => {
                writer
                    .bytes(&[TYPE_ECHO_REPLY, 0, 0, 0])
                    .u16(identifier)
                    .u16(sequence);
                writer.bytes(data);
            }
            Self::PacketTooBig { mtu_bytes, quote } => {
                writer
                    .bytes(&[TYPE_PACKET_TOO_BIG, 0, 0, 0])
                    .u32(mtu_bytes)
                    .bytes(quote);
            }
            Self::Unreachable { code, quote } => {
                writer
                    .bytes(&[TYPE_UNREACHABLE, code, 0, 0])
                    .u32(0)
                    .bytes(quote);
            }
            Self::NeighborSolicitation {
                target,
                source_link,
            } => {
                writer.bytes(&[TYPE_NEIGHBOR_SOLICITATION, 0, 0, 0]).u32(0);
                writer.bytes(&target.octets());
                emit_link_option(&mut writer, OPTION_SOURCE_LINK, source_link);
            }
            Self::NeighborAdvertisement {
                target,
                is_router,
                is_solicited,
                is_override,
                target_link,
            } => {
                let flags = if is_router { FLAG_ROUTER } else { 0 }
                    | if is_solicited { FLAG_SOLICITED } else { 0 }
                    | if is_override { FLAG_OVERRIDE } else { 0 };
                writer.bytes(&[TYPE_NEIGHBOR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
                writer.bytes(&target.octets());
                emit_link_option(&mut writer, OPTION_TARGET_LINK, target_link);
            }
        }
        let pseudo = pseudo_header(source, destination, message.len());
        let checksum = checksum::complete(pseudo, &[message]).to_be_bytes();
        if let Some(place) = message.get_mut(2..4) {
            place.copy_from_slice(&checksum);
        }
    }
}

pub(crate) fn pseudo_header(source: Ipv6Addr, destination: Ipv6Addr, length: usize) -> u16 {
    let length = u32::try_from(length).expect("invariant: a message is no longer than a packet");
    checksum::pseudo_header(
        IpAddr::V6(source),
        IpAddr::V6(destination),
        PROTOCOL_ICMP,
        length,
    )
}

pub(crate) fn is_checksum_valid(packet: &Ipv6Packet<'_>) -> bool {
    let bytes = packet.payload();
    let pseudo = pseudo_header(packet.source(), packet.destination(), bytes.len());
    checksum::is_valid(pseudo, bytes)
}

/// The tests common to neighbour messages (RFC 4861 s7.1): hop limit, length, code, target.
/// Returns the header with its target, and the options.
fn parse_neighbor<'a>(
    packet: &Ipv6Packet<'a>,
    code: u8,
) -> Result<(&'a [u8; NEIGHBOR_BYTES], Ipv6Addr, &'a [u8]), DropReason> {
    // RFC 6980 s5, also for a packet whose only fragment is itself.
    if packet.has_fragment_header() {
        return Err(DropReason::NeighborInvalid);
    }
    if packet.hop_limit() != NEIGHBOR_HOP_LIMIT {
        return Err(DropReason::NeighborHopLimit);
    }
    let (header, options) = packet
        .payload()
        .split_first_chunk::<NEIGHBOR_BYTES>()
        .ok_or(DropReason::Icmpv6TooShort)?;
    let target = Ipv6Addr::from_octets(field::bytes::<8, 16, _>(header));
    if code != 0 || target.is_multicast() || target.is_unspecified() {
        return Err(DropReason::NeighborInvalid);
    }
    Ok((header, target, options))
}

fn parse_solicitation<'a>(
    packet: &Ipv6Packet<'a>,
    code: u8,
) -> Result<Icmpv6Message<'a>, DropReason> {
    let (_, target, options) = parse_neighbor(packet, code)?;
    let source_link = parse_link_option(options, OPTION_SOURCE_LINK)?;
    // RFC 4861 s7.1.1: with an unspecified source address, the destination is the solicited-node
    // group and there is no source link-layer option.
    if packet.source().is_unspecified() {
        let is_to_group = packet.destination() == solicited_node(target);
        if source_link.is_some() || !is_to_group {
            return Err(DropReason::NeighborInvalid);
        }
    }
    Ok(Icmpv6Message::NeighborSolicitation {
        target,
        source_link,
    })
}

fn parse_advertisement<'a>(
    packet: &Ipv6Packet<'a>,
    code: u8,
) -> Result<Icmpv6Message<'a>, DropReason> {
    let (header, target, options) = parse_neighbor(packet, code)?;
    let target_link = parse_link_option(options, OPTION_TARGET_LINK)?;
    let flags = header[4];
    let is_solicited = flags & FLAG_SOLICITED != 0;
    // RFC 4861 s7.1.2: an advertisement to a multicast address is not a solicited one.
    if is_solicited && packet.destination().is_multicast() {
        return Err(DropReason::NeighborInvalid);
    }
    Ok(Icmpv6Message::NeighborAdvertisement {
        target,
        is_router: flags & FLAG_ROUTER != 0,
        is_solicited,
        is_override: flags & FLAG_OVERRIDE != 0,
        target_link,
    })
}

/// The group every holder of `address` listens to (RFC 4291 s2.7.1).
#[must_use]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from_octets([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Finds the link-layer option of `wanted` kind; the first counts, others are skipped.
fn parse_link_option(options: &[u8], wanted: u8) -> Result<Option<MacAddress>, DropReason> {
    let mut rest = options;
    let mut link = None;
    while !rest.is_empty() {
        let [kind, units, ..] = *rest else {
            return Err(DropReason::NeighborInvalid);
        };
        // RFC 4861 s4.6: "Nodes MUST silently discard an ND packet that contains an option with
        // length zero."
        if units == 0 {
            return Err(DropReason::NeighborInvalid);
        }
        let (option, after) = rest
            .split_at_checked(usize::from(units) * 8)
            .ok_or(DropReason::NeighborInvalid)?;
        if kind == wanted && link.is_none() {
            let &[_, _, a, b, c, d, e, f] = option else {
                return Err(DropReason::NeighborInvalid);
            };
            let mac = MacAddress([a, b, c, d, e, f]);
            if !mac.is_station() {
                return Err(DropReason::NeighborInvalid);
            }
            link = Some(mac);
        }
        rest = after;
    }
    Ok(link)
}

fn emit_link_option(writer: &mut Writer<'_>, kind: u8, link: Option<MacAddress>) {
    if let Some(mac) = link {
        writer.bytes(&[kind, 1]).bytes(&mac.0);
    }
}
