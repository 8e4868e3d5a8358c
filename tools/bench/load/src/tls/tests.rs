//! Against rustls as the server: real handshakes, real tickets, real records.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, ServerConfig, ServerConnection,
    StreamOwned,
};

use super::sealed::{Overhead, split_messages};
use super::*;
use crate::channel::Want;
use crate::content::{Content, Reference};
use crate::fault::{Fault, FaultKind};
use crate::reply::{Expectation, Outcome};

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

fn complete_handshake(socket: &mut TcpStream, options: ClientOptions<'_>) -> Result<Sealed, Fault> {
    let config = client_config(ClientOptions {
        is_insecure: true,
        ..options
    });
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
fn fetch(
    sealed: &mut Sealed,
    socket: &mut TcpStream,
    piece_bytes: usize,
    is_compared: bool,
) -> Result<Outcome, Fault> {
    let check = is_compared.then(|| {
        let check = Reference::Seeded(0).open("/7");
        Box::new(check.expect("a number"))
    });
    sealed.reply.open(Expectation {
        body_bytes: Some(OBJECT_BYTES as u64),
        check,
    });
    let request = sealed.seal(b"GET / HTTP/1.1\r\n\r\n")?;
    socket.write_all(&request).expect("sent");
    let mut bytes = vec![0; piece_bytes];
    loop {
        if let Some(outcome) = sealed.reply.close() {
            return Ok(outcome);
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
            return Err(sealed.reply.ended().expect("a reply is open"));
        }
    }
}

/// Completes a handshake with a server and fetches `requests` replies, every other compared.
fn run(options: ClientOptions<'_>, requests: usize, answer: Answer) -> Result<Sealed, Fault> {
    let (mut socket, server) = serve(requests, answer);
    let mut outcome = Ok(());
    let mut sealed = complete_handshake(&mut socket, options)?;
    for (index, piece_bytes) in [100_000, 7].into_iter().cycle().take(requests).enumerate() {
        let is_compared = index % 2 == 1;
        outcome = outcome.and_then(|()| {
            let outcome = fetch(&mut sealed, &mut socket, piece_bytes, is_compared)?;
            assert_eq!(outcome.fault, None);
            assert_eq!(outcome.is_verified, is_compared);
            Ok(())
        });
    }
    drop(socket);
    // A client that gave up leaves the server without its requests.
    assert!(server.join().is_ok() || outcome.is_err());
    outcome.map(|()| sealed)
}

const TLS13: ClientOptions<'_> = ClientOptions {
    version: Some(Version::Tls13),
    suite: None,
    authorities: None,
    is_insecure: true,
};

const TLS12: ClientOptions<'_> = ClientOptions {
    version: Some(Version::Tls12),
    ..TLS13
};

#[test]
fn replies_are_counted_and_compared_in_every_version_and_suite() {
    for version in [TLS13, TLS12] {
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20] {
            let options = ClientOptions {
                suite: Some(suite),
                ..version
            };
            // A head opens only if the records of the reply before were counted right.
            let sealed = run(options, 3, reply).expect("three replies");
            // A head, a full record of body and the rest; in TLS 1.3 tickets before.
            assert!(sealed.counts.records >= 3 * 3);
            let is_tls13 = options.version == Some(Version::Tls13);
            assert_eq!(sealed.counts.tickets > 0, is_tls13, "{options:?}");
        }
    }
}

#[test]
fn a_head_may_share_its_record_with_body_and_spread_over_records() {
    run(TLS13, 2, |connection| {
        record(connection, &[&head()[..], &body()[..1000]].concat());
        record(connection, &body()[1000..]);
    })
    .expect("shared");
    run(TLS12, 2, |connection| {
        record(connection, &head()[..9]);
        record(connection, &head()[9..]);
        record(connection, &body());
    })
    .expect("spread");
}

#[test]
fn a_body_in_records_of_any_length_adds_up() {
    run(TLS13, 2, |connection| {
        record(connection, &head());
        for piece in body().chunks(1023) {
            record(connection, piece);
        }
    })
    .expect("opened though it was body");
    run(TLS13, 2, |connection| {
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
    let fault = run(TLS13, 1, |connection| {
        record(connection, &head());
        record(connection, &[7; OBJECT_BYTES + 1]);
    })
    .expect_err("a byte too many");
    assert_eq!(fault.kind, FaultKind::Length);
}

#[test]
fn a_new_key_is_followed_wherever_it_comes() {
    let sealed = run(TLS13, 4, |connection| {
        connection.refresh_traffic_keys().expect("TLS 1.3");
        reply(connection);
    })
    .expect("before a head");
    assert_eq!(sealed.counts.key_updates, 4);
    let sealed = run(TLS13, 4, |connection| {
        record(connection, &head());
        record(connection, &body()[..10_000]);
        connection.refresh_traffic_keys().expect("TLS 1.3");
        record(connection, &body()[10_000..]);
    })
    .expect("within a body");
    assert_eq!(sealed.counts.key_updates, 4);
}

#[test]
fn a_close_notify_is_an_end() {
    for options in [TLS13, TLS12] {
        let fault =
            run(options, 1, |connection| connection.send_close_notify()).expect_err("closed");
        assert_eq!(fault.kind, FaultKind::Closed, "{fault}");
        let fault = run(options, 1, |connection| {
            record(connection, &head());
            record(connection, &body()[..5000]);
            connection.send_close_notify();
        })
        .expect_err("closed amid a body");
        assert_eq!(fault.kind, FaultKind::Length, "{fault}");
    }
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

/// The overheads of the three framings.
const OVERHEADS: [Overhead; 3] = [Overhead(17), Overhead(24), Overhead(16)];

fn header(kind: u8, version: [u8; 2], length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(length).expect("two bytes").to_be_bytes();
    [kind, version[0], version[1], high, low]
}

#[test]
fn a_records_length_is_its_contents_and_the_framings() {
    for overhead in OVERHEADS {
        let content = |length| {
            let content = overhead.content_bytes(header(23, [3, 3], length));
            content.map(|(_, bytes)| bytes)
        };
        assert!(content(overhead.0 - 1).is_err(), "shorter than its framing");
        assert_eq!(content(overhead.0), Ok(0));
        assert_eq!(content(overhead.0 + 1), Ok(1));
        let most = overhead.0 + CONTENT_BYTES_MAX;
        assert_eq!(content(most), Ok(CONTENT_BYTES_MAX));
        assert!(content(most + 1).is_err(), "too long");
        assert!(content(usize::from(u16::MAX)).is_err(), "far too long");
    }
}

#[test]
fn only_records_of_data_and_alerts_of_version_3_3_pass() {
    let overhead = Overhead(17);
    for (kind, is_right) in [
        (20, false),
        (21, true),
        (22, false),
        (23, true),
        (24, false),
    ] {
        let found = overhead.content_bytes(header(kind, [3, 3], 100));
        assert_eq!(found.is_ok(), is_right, "{kind}");
    }
    for version in [[3, 1], [3, 4], [2, 3]] {
        assert!(overhead.content_bytes(header(23, version, 100)).is_err());
    }
    let found = overhead.content_bytes(header(21, [3, 3], 100));
    assert_eq!(found, Ok((ContentType::Alert, 83)));
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
        assert_eq!(overhead(version, is_chacha), Ok(Overhead(bytes)));
    }
    assert!(overhead(ProtocolVersion::TLSv1_1, false).is_err());
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
