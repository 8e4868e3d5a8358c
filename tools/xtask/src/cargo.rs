//! Cargo's commands as steps of a suite. Bounded by an hour each.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};

use testbed::process::Process;
use testbed::suite::Outcome;
use testbed::workspace_root;

/// No cargo command takes longer, even on a small machine that compiles everything.
pub(crate) const CARGO_LIMIT: Duration = Duration::from_secs(3600);

/// A cargo command of the workspace.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(arguments)
        .current_dir(workspace_root())
        .stdin(Stdio::null());
    // Only `cargo doc` reads it: a broken link or a missing page is an error.
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Runs cargo with these arguments; fails if it does.
pub(crate) fn run(arguments: &[&str]) -> Result<Outcome> {
    finish(command(arguments))
}

/// Runs a command of [`command`]'s to its end; fails if it does.
pub(crate) fn finish(mut command: Command) -> Result<Outcome> {
    let mut process = Process::spawn_tree("cargo", &mut command)?;
    let status = process.wait(CARGO_LIMIT)?;
    ensure!(status.success(), "{status}");
    Ok(Outcome::Passed)
}
