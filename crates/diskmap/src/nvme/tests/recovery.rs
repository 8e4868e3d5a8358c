//! Timeouts, aborts, resets, and controllers that nothing helps.

use super::*;

fn stuck(abort: AbortBehaviour) -> Faults {
    Faults {
        stuck_chance: CHANCE_SCALE,
        abort,
        ..Faults::default()
    }
}

/// With a first read done.
fn bench() -> Bench {
    let mut bench = Bench::new(EmulatedConfig::new(5, 12), NvmeConfig::default());
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    bench
}

impl Bench {
    /// Lets time pass, a millisecond at a time.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(1);
            self.emulated.advance(self.now);
            self.consume(usize::MAX).unwrap();
        }
    }
}

#[test]
fn a_command_is_aborted_after_its_timeout_and_not_before() {
    let mut bench = bench();
    bench.emulated.set_faults(stuck(AbortBehaviour::Works));
    assert!(bench.read(0, 4096));
    bench.submit();
    bench.emulated.set_faults(Faults::default());
    bench.pass(Duration::from_millis(7990));
    assert_eq!(bench.controller.counters().abort_count, 0);
    assert_eq!(bench.disk.in_flight(), 1);
    // A scan each second.
    bench.pass(Duration::from_millis(1100));
    assert_eq!(bench.controller.counters().abort_count, 1);
    assert_eq!(bench.disk.in_flight(), 0, "it was issued again");
    assert_eq!(bench.errors, []);
    assert_eq!(bench.disk.counters().disk_reissued_commands, 1);
    assert_eq!(bench.controller.counters().reset_count, 0);
}

/// A process that was stopped, or a machine that slept: what has completed meanwhile is no late command.
#[test]
fn a_worker_that_slept_takes_completions_before_it_calls_commands_late() {
    type Wake = fn(&mut Bench);
    let by_submitting: Wake = |bench| {
        assert!(bench.read(4096, 4096));
        bench.submit();
    };
    let by_polling: Wake = |bench| assert!(bench.disk.poll(bench.now));
    let by_consuming_one: Wake = |bench| assert_eq!(bench.consume(1), Ok(1));
    for wake in [by_submitting, by_polling, by_consuming_one] {
        let mut bench = bench();
        assert!(bench.read(0, 4096) && bench.read(8192, 4096));
        bench.submit();
        bench.now += Duration::from_secs(60);
        bench.emulated.advance(bench.now);
        wake(&mut bench);
        bench.finish().unwrap();
        assert_eq!(bench.errors, []);
        assert_eq!(bench.controller.counters().abort_count, 0);
        assert_eq!(bench.controller.counters().reset_count, 0);
    }
}

/// Its completion queue may still be created: one who comes next must not be given that.
#[test]
fn a_queue_pair_deleted_while_it_is_made_is_gone_before_the_next_is_made() {
    let mut host = Host::new(Emulated::new(EmulatedConfig::new(5, 12)), 1).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    let mut first = worker(&host, 1);
    // Create I/O Completion Queue is sent, and not answered.
    assert!(!first.disk.poll(first.now));
    assert!(
        !first.disk.detach(first.now),
        "the controller has its address"
    );
    let mut now = first.now;
    while !first.disk.detach(now) {
        now += Duration::from_micros(10);
        host.emulated.advance(now);
    }
    drop(first);
    host.now = now;
    let mut second = worker(&host, 1);
    assert!(second.read(0, 65_536));
    second.finish().unwrap();
    assert_eq!(second.errors, []);
    assert_eq!(host.controller.counters().reset_count, 0);
}

#[test]
fn commands_that_are_always_aborted_fail_with_that_status() {
    let mut bench = bench();
    bench.emulated.set_faults(stuck(AbortBehaviour::Works));
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    let [DiskError::Nvme(status)] = bench.errors[..] else {
        panic!("{:?}", bench.errors);
    };
    assert_eq!(status.name(), Some("Command Abort Requested"));
    let attempts = 1 + u64::from(REISSUES_MAX);
    assert_eq!(bench.emulated.counters().aborted, attempts);
}

#[test]
fn commands_that_survive_every_reset_fail_with_a_timeout() {
    let mut bench = bench();
    bench.emulated.set_faults(stuck(AbortBehaviour::NotAborted));
    assert!(bench.read(0, 4096) && bench.write(8192, 4096, 1));
    bench.finish().unwrap();
    let timeout = DiskError::Io(libc::ETIMEDOUT);
    assert_eq!(bench.errors, [timeout, timeout]);
    let resets = 1 + u64::from(REISSUES_MAX);
    assert_eq!(bench.controller.counters().reset_count, resets);
    let error = ControllerError::CommandTimeout { queue_id: 1 };
    assert_eq!(bench.controller.last_error(), Some(error));
    // The service goes on.
    bench.emulated.set_faults(Faults::default());
    bench.errors.clear();
    assert!(bench.read(0, 65_536));
    bench.finish().unwrap();
    assert_eq!(bench.errors, []);
}

#[test]
fn a_controller_that_nothing_stops_keeps_the_slots_it_has() {
    let mut bench = bench();
    bench.emulated.set_faults(Faults {
        stops_refused: u32::MAX,
        is_function_reset_refused: true,
        ..stuck(AbortBehaviour::NotAborted)
    });
    assert!(bench.read(0, 4096));
    bench.submit();
    bench.pass(Duration::from_secs(30));
    let error = ControllerError::StopTimeout;
    assert_eq!(
        bench.controller.poll(bench.now),
        ControllerState::Failed(error)
    );
    assert_eq!(bench.disk.in_flight(), 1, "it may still be written to");
    assert_eq!(bench.disk.next_deadline(), None);
    // Others fail at once.
    assert!(bench.read(4096, 4096));
    bench.submit();
    assert_eq!(bench.consume(8), Ok(1));
    assert_eq!(bench.errors, [DiskError::Io(libc::ENODEV)]);
    assert_eq!(bench.arena.slot_count() - bench.arena.free_count(), 1);
    // Until it completes after all.
    bench.emulated.complete_stuck();
    bench.pass(Duration::from_millis(1));
    bench.check_quiet().unwrap();
    assert_eq!(bench.errors.len(), 1);
}

#[test]
fn a_completion_of_a_controller_that_nothing_stops_is_still_taken() {
    let mut bench = bench();
    bench.emulated.set_faults(Faults {
        latency_min: Duration::from_secs(60),
        latency_max: Duration::from_secs(60),
        stops_refused: u32::MAX,
        is_function_reset_refused: true,
        abort: AbortBehaviour::NotAborted,
        ..Faults::default()
    });
    assert!(bench.read(0, 4096));
    bench.submit();
    bench.pass(Duration::from_secs(61));
    assert_eq!(bench.disk.in_flight(), 0);
    assert_eq!(bench.errors, []);
    bench.check_quiet().unwrap();
}

#[test]
fn a_controller_that_comes_back_after_it_was_gone_is_used_again() {
    let mut bench = bench();
    assert!(bench.read(0, 4096));
    bench.submit();
    // Somebody reset its function: all it knew is gone, and it answers again.
    bench.emulated.set_gone(false);
    bench.finish().unwrap();
    assert_eq!(bench.errors, []);
    assert_eq!(bench.controller.counters().reset_count, 1);
    let error = ControllerError::ResetByOthers;
    assert_eq!(bench.controller.last_error(), Some(error));
}

#[test]
fn a_completion_while_the_controller_stops_is_taken_and_no_doorbell_rung() {
    let mut bench = bench();
    let fetched = bench.emulated.counters().io_commands;
    assert!(bench.read(0, 65_536));
    bench.submit();
    let epoch = bench.controller.snapshot().epoch;
    let now = bench.now;
    bench
        .controller
        .with(|inner| inner.report_stuck(now, epoch, 1));
    bench.now += Duration::from_millis(1);
    bench.emulated.advance(bench.now);
    assert_eq!(bench.emulated.counters().stops, 0, "it has not stopped yet");
    assert_eq!(bench.consume(8), Ok(1));
    bench.finish().unwrap();
    assert_eq!(bench.errors, []);
    assert_eq!(bench.emulated.counters().io_commands, fetched + 1);
    assert!(bench.read(4096, 4096));
    bench.finish().unwrap();
    assert_eq!(bench.emulated.counters().stops, 1);
}

#[test]
fn another_controller_after_a_reset_is_not_used() {
    let mut bench = bench();
    assert!(bench.read(0, 4096));
    bench.submit();
    bench.emulated.resize(1, 1);
    bench.emulated.set_fatal();
    bench.finish().unwrap();
    assert_eq!(bench.errors, [DiskError::Io(libc::ENODEV)]);
    assert_eq!(
        bench.controller.last_error(),
        Some(ControllerError::Changed)
    );
}

/// Two workers with a queue pair each: a reset that one asks for ends nothing of the other's.
#[test]
fn a_reset_by_one_worker_loses_nothing_of_another() {
    let mut host = Host::new(Emulated::new(EmulatedConfig::new(5, 12)), 2).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    let mut workers: Vec<Bench> = (1..=2).map(|id| worker(&host, id)).collect();
    // The first worker's command hangs, the second's are slow.
    for (worker, stuck_chance) in workers.iter_mut().zip([CHANCE_SCALE, 0]) {
        while !worker.disk.poll(worker.now) {
            worker.now += Duration::from_millis(1);
            worker.emulated.advance(worker.now);
        }
        worker.emulated.set_faults(Faults {
            latency_max: Duration::from_secs(7),
            stuck_chance,
            abort: AbortBehaviour::NotAborted,
            ..Faults::default()
        });
        for index in 0..10 {
            assert!(worker.read(index << 20, 65_536));
        }
        worker.submit();
    }
    host.emulated.set_faults(Faults::default());
    let mut now = workers[1].now;
    for second in 0..3000 {
        now += Duration::from_millis(10);
        host.emulated.advance(now);
        for worker in &mut workers {
            worker.now = now;
            // The second sends more all the time.
            if worker.disk.queue_id == 2 && second < 2000 && worker.disk.in_flight() < 16 {
                assert!(worker.read(second << 12, 4096));
                worker.submit();
            }
            worker.consume(usize::MAX).unwrap();
        }
    }
    assert_eq!(host.controller.counters().reset_count, 1);
    for worker in &workers {
        assert_eq!(worker.errors, []);
        worker.check_quiet().unwrap();
    }
}

#[test]
fn a_queue_pair_dropped_with_commands_resets_the_function_and_others_go_on() {
    let mut host = Host::new(Emulated::new(EmulatedConfig::new(5, 12)), 2).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    let mut workers: Vec<Bench> = (1..=2).map(|id| worker(&host, id)).collect();
    for worker in &mut workers {
        assert!(worker.read(0, 65_536));
        worker.finish().unwrap();
    }
    let now = workers.iter().map(|worker| worker.now).max().unwrap();
    host.emulated.set_faults(stuck(AbortBehaviour::NotAborted));
    for worker in &mut workers {
        worker.now = now;
        assert!(worker.read(4096, 65_536));
        worker.submit();
    }
    host.emulated.set_faults(Faults::default());
    let mut last = workers.pop().unwrap();
    let first = workers.pop().unwrap();
    let Bench { disk, arena, .. } = first;
    drop(disk);
    assert_eq!(
        arena.slot_count() - arena.free_count(),
        1,
        "its slot is lost"
    );
    assert_eq!(host.emulated.violations(), [""; 0]);
    last.finish().unwrap();
    assert_eq!(last.errors, []);
    assert_eq!(last.disk.nvme_counters().taken_back_commands, 1);
    let told = crate::Disk::own_counters(&last.disk);
    assert!(told.contains(&("nvme_taken_back_commands", 1)), "{told:?}");
    let error = ControllerError::ResetByOthers;
    assert_eq!(host.controller.last_error(), Some(error));
}

#[test]
fn a_queue_pair_dropped_without_commands_resets_nothing() {
    let mut bench = bench();
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    let Bench {
        disk,
        controller,
        now,
        ..
    } = bench;
    drop(disk);
    assert_eq!(controller.poll(now), ControllerState::Ready);
    assert_eq!(controller.last_error(), None);
}

fn worker(host: &Host, queue_id: u16) -> Bench {
    let mut config = ArenaConfig::new(32);
    config.pages = memory::PageKind::Ordinary;
    let arena = Arena::new(config).unwrap();
    let config = NvmeConfig {
        queue_depth: 16,
        ..NvmeConfig::default()
    };
    let memory = host.emulated.map_memory(memory_bytes(16, &arena));
    let slots = host.emulated.map_slots(&arena);
    let disk = Nvme::new(&host.controller, queue_id, memory, slots, &arena, config).unwrap();
    let mut bench = Bench {
        emulated: host.emulated.clone(),
        controller: host.controller.clone(),
        disk,
        arena,
        now: host.now,
        file: FileIndex(0),
        block_bytes: 4096,
        next_token: 0,
        expected: BTreeMap::new(),
        errors: Vec::new(),
        completed: 0,
        steps: 0,
    };
    bench.file = bench.open(0, 64 << 20).unwrap().0;
    bench
}
