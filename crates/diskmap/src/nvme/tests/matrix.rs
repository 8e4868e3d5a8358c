//! Every kind of fault, with both block sizes and several queue depths: data is intact, every accepted
//! command completes once, and all slots come back.

use super::*;

/// What a row of the matrix expects of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// All succeed.
    AllSucceed,
    /// Some fail, with statuses of the controller.
    SomeFail,
    /// All of them fail once it has happened.
    Gone,
}

/// A fault, and what may come of it.
struct Row {
    name: &'static str,
    faults: Faults,
    outcome: Outcome,
    /// Something done to the controller in the middle.
    event: Option<fn(&Emulated)>,
    check: fn(&Bench) -> bool,
}

fn row(name: &'static str, faults: Faults, check: fn(&Bench) -> bool) -> Row {
    Row {
        name,
        faults,
        outcome: Outcome::AllSucceed,
        event: None,
        check,
    }
}

fn forged(bench: &Bench) -> bool {
    bench.emulated.counters().forged > 0 && bench.disk.counters().disk_stale_completions > 0
}

fn was_reset(bench: &Bench) -> bool {
    bench.controller.counters().reset_count > 0 && bench.emulated.counters().stops > 0
}

const OFTEN: u32 = CHANCE_SCALE / 4;
const RARELY: u32 = CHANCE_SCALE / 100;

/// A row for the statuses of one class.
fn status_row(name: &'static str, outcome: Outcome, statuses: Vec<Status>) -> Row {
    let faults = Faults {
        error_chance: CHANCE_SCALE / 20,
        statuses,
        ..Faults::default()
    };
    Row {
        outcome,
        ..row(name, faults, |bench| bench.emulated.counters().failed > 0)
    }
}

fn wrong_completions() -> Vec<Row> {
    let sound = Faults::default();
    vec![
        row("sound", sound.clone(), |_| true),
        row(
            "delayed and reordered",
            Faults {
                latency_min: Duration::from_micros(1),
                latency_max: Duration::from_millis(900),
                ..sound.clone()
            },
            |_| true,
        ),
        row(
            "duplicate",
            Faults {
                duplicate_chance: OFTEN,
                ..sound.clone()
            },
            forged,
        ),
        row(
            "unknown",
            Faults {
                unknown_chance: OFTEN,
                ..sound.clone()
            },
            forged,
        ),
        row(
            "wrong queue",
            Faults {
                wrong_queue_chance: OFTEN,
                ..sound.clone()
            },
            forged,
        ),
        row(
            "wrong head",
            Faults {
                wrong_head_chance: OFTEN,
                ..sound.clone()
            },
            forged,
        ),
        row(
            "old phase",
            Faults {
                old_phase_chance: OFTEN,
                ..sound
            },
            |bench| bench.emulated.counters().forged > 0,
        ),
    ]
}

fn statuses() -> Vec<Row> {
    vec![
        status_row(
            "generic status, to be retried",
            Outcome::AllSucceed,
            [0x04, 0x06, 0x08, 0x82]
                .map(|code| Status::new(0, code, false))
                .to_vec(),
        ),
        status_row(
            "generic status, not to be retried",
            Outcome::SomeFail,
            vec![Status::new(0, 0x02, true), Status::new(0, 0x80, true)],
        ),
        status_row(
            "command specific status",
            Outcome::SomeFail,
            vec![Status::new(1, 0x80, true)],
        ),
        status_row(
            "media error",
            Outcome::SomeFail,
            vec![Status::new(2, 0x81, true), Status::new(2, 0x81, false)],
        ),
        status_row(
            "path error",
            Outcome::AllSucceed,
            vec![Status::new(3, 0x03, false)],
        ),
        status_row(
            "vendor specific status",
            Outcome::SomeFail,
            vec![Status::new(7, 0xff, true)],
        ),
    ]
}

fn stuck(abort: AbortBehaviour) -> Faults {
    Faults {
        stuck_chance: RARELY,
        abort,
        ..Faults::default()
    }
}

fn dead_ends() -> Vec<Row> {
    let reset_row = |name, faults| row(name, faults, was_reset);
    vec![
        row("stuck, aborted", stuck(AbortBehaviour::Works), |bench| {
            bench.emulated.counters().aborted > 0 && bench.controller.counters().reset_count == 0
        }),
        reset_row("stuck, not aborted", stuck(AbortBehaviour::NotAborted)),
        reset_row("stuck, Abort fails", stuck(AbortBehaviour::Fails)),
        reset_row("stuck, Abort stuck", stuck(AbortBehaviour::NeverCompletes)),
        reset_row(
            "stuck, stops when asked again",
            Faults {
                stops_refused: STOP_ATTEMPTS_MAX - 1,
                ..stuck(AbortBehaviour::NotAborted)
            },
        ),
        row(
            "stuck, stops by a function reset",
            Faults {
                stops_refused: STOP_ATTEMPTS_MAX,
                ..stuck(AbortBehaviour::NotAborted)
            },
            |bench| bench.controller.counters().function_reset_count == 1,
        ),
        Row {
            event: Some(Emulated::set_fatal),
            ..reset_row("fatal status", Faults::default())
        },
        Row {
            event: Some(|emulated| emulated.set_gone(true)),
            outcome: Outcome::Gone,
            ..row("gone", Faults::default(), |bench| {
                bench.controller.last_error() == Some(ControllerError::Gone)
            })
        },
    ]
}

fn rows() -> Vec<Row> {
    let mut rows = wrong_completions();
    rows.extend(statuses());
    rows.extend(dead_ends());
    rows
}

/// Depth of the queue, commands in flight, commands in all.
const LOADS: [(u16, usize, u64); 3] = [(4, 2, 300), (64, 64, 900), (3, 3, 2000)];

/// Bytes of a block, as a power of two, and SGLS: blocks of both sizes, without SGLs and with either kind.
const KINDS: [(u8, u32); 4] = [(9, 0), (12, 0), (9, 0b10), (12, 0b01)];

/// Runs a row; an error says what is wrong.
fn run(
    row: &Row,
    (block_shift, sgls): (u8, u32),
    load: (u16, usize, u64),
    canary: Canary,
) -> Result<(), String> {
    let (queue_depth, in_flight_max, commands) = load;
    let config = EmulatedConfig {
        // Parts of 16 KiB, and rings that wrap around often.
        transfer_shift: 2,
        queue_entries_max: 128,
        sgls,
        ..EmulatedConfig::new(u64::from(block_shift) + commands, block_shift)
    };
    let disk = NvmeConfig {
        queue_depth,
        ..NvmeConfig::default()
    };
    let mut bench = Bench::with_canary(config, disk, canary);
    bench.emulated.set_faults(row.faults.clone());
    let blocks = 65_536 / bench.block_bytes;
    while bench.next_token < commands {
        while bench.disk.in_flight() < in_flight_max && bench.next_token < commands {
            let token = bench.next_token;
            let number = u32::try_from(token * 7 % 13).unwrap();
            let length_bytes = (1 + number * 5 % blocks) * bench.block_bytes;
            // Each write has 64 KiB of its own; reads are of the other half.
            let accepted = if number == 3 {
                let byte = u8::try_from(token % 251).unwrap();
                bench.write((32 << 20) + token % 512 * 65_536, length_bytes, byte)
            } else {
                bench.read(token * 37 % 8000 * 4096, length_bytes)
            };
            assert!(accepted, "the depth allows it");
        }
        bench.submit();
        if bench.next_token == commands
            && let Some(event) = row.event
        {
            event(&bench.emulated);
        }
        if !bench.step() {
            return Err(String::from("nothing happens any more"));
        }
        bench.consume(usize::MAX)?;
    }
    bench.finish()?;
    let by_descriptor = bench.emulated.counters().sgl_commands;
    if (by_descriptor > 0) != (sgls != 0) {
        return Err(format!("SGLS {sgls}, and {by_descriptor} descriptors"));
    }
    check_outcome(&bench, row, commands)
}

fn check_outcome(bench: &Bench, row: &Row, commands: u64) -> Result<(), String> {
    if bench.completed != commands {
        return Err(format!("{} of {commands} completed", bench.completed));
    }
    let errors = &bench.errors;
    let is_right = match row.outcome {
        Outcome::AllSucceed => errors.is_empty(),
        Outcome::SomeFail => {
            !errors.is_empty()
                && errors.len() as u64 * 2 < commands
                && errors
                    .iter()
                    .all(|error| matches!(error, DiskError::Nvme(_)))
        }
        Outcome::Gone => {
            !errors.is_empty() && errors.iter().all(|it| *it == DiskError::Io(libc::ENODEV))
        }
    };
    if !is_right {
        return Err(format!("{:?}, and {errors:?}", row.outcome));
    }
    if !(row.check)(bench) {
        return Err(format!(
            "the fault did not happen: {:?}, {:?}",
            bench.emulated.counters(),
            bench.controller.counters()
        ));
    }
    Ok(())
}

#[test]
fn every_fault_leaves_data_intact_and_loses_nothing() {
    for row in rows() {
        for kind in KINDS {
            for load in LOADS {
                if let Err(text) = run(&row, kind, load, Canary::default()) {
                    panic!("{}, {kind:?}, {load:?}: {text}", row.name);
                }
            }
        }
    }
}

#[test]
fn every_fault_of_the_driver_is_found() {
    for fault in [
        Fault::PhaseIgnored,
        Fault::GenerationIgnored,
        Fault::TakenBackEarly,
        Fault::ListShifted,
        Fault::DescriptorLong,
        Fault::NotReissued,
        Fault::DoorbellBeforeFence,
    ] {
        let canary = Canary { fault: Some(fault) };
        let found = rows().iter().any(|row| {
            let sgls = u32::from(fault == Fault::DescriptorLong);
            let run = || run(row, (12, sgls), LOADS[1], canary);
            // An assertion of the driver or of the arena finds it as well.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            if let Ok(Err(text)) = &outcome {
                println!("{fault:?}: found by {:?}: {text}", row.name);
            }
            !matches!(outcome, Ok(Ok(())))
        });
        assert!(found, "{fault:?} was not found");
    }
}
