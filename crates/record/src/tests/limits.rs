//! Both sides of every length and number.

use super::{DATA, SUITES, TLS12, TLS13, content, refusal, refusal_of};
use crate::{
    AlertDescription, Algorithm, CONTENT_BYTES_MAX, Event, Inbound, RECORD_BYTES_MAX, Version,
    peek_record,
};

#[test]
fn a_header_is_judged_when_it_is_whole() {
    let header = [23, 3, 3, 0, 7];
    for length in 0..5 {
        assert_eq!(peek_record(&header[..length]), Ok(None));
    }
    assert_eq!(peek_record(&header), Ok(Some(12)));
    assert_eq!(
        peek_record(&[&header[..], &[0; 100]].concat()),
        Ok(Some(12))
    );
    assert_eq!(peek_record(&[22, 3, 1, 0, 0]), Ok(Some(5)));
}

#[test]
fn a_header_of_no_record_is_refused() {
    for type_code in 0..=255 {
        let expected = if (20..24).contains(&type_code) {
            Ok(Some(5))
        } else {
            Err(AlertDescription::UnexpectedMessage)
        };
        assert_eq!(peek_record(&[type_code, 3, 3, 0, 0]), expected);
    }
    for major in 0..=255 {
        let expected = if major == 3 {
            Ok(Some(5))
        } else {
            Err(AlertDescription::ProtocolVersion)
        };
        assert_eq!(peek_record(&[22, major, 1, 0, 0]), expected);
    }
    for minor in 0..=255 {
        assert_eq!(peek_record(&[22, 3, minor, 0, 0]), Ok(Some(5)));
    }
    // 2^14 + 256 bytes follow, then one more.
    assert_eq!(
        peek_record(&[23, 3, 3, 0x41, 0]),
        Ok(Some(RECORD_BYTES_MAX))
    );
    let overflow = Err(AlertDescription::RecordOverflow);
    assert_eq!(peek_record(&[23, 3, 3, 0x41, 1]), overflow);
    assert_eq!(peek_record(&[23, 3, 3, 0xff, 0xff]), overflow);
}

/// RFC 8446 s5.4: the whole inner plaintext, padding included, has 2^14 + 1 bytes at most.
#[test]
fn tls13_an_inner_plaintext_has_16_kib_and_its_type() {
    for inner_bytes in [CONTENT_BYTES_MAX + 1, CONTENT_BYTES_MAX + 2] {
        let is_sound = inner_bytes == CONTENT_BYTES_MAX + 1;
        for padding in [0, 1, 9, 4096] {
            let mut inner = content(inner_bytes - 1 - padding);
            let expected = inner.clone();
            inner.push(DATA);
            inner.resize(inner_bytes, 0);
            let mut record = TLS13.record_tls13(0, &inner);
            let opened = TLS13.inbound().open(&mut record).map(|event| {
                assert_eq!(event, Event::Data(&expected));
            });
            if is_sound {
                assert_eq!(opened, Ok(()), "{padding}");
            } else {
                assert_eq!(
                    refusal(opened),
                    AlertDescription::RecordOverflow,
                    "{padding}"
                );
            }
        }
    }
}

#[test]
fn tls12_a_content_has_16_kib() {
    for suite in SUITES
        .iter()
        .filter(|suite| suite.version == Version::Tls12)
    {
        let sound = content(CONTENT_BYTES_MAX);
        let mut record = suite.record(0, DATA, &sound);
        assert_eq!(suite.inbound().open(&mut record), Ok(Event::Data(&sound)));
        let record = suite.record(0, DATA, &content(CONTENT_BYTES_MAX + 1));
        let refused = refusal_of(&mut suite.inbound(), record);
        assert_eq!(refused, AlertDescription::RecordOverflow, "{suite:?}");
    }
}

/// Whether its tag is sound is not asked of a record too long: tlsfuzzer has it so.
#[test]
fn a_forged_record_that_is_too_long_is_too_long() {
    for suite in SUITES {
        for (following, expected) in [
            ((1 << 14) + 256, AlertDescription::RecordOverflow),
            (1 << 14, AlertDescription::BadRecordMac),
        ] {
            let [high, low] = u16::try_from(following).unwrap().to_be_bytes();
            let record = [&[23, 3, 3, high, low][..], &vec![0; following]].concat();
            let refused = refusal_of(&mut suite.inbound(), record);
            assert_eq!(refused, expected, "{suite:?}");
        }
    }
}

#[test]
fn a_record_without_room_for_a_tag_is_a_forgery() {
    for suite in SUITES {
        for following in 0..=24_u8 {
            let mut record = vec![0; 5 + usize::from(following)];
            record[..5].copy_from_slice(&[23, 3, 3, 0, following]);
            let refused = refusal_of(&mut suite.inbound(), record);
            assert_eq!(
                refused,
                AlertDescription::BadRecordMac,
                "{suite:?} {following}"
            );
        }
    }
}

/// RFC 8446 s5.3: "Sequence numbers MUST NOT wrap."
#[test]
fn record_numbers_come_to_an_end() {
    for suite in [TLS13, TLS12] {
        let mut inbound = Inbound::new(&suite.traffic_key(), u64::MAX - 1);
        let mut last = suite.record(u64::MAX - 1, DATA, b"last");
        assert_eq!(inbound.open(&mut last), Ok(Event::Data(b"last")));
        let refused = refusal_of(&mut inbound, suite.record(u64::MAX, DATA, b""));
        assert_eq!(refused, AlertDescription::InternalError);
    }
}

/// RFC 8446 s5.5: 2^24.5 full-size records for AES-GCM.
#[test]
fn a_key_seals_fewer_records_than_the_rfc_allows() {
    let allowed = 2_f64.powf(24.5);
    for algorithm in [Algorithm::Aes128Gcm, Algorithm::Aes256Gcm] {
        let records = u32::try_from(algorithm.records_max()).unwrap();
        assert!(f64::from(records) < allowed / 2.0);
    }
    assert!(Algorithm::ChaCha20Poly1305.records_max() < u64::MAX);
}
