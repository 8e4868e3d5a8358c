//! `cargo xtask sim`: one seed with details, or many.
//!
//! Many seeds: those that once failed (`seeds.txt`) run first. A run that panics fails like any
//! other and does not end the rest, where panics unwind. It refuses unknown arguments, and
//! stops after [`FAILURES_MAX`] failures: one cause often fails many seeds.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant as RealInstant;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::memory_traffic;
use crate::scenario::{Scenario, THEMES, Theme};
use crate::world::frame_log::FrameLog;
use crate::world::{Canary, Outcome};

/// Failed runs after which the others are not run.
const FAILURES_MAX: usize = 50;
/// Once-failing seeds, one a line: `seed [theme]`, and `#` comments.
const ONCE_FAILED: &str = include_str!("../seeds.txt");

/// The command line.
#[derive(Clone, Debug, clap::Parser)]
#[command(about = "Runs the whole server on a virtual clock, seeded")]
pub struct Options {
    /// One run, with all its counters
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Many runs, B excluded
    #[arg(long, value_name = "A..B", default_value = "0..1000", default_value_if("memory", "true", "1..2"), value_parser = range)]
    seeds: Range<u64>,
    /// Draws only these troubles
    #[arg(long, value_name = "NAME", default_value = THEMES[0].name, value_parser = themes())]
    scenario: &'static Theme,
    /// Plants a bug that the run must find
    #[arg(long, value_name = "NAME")]
    canary: Option<Canary>,
    /// On that many threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Prints the seed's scenario and a line for each frame
    #[arg(long, requires = "seed")]
    frames: bool,
    /// Writes what TCP does on the connections to FILE, as qlog (see docs/run/slow-streams.md)
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Makes the tables of docs/memory.md that are of the workers: how often a byte crosses the memory bus
    #[arg(long, conflicts_with_all = ["seed", "scenario", "canary"])]
    memory: bool,
    /// Prints instead what the workers send with faster and slower cores and disks
    #[arg(long, requires = "memory")]
    rates: bool,
    /// Writes the seed's frames to FILE
    #[arg(long, value_name = "FILE", requires = "seed")]
    pcap: Option<PathBuf>,
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// So many runs failed; each has been printed.
    #[error("{0} of the runs failed")]
    RunsFailed(usize),
    /// Printing, or writing the capture, failed.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Runs the simulator; prints to standard output.
///
/// # Errors
/// A run failed, or nothing can be printed.
pub fn run_command(options: &Options) -> Result<(), CommandError> {
    let mut out = io::stdout();
    if let Some(tables) = memory_tables(options)? {
        return Ok(writeln!(out, "{tables}")?);
    }
    if options.rates {
        let (seeds, jobs) = (&options.seeds, options.jobs);
        return Ok(memory_traffic::print_rates(&mut out, seeds, jobs)?);
    }
    let failed = match options.seed {
        Some(seed) => run_one(&mut out, seed, options)?,
        None => run_many(&mut out, options)?,
    };
    match failed {
        0 => Ok(()),
        _ => Err(CommandError::RunsFailed(failed)),
    }
}

/// The tables of docs/memory.md, if these options ask for them.
///
/// # Errors
/// Bytes did not add up.
pub fn memory_tables(options: &Options) -> io::Result<Option<String>> {
    if !options.memory || options.rates {
        return Ok(None);
    }
    let mut tables = String::new();
    memory_traffic::write_tables(&mut tables, &options.seeds, options.jobs)?;
    Ok(Some(tables))
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..");
    let range = ends.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let range = range.filter(|range| !range.is_empty());
    range.ok_or_else(|| "not a range A..B of seeds".to_owned())
}

fn themes() -> impl TypedValueParser<Value = &'static Theme> {
    let values = THEMES
        .iter()
        .map(|theme| PossibleValue::new(theme.name).help(theme.help));
    let named = |name: String| Theme::named(&name).expect("invariant: one of the values");
    PossibleValuesParser::new(values).map(named)
}

/// One seed, with all details. Returns how many runs failed.
fn run_one(out: &mut impl Write, seed: u64, options: &Options) -> io::Result<usize> {
    if options.frames {
        if options.scenario.is_paths() {
            writeln!(out, "{}", crate::paths::describe(seed))?;
        } else {
            writeln!(out, "{:#?}", Scenario::draw(seed, options.scenario))?;
        }
    }
    let mut frame_log = FrameLog::new(options.frames, options.pcap.is_some());
    if options.trace.is_some() {
        frame_log = frame_log.with_trace();
    }
    let began = RealInstant::now();
    let (outcome, frame_log) = crate::run(seed, options.scenario, options.canary, frame_log);
    for line in frame_log.lines() {
        writeln!(out, "{line}")?;
    }
    if let (Some(path), Some(capture)) = (&options.pcap, frame_log.capture()) {
        std::fs::write(path, capture)?;
        writeln!(out, "capture in {}", path.display())?;
    }
    if let (Some(path), Some(trace)) = (&options.trace, frame_log.trace()) {
        std::fs::write(path, trace.file())?;
        writeln!(out, "trace in {}", path.display())?;
    }
    write_counters(out, outcome.counters.iter().copied())?;
    writeln!(
        out,
        "seed {seed}: {} frames, {} ms virtual, {} steps, digest {:016x}, {} ms",
        outcome.frames,
        outcome.lasted.as_millis(),
        outcome.steps,
        outcome.digest,
        began.elapsed().as_millis(),
    )?;
    for violation in &outcome.violations {
        writeln!(out, "  FAILED {violation}")?;
    }
    Ok(usize::from(!outcome.violations.is_empty()))
}

fn write_counters(
    out: &mut impl Write,
    mut counters: impl Iterator<Item = (&'static str, u64)>,
) -> io::Result<()> {
    counters.try_for_each(|(name, value)| match value {
        0 => Ok(()),
        _ => writeln!(out, "  {name:36} {value:>12}"),
    })
}

/// Sums over many runs.
#[derive(Default)]
struct Totals {
    runs: u64,
    failures: usize,
    frames: u64,
    virtual_seconds: u64,
    counters: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.failures += usize::from(!outcome.violations.is_empty());
        self.frames += outcome.frames;
        self.virtual_seconds += outcome.lasted.as_secs();
        for (name, value) in &outcome.counters {
            *self.counters.entry(name).or_default() += value;
        }
    }
}

/// Many seeds on a few threads, each run on one. Returns how many runs failed.
fn run_many(out: &mut impl Write, options: &Options) -> io::Result<usize> {
    let began = RealInstant::now();
    let theme = options.scenario;
    let seeds = options.seeds.clone().map(|seed| (seed, theme));
    // A canary needs a scenario in which its bug shows.
    let once_failed = match options.canary {
        Some(_) => Vec::new(),
        None => parse_seeds(ONCE_FAILED).map_err(io::Error::other)?,
    };
    let runs = Mutex::new(once_failed.into_iter().chain(seeds));
    let totals = Mutex::new(Totals::default());
    let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run_all = || {
        while let Some((seed, theme)) = next() {
            let outcome = run_caught(seed, theme, options.canary);
            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
            if totals.failures >= FAILURES_MAX {
                break;
            }
            totals.add(&outcome);
            report_failure(seed, theme, &outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(run_all);
        }
    });
    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    summarise(out, &totals, began.elapsed().as_secs_f64())?;
    Ok(totals.failures)
}

/// A panic is a failure of that seed, not of the command.
fn run_caught(seed: u64, theme: &'static Theme, canary: Option<Canary>) -> Outcome {
    let run = || crate::run(seed, theme, canary, FrameLog::default()).0;
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let what = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("something");
        Outcome {
            violations: vec![format!("panic: {what}")],
            ..Outcome::default()
        }
    })
}

/// Prints a failure at once.
fn report_failure(seed: u64, theme: &Theme, outcome: &Outcome) {
    let Some((first, others)) = outcome.violations.split_first() else {
        return;
    };
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let theme = theme.name;
    let line = format!("FAILED --seed {seed} --scenario {theme}: {first}{more}");
    // If stdout is closed, nobody can be told.
    let _ = writeln!(io::stdout(), "{line}");
}

fn summarise(out: &mut impl Write, totals: &Totals, seconds: f64) -> io::Result<()> {
    write_counters(out, totals.counters.iter().map(|(name, sum)| (*name, *sum)))?;
    writeln!(
        out,
        "{} runs in {seconds:.1} s, {} virtual seconds, {} frames",
        totals.runs, totals.virtual_seconds, totals.frames,
    )?;
    if totals.failures >= FAILURES_MAX {
        writeln!(out, "stopped after {FAILURES_MAX} failures")?;
    }
    writeln!(out, "{} failed", totals.failures)
}

fn parse_seeds(text: &str) -> Result<Vec<(u64, &'static Theme)>, String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let parse = |line: &str| {
        let (seed, theme) = line.split_once(' ').unwrap_or((line, THEMES[0].name));
        Some((seed.parse().ok()?, Theme::named(theme.trim())?))
    };
    lines
        .filter(|line| !line.is_empty())
        .map(|line| parse(line).ok_or_else(|| format!("seeds.txt: {line:?}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{ONCE_FAILED, Options, THEMES, parse_seeds};

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["sim"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn a_command_line_is_understood_or_refused() {
        let options = parsed("--seeds 5..9 --jobs 2 --scenario network").expect("understood");
        assert_eq!(
            (options.seeds, options.jobs, options.scenario.name),
            (5..9, 2, "network")
        );
        let options = parsed("--seed 7 --frames --trace x.sqlog --pcap x.pcap --canary slot")
            .expect("understood");
        assert_eq!((options.seed, options.frames), (Some(7), true));
        assert_eq!(options.trace, Some("x.sqlog".into()));
        for wrong in [
            "--seeds 5",
            "--seeds 5..5",
            "--scenario none",
            "--canary none",
            "--frames",
            "--trace x.sqlog",
            "extra",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn once_failed_seeds_are_readable() {
        parse_seeds(ONCE_FAILED).expect("seeds.txt");
        let seeds = parse_seeds("# a\n1\n2 network # why\n\n").expect("readable");
        assert_eq!(
            seeds.iter().map(|(seed, _)| *seed).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!((seeds[0].1, seeds[1].1.name), (&THEMES[0], "network"));
        assert!(parse_seeds("x").is_err() && parse_seeds("1 none").is_err());
    }
}
