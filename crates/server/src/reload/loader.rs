//! Files read again while serving, by a separate thread.
//!
//! A file may be on a slow disk or one that hangs, and parsing a chain and its keys, or thousands of rules, takes
//! milliseconds: the workers, and with them all clients, must not wait for that. The supervisor sends a
//! request, goes on, and passes the result to the workers when it is ready. This thread also drops what was loaded
//! before, once no handshake and no worker uses it.
//!
//! It refuses to queue: requests that come while it reads are one request. Bounds: one waiting
//! request; the thread ends with the server.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::error;

use super::{Loaded, Source};
use crate::tls::warn_of_times;

/// How often the times of the certificates are looked at while serving.
const TIMES_CHECK_EVERY: Duration = Duration::from_hours(24);
/// How often it is looked whether what was loaded before is still used.
const RETIRED_CHECK_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for the thread at the end: it may be reading from a disk that hangs.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// The supervisor's end of the thread.
#[derive(Debug)]
pub(crate) struct Loader {
    /// Holds one request. `None` while this is dropped.
    requests: Option<SyncSender<()>>,
    /// Holds one result; the thread waits with the next.
    results: Receiver<Result<Loaded, String>>,
    /// Readable when a result is there.
    wake: UnixStream,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

/// The thread's end.
struct Thread {
    source: Source,
    requests: Receiver<()>,
    results: SyncSender<Result<Loaded, String>>,
    wake: UnixStream,
    /// Everything that may still be in use, the newest last: nothing of it ends anywhere but here.
    loaded: Vec<Loaded>,
}

impl Loader {
    /// Starts the thread. `loaded` is what is served with until something else was loaded.
    ///
    /// # Errors
    /// The kernel's: no thread, or no descriptors.
    pub(crate) fn start(source: Source, loaded: &Loaded) -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (requests, asked) = sync_channel(1);
        let (made, results) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let thread = Thread {
            source,
            requests: asked,
            results: made,
            wake: waker,
            loaded: vec![loaded.clone()],
        };
        thread::Builder::new()
            .name("atlas-reload".into())
            .spawn(move || {
                thread.run();
                drop(end);
            })?;
        Ok(Self {
            requests: Some(requests),
            results,
            wake,
            ended,
        })
    }

    /// Has the files read again. While they are being read, one request more is kept.
    pub(crate) fn request(&self) {
        // Full: what waits already will read the files as they are now. Gone: the thread logs
        // nothing, and what was loaded stays.
        if let Some(requests) = &self.requests {
            let _ = requests.try_send(());
        }
    }

    /// What was made since the last call, if anything, or why it could not be, which was logged.
    #[must_use]
    pub(crate) fn poll(&self) -> Option<Result<Loaded, String>> {
        self.results.try_recv().ok()
    }

    /// Readable after something was made, until [`Loader::drain`].
    #[must_use]
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Forgets what woke the supervisor. Called before [`Loader::poll`].
    pub(crate) fn drain(&self) {
        let mut bytes = [0_u8; 16];
        while matches!((&self.wake).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

impl Drop for Loader {
    /// Waits for the end of the thread, and with it of the process that reads for it, `END_TIME_MAX` at most.
    fn drop(&mut self) {
        self.requests = None;
        // A result that nobody takes any more makes room for one that the thread waits with.
        let _ = self.results.try_recv();
        let _: Result<(), RecvTimeoutError> = self.ended.recv_timeout(END_TIME_MAX);
    }
}

impl Thread {
    fn run(mut self) {
        let mut times_checked = Instant::now();
        loop {
            let next_check = TIMES_CHECK_EVERY.saturating_sub(times_checked.elapsed());
            let wait = match self.loaded.len() {
                0 | 1 => next_check,
                _ => next_check.min(RETIRED_CHECK_EVERY),
            };
            match self.requests.recv_timeout(wait) {
                Ok(()) => {
                    if !self.load() {
                        return;
                    }
                    times_checked = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.drop_retired();
            if times_checked.elapsed() >= TIMES_CHECK_EVERY {
                let tls = self.loaded.last().and_then(|loaded| loaded.tls.as_ref());
                if let Some(tls) = tls {
                    warn_of_times(&tls.certificates);
                }
                times_checked = Instant::now();
            }
        }
    }

    /// Says whether anybody is left to load for.
    fn load(&mut self) -> bool {
        let loaded = match self.source.load() {
            Ok(loaded) => loaded,
            Err(failure) => {
                let mut reasons = Vec::new();
                for reason in failure.reasons() {
                    error!("SIGHUP: the configuration stays as it was: {reason}");
                    reasons.push(reason.to_string());
                }
                return self.tell(Err(reasons.join("\n")));
            }
        };
        self.loaded.push(loaded.clone());
        self.tell(Ok(loaded))
    }

    fn tell(&self, outcome: Result<Loaded, String>) -> bool {
        let is_taken = self.results.send(outcome).is_ok();
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[0]);
        is_taken
    }

    /// Drops configurations, and their keys, that no handshake uses any more, and sites that no worker uses.
    fn drop_retired(&mut self) {
        let newest = self.loaded.len() - 1;
        let mut place = 0;
        self.loaded.retain(|loaded| {
            let is_newest = place == newest;
            place += 1;
            let tls = loaded.tls.as_ref();
            let is_handshaking = tls.is_some_and(|tls| Arc::strong_count(&tls.config) > 1);
            is_newest || is_handshaking || Arc::strong_count(&loaded.sites) > 1
        });
    }
}
