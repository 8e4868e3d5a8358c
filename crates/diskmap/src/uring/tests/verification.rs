//! Files that are appended to or touched while they are served: what was read of them is compared with what
//! is there now, and only if it is the same they are served on.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::changes::{known, known_in, overwrite};
use super::{Bench, Mode, NOW, is_readable, pattern};
use crate::{Disk, DiskError, FileIndex, FileSource, PathEnd};

const SIZE_BYTES: u64 = 300_000;

/// A file of an hour ago, its first block read.
fn serving() -> (Bench, PathBuf, FileIndex) {
    serving_from(true)
}

/// The same, on a mount that is said to be local or not.
fn serving_from(is_local: bool) -> (Bench, PathBuf, FileIndex) {
    let mut bench = Bench::new();
    let path = bench.create("served", SIZE_BYTES);
    let mut source = known(&path, 4096);
    if let FileSource::File { status, .. } = &mut source {
        status.is_local = is_local;
    }
    let (file, _) = bench.disk.open(source).expect("there is room");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    (bench, path, file)
}

/// A file just written, opened with its status, not read yet.
fn young(size_bytes: u64) -> (Bench, PathBuf, FileIndex) {
    let mut bench = Bench::new();
    let path = bench.path("young");
    fs::write(&path, pattern(0, size_bytes)).expect("room for it");
    let (file, _) = bench.disk.open(known(&path, 4096)).expect("there is room");
    (bench, path, file)
}

fn append(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .expect("room for it");
}

fn shell(path: &Path, command: &str) {
    let done = Process::new("sh")
        .args(["-ec", command])
        .current_dir(path.parent().expect("it is in a directory"))
        .output()
        .expect("a shell");
    assert!(done.status.success(), "{command}: {done:?}");
}

/// Rewrites a file as playlists often are: cut to nothing, then written anew.
fn rewrite(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("room for it");
}

#[test]
fn a_file_appended_to_is_served_on_to_the_length_it_had() {
    for is_local in [true, false] {
        let (mut bench, path, file) = serving_from(is_local);
        for at in (0..SIZE_BYTES).step_by(4096) {
            append(&path, &[0xee; 1000]);
            let expected = pattern(at, 4096.min(SIZE_BYTES - at));
            assert!(bench.read(file, at) == Ok(expected), "at {at}");
        }
        let counters = bench.disk.counters();
        let appends = SIZE_BYTES.div_ceil(4096);
        assert_eq!(counters.disk_verified_files, appends);
        assert_eq!(counters.disk_changed_commands, 0);
        // Beyond the promise there is nothing, whatever the file has there by now.
        assert_eq!(bench.read(file, 303_104), Ok(Vec::new()));
    }
}

/// However often it grows, each read ends: what was read before a check is handed out by that check.
#[test]
fn reads_of_a_file_that_never_stops_growing_end() {
    let (mut bench, path, file) = serving();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                append(&path, &[0xee; 10]);
            }
        });
        for _ in 0..100 {
            for token in 0..32 {
                bench.enqueue(file, token * 4096, 4096, token);
            }
            for (token, result) in bench.run() {
                assert!(result == Ok(pattern(token * 4096, 4096)), "{token}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(bench.disk.counters().disk_verified_files > 0);
}

#[test]
fn a_young_file_appended_to_before_its_first_read_is_served() {
    for size_bytes in [1, 255, 257, 4096, 5000, 100_000] {
        let (mut bench, path, file) = young(size_bytes);
        append(&path, &[0xee; 3000]);
        let last = (size_bytes - 1) / 4096 * 4096;
        assert_eq!(
            bench.read(file, last),
            Ok(pattern(last, size_bytes - last)),
            "{size_bytes}"
        );
        append(&path, &[0xee; 10_000]);
        assert_eq!(
            bench.read(file, 0),
            Ok(pattern(0, size_bytes.min(4096))),
            "{size_bytes}"
        );
        assert_eq!(bench.disk.counters().disk_verified_files, 2);
    }
}

#[test]
fn an_old_file_appended_to_before_its_first_read_has_changed() {
    let mut bench = Bench::new();
    let path = bench.create("served", 8192);
    let (file, _) = bench.open(&path);
    append(&path, b"more");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

/// None of these writes anything, and the status does not tell.
#[test]
fn a_touched_file_is_served_on() {
    for (command, is_local) in [
        "touch served",
        "touch -a served",
        "chmod $(stat -c %a served) served",
        "chown $(stat -c %u:%g served) served",
        "ln served other && rm other",
        "mv served other && mv other served",
    ]
    .into_iter()
    .flat_map(|command| [(command, true), (command, false)])
    {
        let (mut bench, path, file) = serving_from(is_local);
        shell(&path, command);
        assert_eq!(bench.read(file, 8192), Ok(pattern(8192, 4096)), "{command}");
        shell(&path, command);
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)), "{command}");
        assert_eq!(bench.disk.counters().disk_changed_commands, 0, "{command}");
        // Still a later write is none of them.
        overwrite(&path, b"new");
        assert_eq!(bench.read(file, 0), Err(DiskError::Changed), "{command}");
    }
}

/// Reads a file as any other program does, until the time of that is in the file.
fn read_until_noted(path: &Path) {
    while {
        fs::read(path).expect("our own file");
        let meta = fs::metadata(path).expect("it is there");
        meta.accessed().expect("a time") <= meta.modified().expect("a time")
    } {}
}

/// A file whose reads note their time, its first block read; `None` where the mount keeps no such times.
fn serving_noted() -> Option<(Bench, PathBuf, FileIndex)> {
    let mut bench = Bench::new();
    let path = bench.create("served", SIZE_BYTES);
    let long_ago = FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH);
    let writer = OpenOptions::new().write(true).open(&path);
    writer
        .and_then(|file| file.set_times(long_ago))
        .expect("our own file");
    fs::read(&path).expect("our own file");
    let meta = fs::metadata(&path).expect("it is there");
    if meta.accessed().expect("a time") == SystemTime::UNIX_EPOCH {
        eprintln!("SKIPPED: the mount does not note the time of reads");
        return None;
    }
    let source = known_in(&path, 4096, Mode::Noted);
    let (file, _) = bench.disk.open(source).expect("there is room");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    Some((bench, path, file))
}

/// The file is looked at before a read moves atime. Who reads it before that look leaves nothing that tells a touch from
/// a write.
#[test]
fn a_file_whose_reads_move_its_atime_is_served_on_when_it_was_touched() {
    for is_read_by_another_first in [false, true] {
        let Some((mut bench, path, file)) = serving_noted() else {
            return;
        };
        shell(&path, "touch served");
        if is_read_by_another_first {
            read_until_noted(&path);
        }
        bench.enqueue(file, 8192, 4096, 1);
        bench.disk.sqsync(NOW).expect("a working ring");
        read_until_noted(&path);
        let expected = if is_read_by_another_first {
            Err(DiskError::Changed)
        } else {
            Ok(pattern(8192, 4096))
        };
        assert_eq!(bench.run()[0].1, expected);
    }
}

/// Another worker's read may be the one that moves atime.
#[test]
fn a_touched_file_is_served_on_by_a_disk_whose_read_is_the_second() {
    for is_overwritten in [false, true] {
        let Some((mut first, path, file)) = serving_noted() else {
            return;
        };
        let mut second = Bench::new();
        let source = known_in(&path, 4096, Mode::Noted);
        let (file_of_second, _) = second.disk.open(source).expect("there is room");
        assert_eq!(second.read(file_of_second, 0), Ok(pattern(0, 4096)));
        shell(&path, "touch served");
        assert_eq!(first.read(file, 4096), Ok(pattern(4096, 4096)));
        read_until_noted(&path);
        if is_overwritten {
            overwrite(&path, b"new");
        }
        let expected = if is_overwritten {
            Err(DiskError::Changed)
        } else {
            Ok(pattern(8192, 4096))
        };
        assert_eq!(second.read(file_of_second, 8192), expected);
    }
}

#[test]
fn a_file_given_an_extended_attribute_is_served_on() {
    let (mut bench, path, file) = serving();
    let target = File::open(&path).expect("our own file");
    // SAFETY: two C strings, and one byte of the second.
    let outcome = unsafe {
        let value = c"x".as_ptr().cast();
        libc::fsetxattr(target.as_raw_fd(), c"user.note".as_ptr(), value, 1, 0)
    };
    if outcome != 0 {
        eprintln!("SKIPPED: no extended attributes here");
        return;
    }
    assert_eq!(bench.read(file, 8192), Ok(pattern(8192, 4096)));
    assert_eq!(bench.disk.counters().disk_verified_files, 1);
}

/// Its path still ends as the store knows it.
#[test]
fn a_file_moved_to_a_lower_directory_is_served_on() {
    let (mut bench, path, _) = serving();
    let mut source = known(&path, 4096);
    if let FileSource::File { status, .. } = &mut source {
        status.path_end = Some(PathEnd::of(b"/served"));
    }
    let (file, _) = bench.disk.open(source).expect("there is room");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    shell(&path, "mkdir old && mv served old/served");
    assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
    assert_eq!(bench.disk.counters().disk_verified_files, 1);
}

/// The bytes behind its name may be those of another film by now: nothing tells.
#[test]
fn a_file_touched_before_its_first_read_has_changed() {
    let mut bench = Bench::new();
    let path = bench.create("served", 8192);
    let (file, _) = bench.open(&path);
    shell(&path, "touch served");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

/// What looks as if nothing, or only more, had been written, and is not so.
#[test]
fn what_is_overwritten_has_changed_whatever_else_was_done() {
    type Deed = fn(&Path);
    let deeds: [(&str, Deed); 8] = [
        ("appended to and overwritten", |path| {
            append(path, b"more");
            overwrite(path, b"new");
        }),
        ("overwritten and touched", |path| {
            overwrite(path, b"new");
            shell(path, "touch served");
        }),
        ("overwritten, and its time put back", |path| {
            shell(
                path,
                "touch -r served mark && printf new | dd of=served conv=notrunc status=none \
                 && touch -r mark served",
            );
        }),
        ("rewritten longer", |path| {
            rewrite(path, &vec![0x55; 400_000]);
        }),
        ("rewritten as long", |path| {
            rewrite(path, &vec![0x55; 300_000]);
        }),
        ("cut, and grown again", |path| {
            rewrite(path, b"");
            OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(SIZE_BYTES + 1))
                .expect("our own file");
        }),
        ("given another time", |path| {
            shell(path, "touch -d '2001-01-01 00:00' served");
        }),
        ("shrunk", |path| {
            OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(SIZE_BYTES - 1))
                .expect("our own file");
        }),
    ];
    for ((name, deed), is_local) in deeds
        .into_iter()
        .flat_map(|deed| [(deed, true), (deed, false)])
    {
        let (mut bench, path, file) = serving_from(is_local);
        deed(&path);
        for token in 0..8 {
            bench.enqueue(file, token * 4096, 4096, token);
        }
        for (_, result) in bench.run() {
            assert_eq!(result, Err(DiskError::Changed), "{name}");
        }
        assert_eq!(bench.read(file, 0), Err(DiskError::Changed), "{name}");
        assert_eq!(bench.disk.counters().disk_verified_files, 0, "{name}");
    }
}

/// A live playlist: its writer cuts it and writes the next one.
#[test]
fn a_young_file_rewritten_longer_has_changed_before_its_first_read_too() {
    let playlist = |first: u32, count: u32| {
        let mut text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:{first}\n");
        for number in first..first + count {
            text += &format!("#EXTINF:4.0,\nsegment{number}.m4s\n");
        }
        text.into_bytes()
    };
    for count in [3, 10, 100, 1000] {
        for is_read in [false, true] {
            let mut bench = Bench::new();
            let path = bench.path("live.m3u8");
            let before = playlist(10, count);
            rewrite(&path, &before);
            let (file, _) = bench.disk.open(known(&path, 4096)).expect("room");
            if is_read {
                let expected = before[..before.len().min(4096)].to_vec();
                assert_eq!(bench.read(file, 0), Ok(expected));
            }
            rewrite(&path, &playlist(11, count + 1));
            assert_eq!(
                bench.read(file, 0),
                Err(DiskError::Changed),
                "{count}, {is_read}"
            );
        }
    }
}

/// The store took the status, and the file was appended to before the disk opened it.
#[test]
fn a_young_file_that_grew_before_it_was_opened_has_changed() {
    let mut bench = Bench::new();
    let path = bench.path("young");
    fs::write(&path, pattern(0, 5000)).expect("room for it");
    let source = known(&path, 4096);
    append(&path, b"more");
    assert_eq!(bench.disk.open(source).err(), Some(DiskError::Changed));
    assert!(bench.disk.open(known(&path, 4096)).is_ok(), "asked again");
}

/// The latest that was handed out is a witness, too.
#[test]
fn bytes_overwritten_at_the_place_read_last_have_changed() {
    let (mut bench, path, file) = serving();
    assert!(bench.read(file, 40_960) == Ok(pattern(40_960, 4096)));
    let writer = OpenOptions::new().write(true).open(&path);
    let writer = writer.expect("our own file");
    writer
        .write_all_at(b"new", 40_960 + 4000)
        .expect("room for it");
    append(&path, b"more");
    assert_eq!(bench.read(file, 8192), Err(DiskError::Changed));
}

/// Reads while what was read is compared: they wait, and are checked by themselves.
#[test]
fn reads_that_come_while_a_file_is_verified_are_checked_anew() {
    let (mut bench, path, file) = serving();
    append(&path, b"more");
    bench.enqueue(file, 4096, 4096, 1);
    bench.disk.sqsync(NOW).expect("a working ring");
    // The read is held: nothing is handed out.
    while bench.disk.counters().disk_verify_commands == 0 {
        assert!(is_readable(&bench.disk, 30_000));
        bench.disk.clear_wake();
        assert_eq!(bench.consume(usize::MAX), 0);
    }
    assert_eq!(bench.disk.in_flight(), 1);
    bench.enqueue(file, 8192, 4096, 2);
    overwrite(&path, b"new");
    let results = bench.run();
    assert!(
        [Ok(pattern(4096, 4096)), Err(DiskError::Changed)].contains(&results[0].1),
        "the old bytes, or none"
    );
    assert_eq!(results[1].1, Err(DiskError::Changed));
}

/// The kernel dates an append before the file is longer, and a writer may lose its processor in between.
#[test]
fn a_file_that_is_dated_first_and_grows_then_was_appended_to() {
    for grows in [true, false] {
        let (mut bench, path, file) = serving();
        let writer = OpenOptions::new().append(true).open(&path);
        let writer = writer.expect("our own file");
        writer
            .set_modified(SystemTime::now())
            .expect("our own file");
        let checks = bench.disk.counters().disk_check_calls;
        bench.enqueue(file, 4096, 4096, 1);
        bench.disk.sqsync(NOW).expect("a working ring");
        while bench.disk.counters().disk_check_calls == checks {
            assert!(is_readable(&bench.disk, 30_000));
            bench.disk.clear_wake();
            assert_eq!(bench.consume(usize::MAX), 0, "it is held");
        }
        if grows {
            append(&path, b"more");
        }
        let expected = if grows {
            Ok(pattern(4096, 4096))
        } else {
            Err(DiskError::Changed)
        };
        assert_eq!(bench.run()[0].1, expected);
    }
}

#[test]
fn a_file_closed_while_it_is_verified_gives_its_slots_back() {
    for is_dropped in [false, true] {
        let (mut bench, path, file) = serving();
        append(&path, b"more");
        for token in 0..8 {
            bench.enqueue(file, token * 4096, 4096, token);
        }
        bench.disk.sqsync(NOW).expect("a working ring");
        while bench.disk.counters().disk_verify_commands == 0 {
            assert!(is_readable(&bench.disk, 30_000));
            bench.disk.clear_wake();
            assert_eq!(bench.consume(usize::MAX), 0);
        }
        bench.disk.close(file);
        if is_dropped {
            // Waits for the kernel, and not for those that are held.
            drop(bench.disk);
            continue;
        }
        assert_eq!(bench.run().len(), 8);
        let (again, _) = bench.open(&path);
        assert_eq!(bench.read(again, 0), Ok(pattern(0, 4096)));
    }
}

/// The status of one that grew is the next one to compare with.
#[test]
fn a_file_that_grew_and_is_cut_to_its_first_length_has_changed() {
    let (mut bench, path, file) = serving();
    append(&path, &[1; 10_000]);
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    let writer = OpenOptions::new().write(true).open(&path);
    let writer = writer.expect("our own file");
    writer.set_len(SIZE_BYTES).expect("our own file");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

#[test]
fn a_mode_changed_along_with_an_append_is_served_on() {
    let (mut bench, path, file) = serving();
    append(&path, &[1; 10_000]);
    let mode = fs::metadata(&path).expect("it is there").mode() ^ 0o020;
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our own file");
    assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
}
