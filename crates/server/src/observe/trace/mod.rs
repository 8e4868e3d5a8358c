//! A trace of the connections of one peer, as qlog: `--trace FILE --trace-peer ADDRESS`.
//!
//! For a stream that is slow or stuck, where a capture would say less: it has what TCP believed and
//! which reads of the disk were under way, beside the segments. `docs/run/slow-streams.md` shows how to
//! read it.
//!
//! Records are made on the worker, a few microseconds for each segment of a traced connection, and
//! written by a thread ([`crate::observe::output`]): it refuses to make the worker wait. Connections of other
//! peers cost a branch. Bounds: [`qlog::CONNECTIONS_MAX`] connections at once, [`QUEUE`] for records
//! that wait, [`BYTES_MAX`] of file. Records beyond are dropped and counted, and those that come
//! after a gap say how many are missing.

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use session::{ConnectionTrace, TraceEnd, TraceEvent};
use tcp::FourTuple;
use tracing::{info, warn};
use worker::qlog::{self, Qlog};

use crate::failure::Failure;
use crate::observe::output::{Output, OutputLimits, Target};
use crate::start::files;
use crate::start::own_file::{self, Writes};

/// Bytes of the file at most: some million segments. The first write that would pass it ends the trace.
pub(crate) const BYTES_MAX: u64 = 1 << 30;
/// What may wait for the thread that writes: about a tenth of a second of a connection at 10 Gb/s.
pub(crate) const QUEUE: OutputLimits = OutputLimits {
    bytes_max: 16 << 20,
    pause: Duration::ZERO,
};

/// Peers: all ports of an address, or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peers {
    address: IpAddr,
    port: Option<u16>,
}

impl Peers {
    /// `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`; `None`: it is none of these.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self {
                address,
                port: None,
            });
        }
        let peer: SocketAddr = text.parse().ok()?;
        Some(Self {
            address: peer.ip(),
            port: Some(peer.port()),
        })
    }

    /// Whether a peer is one of them.
    #[must_use]
    pub(crate) fn contains(&self, peer: &SocketAddr) -> bool {
        peer.ip() == self.address && self.port.is_none_or(|port| port == peer.port())
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => write!(formatter, "{}", self.address),
            Some(port) => write!(formatter, "{}", SocketAddr::new(self.address, port)),
        }
    }
}

/// What is traced, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TraceSettings {
    /// The file.
    pub file: PathBuf,
    /// Whose connections.
    pub peers: Peers,
}

impl TraceSettings {
    /// Makes the file and starts the thread that writes it. `reference_unix_ms`: what the worker's
    /// start was.
    ///
    /// # Errors
    /// The file cannot be made, or there can be no thread.
    pub(crate) fn start(&self, reference_unix_ms: u64) -> Result<Arc<Output>, Failure> {
        let path = self.file.display();
        let file = TraceFile::create(&self.file, BYTES_MAX);
        let file = file.map_err(|error| files::refuse("--trace", &self.file, &error))?;
        let output = Output::spawn("atlas-trace", QUEUE, file).map_err(|error| {
            Failure::refused(
                format!("--trace: its thread cannot be started: {error}"),
                "raise the limit of threads (ulimit -u)",
            )
        })?;
        output.push(&qlog::header(reference_unix_ms));
        info!("connections of {} are traced to {path}", self.peers);
        Ok(Arc::new(output))
    }
}

/// The file of a trace.
#[derive(Debug)]
struct TraceFile {
    file: File,
    shown: String,
    written_bytes: u64,
    bytes_max: u64,
    has_ended: bool,
}

impl TraceFile {
    fn create(path: &Path, bytes_max: u64) -> io::Result<Self> {
        Ok(Self {
            file: own_file::open(path, Writes::Anew)?,
            shown: path.display().to_string(),
            written_bytes: 0,
            bytes_max,
            has_ended: false,
        })
    }
}

impl Target for TraceFile {
    /// What is written is whole records. After the first that was not written there are no more.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.has_ended {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = self.written_bytes + lines.len() as u64;
        if bytes > self.bytes_max {
            self.has_ended = true;
            warn!(
                "trace: {} has {} bytes: what follows is not traced",
                self.shown, self.written_bytes
            );
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write_all(lines);
        if let Err(error) = &written {
            self.has_ended = true;
            warn!(
                "trace: {} cannot be written ({error}): what follows is not traced",
                self.shown
            );
        }
        self.written_bytes = bytes;
        written
    }
}

/// The session's end of the trace.
#[derive(Debug)]
pub(crate) struct PeerTrace {
    peers: Peers,
    qlog: Qlog,
    output: Arc<Output>,
    /// Events whose records did not fit since one did.
    missing: u64,
}

impl PeerTrace {
    /// Traces connections of `peers` to `output`.
    #[must_use]
    pub(crate) fn new(peers: Peers, output: Arc<Output>) -> Self {
        Self {
            peers,
            qlog: Qlog::new(),
            output,
            missing: 0,
        }
    }
}

impl ConnectionTrace for PeerTrace {
    fn wants(&mut self, tuple: &FourTuple) -> bool {
        self.peers.contains(&tuple.peer) && self.qlog.begin(tuple)
    }

    fn record(&mut self, now: Instant, tuple: &FourTuple, event: &TraceEvent<'_>) {
        let mut bytes = Vec::new();
        if self.missing > 0 {
            bytes = qlog::gap(now, tuple, self.missing);
        }
        let before = bytes.len();
        self.qlog.append(now, tuple, event, &mut bytes);
        if bytes.len() == before {
            return;
        }
        if self.output.push(&bytes) {
            self.missing = 0;
        } else {
            self.missing += 1;
        }
        if let TraceEvent::Ended(end) = event {
            log_end(tuple, *end);
        }
    }
}

/// One line for each traced connection: whoever waits for it to end looks at the log.
fn log_end(tuple: &FourTuple, end: TraceEnd) {
    info!(
        "trace: the connection of {} is over ({})",
        tuple.peer,
        end.name()
    );
}

#[cfg(test)]
mod tests;
