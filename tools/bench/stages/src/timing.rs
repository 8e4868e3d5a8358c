//! The clocks around a stage: warm-up, then a window in which bytes and busy time are counted.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use testbed::cores::{CoreSeconds, CoreTime};

use crate::args::StagesArgs;

/// Left out before the window: caches, queues and TCP windows fill.
const WARM_UP: Duration = Duration::from_millis(200);

/// Shortest and longest window, seconds.
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 3600.0;

/// A stage.
pub(crate) trait Step {
    /// Does one batch: the bytes that are through.
    fn step(&mut self) -> Result<u64>;

    /// What to know of the figure: why it is slower than it could be, for one.
    fn note(&self) -> Option<String> {
        None
    }
}

/// What a stage did in its window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Which.
    pub stage: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Length of the window.
    pub seconds: f64,
    /// CPU seconds of this process for each GB.
    pub cpu_seconds_per_gigabyte: f64,
    /// What the cores watched did, whoever made them.
    pub cores: Vec<CoreSeconds>,
    /// What to know of the figure: why it was slower than it could be, and what to do.
    pub note: Option<String>,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of one window are far below 2^52"
)]
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// When a window ends and whom it watches.
#[derive(Debug)]
pub(crate) struct Timing {
    window: Duration,
    cores: Vec<usize>,
}

impl Timing {
    pub(crate) fn new(args: &StagesArgs) -> Result<Self> {
        ensure!(
            (SECONDS_MIN..=SECONDS_MAX).contains(&args.seconds),
            "--seconds {}: choose {SECONDS_MIN} to {SECONDS_MAX}",
            args.seconds
        );
        Ok(Self {
            window: Duration::from_secs_f64(args.seconds),
            cores: args.watch_core.clone(),
        })
    }

    /// Steps through the warm-up and the window.
    pub(crate) fn run(&self, stage: &str, step: &mut dyn Step) -> Result<Report> {
        steps(step, WARM_UP)?;
        let before = CoreTime::now(&self.cores)?;
        let (start, cpu) = (Instant::now(), cpu_time());
        let bytes = steps(step, self.window)?;
        let (seconds, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
        let after = CoreTime::now(&self.cores)?;
        ensure!(
            bytes > 0,
            "nothing was through within {} s: measure for longer with --seconds",
            self.window.as_secs_f64()
        );
        Ok(Report {
            stage: stage.to_owned(),
            bytes,
            seconds: seconds.as_secs_f64(),
            cpu_seconds_per_gigabyte: cpu.as_secs_f64() / gigabytes(bytes),
            cores: after
                .into_iter()
                .zip(before)
                .map(|(after, before)| after.since(before))
                .collect(),
            note: step.note(),
        })
    }
}

fn steps(step: &mut dyn Step, time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < time {
        bytes += step.step()?;
    }
    Ok(bytes)
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Idle(u64);

    impl Step for Idle {
        fn step(&mut self) -> Result<u64> {
            Ok(self.0)
        }
    }

    fn timing(cores: &[usize]) -> Timing {
        Timing {
            window: Duration::from_millis(1),
            cores: cores.to_vec(),
        }
    }

    #[test]
    fn a_window_counts_whole_steps_and_the_cores_asked_for() {
        let report = timing(&[0]).run("idle", &mut Idle(7)).unwrap();
        assert!(
            report.bytes >= 7 && report.bytes.is_multiple_of(7),
            "{report:?}"
        );
        assert!(report.seconds >= 0.001, "{report:?}");
        assert_eq!(report.cores.len(), 1);
    }

    #[test]
    fn nothing_is_no_figure() {
        assert!(timing(&[]).run("idle", &mut Idle(0)).is_err());
    }
}
