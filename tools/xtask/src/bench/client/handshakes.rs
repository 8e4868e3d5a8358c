//! The load: a number of clients, each of which connects, shakes hands, fetches one small object,
//! closes and begins again, for a set time.
//!
//! rustls does all of TLS here, which may fill this core before the server fills its own: what is
//! measured is the time of the server's core for each handshake, not its limit. Each client keeps
//! its own tickets; whether a session was resumed is asked of rustls each time, and a handshake of
//! the wrong kind ends the run. Every byte of every object is compared. Bounded by: a deadline on
//! the whole run.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use serde::{Deserialize, Serialize};

use super::channel::{HEAD_BYTES_MAX, check_head};
use super::{Cores, PATIENCE, PAUSE, request};
use crate::bench::cores::CoreTime;
use crate::bench::disk::Objects;
use crate::bench::tls::{Suite, Version, client_config, server_name};

/// Tickets a client keeps: a server sends it one or two each time.
const TICKETS_MAX: usize = 8;

/// Handshakes before the first that counts, of each client: the first gets its first ticket.
const WARM_UP: u64 = 2;

/// What the load is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientOptions {
    /// The server.
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// Clients at once.
    #[arg(long)]
    pub(crate) connections: usize,
    /// How many objects there are.
    #[arg(long)]
    pub(crate) objects: u64,
    /// Size of each, bytes.
    #[arg(long)]
    pub(crate) object_bytes: u64,
    /// Resumes a session each time.
    #[arg(long, action = clap::ArgAction::Set)]
    pub(crate) resume: bool,
    /// Trusts this authority.
    #[arg(long)]
    pub(crate) authority: PathBuf,
    #[command(flatten)]
    pub(crate) cores: Cores,
    /// Counts for this many seconds.
    #[arg(long)]
    pub(crate) seconds: u64,
}

/// What one run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Of the timed window.
    pub(crate) seconds: f64,
    /// Connections that came to their end in it: shaken hands, all of the object right.
    pub(crate) handshakes: u64,
    /// How many of them resumed a session: all or none.
    pub(crate) resumed: u64,
    /// Tickets they were given: each costs a server a sealing.
    pub(crate) tickets: u64,
    /// The server's core in that time.
    pub(crate) server_core: CoreTime,
    /// The client's core in that time.
    pub(crate) client_core: CoreTime,
}

/// Runs the load.
pub(super) fn run(options: &ClientOptions) -> Result<Measured> {
    Load::new(options)?.run()
}

/// How far the clients are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    handshakes: u64,
    resumed: u64,
    tickets: u64,
}

#[derive(Debug)]
struct Load<'a> {
    options: &'a ClientOptions,
    objects: Objects,
    visitors: Vec<Visitor>,
    done: Progress,
}

impl<'a> Load<'a> {
    fn new(options: &'a ClientOptions) -> Result<Self> {
        // AES-128-GCM: what both ends would choose.
        let config = client_config(Version::Tls13, Suite::Aes128Gcm, &options.authority)?;
        let visitors = (0..options.connections)
            .map(|_| {
                Visitor::new(
                    &config,
                    options.server,
                    options.resume,
                    options.object_bytes,
                )
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            options,
            objects: Objects {
                count: options.objects,
                bytes: options.object_bytes,
            },
            visitors,
            done: Progress::default(),
        })
    }

    fn run(mut self) -> Result<Measured> {
        let deadline = Instant::now() + PATIENCE;
        let all = self.visitors.len() as u64;
        while self.visitors.iter().any(|one| one.visits < WARM_UP) {
            self.sweep()?;
            if Instant::now() > deadline {
                bail!(
                    "{} handshakes of {all} clients in {PATIENCE:?}",
                    self.done.handshakes
                );
            }
        }
        let (before, done_before, start) = (self.options.cores.now()?, self.done, Instant::now());
        let window = Duration::from_secs(self.options.seconds);
        while start.elapsed() < window {
            self.sweep()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let after = self.options.cores.now()?;
        let handshakes = self.done.handshakes - done_before.handshakes;
        ensure!(handshakes > 0, "no handshake in {seconds:.1} s");
        Ok(Measured {
            seconds,
            handshakes,
            resumed: self.done.resumed - done_before.resumed,
            tickets: self.done.tickets - done_before.tickets,
            server_core: after.0 - before.0,
            client_core: after.1 - before.1,
        })
    }

    /// Lets every client do what it can now; sleeps if none could do anything.
    fn sweep(&mut self) -> Result<()> {
        let mut is_moving = false;
        for visitor in &mut self.visitors {
            is_moving |= visitor.advance()?;
            if !visitor.is_served {
                continue;
            }
            let kind = visitor.leave(self.objects)?;
            // The first visit of each has no ticket yet.
            let is_resumed = self.options.resume && visitor.visits > 1;
            check_kind(kind, is_resumed)?;
            self.done.handshakes += 1;
            self.done.resumed += u64::from(is_resumed);
            self.done.tickets += u64::from(visitor.tls.tls13_tickets_received());
            visitor.enter(self.done.handshakes % self.objects.count)?;
        }
        if !is_moving {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// One client: its tickets, and its connection of the moment.
#[derive(Debug)]
struct Visitor {
    config: Arc<ClientConfig>,
    server: SocketAddr,
    stream: TcpStream,
    tls: ClientConnection,
    /// The object asked for.
    object: u64,
    /// What has come of the reply, decrypted.
    reply: Vec<u8>,
    /// Bytes of the whole reply, once its head is known.
    reply_bytes: Option<usize>,
    object_bytes: u64,
    /// The whole reply is there.
    is_served: bool,
    /// Visits that came to their end.
    visits: u64,
}

impl Visitor {
    fn new(
        config: &ClientConfig,
        server: SocketAddr,
        resume: bool,
        object_bytes: u64,
    ) -> Result<Self> {
        let mut config = config.clone();
        if resume {
            config.resumption = Resumption::in_memory_sessions(TICKETS_MAX);
        }
        let config = Arc::new(config);
        let (stream, tls) = open(server, &config, 0)?;
        Ok(Self {
            config,
            server,
            stream,
            tls,
            object: 0,
            reply: Vec::new(),
            reply_bytes: None,
            object_bytes,
            is_served: false,
            visits: 0,
        })
    }

    /// Begins a visit.
    fn enter(&mut self, object: u64) -> Result<()> {
        (self.stream, self.tls) = open(self.server, &self.config, object)?;
        self.object = object;
        self.reply.clear();
        self.reply_bytes = None;
        self.is_served = false;
        Ok(())
    }

    /// Writes and reads what can be; whether anything could.
    fn advance(&mut self) -> Result<bool> {
        let mut is_moving = false;
        loop {
            let mut is_stuck = true;
            if self.tls.wants_write() {
                is_stuck &= !is_done(self.tls.write_tls(&mut self.stream), "sending")?;
            }
            if self.tls.wants_read() && is_done(self.tls.read_tls(&mut self.stream), "receiving")? {
                is_stuck = false;
                let state = self.tls.process_new_packets()?;
                let before = self.reply.len();
                self.reply
                    .resize(before + state.plaintext_bytes_to_read(), 0);
                self.tls.reader().read_exact(&mut self.reply[before..])?;
                self.look()?;
            }
            if is_stuck || self.is_served {
                return Ok(is_moving);
            }
            is_moving = true;
        }
    }

    /// Looks whether the reply is complete.
    fn look(&mut self) -> Result<()> {
        if self.reply_bytes.is_none() {
            let end = self.reply.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                check_head(&self.reply[..end], self.object_bytes)?;
                self.reply_bytes = Some(end + 4 + usize::try_from(self.object_bytes)?);
            } else {
                ensure!(
                    self.reply.len() < HEAD_BYTES_MAX,
                    "a reply head above 4 KiB"
                );
            }
        }
        self.is_served = self.reply_bytes == Some(self.reply.len());
        ensure!(
            self.reply_bytes
                .is_none_or(|bytes| self.reply.len() <= bytes),
            "more than one reply at once"
        );
        Ok(())
    }

    /// Ends a visit orderly: compares the object, says goodbye. The socket closes when replaced.
    fn leave(&mut self, objects: Objects) -> Result<HandshakeKind> {
        let body = self.reply.len() - usize::try_from(self.object_bytes)?;
        objects
            .content(self.object)
            .check(0, &self.reply[body..])
            .with_context(|| format!("object {}", self.object))?;
        self.tls.send_close_notify();
        // A few bytes into an empty send buffer: a short write cannot happen.
        self.tls.write_tls(&mut self.stream).context("closing")?;
        self.visits += 1;
        self.tls.handshake_kind().context("a handshake has a kind")
    }
}

/// Refuses a handshake that is not of the kind to be measured.
fn check_kind(kind: HandshakeKind, is_resumed: bool) -> Result<()> {
    let expected = if is_resumed {
        HandshakeKind::Resumed
    } else {
        HandshakeKind::Full
    };
    ensure!(
        kind == expected,
        "a handshake was {kind:?}, not {expected:?}"
    );
    Ok(())
}

/// Whether a read or a write on a socket that does not block was done. The end of the stream is
/// an error.
fn is_done(outcome: std::io::Result<usize>, doing: &'static str) -> Result<bool> {
    match outcome {
        Ok(0) => bail!("the server closed a connection"),
        Ok(_) => Ok(true),
        // Not connected yet is not there yet.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error).context(doing),
    }
}

/// Begins to connect, with a request waiting for the handshake's end.
fn open(
    server: SocketAddr,
    config: &Arc<ClientConfig>,
    object: u64,
) -> Result<(TcpStream, ClientConnection)> {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None).context("a socket")?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error).with_context(|| format!("connecting to {server}")),
    }
    let mut tls = ClientConnection::new(Arc::clone(config), server_name()?)?;
    // rustls keeps it until it may be sent.
    tls.writer()
        .write_all(request(&Objects::path(object)).as_bytes())?;
    Ok((TcpStream::from(socket), tls))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;
    use crate::bench::tls::{Credentials, Key, server_config};

    const OBJECTS: Objects = Objects {
        count: 4,
        bytes: 100,
    };

    /// A server that answers `visits` connections, one after another, always with object 1.
    fn serve(config: ServerConfig, visits: usize) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let config = Arc::new(config);
        let server = std::thread::spawn(move || {
            for socket in listener.incoming().take(visits) {
                let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                let mut stream = StreamOwned::new(connection, socket.expect("a socket"));
                let _ = stream.read(&mut [0; 256]).expect("a request");
                let mut body = [0; 100];
                OBJECTS.content(1).fill(0, &mut body);
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
                stream.write_all(head).expect("a head");
                stream.write_all(&body).expect("a body");
                // The client's goodbye, or its end.
                let _ = stream.read(&mut [0]);
            }
        });
        (address, server)
    }

    /// Visits once for each of `objects`; the kinds of the handshakes.
    fn visit(
        change: fn(&mut ServerConfig),
        resume: bool,
        objects: &[u64],
    ) -> Result<Vec<HandshakeKind>> {
        let credentials = Credentials::new(Key::Ecdsa)?;
        let mut config = server_config(&credentials);
        change(&mut config);
        let (address, server) = serve(config, objects.len());
        let config = client_config(Version::Tls13, Suite::Aes128Gcm, &credentials.authority)?;
        let mut visitor = Visitor::new(&config, address, resume, OBJECTS.bytes)?;
        let mut kinds = Vec::new();
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                visitor.enter(*object)?;
            }
            visitor.object = *object;
            while !visitor.is_served {
                visitor.advance()?;
                std::thread::yield_now();
            }
            kinds.push(visitor.leave(OBJECTS)?);
        }
        drop(visitor);
        server.join().expect("the server saw orderly clients");
        Ok(kinds)
    }

    #[test]
    fn a_client_that_keeps_tickets_resumes_from_its_second_visit_on() {
        use HandshakeKind::{Full, Resumed};
        let kinds = visit(|_| {}, true, &[1; 4]).expect("four visits");
        assert_eq!(kinds, [Full, Resumed, Resumed, Resumed]);
        let kinds = visit(|_| {}, false, &[1; 3]).expect("three visits");
        assert_eq!(kinds, [Full; 3]);
        let kinds = visit(|config| config.send_tls13_tickets = 0, true, &[1; 2]);
        assert_eq!(kinds.expect("two visits"), [Full; 2]);
    }

    #[test]
    fn another_objects_bytes_are_an_error() {
        let error = visit(|_| {}, false, &[2]).expect_err("object 1 is not object 2");
        assert!(error.to_string().contains("object 2"), "{error:#}");
    }

    #[test]
    fn only_the_expected_kind_counts() {
        use HandshakeKind::{Full, FullWithHelloRetryRequest, Resumed};
        assert!(check_kind(Full, false).is_ok());
        assert!(check_kind(Resumed, true).is_ok());
        assert!(check_kind(Full, true).is_err());
        assert!(check_kind(Resumed, false).is_err());
        assert!(check_kind(FullWithHelloRetryRequest, false).is_err());
    }
}
