//! HTTP/1.1 as a video server needs it (RFC 9110, RFC 9112): request heads in, response heads and
//! body parts out.
//!
//! It accepts a written subset and refuses the rest with a status. It serves `GET` and `HEAD` of
//! objects that do not change, with conditions and byte ranges, and CORS preflights by `OPTIONS`.
//! A request body means nothing here. A short one is thrown away by the caller, who gets its length; a
//! request with a longer one, or one in chunks, is refused and its connection closed. So no byte of a
//! body can ever be taken for the next request.
//!
//! It holds no bytes of any object. A reply is a list of [`Part`]s: so many bytes of text, then
//! so many bytes of the object from such an offset.
//!
//! A path that ends with `/` asks for the [`INDEX_NAME`] of that directory; the caller, who has the
//! objects, answers a directory's name without its slash by [`directory_reply`].
//!
//! What bounds it: [`HEAD_BYTES_MAX`], [`BODY_BYTES_MAX`], [`HEADERS_MAX`], [`TARGET_BYTES_MAX`], [`RANGES_MAX`] and,
//! on the way out, [`REPLY_TEXT_BYTES_MAX`]. Parsing allocates one string, the path, of at most
//! [`TARGET_BYTES_MAX`] bytes; replying allocates only what `text` and `parts` lack in capacity.

#![forbid(unsafe_code)]

mod authority;
mod cmcd;
mod coding;
mod conditional;
mod content_type;
mod cors;
mod extra_fields;
mod head_text;
mod range;
mod reply;
mod request;
mod status;
mod target;
mod validators;

use clock::UnixTime;

pub use cmcd::Cmcd;
pub use coding::{CODINGS_MAX, Coding, Codings};
pub use content_type::{
    CONTENT_TYPE_BYTES_MAX, ContentTypeProblem, ContentTypes, EXTENSION_BYTES_MAX, OWN_TYPES_MAX,
};
pub use cors::{Cors, ORIGIN_BYTES_MAX, ORIGINS_MAX, OriginProblem, Origins};
pub use extra_fields::{EXTRA_FIELDS_BYTES_MAX, ExtraFields, FieldProblem};
pub use head_text::HeadText;
pub use range::{RANGES_MAX, RANGES_UNORDERED_MAX};
pub use reply::{
    PREFLIGHT_HEADERS_BYTES_MAX, Part, REPLY_TEXT_BYTES_MAX, Reply, ReplyConfig, ReplyOptions,
    coded_reply, directory_reply, error_page_reply, error_reply, miss_redirect_reply,
    options_reply, push_path_piece, redirect_reply, reply,
};
pub use request::{
    BODY_BYTES_MAX, HEAD_BYTES_MAX, HEADERS_MAX, LEADING_EMPTY_LINES_MAX, METHOD_BYTES_MAX, Method,
    Parsed, Refusal, Request, TARGET_BYTES_MAX, parse_request,
};
pub use status::Status;

/// What HTTP says of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMeta {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Last modification.
    pub modified: UnixTime,
    /// The wall clock's time, read before the rest of this was read from the object: what is written
    /// to it later is dated then or later.
    pub seen: UnixTime,
    /// Stands for its content, if that was hashed: two objects with the same hash are the same.
    pub content_hash: Option<[u8; 16]>,
    /// Its content type, if it was stored with one; otherwise its name says it. One that is no
    /// `type/subtype` is ignored.
    pub content_type: Option<Box<str>>,
}

/// The object that stands for a directory.
pub const INDEX_NAME: &str = "index.html";
