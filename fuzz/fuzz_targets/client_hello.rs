//! Any bytes as a ClientHello: what is found in it is what a naive reader finds, at its place, and the limits
//! are those of the last extension of each kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use record::{AlertDescription, ClientLimits, Version, find_extension, hello_bytes};

const MAX_FRAGMENT_LENGTH: u16 = 1;
const RECORD_SIZE_LIMIT: u16 = 28;

fuzz_target!(|message: &[u8]| {
    let extensions = Reader { message, place: 0 }.extensions();
    let found = extensions.as_deref().unwrap_or_default();
    for kind in (0..=64).chain(found.iter().map(|it| it.kind)) {
        let expected = found.iter().find(|it| it.kind == kind);
        let expected = expected.map(|it| (it.place, it.value));
        assert_eq!(find_extension(message, kind), expected, "type {kind}");
    }
    if let Some(bytes) = hello_bytes(message).filter(|_| extensions.is_some()) {
        // What is behind the message changes nothing.
        assert_eq!(
            ClientLimits::of_hello(&message[..bytes]),
            ClientLimits::of_hello(message)
        );
    }
    assert_eq!(limits(ClientLimits::of_hello(message)), naive_limits(found));
});

/// Most bytes of content in a record, by version.
type Limits = Result<[u16; 2], AlertDescription>;

fn limits(of_hello: Result<ClientLimits, AlertDescription>) -> Limits {
    let limits = of_hello?;
    Ok([Version::Tls13, Version::Tls12].map(|version| limits.content_bytes_max(version)))
}

/// RFC 6066 s4 and RFC 8449 s4, word by word.
fn naive_limits(extensions: &[Extension<'_>]) -> Limits {
    let (mut fragment, mut record) = (None, None);
    for it in extensions {
        match (it.kind, it.value) {
            (MAX_FRAGMENT_LENGTH, [1]) => fragment = Some(512),
            (MAX_FRAGMENT_LENGTH, [2]) => fragment = Some(1024),
            (MAX_FRAGMENT_LENGTH, [3]) => fragment = Some(2048),
            (MAX_FRAGMENT_LENGTH, [4]) => fragment = Some(4096),
            (RECORD_SIZE_LIMIT, [0, ..=63]) => return Err(AlertDescription::IllegalParameter),
            (RECORD_SIZE_LIMIT, [high, low]) => record = Some(u16::from(*high) << 8 | u16::from(*low)),
            (MAX_FRAGMENT_LENGTH, [_]) => return Err(AlertDescription::IllegalParameter),
            (MAX_FRAGMENT_LENGTH | RECORD_SIZE_LIMIT, _) => {
                return Err(AlertDescription::DecodeError);
            }
            _ => {}
        }
    }
    Ok(match (record, fragment) {
        (Some(limit), _) => [(limit - 1).min(16_384), limit.min(16_384)],
        (None, Some(bytes)) => [bytes; 2],
        (None, None) => [16_384; 2],
    })
}

/// An extension, and where its type is in the message.
struct Extension<'a> {
    place: usize,
    kind: u16,
    value: &'a [u8],
}

/// Reads the message from its beginning.
struct Reader<'a> {
    message: &'a [u8],
    place: usize,
}

impl<'a> Reader<'a> {
    /// RFC 8446 s4.1.2; `None`: it is no ClientHello, or has no extensions. What cannot be read of them is left
    /// out, with all behind it.
    fn extensions(mut self) -> Option<Vec<Extension<'a>>> {
        if self.number(1)? != 1 {
            return None;
        }
        let end = self.number(3)? + self.place;
        self.message = self.message.get(..end)?;
        self.bytes(2 + 32)?;
        for length_bytes in [1, 2, 1] {
            let length = self.number(length_bytes)?;
            self.bytes(length)?;
        }
        let length = self.number(2)?;
        if self.place + length != end {
            return None;
        }
        let mut found = Vec::new();
        while let Some(extension) = self.extension() {
            found.push(extension);
        }
        Some(found)
    }

    fn extension(&mut self) -> Option<Extension<'a>> {
        let place = self.place;
        let kind = u16::try_from(self.number(2)?).expect("two bytes");
        let length = self.number(2)?;
        let value = self.bytes(length)?;
        Some(Extension { place, kind, value })
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let digits = self.bytes(bytes)?.iter();
        Some(digits.fold(0, |sum, digit| sum * 256 + usize::from(*digit)))
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.message.get(self.place..self.place + count)?;
        self.place += count;
        Some(bytes)
    }
}
