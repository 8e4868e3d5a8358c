//! Files that are unlinked, renamed, overwritten or resized while they are served.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Bench, Mode, NOW, is_readable, pattern};
use crate::{Disk, DiskError, FileIndex, FileSource, FileStatus, PathEnd};

fn serving(size_bytes: u64) -> (Bench, PathBuf, FileIndex) {
    let mut bench = Bench::new();
    let path = bench.create("served", size_bytes);
    let (file, _) = bench.open(&path);
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096.min(size_bytes))));
    (bench, path, file)
}

pub(super) fn overwrite(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .expect("our own file");
    file.write_all_at(bytes, 0).expect("room for it");
}

#[test]
fn an_unlinked_file_is_served_on() {
    let (mut bench, path, file) = serving(8192);
    fs::remove_file(&path).expect("our own file");
    assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
}

#[test]
fn a_replaced_file_is_served_on_with_its_old_bytes() {
    let (mut bench, path, file) = serving(8192);
    let new = bench.path("new");
    fs::write(&new, vec![0xff; 8192]).expect("room for it");
    fs::rename(&new, &path).expect("our own directory");
    assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
}

#[test]
fn a_file_given_another_mode_or_name_is_served_on() {
    let (mut bench, path, file) = serving(4096);
    fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("our own file");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    fs::hard_link(&path, bench.path("link")).expect("our own directory");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    // The next change of ctime needs an explanation of its own.
    overwrite(&path, b"new");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

#[test]
fn an_overwritten_file_has_changed_for_good() {
    let (mut bench, path, file) = serving(8192);
    overwrite(&path, b"new");
    assert_eq!(bench.read(file, 4096), Err(DiskError::Changed));
    overwrite(&path, &pattern(0, 3));
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
    let (again, _) = bench.open(&path);
    assert_eq!(bench.read(again, 0), Ok(pattern(0, 4096)));
    assert_eq!(bench.disk.counters().disk_changed_commands, 2);
}

#[test]
fn an_overwritten_file_has_changed_even_with_its_time_put_back() {
    let (mut bench, path, file) = serving(4096);
    let before = fs::metadata(&path).expect("it is there");
    overwrite(&path, b"new");
    let writer = File::open(&path).expect("our own file");
    let times = FileTimes::new().set_modified(before.modified().expect("a time"));
    // On kernels with coarse timestamps a changed time may take a few milliseconds to show.
    loop {
        writer.set_times(times).expect("our own file");
        let after = writer.metadata().expect("it is there");
        assert_eq!(
            (before.mtime(), before.mtime_nsec()),
            (after.mtime(), after.mtime_nsec())
        );
        if (before.ctime(), before.ctime_nsec()) != (after.ctime(), after.ctime_nsec()) {
            break;
        }
    }
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

#[test]
fn a_renamed_file_is_served_on() {
    let (bench, path, file) = serving(4096);
    rename_to_and_fro(bench, &path, file);
}

/// The caller gave the path at open, and the kernel was not asked for it.
#[test]
fn a_renamed_file_is_served_on_if_its_path_was_known() {
    let (mut bench, path, _) = serving(4096);
    let mut source = known(&path, 4096);
    if let FileSource::File { status, .. } = &mut source {
        status.path_end = Some(PathEnd::of(b"/served"));
    }
    let (file, _) = bench.disk.open(source).expect("there is room");
    rename_to_and_fro(bench, &path, file);
}

fn rename_to_and_fro(mut bench: Bench, path: &Path, file: FileIndex) {
    fs::create_dir(bench.path("elsewhere")).expect("our own directory");
    for name in ["other", "elsewhere/other", "elsewhere/served", "served"] {
        fs::rename(path, bench.path(name)).expect("our own directory");
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)), "{name}");
        fs::rename(bench.path(name), path).expect("our own directory");
        assert_eq!(
            bench.read(file, 0),
            Ok(pattern(0, 4096)),
            "back from {name}"
        );
    }
    assert!(bench.disk.counters().disk_touched_files > 0);
    // The next change of ctime needs an explanation of its own.
    overwrite(path, b"new");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

/// Between its `stat` and its open, a file is overwritten with as many bytes.
#[test]
fn a_file_rewritten_before_it_is_opened_has_changed() {
    let mut bench = Bench::new();
    let path = bench.create("served", 8192);
    let source = known(&path, 4096);
    overwrite(&path, b"new");
    let (file, limits) = bench.disk.open(source).expect("there is room");
    assert_eq!(limits.size_bytes, 8192);
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

#[test]
fn a_file_whose_status_is_known_is_opened_as_any_other() {
    let mut bench = Bench::new();
    let path = bench.create("served", 8192);
    let (asked, expected) = bench.open(&path);
    let (file, limits) = bench
        .disk
        .open(known(&path, expected.block_bytes))
        .expect("there is room");
    assert_eq!(limits, expected);
    assert_eq!(bench.read(file, 4096), bench.read(asked, 4096));
    fs::remove_file(&path).expect("our own file");
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    assert_eq!(bench.disk.counters().disk_touched_files, 1);
}

/// The store knows that nobody can write the file: then it is not asked. (This one somebody writes.)
#[test]
fn a_file_that_cannot_change_is_not_checked() {
    for is_fixed in [true, false] {
        let mut bench = Bench::new();
        let path = bench.create("served", 8192);
        let FileSource::File {
            descriptor,
            mut status,
        } = known(&path, 4096)
        else {
            unreachable!("that is what it makes")
        };
        status.is_fixed = is_fixed;
        let source = FileSource::File { descriptor, status };
        let (file, limits) = bench.disk.open(source).expect("there is room");
        assert_eq!((limits.size_bytes, limits.block_bytes), (8192, 4096));
        assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
        overwrite(&path, b"new");
        let is_noticed = bench.read(file, 4096) == Err(DiskError::Changed);
        assert_eq!(is_noticed, !is_fixed);
        let was_checked = bench.disk.counters().disk_check_calls > 0;
        assert_eq!(was_checked, !is_fixed);
    }
}

/// A file, opened and with its status, as the store passes it.
pub(super) fn known(path: &Path, block_bytes: u32) -> FileSource {
    known_in(path, block_bytes, Mode::Direct)
}

pub(super) fn known_in(path: &Path, block_bytes: u32, mode: Mode) -> FileSource {
    let file = File::from(super::descriptor(path, mode));
    let meta = file.metadata().expect("an open file");
    let nanos = |nanos: i64| u32::try_from(nanos).expect("below 10^9");
    FileSource::File {
        status: FileStatus {
            size_bytes: meta.size(),
            modified: (meta.mtime(), nanos(meta.mtime_nsec())),
            changed: (meta.ctime(), nanos(meta.ctime_nsec())),
            links: u32::try_from(meta.nlink()).expect("few"),
            mode: meta.mode(),
            user: meta.uid(),
            group: meta.gid(),
            device: (libc::major(meta.dev()), libc::minor(meta.dev())),
            direct: true,
            direct_offset_align_bytes: block_bytes,
            direct_memory_align_bytes: 0,
            path_end: None,
            is_fixed: false,
            is_local: true,
            notes_reads: mode == Mode::Noted,
        },
        descriptor: file.into(),
    }
}

#[test]
fn a_truncated_file_has_changed() {
    for size_bytes in [0, 1, 4096, 8191] {
        let (mut bench, path, file) = serving(8192);
        let writer = OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("our own file");
        writer.set_len(size_bytes).expect("room for it");
        assert_eq!(
            bench.read(file, 4096),
            Err(DiskError::Changed),
            "{size_bytes}"
        );
        assert_eq!(bench.read(file, 0), Err(DiskError::Changed), "{size_bytes}");
    }
}

#[test]
fn a_mapped_file_written_to_has_changed() {
    let (mut bench, path, file) = serving(4096);
    let writer = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("our own file");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that stays 4096 bytes long.
    let map = unsafe {
        let fd = writer.as_raw_fd();
        libc::mmap(
            core::ptr::null_mut(),
            4096,
            protection,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    // SAFETY: within the mapping, to which no reference exists.
    unsafe { map.cast::<u8>().write_volatile(0xff) };
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
    // SAFETY: the mapping made above, not used again.
    assert_eq!(unsafe { libc::munmap(map, 4096) }, 0);
}

#[test]
fn a_file_is_checked_once_for_completions_reaped_together() {
    let mut bench = Bench::new();
    let path = bench.create("a", 65_536);
    let (file, _) = bench.open(&path);
    (0..16).for_each(|token| bench.enqueue(file, token * 4096, 4096, token));
    let rounds_before = bench.disk.counters().disk_check_calls;
    assert_eq!(rounds_before, 0);
    bench.disk.sqsync(NOW).expect("a working ring");
    let mut batches = 0;
    while bench.disk.in_flight() > 0 {
        assert!(is_readable(&bench.disk, 30_000));
        batches += u64::from(bench.consume(usize::MAX) > 0);
    }
    assert_eq!(bench.disk.counters().disk_check_calls, batches);
}
