//! The project's own commands: `cargo xtask <command>`.
//!
//! What CI, the Makefile and a developer run, typed and in one place. Commands that need root
//! (namespaces, mounts, packet sockets) say so; nothing here is part of the server.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool speaks to its terminal"
)]

mod bench;
mod harness;
mod netns;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measures Atlas beside its rivals
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The load of a bench, run inside the client's namespace
    #[command(hide = true)]
    BenchClient(bench::client::ClientOptions),
    /// Tests the server whole, in network namespaces (needs root)
    Netns(netns::NetnsOptions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = harness::interrupt::catch().and_then(|()| match &arguments.command {
        Command::Bench(bench) => bench::run_command(bench),
        Command::BenchClient(options) => bench::client::run(options),
        Command::Netns(options) => netns::run_command(options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
