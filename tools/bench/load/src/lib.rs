//! Clients over TLS 1.3 from one thread, with the kernel's TCP: streams, or handshakes that arrive at a rate.
//!
//! ```text
//! engine (epoll) -> connection -> handshake (rustls) -> sealed (records) -> reply -> stats -> report
//!                      socket: recv with MSG_TRUNC, nothing is copied
//! ```
//!
//! The client is to be far cheaper than any server it measures: bodies are thrown away inside the
//! kernel after a look at each record's header, and between two sweeps over its connections it
//! sleeps, since a client woken by each segment slows a server on the same machine.
//!
//! It refuses what it cannot count: replies without a `Content-Length`, another version or suite.
//! Bounded by: the connections and URLs of the command line, some hundred bytes each; one buffer
//! for all reads.

mod args;
mod connection;
mod engine;
mod fault;
mod handshake;
mod reply;
mod sealed;
mod socket;
mod stats;
#[cfg(test)]
mod tests;

use std::io::{Write as _, stdout};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, ensure};

pub use args::LoadArgs;
pub use stats::{Ending, Report};

use args::Plan;
use engine::Engine;

/// Bytes of a record's header: type, version, length (RFC 8446 s5.1).
const HEADER_BYTES: usize = 5;

/// Most bytes of content in a record (RFC 8446 s5.1).
const CONTENT_BYTES_MAX: usize = 1 << 14;

/// Runs the load and prints the report.
///
/// An interrupt ends the run with the report so far; a second one ends the process.
///
/// # Errors
/// What cannot be done; after the report, that a reply was wrong or that none came.
pub fn run(args: &LoadArgs) -> Result<()> {
    let is_stopped = testbed::interrupt::stop_at_signal()?;
    let report = measure(args, &is_stopped)?;
    let text = serde_json::to_string_pretty(&report)? + "\n";
    stdout()
        .write_all(text.as_bytes())
        .context("printing the report")?;
    report.check()
}

/// Runs the load until its time is over or `is_stopped` is set, and prints nothing.
///
/// # Errors
/// What cannot be done. Wrong replies are in the report: see [`Report::check`].
pub fn measure(args: &LoadArgs, is_stopped: &AtomicBool) -> Result<Report> {
    let plan = Plan::new(args)?;
    socket::raise_descriptor_limit(plan.connections)?;
    Engine::new(&plan)?.run(is_stopped)
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
