//! Conditional requests (RFC 9110 s13): whether the answer is the object, 304, or 412.
//!
//! What an object is compared by are its [`Validators`]. One that is young has no date to be compared
//! with, and no strong tag: so no condition gets it a 304 but the tag of that very moment, and none a
//! part of it. An invalid date is ignored (RFC 9110 s13.1.3 and s13.1.4).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::ObjectMeta;
use crate::validators::{EntityTag, Validators};

/// The condition fields of a request, as they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Conditions<'a> {
    pub(crate) if_match: Option<&'a [u8]>,
    pub(crate) if_none_match: Option<&'a [u8]>,
    pub(crate) if_modified_since: Option<&'a [u8]>,
    pub(crate) if_unmodified_since: Option<&'a [u8]>,
    pub(crate) if_range: Option<&'a [u8]>,
}

/// The result of the conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Proceed,
    /// The client has the content of now, under these validators.
    NotModified(Validators),
    PreconditionFailed,
}

impl Conditions<'_> {
    /// RFC 9110 s13.2.2, steps 1 to 4, for a `GET` or `HEAD`.
    /// `now` are the object's validators.
    pub(crate) fn evaluate(&self, object: &ObjectMeta, now: &Validators) -> Verdict {
        if let Some(tags) = self.if_match {
            if tags != b"*" && !any_tag_matches(tags, now.tag, Comparison::Strong) {
                return Verdict::PreconditionFailed;
            }
        } else if let Some(date) = self.if_unmodified_since.and_then(unix_seconds_of)
            && object.modified.whole_seconds() > date
        {
            return Verdict::PreconditionFailed;
        }
        if let Some(tags) = self.if_none_match {
            if tags == b"*" || any_tag_matches(tags, now.tag, Comparison::Weak) {
                return Verdict::NotModified(*now);
            }
            // Its copy may be of when the object was young. It is told the tag of that copy, since RFC
            // 9111 s4.3.4 has a cache update none by a strong validator that it has not stored.
            if let Some(then) = Validators::while_young(object)
                && any_tag_matches(tags, then.tag, Comparison::Weak)
            {
                return Verdict::NotModified(then);
            }
        } else if let Some(date) = self.if_modified_since.and_then(unix_seconds_of)
            && now.modified.is_some_and(|modified| modified <= date)
        {
            return Verdict::NotModified(*now);
        }
        Verdict::Proceed
    }

    /// RFC 9110 s13.2.2, step 5, and s13.1.5: whether a `Range` may be honoured. A tag must be the
    /// object's strong one, a date equal its own; what is neither a tag nor a date matches nothing.
    pub(crate) fn range_applies(&self, now: &Validators) -> bool {
        match self.if_range {
            None => true,
            Some(tag) if tag.ends_with(b"\"") => now
                .tag
                .is_some_and(|ours| !ours.is_weak() && ours.as_bytes() == tag),
            Some(date) => unix_seconds_of(date).is_some_and(|date| now.modified == Some(date)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// RFC 9110 s8.8.3.2: a weak comparison ignores the `W/` of either tag, a strong one fails on it.
fn any_tag_matches(list: &[u8], ours: Option<EntityTag>, comparison: Comparison) -> bool {
    let Some(ours) = ours.filter(|ours| comparison == Comparison::Weak || !ours.is_weak()) else {
        return false;
    };
    EntityTags { rest: list }.any(|(is_weak, opaque)| {
        opaque == ours.opaque() && !(is_weak && comparison == Comparison::Strong)
    })
}

/// The tags of a list, each with whether it is weak. Ends at the first thing that is not a tag.
struct EntityTags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for EntityTags<'a> {
    type Item = (bool, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // RFC 9110 s5.6.1.2: empty list elements are to be ignored.
        let is_separator = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
        let start = self.rest.iter().position(|byte| !is_separator(byte))?;
        let rest = self.rest.get(start..)?;
        let (is_weak, rest) = match rest.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let opaque = rest.strip_prefix(b"\"")?;
        let opaque_bytes = opaque.iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = rest.split_at_checked(opaque_bytes + 2)?;
        self.rest = rest;
        Some((is_weak, tag))
    }
}

/// Any of the three date forms of RFC 9110 s5.6.7, as Unix seconds.
fn unix_seconds_of(date: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(date).ok()?;
    let time: SystemTime = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs())
}

#[cfg(test)]
mod tests;
