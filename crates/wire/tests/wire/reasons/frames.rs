//! Frames to be refused, and their neighbours: sound ones, patched, and mended where the patch is
//! not meant to show.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::checksum;
use wire::icmpv4::Icmpv4Message;
use wire::icmpv6::Icmpv6Message;
use wire::{
    ArpOperation, ArpRepr, HEADERS_BYTES_MAX, MacAddress, Route, SeqNumber, TcpChecksum, TcpFlags,
    TcpRepr, emit_arp, emit_echo_reply, emit_neighbor_solicitation,
};

use crate::strategies::tcp_frame;

pub(super) const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
pub(super) const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
pub(super) const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(super) const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
pub(super) const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Where headers start.
pub(super) const IP: usize = 14;
pub(super) const TCP_V4: usize = 34;
pub(super) const TCP_V6: usize = 54;
pub(super) const ICMP_V4: usize = 34;
pub(super) const ICMP_V6: usize = 54;

pub(super) fn route(source: IpAddr, destination: IpAddr) -> Route {
    Route {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        source,
        destination,
    }
}

pub(super) fn route_v4() -> Route {
    route(PEER_V4.into(), OUR_V4.into())
}

pub(super) fn route_v6() -> Route {
    route(PEER_V6.into(), OUR_V6.into())
}

pub(super) fn syn() -> TcpRepr {
    let mut segment = TcpRepr {
        source_port: 50_000,
        destination_port: 80,
        sequence: SeqNumber(7),
        flags: TcpFlags::SYN,
        ..TcpRepr::default()
    };
    segment.options.mss = Some(1460);
    segment
}

pub(super) fn tcp_v4() -> Vec<u8> {
    tcp_frame(&route_v4(), &syn(), &[b"text"], TcpChecksum::Full)
}

pub(crate) fn tcp_v6() -> Vec<u8> {
    tcp_frame(&route_v6(), &syn(), &[b"text"], TcpChecksum::Full)
}

pub(super) fn tcp_from(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    tcp_frame(
        &route(source, destination),
        &syn(),
        &[b"text"],
        TcpChecksum::Full,
    )
}

pub(super) fn arp() -> Vec<u8> {
    let request = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: PEER_MAC,
        sender_address: PEER_V4,
        target_mac: MacAddress::default(),
        target_address: OUR_V4,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_arp(&mut buffer, MacAddress::BROADCAST, &request);
    buffer[..length].to_vec()
}

pub(super) fn solicitation() -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_neighbor_solicitation(&mut buffer, PEER_MAC, PEER_V6, OUR_V6);
    buffer[..length].to_vec()
}

/// An echo request of either version, made from the reply.
pub(super) fn echo(route: &Route) -> Vec<u8> {
    let mut buffer = [0; 200];
    let length = emit_echo_reply(&mut buffer, route, 1, 2, b"data").expect("room");
    let frame = buffer[..length].to_vec();
    match route.source {
        IpAddr::V4(_) => icmp_v4(patch(frame, ICMP_V4, &[8])),
        IpAddr::V6(_) => icmp_v6(patch(frame, ICMP_V6, &[128])),
    }
}

pub(super) fn unreachable_v4(quote: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::Unreachable {
        code: 1,
        mtu_bytes: 0,
        quote,
    };
    let mut frame = echo(&route_v4());
    frame.resize(ICMP_V4 + message.bytes(), 0);
    message.emit(&mut frame[ICMP_V4..]);
    ip_v4(frame)
}

pub(super) fn unreachable_v6(quote: &[u8]) -> Vec<u8> {
    let message = Icmpv6Message::Unreachable { code: 1, quote };
    let mut frame = echo(&route_v6());
    frame.resize(ICMP_V6 + message.bytes(), 0);
    message.emit(&mut frame[ICMP_V6..], PEER_V6, OUR_V6);
    ip_v6(frame)
}

/// An ICMPv6 error about a segment of ours, addressed to whomever.
pub(super) fn error_to(is_too_big: bool, destination: Ipv6Addr) -> Vec<u8> {
    let quote = tcp_v6()[IP..].to_vec();
    let frame = unreachable_v6(&quote);
    let frame = patch(frame, ICMP_V6, &[if is_too_big { 2 } else { 1 }]);
    icmp_v6(patch(frame, IP + 24, &destination.octets()))
}

/// Overwrites bytes and mends nothing.
pub(super) fn patch(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// The frame with a tag of this priority and VLAN number before what it had.
pub(super) fn tagged(mut frame: Vec<u8>, control: u16) -> Vec<u8> {
    let [high, low] = control.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

pub(super) fn cut_to(mut frame: Vec<u8>, length: usize) -> Vec<u8> {
    assert!(length <= frame.len());
    frame.truncate(length);
    frame
}

/// A length as IP headers hold it.
pub(super) fn short(length: usize) -> u16 {
    u16::try_from(length).expect("a short frame")
}

/// Mends the total length and header checksum of IPv4.
pub(super) fn ip_v4(frame: Vec<u8>) -> Vec<u8> {
    let total = short(frame.len() - IP).to_be_bytes();
    header_v4(patch(frame, IP + 2, &total))
}

/// Mends the header checksum of IPv4 alone, options included.
pub(super) fn header_v4(frame: Vec<u8>) -> Vec<u8> {
    let frame = patch(frame, IP + 10, &[0, 0]);
    let header_bytes = usize::from(frame[IP] & 15) * 4;
    let end = frame.len().min(IP + header_bytes);
    let sum = checksum::complete(0, &[&frame[IP..end]]).to_be_bytes();
    patch(frame, IP + 10, &sum)
}

/// Mends the payload length of IPv6.
pub(super) fn ip_v6(frame: Vec<u8>) -> Vec<u8> {
    let length = short(frame.len() - IP - 40).to_be_bytes();
    patch(frame, IP + 4, &length)
}

/// Mends IP lengths and the ICMP checksum.
pub(super) fn icmp_v4(frame: Vec<u8>) -> Vec<u8> {
    let frame = patch(ip_v4(frame), ICMP_V4 + 2, &[0, 0]);
    let sum = checksum::complete(0, &[&frame[ICMP_V4..]]).to_be_bytes();
    patch(frame, ICMP_V4 + 2, &sum)
}

/// Mends IP lengths and the ICMPv6 checksum, with the addresses as they stand.
pub(super) fn icmp_v6(frame: Vec<u8>) -> Vec<u8> {
    let frame = patch(ip_v6(frame), ICMP_V6 + 2, &[0, 0]);
    let length = short(frame.len() - ICMP_V6);
    let pseudo = checksum::sum(&frame[IP + 8..IP + 40], checksum::add(58, length));
    let sum = checksum::complete(pseudo, &[&frame[ICMP_V6..]]).to_be_bytes();
    patch(frame, ICMP_V6 + 2, &sum)
}

/// Mends the TCP checksum of IPv4.
pub(super) fn sum_tcp_v4(frame: Vec<u8>) -> Vec<u8> {
    let frame = patch(ip_v4(frame), TCP_V4 + 16, &[0, 0]);
    let length = short(frame.len() - TCP_V4);
    let pseudo = checksum::sum(&frame[IP + 12..IP + 20], checksum::add(6, length));
    let sum = checksum::complete(pseudo, &[&frame[TCP_V4..]]).to_be_bytes();
    patch(frame, TCP_V4 + 16, &sum)
}

/// A TCP segment over IPv6 behind extension headers, the first of which is of `kind`.
pub(super) fn with_extensions(kind: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = patch(tcp_v6(), IP + 6, &[kind]);
    frame.splice(TCP_V6..TCP_V6, extensions.iter().copied());
    ip_v6(frame)
}

/// An IPv6 packet with the header of a fragment that is all of it (RFC 6946).
pub(super) fn atomic_fragment(frame: Vec<u8>) -> Vec<u8> {
    let next = frame[IP + 6];
    let mut frame = patch(frame, IP + 6, &[44]);
    frame.splice(TCP_V6..TCP_V6, [next, 0, 0, 0, 0, 0, 0, 9]);
    ip_v6(frame)
}

/// An options header: next header, and options that with its first two bytes fill units of eight.
pub(super) fn extension(next: u8, options: &[u8]) -> Vec<u8> {
    let bytes = 2 + options.len();
    assert_eq!(bytes % 8, 0);
    let units = u8::try_from(bytes / 8 - 1).expect("a short header");
    [&[next, units], options].concat()
}

/// A TCP segment over IPv4 with these four bytes of options instead of an MSS.
pub(super) fn with_option(option: [u8; 4]) -> Vec<u8> {
    sum_tcp_v4(patch(tcp_v4(), TCP_V4 + 20, &option))
}

/// A TCP segment over IPv4 with twelve bytes of options instead of four.
pub(super) fn with_options(options: [u8; 12]) -> Vec<u8> {
    let mut frame = tcp_v4();
    frame.splice(TCP_V4 + 20..TCP_V4 + 24, options);
    sum_tcp_v4(patch(frame, TCP_V4 + 12, &[8 << 4]))
}

/// A solicitation changed, its checksum mended.
pub(super) fn solicitation_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    icmp_v6(patch(solicitation(), at, bytes))
}

/// A solicitation from nobody, to `destination`, with or without its link-layer option.
pub(super) fn detection(destination: Ipv6Addr, has_option: bool) -> Vec<u8> {
    let frame = patch(solicitation(), IP + 8, &[0; 16]);
    let frame = patch(frame, IP + 24, &destination.octets());
    let length = if has_option {
        frame.len()
    } else {
        frame.len() - 8
    };
    icmp_v6(cut_to(frame, length))
}

pub(super) fn advertisement(flags: u8, destination: Ipv6Addr) -> Vec<u8> {
    let frame = patch(solicitation(), IP + 24, &destination.octets());
    icmp_v6(patch(frame, ICMP_V6, &[136, 0, 0, 0, flags]))
}
