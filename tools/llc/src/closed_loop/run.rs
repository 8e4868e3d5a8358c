//! One run of the loop: a queue of events, and what each does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::cache::{Access, Stage};
use crate::layout::{REGION_BYTES, Region};
use crate::replay::Replay;
use crate::rng::Rng;
use crate::trace::{Event as TraceEvent, Touch};

use super::{Case, Order, Outcome, Sealing};

const MS: u64 = 1_000_000;
/// Until then the loop runs without caches, to reach its steady state.
const CACHES_FROM: u64 = 78 * MS;
const COUNT_FROM: u64 = 90 * MS;
const END: u64 = 110 * MS;

/// Payload is moved, sealed and sent in pieces of this size.
const PIECE_BYTES: u32 = 4096;
/// What a core needs for an acknowledgement.
const ACK_NS: u64 = 300;
/// Most acknowledgements of a round.
const ACKS_MAX: usize = 256;
const PACKET_BYTES: u32 = 1448;

/// Parts of a worker's [`Region::Metadata`].
const CONNECTION_BYTES: u64 = 1024;
const RECEIVE_RING: (u64, u64) = (64 << 20, 4 << 20);
const HEADER_RING: (u64, u64) = (72 << 20, 2 << 20);
const COLD: (u64, u64) = (128 << 20, REGION_BYTES - (128 << 20));
const BUFFER_BYTES: u64 = 2048;
/// Pieces that are sealed elsewhere go through so much memory.
const OUTPUT_BYTES: u64 = 256 << 20;

/// What happens at some time. Chunks, connections, workers and NICs are indices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Acknowledged { connection: u32 },
    Round { worker: u16 },
    DiskPiece { chunk: u32, piece: u32 },
    ReadDone { chunk: u32 },
    SealPiece { chunk: u32, piece: u32 },
    HandOver { chunk: u32 },
    NicPiece { nic: u32 },
    GivenBack { chunk: u32 },
}

/// One read's payload on its way.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    connection: u32,
    worker: u16,
    nic: u32,
    slot: u32,
    /// Where it is sealed, if elsewhere.
    output: u64,
    pieces_sent: u32,
}

#[derive(Clone, Copy, Default, Debug)]
struct Connection {
    rtt_ns: u64,
    /// Reads that it may have outstanding.
    window: u32,
    /// Reads of the object that are not asked for yet.
    chunks_left: u32,
    /// Reads asked for and not acknowledged.
    outstanding: u32,
}

#[derive(Debug, Default)]
struct Worker {
    free: VecDeque<u32>,
    used: u32,
    reading: u32,
    acknowledged: VecDeque<u32>,
    credit: VecDeque<u32>,
    filled: VecDeque<u32>,
    /// By NIC: what found no room in the ring.
    waiting: Vec<VecDeque<u32>>,
    sent: Vec<u32>,
    is_awake: bool,
    busy_until: u64,
    outputs: u64,
    received: u64,
    headers: u64,
    cold: u64,
}

#[derive(Debug)]
struct Nic {
    /// By worker.
    rings: Vec<VecDeque<u32>>,
    ring_bytes: Vec<u32>,
    is_sending: bool,
    next: usize,
}

/// A run.
#[derive(Debug)]
pub(super) struct Loop<'a> {
    case: &'a Case,
    replay: Replay,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    now: u64,
    connections: Vec<Connection>,
    workers: Vec<Worker>,
    nics: Vec<Nic>,
    disks_free_at: Vec<u64>,
    chunks: Vec<Chunk>,
    chunks_free: Vec<u32>,
    bytes_sent: u64,
    /// Sum over counted rounds of the slots in use of all workers, and how many rounds.
    used: (u64, u64),
}

impl<'a> Loop<'a> {
    pub(super) fn new(case: &'a Case, seed: u64) -> Self {
        let (hardware, server) = (&case.hardware, &case.server);
        let worker = |_| Worker {
            free: (0..server.slots).collect(),
            waiting: vec![VecDeque::new(); hardware.nics as usize],
            ..Worker::default()
        };
        let nic = |_| Nic {
            rings: vec![VecDeque::new(); hardware.workers.into()],
            ring_bytes: vec![0; hardware.workers.into()],
            is_sending: false,
            next: 0,
        };
        let mut new = Self {
            case,
            replay: Replay::new(case.machine, server.layout, seed),
            rng: Rng::new(seed),
            events: BinaryHeap::new(),
            events_made: 0,
            now: 0,
            connections: Vec::new(),
            workers: (0..hardware.workers).map(worker).collect(),
            nics: (0..hardware.nics).map(nic).collect(),
            disks_free_at: vec![0; hardware.disks as usize],
            chunks: Vec::new(),
            chunks_free: Vec::new(),
            bytes_sent: 0,
            used: (0, 0),
        };
        let (shortest, longest) = case.load.rtt_ms;
        for connection in 0..case.load.connections {
            let rtt_ms = shortest + new.rng.unit() * (longest - shortest);
            // Windows are whole reads, and their mean is the load's.
            let window = f64::from(case.load.window_bytes) / f64::from(server.read_bytes);
            let window = ((window + new.rng.unit()) as u32).max(1);
            // The request arrives, which asks for the first object.
            new.connections.push(Connection {
                rtt_ns: (rtt_ms * MS as f64) as u64,
                window,
                chunks_left: 0,
                outstanding: 1,
            });
            let at = new.rng.below(30 * MS as u32);
            new.at(at.into(), Event::Acknowledged { connection });
        }
        new
    }

    pub(super) fn run(mut self) -> Outcome {
        let mut is_counting = false;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at >= END {
                break;
            }
            if !is_counting && at >= COUNT_FROM {
                is_counting = true;
                self.replay.restart_counting();
                (self.bytes_sent, self.used) = (0, (0, 0));
            }
            self.now = at;
            self.handle(event);
        }
        let seconds = (END - COUNT_FROM) as f64 / 1e9;
        let report = self.replay.report(self.bytes_sent);
        let used = self.used.0 as f64 / self.used.1.max(1) as f64;
        Outcome {
            gbps: self.bytes_sent as f64 * 8.0 / seconds / 1e9,
            report,
            misses_m_s: report.cpu_misses as f64 / seconds / 1e6,
            used_bytes: used * f64::from(self.case.server.read_bytes),
            accesses: self.replay.accesses(),
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse((at, self.events_made, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Acknowledged { connection } => self.acknowledged(connection),
            Event::Round { worker } => self.round(worker),
            Event::DiskPiece { chunk, piece } => {
                self.touch(chunk, piece, Touch::DiskWrite);
            }
            Event::ReadDone { chunk } => {
                let worker = self.chunks[chunk as usize].worker;
                self.worker(worker).reading -= 1;
                self.worker(worker).filled.push_back(chunk);
                self.wake(worker);
            }
            Event::SealPiece { chunk, piece } => self.seal_piece(chunk, piece),
            Event::HandOver { chunk } => self.hand_over(chunk),
            Event::NicPiece { nic } => self.nic_piece(nic),
            Event::GivenBack { chunk } => self.free(chunk),
        }
    }

    // ---- a worker's round

    /// A connection's window opens by a read, or its object is whole and the next one is asked for.
    fn acknowledged(&mut self, connection: u32) {
        let (load, read_bytes) = (&self.case.load, self.case.server.read_bytes);
        let object = (load.object_bytes / read_bytes).max(1);
        let state = &mut self.connections[connection as usize];
        state.outstanding -= 1;
        let mut credit = u32::from(state.chunks_left > 0);
        if state.chunks_left == 0 && state.outstanding == 0 {
            state.chunks_left = object;
            credit = state.window.min(object);
        }
        state.chunks_left -= credit;
        state.outstanding += credit;
        let worker = self.worker_of(connection);
        self.receive(worker);
        if credit > 0 {
            let acks = std::iter::repeat_n(connection, credit as usize);
            self.worker(worker).acknowledged.extend(acks);
            self.wake(worker);
        }
    }

    /// A sleeping worker looks again within a poll.
    fn wake(&mut self, worker: u16) {
        if !std::mem::replace(&mut self.worker(worker).is_awake, true) {
            let poll_ns = self.case.server.poll_us * 1e3;
            let phase = (self.rng.unit() * poll_ns) as u64;
            let from = self.now.max(self.worker(worker).busy_until);
            self.at(from + phase, Event::Round { worker });
        }
    }

    fn round(&mut self, worker: u16) {
        let server = &self.case.server;
        let mut clock = self.now;
        self.take_back(worker);
        self.fill_rings(worker);
        for _ in 0..self.worker(worker).acknowledged.len().min(ACKS_MAX) {
            let connection = self.worker(worker).acknowledged.pop_front();
            let connection = connection.expect("invariant: counted above");
            clock += ACK_NS;
            self.touch_connection(worker, connection);
            self.worker(worker).credit.push_back(connection);
        }
        if server.reads_first {
            self.submit_reads(worker, clock);
        }
        let (clock, sent) = self.send_filled(worker, clock);
        if !server.reads_first {
            self.submit_reads(worker, clock);
        }
        let end = clock.max(self.now + (server.poll_us * 1e3) as u64);
        let can_read = self.can_read(worker);
        let state = self.worker(worker);
        state.busy_until = end;
        let is_waiting = state.waiting.iter().any(|it| !it.is_empty());
        let has_work = !state.filled.is_empty()
            || !state.acknowledged.is_empty()
            || !state.sent.is_empty()
            || is_waiting
            || can_read;
        state.is_awake = has_work || sent > 0;
        if state.is_awake {
            self.at(end, Event::Round { worker });
        }
        let used: u32 = self.workers.iter().map(|it| it.used).sum();
        self.used = (self.used.0 + u64::from(used), self.used.1 + 1);
    }

    /// Slots that the NIC has sent.
    fn take_back(&mut self, worker: u16) {
        let delay = (self.case.server.give_back_us * 1e3) as u64;
        for chunk in std::mem::take(&mut self.worker(worker).sent) {
            if delay == 0 {
                self.free(chunk);
            } else {
                self.at(self.now + delay, Event::GivenBack { chunk });
            }
        }
    }

    fn free(&mut self, chunk: u32) {
        let Chunk { worker, slot, .. } = self.chunks[chunk as usize];
        self.chunks_free.push(chunk);
        let state = self.worker(worker);
        state.used -= 1;
        state.free.push_back(slot);
        if !state.credit.is_empty() {
            self.wake(worker);
        }
    }

    fn can_read(&self, worker: u16) -> bool {
        let (server, state) = (&self.case.server, &self.workers[usize::from(worker)]);
        let has_slot = state.used < server.bound && !state.free.is_empty();
        has_slot && state.reading < server.reads_in_flight && !state.credit.is_empty()
    }

    fn submit_reads(&mut self, worker: u16, clock: u64) {
        let (server, hardware) = (&self.case.server, &self.case.hardware);
        while self.can_read(worker) {
            let state = self.worker(worker);
            let slot = match server.order {
                Order::Lifo => state.free.pop_back(),
                Order::Fifo => state.free.pop_front(),
            };
            let slot = slot.expect("invariant: a slot is free");
            let connection = state
                .credit
                .pop_front()
                .expect("invariant: there is credit");
            state.used += 1;
            state.reading += 1;
            let nic = connection / u32::from(hardware.workers) % hardware.nics;
            let (output, pieces_sent) = (0, 0);
            let new = Chunk {
                connection,
                worker,
                nic,
                slot,
                output,
                pieces_sent,
            };
            let chunk = self.chunks_free.pop().unwrap_or_else(|| {
                self.chunks.push(new);
                self.chunks.len() as u32 - 1
            });
            self.chunks[chunk as usize] = new;
            if server.is_cached {
                self.at(self.now, Event::ReadDone { chunk });
                continue;
            }
            // The disk gets through its reads in turn, and every read takes as long again as an empty disk needs.
            let disk = self.rng.below(hardware.disks) as usize;
            let bytes_ns = (f64::from(server.read_bytes) * 8.0 / hardware.disk_gbps) as u64;
            let free_at = clock.max(self.disks_free_at[disk]) + bytes_ns;
            self.disks_free_at[disk] = free_at;
            let done = free_at + (hardware.disk_us * 1e3) as u64;
            for piece in 0..self.pieces() {
                let share = u64::from(piece + 1) * bytes_ns / u64::from(self.pieces());
                self.at(done - bytes_ns + share, Event::DiskPiece { chunk, piece });
            }
            self.at(done, Event::ReadDone { chunk });
        }
    }

    /// Seals and hands over what was read; returns when the core is through, and how many reads that were.
    fn send_filled(&mut self, worker: u16, mut clock: u64) -> (u64, usize) {
        let server = &self.case.server;
        let filled = &mut self.worker(worker).filled;
        let batch = filled.len().min(server.batch as usize);
        let batch: Vec<u32> = filled.drain(..batch).collect();
        let cost = (f64::from(server.read_bytes) * 8.0 / server.core_gbps) as u64;
        for chunk in &batch {
            if server.sealing != Sealing::None {
                for piece in 0..self.pieces() {
                    let share = u64::from(piece) * cost / u64::from(self.pieces());
                    self.at(
                        clock + share,
                        Event::SealPiece {
                            chunk: *chunk,
                            piece,
                        },
                    );
                }
            }
            clock += cost;
            if !server.sends_in_batches {
                self.in_socket(clock, *chunk);
            }
        }
        if server.sends_in_batches {
            batch.iter().for_each(|chunk| self.in_socket(clock, *chunk));
        }
        (clock, batch.len())
    }

    /// From the core to the ring, after the wait in a socket buffer, if there is one.
    fn in_socket(&mut self, clock: u64, chunk: u32) {
        let mean_ns = self.case.server.socket_wait_ms * MS as f64;
        let wait = if mean_ns > 0.0 {
            self.rng.exponential(mean_ns) as u64
        } else {
            0
        };
        self.at(clock + wait, Event::HandOver { chunk });
    }

    // ---- the NIC

    fn hand_over(&mut self, chunk: u32) {
        let Chunk { worker, nic, .. } = self.chunks[chunk as usize];
        self.touch_frames(chunk);
        self.worker(worker).waiting[nic as usize].push_back(chunk);
        self.fill_rings(worker);
    }

    /// Into the rings goes what has room.
    fn fill_rings(&mut self, worker: u16) {
        let read_bytes = self.case.server.read_bytes;
        let index = usize::from(worker);
        for nic in 0..self.nics.len() {
            let (state, waiting) = (&mut self.nics[nic], &mut self.workers[index].waiting[nic]);
            while state.ring_bytes[index] + read_bytes <= self.case.hardware.ring_bytes {
                let Some(chunk) = waiting.pop_front() else {
                    break;
                };
                state.ring_bytes[index] += read_bytes;
                state.rings[index].push_back(chunk);
            }
            let has_frames = !state.rings[index].is_empty();
            if has_frames && !std::mem::replace(&mut state.is_sending, true) {
                self.at(self.now, Event::NicPiece { nic: nic as u32 });
            }
        }
    }

    /// Reads a piece and sends it; the workers' rings take turns.
    fn nic_piece(&mut self, nic: u32) {
        let state = &mut self.nics[nic as usize];
        let rings = state.rings.len();
        let turns = (0..rings).map(|turn| (state.next + turn) % rings);
        let Some(index) = turns.into_iter().find(|it| !state.rings[*it].is_empty()) else {
            state.is_sending = false;
            return;
        };
        state.next = index + 1;
        state.ring_bytes[index] -= PIECE_BYTES;
        let chunk = state.rings[index][0];
        let piece = self.chunks[chunk as usize].pieces_sent;
        self.chunks[chunk as usize].pieces_sent += 1;
        let is_last = piece + 1 == self.pieces();
        if is_last {
            self.nics[nic as usize].rings[index].pop_front();
        }
        self.send_piece(chunk, piece);
        self.bytes_sent += u64::from(PIECE_BYTES);
        if is_last {
            let Chunk {
                connection, worker, ..
            } = self.chunks[chunk as usize];
            let rtt_ns = self.connections[connection as usize].rtt_ns;
            self.at(self.now + rtt_ns, Event::Acknowledged { connection });
            self.worker(worker).sent.push(chunk);
            self.wake(worker);
        }
        let piece_ns = f64::from(PIECE_BYTES) * 8.0 / self.case.hardware.nic_gbps;
        self.at(self.now + piece_ns as u64, Event::NicPiece { nic });
    }

    // ---- what the caches see

    /// Whether the caches are simulated yet.
    const fn is_on(&self) -> bool {
        self.now >= CACHES_FROM
    }

    fn touch(&mut self, chunk: u32, piece: u32, touch: Touch) {
        let Chunk { worker, slot, .. } = self.chunks[chunk as usize];
        if self.is_on() {
            let (offset_bytes, bytes) = (piece * PIECE_BYTES, PIECE_BYTES);
            let at_ns = self.now;
            self.replay.take(&TraceEvent {
                at_ns,
                worker,
                touch,
                slot,
                offset_bytes,
                bytes,
            });
        }
    }

    fn seal_piece(&mut self, chunk: u32, piece: u32) {
        let Sealing::Elsewhere(store) = self.case.server.sealing else {
            return self.touch(chunk, piece, Touch::Seal);
        };
        let Chunk { worker, slot, .. } = self.chunks[chunk as usize];
        if piece == 0 {
            let outputs = &mut self.workers[usize::from(worker)].outputs;
            self.chunks[chunk as usize].output = *outputs % OUTPUT_BYTES;
            *outputs += u64::from(self.case.server.read_bytes);
        }
        if self.is_on() {
            let inside = piece * PIECE_BYTES;
            let source = self.case.server.layout.offset_bytes(slot, inside);
            let target = self.chunks[chunk as usize].output + u64::from(inside);
            let load = &[(Access::Load, Stage::Seal)];
            self.replay
                .access(Region::Arena(worker), source, PIECE_BYTES, load);
            let store = &[(store, Stage::Seal)];
            self.replay
                .access(Region::Output(worker), target, PIECE_BYTES, store);
        }
    }

    fn send_piece(&mut self, chunk: u32, piece: u32) {
        if !matches!(self.case.server.sealing, Sealing::Elsewhere(_)) {
            return self.touch(chunk, piece, Touch::NicRead);
        }
        let Chunk { worker, output, .. } = self.chunks[chunk as usize];
        if self.is_on() {
            let from = output + u64::from(piece * PIECE_BYTES);
            let read = &[(Access::DeviceRead, Stage::Send)];
            self.replay
                .access(Region::Output(worker), from, PIECE_BYTES, read);
        }
    }

    /// The NIC receives what acknowledges a read.
    fn receive(&mut self, worker: u16) {
        const RECEIVED: [(Access, Stage); 2] = [
            (Access::DeviceWrite, Stage::Metadata),
            (Access::Load, Stage::Metadata),
        ];
        for _ in 0..self.case.server.metadata.received_lines {
            let received = &mut self.worker(worker).received;
            let offset = RECEIVE_RING.0 + *received * BUFFER_BYTES % RECEIVE_RING.1;
            *received += 1;
            self.metadata(worker, offset, &RECEIVED);
        }
    }

    fn touch_connection(&mut self, worker: u16, connection: u32) {
        let index = connection / u32::from(self.case.hardware.workers);
        for line in 0..u64::from(self.case.server.metadata.connection_lines) {
            let offset = u64::from(index) * CONNECTION_BYTES + line * 64;
            let access = if line % 2 == 0 {
                Access::Store
            } else {
                Access::Load
            };
            self.metadata(worker, offset, &[(access, Stage::Metadata)]);
        }
    }

    /// Headers, and what a kernel touches for payload.
    fn touch_frames(&mut self, chunk: u32) {
        const HEADER: [(Access, Stage); 2] = [
            (Access::Store, Stage::Metadata),
            (Access::DeviceRead, Stage::Metadata),
        ];
        let Chunk { worker, nic, .. } = self.chunks[chunk as usize];
        let (read_bytes, metadata) = (self.case.server.read_bytes, self.case.server.metadata);
        let ring = HEADER_RING.0 + u64::from(nic) * HEADER_RING.1;
        let packets = if metadata.header_lines > 0 {
            read_bytes / PACKET_BYTES
        } else {
            0
        };
        for _ in 0..packets {
            let headers = &mut self.worker(worker).headers;
            let offset = ring + *headers * BUFFER_BYTES % HEADER_RING.1;
            *headers += 1;
            for line in 0..u64::from(metadata.header_lines) {
                self.metadata(worker, offset + line * 64, &HEADER);
            }
        }
        let cold = (metadata.cold_lines * f64::from(read_bytes / PIECE_BYTES)) as u64;
        for _ in 0..cold {
            let touched = &mut self.worker(worker).cold;
            // Every seventh line: no two neighbours, and all lines in the end.
            let offset = COLD.0 + *touched * 7 * 64 % COLD.1;
            let access = if touched.is_multiple_of(2) {
                Access::Store
            } else {
                Access::Load
            };
            *touched += 1;
            self.metadata(worker, offset, &[(access, Stage::Metadata)]);
        }
    }

    /// Accesses to one line of a worker's metadata.
    fn metadata(&mut self, worker: u16, offset_bytes: u64, accesses: &[(Access, Stage)]) {
        if self.is_on() {
            self.replay
                .access(Region::Metadata(worker), offset_bytes, 1, accesses);
        }
    }

    // ---- small things

    fn worker(&mut self, worker: u16) -> &mut Worker {
        &mut self.workers[usize::from(worker)]
    }

    const fn worker_of(&self, connection: u32) -> u16 {
        (connection % self.case.hardware.workers as u32) as u16
    }

    /// Of a read.
    const fn pieces(&self) -> u32 {
        self.case.server.read_bytes / PIECE_BYTES
    }
}
