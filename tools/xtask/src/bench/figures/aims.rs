//! The aims, what was measured, and whether that meets them. Pure.
//!
//! An aim is met by the median of its rounds. What was not measured is neither met nor missed, nor
//! is what Atlas alone does at one number of connections beside another, if it is below the aim by
//! less than the rounds scatter.

use std::fmt::Write as _;

use super::Report;
use super::accounts::Accounts;
use super::plan::{Cache, Security};
use super::summary::{Comparison, Point, Spread, paired, rate, rate_over_mean};
use crate::bench::lab::Contender;

/// The work per core-second of the best rival, cold.
const WORK_PLAIN_MIN: f64 = 3.0;
const WORK_TLS_MIN: f64 = 4.0;

/// The Gb/s of the best rival, cold.
const RATE_MIN: f64 = 2.5;

/// Where every rival takes part, and none is hindered by descriptors or by the middlebox.
const FEW: u64 = 64;

/// The Gb/s of most connections, as a share of the best of the sweep.
const MOST: u64 = 16_000;
const MOST_SHARE_MIN: f64 = 0.9;

/// Fewer than so many connections cost the paper's server 13 %.
pub(super) const MANY: u64 = 4_000;

/// Worth less than this, a lead is called none: runs differ by more.
pub(super) const LEAD_MIN: f64 = 0.02;

/// What of the ceiling its stages set the whole must reach.
pub(super) const CEILING_SHARE_MIN: f64 = 0.8;

/// How an aim stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Met,
    Missed,
    /// The median is below, and the confidence interval of the mean reaches above.
    Undecided,
    NotMeasured,
}

impl Verdict {
    /// On the ratios of many rounds.
    fn of_rounds(ratio: &Spread, least: f64) -> Self {
        let is_below = |half: f64| ratio.mean + half < least;
        if ratio.median >= least {
            Self::Met
        } else if ratio.confidence_95.is_none_or(is_below) {
            Self::Missed
        } else {
            Self::Undecided
        }
    }
}

/// A line of the table.
#[derive(Debug)]
struct Aim {
    text: String,
    measured: String,
    verdict: Verdict,
}

impl Aim {
    /// By what was measured: in words, and whether it is enough.
    fn new(text: String, found: Option<(String, bool)>) -> Self {
        let verdict = |is_met| {
            if is_met {
                Verdict::Met
            } else {
                Verdict::Missed
            }
        };
        Self::judged(text, found.map(|(measured, it)| (measured, verdict(it))))
    }

    /// By what was measured, and what follows.
    fn judged(text: String, found: Option<(String, Verdict)>) -> Self {
        let (measured, verdict) = found.unwrap_or(("-".to_owned(), Verdict::NotMeasured));
        Self {
            text,
            measured,
            verdict,
        }
    }
}

/// The table, in Markdown.
pub(super) fn table(report: &Report) -> String {
    let mut out = String::from("| Aim | Measured | |\n|---|---|---|\n");
    for aim in aims(report) {
        let verdict = match aim.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
            Verdict::Undecided => "**below, within the scatter**",
            Verdict::NotMeasured => "not measured",
        };
        let _ = writeln!(out, "| {} | {} | {verdict} |", aim.text, aim.measured);
    }
    out
}

fn aims(report: &Report) -> Vec<Aim> {
    let mut aims = Vec::new();
    let both = [
        (Security::Plain, WORK_PLAIN_MIN),
        (Security::Tls, WORK_TLS_MIN),
    ];
    for (security, work_min) in both {
        let kind = security.title();
        let work = format!("{kind}, cold: {work_min} x the work per core-second of the best rival");
        let rate = format!("{kind}, cold: {RATE_MIN} x the Gb/s of the best rival");
        let best_work = |it: &Comparison| (it.work_per_core_second, it.thriftiest_rival.clone());
        let best_rate = |it: &Comparison| (it.gbps, it.fastest_rival.clone());
        aims.extend(beside_rivals(report, security, &work, work_min, best_work));
        aims.extend(beside_rivals(report, security, &rate, RATE_MIN, best_rate));
    }
    for security in [Security::Plain, Security::Tls] {
        let text = format!(
            "{}: faster from disk than rivals from the page cache, at every number of connections",
            security.title()
        );
        aims.push(Aim::new(text, cold_over_warm(report, security)));
    }
    for security in [Security::Plain, Security::Tls] {
        aims.extend(over_connections(report, security));
    }
    for security in [Security::Plain, Security::Tls] {
        let text = format!(
            "{}, cold: {:.0} % of what its stages permit two cores",
            security.title(),
            100.0 * CEILING_SHARE_MIN
        );
        aims.push(Aim::new(text, below_ceiling(report, security)));
    }
    aims
}

/// "2.53 x (2.40-2.61)".
pub(super) fn times(ratio: &Spread) -> String {
    format!("{:.2} x ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max)
}

/// An aim beside rivals is two: with few connections, and where we are best.
fn beside_rivals(
    report: &Report,
    security: Security,
    aim: &str,
    least: f64,
    figure: impl Fn(&Comparison) -> (Spread, String),
) -> [Aim; 2] {
    let cold = || {
        let all = report.comparisons.iter();
        all.filter(|it| it.cell.security == security && it.cell.cache == Cache::Cold)
    };
    let judge = |it: &Comparison| {
        let (ratio, rival) = figure(it);
        let mut measured = format!("{} {rival}", times(&ratio));
        if it.cell.connections != FEW {
            let _ = write!(measured, " at {}", thousands(it.cell.connections));
        }
        if !it.failed_rivals.is_empty() {
            let _ = write!(measured, "; {} failed there", it.failed_rivals.join(", "));
        }
        (measured, ratio.median >= least)
    };
    let few = cold().find(|it| it.cell.connections == FEW);
    let best = cold().max_by(|a, b| figure(a).0.median.total_cmp(&figure(b).0.median));
    [
        Aim::new(format!("{aim}, at {FEW} connections"), few.map(judge)),
        Aim::new(format!("{aim}, at the best of the sweep"), best.map(judge)),
    ]
}

/// Our points and the rivals' of a kind.
fn points(report: &Report, security: Security, cache: Cache) -> impl Iterator<Item = &Point> {
    let all = report.points.iter();
    all.filter(move |it| {
        it.cell.security == security && it.cell.cache == cache && !it.runs.is_empty()
    })
}

/// Our cold points in the order of connections.
fn ours(report: &Report, security: Security) -> Vec<&Point> {
    let cold = points(report, security, Cache::Cold);
    let mut own: Vec<_> = cold.filter(|it| it.server == Contender::ATLAS).collect();
    own.sort_by_key(|it| it.cell.connections);
    own
}

/// Our Gb/s from disk over the best rival's from the page cache, for each number of connections.
pub(super) fn cold_over_warm_by_connections(
    report: &Report,
    security: Security,
) -> Vec<(u64, Spread, String)> {
    let beside = |own: &&Point| {
        let warm = points(report, security, Cache::Warm);
        let rivals: Vec<&Point> = warm
            .filter(|it| !it.is_ours && it.cell.connections == own.cell.connections)
            .collect();
        let (ratio, rival) = paired(own, &rivals, rate)?;
        Some((own.cell.connections, ratio, rival.server.clone()))
    };
    ours(report, security).iter().filter_map(beside).collect()
}

fn cold_over_warm(report: &Report, security: Security) -> Option<(String, bool)> {
    let sweep = cold_over_warm_by_connections(report, security);
    let worst = sweep
        .iter()
        .min_by(|(_, a, _), (_, b, _)| a.median.total_cmp(&b.median))?;
    let (connections, ratio, rival) = worst;
    let faster = sweep.iter().filter(|(_, it, _)| it.median > 1.0).count();
    let measured = format!(
        "faster at {faster} of {}; least {} {rival} at {}",
        sweep.len(),
        times(ratio),
        thousands(*connections)
    );
    Some((measured, faster == sweep.len()))
}

/// Our sweep with distance, in words.
fn sweep_text(sweep: &[&Point]) -> String {
    let one = |it: &&Point| {
        let connections = thousands(it.cell.connections);
        format!("{connections}: {:.1}", it.gbps.median)
    };
    let all: Vec<_> = sweep.iter().map(one).collect();
    format!("{} Gb/s", all.join(", "))
}

/// Atlas alone, in the order of connections.
pub(super) fn alone(report: &Report, security: Security) -> Vec<&Point> {
    let all = report.alone.iter();
    let mut alone: Vec<_> = all
        .filter(|it| it.cell.security == security && !it.runs.is_empty())
        .collect();
    alone.sort_by_key(|it| it.cell.connections);
    alone
}

/// Our Gb/s with most connections over those of the number that was best.
pub(super) fn most_over_best(alone: &[&Point]) -> Option<Spread> {
    let most = alone.iter().find(|it| it.cell.connections == MOST)?;
    let by_mean = |a: &&&Point, b: &&&Point| a.gbps.mean.total_cmp(&b.gbps.mean);
    let best = alone.iter().max_by(by_mean).filter(|_| alone.len() > 1)?;
    Some(paired(most, &[best], rate)?.0)
}

/// Our Gb/s with few connections over the mean of those with many, for each number of few. (Beside
/// the best of the many each would look slow: the best of several is one that chance favoured.)
pub(super) fn few_over_many(alone: &[&Point]) -> Vec<(u64, Spread)> {
    let (few, many): (Vec<&Point>, Vec<&Point>) =
        alone.iter().partition(|it| it.cell.connections < MANY);
    let beside = |it: &&Point| Some((it.cell.connections, rate_over_mean(it, &many)?));
    few.iter().filter_map(beside).collect()
}

/// Two aims over connections with distance: most of them, and few.
fn over_connections(report: &Report, security: Security) -> [Aim; 2] {
    let kind = security.title();
    let alone = alone(report, security);
    let most = most_over_best(&alone).map(|ratio| {
        let measured = format!("{}: {}", times(&ratio), sweep_text(&alone));
        (measured, Verdict::of_rounds(&ratio, MOST_SHARE_MIN))
    });
    let slowest = few_over_many(&alone)
        .into_iter()
        .min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
    let few = slowest.map(|(connections, ratio)| {
        let measured = format!(
            "at least {} of their mean, at {}",
            times(&ratio),
            thousands(connections)
        );
        (measured, Verdict::of_rounds(&ratio, 1.0 - LEAD_MIN))
    });
    let share = 100.0 * MOST_SHARE_MIN;
    [
        Aim::judged(
            format!(
                "{kind}, cold: {} connections reach {share:.0} % of the best over the sweep with \
                 distance",
                thousands(MOST)
            ),
            most,
        ),
        Aim::judged(
            format!(
                "{kind}, cold: fewer than {} connections with distance are not slower than more",
                thousands(MANY)
            ),
            few,
        ),
    ]
}

fn below_ceiling(report: &Report, security: Security) -> Option<(String, bool)> {
    let ceiling = report.accounts.as_ref()?.ceiling_gbps(security);
    let own = ours(report, security);
    let best = own
        .iter()
        .max_by(|a, b| a.gbps.median.total_cmp(&b.gbps.median))?;
    let share = best.gbps.median / ceiling;
    let measured = format!(
        "{:.0} %: {:.1} of {ceiling:.1} Gb/s, at {} connections",
        100.0 * share,
        best.gbps.median,
        thousands(best.cell.connections)
    );
    Some((measured, Accounts::is_aim_met(share)?))
}

/// "16,000".
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::accounts::tests::accounts;
    use super::super::plan::Cell;
    use super::super::plan::tests::cells;
    use super::super::summary::compare;
    use super::super::summary::tests::point_at;
    use super::*;

    fn report(points: Vec<Point>) -> Report {
        Report {
            environment: Vec::new(),
            comparisons: compare(&points, Contender::ATLAS),
            accounts: None,
            points,
            alone: Vec::new(),
            disks: Vec::new(),
            real_disk: crate::bench::figures::real::Figures::default(),
        }
    }

    fn cell(security: Security, cache: Cache, connections: u64) -> Cell {
        let all = cells(security, cache);
        let found = all.into_iter().find(|it| it.connections == connections);
        found.expect("one of the sweep")
    }

    /// How the aims stand whose text has all these words.
    fn verdicts(report: &Report, words: &[&str]) -> Vec<Verdict> {
        let all = aims(report);
        let found = all
            .iter()
            .filter(|aim| words.iter().all(|word| aim.text.contains(word)));
        let found: Vec<_> = found.map(|aim| aim.verdict).collect();
        assert!(!found.is_empty(), "no aim has {words:?}");
        found
    }

    #[test]
    fn an_aim_beside_rivals_is_met_at_its_limit_and_missed_below() {
        let cold = |connections| cell(Security::Plain, Cache::Cold, connections);
        let at = |connections, ratio: f64, work: f64| {
            [
                point_at(cold(connections), "atlas", &[(ratio, 1.0)]),
                point_at(cold(connections), "h2o", &[(1.0, work)]),
            ]
        };
        let exact = report(at(64, 2.5, 3.0).into());
        assert_eq!(
            verdicts(&exact, &["plain", "Gb/s of the best"]),
            [Verdict::Met; 2]
        );
        assert_eq!(
            verdicts(&exact, &["plain", "core-second"]),
            [Verdict::Met; 2]
        );
        let below = report(at(64, 2.49, 2.99).into());
        assert_eq!(
            verdicts(&below, &["plain", "Gb/s of the best"]),
            [Verdict::Missed; 2]
        );
        assert_eq!(
            verdicts(&below, &["plain", "core-second"]),
            [Verdict::Missed; 2]
        );
        // Elsewhere it is better: only the best of the sweep knows of that.
        let mixed = report([at(64, 1.0, 1.0), at(8_000, 9.0, 9.0)].concat());
        assert_eq!(
            verdicts(&mixed, &["plain", "Gb/s of the best"]),
            [Verdict::Missed, Verdict::Met]
        );
    }

    #[test]
    fn tls_has_to_do_four_times_the_work() {
        let cold = cell(Security::Tls, Cache::Cold, 64);
        for (work, expected) in [(4.0, Verdict::Met), (3.99, Verdict::Missed)] {
            let report = report(vec![
                point_at(cold, "atlas", &[(1.0, 1.0)]),
                point_at(cold, "h2o", &[(1.0, work)]),
            ]);
            assert_eq!(verdicts(&report, &["TLS", "core-second"]), [expected; 2]);
        }
    }

    #[test]
    fn a_rival_that_failed_is_named_beside_the_ratio_that_lacks_it() {
        let cold = cell(Security::Plain, Cache::Cold, 16_000);
        let mut failed = Point::new(cold, "nginx-directio", false);
        failed.add(1, Err("too many open files".to_owned()));
        let points = vec![
            point_at(cold, "atlas", &[(9.0, 1.0)]),
            point_at(cold, "h2o", &[(1.0, 1.0)]),
            failed,
        ];
        assert!(table(&report(points)).contains("nginx-directio failed there"));
    }

    #[test]
    fn the_page_cache_must_be_beaten_everywhere() {
        let kind = |cache, connections| cell(Security::Tls, cache, connections);
        let beside = |connections, gbps: f64| {
            [
                point_at(kind(Cache::Cold, connections), "atlas", &[(gbps, 1.0)]),
                point_at(kind(Cache::Warm, connections), "atlas", &[(99.0, 1.0)]),
                point_at(kind(Cache::Warm, connections), "h2o", &[(5.0, 1.0)]),
            ]
        };
        let words = ["TLS", "page cache"];
        let all = report([beside(64, 5.1), beside(1_000, 6.0)].concat());
        assert_eq!(verdicts(&all, &words), [Verdict::Met]);
        let one = report([beside(64, 5.0), beside(1_000, 6.0)].concat());
        assert_eq!(verdicts(&one, &words), [Verdict::Missed]);
        assert!(table(&one).contains("faster at 1 of 2"), "{}", table(&one));
    }

    /// Atlas alone with distance: for each number of connections the Gb/s of its rounds.
    fn with_alone(sweep: [&[f64]; 5]) -> Report {
        let cells = cells(Security::Plain, Cache::Cold);
        let distant = cells.into_iter().filter(|it| it.is_distant);
        let point = |(cell, rounds): (Cell, &[f64])| {
            let rounds: Vec<_> = rounds.iter().map(|gbps| (*gbps, 1.0)).collect();
            point_at(cell, "atlas", &rounds)
        };
        Report {
            alone: distant.zip(sweep).map(point).collect(),
            ..report(Vec::new())
        }
    }

    const MOST_WORDS: [&str; 2] = ["plain", "16,000 connections reach"];
    const FEW_WORDS: [&str; 2] = ["plain", "fewer than 4,000"];

    #[test]
    fn atlas_alone_is_judged_at_both_ends() {
        // The mean of the many is 10 in each.
        for (gbps, most, few) in [
            ([9.8, 10.0, 10.5, 10.0, 9.5], Verdict::Met, Verdict::Met),
            ([9.8, 11.0, 10.5, 10.5, 9.0], Verdict::Missed, Verdict::Met),
            ([10.0, 9.7, 10.0, 10.0, 10.0], Verdict::Met, Verdict::Missed),
        ] {
            let found = with_alone(gbps.each_ref().map(std::slice::from_ref));
            assert_eq!(verdicts(&found, &MOST_WORDS), [most], "{gbps:?}");
            assert_eq!(verdicts(&found, &FEW_WORDS), [few], "{gbps:?}");
        }
        assert_eq!(
            verdicts(&report(Vec::new()), &MOST_WORDS),
            [Verdict::NotMeasured]
        );
    }

    #[test]
    fn what_the_scatter_of_the_rounds_hides_is_not_decided() {
        let even: &[f64] = &[10.0; 3];
        let scattered: &[f64] = &[8.9, 8.5, 9.6];
        let found = with_alone([even, even, even, even, scattered]);
        assert_eq!(verdicts(&found, &MOST_WORDS), [Verdict::Undecided]);
        assert!(table(&found).contains("within the scatter"));
        let steady: &[f64] = &[8.8, 8.75, 8.85];
        let found = with_alone([even, even, even, even, steady]);
        assert_eq!(verdicts(&found, &MOST_WORDS), [Verdict::Missed]);
        let found = with_alone([scattered, even, even, even, even]);
        assert_eq!(verdicts(&found, &FEW_WORDS), [Verdict::Undecided]);
    }

    #[test]
    fn a_ceiling_is_compared_with_if_there_is_one() {
        let cold = cell(Security::Tls, Cache::Cold, 64);
        let mut report = report(vec![point_at(cold, "atlas", &[(8.0, 1.0)])]);
        let words = ["TLS", "stages permit"];
        assert_eq!(verdicts(&report, &words), [Verdict::NotMeasured]);
        for (tls_gbps, expected) in [
            (10.0, Verdict::Met),
            (10.1, Verdict::Missed),
            // More than all: the stages were disturbed.
            (7.0, Verdict::NotMeasured),
        ] {
            report.accounts = Some(accounts(11.0, tls_gbps));
            assert_eq!(verdicts(&report, &words), [expected]);
        }
        assert_eq!(
            verdicts(&report, &["plain", "stages permit"]),
            [Verdict::NotMeasured]
        );
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        let all = aims(&report(Vec::new()));
        assert!(all.iter().all(|it| it.verdict == Verdict::NotMeasured));
    }

    #[test]
    fn thousands_are_parted() {
        let text = |number| thousands(number);
        assert_eq!(
            [text(64), text(1_000), text(16_000)],
            ["64", "1,000", "16,000"]
        );
        assert_eq!(text(1_234_567), "1,234,567");
    }
}
