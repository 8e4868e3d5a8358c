//! The session alone: the conductor of the server, between frames received and frames sent, with many
//! clients that each ask for one object after another.
//!
//! Included: parsing of frames, TCP, HTTP, planning of reads, headers of frames. Left out: link, disk,
//! store and kernel. Reads are done in the next round and bring no bytes, as with a device that writes
//! to memory by itself; the clients, which acknowledge each frame as behind GRO, cost a few per cent.
//! The clock is virtual: a round takes what its bytes cost a server ([`NANOS_PER_KILOBYTE`]).
//!
//! [`Server::counted_round`] is never inlined, so that callgrind can count it alone:
//!
//! ```text
//! valgrind --tool=callgrind --cache-sim=yes --LL=2097152,16,64 --collect-atstart=no \
//!   --toggle-collect='*counted_round*' atlas-bench stages session --connections 8000 --rounds 400
//! ```
//!
//! Refused: loss, TLS. Bounded by the options; all memory is taken before the clock runs.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::VecDeque;

use anyhow::{Result, bail};
use clock::{Duration, Instant, UnixTime};
use memory::{Arena, ArenaConfig, PageKind};
use session::{Conductor, Config, DeviceIndex, Object, ObjectHandle, ReadPlan, Transmitted};
use wire::{
    ChecksumState, HEADERS_BYTES_MAX, MacAddress, Outgoing, Route, SeqNumber, TcpChecksum,
    TcpFlags, TcpOptions, TcpRepr, Timestamps,
};

use crate::args::SessionArgs;
use crate::timing::Step;

const PORT: u16 = 80;
const SERVER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const CLIENT_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Clients have this address and those above it, with [`PORTS`] connections each.
const CLIENT_ADDRESS: u32 = u32::from_be_bytes([10, 1, 0, 0]);
const PORTS: u32 = 1000;
/// Room for the frames of a round, and reads under way at most.
const FRAMES_MAX: usize = 2_048;
const READS_MAX: usize = 1_024;
/// The cheapest round, and what sent bytes cost: 0.3 core-s/GB.
const ROUND_MIN: Duration = Duration::from_micros(20);
const NANOS_PER_KILOBYTE: u64 = 300;
/// Clients that connect in the same round: fewer than half-open connections there may be.
const SYNS_AT_ONCE: u32 = 500;
/// Of a frame the link segments, headers included.
const SEGMENTATION_BYTES: u32 = 65_535;
/// Rounds without a byte before a stage has failed.
const SILENT_ROUNDS_MAX: u32 = 100_000;

const REQUEST: &[u8] = b"GET /object HTTP/1.1\r\nHost: video.example\r\n\
    User-Agent: player/1.0\r\nAccept: */*\r\n\r\n";

/// What a client knows of its connection.
#[derive(Clone, Copy, Debug)]
struct Client {
    send_next: SeqNumber,
    receive_next: SeqNumber,
    /// The server's last TSval.
    recent: u32,
}

/// See the module.
pub(crate) struct Session {
    server: Server,
    clients: Vec<Client>,
    /// Frames on their way to the server.
    frames: VecDeque<Frame>,
    /// Sent in the rounds that callgrind counts.
    counted_bytes: u64,
}

/// A frame on its way.
#[derive(Clone, Copy)]
struct Frame {
    bytes: [u8; FRAME_BYTES],
    length: u16,
}

/// Longest frame of a client: headers and its request.
const FRAME_BYTES: usize = HEADERS_BYTES_MAX + REQUEST.len();

/// A frame that the server sent: what a client needs of it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    client: u32,
    flags: TcpFlags,
    sequence: SeqNumber,
    bytes: u32,
    stamp: u32,
}

/// The server, without link, disk and store.
struct Server {
    conductor: Conductor,
    arena: Arena,
    now: Instant,
    object: Object,
    reads: VecDeque<ReadPlan>,
    sent: Vec<Sent>,
    batch: usize,
}

impl Session {
    pub(crate) fn new(args: &SessionArgs) -> Result<Self> {
        let mut session = Self {
            server: Server::new(args)?,
            clients: Vec::new(),
            frames: VecDeque::with_capacity(64 * 1024),
            counted_bytes: 0,
        };
        for number in 0..args.connections {
            let client = Client {
                send_next: SeqNumber(number.wrapping_mul(0x9e37_79b9)),
                receive_next: SeqNumber(0),
                recent: 0,
            };
            session.clients.push(client);
            session.send(number, TcpFlags::SYN, &[]);
            session.clients[number as usize].send_next.0 = client.send_next.0.wrapping_add(1);
            if number % SYNS_AT_ONCE == 0 {
                session.turn(Server::round);
            }
        }
        let mut bytes = 0;
        let warm = args.objects_before * u64::from(args.connections) * args.object_bytes;
        while bytes < warm {
            bytes += session.step()?;
        }
        for _ in 0..args.rounds {
            session.counted_bytes += session.turn(Server::counted_round);
        }
        Ok(session)
    }

    /// A round of the server and the answers of its clients; the bytes that were sent.
    fn turn(&mut self, round: fn(&mut Server, &mut VecDeque<Frame>)) -> u64 {
        round(&mut self.server, &mut self.frames);
        let mut bytes = 0;
        let sent = core::mem::take(&mut self.server.sent);
        for frame in &sent {
            bytes += u64::from(frame.bytes);
            self.answer(frame);
        }
        self.server.sent = sent;
        self.server.sent.clear();
        let nanos = (bytes / 1000) * NANOS_PER_KILOBYTE;
        self.server.now += Duration::from_nanos(nanos).max(ROUND_MIN);
        bytes
    }

    /// A client acknowledges a frame; after the last of a reply it asks again.
    fn answer(&mut self, frame: &Sent) {
        let client = &mut self.clients[frame.client as usize];
        let is_syn = frame.flags.contains(TcpFlags::SYN);
        if !is_syn && frame.bytes == 0 {
            return;
        }
        let end = frame.sequence.wrapping_add(frame.bytes + u32::from(is_syn));
        client.receive_next = end;
        client.recent = frame.stamp;
        let request = if is_syn || frame.flags.contains(TcpFlags::PSH) {
            REQUEST
        } else {
            &[]
        };
        self.send(frame.client, TcpFlags::ACK, request);
    }

    fn send(&mut self, number: u32, flags: TcpFlags, text: &[u8]) {
        let client = &mut self.clients[number as usize];
        let is_syn = flags.contains(TcpFlags::SYN);
        let segment = TcpRepr {
            source_port: port_of(number),
            destination_port: PORT,
            sequence: client.send_next,
            acknowledgment: client.receive_next,
            flags,
            window: u16::MAX,
            options: TcpOptions {
                mss: is_syn.then_some(1460),
                window_scale: is_syn.then_some(8),
                sack_permitted: is_syn,
                timestamps: Some(Timestamps {
                    value: u32::try_from(self.server.now.as_millis()).unwrap_or(u32::MAX),
                    echo: client.recent,
                }),
                ..TcpOptions::default()
            },
        };
        let text_bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        client.send_next = client.send_next.wrapping_add(text_bytes);
        let mut headers = [0; HEADERS_BYTES_MAX];
        let route = Route {
            source_mac: CLIENT_MAC,
            destination_mac: SERVER_MAC,
            source: address_of(number),
            destination: SERVER_ADDRESS.into(),
        };
        let checksum = TcpChecksum::Partial;
        let length = wire::emit_tcp(&mut headers, &route, &segment, &[text], checksum, 0);
        let mut frame = Frame {
            bytes: [0; FRAME_BYTES],
            length: u16::try_from(length + text.len()).unwrap_or(u16::MAX),
        };
        frame.bytes[..length].copy_from_slice(&headers[..length]);
        frame.bytes[length..length + text.len()].copy_from_slice(text);
        self.frames.push_back(frame);
    }
}

impl Step for Session {
    fn note(&self) -> Option<String> {
        let counters = self.server.conductor.counters();
        let reads = counters.session_read_count.max(1);
        Some(format!(
            "{} bytes a read, {} bytes in the rounds that callgrind counts",
            counters.session_read_bytes / reads,
            self.counted_bytes
        ))
    }

    fn step(&mut self) -> Result<u64> {
        for _ in 0..SILENT_ROUNDS_MAX {
            let bytes = self.turn(Server::round);
            if bytes > 0 {
                return Ok(bytes);
            }
        }
        bail!("the server has sent nothing in {SILENT_ROUNDS_MAX} rounds");
    }
}

impl Server {
    fn new(args: &SessionArgs) -> Result<Self> {
        let mut arena_config = ArenaConfig::new(args.slots);
        arena_config.pages = PageKind::Ordinary;
        Ok(Self {
            conductor: Conductor::new(config(args)),
            arena: Arena::new(arena_config)?,
            now: Instant::from_millis(1000),
            object: Object {
                handle: ObjectHandle(1),
                meta: http::ObjectMeta {
                    size_bytes: args.object_bytes,
                    modified: UnixTime::default(),
                    seen: UnixTime::default(),
                    content_hash: Some([0; 16]),
                    content_type: None,
                },
                block_bytes: 4096,
                read_bytes_max: ArenaConfig::SLOT_BYTES,
                device: DeviceIndex::default(),
            },
            reads: VecDeque::with_capacity(args.slots as usize),
            sent: Vec::with_capacity(FRAMES_MAX),
            batch: args.batch,
        })
    }

    /// A round that is counted.
    #[inline(never)]
    fn counted_round(&mut self, frames: &mut VecDeque<Frame>) {
        self.round(frames);
    }

    /// A round in the order of the server's worker.
    fn round(&mut self, frames: &mut VecDeque<Frame>) {
        let now = self.now;
        for _ in 0..self.batch {
            let Some(frame) = frames.pop_front() else {
                break;
            };
            let bytes = &frame.bytes[..frame.length.into()];
            self.conductor
                .handle_frame(now, &mut self.arena, bytes, ChecksumState::Trusted);
        }
        self.conductor.end_batch(now, &mut self.arena);
        for _ in 0..self.batch {
            let Some(read) = self.reads.pop_front() else {
                break;
            };
            self.conductor
                .prefetch_completions(|place| self.reads.get(place).map(|read| read.token));
            let slot = read.slot.into_reading().into_filled(read.length_bytes);
            self.conductor
                .handle_completion(now, &mut self.arena, read.token, Ok(slot));
        }
        if self.conductor.poll_timeout().is_some_and(|due| due <= now) {
            self.conductor.handle_timeouts(now, &mut self.arena);
        }
        while let Some(plan) = self.conductor.poll_lookup() {
            self.conductor
                .handle_lookup(now, plan.token, Ok(self.object.clone()));
        }
        let mut planned = 0;
        while planned < self.batch
            && let Some(read) = self.conductor.poll_read(now, &mut self.arena)
        {
            planned += 1;
            self.reads.push_back(read);
        }
        let sent = &mut self.sent;
        let _ = self
            .conductor
            .transmit(now, &mut self.arena, &mut |outgoing| {
                sent.extend(seen(outgoing));
                Transmitted::Taken
            });
        while self.conductor.poll_released().is_some() {}
    }
}

fn address_of(number: u32) -> IpAddr {
    Ipv4Addr::from(CLIENT_ADDRESS + number / PORTS).into()
}

fn port_of(number: u32) -> u16 {
    40_000 + u16::try_from(number % PORTS).unwrap_or(0)
}

/// What a client needs of a frame to it; `None`: it is for no client.
fn seen(outgoing: &Outgoing<'_>) -> Option<Sent> {
    let headers = outgoing.headers;
    let word = |at: usize| {
        let bytes = headers.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    // Ethernet, IPv4 without options.
    let (ip, tcp) = (14, 34);
    if headers.get(12..14)? != [8, 0] || *headers.get(ip + 9)? != 6 {
        return None;
    }
    let port = word(tcp)? & 0xffff;
    let client = (word(ip + 16)? - CLIENT_ADDRESS) * PORTS + (port - 40_000);
    let header_bytes = usize::from(*headers.get(tcp + 12)? >> 4) * 4;
    let options = headers.get(tcp + 20..tcp + header_bytes)?;
    let stamps = options.iter().position(|&kind| kind == 8);
    let text: usize = outgoing.payload.iter().map(|part| part.len()).sum();
    Some(Sent {
        client,
        flags: TcpFlags(*headers.get(tcp + 13)?),
        sequence: SeqNumber(word(tcp + 4)?),
        bytes: u32::try_from(text).ok()?,
        stamp: stamps.map_or(Some(0), |at| word(tcp + 20 + at + 2))?,
    })
}

fn config(args: &SessionArgs) -> Config {
    Config {
        addresses: vec![SERVER_ADDRESS.into()],
        mac: SERVER_MAC,
        segmentation_bytes_max: SEGMENTATION_BYTES,
        checksum_offload: true,
        http_port: Some(PORT),
        connections_max: args.connections as usize,
        seed: [9; 32],
        unix_seconds_at_start: 1_000_000,
        reads_max: READS_MAX,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(connections: u32, rounds: u32) -> Session {
        let args = SessionArgs {
            connections,
            rounds,
            objects_before: 0,
            object_bytes: 300_000,
            slots: 64,
            batch: 2048,
        };
        Session::new(&args).unwrap()
    }

    #[test]
    fn every_client_gets_whole_objects_one_after_another() {
        let mut session = session(2 * PORTS, 0);
        let mut bytes = 0;
        while bytes < 4 * u64::from(2 * PORTS) * 300_000 {
            bytes += session.step().unwrap();
        }
        let counters = session.server.conductor.counters();
        assert_eq!(counters.tcp_established_count, u64::from(2 * PORTS));
        assert_eq!(counters.session_reread_count, 0, "nothing is lost");
        assert_eq!(counters.tcp_refused_segments, 0);
        for client in &session.clients {
            // A reply in progress and one behind it, at least.
            assert!(client.receive_next.distance(SeqNumber(0)) != 0);
        }
    }
}
