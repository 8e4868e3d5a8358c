//! The parts of the documents that this crate declares. `cargo xtask tidy` compares the pages with them.

use clap::CommandFactory as _;

use crate::failure::EXIT_CODES;
use crate::observe::metrics::table;
use crate::settings;
use crate::settings::cli::Cli;

/// The table of settings in `docs/run/configuration.md`.
#[must_use]
pub fn settings() -> String {
    settings::documentation()
}

/// The tables of `docs/run/sites.md`.
#[must_use]
pub fn sites() -> String {
    settings::sites::documentation()
}

/// The table of counters in `docs/run/metrics.md`.
#[must_use]
pub fn counters() -> String {
    table::markdown()
}

/// The table of exit codes in `docs/run/configuration.md`.
#[must_use]
pub fn exit_codes() -> String {
    let rows = EXIT_CODES.map(|(codes, meaning)| format!("| {codes} | {meaning} |\n"));
    format!("| Code | Meaning |\n|---|---|\n{}", rows.concat())
}

/// The command line: its man pages and completions are made of it.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}
