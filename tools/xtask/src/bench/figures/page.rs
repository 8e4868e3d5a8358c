//! The table for the terminal and the page for keeping. Pure.

use std::fmt::Write as _;

use super::aims::{self, LEAD_MIN, MANY, cold_over_warm_by_connections, thousands, times};
use super::plan::{Cache, OBJECT_BYTES, Security};
use super::summary::{Comparison, Point, Run, Spread};
use super::turn::STOLEN_SHARE_MAX;
use super::{Report, disks, real};
use crate::bench::lab::Contender;
use crate::bench::report::environment_text;

/// The plots, as `bench/plot.py` names them, and the figures of the paper they stand beside.
const PLOTS: [(&str, &str); 10] = [
    ("figure-1", "1: plaintext by cache"),
    ("figure-2", "2: TLS by cache"),
    ("figure-6", "6: 16 KiB reads by reads in flight"),
    ("figure-8", "8: ways to read, Gb/s by read size"),
    ("figure-9", "9: ways to read, latency by read size"),
    ("figure-10", "10: ways to read, CPU time by read size"),
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
        measured: few_over_many,
    },
    Saying {
        figure: "13a",
        said: "TLS from disk: 1.53 x the Gb/s on half the cores (72, 47 Gb/s)",
        measured: |report| range(report, Security::Tls, Cache::Cold),
    },
    Saying {
        figure: "13a",
        said: "throughput falls only slightly with more connections",
        measured: most_over_best,
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
    let best = of(report, security, cache).max_by(|a, b| a.gbps.median.total_cmp(&b.gbps.median));
    best.map_or_else(none, |it| {
        format!(
            "Atlas {:.2} x {} at {} connections",
            it.gbps.median,
            it.fastest_rival,
            thousands(it.cell.connections)
        )
    })
}

/// From the lowest to the highest ratios over the sweep.
fn range(report: &Report, security: Security, cache: Cache) -> String {
    let spread = |figure: fn(&Comparison) -> f64| {
        let values: Vec<f64> = of(report, security, cache).map(figure).collect();
        (!values.is_empty()).then(|| Spread::new(&values))
    };
    let (Some(gbps), Some(work)) = (
        spread(|it| it.gbps.median),
        spread(|it| it.work_per_core_second.median),
    ) else {
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

fn few_over_many(report: &Report) -> String {
    let each = aims::few_over_many(&aims::alone(report, Security::Plain));
    let each: Vec<_> = each
        .iter()
        .map(|(connections, ratio)| format!("{} at {}", times(ratio), thousands(*connections)))
        .collect();
    if each.is_empty() {
        return none();
    }
    format!(
        "{} of the mean from {} on",
        each.join(", "),
        thousands(MANY)
    )
}

fn most_over_best(report: &Report) -> String {
    let ratio = aims::most_over_best(&aims::alone(report, Security::Tls));
    ratio.map_or_else(none, |ratio| format!("{} of its best", times(&ratio)))
}

/// All that was measured with servers.
fn all_points(report: &Report) -> impl Iterator<Item = &Point> {
    let cable = report.points.iter().chain(&report.alone);
    cable.chain(&report.real_disk.points)
}

/// Where a rival did better than we, a line each.
fn slower(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let real = report.real_disk.comparisons.iter();
    let all = report.comparisons.iter().map(|it| ("", it));
    for (place, it) in all.chain(real.map(|it| ("from the machine's own disk, ", it))) {
        let figures = [
            ("Gb/s", &it.gbps, &it.fastest_rival),
            (
                "work per core-second",
                &it.work_per_core_second,
                &it.thriftiest_rival,
            ),
        ];
        for (what, ratio, rival) in figures {
            if ratio.median < 1.0 - LEAD_MIN {
                lines.push(format!(
                    "{place}{}: {} the {what} of {rival}",
                    it.cell,
                    times(ratio)
                ));
            }
        }
    }
    let ours = all_points(report).filter(|it| it.is_ours);
    lines.extend(ours.flat_map(|it| {
        let failures = it.failures.iter();
        failures.map(move |failure| format!("{} failed: {}, {failure}", it.server, it.cell))
    }));
    lines
}

/// What was run, in two sentences.
fn summary(report: &Report) -> String {
    let mut rivals = Vec::new();
    let mut connections = Vec::new();
    let mut turns = 0;
    for point in &report.points {
        if !point.is_ours && !rivals.contains(&point.server.as_str()) {
            rivals.push(point.server.as_str());
        }
        connections.push(point.cell.connections);
        turns += point.runs.len() + point.failures.len();
    }
    let least = connections.iter().copied().min().unwrap_or(0);
    let most = connections.iter().copied().max().unwrap_or(0);
    format!(
        "Atlas and {} rivals ({}) served objects of {} bytes to {} to {} connections, in plaintext \
         and over TLS, each from one core. They took turns, {turns} in all: from a cold disk and, \
         for rivals, out of the page cache; every ratio below is the median of the rounds' own \
         ratios, with the least and the greatest.\n",
        rivals.len(),
        rivals.join(", "),
        thousands(OBJECT_BYTES),
        thousands(least),
        thousands(most)
    )
}

/// Why nothing can be said beside our point: what rivals were tried there failed, or none was.
fn missing(report: &Report, own: &Point, cache: Cache) -> String {
    let mut rivals = report.points.iter().filter(|it| {
        !it.is_ours
            && it.cell.security == own.cell.security
            && it.cell.connections == own.cell.connections
            && it.cell.cache == cache
    });
    if rivals.any(|it| !it.failures.is_empty()) {
        "rivals failed".to_owned()
    } else {
        none()
    }
}

/// Atlas beside the best rivals over the sweep, in Markdown.
fn sweep_table(report: &Report, security: Security) -> String {
    let mut out = format!(
        "### {}, by connections\n\
         | Connections | Atlas from disk, Gb/s | core-s/GB | x the Gb/s of the best rival from \
         disk | x its work per core-second | x the Gb/s of the best rival from the page cache \
         |\n|---:|---:|---:|---|---|---|\n",
        security.title()
    );
    let warm = cold_over_warm_by_connections(report, security);
    let ours = report.points.iter().filter(|it| {
        it.server == Contender::ATLAS
            && it.cell.security == security
            && it.cell.cache == Cache::Cold
            && !it.runs.is_empty()
    });
    for own in ours {
        let connections = own.cell.connections;
        let cold = of(report, security, Cache::Cold).find(|it| it.cell == own.cell);
        let beside = |ratio: Option<(&Spread, &String)>, cache| match ratio {
            Some((ratio, rival)) => format!("{} {rival}", times(ratio)),
            None => missing(report, own, cache),
        };
        let warm = warm.iter().find(|(at, _, _)| *at == connections);
        let _ = writeln!(
            out,
            "| {}{} | {:.2} | {:.3} | {} | {} | {} |",
            thousands(connections),
            if own.cell.is_distant { ", distant" } else { "" },
            own.gbps.median,
            own.core_seconds_per_gb.median,
            beside(cold.map(|it| (&it.gbps, &it.fastest_rival)), Cache::Cold),
            beside(
                cold.map(|it| (&it.work_per_core_second, &it.thriftiest_rival)),
                Cache::Cold
            ),
            beside(warm.map(|(_, ratio, rival)| (ratio, rival)), Cache::Warm)
        );
    }
    out
}

/// Atlas alone over connections, in Markdown.
fn alone_section(report: &Report) -> String {
    if report.alone.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "### Atlas alone, by connections, turn beside turn\n\
         From disk, with distance; each round begins at another number of connections. A read is \
         of as much as the peer's ACKs have made room for.\n\n\
         | | Connections | Gb/s, median (min-max) | mean +- 95 % | core-s/GB | bytes a read | \
         server's core | client's core |\n|---|---:|---|---|---:|---:|---:|---:|\n",
    );
    for security in [Security::Plain, Security::Tls] {
        for point in aims::alone(report, security) {
            let Spread {
                median,
                min,
                max,
                mean,
                confidence_95,
            } = point.gbps;
            let half = confidence_95.map_or_else(|| "-".to_owned(), |half| format!("{half:.1}"));
            let median_of = |figure: fn(&Run) -> f64| {
                let all: Vec<f64> = point.runs.iter().map(figure).collect();
                Spread::new(&all).median
            };
            let _ = writeln!(
                out,
                "| {} | {} | {median:.1} ({min:.1}-{max:.1}) | {mean:.1} +- {half} | {:.3} | {} | \
                 {:.0} % | {:.0} % |",
                security.title(),
                thousands(point.cell.connections),
                point.core_seconds_per_gb.median,
                bytes_a_read(point).map_or_else(|| "-".to_owned(), thousands),
                100.0 * point.server_core_busy.median,
                100.0 * median_of(|run| run.client_core_busy),
            );
        }
    }
    out
}

/// Over all rounds, by the server's own counters.
fn bytes_a_read(point: &Point) -> Option<u64> {
    let sum = |name: &str| {
        let counters = point.runs.iter().filter_map(|run| run.counters.as_ref());
        let values = counters.map(|it| it.get(name).and_then(serde_json::Value::as_u64));
        values.sum::<Option<u64>>()
    };
    sum("session_read_bytes")?.checked_div(sum("session_read_count")?)
}

/// What the hypervisor disturbed to the last.
fn stolen(report: &Report) -> String {
    let runs: Vec<&Run> = all_points(report).flat_map(|it| &it.runs).collect();
    let is_stolen = |run: &&&Run| run.stolen_share > STOLEN_SHARE_MAX;
    format!(
        "A turn in which the hypervisor takes more than {:.0} % of a core is taken again, at most \
         twice, and of ten turns one at most: in {} of {} turns it took so much at the last try too.\n",
        100.0 * STOLEN_SHARE_MAX,
        runs.iter().filter(is_stolen).count(),
        runs.len()
    )
}

/// The table, a line for each server at each cell.
pub(super) fn table(points: &[Point]) -> String {
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
            "atlas / best rival of the round, {}: {} the Gb/s ({}), {} the work per core-second \
             ({})",
            it.cell,
            times(&it.gbps),
            it.fastest_rival,
            times(&it.work_per_core_second),
            it.thriftiest_rival
        );
    }
    out
}

/// What is kept, in Markdown; plots are in the folder `plots` beside it.
pub(super) fn page(report: &Report, plots: &str) -> String {
    let mut out = format!(
        "# `cargo xtask bench figures`\n\n{}\n## Where Atlas is slower, or failed\n",
        summary(report)
    );
    let slower = slower(report);
    if slower.is_empty() {
        out += "Nowhere in this run, beyond 2 %.\n";
    }
    for line in &slower {
        let _ = writeln!(out, "* {line}");
    }
    if !slower.is_empty() {
        out += "\nWhat the cable of the bench has to do with it: `docs/decisions/0008-comparing.md`.\n";
    }
    let _ = writeln!(out, "\n## The aims\n{}\n## Figures", aims::table(report));
    for security in [Security::Plain, Security::Tls] {
        let _ = writeln!(out, "{}", sweep_table(report, security));
    }
    let _ = writeln!(out, "{}", alone_section(report));
    for (file, title) in PLOTS {
        let _ = writeln!(out, "### {title}\n![{title}]({plots}/{file}.svg)\n");
    }
    if let Some(accounts) = &report.accounts {
        out += &accounts.section();
    }
    out += "## The paper said, we measured\n\
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
    out += &disks::page::section(&report.disks);
    out += &real::section(&report.real_disk, disks::real_gbps_max(&report.disks));
    let _ = writeln!(
        out,
        "\n## How it was measured\n{}\n```text\n{}```\n\n## All points\n\
         `core-s/GB` is the busy time of the server's core, whoever made it busy, for each GB of \
         bodies;\n`+-95 %` is half the confidence interval of the mean, by the relative scatter \
         of a server over its sweep.\n\n```text\n{}```",
        stolen(report),
        environment_text(&report.environment),
        table(&report.points)
    );
    let failures = all_points(report).filter(|it| !it.failures.is_empty());
    for point in failures {
        let failures = point.failures.join("; ");
        let _ = writeln!(out, "\n{}, {}: {failures}", point.server, point.cell);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::cells;
    use super::super::summary::compare;
    use super::super::summary::tests::{point, point_at};
    use super::*;

    fn report(points: Vec<Point>) -> Report {
        Report {
            environment: vec![("kernel".to_owned(), "Linux".to_owned())],
            comparisons: compare(&points, Contender::ATLAS),
            accounts: None,
            points,
            alone: Vec::new(),
            disks: Vec::new(),
            real_disk: real::Figures::default(),
        }
    }

    #[test]
    fn the_first_heading_tells_of_each_figure_that_is_worse_and_of_failures() {
        let mut ours = point("atlas", 10.0, 0.5);
        ours.add(2, Err("fell over".to_owned()));
        let report = report(vec![ours, point("h2o", 20.0, 0.4)]);
        let lines = slower(&report);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].contains("0.50 x (0.50-0.50) the Gb/s of h2o"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("0.80 x (0.80-0.80) the work"),
            "{lines:?}"
        );
        assert!(lines[2].contains("fell over"), "{lines:?}");
        let page = page(&report, "figures");
        let order = [
            "served objects",
            "0.50 x (0.50-0.50)",
            "## The aims",
            "by connections",
            "figure-1.svg",
            "## The paper said",
            "## How it was measured",
            "## All points",
        ];
        let places = order.map(|words| page.find(words).expect(words));
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_lead_within_the_noise_is_none() {
        let report = report(vec![point("atlas", 10.0, 0.5), point("h2o", 10.1, 0.495)]);
        assert!(slower(&report).is_empty());
        assert!(page(&report, "figures").contains("Nowhere"));
    }

    #[test]
    fn the_sweep_tells_rivals_that_failed_from_none() {
        let mut failed = Point::new(point("h2o", 1.0, 1.0).cell, "h2o", false);
        failed.add(1, Err("too many open files".to_owned()));
        let report = report(vec![point("atlas", 10.0, 0.5), failed]);
        let table = sweep_table(&report, Security::Plain);
        let row = table.lines().last().expect("a row for our point");
        assert!(
            row.ends_with("| rivals failed | rivals failed | not measured |"),
            "{row}"
        );
    }

    #[test]
    fn atlas_alone_is_told_with_its_reads_and_its_failures() {
        let distant = cells(Security::Plain, Cache::Cold)[1];
        let mut alone = point_at(distant, "atlas", &[(10.0, 0.5), (12.0, 0.5)]);
        for (run, bytes) in alone.runs.iter_mut().zip([300, 500]) {
            run.counters = Some(serde_json::json!({
                "session_read_bytes": bytes, "session_read_count": 4
            }));
        }
        assert_eq!(bytes_a_read(&alone), Some(100));
        alone.add(3, Err("fell over".to_owned()));
        let told = Report {
            alone: vec![alone.clone()],
            ..report(Vec::new())
        };
        assert!(alone_section(&told).contains("| 1,000 | 11.0 (10.0-12.0) |"));
        assert!(alone_section(&told).contains("| 100 |"));
        assert!(slower(&told).iter().any(|line| line.contains("fell over")));
        alone.runs[0].counters = None;
        assert_eq!(bytes_a_read(&alone), Some(125), "of those that counted");
        alone.runs.clear();
        assert_eq!(bytes_a_read(&alone), None);
        assert_eq!(alone_section(&report(Vec::new())), "");
    }

    #[test]
    fn turns_the_hypervisor_disturbed_to_the_last_are_counted() {
        let mut points = vec![point("atlas", 10.0, 0.5), point("h2o", 9.0, 0.5)];
        points[0].runs[0].stolen_share = STOLEN_SHARE_MAX;
        assert!(stolen(&report(points.clone())).contains("in 0 of 2 turns"));
        points[0].runs[0].stolen_share = STOLEN_SHARE_MAX + 0.001;
        assert!(stolen(&report(points)).contains("in 1 of 2 turns"));
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
        let points = [point("atlas", 12.34, 0.5), point("h2o", 1.0, 0.5)];
        let table = table(&points);
        assert_eq!(table.lines().count(), 3);
        assert!(table.contains("12.34") && table.contains("h2o"), "{table}");
    }
}
