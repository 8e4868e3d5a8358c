//! `--take-over N`: viewers in mid-stream, plaintext and TLS, while other processes take over again and again, with other
//! replies, memory and numbers of workers; and nginx's reload beside it, if nginx is there.
//!
//! Fails at the first failed request, reset or wrong byte; prints the longest time that a viewer got nothing, beyond
//! its own pace. Bounded by: [`VIEWERS`] of each kind, the times asked for, a limit on every wait.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::files::{self, Library, name};
use super::identities::Identities;
use super::setup::{Family, HTTPS_PORT, LinkKind, PORT, Setup};
use testbed::client::Client;
use testbed::namespace::{Namespace, VethPair};
use testbed::process::output;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Viewers over plain HTTP, and as many over TLS.
const VIEWERS: usize = 8;
/// What each fetches again and again.
const FILM_BYTES: u64 = 8 << 20;
/// What a viewer reads at once, and how long it waits then: 4 MB/s.
const PIECE_BYTES: u64 = 128 << 10;
const PACE: Duration = Duration::from_millis(32);
/// Between two take-overs.
const INTERVAL: Duration = Duration::from_millis(700);
/// How long a reload and a transfer may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long processes may take to end once their viewers have left.
const END_LIMIT: Duration = Duration::from_secs(20);

/// What viewers of one kind met.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    replies: u64,
    longest_stall: Duration,
}

/// All links that another process can take over.
pub(super) fn run(
    suite: &mut Suite,
    (atlas, library, identities): (&Path, &Library, &Identities),
    links: &[LinkKind],
    times: u32,
) {
    let can_be = |kind: &&LinkKind| matches!(kind, LinkKind::Packet | LinkKind::Tap);
    for &kind in links.iter().filter(can_be) {
        run_one(suite, (atlas, library, identities), kind, times);
    }
    let mut said = String::new();
    suite.run(&format!("nginx: reloaded {times} times"), || {
        let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
        let Some(nginx) = setup.start_reference(library.root())? else {
            return Ok(Outcome::Skipped("nginx is not installed".into()));
        };
        let address = super::setup::REFERENCE.parse()?;
        let work = || {
            for _ in 0..times {
                thread::sleep(INTERVAL);
                nginx.signal(Signal::HUP)?;
            }
            Ok(())
        };
        let seen = watch(&[&|stop| view(setup.client(), address, stop)], work);
        said = match seen {
            Ok(seen) => describe(&seen),
            // It is nginx's to say; a reload of it may close a connection that a request is on its way on.
            Err(error) => format!("    nginx: {error:#}"),
        };
        Ok(Outcome::Passed)
    });
    println!("{said}");
}

/// One of them.
pub(super) fn run_one(
    suite: &mut Suite,
    served: (&Path, &Library, &Identities),
    kind: LinkKind,
    times: u32,
) {
    let mut said = String::new();
    suite.run(
        &format!("{} taken over {times} times", kind_name(kind)),
        || {
            let setup = Setup::usual(kind, served.0, 1)?;
            said = watch_take_overs(&setup, served, kind, times)?;
            Ok(Outcome::Passed)
        },
    );
    println!("{said}");
}

fn describe(seen: &[Seen]) -> String {
    let each = seen
        .iter()
        .map(|seen| match seen.longest_stall.as_millis() {
            0 => format!("{} replies", seen.replies),
            stall => format!("{} replies, longest stall {stall} ms", seen.replies),
        });
    format!("    {}", each.collect::<Vec<_>>().join("; TLS: "))
}

fn watch_take_overs(
    setup: &Setup,
    (atlas, library, identities): (&Path, &Library, &Identities),
    kind: LinkKind,
    times: u32,
) -> Result<String> {
    let scratch = testbed::scratch_directory("take-over")?;
    let config = scratch.path().join("atlas.toml");
    let write = |round: u32| {
        // A tap keeps its number of queues.
        let workers = if kind == LinkKind::Tap {
            1
        } else {
            1 + round % 2
        };
        let slots = 512 + round;
        let is_cached = round.is_multiple_of(2);
        let text = format!("workers = {workers}\nslots = {slots}\ncache_control = {is_cached}\n");
        fs::write(&config, text).context("writing the configuration")
    };
    write(0)?;
    let mut command = setup.server().command("env");
    command.arg(atlas).arg("serve").arg(library.root());
    command.args([
        "--link",
        &format!("{}:{}", kind_name(kind), setup.interface()),
    ]);
    command.args(["--address", &format!("{}/24", VethPair::ATLAS_V4)]);
    command.args([
        "--http",
        &PORT.to_string(),
        "--https",
        &HTTPS_PORT.to_string(),
    ]);
    command
        .args(identities.atlas_options())
        .arg("--config")
        .arg(&config);
    let server = Server::atlas(&mut command)?;
    let mut successors = Vec::new();
    let address = setup.address(Family::V4)?;
    let url = format!(
        "https://{}{}",
        setup.https_address(Family::V4)?,
        name(FILM_BYTES)
    );
    let plain = |stop: &AtomicBool| view(setup.client(), address, stop);
    let sealed = |stop: &AtomicBool| view_sealed(setup.client(), identities, &url, stop);
    let mut longest = Duration::ZERO;
    let work = || {
        for round in 1..=times {
            thread::sleep(INTERVAL);
            write(round)?;
            let begun = Instant::now();
            successors.push(reload(setup.server(), atlas)?);
            longest = longest.max(begun.elapsed());
        }
        Ok(())
    };
    let seen = watch(&[&plain, &sealed], work)?;
    let last = *successors.last().context("at least one take-over")?;
    kill_process(last, Signal::TERM).context("ending the last process")?;
    let stopped = server.wait()?.succeeded()?;
    ensure!(!stopped.stderr.contains("panicked"), "{}", stopped.stderr);
    let deadline = Instant::now() + END_LIMIT;
    while successors.iter().any(|pid| test_kill_process(*pid).is_ok()) {
        ensure!(Instant::now() < deadline, "processes are left over");
        thread::sleep(Duration::from_millis(50));
    }
    let longest = longest.as_millis();
    Ok(format!("{}; longest reload {longest} ms", describe(&seen)))
}

const fn kind_name(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Tap => "tap",
        _ => "packet",
    }
}

/// Has another process take over; its number.
fn reload(namespace: &Namespace, atlas: &Path) -> Result<Pid> {
    let mut command = namespace.command("env");
    let output = output(command.arg(atlas).arg("reload"), LIMIT)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .strip_prefix("process ")
        .and_then(|it| it.split(' ').next());
    let pid = number.and_then(|number| Pid::from_raw(number.parse().ok()?));
    pid.with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// A viewer, until it is told to stop.
type View<'a> = dyn Fn(&AtomicBool) -> Result<Seen> + Sync + 'a;

/// What viewers of each kind saw while `work` was done.
fn watch(kinds: &[&View<'_>], work: impl FnOnce() -> Result<()>) -> Result<Vec<Seen>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for &kind in kinds {
            let stop = &stop;
            let one = |_| scope.spawn(move || kind(stop));
            threads.push((0..VIEWERS).map(one).collect::<Vec<_>>());
        }
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for threads in threads {
            let mut sum = Seen::default();
            for thread in threads {
                let Ok(seen) = thread.join() else {
                    bail!("a viewer panicked");
                };
                let seen = seen?;
                sum.replies += seen.replies;
                sum.longest_stall = sum.longest_stall.max(seen.longest_stall);
            }
            all.push(sum);
        }
        done.map(|()| all)
    })
}

/// Fetches the film again and again, on a connection as long as that lasts.
fn view(namespace: &Namespace, address: std::net::SocketAddr, stop: &AtomicBool) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut open: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let mut client = match open.take() {
            Some(client) => client,
            None => Client::connect(namespace, address)?,
        };
        client.ask("GET", &name(FILM_BYTES), "")?;
        let head = client.read_head()?;
        ensure!(head.status == 200, "status {}", head.status);
        let mut offset = 0;
        while offset < FILM_BYTES {
            let asked = Instant::now();
            let count = PIECE_BYTES.min(FILM_BYTES - offset);
            client.read_checked(files::content(FILM_BYTES), offset, count)?;
            seen.longest_stall = seen.longest_stall.max(asked.elapsed());
            offset += count;
            thread::sleep(PACE);
        }
        seen.replies += 1;
        if head.field("connection") != Some("close") {
            open = Some(client);
        }
    }
    Ok(seen)
}

/// The same by curl, over TLS; how long it waited is not known.
fn view_sealed(
    namespace: &Namespace,
    identities: &Identities,
    url: &str,
    stop: &AtomicBool,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let expected = files::content(FILM_BYTES);
    while !stop.load(Ordering::Relaxed) {
        let mut command: Command = namespace.command("curl");
        command
            .args(["-sS", "--limit-rate", "4M"])
            .args(identities.curl_options());
        let fetched = output(command.arg(url), LIMIT)?;
        let reason = String::from_utf8_lossy(&fetched.stderr);
        ensure!(fetched.status.success(), "curl: {reason}");
        ensure!(fetched.stdout.len() as u64 == FILM_BYTES, "cut over TLS");
        expected.check(0, &fetched.stdout)?;
        seen.replies += 1;
    }
    Ok(seen)
}
