//! How long a client wants records at most, from the extensions of its ClientHello:
//! `max_fragment_length` (RFC 6066 s4) and `record_size_limit` (RFC 8449).
//!
//! Devices with little memory send them. Both are meant to be agreed on, and rustls agrees on neither;
//! but shorter records are always allowed, so the limit can be kept to without an answer.
//!
//! It refuses values that the RFCs forbid, and nothing else: what is wrong with the rest of a message
//! is left to whoever makes the handshake. It allocates nothing. Bound: the message.

use crate::{AlertDescription, CONTENT_BYTES_MAX, Version};

/// Handshake type `client_hello(1)` (RFC 8446 s4).
const CLIENT_HELLO: u8 = 1;
/// Bytes of a handshake message before its body: type and length.
const MESSAGE_HEADER_BYTES: usize = 4;
/// Version and random.
const FIXED_BYTES: usize = 2 + 32;
/// Extension `max_fragment_length(1)`.
const MAX_FRAGMENT_LENGTH: u16 = 1;
/// Extension `record_size_limit(28)`.
const RECORD_SIZE_LIMIT: u16 = 28;
/// RFC 8449 s4: "Endpoints MUST NOT send a "record_size_limit" extension with a value smaller than 64."
const RECORD_SIZE_LIMIT_MIN: u16 = 64;

/// What a client can take, as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientLimits {
    /// Most bytes of plaintext in a record; in TLS 1.3 the content type, which is sealed too, is among
    /// them. 64 or more.
    record_size_limit: Option<u16>,
    /// Most bytes of content in a record: 512, 1024, 2048 or 4096.
    max_fragment_length: Option<u16>,
}

impl ClientLimits {
    /// Of a whole ClientHello with its handshake header. None of one that cannot be parsed.
    ///
    /// # Errors
    /// The alert to send: a limit has a value that is forbidden, or no value.
    pub fn of_hello(message: &[u8]) -> Result<Self, AlertDescription> {
        let mut limits = Self::default();
        let Some(mut extensions) = extensions_of(message) else {
            return Ok(limits);
        };
        while let Some((kind, value, rest)) = take_extension(extensions) {
            extensions = rest;
            match kind {
                MAX_FRAGMENT_LENGTH => {
                    limits.max_fragment_length = Some(match *value {
                        [code @ 1..=4] => 1 << (8 + code),
                        [_] => return Err(AlertDescription::IllegalParameter),
                        _ => return Err(AlertDescription::DecodeError),
                    });
                }
                RECORD_SIZE_LIMIT => {
                    let bytes = <[u8; 2]>::try_from(value);
                    let bytes = bytes.map_err(|_| AlertDescription::DecodeError)?;
                    let limit = u16::from_be_bytes(bytes);
                    if limit < RECORD_SIZE_LIMIT_MIN {
                        return Err(AlertDescription::IllegalParameter);
                    }
                    limits.record_size_limit = Some(limit);
                }
                _ => {}
            }
        }
        Ok(limits)
    }

    /// Most bytes of content in a record for this client: 63 to [`CONTENT_BYTES_MAX`]. With both
    /// extensions, `record_size_limit` counts (RFC 8449 s5).
    #[must_use]
    pub fn content_bytes_max(self, version: Version) -> u16 {
        let most = u16::try_from(CONTENT_BYTES_MAX).unwrap_or(u16::MAX);
        let own = match (self.record_size_limit, version) {
            (Some(limit), Version::Tls13) => Some(limit.saturating_sub(1)),
            (Some(limit), Version::Tls12) => Some(limit),
            (None, _) => self.max_fragment_length,
        };
        own.map_or(most, |own| own.min(most))
    }
}

/// The bytes a ClientHello has in all, its header included, as its first four say. `None`: fewer than
/// four are there. Of another message, 0.
#[must_use]
pub fn hello_bytes(message: &[u8]) -> Option<usize> {
    match *message {
        [CLIENT_HELLO, high, middle, low, ..] => {
            let length = u32::from_be_bytes([0, high, middle, low]);
            usize::try_from(length)
                .ok()
                .map(|length| length + MESSAGE_HEADER_BYTES)
        }
        [] | [CLIENT_HELLO, ..] => None,
        _ => Some(0),
    }
}

/// Where the type of an extension is in a whole ClientHello, and the extension's value; `None`: it is not
/// there, or cannot be found.
#[must_use]
pub fn find_extension(message: &[u8], kind: u16) -> Option<(usize, &[u8])> {
    let mut rest = extensions_of(message)?;
    let end = hello_bytes(message)?;
    while let Some((found, value, behind)) = take_extension(rest) {
        if found == kind {
            return Some((end - rest.len(), value));
        }
        rest = behind;
    }
    None
}

/// The block of extensions (RFC 8446 s4.1.2), which is the message's end; `None` if there is none.
fn extensions_of(message: &[u8]) -> Option<&[u8]> {
    let body = message.get(MESSAGE_HEADER_BYTES..hello_bytes(message)?)?;
    let rest = body.get(FIXED_BYTES..)?;
    let (_session, rest) = take_vector(rest, 1)?;
    let (_suites, rest) = take_vector(rest, 2)?;
    let (_compression, rest) = take_vector(rest, 1)?;
    let (extensions, behind) = take_vector(rest, 2)?;
    behind.is_empty().then_some(extensions)
}

/// Type and value of the first extension, and what is behind it.
fn take_extension(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first_chunk::<2>()?;
    let (value, rest) = take_vector(rest, 2)?;
    Some((u16::from_be_bytes(*kind), value, rest))
}

/// What is behind a length of one or two bytes, and the rest.
fn take_vector(bytes: &[u8], length_bytes: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(length_bytes)?;
    let length = length
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ClientLimits, find_extension, hello_bytes};
    use crate::{AlertDescription, Version};

    /// A ClientHello with those extensions.
    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
        let mut block = Vec::new();
        for (kind, value) in extensions {
            block.extend(kind.to_be_bytes());
            block.extend(length(value.len()));
            block.extend(*value);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 8, 8, 0, 4, 0x13, 1, 0x13, 2, 1, 0]);
        body.extend(length(block.len()));
        body.extend(block);
        let [high, low] = length(body.len());
        [vec![1, 0, high, low], body].concat()
    }

    fn content_bytes(extensions: &[(u16, &[u8])]) -> Result<(u16, u16), AlertDescription> {
        let limits = ClientLimits::of_hello(&hello(extensions))?;
        let of = |version| limits.content_bytes_max(version);
        Ok((of(Version::Tls13), of(Version::Tls12)))
    }

    #[test]
    fn each_limit_is_read_on_both_sides_of_what_it_may_be() {
        const NONE: (u16, u16) = (16_384, 16_384);
        let illegal = Err(AlertDescription::IllegalParameter);
        assert_eq!(content_bytes(&[]), Ok(NONE));
        assert_eq!(content_bytes(&[(0, b"x"), (0xfafa, &[])]), Ok(NONE));
        for (code, expected) in [
            (0, illegal),
            (1, Ok((512, 512))),
            (2, Ok((1024, 1024))),
            (3, Ok((2048, 2048))),
            (4, Ok((4096, 4096))),
            (5, illegal),
        ] {
            assert_eq!(
                content_bytes(&[(16, b"y"), (1, &[code])]),
                expected,
                "{code}"
            );
        }
        for (limit, expected) in [
            (0_u16, illegal),
            (63, illegal),
            (64, Ok((63, 64))),
            (512, Ok((511, 512))),
            (16_384, Ok((16_383, 16_384))),
            (16_385, Ok(NONE)),
            (u16::MAX, Ok(NONE)),
        ] {
            assert_eq!(
                content_bytes(&[(28, &limit.to_be_bytes())]),
                expected,
                "{limit}"
            );
        }
        let both: [(u16, &[u8]); 2] = [(1, &[1]), (28, &[4, 1])];
        assert_eq!(content_bytes(&both), Ok((1024, 1025)));
        for empty in [
            (1, &[][..]),
            (1, &[1, 1]),
            (28, &[]),
            (28, &[64]),
            (28, &[0, 64, 0]),
        ] {
            assert_eq!(content_bytes(&[empty]), Err(AlertDescription::DecodeError));
        }
    }

    #[test]
    fn the_length_of_a_hello_is_known_from_its_header() {
        let hello = hello(&[(1, &[1])]);
        for cut in 0..4 {
            assert_eq!(hello_bytes(&hello[..cut]), None, "{cut}");
        }
        for cut in 4..=hello.len() {
            assert_eq!(hello_bytes(&hello[..cut]), Some(hello.len()), "{cut}");
        }
        assert_eq!(hello_bytes(&[2]), Some(0));
        assert_eq!(hello_bytes(&[1, 255, 255, 255]), Some(0xff_ffff + 4));
    }

    #[test]
    fn an_extension_is_found_where_it_is() {
        let hello = hello(&[(0, b"abc"), (1, &[2]), (28, &[2, 0])]);
        let (place, value) = find_extension(&hello, 28).unwrap();
        assert_eq!((place, value), (hello.len() - 6, &[2, 0][..]));
        let (place, value) = find_extension(&hello, 0).unwrap();
        assert_eq!(
            (&hello[place..place + 4], value),
            (&[0, 0, 0, 3][..], &b"abc"[..])
        );
        assert_eq!(find_extension(&hello, 2), None);
    }

    #[test]
    fn a_hello_that_is_cut_has_no_limit_or_the_same() {
        let whole = hello(&[(0, b"abc"), (1, &[2]), (28, &[2, 0])]);
        for cut in 0..whole.len() {
            let limits = ClientLimits::of_hello(&whole[..cut]).unwrap();
            assert_eq!(limits, ClientLimits::default(), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_limit_or_an_alert(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            is_hello in any::<bool>(),
        ) {
            if is_hello && bytes.len() >= 4 {
                let length = u8::try_from(bytes.len() - 4).unwrap();
                bytes[..4].copy_from_slice(&[1, 0, 0, length]);
            }
            if let Ok(limits) = ClientLimits::of_hello(&bytes) {
                for version in [Version::Tls13, Version::Tls12] {
                    prop_assert!((63..=16_384).contains(&limits.content_bytes_max(version)));
                }
            }
        }

        #[test]
        fn a_changed_byte_hurts_nothing(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = hello(&[(0, b"abc"), (1, &[2]), (28, &[2, 0])]);
            let place = place.index(bytes.len());
            bytes[place] = byte;
            let _ = ClientLimits::of_hello(&bytes);
        }
    }
}
