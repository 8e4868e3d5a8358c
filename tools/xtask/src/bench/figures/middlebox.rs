//! The clients' distance: `atlas-bench delay` on the client's side of the cable, for one run.
//!
//! All that leaves the client's end is turned aside to a spare cable, held there and sent on; what
//! comes back is not touched. Undone when dropped: without it nothing would leave. Bounded by: the
//! deadline of its end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::bench::lab::CLIENT_CORE;
use testbed::namespace::{Namespace, VethPair as Cable};
use testbed::process::{Process, run};

/// Longest wait for its end: it sends what it holds first.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The spare cable, standing in the client's namespace for as long as the bench does. Where no
/// middlebox runs the filter is away, and frames go the plain way.
pub(super) fn lay_spare_cable(client: &Namespace) -> Result<()> {
    client.ip("link add hold0 mtu 1500 type veth peer name hold1 mtu 1500")?;
    for end in ["hold0", "hold1"] {
        // Nothing but the clients' frames is to be on it.
        client.set(&format!("ipv6/conf/{end}/disable_ipv6"), "1")?;
        client.ip(&format!("link set {end} arp off up"))?;
    }
    tc(client, "qdisc add", "clsact")
}

fn tc(client: &Namespace, verb: &str, what: &str) -> Result<()> {
    let interface = Cable::CLIENT_INTERFACE;
    let mut command = client.command("tc");
    command
        .args(verb.split_whitespace())
        .args(["dev", interface]);
    run(command.args(what.split_whitespace())).map(drop)
}

/// A middlebox at work.
pub(super) struct Middlebox<'a> {
    process: Process,
    client: &'a Namespace,
}

impl<'a> Middlebox<'a> {
    /// Starts it on the client's core and turns the client's frames aside.
    pub(super) fn start(instruments: &Path, client: &'a Namespace) -> Result<Self> {
        let mut command = client.command("taskset");
        command
            .args(["-c", &CLIENT_CORE.to_string()])
            .arg(instruments);
        command.args(["delay", "--from", "hold1", "--to", Cable::CLIENT_INTERFACE]);
        command.args(["--realtime", "--json"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn("atlas-bench delay", &mut command)?;
        let stderr = process.child().stderr.take().context("a pipe")?;
        let mut line = String::new();
        BufReader::new(stderr).read_line(&mut line)?;
        ensure!(
            line.starts_with("ready "),
            "atlas-bench delay: {}",
            line.trim()
        );
        // From here on dropping it takes the filter away again.
        let middlebox = Self { process, client };
        let aside = "egress protocol all u32 match u32 0 0 action mirred egress redirect dev hold0";
        tc(client, "filter add", aside)?;
        Ok(middlebox)
    }

    /// Ends it: its report.
    pub(super) fn stop(mut self) -> Result<serde_json::Value> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait_out(END_LIMIT)?;
        ensure!(status.success(), "atlas-bench delay ended with {status}");
        let mut text = String::new();
        let stdout = self.process.child().stdout.take();
        stdout.context("a pipe")?.read_to_string(&mut text)?;
        serde_json::from_str(&text).context("reading the middlebox's report")
    }
}

impl Drop for Middlebox<'_> {
    fn drop(&mut self) {
        // There may be none yet; what stands in the way of the next run is told by that run.
        let _ = tc(self.client, "filter del", "egress");
    }
}
