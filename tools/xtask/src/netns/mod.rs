//! `cargo xtask netns`: the server, whole, against real clients in network namespaces.
//!
//! Each check prints one line. It refuses to touch the host's own interfaces: clients, servers and
//! loss live in namespaces made here and deleted afterwards. Bounded by: a limit on every wait.

mod files;
mod refusals;
mod stage;
mod start;
mod table;
mod trouble;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use self::files::Library;
use self::stage::{Stage, Subject};
use crate::harness::namespace::Namespace;
use crate::harness::server::{Server, atlas_binary};
use crate::harness::suite::{Outcome, Suite};
use crate::harness::{find_program, is_root, own_program, scratch_directory};
use crate::packages::privileged;

/// Options of `netns`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NetnsOptions {
    /// Leaves out the 1 GB transfer
    #[arg(long)]
    quick: bool,
    /// The server to test (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Tries the checks on nginx instead, over packet only: shows that they can pass
    #[arg(long)]
    self_check: bool,
}

/// Runs all checks; fails if one does.
pub(crate) fn run_command(options: &NetnsOptions) -> Result<()> {
    let mut suite = Suite::default();
    run(&mut suite, options);
    suite.close();
    ensure!(suite.is_good(), "not every check passed");
    Ok(())
}

/// Runs all checks into a suite, through sudo if this process may not make namespaces itself.
pub(crate) fn run_with_rights(suite: &mut Suite, quick: bool) {
    let options = NetnsOptions {
        quick,
        ..NetnsOptions::default()
    };
    if is_root() || find_program("sudo").is_none() {
        return run(suite, &options);
    }
    if let Err(error) = run_through_sudo(suite, &options) {
        suite.fail("netns", &format!("{error:#}"));
    }
}

/// The checks run in a process of root's; the server is built before, as the user we are.
fn run_through_sudo(suite: &mut Suite, options: &NetnsOptions) -> Result<()> {
    let mut command = privileged("env")?;
    command.arg(own_program()?).arg("netns");
    command
        .arg("--atlas")
        .arg(atlas_binary(options.atlas.as_deref())?);
    if options.quick {
        command.arg("--quick");
    }
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

/// Runs all checks into a suite.
fn run(suite: &mut Suite, options: &NetnsOptions) {
    if let Err(reason) = can_run() {
        return suite.skip("netns", &reason);
    }
    if let Err(error) = run_stages(suite, options) {
        suite.fail("netns", &format!("{error:#}"));
    }
}

/// What must be there for any of it.
fn can_run() -> std::result::Result<(), String> {
    if !is_root() {
        return Err("making network namespaces needs root".to_owned());
    }
    for program in ["ip", "curl"] {
        if find_program(program).is_none() {
            return Err(format!("{program} is not installed"));
        }
    }
    // Root of a container may still not be allowed to.
    Namespace::new("try")
        .map(drop)
        .map_err(|error| format!("no network namespaces: {error:#}"))
}

fn run_stages(suite: &mut Suite, options: &NetnsOptions) -> Result<()> {
    let library = Library::new().context("writing the files to serve")?;
    let scratch = scratch_directory("config")?;
    let config = scratch.path().join("atlas.toml");
    let seconds = refusals::HEAD_TIMEOUT_SECONDS;
    // The grace must outlast the large file, whatever else the machine is doing.
    let text = format!("head_timeout_seconds = {seconds}\nshutdown_grace_seconds = 60\n");
    fs::write(&config, text)?;

    if options.self_check {
        let stage = Stage::packet(&Subject::Nginx)?;
        let server = stage.start(library.root(), None)?;
        files::run(suite, &stage, &library, !options.quick);
        files::run_lossy(suite, &stage);
        table::run(suite, &stage, &library);
        return server.stop().map(drop);
    }
    let atlas = atlas_binary(options.atlas.as_deref())?;
    let subject = Subject::Atlas(atlas.clone());
    let packet = Stage::packet(&subject)?;
    play(suite, &packet, &library, &config, !options.quick);
    start::run(suite, &packet, &atlas, library.root());
    drop(packet);
    if !Path::new("/dev/net/tun").exists() {
        suite.skip("tap", "no /dev/net/tun");
        return Ok(());
    }
    play(
        suite,
        &Stage::tap(&subject)?,
        &library,
        &config,
        !options.quick,
    );
    Ok(())
}

/// A group of checks that share a server.
type Group<'a> = (&'static str, &'a dyn Fn(&mut Suite));

/// All checks of one link: groups that share a server, then those that end theirs.
fn play(suite: &mut Suite, stage: &Stage, library: &Library, config: &Path, with_huge: bool) {
    let groups: [Group<'_>; 5] = [
        ("files", &|suite| {
            files::run(suite, stage, library, with_huge)
        }),
        ("loss", &|suite| files::run_lossy(suite, stage)),
        ("tables", &|suite| {
            table::run(suite, stage, library);
            table::run_by_the_rfc(suite, stage);
        }),
        ("refusals", &|suite| refusals::run(suite, stage)),
        ("trouble", &|suite| trouble::run(suite, stage, library)),
    ];
    for (name, group) in groups {
        let label = format!("{} {name}: the server ends well", stage.name());
        // A client whose SYN was lost waits 3 s before it repeats a lost request (RFC 6298 s5.7):
        // under loss the server needs its ordinary patience.
        let config = (name != "loss").then_some(config);
        match stage.start(library.root(), config) {
            Ok(server) => {
                group(suite);
                suite.run(&label, || ended_well(server, name));
            }
            Err(error) => suite.fail(&label, &format!("{error:#}")),
        }
    }
    suite.run(&format!("{} SIGTERM in mid-transfer", stage.name()), || {
        trouble::terminate(stage, library, config)
    });
    suite.run(&format!("{} idle uses no CPU", stage.name()), || {
        trouble::idle(stage, library)
    });
}

/// Ends the server of a group: it must be alive, and have counted what it went through.
fn ended_well(server: Server, group: &str) -> Result<Outcome> {
    let stopped = server.stop()?;
    if stopped.status.code() != Some(0) {
        bail!("{}: {}", stopped.status, stopped.last_words());
    }
    let mut moved = vec!["http_reply_count", "session_read_count"];
    if group == "loss" && find_program("iptables").is_some() {
        moved.push("tcp_retransmit_segments");
    }
    for counter in moved {
        ensure!(
            stopped.counter(counter)? > 0,
            "{counter} is 0 after all this"
        );
    }
    Ok(Outcome::Passed)
}
