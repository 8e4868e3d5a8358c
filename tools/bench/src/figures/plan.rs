//! What is measured, how often, and in which order.
//!
//! A round holds each pair of point and server once, in an order drawn at random: nobody is always
//! first, and what the machine does beside us falls on everybody. It refuses servers that are not
//! known. Bounded by: the tables below.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use testbed::random::Random;

use super::cell::Cell;
use crate::wire::{PACED_WARM_UP_REPLIES, WINDOW_SECONDS};

/// Rounds of the points that are quoted: so many that the least and the greatest of a server's values
/// are an interval of 95 % for their median (`crate::statistics`).
pub(crate) const ROUNDS_QUOTED: usize = 6;

/// Rounds of all others.
const ROUNDS: usize = 2;

/// Connections of the points that are quoted.
const CONNECTIONS_QUOTED: u32 = 1000;

/// Few connections, at which all servers are measured too.
const CONNECTIONS_FEW: u32 = 64;

/// Many connections, at which several are: each turn takes a minute. nginx has up to two descriptors for each, and a process may
/// have 20,000 where this bench was written.
const CONNECTIONS_MANY: u32 = 8_000;

/// Twice as many, in plaintext, of those that can hold them.
const CONNECTIONS_MOST: u32 = 16_000;

/// Shares of requests for cached objects, per cent, beside 0.
const CACHED_PERCENT: [u8; 2] = [50, 100];

/// Losses, packets in a million.
const LOSSES_PPM: [u32; 3] = [1_000, 10_000, 20_000];

/// Connections that lose packets: the windows of 1,000, a dozen packets with 1 %, would not fill Atlas's core.
const CONNECTIONS_LOSING: u32 = 2_000;

/// Viewers, and how often each asks for an object, in seconds.
const VIEWERS: [(u32, u32); 3] = [(1_000, 4), (8_000, 16), (100_000, 200)];

/// Viewers up to whom plaintext and every server that can be the best are measured.
const VIEWERS_FEW_MAX: u32 = 8_000;

/// Servers that can hold more: descriptors are counted for each process.
const HOLDING: [&str; 2] = [ATLAS, "nginx-sendfile-workers"];

/// Ourselves.
pub(crate) const ATLAS: &str = "atlas";

/// Every server, ourselves first.
pub(crate) const SERVERS: [&str; 9] = [
    ATLAS,
    "nginx-sendfile",
    "nginx-sendfile-threads",
    "nginx-sendfile-workers",
    "nginx-directio",
    "nginx-directio-threads",
    "h2o",
    "lighttpd",
    TRAFFIC_SERVER,
];

/// The one that reads from a cache of its own on a raw disk, and is never warm.
pub(crate) const TRAFFIC_SERVER: &str = "trafficserver";

/// Those that can be the best where a few are enough.
const FEW: [&str; 3] = [ATLAS, "nginx-sendfile-threads", "nginx-sendfile-workers"];

/// Those that can be the best with many connections.
const SEVERAL: [&str; 4] = [
    ATLAS,
    "nginx-sendfile-threads",
    "nginx-sendfile-workers",
    "nginx-directio-threads",
];

/// Those that can be the best out of the page cache.
const CACHING: [&str; 6] = [
    ATLAS,
    "nginx-sendfile",
    "nginx-sendfile-threads",
    "nginx-sendfile-workers",
    "h2o",
    "lighttpd",
];

/// How long a turn takes beside its window, about: start, connections, warm-up, end.
const TURN_TIME: Duration = Duration::from_secs(3);

/// Connections for which a second more is needed, to connect, to warm up and to hold five replies.
const CONNECTIONS_A_SECOND: u32 = 250;

/// What restricts a plan.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Restriction {
    /// 64 and 1,000 connections, one round: minutes instead of more than an hour
    #[arg(long = "quick")]
    pub(crate) is_quick: bool,
    /// So many rounds of everything (default: 6 of what is quoted, 2 of the rest; with --quick 1)
    #[arg(long)]
    rounds: Option<usize>,
    /// Only these numbers of connections, comma-separated
    #[arg(long, value_delimiter = ',')]
    connections: Vec<u32>,
    /// Only these servers, comma-separated
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Only points whose text has all these words, comma-separated, such as TLS or cold
    #[arg(long = "only", value_delimiter = ',')]
    words: Vec<String>,
}

/// One point and who is measured there.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) cell: Cell,
    pub(crate) servers: Vec<&'static str>,
    pub(crate) rounds: usize,
}

/// All points.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) points: Vec<Point>,
}

/// One server at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appointment {
    pub(crate) cell: Cell,
    pub(crate) server: &'static str,
    /// From 1.
    pub(crate) round: usize,
}

impl Plan {
    /// What is measured under a restriction.
    pub(crate) fn new(restriction: &Restriction) -> Result<Self> {
        if let Some(name) = restriction
            .servers
            .iter()
            .find(|name| !SERVERS.contains(&name.as_str()))
        {
            bail!(
                "no server is called {name}: choose from {}",
                SERVERS.join(", ")
            );
        }
        let points = if restriction.is_quick {
            quick_points()
        } else {
            all_points()
        };
        let is_wanted = |point: &Point| {
            let text = point.cell.to_string();
            let numbers = &restriction.connections;
            (numbers.is_empty() || numbers.contains(&point.cell.connections))
                && restriction.words.iter().all(|word| text.contains(word))
        };
        let points: Vec<Point> = points
            .into_iter()
            .filter(is_wanted)
            .map(|point| Point {
                rounds: restriction.rounds.unwrap_or(point.rounds),
                servers: point
                    .servers
                    .into_iter()
                    .filter(|name| {
                        restriction.servers.is_empty()
                            || restriction.servers.iter().any(|it| it == name)
                    })
                    .collect(),
                ..point
            })
            .filter(|point| !point.servers.is_empty())
            .collect();
        if points.is_empty() {
            bail!("nothing of the plan is left: `--list` tells what there is");
        }
        Ok(Self { points })
    }

    /// Rounds there are at most.
    pub(crate) fn rounds(&self) -> usize {
        self.points
            .iter()
            .map(|it| it.rounds)
            .max()
            .unwrap_or_default()
    }

    /// A round in the order in which a seed has it.
    pub(crate) fn round(&self, round: usize, seed: u64) -> Vec<Appointment> {
        let mut all: Vec<Appointment> = self
            .points
            .iter()
            .filter(|point| round <= point.rounds)
            .flat_map(|point| {
                let cell = point.cell;
                point.servers.iter().map(move |server| Appointment {
                    cell,
                    server,
                    round,
                })
            })
            .collect();
        let mut random = Random::new(seed.wrapping_add(round as u64));
        random.shuffle(&mut all);
        all
    }

    /// How long it will take, about.
    pub(crate) fn estimate(&self) -> Duration {
        let of = |point: &Point| {
            let turns = u32::try_from(point.rounds * point.servers.len()).unwrap_or(u32::MAX);
            turn_time(&point.cell) * turns
        };
        self.points.iter().map(of).sum()
    }
}

/// How long one turn takes, about.
pub(crate) fn turn_time(cell: &Cell) -> Duration {
    let seconds = WINDOW_SECONDS.max(cell.every_seconds)
        + PACED_WARM_UP_REPLIES * cell.every_seconds
        + cell.connections / CONNECTIONS_A_SECOND;
    TURN_TIME + Duration::from_secs(seconds.into())
}

fn quick_points() -> Vec<Point> {
    let mut points = Vec::new();
    for is_tls in [false, true] {
        for connections in [CONNECTIONS_FEW, CONNECTIONS_QUOTED] {
            points.push(point(Cell::cold(is_tls, connections), &SERVERS, 1));
        }
    }
    let warm = Cell {
        cached_percent: 100,
        ..Cell::cold(false, CONNECTIONS_QUOTED)
    };
    points.push(point(warm, &CACHING, 1));
    points
}

fn all_points() -> Vec<Point> {
    let mut points = Vec::new();
    for is_tls in [false, true] {
        let quoted = Cell::cold(is_tls, CONNECTIONS_QUOTED);
        points.push(point(quoted, &SERVERS, ROUNDS_QUOTED));
        let few = Cell::cold(is_tls, CONNECTIONS_FEW);
        points.push(point(few, &SERVERS, ROUNDS));
        let many = Cell::cold(is_tls, CONNECTIONS_MANY);
        points.push(point(many, &SEVERAL, ROUNDS));
        for cached_percent in CACHED_PERCENT {
            let cell = Cell {
                cached_percent,
                ..quoted
            };
            let servers: &[_] = if cached_percent == 100 {
                &CACHING
            } else {
                &FEW
            };
            points.push(point(cell, servers, ROUNDS));
        }
        for (connections, every_seconds) in VIEWERS {
            // Most viewers once, and over TLS, as they come; no rival may have as many descriptors.
            let are_few = connections <= VIEWERS_FEW_MAX;
            if !are_few && !is_tls {
                continue;
            }
            let cell = Cell {
                connections,
                every_seconds,
                ..quoted
            };
            let (servers, rounds): (&[_], _) = if are_few {
                (&FEW, ROUNDS)
            } else {
                (&[ATLAS], 1)
            };
            points.push(point(cell, servers, rounds));
        }
    }
    let most = Cell::cold(false, CONNECTIONS_MOST);
    points.push(point(most, &HOLDING, 1));
    for loss_ppm in LOSSES_PPM {
        for (is_tls, rounds) in [(false, ROUNDS), (true, 1)] {
            let cell = Cell {
                loss_ppm,
                ..Cell::cold(is_tls, CONNECTIONS_LOSING)
            };
            points.push(point(cell, &FEW, rounds));
        }
    }
    points
}

fn point(cell: Cell, servers: &[&'static str], rounds: usize) -> Point {
    Point {
        cell,
        servers: servers.to_vec(),
        rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_plan_takes_at_most_ninety_minutes_and_the_quick_one_twelve() {
        let of = |is_quick| {
            let restriction = Restriction {
                is_quick,
                ..Restriction::default()
            };
            Plan::new(&restriction).unwrap().estimate().as_secs() / 60
        };
        assert!(of(false) <= 90, "{} min", of(false));
        assert!(of(true) <= 12, "{} min", of(true));
    }

    #[test]
    fn what_is_quoted_has_rounds_for_an_interval_of_95_percent() {
        let plan = Plan::new(&Restriction::default()).unwrap();
        for is_tls in [false, true] {
            let cell = Cell::cold(is_tls, CONNECTIONS_QUOTED);
            let point = plan.points.iter().find(|it| it.cell == cell).unwrap();
            assert_eq!(point.servers, SERVERS);
            let values = (0..point.rounds).map(|_| 1.0);
            let median = crate::statistics::Median::new(values).unwrap();
            assert!(median.coverage >= crate::statistics::COVERAGE_WANTED);
        }
    }

    #[test]
    fn a_round_is_a_permutation_that_its_seed_decides() {
        let plan = Plan::new(&Restriction::default()).unwrap();
        let first = plan.round(1, 7);
        assert_eq!(first, plan.round(1, 7));
        assert_ne!(first, plan.round(1, 8));
        let turns: usize = plan.points.iter().map(|it| it.servers.len()).sum();
        assert_eq!(first.len(), turns);
        let in_plan = |it: &Appointment| {
            let found = plan.points.iter().find(|point| point.cell == it.cell);
            found.is_some_and(|point| point.servers.contains(&it.server))
        };
        assert!(first.iter().all(in_plan));
        // The third round is of what is quoted only.
        assert_eq!(plan.round(3, 7).len(), 2 * SERVERS.len());
        assert_eq!(plan.round(ROUNDS_QUOTED + 1, 7), []);
        assert_eq!(plan.rounds(), ROUNDS_QUOTED);
    }

    #[test]
    fn a_restriction_leaves_what_it_names() {
        let of = |restriction: Restriction| Plan::new(&restriction);
        let plan = of(Restriction {
            connections: vec![64],
            servers: vec!["h2o".to_owned(), ATLAS.to_owned()],
            words: vec!["TLS".to_owned()],
            rounds: Some(5),
            ..Restriction::default()
        })
        .unwrap();
        assert_eq!(plan.points.len(), 1);
        assert_eq!(plan.points[0].cell, Cell::cold(true, 64));
        assert_eq!(plan.points[0].servers, [ATLAS, "h2o"]);
        assert_eq!(plan.rounds(), 5);
        let unknown = vec!["apache".to_owned()];
        let error = of(Restriction {
            servers: unknown,
            ..Restriction::default()
        });
        assert!(error.unwrap_err().to_string().contains("apache"));
        let nothing = of(Restriction {
            connections: vec![3],
            ..Restriction::default()
        });
        assert!(nothing.unwrap_err().to_string().contains("--list"));
    }
}
