//! One thread that ties them: frames in, segments out, timers, the window that is measured.
//!
//! Each round takes what the TAP has, sends what is due, opens connections, and looks for what was
//! not answered every [`SWEEP_EVERY`]. While there is work it does not sleep, since a sleeping reader
//! would have to be woken by the server's core.
//!
//! It refuses to go on where nothing comes for as long as the caller's patience lasts. Bounds: the
//! constants below; the connections.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use clock::{Duration, Instant};
use memory::traffic::MemoryTraffic;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use testbed::cores::CoreTime;
use testbed::latency::Latency;
use testbed::random::Random;
use wire::{HEADERS_BYTES_MAX, MacAddress, Route, SeqNumber, TcpFlags};

use crate::client::{Arrival, Connection, TlsClient, Transmit};
use crate::filter::WholeShare;
use crate::filter::watch::HEAD_TEXT_BYTES;
use crate::frame::{self, Addresses, CLIENT_MAC, Neighbor, VNET_HEADER_BYTES};
use crate::impair::Impairments;
use crate::pace::{Pace, Rate};
use crate::paths::Paths;
use crate::report::{Counts, Ending, Faults, MemoryBytes, Report, WireCost, float, ratio};
use crate::schedule::{Distances, Schedule};
use crate::tally::{Tallies, Work};
use crate::tap::{FRAME_BYTES_MAX, Tap};
use crate::visits::Visits;
use crate::watches::Watches;
use crate::world::Around;

/// Frames received, and segments sent, in one round.
const BATCH_FRAMES: usize = 256;

/// Connections opened, or beginning to ask, a second, and opened at once.
const CONNECT_RATE: u32 = 20_000;
const CONNECT_AT_ONCE: u32 = 256;

/// Longest time until all connections stand: 100,000 handshakes of a millisecond.
const CONNECT_MAX: Duration = Duration::from_secs(120);

/// Longest warm-up, beside the periods of the paced requests it has.
const WARM_UP_MAX: Duration = Duration::from_secs(40);

/// Longest window, unless more was asked for: five median replies of the slowest.
const WINDOW_MAX: Duration = Duration::from_secs(40);

/// Least time between two bursts of frames to the server, as by a NIC's interrupt moderation: the default of Intel's
/// drivers.
const MODERATION: Duration = Duration::from_micros(50);

/// How far opening connections may be behind its rate to catch up.
const CONNECT_CATCH_UP: Duration = Duration::from_millis(10);

/// How often unanswered SYNs and requests are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Median replies that fit a window at least.
const WINDOW_REPLIES: u32 = 5;

/// How often the server's MAC address is asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long the thread goes round without work before it sleeps, and the longest sleep.
const SPIN_FOR: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// Resets sent at the end before a pause of a millisecond: what a kernel takes at once.
const RESET_BURST: usize = 64;

/// What a run needs beside the TAP.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) addresses: Addresses,
    pub(crate) paths: Paths,
    /// What of sampled connections is delivered whole.
    pub(crate) whole: WholeShare,
    pub(crate) impairments: Impairments,
    pub(crate) distances: Distances,
    /// Bytes of the largest IP packet.
    pub(crate) mtu: u16,
    /// Least warm-up, and what ends it behind that.
    pub(crate) warm_up: Duration,
    pub(crate) warm_up_work: Work,
    /// The window, which may become longer for five median replies to fit.
    pub(crate) window: Duration,
    /// The distance of a connection's requests, if they are paced.
    pub(crate) every: Option<Duration>,
    /// Visitors a second.
    pub(crate) visits_per_second: Option<u32>,
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
    pub(crate) tls: Option<TlsClient>,
    pub(crate) server_core: Option<usize>,
}

/// What was so at the window's beginning.
#[derive(Clone, Debug)]
struct Mark {
    at: Instant,
    counts: Counts,
    filter: (u64, u64),
    core: Option<CoreTime>,
    memory: Option<MemoryBytes>,
    working: Duration,
}

/// Where a run is.
#[derive(Clone, Debug)]
enum Phase {
    /// Not all connections stand.
    Connecting,
    /// They begin to ask.
    Starting,
    /// All ask, since this moment.
    WarmUp(Instant),
    /// What happens counts.
    Window(Box<Mark>),
}

/// A run.
#[derive(Debug)]
pub(crate) struct Engine {
    tap: Tap,
    /// `None`: this machine counts no accesses to memory, or not for us.
    memory: Option<MemoryTraffic>,
    connections: Vec<Connection>,
    around: Around,
    faults: Faults,
    buffer: Box<[u8]>,
    started: std::time::Instant,
    server: Option<MacAddress>,
    ask_at: Instant,
    /// Connections opened once at least.
    opened: u32,
    connecting: u32,
    phase: Phase,
    rate: Rate,
    /// The share of the connections that were warm when the window began.
    warm_share: f64,
    connect_began: Option<Instant>,
    burst_at: Instant,
    sweep_at: Instant,
    active_at: Instant,
    /// The last byte, the last connection more, the last change of phase.
    progress_at: Instant,
    /// Time spent in rounds with work.
    working: Duration,
    dropped_before: u64,
}

impl Engine {
    pub(crate) fn new(tap: Tap, plan: Plan, watches: Watches) -> Result<Self> {
        let addresses = plan.addresses;
        let visits = Visits::new(plan.visits_per_second);
        let visitors = visits.count();
        let connection = |index: u32| {
            let drawn = Random::new(plan.seed ^ u64::from(index)).next();
            let initial = u32::try_from(drawn >> 32).unwrap_or(0);
            Connection::new(SeqNumber(initial), index >= addresses.unsampled)
        };
        let connections = (0..addresses.unsampled + addresses.sampled).map(connection);
        let connections: Vec<_> = connections.collect();
        Ok(Self {
            dropped_before: tap.dropped_frames()?,
            tap,
            memory: MemoryTraffic::open(Path::new("/")).ok(),
            rate: Rate::new(CONNECT_RATE, CONNECT_CATCH_UP),
            around: Around {
                pace: Pace::new(plan.every, visitors),
                tallies: Tallies::new(
                    connections.len().saturating_sub(visitors as usize),
                    plan.warm_up_work,
                ),
                visits,
                plan,
                counts: Counts::default(),
                first_byte: Latency::default(),
                whole: Latency::default(),
                outgoing: Schedule::default(),
                current: 0,
                now: Instant::ZERO,
                failed: None,
                visit_over: None,
                reopen: Vec::new(),
                watches,
                explanation: None,
            },
            connections,
            faults: Faults::default(),
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            started: std::time::Instant::now(),
            server: None,
            ask_at: Instant::ZERO,
            opened: visitors,
            connecting: 0,
            phase: Phase::Connecting,
            warm_share: 0.0,
            connect_began: None,
            burst_at: Instant::ZERO,
            sweep_at: Instant::ZERO,
            active_at: Instant::ZERO,
            progress_at: Instant::ZERO,
            working: Duration::ZERO,
        })
    }

    /// Runs until the window is over, all is asked and answered, or `is_stopped`.
    pub(crate) fn run(&mut self, is_stopped: &AtomicBool) -> Result<Report> {
        let mut began = self.read_clock();
        let ending = loop {
            self.around.now = began;
            let is_sweep = began >= self.sweep_at;
            let has_worked = self.step(began)?;
            if let Some(ending) = self.advance(began, is_sweep)? {
                break ending;
            }
            if is_stopped.load(Ordering::Relaxed) {
                break Ending::Interrupted;
            }
            if self.is_done() {
                break Ending::Done;
            }
            let now = self.read_clock();
            if has_worked {
                self.working += now.since(began);
            }
            began = now;
        };
        let report = self.report(ending);
        self.reset_all()?;
        report
    }

    /// Goes on to the next phase when it is time; at a sweep also looks at what has come so far.
    fn advance(&mut self, now: Instant, is_sweep: bool) -> Result<Option<Ending>> {
        let next = match &self.phase {
            Phase::Connecting if self.all_connected() => Some(Phase::Starting),
            Phase::Connecting => None,
            Phase::Starting => self.release(now).then_some(Phase::WarmUp(now)),
            Phase::WarmUp(since) => {
                let elapsed = now.since(*since);
                let plan = &self.around.plan;
                let paced = self.around.pace.idle_max() * plan.warm_up_work.replies;
                let is_warm = elapsed >= WARM_UP_MAX + paced
                    || (elapsed >= plan.warm_up && self.cold_connections() == 0);
                if is_warm {
                    self.begin_warm_window();
                    self.tap.end_measuring();
                    Some(Phase::Window(Box::new(self.mark(now)?)))
                } else {
                    None
                }
            }
            Phase::Window(mark) if is_sweep && self.is_window_over(now.since(mark.at)) => {
                return Ok(Some(Ending::Time));
            }
            Phase::Window(_) => None,
        };
        if let Some(phase) = next {
            self.phase = phase;
            self.progress_at = now;
        }
        if is_sweep {
            return self.look_for_stall(now);
        }
        Ok(None)
    }

    /// Connections that are to have more replies or bytes before the window begins.
    fn cold_connections(&self) -> u64 {
        let failed: u64 = self.faults.counts.values().sum();
        let total = self.lasting().len() as u64;
        total.saturating_sub(u64::from(self.around.tallies.warm()) + failed)
    }

    fn begin_warm_window(&mut self) {
        let total = self.lasting().len() as u64;
        let around = &mut self.around;
        self.warm_share = ratio(around.tallies.warm().into(), float(total));
        around.first_byte = Latency::default();
        around.whole = Latency::default();
        around.tallies.begin_window();
        around.visits.begin_window();
    }

    /// Whether the window has been long enough: as long as was asked, and so long that five median
    /// replies fit if the limit allows.
    fn is_window_over(&self, elapsed: Duration) -> bool {
        let plan = &self.around.plan;
        let median = self.around.whole.median();
        let fits = || median.is_some_and(|median| elapsed >= median * WINDOW_REPLIES);
        elapsed >= WINDOW_MAX.max(plan.window) || (elapsed >= plan.window && fits())
    }

    /// Lets those connections begin to ask whose time it is; whether all may ask.
    fn release(&mut self, now: Instant) -> bool {
        let total = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        let is_paced = self.around.plan.every.is_some();
        while !self.around.pace.has_released(total) {
            if !is_paced && !self.rate.take(now) {
                return false;
            }
            if let Some(index) = self.around.pace.release(now, total)
                && !is_paced
            {
                self.work_on(index, |connection, around| connection.start(now, around));
            }
        }
        true
    }

    fn look_for_stall(&self, now: Instant) -> Result<Option<Ending>> {
        let plan = &self.around.plan;
        let is_late = matches!(self.phase, Phase::Connecting)
            && self
                .connect_began
                .is_some_and(|at| now.since(at) > CONNECT_MAX);
        let silence = plan.patience + self.around.pace.idle_max();
        if is_late || now.since(self.progress_at) > silence {
            self.give_up()?;
            return Ok(Some(Ending::Stalled));
        }
        Ok(None)
    }

    fn read_clock(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// One round; whether there was work.
    fn step(&mut self, now: Instant) -> Result<bool> {
        let mut work = self.receive(now)?;
        if self.server.is_none() {
            self.ask_for_server(now)?;
        } else {
            self.connect(now);
        }
        while let Some(index) = self.around.pace.take_alarm(now) {
            self.work_on(index, |connection, around| connection.start(now, around));
            work += 1;
        }
        self.visit(now);
        work += self.transmit(now)?;
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            for index in 0..self.opened {
                self.work_on(index, |connection, around| {
                    connection.handle_time(now, around);
                });
            }
        }
        if work > 0 {
            self.active_at = now;
        } else if now.since(self.active_at) > SPIN_FOR {
            self.sleep(now)?;
        }
        Ok(work > 0)
    }

    fn receive(&mut self, now: Instant) -> Result<usize> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        while count < BATCH_FRAMES
            && let Some(bytes) = self.tap.receive(&mut buffer)?
        {
            self.handle_frame(now, buffer.get(..bytes).unwrap_or_default())?;
            count += 1;
        }
        self.buffer = buffer;
        Ok(count)
    }

    fn handle_frame(&mut self, now: Instant, bytes: &[u8]) -> Result<()> {
        let Some((vnet, frame)) = bytes.split_first_chunk::<VNET_HEADER_BYTES>() else {
            return Ok(());
        };
        if !frame::is_tcp(frame) {
            return self.handle_neighbor(frame);
        }
        let addresses = self.around.plan.addresses;
        let found = frame::parse_tcp(frame).and_then(|(source, client, arrival)| {
            let header = &arrival.header;
            let is_server = (source, header.source_port) == (addresses.server, addresses.port);
            let index = addresses.connection(client, header.destination_port);
            Some((index.filter(|_| is_server)?, arrival))
        });
        let Some((index, mut arrival)) = found else {
            return Ok(());
        };
        if arrival.bytes > 0 {
            self.progress_at = now;
            self.around.counts.frames += 1;
        }
        let head;
        if arrival.seen.is_empty()
            && arrival.bytes as usize >= HEAD_TEXT_BYTES
            && let Some(text) = (self.around.watches).take_head(index, arrival.header.sequence)
        {
            head = text;
            arrival.seen = &head;
        }
        self.deliver(now, index, &arrival, frame::packet_bytes(vnet));
        Ok(())
    }

    /// Hands a segment, or what is not lost of it, to its connection.
    fn deliver(&mut self, now: Instant, index: u32, arrival: &Arrival<'_>, packet_bytes: u32) {
        let mut runs = Vec::new();
        let impairments = &mut self.around.plan.impairments;
        let lost = impairments.survivors(arrival.bytes, packet_bytes, |offset, bytes| {
            runs.push((offset, bytes));
        });
        self.around.counts.lost_packets += lost;
        for (offset, bytes) in runs {
            let mut header = arrival.header;
            header.sequence = header.sequence.wrapping_add(offset);
            if offset + bytes < arrival.bytes {
                header.flags = header.flags.difference(TcpFlags::FIN);
            }
            let seen = arrival.seen.get(offset as usize..).unwrap_or_default();
            let seen = seen.get(..bytes as usize).unwrap_or(seen);
            let part = Arrival {
                header,
                frame_start: arrival.frame_start,
                bytes,
                seen,
            };
            self.work_on(index, |connection, around| {
                connection.handle_segment(now, &part, around);
            });
        }
    }

    /// Has a connection do something, and keeps account of what became of it.
    fn work_on(&mut self, index: u32, work: impl FnOnce(&mut Connection, &mut Around)) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        self.around.current = index;
        let was_connecting = connection.is_connecting();
        work(connection, &mut self.around);
        if self.around.visits.has(index) {
            if let Some(is_completed) = self.around.visit_over.take() {
                self.end_visit(index, is_completed);
            }
            return;
        }
        match (was_connecting, connection.is_connecting()) {
            (true, false) => {
                self.connecting -= 1;
                self.progress_at = self.around.now;
            }
            (false, true) => self.connecting += 1,
            _ => {}
        }
        if let Some(fault) = self.around.failed.take() {
            let path = connection.path();
            let path = path.map(|path| self.around.plan.paths.path(path));
            let explanation = self.around.explanation.take();
            self.faults.add(fault, path, explanation.as_deref());
        }
    }

    fn handle_neighbor(&mut self, bytes: &[u8]) -> Result<()> {
        let mut answer = [0; HEADERS_BYTES_MAX];
        match frame::handle_neighbor(bytes, &self.around.plan.addresses, &mut answer) {
            Some(Neighbor::Server(mac)) => self.server = Some(mac),
            Some(Neighbor::Answer(bytes)) => {
                self.send_plain(answer.get(..bytes).unwrap_or_default())?;
            }
            None => {}
        }
        Ok(())
    }

    fn ask_for_server(&mut self, now: Instant) -> Result<()> {
        if now < self.ask_at {
            return Ok(());
        }
        self.ask_at = now + ASK_EVERY;
        let mut question = [0; HEADERS_BYTES_MAX];
        let bytes = frame::ask_for_server(&self.around.plan.addresses, &mut question);
        self.send_plain(question.get(..bytes).unwrap_or_default())
    }

    fn send_plain(&mut self, frame: &[u8]) -> Result<()> {
        self.tap.send([&[0; VNET_HEADER_BYTES], frame, &[]])
    }

    /// Opens connections, those that the server has closed first.
    fn connect(&mut self, now: Instant) {
        let total = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        while self.connecting < CONNECT_AT_ONCE
            && (self.opened < total || !self.around.reopen.is_empty())
            && self.rate.take(now)
        {
            self.connect_began.get_or_insert(now);
            let index = self.around.reopen.pop().unwrap_or_else(|| {
                self.opened += 1;
                self.opened - 1
            });
            self.work_on(index, |connection, around| connection.open(now, around));
        }
    }

    /// Lets visitors come whose time it is, and go who have been here for too long.
    fn visit(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Connecting | Phase::Starting) {
            return;
        }
        while let Some(index) = self.around.visits.take_late(now) {
            self.end_visit(index, false);
        }
        while let Some(index) = self.around.visits.begin(now) {
            self.work_on(index, |connection, around| connection.open(now, around));
        }
    }

    fn end_visit(&mut self, index: u32, is_completed: bool) {
        let around = &mut self.around;
        around.visits.end(index, is_completed);
        around.current = index;
        around.explanation = None;
        if let Some(connection) = self.connections.get_mut(index as usize) {
            connection.leave(around.now, around);
        }
    }

    /// The connections that are not visitors'.
    fn lasting(&self) -> &[Connection] {
        let visitors = self.around.visits.count() as usize;
        self.connections.get(visitors..).unwrap_or_default()
    }

    fn transmit(&mut self, now: Instant) -> Result<usize> {
        let Some(server) = self.server.filter(|_| now >= self.burst_at) else {
            return Ok(0);
        };
        let mut count = 0;
        while count < BATCH_FRAMES
            && let Some((index, transmit)) = self.around.outgoing.take_due(now)
        {
            self.send_segment(server, index, transmit)?;
            count += 1;
        }
        if count > 0 {
            self.burst_at = now + MODERATION;
        }
        Ok(count)
    }

    fn send_segment(&mut self, server: MacAddress, index: u32, transmit: Transmit) -> Result<()> {
        let addresses = self.around.plan.addresses;
        let (source, port) = addresses.of(index);
        let route = Route {
            source_mac: CLIENT_MAC,
            destination_mac: server,
            source: source.into(),
            destination: addresses.server.into(),
        };
        let mut segment = transmit.segment;
        segment.source_port = port;
        segment.destination_port = addresses.port;
        let text = match (&transmit.sealed, transmit.request) {
            (Some(sealed), _) => sealed,
            (None, Some(path)) => self.around.plan.paths.request(path).as_bytes(),
            (None, None) => &[],
        };
        let mut headers = [0; HEADERS_BYTES_MAX];
        let (vnet, bytes) = frame::emit_tcp(&mut headers, &route, &segment, text);
        let headers = headers.get(..bytes).unwrap_or_default();
        self.tap.send([&vnet, headers, text])
    }

    fn sleep(&mut self, now: Instant) -> Result<()> {
        let mut wake_at = (now + SLEEP_MAX).min(self.sweep_at);
        let due = [
            self.around.outgoing.next_due(),
            self.around.pace.next_alarm(),
        ];
        for due in due.into_iter().flatten() {
            wake_at = wake_at.min(due);
        }
        let wait = Timespec::try_from(wake_at.since(now)).context("a wait")?;
        let mut fds = [PollFd::new(&self.tap, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for frames"),
        }
    }

    fn all_connected(&self) -> bool {
        self.opened as usize == self.connections.len() && self.connecting == 0
    }

    /// Whether nothing is left to do: all asked and answered, or nobody left to ask.
    fn is_done(&self) -> bool {
        let nobody_waits = || !self.lasting().iter().any(Connection::is_waiting);
        let nobody_is_left = || !self.lasting().iter().any(Connection::is_open);
        let is_dead = self.all_connected() && self.around.reopen.is_empty() && nobody_is_left();
        is_dead || (self.around.plan.paths.is_over() && nobody_waits())
    }

    /// Says why nothing came, if nothing ever did.
    fn give_up(&self) -> Result<()> {
        let server = self.around.plan.addresses.server;
        if self.server.is_none() {
            bail!("nobody answers for {server}: is the server up, and on this interface?");
        }
        if self.around.counts.connects == 0 {
            let refused = self.around.counts.refused;
            bail!("{server} takes no connection ({refused} SYNs refused)");
        }
        Ok(())
    }

    fn mark(&self, at: Instant) -> Result<Mark> {
        let cores: Vec<usize> = self.around.plan.server_core.into_iter().collect();
        Ok(Mark {
            at,
            counts: self.around.counts,
            filter: self.tap.filter_cost()?,
            core: CoreTime::now(&cores)?.pop(),
            memory: self.memory.as_ref().map(MemoryBytes::now),
            working: self.working,
        })
    }

    fn report(&self, ended: Ending) -> Result<Report> {
        let end = self.mark(self.read_clock())?;
        let begin = match &self.phase {
            Phase::Window(mark) => mark.as_ref().clone(),
            _ => end.clone(),
        };
        let median = self.around.whole.median().unwrap_or_default();
        let counts = end.counts.since(&begin.counts);
        let seconds = end.at.since(begin.at).as_secs_f64();
        let working = end.working.saturating_sub(begin.working).as_secs_f64();
        let gigabytes = float(counts.body_bytes) / 1e9;
        let server_core = end
            .core
            .zip(begin.core)
            .map(|(end, begin)| end.since(begin));
        let dropped = self.tap.dropped_frames()? - self.dropped_before;
        Ok(Report {
            ended,
            is_valid: dropped == 0
                && self.faults.counts.is_empty()
                && counts.replies > 0
                && ended != Ending::Stalled,
            seconds,
            window_median_replies: ratio(seconds, median.as_secs_f64()),
            warm_share: self.warm_share,
            connections: u32::try_from(self.lasting().len()).unwrap_or(u32::MAX),
            sampled: self.around.plan.addresses.sampled,
            connections_open: self.lasting().iter().filter(|it| it.is_open()).count(),
            passes_begun: self.around.plan.paths.passes_begun(),
            gigabits_per_second: ratio(gigabytes * 8.0, seconds),
            counts,
            counts_since_start: end.counts,
            fairness: self.around.tallies.fairness(),
            visits: self.around.visits.report(),
            queue_dropped_frames: dropped,
            first_byte: self.around.first_byte.summary(),
            whole: self.around.whole.summary(),
            wire: WireCost {
                filter_runs: begin.filter.1,
                filter_ns: begin.filter.0,
            },
            client_core_working: ratio(working, seconds),
            server_core,
            memory: end
                .memory
                .zip(begin.memory)
                .map(|(end, begin)| end.since(&begin)),
            faults: self.faults.counts(),
            first_faults: self.faults.first.clone(),
        })
    }

    /// Ends all connections, so that the server keeps none of them.
    fn reset_all(&mut self) -> Result<()> {
        let now = self.read_clock();
        for index in 0..self.opened {
            self.work_on(index, |connection, around| connection.abort(now, around));
        }
        let Some(server) = self.server else {
            return Ok(());
        };
        let mut count = 0_usize;
        while let Some((index, transmit)) = self.around.outgoing.take_due(Instant::FAR_FUTURE) {
            self.send_segment(server, index, transmit)?;
            count += 1;
            if count.is_multiple_of(RESET_BURST) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}
