//! `cargo xtask bench figures`: throughput and cost by cache and connections, drawn like the
//! paper's figures 1, 2, 11a, 11b, 13a and 13b; the disks by themselves, as in its figures 6 and
//! 8 to 10; and serving from the machine's own disk.
//!
//! Servers take turns, round after round, at the cells of the plan ([`plan`]). What a server
//! cannot do is told, not left out. It refuses to report a run in which anything was wrong.
//! Bounded by: the plan, and the deadline of each turn.

mod accounts;
mod aims;
mod disks;
mod middlebox;
mod page;
mod plan;
mod real;
mod settings;
mod summary;
mod turn;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use self::accounts::Accounts;
use self::accounts::stages::{self, Measuring};
use self::plan::{OBJECT_BYTES, Plan, Progress, Security, Visit, Wishes, is_hopeless};
use self::summary::{Comparison, Point};
use self::turn::Turns;
use super::binaries::{BinaryOptions, EmulationOptions};
use super::lab::{Contender, Lab, Steering};
use super::publish;
use super::real_disk::RealDisk;
use super::tls::{Credentials, Key, is_kernel_tls_available};
use crate::packages;
use testbed::process::output;
use testbed::rivals::{NginxMode, Peer};
use testbed::{interrupt, scratch_directory, workspace_root};

/// Descriptors servers may have: a rival needs two for each connection, socket and file.
const DESCRIPTORS: u64 = 65_536;

/// Draws the figures out of the report's JSON.
const PLOTTER: &str = "bench/plot.py";

/// The distribution's Python, which has the distribution's libraries; another may come first on
/// PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Longest time the drawing may take.
const PLOT_LIMIT: Duration = Duration::from_secs(120);

/// Options of `bench figures`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FiguresOptions {
    /// 64 and 1,000 connections, one round: minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// How often each server takes its turn at each point (default 3 where it counts, elsewhere 2;
    /// with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Numbers of connections, comma-separated (default: 64 to 16,000, with --quick 64 and 1,000)
    #[arg(long, value_delimiter = ',')]
    connections: Vec<u64>,
    /// Servers to run, comma-separated; each goes everywhere it can (default: all, and between
    /// 1,000 and 16,000 connections those that can be the best)
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Writes the report here as JSON; the page (.md) and the plots are put beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    binaries: BinaryOptions,
    #[command(flatten)]
    emulation: EmulationOptions,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// What it ran on and with: `(name, value)`.
    environment: Vec<(String, String)>,
    /// Atlas beside the best rival of each round, at each cell.
    comparisons: Vec<Comparison>,
    /// What the stages cost alone, and what follows, if they were measured.
    accounts: Option<Accounts>,
    points: Vec<Point>,
    /// Atlas alone over connections, turn beside turn.
    alone: Vec<Point>,
    /// The disks by themselves.
    disks: Vec<disks::Figures>,
    /// Serving from the machine's own disk.
    real_disk: real::Figures,
}

/// Runs the bench.
pub(super) fn run_command(options: &FiguresOptions) -> Result<()> {
    packages::ensure_installed(&packages::FOR_FIGURES)?;
    if let Some(directory) = options.json.as_deref().and_then(Path::parent) {
        // Now, not after hours.
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let binaries = options.binaries.find()?;
    let contenders = contenders(options, &binaries.server)?;
    let wishes = Wishes {
        is_quick: options.quick,
        rounds: options.rounds,
        connections: &options.connections,
        is_chosen: !options.servers.is_empty(),
    };
    ensure!(
        options.connections.iter().all(|number| *number > 0),
        "no connections, no figures"
    );
    let plan = Plan::new(wishes, &contenders);
    let plans = Plans {
        alone: plan.over_connections(wishes),
        real: real::plan(&plan, options.quick, &contenders),
        whole: plan,
    };
    let parts =
        disks::estimate(options.quick) + stages::estimate(plans.whole.rounds(), options.quick);
    let all = [&plans.whole, &plans.alone, &plans.real];
    let estimate = parts + all.map(Plan::estimate).into_iter().sum::<Duration>();
    eprintln!("this will take some {}", minutes(estimate));
    let report = measure(&plans, &binaries.instruments, &contenders, options.quick)?;
    publish(&page::text(&report), &report, options.json.as_deref())?;
    match &options.json {
        Some(json) => illustrate(json, &report),
        None => Ok(()),
    }
}

/// The servers asked for, or all.
fn contenders(options: &FiguresOptions, atlas: &Path) -> Result<Vec<Contender>> {
    let names = &options.servers;
    let all: Vec<Contender> = [
        Contender::Atlas(atlas.to_path_buf()),
        options.emulation.find()?,
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

/// What is carried out, on one disk after the other.
struct Plans {
    whole: Plan,
    alone: Plan,
    real: Plan,
}

fn measure(
    plans: &Plans,
    instruments: &Path,
    contenders: &[Contender],
    is_quick: bool,
) -> Result<Report> {
    let directory = scratch_directory("figures")?;
    let wanted = plans.whole.objects();
    let lab = Lab::new(wanted * OBJECT_BYTES, OBJECT_BYTES, Steering::Server)?;
    let found = lab.disk.objects.count;
    ensure!(
        found >= wanted,
        "memory for {found} objects only, {wanted} are wanted: ask for fewer --connections"
    );
    middlebox::lay_spare_cable(&lab.cable.client)?;
    let mut environment = lab.environment(contenders)?;
    let descriptors = raise_descriptors();
    environment.extend(settings::settings(&lab, descriptors)?);
    let directory = directory.path();
    let real = RealDisk::find();
    let disks = disks::measure(&lab, instruments, &real, is_quick)?;
    let rounds = Rounds {
        instruments,
        directory,
        descriptors,
    };
    let mut stages = Measuring::new(instruments, is_quick);
    let (lab, points) = rounds.carry_out(&plans.whole, lab, |lab| stages.repeat(lab))?;
    let (lab, alone) = rounds.carry_out(&plans.alone, lab, |_| Ok(()))?;
    let real_disk = match real::fill(&real, plans.real.objects())? {
        Ok(disk) => {
            let device = disk.device.clone();
            let (_, points) = rounds.carry_out(&plans.real, lab.on(disk), |_| Ok(()))?;
            real::Figures::new(&device, points)
        }
        Err(why) => real::Figures::refused(why),
    };
    Ok(Report {
        environment,
        comparisons: summary::compare(&points, Contender::ATLAS),
        accounts: Some(Accounts::new(
            stages.end()?,
            &points,
            is_kernel_tls_available(),
        )),
        points,
        alone,
        disks,
        real_disk,
    })
}

/// What rounds have in common, on whatever disk.
struct Rounds<'a> {
    /// `atlas-bench`.
    instruments: &'a Path,
    directory: &'a Path,
    descriptors: u64,
}

impl Rounds<'_> {
    /// All rounds of a plan, on whatever disk the laboratory serves from.
    fn carry_out(
        &self,
        plan: &Plan,
        mut lab: Lab,
        mut before_round: impl FnMut(&Lab) -> Result<()>,
    ) -> Result<(Lab, Vec<Point>)> {
        let mut series = Series::new(plan, self.descriptors);
        let retakes = Cell::new(plan.retakes());
        for round in 1..=plan.rounds() {
            before_round(&lab)?;
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
                    instruments: self.instruments,
                    directory: self.directory,
                    retakes: &retakes,
                };
                series.run(&turns, security, round)?;
            }
        }
        let mut points = series.points.into_iter().flatten().collect::<Vec<_>>();
        summary::pool(&mut points);
        Ok((lab, points))
    }
}

/// The plan being carried out.
struct Series<'a> {
    plan: &'a Plan,
    /// What each server may have of them.
    descriptors: u64,
    /// For each visit those of its contenders.
    points: Vec<Vec<Point>>,
    progress: Progress,
    begun: Instant,
}

impl<'a> Series<'a> {
    fn new(plan: &'a Plan, descriptors: u64) -> Self {
        let points = |visit: &Visit| {
            let contenders = visit.contenders.iter();
            contenders
                .map(|it| Point::new(visit.cell, it.name(), it.is_ours()))
                .collect()
        };
        Self {
            plan,
            descriptors,
            points: plan.visits.iter().map(points).collect(),
            progress: Progress::new(plan),
            begun: Instant::now(),
        }
    }

    /// One round at all cells of a kind.
    fn run(&mut self, turns: &Turns<'_>, security: Security, round: usize) -> Result<()> {
        for index in self.plan.order(security, round) {
            let (visit, points) = (&self.plan.visits[index], &mut self.points[index]);
            for (contender, point) in visit.contenders.iter().zip(points) {
                interrupt::check()?;
                let has_failed = !point.failures.is_empty();
                if has_failed && is_hopeless(point.is_ours, &visit.cell, self.descriptors) {
                    self.progress.on_turn(&visit.cell);
                    continue;
                }
                let run = turns.run(contender, &visit.cell);
                // What an interrupt broke off is no failure of the server.
                interrupt::check()?;
                let said = match &run {
                    Ok(run) => format!(
                        "{:>6.2} Gb/s {:>7.3} core-s/GB",
                        run.gbps, run.core_seconds_per_gb
                    ),
                    Err(error) => format!("{error:#}"),
                };
                point.add(round, run.map_err(|error| format!("{error:#}")));
                self.progress.on_turn(&visit.cell);
                eprintln!(
                    "{:>7} left, round {round}: {:<32} {:<24} {said}",
                    minutes(self.progress.left(self.begun.elapsed())),
                    visit.cell.to_string(),
                    point.server
                );
            }
        }
        Ok(())
    }
}

/// A time as people say it, rounded up.
fn minutes(time: Duration) -> String {
    format!("{} min", time.as_secs().div_ceil(60))
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
