//! Drill scripts: what a peer and a disk do and see, line by line, on a virtual clock.
//!
//! A script is the peer, which sends and expects segments, and the disk, which expects and answers
//! reads. Between them is the real conductor: `wire`, `tcp`, `http` and `session`, with real frames
//! and checksums. So one page shows how an ACK becomes a read and a read becomes a segment. The
//! language is in the README, the scripts are in `scripts/`, each named after what it shows.
//!
//! It refuses TLS, IPv6, several connections at once and randomness: those are for the simulator.
//! Bounded by the script.
#![forbid(unsafe_code)]

mod command;
mod compare;
mod content;
mod failure;
mod parse;
mod peer;
mod run;
mod script;
mod server;

pub use command::{CommandError, run_command, run_file};
pub use failure::Failure;
pub use parse::{ParseError, parse};
pub use run::{Trace, run};
pub use script::{Answer, Bits, Event, Expected, Line, Script, Segment, Setup, Wanted, When};

#[cfg(test)]
mod tests;
