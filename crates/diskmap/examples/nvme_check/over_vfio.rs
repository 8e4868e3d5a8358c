//! The driver over VFIO: several queue pairs, each with a thread and slots of its own.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant as WallClock};

use diskmap::FileSource;
use diskmap::nvme::{
    Controller, ControllerState, DmaMemory, Flush, Namespace, NamespaceFormat, NamespaceRange,
    NvmeConfig, Registers,
};
use diskmap::vfio::{PciAddress, Vfio, VfioController, VfioQueuePair};

use crate::worker::{DEPTH, Work, Worker, arena, now, pieces};
use crate::{Outcome, content};

/// Workers.
const QUEUE_PAIRS: u16 = 3;
/// Between looks at a controller that is on its way.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
/// Longest time for a shutdown.
const PATIENCE: Duration = Duration::from_secs(20);

/// All of a controller's only namespace.
pub(crate) fn whole<R: Registers, D: DmaMemory>(
    controller: &Controller<R, D>,
) -> Outcome<(NamespaceFormat, FileSource)> {
    let namespaces = controller.namespaces();
    let [Namespace { id, format }] = namespaces[..] else {
        return Err(format!("not one namespace: {namespaces:?}").into());
    };
    let format = format?;
    let range = NamespaceRange {
        namespace_id: id,
        start_bytes: 0,
        length_bytes: format.size_bytes(),
    };
    Ok((format, FileSource::Namespace(range)))
}

pub(crate) fn config() -> NvmeConfig {
    NvmeConfig {
        queue_depth: DEPTH,
        files_max: 2,
        ..NvmeConfig::default()
    }
}

/// An open controller, started.
struct Opened {
    vfio: Vfio,
    controller: VfioController,
    since: WallClock,
}

impl Opened {
    fn new(address: PciAddress) -> Outcome<Self> {
        let since = WallClock::now();
        let vfio = Vfio::open(address)?;
        let controller = vfio.start(QUEUE_PAIRS, &mut || {
            thread::sleep(PAUSE);
            now(since)
        })?;
        Ok(Self {
            vfio,
            controller,
            since,
        })
    }

    fn worker(&self, queue_id: u16) -> Outcome<Worker<VfioQueuePair>> {
        let arena = arena()?;
        let disk = self
            .vfio
            .queue_pair(&self.controller, queue_id, &arena, config())?;
        let (_, source) = whole(&self.controller)?;
        Worker::new(arena, disk, source, self.since)
    }

    fn shut_down(self) -> Outcome {
        let end = WallClock::now() + PATIENCE;
        self.controller.begin_shutdown(now(self.since));
        loop {
            match self.controller.poll(now(self.since)) {
                ControllerState::Pending if WallClock::now() < end => thread::sleep(PAUSE),
                ControllerState::ShutDown => return Ok(()),
                state => return Err(format!("no shutdown: {state:?}").into()),
            }
        }
    }
}

/// See the program.
pub(crate) fn check(address: PciAddress, seeds: (u64, u64)) -> Outcome {
    let opened = Opened::new(address)?;
    let (format, _) = whole(&opened.controller)?;
    let size_bytes = format.size_bytes();
    let granted = opened.controller.queue_pairs();
    println!(
        "check: {address} has {size_bytes} bytes in blocks of {}, {granted} queue pairs",
        format.block_bytes()
    );
    if granted != QUEUE_PAIRS {
        return Err(format!("{granted} queue pairs of {QUEUE_PAIRS}").into());
    }
    let workers = (1..=QUEUE_PAIRS).map(|id| opened.worker(id));
    let workers = workers.collect::<Outcome<Vec<_>>>()?;
    let barrier = Barrier::new(workers.len());
    let compared_bytes = thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(index, worker)| {
                let barrier = &barrier;
                scope.spawn(move || work(worker, index, barrier, seeds))
            })
            .collect();
        let mut bytes = 0;
        for thread in threads {
            bytes += thread.join().map_err(|_| "a worker panicked")??;
        }
        Outcome::Ok(bytes)
    })?;
    let counters = opened.controller.counters();
    if counters.reset_count + counters.abort_count > 0 {
        return Err(format!("something failed meanwhile: {counters:?}").into());
    }
    opened.shut_down()?;

    // Another life: everything is still there.
    let opened = Opened::new(address)?;
    let mut worker = opened.worker(1)?;
    let all = pieces(worker.limits, (0, size_bytes), (0, 1));
    worker.run_well(Work::Compare(content(seeds, size_bytes)), &all)?;
    let compared_bytes = compared_bytes + worker.compared_bytes;
    detach(worker)?;
    opened.shut_down()?;
    println!("check: {compared_bytes} bytes read over VFIO are right");
    Ok(())
}

/// What each worker does: the bytes it compared.
fn work(
    mut worker: Worker<VfioQueuePair>,
    index: usize,
    barrier: &Barrier,
    (low, high): (u64, u64),
) -> Outcome<u64> {
    let size_bytes = worker.limits.size_bytes;
    let mine = (index, usize::from(QUEUE_PAIRS));
    let all = pieces(worker.limits, (0, size_bytes), mine);
    let upper = pieces(worker.limits, (size_bytes / 2, size_bytes), mine);
    // A worker that fails keeps the others waiting no longer than the rest of the program takes.
    let mut outcomes = vec![worker.run_well(Work::Compare(content((low, low), size_bytes)), &all)];
    barrier.wait();
    let after = content((low, high), size_bytes);
    outcomes.push(worker.run_well(Work::Store(after), &upper));
    outcomes.push(flush(&mut worker));
    barrier.wait();
    // What another has written.
    let others = pieces(worker.limits, (0, size_bytes), ((index + 1) % 3, mine.1));
    outcomes.push(worker.run_well(Work::Compare(after), &others));
    outcomes.into_iter().collect::<Outcome<()>>()?;
    let counters = *worker.disk.nvme_counters();
    if counters.doorbell_count == 0 || counters.taken_back_commands > 0 {
        return Err(format!("unexpected: {counters:?}").into());
    }
    let compared_bytes = worker.compared_bytes;
    detach(worker)?;
    Ok(compared_bytes)
}

fn flush(worker: &mut Worker<VfioQueuePair>) -> Outcome {
    let slot = worker.arena.reserve().ok_or("no free slot")?;
    let flush = Flush {
        file: worker.file,
        slot,
        token: 0,
    };
    worker.disk.flush(flush).map_err(|_| "the queue is full")?;
    // Its completion has no bytes to be compared.
    worker.run_well(Work::Compare(content((0, 0), 0)), &[])
}

fn detach(mut worker: Worker<VfioQueuePair>) -> Outcome {
    let end = WallClock::now() + PATIENCE;
    while !worker.disk.detach(worker.now()) {
        if WallClock::now() > end {
            return Err("its queues are not deleted".into());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
