//! Ethernet II frames and MAC addresses.
//!
//! A priority tag (IEEE 802.1Q s6.7: a tag with the VLAN number 0, which says that the frame is in no
//! VLAN) is skipped, of either type. Refused: frames below 14 bytes, or cut short in that tag. Neither
//! preamble, padding nor frame check sequence is seen here: the link strips them. Other tags, a second
//! one among them, are left in place and so appear as an unknown ethertype.

use core::fmt;
use core::net::Ipv6Addr;

use crate::field;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of an Ethernet header.
pub const HEADER_BYTES: usize = 14;
/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Ethertype of a tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Ethertype of a service tag (IEEE 802.1ad).
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// The bits of a tag that are the VLAN's number; the others are its priority.
const VLAN_NUMBER: u16 = 0x0fff;

/// An IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The group address an IPv6 multicast destination maps to (RFC 2464 s7).
    #[must_use]
    pub const fn from_multicast_v6(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Whether this addresses a group of stations: multicast or broadcast.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether this can be one station's own address: not a group, not all zero.
    #[must_use]
    pub const fn is_station(self) -> bool {
        !self.is_group() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// A received frame whose header is complete.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a> {
    header: &'a [u8; HEADER_BYTES],
    ethertype: u16,
    payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Checks that the header is there, and skips a priority tag.
    ///
    /// # Errors
    /// [`DropReason::FrameTooShort`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, payload) = bytes.split_first_chunk().ok_or(DropReason::FrameTooShort)?;
        let frame = Self {
            header,
            ethertype: field::u16::<12, _>(header),
            payload,
        };
        match frame.ethertype {
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => frame.skip_priority_tag(),
            _ => Ok(frame),
        }
    }

    /// The frame behind its tag, if that names no VLAN; else the frame as it is.
    fn skip_priority_tag(self) -> Result<Self, DropReason> {
        // The priority and the VLAN's number, then the ethertype of what follows.
        let (tag, payload): (&[u8; 4], _) =
            (self.payload.split_first_chunk()).ok_or(DropReason::FrameTooShort)?;
        if field::u16::<0, _>(tag) & VLAN_NUMBER != 0 {
            return Ok(self);
        }
        Ok(Self {
            ethertype: field::u16::<2, _>(tag),
            payload,
            ..self
        })
    }

    /// The header's fields.
    #[must_use]
    pub const fn repr(&self) -> EthernetRepr {
        EthernetRepr {
            destination: MacAddress(field::bytes::<0, 6, _>(self.header)),
            source: MacAddress(field::bytes::<6, 6, _>(self.header)),
            ethertype: self.ethertype,
        }
    }

    /// Everything after the header and a priority tag, padding included.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An Ethernet header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetRepr {
    /// Destination address.
    pub destination: MacAddress,
    /// Source address.
    pub source: MacAddress,
    /// What follows: one of the `ETHERTYPE_` constants.
    pub ethertype: u16,
}

impl EthernetRepr {
    /// Writes the header.
    pub fn emit(&self, header: &mut [u8; HEADER_BYTES]) {
        Writer::new(header)
            .bytes(&self.destination.0)
            .bytes(&self.source.0)
            .u16(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_know_what_they_are() {
        let station = MacAddress([2, 0, 0, 0, 0, 1]);
        assert!(station.is_station() && !station.is_group());
        assert!(!MacAddress::default().is_station() && !MacAddress::default().is_group());
        assert!(MacAddress::BROADCAST.is_group() && !MacAddress::BROADCAST.is_station());
        assert!(MacAddress([1, 0, 0, 0, 0, 0]).is_group());
        assert_eq!(
            MacAddress([0xa, 0xb0, 0, 1, 2, 0xff]).to_string(),
            "0a:b0:00:01:02:ff"
        );
    }

    #[test]
    fn groups_map_to_groups() {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff01, 0x0203);
        let mac = MacAddress::from_multicast_v6(group);
        assert_eq!(mac, MacAddress([0x33, 0x33, 0xff, 1, 2, 3]));
    }
}
