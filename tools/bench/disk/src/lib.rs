//! Measures a disk: how fast, how soon and at what cost `diskmap` reads it, by window and by read
//! size, and what fio gets by the same reads.
//!
//! ```text
//! args -> plan (jobs, interleaved, in rounds) -> measure -> stats -> report
//!                                                  |
//!                                                reader; fio beside
//! ```
//!
//! Two series. *window*: latency percentiles and throughput against the number of reads in flight.
//! *size*: throughput, latency and CPU seconds a GB against the size of a read. Every read is
//! past the page cache, at a random multiple of its size. `diskmap` reads a file or block device by io_uring,
//! `/dev/ng0n1` by NVMe commands, `nvme:ADDRESS` by a queue pair of its own. Other ways to read are fio's
//! engines, one run of fio for each: this crate has none of its own.
//!
//! What thinks (`plan`, `stats`, `report`) does no I/O and reads no clock; `measure`,
//! `reader`, `target` and `fio` do. What the user names is opened for reading only; the one file
//! ever written is the one of `--make`, which must not exist yet. It refuses a file too short for
//! its reads to be different ones, anything that cannot be read past the page cache, and a
//! comparison with fio where there is none. Bounded by: `--seconds` for each measurement, the limits
//! of `plan` for windows and sizes, the memory of one window of reads.
//!
//! With `--json` the [`Report`] is printed as one line; its fields say what they are, and it can be
//! read back.

#![forbid(unsafe_code)]

mod args;
mod fio;
mod measure;
mod plan;
mod reader;
mod report;
mod stats;
mod target;

use std::io::{IsTerminal as _, Write as _, stderr, stdout};

use anyhow::{Context as _, Result};
use load::content::Content;

pub use args::DiskArgs;
pub use fio::Engine;
pub use plan::{Job, Series};
pub use report::{Peer, Report, Row};
pub use stats::{Median, Summary};
pub use target::Backend;

/// What a made file holds: any read can be checked by itself.
const CONTENT: Content = Content::new(0x6174_6c61_7364_6973, u64::MAX);

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
    if !plan.engines.is_empty() {
        fio::check()?;
    }
    if let Some(path) = &args.make {
        target::make(path, args.bytes)?;
    }
    let target = Target::open(args.target()?)?;
    plan.check(target.size_bytes, target.block_bytes)?;
    anyhow::ensure!(
        plan.engines.is_empty() || target.source.backend() == Backend::Uring,
        "--fio: fio reads files and block devices; leave it out for {}",
        target.path.display()
    );
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
        for &engine in &plan.engines {
            let peer = fio::measure(&target.path, engine, &turn.job, plan.time)
                .with_context(|| format!("{} of fio by {}", turn.job, engine.name()))?;
            collected.add_peer(&turn, engine, peer);
        }
    }
    if shows_progress {
        let _ = writeln!(stderr(), "\r{:<80}", "");
    }
    Ok(collected.report(&target, &plan))
}
