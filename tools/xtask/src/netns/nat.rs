//! Two clients behind one address and few ports, which a NAT uses again within seconds: what the server
//! still has in TIME-WAIT is another client's connection, with an ISN and timestamps of its own.
//!
//! Each exchange with Atlas stands beside one with the kernel's TCP at the server's end, which is the
//! reference. The server closes first, so TIME-WAIT is its own. The clients' namespace is the router here.
//! Bounded by a time, and by [`ANSWER_LIMIT`] for each exchange.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::files::{self, Library};
use super::setup::{Family, LinkKind, Setup};
use testbed::namespace::{Namespace, VethPair};
use testbed::process::run as run_program;
use testbed::suite::{Outcome, Suite};
use testbed::{find_program, interrupt};

/// Ports of the NAT. Each is free again a second after its connection, so that it comes up again soon.
const PORTS: &str = "40000-40047";
/// Pause of a client between its exchanges: both use fewer ports a second than there are.
const PAUSE: Duration = Duration::from_millis(50);
/// Above this a SYN, or the request, was sent again.
const LATE: Duration = Duration::from_millis(900);
/// An exchange that takes longer has failed: a SYN that meets a connection in TIME-WAIT is sent again after 1, 3, 7 and
/// 15 s, from another port maybe, and meets another.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// What is fetched, bytes.
const FILE_BYTES: u64 = 1;
/// How long the check runs.
const CHECK_TIME: Duration = Duration::from_secs(3);

/// With and without timestamps.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    for has_timestamps in [true, false] {
        let what = format!("packet NAT, {}", name(has_timestamps));
        suite.run(&what, || exchange_all(atlas, library, has_timestamps));
    }
}

const fn name(has_timestamps: bool) -> &'static str {
    if has_timestamps {
        "timestamps"
    } else {
        "no timestamps"
    }
}

/// What came of a client's exchanges with one server.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    exchanges: u64,
    late: u64,
    failed: u64,
    slowest: Duration,
}

impl Tally {
    fn note(&mut self, took: Duration, is_good: bool) {
        self.exchanges += 1;
        self.late += u64::from(took > LATE);
        self.failed += u64::from(!is_good);
        self.slowest = self.slowest.max(took);
    }

    fn add(&mut self, other: Self) {
        self.exchanges += other.exchanges;
        self.late += other.late;
        self.failed += other.failed;
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// Exchanges from both clients at once.
fn exchange_all(atlas: &Path, library: &Library, has_timestamps: bool) -> Result<Outcome> {
    if find_program("iptables").is_none() {
        return Ok(Outcome::Skipped("iptables is not installed".to_owned()));
    }
    let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
    let clients = [81, 82].map(|net| join(setup.client(), net, has_timestamps));
    let [first, second] = clients;
    let clients = [first?, second?];
    if let Err(reason) = translate(setup.client()) {
        return Ok(Outcome::Skipped(reason));
    }
    let server = setup.start(library.root(), None, None)?;
    let (listener, reference) = listen(setup.server())?;
    let targets = [setup.address(Family::V4)?, reference];
    let end = Instant::now() + CHECK_TIME;
    let tallies = thread::scope(|scope| {
        scope.spawn(|| answer_all(&listener, 1));
        let of_both = clients
            .each_ref()
            .map(|client| scope.spawn(move || exchange_until(client, targets, end)));
        let of_both = of_both.map(|of_one| of_one.join());
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both)?;
        let mut tallies = [Tally::default(); 2];
        for of_one in of_both {
            let of_one = of_one.map_err(|_| anyhow!("a client panicked"))??;
            for (all, one) in tallies.iter_mut().zip(of_one) {
                all.add(one);
            }
        }
        anyhow::Ok(tallies)
    })?;
    server.stop()?;
    for (whose, tally) in ["Atlas", "Linux"].into_iter().zip(tallies) {
        println!(
            "{whose}, {}: {} exchanges, {} above {} ms, {} failed, slowest {} ms",
            name(has_timestamps),
            tally.exchanges,
            tally.late,
            LATE.as_millis(),
            tally.failed,
            tally.slowest.as_millis()
        );
    }
    let [of_atlas, _] = tallies;
    ensure!(of_atlas.exchanges > 0, "no exchange was over in time");
    ensure!(of_atlas.failed == 0, "{} exchanges failed", of_atlas.failed);
    Ok(Outcome::Passed)
}

/// A client behind the router, whose address is translated.
fn join(router: &Namespace, net: u8, has_timestamps: bool) -> Result<Namespace> {
    let client = Namespace::new("behind")?;
    client.ip(&format!(
        "link add net{net} type veth peer name net{net} netns {}",
        router.name()
    ))?;
    for (namespace, host) in [(router, 1), (&client, 2)] {
        let address = format!("10.{net}.0.{host}/24");
        namespace.bring_up(&format!("net{net}"), &[&address])?;
    }
    client.ip(&format!("route add 10.77.0.0/24 via 10.{net}.0.1"))?;
    client.set(
        "ipv4/tcp_timestamps",
        if has_timestamps { "1" } else { "0" },
    )?;
    Ok(client)
}

/// Translates what leaves for the server; `Err` says why not.
fn translate(router: &Namespace) -> std::result::Result<(), String> {
    let rule = format!(
        "-t nat -A POSTROUTING -o {} -p tcp -j MASQUERADE --to-ports {PORTS}",
        VethPair::CLIENT_INTERFACE
    );
    let mut command = router.command("iptables");
    command.arg("-w").args(rule.split_whitespace());
    run_program(&mut command).map_err(|error| format!("{error:#}"))?;
    let settings = ["time_wait", "close", "last_ack", "close_wait", "fin_wait"]
        .map(|state| (format!("netfilter/nf_conntrack_tcp_timeout_{state}"), "1"));
    for (setting, value) in settings {
        router
            .set(&setting, value)
            .map_err(|error| format!("{error:#}"))?;
    }
    router
        .set("ipv4/ip_forward", "1")
        .map_err(|error| format!("{error:#}"))
}

/// One exchange with each in turn, until it is time.
fn exchange_until(
    client: &Namespace,
    targets: [SocketAddr; 2],
    end: Instant,
) -> Result<[Tally; 2]> {
    client.enter(|| {
        let mut tallies = [Tally::default(); 2];
        while Instant::now() < end {
            interrupt::check()?;
            for (target, tally) in targets.into_iter().zip(&mut tallies) {
                let start = Instant::now();
                let is_good = exchange(target).is_ok();
                tally.note(start.elapsed(), is_good);
            }
            thread::sleep(PAUSE);
        }
        Ok(tallies)
    })
}

/// A connection, a request, a reply, and the server's end.
fn exchange(target: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let path = files::name(FILE_BYTES);
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    ensure!(reply.starts_with(b"HTTP/1.1 200 "), "not a reply");
    Ok(())
}

/// The kernel's TCP at the server's end answers each request, and closes first, until the listener is shut down.
pub(super) fn answer_all(listener: &TcpListener, body_bytes: usize) {
    let body = vec![b'a'; body_bytes];
    while let Ok((mut stream, _)) = listener.accept() {
        // A client that gives up ends its own connection only.
        let _ = answer(&mut stream, &body);
    }
}

fn answer(stream: &mut TcpStream, body: &[u8]) -> Result<()> {
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut piece = [0; 512];
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "no request");
        request.extend_from_slice(&piece[..count]);
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(())
}

/// A socket of the kernel's on the server's end of the link.
pub(super) fn listen(namespace: &Namespace) -> Result<(TcpListener, SocketAddr)> {
    let address: SocketAddr = format!("{}:80", VethPair::KERNEL_V4).parse()?;
    let listener = namespace.enter(|| TcpListener::bind(address).context("listening"))?;
    Ok((listener, address))
}
