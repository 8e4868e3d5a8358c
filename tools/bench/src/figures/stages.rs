//! What each stage of Atlas's pipeline costs alone, on the server's core, from the disk that Atlas reads and
//! over the wire that it sends on: together what a server made of them could cost.
//!
//! What Atlas does beside them it pays for: looking objects up, receiving, going to sleep and waking up. Its own
//! turns may cost less than the stages: a stage that waits for a device goes to sleep where the server has
//! something else to do. It refuses a stage that did not do what the server does. Bounded by:
//! [`WINDOW_SECONDS`], [`ROUNDS`], [`LIMIT`].

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use stages::Report;
use testbed::interrupt;
use testbed::namespace::VethPair;
use testbed::process::output;

use super::cell::Cell;
use super::results::Results;
use crate::lab::{CLIENT_CORE, Contender, Lab, SERVER_CORE};
use crate::statistics::Median;
use crate::stored::float;
use crate::wire::Tap;

/// Length of a stage's window, seconds.
const WINDOW_SECONDS: u32 = 2;

/// How often each is measured.
const ROUNDS: usize = 3;

/// Longest run of a stage: thousands of connections have had objects before its window.
const LIMIT: Duration = Duration::from_secs(120);

/// Most slots in turn and reads in flight of a stage: the slots of the server's default.
const SLOTS_MAX: u32 = 512;

/// Nobody's, of the wire's network.
const NOBODY: &str = "10.77.255.9";

/// A stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Reads into slots, past the page cache.
    Read,
    /// TCP and HTTP, between frames received and frames sent.
    Session,
    /// Records of TLS 1.3, AES-128-GCM, sealed in place.
    Seal,
    /// Frames sent out of slots on loan.
    Write,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Read, Self::Session, Self::Seal, Self::Write];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Session => "session",
            Self::Seal => "seal",
            Self::Write => "write",
        }
    }

    /// Whether its note says that something is amiss.
    const fn has_no_note(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// One window of a stage, as it is stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StageWindow {
    pub(crate) stage: Stage,
    /// Connections that it is as for: so many clients of the session, and as many slots in turn of the others, at
    /// most [`SLOTS_MAX`].
    pub(crate) connections: u32,
    /// Payload bytes in the window.
    pub(crate) bytes: u64,
    /// Its length.
    pub(crate) seconds: f64,
    /// Busy seconds of the server's core in it.
    pub(crate) busy: f64,
}

/// Measures all stages as for so many connections; each window to `sink`.
pub(crate) fn measure(
    (lab, instruments, mtu): (&Lab, &Path, u16),
    connections: u32,
    sink: &mut dyn FnMut(StageWindow) -> Result<()>,
) -> Result<()> {
    for _ in 0..ROUNDS {
        for stage in Stage::ALL {
            interrupt::check()?;
            let tap = (stage == Stage::Write).then(|| Tap::new(&lab.wire, mtu));
            let tap = tap.transpose()?;
            let mut command = lab.wire.command("taskset");
            command.args(["-c", &SERVER_CORE.to_string()]);
            command.arg(instruments).args(["stages", stage.name()]);
            command.args(arguments(stage, lab, connections)?);
            command.args(["--seconds", &WINDOW_SECONDS.to_string()]);
            command.args(["--watch-core", &SERVER_CORE.to_string()]);
            let output = output(&mut command, LIMIT)?;
            drop(tap);
            let (name, said) = (stage.name(), String::from_utf8_lossy(&output.stderr));
            ensure!(output.status.success(), "stages {name}: {}", said.trim());
            let report: Report = serde_json::from_slice(&output.stdout)
                .with_context(|| format!("reading the report of stages {name}"))?;
            if let (true, Some(note)) = (stage.has_no_note(), &report.note) {
                anyhow::bail!("stages {name} did not do what the server does: {note}");
            }
            let core = report.cores.first().context("no core was watched")?;
            let window = StageWindow {
                stage,
                connections,
                bytes: report.bytes,
                seconds: report.seconds,
                busy: core.busy,
            };
            eprintln!(
                "stage {name:<8} as for {connections} connections {:>7.3} core-s/GB",
                window.cost()
            );
            sink(window)?;
        }
    }
    Ok(())
}

fn arguments(stage: Stage, lab: &Lab, connections: u32) -> Result<Vec<String>> {
    let slots = connections.min(SLOTS_MAX).to_string();
    let words: Vec<String> = match stage {
        Stage::Read => {
            let source = lab.content(&Contender::Atlas("atlas".into()));
            let source = source.to_str().context("a path of our own")?.to_owned();
            vec![source, "--window".to_owned(), slots]
        }
        Stage::Session => vec!["--connections".to_owned(), connections.to_string()],
        Stage::Seal => vec!["--slots".to_owned(), slots],
        Stage::Write => {
            let (interface, core) = (VethPair::SERVER_INTERFACE, CLIENT_CORE.to_string());
            let words = [interface, "--address", NOBODY, "--sink-core"];
            let words = words.into_iter().map(str::to_owned);
            words.chain([core, "--slots".to_owned(), slots]).collect()
        }
    };
    Ok(words)
}

impl StageWindow {
    /// Busy seconds of the server's core for each GB.
    pub(crate) fn cost(&self) -> f64 {
        self.busy / (float(self.bytes) / 1e9).max(f64::MIN_POSITIVE)
    }
}

/// What a stage costs, core-s/GB, as for so many connections.
pub(crate) fn cost(results: &Results, stage: Stage, connections: u32) -> Option<Median> {
    let windows = results.stages.iter();
    let of_stage = windows.filter(|it| it.stage == stage && it.connections == connections);
    Median::new(of_stage.map(StageWindow::cost))
}

/// What all stages together cost that a reply at this point passes, core-s/GB.
pub(crate) fn together(results: &Results, cell: &Cell) -> Option<f64> {
    let stages = Stage::ALL.iter();
    let passed = stages.filter(|stage| cell.is_tls || **stage != Stage::Seal);
    let costs = passed.map(|stage| Some(cost(results, *stage, cell.connections)?.middle));
    costs.sum()
}
