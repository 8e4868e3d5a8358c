//! The load generator as a program of its own.

use clap::Parser;

/// Loads an HTTP server.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    load: load::LoadArgs,
}

fn main() -> anyhow::Result<()> {
    load::run(&Command::parse().load)
}
