//! `atlas-bench`: the instruments, one command each, in a binary of their own.
//!
//! It parses the command line, runs one instrument and turns the outcome into an exit code; the
//! instruments are libraries of the workspace. It refuses to be part of the server: no product
//! crate depends on it or on them (`cargo xtask tidy`). Bounded by: each instrument's own limits.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The exit code when an instrument fails; a usage error is 2, by clap.
const EXIT_FAILED: u8 = 1;

/// What follows `atlas-bench --help`.
const NOTES: &str = "\
Examples:
  What a disk gives one core with 64 reads in flight:
    taskset -c 0 atlas-bench stages read /dev/nvme0n1 --window 64 --watch-core 0

  A server's cost as behind a NIC, by 64 clients that see headers only:
    ip netns exec wire atlas-bench wire --server 10.99.0.2:80 --core 1 --objects LIST

  What sealing costs one core, without disk and network:
    taskset -c 0 atlas-bench stages seal

Output:
  stdout  the report when the instrument ends: text, or one JSON object (--json)
  stderr  progress and errors

Exit codes:
  0  measured
  1  could not be measured, or wrong replies were counted: the last line on stderr says why
  2  wrong usage

`cargo xtask bench` runs these beside Atlas and other servers: bench/README.md";

/// Measures servers, networks and disks: the instruments of Atlas's benches.
#[derive(Parser, Debug)]
#[command(name = "atlas-bench", version, after_help = NOTES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Load a server through a TAP that behaves as a NIC does, with clients that see headers only
    Wire(Box<nic_wire::WireArgs>),
    /// Run one stage of Atlas's pipeline alone: read, session, seal or write
    Stages(stages::StagesArgs),
    /// Tell whether lines 128 KiB apart share sets of this machine's caches
    Sets(stages::SetsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Wire(args) => nic_wire::run(&args),
        Command::Stages(args) => stages::run(&args),
        Command::Sets(args) => stages::sets::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads stderr, the exit code still tells.
            let _ = writeln!(std::io::stderr(), "atlas-bench: {}", one_line(&error));
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// The error and its causes in one line, whatever line breaks they hold.
fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        let error = anyhow::anyhow!("expected\n  a number").context("reading --urls");
        assert_eq!(one_line(&error), "reading --urls: expected a number");
    }
}
