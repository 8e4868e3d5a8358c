//! `cargo xtask fuzz`: the fuzz targets, each for a time, from the seeds its code makes and the corpus that is kept.
//!
//! It compiles them as cargo-fuzz does, but with the toolchain of everything else: rustc has the coverage that libFuzzer
//! looks for as an option of LLVM. There is no `AddressSanitizer`, since what is fuzzed has no unsafe code of ours. It refuses a
//! name of no target. Bounded by: a time for each target, an input's memory and time by libFuzzer's own limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use tempfile::TempDir;

use testbed::corpus;
use testbed::process::{Process, output};
use testbed::suite::{Outcome, Suite};
use testbed::{find_program, target_directory, workspace_root};

/// Options of `fuzz`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FuzzOptions {
    /// How long each target runs
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u32,
    /// Adds what was found to cover more to the kept corpora
    #[arg(long)]
    keep: bool,
    /// Only these targets; those there are have a file in fuzz/fuzz_targets
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// How long each target runs unless told: what was found in the raw store took 58 s.
const SECONDS: u32 = 120;

/// What has the compiler count edges and compare operands for libFuzzer. The host's build scripts and macros are
/// compiled without, because a target is named.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// The longest build: all dependencies, on a small machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// How much longer than its time a target may take: the corpus is read first.
const SPARE: Duration = Duration::from_secs(300);

/// How long choosing what to keep may take: each input is run.
const MERGE_LIMIT: Duration = Duration::from_secs(1800);

/// Runs the targets.
pub(crate) fn run_command(options: &FuzzOptions) -> Result<()> {
    let mut suite = Suite::default();
    run(&mut suite, options);
    suite.close()
}

fn run(suite: &mut Suite, options: &FuzzOptions) {
    if find_program("c++").is_none() {
        return suite.skip("fuzz", "libFuzzer needs a C++ compiler");
    }
    let built = targets(&options.targets).and_then(|targets| Ok((build(&targets)?, targets)));
    let (programs, targets) = match built {
        Ok(built) => built,
        Err(error) => return suite.fail("fuzz", &format!("{error:#}")),
    };
    for target in targets {
        let program = programs.join(&target);
        suite.run(&format!("fuzz: {target}"), || {
            let kept = kept(&target)?;
            fuzz(&program, &target, kept.path(), options.seconds)?;
            if options.keep {
                keep(&program, &target, kept.path())?;
            }
            Ok(Outcome::Passed)
        });
    }
}

fn directory() -> PathBuf {
    workspace_root().join("fuzz")
}

/// The targets that are wanted, or all there are.
fn targets(wanted: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory().join("fuzz_targets"))? {
        let file = entry?.path();
        let name = file.file_stem().context("a name")?;
        all.push(name.to_string_lossy().into_owned());
    }
    all.sort();
    for target in wanted {
        ensure!(
            all.contains(target),
            "no target {target}: there are {}",
            all.join(", ")
        );
    }
    Ok(if wanted.is_empty() {
        all
    } else {
        wanted.to_vec()
    })
}

/// Builds the targets and has their code write seeds. Returns where the programs are.
fn build(targets: &[String]) -> Result<PathBuf> {
    let host = output(Command::new("rustc").arg("-vV"), SPARE)?;
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not name its host")?;
    let place = target_directory().join("fuzz");
    let cargo = |verb: &str| {
        let mut command = Command::new("cargo");
        command.args([verb, "--quiet", "--release", "--manifest-path"]);
        command.arg(directory().join("Cargo.toml"));
        command.arg("--target-dir").arg(&place);
        command.stdin(Stdio::null());
        command
    };
    let mut seeds = cargo("run");
    seeds.args(["--example", "seeds"]);
    let mut programs = cargo("build");
    programs.args(["--target", host]).env("RUSTFLAGS", COVERAGE);
    for target in targets {
        programs.args(["--bin", target]);
    }
    for mut command in [seeds, programs] {
        let status = Process::spawn_tree("cargo", &mut command)?.wait(BUILD_LIMIT)?;
        ensure!(status.success(), "{command:?}: {status}");
    }
    Ok(place.join(host).join("release"))
}

/// Where a target's new inputs, or its findings, go.
fn folder(name: &str, target: &str) -> Result<PathBuf> {
    let folder = directory().join(name).join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The kept corpus of a target, unpacked; empty if there is none.
fn kept(target: &str) -> Result<TempDir> {
    let archive = corpus::archive(target);
    if archive.exists() {
        corpus::unpack(&archive)
    } else {
        tempfile::tempdir().context("making a folder")
    }
}

/// Adds to the kept corpus what covers more than it does, and packs it.
fn keep(program: &Path, target: &str, kept: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("-merge=1").arg(kept);
    command.arg(folder("corpus", target)?);
    let ended = output(&mut command, MERGE_LIMIT)?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{command:?}: {said}");
    corpus::pack(kept, &corpus::archive(target))
}

/// Runs one target from its corpora. What it finds stays where it says.
fn fuzz(program: &Path, target: &str, kept: &Path, seconds: u32) -> Result<()> {
    let (corpus, found) = (folder("corpus", target)?, folder("artifacts", target)?);
    let mut command = Command::new(program);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", found.display()));
    command.arg("-print_final_stats=1");
    // What is new goes to the first.
    command.arg(&corpus).arg(kept);
    let limit = Duration::from_secs(seconds.into()) + SPARE;
    let ended = output(&mut command, limit)?;
    let said = String::from_utf8_lossy(&ended.stderr);
    if ended.status.success() {
        let executed = said
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let executed = executed.context("libFuzzer does not say what it has done")?;
        println!("        {target}: {} inputs", executed.trim());
        return Ok(());
    }
    match finding(&said) {
        Some((why, input)) => bail!("{why}: {input}"),
        None => bail!("{}: {}", ended.status, said.trim()),
    }
}

/// What libFuzzer's output says of a finding: why it is one, and the input's file.
fn finding(said: &str) -> Option<(&str, &str)> {
    let is_reason = |line: &&str| line.contains("panicked at") || line.contains("ERROR: libFuzzer");
    let why = said.lines().find(is_reason).unwrap_or("a finding");
    let input = said
        .lines()
        .find_map(|line| line.split_once("Test unit written to "))?;
    Some((why.trim(), input.1.trim()))
}

#[cfg(test)]
mod tests {
    use super::{finding, targets};

    #[test]
    fn a_finding_is_told_with_its_input() {
        let said = "\
INFO: seed corpus: files: 3
thread '<unnamed>' panicked at crates/volume/src/catalogue.rs:7:5:
too large
==1== ERROR: libFuzzer: deadly signal
artifact_prefix='/a/'; Test unit written to /a/crash-12
";
        let (why, input) = finding(said).expect("there is one");
        assert!(why.ends_with("catalogue.rs:7:5:"), "{why}");
        assert_eq!(input, "/a/crash-12");
        assert_eq!(finding("Done 7 runs in 1 second(s)"), None);
    }

    #[test]
    fn a_target_that_is_not_there_is_refused_with_those_that_are() {
        assert!(
            targets(&[])
                .expect("a list")
                .contains(&"raw_store".to_owned())
        );
        let error = targets(&["none".to_owned()]).expect_err("not there");
        assert!(error.to_string().contains("raw_store"), "{error}");
    }
}
