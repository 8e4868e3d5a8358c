//! One run: a server, a network and some clients on one virtual clock, until nobody has work.
//!
//! Time jumps to the earliest timer; at each moment server, clients and network run until none has
//! anything to do. It refuses to run for ever: a run that has not ended within [`STEPS_MAX`] steps,
//! [`STEPS_MAX_AT_ONCE`] steps of one moment or [`VIRTUAL_MAX`] is a hang, and a hang is a failure.
//! At the end the server must hold no resources: see [`Resources::leak`].

mod blind_attacker;
mod failover;
pub(crate) mod frame_log;
mod syn_flood;
pub(crate) mod trace;

use core::net::{Ipv4Addr, Ipv6Addr};

use clock::{Duration, Instant};
use counters::CounterSet as _;

use crate::abusive_peer::AbusivePeer;
use crate::client::plan::ClientPlan;
use crate::client::{Client, Tally, Violation, mac_of};
use crate::crafted;
use crate::scenario::{Event, SERVER_V4, SERVER_V6, Scenario};
use crate::workers::{self, Switch, Workers};
use blind_attacker::BlindAttacker;
use failover::Failover;
use frame_log::{Direction, FrameLog};
use session::ReadLimits;
use syn_flood::SynFlood;
use tcp::Fault;
use wire::{MacAddress, Route};

/// Steps of a whole run.
const STEPS_MAX: u64 = 3_000_000;
/// Steps in which the clock stood still.
const STEPS_MAX_AT_ONCE: u64 = 20_000;
/// Most virtual time of a run. Long: a connection to a vanished peer ends only after many
/// backed-off retransmissions, and TIME-WAIT follows. A client with a window of 312 bytes gets 2.6 MB over a round trip of
/// 273 ms in 38 minutes, and asks for them again when the keys of its connection are used up.
const VIRTUAL_MAX: Duration = Duration::from_secs(8 * 3600);

const ETHERNET_BYTES: usize = 14;
/// The router of a path with a small MTU.
const ROUTER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 2, 1]);
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 1);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 2, 1);

/// Resources a server holds; none at the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resources {
    /// Slots of the arena.
    pub(crate) slots: usize,
    /// Of these, free ones.
    pub(crate) free_slots: usize,
    /// Reads enqueued or in flight.
    pub(crate) reads_in_flight: usize,
    /// Connections, half-open ones included, TIME-WAIT not.
    pub(crate) connections: usize,
}

impl Resources {
    /// What is still held once every client is done; `None`: nothing.
    pub(crate) fn leak(&self) -> Option<String> {
        let balanced = Self {
            slots: self.slots,
            free_slots: self.slots,
            ..Self::default()
        };
        (*self != balanced).then(|| format!("{self:?}"))
    }
}

/// Bytes a server read from its disk, and what they are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Bytes of all streams that were sent, retransmissions not counted.
    pub(crate) sent_bytes: u64,
    /// Connections begun.
    pub(crate) connections: u64,
}

impl Reading {
    /// A violation if more was read than the read budget permits after so long.
    fn excess(&self, lasted: Duration) -> Option<String> {
        let limits = ReadLimits::default();
        let floor = u128::from(limits.floor_bytes_per_second) * lasted.as_millis() / 1000;
        let each = u128::from(limits.burst_bytes) + READS_UNDER_WAY_BYTES + floor;
        let most = u128::from(self.sent_bytes) * u128::from(limits.factor)
            + u128::from(self.connections) * each;
        (u128::from(self.read_bytes) > most).then(|| {
            let at_ms = lasted.as_millis();
            format!("at {at_ms} ms too much was read, more than {most} bytes: {self:?}")
        })
    }
}

/// Reads in progress when a connection ends are never sent: at most 16, of a slot each.
const READS_UNDER_WAY_BYTES: u128 = 16 << 16;
/// The read budget of the canary that has none.
pub(crate) const UNLIMITED_READS: ReadLimits = ReadLimits {
    factor: u64::MAX,
    burst_bytes: u64::MAX,
    floor_bytes_per_second: u64::MAX,
};
/// The send timeout of a server that has none.
pub(crate) const SEND_TIMEOUT_NEVER: Duration = Duration::from_secs(1 << 30);

/// A deliberate bug: the checks must find each, or they check nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Canary {
    /// The clients expect one wrong byte of each object
    WrongByte,
    /// One frame is altered, with a right checksum
    Frame,
    /// One slot is not freed
    Slot,
    /// From some moment on all frames to the clients are lost
    Silence,
    /// Retransmissions are altered, with a right checksum
    Repeat,
    /// Files change unnoticed, without TLS
    Unnoticed,
    /// Bytes of a rewritten file are handed out (see --scenario changes)
    Unchecked,
    /// A file that grows or is touched counts as rewritten (see --scenario changes)
    Growth,
    /// Names lead to what they led to at first (see --scenario changes)
    Stale,
    /// A reply whose file changes before it is sent is cut (see --scenario rewrites)
    Cut,
    /// No read budget (see --scenario abusive)
    Reads,
    /// No send timeout (see --scenario abusive)
    SendTimeout,
    /// Slots are given back before they were read (see --scenario lending)
    Loan,
    /// Slots are kept for longer than they may be
    KeptTooLong,
    /// A client is sent what took the place of a copy that was given up (see --scenario plain)
    SentAfterGivenUp,
    /// The connection table has one entry less (see --scenario famine)
    Table,
    /// Segments at the wrong worker are dropped (see --scenario workers)
    Strays,
    /// A timeout in a recovery reduces ssthresh again (see --scenario paths)
    TimeoutReducesTwice,
    /// Needless recoveries are not undone (see --scenario paths)
    RecoveryUndo,
    /// The RTO of a long path has no margin (see --scenario paths)
    TimeoutMargin,
    /// Spurious timeouts are not undone (see --scenario paths)
    TimeoutUndo,
    /// Retransmissions give no RTT sample (see --scenario paths)
    RttSample,
    /// CUBIC counts application-limited time (see --scenario paths)
    PauseCounts,
    /// Slow start passes ssthresh (see --scenario paths)
    Overshoot,
    /// Each echo of a mark reduces the window (see --scenario paths)
    EchoTwice,
}

impl Canary {
    /// The fault of kept slots that it is.
    pub(crate) const fn session_fault(self) -> Option<session::Fault> {
        Some(match self {
            Self::KeptTooLong => session::Fault::KeptTooLong,
            Self::SentAfterGivenUp => session::Fault::SentAfterGivenUp,
            _ => return None,
        })
    }

    /// The fault of TCP that it is.
    pub(crate) const fn tcp_fault(self) -> Option<Fault> {
        Some(match self {
            Self::TimeoutReducesTwice => Fault::TimeoutReducesTwice,
            Self::RecoveryUndo => Fault::RecoveryNotUndone,
            Self::TimeoutMargin => Fault::TimeoutWithoutMargin,
            Self::TimeoutUndo => Fault::TimeoutNotUndone,
            Self::RttSample => Fault::NoSampleOfRetransmission,
            Self::PauseCounts => Fault::PauseCounts,
            Self::Overshoot => Fault::SlowStartOvershoots,
            Self::EchoTwice => Fault::EchoAnsweredTwice,
            _ => return None,
        })
    }
}

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// What failed; empty: the run passed.
    pub(crate) violations: Vec<Violation>,
    /// Hash of every frame both ways, with its time.
    pub(crate) digest: u64,
    /// Virtual time of the run.
    pub(crate) lasted: Duration,
    /// Steps of the loop.
    pub(crate) steps: u64,
    /// Frames both ways.
    pub(crate) frames: u64,
    /// What the clients met.
    pub(crate) tally: Tally,
    /// Connections that a full table ended, whose end a failed read may also explain.
    pub(crate) refused_or_broken: u64,
    /// All counters.
    pub(crate) counters: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// A violation if more connections failed than the server counted faults: one failed read, one that found its
    /// file changed and got its client no other reply, one changed record or one exhausted key breaks one reply; one full table refuses one connection,
    /// or closes an idle one. A reset before the first byte may be either.
    fn overdrawn_excuses(&self) -> Option<String> {
        let count = |wanted: &str| -> u64 {
            self.counters
                .iter()
                .filter(|(name, _)| *name == wanted)
                .map(|(_, value)| value)
                .sum()
        };
        let failures = count("disk_failed_commands") + count("disk_changed_commands")
            - count("session_reply_anew_count")
            + count("record_reseal_mismatch_count")
            + count("tls_key_exhausted_count");
        let overflows = count("tcp_overflow_count") + count("tcp_evicted_count");
        let (broken, refused) = (self.tally.broken_count, self.tally.refused_count);
        let overdrawn = broken > failures
            || refused - self.refused_or_broken > overflows
            || broken + refused > failures + overflows;
        overdrawn.then(|| {
            format!(
                "{broken} replies broken by {failures} failed reads and keys, {refused} connections \
                 refused by {overflows} full tables"
            )
        })
    }
}

/// A run under way.
pub(crate) struct World {
    now: Instant,
    epoch: Instant,
    path_mtu_bytes: Option<u16>,
    blind_attacker: BlindAttacker,
    syn_flood: Option<SynFlood>,
    failover: Option<Failover>,
    abusive: Vec<AbusivePeer>,
    /// The violation of the read budget, if any.
    excess: Option<Violation>,
    server: Workers,
    network: Switch,
    clients: Vec<Client>,
    events: std::vec::IntoIter<(Instant, Event)>,
    next_event: Option<(Instant, Event)>,
    frame_log: FrameLog,
    canary: Option<Canary>,
    steps: u64,
    steps_at_once: u64,
}

impl World {
    /// The run of a scenario, with a deliberate bug if one is to be found.
    pub(crate) fn new(scenario: &Scenario, canary: Option<Canary>, frame_log: FrameLog) -> Self {
        let (mut server, network) = workers::assemble(scenario);
        server.set_trace(frame_log.trace().as_ref());
        if let Some(canary) = canary {
            server.plant(canary);
        }
        let permits = scenario.permits();
        let make_client = |plan: &ClientPlan| {
            let mut client = Client::new(plan.clone(), permits);
            if canary == Some(Canary::WrongByte) {
                client.expect_wrong_byte();
            }
            client
        };
        let mut events = scenario.events.clone().into_iter();
        let seed = scenario.fault_seed;
        Self {
            now: scenario.epoch,
            epoch: scenario.epoch,
            path_mtu_bytes: scenario.path_mtu_bytes,
            blind_attacker: BlindAttacker::new(seed, scenario.attack_permille),
            syn_flood: scenario.syn_flood.then(|| SynFlood::new(seed)),
            failover: scenario.failover_at.map(Failover::new),
            abusive: scenario.abusive.iter().map(AbusivePeer::new).collect(),
            excess: None,
            server,
            network,
            clients: scenario.clients.iter().map(make_client).collect(),
            next_event: events.next(),
            events,
            frame_log,
            canary,
            steps: 0,
            steps_at_once: 0,
        }
    }

    /// Runs to the end, or until it counts as a hang.
    pub(crate) fn run(mut self) -> (Outcome, FrameLog) {
        let hang = loop {
            self.act_until_idle();
            if self.is_quiet() && self.server.poll_timeout().is_none() {
                break None;
            }
            let Some(next) = self.next_moment() else {
                break (!self.is_quiet()).then(|| "no timer is pending".to_owned());
            };
            if next > self.now {
                self.now = next;
                self.steps_at_once = 0;
                self.check_reads();
            }
            if let Some(reason) = self.exhausted() {
                break Some(reason);
            }
        };
        self.conclude(hang)
    }

    /// Runs everything at this moment until nothing has work.
    fn act_until_idle(&mut self) {
        loop {
            self.steps += 1;
            self.steps_at_once += 1;
            let moved = [
                self.handle_due_event(),
                self.deliver(),
                self.poll_syn_flood(),
                self.poll_clients(),
                self.poll_abusive(),
                self.poll_server(),
            ];
            if !moved.contains(&true) || self.steps_at_once > STEPS_MAX_AT_ONCE {
                return;
            }
        }
    }

    fn handle_due_event(&mut self) -> bool {
        let Some((_, event)) = self.next_event.filter(|(at, _)| *at <= self.now) else {
            return false;
        };
        self.frame_log.note(self.now, format_args!("{event:?}"));
        self.server.handle_event(self.now, event);
        self.next_event = self.events.next();
        true
    }

    fn poll_server(&mut self) -> bool {
        self.server.step(self.now)
    }

    /// Delivers frames to the clients they are addressed to.
    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while let Some(mut frame) = self.network.receive(self.now) {
            moved = true;
            if self.canary == Some(Canary::Silence)
                && self.frame_log.frames() > SILENCE_AFTER_FRAMES
            {
                continue;
            }
            if self.canary == Some(Canary::Frame) && swap_payload_words(&mut frame) {
                self.canary = None;
            }
            if self.is_too_big(&frame) {
                continue;
            }
            self.frame_log
                .record(self.now, Direction::ToClients, &frame);
            let Some(destination) = frame.first_chunk::<6>() else {
                continue;
            };
            if let Some(abusive) = self
                .abusive
                .iter_mut()
                .find(|abusive| abusive.is_at(*destination))
            {
                abusive.handle_frame(frame);
                continue;
            }
            if let Some(failover) = &self.failover
                && failover.is_router(*destination)
            {
                let to = failover.forward(self.now, &frame);
                let mut clients = self.clients.iter_mut();
                if let Some(client) = clients.find(|client| Some(client.address()) == to) {
                    frame[..6].copy_from_slice(&mac_of(client.number()));
                    client.handle_frame(self.now, frame);
                }
                continue;
            }
            if destination[0] & 1 == 1 {
                for client in &mut self.clients {
                    client.handle_frame(self.now, frame.clone());
                }
                continue;
            }
            let addressee = self
                .clients
                .iter_mut()
                .find(|client| mac_of(client.number()) == *destination);
            if let Some(client) = addressee {
                client.handle_frame(self.now, frame);
            }
        }
        moved
    }

    /// The router drops a packet above the path MTU and answers by Packet Too Big.
    fn is_too_big(&mut self, frame: &[u8]) -> bool {
        let Some(mtu_bytes) = self.path_mtu_bytes else {
            return false;
        };
        if frame.len() <= ETHERNET_BYTES + usize::from(mtu_bytes) {
            return false;
        }
        let sender = frame.get(6..12).and_then(|mac| mac.try_into().ok());
        let is_v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
        let route = Route {
            source_mac: ROUTER_MAC,
            destination_mac: MacAddress(sender.unwrap_or_default()),
            source: if is_v6 {
                ROUTER_V6.into()
            } else {
                ROUTER_V4.into()
            },
            destination: if is_v6 {
                SERVER_V6.into()
            } else {
                SERVER_V4.into()
            },
        };
        if let Some(too_big) = crafted::packet_too_big(&route, frame, mtu_bytes) {
            self.frame_log
                .record(self.now, Direction::ToServer, &too_big);
            self.network.transmit(self.now, too_big);
        }
        true
    }

    fn poll_syn_flood(&mut self) -> bool {
        let mut moved = false;
        while let Some(frame) = self.syn_flood.as_mut().and_then(SynFlood::poll) {
            moved = true;
            self.frame_log.record(self.now, Direction::ToServer, &frame);
            self.network.transmit(self.now, frame);
        }
        moved
    }

    fn poll_clients(&mut self) -> bool {
        let (now, network, frame_log) = (self.now, &mut self.network, &mut self.frame_log);
        let syn_flood = &mut self.syn_flood;
        let (blind_attacker, failover) = (&mut self.blind_attacker, &self.failover);
        let mut moved = false;
        for client in &mut self.clients {
            moved |= client.poll(now, &mut |mut frame| {
                if let Some(failover) = failover {
                    failover.pass(now, &mut frame);
                }
                frame_log.record(now, Direction::ToServer, &frame);
                let forged = blind_attacker.follow(&frame);
                network.transmit(now, frame);
                let flood = syn_flood.as_mut().map(SynFlood::follow);
                for forged in forged.into_iter().chain(flood.into_iter().flatten()) {
                    frame_log.record(now, Direction::ToServer, &forged);
                    network.transmit(now, forged);
                }
            });
        }
        moved
    }

    fn poll_abusive(&mut self) -> bool {
        let (now, network, frame_log) = (self.now, &mut self.network, &mut self.frame_log);
        let mut moved = false;
        for abusive in &mut self.abusive {
            moved |= abusive.poll(now, &mut |frame| {
                frame_log.record(now, Direction::ToServer, &frame);
                network.transmit(now, frame);
            });
        }
        moved
    }

    /// Compares bytes read with bytes sent.
    fn check_reads(&mut self) {
        if self.excess.is_none() {
            let lasted = self.now.since(self.epoch);
            self.excess = self.server.reading().excess(lasted);
        }
    }

    fn next_moment(&self) -> Option<Instant> {
        let abusive = self.abusive.iter().filter_map(AbusivePeer::poll_at).min();
        let clients = self.clients.iter().filter_map(Client::poll_at).min();
        let event = self.next_event.map(|(at, _)| at);
        [
            self.network.poll_timeout(),
            self.server.poll_timeout(),
            clients,
            abusive,
            event,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_quiet(&self) -> bool {
        self.clients.iter().all(Client::is_done)
            && self.abusive.iter().all(AbusivePeer::is_done)
            && self.resources().leak().is_none()
    }

    fn resources(&self) -> Resources {
        let mut resources = self.server.resources();
        if self.canary == Some(Canary::Slot) {
            resources.free_slots -= 1;
        }
        resources
    }

    fn exhausted(&self) -> Option<String> {
        if let Some(failure) = self.server.failure() {
            return Some(failure.to_owned());
        }
        if self.steps_at_once > STEPS_MAX_AT_ONCE {
            return Some(format!("more than {STEPS_MAX_AT_ONCE} steps at one moment"));
        }
        if self.steps > STEPS_MAX {
            return Some(format!("not ended after {STEPS_MAX} steps"));
        }
        let lasted = self.now.since(self.epoch);
        (lasted > VIRTUAL_MAX).then(|| format!("not ended after {} s", VIRTUAL_MAX.as_secs()))
    }

    /// A connection that its client says a full table refused must have met one.
    fn judge_refusals(&self, client: &Client, outcome: &mut Outcome) {
        for refusal in &client.report().refusals {
            let (server, peer) = (client.server(), (client.address(), refusal.port));
            if self.server.may_have_been_full(server, peer) {
                outcome.tally.refused_count += 1;
                outcome.refused_or_broken += u64::from(refusal.may_be_broken);
            } else if refusal.may_be_broken {
                outcome.tally.broken_count += 1;
            } else {
                let number = client.number();
                let (port, what) = (refusal.port, &refusal.description);
                outcome.violations.push(format!(
                    "client {number} port {port}: {what}, and the table was not full"
                ));
            }
        }
    }

    fn conclude(mut self, hang: Option<String>) -> (Outcome, FrameLog) {
        let mut outcome = Outcome {
            digest: self.frame_log.digest(),
            lasted: self.now.since(self.epoch),
            steps: self.steps,
            frames: self.frame_log.frames(),
            counters: self.server.counters(),
            ..Outcome::default()
        };
        outcome.counters.extend(self.network.counters());
        for client in &self.clients {
            let report = client.report();
            outcome.tally = outcome.tally.plus(&report.tally);
            self.judge_refusals(client, &mut outcome);
            outcome.violations.extend(report.violations.iter().cloned());
        }
        outcome.counters.extend(outcome.tally.as_pairs());
        self.check_reads();
        outcome.violations.extend(self.excess.take());
        let abusive = self.abusive.iter().filter_map(AbusivePeer::violation);
        outcome.violations.extend(abusive.cloned());
        outcome.violations.extend(self.server.violations());
        outcome.violations.extend(outcome.overdrawn_excuses());
        if let Some(failure) = self.server.failure() {
            outcome
                .violations
                .push(format!("the server failed: {failure}"));
        }
        if hang.is_none() {
            let held = self.server.held_objects(self.now);
            if held > 0 {
                outcome
                    .violations
                    .push(format!("{held} objects are held without a connection"));
            }
        }
        if let Some(reason) = hang {
            let at_ms = outcome.lasted.as_millis();
            outcome
                .violations
                .push(format!("hang at {at_ms} ms: {reason}"));
            let waiting = self.clients.iter().filter(|client| !client.is_done());
            outcome.violations.extend(waiting.map(Client::describe));
            if let Some(leak) = self.resources().leak() {
                outcome.violations.push(format!("resources: {leak}"));
            }
        }
        (outcome, self.frame_log)
    }
}

/// Frames that the canary `silence` delivers first.
const SILENCE_AFTER_FRAMES: u64 = 12;
/// A frame of this size holds content: headers and a reply's head are shorter.
const CONTENT_FRAME_BYTES: usize = 1000;

/// Swaps two 16-bit words near the end of a data frame, which does not change its checksum.
pub(crate) fn swap_payload_words(frame: &mut [u8]) -> bool {
    if frame.len() < CONTENT_FRAME_BYTES {
        return false;
    }
    // All headers have an even length: words of the frame are words of the checksum.
    let right = (frame.len() - 4) & !1;
    let left = right - 100;
    if frame[left..left + 2] == frame[right..right + 2] {
        return false;
    }
    frame.swap(left, right);
    frame.swap(left + 1, right + 1);
    true
}
