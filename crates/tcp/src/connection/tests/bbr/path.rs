//! A bottleneck that flows share: a rate, a drop-tail buffer, a delay, losses at even distances, and a
//! disk in front of each flow. Packets of 1000 bytes; receivers acknowledge each at once, with SACK.

use std::collections::{BTreeMap, VecDeque};

use clock::{Duration, Instant};

use super::super::{Config, Driver, MSS, PEER, Peer, Segment, ack};
use crate::congestion::CongestionControl;
use crate::connection::{Claim, Credit};
use crate::verdict::Outcome;

/// Bytes of headers of each packet on the wire.
const HEADER_BYTES: u64 = 40;
/// Most SACK blocks of an ACK.
const SACK_BLOCKS: usize = 3;

const WIDE: Peer = Peer {
    window: u16::MAX,
    window_shift: Some(10),
    ..PEER
};

/// What flows share.
#[derive(Clone, Copy)]
pub(super) struct Path {
    /// Bytes a second.
    pub(super) rate: u64,
    /// Bytes that wait before the bottleneck.
    pub(super) buffer: u64,
    pub(super) rtt: Duration,
    /// Every so many packets one is lost; 0: none.
    pub(super) loses_every: u64,
    /// How long each read takes.
    pub(super) disk: Duration,
}

/// A sender, its reads under way, and its receiver.
pub(super) struct Flow {
    pub(super) driver: Driver,
    starts: Instant,
    reads: VecDeque<(Instant, Claim)>,
    /// Received in order up to here.
    pub(super) received: u64,
    /// Received beyond a hole, in order.
    held: Vec<(u64, u64)>,
}

enum Due {
    Data(usize, u64, u64),
    Ack(usize, Segment),
}

pub(super) struct World {
    pub(super) path: Path,
    pub(super) flows: Vec<Flow>,
    pub(super) now: Instant,
    /// Nothing is claimed before.
    pub(super) hangs_until: Instant,
    agenda: BTreeMap<(Instant, u64), Due>,
    events: u64,
    free_at: Instant,
    queue: VecDeque<(Instant, u64)>,
    packets: u64,
    pub(super) dropped: u64,
    /// Sum over packets of the bytes that waited before them, and their number.
    pub(super) queued: (u64, u64),
}

impl World {
    /// Flows of this algorithm that start at these times after the first.
    pub(super) fn new(path: Path, congestion: CongestionControl, starts: &[Duration]) -> Self {
        let config = Config {
            congestion,
            ..Config::default()
        };
        let flow = |delay: &Duration| {
            let driver = Driver::configured(WIDE, config);
            Flow {
                starts: driver.now + *delay,
                driver,
                reads: VecDeque::new(),
                received: 0,
                held: Vec::new(),
            }
        };
        let flows: Vec<Flow> = starts.iter().map(flow).collect();
        Self {
            path,
            now: flows[0].driver.now,
            flows,
            hangs_until: Instant::ZERO,
            agenda: BTreeMap::new(),
            events: 0,
            free_at: Instant::ZERO,
            queue: VecDeque::new(),
            packets: 0,
            dropped: 0,
            queued: (0, 0),
        }
    }

    /// Lets time pass, and calls `observe` at each event.
    pub(super) fn run(&mut self, time: Duration, mut observe: impl FnMut(&Self)) {
        let end = self.now + time;
        loop {
            while let Some(entry) = self.agenda.first_entry()
                && entry.key().0 <= self.now
            {
                match entry.remove() {
                    Due::Data(flow, start, to) => self.receive(flow, start, to),
                    Due::Ack(flow, segment) => self.flows[flow].driver.accept(segment),
                }
            }
            let mut next = end;
            for flow in 0..self.flows.len() {
                next = next.min(self.serve(flow).unwrap_or(end));
            }
            if let Some((key, _)) = self.agenda.first_key_value() {
                next = next.min(key.0);
            }
            observe(self);
            if next >= end {
                self.advance(end);
                return;
            }
            self.advance(next.max(self.now));
        }
    }

    fn advance(&mut self, to: Instant) {
        self.now = to;
        for flow in &mut self.flows {
            flow.driver.at(to);
        }
    }

    /// Timers, reads and credit of a flow. Returns when it next has something to do.
    fn serve(&mut self, index: usize) -> Option<Instant> {
        let (now, disk) = (self.now, self.path.disk);
        let flow = &mut self.flows[index];
        if flow.starts > now {
            return Some(flow.starts);
        }
        if flow
            .driver
            .connection
            .poll_timeout()
            .is_some_and(|at| at <= now)
        {
            assert_eq!(flow.driver.expire(), Outcome::Open);
        }
        let is_hanging = self.hangs_until > now;
        let mut paced_until = is_hanging.then_some(self.hangs_until);
        loop {
            let credit = match is_hanging {
                true => Credit::Nothing,
                false => flow.driver.connection.credit(now),
            };
            match credit {
                Credit::Now(demand) => {
                    let end = demand.range.end;
                    let claim = flow.driver.connection.claim(now, demand, end);
                    flow.reads.push_back((now + disk, claim));
                }
                Credit::From(at) => {
                    paced_until = Some(at);
                    break;
                }
                Credit::Nothing => break,
            }
        }
        let mut sent = Vec::new();
        while flow.reads.front().is_some_and(|(at, _)| *at <= now) {
            let (_, claim) = flow.reads.pop_front().expect("it was there");
            while let Some(admitted) = flow.driver.connection.admit(&claim) {
                let range = admitted.range();
                flow.driver.connection.on_transmitted(now, admitted);
                sent.push((range.start.0, range.end.0));
            }
        }
        let read_at = flow.reads.front().map(|(at, _)| *at);
        let timer_at = flow.driver.connection.poll_timeout();
        for (start, end) in sent {
            for at in (start..end).step_by(usize::try_from(MSS).expect("small")) {
                self.enqueue(index, at, (at + MSS).min(end));
            }
        }
        [paced_until, read_at, timer_at].into_iter().flatten().min()
    }

    /// A packet enters the bottleneck.
    fn enqueue(&mut self, flow: usize, start: u64, end: u64) {
        while self.queue.front().is_some_and(|(at, _)| *at <= self.now) {
            self.queue.pop_front();
        }
        let waiting: u64 = self.queue.iter().map(|(_, bytes)| *bytes).sum();
        self.queued = (self.queued.0 + waiting, self.queued.1 + 1);
        self.packets += 1;
        let bytes = end - start + HEADER_BYTES;
        let every = self.path.loses_every;
        let is_lost = every > 0 && self.packets.is_multiple_of(every);
        if is_lost || (waiting + bytes > self.path.buffer && waiting > 0) {
            self.dropped += 1;
            return;
        }
        let nanos = bytes * 1_000_000_000 / self.path.rate;
        self.free_at = self.free_at.max(self.now) + Duration::from_nanos(nanos);
        self.queue.push_back((self.free_at, bytes));
        let arrival = self.free_at + self.path.rtt / 2;
        self.schedule(arrival, Due::Data(flow, start, end));
    }

    fn schedule(&mut self, at: Instant, due: Due) {
        self.events += 1;
        self.agenda.insert((at, self.events), due);
    }

    /// A packet reaches its receiver, which answers.
    fn receive(&mut self, index: usize, start: u64, end: u64) {
        let flow = &mut self.flows[index];
        if end > flow.received {
            flow.held.push((start, end));
            flow.held.sort_unstable();
            let mut merged: Vec<(u64, u64)> = Vec::new();
            for (start, end) in flow.held.drain(..) {
                match merged.last_mut() {
                    Some(last) if start <= last.1 => last.1 = last.1.max(end),
                    _ => merged.push((start, end)),
                }
            }
            flow.held = merged;
        }
        if let Some((first, to)) = flow.held.first().copied()
            && first <= flow.received
        {
            flow.received = flow.received.max(to);
            flow.held.remove(0);
        }
        let mut segment = ack(i64::try_from(flow.received).expect("small")).window(u16::MAX);
        // The block that changed comes first, then the others.
        let changed = flow.held.iter().filter(|it| it.0 <= start && end <= it.1);
        let others = flow
            .held
            .iter()
            .filter(|it| !(it.0 <= start && end <= it.1));
        for (start, end) in changed.chain(others).take(SACK_BLOCKS) {
            let offset = |at: &u64| u32::try_from(*at).expect("small");
            segment = segment.sack(offset(start), offset(end));
        }
        self.schedule(self.now + self.path.rtt / 2, Due::Ack(index, segment));
    }
}
