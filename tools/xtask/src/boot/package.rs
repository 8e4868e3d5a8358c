//! The Debian package: installed, started, upgraded while it serves, removed, purged.

use std::fs;

use anyhow::{Context as _, Result};

use super::machine::Machine;
use super::unit::TAP_URL;
use super::{CHECKOUT, fetch};
use crate::package;
use testbed::suite::{Outcome, Suite};

pub(super) fn run(suite: &mut Suite, machine: &Machine) {
    for (name, check) in CHECKS {
        suite.run(&format!("package: {name}"), || {
            check(machine)?;
            Ok(Outcome::Passed)
        });
    }
}

type Check = fn(&Machine) -> Result<()>;

/// In this order: each leaves what the next begins with.
const CHECKS: [(&str, Check); 3] = [
    ("it is installed, started by hand, and serves", install),
    (
        "an upgrade goes on with the operator's configuration",
        upgrade,
    ),
    (
        "what is removed leaves the configuration, what is purged nothing",
        remove,
    ),
];

/// Packs the server of the checkout and puts the package into the machine.
fn pack(machine: &Machine, version: &str) -> Result<()> {
    let server = machine.path(CHECKOUT).join("target/release/atlas");
    let made = package::debian(&server, version)?;
    let to = machine.path(&format!("root/{version}.deb"));
    fs::copy(&made, &to).with_context(|| format!("copying {}", made.display()))?;
    Ok(())
}

fn install(machine: &Machine) -> Result<()> {
    pack(machine, "1.0")?;
    machine.shell("rm /usr/local/bin/atlas; dpkg --install /root/1.0.deb")?;
    machine.shell("! systemctl is-active atlas && ! systemctl is-enabled atlas")?;
    machine.shell("atlas serve /srv/video --config /etc/atlas/atlas.toml --check")?;
    machine.shell("systemctl enable --now atlas && systemctl is-active atlas")?;
    machine.shell(&fetch(false, TAP_URL))?;
    machine.shell("id atlas && test -f /usr/share/bash-completion/completions/atlas")?;
    Ok(())
}

fn upgrade(machine: &Machine) -> Result<()> {
    machine.shell(
        "sed -i 's/^log = \"info\"/log = \"warn\"/' /etc/atlas/atlas.toml; \
         cp /etc/atlas/atlas.toml /root/mine.toml",
    )?;
    let started = "systemctl show atlas --property MainPID --value";
    let before = machine.shell(started)?;
    pack(machine, "1.1")?;
    machine.shell("dpkg --install /root/1.1.deb && cmp /root/mine.toml /etc/atlas/atlas.toml")?;
    machine.shell(&format!(
        "systemctl is-active atlas && test $({started}) != {before}"
    ))?;
    machine.shell(&fetch(false, TAP_URL))?;
    Ok(())
}

fn remove(machine: &Machine) -> Result<()> {
    machine.shell("dpkg --remove atlas-server")?;
    machine
        .shell("! systemctl is-active atlas; ! test -e /usr/bin/atlas && ! ip link show atlas0")?;
    machine
        .shell("test -f /etc/atlas/atlas.toml; dpkg --purge atlas-server; ! test -e /etc/atlas")?;
    Ok(())
}
