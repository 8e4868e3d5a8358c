//! Which version of an object a copy is of, told by its size and time alone.
//!
//! **A copy's modification time is the origin's `Last-Modified`, with a hash of the ETag as its nanoseconds.** So a
//! directory needs no database beside it and no extended attributes: whatever ends the filler, and whoever copies
//! the directory elsewhere with its times, what is there says itself what it is. Edges with equal copies have equal
//! times, so the ETags that Atlas makes of size and time agree as well. It refuses to tell two versions apart that
//! have one size and one second, and ETags whose hashes agree: once in 10^9 of such pairs.

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// A version of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Stamp {
    /// Bytes of its content.
    pub size_bytes: u64,
    /// `Last-Modified`, seconds since 1970 UTC; 0 if the origin does not say.
    pub seconds: i64,
    /// A hash of the ETag, below 10^9; 0 if there is none.
    pub nanos: u32,
}

impl Stamp {
    /// What the origin says of an object. `Last-Modified` is in whole seconds.
    #[must_use]
    pub fn new(size_bytes: u64, seconds: i64, etag: Option<&str>) -> Self {
        let nanos = etag.map_or(0, |etag| {
            // Never 0, which means no ETag.
            let nanos = 1 + hash(plain_etag(etag)) % (NANOS - 1);
            u32::try_from(nanos).expect("invariant: below 10^9")
        });
        Self {
            size_bytes,
            seconds,
            nanos,
        }
    }
}

/// An ETag without its quotes, and without the mark of weak ones: listings and replies of one origin write it in
/// different ways.
#[must_use]
pub fn plain_etag(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

/// FNV-1a: the same on every machine and in every version.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_etags_apart_and_not_how_they_are_written() {
        let of = |etag: Option<&str>| Stamp::new(5, 7, etag);
        let plain = of(Some("abc"));
        assert_eq!(of(Some("\"abc\"")), plain);
        assert_eq!(of(Some("W/\"abc\"")), plain);
        assert_ne!(of(Some("abd")), plain);
        assert_eq!(of(None).nanos, 0);
        for number in 0..10_000 {
            let nanos = of(Some(&number.to_string())).nanos;
            assert!(nanos > 0 && u64::from(nanos) < NANOS, "{number}: {nanos}");
        }
    }

    #[test]
    fn the_hash_is_fixed_since_copies_of_other_versions_have_it() {
        assert_eq!(hash(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(hash("a"), 0xAF63_DC4C_8601_EC8C);
    }
}
