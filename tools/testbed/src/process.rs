//! Children that never outlive us: every one is waited for with a limit and ended by its own id.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::interrupt;

/// How long a child may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The longest sleep between two looks at the interrupt flag.
const SLICE: Duration = Duration::from_millis(100);

/// Cargo, for work that gets the processors nothing else wants (nice(1)), and whose output nobody is to see.
#[must_use]
pub fn background_cargo() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "cargo"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A running child, ended when dropped.
///
/// Children get a process group of their own, so Ctrl-C at the terminal reaches us alone and
/// they are ended in our order.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    status: Option<ExitStatus>,
    /// Whether what the child started ends with it.
    is_tree: bool,
}

impl Process {
    /// Starts a command.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            status: None,
            is_tree: false,
        })
    }

    /// Like [`Self::spawn`], for a program that does not end its own children when it is ended,
    /// as cargo: they get the same SIGTERM.
    pub fn spawn_tree(name: &str, command: &mut Command) -> Result<Self> {
        let mut process = Self::spawn(name, command)?;
        process.is_tree = true;
        Ok(process)
    }

    /// The child, to take its pipes from.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Result<Pid> {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a child's id is a positive number")
    }

    /// Sends a signal, unless the child has been waited for already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.status.is_some() {
            return Ok(());
        }
        kill_process(self.pid()?, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Waits until the child has ended; fails after `limit` or on an interrupt.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.wait_heeding(limit, true)
    }

    /// Like [`Self::wait`], for an end that was asked for: an interrupt changes nothing.
    pub fn wait_out(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.wait_heeding(limit, false)
    }

    fn wait_heeding(&mut self, limit: Duration, heed: bool) -> Result<ExitStatus> {
        match self.wait_until(Instant::now() + limit, heed)? {
            Some(status) => Ok(status),
            None => bail!("{} still runs after {} s", self.name, limit.as_secs()),
        }
    }

    fn wait_until(&mut self, deadline: Instant, heed: bool) -> Result<Option<ExitStatus>> {
        if self.status.is_some() {
            return Ok(self.status);
        }
        // The descriptor becomes readable when the child ends: no polling of `try_wait`.
        let ended = pidfd_open(self.pid()?, PidfdFlags::empty()).context("pidfd_open")?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.status = Some(status);
                return Ok(self.status);
            }
            if heed {
                interrupt::check()?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            poll_readable(&ended, left.min(SLICE))?;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        // The group is the child's own, made at its start: whatever it forked is in it.
        let _ = match self.pid() {
            Ok(pid) if self.is_tree => {
                kill_process_group(pid, Signal::TERM).context("signalling a process group")
            }
            _ => self.signal(Signal::TERM),
        };
        if matches!(self.wait_until(Instant::now() + GRACE, false), Ok(Some(_))) {
            return;
        }
        eprintln!("{} does not end: killing it", self.name);
        if let Ok(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Waits until a pipe has something to read or has ended; fails on an interrupt.
pub fn await_readable(pipe: &impl AsFd) -> Result<()> {
    while !poll_readable(pipe, SLICE)? {
        interrupt::check()?;
    }
    Ok(())
}

/// Hands on the lines of a pipe as they arrive, until its end; fails on an interrupt.
pub fn for_each_line(pipe: &mut (impl AsFd + Read), mut take: impl FnMut(&str)) -> Result<()> {
    let mut bytes = [0; 16 << 10];
    let mut line = Vec::new();
    loop {
        await_readable(pipe)?;
        let count = pipe.read(&mut bytes).context("reading a pipe")?;
        for piece in bytes[..count].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                take(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
                line.clear();
            }
        }
        if count == 0 {
            if !line.is_empty() {
                take(&String::from_utf8_lossy(&line));
            }
            return Ok(());
        }
    }
}

/// Whether a descriptor becomes readable within `limit`.
pub(crate) fn poll_readable(descriptor: &impl AsFd, limit: Duration) -> Result<bool> {
    let limit = Timespec::try_from(limit).context("a short duration")?;
    match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        // A poll that a signal broke off is just a shorter one.
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("waiting for a descriptor"),
    }
}

/// Runs a command to its end and returns its output, whatever its exit status.
pub fn output(command: &mut Command, limit: Duration) -> Result<Output> {
    output_of(command, limit, true)
}

fn output_of(command: &mut Command, limit: Duration, heed: bool) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::spawn(&name, command)?;
    let (stdout, stderr) = (process.child().stdout.take(), process.child().stderr.take());
    // Both pipes are drained while we wait, or a talkative child would never end.
    let read = |pipe: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = std::io::Read::read_to_end(&mut pipe, &mut bytes);
            }
            bytes
        })
    };
    let stdout = read(stdout.map(|pipe| Box::new(pipe) as _));
    let stderr = read(stderr.map(|pipe| Box::new(pipe) as _));
    let status = process.wait_heeding(limit, heed)?;
    let join = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    Ok(Output {
        status,
        stdout: join(stdout),
        stderr: join(stderr),
    })
}

/// Runs a command that must succeed and returns what it wrote to stdout.
///
/// For setting up and undoing: an interrupt does not break it off, or nothing could be undone.
pub fn run(command: &mut Command) -> Result<String> {
    /// Set-up commands are quick; the slowest, `mkfs`, takes seconds.
    const LIMIT: Duration = Duration::from_secs(60);
    let output = output_of(command, LIMIT, false)?;
    if !output.status.success() {
        bail!(
            "{:?} failed ({}): {}",
            command,
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_returns_stdout_and_refuses_failure() {
        assert_eq!(
            run(Command::new("echo").arg("hello")).expect("echo works"),
            "hello\n"
        );
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).expect_err("3");
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let script = "printf 'a\\nb'; printf 'c\\n\\nd'";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut process = Process::spawn("sh", &mut command).expect("spawn");
        let mut stdout = process.child().stdout.take().expect("stdout is piped");
        let mut lines = Vec::new();
        for_each_line(&mut stdout, |line| lines.push(line.to_owned())).expect("no interrupt");
        assert_eq!(lines, ["a", "bc", "", "d"]);
    }

    /// Ends a shell that has started another process, and says whether that one ended within
    /// `limit`, too.
    fn ends_what_it_started(
        spawn: fn(&str, &mut Command) -> Result<Process>,
        limit: Duration,
    ) -> bool {
        // The second process holds the pipe open: its end is the end of the pipe.
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut process = spawn("sh", &mut command).expect("spawn");
        let mut stdout = process.child().stdout.take().expect("stdout is piped");
        let mut first = [0; 16];
        let count = stdout.read(&mut first).expect("the second process's id");
        drop(process);
        let has_ended = poll_readable(&stdout, limit).expect("poll");
        let id = std::str::from_utf8(&first[..count]).expect("digits").trim();
        let second = Pid::from_raw(id.parse().expect("an id")).expect("an id");
        if !has_ended {
            kill_process(second, Signal::KILL).expect("it still runs");
        }
        has_ended
    }

    #[test]
    fn a_tree_ends_with_its_children_and_another_child_alone() {
        assert!(ends_what_it_started(Process::spawn_tree, GRACE));
        assert!(!ends_what_it_started(Process::spawn, Duration::ZERO));
    }

    #[test]
    fn a_wait_has_a_limit_and_dropping_ends_the_child() {
        let mut process = Process::spawn("sleep", Command::new("sleep").arg("600")).expect("spawn");
        assert!(process.wait(Duration::from_millis(20)).is_err());
        let pid = process.pid().expect("an id");
        drop(process);
        assert!(
            rustix::process::test_kill_process(pid).is_err(),
            "ended and reaped"
        );
    }
}
