//! What `cargo xtask bench` does: Atlas and its rivals do the same work, side by side, on one core.
//!
//! The server runs on one core (`SERVER_CORE`), the clients and the copying of the bench disk on
//! another (`CLIENT_CORE`). Servers take turns, round after round; medians are reported. It refuses to
//! count a turn in which a reply or a byte of the sample is wrong. Bounded by: a deadline for each
//! turn.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool speaks to its terminal"
)]

mod binaries;
mod figures;
mod handshakes;
mod lab;
mod ledger;
mod page;
mod paths;
mod statistics;
mod stored;
mod tls;
mod wire;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use testbed::is_root;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Throughput, cost, delays: Atlas beside nginx, h2o, lighttpd and Apache Traffic Server
    /// (needs root)
    Figures(Box<figures::FiguresOptions>),
    /// Makes the page of stored results, and its plots, in seconds
    Report(ReportOptions),
    /// TLS 1.3 handshakes at rates, beside streams at full speed (needs root)
    Handshakes(handshakes::HandshakesOptions),
    /// Atlas's TCP beside Linux's over the same paths, by RTT, loss and buffer; fairness (needs root)
    Paths(paths::PathsOptions),
    /// Where the server's core spends its time: a profile's samples, by stop of the data path
    Ledger(ledger::LedgerOptions),
}

/// Options of `bench report`.
#[derive(Args, Clone, Debug)]
pub struct ReportOptions {
    /// The stored results; the page and its plots are put beside it
    #[arg(value_name = "FILE", default_value = "bench/results/files.jsonl")]
    results: PathBuf,
}

/// Runs a bench.
///
/// # Errors
/// What cannot be measured or written.
pub fn run_command(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Report(options) => report(options),
        Bench::Ledger(options) => ledger::run_command(options),
        Bench::Figures(options) if options.only_lists() => figures::list(options),
        Bench::Figures(options) => {
            check_machine()?;
            figures::run_command(options)
        }
        Bench::Paths(options) if options.only_lists() => paths::run_command(options),
        Bench::Paths(options) => {
            ensure_root()?;
            paths::run_command(options)
        }
        Bench::Handshakes(options) => {
            check_machine()?;
            handshakes::run_command(options)
        }
    }
}

/// Makes the page of stored results.
fn report(options: &ReportOptions) -> Result<()> {
    let file = &options.results;
    let page = if stored::is_of_paths(file)? {
        paths::write_page(file)?
    } else {
        figures::write_page(file)?
    };
    println!("{}", page.display());
    Ok(())
}

fn ensure_root() -> Result<()> {
    ensure!(
        is_root(),
        "the bench makes namespaces and mounts: run it as root"
    );
    Ok(())
}

fn check_machine() -> Result<()> {
    ensure_root()?;
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores > lab::CLIENT_CORE,
        "the bench needs two cores: one serves, one asks"
    );
    Ok(())
}
