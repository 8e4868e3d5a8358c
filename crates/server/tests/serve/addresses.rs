//! Before serving: the addresses must be nobody's, and the interface must carry frames.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::fchown;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Instant;

use super::directory;
use crate::lab::{Atlas, Lab, NOT_NOW, SILENCE_MAX};

/// The link of [`Lab::join_by_veth`], and our addresses on it.
const LINK: [&str; 2] = ["--link", "packet:server0"];
const V4: [&str; 2] = ["--address", "10.78.0.2/24"];
const V6: [&str; 2] = ["--address", "fd78::2/64"];

fn words<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

/// The MAC of the client's end.
fn client_mac(client: &Lab) -> String {
    let text = client.show(&["-o", "link", "show", "client0"]);
    let mut words = text.split_whitespace();
    words.find(|word| *word == "link/ether").unwrap();
    words.next().unwrap().to_owned()
}

#[test]
fn an_address_that_a_neighbour_has_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let client = lab.join_by_veth();
    let mac = client_mac(&client);
    client.ip(&["address", "add", "10.78.0.2/24", "dev", "client0"]);
    client.ip(&["address", "add", "fd78::2/64", "dev", "client0", "nodad"]);
    for (own, address) in [(V4, "10.78.0.2"), (V6, "fd78::2")] {
        let end = Atlas::start(&lab, directory.path(), &words(&[&LINK, &own])).end();
        assert_eq!(end.code, Some(NOT_NOW), "{}", end.stderr);
        let expected = format!("atlas: --address {address}: the station {mac} on server0 has");
        let line = end.stderr.lines().last().unwrap();
        assert!(line.starts_with(&expected), "{}", end.stderr);
    }
    // The way out where a network answers for every address.
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, "address_check = false").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4, &config]));
    assert_eq!(atlas.ready(), "ready http://10.78.0.2/");
}

#[test]
fn a_second_server_at_one_address_of_an_interface_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let first = words(&[&LINK, &V4, &V6]);
    let mut atlas = Atlas::start(&lab, directory.path(), &first);
    atlas.ready();
    // Another first address makes it another MAC: nothing else would tell the two apart.
    let second = words(&[&LINK, &["--address", "10.78.0.7/24"], &V4]);
    let end = Atlas::start(&lab, directory.path(), &second).end();
    assert_eq!(end.code, Some(NOT_NOW), "{}", end.stderr);
    let expected = "atlas: --address 10.78.0.2 on server0: another server has it; stop that one";
    assert!(end.stderr.starts_with(expected), "{}", end.stderr);
    // Beside each other at addresses of their own, and in each other's place when one has ended.
    let other = words(&[&LINK, &["--address", "10.78.0.7/24"]]);
    let mut beside = Atlas::start(&lab, directory.path(), &other);
    beside.ready();
    for url in ["http://10.78.0.2/film.bin", "http://10.78.0.7/film.bin"] {
        assert!(client.curl(&[url]) == bytes, "{url}: not the file's bytes");
    }
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
    Atlas::start(&lab, directory.path(), &first).ready();
}

/// What any local user can do: take the name of the lock on an address.
fn taken_lock(lab: &Lab, user: u32) -> UnixDatagram {
    let bind = || {
        let name = SocketAddr::from_abstract_name("atlas/server0/10.78.0.2").unwrap();
        UnixDatagram::bind_addr(&name)
    };
    // A process that another test starts has this one's descriptors until it executes its program, so a
    // socket that was closed here may be open there for a moment.
    let deadline = Instant::now() + SILENCE_MAX;
    let socket = loop {
        match lab.run(bind) {
            Ok(socket) => break socket,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::yield_now();
    };
    fchown(&socket, Some(user), None).unwrap();
    socket
}

#[test]
fn a_lock_in_the_hands_of_a_user_who_is_no_server_does_not_keep_it_from_starting() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let user = ["--user", "4242:4242"];
    let words = words(&[&LINK, &V4, &user]);
    let is_running = || {
        let output = Atlas::check(&lab, directory.path(), &words);
        String::from_utf8_lossy(&output.stdout).contains("a server with these addresses is running")
    };
    // Root's, and the user's that it would serve as: believed.
    for user in [0, 4_242] {
        let taken = taken_lock(&lab, user);
        let end = Atlas::start(&lab, directory.path(), &words).end();
        assert_eq!(end.code, Some(NOT_NOW), "{}", end.stderr);
        assert!(
            end.stderr.contains("another server has it"),
            "{}",
            end.stderr
        );
        assert!(is_running());
        drop(taken);
    }
    let _taken = taken_lock(&lab, 4_243);
    assert!(!is_running());
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    let line = atlas.stderr_line("is not locked");
    assert!(
        line.contains("10.78.0.2") && line.contains("user 4243"),
        "{line}"
    );
    atlas.ready();
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
}

#[test]
fn the_interface_s_mac_can_be_shared_with_the_kernel() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    lab.ip(&["address", "add", "10.78.0.3/24", "dev", "server0"]);
    client.ip(&["address", "add", "fd78::1/64", "dev", "client0", "nodad"]);
    let words = words(&[&LINK, &["--mac", "interface"], &V4, &V6]);
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    for url in ["http://10.78.0.2/film.bin", "http://[fd78::2]/film.bin"] {
        assert!(client.curl(&[url]) == bytes, "{url}: not the file's bytes");
    }
    let neighbours = client.show(&["neighbour", "show", "dev", "client0"]);
    let link = lab.show(&["-o", "link", "show", "server0"]);
    let of_ours = neighbours
        .lines()
        .find(|line| line.starts_with("10.78.0.2 "));
    let mac = of_ours.unwrap().split_whitespace().nth(2).unwrap();
    assert!(link.contains(mac), "{mac} in {link}");
    assert!(!link.contains("PROMISC"), "{link}");
}

#[test]
fn a_server_waits_for_its_interface_and_is_ready_when_that_is() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    lab.ip(&["link", "set", "server0", "down"]);
    let words = words(&[&LINK, &V4]);
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    let line = atlas.stderr_line("waiting");
    assert!(
        line.contains("server0 is down: waiting for it; ip link set server0 up"),
        "{line}"
    );
    client.ip(&["link", "set", "client0", "down"]);
    lab.ip(&["link", "set", "server0", "up"]);
    assert!(atlas.stderr_line("waiting").contains("has no carrier"));
    assert!(!atlas.has_output(), "it is not ready");
    client.ip(&["link", "set", "client0", "up"]);
    assert_eq!(atlas.ready(), "ready http://10.78.0.2/");
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    // The same while it serves, and the network is told again.
    lab.ip(&["link", "set", "server0", "down"]);
    atlas.stderr_line("server0 is down");
    lab.ip(&["link", "set", "server0", "up"]);
    atlas.stderr_line("carries frames again");
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
}

#[test]
fn a_server_that_waits_for_its_interface_can_be_ended() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let _client = lab.join_by_veth();
    lab.ip(&["link", "set", "server0", "down"]);
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4]));
    atlas.stderr_line("waiting");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4]));
    atlas.stderr_line("waiting");
    lab.ip(&["link", "del", "server0"]);
    let end = atlas.end();
    assert_eq!(end.code, Some(NOT_NOW), "{}", end.stderr);
    assert!(
        end.stderr.contains("no interface \"server0\""),
        "{}",
        end.stderr
    );
}

#[test]
fn an_address_that_another_host_claims_later_is_kept_and_logged() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4]));
    atlas.ready();
    client.ip(&["address", "add", "10.78.0.2/24", "dev", "client0"]);
    // From that address it asks who has a third.
    let from = ["--interface", "10.78.0.2", "--connect-timeout", "1"];
    client.try_curl(&words(&[&from, &["http://10.78.0.9/"]]));
    let line = atlas.stderr_line("claims our address");
    assert!(line.contains(&client_mac(&client)), "{line}");
    assert!(line.contains("10.78.0.2"), "{line}");
    client.ip(&["address", "del", "10.78.0.2/24", "dev", "client0"]);
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    atlas.signal(libc::SIGTERM);
    let summary = atlas.end().json("summary ");
    assert!(summary["wire_conflict_frames"].as_u64().unwrap() >= 1);
    assert_eq!(summary["wire_defense_frames"], 1);
}

#[test]
fn an_interface_that_takes_smaller_packets_is_followed() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4]));
    atlas.ready();
    lab.ip(&["link", "set", "server0", "mtu", "1280"]);
    let line = atlas.stderr_line("has other limits");
    assert!(line.contains("1280"), "{line}");
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
}

#[test]
fn ports_taken_from_the_host_are_told_and_its_servers_there_are_named() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let _client = lab.join_by_veth();
    lab.ip(&["address", "add", "10.78.0.3/24", "dev", "server0"]);
    let check = || {
        Atlas::start(
            &lab,
            directory.path(),
            &["--link", "xdp:server0", "--check"],
        )
        .end()
    };
    let _elsewhere = lab.listen("127.0.0.1:80");
    let stderr = check().stderr;
    assert!(stderr.contains("port 80 of the host's addresses on server0 is this server's"));
    assert!(!stderr.contains("WARN"), "{stderr}");
    let _here = lab.listen("10.78.0.3:80");
    let end = check();
    let expected =
        "this host has a server of its own on port 80: from server0 it gets nothing any more";
    assert!(end.stderr.contains(expected), "{}", end.stderr);
    assert_eq!(end.code, Some(0));
}

#[test]
fn an_interface_is_followed_under_its_new_name() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let mut atlas = Atlas::start(&lab, directory.path(), &words(&[&LINK, &V4]));
    atlas.ready();
    lab.ip(&["link", "set", "server0", "name", "renamed0"]);
    atlas.stderr_line("server0 is called renamed0 now");
    lab.ip(&["link", "set", "renamed0", "mtu", "1280"]);
    let line = atlas.stderr_line("has other limits");
    assert!(line.contains("renamed0") && line.contains("1280"), "{line}");
    assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    lab.ip(&["link", "del", "renamed0"]);
    let end = atlas.end();
    assert_eq!(end.code, Some(1), "{}", end.stderr);
}
