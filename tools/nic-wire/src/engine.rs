//! One thread that ties them: frames in, segments out, timers, the window that is measured.
//!
//! Each round takes what the TAP has, sends what is due, opens connections, and looks for what was
//! not answered every [`SWEEP_EVERY`]. While there is work it does not sleep, since a sleeping reader
//! would have to be woken by the server's core.
//!
//! It refuses to go on where nothing comes for as long as the caller's patience lasts. Bounds: the
//! constants below; the connections.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use clock::{Duration, Instant};
use load::cores::CoreTime;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};
use wire::{HEADERS_BYTES_MAX, MacAddress, Route, SeqNumber, TcpFlags};

use crate::client::{AckPolicy, Arrival, Connection, Event, Fault, Transmit, World};
use crate::frame::{self, Addresses, CLIENT_MAC, Neighbor, VNET_HEADER_BYTES};
use crate::impair::Impairments;
use crate::paths::Paths;
use crate::report::{Counts, Ending, Faults, Latency, Report, SCHEMA, WireCost, float, ratio};
use crate::samples::Samples;
use crate::schedule::{Distances, Schedule, mix};
use crate::tap::{FRAME_BYTES_MAX, Tap};

/// Frames received, and segments sent, in one round.
const BATCH_FRAMES: usize = 256;

/// Handshakes at once.
const CONNECTING_MAX: u32 = 256;

/// Overtaken frames that are held at once, and for how long.
const HELD_MAX: usize = 1024;
const HELD_FOR: Duration = Duration::from_millis(1);

/// How often unanswered SYNs and requests are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// How often the server's MAC address is asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long the thread goes round without work before it sleeps, and the longest sleep.
const SPIN_FOR: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// Resets sent at the end before a pause of a millisecond: what a kernel takes at once.
const RESET_BURST: usize = 64;

/// The MSS of frames of 1,500 bytes (RFC 9293 s3.7.1).
const MSS_V4: u16 = 1460;
const MSS_V6: u16 = 1440;

/// What a run needs beside the TAP.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) addresses: Addresses,
    pub(crate) paths: Paths,
    pub(crate) samples: Samples,
    pub(crate) impairments: Impairments,
    pub(crate) distances: Distances,
    pub(crate) policy: AckPolicy,
    pub(crate) moderation: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
    pub(crate) server_core: Option<usize>,
}

/// What all connections share.
#[derive(Debug)]
struct Around {
    plan: Plan,
    counts: Counts,
    first_byte: Latency,
    whole: Latency,
    outgoing: Schedule<(u32, Transmit)>,
    /// The connection at work.
    current: u32,
    now: Instant,
    failed: Option<Fault>,
    /// Connections to open again.
    reopen: Vec<u32>,
}

impl World for Around {
    fn next_path(&mut self) -> Option<u32> {
        self.plan.paths.take_next()
    }

    fn request_bytes(&self, path: u32) -> u32 {
        u32::try_from(self.plan.paths.request(path).len()).expect("invariant: paths are short")
    }

    fn object_bytes(&self, path: u32) -> Option<u64> {
        self.plan.paths.size(path)
    }

    fn is_content(&mut self, path: u32, offset: u64, bytes: &[u8]) -> bool {
        let name = self.plan.paths.path(path);
        self.plan.samples.is_content(path, name, offset, bytes)
    }

    fn send(&mut self, transmit: Transmit) {
        self.counts.requests += u64::from(transmit.request.is_some());
        let due = self.now + self.plan.distances.of(self.current);
        self.outgoing.push(due, (self.current, transmit));
    }

    fn on(&mut self, event: Event) {
        let counts = &mut self.counts;
        match event {
            Event::Connected => counts.connects += 1,
            Event::Refused => counts.refused += 1,
            Event::Resent => counts.resent += 1,
            Event::FirstByte(after) => self.first_byte.record(after),
            Event::Body(bytes) => counts.body_bytes += u64::from(bytes),
            Event::Replied(bytes, after) => {
                counts.replies += 1;
                if self.current >= self.plan.addresses.unsampled {
                    counts.verified_replies += 1;
                    counts.verified_bytes += bytes;
                }
                self.whole.record(after);
            }
            Event::Duplicate => counts.duplicate_segments += 1,
            Event::OutOfOrder => counts.out_of_order_segments += 1,
            Event::Unplaced => counts.unplaced_segments += 1,
            Event::GapFilled => counts.gaps_filled += 1,
            Event::ClosedByServer => {
                counts.closed_by_server += 1;
                self.reopen.push(self.current);
            }
            Event::Failed(fault) => self.failed = Some(fault),
        }
    }

    fn ack_policy(&self) -> AckPolicy {
        self.plan.policy
    }

    fn mss(&self) -> u16 {
        match self.plan.addresses.server {
            IpAddr::V4(_) => MSS_V4,
            IpAddr::V6(_) => MSS_V6,
        }
    }
}

/// What was so at the window's beginning.
#[derive(Clone, Debug)]
struct Mark {
    at: Instant,
    counts: Counts,
    filter: (u64, u64),
    core: Option<CoreTime>,
    cpu: Duration,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Engine {
    tap: Tap,
    connections: Vec<Connection>,
    around: Around,
    faults: Faults,
    held: Schedule<Vec<u8>>,
    buffer: Box<[u8]>,
    started: std::time::Instant,
    server: Option<MacAddress>,
    ask_at: Instant,
    /// Connections opened once at least.
    opened: u32,
    connecting: u32,
    burst_at: Instant,
    sweep_at: Instant,
    active_at: Instant,
    text_at: Instant,
    dropped_before: u64,
}

impl Engine {
    pub(crate) fn new(tap: Tap, plan: Plan) -> Result<Self> {
        let addresses = plan.addresses;
        let connection = |index: u32| {
            let initial = u32::try_from(mix(plan.seed ^ u64::from(index)) >> 32).unwrap_or(0);
            Connection::new(SeqNumber(initial), index >= addresses.unsampled)
        };
        let connections = (0..addresses.unsampled + addresses.sampled).map(connection);
        Ok(Self {
            dropped_before: tap.dropped_frames()?,
            tap,
            connections: connections.collect(),
            around: Around {
                plan,
                counts: Counts::default(),
                first_byte: Latency::default(),
                whole: Latency::default(),
                outgoing: Schedule::default(),
                current: 0,
                now: Instant::ZERO,
                failed: None,
                reopen: Vec::new(),
            },
            faults: Faults::default(),
            held: Schedule::default(),
            buffer: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            started: std::time::Instant::now(),
            server: None,
            ask_at: Instant::ZERO,
            opened: 0,
            connecting: 0,
            burst_at: Instant::ZERO,
            sweep_at: Instant::ZERO,
            active_at: Instant::ZERO,
            text_at: Instant::ZERO,
        })
    }

    /// Runs until the window is over, all is asked and answered, or `is_stopped`.
    pub(crate) fn run(&mut self, is_stopped: &AtomicBool) -> Result<Report> {
        let mut all_connected_at = None;
        let mut mark: Option<Mark> = None;
        let ending = loop {
            let now = self.read_clock();
            self.around.now = now;
            self.step(now)?;
            if self.all_connected() && all_connected_at.is_none() {
                all_connected_at = Some(now);
            }
            let warm_at = all_connected_at.map(|at| at + self.around.plan.warm_up);
            if mark.is_none() && warm_at.is_some_and(|at| now >= at) {
                mark = Some(self.begin_window(now)?);
            }
            let window = self.around.plan.window;
            if is_stopped.load(Ordering::Relaxed) {
                break Ending::Interrupted;
            }
            if mark.as_ref().is_some_and(|it| now >= it.at + window) {
                break Ending::Time;
            }
            if self.is_done() {
                break Ending::Done;
            }
            let patience = self.around.plan.patience;
            let is_late = all_connected_at.is_none() && now.since(Instant::ZERO) > patience;
            if is_late || now.since(self.text_at) > patience {
                self.give_up()?;
                break Ending::Stalled;
            }
        };
        let report = self.report(ending, mark);
        self.reset_all()?;
        report
    }

    fn read_clock(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// One round.
    fn step(&mut self, now: Instant) -> Result<()> {
        let mut work = self.receive(now)?;
        while let Some(bytes) = self.held.take_due(now) {
            self.handle_frame(now, &bytes, false)?;
            work += 1;
        }
        if self.server.is_none() {
            self.ask_for_server(now)?;
        } else {
            self.connect(now);
        }
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
        Ok(())
    }

    fn receive(&mut self, now: Instant) -> Result<usize> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        while count < BATCH_FRAMES
            && let Some(bytes) = self.tap.receive(&mut buffer)?
        {
            self.handle_frame(now, buffer.get(..bytes).unwrap_or_default(), true)?;
            count += 1;
        }
        self.buffer = buffer;
        Ok(count)
    }

    fn handle_frame(&mut self, now: Instant, bytes: &[u8], is_new: bool) -> Result<()> {
        let Some((vnet, frame)) = bytes.split_first_chunk::<VNET_HEADER_BYTES>() else {
            self.around.counts.unknown_frames += 1;
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
        let Some((index, arrival)) = found else {
            self.around.counts.unknown_frames += 1;
            return Ok(());
        };
        if arrival.bytes > 0 && is_new {
            self.text_at = now;
            self.around.counts.frames += 1;
            self.around.counts.frame_text_bytes += u64::from(arrival.bytes);
            if self.held.len() < HELD_MAX && self.around.plan.impairments.is_overtaken() {
                self.around.counts.overtaken_frames += 1;
                self.held.push(now + HELD_FOR, bytes.to_vec());
                return Ok(());
            }
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
        match (was_connecting, connection.is_connecting()) {
            (true, false) => self.connecting -= 1,
            (false, true) => self.connecting += 1,
            _ => {}
        }
        if let Some(fault) = self.around.failed.take() {
            let path = connection.path();
            let path = path.map(|path| self.around.plan.paths.path(path));
            self.faults.add(fault, path);
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
        let is_sent = self.tap.send([&[0; VNET_HEADER_BYTES], frame, &[]])?;
        self.around.counts.refused_frames += u64::from(!is_sent);
        Ok(())
    }

    /// Opens connections, those that the server has closed first.
    fn connect(&mut self, now: Instant) {
        let total = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        while self.connecting < CONNECTING_MAX {
            let index = if let Some(index) = self.around.reopen.pop() {
                index
            } else if self.opened < total {
                self.opened += 1;
                self.opened - 1
            } else {
                return;
            };
            self.work_on(index, |connection, around| connection.open(now, around));
        }
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
            self.burst_at = now + self.around.plan.moderation;
        }
        Ok(count)
    }

    fn send_segment(&mut self, server: MacAddress, index: u32, transmit: Transmit) -> Result<()> {
        let addresses = self.around.plan.addresses;
        let (source, port) = addresses.of(index);
        let route = Route {
            source_mac: CLIENT_MAC,
            destination_mac: server,
            source,
            destination: addresses.server,
        };
        let mut segment = transmit.segment;
        segment.source_port = port;
        segment.destination_port = addresses.port;
        let text = transmit
            .request
            .map_or("", |it| self.around.plan.paths.request(it));
        let mut headers = [0; HEADERS_BYTES_MAX];
        let (vnet, bytes) = frame::emit_tcp(&mut headers, &route, &segment, text.as_bytes());
        let headers = headers.get(..bytes).unwrap_or_default();
        let is_sent = self.tap.send([&vnet, headers, text.as_bytes()])?;
        self.around.counts.sent_segments += u64::from(is_sent);
        self.around.counts.refused_frames += u64::from(!is_sent);
        Ok(())
    }

    fn sleep(&mut self, now: Instant) -> Result<()> {
        let mut wake_at = (now + SLEEP_MAX).min(self.sweep_at);
        let due = [self.around.outgoing.next_due(), self.held.next_due()];
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
        let nobody_waits = || !self.connections.iter().any(Connection::is_waiting);
        let nobody_is_left = || !self.connections.iter().any(Connection::is_open);
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
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Ok(Mark {
            at,
            counts: self.around.counts,
            filter: self.tap.filter_cost()?,
            core: CoreTime::now(&cores)?.pop(),
            cpu: Duration::try_from(cpu).context("processor time")?,
        })
    }

    fn begin_window(&mut self, now: Instant) -> Result<Mark> {
        self.around.first_byte = Latency::default();
        self.around.whole = Latency::default();
        self.mark(now)
    }

    fn report(&self, ended: Ending, begin: Option<Mark>) -> Result<Report> {
        let end = self.mark(self.read_clock())?;
        let begin = begin.unwrap_or_else(|| end.clone());
        let counts = end.counts.since(&begin.counts);
        let seconds = end.at.since(begin.at).as_secs_f64();
        let gigabytes = float(counts.body_bytes) / 1e9;
        let server_core = end
            .core
            .zip(begin.core)
            .map(|(end, begin)| end.since(begin));
        let dropped = self.tap.dropped_frames()? - self.dropped_before;
        let heap = self.connections.iter().map(Connection::heap_bytes);
        let count = self.connections.len();
        let addresses = &self.around.plan.addresses;
        Ok(Report {
            schema: SCHEMA,
            ended,
            is_valid: dropped == 0
                && self.faults.counts.is_empty()
                && counts.replies > 0
                && ended != Ending::Stalled,
            seconds,
            connections: addresses.unsampled + addresses.sampled,
            sampled: addresses.sampled,
            connections_open: self.connections.iter().filter(|it| it.is_open()).count(),
            paths: self.around.plan.paths.count(),
            passes_begun: self.around.plan.paths.passes_begun(),
            gigabits_per_second: ratio(gigabytes * 8.0, seconds),
            replies_per_second: ratio(float(counts.replies), seconds),
            frame_bytes_mean: ratio(float(counts.frame_text_bytes), float(counts.frames)),
            counts,
            queue_dropped_frames: dropped,
            first_byte: self.around.first_byte.summary(),
            whole: self.around.whole.summary(),
            wire: WireCost {
                filter_runs: end.filter.1 - begin.filter.1,
                filter_ns: end.filter.0 - begin.filter.0,
                frames_to_server: counts.sent_segments,
            },
            client_core_seconds: end.cpu.saturating_sub(begin.cpu).as_secs_f64(),
            server_core,
            server_core_seconds_per_gigabyte: server_core.map(|it| ratio(it.busy, gigabytes)),
            connection_bytes: size_of::<Connection>() + heap.sum::<usize>() / count.max(1),
            faults: self.faults.counts.clone(),
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
