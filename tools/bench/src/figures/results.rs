//! What was measured: turns of servers, and windows of stages.
//!
//! Turns that do not count are in it, with the reason. It refuses what `stored` refuses. Bounded by: the
//! file.

use std::path::Path;

use anyhow::Result;
use nic_wire::report::MemoryBytes;
use serde::{Deserialize, Serialize};
use testbed::latency::LatencySummary;

use super::cell::Cell;
use super::stages::StageWindow;
use crate::stored::{self, Environment, float};

/// Delays in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Delay {
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) p999_us: u64,
}

impl From<LatencySummary> for Delay {
    fn from(from: LatencySummary) -> Self {
        Self {
            p50_us: from.p50,
            p99_us: from.p99,
            p999_us: from.p99_9,
        }
    }
}

/// What Atlas's worker did, from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// Replies that it sent.
    pub(crate) replies: u64,
    pub(crate) rounds: u64,
    /// Times it slept, pauses included: a system call each.
    pub(crate) sleeps: u64,
    /// System calls by which reads are submitted and reaped.
    pub(crate) disk_calls: u64,
    /// Frames offered to the link.
    pub(crate) frames: u64,
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
    /// What Atlas says its worker did.
    #[serde(default)]
    pub(crate) effort: Option<Effort>,
    /// What the machine's memory did in the window, if it is counted.
    #[serde(default)]
    pub(crate) memory: Option<MemoryBytes>,
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

/// A line of a file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Stage(StageWindow),
    Turn(Box<Turn>),
}

impl Results {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let (environment, lines) = stored::read(path)?;
        let mut results = Self {
            environment,
            turns: Vec::new(),
            stages: Vec::new(),
        };
        for line in lines {
            match line {
                Line::Stage(window) => results.stages.push(window),
                Line::Turn(turn) => results.turns.push(*turn),
            }
        }
        Ok(results)
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::stages::Stage;
    use super::*;
    use crate::stored::Writer;
    use crate::stored::tests::environment;

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
        let path = directory.path().join("results.jsonl");
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
        writer.add(&window).unwrap();
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
}
