//! How many connections each source has open: an IPv4 address, or an IPv6 network of 64 bits ([`network_of`]).
//!
//! Half-open connections do not count: their addresses may be forged, and an attacker could use up
//! the share of another. Bound: one entry for each connection, allocated at start.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sites::networks::network_of;
use tcp::{FourTuple, Table};

/// See the module.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Connections by source.
    counts: Table<u32>,
    /// Most connections of one source; `None`: no limit.
    most: Option<u32>,
}

impl Sources {
    /// For at most `capacity` connections; `key` is secret.
    pub(crate) fn new(capacity: usize, most: Option<u32>, key: [u8; 16]) -> Self {
        Self {
            counts: Table::new(capacity, key),
            most,
        }
    }

    /// Whether the peer's source may open one more connection.
    pub(crate) fn has_room(&self, peer: &SocketAddr) -> bool {
        self.most.is_none_or(|most| self.count(peer) < most)
    }

    /// The peer opened a connection.
    pub(crate) fn enter(&mut self, peer: &SocketAddr) {
        let count = self.count(peer) + 1;
        self.counts.set(source(peer), count);
    }

    /// A connection of the peer has ended.
    pub(crate) fn leave(&mut self, peer: &SocketAddr) {
        match self.count(peer) {
            0 => unreachable!("a connection that ends was counted"),
            1 => self.counts.remove(&source(peer)),
            count => self.counts.set(source(peer), count - 1),
        }
    }

    /// A connection of `before` turns out to be one of `after`. Whether that has more than it may now.
    pub(crate) fn recount(&mut self, before: &SocketAddr, after: &SocketAddr) -> bool {
        self.leave(before);
        self.enter(after);
        self.most.is_some_and(|most| self.count(after) > most)
    }

    /// Connections of the peer's source.
    pub(crate) fn count(&self, peer: &SocketAddr) -> u32 {
        self.counts.find(&source(peer)).unwrap_or(0)
    }
}

/// The key of a peer's source.
fn source(peer: &SocketAddr) -> FourTuple {
    let network = network_of(peer.ip());
    let any: IpAddr = match network {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    FourTuple {
        local: SocketAddr::new(any, 0),
        peer: SocketAddr::new(network, 0),
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::Sources;

    fn peer(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network_of_64_bits() {
        for (first, same, other) in [
            ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"),
            ("[fd00::1]:1", "[fd00::ffff:0:0:2]:1", "[fd00:0:0:1::1]:1"),
        ] {
            let mut sources = Sources::new(4, Some(2), [1; 16]);
            sources.enter(&peer(first));
            assert!(sources.has_room(&peer(same)));
            sources.enter(&peer(same));
            assert!(!sources.has_room(&peer(first)));
            assert!(sources.has_room(&peer(other)));
            sources.leave(&peer(first));
            assert!(sources.has_room(&peer(same)));
            sources.leave(&peer(same));
            assert!(sources.counts.is_empty(), "nothing is kept of it");
        }
    }

    #[test]
    fn there_is_an_entry_for_each_connection() {
        let mut sources = Sources::new(300, Some(1), [1; 16]);
        let peers: Vec<_> = (0..300)
            .map(|n| peer(&format!("10.0.{}.{}:9", n / 256, n % 256)))
            .collect();
        peers.iter().for_each(|peer| sources.enter(peer));
        assert!(peers.iter().all(|peer| !sources.has_room(peer)));
        peers.iter().for_each(|peer| sources.leave(peer));
        assert!(peers.iter().all(|peer| sources.has_room(peer)));
    }
}
