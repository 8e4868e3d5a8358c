//! Other servers of our day, as Debian packages them: h2o and lighttpd.
//!
//! One worker each, logs off, connections kept open, files sent as they do by default (h2o reads,
//! lighttpd uses `sendfile`). Bounded by: [`CONNECTIONS_MAX`].

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::certificate::IdentityFiles;
use super::find_program;
use super::namespace::Namespace;
use super::process::run;
use super::server::Server;

/// Connections each may have: above the largest load of the benches, 16,000.
const CONNECTIONS_MAX: u32 = 20_000;

/// Seconds a connection may be idle: more than the opening of all takes.
const IDLE_SECONDS: u32 = 3600;

/// A server from a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// h2o.
    H2o,
    /// lighttpd.
    Lighttpd,
}

impl Peer {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::H2o, Self::Lighttpd];

    /// Its program, and what reports call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H2o => "h2o",
            Self::Lighttpd => "lighttpd",
        }
    }

    /// The first line it prints of its version.
    pub(crate) fn version(self) -> String {
        let text = run(Command::new(self.name()).arg("-v")).unwrap_or_default();
        text.lines().next().unwrap_or("unknown").to_owned()
    }

    /// Starts it on one core if asked and waits until it accepts; over TLS if it has an identity.
    pub(crate) fn start(
        self,
        namespace: &Namespace,
        core: Option<usize>,
        root: &Path,
        address: SocketAddr,
        identity: Option<&IdentityFiles>,
    ) -> Result<Server> {
        let name = self.name();
        let program = find_program(name).with_context(|| format!("{name} is not installed"))?;
        let directory = super::scratch_directory(name)?;
        let text = match self {
            Self::H2o => h2o(directory.path(), root, address, identity),
            Self::Lighttpd => lighttpd(directory.path(), root, address, identity),
        };
        let file = directory.path().join("config");
        fs::write(&file, text)?;
        let mut arguments: Vec<OsString> = match self {
            Self::H2o => vec!["-m".into(), "worker".into(), "-c".into()],
            Self::Lighttpd => vec!["-D".into(), "-f".into()],
        };
        arguments.push(file.into_os_string());
        let program = (program.as_path(), arguments.as_slice());
        Server::listening(name, namespace, core, program, (directory, address))
    }
}

fn h2o(at: &Path, root: &Path, address: SocketAddr, identity: Option<&IdentityFiles>) -> String {
    let ssl = identity.map_or_else(String::new, |files| {
        format!(
            "  ssl:\n    certificate-file: {}\n    key-file: {}\n    minimum-version: TLSv1.2\n",
            files.certificate.display(),
            files.key.display()
        )
    });
    format!(
        "user: root\nnum-threads: 1\nmax-connections: {CONNECTIONS_MAX}\n\
         http1-request-timeout: {IDLE_SECONDS}\npid-file: {pid}\n\
         listen:\n  host: {host}\n  port: {port}\n{ssl}\
         hosts:\n  default:\n    paths:\n      /:\n        file.dir: {root}\n",
        pid = at.join("pid").display(),
        host = address.ip(),
        port = address.port(),
        root = root.display(),
    )
}

fn lighttpd(
    at: &Path,
    root: &Path,
    address: SocketAddr,
    identity: Option<&IdentityFiles>,
) -> String {
    let ssl = identity.map_or_else(String::new, |files| {
        format!(
            "server.modules = (\"mod_openssl\")\nssl.engine = \"enable\"\n\
             ssl.pemfile = \"{}\"\nssl.privkey = \"{}\"\n",
            files.certificate.display(),
            files.key.display()
        )
    });
    format!(
        "server.document-root = \"{root}\"\nserver.bind = \"{host}\"\nserver.port = {port}\n\
         server.pid-file = \"{pid}\"\nserver.max-fds = {fds}\n\
         server.max-connections = {CONNECTIONS_MAX}\nserver.max-keep-alive-requests = 65535\n\
         server.max-keep-alive-idle = {IDLE_SECONDS}\nserver.max-read-idle = {IDLE_SECONDS}\n\
         server.network-backend = \"sendfile\"\nserver.event-handler = \"linux-sysepoll\"\n\
         server.listen-backlog = 4096\n{ssl}",
        root = root.display(),
        host = address.ip(),
        port = address.port(),
        pid = at.join("pid").display(),
        fds = 3 * CONNECTIONS_MAX,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_speak_tls_only_with_an_identity() {
        let (at, root) = (Path::new("/at"), Path::new("/root"));
        let address = SocketAddr::from(([10, 0, 0, 1], 443));
        let identity = IdentityFiles {
            certificate: "/c.pem".into(),
            key: "/k.pem".into(),
        };
        for config in [h2o, lighttpd] {
            assert!(!config(at, root, address, None).contains("ssl"));
            let text = config(at, root, address, Some(&identity));
            for word in ["/c.pem", "/k.pem", "10.0.0.1", "443", "/root"] {
                assert!(text.contains(word), "{word} in {text}");
            }
        }
    }
}
