//! `cargo xtask interop`: TCPs of others as clients of the server, over paths with faults.
//!
//! Bounded by: a limit on every client and every build.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use crate::rights;
use interop::client::{Client, Kind};
use interop::run;
use interop::scenario::SCENARIOS;
use testbed::program::Program;
use testbed::suite::{Outcome, Suite};
use testbed::{interrupt, scratch_directory};

/// Options of `interop`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct InteropOptions {
    /// The server to test (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Only these clients: gVisor, lwIP
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
    let here = |suite: &mut Suite| run_here(suite, &options);
    rights::run(suite, "interop", here, |suite| {
        // Programs are built as the user we are.
        let clients = find_clients(suite, &options);
        let mut arguments = vec!["interop".into(), "--is-built".into()];
        arguments.extend([
            "--atlas".into(),
            Program::Atlas.find(None)?.into_os_string(),
        ]);
        for client in &clients {
            arguments.extend(["--client".into(), client.kind.name().into()]);
        }
        Ok(arguments)
    });
}

fn run_here(suite: &mut Suite, options: &InteropOptions) {
    if interrupt::is_set() {
        return suite.skip("interop", "interrupted");
    }
    let needs_tun = || match Path::new("/dev/net/tun").exists() {
        true => Ok(()),
        false => Err("no /dev/net/tun".to_owned()),
    };
    if let Err(reason) = rights::can_make_namespaces(&["ip"]).and_then(|()| needs_tun()) {
        return suite.skip("interop", &reason);
    }
    let clients = find_clients(suite, options);
    if let Err(error) = run_clients(suite, options, &clients) {
        suite.fail("interop", &format!("{error:#}"));
    }
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
