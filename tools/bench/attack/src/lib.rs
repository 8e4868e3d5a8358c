//! Peers that flood a server or hold its connections, from one interface, as raw segments.
//!
//! The kernel of the attacker's host has no part in it: segments leave by a packet socket of
//! [`link`], from an address that the kernel does not have, so nothing resets what is opened here.
//! `syn-flood` sends SYNs from forged addresses and reads no answer. The others complete
//! handshakes, request an object and then acknowledge as their [`Kind`] says, with a few bytes of
//! state for each connection.
//!
//! It refuses servers that are not on the interface's own network, and IPv6. Bounded by: its
//! duration, [`PEERS_MAX`] connections, and segments a second if the command line says so.

#![forbid(unsafe_code)]

mod args;
mod peers;
mod run;

use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result};

pub use args::{AttackArgs, Kind, PEERS_MAX};
pub use run::Report;

/// Attacks for as long as the arguments say, and prints the report.
///
/// # Errors
/// What cannot be opened or sent, and what to do.
pub fn run(args: &AttackArgs) -> Result<()> {
    let stopped = load::stop_at_signal()?;
    let report = run::attack(args, &stopped)?;
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        report.text()
    };
    stdout()
        .write_all(text.as_bytes())
        .context("printing the report")
}
