//! A fleet of 1,000 edges, a library of 10,000,000 titles of 1 GB, and an edge lost for good each minute of an hour.
//!
//! `cargo run --package atlas-placement --example fleet -- 1.0 2 20`: the exponent of Zipf's law, the least copies of a
//! title, and the stride: ranks up to 100,000 are all looked at, of those behind them every 20th stands for 20. With 1
//! it takes minutes and is exact. Each edge has room for 8 TB and fills at 1.2 Gb/s. What is held is what is asked for
//! most, popular titles on more edges.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it prints what it finds, by numbers that are small"
)]

use placement::{Member, Placement, copies_for_share};

const EDGES: usize = 1_000;
const TITLES: u32 = 10_000_000;
const TITLE_GB: f64 = 1.0;
const EDGE_GB: f64 = 8_000.0;
const FILL_GB_A_SECOND: f64 = 1.2 / 8.0;
const MINUTES: usize = 60;
/// No holder gets more requests of one title than this share of an edge's mean.
const HELD_SHARE_MAX: f64 = 0.02;
const RANKS_ALL: u32 = 100_000;
/// Of each title's ranked edges, those kept behind its holders: more losses than that do not fall on one title.
const fn spare(copies: usize) -> usize {
    8 + copies / 8
}

/// A title that is looked at.
struct Title {
    rank: u32,
    /// How many titles it stands for.
    count: f64,
    /// Their share of all requests.
    share: f64,
    copies: usize,
    /// Edges, the holders and those behind them.
    ranked: Box<[u16]>,
}

struct Fleet {
    lost: Vec<bool>,
    titles: Vec<Title>,
}

impl Fleet {
    fn new(exponent: f64, least: usize, stride: u32, placement: &Placement) -> Self {
        let weight = |rank: u32| f64::from(rank).powf(-exponent);
        let all: f64 = (1..=TITLES).map(weight).sum();
        let title = |rank: u32, count: u32| {
            let share = weight(rank) / all;
            let copies = copies_for_share(share, EDGES, HELD_SHARE_MAX, least);
            let ranked = placement.holders(&name_of(rank), copies + spare(copies));
            Title {
                rank,
                count: f64::from(count),
                share: share * f64::from(count),
                copies,
                ranked: ranked.into_iter().map(|edge| edge as u16).collect(),
            }
        };
        // The last rank that could be held.
        let room = EDGES as f64 * EDGE_GB / TITLE_GB / least as f64;
        let last = TITLES.min(room as u32);
        let head = (1..=RANKS_ALL).map(|rank| title(rank, 1));
        let tail = (RANKS_ALL + stride.div_ceil(2)..=last).step_by(stride as usize);
        let tail = tail.map(|rank| title(rank, stride));
        Self {
            lost: vec![false; EDGES],
            titles: head.chain(tail).collect(),
        }
    }

    fn edges(&self) -> usize {
        self.lost.iter().filter(|lost| !**lost).count()
    }

    /// How many of the titles fit, the most popular ones.
    fn held(&self) -> usize {
        let mut room = self.edges() as f64 * EDGE_GB;
        let fits = |title: &&Title| {
            room -= title.count * title.copies as f64 * TITLE_GB;
            room >= 0.0
        };
        self.titles.iter().take_while(fits).count()
    }

    fn holders<'a>(&'a self, title: &'a Title) -> impl Iterator<Item = usize> + 'a {
        self.alive(title).take(title.copies)
    }

    /// Bytes and requests of each edge: the largest of them over their mean.
    fn balance(&self) -> (f64, f64) {
        let (mut bytes, mut requests) = (vec![0.0; EDGES], vec![0.0; EDGES]);
        for title in &self.titles[..self.held()] {
            for edge in self.holders(title) {
                bytes[edge] += title.count;
                requests[edge] += title.share / title.copies as f64;
            }
        }
        let most = |of: &[f64]| of.iter().fold(0.0_f64, |most, it| most.max(*it));
        let even = |of: &[f64]| most(of) / (of.iter().sum::<f64>() / self.edges() as f64);
        (even(&bytes), even(&requests))
    }

    fn hit_ratio(&self) -> f64 {
        self.titles[..self.held()].iter().map(|it| it.share).sum()
    }

    /// Loses an edge. Bytes that others fetch, the longest that one of them takes, the share of requests that miss
    /// meanwhile.
    fn lose(&mut self, edge: usize) -> (f64, f64, f64) {
        let before: Vec<usize> = self.titles.iter().map(|it| self.next(it, edge)).collect();
        self.lost[edge] = true;
        let mut received = vec![0.0; EDGES];
        let mut missed = 0.0;
        for (title, to) in self.titles[..self.held()].iter().zip(before) {
            if to != usize::MAX {
                received[to] += title.count * TITLE_GB;
                missed += title.share / title.copies as f64;
            }
        }
        let most = received.iter().fold(0.0_f64, |most, it| most.max(*it));
        (received.iter().sum(), most / FILL_GB_A_SECOND, missed)
    }

    /// Who holds a title in an edge's place, if that holds it.
    fn next(&self, title: &Title, edge: usize) -> usize {
        let is_held = self.holders(title).any(|it| it == edge);
        let next = self.alive(title).nth(title.copies);
        next.filter(|_| is_held).unwrap_or(usize::MAX)
    }

    fn alive<'a>(&'a self, title: &'a Title) -> impl Iterator<Item = usize> + 'a {
        let edges = title.ranked.iter().map(|edge| usize::from(*edge));
        edges.filter(|edge| !self.lost[*edge])
    }
}

fn name_of(rank: u32) -> String {
    format!("title/{rank}")
}

fn members() -> Vec<Member> {
    let member = |number: usize| Member {
        capacity_bytes: (EDGE_GB * 1e9) as u64,
        ..Member::new(
            format!("edge-{number:04}"),
            format!("https://edge-{number:04}.example"),
        )
    };
    (0..EDGES).map(member).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let exponent = arguments.next().map_or(1.0, |it| it.parse().unwrap());
    let least = arguments.next().map_or(2, |it| it.parse().unwrap());
    let stride = arguments.next().map_or(20, |it| it.parse().unwrap());
    let all = members();
    let mut fleet = Fleet::new(exponent, least, stride, &Placement::new(&all));
    let (bytes, requests) = fleet.balance();
    let held = &fleet.titles[..fleet.held()];
    let terabytes = held
        .iter()
        .map(|it| it.count * it.copies as f64)
        .sum::<f64>()
        * TITLE_GB
        / 1e3;
    let held: f64 = held.iter().map(|it| it.count).sum();
    println!(
        "{EDGES} edges of {EDGE_GB} GB, {TITLES} titles, Zipf {exponent}, at least {least} copies"
    );
    println!(
        "titles held: {held:.0}; of the most popular one {} copies",
        fleet.titles[0].copies
    );
    println!("hit ratio: {:.4}", fleet.hit_ratio());
    println!("largest edge over the mean: bytes {bytes:.3}, requests {requests:.3}");

    let (mut moved, mut slowest, mut worst) = (Vec::new(), 0.0_f64, 1.0_f64);
    for minute in 0..MINUTES {
        // Any edge: placement does not know their numbers.
        let edge = minute * 617 % EDGES;
        let (gigabytes, seconds, missed) = fleet.lose(edge);
        moved.push(gigabytes);
        slowest = slowest.max(seconds);
        worst = worst.min(fleet.hit_ratio() - missed * (seconds / 60.0).min(1.0));
    }
    let most = moved.iter().fold(0.0_f64, |most, it| most.max(*it));
    let mean = moved.iter().sum::<f64>() / moved.len() as f64;
    println!("an edge lost each minute, {MINUTES} in all:");
    println!("moved for each: mean {mean:.0} GB, most {most:.0} GB, of {terabytes:.0} TB held");
    println!("fetched again within {slowest:.0} s; hit ratio of the worst minute {worst:.4}");
    println!("hit ratio at the end: {:.4}", fleet.hit_ratio());
    let (bytes, requests) = fleet.balance();
    println!("largest edge over the mean: bytes {bytes:.3}, requests {requests:.3}");

    // What was told by ranks is what a placement of the edges that are left says.
    let left: Vec<Member> = (all.into_iter().zip(&fleet.lost))
        .filter_map(|(member, lost)| (!lost).then_some(member))
        .collect();
    let placement = Placement::new(&left);
    for title in fleet.titles.iter().step_by(997) {
        let holders = placement.holders(&name_of(title.rank), title.copies);
        let names = holders.into_iter().map(|it| left[it].name.clone());
        let told = fleet.holders(title).map(|it| format!("edge-{it:04}"));
        assert!(names.eq(told), "{}", title.rank);
    }
}
