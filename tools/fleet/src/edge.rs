//! A fleet of Atlas: on each edge the server, its filler, its publisher and its share of the library.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use testbed::process::Process;
use testbed::scratch_directory;
use testbed::server::Server;

use crate::origin::BUCKET;
use crate::stage::{
    Stage, TTL_SECONDS, await_true, etcd_registry, get, memory_of, spawn_logged, steer_settings,
};

/// What an edge's manifest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nothing: what viewers miss is all that comes.
    Nothing,
    /// Films and long objects; of the others what viewers miss.
    Films,
    /// Its share of the first half of the plain objects.
    Half,
    /// Its share of the plain objects, and what viewers miss.
    Plain,
}

/// What a request gets whose object is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnMiss {
    /// The origin's name.
    Redirect,
    /// What it asked for, as soon as the filler has it.
    Hold,
}

impl OnMiss {
    fn rule(self) -> &'static str {
        match self {
            Self::Redirect => "{ redirect = \"http://10.78.0.2{path}\" }",
            Self::Hold => "{ hold = \"10s\" }",
        }
    }
}

/// How the edges of a fleet are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) wanted: Wanted,
    pub(crate) on_miss: OnMiss,
    /// Of each edge.
    pub(crate) capacity_bytes: u64,
}

/// How long an edge serves on once it was told to end: twice what players wait before they ask again.
pub(crate) const DRAIN_SECONDS: u64 = 2 * TTL_SECONDS;

/// Room of what is sent slowly: so a fault finds it in mid-stream.
const LONG_RATE: &str = "6Mbit/s";

/// Names that are waited for, whatever the others get.
pub(crate) const STORM_FOLDER: &str = "storm";

/// An edge.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) atlas: Server,
    fill: Option<Process>,
    _publish: Process,
    _share: Process,
    directory: tempfile::TempDir,
}

/// A fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) edges: BTreeMap<usize, Edge>,
    _steering: Server,
    pub(crate) etcd: Option<Server>,
    plan: Plan,
    /// The library's manifest.
    manifest: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fleet {
    /// Starts so many edges, with nothing on them, and waits until the steering knows all and each one's filler has done
    /// what it can at first.
    pub(crate) fn start(stage: &Stage, plan: Plan, count: usize) -> Result<Self> {
        let directory = scratch_directory("fleet")?;
        let file = directory.path().join("library.jsonl");
        fs::write(&file, manifest(stage, plan.wanted))?;
        let mut fleet = Self {
            edges: BTreeMap::new(),
            etcd: Some(stage.start_etcd()?),
            _steering: stage.start_steering(&etcd_registry())?,
            plan,
            manifest: file,
            _directory: directory,
        };
        for number in 1..=count {
            fleet.edges.insert(number, fleet.start_edge(stage, number)?);
        }
        stage.await_members(&(1..=count).collect::<Vec<_>>())?;
        for number in 1..=count {
            fleet.fill(stage, number)?;
        }
        for number in 1..=count {
            fleet.await_filled(stage, number)?;
        }
        Ok(fleet)
    }

    /// Adds an edge, which is filled while it serves.
    pub(crate) fn add(&mut self, stage: &Stage, number: usize) -> Result<()> {
        let edge = self.start_edge(stage, number)?;
        self.edges.insert(number, edge);
        self.fill(stage, number)
    }

    fn start_edge(&self, stage: &Stage, number: usize) -> Result<Edge> {
        let directory = scratch_directory("edge")?;
        let at = directory.path();
        for folder in ["store", "share"] {
            fs::create_dir(at.join(folder))?;
        }
        fs::write(at.join("atlas.toml"), self.atlas_settings(number))?;
        fs::write(at.join("steer.toml"), self.publish_settings(number))?;
        let inside = |program: &Path, arguments: &[&str]| {
            let mut command = stage.edges[number - 1].command("env");
            command.arg(program).args(arguments).current_dir(at);
            command
        };
        let programs = &stage.programs;
        let serve = ["serve", "store", "--config", "atlas.toml"];
        let atlas = Server::atlas(&mut inside(&programs.atlas, &serve))
            .with_context(|| format!("edge {number}"))?;
        let publish = inside(&programs.steer, &["publish", "steer.toml"]);
        let library = self.manifest.to_string_lossy();
        let share = ["share", "steer.toml", &library, "share/manifest.jsonl"];
        let share = inside(&programs.steer, &share);
        Ok(Edge {
            atlas,
            fill: None,
            _publish: spawn_logged("publisher", publish, &at.join("publish.log"))?,
            _share: spawn_logged("share", share, &at.join("share.log"))?,
            directory,
        })
    }

    fn atlas_settings(&self, number: usize) -> String {
        let on_miss = self.plan.on_miss.rule();
        let hold = OnMiss::Hold.rule();
        format!(
            "link = \"packet:wire0\"\naddress = [\"10.78.2.{number}/16\"]\ncors = true\n\
             metrics = \"127.0.0.1:9100\"\nshutdown_delay_seconds = {DRAIN_SECONDS}\n\
             shutdown_grace_seconds = 20\n[[site]]\n\
             [[site.rule]]\npaths = [\"*.m3u8\", \"*.mpd\", \"/{STORM_FOLDER}/**\"]\non_miss = {hold}\n\
             [[site.rule]]\npaths = [\"/long/**\"]\nrate = \"{LONG_RATE}\"\non_miss = {on_miss}\n\
             [[site.rule]]\npaths = [\"/**\"]\non_miss = {on_miss}\n"
        )
    }

    fn publish_settings(&self, number: usize) -> String {
        let capacity_bytes = self.plan.capacity_bytes;
        format!(
            "{}[publish]\nname = \"edge-{number}\"\nurl = \"http://10.78.2.{number}\"\n\
             capacity_bytes = {capacity_bytes}\nsend_bits_a_second = 10_000_000_000\nlease_seconds = 5\n",
            steer_settings(&etcd_registry())
        )
    }

    /// Starts an edge's filler, once its share of the library is known.
    fn fill(&mut self, stage: &Stage, number: usize) -> Result<()> {
        let capacity_bytes = self.plan.capacity_bytes;
        let edge = self.edges.get_mut(&number).context("no such edge")?;
        let at = edge.directory.path();
        await_true("a share", || Ok(at.join("share/manifest.jsonl").exists()))?;
        let credentials = "AWS_ACCESS_KEY_ID=key\nAWS_SECRET_ACCESS_KEY=secret\n";
        fs::write(at.join("credentials"), credentials)?;
        let settings = format!(
            "origin = \"s3://{BUCKET}\"\nendpoint = \"http://10.78.0.2\"\ncredentials = \"credentials\"\n\
             target = \"store\"\nmanifest = \"share/manifest.jsonl\"\ncapacity = {capacity_bytes}\n\
             list_seconds = 30\nserver = \"127.0.0.1:9100\"\nmisses_seconds = \"200ms\"\n\
             counts_seconds = 3\nmetrics = \"127.0.0.1:9110\"\n"
        );
        fs::write(at.join("fill.toml"), settings)?;
        // As `CPUWeight=20` of its unit.
        let mut command = stage.edges[number - 1].command("nice");
        command.arg("-n7").arg(&stage.programs.fill);
        command.args(["--config", "fill.toml"]).current_dir(at);
        edge.fill = Some(spawn_logged("filler", command, &at.join("fill.log"))?);
        Ok(())
    }

    /// Has an edge's filler want something else from now on, all of it.
    pub(crate) fn want(&mut self, stage: &Stage, number: usize, wanted: Wanted) -> Result<()> {
        let edge = self.edges.get_mut(&number).context("no such edge")?;
        edge.fill = None;
        let at = edge.directory.path();
        fs::write(at.join("share/manifest.jsonl"), manifest(stage, wanted))?;
        self.fill(stage, number)
    }

    /// Waits until a filler has listed the origin and brings nothing more.
    pub(crate) fn await_filled(&self, stage: &Stage, number: usize) -> Result<()> {
        let edge = self.edges.get(&number).context("no such edge")?;
        let log = edge.directory.path().join("fill.log");
        let mut last = (u64::MAX, 0);
        await_true("a filled edge", || {
            let is_listed = fs::read_to_string(&log)?.contains("\"event\":\"listed\"");
            let come = gauge(stage, number, "atlas_fill_objects_total")?;
            last = match last {
                (same, times) if same == come && is_listed => (come, times + 1),
                _ => (come, 0),
            };
            Ok(last.1 == 15)
        })
    }

    /// Ends a server as a crash would: nothing of it says good-bye.
    pub(crate) fn kill(&mut self, number: usize) -> Result<Edge> {
        let edge = self.edges.remove(&number).context("no such edge")?;
        edge.atlas.signal(Signal::KILL)?;
        Ok(edge)
    }

    /// Memory and threads of an edge's server and of its filler.
    pub(crate) fn memory(&self, number: usize) -> Result<[[u64; 3]; 2]> {
        let edge = self.edges.get(&number).context("no such edge")?;
        let fill = edge.fill.as_ref().context("no filler")?;
        Ok([memory_of(edge.atlas.id())?, memory_of(fill.id())?])
    }

    /// What an edge's publisher told.
    pub(crate) fn published(&self, number: usize) -> Result<String> {
        let edge = self.edges.get(&number).context("no such edge")?;
        Ok(fs::read_to_string(
            edge.directory.path().join("publish.log"),
        )?)
    }

    /// What fillers told of failures.
    pub(crate) fn complaints(&self) -> Result<Vec<String>> {
        let mut told = Vec::new();
        for (number, edge) in &self.edges {
            let text = fs::read_to_string(edge.directory.path().join("fill.log"))?;
            let is_failure = |line: &&str| {
                line.contains("\"event\":\"failed\"") || line.contains("\"event\":\"waiting\"")
            };
            let lines = text.lines().filter(is_failure);
            told.extend(lines.map(|line| format!("edge {number}: {line}")));
        }
        Ok(told)
    }
}

impl Drop for Fleet {
    /// Nobody is served any more: edges need not drain.
    fn drop(&mut self) {
        for edge in self.edges.values() {
            let _ = edge.atlas.signal(Signal::KILL);
        }
    }
}

impl Edge {
    /// Waits for the end of its server, and ends what is beside it.
    pub(crate) fn wait(self) -> Result<ExitStatus> {
        Ok(self.atlas.wait()?.status)
    }
}

/// A number of a filler's metrics.
pub(crate) fn gauge(stage: &Stage, number: usize, name: &str) -> Result<u64> {
    let namespace = &stage.edges[number - 1];
    let text = get(namespace, "127.0.0.1:9110".parse()?, "/metrics")?;
    let line = text.lines().find_map(|it| it.strip_prefix(name));
    let value = line.with_context(|| format!("no {name}"))?;
    Ok(value.trim().parse()?)
}

/// The library's manifest.
fn manifest(stage: &Stage, wanted: Wanted) -> String {
    let films = "{\"name\": \"films/hls/\", \"priority\": 9, \"pinned\": true}\n\
                 {\"name\": \"films/dash/\", \"priority\": 9, \"pinned\": true}\n";
    let lines = |objects: &[crate::library::Object], priority: u8| {
        let line = |it: &crate::library::Object| {
            format!("{{\"name\": \"{}\", \"priority\": {priority}}}\n", it.name)
        };
        objects.iter().map(line).collect::<String>()
    };
    match wanted {
        Wanted::Nothing => String::new(),
        Wanted::Films => format!("{films}{}", lines(&stage.long, 8)),
        Wanted::Half => lines(&stage.objects[..stage.objects.len() / 2], 0),
        Wanted::Plain => lines(&stage.objects, 0),
    }
}
