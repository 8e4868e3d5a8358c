//! The server under test: the product's own worker over a simulated link, a simulated disk and a
//! catalogue. Everything above those three is the code that is shipped.
//!
//! It refuses to reach into the worker: it passes frames, time and faults in, and reads counters.
//! Bounded by the scenario.

use core::net::IpAddr;
use std::cell::RefCell;
use std::rc::Rc;

use clock::{Duration, Instant, UnixTime};
use diskmap::Disk;
use diskmap::sim::{SimChange, SimConfig as DiskConfig, SimContent, SimDisk};
use link::Link;
use link::sim::SimPort;
use memory::{Arena, ArenaConfig, PageKind};
use record::AeadLibrary;
use session::{Conductor, Process, Stray};
use store::{Catalogue, CatalogueEntry, FileTime, Metadata, Store};
use tcp::{FourTuple, Listener};
use wire::MacAddress;
use worker::Worker;
use worker::tls::Handshaker;

use crate::checked_link::CheckedLink;
use crate::client::plan::{Change, ObjectPlan};
use crate::client::{PORT_FIRST, Violation};
use crate::credentials::{self, UNIX_SECONDS};
use crate::occupancy::Occupancy;
use crate::scenario::{Event, PORT, SECURE_PORT, SERVER_V4, SERVER_V6, Scenario};
use crate::world::trace::Trace;
use crate::world::{Canary, Reading, Resources};

/// The server's MAC address.
pub(crate) const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x01]);
/// Initial sequence numbers that are to wrap are at most this many bytes below 2^32.
const WRAP_BYTES: u32 = 60_000;
/// Secrets tried to find one: about one in 70,000 has such a number.
const WRAP_TRIALS_MAX: u64 = 400_000;
/// Counts retransmitted bytes that were compared with the first transmission.
pub(crate) const REPEATED_BYTES: &str = "sim_repeated_bytes";
/// From the last round to one that looks the objects up again.
const TURN: Duration = Duration::from_nanos(1);

/// The server or one worker of it, and the faults of its scenario.
pub(crate) struct Atlas {
    worker: Worker<CheckedLink, SimDisk>,
    objects: Vec<ObjectPlan>,
    answers_later: bool,
    canary: Option<Canary>,
    /// How long a slot was kept at most, behind a round.
    kept_for_max: Duration,
    next_timeout: Option<Instant>,
    /// The error that ended the worker.
    failure: Option<String>,
}

/// Makes a server of one worker and the clients' end of its network.
pub(crate) fn assemble(scenario: &Scenario) -> (Atlas, SimPort) {
    assemble_worker(scenario, 0, 0, &Rc::default())
}

/// Makes one worker of a scenario, in the process of this number, and the clients' end of its queue. `occupancy` is of
/// all workers.
pub(crate) fn assemble_worker(
    scenario: &Scenario,
    process: u8,
    number: u8,
    occupancy: &Rc<RefCell<Occupancy>>,
) -> (Atlas, SimPort) {
    // Each queue and disk has random numbers of its own.
    let fault_seed = scenario.fault_seed ^ u64::from(number) << 32;
    let (link, port) = link::sim::pair(scenario.link.clone(), fault_seed);
    let mut link = CheckedLink::new(link, usize::from(number), occupancy);
    let disk = make_disk(scenario, fault_seed);
    let store = make_store(scenario);
    let arena = Arena::new(ArenaConfig {
        slot_count: scenario.slots,
        slot_bytes: scenario.slot_bytes,
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(scenario.slots)
    })
    .expect("invariant: scenarios have valid arenas, and memory for a few slots");
    if scenario.link.borrows_slots {
        link.borrow_slots(arena.slot_memory())
            .expect("invariant: the simulated link was told to");
    }
    let mut config = conductor_config(scenario, &link);
    // Each process has a secret of its own.
    config.seed[0] ^= process;
    let mut conductor = Conductor::new(config);
    conductor.set_other_workers(scenario.workers.count - 1);
    let tls = Handshaker::new(
        credentials::server_config(scenario.chain),
        scenario.connections_max_each(),
    );
    let atlas = Atlas {
        worker: Worker::new(link, disk, store, conductor, arena, Some(tls)),
        objects: scenario.objects.clone(),
        answers_later: scenario.answers_later,
        canary: None,
        kept_for_max: Duration::ZERO,
        next_timeout: Some(scenario.epoch),
        failure: None,
    };
    (atlas, port)
}

impl Atlas {
    /// Has its connections traced, if they are to be.
    pub(crate) fn set_trace(&mut self, trace: Option<Trace>) {
        if let Some(trace) = trace {
            self.worker.set_connection_trace(Box::new(trace));
        }
    }

    /// Whether it has something to do at `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let moments = [self.poll_timeout(), self.worker.link().next_event()];
        moments.into_iter().flatten().any(|at| at <= now)
    }

    /// Before a round: what another worker had no connection for.
    pub(crate) fn handle_stray(&mut self, now: Instant, stray: Stray) {
        self.worker.handle_stray(now, stray);
    }

    /// Another process takes over.
    pub(crate) fn set_successor(&mut self) {
        self.worker.set_successor(true);
    }

    /// It takes over from another process.
    pub(crate) fn set_predecessor(&mut self) {
        self.worker.set_predecessor(true);
    }

    /// Before a round: what another process had no connection for.
    pub(crate) fn handle_crossing(&mut self, now: Instant, from: Process, message: &[u8]) {
        let taken = self.worker.handle_crossing(now, from, message);
        taken.expect("invariant: what one process writes the other can read");
    }

    /// After a round: what another process may have a connection for.
    pub(crate) fn poll_crossing(&mut self) -> Option<(Process, Stray)> {
        self.worker.poll_crossing()
    }

    /// After a round: what it has no connection for.
    pub(crate) fn poll_stray(&mut self) -> Option<Stray> {
        self.worker.poll_stray()
    }
}

fn make_disk(scenario: &Scenario, seed: u64) -> SimDisk {
    let mut disk = SimDisk::new(DiskConfig {
        seed,
        ..scenario.disk
    });
    for object in &scenario.objects {
        let file = disk.add_file(content_of(object));
        assert_eq!(
            file as usize, object.number,
            "the disk numbers its files as we do"
        );
    }
    disk
}

fn content_of(object: &ObjectPlan) -> SimContent {
    SimContent::Pattern {
        seed: object.content.seed(),
        size_bytes: object.size_bytes,
    }
}

fn make_store(scenario: &Scenario) -> Store {
    let mut catalogue = Catalogue::new();
    for object in &scenario.objects {
        let file = u32::try_from(object.number).expect("invariant: few objects");
        let entry = entry(object, 0, file, scenario.answers_later);
        catalogue.insert(&object.path(), entry);
    }
    Store::catalogue(catalogue, scenario.store)
}

/// What an object's name leads to: a version of it, in this file of the disk.
fn entry(object: &ObjectPlan, version: u32, file: u32, answers_later: bool) -> CatalogueEntry {
    let (seconds, nanos) = object.modified(version);
    let seconds = seconds.cast_signed();
    CatalogueEntry {
        source: file,
        metadata: Metadata {
            size_bytes: object.at(version).size_bytes,
            modified: FileTime { seconds, nanos },
            changed: FileTime {
                seconds: seconds + i64::from(version),
                nanos,
            },
            inode: u64::from(file) + 100,
            ..Metadata::default()
        },
        answers_later,
    }
}

fn conductor_config(scenario: &Scenario, link: &CheckedLink) -> session::Config {
    let capabilities = link.capabilities();
    session::Config {
        addresses: vec![IpAddr::from(SERVER_V4), IpAddr::from(SERVER_V6)],
        mac: capabilities.mac,
        mtu_bytes: capabilities.mtu_bytes,
        segmentation_bytes_max: capabilities.segmentation_bytes_max,
        checksum_offload: capabilities.checksum_offload,
        http_port: Some(PORT),
        https_port: Some(SECURE_PORT),
        // Either, so that runs cover both. No byte depends on it.
        aead_library: AeadLibrary::ALL[usize::from(!scenario.fault_seed.is_multiple_of(2))],
        connections_max: scenario.connections_max_each(),
        seed: server_seed(scenario),
        unix_seconds_at_start: UNIX_SECONDS,
        reads_max: scenario.slots.min(scenario.disk.queue_depth) as usize,
        kept_slots_max: scenario.slots as usize * 3 / 4,
        // Two copies, or those of many slots.
        kept_copy_bytes: 16 << (10 + scenario.fault_seed % 2 * 10),
        ..scenario.session.clone()
    }
}

/// A wall clock that jumps to another decade each second: only what replies say of dates, and of validators,
/// may depend on it.
fn wall_clock(now: Instant) -> UnixTime {
    const DECADE_SECONDS: u64 = 10 * 365 * 86_400;
    let seconds = now.as_millis() / 1000;
    let seconds = seconds + (seconds * 7 % 20) * DECADE_SECONDS;
    UnixTime {
        seconds: seconds.cast_signed(),
        nanos: 0,
    }
}

/// The secret of the server; if sequence numbers are to wrap, one with which those of the first
/// client's first connection soon do.
fn server_seed(scenario: &Scenario) -> [u8; 32] {
    let mut seed = scenario.server_seed;
    let Some(first) = scenario.clients.first().filter(|_| scenario.wraps) else {
        return seed;
    };
    let local: IpAddr = if first.address.is_ipv4() {
        SERVER_V4.into()
    } else {
        SERVER_V6.into()
    };
    let tuple = FourTuple {
        local: (local, first.port()).into(),
        peer: (first.address, PORT_FIRST).into(),
    };
    // Address resolution there and back, then the SYN.
    let arrives = first.starts + 3 * scenario.link.to_link.delay;
    for trial in 0..WRAP_TRIALS_MAX {
        seed[16..24].copy_from_slice(&(scenario.fault_seed ^ trial).to_le_bytes());
        let (_, key) = seed.split_at(16);
        let listener = Listener::new(key.try_into().expect("invariant: half of a seed"));
        let offer = listener.offer(arrives, &tuple, 1460, u16::MAX);
        if u32::MAX - offer.iss.0 < WRAP_BYTES {
            break;
        }
    }
    seed
}

impl Atlas {
    /// Does what is due at `now`; whether there was anything.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        self.worker.set_unix_time(wall_clock(now));
        match self.worker.step(now) {
            Ok(step) => {
                self.next_timeout = step.next_timeout;
                let kept_for = self.worker.kept_since().map(|since| now.since(since));
                self.kept_for_max = self.kept_for_max.max(kept_for.unwrap_or_default());
                step.progressed
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                false
            }
        }
    }

    /// When `step` next has work, its disk included; `None`: only a frame wakes it.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let disk = self.worker.disk().next_event();
        [self.next_timeout, disk].into_iter().flatten().min()
    }

    /// An event of the scenario.
    pub(crate) fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Down => self.worker.link_mut().link_mut().set_up(now, false),
            Event::Up => self.worker.link_mut().link_mut().set_up(now, true),
            Event::Stop => self.worker.link_mut().link_mut().set_stopped(now, true),
            Event::GoOn => self.worker.link_mut().link_mut().set_stopped(now, false),
            Event::ShutDown => self.worker.shut_down(now),
            Event::Abort => self.worker.abort_all(),
            Event::Change { object } => self.change(now, self.objects[object]),
            // The switch's.
            Event::Resteer { .. } | Event::TakeOver => {}
        }
    }

    /// A file changes, and what its name leads to.
    fn change(&mut self, now: Instant, object: ObjectPlan) {
        let later = object.later;
        let later = later.expect("invariant: an object that changes has a later content");
        let version = object.version_at(now);
        let content = content_of(&object.at(version));
        let mut file = u32::try_from(object.number).expect("invariant: few objects");
        let disk = self.worker.disk_mut();
        let detected = match self.canary {
            Some(Canary::Unchecked) => SimChange::Silent,
            _ => SimChange::Detected,
        };
        let verified = match self.canary {
            Some(Canary::Growth) => SimChange::Detected,
            _ => SimChange::Verified,
        };
        match later.change {
            Change::Replaced => file = disk.add_file(content),
            Change::Rewritten => disk.change_file(file, content, detected),
            Change::Grown | Change::Touched | Change::Attributed => {
                disk.change_file(file, content, verified);
            }
            // Nothing else may notice.
            Change::Unnoticed => return disk.change_file(file, content, SimChange::Silent),
        }
        if self.canary == Some(Canary::Stale) {
            return;
        }
        let entry = entry(&object, version, file, self.answers_later);
        let catalogue = self.worker.store_mut().catalogue_mut();
        let catalogue = catalogue.expect("invariant: a catalogue");
        catalogue.insert(&object.path(), entry);
    }

    /// The resources it holds.
    pub(crate) fn resources(&self) -> Resources {
        let arena = self.worker.arena();
        Resources {
            slots: arena.slot_count(),
            // What its device keeps was freed too, and cannot be used again.
            free_slots: arena.free_count() + arena.parked_count(),
            reads_in_flight: self.worker.disk().in_flight(),
            connections: self.worker.connection_count(),
        }
    }

    /// Removes every object and looks it up again, so that the store closes all that are not in
    /// use. Those that stay open are held by a connection that has ended.
    pub(crate) fn held_objects(&mut self, now: Instant) -> u64 {
        let later = now + TURN;
        for object in &self.objects {
            let path = object.path();
            let store = self.worker.store_mut();
            store
                .catalogue_mut()
                .expect("invariant: a catalogue")
                .remove(&path);
            let answer = store.look_up(later, 0, &path);
            assert!(
                matches!(answer, store::LookUp::Refused(_)),
                "{answer:?} of nothing"
            );
        }
        self.step(later);
        let counters = self.worker.store().counters();
        counters.store_opened_objects - counters.store_closed_objects
    }

    /// The error that ended it, if one did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Violations that its link found.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut violations = self.worker.link().retransmissions().complaints().to_vec();
        if self.kept_for_max > session::KEPT_FOR_MAX {
            let millis = self.kept_for_max.as_millis();
            violations.push(format!("a slot was kept for {millis} ms"));
        }
        violations
    }

    /// Bytes it read and sent.
    pub(crate) fn reading(&self) -> Reading {
        let retransmissions = self.worker.link().retransmissions();
        Reading {
            read_bytes: self.worker.disk().counters().disk_read_bytes,
            sent_bytes: retransmissions.sent_bytes(),
            connections: retransmissions.connections(),
        }
    }

    /// Adds the deliberate bug of a canary, if that bug is in the server.
    pub(crate) fn plant(&mut self, canary: Canary) {
        self.canary = Some(canary);
        match canary {
            Canary::Repeat => self.worker.link_mut().alter_retransmissions(),
            Canary::Loan => self.worker.link_mut().link_mut().give_back_early(),
            _ => {}
        }
    }

    /// Name and value of its counters.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.worker.counters();
        let repeated_bytes = self.worker.link().retransmissions().repeated_bytes();
        counters.push((REPEATED_BYTES, repeated_bytes));
        counters
    }
}

/// What happened on the ways to and from a link.
pub(crate) fn port_counters(port: &SimPort) -> Vec<(&'static str, u64)> {
    let (out, back) = (port.counters_to_port(), port.counters_to_link());
    vec![
        (
            "network_carried_frames",
            out.carried_frames + back.carried_frames,
        ),
        ("network_lost_frames", out.lost_frames + back.lost_frames),
        (
            "network_queue_dropped_frames",
            out.queue_dropped_frames + back.queue_dropped_frames,
        ),
        (
            "network_duplicated_frames",
            out.duplicated_frames + back.duplicated_frames,
        ),
        (
            "network_corrupted_frames",
            out.corrupted_frames + back.corrupted_frames,
        ),
        (
            "network_reordered_frames",
            out.reordered_frames + back.reordered_frames,
        ),
        (
            "network_arrived_down_frames",
            out.arrived_down_frames + back.arrived_down_frames,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Scenario, WRAP_BYTES};
    use crate::scenario::THEMES;
    use crate::world::frame_log::FrameLog;

    #[test]
    fn sequence_numbers_wrap_where_they_are_told_to() {
        let wraps = |seed: &u64| Scenario::draw(*seed, &THEMES[0]).wraps;
        let mut wrapped = 0;
        for seed in (0..400).filter(wraps) {
            let (_, frame_log) = crate::run(seed, &THEMES[0], None, FrameLog::new(true, false));
            let sequence = |line: &String| -> Option<u32> {
                let (_, rest) = line.split_once(" < ")?.1.split_once(" seq=")?;
                rest.split(' ').next()?.parse().ok()
            };
            let numbers: Vec<u32> = frame_log.lines().iter().filter_map(sequence).collect();
            let (high, low) = (u32::MAX - WRAP_BYTES, WRAP_BYTES * 10);
            let before = numbers.iter().position(|number| *number > high);
            let after = numbers.iter().rposition(|number| *number < low);
            wrapped += usize::from(
                before
                    .zip(after)
                    .is_some_and(|(before, after)| before < after),
            );
        }
        assert!(wrapped > 0, "no connection's numbers wrapped");
    }
}
