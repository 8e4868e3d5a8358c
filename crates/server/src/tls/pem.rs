//! The sections of a PEM file (RFC 7468), and the private key in it.
//!
//! Files are read as operators make them: joined by `cat` although one has no line end at its end, with
//! a byte order mark before any part, with words between the parts. So a section is found by its
//! boundaries wherever they stand, and not by lines. It refuses to pass over a section: every
//! boundary belongs to a section that is returned, or is a [`PemProblem`]. Otherwise a chain could
//! lose a certificate, and nobody would know.
//!
//! A key is decoded into one buffer that never grows and is wiped when it is dropped. Bounded by the
//! file's size.

use std::fmt;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// A section, borrowed from the file.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    /// What it says that it holds, `CERTIFICATE` for example.
    pub(super) label: &'a [u8],
    /// What stands between its boundaries: Base64, in old files behind some fields.
    body: &'a [u8],
}

/// What is wrong with a section. Its words have nothing of the file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PemProblem {
    /// The line of its beginning does not end with five dashes.
    BrokenStart,
    /// Behind its beginning comes the end of another kind, another beginning, or nothing.
    NoEnd,
    /// Its end, and no beginning before.
    NoBeginning,
    /// Something else than Base64 is in it.
    NotBase64,
}

impl fmt::Display for PemProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BrokenStart => "a section whose first line is broken",
            Self::NoEnd => "a section without an end",
            Self::NoBeginning => "the end of a section without its beginning",
            Self::NotBase64 => "a section that is not Base64",
        })
    }
}

/// The sections of a file, in order. After a problem there are no more.
pub(super) struct Sections<'a> {
    rest: &'a [u8],
}

impl<'a> Sections<'a> {
    pub(super) const fn of(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// The section whose first boundary is at the start of the rest.
    fn take_section(&mut self) -> Result<Section<'a>, PemProblem> {
        let rest = self.rest.strip_prefix(BEGIN);
        let rest = rest.ok_or(PemProblem::NoBeginning)?;
        let (label, rest) = cut_at(rest, DASHES)
            .filter(|(label, _)| !label.iter().any(|byte| matches!(byte, b'\r' | b'\n')))
            .ok_or(PemProblem::BrokenStart)?;
        let (body, end) = cut_at(rest, DASHES).ok_or(PemProblem::NoEnd)?;
        let rest = end
            .strip_prefix(END.strip_prefix(DASHES).unwrap_or_default())
            .and_then(|end| end.strip_prefix(label))
            .and_then(|end| end.strip_prefix(DASHES))
            .ok_or(PemProblem::NoEnd)?;
        self.rest = rest;
        Ok(Section { label, body })
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Section<'a>, PemProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_boundary = |place: &[u8]| place.starts_with(BEGIN) || place.starts_with(END);
        let start = (0..self.rest.len()).find(|at| is_boundary(&self.rest[*at..]));
        self.rest = start.map_or(&[], |start| &self.rest[start..]);
        if self.rest.is_empty() {
            return None;
        }
        let section = self.take_section();
        if section.is_err() {
            self.rest = &[];
        }
        Some(section)
    }
}

/// What is before the first `mark`, and what is behind it.
fn cut_at<'a>(text: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = text.windows(mark.len()).position(|place| place == mark)?;
    Some((&text[..at], &text[at + mark.len()..]))
}

impl Section<'_> {
    /// Whether OpenSSL encrypted it in its old way: then a field of the section says so.
    pub(super) fn is_encrypted(&self) -> bool {
        self.label == b"ENCRYPTED PRIVATE KEY"
            || cut_at(self.body, b"Proc-Type: 4,ENCRYPTED").is_some()
    }

    /// What its Base64 means.
    pub(super) fn decode(&self) -> Result<Zeroizing<Vec<u8>>, PemProblem> {
        // Never grown, so never copied.
        let mut der = Zeroizing::new(Vec::with_capacity(self.body.len()));
        let (mut bits, mut bit_count, mut is_padded) = (0_u32, 0, false);
        for byte in self.body.iter().filter(|byte| !byte.is_ascii_whitespace()) {
            if *byte == b'=' {
                is_padded = true;
                continue;
            }
            let value = sextet(*byte).filter(|_| !is_padded);
            let value = value.ok_or(PemProblem::NotBase64)?;
            bits = (bits << 6 | u32::from(value)) & 0xffff;
            bit_count += 6;
            if bit_count >= 8 {
                bit_count -= 8;
                let [.., whole] = (bits >> bit_count).to_be_bytes();
                der.push(whole);
            }
        }
        // A single digit behind the last whole byte has not even eight bits.
        if bit_count == 6 {
            return Err(PemProblem::NotBase64);
        }
        Ok(der)
    }
}

/// A private key as the file has it. Wiped when it is dropped.
pub(super) struct KeySection {
    kind: Kind,
    der: Zeroizing<Vec<u8>>,
}

/// What a section says that it holds (RFC 7468 s10, RFC 5915 s4; PKCS #1 is OpenSSL's old way).
#[derive(Clone, Copy)]
enum Kind {
    Pkcs8,
    Pkcs1,
    Sec1,
}

const LABELS: [(Kind, &[u8]); 3] = [
    (Kind::Pkcs8, b"PRIVATE KEY"),
    (Kind::Pkcs1, b"RSA PRIVATE KEY"),
    (Kind::Sec1, b"EC PRIVATE KEY"),
];

impl KeySection {
    /// The key of that section; `None` if its label is not that of a key we can read.
    pub(super) fn of(section: &Section<'_>) -> Option<Result<Self, PemProblem>> {
        let (kind, _) = LABELS.iter().find(|(_, label)| *label == section.label)?;
        let der = section.decode();
        Some(der.map(|der| Self { kind: *kind, der }))
    }

    pub(super) fn der(&self) -> PrivateKeyDer<'_> {
        let der = self.der.as_slice();
        match self.kind {
            Kind::Pkcs8 => PrivatePkcs8KeyDer::from(der).into(),
            Kind::Pkcs1 => PrivatePkcs1KeyDer::from(der).into(),
            Kind::Sec1 => PrivateSec1KeyDer::from(der).into(),
        }
    }
}

/// RFC 4648 s4, table 1.
const fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::{KeySection, PemProblem, Sections};

    fn key_in(text: &str) -> Option<Vec<u8>> {
        let key = Sections::of(text.as_bytes()).find_map(|section| KeySection::of(&section.ok()?));
        Some(key?.ok()?.der().secret_der().to_vec())
    }

    /// What rustls's reader makes of it, and this one.
    fn both(text: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let theirs = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok();
        (theirs.map(|key| key.secret_der().to_vec()), key_in(text))
    }

    fn section(label: &str, base64: &str) -> String {
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
    }

    /// Labels and contents up to the first problem, and the problem.
    fn sections(text: &str) -> (Vec<(String, Vec<u8>)>, Option<PemProblem>) {
        let mut read = Vec::new();
        for section in Sections::of(text.as_bytes()) {
            let decoded = section.and_then(|section| Ok((section.label, section.decode()?)));
            match decoded {
                Ok((label, der)) => {
                    read.push((String::from_utf8_lossy(label).into(), der.to_vec()))
                }
                Err(problem) => return (read, Some(problem)),
            }
        }
        (read, None)
    }

    #[test]
    fn keys_are_read_as_rustls_reads_them() {
        let pem = KeyPair::generate().unwrap().serialize_pem();
        let crlf = pem.replace('\n', "\r\n");
        let second = section("CERTIFICATE", "AAAA") + "words\n" + &pem;
        let old = section("RSA PRIVATE KEY", "MAA=");
        let curve = section("EC PRIVATE KEY", "MAAB");
        for text in [&pem, &crlf, &second, &old, &curve] {
            let (theirs, ours) = both(text);
            assert!(ours.is_some() && ours == theirs, "{text}");
        }
        // Every number of bytes in the last group, and every value of one.
        for base64 in ["/w==", "//8=", "////", "/////w==", "AECAwP+/"] {
            let (theirs, ours) = both(&section("PRIVATE KEY", base64));
            assert_eq!(ours, theirs, "{base64}");
        }
        for text in [
            section("PRIVATE KEY", "AA*A"),
            section("PRIVATE KEY", "AA==AAAA"),
            section("PRIVATE KEY", "AAAAA"),
            section("ENCRYPTED PRIVATE KEY", "AAAA"),
            section("CERTIFICATE", "AAAA"),
        ] {
            assert_eq!(both(&text), (None, None), "{text}");
        }
    }

    #[test]
    fn sections_are_found_however_they_were_joined() {
        let (one, two) = (section("A B", "AAAA"), section("C-D", "////"));
        let expected = (
            vec![("A B".into(), vec![0; 3]), ("C-D".into(), vec![255; 3])],
            None,
        );
        for text in [
            format!("{one}{two}"),
            format!("{}{}", one.trim_end(), two.trim_end()),
            format!("\u{feff}{one}\u{feff}{two}"),
            format!("{}\u{feff}{two}", one.trim_end()),
            format!("words\n{one}more-----\n{two}words"),
            format!("{one}{two}").replace('\n', " "),
            format!("{one}{two}").replace('\n', "\r\n"),
        ] {
            assert_eq!(sections(&text), expected, "{text}");
        }
        assert_eq!(sections("no PEM-----"), (vec![], None));
    }

    #[test]
    fn no_section_is_passed_over() {
        let whole = section("A", "AAAA");
        for (broken, problem) in [
            (
                "-----BEGIN A----\nAAAA\n-----END A-----",
                PemProblem::BrokenStart,
            ),
            ("-----BEGIN A", PemProblem::BrokenStart),
            ("-----BEGIN A-----\nAAAA\n", PemProblem::NoEnd),
            (
                "-----BEGIN A-----\nAAAA\n-----END B-----",
                PemProblem::NoEnd,
            ),
            ("-----BEGIN A-----\nAAAA\n-----END A----", PemProblem::NoEnd),
            (
                "----BEGIN A-----\nAAAA\n-----END A-----",
                PemProblem::NoBeginning,
            ),
            (
                "-----BEGIN A-----\nAA-A\n-----END A-----",
                PemProblem::NotBase64,
            ),
        ] {
            for text in [
                format!("{whole}{broken}"),
                format!("{whole}{broken}\n{whole}"),
            ] {
                let (read, found) = sections(&text);
                assert_eq!((read.len(), found), (1, Some(problem)), "{text}");
            }
        }
        // What is cut off before its end takes no other's.
        let cut = "-----BEGIN A-----\nAAAA\n".to_owned() + &whole;
        assert_eq!(sections(&cut), (vec![], Some(PemProblem::NoEnd)));
    }
}
