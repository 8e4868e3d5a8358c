//! The main thread while the server runs: starts the workers, and tells them what signals ask for.
//!
//! It does none of the data path's work and sleeps unless there is a signal, a certificate that was
//! read again, or a worker that ended. Nothing is half alive: when a worker ends by an error, the others
//! reset their connections and end, too.
//!
//! Bounds: after the first SIGINT or SIGTERM, replies have the grace time, and all workers go on until the
//! last has none, since one may pass on segments of another's connections; then the connections left are
//! reset. After a second one, or an error, all are reset at once. Whoever does not end within
//! [`ABORT_TIME_MAX`] of that ends with the process.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use diskmap::Disk;
use link::Link;
use tracing::{debug, error, info, warn};

use crate::failure::Failure;
use crate::observe::connections::Asker;
use crate::observe::log;
use crate::observe::metrics::Page;
use crate::observe::metrics::overview;
use crate::observe::monitoring::Monitoring;
use crate::observe::report::{self, Pair};
use crate::reload::Loader;
use crate::run::Serving;
use crate::run::mailbox::{self, Command, MailSender, Mailbox, Sleeper, Waker};
use crate::run::notify;
use crate::run::signals::Signals;
use crate::run::taking_over::TakeOver;
use crate::run::wait::{self, Source};
use crate::settings::Limits;
use crate::start::cores;
use crate::take_over::Message;

/// How long workers may take to end: as long as the last resets may take while the link is full, and reads
/// in flight then.
pub(crate) const ABORT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long workers may take to report their counters on SIGUSR1.
const REPORT_TIME_MAX: Duration = Duration::from_secs(1);

/// How a worker ended: why, and its last counters.
type End = (Result<(), Failure>, Vec<Pair>);

/// What a worker's thread tells the main thread.
#[derive(Debug)]
enum Event {
    Started(usize, Arc<Page>),
    Ended(usize, End),
}

/// The main thread's view of one worker.
#[derive(Debug)]
struct WorkerThread {
    mail: MailSender,
    thread: JoinHandle<()>,
    /// `None`: it has not started yet.
    page: Option<Arc<Page>>,
    /// `None`: it runs.
    end: Option<End>,
}

/// What a worker has to do with others.
#[derive(Debug)]
pub(crate) struct WorkerChannels {
    /// Its number, from 0.
    pub number: usize,
    /// What others send to it.
    pub mailbox: Mailbox,
    /// Of the next worker in the ring; `None`: there is no other.
    pub next_worker: Option<MailSender>,
    /// Ends the main thread's sleep.
    pub supervisor: Waker,
}

impl WorkerThread {
    /// Whether it has finished all replies after [`Command::ShutDown`].
    fn is_finished(&self) -> bool {
        self.page.as_ref().is_some_and(|page| page.is_finished())
    }
}

/// The threads of all workers.
#[derive(Debug)]
pub(crate) struct Workers {
    /// Mailboxes of those to be started.
    waiting: VecDeque<(MailSender, WorkerChannels)>,
    threads: Vec<WorkerThread>,
    events: Receiver<Event>,
    sleeper: Sleeper,
    event_sender: Sender<Event>,
    waker: Waker,
}

/// Tells the main thread how a worker ended, also when it panicked.
struct EndNotice {
    number: usize,
    end: Option<End>,
    events: Sender<Event>,
    waker: Waker,
}

impl EndNotice {
    fn set(&mut self, end: End) {
        self.end = Some(end);
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        let number = self.number;
        let panicked = || {
            let text = format!("worker {number} ended by a fault of the server");
            (Err(Failure::Broken(text)), Vec::new())
        };
        let end = self.end.take().unwrap_or_else(panicked);
        // Without a main thread nobody needs to know.
        let _ = self.events.send(Event::Ended(number, end));
        self.waker.wake();
    }
}

impl Workers {
    /// So many, to be started one by one.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let (waker, sleeper) = mailbox::wake_up()?;
        let (event_sender, events) = channel();
        let mailboxes = (0..count).map(|_| mailbox::mailbox());
        let (senders, mailboxes): (Vec<_>, Vec<_>) = mailboxes
            .collect::<io::Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let next = senders.iter().cycle().skip(1);
        let each = senders.iter().zip(next).zip(mailboxes).enumerate();
        let waiting = each.map(|(number, ((sender, next), mailbox))| {
            let channels = WorkerChannels {
                number,
                mailbox,
                next_worker: (count > 1).then(|| next.clone()),
                supervisor: waker.clone(),
            };
            (sender.clone(), channels)
        });
        Ok(Self {
            waiting: waiting.collect(),
            threads: Vec::new(),
            events,
            sleeper,
            event_sender,
            waker,
        })
    }

    /// Starts the next worker, on this processor if one is named. `make` puts it together, in its
    /// thread.
    ///
    /// # Errors
    /// The kernel's: no thread.
    ///
    /// # Panics
    /// If all were started.
    pub(crate) fn start<L: Link, D: Disk>(
        &mut self,
        processor: Option<usize>,
        make: impl FnOnce(WorkerChannels) -> Result<Serving<L, D>, Failure> + Send + 'static,
    ) -> io::Result<()> {
        let next = self.waiting.pop_front();
        let (mail, channels) = next.expect("all workers were started");
        let number = channels.number;
        let (events, waker) = (self.event_sender.clone(), self.waker.clone());
        let mut notice = EndNotice {
            number,
            end: None,
            events: events.clone(),
            waker: waker.clone(),
        };
        let body = move || {
            if let Some(processor) = processor
                && let Err(error) = cores::bind_thread(processor)
            {
                warn!("worker {number} is not bound to processor {processor}: {error}");
            }
            notice.set(match make(channels) {
                Ok(serving) => {
                    let _ = events.send(Event::Started(number, Arc::clone(serving.page())));
                    waker.wake();
                    serving.run()
                }
                Err(failure) => (Err(failure), Vec::new()),
            });
        };
        let thread = thread::Builder::new()
            .name(format!("atlas-worker-{number}"))
            .spawn(body)?;
        self.threads.push(WorkerThread {
            mail,
            thread,
            page: None,
            end: None,
        });
        Ok(())
    }

    pub(super) fn command(&self, mut make: impl FnMut() -> Command) {
        for worker in &self.threads {
            worker.mail.command(make());
        }
    }

    /// None of them is to get new clients.
    fn leave(&self) {
        let pages = self.threads.iter().filter_map(|it| it.page.as_ref());
        pages.for_each(|page| page.leave());
    }

    fn take_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            let (Event::Started(number, _) | Event::Ended(number, _)) = &event;
            let worker = self.threads.get_mut(*number);
            let worker = worker.expect("invariant: only started workers send");
            match event {
                Event::Started(_, page) => worker.page = Some(page),
                Event::Ended(_, end) => worker.end = Some(end),
            }
        }
    }

    fn is_each(&self, test: impl Fn(&WorkerThread) -> bool) -> bool {
        self.threads.iter().all(test)
    }

    /// The error that a worker ended by, if one did.
    fn failure(&self) -> Option<Failure> {
        let ends = self.threads.iter().filter_map(|worker| worker.end.as_ref());
        ends.filter_map(|(outcome, _)| outcome.clone().err()).next()
    }

    pub(super) fn connections(&self) -> usize {
        let pages = self.threads.iter().filter_map(|it| it.page.as_ref());
        pages.map(|page| page.connections()).sum()
    }

    /// The counters of all, added up: as they are, or as they were at the end.
    fn counters(&self) -> Vec<Pair> {
        let deadline = Instant::now() + REPORT_TIME_MAX;
        let ask = |worker: &WorkerThread| {
            let (reply, answer) = sync_channel(1);
            worker.mail.command(Command::Report(reply));
            answer
        };
        let answers: Vec<_> = self.threads.iter().map(ask).collect();
        let each = self.threads.iter().zip(answers).enumerate();
        overview::sum(each.filter_map(|(number, (worker, answer))| {
            if let Some((_, counters)) = &worker.end
                && !counters.is_empty()
            {
                return Some(counters.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).ok().or_else(|| {
                warn!("worker {number} does not report: its counters are older");
                Some(worker.page.as_ref()?.pairs().collect())
            })
        }))
    }

    /// Waits for the threads that have ended.
    fn join(self) {
        for worker in self.threads {
            if worker.end.is_some() {
                // A panic was told of as the worker's end.
                let _ = worker.thread.join();
            }
        }
    }
}

/// The main thread of a running server.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(super) workers: Workers,
    signals: Signals,
    /// From the signal until new connections are refused.
    delay: Duration,
    pub(super) grace: Duration,
    /// For replies to finish after another process has taken over.
    pub(super) take_over_time: Duration,
    /// Reads the operator's files again after SIGHUP.
    pub(super) loader: Loader,
    pub(super) monitoring: Monitoring,
    pub(super) take_over: TakeOver,
    /// When new connections are refused; `None` before the first SIGINT or SIGTERM.
    pub(super) leaves_at: Option<Instant>,
    /// When the grace time ends; `None` before new connections are refused.
    deadline: Option<Instant>,
    /// When all were told to reset their connections.
    pub(super) aborted_at: Option<Instant>,
}

impl Supervisor {
    /// Ready to [`Supervisor::run`].
    #[must_use]
    pub(crate) fn new(
        workers: Workers,
        signals: Signals,
        limits: &Limits,
        loader: Loader,
        monitoring: Monitoring,
        take_over: TakeOver,
    ) -> Self {
        Self {
            workers,
            signals,
            delay: limits.shutdown_delay,
            grace: limits.shutdown_grace,
            take_over_time: limits.take_over_deadline,
            loader,
            monitoring,
            take_over,
            leaves_at: None,
            deadline: None,
            aborted_at: None,
        }
    }

    /// Waits until all workers have started, prints `ready` and supervises until a signal or an error
    /// ends them; then prints the summary.
    ///
    /// # Errors
    /// The error that ended it.
    pub(crate) fn run(mut self, urls: &str, start_unix_seconds: u64) -> Result<(), Failure> {
        let is_first = self.take_over.predecessor.is_none();
        let mut outcome = self.wait_for_start(start_unix_seconds);
        outcome = outcome.and_then(|()| self.switch());
        if outcome.is_ok() {
            // First: whoever hears that it is ready may ask for a reload.
            self.take_over.listen();
            announce(urls);
            // For a successor, its predecessor tells that it is the main process.
            if is_first {
                notify::tell(notify::READY);
            }
        } else {
            self.abort();
        }
        let ended = self.supervise();
        outcome = outcome.and(ended);
        if outcome.is_ok() {
            info!("ended");
        }
        self.monitoring.close();
        report::write(report::SUMMARY, self.counters());
        self.workers.join();
        outcome
    }

    fn wait_for_start(&mut self, start_unix_seconds: u64) -> Result<(), Failure> {
        while !self.workers.is_each(|worker| worker.page.is_some()) {
            if let Some(failure) = self.workers.failure() {
                return Err(failure);
            }
            self.wait(None)?;
        }
        let threads = &self.workers.threads;
        let pages = threads.iter().filter_map(|it| it.page.clone()).collect();
        let asker = Asker::new(threads.iter().map(|it| it.mail.clone()).collect());
        self.monitoring.listen(pages, &asker, start_unix_seconds)
    }

    /// Until all workers have ended, or will not.
    fn supervise(&mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        loop {
            self.workers.take_events();
            if outcome.is_ok() {
                outcome = self.workers.failure().map_or(Ok(()), Err);
            }
            if self.workers.is_each(|worker| worker.end.is_some()) {
                return outcome;
            }
            let now = Instant::now();
            self.handle_signals(now);
            self.look_at_processes(now);
            self.shut_down_in_time(now);
            if outcome.is_ok()
                && let Some(signal) = self.signals.immediate_termination()
            {
                let connections = self.workers.connections();
                self.take_over.tell_predecessor(&Message::End(0));
                outcome = Err(Failure::Interrupted {
                    signal,
                    connections,
                });
            }
            if let Some(deadline) = self.deadline
                && self.aborted_at.is_none()
            {
                let connections = self.workers.connections();
                let is_alone = self.take_over.predecessor.is_none();
                if is_alone && self.workers.is_each(WorkerThread::is_finished) {
                    self.abort();
                } else if now >= deadline {
                    warn!(connections, "the grace time is over: resetting them");
                    self.abort();
                }
            }
            if outcome.is_err() {
                self.abort();
            }
            self.take_loaded(now);
            let until = match self.aborted_at {
                Some(aborted_at) => Some(aborted_at + ABORT_TIME_MAX),
                None => self.deadline.or(self.leaves_at),
            };
            let until = until.into_iter().chain(self.take_over.wake_at(now)).min();
            let left = until.map(|until| until.saturating_duration_since(now));
            if self.aborted_at.is_some() && left.is_some_and(|left| left.is_zero()) {
                error!(
                    "a worker has not ended after {} s, because a disk does not answer or by a fault: \
                     it ends with the process",
                    ABORT_TIME_MAX.as_secs()
                );
                return outcome;
            }
            self.wait(left)?;
        }
    }

    fn handle_signals(&mut self, now: Instant) {
        if self.signals.take_sigusr1() {
            self.monitoring.reopen();
            self.take_over.tell_predecessor(&Message::Reopen);
            report::write(report::COUNTERS, self.counters());
        }
        if self.signals.take_sighup() {
            self.reload(now, None, false);
        }
        if self.signals.termination_requested() && self.leaves_at.is_none() {
            self.leaves_at = Some(now + self.delay);
            if !self.take_over.is_done() {
                notify::tell(notify::STOPPING);
            }
            self.cancel_take_over(now);
            self.workers.leave();
            if !self.delay.is_zero() {
                info!(
                    "not ready any more: serving on for {} s",
                    self.delay.as_secs()
                );
            }
        }
    }

    /// Has the workers refuse new connections, once the time for it has come.
    fn shut_down_in_time(&mut self, now: Instant) {
        let is_due = self.leaves_at.is_some_and(|leaves_at| leaves_at <= now);
        if !is_due || self.deadline.is_some() {
            return;
        }
        let connections = self.workers.connections();
        info!(
            connections,
            grace_seconds = self.grace.as_secs(),
            "finishing, then ending"
        );
        self.deadline = Some(now + self.grace);
        let grace = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        self.take_over.tell_predecessor(&Message::End(grace));
        self.workers.command(|| Command::ShutDown);
    }

    /// Has the workers use what the loader thread has read.
    fn take_loaded(&mut self, now: Instant) {
        let loaded = match self.loader.poll() {
            None => return,
            Some(Ok(loaded)) => loaded,
            Some(Err(reasons)) => {
                self.take_over.tell_askers(Err(&reasons));
                return;
            }
        };
        if !loaded.waiting.is_empty() && self.take_over.succession.is_ok() {
            info!(
                "other values of {} need another process",
                loaded.waiting.join(", ")
            );
            self.begin_take_over(now);
            return;
        }
        if let Some(tls) = &loaded.tls {
            self.workers.command(|| Command::SetTls(tls.clone()));
        }
        let sites = &loaded.sites;
        self.workers
            .command(|| Command::SetSites(Arc::clone(sites)));
        log::set_level(loaded.log);
        self.monitoring.set_configuration(loaded.configuration);
        debug!("SIGHUP: the log is at {}", loaded.log);
        let certificates = loaded.tls.map_or(0, |tls| tls.certificates.count());
        let sites = loaded.site_count;
        info!(sites, certificates, "SIGHUP: the files are read again");
        match (&loaded.waiting[..], &self.take_over.succession) {
            ([_, ..], Err(why)) => {
                let waiting = loaded.waiting.join(", ");
                let text = format!("new values of these wait for a restart: {waiting} ({why})");
                warn!("SIGHUP: {text}");
                let text = format!("{text}; the others are in force");
                self.take_over.tell_askers(Err(&text));
            }
            _ => self.take_over.tell_askers(Ok("the files are read again")),
        }
    }

    /// Has all workers reset their connections and end.
    pub(super) fn abort(&mut self) {
        if self.aborted_at.is_none() {
            self.aborted_at = Some(Instant::now());
            self.workers.command(|| Command::Abort);
        }
    }

    fn counters(&self) -> Vec<Pair> {
        self.monitoring.outputs().with_own(self.workers.counters())
    }

    /// Sleeps until something comes, or for `timeout`.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Failure> {
        let own = [
            self.signals.wake_fd(),
            self.workers.sleeper.fd(),
            self.loader.wake_fd(),
        ];
        let sources = own.into_iter().chain(self.take_over.sources());
        let sources: Vec<_> = sources.map(Source::readable).collect();
        wait::wait(&sources, timeout)
            .map_err(|error| Failure::Broken(format!("ppoll: {error}")))?;
        self.signals.drain();
        self.workers.sleeper.drain();
        self.loader.drain();
        self.workers.take_events();
        Ok(())
    }
}

/// Prints the `ready` line on stdout. It is flushed, because a parent process may wait for it; if
/// stdout is closed, serving goes on.
fn announce(urls: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "ready {urls}").and_then(|()| stdout.flush()) {
        warn!("cannot say on stdout that the server is ready: {error}");
    }
}
