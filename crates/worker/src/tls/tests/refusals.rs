//! Handshakes that fail, and what the client hears of it.

use std::sync::Arc;

use rustls::client::ClientConnection;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, Error};
use session::TlsAnswer;

use super::handshakes::handshake_record;
use super::{
    ECDSA_KEY, NAME, TOKEN, client_of, config_with, connect, establish, give, handshake,
    handshaker, records_of,
};
use crate::tls::{HANDSHAKE_BYTES_MAX, Handshaker};

/// A fatal alert without protection, of that number.
fn plain_alert(number: u8) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, number]
}

fn assert_refused(answer: &TlsAnswer, expected: &[u8]) {
    match answer {
        TlsAnswer::Refused { flight } => assert_eq!(flight, expected),
        answer => panic!("{answer:?}"),
    }
}

/// Of a handshaker that was refused with `flight`, nothing is left.
fn assert_first_record(record: Vec<u8>, number: u8) {
    let mut handshaker = handshaker();
    let answer = handshake(&mut handshaker, TOKEN, record);
    assert_refused(&answer, &plain_alert(number));
    assert_eq!(handshaker.counters()[1], ("tls_handshakes_in_progress", 0));
}

/// A ClientHello as old clients wrote it: version, 32 random bytes, no session, suites, no
/// compression, extensions.
fn hello(version: [u8; 2], suites: &[u16], extensions: &[u8]) -> Vec<u8> {
    let suites: Vec<u8> = suites
        .iter()
        .flat_map(|suite| suite.to_be_bytes())
        .collect();
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let body = [
        &version[..],
        &[9; 32],
        &[0],
        &length(&suites),
        &suites,
        &[1, 0],
        &length(extensions),
        extensions,
    ]
    .concat();
    handshake_record(&[&[1, 0], &length(&body)[..], &body].concat())
}

/// `signature_algorithms` (RSA with SHA-256, ECDSA with SHA-256) and `supported_groups` (P-256).
const EXTENSIONS: [u8; 18] = [0, 13, 0, 6, 0, 4, 4, 1, 4, 3, 0, 10, 0, 4, 0, 2, 0, 23];
/// `TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256`.
const GOOD_SUITE: u16 = 0xc02b;
/// `TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA`, and its like with RSA and without ECDHE.
const OLD_SUITES: [u16; 3] = [0xc009, 0xc013, 0x002f];

#[test]
fn garbage_gets_an_alert() {
    const UNEXPECTED_MESSAGE: u8 = 10;
    const DECODE_ERROR: u8 = 50;
    // A hello that ends too early, one whose parts are longer than it, another message, none.
    assert_first_record(handshake_record(&[1, 0, 0, 1, 3]), DECODE_ERROR);
    let long = [&[1, 0, 0, 40], &[255; 40][..]].concat();
    assert_first_record(handshake_record(&long), DECODE_ERROR);
    assert_first_record(handshake_record(&[20, 0, 0, 0]), UNEXPECTED_MESSAGE);
    assert_first_record(vec![23, 3, 3, 0, 1, 0], UNEXPECTED_MESSAGE);
}

/// rustls queues no alert for this one.
#[test]
fn another_record_between_the_parts_of_a_message_gets_an_alert() {
    const UNEXPECTED_MESSAGE: u8 = 10;
    let mut handshaker = handshaker();
    let half = handshake(&mut handshaker, TOKEN, handshake_record(&[1, 0, 0, 9, 3]));
    assert!(matches!(half, TlsAnswer::Continue { .. }));
    let warning = vec![21, 3, 3, 0, 2, 1, 90];
    let answer = handshake(&mut handshaker, TOKEN, warning);
    assert_refused(&answer, &plain_alert(UNEXPECTED_MESSAGE));
}

#[test]
fn no_record_of_random_bytes_hurts() {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u8::try_from(state >> 56).unwrap()
    };
    let mut handshaker = handshaker();
    for _ in 0..2_000 {
        let length = next();
        let mut record = vec![next() % 6 + 19, 3, next() % 5, 0, length];
        record.extend((0..length).map(|_| next()));
        let mut answer = handshake(&mut handshaker, TOKEN, record.clone());
        // What asked for more gets the same again, until it is too much.
        for _ in 0..1_000 {
            if !matches!(answer, TlsAnswer::Continue { .. }) {
                break;
            }
            answer = handshake(&mut handshaker, TOKEN, record.clone());
        }
        handshaker.handle(session::TlsPlan::Forget { token: TOKEN });
    }
    assert_eq!(handshaker.counters()[1], ("tls_handshakes_in_progress", 0));
}

#[test]
fn old_versions_and_old_suites_are_refused() {
    const HANDSHAKE_FAILURE: u8 = 40;
    const PROTOCOL_VERSION: u8 = 70;
    for minor in [0, 1, 2] {
        let old = hello([3, minor], &[GOOD_SUITE], &EXTENSIONS);
        assert_first_record(old, PROTOCOL_VERSION);
    }
    let weak = hello([3, 3], &OLD_SUITES, &EXTENSIONS);
    assert_first_record(weak, HANDSHAKE_FAILURE);
    // The same with a good suite is answered: it is the suites that were refused.
    let good = hello([3, 3], &[GOOD_SUITE], &EXTENSIONS);
    let answer = handshake(&mut handshaker(), TOKEN, good);
    assert!(
        matches!(&answer, TlsAnswer::Continue { flight } if !flight.is_empty()),
        "{answer:?}"
    );
}

#[test]
fn a_client_that_speaks_only_other_protocols_is_refused() {
    for version in [&TLS13, &TLS12] {
        let mut config = (*client_of(version)).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let mut client = connect(&Arc::new(config), NAME);
        let outcome = establish(&mut handshaker(), &mut client, TOKEN);
        let expected = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        assert_eq!(outcome.err(), Some(expected));
    }
}

#[test]
fn a_message_longer_than_a_handshake_may_be_is_refused() {
    const ILLEGAL_PARAMETER: u8 = 47;
    // A hello of 65,535 bytes, in records that make the limit come out even.
    let mut handshaker = handshaker();
    let mut record = handshake_record(&[&[1, 0, 255, 255], &[0; 16_000][..]].concat());
    let mut left = HANDSHAKE_BYTES_MAX;
    while left > record.len() {
        left -= record.len();
        let answer = handshake(&mut handshaker, TOKEN, record);
        assert!(matches!(answer, TlsAnswer::Continue { .. }), "{answer:?}");
        record = handshake_record(&vec![0; (left - 5).clamp(1, 16_000)]);
        left = left.max(record.len());
    }
    assert_eq!(left, record.len());
    let answer = handshake(&mut handshaker, TOKEN, record);
    assert!(matches!(answer, TlsAnswer::Continue { .. }), "{answer:?}");
    let answer = handshake(&mut handshaker, TOKEN, handshake_record(&[0]));
    assert_refused(&answer, &plain_alert(ILLEGAL_PARAMETER));
}

#[test]
fn the_alert_of_a_client_ends_its_handshake() {
    const HANDSHAKE_FAILURE: u8 = 40;
    let mut handshaker = handshaker();
    let answer = handshake(&mut handshaker, TOKEN, plain_alert(HANDSHAKE_FAILURE));
    assert_refused(&answer, b"");
    // In the middle, where TLS 1.3 has close_notify end the handshake too.
    const CLOSE_NOTIFY: [u8; 7] = [21, 3, 3, 0, 2, 1, 0];
    for alert in [plain_alert(HANDSHAKE_FAILURE), CLOSE_NOTIFY.to_vec()] {
        let mut client = connect(&client_of(&TLS13), NAME);
        let hello = records_of(&mut client).remove(0);
        handshake(&mut handshaker, TOKEN, hello);
        let answer = handshake(&mut handshaker, TOKEN, alert);
        assert!(matches!(answer, TlsAnswer::Refused { .. }), "{answer:?}");
    }
    assert_eq!(handshaker.counters()[1], ("tls_handshakes_in_progress", 0));
}

#[test]
fn a_wrong_finished_gets_a_sealed_alert() {
    for version in [&TLS13, &TLS12] {
        let mut handshaker = Handshaker::new(config_with(&ECDSA_KEY), 1);
        let mut client = connect(&client_of(version), NAME);
        let outcome = corrupt_last(&mut handshaker, &mut client);
        let expected = Error::AlertReceived(AlertDescription::BadRecordMac);
        assert_eq!(outcome, Err(expected));
    }
}

/// A handshake with the last byte of the client's last record changed.
fn corrupt_last(handshaker: &mut Handshaker, client: &mut ClientConnection) -> Result<(), Error> {
    let mut is_last = false;
    loop {
        let mut records = records_of(client);
        if is_last && let Some(byte) = records.last_mut().and_then(|record| record.last_mut()) {
            *byte ^= 1;
        }
        is_last = true;
        for record in records {
            match handshake(handshaker, TOKEN, record) {
                TlsAnswer::Continue { flight } => give(client, &flight)?,
                TlsAnswer::Refused { flight } => {
                    assert!(!flight.is_empty());
                    return give(client, &flight);
                }
                answer => panic!("{answer:?}"),
            }
        }
    }
}
