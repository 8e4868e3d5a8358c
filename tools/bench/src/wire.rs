//! One run of `atlas-bench wire` beside a server: its command, and what is read of its report.
//!
//! It refuses a report of another version. Bounded by: [`LIMIT`].

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nic_wire::Report;
use nic_wire::report::Ending;
use testbed::namespace::{Namespace, VethPair};
use testbed::process::Process;

use crate::figures::cell::Cell;
use crate::lab::{CLIENT_CORE, Lab, SERVER_CORE};
use crate::stored::float;
use crate::tls::NAME;

/// Longest run: of the most viewers, whose handshakes come before it.
const LIMIT: Duration = Duration::from_secs(900);

/// Connections of which bytes are compared. What is compared of a frame on loan is copied, which costs the server's core.
const SAMPLED: u32 = 2;

/// Of which one stretch of 64 KiB in so many, over TLS one reply: with all, 2 of 64 connections were a fifteenth of what
/// Atlas's plaintext cost, a copy that no NIC makes.
const COMPARED_ONE_IN: u32 = 8;

/// Objects that a paced connection asks for before it is warm: after one its window is just short of the next, which takes
/// a round trip more for that.
pub(crate) const PACED_WARM_UP_REPLIES: u32 = 2;

/// Length of a window, seconds, if five median replies take no longer.
pub(crate) const WINDOW_SECONDS: u32 = 4;

/// A TAP that stays when its clients have ended, so that the server's end is in order; deleted when
/// dropped.
pub(crate) struct Tap<'a>(&'a Namespace);

impl<'a> Tap<'a> {
    /// Makes it.
    pub(crate) fn new(namespace: &'a Namespace, mtu: u16) -> Result<Self> {
        let (interface, kernel) = (VethPair::SERVER_INTERFACE, VethPair::KERNEL_V4);
        namespace.ip(&format!("tuntap add dev {interface} mode tap vnet_hdr"))?;
        let tap = Self(namespace);
        namespace.ip(&format!("addr add {kernel}/16 dev {interface}"))?;
        namespace.ip(&format!("link set {interface} mtu {mtu} up"))?;
        Ok(tap)
    }
}

impl Drop for Tap<'_> {
    fn drop(&mut self) {
        let interface = VethPair::SERVER_INTERFACE;
        if let Err(error) = self.0.ip(&format!("link del {interface}")) {
            eprintln!("could not delete {interface}: {error:#}");
        }
    }
}

/// What is asked of whom.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) lab: &'a Lab,
    /// `atlas-bench`.
    pub(crate) instruments: &'a Path,
    pub(crate) cell: &'a Cell,
    pub(crate) server: SocketAddr,
    /// A file with a path and the object's bytes on each line.
    pub(crate) paths: &'a Path,
    /// MTU of the wire, bytes.
    pub(crate) mtu: u16,
    pub(crate) seed: u64,
    /// Who comes beside the connections.
    pub(crate) visits: Option<Visits<'a>>,
}

/// Clients that come at a rate, ask once and go.
#[derive(Clone, Copy)]
pub(crate) struct Visits<'a> {
    pub(crate) per_second: u32,
    /// What they ask for, and its size.
    pub(crate) path: &'a str,
    pub(crate) bytes: u64,
}

/// The clients, waiting for a server that does not serve yet.
#[derive(Debug)]
pub(crate) struct Clients {
    process: Process,
    /// Reads what they say of their progress; gives the last line.
    last_line: JoinHandle<String>,
}

/// Seconds of the server's core that the filter took in the window, by what a run took before it.
pub(crate) fn filter_seconds(report: &Report) -> f64 {
    let measured = Duration::from_nanos(report.wire.filter_ns).as_secs_f64();
    let runs = float(report.wire.filter_runs.max(1));
    measured / runs * float(report.counts.frames)
}

/// What the server did wrong, if it did.
pub(crate) fn fault(report: &Report) -> Option<String> {
    if let Some(first) = report.first_faults.first() {
        return Some(first.clone());
    }
    (report.ended == Ending::Stalled).then(|| {
        format!(
            "it stopped serving: {} of {} connections stood, {} replies came",
            report.connections_open, report.connections, report.counts_since_start.replies
        )
    })
}

/// What the instrument itself did not manage.
pub(crate) fn defect(report: &Report) -> Option<String> {
    let lost = report.queue_dropped_frames;
    if lost > 0 {
        return Some(format!("the clients lost {lost} frames"));
    }
    (!report.is_valid).then(|| "the wire calls its run void".to_owned())
}

impl Run<'_> {
    /// Starts clients that wait for the server, on the TAP of the namespace.
    pub(crate) fn start(&self) -> Result<Clients> {
        let cell = self.cell;
        // What the disk copies goes first on the core that they share: clients that look for frames
        // without a pause would keep it waiting.
        let mut command = self.lab.wire.command("nice");
        command.args(["-n", "10"]);
        command.arg(self.instruments).arg("wire");
        let mut option = |name: &str, value: &str| {
            command.args([name, value]);
        };
        option("--interface", VethPair::SERVER_INTERFACE);
        option("--server", &self.server.to_string());
        option("--host-address", &format!("{}/16", VethPair::KERNEL_V4));
        option("--core", &CLIENT_CORE.to_string());
        option("--server-core", &SERVER_CORE.to_string());
        option("--connections", &(cell.connections - SAMPLED).to_string());
        option("--sample", &SAMPLED.to_string());
        option("--compare-one-in", &COMPARED_ONE_IN.to_string());
        option("--seed", &self.seed.to_string());
        option("--mtu", &self.mtu.to_string());
        option(
            "--seconds",
            &WINDOW_SECONDS.max(cell.every_seconds).to_string(),
        );
        if cell.is_distant {
            option("--rtt", "10-40");
        }
        if cell.loss_ppm > 0 {
            option("--loss", &cell.loss_ppm.to_string());
        }
        if cell.every_seconds > 0 {
            option("--every", &cell.every_seconds.to_string());
            option("--warm-up-replies", &PACED_WARM_UP_REPLIES.to_string());
            option("--warm-up-bytes", "0");
        }
        if let Some(visits) = self.visits {
            option("--visits", &visits.per_second.to_string());
            option("--visit-path", visits.path);
            option("--visit-bytes", &visits.bytes.to_string());
        }
        if cell.is_tls {
            option("--server-name", NAME);
            command.arg("--ca").arg(self.lab.authority());
        }
        command.arg("--objects").arg(self.paths);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn("atlas-bench wire", &mut command)?;
        let stderr = process
            .child()
            .stderr
            .take()
            .context("a pipe was asked for")?;
        let mut lines = BufReader::new(stderr);
        let mut said = String::new();
        while lines.read_line(&mut said)? > 0 {
            let is_ready = said
                .lines()
                .last()
                .is_some_and(|it| it.starts_with("ready "));
            if is_ready {
                // What it says of its progress is read to its end, or it would wait for us.
                let last_line = std::thread::spawn(move || {
                    let lines = lines.lines().map_while(Result::ok);
                    lines.last().unwrap_or_default()
                });
                return Ok(Clients { process, last_line });
            }
        }
        bail!("atlas-bench wire does not start: {}", said.trim());
    }
}

impl Clients {
    /// Waits for the end of the run. `Err` inside: the server did not serve, in the clients' words.
    pub(crate) fn finish(mut self) -> Result<Result<Report, String>> {
        let stdout = self.process.child().stdout.take();
        let mut stdout = stdout.context("a pipe was asked for")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        });
        self.process.wait(LIMIT)?;
        let text = reader.join().unwrap_or_default();
        if text.trim().is_empty() {
            return Ok(Err(self.last_line.join().unwrap_or_default()));
        }
        let report = serde_json::from_str(&text);
        report
            .context("reading the wire's report: is --bench-binary of another version?")
            .map(Ok)
    }
}
