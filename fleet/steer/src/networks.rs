//! Which zones a client prefers, by the network that it is in: the longest prefix counts.
//!
//! Bounded by [`NETWORKS_MAX`]. A look-up takes one search for each length that a prefix of the table has.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;
use thiserror::Error;

/// Most networks of the table.
pub const NETWORKS_MAX: usize = 1 << 20;

/// Networks and the zones that clients in them prefer, best first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkRule {
    /// `ADDRESS/BITS`, or an address.
    pub networks: Vec<String>,
    /// Names of zones.
    pub zones: Vec<String>,
}

/// Why a text is no network.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// No address, or more bits than it has.
    #[error("{0:?} is no network: ADDRESS/BITS is wanted, as 192.0.2.0/24 or 2001:db8::/32")]
    Syntax(String),
    /// The address has bits behind the prefix.
    #[error("{0:?} is no network: it has bits behind its prefix")]
    HostBits(String),
    /// A network that two rules have.
    #[error("{0:?} is in two rules")]
    Twice(String),
    /// Too many.
    #[error("more than {NETWORKS_MAX} networks")]
    TooMany,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    /// By the length of the prefix in bits of an IPv6 address.
    lengths: BTreeMap<u32, HashMap<u128, usize>>,
    zones: Vec<Vec<String>>,
}

impl Networks {
    /// A table of these rules.
    ///
    /// # Errors
    /// The first network that is none.
    pub fn new(rules: &[NetworkRule]) -> Result<Self, NetworkError> {
        let mut networks = Self::default();
        let mut count = 0;
        for rule in rules {
            let index = networks.zones.len();
            networks.zones.push(rule.zones.clone());
            for text in &rule.networks {
                count += 1;
                if count > NETWORKS_MAX {
                    return Err(NetworkError::TooMany);
                }
                let (first, length) = parse(text)?;
                let of_length = networks.lengths.entry(length).or_default();
                if of_length.insert(first, index).is_some() {
                    return Err(NetworkError::Twice(text.clone()));
                }
            }
        }
        Ok(networks)
    }

    /// The zones of the smallest network that has this address.
    #[must_use]
    pub fn zones(&self, address: IpAddr) -> &[String] {
        let bits = bits_of(address);
        let mut lengths = self.lengths.iter().rev();
        let found = lengths.find_map(|(length, networks)| networks.get(&(bits & mask(*length))));
        found.map_or(&[], |index| &self.zones[*index])
    }
}

/// The network by which clients are told apart: of IPv4 24 bits, of IPv6 48. Clients behind one router get one edge.
#[must_use]
pub fn client_network(address: IpAddr) -> String {
    let length = if address.to_canonical().is_ipv4() {
        96 + 24
    } else {
        48
    };
    Ipv6Addr::from(bits_of(address) & mask(length))
        .to_canonical()
        .to_string()
}

/// An address as one of IPv6: those of IPv4 are mapped.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

fn parse(text: &str) -> Result<(u128, u32), NetworkError> {
    let wrong = || NetworkError::Syntax(text.to_owned());
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let (width, before) = if address.is_ipv4() {
        (32, 96)
    } else {
        (128, 0)
    };
    let length = match length {
        // `u32` would take "+8".
        Some(length) if length.starts_with('+') => return Err(wrong()),
        Some(length) => length.parse().map_err(|_| wrong())?,
        None => width,
    };
    if length > width {
        return Err(wrong());
    }
    let (bits, length) = (bits_of(address), before + length);
    if bits & !mask(length) != 0 {
        return Err(NetworkError::HostBits(text.to_owned()));
    }
    Ok((bits, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(networks: &[&str], zone: &str) -> NetworkRule {
        NetworkRule {
            networks: networks.iter().map(|it| (*it).to_owned()).collect(),
            zones: vec![zone.to_owned()],
        }
    }

    #[test]
    fn the_smallest_network_counts() {
        let networks = Networks::new(&[
            rule(&["10.0.0.0/8", "2001:db8::/32"], "wide"),
            rule(&["10.1.0.0/16", "2001:db8:1::/48"], "near"),
            rule(&["10.1.2.3"], "here"),
        ]);
        let networks = networks.unwrap();
        for (address, zone) in [
            ("10.2.0.1", "wide"),
            ("10.1.2.4", "near"),
            ("10.1.2.3", "here"),
            ("::ffff:10.1.2.3", "here"),
            ("2001:db8:2::1", "wide"),
            ("2001:db8:1::1", "near"),
        ] {
            assert_eq!(
                networks.zones(address.parse().unwrap()),
                [zone],
                "{address}"
            );
        }
        for address in ["11.0.0.0", "2001:db9::"] {
            assert!(
                networks.zones(address.parse().unwrap()).is_empty(),
                "{address}"
            );
        }
        let all = Networks::new(&[rule(&["0.0.0.0/0"], "four"), rule(&["::/0"], "six")]).unwrap();
        assert_eq!(all.zones("1.2.3.4".parse().unwrap()), ["four"]);
        assert_eq!(all.zones("2001::".parse().unwrap()), ["six"]);
    }

    #[test]
    fn what_is_no_network_is_told() {
        for text in [
            "",
            "a",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/8/8",
        ] {
            let error = Networks::new(&[rule(&[text], "z")]).unwrap_err();
            assert_eq!(error, NetworkError::Syntax(text.to_owned()));
        }
        let host = Networks::new(&[rule(&["10.0.0.1/8"], "z")]).unwrap_err();
        assert_eq!(host, NetworkError::HostBits("10.0.0.1/8".to_owned()));
        let twice = Networks::new(&[rule(&["::/8"], "y"), rule(&["::/8"], "z")]).unwrap_err();
        assert_eq!(twice, NetworkError::Twice("::/8".to_owned()));
    }

    #[test]
    fn clients_are_told_apart_by_their_networks() {
        for (address, network) in [
            ("192.0.2.77", "192.0.2.0"),
            ("::ffff:192.0.2.77", "192.0.2.0"),
            ("2001:db8:1:2::3", "2001:db8:1::"),
        ] {
            assert_eq!(client_network(address.parse().unwrap()), network);
        }
    }
}
