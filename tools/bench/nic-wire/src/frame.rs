//! Frames between the server and the clients: addresses, segments that are not whole, what is sent.
//!
//! `wire` refuses a packet that is shorter than its length field says, as it should; here most are.
//! So the IP header is looked at here, and TCP's by `wire`. Checksums are not looked at: they are
//! unfinished, since the TAP takes that offload. It refuses IPv6, fragments and
//! addresses that are no client's. Bounded by the frame; nothing is allocated.

use std::net::Ipv4Addr;

use wire::{
    HEADERS_BYTES_MAX, Incoming, MacAddress, PartialChecksum, Route, TcpChecksum, TcpRepr,
    TcpSegment,
};

use crate::client::Arrival;
use crate::filter::SAMPLED_PORT_BIT;

/// Bytes of the virtio-net header before each frame of the TAP (virtio 1.2, s5.1.6).
pub const VNET_HEADER_BYTES: usize = 10;

/// Ports each client address connects from, first of those that are not sampled.
pub(crate) const PORT_FIRST: u16 = 0x4000;
pub(crate) const PORTS: u32 = 0x4000;

/// The clients' MAC address, locally administered.
pub const CLIENT_MAC: MacAddress = MacAddress([2, 0x6e, 0x69, 0x63, 0, 1]);

const ETHERNET_BYTES: usize = 14;
const PROTOCOL_TCP: u8 = 6;

/// Who talks to whom: connections are numbered, first those that are not sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The server.
    pub server: Ipv4Addr,
    /// The server's port.
    pub port: u16,
    /// The first client; the others follow it.
    pub client: Ipv4Addr,
    /// Connections of which headers are seen only.
    pub unsampled: u32,
    /// Connections of which bytes are compared; their numbers follow.
    pub sampled: u32,
}

impl Addresses {
    /// How many client addresses there are.
    #[must_use]
    pub fn clients(&self) -> u32 {
        self.unsampled.max(self.sampled).div_ceil(PORTS)
    }

    /// Address and port of a connection.
    #[must_use]
    pub fn of(&self, connection: u32) -> (Ipv4Addr, u16) {
        let (index, bit) = match connection.checked_sub(self.unsampled) {
            None => (connection, 0),
            Some(index) => (index, SAMPLED_PORT_BIT),
        };
        let port = u16::try_from(index % PORTS).unwrap_or(0);
        (
            self.client.to_bits().wrapping_add(index / PORTS).into(),
            bit | (PORT_FIRST + port),
        )
    }

    /// The connection at an address and port.
    #[must_use]
    pub fn connection(&self, client: Ipv4Addr, port: u16) -> Option<u32> {
        let index = u32::from((port & !SAMPLED_PORT_BIT).checked_sub(PORT_FIRST)?);
        let index = self.distance(client)?.checked_mul(PORTS)? + index;
        if port & SAMPLED_PORT_BIT == 0 {
            (index < self.unsampled).then_some(index)
        } else {
            (index < self.sampled).then_some(self.unsampled + index)
        }
    }

    /// Whether an address is a client's.
    #[must_use]
    pub fn is_client(&self, address: Ipv4Addr) -> bool {
        self.distance(address).is_some_and(|it| it < self.clients())
    }

    /// How far an address is behind the first client's.
    fn distance(&self, address: Ipv4Addr) -> Option<u32> {
        address.to_bits().checked_sub(self.client.to_bits())
    }
}

/// A segment as it came, from the Ethernet header on, perhaps without its end.
#[must_use]
pub fn parse_tcp(frame: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr, Arrival<'_>)> {
    if !is_tcp(frame) {
        return None;
    }
    let packet = frame.get(ETHERNET_BYTES..)?;
    let header: &[u8; 20] = packet.first_chunk()?;
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if is_fragment {
        return None;
    }
    let source = Ipv4Addr::from(*header[12..].first_chunk::<4>()?);
    let destination = Ipv4Addr::from(*header[16..].first_chunk::<4>()?);
    let header_bytes = usize::from(header[0] & 15) * 4;
    let packet_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // What is behind the packet's end is padding.
    let seen_bytes = packet.len().min(packet_bytes);
    let segment = TcpSegment::parse(packet.get(header_bytes..seen_bytes)?).ok()?;
    let seen = segment.payload();
    let header = segment.repr().ok()?;
    let text_bytes = packet_bytes - seen_bytes + seen.len();
    let arrival = Arrival {
        header,
        frame_start: header.sequence,
        bytes: u32::try_from(text_bytes).ok()?,
        seen,
    };
    Some((source, destination, arrival))
}

/// Whether a frame may be TCP: all others are whole, and `wire` parses them.
#[must_use]
pub fn is_tcp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x00]) && frame.get(23) == Some(&PROTOCOL_TCP)
}

/// Writes the headers of a segment whose checksum the server's kernel takes for verified, as after a
/// NIC's checksum offload, and the virtio-net header that says so. Returns the headers' length.
pub fn emit_tcp(
    headers: &mut [u8; HEADERS_BYTES_MAX],
    route: &Route,
    segment: &TcpRepr,
    text: &[u8],
) -> ([u8; VNET_HEADER_BYTES], usize) {
    let bytes = wire::emit_tcp(headers, route, segment, &[text], TcpChecksum::Partial, 0);
    let PartialChecksum { start, offset } = route.partial_checksum();
    let mut vnet = [0; VNET_HEADER_BYTES];
    // VIRTIO_NET_HDR_F_NEEDS_CSUM
    vnet[0] = 1;
    vnet[6..8].copy_from_slice(&start.to_ne_bytes());
    vnet[8..10].copy_from_slice(&offset.to_ne_bytes());
    (vnet, bytes)
}

/// The packets that a large frame of so many bytes of text is cut to: the virtio-net header's
/// `gso_size`; `u32::MAX` for a frame that is not cut.
#[must_use]
pub fn packet_bytes(vnet: &[u8; VNET_HEADER_BYTES]) -> u32 {
    let size = u16::from_ne_bytes([vnet[4], vnet[5]]);
    if vnet[1] == 0 || size == 0 {
        u32::MAX
    } else {
        size.into()
    }
}

/// Who has an address, if a frame asks for one of the clients' or answers for the server's: the
/// answer to send, or the server's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// A frame of so many bytes to send.
    Answer(usize),
    /// The server is here.
    Server(MacAddress),
}

/// Takes ARP.
pub fn handle_neighbor(
    frame: &[u8],
    addresses: &Addresses,
    answer: &mut [u8; HEADERS_BYTES_MAX],
) -> Option<Neighbor> {
    let mac = CLIENT_MAC;
    match wire::parse_frame(frame, wire::ChecksumState::Trusted).ok()? {
        Incoming::Arp(arp) if arp.operation == wire::ArpOperation::Reply => {
            (arp.sender_address == addresses.server).then_some(Neighbor::Server(arp.sender_mac))
        }
        // A probe of a host that looks whether its own address is free is no question for us.
        Incoming::Arp(arp) if addresses.is_client(arp.target_address) => {
            Some(Neighbor::Answer(wire::emit_arp_reply(answer, &arp, mac)))
        }
        _ => None,
    }
}

/// Writes the question who has the server's address; its length.
pub fn ask_for_server(addresses: &Addresses, frame: &mut [u8; HEADERS_BYTES_MAX]) -> usize {
    let question = wire::ArpRepr {
        operation: wire::ArpOperation::Request,
        sender_mac: CLIENT_MAC,
        sender_address: addresses.client,
        target_mac: MacAddress::default(),
        target_address: addresses.server,
    };
    wire::emit_arp(frame, MacAddress::BROADCAST, &question)
}
