//! The driver over VFIO: several queue pairs, each with a thread and slots of its own.

use std::io::Read as _;
use std::thread;
use std::time::{Duration, Instant as WallClock};

use clock::Instant;
use diskmap::FileSource;
use diskmap::nvme::{
    Controller, ControllerState, DmaMemory, Flush, Namespace, NamespaceFormat, NamespaceRange,
    NvmeConfig, Registers,
};
use diskmap::vfio::{PciAddress, Vfio, VfioController, VfioQueuePair};

use crate::promises::{self, Subject};
use crate::worker::{Checked, DEPTH, Work, Worker, arena, now, pieces, subject_on, work_together};
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
        controller: 0,
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
    let compared_bytes = work_together(QUEUE_PAIRS.into(), seeds, &|index| {
        let queue_id = u16::try_from(index)? + 1;
        opened.worker(queue_id)
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
    println!(
        "check: the slots are in pages of kind {:?}",
        worker.arena.pages()
    );
    worker.disk.finish(worker.now())?;
    opened.shut_down()?;
    println!("check: {compared_bytes} bytes read over VFIO are right");
    Ok(())
}

impl Checked for VfioQueuePair {
    fn enqueue_flush(&mut self, flush: Flush) -> Result<(), Flush> {
        self.flush(flush)
    }

    fn finish(&mut self, now: Instant) -> Outcome {
        let counters = *self.nvme_counters();
        if counters.doorbell_count == 0 || counters.taken_back_commands > 0 {
            return Err(format!("unexpected: {counters:?}").into());
        }
        delete_queues(self, now)
    }
}

/// Has the controller delete a queue pair's queues.
fn delete_queues(disk: &mut VfioQueuePair, mut now: Instant) -> Outcome {
    let end = now + clock::Duration::from_secs(20);
    while !disk.detach(now) {
        if now > end {
            return Err("its queues are not deleted".into());
        }
        thread::sleep(PAUSE);
        now += clock::Duration::from_millis(1);
    }
    Ok(())
}

/// Has a started controller until our input ends.
pub(crate) fn hold(address: PciAddress) -> Outcome {
    let opened = Opened::new(address)?;
    println!("check: {address} is open");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    opened.shut_down()
}

/// Drops a queue pair with commands in flight; another one must go on.
pub(crate) fn abandon(address: PciAddress, seeds: (u64, u64)) -> Outcome {
    let opened = Opened::new(address)?;
    let (mut first, mut second) = (opened.worker(1)?, opened.worker(2)?);
    let size_bytes = first.limits.size_bytes;
    let all = pieces(first.limits, (0, size_bytes), (0, 1));
    for worker in [&mut first, &mut second] {
        worker.run_well(
            Work::Compare(content(seeds, size_bytes)),
            &all[..DEPTH.into()],
        )?;
    }
    let in_flight = first.begin(&all)?;
    let Worker { disk, arena, .. } = first;
    drop(disk);
    let lost = arena.slot_count() - arena.free_count();
    second.run_well(Work::Compare(content(seeds, size_bytes)), &all)?;
    let resets = opened.controller.counters().reset_count;
    if in_flight != usize::from(DEPTH) || lost != in_flight || resets != 1 {
        return Err(format!("{in_flight} in flight, {lost} slots lost, {resets} resets").into());
    }
    println!("check: {in_flight} commands abandoned, their slots lost, {resets} reset");
    delete_queues(&mut second.disk, now(opened.since))?;
    opened.shut_down()
}

/// Reads until it is killed.
pub(crate) fn load(address: PciAddress) -> Outcome {
    let opened = Opened::new(address)?;
    let mut worker = opened.worker(1)?;
    let size_bytes = worker.limits.size_bytes;
    let all = pieces(worker.limits, (0, size_bytes), (0, 1));
    worker.run_well(Work::Discard, &all)?;
    println!("check: {address} is being read");
    loop {
        worker.run_well(Work::Discard, &all)?;
    }
}

/// For the promises: a queue pair with the file's bytes, of a controller that nothing else uses.
pub(crate) fn subject(address: PciAddress) -> Outcome<Subject> {
    let opened = Opened::new(address)?;
    let arena = promises::arena();
    let config = NvmeConfig {
        queue_depth: promises::DEPTH,
        files_max: 2,
        ..NvmeConfig::default()
    };
    let disk = opened
        .vfio
        .queue_pair(&opened.controller, 1, &arena, config)?;
    let namespaces = opened.controller.namespaces();
    let id = namespaces.first().ok_or("no namespace")?.id;
    subject_on("nvme over VFIO", arena, Box::new(disk), id, opened.since)
}
