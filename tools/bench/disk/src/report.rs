//! The report: rows of medians, as JSON or as tables. No clock.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::fio::{Engine, PeerSample};
use crate::plan::{Job, Plan, Series, Turn};
use crate::stats::{Median, Sample, Summary};
use crate::target::{Backend, Target};

/// What was read, how, and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was read.
    pub path: String,
    /// How it was read.
    #[serde(default)]
    pub backend: Backend,
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
    /// fio's, one an engine that was asked for.
    pub fio: Vec<Peer>,
}

/// What fio measured of the same reads.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// How it read.
    pub engine: Engine,
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
    fn of(engine: Engine, samples: &[PeerSample]) -> Option<Self> {
        let over = |value: fn(&PeerSample) -> f64| Median::of(samples.iter().map(value));
        let cpu = samples.iter().map(|sample| sample.cpu_seconds_per_gb);
        let cpu: Option<Vec<f64>> = cpu.collect();
        Some(Self {
            engine,
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
    samples: Vec<Vec<Sample>>,
    peers: Vec<Vec<(Engine, PeerSample)>>,
}

impl Collected {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            samples: vec![Vec::new(); plan.jobs.len()],
            peers: vec![Vec::new(); plan.jobs.len()],
        }
    }

    pub(crate) fn add(&mut self, turn: &Turn, sample: Sample) {
        self.samples[turn.index].push(sample);
    }

    pub(crate) fn add_peer(&mut self, turn: &Turn, engine: Engine, sample: PeerSample) {
        self.peers[turn.index].push((engine, sample));
    }

    pub(crate) fn report(&self, target: &Target, plan: &Plan) -> Report {
        let row = |(index, job): (usize, &Job)| {
            let peer = |&engine: &Engine| {
                let of_engine = self.peers[index]
                    .iter()
                    .filter(|(other, _)| *other == engine);
                let samples: Vec<_> = of_engine.map(|(_, sample)| *sample).collect();
                Peer::of(engine, &samples)
            };
            Some(Row {
                job: *job,
                summary: Summary::of(&self.samples[index])?,
                fio: plan.engines.iter().filter_map(peer).collect(),
            })
        };
        Report {
            path: target.path.display().to_string(),
            backend: target.source.backend(),
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
            rows: plan.jobs.iter().enumerate().filter_map(row).collect(),
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
        self.add_table(
            &mut text,
            Series::Size,
            "Latency, throughput and CPU time by size",
        );
        text
    }

    fn add_table(&self, text: &mut String, series: Series, title: &str) {
        let rows = || self.rows.iter().filter(|row| row.job.series == series);
        if rows().next().is_none() {
            return;
        }
        let _ = write!(
            text,
            "\n{title}\n{:<19}{:>7}{:>7}",
            "reader", "bytes", "window"
        );
        for (heading, width, _) in COLUMNS {
            let _ = write!(text, "{heading:>width$}");
        }
        text.push('\n');
        for Row { job, summary, fio } in rows() {
            let name = format!("diskmap {}", self.backend.name());
            add_line(text, &name, job, &ours(summary));
            for peer in fio {
                let name = format!("fio {}", peer.engine.name());
                add_line(text, &name, job, &theirs(peer));
            }
        }
    }
}

/// Heading, width and decimal places.
const COLUMNS: [(&str, usize, usize); 9] = [
    ("Gb/s", 8, 2),
    ("reads/s", 10, 0),
    ("p50 us", 9, 0),
    ("p90 us", 9, 0),
    ("p99 us", 9, 0),
    ("99.9 us", 9, 0),
    ("cpu/GB", 8, 3),
    ("busy/GB", 8, 3),
    ("calls", 7, 2),
];

/// The figures of one line; `None` is what is not known.
type Figures = [Option<Median>; COLUMNS.len()];

fn ours(summary: &Summary) -> Figures {
    [
        summary.gigabits_per_second,
        summary.reads_per_second,
        summary.latency_p50_us,
        summary.latency_p90_us,
        summary.latency_p99_us,
        summary.latency_p99_9_us,
        summary.cpu_seconds_per_gb,
        summary.busy_seconds_per_gb,
        summary.system_calls_per_read,
    ]
    .map(Some)
}

fn theirs(peer: &Peer) -> Figures {
    [
        Some(peer.gigabits_per_second),
        None,
        Some(peer.latency_p50_us),
        None,
        Some(peer.latency_p99_us),
        None,
        peer.cpu_seconds_per_gb,
        None,
        None,
    ]
}

fn add_line(text: &mut String, name: &str, job: &Job, figures: &Figures) {
    let _ = write!(text, "{name:<19}{:>7}{:>7}", job.read_bytes, job.window);
    for ((_, width, places), figure) in COLUMNS.iter().zip(figures) {
        let _ = match figure {
            Some(figure) => write!(text, "{:>width$.places$}", figure.median),
            None => write!(text, "{:>width$}", "-"),
        };
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

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
                read_bytes: 16_384,
                window: 4,
            },
            summary: summary.clone(),
            fio,
        };
        let peer = Peer {
            engine: Engine::Libaio,
            gigabits_per_second: median(7.5),
            latency_p50_us: median(1.0),
            latency_p99_us: median(1.0),
            cpu_seconds_per_gb: Some(median(1.0)),
        };
        Report {
            backend: Backend::Uring,
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
            rows: vec![row(Series::Window, vec![]), row(Series::Size, vec![peer])],
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
            let peer = Peer::of(Engine::Psync, samples).unwrap();
            peer.cpu_seconds_per_gb.map(|cpu| cpu.median)
        };
        assert_eq!(cpu(&[sample(Some(1.0)), sample(Some(3.0))]), Some(2.0));
        assert_eq!(cpu(&[sample(Some(1.0)), sample(None)]), None);
    }

    #[test]
    fn each_series_has_a_table_and_fio_has_lines_where_it_ran() {
        let text = report().text();
        let (window, size) = text.split_once("CPU time by size").unwrap();
        assert!(
            window.contains("12.50") && !window.contains("fio"),
            "{text}"
        );
        assert!(size.contains("12.50"), "{text}");
        let fio = size.lines().last().unwrap();
        let words: Vec<_> = fio.split_whitespace().collect();
        let expected = "fio libaio 16384 4 7.50 - 1 - 1 - 1.000 - -";
        assert_eq!(words.join(" "), expected);
        let empty = Report {
            rows: Vec::new(),
            ..report()
        };
        assert!(!empty.text().contains("reader"));
    }
}
