//! The process `atlas`: its command line, the log around what it does, and the exit code that the outcome becomes.
//!
//! It refuses to decide anything else. Bounded by: nothing, it keeps none.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use tracing::Level;

use crate::doctor;
use crate::failure::{EXIT_OK, Failure};
use crate::observe::log;
use crate::settings::Settings;
use crate::settings::cli::{Cli, Command, NvmeCommand};
use crate::{reload, start, store_command};

/// Does what the command line says; the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => {
            let action = if args.check { check } else { serve };
            Settings::resolve(args.common).and_then(|settings| action(&settings))
        }
        Command::Doctor(args) => doctor::run(&args),
        Command::Store { command } => store_command::run(&command),
        Command::Nvme { command } => match command {
            NvmeCommand::Bind { device } => doctor::nvme::bind(&device),
            NvmeCommand::Unbind { device } => doctor::nvme::unbind(&device),
        },
        Command::ReadFiles(args) => reload::reader::run(&args),
    };
    exit_code(outcome)
}

/// Serves until a signal or a fault ends it.
fn serve(settings: &Settings) -> Result<(), Failure> {
    log::init(settings.log);
    log::install_panic_hook();
    let outcome = start::serve(settings);
    log::close();
    outcome
}

/// Looks whether it could serve, and touches nothing.
fn check(settings: &Settings) -> Result<(), Failure> {
    log::init(settings.log);
    start::check(settings)
}

/// The exit code after `outcome`; a failure is printed on stderr.
fn exit_code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(failure) => {
            // Not through the log: the reason must be printed at every log level.
            let priority = log::priority(Level::ERROR);
            let _ = writeln!(std::io::stderr(), "{priority}atlas: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
