//! One client over one path: what is set up, and what must hold afterwards.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bottleneck::path::QUEUE_FRAMES;
use bottleneck::{Middlebox, PathCounts};
use nic_wire::tap::{dropped_frames, open_plain};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use testbed::content;
use testbed::namespace::{Namespace, VethPair};
use testbed::server::{Server, Stopped};

use crate::client::{Client, Kind, Report};
use crate::observed::Observed;
use crate::scenario::{self, CONNECTIONS, FILE_BYTES, PORT, PREFIX_V4, PREFIX_V6, Scenario};

/// How long a client may take. At 5 % loss it takes seconds.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Room in the socket pair, each way: more than all windows of a client.
const SOCKET_BYTES: usize = 64 << 20;

/// Where the server tells its counters, on the loopback of its namespace.
const METRICS: &str = "127.0.0.1:9100";

/// The counter of connections that both sides have ended.
const FINISHED: &str = "atlas_tcp_finished_total";

/// What a run showed.
#[derive(Clone, Debug)]
struct Outcome {
    /// Of the client.
    report: Report,
    /// Of the middlebox.
    counts: PathCounts,
    /// On the wire.
    observed: Observed,
}

/// Writes the files that are fetched.
///
/// # Errors
/// Those of writing.
pub fn write_files(root: &Path) -> Result<()> {
    for bytes in FILE_BYTES {
        content::write(
            scenario::content(bytes),
            &root.join(scenario::file_name(bytes)),
        )?;
    }
    Ok(())
}

/// Runs a client against the server `atlas`, which serves `root`, over a path.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(atlas: &Path, root: &Path, client: &Client, scenario: &Scenario) -> Result<()> {
    let (namespace, client_namespace) = (Namespace::new("is")?, Namespace::new("ic")?);
    // IPv6 of the kernel is off: what it announces by itself is not part of the path.
    for name in ["all", "default"] {
        namespace.set(&format!("ipv6/conf/{name}/disable_ipv6"), "1")?;
    }
    let interface = VethPair::SERVER_INTERFACE;
    let tap = namespace.enter(|| open_plain(interface))?;
    namespace.ip(&format!(
        "link set {interface} mtu 1500 txqueuelen {QUEUE_FRAMES} up"
    ))?;
    let (near, far) = socket_pair()?;
    // Frames that come when the client has ended have somewhere to go.
    let _open = far.try_clone().context("keeping the client's end open")?;
    let observed = Arc::new(Mutex::new(Observed::default()));
    let shared = Arc::clone(&observed);
    let plan = scenario.plan();
    let middlebox = Middlebox::start_observed(
        tap,
        near,
        plan.forth,
        plan.back,
        Box::new(move |direction, frame| {
            let mut observed = shared.lock().unwrap_or_else(PoisonError::into_inner);
            observed.observe(direction, frame);
        }),
    )?;
    let server = start(&namespace, atlas, root)?;
    let report = client.run(&client_namespace, far, &mut || is_over(&namespace))?;
    let stopped = server.stop()?;
    let drops = namespace.enter(|| dropped_frames(interface))?;
    ensure!(
        drops == 0,
        "{drops} frames found no room in the TAP: nobody planned these losses"
    );
    let counts = middlebox.stop()?;
    let observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = Outcome {
        report,
        counts,
        observed: observed.clone(),
    };
    check_server(&stopped)?;
    check(client.kind, scenario, &outcome)
}

/// The middlebox's end, which does not block, and the client's, which does. Messages are frames.
fn socket_pair() -> Result<(File, OwnedFd)> {
    let (near, far) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .context("making a socket pair")?;
    for end in [&near, &far] {
        sockopt::set_socket_send_buffer_size_force(end, SOCKET_BYTES)
            .context("room in a socket pair")?;
    }
    rustix::io::ioctl_fionbio(&near, true).context("a socket that does not block")?;
    Ok((File::from(near), far))
}

fn start(namespace: &Namespace, atlas: &Path, root: &Path) -> Result<Server> {
    let mut command = namespace.command("env");
    command.arg(atlas).arg("serve").arg(root);
    command.args(["--link", &format!("packet:{}", VethPair::SERVER_INTERFACE)]);
    for (address, prefix) in [
        (VethPair::ATLAS_V4, PREFIX_V4),
        (VethPair::ATLAS_V6, PREFIX_V6),
    ] {
        command.args(["--address", &format!("{address}/{prefix}")]);
    }
    command.args(["--http", &PORT.to_string(), "--metrics", METRICS]);
    Server::atlas(&mut command)
}

/// Whether the server has seen every connection to its end. It publishes its counters once a second.
fn is_over(namespace: &Namespace) -> Result<bool> {
    let mut client = testbed::client::Client::connect(namespace, METRICS.parse()?)?;
    let (_, body) = client.exchange("GET", "/metrics", "Connection: close\r\n")?;
    let text = String::from_utf8(body)?;
    let value = text.lines().find_map(|line| line.strip_prefix(FINISHED));
    let value = value.with_context(|| format!("the metrics have no {FINISHED}"))?;
    Ok(value.trim().parse::<u64>()? >= CONNECTIONS)
}

/// The server must have seen every connection to a proper end.
fn check_server(stopped: &Stopped) -> Result<()> {
    for counter in ["tcp_reset_count", "tcp_abort_count", "tcp_timeout_count"] {
        let count = stopped.counter(counter)?;
        ensure!(count == 0, "{counter} of the server is {count}");
    }
    let finished = stopped.counter("tcp_finished_count")?;
    ensure!(
        finished == CONNECTIONS,
        "{finished} of {CONNECTIONS} connections ended by a FIN of both sides"
    );
    Ok(())
}

/// Everything was fetched, nothing was damaged, and the path did what was planned.
fn check(kind: Kind, scenario: &Scenario, outcome: &Outcome) -> Result<()> {
    let Outcome {
        report,
        counts,
        observed,
        ..
    } = outcome;
    let fetched = (report.connections, report.bytes);
    ensure!(
        fetched == (CONNECTIONS, scenario::total_bytes()),
        "{fetched:?} connections and bytes"
    );
    for (count, what) in [
        (report.checksum_errors, "checksum errors, says the client"),
        (report.invalid_segments, "invalid segments, says the client"),
        (
            report.malformed_packets,
            "malformed packets, says the client",
        ),
        (
            observed.early_resets,
            "resets by the server before the client closed",
        ),
        (observed.damaged_frames, "damaged frames on the wire"),
        (counts.forth.oversize_frames, "frames larger than the MTU"),
    ] {
        ensure!(count == 0, "{count} {what}");
    }
    ensure!(
        observed.agreed == [kind.options()],
        "agreed are {:?}, not {:?}",
        observed.agreed,
        kind.options()
    );
    check_faults(kind, scenario, outcome)
}

fn check_faults(kind: Kind, scenario: &Scenario, outcome: &Outcome) -> Result<()> {
    let (observed, forth) = (&outcome.observed, &outcome.counts.forth);
    let disorder = scenario.disorder;
    for (ppm, count, what) in [
        (scenario.loss_ppm, forth.lost_frames, "lost"),
        (disorder.reorder_ppm, forth.reordered_frames, "held back"),
        (disorder.duplicate_ppm, forth.duplicated_frames, "doubled"),
    ] {
        ensure!((count > 0) == (ppm > 0), "{count} frames were {what}");
    }
    if scenario.loss_ppm > 0 {
        let resent = outcome.counts.flows.iter().map(|it| it.resent_bytes);
        ensure!(resent.sum::<u64>() > 0, "nothing was sent again");
        let has_sack = observed.sack_segments > 0;
        ensure!(
            has_sack == kind.options().sack,
            "{} segments with SACK",
            observed.sack_segments
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bottleneck::FlowCounts;

    use super::*;
    use crate::scenario::SCENARIOS;

    fn flow(resent_bytes: u64) -> FlowCounts {
        let end = "10.0.0.1:1".parse().unwrap();
        FlowCounts {
            from: end,
            to: end,
            sent_bytes: 1,
            resent_bytes,
            pause_us_max: 0,
        }
    }

    fn outcome() -> Outcome {
        let mut observed = Observed::default();
        observed.agreed.push(Kind::Gvisor.options());
        let leg = bottleneck::Leg::new(SCENARIOS[0].plan().forth).counts;
        Outcome {
            report: Report {
                connections: CONNECTIONS,
                bytes: scenario::total_bytes(),
                ..Report::default()
            },
            counts: PathCounts {
                forth: leg,
                back: leg,
                flows: Vec::new(),
                seconds: 1.0,
                cpu_seconds: 0.1,
                is_realtime: true,
            },
            observed,
        }
    }

    #[test]
    fn a_run_without_faults_holds_and_each_thing_that_is_wrong_is_refused() {
        let holds = |outcome: &Outcome| check(Kind::Gvisor, &SCENARIOS[0], outcome).is_ok();
        assert!(holds(&outcome()));
        let breaks: [fn(&mut Outcome); 8] = [
            |it| it.report.connections -= 1,
            |it| it.report.bytes -= 1,
            |it| it.report.checksum_errors = 1,
            |it| it.observed.early_resets = 1,
            |it| it.observed.damaged_frames = 1,
            |it| it.observed.agreed[0].sack = false,
            |it| it.observed.agreed.clear(),
            |it| it.counts.forth.lost_frames = 1,
        ];
        for change in breaks {
            let mut outcome = outcome();
            change(&mut outcome);
            assert!(!holds(&outcome), "{outcome:?}");
        }
    }

    #[test]
    fn loss_must_be_seen_by_both_sides() {
        let holds = |outcome: &Outcome| check(Kind::Gvisor, &SCENARIOS[1], outcome).is_ok();
        let mut outcome = outcome();
        assert!(!holds(&outcome), "nothing was lost");
        outcome.counts.forth.lost_frames = 1;
        outcome.counts.flows.push(flow(1));
        assert!(!holds(&outcome), "no SACK");
        outcome.observed.sack_segments = 1;
        assert!(holds(&outcome));
        outcome.counts.flows = vec![flow(0)];
        assert!(!holds(&outcome), "nothing was sent again");
    }
}
