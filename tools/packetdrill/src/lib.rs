//! Our TCP judged by packetdrill, a program that is not ours.
//!
//! packetdrill (`google/packetdrill`) runs scripts of system calls and packets. With
//! `--so_filename` it makes its calls not to the kernel but to a shared object. This crate is such an
//! object: [`host`] is a host with our listener, table and connections behind calls like those of
//! sockets, on a virtual clock; `interface` exports it. And it is the command that runs the scripts:
//! [`adapt`] says whether a script applies to a server, and rewrites what is about Linux alone;
//! [`command`] runs them and prints the table in `docs/develop/packetdrill.md`, which says how to get the
//! program.
//!
//! It is an instrument: the product never depends on it. It refuses active opens, and whatever
//! [`adapt::Reason`] lists. Bounded by the scripts and by [`program::SCRIPT_LIMIT`].

pub mod adapt;
pub mod command;
pub mod explained;
pub mod host;
mod interface;
pub mod program;
