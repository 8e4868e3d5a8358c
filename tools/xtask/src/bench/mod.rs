//! `cargo xtask bench`: Atlas and nginx do the same work, side by side, on one core.
//!
//! The server runs on [`lab::SERVER_CORE`], the client on [`lab::CLIENT_CORE`], a veth pair between
//! their namespaces, the objects on a bench disk ([`disk`]). Servers take turns, round after round;
//! medians are reported, and the median of each round's ratio of Atlas to the best nginx of that
//! round. A run in which any reply or any byte of the sample is wrong ends the bench.

mod binaries;
mod disk;
mod figures;
mod handshakes;
mod lab;
mod load;
mod overload;
mod real_disk;
mod report;
mod serve;
mod tls;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use clap::Subcommand;
use serde::Serialize;

use testbed::is_root;

/// What to measure.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Objects from a cold disk, in plaintext or over TLS, against nginx in five ways
    /// (needs root)
    Serve(serve::ServeOptions),
    /// TLS 1.3 handshakes, full or resumed, against nginx (needs root)
    Handshakes(handshakes::HandshakesOptions),
    /// The paper's figures: by cache and connections, beside several servers (needs root)
    Figures(figures::FiguresOptions),
}

/// Runs a bench.
pub(crate) fn run_command(bench: &Bench) -> Result<()> {
    ensure!(
        is_root(),
        "the bench makes namespaces and mounts: run it as root"
    );
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores > lab::CLIENT_CORE,
        "the bench needs two cores: one serves, one asks"
    );
    match bench {
        Bench::Serve(options) => serve::run_command(options),
        Bench::Handshakes(options) => handshakes::run_command(options),
        Bench::Figures(options) => figures::run_command(options),
    }
}

/// Prints a report, and keeps it if asked.
fn publish(text: &str, report: &impl Serialize, json: Option<&Path>) -> Result<()> {
    print!("{text}");
    if let Some(file) = json {
        fs::write(file, serde_json::to_string_pretty(report)? + "\n")
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}
