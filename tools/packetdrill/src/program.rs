//! The program: finds packetdrill, its scripts and our shared object, and runs one script.
//!
//! The program locks its memory and asks for a real-time priority, as it does for Linux; the first
//! needs `CAP_IPC_LOCK` or a large `RLIMIT_MEMLOCK`. Bounded by [`SCRIPT_LIMIT`] of real time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::adapt::Adapted;

/// A script takes a tenth of a second, whatever its own time. `timeout` of coreutils ends one that does
/// not end.
pub const SCRIPT_LIMIT: Duration = Duration::from_secs(20);
/// Exit status of `timeout` if it had to.
const TIMED_OUT: i32 = 124;

/// Names the program, if it is not in `PATH`.
pub const PROGRAM_VARIABLE: &str = "ATLAS_PACKETDRILL";
/// Names the folder of scripts.
pub const SCRIPTS_VARIABLE: &str = "ATLAS_PACKETDRILL_SCRIPTS";

/// The IP version of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The program's options. The MTU for IPv6 is larger, so that the MSS is the same, which scripts
    /// expect.
    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &[
                "--ip_version=ipv4",
                "--local_ip=192.168.0.1",
                "--gateway_ip=192.168.0.1",
                "--netmask_ip=255.255.0.0",
                "--remote_ip=192.0.2.1",
                "--so_flags=push=off",
            ],
            Self::V6 => &[
                "--ip_version=ipv6",
                "--local_ip=fd3d:0a0b:17d6::1",
                "--gateway_ip=fd3d:0a0b:17d6:8888::1",
                "--remote_ip=fd3d:fa7b:d17d::1",
                "--so_flags=push=off,mtu=1520",
            ],
        }
    }
}

/// How a script went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As it says.
    Passed,
    /// Otherwise; what the program said.
    Failed(String),
}

/// What is needed to run scripts.
#[derive(Clone, Debug)]
pub struct Judge {
    program: PathBuf,
    /// The folder of scripts.
    pub scripts: PathBuf,
    object: PathBuf,
}

impl Judge {
    /// The program and the scripts from the options, else from the environment, else from `PATH`.
    ///
    /// # Errors
    /// What is missing, in words for a test that is skipped.
    pub fn find(program: Option<&Path>, scripts: Option<&Path>) -> Result<Self> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let program = program.map(Path::to_owned);
        let program = program
            .or_else(|| variable(PROGRAM_VARIABLE))
            .or_else(|| in_path("packetdrill"))
            .with_context(|| {
                format!("packetdrill is not in PATH, nor named by {PROGRAM_VARIABLE}")
            })?;
        let scripts = scripts.map(Path::to_owned);
        let scripts = scripts
            .or_else(|| variable(SCRIPTS_VARIABLE))
            .with_context(|| format!("no folder of scripts is named by {SCRIPTS_VARIABLE}"))?;
        ensure!(program.is_file(), "{}: no such program", program.display());
        ensure!(scripts.is_dir(), "{}: no such folder", scripts.display());
        Ok(Self {
            program: fs::canonicalize(&program)?,
            scripts,
            object: object()?,
        })
    }

    /// Every script below the folder, by its path there, sorted.
    ///
    /// # Errors
    /// A folder cannot be read, or there is no script.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut folders = vec![self.scripts.clone()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder);
            let entries = entries.with_context(|| format!("reading {}", folder.display()))?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|it| it == "pkt") {
                    let name = path.strip_prefix(&self.scripts)?;
                    names.push(name.to_string_lossy().into_owned());
                }
            }
        }
        ensure!(
            !names.is_empty(),
            "{}: no script (*.pkt) in it",
            self.scripts.display()
        );
        names.sort();
        Ok(names)
    }

    /// Runs a script.
    ///
    /// # Errors
    /// The program cannot be run, does not end, or may not lock its memory.
    pub fn run(&self, name: &str, script: &Adapted, version: IpVersion) -> Result<Verdict> {
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("script.pkt");
        fs::write(&copy, &script.text)?;
        let output = Command::new("timeout")
            .arg(SCRIPT_LIMIT.as_secs().to_string())
            .arg(&self.program)
            .arg(format!("--so_filename={}", self.object.display()))
            .args(version.options())
            .arg("script.pkt")
            .current_dir(folder.path())
            .output()
            .with_context(|| format!("running {name}"))?;
        if output.status.success() {
            return Ok(Verdict::Passed);
        }
        ensure!(
            output.status.code() != Some(TIMED_OUT),
            "{name} has not ended after {SCRIPT_LIMIT:?}"
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            !said.contains("mlockall") && !said.contains("lockall("),
            "packetdrill may not lock its memory (CAP_IPC_LOCK or a larger RLIMIT_MEMLOCK)"
        );
        let said = if said.trim().is_empty() {
            format!("{}", output.status)
        } else {
            said
        };
        Ok(Verdict::Failed(said))
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Our shared object: cargo puts it into `deps`, beside its tests. Other programs are a folder above, or
/// in another folder there (examples).
fn object() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("a program is in a folder")?;
    let name = "libpacketdrill.so";
    let above = folder.parent().unwrap_or(folder);
    let places = [
        folder.join(name),
        folder.join("deps").join(name),
        above.join("deps").join(name),
    ];
    let found = places.iter().find(|place| place.is_file());
    found
        .cloned()
        .with_context(|| format!("cargo has not built {name} in {}", folder.display()))
}
