//! A raw store as target, and `kill -9` while it is changed.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use common::{Edge, Origin, content};
use fill::copies::RawTarget;
use store::raw::{Access, Device, RawStore, names_in};
use volume::{BLOCK_BYTES, Catalogue, Commit, ContentDigest, Geometry, StoreId};
use writer::{Transfer, Writing};

/// Makes an image with a store, as `atlas store init` does.
fn make(path: &Path, blocks: u64) {
    let image = File::create(path).unwrap();
    image.set_len(blocks * u64::from(BLOCK_BYTES)).unwrap();
    let devices = vec![Device::open(path, Access::Write).unwrap()];
    let geometry = Geometry::new(StoreId([7; 16]), vec![blocks], 64).unwrap();
    let transfer = Transfer::new(&devices).unwrap();
    let raw = RawStore::unmounted(devices);
    let lock = raw.lock_for_making().unwrap();
    let mut writing = Writing::new(raw, transfer, lock);
    writing
        .carry_out(Commit::first(Catalogue::empty(geometry)))
        .unwrap();
}

/// An edge with a store of so many blocks.
fn edge(origin: &Origin, blocks: u64) -> Edge {
    let edge = Edge::new(origin);
    make(&edge.path("store"), blocks);
    let target = edge.path("video").display().to_string();
    let text = std::fs::read_to_string(edge.path("fill.toml")).unwrap();
    let store = edge.path("store").display().to_string();
    let staging = format!("staging = \"{}\"\n", edge.path("staging").display());
    edge.replace(&text.replace(&target, &store)).set(&staging)
}

/// Every object of the store: its name and content, which its checksums agree with.
fn objects(path: &Path) -> Vec<(String, Vec<u8>)> {
    let raw = RawStore::open(&names_in(path), Access::Read { direct: false }).unwrap();
    let loaded = raw.load().unwrap();
    assert!(loaded.damage.is_none() && loaded.unknown.is_none());
    let image = File::open(path).unwrap();
    let read = |entry: &volume::Entry| {
        let mut bytes = vec![0; usize::try_from(entry.size_bytes).unwrap()];
        let start = entry.extent.start * u64::from(BLOCK_BYTES);
        image.read_exact_at(&mut bytes, start).unwrap();
        let mut digest = ContentDigest::new();
        digest.update(&bytes);
        assert_eq!(digest.finish().0, *entry.runs, "{}", entry.name);
        (entry.name.to_string(), bytes)
    };
    loaded.catalogue.entries().iter().map(read).collect()
}

#[test]
fn a_raw_store_is_filled_changed_and_evicted_from() {
    let origin = Origin::start();
    for index in 0..6_u8 {
        origin.put(
            &format!("films/{index}"),
            &content("x", 100_000 + usize::from(index)),
        );
    }
    let edge = edge(&origin, 4096);
    let ended = edge.once(&[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let found = objects(&edge.path("store"));
    assert_eq!(found.len(), 6);
    assert_eq!(found[3], ("3".to_owned(), content("x", 100_003)));
    origin.put("films/3", b"another");
    origin.remove("films/4");
    let ended = edge.once(&[]);
    assert_eq!(
        (
            ended.code,
            ended.of("fetched").len(),
            ended.of("removed").len()
        ),
        (Some(0), 1, 1)
    );
    let found = objects(&edge.path("store"));
    assert_eq!((found.len(), &found[3].1[..]), (5, &b"another"[..]));
    // Nothing to do.
    let ended = edge.once(&[]);
    assert_eq!((ended.code, ended.of("fetched").len()), (Some(0), 0));
    let (held, _) = RawTarget::look(&edge.path("store")).unwrap();
    assert_eq!(held.len(), 5);
}

#[test]
fn an_object_that_no_free_run_holds_does_not_hold_up_the_others() {
    let origin = Origin::start();
    for name in ["films/1", "films/2", "films/3"] {
        origin.put(name, &vec![b'x'; 9 << 20]);
    }
    let edge = edge(&origin, 8192).set("memory = \"1MiB\"\n");
    let ended = edge.once(&[]);
    assert_eq!((ended.code, ended.of("fetched").len()), (Some(0), 3));
    // There is room for it, but in two pieces. Of two that wait it is the first.
    origin.remove("films/2");
    origin.put("films/0", &vec![b'x'; (9 << 20) + 100_000]);
    origin.put("films/small", b"x");
    let mut running = edge.start(&[]);
    let waiting = running.wait_for_event("waiting");
    assert_eq!(waiting["kind"], "no_space", "{waiting}");
    running.wait_for_name("fetched", "small");
    running.terminate();
}

#[test]
fn killed_at_many_moments_the_store_is_whole() {
    let origin = Origin::start();
    let size = |index: usize| 30_000 + index * 10_000;
    for index in 0..24 {
        let name = format!("films/{index}");
        origin.put(&name, &content(&name, size(index)));
    }
    origin.rate(Some(2_000_000));
    let edge = edge(&origin, 8192);
    let mut seen = 0;
    for round in 0..25 {
        let running = edge.start(&[]);
        std::thread::sleep(Duration::from_millis(20 + round * 10));
        running.kill();
        let found = objects(&edge.path("store"));
        for (name, bytes) in &found {
            let index = name.parse().unwrap();
            assert!(
                *bytes == content(&format!("films/{name}"), size(index)),
                "{name}"
            );
        }
        assert!(found.len() >= seen, "{} of {seen}", found.len());
        seen = found.len();
    }
    origin.rate(None);
    assert_eq!(edge.once(&[]).code, Some(0));
    assert_eq!(objects(&edge.path("store")).len(), 24);
    assert_eq!(
        std::fs::read_dir(edge.path("staging/partial"))
            .unwrap()
            .count(),
        0
    );
}
