//! The report: rows of medians, as JSON or as tables. No clock.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::fio::PeerSample;
use crate::plan::{Job, Plan, Series, Turn};
use crate::stats::{Median, Sample, Summary};
use crate::target::Target;

/// What was read, how, and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was read.
    pub path: String,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Reads are whole blocks of so many bytes.
    pub block_bytes: u32,
    /// Largest read the device takes in one piece; larger ones the kernel splits.
    pub read_bytes_max: u32,
    /// Kernel.
    pub kernel: String,
    /// Cores this process may run on.
    pub cores: usize,
    /// Length of each measurement.
    pub seconds: f64,
    /// How often each was taken.
    pub rounds: u32,
    /// Whether every byte was compared, at the price of CPU time.
    pub verified: bool,
    /// Why `diskmap` was slower than it could be, and what to do.
    pub fallback_reason: Option<String>,
    /// One a measurement.
    pub rows: Vec<Row>,
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub job: Job,
    /// Ours.
    #[serde(flatten)]
    pub summary: Summary,
    /// fio's, if it ran.
    pub fio: Option<Peer>,
}

/// What fio measured of the same reads.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Payload, 10^9 bits a second.
    pub gigabits_per_second: Median,
    /// Half of the reads took less.
    pub latency_p50_us: Median,
    /// All but one in a hundred took less.
    pub latency_p99_us: Median,
    /// CPU seconds of fio for 10^9 bytes; `None` where it had too many threads for too short a time
    /// to tell.
    pub cpu_seconds_per_gb: Option<Median>,
}

impl Peer {
    fn of(samples: &[PeerSample]) -> Option<Self> {
        let over = |value: fn(&PeerSample) -> f64| Median::of(samples.iter().map(value));
        let cpu = samples.iter().map(|sample| sample.cpu_seconds_per_gb);
        let cpu: Option<Vec<f64>> = cpu.collect();
        Some(Self {
            gigabits_per_second: over(|sample| sample.gigabits_per_second)?,
            latency_p50_us: over(|sample| sample.latency_p50_us)?,
            latency_p99_us: over(|sample| sample.latency_p99_us)?,
            cpu_seconds_per_gb: cpu.and_then(Median::of),
        })
    }
}

/// Samples by job.
#[derive(Debug)]
pub(crate) struct Collected {
    samples: Vec<(Vec<Sample>, Vec<PeerSample>)>,
}

impl Collected {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            samples: vec![(Vec::new(), Vec::new()); plan.jobs.len()],
        }
    }

    pub(crate) fn add(&mut self, turn: &Turn, sample: Sample) {
        self.samples[turn.index].0.push(sample);
    }

    pub(crate) fn add_peer(&mut self, turn: &Turn, sample: PeerSample) {
        self.samples[turn.index].1.push(sample);
    }

    pub(crate) fn report(&self, target: &Target, plan: &Plan) -> Report {
        let row = |(job, (ours, peers)): (&Job, &(Vec<Sample>, Vec<PeerSample>))| {
            Some(Row {
                job: *job,
                summary: Summary::of(ours)?,
                fio: Peer::of(peers),
            })
        };
        Report {
            path: target.path.display().to_string(),
            size_bytes: target.size_bytes,
            block_bytes: target.block_bytes,
            read_bytes_max: target.read_bytes_max,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            seconds: plan.time.as_secs_f64(),
            rounds: plan.rounds,
            verified: plan.verifies,
            fallback_reason: target.fallback_reason.clone(),
            rows: plan
                .jobs
                .iter()
                .zip(&self.samples)
                .filter_map(row)
                .collect(),
        }
    }
}

impl Report {
    /// Tables for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} bytes, blocks of {}, at most {} at once\nLinux {}, cores: {}; medians of {} x \
             {} s each\n",
            self.path,
            self.size_bytes,
            self.block_bytes,
            self.read_bytes_max,
            self.kernel,
            self.cores,
            self.rounds,
            self.seconds
        );
        if let Some(reason) = &self.fallback_reason {
            let _ = writeln!(text, "note: {reason}");
        }
        self.add_table(
            &mut text,
            Series::Window,
            "Latency and throughput by window",
        );
        self.add_table(&mut text, Series::Size, "Ways to read by size");
        text
    }

    fn add_table(&self, text: &mut String, series: Series, title: &str) {
        let rows = || self.rows.iter().filter(|row| row.job.series == series);
        if rows().next().is_none() {
            return;
        }
        let has_fio = rows().any(|row| row.fio.is_some());
        let _ = write!(
            text,
            "\n{title}\n{:<8}{:>7}{:>7}{:>8}{:>10}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}{:>7}",
            "backend",
            "bytes",
            "window",
            "Gb/s",
            "reads/s",
            "p50 us",
            "p90 us",
            "p99 us",
            "99.9 us",
            "cpu/GB",
            "busy/GB",
            "calls"
        );
        if has_fio {
            let _ = write!(
                text,
                " |{:>8}{:>9}{:>9}{:>8}",
                "fio Gb/s", "p50 us", "p99 us", "cpu/GB"
            );
        }
        text.push('\n');
        for row in rows() {
            add_row(text, row);
        }
    }
}

fn add_row(text: &mut String, Row { job, summary, fio }: &Row) {
    let _ = write!(
        text,
        "{:<8}{:>7}{:>7}{:>8.2}{:>10.0}{:>9.0}{:>9.0}{:>9.0}{:>9.0}{:>8.3}{:>8.3}{:>7.2}",
        job.backend.name(),
        job.read_bytes,
        job.window,
        summary.gigabits_per_second.median,
        summary.reads_per_second.median,
        summary.latency_p50_us.median,
        summary.latency_p90_us.median,
        summary.latency_p99_us.median,
        summary.latency_p99_9_us.median,
        summary.cpu_seconds_per_gb.median,
        summary.busy_seconds_per_gb.median,
        summary.system_calls_per_read.median,
    );
    if let Some(fio) = fio {
        let _ = write!(
            text,
            " |{:>8.2}{:>9.0}{:>9.0}{:>8}",
            fio.gigabits_per_second.median,
            fio.latency_p50_us.median,
            fio.latency_p99_us.median,
            fio.cpu_seconds_per_gb
                .map_or_else(|| "-".to_owned(), |cpu| format!("{:.3}", cpu.median))
        );
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::BackendKind;

    fn report() -> Report {
        let median = |median| Median {
            median,
            min: median,
            max: median,
        };
        let summary = Summary {
            reads: 8,
            gigabits_per_second: median(12.5),
            reads_per_second: median(1000.0),
            latency_mean_us: median(1.0),
            latency_p50_us: median(2.0),
            latency_p90_us: median(3.0),
            latency_p99_us: median(4.0),
            latency_p99_9_us: median(5.0),
            latency_max_us: median(6.0),
            cpu_seconds_per_gb: median(0.25),
            busy_seconds_per_gb: median(0.5),
            system_calls_per_read: median(3.0),
            in_flight_min: 4,
        };
        let row = |series, fio| Row {
            job: Job {
                series,
                backend: BackendKind::Diskmap,
                read_bytes: 16_384,
                window: 4,
            },
            summary: summary.clone(),
            fio,
        };
        let peer = Peer {
            gigabits_per_second: median(7.5),
            latency_p50_us: median(1.0),
            latency_p99_us: median(1.0),
            cpu_seconds_per_gb: Some(median(1.0)),
        };
        Report {
            path: "/a".to_owned(),
            size_bytes: 1 << 20,
            block_bytes: 512,
            read_bytes_max: 65_536,
            kernel: "6".to_owned(),
            cores: 1,
            seconds: 1.0,
            rounds: 3,
            verified: false,
            fallback_reason: None,
            rows: vec![row(Series::Window, None), row(Series::Size, Some(peer))],
        }
    }

    #[test]
    fn what_is_printed_as_json_can_be_read_back() {
        let text = serde_json::to_string(&report()).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
        assert!(serde_json::from_str::<Report>("{}").is_err());
    }

    #[test]
    fn one_round_without_cpu_time_of_fio_leaves_it_out() {
        let sample = |cpu_seconds_per_gb| PeerSample {
            gigabits_per_second: 1.0,
            latency_p50_us: 1.0,
            latency_p99_us: 1.0,
            cpu_seconds_per_gb,
        };
        let cpu = |samples: &[PeerSample]| {
            let peer = Peer::of(samples).unwrap();
            peer.cpu_seconds_per_gb.map(|cpu| cpu.median)
        };
        assert_eq!(cpu(&[sample(Some(1.0)), sample(Some(3.0))]), Some(2.0));
        assert_eq!(cpu(&[sample(Some(1.0)), sample(None)]), None);
    }

    #[test]
    fn each_series_has_a_table_and_fio_stands_beside_where_it_ran() {
        let text = report().text();
        let (window, size) = text.split_once("Ways to read").unwrap();
        assert!(
            window.contains("12.50") && !window.contains("fio"),
            "{text}"
        );
        assert!(size.contains("12.50") && size.contains("7.50"), "{text}");
        let empty = Report {
            rows: Vec::new(),
            ..report()
        };
        assert!(!empty.text().contains("backend"));
    }
}
