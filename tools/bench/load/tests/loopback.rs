//! Whole runs against a small server on loopback, which can also do wrong.

#![allow(missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Parser as _;
use load::content::{Content, OBJECT_SEED};
use load::{Kind, LoadArgs, Report};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    load: LoadArgs,
}

/// Bytes of object `n`: 0 and one piece are among them.
fn object_bytes(number: u64) -> u64 {
    number * 10_007
}

fn object(number: u64) -> Vec<u8> {
    let bytes = object_bytes(number);
    let mut body = vec![0; usize::try_from(bytes).expect("small")];
    Content::new(OBJECT_SEED + number, bytes).fill(0, &mut body);
    body
}

/// What a server has seen.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Server {
    /// A thread for each connection; they end with the test.
    fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Seen::default());
        let ours = Arc::clone(&seen);
        let tls = tls.map(Arc::new);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (socket, seen) = (socket.expect("a socket"), Arc::clone(&ours));
                let tls = tls.clone();
                seen.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || match tls {
                    Some(config) => {
                        let connection = ServerConnection::new(config).expect("a connection");
                        serve(StreamOwned::new(connection, socket), &seen);
                    }
                    None => serve(socket, &seen),
                });
            }
        });
        Self { address, seen }
    }

    fn run(&self, line: &str) -> Report {
        self.run_until(line, &AtomicBool::new(false))
    }

    fn run_until(&self, line: &str, is_stopped: &AtomicBool) -> Report {
        let line = line.replace("HOST", &self.address.to_string());
        let words = std::iter::once("load").chain(line.split_whitespace());
        let args = Command::try_parse_from(words).expect("a command line").load;
        load::measure(&args, is_stopped).expect("a run")
    }

    fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::Relaxed)
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }
}

/// Answers until the client or a mishap ends the connection.
fn serve(stream: impl Read + Write, seen: &Seen) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut closes = false;
        let mut path = String::new();
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            closes |= line == "Connection: close\r\n";
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or("").to_owned();
            } else if line == "\r\n" {
                break;
            }
        }
        seen.requests.fetch_add(1, Ordering::Relaxed);
        if answer(stream.get_mut(), &path).is_none() || closes {
            return;
        }
    }
}

/// Answers one request: the path's first part says how. None if the connection is to end.
fn answer(stream: &mut (impl Read + Write), path: &str) -> Option<()> {
    let mut parts = path.trim_start_matches('/').split('/');
    let (how, number) = (parts.next()?, parts.next()?.parse().ok()?);
    let mut body = object(number);
    let mut status = "200 OK";
    let mut length = body.len();
    let mut more = "";
    match how {
        "missing" => status = "404 Not Found",
        "flipped" => body[5000] ^= 1,
        "shorter" => {
            body.pop();
            length -= 1;
        }
        "cut" => {
            body.truncate(5000);
        }
        "longer" => body.push(0),
        "mute" => {
            let _ = stream.read(&mut [0]);
            return None;
        }
        "gone" => return None,
        "last" => more = "Connection: close\r\n",
        "chunked" => {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).ok()?;
            return None;
        }
        _ => {}
    }
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body).ok()?;
    stream.flush().ok()?;
    (how != "cut" && how != "last").then_some(())
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).expect("JSON")
}

/// The only kind of errors there were, and how many.
fn only_error(report: &Report) -> (String, u64) {
    let json = json(report);
    let errors = json["errors"].as_object().expect("a map");
    assert_eq!(errors.len(), 1, "{errors:?} {}", report.text());
    let (kind, count) = errors.iter().next().expect("one");
    (kind.clone(), count.as_u64().expect("a number"))
}

#[test]
fn once_asks_for_each_url_once_and_compares_every_byte() {
    let server = Server::start(None);
    let report = server.run("-c 7 --once --verify --watch-core 0 http://HOST/ok/{0..49}");
    report.check().expect("all right");
    let json = json(&report);
    let bytes: u64 = (0..50).map(object_bytes).sum();
    for (field, value) in [
        ("requests", 50),
        ("replies", 50),
        ("verified_replies", 50),
        ("verified_bytes", bytes),
        ("body_bytes", bytes),
        ("connects", 7),
        ("connections_open", 7),
        ("unfinished", 0),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    assert_eq!(json["cores"][0]["core"], 0);
    assert_eq!(json["ended"], "done");
    for latency in ["first_byte", "whole"] {
        assert_eq!(json["latency"][latency]["count"], 50, "{latency}");
    }
    assert_eq!(server.requests(), 50);
}

#[test]
fn what_is_only_counted_is_all_there_too() {
    let server = Server::start(None);
    let report = server.run("-c 3 -n 100 http://HOST/ok/{40..49}");
    report.check().expect("all right");
    let json = json(&report);
    assert_eq!(
        (&json["replies"], &json["requests"]),
        (&100.into(), &100.into())
    );
    let pass: u64 = (40..50).map(object_bytes).sum();
    assert_eq!(json["body_bytes"], 10 * pass, "ten passes of the shuffle");
    assert_eq!(json["verified_replies"], 0);
}

#[test]
fn a_sample_is_compared_and_the_rest_counted() {
    let server = Server::start(None);
    let report = server.run("-c 4 --once --verify-sample 10 http://HOST/ok/{1..40}");
    report.check().expect("all right");
    assert_eq!(json(&report)["verified_replies"], 10);
}

#[test]
fn a_directory_tells_right_from_wrong_bytes_and_lengths() {
    let server = Server::start(None);
    let directory = tempfile::tempdir().expect("a directory");
    for how in ["ok", "flipped", "shorter"] {
        let below = directory.path().join(how);
        std::fs::create_dir(&below).expect("a directory");
        std::fs::write(below.join("3"), object(3)).expect("a file");
    }
    let run = |how: &str| {
        let against = Path::display(directory.path());
        server.run(&format!(
            "-c 1 --once --verify-against {against} http://HOST/{how}/3"
        ))
    };
    let report = run("ok");
    report.check().expect("right");
    assert_eq!(json(&report)["verified_replies"], 1);
    for (how, kind) in [("flipped", "bytes"), ("shorter", "length")] {
        let report = run(how);
        assert_eq!(only_error(&report), (kind.to_owned(), 1));
        assert!(report.check().is_err(), "{how}");
        assert_eq!(json(&report)["verified_replies"], 0);
    }
    // What has no reference is not asked for in silence.
    assert_eq!(only_error(&run("gone")).0, "bytes");
}

#[test]
fn each_mishap_is_counted_by_its_kind() {
    let server = Server::start(None);
    for (how, kind, is_wrong) in [
        ("missing", "status", true),
        ("flipped", "bytes", true),
        ("cut", "length", true),
        ("longer", "length", true),
        ("chunked", "head", true),
        ("gone", "closed", false),
        ("mute", "timed_out", false),
    ] {
        let report = server.run(&format!(
            "-c 1 --once --verify --timeout 0.2 http://HOST/{how}/1"
        ));
        assert_eq!(only_error(&report), (kind.to_owned(), 1), "{how}");
        assert_eq!(json(&report)["wrong_replies"], u64::from(is_wrong), "{how}");
        let error = report.check().expect_err(how).to_string();
        assert!(error.contains("http://"), "{error}");
    }
}

#[test]
fn errors_do_not_stop_the_other_requests() {
    let server = Server::start(None);
    let line = "-c 2 --once --verify http://HOST/ok/{1..20} http://HOST/gone/{1..3} \
                http://HOST/missing/{1..3}";
    let report = server.run(line);
    let json = json(&report);
    assert_eq!(json["verified_replies"], 20);
    assert_eq!(json["errors"]["status"], 3);
    assert_eq!(json["errors"]["closed"], 3);
    assert_eq!(json["requests"], 26);
}

#[test]
fn a_server_that_closes_after_a_reply_is_come_back_to() {
    let server = Server::start(None);
    let report = server.run("-c 2 -n 10 --verify http://HOST/last/{1..5}");
    report.check().expect("all right");
    let json = json(&report);
    assert_eq!(json["verified_replies"], 10);
    assert!(json["errors"].as_object().expect("a map").is_empty());
    assert!(server.connections() >= 10);
}

#[test]
fn a_connection_for_each_request() {
    let server = Server::start(None);
    let report = server.run("-c 3 -n 20 --close --verify http://HOST/ok/{0..4}");
    report.check().expect("all right");
    assert_eq!(json(&report)["verified_replies"], 20);
    assert!(server.connections() >= 20);
}

#[test]
fn the_client_may_close_first() {
    for (tls, scheme) in [(None, "http"), (Some(tls_config()), "https --insecure")] {
        let (scheme, options) = scheme.split_once(' ').unwrap_or((scheme, ""));
        let server = Server::start(tls);
        let line =
            format!("-c 3 -n 20 --close=client --verify {options} {scheme}://HOST/ok/{{0..4}}");
        let report = server.run(&line);
        report.check().expect("all right");
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        assert_eq!((report.verified_replies, report.closed_by_server), (20, 0));
        assert!(server.connections() >= 20);
    }
}

#[test]
fn a_reset_is_an_error_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket: TcpStream = socket.expect("a socket");
            // Closing with a byte unread resets.
            let _ = socket.read(&mut [0]);
        }
    });
    let server = Server {
        address,
        seen: Arc::default(),
    };
    let report = server.run("-c 1 --once http://HOST/a");
    assert_eq!(only_error(&report), ("reset".to_owned(), 1));
}

#[test]
fn nobody_there_is_no_success() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let server = Server {
        address,
        seen: Arc::default(),
    };
    let report = server.run("-c 2 --seconds 0.2 http://HOST/a");
    assert_eq!(only_error(&report).0, "connect");
    assert!(report.check().is_err());
}

#[test]
fn a_count_of_requests_ends_where_nobody_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let server = Server {
        address,
        seen: Arc::default(),
    };
    for amount in ["-n 1", "--once"] {
        let report = server.run(&format!("-c 3 {amount} http://HOST/a"));
        assert_eq!(json(&report)["ended"], "gave_up");
        // Each connection was tried as often.
        assert_eq!(only_error(&report), ("connect".to_owned(), 18));
        assert!(report.check().is_err());
    }
}

#[test]
fn an_interrupt_ends_with_the_report_so_far() {
    let server = Server::start(None);
    let report = server.run_until("http://HOST/ok/1", &AtomicBool::new(true));
    assert_eq!(json(&report)["ended"], "interrupted");
}

#[test]
fn players_ask_at_their_pace_and_late_chunks_are_counted() {
    let server = Server::start(None);
    let line = "-c 4 -n 12 --chunk-every 0.1 --verify http://HOST/ok/{1..3}";
    let report = server.run(line);
    report.check().expect("all right");
    let seconds = json(&report)["seconds"].as_f64().expect("a number");
    assert!(
        seconds > 0.2,
        "a third chunk is due two intervals after the first"
    );
    // Nothing this side of the wire is faster than a nanosecond.
    let report = server.run("-c 4 -n 12 --chunk-every 0.000000001 http://HOST/ok/{1..3}");
    assert_eq!(json(&report)["late_chunks"], 12);
}

#[test]
fn a_ramp_opens_all_in_the_end_and_a_warm_up_does_not_count() {
    let server = Server::start(None);
    let report = server.run("-c 8 --ramp-up 0.2 --seconds 0.5 http://HOST/ok/1");
    assert_eq!(json(&report)["connections_open"], 8);
    let report = server.run("-c 2 --warm-up 0.2 --seconds 0.1 http://HOST/ok/1");
    let json = json(&report);
    assert_eq!(json["connects"], 2, "though they were made before");
    let replies = json["replies"].as_u64().expect("a number");
    assert!(replies > 0);
    assert!(replies < server.requests() as u64, "some came before");
}

#[test]
fn sources_are_used() {
    let server = Server::start(None);
    let report = server.run("-c 4 --once --source 127.0.0.2,127.0.0.3 http://HOST/ok/{1..8}");
    report.check().expect("loopback has all of 127.0.0.0/8");
    // An address of the documentation is nobody's.
    let report = server.run("-c 1 --seconds 0.1 --source 192.0.2.1 http://HOST/ok/1");
    assert_eq!(only_error(&report).0, "connect");
}

#[test]
fn ipv6_is_spoken() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("SKIPPED: no IPv6 on loopback");
        return;
    };
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            serve(socket.expect("a socket"), &Seen::default());
        }
    });
    let server = Server {
        address,
        seen: Arc::default(),
    };
    let report = server.run("-c 1 --once --verify http://HOST/ok/{1..3}");
    report.check().expect("all right");
}

fn tls_config() -> ServerConfig {
    tls_config_of(rustls::crypto::aws_lc_rs::default_provider())
}

fn tls_config_of(provider: CryptoProvider) -> ServerConfig {
    let identity = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).expect("PKCS #8");
    ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .expect("an identity")
}

#[test]
fn tls_is_counted_and_compared() {
    let server = Server::start(Some(tls_config()));
    for version in ["1.2", "1.3"] {
        for verify in ["", "--verify", "--verify-sample 7"] {
            let report = server.run(&format!(
                "-c 3 --once --insecure --tls-version {version} {verify} https://HOST/ok/{{0..29}}"
            ));
            report.check().expect("all right");
            let json = json(&report);
            assert_eq!(json["replies"], 30);
            assert_eq!(json["handshakes"], 3);
            let bytes: u64 = (0..30).map(object_bytes).sum();
            assert_eq!(json["body_bytes"], bytes);
            let [agreed] = report.tls.as_slice() else {
                panic!("one thing agreed on: {:?}", report.tls);
            };
            assert_eq!(agreed.version, version.replace("1.", "TLSv1_"));
            assert_eq!((agreed.group.as_str(), agreed.kind), ("X25519", Kind::Full));
            assert_eq!(agreed.handshakes, 3);
        }
    }
    let report = server.run("-c 1 --once --insecure --verify https://HOST/flipped/1");
    assert_eq!(only_error(&report), ("bytes".to_owned(), 1));
    let report = server.run("-c 1 --once --insecure https://HOST/cut/1");
    assert_eq!(only_error(&report), ("length".to_owned(), 1));
}

#[test]
fn a_server_that_wants_another_group_is_told_of() {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::SECP256R1];
    let server = Server::start(Some(tls_config_of(provider)));
    let report = server.run("-c 1 --once --insecure https://HOST/ok/1");
    report.check().expect("all right");
    let agreed = report.tls.first().expect("a handshake");
    assert_eq!(
        (agreed.group.as_str(), agreed.kind),
        ("secp256r1", Kind::Retried)
    );
}

#[test]
fn a_stranger_is_not_trusted() {
    let server = Server::start(Some(tls_config()));
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, other.cert.pem()).expect("a file");
    let ca = file.display();
    let report = server.run(&format!("-c 1 --seconds 0.2 --ca {ca} https://HOST/ok/1"));
    assert_eq!(only_error(&report).0, "handshake");
}

#[test]
fn sessions_are_resumed_when_they_are_to_be() {
    let server = Server::start(Some(tls_config()));
    for version in ["1.2", "1.3"] {
        let line =
            format!("--insecure --tls-version {version} -c 20 -n 100 --close https://HOST/ok/1");
        assert_eq!(json(&server.run(&line))["resumed"], 0);
        let report = server.run(&format!("{line} --resume"));
        report.check().expect("all right");
        let json = json(&report);
        let count = |field: &str| json[field].as_u64().expect("a count");
        // Only the first of each connection has no session yet.
        let full = count("handshakes") - count("resumed");
        assert!((1..=20).contains(&full), "{full}");
        assert!(count("resumed") >= 80);
    }
}

#[test]
fn arrivals_come_whatever_became_of_those_before() {
    let server = Server::start(None);
    let report = server.run("--arrivals 200 --close=client -s 0.5 -c 100 http://HOST/ok/1");
    assert!(report.replies > 0 && report.errors.is_empty(), "{report:?}");
    assert!(report.connects <= report.arrivals, "{report:?}");
    // Nobody is answered: after two, all connections are in use.
    let server = Server::start(None);
    let report = server.run("--arrivals 200 --close=client -s 0.5 -c 2 http://HOST/mute/1");
    assert_eq!((report.connects, report.replies), (2, 0));
    assert!(report.missed_arrivals > 0, "{report:?}");
    assert_eq!(report.missed_arrivals + 2, report.arrivals);
    // A failure is one arrival's: nobody comes back.
    let server = Server::start(None);
    let report = server.run("--arrivals 200 --close=client -s 0.5 -c 100 http://HOST/cut/1");
    assert!(report.failures > 0, "{report:?}");
    assert!(report.connects <= report.arrivals, "{report:?}");
}
