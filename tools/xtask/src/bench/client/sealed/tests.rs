//! Against rustls as the server: real handshakes, real tickets, real records.

use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use rustls::{ServerConnection, StreamOwned};

use super::*;
use crate::bench::tls::{Credentials, Key, Suite, Version, client_config, server_config};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n";
const OBJECT_BYTES: usize = 20_000;

/// What a server does once a request has come.
type Answer = fn(&mut ServerConnection);

/// A server that answers each of `requests` requests by `answer`.
fn serve(
    credentials: &Credentials,
    requests: usize,
    answer: Answer,
) -> (TcpStream, JoinHandle<()>) {
    let config = server_config(credentials);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (socket, _) = listener.accept().expect("a connection");
    let server = std::thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        let mut stream = StreamOwned::new(connection, socket);
        for _ in 0..requests {
            let mut request = [0; 64];
            let count = stream.read(&mut request).expect("a request");
            assert!(request[..count].starts_with(b"GET / "), "a request whole");
            answer(&mut stream.conn);
            stream.flush().expect("sent");
        }
        // Kept until the client has seen all.
        let _ = stream.sock.read(&mut [0]);
    });
    (client, server)
}

/// Sends bytes as one record of data.
fn record(connection: &mut ServerConnection, bytes: &[u8]) {
    connection.writer().write_all(bytes).expect("room");
}

fn reply(connection: &mut ServerConnection) {
    record(connection, HEAD);
    record(connection, &[7; OBJECT_BYTES]);
}

/// Asks and takes what comes, in pieces of at most `piece_bytes`, until the reply is complete.
fn fetch(sealed: &mut Sealed, socket: &mut TcpStream, piece_bytes: usize) -> Result<()> {
    let request = sealed.ask(b"GET / HTTP/1.1\r\n\r\n")?;
    socket.write_all(&request)?;
    let mut discarded = vec![0; piece_bytes];
    while !sealed.reply.close() {
        let count = match sealed.want() {
            Want::Copy(into) => {
                let piece = into.len().min(piece_bytes);
                socket.read(&mut into[..piece])?
            }
            Want::Discard(bytes) => {
                let piece = usize::try_from(bytes)?.min(piece_bytes);
                socket.read(&mut discarded[..piece])?
            }
            Want::Nothing => bail!("a request is open"),
        };
        ensure!(count > 0, "the server closed");
        sealed.take(count)?;
    }
    assert!(matches!(sealed.want(), Want::Nothing));
    Ok(())
}

/// Shakes hands with a server and fetches `requests` replies.
fn run(version: Version, suite: Suite, requests: usize, answer: Answer) -> Result<Sealed> {
    let credentials = Credentials::new(Key::Ecdsa)?;
    let config = Arc::new(client_config(version, suite, &credentials.authority)?);
    let (mut socket, server) = serve(&credentials, requests, answer);
    let mut sealed = Sealed::connect(&mut socket, &config, OBJECT_BYTES as u64)?;
    let mut outcome = Ok(());
    for piece_bytes in [100_000, 7].into_iter().cycle().take(requests) {
        outcome = outcome.and_then(|()| fetch(&mut sealed, &mut socket, piece_bytes));
    }
    drop(socket);
    // A client that gave up leaves the server without its requests.
    assert!(server.join().is_ok() || outcome.is_err());
    outcome.map(|()| sealed)
}

#[test]
fn replies_are_counted_in_every_version_and_suite() {
    for version in [Version::Tls13, Version::Tls12] {
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20] {
            // The second head opens only if the first reply's records were counted right.
            let sealed = run(version, suite, 3, reply).expect("three replies");
            // A head, a full record of body and the rest; in TLS 1.3 tickets before.
            let tickets = sealed.records() - 3 * 3;
            assert_eq!(tickets > 0, version == Version::Tls13, "{version} {suite}");
        }
    }
}

#[test]
fn a_head_may_share_its_record_with_body_and_spread_over_records() {
    run(Version::Tls13, Suite::Aes128Gcm, 2, |connection| {
        record(connection, &[HEAD, &[7; 1000]].concat());
        record(connection, &[7; OBJECT_BYTES - 1000]);
    })
    .expect("shared");
    run(Version::Tls12, Suite::Aes128Gcm, 2, |connection| {
        record(connection, &HEAD[..9]);
        record(connection, &HEAD[9..]);
        record(connection, &[7; OBJECT_BYTES]);
    })
    .expect("spread");
}

#[test]
fn a_byte_too_many_is_an_error() {
    let error = run(Version::Tls13, Suite::Aes128Gcm, 1, |connection| {
        record(connection, HEAD);
        record(connection, &[7; OBJECT_BYTES + 1]);
    })
    .expect_err("a byte too many");
    assert!(error.to_string().contains("are left"), "{error:#}");
}

#[test]
fn a_key_update_is_an_error_wherever_it_comes() {
    let error = run(Version::Tls13, Suite::Aes128Gcm, 1, |connection| {
        connection.refresh_traffic_keys().expect("TLS 1.3");
        reply(connection);
    })
    .expect_err("before a head");
    assert!(error.to_string().contains("type 24"), "{error:#}");
    let error = run(Version::Tls13, Suite::Aes128Gcm, 1, |connection| {
        record(connection, HEAD);
        connection.refresh_traffic_keys().expect("TLS 1.3");
        record(connection, &[7; OBJECT_BYTES]);
    })
    .expect_err("within a body");
    // Its five bytes were taken for body.
    assert!(error.to_string().contains("are left"), "{error:#}");
}

#[test]
fn an_alert_is_an_error() {
    for version in [Version::Tls13, Version::Tls12] {
        let error = run(version, Suite::Aes128Gcm, 1, |connection| {
            connection.send_close_notify();
        })
        .expect_err("closed");
        assert!(error.to_string().contains("a record of"), "{error:#}");
    }
}

/// The overheads of the three framings.
const OVERHEADS: [Overhead; 3] = [Overhead(17), Overhead(24), Overhead(16)];

fn header(kind: u8, version: [u8; 2], length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(length).expect("two bytes").to_be_bytes();
    [kind, version[0], version[1], high, low]
}

#[test]
fn a_records_length_is_its_contents_and_the_framings() {
    for overhead in OVERHEADS {
        let content = |length| overhead.content_bytes(header(23, [3, 3], length));
        assert!(content(overhead.0 - 1).is_err(), "shorter than its framing");
        assert_eq!(content(overhead.0).expect("empty"), 0);
        assert_eq!(content(overhead.0 + 1).expect("a byte"), 1);
        let most = overhead.0 + CONTENT_BYTES_MAX;
        assert_eq!(content(most).expect("full"), CONTENT_BYTES_MAX);
        assert!(content(most + 1).is_err(), "too long");
        assert!(content(usize::from(u16::MAX)).is_err(), "far too long");
    }
}

#[test]
fn only_records_of_data_and_of_version_3_3_count() {
    let overhead = Overhead(17);
    for kind in [20, 21, 22, 24] {
        assert!(overhead.content_bytes(header(kind, [3, 3], 100)).is_err());
    }
    for version in [[3, 1], [3, 4], [2, 3]] {
        assert!(overhead.content_bytes(header(23, version, 100)).is_err());
    }
}

#[test]
fn overheads_are_those_of_the_versions() {
    let secrets = |is_chacha: bool| {
        let (key, iv) = (AeadKey::from([0; 32]), Iv::from([0; 12]));
        if is_chacha {
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }
        } else {
            ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        }
    };
    let overhead = |version, is_chacha| Overhead::new(version, &secrets(is_chacha));
    for (version, is_chacha, bytes) in [
        (ProtocolVersion::TLSv1_3, false, 17),
        (ProtocolVersion::TLSv1_3, true, 17),
        (ProtocolVersion::TLSv1_2, false, 24),
        (ProtocolVersion::TLSv1_2, true, 16),
    ] {
        let found = overhead(version, is_chacha).expect("a known version");
        assert_eq!(found, Overhead(bytes), "{version:?}");
    }
    assert!(overhead(ProtocolVersion::TLSv1_1, false).is_err());
}

#[test]
fn after_the_handshake_only_whole_tickets_may_come() {
    assert!(check_tickets(&[4, 0, 0, 2, 9, 9]).is_ok());
    assert!(
        check_tickets(&[4, 0, 0, 2, 9, 9, 4, 0, 0, 0]).is_ok(),
        "two"
    );
    assert!(check_tickets(&[4, 0, 0, 2, 9]).is_err(), "cut short");
    assert!(check_tickets(&[4, 0, 0, 0, 9]).is_err(), "a rest");
    assert!(check_tickets(&[24, 0, 0, 1, 0]).is_err(), "a key update");
    assert!(
        check_tickets(&[13, 0, 0, 0]).is_err(),
        "a certificate request"
    );
}
