//! The load generator: thousands of long-lived connections from one thread.
//!
//! ```text
//! urls -> schedule -> engine (epoll) -> channel -> reply -> stats -> report
//!                        |              plain, or TLS records
//!                     socket: recv with MSG_TRUNC, nothing is copied
//! ```
//!
//! What thinks (`urls`, `schedule`, `channel`, `reply`, `tls`, `stats`) does no I/O
//! and reads no clock; `engine` and `socket` do. The client is to be far cheaper than any
//! server it measures: bodies are thrown away inside the kernel, over TLS after a look at each
//! record's header, and between two sweeps over its connections it sleeps, since a client woken by
//! each segment slows a server on the same machine.
//!
//! It refuses what it cannot count: replies without a `Content-Length`, HTTP/2, renegotiation.
//! Bounded by: the connections and URLs of the command line, some hundred bytes each; one buffer
//! for all reads.
//!
//! With `--json` the [`Report`] is printed as one line on standard output; its fields say what
//! they are.

mod args;
mod channel;
pub mod content;
pub mod cores;
mod engine;
mod fault;
pub mod random;
mod reply;
mod schedule;
mod socket;
mod stats;
mod tls;
mod urls;

use std::io::{IsTerminal as _, Write as _, stderr, stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

pub use args::{Close, LoadArgs};
pub use stats::{Ending, Latencies, Latency, LatencySummary, Report, SCHEMA};
pub use tls::{Agreed, ClientOptions, Kind, Suite, Version, client_config};

use args::Plan;
use engine::Engine;

/// Runs the load, shows progress, prints the report.
///
/// An interrupt ends the run with the report so far; a second one ends the process.
///
/// # Errors
/// What cannot be done; after the report, that a reply was wrong or that none came.
pub fn run(args: &LoadArgs) -> Result<()> {
    let is_stopped = stop_at_signal()?;
    let report = measure(args, &is_stopped)?;
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        report.text()
    };
    stdout()
        .write_all(text.as_bytes())
        .context("printing the report")?;
    report.check()
}

/// A flag that SIGINT and SIGTERM set; a second one ends the process.
///
/// # Errors
/// What the kernel refuses.
pub fn stop_at_signal() -> Result<Arc<AtomicBool>> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag set.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_stopped))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&is_stopped)))
            .context("listening for interrupts")?;
    }
    Ok(is_stopped)
}

/// Runs the load until it is done or `is_stopped` is set, and prints nothing but progress.
///
/// # Errors
/// What cannot be done. Wrong replies are in the report: see [`Report::check`].
pub fn measure(args: &LoadArgs, is_stopped: &AtomicBool) -> Result<Report> {
    let plan = Plan::new(args)?;
    socket::raise_descriptor_limit(plan.connections, plan.verification.is_some())?;
    let shows_progress = args.progress || stderr().is_terminal();
    let mut engine = Engine::new(&plan)?;
    engine.run(is_stopped, |line| {
        if shows_progress {
            // Nobody may be looking any more: that is no reason to end.
            let _ = writeln!(stderr(), "{line}");
        }
    })
}

impl Report {
    /// Refuses a run that met wrong replies, or none at all.
    ///
    /// # Errors
    /// How many were wrong, and the first of them.
    pub fn check(&self) -> Result<()> {
        let first = self.first_errors.first().map_or("", String::as_str);
        ensure!(
            self.wrong_replies == 0,
            "{} wrong replies; the first: {first}",
            self.wrong_replies
        );
        ensure!(
            self.replies > 0 || self.body_bytes > 0,
            "no reply came; {first}"
        );
        Ok(())
    }
}
