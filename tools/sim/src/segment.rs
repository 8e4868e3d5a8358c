//! The fields of a TCP segment that the checks at the server's link use.
//!
//! Frames are parsed by smoltcp, so that an error of `wire` shows. It refuses everything that is not
//! TCP. Bounded by the frame.

use core::net::IpAddr;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
};

/// An address and a port.
pub(crate) type End = (IpAddr, u16);

/// See the module.
pub(crate) struct Segment<'a> {
    /// The MAC address that the frame is for.
    pub(crate) destination_mac: [u8; 6],
    pub(crate) source: End,
    pub(crate) destination: End,
    pub(crate) sequence: u32,
    /// `None`: it has no ACK flag.
    pub(crate) acknowledgment: Option<u32>,
    pub(crate) is_syn: bool,
    pub(crate) is_fin: bool,
    pub(crate) is_reset: bool,
    pub(crate) window: u16,
    /// Length of the TCP header.
    pub(crate) header_bytes: usize,
    pub(crate) payload: &'a [u8],
    /// All checksums are right, and so is what none of them covers.
    is_valid: bool,
}

impl<'a> Segment<'a> {
    /// The segment in a frame, if there is one.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Self> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let (source, destination, protocol, is_header_valid, packet): (
            IpAddress,
            IpAddress,
            _,
            _,
            _,
        ) = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
                (
                    packet.src_addr().into(),
                    packet.dst_addr().into(),
                    packet.next_header(),
                    packet.verify_checksum(),
                    packet.payload(),
                )
            }
            EthernetProtocol::Ipv6 => {
                let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
                (
                    packet.src_addr().into(),
                    packet.dst_addr().into(),
                    packet.next_header(),
                    packet.version() == 6,
                    packet.payload(),
                )
            }
            _ => return None,
        };
        if protocol != IpProtocol::Tcp {
            return None;
        }
        let segment = TcpPacket::new_checked(packet).ok()?;
        let is_segment_valid = segment.verify_checksum(&source, &destination);
        Some(Self {
            destination_mac: ethernet.dst_addr().0,
            source: (source.into(), segment.src_port()),
            destination: (destination.into(), segment.dst_port()),
            sequence: segment.seq_number().0.cast_unsigned(),
            acknowledgment: segment
                .ack()
                .then(|| segment.ack_number().0.cast_unsigned()),
            is_syn: segment.syn(),
            is_fin: segment.fin(),
            is_reset: segment.rst(),
            window: segment.window_len(),
            header_bytes: segment.header_len().into(),
            payload: segment.payload(),
            is_valid: is_header_valid && is_segment_valid && ethernet.src_addr().is_unicast(),
        })
    }

    /// The same, if the frame was not damaged so that its receiver must drop it.
    pub(crate) fn parse_valid(frame: &'a [u8]) -> Option<Self> {
        Self::parse(frame).filter(|segment| segment.is_valid)
    }

    /// The sequence number behind its last byte, SYN and FIN included.
    pub(crate) fn end(&self) -> u32 {
        let bytes = u32::try_from(self.payload.len()).expect("invariant: one frame");
        let flags = u32::from(self.is_syn) + u32::from(self.is_fin);
        self.sequence.wrapping_add(bytes).wrapping_add(flags)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use wire::{MacAddress, Route, SeqNumber, TcpFlags, TcpOptions, TcpRepr};

    use super::Segment;
    use crate::crafted;

    /// A byte of an IPv6 header that no checksum covers decides whether the frame is a segment at all.
    #[test]
    fn what_its_receiver_must_drop_is_not_valid() {
        let route = Route {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            source: Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1).into(),
            destination: Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2).into(),
        };
        let segment = TcpRepr {
            source_port: 80,
            destination_port: 40_000,
            sequence: SeqNumber(7),
            acknowledgment: SeqNumber(1),
            flags: TcpFlags::ACK.union(TcpFlags::FIN),
            window: 100,
            options: TcpOptions::default(),
        };
        let frame = crafted::tcp(&route, &segment, b"abcd");
        let parsed = Segment::parse_valid(&frame).expect("a segment");
        assert_eq!((parsed.sequence, parsed.end()), (7, 12));
        // Source MAC, version, next header, a port, the payload.
        for (place, bit) in [(6, 1), (14, 0x10), (20, 8), (55, 1), (75, 1)] {
            let mut damaged = frame.clone();
            damaged[place] ^= bit;
            assert!(Segment::parse_valid(&damaged).is_none(), "byte {place}");
        }
    }
}
