//! The loop: epoll, in batches, with a pause between two sweeps.
//!
//! Sockets are watched edge-triggered and registered once: a connection is read until nothing
//! waits or its turn is over, and then it is looked at again when something comes.
//! While the loop sleeps between two sweeps the kernel only notes which sockets are ready, and
//! nobody is woken.
//!
//! It refuses to wait without end: a run to which nothing comes for long gives up. Bounded by: the
//! plan's connections; [`EVENTS_MAX`] at a time.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use testbed::cores::CoreTime;

use crate::args::Plan;
use crate::connection::{Handshaking, Line, Phase, Progress};
use crate::fault::{Fault, FaultKind};
use crate::socket::{self, Buffers};
use crate::stats::{Ending, Faults, Report, Stats, float};

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;

/// Between two looks for what has timed out, and until what has failed is tried again.
const TICK: Duration = Duration::from_secs(1);

/// Streams that are being opened at once: servers accept so many without dropping any.
const CONNECT_AT_ONCE: usize = 256;

/// A run to which nothing comes gives up after its timeout, twice over, and this.
const GIVE_UP: Duration = Duration::from_secs(5);

/// One connection of the plan, whether it stands or not.
#[derive(Debug, Default)]
struct Connection {
    phase: Phase,
    /// Its first attempt has ended, well or not.
    is_tried: bool,
}

/// What stood when the window began.
#[derive(Debug)]
struct Window {
    start: Duration,
    cores: Vec<CoreTime>,
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
    /// Those that have failed, until the next tick.
    later: Vec<u32>,
    /// With arrivals: those not in use.
    idle: Vec<u32>,
    /// Arrivals so far.
    arrived: u64,
    /// Those being opened.
    opening: usize,
    /// Those whose first attempt has not ended.
    untried: usize,
    /// The request that is made next.
    next_request: usize,
    buffers: Buffers,
    stats: Stats,
    faults: Faults,
    /// When all connections stood, or arrivals began.
    begun: Option<Duration>,
    window: Option<Window>,
    /// When something last came.
    last_byte: Duration,
}

impl<'a> Engine<'a> {
    /// Makes all that a run needs; opens nothing yet.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(plan: &'a Plan) -> Result<Self> {
        let mut connections = Vec::new();
        connections.resize_with(plan.connections, Connection::default);
        let all = 0..u32::try_from(plan.connections).context("too many connections")?;
        let (idle, to_open) = match plan.arrivals {
            Some(_) => (all.collect(), VecDeque::new()),
            None => (Vec::new(), all.collect()),
        };
        Ok(Self {
            plan,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?,
            clock: Instant::now(),
            connections,
            again: Vec::new(),
            to_open,
            later: Vec::new(),
            idle,
            arrived: 0,
            opening: 0,
            untried: plan.connections,
            next_request: 0,
            buffers: Buffers::new(),
            stats: Stats::default(),
            faults: Faults::default(),
            begun: None,
            window: None,
            last_byte: Duration::ZERO,
        })
    }

    /// Runs to its end.
    ///
    /// # Errors
    /// The kernel's, where going on makes no sense.
    pub(crate) fn run(&mut self, is_stopped: &AtomicBool) -> Result<Report> {
        self.clock = Instant::now();
        let mut tick = TICK;
        let ending = loop {
            let now = self.clock.elapsed();
            self.begin_if_due(now)?;
            self.arrive(now);
            self.open_more(now);
            if let Some(ending) = self.ending(now, is_stopped.load(Ordering::Relaxed)) {
                break ending;
            }
            if now >= tick {
                self.time_out(now);
                self.to_open.extend(self.later.drain(..));
                tick = now + TICK;
            }
            let is_busy = self.sweep(tick.saturating_sub(now))?;
            if is_busy && !self.plan.sweep_pause.is_zero() {
                std::thread::sleep(self.plan.sweep_pause);
            }
        };
        self.report(ending)
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

    /// Begins the warm-up, if all connections stand or need not, and the window behind it.
    fn begin_if_due(&mut self, now: Duration) -> Result<()> {
        if self.begun.is_none() && (self.plan.arrivals.is_some() || self.untried == 0) {
            self.begun = Some(now);
        }
        if self.warm_up_end().is_some_and(|end| now >= end) {
            self.stats = Stats::default();
            self.window = Some(Window {
                start: now,
                cores: CoreTime::now(&self.plan.cores)?,
            });
        }
        Ok(())
    }

    /// When the window is to begin, if it has not and that is known.
    fn warm_up_end(&self) -> Option<Duration> {
        let begun = self.begun.filter(|_| self.window.is_none())?;
        Some(begun + self.plan.warm_up)
    }

    /// When the window ends, if it has begun.
    fn end(&self) -> Option<Duration> {
        Some(self.window.as_ref()?.start + self.plan.window)
    }

    fn ending(&self, now: Duration, is_stopped: bool) -> Option<Ending> {
        if is_stopped {
            return Some(Ending::Interrupted);
        }
        if self.end().is_some_and(|end| now >= end) {
            return Some(Ending::Time);
        }
        let patience = GIVE_UP + 2 * self.plan.timeout;
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
        let moments = [self.end(), self.warm_up_end(), self.next_arrival()];
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
                if let Ok(index) = u32::try_from(event.data.u64()) {
                    self.handle_event(index, event.flags, self.clock.elapsed());
                }
            }
            is_busy |= !events.is_empty();
            if events.len() < EVENTS_MAX {
                return Ok(is_busy);
            }
            wait = Duration::ZERO;
        }
    }

    fn handle_event(&mut self, index: u32, flags: epoll::EventFlags, now: Duration) {
        use epoll::EventFlags as F;
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        let outcome = match &mut connection.phase {
            Phase::Waiting => Ok(()),
            // What made it be looked at again may have been its last connection's.
            Phase::Connecting(_) if !flags.intersects(F::OUT | F::ERR | F::HUP) => Ok(()),
            Phase::Connecting(_) => self.connected(index, now),
            Phase::Handshaking(_) => self.advance_handshake(index, now),
            Phase::Open(_) => {
                let is_ending = flags.intersects(F::RDHUP | F::HUP | F::ERR);
                self.exchange(index, is_ending, now)
            }
        };
        if let Err(fault) = outcome {
            self.fail(index, &fault);
        }
    }

    /// TCP has decided.
    fn connected(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let plan = self.plan;
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let Phase::Connecting(line) = std::mem::take(&mut connection.phase) else {
            return Ok(());
        };
        socket::connected(&line.socket, plan.server)?;
        let handshaking = Handshaking::new(line, &plan.tls, plan.name.clone())?;
        connection.phase = Phase::Handshaking(Box::new(handshaking));
        self.advance_handshake(index, now)
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
        let open = handshaking.finish()?;
        let since = open.line.since;
        connection.phase = Phase::Open(Box::new(open));
        self.opening -= 1;
        self.tried(index);
        self.last_byte = now;
        self.stats.handshakes += 1;
        self.stats.connect.record(now.saturating_sub(since));
        // What came with the handshake is read.
        self.again.push(index);
        self.ask(index, now)
    }

    /// Notes that a connection's first attempt has ended.
    fn tried(&mut self, index: u32) {
        if let Some(connection) = connection(&mut self.connections, index) {
            let is_first = !std::mem::replace(&mut connection.is_tried, true);
            self.untried -= usize::from(is_first);
        }
    }

    /// Sends the next request.
    fn ask(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let plan = self.plan;
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let Phase::Open(open) = &mut connection.phase else {
            return Ok(());
        };
        let Some(request) = plan.requests.get(self.next_request) else {
            return Ok(());
        };
        self.next_request = (self.next_request + 1) % plan.requests.len();
        open.ask(request, plan.body_bytes, now)
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
            let fault = match progress? {
                Progress::Drained => return Ok(()),
                Progress::TurnOver => {
                    self.again.push(index);
                    return Ok(());
                }
                Progress::Replied(fault) => fault,
            };
            self.stats.replies += 1;
            if let Some(fault) = &fault {
                self.faults.add(fault);
            }
            if self.plan.arrivals.is_none() {
                self.ask(index, now)?;
                continue;
            }
            // The reply was complete: a server that is gone by now has done its work.
            let _ = open.take_leave();
            connection.phase = Phase::Waiting;
            self.idle.push(index);
            return Ok(());
        }
    }

    /// A connection has failed: counted, dropped, and opened anew after a while. With arrivals whoever
    /// gave up does not come back: another comes when it is due.
    fn fail(&mut self, index: u32, fault: &Fault) {
        let Some(connection) = connection(&mut self.connections, index) else {
            return;
        };
        let phase = std::mem::take(&mut connection.phase);
        // A handshake that could not even begin has left no phase behind.
        if !matches!(phase, Phase::Open(_)) {
            self.opening -= 1;
            self.tried(index);
        }
        self.faults.add(fault);
        self.stats.failures += 1;
        match self.plan.arrivals {
            Some(_) => self.idle.push(index),
            None => self.later.push(index),
        }
    }

    /// Opens those in line, as many at once as may be.
    fn open_more(&mut self, now: Duration) {
        let at_once = match self.plan.arrivals {
            Some(_) => self.plan.connections,
            None => CONNECT_AT_ONCE,
        };
        while self.opening < at_once
            && let Some(index) = self.to_open.pop_front()
        {
            self.opening += 1;
            if let Err(fault) = self.open(index, now) {
                self.fail(index, &fault);
            }
        }
    }

    fn open(&mut self, index: u32, now: Duration) -> Result<(), Fault> {
        let Some(connection) = connection(&mut self.connections, index) else {
            return Ok(());
        };
        let socket = socket::open(self.plan.server)?;
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
                Phase::Open(open) => (open.last_byte, "a reply"),
            };
            if now.saturating_sub(since) > timeout {
                let text = format!("{doing}: nothing for {timeout:?}");
                let fault = Fault::new(FaultKind::TimedOut, text);
                self.fail(u32::try_from(at).unwrap_or(u32::MAX), &fault);
            }
        }
    }

    fn report(&self, ending: Ending) -> Result<Report> {
        let now = self.clock.elapsed();
        let after = CoreTime::now(&self.plan.cores)?;
        // A run that ended before it began has a window of no length.
        let (start, before) = match &self.window {
            Some(window) => (window.start, window.cores.as_slice()),
            None => (now, after.as_slice()),
        };
        let cores = after.iter().zip(before);
        let cores = cores.map(|(after, before)| after.since(*before)).collect();
        let window = now.saturating_sub(start);
        Ok(Report::new(
            ending,
            window,
            cores,
            (&self.stats, &self.faults),
        ))
    }
}

fn connection(all: &mut [Connection], index: u32) -> Option<&mut Connection> {
    all.get_mut(usize::try_from(index).ok()?)
}
