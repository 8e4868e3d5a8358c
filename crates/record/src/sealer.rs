//! Sealing in place.
//!
//! In a slot the content of the next record follows at once, so nothing may be written after the
//! content, not even temporarily. The content type that TLS 1.3 seals with the content is therefore
//! written to the trailer only (`seal_in_place_scatter`, which also writes the tag there).

use core::fmt;

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

use crate::scheme::{self, Iv, NONCE_BYTES, SALT_BYTES, Scheme};
use crate::{Algorithm, CONTENT_BYTES_MAX, ContentType, HEADER_BYTES, TrafficKey, Version};

/// Bytes of an authentication tag, the same for every AEAD here.
pub const TAG_BYTES: usize = 16;

/// A record's authentication tag. Two sealings of one record number with one key are of the same
/// content exactly if their tags are equal, but for chance: 2^-93 for content of 2^14 bytes with
/// Poly1305 (8 * 1027 blocks / 2^106, Bernstein, "The Poly1305-AES message-authentication code",
/// 2005, s3), far less with GHASH (1027 / 2^128).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub [u8; TAG_BYTES]);

/// How many bytes a record has before and after its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Before: the record header, and in TLS 1.2 with AES-GCM the explicit nonce. 5 or 13.
    pub header_bytes: u32,
    /// After: in TLS 1.3 the sealed content type, then the tag. 17 or 16.
    pub trailer_bytes: u32,
}

impl Framing {
    /// Most bytes before the content, of any framing.
    pub const HEADER_BYTES_MAX: usize = 13;
    /// Most bytes after the content, of any framing.
    pub const TRAILER_BYTES_MAX: usize = 17;
    /// No framing at all: what [`Sealer::emulated`] leaves on the wire.
    pub const NONE: Self = Self {
        header_bytes: 0,
        trailer_bytes: 0,
    };

    /// Bytes a record is longer than its content.
    #[must_use]
    pub const fn overhead_bytes(self) -> u32 {
        self.header_bytes + self.trailer_bytes
    }
}

/// Seals records of one direction under one key.
///
/// Key and IV are wiped on drop, and `Debug` prints neither.
pub struct Sealer {
    key: LessSafeKey,
    iv: Iv,
    form: Form,
}

/// What sealing leaves around the content.
#[derive(Clone, Copy, Debug)]
enum Form {
    Record(Scheme),
    Bare,
}

/// The key of [`Sealer::emulated`]. It is public and protects nothing.
const EMULATED_KEY: [u8; 16] = *b"everybody knows!";

impl Sealer {
    /// Takes the key; only the expanded form is kept, about 600 bytes, the one allocation here.
    #[must_use]
    pub fn new(key: &TrafficKey) -> Self {
        let scheme = Scheme::of(key.version(), key.algorithm());
        Self::with_form(key, Form::Record(scheme))
    }

    /// AES-128-GCM under a key that everybody knows, without framing: the sealing cost of TLS
    /// without its protocol, as the evaluation of Disk|Crypt|Net had it. For benches only.
    #[must_use]
    pub fn emulated() -> Self {
        let iv = [0; NONCE_BYTES];
        let key = TrafficKey::new(Version::Tls13, Algorithm::Aes128Gcm, &EMULATED_KEY, iv)
            .expect("invariant: the emulated key has the length of its algorithm");
        Self::with_form(&key, Form::Bare)
    }

    fn with_form(key: &TrafficKey, form: Form) -> Self {
        Self {
            key: scheme::expand(key),
            iv: Iv::new(key.iv()),
            form,
        }
    }

    /// What [`Sealer::seal`] writes around the content.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        match self.form {
            Form::Record(scheme) => scheme.framing(),
            Form::Bare => Framing::NONE,
        }
    }

    /// Seals `content` in place as record `number`, and writes what goes before and after it.
    /// The same arguments always give the same bytes; nothing else is remembered.
    ///
    /// The caller never seals two contents under one number (the nonce would be used twice), and
    /// not more records than [`Algorithm::records_max`] under one key.
    ///
    /// # Panics
    /// If the content is longer than [`crate::CONTENT_BYTES_MAX`], or header and trailer are not
    /// as long as [`Sealer::framing`] says.
    pub fn seal(
        &self,
        number: u64,
        content_type: ContentType,
        content: &mut [u8],
        header: &mut [u8],
        trailer: &mut [u8],
    ) -> Tag {
        assert!(
            content.len() <= CONTENT_BYTES_MAX,
            "{} bytes of content are too many for a record",
            content.len()
        );
        debug_assert_ne!(
            content_type,
            ContentType::ChangeCipherSpec,
            "change_cipher_spec is never sealed"
        );
        match self.form {
            Form::Record(Scheme::Tls13) => {
                self.seal_tls13(number, content_type, content, header, trailer)
            }
            Form::Record(Scheme::Tls12ExplicitNonce) => {
                let (header, explicit_nonce) = header
                    .split_at_mut_checked(HEADER_BYTES)
                    .expect("invariant: the header is as long as the framing says");
                explicit_nonce.copy_from_slice(&self.iv.nonce(number)[SALT_BYTES..]);
                self.seal_tls12(number, content_type, content, header, trailer)
            }
            Form::Record(Scheme::Tls12) => {
                self.seal_tls12(number, content_type, content, header, trailer)
            }
            Form::Bare => {
                assert!(
                    header.is_empty() && trailer.is_empty(),
                    "an emulated record has no framing"
                );
                let data = scheme::header(content_type, content.len());
                self.seal_content(number, &data, content, &[], &mut [0; TAG_BYTES])
            }
        }
    }

    /// RFC 8446 s5.2: the outside says `application_data`, TLS 1.2 and the length of everything
    /// that follows; it is authenticated as it is. No padding.
    fn seal_tls13(
        &self,
        number: u64,
        content_type: ContentType,
        content: &mut [u8],
        header: &mut [u8],
        trailer: &mut [u8],
    ) -> Tag {
        let following_bytes = content.len() + trailer.len();
        let outside = scheme::header(ContentType::ApplicationData, following_bytes);
        header.copy_from_slice(&outside);
        self.seal_content(number, &outside, content, &[content_type.code()], trailer)
    }

    /// RFC 5246 s6.2.3.3, but for the explicit nonce.
    fn seal_tls12(
        &self,
        number: u64,
        content_type: ContentType,
        content: &mut [u8],
        header: &mut [u8],
        trailer: &mut [u8],
    ) -> Tag {
        let behind_header_bytes = self.framing().overhead_bytes() as usize - HEADER_BYTES;
        let following_bytes = content.len() + behind_header_bytes;
        header.copy_from_slice(&scheme::header(content_type, following_bytes));
        let data = scheme::tls12_associated_data(number, content_type.code(), content.len());
        self.seal_content(number, &data, content, &[], trailer)
    }

    /// Seals content in place, and `content_type` behind it into the trailer, where the tag goes.
    fn seal_content(
        &self,
        number: u64,
        associated_data: &[u8],
        content: &mut [u8],
        content_type: &[u8],
        trailer: &mut [u8],
    ) -> Tag {
        let nonce = Nonce::assume_unique_for_key(self.iv.nonce(number));
        let data = Aad::from(associated_data);
        self.key
            .seal_in_place_scatter(nonce, data, content, content_type, trailer)
            .expect("invariant: the trailer is as long as the framing says");
        let tag = trailer.last_chunk();
        Tag(*tag.expect("invariant: a trailer has room for the tag"))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}
