//! `cargo xtask test`: everything the project checks about itself, in order, with one closing line.
//!
//! A step that fails does not keep the next from running; a signal does. What could not be tried
//! here is counted and listed, and with a list of the skips that are expected, any other fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::{interop, lab, netns, simulate, tidy};
use testbed::process::{Process, for_each_line};
use testbed::program::Program;
use testbed::suite::{Outcome, Suite};
use testbed::workspace_root;
use testbed::{interrupt, packages};

/// No cargo command takes longer, even on a small machine that compiles everything.
const CARGO_LIMIT: Duration = Duration::from_secs(3600);

/// Options of `test`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TestOptions {
    /// Leaves out the 1 GB transfer and most seeds of the simulator
    #[arg(long)]
    quick: bool,
    /// Fails every skip of a check that this file does not name: one name a line, # for comments
    #[arg(long, value_name = "FILE")]
    skips_expected: Option<PathBuf>,
}

/// Runs every step; fails if one does.
pub(crate) fn run_command(options: &TestOptions) -> Result<()> {
    let expected = options.skips_expected.as_deref().map(read_names);
    let expected = expected.transpose()?;
    let mut suite = Suite::default();
    for wanted in [
        &packages::FOR_TESTS[..],
        &packages::BROWSER,
        &packages::LWIP,
    ] {
        if let Err(error) = packages::ensure_installed(wanted) {
            // Every check that misses a program says so itself.
            println!("not everything could be installed: {error:#}");
        }
    }
    suite.run("cargo fmt", || cargo(&["fmt", "--all", "--check"]));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ];
    suite.run("cargo clippy", || cargo(&clippy));
    suite.run("cargo clippy, fuzz targets", clippy_fuzz_targets);
    // Many tests wait for each other or for time: meanwhile the server is built.
    suite.run("cargo test, compiled", || {
        cargo(&["test", "--workspace", "--no-run", "--quiet"])
    });
    let server = Program::Atlas.build_ahead();
    cargo_test(&mut suite, "cargo test", &["--workspace"]);
    suite.run("cargo doc", || {
        cargo(&["doc", "--workspace", "--no-deps", "--quiet"])
    });
    simulate::run(&mut suite, options.quick);
    // A panic has been printed, and what is missing is built where it is looked for.
    let _ = server.join();
    let ahead = (!options.quick).then(lab::build_ahead);
    netns::run_with_rights(&mut suite, options.quick);
    interop::run_with_rights(&mut suite);
    if let Some(ahead) = ahead {
        lab::run_disk_checks(&mut suite, ahead);
    }
    tidy::run(&mut suite);
    println!();
    if let (Some(file), Some(expected)) = (&options.skips_expected, &expected)
        && !interrupt::is_set()
    {
        suite.refuse_skips_except(expected);
        println!(
            "skips: {} names those expected; make what is missing available, or add the check's \
             name there",
            file.display()
        );
    }
    suite.close()
}

/// The names in a file, one a line; what follows a # is a comment.
fn read_names(file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(names(&text))
}

fn names(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(arguments)
        .current_dir(workspace_root())
        .stdin(Stdio::null());
    // Only `cargo doc` reads it: a broken link or a missing page is an error.
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn cargo(arguments: &[&str]) -> Result<Outcome> {
    run(cargo_command(arguments))
}

fn run(mut command: Command) -> Result<Outcome> {
    let mut process = Process::spawn_tree("cargo", &mut command)?;
    let status = process.wait(CARGO_LIMIT)?;
    ensure!(status.success(), "{status}");
    Ok(Outcome::Passed)
}

/// The fuzz targets are a workspace of their own, which nothing else compiles. What they share with this
/// one is compiled once, and libFuzzer, which only a target that runs needs, not at all.
fn clippy_fuzz_targets() -> Result<Outcome> {
    let mut command = cargo_command(&["clippy", "--manifest-path", "fuzz/Cargo.toml"]);
    command.args(["--bins", "--examples", "--quiet"]);
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    command.arg("--target-dir").arg(target);
    command.args(["--", "-D", "warnings"]);
    // The library that the build would link instead of making one.
    command.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    run(command)
}

/// The tests that `cargo test` selects by these arguments, each counted, each skip with its reason.
fn cargo_test(suite: &mut Suite, name: &str, selection: &[&str]) {
    if interrupt::is_set() {
        return suite.skip(name, "interrupted");
    }
    let mut log = TestLog::default();
    let outcome = run_tests(&mut log, selection);
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

fn run_tests(log: &mut TestLog, selection: &[&str]) -> Result<()> {
    // With the output of tests that pass, too: their skips are in it.
    let arguments = [
        &["test", "--no-fail-fast"],
        selection,
        &["--", "--show-output"],
    ]
    .concat();
    let mut command = cargo_command(&arguments);
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
    fn names_are_read_without_comments() {
        let text = "# why\n\na::one\n  netns  # no namespaces there\nan object is served\n";
        assert_eq!(names(text), ["a::one", "netns", "an object is served"]);
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
