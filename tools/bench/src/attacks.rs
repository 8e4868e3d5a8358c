//! `cargo xtask bench attacks`: what viewers and new clients keep while others attack.
//!
//! Viewers ask for an object in turn, as players do, so that neither core is full before the attack
//! begins; new clients connect at a rate, each for a small object. The attacker sends as much as
//! its core lets it beside both of them. That core is the viewers' too: the row `nobody`, the same
//! flood to an address that nobody has, shows what sending alone takes from them. It refuses viewers
//! with a wrong reply; new clients may fail, that is counted. Bounded by: its windows.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ::attack::{Kind, Report as AttackReport};
use ::load::Report as LoadReport;
use ::load::random::Random;
use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};
use serde::Serialize;

use super::binaries::BinaryOptions;
use super::lab::{CLIENT_CORE, Contender, Lab, Steering, stop};
use super::load::{Load, cores, plain_command, read_report};
use super::publish;
use super::report::{environment_text, median};
use super::tls::{Credentials, Key, argument};
use testbed::namespace::VethPair;
use testbed::{interrupt, packages, scratch_directory};

/// What viewers ask for: 1 MiB each two seconds on each connection.
const OBJECT_BYTES: u64 = 1 << 20;
const OBJECTS: u64 = 512;
const CHUNK_EVERY_SECONDS: &str = "2";

/// What a new client asks for: one block.
const SMALL_OBJECT: &str = "small.bin";
const SMALL_OBJECT_BYTES: usize = 4_096;

/// New clients a second.
const ARRIVALS: &str = "50";

/// A new client gives up after so many seconds: its SYN is sent four times by then (RFC 6298).
const PATIENCE_SECONDS: &str = "8";

/// The time that is counted, seconds.
const WINDOW_SECONDS: u64 = 10;

/// The same with `--quick`.
const QUICK_WINDOW_SECONDS: u64 = 2;

/// Viewers connect before anybody attacks, and go on for a while before the window, seconds.
const WARM_UP_SECONDS: u64 = 5;

/// After so long the viewers have connected, and the attack and the new clients begin.
const ALONE: Duration = Duration::from_secs(2);

/// A program that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(120);

/// A core busier than this is the bound of its row.
const FULL: f64 = 0.95;

/// What a server is to keep of its viewers' throughput.
const KEPT: f64 = 0.9;

/// Options of `bench attacks`.
#[derive(Args, Clone, Debug)]
pub struct AttacksOptions {
    /// Shorter windows and one round: shows that everything works, proves nothing
    #[arg(long)]
    quick: bool,
    /// Viewers, each with one connection
    #[arg(long, default_value_t = 200)]
    viewers: u64,
    /// Only these attacks, comma-separated
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Rounds, each with every attack once in random order (default 3, with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Which core processes what each host receives
    #[arg(long, value_enum, default_value_t = Steering::Sender)]
    steering: Steering,
    /// What the order of the turns is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the report here as JSON too
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

/// Connections of an attack that holds them.
fn connections(kind: Kind) -> u32 {
    match kind {
        Kind::HalfOpen => 20_000,
        Kind::ShutWindow => 10_000,
        Kind::TinyWindow | Kind::SlowReader => 1_000,
        Kind::SynFlood | Kind::Nobody => ::attack::PEERS_MAX,
    }
}

/// Runs the bench.
pub(crate) fn run_command(options: &AttacksOptions) -> Result<()> {
    let binaries = options.binaries.find()?;
    packages::ensure_installed(&packages::FOR_BENCHES)?;
    let lab = Lab::new(
        (OBJECTS * OBJECT_BYTES, OBJECT_BYTES, 1),
        options.steering,
        Credentials::new(Key::Ecdsa)?,
    )?;
    let small = lab.disk().root.join(SMALL_OBJECT);
    fs::write(&small, [7; SMALL_OBJECT_BYTES])
        .with_context(|| format!("writing {}", small.display()))?;
    let bench = Bench {
        options,
        instruments: binaries.instruments,
        server: Contender::Atlas(binaries.server),
        lab,
        directory: scratch_directory("attacks")?,
    };
    let report = bench.run()?;
    publish(&report.text(), &report, options.json.as_deref())
}

struct Bench<'a> {
    options: &'a AttacksOptions,
    /// `atlas-bench`.
    instruments: PathBuf,
    server: Contender,
    lab: Lab,
    /// Where lists of URLs are written.
    directory: tempfile::TempDir,
}

impl Bench<'_> {
    fn run(&self) -> Result<Report> {
        let mut environment = self.lab.environment(std::slice::from_ref(&self.server))?;
        let load = format!(
            "{} viewers, {OBJECT_BYTES} bytes each {CHUNK_EVERY_SECONDS} s; {ARRIVALS} new clients a \
             second, {SMALL_OBJECT_BYTES} bytes each",
            self.options.viewers
        );
        environment.push(("load".to_owned(), load));
        let attacks = match self.options.only.as_slice() {
            [] => Kind::value_variants(),
            only => only,
        };
        let rounds = self
            .options
            .rounds
            .unwrap_or(if self.options.quick { 1 } else { 3 });
        let mut random = Random::new(self.options.seed);
        let mut rows = Vec::new();
        for _ in 0..rounds {
            let mut turns: Vec<_> = attacks.iter().copied().map(Some).collect();
            turns.push(None);
            random.shuffle(&mut turns);
            for attack in turns {
                interrupt::check()?;
                let row = self
                    .turn(attack)
                    .with_context(|| format!("while under attack by {}", name(attack)))?;
                eprintln!("{}", row.text());
                rows.push(row);
            }
        }
        Ok(Report { environment, rows })
    }

    /// One run of the server, from its start to its end.
    fn turn(&self, attack: Option<Kind>) -> Result<Row> {
        let (server, address) = (self.lab).start(
            self.lab.veth(false),
            &self.server,
            &self.options.atlas_arguments,
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
            objects: OBJECTS,
            connections: self.options.viewers,
            tls: None,
        };
        let mut viewers = load.streams()?;
        viewers.args(["--chunk-every", CHUNK_EVERY_SECONDS]);
        viewers.args(["--warm-up", &WARM_UP_SECONDS.to_string()]);
        viewers.args(["--seconds", &window.to_string()]);
        let mut arrivals = plain_command(&self.lab, &self.instruments);
        arrivals.arg(format!("http://{address}/{SMALL_OBJECT}"));
        arrivals.args(["--connections", "4000", "--timeout", PATIENCE_SECONDS]);
        arrivals.args(["--expect-bytes", &SMALL_OBJECT_BYTES.to_string()]);
        arrivals.args(["--close=client", "--arrivals", ARRIVALS]);
        let begun = WARM_UP_SECONDS - ALONE.as_secs();
        arrivals.args(["--warm-up", &begun.to_string()]);
        arrivals.args(["--seconds", &window.to_string()]);
        let mut attacker = attack.map(|kind| {
            let mut command = self.lab.veth.client.command("taskset");
            command.args(["-c", &CLIENT_CORE.to_string()]);
            command.arg(&self.instruments).args(["attack", "--json"]);
            command.arg(argument(kind));
            command.args(["--interface", VethPair::CLIENT_INTERFACE]);
            command.args(["--server", &address.to_string()]);
            command.args(["--path", self.lab.disk().objects.path(0).as_str()]);
            command.args(["--connections", &connections(kind).to_string()]);
            command.args(["--seconds", &(begun + window).to_string()]);
            command
        });
        let viewers = thread::spawn(move || read_report::<LoadReport>(&mut viewers, LIMIT));
        thread::sleep(ALONE);
        let attacker = thread::spawn(move || {
            (attacker.as_mut()).map_or_else(
                || Ok(AttackReport::default()),
                |command| read_report(command, LIMIT),
            )
        });
        let arrivals = read_report::<LoadReport>(&mut arrivals, LIMIT)?;
        let attacker = attacker.join().ok().context("the attacker's thread")??;
        let viewers = viewers.join().ok().context("the viewers' thread")??;
        stop(server)?;
        Row::new(attack, &viewers, &arrivals, &attacker)
    }
}

/// What reports call an attack, or its absence.
fn name(attack: Option<Kind>) -> String {
    attack.map_or_else(|| "none".to_owned(), argument)
}

/// One attack.
#[derive(Clone, Debug, Serialize)]
struct Row {
    attack: String,
    /// Segments a second that the attacker sent.
    sent_per_second: f64,
    /// Connections that the attacker completed, and those open at the end as far as it knows.
    established: u64,
    open_at_end: u64,
    /// Bodies of the viewers.
    viewers_gbps: f64,
    /// Part of the viewers' chunks that took longer than their turn.
    late: f64,
    /// Viewers' connections that failed.
    viewers_failed: u64,
    /// Part of the new clients that got their reply.
    served: f64,
    /// From `connect` to the handshake's end, milliseconds.
    connect_ms_p50: f64,
    connect_ms_p99: f64,
    /// Busy part of each core in the viewers' window, 0 to 1.
    server_core_busy: f64,
    client_core_busy: f64,
}

impl Row {
    #[expect(
        clippy::cast_precision_loss,
        reason = "what one run counts is far below 2^52"
    )]
    fn new(
        attack: Option<Kind>,
        viewers: &LoadReport,
        arrivals: &LoadReport,
        attacker: &AttackReport,
    ) -> Result<Self> {
        for report in [viewers, arrivals] {
            ensure!(
                report.wrong_replies == 0,
                "a wrong reply: {:?}",
                report.first_errors
            );
        }
        let (server_core, client_core) = cores(viewers)?;
        let per = |count: u64, of: f64| if of > 0.0 { count as f64 / of } else { 0.0 };
        Ok(Self {
            attack: name(attack),
            sent_per_second: per(attacker.sent_segments, attacker.seconds),
            established: attacker.established,
            open_at_end: attacker.open_at_end,
            viewers_gbps: viewers.gigabits_per_second,
            late: per(viewers.late_chunks, viewers.replies as f64),
            viewers_failed: viewers.failures,
            served: per(
                arrivals.replies,
                (arrivals.replies + arrivals.failures) as f64,
            ),
            connect_ms_p50: arrivals.latency.connect.p50 as f64 / 1e3,
            connect_ms_p99: arrivals.latency.connect.p99 as f64 / 1e3,
            server_core_busy: server_core.busy / viewers.seconds,
            client_core_busy: client_core.busy / viewers.seconds,
        })
    }

    fn text(&self) -> String {
        let bound = if self.client_core_busy > FULL {
            "  the clients' core is full"
        } else {
            ""
        };
        format!(
            "{:<12} {:>9.0} {:>7} {:>7} {:>8.3} {:>6.1}% {:>6} {:>7.1}% {:>8.1} {:>8.1} {:>7.0}% {:>7.0}%{bound}",
            self.attack,
            self.sent_per_second,
            self.established,
            self.open_at_end,
            self.viewers_gbps,
            100.0 * self.late,
            self.viewers_failed,
            100.0 * self.served,
            self.connect_ms_p50,
            self.connect_ms_p99,
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
    /// The median over the rounds of the viewers' rate under an attack.
    fn rate(&self, attack: &str) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| row.attack == attack);
        let rates: Vec<_> = rows.map(|row| row.viewers_gbps).collect();
        (!rates.is_empty()).then(|| median(&rates))
    }

    fn text(&self) -> String {
        let mut out = environment_text(&self.environment);
        let _ = writeln!(
            out,
            "\n{:<12} {:>9} {:>7} {:>7} {:>8} {:>7} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "attack",
            "sent/s",
            "opened",
            "open",
            "viewers",
            "late",
            "failed",
            "served",
            "p50 ms",
            "p99 ms",
            "server",
            "client"
        );
        for row in &self.rows {
            let _ = writeln!(out, "{}", row.text());
        }
        out.push_str(
            "viewers in Gb/s of bodies; late: of their chunks; served: of new clients, with the time \
             of their handshakes; cores busy in the viewers' window\n",
        );
        let alone = self.rate(&name(None)).unwrap_or_default();
        let kinds = Kind::value_variants().iter().map(|kind| argument(*kind));
        for (attack, rate) in kinds.filter_map(|kind| self.rate(&kind).map(|rate| (kind, rate))) {
            let kept = if alone > 0.0 { rate / alone } else { 0.0 };
            let verdict = if kept >= KEPT { "kept" } else { "NOT KEPT" };
            let _ = writeln!(
                out,
                "{attack}: {:.0} % of viewers' throughput, {verdict}",
                100.0 * kept
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::report;
    use super::*;

    fn row(attack: Option<Kind>, body_bytes: u64, client: f64) -> Row {
        let viewers = report(2.0, body_bytes, [1.0, client]);
        let arrivals = LoadReport {
            replies: 9,
            failures: 1,
            ..LoadReport::default()
        };
        let attacker = AttackReport {
            seconds: 2.0,
            sent_segments: 100,
            ..AttackReport::default()
        };
        Row::new(attack, &viewers, &arrivals, &attacker).expect("a row")
    }

    #[test]
    fn a_row_says_who_was_served_and_whether_the_clients_core_was_full() {
        let full = row(Some(Kind::SynFlood), 1, 2.0);
        assert!((full.sent_per_second - 50.0).abs() < 1e-9);
        assert!((full.served - 0.9).abs() < 1e-9);
        assert!(full.text().ends_with("the clients' core is full"));
        assert!(!row(None, 1, 1.0).text().ends_with("full"));
    }

    #[test]
    fn throughput_is_kept_from_nine_tenths_on() {
        let text = |kept| {
            let mut rows = vec![row(None, 1, 1.0), row(Some(Kind::SynFlood), 1, 1.0)];
            rows[0].viewers_gbps = 1.0;
            rows[1].viewers_gbps = kept;
            Report {
                environment: Vec::new(),
                rows,
            }
            .text()
        };
        assert!(text(0.9).ends_with("syn-flood: 90 % of viewers' throughput, kept\n"));
        assert!(text(0.89).ends_with("NOT KEPT\n"));
    }

    #[test]
    fn wrong_bytes_are_refused() {
        let wrong = LoadReport {
            wrong_replies: 1,
            ..report(2.0, 1, [1.0, 1.0])
        };
        let right = report(2.0, 1, [1.0, 1.0]);
        let none = AttackReport::default();
        Row::new(None, &wrong, &right, &none).expect_err("a viewer's");
        Row::new(None, &right, &wrong, &none).expect_err("a new client's");
    }
}
