//! Signals, as flags that the worker reads between two rounds.
//!
//! The handlers (signal-hook's) only set a flag and write one byte to a socket pair, which ends a
//! sleep; [`crate::run`] acts on them. SIGINT and SIGTERM are counted: the first asks for an orderly
//! shutdown, the second for an immediate one. At the third, the handler itself ends the process,
//! because the worker may hang; the exit code is the one a shell gives to a killed process. While the
//! server opens what it needs, where a file system may hang and nothing is served, it does so at the
//! first, with the code of an orderly end ([`Signals::set_starting`]).
//!
//! It refuses all other work in a handler. Bounds: one flag per signal, one byte in the socket pair.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: a signal handler of ours, which counts and may end the process"
)]

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{
    flag,
    low_level::{self, pipe},
};

use crate::failure::EXIT_OK;

/// What a shell adds to a signal's number to make an exit code.
const KILLED_BY_SIGNAL: i32 = 128;
/// Number of SIGINTs and SIGTERMs at which the handler ends the process.
const ENDS_MAX: u32 = 3;

/// How many SIGINTs and SIGTERMs came, and which was the last.
#[derive(Debug, Default)]
struct TerminationSignals {
    count: AtomicU32,
    last: AtomicI32,
    is_starting: AtomicBool,
}

impl TerminationSignals {
    /// Called by the handler: touches atomics only, and may not return.
    fn count_one(&self, signal: i32) {
        if self.is_starting.load(Ordering::Relaxed) {
            low_level::exit(EXIT_OK.into());
        }
        self.last.store(signal, Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Release) + 1 >= ENDS_MAX {
            low_level::exit(KILLED_BY_SIGNAL + signal);
        }
    }
}

/// The handlers' side of each signal the server knows. SIGPIPE needs none: Rust's runtime ignores
/// it before `main`.
#[derive(Debug)]
pub(crate) struct Signals {
    ends: Arc<TerminationSignals>,
    report: Arc<AtomicBool>,
    hang_up: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn install() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let signals = Self {
            ends: Arc::default(),
            report: Arc::default(),
            hang_up: Arc::default(),
            wake,
        };
        for signal in [SIGINT, SIGTERM] {
            let ends = Arc::clone(&signals.ends);
            let handler = move || ends.count_one(signal);
            // SAFETY: the handler does what signal-safety(7) allows: it touches atomics, and
            // `_exit` is on the list. It allocates nothing, takes no lock and cannot panic.
            unsafe { low_level::register(signal, handler) }?;
        }
        flag::register(SIGUSR1, Arc::clone(&signals.report))?;
        flag::register(SIGHUP, Arc::clone(&signals.hang_up))?;
        for signal in [SIGINT, SIGTERM, SIGUSR1, SIGHUP] {
            pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(signals)
    }

    /// Whether the first SIGINT or SIGTERM ends the process at once: while it opens what it needs, and has
    /// nobody to finish for.
    pub(crate) fn set_starting(&self, is_starting: bool) {
        self.ends.is_starting.store(is_starting, Ordering::Relaxed);
    }

    /// Whether the server was asked to end. Stays so.
    #[must_use]
    pub(crate) fn termination_requested(&self) -> bool {
        self.ends.count.load(Ordering::Relaxed) > 0
    }

    /// The signal that asked a second time: the server is to end at once. Stays so.
    #[must_use]
    pub(crate) fn immediate_termination(&self) -> Option<i32> {
        let is_second = self.ends.count.load(Ordering::Acquire) > 1;
        is_second.then(|| self.ends.last.load(Ordering::Relaxed))
    }

    /// Whether the counters were asked for since this was last called.
    #[must_use]
    pub(crate) fn take_sigusr1(&self) -> bool {
        take(&self.report)
    }

    /// Whether SIGHUP came since this was last called.
    #[must_use]
    pub(crate) fn take_sighup(&self) -> bool {
        take(&self.hang_up)
    }

    /// Readable after a signal, until [`Signals::drain`].
    #[must_use]
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Forgets what woke the worker, so that it can sleep again. Called after a sleep and before
    /// the flags are looked at: a signal in between is seen by the flag or wakes the next sleep.
    pub(crate) fn drain(&self) {
        let mut bytes = [0u8; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

/// The flag is looked at every round, so the common case must not write to it.
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::{Signals, TerminationSignals};
    use crate::run::wait::{Source, wait};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    use signal_hook::low_level::raise;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_signal_wakes_once_and_is_taken_once() {
        let signals = Signals::install().unwrap();
        let is_awake = || {
            wait(&[Source::readable(signals.wake_fd())], Some(Duration::ZERO))
                .unwrap()
                .is_any()
        };
        assert!(!is_awake() && !signals.take_sigusr1() && !signals.termination_requested());
        raise(SIGUSR1).unwrap();
        raise(SIGHUP).unwrap();
        assert!(is_awake());
        signals.drain();
        assert!(!is_awake());
        assert!(signals.take_sigusr1() && !signals.take_sigusr1());
        assert!(signals.take_sighup() && !signals.take_sighup());
        assert!(!signals.termination_requested());
    }

    #[test]
    fn the_second_termination_signal_is_told_from_the_first() {
        let ends = TerminationSignals::default();
        let signals = Signals {
            ends: Arc::new(ends),
            ..Signals::install().unwrap()
        };
        let end = |signal| signals.ends.count_one(signal);
        assert!(!signals.termination_requested() && signals.immediate_termination().is_none());
        end(SIGTERM);
        assert!(signals.termination_requested() && signals.immediate_termination().is_none());
        end(SIGINT);
        assert!(signals.termination_requested());
        assert_eq!(signals.immediate_termination(), Some(SIGINT));
    }
}
