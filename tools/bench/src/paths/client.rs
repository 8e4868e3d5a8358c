//! The client of every run: the kernel's TCP asks for one object and counts what comes.
//!
//! Written here and not taken from `testbed::client`, since it ends in the middle of a reply, at a
//! moment that is given. It refuses a reply that ends before, or is no 200. Bounded by: a limit on
//! connecting and on the wait for the first byte.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::client::{Stream, Trust};
use testbed::interrupt;

/// Longest wait for a handshake, and for the first byte: a few timeouts over the worst path.
const LIMIT: Duration = Duration::from_secs(30);

/// The longest sleep between two looks at the interrupt flag.
const SLICE: Duration = Duration::from_millis(200);

/// What a client got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Download {
    /// Its port, by which the middlebox knows the connection.
    pub(crate) port: u16,
    /// Bytes of the reply, its head included.
    pub(crate) bytes: u64,
    /// From the first byte to the end of counting.
    pub(crate) seconds: f64,
}

/// Opens a connection; over TLS, if it is said whom to trust. To be called in the client's namespace.
pub(crate) fn connect(server: SocketAddr, trust: Option<&Trust>) -> Result<Stream> {
    let socket = TcpStream::connect_timeout(&server, LIMIT)
        .with_context(|| format!("connecting to {server}"))?;
    socket.set_read_timeout(Some(LIMIT))?;
    match trust {
        Some(trust) => Stream::tls(socket, server, trust),
        None => Ok(Stream::Plain(socket)),
    }
}

/// Gets `path` for so many seconds from the reply's first byte on.
pub(crate) fn download(mut stream: Stream, path: &str, seconds: u64) -> Result<Download> {
    let port = stream.socket().local_addr()?.port();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: atlas\r\n\r\n");
    stream.write_all(request.as_bytes()).context("asking")?;
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = read_by(&mut stream, &mut buffer, Instant::now() + LIMIT)?
        .context("no reply came in time")?;
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let head = buffer.get(..bytes).unwrap_or_default();
    let is_fine = head.starts_with(b"HTTP/1.1 200 ");
    ensure!(is_fine, "not a 200: {}", String::from_utf8_lossy(head));
    while let Some(count) = read_by(&mut stream, &mut buffer, end)? {
        bytes += count;
    }
    Ok(Download {
        port,
        bytes: bytes as u64,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Reads something; `None`: nothing came until `end`.
fn read_by(stream: &mut Stream, buffer: &mut [u8], end: Instant) -> Result<Option<usize>> {
    loop {
        interrupt::check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let socket = stream.socket();
        socket.set_read_timeout(Some(left.min(SLICE)))?;
        match stream.read(buffer) {
            Ok(0) => bail!("the server closed in the middle of the reply"),
            Ok(count) => return Ok(Some(count)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(error).context("reading the reply"),
            },
        }
    }
}
