//! A process that dies or hangs at every step of taking over, and one that dies while it is taken over from: those who
//! are left keep their viewers, and nothing is left behind.
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

/// Waits until it holds what it held.
fn assert_held(lab: &Lab, id: u32, served: &Path, expected: &Held, what: &str) {
    for _ in 0..300 {
        if held(lab, id, served) == *expected {
            return;
        }
        // The kernel closes a dead process's sockets a little later.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(held(lab, id, served), *expected, "{what}");
}

#[test]
fn a_process_that_dies_at_any_step_of_taking_over_leaves_viewers_and_nothing_else() {
    for link in LINKS {
        let Some(program) = Program::new() else {
            return;
        };
        let Some(lab) = Lab::new() else { return };
        let (directory, bytes) = directory();
        let served = directory.path();
        let client = lab.join_by_veth();
        let (from, address, words) = place((&lab, &client), link);
        let mut atlas = Atlas::start_at(&lab, &program.path(), served, &words);
        atlas.ready();
        let url = format!("http://{address}/film.bin");
        assert!(from.curl(&[&url]) == bytes);
        let mut viewer = Viewer::begin(from, &format!("{address}:80"));
        let before = held(&lab, atlas.id(), served);
        let mut successors = Successors::default();
        let (mut failed, mut taken_back) = (0, 0);
        for (call, when) in STEPS {
            program.set_fault(call, when, "signal=KILL");
            let what = format!("{link}: {call} {when}");
            let output = reload(&lab, &[]);
            if output.status.success() {
                // It got further: then it dies as the one that has the link.
                taken_back += 1;
                kill("-KILL", successors.add(&output));
                atlas.stderr_line("the process that took over has ended: this one serves on");
            } else {
                failed += 1;
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(text.contains("signal: 9"), "{what}: {text}");
            }
            assert!(from.curl(&[&url]) == bytes, "{what}");
            viewer.read_more();
            assert_held(&lab, atlas.id(), served, &before, &what);
        }
        assert!(
            failed > STEPS.len() / 2,
            "{link}: {failed} failed, {taken_back} taken back"
        );
        viewer.finish(&bytes);
        drop(viewer);
        atlas.signal(libc::SIGTERM);
        assert_eq!(atlas.end().code, Some(0));
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
            let Some(program) = Program::new() else {
                return;
            };
            let Some(lab) = Lab::new() else { return };
            let (directory, bytes) = directory();
            let served = directory.path();
            let client = lab.join_by_veth();
            let (from, address, words) = place((&lab, &client), link);
            let text = format!("take_over_start_seconds = {seconds}");
            let (_, file) = configuration(served, &text);
            let words = [&words[..], &["--config", &file[1]]].concat();
            let mut atlas = Atlas::start_at(&lab, &program.path(), served, &words);
            atlas.ready();
            let mut viewer = Viewer::begin(from, &format!("{address}:80"));
            let before = held(&lab, atlas.id(), served);
            program.set_fault(call, 1, "signal=STOP");
            let told = refusal(&lab, &[]);
            assert!(told.contains(reason), "{link}: {told}");
            viewer.read_more();
            assert!(from.curl(&[&format!("http://{address}/film.bin")]) == bytes);
            assert_held(&lab, atlas.id(), served, &before, link);
            viewer.finish(&bytes);
            drop(viewer);
            atlas.signal(libc::SIGTERM);
            assert_eq!(atlas.end().code, Some(0));
        }
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
            let Some(program) = Program::new() else {
                return;
            };
            let Some(lab) = Lab::new() else { return };
            let (directory, bytes) = directory();
            let client = lab.join_by_veth();
            let (from, address, words) = place((&lab, &client), link);
            let url = format!("http://{address}/film.bin");
            let mut atlas = Atlas::start_at(&lab, &program.path(), directory.path(), &words);
            atlas.ready();
            let viewer = Viewer::begin(from, &format!("{address}:80"));
            let tracer = Tracer::attach(atlas.id(), call, when);
            let what = format!("{link}: {call} {when}");
            let output = reload(&lab, &["--take-over"]);
            let mut successors = Successors::default();
            if output.status.success() {
                // It got further than that.
                successors.add(&output);
                atlas.signal(libc::SIGKILL);
            }
            drop(tracer);
            // Whoever goes on has its stderr.
            assert_gone(atlas.id());
            drop(viewer);
            let is_served = || from.try_curl(&[&url]).stdout == bytes;
            // It can be asked once it serves.
            let is_asked = || names(&lab).iter().any(|name| name.starts_with("control/"));
            while !is_asked() && !program.processes().is_empty() {
                std::thread::yield_now();
            }
            let left = program.processes();
            if left.is_empty() {
                ended += 1;
                // Nothing of it is in the way of another server, once the kernel has closed what it had.
                while !names(&lab).is_empty() {
                    std::thread::yield_now();
                }
                let mut next = Atlas::start(&lab, directory.path(), &words);
                next.ready();
                assert!(is_served(), "{what}");
                next.signal(libc::SIGTERM);
                assert_eq!(next.end().code, Some(0), "{what}");
            }
            if !left.is_empty() {
                assert!(is_served(), "{what}");
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
