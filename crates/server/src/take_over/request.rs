//! `atlas reload`: asks a server that runs, and waits for the outcome.
//!
//! The server listens at a name in the abstract namespace of its network namespace, with its process number in it. It
//! refuses everybody but root and its own users, and to wait for what is not sent at once. Bounds: one line of
//! [`ASKED_BYTES_MAX`], [`ASKERS_MAX`] who wait.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use clap::Args;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};

use crate::failure::Failure;

/// Longest line, bytes.
const ASKED_BYTES_MAX: u64 = 64;
/// Who wait at once at most.
const ASKERS_MAX: usize = 16;
/// How long a line may take: it is sent with the connection.
const LINE_TIME_MAX: Duration = Duration::from_millis(100);
/// How long `atlas reload` waits: longer than any take-over takes.
const OUTCOME_TIME_MAX: Duration = Duration::from_secs(700);
/// What begins the names, before the process number.
const NAME: &str = "atlas/control/";
const RELOAD: &str = "reload";
const TAKE_OVER: &str = "take-over";
const DONE: &str = "done: ";
const FAILED: &str = "failed: ";

/// `atlas reload`, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReloadArgs {
    /// Process number of the server; not needed if there is one in this network namespace
    #[arg(value_name = "PID")]
    pid: Option<u32>,

    /// Have another process take over, even if nothing has changed that needs it
    #[arg(long)]
    take_over: bool,
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct Requests {
    listener: UnixListener,
    /// The user that started the server.
    starter: Uid,
}

/// Somebody who waits for an outcome.
#[derive(Debug)]
pub(crate) struct Asker {
    stream: UnixStream,
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}{pid}"))
}

impl Requests {
    /// Listens. `starter` may ask as well.
    ///
    /// # Errors
    /// The kernel's; the name is taken.
    pub(crate) fn listen(starter: Uid) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, starter })
    }

    /// Readable when somebody asks.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Somebody who asks, and whether for a take-over in any case.
    pub(crate) fn accept(&self) -> Option<(Asker, bool)> {
        let (stream, _) = self.listener.accept().ok()?;
        let user = socket_peercred(&stream).ok()?.uid;
        if !user.is_root() && user != geteuid() && user != self.starter {
            return None;
        }
        stream.set_read_timeout(Some(LINE_TIME_MAX)).ok()?;
        stream.set_write_timeout(Some(LINE_TIME_MAX)).ok()?;
        let mut line = String::new();
        let mut reader = BufReader::new((&stream).take(ASKED_BYTES_MAX));
        reader.read_line(&mut line).ok()?;
        let is_take_over = match line.trim_end() {
            RELOAD => false,
            TAKE_OVER => true,
            _ => return None,
        };
        Some((Asker { stream }, is_take_over))
    }
}

impl Asker {
    /// Tells everybody who waits how it went.
    pub(crate) fn tell(askers: &mut Vec<Self>, outcome: Result<&str, &str>) {
        let (word, text) = match outcome {
            Ok(text) => (DONE, text),
            Err(text) => (FAILED, text),
        };
        for mut asker in askers.drain(..) {
            // Whoever is gone does not want to know.
            let _ = asker.stream.write_all(format!("{word}{text}\n").as_bytes());
        }
    }

    /// Keeps it until the outcome is there; too many are told so.
    pub(crate) fn keep(self, askers: &mut Vec<Self>) {
        if askers.len() < ASKERS_MAX {
            askers.push(self);
        } else {
            Self::tell(&mut vec![self], Err("too many wait"));
        }
    }
}

/// Asks a server, and prints what it says.
///
/// # Errors
/// There is none, or it has changed nothing.
pub(crate) fn run(args: &ReloadArgs) -> Result<(), Failure> {
    let pid = args.pid.map_or_else(find, Ok)?;
    let failed = |error: io::Error| {
        Failure::refused(
            format!("atlas reload: server {pid}: {error}"),
            "name a server that runs in this network namespace, as root or the user that started it",
        )
    };
    let ask = || {
        let mut stream = UnixStream::connect_addr(&address(pid)?)?;
        stream.set_read_timeout(Some(OUTCOME_TIME_MAX))?;
        let word = if args.take_over { TAKE_OVER } else { RELOAD };
        stream.write_all(format!("{word}\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(failed)?;
    if let Some(text) = text.strip_prefix(DONE) {
        // The exit code tells if stdout is closed.
        let _ = write!(io::stdout(), "{text}");
        return Ok(());
    }
    match text.strip_prefix(FAILED) {
        Some(text) => Err(Failure::Broken(text.trim_end().to_owned())),
        None => Err(failed(io::ErrorKind::ConnectionAborted.into())),
    }
}

/// The one server of this network namespace.
fn find() -> Result<u32, Failure> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = text
        .lines()
        .filter_map(|line| line.rsplit_once(" @")?.1.strip_prefix(NAME));
    let found: HashSet<u32> = names.filter_map(|name| name.parse().ok()).collect();
    let mut found: Vec<u32> = found.into_iter().collect();
    found.sort_unstable();
    match found[..] {
        [pid] => Ok(pid),
        [] => Err(Failure::refused(
            "atlas reload: no server runs in this network namespace",
            "start one, or enter its namespace (nsenter --target PID --net)",
        )),
        _ => Err(Failure::refused(
            format!("atlas reload: servers {found:?} run in this network namespace"),
            "name one of them",
        )),
    }
}
