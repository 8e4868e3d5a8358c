//! What was measured, as it is stored: a file of JSON lines, the first of them the environment, each
//! further one a turn or a stage's window, written when it is over.
//!
//! Reports are made from such a file alone. Turns that do not count are in it, with the reason. It
//! refuses files of another format. Bounded by: [`FILE_BYTES_MAX`] when reading.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::stages::StageWindow;

/// Version of the format.
pub(crate) const FORMAT: u32 = 1;

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// On what it ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// The command that made it.
    pub(crate) command: String,
    /// What the order of the turns was drawn from.
    pub(crate) seed: u64,
    /// Size of each object, bytes.
    pub(crate) object_bytes: u32,
    /// Everything else, `(name, value)`.
    pub(crate) machine: Vec<(String, String)>,
}

/// Delays in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Delay {
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) p999_us: u64,
}

/// What a window gave.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Bytes of bodies that came in it.
    pub(crate) body_bytes: u64,
    /// Replies that ended in it.
    pub(crate) replies: u64,
    /// Replies of the sample, of which bytes were compared.
    pub(crate) verified_replies: u64,
    /// Busy seconds of the server's core.
    pub(crate) server_busy: f64,
    /// Busy seconds of the clients' core, the disk's copying included.
    pub(crate) client_busy: f64,
    /// Seconds that the hypervisor took of the core it took more of.
    pub(crate) stolen: f64,
    /// Bytes read from the disk for each byte of bodies served, from the first request to the last.
    pub(crate) disk_share: f64,
    /// Bytes that Atlas says it sent of bodies for each that came.
    pub(crate) server_share: Option<f64>,
    /// From a request to its reply's first byte.
    pub(crate) first_byte: Delay,
    /// From a request to its reply's last byte.
    pub(crate) whole: Delay,
    /// Jain's index over the connections' bytes in the window, 1: all the same.
    pub(crate) fairness: Option<f64>,
    /// Resident memory of the server's processes at the end, bytes, the kernel's sockets excluded.
    pub(crate) server_memory: u64,
    /// Seconds of the server's core that the filter of the wire took.
    pub(crate) filter: f64,
}

impl Measured {
    /// Rate of the bodies, Gb/s.
    pub(crate) fn gbps(&self) -> f64 {
        float(self.body_bytes) * 8.0 / 1e9 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Busy seconds of the server's core for each GB of bodies.
    pub(crate) fn cost(&self) -> f64 {
        self.server_busy / (float(self.body_bytes) / 1e9).max(f64::MIN_POSITIVE)
    }

    /// Busy part of the server's core.
    pub(crate) fn server_load(&self) -> f64 {
        self.server_busy / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Busy part of the clients' core.
    pub(crate) fn client_load(&self) -> f64 {
        self.client_busy / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Part of the window that the hypervisor took.
    pub(crate) fn stolen_share(&self) -> f64 {
        self.stolen / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// How a turn went.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It counts.
    Measured(Measured),
    /// It does not count, and says nothing of the server: why, and what it would have been.
    Void(String, Option<Measured>),
    /// The server did not do what was asked.
    Failed(String),
}

/// One turn of one server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) round: usize,
    pub(crate) server: String,
    pub(crate) cell: Cell,
    pub(crate) outcome: Outcome,
}

/// Everything that was measured.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Results {
    pub(crate) environment: Environment,
    pub(crate) turns: Vec<Turn>,
    pub(crate) stages: Vec<StageWindow>,
}

/// The member that only the line of a stage has.
const STAGE_MEMBER: &str = "stage";

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
        let mut results = Self {
            environment,
            turns: Vec::new(),
            stages: Vec::new(),
        };
        for (index, line) in lines.enumerate() {
            let added = results.add(line);
            added.with_context(|| format!("line {}", index + 2))?;
        }
        Ok(results)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let value: serde_json::Value = serde_json::from_str(line)?;
        if value.get(STAGE_MEMBER).is_some() {
            self.stages.push(serde_json::from_value(value)?);
        } else {
            self.turns.push(serde_json::from_value(value)?);
        }
        Ok(())
    }

    /// The values that count of a server at a cell, with their rounds.
    pub(crate) fn of<'a>(
        &'a self,
        cell: &'a Cell,
        server: &'a str,
    ) -> impl Iterator<Item = (usize, &'a Measured)> {
        let turns = self.turns.iter();
        turns.filter_map(move |turn| match &turn.outcome {
            Outcome::Measured(it) if turn.cell == *cell && turn.server == server => {
                Some((turn.round, it))
            }
            _ => None,
        })
    }
}

/// A file of results being written.
#[derive(Debug)]
pub(crate) struct Writer(File);

impl Writer {
    /// Begins a file; one that is there is gone.
    pub(crate) fn create(path: &Path, environment: &Environment) -> Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        let mut writer = Self(file);
        writer.line(environment)?;
        Ok(writer)
    }

    /// Adds a turn.
    pub(crate) fn add(&mut self, turn: &Turn) -> Result<()> {
        self.line(turn)
    }

    /// Adds a stage's window.
    pub(crate) fn add_stage(&mut self, window: &StageWindow) -> Result<()> {
        self.line(window)
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
    use super::super::stages::Stage;
    use super::*;

    pub(in crate::figures) fn environment() -> Environment {
        Environment {
            format: FORMAT,
            command: "cargo xtask bench figures".to_owned(),
            seed: 3,
            object_bytes: 307_200,
            machine: vec![("kernel".to_owned(), "Linux".to_owned())],
        }
    }

    /// A turn of four seconds with so many GB and so many busy seconds of the server's core.
    pub(in crate::figures) fn turn(
        (server, round): (&str, usize),
        cell: Cell,
        (gigabytes, busy): (u64, f64),
    ) -> Turn {
        Turn {
            round,
            server: server.to_owned(),
            cell,
            outcome: Outcome::Measured(Measured {
                seconds: 4.0,
                body_bytes: gigabytes * 1_000_000_000,
                replies: 1000,
                verified_replies: 2,
                server_busy: busy,
                client_busy: 2.0,
                disk_share: 1.0,
                ..Measured::default()
            }),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/results.jsonl");
        let cell = Cell::cold(false, 64);
        let turns = vec![
            turn(("atlas", 1), cell, (2, 4.0)),
            Turn {
                outcome: Outcome::Failed("no reply".to_owned()),
                ..turn(("h2o", 1), cell, (1, 1.0))
            },
        ];
        let mut writer = Writer::create(&path, &environment()).unwrap();
        let window = StageWindow {
            stage: Stage::Read,
            connections: 64,
            bytes: 4_000_000_000,
            seconds: 2.0,
            busy: 1.0,
        };
        writer.add(&turns[0]).unwrap();
        writer.add_stage(&window).unwrap();
        writer.add(&turns[1]).unwrap();
        let results = Results::read(&path).unwrap();
        assert_eq!(results.stages, [window]);
        assert_eq!(results.environment, environment());
        assert_eq!(results.turns, turns);
        let values: Vec<_> = results.of(&cell, "atlas").collect();
        assert_eq!(values.len(), 1);
        assert!((values[0].1.gbps() - 4.0).abs() < 1e-9);
        assert!((values[0].1.cost() - 2.0).abs() < 1e-9);
        assert_eq!(results.of(&cell, "h2o").count(), 0);
    }

    #[test]
    fn another_format_and_broken_lines_are_refused() {
        let good = serde_json::to_string(&environment()).unwrap();
        assert!(Results::parse(&good).is_ok());
        let other = good.replace("\"format\":1", "\"format\":2");
        assert!(
            Results::parse(&other)
                .unwrap_err()
                .to_string()
                .contains("format 2")
        );
        let error = Results::parse(&format!("{good}\n{{}}\n")).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(Results::parse("").is_err());
    }
}
