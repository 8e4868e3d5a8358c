//! The kinds of faults, and named sets of them.
//!
//! Swarm testing: each run switches a random subset of the faults off, so that none always hides
//! another. All themes use the same random numbers: a fault that a theme does not allow is drawn
//! and not used.

use crate::rng::Rng;

/// A named set of faults, for runs that test one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Theme {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Its description on the command line.
    pub(crate) help: &'static str,
    /// Which faults may be drawn.
    allows: Swarm,
}

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Swarm {
    pub(super) loss: bool,
    pub(super) reorder: bool,
    pub(super) duplicate: bool,
    pub(super) corrupt: bool,
    pub(super) rate: bool,
    pub(super) errors: bool,
    pub(super) partials: bool,
    pub(super) stuck: bool,
    pub(super) depth_famine: bool,
    pub(super) changes: bool,
    pub(super) slot_famine: bool,
    pub(super) table_famine: bool,
    pub(super) outages: bool,
    pub(super) transmit_famine: bool,
    pub(super) narrow_path: bool,
    pub(super) object_famine: bool,
    pub(super) ending: bool,
    pub(super) blind_attack: bool,
    pub(super) misconduct: bool,
    pub(super) large: bool,
    /// Some clients use TLS; no fault by itself.
    pub(super) tls: bool,
    pub(super) worn_keys: bool,
    pub(super) unnoticed: bool,
    pub(super) flood: bool,
    pub(super) abusive: bool,
    pub(super) failover: bool,
    /// Some links send from slots on loan; no fault by itself.
    pub(super) lending: bool,
    pub(super) kept_slots: bool,
    pub(super) device_stops: bool,
}

const NO_FAULT: Swarm = Swarm {
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
    narrow_path: false,
    object_famine: false,
    ending: false,
    blind_attack: false,
    misconduct: false,
    large: false,
    tls: true,
    worn_keys: false,
    unnoticed: false,
    flood: false,
    abusive: false,
    failover: false,
    lending: true,
    kept_slots: false,
    device_stops: false,
};

const EVERY_FAULT: Swarm = Swarm {
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
    narrow_path: true,
    object_famine: true,
    ending: true,
    blind_attack: true,
    misconduct: true,
    large: true,
    tls: true,
    worn_keys: true,
    unnoticed: true,
    flood: true,
    abusive: true,
    failover: true,
    lending: true,
    kept_slots: true,
    device_stops: true,
};

/// The theme whose runs have a path model and receivers of their own.
const PATHS: &str = "paths";

/// Every theme; the first is the default.
pub(crate) const THEMES: &[Theme] = &[
    Theme {
        name: "swarm",
        help: "a random subset of all faults",
        allows: EVERY_FAULT,
    },
    Theme {
        name: "clean",
        help: "no faults",
        allows: NO_FAULT,
    },
    Theme {
        name: "network",
        help: "loss, reordering, duplicates, corruption, narrow links and paths",
        allows: Swarm {
            loss: true,
            reorder: true,
            duplicate: true,
            corrupt: true,
            rate: true,
            narrow_path: true,
            ..NO_FAULT
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
            ..NO_FAULT
        },
    },
    Theme {
        name: "famine",
        help: "few slots, small tables, short queues",
        allows: Swarm {
            slot_famine: true,
            table_famine: true,
            object_famine: true,
            transmit_famine: true,
            depth_famine: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "outage",
        help: "the interface goes down and up",
        allows: Swarm {
            outages: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "conduct",
        help: "clients that reset, vanish, stall or send garbage, and an off-path attacker",
        allows: Swarm {
            misconduct: true,
            blind_attack: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "keys",
        help: "keys with a limit of a few records, on a lossy network",
        allows: Swarm {
            loss: true,
            reorder: true,
            worn_keys: true,
            large: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "reseal",
        help: "TLS only, files that change unnoticed, and a lossy network",
        allows: Swarm {
            loss: true,
            reorder: true,
            slot_famine: true,
            unnoticed: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "flood",
        help: "floods of unfinished handshakes",
        allows: Swarm {
            loss: true,
            slot_famine: true,
            misconduct: true,
            flood: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: SYN_FLOOD,
        help: "a SYN flood, forged ACKs, small tables, stuck disks, duplicates",
        // No slow link: thousands of SYN-ACKs would keep it busy until the clients give up.
        allows: Swarm {
            table_famine: true,
            stuck: true,
            duplicate: true,
            lending: false,
            ..NO_FAULT
        },
    },
    Theme {
        name: "abusive",
        help: "peers that hold connections open for ever, or cause many reads",
        allows: Swarm {
            abusive: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "failover",
        help: "the clients' router fails over, and an off-path attacker",
        allows: Swarm {
            failover: true,
            blind_attack: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: "plain",
        help: "a random subset of all faults, without TLS",
        allows: Swarm {
            tls: false,
            worn_keys: false,
            unnoticed: false,
            flood: false,
            ..EVERY_FAULT
        },
    },
    Theme {
        name: "lending",
        help: "slots on loan to a device that is slow, stops, or keeps them",
        allows: Swarm {
            slot_famine: true,
            transmit_famine: true,
            kept_slots: true,
            device_stops: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: WORKERS,
        help: "several workers, and clients whose segments change from one to the other",
        allows: Swarm {
            loss: true,
            reorder: true,
            duplicate: true,
            corrupt: true,
            rate: true,
            narrow_path: true,
            errors: true,
            stuck: true,
            slot_famine: true,
            table_famine: true,
            transmit_famine: true,
            outages: true,
            ending: true,
            misconduct: true,
            blind_attack: true,
            abusive: true,
            kept_slots: true,
            ..NO_FAULT
        },
    },
    Theme {
        name: PATHS,
        help: "how well TCP sends: paths of any rate, delay and buffer (see src/paths)",
        allows: NO_FAULT,
    },
    Theme {
        name: "ending",
        help: "the server is shut down",
        allows: Swarm {
            ending: true,
            ..NO_FAULT
        },
    },
];

/// The theme whose servers have several workers, mostly.
const WORKERS: &str = "workers";

/// Only in its own theme: with the segments of a request reordered or lost, a cookie's ACK may come
/// too late, and its connection is reset.
const SYN_FLOOD: &str = "syn-flood";

impl Theme {
    /// Whether there is a SYN flood.
    pub(super) fn floods_with_syns(&self) -> bool {
        self.name == SYN_FLOOD
    }

    /// Whether some of its servers have several workers.
    pub(super) fn has_workers(&self) -> bool {
        self.name == WORKERS
    }

    /// Whether its runs are those of [`crate::paths`].
    pub(crate) fn is_paths(&self) -> bool {
        self.name == PATHS
    }

    /// The theme of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        THEMES.iter().find(|theme| theme.name == name)
    }

    /// Draws, from a stream of their own, the faults that were added last: abusive peers, and the
    /// failover of the clients' router.
    pub(super) fn draw_late(&self, rng: &mut Rng) -> (bool, bool) {
        let mut draw = |allowed: bool, name: &str, permille: u64| {
            let permille = if self.name == name { 1000 } else { permille };
            rng.chance(permille) && allowed
        };
        let abusive = draw(self.allows.abusive, "abusive", 40);
        // Only in its own theme: a client whose frames are lost for other reasons may send none
        // while the first router still forwards.
        let failover = draw(self.allows.failover, "failover", 0);
        (abusive, failover)
    }

    /// Draws, from a stream of their own, whether slots are lent, whether the device keeps some, and
    /// whether it stops.
    pub(super) fn draw_lending(&self, rng: &mut Rng) -> (bool, bool, bool) {
        let is_theme = self.name == "lending";
        let lending = rng.chance(if is_theme { 1000 } else { 500 });
        let kept_slots = rng.chance(if is_theme { 500 } else { 150 });
        let device_stops = rng.chance(if is_theme { 500 } else { 150 });
        let allows = self.allows;
        (
            lending && allows.lending,
            kept_slots && allows.kept_slots,
            device_stops && allows.device_stops,
        )
    }

    /// The same without TLS.
    pub(super) const fn without_tls(mut self) -> Self {
        self.allows.tls = false;
        self
    }
}

impl Swarm {
    /// Draws every fault, whether the theme allows it or not, so that all themes use the same
    /// random numbers. Faults of TLS have a stream of their own.
    pub(super) fn draw(rng: &mut Rng, secure_rng: &mut Rng, theme: &Theme) -> Self {
        let allows = theme.allows;
        let mut secure = |allowed: bool, permille: u64| secure_rng.chance(permille) && allowed;
        // The fault that a theme is named after is always on.
        let often = |name: &str, permille: u64| if theme.name == name { 1000 } else { permille };
        let unnoticed = secure(allows.unnoticed, often("reseal", 60));
        let worn_keys = secure(allows.worn_keys, often("keys", 200));
        let flood = secure(allows.flood, often("flood", 20));
        let mut draw = |allowed: bool, permille: u64| rng.chance(permille) && allowed;
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
            narrow_path: draw(allows.narrow_path, 200),
            object_famine: draw(allows.object_famine, 150),
            ending: draw(allows.ending, 100),
            blind_attack: draw(allows.blind_attack, 200),
            misconduct: draw(allows.misconduct, 500),
            // Only large objects reach the limit of a key.
            large: draw(allows.large, if theme.name == "keys" { 300 } else { 10 }),
            tls: allows.tls,
            worn_keys,
            unnoticed,
            flood,
            abusive: allows.abusive,
            failover: allows.failover,
            lending: allows.lending,
            kept_slots: allows.kept_slots,
            device_stops: allows.device_stops,
        }
    }
}
