//! `cargo xtask sim`: the seeded simulator of the whole server.

use anyhow::Result;
use clap::Parser as _;

use testbed::pages::Part;
use testbed::suite::{Outcome, Suite};

/// How many seeds are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seeds {
    /// In some seconds.
    Some,
    /// In some minutes.
    Most,
}

/// Scenarios, and how many of their seeds each of [`Seeds`] runs.
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

/// Runs a range of seeds into a suite.
pub(crate) fn run(suite: &mut Suite, seeds: Seeds) {
    for (scenario, some, most) in SCENARIOS {
        let end = if seeds == Seeds::Some { some } else { most };
        let seeds = format!("0..{end}");
        suite.run(&format!("sim, {scenario}, seeds {seeds}"), || {
            let arguments = ["sim", "--scenario", scenario, "--seeds", &seeds];
            run_command(&sim::Options::try_parse_from(arguments)?)?;
            Ok(Outcome::Passed)
        });
    }
}
