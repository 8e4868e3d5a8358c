//! The page's section on the disks by themselves: tables beside figures 6 and 8 to 10, and words
//! on where another way to read is better than ours. Pure.

use std::fmt::Write as _;

use disk::{BackendKind, Peer, Row, Series};

use super::{ALONE, FULL, Figures};
use crate::bench::figures::aims::LEAD_MIN;

/// Ways to read, ours first.
const BACKENDS: [BackendKind; 4] = [
    BackendKind::Diskmap,
    BackendKind::Uring,
    BackendKind::Aio,
    BackendKind::Pread,
];

/// So much of the most throughput counts as all of it.
const SATURATION: f64 = 0.9;

/// What is compared between ways to read.
struct Measure {
    figure: &'static str,
    name: &'static str,
    /// Reads in flight.
    window: u32,
    of: fn(&Row) -> f64,
    of_fio: fn(&Peer) -> Option<f64>,
    decimals: usize,
    /// What being behind is called, and whether less is better.
    behind: &'static str,
    is_less_better: bool,
}

const MEASURES: [Measure; 3] = [
    Measure {
        figure: "8",
        name: "Gb/s",
        window: FULL,
        of: |row| row.summary.gigabits_per_second.median,
        of_fio: |fio| Some(fio.gigabits_per_second.median),
        decimals: 2,
        behind: "is slower",
        is_less_better: false,
    },
    Measure {
        figure: "9",
        name: "median latency, µs",
        window: ALONE,
        of: |row| row.summary.latency_p50_us.median,
        of_fio: |fio| Some(fio.latency_p50_us.median),
        decimals: 0,
        behind: "takes longer",
        is_less_better: true,
    },
    Measure {
        figure: "10",
        name: "CPU seconds of the reading process per GB",
        window: FULL,
        of: |row| row.summary.cpu_seconds_per_gb.median,
        of_fio: |fio| fio.cpu_seconds_per_gb.map(|it| it.median),
        decimals: 3,
        behind: "costs more",
        is_less_better: true,
    },
];

impl Measure {
    /// By which part of the rival's figure ours is worse; below zero it is better.
    fn lead(&self, ours: &Row, rival: &Row) -> f64 {
        let change = (self.of)(ours) / (self.of)(rival) - 1.0;
        if self.is_less_better { change } else { -change }
    }
}

/// The whole section.
pub(in super::super) fn section(disks: &[Figures]) -> String {
    let mut out = String::from(
        "\n## The disks by themselves\n\
         `atlas-bench disk` on the server's core: random direct reads of one file, medians. What the \
         kernel does on other cores for a read is not in its CPU seconds. fio, where it ran, made \
         the same reads by the same call; it cannot tell the CPU time of many threads that ran for \
         milliseconds.\n\n",
    );
    for disk in disks {
        let _ = writeln!(out, "* {}: {}", disk.name, or(&disk.device, "none"));
        for failure in &disk.failures {
            let _ = writeln!(out, "  * not measured: {failure}");
        }
    }
    let measured = || disks.iter().filter(|it| !it.rows.is_empty());
    if measured().next().is_none() {
        return out;
    }
    out += "\n### Where another way to read is better than diskmap\n";
    let behind: Vec<String> = measured().flat_map(behind).collect();
    if behind.is_empty() {
        out += "Nowhere in this run, beyond 2 %.\n";
    }
    for line in behind {
        let _ = writeln!(out, "* {line}");
    }
    for disk in measured() {
        out += &by_window(disk);
    }
    for measure in &MEASURES {
        let mut rows = measured().flat_map(|disk| &disk.rows);
        let has_fio = rows.any(|row| {
            row.job.series == Series::Size && row.job.window == measure.window && row.fio.is_some()
        });
        let _ = writeln!(
            out,
            "\n### {}: {} by read size, {} in flight\n\
             | Disk | Read | diskmap | io_uring | aio | pread |{}\n|---|---|---|---|---|---|{}",
            measure.figure,
            measure.name,
            measure.window,
            if has_fio {
                " fio, diskmap's way | fio io_uring | fio libaio | fio psync |"
            } else {
                ""
            },
            if has_fio { "---|---|---|---|" } else { "" },
        );
        for disk in measured() {
            out += &by_size(disk, measure, has_fio);
        }
    }
    out
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn kibibytes(bytes: u32) -> String {
    format!("{} KiB", bytes >> 10)
}

/// A line for each rival that leads somewhere, on one disk.
fn behind(disk: &Figures) -> Vec<String> {
    let mut lines = Vec::new();
    for measure in &MEASURES {
        for rival in &BACKENDS[1..] {
            let places: Vec<String> = disk
                .sizes()
                .into_iter()
                .filter_map(|size| {
                    let ours = disk.row(BackendKind::Diskmap, size, measure.window)?;
                    let other = disk.row(*rival, size, measure.window)?;
                    let lead = measure.lead(ours, other);
                    let place = || format!("{} by {:.0} %", kibibytes(size), 100.0 * lead);
                    (lead > LEAD_MIN).then(place)
                })
                .collect();
            if !places.is_empty() {
                lines.push(format!(
                    "{}, {} in flight: diskmap {} than {} at {}",
                    disk.name,
                    measure.window,
                    measure.behind,
                    rival.name(),
                    places.join(", at ")
                ));
            }
        }
    }
    lines
}

/// Figure 6 of one disk.
fn by_window(disk: &Figures) -> String {
    let mut out = format!(
        "\n### 6: 16 KiB reads by reads in flight, {}\n{}\n\n\
         | In flight | Gb/s | median µs | 99 % µs | fio Gb/s | fio median | fio 99 % |\n\
         |---|---|---|---|---|---|---|\n",
        disk.name,
        knee(disk)
    );
    for row in window_rows(disk) {
        let (ours, fio) = (&row.summary, row.fio.as_ref());
        let beside = |of: fn(&Peer) -> f64, decimals: usize| {
            fio.map_or_else(|| "-".to_owned(), |it| format!("{:.decimals$}", of(it)))
        };
        let _ = writeln!(
            out,
            "| {} | {:.2} | {:.0} | {:.0} | {} | {} | {} |",
            row.job.window,
            ours.gigabits_per_second.median,
            ours.latency_p50_us.median,
            ours.latency_p99_us.median,
            beside(|it| it.gigabits_per_second.median, 2),
            beside(|it| it.latency_p50_us.median, 0),
            beside(|it| it.latency_p99_us.median, 0),
        );
    }
    out
}

fn window_rows(disk: &Figures) -> impl Iterator<Item = &Row> {
    let rows = disk.rows.iter();
    rows.filter(|row| row.job.series == Series::Window)
}

/// The paper's sentence on figure 6, and ours in its words.
fn knee(disk: &Figures) -> String {
    let gbps = |row: &Row| row.summary.gigabits_per_second.median;
    let latency_ms = |row: &Row| row.summary.latency_p50_us.median / 1e3;
    let most = window_rows(disk).map(gbps).fold(0.0, f64::max);
    let enough = window_rows(disk).find(|row| gbps(row) >= SATURATION * most);
    let (Some(enough), Some(last)) = (enough, window_rows(disk).last()) else {
        return "Not measured.".to_owned();
    };
    format!(
        "The paper said: full throughput at some 128 in flight with less than 1 ms of latency, \
         3 ms at 512. We measured: {:.0} % of the most at {} with {:.2} ms, {:.2} ms at {}.",
        100.0 * SATURATION,
        enough.job.window,
        latency_ms(enough),
        latency_ms(last),
        last.job.window
    )
}

/// Rows of one disk in the table of a measure.
fn by_size(disk: &Figures, measure: &Measure, has_fio: bool) -> String {
    let decimals = measure.decimals;
    let cell = |value: Option<f64>| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
    };
    let mut out = String::new();
    for size in disk.sizes() {
        let rows = BACKENDS.map(|backend| disk.row(backend, size, measure.window));
        let _ = write!(out, "| {} | {} |", disk.name, kibibytes(size));
        for row in rows {
            let _ = write!(out, " {} |", cell(row.map(measure.of)));
        }
        for row in rows.into_iter().filter(|_| has_fio) {
            let fio = row.and_then(|row| row.fio.as_ref());
            let _ = write!(out, " {} |", cell(fio.and_then(measure.of_fio)));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::{figures, peer, row};
    use super::*;

    const OURS: (Series, BackendKind) = (Series::Size, BackendKind::Diskmap);
    const PREAD: (Series, BackendKind) = (Series::Size, BackendKind::Pread);
    const WINDOW: (Series, BackendKind) = (Series::Window, BackendKind::Diskmap);

    #[test]
    fn a_rival_that_leads_is_named_with_place_and_measure() {
        let disk = figures(vec![
            row(OURS, 4096, FULL, (5.0, 1.0, 0.3)),
            row(PREAD, 4096, FULL, (10.0, 1.0, 0.2)),
            row(OURS, 8192, FULL, (9.0, 1.0, 0.1)),
            row(PREAD, 8192, FULL, (10.0, 1.0, 0.2)),
            row(OURS, 4096, ALONE, (1.0, 120.0, 1.0)),
            row(PREAD, 4096, ALONE, (9.0, 100.0, 0.1)),
        ]);
        let lines = behind(&disk);
        assert_eq!(
            lines,
            [
                "bench disk, 128 in flight: diskmap is slower than pread at 4 KiB by 50 %, at \
                 8 KiB by 10 %",
                "bench disk, 1 in flight: diskmap takes longer than pread at 4 KiB by 20 %",
                "bench disk, 128 in flight: diskmap costs more than pread at 4 KiB by 50 %",
            ]
        );
        assert!(section(&[disk]).contains("costs more than pread"));
    }

    #[test]
    fn a_lead_within_the_noise_is_none() {
        let disk = figures(vec![
            row(OURS, 4096, FULL, (9.9, 1.0, 0.101)),
            row(PREAD, 4096, FULL, (10.0, 1.0, 0.1)),
        ]);
        assert!(behind(&disk).is_empty());
        assert!(section(&[disk]).contains("Nowhere"));
    }

    #[test]
    fn enough_is_nine_tenths_of_the_most() {
        let disk = figures(vec![
            row(WINDOW, 16_384, 1, (8.9, 100.0, 1.0)),
            row(WINDOW, 16_384, 128, (9.0, 900.0, 1.0)),
            row(WINDOW, 16_384, 512, (10.0, 3_100.0, 1.0)),
        ]);
        let said = knee(&disk);
        assert!(
            said.contains("90 % of the most at 128 with 0.90 ms, 3.10 ms at 512"),
            "{said}"
        );
        assert_eq!(knee(&figures(Vec::new())), "Not measured.");
    }

    #[test]
    fn fio_stands_beside_the_same_way_to_read() {
        let mut ours = row(OURS, 4096, FULL, (8.0, 1.0, 0.5));
        ours.fio = Some(peer(&ours, 0.5));
        let disk = figures(vec![ours, row(PREAD, 4096, FULL, (6.0, 1.0, 0.7))]);
        assert_eq!(
            by_size(&disk, &MEASURES[0], true),
            "| bench disk | 4 KiB | 8.00 | - | - | 6.00 | 4.00 | - | - | - |\n"
        );
        assert_eq!(
            by_size(&disk, &MEASURES[0], false),
            "| bench disk | 4 KiB | 8.00 | - | - | 6.00 |\n"
        );
    }

    #[test]
    fn a_disk_that_was_not_measured_says_why() {
        let mut none = figures(Vec::new());
        none.failures.push("there is none".to_owned());
        let section = section(&[none]);
        assert!(section.contains("not measured: there is none"), "{section}");
        assert!(!section.contains("Nowhere"), "nothing was compared");
    }
}
