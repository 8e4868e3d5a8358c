//! Which sources are served: by network, before TCP.
//!
//! **A source is served if it is in an allowed network, or none was named, and in no denied one.** The
//! order and the lengths of the prefixes do not matter. A source that is refused gets no answer, as from a
//! packet filter that drops: no SYN-ACK, no reset, no echo reply, and its fragments take no room.
//!
//! It refuses to look at segments of connections: those of refused sources cannot exist, so only what
//! would make a connection, a SYN cookie or an answer is looked up. ARP and neighbour discovery are
//! between hosts of the link and are answered to all; ICMP errors come from routers anywhere.
//!
//! Bounds: [`NETWORKS_MAX`] networks in a list. A look-up is a binary search in each.

use core::net::IpAddr;

/// Most networks in a list.
pub const NETWORKS_MAX: usize = 16_384;

/// A network: all addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    first: IpAddr,
    prefix_bits: u8,
}

/// Why there is no such network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkProblem {
    /// More prefix bits than an address has.
    PrefixRange,
    /// The address has bits behind the prefix; this is the network that it is in.
    HostBits(Network),
}

impl Network {
    /// The network that begins at `first`, of so many bits: 0 to 32, or 0 to 128.
    ///
    /// # Errors
    /// [`NetworkProblem`].
    pub fn new(first: IpAddr, prefix_bits: u8) -> Result<Self, NetworkProblem> {
        if prefix_bits > width_bits(first) {
            return Err(NetworkProblem::PrefixRange);
        }
        let network = Self { first, prefix_bits };
        let bits = bits_of(first);
        let host = bits & network.host_mask();
        if host == 0 {
            return Ok(network);
        }
        let first = match first {
            #[expect(clippy::cast_possible_truncation, reason = "32 bits")]
            IpAddr::V4(_) => IpAddr::V4(((bits - host) as u32).into()),
            IpAddr::V6(_) => IpAddr::V6((bits - host).into()),
        };
        Err(NetworkProblem::HostBits(Self { first, ..network }))
    }

    /// One address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self {
            first: address,
            prefix_bits: width_bits(address),
        }
    }

    /// Ones behind the prefix.
    fn host_mask(&self) -> u128 {
        let host_bits = width_bits(self.first) - self.prefix_bits;
        let past = 1_u128.checked_shl(host_bits.into());
        past.map_or(u128::MAX, |past| past - 1)
    }
}

impl core::fmt::Display for Network {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix_bits)
    }
}

/// See the module. The default serves every source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceFilter {
    allowed: Option<NetworkSet>,
    denied: NetworkSet,
}

impl SourceFilter {
    /// Serves the sources of `allowed`, or all if that is `None`, but those of `denied`.
    ///
    /// # Panics
    /// With more than [`NETWORKS_MAX`] networks in one of them: the caller refuses them first.
    #[must_use]
    pub fn new(allowed: Option<&[Network]>, denied: &[Network]) -> Self {
        Self {
            allowed: allowed.map(NetworkSet::new),
            denied: NetworkSet::new(denied),
        }
    }

    /// Whether a source is served.
    #[must_use]
    pub fn serves(&self, source: IpAddr) -> bool {
        let is_allowed = (self.allowed.as_ref()).is_none_or(|allowed| allowed.contains(source));
        is_allowed && !self.denied.contains(source)
    }
}

/// Addresses of both versions, as ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct NetworkSet {
    v4: Ranges,
    v6: Ranges,
}

impl NetworkSet {
    fn new(networks: &[Network]) -> Self {
        let count = networks.len();
        assert!(count <= NETWORKS_MAX, "{count} networks in a list");
        let of_version = |is_v4| {
            let networks = networks.iter().filter(|it| it.first.is_ipv4() == is_v4);
            Ranges::new(networks)
        };
        Self {
            v4: of_version(true),
            v6: of_version(false),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let ranges = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        ranges.contains(bits_of(address))
    }
}

/// First and last of each range, in ascending order; no two overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Ranges(Box<[(u128, u128)]>);

impl Ranges {
    fn new<'a>(networks: impl Iterator<Item = &'a Network>) -> Self {
        let ends = networks.map(|it| (bits_of(it.first), bits_of(it.first) | it.host_mask()));
        let mut all: Vec<(u128, u128)> = ends.collect();
        all.sort_unstable();
        let mut ranges: Vec<(u128, u128)> = Vec::new();
        for (first, last) in all {
            match ranges.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self(ranges.into_boxed_slice())
    }

    fn contains(&self, bits: u128) -> bool {
        let after = self.0.partition_point(|range| range.0 <= bits);
        let found = after.checked_sub(1).and_then(|place| self.0.get(place));
        found.is_some_and(|range| bits <= range.1)
    }
}

/// Bits of an IPv6 address that do not tell clients apart: a /64 is the least that one customer gets (RFC 6177).
const HOST_BITS_V6: u32 = 64;

/// The network by which clients are counted: an address of IPv4 itself, of IPv6 its /64, with zeros behind.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = address.to_bits() >> HOST_BITS_V6 << HOST_BITS_V6;
            core::net::Ipv6Addr::from_bits(network).into()
        }
    }
}

fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

const fn width_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::{NETWORKS_MAX, Network, NetworkProblem, SourceFilter};

    fn network(text: &str) -> Network {
        let (first, bits) = text.split_once('/').unwrap();
        Network::new(first.parse().unwrap(), bits.parse().unwrap()).unwrap()
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| network(text)).collect()
    }

    fn serves(filter: &SourceFilter, sources: &[&str]) -> Vec<bool> {
        let sources = sources.iter().map(|text| text.parse().unwrap());
        sources.map(|source| filter.serves(source)).collect()
    }

    #[test]
    fn without_lists_everybody_is_served() {
        let filter = SourceFilter::default();
        assert_eq!(serves(&filter, &["0.0.0.1", "fd00::1"]), [true; 2]);
        assert_eq!(SourceFilter::new(None, &[]), filter);
    }

    #[test]
    fn with_an_allow_list_only_its_networks_are_served() {
        let allowed = networks(&["192.0.2.0/24", "2001:db8::/32"]);
        let filter = SourceFilter::new(Some(&allowed), &[]);
        let inside = ["192.0.2.0", "192.0.2.255", "2001:db8::", "2001:db8:ffff::1"];
        assert_eq!(serves(&filter, &inside), [true; 4]);
        let outside = ["192.0.1.255", "192.0.3.0", "2001:db7::1", "2001:db9::"];
        assert_eq!(serves(&filter, &outside), [false; 4]);
        // Only IPv4 is named: nobody of IPv6 is.
        let filter = SourceFilter::new(Some(&allowed[..1]), &[]);
        assert_eq!(serves(&filter, &["2001:db8::", "::c000:201"]), [false; 2]);
    }

    #[test]
    fn a_denied_network_is_refused_also_within_an_allowed_one_and_around_one() {
        let allowed = networks(&["10.0.0.0/8"]);
        let filter = SourceFilter::new(Some(&allowed), &networks(&["10.1.0.0/16"]));
        assert_eq!(serves(&filter, &["10.0.0.1", "10.1.0.1"]), [true, false]);
        let filter = SourceFilter::new(Some(&allowed), &networks(&["0.0.0.0/0"]));
        assert_eq!(serves(&filter, &["10.0.0.1", "192.0.2.1"]), [false; 2]);
        let filter = SourceFilter::new(None, &networks(&["10.0.0.0/8"]));
        let sources = ["10.0.0.1", "11.0.0.1", "fd00::1"];
        assert_eq!(serves(&filter, &sources), [false, true, true]);
    }

    #[test]
    fn networks_begin_where_their_host_bits_are_zero() {
        let new = |first: &str, bits| Network::new(first.parse().unwrap(), bits);
        for (first, bits) in [("0.0.0.0", 0), ("10.0.0.1", 32), ("::", 0), ("::1", 128)] {
            let found = new(first, bits).unwrap();
            assert_eq!(found.to_string(), format!("{first}/{bits}"));
        }
        for (first, bits) in [("10.0.0.0", 33), ("::", 129)] {
            assert_eq!(new(first, bits), Err(NetworkProblem::PrefixRange));
        }
        for (first, bits, right) in [
            ("192.0.2.7", 24, "192.0.2.0/24"),
            ("192.0.2.7", 0, "0.0.0.0/0"),
            ("2001:db8::7", 64, "2001:db8::/64"),
        ] {
            let problem = NetworkProblem::HostBits(network(right));
            assert_eq!(new(first, bits), Err(problem));
        }
        let address = "192.0.2.7".parse().unwrap();
        assert_eq!(Network::of_address(address), network("192.0.2.7/32"));
    }

    #[test]
    fn as_many_networks_as_may_be_are_looked_up() {
        let every_second = |n: u32| Network::of_address(Ipv4Addr::from_bits(2 * n).into());
        let denied: Vec<_> = (0..u32::try_from(NETWORKS_MAX).unwrap())
            .map(every_second)
            .collect();
        let filter = SourceFilter::new(None, &denied);
        for n in 0..2 * u32::try_from(NETWORKS_MAX).unwrap() {
            let address = Ipv4Addr::from_bits(n).into();
            assert_eq!(filter.serves(address), n % 2 == 1);
        }
    }

    /// A network of few bits, so that networks overlap, and an address near them.
    fn any_network() -> impl Strategy<Value = Network> {
        (any::<bool>(), any::<u8>(), 0u8..=8).prop_map(|(is_v4, bits, prefix_bits)| {
            let kept = u8::try_from(0xff00_u16 >> prefix_bits & 0xff).unwrap();
            Network::new(near(is_v4, bits & kept), prefix_bits).unwrap()
        })
    }

    fn near(is_v4: bool, first: u8) -> IpAddr {
        match is_v4 {
            true => Ipv4Addr::new(first, 0, 0, 0).into(),
            false => Ipv6Addr::from_bits(u128::from(first) << 120).into(),
        }
    }

    proptest! {
        #[test]
        fn ranges_have_the_addresses_of_their_networks_and_no_others(
            allowed in proptest::option::of(proptest::collection::vec(any_network(), 0..6)),
            denied in proptest::collection::vec(any_network(), 0..6),
        ) {
            let filter = SourceFilter::new(allowed.as_deref(), &denied);
            for (is_v4, first) in (0..=255).flat_map(|first| [(true, first), (false, first)]) {
                let has = |network: &Network| {
                    let near = |byte: u8| u32::from(byte) >> (8 - network.prefix_bits);
                    let begin = match network.first {
                        IpAddr::V4(address) => address.octets()[0],
                        IpAddr::V6(address) => address.octets()[0],
                    };
                    network.first.is_ipv4() == is_v4 && near(begin) == near(first)
                };
                let is_allowed = allowed.as_ref().is_none_or(|list| list.iter().any(has));
                let expected = is_allowed && !denied.iter().any(has);
                prop_assert_eq!(filter.serves(near(is_v4, first)), expected);
            }
        }
    }
}
