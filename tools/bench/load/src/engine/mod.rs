//! The loop: epoll, in batches, with a pause between two sweeps.
//!
//! Sockets are watched edge-triggered and registered once: a connection is read until nothing
//! waits or its turn is over ([`connection::READS_MAX`]), and then it is looked at again when something comes.
//! While the loop sleeps between two sweeps the kernel only notes which sockets are ready, and
//! nobody is woken.
//!
//! It refuses to wait without end: a run to which nothing comes for long gives up, and one that
//! reaches nobody gives up soon. Bounded by: the
//! plan's connections; [`EVENTS_MAX`] at a time.

mod connection;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use rustls::ClientConfig;

use crate::args::{Close, Plan};
use crate::channel::COPY_BYTES_MAX;
use crate::cores::CoreTime;
use crate::fault::{Fault, FaultKind};
use crate::random::Random;
use crate::reply::{Expectation, Outcome};
use crate::schedule::{Schedule, back_off};
use crate::socket::{self, Buffers};
use crate::stats::{Ending, Faults, Frame, Report, Stats, float};
use crate::tls::with_sessions;
use connection::{Handshaking, Line, Open, Phase, Progress};

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;

/// Between two lines of progress, and two looks for what has timed out.
const TICK: Duration = Duration::from_secs(1);

/// A server that was told to close gets so long before this side does.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A run to which nothing comes gives up after its timeout, twice over, and this.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Where no connection has ever stood, each is tried so often before the run gives up: over some
/// 0.6 s, with the waits of [`back_off`]. A run that time ends goes on trying.
const ATTEMPTS_MAX: u32 = 6;

/// One connection of the plan, whether it stands or not.
#[derive(Debug)]
struct Connection {
    phase: Phase,
    /// Which server it leads to.
    server: usize,
    /// When to look at it again, if not before: another moment in the heap is void.
    wakes: Option<Duration>,
    /// Failures in a row.
    failures: u32,
    /// Its first attempt has ended, well or not.
    is_tried: bool,
    /// Its TLS, with its sessions if it resumes them.
    tls: Option<Arc<ClientConfig>>,
}

/// A run.
pub(crate) struct Engine<'a> {
    plan: &'a Plan,
    epoll: OwnedFd,
    clock: Instant,
    connections: Vec<Connection>,
    /// Those to be looked at again although no event will tell.
    again: Vec<u32>,
    /// Those that wait for their turn to be opened.
    to_open: VecDeque<u32>,
    /// With arrivals: those not in use.
    idle: Vec<u32>,
    /// Arrivals so far.
    arrived: u64,
    /// Those being opened.
    opening: usize,
    /// Those whose first attempt has not ended.
    untried: usize,
    /// Those that have not failed [`ATTEMPTS_MAX`] times in a row.
    attempting: usize,
    /// Whether any connection has ever stood.
    has_stood: bool,
    wakes: BinaryHeap<Reverse<(Duration, u32)>>,
    schedule: Schedule,
    random: Random,
    buffers: Buffers,
    stats: Stats,
    faults: Faults,
    /// When the first request could be sent; none before all connections stand.
    begun: Option<Duration>,
    window: Option<Window>,
    open_requests: u64,
    /// When something last came.
    last_byte: Duration,
}

impl std::fmt::Debug for Engine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Engine<'a> {
    /// Makes all that a run needs; opens nothing yet.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(plan: &'a Plan) -> Result<Self> {
        let connections = (0..plan.connections).map(|index| Connection {
            phase: Phase::Waiting,
            server: index % plan.servers.len(),
            wakes: None,
            failures: 0,
            is_tried: false,
            tls: match &plan.tls {
                Some(config) if plan.resumes => Some(with_sessions(config)),
                other => other.clone(),
            },
        });
        let schedule = Schedule::new(plan.urls_of_servers(), plan.amount, plan.seed);
        Ok(Self {
            plan,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?,
            clock: Instant::now(),
            connections: connections.collect(),
            again: Vec::new(),
            to_open: VecDeque::new(),
            idle: Vec::new(),
            arrived: 0,
            opening: 0,
            untried: plan.connections,
            attempting: plan.connections,
            has_stood: false,
            wakes: BinaryHeap::new(),
            schedule,
            random: Random::new(plan.seed.rotate_left(32) ^ 1),
            buffers: Buffers::new(COPY_BYTES_MAX),
            stats: Stats::new(),
            faults: Faults::default(),
            begun: None,
            window: None,
            open_requests: 0,
            last_byte: Duration::ZERO,
        })
    }

    /// Runs to its end; `tell` gets a line of progress each second.
    ///
    /// # Errors
    /// The kernel's, where going on makes no sense.
    pub(crate) fn run(
        &mut self,
        is_stopped: &AtomicBool,
        mut tell: impl FnMut(&str),
    ) -> Result<Report> {
        self.clock = Instant::now();
        self.line_up()?;
        let mut tick = TICK;
        let mut told = (Duration::ZERO, 0);
        let ending = loop {
            let now = self.clock.elapsed();
            self.begin_if_due(now)?;
            self.wake(now);
            self.arrive(now);
            self.open_more(now);
            if let Some(ending) = self.ending(now, is_stopped.load(Ordering::Relaxed)) {
                break ending;
            }
            if now >= tick {
                self.time_out(now);
                tell(&self.progress(now, told));
                told = (now, self.stats.body_bytes);
                tick = now + TICK;
            }
            let is_busy = self.sweep(tick.saturating_sub(now))?;
            if is_busy && !self.plan.sweep_pause.is_zero() {
                std::thread::sleep(self.plan.sweep_pause);
            }
        };
        self.report(ending)
    }

    /// Puts each connection where it begins: in line, or at its moment of the ramp.
    fn line_up(&mut self) -> Result<()> {
        let count = u32::try_from(self.connections.len()).context("too many connections")?;
        if self.plan.arrivals.is_some() {
            self.idle.extend(0..count);
        } else if self.plan.ramp_up.is_zero() {
            self.to_open.extend(0..count);
        } else {
            for index in 0..count {
                let moment = self
                    .plan
                    .ramp_up
                    .mul_f64(f64::from(index) / f64::from(count));
                self.wake_at(index, moment);
            }
        }
        Ok(())
    }

    /// When the next connection is due, if they come at a rate.
    fn next_arrival(&self) -> Option<Duration> {
        let rate = self.plan.arrivals?;
        Some(Duration::from_secs_f64(float(self.arrived) / rate))
    }

    /// Puts in line what has become due, or misses it if all connections are in use.
    fn arrive(&mut self, now: Duration) {
        while self.next_arrival().is_some_and(|moment| moment <= now) {
            self.arrived += 1;
            self.stats.arrivals += 1;
            match self.idle.pop() {
                Some(index) => self.to_open.push_back(index),
                None => self.stats.missed_arrivals += 1,
            }
        }
    }

    /// Begins to ask, if all connections stand or need not; begins the window, if warm.
    fn begin_if_due(&mut self, now: Duration) -> Result<()> {
        let is_at_once = !self.plan.ramp_up.is_zero() || self.plan.close.is_some();
        if self.begun.is_none() && (is_at_once || self.untried == 0) {
            self.begun = Some(now);
            self.last_byte = now;
            let count = u32::try_from(self.connections.len()).context("too many connections")?;
            for index in 0..count {
                self.pace_first(index, now);
            }
        }
        if self.warm_up_end().is_some_and(|end| now >= end) {
            if !self.plan.warm_up.is_zero() {
                self.stats.forget_warm_up(self.plan.close.is_none());
            }
            self.window = Some(Window::begin(now, &self.plan.cores)?);
        }
        Ok(())
    }

    /// When the window is to begin, if it has not and that is known.
    fn warm_up_end(&self) -> Option<Duration> {
        let begun = self.begun.filter(|_| self.window.is_none())?;
        Some(begun + self.plan.warm_up)
    }

    /// When the window ends, if time ends it and it has begun.
    fn end(&self) -> Option<Duration> {
        Some(self.window.as_ref()?.start + self.plan.window?)
    }

    fn ending(&self, now: Duration, is_stopped: bool) -> Option<Ending> {
        if is_stopped {
            return Some(Ending::Interrupted);
        }
        if self.end().is_some_and(|end| now >= end) {
            return Some(Ending::Time);
        }
        if self.begun.is_some() && self.schedule.is_over() && self.open_requests == 0 {
            return Some(Ending::Done);
        }
        if self.plan.window.is_none() && !self.has_stood && self.attempting == 0 {
            return Some(Ending::GaveUp);
        }
        let pace = self.plan.pace.map_or(Duration::ZERO, |pace| pace.every);
        let patience = GIVE_UP + 2 * self.plan.timeout + self.plan.ramp_up + 2 * pace;
        (now.saturating_sub(self.last_byte) > patience).then_some(Ending::GaveUp)
    }

    /// Takes all that is ready now; whether anything was. Waits for at most `wait`.
    fn sweep(&mut self, wait: Duration) -> Result<bool> {
        let now = self.clock.elapsed();
        let is_idle = self.again.is_empty();
        for index in std::mem::take(&mut self.again) {
            // What an event told of an end is not told twice: better one read too many.
            self.handle_event(index, epoll::EventFlags::RDHUP, now);
        }
        let wake = self.wakes.peek().map(|Reverse((moment, _))| *moment);
        let moments = [wake, self.end(), self.warm_up_end(), self.next_arrival()];
        let waits = moments.iter().flatten().map(|it| it.saturating_sub(now));
        let mut wait = if is_idle {
            waits.fold(wait, Duration::min)
        } else {
            Duration::ZERO
        };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut is_busy = !is_idle;
        loop {
            events.clear();
            let timeout = Timespec::try_from(wait).context("a wait")?;
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&timeout)) {
                Ok(_) => {}
                // A signal: the run looks whether it was told to stop.
                Err(Errno::INTR) => return Ok(is_busy),
                Err(error) => return Err(error).context("waiting for events"),
            }
            for event in &events {
                let Ok(index) = u32::try_from(event.data.u64()) else {
                    continue;
                };
                self.handle_event(index, event.flags, self.clock.elapsed());
            }
            is_busy |= !events.is_empty();
            if events.len() < EVENTS_MAX {
                return Ok(is_busy);
            }
            wait = Duration::ZERO;
        }
    }

    fn handle_event(&mut self, index: u32, flags: epoll::EventFlags, now: Duration) {
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        let outcome = match &mut connection.phase {
            Phase::Waiting => Ok(()),
            // What made it be looked at again may have been its last connection's.
            Phase::Connecting(_) if !flags.intersects(decided()) => Ok(()),
            Phase::Connecting(_) => self.connected(index, now),
            Phase::Handshaking(_) => self.advance_handshake(index, now),
            Phase::Open(_) => {
                let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP;
                let is_ending = flags.intersects(ends | epoll::EventFlags::ERR);
                self.exchange(index, is_ending, now)
            }
        };
        if let Err(fault) = outcome {
            self.fail(index, &fault, now);
        }
    }

    /// TCP has decided.
    fn connected(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let plan = self.plan;
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let Some(server) = plan.servers.get(connection.server) else {
            return Ok(());
        };
        let Phase::Connecting(line) = &connection.phase else {
            return Ok(());
        };
        socket::connected(&line.socket, server.address)?;
        let Phase::Connecting(line) = std::mem::take(&mut connection.phase) else {
            return Ok(());
        };
        if let (Some(name), Some(config)) = (&server.tls, &connection.tls) {
            let handshaking = Handshaking::new(line, config, name.clone())?;
            connection.phase = Phase::Handshaking(Box::new(handshaking));
            return self.advance_handshake(index, now);
        }
        connection.phase = Phase::Open(Open::plain(line));
        self.stand(index, now);
        Ok(())
    }

    fn advance_handshake(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let Phase::Handshaking(handshaking) = &mut connection.phase else {
            return Ok(());
        };
        if !handshaking.advance(&mut self.buffers)? {
            return Ok(());
        }
        let Phase::Handshaking(handshaking) = std::mem::take(&mut connection.phase) else {
            return Ok(());
        };
        let (open, agreed) = handshaking.finish()?;
        connection.phase = Phase::Open(open);
        self.stats.add_handshake(agreed);
        self.stand(index, now);
        Ok(())
    }

    /// A connection is ready to ask.
    fn stand(&mut self, index: u32, now: Duration) {
        self.last_byte = now;
        self.opening -= 1;
        self.has_stood = true;
        self.stats.connects += 1;
        let is_first = self.tried(index);
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        let Phase::Open(open) = &connection.phase else {
            return;
        };
        self.stats
            .connect
            .record(now.saturating_sub(open.line.since));
        // Before the run has begun all wait for the last; what came with the handshake is read,
        // and its last flight is sent.
        self.again.push(index);
        match self.begun {
            Some(_) if is_first => self.pace_first(index, now),
            Some(_) => self.ask(index, now, now),
            None => {}
        }
    }

    /// Notes that an attempt has ended; whether it was the connection's first.
    fn tried(&mut self, index: u32) -> bool {
        let Some(connection) = connection(&mut self.connections, index) else {
            return false;
        };
        let is_first = !std::mem::replace(&mut connection.is_tried, true);
        self.untried -= usize::from(is_first);
        is_first
    }

    /// The first request of a connection: at once, or at a random moment of the first interval.
    fn pace_first(&mut self, index: u32, now: Duration) {
        match self.plan.pace {
            Some(pace) => {
                let moment = now + self.random.up_to(pace.every);
                if let Some(one) = connection(&mut self.connections, index)
                    && matches!(one.phase, Phase::Open(_))
                {
                    self.wake_at(index, moment);
                }
            }
            None => self.ask(index, now, now),
        }
    }

    /// Sends the next request, if there is one; `due` is the moment its pace counts from.
    fn ask(&mut self, index: u32, due: Duration, now: Duration) {
        let plan = self.plan;
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        let Phase::Open(open) = &mut connection.phase else {
            return;
        };
        let Some(url) = self.schedule.next(connection.server) else {
            return;
        };
        let at = usize::try_from(url).unwrap_or(usize::MAX);
        let Some(((_, path), server)) = plan
            .urls
            .paths
            .get(at)
            .zip(plan.servers.get(connection.server))
        else {
            return;
        };
        let connection_line = match plan.close {
            Some(Close::Server) => "Connection: close\r\n",
            Some(Close::Client) | None => "",
        };
        let authority = &server.authority;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n{connection_line}\r\n");
        self.stats.requests += 1;
        self.open_requests += 1;
        let expected = expectation(plan, url, path);
        let asked = expected.and_then(|it| open.ask(url, &request, it, due, now));
        if let Err(fault) = asked {
            open.url = Some(url);
            self.fail(index, &fault, now);
        }
    }

    /// Sends and receives what can be.
    fn exchange(&mut self, index: u32, is_ending: bool, now: Duration) -> Result<(), Fault> {
        loop {
            let Some(connection) = connection(&mut self.connections, index) else {
                return Ok(());
            };
            let Phase::Open(open) = &mut connection.phase else {
                return Ok(());
            };
            let progress = open.advance(&mut self.buffers, is_ending, now, &mut self.stats);
            self.last_byte = self.last_byte.max(open.last_byte);
            let progress = match progress {
                // A server may be rude after its last reply.
                Err(_) if open.is_over => Progress::Closed,
                other => other?,
            };
            match progress {
                Progress::Drained => return Ok(()),
                Progress::TurnOver => {
                    self.again.push(index);
                    return Ok(());
                }
                Progress::Closed => {
                    self.closed(index);
                    return Ok(());
                }
                Progress::Replied { outcome, due, url } => {
                    connection.failures = 0;
                    self.replied(index, outcome, due, url, now);
                }
            }
        }
    }

    /// A reply is complete: notes how it was, asks again when it is time.
    fn replied(&mut self, index: u32, outcome: Outcome, due: Duration, url: u32, now: Duration) {
        self.open_requests -= 1;
        self.stats.replies += 1;
        if outcome.is_verified {
            self.stats.verified += 1;
            self.stats.verified_bytes += outcome.body_bytes;
        }
        if let Some(fault) = &outcome.fault {
            self.faults.add(fault, &self.plan.urls.show(url));
        }
        let is_last = self.plan.close.is_some() || !outcome.is_kept;
        if let Some(one) = connection(&mut self.connections, index)
            && let Phase::Open(open) = &mut one.phase
        {
            open.is_over = is_last;
            if self.plan.close == Some(Close::Client) {
                // The reply was complete: a server that is gone by now has done its work.
                let _ = open.take_leave();
                self.drop_line(index);
                return self.reopen(index);
            }
        }
        if is_last {
            // The server closes first, so that its side and not ours keeps the port busy.
            self.wake_at(index, now + CLOSE_WAIT);
            return;
        }
        let Some(pace) = self.plan.pace else {
            return self.ask(index, now, now);
        };
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        if let Phase::Open(open) = &connection.phase
            && let Some(late) = pace.lateness(now.saturating_sub(open.asked))
        {
            self.stats.late += 1;
            self.stats.lateness += late;
        }
        let next = pace.next_due(due, now);
        if next <= now {
            self.ask(index, next, now);
        } else {
            self.wake_at(index, next);
        }
    }

    /// The server has closed where it may: opened anew if there is anything left to ask.
    fn closed(&mut self, index: u32) {
        self.stats.closed_by_server += 1;
        self.drop_line(index);
        self.reopen(index);
    }

    /// A connection has failed: counted, dropped, and opened anew after a while.
    fn fail(&mut self, index: u32, fault: &Fault, now: Duration) {
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        connection.failures = connection.failures.saturating_add(1);
        let failures = connection.failures;
        if !self.has_stood && failures == ATTEMPTS_MAX {
            self.attempting -= 1;
        }
        let about = match &connection.phase {
            Phase::Open(Open { url: Some(url), .. }) => self.plan.urls.show(*url),
            _ => {
                let origin = self.plan.urls.origins.get(connection.server);
                origin.map_or_else(String::new, ToString::to_string)
            }
        };
        self.faults.add(fault, &about);
        self.stats.failures += 1;
        self.drop_line(index);
        if self.plan.arrivals.is_some() {
            // Whoever gave up does not come back; another comes when it is due.
            return self.reopen(index);
        }
        let wait = back_off(failures, &mut self.random);
        self.wake_at(index, now + wait);
    }

    /// Forgets the socket, and what was open on it.
    fn drop_line(&mut self, index: u32) {
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        connection.wakes = None;
        match std::mem::take(&mut connection.phase) {
            // A handshake that could not even begin has left no phase behind.
            Phase::Waiting | Phase::Connecting(_) | Phase::Handshaking(_) => {
                self.opening -= 1;
                self.tried(index);
            }
            Phase::Open(open) => self.open_requests -= u64::from(open.url.is_some()),
        }
    }

    /// Puts a connection in line to be opened, unless its server has nothing left to be asked; with
    /// arrivals, it is free for the next.
    fn reopen(&mut self, index: u32) {
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        if self.plan.arrivals.is_some() {
            self.idle.push(index);
        } else if !self.schedule.is_exhausted(connection.server) {
            self.to_open.push_back(index);
        }
    }

    /// Opens those in line, as many at once as the plan has it.
    fn open_more(&mut self, now: Duration) {
        // Those that fail at once come back later: a pass over the line ends.
        while self.opening < self.plan.connect_at_once
            && let Some(index) = self.to_open.pop_front()
        {
            self.opening += 1;
            if let Err(fault) = self.open(index, now) {
                self.fail(index, &fault, now);
            }
        }
    }

    fn open(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let plan = self.plan;
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let Some(server) = plan.servers.get(connection.server) else {
            return Ok(());
        };
        let turn = usize::try_from(index).unwrap_or(0) % plan.sources.len().max(1);
        let source = plan.sources.get(turn).copied();
        let socket = socket::open(server.address, source, plan.receive_buffer_bytes)?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(index));
        epoll::add(&self.epoll, &socket, data, flags)
            .map_err(|error| Fault::of_socket("watching a socket", error))?;
        connection.phase = Phase::Connecting(Line::new(socket, now));
        Ok(())
    }

    fn wake_at(&mut self, index: u32, moment: Duration) {
        if let Some(connection) = connection(&mut self.connections, index) {
            connection.wakes = Some(moment);
            self.wakes.push(Reverse((moment, index)));
        }
    }

    /// Does what is due.
    fn wake(&mut self, now: Duration) {
        while let Some(Reverse((moment, index))) = self.wakes.peek().copied()
            && moment <= now
        {
            self.wakes.pop();
            let Some(connection) = connection(&mut self.connections, index) else {
                continue;
            };
            if connection.wakes != Some(moment) {
                continue;
            }
            connection.wakes = None;
            match &connection.phase {
                Phase::Waiting => self.reopen(index),
                Phase::Open(open) if open.is_over => {
                    self.drop_line(index);
                    self.reopen(index);
                }
                Phase::Open(_) => self.ask(index, moment, now),
                Phase::Connecting(_) | Phase::Handshaking(_) => {}
            }
        }
    }

    /// Gives up on what has waited too long.
    fn time_out(&mut self, now: Duration) {
        let timeout = self.plan.timeout;
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections.get(at) else {
                continue;
            };
            let (since, doing) = match &connection.phase {
                Phase::Waiting => continue,
                Phase::Connecting(line) => (line.since, "connecting"),
                Phase::Handshaking(handshaking) => (handshaking.line.since, "in the handshake"),
                Phase::Open(open) if open.url.is_some() => (open.last_byte, "a reply"),
                Phase::Open(_) => continue,
            };
            if now.saturating_sub(since) > timeout {
                let text = format!("{doing}: nothing for {timeout:?}");
                let fault = Fault::new(FaultKind::TimedOut, text);
                self.fail(u32::try_from(at).unwrap_or(u32::MAX), &fault, now);
            }
        }
    }

    fn open_connections(&self) -> usize {
        let is_open = |one: &&Connection| matches!(one.phase, Phase::Open(_));
        self.connections.iter().filter(is_open).count()
    }

    fn progress(&self, now: Duration, told: (Duration, u64)) -> String {
        let (then, bytes_then) = told;
        let bytes = self.stats.body_bytes.saturating_sub(bytes_then);
        let seconds = now.saturating_sub(then).as_secs_f64();
        format!(
            "{:>6.1} s  {:>6} open  {:>7.3} Gb/s  {:>9} replies  {} errors{}",
            now.as_secs_f64(),
            self.open_connections(),
            float(bytes) * 8e-9 / seconds,
            self.stats.replies,
            self.faults.all(),
            if self.window.is_some() {
                ""
            } else {
                "  (not counted yet)"
            }
        )
    }

    fn report(&self, ending: Ending) -> Result<Report> {
        let now = self.clock.elapsed();
        // A run that ended before it began has a window of no length.
        let nothing = Window::begin(now, &self.plan.cores)?;
        let window = self.window.as_ref().unwrap_or(&nothing);
        let cores = nothing.cores.iter().zip(&window.cores);
        let frame = Frame {
            connections: self.connections.len(),
            open: self.open_connections(),
            unfinished: self.open_requests,
            window: now.saturating_sub(window.start),
            cpu: nothing.spent.saturating_sub(window.spent),
            cores: cores.map(|(now, then)| now.since(*then)).collect(),
            ending,
        };
        Ok(Report::new(frame, &self.stats, &self.faults))
    }
}

/// What stood when the window began.
#[derive(Debug)]
struct Window {
    start: Duration,
    /// What this process had spent by then.
    spent: Duration,
    cores: Vec<CoreTime>,
}

impl Window {
    fn begin(start: Duration, cores: &[usize]) -> Result<Self> {
        Ok(Self {
            start,
            spent: spent(),
            cores: CoreTime::now(cores)?,
        })
    }
}

/// What an event says of a connection that was begun, once TCP has decided.
fn decided() -> epoll::EventFlags {
    epoll::EventFlags::OUT | epoll::EventFlags::ERR | epoll::EventFlags::HUP
}

fn connection(all: &mut [Connection], index: u32) -> Option<&mut Connection> {
    all.get_mut(usize::try_from(index).ok()?)
}

/// What the reply to that URL is to be.
fn expectation(plan: &Plan, url: u32, path: &str) -> Result<Expectation, Fault> {
    let urls = plan.urls.paths.len();
    let check = match &plan.verification {
        Some(it) if it.covers(url, urls) => Some(it.reference.open(path)),
        _ => None,
    };
    let check = check
        .transpose()
        .map_err(|error| Fault::new(FaultKind::Bytes, format!("no reference: {error:#}")))?;
    Ok(Expectation {
        body_bytes: plan.body_bytes,
        check: check.map(Box::new),
    })
}

/// Time of one core this process has taken, all of it.
fn spent() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
