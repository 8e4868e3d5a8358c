//! Secure links, as nginx's `ngx_http_secure_link_module` has them: the MD5 hash, in the alphabet of base64url
//! (RFC 4648 s5) with or without padding, of an expression such as `$secure_link_expires$uri$remote_addr $key`.
//!
//! It refuses expressions without `$uri` and `$key`, since such a link would open every path, or none needed a
//! secret. Bounds: [`PIECES_MAX`].

use std::io::Write as _;

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;

use super::{Asked, Audience, LinkKey, decimal};
use crate::template::{self, Piece};

/// Most pieces of an expression.
const PIECES_MAX: usize = 16;

/// What is hashed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expression(Vec<Piece<Variable>>);

/// Why something is no expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionProblem {
    /// A variable other than `$secure_link_expires`, `$uri`, `$remote_addr` and `$key`.
    #[error("unknown variable")]
    Variable,
    /// `$uri` or `$key` is missing.
    #[error("$uri or $key is missing")]
    Missing,
    /// More than 16 pieces.
    #[error("too long")]
    TooLong,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variable {
    Expires,
    Path,
    Source,
    Key,
}

const VARIABLES: [(&str, Variable); 4] = [
    ("$secure_link_expires", Variable::Expires),
    ("$uri", Variable::Path),
    ("$remote_addr", Variable::Source),
    ("$key", Variable::Key),
];

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`ExpressionProblem`].
    pub fn parse(text: &str) -> Result<Self, ExpressionProblem> {
        let pieces = template::split(text, &VARIABLES).ok_or(ExpressionProblem::Variable)?;
        if pieces.len() > PIECES_MAX {
            return Err(ExpressionProblem::TooLong);
        }
        if !pieces.contains(&Piece::Variable(Variable::Path))
            || !pieces.contains(&Piece::Variable(Variable::Key))
        {
            return Err(ExpressionProblem::Missing);
        }
        Ok(Self(pieces))
    }

    /// Whom the link opens its path for; `None`: none of the keys made `hash`, or it has expired. One whose expression
    /// has no `$secure_link_expires` never does, as with nginx.
    pub(super) fn audience(
        &self,
        hash: &[u8],
        expires: &[u8],
        keys: &[LinkKey],
        asked: &Asked<'_>,
    ) -> Option<Audience> {
        let hash = without_padding(hash);
        let is_made = |key: &LinkKey| bool::from(self.hash(expires, key, asked).ct_eq(hash));
        let has = |variable| self.0.contains(&Piece::Variable(variable));
        let is_over = || decimal(expires).is_none_or(|expires| expires < asked.unix_seconds);
        let is_open = keys.iter().any(is_made) && !(has(Variable::Expires) && is_over());
        is_open.then_some(if has(Variable::Source) {
            Audience::Client
        } else {
            Audience::Url
        })
    }

    fn hash(&self, expires: &[u8], key: &LinkKey, asked: &Asked<'_>) -> [u8; HASH_DIGITS] {
        let mut hash = Md5::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => hash.update(text.as_bytes()),
                Piece::Variable(Variable::Expires) => hash.update(expires),
                Piece::Variable(Variable::Path) => hash.update(asked.path.as_bytes()),
                Piece::Variable(Variable::Source) => {
                    // Hashing takes every byte.
                    let _ = write!(hash, "{}", asked.source);
                }
                Piece::Variable(Variable::Key) => hash.update(&key.0),
            }
        }
        base64url(hash.finalize().into())
    }
}

/// Digits of an MD5 hash.
const HASH_DIGITS: usize = 22;

/// Most `=` at the end of a hash: those that fill up its last four digits (RFC 4648 s4).
const PADDING_MAX: usize = 2;

/// A hash without the padding that some signers leave at its end, as nginx takes it.
fn without_padding(hash: &[u8]) -> &[u8] {
    (0..PADDING_MAX).fold(hash, |hash, _| hash.strip_suffix(b"=").unwrap_or(hash))
}

/// RFC 4648 s5, without padding.
pub(super) fn base64url(hash: [u8; 16]) -> [u8; HASH_DIGITS] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // 22 digits of six bits are four bits more than a hash has.
    let bits = u128::from_be_bytes(hash);
    core::array::from_fn(|digit| {
        let shift = 122_usize.checked_sub(6 * digit);
        let six = shift.map_or(bits << 4, |shift| bits >> shift) & 63;
        ALPHABET[usize::try_from(six).unwrap_or_default()]
    })
}
