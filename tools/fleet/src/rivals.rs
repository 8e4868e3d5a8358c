//! Caches of others in the edges' place: nginx's `proxy_cache` and Apache Traffic Server, as large, asked for the same
//! objects in the same order, found by the same steering.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};

use testbed::rivals::Template;
use testbed::server::Server;
use testbed::{find_program, scratch_directory};

use crate::origin::{ADDRESS, start_nginx};
use crate::stage::Stage;

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    /// nginx, which keeps what was asked for so many times.
    Nginx(u32),
    /// Apache Traffic Server.
    TrafficServer,
}

/// Files of Traffic Server's configuration.
const FILES: [&str; 4] = [
    "records.config",
    "remap.config",
    "storage.config",
    "ip_allow.yaml",
];

impl Rival {
    pub(crate) const ALL: [Self; 3] = [Self::Nginx(1), Self::Nginx(2), Self::TrafficServer];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Nginx(uses) => format!("nginx proxy_cache, min_uses {uses}"),
            Self::TrafficServer => "Apache Traffic Server".to_owned(),
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        let program = match self {
            Self::Nginx(_) => "nginx",
            Self::TrafficServer => "traffic_server",
        };
        find_program(program).is_some()
    }

    fn start(self, stage: &Stage, number: usize, capacity_bytes: u64) -> Result<Server> {
        let address: SocketAddr = format!("10.78.1.{number}:80").parse()?;
        let namespace = &stage.edges[number - 1];
        let directory = scratch_directory("rival")?;
        let at = directory.path();
        let fill_in = |file: &str, uses: u32| -> Result<Template> {
            let mut template = Template::read(&format!("fleet/{file}"))?;
            template.set("DIRECTORY", &at.display().to_string());
            template.set("LISTEN", &address.to_string());
            template.set("ORIGIN", ADDRESS);
            template.set("CAPACITY", &capacity_bytes.to_string());
            template.set("USES", &uses.to_string());
            Ok(template)
        };
        if let Self::Nginx(uses) = self {
            let template = fill_in("nginx-cache.conf", uses)?;
            return start_nginx(namespace, template, directory, address);
        }
        let program = find_program("traffic_server").context("trafficserver is not installed")?;
        for name in ["etc", "run", "log", "cache"] {
            fs::create_dir(at.join(name))?;
        }
        for name in FILES {
            let text = fill_in(&format!("trafficserver/{name}"), 0)?.finish()?;
            fs::write(at.join("etc").join(name), text)?;
        }
        let mut template = Template::read("trafficserver/runroot.yaml")?;
        template.set("DIRECTORY", &at.display().to_string());
        let run_root = at.join("runroot.yaml");
        fs::write(&run_root, template.finish()?)?;
        let arguments = [
            "--clear_cache".into(),
            format!("--run-root={}", run_root.display()).into(),
        ];
        let program = (program.as_path(), &arguments[..]);
        Server::listening(
            "trafficserver",
            namespace,
            None,
            program,
            (directory, address),
        )
    }
}

/// A fleet of them.
#[derive(Debug)]
pub(crate) struct RivalFleet {
    _steering: Server,
    _caches: Vec<Server>,
    _directory: tempfile::TempDir,
}

impl RivalFleet {
    pub(crate) fn start(
        stage: &Stage,
        rival: Rival,
        count: usize,
        capacity_bytes: u64,
    ) -> Result<Self> {
        let caches = (1..=count).map(|number| rival.start(stage, number, capacity_bytes));
        let caches = caches.collect::<Result<_>>()?;
        let directory = scratch_directory("members")?;
        let file = directory.path().join("members.json");
        let members = (1..=count).map(|number| {
            serde_json::json!({"name": format!("edge-{number}"), "url": format!("http://10.78.1.{number}"),
                "capacity_bytes": capacity_bytes})
        });
        let members: Vec<_> = members.collect();
        let text = serde_json::json!({"version": 1, "members": members});
        fs::write(&file, text.to_string())?;
        let registry = format!("kind = \"file\"\npath = \"{}\"", file.display());
        let fleet = Self {
            _steering: stage.start_steering(&registry)?,
            _caches: caches,
            _directory: directory,
        };
        stage.await_members(&(1..=count).collect::<Vec<_>>())?;
        Ok(fleet)
    }
}
