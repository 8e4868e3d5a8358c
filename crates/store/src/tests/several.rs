//! Several directories in one store.

use super::*;

/// The first directory of the site, and another beside it in which `files` are. Both have a file of some names.
fn site_of_two(config: StoreConfig, files: &[&str]) -> (Site, PathBuf) {
    let mut site = Site::new(config, &["a", "b"]);
    let other = site.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    for file in files {
        fs::write(other.join(file), format!("other {file}")).unwrap();
    }
    let root = site.path("");
    let paths = [root.as_path(), other.as_path()];
    site.store = Store::open_directories(&paths, config).unwrap();
    (site, other)
}

fn ask_in(site: &mut Site, directory: u16, path: &str) -> Result<Found, StoreRefusal> {
    match site.store.look_up_in(NOW, 7, directory, path) {
        LookUp::Ready(found) => Ok(found),
        LookUp::Refused(refusal) => Err(refusal),
        LookUp::Pending => site.wait(NOW).1,
    }
}

#[test]
fn a_name_is_another_object_in_another_directory() {
    for config in [config(), through_threads()] {
        let (mut site, other) = site_of_two(config, &["a", "c"]);
        let mut first = ask_in(&mut site, 0, "/a").unwrap();
        let mut second = ask_in(&mut site, 1, "/a").unwrap();
        assert_eq!(content(&mut first), "a");
        assert_eq!(content(&mut second), "other a");
        assert_eq!(site.store.path_of(first.handle), "/a");
        let path = other.join("a").display().to_string();
        assert_eq!(site.store.path_of(second.handle), path);
        assert_eq!(site.store.path_beneath(second.handle), "/a");
        // Open already.
        assert_eq!(ask_in(&mut site, 1, "/a").unwrap().handle, second.handle);
        for (directory, path) in [(0, "/c"), (1, "/b"), (2, "/a"), (1, "/../root/b")] {
            let refusal = ask_in(&mut site, directory, path).unwrap_err();
            assert_eq!(refusal, StoreRefusal::NotFound, "{directory} {path}");
        }
        assert_eq!(site.refuse("/1/a"), StoreRefusal::NotFound);
    }
}

#[test]
fn no_link_leads_from_one_directory_to_another() {
    let (mut site, other) = site_of_two(config(), &["a"]);
    symlink(site.path("b"), other.join("link")).unwrap();
    symlink("a", other.join("own")).unwrap();
    let refusal = ask_in(&mut site, 1, "/link").unwrap_err();
    assert_eq!(refusal, StoreRefusal::Forbidden);
    assert_eq!(
        content(&mut ask_in(&mut site, 1, "/own").unwrap()),
        "other a"
    );
}

#[test]
fn each_directory_is_followed_by_its_own_path() {
    for config in [config(), through_threads()] {
        let (mut site, other) = site_of_two(config, &["a"]);
        let (mut moved, asked) = (false, NOW + Duration::from_secs(2));
        let aside = site.directory.path().join("aside");
        fs::rename(&other, aside).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("a"), "new").unwrap();
        site.store.reopen();
        while !moved {
            wait_readable(site.store.poll_fd().unwrap());
            assert!(site.store.poll_answer(NOW).is_none());
            moved = site.store.poll_reopened().is_some();
        }
        let LookUp::Ready(mut found) = site.store.look_up_in(asked, 7, 1, "/a") else {
            let (_, answer) = site.wait(asked);
            assert_eq!(content(&mut answer.unwrap()), "new");
            continue;
        };
        assert_eq!(content(&mut found), "new");
    }
}

#[test]
fn a_directory_that_cannot_be_opened_is_named() {
    let site = Site::new(config(), &["a"]);
    let (root, missing) = (site.path(""), site.path("missing"));
    let paths = [root.as_path(), missing.as_path()];
    let Err(StoreError::Directory { path, .. }) = Store::open_directories(&paths, config()) else {
        panic!("there is no such directory");
    };
    assert_eq!(path, missing);
}
