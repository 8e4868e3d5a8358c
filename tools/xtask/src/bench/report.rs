//! What a bench prints: a table for people, JSON for keeping.

use std::fmt::Write as _;

use ::load::Latencies;
use anyhow::Result;
use serde::Serialize;

use super::load::{CoreSeconds, Cost, Window, cores};

/// One run of one server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) cost: Cost,
    /// Seconds the hypervisor took from both cores.
    pub(super) steal_seconds: f64,
    /// Bytes read from the disk over bytes served: below 1, something was cached.
    pub(super) disk_read_ratio: f64,
    /// Body bytes in a TLS record, in the mean; 0 without TLS.
    pub(super) record_bytes_mean: f64,
    /// What it was computed from.
    pub(super) measured: Measured,
}

/// What one run found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// From the first request to the last byte, seconds.
    pub(super) seconds: f64,
    /// Body bytes received in that time; over TLS, before they were sealed.
    pub(super) body_bytes: u64,
    /// TLS records they came in, heads and tickets included; 0 without TLS.
    pub(super) records: u64,
    /// Bytes read from the objects' disk in that time.
    pub(super) disk_read_bytes: u64,
    /// Complete replies with status 200 and the right length. Anything else ends the bench.
    pub(super) replies: u64,
    /// Objects fetched again afterwards and found right, byte by byte.
    pub(super) verified: u64,
    pub(super) server_core_seconds: CoreSeconds,
    pub(super) client_core_seconds: CoreSeconds,
    /// Delays of the connections and the replies, microseconds.
    pub(super) latency: Latencies,
}

impl Run {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes of one run are far below 2^52"
    )]
    pub(super) fn new(window: Window, verified: u64) -> Result<Self> {
        let Window {
            report,
            disk_read_bytes,
        } = window;
        let bytes = report.body_bytes as f64;
        let (server, client) = cores(&report)?;
        Ok(Self {
            cost: Cost::new(&report)?,
            steal_seconds: server.steal + client.steal,
            disk_read_ratio: disk_read_bytes as f64 / bytes,
            record_bytes_mean: match report.records {
                0 => 0.0,
                records => bytes / records as f64,
            },
            measured: Measured {
                seconds: report.seconds,
                body_bytes: report.body_bytes,
                records: report.records,
                disk_read_bytes,
                replies: report.replies,
                verified,
                server_core_seconds: server,
                client_core_seconds: client,
                latency: report.latency,
            },
        })
    }
}

/// All runs of one server, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rival<R> {
    pub(super) name: String,
    /// Measured against the others, not one of them.
    #[serde(skip)]
    pub(super) is_ours: bool,
    pub(super) runs: Vec<R>,
}

impl<R> Rival<R> {
    pub(super) fn new(name: &str, is_ours: bool) -> Self {
        Self {
            name: name.to_owned(),
            is_ours,
            runs: Vec::new(),
        }
    }

    /// The median of a figure of the rounds.
    pub(super) fn middle(&self, of: fn(&R) -> f64) -> f64 {
        median(&self.runs.iter().map(of).collect::<Vec<_>>())
    }

    /// The least and the greatest of a figure, for people.
    pub(super) fn spread(&self, of: fn(&R) -> f64, decimals: usize) -> String {
        let least = self.runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let greatest = self.runs.iter().map(of).fold(0.0, f64::max);
        format!("({least:.decimals$}-{greatest:.decimals$})")
    }
}

impl Rival<Run> {
    /// Its line of the table.
    fn row(&self) -> String {
        // A run with fewer replies or a wrong byte has ended the bench: all runs did the same.
        let same_work = self.runs.first().map(|run| &run.measured);
        format!(
            "{:<24} {:>6.2}  {:>13}  {:>9.3}  {:>9.3}  {:>5.0}%  {:>5.0}%  {:>7.2}  {:>8.0}%  \
             {:>8.0}  {:>7}  {:>8}",
            self.name,
            self.middle(|run| run.cost.gbps),
            self.spread(|run| run.cost.gbps, 1),
            self.middle(|run| run.cost.core_seconds_per_gb),
            self.middle(|run| run.cost.all_core_seconds_per_gb),
            100.0 * self.middle(|run| run.cost.server_core_busy),
            100.0 * self.middle(|run| run.cost.client_core_busy),
            self.middle(|run| run.steal_seconds),
            100.0 * self.middle(|run| run.disk_read_ratio),
            self.middle(|run| run.record_bytes_mean),
            same_work.map_or(0, |measured| measured.replies),
            same_work.map_or(0, |measured| measured.verified),
        )
    }
}

/// One of ours against the best of the others in the same round.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ratios {
    /// Which of ours.
    pub(super) name: String,
    /// Gb/s over the highest of the rivals', one each round.
    pub(super) gbps: Vec<f64>,
    /// The rivals' lowest core-seconds per GB over ours, one each round.
    pub(super) work_per_core_second: Vec<f64>,
    /// The same, with the busy time of both cores.
    pub(super) work_per_second_of_all: Vec<f64>,
}

/// A whole bench.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// What it ran on and with: `(name, value)`.
    pub(super) environment: Vec<(String, String)>,
    pub(super) rivals: Vec<Rival<Run>>,
    pub(super) ratios: Vec<Ratios>,
}

impl Report {
    pub(super) fn new(environment: Vec<(String, String)>, rivals: Vec<Rival<Run>>) -> Self {
        let ratios = rivals
            .iter()
            .filter(|rival| rival.is_ours)
            .map(|ours| Ratios {
                name: ours.name.clone(),
                gbps: over_highest(ours, &rivals, |run| run.cost.gbps),
                work_per_core_second: lowest_over(ours, &rivals, |run| {
                    run.cost.core_seconds_per_gb
                }),
                work_per_second_of_all: lowest_over(ours, &rivals, |run| {
                    run.cost.all_core_seconds_per_gb
                }),
            })
            .collect();
        Self {
            environment,
            rivals,
            ratios,
        }
    }

    /// The table.
    pub(super) fn text(&self) -> String {
        let mut out = environment_text(&self.environment);
        let _ = writeln!(
            out,
            "\n{:<24} {:>6}  {:>13}  {:>9}  {:>9}  {:>6}  {:>6}  {:>7}  {:>9}  {:>8}  {:>7}  {:>8}",
            "median of rounds",
            "Gb/s",
            "(min-max)",
            "core-s/GB",
            "all cores",
            "server",
            "client",
            "steal s",
            "disk read",
            "B/record",
            "replies",
            "verified"
        );
        for rival in &self.rivals {
            let _ = writeln!(out, "{}", rival.row());
        }
        for ratios in &self.ratios {
            if ratios.gbps.is_empty() {
                continue;
            }
            let _ = writeln!(
                out,
                "\n{} / best rival of the round, median of {} rounds: \
                 {:.2} x the Gb/s, {:.2} x the work per core-second ({:.2} x with both cores \
                 counted)",
                ratios.name,
                ratios.gbps.len(),
                median(&ratios.gbps),
                median(&ratios.work_per_core_second),
                median(&ratios.work_per_second_of_all)
            );
        }
        out
    }
}

/// What a bench ran on and with, a line each.
pub(super) fn environment_text(environment: &[(String, String)]) -> String {
    let mut out = String::new();
    for (name, value) in environment {
        let _ = writeln!(out, "{name:<12} {value}");
    }
    out
}

/// The middle value; of an even number of values, the mean of the middle two. 0 for none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Our figure over the others' highest, round by round: noise that lasts a round hits all alike.
pub(super) fn over_highest<R>(
    ours: &Rival<R>,
    rivals: &[Rival<R>],
    figure: fn(&R) -> f64,
) -> Vec<f64> {
    rounds(ours, rivals, figure)
        .filter_map(|(own, others)| Some(own / others.into_iter().reduce(f64::max)?))
        .collect()
}

/// The others' lowest figure over ours, round by round.
pub(super) fn lowest_over<R>(
    ours: &Rival<R>,
    rivals: &[Rival<R>],
    figure: fn(&R) -> f64,
) -> Vec<f64> {
    rounds(ours, rivals, figure)
        .filter_map(|(own, others)| Some(others.into_iter().reduce(f64::min)? / own))
        .collect()
}

/// For each round our figure, and the figures of those that are not ours.
fn rounds<'a, R>(
    ours: &'a Rival<R>,
    rivals: &'a [Rival<R>],
    figure: fn(&R) -> f64,
) -> impl Iterator<Item = (f64, Vec<f64>)> + 'a {
    ours.runs.iter().enumerate().map(move |(round, run)| {
        let others = rivals
            .iter()
            .filter(|rival| !rival.is_ours)
            .filter_map(|rival| rival.runs.get(round).map(figure));
        (figure(run), others.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::report as load_report;
    use super::*;

    fn run(body_bytes: u64, busy: f64) -> Run {
        let window = Window {
            report: load_report(2.0, body_bytes, [busy, 0.0]),
            disk_read_bytes: body_bytes,
        };
        Run::new(window, 1).expect("a whole report")
    }

    #[test]
    fn medians_of_none_odd_and_even() {
        assert!(median(&[]).abs() < f64::EPSILON);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn figures_are_decimal_and_ratios_take_the_best_rival_of_each_round() {
        let atlas = run(4_000_000_000, 1.0);
        assert!((atlas.cost.gbps - 16.0).abs() < 1e-9);
        assert!((atlas.cost.core_seconds_per_gb - 0.25).abs() < 1e-9);
        let rival = |name: &str, is_ours, runs| Rival {
            name: name.to_owned(),
            is_ours,
            runs,
        };
        let report = Report::new(
            Vec::new(),
            vec![
                rival("atlas", true, vec![atlas.clone(), atlas]),
                // Faster than all, and no rival of the first: it is ours too.
                rival("other", true, vec![run(8_000_000_000, 1.0); 2]),
                rival(
                    "a",
                    false,
                    vec![run(1_000_000_000, 0.5), run(2_000_000_000, 1.0)],
                ),
                rival(
                    "b",
                    false,
                    vec![run(2_000_000_000, 2.0), run(1_000_000_000, 1.0)],
                ),
            ],
        );
        let names: Vec<_> = report.ratios.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["atlas", "other"]);
        for (ratios, expected) in report.ratios.iter().zip([2.0, 4.0]) {
            for found in [&ratios.gbps, &ratios.work_per_core_second] {
                assert_eq!(found.len(), 2);
                for ratio in found {
                    assert!((ratio - expected).abs() < 1e-9, "{ratios:?}");
                }
            }
        }
    }

    #[test]
    fn without_rivals_there_are_no_ratios() {
        let mut alone = Rival::new("atlas", true);
        alone.runs.push(run(1, 1.0));
        let report = Report::new(Vec::new(), vec![alone]);
        assert!(report.ratios[0].gbps.is_empty());
    }
}
