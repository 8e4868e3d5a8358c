//! Files that were written a moment ago, as those of a live stream are.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::{Atlas, Lab};
use crate::raw::header;
use crate::{directory, set_mode};

/// Longer than a file is young, on a machine that does other things as well.
const AGED_WITHIN: Duration = Duration::from_secs(30);

/// Tries to ask for a file within a second after it was written.
const TRIES_MAX: usize = 50;

const URL: &str = "http://10.77.0.2/segment.m4s";

/// The head of the reply to `GET` with these field lines, or `HEAD` if there are none.
fn head(lab: &Lab, lines: &[&str]) -> String {
    let mut words = vec!["-s", "-D", "-", "-o", "/dev/null", URL];
    if lines.is_empty() {
        words.push("--head");
    }
    lines.iter().for_each(|line| words.extend(["-H", line]));
    String::from_utf8(lab.curl(&words)).unwrap()
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

fn replace(path: &Path, content: &str) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, content).unwrap();
    set_mode(&fresh, 0o644);
    std::fs::rename(&fresh, path).unwrap();
}

/// Writes the file until it is asked for while it is young; its weak tag.
fn weak_tag(lab: &Lab, path: &Path) -> String {
    for _ in 0..TRIES_MAX {
        replace(path, "content");
        let head = head(lab, &[]);
        assert_eq!(status(&head), "200", "{head}");
        if let Some(tag) = header(&head, "etag").filter(|tag| tag.starts_with("W/")) {
            assert_eq!(header(&head, "last-modified"), None, "{head}");
            let caching = header(&head, "cache-control");
            assert_eq!(caching.as_deref(), Some("public, max-age=1"));
            return tag;
        }
    }
    panic!("no reply came within a second after the file was written");
}

/// Asks until the file has aged; its strong tag.
fn strong_tag(lab: &Lab) -> String {
    let begun = Instant::now();
    loop {
        let head = head(lab, &[]);
        let tag = header(&head, "etag").unwrap();
        if !tag.starts_with("W/") {
            assert!(header(&head, "last-modified").is_some(), "{head}");
            return tag;
        }
        assert!(begun.elapsed() < AGED_WITHIN, "{head}");
    }
}

#[test]
fn a_file_has_a_weak_tag_for_a_second_and_is_known_by_it_later() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let weak = weak_tag(&lab, &directory.path().join("segment.m4s"));
    let strong = strong_tag(&lab);
    for tag in [&weak, &strong] {
        let known = head(&lab, &[&format!("If-None-Match: {tag}")]);
        assert_eq!(status(&known), "304", "{tag}");
        assert_eq!(header(&known, "etag").as_ref(), Some(tag));
    }
    for (tag, expected) in [(&weak, "200"), (&strong, "206")] {
        let part = head(&lab, &["Range: bytes=1-", &format!("If-Range: {tag}")]);
        assert_eq!(status(&part), expected, "{tag}");
    }
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn what_replaces_a_young_file_at_the_same_size_is_told_apart() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let path = directory.path().join("segment.m4s");
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let weak = weak_tag(&lab, &path);
    replace(&path, "another");
    let changed = head(&lab, &[&format!("If-None-Match: {weak}")]);
    assert_eq!(status(&changed), "200", "{changed}");
    assert_ne!(header(&changed, "etag"), Some(weak.clone()));
    let condition = format!("If-Range: {weak}");
    let resumed = lab.curl(&["-H", "Range: bytes=3-", "-H", &condition, URL]);
    assert_eq!(resumed, b"another");
    strong_tag(&lab);
    let changed = head(&lab, &[&format!("If-None-Match: {weak}")]);
    assert_eq!(status(&changed), "200", "{changed}");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// Blocking playlist reload of Low-Latency HLS is not for a server of files: what is asked for by a query comes
/// at once.
#[test]
fn a_playlist_is_answered_as_it_is_whatever_its_query_asks_for() {
    const PLAYLIST: &str = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:7\n";
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    std::fs::write(directory.path().join("live.m3u8"), PLAYLIST).unwrap();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    for query in [
        "",
        "?_HLS_msn=9&_HLS_part=1",
        "?_HLS_skip=YES",
        "?_HLS_msn=x",
    ] {
        let url = format!("http://10.77.0.2/live.m3u8{query}");
        let reply = String::from_utf8(lab.curl(&["-i", &url])).unwrap();
        assert_eq!(status(&reply), "200", "{reply}");
        let caching = header(&reply, "cache-control");
        assert_eq!(caching.as_deref(), Some("no-cache"), "{reply}");
        assert!(reply.ends_with(PLAYLIST), "{reply}");
    }
    // A part that is announced and not there yet.
    let part = "http://10.77.0.2/part9.1.m4s";
    let missing = lab.curl(&["-o", "/dev/null", "-w", "%{http_code}", part]);
    assert_eq!(missing, b"404");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}
