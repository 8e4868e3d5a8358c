//! The fields of a TCP segment that the checks at the server's link use.
//!
//! Frames are parsed by smoltcp, so that an error of `wire` shows. It refuses everything that is not
//! TCP. Bounded by the frame.

use core::net::IpAddr;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket,
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
    pub(crate) payload: &'a [u8],
    has_valid_checksums: bool,
}

impl<'a> Segment<'a> {
    /// The segment in a frame, if there is one.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Self> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let (source, destination, is_header_valid, packet): (IpAddress, IpAddress, _, _) =
            match ethernet.ethertype() {
                EthernetProtocol::Ipv4 => {
                    let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
                    (
                        packet.src_addr().into(),
                        packet.dst_addr().into(),
                        packet.verify_checksum(),
                        packet.payload(),
                    )
                }
                EthernetProtocol::Ipv6 => {
                    let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
                    (
                        packet.src_addr().into(),
                        packet.dst_addr().into(),
                        true,
                        packet.payload(),
                    )
                }
                _ => return None,
            };
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
            payload: segment.payload(),
            has_valid_checksums: is_header_valid && is_segment_valid,
        })
    }

    /// The same, if all checksums are valid.
    pub(crate) fn parse_valid(frame: &'a [u8]) -> Option<Self> {
        Self::parse(frame).filter(|segment| segment.has_valid_checksums)
    }

    /// The sequence number behind its last byte, SYN and FIN included.
    pub(crate) fn end(&self) -> u32 {
        let bytes = u32::try_from(self.payload.len()).expect("invariant: one frame");
        let flags = u32::from(self.is_syn) + u32::from(self.is_fin);
        self.sequence.wrapping_add(bytes).wrapping_add(flags)
    }
}
