//! The table for the terminal and the page for keeping. Pure.

use std::fmt::Write as _;

use super::Report;
use super::plan::{Cache, Security};
use super::summary::{Comparison, Point, Spread};
use crate::bench::lab::Contender;
use crate::bench::report::environment_text;

/// Worth less than this much more than ours, a rival's lead is called none: runs differ by more.
const LEAD_MIN: f64 = 0.02;

/// The plots, as `bench/plot.py` names them, and the figures of the paper they stand beside.
const PLOTS: [(&str, &str); 6] = [
    ("figure-1", "1: plaintext by cache"),
    ("figure-2", "2: TLS by cache"),
    ("figure-11a", "11a: plaintext, Gb/s by connections"),
    (
        "figure-11b",
        "11b: plaintext, the server's core by connections",
    ),
    ("figure-13a", "13a: TLS, Gb/s by connections"),
    ("figure-13b", "13b: TLS, the server's core by connections"),
];

/// What the paper says, and where it lets itself be compared with: its machine had 8 cores and
/// 80 Gb/s of network, so shares and ratios carry over and Gb/s do not.
struct Saying {
    figure: &'static str,
    said: &'static str,
    measured: fn(&Report) -> String,
}

const SAYINGS: [Saying; 6] = [
    Saying {
        figure: "1",
        said: "plaintext from disk: the tuned stack 1.85 x the stock one (72, 39 Gb/s; 8 cores)",
        measured: |report| best(report, Security::Plain, Cache::Cold),
    },
    Saying {
        figure: "2",
        said: "TLS from disk 0.69 x of TLS from cache (47, 68 Gb/s)",
        measured: |report| rivals_cold_over_warm(report, Security::Tls),
    },
    Saying {
        figure: "11a",
        said: "plaintext: Atlas as fast or 1.15 x, on half the cores",
        measured: |report| range(report, Security::Plain, Cache::Cold),
    },
    Saying {
        figure: "11a",
        said: "below 4,000 connections 13 % are lost",
        measured: |report| few_over_many(report, Security::Plain),
    },
    Saying {
        figure: "13a",
        said: "TLS from disk: 1.53 x the Gb/s on half the cores (72, 47 Gb/s)",
        measured: |report| range(report, Security::Tls, Cache::Cold),
    },
    Saying {
        figure: "13a",
        said: "throughput falls only slightly with more connections",
        measured: |report| last_over_best(report, Security::Tls),
    },
];

fn of(report: &Report, security: Security, cache: Cache) -> impl Iterator<Item = &Comparison> {
    let all = report.comparisons.iter();
    all.filter(move |it| it.cell.security == security && it.cell.cache == cache)
}

/// Where nothing of the kind was measured.
fn none() -> String {
    "not measured".to_owned()
}

/// The comparison with the highest ratio of Gb/s.
fn best(report: &Report, security: Security, cache: Cache) -> String {
    let best = of(report, security, cache).max_by(|a, b| a.gbps.total_cmp(&b.gbps));
    best.map_or_else(none, |it| {
        format!(
            "Atlas {:.2} x {} at {} connections",
            it.gbps, it.fastest_rival, it.cell.connections
        )
    })
}

/// From the lowest to the highest ratios over the sweep.
fn range(report: &Report, security: Security, cache: Cache) -> String {
    let spread = |figure: fn(&Comparison) -> f64| {
        let values: Vec<f64> = of(report, security, cache).map(figure).collect();
        (!values.is_empty()).then(|| Spread::new(&values))
    };
    let (Some(gbps), Some(work)) = (spread(|it| it.gbps), spread(|it| it.work_per_core_second))
    else {
        return none();
    };
    format!(
        "{:.2}-{:.2} x the Gb/s of the best rival, {:.2}-{:.2} x the work per core-second",
        gbps.min, gbps.max, work.min, work.max
    )
}

/// The fastest rival's cold Gb/s over its warm ones.
fn rivals_cold_over_warm(report: &Report, security: Security) -> String {
    let fastest = |cache| {
        let rivals = report.points.iter().filter(move |it| {
            !it.is_ours && it.cell.security == security && it.cell.cache == cache
        });
        rivals.map(|it| it.gbps.median).reduce(f64::max)
    };
    match (fastest(Cache::Cold), fastest(Cache::Warm)) {
        (Some(cold), Some(warm)) if warm > 0.0 => {
            format!("rivals {:.2} x ({cold:.1}, {warm:.1} Gb/s)", cold / warm)
        }
        _ => none(),
    }
}

/// Our cold sweep with distant clients, by connections.
fn sweep(report: &Report, security: Security) -> Vec<(u64, f64)> {
    let ours = report.points.iter().filter(|it| {
        it.server == Contender::ATLAS
            && it.cell.security == security
            && it.cell.cache == Cache::Cold
            && it.cell.is_distant
            && !it.runs.is_empty()
    });
    ours.map(|it| (it.cell.connections, it.gbps.median))
        .collect()
}

fn highest(sweep: &[(u64, f64)]) -> Option<f64> {
    sweep.iter().map(|(_, gbps)| *gbps).reduce(f64::max)
}

fn few_over_many(report: &Report, security: Security) -> String {
    let (few, many): (Vec<_>, Vec<_>) = sweep(report, security)
        .into_iter()
        .partition(|(connections, _)| *connections < 4_000);
    match (highest(&few), highest(&many)) {
        (Some(few), Some(many)) => format!("{:.2} x of the best from 4,000 on", few / many),
        _ => none(),
    }
}

fn last_over_best(report: &Report, security: Security) -> String {
    let sweep = sweep(report, security);
    match (sweep.last(), highest(&sweep)) {
        (Some((connections, last)), Some(best)) if sweep.len() > 1 => format!(
            "at {connections} connections {:.0} % of its best",
            100.0 * last / best
        ),
        _ => none(),
    }
}

/// Where a rival did better than we, a line each.
fn slower(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for it in &report.comparisons {
        let place = format!(
            "{}, {}, {} connections",
            it.cell.security.name(),
            it.cell.cache.name(),
            it.cell.connections
        );
        if it.gbps < 1.0 - LEAD_MIN {
            lines.push(format!(
                "{place}: {:.2} x the Gb/s of {}",
                it.gbps, it.fastest_rival
            ));
        }
        if it.work_per_core_second < 1.0 - LEAD_MIN {
            lines.push(format!(
                "{place}: {:.2} x the work per core-second of {}",
                it.work_per_core_second, it.thriftiest_rival
            ));
        }
    }
    let ours = report.points.iter().filter(|it| it.is_ours);
    lines.extend(ours.flat_map(|it| {
        it.failures.iter().map(move |failure| {
            format!(
                "{} failed: {}, {}, {} connections: {failure}",
                it.server,
                it.cell.security.name(),
                it.cell.cache.name(),
                it.cell.connections
            )
        })
    }));
    lines
}

/// The table, a line for each server at each cell.
fn table(points: &[Point]) -> String {
    let mut out = format!(
        "{:<5} {:<4} {:>6}  {:<24} {:>6} {:>13} {:>7}  {:>9} {:>13}  {:>6}  failures\n",
        "",
        "",
        "conns",
        "median of rounds",
        "Gb/s",
        "(min-max)",
        "+-95 %",
        "core-s/GB",
        "(min-max)",
        "server"
    );
    for point in points {
        let Point {
            gbps,
            core_seconds_per_gb: cost,
            cell,
            ..
        } = point;
        let confidence = gbps
            .confidence_95
            .map_or_else(|| "-".to_owned(), |half| format!("{half:.1}"));
        let _ = writeln!(
            out,
            "{:<5} {:<4} {:>6}  {:<24} {:>6.2} {:>13} {confidence:>7}  {:>9.3} {:>13}  {:>5.0}%  {}",
            cell.security.name(),
            cell.cache.name(),
            cell.connections,
            point.server,
            gbps.median,
            format!("({:.1}-{:.1})", gbps.min, gbps.max),
            cost.median,
            format!("({:.2}-{:.2})", cost.min, cost.max),
            100.0 * point.server_core_busy.median,
            point.failures.len(),
        );
    }
    out
}

/// What is printed.
pub(super) fn text(report: &Report) -> String {
    let mut out = environment_text(&report.environment);
    let _ = writeln!(out, "\n{}", table(&report.points));
    for it in &report.comparisons {
        let _ = writeln!(
            out,
            "atlas / best rival, {} {} {:>6} connections: {:.2} x the Gb/s ({}), {:.2} x the work \
             per core-second ({})",
            it.cell.security.name(),
            it.cell.cache.name(),
            it.cell.connections,
            it.gbps,
            it.fastest_rival,
            it.work_per_core_second,
            it.thriftiest_rival
        );
    }
    out
}

/// What is kept, in Markdown; plots are in the folder `plots` beside it.
pub(super) fn page(report: &Report, plots: &str) -> String {
    let mut out = String::from("# `cargo xtask bench figures`\n\n## Where Atlas is slower\n");
    let slower = slower(report);
    if slower.is_empty() {
        out += "Nowhere in this run, beyond 2 %.\n";
    }
    for line in slower {
        let _ = writeln!(out, "* {line}");
    }
    out += "\n## The paper said, we measured\n\
            Its machine had 8 cores and 80 Gb/s; here one core serves. Shares and ratios compare, \
            Gb/s do not.\n\n\
            | Figure | The paper said | We measured |\n|---|---|---|\n";
    for Saying {
        figure,
        said,
        measured,
    } in SAYINGS
    {
        let _ = writeln!(out, "| {figure} | {said} | {} |", measured(report));
    }
    out += "\n## Figures\n";
    for (file, title) in PLOTS {
        let _ = writeln!(out, "### {title}\n![{title}]({plots}/{file}.svg)\n");
    }
    let _ = writeln!(
        out,
        "## Machine, versions, settings\n```text\n{}```\n\n## All points\n\
         `core-s/GB` is the busy time of the server's core, whoever made it busy, for each GB of \
         bodies;\n`+-95 %` is half the confidence interval of the mean.\n\n```text\n{}```",
        environment_text(&report.environment),
        table(&report.points)
    );
    let failures = report.points.iter().filter(|it| !it.failures.is_empty());
    for point in failures {
        let _ = writeln!(
            out,
            "\n{} at {} {} {}: {}",
            point.server,
            point.cell.security.name(),
            point.cell.cache.name(),
            point.cell.connections,
            point.failures.join("; ")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::summary::compare;
    use super::super::summary::tests::point;
    use super::*;

    fn report(points: Vec<Point>) -> Report {
        Report {
            environment: vec![("kernel".to_owned(), "Linux".to_owned())],
            comparisons: compare(&points, Contender::ATLAS),
            points,
        }
    }

    #[test]
    fn the_first_heading_tells_of_each_figure_that_is_worse_and_of_failures() {
        let mut ours = point("atlas", true, 10.0, 0.5);
        ours.add(Err("round 2: fell over".to_owned()));
        let report = report(vec![ours, point("h2o", false, 20.0, 0.4)]);
        let lines = slower(&report);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("0.50 x the Gb/s of h2o"), "{lines:?}");
        assert!(lines[1].contains("0.80 x the work"), "{lines:?}");
        assert!(lines[2].contains("fell over"), "{lines:?}");
        let page = page(&report, "figures");
        assert!(page.find("0.50 x the Gb/s") < page.find("The paper said"));
    }

    #[test]
    fn a_lead_within_the_noise_is_none() {
        let report = report(vec![
            point("atlas", true, 10.0, 0.5),
            point("h2o", false, 10.1, 0.495),
        ]);
        assert!(slower(&report).is_empty());
        assert!(page(&report, "figures").contains("Nowhere"));
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let empty = report(Vec::new());
        for saying in SAYINGS {
            assert_eq!((saying.measured)(&empty), none(), "{}", saying.said);
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_point() {
        let points = [
            point("atlas", true, 12.34, 0.5),
            point("h2o", false, 1.0, 0.5),
        ];
        let table = table(&points);
        assert_eq!(table.lines().count(), 3);
        assert!(table.contains("12.34") && table.contains("h2o"), "{table}");
    }
}
