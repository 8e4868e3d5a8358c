//! What every bench stands in: two namespaces and a cable, a disk, servers pinned to one core and
//! clients to another.
//!
//! It refuses nothing the benches do not; each limit it has is a deadline.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use super::disk::{BenchDisk, ObjectDirectory};
use super::tls::Credentials;
use testbed::namespace::VethPair as Cable;
use testbed::process::{output, run};
use testbed::rivals::{NginxConfig, NginxMode, NginxTls, Peer, nginx_program};
use testbed::server::{Server, Stopped};
use testbed::undo::Undo;
use testbed::workspace_root;

/// The core servers are pinned to.
pub(super) const SERVER_CORE: usize = 0;

/// The core the client is pinned to; the bench disk's copying goes there too.
pub(super) const CLIENT_CORE: usize = 1;

/// Where plain HTTP is served.
const HTTP_PORT: u16 = 80;

/// Where HTTPS is served.
const HTTPS_PORT: u16 = 443;

/// Which core runs the kernel's receive side (RPS). A veth hands a packet over on the core that
/// sent it, so the client's TCP runs on the server's core, and the kernel server's ACK processing,
/// which is what makes it send, on the client's: `core-s/GB` leaves that out, `all cores` does not.
/// Two machines do not do each other's work, but the inter-processor interrupts that part them cost
/// a virtual machine more than the work does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Steering {
    /// Its own: the server's host on the server's core, the client's on the client's
    Own,
    /// The kernel's default on a veth: the sender's
    Sender,
    /// The server's host's on the server's core, the client's as by default: what a middlebox in
    /// the client's namespace needs (its thread would otherwise do the server's TCP)
    Server,
}

/// A server that takes its turn.
#[derive(Clone, Debug)]
pub(super) enum Contender {
    /// `atlas serve`.
    Atlas(PathBuf),
    /// `atlas serve` of another build, to be compared with.
    AtlasBaseline(PathBuf),
    /// `atlas-emulate`: TLS's sealing without TLS.
    AtlasEmulated(PathBuf),
    /// nginx, sending files in one of its ways.
    Nginx(NginxMode),
    /// Another server of our day.
    Peer(Peer),
}

impl Contender {
    /// Atlas's name in reports.
    pub(super) const ATLAS: &str = "atlas";
    /// The name in reports of the other build of Atlas.
    pub(super) const ATLAS_BASELINE: &str = "atlas-baseline";
    /// The name in reports of Atlas emulating TLS.
    pub(super) const ATLAS_EMULATED: &str = "atlas-emulated";

    /// What reports call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Atlas(_) => Self::ATLAS,
            Self::AtlasBaseline(_) => Self::ATLAS_BASELINE,
            Self::AtlasEmulated(_) => Self::ATLAS_EMULATED,
            Self::Nginx(mode) => mode.name(),
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Whether it is measured against the others.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Atlas(_) | Self::AtlasEmulated(_))
    }

    /// The server of a name; `None`: no such name.
    pub(super) fn find(name: &str, atlas: &Path) -> Option<Self> {
        if name == Self::ATLAS {
            return Some(Self::Atlas(atlas.to_path_buf()));
        }
        NginxMode::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .map(Self::Nginx)
    }
}

/// Everything set up for the runs. Fields are undone in the order they stand here.
pub(super) struct Lab {
    pub(super) cable: Cable,
    /// What is served, and from which disk.
    pub(super) disk: ObjectDirectory,
    bench_disk: BenchDisk,
    /// What the servers shake hands with, if they do.
    credentials: Option<Credentials>,
    /// Whether nginx seals in the kernel.
    is_kernel_tls: bool,
    /// The machine's load averages before anything of ours ran: others' work counts as busy too.
    load_before: String,
    _undo: Undo,
}

impl Lab {
    /// The servers speak plain HTTP again.
    pub(super) fn without_tls(self) -> Self {
        Self {
            credentials: None,
            ..self
        }
    }

    /// Builds it, with up to `total_bytes` of objects of `object_bytes` each.
    pub(super) fn new(total_bytes: u64, object_bytes: u64, steering: Steering) -> Result<Self> {
        let load_before = fs::read_to_string("/proc/loadavg").context("reading the load")?;
        let load_before = load_before.trim().to_owned();
        let mut undo = Undo::default();
        let cable = Cable::new()?;
        tune_kernel_tcp(&mut undo, &cable)?;
        free_ports(&cable)?;
        steer(&cable, steering)?;
        eprintln!("making the bench disk");
        let bench_disk = BenchDisk::new(total_bytes, object_bytes, CLIENT_CORE)?;
        Ok(Self {
            cable,
            disk: bench_disk.directory.clone(),
            bench_disk,
            credentials: None,
            is_kernel_tls: false,
            load_before,
            _undo: undo,
        })
    }

    /// The servers serve another directory.
    pub(super) fn on(self, disk: ObjectDirectory) -> Self {
        Self { disk, ..self }
    }

    /// The disk in memory.
    pub(super) fn bench_disk(&self) -> &BenchDisk {
        &self.bench_disk
    }

    /// The servers speak TLS; nginx seals in the kernel if told so.
    pub(super) fn with_tls(self, credentials: Credentials, is_kernel_tls: bool) -> Self {
        Self {
            credentials: Some(credentials),
            is_kernel_tls,
            ..self
        }
    }

    /// Starts a server on its core; with `arguments`, separated by spaces, if it is the Atlas
    /// that is measured. A baseline gets none: it may not know them.
    pub(super) fn start(
        &self,
        contender: &Contender,
        arguments: &str,
    ) -> Result<(Server, SocketAddr)> {
        match contender {
            Contender::Atlas(binary) => self.start_atlas(binary, &["serve"], arguments),
            Contender::AtlasBaseline(binary) => self.start_atlas(binary, &["serve"], ""),
            Contender::AtlasEmulated(binary) => self.start_atlas(binary, &[], arguments),
            Contender::Nginx(mode) => {
                let address = SocketAddr::new(Cable::KERNEL_V4.parse()?, self.port());
                let tls = self.credentials.as_ref().map(|credentials| NginxTls {
                    identity: credentials.identity.clone(),
                    is_kernel_tls: self.is_kernel_tls,
                });
                let root = &self.disk.root;
                let config = NginxConfig::rival(*mode, root, address, tls.as_ref())?;
                let server = config.start(&self.cable.server, Some(SERVER_CORE))?;
                Ok((server, address))
            }
            Contender::Peer(peer) => {
                let address = SocketAddr::new(Cable::KERNEL_V4.parse()?, self.port());
                let identity = self
                    .credentials
                    .as_ref()
                    .map(|credentials| &credentials.identity);
                let server = peer.start(
                    &self.cable.server,
                    Some(SERVER_CORE),
                    &self.disk.root,
                    address,
                    identity,
                )?;
                Ok((server, address))
            }
        }
    }

    /// What the client is to trust, if the servers speak TLS.
    pub(super) fn authority(&self) -> Option<&Path> {
        let credentials = self.credentials.as_ref()?;
        Some(&credentials.authority)
    }

    fn start_atlas(
        &self,
        binary: &Path,
        command_words: &[&str],
        arguments: &str,
    ) -> Result<(Server, SocketAddr)> {
        let address = SocketAddr::new(Cable::ATLAS_V4.parse()?, self.port());
        let mut command = self.cable.server.command("taskset");
        command.args(["-c", &SERVER_CORE.to_string()]);
        command.arg(binary).args(command_words);
        command.arg(&self.disk.root);
        command.args(["--link", &format!("packet:{}", Cable::SERVER_INTERFACE)]);
        command.args(["--address", &format!("{}/24", Cable::ATLAS_V4)]);
        match &self.credentials {
            Some(credentials) => {
                command.args(["--http", "off", "--https", &HTTPS_PORT.to_string()]);
                command.arg("--cert").arg(&credentials.identity.certificate);
                command.arg("--key").arg(&credentials.identity.key);
            }
            None => {
                command.args(["--http", &HTTP_PORT.to_string()]);
            }
        }
        command.args(arguments.split_whitespace());
        Ok((Server::atlas(&mut command)?, address))
    }

    fn port(&self) -> u16 {
        if self.credentials.is_some() {
            HTTPS_PORT
        } else {
            HTTP_PORT
        }
    }

    /// What a report says of the machine and of what ran on it.
    pub(super) fn environment(&self, contenders: &[Contender]) -> Result<Vec<(String, String)>> {
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
            ("network", self.network()?),
            ("load before", self.load_before.clone()),
        ];
        let atlas = contenders.iter().find_map(|contender| match contender {
            Contender::Atlas(binary) | Contender::AtlasEmulated(binary) => Some(binary),
            Contender::AtlasBaseline(_) | Contender::Nginx(_) | Contender::Peer(_) => None,
        });
        if let Some(binary) = atlas {
            environment.push(("atlas", text(Command::new(binary).arg("--version"))));
        }
        if let Some(nginx) = nginx_program() {
            // nginx prints its version, and what OpenSSL it has, to stderr.
            let version = output(Command::new(nginx).arg("-V"), Duration::from_secs(10))?;
            let version = String::from_utf8_lossy(&version.stderr);
            let lines = version.lines().filter(|line| {
                line.starts_with("nginx version")
                    || (self.credentials.is_some() && line.contains("OpenSSL"))
            });
            environment.push(("nginx", lines.collect::<Vec<_>>().join(", ")));
        }
        let peers = contenders.iter().filter_map(|contender| match contender {
            Contender::Peer(peer) => Some(*peer),
            _ => None,
        });
        environment.extend(peers.map(|peer| (peer.name(), peer.version())));
        Ok(environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect())
    }

    fn network(&self) -> Result<String> {
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
        Ok(format!(
            "veth, offloads default, client's RPS mask {}, MTU {}, kernel TCP {}",
            next(),
            next(),
            next()
        ))
    }
}

/// Ends a server that has done its work; it must not have failed.
pub(super) fn stop(server: Server) -> Result<Stopped> {
    let stopped = server.stop()?;
    ensure!(
        stopped.status.success(),
        "the server ended with {}: {}",
        stopped.status,
        stopped.last_words()
    );
    Ok(stopped)
}

/// The hosts steered have their packets processed on their own core. Undone with the namespaces.
fn steer(cable: &Cable, steering: Steering) -> Result<()> {
    let ends = [
        (&cable.server, Cable::SERVER_INTERFACE, SERVER_CORE),
        (&cable.client, Cable::CLIENT_INTERFACE, CLIENT_CORE),
    ];
    let steered = match steering {
        Steering::Sender => 0,
        Steering::Server => 1,
        Steering::Own => ends.len(),
    };
    let ends = ends.into_iter().take(steered);
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

/// The same congestion control for every kernel TCP in the bench, whatever the host's default, and
/// no slow start after a pause, as who serves video from a kernel's TCP sets it: thousands of
/// connections pause while others have their turn (docs/decisions/0008-comparing.md).
fn tune_kernel_tcp(undo: &mut Undo, cable: &Cable) -> Result<()> {
    // A namespace may only choose among what the host allows.
    let allowed = Path::new("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let before = fs::read_to_string(allowed).context("reading the allowed congestion controls")?;
    if !before.split_whitespace().any(|name| name == "cubic") {
        undo.set(allowed, &format!("{} cubic", before.trim()))?;
    }
    for namespace in [&cable.server, &cable.client] {
        namespace.set("ipv4/tcp_congestion_control", "cubic")?;
        namespace.set("ipv4/tcp_slow_start_after_idle", "0")?;
        // Or connections of one turn would begin with what those before them learnt.
        namespace.set("ipv4/tcp_no_metrics_save", "1")?;
    }
    Ok(())
}

/// Ports for thousands of connections from one address, a second or at once, of a turn right behind
/// another. When most are taken the kernel looks for a free one for milliseconds, at each connect:
/// 16,000 connections then took half a minute to open, and servers tired of the first of them.
fn free_ports(cable: &Cable) -> Result<()> {
    cable.client.set("ipv4/tcp_tw_reuse", "1")?;
    cable.client.set("ipv4/ip_local_port_range", "1024 65535")
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
