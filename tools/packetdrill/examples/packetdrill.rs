//! The scripts by themselves, as `cargo xtask packetdrill` runs them, without building the rest.
#![expect(clippy::print_stderr, reason = "a command speaks to its terminal")]

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use packetdrill::command::{Options, run_command};

#[derive(Parser, Debug)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match run_command(&Arguments::parse().options, &root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
