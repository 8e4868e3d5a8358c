//! Handshakes that succeed: versions, suites, keys, names, resumption, reloading.

use std::io::Write as _;
use std::sync::Arc;

use record::Version;
use rustls::client::ClientConnection;
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suite};
use rustls::version::{TLS12, TLS13};
use rustls::{ProtocolVersion, ServerConnection, SignatureScheme, SupportedCipherSuite};
use session::{TlsAnswer, TlsPlan, TlsToken};

use super::{
    ECDSA_KEY, NAME, RSA_KEY, TOKEN, certified, client_config, client_of, config_with, connect,
    establish, establish_changing, give, handshake, handshaker, records_of, split,
};
use crate::tls::names::tests::{change_name, suites_of_changed_hello};
use crate::tls::{Certificates, Handshaker, server_config};

const TLS13_SUITES: [SupportedCipherSuite; 3] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
];
const TLS12_ECDSA_SUITES: [SupportedCipherSuite; 3] = [
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
const TLS12_RSA_SUITES: [SupportedCipherSuite; 3] = [
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

#[test]
fn every_suite_is_spoken_with_both_kinds_of_key() {
    let all = [
        (&TLS13, Version::Tls13, TLS13_SUITES, &ECDSA_KEY),
        (&TLS13, Version::Tls13, TLS13_SUITES, &RSA_KEY),
        (&TLS12, Version::Tls12, TLS12_ECDSA_SUITES, &ECDSA_KEY),
        (&TLS12, Version::Tls12, TLS12_RSA_SUITES, &RSA_KEY),
    ];
    for (version, version_of_keys, suites, key) in all {
        let mut handshaker = Handshaker::new(config_with(key), 1);
        for suite in suites {
            let config = Arc::new(client_config(version, &[suite]));
            let mut client = connect(&config, NAME);
            let streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
            assert!(!client.is_handshaking() && !streaming.is_resumed);
            assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
            assert_eq!(streaming.inbound.version(), version_of_keys);
            streaming.talk(&mut client);
            handshaker.handle(TlsPlan::Forget { token: TOKEN });
        }
    }
}

#[test]
fn the_clients_order_of_suites_counts() {
    for first in TLS13_SUITES {
        let others = TLS13_SUITES.into_iter().filter(|other| *other != first);
        let suites: Vec<_> = [first].into_iter().chain(others).collect();
        let config = Arc::new(client_config(&TLS13, &suites));
        let mut client = connect(&config, NAME);
        establish(&mut handshaker(), &mut client, TOKEN).unwrap();
        assert_eq!(client.negotiated_cipher_suite(), Some(first));
    }
}

#[test]
fn a_client_that_names_no_protocol_or_more_than_one_is_served() {
    for (named, agreed) in [
        (&[][..], None),
        (&["h2", "http/1.1"], Some(&b"http/1.1"[..])),
        (&["http/1.0", "http/1.1"], Some(&b"http/1.1"[..])),
        (&["http/1.0"], Some(&b"http/1.0"[..])),
    ] {
        let mut config = (*client_of(&TLS13)).clone();
        config.alpn_protocols = named.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut client = connect(&Arc::new(config), NAME);
        establish(&mut handshaker(), &mut client, TOKEN).unwrap();
        assert_eq!(client.alpn_protocol(), agreed);
    }
}

#[test]
fn a_session_is_resumed_by_ticket_in_both_versions() {
    for version in [&TLS13, &TLS12] {
        let (config, mut handshaker) = (client_of(version), handshaker());
        for (serial, is_resumed) in [(1, false), (2, true), (3, true)] {
            let token = TlsToken { index: 0, serial };
            let mut client = connect(&config, NAME);
            let streaming = establish(&mut handshaker, &mut client, token).unwrap();
            assert_eq!(streaming.is_resumed, is_resumed, "{version:?} {serial}");
            streaming.talk(&mut client);
            handshaker.handle(TlsPlan::Forget { token });
        }
    }
}

#[test]
fn two_tickets_are_given_after_a_handshake() {
    let (config, mut handshaker) = (client_of(&TLS13), handshaker());
    let mut client = connect(&config, NAME);
    establish(&mut handshaker, &mut client, TOKEN).unwrap();
    assert_eq!(client.tls13_tickets_received(), 2);
}

#[test]
fn without_the_tickets_keys_a_session_begins_anew() {
    let config = client_of(&TLS13);
    for _ in 0..2 {
        let mut client = connect(&config, NAME);
        let streaming = establish(&mut handshaker(), &mut client, TOKEN).unwrap();
        assert!(!streaming.is_resumed);
    }
}

#[test]
fn a_new_configuration_is_for_handshakes_that_begin_after_it() {
    let (config, mut handshaker) = (client_of(&TLS13), handshaker());
    let mut before = connect(&config, NAME);
    let hello = records_of(&mut before).remove(0);
    let TlsAnswer::Continue { flight } = handshake(&mut handshaker, TOKEN, hello) else {
        panic!("half a handshake goes on");
    };
    handshaker.set_config(config_with(&RSA_KEY));
    give(&mut before, &flight).unwrap();
    establish(&mut handshaker, &mut before, TOKEN).unwrap();
    let mut after = connect(&config, NAME);
    let token = TlsToken {
        index: 1,
        serial: 1,
    };
    establish(&mut handshaker, &mut after, token).unwrap();
    let certificate = |client: &ClientConnection| client.peer_certificates().unwrap()[0].clone();
    assert_ne!(certificate(&before), certificate(&after));
    assert!(handshaker.counters().contains(&("tls_reload_count", 1)));
}

#[test]
fn a_client_gets_the_certificate_of_the_name_it_asks_for() {
    let names = [NAME, "other.example"];
    let pairs = names.map(|name| certified(&[name], &ECDSA_KEY)).to_vec();
    let chains = [&pairs[0].0.cert.clone(), &pairs[1].0.cert.clone()];
    let config = Arc::new(server_config(Arc::new(Certificates::new(pairs))).unwrap());
    for (name, chain) in names.iter().zip(chains) {
        for version in [&TLS13, &TLS12] {
            let mut handshaker = Handshaker::new(Arc::clone(&config), 1);
            let mut client = connect(&client_of(version), name);
            establish(&mut handshaker, &mut client, TOKEN).unwrap();
            assert_eq!(client.peer_certificates(), Some(&chain[..]));
        }
    }
}

#[test]
fn a_hello_in_fragments_is_put_together() {
    for fragment_bytes in [1, 7, 100] {
        let (config, mut handshaker) = (client_of(&TLS13), handshaker());
        let mut client = connect(&config, NAME);
        let hello = records_of(&mut client).remove(0);
        let fragments: Vec<_> = hello[5..].chunks(fragment_bytes).collect();
        let (last, before) = fragments.split_last().unwrap();
        for fragment in before {
            let answer = handshake(&mut handshaker, TOKEN, handshake_record(fragment));
            let TlsAnswer::Continue { flight } = answer else {
                panic!("a fragment is waited with: {answer:?}");
            };
            assert!(flight.is_empty());
        }
        let answer = handshake(&mut handshaker, TOKEN, handshake_record(last));
        let TlsAnswer::Continue { flight } = answer else {
            panic!("a whole hello is answered: {answer:?}");
        };
        give(&mut client, &flight).unwrap();
        establish(&mut handshaker, &mut client, TOKEN)
            .unwrap()
            .talk(&mut client);
    }
}

/// `content` as an unprotected record of handshake messages.
pub(super) fn handshake_record(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[22, 3, 3], &length[..], content].concat()
}

/// A client whose first hello has no share that the server takes, and that server.
fn asked_twice(suites: &[SupportedCipherSuite]) -> (rustls::ClientConfig, Handshaker) {
    let mut config = client_config(&TLS13, suites);
    let mut provider = (**config.crypto_provider()).clone();
    provider.kx_groups = vec![
        aws_lc_rs::kx_group::X25519MLKEM768,
        aws_lc_rs::kx_group::SECP384R1,
    ];
    config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(super::roots())
        .with_no_client_auth();
    let mut server = (*config_with(&ECDSA_KEY)).clone();
    let mut ours = (**server.crypto_provider()).clone();
    ours.kx_groups = vec![aws_lc_rs::kx_group::SECP384R1];
    server = rustls::ServerConfig::builder_with_provider(Arc::new(ours))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&server.cert_resolver));
    server.enable_secret_extraction = true;
    (config, Handshaker::new(Arc::new(server), 1))
}

#[test]
fn a_second_hello_is_asked_for_when_the_first_has_no_share_we_take() {
    let (config, mut handshaker) = asked_twice(&TLS13_SUITES);
    let mut client = connect(&Arc::new(config), NAME);
    let streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
    assert_eq!(
        client.handshake_kind(),
        Some(rustls::HandshakeKind::FullWithHelloRetryRequest)
    );
    streaming.talk(&mut client);
}

#[test]
fn a_client_whose_server_name_is_none_gets_the_default_certificate() {
    for (version, suites) in [(&TLS13, &TLS13_SUITES), (&TLS12, &TLS12_ECDSA_SUITES)] {
        let suites = suites_of_changed_hello(suites);
        let config = Arc::new(client_config(version, &suites));
        let mut handshaker = handshaker();
        // The second time, it resumes: its ticket is bound to the hello by the same hash.
        for is_resumed in [false, true] {
            let mut client = connect(&config, NAME);
            let token = TlsToken {
                index: u32::from(is_resumed),
                ..TOKEN
            };
            let streaming =
                establish_changing(&mut handshaker, &mut client, token, change_name).unwrap();
            assert_eq!(streaming.is_resumed, is_resumed);
            streaming.talk(&mut client);
        }
    }
    let (config, mut handshaker) = asked_twice(&suites_of_changed_hello(&TLS13_SUITES));
    let mut client = connect(&Arc::new(config), NAME);
    let streaming = establish_changing(&mut handshaker, &mut client, TOKEN, change_name).unwrap();
    assert_eq!(
        client.handshake_kind(),
        Some(rustls::HandshakeKind::FullWithHelloRetryRequest)
    );
    streaming.talk(&mut client);
}

#[test]
fn a_hello_that_is_changed_on_the_way_is_found_out() {
    let mut client = connect(&client_of(&TLS13), NAME);
    let result = establish_changing(&mut handshaker(), &mut client, TOKEN, change_name);
    assert!(result.is_err(), "the client sent another name");
}

#[test]
fn records_behind_the_clients_finished_go_to_the_session() {
    for version in [&TLS13, &TLS12] {
        let mut handshaker = handshaker();
        let mut client = connect(&client_of(version), NAME);
        // Buffered until the handshake is done, then sent in one go with Finished if that is last.
        client
            .writer()
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .unwrap();
        let mut streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
        client.send_close_notify();
        streaming.rest.extend(records_of(&mut client));
        streaming.assert_receives(b"GET / HTTP/1.1\r\n\r\n");
        streaming.assert_closed();
    }
}

#[test]
fn early_data_is_thrown_away_and_the_handshake_goes_on() {
    // Another server of that name, which takes early data, has given the client a ticket.
    let certificates = Certificates::new(vec![certified(&[NAME], &ECDSA_KEY)]);
    let mut other = server_config(Arc::new(certificates)).unwrap();
    other.max_early_data_size = 1_000;
    other.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    let mut other = ServerConnection::new(Arc::new(other)).unwrap();
    let mut config = (*client_of(&TLS13)).clone();
    config.enable_early_data = true;
    let config = Arc::new(config);
    let mut client = connect(&config, NAME);
    while client.is_handshaking() || other.is_handshaking() || other.wants_write() {
        let mut bytes = records_of(&mut client).concat();
        other.read_tls(&mut &bytes[..]).unwrap();
        other.process_new_packets().unwrap();
        bytes.clear();
        while other.wants_write() {
            other.write_tls(&mut bytes).unwrap();
        }
        give(&mut client, &bytes).unwrap();
    }
    let mut client = connect(&config, NAME);
    let early = client.early_data();
    early
        .expect("the ticket allows it")
        .write_all(b"GET /early")
        .unwrap();
    let mut handshaker = handshaker();
    let streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
    assert!(!client.is_early_data_accepted() && !streaming.is_resumed);
    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    streaming.talk(&mut client);
}

#[test]
fn a_client_that_goes_away_half_way_leaves_nothing() {
    let mut handshaker = handshaker();
    let in_progress = |handshaker: &Handshaker| handshaker.counters()[1];
    let mut client = connect(&client_of(&TLS13), NAME);
    let hello = records_of(&mut client).remove(0);
    handshake(&mut handshaker, TOKEN, hello);
    assert_eq!(in_progress(&handshaker), ("tls_handshakes_in_progress", 1));
    // Somebody else of the same place: that is not this one.
    let other = TlsToken {
        serial: TOKEN.serial + 1,
        ..TOKEN
    };
    assert!(
        handshaker
            .handle(TlsPlan::Forget { token: other })
            .is_none()
    );
    assert_eq!(in_progress(&handshaker), ("tls_handshakes_in_progress", 1));
    assert!(
        handshaker
            .handle(TlsPlan::Forget { token: TOKEN })
            .is_none()
    );
    assert_eq!(in_progress(&handshaker), ("tls_handshakes_in_progress", 0));
    let mut next = connect(&client_of(&TLS13), NAME);
    establish(&mut handshaker, &mut next, other)
        .unwrap()
        .talk(&mut next);
    assert_eq!(in_progress(&handshaker), ("tls_handshakes_in_progress", 0));
}

#[test]
fn a_reused_connection_index_starts_a_new_handshake() {
    let mut handshaker = handshaker();
    let mut client = connect(&client_of(&TLS13), NAME);
    let hello = records_of(&mut client).remove(0);
    handshake(&mut handshaker, TOKEN, hello);
    let other = TlsToken {
        serial: TOKEN.serial + 1,
        ..TOKEN
    };
    let mut next = connect(&client_of(&TLS13), NAME);
    establish(&mut handshaker, &mut next, other)
        .unwrap()
        .talk(&mut next);
    assert_eq!(handshaker.counters()[1], ("tls_handshakes_in_progress", 0));
}

#[test]
fn a_flight_is_whole_records() {
    let mut client = connect(&client_of(&TLS13), NAME);
    let hello = records_of(&mut client).remove(0);
    let TlsAnswer::Continue { flight } = handshake(&mut handshaker(), TOKEN, hello) else {
        panic!("a hello is answered");
    };
    assert!(split(&flight).len() >= 2);
}

#[test]
fn a_handshake_is_charged_by_what_it_costs() {
    let mut costs = Vec::new();
    for (key, version) in [
        (&*ECDSA_KEY, &TLS13),
        (&*RSA_KEY, &TLS13),
        (&*ECDSA_KEY, &TLS12),
    ] {
        let mut handshaker = Handshaker::new(config_with(key), 1);
        let client = client_of(version);
        for (serial, is_resumed) in [(1, false), (2, true)] {
            let before = handshaker.cost_us();
            let token = TlsToken { serial, ..TOKEN };
            let mut client = connect(&client, NAME);
            let streaming = establish(&mut handshaker, &mut client, token).unwrap();
            assert_eq!(streaming.is_resumed, is_resumed);
            // What it is given only after its handshake: its ticket.
            client.process_new_packets().unwrap();
            costs.push(handshaker.cost_us() - before);
        }
    }
    let [ecdsa, ecdsa_resumed, rsa, rsa_resumed, old, old_resumed] = costs[..] else {
        panic!("{costs:?}");
    };
    // A hello, change_cipher_spec and a Finished; in TLS 1.2 the client's key share besides.
    assert_eq!((ecdsa, rsa), (80 + 3 + 30, 340 + 3 + 30));
    assert_eq!((ecdsa_resumed, rsa_resumed), (65 + 3 + 30, 65 + 3 + 30));
    assert_eq!((old, old_resumed), (80 + 45 + 3 + 30, 65 + 3 + 30));
}

#[test]
fn records_without_an_answer_are_charged_little() {
    let mut handshaker = handshaker();
    let plan = TlsPlan::Handshake {
        token: TOKEN,
        record: vec![22, 3, 1, 0, 1, 0],
    };
    handshaker.handle(plan);
    assert_eq!(handshaker.cost_us(), 3);
}

/// The client's hello with another extension, as records with at most that much content. The client does
/// not know of it, so its handshake cannot be completed.
fn hello_with(extension: &[u8], content_bytes: usize) -> Vec<Vec<u8>> {
    let mut client = connect(&client_of(&TLS13), NAME);
    let record = records_of(&mut client).remove(0);
    let mut message = record[5..].to_vec();
    // Header, version, random; then vectors with lengths of one, two and one bytes.
    let mut place = 4 + 2 + 32;
    place += 1 + usize::from(message[place]);
    place += 2 + usize::from(u16::from_be_bytes([message[place], message[place + 1]]));
    place += 1 + usize::from(message[place]);
    let longer = |bytes: [u8; 2]| {
        let length = usize::from(u16::from_be_bytes(bytes)) + extension.len();
        u16::try_from(length).unwrap().to_be_bytes()
    };
    for at in [place, 2] {
        let bytes = longer([message[at], message[at + 1]]);
        message[at..at + 2].copy_from_slice(&bytes);
    }
    message.splice(place + 2..place + 2, extension.iter().copied());
    let records = message.chunks(content_bytes).map(|content| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[22, 3, 1], &length[..], content].concat()
    });
    records.collect()
}

/// The lengths of the records that answer such a hello, without their headers.
fn answer_lengths(extension: &[u8], content_bytes: usize) -> Vec<usize> {
    let mut handshaker = handshaker();
    let mut records = hello_with(extension, content_bytes);
    let last = records.pop().unwrap();
    for record in records {
        match handshake(&mut handshaker, TOKEN, record) {
            TlsAnswer::Continue { flight } => assert!(flight.is_empty()),
            answer => panic!("{answer:?}"),
        }
    }
    match handshake(&mut handshaker, TOKEN, last) {
        TlsAnswer::Continue { flight } => split(&flight)
            .iter()
            .map(|record| record.len() - 5)
            .collect(),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn our_records_are_as_short_as_the_client_wants_them() {
    // What is sealed has the content type and a tag besides.
    const SEALED: usize = 1 + 16;
    let usual = answer_lengths(&[], usize::MAX);
    assert!(usual.iter().any(|length| *length > 300), "{usual:?}");
    for (extension, limit) in [
        (&[0, 28, 0, 2, 0, 64][..], 63),
        (&[0, 28, 0, 2, 0, 101], 100),
        (&[0, 1, 0, 1, 1], 512),
        (&[0, 1, 0, 1, 1, 0, 28, 0, 2, 0, 101], 100),
    ] {
        // Also of a hello that is cut into several records.
        for content_bytes in [usize::MAX, 100, 3, 1] {
            let lengths = answer_lengths(extension, content_bytes);
            assert!(
                lengths.iter().all(|length| *length <= limit + SEALED),
                "{lengths:?}"
            );
            assert!(lengths.len() >= usual.len());
        }
    }
}

#[test]
fn a_forbidden_limit_of_records_is_an_illegal_parameter() {
    for (extension, alert) in [
        (&[0, 28, 0, 2, 0, 63][..], 47),
        (&[0, 1, 0, 1, 0], 47),
        (&[0, 1, 0, 1, 5], 47),
        (&[0, 28, 0, 1, 64], 50),
    ] {
        let record = hello_with(extension, usize::MAX).remove(0);
        match handshake(&mut handshaker(), TOKEN, record) {
            TlsAnswer::Refused { flight } => assert_eq!(flight, [21, 3, 3, 0, 2, 2, alert]),
            answer => panic!("{answer:?}"),
        }
    }
}

#[test]
fn a_client_without_a_limit_gets_records_of_any_length() {
    let mut client = connect(&client_of(&TLS13), NAME);
    let streaming = establish(&mut handshaker(), &mut client, TOKEN).unwrap();
    assert_eq!(streaming.content_bytes_max, 16_384);
}

#[test]
fn the_first_fitting_pair_of_the_name_is_chosen() {
    const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
    const RSA: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256];
    const BOTH: &[SignatureScheme] = &[
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    ];
    let pairs = vec![
        certified(&["a.example"], &RSA_KEY),
        certified(&["*.b.example", "c.example"], &ECDSA_KEY),
        certified(&["a.example"], &ECDSA_KEY),
    ];
    let expected: Vec<_> = pairs.iter().map(|(pair, _)| pair.cert.clone()).collect();
    let certificates = Certificates::new(pairs);
    for (name, schemes, place) in [
        (Some("a.example"), BOTH, 0),
        (Some("a.example"), RSA, 0),
        (Some("a.example"), ECDSA, 2),
        (Some("A.EXAMPLE"), ECDSA, 2),
        (Some("c.example"), BOTH, 1),
        (Some("x.b.example"), BOTH, 1),
        // A wildcard is for one label.
        (Some("x.y.b.example"), BOTH, 0),
        (Some("b.example"), ECDSA, 1),
        // Nobody's name, and none: the first pair that fits.
        (Some("d.example"), BOTH, 0),
        (Some("d.example"), ECDSA, 1),
        (None, BOTH, 0),
        (None, ECDSA, 1),
        // The pair of the name does not fit: a client that does not check may go on.
        (Some("c.example"), RSA, 0),
        // None fits: whichever, the handshake fails.
        (Some("c.example"), &[SignatureScheme::ED25519], 0),
    ] {
        let chosen = certificates.choose(name, schemes).unwrap();
        assert!(chosen.cert == expected[place], "{name:?} {schemes:?}");
    }
    let none = Certificates::new(Vec::new());
    assert!(none.choose(None, BOTH).is_none());
}
