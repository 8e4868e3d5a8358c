//! `atlas disk` by itself, without the server's build:
//! `cargo run --release -p atlas-disk --example disk -- --make FILE --bytes 1G`

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: disk::DiskArgs,
}

fn main() -> anyhow::Result<()> {
    disk::run(&Cli::parse().args)
}
