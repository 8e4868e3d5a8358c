//! Scripts by themselves, as `cargo xtask drill` runs them.
#![expect(clippy::print_stderr, reason = "a command speaks to its terminal")]

use std::process::ExitCode;

fn main() -> ExitCode {
    match drill::run_command(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
