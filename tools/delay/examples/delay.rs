//! The middlebox by itself: `delay --from IFACE --to IFACE`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "delay", max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    delay: delay::DelayArgs,
}

fn main() -> ExitCode {
    let Err(error) = delay::run(&Cli::parse().delay) else {
        return ExitCode::SUCCESS;
    };
    // Where nobody reads stderr, the exit code still tells.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}
