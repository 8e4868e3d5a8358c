//! The whole server in a network namespace of the test's own, asked by the kernel's TCP (curl and
//! the standard library's sockets).
//!
//! Needs root, `ip` and `curl`; where one is missing each test says SKIPPED and returns.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may panic, and says on stderr what it skips"
)]

mod addresses;
mod lab;
mod live;
mod misses;
mod monitoring;
mod privileges;
mod raw;
mod relay;
mod sites;
mod start;
mod take_over;
mod take_over_faults;
mod tls;

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lab::{Atlas, Lab};
use tempfile::TempDir;

/// Bytes of the file served: several slots, an odd rest.
const FILE_BYTES: usize = 3_000_017;

/// A directory with `film.bin` in it, which every user can read, and what it holds.
fn directory() -> (TempDir, Vec<u8>) {
    let directory = TempDir::new().unwrap();
    set_mode(directory.path(), 0o755);
    let bytes = content(FILE_BYTES);
    std::fs::write(directory.path().join("film.bin"), &bytes).unwrap();
    (directory, bytes)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Bytes that differ from block to block.
fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| u8::try_from((place / 7 + place / 4096) % 251).unwrap())
        .collect()
}

#[test]
fn files_are_served_whole_and_in_parts_over_both_ip_versions() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let addresses = [
        "--address",
        "10.77.0.2/24",
        "--address",
        "fd77::2/64",
        "--http",
        "8080",
    ];
    let mut atlas = Atlas::start(&lab, directory.path(), &addresses);
    assert_eq!(
        atlas.ready(),
        "ready http://10.77.0.2:8080/ http://[fd77::2]:8080/"
    );
    for url in [
        "http://10.77.0.2:8080/film.bin",
        "http://[fd77::2]:8080/film.bin",
    ] {
        assert!(lab.curl(&[url]) == bytes, "{url}: not the file's bytes");
        let part = lab.curl(&["--range", "65535-131072", url]);
        assert!(
            part == bytes[65_535..=131_072],
            "{url}: not the range's bytes"
        );
    }
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    let missing = [&status[..], &["http://10.77.0.2:8080/no.bin"]].concat();
    assert_eq!(lab.curl(&missing), b"404");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    let summary = end.json("summary ");
    assert!(summary["disk_read_bytes"].as_u64().unwrap() >= 2 * FILE_BYTES as u64);
    assert!(summary["link_transmitted_bytes"].as_u64().unwrap() >= 2 * FILE_BYTES as u64);
    assert!(summary["cpu_user_us"].is_u64() && summary["cpu_system_us"].is_u64());
    assert_eq!(summary["memory_free_slots"], summary["memory_all_slots"]);
}

#[test]
fn an_existing_interface_is_shared_with_the_kernel() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let words = ["--link", "packet:server0", "--address", "10.78.0.2/24"];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    assert_eq!(atlas.ready(), "ready http://10.78.0.2/");
    assert!(
        client.curl(&["http://10.78.0.2/film.bin"]) == bytes,
        "not the file's bytes"
    );
    atlas.signal(libc::SIGINT);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
}

#[test]
fn counters_are_printed_when_asked_for_and_an_idle_server_sleeps() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    assert_eq!(atlas.ready(), "ready http://10.77.0.2/");
    let rounds = |atlas: &mut Atlas| {
        atlas.signal(libc::SIGUSR1);
        let line = atlas.stderr_line("counters ");
        let json: serde_json::Value = serde_json::from_str(&line["counters ".len()..]).unwrap();
        json["server_step_rounds"].as_u64().unwrap()
    };
    let first = rounds(&mut atlas);
    const ASKED: u64 = 50;
    let last = (0..ASKED).fold(first, |_, _| rounds(&mut atlas));
    // Each question wakes the worker: one round to find nothing, another for a stray frame of the
    // host's. A worker that spins makes thousands between two questions.
    assert!(
        last - first <= 20 * ASKED,
        "{} rounds while idle",
        last - first
    );
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("SIGHUP: the files are read again");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_reply_under_way_is_finished_before_the_end() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let mut client = lab.connect("10.77.0.2:80");
    client
        .write_all(b"GET /film.bin HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut reply = vec![0; 1];
    client.read_exact(&mut reply).unwrap();
    atlas.signal(libc::SIGTERM);
    atlas.stderr_line("finishing");
    client.read_to_end(&mut reply).unwrap();
    assert!(reply.ends_with(&bytes), "{} bytes came", reply.len());
    drop(client);
    assert_eq!(atlas.end().code, Some(0));
}

/// A client that has asked for the film, and has read the first byte of the reply.
fn begun(lab: &Lab, method: &str) -> std::net::TcpStream {
    let mut client = lab.connect("10.77.0.2:80");
    write!(client, "{method} /film.bin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

#[test]
fn a_second_signal_resets_and_ends_at_once() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    // A client that does not read keeps its reply under way.
    let mut client = begun(&lab, "GET");
    atlas.signal(libc::SIGTERM);
    atlas.stderr_line("finishing");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(128 + libc::SIGTERM), "{}", end.stderr);
    end.json("summary ");
    assert!(
        end.stderr.contains("1 connections were reset"),
        "{}",
        end.stderr
    );
    // It is told, and does not wait for minutes.
    let error = client.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn the_grace_time_bounds_the_end() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, "shutdown_grace_seconds = 0").unwrap();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let mut client = begun(&lab, "GET");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(
        end.stderr.contains("the grace time is over"),
        "{}",
        end.stderr
    );
    let mut rest = Vec::new();
    let error = client.read_to_end(&mut rest).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_client_that_does_not_close_keeps_no_server() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let mut client = begun(&lab, "HEAD");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(
        !end.stderr.contains("the grace time is over"),
        "{}",
        end.stderr
    );
    // It has all, and no reset.
    client.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn new_clients_are_served_until_the_delay_is_over() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, "shutdown_delay_seconds = 5").unwrap();
    let words = [
        "--config",
        config.to_str().unwrap(),
        "--metrics",
        "127.0.0.1:9100",
    ];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let ready = || lab.curl(&["http://127.0.0.1:9100/ready"]);
    assert_eq!(ready(), b"ready\n");
    atlas.signal(libc::SIGTERM);
    atlas.stderr_line("not ready any more: serving on for 5 s");
    assert_eq!(ready(), b"not ready\n");
    assert_eq!(lab.curl(&["http://127.0.0.1:9100/health"]), b"ok\n");
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(
        end.stderr.contains("finishing, then ending"),
        "{}",
        end.stderr
    );
}

#[test]
fn a_service_manager_hears_of_the_start_and_of_the_end() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let place = TempDir::new().unwrap();
    set_mode(place.path(), 0o755);
    let path = place.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    set_mode(&path, 0o777);
    let variable = format!("NOTIFY_SOCKET={}", path.display());
    let mut atlas = Atlas::start_by(&lab, &["env", &variable], directory.path(), &[]);
    atlas.ready();
    let hear = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    atlas.signal(libc::SIGTERM);
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_removed_interface_ends_the_server() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    lab.ip(&["link", "del", "atlas0"]);
    let end = atlas.end();
    assert_eq!(end.code, Some(1), "{}", end.stderr);
    assert!(
        end.stderr.contains("atlas: the interface is gone"),
        "{}",
        end.stderr
    );
    end.json("summary ");
}

#[test]
fn an_address_of_the_host_is_refused_before_anything_is_made() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    lab.ip(&["address", "add", "10.77.0.2/24", "dev", "lo"]);
    let end = Atlas::start(&lab, directory.path(), &[]).end();
    assert_eq!(end.code, Some(2), "{}", end.stderr);
    assert!(
        end.stderr.contains("this host has that address on lo"),
        "{}",
        end.stderr
    );
}

#[test]
fn without_direct_reads_only_buffered_ones_are_served() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    // A file system in memory that knows no direct reads, seen by the server alone.
    let share = TempDir::new().unwrap();
    let (share, film) = (share.path(), directory.path().join("film.bin"));
    let (at, film) = (share.to_str().unwrap(), film.to_str().unwrap());
    let prepare = format!("mount -t ramfs ramfs {at} && cp {film} {at}");
    let end = Atlas::start_after(&lab, &prepare, share, &[]).end();
    assert_eq!(end.code, Some(2), "{}", end.stderr);
    assert!(end.stderr.contains("refuses O_DIRECT"), "{}", end.stderr);
    assert!(end.stderr.contains("set buffered = true"), "{}", end.stderr);
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, "buffered = true").unwrap();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start_after(&lab, &prepare, share, &words);
    assert_eq!(atlas.ready(), "ready http://10.77.0.2/");
    assert!(
        lab.curl(&["http://10.77.0.2/film.bin"]) == bytes,
        "not the file's bytes"
    );
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(
        end.stderr.contains("reading through the page cache"),
        "{}",
        end.stderr
    );
}

#[test]
fn a_capture_has_all_frames() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let captures = TempDir::new().unwrap();
    set_mode(captures.path(), 0o777);
    let file = captures.path().join("frames.pcap");
    let words = ["--pcap", file.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    assert!(
        lab.curl(&["http://10.77.0.2/film.bin"]) == bytes,
        "not the file's bytes"
    );
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
    let captured = std::fs::read(&file).unwrap();
    assert!(captured.len() > FILE_BYTES, "{} bytes", captured.len());
    let words = ["--pcap", "/no/such/directory/frames.pcap"];
    let end = Atlas::start(&lab, directory.path(), &words).end();
    assert_eq!(end.code, Some(2), "{}", end.stderr);
    assert!(
        end.stderr
            .contains("--pcap /no/such/directory/frames.pcap: "),
        "{}",
        end.stderr
    );
}
