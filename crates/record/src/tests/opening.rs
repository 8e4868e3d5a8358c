//! The RFCs' records are opened, and nothing else is.

use proptest::prelude::*;

use super::{
    ALERT, DATA, HANDSHAKE, SUITES, Suite, TLS12, TLS13, content, refusal, refusal_of, seal,
};
use crate::{
    AlertDescription, Algorithm, ContentType, Event, Inbound, TrafficKey, Version, peek_record,
};

#[test]
fn every_suite_opens_what_the_oracle_sealed() {
    for suite in SUITES {
        let mut inbound = suite.inbound();
        assert_eq!(inbound.version(), suite.version);
        for (number, bytes) in [0, 1, 100, 0, 1 << 14].into_iter().enumerate() {
            let content = content(bytes);
            let mut record = suite.record(number as u64, DATA, &content);
            let event = inbound.open(&mut record);
            assert_eq!(event, Ok(Event::Data(&content)), "{suite:?} {number}");
        }
    }
}

proptest! {
    #[test]
    fn any_sealed_record_is_opened(
        choice in 0..SUITES.len(),
        number in 0..u64::MAX,
        key: [u8; 32],
        iv: [u8; 12],
        content in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let suite = Suite { key, iv, ..SUITES[choice] };
        let mut record = suite.record(number, DATA, &content);
        prop_assert_eq!(peek_record(&record), Ok(Some(record.len())));
        let mut inbound = Inbound::new(&suite.traffic_key(), number);
        prop_assert_eq!(inbound.open(&mut record), Ok(Event::Data(&content)));
    }

    /// Whoever holds the key can seal anything: it is judged, and nothing panics.
    #[test]
    fn any_inner_plaintext_is_judged(
        choice in 0..SUITES.len(),
        records in prop::collection::vec(
            (20..24_u8, prop::collection::vec(prop::sample::select(vec![0, 1, 2, 21, 22, 23, 24]), 0..9)),
            1..6,
        ),
    ) {
        let suite = SUITES[choice];
        let mut inbound = suite.inbound();
        let mut is_over = false;
        for (number, (type_code, bytes)) in records.into_iter().enumerate() {
            let mut record = match suite.version {
                Version::Tls13 => suite.record_tls13(number as u64, &bytes),
                Version::Tls12 => suite.record(number as u64, type_code, &bytes),
            };
            let opened = inbound.open(&mut record);
            if is_over {
                prop_assert!(opened.is_err());
            }
            is_over |= opened.is_err() || matches!(opened, Ok(Event::KeyUpdate { .. }));
            if matches!(opened, Ok(Event::CloseNotify | Event::Aborted(_))) {
                break;
            }
        }
    }
}

#[test]
fn what_we_seal_we_open() {
    for suite in SUITES {
        let mut record = seal(&suite.sealer(), 0, ContentType::ApplicationData, b"data");
        assert_eq!(suite.inbound().open(&mut record), Ok(Event::Data(b"data")));
    }
}

/// RFC 5288 s3 leaves the explicit nonce to the sender: OpenSSL counts, others draw lots.
#[test]
fn an_explicit_nonce_may_be_anything() {
    let mut inbound = TLS12.inbound();
    for (number, nonce) in [[0; 8], [0xff; 8], *b"anything"].into_iter().enumerate() {
        let mut record = TLS12.record_tls12(number as u64, DATA, b"data", &nonce);
        assert_eq!(inbound.open(&mut record), Ok(Event::Data(b"data")));
    }
}

#[test]
fn one_flipped_bit_anywhere_is_seen() {
    use AlertDescription::{BadRecordMac, InternalError, ProtocolVersion, UnexpectedMessage};
    for suite in SUITES {
        let sound = suite.record(0, DATA, b"data");
        for bit in 0..sound.len() * 8 {
            let mut record = sound.clone();
            record[bit / 8] ^= 1 << (bit % 8);
            let refused = refusal(suite.inbound().open(&mut record));
            let allowed: &[_] = match bit / 8 {
                // Of the four known types three are other types, which TLS 1.2 cannot tell from
                // a forgery.
                0 => &[UnexpectedMessage, BadRecordMac],
                1 => &[ProtocolVersion],
                2 => &[ProtocolVersion, BadRecordMac],
                // The slice is no longer one whole record.
                3 | 4 => &[InternalError, AlertDescription::RecordOverflow],
                _ => &[BadRecordMac],
            };
            assert!(
                allowed.contains(&refused),
                "{suite:?} bit {bit}: {refused:?}"
            );
        }
    }
}

#[test]
fn records_come_in_order_or_not_at_all() {
    for suite in SUITES {
        for number in [0, 2] {
            let mut inbound = suite.inbound();
            inbound.open(&mut suite.record(0, DATA, b"0")).unwrap();
            let refused = refusal_of(
                &mut inbound,
                suite.record(number, DATA, b"again, or too early"),
            );
            assert_eq!(refused, AlertDescription::BadRecordMac, "{suite:?}");
        }
    }
}

#[test]
fn nothing_is_opened_after_a_refusal() {
    for suite in SUITES {
        let mut inbound = suite.inbound();
        let refused = refusal(inbound.open(&mut suite.record(1, DATA, b"")));
        assert_eq!(refused, AlertDescription::BadRecordMac);
        for number in [0, 1] {
            let refused = refusal_of(&mut inbound, suite.record(number, DATA, b""));
            assert_eq!(refused, AlertDescription::InternalError);
        }
    }
}

/// RFC 8446 s5: not even the change_cipher_spec that is skipped during the handshake.
#[test]
fn tls13_has_no_record_in_the_clear_after_the_handshake() {
    for record in [
        [20, 3, 3, 0, 1, 1].as_slice(),
        &[21, 3, 3, 0, 2, 1, 0],
        &[22, 3, 3, 0, 5, 24, 0, 0, 1, 0],
        &[22, 3, 3, 0, 0],
    ] {
        let refused = refusal_of(&mut TLS13.inbound(), record.to_vec());
        assert_eq!(refused, AlertDescription::UnexpectedMessage, "{record:?}");
    }
    // The type says application data, so it is a forgery.
    let refused = refusal_of(&mut TLS13.inbound(), vec![23, 3, 3, 0, 1, 0]);
    assert_eq!(refused, AlertDescription::BadRecordMac);
}

/// RFC 8446 s5.1: the version on the outside "MUST be ignored for all purposes"; it is
/// authenticated all the same.
#[test]
fn tls13_opens_a_record_of_another_version_if_it_was_sealed_as_one() {
    let header = [23, 3, 1, 0, 21];
    let sealed = TLS13.seal(TLS13.xored(0), &header, b"data\x17");
    let mut record = [header.as_slice(), &sealed].concat();
    assert_eq!(TLS13.inbound().open(&mut record), Ok(Event::Data(b"data")));
    // RFC 5246 s6.2.1 has no such sentence.
    let mut record = TLS12.record(0, DATA, b"data");
    record[2] = 1;
    let refused = refusal_of(&mut TLS12.inbound(), record);
    assert_eq!(refused, AlertDescription::ProtocolVersion);
}

/// RFC 8446 s5.4.
#[test]
fn tls13_padding_is_taken_off() {
    for padding in [0, 1, 15, 16, 255, 4096] {
        let inner = [b"GET \0\0\x17".as_slice(), &vec![0; padding]].concat();
        let mut record = TLS13.record_tls13(0, &inner);
        let event = TLS13.inbound().open(&mut record).unwrap();
        assert_eq!(event, Event::Data(b"GET \0\0"), "{padding}");
    }
}

#[test]
fn tls13_a_record_of_nothing_but_padding_is_refused() {
    for padding in [0, 1, 42, (1 << 14) + 1] {
        let record = TLS13.record_tls13(0, &vec![0; padding]);
        let refused = refusal_of(&mut TLS13.inbound(), record);
        assert_eq!(refused, AlertDescription::UnexpectedMessage, "{padding}");
    }
}

#[test]
fn an_unknown_content_type_is_refused() {
    for type_code in (1..=255).filter(|code| ![ALERT, HANDSHAKE, DATA].contains(code)) {
        let record = TLS13.record(0, type_code, b"data");
        let refused = refusal_of(&mut TLS13.inbound(), record);
        assert_eq!(refused, AlertDescription::UnexpectedMessage, "{type_code}");
        let record = TLS12.record(0, type_code, b"data");
        let refused = refusal_of(&mut TLS12.inbound(), record);
        assert_eq!(refused, AlertDescription::UnexpectedMessage, "{type_code}");
    }
}

#[test]
fn half_a_record_and_two_are_an_internal_error() {
    for suite in SUITES {
        let whole = suite.record(0, DATA, b"data");
        let twice = whole.repeat(2);
        for given in [
            twice,
            whole[..whole.len() - 1].to_vec(),
            whole[..4].to_vec(),
            vec![],
        ] {
            let refused = refusal_of(&mut suite.inbound(), given);
            assert_eq!(refused, AlertDescription::InternalError, "{suite:?}");
        }
    }
}

#[test]
fn a_key_of_another_length_is_refused() {
    for (algorithm, bytes) in [
        (Algorithm::Aes128Gcm, 16),
        (Algorithm::Aes256Gcm, 32),
        (Algorithm::ChaCha20Poly1305, 32),
    ] {
        for given in [0, 15, 16, 17, 31, 32, 33] {
            let key = TrafficKey::new(Version::Tls13, algorithm, &vec![0; given], [0; 12]);
            assert_eq!(key.is_ok(), given == bytes, "{algorithm:?} {given}");
        }
    }
}
