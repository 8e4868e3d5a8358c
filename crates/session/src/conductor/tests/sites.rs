//! What sites make of connections and replies: whom a proxy forwards, stored codings, bodies of errors, rates.

use std::sync::Arc;

use super::{Bench, OBJECT_BYTES, PEER_ADDRESS, Peer, assert_is_object, config, object};
use crate::{Config, LookupError, LookupPlan, LookupPurpose, SiteCounters};
use clock::Duration;
use counters::Value as _;
use http::{Coding, ExtraFields, ReplyConfig, Status};
use sites::limits::{Limit, RequestRate};
use sites::links::{LinkForm, LinkKey, Links};
use sites::networks::{Network, SourceFilter};
use sites::redirects::Redirect;
use sites::rules::{OnMiss, Rate, Rule};
use sites::{Site, Sites};
use wire::TcpFlags;

fn with_site(site: Site) -> Config {
    Config {
        sites: Arc::new(Sites::new(Vec::new(), site).unwrap()),
        ..config()
    }
}

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

#[test]
fn connections_are_counted_for_whom_they_are_forwarded() {
    let mut bench = behind_proxy(PEER_ADDRESS.octets());
    let config = Config {
        connections_per_source_max: Some(1),
        ..bench.conductor.config.clone()
    };
    bench = Bench::with(config, 8);
    let mut open = |port: u16, source: &str| {
        let mut peer = Peer::connect(&mut bench, port);
        let line = format!("PROXY TCP4 {source} 10.0.0.2 4711 80\r\n{REQUEST}");
        peer.ask(&mut bench, &line);
        peer.drain(&mut bench);
        peer
    };
    let mut first = open(1000, "192.0.2.8");
    assert_eq!(status(&first), "200");
    assert_eq!(status(&open(1001, "192.0.2.9")), "200");
    assert!(open(1002, "192.0.2.8").reset);
    // Who leaves makes room.
    first.close(&mut bench);
    let mut again = Peer::connect(&mut bench, 1003);
    let line = format!("PROXY TCP4 192.0.2.8 10.0.0.2 4711 80\r\n{REQUEST}");
    again.ask(&mut bench, &line);
    again.drain(&mut bench);
    assert_eq!(status(&again), "200");
    assert_eq!(bench.conductor.counters().tcp_source_refused_count, 1);
}

/// A server that serves 192.0.2.0/24, whose trusted proxy is somewhere else.
fn serving_clients_of_a_proxy(has_preface: bool) -> Bench {
    let clients = Network::new([192, 0, 2, 0].into(), 24).unwrap();
    let sites = Sites::default().with_proxies(&[Network::of_address(PEER_ADDRESS.into())]);
    let config = Config {
        sites: Arc::new(sites.with_prefaces(has_preface)),
        source_filter: SourceFilter::new(Some(&[clients]), &[]),
        ..config()
    };
    Bench::with(config, 8)
}

#[test]
fn the_servers_allow_judges_whom_a_trusted_proxy_forwards_and_not_the_proxy() {
    for (list, code) in [
        ("X-Forwarded-For: 192.0.2.255\r\n", "200"),
        ("X-Forwarded-For: 192.0.3.0\r\n", "403"),
        // What it asks for itself.
        ("", "403"),
    ] {
        let mut bench = serving_clients_of_a_proxy(false);
        let mut peer = Peer::connect(&mut bench, 1000);
        for method in ["GET", "OPTIONS"] {
            peer.received.clear();
            let request = format!("{method} /object HTTP/1.1\r\nHost: a\r\n{list}\r\n");
            peer.ask(&mut bench, &request);
            peer.drain(&mut bench);
            let is_refused = code == "403";
            let expected = if method == "GET" || is_refused {
                code
            } else {
                "405"
            };
            assert_eq!(status(&peer), expected, "{method} {list}");
            let denied = bench.conductor.counters().session_denied_count;
            assert_eq!(denied > 0, is_refused);
        }
        assert_eq!(bench.conductor.counters().wire_denied_frames, 0);
    }
}

#[test]
fn whom_the_proxy_protocol_names_is_reset_if_the_servers_allow_does_not_serve_him() {
    for (source, is_served) in [("192.0.2.0", true), ("192.0.1.255", false)] {
        let mut bench = serving_clients_of_a_proxy(true);
        let mut peer = Peer::connect(&mut bench, 1000);
        let line = format!("PROXY TCP4 {source} 10.0.0.2 4711 80\r\n{REQUEST}");
        peer.ask(&mut bench, &line);
        peer.drain(&mut bench);
        assert_eq!(peer.reset, !is_served, "{source}");
        let denied = bench.conductor.counters().session_denied_count;
        assert_eq!(denied, u64::from(!is_served));
        if is_served {
            assert_eq!(status(&peer), "200");
        } else {
            bench.assert_quiet();
        }
    }
    // The balancer's own connection may be made, and has its requests refused.
    let mut bench = serving_clients_of_a_proxy(true);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(&mut bench, &format!("PROXY UNKNOWN\r\n{REQUEST}"));
    peer.drain(&mut bench);
    assert_eq!(status(&peer), "403");
}

#[test]
fn what_a_cookie_opened_is_private_in_each_coding() {
    // printf 'exp=1764155000~acl=/*' | openssl dgst -sha256 -hmac key
    let token = "exp=1764155000~acl=/*~hmac=a9b119ffd57e89968a5d6323f71d38f8b6198ea81ba0ed73ca412cc7d5c8e861";
    let links = Links::new(
        LinkForm::Token("hdnts".into()),
        vec![LinkKey::new(b"key").unwrap()],
    );
    let replies = ReplyConfig {
        precompressed: vec![Coding::Gzip],
        ..ReplyConfig::default()
    };
    let otherwise = Rule {
        links: Some(links),
        replies,
        ..Rule::default()
    };
    let site = Site {
        otherwise,
        ..Site::default()
    };
    let mut bench = Bench::with(with_site(site), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    for (target, fields, is_private) in [
        ("/object", format!("Cookie: hdnts={token}\r\n"), true),
        (
            "/object",
            format!("Cookie: hdnts={token}\r\nAccept-Encoding: gzip\r\n"),
            true,
        ),
        (&format!("/object?hdnts={token}"), String::new(), false),
    ] {
        peer.received.clear();
        peer.ask(
            &mut bench,
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
        );
        peer.drain(&mut bench);
        let (head, _) = peer.head_and_rest();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let said = head.contains("\r\nCache-Control: private\r\n");
        assert_eq!(said, is_private, "{head}");
    }
}

#[test]
fn a_network_has_as_many_replies_at_once_as_the_limit_says_on_whichever_worker() {
    let limited = Rule {
        limit: Some(Limit::new(Some(1), None)),
        ..Rule::default()
    };
    let site = Site {
        rules: vec![(vec!["/object".into()], limited)],
        ..Site::default()
    };
    let config = with_site(site);
    let (mut bench, mut other) = (Bench::with(config.clone(), 8), Bench::with(config, 8));
    let mut first = Peer::connect(&mut bench, 1000);
    // It has not acknowledged its reply.
    first.ask(&mut bench, REQUEST);
    let ask = |bench: &mut Bench, peer: &mut Peer, path: &str| {
        peer.received.clear();
        peer.get(bench, path);
        peer.drain(bench);
        status(peer)
    };
    let mut second = Peer::connect(&mut bench, 1001);
    assert_eq!(ask(&mut bench, &mut second, "/object"), "429");
    let (head, _) = second.head_and_rest();
    assert!(head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    assert_eq!(ask(&mut bench, &mut second, "/other"), "200", "no limit");
    let mut third = Peer::connect(&mut other, 1002);
    assert_eq!(ask(&mut other, &mut third, "/object"), "429");
    assert_eq!(bench.conductor.counters().http_limited_count, 1);
    // What waits for a request does not count, and neither does who left in mid-reply.
    first.drain(&mut bench);
    assert_eq!(status(&first), "200");
    assert_eq!(ask(&mut bench, &mut second, "/object"), "200");
    assert_eq!(ask(&mut other, &mut third, "/object"), "200");
    first.received.clear();
    first.ask(&mut bench, REQUEST);
    assert_eq!(ask(&mut other, &mut third, "/object"), "429");
    first.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(ask(&mut other, &mut third, "/object"), "200");
}

#[test]
fn requests_of_a_network_beyond_their_rate_are_answered_429() {
    let rate = RequestRate {
        interval_ns: 1_000_000_000,
        burst: 1,
    };
    let otherwise = Rule {
        limit: Some(Limit::new(None, Some(rate))),
        ..Rule::default()
    };
    let site = Site {
        otherwise,
        ..Site::default()
    };
    let mut bench = Bench::with(with_site(site), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    let mut ask = |bench: &mut Bench, path: &str| {
        peer.received.clear();
        peer.get(bench, path);
        peer.drain(bench);
        status(&peer)
    };
    let codes = ["/object", "/.hidden", "/object", "/object"].map(|path| ask(&mut bench, path));
    assert_eq!(
        codes,
        ["200", "404", "200", "429"],
        "what is refused anyway does not count"
    );
    bench.now += Duration::from_millis(1_001);
    assert_eq!(ask(&mut bench, "/object"), "200");
    assert_eq!(ask(&mut bench, "/object"), "429");
}

/// The paths that are looked up for a request until one is found, which only `found` is.
fn looked_up(bench: &mut Bench, peer: &mut Peer, fields: &str, found: &str) -> Vec<String> {
    let request = format!("GET /object HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let flags = TcpFlags::ACK.union(TcpFlags::PSH);
    peer.received.clear();
    peer.send(bench, flags, request.as_bytes());
    let mut paths = Vec::new();
    while let Some(plan) = bench.conductor.poll_lookup() {
        let answer = if plan.path == found {
            Ok(object(1000))
        } else {
            Err(LookupError::NotFound)
        };
        paths.push(plan.path);
        let now = bench.now;
        bench.conductor.handle_lookup(now, plan.token, answer);
    }
    bench.turn();
    peer.drain(bench);
    paths
}

#[test]
fn an_object_is_sent_in_the_coding_that_is_there_and_that_the_client_prefers() {
    let replies = ReplyConfig {
        precompressed: vec![Coding::Brotli, Coding::Gzip],
        ..ReplyConfig::default()
    };
    let otherwise = Rule {
        replies,
        ..Rule::default()
    };
    let mut bench = Bench::with(
        with_site(Site {
            otherwise,
            ..Site::default()
        }),
        8,
    );
    let mut peer = Peer::connect(&mut bench, 1000);
    let both = ["/object.br", "/object.gz", "/object"];
    for (fields, found, paths, code, encoding) in [
        ("", "/object", &both[2..], "200", None),
        (
            "Accept-Encoding: gzip, br\r\n",
            "/object.br",
            &both[..1],
            "200",
            Some("br"),
        ),
        (
            "Accept-Encoding: gzip, br\r\n",
            "/object.gz",
            &both[..2],
            "200",
            Some("gzip"),
        ),
        (
            "Accept-Encoding: gzip, br\r\n",
            "/object",
            &both[..],
            "200",
            None,
        ),
        (
            "Accept-Encoding: zstd\r\n",
            "/object",
            &both[2..],
            "200",
            None,
        ),
        (
            "Accept-Encoding: br\r\n",
            "",
            &["/object.br", "/object"],
            "404",
            None,
        ),
        (
            "Accept-Encoding: br\r\nRange: bytes=0-9\r\n",
            "/object.br",
            &both[..1],
            "206",
            Some("br"),
        ),
    ] {
        assert_eq!(
            looked_up(&mut bench, &mut peer, fields, found),
            paths,
            "{fields}"
        );
        let (head, _) = peer.head_and_rest();
        assert_eq!(head[9..12], *code, "{head}");
        let said = encoding.map(|name| format!("\r\nContent-Encoding: {name}\r\n"));
        let is_said = said.is_none_or(|line| head.contains(&line));
        assert_eq!(head.contains("Content-Encoding"), encoding.is_some());
        assert!(is_said, "{head}");
        let varies = head.contains("\r\nVary: Accept-Encoding\r\n");
        assert_eq!(varies, code != "404", "{head}");
    }
}

#[test]
fn the_body_of_an_error_is_an_object_if_it_is_there() {
    let site = || Site {
        error_pages: vec![(Status::NotFound, "/404.html".into())],
        ..Site::default()
    };
    let mut bench = Bench::with(with_site(site()), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    for (found, body_bytes) in [("/404.html", 1000), ("", 14)] {
        let paths = looked_up(&mut bench, &mut peer, "", found);
        assert_eq!(paths, ["/object", "/404.html"]);
        let (head, body) = peer.head_and_rest();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {body_bytes}\r\n")));
        assert_eq!(body.len(), body_bytes);
        let is_page = found == "/404.html";
        assert_eq!(
            head.contains("\r\nContent-Type: text/html"),
            is_page,
            "{head}"
        );
        assert!(!head.contains("ETag") && !head.contains("Accept-Ranges"));
    }
    // Another error has none, and what is there is no error.
    let mut peer = Peer::connect(&mut bench, 1001);
    peer.get(&mut bench, "/object");
    peer.drain(&mut bench);
    assert_eq!(status(&peer), "200");
}

#[test]
fn errors_of_the_server_and_of_limits_have_bodies_too() {
    let rate = RequestRate {
        interval_ns: 1_000_000_000,
        burst: 2,
    };
    let otherwise = Rule {
        limit: Some(Limit::new(None, Some(rate))),
        ..Rule::default()
    };
    let site = Site {
        error_pages: vec![
            (Status::ServiceUnavailable, "/503.html".into()),
            (Status::TooManyRequests, "/429.html".into()),
        ],
        otherwise,
        ..Site::default()
    };
    let mut bench = Bench::with(with_site(site), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    let (busy, failed) = (Err(LookupError::Busy), Err(LookupError::Failed));
    for (answers, code, body_bytes) in [
        (
            vec![("/object", busy), ("/503.html", Ok(()))],
            "503 Service Unavailable",
            1000,
        ),
        // It stays what it was if the page fails as well.
        (
            vec![("/object", busy), ("/503.html", failed)],
            "503 Service Unavailable",
            24,
        ),
        (vec![("/object", failed)], "500 Internal Server Error", 26),
        (vec![("/429.html", Ok(()))], "429 Too Many Requests", 1000),
    ] {
        peer.received.clear();
        let flags = TcpFlags::ACK.union(TcpFlags::PSH);
        peer.send(&mut bench, flags, REQUEST.as_bytes());
        for (path, answer) in answers {
            let plan = bench.conductor.poll_lookup().unwrap();
            assert_eq!(plan.path, path);
            let answer = answer.map(|()| object(1000));
            let now = bench.now;
            bench.conductor.handle_lookup(now, plan.token, answer);
        }
        bench.turn();
        peer.drain(&mut bench);
        let (head, body) = peer.head_and_rest();
        assert!(head.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{head}");
        assert_eq!(body.len(), body_bytes, "{code}");
        let comes_again = !code.starts_with("500");
        assert_eq!(head.contains("\r\nRetry-After: 1\r\n"), comes_again);
    }
}

#[test]
fn a_rate_holds_behind_the_first_bytes_of_a_reply() {
    const RATE: u64 = 1_000_000;
    const AFTER_BYTES: u64 = 100_000;
    let otherwise = Rule {
        rate: Some(Rate {
            bytes_per_second: RATE,
            after_bytes: AFTER_BYTES,
        }),
        ..Rule::default()
    };
    let mut bench = Bench::with(
        with_site(Site {
            otherwise,
            ..Site::default()
        }),
        8,
    );
    let mut peer = Peer::connect(&mut bench, 1000);
    for _ in 0..2 {
        peer.received.clear();
        let started = bench.now;
        peer.get(&mut bench, "/object");
        peer.drain(&mut bench);
        // No time passed: what is before the rate holds, and a read or two at its end.
        let at_once = u64::try_from(peer.received.len()).unwrap();
        let most = AFTER_BYTES + 2 * 65_536;
        assert!((AFTER_BYTES..most).contains(&at_once), "{at_once}");
        while u64::try_from(peer.received.len()).unwrap() < OBJECT_BYTES {
            bench.pass(Duration::from_millis(1));
            peer.drain(&mut bench);
        }
        let least = Duration::from_micros(OBJECT_BYTES - at_once - 65_536);
        assert!(bench.now.since(started) >= least);
        assert_is_object(peer.head_and_rest().1, 0);
        bench.pass(Duration::from_millis(100));
    }
}

/// A server with three sites, of which the third has no number.
fn counting_by_site(counts_by_site: bool) -> Bench {
    let sites = ["a.example", "b.example", "c.example"].map(|name| Site {
        names: vec![name.into()],
        ..Site::default()
    });
    let sites = Sites::new(sites.into(), Site::default()).unwrap();
    let config = Config {
        sites: Arc::new(sites.with_numbers(&[2, 1])),
        counts_by_site,
        ..config()
    };
    Bench::with(config, 8)
}

/// Requests, bytes, replies by class and times to the first byte of a site.
fn counted(bench: &Bench, number: usize) -> (u64, u64, [u64; 4], u64) {
    let counters = &bench.conductor.site_counters()[number];
    let times = counters.first_byte_seconds.total();
    let SiteCounters {
        request_count,
        sent_bytes,
        reply_count,
        ..
    } = *counters;
    (request_count, sent_bytes, reply_count, times)
}

#[test]
fn requests_are_counted_by_site_if_that_is_wanted() {
    for counts_by_site in [true, false] {
        let mut bench = counting_by_site(counts_by_site);
        let mut peer = Peer::connect(&mut bench, 1000);
        let mut sizes = Vec::new();
        for (name, path, fields) in [
            ("a.example", "object", ""),
            ("A.example", "nothing", ""),
            ("b.example", "object", "If-None-Match: *\r\n"),
            ("c.example", "object", ""),
            ("unknown.example", "nothing", ""),
            // No head.
            ("a b", "", ""),
        ] {
            peer.received.clear();
            let request = format!("GET /{path} HTTP/1.1\r\nHost: {name}\r\n{fields}\r\n");
            peer.ask(&mut bench, &request);
            peer.drain(&mut bench);
            sizes.push(peer.received.len() as u64);
        }
        if counts_by_site {
            let [object, nothing, unchanged, rest @ ..] = &sizes[..] else {
                unreachable!()
            };
            assert_eq!(counted(&bench, 2), (2, object + nothing, [1, 0, 1, 0], 2));
            assert_eq!(counted(&bench, 1), (1, *unchanged, [0, 1, 0, 0], 1));
            assert_eq!(
                counted(&bench, 0),
                (3, rest.iter().sum::<u64>(), [1, 0, 2, 0], 3)
            );
            assert_eq!(counted(&bench, 3), (0, 0, [0; 4], 0));
        } else {
            assert!(bench.conductor.site_counters().is_empty());
        }
    }
}

#[test]
fn a_client_that_leaves_is_counted_by_site_with_the_bytes_sent() {
    let mut bench = counting_by_site(true);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(
        &mut bench,
        "GET /object HTTP/1.1\r\nHost: a.example\r\n\r\n",
    );
    bench.complete_reads();
    peer.take(&mut bench);
    assert_eq!(counted(&bench, 2), (0, 0, [0; 4], 0), "it is not over");
    let sent = peer.received.len() as u64;
    assert!(sent > 0 && sent < OBJECT_BYTES);
    // A second request that waits for the store: it never has a reply.
    let request = b"GET /next HTTP/1.1\r\nHost: b.example\r\n\r\n";
    peer.send(&mut bench, TcpFlags::ACK, request);
    peer.send(&mut bench, TcpFlags::RST, b"");
    assert_eq!(counted(&bench, 2), (1, sent, [1, 0, 0, 0], 1));
    assert_eq!(counted(&bench, 1), (1, 0, [0; 4], 0));
    bench.assert_quiet();
}

#[test]
fn a_reply_that_begins_anew_is_counted_by_site_once() {
    let mut bench = counting_by_site(true);
    let mut peer = Peer::connect(&mut bench, 1000);
    peer.ask(
        &mut bench,
        "GET /object HTTP/1.1\r\nHost: a.example\r\n\r\n",
    );
    while let Some(read) = bench.reads.pop() {
        bench.find_changed(read);
    }
    let plan = bench.next_look_up();
    bench.answer(&plan, None);
    bench.turn();
    peer.drain(&mut bench);
    assert_eq!(bench.conductor.counters().session_reply_anew_count, 1);
    let sent = peer.received.len() as u64;
    assert_eq!(counted(&bench, 2), (1, sent, [1, 0, 0, 0], 1));
}

/// What `/object` says when it is not there, and the look-ups of it.
fn missed(rule: Rule, request: &str) -> (Peer, Bench, Vec<LookupPlan>) {
    let site = Site {
        error_pages: vec![(Status::NotFound, "/404.html".into())],
        rules: vec![(vec!["/object".into()], rule)],
        ..Site::default()
    };
    let mut bench = Bench::with(with_site(site), 8);
    let mut peer = Peer::connect(&mut bench, 1000);
    let flags = TcpFlags::ACK.union(TcpFlags::PSH);
    peer.send(&mut bench, flags, request.as_bytes());
    let mut plans = Vec::new();
    while let Some(plan) = bench.conductor.poll_lookup() {
        let now = bench.now;
        let answer = Err(LookupError::NotFound);
        bench.conductor.handle_lookup(now, plan.token, answer);
        plans.push(plan);
    }
    bench.turn();
    peer.drain(&mut bench);
    (peer, bench, plans)
}

#[test]
fn who_asks_for_what_is_not_there_is_sent_where_it_is() {
    let to = "https://origin.example$request_uri";
    let mut extra_fields = ExtraFields::default();
    extra_fields.push("Cache-Control: max-age=9").unwrap();
    let replies = ReplyConfig {
        extra_fields,
        precompressed: vec![Coding::Gzip],
        ..ReplyConfig::default()
    };
    let rule = Rule {
        replies,
        on_miss: OnMiss::Redirect(Redirect::new(307, to).unwrap()),
        ..Rule::default()
    };
    let request = "GET /%6fbject?a=%20b HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    let (peer, bench, plans) = missed(rule, request);
    let (head, _) = peer.head_and_rest();
    assert!(
        head.starts_with("HTTP/1.1 307 Temporary Redirect\r\n"),
        "{head}"
    );
    let location = "\r\nLocation: https://origin.example/object?a=%20b\r\n";
    assert!(head.contains(location), "{head}");
    assert!(head.contains("\r\nCache-Control: no-store\r\n"), "{head}");
    assert!(!head.contains("max-age"), "{head}");
    // All codings are looked for before, and no body of an error.
    let asked = plans.iter().map(|plan| (&*plan.path, plan.purpose));
    let object = LookupPurpose::Object {
        hold: Duration::ZERO,
    };
    let expected = [("/object.gz", LookupPurpose::Coding), ("/object", object)];
    assert_eq!(asked.collect::<Vec<_>>(), expected);
    let counters = bench.conductor.counters();
    assert_eq!(
        (counters.http_miss_count, counters.http_miss_redirect_count),
        (1, 1)
    );
    assert_eq!(counters.http_error_count, 0);
}

#[test]
fn what_may_be_waited_for_is_told_to_the_store_and_is_404_after_that() {
    let rule = Rule {
        on_miss: OnMiss::Hold { milliseconds: 1500 },
        ..Rule::default()
    };
    let (peer, bench, plans) = missed(rule, REQUEST);
    assert_eq!(status(&peer), "404");
    let hold = Duration::from_millis(1500);
    let purposes: Vec<_> = plans.iter().map(|plan| plan.purpose).collect();
    let expected = [LookupPurpose::Object { hold }, LookupPurpose::ErrorPage];
    assert_eq!(purposes, expected);
    let counters = bench.conductor.counters();
    assert_eq!(
        (counters.http_miss_count, counters.http_miss_redirect_count),
        (1, 0)
    );
}
