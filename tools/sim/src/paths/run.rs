//! One run: the server, one path, one receiver (and sometimes a peer that answers for ever).
//!
//! Time jumps from event to event, as in [`crate::world`]; at the end the server must hold nothing.
//! It refuses to run for ever: [`STEPS_MAX`], [`VIRTUAL_MAX`].

use core::net::{IpAddr, Ipv4Addr};

use clock::{Duration, Instant};
use link::sim::{SimConfig as LinkConfig, SimPort};
use session::TcpConfig;
use tcp::{Canary as TcpCanary, Fault};
use wire::TcpFlags;

use super::leg::Leg;
use super::meter::Meter;
use super::oracle;
use super::plan::{PathsPlan, Trial};
use super::receiver::{RECEIVER_MAC, Receiver};
use crate::abusive_peer::{AbusivePeer, AbusivePlan};
use crate::atlas::{Atlas, assemble};
use crate::client::Violation;
use crate::client::plan::ObjectPlan;
use crate::content::Content;
use crate::scenario::{Scenario, Theme};
use crate::world::Outcome;
use crate::world::frame_log::{Direction, FrameLog};

/// Steps of a whole run.
const STEPS_MAX: u64 = 3_000_000;
/// Most virtual time of a run.
const VIRTUAL_MAX: Duration = Duration::from_secs(2 * 3600);
/// The object that everybody requests.
const OBJECT_BYTES: u64 = 64 << 20;
/// The `send_timeout` of the server.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);
/// Where the flags of a TCP segment are in a frame with an IPv4 header without options.
const FLAGS_AT: usize = 14 + 20 + 13;
/// Thinning drops only ACKs that follow another within this: it takes queued ones for redundant.
const THINNED_WITHIN: Duration = Duration::from_millis(5);
/// Least bytes of a frame that carries a request.
const REQUEST_FRAME_BYTES: usize = 110;

/// A run under way.
pub(crate) struct Run {
    now: Instant,
    plan: PathsPlan,
    server: Atlas,
    port: SimPort,
    forth: Leg,
    back: Leg,
    pub(crate) receiver: Receiver,
    abusive: Vec<AbusivePeer>,
    pub(crate) meter: Meter,
    /// ACKs without data that followed another closely, and when the last one was sent.
    acks: u64,
    acked_at: Instant,
    frame_log: FrameLog,
    steps: u64,
}

impl Run {
    pub(crate) fn new(plan: &PathsPlan, fault: Option<Fault>, frame_log: FrameLog) -> Self {
        let mut plan = plan.clone();
        let scenario = make_scenario(&plan, fault);
        plan.receiver.path = scenario.objects[0].path();
        let (mut server, port) = assemble(&scenario);
        server.set_trace(frame_log.trace());
        let abusive = match plan.trial {
            Trial::Forever(conduct) => vec![AbusivePeer::new(&AbusivePlan {
                number: 1,
                address: IpAddr::V4(Ipv4Addr::new(10, 9, 3, 1)),
                starts: plan.epoch,
                conduct,
                secure: None,
                object: scenario.objects[0],
                send_timeout: SEND_TIMEOUT,
            })],
            _ => Vec::new(),
        };
        Self {
            now: plan.epoch,
            server,
            port,
            forth: Leg::new(plan.forth.clone(), plan.epoch, plan.seed, 21),
            back: Leg::new(plan.back.clone(), plan.epoch, plan.seed, 22),
            receiver: Receiver::new(plan.receiver.clone(), plan.epoch),
            abusive,
            meter: Meter::new(&plan.losses),
            acks: 0,
            acked_at: Instant::ZERO,
            frame_log,
            steps: 0,
            plan,
        }
    }

    /// Runs to the end, or until it counts as a hang.
    pub(crate) fn run(mut self) -> (Outcome, FrameLog) {
        let hang = self.run_to_end();
        let outcome = self.conclude(hang);
        (outcome, self.frame_log)
    }

    /// The same, without a verdict. Returns why it is a hang.
    pub(crate) fn run_to_end(&mut self) -> Option<String> {
        loop {
            while self.act() {
                self.steps += 1;
            }
            self.steps += 1;
            if self.is_quiet() && self.server.poll_timeout().is_none() {
                return None;
            }
            let lasted = self.now.since(self.plan.epoch);
            if self.steps > STEPS_MAX || lasted > VIRTUAL_MAX {
                return Some(format!("not ended after {} steps", self.steps));
            }
            if let Some(failure) = self.server.failure() {
                return Some(failure.to_owned());
            }
            match self.next_moment() {
                Some(next) => self.now = self.now.max(next),
                None => return (!self.is_quiet()).then(|| "no timer is pending".to_owned()),
            }
        }
    }

    /// Moves frames one stage on, and lets both ends act. Returns whether anything happened.
    fn act(&mut self) -> bool {
        let now = self.now;
        let mut moved = false;
        while let Some(frame) = self.port.receive(now) {
            moved = true;
            if !self.meter.on_sent(now, &frame) {
                self.forth.send(now, frame);
            }
        }
        while let Some(frame) = self.forth.receive(now) {
            moved = true;
            self.frame_log.record(now, Direction::ToClients, &frame);
            let to = frame.first_chunk::<6>().copied().unwrap_or_default();
            if to == RECEIVER_MAC.0 {
                self.receiver.handle_frame(frame);
            } else if let Some(peer) = self.abusive.iter_mut().find(|peer| peer.is_at(to)) {
                peer.handle_frame(frame);
            }
        }
        moved |= self.poll_peers();
        while let Some(frame) = self.back.receive(now) {
            moved = true;
            self.meter.on_ack(now, &frame);
            self.port.send(now, frame);
        }
        self.server.step(now) || moved
    }

    fn poll_peers(&mut self) -> bool {
        let (now, back, frame_log) = (self.now, &mut self.back, &mut self.frame_log);
        let (acks, drops_ack_every) = (&mut self.acks, self.plan.drops_ack_every);
        let acked_at = &mut self.acked_at;
        let mut send = |frame: Vec<u8>| {
            frame_log.record(now, Direction::ToServer, &frame);
            if is_pure_ack(&frame) {
                let is_close = now.since(*acked_at) < THINNED_WITHIN;
                *acked_at = now;
                *acks += u64::from(is_close);
                if is_close && drops_ack_every > 0 && acks.is_multiple_of(drops_ack_every) {
                    return;
                }
            }
            back.send(now, frame);
        };
        let mut moved = self.receiver.poll(now, &mut send);
        for peer in &mut self.abusive {
            moved |= peer.poll(now, &mut send);
        }
        moved
    }

    /// Bytes that the server has read from its disk.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.server.reading().read_bytes
    }

    fn next_moment(&self) -> Option<Instant> {
        let abusive = self.abusive.iter().filter_map(AbusivePeer::poll_at).min();
        [
            self.port.next_event(),
            self.forth.poll_timeout(),
            self.back.poll_timeout(),
            self.receiver.poll_at(),
            self.server.poll_timeout(),
            abusive,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_quiet(&self) -> bool {
        self.receiver.is_done()
            && self.abusive.iter().all(AbusivePeer::is_done)
            && self.server.resources().leak().is_none()
    }

    fn conclude(&mut self, hang: Option<String>) -> Outcome {
        let mut violations: Vec<Violation> = Vec::new();
        if let Some(reason) = hang {
            let at_ms = self.now.since(self.plan.epoch).as_millis();
            violations.push(format!("hang at {at_ms} ms: {reason}"));
            let leak = self.server.resources().leak();
            violations.extend(leak.map(|leak| format!("resources: {leak}")));
        } else {
            let held = self.server.held_objects(self.now);
            if held > 0 {
                violations.push(format!("{held} objects are held without a connection"));
            }
        }
        violations.extend(self.receiver.failure().map(str::to_owned));
        let abusive = self.abusive.iter().filter_map(AbusivePeer::violation);
        violations.extend(abusive.cloned());
        violations.extend(self.server.violations());
        violations.extend(oracle::violations(&self.plan, &self.meter, &self.receiver));
        let mut counters = self.server.counters();
        counters.extend([
            (
                "network_carried_frames",
                self.forth.sent_frames() + self.back.sent_frames(),
            ),
            (
                "network_lost_frames",
                self.forth.dropped_frames() + self.back.dropped_frames(),
            ),
            ("paths_replies", self.receiver.replies().len() as u64),
            ("paths_received_bytes", self.receiver.received_bytes()),
            ("paths_read_bytes", self.read_bytes()),
            ("paths_duplicate_bytes", self.receiver.duplicate_bytes()),
            ("paths_timeouts", self.meter.timeouts()),
            ("paths_marked_frames", self.forth.marked_frames()),
            ("paths_reductions", self.meter.marks().reductions()),
        ]);
        Outcome {
            violations,
            digest: self.frame_log.digest(),
            lasted: self.now.since(self.plan.epoch),
            steps: self.steps,
            frames: self.frame_log.frames(),
            counters,
            ..Outcome::default()
        }
    }
}

/// Whether a frame is an ACK without data, SYN, FIN and RST.
fn is_pure_ack(frame: &[u8]) -> bool {
    let flags = frame.get(FLAGS_AT).copied().unwrap_or_default();
    let others = TcpFlags::SYN.union(TcpFlags::FIN).union(TcpFlags::RST);
    frame.len() < REQUEST_FRAME_BYTES && flags & others.0 == 0
}

/// A scenario without faults, and with room for everything: only the path limits.
fn make_scenario(plan: &PathsPlan, fault: Option<Fault>) -> Scenario {
    let clean = Theme::named("clean").expect("invariant: there is one");
    let mut scenario = Scenario::draw(plan.seed, clean);
    scenario.epoch = plan.epoch;
    scenario.path_mtu_bytes = None;
    scenario.link = LinkConfig {
        segmentation_bytes_max: plan.segmentation_bytes_max,
        ..LinkConfig::default()
    };
    scenario.slots = 64;
    scenario.slot_bytes = 65_536;
    scenario.disk.latency_min = Duration::from_micros(50);
    scenario.disk.latency_max = Duration::from_micros(100);
    scenario.disk.read_bytes_max = 65_536;
    scenario.session.idle_timeout = Duration::from_secs(600);
    scenario.session.head_timeout = Duration::from_secs(600);
    scenario.session.send_timeout = SEND_TIMEOUT;
    scenario.answers_later = false;
    scenario.events.clear();
    scenario.clients.clear();
    scenario.abusive.clear();
    scenario.failover_at = None;
    scenario.objects = vec![ObjectPlan {
        number: 0,
        content: Content::new(plan.seed, 0, 0),
        later: None,
        size_bytes: OBJECT_BYTES,
    }];
    scenario.session.tcp = TcpConfig {
        congestion: plan.congestion,
        is_paced: plan.is_paced,
        canary: fault.map_or(TcpCanary::NONE, TcpCanary::of),
        ..TcpConfig::default()
    };
    scenario
}
