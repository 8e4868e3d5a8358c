//! `cargo xtask bench figures`: throughput and cost by cache and connections, drawn like the
//! paper's figures 1, 2, 11a, 11b, 13a and 13b.
//!
//! Servers take turns, round after round, at each cell of the plan ([`plan`]). What a server
//! cannot do is told, not left out. It refuses to report a run in which anything was wrong.
//! Bounded by: the plan, and the deadline of each turn.

mod middlebox;
mod page;
mod plan;
mod summary;
mod turn;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use self::plan::{Cell, OBJECT_BYTES, Security};
use self::summary::{Comparison, Point};
use self::turn::Turns;
use super::lab::{Contender, Lab, Steering};
use super::publish;
use super::tls::{Credentials, Key, is_kernel_tls_available};
use crate::harness::peer::Peer;
use crate::harness::process::output;
use crate::harness::server::{NginxMode, atlas_binary};
use crate::harness::{interrupt, scratch_directory, workspace_root};
use crate::packages;

/// Descriptors servers may have: a rival needs two for each connection, socket and file.
const DESCRIPTORS: u64 = 65_536;

/// Draws the figures out of the report's JSON.
const PLOTTER: &str = "bench/plot.py";

/// The distribution's Python, which has the distribution's libraries; another may come first on
/// PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Longest time the drawing may take.
const PLOT_LIMIT: Duration = Duration::from_secs(120);

/// Rounds of the full run.
const ROUNDS: usize = 3;

/// Length of a warm window, seconds; and with `--quick`.
const WARM_SECONDS: u64 = 4;
const WARM_SECONDS_QUICK: u64 = 2;

/// Options of `bench figures`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FiguresOptions {
    /// 64 and 1,000 connections, one round: minutes instead of hours
    #[arg(long)]
    quick: bool,
    /// How often each server takes its turn at each point (default 3, with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Numbers of connections, comma-separated (default: 64 to 16,000, with --quick 64 and 1,000)
    #[arg(long, value_delimiter = ',')]
    connections: Vec<u64>,
    /// Servers to run, comma-separated (default: all)
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Writes the report here as JSON; the page (.md) and the plots are put beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The binary to measure and to measure with (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// What it ran on and with: `(name, value)`.
    environment: Vec<(String, String)>,
    /// Atlas beside the best rival, at each cell.
    comparisons: Vec<Comparison>,
    points: Vec<Point>,
}

/// Runs the bench.
pub(super) fn run_command(options: &FiguresOptions) -> Result<()> {
    packages::ensure_installed(&packages::FOR_FIGURES)?;
    if let Some(directory) = options.json.as_deref().and_then(Path::parent) {
        // Now, not after hours.
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let atlas = atlas_binary(options.atlas.as_deref())?;
    let contenders = contenders(&options.servers, &atlas)?;
    let cells = plan::cells(options.quick, &options.connections);
    ensure!(
        cells.iter().all(|cell| cell.connections > 0),
        "no connections, no figures"
    );
    let report = measure(options, &atlas, &contenders, &cells)?;
    publish(&page::text(&report), &report, options.json.as_deref())?;
    match &options.json {
        Some(json) => illustrate(json, &report),
        None => Ok(()),
    }
}

/// The servers asked for, or all.
fn contenders(names: &[String], atlas: &Path) -> Result<Vec<Contender>> {
    let all: Vec<Contender> = [
        Contender::Atlas(atlas.to_path_buf()),
        Contender::AtlasEmulated(atlas.to_path_buf()),
    ]
    .into_iter()
    .chain(NginxMode::ALL.map(Contender::Nginx))
    .chain(Peer::ALL.map(Contender::Peer))
    .collect();
    for name in names {
        if !all.iter().any(|it| it.name() == name) {
            let known: Vec<_> = all.iter().map(Contender::name).collect();
            bail!(
                "no server is called {name}: choose from {}",
                known.join(", ")
            );
        }
    }
    let is_wanted = |it: &Contender| names.is_empty() || names.iter().any(|name| name == it.name());
    Ok(all.into_iter().filter(is_wanted).collect())
}

fn measure(
    options: &FiguresOptions,
    atlas: &Path,
    contenders: &[Contender],
    cells: &[Cell],
) -> Result<Report> {
    let rounds = options
        .rounds
        .unwrap_or(if options.quick { 1 } else { ROUNDS });
    let directory = scratch_directory("figures")?;
    let wanted = plan::objects_max(cells);
    let mut lab = Lab::new(wanted * OBJECT_BYTES, OBJECT_BYTES, Steering::Server)?;
    let found = lab.disk.objects.count;
    ensure!(
        found >= wanted,
        "memory for {found} objects only, {wanted} are wanted: ask for fewer --connections"
    );
    middlebox::lay_spare_cable(&lab.cable.client)?;
    let mut environment = lab.environment(contenders)?;
    environment.extend(settings(rounds, raise_descriptors()));
    let mut points = Vec::new();
    for security in [Security::Plain, Security::Tls] {
        lab = match security {
            Security::Plain => lab.without_tls(),
            Security::Tls => {
                let credentials = Credentials::new(Key::Ecdsa)?;
                lab.with_tls(credentials, is_kernel_tls_available())
            }
        };
        let turns = Turns {
            lab: &lab,
            atlas,
            directory: directory.path(),
            warm_seconds: if options.quick {
                WARM_SECONDS_QUICK
            } else {
                WARM_SECONDS
            },
        };
        for cell in cells.iter().filter(|cell| cell.security == security) {
            points.extend(visit(&turns, contenders, cell, rounds)?);
        }
    }
    Ok(Report {
        environment,
        comparisons: summary::compare(&points, Contender::ATLAS),
        points,
    })
}

/// All rounds at one cell.
fn visit(
    turns: &Turns<'_>,
    contenders: &[Contender],
    cell: &Cell,
    rounds: usize,
) -> Result<Vec<Point>> {
    let mut part: Vec<(&Contender, Point)> = contenders
        .iter()
        .filter(|contender| plan::takes_part(contender, cell))
        .map(|it| (it, Point::new(*cell, it.name(), it.is_ours())))
        .collect();
    for round in 1..=rounds {
        for (contender, point) in &mut part {
            interrupt::check()?;
            let run = turns.run(contender, cell);
            // What an interrupt broke off is no failure of the server.
            interrupt::check()?;
            let said = match &run {
                Ok(run) => format!(
                    "{:>6.2} Gb/s {:>7.3} core-s/GB",
                    run.gbps, run.core_seconds_per_gb
                ),
                Err(error) => format!("{error:#}"),
            };
            eprintln!(
                "{:<5} {} {:>6} connections, round {round}/{rounds}, {:<24} {said}",
                cell.security.name(),
                cell.cache.name(),
                cell.connections,
                point.server
            );
            point.add(run.map_err(|error| format!("round {round}: {error:#}")));
        }
    }
    Ok(part.into_iter().map(|(_, point)| point).collect())
}

/// Raises the limit of descriptors for all that is started from here, if it may: the limit then.
fn raise_descriptors() -> u64 {
    let current = getrlimit(Resource::Nofile);
    let hard = current.maximum.unwrap_or(u64::MAX);
    let wanted = Some(hard.max(DESCRIPTORS));
    let raised = Rlimit {
        current: wanted,
        maximum: wanted,
    };
    // It takes CAP_SYS_RESOURCE, which root in a container may lack; the report says what was.
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => hard.max(DESCRIPTORS),
        Err(_) => hard,
    }
}

/// What a report says of how it was measured.
fn settings(rounds: usize, descriptors: u64) -> Vec<(String, String)> {
    let kernel_tls = if is_kernel_tls_available() {
        "available: nginx is told to use it"
    } else {
        "not in this kernel: rivals read, copy and seal in user space"
    };
    [
        ("rounds", rounds.to_string()),
        (
            "descriptors",
            format!("{descriptors} at most; a rival needs two for each connection"),
        ),
        (
            "steering",
            "the server's host's packets on the server's core, for every server".to_owned(),
        ),
        (
            "distance",
            "from 1,000 connections on: what clients send is held 10 to 40 ms, by flow".to_owned(),
        ),
        ("TLS", "1.3, AES-128-GCM, ECDSA P-256".to_owned()),
        ("kernel TLS", kernel_tls.to_owned()),
        (
            "cold",
            "0 % BC: caches dropped, each object asked once; what the disk read is checked"
                .to_owned(),
        ),
        (
            "warm",
            "100 % BC: all objects in the page cache; Atlas has none and reads the disk".to_owned(),
        ),
        (
            "same work",
            "every reply's status and length; 64 objects byte by byte after each run".to_owned(),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The page and the plots, beside the JSON.
fn illustrate(json: &Path, report: &Report) -> Result<()> {
    let stem = json.with_extension("");
    let name = stem.file_name().context("a file has a name")?;
    let file = json.with_extension("md");
    fs::write(&file, page::page(report, &name.to_string_lossy()))
        .with_context(|| format!("writing {}", file.display()))?;
    let mut command = Command::new(PYTHON);
    command
        .arg(workspace_root().join(PLOTTER))
        .arg(json)
        .arg(&stem);
    let drawn = output(&mut command, PLOT_LIMIT)?;
    ensure!(
        drawn.status.success(),
        "drawing failed: {}",
        String::from_utf8_lossy(&drawn.stderr).trim()
    );
    Ok(())
}
