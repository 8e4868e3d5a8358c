//! Lines for a file, a pipe or a terminal, written by a separate thread.
//!
//! A disk may hang and a pipe may have no reader; the worker must not wait for either. So
//! [`Output::push`] appends to what waits, under a lock that is never held while anything is written. Bounds:
//! [`OutputLimits::bytes_max`] wait; further lines and lines that could not be written are dropped and counted. At the
//! end [`Output::close`] waits for the lines that wait, for a limited time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// Memory that is kept for further lines once these are written, at most.
const ROOM_BYTES: usize = 64 * 1024;

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
    /// Bytes, those that are being written included.
    pub bytes_max: usize,
    /// After a write the thread sleeps for so long, so that it is not woken for each line that comes meanwhile.
    pub pause: Duration,
}

/// A handle to the thread, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Output {
    shared: Arc<Shared>,
    bytes_max: usize,
    thread: Thread,
    /// Disconnected once the thread has ended.
    ended: Mutex<Receiver<()>>,
}

/// Whole lines, and how many they are.
#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Lines that were not written.
    dropped: AtomicU64,
    is_reopen_wanted: AtomicBool,
    is_closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Lines,
    /// Bytes that are being written.
    writing_bytes: usize,
    /// The thread sleeps until there are lines.
    is_thread_idle: bool,
}

impl Shared {
    /// Held to append and to take only, which cannot panic but for want of memory.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let (end, ended) = channel();
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            target,
            shared: Arc::clone(&shared),
            pause: limits.pause,
        };
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            writer.run();
            drop(end);
        })?;
        Ok(Self {
            shared,
            bytes_max: limits.bytes_max,
            thread: thread.thread().clone(),
            ended: Mutex::new(ended),
        })
    }

    /// Queues a line with its line break. Returns whether there was room.
    pub(crate) fn push(&self, line: &[u8]) -> bool {
        let mut waiting = self.shared.waiting();
        let room = self.bytes_max.saturating_sub(waiting.writing_bytes);
        if waiting.lines.text.len() + line.len() > room {
            drop(waiting);
            self.count_dropped(1);
            return false;
        }
        let text = &mut waiting.lines.text;
        if text.capacity() - text.len() < line.len() {
            // Twice as much, as vectors grow, but not beyond the bound.
            text.reserve_exact(text.len().max(line.len()).min(room - text.len()));
        }
        text.extend_from_slice(line);
        waiting.lines.count += 1;
        let is_thread_idle = std::mem::take(&mut waiting.is_thread_idle);
        drop(waiting);
        if is_thread_idle {
            self.thread.unpark();
        }
        true
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
        self.thread.unpark();
    }

    /// Waits until all queued lines are written, `time_max` at most; returns whether they are.
    /// No line may be queued afterwards.
    pub(crate) fn close(&self, time_max: Duration) -> bool {
        self.end_thread();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(time_max) == Err(RecvTimeoutError::Disconnected)
    }

    fn end_thread(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.end_thread();
    }
}

/// The thread's side.
struct Writer<T> {
    target: T,
    shared: Arc<Shared>,
    pause: Duration,
}

impl<T: Target> Writer<T> {
    fn run(mut self) {
        let mut lines = Lines::default();
        loop {
            // Looked at before lines are taken: what was queued before is written.
            let is_closing = self.shared.is_closing.load(Ordering::Acquire);
            self.take(&mut lines);
            // Looked at after: what is queued after the wish goes to the new file.
            if self.shared.is_reopen_wanted.swap(false, Ordering::AcqRel) {
                self.target.reopen();
            }
            if !lines.text.is_empty() {
                self.write(&mut lines);
                if !is_closing && !self.pause.is_zero() {
                    thread::park_timeout(self.pause);
                }
            } else if is_closing {
                return;
            } else {
                // Whoever queues a line from now on, or wants anything else, has it return.
                thread::park();
            }
        }
    }

    /// Takes what waits; `lines`, which are empty, are the memory for what comes.
    fn take(&self, lines: &mut Lines) {
        let mut waiting = self.shared.waiting();
        std::mem::swap(&mut waiting.lines, lines);
        waiting.writing_bytes = lines.text.len();
        waiting.is_thread_idle = lines.text.is_empty();
    }

    fn write(&mut self, lines: &mut Lines) {
        if let Err(error) = self.target.write_lines(&lines.text) {
            (self.shared.dropped).fetch_add(lines.count, Ordering::Relaxed);
            self.target.on_error(&error);
        }
        lines.text.clear();
        lines.text.shrink_to(ROOM_BYTES);
        lines.count = 0;
        self.shared.waiting().writing_bytes = 0;
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
        let (output, seen, outcome) = blocked(OutputLimits {
            bytes_max: "first\n".len() + 4 * "1\n".len(),
            ..LIMITS
        });
        assert!(output.push(b"first\n"));
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
        // The thread is held now, and what it writes still counts.
        for line in ["1\n", "2\n", "3\n", "4\n"] {
            assert!(output.push(line.as_bytes()), "{line}");
        }
        assert!(!output.push(b"5\n"));
        assert_eq!(output.dropped(), 1);
        assert!(!output.close(Duration::ZERO), "it is held");
        outcome.send(Ok(())).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "1\n2\n3\n4\n");
        drop(outcome);
        assert!(output.close(LONG));
        assert_eq!(output.dropped(), 1);
    }

    #[test]
    fn what_was_written_makes_room() {
        let (output, seen, outcome) = blocked(LIMITS);
        drop(outcome);
        for _ in 0..3 {
            assert!(output.push(&[b'a'; 100]));
            seen.recv_timeout(LONG).unwrap();
            // Nothing says when the thread has come back from its target.
            while output.shared.waiting().writing_bytes > 0 {
                std::thread::yield_now();
            }
        }
        assert!(!output.push(&[b'b'; 101]));
        assert_eq!(output.dropped(), 1);
    }

    #[test]
    fn memory_is_bounded_as_bytes_are() {
        let (output, seen, _outcome) = blocked(LIMITS);
        assert!(output.push(b"a"));
        seen.recv_timeout(LONG).unwrap();
        assert!(output.push(&[b'b'; 60]) && output.push(&[b'c'; 39]));
        let capacity = output.shared.waiting().lines.text.capacity();
        assert!(capacity <= LIMITS.bytes_max, "{capacity}");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported() {
        let (output, seen, outcome) = blocked(LIMITS);
        output.push(b"lost\n");
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "lost\n");
        outcome.send(Err(io::Error::other("no space"))).unwrap();
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "no space");
        output.push(b"kept\n");
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
        output.push(b"line\n");
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "line\n");
        for _ in 0..4 {
            output.push(b"x");
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
    fn a_handle_that_is_dropped_ends_the_thread_once_its_lines_are_written() {
        let (output, seen, outcome) = blocked(LIMITS);
        output.push(b"first\n");
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
        output.push(b"last\n");
        drop(output);
        drop(outcome);
        assert_eq!(seen.recv_timeout(LONG).unwrap(), "last\n");
        let end = seen.recv_timeout(LONG);
        assert_eq!(end, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
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
            output.push(b"first\n");
            assert_eq!(seen.recv_timeout(LONG).unwrap(), "first\n");
            output.push(b"1\n");
            output.push(b"2\n");
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
