//! The load: long-lived connections, each object asked once, the next the moment one is complete.
//!
//! It runs as a process of its own, in the client's namespace, pinned to the client's core. Heads
//! are read and checked; bodies are counted and thrown away inside the kernel (`MSG_TRUNC`), so
//! what is measured is the server. Between sweeps it sleeps [`PAUSE`]: woken per segment instead,
//! it would slow the server's core with wake-ups. Outside the timed window a sample of objects is
//! fetched whole and every byte compared. Bounded by: a deadline on the whole run.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::cores::CoreTime;
use super::disk::{Objects, read_bytes};

/// Sleep between two sweeps over the connections.
const PAUSE: Duration = Duration::from_millis(1);

/// The most a single discarding read may take: more than a socket ever holds.
const DISCARD_BYTES: usize = 16 << 20;

/// Largest reply head, bytes.
const HEAD_BYTES_MAX: usize = 4096;

/// What the load is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientOptions {
    /// The server.
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// Connections at once.
    #[arg(long)]
    pub(crate) connections: usize,
    /// How many objects there are.
    #[arg(long)]
    pub(crate) objects: u64,
    /// Size of each, bytes.
    #[arg(long)]
    pub(crate) object_bytes: u64,
    /// Objects of the verification sample.
    #[arg(long)]
    pub(crate) sample: u64,
    /// The server's core.
    #[arg(long)]
    pub(crate) server_core: usize,
    /// The client's core.
    #[arg(long)]
    pub(crate) client_core: usize,
    /// The block device the objects are on, without `/dev/`.
    #[arg(long)]
    pub(crate) device: String,
    /// Gives up after this many seconds.
    #[arg(long)]
    pub(crate) limit_seconds: u64,
}

/// What one run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// From the first request to the last byte, seconds.
    pub(crate) seconds: f64,
    /// Body bytes received in that time.
    pub(crate) body_bytes: u64,
    /// Bytes read from the objects' disk in that time.
    pub(crate) disk_read_bytes: u64,
    /// Complete replies with status 200 and the right length. Anything else ends the run.
    pub(crate) replies: u64,
    /// Objects fetched again afterwards and found right, byte by byte.
    pub(crate) verified: u64,
    /// The server's core in that time.
    pub(crate) server_core: CoreTime,
    /// The client's core in that time.
    pub(crate) client_core: CoreTime,
}

/// Runs the load and prints what it found as one line of JSON.
pub(crate) fn run(options: &ClientOptions) -> Result<()> {
    let measured = Load::connect(options)?.run()?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// Where a connection is in its reply.
#[derive(Debug)]
enum Reading {
    Head(Vec<u8>),
    Body {
        left_bytes: u64,
    },
    /// No objects are left to ask for.
    Done,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    reading: Reading,
}

#[derive(Debug)]
struct Load<'a> {
    options: &'a ClientOptions,
    objects: Objects,
    connections: Vec<Connection>,
    /// The next object nobody has asked for.
    next: u64,
    replies: u64,
    body_bytes: u64,
    /// Never written: `MSG_TRUNC` on TCP throws the bytes away in the kernel.
    discard: Vec<u8>,
    deadline: Instant,
}

impl<'a> Load<'a> {
    fn connect(options: &'a ClientOptions) -> Result<Self> {
        let connections = (0..options.connections)
            .map(|_| {
                let stream = TcpStream::connect_timeout(&options.server, Duration::from_secs(10))
                    .with_context(|| format!("connecting to {}", options.server))?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Connection {
                    stream,
                    reading: Reading::Done,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            options,
            objects: Objects {
                count: options.objects,
                bytes: options.object_bytes,
            },
            connections,
            next: 0,
            replies: 0,
            body_bytes: 0,
            discard: vec![0; DISCARD_BYTES],
            deadline: Instant::now() + Duration::from_secs(options.limit_seconds),
        })
    }

    fn run(mut self) -> Result<Measured> {
        let cores = || -> Result<_> {
            let options = self.options;
            Ok((
                CoreTime::now(options.server_core)?,
                CoreTime::now(options.client_core)?,
            ))
        };
        let read_before = read_bytes(&self.options.device)?;
        let before = cores()?;
        let start = Instant::now();
        for index in 0..self.connections.len() {
            self.ask(index)?;
        }
        while self.replies < self.objects.count {
            for index in 0..self.connections.len() {
                self.sweep(index)?;
            }
            if Instant::now() > self.deadline {
                bail!(
                    "{} of {} replies at the deadline",
                    self.replies,
                    self.objects.count
                );
            }
            std::thread::sleep(PAUSE);
        }
        let seconds = start.elapsed().as_secs_f64();
        let options = self.options;
        let server_core = CoreTime::now(options.server_core)? - before.0;
        let client_core = CoreTime::now(options.client_core)? - before.1;
        let disk_read_bytes = read_bytes(&options.device)? - read_before;
        let verified = self.verify()?;
        Ok(Measured {
            seconds,
            body_bytes: self.body_bytes,
            disk_read_bytes,
            replies: self.replies,
            verified,
            server_core,
            client_core,
        })
    }

    /// Asks for the next object, if one is left.
    fn ask(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        if self.next == self.objects.count {
            connection.reading = Reading::Done;
            return Ok(());
        }
        let path = Objects::path(self.next);
        self.next += 1;
        let request = format!("GET {path} HTTP/1.1\r\nHost: atlas\r\n\r\n");
        // A hundred bytes into an empty send buffer: a short write cannot happen.
        connection
            .stream
            .write_all(request.as_bytes())
            .context("sending a request")?;
        connection.reading = Reading::Head(Vec::new());
        Ok(())
    }

    /// Takes what has arrived on one connection; asks again when a reply is complete.
    fn sweep(&mut self, index: usize) -> Result<()> {
        loop {
            let connection = &mut self.connections[index];
            let got = match &mut connection.reading {
                Reading::Done => return Ok(()),
                Reading::Head(head) => {
                    let mut piece = [0; HEAD_BYTES_MAX];
                    let got = receive(&connection.stream, &mut piece, RecvFlags::empty())?;
                    head.extend_from_slice(&piece[..got]);
                    if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                        check_head(&head[..end], self.objects.bytes)?;
                        let early = (head.len() - end - 4) as u64;
                        self.body_bytes += early;
                        let left_bytes = self
                            .objects
                            .bytes
                            .checked_sub(early)
                            .context("more than one reply at once")?;
                        connection.reading = Reading::Body { left_bytes };
                    } else {
                        ensure!(head.len() < HEAD_BYTES_MAX, "a reply head above 4 KiB");
                    }
                    got
                }
                Reading::Body { left_bytes } => {
                    let want = usize::try_from(*left_bytes)
                        .map_or(DISCARD_BYTES, |left| left.min(DISCARD_BYTES));
                    let into = &mut self.discard[..want];
                    let got = receive(&connection.stream, into, RecvFlags::TRUNC)?;
                    *left_bytes -= got as u64;
                    self.body_bytes += got as u64;
                    got
                }
            };
            if matches!(connection.reading, Reading::Body { left_bytes: 0 }) {
                self.replies += 1;
                self.ask(index)?;
            }
            if got == 0 {
                return Ok(());
            }
        }
    }

    /// Fetches a sample spread over all objects and compares every byte.
    fn verify(&self) -> Result<u64> {
        let sample = self.options.sample.min(self.objects.count);
        for step in 0..sample {
            let index = step * self.objects.count / sample;
            let stream = &self.connections[usize::try_from(step)? % self.connections.len()].stream;
            self.verify_object(stream, index)
                .with_context(|| format!("object {index}"))?;
        }
        Ok(sample)
    }

    fn verify_object(&self, mut stream: &TcpStream, index: u64) -> Result<()> {
        use std::io::Read as _;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let path = Objects::path(index);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: atlas\r\n\r\n").as_bytes())?;
        let mut reply = Vec::new();
        let mut byte = [0];
        while !reply.ends_with(b"\r\n\r\n") {
            ensure!(reply.len() < HEAD_BYTES_MAX, "a reply head above 4 KiB");
            stream.read_exact(&mut byte)?;
            reply.push(byte[0]);
        }
        check_head(&reply, self.objects.bytes)?;
        let mut body = vec![0; usize::try_from(self.objects.bytes)?];
        stream.read_exact(&mut body)?;
        self.objects.content(index).check(0, &body)
    }
}

/// Bytes received, 0 when none wait. The end of the stream is an error here.
fn receive(stream: &TcpStream, into: &mut [u8], flags: RecvFlags) -> Result<usize> {
    match recv(stream, into, flags) {
        Ok((_, 0)) => bail!("the server closed a connection"),
        Ok((_, bytes)) => Ok(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error).context("receiving"),
    }
}

/// Refuses anything but 200 with the expected length.
fn check_head(head: &[u8], object_bytes: u64) -> Result<()> {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    ensure!(
        text.starts_with("http/1.1 200 "),
        "not a 200: {:?}",
        text.lines().next()
    );
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|value| value.trim().parse::<u64>().ok());
    ensure!(
        length == Some(object_bytes),
        "Content-Length is {length:?}, not {object_bytes}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_reply_passes() {
        let good = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert!(check_head(good, 5).is_ok());
        assert!(check_head(good, 6).is_err());
        assert!(check_head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n", 5).is_err());
        assert!(check_head(b"HTTP/1.1 200 OK\r\n\r\n", 5).is_err());
    }
}
