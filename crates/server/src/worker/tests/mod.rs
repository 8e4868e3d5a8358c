//! The worker with a simulated link and disk, and one client with a minimal TCP: it receives in
//! order and acknowledges. The simulator tests loss, reordering and many clients.

mod end;
mod listing;
mod objects;
mod overload;
mod strays;
mod tls;
mod warnings;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

use clock::{Duration, Instant};
use diskmap::sim::{SimChange, SimConfig as DiskConfig, SimContent, SimDisk, pattern_byte};
use link::sim::{SimConfig as LinkConfig, SimLink, SimPort};
use link::{Capabilities, Link, LinkError, Received, TransmitError};
use memory::{Arena, ArenaConfig, PageKind};
use session::Conductor;
use store::{Catalogue, CatalogueEntry, Metadata, Store, StoreConfig};
use wire::{
    ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress, Outgoing, Route, SeqNumber,
    TcpChecksum, TcpFlags, TcpOptions, TcpRepr,
};

use super::{RECEIVE_FRAMES_MAX, Worker, WorkerError};
use crate::metrics::table::meaning_of;
use crate::tls::Handshaker;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x99]);
/// Of the client's first connection.
const CLIENT_PORT: u16 = 50_000;
/// Of the server: plain, and TLS.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// Connections at once.
const CONNECTIONS_MAX: usize = 4;
/// Bytes of the file served.
const FILE_BYTES: u64 = 300_000;
/// Read buffers.
const SLOTS: u32 = 16;
/// Every read takes this long.
const DISK_LATENCY: Duration = Duration::from_micros(100);

/// Settings that tests change.
struct Setup {
    link: LinkConfig,
    disk: DiskConfig,
    /// How many files `/0`, `/1`, ... there are.
    files: u32,
    /// How many devices there are; files take turns.
    devices: u32,
    answers_later: bool,
    /// Objects open at once.
    objects_max: usize,
    /// How long an object may be in use that its name does not lead to.
    retired_time_max: Duration,
    tls: Option<Handshaker>,
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
    const fn device_of(&self, file: u32) -> u32 {
        file % self.devices
    }
}

/// A worker, a client, and the time.
struct World {
    worker: Worker<SimLink, SimDisk>,
    client: Client,
    now: Instant,
}

/// One connection at a time, in order, without timers.
struct Client {
    port: SimPort,
    source_port: u16,
    server_port: u16,
    next: SeqNumber,
    expected: SeqNumber,
    received: Vec<u8>,
    is_connected: bool,
    is_reset: bool,
    /// Number of RSTs received, on any connection.
    resets: usize,
}

fn content(file: u32) -> SimContent {
    SimContent::Pattern {
        seed: file.into(),
        size_bytes: FILE_BYTES,
    }
}

fn bytes(content: &SimContent) -> Vec<u8> {
    let SimContent::Pattern { seed, size_bytes } = content else {
        unreachable!("all contents here are patterns")
    };
    (0..*size_bytes)
        .map(|offset| pattern_byte(*seed, offset))
        .collect()
}

fn store(setup: &Setup) -> Store {
    let mut catalogue = Catalogue::new();
    for file in 0..setup.files {
        let metadata = Metadata {
            size_bytes: FILE_BYTES,
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

fn conductor(capabilities: Capabilities, connections_max: usize, reads_max: usize) -> Conductor {
    Conductor::new(session::Config {
        are_addresses_announced: true,
        addresses: vec![IpAddr::V4(SERVER)],
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: Some(HTTP_PORT),
        https_port: Some(HTTPS_PORT),
        key_records_max: u64::MAX,
        tcp: session::TcpConfig::default(),
        aead_library: record::AeadLibrary::default(),
        connections_max,
        seed: [7; 32],
        replies: http::ReplyConfig::default(),
        unix_seconds_at_start: 1_700_000_000,
        head_timeout: Duration::from_secs(20),
        // Below TCP's keep-alive: the first timer of a connection that asks for nothing.
        idle_timeout: Duration::from_secs(50),
        send_timeout: Duration::from_secs(60),
        connections_per_source_max: None,
        source_filter: session::SourceFilter::default(),
        read_limits: session::ReadLimits::default(),
        reads_max,
    })
}

fn arena() -> Arena {
    let config = ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(SLOTS)
    };
    Arena::new(config).unwrap()
}

impl World {
    fn new(setup: Setup) -> Self {
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
    fn connected(setup: Setup) -> Self {
        let mut world = Self::new(setup);
        world.connect();
        assert_eq!(world.counter("tcp_established_count"), 1);
        world
    }

    fn connect(&mut self) {
        self.client.send_flags(self.now, TcpFlags::SYN, b"");
        self.run_until(|client| client.is_connected);
    }

    /// The client drops its connection and opens another.
    fn reconnect(&mut self) {
        self.client.source_port += 1;
        self.client.is_connected = false;
        self.client.is_reset = false;
        self.connect();
    }

    fn step(&mut self) -> super::Step {
        self.worker.step(self.now).unwrap()
    }

    /// Rounds until nothing happens, all at the same time.
    fn settle(&mut self) -> super::Step {
        for _ in 0..1_000 {
            let step = self.step();
            if !step.progressed {
                return step;
            }
        }
        panic!("the worker does not come to rest");
    }

    fn ask(&mut self, file: u32) {
        let request = format!("GET /{file} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.client
            .send_flags(self.now, TcpFlags::ACK, request.as_bytes());
    }

    /// Lets time pass until the client has `length` bytes of replies in all.
    fn receive(&mut self, length: usize) {
        self.run_until(|client| client.received.len() >= length);
    }

    /// Lets time pass, from one event to the next, until the client has what it wants.
    fn run_until(&mut self, is_done: impl Fn(&Client) -> bool) {
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
            self.worker.disk_mut().advance(self.now);
        }
        panic!(
            "after {} bytes the client still waits",
            self.client.received.len()
        );
    }

    /// Fetches a file on the open connection and checks it.
    fn fetch(&mut self, file: u32) {
        self.fetch_as(file, &content(file));
    }

    /// Fetches a file that holds `expected`.
    fn fetch_as(&mut self, file: u32, expected: &SimContent) {
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

    fn counter(&self, name: &str) -> u64 {
        let pairs = self.worker.counters();
        let pair = pairs.iter().find(|(known, _)| *known == name);
        pair.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    fn assert_quiet(&self) {
        assert_eq!(self.worker.disk().in_flight_reads(), 0);
        assert_eq!(
            self.worker.arena().free_count(),
            self.worker.arena().slot_count()
        );
    }
}

trait Reads {
    fn in_flight_reads(&self) -> usize;
}

impl Reads for SimDisk {
    fn in_flight_reads(&self) -> usize {
        diskmap::Disk::in_flight(self)
    }
}

fn find_head_end(reply: &[u8]) -> usize {
    reply
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .expect("a whole head came")
        + 4
}

impl Client {
    /// Takes every frame that has arrived, in order, and acknowledges each.
    fn receive(&mut self, now: Instant) {
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

    fn send_flags(&mut self, now: Instant, flags: TcpFlags, text: &[u8]) {
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

#[test]
fn an_idle_worker_reports_no_progress() {
    let mut world = World::new(Setup::default());
    let step = world.step();
    assert!(!step.progressed && !step.blocked_on_link);
    assert_eq!(step.next_timeout, None);
    let (rounds, empty) = ("server_step_rounds", "server_empty_rounds");
    let (before, empty_before) = (world.counter(rounds), world.counter(empty));
    world.step();
    assert_eq!(world.counter(rounds), before + 1);
    assert_eq!(world.counter(empty), empty_before + 1);
}

#[test]
fn a_request_becomes_reads_in_the_round_it_arrives() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    assert!(world.step().progressed);
    assert!(world.worker.disk().in_flight_reads() > 0);
}

#[test]
fn a_completion_leaves_in_the_round_it_is_reaped() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.settle();
    let before = world.counter("link_transmitted_frames");
    world.now += DISK_LATENCY;
    world.worker.disk_mut().advance(world.now);
    assert!(world.step().progressed);
    assert!(world.counter("link_transmitted_frames") > before);
}

#[test]
fn an_acknowledgment_becomes_reads_in_the_round_it_arrives() {
    let mut world = World::connected(Setup::default());
    world.ask(0);
    world.settle();
    world.now += DISK_LATENCY;
    world.settle();
    assert_eq!(
        world.worker.disk().in_flight_reads(),
        0,
        "credit is used up"
    );
    world.client.receive(world.now);
    assert!(world.step().progressed);
    assert!(world.worker.disk().in_flight_reads() > 0);
}

#[test]
fn a_file_comes_whole_and_leaves_nothing_behind() {
    let mut world = World::connected(Setup::default());
    world.fetch(0);
    world.fetch(0);
    world.assert_quiet();
    assert_eq!(world.counter("store_opened_objects"), 1);
    assert_eq!(world.counter("store_shared_lookups"), 1);
}

#[test]
fn a_round_receives_no_more_than_its_bound() {
    let mut world = World::new(Setup::default());
    let before = world.counter("link_received_frames");
    for _ in 0..RECEIVE_FRAMES_MAX + 1 {
        // Segments for no connection: each is received and refused.
        world.client.send_flags(world.now, TcpFlags::RST, b"");
    }
    let bound = u64::try_from(RECEIVE_FRAMES_MAX).unwrap();
    assert!(world.step().progressed);
    assert_eq!(world.counter("link_received_frames"), before + bound);
    assert!(world.step().progressed);
    assert_eq!(world.counter("link_received_frames"), before + bound + 1);
    assert!(!world.step().progressed);
}

#[test]
fn received_frames_are_handled_before_due_timers() {
    // A connection that asks for nothing is closed in the end; not if its request waits unread.
    for (request, closed) in [
        (&b""[..], 1),
        (&b"GET /f0 HTTP/1.1\r\nHost: a\r\n\r\n"[..], 0),
    ] {
        let mut world = World::connected(Setup::default());
        world.now = world.worker.conductor().poll_timeout().expect("a timer");
        world.client.send_flags(world.now, TcpFlags::ACK, request);
        world.step();
        assert_eq!(world.counter("http_idle_close_count"), closed);
    }
}

#[test]
fn a_full_link_is_tried_again_in_time() {
    let link = LinkConfig {
        transmit_bits_per_second: 1_000_000_000,
        transmit_queue_frames_max: 1,
        ..LinkConfig::default()
    };
    let mut world = World::connected(Setup {
        link,
        ..Setup::default()
    });
    world.fetch(0);
    world.assert_quiet();
    assert!(world.counter("server_blocked_rounds") > 0);
    assert!(world.counter("link_full_frames") > 0);
}

#[test]
fn the_time_of_loans_is_counted() {
    let link = LinkConfig {
        borrows_slots: true,
        device_delay: Duration::from_millis(2),
        ..LinkConfig::default()
    };
    let mut world = World::connected(Setup {
        link,
        ..Setup::default()
    });
    world.fetch(0);
    let frames = world.counter("link_lent_frames");
    assert!(frames > 0);
    assert_eq!(world.counter("server_lent_slots_us"), 2_000 * frames);
    assert_eq!(world.counter("memory_lent_slots"), 0);
    world.assert_quiet();
}

#[test]
fn a_full_disk_queue_delays_reads_and_loses_none() {
    let disk = DiskConfig {
        queue_depth: 1,
        read_bytes_max: 4_096,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        ..Setup::default()
    });
    world.fetch(0);
    world.assert_quiet();
    assert!(world.counter("disk_queue_full_commands") > 0);
}

#[test]
fn a_disk_that_hangs_delays_reads_of_its_own_files_only() {
    let disk = DiskConfig {
        queue_depth: 2,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        files: 2,
        devices: 2,
        ..Setup::default()
    });
    // Both devices are known from here on.
    world.fetch(0);
    world.fetch(1);
    let capped = world.counter("session_device_capped_count");
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, true);
    // The disk that hangs has a place for one read; the first client has a window for several.
    for _ in 0..3 {
        world.ask(0);
        world.settle();
        world.reconnect();
    }
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    assert_eq!(world.counter("session_device_capped_count"), capped + 3);
    world.fetch(1);
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    let reads = world.counter("session_read_count");
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, false);
    world.fetch(0);
    assert!(world.counter("session_read_count") > reads + 3);
    world.assert_quiet();
}

#[test]
fn reads_that_are_held_back_begin_when_nothing_completes_for_a_while() {
    let mut world = World::connected(Setup {
        files: 2,
        devices: 2,
        ..Setup::default()
    });
    world.fetch(0);
    world.fetch(1);
    assert_eq!(world.counter("server_held_rounds"), 0);
    world.worker.reads.set_limit(1);
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, true);
    world.ask(0);
    world.settle();
    assert_eq!(world.worker.disk().in_flight_reads(), 1);
    world.reconnect();
    world.ask(1);
    let step = world.settle();
    assert_eq!(
        world.worker.disk().in_flight_reads(),
        1,
        "the other is held back"
    );
    assert!(world.counter("server_held_rounds") > 0);
    let rises = step.next_timeout.expect("a held read has a time");
    assert!(rises <= world.now + Duration::from_millis(1));
    let before = world.client.received.len();
    world.receive(before + 1);
    let now = world.now;
    world.worker.disk_mut().set_hung(now, 0, false);
    world.reconnect();
    world.fetch(1);
    world.assert_quiet();
}

#[test]
fn late_answers_reach_their_look_ups() {
    let mut world = World::connected(Setup {
        answers_later: true,
        files: 3,
        ..Setup::default()
    });
    for file in [0, 1, 2, 0] {
        world.fetch(file);
    }
    world.assert_quiet();
}

#[test]
fn objects_beyond_the_disks_table_are_refused_and_forgotten() {
    let disk = DiskConfig {
        files_max: 1,
        ..Setup::default().disk
    };
    let mut world = World::connected(Setup {
        disk,
        files: 2,
        ..Setup::default()
    });
    world.fetch(0);
    let before = world.client.received.len();
    world.ask(1);
    world.receive(before + 1);
    let reply = String::from_utf8_lossy(&world.client.received[before..]);
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    world.assert_quiet();
    assert_eq!(
        world.counter("store_closed_objects"),
        1,
        "the one that was not opened"
    );
}

#[test]
fn a_changed_file_is_opened_anew_for_the_next_request() {
    for answers_later in [false, true] {
        let mut world = World::connected(Setup {
            answers_later,
            ..Setup::default()
        });
        world.fetch(0);
        let other = SimContent::Pattern {
            seed: 99,
            size_bytes: FILE_BYTES,
        };
        let now = world.now;
        world
            .worker
            .disk_mut()
            .change_file(0, now, other.clone(), SimChange::Detected);
        world.worker.disk_mut().advance(now);
        world.ask(0);
        world.run_until(|client| client.is_reset);
        assert!(world.counter("disk_changed_commands") > 0);
        // The store does not check the path again for a second.
        world.reconnect();
        world.fetch_as(0, &other);
        assert_eq!(world.counter("store_opened_objects"), 2);
        assert_eq!(world.counter("store_closed_objects"), 1);
        world.assert_quiet();
    }
}

#[test]
fn each_counter_has_one_value_and_a_meaning() {
    let world = World::new(tls::with_tls());
    let mut names: Vec<&str> = world
        .worker
        .counters()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    for name in &names {
        let list = "SETS of crates/server/src/metrics/table.rs";
        assert!(meaning_of(name).is_some(), "{name} is not in {list}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A link whose interface was removed.
struct Gone;

impl Link for Gone {
    fn capabilities(&self) -> Capabilities {
        let segmentation_bytes_max = 0;
        let mac = CLIENT_MAC;
        Capabilities {
            mac,
            mtu_bytes: 1_500,
            segmentation_bytes_max,
            checksum_offload: false,
        }
    }

    fn receive(
        &mut self,
        _now: Instant,
        _frames_max: usize,
        _sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError> {
        Err(LinkError::Gone(libc::ENODEV))
    }

    fn transmit(
        &mut self,
        _now: Instant,
        _frame: &Outgoing<'_>,
    ) -> Result<link::Sent, TransmitError> {
        Err(TransmitError::Lost(libc::ENODEV))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn a_removed_interface_ends_the_worker() {
    let setup = Setup::default();
    let conductor = conductor(Gone.capabilities(), CONNECTIONS_MAX, SLOTS as usize);
    let mut worker = Worker::new(
        Gone,
        SimDisk::new(setup.disk),
        store(&setup),
        conductor,
        arena(),
        None,
    );
    let outcome = worker.step(Instant::ZERO);
    assert_eq!(
        outcome,
        Err(WorkerError::Link(LinkError::Gone(libc::ENODEV)))
    );
}
