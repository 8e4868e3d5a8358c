//! The `atlas` binary's insides: command line, settings, worker loop, signals.
//!
//! **The only place that reads a clock, logs or exits.** It checks the host, gives each other
//! room its limits and the time, and passes frames, reads and look-ups between them. The simulator
//! runs the same [`worker`], which is a crate of its own.
//!
//! It refuses to serve if anything the settings need is missing: it prints one line with the remedy
//! and ends (`failure::EXIT_CODES`). Bounds: those of the settings (`settings::Limits`).

mod doctor;
pub mod documents;
mod failure;
mod observe;
mod process;
mod reload;
mod run;
mod running;
mod settings;
mod start;
mod store_command;
mod take_over;
mod tls;
mod top;
mod try_command;
mod version;

pub use process::main;
