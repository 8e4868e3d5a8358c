//! One run: a server, a cable and some clients on one virtual clock, until nothing moves.
//!
//! Time jumps to the earliest moment anybody waits for; at each moment everybody acts until
//! nobody has anything to do. It refuses to run for ever: a run that has not gone quiet within
//! [`STEPS_MAX`] steps, [`STEPS_MAX_AT_ONCE`] steps of one moment or [`VIRTUAL_MAX`] is a hang,
//! and a hang is a failure. At quiet the books must balance: see [`Books::imbalance`].

mod handover;
pub(crate) mod spoofer;
pub(crate) mod tape;

use core::net::{Ipv4Addr, Ipv6Addr};

use clock::{Duration, Instant};

use crate::client::{Client, Secured, Violation, mac_of};
use crate::forge;
use crate::rude::Rude;
use crate::scenario::{Happening, SERVER_V4, SERVER_V6};
use handover::Handover;
use session::ReadLimits;
use spoofer::Spoofer;
use tape::{Direction, Tape};
use wire::{MacAddress, Route};

/// Steps of a whole run.
const STEPS_MAX: u64 = 3_000_000;
/// Steps in which the clock stood still.
const STEPS_MAX_AT_ONCE: u64 = 20_000;
/// Virtual time of a whole run. Long: a vanished peer is given up only after many backed-off
/// retransmissions, and TIME-WAIT follows.
const VIRTUAL_MAX: Duration = Duration::from_secs(2 * 3600);

const ETHERNET_BYTES: usize = 14;
/// The router of a narrow path.
const ROUTER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 2, 1]);
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 1);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 2, 1);

/// What a world needs of a server.
pub(crate) trait Server {
    /// Does what is due at `now`; whether there was anything.
    fn step(&mut self, now: Instant) -> bool;
    /// When `step` next has work, its disk included; `None`: only a frame wakes it.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Something happens to it.
    fn handle_happening(&mut self, now: Instant, happening: Happening);
    /// What it holds.
    fn books(&self) -> Books;
    /// Objects somebody still uses, asked once at the very end.
    fn held_objects(&mut self, now: Instant) -> u64;
    /// Why it cannot go on, if it cannot.
    fn failure(&self) -> Option<&str>;
    /// Promises it was seen to break by whoever watches its link.
    fn violations(&self) -> &[Violation];
    /// What it read and what it sent.
    fn reading(&self) -> Reading;
    /// Makes a canary of it, where the deliberate bug is close to the server.
    fn plant(&mut self, canary: Canary);
    /// Name and value of its counters.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// What a world needs of a cable.
pub(crate) trait Cable {
    /// The next frame that reached the clients' end by `now`.
    fn receive(&mut self, now: Instant) -> Option<Vec<u8>>;
    /// A client's frame sets out.
    fn transmit(&mut self, now: Instant, frame: Vec<u8>);
    /// When a frame next reaches either end.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Name and value of its counters.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// What a server holds: at quiet, nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Books {
    /// Slots of the arena.
    pub(crate) slots: usize,
    /// Of these, free ones.
    pub(crate) free_slots: usize,
    /// Reads enqueued or in flight.
    pub(crate) reads_in_flight: usize,
    /// Connections, half-open ones included, TIME-WAIT not.
    pub(crate) connections: usize,
}

impl Books {
    /// What is not as it must be once every client is done; `None` if all is.
    pub(crate) fn imbalance(&self) -> Option<String> {
        let balanced = Self {
            slots: self.slots,
            free_slots: self.slots,
            ..Self::default()
        };
        (*self != balanced).then(|| format!("{self:?}"))
    }
}

/// What a server read from its disk, and what for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Bytes of all streams that were sent, lost ones counted once.
    pub(crate) sent_bytes: u64,
    /// Connections begun.
    pub(crate) connections: u64,
}

impl Reading {
    /// What is read beyond proportion, if anything is, after so long.
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

/// What is being read for a connection when it ends is never sent: 16 reads of a slot.
const READS_UNDER_WAY_BYTES: u128 = 16 << 16;
/// What a server reads that counts nothing.
pub(crate) const UNLIMITED_READS: ReadLimits = ReadLimits {
    factor: u64::MAX,
    burst_bytes: u64::MAX,
    floor_bytes_per_second: u64::MAX,
};
/// How long a server waits that gives nobody up.
pub(crate) const ENDLESS_PATIENCE: Duration = Duration::from_secs(1 << 30);

/// A deliberate bug outside the server: the checkers must find each, or they check nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Canary {
    /// The clients believe one byte of one object to be another.
    Belief,
    /// One frame's payload is altered so that its checksum still holds.
    Frame,
    /// One slot is not given back.
    Slot,
    /// From some moment on, no frame arrives anywhere.
    Silence,
    /// What is sent again is altered, under a checksum that holds.
    Repeat,
    /// Files change, and neither they nor TLS show it.
    Unnoticed,
    /// The server counts nothing of what it reads for whom.
    Reads,
    /// The server waits for ever for what is not acknowledged.
    Patience,
}

impl Canary {
    /// Every canary, what it is called on the command line, and what it does.
    pub(crate) const NAMES: &[(&str, Self, &str)] = &[
        (
            "belief",
            Self::Belief,
            "the clients believe one byte to be another",
        ),
        (
            "frame",
            Self::Frame,
            "one frame is altered under a checksum that holds",
        ),
        ("slot", Self::Slot, "one slot is not given back"),
        ("silence", Self::Silence, "no frame arrives any more"),
        ("repeat", Self::Repeat, "what is sent again is altered"),
        (
            "unnoticed",
            Self::Unnoticed,
            "files change, and neither they nor TLS show it",
        ),
        (
            "reads",
            Self::Reads,
            "reads are not counted (see --scenario rude)",
        ),
        (
            "patience",
            Self::Patience,
            "who takes nothing is never reset (see --scenario rude)",
        ),
    ];
}

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Broken promises; empty: the run passed.
    pub(crate) violations: Vec<Violation>,
    /// Hash of every frame both ways, with its time.
    pub(crate) digest: u64,
    /// Virtual time until quiet.
    pub(crate) lasted: Duration,
    /// Steps of the loop.
    pub(crate) steps: u64,
    /// Frames both ways.
    pub(crate) frames: u64,
    /// Replies read whole.
    pub(crate) replies: u64,
    /// Body bytes compared with their objects.
    pub(crate) verified_bytes: u64,
    /// What became of TLS.
    pub(crate) secured: Secured,
    /// What the clients excused, by reason: see [`crate::client::Report`].
    pub(crate) late: u64,
    pub(crate) broken: u64,
    pub(crate) refused: u64,
    pub(crate) busy: u64,
    pub(crate) closed: u64,
    pub(crate) key_used: u64,
    /// Requests given up for such a reason.
    pub(crate) given_up: u64,
    /// The server's counters.
    pub(crate) counters: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Excuses are paid for by trouble: one failed read, one record that is no longer what it was,
    /// or one worn key breaks one reply; one full table refuses one connection. A reset before the
    /// first byte may be either.
    fn overdrawn_excuses(&self) -> Option<String> {
        let count = |wanted: &str| -> u64 {
            self.counters
                .iter()
                .filter(|(name, _)| *name == wanted)
                .map(|(_, value)| value)
                .sum()
        };
        let failures = count("disk_failed_commands")
            + count("disk_changed_commands")
            + count("record_reseal_mismatch_count")
            + count("tls_key_exhausted_count");
        let overflows = count("tcp_overflow_count");
        let together = self.broken + self.refused > failures + overflows;
        let overdrawn =
            together || self.broken > failures || (failures == 0 && self.refused > overflows);
        overdrawn.then(|| {
            format!(
                "{} replies broken by {failures} failed reads and keys, {} connections refused \
                 by {overflows} full tables",
                self.broken, self.refused
            )
        })
    }
}

/// What else lives in a world.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// When the run begins.
    pub(crate) epoch: Instant,
    /// What happens, in order of time.
    pub(crate) agenda: Vec<(Instant, Happening)>,
    /// A router between server and clients passes packets of so many bytes, and complains of
    /// larger ones.
    pub(crate) path_mtu_bytes: Option<u16>,
    /// Somebody who forges segments.
    pub(crate) spoofer: Option<Spoofer>,
    /// When the router between server and clients hands over to another, if there is one.
    pub(crate) handover_at: Option<Instant>,
    /// Peers that answer for ever.
    pub(crate) rude: Vec<Rude>,
}

/// A run under way.
pub(crate) struct World<S, C> {
    now: Instant,
    epoch: Instant,
    path_mtu_bytes: Option<u16>,
    spoofer: Option<Spoofer>,
    handover: Option<Handover>,
    rude: Vec<Rude>,
    /// What was read beyond proportion.
    excess: Option<Violation>,
    server: S,
    cable: C,
    clients: Vec<Client>,
    agenda: std::vec::IntoIter<(Instant, Happening)>,
    next_happening: Option<(Instant, Happening)>,
    tape: Tape,
    canary: Option<Canary>,
    steps: u64,
    steps_at_once: u64,
}

impl<S: Server, C: Cable> World<S, C> {
    pub(crate) fn new(
        server: S,
        cable: C,
        clients: Vec<Client>,
        surroundings: Surroundings,
        tape: Tape,
    ) -> Self {
        let Surroundings {
            epoch,
            agenda,
            path_mtu_bytes,
            spoofer,
            handover_at,
            rude,
        } = surroundings;
        let mut agenda = agenda.into_iter();
        let next_happening = agenda.next();
        Self {
            now: epoch,
            epoch,
            path_mtu_bytes,
            spoofer,
            handover: handover_at.map(Handover::new),
            rude,
            excess: None,
            server,
            cable,
            clients,
            agenda,
            next_happening,
            tape,
            canary: None,
            steps: 0,
            steps_at_once: 0,
        }
    }

    /// Plants a deliberate bug.
    pub(crate) fn plant(&mut self, canary: Canary) {
        self.canary = Some(canary);
        self.server.plant(canary);
    }

    /// Runs until quiet, or until that is not to be expected any more.
    pub(crate) fn run(mut self) -> (Outcome, Tape) {
        let hang = loop {
            self.act_until_idle();
            if self.is_quiet() && self.server.poll_timeout().is_none() {
                break None;
            }
            let Some(next) = self.next_moment() else {
                break (!self.is_quiet()).then(|| "nothing left that could happen".to_owned());
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

    /// Everybody acts at this moment until nobody has anything to do.
    fn act_until_idle(&mut self) {
        loop {
            self.steps += 1;
            self.steps_at_once += 1;
            let moved = [
                self.let_happen(),
                self.deliver(),
                self.poll_clients(),
                self.poll_rude(),
                self.poll_server(),
            ];
            if !moved.contains(&true) || self.steps_at_once > STEPS_MAX_AT_ONCE {
                return;
            }
        }
    }

    fn let_happen(&mut self) -> bool {
        let Some((_, happening)) = self.next_happening.filter(|(at, _)| *at <= self.now) else {
            return false;
        };
        self.tape.note(self.now, format_args!("{happening:?}"));
        self.server.handle_happening(self.now, happening);
        self.next_happening = self.agenda.next();
        true
    }

    fn poll_server(&mut self) -> bool {
        self.server.step(self.now)
    }

    /// Hands what reached the clients' end to those it is addressed to.
    fn deliver(&mut self) -> bool {
        let mut moved = false;
        while let Some(mut frame) = self.cable.receive(self.now) {
            moved = true;
            if self.canary == Some(Canary::Silence) && self.tape.frames() > SILENCE_AFTER_FRAMES {
                continue;
            }
            if self.canary == Some(Canary::Frame) && swap_payload_words(&mut frame) {
                self.canary = None;
            }
            if self.is_too_big(&frame) {
                continue;
            }
            self.tape.record(self.now, Direction::ToClients, &frame);
            let Some(destination) = frame.first_chunk::<6>() else {
                continue;
            };
            if let Some(rude) = self.rude.iter_mut().find(|rude| rude.is_at(*destination)) {
                rude.handle_frame(frame);
                continue;
            }
            if let Some(handover) = &self.handover
                && handover.is_router(*destination)
            {
                let to = handover.forward(self.now, &frame);
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

    /// The router drops what its next link does not take, and says so.
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
        if let Some(complaint) = forge::packet_too_big(&route, frame, mtu_bytes) {
            self.tape.record(self.now, Direction::ToServer, &complaint);
            self.cable.transmit(self.now, complaint);
        }
        true
    }

    fn poll_clients(&mut self) -> bool {
        let (now, cable, tape) = (self.now, &mut self.cable, &mut self.tape);
        let (spoofer, handover) = (&mut self.spoofer, &self.handover);
        let mut moved = false;
        for client in &mut self.clients {
            moved |= client.poll(now, &mut |mut frame| {
                if let Some(handover) = handover {
                    handover.pass(now, &mut frame);
                }
                tape.record(now, Direction::ToServer, &frame);
                let forged = spoofer.as_mut().and_then(|spoofer| spoofer.follow(&frame));
                cable.transmit(now, frame);
                if let Some(forged) = forged {
                    tape.record(now, Direction::ToServer, &forged);
                    cable.transmit(now, forged);
                }
            });
        }
        moved
    }

    fn poll_rude(&mut self) -> bool {
        let (now, cable, tape) = (self.now, &mut self.cable, &mut self.tape);
        let mut moved = false;
        for rude in &mut self.rude {
            moved |= rude.poll(now, &mut |frame| {
                tape.record(now, Direction::ToServer, &frame);
                cable.transmit(now, frame);
            });
        }
        moved
    }

    /// Holds what was read against what was sent.
    fn check_reads(&mut self) {
        if self.excess.is_none() {
            let lasted = self.now.since(self.epoch);
            self.excess = self.server.reading().excess(lasted);
        }
    }

    fn next_moment(&self) -> Option<Instant> {
        let rude = self.rude.iter().filter_map(Rude::poll_at).min();
        let clients = self.clients.iter().filter_map(Client::poll_at).min();
        let happening = self.next_happening.map(|(at, _)| at);
        [
            self.cable.poll_timeout(),
            self.server.poll_timeout(),
            clients,
            rude,
            happening,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_quiet(&self) -> bool {
        self.clients.iter().all(Client::is_done)
            && self.rude.iter().all(Rude::is_done)
            && self.books().imbalance().is_none()
    }

    fn books(&self) -> Books {
        let mut books = self.server.books();
        if self.canary == Some(Canary::Slot) {
            books.free_slots -= 1;
        }
        books
    }

    fn exhausted(&self) -> Option<String> {
        if let Some(failure) = self.server.failure() {
            return Some(failure.to_owned());
        }
        if self.steps_at_once > STEPS_MAX_AT_ONCE {
            return Some(format!("more than {STEPS_MAX_AT_ONCE} steps at one moment"));
        }
        if self.steps > STEPS_MAX {
            return Some(format!("not quiet after {STEPS_MAX} steps"));
        }
        let lasted = self.now.since(self.epoch);
        (lasted > VIRTUAL_MAX).then(|| format!("not quiet after {} s", VIRTUAL_MAX.as_secs()))
    }

    fn conclude(mut self, hang: Option<String>) -> (Outcome, Tape) {
        let mut outcome = Outcome {
            digest: self.tape.digest(),
            lasted: self.now.since(self.epoch),
            steps: self.steps,
            frames: self.tape.frames(),
            counters: self.server.counters(),
            ..Outcome::default()
        };
        outcome.counters.extend(self.cable.counters());
        for client in &self.clients {
            let report = client.report();
            outcome.replies += report.replies;
            outcome.verified_bytes += report.verified_bytes;
            outcome.secured.add(&report.secured);
            outcome.late += report.late;
            outcome.broken += report.broken;
            outcome.refused += report.refused;
            outcome.busy += report.busy;
            outcome.closed += report.closed;
            outcome.key_used += report.key_used;
            outcome.given_up += report.given_up;
            outcome.violations.extend(report.violations.iter().cloned());
        }
        self.check_reads();
        outcome.violations.extend(self.excess.take());
        let rude = self.rude.iter().filter_map(Rude::violation);
        outcome.violations.extend(rude.cloned());
        let seen = self.server.violations();
        outcome.violations.extend(seen.iter().cloned());
        outcome.violations.extend(outcome.overdrawn_excuses());
        if let Some(failure) = self.server.failure() {
            outcome
                .violations
                .push(format!("the server gave up: {failure}"));
        }
        if hang.is_none() {
            let held = self.server.held_objects(self.now);
            if held > 0 {
                outcome
                    .violations
                    .push(format!("{held} objects are held by nobody"));
            }
        }
        if let Some(reason) = hang {
            let at_ms = outcome.lasted.as_millis();
            outcome
                .violations
                .push(format!("hang at {at_ms} ms: {reason}"));
            let waiting = self.clients.iter().filter(|client| !client.is_done());
            outcome.violations.extend(waiting.map(Client::describe));
            if let Some(imbalance) = self.books().imbalance() {
                outcome.violations.push(format!("books: {imbalance}"));
            }
        }
        (outcome, self.tape)
    }
}

/// The canary of silence lets a run begin.
const SILENCE_AFTER_FRAMES: u64 = 12;
/// A frame of this size is mostly content: headers and a reply's head are shorter.
const CONTENT_FRAME_BYTES: usize = 1000;

/// Swaps two 16-bit words near the end of a data frame: no Internet checksum notices.
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
