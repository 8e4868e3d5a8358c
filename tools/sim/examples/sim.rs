//! The simulator by itself, as `cargo xtask sim` runs it.

use clap::Parser as _;

fn main() -> Result<(), sim::CommandError> {
    sim::run_command(&sim::Options::parse())
}
