//! What one client and the server say to each other, told while the server runs: `/pcap?client=ADDR&seconds=N`
//! its frames, `/trace?client=ADDR&seconds=N` its connections as qlog.
//!
//! The reply is the file, which ends with the time, with [`BYTES_MAX`], or when the asker goes. Nothing is written to a
//! disk. Frames and records are handed to a thread that writes to the asker ([`crate::observe::output`]): what does not
//! fit in [`QUEUE`] is dropped, and no worker waits. While nobody asks, a frame costs a branch.
//!
//! Refused: a second one of a kind at the same time, and a trace beside one to a file (`--trace`).

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use worker::{FrameWatch, qlog};

use crate::observe::connections::{Asker, decode};
use crate::observe::log;
use crate::observe::metrics::overview::Overview;
use crate::observe::output::{Output, OutputLimits, Target};
use crate::observe::trace::{PeerTrace, Peers};
use crate::run::mailbox::Command;

/// Bytes of a reply.
pub(crate) const BYTES_MAX: u64 = 256 << 20;
/// Longest time, seconds.
pub(crate) const SECONDS_MAX: u64 = 600;
/// The time, unless the question names one.
pub(crate) const SECONDS_DEFAULT: u64 = 10;
/// What may wait for the asker.
pub(crate) const QUEUE: OutputLimits = OutputLimits {
    bytes_max: 16 << 20,
    pause: Duration::ZERO,
};
/// Bytes of each frame, more than any has.
const SNAP_BYTES: u32 = 262_144;

/// What is told of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CaptureKind {
    /// Its frames.
    Pcap,
    /// Its connections, as qlog.
    Trace,
}

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CaptureQuery {
    kind: CaptureKind,
    peers: Peers,
    time: Duration,
}

impl CaptureQuery {
    /// Parses the query of a request's target: `client=ADDRESS[:PORT]`, `seconds=N`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(kind: CaptureKind, text: &[u8]) -> Result<Self, String> {
        let (mut peers, mut seconds) = (None, SECONDS_DEFAULT);
        let parts = text.split(|byte| *byte == b'&');
        for part in parts.filter(|part| !part.is_empty()) {
            let part = decode(part);
            let refuse =
                || format!("{part}: there are client=ADDRESS[:PORT], seconds=1..{SECONDS_MAX}");
            match part.split_once('=') {
                Some(("client", value)) => peers = Some(Peers::parse(value).ok_or_else(refuse)?),
                Some(("seconds", value)) => {
                    let number = value.parse().ok();
                    let number = number.filter(|number| (1..=SECONDS_MAX).contains(number));
                    seconds = number.ok_or_else(refuse)?;
                }
                _ => return Err(refuse()),
            }
        }
        Ok(Self {
            kind,
            peers: peers.ok_or("which client? client=ADDRESS[:PORT]")?,
            time: Duration::from_secs(seconds),
        })
    }
}

/// One of each kind at a time.
static IS_TAKEN: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// The right to have one.
struct Turn(CaptureKind);

impl Turn {
    fn take(kind: CaptureKind) -> Option<Self> {
        let was_taken = IS_TAKEN[kind as usize].swap(true, Ordering::AcqRel);
        (!was_taken).then_some(Self(kind))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_TAKEN[self.0 as usize].store(false, Ordering::Release);
    }
}

/// Answers a question, until its time is over.
///
/// # Errors
/// What the asker's connection says.
pub(crate) fn answer(
    mut stream: TcpStream,
    query: CaptureQuery,
    overview: &Overview,
    asker: &Asker,
) -> io::Result<()> {
    let CaptureQuery { kind, peers, time } = query;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let turn = Turn::take(kind).filter(|_| kind == CaptureKind::Pcap || !overview.is_tracing());
    let Some(_turn) = turn else {
        let refusal = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\nthere is one already\n";
        return stream.write_all(refusal.as_bytes());
    };
    let (media_type, header) = match kind {
        CaptureKind::Pcap => (
            "application/vnd.tcpdump.pcap",
            link::pcap::file_header(SNAP_BYTES).to_vec(),
        ),
        CaptureKind::Trace => (
            "application/qlog+json-seq",
            qlog::header(overview.unix_nanos_at_zero() / 1_000_000),
        ),
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )?;
    let target = Reply {
        stream: stream.try_clone()?,
        left_bytes: BYTES_MAX,
    };
    let output = Arc::new(Output::spawn("atlas-capture", QUEUE, target)?);
    output.push(&header);
    match kind {
        CaptureKind::Pcap => {
            let epoch_nanos = overview.unix_nanos_at_zero();
            asker.command(|| {
                Command::WatchFrames(Some(Box::new(PeerFrames {
                    peers,
                    output: Arc::clone(&output),
                    epoch_nanos,
                })))
            });
        }
        CaptureKind::Trace => asker.command(|| {
            let trace = PeerTrace::new(peers, Arc::clone(&output));
            Command::Trace(Some(Box::new(trace)))
        }),
    }
    wait_for_end(&stream, Instant::now() + time);
    match kind {
        CaptureKind::Pcap => asker.command(|| Command::WatchFrames(None)),
        CaptureKind::Trace => asker.command(|| Command::Trace(None)),
    }
    output.close(log::FLUSH_TIME_MAX);
    stream.shutdown(std::net::Shutdown::Both)
}

/// Waits until the asker goes, or the thread that writes ends the connection, `until` at most.
fn wait_for_end(stream: &TcpStream, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else {
            return;
        };
        let mut polled = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            // The request is whole: what comes is the end.
            Ok(_) | Err(_) => return,
        }
    }
}

/// Where a capture is written.
struct Reply {
    stream: TcpStream,
    left_bytes: u64,
}

impl Target for Reply {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        let left = self.left_bytes.checked_sub(lines.len() as u64);
        self.left_bytes = left.unwrap_or(0);
        let written = match left {
            Some(_) => self.stream.write_all(lines),
            None => Err(io::ErrorKind::FileTooLarge.into()),
        };
        if written.is_err() {
            // Nothing behind a gap; and it ends the wait.
            self.left_bytes = 0;
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
        written
    }
}

/// A worker's end.
#[derive(Debug)]
struct PeerFrames {
    peers: Peers,
    output: Arc<Output>,
    /// Unix time of the worker's start.
    epoch_nanos: u64,
}

impl FrameWatch for PeerFrames {
    fn wants(&self, peer: &SocketAddr) -> bool {
        self.peers.contains(peer)
    }

    fn see(&mut self, now: clock::Instant, parts: &[&[u8]]) {
        let frame_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let frame_bytes = u32::try_from(frame_bytes).unwrap_or(u32::MAX);
        let kept_bytes = frame_bytes.min(SNAP_BYTES);
        let nanos = self.epoch_nanos.saturating_add(now.as_nanos());
        let mut record = Vec::new();
        // Writing into memory cannot fail.
        let _ = link::pcap::write_record(&mut record, nanos, kept_bytes, frame_bytes, parts);
        self.output.push(&record);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::{CaptureKind, CaptureQuery, SECONDS_DEFAULT, SECONDS_MAX, answer};
    use crate::observe::connections::Asker;
    use crate::observe::metrics::Page;
    use crate::observe::metrics::overview::tests::overview;
    use crate::observe::trace::Peers;
    use crate::run::mailbox::{Command, mailbox};
    use crate::run::wait::{Source, wait};

    fn parse(text: &str) -> Result<CaptureQuery, String> {
        CaptureQuery::parse(CaptureKind::Pcap, text.as_bytes())
    }

    #[test]
    fn a_question_names_a_client_and_a_time_or_is_refused() {
        let query = |peers, seconds| CaptureQuery {
            kind: CaptureKind::Pcap,
            peers: Peers::parse(peers).unwrap(),
            time: Duration::from_secs(seconds),
        };
        assert_eq!(
            parse("client=192.0.2.7"),
            Ok(query("192.0.2.7", SECONDS_DEFAULT))
        );
        let text = "seconds=600&client=%5Bfd77::1%5D:5&";
        assert_eq!(parse(text), Ok(query("[fd77::1]:5", SECONDS_MAX)));
        for text in [
            "",
            "seconds=5",
            "client=x",
            "client=192.0.2.7&seconds=0",
            "client=192.0.2.7&seconds=601",
            "a=b",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn frames_of_a_client_are_told_until_the_asker_goes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (sender, mailbox) = mailbox().unwrap();
        let asker = Asker::new(vec![sender]);
        let answering = thread::spawn(move || {
            let overview = overview(vec![Page::new(&[], std::time::Instant::now())]);
            let query = parse("client=192.0.2.7&seconds=60").unwrap();
            answer(stream, query, &overview, &asker)
        });
        let next = || loop {
            if let Some(command) = mailbox.poll_command() {
                break command;
            }
            let source = Source::readable(mailbox.sleeper().fd());
            assert!(
                wait(&[source], Some(Duration::from_secs(60)))
                    .unwrap()
                    .is_any()
            );
            mailbox.sleeper().drain();
        };
        let Command::WatchFrames(Some(mut watch)) = next() else {
            panic!("no watch");
        };
        assert!(watch.wants(&"192.0.2.7:5".parse().unwrap()));
        assert!(!watch.wants(&"192.0.2.8:5".parse().unwrap()));
        watch.see(clock::Instant::from_millis(1), &[b"head", b"body"]);
        drop(watch);
        let mut reply = Vec::new();
        while !reply.ends_with(b"headbody") {
            let mut bytes = [0; 4096];
            let count = client.read(&mut bytes).unwrap();
            assert!(count > 0, "{reply:?}");
            reply.extend_from_slice(&bytes[..count]);
        }
        assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n"));
        let end_of_head = reply.windows(4).position(|four| four == b"\r\n\r\n");
        // A header of the file, and one of the record.
        assert_eq!(reply.len() - end_of_head.unwrap() - 4, 24 + 16 + 8);
        drop(client);
        assert!(matches!(next(), Command::WatchFrames(None)));
        let _ = answering.join().unwrap();
    }
}
