//! Another process takes over while viewers are in mid-stream, and what becomes of one that cannot.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use super::lab::{Atlas, Lab};
use super::privileges::{assert_gone, kill};
use super::{directory, set_mode};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_atlas");
const REQUEST: &[u8] = b"GET /film.bin HTTP/1.1\r\nHost: a\r\n\r\n";

/// Processes that took over: ended with the test, however it ends.
#[derive(Default)]
pub(crate) struct Successors(Vec<u32>);

impl Successors {
    /// Has another process take over, and returns its number.
    fn reload(&mut self, lab: &Lab, words: &[&str]) -> u32 {
        self.add(&reload(lab, words))
    }

    /// The one that a reload has told of.
    pub(crate) fn add(&mut self, output: &Output) -> u32 {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{stderr}");
        let id = text
            .strip_prefix("process ")
            .and_then(|it| it.split(' ').next());
        let id = id.and_then(|id| id.parse().ok());
        let id = id.unwrap_or_else(|| panic!("nobody took over: {text}"));
        self.0.push(id);
        id
    }

    /// Ends the last one in good order.
    fn stop(mut self) {
        let last = self.0.last().copied().unwrap();
        kill("-TERM", last);
        self.0.drain(..).for_each(assert_gone);
    }
}

impl Drop for Successors {
    fn drop(&mut self) {
        for id in &self.0 {
            let word = id.to_string();
            let _ = std::process::Command::new("kill")
                .args(["-KILL", &word])
                .output();
        }
    }
}

pub(crate) fn reload(lab: &Lab, words: &[&str]) -> Output {
    let mut command = lab.command(BINARY);
    command.arg("reload").args(words).output().unwrap()
}

/// Why nothing changed.
pub(crate) fn refusal(lab: &Lab, words: &[&str]) -> String {
    let output = reload(lab, words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A viewer in mid-stream, who has read a little.
pub(crate) struct Viewer {
    stream: TcpStream,
    reply: Vec<u8>,
}

impl Viewer {
    pub(crate) fn begin(lab: &Lab, address: &str) -> Self {
        let mut stream = lab.connect(address);
        stream.write_all(REQUEST).unwrap();
        let mut reply = vec![0; 1000];
        stream.read_exact(&mut reply).unwrap();
        Self { stream, reply }
    }

    /// Reads to the end of the reply, whose body must be this; the connection stays open.
    pub(crate) fn finish(&mut self, body: &[u8]) -> String {
        let head_bytes = loop {
            if let Some(end) = self.reply.windows(4).position(|it| it == b"\r\n\r\n") {
                break end + 4;
            }
            self.read_more();
        };
        while self.reply.len() < head_bytes + body.len() {
            self.read_more();
        }
        assert!(self.reply[head_bytes..] == *body, "not the file's bytes");
        let head = String::from_utf8_lossy(&self.reply[..head_bytes]).to_lowercase();
        self.reply.clear();
        head
    }

    pub(crate) fn read_more(&mut self) {
        let mut part = vec![0; 65_536];
        let length = self.stream.read(&mut part).unwrap();
        assert!(length > 0, "closed after {} bytes", self.reply.len());
        self.reply.extend_from_slice(&part[..length]);
    }

    /// Asks once more: the reply must say that it is the last one.
    fn finish_with_last(&mut self, body: &[u8]) {
        let head = self.finish(body);
        assert!(!head.contains("connection: close"), "{head}");
        self.stream.write_all(REQUEST).unwrap();
        let head = self.finish(body);
        assert!(head.contains("connection: close"), "{head}");
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0);
    }
}

/// Who asks at which address, and the words that say so to a server, of each kind of link.
pub(crate) fn place<'a>(
    (lab, client): (&'a Lab, &'a Lab),
    link: &str,
) -> (&'a Lab, &'static str, Vec<&'static str>) {
    let at_veth = |link| {
        (
            client,
            "10.78.0.2",
            vec!["--link", link, "--address", "10.78.0.2/24"],
        )
    };
    match link {
        "tap" => (lab, "10.77.0.2", Vec::new()),
        "packet" => at_veth("packet:server0"),
        "xdp" => at_veth("xdp:server0"),
        "xdp+packet" => at_veth("xdp+packet:server0"),
        // At the host's own address.
        "xdp, shared" => {
            lab.ip(&["address", "add", "10.78.0.3/24", "dev", "server0"]);
            (client, "10.78.0.3", vec!["--link", "xdp:server0"])
        }
        _ => panic!("no link {link}"),
    }
}

/// A configuration file, and the words that name it.
pub(crate) fn configuration(directory: &Path, text: &str) -> (PathBuf, [String; 2]) {
    let config = directory.join("atlas.toml");
    fs::write(&config, text).unwrap();
    let words = ["--config".to_owned(), config.to_str().unwrap().to_owned()];
    (config, words)
}

fn assert_orderly(atlas: Atlas) -> String {
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    for word in ["panicked", "ERROR"] {
        assert!(!end.stderr.contains(word), "{}", end.stderr);
    }
    end.stderr
}

#[test]
fn viewers_in_mid_stream_notice_no_take_over_on_any_link() {
    for (link, workers) in [
        ("tap", "1"),
        ("tap", "2"),
        ("packet", "1"),
        ("packet", "2"),
        ("xdp", "1"),
        ("xdp+packet", "1"),
        ("xdp, shared", "1"),
    ] {
        let Some(lab) = Lab::new() else { return };
        let (directory, bytes) = directory();
        let client = lab.join_by_veth();
        let (from, address, words) = place((&lab, &client), link);
        let words = [&words[..], &["--workers", workers]].concat();
        let mut atlas = Atlas::start(&lab, directory.path(), &words);
        atlas.ready();
        let at = format!("{address}:80");
        let url = format!("http://{address}/film.bin");
        let mut viewers: Vec<_> = (0..8).map(|_| Viewer::begin(from, &at)).collect();
        let mut successors = Successors::default();
        for _ in 0..3 {
            successors.reload(&lab, &["--take-over"]);
            // The one that took over takes new connections, and its viewers are taken over next.
            assert!(from.curl(&[&url]) == bytes, "{link} {workers}");
            viewers.push(Viewer::begin(from, &at));
        }
        let last = viewers.pop().unwrap();
        viewers
            .iter_mut()
            .for_each(|viewer| viewer.finish_with_last(&bytes));
        drop((viewers, last));
        successors.stop();
        assert_orderly(atlas);
        let left = lab.show(&["link", "show"]);
        assert!(!left.contains("atlas0") && !left.contains("xdp"), "{left}");
    }
}

#[test]
fn settings_that_need_another_process_are_taken_over_and_others_are_not() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let (config, words) = configuration(directory.path(), "workers = 1");
    let link = ["--link", "packet:server0", "--address", "10.78.0.2/24"];
    let metrics = ["--metrics", "127.0.0.1:9100", "--config", &words[1]];
    let mut atlas = Atlas::start(&lab, directory.path(), &[link, metrics].concat());
    atlas.ready();
    let mut viewer = Viewer::begin(&client, "10.78.0.2:80");
    let mut successors = Successors::default();
    for text in ["workers = 2", "workers = 1\nslots = 300"] {
        fs::write(&config, text).unwrap();
        successors.reload(&lab, &[]);
        assert_eq!(lab.curl(&["http://127.0.0.1:9100/ready"]), b"ready\n");
        assert!(client.curl(&["http://10.78.0.2/film.bin"]) == bytes);
    }
    let slots = lab.curl(&["http://127.0.0.1:9100/metrics"]);
    let slots = String::from_utf8(slots).unwrap();
    assert!(slots.contains("atlas_memory_all_slots 300"), "{slots}");
    // Nothing that needs another process.
    fs::write(&config, "workers = 1\nslots = 300\nlog = \"debug\"").unwrap();
    let output = reload(&lab, &[]);
    assert_eq!(output.stdout, b"the files are read again\n", "{output:?}");
    viewer.finish_with_last(&bytes);
    drop(viewer);
    successors.stop();
    assert_orderly(atlas);
}

#[test]
fn a_process_that_cannot_take_over_changes_nothing_and_its_reason_is_told() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let (config, words) = configuration(directory.path(), "");
    let mut atlas = Atlas::start(&lab, directory.path(), &["--config", &words[1]]);
    atlas.ready();
    let mut viewer = Viewer::begin(&lab, "10.77.0.2:80");
    for (text, reason) in [
        (
            "address = [\"10.77.0.3/24\"]",
            "another address 10.77.0.3/24 than that",
        ),
        (
            "link = \"tap:atlas1\"",
            "the server that runs is at tap:atlas0",
        ),
        ("workers = 2", "--workers 2: tap:atlas0 has 1 queues"),
        ("metrics = \"192.0.2.1:9100\"", "192.0.2.1:9100"),
    ] {
        fs::write(&config, text).unwrap();
        let told = refusal(&lab, &[]);
        assert!(told.contains(reason), "{text}: {told}");
        let logged = atlas.stderr_line("this process serves on, and nothing has changed");
        assert!(logged.contains(reason), "{logged}");
    }
    // What the file says is wrong: this process finds it, or, if it is not to look, the other.
    fs::write(&config, "slot = 300").unwrap();
    assert!(refusal(&lab, &[]).contains("slot"));
    assert!(refusal(&lab, &["--take-over"]).contains("exit status: 2"));
    viewer.finish(&bytes);
    viewer.stream.write_all(REQUEST).unwrap();
    assert!(!viewer.finish(&bytes).contains("connection: close"));
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    fs::write(&config, "").unwrap();
    let mut successors = Successors::default();
    successors.reload(&lab, &["--take-over"]);
    drop(viewer);
    successors.stop();
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn another_program_at_its_path_takes_over_and_one_that_ends_or_is_killed_does_not() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let place = TempDir::new().unwrap();
    set_mode(place.path(), 0o755);
    let program = place.path().join("atlas");
    let install = |from: &dyn Fn(&Path)| {
        let new = place.path().join("new");
        from(&new);
        set_mode(&new, 0o755);
        fs::rename(&new, &program).unwrap();
    };
    install(&|new| {
        fs::copy(BINARY, new).unwrap();
    });
    let mut atlas = Atlas::start_at(&lab, &program, directory.path(), &[]);
    atlas.ready();
    let mut viewer = Viewer::begin(&lab, "10.77.0.2:80");
    for (script, reason) in [
        ("exit 7", "exit status: 7"),
        ("kill -9 $$", "signal: 9"),
        ("exec 0>&-; exit 0", "exit status: 0"),
    ] {
        install(&|new| fs::write(new, format!("#!/bin/sh\n{script}\n")).unwrap());
        let told = refusal(&lab, &[]);
        assert!(told.contains(reason), "{script}: {told}");
        assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    }
    install(&|new| {
        fs::copy(BINARY, new).unwrap();
    });
    let mut successors = Successors::default();
    successors.reload(&lab, &[]);
    viewer.finish_with_last(&bytes);
    drop(viewer);
    successors.stop();
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn after_the_end_of_a_process_that_took_over_the_one_before_serves_on() {
    for link in ["tap", "packet", "xdp", "xdp+packet", "xdp, shared"] {
        let Some(lab) = Lab::new() else { return };
        let (directory, bytes) = directory();
        let client = lab.join_by_veth();
        let (from, address, words) = place((&lab, &client), link);
        let words = [&words[..], &["--metrics", "127.0.0.1:9100"]].concat();
        let mut atlas = Atlas::start(&lab, directory.path(), &words);
        atlas.ready();
        let mut viewer = Viewer::begin(from, &format!("{address}:80"));
        let mut successors = Successors::default();
        kill("-KILL", successors.reload(&lab, &["--take-over"]));
        atlas.stderr_line("the process that took over has ended: this one serves on");
        viewer.finish(&bytes);
        assert!(from.curl(&[&format!("http://{address}/film.bin")]) == bytes);
        assert_eq!(lab.curl(&["http://127.0.0.1:9100/ready"]), b"ready\n");
        // And it can be taken over again.
        successors.reload(&lab, &["--take-over"]);
        viewer.stream.write_all(REQUEST).unwrap();
        assert!(viewer.finish(&bytes).contains("connection: close"));
        drop(viewer);
        successors.stop();
        assert_eq!(atlas.end().code, Some(0));
    }
}

#[test]
fn what_an_xdp_link_has_of_its_sockets_and_of_the_host_cannot_change() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let client = lab.join_by_veth();
    let (from, address, words) = place((&lab, &client), "xdp, shared");
    let (config, file) = configuration(directory.path(), "http = 80");
    let words = [&words[..], &["--config", &file[1]]].concat();
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let mut viewer = Viewer::begin(from, &format!("{address}:80"));
    for (text, reason) in [
        ("http = 81", "port 80 of the host's addresses has clients"),
        ("zero_copy = \"off\"", "another zero copy off than that"),
        ("busy_poll_us = 50", "another busy_poll_us 50 than that"),
        ("workers = 2", "1 receive queue for 2 workers"),
    ] {
        fs::write(&config, text).unwrap();
        let told = refusal(&lab, &["--take-over"]);
        assert!(told.contains(reason), "{text}: {told}");
    }
    fs::write(&config, "http = 80\nslots = 300").unwrap();
    let mut successors = Successors::default();
    successors.reload(&lab, &[]);
    viewer.finish(&bytes);
    drop(viewer);
    successors.stop();
    assert_eq!(atlas.end().code, Some(0));
    // Slots that are lent to the sockets are one process's.
    let words = [&words[..], &["--zero-copy", "on"]].concat();
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let told = refusal(&lab, &["--take-over"]);
    assert!(told.contains("with --zero-copy on"), "{told}");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn after_the_end_of_the_process_before_its_viewers_are_reset_and_others_served() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let mut viewer = Viewer::begin(&lab, "10.77.0.2:80");
    let mut successors = Successors::default();
    let successor = successors.reload(&lab, &["--take-over"]);
    let mut other = Viewer::begin(&lab, "10.77.0.2:80");
    atlas.signal(libc::SIGKILL);
    atlas.stderr_line("the process that was taken over from has ended");
    let error = viewer.stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    other.finish(&bytes);
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    assert_gone_children(successor, successors);
    assert_eq!(atlas.end().code, None);
}

fn assert_gone_children(successor: u32, successors: Successors) {
    let started = super::privileges::all_children(successor);
    assert!(!started.is_empty(), "what starts another");
    successors.stop();
    started.into_iter().for_each(assert_gone);
}

#[test]
fn the_end_of_the_service_waits_for_replies_of_both_and_is_bounded() {
    for (grace, is_finished) in [(30, true), (0, false)] {
        let Some(lab) = Lab::new() else { return };
        let (directory, bytes) = directory();
        let text = format!("shutdown_grace_seconds = {grace}");
        let (_, words) = configuration(directory.path(), &text);
        let mut atlas = Atlas::start(&lab, directory.path(), &["--config", &words[1]]);
        atlas.ready();
        let mut viewer = Viewer::begin(&lab, "10.77.0.2:80");
        let mut successors = Successors::default();
        let successor = successors.reload(&lab, &["--take-over"]);
        kill("-TERM", successor);
        // Two processes say it, in either order.
        for _ in 0..2 {
            atlas.stderr_line("finishing, then ending connections=");
        }
        if is_finished {
            viewer.finish(&bytes);
        } else {
            let error = viewer.stream.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        drop(viewer);
        assert_gone(successor);
        assert_eq!(atlas.end().code, Some(0));
    }
}

#[test]
fn the_deadline_of_a_take_over_resets_what_is_left() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let (_, words) = configuration(directory.path(), "take_over_deadline_seconds = 1");
    let mut atlas = Atlas::start(&lab, directory.path(), &["--config", &words[1]]);
    atlas.ready();
    let mut viewer = Viewer::begin(&lab, "10.77.0.2:80");
    let mut successors = Successors::default();
    successors.reload(&lab, &["--take-over"]);
    atlas.stderr_line("take_over_deadline_seconds is over: resetting them");
    let error = viewer.stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    successors.stop();
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_service_manager_hears_of_the_new_main_process_and_a_signal_is_enough() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let place = TempDir::new().unwrap();
    set_mode(place.path(), 0o755);
    let path = place.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    set_mode(&path, 0o777);
    let variable = format!("NOTIFY_SOCKET={}", path.display());
    let (config, words) = configuration(directory.path(), "");
    let words = ["--config", &words[1]];
    let mut atlas = Atlas::start_by(&lab, &["env", &variable], directory.path(), &words);
    atlas.ready();
    let hear = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    fs::write(&config, "slots = 300").unwrap();
    atlas.signal(libc::SIGHUP);
    let main = hear();
    let id = main.strip_prefix("MAINPID=").unwrap().parse().unwrap();
    let successors = Successors(vec![id]);
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    successors.stop();
    assert_eq!(hear(), "STOPPING=1");
    assert_orderly(atlas);
}

#[test]
fn where_no_process_can_take_over_that_is_said_and_the_rest_is_in_force() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let (config, words) = configuration(directory.path(), "");
    let frames = directory.path().join("frames.pcap");
    let words = ["--config", &words[1], "--pcap", frames.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let told = refusal(&lab, &["--take-over"]);
    assert!(
        told.contains("no process can take over while frames"),
        "{told}"
    );
    fs::write(&config, "slots = 300\nlog = \"debug\"").unwrap();
    let told = refusal(&lab, &[]);
    assert!(
        told.contains("these wait for a restart: slots (no process"),
        "{told}"
    );
    atlas.stderr_line("SIGHUP: the log is at debug");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
    let output = reload(&lab, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
