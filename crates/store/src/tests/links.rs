//! Symbolic links that leave the directory: which come back, and which do not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A site whose directory has a neighbour with a secret.
fn site(config: StoreConfig) -> Site {
    let site = Site::new(config, &["a", "dir/b", "dir/deep/c"]);
    let outside = site.directory.path();
    // Its path begins with the directory's own.
    fs::create_dir(outside.join("root2")).unwrap();
    for secret in ["secret", "root2/secret"] {
        fs::write(outside.join(secret), b"secret").unwrap();
    }
    site
}

fn link(site: &Site, name: &str, target: impl AsRef<Path>) {
    symlink(target, site.path(name)).unwrap();
}

fn text(site: &mut Site, path: &str) -> String {
    let mut found = site
        .ask(path)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    content(&mut found)
}

#[test]
fn an_absolute_link_that_ends_in_the_directory_is_followed() {
    for config in [config(), through_threads()] {
        let config = StoreConfig {
            objects_max: 16,
            ..config
        };
        let mut site = site(config);
        let outside = site.directory.path().to_owned();
        link(&site, "file", site.path("dir/b"));
        link(&site, "to-dir", site.path("dir"));
        link(&site, "itself", site.path(""));
        link(&site, "to-link", site.path("file"));
        link(&site, "to-relative", site.path("dir/down"));
        symlink("deep/c", site.path("dir/down")).unwrap();
        link(&site, "climbs-back", "../root/a");
        // By a link of the host outside of the directory, as `/var/www` often is one.
        symlink(site.path(""), outside.join("alias")).unwrap();
        link(&site, "by-alias", outside.join("alias/a"));
        for (path, expected) in [
            ("/file", "dir/b"),
            ("/to-dir/b", "dir/b"),
            ("/to-dir/deep/c", "dir/deep/c"),
            ("/itself/a", "a"),
            ("/itself/itself/a", "a"),
            ("/to-link", "dir/b"),
            ("/to-relative", "dir/deep/c"),
            ("/climbs-back", "a"),
            ("/by-alias", "a"),
        ] {
            assert_eq!(text(&mut site, path), expected, "{path}");
        }
        // Directories are no objects, whichever way they are reached.
        assert_eq!(site.refuse("/to-dir"), StoreRefusal::Directory);
        assert_eq!(site.refuse("/itself"), StoreRefusal::Directory);
    }
}

/// The later check for renames must know whether the object's name is the file's path.
#[test]
fn a_found_file_tells_whether_symlinks_were_followed() {
    for config in [config(), through_threads()] {
        let config = StoreConfig {
            objects_max: 16,
            ..config
        };
        let mut site = site(config);
        symlink("dir/b", site.path("relative")).unwrap();
        symlink("dir", site.path("current")).unwrap();
        link(&site, "absolute", site.path("dir/b"));
        for (path, expected) in [
            ("/a", Symlinks::Refused),
            ("/dir/b", Symlinks::Refused),
            ("/relative", Symlinks::Followed),
            ("/current/deep/c", Symlinks::Followed),
            ("/absolute", Symlinks::Followed),
        ] {
            let found = site.ask(path).unwrap();
            let Some(Source::File { symlinks, .. }) = found.opened else {
                panic!("{path}: not newly opened");
            };
            assert_eq!(symlinks, expected, "{path}");
        }
    }
}

#[test]
fn a_link_that_ends_outside_is_refused() {
    for config in [config(), through_threads()] {
        let mut site = site(config);
        let outside = site.directory.path().to_owned();
        symlink(outside.join("secret"), outside.join("outer")).unwrap();
        link(&site, "out", outside.join("secret"));
        link(&site, "prefix", outside.join("root2/secret"));
        link(&site, "prefix-dir", outside.join("root2"));
        link(&site, "chain", outside.join("outer"));
        link(&site, "inner", site.path("out"));
        link(&site, "climbs", site.path("../secret"));
        link(&site, "late", site.path("dir/../../secret"));
        link(&site, "nothing", outside.join("nothing"));
        link(&site, "fd", format!("/proc/self/fd/{}", 0));
        link(&site, "cwd", "/proc/self/cwd");
        link(&site, "round", site.path("round"));
        for path in [
            "/out",
            "/prefix",
            "/prefix-dir",
            "/prefix-dir/secret",
            "/chain",
            "/inner",
            "/climbs",
            "/late",
            "/nothing",
            "/fd",
            "/cwd",
            "/cwd/a",
            "/round",
        ] {
            assert_eq!(site.refuse(path), StoreRefusal::Forbidden, "{path}");
        }
    }
}

#[test]
fn a_followed_link_is_checked_like_any_path() {
    let mut site = site(config());
    link(&site, "file", site.path("dir/b"));
    let first = site.ask("/file").unwrap();
    let later = NOW + TURN;
    let again = site.ask_at(later, "/file").unwrap();
    assert_eq!(again.handle, first.handle);
    fs::remove_file(site.path("file")).unwrap();
    link(&site, "file", site.path("a"));
    let later = later + TURN;
    let mut other = site.ask_at(later, "/file").unwrap();
    assert_eq!(content(&mut other), "a");
}

/// Another thread swaps the target of a link in a loop, while the link is followed.
#[test]
fn a_link_that_is_swapped_meanwhile_never_leads_out() {
    let mut site = site(config());
    let root = site.path("");
    let outside = site.directory.path().to_owned();
    link(&site, "here", site.path("dir"));
    fs::create_dir(outside.join("there")).unwrap();
    fs::write(outside.join("there/b"), b"secret").unwrap();
    let is_over = AtomicBool::new(false);
    let mut served = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let targets = [outside.join("there"), root.join("dir")];
            for target in targets.iter().cycle() {
                symlink(target, root.join("new")).unwrap();
                fs::rename(root.join("new"), root.join("here")).unwrap();
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut now = NOW;
        for _ in 0..2_000 {
            now += TURN;
            match site.ask_at(now, "/here/b") {
                Ok(mut found) => {
                    served += 1;
                    if found.opened.is_some() {
                        assert_eq!(content(&mut found), "dir/b");
                    }
                    site.store.release(found.handle);
                }
                Err(refusal) => assert!(
                    matches!(refusal, StoreRefusal::Forbidden | StoreRefusal::Busy),
                    "{refusal}"
                ),
            }
            while site.store.poll_closed().is_some() {}
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(served > 0, "the link led in at times");
}

#[test]
fn a_file_of_a_local_file_system_is_said_to_be_whatever_link_led_there() {
    for config in [config(), through_threads()] {
        let mut site = site(config);
        let root = site.path("");
        if !crate::mounts::Mounts::read(&root.canonicalize().unwrap()).are_all_local() {
            eprintln!("SKIPPED: {} is not on a local file system", root.display());
            return;
        }
        link(&site, "link", "dir/b");
        link(&site, "absolute", site.path("dir/b"));
        for path in ["/a", "/link", "/absolute"] {
            let mut found = site
                .ask(path)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            let opened = found.opened.take();
            let is_local = matches!(opened, Some(Source::File { is_local: true, .. }));
            assert!(is_local, "{path}: {opened:?}");
            site.store.retire(found.handle);
            site.store.release(found.handle);
        }
    }
}
