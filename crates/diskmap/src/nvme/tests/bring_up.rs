//! Starts, refusals and shutdowns.

use super::emulated::EmulatedNamespace;
use super::*;

fn emulated() -> Emulated {
    Emulated::new(EmulatedConfig::new(1, 12))
}

fn with_faults(faults: Faults) -> Emulated {
    let emulated = emulated();
    emulated.set_faults(faults);
    emulated
}

fn settle(emulated: Emulated) -> ControllerState {
    let mut host = Host::new(emulated, 1).expect("registers that fit");
    let state = host.settle();
    assert_eq!(host.emulated.violations(), [""; 0]);
    state
}

#[test]
fn a_controller_tells_who_it_is() {
    let config = EmulatedConfig {
        queue_pairs: 3,
        ..EmulatedConfig::new(1, 9)
    };
    let mut host = Host::new(Emulated::new(config), 5).unwrap();
    assert_eq!(host.controller.identity(), None);
    assert_eq!(host.settle(), ControllerState::Ready);
    let identity = host.controller.identity().unwrap();
    assert_eq!(identity.model_number, "Atlas emulated controller");
    assert_eq!(identity.transfer_bytes_max, Some(65_536));
    assert_eq!(host.controller.queue_pairs(), 3, "five were asked for");
    let [namespace] = host.controller.namespaces()[..] else {
        panic!("one namespace");
    };
    assert_eq!(namespace.id, 1);
    assert_eq!(namespace.format.unwrap().size_bytes(), 64 << 20);
    assert_eq!(host.emulated.violations(), [""; 0]);
}

#[test]
fn queue_pairs_on_both_sides_of_their_limit() {
    for count in [0, QUEUE_PAIRS_MAX + 1] {
        let refused = Host::new(emulated(), count).err();
        assert_eq!(refused, Some(ControllerError::QueuePairs(count)));
    }
    for count in [1, QUEUE_PAIRS_MAX] {
        assert!(Host::new(emulated(), count).is_ok());
    }
}

#[test]
fn impossible_registers_are_refused() {
    let sound = 127 | 2 << 24 | 1 << 37;
    let refuse = |capabilities: u64, version: u32| {
        let config = EmulatedConfig {
            capabilities: Some(capabilities),
            version,
            ..EmulatedConfig::new(1, 9)
        };
        match Host::new(Emulated::new(config), 1).err() {
            Some(ControllerError::Capability(error)) => Some(error),
            other => panic!("{other:?}"),
        }
    };
    let expected = CapabilityError::CommandSet;
    assert_eq!(refuse(0, 0x1_0400), Some(expected));
    let pages = refuse(sound | 4 << 48, 0x1_0400);
    assert_eq!(pages, Some(CapabilityError::PageSize(16)));
    let old = refuse(sound, 0x1_0000);
    assert_eq!(old, Some(CapabilityError::Version(0x1_0000)));
}

#[test]
fn a_controller_that_is_gone_is_refused() {
    let emulated = emulated();
    emulated.set_gone(true);
    let refused = Host::new(emulated, 1).err();
    assert_eq!(refused, Some(ControllerError::Gone));
}

#[test]
fn too_little_memory_is_refused() {
    let emulated = emulated();
    let memory = emulated.map_memory(ADMIN_MEMORY_BYTES - 1);
    let refused = Controller::new(emulated.registers(), memory, 1, Instant::ZERO).err();
    let expected = ControllerError::Memory {
        needed_bytes: ADMIN_MEMORY_BYTES,
        given_bytes: ADMIN_MEMORY_BYTES - 1,
    };
    assert_eq!(refused, Some(expected));
}

#[test]
fn a_controller_that_runs_is_stopped_first() {
    let emulated = emulated();
    let mut before = Host::new(emulated.clone(), 1).unwrap();
    assert_eq!(before.settle(), ControllerState::Ready);
    // Its driver died.
    let mut after = Host::new(emulated, 1).unwrap();
    after.now = before.now;
    assert_eq!(after.settle(), ControllerState::Ready);
    assert_eq!(after.emulated.counters().stops, 1);
    assert_eq!(after.emulated.violations(), [""; 0]);
}

#[test]
fn a_controller_that_never_starts_is_given_up() {
    let state = settle(with_faults(Faults {
        starts_ignored: u32::MAX,
        ..Faults::default()
    }));
    let expected = ControllerState::Failed(ControllerError::StartTimeout);
    assert_eq!(state, expected);
}

#[test]
fn a_controller_that_never_answers_is_given_up() {
    let state = settle(with_faults(Faults {
        admin_stuck_chance: CHANCE_SCALE,
        ..Faults::default()
    }));
    let error = ControllerError::AdminTimeout(AdminCommand::IdentifyController);
    assert_eq!(state, ControllerState::Failed(error));
}

#[test]
fn a_controller_that_refuses_to_identify_is_given_up() {
    let status = Status::new(0, 1, true);
    let state = settle(with_faults(Faults {
        admin_error_chance: CHANCE_SCALE,
        statuses: vec![status],
        ..Faults::default()
    }));
    let error = ControllerError::Admin {
        command: AdminCommand::IdentifyController,
        status,
    };
    assert_eq!(state, ControllerState::Failed(error));
    let text = error.to_string();
    assert!(
        text.ends_with("Invalid Command Opcode (SCT 0h, SC 01h)"),
        "{text}"
    );
}

#[test]
fn a_controller_that_starts_at_the_last_attempt_is_used() {
    for (starts_ignored, is_used) in [(STARTS_MAX - 1, true), (STARTS_MAX, false)] {
        let state = settle(with_faults(Faults {
            starts_ignored,
            ..Faults::default()
        }));
        assert_eq!(state == ControllerState::Ready, is_used, "{state:?}");
    }
}

#[test]
fn garbage_in_identify_is_a_verdict() {
    let mut refused = 0;
    for seed in 0..200 {
        let emulated = Emulated::new(EmulatedConfig::new(seed, 9));
        emulated.set_faults(Faults {
            identify_garbage_chance: CHANCE_SCALE,
            ..Faults::default()
        });
        let mut host = Host::new(emulated, 1).unwrap();
        match host.settle() {
            ControllerState::Ready => {}
            ControllerState::Failed(ControllerError::Identify(_)) => refused += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(host.emulated.violations(), [""; 0]);
    }
    assert!(refused > 0, "nothing was garbled that matters");
}

#[test]
fn namespaces_that_cannot_be_opened_say_why() {
    let namespace = |id, block_shift, metadata_bytes| EmulatedNamespace {
        id,
        block_shift,
        block_count: 1000,
        metadata_bytes,
        seed: 1,
    };
    let config = EmulatedConfig {
        namespaces: vec![namespace(1, 9, 8), namespace(3, 13, 0), namespace(9, 12, 0)],
        ..EmulatedConfig::new(1, 9)
    };
    let mut host = Host::new(Emulated::new(config), 1).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    let [metadata, blocks, sound] = host.controller.namespaces()[..] else {
        panic!("three namespaces");
    };
    let refusal = |error: IdentifyError| Err(NamespaceError::Format(error));
    assert_eq!(metadata.format, refusal(IdentifyError::Metadata(8)));
    assert_eq!(blocks.format, refusal(IdentifyError::BlockSize(13)));
    assert_eq!((sound.id, sound.format.is_ok()), (9, true));
}

#[test]
fn a_queue_pair_is_made_while_another_thread_uses_the_controller() {
    let mut host = Host::new(emulated(), 1).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    let mut arena_config = ArenaConfig::new(1);
    arena_config.pages = memory::PageKind::Ordinary;
    let arena = Arena::new(arena_config).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                // Pending, if the lock is not to be had.
                host.controller.poll(host.now);
            }
        });
        let config = NvmeConfig {
            queue_depth: 1,
            files_max: 1,
            ..NvmeConfig::default()
        };
        let made = (0..500).map(|_| {
            let memory = host.emulated.map_memory(memory_bytes(1, &arena));
            let slots = host.emulated.map_slots(&arena);
            Nvme::new(&host.controller, 1, memory, slots, &arena, config).map(drop)
        });
        let outcome: Result<Vec<()>, NvmeError> = made.collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.expect("it may be waited for");
    });
}

#[test]
fn a_shutdown_deletes_queues_notifies_and_stops() {
    let mut bench = Bench::new(EmulatedConfig::new(1, 12), NvmeConfig::default());
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    bench.controller.begin_shutdown(bench.now);
    let mut state = ControllerState::Pending;
    for _ in 0..100 {
        bench.now += Duration::from_millis(1);
        bench.emulated.advance(bench.now);
        state = bench.controller.poll(bench.now);
    }
    assert_eq!(state, ControllerState::ShutDown);
    assert_eq!(bench.controller.counters().reset_count, 0);
    assert_eq!(bench.emulated.counters().stops, 1);
    // What comes now fails.
    assert!(bench.read(0, 4096));
    bench.finish().unwrap();
    assert_eq!(bench.errors, [DiskError::Io(libc::ENODEV)]);
}

#[test]
fn a_shutdown_may_come_at_any_time() {
    for steps in 0..40 {
        let mut host = Host::new(emulated(), 1).unwrap();
        for _ in 0..steps {
            host.controller.poll(host.now);
            host.wait(Duration::from_micros(200));
        }
        host.controller.begin_shutdown(host.now);
        assert_eq!(host.settle(), ControllerState::ShutDown);
        assert_eq!(host.emulated.violations(), [""; 0]);
    }
}

#[test]
fn a_fault_during_a_shutdown_starts_nothing_again() {
    let mut host = Host::new(emulated(), 1).unwrap();
    assert_eq!(host.settle(), ControllerState::Ready);
    host.controller.begin_shutdown(host.now);
    host.emulated.set_fatal();
    assert_eq!(host.settle(), ControllerState::ShutDown);
}

/// Found by fuzzing: CSTS.RDY was 0 already, so the admin queues were written while CC.EN was 1.
#[test]
fn a_start_that_failed_and_cannot_be_ended_at_once_is_not_configured_anew() {
    let state = settle(with_faults(Faults {
        starts_ignored: 1,
        stops_refused: 1,
        ..Faults::default()
    }));
    assert_eq!(state, ControllerState::Ready);
}
