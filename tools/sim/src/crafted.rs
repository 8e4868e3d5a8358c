//! Crafted frames: TCP segments with any header and right checksums, and ICMP Packet Too Big.
//!
//! Emitted by `wire`, whose own tests compare it with smoltcp. It refuses lengths that do not fit
//! an IP header.

use core::net::IpAddr;

use wire::icmpv4::{CODE_FRAGMENTATION_NEEDED, Icmpv4Message};
use wire::icmpv6::Icmpv6Message;
use wire::ipv4::{self, Ipv4Repr};
use wire::ipv6::{self, Ipv6Repr};
use wire::{HEADERS_BYTES_MAX, Route, TcpChecksum, TcpRepr, emit_tcp};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Bytes of the packet that a router quotes: more than header and eight bytes (RFC 792).
const QUOTE_BYTES: usize = 64;

/// A frame with this TCP segment, all checksums right.
pub(crate) fn tcp(route: &Route, segment: &TcpRepr, payload: &[u8]) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(
        &mut buffer,
        route,
        segment,
        &[payload],
        TcpChecksum::Full,
        1,
    );
    [&buffer[..length], payload].concat()
}

/// ICMP Fragmentation Needed or ICMPv6 Packet Too Big, from a router to the sender of `frame`:
/// the MTU of the next link is `mtu_bytes`. `None` if `frame` has no IP packet of the family of
/// `route`, which is from the router to the sender.
pub(crate) fn packet_too_big(route: &Route, frame: &[u8], mtu_bytes: u16) -> Option<Vec<u8>> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let quote = &packet[..packet.len().min(QUOTE_BYTES)];
    let mut reply = [route.destination_mac.0, route.source_mac.0].concat();
    let short = |bytes: usize| u16::try_from(bytes).expect("invariant: a quote is short");
    match (route.source, route.destination, frame.get(12..14)?) {
        (IpAddr::V4(source), IpAddr::V4(destination), [0x08, 0x00]) => {
            let code = CODE_FRAGMENTATION_NEEDED;
            let message = Icmpv4Message::Unreachable {
                code,
                mtu_bytes,
                quote,
            };
            let header = Ipv4Repr {
                source,
                destination,
                protocol: ipv4::PROTOCOL_ICMP,
                time_to_live: 64,
                identification: 1,
                total_bytes: short(IPV4_BYTES + message.bytes()),
            };
            let mut bytes = [0; IPV4_BYTES];
            header.emit(&mut bytes);
            reply.extend([0x08, 0x00]);
            reply.extend(bytes);
            let at = reply.len();
            reply.resize(at + message.bytes(), 0);
            message.emit(&mut reply[at..]);
        }
        (IpAddr::V6(source), IpAddr::V6(destination), [0x86, 0xdd]) => {
            let message = Icmpv6Message::PacketTooBig {
                mtu_bytes: mtu_bytes.into(),
                quote,
            };
            let header = Ipv6Repr {
                source,
                destination,
                protocol: ipv6::PROTOCOL_ICMP,
                hop_limit: 64,
                payload_bytes: short(message.bytes()),
            };
            let mut bytes = [0; IPV6_BYTES];
            header.emit(&mut bytes);
            reply.extend([0x86, 0xdd]);
            reply.extend(bytes);
            let at = reply.len();
            reply.resize(at + message.bytes(), 0);
            message.emit(&mut reply[at..], source, destination);
        }
        _ => return None,
    }
    Some(reply)
}
