//! The private key of a PEM file, without a copy of it that is not wiped.
//!
//! rustls's own reader works, but the Base64 text goes through a buffer of it that is freed as it
//! is. This one decodes into one buffer of ours. It refuses to explain: what it cannot read is
//! given to rustls's reader, for its answer or its error. Bounded by the file's size.

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

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

const LABELS: [(Kind, &str); 3] = [
    (Kind::Pkcs8, "PRIVATE KEY"),
    (Kind::Pkcs1, "RSA PRIVATE KEY"),
    (Kind::Sec1, "EC PRIVATE KEY"),
];

impl KeySection {
    /// The first private key in it; `None` if there is none, or nothing but Base64 should be in
    /// its section and is not.
    pub(super) fn find(text: &[u8]) -> Option<Self> {
        let mut lines = text
            .split(|byte| matches!(byte, b'\n' | b'\r'))
            .map(<[u8]>::trim_ascii);
        let (kind, label) = lines.by_ref().find_map(|line| {
            let is_begin = |(_, label): &&(Kind, &str)| is_boundary(line, "BEGIN", label);
            LABELS.iter().find(is_begin).copied()
        })?;
        // Never grown, so never copied.
        let mut der = Zeroizing::new(Vec::with_capacity(text.len()));
        let (mut bits, mut bit_count, mut is_padded) = (0_u32, 0, false);
        for line in lines {
            if is_boundary(line, "END", label) {
                return Some(Self { kind, der });
            }
            for byte in line {
                if *byte == b'=' {
                    is_padded = true;
                    continue;
                }
                let value = sextet(*byte).filter(|_| !is_padded)?;
                bits = (bits << 6 | u32::from(value)) & 0xffff;
                bit_count += 6;
                if bit_count >= 8 {
                    bit_count -= 8;
                    let [.., whole] = (bits >> bit_count).to_be_bytes();
                    der.push(whole);
                }
            }
        }
        None
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

fn is_boundary(line: &[u8], word: &str, label: &str) -> bool {
    let inner = line
        .strip_prefix(b"-----")
        .and_then(|line| line.strip_suffix(b"-----"))
        .and_then(|line| line.strip_prefix(word.as_bytes()))
        .and_then(|line| line.strip_prefix(b" "));
    inner == Some(label.as_bytes())
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

    use super::KeySection;

    /// What rustls's reader makes of it, and this one.
    fn both(text: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let theirs = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok();
        let ours = KeySection::find(text.as_bytes());
        (
            theirs.map(|key| key.secret_der().to_vec()),
            ours.map(|key| key.der().secret_der().to_vec()),
        )
    }

    fn section(label: &str, base64: &str) -> String {
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
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
        for base64 in ["", "/w==", "//8=", "////", "/////w==", "AECAwP+/"] {
            let (theirs, ours) = both(&section("PRIVATE KEY", base64));
            assert_eq!(ours, theirs, "{base64}");
        }
    }

    #[test]
    fn files_without_a_readable_key_section_are_left_to_rustls() {
        let cut = section("PRIVATE KEY", "AAAA").replace("END", "ENDE");
        for text in [
            "",
            "-----BEGIN PRIVATE KEY-----",
            &cut,
            &section("PRIVATE KEY", "AA*A"),
            &section("PRIVATE KEY", "AA==AAAA"),
            &section("ENCRYPTED PRIVATE KEY", "AAAA"),
            &section("CERTIFICATE", "AAAA"),
        ] {
            assert!(KeySection::find(text.as_bytes()).is_none(), "{text}");
        }
    }
}
