//! Signed links: whether a request carries the proof that its path may be served to it now.
//!
//! Two forms. A **token** (`token.rs`) is signed by HMAC-SHA-256, allows all paths of a pattern until it expires, and
//! is in the query, at the front of the path, or in a cookie, so that the links of a playlist need none of their
//! own. A **secure link** (`secure_link.rs`) is nginx's: an MD5 hash of the path, in the query.
//!
//! Every key is tried: of two, the new one signs and the old one is known until its last link has expired.
//! Digests are compared in constant time, by `verify_slice` of the crate `hmac` and `ct_eq` of `subtle`; what a link
//! allows is looked at only if its digest is right.
//!
//! It refuses everything that it cannot read as the signer wrote it. Bounds: [`KEYS_MAX`], [`KEY_BYTES_MAX`]; a
//! request has at most three tokens, and each is hashed twice for each key at most.

mod secure_link;
mod token;

use std::borrow::Cow;
use std::net::IpAddr;

pub use secure_link::{Expression, ExpressionProblem};

/// Most keys of a rule.
pub const KEYS_MAX: usize = 4;
/// Longest key, bytes: the block of SHA-256.
pub const KEY_BYTES_MAX: usize = 64;

/// A secret that links are signed by. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkKey(Box<[u8]>);

impl LinkKey {
    /// `None`: it is empty, or longer than [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=KEY_BYTES_MAX)
            .contains(&bytes.len())
            .then(|| Self(bytes.into()))
    }

    /// A key in hexadecimal digits.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = bytes.get_mut(..digits.len() / 2)?;
        decode_hex(digits.as_bytes(), bytes).then(|| Self::new(bytes))?
    }
}

impl core::fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("LinkKey")
    }
}

/// How links are signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkForm {
    /// By tokens of this name: that of the query's parameter and of the cookie.
    Token(Box<str>),
    /// As nginx's `secure_link` has it.
    SecureLink {
        /// The query's parameter with the hash.
        hash_name: Box<str>,
        /// The query's parameter with the time, Unix seconds, up to which the link holds.
        expires_name: Box<str>,
        /// What is hashed.
        expression: Expression,
    },
}

/// What proves that a path may be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Links {
    form: LinkForm,
    keys: Vec<LinkKey>,
}

/// What a link is checked by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// Without a token at its front.
    pub(crate) path: &'a str,
    /// The token that was at the path's front.
    pub(crate) path_token: Option<&'a str>,
    pub(crate) query: &'a [u8],
    pub(crate) cookie: &'a [u8],
    pub(crate) source: IpAddr,
    pub(crate) unix_seconds: u64,
}

/// Whom a link that is right opens its path for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// Everybody who has the URL: the proof is in it, and names no address.
    Url,
    /// This client: the proof is a cookie, or for one address.
    Client,
}

impl Links {
    /// # Panics
    /// Without a key, or with more than [`KEYS_MAX`]: the caller refuses them first.
    #[must_use]
    pub fn new(form: LinkForm, keys: Vec<LinkKey>) -> Self {
        assert!((1..=KEYS_MAX).contains(&keys.len()), "{} keys", keys.len());
        Self { form, keys }
    }

    /// The name of its tokens.
    pub(crate) fn token_name(&self) -> Option<&str> {
        match &self.form {
            LinkForm::Token(name) => Some(name),
            LinkForm::SecureLink { .. } => None,
        }
    }

    /// For whom the path may be served; `None`: it may not. What is in the URL is looked at first.
    pub(crate) fn audience(&self, asked: &Asked<'_>) -> Option<Audience> {
        match &self.form {
            LinkForm::Token(name) => {
                let in_path = asked.path_token.map(str::as_bytes);
                let in_query = parameter(asked.query, name);
                let mut in_url = [in_path, in_query].into_iter().flatten();
                let audience = |token| token::audience(token, &self.keys, asked);
                in_url.find_map(audience).or_else(|| {
                    let opened = cookie(asked.cookie, name).and_then(audience);
                    opened.map(|_| Audience::Client)
                })
            }
            LinkForm::SecureLink {
                hash_name,
                expires_name,
                expression,
            } => {
                let hash = argument(asked.query, hash_name).unwrap_or_default();
                let expires = argument(asked.query, expires_name).unwrap_or_default();
                expression.audience(&decoded(hash), &decoded(expires), &self.keys, asked)
            }
        }
    }
}

/// Splits the token off the front of a path, `/NAME=TOKEN/rest`: the token and `/rest`.
pub(crate) fn split_path<'a>(path: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let behind = path.strip_prefix('/')?.strip_prefix(name)?;
    token::split_front(behind.strip_prefix('=')?)
}

/// The value of the first parameter of that name in a query, not decoded.
fn parameter<'a>(query: &'a [u8], name: &str) -> Option<&'a [u8]> {
    value(query.split(|&byte| byte == b'&'), name)
}

/// The same with letters of the name in any case, as nginx's `$arg_NAME` finds it.
fn argument<'a>(query: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut pairs = query.split(|&byte| byte == b'&');
    pairs.find_map(|pair| {
        let (found, value) = pair.split_at_checked(name.len())?;
        let value = value.strip_prefix(b"=")?;
        found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
    })
}

/// The value of the first cookie of that name (RFC 6265 s5.4).
fn cookie<'a>(field: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let pairs = field.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    value(pairs, name)
}

fn value<'a>(mut pairs: impl Iterator<Item = &'a [u8]>, name: &str) -> Option<&'a [u8]> {
    pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Percent-decodes once what can be decoded (RFC 3986 s2.1).
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let mut byte = [0];
        match behind.split_at_checked(2) {
            Some((digits, after)) if *first == b'%' && decode_hex(digits, &mut byte) => {
                bytes.push(byte[0]);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    Cow::Owned(bytes)
}

/// Decodes hexadecimal digits; whether there were just so many.
fn decode_hex(digits: &[u8], bytes: &mut [u8]) -> bool {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pairs = digits.chunks_exact(2);
    if digits.len() != 2 * bytes.len() {
        return false;
    }
    pairs.zip(bytes).all(|(pair, byte)| {
        let value = match pair {
            [high, low] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        let value = value.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        value.is_some_and(|value| {
            *byte = value;
            true
        })
    })
}

/// A number of decimal digits and nothing else.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = core::str::from_utf8(text).ok().filter(|_| is_number)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests;
