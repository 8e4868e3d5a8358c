//! Prints how many accesses to lines the model does in a second of processor time:
//! `cargo run --release -p atlas-llc --example speed`.

#![expect(clippy::print_stdout, reason = "an example speaks to its terminal")]

use std::fs;

use llc::layout::Layout;
use llc::machine::Machine;
use llc::replay::Replay;
use llc::trace::{Event, Touch};

const SLOTS: u32 = 512;
const SLOT_BYTES: u32 = 60 << 10;
const ROUNDS: u32 = 30;

fn main() {
    for machine in [
        Machine::haswell(2),
        Machine::intel_victim(2),
        Machine::amd(),
    ] {
        let mut replay = Replay::new(machine, Layout::LENT, 1);
        let started = processor_ns();
        for turn in 0..SLOTS * ROUNDS {
            // The disk is a hundred slots ahead of the processor, and that is as far ahead of the NIC.
            let touches = [
                (200, Touch::DiskWrite),
                (100, Touch::Seal),
                (0, Touch::NicRead),
            ];
            for (ahead, touch) in touches {
                replay.take(&Event {
                    at_ns: 0,
                    worker: 0,
                    touch,
                    slot: (turn + ahead) % SLOTS,
                    offset_bytes: 0,
                    bytes: SLOT_BYTES,
                });
            }
        }
        let accesses = f64::from(SLOTS * ROUNDS * 3 * (SLOT_BYTES / 64));
        let rate = accesses * 1e3 / (processor_ns() - started);
        let report = replay.report(u64::from(SLOTS * ROUNDS) * u64::from(SLOT_BYTES));
        println!(
            "{}: {rate:.0} M accesses/s (read {:.2}, written {:.2})",
            machine.name, report.read, report.written
        );
    }
}

/// Time that this process has had a processor, so that others on the machine count less.
fn processor_ns() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").expect("Linux tells it");
    let first = text.split(' ').next().expect("it has three numbers");
    first.parse().expect("they are numbers")
}
