//! `cargo xtask bench handshakes`: TLS 1.3 handshakes offered at a rate, whatever became of those before,
//! beside streams at full speed.
//!
//! Does what is completed rise to a plateau, and what do the streams keep? A completed handshake is
//! one whose client then got an object of one block. Both clients, all of rustls, share one core
//! with the bench disk's copying: where it is full the row says so, and shows less than the server
//! could do. It refuses streams with a wrong reply; handshakes may fail, that is counted. Bounded
//! by: its windows.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use ::load::Report as LoadReport;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use testbed::cores::CoreSeconds;
use testbed::process::output;
use testbed::{interrupt, packages, scratch_directory};

use crate::binaries::BinaryOptions;
use crate::lab::{CLIENT_CORE, Contender, Lab, SERVER_CORE, command_line, stop};
use crate::stored::{Environment, Writer, float};
use crate::tls::{Credentials, Key, NAME};

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

/// Options of `bench handshakes`.
#[derive(Args, Clone, Debug)]
pub struct HandshakesOptions {
    /// Shorter windows: shows that everything works, proves nothing about speed
    #[arg(long)]
    quick: bool,
    /// What the server signs its handshakes with
    #[arg(long, value_enum, default_value_t = Key::Ecdsa)]
    key: Key,
    /// Connections of the streams
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// Handshakes offered a second, comma-separated
    #[arg(long, value_delimiter = ',')]
    offered: Vec<f64>,
    /// How often each rate is offered
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Stores the results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    binaries: BinaryOptions,
    /// Further arguments for `atlas serve`, separated by spaces
    #[arg(
        long,
        value_name = "ARGUMENTS",
        default_value = "",
        allow_hyphen_values = true
    )]
    atlas_arguments: String,
}

/// Runs the bench.
pub(crate) fn run_command(options: &HandshakesOptions) -> Result<()> {
    let binaries = options.binaries.find()?;
    packages::ensure_installed(&packages::FOR_BENCHES)?;
    let lab = Lab::new(
        (STREAM_OBJECTS * STREAM_OBJECT_BYTES, STREAM_OBJECT_BYTES, 1),
        Credentials::new(options.key)?,
    )?;
    let small = lab.disk().root.join(SMALL_OBJECT);
    fs::write(&small, [7; SMALL_OBJECT_BYTES])
        .with_context(|| format!("writing {}", small.display()))?;
    let bench = Bench {
        options,
        instruments: binaries.instruments,
        contender: Contender::Atlas(binaries.server),
        lab,
        directory: scratch_directory("handshakes")?,
    };
    bench.run()
}

struct Bench<'a> {
    options: &'a HandshakesOptions,
    /// `atlas-bench`.
    instruments: PathBuf,
    contender: Contender,
    lab: Lab,
    /// Where lists of URLs are written.
    directory: tempfile::TempDir,
}

impl Bench<'_> {
    fn run(&self) -> Result<()> {
        let file = self.options.json.as_deref();
        let writer = file.map(|file| Writer::create(file, &self.environment()?));
        let mut writer = writer.transpose()?;
        let offered: &[f64] = match self.options.offered.as_slice() {
            [] => &OFFERED,
            offered => offered,
        };
        println!("{HEADS}");
        for rate in [0.0].iter().chain(offered) {
            for _ in 0..self.options.rounds {
                interrupt::check()?;
                let row = self.turn(*rate);
                let row = row.with_context(|| format!("{rate} a second"))?;
                println!("{}", row.text());
                if let Some(writer) = &mut writer {
                    writer.add(&row)?;
                }
            }
        }
        println!("streams in Gb/s of bodies; cores busy in the streams' window");
        Ok(())
    }

    fn environment(&self) -> Result<Environment> {
        let mut machine = self
            .lab
            .environment(std::slice::from_ref(&self.contender))?;
        let mut add = |name: &str, value| machine.push((name.to_owned(), value));
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
        machine.retain(|(name, _)| name != "command");
        Ok(Environment::new(command_line(), 0, machine))
    }

    /// One run of the server, from its start to its end.
    fn turn(&self, rate: f64) -> Result<Row> {
        let arguments = &self.options.atlas_arguments;
        let place = self.lab.veth(true);
        let (server, address) = self.lab.start(place, &self.contender, arguments)?;
        let window = if self.options.quick {
            QUICK_WINDOW_SECONDS
        } else {
            WINDOW_SECONDS
        };
        let mut streams = self.streams(address, window)?;
        let streams = thread::spawn(move || read_report(&mut streams));
        let handshakes = if rate > 0.0 {
            thread::sleep(STREAMS_ALONE);
            read_report(&mut self.handshakes(address, rate, window + WARM_UP_SECONDS))?
        } else {
            LoadReport::default()
        };
        let streams = streams.join().ok().context("the streams' thread")??;
        stop(server)?;
        Row::new(rate, &streams, &handshakes)
    }

    /// Asks for all objects on each connection until its time is over.
    fn streams(&self, server: SocketAddr, seconds: u64) -> Result<Command> {
        let objects = self.lab.disk().objects;
        let urls = (0..STREAM_OBJECTS).map(|at| format!("https://{server}{}\n", objects.path(at)));
        let file = self.directory.path().join("urls");
        fs::write(&file, urls.collect::<String>())
            .with_context(|| format!("writing {}", file.display()))?;
        let mut command = self.load();
        command.arg("--urls").arg(file);
        command.args(stream_words(
            self.options.connections,
            objects.bytes,
            seconds,
        ));
        Ok(command)
    }

    fn handshakes(&self, server: SocketAddr, rate: f64, seconds: u64) -> Command {
        let mut command = self.load();
        command.args(handshake_words(server, rate, seconds));
        command
    }

    /// `atlas-bench load` in the client's namespace, on the client's core.
    fn load(&self) -> Command {
        let mut command = self.lab.veth.client.command("taskset");
        command.args(["-c", &CLIENT_CORE.to_string()]);
        command.arg(&self.instruments);
        command.args(load_words()).arg(self.lab.authority());
        command
    }
}

/// What every load is told; the file of whom to trust is to follow.
fn load_words() -> [&'static str; 4] {
    ["load", "--server-name", NAME, "--ca"]
}

fn stream_words(connections: u64, object_bytes: u64, seconds: u64) -> Vec<String> {
    vec![
        format!("--connections={connections}"),
        format!("--expect-bytes={object_bytes}"),
        format!("--warm-up={WARM_UP_SECONDS}"),
        format!("--seconds={seconds}"),
        format!("--watch-core={SERVER_CORE},{CLIENT_CORE}"),
    ]
}

fn handshake_words(server: SocketAddr, rate: f64, seconds: u64) -> Vec<String> {
    vec![
        format!("https://{server}/{SMALL_OBJECT}"),
        format!("--connections={POOL}"),
        format!("--timeout={PATIENCE_SECONDS}"),
        format!("--expect-bytes={SMALL_OBJECT_BYTES}"),
        format!("--arrivals={rate}"),
        "--sweep-pause=0.1".to_owned(),
        "--warm-up=1".to_owned(),
        format!("--seconds={seconds}"),
    ]
}

/// Runs a load to its end and reads its report. That clients failed may be what is to be seen, so it is no
/// failure here.
fn read_report(command: &mut Command) -> Result<LoadReport> {
    let output = output(command, LIMIT)?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("reading the load's report; it said: {}", stderr.trim())
    })
}

const HEADS: &str =
    "   wanted   offered   completed    failed    p50 ms    p99 ms   streams   server   client";

/// One rate offered.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
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
}

impl Row {
    fn new(rate: f64, streams: &LoadReport, beside: &LoadReport) -> Result<Self> {
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
        let busy = |core| {
            let found = streams
                .cores
                .iter()
                .find(|it: &&CoreSeconds| it.core == core);
            let found = found.with_context(|| format!("the load did not watch core {core}"))?;
            anyhow::Ok(found.busy / streams.seconds)
        };
        let seconds = beside.seconds.max(f64::MIN_POSITIVE);
        Ok(Self {
            wanted_per_second: rate,
            offered_per_second: float(beside.arrivals - beside.missed_arrivals) / seconds,
            completed_per_second: float(beside.replies) / seconds,
            failed_per_second: float(beside.failures) / seconds,
            handshake_ms_p50: float(beside.latency.connect.p50) / 1e3,
            handshake_ms_p99: float(beside.latency.connect.p99) / 1e3,
            streams_gbps: streams.gigabits_per_second,
            server_core_busy: busy(SERVER_CORE)?,
            client_core_busy: busy(CLIENT_CORE)?,
        })
    }

    fn text(&self) -> String {
        let bound = if self.client_core_busy > FULL {
            "  the clients' core is full"
        } else {
            ""
        };
        format!(
            "{:>9.0} {:>9.0} {:>11.0} {:>9.0} {:>9.1} {:>9.1} {:>9.2} {:>7.0}% {:>7.0}%{bound}",
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// A report of streams in which all went well.
    fn streams(seconds: f64, body_bytes: u64, busy: [f64; 2]) -> LoadReport {
        let cores = [SERVER_CORE, CLIENT_CORE].into_iter().zip(busy);
        let cores = cores.map(|(core, busy)| CoreSeconds {
            core,
            busy,
            ..Default::default()
        });
        LoadReport {
            seconds,
            body_bytes,
            cores: cores.collect(),
            ..Default::default()
        }
    }

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

    #[derive(clap::Parser)]
    struct Loaded {
        #[command(flatten)]
        load: ::load::LoadArgs,
    }

    #[test]
    fn the_load_understands_what_it_is_told() {
        let parsed = |further: Vec<String>| {
            let words = load_words().map(str::to_owned).into_iter();
            let words = words.chain(["ca.pem".to_owned()]).chain(further);
            Loaded::try_parse_from(words)
                .expect("its command line")
                .load
        };
        let server = "10.77.0.2:443".parse().expect("an address");
        let handshakes = parsed(handshake_words(server, 300.0, 8));
        assert_eq!(handshakes.arrivals, Some(300.0));
        assert_eq!(handshakes.url, ["https://10.77.0.2:443/small.bin"]);
        let mut streams = stream_words(64, 1 << 20, 5);
        streams.push("--urls=urls".to_owned());
        assert_eq!(parsed(streams).watch_core, [SERVER_CORE, CLIENT_CORE]);
    }

    #[test]
    fn a_row_is_a_second_and_tells_a_full_client() {
        let row = |client| {
            let streams = streams(2.0, 1, [1.0, client]);
            Row::new(100.0, &streams, &beside(200, 20)).expect("a row")
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
        let alone = streams(1.0, 1, [0.5, 0.5]);
        let row = Row::new(0.0, &alone, &LoadReport::default()).expect("alone");
        assert!(row.completed_per_second.abs() < 1e-9);
        let wrong = LoadReport {
            wrong_replies: 1,
            ..beside(1, 0)
        };
        Row::new(1.0, &alone, &wrong).expect_err("a wrong reply");
        Row::new(1.0, &wrong, &beside(1, 0)).expect_err("a wrong stream");
        let silent = streams(1.0, 0, [0.5, 0.5]);
        Row::new(1.0, &silent, &beside(1, 0)).expect_err("no stream");
        let mut lacking = alone.clone();
        lacking.cores.pop();
        Row::new(1.0, &lacking, &beside(1, 0)).expect_err("the clients' core");
    }
}
