//! `cargo xtask bench serve`: objects from a cold disk, each asked once, in plaintext or over TLS.
//!
//! It refuses a run in which any reply or any byte of the sample is wrong, or a record too many.

use std::path::{Path, PathBuf};

use ::load::{Suite, Version};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use super::binaries::{BinaryOptions, EmulationOptions};
use super::disk::drop_caches;
use super::lab::{Contender, Lab, Steering, stop};
use super::load::{Likeness, Load};
use super::publish;
use super::report::{Report, Rival, Run};
use super::tls::{Credentials, Key, is_kernel_tls_available};
use testbed::program::Program;
use testbed::rivals::NginxMode;
use testbed::{interrupt, scratch_directory};

/// Bytes of all objects together.
const TOTAL_BYTES: u64 = 4_000_000_000;

/// The same with `--quick`.
const QUICK_TOTAL_BYTES: u64 = 600_000_000;

/// Options of `bench serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeOptions {
    /// Fewer objects and rounds: shows that everything works, proves nothing about speed
    #[arg(long)]
    quick: bool,
    /// Serves over TLS, 1.3 if not said; the client opens records with reply heads in them, counts
    /// all others, and decrypts and compares a sample afterwards
    #[arg(
        long,
        value_enum,
        value_name = "VERSION",
        num_args = 0..=1,
        default_missing_value = "1.3"
    )]
    tls: Option<Version>,
    /// The only AEAD the client offers
    #[arg(long, value_enum, default_value_t = Suite::Aes128Gcm, requires = "tls")]
    suite: Suite,
    /// What the servers sign their handshakes with
    #[arg(long, value_enum, default_value_t = Key::Ecdsa, requires = "tls")]
    key: Key,
    /// Runs `atlas-emulate` too, as atlas-emulated: plain HTTP, bodies sealed under a public key.
    /// Its work is shown by status, length and count; the sample is unlike its objects throughout
    #[arg(long, conflicts_with = "tls")]
    emulated: bool,
    #[command(flatten)]
    emulation: EmulationOptions,
    /// Connections the client keeps open
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// Size of each object, bytes
    #[arg(long, default_value_t = 307_200)]
    object_bytes: u64,
    /// How often each server takes its turn (default 5, with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Servers to run, comma-separated (default: atlas and nginx in five ways)
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Which core processes what each host receives
    #[arg(long, value_enum, default_value_t = Steering::Sender)]
    steering: Steering,
    /// Writes the report here as JSON too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    binaries: BinaryOptions,
    /// Another build of atlas, measured in the same rounds as atlas-baseline: with
    /// `--servers atlas`, the ratios compare the two builds
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Further arguments for `atlas serve`, separated by spaces; the baseline gets none of them
    #[arg(
        long,
        value_name = "ARGUMENTS",
        default_value = "",
        allow_hyphen_values = true
    )]
    atlas_arguments: String,
}

/// Runs the bench.
pub(super) fn run_command(options: &ServeOptions) -> Result<()> {
    ensure!(
        options.connections > 0 && options.object_bytes > 0,
        "nothing to ask for"
    );
    let report = Serve::new(options)?.run()?;
    publish(&report.text(), &report, options.json.as_deref())
}

struct Serve<'a> {
    options: &'a ServeOptions,
    /// `atlas-bench`.
    instruments: PathBuf,
    contenders: Vec<Contender>,
    lab: Lab,
    /// Where lists of URLs are written.
    directory: tempfile::TempDir,
}

impl<'a> Serve<'a> {
    fn new(options: &'a ServeOptions) -> Result<Self> {
        let binaries = options.binaries.find()?;
        let contenders = contenders(options, &binaries.server)?;
        let total = if options.quick {
            QUICK_TOTAL_BYTES
        } else {
            TOTAL_BYTES
        };
        let mut lab = Lab::new(total, options.object_bytes, options.steering)?;
        if options.tls.is_some() {
            lab = lab.with_tls(Credentials::new(options.key)?, is_kernel_tls_available());
        }
        Ok(Self {
            options,
            instruments: binaries.instruments,
            contenders,
            lab,
            directory: scratch_directory("serve")?,
        })
    }

    fn run(&self) -> Result<Report> {
        let rounds = self
            .options
            .rounds
            .unwrap_or(if self.options.quick { 1 } else { 5 });
        let environment = self.environment()?;
        let mut rivals: Vec<Rival<Run>> = self
            .contenders
            .iter()
            .map(|contender| Rival::new(contender.name(), contender.is_ours()))
            .collect();
        for round in 1..=rounds {
            // Every other round runs backwards: nobody always comes first.
            let mut turns: Vec<_> = self.contenders.iter().zip(&mut rivals).collect();
            if round % 2 == 0 {
                turns.reverse();
            }
            for (contender, rival) in turns {
                interrupt::check()?;
                let run = self
                    .turn(contender)
                    .with_context(|| format!("round {round}, {}", contender.name()))?;
                eprintln!(
                    "round {round}/{rounds} {:<24} {:>6.2} Gb/s {:>7.3} core-s/GB",
                    rival.name, run.cost.gbps, run.cost.core_seconds_per_gb
                );
                rival.runs.push(run);
            }
        }
        Ok(Report::new(environment, rivals))
    }

    /// One cold run of one server, from its start to its end.
    fn turn(&self, contender: &Contender) -> Result<Run> {
        let (server, address) = self.lab.start(contender, &self.options.atlas_arguments)?;
        drop_caches()?;
        let load = Load {
            lab: &self.lab,
            instruments: &self.instruments,
            directory: self.directory.path(),
            server: address,
            objects: self.lab.disk.objects.count,
            connections: self.options.connections,
            tls: self
                .options
                .tls
                .map(|version| (version, self.options.suite)),
        };
        let window = load.run(["--once"])?;
        let replies = window.report.replies;
        ensure!(replies == load.objects, "{replies} replies");
        let likeness = match contender {
            Contender::AtlasEmulated(_) => Likeness::Sealed,
            _ => Likeness::Same,
        };
        let verified = load.verify(likeness)?;
        let stopped = stop(server)?;
        if likeness == Likeness::Sealed {
            let sealed_bytes = stopped.counter("record_seal_bytes")?;
            ensure!(
                sealed_bytes >= window.report.body_bytes,
                "only {sealed_bytes} bytes were sealed"
            );
        }
        Run::new(window, verified)
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let mut environment = self.lab.environment(&self.contenders)?;
        let mut add = |name: &str, value| environment.push((name.to_owned(), value));
        let (objects, options) = (self.lab.disk.objects, self.options);
        add(
            "objects",
            format!(
                "{} of {} bytes, each asked once a round, shuffled, {} connections",
                objects.count, objects.bytes, options.connections
            ),
        );
        if let Some(version) = options.tls {
            add(
                "TLS",
                format!(
                    "{version}, {}, X25519, {}: no other version or AEAD is offered",
                    options.suite, options.key
                ),
            );
            add("kernel TLS", kernel_tls().to_owned());
            add(
                "same work",
                "reply heads opened, lengths of all records summed, the sample decrypted and \
                 compared"
                    .to_owned(),
            );
        }
        if options.emulated {
            add(
                "emulated",
                "AES-128-GCM under a public key, unframed; shown by status, length, count, the \
                 server's count of sealed bytes, and a sample unlike its objects"
                    .to_owned(),
            );
        }
        Ok(environment)
    }
}

/// What a report says of kTLS.
fn kernel_tls() -> &'static str {
    if is_kernel_tls_available() {
        "available: nginx is told to use it"
    } else {
        "not in this kernel: nginx reads, copies and seals in user space"
    }
}

/// The servers asked for.
fn contenders(options: &ServeOptions, atlas: &Path) -> Result<Vec<Contender>> {
    let ours = [Contender::ATLAS]
        .into_iter()
        .chain(options.emulated.then_some(Contender::ATLAS_EMULATED));
    let all: Vec<&str> = ours.chain(NginxMode::ALL.map(NginxMode::name)).collect();
    let wanted: Vec<&str> = match options.servers.as_slice() {
        [] => all.clone(),
        names => names.iter().map(String::as_str).collect(),
    };
    let mut contenders = wanted
        .into_iter()
        .map(|name| {
            if !all.contains(&name) {
                bail!("no server is called {name}: choose from {}", all.join(", "));
            }
            if name == Contender::ATLAS_EMULATED {
                return options.emulation.find();
            }
            Contender::find(name, atlas).with_context(|| format!("no server is called {name}"))
        })
        .collect::<Result<Vec<_>>>()?;
    if let Some(baseline) = &options.baseline {
        contenders.push(Contender::AtlasBaseline(
            Program::Atlas.find(Some(baseline))?,
        ));
    }
    Ok(contenders)
}
