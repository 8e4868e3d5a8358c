//! `kill -9` at any moment leaves whole files only, and the next start goes on where it was.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::time::Duration;

use common::{Edge, Origin, content};

const NAME: &str = "films/long.ts";
/// 32 parts of 64 KiB.
const LENGTH: usize = 32 * 65_536;

#[test]
fn what_is_killed_goes_on_where_it_was() {
    let origin = Origin::start();
    origin.put(NAME, &content(NAME, LENGTH));
    // 64 KiB in 160 ms, in 8 parts at once.
    origin.rate(Some(400_000));
    let edge = Edge::new(&origin);
    let running = edge.start(&[]);
    // More requests than run at once: that many parts are over.
    origin.wait_for("GET films/long.ts bytes=", 16);
    running.kill();
    assert_eq!(edge.names(), [""; 0]);
    origin.rate(None);
    let before = origin.count("GET films/long.ts bytes=");
    let ended = edge.once(&[]);
    assert_eq!(ended.code, Some(0));
    assert!(edge.read("long.ts").unwrap() == content(NAME, LENGTH));
    let fetched = &ended.of("fetched")[0];
    let resumed = fetched["resumed_bytes"].as_u64().unwrap();
    assert!(resumed >= 4 * 65_536, "{fetched}");
    assert_eq!(fetched["verified"], "md5");
    // Only what was not there is asked for.
    let again = origin.count("GET films/long.ts bytes=") - before;
    assert_eq!(again as u64, (LENGTH as u64 - resumed) / 65_536);
}

#[test]
fn killed_at_many_moments_every_file_is_whole() {
    let origin = Origin::start();
    let names: Vec<String> = (0..24).map(|index| format!("films/{index}.ts")).collect();
    for (index, name) in names.iter().enumerate() {
        origin.put(name, &content(name, 20_000 + index * 10_000));
    }
    origin.rate(Some(1_500_000));
    let edge = Edge::new(&origin);
    let mut seen = 0;
    for round in 0..40 {
        let running = edge.start(&[]);
        // From before the listing until most of it is there.
        std::thread::sleep(Duration::from_millis(10 + round * 7));
        running.kill();
        for name in edge.names() {
            let name = format!("films/{name}");
            let index = names.iter().position(|it| *it == name).unwrap();
            let short = name.strip_prefix("films/").unwrap();
            assert!(
                edge.read(short).unwrap() == content(&name, 20_000 + index * 10_000),
                "{name}"
            );
        }
        let count = edge.names().len();
        assert!(count >= seen, "{count} of {seen}");
        seen = count;
    }
    origin.rate(None);
    assert_eq!(edge.once(&[]).code, Some(0));
    assert_eq!(edge.names().len(), names.len());
    let partial = std::fs::read_dir(edge.path("video/.atlas-fill/partial")).unwrap();
    assert_eq!(partial.count(), 0);
}

#[test]
fn a_signal_ends_it_cleanly_and_it_goes_on_then() {
    let origin = Origin::start();
    origin.put(NAME, &content(NAME, LENGTH));
    origin.rate(Some(400_000));
    let edge = Edge::new(&origin);
    let running = edge.start(&["--once"]);
    origin.wait_for("GET films/long.ts bytes=", 16);
    let ended = running.terminate();
    assert_eq!((ended.code, ended.of("ended").len()), (Some(143), 1));
    assert_eq!(edge.names(), [""; 0]);
    origin.rate(None);
    let ended = edge.once(&[]);
    assert!(ended.of("fetched")[0]["resumed_bytes"].as_u64().unwrap() > 0);
    assert!(edge.read("long.ts").unwrap() == content(NAME, LENGTH));
}
