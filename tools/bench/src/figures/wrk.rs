//! The same question put by a client that is not ours: wrk, over the veth pair.
//!
//! `bench/wrk.lua` asks for the paths and prints what wrk counted. It refuses a run with an error of
//! any kind, and counts whole replies only. Bounded by: [`LIMIT`].

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ::load::cores::{CoreSeconds, CoreTime};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use testbed::process::output;
use testbed::workspace_root;

use super::plan::WINDOW_SECONDS;
use super::results::Delay;
use crate::lab::{CLIENT_CORE, Lab, SERVER_CORE};

/// A run that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// What `bench/wrk.lua` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Counted {
    microseconds: u64,
    requests: u64,
    /// Everything that was read, of replies under way at the end, too.
    bytes: u64,
    errors: u64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
}

/// What wrk saw, and what the cores did meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) seconds: f64,
    pub(super) replies: u64,
    pub(super) whole: Delay,
    pub(super) server_core: CoreSeconds,
    pub(super) client_core: CoreSeconds,
}

/// Asks a server for the paths in a file, in turn, on so many connections.
pub(super) fn run(
    lab: &Lab,
    server: SocketAddr,
    connections: u32,
    (paths, paths_count): (&Path, u64),
    object_bytes: u64,
) -> Result<Report> {
    let mut command = lab.veth.client.command("taskset");
    command.args(["-c", &CLIENT_CORE.to_string(), "wrk", "--threads", "1"]);
    command.args(["--connections", &connections.to_string()]);
    command.args(["--duration", &format!("{WINDOW_SECONDS}s")]);
    // Its default of two seconds calls a server that is slow for a moment an error.
    command.args(["--timeout", "20s"]);
    command
        .arg("--script")
        .arg(workspace_root().join("bench/wrk.lua"));
    command
        .arg(format!("http://{server}/"))
        .arg("--")
        .arg(paths);
    let before = CoreTime::now(&[SERVER_CORE, CLIENT_CORE])?;
    let output = output(&mut command, LIMIT)?;
    let after = CoreTime::now(&[SERVER_CORE, CLIENT_CORE])?;
    ensure!(
        output.status.success(),
        "wrk failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let counted = parse(&String::from_utf8_lossy(&output.stdout), object_bytes)?;
    ensure!(
        counted.requests + u64::from(connections) <= paths_count,
        "wrk asked for objects twice: {paths_count} are not enough"
    );
    let mut cores = after.into_iter().zip(before);
    let mut core = || {
        let (after, before) = cores.next().context("two cores were asked for")?;
        Ok::<_, anyhow::Error>(after.since(before))
    };
    Ok(Report {
        seconds: Duration::from_micros(counted.microseconds).as_secs_f64(),
        replies: counted.requests,
        whole: Delay {
            p50_us: counted.p50_us,
            p99_us: counted.p99_us,
            p999_us: counted.p999_us,
        },
        server_core: core()?,
        client_core: core()?,
    })
}

/// The line of the script, behind what wrk itself prints.
fn parse(text: &str, object_bytes: u64) -> Result<Counted> {
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("wrk printed no counts: {text}"))?;
    let counted: Counted = serde_json::from_str(line).context("reading wrk's counts")?;
    ensure!(counted.errors == 0, "wrk met {} errors", counted.errors);
    ensure!(
        counted.requests > 0 && counted.microseconds > 0,
        "wrk got no reply"
    );
    ensure!(
        counted.bytes >= counted.requests * object_bytes,
        "{} bytes for {} replies: some were short",
        counted.bytes,
        counted.requests
    );
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(requests: u64, bytes: u64, errors: u64) -> String {
        format!(
            "Running 4s test @ http://10.0.0.1/\n  1 threads and 64 connections\n\
             {{\"microseconds\":4000000,\"requests\":{requests},\"bytes\":{bytes},\"errors\":{errors},\
             \"p50_us\":1,\"p99_us\":2,\"p999_us\":3}}\n"
        )
    }

    #[test]
    fn whole_replies_without_errors_are_counted() {
        let counted = parse(&line(10, 3_000, 0), 300).expect("ten whole replies");
        assert_eq!((counted.requests, counted.p99_us), (10, 2));
        for (wrong, why) in [
            (line(10, 2_999, 0), "short"),
            (line(10, 3_000, 1), "1 errors"),
            (line(0, 0, 0), "no reply"),
            ("Running 4s test\n".to_owned(), "no counts"),
        ] {
            let error = parse(&wrong, 300).expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
