//! `cargo xtask bench handshakes`: TLS 1.3 handshakes, full or resumed, and what each costs.
//!
//! Both sides of a handshake have one core. The client's, in rustls, is often the one that is full
//! (of a resumed session each side costs the same), and then handshakes a second are what this
//! client could ask for: milliseconds of the server's core for each are the figure to go by. It
//! refuses a run with a handshake of the wrong kind or a wrong byte. Bounded by: its window.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ::load::{Kind, Report as LoadReport, Suite, Version};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::binaries::BinaryOptions;
use super::lab::{Contender, Lab, Steering, stop};
use super::load::{CoreSeconds, Load, cores};
use super::report::{Rival, environment_text, lowest_over, median, over_highest};
use super::tls::{Credentials, Key};
use super::{overload, publish};
use testbed::rivals::NginxMode;
use testbed::{interrupt, packages, scratch_directory};

/// Size of the object fetched after each handshake, bytes: one block of the disk.
const OBJECT_BYTES: u64 = 4096;

/// How many of them there are.
const OBJECTS: u64 = 512;

/// Length of the timed window, seconds.
const WINDOW_SECONDS: u64 = 5;

/// The same with `--quick`.
const QUICK_WINDOW_SECONDS: u64 = 1;

/// Before the window, seconds: each client gets its first ticket.
const WARM_UP_SECONDS: u64 = 1;

/// Pause between two sweeps of the client, milliseconds. There is little to be done for a handshake
/// at each end before the other must act: with a long pause both would be waiting for its end.
const SWEEP_PAUSE_MS: &str = "0.1";

/// Milliseconds in a second.
const MILLI: f64 = 1e3;

/// Options of `bench handshakes`.
#[derive(Args, Clone, Debug)]
pub struct HandshakesOptions {
    /// Shorter windows and one round: shows that everything works, proves nothing about speed
    #[arg(long)]
    pub(crate) quick: bool,
    /// What the servers sign their handshakes with
    #[arg(long, value_enum, default_value_t = Key::Ecdsa)]
    pub(crate) key: Key,
    /// Resumes a session each time (psk_dhe_ke), by a ticket of the visit before
    #[arg(long)]
    resume: bool,
    /// Clients at once, each with one connection
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: u64,
    /// Offers handshakes at rates, beside streams on as many connections as --connections says, and
    /// shows what of both is completed (default: Atlas alone)
    #[arg(long, conflicts_with = "resume")]
    beside_streams: bool,
    /// With --beside-streams: handshakes offered a second, comma-separated
    #[arg(long, value_delimiter = ',', requires = "beside_streams")]
    pub(crate) offered: Vec<f64>,
    /// How often each server takes its turn (default 5, with --quick or --beside-streams 1)
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Servers to run, comma-separated (default: both)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) servers: Vec<Name>,
    /// Which core processes what each host receives
    #[arg(long, value_enum, default_value_t = Steering::Sender)]
    pub(crate) steering: Steering,
    /// Writes the report here as JSON too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) binaries: BinaryOptions,
    /// Further arguments for `atlas serve`, separated by spaces
    #[arg(
        long,
        value_name = "ARGUMENTS",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub(crate) atlas_arguments: String,
}

/// A server of this bench. How nginx sends a file of one block makes no difference.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// Ours
    Atlas,
    /// One worker, tickets, no cache of sessions
    Nginx,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::Atlas => "atlas",
            Self::Nginx => "nginx",
        }
    }

    pub(crate) fn contender(self, atlas: &Path) -> Result<Contender> {
        let name = match self {
            Self::Atlas => Contender::ATLAS,
            Self::Nginx => NginxMode::Sendfile.name(),
        };
        Contender::find(name, atlas).context("both are known")
    }
}

/// Runs the bench.
pub(crate) fn run_command(options: &HandshakesOptions) -> Result<()> {
    ensure!(
        options.connections > 0,
        "--connections is 0: no handshake would be made"
    );
    if options.beside_streams {
        return overload::run_command(options);
    }
    let binaries = options.binaries.find()?;
    let names = match options.servers.as_slice() {
        [] => &[Name::Atlas, Name::Nginx],
        names => names,
    };
    let contenders = names
        .iter()
        .map(|name| Ok((*name, name.contender(&binaries.server)?)))
        .collect::<Result<Vec<_>>>()?;
    packages::ensure_installed(&packages::FOR_BENCHES)?;
    let lab = Lab::new(
        (OBJECTS * OBJECT_BYTES, OBJECT_BYTES, 1),
        options.steering,
        Credentials::new(options.key)?,
    )?;
    let bench = Handshakes {
        options,
        instruments: binaries.instruments,
        contenders,
        lab,
        directory: scratch_directory("handshakes")?,
    };
    let report = bench.run()?;
    publish(&report.text(), &report, options.json.as_deref())
}

struct Handshakes<'a> {
    options: &'a HandshakesOptions,
    /// `atlas-bench`.
    instruments: PathBuf,
    contenders: Vec<(Name, Contender)>,
    lab: Lab,
    /// Where lists of URLs are written.
    directory: tempfile::TempDir,
}

impl Handshakes<'_> {
    fn run(&self) -> Result<Report> {
        let rounds = self
            .options
            .rounds
            .unwrap_or(if self.options.quick { 1 } else { 5 });
        let environment = self.environment()?;
        let mut rivals: Vec<Rival<Run>> = self
            .contenders
            .iter()
            .map(|(name, contender)| Rival::new(name.text(), contender.is_ours()))
            .collect();
        for round in 1..=rounds {
            for ((_, contender), rival) in self.contenders.iter().zip(&mut rivals) {
                interrupt::check()?;
                let run = self
                    .turn(contender)
                    .with_context(|| format!("round {round}, {}", rival.name))?;
                eprintln!(
                    "round {round}/{rounds} {:<8} {:>7.0} handshakes/s {:>7.3} core-ms each",
                    rival.name, run.handshakes_per_second, run.core_ms_per_handshake
                );
                rival.runs.push(run);
            }
        }
        Ok(Report::new(environment, rivals))
    }

    /// One run of one server, from its start to its end.
    fn turn(&self, contender: &Contender) -> Result<Run> {
        let (server, address) = self.lab.start(
            self.lab.veth(true),
            contender,
            contender.further_arguments(&self.options.atlas_arguments),
        )?;
        let seconds = if self.options.quick {
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
            connections: self.options.connections,
            // AES-128-GCM: what both ends would choose.
            tls: Some((Version::Tls13, Suite::Aes128Gcm)),
        };
        let (seconds, warm_up) = (seconds.to_string(), WARM_UP_SECONDS.to_string());
        let mut arguments = vec![
            "--close=client",
            "--verify",
            "--sweep-pause",
            SWEEP_PAUSE_MS,
        ];
        arguments.extend(["--warm-up", &warm_up, "--seconds", &seconds]);
        let kind = if self.options.resume {
            arguments.push("--resume");
            Kind::Resumed
        } else {
            Kind::Full
        };
        let report = load.run(arguments)?.report;
        stop(server)?;
        check(&report, kind)?;
        Run::new(&report)
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let contenders: Vec<_> = self.contenders.iter().map(|(_, it)| it.clone()).collect();
        let mut environment = self.lab.environment(&contenders)?;
        let mut add = |name: &str, value| environment.push((name.to_owned(), value));
        let kind = if self.options.resume {
            "resumed by ticket (psk_dhe_ke)"
        } else {
            "full"
        };
        add(
            "handshakes",
            format!(
                "TLS 1.3, AES-128-GCM, X25519, {}, {kind}; {} clients at once",
                self.options.key, self.options.connections
            ),
        );
        add(
            "each",
            format!(
                "one GET of {OBJECT_BYTES} bytes, every byte compared; the client closes; its \
                 handshake's kind is checked"
            ),
        );
        Ok(environment)
    }
}

/// Refuses a window with a handshake that is not of the kind to be measured, or a reply that was
/// not compared.
fn check(report: &LoadReport, kind: Kind) -> Result<()> {
    let other = report.tls.iter().find(|it| it.kind != kind);
    ensure!(
        other.is_none(),
        "not all handshakes were {kind:?}: {other:?}"
    );
    ensure!(report.handshakes > 0, "no handshake");
    ensure!(
        report.verified_replies == report.replies,
        "only {} of {} replies were compared",
        report.verified_replies,
        report.replies
    );
    Ok(())
}

/// What one run found.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    /// Of the timed window.
    seconds: f64,
    /// Handshakes that were over in it, all of one kind.
    handshakes: u64,
    /// How many of them resumed a session: all or none.
    resumed: u64,
    /// Tickets they were given: each costs a server a sealing.
    tickets: u64,
    server_core_seconds: CoreSeconds,
    client_core_seconds: CoreSeconds,
}

/// One run of one server.
#[derive(Clone, Debug, Serialize)]
struct Run {
    /// Bounded by whichever core is full.
    handshakes_per_second: f64,
    /// Busy milliseconds of the server's core for each.
    core_ms_per_handshake: f64,
    /// Busy milliseconds of both cores for each.
    all_core_ms_per_handshake: f64,
    /// Busy part of the server's core, 0 to 1.
    server_core_busy: f64,
    /// Busy part of the client's core, 0 to 1.
    client_core_busy: f64,
    /// Seconds the hypervisor took from both cores.
    steal_seconds: f64,
    /// Tickets the server made for each.
    tickets_per_handshake: f64,
    /// What it was computed from.
    measured: Measured,
}

impl Run {
    #[expect(
        clippy::cast_precision_loss,
        reason = "handshakes of one run are far below 2^52"
    )]
    fn new(report: &LoadReport) -> Result<Self> {
        let count = report.handshakes as f64;
        let (server, client) = cores(report)?;
        Ok(Self {
            handshakes_per_second: count / report.seconds,
            core_ms_per_handshake: MILLI * server.busy / count,
            all_core_ms_per_handshake: MILLI * (server.busy + client.busy) / count,
            server_core_busy: server.busy / report.seconds,
            client_core_busy: client.busy / report.seconds,
            steal_seconds: server.steal + client.steal,
            tickets_per_handshake: report.tickets as f64 / count,
            measured: Measured {
                seconds: report.seconds,
                handshakes: report.handshakes,
                resumed: report.resumed,
                tickets: report.tickets,
                server_core_seconds: server,
                client_core_seconds: client,
            },
        })
    }
}

impl Rival<Run> {
    /// Its line of the table.
    fn row(&self) -> String {
        let sum = |of: fn(&Measured) -> u64| -> u64 {
            self.runs.iter().map(|run| of(&run.measured)).sum()
        };
        format!(
            "{:<18} {:>12.3}  {:>15}  {:>9.3}  {:>6.0}  {:>13}  {:>5.0}%  {:>5.0}%  {:>7.2}  \
             {:>7.2}  {:>8}  {:>8}",
            self.name,
            self.middle(|run| run.core_ms_per_handshake),
            self.spread(|run| run.core_ms_per_handshake, 3),
            self.middle(|run| run.all_core_ms_per_handshake),
            self.middle(|run| run.handshakes_per_second),
            self.spread(|run| run.handshakes_per_second, 0),
            100.0 * self.middle(|run| run.server_core_busy),
            100.0 * self.middle(|run| run.client_core_busy),
            self.middle(|run| run.steal_seconds),
            self.middle(|run| run.tickets_per_handshake),
            sum(|measured| measured.handshakes),
            sum(|measured| measured.resumed),
        )
    }
}

/// Atlas against nginx, one figure each round.
#[derive(Clone, Debug, Default, Serialize)]
struct Ratios {
    /// nginx's core-milliseconds for each handshake over ours.
    handshakes_per_core_second: Vec<f64>,
    /// The same, with the busy time of both cores.
    handshakes_per_second_of_all: Vec<f64>,
    /// Ours over nginx's.
    handshakes_per_second: Vec<f64>,
}

/// A whole bench.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// What it ran on and with: `(name, value)`.
    environment: Vec<(String, String)>,
    rivals: Vec<Rival<Run>>,
    ratios: Ratios,
}

impl Report {
    fn new(environment: Vec<(String, String)>, rivals: Vec<Rival<Run>>) -> Self {
        let ours = rivals.iter().find(|rival| rival.is_ours);
        let ratios = ours.map_or_else(Ratios::default, |ours| Ratios {
            handshakes_per_core_second: lowest_over(ours, &rivals, |run| run.core_ms_per_handshake),
            handshakes_per_second_of_all: lowest_over(ours, &rivals, |run| {
                run.all_core_ms_per_handshake
            }),
            handshakes_per_second: over_highest(ours, &rivals, |run| run.handshakes_per_second),
        });
        Self {
            environment,
            rivals,
            ratios,
        }
    }

    /// The table.
    fn text(&self) -> String {
        let mut out = environment_text(&self.environment);
        let _ = writeln!(
            out,
            "\n{:<18} {:>12}  {:>15}  {:>9}  {:>6}  {:>13}  {:>6}  {:>6}  {:>7}  {:>7}  {:>8}  \
             {:>8}",
            "median of rounds",
            "core-ms each",
            "(min-max)",
            "all cores",
            "/s",
            "(min-max)",
            "server",
            "client",
            "steal s",
            "tickets",
            "shaken",
            "resumed"
        );
        for rival in &self.rivals {
            let _ = writeln!(out, "{}", rival.row());
        }
        let ratios = &self.ratios;
        if !ratios.handshakes_per_second.is_empty() {
            let _ = writeln!(
                out,
                "\natlas / nginx, median of {} rounds: {:.2} x the handshakes per core-second \
                 ({:.2} x with both cores counted), {:.2} x the handshakes a second",
                ratios.handshakes_per_second.len(),
                median(&ratios.handshakes_per_core_second),
                median(&ratios.handshakes_per_second_of_all),
                median(&ratios.handshakes_per_second)
            );
        }
        out.push_str("Go by core-ms each: handshakes a second are bounded by either core.\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use ::load::Agreed;

    use super::super::load::tests::report;
    use super::*;

    fn run(handshakes: u64, busy: f64) -> Run {
        let report = LoadReport {
            handshakes,
            tickets: 4000,
            ..report(2.0, 0, [busy, 1.0])
        };
        Run::new(&report).expect("a whole report")
    }

    #[test]
    fn only_the_expected_kind_counts_and_every_reply_is_compared() {
        let of = |kinds: &[Kind]| LoadReport {
            handshakes: 1,
            tls: kinds
                .iter()
                .map(|kind| Agreed {
                    version: String::new(),
                    suite: String::new(),
                    group: String::new(),
                    kind: *kind,
                    handshakes: 1,
                })
                .collect(),
            ..LoadReport::default()
        };
        use Kind::{Full, Resumed, Retried};
        check(&of(&[Full]), Full).expect("full");
        check(&of(&[Resumed]), Resumed).expect("resumed");
        for (kinds, wanted) in [
            (&[Full][..], Resumed),
            (&[Resumed], Full),
            (&[Retried], Full),
            (&[Full, Resumed], Full),
        ] {
            check(&of(kinds), wanted).expect_err("a handshake of another kind");
        }
        let unseen = LoadReport {
            replies: 1,
            ..of(&[Full])
        };
        check(&unseen, Full).expect_err("a reply was not compared");
        check(&LoadReport::default(), Full).expect_err("no handshake");
    }

    #[test]
    fn figures_are_for_each_handshake_and_more_is_better_in_every_ratio() {
        let atlas = run(2000, 0.5);
        assert!((atlas.handshakes_per_second - 1000.0).abs() < 1e-9);
        assert!((atlas.core_ms_per_handshake - 0.25).abs() < 1e-9);
        assert!((atlas.all_core_ms_per_handshake - 0.75).abs() < 1e-9);
        assert!((atlas.tickets_per_handshake - 2.0).abs() < 1e-9);
        let rival = |name: &str, is_ours, run| Rival {
            name: name.to_owned(),
            is_ours,
            runs: vec![run],
        };
        let nginx = rival("nginx", false, run(1000, 1.0));
        let report = Report::new(Vec::new(), vec![rival("atlas", true, atlas), nginx]);
        let ratios = &report.ratios;
        assert!((ratios.handshakes_per_core_second[0] - 4.0).abs() < 1e-9);
        assert!((ratios.handshakes_per_second_of_all[0] - 2.0 / 0.75).abs() < 1e-9);
        assert!((ratios.handshakes_per_second[0] - 2.0).abs() < 1e-9);
    }
}
