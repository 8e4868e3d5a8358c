//! `cargo xtask boot`: what is shipped, on a Debian system that systemd has booted ([`machine`]).
//!
//! The unit is installed by the commands in its own head, and started, reloaded, rotated, stopped and disturbed
//! ([`mod@unit`]); so is the package ([`package`]). The commands that the documents show are run as they stand there ([`documents`]). It refuses to change
//! the host: all of it happens in a tree, a network namespace and processes made here. Bounded by: a limit on every wait.

mod documents;
mod machine;
mod package;
mod unit;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use self::machine::Machine;
use crate::rights;
use testbed::content::{self, Content};
use testbed::program::Program;
use testbed::suite::Suite;
use testbed::{interrupt, is_root, workspace_root};

/// Options of `boot`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BootOptions {
    /// The server to test (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Only this part
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
}

/// A part of the checks, which begins with a machine of its own.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The unit, its drop-in and its configuration
    Unit,
    /// The commands of the documents
    Documents,
    /// The Debian package
    Package,
}

/// Where a checkout is in the machine, as far as commands need it.
const CHECKOUT: &str = "root/atlas";

/// What is served, below `srv/video`.
const FILM: Content = Content {
    seed: 1,
    size_bytes: 3_000_000,
};

/// Runs all checks.
pub(crate) fn run_command(options: &BootOptions) -> Result<()> {
    let mut suite = Suite::default();
    run(&mut suite, options);
    suite.close()
}

/// Runs all checks into a suite, through sudo if this process may not boot a machine itself.
pub(crate) fn run_with_rights(suite: &mut Suite) {
    let here = |suite: &mut Suite| run(suite, &BootOptions::default());
    rights::run(suite, "boot", here, |_| {
        let atlas = Program::Atlas.find(None)?;
        Ok(vec![
            "boot".into(),
            "--atlas".into(),
            atlas.into_os_string(),
        ])
    });
}

fn run(suite: &mut Suite, options: &BootOptions) {
    if !is_root() {
        return suite.skip("boot", "booting a system needs root");
    }
    let atlas = match Program::Atlas.find(options.atlas.as_deref()) {
        Ok(atlas) => atlas,
        Err(error) => return suite.fail("boot", &format!("{error:#}")),
    };
    let is_wanted = |part: &&Part| options.only.is_none_or(|only| only == **part);
    for part in Part::value_variants().iter().filter(is_wanted) {
        // Not every system can make a tree, and not every container can boot one.
        let booted = machine::packed_tree()
            .and_then(|tree| Machine::boot(&tree, |root| install_checkout(root, &atlas)));
        match booted {
            Ok(machine) => match part {
                Part::Unit => unit::run(suite, &machine),
                Part::Documents => documents::run(suite, &machine),
                Part::Package => package::run(suite, &machine),
            },
            Err(_) if interrupt::is_set() => return suite.skip("boot", "interrupted"),
            Err(error) => return suite.skip("boot", &format!("{error:#}")),
        }
    }
}

/// Puts into a tree what the commands of the documents find where they are run.
fn install_checkout(root: &Path, atlas: &Path) -> Result<()> {
    let checkout = root.join(CHECKOUT);
    let copy = |from: &Path, to: PathBuf| -> Result<()> {
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    };
    copy(atlas, checkout.join("target/release/atlas"))?;
    copy(atlas, root.join("usr/local/bin/atlas"))?;
    for entry in fs::read_dir(workspace_root().join("dist"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copy(&entry.path(), checkout.join("dist").join(entry.file_name()))?;
        }
    }
    // Root's commands are root's already.
    let sudo = root.join("usr/local/bin/sudo");
    fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n")?;
    fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755))?;
    let videos = root.join("srv/video");
    fs::create_dir_all(&videos)?;
    content::write(FILM, &videos.join("film.mp4"))
}

/// Makes the interface that documents call eth0, with a network behind it on which one client is, in a namespace.
const MAKE_ETH0: &str = "
    ! ip link show eth0 2> /dev/null > /dev/null || ip link del eth0
    ip netns list | grep -q client || ip netns add client
    ip link add eth0 type veth peer name client0 netns client
    ip link set eth0 up
    ip -n client link set lo up
    ip -n client addr add 192.0.2.3/24 dev client0
    ip -n client addr add 2001:db8::3/64 dev client0 nodad
    ip -n client link set client0 up";

/// The documents' second server address, at which the client looks for it.
const ETH0_URL: &str = "http://192.0.2.10/film.mp4";

/// A command that fetches the film and compares it, from the client behind eth0 or from the machine itself.
fn fetch(from_client: bool, url: &str) -> String {
    let place = if from_client {
        "ip netns exec client"
    } else {
        ""
    };
    format!(
        "{place} curl --silent --show-error --insecure --max-time 10 --output /root/fetched '{url}' \
         && cmp /root/fetched /srv/video/film.mp4"
    )
}
