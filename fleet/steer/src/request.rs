//! What a request asks: its target, taken apart. Bytes from outside get a verdict, never a panic.
//!
//! Bounded by: [`TARGET_BYTES_MAX`] of the target, [`PATH_BYTES_MAX`] of the path in it, decoded.

use std::net::IpAddr;

use thiserror::Error;

/// Most bytes of a target, as sent.
pub const TARGET_BYTES_MAX: usize = 4096;

/// Most bytes of the path that is asked for, decoded.
pub const PATH_BYTES_MAX: usize = 1024;

/// Most bytes of the name of a zone.
const ZONE_BYTES_MAX: usize = placement::ZONE_BYTES_MAX;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A content steering manifest.
    Manifest(Question),
    /// The edges, as JSON.
    Resolve(Question),
    /// A redirect to the first of them, with what stands behind `/redirect`, as it was sent.
    Redirect(Question, String),
    /// Whether it answers, by members that are current or not.
    Health,
    /// Whether it wants to be asked.
    Ready,
    /// Its counters.
    Metrics,
}

/// A path, and who asks for it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Question {
    /// Decoded, with a slash at its beginning. Empty if none is asked for.
    pub path: String,
    /// The client, if the request names one in place of its own address.
    pub client: Option<IpAddr>,
    /// The zone, if the request names one in place of that of its network.
    pub zone: Option<String>,
}

/// Why a target is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// More than [`TARGET_BYTES_MAX`].
    #[error("the target has more than {TARGET_BYTES_MAX} bytes")]
    TooLong,
    /// A path of none of the services.
    #[error("there is /steer?path=, /resolve?path=, /redirect/PATH, /health, /ready and /metrics")]
    Unknown,
    /// `%` without two hexadecimal digits, or not UTF-8.
    #[error("the target is not percent-encoded UTF-8")]
    Encoding,
    /// No `path`, where one is needed.
    #[error("a path is wanted: /resolve?path=/film/master.m3u8")]
    NoPath,
    /// A path with a component `..`, a control character, or too many bytes.
    #[error("the path is none: at most {PATH_BYTES_MAX} bytes, no .. and no control characters")]
    Path,
    /// `client` is no address.
    #[error("client is no address")]
    Client,
    /// `zone` is no name.
    #[error("zone is no name of a zone")]
    Zone,
}

/// Takes a target apart.
///
/// # Errors
/// Why it is refused.
pub fn parse(target: &str) -> Result<Asked, TargetError> {
    if target.len() > TARGET_BYTES_MAX {
        return Err(TargetError::TooLong);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match path {
        "/steer" => Ok(Asked::Manifest(question(query)?)),
        "/resolve" => {
            let question = question(query)?;
            if question.path.is_empty() {
                return Err(TargetError::NoPath);
            }
            Ok(Asked::Resolve(question))
        }
        "/health" => Ok(Asked::Health),
        "/ready" => Ok(Asked::Ready),
        "/metrics" => Ok(Asked::Metrics),
        _ => {
            let behind = path
                .strip_prefix("/redirect")
                .filter(|rest| rest.starts_with('/'));
            let behind = behind.ok_or(TargetError::Unknown)?;
            let question = Question {
                path: checked(&decoded(behind, false)?)?,
                ..Question::default()
            };
            // The query is the edge's: a signature, say.
            let rest = &target["/redirect".len()..];
            Ok(Asked::Redirect(question, rest.to_owned()))
        }
    }
}

/// `path`, `client` and `zone` of a query. What else players add is passed over; of what comes twice the first counts.
fn question(query: &str) -> Result<Question, TargetError> {
    let (mut path, mut client, mut zone) = (None, None, None);
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "path" => &mut path,
            "client" => &mut client,
            "zone" => &mut zone,
            _ => continue,
        };
        if place.is_none() {
            *place = Some(decoded(value, true)?);
        }
    }
    let path = path.filter(|it| !it.is_empty());
    let client = client.map(|it| it.parse().map_err(|_| TargetError::Client));
    let is_zone = |it: &String| it.len() <= ZONE_BYTES_MAX && !it.contains(char::is_control);
    if zone.as_ref().is_some_and(|it| !is_zone(it)) {
        return Err(TargetError::Zone);
    }
    Ok(Question {
        path: path.map(|it| checked(&it)).transpose()?.unwrap_or_default(),
        client: client.transpose()?,
        zone,
    })
}

/// A path that could be an object's, with one slash at its beginning.
fn checked(path: &str) -> Result<String, TargetError> {
    let path = path.trim_start_matches('/');
    let is_right = path.len() < PATH_BYTES_MAX
        && !path.contains(char::is_control)
        && path.split('/').all(|component| component != "..");
    is_right
        .then(|| format!("/{path}"))
        .ok_or(TargetError::Path)
}

/// Percent-decoded text; in a query `+` is a space.
fn decoded(text: &str, is_query: bool) -> Result<String, TargetError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|it| char::from(it).to_digit(16));
                let pair = digit().zip(digit()).ok_or(TargetError::Encoding)?;
                u8::try_from(pair.0 * 16 + pair.1).expect("invariant: two hexadecimal digits")
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| TargetError::Encoding)
}

/// A text as the value of a query's argument.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(path: &str) -> Question {
        Question {
            path: path.to_owned(),
            ..Question::default()
        }
    }

    #[test]
    fn targets_are_taken_apart() {
        assert_eq!(parse("/steer"), Ok(Asked::Manifest(Question::default())));
        let target = "/steer?_HLS_pathway=%22a%22&path=%2Ffilm%2Fa+b.m3u8&_HLS_throughput=5&path=x";
        assert_eq!(parse(target), Ok(Asked::Manifest(asked("/film/a b.m3u8"))));
        let question = Question {
            path: "/film".into(),
            client: Some("2001:db8::1".parse().unwrap()),
            zone: Some("fra".into()),
        };
        let target = "/resolve?zone=fra&client=2001:db8::1&path=film";
        assert_eq!(parse(target), Ok(Asked::Resolve(question)));
        let target = "/redirect/film/a%20b+c.ts?token=a%2Fb";
        let behind = "/film/a%20b+c.ts?token=a%2Fb".to_owned();
        assert_eq!(
            parse(target),
            Ok(Asked::Redirect(asked("/film/a b+c.ts"), behind))
        );
        assert_eq!(parse("/health?x"), Ok(Asked::Health));
        assert_eq!(parse("/ready"), Ok(Asked::Ready));
        assert_eq!(parse("/metrics"), Ok(Asked::Metrics));
    }

    #[test]
    fn what_is_refused_says_why() {
        for (target, error) in [
            ("", TargetError::Unknown),
            ("*", TargetError::Unknown),
            ("/steering", TargetError::Unknown),
            ("/redirect", TargetError::Unknown),
            ("/redirected/a", TargetError::Unknown),
            ("/resolve", TargetError::NoPath),
            ("/resolve?path=", TargetError::NoPath),
            ("/resolve?path=%", TargetError::Encoding),
            ("/resolve?path=%+1", TargetError::Encoding),
            ("/resolve?path=%ff", TargetError::Encoding),
            ("/resolve?path=a/../b", TargetError::Path),
            ("/resolve?path=a%00", TargetError::Path),
            ("/redirect/a/%2e%2e/b", TargetError::Path),
            ("/steer?client=a", TargetError::Client),
            ("/steer?zone=%0a", TargetError::Zone),
        ] {
            assert_eq!(parse(target), Err(error), "{target}");
        }
    }

    #[test]
    fn targets_and_paths_have_limits_on_both_sides() {
        let padded = |bytes: usize| {
            let start = "/steer?path=a&x=";
            format!("{start}{}", "x".repeat(bytes - start.len()))
        };
        assert!(parse(&padded(TARGET_BYTES_MAX)).is_ok());
        assert_eq!(
            parse(&padded(TARGET_BYTES_MAX + 1)),
            Err(TargetError::TooLong)
        );
        let path = "a".repeat(PATH_BYTES_MAX - 1);
        assert!(parse(&format!("/steer?path={path}")).is_ok());
        assert_eq!(
            parse(&format!("/steer?path=a{path}")),
            Err(TargetError::Path)
        );
    }

    proptest! {
        #[test]
        fn whatever_is_asked_gets_a_verdict(target in "[/a-z?&=%+.0-9]{0,60}|.{0,60}|/(steer|resolve|redirect/).{0,60}") {
            if let Ok(Asked::Manifest(it) | Asked::Resolve(it) | Asked::Redirect(it, _)) = parse(&target) {
                prop_assert!(it.path.len() <= PATH_BYTES_MAX);
                prop_assert!(it.path.is_empty() || it.path.starts_with('/'));
                prop_assert!(!it.path.contains(char::is_control));
                prop_assert!(!it.path.split('/').any(|component| component == ".."));
            }
        }

        #[test]
        fn what_is_encoded_is_decoded(path in "[^\\p{C}]{1,40}") {
            prop_assume!(path.split('/').all(|component| component != ".."));
            let wanted = format!("/{}", path.trim_start_matches('/'));
            let Ok(Asked::Manifest(it)) = parse(&format!("/steer?path={}", encoded(&path))) else {
                panic!("{path}");
            };
            prop_assert_eq!(it.path, wanted);
        }
    }
}
