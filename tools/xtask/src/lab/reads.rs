//! `cargo xtask lab --disk count`: how many instructions of the process a read takes through the kernel's NVMe
//! driver, by passthrough and, beside it, by `io_uring` from the block device.
//!
//! Passthrough needs an NVMe controller that the kernel's driver has, and few machines have one: so the
//! example `read_cost` of `diskmap` runs under callgrind in the guest of `--disk nvme`. Instructions of the process
//! are counted, and not time, so the guest may be emulated; rows of the guest are to be compared with each other
//! only (decision 28). It refuses runs that have looked for completions in vain, whose counts would
//! depend on the disk's speed. Bounded by [`COUNTS`] and a limit on every command.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::disks::{self, DISKS, Trial};
use super::parts::Parts;
use testbed::packages::CALLGRIND;

/// Sizes of reads, KiB.
const SIZES_KIB: [u32; 4] = [4, 16, 64, 128];

/// Reads in flight, and how many of them are read in the shorter run of two.
const COUNTS: [(u32, u64); 2] = [(1, 50), (32, 320)];

/// How often a run is tried that a busy machine has disturbed.
const ATTEMPTS_MAX: u32 = 3;

/// What counts: the verbs of a disk (decision 28). There is no launcher, which the variable is for.
const COUNT: &str = "VALGRIND_LAUNCHER=/bin/callgrind callgrind --tool=callgrind --vgdb=no --collect-atstart=no \
                     --callgrind-out-file=/dev/null --toggle-collect='*counted_*' --toggle-collect='*platform_*' \
                     /bin/read_cost";

/// Counts, and prints the rows of decision 28's table.
pub(super) fn run(parts: &Parts, (lab, scratch): (&Path, &Path), example: &Path) -> Result<()> {
    let programs = [("read_cost", example), ("callgrind", Path::new(CALLGRIND))];
    let mut trial = disks::boot(parts, (&lab.join("count.log"), scratch), &programs)?;
    // The disk whose commands may have the largest size, so that no read is in parts.
    let [_, disk] = DISKS;
    let sizes = SIZES_KIB.map(|size| format!(" {size} KiB |")).concat();
    println!("| | batch |{sizes}");
    for reader in [
        format!("uring {}", disk.file("nvme")),
        format!("passthru {}", disk.file("ng")),
    ] {
        for (batch, reads) in COUNTS {
            let mut row = String::new();
            for size in SIZES_KIB {
                let run = format!("{reader} {size}K {batch}");
                let mut collect = |reads| collected(&mut trial, &run, batch, reads);
                let each = collect(2 * reads)?.saturating_sub(collect(reads)?) / reads;
                row += &format!(" {each} |");
            }
            let (name, _) = reader.split_once(' ').unwrap_or_default();
            println!("| `{name}` | {batch} |{row}");
        }
    }
    trial.refuse_complaints()?;
    trial.end()
}

/// The instructions of a run of `reads` reads.
fn collected(trial: &mut Trial, run: &str, batch: u32, reads: u64) -> Result<u64> {
    let looks = format!("in {} looks", reads.div_ceil(batch.into()));
    for _ in 0..ATTEMPTS_MAX {
        let said = trial.succeed(&format!("{COUNT} {run} {reads}"))?;
        if said.contains(&looks) {
            let collected = collected_in(&said);
            return collected.with_context(|| format!("callgrind says {}", said.trim()));
        }
        println!("        once more, for a busy machine: {run} {reads}");
    }
    bail!("{run}: in {ATTEMPTS_MAX} runs the disk was slower than the example waits")
}

/// The number that callgrind ends with: `==7== Collected : 123`.
fn collected_in(text: &str) -> Option<u64> {
    let (_, number) = text.lines().find_map(|it| it.split_once("Collected : "))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::collected_in;

    #[test]
    fn the_number_is_callgrind_s() {
        let text = "4 reads\n==7== Events    : Ir\n==7== Collected : 1234\n==7==\n";
        assert_eq!(collected_in(text), Some(1234));
        assert_eq!(collected_in("==7== Events    : Ir\n"), None);
    }
}
