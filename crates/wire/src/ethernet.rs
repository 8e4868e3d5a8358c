//! Ethernet II frames and MAC addresses.
//!
//! Refused: frames below 14 bytes. Neither preamble, padding nor frame check sequence is seen here:
//! the link strips them. Tags (802.1Q) are left in place and so appear as an unknown ethertype.

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
    payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Checks that the header is there.
    ///
    /// # Errors
    /// [`DropReason::FrameTooShort`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, payload) = bytes.split_first_chunk().ok_or(DropReason::FrameTooShort)?;
        Ok(Self { header, payload })
    }

    /// The header's fields.
    #[must_use]
    pub const fn repr(&self) -> EthernetRepr {
        EthernetRepr {
            destination: MacAddress(field::bytes::<0, 6, _>(self.header)),
            source: MacAddress(field::bytes::<6, 6, _>(self.header)),
            ethertype: field::u16::<12, _>(self.header),
        }
    }

    /// Everything after the header, padding included.
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
