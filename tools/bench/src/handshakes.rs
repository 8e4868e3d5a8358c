//! `cargo xtask bench handshakes`: TLS 1.3 handshakes offered at a rate, whatever became of those before,
//! beside streams at full speed.
//!
//! Does what is completed rise to a plateau, and what do the streams keep? A completed handshake is
//! one whose client then got an object of one block. All clients, all of rustls, share one core
//! with the bench disk's copying: where they are at work all the time the row says so, and shows less than the
//! server could do. It refuses streams with a wrong reply; handshakes may fail, that is counted. Bounded
//! by: its windows.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nic_wire::Report;
use serde::{Deserialize, Serialize};
use testbed::{interrupt, packages, scratch_directory};

use crate::binaries::BinaryOptions;
use crate::figures::cell::Cell;
use crate::lab::{Contender, Lab, address, command_line};
use crate::stored::{Environment, Writer, float};
use crate::tls::{Credentials, Key};
use crate::wire::{self, Tap, Visits};

/// Handshakes offered a second, if the command line says nothing.
const OFFERED: [u32; 5] = [100, 300, 1_000, 3_000, 10_000];

/// What streams ask for.
const STREAM_OBJECT_BYTES: u64 = 1 << 20;
const STREAM_OBJECTS: u64 = 512;

/// What is asked for after a handshake: one block.
const SMALL_OBJECT: &str = "/small.bin";
const SMALL_OBJECT_BYTES: usize = 4_096;

/// Of the wire.
const MTU: u16 = 1500;

/// Clients that are at work for more of the time are the bound of their row.
const FULL: f64 = 0.95;

/// Options of `bench handshakes`.
#[derive(Args, Clone, Debug)]
pub struct HandshakesOptions {
    /// What the server signs its handshakes with
    #[arg(long, value_enum, default_value_t = Key::Ecdsa)]
    key: Key,
    /// Connections of the streams
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    connections: u32,
    /// Handshakes offered a second, comma-separated
    #[arg(long, value_delimiter = ',')]
    offered: Vec<u32>,
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
    let small = lab.disk().root.join(&SMALL_OBJECT[1..]);
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
    /// Where the list of paths and the configuration are written.
    directory: tempfile::TempDir,
}

impl Bench<'_> {
    fn run(&self) -> Result<()> {
        let file = self.options.json.as_deref();
        let writer = file.map(|file| Writer::create(file, &self.environment()?));
        let mut writer = writer.transpose()?;
        let offered: &[u32] = match self.options.offered.as_slice() {
            [] => &OFFERED,
            offered => offered,
        };
        println!("{HEADS}");
        for rate in [0].iter().chain(offered) {
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
        println!("streams in Gb/s of bodies; cores at work in the window");
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
                "TLS 1.3, full, {}; each client then GETs {SMALL_OBJECT_BYTES} bytes, and gives up after 4 s",
                self.options.key
            ),
        );
        Ok(Environment::new(command_line(), 0, machine))
    }

    /// One run of the server, from its start to its end.
    fn turn(&self, rate: u32) -> Result<Row> {
        let objects = self.lab.disk().objects;
        let paths = self.directory.path().join("paths");
        let mut text = String::new();
        for index in 0..STREAM_OBJECTS {
            let _ = writeln!(text, "{} {}", objects.path(index), objects.bytes);
        }
        fs::write(&paths, text)?;
        let config = self.directory.path().join("atlas.toml");
        // Clients behind headers go without a word: nobody takes what is left to send.
        fs::write(&config, "shutdown_grace_seconds = 1\n")?;
        let run = wire::Run {
            lab: &self.lab,
            instruments: &self.instruments,
            cell: &Cell::cold(true, self.options.connections),
            server: address(&self.contender, true)?,
            paths: &paths,
            mtu: MTU,
            seed: 1,
            visits: (rate > 0).then_some(Visits {
                per_second: rate,
                path: SMALL_OBJECT,
                bytes: SMALL_OBJECT_BYTES as u64,
            }),
        };
        let _tap = Tap::new(&self.lab.wire, MTU)?;
        let clients = run.start()?;
        let arguments = format!(
            "--zero-copy on --config {} {}",
            config.display(),
            self.options.atlas_arguments
        );
        let server = self.lab.start(&self.contender, true, &arguments)?;
        let report = clients.finish()?.map_err(anyhow::Error::msg)?;
        server.stop()?;
        Row::new(rate, &report)
    }
}

const HEADS: &str =
    "   wanted   offered   completed    failed    p50 ms    p99 ms   streams   server   clients";

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
    /// From the SYN to the end of the handshake, milliseconds.
    handshake_ms_p50: f64,
    handshake_ms_p99: f64,
    /// Bodies of the streams.
    streams_gbps: f64,
    /// Busy part of the server's core in the window, 0 to 1.
    server_core_busy: f64,
    /// Part of the window in which the clients had work.
    client_core_busy: f64,
}

impl Row {
    fn new(rate: u32, report: &Report) -> Result<Self> {
        if let Some(why) = wire::fault(report).or_else(|| wire::defect(report)) {
            anyhow::bail!("the streams: {why}");
        }
        ensure!(report.counts.body_bytes > 0, "the streams got nothing");
        let core = report.server_core.context("the wire watched no core")?;
        let visits = report.visits.unwrap_or_default();
        Ok(Self {
            wanted_per_second: rate.into(),
            offered_per_second: float(visits.begun) / report.seconds,
            completed_per_second: float(visits.completed) / report.seconds,
            failed_per_second: float(visits.failed) / report.seconds,
            handshake_ms_p50: float(visits.handshake.p50) / 1e3,
            handshake_ms_p99: float(visits.handshake.p99) / 1e3,
            streams_gbps: report.gigabits_per_second,
            server_core_busy: core.busy / report.seconds,
            client_core_busy: report.client_core_working,
        })
    }

    fn text(&self) -> String {
        let bound = if self.client_core_busy > FULL {
            "  the clients' core is full"
        } else {
            ""
        };
        format!(
            "{:>9.0} {:>9.0} {:>11.0} {:>9.0} {:>9.1} {:>9.1} {:>9.2} {:>7.0}% {:>8.0}%{bound}",
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
