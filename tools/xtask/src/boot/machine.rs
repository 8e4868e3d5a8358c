//! A Debian system of its own: a tree that mmdebstrap makes, booted by systemd-nspawn with systemd as its first process.
//!
//! It has a network namespace without interfaces, and no part of the host's file systems. It refuses to use the host's
//! systemd unless the host was booted by it. Bounded by: a limit on every command; about 200 MB in the target
//! directory, where the packed tree is kept, and as much in `/var/tmp` while a machine runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use testbed::process::{Process, output, run};
use testbed::undo::Undo;
use testbed::{interrupt, packages, scratch_directory, target_directory};

/// What a machine has beside Debian's essential packages. procps: every ordinary installation has its `kill`.
const PACKAGES: &str = "systemd-sysv,dbus,procps,iproute2,curl,openssl,jq,xxd";

/// Debian's `minbase` takes a minute where nothing else runs.
const TREE_LIMIT: Duration = Duration::from_secs(1200);

/// The slowest command of a check starts the server.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Booting takes a second where nothing else runs.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Longer than the unit's `TimeoutStopSec=`.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How often a state that is waited for is asked for.
const PAUSE: Duration = Duration::from_millis(100);

/// What systemd-nspawn's own filter refuses and the server needs.
const SYSTEM_CALLS: &str = "io_uring_setup io_uring_enter io_uring_register bpf";

/// The packed tree of a system like this one, made unless it is there: the server was linked with this one's libraries.
///
/// # Errors
/// It cannot be made here: not Debian or one made of it, or no network.
pub(crate) fn packed_tree() -> Result<PathBuf> {
    packages::ensure_installed(&packages::FOR_BOOT)?;
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|it| it.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("/etc/os-release has no VERSION_CODENAME")?;
    let directory = target_directory().join("boot");
    let (tree, made_of) = (directory.join("tree.tar"), directory.join("made-of"));
    let contents = format!("{codename} {PACKAGES}");
    if tree.exists() && fs::read_to_string(&made_of).is_ok_and(|it| it == contents) {
        return Ok(tree);
    }
    fs::create_dir_all(&directory)?;
    let _ = fs::remove_file(&made_of);
    println!("making a tree of {codename} in {}", tree.display());
    let mut command = Command::new("mmdebstrap");
    command.args([
        "--quiet",
        "--variant=minbase",
        "--aptopt=Acquire::Languages \"none\"",
    ]);
    command.arg("--dpkgopt=path-exclude=/usr/share/{doc,locale,man}/*");
    command.arg(format!("--include={PACKAGES}"));
    command.arg(codename).arg(&tree);
    let ended = output(&mut command, TREE_LIMIT)?;
    ensure!(ended.status.success(), "mmdebstrap: {}", said(&ended));
    fs::write(made_of, contents)?;
    Ok(tree)
}

/// A system that runs. It is shut down when dropped.
#[derive(Debug)]
pub(crate) struct Machine {
    process: Process,
    /// Its first process, as the host numbers it.
    leader: u32,
    // Dropped after the process, in this order.
    _cgroups: Undo,
    tree: tempfile::TempDir,
}

impl Machine {
    /// Unpacks a tree, has `prepare` put files in it, and boots it.
    ///
    /// # Errors
    /// It does not come up, with what systemd-nspawn said.
    pub(crate) fn boot(
        packed_tree: &Path,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let tree = scratch_directory("boot")?;
        let root = tree.path().join("tree");
        fs::create_dir(&root)?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(packed_tree).arg("-C").arg(&root);
        run(&mut unpack)?;
        prepare(&root)?;
        let console = tree.path().join("console");
        let name = format!("atlas-boot-{}", std::process::id());
        let (mut command, cgroups) = in_cgroups(&name)?;
        command.arg("--directory").arg(&root);
        command.args(["--boot", "--quiet", "--private-network", "--register=no"]);
        command.args(["--console=pipe", "--capability=all"]);
        command.arg(format!("--machine={name}"));
        command.arg(format!("--system-call-filter={SYSTEM_CALLS}"));
        let written = fs::File::create(&console)?;
        command.stdin(Stdio::null()).stderr(written.try_clone()?);
        command.stdout(written);
        let process = Process::spawn("systemd-nspawn", &mut command)?;
        let mut machine = Self {
            process,
            leader: 0,
            _cgroups: cgroups,
            tree,
        };
        machine.await_boot().with_context(|| {
            let said = fs::read_to_string(&console).unwrap_or_default();
            format!("systemd-nspawn: {}", said.trim())
        })?;
        // As udev would have it; there is none in a container.
        machine.shell("chmod 0666 /dev/net/tun; ip link set lo up")?;
        Ok(machine)
    }

    fn await_boot(&mut self) -> Result<()> {
        let end = Instant::now() + BOOT_LIMIT;
        let nspawn = self.process.id();
        let children = format!("/proc/{nspawn}/task/{nspawn}/children");
        loop {
            ensure!(self.process.child().try_wait()?.is_none(), "it has ended");
            let found = fs::read_to_string(&children).unwrap_or_default();
            if let Some(leader) = found.split_whitespace().next() {
                self.leader = leader.parse().context("a process's id")?;
                let state = self.try_shell("systemctl is-system-running")?;
                let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
                if ["running", "degraded"].contains(&state.as_str()) {
                    return Ok(());
                }
            }
            ensure!(Instant::now() < end, "not up in {} s", BOOT_LIMIT.as_secs());
            pause()?;
        }
    }

    /// Where a file of its tree is for the host; `path` has no slash in front.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.tree.path().join("tree").join(path)
    }

    /// A command that will run in it, with a shell of root's.
    pub(crate) fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.leader));
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid"]);
        command.args(["--", "/usr/bin/env", "--ignore-environment", "HOME=/root"]);
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["bash", "-c", script]);
        command
    }

    /// Runs a script and returns what it wrote to stdout and how it ended.
    pub(crate) fn try_shell(&self, script: &str) -> Result<Output> {
        output(&mut self.command(script), COMMAND_LIMIT)
    }

    /// Runs a script that must succeed and returns what it wrote to stdout.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        let ended = self.try_shell(&format!("set -e\n{script}"))?;
        ensure!(ended.status.success(), "{script}: {}", said(&ended));
        Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
    }

    /// Waits until a script succeeds.
    pub(crate) fn await_success(&self, script: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let tried = self.try_shell(script)?;
            if tried.status.success() {
                return Ok(());
            }
            if Instant::now() >= end {
                bail!(
                    "not within {} s: {script}: {}",
                    limit.as_secs(),
                    said(&tried)
                );
            }
            pause()?;
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let asked = self.process.signal(Signal::TERM);
        let ended = asked.and_then(|()| self.process.wait_out(STOP_LIMIT));
        if let Err(error) = ended {
            eprintln!("systemd-nspawn does not end: {error:#}");
        }
    }
}

fn pause() -> Result<()> {
    interrupt::check()?;
    std::thread::sleep(PAUSE);
    Ok(())
}

/// How a command ended, and what it wrote.
fn said(ended: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (stdout, stderr) = (text(&ended.stdout), text(&ended.stderr));
    format!("{}: {stdout} {stderr}", ended.status)
}

/// systemd-nspawn, whose machine's systemd has control groups of its own. Where the host has none that manages them,
/// they are made here: without, two machines would have the same.
fn in_cgroups(name: &str) -> Result<(Command, Undo)> {
    let mut undo = Undo::default();
    if Path::new("/run/systemd/system").exists() {
        return Ok((Command::new("systemd-nspawn"), undo));
    }
    let mut script = String::new();
    for hierarchy in ["", "unified/", "systemd/"] {
        let group = PathBuf::from(format!("/sys/fs/cgroup/{hierarchy}"));
        if !group.join("cgroup.procs").exists() {
            continue;
        }
        let group = group.join(name);
        fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
        script += &format!("echo $$ > {}/cgroup.procs; ", group.display());
        undo.add(format!("remove {}", group.display()), move || {
            remove_group(&group)
        });
    }
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{script}exec \"$@\""));
    command.args(["sh", "systemd-nspawn", "--keep-unit"]);
    Ok((command, undo))
}

/// Removes a control group and those below it. Nobody is in them any more.
fn remove_group(group: &Path) -> Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    fs::remove_dir(group).with_context(|| format!("removing {}", group.display()))
}
