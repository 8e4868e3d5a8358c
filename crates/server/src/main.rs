//! `atlas`: parses the command line, sets the log up, serves, and turns the outcome into an exit
//! code.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use server::cli::{Cli, Command};
use server::failure::{EXIT_OK, Failure};
use server::log::{self, LogWriter};
use server::settings::Settings;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => {
            let action = if args.check { check } else { serve };
            Settings::resolve(args).and_then(|settings| action(&settings))
        }
        Command::Emulate(args) => {
            Settings::resolve_emulated(args).and_then(|settings| serve(&settings))
        }
        Command::ReadCertificates(args) => server::tls::reader::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(failure) => {
            // Not through the log: the reason must be printed at every log level.
            let _ = writeln!(std::io::stderr(), "atlas: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn serve(settings: &Settings) -> Result<(), Failure> {
    start_log(settings);
    log::install_panic_hook();
    let outcome = server::start::serve(settings);
    log::close();
    outcome
}

fn check(settings: &Settings) -> Result<(), Failure> {
    start_log(settings);
    server::start::check(settings)
}

fn start_log(settings: &Settings) {
    // Colours only on a terminal, and not if NO_COLOR is set (no-color.org).
    let is_colour_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_max_level(settings.log)
        .with_writer(LogWriter::default)
        .with_ansi(std::io::stderr().is_terminal() && !is_colour_unwanted)
        .with_target(false)
        // It would report a log that cannot be written by `eprintln!`, which panics then.
        .log_internal_errors(false)
        .init();
}
