//! The event loop around the worker: clock, signals and sleep.
//!
//! One thread. It refuses to spin: after a round without progress it sleeps until a descriptor is
//! ready or a timer is due, [`IDLE_SLEEP_MAX`] at most. Shutdown is bounded, too: after SIGINT or
//! SIGTERM, replies have the grace time; then the connections left are reset. After a second signal
//! or an error, all connections are reset at once, because a client without a RST waits for minutes.

use std::io::Write as _;
use std::time;

use clock::{Duration, Instant};
use diskmap::Disk;
use link::Link;
use tracing::{error, info, warn};

use crate::coalescing::{Coalescing, Sleep};
use crate::connections::Questions;
use crate::failure::Failure;
use crate::link_watch::LinkWatch;
use crate::metrics::listener;
use crate::monitoring::Monitoring;
use crate::notify;
use crate::report;
use crate::signals::Signals;
use crate::tls;
use crate::wait::{self, EMPTY_ROUNDS, Source};
use crate::wall_clock;
use crate::warnings::{Severity, Warning};
use crate::worker::{Step, Worker, WorkerError};

/// Longest sleep. The removal of an interface wakes no poll, so an idle server asks once a second,
/// which does not show in its processor time.
pub const IDLE_SLEEP_MAX: Duration = Duration::from_secs(1);

/// Most rounds that send the last resets: enough for every possible connection, at
/// [`crate::worker::TRANSMIT_FRAMES_MAX`] a round.
const RESET_ROUNDS_MAX: u32 = 16_384;

/// How long the last resets may take while the link is full.
const RESET_TIME_MAX: Duration = Duration::from_secs(1);

/// How often the worker slept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sleeps {
    /// Until a descriptor was ready or a timer due.
    pub waits: u64,
    /// For a set time ([`Coalescing`]).
    pub pauses: u64,
}

/// A worker being driven in real time.
#[derive(Debug)]
pub struct Serving<L: Link, D: Disk> {
    worker: Worker<L, D>,
    signals: Signals,
    /// The real clock's reading at [`Instant::ZERO`].
    epoch: time::Instant,
    grace: Duration,
    /// Loads the certificates again after SIGHUP.
    tls: Option<tls::Loader>,
    monitoring: Monitoring,
    /// When the grace time ends; `None` before the first SIGINT or SIGTERM.
    deadline: Option<Instant>,
    /// Rounds without progress since the last one with.
    empty_rounds: u32,
    /// The link was full, `POLLOUT` was reported, and it was full again: `POLLOUT` means nothing on
    /// this link (see [`link::FULL_RETRY_AFTER`]), so the server waits by time only.
    pollout_unreliable: bool,
    coalescing: Coalescing,
    sleeps: Sleeps,
    /// Logs changes of the link; `None`: not logged.
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
        monitoring: Monitoring,
    ) -> Self {
        Self {
            worker,
            signals,
            epoch,
            grace,
            tls,
            monitoring,
            deadline: None,
            empty_rounds: 0,
            pollout_unreliable: false,
            coalescing: Coalescing::new(Duration::ZERO),
            sleeps: Sleeps::default(),
            link_watch: None,
        }
    }

    /// Also logs changes of the link.
    #[must_use]
    pub fn with_link_watch(self, watch: LinkWatch) -> Self {
        Self {
            link_watch: Some(watch),
            ..self
        }
    }

    /// Also pauses for `pause` while wake-ups come faster than that.
    #[must_use]
    pub fn with_coalescing(self, pause: Duration) -> Self {
        Self {
            coalescing: Coalescing::new(pause),
            ..self
        }
    }

    /// Prints `ready` and serves until a signal or an error ends it; then prints the summary.
    ///
    /// # Errors
    /// The error that ended it.
    pub fn run(mut self, urls: &str) -> Result<(), Failure> {
        announce(urls);
        notify::tell(notify::READY);
        let outcome = self.serve();
        if outcome.is_err() {
            self.reset_all();
        }
        self.monitoring.close();
        report::write(report::SUMMARY, self.counters());
        outcome
    }

    fn serve(&mut self) -> Result<(), Failure> {
        if let Err(error) = wait::end_sleeps_on_time() {
            warn!("sleeps may end 50 us late: {error}");
        }
        loop {
            let now = self.now();
            self.handle_signals(now);
            if let Some(signal) = self.signals.immediate_termination() {
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
            self.answer_questions(now);
            if self
                .deadline
                .is_some_and(|deadline| self.is_finished(deadline, now))
            {
                self.finish();
                return Ok(());
            }
            if step.progressed {
                self.empty_rounds = 0;
                self.coalescing.on_progress();
                self.pollout_unreliable = false;
                continue;
            }
            self.empty_rounds = self.empty_rounds.saturating_add(1);
            if self.empty_rounds >= EMPTY_ROUNDS {
                self.sleep(&step)?;
            }
        }
    }

    fn handle_signals(&mut self, now: Instant) {
        if self.signals.take_sigusr1() {
            self.monitoring.reopen();
            report::write(report::COUNTERS, self.counters());
        }
        if self.signals.take_sighup() {
            self.reload();
            self.worker.store_mut().reopen();
        }
        match self.worker.store_mut().poll_reopened() {
            None => {}
            Some(Ok(())) => info!("SIGHUP: the served directory is opened again"),
            Some(Err(error)) => error!("SIGHUP: the old directory stays: {error}"),
        }
        if self.signals.termination_requested() && self.deadline.is_none() {
            let connections = self.worker.connection_count();
            info!(
                connections,
                grace_seconds = self.grace.as_secs(),
                "finishing, then ending"
            );
            notify::tell(notify::STOPPING);
            self.deadline = Some(now + self.grace);
            self.worker.shut_down(now);
            self.monitoring.on_ending();
        }
    }

    /// Has the loader thread read the certificates again.
    fn reload(&self) {
        match &self.tls {
            Some(loader) => loader.request(),
            None => info!(
                "SIGHUP: no certificates to read; the configuration file is read at start only"
            ),
        }
    }

    /// Applies certificates that the loader thread has read.
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

    /// Resets the connections that are left after the grace time.
    fn finish(&mut self) {
        let connections = self.worker.connection_count();
        if connections > 0 {
            warn!(connections, "the grace time is over: resetting them");
        }
        self.reset_all();
        info!("ended");
    }

    /// Resets every connection and sends the resets, for [`RESET_TIME_MAX`] at most.
    fn reset_all(&mut self) {
        self.worker.abort_all();
        let deadline = self.now() + RESET_TIME_MAX;
        for _ in 0..RESET_ROUNDS_MAX {
            let now = self.now();
            let step = self.worker.transmit_only(now);
            if !step.blocked_on_link && !step.progressed {
                return;
            }
            if step.blocked_on_link {
                if now >= deadline {
                    break;
                }
                // By time only: `POLLOUT` may be unreliable. An error of `wait` costs one round.
                let _ = wait::wait(&[], Some(link::FULL_RETRY_AFTER));
            }
        }
        warn!("the link is full: some connections end without a RST");
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
        if let Sleep::Pause(pause) = self.coalescing.sleep(timeout) {
            wait::pause(pause);
            self.sleeps.pauses += 1;
            return Ok(());
        }
        let or_writable = step.blocked_on_link && !self.pollout_unreliable;
        let mut sources = [Source::readable(self.signals.wake_fd()); wait::SOURCES_MAX];
        let mut count = 1;
        let mut add = |source| {
            sources[count] = source;
            count += 1;
        };
        if let Some(loader) = &self.tls {
            add(Source::readable(loader.wake_fd()));
        }
        if let Some(questions) = self.monitoring.questions() {
            add(Source::readable(questions.wake_fd()));
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
        self.sleeps.waits += 1;
        self.coalescing.on_waited(self.now().since(now));
        // If the next round makes no progress either, `POLLOUT` was reported for a full link.
        self.pollout_unreliable = woken && or_writable;
        if woken {
            self.worker.disk_mut().clear_wake();
            self.signals.drain();
            if let Some(loader) = &self.tls {
                loader.drain();
            }
            if let Some(questions) = self.monitoring.questions() {
                questions.drain();
            }
        }
        Ok(())
    }

    /// Publishes the counters after a round, and logs its warnings.
    fn observe(&mut self, now: Instant, progressed: bool) {
        let (worker, sleeps) = (&self.worker, self.sleeps);
        self.monitoring
            .on_round(now, progressed, || counters(worker, sleeps));
        while let Some(Warning { severity, text }) = self.worker.poll_warning(now) {
            match severity {
                Severity::Warning => warn!("{text}"),
                Severity::Info => info!("{text}"),
            }
        }
    }

    /// Lists a page of connections for each thread that asks for one.
    fn answer_questions(&self, now: Instant) {
        let questions = self.monitoring.questions();
        for _ in 0..listener::THREADS {
            let Some(question) = questions.and_then(Questions::poll) else {
                return;
            };
            let page = self.worker.list_connections(now, &question);
            question.answer(page);
        }
    }

    fn counters(&self) -> Vec<report::Pair> {
        self.monitoring
            .counters(counters(&self.worker, self.sleeps))
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

/// Prints the `ready` line on stdout. It is flushed, because a parent process may wait for it; if
/// stdout is closed, serving goes on.
fn announce(urls: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = writeln!(stdout, "ready {urls}").and_then(|()| stdout.flush()) {
        warn!("cannot say on stdout that the server is ready: {error}");
    }
}

/// Every counter of the worker and of what drives it, in a fixed order.
pub fn counters<L: Link, D: Disk>(worker: &Worker<L, D>, sleeps: Sleeps) -> Vec<report::Pair> {
    let mut pairs = worker.counters();
    pairs.push(("server_sleep_events", sleeps.waits));
    pairs.push(("server_pause_events", sleeps.pauses));
    pairs
}

fn broken(error: WorkerError) -> Failure {
    Failure::Broken(error.to_string())
}
