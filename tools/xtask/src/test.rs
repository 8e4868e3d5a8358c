//! `cargo xtask test`: what whoever has just cloned runs, from one build, in minutes, with one closing line.
//!
//! The tests of all crates, some seeds of the simulator, and the server whole over one link. A step that fails
//! does not keep the next from running; a signal does. What could not be tried here is counted and listed, and
//! with a list of the skips that are expected, any other fails. What needs a second build, a linter, a guest or a
//! program that is large is in `cargo xtask check`.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::cargo::{self, CARGO_LIMIT};
use crate::skips;
use crate::{netns, simulate};
use testbed::process::{Process, background_cargo, for_each_line};
use testbed::program::Program;
use testbed::suite::Suite;
use testbed::{interrupt, packages, workspace_root};

/// Options of `test` and `check`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TestOptions {
    /// Fails every skip of a check that this file does not name: one name a line, # for comments
    #[arg(long, value_name = "FILE")]
    pub(crate) skips_expected: Option<PathBuf>,
}

/// Runs every step; fails if one does.
pub(crate) fn run_command(options: &TestOptions) -> Result<()> {
    let expected = skips::Expected::read(options.skips_expected.as_deref())?;
    let mut suite = Suite::default();
    packages::install_if_possible(&packages::FOR_TESTS);
    cargo_test(&mut suite, "cargo test", &[]);
    simulate::run_some(&mut suite);
    netns::run_once_with_rights(&mut suite, &Program::Atlas.dev_path());
    expected.close(suite)
}

/// The tests of these packages, or of those that cargo builds by default: each counted, each skip with its reason.
pub(crate) fn cargo_test(suite: &mut Suite, name: &str, packages: &[String]) {
    if interrupt::is_set() {
        return suite.skip(name, "interrupted");
    }
    let mut log = TestLog::default();
    let outcome = run_tests(&mut log, packages);
    suite.passed += log.passed.saturating_sub(log.skipped.len() as u64);
    for (test, reason) in &log.skipped {
        suite.skip(test, reason);
    }
    for test in &log.failed {
        suite.fail(test, "see its output above");
    }
    match outcome {
        Err(_) if interrupt::is_set() => suite.skip(name, "interrupted"),
        // A crate that does not compile fails without any test failing.
        Err(error) if log.failed.is_empty() => suite.fail(name, &format!("{error:#}")),
        _ => {}
    }
}

/// Builds what [`cargo_test`] runs, in a thread, while other checks wait for the network. What does not build is reported
/// there.
#[must_use = "the thread is to be joined"]
pub(crate) fn build_ahead(packages: Vec<String>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut cargo = background_cargo();
        cargo
            .args(arguments_for(&packages))
            .arg("--no-run")
            .current_dir(workspace_root())
            .stdin(Stdio::null());
        let built = Process::spawn_tree("cargo test", &mut cargo);
        let _ = built.and_then(|mut process| process.wait(CARGO_LIMIT));
    })
}

/// The command of cargo for the tests of `packages`, of all if none is named.
fn arguments_for(packages: &[String]) -> Vec<&str> {
    let mut arguments = vec!["test", "--no-fail-fast"];
    for package in packages {
        arguments.extend(["--package", package.as_str()]);
    }
    arguments
}

fn run_tests(log: &mut TestLog, packages: &[String]) -> Result<()> {
    let mut arguments = arguments_for(packages);
    // With the output of tests that pass, too: their skips are in it.
    arguments.extend(["--", "--show-output"]);
    let mut command = cargo::command(&arguments);
    // Many tests wait for timers of the server that they try.
    let threads = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    command.env("RUST_TEST_THREADS", threads.to_string());
    command.stdout(Stdio::piped());
    let mut process = Process::spawn_tree("cargo test", &mut command)?;
    let mut stdout = process.child().stdout.take().context("stdout is piped")?;
    for_each_line(&mut stdout, |line| {
        if log.read(line) {
            println!("{line}");
        }
    })?;
    let status = process.wait(CARGO_LIMIT)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// What the test harness's output says.
#[derive(Debug, Default)]
struct TestLog {
    /// The test whose output is being shown.
    test: String,
    /// Whether the output being shown is that of failed tests.
    failures: bool,
    passed: u64,
    skipped: Vec<(String, String)>,
    failed: Vec<String>,
}

impl TestLog {
    /// Takes one line; whether it is worth showing.
    fn read(&mut self, line: &str) -> bool {
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" ----"))
        {
            name.trim_end_matches(" stdout").clone_into(&mut self.test);
        } else if line == "successes:" {
            self.failures = false;
        } else if line == "failures:" {
            self.failures = true;
        } else if let Some(reason) = skip_reason(line) {
            self.skipped.push((self.test.clone(), reason.to_owned()));
        } else if let Some(test) = line.strip_prefix("test ") {
            self.read_verdict(test);
        }
        self.failures || line.starts_with("test result") || skip_reason(line).is_some()
    }

    fn read_verdict(&mut self, line: &str) {
        let Some((test, verdict)) = line.rsplit_once(" ... ") else {
            return;
        };
        match verdict {
            "ok" => self.passed += 1,
            "FAILED" => self.failed.push(test.to_owned()),
            _ if verdict.starts_with("ignored") => {
                self.skipped.push((test.to_owned(), verdict.to_owned()));
                // Skips are taken off the passes, and this one never was one.
                self.passed += 1;
            }
            _ => {}
        }
    }
}

/// Why a test says that it was not tried, or not all of it.
fn skip_reason(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("SKIPPED")?;
    rest.strip_prefix(": ")
        .or_else(|| rest.strip_prefix(" in part: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_failures_and_skips_are_read_from_the_log() {
        let mut log = TestLog::default();
        for line in [
            "test a::one ... ok",
            "test a::two ... ok",
            "test a::five ... ok",
            "test a::three ... FAILED",
            "test a::four ... ignored, needs a guest",
            "successes:",
            "---- a::two stdout ----",
            "SKIPPED: no root",
            "---- a::five stdout ----",
            "SKIPPED in part: no interface",
            "SKIPPED files are named here",
            "failures:",
            "---- a::three stdout ----",
            "panicked",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored",
        ] {
            log.read(line);
        }
        assert_eq!(log.passed - log.skipped.len() as u64, 1);
        assert_eq!(log.failed, ["a::three"]);
        let skipped: Vec<_> = log.skipped.iter().map(|(test, _)| test.as_str()).collect();
        assert_eq!(skipped, ["a::four", "a::two", "a::five"]);
    }

    #[test]
    fn output_is_shown_of_failures_and_results_only() {
        let mut log = TestLog::default();
        assert!(!log.read("test a ... ok"));
        assert!(!log.read("chatter of a passing test"));
        assert!(log.read("failures:"));
        assert!(log.read("the reason"));
        assert!(!log.read("successes:"));
        assert!(log.read("test result: ok. 1 passed"));
    }
}
