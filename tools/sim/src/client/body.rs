//! Compares the bytes of a body with the expected ones, as they arrive.
//!
//! A body is one part of an object, several parts with text between them (RFC 9110 s14.6), or text
//! that is not checked. It refuses bytes of another version of an object than the one that the reply names.

use super::Violation;
use super::plan::{Change, ExpectedBody, ObjectPlan, PARTS_MAX};

/// A line between two parts longer than this is a violation.
const LINE_BYTES_MAX: usize = 256;

/// A body in progress.
#[derive(Debug)]
pub(super) struct Body {
    content: Content,
    done_bytes: u64,
    length_bytes: u64,
}

#[derive(Debug)]
enum Content {
    /// The text of an error.
    Text,
    /// One part, from this offset on.
    Part(ObjectPlan, u64),
    /// Several.
    Parts(Box<Parts>),
}

impl Body {
    /// A body of `length_bytes` that must be `expected`; `boundary` separates its parts.
    pub(super) fn new(expected: ExpectedBody, length_bytes: u64, boundary: Option<String>) -> Self {
        let content = match expected {
            ExpectedBody::Text | ExpectedBody::Nothing => Content::Text,
            ExpectedBody::Part {
                object,
                offset_bytes,
                ..
            } => Content::Part(object, offset_bytes),
            ExpectedBody::Parts { object, parts } => {
                let delimiter = format!("--{}", boundary.unwrap_or_default());
                Content::Parts(Box::new(Parts::new(object, parts.as_slice(), delimiter)))
            }
        };
        Self {
            content,
            done_bytes: 0,
            length_bytes,
        }
    }

    /// Text of `length_bytes`, not checked.
    pub(super) fn text(length_bytes: u64) -> Self {
        Self::new(ExpectedBody::Text, length_bytes, None)
    }

    /// Bytes still to come.
    pub(super) const fn left_bytes(&self) -> u64 {
        self.length_bytes - self.done_bytes
    }

    /// Takes the next bytes, at most `left_bytes`; returns how many of them are an object's.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<u64, Violation> {
        let at = self.done_bytes;
        self.done_bytes += bytes.len() as u64;
        match &mut self.content {
            Content::Text => Ok(0),
            Content::Part(object, offset_bytes) => {
                compare(object, *offset_bytes + at, bytes)?;
                Ok(bytes.len() as u64)
            }
            Content::Parts(parts) => {
                let verified = parts.handle_bytes(bytes)?;
                if self.done_bytes == self.length_bytes && !parts.is_over {
                    return Err("a multipart body that ends before its last part".to_owned());
                }
                Ok(verified)
            }
        }
    }
}

/// Compares bytes with those of an object from `at` on.
fn compare(object: &ObjectPlan, at: u64, bytes: &[u8]) -> Result<(), Violation> {
    let place = match object.later {
        Some(later) if later.change == Change::Unnoticed => {
            object.content.first_of_neither(later.content, at, bytes)
        }
        _ => object.content.first_difference(at, bytes),
    };
    match place {
        None => Ok(()),
        Some(place) => Err(format!(
            "wrong byte at offset {} of object {} ({} bytes)",
            at + place as u64,
            object.number,
            object.size_bytes
        )),
    }
}

/// A `multipart/byteranges` body.
#[derive(Debug)]
struct Parts {
    object: ObjectPlan,
    /// Offset and length of the parts to come, the last one first.
    ahead: Vec<(u64, u64)>,
    /// The part whose bytes come now: where they begin, and how many are left.
    data: Option<(u64, u64)>,
    /// The part whose lines come now.
    announced: Option<(u64, u64)>,
    line: Vec<u8>,
    delimiter: String,
    is_over: bool,
}

impl Parts {
    fn new(object: ObjectPlan, parts: &[(u64, u64)], delimiter: String) -> Self {
        debug_assert!(parts.len() <= PARTS_MAX);
        Self {
            object,
            ahead: parts.iter().rev().copied().collect(),
            data: None,
            announced: None,
            line: Vec::new(),
            delimiter,
            is_over: false,
        }
    }

    fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<u64, Violation> {
        let mut verified = 0;
        while !bytes.is_empty() {
            if let Some((at, left)) = self.data {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                compare(&self.object, at, &bytes[..count])?;
                verified += count as u64;
                let left = left - count as u64;
                self.data = (left > 0).then_some((at + count as u64, left));
                bytes = &bytes[count..];
                continue;
            }
            let end = bytes
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|place| place + 1);
            let (text, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.line.extend_from_slice(text);
            bytes = rest;
            if end.is_some() {
                let line = core::mem::take(&mut self.line);
                self.handle_line(&line)?;
            } else if self.line.len() > LINE_BYTES_MAX {
                return Err("a multipart body without lines".to_owned());
            }
        }
        Ok(verified)
    }

    fn handle_line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let line = core::str::from_utf8(line).unwrap_or("(not UTF-8)");
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(format!("multipart line {line:?}"));
        };
        if line.is_empty() {
            self.data = self.announced.take();
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix(self.delimiter.as_str()) {
            return match (rest, self.ahead.is_empty()) {
                ("", false) => Ok(()),
                ("--", true) => {
                    self.is_over = true;
                    Ok(())
                }
                _ => Err(format!(
                    "multipart delimiter {line:?}, {} ahead",
                    self.ahead.len()
                )),
            };
        }
        if let Some(range) = line.strip_prefix("Content-Range: ") {
            let (offset, length) = self.ahead.pop().ok_or("a part too many")?;
            let wanted = content_range(&self.object, offset, length);
            if range != wanted {
                return Err(format!("part {range:?}, expected {wanted:?}"));
            }
            self.announced = Some((offset, length));
            return Ok(());
        }
        match line.starts_with("Content-Type: ") {
            true => Ok(()),
            false => Err(format!("multipart line {line:?}")),
        }
    }
}

/// What `Content-Range` must say.
pub(super) fn content_range(object: &ObjectPlan, offset: u64, length: u64) -> String {
    format!(
        "bytes {offset}-{}/{}",
        offset + length - 1,
        object.size_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::{Body, Change, ExpectedBody, ObjectPlan};
    use crate::client::plan::{Later, PartList};
    use crate::content::Content;

    fn object(later: Option<(Change, Content)>) -> ObjectPlan {
        let later = later.map(|(change, content)| Later::once(change, content));
        ObjectPlan {
            number: 1,
            content: Content::new(9, 1, 0),
            later,
            size_bytes: 1000,
        }
    }

    fn bytes(content: Content, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        content.fill(offset, &mut bytes);
        bytes
    }

    fn read(body: ExpectedBody, stream: &[u8], step: usize) -> Result<u64, String> {
        let boundary = Some("B".to_owned());
        let mut body = Body::new(body, stream.len() as u64, boundary);
        stream
            .chunks(step)
            .map(|part| body.handle_bytes(part))
            .sum()
    }

    #[test]
    fn bytes_are_of_one_version_unless_nothing_shows_the_change() {
        let (first, second) = (Content::new(9, 1, 0), Content::new(9, 1, 1));
        let (old, new) = (bytes(first, 0, 1000), bytes(second, 0, 1000));
        let mixed = [&old[..300], &new[300..700], &old[700..]].concat();
        let mut wrong = mixed.clone();
        wrong[800] = !(old[800] & new[800]) & (old[800] ^ new[800] ^ 0xff);
        assert!(wrong[800] != old[800] && wrong[800] != new[800]);
        for (change, version, stream, is_right) in [
            (Change::Rewritten, 0, &old, true),
            (Change::Rewritten, 0, &new, false),
            (Change::Rewritten, 0, &mixed, false),
            (Change::Rewritten, 1, &new, true),
            (Change::Rewritten, 1, &old, false),
            (Change::Rewritten, 1, &mixed, false),
            (Change::Unnoticed, 0, &mixed, true),
            (Change::Unnoticed, 0, &wrong, false),
            // What was asked for after the change is of the new bytes only.
            (Change::Unnoticed, 1, &new, true),
            (Change::Unnoticed, 1, &mixed, false),
        ] {
            let object = object(Some((change, second)));
            let body = ExpectedBody::Part {
                object: object.at(version),
                offset_bytes: 0,
                length_bytes: 1000,
            };
            for step in [1, 100, 2000] {
                let judged = read(body, stream, step);
                assert_eq!(judged.is_ok(), is_right, "{change:?} {version}: {judged:?}");
            }
        }
    }

    #[test]
    fn several_parts_are_read_whole_or_refused() {
        let object = object(None);
        let parts = PartList::new(&[(5, 10), (900, 100)]);
        let expected = ExpectedBody::Parts { object, parts };
        let head = |range: &str| {
            format!(
                "\r\n--B\r\nContent-Type: video/mp4\r\nContent-Range: bytes {range}/1000\r\n\r\n"
            )
        };
        let (first, second) = (
            bytes(object.content, 5, 10),
            bytes(object.content, 900, 100),
        );
        let (one, two) = (head("5-14"), head("900-999"));
        let end = b"\r\n--B--\r\n";
        let whole = [one.as_bytes(), &first, two.as_bytes(), &second, end].concat();
        for step in [1, 7, 5000] {
            assert_eq!(read(expected, &whole, step), Ok(110));
            let swapped = [two.as_bytes(), &second, one.as_bytes(), &first, end].concat();
            assert!(read(expected, &swapped, step).is_err());
            let missing = [one.as_bytes(), &first, end].concat();
            assert!(read(expected, &missing, step).is_err());
            let endless = [one.as_bytes(), &first, two.as_bytes(), &second, b"\r\n"].concat();
            assert!(read(expected, &endless, step).is_err());
            let mut wrong = whole.clone();
            let place = one.len() + 3;
            wrong[place] ^= 1;
            assert!(read(expected, &wrong, step).is_err());
        }
    }
}
