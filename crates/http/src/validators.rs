//! What tells one content of an object from another (RFC 9110 s8.8): its entity tag and the date of
//! its last modification, and when either can.
//!
//! Both count whole seconds, as nginx's do, so that a copy with the same times has the same ones on
//! another server. So they are strong only for a file that was last modified a second ago or earlier:
//! whatever is written to it from now on is dated in another second. A younger file has a weak tag
//! (s8.8.1: it "might not change for every change to the representation data") that names the
//! nanoseconds too, and no date. A file that was dated by the very tick of the
//! kernel's clock in which it was looked at has neither, since its next content may have the same
//! date to the nanosecond. See decision 44.
//!
//! It refuses nothing, and allocates nothing: a tag has at most [`ENTITY_TAG_BYTES_MAX`] bytes.

use std::fmt;
use std::io::Write;

use crate::ObjectMeta;

/// Longest entity tag, bytes: `W/`, quotes, and two numbers of 64 bits and one of 32 in hex, with what
/// separates them.
pub(crate) const ENTITY_TAG_BYTES_MAX: usize = 2 + 2 + 16 + 1 + 8 + 1 + 16;

const SECOND_NANOS: i128 = 1_000_000_000;

/// An entity tag (RFC 9110 s8.8.3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntityTag {
    bytes: [u8; ENTITY_TAG_BYTES_MAX],
    length: usize,
}

impl EntityTag {
    /// The tag of a content that was hashed.
    fn of_hash(hash: [u8; 16]) -> Self {
        Self::written(format_args!("\"{:032x}\"", u128::from_be_bytes(hash)))
    }

    /// Modification time in seconds and size, in hex: as nginx has it.
    fn of_second(object: &ObjectMeta) -> Self {
        let (seconds, size_bytes) = (object.modified.seconds, object.size_bytes);
        Self::written(format_args!("\"{seconds:x}-{size_bytes:x}\""))
    }

    /// The weak tag, with nanoseconds.
    fn of_nanosecond(object: &ObjectMeta) -> Self {
        let (modified, size_bytes) = (object.modified, object.size_bytes);
        let (seconds, nanos) = (modified.seconds, modified.nanos);
        Self::written(format_args!("W/\"{seconds:x}.{nanos:x}-{size_bytes:x}\""))
    }

    fn written(text: fmt::Arguments<'_>) -> Self {
        let mut bytes = [0; ENTITY_TAG_BYTES_MAX];
        let mut rest = bytes.as_mut_slice();
        rest.write_fmt(text)
            .expect("invariant: no tag is longer than ENTITY_TAG_BYTES_MAX");
        let length = ENTITY_TAG_BYTES_MAX - rest.len();
        Self { bytes, length }
    }

    /// As `ETag` has it.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Without the `W/` of a weak one.
    pub(crate) fn opaque(&self) -> &[u8] {
        let bytes = self.as_bytes();
        bytes.strip_prefix(b"W/").unwrap_or(bytes)
    }

    pub(crate) fn is_weak(&self) -> bool {
        self.as_bytes().starts_with(b"W/")
    }
}

impl fmt::Debug for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// What a reply says of the content it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Validators {
    /// `ETag`.
    pub(crate) tag: Option<EntityTag>,
    /// `Last-Modified`, Unix seconds; only where it is a strong validator (RFC 9110 s8.8.2.2).
    pub(crate) modified: Option<u64>,
}

impl Validators {
    /// Those of now.
    pub(crate) fn of(object: &ObjectMeta) -> Self {
        let age = Age::of(object);
        let tag = match (object.content_hash, age) {
            (Some(hash), _) => Some(EntityTag::of_hash(hash)),
            (None, Age::Settled) => Some(EntityTag::of_second(object)),
            (None, Age::Young) => Some(EntityTag::of_nanosecond(object)),
            (None, Age::Indistinct) => None,
        };
        let modified = (age == Age::Settled).then(|| object.modified.whole_seconds());
        Self { tag, modified }
    }

    /// Those that this content had while it was young; `None` if it still is, or had no others.
    pub(crate) fn while_young(object: &ObjectMeta) -> Option<Self> {
        let has_aged = object.content_hash.is_none() && Age::of(object) == Age::Settled;
        has_aged.then(|| Self {
            tag: Some(EntityTag::of_nanosecond(object)),
            modified: None,
        })
    }
}

/// Bytes that name this content of the object as exactly as its metadata can, at any age.
pub(crate) fn exact_name(object: &ObjectMeta) -> EntityTag {
    match object.content_hash {
        Some(hash) => EntityTag::of_hash(hash),
        None => EntityTag::of_nanosecond(object),
    }
}

/// How well its dates tell the content that was seen from those that may follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Age {
    /// By the second.
    Settled,
    /// By the nanosecond.
    Young,
    /// Not at all.
    Indistinct,
}

impl Age {
    fn of(object: &ObjectMeta) -> Self {
        let ObjectMeta { modified, seen, .. } = object;
        match seen.nanos_since(*modified) {
            SECOND_NANOS.. => Self::Settled,
            // Some file systems date by the second: there, what follows may have the same date.
            1.. if modified.nanos != 0 => Self::Young,
            // No write of just now is dated so: a program has set it, or another computer's clock is
            // ahead, and until then nobody knows which.
            nanos if nanos <= -SECOND_NANOS => Self::Young,
            _ => Self::Indistinct,
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::UnixTime;

    use super::*;

    const T: i64 = 0x5f;

    fn at(seconds: i64, nanos: u32) -> UnixTime {
        UnixTime { seconds, nanos }
    }

    fn object(modified: UnixTime, seen: UnixTime) -> ObjectMeta {
        ObjectMeta {
            size_bytes: 0x2a,
            modified,
            seen,
            content_hash: None,
            content_type: None,
        }
    }

    /// `ETag` and `Last-Modified`; empty and 0 for none.
    fn said(object: &ObjectMeta) -> (String, u64) {
        let Validators { tag, modified } = Validators::of(object);
        let tag = tag.map(|tag| format!("{tag:?}"));
        (tag.unwrap_or_default(), modified.unwrap_or_default())
    }

    #[test]
    fn a_file_is_young_for_a_second() {
        let strong = ("\"5f-2a\"", 0x5f);
        let weak = ("W/\"5f.b-2a\"", 0);
        let none = ("", 0);
        for (seen, expected) in [
            (at(T + 10 * 365 * 86_400, 0), strong),
            (at(T + 1, 12), strong),
            (at(T + 1, 11), strong),
            (at(T + 1, 10), weak),
            (at(T + 1, 0), weak),
            (at(T, 12), weak),
            // In the same tick of the clock that it is dated by.
            (at(T, 11), none),
            (at(T, 10), none),
            (at(T - 1, 12), none),
            // Dated ahead.
            (at(T - 1, 11), weak),
            (at(T - 1, 10), weak),
            (at(0, 0), weak),
        ] {
            let (tag, modified) = said(&object(at(T, 11), seen));
            assert_eq!((tag.as_str(), modified), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_file_dated_by_the_second_has_no_weak_tag_in_it() {
        for (seen, tag) in [
            (at(T + 1, 0), "\"5f-2a\""),
            (at(T, 999_999_999), ""),
            (at(T, 1), ""),
            (at(T, 0), ""),
            (at(T - 1, 0), "W/\"5f.0-2a\""),
        ] {
            assert_eq!(said(&object(at(T, 0), seen)).0, tag, "{seen:?}");
        }
    }

    #[test]
    fn a_settled_file_knows_what_was_said_while_it_was_young() {
        let young = object(at(T, 11), at(T + 1, 10));
        let settled = object(at(T, 11), at(T + 1, 11));
        let before = Validators::while_young(&settled);
        assert_eq!(before, Some(Validators::of(&young)));
        assert_ne!(before, Some(Validators::of(&settled)));
        assert_eq!(Validators::while_young(&young), None);
    }

    #[test]
    fn the_tag_of_a_hash_is_strong_at_any_age() {
        let tag = "\"00112233445566778899aabbccddeeff\"";
        for (seen, modified) in [(at(T + 1, 11), 0x5f), (at(T + 1, 10), 0), (at(0, 0), 0)] {
            let object = ObjectMeta {
                content_hash: Some(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes()),
                ..object(at(T, 11), seen)
            };
            assert_eq!(said(&object), (tag.to_owned(), modified), "{seen:?}");
            assert_eq!(Validators::while_young(&object), None);
            assert_eq!(format!("{:?}", exact_name(&object)), tag);
        }
    }

    #[test]
    fn the_longest_tag_fits() {
        let object = ObjectMeta {
            size_bytes: u64::MAX,
            ..object(at(-1, u32::MAX), at(0, 0))
        };
        let longest = EntityTag::of_nanosecond(&object);
        assert_eq!(longest.as_bytes().len(), ENTITY_TAG_BYTES_MAX);
        assert!(longest.is_weak());
        assert_eq!(longest.opaque().len(), ENTITY_TAG_BYTES_MAX - 2);
    }
}
