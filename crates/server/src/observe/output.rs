//! Lines for a file, a pipe or a terminal, written by a separate thread.
//!
//! A disk may hang and a pipe may have no reader; the worker must not wait for either. So
//! [`Output::push`] refuses to block. Bounds: [`OutputLimits`] lines and bytes wait; further lines
//! and lines that could not be written are dropped and counted. At the end [`Output::close`] waits
//! for the queued lines, for a limited time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// Bytes that one write takes; more than this only if a single line is longer.
const BATCH_BYTES: usize = 64 * 1024;

/// Where lines go.
pub(crate) trait Target: Send {
    /// Writes all of it. May block for ever.
    ///
    /// # Errors
    /// What the kernel said. The lines are lost then.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Opens its file again, which may have been renamed ([`Output::reopen`]).
    fn reopen(&mut self) {}

    /// Writing failed.
    fn on_error(&mut self, _error: &io::Error) {}
}

/// What may wait to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutputLimits {
    /// Pieces, each of a line or several; room for as many is allocated at start.
    pub lines_max: usize,
    /// Bytes of them.
    pub bytes_max: usize,
    /// After a write the thread sleeps for so long, so that it is not woken for each line that comes meanwhile.
    pub pause: Duration,
}

/// A handle to the thread; its clones share one queue.
#[derive(Debug)]
pub(crate) struct Output {
    sender: SyncSender<Piece>,
    shared: Arc<Shared>,
    bytes_max: usize,
    thread: Thread,
    /// Disconnected once the thread has ended.
    ended: Mutex<Receiver<()>>,
}

/// Whole lines, and how many they are.
#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    lines: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of lines that wait.
    bytes: AtomicUsize,
    /// Lines that were not written.
    dropped: AtomicU64,
    is_reopen_wanted: AtomicBool,
    is_closing: AtomicBool,
}

impl Output {
    /// Starts the thread, called `name`, which writes to `target`.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn spawn(
        name: &str,
        limits: OutputLimits,
        target: impl Target + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(limits.lines_max);
        let (end, ended) = channel();
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            receiver,
            target,
            shared: Arc::clone(&shared),
            pause: limits.pause,
        };
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            writer.run();
            drop(end);
        })?;
        Ok(Self {
            sender,
            shared,
            bytes_max: limits.bytes_max,
            thread: thread.thread().clone(),
            ended: Mutex::new(ended),
        })
    }

    /// Queues a line with its line break; an empty one is ignored. Returns whether there was room.
    pub(crate) fn push(&self, line: Vec<u8>) -> bool {
        self.push_lines(line, 1)
    }

    /// The same for several lines, which are written or dropped together.
    pub(crate) fn push_lines(&self, text: Vec<u8>, lines: u64) -> bool {
        if text.is_empty() {
            return true;
        }
        let bytes = text.len();
        let waiting = self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        if waiting + bytes <= self.bytes_max
            && self.sender.try_send(Piece { bytes: text, lines }).is_ok()
        {
            return true;
        }
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.count_dropped(lines);
        false
    }

    /// Counts lines that were dropped before they came here.
    pub(crate) fn count_dropped(&self, lines: u64) {
        self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Lines that were never written, since start.
    #[must_use]
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Has the thread open its target anew before it writes again.
    pub(crate) fn reopen(&self) {
        self.shared.is_reopen_wanted.store(true, Ordering::Release);
        self.wake();
    }

    /// Waits until all queued lines are written, `time_max` at most; returns whether they are.
    /// No line may be queued afterwards.
    pub(crate) fn close(&self, time_max: Duration) -> bool {
        self.shared.is_closing.store(true, Ordering::Release);
        self.wake();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(time_max) == Err(RecvTimeoutError::Disconnected)
    }

    /// Wakes the thread by an empty line, and out of its pause. If the queue is full, it waits for no line anyway.
    fn wake(&self) {
        let _ = self.sender.try_send(Piece::default());
        self.thread.unpark();
    }
}

/// The thread's side.
struct Writer<T> {
    receiver: Receiver<Piece>,
    target: T,
    shared: Arc<Shared>,
    pause: Duration,
}

impl<T: Target> Writer<T> {
    fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_BYTES);
        let mut next = self.receiver.recv().ok();
        while let Some(first) = next {
            let mut lines = first.lines;
            batch.clear();
            batch.extend_from_slice(&first.bytes);
            while batch.len() < BATCH_BYTES
                && let Ok(piece) = self.receiver.try_recv()
            {
                lines += piece.lines;
                batch.extend_from_slice(&piece.bytes);
            }
            // Asked before this line was taken out: what follows goes to the new file.
            if self.shared.is_reopen_wanted.swap(false, Ordering::AcqRel) {
                self.target.reopen();
            }
            self.write(&batch, lines);
            if batch.len() < BATCH_BYTES && !self.shared.is_closing.load(Ordering::Acquire) {
                thread::park_timeout(self.pause);
            }
            next = if self.shared.is_closing.load(Ordering::Acquire) {
                self.receiver.try_recv().ok()
            } else {
                self.receiver.recv().ok()
            };
        }
    }

    fn write(&mut self, batch: &[u8], lines: u64) {
        if batch.is_empty() {
            return;
        }
        if let Err(error) = self.target.write_lines(batch) {
            self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
            self.target.on_error(&error);
        }
        self.shared.bytes.fetch_sub(batch.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Output, OutputLimits, Target};
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// As long as a test ever waits for something that comes.
    pub(crate) const LONG: Duration = Duration::from_secs(60);
    const LIMITS: OutputLimits = OutputLimits {
        lines_max: 4,
        bytes_max: 100,
        pause: Duration::ZERO,
    };

    /// Tells of each write, then waits for what it is to come to.
    struct BlockedTarget {
        events: Sender<String>,
        outcomes: Receiver<io::Result<()>>,
    }

    impl Target for BlockedTarget {
        fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
            let text = String::from_utf8(lines.to_vec()).unwrap();
            self.events.send(text).unwrap();
            // A test that is over lets everything through.
            self.outcomes.recv().unwrap_or(Ok(()))
        }

        fn reopen(&mut self) {
            self.events.send("reopen".into()).unwrap();
        }

        fn on_error(&mut self, error: &io::Error) {
            self.events.send(error.to_string()).unwrap();
        }
    }

    fn blocked(limits: OutputLimits) -> (Output, Receiver<String>, Sender<io::Result<()>>) {
        let ((events, seen), (outcome, outcomes)) = (channel(), channel());
        let output = Output::spawn("test", limits, BlockedTarget { events, outcomes }).unwrap();
        (output, seen, outcome)
    }

    #[test]
    fn a_target_that_blocks_costs_lines_and_no_time() {
        let (output, seen, outcome) = blocked(LIMITS);
        assert!(output.push(b"first\n".to_vec()));
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
        // The thread is held now: from here on it is the queue that takes lines.
        for line in ["1\n", "2\n", "3\n", "4\n"] {
            assert!(output.push(line.into()), "{line}");
        }
        assert!(!output.push(b"5\n".to_vec()));
        assert_eq!(output.dropped(), 1);
        assert!(!output.close(Duration::ZERO), "it is held");
        outcome.send(Ok(())).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "1\n2\n3\n4\n");
        drop(outcome);
        assert!(output.close(LONG));
        assert_eq!(output.dropped(), 1);
    }

    #[test]
    fn bytes_are_bounded_as_lines_are() {
        let (output, seen, _outcome) = blocked(LIMITS);
        assert!(output.push(vec![b'a'; 1]));
        seen.recv_timeout(LONG).unwrap();
        // What is being written still waits.
        assert!(!output.push(vec![b'b'; 100]));
        assert!(output.push(vec![b'b'; 99]));
        assert!(!output.push(vec![b'c'; 1]));
        assert_eq!(output.dropped(), 2);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported() {
        let (output, seen, outcome) = blocked(LIMITS);
        output.push(b"lost\n".to_vec());
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "lost\n");
        outcome.send(Err(io::Error::other("no space"))).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "no space");
        output.push(b"kept\n".to_vec());
        drop(outcome);
        assert!(output.close(LONG));
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "kept\n");
        assert_eq!(output.dropped(), 1);
    }

    #[test]
    fn reopening_needs_no_line_and_happens_once() {
        let (output, seen, outcome) = blocked(LIMITS);
        output.reopen();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "reopen");
        output.push(b"line\n".to_vec());
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "line\n");
        // A full queue cannot be told, and need not be.
        for _ in 0..LIMITS.lines_max {
            output.push(b"x".to_vec());
        }
        output.reopen();
        outcome.send(Ok(())).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "reopen");
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "xxxx");
        drop(outcome);
        assert!(output.close(LONG));
        assert!(seen.try_recv().is_err());
    }
    #[test]
    fn lines_of_a_pause_are_written_together_and_nobody_waits_for_its_end() {
        let limits = OutputLimits {
            pause: LONG * 2,
            ..LIMITS
        };
        for is_closed in [false, true] {
            let (output, seen, outcome) = blocked(limits);
            drop(outcome);
            output.push(b"first\n".to_vec());
            assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
            output.push(b"1\n".to_vec());
            output.push(b"2\n".to_vec());
            if is_closed {
                assert!(output.close(LONG));
            } else {
                output.reopen();
                assert_eq!(seen.recv_timeout(LONG).unwrap(), "reopen");
            }
            assert_eq!(seen.recv_timeout(LONG).unwrap(), "1\n2\n");
        }
    }
}
