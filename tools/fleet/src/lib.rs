//! `cargo xtask fleet`: a fleet whole. Edges that fill themselves from a real S3 server, found by a real etcd, players that
//! steering moves; what goes wrong meanwhile; and others' caches in the edges' place.
//!
//! It refuses to touch the host's own interfaces: all is in namespaces made here and deleted afterwards. What is told
//! is a measurement of this machine; what is checked is that no byte is wrong and nothing fails. Bounded by: a limit
//! on every wait.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "a command says what it saw at its terminal"
)]

mod beside;
mod compare;
mod demo;
mod edge;
mod faults;
mod library;
mod origin;
mod players;
mod rivals;
mod stage;
mod storm;
mod viewer;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use testbed::program::Program;
use testbed::suite::{Outcome, Suite};

use crate::compare::Kind;
use crate::edge::{OnMiss, Wanted};
use crate::players::Players;
use crate::rivals::Rival;
use crate::stage::{Programs, Stage};

/// What can be tried.
const PARTS: [&str; 4] = ["faults", "storm", "beside", "compare"];

/// Options of `fleet`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Plain objects of the library
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(50..=100_000))]
    pub objects: u64,
    /// Requests of a trace (default: four for each object)
    #[arg(long, value_name = "N")]
    pub requests: Option<usize>,
    /// Requests a second
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Shows a fleet until Ctrl-C instead: a page with players, and edges to be killed
    #[arg(long)]
    pub serve: bool,
    /// Clients of a storm of misses
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=15_000))]
    pub clients: u64,
    /// Only these parts, comma-separated
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PARTS)]
    pub parts: Vec<String>,
    /// The server (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    pub atlas: Option<PathBuf>,
    /// The filler (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    pub fill: Option<PathBuf>,
    /// The steering (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    pub steer: Option<PathBuf>,
}

impl Options {
    /// What `cargo xtask check` runs, in less than two minutes; the programs are built already.
    #[must_use]
    pub fn short() -> Vec<&'static str> {
        "--objects 200 --rate 50 --clients 1000 --parts faults,storm"
            .split(' ')
            .collect()
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|it| it == part)
    }

    fn requests(&self) -> usize {
        let usual = usize::try_from(self.objects).unwrap_or(usize::MAX) * 4;
        self.requests.unwrap_or(usual)
    }

    fn programs(&self) -> Result<Programs> {
        Ok(Programs {
            atlas: Program::Atlas.find(self.atlas.as_deref())?,
            fill: Program::AtlasFill.find(self.fill.as_deref())?,
            steer: Program::AtlasSteer.find(self.steer.as_deref())?,
        })
    }
}

/// Why it cannot be tried here, or the Python that has moto.
fn python() -> std::result::Result<PathBuf, String> {
    for program in ["nginx", "etcd", "ffmpeg"] {
        if testbed::find_program(program).is_none() {
            return Err(format!("{program} is not installed"));
        }
    }
    origin::find_moto()
}

/// Runs all parts into a suite; namespaces can be made.
pub fn run(suite: &mut Suite, options: &Options) {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => return suite.skip("fleet", &reason),
    };
    let mut stage = None;
    suite.run("fleet: a library in S3", || {
        stage = Some(Stage::new(options.programs()?, &python, options.objects)?);
        Ok(Outcome::Passed)
    });
    let Some(stage) = stage else {
        return;
    };
    if options.serve {
        return suite.run("fleet: shown", || {
            demo::run(&stage).map(|()| Outcome::Passed)
        });
    }
    if options.has("faults") {
        run_faults(suite, &stage, options);
    }
    if options.has("storm") {
        suite.run("fleet: storms of misses", || {
            storm::run(&stage, usize::try_from(options.clients)?).map(|()| Outcome::Passed)
        });
    }
    if options.has("beside") {
        suite.run("fleet: filling beside viewers", || {
            beside::run(&stage).map(|()| Outcome::Passed)
        });
    }
    if options.has("compare") {
        compare_all(suite, &stage, options);
    }
}

/// Of a smaller library Traffic Server 9.2.9 gets no cache that it can use: with a fifth of 28 MB it crashes.
const TRAFFIC_SERVER_BYTES: u64 = 600_000_000;

/// A trace and films while edges go and come.
fn run_faults(suite: &mut Suite, stage: &Stage, options: &Options) {
    let players = players::find();
    let browser = match &players {
        Players::Browser(modules) => Some(modules.clone()),
        Players::Ffmpeg(reason) => {
            suite.skip("fleet: hls.js and dash.js in a browser", reason);
            None
        }
    };
    suite.run("fleet: an edge is killed, one drains, one comes", || {
        faults::run(stage, options.rate, browser)?;
        Ok(Outcome::Passed)
    });
}

/// The trace through each kind of fleet.
fn compare_all(suite: &mut Suite, stage: &Stage, options: &Options) {
    let ours = [
        Kind::Atlas(Wanted::Plain, OnMiss::Redirect),
        Kind::Atlas(Wanted::Nothing, OnMiss::Redirect),
        Kind::Atlas(Wanted::Nothing, OnMiss::Hold),
    ];
    let mut rows = Vec::new();
    for kind in ours.into_iter().chain(Rival::ALL.map(Kind::Rival)) {
        suite.run(&format!("fleet: a trace through {}", kind.name()), || {
            if let Kind::Rival(rival) = kind
                && !rival.is_installed()
            {
                return Ok(Outcome::Skipped("it is not installed".to_owned()));
            }
            if matches!(kind, Kind::Rival(Rival::TrafficServer))
                && stage.plain_bytes() < TRAFFIC_SERVER_BYTES
            {
                let why = "it ends by a segmentation fault with a cache of a few megabytes";
                return Ok(Outcome::Skipped(why.to_owned()));
            }
            let row = compare::run(stage, kind, options.requests(), options.rate);
            rows.push(row.context("the trace")?);
            Ok(Outcome::Passed)
        });
    }
    compare::print(&rows, stage);
}
