//! What is to be measured, in which order, and where each read goes.
//!
//! Rounds go over all jobs, so that what disturbs a machine for a while disturbs all alike. No
//! clock, no I/O. Bounded by the constants below.

use core::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use load::random::Random;
use serde::{Deserialize, Serialize};

use crate::args::DiskArgs;
use crate::fio::Engine;

/// Most reads in flight; for `psync` of fio, threads.
pub(crate) const WINDOW_MAX: u32 = 1024;
/// Smallest and largest read, bytes: what a slot can be.
pub(crate) const READ_BYTES_MIN: u32 = memory::SLOT_ALIGNMENT_BYTES;
pub(crate) const READ_BYTES_MAX: u32 = memory::SLOT_BYTES_MAX;
/// Most memory of one window of reads, bytes.
const WINDOW_BYTES_MAX: u64 = 1 << 30;
/// Shortest and longest measurement, seconds.
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 3600.0;
/// Most rounds.
const ROUNDS_MAX: u32 = 1000;

/// What a measurement belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Series {
    /// Throughput and latency by reads in flight (the paper's figure 6)
    Window,
    /// Throughput, latency and CPU time by size of a read (figures 8 to 10)
    Size,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// What it belongs to.
    pub series: Series,
    /// Bytes of a read.
    pub read_bytes: u32,
    /// Reads in flight.
    pub window: u32,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            read_bytes, window, ..
        } = self;
        write!(f, "{read_bytes} bytes x {window}")
    }
}

/// A job in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// Its place in [`Plan::jobs`].
    pub(crate) index: usize,
    pub(crate) job: Job,
    /// From 0.
    pub(crate) round: u32,
}

/// All that is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) jobs: Vec<Job>,
    /// Of fio, beside each job.
    pub(crate) engines: Vec<Engine>,
    pub(crate) rounds: u32,
    pub(crate) time: Duration,
    pub(crate) verifies: bool,
}

impl Plan {
    /// Resolves a command line.
    pub(crate) fn new(args: &DiskArgs) -> Result<Self> {
        ensure!(
            (SECONDS_MIN..=SECONDS_MAX).contains(&args.seconds),
            "--seconds {}: choose {SECONDS_MIN} to {SECONDS_MAX}",
            args.seconds
        );
        ensure!(
            (1..=ROUNDS_MAX).contains(&args.rounds),
            "--rounds {}: choose 1 to {ROUNDS_MAX}",
            args.rounds
        );
        let mut jobs = Vec::new();
        if args.series.contains(&Series::Window) {
            add(&mut jobs, Series::Window, &args.window_sizes, &args.windows)?;
        }
        if args.series.contains(&Series::Size) {
            add(&mut jobs, Series::Size, &args.sizes, &args.size_windows)?;
        }
        let mut engines = Vec::new();
        for &engine in &args.fio {
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
        Ok(Self {
            jobs,
            engines,
            rounds: args.rounds,
            time: Duration::from_secs_f64(args.seconds),
            verifies: args.verify,
        })
    }

    /// Refuses a file whose reads would not be different ones, or not be whole blocks.
    pub(crate) fn check(&self, size_bytes: u64, block_bytes: u32) -> Result<()> {
        for job in &self.jobs {
            ensure!(
                job.read_bytes.is_multiple_of(block_bytes),
                "{job}: the disk reads whole blocks of {block_bytes} bytes; choose such sizes"
            );
        }
        let largest = |job: &Job| u64::from(job.read_bytes) * u64::from(job.window);
        let needed_bytes = self.jobs.iter().map(largest).max().unwrap_or(0);
        ensure!(
            size_bytes >= needed_bytes,
            "{size_bytes} bytes are too few: the largest window of reads is {needed_bytes}; name \
             a larger file, make one with --make FILE --bytes N, or choose smaller windows or \
             sizes"
        );
        Ok(())
    }

    /// Every job of the first round, then of the second, and so on. Every other round goes
    /// backwards, so that no job always follows the same one.
    pub(crate) fn turns(&self) -> impl Iterator<Item = Turn> + '_ {
        (0..self.rounds).flat_map(move |round| {
            (0..self.jobs.len()).map(move |place| {
                let is_forward = round.is_multiple_of(2);
                let index = if is_forward {
                    place
                } else {
                    self.jobs.len() - 1 - place
                };
                let job = self.jobs[index];
                Turn { index, job, round }
            })
        })
    }

    pub(crate) fn turn_count(&self) -> usize {
        self.jobs.len() * self.rounds as usize
    }
}

fn add(jobs: &mut Vec<Job>, series: Series, sizes: &[u64], windows: &[u32]) -> Result<()> {
    for &size in sizes {
        let read_bytes = u32::try_from(size)
            .ok()
            .filter(|size| (READ_BYTES_MIN..=READ_BYTES_MAX).contains(size))
            .filter(|size| size.is_multiple_of(READ_BYTES_MIN))
            .with_context(|| {
                format!(
                    "reads of {size} bytes: choose multiples of {READ_BYTES_MIN}, at most \
                     {READ_BYTES_MAX}"
                )
            })?;
        for &window in windows {
            ensure!(
                (1..=WINDOW_MAX).contains(&window),
                "a window of {window} reads: choose 1 to {WINDOW_MAX}"
            );
            ensure!(
                size * u64::from(window) <= WINDOW_BYTES_MAX,
                "{window} reads of {size} bytes take more than {WINDOW_BYTES_MAX} bytes of memory"
            );
            let job = Job {
                series,
                read_bytes,
                window,
            };
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
    }
    Ok(())
}

/// Where reads go: random multiples of their size, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    random: Random,
    read_bytes: u64,
    places: u64,
}

impl Offsets {
    /// # Panics
    /// If not even one read fits: [`Plan::check`] has refused that.
    pub(crate) fn new(seed: u64, read_bytes: u32, size_bytes: u64) -> Self {
        let read_bytes = u64::from(read_bytes);
        let places = size_bytes / read_bytes;
        assert!(
            places > 0,
            "invariant: the plan was checked against the file"
        );
        Self {
            random: Random::new(seed),
            read_bytes,
            places,
        }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.random.below(self.places) * self.read_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(sizes: &[u64], windows: &[u32]) -> Result<Plan> {
        let mut jobs = Vec::new();
        add(&mut jobs, Series::Size, sizes, windows)?;
        Ok(Plan {
            jobs,
            engines: Vec::new(),
            rounds: 2,
            time: Duration::from_millis(1),
            verifies: false,
        })
    }

    #[test]
    fn every_job_has_its_turn_in_every_round() {
        let plan = plan(&[4096, 8192, 4096], &[1, 2]).unwrap();
        let turns: Vec<_> = plan.turns().collect();
        assert_eq!(turns.len(), plan.turn_count());
        assert_eq!(turns.len(), 8, "what is named twice is measured once");
        let first: Vec<_> = turns[..4].iter().map(|turn| turn.index).collect();
        let second: Vec<_> = turns[4..].iter().map(|turn| turn.index).rev().collect();
        assert_eq!(first, (0..4).collect::<Vec<_>>());
        assert_eq!(first, second);
        assert!(turns[4..].iter().all(|turn| turn.round == 1));
    }

    #[test]
    fn sizes_and_windows_have_limits() {
        assert!(plan(&[4096, 1 << 20], &[1, 1024]).is_ok());
        for (size, window) in [
            (0, 1),
            (2048, 1),
            (4097, 1),
            ((1 << 20) + 4096, 1),
            (1 << 33, 1),
            (4096, 0),
            (4096, 1025),
        ] {
            assert!(plan(&[size], &[window]).is_err(), "{size} x {window}");
        }
    }

    #[test]
    fn a_short_file_is_refused_with_a_remedy() {
        let plan = plan(&[65_536], &[4]).unwrap();
        assert!(plan.check(4 * 65_536, 4096).is_ok());
        let refusal = plan.check(4 * 65_536 - 1, 4096).unwrap_err().to_string();
        assert!(refusal.contains("--make"), "{refusal}");
        assert!(plan.check(1 << 30, 131_072).is_err(), "less than a block");
    }

    #[test]
    fn offsets_are_everywhere_and_whole_reads() {
        let size_bytes = 64 * 4096 + 4095;
        let mut offsets = Offsets::new(1, 4096, size_bytes);
        let drawn: BTreeSet<_> = (0..2000).map(|_| offsets.draw()).collect();
        assert_eq!(drawn.len(), 64);
        assert!(drawn.iter().all(|offset| offset % 4096 == 0));
        assert_eq!(drawn.last(), Some(&(63 * 4096)));
    }

    #[test]
    fn a_seed_gives_the_same_offsets_and_another_others() {
        let draw = |seed| {
            let mut offsets = Offsets::new(seed, 4096, 1 << 30);
            (0..8).map(|_| offsets.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
