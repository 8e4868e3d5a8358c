//! `cargo xtask sim`: the seeded simulator of the whole server.

use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser as _;

use testbed::own_program;
use testbed::pages::Part;
use testbed::process::output;
use testbed::suite::{Outcome, Suite};

/// Some minutes on a small machine; more where other checks have the processors.
const LIMIT: Duration = Duration::from_secs(1800);

/// Scenarios, and how many of their seeds are run in some seconds, and in some minutes.
const SCENARIOS: [(&str, u64, u64); 5] = [
    ("swarm", 500, 5000),
    ("changes", 200, 2000),
    ("rewrites", 200, 2000),
    ("paths", 200, 2000),
    ("workers", 300, 2000),
];

/// Runs the simulator with these options. Tables of memory traffic are written into their page, too.
pub(crate) fn run_command(options: &sim::Options) -> Result<()> {
    let Some(tables) = sim::memory_tables(options)? else {
        return Ok(sim::run_command(options)?);
    };
    println!("{tables}");
    let part = Part {
        page: crate::memory::PAGE,
        name: "simulated",
        command: "cargo xtask sim --memory",
    };
    part.write(&testbed::workspace_root(), &tables)
}

/// The arguments that run the seeds before `end` of a scenario.
fn arguments(scenario: &str, end: u64) -> [String; 5] {
    let seeds = format!("0..{end}");
    ["sim", "--scenario", scenario, "--seeds", &seeds].map(str::to_owned)
}

/// The name of the check that has them.
fn name(scenario: &str, end: u64) -> String {
    format!("sim, {scenario}, seeds 0..{end}")
}

/// Runs some seeds of each scenario.
pub(crate) fn run_some(suite: &mut Suite) {
    for (scenario, some, _) in SCENARIOS {
        suite.run(&name(scenario, some), || {
            run_command(&sim::Options::try_parse_from(arguments(scenario, some))?)?;
            Ok(Outcome::Passed)
        });
    }
}

/// Most seeds, run by a thread while other checks wait.
pub(crate) struct Most(JoinHandle<Vec<Result<()>>>);

impl Most {
    /// Begins, with the processors that nothing else wants (nice(1)).
    pub(crate) fn begin() -> Self {
        Self(thread::spawn(|| SCENARIOS.map(run_most).into()))
    }

    /// Waits for their end, and tells it.
    pub(crate) fn finish(self, suite: &mut Suite) {
        match self.0.join() {
            Ok(outcomes) => {
                for ((scenario, _, most), outcome) in SCENARIOS.iter().zip(outcomes) {
                    suite.run(&name(scenario, *most), || outcome.map(|()| Outcome::Passed));
                }
            }
            Err(_) => suite.fail("sim", "its thread panicked"),
        }
    }
}

/// Runs most seeds of a scenario in a process.
fn run_most((scenario, _, most): (&str, u64, u64)) -> Result<()> {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(own_program()?);
    let ended = output(command.args(arguments(scenario, most)), LIMIT)?;
    let told = [ended.stdout, ended.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    ensure!(ended.status.success(), "{}", told.trim_end());
    Ok(())
}
