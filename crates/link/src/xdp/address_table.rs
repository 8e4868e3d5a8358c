//! The addresses that are shared with the host, as the map has them for the XDP program.
//!
//! The program reads while the kernel copies a new table over the old one. So an address keeps its place until
//! it goes, and a place is zeros before another gets it: what does not change is there at each moment. It
//! refuses more than [`ADDRESSES_MAX`] addresses. No packet is to 0.0.0.0 or `::`, which free places match.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::ADDRESSES_MAX;

const V4_BYTES: usize = 4;
const V6_BYTES: usize = 16;
/// Where the IPv6 addresses begin.
const V6_START: usize = ADDRESSES_MAX * V4_BYTES;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressTable {
    v4: [Ipv4Addr; ADDRESSES_MAX],
    v6: [Ipv6Addr; ADDRESSES_MAX],
}

impl AddressTable {
    /// Bytes of the map's value.
    pub(super) const BYTES: usize = V6_START + ADDRESSES_MAX * V6_BYTES;

    pub(super) const fn new() -> Self {
        Self {
            v4: [Ipv4Addr::UNSPECIFIED; ADDRESSES_MAX],
            v6: [Ipv6Addr::UNSPECIFIED; ADDRESSES_MAX],
        }
    }

    /// Where the places of IPv4 addresses begin, from the start of the map's value.
    pub(super) fn v4_places() -> impl Iterator<Item = i16> {
        (0..V6_START).step_by(V4_BYTES).map(offset)
    }

    /// The same for IPv6.
    pub(super) fn v6_places() -> impl Iterator<Item = i16> {
        (V6_START..Self::BYTES).step_by(V6_BYTES).map(offset)
    }

    /// Frees the places of all other addresses than these.
    pub(super) fn keep(&mut self, addresses: &[IpAddr]) {
        for place in &mut self.v4 {
            if !addresses.contains(&IpAddr::V4(*place)) {
                *place = Ipv4Addr::UNSPECIFIED;
            }
        }
        for place in &mut self.v6 {
            if !addresses.contains(&IpAddr::V6(*place)) {
                *place = Ipv6Addr::UNSPECIFIED;
            }
        }
    }

    /// Gives each of these addresses a place, where it has none.
    ///
    /// # Panics
    /// With more than [`ADDRESSES_MAX`] addresses: the caller refuses them first.
    pub(super) fn add(&mut self, addresses: &[IpAddr]) {
        for address in addresses {
            match *address {
                IpAddr::V4(address) => place(&mut self.v4, address, Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(address) => place(&mut self.v6, address, Ipv6Addr::UNSPECIFIED),
            }
        }
    }

    /// The map's value.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let v4 = self.v4.iter().flat_map(Ipv4Addr::octets);
        let v6 = self.v6.iter().flat_map(Ipv6Addr::octets);
        v4.chain(v6).collect()
    }
}

fn place<A: Copy + PartialEq>(places: &mut [A], address: A, free: A) {
    if places.contains(&address) {
        return;
    }
    let place = places.iter_mut().find(|place| **place == free);
    *place.expect("invariant: there is a place for each of ADDRESSES_MAX") = address;
}

fn offset(bytes: usize) -> i16 {
    i16::try_from(bytes).expect("invariant: the table is small")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::AddressTable;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_keeps_its_place_and_a_free_one_is_used_again() {
        let [a, b, c, six] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"].map(ip);
        let mut table = AddressTable::new();
        table.add(&[a, b, six, a]);
        let before = table.bytes();
        assert_eq!(before[..12], [10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0]);
        let v6 = usize::try_from(AddressTable::v6_places().next().unwrap()).unwrap();
        assert_eq!(before[v6..v6 + 2], [0xfd, 0]);
        table.keep(&[b, six]);
        assert_eq!(table.bytes()[..8], [0, 0, 0, 0, 10, 0, 0, 2]);
        assert_eq!(table.bytes()[8..], before[8..], "the others stay");
        table.add(&[b, c]);
        assert_eq!(table.bytes()[..8], [10, 0, 0, 3, 10, 0, 0, 2]);
        table.keep(&[]);
        assert_eq!(table, AddressTable::new());
    }

    #[test]
    fn there_is_a_place_for_as_many_of_each_version_as_there_may_be() {
        let mut table = AddressTable::new();
        for version in [0_u32, 1] {
            let address = |n: u32| match version {
                0 => IpAddr::from(n.to_be_bytes()),
                _ => IpAddr::from(u128::from(n).to_be_bytes()),
            };
            table.add(&(1..=64).map(address).collect::<Vec<_>>());
        }
        assert!(
            table
                .bytes()
                .chunks(4)
                .filter(|word| *word != [0; 4])
                .count()
                == 128
        );
    }
}
