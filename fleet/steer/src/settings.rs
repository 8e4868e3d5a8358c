//! The settings: a TOML file. What is wrong is told with its line.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use placement::{Layout, Member};
use registry::{EtcdSettings, PublishSettings, RegistrySettings};
use serde::Deserialize;

use crate::manifest::Form;
use crate::networks::{NetworkRule, Networks};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Who the edges are.
    pub registry: RegistrySettings,
    /// What is where.
    #[serde(default)]
    pub layout: Layout,
    /// How players are answered.
    #[serde(default)]
    pub steer: SteerSettings,
    /// Which zones the clients of a network prefer.
    #[serde(default)]
    pub network: Vec<NetworkRule>,
    /// Which files are written.
    #[serde(default)]
    pub write: WriteSettings,
    /// The edge to publish.
    #[serde(default)]
    pub publish: Option<PublishTable>,
}

/// How players are answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SteerSettings {
    /// Where requests are taken, plain HTTP.
    pub listen: SocketAddr,
    /// Seconds after which players ask again, 1 to 3600.
    pub ttl_seconds: u32,
    /// Most edges of an answer, 1 to 64.
    pub pathways_max: usize,
    /// The pathway (HLS) or service location (DASH) that playlists have.
    pub base_pathway: String,
    /// Where players ask next, with `{path}`; for manifests that are files, say.
    pub reload_uri: Option<String>,
    /// Where `/redirect` leads while no edge is known: a scheme and a host.
    pub origin: Option<String>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// Most connections, 1 to 1,000,000. More wait in the kernel's queue.
    pub connections_max: usize,
    /// How long a connection may take for a request's head, or be idle, in seconds: 1 to 3600.
    pub idle_timeout_seconds: u64,
    /// How long after SIGTERM it goes on, `/ready` 503, in seconds: 0 to 3600.
    pub shutdown_delay_seconds: u64,
}

impl Default for SteerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 8090)),
            ttl_seconds: 10,
            pathways_max: 4,
            base_pathway: ".".to_owned(),
            reload_uri: None,
            origin: None,
            trusted_proxies: Vec::new(),
            connections_max: 10_000,
            idle_timeout_seconds: 30,
            shutdown_delay_seconds: 0,
        }
    }
}

/// Which files are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriteSettings {
    /// A file of paths, one a line: each title's manifest is `DIR/TITLE/steering.json`. `DIR/steering.json`, for
    /// fleets whose edges all have everything, is written always.
    pub titles: Option<PathBuf>,
    /// For how long the members must be the same before another share of the library is written, in seconds: an edge
    /// that is restarted moves nothing.
    pub settle_seconds: u64,
}

impl Default for WriteSettings {
    fn default() -> Self {
        Self {
            titles: None,
            settle_seconds: 300,
        }
    }
}

/// The edge to publish.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishTable {
    /// Its name in the fleet, for life; without one, the host's.
    #[serde(default)]
    pub name: Option<String>,
    /// Where players reach it: a scheme, a host, perhaps a port.
    pub url: String,
    /// Its zone.
    #[serde(default)]
    pub zone: String,
    /// Its room for content.
    pub capacity_bytes: u64,
    /// `HOST:PORT` of the `--metrics` of its server.
    #[serde(default = "listener")]
    pub metrics: String,
    /// What it can send, bits a second.
    pub send_bits_a_second: u64,
    /// How long the entry outlives this process, in seconds: 2 to 3600.
    #[serde(default = "lease_seconds")]
    pub lease_seconds: u64,
}

fn listener() -> String {
    "127.0.0.1:9100".to_owned()
}

const fn lease_seconds() -> u64 {
    10
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong in it, with its line.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong in it, with its line.
    pub fn parse(text: &str) -> Result<Self> {
        let settings: Self = toml::from_str(text)?;
        let steer = &settings.steer;
        settings.layout.check().context("[layout]")?;
        Networks::new(&settings.network).context("[[network]]")?;
        let range = |name: &str, value: u64, least: u64, most: u64| {
            let is_right = (least..=most).contains(&value);
            ensure!(
                is_right,
                "[steer] {name} is {value}: {least} to {most} are possible"
            );
            Ok(())
        };
        range("ttl_seconds", steer.ttl_seconds.into(), 1, 3600)?;
        range("pathways_max", steer.pathways_max as u64, 1, 64)?;
        range(
            "connections_max",
            steer.connections_max as u64,
            1,
            1_000_000,
        )?;
        range("idle_timeout_seconds", steer.idle_timeout_seconds, 1, 3600)?;
        range(
            "shutdown_delay_seconds",
            steer.shutdown_delay_seconds,
            0,
            3600,
        )?;
        let settle = settings.write.settle_seconds;
        ensure!(
            settle <= 86_400,
            "[write] settle_seconds is {settle}: 0 to 86400 are possible"
        );
        let is_pathway = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let base = &steer.base_pathway;
        ensure!(
            !base.is_empty() && base.bytes().all(is_pathway),
            "[steer] base_pathway is {base:?}: letters, digits, '.', '-' and '_' are possible"
        );
        if let Some(origin) = &steer.origin {
            let edge = Member::new("origin", origin);
            edge.check().context("[steer] origin")?;
        }
        if let Some(table) = &settings.publish {
            table.publication()?;
        }
        Ok(settings)
    }

    /// What all manifests have.
    #[must_use]
    pub fn form(&self) -> Form {
        Form {
            ttl_seconds: self.steer.ttl_seconds,
            base_pathway: self.steer.base_pathway.clone(),
            reload_uri: self.steer.reload_uri.clone(),
        }
    }

    /// The edge to publish, and where.
    ///
    /// # Errors
    /// There is none, or it cannot be published.
    pub fn publication(&self) -> Result<(&EtcdSettings, PublishSettings)> {
        let Some(table) = &self.publish else {
            bail!("there is no [publish] in it");
        };
        let RegistrySettings::Etcd(etcd) = &self.registry else {
            bail!(
                "[publish] needs kind = \"etcd\" in [registry]: a file has its edges already, and so has Kubernetes"
            );
        };
        Ok((etcd, table.publication()?))
    }

    /// The edge that this runs beside: of `[publish]`, whatever the registry is.
    ///
    /// # Errors
    /// There is none.
    pub fn edge(&self) -> Result<Member> {
        let table = self.publish.as_ref();
        let table = table.context("there is no [publish] in it, which says who this edge is")?;
        Ok(table.publication()?.member)
    }
}

impl PublishTable {
    fn publication(&self) -> Result<PublishSettings> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        let member = Member {
            zone: self.zone.clone(),
            capacity_bytes: self.capacity_bytes,
            ..Member::new(name, &self.url)
        };
        member.check().context("[publish]")?;
        ensure!(
            (2..=3600).contains(&self.lease_seconds),
            "[publish] lease_seconds is {}: 2 to 3600 are possible",
            self.lease_seconds
        );
        ensure!(
            self.send_bits_a_second > 0,
            "[publish] send_bits_a_second is 0"
        );
        Ok(PublishSettings {
            member,
            listener: self.metrics.clone(),
            send_bits_a_second: self.send_bits_a_second,
            lease: Duration::from_secs(self.lease_seconds),
        })
    }
}

fn host_name() -> Result<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.context("[publish] name: none is given, and the host's cannot be read")?;
    Ok(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[registry]\nkind = \"file\"\npath = \"members.json\"\n";
    const ETCD: &str = "[registry]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:2379\"]\n";
    const EDGE: &str =
        "[publish]\nname = \"e\"\nurl = \"http://e\"\ncapacity_bytes = 1\nsend_bits_a_second = 1\n";

    #[test]
    fn a_registry_is_enough_and_everything_can_be_said() {
        let settings = Settings::parse(FILE).unwrap();
        assert_eq!(
            (settings.steer.ttl_seconds, settings.layout.copies),
            (10, 2)
        );
        assert!(settings.publication().is_err());
        let all = format!(
            "{ETCD}{EDGE}zone = \"fra\"\n[layout]\ncopies = 3\nby_zone = true\n[[layout.rules]]\nprefix = \"/live\"\ncopies = 9\n\
             [steer]\nlisten = \"[::1]:1\"\norigin = \"https://o.example\"\n\
             [[network]]\nnetworks = [\"10.0.0.0/8\"]\nzones = [\"fra\"]\n"
        );
        let settings = Settings::parse(&all).unwrap();
        let (etcd, edge) = settings.publication().unwrap();
        assert_eq!(
            (&etcd.prefix[..], &edge.member.zone[..]),
            ("/atlas/edges/", "fra")
        );
        assert_eq!(edge.lease.as_secs(), 10);
    }

    #[test]
    fn an_edge_of_a_file_is_one_and_is_not_published() {
        let settings = Settings::parse(&format!("{FILE}{EDGE}")).unwrap();
        assert_eq!(settings.edge().unwrap().name, "e");
        let error = settings.publication().unwrap_err().to_string();
        assert!(error.contains("needs kind = \"etcd\""), "{error}");
        assert!(Settings::parse(FILE).unwrap().edge().is_err());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, told) in [
            ("", "missing field `registry`"),
            (
                "[registry]\nkind = \"consul\"\n",
                "unknown variant `consul`",
            ),
            (&format!("{FILE}[steer]\nttl = 5\n"), "unknown field `ttl`"),
            (&format!("{FILE}[steer]\nttl_seconds = \"5\"\n"), "line 5"),
            (
                &format!("{FILE}[steer]\nttl_seconds = 0\n"),
                "[steer] ttl_seconds is 0: 1 to 3600",
            ),
            (
                &format!("{FILE}[steer]\nbase_pathway = \"a b\"\n"),
                "[steer] base_pathway",
            ),
            (
                &format!("{FILE}[steer]\norigin = \"o.example\"\n"),
                "[steer] origin",
            ),
            (
                &format!("{FILE}[layout]\ncopies = 0\n"),
                "[layout]: copies is 0",
            ),
            (
                &format!("{FILE}[[network]]\nnetworks = [\"10.0.0.1/8\"]\nzones = []\n"),
                "behind its prefix",
            ),
            (
                &format!("{FILE}[write]\nsettle_seconds = 86401\n"),
                "settle_seconds is 86401",
            ),
            (
                &format!("{ETCD}{EDGE}lease_seconds = 1\n"),
                "lease_seconds is 1: 2 to 3600",
            ),
            (
                &format!("{ETCD}{}", EDGE.replace("http://e", "e")),
                "[publish]: url \"e\"",
            ),
        ] {
            let error = format!("{:#}", Settings::parse(text).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
    }
}
