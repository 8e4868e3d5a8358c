//! Apache Traffic Server, the cache that content delivery networks run from raw disks.
//!
//! It serves out of a cache of its own on a raw device of the bench disk, which is filled from an
//! origin before each start's clients come. It keeps nothing in memory, so what it serves comes from
//! the disk however often it is asked for. Its configuration is under `bench/rivals/trafficserver`.
//! It refuses to start where an object did not come out of its cache. Bounded by: a deadline for
//! filling it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::bench_disk::{BenchDisk, Objects};
use super::certificate::IdentityFiles;
use super::client::Client;
use super::namespace::Namespace;
use super::rivals::{NginxConfig, Template};
use super::server::Server;
use super::{find_program, interrupt, scratch_directory};

/// What is served while the cache is filled.
const ORIGIN: &str = "127.0.0.1:8081";

/// Room on the device beside the objects: its directory, and what a cache wastes.
const SPARE_BYTES: u64 = 256 << 20;

/// Longest time filling may take.
const FILL_LIMIT: Duration = Duration::from_secs(120);

/// Longest time from its first open port to its last.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Files of its configuration.
const FILES: [&str; 5] = [
    "records.config",
    "remap.config",
    "storage.config",
    "ssl_multicert.config",
    "ip_allow.yaml",
];

/// A device for its cache and what is to be in it.
#[derive(Debug)]
pub struct TrafficServer {
    /// The name of its block device, without `/dev/`.
    pub device: String,
    /// What it holds, the first objects of the bench disk.
    pub objects: Objects,
    root: std::path::PathBuf,
    identity: IdentityFiles,
}

impl TrafficServer {
    /// What reports call it.
    pub const NAME: &str = "trafficserver";

    /// Makes room for so many bytes of a disk's objects.
    ///
    /// # Errors
    /// It is not installed; no device.
    pub fn new(disk: &mut BenchDisk, bytes: u64, identity: &IdentityFiles) -> Result<Self> {
        find_program("traffic_server").context("trafficserver is not installed")?;
        let all = disk.directory.objects;
        let objects = Objects {
            count: (bytes / all.bytes).clamp(1, all.count),
            copies: 1,
            ..all
        };
        let device = disk.raw_device(objects.count * objects.bytes + SPARE_BYTES)?;
        Ok(Self {
            device,
            objects,
            root: disk.directory.root.clone(),
            identity: identity.clone(),
        })
    }

    /// Its version.
    #[must_use]
    pub fn version() -> String {
        let mut command = std::process::Command::new("traffic_server");
        let text = super::process::run(command.arg("--version")).unwrap_or_default();
        let mut lines = text.lines().map(str::trim);
        let line = lines.find(|line| line.contains("Traffic Server"));
        line.unwrap_or("unknown").to_owned()
    }

    /// Starts it on one core if asked, fills its cache, and shows that the origin is not needed.
    ///
    /// # Errors
    /// It does not start, or an object is not in its cache.
    pub fn start(
        &self,
        namespace: &Namespace,
        core: Option<usize>,
        address: SocketAddr,
        is_tls: bool,
    ) -> Result<Server> {
        let program = find_program("traffic_server").context("trafficserver is not installed")?;
        let directory = scratch_directory(Self::NAME)?;
        let at = directory.path();
        for name in ["etc", "run", "log", "cache"] {
            fs::create_dir(at.join(name))?;
        }
        // The origin and the port it is filled through are plain HTTP on loopback.
        let fill = SocketAddr::from(([127, 0, 0, 1], 8082));
        let listen = format!("{address}{} {fill}", if is_tls { ":ssl" } else { "" });
        for (name, to) in FILES
            .map(|name| (name, at.join("etc").join(name)))
            .into_iter()
            .chain([("runroot.yaml", at.join("runroot.yaml"))])
        {
            let text = self.configuration(name, at, &listen)?;
            fs::write(&to, text).with_context(|| format!("writing {}", to.display()))?;
        }
        let origin = NginxConfig::reference(&self.root, ORIGIN.parse()?)?;
        let origin = origin.start(namespace, None)?;
        let arguments = [
            "--clear_cache".into(),
            format!("--run-root={}", at.join("runroot.yaml").display()).into(),
        ];
        let program = (program.as_path(), arguments.as_slice());
        let place = (directory, address);
        let server = Server::listening(Self::NAME, namespace, core, program, place)?;
        self.fill(namespace, fill)?;
        // What is missing from now on is an error, not a fetch.
        drop(origin);
        self.show_all(namespace, fill)?;
        Ok(server)
    }

    /// Has every object fetched once.
    fn fill(&self, namespace: &Namespace, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + FILL_LIMIT;
        let open_until = Instant::now() + OPEN_LIMIT;
        // Its ports do not open all at once.
        let mut client = loop {
            match Client::connect(namespace, address) {
                Ok(client) => break client,
                Err(error) if Instant::now() >= open_until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            interrupt::check()?;
        };
        for index in 0..self.objects.count {
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "its cache is not filled in time");
            let path = self.objects.path(index);
            let (head, body) = client.exchange("GET", &path, "")?;
            ensure!(
                head.status == 200 && body.len() as u64 == self.objects.bytes,
                "filling its cache: {} with {} bytes",
                head.status,
                body.len()
            );
        }
        Ok(())
    }

    /// Shows that every object is in the cache: nothing answers for the origin any more.
    fn show_all(&self, namespace: &Namespace, address: SocketAddr) -> Result<()> {
        let mut client = Client::connect(namespace, address)?;
        for index in 0..self.objects.count {
            interrupt::check()?;
            let path = self.objects.path(index);
            let (head, _) = client.exchange("HEAD", &path, "")?;
            ensure!(
                head.status == 200,
                "its cache does not hold {path}: {}",
                head.status
            );
        }
        Ok(())
    }

    fn configuration(&self, name: &str, directory: &Path, listen: &str) -> Result<String> {
        let mut template = Template::read(&format!("trafficserver/{name}"))?;
        template.set("DIRECTORY", &directory.display().to_string());
        template.set("LISTEN", listen);
        template.set("ORIGIN", ORIGIN);
        template.set("DEVICE", &format!("/dev/{}", self.device));
        template.set_identity(&self.identity);
        template.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_files_have_nothing_left_to_fill_in() {
        let server = TrafficServer {
            device: "loop7".to_owned(),
            objects: Objects {
                count: 1,
                bytes: 4096,
                copies: 1,
            },
            root: "/root".into(),
            identity: IdentityFiles {
                certificate: "/c.pem".into(),
                key: "/k.pem".into(),
            },
        };
        let mut all = String::new();
        for name in FILES.into_iter().chain(["runroot.yaml"]) {
            all += &server
                .configuration(name, Path::new("/at"), "10.0.0.1:443:ssl")
                .expect(name);
        }
        for word in ["/dev/loop7", "10.0.0.1:443:ssl", "/c.pem", "/k.pem", ORIGIN] {
            assert!(all.contains(word), "{word}");
        }
    }
}
