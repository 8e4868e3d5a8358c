//! `atlas store` as an operator meets it, on images: what it prints, refuses and finds.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may panic, and says on stderr what it skips"
)]

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use store::raw::{Access, RawStore, names_in};
use tempfile::TempDir;

/// A directory for images and files.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
        command.arg("store").args(words).current_dir(self.0.path());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What a command that succeeds prints.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {reason}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why a command is refused, with its exit code.
    fn refused(&self, words: &[&str]) -> (i32, String) {
        refusal(&self.run(words))
    }
}

fn refusal(output: &Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Bytes that differ from place to place.
fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| u8::try_from((place / 3 + place / 4096 + seed * 7) % 253).unwrap())
        .collect()
}

#[test]
fn files_become_objects_and_come_out_again() {
    for store in ["one", "first,second"] {
        let site = Site::new();
        site.ok(&["init", store, "--size", "16M"]);
        let film = content(1, (2 << 20) + 5);
        site.write("tree/film.mp4", &film);
        site.write("tree/sub/part.ts", b"part");
        site.write("tree/sub/empty", b"");
        std::os::unix::fs::symlink("film.mp4", site.path("tree/link")).unwrap();
        site.write("single", b"single");
        let added = site.ok(&["add", store, "tree", "single"]);
        assert_eq!(
            added,
            "4 added, 0 replaced (2.00 MiB), 1 skipped: no regular files\n"
        );
        assert_eq!(
            site.ok(&["ls", store]),
            "film.mp4\nsingle\nsub/empty\nsub/part.ts\n"
        );
        let got = site.run(&["get", store, "film.mp4"]);
        assert!(got.status.success() && got.stdout == film);
        assert_eq!(site.ok(&["get", store, "/sub/part.ts"]), "part");
        assert_eq!(site.ok(&["get", store, "sub/empty"]), "");
        assert_eq!(
            site.ok(&["verify", store]),
            "4 objects (2.00 MiB) are whole\n"
        );
        assert_eq!(
            site.ok(&["verify", store, "single"]),
            "1 objects (6 B) are whole\n"
        );

        site.write("tree/sub/part.ts", b"another part");
        let added = site.ok(&["add", store, "tree", "single"]);
        let unchanged = "0 added, 1 replaced (12 B), 3 unchanged, 1 skipped: no regular files\n";
        assert_eq!(added, unchanged);
        assert_eq!(site.ok(&["get", store, "sub/part.ts"]), "another part");
        assert_eq!(
            site.ok(&["add", store, "single", "--under", "/x/y/"]),
            "1 added, 0 replaced (6 B)\n"
        );
        assert_eq!(site.ok(&["get", store, "x/y/single"]), "single");

        assert_eq!(
            site.ok(&["rm", store, "single", "x/y/single"]),
            "2 removed\n"
        );
        assert_eq!(site.ok(&["rm", store, "-r", "sub"]), "2 removed\n");
        assert_eq!(site.ok(&["ls", store]), "film.mp4\n");
        let stat = site.ok(&["stat", store]);
        assert!(stat.contains("objects        1 (2.00 MiB)\n"), "{stat}");
        assert!(stat.contains("free with the next change"), "{stat}");
    }
}

/// Tags are those that the command of docs/develop/store-format.md computes.
#[test]
fn tags_are_hashes_that_anybody_can_compute() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M"]);
    for length in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20] {
        site.write("file", &content(length, length));
        site.ok(&["add", "image", "file"]);
        let command = "split -b 1M --filter='sha256sum | cut -c1-32' file \
            | tr -d '\\n' | sed 's/../\\\\x&/g' | xargs -0 printf | sha256sum | cut -c1-32";
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(site.0.path());
        let tag = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        let listed = site.ok(&["ls", "-l", "image"]);
        assert!(listed.contains(tag.trim_end()), "{length}: {tag} {listed}");
    }
}

#[test]
fn nothing_is_overwritten_unless_that_is_said_twice() {
    let site = Site::new();
    let mut disk = content(1, 8 << 20);
    disk[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    site.write("disk", &disk);
    let (code, reason) = site.refused(&["init", "disk"]);
    assert_eq!(code, 2);
    assert!(
        reason.contains("disk holds an ext2, ext3 or ext4 file system"),
        "{reason}"
    );
    assert!(reason.contains("--overwrite-existing"), "{reason}");
    let answer = |text: &str| {
        let mut command = site.command(&["init", "disk", "--overwrite-existing"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    };
    for text in ["", "\n", "yes\n", "y\n", "YES!\n"] {
        let (code, reason) = refusal(&answer(text));
        assert_eq!(code, 2, "{text:?}");
        assert!(reason.contains("All of it will be lost"), "{reason}");
        assert!(
            std::fs::read(site.path("disk")).unwrap() == disk,
            "{text:?}"
        );
    }
    let output = answer("YES\n");
    assert!(output.status.success(), "{}", refusal(&output).1);
    assert_eq!(site.ok(&["ls", "disk"]), "");
    let after = std::fs::read(site.path("disk")).unwrap();
    let zeros = |part: &[u8]| part.iter().all(|byte| *byte == 0);
    // Nothing recognises the old file system any more.
    assert!(zeros(&after[4096..65_536]) && zeros(&after[after.len() - (1 << 20)..]));
    let (_, reason) = site.refused(&["init", "disk"]);
    let part = "holds device 0 (of 0 to 0) of the Atlas store ";
    assert!(reason.contains(part), "{reason}");
}

/// Whichever of a store's devices is named, before the question or while it waits for its answer.
#[test]
fn a_store_that_is_read_or_changed_is_not_overwritten() {
    let site = Site::new();
    site.ok(&["init", "first,second", "--size", "16M"]);
    site.write("film", b"film");
    site.ok(&["add", "first,second", "film"]);
    let paths = ["first", "second"].map(|name| site.path(name));
    let open = |access| RawStore::open(&paths, access).unwrap();
    for device in ["first", "second"] {
        let init = ["init", device, "--overwrite-existing"];
        let reader = open(Access::Read { direct: false });
        reader.load_locked().unwrap();
        let (code, reason) = site.refused(&init);
        assert_eq!(code, 2, "{reason}");
        assert!(reason.contains("a server reads this store"), "{reason}");
        drop(reader);
        let writer = open(Access::Write);
        let lock = writer.lock_for_writing().unwrap();
        let (code, reason) = site.refused(&init);
        assert_eq!(code, 2, "{reason}");
        assert!(reason.contains("another process changes"), "{reason}");
        drop(lock);

        // While it waits for an answer.
        let mut child = site.command(&init);
        child.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut question = [0; 1];
        child
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut question)
            .unwrap();
        let reader = open(Access::Read { direct: false });
        let refused = reader.load_locked().unwrap_err().to_string();
        let part = format!("{device}: another process makes a store of it");
        assert!(refused.ends_with(&part), "{refused}");
        let stdin = child.stdin.take().unwrap();
        drop(stdin);
        assert_eq!(child.wait().unwrap().code(), Some(2));
        site.ok(&["verify", "first,second"]);
    }
}

#[test]
fn only_the_last_block_of_a_device_may_hold_something() {
    let site = Site::new();
    let mut disk = vec![0; 8 << 20];
    let last = disk.len() - 1;
    disk[last] = 1;
    site.write("disk", &disk);
    let (_, reason) = site.refused(&["init", "disk"]);
    assert!(
        reason.contains("disk holds data of an unknown kind"),
        "{reason}"
    );
    disk[last] = 0;
    site.write("disk", &disk);
    site.ok(&["init", "disk"]);
}

/// A block device over a file, removed in the end.
struct Loop(String);

impl Loop {
    /// `None`, said aloud, where there is none to be had.
    fn over(file: &Path) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["--show", "-f"])
            .arg(file)
            .output();
        match made {
            Ok(output) if output.status.success() => {
                let name = String::from_utf8(output.stdout).unwrap();
                Some(Self(name.trim_end().to_owned()))
            }
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr);
                eprintln!("SKIPPED: losetup: {}", reason.trim_end());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_a_store_unless_somebody_has_it_to_himself() {
    let site = Site::new();
    site.write("disk", &vec![0; 16 << 20]);
    site.write("film", &content(1, 3_000_001));
    let Some(device) = Loop::over(&site.path("disk")) else {
        return;
    };
    site.ok(&["init", &device.0]);
    site.ok(&["add", &device.0, "film"]);
    let got = site.run(&["get", &device.0, "film"]);
    assert!(got.status.success() && got.stdout == content(1, 3_000_001));
    site.ok(&["verify", &device.0]);
    // A lock on the device's node is seen by whoever opens it by that.
    let names = names_in(device.0.as_ref());
    let reader = RawStore::open(&names, Access::Read { direct: true }).unwrap();
    reader.load_locked().unwrap();
    let (code, reason) = site.refused(&["init", &device.0, "--overwrite-existing"]);
    assert!(
        code == 2 && reason.contains("a server reads this store"),
        "{reason}"
    );
    drop(reader);
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.0)
        .unwrap();
    let (code, reason) = site.refused(&["add", &device.0, "film"]);
    assert!(code == 2 && reason.contains("in use: mounted"), "{reason}");
    drop((exclusive, device));
    // What it wrote is in the file below.
    site.ok(&["verify", "disk", "film"]);
}

/// What is free has no blocks in the image any more; all else is as it was.
#[test]
fn trim_gives_back_what_no_catalogue_has() {
    for store in ["one", "first,second"] {
        let site = Site::new();
        let images: Vec<_> = store.split(',').collect();
        let used = |site: &Site| -> u64 {
            let blocks = images
                .iter()
                .map(|image| site.path(image).metadata().unwrap().blocks());
            blocks.sum::<u64>() * 512
        };
        site.ok(&["init", store, "--size", "32M"]);
        let (kept, removed) = (content(1, 3 << 20), content(2, 9 << 20));
        site.write("tree/kept", &kept);
        site.write("tree/removed", &removed);
        site.ok(&["add", store, "tree"]);
        let before = used(&site);
        if before > 30 << 20 {
            eprintln!("SKIPPED: the file system has no holes");
            return;
        }
        site.ok(&["rm", store, "removed"]);
        assert!(used(&site) >= before, "nothing is given back unasked");
        let said = site.ok(&["trim", store]);
        assert!(
            said.contains(" trimmed\n") && !said.contains("not yet"),
            "{said}"
        );
        let after = used(&site);
        assert!(after + (8 << 20) < before, "{before} bytes, then {after}");
        site.ok(&["verify", store]);
        assert!(site.run(&["get", store, "kept"]).stdout == kept);
        // It is space as before.
        site.ok(&["add", store, "tree"]);
        assert!(site.run(&["get", store, "removed"]).stdout == removed);
        site.ok(&["verify", store]);
    }
}

#[test]
fn trim_spares_what_a_server_reads() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "32M"]);
    let film = content(1, 5 << 20);
    site.write("film", &film);
    site.ok(&["add", "image", "film"]);
    let names = names_in(&site.path("image"));
    let reader = RawStore::open(&names, Access::Read { direct: false }).unwrap();
    let loaded = reader.load_locked().unwrap();
    site.ok(&["rm", "image", "film"]);
    let said = site.ok(&["trim", "image"]);
    assert!(
        said.contains("5.00 MiB of removed objects not yet"),
        "{said}"
    );
    let extent = loaded.catalogue.find("film").unwrap().extent;
    let read = || {
        let device = &reader.devices()[0];
        device.read(extent.start * 4096, film.len()).unwrap()
    };
    assert!(read() == film, "it may be sent on");
    reader.unlock(loaded.catalogue.sequence());
    let said = site.ok(&["trim", "image"]);
    assert!(!said.contains("not yet"), "{said}");
    assert!(read().iter().all(|byte| *byte == 0), "its space came back");
}

/// A loop device passes it on to its file.
#[test]
fn trim_tells_a_block_device() {
    let site = Site::new();
    site.write("disk", &vec![0; 16 << 20]);
    let Some(device) = Loop::over(&site.path("disk")) else {
        return;
    };
    site.ok(&["init", &device.0]);
    site.write("film", &content(1, 3_000_001));
    site.ok(&["add", &device.0, "film"]);
    let output = site.run(&["trim", &device.0]);
    let reason = String::from_utf8_lossy(&output.stderr);
    if reason.contains("does not support discard") {
        eprintln!("SKIPPED: the file system below the loop device has no holes");
        return;
    }
    assert!(output.status.success(), "{reason}");
    assert!(site.path("disk").metadata().unwrap().blocks() * 512 < 8 << 20);
    assert!(site.run(&["get", &device.0, "film"]).stdout == content(1, 3_000_001));
    site.ok(&["verify", &device.0]);
}

#[test]
fn sizes_and_names_that_make_no_sense_are_refused() {
    let site = Site::new();
    site.write("file", b"x");
    site.ok(&["init", "image", "--size", "4M"]);
    for (words, part) in [
        (&["init", "missing"][..], "there is no such device or image"),
        (&["init", "small", "--size", "1M"], "at least"),
        (
            &["init", "odd", "--size", "many"],
            "--size many: expected a size such as 64G or 64MiB",
        ),
        (&["init", "image", "--size", "8M"], "it exists"),
        (&["init", "new,new", "--size", "8M"], "named twice"),
        (
            &["init", "/dev/null"],
            "neither a block device nor an image",
        ),
        (&["add", "image", "missing"], "No such file"),
        (
            &["add", "image", "file", "file"],
            "two files would have the name file",
        ),
        (&["add", "image", "file", "--under", "../x"], "--under ../x"),
        (
            &["add", "image", "file", "--type", "nonsense"],
            "--type nonsense",
        ),
        (&["add", "file", "file"], "no store"),
        (&["get", "image", "file"], "no such object"),
        (&["rm", "image", "file"], "no such object"),
        (&["verify", "image", "file"], "no such object"),
    ] {
        let (code, reason) = site.refused(words);
        assert_eq!(code, 2, "{words:?}: {reason}");
        assert!(
            reason.contains(part) && reason.lines().count() == 1,
            "{words:?}: {reason}"
        );
    }
    assert!(
        !site.path("small").exists(),
        "an image that became no store is removed"
    );
    assert_eq!(site.ok(&["ls", "image"]), "");
}

#[test]
fn a_name_with_control_characters_is_refused_and_shown_with_escapes() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M"]);
    for (name, shown) in [
        ("a\nb", "a\\nb"),
        ("\u{1b}[2J", "\\u{1b}[2J"),
        ("a\\b", "a\\\\b"),
    ] {
        site.write(&format!("tree/{name}"), b"x");
        let (code, reason) = site.refused(&["add", "image", "tree"]);
        assert_eq!(code, 2, "{reason}");
        let part = format!("tree/{shown}\": no request could have its name");
        assert!(
            reason.contains(&part) && reason.lines().count() == 1,
            "{reason}"
        );
        std::fs::remove_file(site.path("tree").join(name)).unwrap();
    }
}

#[test]
fn planted_damage_is_found_where_it_is() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M"]);
    let film = content(1, (3 << 20) - 100);
    site.write("film", &film);
    site.write("other", b"other");
    site.ok(&["add", "image", "film", "other"]);
    let image = std::fs::read(site.path("image")).unwrap();
    let start = image.windows(64).position(|it| it == &film[..64]).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(site.path("image"))
        .unwrap();
    let place = start + (2 << 20) + 17;
    file.write_all_at(&[image[place] ^ 1], place as u64)
        .unwrap();
    let output = site.run(&["verify", "image"]);
    let (code, reason) = refusal(&output);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(code, 1);
    let expected = format!(
        "film: bytes 2097152 to 3145627 are damaged (image, from byte {})\n",
        start + (2 << 20)
    );
    assert_eq!(found, expected);
    assert!(reason.contains("1 faults in 2 objects"), "{reason}");
    let (code, reason) = site.refused(&["get", "image", "film"]);
    assert!(
        code == 1 && reason.contains("bytes 2097152 to 3145627 are damaged"),
        "{reason}"
    );
    site.ok(&["verify", "image", "other"]);

    // The newest catalogue: the one before is empty, and nothing is to be changed.
    let sequence = 2_u64;
    let area = (256 + sequence % 2 * 64) * 4096;
    file.write_all_at(b"damage", area + 70).unwrap();
    let (code, reason) = site.refused(&["add", "image", "other"]);
    assert!(
        code == 2 && reason.contains("the newest catalogue is damaged"),
        "{reason}"
    );
    let (code, _) = site.refused(&["verify", "image"]);
    assert_eq!(code, 1);
    let stat = site.ok(&["stat", "image"]);
    assert!(
        stat.contains("damage         the newest catalogue"),
        "{stat}"
    );
}

#[test]
fn without_room_nothing_is_added_and_removed_objects_make_room() {
    let site = Site::new();
    // 16 MiB but for the first MiB and two catalogues of 256 KiB.
    site.ok(&["init", "image", "--size", "16M"]);
    site.write("a/large", &content(1, 9 << 20));
    site.write("b/large2", &content(2, 9 << 20));
    site.write("b/small", b"small");
    site.ok(&["add", "image", "a"]);
    let (code, reason) = site.refused(&["add", "image", "b"]);
    assert_eq!(code, 1);
    let part = "large2: no room for 9.00 MiB in one piece: the largest free run has 5.50 MiB, 5.50 \
                MiB are free in all";
    assert!(reason.contains(part), "{reason}");
    assert_eq!(site.ok(&["ls", "image"]), "large\n");
    site.ok(&["rm", "image", "large"]);
    site.ok(&["add", "image", "b"]);
    assert_eq!(site.ok(&["ls", "image"]), "large2\nsmall\n");
    site.ok(&["verify", "image"]);

    // Removed one after the other: only the last one waits.
    site.write("c/3", &content(3, 14 << 20));
    site.ok(&["rm", "image", "large2"]);
    site.ok(&["rm", "image", "small"]);
    site.ok(&["add", "image", "c"]);
    assert_eq!(site.ok(&["ls", "image"]), "3\n");
}

#[test]
fn what_is_added_again_unchanged_is_not_written_again() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M"]);
    site.write("a", b"a");
    site.ok(&["add", "image", "a"]);
    site.ok(&["rm", "image", "a"]);
    site.ok(&["add", "image", "a"]);
    let before = std::fs::read(site.path("image")).unwrap();
    assert_eq!(
        site.ok(&["add", "image", "a"]),
        "0 added, 0 replaced (0 B), 1 unchanged\n"
    );
    assert!(std::fs::read(site.path("image")).unwrap() == before);
    // But with another content type it is another object.
    let typed = ["add", "image", "a", "--type", "text/plain"];
    assert_eq!(site.ok(&typed), "0 added, 1 replaced (1 B)\n");
}

#[test]
fn a_store_is_checked_before_it_is_served() {
    let site = Site::new();
    site.ok(&["init", "one,two", "--size", "16M"]);
    let check = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
        command.args(["serve", path, "--check"]);
        command.current_dir(site.0.path()).output().unwrap()
    };
    let checked = check("one,two");
    let text = String::from_utf8(checked.stdout.clone()).unwrap();
    assert!(
        text.starts_with("ok: could serve"),
        "{text} {}",
        refusal(&checked).1
    );
    let (code, reason) = refusal(&check("two"));
    assert!(
        code == 2 && reason.contains("the store has 2 devices"),
        "{reason}"
    );
}

#[test]
fn a_full_catalogue_is_told_of_before_anything_is_written() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M", "--catalogue-size", "4096"]);
    for number in 0..60 {
        site.write(&format!("files/{number:02}"), b"content");
    }
    let before = std::fs::read(site.path("image")).unwrap();
    let (code, reason) = site.refused(&["add", "image", "files"]);
    assert_eq!(code, 1);
    // 72 bytes, and for each object 64, its name and a checksum.
    let part = "the catalogue would have 4992 bytes, and its area has 4096";
    assert!(reason.contains(part), "{reason}");
    assert!(std::fs::read(site.path("image")).unwrap() == before);
}

#[test]
fn a_reader_keeps_the_space_of_what_it_reads() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "16M"]);
    site.write("a", &content(1, 9 << 20));
    site.write("b", &content(2, 9 << 20));
    site.ok(&["add", "image", "a"]);
    let open = |access| RawStore::open(&names_in(&site.path("image")), access).unwrap();
    let reader = open(Access::Read { direct: false });
    let loaded = reader.load_locked().unwrap();
    site.ok(&["rm", "image", "a"]);
    let (code, reason) = site.refused(&["add", "image", "b"]);
    assert!(
        code == 1 && reason.contains("9.00 MiB of removed objects are still being sent"),
        "{reason}"
    );
    let stat = site.ok(&["stat", "image"]);
    assert!(
        stat.contains("by another process, from catalogue 2 on"),
        "{stat}"
    );
    reader.unlock(loaded.catalogue.sequence());
    site.ok(&["add", "image", "b"]);

    let writer = open(Access::Write);
    let lock = writer.lock_for_writing().unwrap();
    let (code, reason) = site.refused(&["rm", "image", "b"]);
    assert!(
        code == 2 && reason.contains("another process changes this store"),
        "{reason}"
    );
    drop(lock);
    site.ok(&["rm", "image", "b"]);
}

#[test]
fn an_import_that_is_stopped_or_killed_changes_nothing() {
    let site = Site::new();
    site.ok(&["init", "image", "--size", "96M"]);
    site.write("old", b"old");
    site.ok(&["add", "image", "old"]);
    site.write("new", &content(1, 40 << 20));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        // Before it has begun, or while it writes: it says nothing in between.
        for reads in [0, 1] {
            let mut child = site
                .command(&["add", "image", "new"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            if reads > 0 {
                wait_for_data(&site.path("image"), &mut child);
            }
            let id = rustix::process::Pid::from_child(&child);
            let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
            let _ = rustix::process::kill_process(id, signal);
            let status = child.wait().unwrap();
            let listed = site.ok(&["ls", "image"]);
            if status.success() {
                assert_eq!(listed, "new\nold\n");
                site.ok(&["rm", "image", "new"]);
            } else {
                assert_eq!(listed, "old\n", "{status}");
            }
            site.ok(&["verify", "image"]);
        }
    }
}

/// Waits until the import has written to the image, or has ended.
fn wait_for_data(image: &Path, child: &mut std::process::Child) {
    let modified = || std::fs::metadata(image).unwrap().modified().unwrap();
    let before = modified();
    while modified() == before && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
}
