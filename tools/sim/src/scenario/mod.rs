//! A scenario: all parameters and events of a run, drawn from its seed before it begins.
//!
//! It refuses faults that the server does not have to survive: those it has to are in the table of
//! [`Scenario::permits`]. Bounded: see `clients`; rates of faults stay below 5 %.

mod changes;
mod clients;
mod secure;
mod theme;

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::sync::Arc;

use clock::Instant;
use diskmap::sim::SimConfig as DiskConfig;
use http::{Cors, ReplyConfig};
use link::sim::{MILLION, PathConfig, SimConfig as LinkConfig};
use session::{CongestionControl, TcpConfig};
use sites::Sites;
use store::StoreConfig;

use crate::abusive_peer::{AbusivePlan, Conduct as Abuse};
use crate::atlas;
use crate::client::plan::{Change, ClientPlan, ObjectPlan, Permits};
use crate::content::Content;
use crate::rng::Rng;
use crate::world::SEND_TIMEOUT_NEVER;
use clients::MTU_BYTES_MIN_V6;
use theme::{Fault, Swarm};
pub(crate) use theme::{THEMES, Theme};

/// IPv4 packets of this size are passed by every path (RFC 791 s3.2 asks hosts to take them).
const MTU_BYTES_MIN: u16 = 576;
/// Crossings of up to so much make no client slower than a server permits: six of them are less than a delayed ACK.
const SHORT_CROSSING: Duration = Duration::from_millis(5);
/// Most objects of one run.
const OBJECTS_MAX: usize = 6;
/// Block size of the simulated disk.
const BLOCK_BYTES: u64 = 4096;
/// Objects the simulated disk has open at once.
const FILES_MAX: u32 = 64;
/// Objects the store has open at once. A failed read retires an object that others still use, and
/// it is opened anew: each client may hold another one.
const HANDLES_MAX: usize = 32;
/// Most look-ups of the catalogue in progress; fewer if the scenario has fewer objects.
const LOOKUPS_MAX: usize = 64;
/// Longest read that is stuck.
const STUCK_MAX: Duration = Duration::from_millis(500);
/// Objects larger than this are requested in small ranges only.
const SIZE_SMALL_MAX: u64 = 10_000_000;
/// Most abusive peers.
const ABUSIVE_MAX: usize = 3;
/// Sizes of objects they request: more than a packet, and not so much that a run takes hours.
const ABUSIVE_OBJECT_BYTES: core::ops::Range<u64> = 20_000..SIZE_SMALL_MAX;
/// TCP port of the server.
pub(crate) const PORT: u16 = 80;
/// Its port of TLS.
pub(crate) const SECURE_PORT: u16 = 443;
/// Addresses of the server.
pub(crate) const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The same for IPv6.
pub(crate) const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);

/// An event at a moment of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The interface goes down.
    Down,
    /// And up again.
    Up,
    /// A device that slots are lent to stops reading them.
    Stop,
    /// And goes on.
    GoOn,
    /// An object's file changes, as its plan says.
    Change {
        /// Its number.
        object: usize,
    },
    /// The server is shut down: replies in progress are completed.
    ShutDown,
    /// The server ends now: it resets all connections.
    Abort,
    /// The switch divides the clients among the workers by another seed.
    Resteer {
        /// The seed.
        seed: u32,
    },
    /// Another process takes over.
    TakeOver,
}

/// The workers of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkersPlan {
    /// How many, at least one.
    pub(crate) count: u8,
    /// Thousandths of the messages from worker to worker that wake nobody.
    pub(crate) lost_wake_ups_permille: u64,
    /// Processes, of which each but the first takes over from the one before; each has as many workers.
    pub(crate) processes: u8,
    /// Thousandths of the packets from process to process that are lost.
    pub(crate) lost_crossings_permille: u64,
    /// How long these take at most.
    pub(crate) crossing_delay_max: Duration,
}

/// All parameters and events of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// When the run begins: 32-bit clocks may be about to wrap.
    pub(crate) epoch: Instant,
    /// Whether sequence numbers of the first connection wrap.
    pub(crate) wraps: bool,
    /// MTU of the path behind a router; `None`: there is no router.
    pub(crate) path_mtu_bytes: Option<u16>,
    /// Thousandths of the clients' segments after which an off-path attacker sends one.
    pub(crate) attack_permille: u64,
    /// The server's link and the network, both ways.
    pub(crate) link: LinkConfig,
    /// Slots of the arena.
    pub(crate) slots: u32,
    /// Bytes of each.
    pub(crate) slot_bytes: u32,
    /// Certificates in the server's handshake.
    pub(crate) chain: usize,
    /// The server, but for what follows from its link, its secrets and the number of workers.
    /// ([`Scenario::connections_max_each`]).
    pub(crate) session: session::Config,
    /// The tables of its store.
    pub(crate) store: StoreConfig,
    /// Whether the store answers look-ups in a later round.
    pub(crate) answers_later: bool,
    /// The disk.
    pub(crate) disk: DiskConfig,
    /// The objects served.
    pub(crate) objects: Vec<ObjectPlan>,
    /// The clients.
    pub(crate) clients: Vec<ClientPlan>,
    /// Events, in order of time.
    pub(crate) events: Vec<(Instant, Event)>,
    /// The abusive peers.
    pub(crate) abusive: Vec<AbusivePlan>,
    /// Whether there is a SYN flood.
    pub(crate) syn_flood: bool,
    /// When the clients' router fails over to another; `None`: there is none.
    pub(crate) failover_at: Option<Instant>,
    /// The workers.
    pub(crate) workers: WorkersPlan,
    /// Seed of the server's own secrets.
    pub(crate) server_seed: [u8; 32],
    /// Seed of the random numbers of link and disk.
    pub(crate) fault_seed: u64,
}

impl Scenario {
    /// The scenario of `seed` under a theme.
    pub(crate) fn draw(seed: u64, theme: &Theme) -> Self {
        let mut rng = Rng::new(seed, 1);
        // A stream of its own, so that its draws do not change others.
        let mut secure_rng = Rng::new(seed, 3);
        let of_tls = theme.draw(&mut secure_rng, theme::SECURE);
        let swarm = theme.draw(&mut rng, theme::FIRST).with(of_tls);
        let mtu_bytes = Self::draw_mtu(&mut rng);
        let objects = Self::draw_objects(seed, &mut rng, swarm);
        let epoch = Self::draw_epoch(&mut rng);
        let events = Self::draw_events(&mut rng, swarm, epoch);
        let clients = clients::draw_clients(&mut rng, swarm, epoch, mtu_bytes, &objects);
        let delay = rng.log_micros(100..=50_000);
        let slot_bytes = rng.pick(&[16_384, 32_768, 65_536]);
        let wraps = rng.chance(30);
        let path_mtu_bytes = swarm.has(Fault::NarrowPath).then(|| {
            let v6 = clients.iter().any(|client| client.address.is_ipv6());
            let least = if v6 { MTU_BYTES_MIN_V6 } else { MTU_BYTES_MIN };
            let drawn = rng.range(least.into()..=mtu_bytes.max(least).into());
            u16::try_from(drawn).expect("invariant: within u16")
        });
        let attack_permille = match swarm.has(Fault::BlindAttack) {
            true => rng.log_range(5..=300),
            false => 0,
        };
        let mut link = Self::draw_link(&mut rng, swarm, mtu_bytes);
        let slots = match swarm.has(Fault::SlotFamine) {
            true => small(&mut rng, 2..=4),
            false => 24,
        };
        let mut session = session::Config {
            connections_max: match swarm.has(Fault::TableFamine) {
                true => rng.size(1..=3),
                false => 64,
            },
            idle_timeout: Duration::from_secs(rng.range(10..=60)),
            // A read may be stuck for as long as it takes to rewrite its file many times.
            beginnings_max: u8::MAX,
            head_timeout: Duration::from_secs(rng.range(10..=30)),
            send_timeout: Duration::from_secs(rng.range(60..=300)),
            ..session::Config::default()
        };
        let objects_max = match swarm.has(Fault::ObjectFamine) {
            true => rng.size(1..=3),
            false => HANDLES_MAX,
        };
        let answers_later = rng.chance(300);
        let store = StoreConfig {
            objects_max,
            lookups_max: LOOKUPS_MAX.min(objects_max),
            ..StoreConfig::default()
        };
        // Used for nothing any more; without it seeds would have other scenarios.
        let _ = rng.log_micros(10..=1_000_000);
        if rng.chance(300) {
            session.sites = Arc::new(Sites::of_replies(ReplyConfig {
                cors: Cors::AnyOrigin,
                ..ReplyConfig::default()
            }));
        }
        link.to_link = Self::draw_path(&mut rng, swarm, delay);
        link.to_port = Self::draw_path(&mut rng, swarm, delay);
        let disk = Self::draw_disk(&mut rng, swarm, slot_bytes);
        let (server_seed, fault_seed) = (rng.key(), rng.bits());
        session.tcp = tcp_config(fault_seed);
        let mut scenario = Self {
            epoch,
            wraps,
            path_mtu_bytes,
            attack_permille,
            link,
            slots,
            slot_bytes,
            chain: 1,
            session,
            store,
            answers_later,
            disk,
            objects,
            clients,
            events,
            abusive: Vec::new(),
            syn_flood: theme.allows(Fault::SynFlood),
            failover_at: None,
            workers: WorkersPlan {
                count: 1,
                lost_wake_ups_permille: 0,
                processes: 1,
                lost_crossings_permille: 0,
                crossing_delay_max: Duration::ZERO,
            },
            server_seed,
            fault_seed,
        };
        if swarm.has(Fault::Changes) {
            scenario.change_objects(&mut Rng::new(seed, 9), &Change::NOTICED);
        }
        if theme.allows(Fault::Tls) {
            scenario.draw_secure(&mut secure_rng, swarm);
        }
        scenario.draw_late(seed, theme);
        scenario.draw_lending(seed, theme);
        scenario.draw_workers(seed, theme);
        scenario
    }

    /// The same, but files change unnoticed and there is no TLS, which would detect it.
    pub(crate) fn draw_unguarded(seed: u64, theme: &Theme) -> Self {
        let mut scenario = Self::draw(seed, &theme.without_tls());
        scenario.change_objects(&mut Rng::new(seed, 4), &[Change::Unnoticed]);
        scenario
    }

    /// Which failures the faults of this scenario explain.
    ///
    /// | Fault                          | What a well-behaved client may see                    |
    /// |--------------------------------|-------------------------------------------------------|
    /// | loss, corruption, outages,     | a close or 408 because its request came too late      |
    /// | a device that stops, several   |                                                       |
    /// | workers                        |                                                       |
    /// | failing reads                  | a reply cut by a reset, or 500                        |
    /// | rewritten files                | the same, after a request for one                     |
    /// | keys that wear out, TLS 1.2    | a reset, or a close between replies                   |
    /// | connections enough to fill the | a reset before the first reply, a close between them: |
    /// | table, at that moment          | see [`crate::occupancy`]                              |
    /// | small table of open objects    | 503                                                   |
    /// | the server is shut down         | a close or reset between replies, none after it       |
    /// | everything else                | nothing at all                                        |
    pub(crate) fn permits(&self) -> Permits {
        let paths = [&self.link.to_link, &self.link.to_port];
        let delays = |path: &PathConfig| {
            path.loss_ppm > 0 || path.corrupt_ppm > 0 || path.bits_per_second > 0
        };
        let hides = |path: &PathConfig| delays(path) || path.reorder_ppm > 0;
        let is_outage = |event: &Event| matches!(event, Event::Down | Event::Stop);
        let outages = self.events.iter().any(|(_, event)| is_outage(event));
        Permits {
            broken_replies: self.disk.error_chance > 0,
            unseen_beginnings: paths.into_iter().any(hides) || outages || self.workers.count > 1,
            refusals: true,
            busy: self.store.objects_max < HANDLES_MAX,
            worn_keys: self.session.key_records_max < u64::MAX,
            closes_at: self.when(Event::ShutDown),
            hands_over_at: self.when(Event::TakeOver),
            aborts_at: self.when(Event::Abort),
            lateness: paths.into_iter().any(delays)
                || outages
                // Strays wait for their worker, and some find no room.
                || self.workers.count > 1,
            // Half, because the server's timeout and the client's begin at different moments.
            lateness_min: self.session.idle_timeout.min(self.session.head_timeout) / 2,
            handshake_timeout: self.session.head_timeout,
        }
    }

    fn when(&self, event: Event) -> Option<Instant> {
        self.events
            .iter()
            .find(|(_, known)| *known == event)
            .map(|(at, _)| *at)
    }

    /// Connections that the clients plan, all of which can be open at once: a client's next may begin
    /// before the last has ended. Those of second attempts and of abusive peers come on top.
    fn connections_wanted(&self) -> usize {
        self.clients
            .iter()
            .map(|client| client.connections.len())
            .sum()
    }

    /// Draws the abusive peers and the router failover, from a stream of their own, so that seeds
    /// from before these existed give the same scenarios otherwise.
    fn draw_late(&mut self, seed: u64, theme: &Theme) {
        let mut rng = Rng::new(seed, 5);
        let late = theme.draw(&mut rng, theme::LATE);
        let at = self.epoch + rng.log_micros(1_000..=2_000_000);
        self.failover_at = late.has(Fault::Failover).then_some(at);
        let wanted = |object: &&ObjectPlan| ABUSIVE_OBJECT_BYTES.contains(&object.size_bytes);
        let Some(object) = self
            .objects
            .iter()
            .find(wanted)
            .copied()
            .filter(|_| late.has(Fault::Abusive))
        else {
            return;
        };
        // Without TLS nothing could detect that a reply mixes two versions.
        let is_secure = self.changes(Change::Unnoticed);
        for number in 0..u8::try_from(rng.size(1..=ABUSIVE_MAX)).expect("invariant: few") {
            self.abusive.push(AbusivePlan {
                number,
                address: Ipv4Addr::new(10, 9, 3, number).into(),
                starts: self.epoch + rng.log_micros(1..=200_000),
                conduct: draw_abuse(&mut rng),
                secure: (rng.chance(400) || is_secure).then(|| secure::draw_plan(&mut rng)),
                object,
                send_timeout: self.session.send_timeout,
            });
        }
        // One that stays must not lock all clients out.
        self.session.connections_max += self.abusive.len();
    }

    /// Draws whether slots are lent, and to what device, from a stream of its own: what is drawn for
    /// the rest of the run stays as it is.
    fn draw_lending(&mut self, seed: u64, theme: &Theme) {
        let mut rng = Rng::new(seed, 6);
        let drawn = theme.draw(&mut rng, theme::LENDING);
        if !drawn.has(Fault::Lending) {
            return;
        }
        self.link.borrows_slots = true;
        self.link.kept_slots_ppm = rate_ppm(&mut rng, drawn.has(Fault::KeptSlots));
        self.link.device_delay = rng.log_micros(1..=20_000);
        if drawn.has(Fault::DeviceStops) {
            let mut at = self.epoch;
            for _ in 0..rng.range(1..=3) {
                at += rng.log_micros(1_000..=2_000_000);
                self.events.push((at, Event::Stop));
                at += rng.log_micros(1_000..=2_000_000);
                self.events.push((at, Event::GoOn));
            }
            self.events.sort_by_key(|(at, _)| *at);
        }
    }

    /// Draws the workers and when the switch's rule changes, from a stream of their own.
    fn draw_workers(&mut self, seed: u64, theme: &Theme) {
        if !theme.allows(Fault::Workers) {
            return;
        }
        let mut rng = Rng::new(seed, 7);
        self.workers.count = rng.pick(&[1, 2, 2, 5]);
        let loses_wake_ups = rng.chance(500);
        let permille = rng.log_range(1..=500);
        if loses_wake_ups {
            self.workers.lost_wake_ups_permille = permille;
        }
        let mut at = self.epoch;
        for _ in 0..rng.range(0..=3) {
            at += rng.log_micros(1_000..=2_000_000);
            let seed = rng.range(0..=u32::MAX.into());
            let seed = u32::try_from(seed).expect("invariant: 32 bits");
            self.events.push((at, Event::Resteer { seed }));
        }
        self.events.sort_by_key(|(at, _)| *at);
        self.draw_take_overs(seed, theme);
    }

    /// Draws when other processes take over, from a stream of their own.
    fn draw_take_overs(&mut self, seed: u64, theme: &Theme) {
        if !theme.allows(Fault::TakeOver) {
            return;
        }
        let mut rng = Rng::new(seed, 10);
        let loses = rng.chance(500);
        // A segment crosses up to six times, so that a quarter of them may be lost. With more, clients and the server give
        // up on each other now and then, as they should.
        let permille = rng.log_range(1..=50);
        if loses {
            self.workers.lost_crossings_permille = permille;
        }
        self.workers.crossing_delay_max = rng.log_micros(1..=50_000);
        let waits = self.workers.lost_wake_ups_permille > 0;
        if loses || waits || self.workers.crossing_delay_max > SHORT_CROSSING {
            // How slowly a client with a window of a packet is served is the crossings' doing then, or that of whoever
            // notices late what came.
            self.session.send_timeout = SEND_TIMEOUT_NEVER;
        }
        let mut at = self.epoch;
        for _ in 0..rng.range(1..=3) {
            at += rng.log_micros(1_000..=2_000_000);
            self.workers.processes += 1;
            self.events.push((at, Event::TakeOver));
        }
        self.events.sort_by_key(|(at, _)| *at);
    }

    /// Most connections of each worker: its share, and room for all abusive peers, for they stay, and
    /// may all be with one.
    pub(crate) fn connections_max_each(&self) -> usize {
        match self.workers.count {
            1 => self.session.connections_max,
            count => {
                let honest = self.session.connections_max - self.abusive.len();
                honest.div_ceil(count.into()) + self.abusive.len()
            }
        }
    }

    /// Mostly zero; else a moment soon after which a 32-bit count of milliseconds, or of
    /// microseconds, begins anew.
    fn draw_epoch(rng: &mut Rng) -> Instant {
        let wrap = 1 << 32;
        match rng.range(0..=9) {
            0 => Instant::from_millis(wrap - rng.range(1..=2_000)),
            1 => Instant::from_micros(wrap - rng.range(1..=2_000_000)),
            _ => Instant::ZERO,
        }
    }

    fn draw_mtu(rng: &mut Rng) -> u16 {
        let any =
            u16::try_from(rng.range(MTU_BYTES_MIN.into()..=9000)).expect("invariant: within u16");
        rng.pick(&[1500, 1500, 1500, 576, 1280, 9000, any])
    }

    fn draw_objects(seed: u64, rng: &mut Rng, swarm: Swarm) -> Vec<ObjectPlan> {
        let sizes = [
            0,
            1,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            65_536,
            100_000,
        ];
        let draw_size = |rng: &mut Rng| match rng.range(0..=9) {
            0 if rng.chance(300) => rng.log_range(5 << 30..=1 << 40),
            0..=4 => rng.pick(&sizes),
            5..=8 => rng.log_range(1..=300_000),
            _ if swarm.has(Fault::Large) => rng.log_range(1_000_000..=6_000_000),
            _ => rng.log_range(1..=300_000),
        };
        (0..rng.size(1..=OBJECTS_MAX))
            .map(|number| ObjectPlan {
                number,
                content: Content::new(seed, number as u64, 0),
                later: None,
                size_bytes: draw_size(rng),
            })
            .collect()
    }

    fn draw_link(rng: &mut Rng, swarm: Swarm, mtu_bytes: u16) -> LinkConfig {
        let segmentation_bytes_max = if rng.chance(600) { 65_535 } else { 0 };
        // Segmentation without checksums does not exist (virtio 1.2, 5.1.3.1).
        let checksum_offload = rng.chance(500) || segmentation_bytes_max > 0;
        let mut link = LinkConfig {
            mac: atlas::MAC,
            mtu_bytes,
            segmentation_bytes_max,
            checksum_offload,
            ..LinkConfig::default()
        };
        if swarm.has(Fault::TransmitFamine) {
            link.transmit_bits_per_second = rng.log_range(10_000_000..=2_000_000_000);
            link.transmit_queue_frames_max = rng.size(1..=8);
        }
        link
    }

    fn draw_path(rng: &mut Rng, swarm: Swarm, delay: Duration) -> PathConfig {
        let reorder_delay = rng.log_micros(10..=20_000);
        let mut rate = |fault| rate_ppm(rng, swarm.has(fault));
        PathConfig {
            loss_ppm: rate(Fault::Loss),
            reorder_ppm: rate(Fault::Reorder),
            reorder_delay,
            duplicate_ppm: rate(Fault::Duplicate),
            corrupt_ppm: rate(Fault::Corrupt),
            delay,
            bits_per_second: match swarm.has(Fault::Rate) {
                true => rng.log_range(2_000_000..=1_000_000_000),
                false => 0,
            },
            queue_frames_max: rng.size(20..=400),
        }
    }

    fn draw_disk(rng: &mut Rng, swarm: Swarm, slot_bytes: u32) -> DiskConfig {
        let latency_min = rng.log_micros(20..=2_000);
        let mut chance = |fault| rate_ppm(rng, swarm.has(fault));
        let (error_chance, partial_chance) = (chance(Fault::Errors), chance(Fault::Partials));
        let stuck_chance = chance(Fault::Stuck);
        let latency_max = latency_min + rng.log_micros(20..=20_000);
        DiskConfig {
            latency_min,
            latency_max,
            error_chance,
            partial_chance,
            stuck_chance,
            stuck_max: STUCK_MAX.max(latency_max),
            queue_depth: match swarm.has(Fault::DepthFamine) {
                true => small(rng, 1..=4),
                false => 256,
            },
            files_max: FILES_MAX,
            block_bytes: rng.pick(&[512, 4096, 4096, 4096]),
            read_bytes_max: rng.pick(&[slot_bytes, slot_bytes, 16_384, 4096]),
            ..DiskConfig::new(0)
        }
    }

    fn draw_events(rng: &mut Rng, swarm: Swarm, epoch: Instant) -> Vec<(Instant, Event)> {
        let mut events = Vec::new();
        let moment = |rng: &mut Rng, from: Instant| from + rng.log_micros(1_000..=2_000_000);
        if swarm.has(Fault::Outages) {
            let mut at = epoch;
            for _ in 0..rng.range(1..=3) {
                at = moment(rng, at);
                events.push((at, Event::Down));
                at = moment(rng, at);
                events.push((at, Event::Up));
            }
        }
        if swarm.has(Fault::Ending) {
            let at = moment(rng, epoch);
            events.push((at, Event::ShutDown));
            if rng.chance(500) {
                events.push((moment(rng, at), Event::Abort));
            }
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }
}

/// What is configured rarely is in few runs.
fn tcp_config(seed: u64) -> TcpConfig {
    let congestion = match seed % 8 {
        3 => CongestionControl::Reno,
        7 => CongestionControl::Bbr,
        _ => CongestionControl::Cubic,
    };
    TcpConfig {
        congestion,
        is_paced: seed % 5 != 4 || congestion.needs_pacing(),
        reduces_idle_window: seed % 11 != 5,
        rate_max: (seed % 7 == 6).then_some(1_000_000),
        ..TcpConfig::default()
    }
}

fn draw_abuse(rng: &mut Rng) -> Abuse {
    let interval = rng.log_micros(1_000_000..=60_000_000);
    rng.pick(&[
        Abuse::ShutAtFin,
        Abuse::Shut,
        Abuse::Drip { interval },
        Abuse::NeverFirst,
        Abuse::SmallWindow,
        Abuse::TinyRanges,
    ])
}

/// A rate of up to 5 %, log-uniform, in a million; drawn even if it is not used.
fn rate_ppm(rng: &mut Rng, on: bool) -> u32 {
    let permille = u32::try_from(rng.log_range(1..=50)).expect("invariant: small");
    if on { permille * (MILLION / 1000) } else { 0 }
}

fn small(rng: &mut Rng, range: core::ops::RangeInclusive<u64>) -> u32 {
    u32::try_from(rng.range(range)).expect("invariant: small")
}

#[cfg(test)]
mod tests {
    use super::clients::{BODY_BYTES_MAX_LARGE, CLIENTS_MAX, MTU_BYTES_MIN_V6};
    use super::secure::FLOOD_MAX;
    use super::{Change, Event, Scenario, THEMES};

    fn draw(seed: u64) -> Scenario {
        Scenario::draw(seed, &THEMES[0])
    }

    /// Without TLS nothing could detect that a reply mixes two versions.
    #[test]
    fn unnoticed_changes_are_met_over_tls_only() {
        // Seed 5426: an abusive peer met such a change over plain HTTP.
        for scenario in (0..300).chain([5426]).map(draw) {
            if scenario.changes(Change::Unnoticed) {
                assert!(scenario.clients.iter().all(|c| c.secure.is_some()));
                assert!(scenario.abusive.iter().all(|peer| peer.secure.is_some()));
            }
        }
    }

    #[test]
    fn the_same_seed_is_the_same_scenario() {
        assert_eq!(format!("{:?}", draw(7)), format!("{:?}", draw(7)));
        assert_ne!(format!("{:?}", draw(7)), format!("{:?}", draw(8)));
    }

    #[test]
    fn scenarios_keep_their_bounds_and_reach_both_sides_of_each_switch() {
        let scenarios: Vec<_> = (0..300).map(draw).collect();
        for scenario in &scenarios {
            assert!((1..=CLIENTS_MAX + FLOOD_MAX).contains(&scenario.clients.len()));
            let asked: u64 = scenario
                .clients
                .iter()
                .flat_map(|client| &client.connections)
                .flat_map(|connection| &connection.requests)
                .filter(|request| !request.head)
                .map(|request| request.expected().body.object_bytes())
                .sum();
            assert!(asked <= BODY_BYTES_MAX_LARGE);
            assert!(scenario.events.is_sorted_by_key(|(at, _)| *at));
            for client in &scenario.clients {
                let v6 = client.address.is_ipv6();
                assert!(!v6 || client.mtu_bytes >= MTU_BYTES_MIN_V6);
                assert!(client.mtu_bytes <= scenario.link.mtu_bytes);
            }
        }
        let both = |question: &dyn Fn(&Scenario) -> bool| {
            scenarios.iter().any(question) && !scenarios.iter().all(question)
        };
        assert!(both(&|s| s.link.to_port.loss_ppm > 0));
        assert!(both(&|s| s.disk.error_chance > 0));
        assert!(both(&|s| s.link.segmentation_bytes_max > 0));
        assert!(both(&|s| s.link.checksum_offload));
        assert!(both(&|s| s.slots < 5));
        assert!(both(&|s| s.link.borrows_slots));
        assert!(both(&|s| s.link.kept_slots_ppm > 0));
        assert!(both(&|s| s.events.iter().any(|(_, it)| *it == Event::Stop)));
        assert!(both(&|s| s.events.is_empty()));
        assert!(both(&|s| s.permits().broken_replies));
        assert!(both(&|s| s.session.connections_max < s.connections_wanted()));
        assert!(both(&|s| s.permits().lateness));
        assert!(both(&|s| s.permits().worn_keys));
        assert!(both(&|s| s.clients.len() > CLIENTS_MAX));
        assert!(both(&|s| s.clients.iter().all(|c| c.secure.is_some())));
        assert!(both(&|s| s.clients.iter().all(|c| c.secure.is_none())));
        for change in Change::NOTICED.into_iter().chain([Change::Unnoticed]) {
            assert!(both(&|s| s.changes(change)), "{change:?}");
        }
        assert!(both(&|s| s
            .clients
            .iter()
            .any(|client| client.address.is_ipv6())));
    }
}
