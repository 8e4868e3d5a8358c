//! A host with our TCP and a virtual clock.
//!
//! Packets go in ([`Host::receive`]) and come out ([`Host::next_packet`]) as raw IP, as a device would
//! carry them; programs use it by socket calls (`sockets`). Time passes only in
//! [`Host::advance`] and while a packet is awaited.
//!
//! Between listener, half-open connections, connections and TIME-WAIT a segment takes the same way as
//! in `session::conductor::clients`. It refuses SYN cookies, evictions and everything above TCP: those
//! are the session's. Bounded by [`CONNECTIONS_MAX`] four-tuples and [`ROUNDS_MAX`] timers at one
//! moment; beyond either it panics, which fails the script.

mod errno;
mod sockets;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use clock::{Duration, Instant};
use tcp::listener::{is_connection_request, reset_for};
use tcp::{
    CloseReason, Config, Connection, FourTuple, HalfOpen, HalfOpenVerdict, Listener, Outcome,
    Table, TableIndex, TimeWait, TimeWaitTable, TimeWaitVerdict,
};
use wire::{
    ChecksumState, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress, Offload, OriginalTcp, Outgoing,
    Path, Route, Segmentation, SeqNumber, TcpChecksum, TcpFlags, TcpRepr,
};

pub use errno::Errno;
use sockets::Descriptor;
pub use sockets::{HowToShut, Option32, Readiness};
use stream::{Leaving, RECEIVE_WINDOW_BYTES, Stream};

/// The clock when a script begins. Not zero, so that timestamps can lie before it, and not the edge of
/// a millisecond, so that a few microseconds of the program do not change a timestamp.
const START: Instant = Instant::from_micros(1_000_250);
/// Four-tuples of one script.
pub const CONNECTIONS_MAX: usize = 1024;
/// Timers that may fire at one moment.
pub const ROUNDS_MAX: u32 = 10_000;
/// How far ahead an awaited packet may be: the longest timer is the keep-alive probe's, 60 s.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// MTU of the device, unless it is given, bytes.
pub const MTU_BYTES: u16 = 1500;

const ETHERNET_BYTES: usize = 14;
const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// What differs from one run to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// MTU of the device, bytes.
    pub mtu_bytes: u16,
    /// Whether PSH leaves as TCP sets it. Off: it is never set.
    pub has_push: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mtu_bytes: MTU_BYTES,
            has_push: true,
        }
    }
}

/// A packet that left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When.
    pub at: Instant,
    /// From the IP header on.
    pub bytes: Vec<u8>,
}

/// A SYN that was answered, and where its SYN-ACK goes.
#[derive(Clone, Copy, Debug)]
struct HalfOpenEntry {
    half_open: HalfOpen,
    route: Route,
}

/// See the module.
#[derive(Debug)]
pub struct Host {
    settings: Settings,
    now: Instant,
    listener: Listener,
    table: Table,
    half_opens: Vec<Option<HalfOpenEntry>>,
    streams: Vec<Option<Stream>>,
    time_waits: TimeWaitTable,
    descriptors: Vec<Option<Descriptor>>,
    packets: VecDeque<Packet>,
    identification: u16,
}

impl Host {
    /// A host without sockets.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: START,
            listener: Listener::new([5; 16]),
            table: Table::new(3 * CONNECTIONS_MAX, [7; 16]),
            half_opens: Vec::new(),
            streams: Vec::new(),
            time_waits: TimeWaitTable::new(CONNECTIONS_MAX),
            descriptors: Vec::new(),
            packets: VecDeque::new(),
            identification: 0,
        }
    }

    /// The virtual clock.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Lets time pass until `until`; timers due then have fired.
    pub fn advance(&mut self, until: Instant) {
        while self.fire_next(until) {}
        self.now = self.now.max(until);
    }

    /// Lets time pass until the next timer, but not beyond `until`.
    pub fn advance_one_step(&mut self, until: Instant) {
        if !self.fire_next(until) {
            self.now = self.now.max(until);
        }
    }

    /// The next packet that leaves. If none has left, time passes until one does; `None`: none will
    /// within [`PATIENCE`].
    pub fn next_packet(&mut self) -> Option<Packet> {
        let until = self.now + PATIENCE;
        while self.packets.is_empty() && self.fire_next(until) {}
        self.packets.pop_front()
    }

    /// Whether a packet has left that was not taken.
    #[must_use]
    pub fn has_packet(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Fires what is due first, moving the clock there, if that is not after `until`.
    fn fire_next(&mut self, until: Instant) -> bool {
        let Some(deadline) = self.deadline().filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(deadline);
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "a timer fires for ever at one moment");
            self.fire_due();
            if self.deadline().is_none_or(|at| at > self.now) {
                break;
            }
        }
        true
    }

    fn deadline(&self) -> Option<Instant> {
        let half_opens = self.half_opens.iter().flatten();
        let half_opens = half_opens.map(|entry| entry.half_open.deadline());
        let streams = self.streams.iter().flatten();
        let streams = streams.filter_map(|stream| stream.deadline(self.now));
        half_opens
            .chain(streams)
            .chain(self.time_waits.next_expiry())
            .min()
    }

    fn fire_due(&mut self) {
        let now = self.now;
        for index in 0..self.half_opens.len() {
            let entry = self.half_opens[index].as_mut();
            let Some(entry) = entry.filter(|entry| entry.half_open.deadline() <= now) else {
                continue;
            };
            if entry.half_open.handle_timeout(now) {
                let HalfOpenEntry { half_open, route } = *entry;
                self.emit(&route, half_open.syn_ack(now), &[], u16::MAX);
            } else {
                self.remove_half_open(index);
            }
        }
        for index in 0..self.streams.len() {
            let Some(stream) = &mut self.streams[index] else {
                continue;
            };
            if let Some(tcp) = &mut stream.tcp
                && tcp.handle_timeout(now) != Outcome::Open
            {
                self.end(index, Some(Errno::TIMED_OUT));
            }
            self.transmit(index);
        }
        while let Some(tuple) = self.time_waits.pop_expired(now) {
            self.table.remove(&tuple);
        }
    }

    /// A packet arrives, from its IP header on. What `wire` refuses is dropped, as in the server.
    pub fn receive(&mut self, packet: &[u8]) {
        let ethertype: [u8; 2] = match packet.first() {
            Some(first) if first >> 4 == 6 => [0x86, 0xdd],
            _ => [0x08, 0x00],
        };
        let frame = [&OUR_MAC.0[..], &PEER_MAC.0, &ethertype, packet].concat();
        match wire::parse_frame(&frame, ChecksumState::Unverified) {
            Ok(Incoming::Tcp {
                path,
                segment,
                payload,
                ..
            }) => self.handle_segment(&path, &segment, payload),
            Ok(Incoming::PacketTooBig {
                mtu_bytes,
                original,
                ..
            }) => self.handle_packet_too_big(mtu_bytes, &original),
            _ => {}
        }
    }

    fn handle_segment(&mut self, path: &Path, segment: &TcpRepr, payload: &[u8]) {
        let tuple = FourTuple {
            local: SocketAddr::new(path.destination, segment.destination_port),
            peer: SocketAddr::new(path.source, segment.source_port),
        };
        match self.table.find(&tuple) {
            Some(TableIndex::Connection(index)) => {
                self.handle_stream_segment(index as usize, segment, payload);
            }
            Some(TableIndex::HalfOpen(index)) => {
                self.handle_half_open_segment(index as usize, path, segment, payload);
            }
            Some(TableIndex::TimeWait(index)) => {
                self.handle_time_wait_segment(index, &tuple, path, segment, payload);
            }
            None if is_connection_request(segment) => {
                self.handle_syn(&tuple, path, segment, payload, None);
            }
            None => self.refuse(path, segment, payload),
        }
    }

    fn handle_syn(
        &mut self,
        tuple: &FourTuple,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
        iss_min: Option<SeqNumber>,
    ) {
        let Some(limit) = self.listening_segment_bytes(segment.destination_port) else {
            self.refuse(path, segment, payload);
            return;
        };
        let segment_bytes = self.link_segment_bytes(path.source).min(limit);
        let window = RECEIVE_WINDOW_BYTES;
        let mut offer = self.listener.offer(self.now, tuple, segment_bytes, window);
        if let Some(least) = iss_min
            && offer.iss.distance(least) < 0
        {
            offer.iss = least;
        }
        let half_open = HalfOpen::new(self.now, *tuple, segment, offer);
        let route = path.reply_route();
        let index = self.half_opens.len();
        self.half_opens
            .push(Some(HalfOpenEntry { half_open, route }));
        self.table.set(*tuple, TableIndex::HalfOpen(narrow(index)));
        self.emit(&route, half_open.syn_ack(self.now), &[], u16::MAX);
    }

    fn handle_half_open_segment(
        &mut self,
        index: usize,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let now = self.now;
        let Some(entry) = &mut self.half_opens[index] else {
            return;
        };
        match entry.half_open.handle_segment(segment, payload.len()) {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::RetransmitSynAck | HalfOpenVerdict::Challenge => {
                entry.half_open.on_syn_ack_retransmit(now, segment);
                let HalfOpenEntry { half_open, route } = *entry;
                self.emit(&route, half_open.syn_ack(now), &[], u16::MAX);
            }
            HalfOpenVerdict::Forget => self.remove_half_open(index),
            HalfOpenVerdict::Reset => self.refuse(path, segment, payload),
            HalfOpenVerdict::Establish => {
                let entry = *entry;
                self.remove_half_open(index);
                self.establish(&entry, path, segment, payload);
            }
        }
    }

    fn establish(&mut self, entry: &HalfOpenEntry, path: &Path, segment: &TcpRepr, payload: &[u8]) {
        let tuple = entry.half_open.tuple();
        let config = Config {
            // A script says what leaves at once: Linux acknowledges the first segments of a
            // connection at once, and paces nothing with CUBIC. Both have drill scripts.
            is_paced: false,
            ack_delay: Duration::from_nanos(0),
            // As Linux's default; and frames are cut here by the size of segments alone.
            probes_path_mtu: false,
            ..Config::default()
        };
        let tcp = Connection::new(config, &entry.half_open, self.now, segment.window);
        let index = self.streams.len();
        if !self.offer_to_program(tuple.local.port(), index) {
            self.refuse(path, segment, payload);
            return;
        }
        self.streams.push(Some(Stream::new(tcp, entry.route)));
        self.table.set(tuple, TableIndex::Connection(narrow(index)));
        self.handle_stream_segment(index, segment, payload);
    }

    fn handle_stream_segment(&mut self, index: usize, segment: &TcpRepr, payload: &[u8]) {
        let now = self.now;
        let Some(stream) = &mut self.streams[index] else {
            return;
        };
        let Some(tcp) = &mut stream.tcp else {
            return;
        };
        let arrival = tcp.handle_segment(now, segment, Ecn::NotEct, payload.len());
        if arrival.challenge {
            tcp.send_challenge(now);
        }
        stream.is_peer_finished |= arrival.peer_finished;
        stream.release();
        let text = payload.get(arrival.text).unwrap_or_default();
        if stream.is_orphan && !text.is_empty() {
            // RFC 9293 s3.6.1: nobody will read it, so the peer is told.
            self.abort(index);
            return;
        }
        stream.received.extend(text);
        stream.advertise();
        match arrival.outcome {
            Outcome::Open => self.transmit(index),
            Outcome::Closed(CloseReason::Reset) => self.end(index, Some(Errno::RESET)),
            Outcome::Closed(CloseReason::TimedOut) => self.end(index, Some(Errno::TIMED_OUT)),
            Outcome::Closed(CloseReason::Finished) => self.end(index, None),
            Outcome::TimeWait => {
                let is_answered = !payload.is_empty() || segment.flags.contains(TcpFlags::FIN);
                self.enter_time_wait(index, is_answered);
            }
        }
    }

    fn handle_time_wait_segment(
        &mut self,
        index: u32,
        tuple: &FourTuple,
        path: &Path,
        segment: &TcpRepr,
        payload: &[u8],
    ) {
        let Some(entry) = self.time_waits.entry_mut(index) else {
            return;
        };
        match entry.handle_segment(self.now, segment, payload.len()) {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Acknowledge(ack) | TimeWaitVerdict::Challenge(ack) => {
                self.emit(&path.reply_route(), ack, &[], u16::MAX);
            }
            TimeWaitVerdict::Reset => self.refuse(path, segment, payload),
            TimeWaitVerdict::Reopen { iss_min } => {
                self.time_waits.remove(index);
                self.table.remove(tuple);
                self.handle_syn(tuple, path, segment, payload, Some(iss_min));
            }
        }
    }

    /// A router's report, if it quotes a segment in flight (RFC 5927 s4).
    fn handle_packet_too_big(&mut self, mtu_bytes: u32, original: &OriginalTcp) {
        let tuple = FourTuple {
            local: SocketAddr::new(original.source, original.source_port),
            peer: SocketAddr::new(original.destination, original.destination_port),
        };
        let Some(TableIndex::Connection(index)) = self.table.find(&tuple) else {
            return;
        };
        let index = index as usize;
        let stream = self.streams[index].as_mut();
        let Some(tcp) = stream.and_then(|stream| stream.tcp.as_mut()) else {
            return;
        };
        if tcp.is_in_flight(original.sequence) {
            let segment_bytes = path_segment_bytes(original.source, mtu_bytes);
            tcp.on_packet_too_big(self.now, original.sequence, segment_bytes);
            self.transmit(index);
        }
    }

    /// Answers a segment of no connection.
    fn refuse(&mut self, path: &Path, segment: &TcpRepr, payload: &[u8]) {
        if let Some(reset) = reset_for(segment, payload.len()) {
            self.emit(&path.reply_route(), reset, &[], u16::MAX);
        }
    }

    fn remove_half_open(&mut self, index: usize) {
        if let Some(entry) = self.half_opens[index].take() {
            self.table.remove(&entry.half_open.tuple());
        }
    }

    /// Resets a connection, and forgets it.
    fn abort(&mut self, index: usize) {
        let Some(stream) = &self.streams[index] else {
            return;
        };
        if let Some(tcp) = &stream.tcp {
            let (route, reset) = (stream.route, tcp.abort(self.now));
            self.emit(&route, reset, &[], u16::MAX);
        }
        self.end(index, None);
    }

    fn enter_time_wait(&mut self, index: usize, is_answered: bool) {
        let Some(stream) = &self.streams[index] else {
            return;
        };
        let Some(tcp) = &stream.tcp else {
            return;
        };
        let (entry, route): (TimeWait, _) = (tcp.time_wait(self.now), stream.route);
        let ack = entry.acknowledgment(self.now);
        self.end(index, None);
        let (place, evicted) = self.time_waits.insert(entry);
        if let Some(evicted) = evicted {
            self.table.remove(&evicted);
        }
        self.table.set(entry.tuple(), TableIndex::TimeWait(place));
        if is_answered {
            self.emit(&route, ack, &[], u16::MAX);
        }
    }

    /// The connection is over; its socket may still have something to read.
    fn end(&mut self, index: usize, error: Option<Errno>) {
        let Some(stream) = &mut self.streams[index] else {
            return;
        };
        if let Some(tcp) = &stream.tcp {
            self.table.remove(&tcp.tuple());
        }
        stream.end(error);
        self.forget_if_over(index);
    }

    fn forget_if_over(&mut self, index: usize) {
        if self.streams[index].as_ref().is_some_and(Stream::is_over) {
            self.streams[index] = None;
        }
    }

    /// Sends what a connection may send now.
    fn transmit(&mut self, index: usize) {
        let Some(stream) = &mut self.streams[index] else {
            return;
        };
        let route = stream.route;
        for leaving in stream.poll(self.now) {
            let Leaving {
                segment,
                text,
                segment_bytes,
            } = leaving;
            self.emit(&route, segment, &text, segment_bytes);
        }
    }

    /// Queues the packets of one segment, cut as a link cuts it.
    fn emit(&mut self, route: &Route, mut segment: TcpRepr, text: &[u8], segment_bytes: u16) {
        if !self.settings.has_push {
            segment.flags = segment.flags.difference(TcpFlags::PSH);
        }
        self.identification = self.identification.wrapping_add(1);
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(
            &mut headers,
            route,
            &segment,
            &[text],
            TcpChecksum::Partial,
            self.identification,
        );
        let is_cut = text.len() > usize::from(segment_bytes);
        let outgoing = Outgoing {
            headers: &headers[..length],
            payload: &[text],
            offload: Offload {
                checksum: Some(route.partial_checksum()),
                segmentation: is_cut.then_some(Segmentation {
                    kind: route.segmentation_kind(),
                    segment_bytes,
                }),
            },
        };
        let (at, packets) = (self.now, &mut self.packets);
        wire::cut(&outgoing, &mut |headers, parts| {
            let bytes = [&headers[ETHERNET_BYTES..], &parts.concat()].concat();
            packets.push_back(Packet { at, bytes });
        });
    }

    /// The largest TCP payload of one packet on our link, without options, bytes.
    fn link_segment_bytes(&self, peer: IpAddr) -> u16 {
        let headers = if peer.is_ipv4() { 40 } else { 60 };
        self.settings.mtu_bytes.saturating_sub(headers)
    }
}

/// The largest TCP payload, with timestamps, on a path with this MTU, as the session computes it.
fn path_segment_bytes(source: IpAddr, mtu_bytes: u32) -> u16 {
    let (least, headers) = match source {
        IpAddr::V4(_) => (576, 20 + 32),
        IpAddr::V6(_) => (1280, 40 + 32),
    };
    u16::try_from(mtu_bytes.max(least) - headers).unwrap_or(u16::MAX)
}

/// An index as the table keeps it.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: the table's capacity bounds the indexes")
}
