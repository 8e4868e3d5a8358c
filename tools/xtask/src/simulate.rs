//! `cargo xtask sim`: the seeded simulator of the whole server.

use anyhow::Result;

use testbed::suite::{Outcome, Suite};

/// Seeds `test` runs.
const SEEDS: u64 = 5000;

/// Seeds `test --quick` runs.
const QUICK_SEEDS: u64 = 500;

/// Runs the simulator with these arguments.
pub(crate) fn run_command(arguments: &[String]) -> Result<()> {
    Ok(sim::run_command(arguments.iter().cloned())?)
}

/// Runs a range of seeds into a suite.
pub(crate) fn run(suite: &mut Suite, quick: bool) {
    let seeds = format!("0..{}", if quick { QUICK_SEEDS } else { SEEDS });
    suite.run(&format!("sim, seeds {seeds}"), || {
        run_command(&["--seeds".to_owned(), seeds.clone()])?;
        Ok(Outcome::Passed)
    });
}
