//! Serving: the loop around the worker, with the clock, the signals and the sleep in it.
//!
//! One thread. It refuses to spin: a round without progress is followed by a sleep until a
//! descriptor is ready or a timer is due, [`IDLE_SLEEP_MAX`] at most. The end is bounded too: after
//! SIGINT or SIGTERM replies have the grace time, then what is left is reset. After a second signal,
//! or when something broke, everything is reset at once: a client that is not told waits for minutes.

use std::io::Write as _;
use std::time;

use clock::{Duration, Instant};
use diskmap::Disk;
use link::Link;
use tracing::{error, info, warn};

use crate::failure::Failure;
use crate::link_watch::LinkWatch;
use crate::notify;
use crate::report;
use crate::signals::Signals;
use crate::tls;
use crate::wait::{self, EMPTY_ROUNDS, Source};
use crate::wall_clock;
use crate::warnings::{Severity, Warning};
use crate::watch::Watch;
use crate::worker::{Step, Worker, WorkerError};

/// Longest sleep. Only a call tells that an interface was removed, so an idle server asks now and
/// then; waking once a second does not show in its processor time.
pub const IDLE_SLEEP_MAX: Duration = Duration::from_secs(1);

/// Rounds that may carry the last resets out. Enough for every connection there can be, at
/// [`crate::worker::TRANSMIT_FRAMES_MAX`] a round.
const RESET_ROUNDS_MAX: u32 = 16_384;

/// How long the last resets may take while the link is full.
const RESET_TIME_MAX: Duration = Duration::from_secs(1);

/// A worker being driven in real time.
#[derive(Debug)]
pub struct Serving<L: Link, D: Disk> {
    worker: Worker<L, D>,
    signals: Signals,
    /// The real clock's reading at [`Instant::ZERO`].
    epoch: time::Instant,
    grace: Duration,
    /// What SIGHUP has TLS made anew by.
    tls: Option<tls::Loader>,
    watch: Watch,
    /// When the replies under way are given up; `None` while nobody asked the server to end.
    deadline: Option<Instant>,
    /// Rounds without progress since the last one with.
    empty_rounds: u32,
    /// The link said that it is full, was said to be writable, and was full again: its writability
    /// means nothing (see [`link::FULL_RETRY_AFTER`]), so only time is waited for.
    writable_lies: bool,
    /// How often the worker slept.
    sleeps: u64,
    /// What is said of the link; `None`: nothing.
    link_watch: Option<LinkWatch>,
}

impl<L: Link, D: Disk> Serving<L, D> {
    /// Ready to [`Serving::run`]. `epoch` is when the worker's clock read zero.
    #[must_use]
    pub fn new(
        worker: Worker<L, D>,
        signals: Signals,
        epoch: time::Instant,
        grace: Duration,
        tls: Option<tls::Loader>,
        watch: Watch,
    ) -> Self {
        Self {
            worker,
            signals,
            epoch,
            grace,
            tls,
            watch,
            deadline: None,
            empty_rounds: 0,
            writable_lies: false,
            sleeps: 0,
            link_watch: None,
        }
    }

    /// Also watches the link.
    #[must_use]
    pub fn watching(self, watch: LinkWatch) -> Self {
        Self {
            link_watch: Some(watch),
            ..self
        }
    }

    /// Says `ready` and serves until a signal ends it or something breaks; then prints the summary.
    ///
    /// # Errors
    /// What broke.
    pub fn run(mut self, urls: &str) -> Result<(), Failure> {
        announce(urls);
        notify::tell(notify::READY);
        let outcome = self.serve();
        if outcome.is_err() {
            self.reset_all();
        }
        self.watch.close();
        report::write(report::SUMMARY, self.counters());
        outcome
    }

    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            let now = self.now();
            self.handle_signals(now);
            if let Some(signal) = self.signals.wants_end_at_once() {
                let connections = self.worker.connection_count();
                return Err(Failure::Interrupted {
                    signal,
                    connections,
                });
            }
            if let Some(watch) = &mut self.link_watch {
                watch.look(now, &mut self.worker);
            }
            self.worker.set_unix_seconds(wall_clock::unix_seconds());
            self.take_certificates();
            let step = self.worker.step(now).map_err(broken)?;
            self.observe(now, step.progressed);
            if self
                .deadline
                .is_some_and(|deadline| self.is_finished(deadline, now))
            {
                self.finish();
                return Ok(());
            }
            if step.progressed {
                self.empty_rounds = 0;
                self.writable_lies = false;
                continue;
            }
            self.empty_rounds = self.empty_rounds.saturating_add(1);
            if self.empty_rounds >= EMPTY_ROUNDS {
                self.sleep(&step)?;
            }
        }
    }

    fn handle_signals(&mut self, now: Instant) {
        if self.signals.take_report() {
            self.watch.reopen();
            report::write(report::COUNTERS, self.counters());
        }
        if self.signals.take_hang_up() {
            self.reload();
            self.worker.store_mut().reopen();
        }
        match self.worker.store_mut().poll_reopened() {
            None => {}
            Some(Ok(())) => info!("SIGHUP: the served directory is opened again"),
            Some(Err(error)) => error!("SIGHUP: the old directory stays: {error}"),
        }
        if self.signals.wants_end() && self.deadline.is_none() {
            let connections = self.worker.connection_count();
            info!(
                connections,
                grace_seconds = self.grace.as_secs(),
                "finishing, then ending"
            );
            notify::tell(notify::STOPPING);
            self.deadline = Some(now + self.grace);
            self.worker.shut_down(now);
            self.watch.on_ending();
        }
    }

    /// Has the certificates read again, by another thread.
    fn reload(&self) {
        match &self.tls {
            Some(loader) => loader.request(),
            None => info!(
                "SIGHUP: no certificates to read; the configuration file is read at start only"
            ),
        }
    }

    /// Takes certificates that were read, if there are any.
    fn take_certificates(&mut self) {
        let Some(loaded) = self.tls.as_ref().and_then(tls::Loader::poll) else {
            return;
        };
        let certificates = loaded.certificates.count();
        self.worker.set_tls(&loaded);
        info!(certificates, "SIGHUP: the certificates are read again");
    }

    fn is_finished(&self, deadline: Instant, now: Instant) -> bool {
        self.worker.connection_count() == 0 || now >= deadline
    }

    /// Resets what the grace time did not suffice for.
    fn finish(&mut self) {
        let connections = self.worker.connection_count();
        if connections > 0 {
            warn!(connections, "the grace time is over: resetting them");
        }
        self.reset_all();
        info!("ended");
    }

    /// Resets every connection and lets the resets out, for [`RESET_TIME_MAX`] at most.
    fn reset_all(&mut self) {
        self.worker.abort_all();
        let give_up_at = self.now() + RESET_TIME_MAX;
        for _ in 0..RESET_ROUNDS_MAX {
            let now = self.now();
            let step = self.worker.transmit_only(now);
            if !step.blocked_on_link && !step.progressed {
                return;
            }
            if step.blocked_on_link {
                if now >= give_up_at {
                    break;
                }
                // Its writability may mean nothing. An error is one more round that finds it full.
                let _ = wait::wait(&[], Some(link::FULL_RETRY_AFTER));
            }
        }
        warn!("the link is full: some clients are not told that the server ended");
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self, step: &Step) -> Result<(), Failure> {
        let now = self.now();
        let timer = step.next_timeout.unwrap_or(Instant::FAR_FUTURE);
        let wake_at = timer.min(self.deadline.unwrap_or(Instant::FAR_FUTURE));
        let timeout = wake_at.since(now).min(IDLE_SLEEP_MAX);
        if timeout.is_zero() {
            return Ok(());
        }
        let or_writable = step.blocked_on_link && !self.writable_lies;
        let mut sources = [Source::readable(self.signals.wake_fd()); wait::SOURCES_MAX];
        let mut count = 1;
        let mut add = |source| {
            sources[count] = source;
            count += 1;
        };
        if let Some(loader) = &self.tls {
            add(Source::readable(loader.wake_fd()));
        }
        let link = self.worker.link();
        link.poll_fd().map(Source::readable).map(&mut add);
        if let (true, Some(fd)) = (or_writable, link.writable_fd()) {
            add(Source { fd, or_writable });
        }
        self.worker
            .disk()
            .poll_fd()
            .map(Source::readable)
            .map(&mut add);
        self.worker
            .store()
            .poll_fd()
            .map(Source::readable)
            .map(&mut add);
        let woken = wait::wait(&sources[..count], Some(timeout))
            .map_err(|error| Failure::Broken(format!("ppoll: {error}")))?;
        self.sleeps += 1;
        // Woken while the link is full: if the next round moves nothing either, it was woken by
        // a writability that means nothing.
        self.writable_lies = woken && or_writable;
        if woken {
            self.signals.drain();
            if let Some(loader) = &self.tls {
                loader.drain();
            }
        }
        Ok(())
    }

    /// Has those who watch see what a round came to, and tells of what hurt clients in it.
    fn observe(&mut self, now: Instant, progressed: bool) {
        let (worker, sleeps) = (&self.worker, self.sleeps);
        self.watch
            .on_round(now, progressed, || counters(worker, sleeps));
        while let Some(Warning { severity, text }) = self.worker.poll_warning(now) {
            match severity {
                Severity::Warning => warn!("{text}"),
                Severity::Info => info!("{text}"),
            }
        }
    }

    fn counters(&self) -> Vec<report::Pair> {
        self.watch.counters(counters(&self.worker, self.sleeps))
    }

    fn now(&self) -> Instant {
        now_since(self.epoch)
    }
}

/// The worker's time, whose zero is `epoch`.
pub(crate) fn now_since(epoch: time::Instant) -> Instant {
    // 584 years fit.
    Instant::from_nanos(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The one line on stdout. Whoever started us may wait for it, so it is flushed; if nobody listens
/// any more, serving goes on.
fn announce(urls: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = writeln!(stdout, "ready {urls}").and_then(|()| stdout.flush()) {
        warn!("cannot say on stdout that the server is ready: {error}");
    }
}

/// Every counter of the worker and of what drives it, in a fixed order.
pub fn counters<L: Link, D: Disk>(worker: &Worker<L, D>, sleeps: u64) -> Vec<report::Pair> {
    let mut pairs = worker.counters();
    pairs.push(("server_sleep_events", sleeps));
    pairs
}

fn broken(error: WorkerError) -> Failure {
    Failure::Broken(error.to_string())
}
