//! How much many workers serve, and which resource ends first: `sim --capacity`.
//!
//! The product's own workers run on one virtual clock, as in [`crate::workers`], and each is charged what
//! its work costs on a processor: [`Costs`], measured for one worker. While it is charged it has no rounds,
//! so what arrives waits, as for a busy core. The switch divides clients by the product's rule
//! (`link::steering`), so some workers have more than others. All frames leave by one port with a rate of
//! its own. Other resources are not limited; the table says how much of them was used.
//!
//! Clients are limited by their window and round trip, [`CLIENT_BITS`] at most, and there are so many for each worker
//! that its core is busy for most of the time: how evenly they are divided decides which
//! core ends first.
//!
//! It refuses to say anything about caches, memory controllers and interconnects that workers share: a
//! second worker costs what the first does. Bounded by the [`CASES`], [`WARM_UP`] and [`WINDOW`].

mod client;

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};

use clock::{Duration, Instant};
use link::LinkCounters;
use link::sim::SimPort;
use link::steering::queue_of;

use self::client::Client;
use crate::atlas::{self, Atlas};
use crate::client::plan::ObjectPlan;
use crate::content::Content;
use crate::paths::leg::time_on_wire;
use crate::scenario::{DiskFaults, Lending, Path, Scenario, Theme};
use crate::world::Server as _;

/// The object that all ask for: a chunk of video.
const OBJECT_BYTES: u64 = 300_000;
/// A client's window.
const WINDOW_BYTES: u64 = 65_536;
/// From server to client and back, without waiting.
const ROUND_TRIP: Duration = Duration::from_millis(5);
/// What a client gets at most: a window in a round trip.
const CLIENT_BITS: u64 = WINDOW_BYTES * 8 * 1_000 / 5;
/// Clients of each worker, on average.
const CLIENTS_EACH: u32 = 270;
/// All clients open their connections within this.
const OPENING: Duration = Duration::from_millis(25);
/// Until the window begins, in which everything is counted.
const WARM_UP: Duration = Duration::from_millis(60);
/// See [`WARM_UP`].
const WINDOW: Duration = Duration::from_millis(40);
/// A resource that was used for so much of the window has ended, parts in a thousand.
const USED_UP_PERMILLE: u64 = 980;

/// What a worker's core spends, in nanoseconds: one worker's (docs/ledger.md at commit 3cabae8 says how each
/// was derived).
#[derive(Clone, Copy, Debug)]
struct Costs {
    name: &'static str,
    received_frame: u64,
    sent_frame: u64,
    read: u64,
    request: u64,
    sent_kibibyte: u64,
    /// How often a byte of content passes the memory controllers.
    memory_passes: u64,
}

/// Plaintext from lent slots: the disk writes a byte, the NIC reads it.
const PLAINTEXT: Costs = Costs {
    name: "plaintext",
    received_frame: 2_280,
    sent_frame: 10_000,
    read: 2_290,
    request: 18_600,
    sent_kibibyte: 0,
    memory_passes: 2,
};

/// Sealed in the slot: read and written once more, if no cache holds it.
const TLS: Costs = Costs {
    name: "TLS",
    sent_kibibyte: 183,
    memory_passes: 4,
    ..PLAINTEXT
};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
struct Case {
    costs: Costs,
    workers: u8,
    /// Rate of the port, bits per second; 0: no limit.
    port_bits: u64,
}

const GIGABIT: u64 = 1_000_000_000;

/// What is simulated.
const CASES: [Case; 9] = [
    case(PLAINTEXT, 1, 400),
    case(PLAINTEXT, 2, 400),
    case(PLAINTEXT, 16, 400),
    case(PLAINTEXT, 16, 800),
    case(PLAINTEXT, 64, 800),
    case(PLAINTEXT, 64, 0),
    case(TLS, 16, 400),
    case(TLS, 64, 800),
    case(TLS, 64, 0),
];

const fn case(costs: Costs, workers: u8, port_gigabits: u64) -> Case {
    Case {
        costs,
        workers,
        port_bits: port_gigabits * GIGABIT,
    }
}

/// What was used in the window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Usage {
    body_bytes: u64,
    read_bytes: u64,
    /// Bytes that left by the port.
    wire_bytes: u64,
    /// By worker: nanoseconds that its core was busy, and its clients.
    busy_nanos: Vec<u64>,
    clients: Vec<u32>,
}

/// Simulates all cases and prints a table in Markdown.
pub(crate) fn print(out: &mut impl Write) -> io::Result<()> {
    let client_megabits = CLIENT_BITS / 1_000_000;
    writeln!(
        out,
        "{CLIENTS_EACH} clients for each worker, {client_megabits} Mb/s each at most; \
         {} ms after {} ms\n",
        WINDOW.as_millis(),
        WARM_UP.as_millis()
    )?;
    writeln!(
        out,
        "| | workers | port, Gb/s | bodies, Gb/s | cores busy, least, mean, most | clients of a \
         worker | disks, GB/s | memory, GB/s | ended first |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|---|")?;
    for case in CASES {
        let usage = simulate(&case);
        writeln!(out, "{}", row(&case, &usage))?;
    }
    Ok(())
}

fn row(case: &Case, usage: &Usage) -> String {
    let window = u64::try_from(WINDOW.as_nanos()).expect("invariant: it is short");
    // Bytes in a nanosecond are gigabytes in a second; one digit behind the point.
    let tenths = |bytes: u64| {
        let tenths = bytes * 10 / window;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let percent = |nanos: u64| nanos * 100 / window;
    // A round is charged when it begins, so its end may lie behind the window.
    let busy: Vec<u64> = usage.busy_nanos.iter().map(|it| *it.min(&window)).collect();
    let mean = busy.iter().sum::<u64>() / busy.len() as u64;
    let least = busy.iter().min().copied().unwrap_or_default();
    let most = busy.iter().max().copied().unwrap_or_default();
    let port = match case.port_bits {
        0 => "no limit".to_owned(),
        bits => (bits / GIGABIT).to_string(),
    };
    let is_used_up = |nanos: u64| nanos * 1000 >= window * USED_UP_PERMILLE;
    let port_nanos = time_on_wire(usage.wire_bytes, case.port_bits).as_nanos();
    let ended = if is_used_up(u64::try_from(port_nanos).unwrap_or(u64::MAX)) {
        "the port"
    } else if is_used_up(mean) {
        "all cores"
    } else if is_used_up(most) {
        "the cores with most clients"
    } else {
        "nothing: the clients' windows"
    };
    let (fewest, many) = (usage.clients.iter().min(), usage.clients.iter().max());
    format!(
        "| {} | {} | {port} | {} | {} %, {} %, {} % | {}-{} | {} | {} | {ended} |",
        case.costs.name,
        case.workers,
        tenths(usage.body_bytes * 8),
        percent(least),
        percent(mean),
        percent(most),
        fewest.unwrap_or(&0),
        many.unwrap_or(&0),
        tenths(usage.read_bytes),
        tenths(usage.body_bytes * case.costs.memory_passes),
    )
}

/// Something that happens at a moment; the number keeps the order of equals.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A client opens its connection.
    Open(usize),
    /// A frame reaches a client.
    ToClient(usize, Vec<u8>),
    /// A client's ACK is due.
    Acknowledge(usize),
    /// A frame reaches the queue of a worker; whether it is a request.
    ToWorker(usize, Vec<u8>, bool),
}

/// A worker and what its core has spent.
struct Core {
    worker: Atlas,
    port: SimPort,
    busy_until: Instant,
    /// When it has its next round, at the earliest when its core is free.
    due_at: Option<Instant>,
    counted: Counted,
    /// Requests that have reached it.
    requests: u64,
    busy_nanos: u64,
}

/// What is charged for.
#[derive(Clone, Copy, Default)]
struct Counted {
    link: LinkCounters,
    reads: u64,
    requests: u64,
}

struct Simulation {
    case: Case,
    now: Instant,
    cores: Vec<Core>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    event_count: u64,
    /// When the port has sent all that it was given, picoseconds: a frame takes 15,140 at 800 Gb/s.
    port_free_picos: u128,
    wire_bytes: u64,
}

fn simulate(case: &Case) -> Usage {
    let mut simulation = Simulation::new(case);
    simulation.run_until(Instant::ZERO + WARM_UP);
    let before = simulation.usage();
    simulation.run_until(Instant::ZERO + WARM_UP + WINDOW);
    let after = simulation.usage();
    let busy = after.busy_nanos.iter().zip(&before.busy_nanos);
    Usage {
        body_bytes: after.body_bytes - before.body_bytes,
        read_bytes: after.read_bytes - before.read_bytes,
        wire_bytes: after.wire_bytes - before.wire_bytes,
        busy_nanos: busy.map(|(after, before)| after - before).collect(),
        clients: after.clients,
    }
}

impl Simulation {
    fn new(case: &Case) -> Self {
        let scenario = make_scenario(case.workers);
        let occupancy = std::rc::Rc::default();
        let make = |number| {
            let (mut worker, port) = atlas::assemble_worker(&scenario, number, &occupancy);
            worker.stop_checking();
            Core {
                worker,
                port,
                busy_until: Instant::ZERO,
                due_at: Some(Instant::ZERO),
                counted: Counted::default(),
                requests: 0,
                busy_nanos: 0,
            }
        };
        let count = u32::from(case.workers) * CLIENTS_EACH;
        let mut simulation = Self {
            case: *case,
            now: Instant::ZERO,
            cores: (0..case.workers).map(make).collect(),
            clients: (0..count).map(Client::new).collect(),
            events: BinaryHeap::new(),
            event_count: 0,
            port_free_picos: 0,
            wire_bytes: 0,
        };
        for client in 0..count {
            let at = Instant::ZERO + OPENING * client / count;
            simulation.schedule(at, Event::Open(client as usize));
        }
        simulation
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    fn run_until(&mut self, end: Instant) {
        loop {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let due = self.cores.iter().filter_map(|core| core.due_at).min();
            let next = [event, due].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next < end) else {
                return;
            };
            self.now = self.now.max(next);
            while let Some(Reverse((at, ..))) = self.events.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, event))) = self.events.pop() else {
                    break;
                };
                self.handle(event);
            }
            for number in 0..self.cores.len() {
                if self.cores[number].due_at.is_some_and(|at| at <= self.now) {
                    self.step(number);
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Open(client) => {
                let frame = self.clients[client].open();
                self.send_to_worker(frame, false);
            }
            Event::ToClient(number, frame) => {
                let client = &mut self.clients[number];
                let had_ack = client.ack_at.is_some();
                let request = client.handle_frame(now, &frame);
                if let (Some(at), false) = (client.ack_at, had_ack) {
                    self.schedule(at, Event::Acknowledge(number));
                }
                if let Some(request) = request {
                    self.send_to_worker(request, true);
                }
            }
            Event::Acknowledge(number) => {
                // A request may have acknowledged meanwhile, and another ACK may be due later.
                if self.clients[number].ack_at.is_some_and(|at| at <= now) {
                    let frame = self.clients[number].acknowledge();
                    self.send_to_worker(frame, false);
                }
            }
            Event::ToWorker(number, frame, is_request) => {
                let core = &mut self.cores[number];
                core.requests += u64::from(is_request);
                core.port.send(now, frame);
                core.find_due();
            }
        }
    }

    fn send_to_worker(&mut self, frame: Vec<u8>, is_request: bool) {
        let worker = queue_of(&frame, self.cores.len());
        self.schedule(
            self.now + ROUND_TRIP / 2,
            Event::ToWorker(worker, frame, is_request),
        );
    }

    /// A round of a worker, which its core is charged for.
    fn step(&mut self, number: usize) {
        let now = self.now;
        let core = &mut self.cores[number];
        let progressed = core.worker.step(now);
        if let Some(failure) = core.worker.failure() {
            panic!("a worker failed: {failure}");
        }
        let nanos = core.charge(&self.case.costs);
        core.busy_nanos += nanos;
        core.busy_until = now + Duration::from_nanos(nanos);
        if progressed {
            core.due_at = Some(core.busy_until);
        } else {
            core.find_due();
        }
        while let Some(frame) = self.cores[number].port.receive(now) {
            let Some(client) = Client::number_of(&frame).filter(|it| *it < self.clients.len())
            else {
                continue;
            };
            self.wire_bytes += frame.len() as u64;
            let left_at = self.leave(frame.len());
            self.schedule(left_at + ROUND_TRIP / 2, Event::ToClient(client, frame));
        }
    }

    /// When so many bytes more have left by the port.
    fn leave(&mut self, bytes: usize) -> Instant {
        let now = u128::from(self.now.as_nanos()) * 1000;
        let bits = bytes as u128 * 8 * 1_000_000_000_000;
        let takes = bits.checked_div(self.case.port_bits.into()).unwrap_or(0);
        self.port_free_picos = self.port_free_picos.max(now) + takes;
        let nanos = self.port_free_picos.div_ceil(1000);
        Instant::from_nanos(u64::try_from(nanos).expect("invariant: runs are short"))
    }

    fn usage(&self) -> Usage {
        let cores = self.cores.iter();
        let mut clients = vec![0; self.cores.len()];
        for client in &self.clients {
            clients[queue_of(&client.any_frame(), self.cores.len())] += 1;
        }
        Usage {
            body_bytes: self.clients.iter().map(|it| it.received_bytes).sum(),
            read_bytes: cores.clone().map(|it| it.worker.reading().read_bytes).sum(),
            wire_bytes: self.wire_bytes,
            busy_nanos: cores.map(|core| core.busy_nanos).collect(),
            clients,
        }
    }
}

impl Core {
    /// When it has its next round: it has a reason for one, and its core is free.
    fn find_due(&mut self) {
        let due = self.worker.due_at();
        self.due_at = due.map(|at| at.max(self.busy_until));
    }

    /// What was done since the last call, in nanoseconds of its core.
    fn charge(&mut self, costs: &Costs) -> u64 {
        let now = Counted {
            link: self.worker.link_counters(),
            reads: self.worker.read_commands(),
            requests: self.requests,
        };
        let before = std::mem::replace(&mut self.counted, now);
        let (sent, received) = (now.link.transmitted_frames, now.link.received_frames);
        let sent_bytes = now.link.transmitted_bytes - before.link.transmitted_bytes;
        (received - before.link.received_frames) * costs.received_frame
            + (sent - before.link.transmitted_frames) * costs.sent_frame
            + (now.reads - before.reads) * costs.read
            + (now.requests - before.requests) * costs.request
            + sent_bytes * costs.sent_kibibyte / 1024
    }
}

/// A server without faults, and with room for everything.
fn make_scenario(workers: u8) -> Scenario {
    let clean = Theme::named("clean").expect("invariant: there is one");
    let mut scenario = Scenario::draw(1, clean);
    scenario.epoch = Instant::ZERO;
    scenario.wraps = false;
    scenario.path_mtu_bytes = None;
    scenario.mtu_bytes = 1500;
    scenario.segmentation_bytes_max = 65_535;
    scenario.checksum_offload = true;
    scenario.transmit_queue_frames = 4096;
    scenario.transmit_bits = 0;
    scenario.lending = Some(Lending::default());
    scenario.slots = 128;
    scenario.slot_bytes = 65_536;
    scenario.connections_max = usize::from(workers) * 4 * CLIENTS_EACH as usize;
    scenario.objects_max = 64;
    scenario.answers_later = false;
    scenario.revalidate_after = Duration::from_secs(60);
    scenario.inbound = Path {
        queue_frames: usize::MAX,
        ..Path::default()
    };
    scenario.outbound = scenario.inbound;
    scenario.disk = DiskFaults {
        latency_min: Duration::from_micros(80),
        latency_max: Duration::from_micros(120),
        error_permille: 0,
        partial_permille: 0,
        stuck_permille: 0,
        stuck_max: Duration::from_micros(120),
        depth: 128,
        files: 128,
        block_bytes: 4096,
        read_bytes_max: 65_536,
    };
    scenario.idle_timeout = Duration::from_secs(60);
    scenario.head_timeout = Duration::from_secs(60);
    scenario.send_timeout = Duration::from_secs(60);
    scenario.read_limits = session::ReadLimits::default();
    scenario.events.clear();
    scenario.clients.clear();
    scenario.abusive.clear();
    scenario.syn_flood = false;
    scenario.failover_at = None;
    scenario.tcp = session::TcpConfig::default();
    scenario.workers.count = workers;
    scenario.objects = vec![ObjectPlan {
        number: 0,
        content: Content::new(1, 0, 0),
        later: None,
        size_bytes: OBJECT_BYTES,
    }];
    scenario
}

#[cfg(test)]
mod tests {
    use super::{Case, GIGABIT, PLAINTEXT, TLS, WINDOW, row, simulate};

    fn gigabits(case: &Case) -> u64 {
        let nanos = u64::try_from(WINDOW.as_nanos()).unwrap();
        simulate(case).body_bytes * 8 / nanos
    }

    #[test]
    fn the_port_limits_what_two_workers_serve_and_a_core_what_one_does() {
        let case = |costs, workers, gigabits| super::case(costs, workers, gigabits);
        let one = case(PLAINTEXT, 1, 0);
        let usage = simulate(&one);
        assert_eq!(usage.clients, [super::CLIENTS_EACH]);
        let alone = gigabits(&one);
        assert!((20..30).contains(&alone), "{alone} Gb/s");
        let narrow = case(PLAINTEXT, 2, 20);
        let usage = simulate(&narrow);
        assert!(row(&narrow, &usage).ends_with("| the port |"), "{usage:?}");
        let nanos = u64::try_from(WINDOW.as_nanos()).unwrap();
        assert!(usage.wire_bytes * 8 / nanos <= 20 * GIGABIT / 1_000_000_000 + 1);
        let sealed = case(TLS, 1, 0);
        let text = row(&sealed, &simulate(&sealed));
        assert!(text.ends_with("| all cores |"), "{text}");
        assert!(gigabits(&sealed) < alone);
    }

    #[test]
    fn a_run_is_the_same_again() {
        let two = super::case(PLAINTEXT, 2, 400);
        assert_eq!(simulate(&two), simulate(&two));
    }
}
