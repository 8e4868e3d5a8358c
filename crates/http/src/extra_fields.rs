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

/// Fields added to replies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraFields {
    /// Whole field lines for every 200, 206, 301 and 304.
    text: String,
    /// Whole field lines about pages of other origins, for every reply: a page's script sees no error
    /// without them, only that something failed.
    cors: String,
    /// Value of `Access-Control-Allow-Origin`.
    allow_origin: Option<String>,
    /// Values of `Access-Control-Expose-Headers`, joined.
    expose_headers: Option<String>,
    /// Whole field lines for the same replies as `text`, over TLS only.
    secure: String,
    has_cache_control: bool,
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
    /// A browser takes one of them only, and there is one already.
    Twice,
    /// All together are longer than [`EXTRA_FIELDS_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("not a field name with a colon behind it"),
            Self::Value => f.write_str("the value is empty or has a control character"),
            Self::Reserved => f.write_str("the server writes this field itself"),
            Self::Twice => f.write_str("given twice"),
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
        if self.bytes() + line_bytes > EXTRA_FIELDS_BYTES_MAX {
            return Err(FieldProblem::TooLong);
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let lines = if is("access-control-allow-origin") {
            return put_once(&mut self.allow_origin, value);
        } else if is("access-control-expose-headers") {
            let joined = self.expose_headers.get_or_insert_default();
            if !joined.is_empty() {
                joined.push_str(", ");
            }
            joined.push_str(value);
            return Ok(());
        } else if is("strict-transport-security") {
            // RFC 6797 s7.2: "An HSTS Host MUST NOT include the STS header field in HTTP responses
            // conveyed over non-secure transport."
            &mut self.secure
        } else if name
            .get(..CORS_PREFIX.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(CORS_PREFIX))
        {
            if has_field(&self.cors, name) {
                return Err(FieldProblem::Twice);
            }
            &mut self.cors
        } else {
            &mut self.text
        };
        for part in [name, ": ", value, "\r\n"] {
            lines.push_str(part);
        }
        self.has_cache_control |= name.eq_ignore_ascii_case("cache-control");
        Ok(())
    }

    /// Bytes of all, more or less.
    fn bytes(&self) -> usize {
        let named = |name: &str, value: &Option<String>| {
            value
                .as_ref()
                .map_or(0, |value| name.len() + ": \r\n".len() + value.len())
        };
        self.text.len()
            + self.cors.len()
            + self.secure.len()
            + named("access-control-allow-origin", &self.allow_origin)
            + named("access-control-expose-headers", &self.expose_headers)
    }

    /// Whether they let pages of every origin read replies with credentials, which browsers refuse
    /// (the Fetch standard, "CORS check"). `cors` is [`crate::ReplyConfig::cors`].
    #[must_use]
    pub fn has_credentials_for_any_origin(&self, cors: bool) -> bool {
        let is_any = self
            .allow_origin
            .as_deref()
            .map_or(cors, |origin| origin == "*");
        is_any && self.has_cors_field("Access-Control-Allow-Credentials")
    }

    /// Whether one of them is for replies over TLS only.
    #[must_use]
    pub const fn has_secure(&self) -> bool {
        !self.secure.is_empty()
    }

    /// The origin whose pages may read replies, or `*`.
    pub(crate) fn allow_origin(&self) -> Option<&str> {
        self.allow_origin.as_deref()
    }

    /// Fields that pages may read beside those always readable.
    pub(crate) fn expose_headers(&self) -> Option<&str> {
        self.expose_headers.as_deref()
    }

    /// Whole field lines for every reply.
    pub(crate) fn cors(&self) -> &str {
        &self.cors
    }

    /// Whether that field is among those for every reply.
    pub(crate) fn has_cors_field(&self, name: &str) -> bool {
        has_field(&self.cors, name)
    }

    /// Whole field lines for replies over TLS.
    pub(crate) fn secure(&self) -> &str {
        &self.secure
    }

    /// Whether one of them is `Cache-Control`, which replaces the default.
    pub(crate) const fn has_cache_control(&self) -> bool {
        self.has_cache_control
    }

    /// Whole field lines for replies with an object, and redirects to one.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// What the names of fields for every reply begin with.
const CORS_PREFIX: &str = "access-control-";

fn has_field(lines: &str, name: &str) -> bool {
    let mut names = lines.lines().filter_map(|line| line.split_once(':'));
    names.any(|(known, _)| known.eq_ignore_ascii_case(name))
}

fn put_once(slot: &mut Option<String>, value: &str) -> Result<(), FieldProblem> {
    match slot {
        Some(_) => Err(FieldProblem::Twice),
        None => {
            *slot = Some(value.to_owned());
            Ok(())
        }
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
    fn each_field_goes_where_it_belongs() {
        let mut fields = ExtraFields::default();
        fields.push("X: y").unwrap();
        assert!(!fields.has_cache_control() && !fields.has_secure());
        fields.push("cache-control: no-store").unwrap();
        assert!(fields.has_cache_control());
        fields.push("STRICT-Transport-Security: max-age=1").unwrap();
        assert!(fields.has_secure());
        assert_eq!(fields.as_str(), "X: y\r\ncache-control: no-store\r\n");
        assert_eq!(fields.secure(), "STRICT-Transport-Security: max-age=1\r\n");
        fields
            .push("Access-Control-Allow-Credentials: true")
            .unwrap();
        fields.push("Access-Control-Expose-Headers: X-One").unwrap();
        fields
            .push("access-control-expose-headers: X-Two, X-Three")
            .unwrap();
        assert_eq!(fields.cors(), "Access-Control-Allow-Credentials: true\r\n");
        assert_eq!(fields.expose_headers(), Some("X-One, X-Two, X-Three"));
        assert!(fields.has_credentials_for_any_origin(true));
        assert!(!fields.has_credentials_for_any_origin(false));
        fields
            .push("Access-Control-Allow-Origin: https://a.example")
            .unwrap();
        assert!(!fields.has_credentials_for_any_origin(true));
        for again in [
            "access-control-allow-origin: *",
            "Access-Control-Allow-CREDENTIALS: true",
        ] {
            assert_eq!(fields.push(again), Err(FieldProblem::Twice));
        }
        assert_eq!(fields.allow_origin(), Some("https://a.example"));
    }
}
