//! The `atlas` binary's insides: command line, settings, worker loop, signals.
//!
//! **The only place that reads a clock, spawns, logs or exits.** It checks the host, gives each other
//! room its limits and the time, and passes frames, reads and look-ups between them. The simulator
//! runs the same [`worker`], which is a crate of its own.
//!
//! It refuses to serve if anything the settings need is missing: it prints one line with the remedy
//! and ends ([`failure::EXIT_CODES`]). Bounds: those of the settings ([`settings::Limits`]).

pub mod access_log;
pub mod address_watch;
pub mod aead;
pub mod busy_poll;
pub mod cidr;
pub mod claim;
pub mod cli;
pub mod coalescing;
pub mod connections;
pub mod cores;
pub mod doctor;
pub mod failure;
mod files;
pub mod host;
pub mod host_addresses;
pub mod link_watch;
pub mod log;
pub mod mailbox;
mod memory_need;
pub mod metrics;
pub mod monitoring;
mod nodes;
pub mod notify;
pub mod output;
pub mod own_file;
pub mod privileges;
pub mod process;
pub mod raw;
pub mod report;
mod routes;
pub mod run;
pub mod settings;
pub mod signals;
pub mod start;
pub mod supervisor;
pub mod tls;
pub mod trace;
pub mod wait;
pub mod wall_clock;
