//! The servers under test, as processes: Atlas, and any other that listens on an address.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::interrupt;
use crate::namespace::Namespace;
use crate::process::Process;

/// How long a server may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// How long a server may take to stop: Atlas finishes replies under way first.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A server that is ready to serve, ended when dropped.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// The line it printed when ready, empty for rivals.
    pub ready: String,
    stderr: Receiver<String>,
    /// Lines of stderr looked at before the end.
    seen: String,
    /// The directory of its configuration, removed after its end.
    _directory: Option<tempfile::TempDir>,
}

/// How a server ended.
#[derive(Debug)]
pub struct Stopped {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Everything it wrote to stderr.
    pub stderr: String,
}

impl Stopped {
    /// The same, unless its exit code is not 0.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(
            self.status.success(),
            "the server ended with {}: {}",
            self.status,
            self.last_words()
        );
        Ok(self)
    }

    /// The counters of the `summary` line.
    pub fn summary(&self) -> Result<serde_json::Value> {
        let line = self
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("summary "))
            .with_context(|| format!("no summary line in: {}", self.stderr.trim()))?;
        serde_json::from_str(line).context("the summary line is not JSON")
    }

    /// What it said at its end: how it panicked, or its last line.
    fn last_words(&self) -> String {
        let mut lines = self.stderr.lines();
        match lines.find(|line| line.contains("panicked")) {
            Some(panic) => format!("{panic} {}", lines.next().unwrap_or_default()),
            None => self.stderr.lines().last().unwrap_or_default().to_owned(),
        }
    }

    /// One counter of the summary.
    pub fn counter(&self, name: &str) -> Result<u64> {
        self.summary()?
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .with_context(|| format!("the summary has no counter {name}"))
    }
}

impl Server {
    /// Starts Atlas and waits for its `ready` line.
    pub fn atlas(command: &mut Command) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn("atlas", command)?;
        let stdout = lines(process.child().stdout.take());
        let stderr = lines(process.child().stderr.take());
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            interrupt::check()?;
            match stdout.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.starts_with("ready ") => {
                    return Ok(Self {
                        process,
                        ready: line,
                        stderr,
                        seen: String::new(),
                        _directory: None,
                    });
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => bail!("atlas is not ready after 20 s"),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = process.wait(STOP_LIMIT)?;
                    bail!("atlas ended ({status}): {}", drain(&stderr).trim());
                }
            }
        }
    }

    /// Starts a server that says nothing when it is ready, and waits until it accepts on an
    /// address; the directory with its configuration goes when it has ended.
    pub fn listening(
        name: &str,
        namespace: &Namespace,
        core: Option<usize>,
        (program, arguments): (&Path, &[OsString]),
        (directory, address): (tempfile::TempDir, SocketAddr),
    ) -> Result<Self> {
        let mut command = namespace.command("taskset");
        let cores = core.map_or("0-1023".to_owned(), |core| core.to_string());
        command.args(["-c", &cores]).arg(program).args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(name, &mut command)?;
        let stderr = lines(process.child().stderr.take());
        let deadline = Instant::now() + READY_LIMIT;
        // It says nothing when it listens, so it is asked until it answers.
        while namespace.enter(|| Ok(TcpStream::connect(address).is_err()))? {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!(
                    "{name} does not accept on {address}: {}",
                    drain(&stderr).trim()
                );
            }
            if let Ok(status) = process.wait(Duration::from_millis(20)) {
                bail!("{name} ended ({status}): {}", drain(&stderr).trim());
            }
        }
        Ok(Self {
            process,
            ready: String::new(),
            stderr,
            seen: String::new(),
            _directory: Some(directory),
        })
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for a line of its log that holds `words`, in either case; lines of before a former
    /// wait do not count.
    pub fn await_log(&mut self, words: &str) -> Result<()> {
        /// Lines are written at once.
        const LIMIT: Duration = Duration::from_secs(10);
        let deadline = Instant::now() + LIMIT;
        let before = self.seen.len();
        while Instant::now() < deadline {
            interrupt::check()?;
            if let Ok(line) = self.stderr.recv_timeout(Duration::from_millis(100)) {
                let _ = writeln!(self.seen, "{line}");
                if line.to_lowercase().contains(&words.to_lowercase()) {
                    return Ok(());
                }
            }
        }
        let said = self.seen.get(before..).unwrap_or_default().trim();
        bail!("its log does not say {words:?}: {said}");
    }

    /// Waits for the end after a signal was sent.
    pub fn wait(mut self) -> Result<Stopped> {
        let status = self.process.wait_out(STOP_LIMIT)?;
        let stderr = self.seen + &drain(&self.stderr);
        Ok(Stopped { status, stderr })
    }

    /// SIGTERM, then waits for the end, which must be a good one.
    pub fn stop(self) -> Result<Stopped> {
        self.signal(Signal::TERM)?;
        self.wait()?.succeeded()
    }

    /// CPU time the process has used so far, in clock ticks of 10 ms.
    pub fn cpu_ticks(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id()))
            .context("reading the server's CPU time")?;
        cpu_ticks_of(&stat).context("a process's stat line has 52 fields")
    }
}

/// utime + stime of a `/proc/PID/stat` line. The command name, in parentheses, may hold spaces.
fn cpu_ticks_of(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // Fields 14 and 15 of proc(5); the first after the name is field 3.
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Reads a pipe line by line on a thread of its own, so the child never blocks on it.
fn lines(pipe: Option<impl std::io::Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(pipe) = pipe {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

/// Everything the child wrote, once it has ended.
fn drain(lines: &Receiver<String>) -> String {
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(1)) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_survive_an_odd_command_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 9 0 0 0 120 34 0 0 20 0 1 0 55";
        assert_eq!(cpu_ticks_of(stat), Some(154));
        assert_eq!(cpu_ticks_of("7 (a) S 1"), None);
    }
}
