//! Any bytes as the PROXY protocol of a connection: the verdict does not depend on where the network cut it, and what
//! is taken off lies within what arrived.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sites::preface::{PREFACE_BYTES_MAX, Preface};

// Two bytes say where to cut; the rest is what arrives.
fuzz_target!(|bytes: &[u8]| {
    let Some((cut, input)) = bytes.split_first_chunk() else {
        return;
    };
    let verdict = Preface::parse(input);
    let cut = usize::from(u16::from_be_bytes(*cut)).min(input.len());
    let earlier = Preface::parse(&input[..cut]);
    assert!(
        earlier == Preface::Incomplete || earlier == verdict,
        "cut at {cut}: {earlier:?}, whole: {verdict:?}"
    );
    match verdict {
        Preface::Incomplete => assert!(input.len() < PREFACE_BYTES_MAX),
        Preface::Complete { bytes, .. } => {
            assert!((1..=PREFACE_BYTES_MAX.min(input.len())).contains(&bytes));
            assert_eq!(Preface::parse(&input[..bytes]), verdict);
            assert_eq!(Preface::parse(&input[..bytes - 1]), Preface::Incomplete);
        }
        Preface::Refused(_) => {}
    }
});
