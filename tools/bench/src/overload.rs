//! `cargo xtask bench handshakes --beside-streams`: handshakes offered at a rate, whatever became of
//! those before, beside streams at full speed.
//!
//! Does what is completed rise to a plateau, and what do the streams keep? A completed handshake is
//! one whose client then got an object of one block. Both clients, all of rustls, share one core
//! with the bench disk's copying: where it is full the row says so, and shows less than the server
//! could do. It refuses streams with a wrong reply; handshakes may fail, that is counted. Bounded
//! by: its windows.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ::load::{Report as LoadReport, Suite, Version};
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::handshakes::{HandshakesOptions, Name};
use super::lab::{Contender, Lab, stop};
use super::load::{CoreSeconds, Load, cores, read_report, tls_command};
use super::publish;
use super::report::environment_text;
use super::tls::Credentials;
use testbed::{interrupt, packages, scratch_directory};

/// What both ends would choose.
const TLS: (Version, Suite) = (Version::Tls13, Suite::Aes128Gcm);

/// Handshakes offered a second, if the command line says nothing.
const OFFERED: [f64; 5] = [100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];

/// What streams ask for.
const STREAM_OBJECT_BYTES: u64 = 1 << 20;
const STREAM_OBJECTS: u64 = 512;

/// What is asked for after a handshake: one block.
const SMALL_OBJECT: &str = "small.bin";
const SMALL_OBJECT_BYTES: usize = 4_096;

/// Length of the streams' window, seconds.
const WINDOW_SECONDS: u64 = 5;

/// The same with `--quick`.
const QUICK_WINDOW_SECONDS: u64 = 1;

/// Streams run so long before their window, seconds; handshakes begin in the middle of it and end
/// behind the window.
const WARM_UP_SECONDS: u64 = 3;

/// How long streams are alone.
const STREAMS_ALONE: Duration = Duration::from_millis(1_000);

/// A client gives up after so many seconds without a handshake: it tries a SYN three times by then.
const PATIENCE_SECONDS: &str = "4";

/// Connections of the handshakes at once: fewer than the 16,384 that Atlas has by default, and than
/// the descriptors that hosts commonly allow.
const POOL: &str = "16000";

/// A load that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(120);

/// A core busier than this is the bound of its row.
const FULL: f64 = 0.95;

/// Runs the bench.
pub(crate) fn run_command(options: &HandshakesOptions) -> Result<()> {
    let binaries = options.binaries.find()?;
    packages::ensure_installed(&packages::FOR_BENCHES)?;
    let lab = Lab::new(
        (STREAM_OBJECTS * STREAM_OBJECT_BYTES, STREAM_OBJECT_BYTES, 1),
        options.steering,
        Credentials::new(options.key)?,
    )?;
    let small = lab.disk().root.join(SMALL_OBJECT);
    fs::write(&small, [7; SMALL_OBJECT_BYTES])
        .with_context(|| format!("writing {}", small.display()))?;
    let names = match options.servers.as_slice() {
        [] => &[Name::Atlas],
        names => names,
    };
    let contenders = names
        .iter()
        .map(|name| name.contender(&binaries.server))
        .collect::<Result<Vec<_>>>()?;
    let bench = Overload {
        options,
        instruments: binaries.instruments,
        lab,
        directory: scratch_directory("overload")?,
    };
    let report = bench.run(&contenders)?;
    publish(&report.text(), &report, options.json.as_deref())
}

struct Overload<'a> {
    options: &'a HandshakesOptions,
    /// `atlas-bench`.
    instruments: PathBuf,
    lab: Lab,
    /// Where lists of URLs are written.
    directory: tempfile::TempDir,
}

impl Overload<'_> {
    fn run(&self, contenders: &[Contender]) -> Result<Report> {
        let mut environment = self.lab.environment(contenders)?;
        let mut add = |name: &str, value| environment.push((name.to_owned(), value));
        add(
            "streams",
            format!(
                "{} connections over TLS 1.3, AES-128-GCM, objects of {STREAM_OBJECT_BYTES} bytes",
                self.options.connections
            ),
        );
        add(
            "handshakes",
            format!(
                "TLS 1.3, full, {}; each client then GETs {SMALL_OBJECT_BYTES} bytes, and gives up \
                 after {PATIENCE_SECONDS} to {PATIENCE_SECONDS}+1 s",
                self.options.key
            ),
        );
        let offered: &[f64] = match self.options.offered.as_slice() {
            [] => &OFFERED,
            offered => offered,
        };
        let rounds = self.options.rounds.unwrap_or(1);
        let mut rows = Vec::new();
        for contender in contenders {
            for rate in [0.0].iter().chain(offered) {
                for _ in 0..rounds {
                    interrupt::check()?;
                    let row = self
                        .turn(contender, *rate)
                        .with_context(|| format!("{}, {rate} a second", contender.name()))?;
                    eprintln!("{}", row.text());
                    rows.push(row);
                }
            }
        }
        Ok(Report { environment, rows })
    }

    /// One run of one server, from its start to its end.
    fn turn(&self, contender: &Contender, rate: f64) -> Result<Row> {
        let (server, address) = self.lab.start(
            self.lab.veth(true),
            contender,
            contender.further_arguments(&self.options.atlas_arguments),
        )?;
        let window = if self.options.quick {
            QUICK_WINDOW_SECONDS
        } else {
            WINDOW_SECONDS
        };
        let load = Load {
            lab: &self.lab,
            instruments: &self.instruments,
            directory: self.directory.path(),
            server: address,
            objects: STREAM_OBJECTS,
            connections: self.options.connections,
            tls: Some(TLS),
        };
        let mut streams = load.streams()?;
        streams.args(["--warm-up", &WARM_UP_SECONDS.to_string()]);
        streams.args(["--seconds", &window.to_string()]);
        let streams = thread::spawn(move || read_report::<LoadReport>(&mut streams, LIMIT));
        let handshakes = if rate > 0.0 {
            thread::sleep(STREAMS_ALONE);
            let mut command = tls_command(&self.lab, &self.instruments, TLS);
            command.arg(format!("https://{address}/{SMALL_OBJECT}"));
            command.args(["--connections", POOL, "--timeout", PATIENCE_SECONDS]);
            command.args(["--expect-bytes", &SMALL_OBJECT_BYTES.to_string()]);
            command.args(["--close=client", "--arrivals", &rate.to_string()]);
            command.args(["--sweep-pause", "0.1", "--warm-up", "1"]);
            command.args(["--seconds", &(window + WARM_UP_SECONDS).to_string()]);
            read_report(&mut command, LIMIT)?
        } else {
            LoadReport::default()
        };
        let streams = streams.join().ok().context("the streams' thread")??;
        stop(server)?;
        Row::new(contender.name(), rate, &streams, &handshakes)
    }
}

/// One rate offered to one server.
#[derive(Clone, Debug, Serialize)]
struct Row {
    server: String,
    /// Handshakes a second, as the command line has it.
    wanted_per_second: f64,
    /// Those the client did offer: fewer where its core was full.
    offered_per_second: f64,
    /// Handshakes that were over, their reply come.
    completed_per_second: f64,
    /// Connections that failed, timed out or were reset.
    failed_per_second: f64,
    /// From `connect` to the end of the handshake, milliseconds.
    handshake_ms_p50: f64,
    handshake_ms_p99: f64,
    /// Bodies of the streams.
    streams_gbps: f64,
    /// Busy part of the server's core in the streams' window, 0 to 1.
    server_core_busy: f64,
    /// The same of the clients' core, disk and both loads included.
    client_core_busy: f64,
    server_core_seconds: CoreSeconds,
}

impl Row {
    #[expect(
        clippy::cast_precision_loss,
        reason = "what one run counts is far below 2^52"
    )]
    fn new(server: &str, rate: f64, streams: &LoadReport, beside: &LoadReport) -> Result<Self> {
        ensure!(
            streams.wrong_replies == 0 && streams.body_bytes > 0,
            "the streams: {:?}",
            streams.first_errors
        );
        ensure!(
            beside.wrong_replies == 0,
            "a wrong reply: {:?}",
            beside.first_errors
        );
        let (server_core, client_core) = cores(streams)?;
        let per_second = |count: u64| {
            if beside.seconds > 0.0 {
                count as f64 / beside.seconds
            } else {
                0.0
            }
        };
        Ok(Self {
            server: server.to_owned(),
            wanted_per_second: rate,
            offered_per_second: per_second(beside.arrivals - beside.missed_arrivals),
            completed_per_second: per_second(beside.replies),
            failed_per_second: per_second(beside.failures),
            handshake_ms_p50: beside.latency.connect.p50 as f64 / 1e3,
            handshake_ms_p99: beside.latency.connect.p99 as f64 / 1e3,
            streams_gbps: streams.gigabits_per_second,
            server_core_busy: server_core.busy / streams.seconds,
            client_core_busy: client_core.busy / streams.seconds,
            server_core_seconds: server_core,
        })
    }

    fn text(&self) -> String {
        let bound = if self.client_core_busy > FULL {
            "  the clients' core is full"
        } else {
            ""
        };
        format!(
            "{:<10} {:>8.0} {:>9.0} {:>11.0} {:>9.0} {:>9.1} {:>9.1} {:>9.2} {:>7.0}% {:>7.0}%{bound}",
            self.server,
            self.wanted_per_second,
            self.offered_per_second,
            self.completed_per_second,
            self.failed_per_second,
            self.handshake_ms_p50,
            self.handshake_ms_p99,
            self.streams_gbps,
            100.0 * self.server_core_busy,
            100.0 * self.client_core_busy,
        )
    }
}

/// A whole bench.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// What it ran on and with: `(name, value)`.
    environment: Vec<(String, String)>,
    rows: Vec<Row>,
}

impl Report {
    fn text(&self) -> String {
        let mut out = environment_text(&self.environment);
        let _ = writeln!(
            out,
            "\n{:<10} {:>8} {:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
            "a second",
            "wanted",
            "offered",
            "completed",
            "failed",
            "p50 ms",
            "p99 ms",
            "streams",
            "server",
            "client"
        );
        for row in &self.rows {
            let _ = writeln!(out, "{}", row.text());
        }
        out.push_str("streams in Gb/s of bodies; cores busy in the streams' window\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::report;
    use super::*;

    fn beside(arrivals: u64, missed_arrivals: u64) -> LoadReport {
        LoadReport {
            arrivals,
            missed_arrivals,
            seconds: 2.0,
            replies: 10,
            failures: 4,
            ..LoadReport::default()
        }
    }

    #[test]
    fn a_row_is_a_second_and_tells_a_full_client() {
        let row = |client| {
            let streams = report(2.0, 1, [1.0, client]);
            Row::new("atlas", 100.0, &streams, &beside(200, 20)).expect("a row")
        };
        let full = row(2.0);
        assert!((full.offered_per_second - 90.0).abs() < 1e-9);
        assert!((full.completed_per_second - 5.0).abs() < 1e-9);
        assert!((full.failed_per_second - 2.0).abs() < 1e-9);
        assert!((full.server_core_busy - 0.5).abs() < 1e-9);
        assert!(full.text().ends_with("the clients' core is full"));
        assert!(!row(1.0).text().ends_with("full"));
    }

    #[test]
    fn wrong_bytes_are_refused_and_no_handshakes_are_none() {
        let streams = report(1.0, 1, [0.5, 0.5]);
        let alone = Row::new("atlas", 0.0, &streams, &LoadReport::default()).expect("alone");
        assert!(alone.completed_per_second.abs() < 1e-9);
        let wrong = LoadReport {
            wrong_replies: 1,
            ..beside(1, 0)
        };
        Row::new("atlas", 1.0, &streams, &wrong).expect_err("a wrong reply");
        Row::new("atlas", 1.0, &wrong, &beside(1, 0)).expect_err("a wrong stream");
        let silent = report(1.0, 0, [0.5, 0.5]);
        Row::new("atlas", 1.0, &silent, &beside(1, 0)).expect_err("no stream");
    }
}
