//! The project's own commands: `cargo xtask <command>`.
//!
//! What CI, the Makefile and a developer run, typed and in one place. Commands that need root
//! (namespaces, mounts, packet sockets) say so; nothing here is part of the server.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool speaks to its terminal"
)]

mod boot;
mod cargo;
mod check;
mod components;
mod deploy;
mod drill;
mod fleet;
mod fuzz;
mod image;
mod interop;
mod lab;
mod memory;
mod netns;
mod package;
mod release;
mod rights;
mod simulate;
mod skips;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measures Atlas beside its rivals
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Boots a system with the unit that is shipped, and runs the documents' commands (needs root)
    Boot(boot::BootOptions),
    /// Runs what takes longer or needs more than `test`: linters, the released server over every link, guests
    Check(test::TestOptions),
    /// Runs scripts of a peer and a disk, and prints all segments and reads with their times
    Drill {
        /// Scripts; those of the project are in tools/drill/scripts
        files: Vec<String>,
    },
    /// Tries a fleet whole: edges that fill themselves, a registry, steering, players, faults, rivals (needs root)
    Fleet(::fleet::Options),
    /// Runs the fuzz targets for a time, from the corpus that is kept
    Fuzz(fuzz::FuzzOptions),
    /// Tests the server with TCPs of others as clients, over paths with faults (needs root)
    Interop(interop::InteropOptions),
    /// Tries zero copy with the drivers of NICs, in guests that QEMU emulates (needs root)
    Lab(lab::LabOptions),
    /// Models memory traffic: last-level cache, DDIO and DRAM under Atlas and its rivals
    Memory(memory::MemoryOptions),
    /// Runs the whole server on a virtual clock, seeded
    Sim(sim::Options),
    /// Runs the tests of all crates, some seeds of the simulator, and the server whole over one link
    Test(test::TestOptions),
    /// Tests the server whole, in network namespaces (needs root)
    Netns(netns::NetnsOptions),
    /// Makes a Debian package of the released server
    Package(package::PackageOptions),
    /// Makes an OCI image of the released server, without a container engine
    Image(image::ImageOptions),
    /// Makes all that is shipped: archive, Debian package, image, list of components, checksums
    Release,
    /// Checks rules about the tree that no compiler checks; UPDATE_SNAPSHOTS=1 writes generated parts of documents
    Tidy,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = testbed::interrupt::catch().and_then(|()| match &arguments.command {
        Command::Bench(bench) => bench::run_command(bench),
        Command::Boot(options) => boot::run_command(options),
        Command::Check(options) => check::run_command(options),
        Command::Fleet(options) => fleet::run_command(options),
        Command::Fuzz(options) => fuzz::run_command(options),
        Command::Image(options) => image::run_command(options),
        Command::Release => release::run_command(),
        Command::Netns(options) => netns::run_command(options),
        Command::Drill { files } => drill::run_command(files),
        Command::Interop(options) => interop::run_command(options),
        Command::Lab(options) => lab::run_command(options),
        Command::Memory(options) => memory::run_command(options, &testbed::workspace_root()),
        Command::Package(options) => package::run_command(options),
        Command::Sim(options) => simulate::run_command(options),
        Command::Test(options) => test::run_command(options),
        Command::Tidy => tidy::run_command(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            testbed::interrupt::exit_code().map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}
