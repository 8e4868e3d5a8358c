//! Header fields that the operator adds to replies (`--header`).
//!
//! They are checked once, at start, so that nothing unchecked can reach a reply: the grammar of
//! RFC 9110 s5, and no field that the server writes itself, because a second one would
//! contradict it or break the framing. Bounded by [`EXTRA_FIELDS_BYTES_MAX`].

use core::fmt;

use crate::request::is_token_byte;

/// Most bytes of all added fields together, each with its colon, space and line end.
pub const EXTRA_FIELDS_BYTES_MAX: usize = 4096;

/// Fields that frame the message or that the server writes itself.
const RESERVED: [&str; 19] = [
    "accept-ranges",
    "allow",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "location",
    "proxy-connection",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that the server writes itself when replies are for pages of any origin.
const RESERVED_WITH_CORS: [&str; 2] = [
    "access-control-allow-origin",
    "access-control-expose-headers",
];

/// Fields added to every 200, 206, 301 and 304.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraFields {
    /// Whole field lines.
    text: String,
    has_cache_control: bool,
    has_cors: bool,
}

/// Why a field cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldProblem {
    /// There is no colon, or its name is not a token (RFC 9110 s5.1).
    Name,
    /// Its value is empty, or has a control character (RFC 9110 s5.5).
    Value,
    /// The server writes this field itself.
    Reserved,
    /// All together are longer than [`EXTRA_FIELDS_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("not a field name with a colon behind it"),
            Self::Value => f.write_str("the value is empty or has a control character"),
            Self::Reserved => f.write_str("the server writes this field itself"),
            Self::TooLong => write!(
                f,
                "all added fields together are longer than {EXTRA_FIELDS_BYTES_MAX} bytes"
            ),
        }
    }
}

impl ExtraFields {
    /// Adds a field, written `Name: value`. Spaces and tabs around the value are no part of it.
    ///
    /// # Errors
    /// What is wrong with it; it is not added then.
    pub fn push(&mut self, line: &str) -> Result<(), FieldProblem> {
        let (name, value) = line.split_once(':').ok_or(FieldProblem::Name)?;
        let value = value.trim_matches([' ', '\t']);
        if name.is_empty() || !name.bytes().all(is_token_byte) {
            return Err(FieldProblem::Name);
        }
        let belongs = |byte: u8| byte == b'\t' || !byte.is_ascii_control();
        if value.is_empty() || !value.bytes().all(belongs) {
            return Err(FieldProblem::Value);
        }
        let is_one_of = |names: &[&str]| names.iter().any(|it| name.eq_ignore_ascii_case(it));
        if is_one_of(&RESERVED) {
            return Err(FieldProblem::Reserved);
        }
        let line_bytes = name.len() + ": ".len() + value.len() + "\r\n".len();
        if self.text.len() + line_bytes > EXTRA_FIELDS_BYTES_MAX {
            return Err(FieldProblem::TooLong);
        }
        for part in [name, ": ", value, "\r\n"] {
            self.text.push_str(part);
        }
        self.has_cache_control |= name.eq_ignore_ascii_case("cache-control");
        self.has_cors |= is_one_of(&RESERVED_WITH_CORS);
        Ok(())
    }

    /// Whether one of them is written by the server itself where [`crate::ReplyConfig::cors`] is
    /// on: the two exclude each other.
    #[must_use]
    pub const fn conflicts_with_cors(&self) -> bool {
        self.has_cors
    }

    /// Whether one of them is `Cache-Control`, which replaces the default.
    pub(crate) const fn has_cache_control(&self) -> bool {
        self.has_cache_control
    }

    /// Whole field lines.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<String, FieldProblem> {
        let mut fields = ExtraFields::default();
        fields.push(line).map(|()| fields.as_str().to_owned())
    }

    #[test]
    fn fields_are_those_of_the_grammar() {
        for (line, text) in [
            ("X-A: b", "X-A: b\r\n"),
            ("X-A:b", "X-A: b\r\n"),
            ("X-A: \t b c \t", "X-A: b c\r\n"),
            ("X: a:b", "X: a:b\r\n"),
            ("X: a\tb", "X: a\tb\r\n"),
            ("X: é", "X: é\r\n"),
            ("!#$%&'*+-.^_`|~9z: 1", "!#$%&'*+-.^_`|~9z: 1\r\n"),
            (
                "Strict-Transport-Security: max-age=1",
                "Strict-Transport-Security: max-age=1\r\n",
            ),
        ] {
            assert_eq!(check(line).as_deref(), Ok(text), "{line:?}");
        }
    }

    #[test]
    fn invalid_fields_are_refused() {
        for (line, problem) in [
            ("", FieldProblem::Name),
            ("X", FieldProblem::Name),
            (": b", FieldProblem::Name),
            ("X : b", FieldProblem::Name),
            (" X: b", FieldProblem::Name),
            ("X Y: b", FieldProblem::Name),
            ("X\r\nY: b", FieldProblem::Name),
            ("É: b", FieldProblem::Name),
            ("X(: b", FieldProblem::Name),
            ("X:", FieldProblem::Value),
            ("X: \t", FieldProblem::Value),
            ("X: a\r\nY: b", FieldProblem::Value),
            ("X: a\nb", FieldProblem::Value),
            ("X: a\rb", FieldProblem::Value),
            ("X: a\0b", FieldProblem::Value),
            ("X: a\x7fb", FieldProblem::Value),
            ("X: a\x1bb", FieldProblem::Value),
            ("Content-Length: 1", FieldProblem::Reserved),
            ("TRANSFER-ENCODING: chunked", FieldProblem::Reserved),
            ("connection: close", FieldProblem::Reserved),
            ("Content-Type: a/b", FieldProblem::Reserved),
            ("Date: x", FieldProblem::Reserved),
            ("ETag: \"x\"", FieldProblem::Reserved),
        ] {
            assert_eq!(check(line), Err(problem), "{line:?}");
        }
        for name in RESERVED {
            assert_eq!(check(&format!("{name}: x")), Err(FieldProblem::Reserved));
        }
    }

    #[test]
    fn all_together_have_a_limit() {
        let line = |bytes: usize| format!("X: {}", "v".repeat(bytes - "X: \r\n".len()));
        let mut fields = ExtraFields::default();
        fields.push(&line(96)).unwrap();
        assert_eq!(
            fields.push(&line(EXTRA_FIELDS_BYTES_MAX - 95)),
            Err(FieldProblem::TooLong)
        );
        fields.push(&line(EXTRA_FIELDS_BYTES_MAX - 96)).unwrap();
        assert_eq!(fields.as_str().len(), EXTRA_FIELDS_BYTES_MAX);
    }

    #[test]
    fn fields_that_replace_ours_are_detected() {
        let mut fields = ExtraFields::default();
        fields.push("X: y").unwrap();
        assert!(!fields.has_cache_control() && !fields.conflicts_with_cors());
        fields.push("cache-control: no-store").unwrap();
        assert!(fields.has_cache_control() && !fields.conflicts_with_cors());
        fields
            .push("Access-Control-Allow-Origin: https://a.example")
            .unwrap();
        assert!(fields.conflicts_with_cors());
    }
}
