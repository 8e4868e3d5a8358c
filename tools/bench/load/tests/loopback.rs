//! Whole runs against a small server on loopback, which can also do wrong.

#![allow(missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Parser as _;
use load::{Ending, LoadArgs, Report};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    load: LoadArgs,
}

const OBJECT_BYTES: usize = 40_000;

struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// A thread for each connection; they end with the test.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let ours = Arc::clone(&connections);
        let config = Arc::new(config());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (socket, config) = (socket.expect("a socket"), Arc::clone(&config));
                ours.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || {
                    let connection = ServerConnection::new(config).expect("a connection");
                    serve(StreamOwned::new(connection, socket));
                });
            }
        });
        Self {
            address,
            connections,
        }
    }

    fn run(&self, line: &str) -> Report {
        self.run_until(line, &AtomicBool::new(false))
    }

    fn run_until(&self, line: &str, is_stopped: &AtomicBool) -> Report {
        let line = line.replace("HOST", &self.address.to_string());
        let words = ["load", "--insecure"].into_iter();
        let args = Command::try_parse_from(words.chain(line.split_whitespace()));
        load::measure(&args.expect("a command line").load, is_stopped).expect("a run")
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn config() -> ServerConfig {
    let identity = rcgen::generate_simple_self_signed(["atlas.test".to_owned()]).expect("a key");
    let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).expect("PKCS #8");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .expect("an identity")
}

/// Answers until the client or a mishap ends the connection: the path's first part says how.
fn serve(stream: StreamOwned<ServerConnection, TcpStream>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut path = String::new();
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or("").to_owned();
            } else if line == "\r\n" {
                break;
            }
        }
        let (mut status, mut length) = ("200 OK", OBJECT_BYTES);
        match path.as_str() {
            "/missing" => status = "404 Not Found",
            "/shorter" => length -= 1,
            "/mute" => {
                let _ = stream.read(&mut [0]);
                return;
            }
            "/gone" => return,
            _ => {}
        }
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        let stream = stream.get_mut();
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(&vec![7; length]))
            .and_then(|()| stream.flush());
        if sent.is_err() {
            return;
        }
    }
}

#[test]
fn streams_ask_again_and_again_on_the_connections_they_have() {
    let server = Server::start();
    let report =
        server.run("-c 3 --seconds 0.3 --expect-bytes 40000 --watch-core 0 https://HOST/a");
    report.check().expect("all right");
    assert_eq!(report.ended, Ending::Time);
    assert!(report.replies > 3, "{report:?}");
    assert!(report.body_bytes >= report.replies * OBJECT_BYTES as u64 - 3 * OBJECT_BYTES as u64);
    assert_eq!(report.cores.len(), 1);
    assert_eq!(report.latency.whole.count, report.replies);
    assert_eq!(server.connections(), 3);
}

#[test]
fn arrivals_have_a_connection_each() {
    let server = Server::start();
    let report = server.run("-c 50 --arrivals 40 --seconds 1 https://HOST/a");
    report.check().expect("all right");
    assert!((39..=41).contains(&report.arrivals), "{report:?}");
    assert_eq!(report.missed_arrivals, 0);
    assert!(
        report.handshakes >= report.replies && report.replies > 20,
        "{report:?}"
    );
    assert_eq!(report.latency.connect.count, report.handshakes);
}

#[test]
fn what_comes_when_all_connections_are_in_use_is_missed() {
    let server = Server::start();
    let report = server.run("-c 1 --arrivals 50 --seconds 0.5 https://HOST/mute");
    assert_eq!(report.missed_arrivals, report.arrivals - 1, "{report:?}");
    assert!(report.check().is_err(), "nothing came");
}

#[test]
fn wrong_replies_are_counted_by_what_is_wrong() {
    let server = Server::start();
    for (path, kind) in [("missing", "status"), ("shorter", "length")] {
        let line = format!("-c 1 --seconds 0.2 --expect-bytes 40000 https://HOST/{path}");
        let report = server.run(&line);
        assert_eq!(report.errors[kind], report.wrong_replies, "{report:?}");
        assert!(report.wrong_replies > 0 && report.check().is_err());
    }
}

#[test]
fn who_closes_or_says_nothing_has_failed() {
    let server = Server::start();
    let report = server.run("-c 1 --seconds 0.3 https://HOST/gone");
    assert!(report.errors["closed"] > 0, "{report:?}");
    let report = server.run("-c 1 --timeout 0.5 --seconds 1.5 https://HOST/mute");
    assert!(report.errors["timed_out"] > 0, "{report:?}");
    assert_eq!(report.wrong_replies, 0);
}

#[test]
fn a_run_that_is_stopped_says_so() {
    let report = Server::start().run_until("https://HOST/a", &AtomicBool::new(true));
    assert_eq!(report.ended, Ending::Interrupted);
}
