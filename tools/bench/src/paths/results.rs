//! What was measured: runs over paths. A run that did not count is in it, with the reason.
//!
//! It refuses what `stored` refuses. Bounded by: the file.

use std::path::Path as FilePath;

use anyhow::Result;
use bottleneck::LegCounts;
use bottleneck::path::Report;
use serde::{Deserialize, Serialize};

use super::plan::{Cell, Sender, Task, is_default};
use crate::stored::{self, Environment, float};

/// Share of a direction's frames that may leave the middlebox late without the run being disturbed.
pub(crate) const LATE_SHARE_MAX: f64 = 0.005;

/// One connection of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// What the client read of the reply.
    pub(crate) bytes: u64,
    /// In which time.
    pub(crate) seconds: f64,
    /// Payload bytes that the server sent until the path was closed, as the middlebox saw them.
    pub(crate) sent_bytes: u64,
    /// Of these, for the second time or more.
    pub(crate) resent_bytes: u64,
    /// Longest time between two of its segments, microseconds.
    pub(crate) pause_us_max: u64,
}

impl Flow {
    /// Goodput, as a share of the rate.
    pub(crate) fn goodput(&self) -> f64 {
        Cell::share(self.bytes, self.seconds)
    }

    /// Bytes sent again, as a share of those sent.
    pub(crate) fn resent(&self) -> f64 {
        float(self.resent_bytes) / float(self.sent_bytes.max(1))
    }
}

/// What a run gave.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// In the order of the senders.
    pub(crate) flows: Vec<Flow>,
    /// What the path did.
    pub(crate) path: Path,
}

/// What a path did, as far as a page tells it or a run is judged by it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Path {
    /// From the server to the client.
    pub(crate) forth: Punctuality,
    pub(crate) back: Punctuality,
    /// From the server to the client: frames that the random loss took, and those the buffer had no room for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) lost_frames: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) full_frames: u64,
    /// Of both directions: frames above the MTU, and those that a TAP lost. There should be none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) oversize_frames: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) tap_drops: u64,
    /// How much of a core the middlebox took.
    pub(crate) cpu_share: f64,
    /// Whether it ran ahead of other work.
    pub(crate) is_realtime: bool,
}

/// To four digits behind the point: more say nothing, and make a page's data larger than what may be kept.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// How a direction's frames left the middlebox.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Punctuality {
    pub(crate) frames: u64,
    /// Of these, late.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) late_frames: u64,
    pub(crate) late_us_max: u64,
}

impl Path {
    /// The longest delay of a frame that was not asked for, microseconds.
    pub(crate) fn late_us_max(&self) -> u64 {
        self.forth.late_us_max.max(self.back.late_us_max)
    }
}

impl From<&Report> for Path {
    fn from(report: &Report) -> Self {
        let counts = &report.counts;
        let punctuality = |leg: &LegCounts| Punctuality {
            frames: leg.arrived_frames,
            late_frames: leg.late_frames,
            late_us_max: leg.late_us_max,
        };
        Self {
            forth: punctuality(&counts.forth),
            back: punctuality(&counts.back),
            lost_frames: counts.forth.lost_frames,
            full_frames: counts.forth.full_frames,
            oversize_frames: counts.forth.oversize_frames + counts.back.oversize_frames,
            tap_drops: report.tap_drops,
            cpu_share: rounded(counts.cpu_seconds / counts.seconds),
            is_realtime: counts.is_realtime,
        }
    }
}

impl Measured {
    /// What the instrument did to the run that it should not have; `None`: nothing.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let path = &self.path;
        if path.tap_drops > 0 {
            return Some(format!("a TAP lost {} frames", path.tap_drops));
        }
        if path.oversize_frames > 0 {
            return Some(format!("{} frames above the MTU", path.oversize_frames));
        }
        let mut legs = [path.forth, path.back].into_iter();
        let late = legs.find(|leg| leg.late_share() > LATE_SHARE_MAX)?;
        Some(format!(
            "{:.1} % of the frames late, up to {} us",
            100.0 * late.late_share(),
            late.late_us_max
        ))
    }
}

impl Punctuality {
    /// Share of the frames that left late.
    pub(crate) fn late_share(&self) -> f64 {
        float(self.late_frames) / float(self.frames.max(1))
    }
}

/// How a run went.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured(Box<Measured>),
    /// Why nothing was measured.
    Failed(String),
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) round: u64,
    pub(crate) cell: Cell,
    pub(crate) senders: Vec<Sender>,
    /// How many runs before it were disturbed or failed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) repeats: u32,
    pub(crate) outcome: Outcome,
}

impl Run {
    pub(crate) fn new(task: &Task, repeats: u32, outcome: Outcome) -> Self {
        Self {
            round: task.round,
            cell: task.cell,
            senders: task.senders.clone(),
            repeats,
            outcome,
        }
    }

    /// What it gave, disturbed or not.
    pub(crate) fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Measured(measured) => Some(measured),
            Outcome::Failed(_) => None,
        }
    }

    /// Whether it counts.
    pub(crate) fn is_good(&self) -> bool {
        self.measured().is_some_and(|it| it.disturbance().is_none())
    }

    /// One line, for the terminal.
    pub(crate) fn line(&self) -> String {
        let senders: Vec<String> = self.senders.iter().map(ToString::to_string).collect();
        let (cell, senders) = (self.cell, senders.join(" beside "));
        let measured = match &self.outcome {
            Outcome::Measured(measured) => measured,
            Outcome::Failed(why) => return format!("{cell}, {senders}: FAILED: {why}"),
        };
        let flows = measured.flows.iter();
        let flows: Vec<String> = flows
            .map(|it| {
                let (goodput, resent) = (100.0 * it.goodput(), 100.0 * it.resent());
                format!("{goodput:.1} % ({resent:.1} % resent)")
            })
            .collect();
        let late = measured.path.late_us_max();
        let mut text = format!("{cell}, {senders}: {}, late {late} us", flows.join(", "));
        if let Some(why) = measured.disturbance() {
            text = format!("{text}: DISTURBED: {why}");
        }
        text
    }
}

/// Everything that was measured at one time.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Results {
    pub(crate) environment: Environment,
    pub(crate) runs: Vec<Run>,
}

impl Results {
    /// Reads a file.
    pub(crate) fn read(path: &FilePath) -> Result<Self> {
        let (environment, runs) = stored::read(path)?;
        Ok(Self { environment, runs })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{Impairment, Stack};
    use super::*;
    use crate::stored::Writer;
    use crate::stored::tests::environment;

    pub(in crate::paths) const CELL: Cell = Cell {
        rtt_millis: 40,
        loss_ppm: 1_000,
        buffer_tenths: 10,
        impairment: Impairment::None,
    };

    const PUNCTUAL: Punctuality = Punctuality {
        frames: 0,
        late_frames: 0,
        late_us_max: 0,
    };

    pub(in crate::paths) fn sender(stack: Stack) -> Sender {
        Sender::new(stack, "cubic")
    }

    /// A run of these senders, each with so many percent of the rate.
    pub(in crate::paths) fn run(round: u64, cell: Cell, shares: &[(Stack, u64)]) -> Run {
        let flow = |(_, percent): &(Stack, u64)| Flow {
            bytes: percent * super::super::plan::RATE_BITS / 8 / 100,
            seconds: 1.0,
            sent_bytes: 1_000,
            resent_bytes: 10,
            pause_us_max: 40_000,
        };
        Run {
            round,
            cell,
            senders: shares.iter().map(|(stack, _)| sender(*stack)).collect(),
            repeats: 0,
            outcome: Outcome::Measured(Box::new(Measured {
                flows: shares.iter().map(flow).collect(),
                path: Path {
                    forth: Punctuality {
                        frames: 1_000,
                        ..PUNCTUAL
                    },
                    back: PUNCTUAL,
                    lost_frames: 0,
                    full_frames: 0,
                    oversize_frames: 0,
                    tap_drops: 0,
                    cpu_share: 0.1,
                    is_realtime: true,
                },
            })),
        }
    }

    fn change(run: &mut Run, change: impl FnOnce(&mut Path)) {
        if let Outcome::Measured(measured) = &mut run.outcome {
            change(&mut measured.path);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.jsonl");
        let mut runs = vec![run(1, CELL, &[(Stack::Atlas, 50), (Stack::Linux, 40)])];
        runs.push(Run {
            outcome: Outcome::Failed("no reply".to_owned()),
            ..runs[0].clone()
        });
        let mut writer = Writer::create(&path, &environment()).unwrap();
        for run in &runs {
            writer.add(run).unwrap();
        }
        let results = Results::read(&path).unwrap();
        assert_eq!(results.environment, environment());
        assert_eq!(results.runs, runs);
        let flows = &results.runs[0].measured().unwrap().flows;
        assert!((flows[1].goodput() - 0.4).abs() < 1e-9);
        assert!((flows[1].resent() - 0.01).abs() < 1e-9);
        assert!(!results.runs[1].is_good());
    }

    #[test]
    fn a_run_counts_up_to_five_late_frames_in_a_thousand_and_without_drops_of_a_tap() {
        let good = run(1, CELL, &[(Stack::Atlas, 50)]);
        let with = |change_path: fn(&mut Path)| {
            let mut run = good.clone();
            change(&mut run, change_path);
            run.is_good()
        };
        assert!(good.is_good());
        assert!(with(|it| it.forth.late_frames = 5));
        assert!(!with(|it| it.forth.late_frames = 6));
        assert!(!with(|it| it.tap_drops = 1));
        assert!(!with(|it| it.oversize_frames = 1));
    }
}
