//! A controller that is told bus addresses at which nothing is mapped. The IOMMU must stop it, the driver
//! must say so by an error or keep its slots' bytes as they were, and must go on afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant as WallClock;

use clock::Duration;
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, DmaMemory, DmaSlots, Nvme, NvmeConfig,
    memory_bytes,
};
use diskmap::vfio::{PciAddress, Vfio, VfioMemory, VfioRegisters, VfioSlots};

use crate::over_vfio::{PAUSE, config, whole};
use crate::worker::{DEPTH, Work, Worker, arena, now, pieces};
use crate::{Outcome, content};

/// One that is sound, and one for each part.
const QUEUE_PAIRS: u16 = 4;
/// How far from the right address the wrong one is: beyond everything that is mapped.
const ASTRAY_BYTES: u64 = 1 << 36;

/// Memory whose address is given wrong, by as much as its maker says at any time.
#[derive(Debug)]
struct Astray<T> {
    what: T,
    by_bytes: Arc<AtomicU64>,
}

impl<T> Astray<T> {
    fn new(what: T) -> Self {
        Self {
            what,
            by_bytes: Arc::default(),
        }
    }

    fn by_bytes(&self) -> u64 {
        self.by_bytes.load(Ordering::Relaxed)
    }
}

/// What is where nothing is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Nothing.
    None,
    /// Where bytes are read to.
    Slots,
    /// The PRP lists, which say where pages of a slot are.
    Lists,
    /// The queues.
    Queues,
}

impl DmaMemory for Astray<VfioMemory> {
    fn length_bytes(&self) -> usize {
        self.what.length_bytes()
    }

    fn bus_address(&self) -> u64 {
        self.what.bus_address() + self.by_bytes()
    }

    fn load_u32(&self, offset_bytes: usize) -> u32 {
        self.what.load_u32(offset_bytes)
    }

    fn read(&self, offset_bytes: usize, bytes: &mut [u8]) {
        self.what.read(offset_bytes, bytes);
    }

    fn write(&mut self, offset_bytes: usize, bytes: &[u8]) {
        self.what.write(offset_bytes, bytes);
    }

    fn release(&self) {
        self.what.release();
    }
}

impl DmaSlots for Astray<VfioSlots> {
    fn bus_address(&self) -> u64 {
        self.what.bus_address() + self.by_bytes()
    }
}

type AstrayController = Controller<VfioRegisters, Astray<VfioMemory>>;
type AstrayDisk = Nvme<VfioRegisters, Astray<VfioMemory>, Astray<VfioSlots>>;

/// A controller, and how wrong addresses of slots and of queues are.
struct Bench {
    vfio: Vfio,
    controller: AstrayController,
    since: WallClock,
}

impl Bench {
    fn new(address: PciAddress) -> Outcome<Self> {
        let since = WallClock::now();
        let vfio = Vfio::open(address)?;
        let memory = Astray::new(vfio.map_memory(ADMIN_MEMORY_BYTES)?);
        let controller = Controller::new(vfio.registers(), memory, QUEUE_PAIRS, now(since))?;
        let bench = Self {
            vfio,
            controller,
            since,
        };
        bench.settle(ControllerState::Ready)?;
        Ok(bench)
    }

    fn settle(&self, wanted: ControllerState) -> Outcome {
        loop {
            match self.controller.poll(now(self.since)) {
                ControllerState::Pending => thread::sleep(PAUSE),
                state if state == wanted => return Ok(()),
                state => return Err(format!("{state:?} instead of {wanted:?}").into()),
            }
        }
    }

    fn worker(&self, queue_id: u16, part: Part) -> Outcome<Worker<AstrayDisk>> {
        let arena = arena()?;
        let config = NvmeConfig {
            command_timeout: Duration::from_millis(800),
            abort_grace: Duration::from_millis(200),
            // So that there are lists.
            use_sgls: part != Part::Lists,
            ..config()
        };
        let memory = Astray::new(self.vfio.map_memory(memory_bytes(DEPTH, &arena))?);
        let slots = Astray::new(self.vfio.map_slots(&arena)?);
        let by = |is_astray| if is_astray { ASTRAY_BYTES } else { 0 };
        slots
            .by_bytes
            .store(by(part == Part::Slots), Ordering::Relaxed);
        let memory_by = Arc::clone(&memory.by_bytes);
        memory_by.store(by(part == Part::Queues), Ordering::Relaxed);
        let disk = Nvme::new(&self.controller, queue_id, memory, slots, &arena, config)?;
        // Where queues are was asked for once; where a list is, for each command.
        memory_by.store(by(part == Part::Lists), Ordering::Relaxed);
        let (_, source) = whole(&self.controller)?;
        Worker::new(arena, disk, source, self.since)
    }
}

/// See the program. The disk's content is as `vfio` has left it.
pub(crate) fn check(address: PciAddress, seeds: (u64, u64)) -> Outcome {
    let bench = Bench::new(address)?;
    let mut sound = bench.worker(1, Part::None)?;
    let content = content(seeds, sound.limits.size_bytes);
    let all = pieces(sound.limits, (0, sound.limits.size_bytes), (0, 8));
    sound.run_well(Work::Compare(content), &all)?;
    for (queue_id, part) in [(2, Part::Slots), (3, Part::Lists), (4, Part::Queues)] {
        let found = go_astray(bench.worker(queue_id, part)?)?;
        let resets = bench.controller.counters().reset_count;
        println!("check: {part:?} where nothing is mapped: {found}; {resets} resets so far");
        sound.run_well(Work::Compare(content), &all)?;
    }
    let compared_bytes = sound.compared_bytes;
    drop(sound);
    bench.controller.begin_shutdown(now(bench.since));
    bench.settle(ControllerState::ShutDown)?;
    println!("check: {compared_bytes} bytes read beside them are right");
    Ok(())
}

/// Reads some bytes by a queue pair that gives wrong addresses; what came of it. An error if they arrived.
fn go_astray(mut worker: Worker<AstrayDisk>) -> Outcome<String> {
    let before = vec![0x5a; 16_384];
    match worker.read_once(0, &before)? {
        Ok(bytes) if bytes == before => Ok("reported as a success, but no byte came".to_owned()),
        Ok(_) => Err("bytes came where nothing is mapped".into()),
        Err(error) => Ok(error.to_string()),
    }
}
