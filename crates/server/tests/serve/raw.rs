//! A raw store that is served from images, and changed meanwhile by `atlas store`.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::lab::{Atlas, Lab};
use crate::{content, set_mode};

/// More than the sockets of a connection hold.
const FILM_BYTES: usize = 24 << 20;

/// Images, and files to put into them.
struct Site {
    directory: TempDir,
    /// As `atlas` takes it.
    store: PathBuf,
}

impl Site {
    /// A store of this many images, which only root can open.
    fn new(images: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let names: Vec<_> = (0..images)
            .map(|number| directory.path().join(format!("image{number}")))
            .collect();
        let joined: Vec<_> = names.iter().map(|it| it.to_str().unwrap()).collect();
        let site = Self {
            store: joined.join(",").into(),
            directory,
        };
        let size = format!("{}", (FILM_BYTES * 3) / images);
        site.store_ok("init", &["--size", &size]);
        names.iter().for_each(|name| set_mode(name, 0o600));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Adds a file by this name.
    fn add(&self, name: &str, bytes: &[u8]) -> Output {
        let path = self.write(name, bytes);
        self.store("add", &[path.to_str().unwrap()])
    }

    fn store(&self, command: &str, words: &[&str]) -> Output {
        let mut atlas = Command::new(env!("CARGO_BIN_EXE_atlas"));
        atlas.args(["store", command]).arg(&self.store).args(words);
        atlas.output().unwrap()
    }

    fn store_ok(&self, command: &str, words: &[&str]) -> Vec<u8> {
        let output = self.store(command, words);
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command} {words:?}: {reason}");
        output.stdout
    }
}

fn ok(output: &Output) {
    let reason = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reason}");
}

/// Content of its own for each seed.
fn film(seed: usize, length: usize) -> Vec<u8> {
    let mut bytes = content(length);
    for (index, block) in bytes.chunks_mut(512).enumerate() {
        block[0] = u8::try_from((seed * 41 + index) % 256).unwrap();
    }
    bytes
}

pub(crate) fn header(head: &str, name: &str) -> Option<String> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let line = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
    line.map(|(_, value)| value.trim_end().to_owned())
}

#[test]
fn a_raw_store_is_served_whole_in_parts_and_by_its_tags() {
    let Some(lab) = Lab::new() else { return };
    for (images, words) in [(1, &[][..]), (2, &["--workers", "2"])] {
        let site = Site::new(images);
        let bytes = film(1, 3_000_017);
        ok(&site.add("film.mp4", &bytes));
        site.write("data", b"typed");
        let data = site.path("data");
        let typed = [
            "--type",
            "text/vtt",
            "--under",
            "a/b",
            data.to_str().unwrap(),
        ];
        site.store_ok("add", &typed);
        ok(&site.add("empty", b""));
        let mut atlas = Atlas::start(&lab, &site.store, words);
        assert_eq!(atlas.ready(), "ready http://10.77.0.2/");
        let url = "http://10.77.0.2/film.mp4";
        assert!(lab.curl(&[url]) == bytes, "not the film's bytes");
        for range in ["0-0", "65535-131072", "2999999-", "-1"] {
            let part = lab.curl(&["--range", range, url]);
            let (first, last) = range.split_once('-').unwrap();
            let end = last.parse().map_or(bytes.len(), |last: usize| last + 1);
            let expected = match first.parse::<usize>() {
                Ok(first) => &bytes[first..end],
                Err(_) => &bytes[bytes.len() - 1..],
            };
            assert!(part == expected, "{range}: not the range's bytes");
        }
        let head = String::from_utf8(lab.curl(&["-I", url])).unwrap();
        let tag = header(&head, "etag").unwrap();
        assert_eq!(header(&head, "content-type").as_deref(), Some("video/mp4"));
        let long = String::from_utf8(site.store_ok("ls", &["-l"])).unwrap();
        assert!(long.contains(tag.trim_matches('"')), "{tag}: {long}");
        let status = ["-o", "/dev/null", "-w", "%{http_code}"];
        let condition = format!("If-None-Match: {tag}");
        let asked = [&status[..], &["-H", &condition, url]].concat();
        assert_eq!(lab.curl(&asked), b"304");
        let changed = [&status[..], &["-H", "If-Match: \"0\"", url]].concat();
        assert_eq!(lab.curl(&changed), b"412");
        let typed = lab.curl(&["-i", "http://10.77.0.2/a/b/data"]);
        let typed = String::from_utf8(typed).unwrap();
        assert_eq!(
            header(&typed, "content-type").as_deref(),
            Some("text/vtt; charset=utf-8")
        );
        assert!(typed.ends_with("typed"), "{typed}");
        assert_eq!(lab.curl(&["http://10.77.0.2/empty"]), b"");
        for (path, code) in [("/missing", "404"), ("/a/b", "301"), ("/a/", "404")] {
            let url = format!("http://10.77.0.2{path}");
            let asked = [&status[..], &[&url]].concat();
            assert_eq!(lab.curl(&asked), code.as_bytes(), "{path}");
        }
        atlas.signal(libc::SIGTERM);
        let end = atlas.end();
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        let summary = end.json("summary ");
        assert_eq!(summary["memory_free_slots"], summary["memory_all_slots"]);
        assert_eq!(summary["store_threaded_lookups"], 0);
    }
}

#[test]
fn a_raw_store_may_change_while_it_is_served() {
    let Some(lab) = Lab::new() else { return };
    let site = Site::new(1);
    let old = film(1, FILM_BYTES);
    ok(&site.add("film.mp4", &old));
    let mut atlas = Atlas::start(&lab, &site.store, &[]);
    atlas.ready();
    let url = "http://10.77.0.2/film.mp4";
    // A client that reads slowly has the old film under way.
    let mut client = lab.connect("10.77.0.2:80");
    client
        .write_all(b"GET /film.mp4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = vec![0; 1];
    client.read_exact(&mut reply).unwrap();

    let new = film(2, FILM_BYTES);
    ok(&site.add("film.mp4", &new));
    atlas.stderr_line("catalogue 3");
    assert!(lab.curl(&[url]) == new, "not the new film's bytes");
    // There is room for a third film only where the old one is.
    let third = film(3, FILM_BYTES);
    let refused = site.add("third.mp4", &third);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{reason}");
    assert!(reason.contains("still being sent"), "{reason}");

    client.read_to_end(&mut reply).unwrap();
    assert!(reply.ends_with(&old), "not the old film's bytes");
    drop(client);
    // The lock on the old catalogue is given up when the thread looks again, which SIGHUP asks for.
    let is_added = (0..ATTEMPTS_MAX).any(|_| {
        atlas.signal(libc::SIGHUP);
        atlas.stderr_line("SIGHUP: PATH is opened again");
        site.store("add", &[site.path("third.mp4").to_str().unwrap()])
            .status
            .success()
    });
    assert!(is_added, "the space of the old film stays occupied");
    // Two objects again, in another catalogue.
    atlas.stderr_line("objects=2");
    assert!(lab.curl(&["http://10.77.0.2/third.mp4"]) == third);
    assert!(lab.curl(&[url]) == new);

    site.store_ok("rm", &["film.mp4"]);
    atlas.stderr_line("objects=1");
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    assert_eq!(lab.curl(&[&status[..], &[url]].concat()), b"404");
    site.store_ok("verify", &[]);
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// Far more than it takes: each asks the thread to look.
const ATTEMPTS_MAX: u32 = 1000;

#[test]
fn a_store_is_not_made_anew_while_it_is_served() {
    let Some(lab) = Lab::new() else { return };
    let site = Site::new(1);
    let mut atlas = Atlas::start(&lab, &site.store, &[]);
    atlas.ready();
    let refused = site.store("init", &["--overwrite-existing"]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{reason}");
    assert!(reason.contains("a server reads this store"), "{reason}");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn what_is_no_store_is_not_served() {
    let Some(lab) = Lab::new() else { return };
    let site = Site::new(2);
    let first = site.path("image0");
    let text = site.write("text", b"hello");
    for (path, part) in [
        (first.as_path(), "the store has 2 devices, and 1 were named"),
        (&text, "no store"),
        (
            Path::new("/dev/null"),
            "neither a block device nor an image",
        ),
    ] {
        let atlas = Atlas::start(&lab, path, &[]);
        let end = atlas.end();
        assert_eq!(end.code, Some(2), "{}", end.stderr);
        assert!(end.stderr.contains(part), "{}", end.stderr);
    }
}
