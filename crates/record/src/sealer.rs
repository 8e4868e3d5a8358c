//! Sealing in place: a record's header, content and trailer are one piece of memory, in which the
//! content stands before it is sealed.

use core::fmt;

use crate::aead::{AeadLibrary, SealingKey};
use crate::scheme::{self, Iv, NONCE_BYTES, Scheme};
use crate::{CONTENT_BYTES_MAX, ContentType, HEADER_BYTES, TrafficKey};

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

    /// Bytes a record is longer than its content.
    #[must_use]
    pub const fn overhead_bytes(self) -> u32 {
        self.header_bytes + self.trailer_bytes
    }
}

/// Seals records of one direction under one key.
///
/// On drop the IV is wiped, and so is the key with aws-lc, but not with ring ([`AeadLibrary`]).
/// `Debug` prints neither.
pub struct Sealer {
    key: SealingKey,
    iv: Iv,
    scheme: Scheme,
}

impl Sealer {
    /// [`Sealer::with_library`] with the default, aws-lc.
    #[must_use]
    pub fn new(key: &TrafficKey) -> Self {
        Self::with_library(AeadLibrary::default(), key)
    }

    /// Takes the key; only the expanded form is kept, about 600 bytes, the one allocation here. The
    /// library changes how long sealing takes, and no byte of a record.
    #[must_use]
    pub fn with_library(library: AeadLibrary, key: &TrafficKey) -> Self {
        Self {
            key: SealingKey::new(library, key),
            iv: Iv::new(key.iv()),
            scheme: Scheme::of(key.version(), key.algorithm()),
        }
    }

    /// What [`Sealer::seal`] writes around the content.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.scheme.framing()
    }

    /// Seals the content in `record` in place as record `number`, and writes the header before it and
    /// the trailer behind it: [`Sealer::framing`] says how long both are. The same arguments always
    /// give the same bytes; nothing else is remembered.
    ///
    /// The caller never seals two contents under one number (the nonce would be used twice), and
    /// not more records than [`crate::Algorithm::records_max`] under one key.
    ///
    /// # Panics
    /// If `record` is shorter than header and trailer, or the content longer than
    /// [`crate::CONTENT_BYTES_MAX`].
    pub fn seal(&self, number: u64, content_type: ContentType, record: &mut [u8]) -> Tag {
        let header_bytes = self.framing().header_bytes as usize;
        let (header, rest) = record
            .split_at_mut_checked(header_bytes)
            .expect("a record has room for its header");
        self.seal_rest(number, content_type, header, rest)
    }

    /// Seals what follows the header in a record: content and room for the trailer. The header is
    /// written elsewhere.
    pub(crate) fn seal_rest(
        &self,
        number: u64,
        content_type: ContentType,
        header: &mut [u8],
        rest: &mut [u8],
    ) -> Tag {
        let trailer_bytes = self.framing().trailer_bytes as usize;
        let content_bytes = rest
            .len()
            .checked_sub(trailer_bytes)
            .expect("a record has room for its trailer");
        assert!(
            content_bytes <= CONTENT_BYTES_MAX,
            "{content_bytes} bytes of content are too many for a record"
        );
        debug_assert_ne!(
            content_type,
            ContentType::ChangeCipherSpec,
            "change_cipher_spec is never sealed"
        );
        let (text, tag_bytes) = rest
            .split_last_chunk_mut::<TAG_BYTES>()
            .expect("invariant: the trailer of every scheme has room for the tag");
        let tag = match self.scheme {
            Scheme::Tls13 => self.seal_tls13(number, content_type, header, text),
            Scheme::Tls12ExplicitNonce | Scheme::Tls12 => {
                self.seal_tls12(number, content_type, header, text)
            }
        };
        *tag_bytes = tag.0;
        tag
    }

    /// RFC 8446 s5.2: the outside says `application_data`, TLS 1.2 and the length of everything
    /// that follows; it is authenticated as it is. The content type is sealed behind the content, in
    /// the last byte of `text`. No padding.
    fn seal_tls13(
        &self,
        number: u64,
        content_type: ContentType,
        header: &mut [u8],
        text: &mut [u8],
    ) -> Tag {
        let outside = scheme::header(ContentType::ApplicationData, text.len() + TAG_BYTES);
        header.copy_from_slice(&outside);
        let last = text.last_mut();
        *last.expect("invariant: the trailer has room for the content type") = content_type.code();
        self.seal_text(number, &outside, text)
    }

    /// RFC 5246 s6.2.3.3. What `header` has more than a record header is the explicit nonce.
    fn seal_tls12(
        &self,
        number: u64,
        content_type: ContentType,
        header: &mut [u8],
        text: &mut [u8],
    ) -> Tag {
        let (header, explicit_nonce) = header.split_at_mut(HEADER_BYTES);
        let nonce = self.iv.nonce(number);
        explicit_nonce.copy_from_slice(&nonce[NONCE_BYTES - explicit_nonce.len()..]);
        let following_bytes = explicit_nonce.len() + text.len() + TAG_BYTES;
        header.copy_from_slice(&scheme::header(content_type, following_bytes));
        let data = scheme::tls12_associated_data(number, content_type.code(), text.len());
        self.seal_text(number, &data, text)
    }

    fn seal_text(&self, number: u64, associated_data: &[u8], text: &mut [u8]) -> Tag {
        let nonce = self.iv.nonce(number);
        Tag(self.key.seal(nonce, associated_data, text))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
