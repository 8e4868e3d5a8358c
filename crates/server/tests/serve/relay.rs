//! The server over a relay, as an ordinary user: what reaches clients of the host's own TCP.
//!
//! These need no capability and no interface, only io_uring and loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::lab::SILENCE_MAX;
use crate::{content, directory};

/// A user that has no name, no group and no capability; this process's own where it may not change.
const NOBODY_ID: u32 = 54_321;

/// The program, as that user.
fn ordinary(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
    command.args(words);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY_ID).gid(NOBODY_ID);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that says where it is, killed when dropped.
struct Relayed {
    child: Child,
    /// What it said on stdout up to its `ready` line.
    said: String,
    /// Where it is, like `127.0.0.1:8080`.
    place: String,
}

impl Relayed {
    fn start(words: &[&str]) -> Self {
        let mut child = ordinary(words).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.lines().any(|line| line.starts_with("ready ")) {
            if stdout.read_line(&mut said).unwrap() == 0 {
                let mut reason = String::new();
                let mut stderr = child.stderr.take().unwrap();
                stderr.read_to_string(&mut reason).unwrap();
                panic!("it does not serve: {said}{reason}");
            }
        }
        let (_, place) = said.rsplit_once("http://").unwrap();
        let place = place.trim_end().trim_end_matches('/').to_owned();
        Self { child, said, place }
    }

    fn tried(directory: &Path) -> Self {
        // A port that is free now. Two servers that choose at once could choose the same.
        let port = free_port().to_string();
        Self::start(&["try", directory.to_str().unwrap(), "--port", &port])
    }

    /// What comes back for these bytes, up to the end of the connection.
    fn exchange(&self, request: &str) -> Vec<u8> {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        reply
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(&self.place).unwrap();
        client.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        client
    }

    /// Has it end: its exit code, and stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn body(reply: &[u8]) -> &[u8] {
    let end = reply.windows(4).position(|it| it == b"\r\n\r\n");
    &reply[end.expect("a head") + 4..]
}

const WHOLE: &str = "GET /film.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn an_ordinary_user_tries_a_directory_and_every_byte_arrives() {
    let (directory, bytes) = directory();
    let server = Relayed::tried(directory.path());
    let url = format!("http://{}/film.bin\n", server.place);
    assert!(server.said.contains(&url), "{}", server.said);
    let reply = server.exchange(WHOLE);
    assert!(reply.starts_with(b"HTTP/1.1 200 "));
    assert!(body(&reply) == bytes, "other bytes");
    let ranged = "GET /film.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=65530-200007\r\nConnection: close\r\n\r\n";
    let reply = server.exchange(ranged);
    assert!(reply.starts_with(b"HTTP/1.1 206 "));
    assert!(body(&reply) == &bytes[65_530..=200_007], "other bytes");
    let (code, stderr) = server.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        !stderr.contains(" WARN ") && !stderr.contains(" ERROR "),
        "{stderr}"
    );
}

#[test]
fn many_clients_of_a_relay_at_once_get_each_their_own_bytes() {
    let (directory, _) = directory();
    for number in 0..40 {
        let name = directory.path().join(format!("{number}"));
        std::fs::write(name, content(200_000 + number)).unwrap();
    }
    let server = Relayed::tried(directory.path());
    std::thread::scope(|scope| {
        for number in 0..40 {
            let server = &server;
            scope.spawn(move || {
                let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
                let mut client = server.connect();
                // Two requests on one connection, whose client then closes its side.
                client.write_all(request.repeat(2).as_bytes()).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let mut replies = Vec::new();
                client.read_to_end(&mut replies).unwrap();
                let expected = content(200_000 + number);
                assert!(body(&replies).starts_with(&expected), "{number}");
                assert!(replies.ends_with(&expected), "{number}");
            });
        }
    });
}

#[test]
fn a_reply_that_is_cut_short_ends_in_a_reset_behind_a_relay() {
    let (directory, _) = directory();
    let film = directory.path().join("film.bin");
    // Larger than all buffers on the way, so that some of it is read only after the change.
    std::fs::write(&film, content(60_000_000)).unwrap();
    let server = Relayed::tried(directory.path());
    let mut client = server.connect();
    client.write_all(WHOLE.as_bytes()).unwrap();
    client.read_exact(&mut [0; 1_000]).unwrap();
    std::fs::write(&film, content(1_000)).unwrap();
    let mut rest = Vec::new();
    let error = client.read_to_end(&mut rest).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_port_of_a_relay_that_is_taken_may_be_free_later_and_a_file_is_no_directory() {
    let (directory, _) = directory();
    let path = directory.path().to_str().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = ordinary(&["try", path, "--port", &port]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{stderr}");
    assert!(stderr.contains("ss -ltnp"), "{stderr}");
    let file = format!("{path}/film.bin");
    let output = ordinary(&["try", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
