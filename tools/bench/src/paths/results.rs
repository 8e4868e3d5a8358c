//! What was measured, as it is stored: JSON lines, the first the environment, each further one a run.
//!
//! A run that did not count is in it, with the reason. It refuses files of another format. Bounded by:
//! [`FILE_BYTES_MAX`] when reading.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bottleneck::LegCounts;
use serde::{Deserialize, Serialize};

use super::plan::{Cell, Sender, Task};

/// Version of the format.
pub(crate) const FORMAT: u32 = 1;

const FILE_BYTES_MAX: u64 = 64 << 20;

/// Share of a direction's frames that may leave the middlebox late without the run being disturbed.
pub(crate) const LATE_SHARE_MAX: f64 = 0.005;

/// On what it ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// What to type to do it again.
    pub(crate) command: String,
    /// What order and losses were drawn from.
    pub(crate) seed: u64,
    /// Everything else, `(name, value)`.
    pub(crate) machine: Vec<(String, String)>,
}

/// One connection of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) sender: Sender,
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
    /// Processor time of Atlas.
    pub(crate) atlas_cpu_seconds: Option<f64>,
    /// Whether Atlas ran ahead of other work.
    pub(crate) is_atlas_realtime: bool,
    /// What the path did.
    pub(crate) report: bottleneck::path::Report,
}

impl Measured {
    /// What the instrument did to the run that it should not have; `None`: nothing.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let counts = &self.report.counts;
        if self.report.tap_drops > 0 {
            return Some(format!("a TAP lost {} frames", self.report.tap_drops));
        }
        for leg in [&counts.forth, &counts.back] {
            if leg.oversize_frames > 0 {
                return Some(format!("{} frames above the MTU", leg.oversize_frames));
            }
            if late_share(leg) > LATE_SHARE_MAX {
                return Some(format!(
                    "{:.1} % of the frames late, up to {} us",
                    100.0 * late_share(leg),
                    leg.late_us_max
                ));
            }
        }
        None
    }
}

/// Share of a direction's frames that left late.
pub(crate) fn late_share(leg: &LegCounts) -> f64 {
    float(leg.late_frames) / float(leg.arrived_frames.max(1))
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
        let counts = &measured.report.counts;
        let late = counts.forth.late_us_max.max(counts.back.late_us_max);
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
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let size = fs::metadata(path).with_context(|| format!("looking at {name}"))?;
        ensure!(
            size.len() <= FILE_BYTES_MAX,
            "{name} has more than {FILE_BYTES_MAX} bytes"
        );
        let text = fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        Self::parse(&text).with_context(|| format!("{name} is no file of results"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let first = lines.next().context("it is empty")?;
        let environment: Environment = serde_json::from_str(first).context("line 1")?;
        ensure!(
            environment.format == FORMAT,
            "it is of format {}, this is {FORMAT}",
            environment.format
        );
        let runs = lines.enumerate().map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}", index + 2))
        });
        Ok(Self {
            environment,
            runs: runs.collect::<Result<_>>()?,
        })
    }
}

/// A file of results being written.
#[derive(Debug)]
pub(crate) struct Writer(File);

impl Writer {
    /// Begins a file; one that is there is gone.
    pub(crate) fn create(path: &Path, environment: &Environment) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        let mut writer = Self(file);
        writer.line(environment)?;
        Ok(writer)
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, run: &Run) -> Result<()> {
        self.line(run)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(value)?;
        line.push('\n');
        self.0
            .write_all(line.as_bytes())
            .context("writing the results")
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of one run are far below 2^52"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::Stack;
    use super::*;
    use bottleneck::PathCounts;
    use bottleneck::path::Report;

    pub(in crate::paths) const CELL: Cell = Cell {
        rtt_millis: 40,
        loss_ppm: 1_000,
        buffer_tenths: 10,
    };

    pub(in crate::paths) fn sender(stack: Stack) -> Sender {
        Sender::new(stack, "cubic")
    }

    /// A run of these senders, each with so many percent of the rate.
    pub(in crate::paths) fn run(round: u64, cell: Cell, shares: &[(Stack, u64)]) -> Run {
        let flow = |(stack, percent): &(Stack, u64)| Flow {
            sender: sender(*stack),
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
                atlas_cpu_seconds: None,
                is_atlas_realtime: true,
                report: Report {
                    counts: PathCounts {
                        forth: LegCounts {
                            arrived_frames: 1_000,
                            ..LegCounts::default()
                        },
                        back: LegCounts::default(),
                        flows: Vec::new(),
                        seconds: 1.0,
                        cpu_seconds: 0.1,
                        is_realtime: true,
                    },
                    tap_drops: 0,
                },
            })),
        }
    }

    pub(in crate::paths) fn environment() -> Environment {
        Environment {
            format: FORMAT,
            command: "cargo xtask bench paths".to_owned(),
            seed: 3,
            machine: vec![("kernel".to_owned(), "Linux".to_owned())],
        }
    }

    fn change(run: &mut Run, change: impl FnOnce(&mut Report)) {
        if let Outcome::Measured(measured) = &mut run.outcome {
            change(&mut measured.report);
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
    fn another_format_and_broken_lines_are_refused() {
        let good = serde_json::to_string(&environment()).unwrap();
        assert!(Results::parse(&good).is_ok());
        let other = good.replace("\"format\":1", "\"format\":2");
        let error = Results::parse(&other).unwrap_err().to_string();
        assert!(error.contains("format 2"), "{error}");
        let error = Results::parse(&format!("{good}\n{{}}\n")).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(Results::parse("").is_err());
    }

    #[test]
    fn a_run_counts_up_to_five_late_frames_in_a_thousand_and_without_drops_of_a_tap() {
        let good = run(1, CELL, &[(Stack::Atlas, 50)]);
        let with = |change_report: fn(&mut Report)| {
            let mut run = good.clone();
            change(&mut run, change_report);
            run.is_good()
        };
        assert!(good.is_good());
        assert!(with(|it| it.counts.forth.late_frames = 5));
        assert!(!with(|it| it.counts.forth.late_frames = 6));
        assert!(!with(|it| it.tap_drops = 1));
        assert!(!with(|it| it.counts.back.oversize_frames = 1));
    }
}
