//! `cargo xtask fleet`: [`::fleet`], with the rights that it needs. Bounded by what bounds that.

use std::ffi::OsString;

use anyhow::Result;
use clap::Parser as _;

use ::fleet::Options;

use crate::{Arguments, Command, rights};
use testbed::program::Program;
use testbed::suite::Suite;
use testbed::{interrupt, packages};

/// Runs all of it; fails if a check does.
pub(crate) fn run_command(options: &Options) -> Result<()> {
    for wanted in [
        &packages::FOR_FLEET[..],
        &packages::BROWSER,
        &packages::FLEET,
        &packages::FLEET_RIVALS,
    ] {
        packages::install_if_possible(wanted);
    }
    let mut suite = Suite::default();
    run_here(&mut suite, options);
    suite.close()
}

/// Runs the short form into a suite, through sudo if this process may not make namespaces itself.
pub(crate) fn run_short_with_rights(suite: &mut Suite) {
    let here = |suite: &mut Suite| {
        let arguments = ["xtask", "fleet"].into_iter().chain(Options::short());
        if let Command::Fleet(options) = Arguments::parse_from(arguments).command {
            run_here(suite, &options);
        }
    };
    rights::run(suite, "fleet", here, |_| {
        let mut arguments: Vec<OsString> = vec!["fleet".into()];
        arguments.extend(Options::short().into_iter().map(OsString::from));
        // Programs are built as the user we are.
        for (flag, program) in [
            ("--atlas", Program::Atlas),
            ("--fill", Program::AtlasFill),
            ("--steer", Program::AtlasSteer),
        ] {
            arguments.extend([flag.into(), program.find(None)?.into_os_string()]);
        }
        Ok(arguments)
    });
}

fn run_here(suite: &mut Suite, options: &Options) {
    if interrupt::is_set() {
        return suite.skip("fleet", "interrupted");
    }
    match rights::can_make_namespaces(&["ip"]) {
        Err(reason) => suite.skip("fleet", &reason),
        Ok(()) => ::fleet::run(suite, options),
    }
}
