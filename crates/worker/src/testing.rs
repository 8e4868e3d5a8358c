//! A worker with a simulated link and disk, and one client with a minimal TCP, for tests of this crate and of
//! others: it receives in order and acknowledges. It refuses to lose, to reorder and to be many: the simulator does.

#![cfg_attr(
    not(test),
    allow(dead_code, reason = "the rest is for tests of this crate")
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test that panics has failed"
)]

use std::net::{IpAddr, Ipv4Addr};

use clock::{Duration, Instant};
use diskmap::sim::{SimConfig as DiskConfig, SimContent, SimDisk, pattern_byte};
use link::sim::{SimConfig as LinkConfig, SimLink, SimPort};
use link::{Capabilities, Link as _};
use memory::{Arena, ArenaConfig, PageKind};
use session::{Conductor, Stray};
use store::{Catalogue, CatalogueEntry, FileTime, Metadata, Store, StoreConfig};
use wire::{
    ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, Route, SeqNumber, TcpChecksum,
    TcpFlags, TcpOptions, TcpRepr,
};

use crate::tls::Handshaker;
use crate::{Step, Worker};

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const CLIENT_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x99]);
/// Of the client's first connection.
pub(crate) const CLIENT_PORT: u16 = 50_000;
/// Of the server: plain, and TLS.
pub(crate) const HTTP_PORT: u16 = 80;
pub(crate) const HTTPS_PORT: u16 = 443;
/// Connections at once.
pub const CONNECTIONS_MAX: usize = 4;
/// Bytes of the file served.
pub(crate) const FILE_BYTES: u64 = 300_000;
/// When all files were modified last.
pub(crate) const MODIFIED: FileTime = FileTime {
    seconds: 1_600_000_000,
    nanos: 7,
};
/// Read buffers.
pub(crate) const SLOTS: u32 = 16;
/// Every read takes this long.
pub(crate) const DISK_LATENCY: Duration = Duration::from_micros(100);

/// Settings that tests change.
#[derive(Debug)]
pub struct Setup {
    /// The link.
    pub link: LinkConfig,
    /// The disk.
    pub disk: DiskConfig,
    /// How many files `/0`, `/1`, ... there are.
    pub files: u32,
    /// How many devices there are; files take turns.
    pub devices: u32,
    /// Whether look-ups take a round.
    pub answers_later: bool,
    /// Objects open at once.
    pub objects_max: usize,
    /// How long an object may be in use that its name does not lead to.
    pub retired_time_max: Duration,
    /// `None`: nothing is served over TLS.
    pub tls: Option<Handshaker>,
}

impl Default for Setup {
    fn default() -> Self {
        let disk = DiskConfig {
            latency_min: DISK_LATENCY,
            latency_max: DISK_LATENCY,
            ..DiskConfig::new(1)
        };
        Self {
            link: LinkConfig::default(),
            disk,
            files: 1,
            devices: 1,
            answers_later: false,
            objects_max: 8,
            retired_time_max: StoreConfig::default().retired_time_max,
            tls: None,
        }
    }
}

impl Setup {
    pub(crate) const fn device_of(&self, file: u32) -> u32 {
        file % self.devices
    }
}

/// A worker, a client, and the time.
#[derive(Debug)]
pub struct World {
    /// With files of a pattern, `/0`, `/1`, ...
    pub worker: Worker<SimLink, SimDisk>,
    /// Of its first connection.
    pub client: Client,
    /// The next round's time.
    pub now: Instant,
}

/// One connection at a time, in order, without timers.
#[derive(Debug)]
pub struct Client {
    pub(crate) port: SimPort,
    pub(crate) source_port: u16,
    pub(crate) server_port: u16,
    pub(crate) next: SeqNumber,
    pub(crate) expected: SeqNumber,
    pub(crate) received: Vec<u8>,
    pub(crate) is_connected: bool,
    pub(crate) is_reset: bool,
    /// Number of RSTs received, on any connection.
    pub resets: usize,
}

pub(crate) fn content(file: u32) -> SimContent {
    SimContent::Pattern {
        seed: file.into(),
        size_bytes: FILE_BYTES,
    }
}

pub(crate) fn bytes(content: &SimContent) -> Vec<u8> {
    let SimContent::Pattern { seed, size_bytes } = content else {
        unreachable!("all contents here are patterns")
    };
    (0..*size_bytes)
        .map(|offset| pattern_byte(*seed, offset))
        .collect()
}

pub(crate) fn store(setup: &Setup) -> Store {
    let mut catalogue = Catalogue::new();
    for file in 0..setup.files {
        let metadata = Metadata {
            size_bytes: FILE_BYTES,
            modified: MODIFIED,
            inode: file.into(),
            device: setup.device_of(file).into(),
            ..Metadata::default()
        };
        let answers_later = setup.answers_later;
        catalogue.insert(
            &format!("/{file}"),
            CatalogueEntry {
                source: file,
                metadata,
                answers_later,
            },
        );
    }
    Store::catalogue(
        catalogue,
        StoreConfig {
            objects_max: setup.objects_max,
            retired_time_max: setup.retired_time_max,
            ..StoreConfig::default()
        },
    )
}

pub(crate) fn conductor(
    capabilities: Capabilities,
    connections_max: usize,
    reads_max: usize,
) -> Conductor {
    Conductor::new(session::Config {
        addresses: vec![IpAddr::V4(SERVER)],
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: Some(HTTP_PORT),
        https_port: Some(HTTPS_PORT),
        connections_max,
        seed: [7; 32],
        unix_seconds_at_start: 1_700_000_000,
        // Below TCP's keep-alive: the first timer of a connection that asks for nothing.
        idle_timeout: Duration::from_secs(50),
        reads_max,
        // Tests count slots and reads.
        kept_slots_max: 0,
        ..session::Config::default()
    })
}

pub(crate) fn arena() -> Arena {
    let config = ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(SLOTS)
    };
    Arena::new(config).unwrap()
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let (mut link, port) = link::sim::pair(setup.link.clone(), 1);
        let arena = arena();
        if link.zero_copy().is_ok() {
            link.borrow_slots(arena.slot_memory()).unwrap();
        }
        let reads_max = setup.disk.queue_depth.min(SLOTS) as usize;
        let mut disk = SimDisk::new(setup.disk);
        for file in 0..setup.files {
            let device = setup.device_of(file);
            assert_eq!(disk.add_file_on(device, content(file)), file);
        }
        let (store, conductor) = (
            store(&setup),
            conductor(link.capabilities(), CONNECTIONS_MAX, reads_max),
        );
        let worker = Worker::new(link, disk, store, conductor, arena, setup.tls);
        let client = Client {
            port,
            source_port: CLIENT_PORT,
            server_port: HTTP_PORT,
            next: SeqNumber(1_000),
            expected: SeqNumber(0),
            received: Vec::new(),
            is_connected: false,
            is_reset: false,
            resets: 0,
        };
        let mut world = Self {
            worker,
            client,
            now: Instant::from_millis(1),
        };
        world.settle();
        world
    }

    /// A world with an open connection and an idle worker.
    /// # Panics
    /// The handshake did not end.
    #[must_use]
    pub fn connected(setup: Setup) -> Self {
        let mut world = Self::new(setup);
        world.connect();
        assert_eq!(world.counter("tcp_established_count"), 1);
        world
    }

    pub(crate) fn connect(&mut self) {
        self.client.send_flags(self.now, TcpFlags::SYN, b"");
        self.run_until(|client| client.is_connected);
    }

    /// The client drops its connection and opens another.
    pub fn reconnect(&mut self) {
        self.client.source_port += 1;
        self.client.is_connected = false;
        self.client.is_reset = false;
        self.connect();
    }

    /// One round.
    pub fn step(&mut self) -> Step {
        self.worker.step(self.now).unwrap()
    }

    /// Rounds until nothing happens, all at the same time.
    pub(crate) fn settle(&mut self) -> Step {
        for _ in 0..1_000 {
            let step = self.step();
            if !step.progressed {
                return step;
            }
        }
        panic!("the worker does not come to rest");
    }

    /// The client asks for that file.
    pub fn ask(&mut self, file: u32) {
        let request = format!("GET /{file} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.client
            .send_flags(self.now, TcpFlags::ACK, request.as_bytes());
    }

    /// Lets time pass until the client has `length` bytes of replies in all.
    pub(crate) fn receive(&mut self, length: usize) {
        self.run_until(|client| client.received.len() >= length);
    }

    /// Lets time pass, from one event to the next, until the client has what it wants.
    pub(crate) fn run_until(&mut self, is_done: impl Fn(&Client) -> bool) {
        for _ in 0..100_000 {
            let step = self.settle();
            if step.blocked_on_link {
                let retry = step.next_timeout.expect("a blocked worker tries again");
                assert!(retry <= self.now + link::FULL_RETRY_AFTER, "{retry:?}");
            }
            self.client.receive(self.now);
            if is_done(&self.client) {
                // Handles the last acknowledgment.
                self.settle();
                return;
            }
            let events = [
                step.next_timeout,
                self.worker.disk().next_event(),
                self.worker.link().next_event(),
            ];
            let next = events.into_iter().flatten().min().unwrap_or(self.now);
            self.now = next.max(self.now + Duration::from_nanos(1));
        }
        panic!(
            "after {} bytes the client still waits",
            self.client.received.len()
        );
    }

    /// Fetches a file on the open connection and checks it.
    pub(crate) fn fetch(&mut self, file: u32) {
        self.fetch_as(file, &content(file));
    }

    /// Fetches a file that holds `expected`.
    pub(crate) fn fetch_as(&mut self, file: u32, expected: &SimContent) {
        let before = self.client.received.len();
        self.ask(file);
        let head_bytes = 1;
        self.receive(before + head_bytes);
        let head = before + find_head_end(&self.client.received[before..]);
        let expected = bytes(expected);
        self.receive(head + expected.len());
        assert!(
            self.client.received[head..] == expected,
            "not the bytes of file {file}"
        );
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let pairs = self.worker.counters();
        let pair = pairs.iter().find(|(known, _)| *known == name);
        pair.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    pub(crate) fn assert_quiet(&self) {
        assert_eq!(self.worker.disk().in_flight_reads(), 0);
        assert_eq!(
            self.worker.arena().free_count(),
            self.worker.arena().slot_count()
        );
    }
}

pub(crate) trait Reads {
    fn in_flight_reads(&self) -> usize;
}

impl Reads for SimDisk {
    fn in_flight_reads(&self) -> usize {
        diskmap::Disk::in_flight(self)
    }
}

pub(crate) fn find_head_end(reply: &[u8]) -> usize {
    reply
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .expect("a whole head came")
        + 4
}

impl Client {
    /// Takes every frame that has arrived, in order, and acknowledges each.
    pub fn receive(&mut self, now: Instant) {
        while let Some(frame) = self.port.receive(now) {
            let incoming = wire::parse_frame(&frame, ChecksumState::Trusted);
            let Ok(Incoming::Tcp {
                segment,
                payload: text,
                ..
            }) = incoming
            else {
                continue;
            };
            if segment.flags.contains(TcpFlags::RST) {
                self.is_reset = true;
                self.resets += 1;
                continue;
            }
            if segment.flags.contains(TcpFlags::SYN) {
                self.expected = segment.sequence.wrapping_add(1);
                self.is_connected = true;
            } else if segment.sequence == self.expected {
                self.received.extend_from_slice(text);
                let bytes = u32::try_from(text.len()).unwrap();
                self.expected = self.expected.wrapping_add(bytes);
            } else {
                continue;
            }
            if !text.is_empty() || segment.flags.contains(TcpFlags::SYN) {
                self.send_flags(now, TcpFlags::ACK, b"");
            }
        }
    }

    pub(crate) fn send_flags(&mut self, now: Instant, flags: TcpFlags, text: &[u8]) {
        let is_syn = flags.contains(TcpFlags::SYN);
        let options = TcpOptions {
            mss: is_syn.then_some(1_460),
            window_scale: is_syn.then_some(4),
            ..TcpOptions::default()
        };
        let segment = TcpRepr {
            source_port: self.source_port,
            destination_port: self.server_port,
            sequence: self.next,
            acknowledgment: self.expected,
            flags,
            window: u16::MAX,
            options,
        };
        let route = Route {
            source_mac: CLIENT_MAC,
            destination_mac: LinkConfig::default().mac,
            source: IpAddr::V4(CLIENT),
            destination: IpAddr::V4(SERVER),
        };
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(&mut buffer, &route, &segment, &[text], TcpChecksum::Full, 0);
        self.port.send(now, [&buffer[..length], text].concat());
        let bytes = u32::try_from(text.len()).unwrap() + u32::from(is_syn);
        self.next = self.next.wrapping_add(bytes);
    }
}

const REQUEST: &[u8] = b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\n";

/// What a worker without connections makes of a client's request to another worker.
pub(crate) fn stray_request(client: &Client) -> (World, Stray) {
    let mut wrong = World::new(Setup::default());
    wrong.worker.conductor.set_other_workers(1);
    wrong.settle();
    wrong.client.next = client.next;
    wrong.client.expected = client.expected;
    wrong.client.send_flags(wrong.now, TcpFlags::ACK, REQUEST);
    wrong.run_until(|_| true);
    let stray = wrong
        .worker
        .poll_stray()
        .expect("it has no such connection");
    assert!(wrong.worker.poll_stray().is_none());
    (wrong, stray)
}

/// A segment whose connection another worker has.
#[must_use]
pub fn stray() -> Stray {
    stray_request(&World::connected(Setup::default()).client).1
}
