//! What every [`Disk`] promises: a function each over [`Subject`].
//!
//! `tests/conformance` checks them with the disks that any machine has, the example `nvme_check` with NVMe
//! controllers. Bounded by the size of the file, [`SIZE_BYTES`].

use clock::Instant;
use diskmap::sim::pattern_byte;
use diskmap::{Completion, Disk, DiskError, FileIndex, FileLimits, FileSource, Read, Write};
use memory::{Arena, ArenaConfig, FreeSlot};

/// Size of the file: some blocks, and a part of one.
pub(crate) const SIZE_BYTES: u64 = 300_001;
/// Seed of its bytes.
pub(crate) const SEED: u64 = 9;
/// Most commands of each disk.
pub(crate) const DEPTH: u16 = 8;
/// Slots, more than the depth.
const SLOTS: u32 = 16;
/// Longest time until a disk has done something.
const PATIENCE_STEPS: u32 = 1_000_000;

/// Checks one thing; panics if it is not so.
pub(crate) type Promise = fn(&mut Subject);

/// All promises.
pub(crate) const PROMISES: [(&str, Promise); 9] = [
    (
        "limits_are_those_of_the_file_and_the_slot",
        limits_are_those_of_the_file_and_the_slot,
    ),
    (
        "reads_bring_exactly_their_bytes_to_the_end_of_the_file",
        reads_bring_exactly_their_bytes_to_the_end_of_the_file,
    ),
    (
        "nothing_completes_before_sqsync",
        nothing_completes_before_sqsync,
    ),
    (
        "a_full_queue_gives_commands_back",
        a_full_queue_gives_commands_back,
    ),
    (
        "no_more_completions_than_asked_for_are_handed_out",
        no_more_completions_than_asked_for_are_handed_out,
    ),
    (
        "reads_in_flight_survive_the_closing_of_their_file",
        reads_in_flight_survive_the_closing_of_their_file,
    ),
    (
        "the_table_of_files_has_its_limit",
        the_table_of_files_has_its_limit,
    ),
    (
        "files_of_another_kind_are_refused",
        files_of_another_kind_are_refused,
    ),
    ("a_write_is_read_back", a_write_is_read_back),
];

/// A disk, a file that can be opened any number of times, and how time passes for it.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) arena: Arena,
    pub(crate) disk: Box<dyn Disk>,
    /// The file, opened anew.
    pub(crate) source: Box<dyn FnMut() -> FileSource>,
    /// A file that this kind of disk does not open.
    pub(crate) foreign: fn() -> FileSource,
    /// Lets time pass until something may have happened; tells the time.
    pub(crate) wait: Box<dyn FnMut(Instant) -> Instant>,
    pub(crate) now: Instant,
    pub(crate) results: Vec<(u64, Result<Vec<u8>, DiskError>)>,
}

pub(crate) fn arena() -> Arena {
    Arena::new(ArenaConfig::new(SLOTS)).expect("some MiB")
}

/// The bytes of the file from `start` to `end`.
pub(crate) fn pattern(start: u64, end: u64) -> Vec<u8> {
    (start..end.min(SIZE_BYTES))
        .map(|at| pattern_byte(SEED, at))
        .collect()
}

impl Subject {
    /// Checks one promise, and that nothing is left afterwards.
    pub(crate) fn check(&mut self, promise: Promise) {
        promise(self);
        assert_eq!(self.disk.in_flight(), 0);
        let arena = &self.arena;
        assert_eq!(arena.free_count(), arena.slot_count(), "slots were lost");
    }

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
    pub(crate) fn run(&mut self) -> Vec<(u64, Result<Vec<u8>, DiskError>)> {
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

fn limits_are_those_of_the_file_and_the_slot(subject: &mut Subject) {
    let (_, limits) = subject.open();
    assert_eq!(limits.size_bytes, SIZE_BYTES);
    assert!(limits.block_bytes.is_power_of_two() && limits.block_bytes >= 512);
    assert!(limits.read_bytes_max <= subject.arena.slot_bytes());
    assert_eq!(limits.read_bytes_max % limits.block_bytes, 0);
}

fn reads_bring_exactly_their_bytes_to_the_end_of_the_file(subject: &mut Subject) {
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
}

fn nothing_completes_before_sqsync(subject: &mut Subject) {
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
}

fn a_full_queue_gives_commands_back(subject: &mut Subject) {
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
}

fn no_more_completions_than_asked_for_are_handed_out(subject: &mut Subject) {
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
}

fn reads_in_flight_survive_the_closing_of_their_file(subject: &mut Subject) {
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
}

fn the_table_of_files_has_its_limit(subject: &mut Subject) {
    let (first, _) = subject.open();
    let (_second, _) = subject.open();
    let source = (subject.source)();
    assert_eq!(subject.disk.open(source), Err(DiskError::TableFull));
    subject.disk.close(first);
    subject.open();
}

fn files_of_another_kind_are_refused(subject: &mut Subject) {
    let refused = subject.disk.open((subject.foreign)());
    assert_eq!(
        refused,
        Err(DiskError::Io(libc::ENOTSUP)),
        "{}",
        subject.name
    );
}

fn a_write_is_read_back(subject: &mut Subject) {
    // The temporary file of `uring` is open for writing, too.
    let (file, _) = subject.open();
    let before = subject.disk.counters();
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
    let counters = subject.disk.counters();
    assert_eq!(counters.disk_write_commands - before.disk_write_commands, 1);
    assert_eq!(counters.disk_write_bytes - before.disk_write_bytes, 8192);
    assert_eq!(counters.disk_read_bytes - before.disk_read_bytes, 20_480);
}
