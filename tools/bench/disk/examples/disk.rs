//! `atlas-bench disk` as a program of its own, small enough for a guest without libraries.

use clap::Parser;
use disk::DiskArgs;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: DiskArgs,
}

fn main() -> anyhow::Result<()> {
    disk::run(&Cli::parse().args)
}
