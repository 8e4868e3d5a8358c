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
    let options = short_options();
    let here = |suite: &mut Suite| {
        let words = [OsString::from("xtask"), "fleet".into()];
        let words = words.into_iter().chain(options.iter().cloned());
        if let Command::Fleet(options) = Arguments::parse_from(words).command {
            run_here(suite, &options);
        }
    };
    rights::run(suite, "fleet", here, |_| {
        let mut arguments: Vec<OsString> = vec!["fleet".into()];
        arguments.extend(options.iter().cloned());
        // Programs are built as the user we are.
        let server = Program::Atlas.find(None)?;
        arguments.extend(["--atlas".into(), server.into_os_string()]);
        Ok(arguments)
    });
}

/// The short form's. The filler and the steering are dev builds, which their tests have made: nothing is measured.
fn short_options() -> Vec<OsString> {
    let mut options: Vec<OsString> = Options::short().into_iter().map(OsString::from).collect();
    for (flag, program) in [
        ("--fill", Program::AtlasFill),
        ("--steer", Program::AtlasSteer),
    ] {
        options.extend([flag.into(), program.dev_path().into_os_string()]);
    }
    options
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
