//! Viewers in mid-stream: each reads at a pace of its own, compares every byte, and remembers the longest time that it
//! waited for what it wanted.
//!
//! Half of them watch a film that outlasts the check, the others ask for something short again and again. Their
//! sockets hold little, so that the server has to be there for each piece. They fail at the first reply that is not
//! 200, reset or wrong byte. Bounded by: their number, each a thread; limits on every wait.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::client::{Client, Trust};
use testbed::latency::Latency;
use testbed::namespace::Namespace;

use super::super::files::{self, name};

/// What viewers of a film watch: at the pace of many it lasts for minutes.
const FILM_BYTES: u64 = 64 << 20;
/// What the others ask for.
const SHORT_BYTES: u64 = 16_385;
/// What a viewer reads at once.
const PIECE_BYTES: u64 = 32 << 10;
/// What its socket is asked to hold: the kernel doubles it, and needs half of that itself.
const HELD_BYTES: usize = 8 << 10;
/// What all viewers together read in a second: what a debug build on a busy machine can send.
const RATE_BYTES: u64 = 32 << 20;
/// The pace of few is no faster than this.
const PACE_MIN: Duration = Duration::from_millis(32);
/// Of a viewer's thread: many fit the machine.
const STACK_BYTES: usize = 256 << 10;
/// How long it may take until all of them are in mid-stream.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// Where viewers are, and whom they ask.
#[derive(Clone, Copy)]
pub(super) struct ViewerGroup<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) plain: SocketAddr,
    /// Where half of them ask over TLS, and whom they trust.
    pub(super) tls: Option<(SocketAddr, &'a Trust)>,
    /// Whether half of them watch films.
    pub(super) has_films: bool,
    /// Whether it is a fault to close a connection that a request is on its way on; else it is counted.
    pub(super) is_strict: bool,
    pub(super) count: u32,
}

/// What viewers of one kind met.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Requests on open connections that got no reply.
    failed: u64,
    /// Replies that were read to their end.
    replies: u64,
    /// The longest wait of each for a piece.
    stalls: Latency,
    /// The longest wait of each for a reply's head, on a new connection with its handshakes.
    heads: Latency,
}

/// One viewer's.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    failed: u64,
    replies: u64,
    stall: Duration,
    head: Duration,
}

impl Seen {
    fn add(&mut self, own: Own) {
        self.replies += own.replies;
        self.failed += own.failed;
        self.stalls.record(own.stall);
        self.heads.record(own.head);
    }

    /// In a line.
    pub(super) fn describe(&self) -> String {
        let milliseconds = |microseconds: u64| microseconds.div_ceil(1_000);
        let (stalls, heads) = (self.stalls.summary(), self.heads.summary());
        format!(
            "{} viewers, {} replies, {} requests without one; longest stall of each: p50 {}, p99.9 {}, max {} ms; for a reply's head: max {} ms",
            stalls.count,
            self.replies,
            self.failed,
            milliseconds(stalls.p50),
            milliseconds(stalls.p99_9),
            milliseconds(stalls.max),
            milliseconds(heads.max),
        )
    }
}

/// What viewers in plaintext and over TLS saw while `work` was done, which begins once all are in mid-stream.
pub(super) fn watch(
    group: ViewerGroup<'_>,
    work: impl FnOnce() -> Result<()>,
) -> Result<[Seen; 2]> {
    let (stop, are_all) = (AtomicBool::new(false), AtomicBool::new(false));
    let (begun, beginnings) = channel();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..group.count {
            let (stop, are_all, begun) = (&stop, &are_all, begun.clone());
            let one = move || {
                let seen = view(group, number, &begun, (are_all, stop));
                // One that has failed keeps nobody waiting.
                let _ = begun.send(());
                seen
            };
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let spawned = builder.spawn_scoped(scope, one);
            if let Ok(thread) = spawned {
                threads.push((number, thread));
            } else {
                stop.store(true, Ordering::Relaxed);
                bail!("no thread for viewer {number}");
            }
        }
        let deadline = Instant::now() + BEGIN_LIMIT;
        let all_begin = || {
            for _ in 0..group.count {
                let left = deadline.saturating_duration_since(Instant::now());
                beginnings
                    .recv_timeout(left)
                    .context("not all viewers are in mid-stream")?;
            }
            Ok(())
        };
        let done = all_begin().and_then(|()| {
            are_all.store(true, Ordering::Relaxed);
            work()
        });
        stop.store(true, Ordering::Relaxed);
        let mut all = [Seen::default(), Seen::default()];
        for (number, thread) in threads {
            let Ok(own) = thread.join() else {
                bail!("viewer {number} panicked");
            };
            let own = own.with_context(|| format!("viewer {number}"))?;
            all[usize::from(group.trusts(number))].add(own);
        }
        done.map(|()| all)
    })
}

impl ViewerGroup<'_> {
    /// Whether a viewer asks over TLS.
    fn trusts(&self, number: u32) -> bool {
        self.tls.is_some() && !number.is_multiple_of(2)
    }

    fn connect(&self, number: u32) -> Result<Client> {
        let (address, trust) = match self.tls {
            Some((address, trust)) if self.trusts(number) => (address, Some(trust)),
            _ => (self.plain, None),
        };
        Client::connect_with(self.namespace, address, HELD_BYTES, trust)
    }

    /// Between two pieces of one viewer.
    fn pace(&self) -> Duration {
        let bytes = u64::from(self.count) * PIECE_BYTES;
        Duration::from_micros(bytes * 1_000_000 / RATE_BYTES).max(PACE_MIN)
    }
}

/// Asks again and again until it is told to stop, on a connection as long as that lasts.
fn view(
    group: ViewerGroup<'_>,
    number: u32,
    begun: &Sender<()>,
    (are_all, stop): (&AtomicBool, &AtomicBool),
) -> Result<Own> {
    // Two of four watch a film, one of each kind.
    let bytes = if group.has_films && number % 4 < 2 {
        FILM_BYTES
    } else {
        SHORT_BYTES
    };
    let (content, path, pace) = (files::content(bytes), name(bytes), group.pace());
    let mut own = Own::default();
    let mut open: Option<Client> = None;
    let mut is_in_stream = false;
    while !stop.load(Ordering::Relaxed) {
        // What it takes to begin, with all the others, is no stall.
        let (asked, is_measured) = (Instant::now(), are_all.load(Ordering::Relaxed));
        let is_open = open.is_some();
        let mut client = match open.take() {
            Some(client) => client,
            None => group.connect(number)?,
        };
        let head = client
            .ask("GET", &path, "")
            .and_then(|()| client.read_head());
        let head = match head {
            Err(_) if is_open && !group.is_strict => {
                own.failed += 1;
                continue;
            }
            head => head?,
        };
        ensure!(head.status == 200, "status {}", head.status);
        if is_measured {
            own.head = own.head.max(asked.elapsed());
        }
        let mut offset = 0;
        while offset < bytes {
            let (asked, is_measured) = (Instant::now(), are_all.load(Ordering::Relaxed));
            let count = PIECE_BYTES.min(bytes - offset);
            let read = client.read_checked(content, offset, count);
            read.with_context(|| format!("at byte {offset}"))?;
            if is_measured {
                own.stall = own.stall.max(asked.elapsed());
            }
            if !is_in_stream {
                is_in_stream = true;
                let _ = begun.send(());
            }
            offset += count;
            if stop.load(Ordering::Relaxed) {
                return Ok(own);
            }
            thread::sleep(pace);
        }
        own.replies += 1;
        if head.field("connection") != Some("close") {
            open = Some(client);
        }
    }
    Ok(own)
}
