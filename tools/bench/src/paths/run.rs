//! One run: a path, its senders, a client for each, and what came of it.
//!
//! It refuses nothing; whether a run counts is for [`super::results`] to say. Bounded by: the seconds
//! of its task, and the limits of starting and connecting.

use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};
use bottleneck::Path;

use super::client::{Download, connect, download};
use super::linux_sender::LinuxSender;
use super::plan::{Cell, Sender, Stack, Task};
use super::results::{Flow, Measured, rounded};
use crate::stored::float;
use testbed::certificate::{Authority, IdentityFiles, KeyKind};
use testbed::client::{Stream, Trust};
use testbed::namespace::{Namespace, VethPair};
use testbed::server::Server;
use testbed::{process, scratch_directory};

/// What is asked for.
pub(crate) const OBJECT: &str = "object.bin";

/// More than a run can take: 60 s at the rate are 375 MB.
pub(crate) const OBJECT_BYTES: u64 = 4 << 30;

/// Where everything is served, over TLS as well.
const PORT: u16 = 80;

/// `SCHED_FIFO` priority of Atlas, below the middlebox's: as on a core of its own. Linux's TCP runs in
/// the middlebox's thread, where the kernel processes what it receives.
const PRIORITY: &str = "20";

/// Room for the window of the longest path with its largest buffer, twice: neither the client's window
/// nor the sender's buffer is to be what a run measures. Least, first and greatest, bytes.
const BUFFERS: &str = "4096 131072 67108864";

/// What all runs share.
#[derive(Debug)]
pub(crate) struct Runner {
    atlas: PathBuf,
    /// Whether a process may run ahead of others here.
    is_realtime: bool,
    /// What is served.
    root: tempfile::TempDir,
    /// Configurations of Atlas, its certificate and key.
    configs: tempfile::TempDir,
    identity: IdentityFiles,
    trust: Trust,
}

impl Runner {
    pub(crate) fn new(atlas: &FilePath) -> Result<Self> {
        let root = scratch_directory("paths")?;
        super::make_object(root.path())?;
        let mut chrt = Command::new("chrt");
        let is_realtime = process::run(chrt.args(["--fifo", PRIORITY, "true"])).is_ok();
        let configs = scratch_directory("paths-config")?;
        let authority = Authority::new()?;
        let identity = authority.issue(KeyKind::Ecdsa, &[VethPair::ATLAS_V4])?;
        Ok(Self {
            atlas: atlas.to_path_buf(),
            is_realtime,
            root,
            identity: identity.write(configs.path(), "atlas")?,
            trust: Trust::new(&authority.pem())?,
            configs,
        })
    }

    /// Makes a run.
    pub(crate) fn run(&self, task: &Task) -> Result<Measured> {
        let path = Path::new(&task.path())?;
        for namespace in [&path.server, &path.client] {
            set_up_tcp(namespace)?;
        }
        let mut atlas = None;
        let mut linux = None;
        let mut servers = Vec::new();
        for sender in &task.senders {
            let address = match sender.stack {
                Stack::Atlas | Stack::AtlasTls => {
                    if atlas.is_none() {
                        atlas = Some(self.start_atlas(&path.server, sender)?);
                    }
                    SocketAddr::new(VethPair::ATLAS_V4.parse()?, PORT)
                }
                Stack::Linux => {
                    if linux.is_none() {
                        let at = SocketAddr::new(VethPair::KERNEL_V4.parse()?, PORT);
                        let sender = LinuxSender::start(&path.server, at, &sender.control)?;
                        linux = Some(sender);
                    }
                    let linux = linux.as_ref().context("invariant: just started")?;
                    linux.address()
                }
            };
            let trust = (sender.stack == Stack::AtlasTls).then_some(&self.trust);
            servers.push((address, trust));
        }
        servers.rotate_left(task.first);
        let mut downloads = download_all(&path.client, &servers, task.seconds)?;
        downloads.rotate_right(task.first);
        drop(linux);
        if let Some(server) = atlas {
            server.stop()?;
        }
        let report = path.close()?;
        let flows = task.senders.iter().zip(&downloads);
        let flows = flows.map(|(sender, download)| Flow::new(sender, download, &report));
        Ok(Measured {
            flows: flows.collect::<Result<_>>()?,
            path: (&report).into(),
        })
    }

    fn start_atlas(&self, namespace: &Namespace, sender: &Sender) -> Result<Server> {
        let config = self.configs.path().join(format!("{sender}.toml"));
        // Nobody else is in the namespace, and no client is left when it ends.
        let text = format!(
            "congestion_control = \"{}\"\naddress_check = false\nshutdown_grace_seconds = 0\n",
            sender.control
        );
        // Written anew by each run, in one step: another run may be reading it.
        let mut new = tempfile::NamedTempFile::new_in(self.configs.path())?;
        std::io::Write::write_all(&mut new, text.as_bytes())?;
        new.persist(&config).context("writing a configuration")?;
        let mut command = if self.is_realtime {
            let mut command = namespace.command("chrt");
            command.args(["--fifo", PRIORITY]);
            command
        } else {
            namespace.command("env")
        };
        command.arg(&self.atlas).arg("serve").arg(self.root.path());
        command.args(["--link", &format!("packet:{}", VethPair::SERVER_INTERFACE)]);
        command.args(["--address", &format!("{}/24", VethPair::ATLAS_V4)]);
        if sender.stack == Stack::AtlasTls {
            command.args(["--http", "off", "--https", &PORT.to_string()]);
            command.arg("--cert").arg(&self.identity.certificate);
            command.arg("--key").arg(&self.identity.key);
        } else {
            command.args(["--http", &PORT.to_string()]);
        }
        command.arg("--config").arg(&config);
        Server::atlas(&mut command)
    }
}

/// A client for each server, over TLS where it is said whom to trust. All send their requests at once, one right after the other, when
/// all handshakes are complete.
fn download_all(
    namespace: &Namespace,
    servers: &[(SocketAddr, Option<&Trust>)],
    seconds: u64,
) -> Result<Vec<Download>> {
    let open = |(server, trust): &(SocketAddr, Option<&Trust>)| {
        namespace.enter(|| connect(*server, *trust))
    };
    let streams: Vec<Stream> = servers.iter().map(open).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let start = |stream| scope.spawn(move || download(stream, OBJECT, seconds));
        let threads: Vec<_> = streams.into_iter().map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .map_err(|_| anyhow!("a client's thread panicked"))?
        });
        joined.collect()
    })
}

/// Buffers above every window, and nothing learnt for the next connection.
fn set_up_tcp(namespace: &Namespace) -> Result<()> {
    namespace.set("ipv4/tcp_rmem", BUFFERS)?;
    namespace.set("ipv4/tcp_wmem", BUFFERS)?;
    namespace.set("ipv4/tcp_no_metrics_save", "1")
}

impl Flow {
    /// What a client got, and what the middlebox saw of its connection.
    fn new(
        sender: &Sender,
        download: &Download,
        report: &bottleneck::path::Report,
    ) -> Result<Self> {
        let flows = report.counts.flows.iter();
        let seen = flows
            .filter(|it| it.to.port() == download.port)
            .max_by_key(|it| it.sent_bytes)
            .with_context(|| format!("the middlebox saw no bytes of {sender}"))?;
        Ok(Self {
            bytes: download.bytes,
            seconds: rounded(download.seconds),
            sent_bytes: seen.sent_bytes,
            resent_bytes: seen.resent_bytes,
            pause_us_max: seen.pause_us_max,
        })
    }
}

impl Cell {
    /// Goodput as a share of the rate.
    pub(crate) fn share(bytes: u64, seconds: f64) -> f64 {
        float(bytes) * 8.0 / seconds.max(f64::MIN_POSITIVE) / float(super::plan::RATE_BITS)
    }
}
