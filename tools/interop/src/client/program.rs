//! Clients that are programs of their own: how they are built and run.
//!
//! Their sources are in this crate; what they are linked with is not. Bounded by: [`BUILD_LIMIT`];
//! [`LIMIT`] for a run.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::namespace::{Namespace, VethPair};
use testbed::process::{Process, output};
use testbed::{find_program, interrupt, target_directory};

use super::{Kind, Report, SLICE, await_input};
use crate::run::LIMIT;
use crate::scenario::{
    CLIENT_MAC, CLIENT_V4, CLIENT_V6, CONNECTIONS, FILE_BYTES, PORT, content, file_name,
};

/// How long a program may take to be fetched or built.
pub const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// lwIP's headers, of the package `liblwip-dev`.
const LWIP_HEADERS: &str = "/usr/include/lwip";

/// Where a client's program is built.
pub(super) fn path(kind: Kind) -> PathBuf {
    let name = kind.name().to_ascii_lowercase();
    target_directory().join("interop").join(name)
}

fn source(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// The program; or why it cannot be built here.
pub(super) fn build_gvisor() -> Result<std::result::Result<PathBuf, String>> {
    let Some(go) = find_program("go") else {
        return Ok(Err("go is not installed".to_owned()));
    };
    let go = |arguments: &[&str]| {
        let mut command = Command::new(&go);
        command
            .args(arguments)
            .current_dir(source("gvisor"))
            .env("CGO_ENABLED", "0");
        command
    };
    let fetched = output(&mut go(&["mod", "download"]), BUILD_LIMIT)?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
        let last = said.lines().last().unwrap_or_default();
        return Ok(Err(format!("gVisor cannot be fetched: {last}")));
    }
    let program = place(Kind::Gvisor)?;
    let mut build = go(&["build", "-trimpath", "-buildvcs=false", "-o"]);
    compile(build.arg(&program).arg("."))?;
    Ok(Ok(program))
}

/// The program; or why it cannot be built here.
pub(super) fn build_lwip() -> Result<std::result::Result<PathBuf, String>> {
    if !Path::new(LWIP_HEADERS).join("lwip/tcp.h").exists() {
        return Ok(Err("liblwip-dev is not installed".to_owned()));
    }
    let program = place(Kind::Lwip)?;
    let mut build = Command::new("cc");
    build
        .args(["-O2", "-Wall", "-Wextra", "-I", LWIP_HEADERS])
        .arg(source("lwip").join("client.c"))
        .arg("-o")
        .arg(&program)
        .args(["-llwip", "-lpthread"]);
    compile(&mut build)?;
    Ok(Ok(program))
}

fn place(kind: Kind) -> Result<PathBuf> {
    let program = path(kind);
    if let Some(folder) = program.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    Ok(program)
}

fn compile(command: &mut Command) -> Result<()> {
    let built = output(command, BUILD_LIMIT)?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

/// Runs a program until it has said its report and it `is_over`. Frames come and go through its
/// descriptor 0.
pub(super) fn run(
    program: &Path,
    namespace: &Namespace,
    frames: OwnedFd,
    is_over: &mut dyn FnMut() -> Result<bool>,
) -> Result<Report> {
    let name = program.to_str().context("a path that is text")?;
    let mut command = namespace.command(name);
    command
        .args(arguments())
        .stdin(Stdio::from(frames))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::spawn("the client", &mut command)?;
    drop(command);
    let stdout = process.child().stdout.take();
    let mut stdout = stdout.context("stdout is piped")?;
    let deadline = Instant::now() + LIMIT;
    let Some(said) = read_line(&mut stdout, deadline)? else {
        let status = process.wait(LIMIT)?;
        let mut failed = String::new();
        let stderr = process.child().stderr.as_mut();
        stderr
            .context("stderr is piped")?
            .read_to_string(&mut failed)?;
        bail!("{status}: {}", failed.trim());
    };
    let report = serde_json::from_str(&said).with_context(|| format!("not a report: {said}"))?;
    while !is_over()? {
        check_time(deadline)?;
        ensure!(!await_input(&stdout, SLICE)?, "it has ended too soon");
    }
    Ok(report)
}

/// The next line; `None`: there is none before the end.
fn read_line(stdout: &mut ChildStdout, deadline: Instant) -> Result<Option<String>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        check_time(deadline)?;
        if await_input(stdout, SLICE)? {
            let mut piece = [0; 1024];
            let count = stdout.read(&mut piece).context("reading its report")?;
            if count == 0 {
                return Ok(None);
            }
            line.extend_from_slice(&piece[..count]);
        }
    }
    Ok(Some(String::from_utf8(line)?))
}

fn check_time(deadline: Instant) -> Result<()> {
    interrupt::check()?;
    ensure!(Instant::now() < deadline, "it takes longer than {LIMIT:?}");
    Ok(())
}

/// MAC CLIENT_V4 CLIENT_V6 SERVER_V4 SERVER_V6 PORT CONNECTIONS NAME:SEED:SIZE...
fn arguments() -> Vec<String> {
    let mac = CLIENT_MAC.map(|it| format!("{it:02x}")).join(":");
    let mut arguments = vec![mac];
    let addresses = [CLIENT_V4, CLIENT_V6, VethPair::ATLAS_V4, VethPair::ATLAS_V6];
    arguments.extend(addresses.map(str::to_owned));
    arguments.extend([PORT.to_string(), CONNECTIONS.to_string()]);
    arguments.extend(FILE_BYTES.map(|bytes| {
        let content = content(bytes);
        format!("{}:{}:{bytes}", file_name(bytes), content.seed)
    }));
    arguments
}
