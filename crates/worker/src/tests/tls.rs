//! The worker with clients that speak TLS.

use std::io::{Read as _, Write as _};

use rustls::client::ClientConnection;
use rustls::version::TLS13;
use wire::TcpFlags;

use crate::handshakes::{CREDIT_US_MAX, KEYS_MAX};
use crate::testing::{CONNECTIONS_MAX, HTTPS_PORT, Setup, World, bytes, content, find_head_end};
use crate::tls::Handshaker;
use crate::tls::tests::{NAME, client_of, config, connect, dear_config, loaded};

pub(super) fn with_tls() -> Setup {
    Setup {
        tls: Some(Handshaker::new(config(), CONNECTIONS_MAX)),
        ..Setup::default()
    }
}

/// A world whose client speaks to the port of TLS.
fn world(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.client.server_port = HTTPS_PORT;
    world.connect();
    world
}

fn new_client() -> ClientConnection {
    connect(&client_of(&TLS13), NAME)
}

impl World {
    /// Sends what the client has to say.
    fn send_sealed(&mut self, client: &mut ClientConnection) {
        let mut sealed = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sealed).unwrap();
        }
        for segment in sealed.chunks(1_460) {
            self.client.send_flags(self.now, TcpFlags::ACK, segment);
        }
    }

    /// Lets time pass until something came for the client, and opens it.
    fn receive_sealed(&mut self, client: &mut ClientConnection) -> Vec<u8> {
        self.run_until(|client| !client.received.is_empty());
        let sealed = std::mem::take(&mut self.client.received);
        let (mut rest, mut opened) = (&sealed[..], Vec::new());
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            let state = client.process_new_packets().unwrap();
            let before = opened.len();
            opened.resize(before + state.plaintext_bytes_to_read(), 0);
            client.reader().read_exact(&mut opened[before..]).unwrap();
        }
        opened
    }

    fn complete_handshake(&mut self, client: &mut ClientConnection) {
        while client.is_handshaking() {
            self.send_sealed(client);
            if client.is_handshaking() {
                self.receive_sealed(client);
            }
        }
        self.send_sealed(client);
    }
}

#[test]
fn a_file_comes_whole_over_tls() {
    let mut world = world(with_tls());
    let mut client = new_client();
    world.complete_handshake(&mut client);
    let expected = bytes(&content(0));
    for _ in 0..2 {
        client
            .writer()
            .write_all(b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        world.send_sealed(&mut client);
        let mut reply = Vec::new();
        while reply.is_empty() {
            reply = world.receive_sealed(&mut client);
        }
        let head_bytes = find_head_end(&reply);
        while reply.len() < head_bytes + expected.len() {
            reply.extend(world.receive_sealed(&mut client));
        }
        assert!(reply[head_bytes..] == expected, "not the file's bytes");
    }
    world.assert_quiet();
    assert!(world.counter("tls_handshake_records") >= 2);
    assert_eq!(world.counter("tls_handshakes_in_progress"), 0);
}

/// How many hellos the next round answers, of a client's for each connection there can be.
fn hellos_answered(world: &mut World) -> u64 {
    let before = world.counter("tls_handshake_records");
    assert!(world.step().progressed);
    world.counter("tls_handshake_records") - before
}

#[test]
fn a_round_answers_hellos_as_far_as_its_credit_goes() {
    let setup = Setup {
        tls: Some(Handshaker::new(dear_config(), CONNECTIONS_MAX)),
        ..Setup::default()
    };
    let mut world = world(setup);
    // Each sends its hello in the same moment, when credit is full.
    let mut connections = Vec::new();
    for place in 0..CONNECTIONS_MAX {
        let client = &world.client;
        connections.push((client.source_port, client.next, client.expected));
        if place + 1 < CONNECTIONS_MAX {
            world.reconnect();
        }
    }
    for connection in connections {
        let client = &mut world.client;
        (client.source_port, client.next, client.expected) = connection;
        world.send_sealed(&mut new_client());
    }
    // One of 340 us after the other until a millisecond is used up; the last goes into debt.
    assert_eq!(hellos_answered(&mut world), 3);
    // Nothing else happens in the next round: one more takes no time from anyone.
    assert_eq!(hellos_answered(&mut world), 1);
    assert_eq!(world.counter("tls_handshake_cost_us"), 4 * 340);
}

#[test]
fn without_credit_a_hello_waits_for_a_round_in_which_nothing_else_happens() {
    let mut world = world(Setup {
        tls: Some(Handshaker::new(dear_config(), CONNECTIONS_MAX)),
        ..Setup::default()
    });
    world.worker.credit.charge(CREDIT_US_MAX.unsigned_abs());
    world.send_sealed(&mut new_client());
    assert_eq!(hellos_answered(&mut world), 0, "its segment was received");
    assert_eq!(hellos_answered(&mut world), 1);
}

#[test]
fn a_round_makes_no_more_keys_than_its_bound() {
    let mut world = world(with_tls());
    let mut client = new_client();
    world.complete_handshake(&mut client);
    world.settle();
    for _ in 0..=KEYS_MAX {
        client.refresh_traffic_keys().unwrap();
    }
    client
        .writer()
        .write_all(b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    world.send_sealed(&mut client);
    assert!(world.step().progressed);
    assert_eq!(world.counter("http_request_count"), 0);
    assert!(world.step().progressed);
    assert_eq!(world.counter("http_request_count"), 1);
    assert_eq!(world.counter("tls_key_update_count"), 1);
}

#[test]
fn the_handshake_of_a_client_that_disconnects_is_dropped() {
    let mut world = world(with_tls());
    world.send_sealed(&mut new_client());
    world.settle();
    assert_eq!(world.counter("tls_handshakes_in_progress"), 1);
    world.client.receive(world.now);
    world.client.send_flags(world.now, TcpFlags::RST, b"");
    world.settle();
    assert_eq!(world.counter("tls_handshakes_in_progress"), 0);
}

#[test]
fn without_a_handshaker_a_client_of_the_tls_port_is_reset() {
    let mut world = world(Setup::default());
    world.send_sealed(&mut new_client());
    world.run_until(|client| client.is_reset);
    world.assert_quiet();
}

#[test]
fn new_certificates_apply_to_new_handshakes() {
    let mut world = world(with_tls());
    let mut before = new_client();
    world.complete_handshake(&mut before);
    let loaded = loaded();
    world.worker.set_tls(&loaded);
    world.reconnect();
    world.client.received.clear();
    let mut after = new_client();
    world.complete_handshake(&mut after);
    assert_ne!(before.peer_certificates(), after.peer_certificates());
    assert_eq!(world.counter("tls_reload_count"), 1);
    let end = world.counter("tls_certificate_end_unix_seconds");
    assert_eq!(i64::try_from(end).ok(), loaded.certificates.earliest_end());
}
