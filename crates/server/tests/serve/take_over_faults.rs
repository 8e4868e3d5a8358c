//! A process that dies or hangs at every step of taking over, and one that dies or is told to end while it is taken over
//! from: those who are left keep their viewers, and nothing is left behind.
//!
//! A step is a system call: strace ends or stops a process at its main thread's n-th of a kind. So nothing here depends on how long
//! something takes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::lab::{Atlas, Lab};
use super::privileges::{assert_gone, kill};
use super::take_over::{BINARY, Successors, Viewer, configuration, place, refusal, reload};
use super::{directory, set_mode};

const LINKS: [&str; 4] = ["tap", "packet", "xdp", "xdp+packet"];

/// A program at a path of its own, which another can take the place of.
struct Program {
    directory: TempDir,
}

impl Program {
    /// `None`, said aloud, where there is no strace.
    fn new() -> Option<Self> {
        if Command::new("strace").arg("-V").output().is_err() {
            eprintln!("SKIPPED: strace is not installed");
            return None;
        }
        let directory = TempDir::new().unwrap();
        set_mode(directory.path(), 0o755);
        let program = Self { directory };
        program.install(|new| {
            fs::copy(BINARY, new).unwrap();
        });
        Some(program)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("atlas")
    }

    /// Processes of it, however they were started.
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let number = |entry: fs::DirEntry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let program = fs::read_link(entry.path().join("exe")).ok()?;
            program.starts_with(self.directory.path()).then_some(id)
        };
        entries.filter_map(number).collect()
    }

    fn install(&self, write: impl FnOnce(&Path)) {
        let new = self.directory.path().join("new");
        write(&new);
        set_mode(&new, 0o755);
        fs::rename(&new, self.path()).unwrap();
    }

    /// Has the next process get `fault` at its `when`-th call of this kind.
    fn set_fault(&self, call: &str, when: u32, fault: &str) {
        let script = format!(
            "#!/bin/sh\nexec strace -D -qqq -o /dev/null -e signal=none -e trace={call} \
             -e inject={call}:{fault}:when={when} {BINARY} \"$@\"\n"
        );
        self.install(|new| fs::write(new, script).unwrap());
    }
}

/// What a process and its network namespace hold.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: BTreeMap<String, usize>,
    mappings: usize,
    links: String,
    packet_sockets: usize,
    names: Vec<String>,
}

/// What a server that does nothing holds.
fn held(lab: &Lab, id: u32, served: &Path) -> Held {
    let mut descriptors = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        // A file that was asked for stays open for a while.
        if target.starts_with(served) && target != served {
            continue;
        }
        let text = target.to_string_lossy().into_owned();
        let kind = text.split(":[").next().unwrap().to_owned();
        *descriptors.entry(kind).or_default() += 1;
    }
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    // What threads and the allocator map is theirs.
    let is_of_link = |line: &&str| line.contains("atlas-link") || line.contains("socket:");
    let read = |name: &str| {
        let path = format!("/proc/thread-self/net/{name}");
        lab.run(move || fs::read_to_string(path).unwrap())
    };
    // The state of a link tells of frames.
    let links = lab.show(&["-details", "link", "show"]);
    Held {
        descriptors,
        mappings: maps.lines().filter(is_of_link).count(),
        links,
        packet_sockets: read("packet").lines().count(),
        names: names(lab),
    }
}

/// What servers have bound in a network namespace: locks on addresses, and where they are asked.
fn names(lab: &Lab) -> Vec<String> {
    let read = || fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    let text = lab.run(read);
    let named = |line: &str| Some(line.split_once(" @atlas/")?.1.to_owned());
    let mut names: Vec<_> = text.lines().filter_map(named).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn whoever_hears_that_it_is_ready_can_ask_for_a_reload() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    // Its stdout is a pipe that is full, so the server waits before it says that it is ready.
    let fill = format!("head -c {} /dev/zero", 64 << 10);
    let mut atlas = Atlas::start_after(&lab, &fill, directory.path(), &[]);
    let listens = || names(&lab).iter().any(|name| name.starts_with("control/"));
    assert!(is_so_in_time(listens), "it does not listen yet");
    assert!(atlas.ready().contains("ready "));
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// Waits until it is so, for half a minute at most: the kernel closes a dead process's sockets a little later.
fn is_so_in_time(is_so: impl Fn() -> bool) -> bool {
    (0..3_000).any(|_| {
        let is_now = is_so();
        if !is_now {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        is_now
    })
}

/// A server that can be taken over, with what it serves and to whom.
struct Served {
    atlas: Atlas,
    link: &'static str,
    address: &'static str,
    client: Lab,
    lab: Lab,
    program: Program,
    directory: TempDir,
    bytes: Vec<u8>,
}

impl Served {
    /// `None`, said aloud, where there are no namespaces or no strace.
    fn start(link: &'static str, settings: &str) -> Option<Self> {
        let (program, lab) = (Program::new()?, Lab::new()?);
        let (directory, bytes) = directory();
        let client = lab.join_by_veth();
        let (_, address, words) = place((&lab, &client), link);
        let (_, file) = configuration(directory.path(), settings);
        let words = [&words[..], &["--config", &file[1]]].concat();
        let mut atlas = Atlas::start_at(&lab, &program.path(), directory.path(), &words);
        atlas.ready();
        Some(Self {
            atlas,
            link,
            address,
            client,
            lab,
            program,
            directory,
            bytes,
        })
    }

    /// Where its clients are.
    fn clients(&self) -> &Lab {
        match self.link {
            "tap" => &self.lab,
            _ => &self.client,
        }
    }

    fn view(&self) -> Viewer {
        Viewer::begin(self.clients(), &format!("{}:80", self.address))
    }

    /// Whether somebody serves a new client.
    fn is_served(&self) -> bool {
        let url = format!("http://{}/film.bin", self.address);
        self.clients().try_curl(&[&url]).stdout == self.bytes
    }

    fn held(&self) -> Held {
        held(&self.lab, self.atlas.id(), self.directory.path())
    }

    /// Waits until it holds what it held.
    fn assert_held(&self, expected: &Held, what: &str) {
        if !is_so_in_time(|| self.held() == *expected) {
            assert_eq!(self.held(), *expected, "{what}");
        }
    }

    /// Which processes can be asked for a reload: those that serve new clients.
    fn is_asked(&self, id: u32) -> bool {
        names(&self.lab).contains(&format!("control/{id}"))
    }

    /// The viewer sees all of the film, and the server ends.
    fn finish(self, mut viewer: Viewer) {
        viewer.finish(&self.bytes);
        drop(viewer);
        self.atlas.signal(libc::SIGTERM);
        assert_eq!(self.atlas.end().code, Some(0));
    }
}

#[test]
fn a_process_that_dies_at_any_step_of_taking_over_leaves_viewers_and_nothing_else() {
    for link in LINKS {
        let Some(mut served) = Served::start(link, "") else {
            return;
        };
        assert!(served.is_served());
        let mut viewer = served.view();
        let before = served.held();
        let mut successors = Successors::default();
        let (mut failed, mut taken_back) = (0, 0);
        for (call, when) in STEPS {
            served.program.set_fault(call, when, "signal=KILL");
            let what = format!("{link}: {call} {when}");
            let output = reload(&served.lab, &[]);
            if output.status.success() {
                // It got further: then it dies as the one that has the link.
                taken_back += 1;
                kill("-KILL", successors.add(&output));
                let told = "the process that took over has ended: this one serves on";
                served.atlas.stderr_line(told);
            } else {
                failed += 1;
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(text.contains("signal: 9"), "{what}: {text}");
            }
            assert!(served.is_served(), "{what}");
            viewer.read_more();
            served.assert_held(&before, &what);
        }
        assert!(
            failed > STEPS.len() / 2,
            "{link}: {failed} failed, {taken_back} taken back"
        );
        served.finish(viewer);
    }
}

/// Steps of a process that takes over: from its first instruction to what it does as the one that has the link.
const STEPS: [(&str, u32); 9] = [
    ("openat", 1),
    // What the other said.
    ("recvmsg", 1),
    ("bind", 2),
    ("setsockopt", 4),
    // The XDP program; on another link it has taken over by then.
    ("bpf", 1),
    ("io_uring_setup", 1),
    ("socketpair", 6),
    // That it is ready, and that it has taken over: it receives then.
    ("sendmsg", 1),
    ("sendmsg", 2),
];

#[test]
fn a_process_that_hangs_before_it_is_ready_or_in_the_switch_is_killed() {
    for link in LINKS {
        // Before it is ready, and once it has said so: its first message.
        for (call, seconds, reason) in [
            ("io_uring_setup", 1, "it was not ready after 1 s"),
            ("sendmsg", 60, "it did not receive after"),
        ] {
            let settings = format!("take_over_start_seconds = {seconds}");
            let Some(served) = Served::start(link, &settings) else {
                return;
            };
            let mut viewer = served.view();
            let before = served.held();
            served.program.set_fault(call, 1, "signal=STOP");
            let told = refusal(&served.lab, &[]);
            assert!(told.contains(reason), "{link}: {told}");
            viewer.read_more();
            assert!(served.is_served());
            served.assert_held(&before, link);
            served.finish(viewer);
        }
    }
}

#[test]
fn the_end_of_the_service_in_the_midst_of_the_switch_waits_for_replies() {
    for link in LINKS {
        let Some(mut served) = Served::start(link, "shutdown_grace_seconds = 60") else {
            return;
        };
        let mut viewer = served.view();
        let sockets = |served: &Served| served.held().descriptors["socket"];
        let before = sockets(&served);
        // It is ready, and does not receive.
        served.program.set_fault("sendmsg", 1, "signal=STOP");
        let mut asker = served.lab.command(BINARY);
        let mut asker = asker.arg("reload").stderr(Stdio::null()).spawn().unwrap();
        // Who asks, the messages, and where packets are to cross: then it has let go of the link.
        assert!(is_so_in_time(|| sockets(&served) == before + 4), "{link}");
        served.atlas.signal(libc::SIGTERM);
        served.atlas.stderr_line("finishing, then ending");
        viewer.finish(&served.bytes);
        drop(viewer);
        assert_eq!(served.atlas.end().code, Some(0), "{link}");
        assert_eq!(asker.wait().unwrap().code(), Some(1), "{link}");
    }
}

#[test]
fn of_three_processes_no_two_have_the_link_when_the_second_ends_in_the_midst() {
    // Its messages to both others, and what it hears of them.
    let messages = (3..5).map(|when| ("sendmsg", when));
    let steps: Vec<_> = messages
        .chain((1..9).map(|when| ("recvmsg", when)))
        .collect();
    for link in ["tap", "xdp"] {
        let mut is_received = [false; 2];
        for &(call, when) in &steps {
            let Some(mut served) = Served::start(link, "") else {
                return;
            };
            let what = format!("{link}: {call} {when}");
            // Whom the first one has to serve, or it ends.
            let viewer = served.view();
            let mut successors = Successors::default();
            let second = successors.add(&reload(&served.lab, &["--take-over"]));
            let before = served.program.processes();
            let tracer = Tracer::attach(second, call, when);
            let output = reload(&served.lab, &["--take-over"]);
            if output.status.success() {
                // It got further than that, and may be dying.
                successors.add(&output);
                let words = ["-KILL", &second.to_string()];
                let _ = Command::new("kill").args(words).output();
            }
            drop(tracer);
            assert_gone(second);
            let third = || {
                let mut others = served.program.processes();
                others.retain(|id| !before.contains(id));
                others
            };
            let is_asked = || third().iter().any(|id| served.is_asked(*id));
            assert!(is_so_in_time(|| third().is_empty() || is_asked()), "{what}");
            let told = served.atlas.stderr_line(" has ended: ");
            let has = [told.contains("this one serves on"), !third().is_empty()];
            assert_ne!(has, [true; 2], "{what}: two have the link");
            if has.contains(&true) {
                assert!(served.is_served(), "{what}");
            }
            is_received[0] |= has[0];
            is_received[1] |= has[1];
            for id in third() {
                // Its helpers end with it.
                let _ = Command::new("kill").arg(id.to_string()).output();
                assert_gone(id);
            }
            drop(viewer);
            served.atlas.signal(libc::SIGTERM);
            assert_eq!(served.atlas.end().code, Some(0), "{what}");
        }
        assert_eq!(is_received, [true; 2], "{link}: the first, the third");
    }
}

#[test]
fn the_end_of_the_process_before_in_the_midst_leaves_one_that_serves_or_nothing() {
    for link in LINKS {
        let mut ended = 0;
        for (call, when) in [
            // What it says first, its order to start another, and that the other may receive.
            ("sendmsg", 1),
            ("sendmsg", 2),
            ("sendmsg", 3),
            // What it hears.
            ("recvmsg", 1),
            ("recvmsg", 2),
            ("recvmsg", 3),
        ] {
            let Some(served) = Served::start(link, "") else {
                return;
            };
            let viewer = served.view();
            let tracer = Tracer::attach(served.atlas.id(), call, when);
            let what = format!("{link}: {call} {when}");
            let output = reload(&served.lab, &["--take-over"]);
            let mut successors = Successors::default();
            if output.status.success() {
                // It got further than that.
                successors.add(&output);
                served.atlas.signal(libc::SIGKILL);
            }
            drop(tracer);
            // Whoever goes on has its stderr.
            assert_gone(served.atlas.id());
            drop(viewer);
            // It can be asked once it serves.
            let left = || served.program.processes();
            let is_asked = || left().iter().any(|id| served.is_asked(*id));
            assert!(is_so_in_time(|| left().is_empty() || is_asked()), "{what}");
            let left = left();
            let lab = &served.lab;
            if left.is_empty() {
                ended += 1;
                // Nothing of it is in the way of another server, once the kernel has closed what it had.
                assert!(is_so_in_time(|| names(lab).is_empty()), "{what}");
                let (_, _, words) = place((lab, &served.client), link);
                let mut next = Atlas::start(lab, served.directory.path(), &words);
                next.ready();
                assert!(served.is_served(), "{what}");
                next.signal(libc::SIGTERM);
                assert_eq!(next.end().code, Some(0), "{what}");
            } else {
                assert!(served.is_served(), "{what}");
            }
            for id in left {
                // Its helpers end with it.
                let _ = Command::new("kill").arg(id.to_string()).output();
                assert_gone(id);
            }
            let links = lab.show(&["-details", "link", "show"]);
            assert!(!links.contains("xdp"), "{what}: {links}");
            assert!(!links.contains("atlas0"), "{what}: {links}");
        }
        assert!(ended > 0, "{link}");
    }
}

/// Ends the main thread's process at its `when`-th call of a kind from now on.
struct Tracer(std::process::Child);

impl Tracer {
    fn attach(id: u32, call: &str, when: u32) -> Self {
        let mut command = Command::new("strace");
        command.args(["-o", "/dev/null", "-e", "signal=none"]);
        command.args(["-e", &format!("trace={call}")]);
        command.args(["-e", &format!("inject={call}:signal=KILL:when={when}")]);
        let child = command.args(["-p", &id.to_string()]).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // It says so when it is attached.
        let mut line = String::new();
        let stderr = child.stderr.take().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "{line}");
        Self(child)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
