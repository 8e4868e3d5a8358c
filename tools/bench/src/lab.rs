//! What every bench stands in: a network namespace for a TAP, a disk, servers pinned to one core and clients to
//! another.
//!
//! It refuses nothing the benches do not; each limit it has is a deadline.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use memory::traffic::MemoryTraffic;

use super::tls::{Credentials, is_kernel_tls_available};
use testbed::bench_disk::{BenchDisk, ObjectDirectory, Objects};
use testbed::namespace::{Namespace, VethPair};
use testbed::process::{output, run};
use testbed::raw_store::RawStore;
use testbed::rivals::{NginxConfig, NginxMode, NginxTls, Peer, nginx_program};
use testbed::server::Server;
use testbed::traffic_server::TrafficServer;
use testbed::undo::Undo;
use testbed::workspace_root;

/// The core servers are pinned to.
pub(crate) const SERVER_CORE: usize = 0;

/// The core the client is pinned to; the bench disk's copying goes there too.
pub(crate) const CLIENT_CORE: usize = 1;

/// Where the kernel keeps how many frames may wait for a core that works on what another received (RPS). A
/// NIC has no such queue: what its clients send is not to be lost in it.
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";

/// More than all connections of a turn send at once.
const BACKLOG_FRAMES: &str = "1000000";

/// Where plain HTTP is served.
const HTTP_PORT: u16 = 80;

/// Where HTTPS is served.
const HTTPS_PORT: u16 = 443;

/// A server that takes its turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    /// `atlas serve`.
    Atlas(PathBuf),
    /// `atlas serve` of another build, to be compared with.
    AtlasBaseline(PathBuf),
    /// nginx, sending files in one of its ways.
    Nginx(NginxMode),
    /// Another server of our day.
    Peer(Peer),
    /// Apache Traffic Server, from a cache on a raw disk.
    TrafficServer,
}

impl Contender {
    /// Atlas's name in reports.
    pub(crate) const ATLAS: &str = "atlas";
    /// The name in reports of the other build of Atlas.
    pub(crate) const ATLAS_BASELINE: &str = "atlas-baseline";

    /// What reports call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Atlas(_) => Self::ATLAS,
            Self::AtlasBaseline(_) => Self::ATLAS_BASELINE,
            Self::Nginx(mode) => mode.name(),
            Self::Peer(peer) => peer.name(),
            Self::TrafficServer => TrafficServer::NAME,
        }
    }

    /// Whether it is Atlas, of whatever build.
    pub(crate) fn is_atlas(&self) -> bool {
        matches!(self, Self::Atlas(_) | Self::AtlasBaseline(_))
    }

    /// Whether it is measured against the others.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Atlas(_))
    }

    /// The server of a name; `None`: no such name, or another build of Atlas.
    pub(crate) fn find(name: &str, atlas: &Path) -> Option<Self> {
        let nginx = NginxMode::ALL.map(Self::Nginx);
        let peers = Peer::ALL.map(Self::Peer);
        [Self::Atlas(atlas.to_path_buf()), Self::TrafficServer]
            .into_iter()
            .chain(nginx)
            .chain(peers)
            .find(|it| it.name() == name)
    }
}

/// Where a server of its kind serves: Atlas beside the kernel, all others on it.
pub(crate) fn address(contender: &Contender, is_tls: bool) -> Result<SocketAddr> {
    let port = if is_tls { HTTPS_PORT } else { HTTP_PORT };
    let host = if contender.is_atlas() {
        VethPair::ATLAS_V4
    } else {
        VethPair::KERNEL_V4
    };
    Ok(SocketAddr::new(host.parse()?, port))
}

/// Everything set up for the runs. Fields are undone in the order they stand here.
pub(crate) struct Lab {
    /// Where the TAP of `atlas-bench wire` is, [`VethPair::SERVER_INTERFACE`].
    pub(crate) wire: Namespace,
    /// Apache Traffic Server's cache, if it was asked for.
    traffic_server: Option<TrafficServer>,
    /// What Atlas serves instead of the directory, if it was asked for.
    raw_store: Option<RawStore>,
    bench_disk: BenchDisk,
    /// The servers' certificate and key, and the authority that clients trust.
    credentials: Credentials,
    /// The machine's load averages before anything of ours ran: others' work counts as busy too.
    load_before: String,
    _undo: Undo,
}

impl Lab {
    /// Builds it, with up to `total_bytes` of objects of `object_bytes` each, each `copies` times.
    pub(crate) fn new(
        (total_bytes, object_bytes, copies): (u64, u64, u64),
        credentials: Credentials,
    ) -> Result<Self> {
        let load_before = load()?;
        let mut undo = Undo::default();
        let wire = Namespace::new("w")?;
        allow_cubic(&mut undo)?;
        undo.set(Path::new(BACKLOG), BACKLOG_FRAMES)?;
        tune_kernel_tcp(&wire)?;
        eprintln!("making the bench disk");
        let bench_disk = BenchDisk::new(total_bytes, object_bytes, copies, CLIENT_CORE)?;
        Ok(Self {
            wire,
            traffic_server: None,
            raw_store: None,
            bench_disk,
            credentials,
            load_before,
            _undo: undo,
        })
    }

    /// What is served, and from which disk.
    pub(crate) fn disk(&self) -> &ObjectDirectory {
        &self.bench_disk.directory
    }

    /// Gives Apache Traffic Server a device for so many bytes of the first objects.
    pub(crate) fn make_traffic_server(&mut self, bytes: u64) -> Result<()> {
        let identity = &self.credentials.identity;
        let made = TrafficServer::new(&mut self.bench_disk, bytes, identity)?;
        self.traffic_server = Some(made);
        Ok(())
    }

    /// Has Atlas serve a raw store of so many bytes of the first objects, made by the program `atlas`.
    pub(crate) fn make_raw_store(&mut self, bytes: u64, atlas: &Path) -> Result<()> {
        eprintln!("making the raw store");
        self.raw_store = Some(RawStore::new(&mut self.bench_disk, bytes, atlas)?);
        Ok(())
    }

    /// What a server can serve, and the name of the block device it serves from.
    pub(crate) fn storage(&self, contender: &Contender) -> Result<(Objects, &str)> {
        if let (true, Some(store)) = (contender.is_ours(), &self.raw_store) {
            return Ok((store.objects, &store.device));
        }
        if *contender == Contender::TrafficServer {
            let made = self.traffic_server.as_ref();
            let made = made.context("it has no device for its cache")?;
            return Ok((made.objects, &made.device));
        }
        let disk = self.disk();
        Ok((disk.objects, &disk.device))
    }

    /// Whether the kernel has no cache of what a server reads: it may be asked for an object twice, and
    /// reads it twice.
    pub(crate) fn has_raw_device(&self, contender: &Contender) -> bool {
        *contender == Contender::TrafficServer || contender.is_ours() && self.raw_store.is_some()
    }

    /// What Atlas is told to serve.
    pub(crate) fn content(&self, contender: &Contender) -> PathBuf {
        match &self.raw_store {
            Some(store) if contender.is_ours() => Path::new("/dev").join(&store.device),
            _ => self.disk().root.clone(),
        }
    }

    /// Starts a server on its core, over TLS on port 443 or in plain HTTP on port 80; with `arguments`, separated by spaces, if it is
    /// Atlas.
    pub(crate) fn start(
        &self,
        contender: &Contender,
        is_tls: bool,
        arguments: &str,
    ) -> Result<Server> {
        let at = address(contender, is_tls)?;
        let identity = is_tls.then_some(&self.credentials.identity);
        let (namespace, root) = (&self.wire, &self.disk().root);
        let core = Some(SERVER_CORE);
        match contender {
            Contender::Atlas(binary) | Contender::AtlasBaseline(binary) => {
                let content = self.content(contender);
                self.start_atlas(at, is_tls, binary, (&content, arguments))
            }
            Contender::Nginx(mode) => {
                let tls = identity.map(|identity| NginxTls {
                    identity: identity.clone(),
                    is_kernel_tls: is_kernel_tls_available(),
                });
                NginxConfig::rival(*mode, root, at, tls.as_ref())?.start(namespace, core)
            }
            Contender::Peer(peer) => peer.start(namespace, core, root, at, identity),
            Contender::TrafficServer => {
                let cache = self.traffic_server.as_ref();
                let cache = cache.context("it has no device for its cache")?;
                cache.start(namespace, core, at, is_tls)
            }
        }
    }

    /// What the client is to trust.
    pub(crate) fn authority(&self) -> &Path {
        &self.credentials.authority
    }

    fn start_atlas(
        &self,
        address: SocketAddr,
        is_tls: bool,
        binary: &Path,
        (content, arguments): (&Path, &str),
    ) -> Result<Server> {
        let mut command = self.wire.command("taskset");
        command.args(["-c", &SERVER_CORE.to_string()]);
        command.arg(binary).arg("serve").arg(content);
        if !arguments.contains("--link ") {
            command.args(["--link", &format!("packet:{}", VethPair::SERVER_INTERFACE)]);
        }
        command.args(["--address", &format!("{}/16", address.ip())]);
        let port = address.port().to_string();
        if is_tls {
            command.args(["--http", "off", "--https", &port]);
            let identity = &self.credentials.identity;
            command.arg("--cert").arg(&identity.certificate);
            command.arg("--key").arg(&identity.key);
        } else {
            command.args(["--http", &port]);
        }
        command.args(arguments.split_whitespace());
        Server::atlas(&mut command)
    }

    /// What a report says of the machine and of what ran on it.
    pub(crate) fn environment(&self, contenders: &[Contender]) -> Result<Vec<(String, String)>> {
        let atlas = contenders.iter().find_map(|contender| match contender {
            Contender::Atlas(binary) => Some(&**binary),
            _ => None,
        });
        let mut environment = vec![
            (
                "cores",
                format!("server {SERVER_CORE}, client and disk {CLIENT_CORE}"),
            ),
            (
                "network",
                "a TAP, see bench/README.md; kernel TCP cubic".to_owned(),
            ),
        ];
        if let Some(nginx) = nginx_program() {
            // nginx prints its version, and what OpenSSL it has, to stderr.
            let version = output(Command::new(nginx).arg("-V"), Duration::from_secs(10))?;
            let version = String::from_utf8_lossy(&version.stderr);
            let lines = version
                .lines()
                .filter(|line| line.starts_with("nginx version") || line.contains("OpenSSL"));
            environment.push(("nginx", lines.collect::<Vec<_>>().join(", ")));
        }
        let peers = contenders.iter().filter_map(|contender| match contender {
            Contender::Peer(peer) => Some(*peer),
            _ => None,
        });
        environment.extend(peers.map(|peer| (peer.name(), peer.version())));
        if let Some(store) = &self.raw_store {
            let count = store.objects.count;
            environment.push((
                "atlas serves",
                format!("{count} of the objects from a raw store, without a file system, each several times"),
            ));
        }
        if self.traffic_server.is_some() {
            environment.push((TrafficServer::NAME, TrafficServer::version()));
        }
        let mut all = machine(&self.load_before, atlas)?;
        all.extend(
            environment
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        Ok(all)
    }
}

/// What a program says, in one piece; it may be missing.
fn text_of(command: &mut Command) -> String {
    run(command).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The commit of the tree, and whether it has changes.
fn commit() -> String {
    let root = workspace_root();
    let git =
        |arguments: &[&str]| text_of(Command::new("git").arg("-C").arg(&root).args(arguments));
    let changed = if git(&["status", "--porcelain"]).is_empty() {
        ""
    } else {
        " + changes"
    };
    git(&["rev-parse", "--short=12", "HEAD"]) + changed
}

/// The machine's load averages.
pub(crate) fn load() -> Result<String> {
    let load = fs::read_to_string("/proc/loadavg").context("reading the load")?;
    Ok(load.trim().to_owned())
}

/// What every report says of the machine, and of the Atlas that ran on it.
pub(crate) fn machine(load_before: &str, atlas: Option<&Path>) -> Result<Vec<(String, String)>> {
    let cores = std::thread::available_parallelism()?.get();
    let version = |atlas| text_of(Command::new(atlas).arg("--version"));
    let counters = MemoryTraffic::open(Path::new("/"));
    let machine = [
        (
            "date",
            text_of(Command::new("date").args(["-u", "+%F %R UTC"])),
        ),
        ("commit", commit()),
        ("kernel", text_of(Command::new("uname").arg("-sr"))),
        ("processor", format!("{}, {cores} cores", processor()?)),
        (
            "memory counters",
            counters.map_or_else(|reason| reason, |found| found.count().to_string()),
        ),
        ("load before", load_before.to_owned()),
        ("atlas", atlas.map_or_else(String::new, version)),
    ];
    let machine = machine.into_iter().filter(|(_, value)| !value.is_empty());
    Ok(machine
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

/// What to type to do this again, from the top of the tree.
pub(crate) fn command_line() -> String {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    format!("cargo xtask {}", arguments.join(" "))
}

/// The same congestion control for every kernel TCP in the bench, whatever the host's default, and
/// no slow start after a pause, as who serves video from a kernel's TCP sets it: thousands of
/// connections pause while others have their turn (docs/develop/decisions/0008-comparing.md).
fn tune_kernel_tcp(namespace: &Namespace) -> Result<()> {
    namespace.set("ipv4/tcp_congestion_control", "cubic")?;
    namespace.set("ipv4/tcp_slow_start_after_idle", "0")?;
    // Or connections of one turn would begin with what those before them learnt.
    namespace.set("ipv4/tcp_no_metrics_save", "1")
}

/// A namespace may only choose among what the host allows.
fn allow_cubic(undo: &mut Undo) -> Result<()> {
    let allowed = Path::new("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let before = fs::read_to_string(allowed).context("reading the allowed congestion controls")?;
    if before.split_whitespace().any(|name| name == "cubic") {
        return Ok(());
    }
    undo.set(allowed, &format!("{} cubic", before.trim()))
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
