//! Other servers of our day, as Debian packages them: nginx, h2o and lighttpd.
//!
//! Their configurations are files under `bench/rivals/`, read when one is started; `@NAME@` in them
//! is replaced. A file with a name that is not known is an error. Bounded by: the files.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::certificate::IdentityFiles;
use crate::namespace::Namespace;
use crate::process::run;
use crate::server::Server;
use crate::{find_program, workspace_root};

/// How nginx sends a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NginxMode {
    /// `sendfile` in one worker.
    Sendfile,
    /// `sendfile`; a pool of threads waits for the disk.
    SendfileThreads,
    /// `sendfile` in several workers.
    SendfileWorkers,
    /// `O_DIRECT` reads in one worker.
    Directio,
    /// `O_DIRECT` reads in a pool of threads.
    DirectioThreads,
}

impl NginxMode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Sendfile,
        Self::SendfileThreads,
        Self::SendfileWorkers,
        Self::Directio,
        Self::DirectioThreads,
    ];

    /// What reports call it, and the name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sendfile => "nginx-sendfile",
            Self::SendfileThreads => "nginx-sendfile-threads",
            Self::SendfileWorkers => "nginx-sendfile-workers",
            Self::Directio => "nginx-directio",
            Self::DirectioThreads => "nginx-directio-threads",
        }
    }

    /// Whether it reads with `O_DIRECT`, so that a warm page cache is of no use to it.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Directio | Self::DirectioThreads)
    }

    /// Worker processes, all on the server's core.
    fn workers(self) -> u32 {
        match self {
            Self::SendfileWorkers => 8,
            _ => 1,
        }
    }
}

/// How nginx speaks TLS.
#[derive(Clone, Debug)]
pub struct NginxTls {
    /// Its certificate and key.
    pub identity: IdentityFiles,
    /// Seals in the kernel: only where the kernel can.
    pub is_kernel_tls: bool,
}

/// A configuration file of nginx, and the directory with all it may write.
#[derive(Debug)]
pub struct NginxConfig {
    directory: tempfile::TempDir,
    address: SocketAddr,
}

impl NginxConfig {
    /// A rival that serves `root` on the port of `address`; over TLS if `tls` says how.
    pub fn rival(
        mode: NginxMode,
        root: &Path,
        address: SocketAddr,
        tls: Option<&NginxTls>,
    ) -> Result<Self> {
        let sending = format!("{}.conf", mode.name());
        Self::new(&sending, mode.workers(), root, address, tls)
    }

    /// One worker that caches nothing, for replies to be compared with.
    pub fn reference(root: &Path, address: SocketAddr) -> Result<Self> {
        Self::new("nginx-reference.conf", 1, root, address, None)
    }

    fn new(
        sending: &str,
        workers: u32,
        root: &Path,
        address: SocketAddr,
        tls: Option<&NginxTls>,
    ) -> Result<Self> {
        let directory = crate::scratch_directory("nginx")?;
        let types = Path::new("/etc/nginx/mime.types");
        let types = if types.exists() {
            format!("include {};", types.display())
        } else {
            String::new()
        };
        let mut listen = address.to_string();
        if tls.is_some() {
            listen += " ssl";
        }
        listen += " backlog=4096";
        if workers > 1 {
            // A socket for each: of one socket's connections the worker that sleeps last would take most.
            listen += " reuseport";
        }
        if address.is_ipv6() {
            listen += " ipv6only=off";
        }
        let mut template = Template::read("nginx.conf")?;
        template.insert("SENDING", &Template::read(sending)?.0);
        match tls {
            Some(tls) => {
                template.insert("TLS", &Template::read("nginx-tls.conf")?.0);
                template.set_identity(&tls.identity);
                let kernel = if tls.is_kernel_tls {
                    "ssl_conf_command Options KTLS;"
                } else {
                    ""
                };
                template.set("KERNEL_TLS", kernel);
            }
            None => template.set("TLS", ""),
        }
        template.set("WORKERS", &workers.to_string());
        template.set("TYPES", &types);
        template.set("LISTEN", &listen);
        template.set("ROOT", &root.display().to_string());
        template.set("DIRECTORY", &directory.path().display().to_string());
        fs::write(directory.path().join("nginx.conf"), template.finish()?)?;
        Ok(Self { directory, address })
    }

    /// Starts nginx in `namespace`, on one core if asked, and waits until it accepts.
    pub fn start(self, namespace: &Namespace, core: Option<usize>) -> Result<Server> {
        let program = nginx_program().context("nginx is not installed")?;
        let arguments = self.arguments();
        let Self { directory, address } = self;
        let program = (program.as_path(), arguments.as_slice());
        Server::listening("nginx", namespace, core, program, (directory, address))
    }

    /// The arguments that make nginx use it, and nothing else.
    fn arguments(&self) -> [OsString; 6] {
        let at = self.directory.path();
        let file = at.join("nginx.conf").into_os_string();
        [
            "-p".into(),
            at.into(),
            "-e".into(),
            "stderr".into(),
            "-c".into(),
            file,
        ]
    }
}

/// Where nginx is installed.
pub fn nginx_program() -> Option<PathBuf> {
    find_program("nginx")
}

/// A rival that is not nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// h2o.
    H2o,
    /// lighttpd.
    Lighttpd,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::H2o, Self::Lighttpd];

    /// Its program, and what reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::H2o => "h2o",
            Self::Lighttpd => "lighttpd",
        }
    }

    /// The first line it prints of its version.
    pub fn version(self) -> String {
        let text = run(Command::new(self.name()).arg("-v")).unwrap_or_default();
        text.lines().next().unwrap_or("unknown").to_owned()
    }

    /// Starts it on one core if asked and waits until it accepts; over TLS if it has an identity.
    pub fn start(
        self,
        namespace: &Namespace,
        core: Option<usize>,
        root: &Path,
        address: SocketAddr,
        identity: Option<&IdentityFiles>,
    ) -> Result<Server> {
        let name = self.name();
        let program = find_program(name).with_context(|| format!("{name} is not installed"))?;
        let directory = crate::scratch_directory(name)?;
        let file = directory.path().join("config");
        fs::write(
            &file,
            self.config(directory.path(), root, address, identity)?,
        )?;
        let mut arguments: Vec<OsString> = match self {
            Self::H2o => vec!["-m".into(), "worker".into(), "-c".into()],
            Self::Lighttpd => vec!["-D".into(), "-f".into()],
        };
        arguments.push(file.into_os_string());
        let program = (program.as_path(), arguments.as_slice());
        Server::listening(name, namespace, core, program, (directory, address))
    }

    fn config(
        self,
        directory: &Path,
        root: &Path,
        address: SocketAddr,
        identity: Option<&IdentityFiles>,
    ) -> Result<String> {
        let (plain, tls) = match self {
            Self::H2o => ("h2o.yaml", "h2o-tls.yaml"),
            Self::Lighttpd => ("lighttpd.conf", "lighttpd-tls.conf"),
        };
        let mut template = Template::read(plain)?;
        match identity {
            Some(identity) => {
                template.insert("TLS", &Template::read(tls)?.0);
                template.set_identity(identity);
            }
            None => template.set("TLS", ""),
        }
        template.set("ROOT", &root.display().to_string());
        template.set("DIRECTORY", &directory.display().to_string());
        template.set("HOST", &address.ip().to_string());
        template.set("PORT", &address.port().to_string());
        template.finish()
    }
}

/// A configuration whose `@NAME@` are still to be replaced.
#[derive(Debug)]
pub struct Template(String);

impl Template {
    /// Reads a file beneath `bench/rivals`.
    pub fn read(file: &str) -> Result<Self> {
        let path = workspace_root().join("bench/rivals").join(file);
        let text = fs::read_to_string(&path);
        text.map(Self)
            .with_context(|| format!("no configuration at {}", path.display()))
    }

    /// Puts a value where `@NAME@` is.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0 = self.0.replace(&format!("@{name}@"), value);
    }

    /// Puts another file where `@NAME@` is.
    fn insert(&mut self, name: &str, text: &str) {
        self.set(name, text.trim_end());
    }

    pub(crate) fn set_identity(&mut self, identity: &IdentityFiles) {
        self.set("CERTIFICATE", &identity.certificate.display().to_string());
        self.set("KEY", &identity.key.display().to_string());
    }

    /// The text, with nothing left to be replaced.
    pub fn finish(self) -> Result<String> {
        let left = self.0.split('@').nth(1);
        ensure!(
            left.is_none(),
            "nothing is known for @{}@ of a configuration under bench/rivals",
            left.unwrap_or_default()
        );
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> IdentityFiles {
        IdentityFiles {
            certificate: "/c.pem".into(),
            key: "/k.pem".into(),
        }
    }

    #[test]
    fn peers_speak_tls_only_with_an_identity() {
        let (at, root) = (Path::new("/at"), Path::new("/root"));
        let address = SocketAddr::from(([10, 0, 0, 1], 443));
        for peer in Peer::ALL {
            let text = peer.config(at, root, address, None).unwrap();
            assert!(!text.contains("ssl"), "{text}");
            let text = peer.config(at, root, address, Some(&identity())).unwrap();
            for word in ["/c.pem", "/k.pem", "10.0.0.1", "443", "/root", "/at/pid"] {
                assert!(text.contains(word), "{word} in {text}");
            }
        }
    }

    #[test]
    fn every_way_of_nginx_has_its_file_and_nothing_left_to_fill_in() {
        let root = Path::new("/root");
        let address = SocketAddr::from(([10, 0, 0, 1], 443));
        let tls = NginxTls {
            identity: identity(),
            is_kernel_tls: true,
        };
        for mode in NginxMode::ALL {
            for tls in [None, Some(&tls)] {
                let config = NginxConfig::rival(mode, root, address, tls).unwrap();
                let text = fs::read_to_string(config.directory.path().join("nginx.conf")).unwrap();
                assert!(text.contains("listen 10.0.0.1:443"), "{text}");
                assert_eq!(text.contains("KTLS"), tls.is_some());
                assert_eq!(text.contains("/c.pem"), tls.is_some());
                assert_eq!(text.contains("directio 512"), mode.is_direct());
                let workers = format!("worker_processes {};", mode.workers());
                assert!(text.contains(&workers), "{text}");
                assert_eq!(text.contains(" reuseport"), mode.workers() > 1);
            }
        }
        let config = NginxConfig::reference(root, address).unwrap();
        let text = fs::read_to_string(config.directory.path().join("nginx.conf")).unwrap();
        assert!(!text.contains("open_file_cache max"));
    }

    #[test]
    fn a_name_that_is_not_known_is_refused() {
        let mut template = Template("root @ROOT@; port @PROT@;".to_owned());
        template.set("ROOT", "/r");
        let error = template.finish().unwrap_err().to_string();
        assert!(error.contains("@PROT@"), "{error}");
    }
}
