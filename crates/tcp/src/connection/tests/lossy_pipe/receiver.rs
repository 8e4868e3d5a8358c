//! The peer: a receiver as plain as can be. It sends one request, takes the reply, closes.
//!
//! A FIN is a byte like others: the one after the stream's last.

use clock::{Duration, Instant};
use wire::{SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::super::{IRS, MSS, peer_stamp, range, sequence, tuple};
use super::server::offset_near;
use super::{Case, Packet, Pipe, START};

/// Bytes of the request.
const REQUEST_BYTES: u64 = 200;
/// Blocks of a SACK option beside timestamps.
const BLOCKS_MAX: usize = 3;
/// When what the peer sends is sent again.
const RESEND: Duration = Duration::from_millis(700);

pub(super) struct Receiver {
    case: Case,
    /// RCV.NXT as an offset.
    next: u64,
    /// What came above a hole, in stream order, apart from each other.
    held: Vec<(u64, u64)>,
    /// Where the latest segment taken begins.
    latest: u64,
    /// TS.Recent and Last.ACK.sent (RFC 7323 s4.3).
    recent: u32,
    last_ack_sent: u64,
    /// In order, not yet read by the application.
    unread: u64,
    capacity: u64,
    /// Right edge of the window as last advertised, and the furthest ever.
    edge: u64,
    furthest_edge: u64,
    /// Segments not acknowledged yet, and when they must be.
    unacknowledged: u32,
    ack_at: Option<Instant>,
    read_at: Option<Instant>,
    /// What we send: how far it was acknowledged, how far sent, and when it goes again. The FIN is
    /// its last byte.
    una: u64,
    nxt: u64,
    resend_at: Instant,
    is_finishing: bool,
}

impl Receiver {
    pub(super) fn new(case: &Case) -> Self {
        let mut receiver = Self {
            case: *case,
            next: 0,
            held: Vec::new(),
            latest: 0,
            recent: 0,
            last_ack_sent: 0,
            unread: 0,
            capacity: case.capacity,
            edge: 0,
            furthest_edge: 0,
            unacknowledged: 0,
            ack_at: None,
            read_at: None,
            una: 0,
            nxt: 0,
            resend_at: START,
            is_finishing: case.half_closes,
        };
        receiver.edge = receiver.raw_window_bytes(case.capacity);
        receiver.furthest_edge = receiver.edge;
        receiver
    }

    /// Bytes of the stream taken in order, the FIN included.
    pub(super) fn taken(&self) -> u64 {
        self.next
    }

    pub(super) fn furthest_edge(&self) -> u64 {
        self.furthest_edge
    }

    /// SEG.WND of the handshake's ACK.
    pub(super) fn raw_window(&self) -> u16 {
        u16::try_from(self.edge >> self.shift()).unwrap()
    }

    fn shift(&self) -> u8 {
        self.case.window_shift.unwrap_or(0)
    }

    /// What of `bytes` a header can say.
    fn raw_window_bytes(&self, bytes: u64) -> u64 {
        (bytes >> self.shift()).min(u64::from(u16::MAX)) << self.shift()
    }

    pub(super) fn handle_packet(&mut self, pipe: &mut Pipe, packet: Packet) {
        let (header, range) = (packet.header, packet.range);
        let acknowledged = header.acknowledgment.distance(IRS.wrapping_add(1));
        self.una = self.una.max(u64::try_from(acknowledged).unwrap());
        let start = offset_near(header.sequence, self.next);
        if range.is_empty() {
            // RFC 9293 s3.10.7.4: what lies outside the window is answered.
            if start < i64::try_from(self.next).unwrap() {
                self.acknowledge(pipe, None);
            }
            return;
        }
        assert_eq!(
            u64::try_from(start),
            Ok(range.start.0),
            "the sequence number fits"
        );
        if let Some(stamp) = header.options.timestamps
            && range.end.0 > self.next
            && range.start.0 <= self.last_ack_sent
        {
            self.recent = self.recent.max(stamp.value);
        }
        self.take(pipe, range.start.0, range.end.0);
    }

    fn take(&mut self, pipe: &mut Pipe, start: u64, end: u64) {
        if self.has(start, end) {
            self.acknowledge(pipe, Some((start, end)));
            return;
        }
        let room_end = self.next + self.capacity.saturating_sub(self.unread);
        let end = end.min(room_end);
        if start >= end {
            self.acknowledge(pipe, None);
            return;
        }
        let had_holes = !self.held.is_empty();
        let before = self.next;
        self.latest = start;
        self.insert(start, end);
        self.unread += self.next - before;
        self.read(pipe.now);
        if self.next > self.case.stream_bytes {
            self.is_finishing = true;
        }
        self.unacknowledged += 1;
        let at_once = had_holes
            || self.next == before
            || self.unacknowledged >= 2
            || self.case.ack_delay.is_zero();
        if at_once {
            self.acknowledge(pipe, None);
        } else if self.ack_at.is_none() {
            self.ack_at = Some(pipe.now + self.case.ack_delay);
        }
    }

    fn has(&self, start: u64, end: u64) -> bool {
        end <= self.next || self.held.iter().any(|run| run.0 <= start && end <= run.1)
    }

    fn insert(&mut self, start: u64, end: u64) {
        self.held.push((start.max(self.next), end));
        self.held.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for run in self.held.drain(..) {
            match merged.last_mut() {
                Some(last) if run.0 <= last.1 => last.1 = last.1.max(run.1),
                _ => merged.push(run),
            }
        }
        if merged.first().is_some_and(|first| first.0 <= self.next) {
            self.next = merged.remove(0).1;
        }
        self.held = merged;
    }

    /// The application reads, now or later.
    fn read(&mut self, now: Instant) {
        match self.case.read {
            None => self.unread = 0,
            Some((pause, _)) => {
                if self.unread > 0 && self.read_at.is_none() {
                    self.read_at = Some(now + pause);
                }
            }
        }
    }

    pub(super) fn work(&mut self, pipe: &mut Pipe) {
        if self.case.reneges && pipe.rng.chance(10) {
            self.held.clear();
        }
        if self.case.shrinks && pipe.rng.chance(10) {
            self.capacity = pipe.rng.between(500, self.case.capacity.max(500));
        }
        if self.read_at.is_some_and(|at| at <= pipe.now) {
            self.read_at = None;
            let most = self.case.read.map_or(u64::MAX, |(_, bytes)| bytes);
            self.unread = self.unread.saturating_sub(most);
            self.read(pipe.now);
            // RFC 9293 s3.8.6.2.2: only an edge that moves by something is worth a word.
            if self.edge_to_offer() > self.edge {
                self.acknowledge(pipe, None);
            }
        }
        if self.ack_at.is_some_and(|at| at <= pipe.now) {
            self.acknowledge(pipe, None);
        }
        if self.una < self.send_end() && self.resend_at <= pipe.now {
            self.resend_at = pipe.now + RESEND;
            self.send_request(pipe);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let resend = (self.una < self.send_end()).then_some(self.resend_at);
        [self.ack_at, self.read_at, resend]
            .into_iter()
            .flatten()
            .min()
    }

    fn send_end(&self) -> u64 {
        REQUEST_BYTES + u64::from(self.is_finishing)
    }

    fn send_request(&mut self, pipe: &mut Pipe) {
        self.nxt = self.send_end();
        let sent = range(self.una, self.nxt);
        let mut header = self.header(pipe, None);
        header.sequence = IRS
            .wrapping_add(1)
            .wrapping_add(u32::try_from(self.una).unwrap());
        if self.is_finishing {
            header.flags = header.flags.union(TcpFlags::FIN);
        }
        pipe.send_to_server(Packet {
            header,
            range: sent,
        });
    }

    fn acknowledge(&mut self, pipe: &mut Pipe, duplicate: Option<(u64, u64)>) {
        let header = self.header(pipe, duplicate);
        pipe.send_to_server(Packet {
            header,
            range: range(0, 0),
        });
    }

    fn header(&mut self, pipe: &mut Pipe, duplicate: Option<(u64, u64)>) -> TcpRepr {
        self.unacknowledged = 0;
        self.ack_at = None;
        let offered = self.edge_to_offer();
        let window = self.raw_window_bytes(offered - self.next);
        self.edge = self.next + window;
        self.furthest_edge = self.furthest_edge.max(self.edge);
        self.last_ack_sent = self.next;
        let sent = u32::try_from(self.nxt).unwrap();
        TcpRepr {
            source_port: tuple().peer.port(),
            destination_port: tuple().local.port(),
            sequence: IRS.wrapping_add(1).wrapping_add(sent),
            acknowledgment: sequence(u32::try_from(self.next).unwrap()),
            flags: TcpFlags::ACK,
            window: u16::try_from(window >> self.shift()).unwrap(),
            options: TcpOptions {
                timestamps: self.case.timestamps.then(|| Timestamps {
                    echo: self.recent,
                    ..peer_stamp(pipe.now)
                }),
                sack: self.blocks(duplicate),
                ..TcpOptions::default()
            },
        }
    }

    /// The right edge to advertise: it moves by a segment or half the buffer, or not at all.
    fn edge_to_offer(&self) -> u64 {
        let room = self.next + self.capacity.saturating_sub(self.unread);
        let step = MSS.min(self.capacity / 2);
        let edge = self.edge.max(self.next);
        if room < edge && self.case.shrinks {
            return room.max(self.next);
        }
        if room >= edge + step { room } else { edge }
    }

    /// A duplicate first (RFC 2883 s4), then the run the latest segment is in (RFC 2018 s4), then
    /// others.
    fn blocks(&self, duplicate: Option<(u64, u64)>) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if !self.case.sack {
            return blocks;
        }
        let edge = |offset: u64| sequence(u32::try_from(offset).unwrap());
        let mut count = 0;
        if let Some((start, end)) = duplicate {
            blocks.push(edge(start), edge(end));
            count += 1;
        }
        let held = self.held.len();
        let is_latest = |run: &(u64, u64)| run.0 <= self.latest && self.latest < run.1;
        let first = self.held.iter().position(is_latest).unwrap_or(0);
        for index in 0..held.min(BLOCKS_MAX - count) {
            let (start, end) = self.held[(first + index) % held];
            blocks.push(edge(start), edge(end));
        }
        blocks
    }
}
