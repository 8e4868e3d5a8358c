//! The server under test: the conductor, an arena and a store of one object, on a virtual clock.
//! It collects what leaves the server: packets, which are cut, parsed and checked as on a wire, and
//! reads.
//!
//! It refuses frames that are not TCP, and panics on frames that `wire` cannot parse: both would be
//! faults of the server. Bounded by the script; a server that never comes to rest at one moment is a
//! panic after [`ROUNDS_MAX`] rounds.

use core::net::{IpAddr, Ipv4Addr};
use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use clock::Instant;
use memory::{Arena, ArenaConfig, PageKind};
use session::{
    Conductor, Config, DeviceIndex, LookupError, LookupPlan, Object, ObjectHandle, ReadError,
    ReadPlan, TcpConfig, TransmitProgress, Transmitted,
};
use sites::Sites;
use wire::{ChecksumState, Ecn, Incoming, MacAddress, Outgoing, Route, TcpRepr};

use crate::content::{self, Content};
use crate::script::{Answer, Setup};

/// The server's clock at second 0 of a script. Not zero, so that timestamps can lie before it.
pub(crate) const START: Instant = Instant::from_millis(1000);
/// Port of the server.
pub(crate) const SERVER_PORT: u16 = 80;
/// Port of the peer.
pub(crate) const PEER_PORT: u16 = 40_000;

const SERVER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// Address of the server.
pub(crate) const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// A router on the path, which reports packets that are too big.
pub(crate) const ROUTER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
/// Payload of the largest frame. The link cuts it; a whole number of the usual segments.
const FRAME_BYTES: u32 = 64_000;
/// What the server takes off a link's limit for headers.
const HEADERS_BYTES: u32 = 72;
/// Rounds at one moment.
const ROUNDS_MAX: u32 = 10_000;

/// A packet that left the server.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) at: Instant,
    pub(crate) segment: TcpRepr,
    pub(crate) ecn: Ecn,
    pub(crate) payload: Vec<u8>,
}

/// A read that was planned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) at: Instant,
    pub(crate) range: Range<u64>,
}

/// See the module.
pub(crate) struct Server {
    conductor: Conductor,
    arena: Arena,
    now: Instant,
    object: Object,
    content: Content,
    /// Reads are done when they are planned.
    is_disk_immediate: bool,
    /// Reads are returned.
    is_disk_full: bool,
    /// Reads that are not answered, oldest first.
    unanswered: Vec<ReadPlan>,
    /// Packets that left and were not looked at.
    pub(crate) packets: VecDeque<Packet>,
    /// Reads that were planned and not looked at.
    pub(crate) reads: VecDeque<Planned>,
}

impl Server {
    pub(crate) fn new(setup: &Setup, content: Content) -> Self {
        let mut conductor = Conductor::new(config(setup, &content));
        let mut arena_config = ArenaConfig::new(setup.slots);
        arena_config.pages = PageKind::Ordinary;
        let mut arena = Arena::new(arena_config).expect("an arena of a few slots");
        // The announcements of its address.
        let announced = conductor.transmit(START, &mut arena, &mut |_| Transmitted::Taken);
        assert_eq!(announced, TransmitProgress::Done);
        Self {
            conductor,
            arena,
            now: START,
            object: content::object(setup),
            content,
            is_disk_immediate: setup.is_disk_immediate,
            is_disk_full: false,
            unanswered: Vec::new(),
            packets: VecDeque::new(),
            reads: VecDeque::new(),
        }
    }

    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn content(&mut self) -> &mut Content {
        &mut self.content
    }

    /// Whether nothing is left that was not looked at.
    pub(crate) fn is_quiet(&self) -> bool {
        self.packets.is_empty() && self.reads.is_empty()
    }

    /// Fires timers in order until `until`, or until something leaves the server. A timer that is
    /// due at `until` fires.
    pub(crate) fn advance(&mut self, until: Instant) {
        let mut rounds = 0;
        while self.is_quiet()
            && let Some(deadline) = self.conductor.poll_timeout()
            && deadline <= until
        {
            rounds = if deadline > self.now { 0 } else { rounds + 1 };
            assert!(rounds < ROUNDS_MAX, "a timer fires for ever");
            self.now = self.now.max(deadline);
            self.conductor.handle_timeouts(self.now, &mut self.arena);
            self.run();
        }
        if self.is_quiet() {
            self.now = self.now.max(until);
        }
    }

    /// A frame arrives.
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        let state = ChecksumState::Unverified;
        self.conductor
            .handle_frame(self.now, &mut self.arena, frame, state);
        self.conductor.end_batch(self.now, &mut self.arena);
        self.run();
    }

    /// The disk answers a read; `None`: the oldest one.
    ///
    /// # Errors
    /// There is no such read. The message names those there are.
    pub(crate) fn answer(
        &mut self,
        answer: Answer,
        which: Option<&Range<u64>>,
    ) -> Result<(), String> {
        let matches = |read: &ReadPlan| which.is_none_or(|range| *range == range_of(read));
        let Some(index) = self.unanswered.iter().position(matches) else {
            let there: Vec<String> = self
                .unanswered
                .iter()
                .map(|read| format!("{:?}", range_of(read)))
                .collect();
            return Err(format!("reads under way: [{}]", there.join(", ")));
        };
        let read = self.unanswered.remove(index);
        self.complete(read, answer);
        self.run();
        Ok(())
    }

    /// The disk's queue is full from now on, or has room again.
    pub(crate) fn set_disk_full(&mut self, is_full: bool) {
        self.is_disk_full = is_full;
        self.run();
    }

    /// Answers all reads, and returns the slots that are missing if no connection is left.
    pub(crate) fn missing_slots(&mut self) -> usize {
        for read in core::mem::take(&mut self.unanswered) {
            self.complete(read, Answer::Done);
        }
        if self.conductor.connection_count() > 0 {
            return 0;
        }
        self.arena.slot_count() - self.arena.free_count()
    }

    /// Polls the conductor until it has nothing more to do at this moment.
    fn run(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = false;
            while let Some(plan) = self.conductor.poll_lookup() {
                self.look_up(&plan);
                is_busy = true;
            }
            is_busy |= self.plan_reads();
            let before = self.packets.len();
            self.transmit();
            while self.conductor.poll_released().is_some() {}
            if !is_busy && self.packets.len() == before {
                return;
            }
        }
        panic!("the server does not come to rest at one moment");
    }

    fn look_up(&mut self, plan: &LookupPlan) {
        let answer = if plan.path == content::OBJECT_PATH {
            Ok(self.object.clone())
        } else {
            Err(LookupError::NotFound)
        };
        self.conductor.handle_lookup(self.now, plan.token, answer);
    }

    /// Whether there were any.
    fn plan_reads(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(read) = self.conductor.poll_read(self.now, &mut self.arena) {
            if self.is_disk_full {
                self.conductor.return_read(&mut self.arena, read);
                break;
            }
            is_busy = true;
            if self.is_disk_immediate {
                self.complete(read, Answer::Done);
                continue;
            }
            self.reads.push_back(Planned {
                at: self.now,
                range: range_of(&read),
            });
            self.unanswered.push(read);
        }
        is_busy
    }

    fn complete(&mut self, read: ReadPlan, answer: Answer) {
        let range = range_of(&read);
        let there = range.end.min(self.object.meta.size_bytes) - range.start;
        let there = u32::try_from(there).expect("a read fits in a slot");
        let result = match answer {
            Answer::Failed => Err((read.slot, ReadError::Io)),
            Answer::Changed => Err((read.slot, ReadError::Changed)),
            Answer::Done | Answer::Short(_) => {
                let filled = match answer {
                    Answer::Short(bytes) => bytes.min(there),
                    _ => there,
                };
                let mut slot = read.slot.into_reading().into_filled(filled);
                let bytes = self.arena.payload_mut(&mut slot);
                for (byte, offset) in bytes.iter_mut().zip(range.start..) {
                    *byte = content::object_byte(offset);
                }
                Ok(slot)
            }
        };
        let (now, arena) = (self.now, &mut self.arena);
        self.conductor
            .handle_completion(now, arena, read.token, result);
    }

    fn transmit(&mut self) {
        let (now, packets) = (self.now, &mut self.packets);
        let progress = self
            .conductor
            .transmit(now, &mut self.arena, &mut |outgoing| {
                cut(now, outgoing, packets);
                Transmitted::Taken
            });
        assert_eq!(progress, TransmitProgress::Done);
    }
}

/// The route of the server's frames to the peer.
pub(crate) const fn route() -> Route {
    Route {
        source_mac: SERVER_MAC,
        destination_mac: PEER_MAC,
        source: IpAddr::V4(SERVER_ADDRESS),
        destination: IpAddr::V4(PEER_ADDRESS),
    }
}

/// The route of the peer's frames to the server.
pub(crate) const fn peer_route() -> Route {
    Route {
        source_mac: PEER_MAC,
        destination_mac: SERVER_MAC,
        source: IpAddr::V4(PEER_ADDRESS),
        destination: IpAddr::V4(SERVER_ADDRESS),
    }
}

fn range_of(read: &ReadPlan) -> Range<u64> {
    read.offset_bytes..read.offset_bytes + u64::from(read.length_bytes)
}

/// Cuts a frame as a link would, and parses each packet with its checksums.
fn cut(now: Instant, outgoing: &Outgoing<'_>, packets: &mut VecDeque<Packet>) {
    wire::cut(outgoing, &mut |headers, parts| {
        let frame = [headers, &parts.concat()].concat();
        match wire::parse_frame(&frame, ChecksumState::Unverified) {
            Ok(Incoming::Tcp {
                segment,
                ecn,
                payload,
                ..
            }) => packets.push_back(Packet {
                at: now,
                segment,
                ecn,
                payload: payload.to_vec(),
            }),
            other => panic!("the server sent a frame that is no TCP segment: {other:?}"),
        }
    });
}

fn config(setup: &Setup, content: &Content) -> Config {
    Config {
        addresses: vec![IpAddr::V4(SERVER_ADDRESS)],
        mac: SERVER_MAC,
        mtu_bytes: setup.mtu_bytes,
        segmentation_bytes_max: FRAME_BYTES + HEADERS_BYTES,
        checksum_offload: true,
        http_port: Some(SERVER_PORT),
        tcp: TcpConfig {
            congestion: setup.congestion,
            is_paced: setup.is_paced,
            reduces_idle_window: setup.reduces_idle_window,
            accepts_ecn: setup.accepts_ecn,
            probes_path_mtu: setup.probes_path_mtu,
            ..TcpConfig::default()
        },
        connections_max: 4,
        seed: [9; 32],
        sites: Arc::new(Sites::of_replies(content.reply_config())),
        unix_seconds_at_start: content::UNIX_SECONDS,
        idle_timeout: setup.idle_timeout,
        send_timeout: setup.send_timeout,
        reads_max: 64,
        // Scripts say the read of each burst.
        kept_slots_max: 0,
        ..Config::default()
    }
}

/// The only device.
pub(crate) fn device() -> DeviceIndex {
    DeviceIndex::default()
}

/// The only object's handle.
pub(crate) const OBJECT: ObjectHandle = ObjectHandle(1);
