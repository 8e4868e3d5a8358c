//! Content types by file name extension.
//!
//! It knows what packagers of HLS, DASH and CMAF write, and what a player's page needs.
//! Everything else is `application/octet-stream`. It never looks into an object.

/// The type of what is not in [`TYPES`].
const UNKNOWN: &str = "application/octet-stream";

/// Longest extension in [`TYPES`], bytes.
const EXTENSION_BYTES_MAX: usize = 5;

/// Extension (lower case) and type.
///
/// RFC 8216 s4: `.m3u8` is `application/vnd.apple.mpegurl`. ISO/IEC 23009-1 (DASH): `.mpd` is
/// `application/dash+xml`, `.m4s` segments are `video/iso.segment`. ISO/IEC 23000-19 (CMAF) names
/// `.cmfv`, `.cmfa`, `.cmft` and `.cmfm`, whose contents are ISO base media (RFC 4337: `video/mp4`,
/// `audio/mp4`, `application/mp4`). RFC 3555 registers `video/MP2T`. Text types carry their
/// charset, as a page or subtitle without one is guessed at.
const TYPES: [(&str, &str); 39] = [
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("mpd", "application/dash+xml"),
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
    ("ogg", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("flac", "audio/flac"),
    ("wav", "audio/wav"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("srt", "application/x-subrip"),
    ("ttml", "application/ttml+xml"),
    ("key", UNKNOWN),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("webp", "image/webp"),
    ("svg", "image/svg+xml"),
    ("json", "application/json"),
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("xml", "application/xml"),
    ("wasm", "application/wasm"),
    ("txt", "text/plain; charset=utf-8"),
];

/// The content type for a path, by the extension of its last segment in either case.
#[must_use]
pub fn content_type_of(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, extension)) = name.rsplit_once('.') else {
        return UNKNOWN;
    };
    if extension.len() > EXTENSION_BYTES_MAX {
        return UNKNOWN;
    }
    TYPES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(extension))
        .map_or(UNKNOWN, |(_, content_type)| content_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_paths() {
        for (path, content_type) in [
            ("/live/master.m3u8", "application/vnd.apple.mpegurl"),
            ("/a.MPD", "application/dash+xml"),
            ("/v/seg-1.m4s", "video/iso.segment"),
            ("/v/init.cmfv", "video/mp4"),
            ("/film.tar.mp4", "video/mp4"),
            ("/seg.ts", "video/mp2t"),
            ("/cc.vtt", "text/vtt; charset=utf-8"),
            ("/k.key", UNKNOWN),
            ("/no-extension", UNKNOWN),
            ("/dir.mp4/file", UNKNOWN),
            ("/a.", UNKNOWN),
            ("/a.mp4x", UNKNOWN),
            ("", UNKNOWN),
            ("/a.é", UNKNOWN),
        ] {
            assert_eq!(content_type_of(path), content_type, "{path}");
        }
    }

    #[test]
    fn the_table_is_sane() {
        for (index, (extension, content_type)) in TYPES.iter().enumerate() {
            assert!(extension.len() <= EXTENSION_BYTES_MAX, "{extension}");
            assert!(
                content_type.is_ascii() && content_type.contains('/'),
                "{content_type}"
            );
            let again = TYPES
                .iter()
                .skip(index + 1)
                .any(|(other, _)| other == extension);
            assert!(!again, "{extension} is listed twice");
        }
    }
}
