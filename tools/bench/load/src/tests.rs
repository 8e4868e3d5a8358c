//! Against rustls as the server: real handshakes, real tickets, real records.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use testbed::content::Content;
use testbed::tls_client::{ClientOptions, Suite, Version, client_config};

use super::*;
use crate::fault::{Fault, FaultKind};
use crate::handshake::Handshake;
use crate::sealed::{Sealed, Want, content_bytes, split_messages};

const OBJECT_BYTES: usize = 20_000;

/// What a server does once a request has come.
type Answer = fn(&mut ServerConnection);

fn server_config() -> ServerConfig {
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

/// A server that answers each of `requests` requests by `answer`.
fn serve(requests: usize, answer: Answer) -> (TcpStream, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (socket, _) = listener.accept().expect("a connection");
    let server = std::thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(server_config())).expect("a connection");
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

/// Sends bytes as records of data: one, if they fit.
fn record(connection: &mut ServerConnection, bytes: &[u8]) {
    connection.writer().write_all(bytes).expect("room");
}

fn head() -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {OBJECT_BYTES}\r\n\r\n").into_bytes()
}

fn body() -> Vec<u8> {
    let mut body = vec![0; OBJECT_BYTES];
    Content::new(7, OBJECT_BYTES as u64).fill(0, &mut body);
    body
}

fn reply(connection: &mut ServerConnection) {
    record(connection, &head());
    record(connection, &body());
}

fn complete_handshake(socket: &mut TcpStream) -> Result<Sealed, Fault> {
    let config = client_config(OPTIONS);
    let name = ServerName::try_from("atlas.test").expect("a name");
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&config.expect("a config"), name, &mut out)?;
    loop {
        socket.write_all(&out).expect("sent");
        out.clear();
        let mut bytes = vec![0; handshake.want_bytes()];
        let count = socket.read(&mut bytes).expect("received");
        assert!(count > 0, "the server closed");
        if handshake.take(&bytes[..count], &mut out)? {
            socket.write_all(&out).expect("sent");
            return Sealed::new(handshake.finish()?);
        }
    }
}

/// Asks and takes what comes, in pieces of at most `piece_bytes`, until the reply is complete.
fn fetch(sealed: &mut Sealed, socket: &mut TcpStream, piece_bytes: usize) -> Result<(), Fault> {
    sealed.reply.open(Some(OBJECT_BYTES as u64));
    let request = sealed.seal(b"GET / HTTP/1.1\r\n\r\n")?;
    socket.write_all(&request).expect("sent");
    let mut bytes = vec![0; piece_bytes];
    loop {
        if let Some(fault) = sealed.reply.close() {
            assert_eq!(fault, None);
            return Ok(());
        }
        let want = sealed.want();
        let piece = match want {
            Want::Copy(wanted) => wanted.min(piece_bytes),
            Want::Discard(wanted) => usize::try_from(wanted).expect("small").min(piece_bytes),
        };
        let count = socket.read(&mut bytes[..piece]).expect("received");
        assert!(count > 0, "the server closed");
        match want {
            Want::Copy(_) => {
                let mut out = Vec::new();
                sealed.take(&bytes[..count], &mut out)?;
                socket.write_all(&out).expect("sent");
            }
            Want::Discard(_) => sealed.skip(count as u64)?,
        }
        if sealed.is_closed() {
            return Err(sealed.reply.ended());
        }
    }
}

/// Completes a handshake with a server and fetches `requests` replies, every other in small pieces.
fn run(requests: usize, answer: Answer) -> Result<(), Fault> {
    let (mut socket, server) = serve(requests, answer);
    let mut outcome = Ok(());
    let mut sealed = complete_handshake(&mut socket)?;
    for piece_bytes in [100_000, 7].into_iter().cycle().take(requests) {
        outcome = outcome.and_then(|()| fetch(&mut sealed, &mut socket, piece_bytes));
    }
    drop(socket);
    // A client that gave up leaves the server without its requests.
    assert!(server.join().is_ok() || outcome.is_err());
    outcome
}

const OPTIONS: ClientOptions<'_> = ClientOptions {
    version: Some(Version::Tls13),
    suite: Some(Suite::Aes128Gcm),
    authorities: None,
    is_insecure: true,
};

#[test]
fn a_head_opens_only_if_the_records_of_the_reply_before_were_counted_right() {
    run(3, reply).expect("three replies");
}

#[test]
fn a_head_may_share_its_record_with_body_and_spread_over_records() {
    run(2, |connection| {
        record(connection, &[&head()[..], &body()[..1000]].concat());
        record(connection, &body()[1000..]);
    })
    .expect("shared");
    run(2, |connection| {
        record(connection, &head()[..9]);
        record(connection, &head()[9..]);
        record(connection, &body());
    })
    .expect("spread");
}

#[test]
fn a_body_in_records_of_any_length_adds_up() {
    run(2, |connection| {
        record(connection, &head());
        for piece in body().chunks(1023) {
            record(connection, piece);
        }
    })
    .expect("opened though it was body");
    run(2, |connection| {
        record(connection, &head());
        let body = body();
        record(connection, &body[..1024]);
        record(connection, &body[1024..2049]);
        record(connection, &body[2049..2050]);
        record(connection, &body[2050..]);
    })
    .expect("both sides of the limit");
}

#[test]
fn a_byte_too_many_is_an_error() {
    let fault = run(1, |connection| {
        record(connection, &head());
        record(connection, &[7; OBJECT_BYTES + 1]);
    })
    .expect_err("a byte too many");
    assert_eq!(fault.kind, FaultKind::Length);
}

#[test]
fn a_new_key_is_followed_wherever_it_comes() {
    run(4, |connection| {
        connection.refresh_traffic_keys().expect("TLS 1.3");
        reply(connection);
    })
    .expect("before a head");
    run(4, |connection| {
        record(connection, &head());
        record(connection, &body()[..10_000]);
        connection.refresh_traffic_keys().expect("TLS 1.3");
        record(connection, &body()[10_000..]);
    })
    .expect("within a body");
}

#[test]
fn a_close_notify_is_an_end() {
    let fault = run(1, |connection| connection.send_close_notify()).expect_err("closed");
    assert_eq!(fault.kind, FaultKind::Closed, "{fault}");
    let fault = run(1, |connection| {
        record(connection, &head());
        record(connection, &body()[..5000]);
        connection.send_close_notify();
    })
    .expect_err("closed amid a body");
    assert_eq!(fault.kind, FaultKind::Length, "{fault}");
}

#[test]
fn nobody_is_trusted_without_being_told_to() {
    assert!(client_config(ClientOptions::default()).is_err());
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("authority.pem");
    let options = ClientOptions {
        authorities: Some(&file),
        ..ClientOptions::default()
    };
    assert!(client_config(options).is_err(), "no file");
    std::fs::write(&file, "nothing").expect("a file");
    assert!(client_config(options).is_err(), "no certificate");
    let other = rcgen::generate_simple_self_signed(["atlas.test".to_owned()]).expect("a key");
    std::fs::write(&file, other.cert.pem()).expect("a file");
    let config = client_config(options).expect("an authority");
    let (mut socket, server) = serve(1, reply);
    let name = ServerName::try_from("atlas.test").expect("a name");
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&config, name, &mut out).expect("begun");
    let fault = loop {
        socket.write_all(&out).expect("sent");
        out.clear();
        let mut bytes = vec![0; handshake.want_bytes()];
        let count = socket.read(&mut bytes).expect("received");
        match handshake.take(&bytes[..count], &mut out) {
            Ok(is_over) => assert!(!is_over, "a stranger was trusted"),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.kind, FaultKind::Handshake);
    drop(socket);
    assert!(server.join().is_err(), "the server never saw a request");
}

fn header(kind: u8, version: [u8; 2], length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(length).expect("two bytes").to_be_bytes();
    [kind, version[0], version[1], high, low]
}

#[test]
fn a_records_length_is_its_contents_and_17_bytes() {
    let content = |length| content_bytes(header(23, [3, 3], length));
    assert!(content(16).is_err(), "shorter than its framing");
    assert_eq!((content(17), content(18)), (Ok(0), Ok(1)));
    assert_eq!(content(17 + CONTENT_BYTES_MAX), Ok(CONTENT_BYTES_MAX));
    assert!(content(18 + CONTENT_BYTES_MAX).is_err(), "too long");
    assert!(content(usize::from(u16::MAX)).is_err(), "far too long");
}

#[test]
fn only_records_of_data_of_version_3_3_pass() {
    for kind in [20, 21, 22, 24] {
        assert!(content_bytes(header(kind, [3, 3], 100)).is_err(), "{kind}");
    }
    for version in [[3, 1], [3, 4], [2, 3]] {
        assert!(content_bytes(header(23, version, 100)).is_err());
    }
    assert_eq!(content_bytes(header(23, [3, 3], 100)), Ok(83));
}

#[test]
fn messages_must_be_whole() {
    assert_eq!(split_messages(&[4, 0, 0, 1, 9]), Ok(vec![(4, &[9][..])]));
    let two = [4, 0, 0, 2, 9, 9, 24, 0, 0, 1, 0];
    assert_eq!(split_messages(&two).map(|messages| messages.len()), Ok(2));
    assert_eq!(split_messages(&[]), Ok(Vec::new()));
    assert!(split_messages(&[4, 0, 0, 2, 9]).is_err(), "cut short");
    assert!(split_messages(&[4, 0, 0, 0, 9]).is_err(), "a rest");
}
