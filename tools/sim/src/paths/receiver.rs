//! A receiver as today's are: cumulative ACKs, several SACK blocks and DSACKs, timestamps, window
//! scale, delayed ACKs, echoes of marks (ECN). It requests ranges of one object, one after the other.
//!
//! smoltcp reports one SACK block and no duplicates, so this is a TCP of its own. It compares no
//! byte with the object: the clients of the other scenarios do that. It refuses to have more than one
//! request outstanding. Bounded by its plan; it ends when all replies are whole, when it is reset, or
//! at [`ReceiverPlan::leaves_after`].

use core::net::{IpAddr, Ipv4Addr};

use clock::{Duration, Instant};
use wire::{
    ChecksumState, Ecn, Incoming, MacAddress, Route, SackBlocks, SeqNumber, TcpFlags, TcpOptions,
    TcpRepr, Timestamps, parse_frame,
};

use super::ranges::Ranges;
use crate::atlas::MAC;
use crate::crafted;
use crate::scenario::{PORT, SERVER_V4};

/// Its MAC address.
pub(crate) const RECEIVER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 4, 1]);
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 4, 1));
const SOURCE_PORT: u16 = 41_000;
/// MSS of Ethernet with IPv4.
const MSS: u16 = 1460;
/// Delay of an ACK (Linux).
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(40);
/// SACK blocks beside timestamps (RFC 2018 s3), and without.
const BLOCKS_BESIDE_TIMESTAMPS: usize = 3;
/// ISS, and the first timestamp: both wrap soon.
const ISS: u32 = u32::MAX - 100;
const CLOCK_START: u32 = u32::MAX - 5000;

/// When an ACK of data in order is sent; other segments are acknowledged at once (RFC 5681 s4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckPolicy {
    /// One for each n segments, or after [`ACK_DELAY`].
    Every(u32),
    /// One for all segments that arrived at one moment, if they are two or more (receive offload);
    /// a single one is delayed.
    Burst,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestPlan {
    /// From the end of the last reply until it is sent.
    pub(crate) pause: Duration,
    /// Bytes it requests.
    pub(crate) bytes: u64,
}

/// What a receiver does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReceiverPlan {
    /// Its window, which is always open.
    pub(crate) window_bytes: u64,
    /// SACK blocks in an ACK; 0: no SACK.
    pub(crate) sack_blocks: usize,
    /// Whether it reports duplicates (RFC 2883).
    pub(crate) reports_duplicates: bool,
    /// Whether it offers timestamps.
    pub(crate) timestamps: bool,
    /// Whether it asks for ECN.
    pub(crate) ecn: bool,
    /// When it acknowledges.
    pub(crate) acks: AckPolicy,
    /// Its retransmission timeout.
    pub(crate) resends_after: Duration,
    /// Path of the object.
    pub(crate) path: String,
    /// Its requests.
    pub(crate) requests: Vec<RequestPlan>,
    /// It resets the connection after this.
    pub(crate) leaves_after: Option<Duration>,
}

/// One reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplyReport {
    /// When its request was first sent.
    pub(crate) asked_at: Instant,
    /// When its last byte was in order.
    pub(crate) ended_at: Instant,
    /// Where the next reply starts in the stream.
    pub(crate) ends: u64,
    /// Bytes received twice by its end, since the start of the connection.
    pub(crate) duplicate_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Waiting,
    Opening,
    Open,
    /// Sent its FIN.
    Closing,
    Done,
}

/// What of the reply under way is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Awaited {
    Nothing,
    Head(Vec<u8>),
    Body(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Receiver {
    plan: ReceiverPlan,
    phase: Phase,
    starts: Instant,
    /// SND.UNA, and the data from there on.
    next: u32,
    outbox: Vec<u8>,
    resends_at: Option<Instant>,
    /// Sequence number of the first byte of the stream.
    first: u32,
    ranges: Ranges,
    /// RCV.NXT once the server's FIN has arrived.
    fin_at: Option<u64>,
    /// TS.Recent and Last.ACK.sent (RFC 7323 s4.3).
    recent: u32,
    last_ack_sent: u64,
    /// Agreed options.
    is_sack: bool,
    is_stamped: bool,
    uses_ecn: bool,
    /// A mark arrived, and no CWR after it.
    echoes: bool,
    /// Segments in order that are not acknowledged, and by when they must be.
    pending: u32,
    ack_at: Option<Instant>,
    must_ack: bool,
    awaited: Awaited,
    asked: usize,
    asks_at: Option<Instant>,
    asked_at: Instant,
    replies: Vec<ReplyReport>,
    failure: Option<String>,
    inbox: Vec<Vec<u8>>,
}

impl Receiver {
    pub(crate) fn new(plan: ReceiverPlan, starts: Instant) -> Self {
        Self {
            phase: Phase::Waiting,
            starts,
            next: ISS,
            outbox: Vec::new(),
            resends_at: None,
            first: 0,
            ranges: Ranges::default(),
            fin_at: None,
            recent: 0,
            last_ack_sent: 0,
            is_sack: false,
            is_stamped: false,
            uses_ecn: false,
            echoes: false,
            pending: 0,
            ack_at: None,
            must_ack: false,
            awaited: Awaited::Nothing,
            asked: 0,
            asks_at: None,
            asked_at: starts,
            replies: Vec::new(),
            failure: None,
            inbox: Vec::new(),
            plan,
        }
    }

    /// A frame arrived; the next `poll` handles it.
    pub(crate) fn handle_frame(&mut self, frame: Vec<u8>) {
        self.inbox.push(frame);
    }

    /// Replies that are whole.
    pub(crate) fn replies(&self) -> &[ReplyReport] {
        &self.replies
    }

    /// Bytes of the stream that arrived in order.
    pub(crate) const fn received_bytes(&self) -> u64 {
        self.ranges.next()
    }

    /// Bytes that arrived more than once.
    pub(crate) const fn duplicate_bytes(&self) -> u64 {
        self.ranges.duplicate_bytes()
    }

    /// Whether it has nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Why it ended before all replies were whole.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When `poll` next has work.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        if !self.inbox.is_empty() {
            return Some(Instant::ZERO);
        }
        match self.phase {
            Phase::Waiting => Some(self.starts),
            Phase::Done => None,
            Phase::Opening | Phase::Open | Phase::Closing => {
                let timers = [
                    self.resends_at,
                    self.ack_at,
                    self.asks_at,
                    self.plan.leaves_after.map(|after| self.starts + after),
                ];
                timers.into_iter().flatten().min()
            }
        }
    }

    /// Does everything that is due at `now`. Returns whether anything was.
    pub(crate) fn poll(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) -> bool {
        let mut moved = false;
        for frame in core::mem::take(&mut self.inbox) {
            moved = true;
            if let Ok(Incoming::Tcp {
                segment,
                ecn,
                payload,
                ..
            }) = parse_frame(&frame, ChecksumState::Unverified)
            {
                if !payload.is_empty() {
                    self.handle_mark(&segment, ecn);
                }
                self.handle_segment(now, &segment, payload, sink);
            }
        }
        if self.plan.acks == AckPolicy::Burst && self.pending > 1 {
            self.must_ack = true;
        }
        self.acknowledge_due(now, sink);
        while self.poll_at().is_some_and(|due| due <= now) {
            moved = true;
            self.act(now, sink);
        }
        moved
    }

    fn act(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let leaves_at = self.plan.leaves_after.map(|after| self.starts + after);
        if self.phase == Phase::Waiting {
            self.phase = Phase::Opening;
            self.send_outstanding(now, sink);
        } else if is_due(leaves_at) {
            self.phase = Phase::Done;
            sink(self.segment(now, self.next, TcpFlags::RST, &[]));
        } else if is_due(self.ack_at) {
            self.must_ack = true;
            self.acknowledge_due(now, sink);
        } else if is_due(self.asks_at) {
            self.asks_at = None;
            self.ask(now, sink);
        } else {
            self.send_outstanding(now, sink);
        }
    }

    fn handle_segment(
        &mut self,
        now: Instant,
        segment: &TcpRepr,
        payload: &[u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) {
        if segment.flags.contains(TcpFlags::RST) {
            if self.phase != Phase::Done {
                self.failure = Some("the server reset the connection".to_owned());
            }
            self.phase = Phase::Done;
            return;
        }
        if segment.flags.contains(TcpFlags::SYN) {
            self.handle_syn_ack(now, segment, sink);
            return;
        }
        if matches!(self.phase, Phase::Waiting | Phase::Opening) {
            return;
        }
        self.handle_acknowledgment(segment);
        let start = self.offset_of(segment.sequence.0);
        self.remember_timestamp(segment, start);
        self.handle_data(now, start, payload, sink);
        // A keep-alive is outside the window and is answered (RFC 9293 s3.10.7.4, s3.8.4).
        self.must_ack |= payload.is_empty() && start + 1 == self.ranges.next();
        if segment.flags.contains(TcpFlags::FIN) {
            self.must_ack = true;
            if start + payload.len() as u64 == self.ranges.next() {
                self.fin_at = Some(self.ranges.next());
            }
        }
        if self.phase == Phase::Closing && self.outbox.is_empty() && self.fin_at.is_some() {
            self.acknowledge_due(now, sink);
            self.phase = Phase::Done;
        }
        if self.phase == Phase::Done {
            // Its last ACK may have been lost.
            self.acknowledge_due(now, sink);
        }
    }

    /// RFC 3168 s6.1.3. Both are acknowledged at once, as Linux does.
    fn handle_mark(&mut self, segment: &TcpRepr, ecn: Ecn) {
        if !self.uses_ecn {
            return;
        }
        let (has_cwr, is_marked) = (segment.flags.contains(TcpFlags::CWR), ecn == Ecn::Ce);
        self.must_ack |= has_cwr || (is_marked && !self.echoes);
        self.echoes = is_marked || (self.echoes && !has_cwr);
    }

    fn handle_syn_ack(&mut self, now: Instant, segment: &TcpRepr, sink: &mut dyn FnMut(Vec<u8>)) {
        if self.phase == Phase::Opening {
            self.phase = Phase::Open;
            self.next = self.next.wrapping_add(1);
            self.first = segment.sequence.0.wrapping_add(1);
            self.is_sack = segment.options.sack_permitted && self.plan.sack_blocks > 0;
            self.is_stamped = segment.options.timestamps.is_some();
            self.uses_ecn = self.plan.ecn && segment.flags.contains(TcpFlags::ECE);
            self.recent = segment.options.timestamps.map_or(0, |stamp| stamp.value);
            self.resends_at = None;
            let pause = self.plan.requests.first().map(|first| first.pause);
            self.asks_at = Some(now + pause.unwrap_or_default());
        }
        sink(self.acknowledgment(now));
    }

    /// Offset in the stream; what lies before its start counts as its start.
    fn offset_of(&self, sequence: u32) -> u64 {
        let next = self.ranges.next();
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let next_sequence = self.first.wrapping_add(next as u32);
        let distance = SeqNumber(sequence).distance(SeqNumber(next_sequence));
        next.saturating_add_signed(distance.into())
    }

    /// RFC 7323 s4.3 (2): a segment that spans Last.ACK.sent sets TS.Recent, if it is not older.
    fn remember_timestamp(&mut self, segment: &TcpRepr, start: u64) {
        let Some(stamp) = segment.options.timestamps else {
            return;
        };
        let is_newer = stamp.value.wrapping_sub(self.recent) < 1 << 31;
        if is_newer && start <= self.last_ack_sent {
            self.recent = stamp.value;
        }
    }

    fn handle_acknowledgment(&mut self, segment: &TcpRepr) {
        let acknowledged = segment.acknowledgment.0.wrapping_sub(self.next);
        let acknowledged = usize::try_from(acknowledged).unwrap_or(usize::MAX);
        // A FIN occupies the place after the last byte: see `close`.
        if (1..=self.outbox.len()).contains(&acknowledged) {
            self.outbox.drain(..acknowledged);
            self.next = segment.acknowledgment.0;
            if self.outbox.is_empty() {
                self.resends_at = None;
            }
        }
    }

    fn handle_data(
        &mut self,
        now: Instant,
        start: u64,
        payload: &[u8],
        sink: &mut dyn FnMut(Vec<u8>),
    ) {
        if payload.is_empty() {
            return;
        }
        let mut text = Vec::new();
        let is_next = self.ranges.insert(start, payload, &mut text);
        self.pending += 1;
        self.must_ack |= !is_next;
        if let AckPolicy::Every(segments) = self.plan.acks {
            self.must_ack |= self.pending >= segments;
        }
        self.ack_at.get_or_insert(now + ACK_DELAY);
        self.read(now, &text);
        self.acknowledge_due(now, sink);
    }

    /// Text in order: heads are parsed, bodies are counted.
    fn read(&mut self, now: Instant, mut text: &[u8]) {
        while !text.is_empty() {
            match &mut self.awaited {
                Awaited::Nothing => {
                    self.failure = Some("bytes that nobody requested".to_owned());
                    return;
                }
                Awaited::Head(head) => {
                    head.push(text[0]);
                    text = &text[1..];
                    if head.ends_with(b"\r\n\r\n") {
                        let length = content_length(head);
                        if length != Some(self.plan.requests[self.asked - 1].bytes) {
                            let head = String::from_utf8_lossy(head);
                            self.failure = Some(format!("an unexpected reply: {head}"));
                        }
                        self.awaited = Awaited::Body(length.unwrap_or(0));
                    }
                }
                Awaited::Body(left) => {
                    let taken = (*left).min(text.len() as u64);
                    *left -= taken;
                    text = &text[usize::try_from(taken).expect("invariant: within text")..];
                }
            }
            if self.awaited == Awaited::Body(0) {
                self.end_reply(now);
            }
        }
    }

    fn end_reply(&mut self, now: Instant) {
        self.awaited = Awaited::Nothing;
        self.replies.push(ReplyReport {
            asked_at: self.asked_at,
            ended_at: now,
            ends: self.ranges.next(),
            duplicate_bytes: self.ranges.duplicate_bytes(),
        });
        let pause = self.plan.requests.get(self.asked).map(|next| next.pause);
        self.asks_at = Some(now + pause.unwrap_or_default());
    }

    /// Sends the next request, or closes after the last.
    fn ask(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        if let Some(request) = self.plan.requests.get(self.asked) {
            let (path, last) = (&self.plan.path, request.bytes - 1);
            let text =
                format!("GET {path} HTTP/1.1\r\nHost: receiver\r\nRange: bytes=0-{last}\r\n\r\n");
            self.outbox.extend_from_slice(text.as_bytes());
            self.asked += 1;
            self.asked_at = now;
            self.awaited = Awaited::Head(Vec::new());
        } else {
            self.phase = Phase::Closing;
            // The FIN's place in sequence space; its content is never sent.
            self.outbox.push(0);
        }
        self.send_outstanding(now, sink);
    }

    /// Sends what is not acknowledged: SYN, request or FIN.
    fn send_outstanding(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        self.resends_at = Some(now + self.plan.resends_after);
        let data = TcpFlags::ACK.union(TcpFlags::PSH);
        let frame = match self.phase {
            Phase::Opening if self.plan.ecn => {
                let asking = TcpFlags::ECE.union(TcpFlags::CWR);
                self.segment(now, self.next, TcpFlags::SYN.union(asking), &[])
            }
            Phase::Opening => self.segment(now, self.next, TcpFlags::SYN, &[]),
            Phase::Closing => {
                let text = &self.outbox[..self.outbox.len() - 1];
                self.segment(now, self.next, data.union(TcpFlags::FIN), text)
            }
            _ => self.segment(now, self.next, data, &self.outbox),
        };
        sink(frame);
    }

    fn acknowledge_due(&mut self, now: Instant, sink: &mut dyn FnMut(Vec<u8>)) {
        if core::mem::take(&mut self.must_ack) {
            self.pending = 0;
            self.ack_at = None;
            let frame = self.acknowledgment(now);
            sink(frame);
        }
    }

    fn acknowledgment(&mut self, now: Instant) -> Vec<u8> {
        self.last_ack_sent = self.ranges.next();
        let sequence = match self.phase {
            // After its FIN (RFC 9293 s3.4).
            Phase::Closing => self.next.wrapping_add(len32(self.outbox.len())),
            _ => self.next,
        };
        let mut blocks = SackBlocks::default();
        if self.is_sack {
            let room = if self.is_stamped {
                BLOCKS_BESIDE_TIMESTAMPS
            } else {
                wire::tcp::SACK_BLOCKS_MAX
            };
            let most = self.plan.sack_blocks.min(room);
            for (from, to) in self.ranges.take_blocks(most, self.plan.reports_duplicates) {
                blocks.push(self.sequence_of(from), self.sequence_of(to));
            }
        }
        self.build(now, sequence, TcpFlags::ACK, &[], blocks)
    }

    fn segment(&self, now: Instant, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        self.build(now, sequence, flags, payload, SackBlocks::default())
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "sequence numbers are modulo 2^32"
    )]
    const fn sequence_of(&self, offset: u64) -> SeqNumber {
        SeqNumber(self.first.wrapping_add(offset as u32))
    }

    fn build(
        &self,
        now: Instant,
        sequence: u32,
        flags: TcpFlags,
        payload: &[u8],
        sack: SackBlocks,
    ) -> Vec<u8> {
        let is_syn = flags.contains(TcpFlags::SYN);
        let echo = if self.echoes {
            TcpFlags::ECE
        } else {
            TcpFlags::default()
        };
        let shift = window_shift(self.plan.window_bytes);
        let window = self.plan.window_bytes >> if is_syn { 0 } else { shift };
        let has_stamp = if is_syn {
            self.plan.timestamps
        } else {
            self.is_stamped
        };
        let millis = now.since(self.starts).as_millis();
        let value = CLOCK_START.wrapping_add(u32::try_from(millis & 0xffff_ffff).unwrap_or(0));
        let received = self.ranges.next() + u64::from(self.fin_at.is_some());
        let segment = TcpRepr {
            source_port: SOURCE_PORT,
            destination_port: PORT,
            sequence: SeqNumber(sequence),
            acknowledgment: if is_syn {
                SeqNumber(0)
            } else {
                self.sequence_of(received)
            },
            flags: flags.union(echo),
            window: u16::try_from(window).unwrap_or(u16::MAX),
            options: TcpOptions {
                mss: is_syn.then_some(MSS),
                window_scale: is_syn.then_some(shift),
                sack_permitted: is_syn && self.plan.sack_blocks > 0,
                timestamps: has_stamp.then_some(Timestamps {
                    value,
                    echo: if is_syn { 0 } else { self.recent },
                }),
                sack,
            },
        };
        let route = Route {
            source_mac: RECEIVER_MAC,
            destination_mac: MAC,
            source: ADDRESS,
            destination: IpAddr::V4(SERVER_V4),
        };
        crafted::tcp(&route, &segment, payload)
    }
}

/// The least shift with which the window fits 16 bits (RFC 7323 s2).
fn window_shift(window_bytes: u64) -> u8 {
    let mut shift = 0;
    while window_bytes >> shift > u64::from(u16::MAX) {
        shift += 1;
    }
    shift
}

fn len32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("invariant: a request is short")
}

/// The length of a 206 or 200.
fn content_length(head: &[u8]) -> Option<u64> {
    let head = core::str::from_utf8(head).ok()?;
    let is_good = head.starts_with("HTTP/1.1 206") || head.starts_with("HTTP/1.1 200");
    let lines = head.lines().filter(|_| is_good);
    let mut values = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    values.next()
}
