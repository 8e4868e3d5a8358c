//! Which of the host's own addresses the server shares: those on its interface, and those on loopback, where a
//! load balancer with direct server return (LVS-DR) and anycast have theirs.
//!
//! It refuses those that no URL can name (127.0.0.0/8, link-local ones of IPv6), and those of other interfaces:
//! a host that keeps its networks apart expects a service on one of them not to be there on another. Bound:
//! [`ADDRESSES_MAX`], those of the interface first.

use std::io;
use std::net::IpAddr;

use link::packet::ADDRESSES_MAX;
use tracing::warn;

use crate::settings::cidr::Cidr;
use crate::start::host::{self, InterfaceAddress};

/// Where addresses are that belong to the host as a whole.
const LOOPBACK: &str = "lo";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostAddresses {
    /// All that are served.
    pub all: Vec<IpAddr>,
    /// Those of them that are on loopback: the packets to them come from a load balancer, or by a route.
    pub virtual_addresses: Vec<IpAddr>,
    /// How many more there are.
    pub left_out_count: usize,
}

impl HostAddresses {
    /// Those of this network namespace now.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn read(interface: &str) -> io::Result<Self> {
        Ok(Self::of(&host::interface_addresses()?, interface))
    }

    fn of(found: &[InterfaceAddress], interface: &str) -> Self {
        let mut chosen = Self::default();
        for place in [interface, LOOPBACK] {
            for it in found.iter().filter(|it| it.interface == place) {
                if Cidr::of_host(it.address).is_none() || chosen.all.contains(&it.address) {
                    continue;
                }
                if chosen.all.len() == ADDRESSES_MAX {
                    chosen.left_out_count += 1;
                    continue;
                }
                chosen.all.push(it.address);
                if place == LOOPBACK {
                    chosen.virtual_addresses.push(it.address);
                }
            }
        }
        chosen
    }

    /// Says so if some are left out.
    pub(crate) fn warn_of_left_out(&self, interface: &str) {
        if self.left_out_count > 0 {
            warn!(
                "this host has {} more addresses on {interface} and {LOOPBACK} than the {ADDRESSES_MAX} that are \
                 served: clients of those reach its own TCP",
                self.left_out_count
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{ADDRESSES_MAX, HostAddresses};
    use crate::start::host::InterfaceAddress;

    fn on(interface: &str, address: &str) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.into(),
            address: address.parse().unwrap(),
        }
    }

    #[test]
    fn those_of_the_interface_come_first_and_those_on_loopback_are_virtual() {
        let found = [
            on("lo", "127.0.0.1"),
            on("lo", "192.0.2.80"),
            on("lo", "192.0.2.7"),
            on("lo", "::1"),
            on("lo", "2001:db8::80"),
            on("eth1", "198.51.100.7"),
            on("eth0", "192.0.2.7"),
            on("eth0", "2001:db8::7"),
            on("eth0", "fe80::7"),
        ];
        let chosen = HostAddresses::of(&found, "eth0");
        let texts = |list: &[IpAddr]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = ["192.0.2.7", "2001:db8::7", "192.0.2.80", "2001:db8::80"];
        assert_eq!(texts(&chosen.all), all);
        assert_eq!(texts(&chosen.virtual_addresses), all[2..]);
        assert_eq!(chosen.left_out_count, 0);
        assert!(HostAddresses::of(&found[..1], "eth0").all.is_empty());
    }

    #[test]
    fn beyond_the_most_they_are_left_out_and_counted() {
        let text = |n: usize| format!("10.0.{}.{}", n / 200, 1 + n % 200);
        let many = |count: usize| (0..count).map(|n| on("eth0", &text(n))).collect::<Vec<_>>();
        for (count, left_out_count) in [(ADDRESSES_MAX, 0), (ADDRESSES_MAX + 3, 3)] {
            let chosen = HostAddresses::of(&many(count), "eth0");
            assert_eq!(chosen.all.len(), ADDRESSES_MAX);
            assert_eq!(chosen.left_out_count, left_out_count);
        }
    }
}
