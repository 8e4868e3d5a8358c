//! `cargo xtask sim`: the seeded simulator of the whole server.

use anyhow::Result;

use crate::harness::suite::{Outcome, Suite};

/// Seeds `test` runs.
const SEEDS: u64 = 200;

/// Seeds `test --quick` runs.
const QUICK_SEEDS: u64 = 20;

/// Runs the simulator with these arguments.
pub(crate) fn run_command(arguments: &[String]) -> Result<()> {
    anyhow::bail!("no simulator yet for {arguments:?}")
}

/// Runs a range of seeds into a suite.
pub(crate) fn run(suite: &mut Suite, quick: bool) {
    let seeds = format!("0..{}", if quick { QUICK_SEEDS } else { SEEDS });
    suite.run(&format!("sim, seeds {seeds}"), || {
        run_command(&["--seeds".to_owned(), seeds.clone()])?;
        Ok(Outcome::Passed)
    });
}
