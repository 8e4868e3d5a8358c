//! The PROXY protocol, versions 1 and 2: what a balancer sends before a connection's first byte, to say whom it
//! forwards (HAProxy, *The PROXY protocol*, 2020/03/05).
//!
//! ```text
//!  PROXY TCP4 192.0.2.7 10.0.0.2 56324 443\r\n                            version 1, a line
//!  signature (12) │ version, command │ family │ length (2) │ addresses, more    version 2, binary
//! ```
//!
//! Of the addresses the source's is taken, and what follows them (TLVs) is passed over. Whether a client is believed
//! is not decided here.
//!
//! It refuses what is neither version. Bounds: [`LINE_BYTES_MAX`], [`PREFACE_BYTES_MAX`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most bytes of version 1, with the end of its line (s2.1).
pub const LINE_BYTES_MAX: usize = 107;
/// Most bytes of version 2, with all that it says beside addresses. Its length could say 65,551; nginx takes 4096.
pub const PREFACE_BYTES_MAX: usize = 4096;

/// Begins version 1.
const LINE_START: &[u8] = b"PROXY ";
/// Begins version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before its addresses.
const FIXED_BYTES: usize = 16;

/// What was found at the beginning of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preface {
    /// The beginning of one, if anything.
    Incomplete,
    /// A whole one.
    Complete {
        /// Who connected to the balancer; `None`: the balancer asks for itself, or does not know.
        source: Option<IpAddr>,
        /// Its length. What follows is the client's.
        bytes: usize,
    },
    /// Something else.
    Refused(PrefaceProblem),
}

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PrefaceProblem {
    /// It begins as neither version does.
    Signature,
    /// It is longer than [`LINE_BYTES_MAX`] or [`PREFACE_BYTES_MAX`].
    Length,
    /// A version or a command that there is not.
    Version,
    /// Its addresses are none, or are cut short.
    Addresses,
}

impl Preface {
    /// Reads the first bytes of a connection. What was incomplete is to be read again, from its beginning, with more.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let begins = |start: &[u8]| bytes.iter().zip(start).all(|(one, other)| one == other);
        if begins(LINE_START) {
            return line(bytes);
        }
        if begins(SIGNATURE) {
            return binary(bytes).unwrap_or(Self::Incomplete);
        }
        Self::Refused(PrefaceProblem::Signature)
    }
}

/// Version 1.
fn line(bytes: &[u8]) -> Preface {
    let within = bytes.get(..LINE_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        let is_cut = bytes.len() < LINE_BYTES_MAX;
        let refused = Preface::Refused(PrefaceProblem::Length);
        return if is_cut { Preface::Incomplete } else { refused };
    };
    let text = within.get(LINE_START.len()..end);
    let text = text.and_then(|text| core::str::from_utf8(text).ok());
    match text.and_then(source_of_line) {
        Some(source) => Preface::Complete {
            source,
            bytes: end + 2,
        },
        None => Preface::Refused(PrefaceProblem::Addresses),
    }
}

/// `TCP4 SOURCE DESTINATION PORT PORT`, or `UNKNOWN` and anything.
fn source_of_line(text: &str) -> Option<Option<IpAddr>> {
    let mut words = text.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let mut address = || {
        let word = words.next()?;
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (source, _) = (address()?, address()?);
    for _ in 0..2 {
        let port = words.next()?;
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        port.parse::<u16>().ok().filter(|_| is_number)?;
    }
    words.next().is_none().then(|| Some(source.to_canonical()))
}

/// Version 2; `None`: it is not whole.
fn binary(bytes: &[u8]) -> Option<Preface> {
    let &version_command = bytes.get(SIGNATURE.len())?;
    let is_forwarded = match version_command {
        0x20 => false,
        0x21 => true,
        _ => return Some(Preface::Refused(PrefaceProblem::Version)),
    };
    let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES)?;
    let &[.., family, high, low] = fixed else {
        return None;
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + length > PREFACE_BYTES_MAX {
        return Some(Preface::Refused(PrefaceProblem::Length));
    }
    let body = rest.get(..length)?;
    // Of other families nothing is known but the length.
    let source = match family {
        0x11 if is_forwarded => body
            .get(..12)
            .and_then(|body| body.first_chunk::<4>())
            .map(|octets| Some(IpAddr::from(*octets))),
        0x21 if is_forwarded => body
            .get(..36)
            .and_then(|body| body.first_chunk::<16>())
            .map(|octets| Some(IpAddr::from(*octets).to_canonical())),
        _ => Some(None),
    };
    Some(match source {
        Some(source) => Preface::Complete {
            source,
            bytes: FIXED_BYTES + length,
        },
        None => Preface::Refused(PrefaceProblem::Addresses),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 2 with this command, family, and bytes after the fixed ones.
    fn version_2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn complete(source: Option<&str>, bytes: usize) -> Preface {
        Preface::Complete {
            source: source.map(|source| source.parse().unwrap()),
            bytes,
        }
    }

    const IPV4: [u8; 12] = [192, 0, 2, 7, 10, 0, 0, 2, 0xdc, 0x04, 0x01, 0xbb];

    #[test]
    fn a_line_names_the_source() {
        for (line, source) in [
            (
                "PROXY TCP4 192.0.2.7 10.0.0.2 56324 443\r\n",
                Some("192.0.2.7"),
            ),
            (
                "PROXY TCP6 2001:db8::7 ::1 0 65535\r\n",
                Some("2001:db8::7"),
            ),
            ("PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", Some("192.0.2.7")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff:f...f:ffff 1 2\r\n", None),
        ] {
            let whole = format!("{line}GET / HTTP/1.1\r\n");
            assert_eq!(
                Preface::parse(whole.as_bytes()),
                complete(source, line.len())
            );
            for cut in 0..line.len() {
                let begun = &line.as_bytes()[..cut];
                assert_eq!(Preface::parse(begun), Preface::Incomplete, "{line} {cut}");
            }
        }
    }

    #[test]
    fn a_line_that_is_none_is_refused() {
        for wrong in [
            "PROXY TCP4 192.0.2.7 10.0.0.2 1\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.2 1 +2\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.2 1 2 3\r\n",
            "PROXY TCP4  192.0.2.7 10.0.0.2 1 2\r\n",
            "PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.7 10.0.0.2 1 2\r\n",
            "PROXY UDP4 192.0.2.7 10.0.0.2 1 2\r\n",
            "PROXY \u{e4}\r\n",
            "PROXY \r\n",
        ] {
            let refused = Preface::Refused(PrefaceProblem::Addresses);
            assert_eq!(Preface::parse(wrong.as_bytes()), refused, "{wrong}");
        }
        for other in ["GET / HTTP/1.1\r\n", "proxy ", "PROXYX", "\u{16}\u{3}\u{1}"] {
            let refused = Preface::Refused(PrefaceProblem::Signature);
            assert_eq!(Preface::parse(other.as_bytes()), refused, "{other}");
        }
        let fill = |bytes: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(bytes - 16));
        let longest = fill(LINE_BYTES_MAX);
        assert_eq!(
            Preface::parse(longest.as_bytes()),
            complete(None, LINE_BYTES_MAX)
        );
        let refused = Preface::Refused(PrefaceProblem::Length);
        assert_eq!(Preface::parse(fill(LINE_BYTES_MAX + 1).as_bytes()), refused);
    }

    #[test]
    fn version_2_names_the_source() {
        let mut ipv6 = [0; 36];
        ipv6[..16].copy_from_slice(&"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        let with_more = [&IPV4[..], &[0x04, 0, 3, 1, 2, 3]].concat();
        let longest = [&IPV4[..], &[0; PREFACE_BYTES_MAX - 28]].concat();
        for (command, family, body, source) in [
            (0x21, 0x11, &IPV4[..], Some("192.0.2.7")),
            (0x21, 0x11, &with_more, Some("192.0.2.7")),
            (0x21, 0x11, &longest, Some("192.0.2.7")),
            (0x21, 0x21, &ipv6, Some("2001:db8::7")),
            // A balancer that looks whether the server lives.
            (0x20, 0x00, &[], None),
            (0x20, 0x11, &IPV4, None),
            (0x21, 0x00, &[], None),
            (0x21, 0x31, &[0; 216], None),
        ] {
            let mut bytes = version_2(command, family, body);
            let length = bytes.len();
            for cut in 0..length {
                assert_eq!(Preface::parse(&bytes[..cut]), Preface::Incomplete, "{cut}");
            }
            bytes.extend(b"GET");
            assert_eq!(Preface::parse(&bytes), complete(source, length));
        }
    }

    #[test]
    fn version_2_that_is_none_is_refused() {
        for (bytes, problem) in [
            (version_2(0x11, 0x11, &IPV4), PrefaceProblem::Version),
            (version_2(0x22, 0x11, &IPV4), PrefaceProblem::Version),
            (
                version_2(0x21, 0x11, &IPV4[..11]),
                PrefaceProblem::Addresses,
            ),
            (version_2(0x21, 0x21, &[0; 35]), PrefaceProblem::Addresses),
            (
                version_2(0x21, 0x11, &[0; PREFACE_BYTES_MAX - 15]),
                PrefaceProblem::Length,
            ),
        ] {
            assert_eq!(Preface::parse(&bytes), Preface::Refused(problem));
        }
    }
}
