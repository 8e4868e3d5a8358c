//! `cargo xtask sim`: one seed with details, or many.
//!
//! Many seeds: those that once failed (`seeds.txt`) run first. A run that panics fails like any
//! other and does not end the rest, where panics unwind. It refuses unknown arguments, and
//! stops after [`FAILURES_MAX`] failures: one cause often fails many seeds.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as RealInstant;

use crate::atlas::REPEATED_BYTES;
use crate::client::Secured;
use crate::scenario::{Scenario, THEMES, Theme};
use crate::world::frame_log::FrameLog;
use crate::world::{Canary, Outcome};

/// Seeds of `--seeds` if none are given.
const SEEDS: (u64, u64) = (0, 1000);
/// Failed runs after which the others are not run.
const FAILURES_MAX: usize = 50;
/// The slowest runs a summary names.
const SLOWEST: usize = 3;
/// Once-failing seeds, one a line: `seed [theme]`, and `#` comments.
const ONCE_FAILED: &str = include_str!("../seeds.txt");

/// The parsed command line.
#[derive(Clone, Debug)]
struct Options {
    seed: Option<u64>,
    seeds: (u64, u64),
    theme: &'static Theme,
    canary: Option<Canary>,
    jobs: usize,
    frames: bool,
    trace: Option<String>,
    pcap: Option<String>,
    help: bool,
}

/// What `--help` says.
const HELP: &str = "\
The whole server on a virtual clock, seeded.

  sim --seed N [--scenario NAME] [--canary NAME] [--frames] [--trace FILE]
      [--pcap FILE]
  sim [--seeds A..B] [--scenario NAME] [--canary NAME] [--jobs N]

  --seed N         one run, with all its counters
  --frames         prints its scenario and a line for each frame
  --trace FILE     writes what TCP does on its connections to FILE, as qlog (see
                   docs/run/slow-streams.md)
  --pcap FILE      writes its frames to FILE
  --seeds A..B     many runs, B excluded [0..1000]
  --jobs N         on that many threads [1]
  --scenario NAME  draws only these troubles:";

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// So many runs failed; each has been printed.
    #[error("{0} of the runs failed")]
    RunsFailed(usize),
    /// The arguments are not understood.
    #[error("{0} (try --help)")]
    Usage(String),
    /// Printing, or writing the capture, failed.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Runs the simulator with `args` (without the program's name); prints to standard output.
///
/// # Errors
/// A run failed, the arguments are not understood, or nothing can be printed.
pub fn run_command(args: impl Iterator<Item = String>) -> Result<(), CommandError> {
    let mut out = io::stdout();
    let options = parse(args).map_err(CommandError::Usage)?;
    if options.help {
        return Ok(print_help(&mut out)?);
    }
    let failed = match options.seed {
        Some(seed) => run_one(&mut out, seed, &options)?,
        None => run_many(&mut out, &options)?,
    };
    if failed > 0 {
        Err(CommandError::RunsFailed(failed))
    } else {
        Ok(())
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seed: None,
        seeds: SEEDS,
        theme: &THEMES[0],
        canary: None,
        jobs: 1,
        frames: false,
        trace: None,
        pcap: None,
        help: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--seed" => options.seed = Some(number(&value()?)?),
            "--seeds" => options.seeds = range(&value()?)?,
            "--scenario" => {
                let name = value()?;
                options.theme =
                    Theme::named(&name).ok_or_else(|| format!("there is no scenario {name:?}"))?;
            }
            "--canary" => {
                let name = value()?;
                let named = |(known, ..): &&(&str, Canary, &str)| *known == name;
                let (_, canary, _) = Canary::NAMES
                    .iter()
                    .find(named)
                    .ok_or_else(|| format!("there is no canary {name:?}"))?;
                options.canary = Some(*canary);
            }
            "--jobs" => {
                let jobs = number(&value()?)?;
                options.jobs = usize::try_from(jobs).unwrap_or(1).clamp(1, 64);
            }
            "--frames" => options.frames = true,
            "--trace" => options.trace = Some(value()?),
            "--pcap" => options.pcap = Some(value()?),
            "--help" | "-h" => options.help = true,
            _ => return Err(format!("unknown option {arg:?}")),
        }
    }
    let is_detailed = options.frames || options.trace.is_some() || options.pcap.is_some();
    if options.seed.is_none() && is_detailed {
        return Err("--frames, --trace and --pcap are for one --seed".to_owned());
    }
    Ok(options)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text
        .split_once("..")
        .ok_or_else(|| format!("{text:?} is no range A..B"))?;
    let range = (number(from)?, number(to)?);
    if range.0 >= range.1 {
        return Err(format!("{text:?} is an empty range"));
    }
    Ok(range)
}

fn print_help(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{HELP}")?;
    for theme in THEMES {
        writeln!(out, "    {:10} {}", theme.name, theme.help)?;
    }
    writeln!(
        out,
        "  --canary NAME    plants a bug that the run must find:"
    )?;
    for (name, _, help) in Canary::NAMES {
        writeln!(out, "    {name:10} {help}")?;
    }
    Ok(())
}

/// One seed, with all details. Returns how many runs failed.
fn run_one(out: &mut impl Write, seed: u64, options: &Options) -> io::Result<usize> {
    if options.frames {
        if options.theme.is_paths() {
            writeln!(out, "{}", crate::paths::describe(seed))?;
        } else {
            writeln!(out, "{:#?}", Scenario::draw(seed, options.theme))?;
        }
    }
    let mut frame_log = FrameLog::new(options.frames, options.pcap.is_some());
    if options.trace.is_some() {
        frame_log = frame_log.with_trace();
    }
    let began = RealInstant::now();
    let (outcome, frame_log) = crate::run(seed, options.theme, options.canary, frame_log);
    for line in frame_log.lines() {
        writeln!(out, "{line}")?;
    }
    if let (Some(path), Some(capture)) = (&options.pcap, frame_log.capture()) {
        std::fs::write(path, capture)?;
        writeln!(out, "capture in {path}")?;
    }
    if let (Some(path), Some(trace)) = (&options.trace, frame_log.trace()) {
        std::fs::write(path, trace.file())?;
        writeln!(out, "trace in {path}")?;
    }
    for (name, value) in outcome.counters.iter().filter(|(_, value)| *value > 0) {
        writeln!(out, "  {name:36} {value:>12}")?;
    }
    writeln!(
        out,
        "seed {seed}: {} frames, {} replies, {} body bytes, {} ms virtual, {} steps, \
         digest {:016x}, {} ms",
        outcome.frames,
        outcome.replies,
        outcome.verified_bytes,
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

/// Sums over many runs.
#[derive(Default)]
struct Totals {
    runs: u64,
    failures: Vec<String>,
    replies: u64,
    verified_bytes: u64,
    frames: u64,
    secured: Secured,
    late: u64,
    broken: u64,
    refused: u64,
    busy: u64,
    closed: u64,
    key_used: u64,
    given_up: u64,
    virtual_seconds: u64,
    counters: Vec<(&'static str, u64)>,
    /// Real milliseconds and seed, slowest first.
    slowest: Vec<(u128, u64)>,
}

impl Totals {
    fn add(&mut self, seed: u64, theme: &Theme, outcome: &Outcome, real_ms: u128) {
        self.runs += 1;
        self.replies += outcome.replies;
        self.verified_bytes += outcome.verified_bytes;
        self.frames += outcome.frames;
        self.secured.add(&outcome.secured);
        self.late += outcome.late;
        self.broken += outcome.broken;
        self.refused += outcome.refused;
        self.busy += outcome.busy;
        self.closed += outcome.closed;
        self.key_used += outcome.key_used;
        self.given_up += outcome.given_up;
        self.virtual_seconds += outcome.lasted.as_secs();
        for (name, value) in &outcome.counters {
            match self.counters.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += value,
                None => self.counters.push((name, *value)),
            }
        }
        self.slowest.push((real_ms, seed));
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        self.slowest.truncate(SLOWEST);
        if let Some(first) = outcome.violations.first() {
            let more = outcome.violations.len() - 1;
            let theme = theme.name;
            let mut line = format!("FAILED --seed {seed} --scenario {theme}: {first}");
            if more > 0 {
                // Writing to a string cannot fail.
                let _ = write!(line, " (and {more} more)");
            }
            self.failures.push(line);
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0, |(_, value)| *value)
    }
}

/// Many seeds on a few threads, each run on one. Returns how many runs failed.
fn run_many(out: &mut impl Write, options: &Options) -> io::Result<usize> {
    let began = RealInstant::now();
    let once_failed = once_failed(options).map_err(io::Error::other)?;
    let (from, to) = options.seeds;
    let next = AtomicU64::new(0);
    let count = once_failed.len() as u64 + (to - from);
    let totals = Mutex::new(Totals::default());
    let lives = io::stdout().is_terminal();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let place = usize::try_from(index).unwrap_or(usize::MAX);
                    let (seed, theme) = match once_failed.get(place) {
                        Some(&known) => known,
                        None => (from + (index - once_failed.len() as u64), options.theme),
                    };
                    let stop = totals
                        .lock()
                        .is_ok_and(|t| t.failures.len() >= FAILURES_MAX);
                    if index >= count || stop {
                        break;
                    }
                    let started = RealInstant::now();
                    let outcome = run_caught(seed, theme, options.canary);
                    let real_ms = started.elapsed().as_millis();
                    if let Ok(mut totals) = totals.lock() {
                        let failures = totals.failures.len();
                        totals.add(seed, theme, &outcome, real_ms);
                        report_progress(&totals, failures, count, lives);
                    }
                }
            });
        }
    });
    let totals = totals
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    summarise(out, &totals, began.elapsed().as_secs_f64())?;
    Ok(totals.failures.len())
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

/// Prints new failures at once, and a line of progress now and then.
fn report_progress(totals: &Totals, failures_before: usize, count: u64, lives: bool) {
    let mut out = io::stdout();
    for line in &totals.failures[failures_before..] {
        // If stdout is closed, nobody can be told.
        let _ = writeln!(out, "{line}");
    }
    if lives && totals.runs.is_multiple_of(100) {
        let _ = write!(out, "\r{} of {count} runs\r", totals.runs);
        let _ = out.flush();
    }
}

fn summarise(out: &mut impl Write, totals: &Totals, seconds: f64) -> io::Result<()> {
    let mebibytes = totals.verified_bytes >> 20;
    writeln!(
        out,
        "{} runs in {seconds:.1} s ({:.0}/s), {} virtual seconds",
        totals.runs,
        f64::from(u32::try_from(totals.runs).unwrap_or(u32::MAX)) / seconds.max(0.001),
        totals.virtual_seconds,
    )?;
    writeln!(
        out,
        "{} replies, {mebibytes} MiB compared, {} frames",
        totals.replies, totals.frames,
    )?;
    let secured = totals.secured;
    writeln!(
        out,
        "{} TLS handshakes, {} resumed, {} sent back; new keys asked for {} times",
        secured.handshakes, secured.resumed, secured.sent_back, secured.refreshes,
    )?;
    writeln!(
        out,
        "excused: {} late, {} broken, {} refused, {} busy, {} at the end, {} by a used key; \
         {} requests given up",
        totals.late,
        totals.broken,
        totals.refused,
        totals.busy,
        totals.closed,
        totals.key_used,
        totals.given_up,
    )?;
    for name in SUMMARY_COUNTERS {
        writeln!(out, "  {name:36} {:>12}", totals.counter(name))?;
    }
    let slowest: Vec<_> = totals
        .slowest
        .iter()
        .map(|(ms, seed)| format!("{seed} ({ms} ms)"))
        .collect();
    writeln!(out, "slowest seeds: {}", slowest.join(", "))?;
    if totals.failures.len() >= FAILURES_MAX {
        writeln!(out, "stopped after {FAILURES_MAX} failures")?;
    }
    writeln!(out, "{} failed", totals.failures.len())
}

/// The counters of a summary: faults injected, and how the server handled them.
const SUMMARY_COUNTERS: [&str; 40] = [
    "network_carried_frames",
    "network_lost_frames",
    "network_queue_dropped_frames",
    "network_duplicated_frames",
    "network_corrupted_frames",
    "network_reordered_frames",
    "network_arrived_down_frames",
    "link_full_frames",
    "link_lent_frames",
    "disk_read_commands",
    "disk_failed_commands",
    "disk_changed_commands",
    "disk_reissued_commands",
    "disk_queue_full_commands",
    "tcp_retransmit_segments",
    REPEATED_BYTES,
    "tcp_packet_too_big_count",
    "tcp_mtu_black_hole_count",
    "tcp_mtu_probe_count",
    "tcp_mtu_probe_lost_count",
    "tcp_drop_count",
    "tcp_reset_count",
    "tcp_abort_count",
    "tls_handshake_refused_count",
    "tls_handshake_timeout_count",
    "tls_alert_count",
    "tls_peer_alert_count",
    "tls_key_update_count",
    "tls_key_exhausted_count",
    "record_seal_count",
    "record_reseal_count",
    "record_reseal_mismatch_count",
    "session_read_deferred_count",
    "http_stall_count",
    "tcp_next_hop_change_count",
    "tcp_evicted_count",
    "tcp_cookie_accepted_count",
    "tcp_stray_taken_count",
    "tcp_stray_dropped_count",
    "tcp_stray_unclaimed_count",
];

fn once_failed(options: &Options) -> Result<Vec<(u64, &'static Theme)>, String> {
    // A canary needs a scenario in which its bug shows.
    if options.canary.is_some() {
        return Ok(Vec::new());
    }
    parse_seeds(ONCE_FAILED)
}

fn parse_seeds(text: &str) -> Result<Vec<(u64, &'static Theme)>, String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (seed, theme) = line.split_once(' ').unwrap_or((line, THEMES[0].name));
            let theme = Theme::named(theme.trim()).ok_or_else(|| format!("seeds.txt: {line:?}"))?;
            Ok((number(seed)?, theme))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ONCE_FAILED, THEMES, parse, parse_seeds};

    fn parsed(line: &str) -> Result<super::Options, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_command_line_is_understood_or_refused() {
        let options = parsed("--seeds 5..9 --jobs 2 --scenario network").expect("understood");
        assert_eq!(
            (options.seeds, options.jobs, options.theme.name),
            ((5, 9), 2, "network")
        );
        let options = parsed("--seed 7 --frames --trace x.sqlog --pcap x.pcap --canary slot")
            .expect("understood");
        assert_eq!((options.seed, options.frames), (Some(7), true));
        assert_eq!(options.trace.as_deref(), Some("x.sqlog"));
        for wrong in [
            "--seed",
            "--seed x",
            "--seeds 5",
            "--seeds 5..5",
            "--scenario none",
            "--canary none",
            "--trace",
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
