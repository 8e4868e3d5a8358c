//! `cargo xtask bench serve`: Atlas and nginx serve the same objects, side by side, on one core.
//!
//! The server runs on [`SERVER_CORE`], the client on [`CLIENT_CORE`], a veth pair between their
//! namespaces, the objects on a bench disk ([`disk`]). Servers take turns, round after round, each
//! starting cold; medians are reported, and the median of each round's ratio of Atlas to the best
//! nginx of that round. It refuses a run in which any reply or any byte of the sample is wrong.

pub(crate) mod client;
mod cores;
mod disk;
mod report;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};

use self::disk::{BenchDisk, drop_caches};
use self::report::{Report, Rival, Run};
use crate::harness::namespace::Cable;
use crate::harness::process::{output, run};
use crate::harness::server::{NginxConfig, NginxMode, Server, atlas_binary, nginx_program};
use crate::harness::undo::Undo;
use crate::harness::{interrupt, is_root, own_program, workspace_root};

/// The name of our own server in reports.
const ATLAS: &str = "atlas";

/// The core servers are pinned to.
const SERVER_CORE: usize = 0;

/// The core the client is pinned to; the bench disk's copying goes there too.
const CLIENT_CORE: usize = 1;

/// Objects fetched whole and compared after each timed window.
const SAMPLE_OBJECTS: u64 = 64;

/// A run that takes longer is a failure: the slowest rival needs a tenth of it.
const RUN_SECONDS_MAX: u64 = 120;

/// Bytes of all objects together.
const TOTAL_BYTES: u64 = 4_000_000_000;

/// The same with `--quick`.
const QUICK_TOTAL_BYTES: u64 = 600_000_000;

/// What to measure.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Plaintext objects from a cold disk, against nginx in four configurations (needs root)
    Serve(ServeOptions),
}

/// Options of `bench serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeOptions {
    /// Fewer objects and rounds: shows that everything works, proves nothing about speed
    #[arg(long)]
    quick: bool,
    /// Connections the client keeps open
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Size of each object, bytes
    #[arg(long, default_value_t = 307_200)]
    object_bytes: u64,
    /// How often each server takes its turn (default 5, with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Servers to run, comma-separated (default: atlas and the four nginx configurations)
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Which core processes what each host receives
    #[arg(long, value_enum, default_value_t = Steering::Sender)]
    steering: Steering,
    /// Writes the report here as JSON too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The server to measure (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Further arguments for `atlas serve`, separated by spaces
    #[arg(
        long,
        value_name = "ARGUMENTS",
        default_value = "",
        allow_hyphen_values = true
    )]
    atlas_arguments: String,
}

/// Which core runs the kernel's receive side (RPS). A veth hands a packet over on the core that
/// sent it, so the client's TCP runs on the server's core, and the kernel server's ACK processing,
/// which is what makes it send, on the client's: `core-s/GB` leaves that out, `all cores` does not.
/// Two machines do not do each other's work, but the inter-processor interrupts that part them cost
/// a virtual machine more than the work does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Steering {
    /// Its own: the server's host on the server's core, the client's on the client's
    Own,
    /// The kernel's default on a veth: the sender's
    Sender,
}

/// Runs a bench.
pub(crate) fn run_command(bench: &Bench) -> Result<()> {
    let Bench::Serve(options) = bench;
    ensure!(
        is_root(),
        "the bench makes namespaces and mounts: run it as root"
    );
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores > CLIENT_CORE,
        "the bench needs two cores: one serves, one asks"
    );
    ensure!(
        options.connections > 0 && options.object_bytes > 0,
        "nothing to ask for"
    );
    let bench = Serve::new(options)?;
    let report = bench.run()?;
    print!("{}", report.text());
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// A server that takes its turn.
#[derive(Clone, Debug)]
enum Contender {
    Atlas(PathBuf),
    Nginx(NginxMode),
}

impl Contender {
    fn name(&self) -> &'static str {
        match self {
            Self::Atlas(_) => ATLAS,
            Self::Nginx(mode) => mode.name(),
        }
    }
}

/// Everything set up for the runs. Fields are undone in the order they stand here.
struct Serve<'a> {
    options: &'a ServeOptions,
    contenders: Vec<Contender>,
    cable: Cable,
    disk: BenchDisk,
    /// The machine's load averages before anything of ours ran: others' work counts as busy too.
    load_before: String,
    _undo: Undo,
}

impl<'a> Serve<'a> {
    fn new(options: &'a ServeOptions) -> Result<Self> {
        // Before the disk takes memory and the cores are measured: this may compile.
        let contenders = contenders(options)?;
        let load_before = fs::read_to_string("/proc/loadavg").context("reading the load")?;
        let load_before = load_before.trim().to_owned();
        let mut undo = Undo::default();
        let cable = Cable::new()?;
        use_cubic(&mut undo, &cable)?;
        if options.steering == Steering::Own {
            steer(&cable)?;
        }
        let total = if options.quick {
            QUICK_TOTAL_BYTES
        } else {
            TOTAL_BYTES
        };
        eprintln!("making the bench disk");
        let disk = BenchDisk::new(total, options.object_bytes, CLIENT_CORE)?;
        Ok(Self {
            options,
            contenders,
            cable,
            disk,
            load_before,
            _undo: undo,
        })
    }

    fn run(&self) -> Result<Report> {
        let rounds = self
            .options
            .rounds
            .unwrap_or(if self.options.quick { 1 } else { 5 });
        let environment = self.environment()?;
        let mut rivals: Vec<Rival> = self
            .contenders
            .iter()
            .map(|contender| Rival {
                name: contender.name().to_owned(),
                runs: Vec::new(),
            })
            .collect();
        for round in 1..=rounds {
            for (contender, rival) in self.contenders.iter().zip(&mut rivals) {
                interrupt::check()?;
                let run = self
                    .turn(contender)
                    .with_context(|| format!("round {round}, {}", contender.name()))?;
                eprintln!(
                    "round {round}/{rounds} {:<24} {:>6.2} Gb/s {:>7.3} core-s/GB",
                    rival.name, run.gbps, run.core_seconds_per_gb
                );
                rival.runs.push(run);
            }
        }
        Ok(Report::new(environment, rivals))
    }

    /// One cold run of one server, from its start to its end.
    fn turn(&self, contender: &Contender) -> Result<Run> {
        let namespace = &self.cable.server;
        let (server, address) = match contender {
            Contender::Atlas(binary) => {
                let address = SocketAddr::new(Cable::ATLAS_V4.parse()?, 80);
                let mut command = namespace.command("taskset");
                command.args(["-c", &SERVER_CORE.to_string()]);
                command.arg(binary).arg("serve").arg(&self.disk.root);
                command.args(["--link", &format!("packet:{}", Cable::SERVER_INTERFACE)]);
                command.args([
                    "--address",
                    &format!("{}/24", Cable::ATLAS_V4),
                    "--http",
                    "80",
                ]);
                command.args(self.options.atlas_arguments.split_whitespace());
                (Server::atlas(&mut command)?, address)
            }
            Contender::Nginx(mode) => {
                let address = SocketAddr::new(Cable::KERNEL_V4.parse()?, 80);
                let config = NginxConfig::new(*mode, &self.disk.root, address)?;
                (
                    Server::nginx(namespace, Some(SERVER_CORE), config)?,
                    address,
                )
            }
        };
        drop_caches()?;
        let measured = self.load(address)?;
        let stopped = server.stop()?;
        ensure!(
            stopped.status.success(),
            "the server ended with {}",
            stopped.status
        );
        Ok(Run::new(measured))
    }

    /// Runs the client in its namespace, on its core.
    fn load(&self, address: SocketAddr) -> Result<client::Measured> {
        let program = own_program()?;
        let mut command = self.cable.client.command("taskset");
        command
            .args(["-c", &CLIENT_CORE.to_string()])
            .arg(program)
            .arg("bench-client");
        for (name, value) in [
            ("--server", address.to_string()),
            ("--connections", self.options.connections.to_string()),
            ("--objects", self.disk.objects.count.to_string()),
            ("--object-bytes", self.disk.objects.bytes.to_string()),
            ("--sample", SAMPLE_OBJECTS.to_string()),
            ("--server-core", SERVER_CORE.to_string()),
            ("--client-core", CLIENT_CORE.to_string()),
            ("--device", self.disk.device.clone()),
            ("--limit-seconds", RUN_SECONDS_MAX.to_string()),
        ] {
            command.args([name, &value]);
        }
        // The client has a deadline of its own; ours is for one that hangs.
        let output = output(&mut command, Duration::from_secs(RUN_SECONDS_MAX + 30))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "the client failed: {}",
            stderr.trim()
        );
        serde_json::from_slice(&output.stdout).context("reading the client's figures")
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let text = |command: &mut Command| {
            run(command).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let root = workspace_root();
        let git =
            |arguments: &[&str]| text(Command::new("git").arg("-C").arg(&root).args(arguments));
        let changed = if git(&["status", "--porcelain"]).is_empty() {
            ""
        } else {
            " + changes"
        };
        let interface = format!("/sys/class/net/{}", Cable::CLIENT_INTERFACE);
        let receive = self
            .cable
            .client
            .command("cat")
            .arg(format!("{interface}/queues/rx-0/rps_cpus"))
            .args([
                &format!("{interface}/mtu"),
                "/proc/sys/net/ipv4/tcp_congestion_control",
            ])
            .output()?;
        let receive = String::from_utf8_lossy(&receive.stdout);
        let mut receive = receive.split_whitespace();
        let mut next = || receive.next().unwrap_or("?").to_owned();
        let network = format!(
            "veth, offloads default, client's RPS mask {}, MTU {}, kernel TCP {}",
            next(),
            next(),
            next()
        );
        let mut environment = vec![
            ("command", command_line()),
            (
                "commit",
                git(&["rev-parse", "--short=12", "HEAD"]) + changed,
            ),
            ("kernel", text(Command::new("uname").arg("-sr"))),
            ("processor", processor()?),
            (
                "cores",
                format!("server {SERVER_CORE}, client and disk {CLIENT_CORE}"),
            ),
            ("network", network),
            ("load before", self.load_before.clone()),
            (
                "objects",
                format!(
                    "{} of {} bytes, each asked once a round, {} connections",
                    self.disk.objects.count, self.disk.objects.bytes, self.options.connections
                ),
            ),
        ];
        for contender in &self.contenders {
            if let Contender::Atlas(binary) = contender {
                environment.push(("atlas", text(Command::new(binary).arg("--version"))));
            }
        }
        if let Some(nginx) = nginx_program() {
            // nginx prints its version to stderr.
            let version = output(Command::new(nginx).arg("-v"), Duration::from_secs(10))?;
            environment.push((
                "nginx",
                String::from_utf8_lossy(&version.stderr).trim().to_owned(),
            ));
        }
        Ok(environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect())
    }
}

/// The servers asked for, Atlas built if it is among them.
fn contenders(options: &ServeOptions) -> Result<Vec<Contender>> {
    let nginx = |mode| Ok(Contender::Nginx(mode));
    let all: Vec<&str> = std::iter::once(ATLAS)
        .chain(NginxMode::ALL.map(NginxMode::name))
        .collect();
    let wanted: Vec<&str> = match options.servers.as_slice() {
        [] => all.clone(),
        names => names.iter().map(String::as_str).collect(),
    };
    wanted
        .into_iter()
        .map(
            |name| match NginxMode::ALL.into_iter().find(|mode| mode.name() == name) {
                Some(mode) => nginx(mode),
                None if name == ATLAS => {
                    atlas_binary(options.atlas.as_deref()).map(Contender::Atlas)
                }
                None => bail!("no server is called {name}: choose from {}", all.join(", ")),
            },
        )
        .collect()
}

/// Each host's packets are processed on its own core. Undone with the namespaces.
fn steer(cable: &Cable) -> Result<()> {
    let ends = [
        (&cable.server, Cable::SERVER_INTERFACE, SERVER_CORE),
        (&cable.client, Cable::CLIENT_INTERFACE, CLIENT_CORE),
    ];
    for (namespace, interface, core) in ends {
        let mask = format!("{:x}", 1 << core);
        let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        run(namespace
            .command("sh")
            .args(["-c", &format!("echo {mask} > {file}")]))?;
    }
    Ok(())
}

/// What to type to do this again, from the top of the tree.
fn command_line() -> String {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    format!("cargo xtask {}", arguments.join(" "))
}

/// The same congestion control for every kernel TCP in the bench, whatever the host's default.
fn use_cubic(undo: &mut Undo, cable: &Cable) -> Result<()> {
    // A namespace may only choose among what the host allows.
    let allowed = Path::new("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let before = fs::read_to_string(allowed).context("reading the allowed congestion controls")?;
    if !before.split_whitespace().any(|name| name == "cubic") {
        undo.set(allowed, &format!("{} cubic", before.trim()))?;
    }
    for namespace in [&cable.server, &cable.client] {
        namespace.set("ipv4/tcp_congestion_control", "cubic")?;
    }
    Ok(())
}

fn processor() -> Result<String> {
    let text = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    Ok(model
        .map_or("unknown", |line| line.trim_start_matches(['\t', ' ', ':']))
        .to_owned())
}
