//! Which kinds of trouble a run knows, and named choices of them.
//!
//! Swarm style: each run switches a random subset of the troubles off, so that none always hides
//! behind another. Themes share their dice: a trouble a theme does not allow is drawn all the same
//! and thrown away.

use crate::dice::Dice;

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
    pub(super) spoofing: bool,
    pub(super) misconduct: bool,
    pub(super) large: bool,
    /// Some clients speak TLS; no trouble by itself.
    pub(super) tls: bool,
    pub(super) worn_keys: bool,
    pub(super) unnoticed: bool,
    pub(super) flood: bool,
    pub(super) rude: bool,
    pub(super) handover: bool,
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
    narrow_path: false,
    object_famine: false,
    ending: false,
    spoofing: false,
    misconduct: false,
    large: false,
    tls: true,
    worn_keys: false,
    unnoticed: false,
    flood: false,
    rude: false,
    handover: false,
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
    narrow_path: true,
    object_famine: true,
    ending: true,
    spoofing: true,
    misconduct: true,
    large: true,
    tls: true,
    worn_keys: true,
    unnoticed: true,
    flood: true,
    rude: true,
    handover: true,
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
        help: "loss, reordering, duplicates, corruption, narrow links and paths",
        allows: Swarm {
            loss: true,
            reorder: true,
            duplicate: true,
            corrupt: true,
            rate: true,
            narrow_path: true,
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
        help: "few slots, small tables, short queues",
        allows: Swarm {
            slot_famine: true,
            table_famine: true,
            object_famine: true,
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
        help: "clients that reset, vanish, stall or talk nonsense, and forged segments",
        allows: Swarm {
            misconduct: true,
            spoofing: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "keys",
        help: "keys that wear out after a few records, on a lossy cable",
        allows: Swarm {
            loss: true,
            reorder: true,
            worn_keys: true,
            large: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "reseal",
        help: "TLS only, files that change unnoticed, and a lossy cable",
        allows: Swarm {
            loss: true,
            reorder: true,
            slot_famine: true,
            unnoticed: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "flood",
        help: "handshakes that nobody finishes, while others are served",
        allows: Swarm {
            loss: true,
            slot_famine: true,
            misconduct: true,
            flood: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "rude",
        help: "peers that answer for ever, to stay or to have much read",
        allows: Swarm {
            rude: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "handover",
        help: "the clients' router hands over to another, and strangers forge segments",
        allows: Swarm {
            handover: true,
            spoofing: true,
            ..NO_TROUBLE
        },
    },
    Theme {
        name: "plain",
        help: "a random subset of all troubles that there are without TLS, and no TLS",
        allows: Swarm {
            tls: false,
            worn_keys: false,
            unnoticed: false,
            flood: false,
            ..EVERY_TROUBLE
        },
    },
    Theme {
        name: "ending",
        help: "the server is told to end",
        allows: Swarm {
            ending: true,
            ..NO_TROUBLE
        },
    },
];

impl Theme {
    /// The theme of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        THEMES.iter().find(|theme| theme.name == name)
    }

    /// Draws, by dice of their own, what was thought of later than all else: whether some peers
    /// answer for ever, and whether the clients' router hands over to another.
    pub(super) fn draw_late(&self, dice: &mut Dice) -> (bool, bool) {
        let mut draw = |allowed: bool, name: &str, permille: u64| {
            let permille = if self.name == name { 1000 } else { permille };
            dice.chance(permille) && allowed
        };
        let rude = draw(self.allows.rude, "rude", 40);
        // Whose frames are lost for other reasons may say nothing while the first router lives.
        let handover = draw(self.allows.handover, "handover", 0);
        (rude, handover)
    }

    /// The same where nobody speaks TLS.
    pub(super) const fn without_tls(mut self) -> Self {
        self.allows.tls = false;
        self
    }
}

impl Swarm {
    /// Draws every trouble, whether the theme allows it or not: themes share their dice. What has
    /// to do with TLS comes out of dice of its own.
    pub(super) fn draw(dice: &mut Dice, secure_dice: &mut Dice, theme: &Theme) -> Self {
        let allows = theme.allows;
        let mut secure = |allowed: bool, permille: u64| secure_dice.chance(permille) && allowed;
        // What a theme is named for is always there.
        let often = |name: &str, permille: u64| if theme.name == name { 1000 } else { permille };
        let unnoticed = secure(allows.unnoticed, often("reseal", 60));
        let worn_keys = secure(allows.worn_keys, often("keys", 200));
        let flood = secure(allows.flood, often("flood", 20));
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
            narrow_path: draw(allows.narrow_path, 200),
            object_famine: draw(allows.object_famine, 150),
            ending: draw(allows.ending, 100),
            spoofing: draw(allows.spoofing, 200),
            misconduct: draw(allows.misconduct, 500),
            // Keys wear out by much of it only.
            large: draw(allows.large, if theme.name == "keys" { 300 } else { 10 }),
            tls: allows.tls,
            worn_keys,
            unnoticed,
            flood,
            rude: allows.rude,
            handover: allows.handover,
        }
    }
}
