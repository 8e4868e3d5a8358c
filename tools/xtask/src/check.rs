//! `cargo xtask check`: what takes longer than the checks of `cargo xtask test`, in order, with one closing line.
//!
//! It refuses to stop at a check that fails. Bounded by what bounds each.

use anyhow::Result;

use crate::{boot, fuzz, soak};
use testbed::suite::Suite;

/// Runs every check; fails if one does.
pub(crate) fn run_command() -> Result<()> {
    let mut suite = Suite::default();
    boot::run_with_rights(&mut suite);
    fuzz::run(&mut suite, &fuzz::FuzzOptions::default());
    soak::run(&mut suite);
    println!();
    suite.close()
}
