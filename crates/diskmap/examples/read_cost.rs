//! What a read costs this process, in instructions: run by callgrind, which counts the three verbs of the
//! data path and nothing else.
//!
//! ```text
//! cargo build --release -p atlas-diskmap --example read_cost
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted_*' --toggle-collect='*platform_*' \
//!     target/release/examples/read_cost nvme 64K 32 1000
//! ```
//!
//! or `pairs`, `uring FILE`, `passthru /dev/ng0n1` in place of `nvme`; then come the bytes of a read, the reads of a
//! batch, and all reads. `nvme` is the driver on an emulated controller, `pairs` the second of two controllers that
//! are one disk, as the server has them. `passthru` needs an NVMe controller that the kernel's driver has:
//! `cargo xtask lab --disk count` runs it, and `uring`, in a guest that has one. What a platform does (registers,
//! copies to and from the queues) is left out of the count, because this one's is emulated: over VFIO a read has one copy of 64 bytes to
//! the submission queue and one of 16 from the completion queue, and a batch two stores to registers. `uring` and
//! `passthru` are this process's part of `io_uring`; the kernel's is not counted. The difference between 2,000 and 1,000 reads
//! leaves the start out. Looks for completions are said at the end: with more of them than batches, some were in vain,
//! and are counted.

#![expect(clippy::print_stdout, reason = "the result of the example")]

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{
    Emulated, EmulatedConfig, EmulatedMemory, EmulatedRegisters, EmulatedSlots,
};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, DmaMemory, DmaSlots, NamespaceRange, Nvme,
    NvmeConfig, QueuePairs, Registers, memory_bytes,
};
use diskmap::passthru::{NamespaceDevice, Passthru, PassthruConfig};
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Completion, Disk, FileIndex, FileSource, Read};
use memory::{Arena, ArenaConfig, FilledSlot};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Time in which a file's disk is done with a batch, so that no look for completions is in vain.
const BATCH_TIME: std::time::Duration = std::time::Duration::from_millis(50);
/// Size of what is read with `nvme`; a file for `uring` must be as large.
const SIZE_BYTES: u64 = 16 << 20;

fn main() -> Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["nvme", bytes, batch, reads] => nvme(1, Load::parse(bytes, batch, reads)?),
        ["pairs", bytes, batch, reads] => nvme(2, Load::parse(bytes, batch, reads)?),
        ["uring", file, bytes, batch, reads] => uring(file, Load::parse(bytes, batch, reads)?),
        ["passthru", file, bytes, batch, reads] => {
            passthru(file, Load::parse(bytes, batch, reads)?)
        }
        _ => Err("usage: read_cost nvme|pairs|uring FILE|passthru DEVICE BYTES BATCH READS".into()),
    }
}

/// What is read.
#[derive(Clone, Copy)]
struct Load {
    /// Of each read.
    bytes: u32,
    batch: u16,
    reads: u64,
}

impl Load {
    fn parse(bytes: &str, batch: &str, reads: &str) -> Outcome<Self> {
        let bytes = match bytes.strip_suffix('K') {
            Some(kibibytes) => kibibytes.parse::<u32>()? * 1024,
            None => bytes.parse()?,
        };
        Ok(Self {
            bytes,
            batch: batch.parse()?,
            reads: reads.parse()?,
        })
    }

    fn arena(self) -> Outcome<Arena> {
        Ok(Arena::new(ArenaConfig {
            slot_bytes: self.bytes,
            ..ArenaConfig::new(self.batch.into())
        })?)
    }
}

type EmulatedPair =
    Nvme<Platform<EmulatedRegisters>, Platform<EmulatedMemory>, Platform<EmulatedSlots>>;

/// Emulated controllers of which the last is read: alone, or as one disk.
fn nvme(controllers: u16, load: Load) -> Outcome {
    let arena = load.arena()?;
    let made = (0..controllers).map(|_| queue_pair(load, &arena));
    let (emulated, mut pairs): (Vec<_>, Vec<_>) =
        made.collect::<Outcome<Vec<_>>>()?.into_iter().unzip();
    let source = FileSource::Namespace(NamespaceRange {
        controller: controllers - 1,
        namespace_id: 1,
        start_bytes: 0,
        length_bytes: SIZE_BYTES,
    });
    // Later than any controller needs to be ready.
    let mut now = Instant::from_millis(1000);
    // Long enough for a batch, so that no look for completions is in vain.
    let mut wait = || {
        now += Duration::from_millis(1);
        for emulated in &emulated {
            emulated.advance(now);
        }
        now
    };
    match (pairs.pop(), pairs.is_empty()) {
        (Some(only), true) => measure(only, arena, source, load, &mut wait),
        (last, _) => {
            let members = pairs.into_iter().chain(last);
            let members = members.map(|pair| ("".into(), pair)).collect();
            measure(QueuePairs::new(members), arena, source, load, &mut wait)
        }
    }
}

fn queue_pair(load: Load, arena: &Arena) -> Outcome<(Emulated, EmulatedPair)> {
    let batch = load.batch;
    let mut now = Instant::ZERO;
    let mut config = EmulatedConfig::new(1, 12);
    // 512 KiB, so that no read is in parts.
    config.transfer_shift = 7;
    config.namespaces[0].block_count = SIZE_BYTES / 4096;
    let emulated = Emulated::new(config);
    let memory = Platform(emulated.map_memory(ADMIN_MEMORY_BYTES));
    let controller = Controller::new(Platform(emulated.registers()), memory, 1, now)?;
    while controller.poll(now) == ControllerState::Pending {
        now += Duration::from_millis(1);
        emulated.advance(now);
    }
    let config = NvmeConfig {
        queue_depth: batch,
        ..NvmeConfig::default()
    };
    let memory = Platform(emulated.map_memory(memory_bytes(batch, arena)));
    let slots = Platform(emulated.map_slots(arena));
    let pair = Nvme::new(&controller, 1, memory, slots, arena, config)?;
    Ok((emulated, pair))
}

fn uring(file: &str, load: Load) -> Outcome {
    let arena = load.arena()?;
    let config = UringConfig {
        queue_depth: load.batch.into(),
        ..UringConfig::default()
    };
    let disk = Uring::new(config, &arena)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(file)?;
    let source = FileSource::Descriptor(file.into());
    measure(disk, arena, source, load, &mut real_time())
}

fn passthru(device: &str, load: Load) -> Outcome {
    let arena = load.arena()?;
    let device = Arc::new(NamespaceDevice::open(device.as_ref())?);
    let config = PassthruConfig {
        queue_depth: load.batch,
        ..PassthruConfig::default()
    };
    let source = FileSource::Namespace(NamespaceRange {
        controller: 0,
        namespace_id: device.namespace_id(),
        start_bytes: 0,
        length_bytes: SIZE_BYTES,
    });
    let disk = Passthru::new(vec![device], config, &arena)?;
    measure(disk, arena, source, load, &mut real_time())
}

/// Waits until a real disk is done with a batch.
fn real_time() -> impl FnMut() -> Instant {
    let mut now = Instant::ZERO;
    move || {
        std::thread::sleep(BATCH_TIME);
        now += Duration::from_millis(1);
        now
    }
}

/// Reads in batches as large as the arena, each when the one before is complete.
fn measure<D: Disk>(
    mut disk: D,
    mut arena: Arena,
    source: FileSource,
    Load { bytes, reads, .. }: Load,
    wait: &mut dyn FnMut() -> Instant,
) -> Outcome {
    let (file, limits) = disk.open(source)?;
    if limits.size_bytes < SIZE_BYTES {
        return Err(format!("{SIZE_BYTES} bytes are needed").into());
    }
    let pieces = SIZE_BYTES / u64::from(bytes);
    let (mut begun, mut done, mut looks, mut now) = (0, 0, 0_u64, wait());
    while done < reads {
        while begun < reads
            && let Some(slot) = arena.reserve()
        {
            let read = Read {
                file,
                offset_bytes: begun % pieces * u64::from(bytes),
                length_bytes: bytes,
                slot,
                token: begun,
            };
            counted_read(&mut disk, &mut arena, read)?;
            begun += 1;
        }
        counted_sqsync(&mut disk, now)?;
        while done < begun {
            now = wait();
            looks += 1;
            done += counted_consume(&mut disk, &mut arena, now)?;
        }
    }
    disk.close(file);
    println!(
        "{done} reads of {bytes} bytes from {file:?}, in {looks} looks for completions",
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
