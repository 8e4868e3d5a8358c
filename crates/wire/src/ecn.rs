//! The ECN field of an IP header (RFC 3168 s5): the low two bits of IPv4's type of service and of
//! IPv6's traffic class.
//!
//! Refused: frames that are too short for an IP header, or have none. They have no such field, and
//! [`set_ecn`] leaves them as they are.

use crate::checksum;
use crate::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::field;
use crate::ipv4;
use crate::ipv6;

/// Where EtherType is in an Ethernet header.
const ETHERTYPE_OFFSET: usize = 12;
/// Where IPv4's header checksum is.
const CHECKSUM_OFFSET: usize = 10;
/// The field in the second byte of an IPv4 header.
const MASK_V4: u8 = 0x03;
/// How far left the field is in the second byte of an IPv6 header: the flow label begins behind it.
const SHIFT_V6: u32 = 4;

/// A codepoint of the ECN field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// Not-ECT: the transport does not use ECN for this packet.
    #[default]
    NotEct = 0,
    /// ECT(1).
    Ect1 = 1,
    /// ECT(0): the transport understands a mark.
    Ect0 = 2,
    /// CE: a router marked the packet, because of congestion.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in the low two bits; the others are not looked at.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & MASK_V4 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Of the second byte of an IPv4 header.
    pub(crate) const fn of_v4(byte: u8) -> Self {
        Self::from_bits(byte)
    }

    /// Of the second byte of an IPv6 header.
    pub(crate) const fn of_v6(byte: u8) -> Self {
        Self::from_bits(byte >> SHIFT_V6)
    }
}

/// The ECN field of an Ethernet frame; `None` if it carries no IP header.
#[must_use]
pub fn read_ecn(frame: &[u8]) -> Option<Ecn> {
    let (ethernet, ip) = frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>()?;
    match field::u16::<ETHERTYPE_OFFSET, _>(ethernet) {
        ETHERTYPE_IPV4 => Some(Ecn::of_v4(ip.first_chunk::<{ ipv4::HEADER_BYTES }>()?[1])),
        ETHERTYPE_IPV6 => Some(Ecn::of_v6(ip.first_chunk::<{ ipv6::HEADER_BYTES }>()?[1])),
        _ => None,
    }
}

/// Sets the ECN field of an Ethernet frame, or of its headers alone, and updates IPv4's header
/// checksum (RFC 1624 s3). TCP's checksum does not cover the field. A frame without an IP header stays
/// as it is.
pub fn set_ecn(frame: &mut [u8], ecn: Ecn) {
    let Some((ethernet, ip)) = frame.split_first_chunk_mut::<{ ethernet::HEADER_BYTES }>() else {
        return;
    };
    match field::u16::<ETHERTYPE_OFFSET, _>(ethernet) {
        ETHERTYPE_IPV4 => {
            if let Some(header) = ip.first_chunk_mut() {
                set_v4(header, ecn);
            }
        }
        ETHERTYPE_IPV6 => {
            if let Some(header) = ip.first_chunk_mut::<{ ipv6::HEADER_BYTES }>() {
                header[1] = header[1] & !(MASK_V4 << SHIFT_V6) | (ecn as u8) << SHIFT_V6;
            }
        }
        _ => {}
    }
}

/// RFC 1624 s3, equation 3: HC' = ~(~HC + ~m + m').
fn set_v4(header: &mut [u8; ipv4::HEADER_BYTES], ecn: Ecn) {
    let before = field::u16::<0, _>(header);
    header[1] = header[1] & !MASK_V4 | ecn as u8;
    let after = field::u16::<0, _>(header);
    let sum = !field::u16::<CHECKSUM_OFFSET, _>(header);
    let sum = checksum::add(checksum::add(sum, !before), after);
    let [high, low] = (!sum).to_be_bytes();
    header[CHECKSUM_OFFSET] = high;
    header[CHECKSUM_OFFSET + 1] = low;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

    #[test]
    fn the_codepoints_are_those_of_rfc_3168() {
        assert_eq!(ALL.map(|it| it as u8), [0b00, 0b01, 0b10, 0b11]);
        for (bits, ecn) in (0u8..).zip(ALL) {
            assert_eq!(Ecn::from_bits(bits), ecn);
            assert_eq!(Ecn::from_bits(bits | 0xfc), ecn, "DSCP is not looked at");
        }
    }

    #[test]
    fn only_two_bits_change_in_either_version() {
        let mut v4 = vec![0; ethernet::HEADER_BYTES + ipv4::HEADER_BYTES];
        v4[ETHERTYPE_OFFSET] = 0x08;
        v4[14] = 0x45;
        v4[15] = 0xb8;
        let mut v6 = vec![0; ethernet::HEADER_BYTES + ipv6::HEADER_BYTES];
        v6[ETHERTYPE_OFFSET..14].copy_from_slice(&[0x86, 0xdd]);
        v6[14..18].copy_from_slice(&[0x6b, 0x8f, 0xff, 0xff]);
        for ecn in ALL {
            set_ecn(&mut v4, ecn);
            set_ecn(&mut v6, ecn);
            assert_eq!((read_ecn(&v4), read_ecn(&v6)), (Some(ecn), Some(ecn)));
            assert_eq!(v4[14..16], [0x45, 0xb8 | ecn as u8]);
            assert_eq!(v6[14..18], [0x6b, 0x8f | (ecn as u8) << 4, 0xff, 0xff]);
        }
    }

    #[test]
    fn a_frame_without_an_ip_header_has_no_field() {
        let mut arp = vec![0; 42];
        arp[ETHERTYPE_OFFSET..14].copy_from_slice(&[0x08, 0x06]);
        let mut short_v4 = vec![0; ethernet::HEADER_BYTES + ipv4::HEADER_BYTES - 1];
        short_v4[ETHERTYPE_OFFSET] = 0x08;
        let mut short_v6 = vec![0; ethernet::HEADER_BYTES + ipv6::HEADER_BYTES - 1];
        short_v6[ETHERTYPE_OFFSET..14].copy_from_slice(&[0x86, 0xdd]);
        for mut frame in [arp, short_v4, short_v6, vec![0; 13]] {
            let before = frame.clone();
            set_ecn(&mut frame, Ecn::Ce);
            assert_eq!((read_ecn(&frame), &frame), (None, &before));
        }
    }
}
