//! The server of a run as several workers on one clock, each with a queue of the interface, and the
//! switch that divides the clients' frames among the queues.
//!
//! Each worker is an [`Atlas`] with a link, a disk, a store and connections of its own. What reaches the
//! wrong one is carried around the ring of workers by mailboxes. With several workers, each has its
//! rounds only when it has a reason, as the threads of the product: a frame, a timer, a read that is
//! completed, or a message. Its faults, beyond those of a worker:
//!
//! * **The steering changes**: from a moment on, the switch divides by another seed, so that connections
//!   go on as strays.
//! * **Lost wake-ups**: a message wakes nobody, and waits until its worker has another reason, but at most
//!   [`UNNOTICED_MAX`]. Without that bound, segments wait for retransmission timers, and clients with small
//!   windows are reset for too little progress.
//! * **Full mailboxes**: what finds no room is lost, as on the network.
//!
//! **Processes** take over from each other, each with workers of its own: from a moment on, the switch divides
//! the clients' frames among those of the next. What crosses between two processes is lost, late and reordered.
//!
//! A single worker is driven as if this module did not exist. It refuses to look into the workers.
//! Bounds: [`MAIL_MAX`] messages in a mailbox.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use clock::{Duration, Instant};
use link::sim::SimPort;
use link::steering::queue_of_seeded;
use session::{Process, Stray};

use crate::atlas::{self, Atlas};
use crate::client::Violation;
use crate::occupancy::Occupancy;
use crate::rng::Rng;
use crate::scenario::{Event, Scenario};
use crate::segment::End;
use crate::world::trace::Trace;
use crate::world::{Canary, Reading, Resources};

/// Most messages that wait in a mailbox.
const MAIL_MAX: usize = 32;

/// A message waits no longer than this for a worker that it did not wake.
const UNNOTICED_MAX: Duration = Duration::from_secs(1);

/// The seed of the switch at the beginning of a run.
const STEERING_SEED: u32 = 1;

/// See the module.
pub(crate) struct Workers {
    workers: Vec<Atlas>,
    /// By worker.
    mailboxes: Vec<Mailbox>,
    occupancy: Rc<RefCell<Occupancy>>,
    /// Most connections of each worker, as the judge knows it.
    connections_max: usize,
    /// The switch's seed.
    steering: Rc<Cell<u32>>,
    lost_wake_ups_permille: u64,
    rng: Rng,
    /// Strays carried, those of them whose wake-up was lost, and those lost in full mailboxes.
    carried: u64,
    unnoticed: u64,
    overflowed: u64,
    /// Whether strays are dropped: a canary.
    drops_strays: bool,
    /// Workers of each process.
    count: usize,
    /// The process that has the link.
    process: Rc<Cell<usize>>,
    /// On their way between processes.
    crossings: Vec<Crossing>,
    lost_crossings_permille: u64,
    crossing_delay_max: Duration,
    /// Packets that crossed, and those that were lost on their way.
    crossed: u64,
    lost_crossings: u64,
}

/// A packet on its way to a worker of another process.
struct Crossing {
    at: Instant,
    to: usize,
    from: Process,
    message: Vec<u8>,
}

/// What other workers send to one.
#[derive(Default)]
struct Mailbox {
    waiting: VecDeque<Stray>,
    /// Whether the worker has a round now: it was woken, or its last round made progress.
    is_due: bool,
    /// When the worker has a round at the latest, if a message has not woken it.
    due_at: Option<Instant>,
}

/// Makes the server of a scenario and the clients' end of its network.
pub(crate) fn assemble(scenario: &Scenario) -> (Workers, Switch) {
    let steering = Rc::new(Cell::new(STEERING_SEED));
    let occupancy = Rc::default();
    let process = Rc::new(Cell::new(0));
    let count = scenario.workers.count;
    let (workers, ports): (Vec<_>, Vec<_>) = (0..count * scenario.workers.processes)
        .map(|number| atlas::assemble_worker(scenario, number / count, number, &occupancy))
        .unzip();
    let server = Workers {
        mailboxes: workers.iter().map(|_| Mailbox::default()).collect(),
        workers,
        occupancy,
        connections_max: scenario.connections_max_each(),
        steering: Rc::clone(&steering),
        lost_wake_ups_permille: scenario.workers.lost_wake_ups_permille,
        rng: Rng::new(scenario.fault_seed, 8),
        carried: 0,
        unnoticed: 0,
        overflowed: 0,
        drops_strays: false,
        count: count.into(),
        process: Rc::clone(&process),
        crossings: Vec::new(),
        lost_crossings_permille: scenario.workers.lost_crossings_permille,
        crossing_delay_max: scenario.workers.crossing_delay_max,
        crossed: 0,
        lost_crossings: 0,
    };
    let switch = Switch {
        ports,
        steering,
        count: count.into(),
        process,
    };
    (server, switch)
}

impl Workers {
    /// Has all connections traced, if they are to be.
    pub(crate) fn set_trace(&mut self, trace: Option<&Trace>) {
        for worker in &mut self.workers {
            worker.set_trace(trace.cloned());
        }
    }

    /// A round of a worker that has a reason for one; whether it had.
    fn step_one(&mut self, now: Instant, number: usize) -> bool {
        let worker = &mut self.workers[number];
        let mailbox = &mut self.mailboxes[number];
        let is_late = mailbox.due_at.is_some_and(|at| at <= now);
        if !core::mem::take(&mut mailbox.is_due) && !is_late && !worker.is_due(now) {
            return false;
        }
        mailbox.due_at = None;
        let mut progressed = !mailbox.waiting.is_empty();
        for stray in mailbox.waiting.drain(..) {
            if let Some(tuple) = stray.tuple() {
                let ends = (
                    (tuple.local.ip(), tuple.local.port()),
                    (tuple.peer.ip(), tuple.peer.port()),
                );
                self.occupancy.borrow_mut().on_stray(now, ends);
            }
            worker.handle_stray(now, stray);
        }
        progressed |= worker.step(now);
        mailbox.is_due = progressed;
        let first = number - number % self.count;
        while let Some(stray) = self.workers[number].poll_stray() {
            self.carry(now, first + (number + 1) % self.count, stray);
        }
        while let Some((to, stray)) = self.workers[number].poll_crossing() {
            self.cross(now, first, to, &stray);
        }
        progressed
    }

    /// Sends something to another process than the one whose first worker has this number.
    fn cross(&mut self, now: Instant, first: usize, to: Process, stray: &Stray) {
        let mut message = Vec::new();
        let is_written = stray.write_message(&mut message);
        if !is_written || self.drops_strays || self.rng.chance(self.lost_crossings_permille) {
            self.lost_crossings += 1;
            return;
        }
        self.crossed += 1;
        let most = u64::try_from(self.crossing_delay_max.as_nanos()).expect("invariant: short");
        let delay = Duration::from_nanos(self.rng.range(0..=most));
        let (to, from) = match to {
            Process::Predecessor => {
                let queue = queue_of_seeded(&message[1..], self.count, self.steering.get());
                (first - self.count + queue, Process::Successor)
            }
            Process::Successor => (first + self.count, Process::Predecessor),
        };
        self.crossings.push(Crossing {
            at: now + delay,
            to,
            from,
            message,
        });
    }

    /// Hands over what has crossed; whether there was anything.
    fn deliver_crossings(&mut self, now: Instant) -> bool {
        let due: Vec<_> = (self.crossings)
            .extract_if(.., |crossing| crossing.at <= now)
            .collect();
        for Crossing {
            to, from, message, ..
        } in &due
        {
            self.workers[*to].handle_crossing(now, *from, message);
            self.mailboxes[*to].is_due = true;
        }
        !due.is_empty()
    }

    /// The next process takes over.
    fn take_over(&mut self) {
        let process = self.process.get();
        self.process.set(process + 1);
        let first = process * self.count;
        let (old, new) = (
            first..first + self.count,
            first + self.count..first + 2 * self.count,
        );
        self.workers[old].iter_mut().for_each(Atlas::set_successor);
        self.workers[new]
            .iter_mut()
            .for_each(Atlas::set_predecessor);
    }

    fn carry(&mut self, now: Instant, to: usize, stray: Stray) {
        if self.drops_strays {
            return;
        }
        let mailbox = &mut self.mailboxes[to];
        if mailbox.waiting.len() == MAIL_MAX {
            self.overflowed += 1;
            return;
        }
        self.carried += 1;
        mailbox.waiting.push_back(stray);
        if self.rng.chance(self.lost_wake_ups_permille) {
            self.unnoticed += 1;
            mailbox.due_at.get_or_insert(now + UNNOTICED_MAX);
        } else {
            mailbox.is_due = true;
        }
    }
}

impl Workers {
    /// Does what is due at `now`; whether there was anything.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        if let [worker] = &mut self.workers[..] {
            return worker.step(now);
        }
        let has_crossed = self.deliver_crossings(now);
        let numbers = 0..self.workers.len();
        let rounds = numbers.map(|number| self.step_one(now, number));
        // All of them have their round.
        let progressed = rounds.fold(false, |any, one| any | one);
        progressed || has_crossed || self.mailboxes.iter().any(|mailbox| mailbox.is_due)
    }

    /// When `step` next has work, disks included; `None`: only a frame wakes it.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let workers = self.workers.iter().filter_map(Atlas::poll_timeout);
        let mailboxes = self.mailboxes.iter().filter_map(|mailbox| mailbox.due_at);
        let crossings = self.crossings.iter().map(|crossing| crossing.at);
        workers.chain(mailboxes).chain(crossings).min()
    }

    /// An event of the scenario.
    pub(crate) fn handle_event(&mut self, now: Instant, event: Event) {
        if let Event::Resteer { seed } = event {
            self.steering.set(seed);
            return;
        }
        if event == Event::TakeOver {
            return self.take_over();
        }
        for (worker, mailbox) in self.workers.iter_mut().zip(&mut self.mailboxes) {
            worker.handle_event(now, event);
            mailbox.is_due = true;
        }
    }

    /// The resources they hold.
    pub(crate) fn resources(&self) -> Resources {
        let resources = self.workers.iter().map(Atlas::resources);
        resources.fold(Resources::default(), |sum, one| Resources {
            slots: sum.slots + one.slots,
            free_slots: sum.free_slots + one.free_slots,
            reads_in_flight: sum.reads_in_flight + one.reads_in_flight,
            connections: sum.connections + one.connections,
        })
    }

    /// Objects still in use; called once at the very end.
    pub(crate) fn held_objects(&mut self, now: Instant) -> u64 {
        let workers = self.workers.iter_mut();
        workers.map(|worker| worker.held_objects(now)).sum()
    }

    /// The error that ended one, if one did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.workers.iter().find_map(Atlas::failure)
    }

    /// Violations that the links found.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.workers.iter().flat_map(Atlas::violations).collect()
    }

    /// Whether the frames at its links allow that it refused or closed this connection because its
    /// connection table was full.
    pub(crate) fn may_have_been_full(&self, server: End, client: End) -> bool {
        let dropped = self.counters();
        let dropped = dropped
            .iter()
            .find(|(name, _)| *name == "tcp_stray_dropped_count");
        if self.overflowed > 0 || dropped.is_some_and(|(_, count)| *count > 0) {
            // A worker that did not hear of a connection's end has it still.
            return true;
        }
        let occupancy = self.occupancy.borrow();
        occupancy.was_full_for(server, client, self.connections_max)
    }

    /// Bytes they read and sent.
    pub(crate) fn reading(&self) -> Reading {
        let readings = self.workers.iter().map(Atlas::reading);
        readings.fold(Reading::default(), |sum, one| Reading {
            read_bytes: sum.read_bytes + one.read_bytes,
            sent_bytes: sum.sent_bytes + one.sent_bytes,
            connections: sum.connections + one.connections,
        })
    }

    /// Adds the deliberate bug of a canary, if that bug is in the server.
    pub(crate) fn plant(&mut self, canary: Canary) {
        match canary {
            // One more than it has, so that it has one less than it should.
            Canary::Table => self.connections_max += 1,
            Canary::Strays => self.drops_strays = true,
            _ => self
                .workers
                .iter_mut()
                .for_each(|worker| worker.plant(canary)),
        }
    }

    /// The workers' sums.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = sums(self.workers.iter().map(Atlas::counters));
        if self.workers.len() > 1 {
            sums.extend([
                (CARRIED, self.carried),
                ("sim_unnoticed_strays", self.unnoticed),
                ("sim_overflowed_strays", self.overflowed),
                ("sim_crossed_packets", self.crossed),
                ("sim_lost_crossings", self.lost_crossings),
            ]);
        }
        sums
    }
}

/// Counts strays carried from one worker to the next.
pub(crate) const CARRIED: &str = "sim_carried_strays";

/// The sums of counters that all lists have in the same order.
fn sums(lists: impl Iterator<Item = Vec<(&'static str, u64)>>) -> Vec<(&'static str, u64)> {
    let add = |mut sums: Vec<(&'static str, u64)>, list: Vec<(&'static str, u64)>| {
        for (sum, (name, value)) in sums.iter_mut().zip(list) {
            assert_eq!(sum.0, name, "invariant: all workers count the same");
            sum.1 += value;
        }
        sums
    };
    lists.reduce(add).unwrap_or_default()
}

/// The clients' end of the network: a wire to each queue, and the rule that divides frames among them.
pub(crate) struct Switch {
    ports: Vec<SimPort>,
    steering: Rc<Cell<u32>>,
    /// Workers of each process, and the process that has the link.
    count: usize,
    process: Rc<Cell<usize>>,
}

impl Switch {
    /// The next frame that reached the clients' end by `now`.
    pub(crate) fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.ports.iter_mut().find_map(|port| port.receive(now))
    }

    /// A client sends a frame.
    pub(crate) fn transmit(&mut self, now: Instant, frame: Vec<u8>) {
        let queue = queue_of_seeded(&frame, self.count, self.steering.get());
        self.ports[self.process.get() * self.count + queue].send(now, frame);
    }

    /// When a frame next reaches either end.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.ports.iter().filter_map(SimPort::next_event).min()
    }

    /// The sums of the ways to and from all links.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        sums(self.ports.iter().map(atlas::port_counters))
    }
}
