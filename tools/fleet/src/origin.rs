//! The origin: moto as a server of S3 that others wrote, behind an nginx that counts who asks for what.
//!
//! Fillers ask by the bucket's name (`/library/o/1.bin`, listings), viewers by the path alone (`/o/1.bin`), as a library's
//! public name has it. Nothing is cached. Bounded by: a limit on every wait.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use testbed::client::Client;
use testbed::namespace::Namespace;
use testbed::process::output;
use testbed::rivals::{Template, nginx_program};
use testbed::server::Server;
use testbed::{find_program, interrupt, scratch_directory, target_directory};

use crate::library::Object;

/// The bucket.
pub(crate) const BUCKET: &str = "library";
/// Where viewers and fillers find it, and where moto is.
pub(crate) const ADDRESS: &str = "10.78.0.2:80";
const MOTO_ADDRESS: &str = "10.78.0.1:5000";

/// The release of moto that is installed where there is none.
const MOTO: &str = "moto[server]==5.2.1";

/// Installing takes seconds; a registry that does not answer is given up.
const INSTALL_LIMIT: Duration = Duration::from_secs(180);

/// Threads that upload.
const UPLOADERS: usize = 4;

/// A Python with moto: the host's, else one of our own beneath the target directory. `Err` says why there is none.
pub(crate) fn find_moto() -> std::result::Result<PathBuf, String> {
    let has_moto = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-c", "import moto.server"]);
        output(&mut command, INSTALL_LIMIT).is_ok_and(|it| it.status.success())
    };
    let host = find_program("python3").ok_or("no python3")?;
    if has_moto(&host) {
        return Ok(host);
    }
    let folder = target_directory().join("fleet-python");
    let own = folder.join("bin/python3");
    if !has_moto(&own) {
        let mut make = Command::new(&host);
        make.args(["-m", "venv"]).arg(&folder);
        let mut install = Command::new(&own);
        install.args(["-m", "pip", "install", "--quiet", MOTO]);
        for mut command in [make, install] {
            let done = output(&mut command, INSTALL_LIMIT);
            if !done.is_ok_and(|it| it.status.success()) {
                return Err(format!(
                    "no moto, and {MOTO} cannot be installed (python3-venv, pip)"
                ));
            }
        }
    }
    Ok(own)
}

/// Who asked the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A viewer.
    Viewer,
    /// An edge: its filler, or a cache.
    Edge,
}

/// A line of its log.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) who: Who,
    pub(crate) method: String,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    /// Without the bucket's name.
    pub(crate) name: String,
}

impl Request {
    /// Whether content was asked for: no listing, no HEAD.
    pub(crate) fn is_get(&self) -> bool {
        self.method == "GET" && !self.name.is_empty() && matches!(self.status, 200 | 206)
    }
}

/// The origin.
#[derive(Debug)]
pub(crate) struct Origin {
    /// moto, and what is before it. Never locked: so they can be behind a reference that threads share.
    _servers: Mutex<[Server; 2]>,
    directory: PathBuf,
}

impl Origin {
    /// Starts it and makes the bucket. Edges are at 10.78.1.0/24.
    pub(crate) fn start(namespace: &Namespace, python: &Path) -> Result<Self> {
        let address: SocketAddr = MOTO_ADDRESS.parse()?;
        // An origin is another machine: here it has what edges and viewers leave of this one's processors.
        let mut arguments = vec![OsString::from("-n19"), python.into()];
        let rest = ["-m", "moto.server", "-H", "10.78.0.1", "-p", "5000"];
        arguments.extend(rest.map(OsString::from));
        let place = (scratch_directory("moto")?, address);
        let moto = Server::listening(
            "moto",
            namespace,
            None,
            (Path::new("nice"), &arguments[..]),
            place,
        )?;
        namespace.enter(|| put(address, &format!("/{BUCKET}"), &[]))?;
        let directory = scratch_directory("origin")?;
        let at = directory.path().to_owned();
        let mut template = Template::read("fleet/origin.conf")?;
        template.set("DIRECTORY", &directory.path().display().to_string());
        template.set("LISTEN", ADDRESS);
        template.set("S3", MOTO_ADDRESS);
        template.set("BUCKET", BUCKET);
        let front = start_nginx(namespace, template, directory, ADDRESS.parse()?)?;
        Ok(Self {
            _servers: Mutex::new([front, moto]),
            directory: at,
        })
    }

    /// Uploads objects, as many at once as help.
    pub(crate) fn upload(&self, namespace: &Namespace, objects: &[Object]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let upload = || -> Result<()> {
            while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                interrupt::check()?;
                let mut bytes = vec![0; usize::try_from(object.content.size_bytes)?];
                object.content.fill(0, &mut bytes);
                self.put(&object.name, &bytes)?;
            }
            Ok(())
        };
        namespace.enter(|| in_threads(UPLOADERS, upload))
    }

    /// Uploads the files beneath `folder`, by their paths in it.
    pub(crate) fn upload_files(
        &self,
        namespace: &Namespace,
        folder: &Path,
        files: &[PathBuf],
    ) -> Result<()> {
        namespace.enter(|| {
            for file in files {
                let name = file.strip_prefix(folder)?.display().to_string();
                self.put(&name, &fs::read(file)?)?;
            }
            Ok(())
        })
    }

    #[expect(clippy::unused_self, reason = "there is one to put it into")]
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        put(MOTO_ADDRESS.parse()?, &format!("/{BUCKET}/{name}"), bytes)
    }

    /// Where the page with the players is to be, and what belongs to it.
    pub(crate) fn page_folder(&self) -> PathBuf {
        self.directory.join("page")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("access.log")
    }

    /// Where its log ends now.
    pub(crate) fn mark(&self) -> Result<u64> {
        Ok(fs::metadata(self.log())?.len())
    }

    /// What was asked since then.
    pub(crate) fn since(&self, mark: u64) -> Result<Vec<Request>> {
        let bytes = fs::read(self.log())?;
        let text = std::str::from_utf8(&bytes[usize::try_from(mark)?..])?;
        let lines = text.split_inclusive('\n').filter(|it| it.ends_with('\n'));
        lines.map(|line| parse(line.trim_end())).collect()
    }
}

fn parse(line: &str) -> Result<Request> {
    let mut words = line.split(' ');
    let mut word = || {
        words
            .next()
            .with_context(|| format!("a line of the log: {line}"))
    };
    let who = match word()?.starts_with("10.78.1.") {
        true => Who::Edge,
        false => Who::Viewer,
    };
    let (method, status, bytes) = (word()?.to_owned(), word()?.parse()?, word()?.parse()?);
    let path = word()?.trim_start_matches('/');
    let inside = path.strip_prefix(BUCKET).unwrap_or(path);
    let name = inside.trim_start_matches('/').to_owned();
    Ok(Request {
        who,
        method,
        status,
        bytes,
        name,
    })
}

/// Starts an nginx of this configuration, which is kept in `directory`.
pub(crate) fn start_nginx(
    namespace: &Namespace,
    template: Template,
    directory: tempfile::TempDir,
    address: SocketAddr,
) -> Result<Server> {
    let program = nginx_program().context("nginx is not installed")?;
    let at = directory.path().to_owned();
    let file = at.join("nginx.conf");
    fs::write(&file, template.finish()?)?;
    let arguments = [
        "-p".into(),
        at.into_os_string(),
        "-e".into(),
        "stderr".into(),
        "-c".into(),
        file.into_os_string(),
    ];
    let program = (program.as_path(), &arguments[..]);
    Server::listening("nginx", namespace, None, program, (directory, address))
}

/// Runs the same in several threads of this one's namespace.
pub(crate) fn in_threads(count: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        for thread in threads {
            let done = thread.join();
            done.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })
}

fn put(address: SocketAddr, path: &str, bytes: &[u8]) -> Result<()> {
    let mut client = Client::connect_from_here(address)?;
    let fields = format!(
        "Content-Length: {}\r\nContent-Type: application/octet-stream\r\nx-amz-acl: public-read\r\n",
        bytes.len()
    );
    client.ask("PUT", path, &fields)?;
    client.send(bytes)?;
    let head = client.read_head()?;
    ensure!(head.status == 200, "PUT {path}: {}", head.status);
    Ok(())
}
