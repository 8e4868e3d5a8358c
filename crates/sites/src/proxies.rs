//! Proxies and balancers in front of the server, which say whom they ask for: `X-Forwarded-For`, and before a
//! connection's first byte the PROXY protocol ([`crate::preface`]).
//!
//! Each proxy adds the address that it was asked from to the end of the list. So the list is read from its end, as
//! long as it was written by proxies that the operator has named; what is before that, anybody may have written.
//!
//! It refuses to believe anybody else, and what is no address. Bound: the field.

use std::net::{IpAddr, SocketAddr};

use crate::networks::{Network, SourceFilter};

/// Whom the operator believes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Proxies {
    /// Serves the proxies, and nobody else; `None`: there are none.
    known: Option<SourceFilter>,
    /// Their connections begin by the PROXY protocol.
    are_prefaces_awaited: bool,
}

impl Proxies {
    pub(crate) fn new(networks: &[Network]) -> Self {
        let known = !networks.is_empty();
        Self {
            known: known.then(|| SourceFilter::new(Some(networks), &[])),
            are_prefaces_awaited: false,
        }
    }

    pub(crate) fn with_prefaces(self, are_prefaces_awaited: bool) -> Self {
        Self {
            are_prefaces_awaited,
            ..self
        }
    }

    /// Whether `peer` is one of them.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        (self.known.as_ref()).is_some_and(|known| known.serves(peer))
    }

    /// Whether a connection from `peer` begins by the PROXY protocol.
    pub(crate) fn awaits_preface(&self, peer: IpAddr) -> bool {
        self.are_prefaces_awaited && self.trusts(peer)
    }

    /// Who asks, if a request with this list came from `peer`.
    pub(crate) fn source(&self, peer: IpAddr, list: Option<&[u8]>) -> IpAddr {
        let mut source = peer;
        let Some((known, list)) = self.known.as_ref().zip(list) else {
            return source;
        };
        for entry in list.rsplit(|&byte| byte == b',') {
            if !known.serves(source) {
                break;
            }
            let Some(before) = address_of(entry.trim_ascii()) else {
                break;
            };
            source = before;
        }
        source
    }
}

/// An address, which some proxies write with a port, or in brackets. One of IPv4 in IPv6 is that of IPv4.
fn address_of(entry: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(entry).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    address
        .or_else(with_port)
        .map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: &str = "10.0.0.1";

    fn source(peer: &str, list: &str) -> String {
        let network = |text: &str, bits| Network::new(text.parse().unwrap(), bits).unwrap();
        let proxies = Proxies::new(&[network("10.0.0.0", 8), network("2001:db8::", 32)]);
        proxies
            .source(peer.parse().unwrap(), Some(list.as_bytes()))
            .to_string()
    }

    #[test]
    fn the_list_is_read_from_its_end_as_long_as_proxies_wrote_it() {
        for (peer, list, asking) in [
            (PROXY, "192.0.2.7", "192.0.2.7"),
            (PROXY, "192.0.2.9, 192.0.2.7", "192.0.2.7"),
            (PROXY, "192.0.2.9,192.0.2.7 , 10.0.0.2", "192.0.2.7"),
            (PROXY, "10.0.0.3, 10.0.0.2", "10.0.0.3"),
            (PROXY, "192.0.2.7:4711", "192.0.2.7"),
            (PROXY, "[2001:db9::7]:4711", "2001:db9::7"),
            (PROXY, "[2001:db9::7]", "2001:db9::7"),
            (PROXY, "::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "2001:db9::7", "2001:db9::7"),
        ] {
            assert_eq!(source(peer, list), asking, "{peer} {list}");
        }
    }

    #[test]
    fn connections_of_proxies_begin_with_a_preface_if_they_are_to() {
        let proxy: IpAddr = PROXY.parse().unwrap();
        let proxies = Proxies::new(&[Network::of_address(proxy)]);
        assert!(!proxies.awaits_preface(proxy));
        let proxies = proxies.with_prefaces(true);
        assert!(proxies.awaits_preface(proxy));
        assert!(!proxies.awaits_preface("10.0.0.2".parse().unwrap()));
        assert!(proxies.trusts(proxy) && !proxies.trusts("10.0.0.2".parse().unwrap()));
        assert!(!Proxies::default().with_prefaces(true).awaits_preface(proxy));
    }

    #[test]
    fn nobody_else_is_believed_and_nothing_that_is_no_address() {
        assert_eq!(source("192.0.2.1", "192.0.2.7"), "192.0.2.1");
        for list in [
            "",
            "unknown",
            "_hidden",
            "192.0.2.256",
            "192.0.2.7,",
            "192.0.2.7 x",
            "\u{1}",
        ] {
            assert_eq!(source(PROXY, list), PROXY, "{list}");
        }
        assert_eq!(source(PROXY, "192.0.2.7, unknown, 10.0.0.2"), "10.0.0.2");
        let peer = PROXY.parse().unwrap();
        assert_eq!(Proxies::default().source(peer, Some(b"192.0.2.7")), peer);
        assert_eq!(
            Proxies::new(&[Network::of_address(peer)]).source(peer, None),
            peer
        );
    }
}
