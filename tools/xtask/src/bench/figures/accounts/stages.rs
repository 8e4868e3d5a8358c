//! Measures each stage alone, in the bench's own lab: `atlas-bench stages`, and OpenSSL's own speed test.
//!
//! Stages take turns, repetition after repetition; medians count. Bounded by: the deadline of each.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::bench::disk::drop_caches;
use crate::bench::lab::{CLIENT_CORE, Lab, SERVER_CORE};
use crate::bench::report::median;
use testbed::interrupt;
use testbed::namespace::{Namespace, VethPair as Cable};
use testbed::process::{Process, output};

/// A stage that takes longer is a failure.
const STAGE_LIMIT: Duration = Duration::from_secs(60);

/// How long each is measured, seconds; and with `--quick`.
const SECONDS: f64 = 1.0;
const SECONDS_QUICK: f64 = 0.5;

/// What a stage takes besides.
const START_TIME: Duration = Duration::from_millis(500);

/// OpenSSL's test takes whole seconds.
const OPENSSL_SECONDS: &str = "1";

/// Content of the records that rivals seal, bytes.
const OPENSSL_RECORD_BYTES: &str = "16384";

/// Where the sender of the receiving stage listens.
const SENDER: (&str, u16) = (Cable::KERNEL_V4, 4000);

/// Connections of the receiving stage.
const CONNECTIONS: &str = "64";

/// Medians: busy seconds of one core for each GB, unless said otherwise.
#[derive(Clone, Default, Debug, Serialize)]
pub(in super::super) struct Stages {
    /// The server's core, reading.
    pub(super) read: f64,
    /// The server's core, handing frames to the cable.
    pub(super) write: f64,
    /// The server's core, sealing with AES-128-GCM.
    pub(super) seal: f64,
    /// The client's core, copying for the bench disk.
    pub(super) copy: f64,
    /// The client's core, taking bytes from its kernel's TCP and throwing them away.
    pub(super) receive: f64,
    /// What the bench disk gives, nobody else at work, Gb/s.
    pub(super) disk_gbps: f64,
    /// OpenSSL, sealing with AES-128-GCM.
    pub(super) openssl_seal: f64,
    /// Whose that is.
    pub(super) openssl: String,
    /// Every repetition of every stage, as `atlas-bench stages` reports it.
    pub(super) reports: Vec<Value>,
}

/// The figures of one repetition; the order is that of [`Stages`].
#[derive(Clone, Copy, Debug)]
struct Repetition {
    read: f64,
    write: f64,
    seal: f64,
    copy: f64,
    receive: f64,
    disk_gbps: f64,
    openssl_seal: f64,
}

impl Stages {
    fn new(repetitions: &[Repetition], openssl: String, reports: Vec<Value>) -> Self {
        let middle = |of: fn(&Repetition) -> f64| {
            let values: Vec<f64> = repetitions.iter().map(of).collect();
            median(&values)
        };
        Self {
            read: middle(|it| it.read),
            write: middle(|it| it.write),
            seal: middle(|it| it.seal),
            copy: middle(|it| it.copy),
            receive: middle(|it| it.receive),
            disk_gbps: middle(|it| it.disk_gbps),
            openssl_seal: middle(|it| it.openssl_seal),
            openssl,
            reports,
        }
    }
}

/// How long each is measured, seconds.
fn seconds(is_quick: bool) -> f64 {
    if is_quick { SECONDS_QUICK } else { SECONDS }
}

/// How long all rounds will take, about.
pub(in super::super) fn estimate(rounds: usize, is_quick: bool) -> Duration {
    let once = Duration::from_secs_f64(seconds(is_quick)) + START_TIME;
    // Four stages and OpenSSL's test, each with its start and its warm-up.
    5 * once * u32::try_from(rounds).unwrap_or(u32::MAX)
}

/// The stages, measured once before each round: what the machine does for some minutes then falls
/// on them as on the servers.
pub(in super::super) struct Measuring<'a> {
    instruments: &'a Path,
    seconds: f64,
    repetitions: Vec<Repetition>,
    reports: Vec<Value>,
}

impl<'a> Measuring<'a> {
    pub(in super::super) fn new(instruments: &'a Path, is_quick: bool) -> Self {
        Self {
            instruments,
            seconds: seconds(is_quick),
            repetitions: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Measures all stages once more.
    pub(in super::super) fn repeat(&mut self, lab: &Lab) -> Result<()> {
        eprintln!("the stages alone");
        let bench = Bench {
            lab,
            instruments: self.instruments,
            seconds: self.seconds,
        };
        self.repetitions.push(bench.repetition(&mut self.reports)?);
        Ok(())
    }

    /// What they showed.
    pub(in super::super) fn end(self) -> Result<Stages> {
        let mut version = Command::new("openssl");
        let version = output(version.arg("version"), STAGE_LIMIT)?;
        let version = String::from_utf8_lossy(&version.stdout);
        // The library's follows in brackets, and is the same.
        let openssl = version.split(" (").next().unwrap_or_default();
        let openssl = openssl.trim().to_owned();
        Ok(Stages::new(&self.repetitions, openssl, self.reports))
    }
}

struct Bench<'a> {
    lab: &'a Lab,
    instruments: &'a Path,
    seconds: f64,
}

impl Bench<'_> {
    fn repetition(&self, reports: &mut Vec<Value>) -> Result<Repetition> {
        interrupt::check()?;
        let server = &self.lab.cable.server;
        let seal = read(&mut self.command(server, SERVER_CORE, &["seal"]))?;
        let openssl_seal = openssl_seconds_per_gb()?;
        drop_caches()?;
        let mut reading = self.command(server, SERVER_CORE, &["read"]);
        let reading = read(reading.arg(&self.lab.disk.root))?;
        let to_nobody = [
            "write",
            Cable::SERVER_INTERFACE,
            "--address",
            Cable::ATLAS_V4,
        ];
        let write = read(&mut self.command(server, SERVER_CORE, &to_nobody))?;
        let receive = self.receive()?;
        let repetition = Repetition {
            read: busy_per_gb(&reading, SERVER_CORE)?,
            write: busy_per_gb(&write, SERVER_CORE)?,
            seal: number(&seal, "cpu_seconds")? / gigabytes(&seal)?,
            copy: busy_per_gb(&reading, CLIENT_CORE)?,
            receive: busy_per_gb(&receive, CLIENT_CORE)?,
            disk_gbps: 8.0 * gigabytes(&reading)? / number(&reading, "seconds")?,
            openssl_seal,
        };
        reports.extend([seal, reading, write, receive]);
        Ok(repetition)
    }

    /// A kernel TCP sender on the server's core, and who throws away what it sends on the client's.
    fn receive(&self) -> Result<Value> {
        let cable = &self.lab.cable;
        let address = format!("{}:{}", SENDER.0, SENDER.1);
        let mut command = self.command(&cable.server, SERVER_CORE, &["send", &address]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // Ended when dropped: it never ends by itself.
        let mut sender = Process::spawn("atlas-bench stages send", &mut command)?;
        let stdout = sender.child().stdout.take().context("a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(
            line.starts_with("ready "),
            "atlas-bench stages send: no address"
        );
        let arguments = ["receive", &address, "--connections", CONNECTIONS];
        read(&mut self.command(&cable.client, CLIENT_CORE, &arguments))
    }

    /// `atlas-bench stages` in a namespace, on a core.
    fn command(&self, namespace: &Namespace, core: usize, arguments: &[&str]) -> Command {
        let mut command = namespace.command("taskset");
        command
            .args(["-c", &core.to_string()])
            .arg(self.instruments);
        command.arg("stages").args(arguments).arg("--json");
        command.args(["--seconds", &self.seconds.to_string()]);
        command.args(["--watch-core", &format!("{SERVER_CORE},{CLIENT_CORE}")]);
        command
    }
}

/// Runs a stage and reads its report.
fn read(command: &mut Command) -> Result<Value> {
    let output = output(command, STAGE_LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a stage failed: {}", stderr.trim());
    serde_json::from_slice(&output.stdout).context("reading a stage's report")
}

fn number(report: &Value, name: &str) -> Result<f64> {
    let found = report[name].as_f64();
    found.with_context(|| format!("a stage's report has no number {name}"))
}

fn gigabytes(report: &Value) -> Result<f64> {
    let bytes = number(report, "bytes")?;
    ensure!(bytes > 0.0, "a stage did nothing");
    Ok(bytes / 1e9)
}

/// Busy seconds of a core for each GB, whoever made it busy.
fn busy_per_gb(report: &Value, core: usize) -> Result<f64> {
    let cores = report["cores"].as_array();
    let found = cores.and_then(|cores| cores.iter().find(|it| it["core"] == core));
    Ok(number(found.unwrap_or(&Value::Null), "busy")? / gigabytes(report)?)
}

/// What a GB of records costs OpenSSL, by the CPU time of its own test, as TLS uses the cipher.
fn openssl_seconds_per_gb() -> Result<f64> {
    let mut command = Command::new("taskset");
    command.args(["-c", &SERVER_CORE.to_string(), "openssl", "speed", "-mr"]);
    command.args(["-aead", "-evp", "aes-128-gcm"]);
    command.args(["-bytes", OPENSSL_RECORD_BYTES, "-seconds", OPENSSL_SECONDS]);
    let output = output(&mut command, STAGE_LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "openssl speed: {}", stderr.trim());
    let bytes_per_second = openssl_speed(&String::from_utf8_lossy(&output.stdout))?;
    Ok(1e9 / bytes_per_second)
}

/// The rate, bytes a second, in the machine-readable output: `+F:NUMBER:NAME:RATE`.
fn openssl_speed(text: &str) -> Result<f64> {
    let line = text.lines().find(|line| line.starts_with("+F:"));
    let rate = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    let rate: f64 = rate.context("openssl speed prints no +F: line with a rate")?;
    ensure!(rate > 0.0, "openssl speed did nothing");
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_rate_is_found_in_the_output_of_openssl() {
        let text = "+DT:AES-128-GCM:1:16384\n+H:16384\n+F:25:AES-128-GCM:4282859520.00\n";
        let rate = openssl_speed(text).expect("a rate");
        assert!((rate - 4_282_859_520.0).abs() < 1.0);
        for wrong in [
            "",
            "+H:16384\n",
            "+F:25:AES-128-GCM:fast\n",
            "+F:25:X:0.0\n",
        ] {
            openssl_speed(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn busy_time_is_that_of_the_core_and_for_each_gb() {
        let report = json!({
            "bytes": 2_000_000_000_u64, "seconds": 1.0, "cpu_seconds": 0.5,
            "cores": [{"core": 0, "busy": 0.5}, {"core": 1, "busy": 1.0}],
        });
        assert!((busy_per_gb(&report, 0).expect("core 0") - 0.25).abs() < 1e-9);
        assert!((busy_per_gb(&report, 1).expect("core 1") - 0.5).abs() < 1e-9);
        busy_per_gb(&report, 2).expect_err("not watched");
        let nothing = json!({"bytes": 0, "cores": report["cores"]});
        busy_per_gb(&nothing, 0).expect_err("no bytes");
    }

    #[test]
    fn medians_are_of_each_figure_alone() {
        let repetition = |read, write| Repetition {
            read,
            write,
            seal: 1.0,
            copy: 2.0,
            receive: 3.0,
            disk_gbps: 4.0,
            openssl_seal: 5.0,
        };
        let repetitions = [
            repetition(1.0, 9.0),
            repetition(2.0, 8.0),
            repetition(7.0, 1.0),
        ];
        let stages = Stages::new(&repetitions, String::new(), Vec::new());
        let found = [
            stages.read,
            stages.write,
            stages.seal,
            stages.copy,
            stages.receive,
            stages.disk_gbps,
            stages.openssl_seal,
        ];
        assert_eq!(found, [2.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
