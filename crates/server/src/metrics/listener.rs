//! The HTTP server for metrics and health checks, over the host's own TCP.
//!
//! Each of a few threads accepts a connection, reads one request, answers it and closes. They refuse
//! (404) every path but three, and (403) to list connections for other hosts. Bounds: [`THREADS`] connections at once, [`http::HEAD_BYTES_MAX`] of a
//! request, [`EXCHANGE_TIME_MAX`] for an exchange: a client that never sends or never reads blocks
//! one thread that long, and never the worker.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use http::{Method, Parsed};

use super::overview::Overview;
use super::{Health, text};
use crate::connections::{Asker, Query};
use crate::failure::Failure;
use crate::host;

/// Connections answered at once; more wait in the kernel.
pub const THREADS: usize = 4;
/// Longest time from a connection's beginning to its end.
pub const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(5);
/// Lines of JSON.
const LINES_TYPE: &str = "application/x-ndjson";
/// Pause after no connection could be taken, for want of descriptors for example.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A listening socket without threads yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens: while the process still has the rights it was started with.
    ///
    /// # Errors
    /// The host has no such address, or something else listens there.
    pub fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let socket = TcpListener::bind(address).map_err(|error| {
            Failure::refused(
                format!("--metrics {address}: {error}"),
                "use an address of this host, like 127.0.0.1, and a port that is free",
            )
        })?;
        Ok(Self { socket })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts the threads. They have the rights of the calling thread, and end with the process.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(self, overview: &Arc<Overview>, asker: &Asker) -> Result<(), Failure> {
        let refuse = |error: io::Error| {
            Failure::refused(
                format!("--metrics: its threads cannot be started: {error}"),
                "raise the limit of threads (ulimit -u) and of open files",
            )
        };
        for _ in 0..THREADS {
            let socket = self.socket.try_clone().map_err(refuse)?;
            let watched = Watched {
                overview: Arc::clone(overview),
                asker: asker.clone(),
            };
            let thread = thread::Builder::new().name("atlas-metrics".into());
            thread
                .spawn(move || serve(&socket, &watched))
                .map_err(refuse)?;
        }
        Ok(())
    }
}

/// What is told of the process.
#[derive(Debug)]
struct Watched {
    overview: Arc<Overview>,
    asker: Asker,
}

fn serve(socket: &TcpListener, watched: &Watched) {
    loop {
        match socket.accept() {
            // What a client does wrong is its own business.
            Ok((stream, peer)) => drop(exchange(stream, peer, watched)),
            Err(_) => thread::sleep(RETRY_AFTER),
        }
    }
}

/// One request, one reply.
fn exchange(mut stream: TcpStream, peer: SocketAddr, watched: &Watched) -> io::Result<()> {
    let deadline = Instant::now() + EXCHANGE_TIME_MAX;
    let head = read_head(&mut stream, deadline)?;
    let reply = answer(&head, watched, peer, deadline);
    let mut rest = reply.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let written = stream.write(rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Reads up to the end of a request, or of what a request may be long.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while matches!(http::parse_request(&head), Parsed::Incomplete) {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    Ok(head)
}

/// Time left; none is an error.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// The reply to a request.
fn answer(head: &[u8], watched: &Watched, peer: SocketAddr, deadline: Instant) -> String {
    let Watched { overview, asker } = watched;
    let request = match http::parse_request(head) {
        Parsed::Complete { request, .. } => request,
        Parsed::Refused(refusal) => return reply(refusal.status.line(), refusal.head_only, ""),
        Parsed::Incomplete => return reply("400 Bad Request", false, ""),
    };
    let head_only = match request.method {
        Method::Get => false,
        Method::Head => true,
        Method::Options => return reply("405 Method Not Allowed", false, ""),
    };
    match request.path.as_str() {
        "/metrics" => reply_with(
            "200 OK",
            text::CONTENT_TYPE,
            head_only,
            &text::encode(overview, host::cpu_times().ok()),
        ),
        "/health" => match overview.health() {
            Health::Serving => reply("200 OK", head_only, "ok\n"),
            Health::Ending => reply("503 Service Unavailable", head_only, "ending\n"),
            Health::Hanging => reply("503 Service Unavailable", head_only, "a worker hangs\n"),
        },
        "/connections" if !peer.ip().to_canonical().is_loopback() => {
            reply("403 Forbidden", head_only, "only for this host itself\n")
        }
        "/connections" => list(asker, request.query(), head_only, deadline),
        _ => reply(
            "404 Not Found",
            head_only,
            "there are /metrics, /health and /connections\n",
        ),
    }
}

/// The connections that a query asks for.
fn list(asker: &Asker, query: Option<&[u8]>, head_only: bool, deadline: Instant) -> String {
    let query = match Query::parse(query.unwrap_or_default()) {
        Ok(query) => query,
        Err(problem) => return reply("400 Bad Request", head_only, &format!("{problem}\n")),
    };
    match asker.lines(&query, deadline) {
        Some(lines) => reply_with("200 OK", LINES_TYPE, head_only, &lines),
        None => reply("503 Service Unavailable", head_only, "a worker hangs\n"),
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
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;

    use clock::Instant;

    use super::{EXCHANGE_TIME_MAX, Listener, THREADS, Watched, answer};
    use crate::connections::Asker;
    use crate::connections::tests::worker;
    use crate::mailbox::mailbox;
    use crate::metrics::Page;
    use crate::metrics::overview::tests::overview;
    use crate::metrics::text::CONTENT_TYPE;

    fn page() -> Page {
        Page::new(&[("http_request_count", 7)], std::time::Instant::now())
    }

    /// Questions are not answered.
    fn asker() -> Asker {
        Asker::new(vec![mailbox().unwrap().0])
    }

    fn asked(line: &str, page: Page) -> (String, String) {
        let watched = Watched {
            overview: Arc::new(overview(vec![page])),
            asker: asker(),
        };
        asked_by("127.0.0.1:5000", line, &watched)
    }

    fn asked_by(peer: &str, line: &str, watched: &Watched) -> (String, String) {
        let head = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let deadline = std::time::Instant::now() + EXCHANGE_TIME_MAX;
        let reply = answer(head.as_bytes(), watched, peer.parse().unwrap(), deadline);
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let length = format!("Content-Length: {}\r\n", body.len());
        assert!(body.is_empty() || head.contains(&length), "{head}");
        (head.into(), body.into())
    }

    #[test]
    fn the_metrics_and_the_health_are_answered_and_no_other_path() {
        let (head, body) = asked("GET /metrics", page());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains(&format!("Content-Type: {CONTENT_TYPE}\r\n")),
            "{head}"
        );
        assert!(body.contains("\natlas_http_request_total 7\n"), "{body}");
        let (head, body) = asked("HEAD /metrics", page());
        assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty());
        assert!(!head.contains("Content-Length: 0\r\n"), "{head}");
        let status = |line| asked(line, page()).0["HTTP/1.1 ".len()..][..3].to_owned();
        assert_eq!(status("GET /health?verbose"), "200");
        assert_eq!(status("GET /"), "404");
        assert_eq!(status("GET /metrics/"), "404");
        assert_eq!(status("OPTIONS /metrics"), "405");
        assert_eq!(status("POST /metrics"), "405");
        assert_eq!(status("BREW /metrics"), "501");
    }

    #[test]
    fn health_is_that_of_the_worker() {
        let serving = page();
        serving.beat(serving.now(), 0);
        assert_eq!(asked("GET /health", serving).1, "ok\n");
        let ending = page();
        ending.beat(ending.now(), 0);
        ending.end();
        let (head, body) = asked("GET /health", ending);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "ending\n");
        let long_ago = std::time::Instant::now() - Duration::from_secs(60);
        let page = Page::new(&[], long_ago);
        page.beat(Instant::ZERO, 0);
        let (head, body) = asked("GET /health", page);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "a worker hangs\n");
    }

    #[test]
    fn connections_are_listed_for_this_host_and_no_other() {
        let (sender, mailbox) = mailbox().unwrap();
        let _worker = worker(mailbox, 1);
        let watched = Watched {
            overview: Arc::new(overview(vec![page()])),
            asker: Asker::new(vec![sender]),
        };
        for peer in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            let (head, body) = asked_by(peer, "GET /connections", &watched);
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(body.starts_with("{\"peer\":\"192.0.2.7:1000\",") && body.ends_with("}\n"));
        }
        for peer in ["192.0.2.7:5000", "[fe80::1]:5000"] {
            let (head, body) = asked_by(peer, "GET /connections", &watched);
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            assert!(!body.contains("192.0.2.7"), "{body}");
        }
        let (head, body) = asked_by("[::1]:5000", "GET /connections?peer=x", &watched);
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert!(body.starts_with("peer=x: there are "), "{body}");
    }

    #[test]
    fn a_worker_that_does_not_list_its_connections_hangs() {
        let (head, body) = asked("GET /connections", page());
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "a worker hangs\n");
    }

    #[test]
    fn a_silent_client_occupies_one_thread_only() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        let overview = Arc::new(overview(vec![page()]));
        listener.start(&overview, &asker()).unwrap();
        let _silent: Vec<TcpStream> = (1..THREADS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /health HT").unwrap();
        stream.write_all(b"TP/1.0\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        assert!(reply.ends_with("\r\n\r\nok\n"), "{reply}");
    }

    #[test]
    fn an_address_that_is_taken_or_foreign_is_refused_with_a_remedy() {
        let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        for address in [taken.address().unwrap(), "192.0.2.1:9100".parse().unwrap()] {
            let refusal = Listener::bind(address).unwrap_err().to_string();
            assert!(
                refusal.starts_with(&format!("--metrics {address}: ")),
                "{refusal}"
            );
            assert!(
                refusal.contains("; use an address of this host"),
                "{refusal}"
            );
        }
    }
}
