//! Queue pairs of several controllers as one disk.

use std::sync::Arc;

use super::*;
use crate::DiskNotice;
use crate::sim::pattern_byte;

type TestPairs = QueuePairs<EmulatedRegisters, EmulatedMemory, EmulatedSlots>;

/// Controllers, and workers that each have a queue pair at each of them.
struct Several {
    controllers: Vec<(Emulated, TestController)>,
    workers: Vec<Worker>,
    now: Instant,
}

struct Worker {
    disk: TestPairs,
    arena: Arena,
    /// By the number of the controller.
    files: Vec<FileIndex>,
    /// Tokens and what they ended with.
    ended: Vec<(u64, Result<Vec<u8>, DiskError>)>,
}

const DEPTH: u16 = 4;

/// Controller *n*'s bytes have the seed *n*.
fn several(controllers: u16, workers: u16) -> Several {
    let start = |seed: u16| {
        let emulated = Emulated::new(EmulatedConfig::new(seed.into(), 12));
        let mut host = Host::new(emulated, workers).unwrap();
        assert_eq!(host.settle(), ControllerState::Ready);
        (host.emulated, host.controller)
    };
    let controllers: Vec<_> = (0..controllers).map(start).collect();
    let worker = |queue_id: u16| {
        let mut config = ArenaConfig::new(16);
        config.pages = memory::PageKind::Ordinary;
        let arena = Arena::new(config).unwrap();
        let config = NvmeConfig {
            queue_depth: DEPTH,
            files_max: 2,
            ..NvmeConfig::default()
        };
        let member = |(number, (emulated, controller)): (usize, &(Emulated, TestController))| {
            let memory = emulated.map_memory(memory_bytes(DEPTH, &arena));
            let slots = emulated.map_slots(&arena);
            let pair = Nvme::new(controller, queue_id, memory, slots, &arena, config).unwrap();
            (Arc::from(format!("number {number}")), pair)
        };
        let members = controllers.iter().enumerate().map(member).collect();
        let mut disk = TestPairs::new(members);
        let open = |number| open(&mut disk, number).unwrap().0;
        let files = (0..u16::try_from(controllers.len()).unwrap())
            .map(open)
            .collect();
        Worker {
            disk,
            arena,
            files,
            ended: Vec::new(),
        }
    };
    Several {
        workers: (1..=workers).map(worker).collect(),
        controllers,
        now: Instant::from_millis(100),
    }
}

fn open(disk: &mut TestPairs, controller: u16) -> Result<(FileIndex, FileLimits), DiskError> {
    disk.open(FileSource::Namespace(NamespaceRange {
        controller,
        namespace_id: 1,
        start_bytes: 0,
        length_bytes: 1 << 20,
    }))
}

impl Worker {
    /// Enqueues a read of 4 KiB; false if it was given back, as it was.
    fn read(&mut self, file: FileIndex, offset_bytes: u64, token: u64) -> bool {
        let read = Read {
            file,
            offset_bytes,
            length_bytes: 4096,
            slot: self.arena.reserve().unwrap(),
            token,
        };
        if let Err(read) = self.disk.read(&mut self.arena, read) {
            assert_eq!((read.file, read.token), (file, token));
            self.arena.release(read.slot);
            return false;
        }
        true
    }

    fn consume(&mut self, now: Instant, most: usize) -> usize {
        let ended = &mut self.ended;
        let sink = &mut |arena: &mut Arena, Completion { token, result }: Completion| {
            let (slot, result) = match result {
                Ok(slot) => {
                    let bytes = arena.payload(&slot).to_vec();
                    (slot.into_free(), Ok(bytes))
                }
                Err((slot, error)) => (slot, Err(error)),
            };
            arena.release(slot);
            ended.push((token, result));
        };
        self.disk
            .consume_completions(now, &mut self.arena, most, sink)
    }

    fn notices(&mut self) -> Vec<DiskNotice> {
        std::iter::from_fn(|| self.disk.poll_notice()).collect()
    }
}

impl Several {
    fn submit(&mut self) {
        for worker in &mut self.workers {
            worker.disk.sqsync(self.now).unwrap();
        }
    }

    /// Lets time pass until nothing is in flight.
    fn finish(&mut self) {
        self.submit();
        let end = self.now + PATIENCE;
        while self.workers.iter().any(|it| it.disk.in_flight() > 0) {
            assert!(self.now < end, "something never completes");
            self.wait(Duration::from_millis(1));
            for worker in &mut self.workers {
                worker.consume(self.now, usize::MAX);
            }
        }
        for worker in &self.workers {
            assert_eq!(worker.arena.free_count(), worker.arena.slot_count());
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for (emulated, _) in &self.controllers {
            emulated.advance(self.now);
            assert_eq!(emulated.violations(), [""; 0]);
        }
    }
}

fn pattern(seed: u64, offset_bytes: u64) -> Vec<u8> {
    let bytes = offset_bytes..offset_bytes + 4096;
    bytes.map(|at| pattern_byte(seed, at)).collect()
}

#[test]
fn a_range_is_read_from_the_controller_that_has_it() {
    let mut several = several(3, 1);
    let worker = &mut several.workers[0];
    for (token, file) in worker.files.clone().into_iter().enumerate() {
        assert!(worker.read(file, 8192, token as u64));
    }
    assert_eq!(worker.disk.in_flight(), 3);
    several.finish();
    let mut ended = core::mem::take(&mut several.workers[0].ended);
    ended.sort_by_key(|(token, _)| *token);
    let expected = (0..3).map(|seed| (seed, Ok(pattern(seed, 8192))));
    assert_eq!(ended, expected.collect::<Vec<_>>());
    let worker = &mut several.workers[0];
    assert_eq!(worker.disk.counters().disk_read_commands, 3);
    let own = worker.disk.own_counters();
    assert!(own.contains(&("nvme_doorbell_count", 3)), "{own:?}");
    assert_eq!(worker.notices(), []);
}

#[test]
fn a_range_of_a_controller_that_is_not_there_is_not_opened() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    let unknown = open(&mut worker.disk, 2);
    assert_eq!(unknown, Err(DiskError::Io(libc::ENODEV)));
}

/// Closed, of a controller that is not there, and never opened.
#[test]
fn reads_of_ranges_that_are_not_open_fail() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    let closed = worker.files[1];
    worker.disk.close(closed);
    let foreign = FileIndex(2 << 26);
    worker.disk.close(foreign);
    for (token, file) in [closed, foreign, FileIndex(u32::MAX)].iter().enumerate() {
        assert!(worker.read(*file, 0, token as u64));
    }
    assert!(
        worker.read(worker.files[0], 0, 3),
        "the first is still open"
    );
    several.finish();
    let mut ended = core::mem::take(&mut several.workers[0].ended);
    ended.sort_by_key(|(token, _)| *token);
    for (token, result) in ended {
        match token {
            3 => assert_eq!(result, Ok(pattern(0, 0))),
            _ => assert_eq!(result, Err(DiskError::Io(libc::EBADF)), "{token}"),
        }
    }
}

#[test]
fn a_full_queue_of_one_controller_leaves_room_at_the_other() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    let [first, second] = [worker.files[0], worker.files[1]];
    for token in 0..DEPTH.into() {
        assert!(worker.read(first, 0, token));
    }
    assert!(!worker.read(first, 0, 9));
    assert!(worker.read(second, 0, 10));
    several.finish();
    assert_eq!(several.workers[0].ended.len(), usize::from(DEPTH) + 1);
}

/// With few completions taken at a time, none of the controllers waits for the others.
#[test]
fn controllers_take_turns_when_few_completions_are_taken() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    for token in 0..DEPTH.into() {
        assert!(worker.read(worker.files[0], 0, token));
        assert!(worker.read(worker.files[1], 0, 100 + token));
    }
    several.submit();
    for _ in 0..10 {
        several.wait(Duration::from_millis(1));
        // The queues are made and the commands issued, but nothing is taken.
        several.workers[0].consume(several.now, 0);
    }
    let worker = &mut several.workers[0];
    for _ in 0..4 {
        assert_eq!(worker.consume(several.now, 1), 1);
    }
    let of_second = worker.ended.iter().filter(|(token, _)| *token >= 100);
    assert_eq!(of_second.count(), 2);
    several.finish();
}

#[test]
fn a_controller_that_fails_ends_its_own_commands_and_no_others() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    let [first, second] = [worker.files[0], worker.files[1]];
    assert!(worker.read(first, 0, 0));
    assert!(worker.read(second, 0, 1));
    several.submit();
    several.controllers[1].0.set_gone(true);
    several.finish();
    let worker = &mut several.workers[0];
    worker.ended.sort_by_key(|(token, _)| *token);
    let gone = DiskError::Io(libc::ENODEV);
    assert_eq!(worker.ended[0], (0, Ok(pattern(0, 0))));
    assert_eq!(worker.ended[1], (1, Err(gone)));
    let failed = DiskNotice::Failed {
        controller: "number 1".into(),
        error: ControllerError::Gone,
    };
    assert_eq!(worker.notices(), [failed], "once");
    // Later reads fail at once, without another notice; the first goes on.
    worker.ended.clear();
    assert!(worker.read(second, 0, 2));
    assert!(worker.read(first, 4096, 3));
    several.finish();
    let worker = &mut several.workers[0];
    worker.ended.sort_by_key(|(token, _)| *token);
    assert_eq!(worker.ended[0], (2, Err(gone)));
    assert_eq!(worker.ended[1], (3, Ok(pattern(0, 4096))));
    assert_eq!(worker.notices(), []);
}

/// Each worker says how many of its commands are issued again; the reset is counted once.
#[test]
fn a_reset_is_told_with_its_reason_and_counted_once() {
    let mut several = several(2, 3);
    // So that the queues are made.
    for worker in &mut several.workers {
        assert!(worker.read(worker.files[1], 0, 99));
    }
    several.finish();
    several.controllers[1].0.set_faults(Faults {
        latency_min: Duration::from_secs(1),
        latency_max: Duration::from_secs(1),
        ..Faults::default()
    });
    for (count, worker) in [2, 1, 0].into_iter().zip(&mut several.workers) {
        for token in 0..count {
            assert!(worker.read(worker.files[1], 0, token));
        }
        assert!(worker.read(worker.files[0], 0, 9));
    }
    several.submit();
    for _ in 0..20 {
        several.wait(Duration::from_millis(1));
        for worker in &mut several.workers {
            worker.consume(several.now, usize::MAX);
        }
    }
    several.controllers[1].0.set_fatal();
    several.finish();
    let told = several.workers.iter_mut().map(Worker::notices);
    let reset = |commands| DiskNotice::Reset {
        controller: "number 1".into(),
        error: ControllerError::Fatal,
        commands,
    };
    let told: Vec<_> = told.collect();
    assert_eq!(told, [vec![reset(2)], vec![reset(1)], vec![]]);
    let resets = several.workers.iter().map(|it| {
        let own = it.disk.own_counters();
        let count = own.iter().find(|(name, _)| *name == "nvme_reset_count");
        count.expect("it is counted").1
    });
    assert_eq!(resets.sum::<u64>(), 1);
    for worker in &several.workers {
        assert!(worker.ended.iter().all(|(_, result)| result.is_ok()));
    }
}

/// Another worker may have started the controller again before the one that found the fault looks.
#[test]
fn a_reset_is_told_once_the_commands_are_taken_back() {
    let mut several = several(1, 2);
    for worker in &mut several.workers {
        assert!(worker.read(worker.files[0], 0, 0));
    }
    several.finish();
    several.controllers[0].0.set_faults(Faults {
        latency_min: Duration::from_secs(1),
        latency_max: Duration::from_secs(1),
        ..Faults::default()
    });
    let worker = &mut several.workers[0];
    assert!(worker.read(worker.files[0], 0, 1));
    several.submit();
    several.controllers[0].0.set_fatal();
    // The first finds it when it looks for late commands.
    while several.workers[0].disk.queue_pairs()[0]
        .nvme_counters()
        .reset_count
        == 0
    {
        several.wait(Duration::from_millis(100));
        several.workers[0].consume(several.now, 1);
    }
    // The second starts the controller.
    several.controllers[0].0.set_faults(Faults::default());
    let worker = &mut several.workers[1];
    assert!(worker.read(worker.files[0], 0, 2));
    worker.disk.sqsync(several.now).unwrap();
    while several.workers[1].disk.in_flight() > 0 {
        several.wait(Duration::from_millis(1));
        several.workers[1].consume(several.now, 1);
    }
    assert_eq!(
        several.workers[0].notices(),
        [],
        "its command is not back yet"
    );
    several.finish();
    let reset = DiskNotice::Reset {
        controller: "number 0".into(),
        error: ControllerError::Fatal,
        commands: 1,
    };
    assert_eq!(several.workers[0].notices(), [reset]);
    assert_eq!(several.workers[1].notices(), []);
}

#[test]
fn queues_are_deleted_at_every_controller() {
    let mut several = several(2, 1);
    let worker = &mut several.workers[0];
    assert!(worker.read(worker.files[0], 0, 0));
    assert!(worker.read(worker.files[1], 0, 1));
    several.finish();
    let end = several.now + PATIENCE;
    while !several.workers[0].disk.detach(several.now) {
        assert!(several.now < end);
        several.wait(Duration::from_millis(1));
    }
}

#[test]
fn as_many_controllers_are_told_apart_as_a_store_has_devices() {
    let mut several = several(64, 1);
    assert_eq!(CONTROLLERS_MAX, 64);
    let worker = &mut several.workers[0];
    let last = *worker.files.last().unwrap();
    assert!(worker.read(last, 0, 0));
    several.finish();
    assert_eq!(several.workers[0].ended, [(0, Ok(pattern(63, 0)))]);
}

#[test]
#[should_panic(expected = "65 controllers: 1 to 64 can be told apart")]
fn more_controllers_are_refused() {
    let _ = several(65, 1);
}
