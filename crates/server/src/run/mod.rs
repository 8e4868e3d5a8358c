//! The event loop of one worker: its clock, its mailbox and its sleep.
//!
//! One thread, which shares nothing with those of other workers. It refuses to spin unless the operator
//! chose to ([`BusyPoll`]), and then for a bounded time: after a round without progress it sleeps until a
//! descriptor is ready or a timer is due, [`IDLE_SLEEP_MAX`] at most.
//! What it does besides serving is what [`crate::run::supervisor`] tells it to. Its end is bounded, too: the
//! connections that are left are reset, because a client without a RST waits for minutes.

pub(crate) mod address_watch;
pub(crate) mod busy_poll;
pub(crate) mod coalescing;
pub(crate) mod link_watch;
pub(crate) mod mailbox;
pub(crate) mod notify;
pub(crate) mod signals;
pub(crate) mod supervisor;
pub(crate) mod taking_over;
pub(crate) mod wait;
pub(crate) mod wall_clock;
use std::sync::mpsc::TrySendError;
use std::time;

use clock::{Duration, Instant};
use counters::{CounterSet as _, counters};
use diskmap::Disk;
use link::Link;
use session::ConnectionTrace;
use store::Notice;
use store::StoreError;
use tracing::{error, info, warn};

use worker::warnings::{Severity, Warning};
use worker::{Step, Worker, WorkerError};

use self::busy_poll::BusyPoll;
use self::coalescing::{Coalescing, Pauses, Sleep};
use self::link_watch::LinkWatch;
use self::mailbox::{Command, MailSender, Mailbox, QUESTIONS_MAX, Question, STRAYS_MAX, Waker};
use self::wait::{EMPTY_ROUNDS, Source};
use crate::failure::Failure;
use crate::observe::metrics::Page;
use crate::observe::monitoring::{Publisher, Told};
use crate::observe::report::Pair;
use crate::take_over::packets::{Packets, Passed};

/// Longest sleep. The removal of an interface wakes no poll, so an idle server asks once a second,
/// which does not show in its processor time.
pub(crate) const IDLE_SLEEP_MAX: Duration = Duration::from_secs(1);

/// Most objects whose counts a worker tells at once: some microseconds.
const COUNTED_PAGE_MAX: usize = 512;

/// Most rounds that send the last resets: enough for every possible connection, at
/// [`worker::TRANSMIT_FRAMES_MAX`] a round.
const RESET_ROUNDS_MAX: u32 = 16_384;

/// How long the last resets may take while the link is full.
const RESET_TIME_MAX: Duration = Duration::from_secs(1);

counters! {
    /// What drives a worker did, since start.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Counters {
        /// Times the worker slept until there was something to do.
        server_sleep_events: u64,
        /// Times the worker slept without being woken by acknowledgments, to handle them together (`coalesce_us`).
        server_pause_events: u64,
        /// Rounds without progress after which the worker polled the network device again instead
        /// of sleeping (`busy_poll_us`).
        server_busy_poll_rounds: u64,
        /// Segments for another worker that were lost because too many waited for it.
        server_lost_strays: u64,
        /// Packets for the other process of a take-over that were lost because too many waited for it, or it
        /// has ended.
        server_lost_crossing_packets: u64,
        /// Messages of the other process of a take-over that meant nothing here.
        server_refused_crossing_packets: u64,
    }
}

/// What a worker is driven by, beside its own parts.
#[derive(Debug)]
pub(crate) struct Drive {
    /// Its number, from 0.
    pub number: usize,
    /// The real clock's reading at [`Instant::ZERO`].
    pub epoch: time::Instant,
    /// Where it is told what to do.
    pub mailbox: Mailbox,
    /// The next worker, which gets the segments that are not for this one; `None`: there is no other.
    pub next_worker: Option<MailSender>,
    /// Woken when no connection is left at the end; `None`: nobody waits for that.
    pub supervisor: Option<Waker>,
    /// For how long acknowledgments don't wake it while wake-ups come faster than that.
    pub coalesce: Pauses,
    /// For how long it polls the link without work before it sleeps; zero: not at all.
    pub busy_poll: Duration,
    /// Whether its counters are asked for while it runs.
    pub has_readers: bool,
    /// Logs changes of the link; `None`: not logged.
    pub link_watch: Option<LinkWatch>,
}

/// A worker being driven in real time.
#[derive(Debug)]
pub(crate) struct Serving<L: Link, D: Disk> {
    worker: Worker<L, D>,
    number: usize,
    epoch: time::Instant,
    mailbox: Mailbox,
    next_worker: Option<MailSender>,
    publisher: Publisher,
    supervisor: Option<Waker>,
    ending: Ending,
    /// Rounds without progress since the last one with.
    empty_rounds: u32,
    /// The link was full, `POLLOUT` was reported, and it was full again: `POLLOUT` means nothing on
    /// this link (see [`link::FULL_RETRY_AFTER`]), so the server waits by time only.
    pollout_unreliable: bool,
    coalescing: Coalescing,
    busy_poll: BusyPoll,
    counters: Counters,
    link_watch: Option<LinkWatch>,
    /// To and from other processes of a take-over.
    packets: Packets,
}

/// How far a worker is with its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// It was not told to end.
    No,
    /// It takes no new connections.
    Finishing,
    /// It has no connections any more, and has told so. It goes on, because segments of other workers'
    /// connections may reach it.
    Finished,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Continue,
    End,
}

impl<L: Link, D: Disk> Serving<L, D> {
    /// Ready to [`Serving::run`].
    #[must_use]
    pub(crate) fn new(mut worker: Worker<L, D>, drive: Drive) -> Self {
        let counters = Counters::default();
        worker.keep_names(drive.has_readers);
        let pairs = all_counters(&worker, &counters);
        let sites = worker.site_counters().len();
        Self {
            worker,
            number: drive.number,
            epoch: drive.epoch,
            mailbox: drive.mailbox,
            next_worker: drive.next_worker,
            publisher: Publisher::new(&pairs, sites, drive.epoch, drive.has_readers),
            supervisor: drive.supervisor,
            ending: Ending::No,
            empty_rounds: 0,
            pollout_unreliable: false,
            coalescing: Coalescing::new(drive.coalesce),
            busy_poll: BusyPoll::new(drive.busy_poll, now_since(drive.epoch)),
            counters,
            link_watch: drive.link_watch,
            packets: Packets::default(),
        }
    }

    /// Where it says how it is.
    #[must_use]
    pub(crate) const fn page(&self) -> &std::sync::Arc<Page> {
        self.publisher.page()
    }

    /// Serves until [`Command::Abort`], or an error ends it. Returns that, and its last counters.
    pub(crate) fn run(mut self) -> (Result<(), Failure>, Vec<Pair>) {
        let outcome = self.serve();
        self.reset_all();
        (outcome, self.counters())
    }

    fn serve(&mut self) -> Result<(), Failure> {
        if let Err(error) = wait::end_sleeps_on_time() {
            warn!("sleeps may end 50 us late: {error}");
        }
        loop {
            let now = self.now();
            if self.read_mail(now) == Flow::End {
                return Ok(());
            }
            let passed = self.packets.read(now, &mut self.worker);
            self.count_passed(passed);
            self.log_reopened();
            self.log_notice();
            if let Some(watch) = &mut self.link_watch {
                watch.look(now, &mut self.worker);
            }
            self.worker.set_unix_time(wall_clock::now());
            let step = self.worker.step(now).map_err(broken)?;
            self.pass_strays_on();
            let passed = self.packets.write(&mut self.worker);
            self.count_passed(passed);
            self.observe(now, step.progressed);
            if self.ending == Ending::Finishing && self.worker.is_finished() {
                self.ending = Ending::Finished;
                self.publisher.page().finish();
                self.supervisor.iter().for_each(Waker::wake);
            }
            if step.progressed {
                self.empty_rounds = 0;
                self.coalescing.on_progress();
                self.busy_poll.on_progress(now);
                self.look_at_polling();
                self.pollout_unreliable = false;
                continue;
            }
            // A frame that the link has refused is not to be offered again at once.
            if self.busy_poll.goes_on(now) && !step.blocked_on_link {
                self.counters.server_busy_poll_rounds += 1;
                continue;
            }
            self.empty_rounds = self.empty_rounds.saturating_add(1);
            if self.empty_rounds >= EMPTY_ROUNDS {
                self.sleep(&step)?;
            }
        }
    }

    /// Does what the mail says.
    fn read_mail(&mut self, now: Instant) -> Flow {
        if !self.mailbox.take_has_mail() {
            return Flow::Continue;
        }
        while let Some(command) = self.mailbox.poll_command() {
            match command {
                Command::SetTls(loaded) => self.worker.set_tls(&loaded),
                Command::SetSites(sites) => self.worker.set_sites(sites),
                Command::ReopenDirectory => self.worker.store_mut().reopen(),
                Command::ShutDown => {
                    self.ending = Ending::Finishing;
                    self.publisher.page().end();
                    self.worker.shut_down(now);
                }
                Command::Abort => return Flow::End,
                Command::WatchFrames(watch) => self.worker.watch_frames(watch),
                Command::Trace(trace) => {
                    let trace = trace.map(|trace| trace as Box<dyn ConnectionTrace>);
                    self.worker.trace_from_now(now, trace);
                }
                // Whoever asked may have given up.
                Command::Report(reply) => {
                    drop(reply.try_send(self.counters()));
                }
                Command::SetSuccessor(ends, reply) => {
                    self.worker.set_successor(ends.is_some());
                    self.packets.set_successor(ends);
                    drop(reply.try_send(Ok(())));
                }
                Command::SetPredecessor(to, from) => {
                    self.worker.set_predecessor(true);
                    self.packets.set_predecessor(to, from);
                }
                Command::ForgetPredecessor => {
                    self.worker.set_predecessor(false);
                    self.packets.forget_predecessor();
                }
                Command::SetReceiving(is_receiving, reply) => {
                    drop(reply.try_send(self.worker.set_receiving(is_receiving)));
                }
            }
        }
        // The round that follows goes on with them. More than wait now would be for the next one.
        for _ in 0..STRAYS_MAX {
            let Some(stray) = self.mailbox.poll_stray() else {
                break;
            };
            self.worker.handle_stray(now, stray);
        }
        for _ in 0..QUESTIONS_MAX {
            let Some(question) = self.mailbox.poll_question() else {
                break;
            };
            // Whoever asked may be gone.
            match question {
                Question::Connections(question) => {
                    let page = question.page_of(&self.worker, now);
                    question.answer(page);
                }
                Question::Missed(reply) => {
                    let unsent = reply.try_send(self.worker.take_missed());
                    if let Err(TrySendError::Disconnected(names) | TrySendError::Full(names)) =
                        unsent
                    {
                        self.worker.put_back_missed(names);
                    }
                }
                Question::Counted(from, reply) => {
                    let page = self.worker.counted(from, COUNTED_PAGE_MAX);
                    drop(reply.try_send(page));
                }
            }
        }
        Flow::Continue
    }

    /// Gives the next worker the segments that are not for this one.
    fn pass_strays_on(&mut self) {
        let Some(next_worker) = &self.next_worker else {
            return;
        };
        let mut is_any = false;
        while let Some(stray) = self.worker.poll_stray() {
            is_any = true;
            self.counters.server_lost_strays += u64::from(!next_worker.pass(stray));
        }
        if is_any {
            next_worker.announce();
        }
    }

    const fn count_passed(&mut self, passed: Passed) {
        self.counters.server_lost_crossing_packets += passed.lost;
        self.counters.server_refused_crossing_packets += passed.refused;
    }

    /// What happened to what is served. Of a raw store, the worker that hears of it first says so; each
    /// worker looks for the served directory by itself.
    fn log_notice(&mut self) {
        match self.worker.store_mut().poll_notice() {
            None => {}
            Some(Notice::Catalogue { sequence, objects }) => {
                info!(objects, "catalogue {sequence} of the raw store is served");
            }
            Some(Notice::Damaged(error)) => error!(
                "the newest catalogue of the raw store is damaged, so the one before is served: {error}"
            ),
            Some(Notice::Failed(error)) => {
                error!("no new catalogue can be read, so the last is served on: {error}");
            }
            Some(Notice::Switched(path)) => info!(
                worker = self.number,
                "{} leads to another directory, which is served from now on",
                path.display()
            ),
            Some(Notice::NotFollowed(error)) => error!(
                worker = self.number,
                "another directory is to be served, and the old one stays: {error}"
            ),
        }
    }

    /// What came of [`Command::ReopenDirectory`]. All workers open the same one: the first says so.
    fn log_reopened(&mut self) {
        match self.worker.store_mut().poll_reopened() {
            Some(Ok(())) if self.number == 0 => {
                info!("SIGHUP: PATH is opened again");
            }
            None | Some(Ok(())) => {}
            Some(Err(error @ StoreError::Volume(_))) if self.number == 0 => {
                error!("SIGHUP: {error}")
            }
            Some(Err(StoreError::Volume(_))) => {}
            Some(Err(error)) => error!("SIGHUP: the old directory stays: {error}"),
        }
    }

    /// Resets every connection that is not finished and sends the resets, for [`RESET_TIME_MAX`] at most.
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

    /// Does not go on polling a device that the kernel does not poll for us.
    fn look_at_polling(&mut self) {
        if self.busy_poll.is_on() && self.worker.link().is_polling_in_vain() {
            self.busy_poll.stop();
            warn!(
                worker = self.number,
                "busy polling does nothing here: the kernel does not know what to poll, as the driver has \
                 not told it (netif_queue_set_napi), or copies the frames (Linux 6.13 to 6.15); leave \
                 --busy-poll out, or use another kernel"
            );
        }
    }

    /// Sleeps until there is something to do, or for a pause. Returns whether anything but time has ended it.
    fn sleep(&mut self, step: &Step) -> Result<bool, Failure> {
        let now = self.now();
        let wake_at = step.next_timeout.unwrap_or(Instant::FAR_FUTURE);
        let look_at = self.link_watch.as_ref().map(LinkWatch::next_look);
        let wake_at = look_at.map_or(wake_at, |at| wake_at.min(at));
        let timeout = wake_at.since(now).min(IDLE_SLEEP_MAX);
        let look_after = (step.next_look).map_or(IDLE_SLEEP_MAX, |at| at.since(now));
        let look_after = look_after.min(timeout.saturating_add(coalescing::TIMERS_WAIT_MAX));
        self.coalescing.on_round_trip(self.worker.shortest_rtt(now));
        // A pause would leave the device alone for as long.
        let sleep = if self.busy_poll.is_on() {
            Sleep::Wait
        } else {
            self.coalescing.sleep(look_after)
        };
        let timeout = match sleep {
            Sleep::Pause(pause) | Sleep::WholePause(pause) => pause,
            Sleep::Wait => timeout,
        };
        let is_request_there =
            matches!(sleep, Sleep::Pause(_)) && self.worker.link_mut().clear_requests();
        if timeout.is_zero() || is_request_there {
            return Ok(false);
        }
        let or_writable = step.blocked_on_link && !self.pollout_unreliable;
        let mut sources = [Source::readable(self.mailbox.sleeper().fd()); wait::SOURCES_MAX];
        let (of_mailbox, mut count) = (0, 1);
        let mut add = |source| {
            sources[count] = source;
            count += 1;
        };
        let mut of_disk = wait::SOURCES_MAX;
        if !matches!(sleep, Sleep::WholePause(_)) {
            let disk_fd = self.worker.disk().poll_fd();
            of_disk = disk_fd.map_or(of_disk, |_| 1);
            disk_fd.map(Source::readable).map(&mut add);
            let store_fd = self.worker.store().poll_fd();
            store_fd.map(Source::readable).map(&mut add);
        }
        let mut of_notifications = wait::SOURCES_MAX;
        let link = self.worker.link();
        match sleep {
            Sleep::WholePause(_) => {}
            Sleep::Pause(_) => {
                link.request_fd().map(Source::readable).map(&mut add);
            }
            Sleep::Wait => {
                link.poll_fd().map(Source::readable).map(&mut add);
                if let (true, Some(fd)) = (or_writable, link.writable_fd()) {
                    add(Source { fd, or_writable });
                }
                self.packets
                    .sources()
                    .map(Source::readable)
                    .for_each(&mut add);
                if let Some(fd) = self.link_watch.as_ref().and_then(|it| it.poll_fd(now)) {
                    of_notifications = count;
                    sources[count] = Source::readable(fd);
                    count += 1;
                }
            }
        }
        let ready = wait::wait(&sources[..count], Some(timeout))
            .map_err(|error| Failure::Broken(format!("ppoll: {error}")))?;
        self.coalescing
            .on_slept(sleep, now, self.now(), coalescing::processor_time);
        let woken = ready.is_any();
        if ready.has(of_disk) {
            self.worker.disk_mut().clear_wake();
        }
        if ready.has(of_mailbox) {
            self.mailbox.sleeper().drain();
        }
        if sleep != Sleep::Wait {
            self.counters.server_pause_events += 1;
            return Ok(woken);
        }
        if ready.has(of_notifications)
            && let Some(watch) = &mut self.link_watch
        {
            watch.wake();
        }
        self.counters.server_sleep_events += 1;
        // If the next round makes no progress either, `POLLOUT` was reported for a full link.
        self.pollout_unreliable = woken && or_writable;
        Ok(woken)
    }

    /// Publishes the counters after a round, and logs its warnings.
    fn observe(&mut self, now: Instant, progressed: bool) {
        let (worker, counters) = (&self.worker, &self.counters);
        let connections = worker.connection_count();
        self.publisher
            .on_round(now, progressed, connections, || Told {
                pairs: all_counters(worker, counters),
                histograms: worker.histograms(),
                sites: worker.site_counters(),
            });
        while let Some(Warning { severity, text }) = self.worker.poll_warning(now) {
            match severity {
                Severity::Warning => warn!("{text}"),
                Severity::Info => info!("{text}"),
            }
        }
    }

    fn counters(&self) -> Vec<Pair> {
        all_counters(&self.worker, &self.counters)
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

/// Every counter of the worker and of what drives it, in a fixed order.
fn all_counters<L: Link, D: Disk>(worker: &Worker<L, D>, own: &Counters) -> Vec<Pair> {
    let mut pairs = worker.counters();
    pairs.extend(own.as_pairs());
    pairs
}

fn broken(error: WorkerError) -> Failure {
    Failure::Broken(error.to_string())
}

#[cfg(test)]
mod tests;
