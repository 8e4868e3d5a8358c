//! The link in a network namespace of its own, with a small server on the kernel's TCP behind it:
//! everything that was served is counted, the sample is compared, and nothing is left behind.
//!
//! Needs root, and says so where it is not. Bounded by the `--patience` of each run.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what fails in a test shall fail loudly"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use clap::Parser;
use nic_wire::{Report, WireArgs};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testbed::content::{self, Content, OBJECT_SEED};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: WireArgs,
}

/// A network namespace, deleted when dropped, also by a panic.
struct Namespace(String);

impl Namespace {
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: no network namespace of our own; run as root");
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nic-wire-{}-{count}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).status();
        assert!(made.unwrap().success());
        Some(Self(name))
    }

    /// Moves the calling thread inside.
    fn enter(&self) {
        let file = File::open(format!("/run/netns/{}", self.0)).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Replies on one connection; after `replies_max` it closes.
fn serve_one(
    mut stream: impl Read + Write,
    directory: &Path,
    replies_max: usize,
) -> std::io::Result<()> {
    let mut input = Vec::new();
    for _ in 0..replies_max {
        let end = loop {
            if let Some(end) = input.windows(4).position(|it| it == b"\r\n\r\n") {
                break end + 4;
            }
            let mut buffer = [0; 4096];
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            input.extend_from_slice(&buffer[..bytes]);
        };
        let request = String::from_utf8_lossy(&input[..end]).into_owned();
        input.drain(..end);
        let path = request.split(' ').nth(1).unwrap_or("/");
        let body = std::fs::read(directory.join(path.trim_start_matches('/')))?;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body)?;
        stream.flush()?;
    }
    Ok(())
}

/// The same over TLS, which it closes as it should.
fn serve_tls(
    config: Arc<rustls::ServerConfig>,
    stream: TcpStream,
    directory: &Path,
    replies_max: usize,
) -> std::io::Result<()> {
    let tls = rustls::ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = rustls::StreamOwned::new(tls, stream);
    serve_one(&mut stream, directory, replies_max)?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// A server of both versions with a certificate of its own; records as large as asked for.
fn tls_server(directory: &Path, record_bytes: usize) -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["wire.test".to_owned()]).unwrap();
    std::fs::write(directory.join("ca.pem"), made.cert.pem()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    // Above 5 bytes of header.
    config.max_fragment_size = Some(record_bytes + 5);
    Arc::new(config)
}

/// The server's.
const ADDRESS: &str = "10.99.0.1";

/// Serves `files` files through the link, with these flags more; the report.
fn run(files: u32, replies_max: usize, flags: &str) -> Option<Report> {
    run_with(files, replies_max, flags, None)
}

/// The same, over TLS in records of so many bytes if any.
fn run_with(
    files: u32,
    replies_max: usize,
    flags: &str,
    record_bytes: Option<usize>,
) -> Option<Report> {
    let namespace = Namespace::new()?;
    let directory = tempfile::tempdir().unwrap();
    let mut objects = String::new();
    for index in 0..files {
        let content = Content::new(
            OBJECT_SEED + u64::from(index),
            1000 + u64::from(index) * 3001,
        );
        content::write(content, &directory.path().join(format!("{index}"))).unwrap();
        objects += &format!("/{index} {}\n", content.size_bytes);
    }
    let keys = tempfile::tempdir().unwrap();
    let list = keys.path().join("objects");
    std::fs::write(&list, objects).unwrap();
    let tls = record_bytes.map(|bytes| tls_server(keys.path(), bytes));
    let mut words = vec!["nic_wire".to_owned(), "--objects".to_owned()];
    words.push(list.display().to_string());
    if tls.is_some() {
        let file = keys.path().join("ca.pem").display().to_string();
        words.extend(["--ca", &file].map(str::to_owned));
        if !flags.contains("--server-name") {
            words.extend(["--server-name", "wire.test"].map(str::to_owned));
        }
    }
    let rest = format!("--server {ADDRESS}:80 --host-address {ADDRESS}/16 --warm-up 0 {flags}");
    words.extend(rest.split_whitespace().map(str::to_owned));
    let args = Cli::parse_from(words).args;
    let report = thread::scope(|scope| {
        let wire = scope.spawn(|| {
            namespace.enter();
            let root = directory.path().to_path_buf();
            nic_wire::run_until(&args, &AtomicBool::new(false), || {
                // Threads inherit the namespace; they end with their connections, this one with us.
                let listener = TcpListener::bind((ADDRESS, 80)).unwrap();
                thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        let (root, tls) = (root.clone(), tls.clone());
                        thread::spawn(move || match tls {
                            Some(tls) => serve_tls(tls, stream, &root, replies_max),
                            None => serve_one(stream, &root, replies_max),
                        });
                    }
                });
            })
        });
        wire.join().unwrap().unwrap()
    });
    Some(report)
}

/// Bytes of all files.
fn total(files: u64) -> u64 {
    (0..files).map(|index| 1000 + index * 3001).sum()
}

#[test]
fn each_file_is_asked_for_once_and_everything_adds_up() {
    let flags = "-c 60 --sample 4 --passes 2";
    let Some(report) = run(200, usize::MAX, flags) else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    let counts = &report.counts;
    assert_eq!(report.connections_open, 64, "{report:?}");
    assert!(
        counts.sampled_replies > 0 && counts.compared_bytes > 0,
        "{report:?}"
    );
    // Until the window begins there was an answer to each SYN at least.
    assert!(report.wire.filter_runs >= 64, "{report:?}");
    assert!(
        report.wire.filter_ns > report.wire.filter_runs,
        "{report:?}"
    );
    // The window begins when all connections stand: some have their first replies by then.
    assert_eq!(report.counts_since_start.replies, 400, "{report:?}");
    assert!(counts.replies > 0, "{report:?}");
    assert_eq!((report.passes_begun, counts.lost_packets), (2, 0));
}

#[test]
fn the_window_begins_when_all_connections_stand_and_are_warm() {
    let flags = "-c 40 --seconds 1 --warm-up-replies 3 --warm-up-bytes 20000";
    let Some(report) = run(50, usize::MAX, flags) else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    assert!(report.warm_share >= 1.0, "{report:?}");
    let (window, all) = (&report.counts, &report.counts_since_start);
    assert!(all.replies >= window.replies + 3 * 40, "{report:?}");
    assert!(all.body_bytes >= window.body_bytes + 40 * 20_000);
    assert!(report.window_median_replies >= 5.0, "{report:?}");
    assert!((0.0..=1.0).contains(&report.fairness), "{report:?}");
}

#[test]
fn paced_viewers_ask_no_more_than_once_a_period() {
    let flags = "-c 20 --seconds 1 --every 0.1 --warm-up-replies 1 --warm-up-bytes 0";
    let Some(report) = run(50, usize::MAX, flags) else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    // One more each for the period the window begins in, and one for that it ends in.
    let most = 20.0 * (report.seconds / 0.1 + 2.0);
    let asked = f64::from(u32::try_from(report.counts.requests).unwrap());
    assert!(asked > 0.0 && asked <= most, "{report:?}");
}

#[test]
fn losses_are_recovered_from_at_a_distance() {
    let flags = "-c 8 --sample 8 --passes 1 --loss 3000 --rtt 1-4";
    let Some(report) = run(200, usize::MAX, flags) else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    assert!(report.counts.lost_packets > 0, "{report:?}");
    assert!(
        report.counts.out_of_order_segments > 0 && report.counts.gaps_filled > 0,
        "{report:?}"
    );
    assert!(
        report.whole.p50 >= 1000,
        "a millisecond at least: {report:?}"
    );
}

#[test]
fn of_the_sample_a_share_of_the_bytes_is_compared() {
    // What is left of a frame that has lost packets begins in another stretch than the frame did.
    for (one_in, losses, least, most) in [
        (1, "", 1.0, 1.0),
        (4, "", 0.1, 0.5),
        (4, "--loss 5000 --rtt 1-2", 0.1, 0.5),
    ] {
        let flags = format!("-c 1 --sample 15 --passes 2 --compare-one-in {one_in} {losses}");
        let Some(report) = run(200, usize::MAX, &flags) else {
            return;
        };
        assert!(report.is_valid, "{report:?}");
        let all = &report.counts_since_start;
        assert_eq!(all.body_bytes, 2 * total(200), "{report:?}");
        assert_eq!(all.lost_packets > 0, !losses.is_empty(), "{report:?}");
        // The one connection that is not sampled has a sixteenth of the bytes, more or less.
        let share = all.compared_bytes as f64 / all.body_bytes as f64;
        assert!(
            (least * 0.8..=most).contains(&share),
            "one in {one_in}, {share}: {report:?}"
        );
    }
}

#[test]
fn of_the_sample_over_tls_a_share_of_the_replies_is_opened() {
    for (losses, one_in, least, most) in [
        ("", 1, 1.0, 1.0),
        ("", 4, 0.1, 0.5),
        ("--loss 2000 --rtt 1-2", 4, 0.1, 0.5),
    ] {
        let flags = format!("-c 1 --sample 7 --passes 2 --compare-one-in {one_in} {losses}");
        let Some(report) = run_with(120, usize::MAX, &flags, Some(16_384)) else {
            return;
        };
        assert!(report.is_valid, "{report:?}");
        let all = &report.counts_since_start;
        assert_eq!(
            (all.replies, all.body_bytes),
            (240, 2 * total(120)),
            "{report:?}"
        );
        // The one connection that is not sampled has an eighth of the bytes, more or less.
        let share = all.compared_bytes as f64 / all.body_bytes as f64;
        assert!(
            (least * 0.7..=most).contains(&share),
            "one in {one_in}, {share}: {report:?}"
        );
    }
}

#[test]
fn a_server_that_closes_is_connected_to_again() {
    let Some(report) = run(100, 7, "-c 4 --sample 2 --passes 1") else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    assert!(report.counts.closed_by_server > 5, "{report:?}");
    let counts = &report.counts;
    assert!(
        counts.replies <= 100 && counts.body_bytes <= total(100),
        "{report:?}"
    );
}

#[test]
fn every_byte_over_tls_is_counted_and_the_sample_is_opened() {
    for record_bytes in [1370, 16_384] {
        let flags = "-c 20 --sample 4 --passes 2";
        let Some(report) = run_with(120, usize::MAX, flags, Some(record_bytes)) else {
            return;
        };
        assert!(report.is_valid, "{report:?}");
        let all = &report.counts_since_start;
        assert_eq!(
            (all.replies, all.body_bytes),
            (240, 2 * total(120)),
            "{report:?}"
        );
        assert!(
            all.sampled_replies > 0 && all.compared_bytes > 0,
            "{report:?}"
        );
        assert_eq!(all.handshakes, 24, "{report:?}");
        let least = all.body_bytes / u64::try_from(record_bytes).unwrap();
        assert!(all.records >= least, "{report:?}");
    }
}

#[test]
fn losses_and_closes_are_survived_over_tls() {
    let flags = "-c 8 --sample 4 --passes 1 --loss 2000 --rtt 1-2";
    let Some(report) = run_with(120, 9, flags, Some(4000)) else {
        return;
    };
    assert!(report.is_valid, "{report:?}");
    let all = &report.counts_since_start;
    assert_eq!(
        (all.replies, all.body_bytes),
        (120, total(120)),
        "{report:?}"
    );
    assert!(
        all.lost_packets > 0 && all.closed_by_server > 0,
        "{report:?}"
    );
}

#[test]
fn visitors_come_at_a_rate_and_their_failures_are_not_the_run_s() {
    for record_bytes in [None, Some(4000)] {
        for (bytes, is_right) in [(10_003, true), (10_002, false)] {
            let flags = format!(
                "-c 4 --sample 2 --seconds 1 --visits 200 --visit-path /3 --visit-bytes {bytes}"
            );
            let Some(report) = run_with(9, usize::MAX, &flags, record_bytes) else {
                return;
            };
            assert!(report.is_valid, "{report:?}");
            assert_eq!((report.connections, report.connections_open), (6, 6));
            let visits = report.visits.unwrap();
            assert!(visits.begun > 0 && visits.handshake.p50 > 0, "{report:?}");
            let (came, did_not) = (visits.completed, visits.failed);
            let (came, did_not) = if is_right {
                (came, did_not)
            } else {
                (did_not, came)
            };
            assert!(came > 0 && did_not == 0, "{report:?}");
        }
    }
}

#[test]
fn a_server_with_another_name_is_not_talked_to() {
    let flags = "-c 1 --passes 1 --server-name other.test";
    let Some(report) = run_with(1, usize::MAX, flags, Some(1000)) else {
        return;
    };
    assert!(!report.is_valid, "{report:?}");
    assert_eq!(report.faults.get("tls_handshake"), Some(&1), "{report:?}");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let objects = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(objects.path(), "/a 1\n").unwrap();
    let flags = "--server 10.99.0.2:80 --host-address 10.99.0.1/16 --patience 1 --objects";
    let words = format!("nic_wire {flags} {}", objects.path().display());
    let args = Cli::parse_from(words.split_whitespace()).args;
    let error = thread::scope(|scope| {
        let wire = scope.spawn(|| {
            namespace.enter();
            nic_wire::run_until(&args, &AtomicBool::new(false), || {})
        });
        wire.join().unwrap().unwrap_err()
    });
    assert!(error.to_string().contains("nobody answers"), "{error:#}");
}
