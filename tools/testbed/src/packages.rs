//! Programs that must be installed, and how to install them on Debian and Ubuntu.
//!
//! Only what is missing is installed, without recommended packages, and no service may start
//! meanwhile. Elsewhere it refuses and names the programs.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::undo::Undo;
use crate::{find_program, is_root};

/// A program and the package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    program: &'static str,
    package: &'static str,
}

const fn package(program: &'static str, package: &'static str) -> Package {
    Package { program, package }
}

/// What `test` uses. Without one of them a check is skipped, and says so.
/// A library is known by a file of it.
pub const FOR_TESTS: [Package; 12] = [
    package("ip", "iproute2"),
    package("curl", "curl"),
    package("iptables", "iptables"),
    package("nginx", "nginx-light"),
    package("setpriv", "util-linux"),
    package("mkfs.erofs", "erofs-utils"),
    package("mksquashfs", "squashfs-tools"),
    package("chattr", "e2fsprogs"),
    package("fsverity", "fsverity"),
    package("haproxy", "haproxy"),
    package("strace", "strace"),
    package(
        "/usr/lib/python3/dist-packages/prometheus_client/__init__.py",
        "python3-prometheus-client",
    ),
];

/// What `check` uses besides: a player, which is a hundred packages, and a runtime of containers.
pub const FOR_CHECKS: [Package; 2] = [package("ffmpeg", "ffmpeg"), package("crun", "crun")];

/// A browser for `check`. Apart, because not every distribution has it as a package (Ubuntu does
/// not): what cannot be found would keep apt-get from installing the rest.
pub const BROWSER: [Package; 1] = [package("chromium", "chromium")];

/// lwIP as a client for `check`, known by a file of it. Apart, for the same reason.
pub const LWIP: [Package; 1] = [package("/usr/include/lwip/lwip/tcp.h", "liblwip-dev")];

/// A registry for the fleet's tests, and what reads `deploy/compose.yaml`.
pub const FLEET: [Package; 2] = [
    package("etcd", "etcd-server"),
    package(
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "python3-yaml",
    ),
];

/// What `fleet` uses beside a registry and a browser.
pub const FOR_FLEET: [Package; 3] = [
    package("ip", "iproute2"),
    package("nginx", "nginx-light"),
    package("ffmpeg", "ffmpeg"),
];

/// What `fleet` compares with, beside nginx. Apart, because not every release has it.
pub const FLEET_RIVALS: [Package; 1] = [package("traffic_server", "trafficserver")];

/// What `lab` uses, besides what it fetches.
pub const FOR_LAB: [Package; 5] = [
    package("ip", "iproute2"),
    package("curl", "curl"),
    package("iptables", "iptables"),
    package("mkfs.ext4", "e2fsprogs"),
    package("xz", "xz-utils"),
];

/// What `boot` uses: a Debian tree, and what boots it.
pub const FOR_BOOT: [Package; 2] = [
    package("mmdebstrap", "mmdebstrap"),
    package("systemd-nspawn", "systemd-container"),
];

/// What `demo` uses.
pub const FOR_DEMO: [Package; 2] = [package("ip", "iproute2"), package("ffmpeg", "ffmpeg")];

/// What `bench figures` uses: the bench disk's file system and the rivals, one of them with its TLS.
/// A library is known by a file of it.
pub const FOR_FIGURES: [Package; 7] = [
    package("ip", "iproute2"),
    package("mkfs.xfs", "xfsprogs"),
    package("nginx", "nginx-light"),
    package("h2o", "h2o"),
    package("lighttpd", "lighttpd"),
    package("/usr/lib/lighttpd/mod_openssl.so", "lighttpd-mod-openssl"),
    package("traffic_server", "trafficserver"),
];

/// What the other benches use.
pub const FOR_BENCHES: [Package; 3] = [
    package("ip", "iproute2"),
    package("mkfs.xfs", "xfsprogs"),
    package("nginx", "nginx-light"),
];

/// Debian's question whether a service may start after its installation; exit code 101: no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A command with root's rights: as it is for root, else through sudo.
pub fn privileged(program: &str) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    ensure!(
        find_program("sudo").is_some(),
        "this needs root, and there is no sudo: run it as root"
    );
    let mut command = Command::new("sudo");
    command.arg(program);
    Ok(command)
}

/// Installs what is missing, or says that it cannot be had: every check that misses a program says so itself.
pub fn install_if_possible(packages: &[Package]) {
    if let Err(error) = ensure_installed(packages) {
        println!("not everything could be installed: {error:#}");
    }
}

/// Installs what is missing.
pub fn ensure_installed(packages: &[Package]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .filter(|package| find_program(package.program).is_none())
        .map(|package| package.package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        bail!("install these first: {}", missing.join(", "));
    }
    println!("installing {} and what they need", missing.join(", "));
    let mut undo = Undo::default();
    keep_services_from_starting(&mut undo)?;
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(missing);
    apt_get(&arguments)
}

fn keep_services_from_starting(undo: &mut Undo) -> Result<()> {
    if Path::new(POLICY).exists() {
        return Ok(());
    }
    undo.add(format!("remove {POLICY}"), || {
        attend(privileged("rm")?.args(["-f", POLICY]))
    });
    let script = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
    attend(privileged("sh")?.args(["-c", &script]))
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = privileged("env")?;
    attend(
        command
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"])
            .args(arguments),
    )
}

/// Runs a command that may ask at the terminal (sudo for a password) and must succeed. What it says is only of
/// interest if it does not.
///
/// Unlike other children it stays in the terminal's foreground group, or it could not ask.
fn attend(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
