//! The stage: a bridge in a namespace, where origin, registry, steering and viewers are, and a namespace for each edge.
//!
//! | Address | Is |
//! |---|---|
//! | 10.78.0.1 | etcd, the steering, moto |
//! | 10.78.0.2 | the origin's public name |
//! | 10.78.1.N | the kernel of edge N: filler, publisher, or a rival's cache |
//! | 10.78.2.N | Atlas on edge N |

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use testbed::client::Client;
use testbed::namespace::Namespace;
use testbed::scratch_directory;
use testbed::server::Server;
use testbed::{interrupt, process};

use crate::library::{self, Object};
use crate::origin::Origin;
use crate::viewer::STEERING;

/// Edges that there is room for.
pub(crate) const EDGES_MAX: usize = 4;

/// Where etcd answers, and where its only member listens for others.
const ETCD: &str = "http://10.78.0.1:2379";
const ETCD_PEER: &str = "http://10.78.0.1:2380";

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The programs of this workspace.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) atlas: PathBuf,
    pub(crate) fill: PathBuf,
    pub(crate) steer: PathBuf,
}

/// The stage. Servers end before the namespaces that they are in.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) origin: Origin,
    pub(crate) programs: Programs,
    /// Plain objects, and long ones.
    pub(crate) objects: Vec<Object>,
    pub(crate) long: Vec<Object>,
    /// Bytes of the films.
    pub(crate) film_bytes: u64,
    pub(crate) edges: Vec<Namespace>,
    pub(crate) core: Namespace,
}

impl Stage {
    /// Makes it, with an origin that has so many plain objects.
    pub(crate) fn new(programs: Programs, python: &Path, objects: u64) -> Result<Self> {
        let core = Namespace::new("fleet")?;
        core.ip("link add net0 type bridge")?;
        core.bring_up("net0", &["10.78.0.1/16", "10.78.0.2/16"])?;
        let mut edges = Vec::new();
        for number in 1..=EDGES_MAX {
            let edge = Namespace::new("edge")?;
            let name = edge.name();
            core.ip(&format!(
                "link add e{number} type veth peer name wire0 netns {name}"
            ))?;
            core.ip(&format!("link set e{number} master net0 up"))?;
            edge.bring_up("wire0", &[&format!("10.78.1.{number}/16")])?;
            edges.push(edge);
        }
        let origin = Origin::start(&core, python)?;
        let folder = scratch_directory("films")?;
        let films = library::make_films(
            folder.path(),
            "http://10.78.0.2",
            &format!("http://{STEERING}"),
        )?;
        origin.upload_files(&core, folder.path(), &films)?;
        let sizes = films.iter().map(|it| Ok(fs::metadata(it)?.len()));
        let film_bytes = sizes.sum::<Result<_>>()?;
        let stage = Self {
            film_bytes,
            origin,
            programs,
            objects: library::plain(objects),
            long: library::long(),
            edges,
            core,
        };
        stage.origin.upload(&stage.core, &stage.objects)?;
        stage.origin.upload(&stage.core, &stage.long)?;
        Ok(stage)
    }

    /// Bytes of all plain objects.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.objects.iter().map(|it| it.content.size_bytes).sum()
    }

    /// Starts a registry that is a real etcd, empty.
    pub(crate) fn start_etcd(&self) -> Result<Server> {
        let directory = scratch_directory("etcd")?;
        let data = directory.path().join("data");
        let cluster = format!("one={ETCD_PEER}");
        let arguments = [
            ["--name", "one"],
            ["--data-dir", &data.to_string_lossy()],
            ["--listen-client-urls", ETCD],
            ["--advertise-client-urls", ETCD],
            ["--listen-peer-urls", ETCD_PEER],
            ["--initial-advertise-peer-urls", ETCD_PEER],
            ["--initial-cluster", &cluster],
        ];
        let arguments: Vec<_> = arguments
            .as_flattened()
            .iter()
            .map(OsString::from)
            .collect();
        let program = testbed::find_program("etcd").context("etcd is not installed")?;
        let address = ETCD.trim_start_matches("http://").parse()?;
        let place = (directory, address);
        let program = (program.as_path(), &arguments[..]);
        Server::listening("etcd", &self.core, None, program, place)
    }

    /// Starts the steering by a registry, as its settings have it.
    pub(crate) fn start_steering(&self, registry: &str) -> Result<Server> {
        let directory = scratch_directory("steer")?;
        let file = directory.path().join("steer.toml");
        fs::write(&file, steer_settings(registry))?;
        let arguments = ["serve".into(), file.into_os_string()];
        let program = (self.programs.steer.as_path(), &arguments[..]);
        let place = (directory, STEERING.parse()?);
        Server::listening("atlas-steer", &self.core, None, program, place)
    }

    /// Waits until the steering names these edges for a path, in whichever order.
    pub(crate) fn await_members(&self, wanted: &[usize]) -> Result<()> {
        let mut wanted: Vec<String> = wanted.iter().map(|it| format!("edge-{it}")).collect();
        wanted.sort();
        await_true(&format!("members {wanted:?}"), || {
            let mut told = self.resolve("o/none")?;
            told.sort();
            Ok(told == wanted)
        })
    }

    /// The names of the edges that the steering tells for a path, the best first.
    pub(crate) fn resolve(&self, name: &str) -> Result<Vec<String>> {
        let target = format!("/resolve?path=/{name}");
        let body = get(&self.core, STEERING.parse()?, &target)?;
        let told: serde_json::Value = serde_json::from_str(&body)?;
        let edges = told["edges"].as_array().context("no edges")?;
        let names = edges.iter().map(|edge| edge["name"].as_str());
        let names: Option<Vec<_>> = names.map(|it| it.map(str::to_owned)).collect();
        names.context("an edge without a name")
    }
}

/// Settings that are the same for all.
pub(crate) fn steer_settings(registry: &str) -> String {
    format!(
        "[registry]\n{registry}\n[layout]\ncopies = 1\ntitle_components = 2\n\
         [[layout.rules]]\nprefix = \"/films\"\ncopies = 3\n\
         [[layout.rules]]\nprefix = \"/long\"\ncopies = 3\n\
         [steer]\nlisten = \"{STEERING}\"\nttl_seconds = {TTL_SECONDS}\norigin = \"http://10.78.0.2\"\n\
         [write]\nsettle_seconds = 3\n"
    )
}

/// After so many seconds players ask the steering again.
pub(crate) const TTL_SECONDS: u64 = 2;

/// The registry of a fleet of Atlas.
pub(crate) fn etcd_registry() -> String {
    format!("kind = \"etcd\"\nendpoints = [\"{ETCD}\"]")
}

/// The body of a reply, which must be 200.
pub(crate) fn get(namespace: &Namespace, address: SocketAddr, target: &str) -> Result<String> {
    let mut client = Client::connect(namespace, address)?;
    let (head, body) = client.exchange("GET", target, "Connection: close\r\n")?;
    if head.status != 200 {
        bail!("{target}: {}", head.status);
    }
    Ok(String::from_utf8(body)?)
}

/// Waits for something that another process does; an error of a question is asked again.
pub(crate) fn await_true(what: &str, mut is_true: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        interrupt::check()?;
        let last = is_true();
        if matches!(last, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("not in {} s: {what} ({last:?})", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A process's resident memory and its peak in KiB, and its threads.
pub(crate) fn memory_of(id: u32) -> Result<[u64; 3]> {
    let text = fs::read_to_string(format!("/proc/{id}/status"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|it| it.strip_prefix(name));
        let number = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no {name} of {id}"))
    };
    Ok([field("VmRSS:")?, field("VmHWM:")?, field("Threads:")?])
}

/// Its children end with it, and so does what they started.
pub(crate) fn spawn_logged(
    name: &str,
    mut command: std::process::Command,
    log: &Path,
) -> Result<process::Process> {
    let file = fs::File::create(log)?;
    command.stdin(std::process::Stdio::null());
    command.stderr(file.try_clone()?).stdout(file);
    process::Process::spawn(name, &mut command)
}
