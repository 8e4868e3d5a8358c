//! Which pages of other origins may read replies (the Fetch standard, "CORS protocol").
//!
//! It refuses an origin that no browser would send. Bounds: [`ORIGIN_BYTES_MAX`], [`ORIGINS_MAX`].

use crate::authority::is_authority;

/// Longest origin, bytes: the longest name of DNS with a scheme and a port.
pub const ORIGIN_BYTES_MAX: usize = 280;
/// Most origins in a list.
pub const ORIGINS_MAX: usize = 64;

/// Pages of which origins may read replies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Cors {
    /// Of none.
    #[default]
    Off,
    /// Of all (`*`), which are then told nothing about a user.
    AnyOrigin,
    /// Of these. The reply says which one, so that it depends on `Origin`.
    Origins(Origins),
}

/// Origins whose pages may read replies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origins {
    origins: Vec<Box<str>>,
    has_credentials: bool,
}

/// Why something is no list of origins.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OriginProblem {
    /// Not `scheme://host` or `scheme://host:port`, in lower case, as browsers write it (RFC 6454 s6.2).
    #[error("{0:?} is not an origin")]
    Syntax(Box<str>),
    /// An origin with a slash behind it, which browsers do not send.
    #[error("{0:?} is not an origin, since it ends in a slash")]
    Slash(Box<str>),
    /// More than [`ORIGINS_MAX`].
    #[error("more than {ORIGINS_MAX} origins")]
    TooMany,
}

impl Origins {
    /// `has_credentials`: whether a page may send cookies along (`Access-Control-Allow-Credentials`).
    ///
    /// # Errors
    /// [`OriginProblem`].
    pub fn new(origins: &[String], has_credentials: bool) -> Result<Self, OriginProblem> {
        if origins.len() > ORIGINS_MAX {
            return Err(OriginProblem::TooMany);
        }
        if let Some(wrong) = origins.iter().find(|origin| !is_origin(origin)) {
            let is_slash_more = wrong.strip_suffix('/').is_some_and(is_origin);
            let wrong = wrong.as_str().into();
            return Err(if is_slash_more {
                OriginProblem::Slash(wrong)
            } else {
                OriginProblem::Syntax(wrong)
            });
        }
        Ok(Self {
            origins: origins
                .iter()
                .map(|origin| origin.as_str().into())
                .collect(),
            has_credentials,
        })
    }
}

/// What a reply says of the origin that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant<'a> {
    /// `Access-Control-Allow-Origin`.
    pub(crate) origin: Option<&'a str>,
    /// `Access-Control-Allow-Credentials: true`.
    pub(crate) has_credentials: bool,
    /// `Vary: Origin`.
    pub(crate) varies: bool,
}

impl Cors {
    /// What a reply says to a page of `origin`, the value of the field of that name.
    pub(crate) fn grant(&self, origin: Option<&[u8]>) -> Grant<'_> {
        let list = match self {
            Self::Off => return Grant::default(),
            Self::AnyOrigin => {
                return Grant {
                    origin: Some("*"),
                    ..Grant::default()
                };
            }
            Self::Origins(list) => list,
        };
        let mut known = list.origins.iter();
        let known = known.find(|known| origin == Some(known.as_bytes()));
        Grant {
            origin: known.map(|known| &**known),
            has_credentials: known.is_some() && list.has_credentials,
            varies: true,
        }
    }
}

/// RFC 6454 s6.2: as a browser serialises it.
fn is_origin(text: &str) -> bool {
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let authority = text.split_once("://").filter(|(scheme, _)| {
        let mut bytes = scheme.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_lowercase())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    is_lower
        && text.len() <= ORIGIN_BYTES_MAX
        && authority.is_some_and(|(_, authority)| is_authority(authority.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(origins: &[&str]) -> Result<Origins, OriginProblem> {
        let origins: Vec<String> = origins.iter().map(|&origin| origin.into()).collect();
        Origins::new(&origins, true)
    }

    #[test]
    fn origins_are_as_browsers_write_them() {
        let longest = format!("https://{}", "a".repeat(ORIGIN_BYTES_MAX - 8));
        for origin in [
            "https://a.example",
            "http://[::1]:8080",
            "capacitor://localhost",
            &longest,
        ] {
            assert!(list(&[origin]).is_ok(), "{origin}");
        }
        let longer = format!("{longest}a");
        for origin in [
            "",
            "*",
            "a.example",
            "https://",
            "https://A.example",
            "https://a/b",
            "https://a//",
            "a.example/",
            "1s://a",
            &longer,
        ] {
            let problem = OriginProblem::Syntax(origin.into());
            assert_eq!(list(&["https://a", origin]), Err(problem), "{origin}");
        }
        assert_eq!(
            list(&["https://a", "https://a.example/"]),
            Err(OriginProblem::Slash("https://a.example/".into()))
        );
        assert!(list(&["https://a"; ORIGINS_MAX]).is_ok());
        assert_eq!(
            list(&["https://a"; ORIGINS_MAX + 1]),
            Err(OriginProblem::TooMany)
        );
    }

    #[test]
    fn a_listed_origin_is_named_and_no_other() {
        let cors = Cors::Origins(list(&["https://a.example", "https://b.example"]).unwrap());
        let granted = cors.grant(Some(b"https://b.example"));
        assert_eq!(granted.origin, Some("https://b.example"));
        assert!(granted.has_credentials && granted.varies);
        for other in [
            None,
            Some(&b"https://c.example"[..]),
            Some(b"null"),
            Some(b"*"),
        ] {
            let refused = cors.grant(other);
            assert_eq!((refused.origin, refused.has_credentials), (None, false));
            assert!(
                refused.varies,
                "a cache must not give it to a page of the list"
            );
        }
        assert_eq!(Cors::AnyOrigin.grant(None).origin, Some("*"));
        assert_eq!(
            Cors::Off.grant(Some(b"https://a.example")),
            Grant::default()
        );
    }
}
