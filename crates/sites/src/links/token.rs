//! Tokens: `exp=1764155000~acl=/vod/7/*~hmac=HEX`, the form that Akamai's edge servers and many signers know.
//!
//! | field | meaning |
//! |---|---|
//! | `exp` | Unix seconds up to which it holds; must be there |
//! | `acl` | paths it is for, joined by `!`; `*` stands for any bytes, `?` for one; must be there |
//! | `st` | Unix seconds from which it holds |
//! | `ip` | the client's address |
//! | others | mean nothing here, and are signed |
//! | `hmac` | HMAC-SHA-256 of all before it, without the `~`; the last field |
//!
//! It refuses tokens of which a field stands twice, and the form `url=`, whose hash covers what it doesn't have. A
//! signer may write its fields percent-encoded before it signs them, or after: the digest is compared with that of
//! the token as it came, then with that of the decoded one.

use std::net::IpAddr;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::{Asked, Audience, LinkKey, decimal, decode_hex, decoded};

/// Before the digest.
const DIGEST_FIELD: &str = "~hmac=";
/// Bytes of a SHA-256.
const DIGEST_BYTES: usize = 32;

/// Splits what begins with a token behind its digest: the token, and what follows, which begins with a slash.
pub(super) fn split_front(text: &str) -> Option<(&str, &str)> {
    let end = text.find(DIGEST_FIELD)? + DIGEST_FIELD.len() + 2 * DIGEST_BYTES;
    let (token, rest) = text.split_at_checked(end)?;
    rest.starts_with('/').then_some((token, rest))
}

/// Whom it opens the path for; `None`: none of the keys signed it, or it is for another path, client or time.
pub(super) fn audience(token: &[u8], keys: &[LinkKey], asked: &Asked<'_>) -> Option<Audience> {
    let plain = decoded(token);
    let is_signed = is_signed(token, keys) || *plain != *token && is_signed(&plain, keys);
    let fields = is_signed.then(|| Fields::parse(&plain))??;
    fields.allow(asked).then_some(match fields.source {
        Some(_) => Audience::Client,
        None => Audience::Url,
    })
}

fn is_signed(token: &[u8], keys: &[LinkKey]) -> bool {
    let field = DIGEST_FIELD.as_bytes();
    let at = token.windows(field.len()).position(|bytes| bytes == field);
    let Some((signed, digits)) = at.and_then(|at| token.split_at_checked(at)) else {
        return false;
    };
    let mut digest = [0; DIGEST_BYTES];
    let digits = digits.get(field.len()..).unwrap_or_default();
    decode_hex(digits, &mut digest) && keys.iter().any(|key| has_digest(signed, key, &digest))
}

fn has_digest(signed: &[u8], key: &LinkKey, digest: &[u8]) -> bool {
    let mac = Hmac::<Sha256>::new_from_slice(&key.0).ok();
    mac.is_some_and(|mac| mac.chain_update(signed).verify_slice(digest).is_ok())
}

/// What a token allows.
#[derive(Default)]
struct Fields<'a> {
    expires: Option<u64>,
    starts: Option<u64>,
    patterns: Option<&'a [u8]>,
    source: Option<IpAddr>,
}

impl<'a> Fields<'a> {
    /// `None`: something in it cannot be read.
    fn parse(token: &'a [u8]) -> Option<Self> {
        let mut fields = Self::default();
        for field in token.split(|&byte| byte == b'~') {
            let equals = field.iter().position(|&byte| byte == b'=')?;
            let (name, value) = (field.get(..equals)?, field.get(equals + 1..)?);
            let is_twice = match name {
                b"exp" => fields.expires.replace(decimal(value)?).is_some(),
                b"st" => fields.starts.replace(decimal(value)?).is_some(),
                b"acl" => fields.patterns.replace(value).is_some(),
                b"ip" => {
                    let source = core::str::from_utf8(value).ok()?.parse().ok()?;
                    fields.source.replace(source).is_some()
                }
                b"url" => return None,
                _ => false,
            };
            if is_twice {
                return None;
            }
        }
        Some(fields)
    }

    fn allow(&self, asked: &Asked<'_>) -> bool {
        let (Some(expires), Some(patterns)) = (self.expires, self.patterns) else {
            return false;
        };
        let path = asked.path.as_bytes();
        let mut patterns = patterns.split(|&byte| byte == b'!');
        asked.unix_seconds <= expires
            && self
                .starts
                .is_none_or(|starts| starts <= asked.unix_seconds)
            && self.source.is_none_or(|source| source == asked.source)
            && patterns.any(|pattern| matches(pattern, path))
    }
}

/// Whether a path is one of a pattern's. Only a signer's patterns get here, so that its time, which grows with the
/// product of both lengths, is not for others to spend.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut at, mut begun) = ((0, 0), None);
    loop {
        let (in_pattern, in_path) = at;
        match (pattern.get(in_pattern), path.get(in_path)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                begun = Some((in_pattern + 1, in_path));
                at = (in_pattern + 1, in_path);
            }
            (Some(b'?'), Some(_)) => at = (in_pattern + 1, in_path + 1),
            (Some(one), Some(other)) if one == other => at = (in_pattern + 1, in_path + 1),
            // The last `*` takes one byte more.
            _ => match begun {
                Some((behind, from)) if from < path.len() => {
                    begun = Some((behind, from + 1));
                    at = (behind, from + 1);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path) in [
            ("/a", "/a"),
            ("/*", "/"),
            ("/*", "/a/b.m3u8"),
            ("/a/*.m3u8", "/a/b/c.m3u8"),
            ("/a/*.m*8", "/a/b.m.8.m3u8"),
            ("/?/b", "/a/b"),
            ("*", ""),
            ("**", "/a"),
        ] {
            assert!(
                matches(pattern.as_bytes(), path.as_bytes()),
                "{pattern} {path}"
            );
        }
        for (pattern, path) in [
            ("", "/"),
            ("/a", "/a/"),
            ("/a", "/b"),
            ("/a/*", "/a"),
            ("/a/*", "/ab/c"),
            ("/a/*.m3u8", "/a/b.ts"),
            ("/?", "/"),
            ("/?/b", "/ab/b"),
        ] {
            assert!(
                !matches(pattern.as_bytes(), path.as_bytes()),
                "{pattern} {path}"
            );
        }
    }
}
