//! What the origin says of an object's content, and whether a copy agrees.
//!
//! The length is always compared. Beyond it an origin may give a digest of the whole object:
//!
//! | From | What |
//! |---|---|
//! | S3, `ETag` | MD5, if the object was uploaded in one part and is not encrypted with a key of KMS or the client |
//! | S3, `x-amz-checksum-*` | CRC32, CRC32C, CRC-64/NVME, SHA-256 of the full object (not of uploads in parts, with `-`) |
//! | Google, `x-goog-hash` | CRC32C, MD5 |
//! | Azure and others, `Content-MD5` | MD5, in the reply to HEAD or to a request for all of it |
//! | any, `Repr-Digest` (RFC 9530) | SHA-256 |
//!
//! It refuses to take an ETag of another origin for a digest: it may be anything. Pure.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use md5::Digest as _;

use crate::stamp::plain_etag;

/// A digest's algorithm, the best one last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Algorithm {
    /// CRC-32 as of Ethernet.
    Crc32,
    /// CRC-32C, Castagnoli's.
    Crc32c,
    /// CRC-64 as of NVMe.
    Crc64Nvme,
    /// MD5.
    Md5,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// As reports name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Md5 => "md5",
            Self::Sha256 => "sha256",
        }
    }

    const fn length(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha256 => 32,
        }
    }
}

/// A digest of an object's whole content.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Expected {
    /// How it is made.
    pub algorithm: Algorithm,
    /// Its bytes, big-endian where it is a number.
    pub value: Vec<u8>,
}

impl Expected {
    fn new(algorithm: Algorithm, value: Option<Vec<u8>>) -> Option<Self> {
        let value = value.filter(|value| value.len() == algorithm.length())?;
        Some(Self { algorithm, value })
    }
}

/// The kind of an origin, which decides what its ETags mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginKind {
    /// S3 and what is compatible with it.
    S3,
    /// Google, Azure, HTTP, a directory.
    Other,
}

/// The best digest that a reply's header fields give of the whole object; `is_whole`: whether the reply is to HEAD or has
/// all of it.
#[must_use]
pub fn expected<'a>(
    kind: OriginKind,
    is_whole: bool,
    fields: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Option<Expected> {
    let field = |wanted: &str| {
        let mut fields = fields.clone();
        fields
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    let mut found: Vec<Option<Expected>> = Vec::new();
    if kind == OriginKind::S3 {
        found.push(md5_of_etag(&field));
        let is_full = field("x-amz-checksum-type").is_none_or(|it| it != "COMPOSITE");
        for (name, algorithm) in [
            ("x-amz-checksum-crc32", Algorithm::Crc32),
            ("x-amz-checksum-crc32c", Algorithm::Crc32c),
            ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme),
            ("x-amz-checksum-sha256", Algorithm::Sha256),
        ] {
            // Of uploads in parts it has a number of parts behind a dash, which is not base64.
            let value = field(name).filter(|_| is_full).and_then(decode);
            found.push(Expected::new(algorithm, value));
        }
    }
    for (name, value) in fields.clone() {
        if name == "x-goog-hash" {
            for part in value.split(',') {
                let (algorithm, value) = part.trim().split_once('=').unwrap_or_default();
                let algorithm = match algorithm {
                    "crc32c" => Algorithm::Crc32c,
                    "md5" => Algorithm::Md5,
                    _ => continue,
                };
                found.push(Expected::new(algorithm, decode(value)));
            }
        }
        if name == "repr-digest" {
            for part in value.split(',') {
                let value = part.trim().strip_prefix("sha-256=:");
                let value = value.and_then(|it| it.strip_suffix(':')).and_then(decode);
                found.push(Expected::new(Algorithm::Sha256, value));
            }
        }
    }
    let is_encoded = field("content-encoding").is_some_and(|it| it != "identity");
    if is_whole && !is_encoded {
        let value = field("content-md5").and_then(decode);
        found.push(Expected::new(Algorithm::Md5, value));
    }
    let blob = field("x-ms-blob-content-md5").and_then(decode);
    found.push(Expected::new(Algorithm::Md5, blob));
    found.into_iter().flatten().max()
}

fn md5_of_etag<'a>(field: &impl Fn(&str) -> Option<&'a str>) -> Option<Expected> {
    let encryption = field("x-amz-server-side-encryption").unwrap_or("AES256");
    let is_md5 = encryption == "AES256"
        && field("x-amz-server-side-encryption-customer-algorithm").is_none();
    let etag = plain_etag(field("etag")?);
    let digits = etag.as_bytes().chunks_exact(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let value = digits.collect::<Option<Vec<u8>>>();
    let is_whole = is_md5 && etag.len() == 32;
    Expected::new(Algorithm::Md5, value.filter(|_| is_whole))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.trim()).ok()
}

/// Computes a digest, piece by piece.
pub enum Verifier {
    /// Of any CRC.
    Crc(Box<crc_fast::Digest>, Algorithm),
    /// MD5.
    Md5(md5::Md5),
    /// SHA-256.
    Sha256(digest::Context),
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    /// Of nothing yet.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let crc = |of| Self::Crc(Box::new(crc_fast::Digest::new(of)), algorithm);
        match algorithm {
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Md5 => Self::Md5(md5::Md5::new()),
            Algorithm::Sha256 => Self::Sha256(digest::Context::new(&digest::SHA256)),
        }
    }

    /// Takes the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(bytes),
            Self::Md5(digest) => digest.update(bytes),
            Self::Sha256(digest) => digest.update(bytes),
        }
    }

    /// The digest's bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc(digest, algorithm) => {
                let bytes = digest.finalize().to_be_bytes();
                bytes[bytes.len() - algorithm.length()..].to_vec()
            }
            Self::Md5(digest) => digest.finalize().to_vec(),
            Self::Sha256(digest) => digest.finish().as_ref().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: OriginKind, is_whole: bool, fields: &[(&str, &str)]) -> Option<&'static str> {
        let expected = expected(kind, is_whole, fields.iter().copied());
        expected.map(|it| it.algorithm.name())
    }

    #[test]
    fn each_origin_says_it_in_its_own_way() {
        let etag = ("etag", "\"d41d8cd98f00b204e9800998ecf8427e\"");
        assert_eq!(of(OriginKind::S3, false, &[etag]), Some("md5"));
        // Of another origin it may be anything.
        assert_eq!(of(OriginKind::Other, true, &[etag]), None);
        let parts = ("etag", "\"d41d8cd98f00b204e9800998ecf8427e-3\"");
        assert_eq!(of(OriginKind::S3, false, &[parts]), None);
        let kms = ("x-amz-server-side-encryption", "aws:kms");
        assert_eq!(of(OriginKind::S3, false, &[etag, kms]), None);
        let full = ("x-amz-checksum-type", "FULL_OBJECT");
        let crc = ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=");
        assert_eq!(
            of(OriginKind::S3, false, &[parts, crc, full]),
            Some("crc64nvme")
        );
        let composite = ("x-amz-checksum-type", "COMPOSITE");
        assert_eq!(of(OriginKind::S3, false, &[parts, crc, composite]), None);
        let dashed = ("x-amz-checksum-crc32", "AAAAAA==-2");
        assert_eq!(of(OriginKind::S3, false, &[dashed]), None);
        let md5 = "1B2M2Y8AsgTpgAmY7PhCfg==";
        let google = (
            "x-goog-hash",
            "crc32c=AAAAAA==,md5=1B2M2Y8AsgTpgAmY7PhCfg==",
        );
        assert_eq!(of(OriginKind::Other, false, &[google]), Some("md5"));
        let google = ("x-goog-hash", "crc32c=AAAAAA==");
        assert_eq!(of(OriginKind::Other, false, &[google]), Some("crc32c"));
        // Of a part it is the digest of the part.
        assert_eq!(of(OriginKind::Other, false, &[("content-md5", md5)]), None);
        assert_eq!(
            of(OriginKind::Other, true, &[("content-md5", md5)]),
            Some("md5")
        );
        let gzip = ("content-encoding", "gzip");
        assert_eq!(
            of(OriginKind::Other, true, &[("content-md5", md5), gzip]),
            None
        );
        assert_eq!(
            of(OriginKind::Other, false, &[("x-ms-blob-content-md5", md5)]),
            Some("md5")
        );
        let sha = (
            "repr-digest",
            "sha-512=:AA==:, sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
        );
        assert_eq!(of(OriginKind::Other, false, &[sha]), Some("sha256"));
        let short = ("repr-digest", "sha-256=:47DE:");
        assert_eq!(of(OriginKind::Other, false, &[short]), None);
    }

    #[test]
    fn digests_are_those_of_their_standards() {
        let hex = |algorithm| {
            let mut verifier = Verifier::new(algorithm);
            verifier.update(b"12345");
            verifier.update(b"6789");
            let bytes = verifier.finish();
            bytes
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect::<String>()
        };
        assert_eq!(hex(Algorithm::Crc32), "cbf43926");
        assert_eq!(hex(Algorithm::Crc32c), "e3069283");
        assert_eq!(hex(Algorithm::Crc64Nvme), "ae8b14860a799888");
        assert_eq!(hex(Algorithm::Md5), "25f9e794323b453885f5181f1b624d0b");
        let sha = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(hex(Algorithm::Sha256), sha);
    }
}
