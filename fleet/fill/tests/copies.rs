//! What the program makes of a library that behaves.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use common::{Edge, Origin, content};

#[test]
fn a_library_is_copied_checked_and_equal_at_the_end() {
    let origin = Origin::start();
    // Parts have 64 KiB: none, one byte less than one, one, one more, several.
    let sizes = [0, 1, 65_535, 65_536, 65_537, 300_000];
    for size in sizes {
        let name = format!("films/a/{size}.m4s");
        origin.put(&name, &content(&name, size));
    }
    origin.put("films/a/ä b.m3u8", b"#EXTM3U\n");
    origin.put("films/.hidden", b"x");
    origin.put("other/b", b"x");
    let edge = Edge::new(&origin);
    let ended = edge.once(&[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for size in sizes {
        let name = format!("a/{size}.m4s");
        assert_eq!(
            edge.read(&name).unwrap(),
            content(&format!("films/{name}"), size),
            "{name}"
        );
    }
    assert_eq!(edge.names().len(), 7);
    assert_eq!(edge.read("a/ä b.m3u8").unwrap(), b"#EXTM3U\n");
    let fetched = ended.of("fetched");
    // Every one compared with its MD5.
    assert!(
        fetched.iter().all(|it| it["verified"] == "md5"),
        "{fetched:?}"
    );
    assert_eq!(ended.of("listed")[0]["skipped"], 1);
    // Nothing to do the second time, though nothing but the files says what is there.
    let requests = origin.count("GET ");
    let ended = edge.once(&[]);
    assert_eq!((ended.code, ended.of("fetched").len()), (Some(0), 0));
    assert_eq!(origin.count("GET "), requests);
}

#[test]
fn a_replaced_object_is_replaced_and_a_removed_one_goes() {
    let origin = Origin::start();
    for name in ["films/a", "films/b/c", "films/d"] {
        origin.put(name, b"version 1");
    }
    let edge = Edge::new(&origin);
    let mut running = edge.start(&[]);
    running.wait_for_names("fetched", &["a", "b/c", "d"].map(String::from));
    // Of the same length and the same second.
    origin.put("films/a", b"version 2");
    origin.remove("films/b/c");
    running.wait_for("both", |it| it["name"] == "a" || it["name"] == "b/c");
    running.wait_for("both", |it| it["name"] == "a" || it["name"] == "b/c");
    let ended = running.terminate();
    assert_eq!(ended.code, Some(0));
    assert_eq!(edge.read("a").unwrap(), b"version 2");
    assert_eq!(edge.names(), ["a", "d"]);
    assert!(!edge.path("video/b").exists());
    assert_eq!(ended.of("ended")[0]["fetched"], 4);
}

#[test]
fn an_empty_listing_removes_nothing_and_says_so() {
    let origin = Origin::start();
    for index in 0..20 {
        origin.put(&format!("films/{index}"), b"x");
    }
    let edge = Edge::new(&origin);
    assert_eq!(edge.once(&[]).code, Some(0));
    origin.list_nothing(true);
    let ended = edge.once(&[]);
    assert_eq!((ended.code, edge.names().len()), (Some(1), 20));
    assert_eq!(ended.of("removals_refused")[0]["objects"], 20);
    let edge = edge.set("removals_percent_max = 100\n");
    let ended = edge.once(&[]);
    assert_eq!((ended.code, edge.names().len()), (Some(0), 0));
}

#[test]
fn a_manifest_says_what_is_wanted_and_until_when() {
    let origin = Origin::start();
    for name in ["new/1", "new/2", "old/1", "other/1", "single"] {
        origin.put(&format!("films/{name}"), name.as_bytes());
    }
    let edge = Edge::new(&origin);
    let manifest = edge.path("wanted.jsonl");
    let edge = edge.set(&format!("manifest = \"{}\"\n", manifest.display()));
    let lines = "{\"name\": \"new/\", \"priority\": 1}\n{\"name\": \"single\", \"priority\": 9}\n\
                 {\"name\": \"old/\", \"expires\": \"2020-01-01T00:00:00Z\"}\n";
    std::fs::write(&manifest, lines).unwrap();
    let ended = edge.once(&[]);
    assert_eq!(ended.code, Some(0));
    assert_eq!(edge.names(), ["new/1", "new/2", "single"]);
    std::fs::write(&manifest, "{\"name\": \"new/\", \"expires\": 1}\n").unwrap();
    assert_eq!(edge.once(&[]).code, Some(0));
    // What has expired goes; what is wanted no more stays while there is room.
    assert_eq!(edge.names(), ["single"]);
    std::fs::write(&manifest, "{\"nam\": 1}\n").unwrap();
    let ended = edge.once(&[]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("wanted.jsonl:1: unknown field `nam`"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let origin = Origin::start();
    origin.put("films/a", b"12345");
    let edge = Edge::new(&origin);
    std::fs::write(edge.path("video/mine"), "x").unwrap();
    let ended = edge.once(&["--dry-run"]);
    assert_eq!(ended.code, Some(0));
    let would: Vec<_> = ended
        .of("would")
        .iter()
        .map(|it| (it["step"].clone(), it["name"].clone()))
        .collect();
    assert_eq!(
        would,
        [
            ("remove".into(), "mine".into()),
            ("fetch".into(), "a".into())
        ]
    );
    assert_eq!(edge.names(), ["mine"]);
    assert!(!edge.path("video/.atlas-fill").exists());
    // And a directory of somebody else's is not filled.
    let ended = edge.once(&[]);
    assert_eq!((ended.code, edge.names().len()), (Some(2), 1));
    assert!(ended.stderr.contains("--adopt"), "{}", ended.stderr);
}

#[test]
fn an_origin_may_be_a_directory() {
    let origin = Origin::start();
    let edge = Edge::new(&origin);
    let library = edge.path("library");
    std::fs::create_dir_all(library.join("a")).unwrap();
    std::fs::write(library.join("a/b.ts"), content("b", 200_000)).unwrap();
    let url = format!("file://{}", library.display());
    let target = edge.path("video");
    let edge = edge.set("");
    let ended = edge.once(&[&url, target.to_str().unwrap()]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(edge.read("a/b.ts").unwrap(), content("b", 200_000));
    assert_eq!(ended.of("fetched")[0]["verified"], "length");
}

#[test]
fn over_plain_http_names_are_those_of_the_manifest() {
    let origin = Origin::start();
    origin.put("films/a.m3u8", b"#EXTM3U\n");
    origin.put("films/a.ts", &content("a", 200_000));
    let edge = Edge::new(&origin);
    let target = edge.path("video");
    let url = format!("http://{}/films", origin.address);
    let edge = edge.set("");
    let ended = edge.once(&[&url, target.to_str().unwrap()]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("cannot be listed"),
        "{}",
        ended.stderr
    );
    let manifest = edge.path("wanted.jsonl");
    std::fs::write(&manifest, "{\"name\":\"a.ts\"}\n{\"name\":\"a.m3u8\"}\n").unwrap();
    let flags = [
        &url,
        target.to_str().unwrap(),
        "--manifest",
        manifest.to_str().unwrap(),
    ];
    assert_eq!(edge.once(&flags).code, Some(0));
    assert_eq!(edge.read("a.ts").unwrap(), content("a", 200_000));
    // Each one's version is asked for, and no content.
    let requests = origin.count("GET ");
    origin.put("films/a.m3u8", b"#EXTM3U\n#EXT-X-ENDLIST\n");
    let ended = edge.once(&flags);
    assert_eq!(ended.code, Some(0));
    assert_eq!(origin.count("GET "), requests + 1);
    assert_eq!(edge.read("a.m3u8").unwrap(), b"#EXTM3U\n#EXT-X-ENDLIST\n");
    std::fs::write(&manifest, "{\"name\":\"absent\"}\n").unwrap();
    let ended = edge.once(&flags);
    assert_eq!(
        (ended.code, ended.of("failed")[0]["kind"].as_str()),
        (Some(1), Some("absent"))
    );
}

#[test]
fn an_http_origin_that_says_404_to_everything_removes_nothing() {
    let origin = Origin::start();
    let names: Vec<String> = (0..20).map(|index| format!("{index}")).collect();
    for name in &names {
        origin.put(&format!("films/{name}"), b"x");
    }
    let edge = Edge::new(&origin);
    let lines: String = names
        .iter()
        .map(|name| format!("{{\"name\":\"{name}\"}}\n"))
        .collect();
    std::fs::write(edge.path("wanted.jsonl"), lines).unwrap();
    let settings = format!(
        "origin = \"http://{}/films\"\ntarget = \"{}\"\nmanifest = \"{}\"\n",
        origin.address,
        edge.path("video").display(),
        edge.path("wanted.jsonl").display()
    );
    let edge = edge.replace(&settings);
    assert_eq!(edge.once(&[]).code, Some(0));
    for name in &names {
        origin.remove(&format!("films/{name}"));
    }
    let ended = edge.once(&[]);
    assert_eq!((ended.code, edge.names().len()), (Some(1), 20));
    let refused = ended.of("removals_refused");
    assert_eq!(refused[0]["objects"], 20, "{refused:?}");
    // Some of them are not there, and others are: those have gone.
    for name in &names[..15] {
        origin.put(&format!("films/{name}"), b"x");
    }
    let ended = edge.once(&[]);
    assert_eq!((ended.of("removed").len(), edge.names().len()), (5, 15));
}

#[test]
fn a_signal_ends_it_with_the_code_of_that_signal() {
    use rustix::process::Signal;
    let origin = Origin::start();
    origin.put("films/a", &content("a", 100_000));
    origin.wrong("films/a", Some(common::Wrong::Stall(10)));
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let edge = Edge::new(&origin);
        let before = origin.count("GET films/a");
        let running = edge.start(&["--once"]);
        origin.wait_for("GET films/a", before + 1);
        assert_eq!(running.end_by(signal).code, Some(code));
    }
}

#[test]
fn a_dry_run_knows_what_there_is_room_for() {
    let origin = Origin::start();
    let edge = Edge::new(&origin);
    let stat = rustix::fs::statvfs(edge.path("video")).unwrap();
    // A tenth of what the file system has left.
    let length = stat.f_bavail * stat.f_frsize / 10;
    for index in 0..20 {
        let name = format!("films/{index}");
        origin.put(&name, b"x");
        origin.length_listed(&name, length);
    }
    let ended = edge.once(&["--dry-run"]);
    let count = ended.of("would").len();
    assert!((1..=10).contains(&count), "{count}");
}

#[test]
fn a_small_store_keeps_to_its_marks() {
    let origin = Origin::start();
    for index in 0..10 {
        origin.put(&format!("films/{index}"), &content("x", 10_000));
    }
    let edge = Edge::new(&origin).set("capacity = 60000\nhigh_percent = 100\nlow_percent = 67\n");
    let ended = edge.once(&[]);
    assert_eq!((ended.code, edge.names().len()), (Some(0), 4));
}

#[test]
fn a_rate_holds_for_all_requests_together() {
    let origin = Origin::start();
    for index in 0..8 {
        origin.put(&format!("films/{index}"), &content("x", 50_000));
    }
    let edge = Edge::new(&origin);
    let began = std::time::Instant::now();
    let ended = edge.once(&["--rate", "400kB/s"]);
    assert_eq!((ended.code, edge.names().len()), (Some(0), 8));
    // 400 kB, of which a tenth of a second is free: it cannot have been faster.
    assert!(began.elapsed().as_millis() >= 750, "{:?}", began.elapsed());
}

#[test]
fn metrics_and_health_are_told() {
    let origin = Origin::start();
    origin.put("films/a", b"12345");
    let edge = Edge::new(&origin);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut running = edge.start(&["--metrics", &port.to_string()]);
    running.wait_for_event("fetched");
    let ask = |path: &str| {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = ask("/metrics");
    assert!(text.contains("atlas_fill_objects_total 1\n"), "{text}");
    assert!(
        text.contains("atlas_fill_verified_objects_total 1\n"),
        "{text}"
    );
    assert!(ask("/health").starts_with("HTTP/1.1 200"));
    assert!(ask("/x").starts_with("HTTP/1.1 404"));
    origin.wrong_listing(Some(common::Wrong::Status(
        500,
        String::new(),
        "InternalError".into(),
    )));
    running.wait_for_event("waiting");
    assert!(ask("/health").starts_with("HTTP/1.1 503"));
    assert_eq!(running.terminate().code, Some(0));
}
