//! One case: four workers, a NIC, disks and clients on one clock.
//!
//! First all clients connect, and TLS is set up; then they ask, at moments spread over a round trip. What is measured
//! begins [`Case::warm_up`] later and takes [`Case::window`]. In the end the workers have no more rounds, all that was handed to the
//! NIC arrives, and both ends must have counted the same bytes.
//!
//! A round of a worker is simulated whole at its beginning; see [`super::metered`] for when things happen all the same.
//! What it sees of the devices is their state at its beginning.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;

use clock::{Duration, Instant, UnixTime};
use diskmap::sim::{SimConfig as DiskConfig, SimContent, SimDevices, SimDisk};
use link::Link as _;
use link::sim::{NicConfig, SimConfig as LinkConfig, SimNic, SimPort};
use link::steering::queue_of;
use llc::trace::Event as SlotEvent;
use memory::{Arena, ArenaConfig, PageKind};
use rustls::ClientConfig;
use session::Conductor;
use store::{Catalogue, CatalogueEntry, Metadata, Store, StoreConfig};
use worker::Worker;
use worker::tls::Handshaker;

use super::client::{Client, OBJECT_BYTES};
use super::metered::{Core, MeteredDisk, MeteredLink};
use super::{Case, DISKS, WORKERS};
use crate::atlas::MAC;
use crate::client::plan::SecurePlan;
use crate::client::secure::{TLS13_SUITES, client_config};
use crate::credentials::{self, UNIX_SECONDS};
use crate::rng::Rng;
use crate::scenario::{PORT, SECURE_PORT, SERVER_V4};

/// From one client's connection to the next: workers give a quarter of their time to handshakes, of 80 us each.
const OPENING_EACH: Duration = Duration::from_micros(100);
/// How often to look whether all are connected.
const OPENING_CHECK: Duration = Duration::from_millis(40);
/// All clients have connected after this, or something is wrong.
const OPENING_MAX: Duration = Duration::from_secs(5);
/// The middlebox holds what a client sends for so long, by flow (the paper's 10 to 40 ms).
const DELAY_MICROS: core::ops::RangeInclusive<u64> = 10_000..=40_000;
/// At this rate of the line, preambles and gaps included, full packets carry 73 Gb/s: what the paper's two ports of
/// 40 GbE did.
const NIC: NicConfig = NicConfig {
    bits_per_second: 77_500_000_000,
    // 1,024 packets, the usual ring.
    ring_bytes_max: 1_024 * 1_514,
};
/// Most commands of a worker at its disks.
const QUEUE_DEPTH: u32 = 256;

/// What was measured in the window.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// All that happened to slots since the start, in order.
    pub(super) events: Vec<SlotEvent>,
    /// When the window begins.
    pub(super) from: Instant,
    /// Bytes of TCP payload that arrived in the window.
    pub(super) payload_bytes: u64,
    /// How long a slot was on loan, as the workers saw it, nanoseconds.
    pub(super) loan_ns: u64,
    /// Slots of a worker that were in use at the end of its rounds, mean.
    pub(super) slots_mean: f64,
    /// Bytes of a read, mean.
    pub(super) read_bytes: u64,
    /// Rounds of the workers for each read, mean.
    pub(super) rounds_per_read: f64,
    /// Part of their time that the cores worked.
    pub(super) busy: f64,
    /// What does not add up.
    pub(super) violations: Vec<String>,
}

/// Something that happens at a moment; the number keeps the order of equals.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A client opens its connection.
    Open(usize),
    /// It asks for the first time.
    Ask(usize),
    /// Its ACK is due.
    Acknowledge(usize),
    /// A frame reaches the queue of a worker.
    ToWorker(usize, Vec<u8>),
}

/// A worker on its core.
struct Station {
    worker: Worker<MeteredLink, MeteredDisk>,
    port: SimPort,
    core: Rc<Core>,
    next_timeout: Option<Instant>,
    /// Frames wait for it.
    is_called: bool,
    /// The last round found something to do.
    progressed: bool,
    busy_until: Instant,
    /// How long its core has worked.
    busy_ns: u64,
    /// Slots in use at the ends of rounds, times the nanoseconds until the next.
    slot_ns: u128,
    slots_since: Instant,
    slots: usize,
}

/// Sums up to a moment.
#[derive(Clone, Copy, Default)]
struct Sums {
    payload_bytes: u64,
    slot_ns: u128,
    reads: u64,
    read_bytes: u64,
    rounds: u64,
    busy_ns: u64,
    lent_us: u64,
    lent_frames: u64,
}

struct Simulation {
    now: Instant,
    nic: SimNic,
    stations: Vec<Station>,
    clients: Vec<Client>,
    /// By client: how long what it sends is held.
    delays: Vec<Duration>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    event_count: u64,
}

/// Runs a case; the same case and seed are the same run.
pub(super) fn simulate(case: &Case, seed: u64) -> Outcome {
    let mut simulation = Simulation::new(case, seed);
    simulation.open();
    simulation.run_until(simulation.now + case.warm_up);
    let (from, before) = (simulation.now, simulation.sums());
    simulation.run_until(from + case.window);
    let after = simulation.sums();
    let mut outcome = Outcome {
        from,
        payload_bytes: after.payload_bytes - before.payload_bytes,
        loan_ns: 0,
        slots_mean: 0.0,
        read_bytes: 0,
        rounds_per_read: 0.0,
        busy: 0.0,
        events: Vec::new(),
        violations: Vec::new(),
    };
    let window_ns = case.window.as_nanos() as f64 * f64::from(WORKERS);
    outcome.slots_mean = (after.slot_ns - before.slot_ns) as f64 / window_ns;
    let lent_frames = after.lent_frames - before.lent_frames;
    outcome.loan_ns = (after.lent_us - before.lent_us) * 1000 / lent_frames.max(1);
    let reads = after.reads - before.reads;
    outcome.read_bytes = (after.read_bytes - before.read_bytes) / reads.max(1);
    outcome.rounds_per_read = (after.rounds - before.rounds) as f64 / reads.max(1) as f64;
    outcome.busy = (after.busy_ns - before.busy_ns) as f64 / window_ns;
    simulation.drain();
    outcome.violations = simulation.check_bytes();
    outcome.events = simulation.take_events();
    outcome
}

impl Simulation {
    fn new(case: &Case, seed: u64) -> Self {
        let nic = SimNic::new(NIC);
        let devices = SimDevices::default();
        let make = |number| Station::new(case, seed, number, &nic, &devices);
        let stations = (0..WORKERS).map(make).collect();
        let tls = case.is_secure.then(|| tls_config(seed));
        let mut rng = Rng::new(seed, 10);
        let mut simulation = Self {
            now: Instant::ZERO,
            nic,
            stations,
            clients: (0..case.connections)
                .map(|number| Client::new(number, tls.as_ref()))
                .collect(),
            delays: (0..case.connections)
                .map(|_| Duration::from_micros(rng.range(DELAY_MICROS)))
                .collect(),
            events: BinaryHeap::new(),
            event_count: 0,
        };
        for client in 0..case.connections {
            let at = Instant::ZERO + OPENING_EACH * client;
            simulation.schedule(at, Event::Open(client as usize));
        }
        simulation
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    /// Until all clients are connected, and have been told to ask.
    fn open(&mut self) {
        while !self.clients.iter().all(Client::is_ready) {
            self.run_until(self.now + OPENING_CHECK);
            assert!(
                self.now.since(Instant::ZERO) < OPENING_MAX,
                "not all connect"
            );
        }
        for client in 0..self.clients.len() {
            self.schedule(self.now + self.delays[client], Event::Ask(client));
        }
    }

    fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.next_event().filter(|next| *next < end) {
            self.now = self.now.max(next);
            self.nic.advance(self.now);
            for station in &mut self.stations {
                if station.core.submits_at().is_some_and(|at| at <= self.now) {
                    station.worker.disk_mut().submit();
                }
            }
            self.deliver();
            while let Some(Reverse((at, ..))) = self.events.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, event))) = self.events.pop() else {
                    break;
                };
                self.handle(event);
            }
            for station in &mut self.stations {
                if station.due_at().is_some_and(|at| at <= self.now) {
                    station.step(self.now);
                }
            }
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Instant> {
        let event = self.events.peek().map(|Reverse((at, ..))| *at);
        let stations = self.stations.iter().flat_map(|station| {
            [
                station.due_at(),
                station.core.submits_at(),
                station.port.next_arrival(),
            ]
        });
        stations
            .chain([event, self.nic.next_turn()])
            .flatten()
            .min()
    }

    /// What the NIC has sent reaches the clients.
    fn deliver(&mut self) {
        for number in 0..self.stations.len() {
            while let Some(frame) = self.stations[number].port.receive(self.now) {
                let Some(client) = Client::number_of(&frame) else {
                    continue;
                };
                let had_ack = self.clients[client].ack_at.is_some();
                let answer = self.clients[client].handle_frame(self.now, &frame);
                if let (Some(at), false) = (self.clients[client].ack_at, had_ack) {
                    self.schedule(at, Event::Acknowledge(client));
                }
                if let Some(answer) = answer {
                    self.send_to_worker(client, answer);
                }
            }
            self.stations[number].worker.link_mut().put_down_reads();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(client) => {
                let frame = self.clients[client].open();
                self.send_to_worker(client, frame);
            }
            Event::Ask(client) => {
                let frame = self.clients[client].ask();
                self.send_to_worker(client, frame);
            }
            Event::Acknowledge(client) => {
                // A request may have acknowledged meanwhile, and another ACK may be due later.
                if self.clients[client].ack_at.is_some_and(|at| at <= self.now) {
                    let frame = self.clients[client].acknowledge();
                    self.send_to_worker(client, frame);
                }
            }
            Event::ToWorker(number, frame) => {
                let station = &mut self.stations[number];
                station.port.send(self.now, frame);
                station.is_called = true;
            }
        }
    }

    fn send_to_worker(&mut self, client: usize, frame: Vec<u8>) {
        let worker = queue_of(&frame, self.stations.len());
        let at = self.now + self.delays[client];
        self.schedule(at, Event::ToWorker(worker, frame));
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums {
            payload_bytes: self.clients.iter().map(|it| it.payload_bytes).sum(),
            ..Sums::default()
        };
        for station in &self.stations {
            let disk = diskmap::Disk::counters(station.worker.disk());
            sums.slot_ns += station.slot_ns;
            sums.reads += disk.disk_read_commands;
            sums.read_bytes += disk.disk_read_bytes;
            sums.lent_frames += station.worker.link().counters().lent_frames;
            sums.busy_ns += station.busy_ns;
            for (name, count) in station.worker.counters() {
                match name {
                    "server_lent_slots_us" => sums.lent_us += count,
                    "server_step_rounds" => sums.rounds += count,
                    _ => {}
                }
            }
        }
        sums
    }

    /// What was handed to the NIC arrives.
    fn drain(&mut self) {
        while let Some(at) = self.nic.next_turn() {
            self.now = self.now.max(at);
            self.nic.advance(self.now);
        }
        // The longest frame takes 7 us.
        self.now += Duration::from_millis(1);
        self.deliver();
    }

    fn check_bytes(&self) -> Vec<String> {
        let sent: u64 = self
            .stations
            .iter()
            .map(|it| it.core.payload_bytes.get())
            .sum();
        let arrived = self.sums().payload_bytes;
        let copied: u64 = self
            .stations
            .iter()
            .map(|it| it.core.copied_bytes.get())
            .sum();
        let mut violations = Vec::new();
        if sent != arrived {
            violations.push(format!("{sent} B of payload were sent, {arrived} arrived"));
        }
        if copied > sent / 100 {
            violations.push(format!("{copied} of {sent} B were copied out of slots"));
        }
        violations
    }

    fn take_events(&mut self) -> Vec<SlotEvent> {
        let stations = self.stations.iter();
        let mut events: Vec<_> = stations.flat_map(|it| it.core.take_events()).collect();
        events.sort_by_key(|event| event.at_ns);
        events
    }
}

impl Station {
    fn new(case: &Case, seed: u64, number: u8, nic: &SimNic, devices: &SimDevices) -> Self {
        let seed = seed ^ u64::from(number) << 32;
        let slots = case.slots;
        let core = Core::new(number.into(), case.is_secure, slots as usize, case.costs());
        let config = LinkConfig {
            mac: MAC,
            transmit_queue_frames_max: usize::MAX,
            borrows_slots: true,
            ..LinkConfig::default()
        };
        let (link, port) = link::sim::pair(config, seed);
        let mut link = MeteredLink::new(link, Rc::clone(&core));
        let arena = Arena::new(ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(slots)
        });
        let arena = arena.expect("invariant: memory for some hundred slots");
        link.borrow_slots(arena.slot_memory())
            .expect("invariant: the simulated link was told to");
        link.link_mut().attach(nic);
        let (disk, store) = make_disk_and_store(case, seed, devices);
        let mut conductor = Conductor::new(conductor_config(case, seed, &link));
        conductor.set_other_workers(WORKERS - 1);
        let tls = Handshaker::new(credentials::server_config(1), connections_max(case));
        let disk = MeteredDisk::new(disk, Rc::clone(&core));
        Self {
            worker: Worker::new(link, disk, store, conductor, arena, Some(tls)),
            port,
            core,
            next_timeout: Some(Instant::ZERO),
            is_called: true,
            progressed: false,
            busy_until: Instant::ZERO,
            busy_ns: 0,
            slot_ns: 0,
            slots_since: Instant::ZERO,
            slots: 0,
        }
    }

    /// When it has its next round: it has a reason for one, and its core is free.
    fn due_at(&self) -> Option<Instant> {
        let disk = self.worker.disk().next_event();
        let called = (self.is_called || self.progressed).then_some(self.busy_until);
        let due = [self.next_timeout, disk, called]
            .into_iter()
            .flatten()
            .min();
        due.map(|at| at.max(self.busy_until))
    }

    fn step(&mut self, now: Instant) {
        self.core.begin_round(now);
        self.worker.set_unix_time(UnixTime {
            seconds: UNIX_SECONDS.cast_signed(),
            nanos: 0,
        });
        let step = self.worker.step(now).expect("invariant: no faults");
        self.progressed = step.progressed;
        self.next_timeout = step.next_timeout;
        self.is_called = false;
        self.busy_until = self.core.now();
        self.busy_ns += elapsed_ns(now, self.busy_until);
        self.slot_ns += self.slots as u128 * u128::from(elapsed_ns(self.slots_since, now));
        self.slots_since = now;
        let arena = self.worker.arena();
        self.slots = arena.slot_count() - arena.free_count();
    }
}

fn elapsed_ns(from: Instant, to: Instant) -> u64 {
    to.as_nanos() - from.as_nanos()
}

/// The workers have no equal shares.
fn connections_max(case: &Case) -> usize {
    case.connections as usize
}

fn tls_config(seed: u64) -> Arc<ClientConfig> {
    let plan = SecurePlan {
        suite: TLS13_SUITES[0],
        resumes: false,
        is_sent_back: false,
        record_bytes_max: None,
    };
    client_config(&plan, seed)
}

/// Each disk has one chunk: nothing is kept between one request for it and the next.
fn make_disk_and_store(case: &Case, seed: u64, devices: &SimDevices) -> (SimDisk, Store) {
    let mut disk = SimDisk::new(DiskConfig {
        latency_min: Duration::from_micros(case.disk_us) * 9 / 10,
        latency_max: Duration::from_micros(case.disk_us) * 11 / 10,
        device_bits_per_second: super::DISK_BITS,
        queue_depth: QUEUE_DEPTH,
        ..DiskConfig::new(seed)
    });
    disk.share_devices(devices);
    let mut catalogue = Catalogue::new();
    for number in 0..DISKS {
        let content = SimContent::Pattern {
            seed: number.into(),
            size_bytes: OBJECT_BYTES,
        };
        let entry = CatalogueEntry {
            source: disk.add_file_on(number, content),
            metadata: Metadata {
                size_bytes: OBJECT_BYTES,
                inode: 100 + u64::from(number),
                device: number.into(),
                ..Metadata::default()
            },
            answers_later: false,
        };
        catalogue.insert(&format!("/objects/{number}.mp4"), entry);
    }
    (disk, Store::catalogue(catalogue, StoreConfig::default()))
}

fn conductor_config(case: &Case, seed: u64, link: &MeteredLink) -> session::Config {
    let capabilities = link.capabilities();
    let mut secret = [0; 32];
    secret[..8].copy_from_slice(&seed.to_le_bytes());
    session::Config {
        addresses: vec![SERVER_V4.into()],
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: Some(PORT),
        https_port: Some(SECURE_PORT),
        connections_max: connections_max(case),
        seed: secret,
        unix_seconds_at_start: UNIX_SECONDS,
        reads_max: case.slots.min(QUEUE_DEPTH) as usize,
        kept_slots_max: case.slots as usize * 3 / 4,
        kept_copy_bytes: case.slots as usize * (128 << 10),
        ..session::Config::default()
    }
}
