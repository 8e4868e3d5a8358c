//! The kinds of faults, and named sets of them.
//!
//! Swarm testing: each run switches a random subset of the faults off, so that none always hides
//! another. All themes use the same random numbers: a fault that a theme does not allow is drawn
//! and not used.

use Fault::*;

use crate::rng::Rng;

/// The kinds of faults, and what some runs have that is no fault by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Loss,
    Reorder,
    Duplicate,
    Corrupt,
    Rate,
    Errors,
    Partials,
    Stuck,
    DepthFamine,
    Changes,
    SlotFamine,
    TableFamine,
    Outages,
    TransmitFamine,
    NarrowPath,
    ObjectFamine,
    Ending,
    BlindAttack,
    Misconduct,
    /// Large objects: no fault by itself.
    Large,
    /// Some clients use TLS; no fault by itself.
    Tls,
    WornKeys,
    Unnoticed,
    Flood,
    Abusive,
    Failover,
    /// Some links send from slots on loan; no fault by itself.
    Lending,
    KeptSlots,
    DeviceStops,
    /// A SYN flood. Only in its own theme: with the segments of a request reordered or lost, a cookie's
    /// ACK may come too late, and its connection is reset.
    SynFlood,
    /// Several workers, mostly; no fault by itself. Only in its own theme.
    Workers,
    /// Other processes take over; no fault by itself. Only in its own theme.
    TakeOver,
}

/// A set of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Swarm(u32);

impl Swarm {
    /// These faults.
    const fn of(faults: &[Fault]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < faults.len() {
            bits |= 1 << faults[index] as u32;
            index += 1;
        }
        Self(bits)
    }

    /// Those of both sets.
    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether this fault is among them.
    pub(super) const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }
}

/// Faults and how many of a thousand runs have each, in the order in which they are drawn.
pub(super) type Chances = [(Fault, u64)];

/// Drawn before everything else.
pub(super) const FIRST: &Chances = &[
    (Loss, 500),
    (Reorder, 500),
    (Duplicate, 400),
    (Corrupt, 400),
    (Rate, 400),
    (Errors, 150),
    (Partials, 200),
    (Stuck, 150),
    (DepthFamine, 150),
    (Changes, 100),
    (SlotFamine, 300),
    (TableFamine, 150),
    (Outages, 150),
    (TransmitFamine, 250),
    (NarrowPath, 200),
    (ObjectFamine, 150),
    (Ending, 100),
    (BlindAttack, 200),
    (Misconduct, 500),
    (Large, 10),
];

/// Those of TLS.
pub(super) const SECURE: &Chances = &[(Unnoticed, 60), (WornKeys, 200), (Flood, 20)];

/// Peers and routers. The failover is only in its own theme: a client whose frames are lost for other
/// reasons may send none while the first router still forwards.
pub(super) const LATE: &Chances = &[(Abusive, 40), (Failover, 0)];

/// Slots on loan.
pub(super) const LENDING: &Chances = &[(Lending, 500), (KeptSlots, 150), (DeviceStops, 150)];

/// A named set of faults, for runs that test one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Theme {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Its description on the command line.
    pub(crate) help: &'static str,
    /// Which faults may be drawn.
    allows: Swarm,
    /// Those with another chance than in other themes.
    often: &'static Chances,
}

const NO_FAULT: Swarm = Swarm::of(&[Tls, Lending]);
const EVERY_FAULT: Swarm = Swarm(u32::MAX).without(Swarm::of(&[SynFlood, Workers, TakeOver]));
const OF_TLS: Swarm = Swarm::of(&[Tls, WornKeys, Unnoticed, Flood]);

/// A theme without faults but these.
const fn theme(name: &'static str, help: &'static str, faults: &[Fault]) -> Theme {
    Theme {
        name,
        help,
        allows: NO_FAULT.with(Swarm::of(faults)),
        often: &[],
    }
}

/// Every theme; the first is the default.
pub(crate) const THEMES: &[Theme] = &[
    Theme {
        allows: EVERY_FAULT,
        ..theme("swarm", "a random subset of all faults", &[])
    },
    theme("clean", "no faults", &[]),
    theme(
        "network",
        "loss, reordering, duplicates, corruption, narrow links and paths",
        &[Loss, Reorder, Duplicate, Corrupt, Rate, NarrowPath],
    ),
    theme(
        "disk",
        "failing, stuck and partial reads, a short queue, changing files",
        &[Errors, Partials, Stuck, DepthFamine, Changes],
    ),
    Theme {
        often: &[(Changes, 1000)],
        ..theme(
            "changes",
            "files that grow, are replaced, touched or rewritten, and a lossy network",
            &[
                Loss,
                Reorder,
                Duplicate,
                Corrupt,
                Rate,
                Partials,
                Stuck,
                DepthFamine,
                SlotFamine,
                Changes,
            ],
        )
    },
    Theme {
        // A network that loses nothing: what has not come was not sent.
        often: &[(Changes, 1000), (Stuck, 1000)],
        ..theme(
            "rewrites",
            "files that change while reads of them are stuck",
            &[Partials, Stuck, Changes],
        )
    },
    theme(
        "famine",
        "few slots, small tables, short queues",
        &[
            SlotFamine,
            TableFamine,
            ObjectFamine,
            TransmitFamine,
            DepthFamine,
        ],
    ),
    theme("outage", "the interface goes down and up", &[Outages]),
    theme(
        "conduct",
        "clients that reset, vanish, stall or send garbage, and an off-path attacker",
        &[Misconduct, BlindAttack],
    ),
    Theme {
        // Only large objects reach the limit of a key.
        often: &[(WornKeys, 1000), (Large, 300)],
        ..theme(
            "keys",
            "keys with a limit of a few records, on a lossy network",
            &[Loss, Reorder, WornKeys, Large],
        )
    },
    Theme {
        often: &[(Unnoticed, 1000)],
        ..theme(
            "reseal",
            "TLS only, files that change unnoticed, and a lossy network",
            &[Loss, Reorder, SlotFamine, Unnoticed],
        )
    },
    Theme {
        often: &[(Flood, 1000)],
        ..theme(
            "flood",
            "floods of unfinished handshakes",
            &[Loss, SlotFamine, Misconduct, Flood],
        )
    },
    Theme {
        // No slow link: thousands of SYN-ACKs would keep it busy until the clients give up.
        allows: Swarm::of(&[Tls, TableFamine, Stuck, Duplicate, SynFlood]),
        ..theme(
            "syn-flood",
            "a SYN flood, forged ACKs, small tables, stuck disks, duplicates",
            &[],
        )
    },
    Theme {
        often: &[(Abusive, 1000)],
        ..theme(
            "abusive",
            "peers that hold connections open for ever, or cause many reads",
            &[Abusive],
        )
    },
    Theme {
        often: &[(Failover, 1000)],
        ..theme(
            "failover",
            "the clients' router fails over, and an off-path attacker",
            &[Failover, BlindAttack],
        )
    },
    Theme {
        allows: EVERY_FAULT.without(OF_TLS),
        ..theme("plain", "a random subset of all faults, without TLS", &[])
    },
    Theme {
        often: &[(Lending, 1000), (KeptSlots, 500), (DeviceStops, 500)],
        ..theme(
            "lending",
            "slots on loan to a device that is slow, stops, or keeps them",
            &[SlotFamine, TransmitFamine, KeptSlots, DeviceStops],
        )
    },
    theme(
        "workers",
        "several workers, and clients whose segments change from one to the other",
        &[
            Workers,
            Loss,
            Reorder,
            Duplicate,
            Corrupt,
            Rate,
            NarrowPath,
            Errors,
            Stuck,
            Changes,
            SlotFamine,
            TableFamine,
            TransmitFamine,
            Outages,
            Ending,
            Misconduct,
            BlindAttack,
            Abusive,
            KeptSlots,
        ],
    ),
    theme(
        "take-over",
        "other processes take over, and what crosses between them is lost, late and reordered",
        &[
            TakeOver,
            Workers,
            Loss,
            Reorder,
            Duplicate,
            Corrupt,
            Rate,
            NarrowPath,
            Stuck,
            Partials,
            SlotFamine,
            TransmitFamine,
            Outages,
            Misconduct,
            BlindAttack,
            KeptSlots,
        ],
    ),
    theme(
        PATHS,
        "how well TCP sends: paths of any rate, delay and buffer (see src/paths)",
        &[],
    ),
    theme("ending", "the server is shut down", &[Ending]),
];

/// The theme whose runs have a path and a receiver of their own.
const PATHS: &str = "paths";

impl Theme {
    /// Whether its runs are those of [`crate::paths`].
    pub(crate) fn is_paths(&self) -> bool {
        self.name == PATHS
    }

    /// The theme of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        THEMES.iter().find(|theme| theme.name == name)
    }

    /// Whether a run may have this fault.
    pub(super) const fn allows(&self, fault: Fault) -> bool {
        self.allows.has(fault)
    }

    /// Draws each of these faults, and returns those that the theme allows.
    pub(super) fn draw(&self, rng: &mut Rng, chances: &Chances) -> Swarm {
        let often = |fault| self.often.iter().find(|(other, _)| *other == fault);
        let drawn = chances.iter().filter(|(fault, permille)| {
            let permille = often(*fault).map_or(*permille, |(_, permille)| *permille);
            rng.chance(permille)
        });
        let drawn = drawn.fold(Swarm(0), |all, (fault, _)| all.with(Swarm::of(&[*fault])));
        Swarm(drawn.0 & self.allows.0)
    }

    /// The same without TLS.
    pub(super) const fn without_tls(mut self) -> Self {
        self.allows = self.allows.without(Swarm::of(&[Tls]));
        self
    }
}
