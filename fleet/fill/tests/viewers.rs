//! What viewers miss and ask for, as `atlas serve` tells it.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fmt::Write as _;

use common::{Edge, Origin, content};

/// These were missed; `next` would be the number of the next one.
fn misses(next: u64, paths: &[&str]) -> String {
    let mut text = format!("{{\"instance\":\"one\",\"next\":{next}}}\n");
    for (sequence, path) in (next - paths.len() as u64..).zip(paths) {
        let line = format!(
            "{{\"sequence\":{sequence},\"site\":\"a.example\",\"path\":\"{path}\",\"requests\":3,\"last\":1}}"
        );
        let _ = writeln!(text, "{line}");
    }
    text
}

fn counts(requests: &[(&str, u64)]) -> String {
    let mut text = "{\"instance\":\"one\",\"began\":5}\n".to_owned();
    for (path, count) in requests {
        let _ = writeln!(
            text,
            "{{\"path\":\"{path}\",\"site\":\"a.example\",\"requests\":{count},\"last\":1}}"
        );
    }
    text
}

/// An edge that only brings what is missed, one object at a time.
fn edge(origin: &Origin) -> Edge {
    let edge = Edge::new(origin);
    let manifest = edge.path("wanted.jsonl");
    std::fs::write(&manifest, "").unwrap();
    edge.set(&format!(
        "memory = \"1MiB\"\nserver = \"{}\"\nmisses_seconds = \"50ms\"\ncounts_seconds = \"50ms\"\nmanifest = \"{}\"\n",
        origin.address,
        manifest.display()
    ))
}

#[test]
fn what_viewers_miss_is_brought_once_playlists_first() {
    let origin = Origin::start();
    origin.put("films/a b.m3u8", b"#EXTM3U\n");
    origin.put("films/a.ts", &content("a", 1_000));
    origin.put("films/b.ts", b"x");
    let edge = edge(&origin);
    let paths = [
        "/a.ts",
        "/a%20b.m3u8",
        "/a.ts?x=1",
        "/absent.ts",
        "/../etc/passwd",
        "/.hidden",
    ];
    origin.tell(&misses(6, &paths), &counts(&[]));
    let mut running = edge.start(&[]);
    let fetched = running.wait_for_names("fetched", &["a b.m3u8", "a.ts"].map(String::from));
    assert!(fetched.iter().all(|it| it["missed"] == true), "{fetched:?}");
    origin.wait_for("GET /misses?after=6", 5);
    let ended = running.terminate();
    assert_eq!(edge.names(), ["a b.m3u8", "a.ts"]);
    assert_eq!(origin.first("GET films/"), "GET films/a b.m3u8");
    assert_eq!(origin.count("GET films/a.ts"), 1);
    // The origin is asked for what it does not have once in a while, and it is no failure.
    assert!((1..=2).contains(&origin.count("HEAD films/absent.ts")));
    assert_eq!(ended.of("failed").len(), 0);
}

#[test]
fn another_process_of_the_server_is_asked_from_its_beginning() {
    let origin = Origin::start();
    origin.put("films/a.ts", b"x");
    let edge = edge(&origin);
    origin.tell(&misses(900, &[]), &counts(&[]));
    let mut running = edge.start(&[]);
    origin.wait_for("GET /misses?after=900", 2);
    let other = misses(1, &["/a.ts"]).replace("one", "two");
    origin.tell(&other, &counts(&[]));
    running.wait_for_name("fetched", "a.ts");
    assert!(origin.count("GET /misses?after=0") >= 2);
    running.terminate();
}

#[test]
fn what_viewers_ask_for_stays_and_the_rest_leaves() {
    let origin = Origin::start();
    let name = |index: usize| format!("{index:02}.ts");
    for index in 0..30 {
        origin.put(&format!("films/{}", name(index)), &content("x", 10_000));
    }
    // So slowly that the server is asked several times meanwhile what was missed.
    origin.rate(Some(500_000));
    let edge = edge(&origin).set("capacity = 100000\nhigh_percent = 100\nlow_percent = 80\n");
    let first: Vec<String> = (0..10).map(|index| format!("/{}", name(index))).collect();
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    origin.tell(
        &misses(10, &first),
        &counts(&[("/03.ts", 50), ("/04.ts", 50)]),
    );
    let mut running = edge.start(&[]);
    running.wait_for_names("fetched", &(0..10).map(name).collect::<Vec<_>>());
    // Counts of what is here by now.
    let two_sites = [("/03.ts", 60), ("/03.ts", 30), ("/04.ts", 90)];
    origin.tell(&misses(10, &[]), &counts(&two_sites));
    let asked = origin.count("GET /counts");
    origin.wait_for("GET /counts", asked + 3);
    // A scan of 20 more.
    let more: Vec<String> = (10..30).map(|index| format!("/{}", name(index))).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    origin.tell(
        &misses(30, &more),
        &counts(&[("/03.ts", 90), ("/04.ts", 90)]),
    );
    running.wait_for_names("fetched", &(10..30).map(name).collect::<Vec<_>>());
    running.terminate();
    let names = edge.names();
    assert!(names.len() <= 10, "{names:?}");
    assert!(
        names.contains(&name(3)) && names.contains(&name(4)),
        "{names:?}"
    );
}

#[test]
fn a_live_playlist_is_followed() {
    let origin = Origin::start();
    origin.put("films/live/a.m3u8", b"1");
    let edge = Edge::new(&origin).set("live = [\"live/*.m3u8\"]\nlive_seconds = \"50ms\"\n");
    let mut running = edge.start(&[]);
    for version in 1..5_u8 {
        origin.put("films/live/a.m3u8", &[b'0' + version; 7]);
        running.wait_for_name("fetched", "live/a.m3u8");
    }
    running.terminate();
}

#[test]
fn a_server_that_is_not_there_is_told_once_and_asked_again() {
    let origin = Origin::start();
    origin.put("films/a.ts", b"x");
    let edge = edge(&origin);
    // It answers, and not what it should.
    origin.tell("nothing", "nothing");
    let mut running = edge.start(&[]);
    let waiting = running.wait_for_event("waiting");
    assert_eq!(waiting["kind"], "connect", "{waiting}");
    origin.wait_for("GET /misses", 5);
    origin.tell(&misses(1, &["/a.ts"]), &counts(&[]));
    running.wait_for_event("recovered");
    running.wait_for_name("fetched", "a.ts");
    assert_eq!(running.terminate().of("waiting").len(), 1);
}
