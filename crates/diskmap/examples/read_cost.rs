//! What a read costs this process, in instructions: run by callgrind, which counts the three verbs of the
//! data path and nothing else.
//!
//! ```text
//! cargo build --release -p atlas-diskmap --example read_cost
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted_*' --toggle-collect='*platform_*' \
//!     target/release/examples/read_cost nvme 32 1000    # or: uring FILE 32 1000
//! ```
//!
//! `nvme` is the driver on an emulated controller. What a platform does (registers, copies to and from the
//! queues) is left out of the count, because this one's is emulated: over VFIO a read has one copy of 64 bytes to
//! the submission queue and one of 16 from the completion queue, and a batch two stores to registers. `uring` is
//! this process's part of `io_uring`; the kernel's is not counted. The difference between 2,000 and 1,000 reads
//! leaves the start out.

#![expect(clippy::print_stdout, reason = "the result of the example")]

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{Emulated, EmulatedConfig};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, DmaMemory, DmaSlots, NamespaceRange, Nvme,
    NvmeConfig, Registers, memory_bytes,
};
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Completion, Disk, FileIndex, FileSource, Read};
use memory::{Arena, ArenaConfig, FilledSlot};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Bytes of each read.
const READ_BYTES: u32 = 65_536;
/// Time in which a file's disk is done with a batch, so that no look for completions is in vain.
const BATCH_TIME: std::time::Duration = std::time::Duration::from_millis(20);
/// Size of what is read with `nvme`; a file for `uring` must be as large.
const SIZE_BYTES: u64 = 16 << 20;

fn main() -> Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["nvme", batch, reads] => nvme(batch.parse()?, reads.parse()?),
        ["uring", file, batch, reads] => uring(file, batch.parse()?, reads.parse()?),
        _ => Err("usage: read_cost nvme BATCH READS | read_cost uring FILE BATCH READS".into()),
    }
}

fn nvme(batch: u16, reads: u64) -> Outcome {
    let mut now = Instant::ZERO;
    let mut config = EmulatedConfig::new(1, 12);
    config.namespaces[0].block_count = SIZE_BYTES / 4096;
    let emulated = Emulated::new(config);
    let memory = Platform(emulated.map_memory(ADMIN_MEMORY_BYTES));
    let controller = Controller::new(Platform(emulated.registers()), memory, 1, now)?;
    while controller.poll(now) == ControllerState::Pending {
        now += Duration::from_millis(1);
        emulated.advance(now);
    }
    let arena = Arena::new(ArenaConfig::new(batch.into()))?;
    let config = NvmeConfig {
        queue_depth: batch,
        ..NvmeConfig::default()
    };
    let memory = Platform(emulated.map_memory(memory_bytes(batch, &arena)));
    let slots = Platform(emulated.map_slots(&arena));
    let disk = Nvme::new(&controller, 1, memory, slots, &arena, config)?;
    let source = FileSource::Namespace(NamespaceRange {
        controller: 0,
        namespace_id: 1,
        start_bytes: 0,
        length_bytes: SIZE_BYTES,
    });
    // Long enough for a batch, so that no look for completions is in vain.
    measure(disk, arena, source, reads, &mut || {
        now += Duration::from_millis(1);
        emulated.advance(now);
        now
    })
}

fn uring(file: &str, batch: u16, reads: u64) -> Outcome {
    let arena = Arena::new(ArenaConfig::new(batch.into()))?;
    let config = UringConfig {
        queue_depth: batch.into(),
        ..UringConfig::default()
    };
    let disk = Uring::new(config, &arena)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(file)?;
    let mut now = Instant::ZERO;
    measure(
        disk,
        arena,
        FileSource::Descriptor(file.into()),
        reads,
        &mut || {
            std::thread::sleep(BATCH_TIME);
            now += Duration::from_millis(1);
            now
        },
    )
}

/// Reads in batches as large as the arena, each when the one before is complete.
fn measure<D: Disk>(
    mut disk: D,
    mut arena: Arena,
    source: FileSource,
    reads: u64,
    wait: &mut dyn FnMut() -> Instant,
) -> Outcome {
    let (file, limits) = disk.open(source)?;
    if limits.size_bytes < SIZE_BYTES {
        return Err(format!("{SIZE_BYTES} bytes are needed").into());
    }
    let pieces = SIZE_BYTES / u64::from(READ_BYTES);
    let (mut begun, mut done, mut now) = (0, 0, wait());
    while done < reads {
        while begun < reads
            && let Some(slot) = arena.reserve()
        {
            let read = Read {
                file,
                offset_bytes: begun % pieces * u64::from(READ_BYTES),
                length_bytes: READ_BYTES,
                slot,
                token: begun,
            };
            counted_read(&mut disk, &mut arena, read)?;
            begun += 1;
        }
        counted_sqsync(&mut disk, now)?;
        while done < begun {
            now = wait();
            done += counted_consume(&mut disk, &mut arena, now)?;
        }
    }
    disk.close(file);
    println!(
        "{done} reads of {READ_BYTES} bytes from {file:?}",
        file = FileIndex(file.0)
    );
    Ok(())
}

#[inline(never)]
fn counted_read<D: Disk>(disk: &mut D, arena: &mut Arena, read: Read) -> Outcome {
    disk.read(arena, read)
        .map_err(|_| "the queue is full".into())
}

#[inline(never)]
fn counted_sqsync<D: Disk>(disk: &mut D, now: Instant) -> Outcome {
    Ok(disk.sqsync(now)?)
}

#[inline(never)]
fn counted_consume<D: Disk>(disk: &mut D, arena: &mut Arena, now: Instant) -> Outcome<u64> {
    let mut failed = None;
    let mut sink = |arena: &mut Arena, completion: Completion| match completion.result {
        Ok(slot) => arena.release(slot.into_free()),
        Err((slot, error)) => {
            arena.release(slot);
            failed = Some(error);
        }
    };
    let count = disk.consume_completions(now, arena, 64, &mut sink);
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(count.try_into()?),
    }
}

/// A part of the emulated platform, whose work is not counted.
#[derive(Clone)]
struct Platform<T>(T);

#[inline(never)]
fn platform_work<R>(work: impl FnOnce() -> R) -> R {
    work()
}

impl<T: Registers> Registers for Platform<T> {
    fn length_bytes(&self) -> u64 {
        self.0.length_bytes()
    }

    fn read_u32(&self, offset_bytes: u64) -> u32 {
        platform_work(|| self.0.read_u32(offset_bytes))
    }

    fn read_u64(&self, offset_bytes: u64) -> u64 {
        platform_work(|| self.0.read_u64(offset_bytes))
    }

    fn write_u32(&self, offset_bytes: u64, value: u32) {
        platform_work(|| self.0.write_u32(offset_bytes, value));
    }

    fn write_u64(&self, offset_bytes: u64, value: u64) {
        platform_work(|| self.0.write_u64(offset_bytes, value));
    }

    fn reset_function(&self) -> bool {
        platform_work(|| self.0.reset_function())
    }
}

impl<T: DmaMemory> DmaMemory for Platform<T> {
    fn length_bytes(&self) -> usize {
        self.0.length_bytes()
    }

    fn bus_address(&self) -> u64 {
        self.0.bus_address()
    }

    fn load_u32(&self, offset_bytes: usize) -> u32 {
        platform_work(|| self.0.load_u32(offset_bytes))
    }

    fn read(&self, offset_bytes: usize, bytes: &mut [u8]) {
        platform_work(|| self.0.read(offset_bytes, bytes));
    }

    fn write(&mut self, offset_bytes: usize, bytes: &[u8]) {
        platform_work(|| self.0.write(offset_bytes, bytes));
    }

    fn release(&self) {
        platform_work(|| self.0.release());
    }
}

impl<T: DmaSlots> DmaSlots for Platform<T> {
    fn bus_address(&self) -> u64 {
        self.0.bus_address()
    }

    fn sync_for_device(&mut self, arena: &Arena, slot: &FilledSlot) {
        platform_work(|| self.0.sync_for_device(arena, slot));
    }

    fn sync_for_cpu(&mut self, arena: &mut Arena, slot: &mut FilledSlot) {
        platform_work(|| self.0.sync_for_cpu(arena, slot));
    }
}
