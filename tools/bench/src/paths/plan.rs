//! What is measured: paths, who sends over them, for how long, and in what order.
//!
//! It refuses names of senders and values that it does not have. Bounded by: the tables here.

use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bottleneck::{Disorder, LegPlan, PathPlan};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tcp::congestion::CongestionControl;
use testbed::random::Random;

/// Rate of every bottleneck: a path of it costs a core little, and the simulator's matrix has it, too.
pub(crate) const RATE_BITS: u64 = 50_000_000;

const RTT_MILLIS: [u64; 3] = [10, 40, 200];
const LOSS_PPM: [u32; 4] = [0, 1_000, 10_000, 50_000];
const BUFFER_TENTHS: [u64; 3] = [1, 10, 100];

const FAIR_RTT_MILLIS: [u64; 2] = [10, 40];
const FAIR_BUFFER_TENTHS: [u64; 2] = [10, 40];

/// How late each frame is at most where frames overtake each other: ten round trips.
const JITTER_MAX: Duration = Duration::from_millis(20);
const JITTER_RTT_MILLIS: u64 = 2;
/// About a BDP of the path with its mean jitter: 20 ms of the rate.
const JITTER_BUFFER_TENTHS: u64 = 100;
const SACK_SHIFT: u32 = 1 << 28;
const SACK_SHIFT_RTT_MILLIS: u64 = 20;

/// What Linux has and is compared with in any case.
const LINUX_FURTHER: &str = "bbr";

/// Each ACK of a pair of connections is up to so much late: four frames' time on the bottleneck, as other
/// traffic does on a real path. Without it the two keep step, and whose bursts come last loses (Floyd and
/// Jacobson, "On Traffic Phase Effects in Packet-Switched Gateways", 1992).
pub(crate) const FAIR_DELAY_NOISE: Duration = Duration::from_millis(1);

/// Runs of a pair of connections in a round: of two of Linux's one has 0.50 to 1.92 times the other's goodput at
/// 40 ms, so one run tells nothing.
pub(crate) const FAIR_RUNS: usize = 4;

/// What both sides of a pair of connections use.
const FAIR_CONTROL: &str = "cubic";

/// Which controllers the kernel has.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The parts of the bench.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// One connection by RTT, loss and buffer
    Matrix,
    /// Two connections through one bottleneck, Atlas's also over TLS
    Fairness,
    /// One connection where frames overtake each other or SACK blocks are useless
    Impaired,
}

/// What a path does besides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Impairment {
    #[default]
    None,
    /// Each frame is up to [`JITTER_MAX`] late, both ways.
    Jitter,
    /// SACK blocks name bytes that were never sent, as behind a firewall that shifts sequence numbers
    /// and forgets the blocks.
    UselessSack,
}

/// What most runs have is not stored.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whose TCP sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stack {
    Atlas,
    Linux,
    /// Atlas over TLS, whose bursts are parts of records.
    AtlasTls,
}

impl Stack {
    const ALL: [Self; 3] = [Self::Atlas, Self::Linux, Self::AtlasTls];

    fn name(self) -> &'static str {
        match self {
            Self::Atlas => "atlas",
            Self::Linux => "linux",
            Self::AtlasTls => "atlas-tls",
        }
    }
}

/// A stack with a congestion control; stored as it is displayed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Sender {
    pub(crate) stack: Stack,
    /// As Linux spells it.
    pub(crate) control: String,
}

impl Sender {
    pub(crate) fn new(stack: Stack, control: &str) -> Self {
        Self {
            stack,
            control: control.to_owned(),
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stack.name(), self.control)
    }
}

impl From<Sender> for String {
    fn from(sender: Sender) -> Self {
        sender.to_string()
    }
}

impl TryFrom<String> for Sender {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let parts = text.rsplit_once('-');
        let (stack, control) = parts.with_context(|| format!("no sender: {text}"))?;
        let found = Stack::ALL.into_iter().find(|it| it.name() == stack);
        let stack = found.with_context(|| format!("no stack: {stack}"))?;
        Ok(Self::new(stack, control))
    }
}

/// A path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) rtt_millis: u64,
    /// Frames lost at random in a million, from the server to the client.
    pub(crate) loss_ppm: u32,
    /// Tenths of bandwidth times delay.
    pub(crate) buffer_tenths: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) impairment: Impairment,
}

impl Cell {
    /// Percent.
    pub(crate) fn loss(self) -> String {
        decimal(u64::from(self.loss_ppm), 10_000)
    }

    /// In bandwidth times delay.
    pub(crate) fn buffer(self) -> String {
        decimal(self.buffer_tenths, 10)
    }

    /// Bytes of the bottleneck's buffer.
    pub(crate) fn buffer_bytes(self) -> u64 {
        RATE_BITS / 8 * self.rtt_millis / 1_000 * self.buffer_tenths / 10
    }

    /// The path; its losses are drawn from a seed of the round, the same for all senders.
    fn plan(self, seed: u64) -> PathPlan {
        let delay = Duration::from_millis(self.rtt_millis) / 2;
        let (mut forth, mut back) = (Disorder::NONE, Disorder::NONE);
        match self.impairment {
            Impairment::None => {}
            Impairment::Jitter => {
                forth.jitter_max = JITTER_MAX;
                back.jitter_max = JITTER_MAX;
            }
            Impairment::UselessSack => back.sack_shift = SACK_SHIFT,
        }
        PathPlan {
            forth: LegPlan {
                rate_bits: RATE_BITS,
                buffer_bytes: self.buffer_bytes(),
                delay,
                delay_noise: Duration::ZERO,
                loss_ppm: self.loss_ppm,
                seed,
                disorder: forth,
            },
            back: LegPlan {
                seed: !seed,
                disorder: back,
                ..LegPlan::delay_only(delay)
            },
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rtt, loss, buffer) = (self.rtt_millis, self.loss(), self.buffer());
        write!(f, "{rtt} ms, {loss} % loss, {buffer} BDP")?;
        match self.impairment {
            Impairment::None => Ok(()),
            Impairment::Jitter => write!(f, ", each frame up to {JITTER_MAX:?} late"),
            Impairment::UselessSack => write!(f, ", useless SACK blocks"),
        }
    }
}

/// `value / unit` without trailing zeros.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, mut rest) = (value / unit, value % unit);
    let mut text = whole.to_string();
    if rest > 0 {
        text.push('.');
    }
    let mut unit = unit;
    while rest > 0 {
        unit /= 10;
        text.push_str(&(rest / unit).to_string());
        rest %= unit;
    }
    text
}

/// One run to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Task {
    pub(crate) round: u64,
    pub(crate) cell: Cell,
    /// Each with one connection.
    pub(crate) senders: Vec<Sender>,
    /// Of these, the one whose client connects and asks first.
    pub(crate) first: usize,
    /// From a reply's first byte on.
    pub(crate) seconds: u64,
    /// What the losses are drawn from.
    pub(crate) seed: u64,
}

impl Task {
    /// Its path.
    pub(crate) fn path(&self) -> PathPlan {
        let mut path = self.cell.plan(self.seed);
        if self.senders.len() > 1 {
            path.back.delay_noise = FAIR_DELAY_NOISE;
        }
        path
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let senders: Vec<String> = self.senders.iter().map(ToString::to_string).collect();
        write!(f, "{}, {}", self.cell, senders.join(" beside "))
    }
}

/// What of the plan is wanted; an empty list: all.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Restriction {
    /// One round of shorter runs: minutes instead of an hour and a half
    #[arg(long = "quick")]
    pub(crate) is_quick: bool,
    /// Only this part
    #[arg(long = "only", value_enum)]
    pub(crate) part: Option<Part>,
    /// Only these round-trip times, milliseconds, comma-separated
    #[arg(long = "rtt", value_delimiter = ',')]
    pub(crate) rtt_millis: Vec<u64>,
    /// Only these rates of loss, percent, comma-separated
    #[arg(long = "loss", value_delimiter = ',')]
    pub(crate) losses: Vec<String>,
    /// Only these buffers, bandwidth times delay, comma-separated
    #[arg(long = "buffer", value_delimiter = ',')]
    pub(crate) buffers: Vec<String>,
    /// Only these senders, comma-separated, such as atlas-cubic; of the pairs the one that has just these
    #[arg(long, value_delimiter = ',')]
    pub(crate) senders: Vec<String>,
}

impl Restriction {
    fn has_cell(&self, cell: Cell) -> bool {
        let is_among =
            |wanted: &[String], text: &str| wanted.is_empty() || wanted.iter().any(|it| it == text);
        (self.rtt_millis.is_empty() || self.rtt_millis.contains(&cell.rtt_millis))
            && is_among(&self.losses, &cell.loss())
            && is_among(&self.buffers, &cell.buffer())
    }

    fn has_part(&self, part: Part) -> bool {
        self.part.is_none_or(|it| it == part)
    }

    /// Seconds of a run of one connection: long enough for some hundred round trips.
    fn seconds(&self, rtt_millis: u64) -> u64 {
        match (self.is_quick, rtt_millis > 100) {
            (false, false) => 10,
            (false, true) => 20,
            (true, false) => 4,
            (true, true) => 8,
        }
    }

    /// Seconds of a run of two connections.
    fn fair_seconds(&self) -> u64 {
        if self.is_quick { 15 } else { 60 }
    }
}

/// The senders of the matrix: every controller of Atlas, and the kernel's of the same names.
pub(crate) fn senders(available: &str) -> Vec<Sender> {
    let names: Vec<&str> = CongestionControl::ALL.map(CongestionControl::name).into();
    let atlas = names.iter().map(|name| Sender::new(Stack::Atlas, name));
    let mut of_linux = names.clone();
    if !names.contains(&LINUX_FURTHER) {
        of_linux.push(LINUX_FURTHER);
    }
    let has = |name: &&str| available.split_whitespace().any(|it| it == *name);
    let linux = of_linux.into_iter().filter(has);
    atlas
        .chain(linux.map(|name| Sender::new(Stack::Linux, name)))
        .collect()
}

/// All cells of the matrix.
pub(crate) fn matrix_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for rtt_millis in RTT_MILLIS {
        for loss_ppm in LOSS_PPM {
            for buffer_tenths in BUFFER_TENTHS {
                cells.push(Cell {
                    rtt_millis,
                    loss_ppm,
                    buffer_tenths,
                    impairment: Impairment::None,
                });
            }
        }
    }
    cells
}

/// All cells with two connections.
pub(crate) fn fair_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for rtt_millis in FAIR_RTT_MILLIS {
        for buffer_tenths in FAIR_BUFFER_TENTHS {
            cells.push(Cell {
                rtt_millis,
                loss_ppm: 0,
                buffer_tenths,
                impairment: Impairment::None,
            });
        }
    }
    cells
}

/// All cells with an impairment: without loss and with 1 %.
pub(crate) fn impaired_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for loss_ppm in [0, 10_000] {
        cells.push(Cell {
            rtt_millis: JITTER_RTT_MILLIS,
            loss_ppm,
            buffer_tenths: JITTER_BUFFER_TENTHS,
            impairment: Impairment::Jitter,
        });
        cells.push(Cell {
            rtt_millis: SACK_SHIFT_RTT_MILLIS,
            loss_ppm,
            buffer_tenths: 10,
            impairment: Impairment::UselessSack,
        });
    }
    cells
}

/// Who shares a bottleneck with whom.
pub(crate) fn pairs() -> [[Sender; 2]; 4] {
    let of = |stack| Sender::new(stack, FAIR_CONTROL);
    [
        [of(Stack::Atlas), of(Stack::Linux)],
        [of(Stack::AtlasTls), of(Stack::Linux)],
        [of(Stack::Atlas), of(Stack::Atlas)],
        [of(Stack::Linux), of(Stack::Linux)],
    ]
}

/// The runs of a round, in an order drawn from the seed.
pub(crate) fn tasks(wanted: &Restriction, round: u64, seed: u64) -> Result<Vec<Task>> {
    let available =
        fs::read_to_string(AVAILABLE).with_context(|| format!("reading {AVAILABLE}"))?;
    let senders = senders(&available);
    let mut known: Vec<String> = senders.iter().map(ToString::to_string).collect();
    known.extend(pairs().as_flattened().iter().map(ToString::to_string));
    for name in &wanted.senders {
        let is_known = known.contains(name);
        ensure!(is_known, "there is no sender {name}; there are {known:?}");
    }
    let has_sender = |sender: &&Sender| {
        wanted.senders.is_empty() || wanted.senders.contains(&sender.to_string())
    };
    let mut random = Random::new(Random::at(seed, round));
    let mut tasks = Vec::new();
    let of = |part, cells: Vec<Cell>| cells.into_iter().map(move |cell| (part, cell));
    let single = of(Part::Matrix, matrix_cells()).chain(of(Part::Impaired, impaired_cells()));
    for (part, cell) in single {
        let losses = random.next();
        if !wanted.has_part(part) || !wanted.has_cell(cell) {
            continue;
        }
        tasks.extend(senders.iter().filter(has_sender).map(|sender| Task {
            round,
            cell,
            senders: vec![sender.clone()],
            first: 0,
            seconds: wanted.seconds(cell.rtt_millis),
            seed: losses,
        }));
    }
    let fair_runs = fair_cells().into_iter();
    for (run, cell) in fair_runs.flat_map(|cell| [cell; FAIR_RUNS]).enumerate() {
        let losses = random.next();
        if !wanted.has_part(Part::Fairness) || !wanted.has_cell(cell) {
            continue;
        }
        let has_all = |pair: &[Sender; 2]| {
            let names = pair.each_ref().map(ToString::to_string);
            let is_named = |sender| names.contains(sender);
            pair.iter().all(|it| has_sender(&it)) && wanted.senders.iter().all(is_named)
        };
        let wanted_pairs = pairs().into_iter().filter(has_all);
        tasks.extend(wanted_pairs.map(|pair| Task {
            round,
            cell,
            senders: pair.to_vec(),
            // Of two of Linux's the one that asked first had 1.12 times the other's goodput (32 runs, standard error 0.06).
            first: run % 2,
            seconds: wanted.fair_seconds(),
            seed: losses,
        }));
    }
    random.shuffle(&mut tasks);
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_every_sender_once_in_an_order_of_the_seed() {
        let all = tasks(&Restriction::default(), 1, 9).unwrap();
        let again = tasks(&Restriction::default(), 1, 9).unwrap();
        assert_eq!(all, again);
        assert_ne!(all, tasks(&Restriction::default(), 1, 10).unwrap());
        let single = |cell| {
            let of_cell = all.iter().filter(move |it| it.cell == cell);
            of_cell.filter(|it| it.senders.len() == 1)
        };
        for cell in matrix_cells().into_iter().chain(impaired_cells()) {
            let seeds: Vec<u64> = single(cell).map(|it| it.seed).collect();
            assert!(seeds.windows(2).all(|pair| pair[0] == pair[1]));
            let mut names: Vec<_> = single(cell).map(ToString::to_string).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(count > CongestionControl::ALL.len());
        }
        let pairs: Vec<&Task> = all.iter().filter(|it| it.senders.len() == 2).collect();
        let count = fair_cells().len() * FAIR_RUNS * super::pairs().len();
        assert_eq!(pairs.len(), count);
        let are_swapped = pairs.iter().filter(|it| it.first == 1);
        assert_eq!(are_swapped.count(), count / 2);
    }

    #[test]
    fn a_restriction_leaves_what_it_names() {
        let wanted = Restriction {
            is_quick: true,
            rtt_millis: vec![10, 200],
            losses: vec!["0.1".to_owned()],
            buffers: vec!["0.1".to_owned(), "10".to_owned()],
            senders: vec!["atlas-cubic".to_owned()],
            part: Some(Part::Matrix),
        };
        let tasks = tasks(&wanted, 1, 0).unwrap();
        let mut names: Vec<_> = tasks.iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "10 ms, 0.1 % loss, 0.1 BDP, atlas-cubic",
                "10 ms, 0.1 % loss, 10 BDP, atlas-cubic",
                "200 ms, 0.1 % loss, 0.1 BDP, atlas-cubic",
                "200 ms, 0.1 % loss, 10 BDP, atlas-cubic",
            ]
        );
        assert!(tasks.iter().all(|it| it.seconds < 10));
        for (senders, names) in [
            ("atlas-cubic", "atlas-cubic beside atlas-cubic"),
            ("linux-cubic,atlas-cubic", "atlas-cubic beside linux-cubic"),
            (
                "atlas-tls-cubic,linux-cubic",
                "atlas-tls-cubic beside linux-cubic",
            ),
        ] {
            let wanted = Restriction {
                senders: senders.split(',').map(str::to_owned).collect(),
                part: Some(Part::Fairness),
                ..Restriction::default()
            };
            let tasks = super::tasks(&wanted, 1, 0).unwrap();
            assert_eq!(tasks.len(), fair_cells().len() * FAIR_RUNS);
            let is_pair = |task: &Task| task.to_string().ends_with(names);
            assert!(tasks.iter().all(is_pair), "{tasks:?}");
        }
        let unknown = Restriction {
            senders: vec!["atlas-cubik".to_owned()],
            ..Restriction::default()
        };
        assert!(super::tasks(&unknown, 1, 0).is_err());
    }

    #[test]
    fn linux_is_asked_for_what_atlas_has_and_for_bbr_if_it_has_them() {
        let names = |available| {
            let senders = senders(available);
            let linux = senders.iter().filter(|it| it.stack == Stack::Linux);
            linux.map(|it| it.control.clone()).collect::<Vec<_>>()
        };
        let all = names("reno bbr cubic westwood");
        assert!(all.contains(&"cubic".to_owned()) && all.contains(&"bbr".to_owned()));
        assert!(!all.contains(&"westwood".to_owned()));
        assert_eq!(names("reno"), ["reno"]);
    }

    #[test]
    fn a_sender_is_stored_by_its_name() {
        for stack in Stack::ALL {
            let sender = Sender::new(stack, "cubic");
            let text = String::from(sender.clone());
            assert_eq!(Sender::try_from(text).unwrap(), sender);
        }
        for text in ["", "cubic", "atlas", "bsd-cubic"] {
            let read = Sender::try_from(text.to_owned());
            assert!(read.is_err(), "{text}");
        }
    }

    #[test]
    fn a_buffer_is_a_share_of_bandwidth_times_delay() {
        let cell = Cell {
            rtt_millis: 40,
            loss_ppm: 1_000,
            buffer_tenths: 1,
            impairment: Impairment::None,
        };
        // 50 Mb/s in 40 ms: 250,000 bytes.
        assert_eq!(cell.buffer_bytes(), 25_000);
        assert_eq!(cell.to_string(), "40 ms, 0.1 % loss, 0.1 BDP");
        let plan = cell.plan(3);
        assert_eq!(
            plan.forth.delay + plan.back.delay,
            Duration::from_millis(40)
        );
        assert_eq!(decimal(0, 10), "0");
        assert_eq!(decimal(50_000, 10_000), "5");
        assert_eq!(decimal(1_020, 1_000), "1.02");
    }
}
