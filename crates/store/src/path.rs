//! Which paths are valid names of objects.
//!
//! `http` passes normalized paths only, and `RESOLVE_BENEATH` keeps the kernel beneath the
//! directory. The store checks again, so that it is safe to use without `http`. It refuses relative
//! paths, empty and dot segments, and NUL. Bound: [`PATH_BYTES_MAX`].

use std::fmt::Write as _;

/// Longest path, bytes, with its leading `/`: the kernel's `PATH_MAX` of 4096 counts a final NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// The name relative to the directory: `None` unless the path is absolute and each of its
/// segments is neither empty nor a dot segment nor holds a NUL. So none ends with a slash.
pub(crate) fn name_of(path: &str) -> Option<&str> {
    if path.len() > PATH_BYTES_MAX || path.as_bytes().contains(&0) {
        return None;
    }
    let name = path.strip_prefix('/')?;
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    name.split('/').all(is_plain).then_some(name)
}

/// Writes what stands for a name in the directory with this index into `key`. In the first directory it is the
/// name. In another a slash precedes, with which no name begins, and the index.
pub(crate) fn key_of(index: u16, name: &str, key: &mut String) {
    key.clear();
    if index > 0 {
        let _ = write!(key, "/{index}/");
    }
    key.push_str(name);
}

/// The index and the name that a key was made of.
pub(crate) fn split_key(key: &str) -> (usize, &str) {
    let split = key.strip_prefix('/').and_then(|rest| {
        let (index, name) = rest.split_once('/')?;
        Some((index.parse().ok()?, name))
    });
    split.unwrap_or((0, key))
}

#[cfg(test)]
mod tests {
    use super::{PATH_BYTES_MAX, key_of, name_of, split_key};

    #[test]
    fn a_key_is_a_name_of_one_directory() {
        let mut key = String::new();
        for (index, name, made) in [
            (0, "a/b", "a/b"),
            (0, "1/b", "1/b"),
            (1, "b", "/1/b"),
            (u16::MAX, "1/a/b", "/65535/1/a/b"),
        ] {
            key_of(index, name, &mut key);
            assert_eq!(key, made);
            assert_eq!(split_key(&key), (index.into(), name));
        }
    }

    #[test]
    fn names() {
        for (path, name) in [
            ("/a", "a"),
            ("/a/b.c", "a/b.c"),
            ("/...", "..."),
            ("/..a/.b", "..a/.b"),
            ("/a b\\c", "a b\\c"),
            ("/%2e%2e", "%2e%2e"),
        ] {
            assert_eq!(name_of(path), Some(name), "{path}");
        }
    }

    #[test]
    fn not_names() {
        for path in [
            "",
            "/",
            "a",
            "//",
            "//a",
            "/a/",
            "/a//b",
            "/.",
            "/..",
            "/./a",
            "/../a",
            "/a/.",
            "/a/..",
            "/a/../b",
            "/a/./b",
            "../a",
            "./a",
            "/a\0",
            "/\0",
            "/a\0/../b",
        ] {
            assert_eq!(name_of(path), None, "{path:?}");
        }
    }

    #[test]
    fn the_longest_path_and_one_byte_more() {
        let path = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
        assert!(name_of(&path(PATH_BYTES_MAX)).is_some());
        assert!(name_of(&path(PATH_BYTES_MAX + 1)).is_none());
    }
}
