//! A client whose segments reach another worker from the middle of a transfer on: the first queue of its
//! interface sends no more, and the second does (XPS).

use anyhow::{Context as _, Result, ensure};

use super::files::{self, LARGE_BYTES, Library, name};
use super::setup::{Family, Setup};
use testbed::namespace::VethPair;
use testbed::process::run as run_command;
use testbed::suite::Outcome;

/// Served right all the same, and counted.
pub(crate) fn run(setup: &Setup, library: &Library) -> Result<Outcome> {
    let server = setup.start(library.root(), None, None)?;
    let content = files::content(LARGE_BYTES);
    let half = LARGE_BYTES / 2;
    for family in Family::BOTH {
        send_from(setup, 0)?;
        let mut client = setup.connect(family)?;
        client.ask("GET", &name(LARGE_BYTES), "")?;
        let head = client.read_head()?;
        ensure!(head.status == 200, "{}: {}", family.name(), head.status);
        client.read_checked(content, 0, half)?;
        send_from(setup, 1)?;
        client.read_checked(content, half, LARGE_BYTES - half)?;
    }
    let stopped = server.stop()?;
    // The last client's segments were strays at the end, too: its close must have reached its worker.
    ensure!(
        !stopped.stderr.contains("grace time is over"),
        "its connection did not end"
    );
    for counter in ["tcp_stray_passed_count", "tcp_stray_taken_count"] {
        ensure!(stopped.counter(counter)? > 0, "{counter} is 0");
    }
    Ok(Outcome::Passed)
}

/// Has every processor of the client send from this queue.
fn send_from(setup: &Setup, queue: u32) -> Result<()> {
    let processors = std::thread::available_parallelism().context("counting processors")?;
    let all = (1_u64 << processors.get().min(32)) - 1;
    for other in 0..2 {
        let mask = if other == queue { all } else { 0 };
        let interface = VethPair::CLIENT_INTERFACE;
        let file = format!("/sys/class/net/{interface}/queues/tx-{other}/xps_cpus");
        // The namespace's own view of /sys is there only in a process started within.
        let mut shell = setup.client().command("sh");
        run_command(shell.args(["-c", &format!("echo {mask:x} > {file}")]))?;
    }
    Ok(())
}
