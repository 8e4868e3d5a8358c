//! Busy time of cores, from `/proc/stat`: what a server on the same machine spent in the window.
//!
//! Bounded by: a hundredth of a second, the kernel's own unit.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Ticks a second of the figures in `/proc/stat` (`USER_HZ`, fixed by the kernel's interface).
const TICKS_PER_SECOND: f64 = 100.0;

/// Time of one core since boot or over a window, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTime {
    core: usize,
    /// user + nice + system + irq + softirq.
    busy: u64,
    /// Waiting for work or a disk.
    idle: u64,
    /// Taken by the hypervisor: neither ours nor idle.
    steal: u64,
}

/// The same in seconds, as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreSeconds {
    /// Which core.
    pub core: usize,
    /// user + nice + system + irq + softirq.
    pub busy: f64,
    /// Waiting for work or a disk.
    pub idle: f64,
    /// Taken by the hypervisor: neither ours nor idle.
    pub steal: f64,
}

impl CoreTime {
    /// Reads the figures of some cores.
    ///
    /// # Errors
    /// A core this machine does not have.
    pub fn now(cores: &[usize]) -> Result<Vec<Self>> {
        if cores.is_empty() {
            return Ok(Vec::new());
        }
        let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let time = |core: &usize| {
            Self::parse(&stat, *core).with_context(|| format!("no cpu{core} in /proc/stat"))
        };
        cores.iter().map(time).collect()
    }

    fn parse(stat: &str, core: usize) -> Option<Self> {
        let name = format!("cpu{core}");
        let mut words = stat.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == name).then_some(words)
        })?;
        let mut next = || words.next()?.parse::<u64>().ok();
        let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
        let (iowait, irq, softirq, steal) = (next()?, next()?, next()?, next()?);
        Some(Self {
            core,
            busy: user + nice + system + irq + softirq,
            idle: idle + iowait,
            steal,
        })
    }

    /// What has passed since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> CoreSeconds {
        let seconds = |after: u64, before: u64| {
            crate::stats::float(after.saturating_sub(before)) / TICKS_PER_SECOND
        };
        CoreSeconds {
            core: self.core,
            busy: seconds(self.busy, before.busy),
            idle: seconds(self.idle, before.idle),
            steal: seconds(self.steal, before.steal),
        }
    }
}

/// Time in which any core of the machine was busy, since boot: all cores' times added.
///
/// # Errors
/// `/proc/stat` cannot be read.
pub fn all_busy() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let ticks = busy_ticks(&stat).context("/proc/stat has no line of all cores")?;
    Ok(Duration::from_secs_f64(
        crate::stats::float(ticks) / TICKS_PER_SECOND,
    ))
}

/// Ticks in which cores were not idle, from the text of `/proc/stat`; `None` if it is none.
/// Waiting for a disk is idle; time the host took away is not ours to count.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal ...: proc_stat(5).
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else {
        return None;
    };
    Some(user + nice + system + irq + softirq)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                        cpu0 1 2 3 4 5 6 7 8 0 0\n\
                        cpu1 0 0 0 1 0 0 0 0 0 0\n";

    #[test]
    fn a_core_is_found_and_its_columns_are_sorted() {
        let time = CoreTime::parse(STAT, 0).expect("cpu0");
        assert_eq!(
            (time.busy, time.idle, time.steal),
            (1 + 2 + 3 + 6 + 7, 9, 8)
        );
        assert_eq!(CoreTime::parse(STAT, 1).expect("cpu1").idle, 1);
        assert_eq!(CoreTime::parse(STAT, 2), None);
    }

    #[test]
    fn a_window_is_in_seconds() {
        let (before, after) = (CoreTime::parse(STAT, 1), CoreTime::parse(STAT, 0));
        let seconds = after.expect("cpu0").since(before.expect("cpu1"));
        assert!((seconds.busy - 0.19).abs() < 1e-9, "{seconds:?}");
        assert!((seconds.idle - 0.08).abs() < 1e-9, "{seconds:?}");
    }

    #[test]
    fn only_cores_there_are_can_be_watched() {
        assert_eq!(CoreTime::now(&[]).expect("nothing").len(), 0);
        assert_eq!(CoreTime::now(&[0]).expect("the first").len(), 1);
        assert!(CoreTime::now(&[usize::MAX]).is_err());
    }

    #[test]
    fn what_a_core_waits_is_not_busy() {
        let text = "cpu  1 2 4 1000 2000 8 16 4000 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_ticks(text), Some(31));
        assert_eq!(busy_ticks("cpu  1 2 4\n"), None);
        assert_eq!(busy_ticks(""), None);
    }
}
