//! File systems that Linux cannot write, beside others that say `ro`, in images made for the test.
//!
//! Each test has a mount namespace of its own, so nothing is left when it ends.

use std::process::Command;

use super::hung::enter_mount_namespace;
use super::*;

/// Whether the content of what a path leads to is known not to change.
fn is_fixed(site: &mut Site, path: &str) -> bool {
    let mut found = site
        .ask(path)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    match found.opened.take() {
        Some(Source::File { is_fixed, .. }) => is_fixed,
        other => panic!("{path}: {other:?}"),
    }
}

/// Runs a program to its end; false, with a line that says so, if it is missing or fails.
fn run(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
            eprintln!("SKIPPED: {program} {arguments:?}: {reason}");
            false
        }
        Err(error) => {
            eprintln!("SKIPPED: {program}: {error}");
            false
        }
    }
}

/// The path of a name as text.
fn text(site: &Site, name: &str) -> String {
    site.path(name).to_str().unwrap().to_owned()
}

/// A site with a file `a`, and `source/f`, of which images are made.
fn site() -> Option<Site> {
    enter_mount_namespace().then(|| {
        let config = StoreConfig {
            objects_max: 64,
            ..config()
        };
        Site::new(config, &["a", "source/f", "point/under"])
    })
}

/// Mounts an image of `source` on `point`, and opens the store again.
fn mount_image(site: &mut Site, kind: &str, maker: &str, arguments: &[&str]) -> bool {
    let image = site.directory.path().join("image");
    let _ = fs::remove_file(&image);
    let (image, source) = (image.to_str().unwrap(), text(site, "source"));
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|&argument| match argument {
            "IMAGE" => image,
            "SOURCE" => &source,
            other => other,
        })
        .collect();
    let point = text(site, "point");
    run(maker, &arguments) && run("mount", &["-t", kind, "-o", "ro,loop", image, &point])
}

fn reopen(site: &mut Site, config: StoreConfig) {
    site.store = Store::open_directory(&site.path(""), config).unwrap();
}

/// Both kinds of image, both ways to look up, and an overlay on top, which can be written.
#[test]
fn files_of_a_file_system_that_cannot_be_written_are_fixed() {
    let makers: [(&str, &str, &[&str]); 2] = [
        ("erofs", "mkfs.erofs", &["IMAGE", "SOURCE"]),
        (
            "squashfs",
            "mksquashfs",
            &["SOURCE", "IMAGE", "-quiet", "-no-progress"],
        ),
    ];
    for (kind, maker, arguments) in makers {
        let Some(mut site) = site() else { return };
        if !mount_image(&mut site, kind, maker, arguments) {
            continue;
        }
        for config in [config(), through_threads()] {
            reopen(&mut site, config);
            assert!(is_fixed(&mut site, "/point/f"), "{kind}");
            assert!(!is_fixed(&mut site, "/a"), "{kind}");
        }
        // What is relied on: it cannot be mounted for writing.
        let point = text(&site, "point");
        let _ = Command::new("mount")
            .args(["-o", "remount,rw", &point])
            .output();
        assert!(fs::write(site.path("point/f"), b"other").is_err(), "{kind}");
        for name in ["upper", "work", "over"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        let [upper, work] = ["upper", "work"].map(|name| text(&site, name));
        let options = format!("lowerdir={point},upperdir={upper},workdir={work}");
        let over = text(&site, "over");
        if run("mount", &["-t", "overlay", "-o", &options, "over", &over]) {
            reopen(&mut site, config());
            assert!(!is_fixed(&mut site, "/over/f"), "an overlay on {kind}");
        }
    }
}

#[test]
fn a_read_only_mount_fixes_nothing() {
    let Some(mut site) = site() else { return };
    let (source, point) = (text(&site, "source"), text(&site, "point"));
    if !run("mount", &["--bind", &source, &point])
        || !run("mount", &["-o", "remount,bind,ro", &point])
    {
        return;
    }
    for config in [config(), through_threads()] {
        reopen(&mut site, config);
        assert!(!is_fixed(&mut site, "/point/f"));
    }
    fs::write(site.path("source/f"), b"other").unwrap();
}

/// `chattr +i` can be taken back.
#[test]
fn the_immutable_attribute_fixes_nothing() {
    let mut site = Site::new(config(), &["a"]);
    let file = text(&site, "a");
    if !run("chattr", &["+i", &file]) {
        return;
    }
    let is_fixed = is_fixed(&mut site, "/a");
    assert!(run("chattr", &["-i", &file]));
    assert!(!is_fixed);
}

/// Where the kernel has fs-verity, and the temporary directory a file system with it.
#[test]
fn a_file_with_verity_is_fixed() {
    let mut site = Site::new(config(), &["a", "b"]);
    if !run("fsverity", &["enable", &text(&site, "a")]) {
        return;
    }
    assert!(is_fixed(&mut site, "/a"));
    assert!(!is_fixed(&mut site, "/b"));
}

/// Squashfs has no direct reads: the worker has the file open by then.
#[test]
fn a_file_that_is_refused_after_its_open_is_closed_by_a_thread() {
    let Some(mut site) = site() else { return };
    let arguments = ["SOURCE", "IMAGE", "-quiet", "-no-progress"];
    if !mount_image(&mut site, "squashfs", "mksquashfs", &arguments) {
        return;
    }
    fs::read(site.path("point/f")).unwrap();
    let strict = StoreConfig {
        direct: Direct::Required,
        ..config()
    };
    site.store = match Store::open_directory(&site.path(""), strict) {
        Ok(store) => store,
        // The file tried at start was one of the image.
        Err(error) => return eprintln!("SKIPPED: {error}"),
    };
    assert_eq!(site.refuse("/point/f"), StoreRefusal::NotDirect);
    let counters = site.store.counters();
    let closed_by_worker = counters.store_inline_lookups - counters.store_threaded_closes;
    assert_eq!(closed_by_worker, 0, "{counters:?}");
    assert_eq!(site.refuse("/point"), StoreRefusal::Directory);
}
