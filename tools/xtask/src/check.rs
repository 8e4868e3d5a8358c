//! `cargo xtask check`: what takes longer or needs more than `cargo xtask test`, in order, with one closing line.
//!
//! Linters, documentation, rules about the tree; most seeds of the simulator; the server that is released, over
//! every link, with other TCPs, in guests, and booted as it is shipped. A step that fails does not keep the next
//! from running; a signal does. Bounded by what bounds each. Fuzzing, which takes as long as it is
//! given, is a command of its own.

use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::test::TestOptions;
use crate::{boot, cargo, interop, lab, netns, simulate, skips, tidy};
use testbed::packages;
use testbed::program::Program;
use testbed::suite::{Outcome, Suite};
use testbed::{target_directory, workspace_root};

/// Runs every check; fails if one does.
pub(crate) fn run_command(options: &TestOptions) -> Result<()> {
    let expected = skips::Expected::read(options.skips_expected.as_deref())?;
    let mut suite = Suite::default();
    for wanted in [
        &packages::FOR_TESTS[..],
        &packages::FOR_CHECKS,
        &packages::BROWSER,
        &packages::LWIP,
    ] {
        packages::install_if_possible(wanted);
    }
    // Its link-time optimization leaves a processor idle, and so do linters.
    let server = Program::Atlas.build_ahead();
    lint(&mut suite);
    tidy::run(&mut suite);
    // A panic has been printed, and what is missing is built where it is looked for.
    let _ = server.join();
    suite.run("the server, released", || {
        Program::Atlas.find(None).map(|_| Outcome::Passed)
    });
    // Guests and networks are mostly waited for: meanwhile what the guests run is built.
    let ahead = lab::build_ahead();
    netns::run_with_rights(&mut suite);
    interop::run_with_rights(&mut suite);
    boot::run_with_rights(&mut suite);
    lab::run_disk_checks(&mut suite, ahead);
    simulate::run(&mut suite, simulate::Seeds::Most);
    expected.close(suite)
}

fn lint(suite: &mut Suite) {
    suite.run("cargo fmt", || cargo::run(&["fmt", "--all", "--check"]));
    suite.run("cargo clippy", || {
        let scope = ["clippy", "--workspace", "--all-targets", "--quiet"];
        cargo::run(&[&scope[..], &["--", "-D", "warnings"]].concat())
    });
    suite.run("cargo clippy, fuzz targets", || {
        cargo::finish(clippy_of_fuzz_targets())
    });
    suite.run("cargo doc", || {
        cargo::run(&["doc", "--workspace", "--no-deps", "--quiet"])
    });
    suite.run("promtool", read_alerts);
}

/// Has Prometheus's tool read the alerts, if it is here. It comes with a daemon, so it is not installed.
fn read_alerts() -> Result<Outcome> {
    let file = workspace_root().join("dist/alerts.yml");
    let output = Command::new("promtool")
        .args(["check", "rules"])
        .arg(file)
        .output();
    match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(Outcome::Skipped("no promtool (Debian: prometheus)".into()))
        }
        output => {
            let output = output?;
            let told = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{told}");
            Ok(Outcome::Passed)
        }
    }
}

/// The fuzz targets are a workspace of their own, which nothing else compiles. What they share with this
/// one is compiled once, and libFuzzer, which only a target that runs needs, not at all.
fn clippy_of_fuzz_targets() -> Command {
    let mut command = cargo::command(&["clippy", "--manifest-path", "fuzz/Cargo.toml"]);
    command.args(["--bins", "--examples", "--quiet"]);
    command.arg("--target-dir").arg(target_directory());
    command.args(["--", "-D", "warnings"]);
    // The library that the build would link instead of making one.
    command.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    command
}
