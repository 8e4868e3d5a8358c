//! What a binary of this crate does around serving: it sets the log up and turns the outcome into an
//! exit code.
//!
//! It refuses to parse a command line: each binary has its own. Bounded by: nothing, it keeps none.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use tracing::Level;

use crate::failure::{EXIT_OK, Failure};
use crate::log::{self, LogWriters};
use crate::settings::Settings;
use crate::start;

/// Serves until a signal or a fault ends it.
///
/// # Errors
/// Why it could not begin, or why it ended.
pub fn serve(settings: &Settings) -> Result<(), Failure> {
    start_log(settings);
    log::install_panic_hook();
    let outcome = start::serve(settings);
    log::close();
    outcome
}

/// Looks whether it could serve, and touches nothing.
///
/// # Errors
/// Why it could not.
pub fn check(settings: &Settings) -> Result<(), Failure> {
    start_log(settings);
    start::check(settings)
}

/// The exit code of the binary `name` after `outcome`; a failure is printed on stderr.
#[must_use]
pub fn exit_code(name: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(failure) => {
            // Not through the log: the reason must be printed at every log level.
            let priority = log::priority(Level::ERROR);
            let _ = writeln!(std::io::stderr(), "{priority}{name}: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn start_log(settings: &Settings) {
    // Colours only on a terminal, and not if NO_COLOR is set (no-color.org).
    let is_colour_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_max_level(settings.log)
        .with_writer(LogWriters)
        .with_ansi(std::io::stderr().is_terminal() && !is_colour_unwanted)
        .with_target(false)
        // It would report a log that cannot be written by `eprintln!`, which panics then.
        .log_internal_errors(false)
        .init();
}
