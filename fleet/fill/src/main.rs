//! The `atlas-fill` binary.

use std::process::ExitCode;

use clap::Parser as _;
use fill::cli::{Arguments, run};

fn main() -> ExitCode {
    run(Arguments::parse())
}
