//! The HTTP server for metrics and health checks, over the host's own TCP.
//!
//! One thread waits for all clients at once, reads one request of each, answers it and closes. So a
//! client that never sends or never reads delays no other, and never the worker. Connections are
//! listed by other threads, since workers must be asked and a list may be long.
//!
//! It refuses (404) every other path, and (403) to list connections, settings and sites for other hosts, or for
//! a page that reached this host by a name of its own choice (DNS rebinding). Bounds: [`CONNECTIONS_MAX`]
//! connections at once, and one more makes room for itself; `THREADS` lists at once;
//! [`http::HEAD_BYTES_MAX`] of a request, [`HEAD_TIME_MAX`] for its rest, [`EXCHANGE_TIME_MAX`] for an
//! exchange.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use http::{Method, Parsed};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::overview::Overview;
use super::process::ProcessFacts;
use super::{Health, text};
use crate::failure::Failure;
use crate::observe::capture::{self, CaptureKind, CaptureQuery};
use crate::observe::connections::{Asker, Query};
use crate::observe::requests::{Instance, Misses, counts, parse_after};
use crate::run::mailbox::QUESTIONS_MAX;

/// Connections open at once. For one more, the one is closed that has been silent for longest.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Threads that list connections; as many more lists may wait.
const THREADS: usize = QUESTIONS_MAX;
/// Longest time from a connection's beginning to its end.
pub(crate) const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time from a request's first byte to the end of its head: a retransmission fits in.
pub(crate) const HEAD_TIME_MAX: Duration = Duration::from_secs(2);
/// Lines of JSON.
const LINES_TYPE: &str = "application/x-ndjson";
const JSON_TYPE: &str = "application/json";
/// What has viewers in it, or names files of the host.
const THIS_HOST_ONLY: [&str; 7] = [
    "/connections",
    "/config",
    "/sites",
    "/pcap",
    "/trace",
    "/misses",
    "/counts",
];
/// Plots what `/metrics` says; it needs nothing from elsewhere.
const PAGE: &str = include_str!("page.html");
/// Pause after no connection could be taken, for want of descriptors for example.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A listening socket without threads yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens: while the process still has the rights it was started with.
    ///
    /// # Errors
    /// The host has no such address, or something else listens there.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let socket = TcpListener::bind(address).map_err(|error| {
            Failure::of_error(
                &error,
                format!("--metrics {address}: {error}"),
                "use an address of this host, like 127.0.0.1, and a port that is free",
            )
        })?;
        Ok(Self { socket })
    }

    /// With a socket that listens.
    pub(crate) const fn new(socket: TcpListener) -> Self {
        Self { socket }
    }

    /// The socket, for another process.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Where it listens.
    #[cfg(test)]
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts the threads, which take connections while `accepts` says so. They have the rights of the calling thread, and end with the process.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn start(
        self,
        overview: &Arc<Overview>,
        asker: &Asker,
        accepts: &Arc<AtomicBool>,
    ) -> Result<(), Failure> {
        let refuse = |error: io::Error| {
            Failure::refused(
                format!("--metrics: its threads cannot be started: {error}"),
                "raise the limit of threads (ulimit -u) and of open files",
            )
        };
        self.socket.set_nonblocking(true).map_err(refuse)?;
        let (lists, wanted) = sync_channel(THREADS);
        let wanted = Arc::new(Mutex::new(wanted));
        let lister = Lister::new(overview, asker.clone());
        for _ in 0..THREADS {
            let (wanted, lister) = (Arc::clone(&wanted), lister.clone());
            let thread = thread::Builder::new().name("atlas-lists".into());
            thread
                .spawn(move || make_lists(&wanted, &lister))
                .map_err(refuse)?;
        }
        let mut server = Server {
            socket: self.socket,
            overview: Arc::clone(overview),
            lists,
            clients: VecDeque::with_capacity(CONNECTIONS_MAX),
            accepts_from: Instant::now(),
            accepts: Arc::clone(accepts),
        };
        let thread = thread::Builder::new().name("atlas-metrics".into());
        let serve = move || {
            loop {
                server.serve_round();
            }
        };
        thread.spawn(serve).map_err(refuse)?;
        Ok(())
    }
}

/// The thread that waits for all clients.
struct Server {
    socket: TcpListener,
    overview: Arc<Overview>,
    lists: SyncSender<List>,
    /// In the order they came.
    clients: VecDeque<Client>,
    /// Until then no connection is taken.
    accepts_from: Instant,
    /// Otherwise another process takes them from the same socket.
    accepts: Arc<AtomicBool>,
}

/// A connection that is not listing others.
struct Client {
    stream: TcpStream,
    peer: SocketAddr,
    /// When the exchange must be over.
    exchange_until: Instant,
    /// When what is under way must be over.
    deadline: Instant,
    state: State,
}

enum State {
    /// What has come of the request.
    Reading(Vec<u8>),
    /// What must still be sent of the reply.
    Writing { reply: String, sent: usize },
}

/// What a client is told.
enum Answer {
    /// This.
    Reply(String),
    /// What workers must be asked for.
    List { list: Listed, head_only: bool },
    /// What one client and the server say.
    Capture(CaptureQuery),
}

/// What is listed.
enum Listed {
    Connections(Query),
    /// Names that are not there, whose numbers are greater than this one.
    Misses(u64),
    /// How often objects are asked for.
    Counts,
}

/// What somebody waits for longer.
struct List {
    stream: TcpStream,
    wanted: Wanted,
    deadline: Instant,
}

enum Wanted {
    List { list: Listed, head_only: bool },
    Capture(CaptureQuery),
}

/// What those who list share.
#[derive(Clone)]
struct Lister {
    overview: Arc<Overview>,
    asker: Asker,
    instance: Instance,
    misses: Arc<Mutex<Misses>>,
}

impl Server {
    /// Waits until something can be done, and does it.
    fn serve_round(&mut self) {
        let (is_connecting, ready) = self.wait();
        let now = Instant::now();
        if !self.accepts.load(Ordering::Relaxed) {
            self.accepts_from = now + RETRY_AFTER;
        }
        let is_connecting = is_connecting && self.accepts_from <= now;
        // From the back, so that the places of the others stay.
        for place in (0..self.clients.len()).rev() {
            let is_ready = ready.get(place).copied().unwrap_or_default();
            if (is_ready && !self.advance(place)) || self.clients[place].deadline <= now {
                self.clients.remove(place);
            }
        }
        if is_connecting {
            self.accept(now);
        }
    }

    /// Whether a client connects, and which others can be gone on with.
    fn wait(&self) -> (bool, Vec<bool>) {
        let now = Instant::now();
        let is_accepting = self.accepts_from <= now;
        let first = self.clients.iter().map(|client| client.deadline).min();
        let first = match first {
            _ if !is_accepting => Some(self.accepts_from),
            first => first,
        };
        let left = first.map(|first| first.saturating_duration_since(now));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let wanted = if is_accepting {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut polled = vec![PollFd::new(&self.socket, wanted)];
        polled.extend(self.clients.iter().map(|client| {
            let wanted = match client.state {
                State::Reading(_) => PollFlags::IN,
                State::Writing { .. } => PollFlags::OUT,
            };
            PollFd::new(&client.stream, wanted)
        }));
        // An error leaves all as it was; the round then only looks at deadlines.
        if rustix::event::poll(&mut polled, left.as_ref()).is_err() {
            return (false, Vec::new());
        }
        let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
        let is_connecting = ready.next().unwrap_or_default();
        (is_connecting, ready.collect())
    }

    /// Takes the connections that wait. Each is looked at once: most requests come with the
    /// connection.
    fn accept(&mut self, now: Instant) {
        for _ in 0..CONNECTIONS_MAX {
            match self.socket.accept() {
                Ok((stream, peer)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.clients.len() >= CONNECTIONS_MAX {
                        self.evict();
                    }
                    let exchange_until = now + EXCHANGE_TIME_MAX;
                    self.clients.push_back(Client {
                        stream,
                        peer,
                        exchange_until,
                        deadline: exchange_until,
                        state: State::Reading(Vec::new()),
                    });
                    if !self.advance(self.clients.len() - 1) {
                        self.clients.pop_back();
                    }
                }
                Err(error) => {
                    let is_want = !matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                    );
                    if is_want {
                        self.evict();
                        self.accepts_from = now + RETRY_AFTER;
                    }
                    return;
                }
            }
        }
    }

    /// Closes the connection that is least likely to be of use: the oldest that sent nothing, else the
    /// oldest whose request is not whole, else the oldest.
    fn evict(&mut self) {
        let oldest = |is_such: fn(&State) -> bool| {
            self.clients
                .iter()
                .position(|client| is_such(&client.state))
        };
        let place = oldest(|state| matches!(state, State::Reading(head) if head.is_empty()))
            .or_else(|| oldest(|state| matches!(state, State::Reading(_))));
        self.clients.remove(place.unwrap_or(0));
    }

    /// Goes on with a client as far as possible; returns whether it stays in the table.
    fn advance(&mut self, place: usize) -> bool {
        let Some(client) = self.clients.get_mut(place) else {
            return false;
        };
        if let State::Reading(head) = &mut client.state {
            let was_silent = head.is_empty();
            match read_head(&mut client.stream, head) {
                Ok(true) => {}
                Ok(false) => {
                    if was_silent && !head.is_empty() {
                        let head_until = Instant::now() + HEAD_TIME_MAX;
                        client.deadline = head_until.min(client.exchange_until);
                    }
                    return true;
                }
                // What a client does wrong is its own business.
                Err(_) => return false,
            }
            let wanted = match answer(head, &self.overview, client.peer) {
                Answer::Reply(reply) => Err(reply),
                Answer::List { list, head_only } => Ok(Wanted::List { list, head_only }),
                Answer::Capture(query) => Ok(Wanted::Capture(query)),
            };
            let reply = match wanted {
                Err(reply) => reply,
                Ok(wanted) => {
                    let Ok(stream) = client.stream.try_clone() else {
                        return false;
                    };
                    let list = List {
                        stream,
                        wanted,
                        deadline: client.exchange_until,
                    };
                    if self.lists.try_send(list).is_ok() {
                        return false;
                    }
                    reply("503 Service Unavailable", false, "too many lists at once\n")
                }
            };
            client.deadline = client.exchange_until;
            client.state = State::Writing { reply, sent: 0 };
        }
        let State::Writing { reply, sent } = &mut client.state else {
            return true;
        };
        while let Some(rest) = reply
            .as_bytes()
            .get(*sent..)
            .filter(|rest| !rest.is_empty())
        {
            match client.stream.write(rest) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}

/// Reads what there is, up to the end of a request, or of what a request may be long. Returns whether
/// that is there.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    while matches!(http::parse_request(head), Parsed::Incomplete) {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    Ok(true)
}

/// A thread that makes lists, one request after the other.
fn make_lists(wanted: &Mutex<Receiver<List>>, lister: &Lister) {
    loop {
        let list = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(list) = list else {
            return;
        };
        // What a client does wrong is its own business.
        let _ = send_list(list, lister);
    }
}

fn send_list(list: List, lister: &Lister) -> io::Result<()> {
    let List {
        mut stream,
        wanted,
        deadline,
    } = list;
    let (list, head_only) = match wanted {
        Wanted::List { list, head_only } => (list, head_only),
        Wanted::Capture(query) => {
            return capture::answer(stream, query, &lister.overview, &lister.asker);
        }
    };
    let reply = list_reply(lister, &list, head_only, deadline);
    stream.set_nonblocking(false)?;
    let mut rest = reply.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let written = stream.write(rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Time left; none is an error.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// The answer to a request.
fn answer(head: &[u8], overview: &Overview, peer: SocketAddr) -> Answer {
    let request = match http::parse_request(head) {
        Parsed::Complete { request, .. } => request,
        Parsed::Refused(refusal) => {
            return Answer::Reply(reply(refusal.status.line(), refusal.head_only, ""));
        }
        Parsed::Incomplete => return Answer::Reply(reply("400 Bad Request", false, "")),
    };
    let head_only = match request.method {
        Method::Get => false,
        Method::Head => true,
        Method::Options => return Answer::Reply(reply("405 Method Not Allowed", false, "")),
    };
    let path = request.path.as_str();
    if THIS_HOST_ONLY.contains(&path) {
        if !peer.ip().to_canonical().is_loopback() {
            let body = "only for this host itself\n";
            return Answer::Reply(reply("403 Forbidden", head_only, body));
        }
        if !request.host.is_none_or(is_own_host) {
            let body = "ask by an address or by localhost, not by another name\n";
            return Answer::Reply(reply("403 Forbidden", head_only, body));
        }
    }
    Answer::Reply(match path {
        "/" => reply_with("200 OK", "text/html; charset=utf-8", head_only, PAGE),
        "/metrics" => {
            let text = text::encode(overview, &ProcessFacts::read());
            if wants_plain(head) {
                reply_with(
                    "200 OK",
                    text::PLAIN_TYPE,
                    head_only,
                    &text::to_plain(&text),
                )
            } else {
                reply_with("200 OK", text::CONTENT_TYPE, head_only, &text)
            }
        }
        "/health" => match overview.health() {
            Health::Serving => reply("200 OK", head_only, "ok\n"),
            Health::Ending => reply("503 Service Unavailable", head_only, "ending\n"),
            Health::Hanging => reply("503 Service Unavailable", head_only, "a worker hangs\n"),
        },
        "/ready" if overview.is_ready() => reply("200 OK", head_only, "ready\n"),
        "/ready" => reply("503 Service Unavailable", head_only, "not ready\n"),
        "/config" => {
            let config = overview.configuration().config();
            reply_with("200 OK", JSON_TYPE, head_only, &config)
        }
        "/sites" => {
            let sites = overview.configuration().sites();
            reply_with("200 OK", JSON_TYPE, head_only, &sites)
        }
        "/connections" => match Query::parse(request.query.unwrap_or_default()) {
            Ok(query) => {
                let list = Listed::Connections(query);
                return Answer::List { list, head_only };
            }
            Err(problem) => reply("400 Bad Request", head_only, &format!("{problem}\n")),
        },
        "/misses" => match parse_after(request.query.unwrap_or_default()) {
            Ok(after) => {
                let list = Listed::Misses(after);
                return Answer::List { list, head_only };
            }
            Err(problem) => reply("400 Bad Request", head_only, &format!("{problem}\n")),
        },
        "/counts" => {
            let list = Listed::Counts;
            return Answer::List { list, head_only };
        }
        "/pcap" | "/trace" => {
            let kind = match path {
                "/pcap" => CaptureKind::Pcap,
                _ => CaptureKind::Trace,
            };
            match CaptureQuery::parse(kind, request.query.unwrap_or_default()) {
                Ok(query) if !head_only => return Answer::Capture(query),
                Ok(_) => reply("405 Method Not Allowed", head_only, ""),
                Err(problem) => reply("400 Bad Request", head_only, &format!("{problem}\n")),
            }
        }
        _ => reply(
            "404 Not Found",
            head_only,
            "there are /, /metrics, /health, /ready, /connections, /config, /sites, /misses, /counts, /pcap and /trace\n",
        ),
    })
}

/// Whether a request's `Accept` wants the older text format: it names that, and not OpenMetrics. Whoever says
/// nothing gets OpenMetrics.
fn wants_plain(head: &[u8]) -> bool {
    let is_accept = |line: &&[u8]| {
        let name = line.split(|&byte| byte == b':').next();
        name.is_some_and(|name| name.eq_ignore_ascii_case(b"accept"))
    };
    let fields = head.split(|&byte| byte == b'\n').filter(is_accept);
    let accept: Vec<u8> = fields.flatten().map(u8::to_ascii_lowercase).collect();
    let names = |media_type: &[u8]| {
        let mut places = accept.windows(media_type.len());
        places.any(|place| place == media_type)
    };
    names(b"text/plain") && !names(b"application/openmetrics-text")
}

/// Whether a `Host` field names this host without the help of DNS: a page of a site whose name leads
/// here has that name in it. Metrics and health are told by any name: they have no viewers in them, and
/// those who collect them go by names.
fn is_own_host(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest
            .split_once(']')
            .map(|(address, _)| address.parse::<Ipv6Addr>());
        return address.is_some_and(|address| address.is_ok());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.parse::<Ipv4Addr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// What is listed, or that a worker does not tell it.
fn list_reply(lister: &Lister, list: &Listed, head_only: bool, deadline: Instant) -> String {
    match lister.lines(list, deadline) {
        Some(lines) => reply_with("200 OK", LINES_TYPE, head_only, &lines),
        None => reply("503 Service Unavailable", head_only, "a worker hangs\n"),
    }
}

impl Lister {
    fn new(overview: &Arc<Overview>, asker: Asker) -> Self {
        Self {
            overview: Arc::clone(overview),
            asker,
            instance: Instance::random(),
            misses: Arc::default(),
        }
    }

    /// The lines of a list; `None`: a worker did not answer by `deadline`.
    fn lines(&self, list: &Listed, deadline: Instant) -> Option<String> {
        let labels = || self.overview.labels();
        match list {
            Listed::Connections(query) => self.asker.lines(query, deadline),
            Listed::Misses(after) => {
                let misses = self.misses.lock();
                let mut misses = misses.unwrap_or_else(PoisonError::into_inner);
                self.asker.missed(deadline, |missed| misses.add(missed))?;
                Some(misses.lines(*after, &self.instance, &labels()))
            }
            Listed::Counts => {
                let counted = self.asker.counted(deadline)?;
                let began = self.overview.start_unix_seconds();
                Some(counts(counted, &self.instance, began, &labels()))
            }
        }
    }
}

/// A reply with a short body: the status, if there is none.
fn reply(status: &str, head_only: bool, body: &str) -> String {
    let status_line = format!("{status}\n");
    let body = if body.is_empty() { &status_line } else { body };
    reply_with(status, "text/plain; charset=utf-8", head_only, body)
}

fn reply_with(status: &str, content_type: &str, head_only: bool, body: &str) -> String {
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if !head_only {
        let _ = write!(reply, "{body}");
    }
    reply
}

#[cfg(test)]
mod tests;
