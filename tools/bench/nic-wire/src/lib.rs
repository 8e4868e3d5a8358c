//! A link as a server with a NIC sees it, and thousands of TCP clients at its other end.
//!
//! On a veth pair the server's core runs the client's TCP, `sendfile` lends its pages to the client
//! for nothing, and the client's core is full before the server's: neither what a server costs nor
//! what a change saves can be read off. Here the server's frames, up to 64 KiB, go to a TAP, where a
//! BPF program shortens them to their headers and frees the rest, as a NIC does after DMA.
//! Behind it one thread plays all clients from headers alone.
//!
//! ```text
//!  server's core                     |  clients' core
//!  TCP -> qdisc -> TAP: filter ------|--> tap -> frame -> impair -> client -> schedule
//!  TCP <- softirq (RPS) <------------|--- tap <- frame <-------------------------+
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`client`] | one connection: segments and moments in, segments out; TLS |
//! | [`schedule`] | what is due when: each connection's distance |
//! | [`frame`] | addresses and ports, frames that are not whole |
//! | [`filter`] | the BPF programs: frames shortened, TLS records followed |
//! | [`impair`] | loss |
//! | [`paths`] | what is asked |
//! | [`tally`] | what each connection got: warm-up, fairness |
//! | [`visits`] | clients that come at a rate and go |
//! | [`report`] | what a run counted |
//!
//! and, not public, the command line, the TAP, its system calls, the memory shared with the BPF program,
//! when connections ask, and the loop.
//!
//! It refuses to call a run valid in which a frame was lost between the server and the clients, or
//! a reply was wrong. It does not model: a NIC's descriptor rings and doorbells, receive interrupts
//! (they are inter-processor interrupts of RPS here), a rate (the link is as fast as the server), full
//! receive windows, delayed acknowledgments. Bounds: [`CONNECTIONS_MAX`] connections of 112 bytes each,
//! 320 over TLS, 16 beside them for what they got, 24 for what the program knows of them, and 456 for the first bytes of a reply of
//! each of the first 16,384; [`tap::QUEUE_FRAMES`] frames that wait.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail there"))]

pub mod client;
pub mod filter;
pub mod frame;
pub mod impair;
pub mod paths;
pub mod report;
pub mod schedule;

mod args;
mod engine;
mod pace;
mod samples;
pub mod sink;
mod sys;
pub mod tally;
pub mod tap;
pub mod visits;
mod watches;
mod world;

use std::io::Write as _;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, ensure};
use clock::Duration;
use rustix::thread::{CpuSet, sched_setaffinity};

pub use args::{CONNECTIONS_MAX, WireArgs};
pub use report::Report;

use engine::{Engine, Plan};
use impair::Impairments;
use tap::Tap;
use watches::Watches;

/// Makes the link, plays the clients, prints the report.
///
/// An interrupt ends the run with the report so far; a second one ends the process.
///
/// # Errors
/// What cannot be done; after the report, that the run is void.
pub fn run(args: &WireArgs) -> Result<()> {
    let is_stopped = testbed::interrupt::stop_at_signal()?;
    let report = run_until(args, &is_stopped, || {
        // Nobody reading it is no reason to stop.
        let _ = writeln!(std::io::stderr(), "ready {}", args.interface);
    })?;
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, &report).context("writing the report")?;
    writeln!(stdout).context("writing the report")?;
    ensure!(report.is_valid, "the run is void: see the report");
    Ok(())
}

/// The same with its end and its beginning in the caller's hands; `on_ready` is called when the
/// interface is there. All happens in the calling thread and its network namespace.
///
/// # Errors
/// What cannot be done; a server that does not come up.
pub fn run_until(
    args: &WireArgs,
    is_stopped: &AtomicBool,
    on_ready: impl FnOnce(),
) -> Result<Report> {
    let plan = Plan {
        addresses: args.addresses()?,
        paths: args.paths()?,
        whole: args.compare_one_in,
        impairments: Impairments::new(args.loss, args.seed),
        distances: args.distances(),
        mtu: args.mtu,
        warm_up: Duration::from_secs(args.warm_up),
        warm_up_work: args.warm_up_work(),
        window: Duration::from_secs(args.seconds),
        every: args.every,
        visits_per_second: args.visits,
        patience: Duration::from_secs(args.patience),
        seed: args.seed,
        tls: args.tls_client()?,
        server_core: args.server_core,
    };
    let addresses = plan.addresses;
    let watches = Watches::new(addresses.unsampled, addresses.sampled);
    let watches = watches.context("making BPF arrays and mapping them")?;
    let watching = watches.watching(addresses.client.to_bits());
    let program = match &plan.tls {
        None => filter::plain::program(&watching, plan.whole),
        Some(_) => filter::records::program(&watching),
    };
    let tap = Tap::open(&args.interface, &args.host_address, &program)?;
    if let Some(core) = args.server_core {
        tap.steer_to(core)?;
    }
    if let Some(core) = args.core {
        let mut cores = CpuSet::new();
        ensure!(core < CpuSet::MAX_CPU, "--core: no core {core}");
        cores.set(core);
        sched_setaffinity(None, &cores).with_context(|| format!("moving to core {core}"))?;
    }
    let mut engine = Engine::new(tap, plan, watches)?;
    on_ready();
    engine.run(is_stopped)
}
