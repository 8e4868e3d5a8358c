//! What every bench asks with: `atlas-bench load`, in the client's namespace, on the client's core.
//!
//! Here its command is built and its report read. It refuses a run in which anything went wrong,
//! and handshakes that agreed on anything else than what the bench fixes. Bounded by: [`LIMIT`].

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ::load::{Ending, Report, Suite, Version};
use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::lab::{CLIENT_CORE, Lab, SERVER_CORE};
use super::tls::{NAME, argument};
use testbed::bench_disk::read_bytes;
use testbed::process::output;

/// Objects compared byte by byte after each window.
pub(crate) const SAMPLE_OBJECTS: u64 = 64;

/// Connections of the comparison.
const SAMPLE_CONNECTIONS: u64 = 16;

/// A load that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(300);

/// Bits in a gigabit, bytes in a gigabyte: decimal, as networks count.
const GIGA: f64 = 1e9;

/// A load on one server.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) lab: &'a Lab,
    /// `atlas-bench`.
    pub(crate) instruments: &'a Path,
    /// Where lists of URLs are written.
    pub(crate) directory: &'a Path,
    pub(crate) server: SocketAddr,
    /// So many of the disk's objects are asked for, the first ones.
    pub(crate) objects: u64,
    pub(crate) connections: u64,
    /// The only version and AEAD that are offered, if the servers speak TLS.
    pub(crate) tls: Option<(Version, Suite)>,
}

/// What a window brought.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) report: Report,
    /// Bytes read from the objects' disk from the load's start to its end.
    pub(crate) disk_read_bytes: u64,
}

impl Load<'_> {
    /// The timed window; `arguments` say how much is asked, and how.
    pub(crate) fn run(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Window> {
        let mut command = self.command(&self.urls(1, self.objects), self.connections)?;
        command.args(["--watch-core", &format!("{SERVER_CORE},{CLIENT_CORE}")]);
        command.args(arguments);
        let device = &self.lab.disk().device;
        let before = read_bytes(device)?;
        let report = self.read(&mut command)?;
        Ok(Window {
            report,
            disk_read_bytes: read_bytes(device)? - before,
        })
    }

    /// Fetches a sample spread over all objects and looks at every byte; how many were right.
    pub(crate) fn verify(&self) -> Result<u64> {
        let step = (self.objects / SAMPLE_OBJECTS).max(1);
        let mut command = self.command(&self.urls(step, SAMPLE_OBJECTS), SAMPLE_CONNECTIONS)?;
        command.args(["--once", "--verify"]);
        let verified = self.read(&mut command)?.verified_replies;
        ensure!(
            verified == SAMPLE_OBJECTS.min(self.objects),
            "only {verified} objects could be compared"
        );
        Ok(verified)
    }

    /// What is asked, a URL a line: each `step`th object, `most` at most.
    fn urls(&self, step: u64, most: u64) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut text = String::new();
        for index in (0..most).map(|turn| turn * step) {
            if index < self.objects {
                let path = self.lab.disk().objects.path(index);
                let _ = writeln!(text, "{scheme}://{}{path}", self.server);
            }
        }
        text
    }

    /// Asks for all objects on each connection until its time is over; the rest is to be added.
    pub(crate) fn streams(&self) -> Result<Command> {
        let mut command = self.command(&self.urls(1, self.objects), self.connections)?;
        command.args(["--watch-core", &format!("{SERVER_CORE},{CLIENT_CORE}")]);
        Ok(command)
    }

    fn command(&self, urls: &str, connections: u64) -> Result<Command> {
        let file = self.directory.join("urls");
        fs::write(&file, urls).with_context(|| format!("writing {}", file.display()))?;
        let mut command = plain_command(self.lab, self.instruments);
        command.arg("--urls").arg(file);
        command.args(["--connections", &connections.to_string()]);
        command.args(["--expect-bytes", &self.lab.disk().objects.bytes.to_string()]);
        if let Some(tls) = self.tls {
            offer(&mut command, self.lab, tls);
        }
        Ok(command)
    }

    fn read(&self, command: &mut Command) -> Result<Report> {
        let output = output(command, LIMIT)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "the load failed: {}",
            stderr.trim()
        );
        let report = serde_json::from_slice(&output.stdout)
            .context("reading the load's report: is --bench-binary of another version?")?;
        check(&report, self.tls)?;
        Ok(report)
    }
}

/// A load over TLS, of whatever is to be added.
pub(crate) fn tls_command(lab: &Lab, instruments: &Path, tls: (Version, Suite)) -> Command {
    let mut command = plain_command(lab, instruments);
    offer(&mut command, lab, tls);
    command
}

pub(crate) fn plain_command(lab: &Lab, instruments: &Path) -> Command {
    let mut command = lab.veth.client.command("taskset");
    command.args(["-c", &CLIENT_CORE.to_string()]);
    command.arg(instruments).args(["load", "--json"]);
    command
}

/// Runs an instrument to its end and reads its report. That clients failed may be what is to be seen,
/// so it is no failure here.
pub(crate) fn read_report<R: DeserializeOwned>(
    command: &mut Command,
    limit: Duration,
) -> Result<R> {
    let output = output(command, limit)?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("reading an instrument's report; it said: {}", stderr.trim())
    })
}

/// The only version and AEAD that are offered, where servers speak TLS.
fn offer(command: &mut Command, lab: &Lab, (version, suite): (Version, Suite)) {
    command.args(["--tls-version", &argument(version)]);
    command.args(["--suite", &argument(suite)]);
    command
        .args(["--server-name", NAME, "--ca"])
        .arg(lab.authority());
}

/// Refuses a run that was not done, met an error, or agreed on something else.
fn check(report: &Report, tls: Option<(Version, Suite)>) -> Result<()> {
    ensure!(
        report.errors.is_empty() && matches!(report.ended, Ending::Done | Ending::Time),
        "not all went well ({:?}): {:?}; {:?}",
        report.ended,
        report.errors,
        report.first_errors
    );
    ensure!(
        report.tls.is_empty() == tls.is_none(),
        "{} handshakes",
        report.handshakes
    );
    let other = tls.and_then(|(version, suite)| {
        let mut agreed = report.tls.iter();
        agreed.find(|it| !it.is(version, suite))
    });
    ensure!(
        other.is_none(),
        "both ends agreed on something else: {other:?}"
    );
    Ok(())
}

/// Time of one core in a window, seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CoreSeconds {
    pub(crate) busy: f64,
    pub(crate) idle: f64,
    /// Taken by the hypervisor: neither ours nor idle.
    pub(crate) steal: f64,
}

/// What the server's core and the client's did in a window.
pub(crate) fn cores(report: &Report) -> Result<(CoreSeconds, CoreSeconds)> {
    let of = |core| {
        let found = report.cores.iter().find(|it| it.core == core);
        let found = found.with_context(|| format!("the load did not watch core {core}"))?;
        Ok::<_, anyhow::Error>(CoreSeconds {
            busy: found.busy,
            idle: found.idle,
            steal: found.steal,
        })
    };
    Ok((of(SERVER_CORE)?, of(CLIENT_CORE)?))
}

/// What the bodies of a window cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cost {
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
}

impl Cost {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes of one run are far below 2^52"
    )]
    pub(crate) fn new(report: &Report) -> Result<Self> {
        let (server, client) = cores(report)?;
        let gigabytes = report.body_bytes as f64 / GIGA;
        ensure!(
            gigabytes > 0.0 && report.seconds > 0.0,
            "nothing was served"
        );
        Ok(Self {
            gbps: gigabytes * 8.0 / report.seconds,
            core_seconds_per_gb: server.busy / gigabytes,
            all_core_seconds_per_gb: (server.busy + client.busy) / gigabytes,
            server_core_busy: server.busy / report.seconds,
            client_core_busy: client.busy / report.seconds,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ::load::{Agreed, Kind};

    use super::*;

    /// A report of a run in which all went well.
    pub(in super::super) fn report(seconds: f64, body_bytes: u64, busy: [f64; 2]) -> Report {
        let cores = [SERVER_CORE, CLIENT_CORE].into_iter().zip(busy);
        Report {
            seconds,
            body_bytes,
            cores: cores
                .map(|(core, busy)| ::load::cores::CoreSeconds {
                    core,
                    busy,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
    }

    fn agreed(group: &str) -> Agreed {
        Agreed {
            version: "TLSv1_3".to_owned(),
            suite: "TLS13_AES_128_GCM_SHA256".to_owned(),
            group: group.to_owned(),
            kind: Kind::Full,
            handshakes: 1,
        }
    }

    #[test]
    fn costs_are_decimal_and_of_the_right_core() {
        let cost = Cost::new(&report(2.0, 1_000_000_000, [0.5, 1.0])).expect("a whole report");
        assert!((cost.gbps - 4.0).abs() < 1e-9);
        assert!((cost.core_seconds_per_gb - 0.5).abs() < 1e-9);
        assert!((cost.all_core_seconds_per_gb - 1.5).abs() < 1e-9);
        assert!((cost.server_core_busy - 0.25).abs() < 1e-9);
        assert!((cost.client_core_busy - 0.5).abs() < 1e-9);
    }

    #[test]
    fn nothing_served_and_a_core_not_watched_have_no_cost() {
        for (seconds, bytes) in [(0.0, 1), (1.0, 0)] {
            Cost::new(&report(seconds, bytes, [0.5, 0.5])).expect_err("nothing");
        }
        let mut lacking = report(1.0, 1, [0.5, 0.5]);
        lacking.cores.pop();
        Cost::new(&lacking).expect_err("the client's core");
    }

    #[test]
    fn a_run_with_an_error_or_broken_off_is_refused() {
        let right = report(1.0, 1, [0.5, 0.5]);
        check(&right, None).expect("right");
        let mut wrong = right.clone();
        wrong.errors.insert("timed_out".to_owned(), 1);
        check(&wrong, None).expect_err("an error");
        for ended in [Ending::Interrupted, Ending::GaveUp] {
            let broken = Report {
                ended,
                ..right.clone()
            };
            check(&broken, None).expect_err("it was broken off");
        }
    }

    #[test]
    fn what_was_agreed_on_is_what_the_bench_fixes() {
        let tls = Some((Version::Tls13, Suite::Aes128Gcm));
        let with = |tls| Report {
            tls,
            ..Report::default()
        };
        check(&with(vec![agreed("X25519")]), tls).expect("as wanted");
        check(&with(vec![agreed("X25519"), agreed("secp256r1")]), tls).expect_err("a group");
        check(&with(vec![]), tls).expect_err("no handshake at all");
        check(&with(vec![agreed("X25519")]), None).expect_err("nobody wanted TLS");
        let other = Some((Version::Tls13, Suite::ChaCha20));
        check(&with(vec![agreed("X25519")]), other).expect_err("an AEAD");
    }
}
