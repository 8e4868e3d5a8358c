//! Figures of several rounds: medians, spreads, confidence, ratios round by round. Pure.

use serde::Serialize;

use super::plan::Cell;
use crate::bench::report::median;

/// Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom; the last stands for more.
const STUDENT_95: [f64; 9] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
];

/// None without a degree of freedom.
fn student_95(freedom: usize) -> Option<f64> {
    let index = freedom.checked_sub(1)?;
    STUDENT_95.get(index).or(STUDENT_95.last()).copied()
}

/// One run of one server at one cell.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    /// Which round, from 1.
    pub(super) round: usize,
    /// Rate of the bodies, Gb/s.
    pub(super) gbps: f64,
    /// Busy seconds of the server's core for each GB of bodies.
    pub(super) core_seconds_per_gb: f64,
    /// Busy seconds of both cores for each GB.
    pub(super) all_core_seconds_per_gb: f64,
    /// Busy part of each core, 0 to 1.
    pub(super) server_core_busy: f64,
    pub(super) client_core_busy: f64,
    /// What the hypervisor took of the core it took most of, 0 to 1.
    pub(super) stolen_share: f64,
    /// Bytes read from the disk from the load's start to its end, warm-up included.
    pub(super) disk_read_bytes: u64,
    /// Replies whose bytes were all compared, after the window.
    pub(super) verified: u64,
    /// The load's report, whole.
    pub(super) load: load::Report,
    /// The middlebox's report, if there was one.
    pub(super) delay: Option<serde_json::Value>,
    /// Atlas's own counters at its end, warm-up and sample included; rivals have none.
    pub(super) counters: Option<serde_json::Value>,
}

/// A figure, or a ratio of two, over the rounds.
#[derive(Clone, Copy, Default, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    /// The mean plus and minus this holds the true mean at 95 %: of figures by the scatter of a
    /// whole sweep ([`pool`]), of ratios by their own.
    pub(super) confidence_95: Option<f64>,
}

impl Spread {
    #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
    pub(super) fn new(values: &[f64]) -> Self {
        Self {
            median: median(values),
            min: values.iter().copied().reduce(f64::min).unwrap_or(0.0),
            max: values.iter().copied().reduce(f64::max).unwrap_or(0.0),
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            confidence_95: None,
        }
    }

    /// A ratio, of which each round has its own.
    #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
    fn of_ratios(ratios: &[f64]) -> Self {
        let spread = Self::new(ratios);
        let freedom = ratios.len().saturating_sub(1);
        let squares = ratios.iter().map(|it| (it - spread.mean).powi(2));
        let variance = squares.sum::<f64>() / freedom.max(1) as f64;
        let half = |student| student * (variance / ratios.len() as f64).sqrt();
        Self {
            confidence_95: student_95(freedom).map(half),
            ..spread
        }
    }
}

/// A figure of a run, and where a point keeps its spread.
type Figure = (fn(&Run) -> f64, fn(&mut Point) -> &mut Spread);

/// The figures that are plotted.
const FIGURES: [Figure; 3] = [
    (|run| run.gbps, |point| &mut point.gbps),
    (
        |run| run.core_seconds_per_gb,
        |point| &mut point.core_seconds_per_gb,
    ),
    (
        |run| run.server_core_busy,
        |point| &mut point.server_core_busy,
    ),
];

/// All rounds of one server at one cell.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    #[serde(flatten)]
    pub(super) cell: Cell,
    pub(super) server: String,
    #[serde(skip)]
    pub(super) is_ours: bool,
    pub(super) gbps: Spread,
    pub(super) core_seconds_per_gb: Spread,
    pub(super) server_core_busy: Spread,
    pub(super) runs: Vec<Run>,
    /// Rounds that it could not do, and why.
    pub(super) failures: Vec<String>,
}

impl Point {
    pub(super) fn new(cell: Cell, server: &str, is_ours: bool) -> Self {
        Self {
            cell,
            server: server.to_owned(),
            is_ours,
            gbps: Spread::default(),
            core_seconds_per_gb: Spread::default(),
            server_core_busy: Spread::default(),
            runs: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// A round, done or not.
    pub(super) fn add(&mut self, round: usize, run: Result<Run, String>) {
        match run {
            Ok(run) => self.runs.push(Run { round, ..run }),
            Err(why) => self.failures.push(format!("round {round}: {why}")),
        }
        for (figure, spread) in FIGURES {
            let values: Vec<f64> = self.runs.iter().map(figure).collect();
            *spread(self) = Spread::new(&values);
        }
    }
}

/// Fills in the confidence. Two or three rounds know little of their own scatter; so the relative
/// scatter of a server is taken as one over a sweep (same security, same cache), and its degrees
/// of freedom are summed. Rounds count as independent and normal.
pub(super) fn pool(points: &mut [Point]) {
    let kind = |point: &Point| (point.cell.security, point.cell.cache, point.server.clone());
    for (figure, spread) in FIGURES {
        let halves: Vec<Option<f64>> = points
            .iter()
            .map(|point| {
                let sweep = points.iter().filter(|it| kind(it) == kind(point));
                half_interval(point, sweep, figure)
            })
            .collect();
        for (point, half) in points.iter_mut().zip(halves) {
            spread(point).confidence_95 = half;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
fn half_interval<'a>(
    point: &Point,
    sweep: impl Iterator<Item = &'a Point>,
    figure: fn(&Run) -> f64,
) -> Option<f64> {
    let mean = |point: &Point| {
        let count = point.runs.len();
        (count > 0).then(|| point.runs.iter().map(figure).sum::<f64>() / count as f64)
    };
    let (mut squares, mut freedom) = (0.0, 0);
    for each in sweep {
        let Some(middle) = mean(each).filter(|middle| *middle > 0.0) else {
            continue;
        };
        let deviations = each.runs.iter().map(|run| figure(run) / middle - 1.0);
        squares += deviations.map(|it| it * it).sum::<f64>();
        freedom += each.runs.len() - 1;
    }
    let student = student_95(freedom)?;
    let scatter = (squares / freedom as f64).sqrt();
    Some(student * scatter * mean(point)? / (point.runs.len() as f64).sqrt())
}

/// Atlas beside the best rival of each round at one cell. Best at each figure may be another one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    #[serde(flatten)]
    pub(super) cell: Cell,
    /// Our Gb/s over the rival's, and which it was most often.
    pub(super) gbps: Spread,
    pub(super) fastest_rival: String,
    /// The rival's core-seconds per GB over ours, and which.
    pub(super) work_per_core_second: Spread,
    pub(super) thriftiest_rival: String,
    /// Rivals that failed here in all rounds.
    pub(super) failed_rivals: Vec<String>,
}

/// Our Gb/s over theirs.
pub(super) fn rate(ours: &Run, theirs: &Run) -> f64 {
    ours.gbps / theirs.gbps
}

/// Their core-seconds per GB over ours.
pub(super) fn work(ours: &Run, theirs: &Run) -> f64 {
    theirs.core_seconds_per_gb / ours.core_seconds_per_gb
}

/// A ratio to the best of the others in each round, and who that was most often; none if they have
/// no round in common. What disturbs the machine for a round disturbs both sides.
pub(super) fn paired<'a>(
    own: &Point,
    others: &[&'a Point],
    ratio: fn(&Run, &Run) -> f64,
) -> Option<(Spread, &'a Point)> {
    let (mut ratios, mut wins) = (Vec::new(), vec![0; others.len()]);
    for run in &own.runs {
        let best = others
            .iter()
            .enumerate()
            .filter_map(|(index, other)| {
                let theirs = other.runs.iter().find(|it| it.round == run.round)?;
                Some((index, ratio(run, theirs)))
            })
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((index, ratio)) = best {
            ratios.push(ratio);
            wins[index] += 1;
        }
    }
    let most = wins.iter().max()?;
    let best = others.get(wins.iter().position(|it| it == most)?)?;
    (!ratios.is_empty()).then(|| (Spread::of_ratios(&ratios), *best))
}

/// Our Gb/s of each round over the mean of the others' in it; none if no round has them all.
#[expect(clippy::cast_precision_loss, reason = "a handful of points")]
pub(super) fn rate_over_mean(own: &Point, others: &[&Point]) -> Option<Spread> {
    let beside = |run: &Run| {
        let in_round = |it: &&Point| {
            let mut theirs = it.runs.iter();
            theirs.find(|it| it.round == run.round).map(|it| it.gbps)
        };
        let all: Option<Vec<f64>> = others.iter().map(in_round).collect();
        let all = all.filter(|it| !it.is_empty())?;
        Some(run.gbps * all.len() as f64 / all.iter().sum::<f64>())
    };
    let ratios: Vec<f64> = own.runs.iter().filter_map(beside).collect();
    (!ratios.is_empty()).then(|| Spread::of_ratios(&ratios))
}

/// One comparison for each cell where `ours` and some rival have been measured.
pub(super) fn compare(points: &[Point], ours: &str) -> Vec<Comparison> {
    let compare = |own: &Point| {
        let here = points.iter().filter(|it| it.cell == own.cell);
        let rivals: Vec<&Point> = here.filter(|it| !it.is_ours).collect();
        let (gbps, fastest) = paired(own, &rivals, rate)?;
        let (work_per_core_second, thriftiest) = paired(own, &rivals, work)?;
        let failed = rivals.iter().filter(|it| it.runs.is_empty());
        Some(Comparison {
            cell: own.cell,
            gbps,
            fastest_rival: fastest.server.clone(),
            work_per_core_second,
            thriftiest_rival: thriftiest.server.clone(),
            failed_rivals: failed.map(|it| it.server.clone()).collect(),
        })
    };
    let own = points.iter().filter(|point| point.server == ours);
    own.filter_map(compare).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::tests::cells;
    use super::super::plan::{Cache, Cell, Security};
    use super::*;

    pub(in super::super) fn cell() -> Cell {
        cells(Security::Plain, Cache::Cold)[0]
    }

    pub(in super::super) fn run(gbps: f64, cost: f64) -> Run {
        Run {
            round: 0,
            gbps,
            core_seconds_per_gb: cost,
            all_core_seconds_per_gb: cost,
            server_core_busy: 0.5,
            client_core_busy: 0.5,
            stolen_share: 0.0,
            disk_read_bytes: 0,
            verified: 64,
            load: load::Report::default(),
            delay: None,
            counters: None,
        }
    }

    /// A point of so many rounds, with their Gb/s and core-s/GB.
    pub(in super::super) fn point_at(cell: Cell, server: &str, rounds: &[(f64, f64)]) -> Point {
        let mut point = Point::new(cell, server, server.starts_with("atlas"));
        for (index, (gbps, cost)) in rounds.iter().enumerate() {
            point.add(index + 1, Ok(run(*gbps, *cost)));
        }
        point
    }

    pub(in super::super) fn point(server: &str, gbps: f64, cost: f64) -> Point {
        point_at(cell(), server, &[(gbps, cost)])
    }

    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-3, "{found}, not {expected}");
    }

    #[test]
    fn a_spread_has_a_middle_and_two_ends() {
        let three = Spread::new(&[1.0, 6.0, 2.0]);
        for (found, expected) in [
            (three.median, 2.0),
            (three.mean, 3.0),
            (three.min, 1.0),
            (three.max, 6.0),
        ] {
            about(found, expected);
        }
    }

    #[test]
    fn one_round_has_no_confidence_and_three_have_students() {
        let mut points = [point("h2o", 5.0, 1.0)];
        pool(&mut points);
        assert_eq!(points[0].gbps.confidence_95, None);
        let mut points = [point_at(
            cell(),
            "h2o",
            &[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)],
        )];
        pool(&mut points);
        let half = points[0].gbps.confidence_95.expect("three rounds");
        about(half, 4.303 / 3_f64.sqrt());
        let half = points[0].core_seconds_per_gb.confidence_95;
        about(half.expect("three rounds"), 0.0);
    }

    #[test]
    fn the_scatter_of_a_sweep_is_one_and_another_servers_is_another() {
        let sweep = cells(Security::Plain, Cache::Cold);
        let warm = cells(Security::Plain, Cache::Warm)[0];
        // Each scatters by 10 % around its mean: the sum of squares is 0.02, twice.
        let mut points = [
            point_at(sweep[0], "h2o", &[(9.0, 1.0), (11.0, 1.0)]),
            point_at(sweep[1], "h2o", &[(18.0, 1.0), (22.0, 1.0)]),
            point_at(sweep[2], "h2o", &[(10.0, 1.0)]),
            point_at(warm, "h2o", &[(1.0, 1.0), (9.0, 1.0)]),
            point_at(sweep[0], "lighttpd", &[(1.0, 1.0), (9.0, 1.0)]),
            Point::new(sweep[3], "h2o", false),
        ];
        pool(&mut points);
        let half = |index: usize| points[index].gbps.confidence_95;
        let scatter = (0.04_f64 / 2.0).sqrt();
        about(
            half(0).expect("pooled"),
            4.303 * scatter * 10.0 / 2_f64.sqrt(),
        );
        about(
            half(1).expect("pooled"),
            4.303 * scatter * 20.0 / 2_f64.sqrt(),
        );
        about(half(2).expect("by the others"), 4.303 * scatter * 10.0);
        about(half(3).expect("alone"), 12.706 * 4.0);
        assert_eq!(half(5), None, "nothing was measured");
    }

    #[test]
    fn a_failed_round_is_told_and_not_counted() {
        let mut point = point("atlas", 10.0, 0.5);
        point.add(2, Err("fell over".to_owned()));
        assert_eq!(point.failures, ["round 2: fell over"]);
        assert_eq!(point.runs.len(), 1);
        about(point.gbps.median, 10.0);
    }

    #[test]
    fn ratios_are_of_each_round_and_not_of_medians() {
        // The machine halves its speed from round to round: the ratio of medians would say 2.
        let own = point_at(cell(), "atlas", &[(40.0, 0.1), (20.0, 0.2), (10.0, 0.4)]);
        let slow = point_at(cell(), "slow", &[(10.0, 0.4), (5.0, 0.8), (2.5, 1.6)]);
        let (ratio, best) = paired(&own, &[&slow], rate).expect("paired");
        assert_eq!((ratio.min, ratio.max), (4.0, 4.0));
        assert_eq!(best.server, "slow");
        let (ratio, _) = paired(&own, &[&slow], work).expect("paired");
        about(ratio.median, 4.0);
    }

    #[test]
    fn the_best_of_each_round_counts_and_rounds_that_one_side_lacks_do_not() {
        let own = point_at(cell(), "atlas", &[(10.0, 1.0), (10.0, 1.0), (10.0, 1.0)]);
        let mut often = Point::new(cell(), "often", false);
        let mut once = Point::new(cell(), "once", false);
        often.add(1, Ok(run(5.0, 1.0)));
        often.add(2, Err("fell over".to_owned()));
        once.add(1, Ok(run(20.0, 1.0)));
        often.add(4, Ok(run(100.0, 1.0)));
        let (ratio, best) = paired(&own, &[&often, &once], rate).expect("one round");
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
        assert_eq!(best.server, "once");
        assert!(paired(&own, &[], rate).is_none());
        let failed = Point::new(cell(), "failed", false);
        assert!(paired(&own, &[&failed], rate).is_none());
    }

    #[test]
    fn the_best_rival_of_each_figure_counts_and_one_that_failed_is_named() {
        let points = [
            point("atlas", 10.0, 0.2),
            point("atlas-emulated", 99.0, 0.01),
            point("fast", 5.0, 1.0),
            point("thrifty", 4.0, 0.4),
            Point::new(cell(), "failed", false),
        ];
        let found = compare(&points, "atlas");
        assert_eq!(found.len(), 1);
        about(found[0].gbps.median, 2.0);
        about(found[0].work_per_core_second.median, 2.0);
        assert_eq!(found[0].fastest_rival, "fast");
        assert_eq!(found[0].thriftiest_rival, "thrifty");
        assert_eq!(found[0].failed_rivals, ["failed"]);
    }

    #[test]
    fn ratios_have_a_confidence_of_their_own() {
        let own = point_at(cell(), "atlas", &[(8.0, 1.0), (10.0, 1.0), (12.0, 1.0)]);
        let even = point_at(cell(), "even", &[(10.0, 1.0), (10.0, 1.0), (10.0, 1.0)]);
        let (ratio, _) = paired(&own, &[&even], rate).expect("paired");
        about(
            ratio.confidence_95.expect("three"),
            4.303 * 0.2 / 3_f64.sqrt(),
        );
        let once = point_at(cell(), "once", &[(10.0, 1.0)]);
        let (ratio, _) = paired(&own, &[&once], rate).expect("paired");
        assert_eq!(ratio.confidence_95, None);
    }

    #[test]
    fn the_mean_of_others_is_of_the_same_round_and_of_all_of_them() {
        let own = point_at(cell(), "atlas", &[(10.0, 1.0), (9.0, 1.0), (99.0, 1.0)]);
        let one = point_at(cell(), "one", &[(10.0, 1.0), (12.0, 1.0), (1.0, 1.0)]);
        let other = point_at(cell(), "other", &[(30.0, 1.0), (6.0, 1.0)]);
        let ratio = rate_over_mean(&own, &[&one, &other]).expect("two rounds");
        assert_eq!((ratio.min, ratio.max), (0.5, 1.0));
        assert!(rate_over_mean(&own, &[]).is_none());
        let failed = Point::new(cell(), "failed", false);
        assert!(rate_over_mean(&own, &[&one, &failed]).is_none());
    }

    #[test]
    fn without_rivals_nothing_is_compared() {
        assert!(compare(&[point("atlas", 1.0, 1.0)], "atlas").is_empty());
    }
}
