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
        "what is removed leaves the conffiles, what is purged nothing",
        remove,
    ),
];

/// The version that is upgraded, and the one that is released.
const OLDER: &str = "0.1.0";
const NEWER: &str = env!("CARGO_PKG_VERSION");

/// Packs the server of the checkout and puts the package into the machine.
fn pack(machine: &Machine, version: &str) -> Result<()> {
    let server = machine.path(CHECKOUT).join("target/release/atlas");
    let made = package::debian(&server, version)?;
    let to = machine.path(&format!("var/tmp/{version}.deb"));
    fs::copy(&made, &to).with_context(|| format!("copying {}", made.display()))?;
    Ok(())
}

fn install(machine: &Machine) -> Result<()> {
    pack(machine, OLDER)?;
    machine.shell(&format!(
        "rm /usr/local/bin/atlas; dpkg --install /var/tmp/{OLDER}.deb"
    ))?;
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
         cp /etc/atlas/atlas.toml /var/tmp/mine.toml",
    )?;
    let started = "systemctl show atlas --property MainPID --value";
    let before = machine.shell(started)?;
    pack(machine, NEWER)?;
    // One that watches meanwhile notices nothing.
    let url = TAP_URL.replace("film.mp4", "long.bin");
    machine.shell(&format!(
        "head -c 20000000 /dev/urandom > /srv/video/long.bin; chmod o+r /srv/video/long.bin
         curl --silent --show-error --limit-rate 1M --output /root/long.bin '{url}' & watches=$!
         while ! test -s /root/long.bin; do sleep 0.1; done
         dpkg --install /var/tmp/{NEWER}.deb
         cmp /var/tmp/mine.toml /etc/atlas/atlas.toml
         kill -0 $watches && wait $watches
         cmp /root/long.bin /srv/video/long.bin && rm /root/long.bin /srv/video/long.bin"
    ))?;
    machine.shell(&format!(
        "systemctl is-active atlas && test $({started}) != {before}"
    ))?;
    machine.shell(&fetch(false, TAP_URL))?;
    Ok(())
}

fn remove(machine: &Machine) -> Result<()> {
    machine.shell(
        "dpkg --listfiles atlas-server | while read -r it; do test -d $it || echo $it; done > /var/tmp/files; \
         dpkg-query --showformat '${Conffiles}' --show atlas-server | awk 'NF { print $1 }' | sort > /var/tmp/kept; \
         test $(wc -l < /var/tmp/kept) = 2 && dpkg --remove atlas-server",
    )?;
    let left = "while read -r it; do test ! -e $it || echo $it; done < /var/tmp/files | sort";
    machine.shell(&format!("{left} | cmp - /var/tmp/kept"))?;
    machine
        .shell("! systemctl is-active atlas; ! test -e /usr/bin/atlas && ! ip link show atlas0")?;
    machine.shell(&format!(
        "dpkg --purge atlas-server; test -z \"$({left})\" && ! test -e /etc/atlas && ! test -e /var/log/atlas"
    ))?;
    Ok(())
}
