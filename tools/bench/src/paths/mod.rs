//! `cargo xtask bench paths`: Atlas beside Linux's own TCP on the same path, by RTT, loss and buffer;
//! and two connections beside each other on one.
//!
//! Every run has a path of its own (`bottleneck`): two namespaces, a middlebox between them. The client
//! is the kernel's TCP and asks for one object without end; bytes are counted for a fixed time from
//! the reply's first byte on. Several paths run at once. It refuses to count a run that the middlebox
//! disturbed: such a run is repeated. Bounded by: the plan, and a limit on every wait.

mod causes;
mod client;
mod linux_sender;
mod page;
mod plan;
mod results;
mod run;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::plan::{Restriction, Task};
use self::results::{Outcome, Results, Run};
use self::run::Runner;
use crate::lab::{command_line, load, machine};
use crate::stored::{Environment, Writer};
use testbed::program::Program;
use testbed::{interrupt, packages};

/// Options of `bench paths`.
#[derive(Args, Clone, Debug)]
pub struct PathsOptions {
    #[command(flatten)]
    wanted: Restriction,
    /// So many rounds (default: 3; with --quick 1)
    #[arg(long)]
    rounds: Option<u64>,
    /// Runs that take place at once
    #[arg(long, default_value_t = 4)]
    at_once: usize,
    /// How often a run that was disturbed is repeated, at most
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// What order and losses are drawn from (default: the time)
    #[arg(long)]
    seed: Option<u64>,
    /// Says what would be measured, and how long it would take
    #[arg(long)]
    list: bool,
    /// Stores the results here, a line when a run is over; the page is put beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The server to measure (default: builds atlas, release)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

impl PathsOptions {
    /// Whether nothing is to be measured.
    pub(crate) fn only_lists(&self) -> bool {
        self.list
    }
}

/// Runs the bench, or shows what there is.
pub(crate) fn run_command(options: &PathsOptions) -> Result<()> {
    if options.list {
        return list(options);
    }
    print!("{}", page::table(&measure(options)?));
    if let Some(file) = &options.json {
        write_page(file)?;
    }
    Ok(())
}

/// Writes the page beside a file of results.
pub(crate) fn write_page(file: &Path) -> Result<PathBuf> {
    let path = file.with_extension("md");
    fs::write(&path, page::page(&Results::read(file)?))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

fn rounds(options: &PathsOptions) -> u64 {
    options
        .rounds
        .unwrap_or(if options.wanted.is_quick { 1 } else { 3 })
}

fn list(options: &PathsOptions) -> Result<()> {
    let tasks = plan::tasks(&options.wanted, 0, 0)?;
    for task in &tasks {
        println!("{task}, {} s", task.seconds);
    }
    let seconds: u64 = tasks.iter().map(|task| task.seconds + 2).sum();
    let at_once = u64::try_from(options.at_once.max(1)).unwrap_or(1);
    let minutes = seconds * rounds(options) / at_once / 60 + 1;
    println!("{} runs a round; {minutes} minutes", tasks.len());
    Ok(())
}

fn measure(options: &PathsOptions) -> Result<Results> {
    let atlas = Program::Atlas.find(options.atlas.as_deref())?;
    packages::ensure_installed(&packages::FOR_BENCHES)?;
    let seed = options.seed.map_or_else(seed_of_the_time, Ok)?;
    let mut tasks = VecDeque::new();
    for round in 1..=rounds(options) {
        tasks.extend(plan::tasks(&options.wanted, round, seed)?);
    }
    ensure!(
        !tasks.is_empty(),
        "there is nothing of that kind to measure"
    );
    let environment = Environment::new(command_line(), seed, machine(&load()?, Some(&atlas))?);
    let mut writer = match &options.json {
        Some(file) => Some(Writer::create(file, &environment)?),
        None => None,
    };
    let runner = Runner::new(&atlas)?;
    let (total, start) = (tasks.len(), Instant::now());
    let mut runs = Vec::new();
    let queue = Mutex::new(tasks);
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for _ in 0..options.at_once.max(1) {
            let sender = sender.clone();
            scope.spawn(|| work(&runner, &queue, options.repeats, sender));
        }
        drop(sender);
        for run in receiver {
            eprintln!("{}/{total} {}", runs.len() + 1, run.line());
            if let Some(writer) = &mut writer {
                writer.add(&run)?;
            }
            runs.push(run);
        }
        anyhow::Ok(())
    })?;
    interrupt::check()?;
    eprintln!("{} s", start.elapsed().as_secs());
    Ok(Results { environment, runs })
}

/// Does what is in the queue until it is empty, or nobody listens, or a signal arrives.
fn work(runner: &Runner, queue: &Mutex<VecDeque<Task>>, repeats_max: u32, results: Sender<Run>) {
    let next = || queue.lock().ok()?.pop_front();
    while let Some(task) = next() {
        let mut repeats = 0;
        let run = loop {
            if interrupt::is_set() {
                return;
            }
            let outcome = match runner.run(&task) {
                Ok(measured) => Outcome::Measured(Box::new(measured)),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            };
            let run = Run::new(&task, repeats, outcome);
            if run.is_good() || repeats == repeats_max {
                break run;
            }
            repeats += 1;
        };
        if interrupt::is_set() || results.send(run).is_err() {
            return;
        }
    }
}

fn seed_of_the_time() -> Result<u64> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    Ok(since.as_secs())
}

/// A file with more bytes than any run can take, none of them on the disk.
fn make_object(directory: &Path) -> Result<()> {
    let path = directory.join(run::OBJECT);
    let file = fs::File::create(&path).with_context(|| format!("making {}", path.display()))?;
    file.set_len(run::OBJECT_BYTES).context("a sparse file")
}
