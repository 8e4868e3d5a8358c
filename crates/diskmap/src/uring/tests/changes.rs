//! What may happen to a file while it is being served.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Bench, NOW, is_readable, pattern};
use crate::{Disk, DiskError, FileIndex};

fn serving(size_bytes: u64) -> (Bench, PathBuf, FileIndex) {
    let mut bench = Bench::new();
    let path = bench.create("served", size_bytes);
    let (file, _) = bench.open(&path);
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096.min(size_bytes))));
    (bench, path, file)
}

fn overwrite(path: &Path, bytes: &[u8]) {
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
    // The excuses are not for the next one.
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
    // Kernels with coarse clocks may need a few milliseconds to show another time.
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
fn a_file_that_is_itself_renamed_counts_as_changed() {
    // Its ctime moves and nothing tells it from an overwriting with the time put back.
    let (mut bench, path, file) = serving(4096);
    fs::rename(&path, bench.path("elsewhere")).expect("our own directory");
    assert_eq!(bench.read(file, 0), Err(DiskError::Changed));
}

#[test]
fn a_truncated_or_grown_file_has_changed() {
    for size_bytes in [0, 1, 4096, 8191, 8193] {
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
    // SAFETY: within the mapping, to which nobody holds a reference.
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
