//! Busy time of one core, from `/proc/stat`.

use std::fs;
use std::ops::Sub;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Ticks a second of the figures in `/proc/stat` (`USER_HZ`, fixed by the kernel's interface).
const TICKS_PER_SECOND: f64 = 100.0;

/// Time of one core since boot or over a window, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CoreTime {
    /// user + nice + system + irq + softirq.
    pub(crate) busy: u64,
    /// Waiting for work or a disk.
    pub(crate) idle: u64,
    /// Taken by the hypervisor: neither ours nor idle; reported beside.
    pub(crate) steal: u64,
}

impl CoreTime {
    /// Reads the figures of one core.
    pub(crate) fn now(core: usize) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Self::parse(&stat, core).with_context(|| format!("no cpu{core} in /proc/stat"))
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
            busy: user + nice + system + irq + softirq,
            idle: idle + iowait,
            steal,
        })
    }

    /// Busy seconds.
    pub(crate) fn busy_seconds(self) -> f64 {
        seconds(self.busy)
    }

    /// Seconds the hypervisor took.
    pub(crate) fn steal_seconds(self) -> f64 {
        seconds(self.steal)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ticks since boot are far below 2^52"
)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

impl Sub for CoreTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            steal: self.steal.saturating_sub(before.steal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_found_and_its_columns_are_sorted() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 0 0 0 1 0 0 0 0 0 0\n";
        let time = CoreTime::parse(stat, 0).expect("cpu0");
        assert_eq!(
            time,
            CoreTime {
                busy: 1 + 2 + 3 + 6 + 7,
                idle: 4 + 5,
                steal: 8
            }
        );
        assert_eq!(CoreTime::parse(stat, 1).expect("cpu1").idle, 1);
        assert_eq!(CoreTime::parse(stat, 2), None);
    }
}
