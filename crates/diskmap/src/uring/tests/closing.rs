//! When a file is registered with the ring, and when its last descriptor is handed back.

use std::fs::{File, TryLockError};

use super::*;

/// Registers a file at the first read after `reads`.
fn bench_registering_after(reads: u32) -> Bench {
    let config = UringConfig {
        files_max: 1,
        register_after_reads: reads,
        return_closed_files: true,
        ..UringConfig::default()
    };
    Bench::with(config, Level::Deferred)
}

fn bench() -> Bench {
    bench_registering_after(0)
}

/// A file under a lock that its last close ends, and its index in the disk.
fn open_locked(bench: &mut Bench) -> (PathBuf, FileIndex) {
    let path = bench.create("served", 8192);
    let file = File::from(descriptor(&path, Mode::Direct));
    file.lock().expect("no other process has the lock");
    let source = FileSource::Descriptor(file.into());
    let (file, _) = bench.disk.open(source).expect("there is room");
    (path, file)
}

fn is_locked(path: &Path) -> bool {
    let other = File::open(path).expect("it is there");
    matches!(other.try_lock(), Err(TryLockError::WouldBlock))
}

#[test]
fn the_last_reference_to_a_closed_file_is_handed_back() {
    for (register_after_reads, is_registered) in [(0, 1), (u32::MAX, 0)] {
        let mut bench = bench_registering_after(register_after_reads);
        let (path, file) = open_locked(&mut bench);
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
        assert_eq!(bench.disk.counters().disk_registered_files, is_registered);
        assert!(bench.disk.poll_closed().is_none());
        bench.disk.close(file);
        let closed = bench.disk.poll_closed().expect("it is closed");
        assert!(is_locked(&path), "the disk has closed it by itself");
        let device = fs::metadata(&path).expect("it is there").dev();
        assert_eq!(closed.device, (libc::major(device), libc::minor(device)));
        drop(closed);
        assert!(!is_locked(&path), "the ring still holds it");
        assert!(bench.disk.poll_closed().is_none());
    }
}

#[test]
fn a_file_is_registered_once_it_has_been_read_often_enough() {
    let mut bench = bench_registering_after(3);
    for round in 0..2 {
        let (_, file) = open_locked(&mut bench);
        for read in 1..=5 {
            let is_due = u64::from(read > 3);
            assert_eq!(bench.read(file, 4096), Ok(pattern(4096, 4096)));
            let counters = bench.disk.counters();
            assert_eq!(counters.disk_registered_files, round + is_due, "{read}");
            assert_eq!(counters.disk_unregistered_files, 0);
        }
        bench.disk.close(file);
        assert!(bench.disk.poll_closed().is_some());
    }
}

#[test]
fn reads_in_flight_go_on_when_their_file_is_registered() {
    let mut bench = bench_registering_after(8);
    let (path, file) = open_locked(&mut bench);
    (0..16).for_each(|token| bench.enqueue(file, token % 2 * 4096, 4096, token));
    assert_eq!(bench.disk.counters().disk_registered_files, 1);
    bench.disk.close(file);
    for (token, result) in bench.run() {
        assert_eq!(result, Ok(pattern(token % 2 * 4096, 4096)), "{token}");
    }
    drop(bench.disk.poll_closed().expect("its last read is done"));
    assert!(!is_locked(&path), "the ring still holds it");
}

#[test]
fn a_file_is_handed_back_after_its_last_command() {
    let mut bench = bench();
    let (_, file) = open_locked(&mut bench);
    bench.enqueue(file, 0, 4096, 1);
    bench.disk.close(file);
    assert!(bench.disk.poll_closed().is_none());
    assert_eq!(bench.run(), [(1, Ok(pattern(0, 4096)))]);
    assert!(bench.disk.poll_closed().is_some());
}

#[test]
fn a_file_refused_by_a_full_table_is_handed_back() {
    let mut bench = bench();
    let (path, _) = open_locked(&mut bench);
    let source = FileSource::Descriptor(descriptor(&path, Mode::Direct));
    assert_eq!(bench.disk.open(source), Err(DiskError::TableFull));
    assert!(bench.disk.poll_closed().is_some());
    let source = FileSource::Simulated(0);
    assert_eq!(bench.disk.open(source), Err(DiskError::Io(libc::ENOTSUP)));
    assert!(bench.disk.poll_closed().is_none());
}

/// Without a registered table the kernel refuses to unregister files.
#[test]
fn a_file_that_cannot_be_unregistered_stays_open_until_it_can() {
    let mut bench = bench();
    let (_, file) = open_locked(&mut bench);
    assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
    let submitter = bench.disk.ring.submitter();
    submitter.unregister_files().expect("they are registered");
    bench.disk.close(file);
    assert_eq!(bench.disk.counters().disk_kept_registrations, 1);
    assert!(bench.disk.poll_closed().is_none());
    let submitter = bench.disk.ring.submitter();
    submitter.register_files_sparse(1).expect("as at start");
    bench.disk.close(file);
    assert!(bench.disk.poll_closed().is_some());
    assert_eq!(bench.disk.counters().disk_unregistered_files, 0);
}

#[test]
fn a_file_that_cannot_be_registered_is_counted_and_served() {
    let mut bench = bench();
    let submitter = bench.disk.ring.submitter();
    submitter.unregister_files().expect("they are registered");
    let (_, file) = open_locked(&mut bench);
    for _ in 0..3 {
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
        assert_eq!(bench.disk.counters().disk_unregistered_files, 1, "once");
    }
    bench.disk.close(file);
    assert!(bench.disk.poll_closed().is_some());
}

/// A device with ranges: the entry stays until the kernel unregisters it, and serves the next range.
#[test]
fn a_device_that_cannot_be_unregistered_is_kept_for_its_next_range() {
    let mut bench = bench();
    let path = bench.create("image", 2 * 4096);
    let device = Arc::new(descriptor(&path, Mode::Direct));
    let (file, _) = bench.disk.open(range(&device, 0)).expect("there is room");
    let submitter = bench.disk.ring.submitter();
    submitter.unregister_files().expect("they are registered");
    bench.disk.close(file);
    assert_eq!(bench.disk.counters().disk_kept_registrations, 1);
    assert_eq!(Arc::strong_count(&device), 2);
    let submitter = bench.disk.ring.submitter();
    let numbers = 1 + u32::from(super::super::ranges::DEVICES_MAX);
    submitter
        .register_files_sparse(numbers)
        .expect("as at start");
    let (file, _) = bench
        .disk
        .open(range(&device, 4096))
        .expect("there is room");
    bench.disk.close(file);
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_device_that_cannot_be_registered_is_counted_once_and_read() {
    let mut bench = bench();
    let submitter = bench.disk.ring.submitter();
    submitter.unregister_files().expect("they are registered");
    let path = bench.create("image", 2 * 4096);
    let device = Arc::new(descriptor(&path, Mode::Direct));
    let (file, _) = bench
        .disk
        .open(range(&device, 4096))
        .expect("there is room");
    for _ in 0..3 {
        assert_eq!(bench.read(file, 0), Ok(pattern(4096, 4096)));
        assert_eq!(bench.disk.counters().disk_unregistered_files, 1, "once");
    }
    bench.disk.close(file);
    assert_eq!(Arc::strong_count(&device), 1);
}

/// Else a device that was opened with O_EXCL would stay in use for a while: the kernel lets go of a ring's
/// files some time after the ring was closed.
#[test]
fn a_disk_that_is_dropped_holds_no_file() {
    for _ in 0..10 {
        let mut bench = bench();
        let path = bench.create("image", 4096);
        let file = File::from(descriptor(&path, Mode::Direct));
        file.lock().expect("no other process has the lock");
        let device = Arc::new(OwnedFd::from(file));
        let (file, _) = bench.disk.open(range(&device, 0)).expect("there is room");
        drop(device);
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
        assert!(is_locked(&path));
        drop(bench.disk);
        assert!(!is_locked(&path), "the ring still holds it");
    }
}
