//! Whether a received frame's transport checksum was left unfinished.
//!
//! A sender on this host (a container, a neighbour at the other end of a veth) leaves the checksum to a
//! device that never comes: the field holds the sum of the pseudo-header, not complemented
//! (`CHECKSUM_PARTIAL`). The kernel keeps that with the frame, where XDP cannot see it. So the field is
//! compared with that sum; a finished checksum has the same value once in 65,536.
//!
//! It refuses to look behind IPv6 extension headers, at fragments, and at protocols other than TCP and
//! UDP: those are "finished". Bound: the headers.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::checksum;

use crate::ETHERNET_BYTES;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// Whether the checksum field of a TCP or UDP frame holds the sum of the pseudo-header.
pub(super) fn has_unfinished_checksum(frame: &[u8]) -> bool {
    is_unfinished(frame).unwrap_or(false)
}

/// `None` if it is no such frame.
fn is_unfinished(frame: &[u8]) -> Option<bool> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
    let (protocol, transport, pseudo) = match *ethernet.last_chunk::<2>()? {
        ETHERTYPE_IPV4 => {
            let header = packet.first_chunk::<20>()?;
            let header_bytes = usize::from(header[0] & 0x0f) * 4;
            let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
            let bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let transport = packet.get(header_bytes..bytes).filter(|_| !is_fragment)?;
            let length = u32::try_from(transport.len()).ok()?;
            let [.., a, b, c, d, e, f, g, h] = *header;
            let source = Ipv4Addr::new(a, b, c, d);
            let destination = Ipv4Addr::new(e, f, g, h);
            let pseudo = checksum::pseudo_header_v4(source, destination, header[9], length);
            (header[9], transport, pseudo)
        }
        ETHERTYPE_IPV6 => {
            let (header, rest) = packet.split_first_chunk::<40>()?;
            let length = u16::from_be_bytes([header[4], header[5]]);
            let transport = rest.get(..usize::from(length))?;
            let address = |from: usize| {
                let octets = header.get(from..)?.first_chunk::<16>()?;
                Some(Ipv6Addr::from(*octets))
            };
            let (source, destination) = (address(8)?, address(24)?);
            let length = u32::from(length);
            let pseudo = checksum::pseudo_header_v6(source, destination, header[6], length);
            (header[6], transport, pseudo)
        }
        _ => return None,
    };
    let offset = match protocol {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        _ => return None,
    };
    let field = transport.get(offset..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*field) == pseudo)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use wire::{HEADERS_BYTES_MAX, MacAddress, Route, TcpChecksum, TcpRepr};

    use super::has_unfinished_checksum;

    fn tcp(source: &str, destination: &str, checksum: TcpChecksum) -> Vec<u8> {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = Route {
            source_mac: MacAddress([2; 6]),
            destination_mac: MacAddress([4; 6]),
            source: ip(source),
            destination: ip(destination),
        };
        let header = TcpRepr {
            source_port: 5_000,
            destination_port: 80,
            ..TcpRepr::default()
        };
        let payload = [7; 9];
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(&mut buffer, &route, &header, &[&payload], checksum, 1);
        [&buffer[..length], &payload].concat()
    }

    const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

    #[test]
    fn the_field_tells_an_unfinished_checksum_from_a_finished_one() {
        for (source, destination) in PAIRS {
            let unfinished = tcp(source, destination, TcpChecksum::Partial);
            assert!(has_unfinished_checksum(&unfinished));
            let finished = tcp(source, destination, TcpChecksum::Full);
            assert!(!has_unfinished_checksum(&finished));
            // Ethernet pads short frames.
            let padded = [unfinished.as_slice(), &[0; 20]].concat();
            assert!(has_unfinished_checksum(&padded));
            let mut wrong = unfinished;
            let end = wrong.len() - 9;
            wrong[end - 3] ^= 1;
            assert!(!has_unfinished_checksum(&wrong), "one bit of the field");
        }
    }

    #[test]
    fn udp_is_looked_at_too_and_other_protocols_are_not() {
        for (source, destination) in PAIRS {
            let mut frame = tcp(source, destination, TcpChecksum::Partial);
            let (start, protocol) = if source.contains(':') {
                (54, 20)
            } else {
                (34, 23)
            };
            frame[protocol] = 17;
            let sum = u16::from_be_bytes([frame[start + 16], frame[start + 17]]) + 17 - 6;
            frame[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
            assert!(has_unfinished_checksum(&frame));
            frame[protocol] = 1;
            assert!(!has_unfinished_checksum(&frame));
        }
    }

    #[test]
    fn fragments_and_frames_cut_short_are_finished() {
        for (source, destination) in PAIRS {
            let frame = tcp(source, destination, TcpChecksum::Partial);
            for length in 0..frame.len() {
                assert!(!has_unfinished_checksum(&frame[..length]), "{length} bytes");
            }
        }
        for bits in [[0x20, 0], [0, 1]] {
            let mut frame = tcp("10.0.0.1", "10.0.0.2", TcpChecksum::Partial);
            frame[20..22].copy_from_slice(&bits);
            assert!(!has_unfinished_checksum(&frame));
        }
    }
}
