//! A scenario: everything a run will meet, drawn from its seed before it begins.
//!
//! Swarm style: each kind of trouble is switched off in a random half of the runs, so that no
//! trouble always hides behind another. It refuses to draw what the server does not promise to
//! survive; the list of what is promised is the table of [`Scenario::permits`]. Bounded: at most
//! [`CLIENTS_MAX`] clients, a body budget per run, faults below 5 %.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use clock::Instant;

use crate::client::plan::{
    ClientPlan, Conduct, ConnectionPlan, Misstep, ObjectPlan, Pause, Permits, RangePlan,
    RequestPlan,
};
use crate::content::Content;
use crate::dice::Dice;

/// Most clients of one run.
const CLIENTS_MAX: usize = 8;
/// Most objects of one run.
const OBJECTS_MAX: usize = 6;
/// Body bytes all clients of an ordinary run may ask for together, so that runs stay short.
const BODY_BYTES_MAX: u64 = 600_000;
/// The same for the one run in a hundred that is large.
const BODY_BYTES_MAX_LARGE: u64 = 12_000_000;
/// IPv6 needs links of 1280 bytes (RFC 8200 s5).
const MTU_BYTES_MIN_V6: u16 = 1280;
/// Block size of the simulated disk.
const BLOCK_BYTES: u64 = 4096;
/// Objects the simulated disk has open at once.
const FILES_MAX: u32 = 64;
/// Objects the store has open at once. A failed read retires an object that others still use, and
/// it is opened anew: each client may hold another one.
const HANDLES_MAX: usize = 32;
/// TCP port of the server.
pub(crate) const PORT: u16 = 80;
/// Addresses of the server.
pub(crate) const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The same for IPv6.
pub(crate) const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);

/// Trouble on one direction of the cable. Rates are in thousandths of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Path {
    /// Never arrives.
    pub(crate) loss_permille: u16,
    /// Arrives late, behind younger frames,
    pub(crate) reorder_permille: u16,
    /// by up to this.
    pub(crate) reorder_delay: Duration,
    /// Arrives twice.
    pub(crate) duplicate_permille: u16,
    /// Arrives with one byte changed.
    pub(crate) corrupt_permille: u16,
    /// One way.
    pub(crate) delay: Duration,
    /// Bits per second; 0: no limit.
    pub(crate) rate_bits: u64,
    /// Frames the bottleneck holds before it drops.
    pub(crate) queue_frames: usize,
}

/// Trouble on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DiskTrouble {
    /// Fastest read.
    pub(crate) latency_min: Duration,
    /// Slowest read; reads overtake each other.
    pub(crate) latency_max: Duration,
    /// Thousandths of reads that fail.
    pub(crate) error_permille: u16,
    /// Thousandths of reads done in two rounds.
    pub(crate) partial_permille: u16,
    /// Thousandths of reads that take up to `stuck_max`.
    pub(crate) stuck_permille: u16,
    /// Longest of those.
    pub(crate) stuck_max: Duration,
    /// Reads the disk takes at once.
    pub(crate) depth: u32,
    /// Objects it has open at once.
    pub(crate) files: u32,
    /// Its block.
    pub(crate) block_bytes: u32,
    /// Largest read of a file, at most a slot.
    pub(crate) read_bytes_max: u32,
}

/// Something that happens at a moment of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happening {
    /// The interface goes down.
    Down,
    /// And up again.
    Up,
    /// An object's file is no longer what it was when it was opened.
    Change {
        /// Its number.
        object: usize,
    },
}

/// Everything a run will meet.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// MTU of the server's link.
    pub(crate) mtu_bytes: u16,
    /// Largest packet the link cuts by itself; 0: none.
    pub(crate) segmentation_bytes_max: u32,
    /// Whether the link completes checksums.
    pub(crate) checksum_offload: bool,
    /// Frames the server's transmit queue holds before it says `Full`.
    pub(crate) transmit_queue_frames: usize,
    /// Rate at which that queue empties, bits per second; 0: at once, so that it is never full.
    pub(crate) transmit_bits: u64,
    /// Slots of the arena.
    pub(crate) slots: u32,
    /// Bytes of each.
    pub(crate) slot_bytes: u32,
    /// Connection table.
    pub(crate) connections_max: usize,
    /// A connection without a request is closed after this.
    pub(crate) idle_timeout: Duration,
    /// A request head may take this long.
    pub(crate) head_timeout: Duration,
    /// A client that acknowledges nothing for so long is reset.
    pub(crate) send_timeout: Duration,
    /// Objects open at once.
    pub(crate) objects_max: usize,
    /// Whether the store answers look-ups in a later round.
    pub(crate) answers_later: bool,
    /// How long the store believes what it knows of an object.
    pub(crate) revalidate_after: Duration,
    /// Whether replies carry CORS fields.
    pub(crate) cors: bool,
    /// Clients to server.
    pub(crate) inbound: Path,
    /// Server to clients.
    pub(crate) outbound: Path,
    /// The disk.
    pub(crate) disk: DiskTrouble,
    /// What is served.
    pub(crate) objects: Vec<ObjectPlan>,
    /// Who asks.
    pub(crate) clients: Vec<ClientPlan>,
    /// What happens meanwhile, in order of time.
    pub(crate) agenda: Vec<(Instant, Happening)>,
    /// Seed of the server's own secrets.
    pub(crate) server_seed: [u8; 32],
    /// Seed of the link's and the disk's dice.
    pub(crate) trouble_seed: u64,
}

/// A choice of troubles with a name, for runs that look for one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Theme {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) help: &'static str,
    /// Whether each trouble is drawn for it, or always off.
    allows: Swarm,
}

/// Which kinds of trouble a run knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Swarm {
    loss: bool,
    reorder: bool,
    duplicate: bool,
    corrupt: bool,
    rate: bool,
    errors: bool,
    partials: bool,
    stuck: bool,
    depth_famine: bool,
    changes: bool,
    slot_famine: bool,
    table_famine: bool,
    outages: bool,
    transmit_famine: bool,
    misconduct: bool,
    large: bool,
}

const NO_TROUBLE: Swarm = Swarm {
    loss: false,
    reorder: false,
    duplicate: false,
    corrupt: false,
    rate: false,
    errors: false,
    partials: false,
    stuck: false,
    depth_famine: false,
    changes: false,
    slot_famine: false,
    table_famine: false,
    outages: false,
    transmit_famine: false,
    misconduct: false,
    large: false,
};

const EVERY_TROUBLE: Swarm = Swarm {
    loss: true,
    reorder: true,
    duplicate: true,
    corrupt: true,
    rate: true,
    errors: true,
    partials: true,
    stuck: true,
    depth_famine: true,
    changes: true,
    slot_famine: true,
    table_famine: true,
    outages: true,
    transmit_famine: true,
    misconduct: true,
    large: true,
};

/// Every theme; the first is the usual one.
pub(crate) const THEMES: &[Theme] = &[
    Theme {
        name: "swarm",
        help: "a random subset of all troubles",
        allows: EVERY_TROUBLE,
    },
    Theme {
        name: "clean",
        help: "no trouble at all",
        allows: NO_TROUBLE,
    },
    Theme {
        name: "cable",
        help: "loss, reordering, duplicates, corruption, narrow links",
        allows: Swarm {
            loss: true,
            reorder: true,
            duplicate: true,
            corrupt: true,
            rate: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "disk",
        help: "failing, stuck and partial reads, a short queue, changing objects",
        allows: Swarm {
            errors: true,
            partials: true,
            stuck: true,
            depth_famine: true,
            changes: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "famine",
        help: "few slots, a small connection table, a short transmit queue",
        allows: Swarm {
            slot_famine: true,
            table_famine: true,
            transmit_famine: true,
            depth_famine: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "outage",
        help: "the interface goes down and up",
        allows: Swarm {
            outages: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "conduct",
        help: "clients that reset, vanish, stall or talk nonsense",
        allows: Swarm {
            misconduct: true,
            ..NO_TROUBLE
        },
    },
];

impl Theme {
    /// The theme of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        THEMES.iter().find(|theme| theme.name == name)
    }
}

impl Swarm {
    /// Draws every trouble, whether the theme allows it or not: themes share their dice.
    fn draw(dice: &mut Dice, allows: Self) -> Self {
        let mut draw = |allowed: bool, permille: u64| dice.chance(permille) && allowed;
        Self {
            loss: draw(allows.loss, 500),
            reorder: draw(allows.reorder, 500),
            duplicate: draw(allows.duplicate, 400),
            corrupt: draw(allows.corrupt, 400),
            rate: draw(allows.rate, 400),
            errors: draw(allows.errors, 150),
            partials: draw(allows.partials, 200),
            stuck: draw(allows.stuck, 150),
            depth_famine: draw(allows.depth_famine, 150),
            changes: draw(allows.changes, 100),
            slot_famine: draw(allows.slot_famine, 300),
            table_famine: draw(allows.table_famine, 150),
            outages: draw(allows.outages, 150),
            transmit_famine: draw(allows.transmit_famine, 250),
            misconduct: draw(allows.misconduct, 500),
            large: draw(allows.large, 10),
        }
    }
}

impl Scenario {
    /// The scenario of `seed` under a theme.
    pub(crate) fn draw(seed: u64, theme: &Theme) -> Self {
        let mut dice = Dice::new(seed, 1);
        let swarm = Swarm::draw(&mut dice, theme.allows);
        let mtu_bytes = Self::draw_mtu(&mut dice);
        let mut objects = Self::draw_objects(seed, &mut dice, swarm);
        let agenda = Self::draw_agenda(&mut dice, swarm, &mut objects);
        let clients = Self::draw_clients(&mut dice, swarm, mtu_bytes, &objects);
        let delay = dice.log_micros(100..=50_000);
        let slot_bytes = dice.pick(&[16_384, 32_768, 65_536]);
        Self {
            mtu_bytes,
            segmentation_bytes_max: if dice.chance(600) { 65_535 } else { 0 },
            checksum_offload: dice.chance(500),
            transmit_bits: if swarm.transmit_famine {
                dice.log_range(10_000_000..=2_000_000_000)
            } else {
                0
            },
            transmit_queue_frames: if swarm.transmit_famine {
                dice.size(1..=8)
            } else {
                1024
            },
            slots: if swarm.slot_famine {
                small(&mut dice, 2..=4)
            } else {
                24
            },
            slot_bytes,
            connections_max: if swarm.table_famine {
                dice.size(1..=3)
            } else {
                64
            },
            idle_timeout: Duration::from_secs(dice.range(10..=60)),
            head_timeout: Duration::from_secs(dice.range(10..=30)),
            send_timeout: Duration::from_secs(dice.range(60..=300)),
            objects_max: HANDLES_MAX,
            answers_later: dice.chance(300),
            revalidate_after: dice.log_micros(10..=1_000_000),
            cors: dice.chance(300),
            inbound: Self::draw_path(&mut dice, swarm, delay),
            outbound: Self::draw_path(&mut dice, swarm, delay),
            disk: Self::draw_disk(&mut dice, swarm, slot_bytes),
            objects,
            clients,
            agenda,
            server_seed: dice.key(),
            trouble_seed: dice.bits(),
        }
        .consistent()
    }

    /// Which failures the troubles of this scenario explain.
    ///
    /// | Trouble                        | What a proper client may see                          |
    /// |--------------------------------|-------------------------------------------------------|
    /// | loss, corruption, outages      | a close or 408 because its request came too late      |
    /// | failing reads, changed objects | a reply cut by a reset, or 500                        |
    /// | small connection table         | a reset instead of a SYN-ACK, or 503                  |
    /// | everything else                | nothing at all                                        |
    pub(crate) fn permits(&self) -> Permits {
        let drops = |path: &Path| path.loss_permille > 0 || path.corrupt_permille > 0;
        let outages = self
            .agenda
            .iter()
            .any(|(_, happening)| *happening == Happening::Down);
        let changes = self
            .agenda
            .iter()
            .any(|(_, happening)| matches!(happening, Happening::Change { .. }));
        let squeezed = |path: &Path| path.rate_bits > 0;
        Permits {
            broken_replies: self.disk.error_permille > 0 || changes,
            refusals: self.connections_max < self.connections_wanted(),
            lateness: drops(&self.inbound)
                || drops(&self.outbound)
                || squeezed(&self.inbound)
                || squeezed(&self.outbound)
                || outages,
            // Half, because the server's patience and the client's wait do not begin together.
            lateness_min: self.idle_timeout.min(self.head_timeout) / 2,
        }
    }

    /// Most connections that can be open at once: a client's next may meet the last one's end.
    fn connections_wanted(&self) -> usize {
        self.clients
            .iter()
            .map(|client| client.connections.len())
            .sum()
    }

    /// Segmentation without checksums does not exist (virtio 1.2, 5.1.3.1).
    fn consistent(mut self) -> Self {
        self.checksum_offload |= self.segmentation_bytes_max > 0;
        self
    }

    fn draw_mtu(dice: &mut Dice) -> u16 {
        let any = u16::try_from(dice.range(576..=9000)).expect("invariant: within u16");
        dice.pick(&[1500, 1500, 1500, 576, 1280, 9000, any])
    }

    fn draw_objects(seed: u64, dice: &mut Dice, swarm: Swarm) -> Vec<ObjectPlan> {
        let sizes = [
            0,
            1,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            65_536,
            100_000,
        ];
        let draw_size = |dice: &mut Dice| match dice.range(0..=9) {
            0..=4 => dice.pick(&sizes),
            5..=8 => dice.log_range(1..=300_000),
            _ if swarm.large => dice.log_range(1_000_000..=6_000_000),
            _ => dice.log_range(1..=300_000),
        };
        (0..dice.size(1..=OBJECTS_MAX))
            .map(|number| ObjectPlan {
                number,
                content: Content::new(seed, number as u64, 0),
                later: None,
                size_bytes: draw_size(dice),
            })
            .collect()
    }

    fn draw_path(dice: &mut Dice, swarm: Swarm, delay: Duration) -> Path {
        let reorder_delay = dice.log_micros(10..=20_000);
        let mut rate = |on| permille(dice, on);
        Path {
            loss_permille: rate(swarm.loss),
            reorder_permille: rate(swarm.reorder),
            reorder_delay,
            duplicate_permille: rate(swarm.duplicate),
            corrupt_permille: rate(swarm.corrupt),
            delay,
            rate_bits: if swarm.rate {
                dice.log_range(2_000_000..=1_000_000_000)
            } else {
                0
            },
            queue_frames: dice.size(20..=400),
        }
    }

    fn draw_disk(dice: &mut Dice, swarm: Swarm, slot_bytes: u32) -> DiskTrouble {
        let latency_min = dice.log_micros(20..=2_000);
        let mut rate = |on| permille(dice, on);
        DiskTrouble {
            latency_min,
            error_permille: rate(swarm.errors),
            partial_permille: rate(swarm.partials),
            stuck_permille: rate(swarm.stuck),
            stuck_max: Duration::from_millis(500),
            latency_max: latency_min + dice.log_micros(20..=20_000),
            depth: if swarm.depth_famine {
                small(dice, 1..=4)
            } else {
                256
            },
            files: FILES_MAX,
            block_bytes: dice.pick(&[512, 4096, 4096, 4096]),
            read_bytes_max: dice.pick(&[slot_bytes, slot_bytes, 16_384, 4096]),
        }
    }

    fn draw_agenda(
        dice: &mut Dice,
        swarm: Swarm,
        objects: &mut [ObjectPlan],
    ) -> Vec<(Instant, Happening)> {
        let mut agenda = Vec::new();
        let moment = |dice: &mut Dice, from: Instant| from + dice.log_micros(1_000..=2_000_000);
        if swarm.outages {
            let mut at = Instant::ZERO;
            for _ in 0..dice.range(1..=3) {
                at = moment(dice, at);
                agenda.push((at, Happening::Down));
                at = moment(dice, at);
                agenda.push((at, Happening::Up));
            }
        }
        if swarm.changes {
            let object = dice.size(0..=objects.len() - 1);
            objects[object].later = Some(Content::new(dice.bits(), object as u64, 1));
            agenda.push((moment(dice, Instant::ZERO), Happening::Change { object }));
        }
        agenda.sort_by_key(|(at, _)| *at);
        agenda
    }

    fn draw_clients(
        dice: &mut Dice,
        swarm: Swarm,
        mtu_bytes: u16,
        objects: &[ObjectPlan],
    ) -> Vec<ClientPlan> {
        let count = dice.size(1..=CLIENTS_MAX);
        let budget = if swarm.large {
            BODY_BYTES_MAX_LARGE
        } else {
            BODY_BYTES_MAX
        };
        let mut budget_bytes = budget;
        (0..u8::try_from(count).expect("invariant: few"))
            .map(|number| {
                let v6 = mtu_bytes >= MTU_BYTES_MIN_V6 && dice.chance(400);
                let address = if v6 {
                    IpAddr::from(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 1, number.into()))
                } else {
                    IpAddr::from(Ipv4Addr::new(10, 9, 1, number))
                };
                let narrow = if v6 {
                    MTU_BYTES_MIN_V6
                } else {
                    576.min(mtu_bytes)
                };
                let connections = (0..dice.range(1..=3))
                    .map(|_| draw_connection(dice, swarm, objects, &mut budget_bytes))
                    .collect();
                ClientPlan {
                    number,
                    address,
                    starts: Instant::ZERO + dice.log_micros(1..=200_000),
                    mtu_bytes: if dice.chance(800) { mtu_bytes } else { narrow },
                    receive_bytes: draw_window(dice),
                    delays_acks: dice.chance(500),
                    timestamps: dice.chance(500),
                    seed: dice.bits(),
                    connections,
                }
            })
            .collect()
    }
}

/// A rate of up to 5 %, small ones as likely as large ones; drawn even if it is off.
fn permille(dice: &mut Dice, on: bool) -> u16 {
    let drawn = u16::try_from(dice.log_range(1..=50)).expect("invariant: within u16");
    if on { drawn } else { 0 }
}

fn small(dice: &mut Dice, range: core::ops::RangeInclusive<u64>) -> u32 {
    u32::try_from(dice.range(range)).expect("invariant: small")
}

/// A receive buffer: ordinary ones, tiny ones, ones that need window scaling.
fn draw_window(dice: &mut Dice) -> usize {
    let any = dice.log_range(256..=500_000);
    let bytes = dice.pick(&[any, 65_535, 65_536, 262_144, 4_096, 131_072]);
    usize::try_from(bytes).expect("invariant: within usize")
}

fn draw_connection(
    dice: &mut Dice,
    swarm: Swarm,
    objects: &[ObjectPlan],
    budget_bytes: &mut u64,
) -> ConnectionPlan {
    let count = dice.pick(&[1, 1, 1, 2, 2, 3, 5]);
    let mut requests: Vec<_> = (0..count)
        .map(|_| draw_request(dice, objects, budget_bytes))
        .collect();
    if let Some(last) = requests.last_mut() {
        last.close = dice.chance(300);
    }
    let body_bytes = requests
        .iter()
        .filter_map(|request| request.expected().body);
    let body_bytes: u64 = body_bytes.map(|body| body.length_bytes).sum();
    let pause = dice.chance(120).then(|| Pause {
        after_bytes: dice.range(1..=body_bytes.max(1)),
        lasts: dice.log_micros(1_000..=8_000_000),
    });
    let slow = dice.chance(150);
    ConnectionPlan {
        gap: dice.log_micros(1..=100_000),
        requests,
        pipeline: dice.pick(&[1, 1, 2, 4]),
        think: if dice.chance(300) {
            dice.log_micros(100..=500_000)
        } else {
            Duration::ZERO
        },
        pause,
        read_bytes_max: if slow {
            dice.size(500..=20_000)
        } else {
            usize::MAX
        },
        read_interval: dice.log_micros(50..=5_000),
        conduct: draw_conduct(dice, swarm, body_bytes),
        attempt: 0,
    }
}

fn draw_request(dice: &mut Dice, objects: &[ObjectPlan], budget_bytes: &mut u64) -> RequestPlan {
    let object = objects[dice.size(0..=objects.len() - 1)];
    let size = object.size_bytes;
    let range = match dice.range(0..=9) {
        0 => {
            let first = dice.range(0..=size + 1);
            Some(RangePlan::FirstToLast(
                first,
                first + dice.log_range(1..=size + 2) - 1,
            ))
        }
        1 => Some(RangePlan::From(dice.range(0..=size))),
        // The last bytes of an empty object are a question RFC 9110 leaves open.
        2 if size > 0 => Some(RangePlan::Last(dice.log_range(1..=size + 5))),
        _ => None,
    };
    let object = (!dice.chance(50)).then_some(object);
    let mut request = RequestPlan {
        object,
        head: dice.chance(100),
        range,
        close: false,
    };
    let body = request.expected().body.filter(|_| !request.head);
    match budget_bytes.checked_sub(body.map_or(0, |body| body.length_bytes)) {
        Some(left) => *budget_bytes = left,
        None => request.head = true,
    }
    request
}

fn draw_conduct(dice: &mut Dice, swarm: Swarm, body_bytes: u64) -> Conduct {
    let misstep = |dice: &mut Dice| Misstep {
        after_bytes: dice.range(0..=body_bytes + 200),
        after: dice.log_micros(10..=2_000_000),
    };
    if dice.chance(80) {
        return Conduct::HalfClose;
    }
    if dice.chance(60) {
        return Conduct::Dribble {
            interval: dice.log_micros(10..=10_000),
        };
    }
    if !swarm.misconduct || dice.chance(600) {
        return Conduct::Proper;
    }
    match dice.range(0..=3) {
        0 => Conduct::Reset(misstep(dice)),
        1 => Conduct::Vanish(misstep(dice)),
        2 => Conduct::StallHead {
            sent_bytes: dice.size(0..=60),
        },
        _ => Conduct::Garbage {
            length: dice.size(1..=5000),
            key: dice.bits(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{BODY_BYTES_MAX_LARGE, CLIENTS_MAX, IpAddr, MTU_BYTES_MIN_V6, Scenario, THEMES};

    fn draw(seed: u64) -> Scenario {
        Scenario::draw(seed, &THEMES[0])
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
            assert!((1..=CLIENTS_MAX).contains(&scenario.clients.len()));
            let asked: u64 = scenario
                .clients
                .iter()
                .flat_map(|client| &client.connections)
                .flat_map(|connection| &connection.requests)
                .filter(|request| !request.head)
                .filter_map(|request| request.expected().body)
                .map(|body| body.length_bytes)
                .sum();
            assert!(asked <= BODY_BYTES_MAX_LARGE);
            assert!(scenario.agenda.is_sorted_by_key(|(at, _)| *at));
            for client in &scenario.clients {
                let v6 = matches!(client.address, IpAddr::V6(_));
                assert!(!v6 || client.mtu_bytes >= MTU_BYTES_MIN_V6);
                assert!(client.mtu_bytes <= scenario.mtu_bytes);
            }
        }
        let both = |question: &dyn Fn(&Scenario) -> bool| {
            scenarios.iter().any(question) && !scenarios.iter().all(question)
        };
        assert!(both(&|s| s.outbound.loss_permille > 0));
        assert!(both(&|s| s.disk.error_permille > 0));
        assert!(both(&|s| s.segmentation_bytes_max > 0));
        assert!(both(&|s| s.checksum_offload));
        assert!(both(&|s| s.slots < 5));
        assert!(both(&|s| s.agenda.is_empty()));
        assert!(both(&|s| s.permits().broken_replies));
        assert!(both(&|s| s.permits().refusals));
        assert!(both(&|s| s.permits().lateness));
        assert!(both(&|s| s
            .clients
            .iter()
            .any(|client| client.address.is_ipv6())));
    }
}
