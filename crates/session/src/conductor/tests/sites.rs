//! What sites make of connections and replies.

use std::sync::Arc;

use super::{Bench, PEER_ADDRESS, Peer, config};
use crate::Config;
use sites::networks::{Network, SourceFilter};
use sites::rules::Rule;
use sites::{Site, Sites};

/// A server that is asked by a proxy at `proxy`, and refuses 192.0.2.7.
fn behind_proxy(proxy: [u8; 4]) -> Bench {
    let refused = Network::of_address([192, 0, 2, 7].into());
    let otherwise = Rule {
        networks: Some(SourceFilter::new(None, &[refused])),
        ..Rule::default()
    };
    let site = Site {
        otherwise,
        ..Site::default()
    };
    let sites = Sites::new(Vec::new(), site).unwrap();
    let sites = sites.with_proxies(&[Network::of_address(proxy.into())]);
    let config = Config {
        sites: Arc::new(sites.with_prefaces(true)),
        ..config()
    };
    Bench::with(config, 8)
}

fn status(peer: &Peer) -> String {
    peer.head_and_rest().0[9..12].to_owned()
}

const REQUEST: &str = "GET /object HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_connection_is_whose_a_trusted_proxy_says() {
    for (source, code) in [("192.0.2.7", "403"), ("192.0.2.8", "200")] {
        let line = format!("PROXY TCP4 {source} 10.0.0.2 4711 80\r\n{REQUEST}");
        let [a, b, c, d] = PEER_ADDRESS.octets();
        for pieces in [vec![line.as_str()], line.split_inclusive(' ').collect()] {
            let mut bench = behind_proxy([a, b, c, d]);
            let mut peer = Peer::connect(&mut bench, 1000);
            for piece in pieces {
                peer.ask(&mut bench, piece);
            }
            peer.drain(&mut bench);
            assert_eq!(status(&peer), code, "{source}");
            // The connection is that client's to its end.
            peer.received.clear();
            peer.get(&mut bench, "/object");
            peer.drain(&mut bench);
            assert_eq!(status(&peer), code, "{source}");
        }
    }
}

#[test]
fn a_trusted_proxy_that_says_nothing_is_reset_and_nobody_else_is_believed() {
    let mut bench = behind_proxy(PEER_ADDRESS.octets());
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, REQUEST);
    peer.take(&mut bench);
    assert!(peer.reset && peer.received.is_empty());
    assert_eq!(bench.conductor.counters().session_preface_refused_count, 1);
    bench.assert_quiet();
    let mut bench = behind_proxy([10, 99, 0, 1]);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, "PROXY TCP4 192.0.2.8 10.0.0.2 4711 80\r\n");
    peer.drain(&mut bench);
    assert_eq!(status(&peer), "400");
}
