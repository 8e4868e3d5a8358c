//! The disks by themselves, without server and network: `atlas-bench disk` on the server's core, as in
//! the paper's figures 6 and 8 to 10. The bench disk, and the machine's own.
//!
//! What cannot be measured is told, not left out, and stops nothing else. Bounded by: the plan
//! below, the deadline of each part, one file of [`FILE_BYTES`] on each disk, removed afterwards.

pub(super) mod page;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use disk::{BackendKind, Row, Series};
use serde::Serialize;

use crate::bench::lab::{Lab, SERVER_CORE};
use crate::bench::real_disk::{RealDisk, describe};
use testbed::process::output;
use testbed::{find_program, interrupt};

/// What reports call the disk in memory, and the machine's own.
pub(super) const BENCH_DISK: &str = "bench disk";
pub(super) const REAL_DISK: &str = "real disk";

/// Size of the file that is read: many windows of the largest reads, as `--bytes` has it.
const FILE_BYTES: &str = "1G";
const FILE_BYTES_QUICK: &str = "256M";

/// Reads in flight of figure 6, and its read size: the paper's.
const WINDOWS: &str = "1,2,4,8,16,32,64,128,256,512";
const WINDOWS_QUICK: &str = "1,16,128,512";
const WINDOW_SIZE: &str = "16K";

/// Read sizes of figures 8 to 10.
const SIZES: [&str; 6] = ["4K", "8K", "16K", "32K", "64K", "128K"];
const SIZES_QUICK: [&str; 3] = ["4K", "16K", "128K"];

/// Reads in flight where latency is what is looked at, and where throughput and cost are: what
/// figure 6 of the paper finds enough.
pub(super) const ALONE: u32 = 1;
pub(super) const FULL: u32 = 128;

/// Length of each measurement, seconds, and how often it is taken; and with `--quick`.
const SECONDS: &str = "0.25";
const SECONDS_QUICK: &str = "0.1";
const ROUNDS: &str = "3";
const ROUNDS_QUICK: &str = "1";

/// A part that takes longer is a failure.
const PART_LIMIT: Duration = Duration::from_secs(300);

/// What was measured of a disk.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// What reports call it.
    pub(super) name: &'static str,
    /// Its block device and driver; empty if there is none.
    pub(super) device: String,
    pub(super) rows: Vec<Row>,
    /// What could not be measured, and why.
    pub(super) failures: Vec<String>,
}

impl Figures {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            device: String::new(),
            rows: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The row of a measurement of figures 8 to 10.
    fn row(&self, backend: BackendKind, read_bytes: u32, window: u32) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.job.series == Series::Size
                && row.job.backend == backend
                && row.job.read_bytes == read_bytes
                && row.job.window == window
        })
    }

    /// The read sizes of figures 8 to 10 that were measured, in order.
    fn sizes(&self) -> Vec<u32> {
        let rows = self.rows.iter().filter(|it| it.job.series == Series::Size);
        let mut sizes: Vec<u32> = rows.map(|row| row.job.read_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The fastest that the product's way to read was.
    fn gbps_max(&self) -> Option<f64> {
        let ours = self
            .rows
            .iter()
            .filter(|row| row.job.backend == BackendKind::Diskmap);
        ours.map(|row| row.summary.gigabits_per_second.median)
            .reduce(f64::max)
    }
}

/// One run of the tool.
struct Part {
    /// For progress.
    name: String,
    arguments: Vec<String>,
}

/// All that is measured of a disk. fio runs beside where throughput is looked at.
fn parts(is_quick: bool, has_fio: bool) -> Vec<Part> {
    let (windows, sizes, bytes, seconds, rounds) = if is_quick {
        (
            WINDOWS_QUICK,
            &SIZES_QUICK[..],
            FILE_BYTES_QUICK,
            SECONDS_QUICK,
            ROUNDS_QUICK,
        )
    } else {
        (WINDOWS, &SIZES[..], FILE_BYTES, SECONDS, ROUNDS)
    };
    let part = |name: String, with_fio: bool, own: &[&str]| {
        let all = ["--bytes", bytes, "--seconds", seconds, "--rounds", rounds];
        let fio = with_fio.then_some("--fio");
        let arguments = all.iter().chain(own).copied().chain(fio);
        Part {
            name,
            arguments: arguments.map(str::to_owned).collect(),
        }
    };
    let mut parts = vec![part(
        format!("{WINDOW_SIZE} by window"),
        has_fio,
        &[
            "--series",
            "window",
            "--window-sizes",
            WINDOW_SIZE,
            "--windows",
            windows,
        ],
    )];
    for size in sizes {
        for window in [ALONE, FULL] {
            let in_flight = window.to_string();
            let own = [
                "--series",
                "size",
                "--sizes",
                size,
                "--size-windows",
                &in_flight,
            ];
            let with_fio = has_fio && window == FULL;
            parts.push(part(format!("{size} x {window}"), with_fio, &own));
        }
    }
    parts
}

/// How long it will take, as seen on two cores of a noisy virtual machine, fio included.
pub(super) fn estimate(is_quick: bool) -> Duration {
    Duration::from_secs(if is_quick { 50 } else { 330 })
}

/// What the machine's own disk gives to one who only reads, the product's way; if it is known.
pub(super) fn real_gbps_max(disks: &[Figures]) -> Option<f64> {
    let real = disks.iter().find(|it| it.name == REAL_DISK);
    real.and_then(Figures::gbps_max)
}

/// Measures both disks; `real` may say why there is none.
pub(super) fn measure(
    lab: &Lab,
    instruments: &Path,
    real: &Result<RealDisk>,
    is_quick: bool,
) -> Result<Vec<Figures>> {
    let has_fio = find_program("fio").is_some();
    let parts = parts(is_quick, has_fio);
    let mut bench = Figures::new(BENCH_DISK);
    bench.device = describe(&lab.disk.device) + ", a file in memory";
    visit(&mut bench, instruments, &lab.disk.root, &parts)?;
    if let Err(error) = lab.bench_disk().trim() {
        bench.failures.push(format!("{error:#}"));
    }
    let mut own = Figures::new(REAL_DISK);
    match real {
        Ok(real) => {
            own.device = describe(real.device());
            visit(&mut own, instruments, real.path(), &parts)?;
        }
        Err(error) => own.failures.push(format!("{error:#}")),
    }
    let mut all = vec![bench, own];
    if !has_fio {
        for figures in &mut all {
            figures.failures.push("fio is not installed".to_owned());
        }
    }
    Ok(all)
}

/// All parts on one disk. Only an interrupt is an error: the rest of a bench goes on.
fn visit(figures: &mut Figures, instruments: &Path, root: &Path, parts: &[Part]) -> Result<()> {
    let file = Made(root.join("atlas-disk.bin"));
    for part in parts {
        let rows = run(instruments, &file.0, part);
        interrupt::check()?;
        let said = match rows {
            Ok(rows) => {
                let said = said(&rows);
                figures.rows.extend(rows);
                said
            }
            Err(error) => {
                figures.failures.push(format!("{}: {error:#}", part.name));
                format!("{error:#}")
            }
        };
        eprintln!("{:<10} {:<14} {said}", figures.name, part.name);
    }
    Ok(())
}

/// The tool, once, on the server's core.
fn run(instruments: &Path, file: &Path, part: &Part) -> Result<Vec<Row>> {
    let mut command = Command::new("taskset");
    command
        .args(["-c", &SERVER_CORE.to_string()])
        .arg(instruments);
    command.args(["disk", "--json", "--make"]).arg(file);
    let output = output(command.args(&part.arguments), PART_LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "atlas-bench disk failed: {}",
        stderr.trim()
    );
    let report: disk::Report =
        serde_json::from_slice(&output.stdout).context("reading the report of atlas-bench disk")?;
    Ok(report.rows)
}

/// Gb/s in short: by window, or by way to read.
fn said(rows: &[Row]) -> String {
    let mut out = String::from("Gb/s:");
    for row in rows {
        let gbps = row.summary.gigabits_per_second.median;
        let _ = match row.job.series {
            Series::Window => write!(out, " {gbps:.2} at {}", row.job.window),
            Series::Size => write!(out, " {} {gbps:.2}", row.job.backend.name()),
        };
    }
    out
}

/// The file that is read, removed when dropped.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // It may never have been made; what stays goes with its directory or disk.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;
    use disk::{Job, Median, Peer, Summary};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: disk::DiskArgs,
    }

    /// A row of figures that are easy to tell apart.
    pub(in super::super) fn row(
        (series, backend): (Series, BackendKind),
        read_bytes: u32,
        window: u32,
        (gbps, latency_us, cpu): (f64, f64, f64),
    ) -> Row {
        let median = |median| Median {
            median,
            min: median,
            max: median,
        };
        Row {
            job: Job {
                series,
                backend,
                read_bytes,
                window,
            },
            summary: Summary {
                reads: 1,
                gigabits_per_second: median(gbps),
                reads_per_second: median(1.0),
                latency_mean_us: median(latency_us),
                latency_p50_us: median(latency_us),
                latency_p90_us: median(latency_us),
                latency_p99_us: median(10.0 * latency_us),
                latency_p99_9_us: median(latency_us),
                latency_max_us: median(latency_us),
                cpu_seconds_per_gb: median(cpu),
                busy_seconds_per_gb: median(cpu),
                system_calls_per_read: median(1.0),
                in_flight_min: 1,
            },
            fio: None,
        }
    }

    /// What fio says beside a row.
    pub(in super::super) fn peer(of: &Row, factor: f64) -> Peer {
        let scaled = |it: Median| Median {
            median: factor * it.median,
            ..it
        };
        Peer {
            gigabits_per_second: scaled(of.summary.gigabits_per_second),
            latency_p50_us: scaled(of.summary.latency_p50_us),
            latency_p99_us: scaled(of.summary.latency_p99_us),
            cpu_seconds_per_gb: Some(scaled(of.summary.cpu_seconds_per_gb)),
        }
    }

    pub(in super::super) fn figures(rows: Vec<Row>) -> Figures {
        Figures {
            rows,
            ..Figures::new(BENCH_DISK)
        }
    }

    #[test]
    fn the_tool_understands_every_part_and_measures_all_that_is_drawn() {
        for is_quick in [true, false] {
            let parts = parts(is_quick, true);
            let all: Vec<disk::DiskArgs> = parts
                .iter()
                .map(|part| {
                    let words = ["disk", "--make", "f"].into_iter();
                    let words = words.chain(part.arguments.iter().map(String::as_str));
                    Cli::try_parse_from(words).expect("known").arguments
                })
                .collect();
            assert_eq!(all[0].window_sizes, [16 << 10]);
            let windows = &all[0].windows;
            assert!([1, 512].iter().all(|it| windows.contains(it)));
            assert!(all.iter().all(|it| it.series.len() == 1));
            let has = |size, window| {
                let fits = |it: &disk::DiskArgs| it.sizes == [size] && it.size_windows == [window];
                all[1..].iter().any(|it| fits(it) && it.backends.len() == 4)
            };
            for size in [4 << 10, 128 << 10] {
                assert!(has(size, ALONE) && has(size, FULL), "{size}");
            }
        }
    }

    #[test]
    fn fio_runs_only_where_it_is_and_where_throughput_is_looked_at() {
        let with = |has_fio| {
            let parts = parts(false, has_fio);
            let fio = |it: &&Part| it.arguments.iter().any(|word| word == "--fio");
            parts.iter().filter(fio).count()
        };
        assert_eq!((with(true), with(false)), (1 + SIZES.len(), 0));
    }

    #[test]
    fn the_fastest_is_ours_and_sizes_are_in_order() {
        let ours = (Series::Size, BackendKind::Diskmap);
        let figures = figures(vec![
            row(ours, 8192, FULL, (5.0, 1.0, 1.0)),
            row(ours, 4096, FULL, (4.0, 1.0, 1.0)),
            row(
                (Series::Size, BackendKind::Aio),
                4096,
                FULL,
                (9.0, 1.0, 1.0),
            ),
            row(
                (Series::Window, BackendKind::Diskmap),
                512,
                1,
                (1.0, 1.0, 1.0),
            ),
        ]);
        assert_eq!(figures.gbps_max(), Some(5.0));
        assert_eq!(figures.sizes(), [4096, 8192]);
        assert!(figures.row(BackendKind::Aio, 4096, FULL).is_some());
        assert!(figures.row(BackendKind::Aio, 8192, FULL).is_none());
        assert_eq!(real_gbps_max(&[figures]), None, "that was the other disk");
    }
}
