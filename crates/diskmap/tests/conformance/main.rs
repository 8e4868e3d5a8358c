//! What every [`Disk`] promises, checked with each of them: `uring` on a file and on a range of one, `sim`,
//! and `nvme` on an emulated controller with both block sizes, and on the second of two.
//!
//! Each promise is one function over [`Subject`], in `promises`; each disk is one constructor.

mod promises;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{
    Emulated, EmulatedConfig, EmulatedMemory, EmulatedRegisters, EmulatedSlots,
};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, NamespaceRange, Nvme, NvmeConfig, QueuePairs,
    memory_bytes,
};
use diskmap::sim::{SimConfig, SimContent, SimDisk};
use diskmap::uring::{Uring, UringConfig};
use diskmap::{DeviceRange, Disk, FileSource};
use memory::Arena;

use promises::{DEPTH, PROMISES, Promise, SEED, SIZE_BYTES, Subject, arena, pattern};

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

type EmulatedPair = Nvme<EmulatedRegisters, EmulatedMemory, EmulatedSlots>;

/// An emulated controller that is ready, and a queue pair of it.
fn queue_pair(block_shift: u8, seed: u64, arena: &Arena) -> (Emulated, EmulatedPair) {
    let mut config = EmulatedConfig::new(1, block_shift);
    config.namespaces[0].seed = seed;
    let emulated = Emulated::new(config);
    let mut now = Instant::ZERO;
    let memory = emulated.map_memory(ADMIN_MEMORY_BYTES);
    let controller = Controller::new(emulated.registers(), memory, 1, now).expect("it fits");
    while controller.poll(now) != ControllerState::Ready {
        now += Duration::from_millis(1);
        emulated.advance(now);
    }
    let memory = emulated.map_memory(memory_bytes(DEPTH, arena));
    let slots = emulated.map_slots(arena);
    let config = NvmeConfig {
        queue_depth: DEPTH,
        files_max: 2,
        ..NvmeConfig::default()
    };
    let pair = Nvme::new(&controller, 1, memory, slots, arena, config).expect("a queue pair");
    (emulated, pair)
}

/// A disk on emulated controllers, of which the file is on the last.
fn on_emulated(
    name: &'static str,
    arena: Arena,
    disk: Box<dyn Disk>,
    controllers: Vec<Emulated>,
) -> Subject {
    let last = u16::try_from(controllers.len() - 1).expect("a few");
    Subject {
        name,
        arena,
        disk,
        source: Box::new(move || {
            FileSource::Namespace(NamespaceRange {
                controller: last,
                namespace_id: 1,
                start_bytes: 0,
                length_bytes: SIZE_BYTES,
            })
        }),
        foreign: null,
        wait: Box::new(move |now| {
            let now = now + Duration::from_micros(10);
            for emulated in &controllers {
                emulated.advance(now);
                assert_eq!(emulated.violations(), [""; 0]);
            }
            now
        }),
        // Later than any controller needs to be ready.
        now: Instant::from_millis(1000),
        results: Vec::new(),
    }
}

fn nvme(name: &'static str, block_shift: u8) -> Subject {
    let arena = arena();
    let (emulated, pair) = queue_pair(block_shift, SEED, &arena);
    on_emulated(name, arena, Box::new(pair), vec![emulated])
}

/// Of two controllers with different bytes.
fn nvme_pairs() -> Subject {
    let arena = arena();
    let (first, second) = (
        queue_pair(9, SEED + 1, &arena),
        queue_pair(12, SEED, &arena),
    );
    let members = vec![("first".into(), first.1), ("second".into(), second.1)];
    let pairs = Box::new(QueuePairs::new(members));
    on_emulated("queue pairs", arena, pairs, vec![first.0, second.0])
}

/// Checks a promise of all disks.
fn check(promise: Promise) {
    for mut subject in [
        uring(),
        uring_range(),
        sim(),
        nvme("nvme, 512", 9),
        nvme("nvme, 4096", 12),
        nvme_pairs(),
    ] {
        // Its panic names the disk.
        let name = subject.name;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            subject.check(promise);
        }));
        assert!(result.is_ok(), "{name} breaks this promise");
    }
}

/// A test for each promise, by its name.
macro_rules! promises {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let named = PROMISES.iter().find(|(name, _)| *name == stringify!($name));
                check(named.expect("a promise of that name").1);
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

promises!(
    limits_are_those_of_the_file_and_the_slot,
    reads_bring_exactly_their_bytes_to_the_end_of_the_file,
    nothing_completes_before_sqsync,
    a_full_queue_gives_commands_back,
    no_more_completions_than_asked_for_are_handed_out,
    reads_in_flight_survive_the_closing_of_their_file,
    the_table_of_files_has_its_limit,
    files_of_another_kind_are_refused,
    a_write_is_read_back,
);

#[test]
fn every_promise_has_its_test() {
    assert_eq!(PROMISES.map(|(name, _)| name), TESTED);
}
