//! Peers that exhaust resources while they keep to TCP as far as a server can see: some hold a
//! connection open for ever, others make the server read much and take little of it.
//!
//! smoltcp would not do that; this is a small TCP of its own: it sends a piece at a time, takes
//! what arrives in order, and acknowledges what its [`Abuse`] says. What it receives is not
//! compared with anything: the clients do that.
//!
//! Those that hold connections test the server's timeouts. After the moment by which the server
//! must have given the connection up, the peer sends a segment that an open connection answers by
//! an ACK and a closed one by a reset. It refuses to wait longer than [`AbusivePeer::ends_by`], and
//! is silent after [`STAYS_MAX`]. Those that cause reads are checked by the world, which counts
//! what the disk read: see [`crate::world`].

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use clock::Instant;
use rustls::ClientConfig;
use wire::{
    ChecksumState, Incoming, MacAddress, Route, SackBlocks, SeqNumber, TcpFlags, TcpOptions,
    TcpRepr, parse_frame,
};

use crate::atlas::MAC;
use crate::client::Violation;
use crate::client::plan::{ObjectPlan, SecurePlan};
use crate::client::secure::{Secure, client_config};
use crate::crafted;
use crate::scenario::{PORT, SECURE_PORT, SERVER_V4, SERVER_V6};

/// Local port of every connection.
const SOURCE_PORT: u16 = 50_000;
/// The smallest segment the server chooses by itself (`tcp::SEGMENT_BYTES_MIN`).
const SEGMENT_BYTES: u16 = 536;
/// Most bytes of a request in one segment.
const PIECE_BYTES: usize = 500;
/// Its retransmission timeout.
const RESEND_AFTER: Duration = Duration::from_millis(700);
/// The next requests are sent when nothing has arrived for so long.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Most rounds of requests.
const ROUNDS_MAX: u32 = 60;
/// Ranges and pipelined requests of [`Conduct::TinyRanges`]: as many as the server serves.
const RANGES: u64 = 16;
const PIPELINE: usize = 8;
/// A peer that causes reads ends after this.
const READS_FOR: Duration = Duration::from_secs(5);
/// A peer that holds its connection is silent after this in any case.
const STAYS_MAX: Duration = Duration::from_secs(3000);
/// Added to the server's timeouts: round trips, timers that are not exact, a slow disk.
const SLACK: Duration = Duration::from_secs(30);
/// How long a server may wait for the ACK of its FIN, from when the FIN first arrives.
const FIN_TIMEOUT_MAX: Duration = Duration::from_secs(100);
/// How often, and how far apart, a peer probes whether the connection is still open.
const QUESTIONS_MAX: u32 = 5;
const ASKS_EACH: Duration = Duration::from_secs(1);

/// How a peer exhausts resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conduct {
    /// Takes its reply, never acknowledges the FIN behind it, and answers each FIN by a window of
    /// 0.
    ShutAtFin,
    /// Closes its window when the first data arrives, and answers every probe.
    Shut,
    /// Acknowledges one byte at a time.
    Drip {
        /// Time between two bytes.
        interval: Duration,
    },
    /// Never acknowledges the first byte, and answers all data.
    NeverFirst,
    /// Has a window of one small segment, and acknowledges at once.
    SmallWindow,
    /// Requests single bytes, far apart, in many ranges of many requests.
    TinyRanges,
}

/// One abusive peer.
#[derive(Clone, Debug)]
pub(crate) struct AbusivePlan {
    /// Its number, which makes its MAC address.
    pub(crate) number: u8,
    /// Its IP address.
    pub(crate) address: IpAddr,
    /// When it begins.
    pub(crate) starts: Instant,
    /// What it does.
    pub(crate) conduct: Conduct,
    /// Its TLS parameters; `None`: no TLS.
    pub(crate) secure: Option<SecurePlan>,
    /// The object it requests; larger than a few segments.
    pub(crate) object: ObjectPlan,
    /// The `send_timeout` of the server.
    pub(crate) send_timeout: Duration,
}

/// See the module.
pub(crate) struct AbusivePeer {
    plan: AbusivePlan,
    phase: Phase,
    secure: Option<Secure>,
    config: Option<Arc<ClientConfig>>,
    inbox: VecDeque<Vec<u8>>,
    /// Data that the server has not acknowledged, and SND.UNA.
    outbox: Vec<u8>,
    next: u32,
    resend_at: Instant,
    /// RCV.NXT as it is, and as the peer acknowledges it.
    rcv_nxt: u32,
    acked: u32,
    window: u16,
    has_asked: bool,
    rounds: u32,
    received_at: Instant,
    drips_at: Instant,
    /// By when the server must have ended the connection.
    ends_by: Option<Instant>,
    leaves_at: Instant,
    violation: Option<Violation>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Has not begun.
    Waiting,
    /// Has sent its SYN.
    Opening,
    /// The connection is open.
    Open,
    /// Probes whether the connection is still open.
    Asking(u32),
    /// Is silent.
    Over,
}

/// The MAC address of abusive peer `number`.
const fn mac_of(number: u8) -> [u8; 6] {
    [0x02, 0, 0, 0, 3, number]
}

impl AbusivePeer {
    pub(crate) fn new(plan: &AbusivePlan) -> Self {
        let starts = plan.starts;
        let wants_reads = matches!(plan.conduct, Conduct::SmallWindow | Conduct::TinyRanges);
        let stays = if wants_reads { READS_FOR } else { STAYS_MAX };
        let window = match plan.conduct {
            Conduct::SmallWindow => SEGMENT_BYTES,
            _ => u16::MAX,
        };
        Self {
            phase: Phase::Waiting,
            secure: None,
            config: (plan.secure.as_ref()).map(|tls| client_config(tls, plan.number.into())),
            inbox: VecDeque::new(),
            outbox: Vec::new(),
            next: u32::from(plan.number) << 20,
            resend_at: starts,
            rcv_nxt: 0,
            acked: 0,
            window,
            has_asked: false,
            rounds: 0,
            received_at: starts,
            drips_at: starts,
            ends_by: None,
            leaves_at: starts + stays,
            violation: None,
            plan: plan.clone(),
        }
    }

    /// Whether a frame to this MAC is for it.
    pub(crate) fn is_at(&self, mac: [u8; 6]) -> bool {
        mac == mac_of(self.plan.number)
    }

    /// A frame arrived; the next `poll` handles it.
    pub(crate) fn handle_frame(&mut self, frame: Vec<u8>) {
        if self.phase != Phase::Over {
            self.inbox.push_back(frame);
        }
    }

    /// Does everything that is due at `now`. Returns whether anything was.
    pub(crate) fn poll(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) -> bool {
        let mut moved = false;
        while let Some(frame) = self.inbox.pop_front() {
            moved = true;
            if let Ok(Incoming::Tcp {
                segment, payload, ..
            }) = parse_frame(&frame, ChecksumState::Unverified)
                && segment.destination_port == SOURCE_PORT
            {
                self.handle_segment(now, &segment, payload, sink);
            }
        }
        while self.poll_at().is_some_and(|due| due <= now) {
            moved = true;
            self.act(now, sink);
        }
        moved
    }

    /// When `poll` next has work.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        if !self.inbox.is_empty() {
            return Some(Instant::ZERO);
        }
        let due = match self.phase {
            Phase::Over => return None,
            Phase::Waiting | Phase::Opening | Phase::Asking(_) => self.resend_at,
            Phase::Open => {
                let resend = (!self.outbox.is_empty()).then_some(self.resend_at);
                let again = self.asks_again_at();
                let drip = self.drips().then_some(self.drips_at);
                let others = [resend, again, drip, self.ends_by];
                let others = others.into_iter().flatten().min();
                others.map_or(self.leaves_at, |at| at.min(self.leaves_at))
            }
        };
        Some(due)
    }

    /// Whether it has nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Over
    }

    /// A connection that was still open after the timeouts of the server.
    pub(crate) const fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    fn act(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        match self.phase {
            Phase::Waiting | Phase::Opening if now >= self.leaves_at => self.phase = Phase::Over,
            Phase::Waiting | Phase::Opening => {
                self.phase = Phase::Opening;
                self.resend_at = now + RESEND_AFTER;
                sink(self.segment(self.next, TcpFlags::SYN, &[]));
            }
            Phase::Asking(QUESTIONS_MAX) => self.phase = Phase::Over,
            Phase::Asking(asked) => {
                self.phase = Phase::Asking(asked + 1);
                self.resend_at = now + ASKS_EACH;
                // RFC 9293 s3.8.4: a segment before the window is answered.
                sink(self.segment(self.next.wrapping_sub(1), TcpFlags::ACK, &[]));
            }
            Phase::Open if self.leaves_at <= now => self.phase = Phase::Over,
            Phase::Open if self.ends_by.is_some_and(|at| at <= now) => {
                self.phase = Phase::Asking(0);
                self.resend_at = now;
            }
            Phase::Open => self.send_due(now, sink),
            Phase::Over => {}
        }
    }

    fn send_due(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        if self.drips() && self.drips_at <= now {
            if let Conduct::Drip { interval } = self.plan.conduct {
                self.drips_at = now + interval;
            }
            self.acked = self.acked.wrapping_add(1);
            sink(self.acknowledgment());
        }
        if self.asks_again_at().is_some_and(|at| at <= now) {
            self.rounds += 1;
            self.ask(now, sink);
        }
        if !self.outbox.is_empty() && self.resend_at <= now {
            self.send_piece(now, sink);
        }
    }

    fn drips(&self) -> bool {
        let drips = matches!(self.plan.conduct, Conduct::Drip { .. });
        drips && self.ends_by.is_some() && self.acked != self.rcv_nxt
    }

    /// When the next requests are sent: the peer causes reads, and all replies have arrived.
    fn asks_again_at(&self) -> Option<Instant> {
        let wants_reads = matches!(
            self.plan.conduct,
            Conduct::SmallWindow | Conduct::TinyRanges
        );
        let asks =
            wants_reads && self.has_asked && self.outbox.is_empty() && self.rounds < ROUNDS_MAX;
        asks.then(|| self.received_at + ASKS_AGAIN_AFTER)
    }

    fn handle_segment(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload: &[u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) {
        if segment.flags.contains(TcpFlags::RST) {
            self.phase = Phase::Over;
            return;
        }
        match self.phase {
            Phase::Opening if segment.flags.contains(TcpFlags::SYN) => {
                self.next = self.next.wrapping_add(1);
                self.rcv_nxt = segment.sequence.0.wrapping_add(1);
                self.acked = self.rcv_nxt;
                self.phase = Phase::Open;
                self.received_at = now;
                sink(self.acknowledgment());
                match &self.config {
                    Some(config) => self.secure = Some(Secure::new(config)),
                    None => self.ask(now, sink),
                }
                self.take_output(now, sink);
            }
            Phase::Open => {
                self.handle_acknowledgment(now, segment, sink);
                self.handle_data(now, segment, payload, sink);
            }
            Phase::Asking(_) => {
                let (number, conduct) = (self.plan.number, self.plan.conduct);
                self.violation = Some(format!(
                    "the connection of abusive peer {number} is still open, {conduct:?}"
                ));
                self.phase = Phase::Over;
            }
            _ => {}
        }
    }

    fn handle_acknowledgment(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        sink: &mut dyn FnMut(Vec<u8>),
    ) {
        let acknowledged = segment.acknowledgment.0.wrapping_sub(self.next);
        let acknowledged = usize::try_from(acknowledged).unwrap_or(usize::MAX);
        if (1..=self.outbox.len()).contains(&acknowledged) {
            self.outbox.drain(..acknowledged);
            self.next = segment.acknowledgment.0;
            if !self.outbox.is_empty() {
                self.send_piece(now, sink);
            }
        }
    }

    fn handle_data(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload: &[u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) {
        let is_fin = segment.flags.contains(TcpFlags::FIN);
        let is_probe = segment.sequence.0 == self.acked.wrapping_sub(1);
        if payload.is_empty() && !is_fin && !is_probe {
            return;
        }
        let known = self.rcv_nxt.wrapping_sub(segment.sequence.0);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        if let Some(new) = payload.get(known..).filter(|new| !new.is_empty()) {
            self.received_at = now;
            let new = new.to_vec();
            self.take_data(now, &new, sink);
        }
        if is_fin && self.plan.conduct == Conduct::ShutAtFin {
            self.window = 0;
            self.ends_by.get_or_insert(now + FIN_TIMEOUT_MAX + SLACK);
        }
        sink(self.acknowledgment());
    }

    /// Data in order: its content matters only during the TLS handshake.
    fn take_data(&mut self, now: Instant, text: &[u8], sink: &mut dyn FnMut(Vec<u8>)) {
        let length = u32::try_from(text.len()).expect("invariant: one frame");
        self.rcv_nxt = self.rcv_nxt.wrapping_add(length);
        if !self.has_asked {
            self.acked = self.rcv_nxt;
            if let Some(secure) = &mut self.secure {
                // An alert is as good as silence.
                let _ = secure.handle_bytes(text, &mut |_| Ok(()));
            }
            self.take_output(now, sink);
            if self.secure.as_ref().is_some_and(Secure::is_ready) {
                self.ask(now, sink);
            }
            return;
        }
        match self.plan.conduct {
            Conduct::ShutAtFin | Conduct::SmallWindow | Conduct::TinyRanges => {
                self.acked = self.rcv_nxt;
            }
            Conduct::Shut => self.window = 0,
            Conduct::Drip { .. } | Conduct::NeverFirst => {}
        }
        let stays = matches!(
            self.plan.conduct,
            Conduct::Shut | Conduct::Drip { .. } | Conduct::NeverFirst
        );
        if stays && self.ends_by.is_none() {
            self.ends_by = Some(now + self.plan.send_timeout + SLACK);
            self.drips_at = now;
        }
    }

    /// Sends the requests of its kind of abuse.
    fn ask(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        self.has_asked = true;
        self.received_at = now;
        let path = self.plan.object.path();
        let fields = match self.plan.conduct {
            Conduct::ShutAtFin => "Range: bytes=0-3000\r\nConnection: close\r\n".to_owned(),
            Conduct::TinyRanges => {
                let apart = self.plan.object.size_bytes / RANGES;
                let ranges: Vec<_> = (0..RANGES).map(|n| format!("{0}-{0}", n * apart)).collect();
                format!("Range: bytes={}\r\n", ranges.join(","))
            }
            _ => String::new(),
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: abusive\r\n{fields}\r\n");
        let count = match self.plan.conduct {
            Conduct::TinyRanges => PIPELINE,
            _ => 1,
        };
        let text = request.repeat(count);
        match &mut self.secure {
            Some(secure) => secure.write(text.as_bytes()),
            None => self.outbox.extend_from_slice(text.as_bytes()),
        }
        self.take_output(now, sink);
    }

    fn take_output(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        if let Some(secure) = &mut self.secure {
            secure.take_output(&mut self.outbox);
        }
        if !self.outbox.is_empty() {
            self.send_piece(now, sink);
        }
    }

    fn send_piece(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        self.resend_at = now + RESEND_AFTER;
        let piece = &self.outbox[..self.outbox.len().min(PIECE_BYTES)];
        sink(self.segment(self.next, TcpFlags::ACK.union(TcpFlags::PSH), piece));
    }

    fn acknowledgment(&self) -> Vec<u8> {
        self.segment(self.next, TcpFlags::ACK, &[])
    }

    fn segment(&self, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let is_syn = flags.contains(TcpFlags::SYN);
        let mut sack = SackBlocks::default();
        let missing = self.acked.wrapping_add(1);
        let reported_bytes = self.rcv_nxt.wrapping_sub(missing);
        if self.plan.conduct == Conduct::NeverFirst && (1..1 << 30).contains(&reported_bytes) {
            sack.push(SeqNumber(missing), SeqNumber(self.rcv_nxt));
        }
        let segment = TcpRepr {
            source_port: SOURCE_PORT,
            destination_port: if self.plan.secure.is_some() {
                SECURE_PORT
            } else {
                PORT
            },
            sequence: SeqNumber(sequence),
            acknowledgment: SeqNumber(self.acked),
            flags,
            window: self.window,
            options: TcpOptions {
                mss: is_syn.then_some(SEGMENT_BYTES),
                sack_permitted: is_syn,
                sack,
                ..TcpOptions::default()
            },
        };
        let server = if self.plan.address.is_ipv4() {
            SERVER_V4.into()
        } else {
            SERVER_V6.into()
        };
        let route = Route {
            source_mac: MacAddress(mac_of(self.plan.number)),
            destination_mac: MAC,
            source: self.plan.address,
            destination: server,
        };
        crafted::tcp(&route, &segment, payload)
    }
}
