//! The conductor against one hand-made peer per connection: frames in, frames out, reads answered
//! from a formula. No time passes but what a test says.

mod addresses;
mod anew;
mod answer_limits;
mod answers;
mod bandwidth;
mod batches;
mod budget;
mod crossing;
mod denied;
mod devices;
mod ecn;
mod endings;
mod eviction;
mod fragments;
mod handshakes;
mod kept;
mod listener_reports;
mod next_hop;
mod nonces;
mod observing;
mod path_mtu;
mod pieces;
mod reads;
mod replies;
mod request_log;
mod sites;
mod strays;
mod syn_floods;
mod tls;

use core::net::{IpAddr, Ipv4Addr};

use clock::{Duration, Instant, UnixTime};
use http::ObjectMeta;
use memory::{Arena, ArenaConfig};
use wire::{
    ChecksumState, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress, Outgoing, Path, Route, SackBlocks,
    SeqNumber, TcpChecksum, TcpFlags, TcpOptions, TcpRepr, Timestamps,
};

use super::Conductor;
use crate::{
    Config, DeviceIndex, LookupError, LookupPlan, Object, ObjectHandle, ReadPlan, TcpConfig,
    TransmitProgress, Transmitted,
};

const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const OUR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 80;
const OBJECT_BYTES: u64 = 300_000;
/// The object on the second device.
const OTHER: ObjectHandle = ObjectHandle(8);

fn config() -> Config {
    Config {
        addresses: vec![IpAddr::V4(OUR_ADDRESS)],
        mac: OUR_MAC,
        segmentation_bytes_max: 65_535,
        checksum_offload: true,
        http_port: Some(PORT),
        tcp: TcpConfig {
            is_paced: false,
            ..TcpConfig::default()
        },
        connections_max: 4,
        seed: [9; 32],
        unix_seconds_at_start: 1_700_000_000,
        reads_max: 8,
        ..Config::default()
    }
}

/// The object's byte at an offset.
fn content(offset: u64) -> u8 {
    u8::try_from((offset.wrapping_mul(2_654_435_761) >> 13) & 0xff).unwrap()
}

/// A conductor, its arena, and the world outside.
struct Bench {
    conductor: Conductor,
    arena: Arena,
    now: Instant,
    /// Reads planned and not answered.
    reads: Vec<ReadPlan>,
    /// Frames sent: header and payload in one.
    sent: Vec<(Sent, Vec<u8>)>,
    /// What the disk brings is the object XOR this.
    twist: u8,
    /// The ECN field of each frame with text.
    fields: Vec<Ecn>,
    /// Where the last frame went.
    last_hop: MacAddress,
    /// The MSS that peers offer from now on.
    peer_segment_bytes: u16,
    /// Size of the object.
    object_bytes: u64,
    /// Frames are one batch until it is ended.
    is_batch_open: bool,
    /// Packets arrive in fragments with so many bytes of their content, the last one first.
    fragment_bytes: Option<usize>,
}

/// A sent TCP segment, or the bytes of another frame.
enum Sent {
    Tcp(TcpRepr),
    Other,
}

impl Bench {
    fn new() -> Self {
        Self::with(config(), 8)
    }

    fn with(config: Config, slot_count: u32) -> Self {
        let arena = Arena::new(ArenaConfig::new(slot_count)).unwrap();
        let mut bench = Self {
            conductor: Conductor::new(config),
            arena,
            now: Instant::from_millis(1),
            reads: Vec::new(),
            sent: Vec::new(),
            twist: 0,
            fields: Vec::new(),
            last_hop: MacAddress::default(),
            peer_segment_bytes: 1460,
            object_bytes: OBJECT_BYTES,
            is_batch_open: false,
            fragment_bytes: None,
        };
        bench.transmit();
        bench.sent.clear();
        bench
    }

    fn receive(&mut self, frame: &[u8]) {
        let (now, arena) = (self.now, &mut self.arena);
        let frames = match self.fragment_bytes {
            Some(bytes) => fragments::cut(frame, bytes),
            None => vec![frame.to_vec()],
        };
        for frame in frames.iter().rev() {
            self.conductor
                .handle_frame(now, arena, frame, ChecksumState::Unverified);
        }
        if !self.is_batch_open {
            self.conductor.end_batch(now, &mut self.arena);
        }
    }

    /// Polls everything once; look-ups are answered at once: `/object` exists, and a directory
    /// `/folder` with an index; the index of `/deep/` is a directory. `/other` is the same object
    /// on another device.
    fn turn(&mut self) {
        while let Some(plan) = self.conductor.poll_lookup() {
            self.answer(&plan, None);
        }
        while let Some(read) = self.conductor.poll_read(self.now, &mut self.arena) {
            self.reads.push(read);
        }
        self.transmit();
    }

    fn answer(&mut self, plan: &LookupPlan, error: Option<LookupError>) {
        let answer = match error {
            Some(error) => Err(error),
            None if plan.path == "/object" || plan.path == "/folder/index.html" => {
                Ok(object(self.object_bytes))
            }
            None if plan.path == "/other" => Ok(Object {
                handle: OTHER,
                device: DeviceIndex::new(1),
                ..object(self.object_bytes)
            }),
            None if plan.path == "/folder" => Err(LookupError::Directory),
            None if plan.path == "/deep/index.html" => Err(LookupError::Directory),
            None => Err(LookupError::NotFound),
        };
        self.conductor.handle_lookup(self.now, plan.token, answer);
    }

    fn transmit(&mut self) {
        let (sent, last_hop) = (&mut self.sent, &mut self.last_hop);
        let fields = &mut self.fields;
        let progress = self
            .conductor
            .transmit(self.now, &mut self.arena, &mut |frame| {
                *last_hop = MacAddress(*frame.headers.first_chunk().unwrap());
                fields.extend(wire::read_ecn(frame.headers).filter(|_| !frame.payload.is_empty()));
                sent.push(taken(frame));
                Transmitted::Taken
            });
        assert_eq!(progress, TransmitProgress::Done);
    }

    /// The disk answers every read, newest first, and what that makes ready leaves.
    fn complete_reads(&mut self) {
        while !self.reads.is_empty() {
            for read in std::mem::take(&mut self.reads).into_iter().rev() {
                self.complete(read, self.object_bytes);
            }
            self.turn();
        }
    }

    /// The disk answers one read of an object of this size.
    fn complete(&mut self, read: ReadPlan, object_bytes: u64) {
        let wanted = u64::from(read.length_bytes);
        let there = object_bytes.saturating_sub(read.offset_bytes).min(wanted);
        let mut slot = read
            .slot
            .into_reading()
            .into_filled(u32::try_from(there).unwrap());
        for (byte, offset) in self
            .arena
            .payload_mut(&mut slot)
            .iter_mut()
            .zip(read.offset_bytes..)
        {
            *byte = content(offset) ^ self.twist;
        }
        self.conductor
            .handle_completion(self.now, &mut self.arena, read.token, Ok(slot));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.conductor.handle_timeouts(self.now, &mut self.arena);
        self.turn();
    }

    /// TCP segments sent since the last call, to one peer.
    fn take_segments(&mut self, port: u16) -> Vec<(TcpRepr, Vec<u8>)> {
        let mut segments = Vec::new();
        let mut others = Vec::new();
        for (frame, payload) in std::mem::take(&mut self.sent) {
            match frame {
                Sent::Tcp(segment) if segment.destination_port == port => {
                    segments.push((segment, payload));
                }
                frame => others.push((frame, payload)),
            }
        }
        self.sent = others;
        segments
    }

    /// Nothing is held: no slot, no connection, no use of an object.
    fn assert_quiet(&mut self) {
        assert_eq!(self.conductor.connection_count(), 0);
        assert_eq!(self.arena.free_count(), self.arena.slot_count());
    }

    fn released(&mut self) -> usize {
        std::iter::from_fn(|| self.conductor.poll_released()).count()
    }
}

fn object(size_bytes: u64) -> Object {
    Object {
        handle: ObjectHandle(7),
        meta: ObjectMeta {
            size_bytes,
            modified: UnixTime {
                seconds: 1_600_000_000,
                nanos: 0,
            },
            seen: UnixTime {
                seconds: 1_600_000_001,
                nanos: 0,
            },
            content_hash: None,
            content_type: None,
        },
        block_bytes: 4096,
        read_bytes_max: 65_536,
        device: DeviceIndex::default(),
    }
}

fn taken(frame: &Outgoing<'_>) -> (Sent, Vec<u8>) {
    let mut bytes = frame.headers.to_vec();
    frame
        .payload
        .iter()
        .for_each(|part| bytes.extend_from_slice(part));
    // The large frame's checksum is the link's to complete.
    match wire::parse_frame(&bytes, ChecksumState::Trusted) {
        Ok(Incoming::Tcp {
            segment, payload, ..
        }) => (Sent::Tcp(segment), payload.to_vec()),
        _ => (Sent::Other, bytes),
    }
}

/// One client's side of a connection.
struct Peer {
    port: u16,
    server_port: u16,
    /// SND.NXT.
    next: SeqNumber,
    /// What it has received in order, and the sequence number after it.
    received: Vec<u8>,
    expected: SeqNumber,
    finished: bool,
    reset: bool,
    window: u16,
    /// The timestamp it echoes; `None`: its segments have no timestamps.
    echo: Option<u32>,
    /// How its frames come to us.
    route: Route,
    /// The ECN field of its packets.
    ecn: Ecn,
}

impl Peer {
    /// Sends a SYN. It counts as sent; the SYN-ACK is not looked at.
    fn send_syn(bench: &mut Bench, port: u16, sequence: SeqNumber) -> Self {
        Self::send_syn_to(bench, PORT, port, sequence)
    }

    fn send_syn_to(bench: &mut Bench, server_port: u16, port: u16, sequence: SeqNumber) -> Self {
        Self::send_syn_by(bench, peer_route(), server_port, port, sequence)
    }

    fn send_syn_by(
        bench: &mut Bench,
        route: Route,
        server_port: u16,
        port: u16,
        sequence: SeqNumber,
    ) -> Self {
        let mut peer = Self::new(route, server_port, port, sequence);
        peer.open(bench);
        peer
    }

    const fn new(route: Route, server_port: u16, port: u16, sequence: SeqNumber) -> Self {
        Self {
            port,
            server_port,
            next: sequence,
            received: Vec::new(),
            expected: SeqNumber(0),
            finished: false,
            reset: false,
            window: u16::MAX,
            echo: None,
            route,
            ecn: Ecn::NotEct,
        }
    }

    /// Sends its SYN.
    fn open(&mut self, bench: &mut Bench) {
        let options = TcpOptions {
            mss: Some(bench.peer_segment_bytes),
            window_scale: Some(8),
            sack_permitted: true,
            ..TcpOptions::default()
        };
        self.send_with(bench, TcpFlags::SYN, options, b"");
        self.next = self.next.wrapping_add(1);
        bench.turn();
    }

    /// Completes the three-way handshake.
    fn connect(bench: &mut Bench, port: u16) -> Self {
        Self::connect_to(bench, PORT, port)
    }

    fn connect_to(bench: &mut Bench, server_port: u16, port: u16) -> Self {
        Self::connect_by(bench, peer_route(), server_port, port)
    }

    fn connect_by(bench: &mut Bench, route: Route, server_port: u16, port: u16) -> Self {
        let sequence = SeqNumber(u32::MAX - 3);
        let mut peer = Self::send_syn_by(bench, route, server_port, port, sequence);
        let replies = bench.take_segments(port);
        if let [(syn_ack, _)] = &replies[..]
            && syn_ack.flags.contains(TcpFlags::SYN)
        {
            peer.expected = syn_ack.sequence.wrapping_add(1);
            peer.send(bench, TcpFlags::ACK, b"");
            bench.turn();
        } else {
            peer.reset = replies
                .iter()
                .any(|(reply, _)| reply.flags.contains(TcpFlags::RST));
        }
        peer
    }

    fn send(&mut self, bench: &mut Bench, flags: TcpFlags, text: &[u8]) {
        self.send_with(bench, flags, TcpOptions::default(), text);
        let fin = u32::from(flags.contains(TcpFlags::FIN));
        self.next = self
            .next
            .wrapping_add(u32::try_from(text.len()).unwrap() + fin);
    }

    fn send_with(&self, bench: &mut Bench, flags: TcpFlags, mut options: TcpOptions, text: &[u8]) {
        options.timestamps = self.echo.map(|echo| Timestamps {
            value: u32::try_from(bench.now.as_millis()).unwrap(),
            echo,
        });
        let segment = TcpRepr {
            source_port: self.port,
            destination_port: self.server_port,
            sequence: self.next,
            acknowledgment: self.expected,
            flags,
            window: self.window,
            options,
        };
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(
            &mut headers,
            &self.route,
            &segment,
            &[text],
            TcpChecksum::Full,
            1,
        );
        let mut frame = headers[..length].to_vec();
        frame.extend_from_slice(text);
        wire::set_ecn(&mut frame, self.ecn);
        bench.receive(&frame);
    }

    fn ask(&mut self, bench: &mut Bench, request: &str) {
        self.send(
            bench,
            TcpFlags::ACK.union(TcpFlags::PSH),
            request.as_bytes(),
        );
        bench.turn();
    }

    fn get(&mut self, bench: &mut Bench, path: &str) {
        self.ask(bench, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }

    /// Takes in what was sent to it; returns whether there was anything.
    fn take(&mut self, bench: &mut Bench) -> bool {
        let segments = bench.take_segments(self.port);
        let any = !segments.is_empty();
        for (segment, payload) in segments {
            self.reset |= segment.flags.contains(TcpFlags::RST);
            let skip = usize::try_from(self.expected.distance(segment.sequence)).unwrap_or(0);
            if segment.sequence.distance(self.expected) > 0 || skip > payload.len() {
                continue;
            }
            let new = &payload[skip..];
            self.received.extend_from_slice(new);
            self.expected = self
                .expected
                .wrapping_add(u32::try_from(new.len()).unwrap());
            if segment.flags.contains(TcpFlags::FIN) && !self.finished {
                self.finished = true;
                self.expected = self.expected.wrapping_add(1);
            }
        }
        any
    }

    /// Whether every reply asked for came whole: each ends in the delimiter of a multipart body.
    fn has_all(&mut self, bench: &Bench) -> bool {
        let ends = self.received.windows(4).filter(|end| *end == b"--\r\n");
        ends.count() as u64 == bench.conductor.counters().http_reply_count
    }

    /// Receives and acknowledges until nothing more comes; the disk answers at once.
    fn drain(&mut self, bench: &mut Bench) {
        loop {
            bench.complete_reads();
            if !self.take(bench) || self.reset {
                return;
            }
            self.send(bench, TcpFlags::ACK, b"");
            bench.turn();
        }
    }

    fn acknowledge_with_sack(&mut self, bench: &mut Bench, left: SeqNumber, right: SeqNumber) {
        let mut sack = SackBlocks::default();
        sack.push(left, right);
        let options = TcpOptions {
            sack,
            ..TcpOptions::default()
        };
        self.send_with(bench, TcpFlags::ACK, options, b"");
        bench.turn();
    }

    /// Splits what was received into the first reply's head and the rest.
    fn head_and_rest(&self) -> (String, &[u8]) {
        let end = self
            .received
            .windows(4)
            .position(|window| window == b"\r\n\r\n");
        let end = end.expect("a reply's head") + 4;
        let (head, rest) = self.received.split_at(end);
        (String::from_utf8(head.to_vec()).unwrap(), rest)
    }

    /// Closes from the client's side after the server's reply.
    fn close(&mut self, bench: &mut Bench) {
        self.send(bench, TcpFlags::ACK.union(TcpFlags::FIN), b"");
        bench.turn();
        self.drain(bench);
    }
}

fn peer_route() -> Route {
    Path {
        source_mac: OUR_MAC,
        destination_mac: PEER_MAC,
        source: IpAddr::V4(OUR_ADDRESS),
        destination: IpAddr::V4(PEER_ADDRESS),
    }
    .reply_route()
}

fn assert_is_object(body: &[u8], start: u64) {
    for (byte, offset) in body.iter().zip(start..) {
        assert_eq!(*byte, content(offset), "at {offset}");
    }
}
