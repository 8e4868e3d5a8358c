//! `cargo xtask sim`: the seeded simulator of the whole server.

use anyhow::Result;

use testbed::suite::{Outcome, Suite};

/// Seeds `test` runs.
const SEEDS: u64 = 5000;

/// Seeds `test --quick` runs.
const QUICK_SEEDS: u64 = 500;

/// The same of the scenario `paths`, whose runs are longer.
const PATHS_SEEDS: u64 = 2000;
const QUICK_PATHS_SEEDS: u64 = 200;

/// The same of the scenario `workers`.
const WORKERS_SEEDS: u64 = 2000;
const QUICK_WORKERS_SEEDS: u64 = 300;

/// Runs the simulator with these arguments.
pub(crate) fn run_command(arguments: &[String]) -> Result<()> {
    Ok(sim::run_command(arguments.iter().cloned())?)
}

/// Runs a range of seeds into a suite.
pub(crate) fn run(suite: &mut Suite, quick: bool) {
    let (swarm, paths, workers) = if quick {
        (QUICK_SEEDS, QUICK_PATHS_SEEDS, QUICK_WORKERS_SEEDS)
    } else {
        (SEEDS, PATHS_SEEDS, WORKERS_SEEDS)
    };
    for (scenario, seeds) in [("swarm", swarm), ("paths", paths), ("workers", workers)] {
        let seeds = format!("0..{seeds}");
        suite.run(&format!("sim, {scenario}, seeds {seeds}"), || {
            let arguments = ["--scenario", scenario, "--seeds", &seeds];
            run_command(&arguments.map(str::to_owned))?;
            Ok(Outcome::Passed)
        });
    }
}
