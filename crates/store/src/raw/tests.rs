//! A raw store on images: what is looked up, what a new catalogue changes, and locks.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use tempfile::TempDir;
use volume::{BLOCK_BYTES, Commit, ContentDigest, Editor, Entry, Geometry, Step, StoreId, Time};

use super::served::Looker;
use super::*;
use crate::{Found, LookUp, Notice, Source, Store, StoreConfig, StoreError, StoreRefusal};
use clock::Instant;

const NOW: Instant = Instant::ZERO;
const IMAGE_BYTES: u64 = 4 << 20;

/// A store on images in a directory.
struct Site {
    directory: TempDir,
    paths: Vec<std::path::PathBuf>,
}

impl Site {
    fn new(devices: usize) -> Self {
        Self::with_id(devices, 1)
    }

    fn with_id(devices: usize, id: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..devices)
            .map(|number| directory.path().join(format!("image{number}")))
            .collect();
        for path in &paths {
            let file = std::fs::File::create(path).unwrap();
            file.set_len(IMAGE_BYTES).unwrap();
        }
        let site = Self { directory, paths };
        let blocks = vec![IMAGE_BYTES / u64::from(BLOCK_BYTES); devices];
        let geometry = Geometry::new(StoreId([id; 16]), blocks, 8).unwrap();
        site.run(Commit::first(volume::Catalogue::empty(geometry)));
        site
    }

    fn write(&self, device: u16, block: u64, bytes: &[u8]) {
        let path = &self.paths[usize::from(device)];
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, block * u64::from(BLOCK_BYTES))
            .unwrap();
    }

    fn run(&self, mut commit: Commit) {
        loop {
            match commit.next_step() {
                Step::Write {
                    device,
                    block,
                    bytes,
                } => self.write(device, block, bytes),
                Step::Flush => {}
                Step::Done => return,
            }
        }
    }

    fn open(&self) -> RawStore {
        RawStore::open(&self.paths, Access::Read { direct: false }).unwrap()
    }

    /// Changes the store as another process would. Objects of no content are removed.
    fn change(&self, objects: &[(&str, &str)]) {
        let raw = self.open();
        let mut editor = Editor::new(raw.load().unwrap().catalogue, &raw.readers().unwrap());
        for (name, content) in objects {
            if content.is_empty() {
                assert!(editor.remove(name), "{name}");
                continue;
            }
            let mut digest = ContentDigest::new();
            digest.update(content.as_bytes());
            let (runs, tag) = digest.finish();
            let size_bytes = content.len() as u64;
            let extent = editor.allocate(size_bytes).unwrap();
            self.write(extent.device, extent.start, content.as_bytes());
            editor.insert(Entry {
                name: (*name).into(),
                content_type: if *name == "typed" {
                    "a/b".into()
                } else {
                    "".into()
                },
                extent,
                size_bytes,
                modified: Time {
                    seconds: 1_700_000_000,
                    nanos: 1,
                },
                added: 0,
                tag,
                runs: runs.into(),
            });
        }
        self.run(editor.commit().unwrap());
    }

    /// What the store is served from, without its thread.
    fn serve(&self) -> (Volume, Looker, Store) {
        let (volume, look) = Volume::load(self.open(), None).unwrap();
        let store = Store::open_volume(&volume, config()).unwrap();
        (volume, look, store)
    }

    /// The oldest catalogue that is locked.
    fn oldest(&self) -> Option<u64> {
        self.open().oldest_reader().unwrap()
    }

    /// Blocks of removed objects that an `add` cannot use, whatever it does first.
    fn blocks_in_use(&self) -> u64 {
        // Two catalogues later.
        self.change(&[]);
        let raw = self.open();
        let editor = Editor::new(raw.load().unwrap().catalogue, &raw.readers().unwrap());
        editor.waiting_bytes() / u64::from(BLOCK_BYTES)
    }
}

fn config() -> StoreConfig {
    StoreConfig {
        objects_max: 4,
        ..StoreConfig::default()
    }
}

fn find(store: &mut Store, path: &str) -> Found {
    match store.look_up(NOW, 0, path) {
        LookUp::Ready(found) => found,
        other => panic!("{path}: {other:?}"),
    }
}

fn refusal(store: &mut Store, path: &str) -> StoreRefusal {
    match store.look_up(NOW, 0, path) {
        LookUp::Refused(refusal) => refusal,
        other => panic!("{path}: {other:?}"),
    }
}

/// A round of a worker: takes a new catalogue over and closes what is to be closed.
fn round(store: &mut Store) -> usize {
    assert!(store.poll_answer(NOW).is_none());
    std::iter::from_fn(|| store.poll_closed()).count()
}

#[test]
fn objects_are_found_by_their_names() {
    let site = Site::new(2);
    site.change(&[("a/b", "content"), ("typed", "x")]);
    let (_volume, _, mut store) = site.serve();
    let found = find(&mut store, "/a/b");
    let Some(Source::Range {
        device,
        start_bytes,
    }) = found.opened
    else {
        panic!("a range");
    };
    let mut bytes = [0; 7];
    let file = std::fs::File::from(device.try_clone().unwrap());
    file.read_exact_at(&mut bytes, start_bytes).unwrap();
    assert_eq!(&bytes, b"content");
    assert_eq!(found.metadata.size_bytes, 7);
    assert_eq!(found.metadata.modified.seconds, 1_700_000_000);
    // By the command of docs/develop/store-format.md.
    let tag = 0xa97b_4ce4_293c_9402_eae7_8d01_7248_86b9_u128;
    assert_eq!(found.metadata.content, Some(tag.to_be_bytes()));
    assert_eq!(store.content_type(found.handle), None);
    let again = find(&mut store, "/a/b");
    assert!(again.handle == found.handle && again.opened.is_none());
    let typed = find(&mut store, "/typed");
    assert_eq!(store.content_type(typed.handle), Some("a/b"));
    for (path, why) in [
        ("/a", StoreRefusal::Directory),
        ("/a/", StoreRefusal::NotFound),
        ("/a/b/c", StoreRefusal::NotFound),
        ("/missing", StoreRefusal::NotFound),
        ("relative", StoreRefusal::NotFound),
    ] {
        assert_eq!(refusal(&mut store, path), why, "{path}");
    }
}

#[test]
fn a_full_table_has_room_again_when_an_object_is_unused() {
    let site = Site::new(1);
    let names = ["a", "b", "c", "d", "e"];
    site.change(&names.map(|name| (name, "x")));
    let (_volume, _, mut store) = site.serve();
    let used: Vec<_> = names[..4]
        .iter()
        .map(|name| find(&mut store, &format!("/{name}")))
        .collect();
    assert!(matches!(refusal(&mut store, "/e"), StoreRefusal::Full(_)));
    store.release(used[0].handle);
    let found = find(&mut store, "/e");
    assert_eq!(round(&mut store), 1);
    store.release(found.handle);
}

#[test]
fn a_new_catalogue_is_found_and_old_objects_stay_as_long_as_they_are_read() {
    let site = Site::new(2);
    site.change(&[
        ("kept", "1"),
        ("replaced", "2"),
        ("removed", "3"),
        ("idle", "4"),
    ]);
    let (volume, mut look, mut store) = site.serve();
    assert_eq!(site.oldest(), Some(2));
    let kept = find(&mut store, "/kept");
    let replaced = find(&mut store, "/replaced");
    let removed = find(&mut store, "/removed");
    let idle = find(&mut store, "/idle");
    store.release(idle.handle);
    site.change(&[
        ("replaced", "22"),
        ("removed", ""),
        ("idle", ""),
        ("new", "5"),
    ]);
    volume.look(&mut look);
    // The one that nobody uses is closed at once.
    assert_eq!(round(&mut store), 1);
    let notice = Notice::Catalogue {
        sequence: 3,
        objects: 3,
    };
    assert_eq!(store.poll_notice(), Some(notice));
    assert_eq!(refusal(&mut store, "/removed"), StoreRefusal::NotFound);
    let again = find(&mut store, "/replaced");
    assert!(again.handle != replaced.handle && again.metadata.size_bytes == 2);
    assert_eq!(find(&mut store, "/kept").handle, kept.handle);
    for (handle, blocks) in [(replaced.handle, 2), (removed.handle, 1)] {
        volume.look(&mut look);
        assert_eq!(round(&mut store), 0);
        assert_eq!(site.blocks_in_use(), blocks);
        store.release(handle);
        assert_eq!(round(&mut store), 1);
    }
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    volume.look(&mut look);
    assert_eq!(site.blocks_in_use(), 0);
    assert_eq!((site.oldest(), volume.catalogues()), (Some(5), 1));
    drop((store, volume, look));
    assert_eq!(site.oldest(), None);
}

#[test]
fn a_slow_client_keeps_its_object_and_no_catalogue() {
    let site = Site::new(2);
    let many: Vec<_> = (0..100).map(|number| format!("o{number}")).collect();
    let objects: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    site.change(&objects);
    let (volume, mut look, mut store) = site.serve();
    let slow = find(&mut store, "/o7");
    for version in 0..12 {
        // Room for so many versions is only where the ones before were.
        let content = "y".repeat(10_000 + version);
        site.change(&[("o7", "z"), ("film", &content), ("o9", &content)]);
        volume.look(&mut look);
        assert!(volume.catalogues() <= 2);
        round(&mut store);
        let film = find(&mut store, "/film");
        store.release(film.handle);
        volume.look(&mut look);
        assert_eq!(volume.catalogues(), 1, "version {version}");
        assert_eq!(site.oldest(), Some(3 + version as u64));
        round(&mut store);
    }
    assert_eq!(site.blocks_in_use(), 1, "the slow client's object");
    assert_eq!(store.content_type(slow.handle), None);
    store.release(slow.handle);
    assert_eq!(round(&mut store), 1);
    volume.look(&mut look);
    assert_eq!(site.blocks_in_use(), 0);
}

#[test]
fn an_extent_is_locked_as_long_as_any_store_reads_it() {
    let site = Site::new(1);
    site.change(&[("a", "1")]);
    let (volume, mut look, mut first) = site.serve();
    let mut second = Store::open_volume(&volume, config()).unwrap();
    let uses = [&mut first, &mut second].map(|store| {
        let found = find(store, "/a");
        // A read that failed: the name gets another handle, and both have the same extent.
        store.retire(found.handle);
        [found.handle, find(store, "/a").handle]
    });
    site.change(&[("a", "2")]);
    volume.look(&mut look);
    assert_eq!(round(&mut first), 0);
    // The second store has still the old catalogue.
    volume.look(&mut look);
    assert_eq!((site.oldest(), volume.catalogues()), (Some(2), 2));
    site.change(&[("a", "3")]);
    volume.look(&mut look);
    assert_eq!(volume.catalogues(), 2, "no third one is loaded");
    assert_eq!(round(&mut second), 0);
    volume.look(&mut look);
    assert_eq!((round(&mut first), round(&mut second)), (0, 0));
    volume.look(&mut look);
    assert_eq!((site.oldest(), volume.catalogues()), (Some(4), 1));
    for (store, handles) in [(&mut first, uses[0]), (&mut second, uses[1])] {
        for handle in handles {
            assert_eq!(site.blocks_in_use(), 1);
            store.release(handle);
            assert_eq!(round(store), 1);
            volume.look(&mut look);
            round(store);
        }
    }
    // The other store has still to take the last catalogues over.
    for _ in 0..2 {
        round(&mut first);
        round(&mut second);
        volume.look(&mut look);
    }
    assert_eq!(site.blocks_in_use(), 0);
}

#[test]
fn two_catalogues_that_come_at_once_are_taken_over() {
    let site = Site::new(1);
    site.change(&[("a", "1")]);
    let (volume, mut look, mut store) = site.serve();
    let first = find(&mut store, "/a");
    for content in ["2", "3"] {
        site.change(&[("a", content)]);
        volume.look(&mut look);
    }
    // Even before a round.
    let second = find(&mut store, "/a");
    assert_ne!(second.handle, first.handle);
    assert_eq!(round(&mut store), 0);
    volume.look(&mut look);
    let third = find(&mut store, "/a");
    assert_ne!(third.handle, second.handle);
    store.release(first.handle);
    store.release(second.handle);
    assert_eq!(round(&mut store), 2);
    volume.look(&mut look);
    assert_eq!(site.oldest(), Some(4));
    assert_eq!(store.poll_timeout(), None);
}

#[test]
fn a_damaged_catalogue_is_told_of_and_the_one_before_is_served() {
    let site = Site::new(1);
    site.change(&[("a", "1")]);
    let (volume, mut look, mut store) = site.serve();
    assert!(store.poll_answer(NOW).is_none() && store.poll_notice().is_some());
    site.change(&[("b", "2")]);
    // Catalogue 3 is in the second area, of 8 blocks.
    site.write(0, 256 + 8, &[0xff; 8]);
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    assert!(matches!(store.poll_notice(), Some(Notice::Damaged(_))));
    let found = find(&mut store, "/a");
    store.release(found.handle);
    assert_eq!(refusal(&mut store, "/b"), StoreRefusal::NotFound);
    // Said once, and to whoever asks.
    volume.look(&mut look);
    assert_eq!((round(&mut store), store.poll_notice()), (0, None));
    store.reopen();
    assert!(store.poll_reopened().is_none());
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    assert!(matches!(
        store.poll_reopened(),
        Some(Err(StoreError::Volume(_)))
    ));
    let loaded = site.open().load().unwrap();
    assert_eq!(loaded.catalogue.sequence(), 2);
    assert!(loaded.damage.is_some() && loaded.lagging.is_empty());
}

#[test]
fn a_device_that_is_cut_off_is_told_of_and_served_on() {
    let site = Site::new(1);
    site.change(&[("a", "1")]);
    let (volume, mut look, mut store) = site.serve();
    let file = OpenOptions::new().write(true).open(&site.paths[0]).unwrap();
    file.set_len(0).unwrap();
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    assert!(matches!(store.poll_notice(), Some(Notice::Failed(_))));
    let found = find(&mut store, "/a");
    store.release(found.handle);
}

#[test]
fn a_device_that_can_be_read_again_is_told_of() {
    let site = Site::new(1);
    let (volume, mut look, mut store) = site.serve();
    assert!(store.poll_answer(NOW).is_none() && store.poll_notice().is_some());
    let file = OpenOptions::new().write(true).open(&site.paths[0]).unwrap();
    let image = std::fs::read(&site.paths[0]).unwrap();
    let mut failures = 0;
    for _ in 0..2 {
        file.set_len(0).unwrap();
        for _ in 0..3 {
            volume.look(&mut look);
            assert_eq!(round(&mut store), 0);
        }
        failures += 3;
        assert!(matches!(store.poll_notice(), Some(Notice::Failed(_))));
        assert_eq!(store.counters().store_failed_catalogues, failures);
        file.write_all_at(&image, 0).unwrap();
        volume.look(&mut look);
        assert_eq!(round(&mut store), 0);
        let found = store.poll_notice();
        assert!(
            matches!(found, Some(Notice::Catalogue { sequence: 1, .. })),
            "{found:?}"
        );
    }
    assert_eq!(store.counters().store_failed_catalogues, failures);
}

#[test]
fn a_catalogue_that_cannot_be_read_is_tried_again_less_and_less_often() {
    let site = Site::new(1);
    let (volume, mut look, mut store) = site.serve();
    site.change(&[("a", "1")]);
    let attempts = std::cell::Cell::new(0);
    let fail = |_: &RawStore| {
        attempts.set(attempts.get() + 1);
        Err(RawError::Restless("image".into()))
    };
    let mut times = Vec::new();
    for number in 0..400 {
        let before = attempts.get();
        volume.look_with(&mut look, &fail);
        if attempts.get() > before {
            times.push(number);
        }
        round(&mut store);
    }
    assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
    assert_eq!(store.counters().store_failed_catalogues, 12);
    assert_eq!(refusal(&mut store, "/a"), StoreRefusal::NotFound);
    // Whoever asks has it tried at once, and hears what came of it.
    store.reopen();
    volume.look_with(&mut look, &fail);
    round(&mut store);
    let answer = store.poll_reopened().unwrap().unwrap_err().to_string();
    assert!(answer.contains("changes too often"), "{answer}");
    store.reopen();
    assert!(store.poll_reopened().is_none());
    volume.look(&mut look);
    round(&mut store);
    assert!(store.poll_reopened().unwrap().is_ok());
    let found = find(&mut store, "/a");
    store.release(found.handle);
}

#[test]
fn the_thread_finds_a_new_catalogue_when_it_is_asked() {
    let site = Site::new(1);
    let volume = Volume::start(site.open(), None).unwrap();
    let mut store = Store::open_volume(&volume, config()).unwrap();
    assert_eq!(round(&mut store), 0);
    site.change(&[("a", "1")]);
    store.reopen();
    let found = Notice::Catalogue {
        sequence: 2,
        objects: 1,
    };
    // The thread may still hold the lock; then the descriptor stays readable.
    while store.poll_notice().as_ref() != Some(&found) {
        crate::tests::wait_readable(store.poll_fd().unwrap());
        assert_eq!(round(&mut store), 0);
    }
    let opened = loop {
        if let Some(opened) = store.poll_reopened() {
            break opened;
        }
        crate::tests::wait_readable(store.poll_fd().unwrap());
        assert_eq!(round(&mut store), 0);
    };
    assert!(opened.is_ok());
    let found = find(&mut store, "/a");
    store.release(found.handle);
}

#[test]
fn one_writer_at_a_time_and_any_readers() {
    let site = Site::new(1);
    let (first, second) = (site.open(), site.open());
    let open = || RawStore::open(&site.paths, Access::Write).unwrap();
    let (writer, other) = (open(), open());
    let lock = writer.lock_for_writing().unwrap();
    assert!(matches!(other.lock_for_writing(), Err(RawError::Locked(_))));
    drop(lock);
    drop(other.lock_for_writing().unwrap());
    let loaded = first.load_locked().unwrap();
    assert_eq!(second.load_locked().unwrap().catalogue, loaded.catalogue);
    // Its own lock is no other's.
    assert_eq!(site.oldest(), Some(1));
    first.unlock(1);
    assert_eq!(first.oldest_reader().unwrap(), Some(1));
    second.unlock(1);
    assert_eq!(first.oldest_reader().unwrap(), None);
    second.unlock(1);
}

#[test]
fn the_oldest_of_several_readers_is_found() {
    let site = Site::new(1);
    let mut readers = Vec::new();
    for count in 1..=5 {
        let raw = site.open();
        raw.load_locked().unwrap();
        readers.push(raw);
        site.change(&[("a", &"x".repeat(count))]);
    }
    for oldest in 1..=5 {
        assert_eq!(site.oldest(), Some(oldest));
        readers.remove(0);
    }
    assert_eq!(site.oldest(), None);
    // The kernel names the locks of the first one first, which are later ones by now.
    let (first, second) = (site.open(), site.open());
    first.load_locked().unwrap();
    second.load_locked().unwrap();
    site.change(&[("a", "another")]);
    first.load_locked().unwrap();
    first.unlock(6);
    assert_eq!(site.oldest(), Some(6));
    second.unlock(6);
    assert_eq!(site.oldest(), Some(7));
}

fn open_device(path: &std::path::Path) -> Device {
    Device::open(path, Access::Write).unwrap()
}

#[test]
fn who_makes_a_store_of_any_device_keeps_readers_and_writers_away_from_all_of_it() {
    let site = Site::new(2);
    for path in &site.paths {
        let made = RawStore::unmounted(vec![open_device(path)]);
        let raw = site.open();
        raw.load_locked().unwrap();
        assert!(matches!(made.lock_for_making(), Err(RawError::Served(_))));
        raw.unlock(1);
        let writer = RawStore::open(&site.paths, Access::Write).unwrap();
        let lock = writer.lock_for_writing().unwrap();
        assert!(matches!(made.lock_for_making(), Err(RawError::Locked(_))));
        drop(lock);
        let lock = made.lock_for_making().unwrap();
        assert!(matches!(raw.load_locked(), Err(RawError::BeingMade(_))));
        assert!(matches!(
            writer.lock_for_writing(),
            Err(RawError::Locked(_))
        ));
        drop(lock);
        drop(writer.lock_for_writing().unwrap());
        // What failed has left no lock on the other device.
        assert_eq!(writer.oldest_reader().unwrap(), None);
        raw.load_locked().unwrap();
        assert_eq!(writer.oldest_reader().unwrap(), Some(1));
    }
}

#[test]
fn a_reader_of_a_catalogue_that_cannot_be_found_is_known() {
    let site = Site::new(2);
    site.change(&[("a", "1")]);
    let (reader, other) = (site.open(), site.open());
    reader.load_locked().unwrap();
    assert!(other.has_reader_after(1).unwrap() && !other.has_reader_after(2).unwrap());
}

#[test]
fn another_store_on_the_devices_is_told_of_and_the_old_one_is_served_on() {
    let other = Site::with_id(2, 2);
    for content in ["1", "2"] {
        other.change(&[("b", content)]);
    }
    for is_exchanged in [false, true] {
        let site = Site::new(2);
        site.change(&[("a", "1")]);
        let (volume, mut look, mut store) = site.serve();
        assert!(store.poll_answer(NOW).is_none() && store.poll_notice().is_some());
        // Another store, or the same one with its devices exchanged.
        let [first, second] = &site.paths[..] else {
            unreachable!("two")
        };
        let sources = if is_exchanged {
            [second, first]
        } else {
            [&other.paths[0], &other.paths[1]]
        };
        let contents = sources.map(|path| std::fs::read(path).unwrap());
        for (path, bytes) in site.paths.iter().zip(contents) {
            std::fs::write(path, bytes).unwrap();
        }
        volume.look(&mut look);
        assert_eq!(round(&mut store), 0);
        let notice = store.poll_notice();
        let is_told = |text: &String| text.contains("another store than the one that was opened");
        assert!(
            matches!(&notice, Some(Notice::Failed(text)) if is_told(text)),
            "{notice:?}"
        );
        assert_eq!(refusal(&mut store, "/b"), StoreRefusal::NotFound);
        let found = find(&mut store, "/a");
        store.release(found.handle);
    }
}

#[test]
fn what_is_served_never_goes_back_to_an_older_catalogue() {
    let site = Site::new(1);
    site.change(&[("a", "1")]);
    site.change(&[("b", "2")]);
    let (volume, mut look, mut store) = site.serve();
    assert!(store.poll_answer(NOW).is_none() && store.poll_notice().is_some());
    // The superblock of catalogue 3.
    site.write(0, 16, &[0xff; 8]);
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    assert!(matches!(store.poll_notice(), Some(Notice::Failed(_))));
    let found = find(&mut store, "/b");
    store.release(found.handle);
    assert_eq!(site.oldest(), Some(3));
}

#[test]
fn the_same_content_in_another_place_is_another_version() {
    let site = Site::new(1);
    site.change(&[("a", "same")]);
    let (volume, mut look, mut store) = site.serve();
    let old = find(&mut store, "/a");
    site.change(&[("a", "same")]);
    volume.look(&mut look);
    assert_eq!(round(&mut store), 0);
    let new = find(&mut store, "/a");
    assert_eq!(new.metadata.content, old.metadata.content);
    assert_ne!(new.handle, old.handle);
    volume.look(&mut look);
    assert_eq!(site.blocks_in_use(), 1, "the old place");
    store.release(old.handle);
    assert_eq!(round(&mut store), 1);
    volume.look(&mut look);
    assert_eq!(site.blocks_in_use(), 0);
}

#[test]
fn what_is_no_store_is_refused() {
    let site = Site::new(2);
    let path = |name: &str| site.directory.path().join(name);
    let refusal = |paths: &[std::path::PathBuf]| {
        let opened = RawStore::open(paths, Access::Read { direct: false });
        opened.unwrap_err().to_string()
    };
    let [first, second] = &site.paths[..] else {
        unreachable!("two")
    };
    assert!(
        refusal(std::slice::from_ref(first)).contains("the store has 2 devices, and 1 were named")
    );
    let twice = refusal(&[second.clone(), second.clone()]);
    assert!(
        twice.contains("image1: it is device 1 of the store"),
        "{twice}"
    );
    assert!(refusal(&[]).contains("0 devices"));
    assert!(refusal(&[path("missing")]).contains("No such file"));
    assert!(refusal(&[site.directory.path().to_owned()]).contains("neither a block device"));
    assert!(refusal(&["/dev/null".into()]).contains("neither a block device"));
    std::fs::write(path("text"), "hello").unwrap();
    assert!(refusal(&[path("text")]).contains("no store"));
    let order = [second.clone(), first.clone()];
    let opened = RawStore::open(&order, Access::Read { direct: false }).unwrap();
    assert_eq!(opened.devices()[0].path, *first);
}

#[test]
fn a_name_may_mean_several_devices() {
    let site = Site::new(1);
    let text = |path: &std::path::Path| names_in(path).len();
    assert_eq!(text("/dev/a".as_ref()), 1);
    assert_eq!(text("/dev/a,/dev/b".as_ref()), 2);
    let odd = site.directory.path().join("a,b");
    assert_eq!(text(&odd), 2);
    std::fs::write(&odd, "").unwrap();
    assert_eq!(text(&odd), 1);
}
