//! The authority of a target URI, as `Host` and absolute-form targets carry it (RFC 9112 s3.2,
//! RFC 3986 s3.2): `uri-host [ ":" port ]`.
//!
//! It accepts that grammar and nothing else: no user information (an error by RFC 9110 s4.2.4), no
//! second port, no unclosed bracket, nothing but a port behind a bracket. It does not check whether
//! such a host exists. Bounded by the length of the request head.

use core::net::Ipv6Addr;

/// Whether `value` is `uri-host [ ":" port ]` with a host that is not empty. RFC 9110 s4.2.1: "A
/// recipient that processes such a URI reference [an http URI with an empty host] MUST reject it
/// as invalid."
pub(crate) fn is_authority(value: &[u8]) -> bool {
    let (is_host, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else {
                return false;
            };
            let (literal, behind) = rest.split_at(end);
            (is_ip_literal(literal), behind.get(1..).unwrap_or_default())
        }
        _ => {
            let end = value.iter().position(|&byte| byte == b':');
            let (name, behind) = value.split_at(end.unwrap_or(value.len()));
            (is_registered_name(name), behind)
        }
    };
    is_host && is_port(port)
}

/// RFC 3986 s3.2.3: `[ ":" *DIGIT ]`.
fn is_port(behind_host: &[u8]) -> bool {
    match behind_host {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// RFC 3986 s3.2.2: `*( unreserved / pct-encoded / sub-delims )`, here at least one. IPv4
/// addresses are among these.
fn is_registered_name(name: &[u8]) -> bool {
    let mut rest = name;
    loop {
        rest = match rest {
            [] => return !name.is_empty(),
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                rest
            }
            [byte, rest @ ..] if is_unreserved(*byte) || is_sub_delimiter(*byte) => rest,
            _ => return false,
        };
    }
}

/// RFC 3986 s3.2.2: the address between the brackets. A zone (RFC 6874) has a meaning for the
/// client only, and is refused.
fn is_ip_literal(literal: &[u8]) -> bool {
    if let [b'v' | b'V', future @ ..] = literal {
        return is_future_address(future);
    }
    core::str::from_utf8(literal).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// RFC 3986 s3.2.2: `1*HEXDIG "." 1*( unreserved / sub-delims / ":" )`, behind the `v`.
fn is_future_address(text: &[u8]) -> bool {
    let Some(dot) = text.iter().position(|&byte| byte == b'.') else {
        return false;
    };
    let (version, address) = text.split_at(dot);
    let address = address.get(1..).unwrap_or_default();
    let belongs = |byte: &u8| is_unreserved(*byte) || is_sub_delimiter(*byte) || *byte == b':';
    !version.is_empty()
        && version.iter().all(u8::is_ascii_hexdigit)
        && !address.is_empty()
        && address.iter().all(belongs)
}

/// RFC 3986 s2.3.
pub(crate) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// RFC 3986 s2.2.
pub(crate) fn is_sub_delimiter(byte: u8) -> bool {
    b"!$&'()*+,;=".contains(&byte)
}

/// Valid and invalid authorities, for the tests of all places where they appear.
#[cfg(test)]
pub(crate) mod samples {
    pub(crate) const RIGHT: [&str; 20] = [
        "h",
        "h:",
        "h:80",
        "h:0080",
        "example.com",
        "example.com.:8080",
        "EXAMPLE.com",
        "10.77.0.2",
        "10.77.0.2:80",
        "999.1.1.1",
        "under_score",
        "%41%4a.example",
        "a!$&'()*+,;=~-._z",
        "[::]",
        "[::1]",
        "[::1]:8080",
        "[2001:DB8::10]:",
        "[::ffff:10.0.0.1]:1",
        "[v1.a:b]",
        "[vF.x]:80",
    ];
    pub(crate) const WRONG: [&str; 35] = [
        ":",
        ":80",
        "h:80:80",
        "h::80",
        "h:80x",
        "h:-1",
        "h:+1",
        "h: 80",
        "a b",
        "a\tb",
        "a\\b",
        "a/b",
        "a?b",
        "a#b",
        "u@h",
        "u:p@h",
        "a,b:c",
        "a\"b",
        "a<b",
        "a|b",
        "caf\u{e9}",
        "%",
        "%4",
        "%4g",
        "[",
        "]",
        "h]",
        "[::1",
        "::1",
        "[::1]]",
        "[::1]x",
        "[::1]80",
        "[::1]:80:80",
        "[]",
        "[10.0.0.1]",
    ];
    pub(crate) const WRONG_LITERALS: [&str; 8] = [
        "[::1%25eth0]",
        "[::1 ]",
        "[1::2::3]",
        "[12345::]",
        "[v.a]",
        "[v1.]",
        "[vg.a]",
        "[v1]",
    ];
}

#[cfg(test)]
mod tests {
    use super::is_authority;
    use super::samples::{RIGHT, WRONG, WRONG_LITERALS};

    #[test]
    fn authorities_are_those_of_the_grammar() {
        for value in RIGHT {
            assert!(is_authority(value.as_bytes()), "{value:?}");
        }
        for value in WRONG.into_iter().chain(WRONG_LITERALS).chain([""]) {
            assert!(!is_authority(value.as_bytes()), "{value:?}");
        }
    }
}
