//! The program: its commands, its ends, and the settings that are shipped.

#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use steer::settings::Settings;

const MEMBERS: &str = r#"{"version":1,"members":[
    {"name":"e1","url":"http://e1.example","capacity_bytes":1},
    {"name":"e2","url":"http://e2.example","capacity_bytes":1}]}"#;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas-steer"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn folder(settings: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let members = folder.path().join("members.json");
    fs::write(&members, MEMBERS).unwrap();
    let text = format!("[registry]\nkind = \"file\"\npath = {members:?}\n{settings}");
    fs::write(folder.path().join("steer.toml"), text).unwrap();
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A child that is ended when the test is.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_serves_writes_and_ends_when_it_is_told_to() {
    let folder = folder("[steer]\nlisten = \"127.0.0.1:0\"\n");
    let files = folder.path().join("files");
    let mut command = program();
    command
        .arg("serve")
        .arg(folder.path().join("steer.toml"))
        .arg("--write")
        .arg(&files);
    let mut child = Ended(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let mut line_with = |text: &str| loop {
        let line = lines.next().expect("the log goes on").unwrap();
        if line.contains(text) {
            return line;
        }
    };
    let line = line_with("serving at http://");
    let address = line.rsplit("http://").next().unwrap().to_owned();
    line_with("2 members, 2 for players");
    line_with("manifests: 1 written");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream
        .write_all(b"GET /resolve?path=/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(
        reply.contains("\"e1\"") && reply.contains("\"e2\""),
        "{reply}"
    );
    let written = fs::read_to_string(files.join("steering.json")).unwrap();
    assert!(
        written.contains("e1.example") && written.contains("e2.example"),
        "{written}"
    );
    let number = child.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &number])
            .status()
            .unwrap()
            .success()
    );
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn manifests_are_written_once_for_each_title_and_only_when_they_change() {
    let folder = folder("[write]\ntitles = \"TITLES\"\n");
    let (settings, titles) = (
        folder.path().join("steer.toml"),
        folder.path().join("titles"),
    );
    let text = fs::read_to_string(&settings)
        .unwrap()
        .replace("TITLES", titles.to_str().unwrap());
    fs::write(&settings, text).unwrap();
    fs::write(&titles, "films/alien\nfilms/aliens\n").unwrap();
    let files = folder.path().join("files");
    let write = || {
        let output = program()
            .arg("write")
            .args([&settings, &files])
            .arg("--once")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(write().contains("manifests: 3 written, 0 as they were"));
    assert!(files.join("films/aliens/steering.json").exists());
    fs::write(files.join("films/alien/steering.json"), "{}").unwrap();
    assert!(write().contains("manifests: 1 written, 2 as they were"));
    // A registry that is wrong changes nothing and is an error.
    fs::write(folder.path().join("members.json"), "{").unwrap();
    let output = program()
        .arg("write")
        .args([&settings, &files])
        .arg("--once")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("nothing is written"),
        "{}",
        stderr(&output)
    );
    assert!(
        fs::read_to_string(files.join("steering.json"))
            .unwrap()
            .contains("e1.example")
    );
}

#[test]
fn an_edge_is_told_its_share_of_the_library() {
    let publish = "[layout]\ncopies = 1\n[publish]\nname = \"NAME\"\nurl = \"http://e\"\ncapacity_bytes = 1\n\
                   send_bits_a_second = 1\n";
    let mut lines = Vec::new();
    for name in ["e1", "e2"] {
        let folder = folder(&publish.replace("NAME", name));
        let path = |name: &str| folder.path().join(name);
        let library: String = (0..40)
            .map(|n| format!("{{\"name\":\"film-{n}/\"}}\n"))
            .collect();
        fs::write(path("library"), library).unwrap();
        let mut command = program();
        command
            .arg("share")
            .args([path("steer.toml"), path("library"), path("out")]);
        let output = command.arg("--once").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let share = fs::read_to_string(path("out")).unwrap();
        lines.extend(share.lines().map(str::to_owned));
        assert!(
            stderr(&output).contains("of 40 lines"),
            "{}",
            stderr(&output)
        );
    }
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 40);
}

#[test]
fn the_share_is_written_again_when_the_library_changes_or_could_be_read() {
    let publish = "[publish]\nname = \"e1\"\nurl = \"http://e\"\ncapacity_bytes = 1\nsend_bits_a_second = 1\n";
    let folder = folder(publish);
    let path = |name: &str| folder.path().join(name);
    let mut command = program();
    command
        .arg("share")
        .args([path("steer.toml"), path("library"), path("out")]);
    let mut child = Ended(command.spawn().unwrap());
    let (sender, lines) = channel();
    let stderr = BufReader::new(child.0.stderr.take().unwrap());
    std::thread::spawn(move || {
        stderr
            .lines()
            .map_while(Result::ok)
            .all(|line| sender.send(line).is_ok())
    });
    let wait_for = |text: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no line with {text}"));
            if line.contains(text) {
                return;
            }
        }
    };
    let write = |count: usize| {
        let library: String = (0..count)
            .map(|n| format!("{{\"name\":\"film-{n}/\"}}\n"))
            .collect();
        fs::write(path("new"), library).unwrap();
        fs::rename(path("new"), path("library")).unwrap();
        wait_for(&format!("{count} of {count} lines are this edge's"));
    };
    wait_for("No such file");
    for count in [3, 4] {
        write(count);
        let share = fs::read_to_string(path("out")).unwrap();
        assert_eq!(share.lines().count(), count);
    }
}

#[test]
fn settings_that_cannot_be_used_are_told_with_file_and_line() {
    let right = folder("");
    let check = |folder: &Path| {
        let output = program()
            .arg("check")
            .arg(folder.join("steer.toml"))
            .output()
            .unwrap();
        (output.status.code(), stderr(&output))
    };
    assert_eq!(check(right.path()).0, Some(0));
    let wrong = folder("[steer]\nttl_second = 5\n");
    let (code, told) = check(wrong.path());
    assert_eq!(code, Some(2));
    assert!(
        told.contains("steer.toml") && told.contains("line 5"),
        "{told}"
    );
    assert!(told.contains("ttl_seconds"), "{told}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let taken = folder(&format!("[steer]\nlisten = \"{taken}\"\n"));
    let output = program()
        .arg("serve")
        .arg(taken.path().join("steer.toml"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("listening at 127.0.0.1:"),
        "{}",
        stderr(&output)
    );
    let missing = program()
        .args(["check", "/nonexistent.toml"])
        .output()
        .unwrap();
    assert!(
        stderr(&missing).contains("reading /nonexistent.toml"),
        "{}",
        stderr(&missing)
    );
}

#[test]
fn the_settings_that_are_shipped_can_be_used() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for file in ["config/steer.toml", "kubernetes/steer.toml"] {
        Settings::read(&deploy.join(file)).unwrap();
    }
    for (file, name) in [
        ("config/publish-a.toml", "edge-a"),
        ("config/publish-b.toml", "edge-b"),
    ] {
        let settings = Settings::read(&deploy.join(file)).unwrap();
        assert_eq!(settings.publication().unwrap().1.member.name, name);
    }
}
