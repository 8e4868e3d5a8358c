//! Commands of this program that need root, run by another who is not: through sudo.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use testbed::own_program;
use testbed::packages::privileged;
use testbed::suite::Suite;

/// Runs one of our own commands as root, and counts the checks it prints.
pub(crate) fn run_through_sudo(suite: &mut Suite, arguments: &[OsString]) -> Result<()> {
    let mut command = privileged("env")?;
    command.arg(own_program()?).args(arguments);
    // It stays in the terminal's foreground group: sudo may ask for a password.
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("starting sudo")?;
    let stdout = child.stdout.take().context("stdout is piped")?;
    let before = suite.failed.len();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        suite.read(&line);
    }
    let status = child.wait()?;
    let said_why = suite.failed.len() > before;
    ensure!(status.success() || said_why, "sudo: {status}");
    Ok(())
}
