//! What is measured, by whom, how often, and how long it will take: pure, so that it can be tested.
//!
//! Bounded by: [`CONNECTIONS`], and a time the tests know.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::bench::lab::Contender;
use testbed::rivals::Peer;

/// The sweep over connections of the full run.
pub(super) const CONNECTIONS: [u64; 6] = [64, 1_000, 2_000, 4_000, 8_000, 16_000];

/// The sweep of the quick run.
const CONNECTIONS_QUICK: [u64; 2] = [64, 1_000];

/// Where every server takes part; in between only those that can be the best.
const WHOLE_FIELD: [u64; 3] = [64, 1_000, 8_000];

/// Where Atlas emulates TLS too, as the paper did; in the quick run everywhere.
const EMULATED: [u64; 3] = [64, 4_000, 16_000];

/// Where each server takes one more turn, if cold: what most aims beside rivals go by.
const COUNTS: [u64; 2] = [64, 4_000];

/// Rounds where it counts, and elsewhere.
const ROUNDS: usize = 3;
const ROUNDS_ELSEWHERE: usize = 2;

/// Rounds of Atlas alone over connections: its turns scatter by a tenth, and a tenth is what the
/// aims there are about.
const ROUNDS_ALONE: usize = 8;

/// Turns of which one may be taken again.
const TURNS_PER_RETAKE: usize = 10;

/// From so many connections on clients have a distance: fewer could not fill the cable with it.
const DISTANT_CONNECTIONS_MIN: u64 = 1_000;

/// Size of each object, bytes: the paper's chunks are of some 300 KB.
pub(super) const OBJECT_BYTES: u64 = 307_200;

/// Objects of a warm run: a gigabyte, so that no processor's cache holds them.
const WARM_OBJECTS: u64 = 3_400;

/// Objects of a cold run, asked for one after the other; and of the quick one. They last longer than
/// what is cached is remembered ([`FORGET_TIMES`]).
const COLD_OBJECTS: u64 = 32_000;
const COLD_OBJECTS_QUICK: u64 = 10_000;

/// The page cache forgets all objects so often while a server that caches reads those of a cold run
/// once. Seldom enough to leave its clients their core; that it is often enough shows in what the disk
/// read. (Three times, counted from the end of the forgetting before, was not: two quick turns of
/// nginx read 7 and 15 % too little.)
pub(super) const FORGET_TIMES: u64 = 4;

/// Length of a cold window, seconds; and with `--quick`.
const COLD_SECONDS: u64 = 4;
const COLD_SECONDS_QUICK: u64 = 2;

/// Length of a warm window, seconds; and with `--quick`.
const WARM_SECONDS: u64 = 3;
const WARM_SECONDS_QUICK: u64 = 2;

/// Left out of the figures at the start of a run, seconds: long enough for congestion windows to open,
/// which takes the longer the more connections take turns.
const WARM_UP_SECONDS: u64 = 1;
const CONNECTIONS_PER_WARM_UP_SECOND: u64 = 2_000;

// What the estimate goes by, seconds: seen on two cores of a noisy virtual machine.

/// A turn without its window: the server's start and end, caches dropped, the comparison.
const TURN_SECONDS: f64 = 1.5;
/// Reading the warm objects until they stay in the page cache.
const WARMING_SECONDS: f64 = 1.5;
/// The middlebox's start and end.
const MIDDLEBOX_SECONDS: f64 = 0.5;
/// Opening a connection, plain and with a handshake.
const CONNECT_SECONDS: f64 = 0.000_1;
const HANDSHAKE_SECONDS: f64 = 0.000_5;
/// So much of the estimate is believed against what turns really took: the first say little.
const TRUST_SECONDS: f64 = 60.0;
/// Making an object on the bench disk.
const OBJECT_SECONDS: f64 = 0.001;

/// What is between the server and its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Security {
    /// HTTP.
    Plain,
    /// TLS 1.3 with AES-128-GCM.
    Tls,
}

impl Security {
    /// As tables and files have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tls => "tls",
        }
    }

    /// As sentences have it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Plain => "plaintext",
            Self::Tls => "TLS",
        }
    }
}

/// How much of what is asked for the page cache holds: the paper's "BC".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cache {
    /// 0 %: what is cached is forgotten again and again, no object is asked for before all others.
    Cold,
    /// 100 %: all objects read before.
    Warm,
}

impl Cache {
    /// As tables and files have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// One point of the figures: servers take their turns at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) security: Security,
    pub(super) cache: Cache,
    pub(super) connections: u64,
    /// Clients are 10 to 40 ms away.
    pub(super) is_distant: bool,
    /// Objects that are asked for, each before any a second time.
    pub(super) objects: u64,
    /// What is left out of the figures.
    pub(super) warm_up_seconds: u64,
    /// Length of the window.
    pub(super) window_seconds: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (security, cache) = (self.security.name(), self.cache.name());
        write!(f, "{security}, {cache}, {} connections", self.connections)
    }
}

impl Cell {
    fn new(security: Security, cache: Cache, connections: u64, is_quick: bool) -> Self {
        let (cold_objects, cold_seconds, warm_seconds) = if is_quick {
            (COLD_OBJECTS_QUICK, COLD_SECONDS_QUICK, WARM_SECONDS_QUICK)
        } else {
            (COLD_OBJECTS, COLD_SECONDS, WARM_SECONDS)
        };
        let (objects, window_seconds) = match cache {
            Cache::Cold => (cold_objects.max(2 * connections), cold_seconds),
            Cache::Warm => (WARM_OBJECTS, warm_seconds),
        };
        Self {
            security,
            cache,
            connections,
            is_distant: connections >= DISTANT_CONNECTIONS_MIN,
            objects,
            warm_up_seconds: WARM_UP_SECONDS + connections / CONNECTIONS_PER_WARM_UP_SECOND,
            window_seconds,
        }
    }

    /// What one turn takes at most, if nothing goes wrong.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn turn_seconds(&self) -> f64 {
        let handshake = match self.security {
            Security::Plain => 0.0,
            Security::Tls => HANDSHAKE_SECONDS,
        };
        let before = match self.cache {
            Cache::Cold => 0.0,
            Cache::Warm => WARMING_SECONDS,
        };
        let middlebox = if self.is_distant {
            MIDDLEBOX_SECONDS
        } else {
            0.0
        };
        TURN_SECONDS
            + before
            + middlebox
            + self.connections as f64 * (CONNECT_SECONDS + handshake)
            + (self.warm_up_seconds + self.window_seconds) as f64
    }
}

/// A cell, and who visits it how often.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) cell: Cell,
    pub(super) rounds: usize,
    pub(super) contenders: Vec<Contender>,
}

/// What is asked of a plan.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wishes<'a> {
    pub(super) is_quick: bool,
    /// So many rounds everywhere.
    pub(super) rounds: Option<usize>,
    /// Instead of the sweep.
    pub(super) connections: &'a [u64],
    /// The servers were chosen, and all of them go everywhere they can.
    pub(super) is_chosen: bool,
}

/// All visits. A round goes through all of them before the next begins: what the machine does for
/// some minutes then falls on one round of many cells, and not on all rounds of one.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) visits: Vec<Visit>,
}

impl Plan {
    /// For each kind of security the sweep over connections, cold beside warm.
    pub(super) fn new(wishes: Wishes<'_>, contenders: &[Contender]) -> Self {
        let is_full = !wishes.is_quick && wishes.connections.is_empty();
        let sweep = match (wishes.connections, wishes.is_quick) {
            ([], true) => &CONNECTIONS_QUICK,
            ([], false) => &CONNECTIONS[..],
            (chosen, _) => chosen,
        };
        let takes_part = |contender: &Contender, cell: &Cell| {
            let is_thinned = is_full && !wishes.is_chosen;
            is_able(contender, cell) && (!is_thinned || is_worth_it(contender, cell))
        };
        let rounds = |cell: &Cell| match wishes.rounds {
            Some(rounds) => rounds,
            None if wishes.is_quick => 1,
            None if cell.cache == Cache::Cold && COUNTS.contains(&cell.connections) => ROUNDS,
            None => ROUNDS_ELSEWHERE,
        };
        let mut visits = Vec::new();
        for security in [Security::Plain, Security::Tls] {
            for &connections in sweep {
                for cache in [Cache::Cold, Cache::Warm] {
                    let cell = Cell::new(security, cache, connections, wishes.is_quick);
                    let part = contenders.iter().filter(|it| takes_part(it, &cell));
                    visits.push(Visit {
                        cell,
                        rounds: rounds(&cell),
                        contenders: part.cloned().collect(),
                    });
                }
            }
        }
        Self { visits }
    }

    /// Atlas alone, cold, at the numbers of connections with distance, turn beside turn: in a round
    /// of the whole plan many minutes lie between two of them. Without visits if there is nothing to
    /// be beside.
    pub(super) fn over_connections(&self, wishes: Wishes<'_>) -> Self {
        let rounds = match wishes.rounds {
            Some(rounds) => rounds,
            None if wishes.is_quick => 1,
            None => ROUNDS_ALONE,
        };
        let alone = |it: &Visit| {
            let is_atlas = |it: &&Contender| matches!(it, Contender::Atlas(_));
            Visit {
                cell: it.cell,
                rounds,
                contenders: it.contenders.iter().filter(is_atlas).cloned().collect(),
            }
        };
        let cold = self.visits.iter();
        let cold = cold.filter(|it| it.cell.cache == Cache::Cold && it.cell.is_distant);
        let visits: Vec<_> = cold.map(alone).collect();
        let first = visits.first().map(|it| it.cell.connections);
        let are_several = visits
            .iter()
            .any(|it| Some(it.cell.connections) != first && !it.contenders.is_empty());
        Self {
            visits: if are_several { visits } else { Vec::new() },
        }
    }

    /// The visits of a round at cells of a kind, in the order they are made: each round begins
    /// further on, so that what changes while a machine is at it falls on another cell each time.
    pub(super) fn order(&self, security: Security, round: usize) -> Vec<usize> {
        let all = self.visits.iter().enumerate();
        let part = all.filter(|(_, it)| it.cell.security == security && it.rounds >= round);
        let mut order: Vec<usize> = part.map(|(index, _)| index).collect();
        let further = (round - 1) * order.len() / self.rounds().max(1);
        order.rotate_left(further);
        order
    }

    /// Rounds of the cells that have most.
    pub(super) fn rounds(&self) -> usize {
        self.visits.iter().map(|it| it.rounds).max().unwrap_or(0)
    }

    /// Objects the disk must hold.
    pub(super) fn objects(&self) -> u64 {
        let objects = self.visits.iter().map(|it| it.cell.objects);
        objects.max().unwrap_or(0)
    }

    /// Turns that may be taken again: one of ten, so that a machine whose owners are busy does not
    /// make a bench of minutes one of half an hour.
    pub(super) fn retakes(&self) -> usize {
        let turns = self.visits.iter().map(|it| it.rounds * it.contenders.len());
        turns.sum::<usize>().div_ceil(TURNS_PER_RETAKE)
    }

    /// What all turns of all rounds take.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn turns_seconds(&self) -> f64 {
        let turns = |it: &Visit| (it.rounds * it.contenders.len()) as f64;
        let all = self.visits.iter();
        all.map(|it| turns(it) * it.cell.turn_seconds()).sum()
    }

    /// How long it will take, the bench disk's making included.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(super) fn estimate(&self) -> Duration {
        let disk = self.objects() as f64 * OBJECT_SECONDS;
        Duration::from_secs_f64(disk + self.turns_seconds())
    }
}

/// Descriptors that a rival needs for each connection: its socket and its file.
const RIVAL_DESCRIPTORS: u64 = 2;

/// Whether a server's failure at a cell is of no use twice: a rival among more connections than
/// `descriptors` serve.
pub(super) fn is_hopeless(is_ours: bool, cell: &Cell, descriptors: u64) -> bool {
    !is_ours && RIVAL_DESCRIPTORS * cell.connections > descriptors
}

/// Time left of an estimate, where `done` of it took `spent`: the rest goes on as it went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    all_seconds: f64,
    done_seconds: f64,
}

impl Progress {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            all_seconds: plan.turns_seconds(),
            done_seconds: 0.0,
        }
    }

    /// One more turn is done.
    pub(super) fn on_turn(&mut self, cell: &Cell) {
        self.done_seconds += cell.turn_seconds();
    }

    /// What is left, `spent` after the first turn's start.
    pub(super) fn left(&self, spent: Duration) -> Duration {
        let pace = (spent.as_secs_f64() + TRUST_SECONDS) / (self.done_seconds + TRUST_SECONDS);
        Duration::from_secs_f64(pace * (self.all_seconds - self.done_seconds).max(0.0))
    }
}

/// Whether a server has anything to say at a cell.
fn is_able(contender: &Contender, cell: &Cell) -> bool {
    match contender {
        // Stands for TLS from disk, and shows its price beside plaintext.
        Contender::AtlasEmulated(_) => {
            cell.security == Security::Plain && cell.cache == Cache::Cold
        }
        // Direct reads do not see a warm cache.
        Contender::Nginx(mode) if mode.is_direct() => cell.cache == Cache::Cold,
        Contender::Atlas(_)
        | Contender::AtlasBaseline(_)
        | Contender::Nginx(_)
        | Contender::Peer(_) => true,
    }
}

/// Whether a server takes part at a cell of the full sweep.
fn is_worth_it(contender: &Contender, cell: &Cell) -> bool {
    match contender {
        Contender::Atlas(_) => true,
        Contender::AtlasEmulated(_) => EMULATED.contains(&cell.connections),
        rival => WHOLE_FIELD.contains(&cell.connections) || can_be_best(rival, cell.security),
    }
}

/// Whether a rival has been the best of its kind with many distant connections, or may be: nginx
/// where it works while the disk reads, and of the others the better one.
fn can_be_best(rival: &Contender, security: Security) -> bool {
    match rival {
        Contender::Nginx(mode) => mode.overlaps_reads(),
        Contender::Peer(Peer::Lighttpd) => security == Security::Plain,
        Contender::Peer(Peer::H2o) => security == Security::Tls,
        Contender::Atlas(_) | Contender::AtlasBaseline(_) | Contender::AtlasEmulated(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use testbed::rivals::NginxMode;

    /// Others of the bench's parts need ten minutes of the time the whole may take.
    const FULL_SECONDS_MAX: u64 = (85 - 10) * 60;
    const QUICK_SECONDS_MAX: u64 = 7 * 60;

    pub(in super::super) fn cells(security: Security, cache: Cache) -> Vec<Cell> {
        let cell = |connections| Cell::new(security, cache, connections, false);
        CONNECTIONS.map(cell).into()
    }

    fn all() -> Vec<Contender> {
        let ours = [
            Contender::Atlas("atlas".into()),
            Contender::AtlasEmulated("atlas".into()),
        ];
        let rivals = NginxMode::ALL.map(Contender::Nginx);
        let peers = Peer::ALL.map(Contender::Peer);
        ours.into_iter().chain(rivals).chain(peers).collect()
    }

    fn plan(wishes: Wishes<'_>) -> Plan {
        Plan::new(wishes, &all())
    }

    fn quick() -> Wishes<'static> {
        Wishes {
            is_quick: true,
            ..Wishes::default()
        }
    }

    /// Who is where, at the numbers of connections at which `is_at`.
    fn names(plan: &Plan, security: Security, cache: Cache, connections: u64) -> Vec<&'static str> {
        let visit = plan.visits.iter().find(|it| {
            it.cell.security == security
                && it.cell.cache == cache
                && it.cell.connections == connections
        });
        let visit = visit.expect("a visit");
        visit.contenders.iter().map(Contender::name).collect()
    }

    #[test]
    fn the_full_plan_and_the_quick_one_keep_their_time() {
        let estimate = |wishes| {
            let plan = plan(wishes);
            plan.estimate() + plan.over_connections(wishes).estimate()
        };
        let (full, quick) = (estimate(Wishes::default()), estimate(quick()));
        assert!(full.as_secs() <= FULL_SECONDS_MAX, "{full:?}");
        assert!(quick.as_secs() <= QUICK_SECONDS_MAX, "{quick:?}");
        // An estimate that forgot the windows would keep any time.
        assert!(full.as_secs() > FULL_SECONDS_MAX / 2, "{full:?}");
        assert!(quick.as_secs() > QUICK_SECONDS_MAX / 4, "{quick:?}");
    }

    #[test]
    fn the_full_plan_is_the_sweep_in_four_kinds_and_most_rounds_where_it_counts() {
        let plan = plan(Wishes::default());
        assert_eq!(plan.visits.len(), 4 * CONNECTIONS.len());
        for visit in &plan.visits {
            let cell = visit.cell;
            assert!(cell.cache == Cache::Warm || cell.objects >= 2 * cell.connections);
            let counts = cell.cache == Cache::Cold && [64, 4_000].contains(&cell.connections);
            assert_eq!(visit.rounds, if counts { 3 } else { 2 }, "{cell:?}");
        }
        assert_eq!((plan.rounds(), plan.objects()), (3, 32_000));
    }

    #[test]
    fn atlas_is_everywhere_and_all_rivals_are_where_the_aims_compare_them() {
        let plan = plan(Wishes::default());
        for visit in &plan.visits {
            assert_eq!(visit.contenders[0].name(), Contender::ATLAS);
        }
        for connections in [64, 1_000, 8_000] {
            let rivals = |security| {
                let mut names = names(&plan, security, Cache::Cold, connections);
                names.retain(|name| !name.starts_with("atlas"));
                names.len()
            };
            assert_eq!((rivals(Security::Plain), rivals(Security::Tls)), (7, 7));
        }
        let between = |security, cache| names(&plan, security, cache, 2_000);
        assert_eq!(
            between(Security::Plain, Cache::Cold),
            [
                "atlas",
                "nginx-sendfile-threads",
                "nginx-sendfile-workers",
                "nginx-directio-threads",
                "lighttpd"
            ]
        );
        assert_eq!(
            between(Security::Tls, Cache::Warm),
            [
                "atlas",
                "nginx-sendfile-threads",
                "nginx-sendfile-workers",
                "h2o"
            ]
        );
    }

    #[test]
    fn atlas_alone_goes_where_there_is_distance_and_something_to_be_beside() {
        let wishes = Wishes::default();
        let alone = plan(wishes).over_connections(wishes);
        assert_eq!(alone.visits.len(), 2 * 5);
        assert_eq!(alone.rounds(), 8);
        for visit in &alone.visits {
            assert!(visit.cell.is_distant && visit.cell.cache == Cache::Cold);
            let names: Vec<_> = visit.contenders.iter().map(Contender::name).collect();
            assert_eq!(names, [Contender::ATLAS]);
        }
        let chosen = |connections, is_quick| {
            let wishes = Wishes {
                is_quick,
                connections,
                ..Wishes::default()
            };
            plan(wishes).over_connections(wishes)
        };
        assert_eq!(chosen(&[64, 1_000], false).visits.len(), 0);
        let quick = chosen(&[1_000, 16_000], true);
        assert_eq!((quick.visits.len(), quick.rounds()), (4, 1));
        let rivals = Plan::new(wishes, &[Contender::Peer(Peer::H2o)]);
        assert_eq!(rivals.over_connections(wishes).visits.len(), 0);
    }

    #[test]
    fn each_round_begins_further_on_and_leaves_none_out() {
        let wishes = Wishes {
            rounds: Some(5),
            ..Wishes::default()
        };
        let alone = plan(wishes).over_connections(wishes);
        let mut firsts = Vec::new();
        for round in 1..=5 {
            let order = alone.order(Security::Tls, round);
            firsts.push(alone.visits[order[0]].cell.connections);
            let mut all: Vec<_> = order.iter().map(|it| alone.visits[*it].cell).collect();
            assert!(all.iter().all(|it| it.security == Security::Tls));
            all.sort_by_key(|it| it.connections);
            let numbers: Vec<_> = all.iter().map(|it| it.connections).collect();
            assert_eq!(numbers, CONNECTIONS[1..]);
        }
        assert_eq!(firsts, CONNECTIONS[1..]);
        // Cells with fewer rounds than others are left out of those they lack.
        let whole = plan(Wishes::default());
        let third = whole.order(Security::Plain, 3);
        let third: Vec<_> = third.iter().map(|it| whole.visits[*it].cell).collect();
        let mut third: Vec<_> = third.iter().map(|it| it.connections).collect();
        third.sort_unstable();
        assert_eq!(third, COUNTS);
    }

    #[test]
    fn one_turn_of_ten_may_be_taken_again() {
        let servers = [Contender::Peer(Peer::H2o)];
        let retakes = |rounds, connections| {
            let wishes = Wishes {
                rounds: Some(rounds),
                connections,
                ..Wishes::default()
            };
            Plan::new(wishes, &servers).retakes()
        };
        // A number of connections has four cells.
        assert_eq!(retakes(1, &[64]), 1);
        assert_eq!(retakes(5, &[64]), 2);
        assert_eq!(retakes(6, &[64]), 3);
        assert_eq!(Plan { visits: Vec::new() }.retakes(), 0);
    }

    #[test]
    fn only_rivals_without_descriptors_are_hopeless() {
        let cell = Cell::new(Security::Plain, Cache::Cold, 1_000, false);
        assert!(is_hopeless(false, &cell, 1_999));
        assert!(!is_hopeless(false, &cell, 2_000));
        assert!(!is_hopeless(true, &cell, 1_999));
    }

    #[test]
    fn direct_reads_stay_away_from_warm_caches_and_emulation_from_tls_and_caches() {
        let plan = plan(quick());
        let is_at = |name: &str, security, cache| {
            let is_at = [64, 1_000].map(|it| names(&plan, security, cache, it).contains(&name));
            assert_eq!(is_at[0], is_at[1], "{name}");
            is_at[0]
        };
        let of = |name: &str| {
            [
                is_at(name, Security::Plain, Cache::Cold),
                is_at(name, Security::Plain, Cache::Warm),
                is_at(name, Security::Tls, Cache::Cold),
                is_at(name, Security::Tls, Cache::Warm),
            ]
        };
        assert_eq!(of("nginx-directio"), [true, false, true, false]);
        assert_eq!(of("atlas-emulated"), [true, false, false, false]);
        assert_eq!(of("atlas"), [true; 4]);
        assert_eq!(of("h2o"), [true; 4]);
    }

    #[test]
    fn the_quick_plan_is_small_and_a_choice_wins() {
        let small = plan(quick());
        assert_eq!((small.rounds(), small.objects()), (1, COLD_OBJECTS_QUICK));
        let chosen = plan(Wishes {
            rounds: Some(5),
            connections: &[999, 2_000],
            ..Wishes::default()
        });
        assert_eq!((chosen.visits.len(), chosen.rounds()), (8, 5));
        let is_distant = |connections: u64| {
            let mut all = chosen.visits.iter();
            all.any(|it| it.cell.connections == connections && it.cell.is_distant)
        };
        assert!(!is_distant(999) && is_distant(2_000));
        let cold = (Security::Plain, Cache::Cold);
        assert_eq!(names(&chosen, cold.0, cold.1, 2_000).len(), all().len());
        let servers = Wishes {
            is_chosen: true,
            ..Wishes::default()
        };
        assert_eq!(
            names(&plan(servers), cold.0, cold.1, 2_000).len(),
            all().len()
        );
    }

    #[test]
    fn time_left_goes_by_how_long_turns_took_and_ends_at_nothing() {
        let plan = plan(quick());
        let mut progress = Progress::new(&plan);
        let all = progress.left(Duration::ZERO);
        assert!((all.as_secs_f64() - plan.turns_seconds()).abs() < 1e-6);
        let mut spent = 0.0;
        for visit in &plan.visits {
            for _ in &visit.contenders {
                progress.on_turn(&visit.cell);
                spent += 2.0 * visit.cell.turn_seconds();
            }
            let left = progress.left(Duration::from_secs_f64(spent));
            let pace = (spent + TRUST_SECONDS) / (spent / 2.0 + TRUST_SECONDS);
            let expected = pace * (plan.turns_seconds() - spent / 2.0);
            assert!((left.as_secs_f64() - expected).abs() < 1e-3, "{left:?}");
        }
        // More turns than were planned leave no less than nothing.
        progress.on_turn(&plan.visits[0].cell);
        assert_eq!(progress.left(Duration::from_secs(9)), Duration::ZERO);
    }
}
