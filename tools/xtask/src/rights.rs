//! Commands of this program that need root, run by another who is not: through sudo.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use testbed::namespace::Namespace;
use testbed::packages::privileged;
use testbed::suite::Suite;
use testbed::{find_program, is_root, own_program};

/// Runs checks into a suite: `here`, or if this process is not root's and there is sudo, by our own command of
/// `arguments`. Programs are built for these, as the user we are.
pub(crate) fn run(
    suite: &mut Suite,
    name: &str,
    here: impl FnOnce(&mut Suite),
    arguments: impl FnOnce(&mut Suite) -> Result<Vec<OsString>>,
) {
    if is_root() || find_program("sudo").is_none() {
        return here(suite);
    }
    let outcome = arguments(suite).and_then(|it| run_through_sudo(suite, &it));
    if let Err(error) = outcome {
        suite.fail(name, &format!("{error:#}"));
    }
}

/// Why network namespaces cannot be made here, or one of these programs cannot be run.
pub(crate) fn can_make_namespaces(programs: &[&str]) -> std::result::Result<(), String> {
    if !is_root() {
        return Err("making network namespaces needs root".to_owned());
    }
    for program in programs {
        if find_program(program).is_none() {
            return Err(format!("{program} is not installed"));
        }
    }
    // Root of a container may still not be allowed to.
    Namespace::new("try")
        .map(drop)
        .map_err(|error| format!("no network namespaces: {error:#}"))
}

/// Runs one of our own commands as root, and counts the checks it prints.
fn run_through_sudo(suite: &mut Suite, arguments: &[OsString]) -> Result<()> {
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
