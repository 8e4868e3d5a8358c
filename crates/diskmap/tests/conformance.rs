//! What every [`Disk`] promises, checked with each of them: `uring` on a file and on a range of one, `sim`, and `nvme` on an
//! emulated controller with both block sizes.
//!
//! Each promise is one function over [`Subject`]; each disk is one constructor. Bounded by the size of the
//! file, [`SIZE_BYTES`].

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{Emulated, EmulatedConfig};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, NamespaceRange, Nvme, NvmeConfig, memory_bytes,
};
use diskmap::sim::{SimConfig, SimContent, SimDisk, pattern_byte};
use diskmap::uring::{Uring, UringConfig};
use diskmap::{
    Completion, DeviceRange, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write,
};
use memory::{Arena, ArenaConfig, FreeSlot};

/// Size of the file: some blocks, and a part of one.
const SIZE_BYTES: u64 = 300_001;
/// Seed of its bytes.
const SEED: u64 = 9;
/// Most commands of each disk.
const DEPTH: u16 = 8;
/// Slots, more than the depth.
const SLOTS: u32 = 16;
/// Longest time until a disk has done something.
const PATIENCE_STEPS: u32 = 1_000_000;

/// A disk, a file that can be opened any number of times, and how time passes for it.
struct Subject {
    name: &'static str,
    arena: Arena,
    disk: Box<dyn Disk>,
    /// The file, opened anew.
    source: Box<dyn FnMut() -> FileSource>,
    /// A file that this kind of disk does not open.
    foreign: fn() -> FileSource,
    /// Lets time pass until something may have happened; tells the time.
    wait: Box<dyn FnMut(Instant) -> Instant>,
    now: Instant,
    results: Vec<(u64, Result<Vec<u8>, DiskError>)>,
}

fn arena() -> Arena {
    Arena::new(ArenaConfig::new(SLOTS)).expect("some MiB")
}

fn pattern(start: u64, end: u64) -> Vec<u8> {
    (start..end.min(SIZE_BYTES))
        .map(|at| pattern_byte(SEED, at))
        .collect()
}

fn null() -> FileSource {
    let null: OwnedFd = File::open("/dev/null").expect("always there").into();
    FileSource::Descriptor(null)
}

fn uring() -> Subject {
    let arena = arena();
    let config = UringConfig {
        queue_depth: DEPTH.into(),
        files_max: 2,
        ..UringConfig::default()
    };
    let disk = Uring::new(config, &arena).expect("a ring");
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&pattern(0, SIZE_BYTES)).expect("room");
    Subject {
        name: "uring",
        arena,
        disk: Box::new(disk),
        source: Box::new(move || {
            FileSource::Descriptor(file.try_clone().expect("a descriptor").into())
        }),
        foreign: || FileSource::Simulated(0),
        // The kernel's time passes by itself; meanwhile this thread need not run.
        wait: Box::new(|now| {
            std::thread::yield_now();
            now
        }),
        now: Instant::ZERO,
        results: Vec::new(),
    }
}

/// A range in the middle of an image, with other bytes before and behind it.
fn uring_range() -> Subject {
    let mut subject = uring();
    let start_bytes = 3 * 4096;
    let mut image = tempfile::tempfile().expect("a temporary file");
    let before = vec![0xa5; 3 * 4096];
    let behind = vec![0x5a; 3 * 4096];
    for part in [&before, &pattern(0, SIZE_BYTES), &behind] {
        image.write_all(part).expect("room");
    }
    let device = Arc::new(OwnedFd::from(image));
    subject.name = "uring, range";
    subject.source = Box::new(move || {
        FileSource::Range(DeviceRange {
            device: Arc::clone(&device),
            start_bytes,
            length_bytes: SIZE_BYTES,
        })
    });
    subject
}

fn sim() -> Subject {
    let mut disk = SimDisk::new(SimConfig {
        queue_depth: DEPTH.into(),
        files_max: 2,
        ..SimConfig::new(1)
    });
    let file = disk.add_file(SimContent::Bytes(pattern(0, SIZE_BYTES)));
    Subject {
        name: "sim",
        arena: arena(),
        disk: Box::new(disk),
        source: Box::new(move || FileSource::Simulated(file)),
        foreign: null,
        wait: Box::new(|now| now + Duration::from_micros(10)),
        now: Instant::ZERO,
        results: Vec::new(),
    }
}

fn nvme(name: &'static str, block_shift: u8) -> Subject {
    let mut config = EmulatedConfig::new(1, block_shift);
    config.namespaces[0].seed = SEED;
    let emulated = Emulated::new(config);
    let mut now = Instant::ZERO;
    let memory = emulated.map_memory(ADMIN_MEMORY_BYTES);
    let controller = Controller::new(emulated.registers(), memory, 1, now).expect("it fits");
    while controller.poll(now) != ControllerState::Ready {
        now += Duration::from_millis(1);
        emulated.advance(now);
    }
    let arena = arena();
    let memory = emulated.map_memory(memory_bytes(DEPTH, &arena));
    let slots = emulated.map_slots(&arena);
    let config = NvmeConfig {
        queue_depth: DEPTH,
        files_max: 2,
        ..NvmeConfig::default()
    };
    let disk = Nvme::new(&controller, 1, memory, slots, &arena, config).expect("a queue pair");
    Subject {
        name,
        arena,
        disk: Box::new(disk),
        source: Box::new(|| {
            FileSource::Namespace(NamespaceRange {
                namespace_id: 1,
                start_bytes: 0,
                length_bytes: SIZE_BYTES,
            })
        }),
        foreign: null,
        wait: Box::new(move |now| {
            let now = now + Duration::from_micros(10);
            emulated.advance(now);
            assert_eq!(emulated.violations(), [""; 0]);
            now
        }),
        now,
        results: Vec::new(),
    }
}

/// Checks a promise of all disks.
fn check(promise: fn(&mut Subject)) {
    for mut subject in [
        uring(),
        uring_range(),
        sim(),
        nvme("nvme, 512", 9),
        nvme("nvme, 4096", 12),
    ] {
        // Its panic names the disk.
        let name = subject.name;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            promise(&mut subject);
        }));
        assert!(result.is_ok(), "{name} breaks this promise");
        assert_eq!(subject.disk.in_flight(), 0);
        let arena = &subject.arena;
        assert_eq!(arena.free_count(), arena.slot_count(), "slots were lost");
    }
}

impl Subject {
    fn open(&mut self) -> (FileIndex, FileLimits) {
        let source = (self.source)();
        self.disk.open(source).expect("room for a file")
    }

    /// Enqueues a read; false if it was given back.
    fn read(&mut self, file: FileIndex, offset_bytes: u64, length: u32, token: u64) -> bool {
        let slot = self.arena.reserve().expect("a free slot");
        let read = Read {
            file,
            offset_bytes,
            length_bytes: length,
            slot,
            token,
        };
        self.disk
            .read(&mut self.arena, read)
            .map_err(|read| {
                assert_eq!(read.token, token);
                self.arena.release(read.slot);
            })
            .is_ok()
    }

    fn write(&mut self, file: FileIndex, offset_bytes: u64, bytes: &[u8], token: u64) -> bool {
        let slot = self.arena.reserve().expect("a free slot");
        let length_bytes = u32::try_from(bytes.len()).expect("at most a slot");
        let mut slot = slot.into_reading().into_filled(length_bytes);
        self.arena.payload_mut(&mut slot).copy_from_slice(bytes);
        let write = Write {
            file,
            offset_bytes,
            length_bytes,
            slot,
            token,
        };
        self.disk
            .write(&mut self.arena, write)
            .map_err(|write| self.arena.release(write.slot.into_free()))
            .is_ok()
    }

    fn submit(&mut self) {
        self.disk.sqsync(self.now).expect("a working disk");
    }

    fn consume(&mut self, completions_max: usize) -> usize {
        let results = &mut self.results;
        let sink = &mut |arena: &mut Arena, completion: Completion| {
            let (slot, result): (FreeSlot, _) = match completion.result {
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
            .consume_completions(self.now, &mut self.arena, completions_max, sink)
    }

    /// Submits, and consumes until nothing is in flight; what completed, by token.
    fn run(&mut self) -> Vec<(u64, Result<Vec<u8>, DiskError>)> {
        self.submit();
        for _ in 0..PATIENCE_STEPS {
            if self.disk.in_flight() == 0 {
                break;
            }
            self.now = (self.wait)(self.now);
            self.consume(usize::MAX);
        }
        let mut results = core::mem::take(&mut self.results);
        results.sort_by_key(|(token, _)| *token);
        results
    }
}

#[test]
fn limits_are_those_of_the_file_and_the_slot() {
    check(|subject| {
        let (_, limits) = subject.open();
        assert_eq!(limits.size_bytes, SIZE_BYTES);
        assert!(limits.block_bytes.is_power_of_two() && limits.block_bytes >= 512);
        assert!(limits.read_bytes_max <= subject.arena.slot_bytes());
        assert_eq!(limits.read_bytes_max % limits.block_bytes, 0);
    });
}

#[test]
fn reads_bring_exactly_their_bytes_to_the_end_of_the_file() {
    check(|subject| {
        let (file, limits) = subject.open();
        for length in [4096, 12_288, 65_536] {
            assert_eq!(length % limits.block_bytes, 0);
            let step = u64::from(length);
            let mut starts: Vec<u64> = (0..SIZE_BYTES).step_by(length as usize).collect();
            // Beyond the end there are no bytes.
            starts.push(SIZE_BYTES.next_multiple_of(4096));
            for starts in starts.chunks(DEPTH.into()) {
                for start in starts {
                    assert!(subject.read(file, *start, length, *start));
                }
                for (start, result) in subject.run() {
                    assert_eq!(result, Ok(pattern(start, start + step)), "{start}");
                }
            }
        }
    });
}

#[test]
fn nothing_completes_before_sqsync() {
    check(|subject| {
        let (file, _) = subject.open();
        assert!(subject.read(file, 0, 4096, 1));
        for _ in 0..50 {
            subject.now = (subject.wait)(subject.now);
            assert_eq!(subject.consume(8), 0);
        }
        assert_eq!(subject.disk.in_flight(), 1);
        assert_eq!(subject.run(), [(1, Ok(pattern(0, 4096)))]);
        // And with nothing enqueued it does nothing.
        subject.submit();
        assert_eq!(subject.run(), []);
    });
}

#[test]
fn a_full_queue_gives_commands_back() {
    check(|subject| {
        let (file, _) = subject.open();
        for token in 0..u64::from(DEPTH) {
            assert!(subject.read(file, token * 4096, 4096, token));
        }
        assert!(!subject.read(file, 0, 4096, 99));
        assert!(!subject.write(file, 0, &[1; 4096], 99));
        assert_eq!(subject.disk.counters().disk_queue_full_commands, 2);
        assert_eq!(subject.run().len(), usize::from(DEPTH));
        assert!(subject.read(file, 0, 4096, 100));
        assert_eq!(subject.run().len(), 1);
    });
}

#[test]
fn no_more_completions_than_asked_for_are_handed_out() {
    check(|subject| {
        let (file, _) = subject.open();
        for token in 0..6 {
            assert!(subject.read(file, token * 4096, 4096, token));
        }
        subject.submit();
        let mut consumed = 0;
        for _ in 0..PATIENCE_STEPS {
            assert_eq!(subject.consume(0), 0);
            let count = subject.consume(2);
            assert!(count <= 2);
            consumed += count;
            if consumed == 6 {
                break;
            }
            subject.now = (subject.wait)(subject.now);
        }
        assert_eq!(consumed, 6);
    });
}

#[test]
fn reads_in_flight_survive_the_closing_of_their_file() {
    check(|subject| {
        let (file, _) = subject.open();
        assert!(subject.read(file, 0, 4096, 1));
        subject.submit();
        subject.disk.close(file);
        subject.disk.close(file);
        assert!(subject.read(file, 0, 4096, 2));
        let (next, _) = subject.open();
        assert_ne!(next, file);
        assert!(subject.read(next, 4096, 4096, 3));
        let results = subject.run();
        assert_eq!(results[0], (1, Ok(pattern(0, 4096))));
        assert_eq!(results[1], (2, Err(DiskError::Io(libc::EBADF))));
        assert_eq!(results[2], (3, Ok(pattern(4096, 8192))));
    });
}

#[test]
fn the_table_of_files_has_its_limit() {
    check(|subject| {
        let (first, _) = subject.open();
        let (_second, _) = subject.open();
        let source = (subject.source)();
        assert_eq!(subject.disk.open(source), Err(DiskError::TableFull));
        subject.disk.close(first);
        subject.open();
    });
}

#[test]
fn files_of_another_kind_are_refused() {
    check(|subject| {
        let refused = subject.disk.open((subject.foreign)());
        assert_eq!(
            refused,
            Err(DiskError::Io(libc::ENOTSUP)),
            "{}",
            subject.name
        );
    });
}

#[test]
fn a_write_is_read_back() {
    check(|subject| {
        // The temporary file of `uring` is open for writing, too.
        let (file, _) = subject.open();
        let bytes: Vec<u8> = (0..8192_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
        assert!(subject.write(file, 8192, &bytes, 1));
        let [(1, Ok(written))] = &subject.run()[..] else {
            panic!("one complete write");
        };
        assert_eq!(*written, bytes, "its slot comes back unchanged");
        assert!(subject.read(file, 8192, 8192, 2) && subject.read(file, 0, 8192, 3));
        assert!(subject.read(file, 16_384, 4096, 4));
        let expected = [bytes, pattern(0, 8192), pattern(16_384, 20_480)];
        for ((_, result), expected) in subject.run().into_iter().zip(expected) {
            assert_eq!(result, Ok(expected));
        }
        let counters = *subject.disk.counters();
        assert_eq!(counters.disk_write_commands, 1);
        assert_eq!(counters.disk_write_bytes, 8192);
        assert_eq!(counters.disk_read_bytes, 20_480);
    });
}
