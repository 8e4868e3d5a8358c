//! Busy time of cores, from `/proc/stat`: what a server on the same machine spent in the window.
//!
//! It is the time that passed less what the core was idle and what the hypervisor took, both of which most
//! kernels measure (`NO_HZ_IDLE`). It is not the sum of user, system and the like: these are counted by the timer's
//! ticks (`TICK_CPU_ACCOUNTING`), which an idle core has none of, so work in pieces shorter than a tick is
//! counted in part: of 50 us in each 150, three quarters. Where a kernel counts idle time by ticks,
//! both are the same.
//!
//! Bounded by: a hundredth of a second, the kernel's own unit.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Ticks a second of the figures in `/proc/stat` (`USER_HZ`, fixed by the kernel's interface).
const TICKS_PER_SECOND: f64 = 100.0;

/// What one core did not work since boot, in ticks, and when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTime {
    core: usize,
    at: Instant,
    /// Waiting for work or a disk.
    idle: u64,
    /// Taken by the hypervisor: neither ours nor idle.
    steal: u64,
}

/// A window of one core in seconds, as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreSeconds {
    /// Which core.
    pub core: usize,
    /// Neither idle nor taken by the hypervisor.
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
        let at = Instant::now();
        let time = |core: &usize| {
            Self::parse(&stat, *core, at).with_context(|| format!("no cpu{core} in /proc/stat"))
        };
        cores.iter().map(time).collect()
    }

    fn parse(stat: &str, core: usize, at: Instant) -> Option<Self> {
        let (idle, steal) = not_busy_ticks(stat, &format!("cpu{core}"))?;
        Some(Self {
            core,
            at,
            idle,
            steal,
        })
    }

    /// What has passed since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> CoreSeconds {
        let seconds =
            |after: u64, before: u64| float(after.saturating_sub(before)) / TICKS_PER_SECOND;
        let (idle, steal) = (
            seconds(self.idle, before.idle),
            seconds(self.steal, before.steal),
        );
        let passed = self.at.saturating_duration_since(before.at).as_secs_f64();
        CoreSeconds {
            core: self.core,
            busy: (passed - idle - steal).max(0.0),
            idle,
            steal,
        }
    }
}

/// Ticks of a line of `/proc/stat` in which a core was idle or waited for a disk, and in which the hypervisor
/// had it: proc_stat(5).
fn not_busy_ticks(stat: &str, name: &str) -> Option<(u64, u64)> {
    let mut words = stat.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then_some(words)
    })?;
    let mut next = || words.next()?.parse::<u64>().ok();
    let (_user, _nice, _system, idle) = (next()?, next()?, next()?, next()?);
    let (iowait, _irq, _softirq, steal) = (next()?, next()?, next()?, next()?);
    Some((idle + iowait, steal))
}

#[expect(clippy::cast_precision_loss, reason = "ticks are far below 2^52")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                        cpu0 1 2 3 4 5 6 7 8 0 0\n\
                        cpu1 0 0 0 1 0 0 0 0 0 0\n";

    #[test]
    fn a_core_is_found_and_its_columns_are_sorted() {
        let at = Instant::now();
        let time = CoreTime::parse(STAT, 0, at).expect("cpu0");
        assert_eq!((time.idle, time.steal), (9, 8));
        assert_eq!(CoreTime::parse(STAT, 1, at).expect("cpu1").idle, 1);
        assert_eq!(CoreTime::parse(STAT, 2, at), None);
    }

    #[test]
    fn what_is_neither_idle_nor_stolen_is_busy() {
        let at = Instant::now();
        let before = CoreTime::parse(STAT, 1, at).expect("cpu1");
        let seconds = |milliseconds| {
            let at = at + Duration::from_millis(milliseconds);
            let after = CoreTime::parse(STAT, 0, at).expect("cpu0");
            after.since(before)
        };
        let (idle, steal) = (0.08, 0.08);
        for (passed, busy) in [(1000, 0.84), (161, 0.001), (160, 0.0), (100, 0.0)] {
            let found = seconds(passed);
            assert!((found.busy - busy).abs() < 1e-9, "{found:?}");
            assert!((found.idle - idle).abs() < 1e-9, "{found:?}");
            assert!((found.steal - steal).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn only_cores_there_are_can_be_watched() {
        assert_eq!(CoreTime::now(&[]).expect("nothing").len(), 0);
        assert_eq!(CoreTime::now(&[0]).expect("the first").len(), 1);
        assert!(CoreTime::now(&[usize::MAX]).is_err());
    }
}
