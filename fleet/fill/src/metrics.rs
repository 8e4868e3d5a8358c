//! Counters, and the listener that tells them: OpenMetrics text at `/metrics`, and `/health`.
//!
//! It refuses everything but GET of these two. Bounded by `CONNECTIONS_MAX` connections, and by time and bytes for each.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::fault::Kind;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 16;
/// The longest that one may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest request head, bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// What is counted.
#[derive(Debug, Default)]
pub struct Counters {
    /// Objects that came.
    pub fetched: AtomicU64,
    /// Bytes of them.
    pub fetched_bytes: AtomicU64,
    /// Bytes that came, those of objects that failed included.
    pub received_bytes: Arc<AtomicU64>,
    /// Bytes that were gone on with.
    pub resumed_bytes: AtomicU64,
    /// Objects whose content was compared with a digest.
    pub verified: AtomicU64,
    /// Objects that the origin has no more, or that expired.
    pub removed: AtomicU64,
    /// Objects that left for room.
    pub evicted: AtomicU64,
    /// Failures, by kind.
    pub failures: [AtomicU64; Kind::ALL.len()],
    /// Requests of viewers for objects that were here.
    pub hits: AtomicU64,
    /// Bytes of those objects.
    pub hit_bytes: AtomicU64,
    /// Requests of viewers for objects that were not.
    pub misses: AtomicU64,
    /// Bytes of those objects, as far as they came.
    pub miss_bytes: AtomicU64,
    /// Objects that are here.
    pub held: AtomicU64,
    /// Bytes of them.
    pub held_bytes: AtomicU64,
    /// Objects that are to come.
    pub waiting: AtomicU64,
    /// Bytes of them.
    pub waiting_bytes: AtomicU64,
    /// For how long the oldest one has been waited for, milliseconds.
    pub oldest_ms: AtomicU64,
    /// Misses that were dropped.
    pub misses_dropped: AtomicU64,
    /// Objects that found no room.
    pub left_out: AtomicU64,
    /// Whether the origin answers, 1 or 0.
    pub origin_up: AtomicU64,
}

impl Counters {
    /// Counts a failure.
    pub fn failed(&self, kind: Kind) {
        let index = Kind::ALL
            .iter()
            .position(|it| *it == kind)
            .expect("invariant: all are there");
        self.failures[index].fetch_add(1, Ordering::Relaxed);
    }

    /// What only grows: names, values, meanings.
    fn totals(&self) -> [(&'static str, u64, &'static str); 13] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("objects", of(&self.fetched), "Objects fetched."),
            (
                "object_bytes",
                of(&self.fetched_bytes),
                "Bytes of objects fetched.",
            ),
            (
                "received_bytes",
                of(&self.received_bytes),
                "Bytes received of the origin, those of failed objects included.",
            ),
            (
                "resumed_bytes",
                of(&self.resumed_bytes),
                "Bytes that an interrupted fetch had left and that were gone on with.",
            ),
            (
                "verified_objects",
                of(&self.verified),
                "Objects whose content was compared with a digest.",
            ),
            (
                "removed_objects",
                of(&self.removed),
                "Objects removed because the origin has them no more, or expired.",
            ),
            (
                "evicted_objects",
                of(&self.evicted),
                "Objects removed for room.",
            ),
            (
                "hit_requests",
                of(&self.hits),
                "Requests of viewers for objects that were there, by the server's counts.",
            ),
            (
                "hit_bytes",
                of(&self.hit_bytes),
                "Bytes of those objects, each time they were asked for.",
            ),
            (
                "miss_requests",
                of(&self.misses),
                "Requests of viewers for objects that were not there.",
            ),
            (
                "miss_bytes",
                of(&self.miss_bytes),
                "Bytes of those objects that came then.",
            ),
            (
                "dropped_misses",
                of(&self.misses_dropped),
                "Misses that were dropped because too many waited.",
            ),
            (
                "left_out_objects",
                of(&self.left_out),
                "Objects that were not fetched because they found no room, each time.",
            ),
        ]
    }

    /// What rises and falls.
    fn gauges(&self) -> [(&'static str, u64, &'static str); 5] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("held_objects", of(&self.held), "Objects that are there."),
            ("held_bytes", of(&self.held_bytes), "Bytes of them."),
            (
                "waiting_objects",
                of(&self.waiting),
                "Objects that are wanted and not there yet.",
            ),
            (
                "waiting_bytes",
                of(&self.waiting_bytes),
                "Bytes of them, as far as they are known.",
            ),
            (
                "origin_up",
                of(&self.origin_up),
                "Whether the origin answered the last request.",
            ),
        ]
    }

    /// OpenMetrics text.
    #[must_use]
    pub fn text(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::new();
        for (name, value, help) in self.totals() {
            let _ = write!(
                text,
                "# TYPE atlas_fill_{name} counter\n# HELP atlas_fill_{name} {help}\natlas_fill_{name}_total {value}\n"
            );
        }
        text.push_str(
            "# TYPE atlas_fill_failures counter\n# HELP atlas_fill_failures Failures by kind.\n",
        );
        for (kind, count) in Kind::ALL.iter().zip(&self.failures) {
            let _ = writeln!(
                text,
                "atlas_fill_failures_total{{kind=\"{}\"}} {}",
                kind.name(),
                of(count)
            );
        }
        for (name, value, help) in self.gauges() {
            let _ = write!(
                text,
                "# TYPE atlas_fill_{name} gauge\n# HELP atlas_fill_{name} {help}\natlas_fill_{name} {value}\n"
            );
        }
        let oldest = crate::report::seconds(of(&self.oldest_ms));
        let _ = write!(
            text,
            "# TYPE atlas_fill_oldest_wanted_seconds gauge\n\
             # HELP atlas_fill_oldest_wanted_seconds For how long the oldest wanted object has been waited for.\n\
             atlas_fill_oldest_wanted_seconds {oldest}\n# EOF\n"
        );
        text
    }
}

/// Opens the listener.
///
/// # Errors
/// Why it cannot be, in a line.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("metrics {address}: {error}"))
}

/// Answers, until it is dropped.
pub async fn serve(listener: TcpListener, counters: Arc<Counters>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // As of too many files: not at once again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let counters = Arc::clone(&counters);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = tokio::time::timeout(LIMIT, answer(stream, &counters)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, counters: &Counters) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|it| it == b"\r\n\r\n") {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).await?;
        if count == 0 || head.len() + count > HEAD_BYTES_MAX {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..count]);
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split_whitespace().nth(1).unwrap_or_default();
    let is_get = head.starts_with("GET ");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let (status, kind, body) = match target {
        _ if !is_get => ("405 Method Not Allowed", "text/plain", String::new()),
        "/metrics" => ("200 OK", kind, counters.text()),
        "/health" if counters.origin_up.load(Ordering::Relaxed) == 1 => {
            ("200 OK", "text/plain", "ok\n".to_owned())
        }
        "/health" => (
            "503 Service Unavailable",
            "text/plain",
            "the origin does not answer\n".to_owned(),
        ),
        _ => (
            "404 Not Found",
            "text/plain",
            "see /metrics and /health\n".to_owned(),
        ),
    };
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_type_and_help_once_and_the_text_ends() {
        let counters = Counters::default();
        counters.failed(Kind::Checksum);
        let text = counters.text();
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("atlas_fill_failures_total{kind=\"checksum\"} 1\n"));
        let types = text.lines().filter(|line| line.starts_with("# TYPE"));
        let mut names: Vec<_> = types.filter_map(|line| line.split(' ').nth(2)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("# HELP"))
                .count(),
            count
        );
    }
}
