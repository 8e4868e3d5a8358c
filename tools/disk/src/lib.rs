//! Measures a disk: how fast, how soon and at what cost it is read, by window, by read size and by
//! way to read.
//!
//! ```text
//! args -> plan (jobs, interleaved, in rounds) -> measure -> stats -> report
//!                                                  |
//!                            backends: diskmap, uring, aio, pread;  fio beside
//! ```
//!
//! Two series. *window*: latency percentiles and throughput of `diskmap` against the number of
//! reads in flight. *size*: throughput, latency and CPU seconds a GB of each way to read against
//! the size of a read. Every read is `O_DIRECT`, at a random multiple of its size.
//!
//! What thinks (`plan`, `content`, `stats`, `report`) does no I/O and reads no clock; `measure`,
//! `backends`, `target` and `fio` do. What the user names is opened for reading only; the one file
//! ever written is the one of `--make`, which must not exist yet. It refuses a file too short for
//! its reads to be different ones, and anything that cannot be read past the page cache. Bounded
//! by: `--seconds` for each measurement, the limits of `plan` for windows and sizes, the memory
//! of one window of reads.
//!
//! With `--json` the [`Report`] is printed as one line; its fields say what they are, and it can be
//! read back.

mod args;
mod backends;
mod content;
mod fio;
mod measure;
mod plan;
mod report;
mod stats;
mod target;

use std::io::{IsTerminal as _, Write as _, stderr, stdout};

use anyhow::{Context as _, Result};

pub use args::DiskArgs;
pub use plan::{BackendKind, Job, Series};
pub use report::{Peer, Report, Row};
pub use stats::{Median, Summary};

use plan::Plan;
use target::Target;

/// Measures, shows progress, prints the report.
///
/// # Errors
/// What cannot be opened, read or measured, and what to do.
pub fn run(args: &DiskArgs) -> Result<()> {
    let report = measure(args)?;
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        report.text()
    };
    stdout()
        .write_all(text.as_bytes())
        .context("printing the report")
}

/// Measures, and prints nothing but progress.
///
/// # Errors
/// What cannot be opened, read or measured, and what to do.
pub fn measure(args: &DiskArgs) -> Result<Report> {
    let plan = Plan::new(args)?;
    if let Some(path) = &args.make {
        target::make(path, args.bytes)?;
    }
    let target = Target::open(args.target()?)?;
    plan.check(target.size_bytes, target.block_bytes)?;
    if args.fio {
        fio::check()?;
    }
    let mut collected = report::Collected::new(&plan);
    let shows_progress = args.progress || stderr().is_terminal();
    for (done, turn) in plan.turns().enumerate() {
        if shows_progress {
            // Nobody may be looking any more: that is no reason to end.
            let _ = write!(
                stderr(),
                "\r{done} of {} {:<60}",
                plan.turn_count(),
                turn.job
            );
        }
        let sample = measure::measure(&target, &turn, &plan)
            .with_context(|| format!("measuring {}", turn.job))?;
        collected.add(&turn, sample);
        if args.fio {
            let peer = fio::measure(&target.path, &turn.job, plan.time)
                .with_context(|| format!("fio beside {}", turn.job))?;
            collected.add_peer(&turn, peer);
        }
    }
    if shows_progress {
        let _ = writeln!(stderr(), "\r{:<80}", "");
    }
    Ok(collected.report(&target, &plan))
}
