//! A network namespace, the server in it, and a way to talk to both.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a peer may be silent before a test gives up: far beyond anything that works.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A network namespace of this test's own, removed with all that is in it.
pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// `None`, said aloud, where the test cannot run.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for tool in ["ip", "curl"] {
            if Command::new(tool).arg("-V").output().is_err() {
                eprintln!("SKIPPED: {tool} is not installed");
                return None;
            }
        }
        if !Path::new("/dev/net/tun").exists() {
            eprintln!("SKIPPED: /dev/net/tun is missing");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("atlas-serve-{}-{number}", std::process::id());
        let added = Command::new("ip")
            .args(["netns", "add", &name])
            .output()
            .unwrap();
        if !added.status.success() {
            let reason = String::from_utf8_lossy(&added.stderr);
            eprintln!("SKIPPED: no network namespace: {}", reason.trim());
            return None;
        }
        let lab = Self { name };
        lab.ip(&["link", "set", "lo", "up"]);
        Some(lab)
    }

    /// Another namespace, joined to this one: `server0` here, `client0` (10.78.0.1/24) there.
    pub(crate) fn join_by_veth(&self) -> Self {
        let other = Self::new().expect("the first one could be made");
        self.join_by_veth_to(&other);
        other
    }

    /// The same with a namespace that is there.
    pub(crate) fn join_by_veth_to(&self, other: &Self) {
        let (here, there) = (["name", "server0"], ["peer", "name", "client0", "netns"]);
        let words = [
            &["link", "add"],
            &here[..],
            &["type", "veth"],
            &there,
            &[&other.name],
        ];
        self.ip(&words.concat());
        self.ip(&["link", "set", "server0", "up"]);
        other.ip(&["address", "add", "10.78.0.1/24", "dev", "client0"]);
        other.ip(&["link", "set", "client0", "up"]);
    }

    /// Runs `ip` in the namespace.
    pub(crate) fn ip(&self, words: &[&str]) {
        let status = Command::new("ip")
            .args(["-n", &self.name])
            .args(words)
            .status()
            .unwrap();
        assert!(status.success(), "ip {words:?}");
    }

    /// What `ip` in the namespace wrote to stdout.
    pub(crate) fn show(&self, words: &[&str]) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.name])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What curl, in the namespace, wrote to stdout.
    pub(crate) fn curl(&self, words: &[&str]) -> Vec<u8> {
        let output = self.try_curl(words);
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "curl {words:?}: {reason}");
        output.stdout
    }

    /// What came of curl in the namespace.
    pub(crate) fn try_curl(&self, words: &[&str]) -> Output {
        let limits = ["-sS", "-g", "--max-time", "30"];
        let mut command = self.command("curl");
        command.args(limits).args(words).output().unwrap()
    }

    /// A connection made in the namespace. The socket stays in it, whoever uses it.
    pub(crate) fn connect(&self, address: &str) -> TcpStream {
        let address = address.to_owned();
        let stream = self.run(move || TcpStream::connect(address)).unwrap();
        stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        stream
    }

    /// A socket of the kernel's that listens in the namespace.
    pub(crate) fn listen(&self, address: &'static str) -> TcpListener {
        self.run(move || TcpListener::bind(address)).unwrap()
    }

    /// Runs `job` in the namespace. Namespaces are entered by threads: this one ends with its only job.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        let job = move || {
            enter(&file);
            job()
        };
        std::thread::spawn(job).join().unwrap()
    }

    /// A program in the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .output();
    }
}

#[allow(
    unsafe_code,
    reason = "UNSAFETY: setns(2), which the standard library does not have"
)]
fn enter(namespace: &std::fs::File) {
    // SAFETY: the descriptor is open; the call changes only this thread's namespace.
    let outcome = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(outcome, 0, "setns: {}", std::io::Error::last_os_error());
}

/// The server and its command.
const SERVE: [&str; 2] = [env!("CARGO_BIN_EXE_atlas"), "serve"];

/// The exit code of a start that is worth another try.
pub(crate) const NOT_NOW: i32 = 75;

/// `atlas serve` running in a [`Lab`], killed when dropped.
pub(crate) struct Atlas {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    /// What was read of stderr.
    log: String,
}

/// How the server ended.
pub(crate) struct End {
    /// Its exit code.
    pub(crate) code: Option<i32>,
    /// All it wrote there.
    pub(crate) stderr: String,
}

impl Atlas {
    /// Starts it; [`Atlas::ready`] waits until it serves.
    pub(crate) fn start(lab: &Lab, directory: &Path, words: &[&str]) -> Self {
        Self::start_after(lab, "true", directory, words)
    }

    /// Starts it after a shell has run `prepare` in a mount namespace that only they see.
    pub(crate) fn start_after(lab: &Lab, prepare: &str, directory: &Path, words: &[&str]) -> Self {
        Self::spawn(lab, prepare, &SERVE, directory, words)
    }

    /// Starts it by another program, which becomes it.
    pub(crate) fn start_by(lab: &Lab, by: &[&str], directory: &Path, words: &[&str]) -> Self {
        Self::spawn(lab, "true", &[by, &SERVE].concat(), directory, words)
    }

    /// Starts it from another file.
    pub(crate) fn start_at(lab: &Lab, program: &Path, directory: &Path, words: &[&str]) -> Self {
        let program = [program.to_str().unwrap(), SERVE[1]];
        Self::spawn(lab, "true", &program, directory, words)
    }

    /// What came of `atlas serve --check`.
    pub(crate) fn check(lab: &Lab, directory: &Path, words: &[&str]) -> Output {
        let mut command = Self::command(lab, "true", &SERVE, directory, words);
        command.arg("--check").output().unwrap()
    }

    fn command(
        lab: &Lab,
        prepare: &str,
        program: &[&str],
        directory: &Path,
        words: &[&str],
    ) -> Command {
        let mut command = lab.command("sh");
        // The shell becomes the server, so that signals reach it.
        command.args(["-c", &format!("{prepare} && exec \"$@\""), "sh"]);
        command.args(program).arg(directory).args(words);
        command
    }

    fn spawn(lab: &Lab, prepare: &str, program: &[&str], directory: &Path, words: &[&str]) -> Self {
        let mut command = Self::command(lab, prepare, program, directory, words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("ip is installed");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            stdout,
            stderr,
            log: String::new(),
        }
    }

    /// The line on stdout that says it serves.
    pub(crate) fn ready(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            self.read_rest();
            panic!("it does not serve:\n{}", self.log);
        }
        line.trim_end().to_owned()
    }

    /// Whether it has written anything to stdout that was not read.
    #[allow(
        unsafe_code,
        reason = "UNSAFETY: poll(2), which the standard library does not have"
    )]
    pub(crate) fn has_output(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.stdout.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        assert!(ready >= 0, "{}", std::io::Error::last_os_error());
        ready > 0
    }

    /// Reads stderr up to a line that has `part` in it.
    pub(crate) fn stderr_line(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            self.stderr.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "it ended without {part:?}:\n{}", self.log);
            self.log.push_str(&line);
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    #[allow(
        unsafe_code,
        reason = "UNSAFETY: kill(2), which the standard library does not have"
    )]
    pub(crate) fn signal(&self, signal: i32) {
        let id = i32::try_from(self.child.id()).unwrap();
        // SAFETY: the process is a child that was not waited for, so its number is still its own.
        let outcome = unsafe { libc::kill(id, signal) };
        assert_eq!(outcome, 0);
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> End {
        self.read_rest();
        let status = self.child.wait().unwrap();
        End {
            code: status.code(),
            stderr: std::mem::take(&mut self.log),
        }
    }

    /// Waits for its end, and reads what it wrote only then: exit code, stdout, stderr.
    pub(crate) fn end_unread(mut self) -> (Option<i32>, String, String) {
        let status = self.child.wait().unwrap();
        self.read_rest();
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        (status.code(), stdout, std::mem::take(&mut self.log))
    }

    fn read_rest(&mut self) {
        self.stderr.read_to_string(&mut self.log).unwrap();
    }
}

impl Drop for Atlas {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    /// The JSON behind `word` at the start of a line of stderr.
    pub(crate) fn json(&self, word: &str) -> serde_json::Value {
        let line = self.stderr.lines().find_map(|line| line.strip_prefix(word));
        let line = line.unwrap_or_else(|| panic!("no {word:?} in:\n{}", self.stderr));
        serde_json::from_str(line).unwrap()
    }
}
