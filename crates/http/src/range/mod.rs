//! Byte ranges (RFC 9110 s14): the parts of an object that a `Range` field selects.
//!
//! Where the RFC leaves a choice, this follows nginx 1.22, whose answers were recorded for the
//! table in this module's tests: a `bytes` range set with an error in it, or of which nothing
//! overlaps the object, is 416; another unit is ignored; ranges that together are longer
//! than the object, or more than [`RANGES_MAX`] ranges, get the whole object. Stricter than nginx:
//! so do more than [`RANGES_UNORDERED_MAX`] that overlap or do not ascend.

/// Most ranges one reply serves. RFC 9110 s14.2 lets a server ignore a field that asks for more.
pub const RANGES_MAX: usize = 16;

/// Most ranges that may come in any order and overlap. RFC 9110 s14.2 lets a server ignore "more
/// than two overlapping ranges, or a set of many small ranges that are not listed in ascending
/// order, since these are indications of either a broken client or a deliberate denial-of-service
/// attack".
pub const RANGES_UNORDERED_MAX: usize = 4;

/// The largest file offset of Linux, and so the largest object: `loff_t` is signed.
const OFFSET_MAX: u64 = i64::MAX.unsigned_abs();

/// Part of an object: `length > 0` bytes from `start`, within its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The result of a `Range` field for one object.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack of one call, never in a table"
)]
pub(crate) enum Selection {
    /// Send all of it, as if there were no field.
    Whole,
    /// Send these, in this order.
    Ranges(Ranges),
    /// 416.
    Unsatisfiable,
}

/// One to [`RANGES_MAX`] ranges, in the order asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ranges {
    items: [ByteRange; RANGES_MAX],
    count: usize,
}

impl Ranges {
    pub(crate) fn as_slice(&self) -> &[ByteRange] {
        self.items
            .get(..self.count)
            .expect("invariant: count <= RANGES_MAX")
    }

    /// Whether each range begins behind the end of the one before it.
    fn is_ascending(&self) -> bool {
        let mut pairs = self.as_slice().windows(2);
        pairs.all(|pair| pair[0].start + pair[0].length <= pair[1].start)
    }

    /// Whether there was room.
    fn push(&mut self, range: ByteRange) -> bool {
        let Some(slot) = self.items.get_mut(self.count) else {
            return false;
        };
        *slot = range;
        self.count += 1;
        true
    }
}

/// One member of a range set, as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spec {
    /// `first-`
    From(u64),
    /// `first-last`, in any order: `last < first` selects nothing.
    Between(u64, u64),
    /// `-length`
    Suffix(u64),
}

/// Evaluates a `Range` field for an object of `size_bytes`.
pub(crate) fn select(field: &[u8], size_bytes: u64) -> Selection {
    const UNIT: &[u8] = b"bytes=";
    let set = match field.split_at_checked(UNIT.len()) {
        Some((unit, set)) if unit.eq_ignore_ascii_case(UNIT) && !set.is_empty() => set,
        // RFC 9110 s14.2: "MAY ignore" a unit it does not understand.
        _ => return Selection::Whole,
    };
    let mut ranges = Ranges::default();
    let mut total_bytes: u64 = 0;
    for text in set.split(|&byte| byte == b',') {
        let Some(spec) = parse_spec(text) else {
            return Selection::Unsatisfiable;
        };
        let Some(range) = resolve(spec, size_bytes) else {
            // As nginx does: a range from offset 0 that selects nothing means that the object is
            // empty, and an empty object is sent whole.
            if spec_start(spec, size_bytes) == 0 {
                return Selection::Whole;
            }
            continue;
        };
        total_bytes = total_bytes.saturating_add(range.length);
        if !ranges.push(range) {
            return Selection::Whole;
        }
    }
    if ranges.as_slice().is_empty() {
        return Selection::Unsatisfiable;
    }
    // RFC 9110 s14.2 and s17.15: many overlapping ranges are an attack or a mistake, and the
    // whole object is cheaper for both sides.
    if total_bytes > size_bytes.min(OFFSET_MAX) {
        return Selection::Whole;
    }
    if ranges.as_slice().len() > RANGES_UNORDERED_MAX && !ranges.is_ascending() {
        return Selection::Whole;
    }
    Selection::Ranges(ranges)
}

fn spec_start(spec: Spec, size_bytes: u64) -> u64 {
    match spec {
        Spec::From(first) | Spec::Between(first, _) => first,
        Spec::Suffix(length) => size_bytes.saturating_sub(length),
    }
}

/// The bytes of the object that `spec` selects, if any.
fn resolve(spec: Spec, size_bytes: u64) -> Option<ByteRange> {
    let start = spec_start(spec, size_bytes);
    let end = match spec {
        Spec::From(_) | Spec::Suffix(_) => size_bytes,
        Spec::Between(_, last) => last.saturating_add(1).min(size_bytes),
    };
    let length = end.checked_sub(start).filter(|&length| length > 0)?;
    Some(ByteRange { start, length })
}

/// RFC 9110 s14.1.1, with spaces tolerated around numbers where nginx does: not between the dash
/// and the length of a suffix.
fn parse_spec(text: &[u8]) -> Option<Spec> {
    let dash = text.iter().position(|&byte| byte == b'-')?;
    let (first, rest) = text.split_at(dash);
    let (first, after_dash) = (trim_spaces(first), rest.get(1..)?);
    match (first, trim_spaces(after_dash)) {
        ([], _) if after_dash.starts_with(b" ") => None,
        ([], length) => Some(Spec::Suffix(parse_offset(length)?)),
        (first, []) => Some(Spec::From(parse_offset(first)?)),
        (first, last) => Some(Spec::Between(parse_offset(first)?, parse_offset(last)?)),
    }
}

/// A file offset: decimal digits, at most [`OFFSET_MAX`].
fn parse_offset(digits: &[u8]) -> Option<u64> {
    crate::request::parse_decimal(digits).filter(|&number| number <= OFFSET_MAX)
}

/// Spaces only: a tab is an error to nginx.
fn trim_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests;
