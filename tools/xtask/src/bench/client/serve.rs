//! The load: long-lived connections, each object asked once, the next the moment one is complete.
//!
//! Heads are read and checked; bodies are counted and thrown away inside the kernel (`MSG_TRUNC`),
//! so what is measured is the server; over TLS they are counted record by record ([`Sealed`]).
//! Outside the timed window a sample of objects is fetched whole, over TLS by rustls from end to
//! end, and every byte compared. Bounded by: a deadline on the whole run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, HEAD_BYTES_MAX, Plain, Want, check_head};
use super::sealed::Sealed;
use super::{Cores, PATIENCE, PAUSE, request};
use crate::bench::cores::CoreTime;
use crate::bench::disk::{Objects, read_bytes};
use crate::bench::tls::{Suite, Version, client_config, server_name};

/// The most a single discarding read may take: more than a socket ever holds.
const DISCARD_BYTES: usize = 16 << 20;

/// Connections the sample is fetched over.
const SAMPLE_CONNECTIONS: usize = 4;

/// Content is compared with its ciphertext in pieces of this size: by chance they are never equal.
const SEALED_PIECE_BYTES: usize = 64;

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
    /// What the sample's bodies are to be.
    #[arg(long, value_enum)]
    pub(crate) expect: Expect,
    /// Speaks this version of TLS.
    #[arg(long, value_enum, requires_all = ["suite", "authority"])]
    pub(crate) tls: Option<Version>,
    /// With this AEAD.
    #[arg(long, value_enum)]
    pub(crate) suite: Option<Suite>,
    /// And trusts this authority.
    #[arg(long)]
    pub(crate) authority: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cores: Cores,
    /// The block device the objects are on, without `/dev/`.
    #[arg(long)]
    pub(crate) device: String,
    /// Gives up after this many seconds.
    #[arg(long)]
    pub(crate) limit_seconds: u64,
}

/// What a body is to be.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// The object
    Object,
    /// As long as the object, and unlike it everywhere
    Sealed,
}

/// What one run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// From the first request to the last byte, seconds.
    pub(crate) seconds: f64,
    /// Body bytes received in that time; over TLS, before they were sealed.
    pub(crate) body_bytes: u64,
    /// TLS records they came in, heads and tickets included; 0 without TLS.
    pub(crate) records: u64,
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

/// Runs the load.
pub(super) fn run(options: &ClientOptions) -> Result<Measured> {
    Load::connect(options)?.run()
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    channel: Channel,
}

#[derive(Debug)]
struct Load<'a> {
    options: &'a ClientOptions,
    objects: Objects,
    tls: Option<Arc<ClientConfig>>,
    connections: Vec<Connection>,
    /// The next object nobody has asked for.
    next: u64,
    replies: u64,
    /// Never written: `MSG_TRUNC` on TCP throws the bytes away in the kernel.
    discard: Vec<u8>,
    deadline: Instant,
}

impl<'a> Load<'a> {
    fn connect(options: &'a ClientOptions) -> Result<Self> {
        let tls = match (options.tls, options.suite, &options.authority) {
            (Some(version), Some(suite), Some(authority)) => {
                Some(Arc::new(client_config(version, suite, authority)?))
            }
            _ => None,
        };
        let connections = (0..options.connections)
            .map(|_| {
                let mut stream = connect(options.server)?;
                let channel = match &tls {
                    Some(config) => {
                        let sealed = Sealed::connect(&mut stream, config, options.object_bytes)?;
                        Channel::Sealed(Box::new(sealed))
                    }
                    None => Channel::Plain(Plain::new(options.object_bytes)),
                };
                stream.set_nonblocking(true)?;
                Ok(Connection { stream, channel })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            options,
            objects: Objects {
                count: options.objects,
                bytes: options.object_bytes,
            },
            tls,
            connections,
            next: 0,
            replies: 0,
            discard: vec![0; DISCARD_BYTES],
            deadline: Instant::now() + Duration::from_secs(options.limit_seconds),
        })
    }

    fn run(mut self) -> Result<Measured> {
        let options = self.options;
        let read_before = read_bytes(&options.device)?;
        let before = options.cores.now()?;
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
        let after = options.cores.now()?;
        let disk_read_bytes = read_bytes(&options.device)? - read_before;
        let records = self.connections.iter().map(|one| one.channel.records());
        Ok(Measured {
            seconds,
            // Each reply had just this length, or the run would have ended.
            body_bytes: self.replies * self.objects.bytes,
            records: records.sum(),
            disk_read_bytes,
            replies: self.replies,
            verified: self.verify()?,
            server_core: after.0 - before.0,
            client_core: after.1 - before.1,
        })
    }

    /// Asks for the next object, if one is left.
    fn ask(&mut self, index: usize) -> Result<()> {
        if self.next == self.objects.count {
            return Ok(());
        }
        let request = request(&Objects::path(self.next));
        self.next += 1;
        let connection = &mut self.connections[index];
        let bytes = connection.channel.ask(request.as_bytes())?;
        // A hundred bytes into an empty send buffer: a short write cannot happen.
        connection
            .stream
            .write_all(&bytes)
            .context("sending a request")
    }

    /// Takes what has arrived on one connection; asks again when a reply is complete.
    fn sweep(&mut self, index: usize) -> Result<()> {
        loop {
            let Connection { stream, channel } = &mut self.connections[index];
            let got = match channel.want() {
                Want::Nothing => return Ok(()),
                Want::Copy(into) => receive(stream, into, RecvFlags::empty())?,
                Want::Discard(bytes) => {
                    let want =
                        usize::try_from(bytes).map_or(DISCARD_BYTES, |it| it.min(DISCARD_BYTES));
                    receive(stream, &mut self.discard[..want], RecvFlags::TRUNC)?
                }
            };
            if got == 0 {
                return Ok(());
            }
            channel.take(got)?;
            if channel.is_done() {
                self.replies += 1;
                self.ask(index)?;
            }
        }
    }

    /// Fetches a sample spread over all objects, over connections of its own.
    fn verify(&self) -> Result<u64> {
        let sample = self.options.sample.min(self.objects.count);
        let mut streams = Vec::new();
        for step in 0..sample {
            let index = step * self.objects.count / sample;
            let turn = usize::try_from(step)? % SAMPLE_CONNECTIONS;
            if turn == streams.len() {
                streams.push(self.open_sample()?);
            }
            self.verify_object(&mut *streams[turn], index)
                .with_context(|| format!("object {index}"))?;
        }
        Ok(sample)
    }

    fn open_sample(&self) -> Result<Box<dyn Stream>> {
        let stream = connect(self.options.server)?;
        Ok(match &self.tls {
            Some(config) => {
                let connection = ClientConnection::new(Arc::clone(config), server_name()?)?;
                Box::new(StreamOwned::new(connection, stream))
            }
            None => Box::new(stream),
        })
    }

    fn verify_object(&self, stream: &mut dyn Stream, index: u64) -> Result<()> {
        stream.write_all(request(&Objects::path(index)).as_bytes())?;
        stream.flush()?;
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
        let content = self.objects.content(index);
        match self.options.expect {
            Expect::Object => content.check(0, &body),
            Expect::Sealed => {
                let mut plain = vec![0; body.len()];
                content.fill(0, &mut plain);
                check_sealed(&plain, &body)
            }
        }
    }
}

/// What a sample is fetched over.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A blocking socket.
fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, PATIENCE)
        .with_context(|| format!("connecting to {server}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
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

/// Nothing of the object is left as it was: all of it has been sealed.
fn check_sealed(plain: &[u8], body: &[u8]) -> Result<()> {
    let pieces = plain
        .chunks_exact(SEALED_PIECE_BYTES)
        .zip(body.chunks_exact(SEALED_PIECE_BYTES));
    for (index, (plain, body)) in pieces.enumerate() {
        ensure!(
            plain != body,
            "not sealed at offset {}",
            index * SEALED_PIECE_BYTES
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_left_as_it_was_is_found() {
        let plain: Vec<u8> = (0..=255).collect();
        let mut body: Vec<u8> = plain.iter().map(|byte| !byte).collect();
        assert!(check_sealed(&plain, &body).is_ok());
        body[64..128].copy_from_slice(&plain[64..128]);
        let error = check_sealed(&plain, &body).expect_err("a piece is not sealed");
        assert!(error.to_string().contains("64"), "{error}");
        body[64] ^= 1;
        assert!(check_sealed(&plain, &body).is_ok());
    }
}
