//! Figures of several rounds: medians, spreads, confidence, ratios. Pure.

use serde::Serialize;

use super::plan::Cell;
use crate::bench::report::median;

/// Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom; the last stands for more.
const STUDENT_95: [f64; 9] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
];

/// One run of one server at one cell.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    /// Rate of the bodies, Gb/s.
    pub(super) gbps: f64,
    /// Busy seconds of the server's core for each GB of bodies.
    pub(super) core_seconds_per_gb: f64,
    /// Busy seconds of both cores for each GB.
    pub(super) all_core_seconds_per_gb: f64,
    /// Busy part of each core, 0 to 1.
    pub(super) server_core_busy: f64,
    pub(super) client_core_busy: f64,
    /// Bytes read from the disk from the load's start to its end, warm-up included.
    pub(super) disk_read_bytes: u64,
    /// Replies whose bytes were all compared, after the window.
    pub(super) verified: u64,
    /// The load's report, whole.
    pub(super) load: serde_json::Value,
    /// The middlebox's report, if there was one.
    pub(super) delay: Option<serde_json::Value>,
}

/// A figure over the rounds.
#[derive(Clone, Copy, Default, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The mean plus and minus this holds the true mean at 95 %, if rounds are independent and
    /// normal; none for one round.
    pub(super) confidence_95: Option<f64>,
}

impl Spread {
    #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
    pub(super) fn new(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let confidence_95 = (values.len() > 1).then(|| {
            let student = STUDENT_95
                .get(values.len() - 2)
                .or(STUDENT_95.last())
                .copied()
                .unwrap_or(f64::INFINITY);
            student * (squares / (count - 1.0)).sqrt() / count.sqrt()
        });
        Self {
            median: median(values),
            min: values.iter().copied().reduce(f64::min).unwrap_or(0.0),
            max: values.iter().copied().reduce(f64::max).unwrap_or(0.0),
            confidence_95,
        }
    }
}

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

    /// One more round, done or not.
    pub(super) fn add(&mut self, run: Result<Run, String>) {
        match run {
            Ok(run) => self.runs.push(run),
            Err(why) => return self.failures.push(why),
        }
        let spread =
            |of: fn(&Run) -> f64| Spread::new(&self.runs.iter().map(of).collect::<Vec<_>>());
        self.gbps = spread(|run| run.gbps);
        self.core_seconds_per_gb = spread(|run| run.core_seconds_per_gb);
        self.server_core_busy = spread(|run| run.server_core_busy);
    }
}

/// Atlas beside the best rival at one cell, by medians. Best at each figure may be another one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    #[serde(flatten)]
    pub(super) cell: Cell,
    /// Our Gb/s over the rival's, and which.
    pub(super) gbps: f64,
    pub(super) fastest_rival: String,
    /// The rival's core-seconds per GB over ours, and which.
    pub(super) work_per_core_second: f64,
    pub(super) thriftiest_rival: String,
}

/// One comparison for each cell where `ours` and some rival have been measured.
pub(super) fn compare(points: &[Point], ours: &str) -> Vec<Comparison> {
    let measured = || points.iter().filter(|point| !point.runs.is_empty());
    measured()
        .filter(|point| point.server == ours)
        .filter_map(|own| {
            let rivals = || measured().filter(|point| !point.is_ours && point.cell == own.cell);
            let fastest = rivals().max_by(|a, b| a.gbps.median.total_cmp(&b.gbps.median))?;
            let cost = |point: &Point| point.core_seconds_per_gb.median;
            let thriftiest = rivals().min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
            Some(Comparison {
                cell: own.cell,
                gbps: own.gbps.median / fastest.gbps.median,
                fastest_rival: fastest.server.clone(),
                work_per_core_second: cost(thriftiest) / cost(own),
                thriftiest_rival: thriftiest.server.clone(),
            })
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{Cell, cells};
    use super::*;

    pub(in super::super) fn cell() -> Cell {
        *cells(true, &[64]).first().expect("a cell")
    }

    pub(in super::super) fn point(server: &str, is_ours: bool, gbps: f64, cost: f64) -> Point {
        let mut point = Point::new(cell(), server, is_ours);
        point.add(Ok(Run {
            gbps,
            core_seconds_per_gb: cost,
            all_core_seconds_per_gb: cost,
            server_core_busy: 0.5,
            client_core_busy: 0.5,
            disk_read_bytes: 0,
            verified: 64,
            load: serde_json::Value::Null,
            delay: None,
        }));
        point
    }

    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-3, "{found}, not {expected}");
    }

    #[test]
    fn one_round_has_no_confidence_and_three_have_students() {
        let one = Spread::new(&[5.0]);
        assert_eq!(one.confidence_95, None);
        about(one.median, 5.0);
        let three = Spread::new(&[1.0, 2.0, 3.0]);
        about(
            three.confidence_95.expect("three rounds"),
            4.303 / 3_f64.sqrt(),
        );
        about(three.min, 1.0);
        about(three.max, 3.0);
        // More rounds than the table has: its last value.
        let many = Spread::new(&[1.0, 2.0].repeat(10));
        assert!(many.confidence_95.expect("many rounds") < 0.3);
    }

    #[test]
    fn a_failed_round_is_told_and_not_counted() {
        let mut point = point("atlas", true, 10.0, 0.5);
        point.add(Err("fell over".to_owned()));
        assert_eq!(point.failures, ["fell over"]);
        assert_eq!(point.runs.len(), 1);
        about(point.gbps.median, 10.0);
    }

    #[test]
    fn the_best_rival_of_each_figure_counts_and_one_that_failed_does_not() {
        let points = [
            point("atlas", true, 10.0, 0.2),
            point("other-of-ours", true, 99.0, 0.01),
            point("fast", false, 5.0, 1.0),
            point("thrifty", false, 4.0, 0.4),
            Point::new(cell(), "failed", false),
        ];
        let found = compare(&points, "atlas");
        assert_eq!(found.len(), 1);
        about(found[0].gbps, 2.0);
        about(found[0].work_per_core_second, 2.0);
        assert_eq!(found[0].fastest_rival, "fast");
        assert_eq!(found[0].thriftiest_rival, "thrifty");
    }

    #[test]
    fn without_rivals_nothing_is_compared() {
        assert!(compare(&[point("atlas", true, 1.0, 1.0)], "atlas").is_empty());
    }
}
