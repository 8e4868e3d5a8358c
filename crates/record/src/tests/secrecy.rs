//! Nothing that is printed says a key.

use core::fmt::Debug;

use super::{SUITES, Suite};
use crate::Inbound;

/// Bytes that stand out in every form `Debug` has for them.
const KEY_BYTE: u8 = 0xd7;
const IV_BYTE: u8 = 0xe9;

fn assert_says_nothing(value: &dyn Debug) {
    for text in [
        format!("{value:?}"),
        format!("{value:#?}"),
        format!("{value:x?}"),
    ] {
        for secret in ["215", "233", "d7", "e9", "D7", "E9", "\u{d7}", "\u{e9}"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[test]
fn debug_prints_no_key() {
    for suite in SUITES {
        let suite = Suite {
            key: [KEY_BYTE; 32],
            iv: [IV_BYTE; 12],
            ..suite
        };
        let key = suite.traffic_key();
        assert_says_nothing(&key);
        assert_says_nothing(&suite.sealer());
        assert_says_nothing(&Inbound::new(&key, 0));
    }
}

/// The check above finds what it looks for.
#[test]
#[should_panic(expected = "215 in")]
fn debug_of_key_bytes_would_be_seen() {
    assert_says_nothing(&[KEY_BYTE; 16]);
}
