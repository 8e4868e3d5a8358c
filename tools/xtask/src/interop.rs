//! `cargo xtask interop`: TCPs of others as clients of the server, over paths with faults.
//!
//! Bounded by: a limit on every client and every build.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use crate::rights::run_through_sudo;
use interop::client::{Client, Kind};
use interop::run;
use interop::scenario::SCENARIOS;
use testbed::namespace::Namespace;
use testbed::program::Program;
use testbed::suite::{Outcome, Suite};
use testbed::{find_program, interrupt, is_root, scratch_directory};

/// Options of `interop`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct InteropOptions {
    /// The server to test (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Only these clients: gVisor, smoltcp, lwIP
    #[arg(long, value_name = "NAME")]
    client: Vec<Kind>,
    /// The clients' programs are built already
    #[arg(long)]
    is_built: bool,
}

/// Runs all clients over all paths; fails if a check does.
pub(crate) fn run_command(options: &InteropOptions) -> Result<()> {
    let mut suite = Suite::default();
    run_here(&mut suite, options);
    suite.close()
}

/// Runs all of it into a suite, through sudo if this process may not make namespaces itself.
pub(crate) fn run_with_rights(suite: &mut Suite) {
    let options = InteropOptions::default();
    if is_root() || find_program("sudo").is_none() {
        return run_here(suite, &options);
    }
    // Programs are built as the user we are.
    let clients = find_clients(suite, &options);
    let arguments = || {
        let atlas = Program::Atlas.find(None)?;
        let mut arguments = vec!["interop".into(), "--is-built".into()];
        arguments.extend(["--atlas".into(), atlas.into_os_string()]);
        for client in &clients {
            arguments.extend(["--client".into(), client.kind.name().into()]);
        }
        Ok(arguments)
    };
    let result = arguments().and_then(|it| run_through_sudo(suite, &it));
    if let Err(error) = result {
        suite.fail("interop", &format!("{error:#}"));
    }
}

fn run_here(suite: &mut Suite, options: &InteropOptions) {
    if interrupt::is_set() {
        return suite.skip("interop", "interrupted");
    }
    if let Err(reason) = can_run() {
        return suite.skip("interop", &reason);
    }
    let clients = find_clients(suite, options);
    if let Err(error) = run_clients(suite, options, &clients) {
        suite.fail("interop", &format!("{error:#}"));
    }
}

/// What must be there for any of it.
fn can_run() -> std::result::Result<(), String> {
    if !is_root() {
        return Err("making network namespaces needs root".to_owned());
    }
    if find_program("ip").is_none() {
        return Err("ip is not installed".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("no /dev/net/tun".to_owned());
    }
    // Root of a container may still not be allowed to.
    Namespace::new("try")
        .map(drop)
        .map_err(|error| format!("no network namespaces: {error:#}"))
}

/// The clients that are wanted and can be had; of the others the suite is told why not.
fn find_clients(suite: &mut Suite, options: &InteropOptions) -> Vec<Client> {
    let wanted = |kind: &Kind| options.client.is_empty() || options.client.contains(kind);
    let mut clients = Vec::new();
    for kind in Kind::ALL.into_iter().filter(wanted) {
        let name = format!("interop {}", kind.name());
        match Client::find(kind, options.is_built) {
            Ok(Ok(client)) => clients.push(client),
            Ok(Err(reason)) => suite.skip(&name, &reason),
            Err(error) => suite.fail(&name, &format!("{error:#}")),
        }
    }
    clients
}

fn run_clients(suite: &mut Suite, options: &InteropOptions, clients: &[Client]) -> Result<()> {
    let atlas = Program::Atlas.find(options.atlas.as_deref())?;
    let root = scratch_directory("interop")?;
    run::write_files(root.path())?;
    for client in clients {
        for scenario in SCENARIOS {
            let name = format!("interop {}, {}", client.kind.name(), scenario.name);
            suite.run(&name, || {
                run::run(&atlas, root.path(), client, &scenario).map(|()| Outcome::Passed)
            });
        }
    }
    Ok(())
}
