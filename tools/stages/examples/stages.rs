//! `atlas stages` by itself, without the server's build:
//! `cargo run --release -p atlas-stages --example stages -- seal`

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: stages::StagesArgs,
}

fn main() -> anyhow::Result<()> {
    stages::run(&Cli::parse().args)
}
