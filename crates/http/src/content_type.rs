//! Content types by file name extension, and how long each kind of content may be cached.
//!
//! Three tables, asked in this order: what the operator configured, what packagers of HLS, DASH
//! and CMAF write (here, with the standards that say so), and the registered types of the
//! `mime_guess` crate. Other extensions are `application/octet-stream`. It never reads
//! an object. Bounded by [`OWN_TYPES_MAX`] and [`CONTENT_TYPE_BYTES_MAX`].

use core::fmt;

use crate::request::is_token_byte;

/// The type of extensions that are in no table.
const UNKNOWN: ContentType<'_> = ContentType {
    name: "application/octet-stream",
};

/// Longest content type that can be configured, bytes, parameters included.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;

/// Most content types that can be configured.
pub const OWN_TYPES_MAX: usize = 64;

/// Longest extension a content type can be configured for, bytes.
pub const EXTENSION_BYTES_MAX: usize = 16;

/// Extension (lower case) and type of media, and of what registered types would get wrong.
///
/// RFC 8216 s4: `.m3u8` is `application/vnd.apple.mpegurl`. ISO/IEC 23009-1 (DASH): `.mpd` is
/// `application/dash+xml`, `.m4s` segments are `video/iso.segment`. ISO/IEC 23000-19 (CMAF) names
/// `.cmfv`, `.cmfa`, `.cmft` and `.cmfm`, whose contents are ISO base media (RFC 4337: `video/mp4`,
/// `audio/mp4`, `application/mp4`). `.ism` and `.ismc` are manifests of Smooth Streaming, `.dcsm` those of
/// DASH's content steering. RFC 3555 registers `video/MP2T`. A `.key` is the key of HLS
/// segments (16 bytes), not a slide show.
const MEDIA_TYPES: [(&str, &str); 36] = [
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("mpd", "application/dash+xml"),
    ("ism", SMOOTH_MANIFEST),
    ("ismc", SMOOTH_MANIFEST),
    ("dcsm", "application/json"),
    ("m4s", "video/iso.segment"),
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("cmfv", "video/mp4"),
    ("m4a", "audio/mp4"),
    ("cmfa", "audio/mp4"),
    ("cmft", "application/mp4"),
    ("cmfm", "application/mp4"),
    ("ts", "video/mp2t"),
    ("mov", "video/quicktime"),
    ("webm", "video/webm"),
    ("mkv", "video/x-matroska"),
    ("ogv", "video/ogg"),
    ("aac", "audio/aac"),
    ("mp3", "audio/mpeg"),
    ("ac3", "audio/ac3"),
    ("ec3", "audio/eac3"),
    ("ac4", "audio/ac4"),
    ("ogg", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("flac", "audio/flac"),
    ("wav", "audio/wav"),
    ("vtt", "text/vtt"),
    ("srt", "application/x-subrip"),
    ("ttml", "application/ttml+xml"),
    ("key", "application/octet-stream"),
    ("js", "text/javascript"),
    ("mjs", "text/javascript"),
    ("xml", "application/xml"),
    ("ico", "image/x-icon"),
    ("woff", "font/woff"),
];

/// A content type, as `Content-Type` carries it. Text without parameters gets a charset, because
/// clients guess at that of pages and subtitles without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContentType<'a> {
    name: &'a str,
}

impl<'a> ContentType<'a> {
    /// One that was given by name; `None` if it is none.
    pub(crate) fn given(name: &'a str) -> Option<Self> {
        is_media_type(name).then_some(Self { name })
    }

    /// The two parts that `Content-Type` is made of; the second may be empty.
    pub(crate) fn parts(self) -> [&'a str; 2] {
        let is_bare_text = self.name.starts_with("text/") && !self.name.contains(';');
        let charset = if is_bare_text { "; charset=utf-8" } else { "" };
        [self.name, charset]
    }

    /// Bytes of it as written.
    pub(crate) fn length_bytes(self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// What caches are told by default; `None`: nothing.
    ///
    /// A playlist or manifest may change at any time and is small. JSON is one, or next to one: manifests of
    /// content steering, lists of interstitials, which no name tells from others.
    ///
    /// Media mostly stay what they are. But an encoder that starts again gives its initialization segment and
    /// its first segments the same names as before.
    pub(crate) fn caching(self) -> Option<Caching> {
        match self.name {
            "application/vnd.apple.mpegurl"
            | "audio/mpegurl"
            | "audio/x-mpegurl"
            | "application/dash+xml"
            | SMOOTH_MANIFEST
            | "application/vnd.apple.steering-list"
            | "application/json" => Some(Caching::Revalidated),
            "application/mp4" | "application/ttml+xml" | "application/x-subrip" | "text/vtt" => {
                Some(Caching::ByAge)
            }
            name if name.starts_with("video/") || name.starts_with("audio/") => {
                Some(Caching::ByAge)
            }
            _ => None,
        }
    }
}

const SMOOTH_MANIFEST: &str = "application/vnd.ms-sstr+xml";

/// How caches may use what they keep of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caching {
    /// They ask each time, and mostly get 304.
    Revalidated,
    /// For as long as the object has been unchanged so far, but at least for [`MAX_AGE_SECONDS_MIN`] and at
    /// most for [`MAX_AGE_SECONDS_MAX`].
    ByAge,
}

/// Caches such as nginx and Varnish do not keep at all what is stale when it comes, and so would pass on
/// every request for a live segment in its first second.
pub(crate) const MAX_AGE_SECONDS_MIN: u64 = 1;

/// An hour.
pub(crate) const MAX_AGE_SECONDS_MAX: u64 = 3600;

impl fmt::Display for ContentType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().iter().try_for_each(|part| f.write_str(part))
    }
}

/// Content types by extension: the built-in tables, and what the operator configured over them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContentTypes {
    /// Extension, and type.
    own: Vec<(String, String)>,
}

/// Why a content type cannot be configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ContentTypeProblem {
    /// The extension is empty or too long, or has a dot, a slash or a control character.
    Extension,
    /// It is not `type/subtype`, with or without parameters, of at most
    /// [`CONTENT_TYPE_BYTES_MAX`] bytes.
    Grammar,
    /// More than [`OWN_TYPES_MAX`].
    TooMany,
}

impl fmt::Display for ContentTypeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extension => write!(
                f,
                "not an extension (1 to {EXTENSION_BYTES_MAX} bytes, without the dot)"
            ),
            Self::Grammar => write!(
                f,
                "not a content type (type/subtype of at most {CONTENT_TYPE_BYTES_MAX} bytes)"
            ),
            Self::TooMany => write!(f, "more than {OWN_TYPES_MAX} content types"),
        }
    }
}

impl ContentTypes {
    /// From now on, names that end in `.extension`, in either case, have this type.
    ///
    /// # Errors
    /// What is wrong with either; nothing is changed then.
    pub fn insert(
        &mut self,
        extension: &str,
        content_type: &str,
    ) -> Result<(), ContentTypeProblem> {
        let belongs = |character: char| !character.is_control() && !"./\\".contains(character);
        if !(1..=EXTENSION_BYTES_MAX).contains(&extension.len()) || !extension.chars().all(belongs)
        {
            return Err(ContentTypeProblem::Extension);
        }
        if !is_media_type(content_type) {
            return Err(ContentTypeProblem::Grammar);
        }
        if self.own.len() == OWN_TYPES_MAX {
            return Err(ContentTypeProblem::TooMany);
        }
        self.own.push((extension.into(), content_type.into()));
        Ok(())
    }

    /// The type of what a path names, by the extension of its last segment in either case.
    pub(crate) fn of(&self, path: &str) -> ContentType<'_> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let Some((_, extension)) = name.rsplit_once('.') else {
            return UNKNOWN;
        };
        let known = |known: &str| known.eq_ignore_ascii_case(extension);
        let own = || {
            let mut own = self.own.iter();
            let entry = own.find(|(own, _)| known(own))?;
            Some(entry.1.as_str())
        };
        let media = || {
            let entry = MEDIA_TYPES.iter().find(|(media, _)| known(media))?;
            Some(entry.1)
        };
        let registered = || mime_guess::from_ext(extension).first_raw();
        own()
            .or_else(media)
            .or_else(registered)
            .map_or(UNKNOWN, |name| ContentType { name })
    }
}

/// RFC 9110 s8.3.1: `type "/" subtype`, then parameters, of which only the bytes are looked at.
fn is_media_type(text: &str) -> bool {
    let is_token = |text: &str| !text.is_empty() && text.bytes().all(is_token_byte);
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_essence = essence
        .trim_end()
        .split_once('/')
        .is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    let is_parameter_byte = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    text.len() <= CONTENT_TYPE_BYTES_MAX && is_essence && parameters.bytes().all(is_parameter_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(path: &str) -> String {
        ContentTypes::default().of(path).to_string()
    }

    #[test]
    fn types_of_paths() {
        for (path, content_type) in [
            // Media: what players depend on.
            ("/live/master.m3u8", "application/vnd.apple.mpegurl"),
            ("/a.MPD", "application/dash+xml"),
            ("/v/seg-1.m4s", "video/iso.segment"),
            ("/v/init.cmfv", "video/mp4"),
            ("/film.tar.mp4", "video/mp4"),
            ("/seg.ts", "video/mp2t"),
            ("/a.m4a", "audio/mp4"),
            ("/a.webm", "video/webm"),
            ("/cc.vtt", "text/vtt; charset=utf-8"),
            ("/k.key", "application/octet-stream"),
            // Files of web pages.
            ("/index.html", "text/html; charset=utf-8"),
            ("/old.HTM", "text/html; charset=utf-8"),
            ("/a.css", "text/css; charset=utf-8"),
            ("/a.js", "text/javascript; charset=utf-8"),
            ("/a.mjs", "text/javascript; charset=utf-8"),
            ("/a.txt", "text/plain; charset=utf-8"),
            ("/a.json", "application/json"),
            ("/a.xml", "application/xml"),
            ("/a.wasm", "application/wasm"),
            ("/a.woff", "font/woff"),
            ("/a.woff2", "font/woff2"),
            ("/a.ttf", "font/ttf"),
            ("/a.svg", "image/svg+xml"),
            ("/a.gif", "image/gif"),
            ("/a.avif", "image/avif"),
            ("/a.webp", "image/webp"),
            ("/favicon.ico", "image/x-icon"),
            ("/a.pdf", "application/pdf"),
            ("/a.zip", "application/zip"),
            // In no table.
            ("/no-extension", "application/octet-stream"),
            ("/dir.mp4/file", "application/octet-stream"),
            ("/a.", "application/octet-stream"),
            ("/a.mp4x", "application/octet-stream"),
            ("", "application/octet-stream"),
            ("/a.é", "application/octet-stream"),
        ] {
            assert_eq!(type_of(path), content_type, "{path}");
        }
    }

    #[test]
    fn the_table_of_media_is_sane() {
        for (index, (extension, content_type)) in MEDIA_TYPES.iter().enumerate() {
            assert!(is_media_type(content_type), "{content_type}");
            let again = MEDIA_TYPES
                .iter()
                .skip(index + 1)
                .any(|(other, _)| other == extension);
            assert!(!again, "{extension} is listed twice");
        }
    }

    #[test]
    fn configured_types_come_first() {
        let mut types = ContentTypes::default();
        types.insert("ts", "text/x-typescript").unwrap();
        types.insert("XYZ", "video/x; a=\"b c\"").unwrap();
        assert_eq!(
            types.of("/a.TS").to_string(),
            "text/x-typescript; charset=utf-8"
        );
        assert_eq!(types.of("/a.xyz").to_string(), "video/x; a=\"b c\"");
        assert_eq!(types.of("/a.mp4").to_string(), "video/mp4");
    }

    #[test]
    fn configured_types_are_checked() {
        let long = |bytes: usize| format!("a/{}", "b".repeat(bytes - 2));
        for (extension, content_type, verdict) in [
            ("a", "b/c", Ok(())),
            ("a-b_c", "text/html; charset=iso-8859-1", Ok(())),
            ("sixteen-bytes-xx", "b/c", Ok(())),
            (
                "seventeen-bytes-x",
                "b/c",
                Err(ContentTypeProblem::Extension),
            ),
            ("", "b/c", Err(ContentTypeProblem::Extension)),
            (".a", "b/c", Err(ContentTypeProblem::Extension)),
            ("a/b", "b/c", Err(ContentTypeProblem::Extension)),
            ("a\n", "b/c", Err(ContentTypeProblem::Extension)),
            ("a", "", Err(ContentTypeProblem::Grammar)),
            ("a", "video", Err(ContentTypeProblem::Grammar)),
            ("a", "/mp4", Err(ContentTypeProblem::Grammar)),
            ("a", "video/", Err(ContentTypeProblem::Grammar)),
            ("a", "video/m p4", Err(ContentTypeProblem::Grammar)),
            ("a", "video/mp4/x", Err(ContentTypeProblem::Grammar)),
            ("a", "video/mp4\r\nX: y", Err(ContentTypeProblem::Grammar)),
            ("a", "video/mp4;\r\nX: y", Err(ContentTypeProblem::Grammar)),
            ("a", "video/mp4; é", Err(ContentTypeProblem::Grammar)),
            ("a", &long(CONTENT_TYPE_BYTES_MAX), Ok(())),
            (
                "a",
                &long(CONTENT_TYPE_BYTES_MAX + 1),
                Err(ContentTypeProblem::Grammar),
            ),
        ] {
            let mut types = ContentTypes::default();
            assert_eq!(
                types.insert(extension, content_type),
                verdict,
                "{extension:?} {content_type:?}"
            );
        }
        let mut types = ContentTypes::default();
        for _ in 0..OWN_TYPES_MAX {
            types.insert("a", "b/c").unwrap();
        }
        assert_eq!(types.insert("a", "b/c"), Err(ContentTypeProblem::TooMany));
    }

    #[test]
    fn playlists_are_asked_for_anew_and_media_are_kept() {
        let mut types = ContentTypes::default();
        types
            .insert("steer", "application/vnd.apple.steering-list")
            .unwrap();
        let (revalidated, by_age) = (Some(Caching::Revalidated), Some(Caching::ByAge));
        for (path, caching) in [
            ("/a.m3u8", revalidated),
            ("/a.m3u", revalidated),
            ("/a.mpd", revalidated),
            ("/a.ism", revalidated),
            ("/a.ismc", revalidated),
            ("/steering.json", revalidated),
            ("/a.dcsm", revalidated),
            ("/a.steer", revalidated),
            ("/a.ts", by_age),
            ("/a.m4s", by_age),
            ("/init.mp4", by_age),
            ("/a.cmft", by_age),
            ("/a.aac", by_age),
            ("/a.vtt", by_age),
            ("/a.srt", by_age),
            ("/a.html", None),
            ("/a.key", None),
            ("/a.jpg", None),
            ("/a", None),
        ] {
            assert_eq!(types.of(path).caching(), caching, "{path}");
        }
    }
}
