//! `cargo xtask bench figures` measures and stores; [`write_page`] makes the page and the plots of what is stored.
//!
//! It refuses to report what it did not measure: a page is made of a file of results alone. Bounded by:
//! the plan, and the deadline of each turn.

pub(crate) mod cell;
mod comparison;
mod page;
mod plan;
mod plot;
mod results;
mod stages;
mod turn;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testbed::{interrupt, packages, scratch_directory};

use self::plan::{ATLAS, Appointment, Plan, Restriction, TRAFFIC_SERVER, turn_time};
use self::results::{Outcome, Results, Turn};
use self::turn::{RETAKES_SHARE, Turns, is_disturbed_only};
use crate::binaries::{Binaries, BinaryOptions};
use crate::lab::{Contender, Lab, command_line};
use crate::stored::{Environment, Writer};
use crate::tls::{Credentials, Key, is_kernel_tls_available};
use testbed::program::Program;

/// Size of each object, bytes: a chunk of video of a second or two.
const OBJECT_BYTES: u64 = 307_200;

/// Bytes of objects of different content.
const DISTINCT_BYTES: u64 = 3_700_000_000;

/// Copies of each: what a server is asked for in its longest turn, by the most viewers, and no object twice.
const COPIES: u64 = 26;

/// Bytes that Apache Traffic Server's cache holds.
const TRAFFIC_SERVER_BYTES: u64 = 1_200_000_000;

/// Bytes that a raw store of ours holds.
const RAW_STORE_BYTES: u64 = 1_300_000_000;

/// Descriptors servers may have: a rival needs two for each connection, socket and file.
const DESCRIPTORS: u64 = 131_072;

/// How often a turn is taken again.
const RETAKES_MAX: usize = 2;

/// Options of `bench figures`.
#[derive(Args, Clone, Debug)]
pub struct FiguresOptions {
    #[command(flatten)]
    wanted: Restriction,
    /// Says what would be measured, and how long it would take
    #[arg(long)]
    list: bool,
    /// What the order of the turns is drawn from (default: the time)
    #[arg(long)]
    seed: Option<u64>,
    /// Stores the results here, a line when a turn is over; page and plots are put beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    binaries: BinaryOptions,
    /// Another build of atlas, measured in the same rounds as atlas-baseline: with `--servers atlas`,
    /// the ratios compare the two builds
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Atlas serves a raw store on a device of its own instead of the directory, as Traffic Server does;
    /// the baseline serves the directory
    #[arg(long)]
    raw_store: bool,
    /// Measures each stage of Atlas's pipeline alone, too: read, session, seal, write
    #[arg(long)]
    stages: bool,
    /// MTU of the wire, bytes, 1280 to 9000
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u16).range(1280..=9000))]
    mtu: u16,
    /// Further arguments for `atlas serve`, separated by spaces. Another link than packet:, such as
    /// --link xdp:wire0, is one
    #[arg(
        long,
        value_name = "ARGUMENTS",
        default_value = "",
        allow_hyphen_values = true
    )]
    atlas_arguments: String,
    /// Those of the baseline, instead of the same: with one build twice, the ratios compare two settings
    #[arg(
        long,
        value_name = "ARGUMENTS",
        requires = "baseline",
        allow_hyphen_values = true
    )]
    baseline_arguments: Option<String>,
}

impl FiguresOptions {
    /// Whether nothing is to be measured.
    pub(crate) fn only_lists(&self) -> bool {
        self.list
    }

    /// One setting that only one build has would make the ratio that of the settings.
    fn baseline_arguments(&self) -> &str {
        let own = self.baseline_arguments.as_deref();
        own.unwrap_or(&self.atlas_arguments)
    }

    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::new(&self.wanted)?;
        for point in &mut plan.points {
            if self.baseline.is_some() {
                point.servers.push(Contender::ATLAS_BASELINE);
            }
        }
        Ok(plan)
    }
}

/// Says what would be measured.
pub(crate) fn list(options: &FiguresOptions) -> Result<()> {
    let plan = options.plan()?;
    for point in &plan.points {
        println!(
            "{} x {}: {}",
            point.rounds,
            point.cell,
            point.servers.join(", ")
        );
    }
    println!("some {}", minutes(plan.estimate()));
    Ok(())
}

/// Measures.
pub(crate) fn run_command(options: &FiguresOptions) -> Result<()> {
    packages::ensure_installed(&packages::FOR_FIGURES)?;
    let plan = options.plan()?;
    let binaries = options.binaries.find()?;
    let contenders = contenders(options, &plan, &binaries)?;
    let directory = scratch_directory("figures")?;
    let descriptors = raise_descriptors();
    let distinct = if options.wanted.is_quick {
        DISTINCT_BYTES / 2
    } else {
        DISTINCT_BYTES
    };
    let mut lab = Lab::new(
        (distinct, OBJECT_BYTES, COPIES),
        Credentials::new(Key::Ecdsa)?,
    )?;
    let is_planned = |name: &str| plan.points.iter().any(|it| it.servers.contains(&name));
    if is_planned(TRAFFIC_SERVER) {
        lab.make_traffic_server(TRAFFIC_SERVER_BYTES)?;
    }
    if options.raw_store {
        lab.make_raw_store(RAW_STORE_BYTES, &binaries.server)?;
    }
    let seed = match options.seed {
        Some(seed) => seed,
        None => std::time::UNIX_EPOCH.elapsed()?.as_secs(),
    };
    let environment = environment(&lab, &contenders, seed, descriptors)?;
    let kept;
    let file = match &options.json {
        Some(file) => file.as_path(),
        None => {
            kept = directory.path().join("results.jsonl");
            kept.as_path()
        }
    };
    let mut writer = Writer::create(file, &environment)?;
    let turns = Turns {
        lab: &lab,
        instruments: &binaries.instruments,
        directory: directory.path(),
        atlas_arguments: &options.atlas_arguments,
        baseline_arguments: options.baseline_arguments(),
        mtu: options.mtu,
    };
    let mut outcome = carry_out(&plan, &turns, &contenders, seed, &mut writer);
    if options.stages && outcome.is_ok() {
        outcome = measure_stages(&plan, &turns, &mut writer);
    }
    // What was measured before a failure or an interrupt is worth its page.
    if options.json.is_some() {
        write_page(file)?;
    }
    print!("{}", page::summary_text(&Results::read(file)?));
    outcome
}

fn carry_out(
    plan: &Plan,
    turns: &Turns<'_>,
    contenders: &[Contender],
    seed: u64,
    writer: &mut Writer,
) -> Result<()> {
    let rounds: Vec<Vec<Appointment>> = (1..=plan.rounds())
        .map(|round| plan.round(round, seed))
        .collect();
    let mut left: Duration = rounds.iter().flatten().map(|it| turn_time(&it.cell)).sum();
    let count = rounds.iter().map(Vec::len).sum::<usize>();
    eprintln!("{count} turns, some {}", minutes(left));
    let mut retakes = retakes(count);
    for appointment in rounds.into_iter().flatten() {
        let contender = contenders
            .iter()
            .find(|it| it.name() == appointment.server)
            .with_context(|| format!("no server is called {}", appointment.server))?;
        let begun = Instant::now();
        let mut retaken = 0;
        loop {
            interrupt::check()?;
            let turn_seed = seed ^ appointment.round as u64;
            let mut outcome = turns.run(contender, &appointment.cell, turn_seed)?;
            let is_disturbed = matches!(&outcome, Outcome::Void(why, _) if is_disturbed_only(why));
            let is_retaken = is_disturbed && retaken < RETAKES_MAX && retakes > 0;
            outcome = match outcome {
                Outcome::Void(_, Some(measured)) if is_disturbed && !is_retaken => {
                    Outcome::Measured(measured)
                }
                other => other,
            };
            eprintln!(
                "{:>7} left, round {}, {:<56} {:<23} {}",
                minutes(left),
                appointment.round,
                appointment.cell.to_string(),
                appointment.server,
                said(&outcome)
            );
            writer.add(&Turn {
                round: appointment.round,
                server: appointment.server.to_owned(),
                cell: appointment.cell,
                outcome,
            })?;
            if !is_retaken {
                break;
            }
            retakes -= 1;
            retaken += 1;
        }
        left = left.saturating_sub(turn_time(&appointment.cell).min(begun.elapsed() * 2));
    }
    Ok(())
}

/// The stages, as for each number of connections that Atlas serves from a cold disk.
fn measure_stages(plan: &Plan, turns: &Turns<'_>, writer: &mut Writer) -> Result<()> {
    let mut measured = Vec::new();
    for point in plan.points.iter().filter(|it| page::has_stages(&it.cell)) {
        let connections = point.cell.connections;
        if point.servers.contains(&ATLAS) && !measured.contains(&connections) {
            measured.push(connections);
            let place = (turns.lab, turns.instruments, turns.mtu);
            stages::measure(place, connections, &mut |window| writer.add(&window))?;
        }
    }
    Ok(())
}

/// How many turns may be taken again.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of hundreds"
)]
fn retakes(count: usize) -> usize {
    (count as f64 * RETAKES_SHARE).ceil() as usize
}

fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Measured(it) => format!(
            "{:>6.2} Gb/s {:>7.3} core-s/GB, clients {:.0} %, stolen {:.0} %",
            it.gbps(),
            it.cost(),
            it.client_load() * 100.0,
            it.stolen_share() * 100.0
        ),
        Outcome::Void(why, _) => format!("void: {why}"),
        Outcome::Failed(why) => format!("failed: {why}"),
    }
}

/// The servers of a plan.
fn contenders(
    options: &FiguresOptions,
    plan: &Plan,
    binaries: &Binaries,
) -> Result<Vec<Contender>> {
    let mut found: Vec<Contender> = Vec::new();
    let names = plan.points.iter().flat_map(|it| &it.servers);
    for name in names {
        if found.iter().any(|it| it.name() == *name) {
            continue;
        }
        found.push(match *name {
            Contender::ATLAS_BASELINE => {
                let path = options.baseline.as_deref();
                Contender::AtlasBaseline(Program::Atlas.find(path)?)
            }
            name => match Contender::find(name, &binaries.server) {
                Some(contender) => contender,
                None => bail!("no server is called {name}"),
            },
        });
    }
    if !found.iter().any(|it| it.name() == ATLAS) {
        eprintln!("without {ATLAS}, nothing is compared");
    }
    Ok(found)
}

fn environment(
    lab: &Lab,
    contenders: &[Contender],
    seed: u64,
    descriptors: u64,
) -> Result<Environment> {
    let mut machine = lab.environment(contenders)?;
    let objects = lab.disk().objects;
    let mut add = |name: &str, value: String| machine.push((name.to_owned(), value));
    add(
        "objects",
        format!(
            "{} of {} bytes, {} of different content; a turn asks for none twice",
            cell::thousands(objects.total()),
            cell::thousands(objects.bytes),
            cell::thousands(objects.count)
        ),
    );
    add(
        "TLS",
        format!(
            "1.3, AES-128-GCM, ECDSA P-256; kernel TLS {}",
            if is_kernel_tls_available() {
                "available: nginx is told to use it"
            } else {
                "not in this kernel"
            }
        ),
    );
    add("descriptors", cell::thousands(descriptors));
    let environment = Environment::new(command_line(), seed, machine);
    Ok(environment.with_objects_of(u32::try_from(objects.bytes)?))
}

/// Writes page and plots beside a file of results.
pub(crate) fn write_page(file: &Path) -> Result<PathBuf> {
    let results = Results::read(file)?;
    let directory = file.with_extension("");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let name = directory.file_name().context("a file has a name")?;
    let name = name.to_string_lossy().into_owned();
    let plots = plot::draw(&results, &directory)?
        .into_iter()
        .map(|(plot, title)| (format!("{name}/{plot}"), title))
        .collect::<Vec<_>>();
    let path = file.with_extension("md");
    fs::write(&path, page::page(&results, &plots))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
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
