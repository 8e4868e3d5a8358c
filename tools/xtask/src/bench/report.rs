//! What a bench prints: a table for people, JSON for keeping.

use std::fmt::Write as _;

use serde::Serialize;

use super::client::Measured;

/// Bits in a gigabit, bytes in a gigabyte: decimal, as networks count.
const GIGA: f64 = 1e9;

/// One run of one server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    /// Rate of the bodies, Gb/s.
    pub(crate) gbps: f64,
    /// Busy seconds of the server's core for each GB of bodies.
    pub(crate) core_seconds_per_gb: f64,
    /// Busy seconds of both cores for each GB of bodies: the client and the disk's copying, which
    /// are alike for all, and whatever a server gets done for it on the other core.
    pub(crate) all_core_seconds_per_gb: f64,
    /// Busy part of the server's core, 0 to 1.
    pub(crate) server_core_busy: f64,
    /// Busy part of the client's core, 0 to 1.
    pub(crate) client_core_busy: f64,
    /// Seconds the hypervisor took from both cores.
    pub(crate) steal_seconds: f64,
    /// Bytes read from the disk over bytes served: below 1, something was cached.
    pub(crate) disk_read_ratio: f64,
    /// What it was computed from.
    pub(crate) measured: Measured,
}

impl Run {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes of one run are far below 2^52"
    )]
    pub(crate) fn new(measured: Measured) -> Self {
        let gigabytes = measured.body_bytes as f64 / GIGA;
        let (server, client) = (measured.server_core, measured.client_core);
        Self {
            gbps: gigabytes * 8.0 / measured.seconds,
            core_seconds_per_gb: server.busy_seconds() / gigabytes,
            all_core_seconds_per_gb: (server.busy_seconds() + client.busy_seconds()) / gigabytes,
            server_core_busy: server.busy_seconds() / measured.seconds,
            client_core_busy: client.busy_seconds() / measured.seconds,
            steal_seconds: server.steal_seconds() + client.steal_seconds(),
            disk_read_ratio: measured.disk_read_bytes as f64 / measured.body_bytes as f64,
            measured,
        }
    }
}

/// All runs of one server, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rival {
    pub(crate) name: String,
    pub(crate) runs: Vec<Run>,
}

impl Rival {
    /// Its line of the table.
    fn row(&self) -> String {
        let column = |of: fn(&Run) -> f64| self.runs.iter().map(of).collect::<Vec<_>>();
        let middle = |of| median(&column(of));
        let gbps = column(|run| run.gbps);
        let spread = format!(
            "({:.1}-{:.1})",
            gbps.iter().copied().fold(f64::INFINITY, f64::min),
            gbps.iter().copied().fold(0.0, f64::max)
        );
        // A run with fewer replies or a wrong byte has ended the bench: all runs did the same.
        let same_work = self.runs.first().map(|run| &run.measured);
        format!(
            "{:<24} {:>6.2}  {spread:>13}  {:>9.3}  {:>9.3}  {:>5.0}%  {:>5.0}%  {:>7.2}  {:>8.0}%  \
             {:>7}  {:>8}",
            self.name,
            median(&gbps),
            middle(|run| run.core_seconds_per_gb),
            middle(|run| run.all_core_seconds_per_gb),
            100.0 * middle(|run| run.server_core_busy),
            100.0 * middle(|run| run.client_core_busy),
            middle(|run| run.steal_seconds),
            100.0 * middle(|run| run.disk_read_ratio),
            same_work.map_or(0, |measured| measured.replies),
            same_work.map_or(0, |measured| measured.verified),
        )
    }
}

/// Atlas against the best nginx of the same round.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Ratios {
    /// Gb/s over the highest of the rivals', one each round.
    pub(crate) gbps: Vec<f64>,
    /// The rivals' lowest core-seconds per GB over ours, one each round.
    pub(crate) work_per_core_second: Vec<f64>,
    /// The same, with the busy time of both cores.
    pub(crate) work_per_second_of_all: Vec<f64>,
}

/// A whole bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// What it ran on and with: `(name, value)`.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) rivals: Vec<Rival>,
    pub(crate) ratios: Ratios,
}

impl Report {
    pub(crate) fn new(environment: Vec<(String, String)>, rivals: Vec<Rival>) -> Self {
        let ratios = ratios(&rivals);
        Self {
            environment,
            rivals,
            ratios,
        }
    }

    /// The table.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.environment {
            let _ = writeln!(out, "{name:<12} {value}");
        }
        let _ = writeln!(
            out,
            "\n{:<24} {:>6}  {:>13}  {:>9}  {:>9}  {:>6}  {:>6}  {:>7}  {:>9}  {:>7}  {:>8}",
            "median of rounds",
            "Gb/s",
            "(min-max)",
            "core-s/GB",
            "all cores",
            "server",
            "client",
            "steal s",
            "disk read",
            "replies",
            "verified"
        );
        for rival in &self.rivals {
            let _ = writeln!(out, "{}", rival.row());
        }
        if !self.ratios.gbps.is_empty() {
            let _ = writeln!(
                out,
                "\natlas / best nginx of the round, median of {} rounds: \
                 {:.2} x the Gb/s, {:.2} x the work per core-second ({:.2} x with both cores counted)",
                self.ratios.gbps.len(),
                median(&self.ratios.gbps),
                median(&self.ratios.work_per_core_second),
                median(&self.ratios.work_per_second_of_all)
            );
        }
        out
    }
}

/// The middle value; of an even number of values, the mean of the middle two. 0 for none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Atlas over the best rival, round by round: noise that lasts a round hits both alike.
fn ratios(rivals: &[Rival]) -> Ratios {
    let mut ratios = Ratios::default();
    let Some(atlas) = rivals.iter().find(|rival| rival.name == super::ATLAS) else {
        return ratios;
    };
    for (round, run) in atlas.runs.iter().enumerate() {
        let others = rivals
            .iter()
            .filter(|rival| rival.name != super::ATLAS)
            .filter_map(|rival| rival.runs.get(round));
        let fastest = others.clone().map(|run| run.gbps).fold(0.0, f64::max);
        let cheapest = |cost: fn(&Run) -> f64| {
            others.clone().map(cost).fold(f64::INFINITY, f64::min) / cost(run)
        };
        if fastest > 0.0 {
            ratios.gbps.push(run.gbps / fastest);
            let server = cheapest(|run| run.core_seconds_per_gb);
            ratios.work_per_core_second.push(server);
            let all = cheapest(|run| run.all_core_seconds_per_gb);
            ratios.work_per_second_of_all.push(all);
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::super::cores::CoreTime;
    use super::*;

    fn run(body_bytes: u64, busy: u64) -> Run {
        Run::new(Measured {
            seconds: 2.0,
            body_bytes,
            disk_read_bytes: body_bytes,
            replies: 1,
            verified: 1,
            server_core: CoreTime {
                busy,
                idle: 0,
                steal: 0,
            },
            client_core: CoreTime::default(),
        })
    }

    #[test]
    fn medians_of_none_odd_and_even() {
        assert!(median(&[]).abs() < f64::EPSILON);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn figures_are_decimal_and_ratios_take_the_best_rival_of_each_round() {
        let atlas = run(4_000_000_000, 100);
        assert!((atlas.gbps - 16.0).abs() < 1e-9);
        assert!((atlas.core_seconds_per_gb - 0.25).abs() < 1e-9);
        let rival = |name: &str, runs| Rival {
            name: name.to_owned(),
            runs,
        };
        let found = ratios(&[
            rival(super::super::ATLAS, vec![atlas.clone(), atlas]),
            rival("a", vec![run(1_000_000_000, 50), run(2_000_000_000, 100)]),
            rival("b", vec![run(2_000_000_000, 200), run(1_000_000_000, 100)]),
        ]);
        for (ratio, expected) in found.gbps.iter().zip([2.0, 2.0]) {
            assert!((ratio - expected).abs() < 1e-9, "{found:?}");
        }
        for (ratio, expected) in found.work_per_core_second.iter().zip([2.0, 2.0]) {
            assert!((ratio - expected).abs() < 1e-9, "{found:?}");
        }
    }
}
