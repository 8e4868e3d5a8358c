//! What changes on the disk is seen by every look-up that is asked for afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use super::hung::enter_mount_namespace;
use super::*;
use crate::path_watch::PATH_BELIEF;

/// Turns of a worker: a moment each.
fn turns() -> impl Iterator<Item = Instant> {
    (1..).map(|turn| NOW + TURN * turn)
}

/// Both ways to look up.
const WAYS: [fn() -> StoreConfig; 2] = [config, through_threads];

/// Puts `text` in the place of a file, as publishers are to.
fn publish(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// The content of the file that a path leads to in a new turn, which was not open.
fn text_at(site: &mut Site, now: Instant, path: &str) -> Result<String, StoreRefusal> {
    let mut found = site.ask_at(now, path)?;
    site.store.release(found.handle);
    Ok(content(&mut found))
}

#[test]
fn a_playlist_that_was_renamed_over_is_found_by_the_next_look_up() {
    for way in WAYS {
        let mut site = Site::new(way(), &["live.m3u8"]);
        let mut now = turns();
        let first = site.ask_at(now.next().unwrap(), "/live.m3u8").unwrap();
        for version in 0..20 {
            // The size stays: nothing but the inode and its times tell versions apart.
            publish(&site.path("live.m3u8"), &format!("version {version:02}"));
            let mut new = site.ask_at(now.next().unwrap(), "/live.m3u8").unwrap();
            assert_ne!(new.handle, first.handle);
            assert_eq!(content(&mut new), format!("version {version:02}"));
            let again = site.ask_at(now.next().unwrap(), "/live.m3u8").unwrap();
            assert_eq!(again.handle, new.handle, "it did not change again");
            for _ in 0..2 {
                site.store.release(new.handle);
            }
            while site.store.poll_closed().is_some() {}
        }
    }
}

#[test]
fn look_ups_of_one_turn_share_an_answer_and_no_others_do() {
    let Some((mut site, old)) = answered_by_caches(|| Site::new(config(), &["a"])) else {
        return;
    };
    publish(&site.path("a"), "new");
    assert_eq!(site.ask("/a").unwrap().handle, old.handle);
    assert_ne!(site.ask_at(NOW + TURN, "/a").unwrap().handle, old.handle);
}

/// A thread has asked some time before its answer is taken, and a request may have come in between.
#[test]
fn the_answer_of_a_thread_is_for_the_look_up_that_asked_it_only() {
    let mut site = Site::new(through_threads(), &["a"]);
    let old = site.ask("/a").unwrap();
    publish(&site.path("a"), "new");
    assert_ne!(site.ask("/a").unwrap().handle, old.handle);
}

#[test]
fn a_file_that_was_empty_is_found_with_its_content() {
    for way in WAYS {
        let mut site = Site::new(way(), &["a"]);
        let mut now = turns();
        fs::write(site.path("a"), "").unwrap();
        let empty = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_eq!(empty.metadata.size_bytes, 0);
        fs::write(site.path("a"), "text").unwrap();
        let full = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_eq!(full.metadata.size_bytes, 4);
        assert_ne!(full.handle, empty.handle);
    }
}

#[test]
fn a_file_that_is_removed_and_made_again() {
    for way in WAYS {
        let mut site = Site::new(way(), &["a"]);
        let mut now = turns();
        let _ = site.ask_at(now.next().unwrap(), "/a").unwrap();
        fs::remove_file(site.path("a")).unwrap();
        let gone = site.ask_at(now.next().unwrap(), "/a");
        assert_eq!(gone.unwrap_err(), StoreRefusal::NotFound);
        fs::write(site.path("a"), "again").unwrap();
        let text = text_at(&mut site, now.next().unwrap(), "/a");
        assert_eq!(text.unwrap(), "again");
    }
}

#[test]
fn two_stores_of_one_directory_never_contradict_each_other() {
    const VERSIONS: u64 = 3_000;
    for way in WAYS {
        let one = Site::new(way(), &["a"]);
        let root = one.path("");
        let store = Store::open_directory(&root, way()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut sites = [one, Site { directory, store }];
        // The size is the version.
        fs::write(root.join("a"), "x").unwrap();
        let published = AtomicU64::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let text = "x".repeat(usize::try_from(VERSIONS).unwrap());
                for version in 2..=VERSIONS {
                    let length = usize::try_from(version).unwrap();
                    publish(&root.join("a"), &text[..length]);
                    published.store(version, Ordering::Release);
                }
            });
            let mut seen = 0;
            for (turn, now) in turns().enumerate() {
                let before = published.load(Ordering::Acquire);
                let site = &mut sites[turn % 2];
                let found = match site.ask_at(now, "/a") {
                    Ok(found) => found,
                    // The threads have many files of earlier versions to close.
                    Err(StoreRefusal::Full(_)) => {
                        wait_readable(site.store.poll_fd().unwrap());
                        assert!(site.store.poll_answer(now).is_none());
                        continue;
                    }
                    Err(refusal) => panic!("{refusal}"),
                };
                site.store.release(found.handle);
                while site.store.poll_closed().is_some() {}
                let version = found.metadata.size_bytes;
                assert!(version >= seen, "{version} after {seen}");
                assert!(version >= before, "{version}, and {before} was there");
                seen = version;
                if version == VERSIONS {
                    break;
                }
            }
        });
    }
}

/// A file system of message queues (mq_overview(7)) is not local, and has regular files.
#[test]
fn a_file_that_is_not_local_is_asked_for_by_a_thread_each_time() {
    let mut site = Site::new(config(), &["a", "queues/hidden"]);
    if !enter_mount_namespace() {
        return;
    }
    let queues = site.path("queues");
    let mounted = Command::new("mount")
        .args(["-t", "mqueue", "queues"])
        .arg(&queues)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no file system of message queues");
        return;
    }
    site.store = Store::open_directory(&site.path(""), config()).unwrap();
    let name = format!("atlas-store-{}", std::process::id());
    let path = format!("/queues/{name}");
    let mut handles = Vec::new();
    for (turn, now) in turns().take(3).enumerate() {
        File::create(queues.join(&name)).unwrap();
        let first = site.ask_at(now, &path).unwrap();
        let again = site.ask_at(now, &path).unwrap();
        assert_eq!(again.handle, first.handle);
        assert!(!handles.contains(&first.handle), "another file");
        handles.push(first.handle);
        fs::remove_file(queues.join(&name)).unwrap();
        let asked = 2 * (turn as u64 + 1);
        assert_eq!(site.store.counters().store_threaded_lookups, asked);
    }
    assert_eq!(site.store.counters().store_shared_lookups, 0);
}

#[test]
fn a_link_in_the_directory_that_is_switched() {
    for way in WAYS {
        let mut site = Site::new(way(), &["one/a", "two/a"]);
        let mut now = turns();
        symlink("one", site.path("current")).unwrap();
        let text = text_at(&mut site, now.next().unwrap(), "/current/a");
        assert_eq!(text.unwrap(), "one/a");
        for target in ["two", "one", "two"] {
            symlink(target, site.path("next")).unwrap();
            fs::rename(site.path("next"), site.path("current")).unwrap();
            let text = text_at(&mut site, now.next().unwrap(), "/current/a");
            assert_eq!(text.unwrap(), format!("{target}/a"));
        }
    }
}

/// A site that is served by a link, `current`, to one of the releases.
fn released(config: StoreConfig) -> Site {
    let directory = tempfile::tempdir().unwrap();
    for release in ["one", "two"] {
        fs::create_dir(directory.path().join(release)).unwrap();
        fs::write(directory.path().join(release).join("a"), release).unwrap();
    }
    let current = directory.path().join("current");
    symlink("one", &current).unwrap();
    let store = Store::open_directory(&current, config).unwrap();
    Site { directory, store }
}

/// Where the caches answer for the path, a turn or two later; where they do not, seconds later.
fn moments(config: StoreConfig) -> impl Iterator<Item = Instant> {
    let step = if config.cached_lookups {
        Duration::from_nanos(1)
    } else {
        PATH_BELIEF
    };
    (1..).map(move |turn| NOW + step * turn)
}

#[test]
fn a_served_link_that_is_switched_leads_to_the_new_tree_at_once() {
    for way in WAYS {
        let mut site = released(way());
        let mut now = moments(way());
        let open = site.ask_at(now.next().unwrap(), "/a").unwrap();
        let current = site.directory.path().join("current");
        let next = site.directory.path().join("next");
        symlink("two", &next).unwrap();
        fs::rename(&next, &current).unwrap();
        fs::remove_dir_all(site.directory.path().join("one")).unwrap();
        let mut new = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_ne!(new.handle, open.handle);
        assert_eq!(content(&mut new), "two");
        assert_eq!(site.store.counters().store_reopened_roots, 1);
        let notice = site.store.poll_notice();
        assert!(matches!(notice, Some(Notice::Switched(_))), "{notice:?}");
        assert_eq!(site.store.poll_notice(), None, "said once");
        let again = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_eq!(again.handle, new.handle);
        assert_eq!(site.store.counters().store_reopened_roots, 1);
    }
}

/// The caches do not know a link that was made just now, each time.
#[test]
fn a_served_link_that_is_switched_again_after_one_request() {
    let mut site = released(config());
    let mut now = moments(config());
    let path = |name: &str| site.directory.path().join(name);
    let (current, next) = (path("current"), path("next"));
    for release in ["two", "one", "two"] {
        symlink(release, &next).unwrap();
        fs::rename(&next, &current).unwrap();
        let text = text_at(&mut site, now.next().unwrap(), "/a");
        assert_eq!(text.unwrap(), release);
    }
}

#[test]
fn a_served_directory_that_is_moved_away_and_made_again() {
    for way in WAYS {
        let mut site = Site::new(way(), &["a"]);
        let mut now = moments(way());
        let old = site.ask_at(now.next().unwrap(), "/a").unwrap();
        let aside = site.directory.path().join("aside");
        fs::rename(site.path(""), &aside).unwrap();
        // Nothing takes its place yet: the old one is served on.
        let still = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_eq!(still.handle, old.handle);
        fs::create_dir(site.path("")).unwrap();
        let gone = site.ask_at(now.next().unwrap(), "/a");
        assert_eq!(gone.unwrap_err(), StoreRefusal::NotFound);
        fs::write(site.path("a"), "again").unwrap();
        let text = text_at(&mut site, now.next().unwrap(), "/a");
        assert_eq!(text.unwrap(), "again");
    }
}

#[test]
fn a_path_that_leads_to_no_directory_leaves_the_old_one() {
    let mut site = released(config());
    let mut now = moments(config());
    let old = site.ask_at(now.next().unwrap(), "/a").unwrap();
    let current = site.directory.path().join("current");
    let next = site.directory.path().join("next");
    fs::write(&next, "a file").unwrap();
    fs::rename(&next, &current).unwrap();
    for _ in 0..3 {
        let still = site.ask_at(now.next().unwrap(), "/a").unwrap();
        assert_eq!(still.handle, old.handle);
    }
    assert!(matches!(
        site.store.poll_notice(),
        Some(Notice::NotFollowed(_))
    ));
    assert_eq!(site.store.poll_notice(), None, "said once");
    symlink("two", &next).unwrap();
    fs::rename(&next, &current).unwrap();
    // It is tried again after a while.
    let later = now.next().unwrap() + PATH_BELIEF;
    assert_eq!(text_at(&mut site, later, "/a").unwrap(), "two");
    let notice = site.store.poll_notice();
    assert!(matches!(notice, Some(Notice::Switched(_))), "{notice:?}");
}

/// One ask for the path serves a turn.
#[test]
fn the_served_path_is_asked_for_once_in_each_turn() {
    let Some((mut site, old)) = answered_by_caches(|| released(config())) else {
        return;
    };
    let next = site.directory.path().join("next");
    symlink("two", &next).unwrap();
    fs::rename(&next, site.directory.path().join("current")).unwrap();
    assert_eq!(site.ask("/a").unwrap().handle, old.handle);
    assert_ne!(site.ask_at(NOW + TURN, "/a").unwrap().handle, old.handle);
}
