//! One turn of one server at one cell: started, loaded, checked, ended.
//!
//! The turn fails if a reply is wrong, a connection breaks, a cold run reads less from the disk
//! than it serves, a warm rival reads from it, or a byte of the sample differs.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::middlebox::Middlebox;
use super::plan::{Cache, Cell, OBJECT_BYTES, Security, WARM_UP_SECONDS};
use super::summary::Run;
use crate::bench::disk::{Objects, cache_drops, drop_caches, read_bytes};
use crate::bench::lab::{CLIENT_CORE, Contender, Lab, SERVER_CORE, stop};
use crate::harness::process::output;

/// Objects compared byte by byte after each window.
const SAMPLE_OBJECTS: u64 = 64;

/// Connections of the comparison.
const SAMPLE_CONNECTIONS: u64 = 16;

/// A turn that takes longer is a failure.
const TURN_LIMIT: Duration = Duration::from_secs(300);

/// Passes over a warm set until one finds all of it cached: two, if nobody else wants memory.
const WARM_PASSES_MAX: u32 = 5;

/// Turns at a warm cell whose page cache somebody else emptied.
const WARM_TURNS_MAX: u32 = 3;

/// How often a turn empties the page cache itself.
const OWN_CACHE_DROPS: u64 = 1;

/// What the page cache may lack of a warm set: its files' metadata and stray evictions.
const WARM_READ_SHARE_MAX: f64 = 0.02;

/// What turns have in common.
pub(super) struct Turns<'a> {
    pub(super) lab: &'a Lab,
    /// The binary with `load` and `delay`.
    pub(super) atlas: &'a Path,
    /// Where lists of URLs are written.
    pub(super) directory: &'a Path,
}

impl Turns<'_> {
    /// One turn; another if somebody else emptied the page cache meanwhile.
    pub(super) fn run(&self, contender: &Contender, cell: &Cell) -> Result<Run> {
        for _ in 1..WARM_TURNS_MAX {
            let before = cache_drops()?;
            let run = self.turn(contender, cell);
            let is_disturbed = cell.cache == Cache::Warm
                && run.is_err()
                && cache_drops()? > before + OWN_CACHE_DROPS;
            if !is_disturbed {
                return run;
            }
            eprintln!(
                "somebody else dropped the page cache: {} again",
                contender.name()
            );
        }
        self.turn(contender, cell)
    }

    fn turn(&self, contender: &Contender, cell: &Cell) -> Result<Run> {
        let (server, address) = self.lab.start(contender, "")?;
        drop_caches()?;
        if cell.cache == Cache::Warm {
            self.warm(cell.objects)?;
        }
        let middlebox = cell
            .is_distant
            .then(|| Middlebox::start(self.atlas, &self.lab.cable.client))
            .transpose()?;
        let before = read_bytes(&self.lab.disk.device)?;
        let load = self.load(cell, address)?;
        let disk_read_bytes = read_bytes(&self.lab.disk.device)? - before;
        let delay = middlebox.map(Middlebox::stop).transpose()?;
        let verified = self.verify(contender, cell, address)?;
        match contender {
            Contender::Atlas(_) | Contender::AtlasEmulated(_) => drop(stop(server)?),
            // How rivals end is not measured: some call it a failure to have connections then,
            // some wait for them to go.
            Contender::Nginx(_) | Contender::Peer(_) => drop(server),
        }
        let run = Run {
            disk_read_bytes,
            verified,
            delay,
            ..figures(load)?
        };
        check_reads(contender, cell, &run)?;
        Ok(run)
    }

    /// Reads the set into the page cache, and shows that it stayed there.
    fn warm(&self, objects: u64) -> Result<()> {
        let read_all = || {
            (0..objects).try_for_each(|index| {
                let path = self.lab.disk.root.join(&Objects::path(index)[1..]);
                let read = fs::read(&path).with_context(|| format!("reading {path:?}"))?;
                ensure!(read.len() as u64 == OBJECT_BYTES, "{path:?} is short");
                Ok(())
            })
        };
        for _ in 0..WARM_PASSES_MAX {
            let before = read_bytes(&self.lab.disk.device)?;
            read_all()?;
            if read_bytes(&self.lab.disk.device)? == before {
                return Ok(());
            }
        }
        bail!("the objects do not stay in the page cache, {WARM_PASSES_MAX} times read");
    }

    /// The timed window.
    fn load(&self, cell: &Cell, server: SocketAddr) -> Result<Value> {
        let urls = self.urls(cell, server, 1)?;
        let mut command = self.command(cell, &urls, cell.connections);
        command.args(["--watch-core", &format!("{SERVER_CORE},{CLIENT_CORE}")]);
        command.args(["--seconds", &cell.window_seconds.to_string()]);
        match cell.cache {
            Cache::Cold => command.arg("--once"),
            Cache::Warm => command.args(["--warm-up", &WARM_UP_SECONDS.to_string()]),
        };
        read(&mut command)
    }

    /// Fetches a sample once more and compares every byte; emulated sealing must change them all.
    fn verify(&self, contender: &Contender, cell: &Cell, server: SocketAddr) -> Result<u64> {
        let urls = self.urls(cell, server, (cell.objects / SAMPLE_OBJECTS).max(1))?;
        let mut command = self.command(cell, &urls, SAMPLE_CONNECTIONS);
        command.arg("--once").arg("--verify-against");
        command.arg(&self.lab.disk.root);
        if matches!(contender, Contender::AtlasEmulated(_)) {
            command.arg("--verify-sealed");
        }
        let report = read(&mut command)?;
        let verified = report["verified_replies"].as_u64().unwrap_or(0);
        ensure!(
            verified >= SAMPLE_OBJECTS.min(cell.objects),
            "only {verified} objects could be compared: {}; {}",
            report["errors"],
            report["first_errors"]
        );
        Ok(verified)
    }

    /// `atlas load` in the client's namespace, on the client's core.
    fn command(&self, cell: &Cell, urls: &Path, connections: u64) -> Command {
        let mut command = self.lab.cable.client.command("taskset");
        command.args(["-c", &CLIENT_CORE.to_string()]);
        command.arg(self.atlas).args(["load", "--json", "--urls"]);
        command.arg(urls);
        command.args(["--connections", &connections.to_string()]);
        command.args(["--expect-bytes", &OBJECT_BYTES.to_string()]);
        if let (Security::Tls, Some(authority)) = (cell.security, self.lab.authority()) {
            command.args(["--tls-version", "1.3", "--suite", "aes-128-gcm"]);
            command.args(["--server-name", "atlas.test", "--ca"]);
            command.arg(authority);
        }
        command
    }

    /// A file with each `step`th URL of a cell.
    fn urls(&self, cell: &Cell, server: SocketAddr, step: u64) -> Result<PathBuf> {
        let scheme = match cell.security {
            Security::Plain => "http",
            Security::Tls => "https",
        };
        let mut text = String::new();
        for index in (0..cell.objects).step_by(usize::try_from(step)?) {
            let path = Objects::path(index);
            let _ = writeln!(text, "{scheme}://{server}{path}");
        }
        let file = self.directory.join("urls");
        fs::write(&file, text)?;
        Ok(file)
    }
}

/// Runs a load and reads its report.
fn read(command: &mut Command) -> Result<Value> {
    let output = output(command, TURN_LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the load failed: {}",
        stderr.trim()
    );
    serde_json::from_slice(&output.stdout).context("reading the load's report")
}

/// The figures in a load's report.
fn figures(load: Value) -> Result<Run> {
    let number = |value: &Value, name: &str| {
        let found = value[name].as_f64();
        found.with_context(|| format!("the load's report has no number {name}"))
    };
    ensure!(
        load["errors"]
            .as_object()
            .is_some_and(serde_json::Map::is_empty),
        "not all went well: {}; {}",
        load["errors"],
        load["first_errors"]
    );
    let seconds = number(&load, "seconds")?;
    let gigabytes = number(&load, "body_bytes")? / 1e9;
    ensure!(gigabytes > 0.0 && seconds > 0.0, "nothing was served");
    let busy = |core: usize| {
        let cores = load["cores"].as_array();
        let found = cores.and_then(|cores| cores.iter().find(|it| it["core"] == core));
        number(found.unwrap_or(&Value::Null), "busy")
    };
    let (server, client) = (busy(SERVER_CORE)?, busy(CLIENT_CORE)?);
    Ok(Run {
        round: 0,
        gbps: gigabytes * 8.0 / seconds,
        core_seconds_per_gb: server / gigabytes,
        all_core_seconds_per_gb: (server + client) / gigabytes,
        server_core_busy: server / seconds,
        client_core_busy: client / seconds,
        disk_read_bytes: 0,
        verified: 0,
        load,
        delay: None,
    })
}

/// Cold runs read all they serve; rivals in warm ones next to nothing.
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of one run are far below 2^52"
)]
fn check_reads(contender: &Contender, cell: &Cell, run: &Run) -> Result<()> {
    let served = run.load["body_bytes"].as_f64().unwrap_or(0.0);
    let share = run.disk_read_bytes as f64 / served;
    match cell.cache {
        Cache::Cold => ensure!(
            share >= 1.0 - WARM_READ_SHARE_MAX,
            "only {share:.3} of what was served came from the disk"
        ),
        Cache::Warm if contender.is_ours() => {}
        Cache::Warm => ensure!(
            share <= WARM_READ_SHARE_MAX,
            "{share:.3} of what was served came from the disk, and should have been cached"
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::tests::cells;
    use super::*;

    fn report() -> Value {
        json!({
            "seconds": 2.0, "body_bytes": 1_000_000_000_u64, "errors": {}, "first_errors": [],
            "cores": [{"core": 0, "busy": 0.5}, {"core": 1, "busy": 1.0}],
        })
    }

    #[test]
    fn figures_are_decimal_and_of_the_right_core() {
        let run = figures(report()).expect("a whole report");
        assert!((run.gbps - 4.0).abs() < 1e-9);
        assert!((run.core_seconds_per_gb - 0.5).abs() < 1e-9);
        assert!((run.all_core_seconds_per_gb - 1.5).abs() < 1e-9);
        assert!((run.client_core_busy - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_report_with_an_error_or_without_a_figure_is_refused() {
        let mut wrong = report();
        wrong["errors"] = json!({"timeout": 1});
        figures(wrong).expect_err("an error");
        for name in ["seconds", "body_bytes", "cores", "errors"] {
            let mut lacking = report();
            lacking[name] = Value::Null;
            figures(lacking).expect_err(name);
        }
    }

    #[test]
    fn cold_runs_must_read_and_warm_rivals_must_not() {
        let run = |disk_read_bytes| Run {
            disk_read_bytes,
            ..figures(report()).expect("a whole report")
        };
        let (all, nothing) = (run(1_000_000_000), run(0));
        let atlas = Contender::Atlas("atlas".into());
        let peer = Contender::Peer(crate::harness::peer::Peer::H2o);
        let check = |contender: &Contender, cache, run: &Run| {
            check_reads(contender, &cells(Security::Plain, cache)[0], run)
        };
        check(&peer, Cache::Cold, &all).expect("cold");
        check(&peer, Cache::Cold, &nothing).expect_err("it was cached");
        check(&peer, Cache::Warm, &nothing).expect("warm");
        check(&peer, Cache::Warm, &all).expect_err("it was not cached");
        check(&atlas, Cache::Warm, &all).expect("we always read");
    }
}
