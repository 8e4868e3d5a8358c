mod changes;
mod closing;
mod remote;
mod runs;
mod verification;

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;

use memory::ArenaConfig;
use tempfile::TempDir;

use super::*;

use crate::DeviceRange;
use crate::ring::Level;
use crate::sim::pattern_byte;

const SLOTS: u32 = 64;
const NOW: Instant = Instant::ZERO;

/// An arena, a disk on it, a directory of files, and what came of the commands.
struct Bench {
    arena: Arena,
    disk: Uring,
    directory: TempDir,
    results: Vec<(u64, Result<Vec<u8>, DiskError>)>,
}

impl Bench {
    fn new() -> Self {
        Self::with(UringConfig::default(), Level::Deferred)
    }

    fn with(config: UringConfig, level: Level) -> Self {
        let mut bench = Self::disabled(config, level);
        bench.disk.enable().expect("a ring of this thread's");
        bench
    }

    /// With a disk that nobody has enabled yet.
    fn disabled(config: UringConfig, level: Level) -> Self {
        let arena = Arena::new(ArenaConfig::new(SLOTS)).expect("a few MiB");
        let ring = Ring::at(level, config.queue_depth, false).expect("a ring of this kind");
        let disk = Uring::on_ring(ring, config, &arena);
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self {
            arena,
            disk,
            directory,
            results: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file of pattern bytes, last modified an hour ago.
    fn create(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.path(name);
        let mut file = File::create(&path).expect("a new file");
        file.write_all(&pattern(0, size_bytes))
            .expect("room for it");
        file.sync_all().expect("a working disk");
        age(&file);
        path
    }

    fn open(&mut self, path: &Path) -> (FileIndex, FileLimits) {
        let source = FileSource::Descriptor(descriptor(path, Mode::Direct));
        self.disk.open(source).expect("room for a file")
    }

    fn enqueue(&mut self, file: FileIndex, offset_bytes: u64, length_bytes: u32, token: u64) {
        let slot = self.arena.reserve().expect("a free slot");
        let read = Read {
            file,
            offset_bytes,
            length_bytes,
            slot,
            token,
        };
        assert!(
            self.disk.read(&mut self.arena, read).is_ok(),
            "the queue is full"
        );
    }

    fn consume(&mut self, completions_max: usize) -> usize {
        let results = &mut self.results;
        let sink = &mut |arena: &mut Arena, completion: Completion| {
            let (slot, result) = match completion.result {
                Ok(slot) => {
                    let bytes = arena.payload(&slot).to_vec();
                    (slot.into_free(), Ok(bytes))
                }
                Err((slot, error)) => (slot, Err(error)),
            };
            arena.release(slot);
            results.push((completion.token, result));
        };
        self.disk
            .consume_completions(NOW, &mut self.arena, completions_max, sink)
    }

    /// Submits, waits for everything, and checks that nothing was lost.
    fn run(&mut self) -> Vec<(u64, Result<Vec<u8>, DiskError>)> {
        self.disk.sqsync(NOW).expect("a working ring");
        while self.disk.in_flight() > 0 {
            assert!(is_readable(&self.disk, 30_000), "nothing came in 30 s");
            self.disk.clear_wake();
            self.consume(usize::MAX);
        }
        assert_eq!(
            self.arena.free_count(),
            self.arena.slot_count(),
            "slots were lost"
        );
        assert_eq!(self.disk.counters().disk_stale_completions, 0);
        let mut results = core::mem::take(&mut self.results);
        results.sort_by_key(|(token, _)| *token);
        results
    }

    fn read(&mut self, file: FileIndex, offset_bytes: u64) -> Result<Vec<u8>, DiskError> {
        self.enqueue(file, offset_bytes, 4096, 0);
        self.run().remove(0).1
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Direct,
    /// As the store opens files of another owner: reads note their time.
    Noted,
    Cached,
}

/// Opens for reading, with `O_DIRECT` where the file system has it.
fn descriptor(path: &Path, mode: Mode) -> OwnedFd {
    // As the store opens its files: a read must not move the time that tells `touch` from a write.
    let flags = match mode {
        Mode::Direct => libc::O_DIRECT | libc::O_NOATIME,
        Mode::Noted => libc::O_DIRECT,
        Mode::Cached => 0,
    };
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file.into(),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            eprintln!(
                "SKIPPED: no O_DIRECT on {}, using the page cache",
                path.display()
            );
            descriptor(path, Mode::Cached)
        }
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

fn pattern(start: u64, length: u64) -> Vec<u8> {
    (start..start + length)
        .map(|at| pattern_byte(1, at))
        .collect()
}

/// Sets the modification time back, so that a write now is seen on kernels with coarse clocks.
fn age(file: &File) {
    let modified = file
        .metadata()
        .and_then(|meta| meta.modified())
        .expect("a time");
    let an_hour_ago = modified - std::time::Duration::from_secs(3600);
    file.set_times(FileTimes::new().set_modified(an_hour_ago))
        .expect("our own file");
}

/// Whether poll(2) says so within the time.
fn is_readable(disk: &Uring, timeout_ms: i32) -> bool {
    let fd = disk.poll_fd().expect("a real disk").as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    let count = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    assert!(count >= 0, "poll: {}", io::Error::last_os_error());
    count == 1 && poll.revents & libc::POLLIN != 0
}

/// Reads the whole file in reads of the given size and compares.
fn check_whole(bench: &mut Bench, file: FileIndex, size_bytes: u64, length_bytes: u32) {
    let step = u64::from(length_bytes);
    // One more than there are: the last is empty, at or beyond the end.
    let count = size_bytes.div_ceil(step) + 1;
    for token in 0..count {
        bench.enqueue(file, token * step, length_bytes, token);
    }
    for (token, result) in bench.run() {
        let start = (token * step).min(size_bytes);
        let expected = pattern(start, step.min(size_bytes - start));
        assert!(
            result == Ok(expected),
            "{size_bytes} bytes: read {token} of {length_bytes}"
        );
    }
}

#[test]
fn a_disk_belongs_to_the_thread_that_enables_it() {
    for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
        let mut bench = Bench::disabled(UringConfig::default(), level);
        let path = bench.create("film", 4096);
        let (before, after) = std::thread::spawn(move || {
            let (file, _) = bench.open(&path);
            let before = bench.disk.enable();
            let after = bench.disk.enable();
            assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)), "{level:?}");
            (before, after)
        })
        .join()
        .expect("no panic");
        assert_eq!(
            (before, after),
            (Ok(()), Ok(())),
            "a second time means nothing"
        );
    }
}

#[test]
fn every_size_is_read_to_its_end_in_every_mode() {
    for mode in [Mode::Direct, Mode::Cached] {
        for fixed_buffers in [true, false] {
            let config = UringConfig {
                fixed_buffers,
                ..UringConfig::default()
            };
            let mut bench = Bench::with(config, Level::Deferred);
            assert_eq!(bench.disk.has_fixed_buffers, fixed_buffers);
            for size_bytes in [0, 1, 511, 512, 4095, 4096, 4097, 65_536, 65_537, 130_000] {
                let path = bench.create(&format!("{size_bytes}"), size_bytes);
                let source = FileSource::Descriptor(descriptor(&path, mode));
                let (file, limits) = bench.disk.open(source).expect("room for it");
                assert_eq!(limits.size_bytes, size_bytes);
                assert!(limits.block_bytes <= 4096 && limits.read_bytes_max == 65_536);
                check_whole(&mut bench, file, size_bytes, 4096);
                check_whole(&mut bench, file, size_bytes, 65_536);
                bench.disk.close(file);
            }
        }
    }
}

#[test]
fn rings_of_every_kind_read() {
    for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
        let mut bench = Bench::with(UringConfig::default(), level);
        let path = bench.create("a", 200_000);
        let (file, _) = bench.open(&path);
        check_whole(&mut bench, file, 200_000, 8192);
    }
}

#[test]
fn many_reads_of_many_files_each_get_their_own_bytes() {
    let mut bench = Bench::new();
    let files: Vec<_> = (0..4)
        .map(|number| {
            let path = bench.create(&format!("{number}"), 300_000 + number);
            bench.open(&path).0
        })
        .collect();
    for round in 0..20 {
        // A stride prime to the number of blocks visits them all, in no order.
        for token in 0..u64::from(SLOTS) {
            let offset = (round * 64 + token) * 29 % 74 * 4096;
            bench.enqueue(
                files[(token % 4) as usize],
                offset,
                4096,
                offset * 4 + token % 4,
            );
        }
        for (token, result) in bench.run() {
            let (offset, number) = (token / 4, token % 4);
            let expected = pattern(offset, 4096.min(300_000 + number - offset));
            assert!(result == Ok(expected), "file {number} at {offset}");
        }
    }
    assert_eq!(
        bench.disk.counters().disk_read_commands,
        20 * u64::from(SLOTS)
    );
}

#[test]
fn a_full_queue_gives_the_read_back() {
    let config = UringConfig {
        queue_depth: 3,
        ..UringConfig::default()
    };
    let mut bench = Bench::with(config, Level::Deferred);
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    for token in 0..3 {
        bench.enqueue(file, 0, 4096, token);
    }
    let slot = bench.arena.reserve().expect("a free slot");
    let read = Read {
        file,
        offset_bytes: 0,
        length_bytes: 4096,
        slot,
        token: 3,
    };
    let refused = bench
        .disk
        .read(&mut bench.arena, read)
        .expect_err("the queue holds three");
    assert_eq!((refused.token, bench.disk.in_flight()), (3, 3));
    bench.arena.release(refused.slot);
    assert_eq!(bench.run().len(), 3);
    assert!(bench.read(file, 0).is_ok());
    assert_eq!(bench.disk.counters().disk_queue_full_commands, 1);
}

#[test]
fn nothing_is_submitted_before_sqsync_and_then_by_one_call() {
    let mut bench = Bench::new();
    let path = bench.create("a", 65_536);
    let (file, _) = bench.open(&path);
    assert!(bench.disk.sqsync(NOW).is_ok());
    assert_eq!(bench.consume(8), 0);
    assert_eq!(
        bench.disk.counters().disk_enter_calls,
        0,
        "a system call for nothing"
    );
    for token in 0..16 {
        bench.enqueue(file, token * 4096, 4096, token);
    }
    assert_eq!(bench.consume(8), 0);
    assert_eq!(
        bench.disk.counters().disk_enter_calls,
        0,
        "submitted too early"
    );
    assert!(bench.disk.sqsync(NOW).is_ok());
    assert_eq!(bench.disk.counters().disk_enter_calls, 1);
    assert_eq!(bench.run().len(), 16);
    let after = bench.disk.counters().disk_enter_calls;
    assert_eq!(bench.consume(8), 0);
    assert_eq!(
        bench.disk.counters().disk_enter_calls,
        after,
        "a system call for nothing"
    );
}

#[test]
fn no_more_completions_than_asked_for_are_handed_out() {
    let mut bench = Bench::new();
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    (0..8).for_each(|token| bench.enqueue(file, 0, 4096, token));
    bench.disk.sqsync(NOW).expect("a working ring");
    assert_eq!(bench.consume(0), 0);
    let (mut left, mut consumed) = (8, 0);
    while left > 0 {
        // After as many as asked for, there may be more, and nothing wakes us for those.
        if consumed < 3 {
            assert!(is_readable(&bench.disk, 30_000));
            bench.disk.clear_wake();
        }
        consumed = bench.consume(3);
        assert!(consumed <= 3);
        left -= consumed;
        assert_eq!(bench.disk.in_flight(), left);
    }
}

#[test]
fn the_ring_is_readable_when_a_read_has_completed() {
    for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
        let mut bench = Bench::with(UringConfig::default(), level);
        let path = bench.create("a", 4096);
        let (file, _) = bench.open(&path);
        assert!(!is_readable(&bench.disk, 0));
        for _ in 0..10 {
            bench.enqueue(file, 0, 4096, 0);
            assert!(
                !is_readable(&bench.disk, 0),
                "{level:?}: readable before sqsync"
            );
            bench.disk.sqsync(NOW).expect("a working ring");
            assert!(
                is_readable(&bench.disk, 30_000),
                "{level:?}: poll did not wake"
            );
            bench.disk.clear_wake();
            assert_eq!(
                bench.consume(1),
                1,
                "{level:?}: readable, and nothing to consume"
            );
            assert!(
                !is_readable(&bench.disk, 0),
                "{level:?}: readable after the last"
            );
        }
    }
}

#[test]
fn a_wake_up_by_a_command_that_completes_at_once_is_cleared() {
    let mut bench = Bench::with(UringConfig::default(), Level::Deferred);
    // The kernel completes it in `sqsync`, so there is no task work, behind which reaping clears.
    bench.enqueue(FileIndex(3), 0, 4096, 0);
    bench.disk.sqsync(NOW).expect("a working ring");
    assert!(is_readable(&bench.disk, 30_000), "poll did not wake");
    assert_eq!(bench.consume(8), 1);
    assert!(is_readable(&bench.disk, 0), "cleared by itself");
    bench.disk.clear_wake();
    assert!(!is_readable(&bench.disk, 0), "readable after being cleared");
}

#[test]
fn no_wake_up_is_missed_among_many_completions() {
    let mut bench = Bench::with(UringConfig::default(), Level::Deferred);
    let path = bench.create("a", 1 << 20);
    let (file, _) = bench.open(&path);
    // More than the kernel handles in one call (20 on Linux 6.18).
    assert!(SLOTS > 40 && bench.arena.slot_count() == SLOTS as usize);
    (0..u64::from(SLOTS)).for_each(|token| bench.enqueue(file, token * 4096, 4096, token));
    bench.disk.sqsync(NOW).expect("a working ring");
    let mut consumed = 0;
    while bench.disk.in_flight() > 0 {
        assert!(is_readable(&bench.disk, 30_000), "after {consumed}");
        bench.disk.clear_wake();
        consumed += bench.consume(usize::MAX);
    }
}

#[test]
fn files_that_are_not_open_are_bad() {
    let mut bench = Bench::new();
    let bad = Err(DiskError::Io(libc::EBADF));
    assert_eq!(bench.read(FileIndex(3), 0), bad);
    assert_eq!(bench.read(FileIndex(u32::MAX), 0), bad);
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    bench.disk.close(file);
    bench.disk.close(file);
    let (next, _) = bench.open(&path);
    assert_ne!(next, file, "the name was given away at once");
    assert_eq!(bench.read(file, 0), bad);
    assert_eq!(bench.read(next, 0), Ok(pattern(0, 4096)));
    assert_eq!(bench.disk.counters().disk_failed_commands, 3);
}

#[test]
fn reads_in_flight_survive_the_closing_of_their_file() {
    let config = UringConfig {
        files_max: 1,
        ..UringConfig::default()
    };
    let mut bench = Bench::with(config, Level::Deferred);
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    bench.enqueue(file, 0, 4096, 0);
    bench.disk.close(file);
    // Its table entry is in use until the read has completed.
    let source = FileSource::Descriptor(descriptor(&path, Mode::Direct));
    assert_eq!(bench.disk.open(source), Err(DiskError::TableFull));
    assert_eq!(bench.run(), [(0, Ok(pattern(0, 4096)))]);
    let (next, _) = bench.open(&path);
    assert_eq!(bench.read(next, 0), Ok(pattern(0, 4096)));
}

#[test]
fn ranges_share_a_device_and_stay_within_it() {
    let mut bench = Bench::new();
    let path = bench.create("image", 10 * 4096 + 100);
    let device = Arc::new(descriptor(&path, Mode::Direct));
    let open = |bench: &mut Bench, start_bytes, length_bytes| {
        bench.disk.open(FileSource::Range(DeviceRange {
            device: Arc::clone(&device),
            start_bytes,
            length_bytes,
        }))
    };
    let invalid = Err(DiskError::Io(libc::EINVAL));
    for (start, length) in [
        (1, 4096),
        (9 * 4096, 4097),
        (10 * 4096, 1),
        (10 * 4096, 100),
        (11 * 4096, 1),
        (0, u64::MAX),
        (u64::MAX - 4095, 4096),
    ] {
        let opened = open(&mut bench, start, length);
        assert_eq!(opened.map(|_| ()), invalid, "{start} {length}");
    }
    let (first, limits) = open(&mut bench, 4096, 5000).unwrap();
    assert_eq!(limits.size_bytes, 5000);
    let (last, _) = open(&mut bench, 9 * 4096, 4096).unwrap();
    assert_eq!(bench.read(first, 0), Ok(pattern(4096, 4096)));
    assert_eq!(bench.read(first, 4096), Ok(pattern(2 * 4096, 5000 - 4096)));
    assert_eq!(bench.read(last, 0), Ok(pattern(9 * 4096, 4096)));
    // Another range is written to, or the image by others: no concern of this one's.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[7], 0).unwrap();
    assert_eq!(bench.read(last, 0), Ok(pattern(9 * 4096, 4096)));
    // This test, both ranges, and the table of devices.
    assert_eq!(Arc::strong_count(&device), 4);
    bench.disk.close(first);
    bench.disk.close(last);
    assert!(bench.disk.poll_closed().is_none());
    assert_eq!(Arc::strong_count(&device), 1);
}

fn range(device: &Arc<OwnedFd>, start_bytes: u64) -> FileSource {
    FileSource::Range(DeviceRange {
        device: Arc::clone(device),
        start_bytes,
        length_bytes: 4096,
    })
}

#[test]
fn a_device_is_registered_with_its_first_range_and_unregistered_with_its_last() {
    let mut bench = Bench::new();
    let path = bench.create("image", 4 * 4096);
    let device = Arc::new(descriptor(&path, Mode::Direct));
    for round in 1..=2 {
        let (first, _) = bench.disk.open(range(&device, 4096)).unwrap();
        let (second, _) = bench.disk.open(range(&device, 0)).unwrap();
        assert_eq!(bench.disk.counters().disk_registered_files, round);
        assert_eq!(bench.read(first, 0), Ok(pattern(4096, 4096)));
        bench.disk.close(first);
        assert_eq!(bench.read(second, 0), Ok(pattern(0, 4096)));
        // A read in flight keeps its range, and that the device.
        bench.enqueue(second, 0, 4096, 7);
        bench.disk.close(second);
        assert_eq!(Arc::strong_count(&device), 3);
        let (third, _) = bench.disk.open(range(&device, 4096)).unwrap();
        assert_eq!(bench.disk.counters().disk_registered_files, round);
        assert_eq!(bench.run(), [(7, Ok(pattern(0, 4096)))]);
        bench.disk.close(third);
        assert_eq!(Arc::strong_count(&device), 1);
    }
}

#[test]
fn a_device_may_grow_while_its_ranges_are_open() {
    let mut bench = Bench::new();
    let path = bench.create("image", 2 * 4096);
    let device = Arc::new(descriptor(&path, Mode::Direct));
    let (_, _) = bench.disk.open(range(&device, 0)).unwrap();
    let beyond = bench.disk.open(range(&device, 2 * 4096));
    assert_eq!(beyond, Err(DiskError::Io(libc::EINVAL)));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&pattern(2 * 4096, 4096), 2 * 4096)
        .unwrap();
    let (grown, _) = bench.disk.open(range(&device, 2 * 4096)).unwrap();
    assert_eq!(bench.read(grown, 0), Ok(pattern(2 * 4096, 4096)));
    assert_eq!(bench.disk.counters().disk_registered_files, 1);
}

#[test]
fn ranges_of_more_devices_than_the_table_holds_are_read_too() {
    let mut bench = Bench::new();
    let path = bench.create("image", 4096);
    let devices_max = u64::from(super::ranges::DEVICES_MAX);
    let devices: Vec<_> = (0..=devices_max)
        .map(|_| Arc::new(descriptor(&path, Mode::Direct)))
        .collect();
    let mut files = Vec::new();
    for (device, opened) in devices.iter().zip(1..) {
        let (file, _) = bench.disk.open(range(device, 0)).unwrap();
        files.push(file);
        assert_eq!(bench.read(file, 0), Ok(pattern(0, 4096)));
        let registered = bench.disk.counters().disk_registered_files;
        assert_eq!(registered, devices_max.min(opened));
    }
    for (file, device) in files.into_iter().zip(&devices) {
        bench.disk.close(file);
        assert_eq!(Arc::strong_count(device), 1);
    }
}

/// A range in the middle of a new image, and what a write of two blocks to it is made of.
fn write_to_range(offset_bytes: u64) -> (Bench, PathBuf) {
    let mut bench = Bench::new();
    let path = bench.create("image", 10 * 4096);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let range = DeviceRange {
        device: Arc::new(file.unwrap().into()),
        start_bytes: 4096,
        length_bytes: 2 * 4096 + 1,
    };
    let (file, _) = bench.disk.open(FileSource::Range(range)).unwrap();
    let slot = bench.arena.reserve().unwrap();
    let mut slot = slot.into_reading().into_filled(2 * 4096);
    bench.arena.payload_mut(&mut slot).fill(9);
    let write = Write {
        file,
        offset_bytes,
        length_bytes: 2 * 4096,
        slot,
        token: 1,
    };
    assert!(bench.disk.write(&mut bench.arena, write).is_ok());
    (bench, path)
}

#[test]
fn a_write_to_a_range_changes_nothing_else() {
    // The image is read through the page cache, in blocks of 512 bytes: so the range ends 512 bytes
    // behind its second page.
    let (mut bench, path) = write_to_range(512);
    assert!(bench.run().iter().all(|(_, result)| result.is_ok()));
    let image = fs::read(path).unwrap();
    let (start, end) = (4096 + 512, 3 * 4096 + 512);
    assert!(image[start..end].iter().all(|byte| *byte == 9));
    assert_eq!(image[..start], pattern(0, start as u64));
    assert_eq!(image[end..], pattern(end as u64, (10 * 4096 - end) as u64));
}

#[test]
#[should_panic(expected = "a write within its range")]
fn a_write_beyond_a_range_is_refused() {
    write_to_range(1024);
}

#[test]
fn only_files_and_block_devices_are_opened() {
    let mut bench = Bench::new();
    let directory = descriptor(&bench.path(""), Mode::Cached);
    let refused = bench.disk.open(FileSource::Descriptor(directory));
    assert_eq!(refused, Err(DiskError::Io(libc::EISDIR)));
    let null = descriptor(Path::new("/dev/null"), Mode::Cached);
    let refused = bench.disk.open(FileSource::Descriptor(null));
    assert_eq!(refused, Err(DiskError::Io(libc::EINVAL)));
    let refused = bench.disk.open(FileSource::Simulated(0));
    assert_eq!(refused, Err(DiskError::Io(libc::ENOTSUP)));
}

#[test]
fn configurations_on_both_sides_of_each_limit() {
    let arena = Arena::new(ArenaConfig::new(1)).expect("2 MiB");
    for (queue_depth, files_max) in [(0, 1), (1, 0), (QUEUE_DEPTH_MAX + 1, 1), (1, FILES_MAX + 1)] {
        let config = UringConfig {
            queue_depth,
            files_max,
            ..UringConfig::default()
        };
        let refused = Uring::new(config, &arena).err();
        assert_eq!(
            refused,
            Some(UringError::Config {
                queue_depth,
                files_max
            })
        );
    }
    for (queue_depth, files_max) in [(1, 1), (QUEUE_DEPTH_MAX, FILES_MAX)] {
        let config = UringConfig {
            queue_depth,
            files_max,
            ..UringConfig::default()
        };
        assert!(Uring::new(config, &arena).is_ok());
    }
}

#[test]
#[should_panic(expected = "a read fits its slot")]
fn a_read_larger_than_its_slot_is_refused() {
    let mut bench = Bench::new();
    bench.enqueue(FileIndex(0), 0, ArenaConfig::SLOT_BYTES + 512, 0);
}

// Invalid completions.

#[test]
fn unknown_completions_are_counted_and_ignored() {
    let mut bench = Bench::new();
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    bench.enqueue(file, 0, 4096, 7);
    for name in [0, 1 << 32, u64::MAX] {
        bench.disk.push(&opcode::Nop::new().build().user_data(name));
    }
    bench.disk.sqsync(NOW).expect("a working ring");
    // The read's user data is generation 1, index 0: the NOP has the same, and completes first.
    while bench.disk.counters().disk_stale_completions < 3 {
        bench.enqueue(FileIndex(9), 0, 512, 8);
        bench.disk.sqsync(NOW).expect("a working ring");
        assert!(is_readable(&bench.disk, 30_000));
        bench.consume(usize::MAX);
    }
    while bench.disk.in_flight() > 0 {
        assert!(is_readable(&bench.disk, 30_000));
        bench.consume(usize::MAX);
    }
    assert_eq!(
        bench
            .results
            .iter()
            .filter(|(token, _)| *token == 7)
            .count(),
        1
    );
    assert_eq!(bench.arena.free_count(), bench.arena.slot_count());
}

/// A read that the table knows and the kernel does not, its slot full of `0xee`.
fn insert_unissued(bench: &mut Bench, file: FileIndex) -> u64 {
    let slot = bench.arena.reserve().expect("a free slot");
    let mut slot = slot.into_reading().into_filled(65_536);
    bench.arena.payload_mut(&mut slot).fill(0xee);
    let index = bench.disk.files.find(file).expect("it is open");
    bench.disk.files.note_command(index);
    bench.disk.commands.insert(Command {
        token: 0,
        file: Some(index),
        offset_bytes: 0,
        length_bytes: 65_536,
        done_bytes: 0,
        reissues: 0,
        next: None,
        slot: CommandSlot::Reading(slot.into_free().into_reading()),
    })
}

#[test]
fn the_rest_of_a_partial_read_is_fetched() {
    let mut bench = Bench::new();
    let path = bench.create("a", 65_536);
    let (file, _) = bench.open(&path);
    let name = insert_unissued(&mut bench, file);
    assert!(bench.disk.finish(&bench.arena, name, 8192).is_none());
    let bytes = bench.run().remove(0).1.expect("a readable file");
    assert!(
        bytes[..8192].iter().all(|&byte| byte == 0xee),
        "read again from the start"
    );
    assert!(bytes[8192..] == pattern(8192, 65_536 - 8192));
    assert_eq!(bench.disk.counters().disk_reissued_commands, 1);
}

#[test]
fn an_interrupted_read_is_issued_again_without_being_asked() {
    let mut bench = Bench::new();
    let path = bench.create("a", 65_536);
    let (file, _) = bench.open(&path);
    let name = insert_unissued(&mut bench, file);
    assert!(
        bench
            .disk
            .finish(&bench.arena, name, -libc::EAGAIN)
            .is_none()
    );
    // No sqsync: a caller that only consumes completions must get this one.
    bench.consume(1);
    assert!(is_readable(&bench.disk, 30_000));
    assert_eq!(bench.run(), [(0, Ok(pattern(0, 65_536)))]);
}

#[test]
fn a_read_that_stops_early_has_failed() {
    let mut bench = Bench::new();
    let path = bench.create("a", 65_536);
    let (file, _) = bench.open(&path);
    let name = insert_unissued(&mut bench, file);
    let completion = bench
        .disk
        .finish(&bench.arena, name, 0)
        .expect("no way forward");
    let (slot, error) = completion.result.expect_err("no bytes");
    assert_eq!(error, DiskError::Io(libc::EIO));
    bench.arena.release(slot);
    // The same from a file that was cut meanwhile is a change.
    let name = insert_unissued(&mut bench, file);
    fs::write(&path, b"").expect("our own file");
    bench.disk.files.start_round();
    let completion = bench
        .disk
        .finish(&bench.arena, name, 0)
        .expect("no way forward");
    let (slot, error) = completion.result.expect_err("no bytes");
    assert_eq!(error, DiskError::Changed);
    bench.arena.release(slot);
}

#[test]
fn a_disk_dropped_with_reads_in_flight_waits_for_them() {
    let mut bench = Bench::new();
    let path = bench.create("a", 300_000);
    let (file, _) = bench.open(&path);
    (0..32).for_each(|token| bench.enqueue(file, token % 4 * 65_536, 65_536, token));
    bench.disk.sqsync(NOW).expect("a working ring");
    // Enqueued, but not submitted.
    bench.enqueue(file, 0, 4096, 32);
    let Bench { arena, disk, .. } = bench;
    drop(disk);
    assert_eq!(arena.free_count(), (SLOTS - 33) as usize);
}

// Writes.

fn fill(bench: &mut Bench, byte: u8) -> memory::FilledSlot {
    let slot = bench.arena.reserve().expect("a free slot");
    let mut slot = slot.into_reading().into_filled(8192);
    bench.arena.payload_mut(&mut slot).fill(byte);
    slot
}

#[test]
fn a_write_is_stored_and_grows_the_file() {
    for fixed_buffers in [true, false] {
        let config = UringConfig {
            fixed_buffers,
            ..UringConfig::default()
        };
        let mut bench = Bench::with(config, Level::Deferred);
        let path = bench.create("a", 4096);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("our own file");
        let (file, _) = bench
            .disk
            .open(FileSource::Descriptor(file.into()))
            .expect("room");
        let slot = fill(&mut bench, 0xab);
        let write = Write {
            file,
            offset_bytes: 4096,
            length_bytes: 8192,
            slot,
            token: 1,
        };
        assert!(bench.disk.write(&mut bench.arena, write).is_ok());
        assert_eq!(
            bench.run(),
            [(1, Ok(vec![0xab; 8192]))],
            "its slot comes back as it was"
        );
        assert_eq!(
            bench.read(file, 8192),
            Ok(vec![0xab; 4096]),
            "our own change is none"
        );
        let mut expected = pattern(0, 4096);
        expected.resize(12_288, 0xab);
        assert!(fs::read(&path).expect("our own file") == expected);
        assert_eq!(bench.disk.counters().disk_write_bytes, 8192);
    }
}

#[test]
fn a_refused_write_gives_its_slot_back() {
    let mut bench = Bench::new();
    let path = bench.create("a", 4096);
    let (file, _) = bench.open(&path);
    let slot = fill(&mut bench, 1);
    let write = Write {
        file,
        offset_bytes: 0,
        length_bytes: 4096,
        slot,
        token: 1,
    };
    assert!(bench.disk.write(&mut bench.arena, write).is_ok());
    // Opened for reading only.
    assert_eq!(bench.run(), [(1, Err(DiskError::Io(libc::EBADF)))]);
}

#[test]
#[should_panic(expected = "a write is within its slot")]
fn a_write_of_more_than_the_slot_is_filled_with_is_refused() {
    let mut bench = Bench::new();
    let slot = fill(&mut bench, 1);
    let file = FileIndex(0);
    let write = Write {
        file,
        offset_bytes: 0,
        length_bytes: 8192 + 512,
        slot,
        token: 1,
    };
    let _ = bench.disk.write(&mut bench.arena, write);
}

// Block devices.

/// A loop device over a file, detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn attach(backing: &Path, block_bytes: u32) -> Result<Self, String> {
        let output = Process::new("losetup")
            .args([
                "--find",
                "--show",
                "--sector-size",
                &block_bytes.to_string(),
            ])
            .arg(backing)
            .output()
            .map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim(),
        )))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Process::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_block_device_tells_its_limits_and_is_read() {
    const SIZE_BYTES: u64 = 1 << 20;
    for block_bytes in [512, 4096] {
        let mut bench = Bench::new();
        let backing = bench.create("backing", SIZE_BYTES);
        let device = match LoopDevice::attach(&backing, block_bytes) {
            Ok(device) => device,
            Err(reason) => {
                eprintln!("SKIPPED: no loop device: {reason}");
                return;
            }
        };
        let (file, limits) = bench.open(&device.0);
        assert_eq!(
            (limits.size_bytes, limits.block_bytes),
            (SIZE_BYTES, block_bytes)
        );
        check_whole(&mut bench, file, SIZE_BYTES, 65_536);
        // Within the last block, at the end, and beyond it.
        let last = SIZE_BYTES - u64::from(block_bytes);
        bench.enqueue(file, last, 8192, 0);
        bench.enqueue(file, SIZE_BYTES, 4096, 1);
        let tail = pattern(last, block_bytes.into());
        assert_eq!(bench.run(), [(0, Ok(tail)), (1, Ok(Vec::new()))]);
        assert_eq!(
            bench.disk.counters().disk_check_calls,
            0,
            "a device has no times to check"
        );
        // The device is removed only when no descriptor is open.
        bench.disk.close(file);
    }
}

#[test]
fn limits_come_from_the_device_and_the_slot() {
    let mut devices = limits::Devices::default();
    let file = tempfile::tempfile().expect("a temporary file");
    let status = limits::status(file.as_fd()).expect("it is open");
    let limits = devices
        .ask(file.as_fd(), &status, 65_536)
        .expect("a regular file");
    assert_eq!(limits.block_bytes, crate::BLOCK_BYTES_MIN);
    assert!(limits.read_bytes_max.is_multiple_of(512) && limits.read_bytes_max <= 65_536);
    // A slot smaller than a block can hold no read.
    let refused = devices.ask(file.as_fd(), &status, 256);
    assert_eq!(refused, Err(DiskError::Io(libc::EINVAL)));
}
