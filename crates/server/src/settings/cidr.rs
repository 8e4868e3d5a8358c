//! An address of ours with its subnet (`10.77.0.2/24`, `fd77::2/64`), and the addresses around it.
//!
//! It refuses what no host may call its own: network and broadcast addresses, the unspecified,
//! loopback, multicast and IPv6 link-local ones (a URL cannot name the latter without a zone). The
//! search for a free neighbour looks at no more candidates than there are addresses taken, plus
//! two.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host address and the length of its network prefix. Never a network or broadcast address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cidr {
    address: IpAddr,
    prefix_bits: u8,
}

/// Why a text is not the address of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CidrError {
    /// Not `ADDRESS/BITS` at all.
    Syntax,
    /// An address without `/BITS`.
    PrefixMissing(IpAddr),
    /// More prefix bits than the address has, or none.
    PrefixRange(IpAddr),
    /// The subnet's first address: it names the network (RFC 4632), or every router on it
    /// (RFC 4291 s2.6.1).
    Network(Cidr),
    /// The subnet's last IPv4 address: its broadcast address (RFC 919).
    Broadcast(Cidr),
    /// Unspecified, loopback, multicast or IPv6 link-local.
    Unusable(IpAddr),
}

impl Cidr {
    /// An address that the host has, alone in its subnet; `None`: no URL can name it.
    #[must_use]
    pub(crate) fn of_host(address: IpAddr) -> Option<Self> {
        let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
        let cidr = Self {
            address,
            prefix_bits,
        };
        cidr.check_usable().is_ok().then_some(cidr)
    }

    /// Reads `ADDRESS/BITS`.
    ///
    /// # Errors
    /// [`CidrError`] when it is not the address of a host within its subnet.
    pub(crate) fn parse(text: &str) -> Result<Self, CidrError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Syntax)?;
        let bits = bits.ok_or(CidrError::PrefixMissing(address))?;
        // `u8::from_str` would take "+24", which no other tool prints or accepts.
        if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CidrError::Syntax);
        }
        let prefix_bits = bits.parse().map_err(|_| CidrError::PrefixRange(address))?;
        let cidr = Self {
            address,
            prefix_bits,
        };
        if prefix_bits == 0 || prefix_bits > cidr.width_bits() {
            return Err(CidrError::PrefixRange(address));
        }
        cidr.check_usable()?;
        Ok(cidr)
    }

    /// Our address.
    #[must_use]
    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the network prefix, bits: 1..=32 or 1..=128.
    #[must_use]
    pub(crate) const fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// Whether `address` lies in this subnet.
    #[must_use]
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && self.network_of(bits_of(address)) == self.network_of(bits_of(self.address))
    }

    /// The subnet's first host address that is not in `taken`; `None` when there is none.
    #[must_use]
    pub(crate) fn first_free(&self, taken: &[IpAddr]) -> Option<Self> {
        let network = self.network_of(bits_of(self.address));
        let last = network | self.host_mask();
        // The first address names the network and the last IPv4 one is the broadcast address, except
        // in the two-address subnets of point-to-point links (RFC 3021, RFC 6164).
        let point_to_point = self.host_mask() <= 1;
        let first = if point_to_point {
            network
        } else {
            network.checked_add(1)?
        };
        let last = if point_to_point || self.address.is_ipv6() {
            last
        } else {
            last - 1
        };
        (first..=last)
            .map(|bits| self.with_bits(bits))
            .find(|candidate| !taken.contains(candidate))
            .map(|address| Self { address, ..*self })
    }

    fn check_usable(self) -> Result<(), CidrError> {
        let link_local =
            matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local());
        let everybody = self.address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if self.address.is_unspecified()
            || self.address.is_loopback()
            || self.address.is_multicast()
            || link_local
            || everybody
        {
            return Err(CidrError::Unusable(self.address));
        }
        let host = bits_of(self.address) & self.host_mask();
        if self.host_mask() > 1 && host == 0 {
            return Err(CidrError::Network(self));
        }
        if self.host_mask() > 1 && self.address.is_ipv4() && host == self.host_mask() {
            return Err(CidrError::Broadcast(self));
        }
        Ok(())
    }

    const fn width_bits(&self) -> u8 {
        match self.address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        }
    }

    /// Ones where the host part is.
    fn host_mask(&self) -> u128 {
        let host_bits = u32::from(self.width_bits() - self.prefix_bits);
        1u128
            .checked_shl(host_bits)
            .map_or(u128::MAX, |bit| bit - 1)
    }

    fn network_of(&self, bits: u128) -> u128 {
        bits & !self.host_mask()
    }

    fn with_bits(&self, bits: u128) -> IpAddr {
        match self.address {
            IpAddr::V4(_) => {
                let bits = u32::try_from(bits).expect("invariant: an IPv4 address has 32 bits");
                IpAddr::V4(Ipv4Addr::from_bits(bits))
            }
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }
}

fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "not an address with a prefix length",
            Self::PrefixMissing(_) => "the prefix length is missing",
            Self::PrefixRange(_) => "the prefix length is out of range",
            Self::Network(_) => "that is the network's own address",
            Self::Broadcast(_) => "that is the network's broadcast address",
            Self::Unusable(_) => "no client can reach a host at that address",
        })
    }
}

impl CidrError {
    /// What to write instead.
    #[must_use]
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Syntax => "write it like 10.77.0.2/24 or fd77::2/64".into(),
            Self::PrefixMissing(address) => {
                let bits = if address.is_ipv4() { 24 } else { 64 };
                format!("write it like {address}/{bits}")
            }
            Self::PrefixRange(address) => {
                format!("use 1 to {}", if address.is_ipv4() { 32 } else { 128 })
            }
            Self::Network(subnet) | Self::Broadcast(subnet) => suggest(subnet),
            Self::Unusable(_) => "use a unicast address that is not loopback or link-local, \
                 like 10.77.0.2/24 or fd77::2/64"
                .into(),
        }
    }
}

/// "use a host of it, like 10.77.0.2/24": the second one, because the first is the host's end.
fn suggest(subnet: &Cidr) -> String {
    let first = subnet.first_free(&[]);
    let second = first.and_then(|first| subnet.first_free(&[first.address]));
    match second.or(first) {
        Some(host) => format!("use a host of it, like {host}"),
        None => "use a larger subnet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Cidr, CidrError};
    use std::net::IpAddr;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn host_end(text: &str) -> Option<String> {
        let cidr = cidr(text);
        cidr.first_free(&[cidr.address()])
            .map(|host| host.to_string())
    }

    #[test]
    fn hosts_parse_and_print_unchanged() {
        for text in [
            "10.77.0.2/24",
            "10.0.0.1/1",
            "10.0.0.1/32",
            "fd77::2/64",
            "fd77::/128",
        ] {
            assert_eq!(cidr(text).to_string(), text);
        }
    }

    #[test]
    fn addresses_no_host_may_have_are_refused() {
        let syntax = [
            "",
            "atlas",
            "10.77.0/24",
            "10.77.0.2/",
            "10.77.0.2/+24",
            "10.77.0.2/a",
        ];
        for text in syntax {
            assert_eq!(Cidr::parse(text), Err(CidrError::Syntax), "{text}");
        }
        let address: IpAddr = "10.77.0.2".parse().unwrap();
        assert_eq!(
            Cidr::parse("10.77.0.2"),
            Err(CidrError::PrefixMissing(address))
        );
        for text in ["10.77.0.2/0", "10.77.0.2/33", "10.77.0.2/256"] {
            assert_eq!(
                Cidr::parse(text),
                Err(CidrError::PrefixRange(address)),
                "{text}"
            );
        }
        for text in ["10.77.0.0/24", "10.77.0.128/25", "fd77::/64", "fd77::4/126"] {
            assert!(
                matches!(Cidr::parse(text), Err(CidrError::Network(_))),
                "{text}"
            );
        }
        for text in ["10.77.0.255/24", "10.77.0.127/25"] {
            assert!(
                matches!(Cidr::parse(text), Err(CidrError::Broadcast(_))),
                "{text}"
            );
        }
        for text in [
            "0.0.0.0/8",
            "127.0.0.1/8",
            "224.0.0.5/4",
            "255.255.255.255/32",
            "::1/128",
        ] {
            assert!(
                matches!(Cidr::parse(text), Err(CidrError::Unusable(_))),
                "{text}"
            );
        }
        for text in ["::/64", "fe80::2/64", "ff02::1/16"] {
            assert!(
                matches!(Cidr::parse(text), Err(CidrError::Unusable(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn point_to_point_subnets_have_two_hosts() {
        assert_eq!(host_end("10.77.0.0/31").as_deref(), Some("10.77.0.1/31"));
        assert_eq!(host_end("10.77.0.1/31").as_deref(), Some("10.77.0.0/31"));
        assert_eq!(host_end("fd77::1/127").as_deref(), Some("fd77::/127"));
    }

    #[test]
    fn the_host_end_is_the_first_free_address() {
        assert_eq!(host_end("10.77.0.2/24").as_deref(), Some("10.77.0.1/24"));
        assert_eq!(host_end("10.77.0.1/24").as_deref(), Some("10.77.0.2/24"));
        assert_eq!(host_end("fd77::2/64").as_deref(), Some("fd77::1/64"));
        assert_eq!(host_end("10.77.0.2/32"), None);
        let full = cidr("10.77.0.1/30");
        let taken = ["10.77.0.1", "10.77.0.2"].map(|text| text.parse().unwrap());
        assert_eq!(full.first_free(&taken), None);
    }

    #[test]
    fn a_subnet_contains_its_own_version_only() {
        let subnet = cidr("10.77.0.2/25");
        assert!(subnet.contains("10.77.0.127".parse().unwrap()));
        assert!(!subnet.contains("10.77.0.128".parse().unwrap()));
        assert!(!subnet.contains("::10.77.0.2".parse().unwrap()));
    }

    #[test]
    fn messages_carry_the_fix() {
        let message = |text| Cidr::parse(text).unwrap_err().remedy();
        assert!(message("10.77.0.0/24").ends_with("like 10.77.0.2/24"));
        assert!(message("fd77::/64").ends_with("like fd77::2/64"));
        assert!(message("10.77.0.2").ends_with("like 10.77.0.2/24"));
    }
}
