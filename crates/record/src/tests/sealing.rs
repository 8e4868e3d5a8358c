//! Sealed records are the RFCs'.

use proptest::prelude::*;

use super::{ALERT, DATA, HANDSHAKE, SUITES, Suite, TLS13, content, seal};
use crate::{AeadLibrary, CONTENT_BYTES_MAX, ContentType, Framing, Sealer, Tag};

const TYPES: [(ContentType, u8); 3] = [
    (ContentType::Alert, ALERT),
    (ContentType::Handshake, HANDSHAKE),
    (ContentType::ApplicationData, DATA),
];

#[test]
fn every_suite_seals_as_the_oracle_does() {
    for suite in SUITES {
        let sealer = suite.sealer();
        for (content_type, code) in TYPES {
            for bytes in [
                0,
                1,
                15,
                16,
                17,
                63,
                64,
                65,
                4096,
                15_360,
                CONTENT_BYTES_MAX,
            ] {
                let content = content(bytes);
                assert_eq!(
                    seal(&sealer, 7, content_type, &content),
                    suite.record(7, code, &content),
                    "{suite:?} {content_type:?} {bytes}"
                );
            }
        }
    }
}

#[test]
fn framing_is_as_long_as_what_is_written() {
    for suite in SUITES {
        let framing = suite.sealer().framing();
        let whole = suite.record(0, DATA, b"").len();
        assert_eq!(framing.overhead_bytes() as usize, whole, "{suite:?}");
        assert!(framing.header_bytes as usize <= Framing::HEADER_BYTES_MAX);
        assert!(framing.trailer_bytes as usize <= Framing::TRAILER_BYTES_MAX);
    }
}

proptest! {
    #[test]
    fn any_record_is_sealed_as_the_oracle_does(
        choice in 0..SUITES.len(),
        (content_type, code) in prop::sample::select(TYPES.as_slice()),
        number: u64,
        key: [u8; 32],
        iv: [u8; 12],
        content in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let suite = Suite { key, iv, ..SUITES[choice] };
        let sealed = seal(&suite.sealer(), number, content_type, &content);
        prop_assert_eq!(sealed, suite.record(number, code, &content));
    }
}

proptest! {
    /// Each library is compared with the oracle above; this compares them with each other at the
    /// sizes where their code takes other paths, up to a whole record.
    #[test]
    fn the_libraries_seal_alike(
        choice in 0..SUITES.len(),
        (content_type, _) in prop::sample::select(TYPES.as_slice()),
        number: u64,
        key: [u8; 32],
        iv: [u8; 12],
        content in prop::collection::vec(any::<u8>(), 0..=CONTENT_BYTES_MAX),
    ) {
        let [aws_lc, ring] = AeadLibrary::ALL.map(|aead_library| {
            let suite = Suite { key, iv, aead_library, ..SUITES[choice] };
            seal(&suite.sealer(), number, content_type, &content)
        });
        prop_assert_eq!(aws_lc, ring);
    }
}

#[test]
fn sealing_again_gives_the_same_record() {
    for suite in SUITES {
        let sealer = suite.sealer();
        let first = seal(&sealer, 3, ContentType::ApplicationData, &content(1000));
        let _other = seal(&sealer, 4, ContentType::ApplicationData, &content(999));
        let again = seal(&sealer, 3, ContentType::ApplicationData, &content(1000));
        assert_eq!(first, again, "{suite:?}");
        let elsewhere = seal(
            &suite.sealer(),
            3,
            ContentType::ApplicationData,
            &content(1000),
        );
        assert_eq!(first, elsewhere, "{suite:?}");
    }
}

/// The tag of record 3.
fn tag(sealer: &Sealer, content: &[u8]) -> Tag {
    let framing = sealer.framing();
    let mut record = vec![0; framing.header_bytes as usize];
    record.extend_from_slice(content);
    record.resize(record.len() + framing.trailer_bytes as usize, 0);
    sealer.seal(3, ContentType::ApplicationData, &mut record)
}

#[test]
fn one_changed_bit_anywhere_changes_the_tag() {
    for sealer in SUITES.map(|suite| suite.sealer()) {
        let kept = tag(&sealer, &content(100));
        for index in 0..100 {
            let mut changed = content(100);
            changed[index] ^= 1 << (index % 8);
            assert_ne!(tag(&sealer, &changed), kept, "{sealer:?} {index}");
        }
    }
}

/// What stood in the header's and the trailer's place is not sealed with the content.
#[test]
fn only_the_content_matters() {
    for suite in SUITES {
        let sealer = suite.sealer();
        let framing = sealer.framing();
        for bytes in [0, 1, 16, 4096, 15_360] {
            let mut record = vec![0xee; bytes + framing.overhead_bytes() as usize];
            let from = framing.header_bytes as usize;
            record[from..from + bytes].copy_from_slice(&content(bytes));
            sealer.seal(9, ContentType::ApplicationData, &mut record);
            assert_eq!(record, suite.record(9, DATA, &content(bytes)), "{suite:?}");
        }
    }
}

#[test]
#[should_panic(expected = "16385 bytes of content are too many")]
fn content_of_more_than_16_kib_is_refused() {
    seal(
        &TLS13.sealer(),
        0,
        ContentType::ApplicationData,
        &content(CONTENT_BYTES_MAX + 1),
    );
}

#[test]
fn a_record_without_room_for_its_framing_is_refused() {
    for suite in SUITES {
        let sealer = suite.sealer();
        let overhead = sealer.framing().overhead_bytes() as usize;
        let seal = |bytes: usize| {
            let mut record = vec![0; bytes];
            sealer.seal(0, ContentType::Alert, &mut record);
        };
        seal(overhead);
        let refused = std::panic::catch_unwind(|| seal(overhead - 1));
        assert!(refused.is_err(), "{suite:?}");
    }
}
