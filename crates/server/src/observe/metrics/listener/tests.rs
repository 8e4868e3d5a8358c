//! What is answered to whom, and that nobody waits for others.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use clock::Instant;
use worker::requests::{Counted, Missed};

use super::{Answer, CONNECTIONS_MAX, EXCHANGE_TIME_MAX, Listener, Lister, answer, list_reply};
use crate::observe::connections::Asker;
use crate::observe::connections::tests::worker as listing_worker;
use crate::observe::metrics::Page;
use crate::observe::metrics::overview::Overview;
use crate::observe::metrics::overview::tests::overview;
use crate::observe::metrics::text::{CONTENT_TYPE, PLAIN_TYPE};
use crate::observe::output::tests::LONG;
use crate::run::mailbox::{Mailbox, Question, mailbox};
use crate::run::wait::{Source, wait};

fn page() -> Page {
    Page::new(&[("http_request_count", 7)], std::time::Instant::now())
}

/// Questions are not answered.
fn asker() -> Asker {
    Asker::new(vec![mailbox().unwrap().0])
}

struct Watched {
    overview: Arc<Overview>,
    lister: Lister,
}

impl Watched {
    fn new(page: Page, asker: Asker) -> Self {
        let overview = Arc::new(overview(vec![page]));
        let lister = Lister::new(&overview, asker);
        Self { overview, lister }
    }
}

fn asked(line: &str, page: Page) -> (String, String) {
    let watched = Watched::new(page, asker());
    asked_by("127.0.0.1:5000", line, "127.0.0.1:9100", &watched)
}

fn asked_by(peer: &str, line: &str, host: &str, watched: &Watched) -> (String, String) {
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let reply = match answer(head.as_bytes(), &watched.overview, peer.parse().unwrap()) {
        Answer::Reply(reply) => reply,
        Answer::List { list, head_only } => {
            let deadline = std::time::Instant::now() + EXCHANGE_TIME_MAX;
            list_reply(&watched.lister, &list, head_only, deadline)
        }
        Answer::Capture(_) => "capture\r\n\r\n".into(),
    };
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(body.is_empty() || head.contains(&length), "{head}");
    (head.into(), body.into())
}

#[test]
fn the_metrics_and_the_health_are_answered_and_no_other_path() {
    let (head, body) = asked("GET /metrics", page());
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains(&format!("Content-Type: {CONTENT_TYPE}\r\n")),
        "{head}"
    );
    assert!(body.contains("\natlas_http_request_total 7\n"), "{body}");
    let (head, body) = asked("HEAD /metrics", page());
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty());
    assert!(!head.contains("Content-Length: 0\r\n"), "{head}");
    let status = |line| asked(line, page()).0["HTTP/1.1 ".len()..][..3].to_owned();
    assert_eq!(status("GET /health?verbose"), "200");
    assert_eq!(status("GET /"), "200");
    assert_eq!(status("GET /nothing"), "404");
    assert_eq!(status("GET /metrics/"), "404");
    assert_eq!(status("OPTIONS /metrics"), "405");
    assert_eq!(status("POST /metrics"), "405");
    assert_eq!(status("BREW /metrics"), "501");
}

#[test]
fn metrics_come_in_the_format_that_is_accepted() {
    let asked_for = |accept: &str| asked(&format!("GET /metrics HTTP/1.1\r\n{accept}X:"), page());
    let is_plain = |accept: &str| {
        let (head, body) = asked_for(accept);
        let is_plain = head.contains(&format!("Content-Type: {PLAIN_TYPE}\r\n"));
        assert_eq!(body.ends_with("# EOF\n"), !is_plain, "{head}");
        assert!(body.contains("\natlas_http_request_total 7\n"));
        is_plain
    };
    assert!(is_plain(
        "Accept: text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
    ));
    assert!(is_plain("ACCEPT: Text/Plain\r\n"));
    assert!(!is_plain(""));
    assert!(!is_plain("Accept: */*\r\n"));
    assert!(!is_plain("X-Accept: text/plain\r\n"));
    assert!(!is_plain(
        "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4\r\n"
    ));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let (head, page) = asked("GET /", page());
    assert!(
        head.contains("Content-Type: text/html; charset=utf-8\r\n"),
        "{head}"
    );
    // But for the name of SVG elements, which is no address that is asked.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "@import", "url(", "//cdn"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let exported = crate::observe::metrics::table::markdown();
    let quoted = page.split('"').filter(|text| text.starts_with("atlas_"));
    let named: Vec<_> = quoted.filter(|name| !name.contains('{')).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        let is_known = exported.contains(&format!("`{name}`")) || name == "atlas_cpu_seconds_total";
        assert!(is_known, "{name}");
    }
}

#[test]
fn settings_and_sites_are_told_to_this_host() {
    let watched = Watched::new(page(), asker());
    for path in ["GET /config", "GET /sites"] {
        let (head, body) = asked_by("127.0.0.1:5000", path, "localhost:9100", &watched);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(
            serde_json::from_str::<serde_json::Value>(&body).is_ok(),
            "{body}"
        );
        for (peer, host) in [
            ("192.0.2.7:5000", "localhost"),
            ("127.0.0.1:5000", "a.example"),
        ] {
            let (head, _) = asked_by(peer, path, host, &watched);
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        }
    }
}

/// A worker that has missed a name, and counts two objects; it ends with its askers.
fn worker_with_names(mailbox: Mailbox) -> JoinHandle<()> {
    let missed = Missed {
        site: 0,
        directory: 0,
        path: "/none".into(),
        requests: 2,
        last: 7,
    };
    let counted = |path: &str, requests| Counted {
        site: 0,
        directory: 0,
        path: path.into(),
        requests,
        excess_max: 1,
        last: 7,
    };
    let mut missed = vec![missed];
    std::thread::spawn(move || {
        loop {
            let source = Source::readable(mailbox.sleeper().fd());
            assert!(wait(&[source], Some(LONG)).unwrap().is_any(), "nobody asks");
            mailbox.sleeper().drain();
            match mailbox.poll_question() {
                Some(Question::Missed(reply)) => reply.send(std::mem::take(&mut missed)).unwrap(),
                Some(Question::Counted(0, reply)) => {
                    reply.send((vec![counted("/a", 3)], Some(1))).unwrap();
                }
                Some(Question::Counted(_, reply)) => {
                    reply.send((vec![counted("/b", 4)], None)).unwrap();
                }
                _ => return,
            }
        }
    })
}

#[test]
fn who_fills_the_server_is_told_what_is_missing_and_what_is_asked_for() {
    let (sender, mailbox) = mailbox().unwrap();
    let _worker = worker_with_names(mailbox);
    let watched = Watched::new(page(), Asker::new(vec![sender]));
    let asked = |peer, line: &str| asked_by(peer, line, "localhost:9100", &watched);
    let this_host = "127.0.0.1:5000";
    let miss = "{\"sequence\":1,\"site\":\"\",\"path\":\"/none\",\"requests\":2,\"last\":7}\n";
    for (line, has_miss) in [
        ("GET /misses", true),
        ("GET /misses?after=0", true),
        ("GET /misses?after=1", false),
    ] {
        let (head, body) = asked(this_host, line);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("\r\nContent-Type: application/x-ndjson\r\n"),
            "{head}"
        );
        assert!(body.starts_with("{\"instance\":\""), "{body}");
        assert_eq!(body.lines().count(), 1 + usize::from(has_miss), "{body}");
        assert_eq!(body.ends_with(miss), has_miss, "{body}");
    }
    let (_, body) = asked(this_host, "GET /counts");
    let counts = "{\"site\":\"\",\"path\":\"/b\",\"requests\":4,\"excess_max\":1,\"last\":7}\n\
                  {\"site\":\"\",\"path\":\"/a\",\"requests\":3,\"excess_max\":1,\"last\":7}\n";
    assert!(
        body.ends_with(counts) && body.lines().count() == 3,
        "{body}"
    );
    assert!(
        asked(this_host, "GET /misses?x")
            .0
            .starts_with("HTTP/1.1 400 ")
    );
    for line in ["GET /misses", "GET /counts"] {
        assert!(asked("192.0.2.7:5000", line).0.starts_with("HTTP/1.1 403 "));
        let (head, body) = asked_by(this_host, &line.replace("GET", "HEAD"), "[::1]", &watched);
        assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty());
    }
}

#[test]
fn captures_are_for_this_host_and_name_a_client() {
    let watched = Watched::new(page(), asker());
    for path in ["/pcap", "/trace"] {
        let asked = |peer, line: &str| asked_by(peer, line, "localhost:9100", &watched).0;
        let line = format!("GET {path}?client=192.0.2.7&seconds=5");
        assert_eq!(asked("127.0.0.1:5000", &line), "capture");
        assert!(asked("192.0.2.9:5000", &line).starts_with("HTTP/1.1 403 "));
        let line = format!("GET {path}");
        assert!(asked("127.0.0.1:5000", &line).starts_with("HTTP/1.1 400 "));
        let line = format!("HEAD {path}?client=192.0.2.7");
        assert!(asked("127.0.0.1:5000", &line).starts_with("HTTP/1.1 405 "));
    }
}

#[test]
fn health_is_that_of_the_worker() {
    let serving = page();
    serving.beat(serving.now(), 0);
    assert_eq!(asked("GET /health", serving).1, "ok\n");
    let ending = page();
    ending.beat(ending.now(), 0);
    ending.end();
    let (head, body) = asked("GET /health", ending);
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(body, "ending\n");
    let long_ago = std::time::Instant::now() - Duration::from_secs(60);
    let page = Page::new(&[], long_ago);
    page.beat(Instant::ZERO, 0);
    let (head, body) = asked("GET /health", page);
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(body, "a worker hangs\n");
}

#[test]
fn a_server_that_is_about_to_end_is_healthy_and_not_ready() {
    let (head, body) = asked("GET /ready", page());
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body, "ready\n");
    let leaving = || {
        let page = page();
        page.leave();
        page
    };
    let (head, _) = asked("GET /ready", leaving());
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let (head, _) = asked("GET /health", leaving());
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[test]
fn connections_are_listed_for_this_host_and_no_other() {
    let (sender, mailbox) = mailbox().unwrap();
    let _worker = listing_worker(mailbox, 1);
    let watched = Watched::new(page(), Asker::new(vec![sender]));
    for peer in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
        let (head, body) = asked_by(peer, "GET /connections", "localhost:9100", &watched);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body.starts_with("{\"peer\":\"192.0.2.7:1000\",") && body.ends_with("}\n"));
    }
    for peer in ["192.0.2.7:5000", "[fe80::1]:5000"] {
        let (head, body) = asked_by(peer, "GET /connections", "localhost:9100", &watched);
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        assert!(!body.contains("192.0.2.7"), "{body}");
    }
    let (head, body) = asked_by(
        "[::1]:5000",
        "GET /connections?peer=x",
        "[::1]:9100",
        &watched,
    );
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(body.starts_with("peer=x: there are "), "{body}");
}

#[test]
fn a_worker_that_does_not_list_its_connections_hangs() {
    let (head, body) = asked("GET /connections", page());
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(body, "a worker hangs\n");
}

#[test]
fn connections_are_not_listed_for_a_page_whose_name_leads_here() {
    let (sender, mailbox) = mailbox().unwrap();
    let _worker = listing_worker(mailbox, 1);
    let watched = Watched::new(page(), Asker::new(vec![sender]));
    let peer = "127.0.0.1:5000";
    let asked = |host| asked_by(peer, "GET /connections", host, &watched);
    for host in [
        "127.0.0.1:9100",
        "127.0.0.1",
        "[::1]:9100",
        "[::1]",
        "localhost",
        "LocalHost:1",
    ] {
        assert!(asked(host).0.starts_with("HTTP/1.1 200 "), "{host}");
    }
    for host in [
        "evil.example:9100",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.1x",
        "[v1.a]",
    ] {
        let (head, body) = asked(host);
        assert!(head.starts_with("HTTP/1.1 403 "), "{host}: {head}");
        assert_eq!(
            body,
            "ask by an address or by localhost, not by another name\n"
        );
        let (head, _) = asked_by(peer, "GET /metrics", host, &watched);
        assert!(head.starts_with("HTTP/1.1 200 "), "{host}: {head}");
    }
}

/// A listener that serves, by its address.
fn started() -> SocketAddr {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let overview = Arc::new(overview(vec![page()]));
    let accepts = Arc::new(true.into());
    listener.start(&overview, &asker(), &accepts).unwrap();
    address
}

fn connect(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

fn assert_is_healthy(mut stream: TcpStream) {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(reply.ends_with("\r\n\r\nok\n"), "{reply}");
}

#[test]
fn silent_clients_delay_nobody() {
    let address = started();
    let silent = (0..CONNECTIONS_MAX / 2).map(|place| {
        let begun = ["", "GET /health HT"][place % 2];
        connect(address, begun)
    });
    let silent: Vec<TcpStream> = silent.collect();
    assert_is_healthy(connect(address, "GET /health HTTP/1.0\r\n\r\n"));
    // Nobody had to go for that.
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn silent_clients_make_room_for_others_the_oldest_first() {
    let address = started();
    let begun = connect(address, "GET /health HT");
    let silent = (0..2 * CONNECTIONS_MAX).map(|_| connect(address, ""));
    let mut silent: Vec<TcpStream> = silent.collect();
    assert_is_healthy(connect(address, "GET /health HTTP/1.0\r\n\r\n"));
    assert!(
        !matches!(silent[0].read(&mut [0; 1]), Ok(1..)),
        "it is closed"
    );
    // What has begun is not silent.
    (&begun).write_all(b"TP/1.0\r\n\r\n").unwrap();
    assert_is_healthy(begun);
}

#[test]
fn a_request_in_pieces_is_answered() {
    let mut stream = connect(started(), "GET /health HT");
    for piece in ["TP/1.0\r\n", "\r\n"] {
        stream.write_all(piece.as_bytes()).unwrap();
    }
    assert_is_healthy(stream);
}

#[test]
fn an_address_that_is_taken_or_foreign_is_refused_with_a_remedy() {
    let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for address in [taken.address().unwrap(), "192.0.2.1:9100".parse().unwrap()] {
        let refusal = Listener::bind(address).unwrap_err().to_string();
        assert!(
            refusal.starts_with(&format!("--metrics {address}: ")),
            "{refusal}"
        );
        assert!(
            refusal.contains("; use an address of this host"),
            "{refusal}"
        );
    }
}
