//! fio beside us: the same file, read size and reads in flight, by its engines, with its own
//! figures. It opens for reading only (`--readonly`).
//!
//! Refuses a machine without fio, and what fio prints if it is not its JSON. Bounded by the plan:
//! fio runs as long as we measure, with at most a window of reads or threads.
//!
//! Its latency runs from the end of a submission, ours from before it; and left to itself it
//! submits each read by a call of its own, where we submit what there is. It counts the CPU time of
//! each thread in whole milliseconds: of many threads that ran a little each, little is left.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Job;

/// An engine of fio, and how it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Engine {
    /// io_uring without registered memory and files, as most programs use it
    #[value(name = "io_uring")]
    #[serde(rename = "io_uring")]
    IoUring,
    /// io_uring with both, as diskmap uses it
    #[value(name = "io_uring-fixed")]
    #[serde(rename = "io_uring-fixed")]
    IoUringFixed,
    /// Linux native AIO: io_submit, io_getevents
    #[value(name = "libaio")]
    #[serde(rename = "libaio")]
    Libaio,
    /// One pread at a time, in as many threads as reads in flight
    #[value(name = "psync")]
    #[serde(rename = "psync")]
    Psync,
}

impl Engine {
    /// As on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::IoUringFixed => "io_uring-fixed",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
        }
    }

    /// The name fio knows, the reads in flight of each thread, and how many threads.
    const fn means(self, window: u32) -> (&'static str, u32, u32) {
        match self {
            Self::IoUring | Self::IoUringFixed => ("io_uring", window, 1),
            Self::Libaio => ("libaio", window, 1),
            Self::Psync => ("psync", 1, window),
        }
    }
}

/// What fio measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PeerSample {
    pub(crate) gigabits_per_second: f64,
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    /// `None` where it ran too short for its own clock.
    pub(crate) cpu_seconds_per_gb: Option<f64>,
}

/// What fio may leave out of a thread's CPU time: up to a millisecond of the user's, as much of the
/// system's.
const CPU_ERROR_SECONDS: f64 = 2e-3;

/// The part that may be left out of a figure that is to be told.
const CPU_ERROR_MAX: f64 = 0.1;

/// Refuses a machine without fio before anything is measured.
pub(crate) fn check() -> Result<()> {
    let output = Command::new("fio").arg("--version").output();
    let output =
        output.context("fio cannot be run: install it (package fio), or leave out --fio")?;
    ensure!(output.status.success(), "fio --version: {}", output.status);
    Ok(())
}

/// Runs fio for `time`.
pub(crate) fn measure(
    path: &Path,
    engine: Engine,
    job: &Job,
    time: Duration,
) -> Result<PeerSample> {
    let path = path.to_str().context("fio takes no such file name")?;
    let output = Command::new("fio")
        .args(arguments(path, engine, job, time))
        .output()
        .context("running fio")?;
    ensure!(
        output.status.success(),
        "fio: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let (_, _, threads) = engine.means(job.window);
    parse(&output.stdout, threads).context("reading what fio printed")
}

fn arguments(path: &str, engine: Engine, job: &Job, time: Duration) -> Vec<String> {
    let (name, depth, threads) = engine.means(job.window);
    let mut arguments = vec![
        "--name=atlas".to_owned(),
        // fio takes a colon for the end of a name.
        format!("--filename={}", path.replace(':', "\\:")),
        "--readonly".to_owned(),
        "--rw=randread".to_owned(),
        "--direct=1".to_owned(),
        "--norandommap".to_owned(),
        "--randrepeat=0".to_owned(),
        format!("--ioengine={name}"),
        format!("--bs={}", job.read_bytes),
        format!("--iodepth={depth}"),
        format!("--numjobs={threads}"),
        "--thread".to_owned(),
        "--group_reporting".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={}us", time.as_micros()),
        "--output-format=json".to_owned(),
    ];
    if engine == Engine::IoUringFixed {
        arguments.push("--fixedbufs=1".to_owned());
        arguments.push("--registerfiles=1".to_owned());
    }
    arguments
}

fn parse(output: &[u8], threads: u32) -> Result<PeerSample> {
    // fio may print notes before the object.
    let start = output.iter().position(|byte| *byte == b'{');
    let text = output.get(start.context("no JSON")?..).unwrap_or_default();
    let value: Value = serde_json::from_slice(text)?;
    let job = &value["jobs"][0];
    let number = |pointer: &str| {
        job.pointer(pointer)
            .and_then(Value::as_f64)
            .with_context(|| format!("no {pointer}"))
    };
    let bytes = number("/read/io_bytes")?;
    let runtime_seconds = number("/read/runtime")? / 1e3;
    ensure!(bytes > 0.0, "it read nothing");
    // Percents of the running times of all threads, which `job_runtime` adds up.
    let cpu_percent = number("/usr_cpu")? + number("/sys_cpu")?;
    let cpu_seconds = cpu_percent / 100.0 * number("/job_runtime")? / 1e3;
    let error_seconds = f64::from(threads) * CPU_ERROR_SECONDS;
    let is_told = error_seconds <= CPU_ERROR_MAX * cpu_seconds;
    Ok(PeerSample {
        gigabits_per_second: bytes * 8.0 / 1e9 / runtime_seconds,
        latency_p50_us: number("/read/clat_ns/percentile/50.000000")? / 1e3,
        latency_p99_us: number("/read/clat_ns/percentile/99.000000")? / 1e3,
        cpu_seconds_per_gb: is_told.then_some(cpu_seconds * 1e9 / bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Series;

    #[test]
    fn fio_is_asked_for_the_same_reads_and_never_writes() {
        let job = Job {
            series: Series::Size,
            read_bytes: 16_384,
            window: 32,
        };
        let text = |path, engine| arguments(path, engine, &job, Duration::from_secs(1)).join(" ");
        let fixed = text("/a:b", Engine::IoUringFixed);
        for part in [
            "--filename=/a\\:b ",
            "--readonly",
            "--rw=randread",
            "--direct=1",
            "--bs=16384",
            "--ioengine=io_uring ",
            "--iodepth=32",
            "--numjobs=1",
            "--runtime=1000000us",
            "--fixedbufs=1",
        ] {
            assert!(fixed.contains(part), "{part} in {fixed}");
        }
        for (engine, part) in [
            (
                Engine::IoUring,
                "--ioengine=io_uring --bs=16384 --iodepth=32 --numjobs=1 ",
            ),
            (
                Engine::Libaio,
                "--ioengine=libaio --bs=16384 --iodepth=32 --numjobs=1 ",
            ),
            (
                Engine::Psync,
                "--ioengine=psync --bs=16384 --iodepth=1 --numjobs=32 ",
            ),
        ] {
            let text = text("/a", engine);
            assert!(text.contains(part), "{part} in {text}");
            assert!(!text.contains("fixedbufs"), "{text}");
        }
    }

    #[test]
    fn what_fio_prints_is_read_in_our_units() {
        let text = br#"note: both iodepth >= 1 and synchronous I/O engine are selected
            {"jobs":[{"job_runtime":2000,"usr_cpu":10.0,"sys_cpu":40.0,"read":{
            "io_bytes":1000000000,"runtime":1000,"clat_ns":{"percentile":
            {"50.000000":80000,"99.000000":900000}}}}]}"#;
        let sample = parse(text, 2).unwrap();
        assert_eq!(sample.gigabits_per_second, 8.0);
        assert_eq!(sample.latency_p50_us, 80.0);
        assert_eq!(sample.latency_p99_us, 900.0);
        assert_eq!(sample.cpu_seconds_per_gb, Some(1.0));
        // 50 threads may have lost a tenth of that second, 51 more.
        assert_eq!(parse(text, 50).unwrap().cpu_seconds_per_gb, Some(1.0));
        assert_eq!(parse(text, 51).unwrap().cpu_seconds_per_gb, None);
        for wrong in [
            &b""[..],
            b"{",
            b"{}",
            br#"{"jobs":[{"read":{"io_bytes":0}}]}"#,
        ] {
            assert!(parse(wrong, 1).is_err());
        }
    }
}
