//! Which link `auto` takes, and addresses of the host that come and go while the server has its port there, also
//! on loopback.
//!
//! Bounded by the limits of `Client` and `Server::await_log`.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::files::{self, LARGE_BYTES, Library, name};
use super::setup::{PORT, at, serve};
use testbed::client::Client;
use testbed::namespace::{Namespace, VethPair};
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Longest wait for a refusal.
const LIMIT: Duration = Duration::from_secs(10);
/// An address that the host gets while the server runs.
const LATER: &str = "10.77.0.40";
const LATER_V6: &str = "fd77::40";
/// Addresses on no subnet of the server's.
const VIRTUAL: &str = "192.0.2.80";
const VIRTUAL_V6: &str = "2001:db8::80";

/// All of them, each on namespaces of its own.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    let subject = Subject { atlas, library };
    suite.run("auto chooses by driver and queues", || {
        chooses(atlas, library)
    });
    for workers in [1, 2] {
        let what = format!("addresses of the host come and go, {workers} workers");
        suite.run(&what, || come_and_go(&subject, workers));
    }
}

/// At addresses of the server's own `auto` falls back: a veth pair has XDP in its driver, but a queue for
/// one worker only.
fn chooses(atlas: &Path, library: &Library) -> Result<Outcome> {
    let interface = VethPair::SERVER_INTERFACE;
    for (workers, choice, why) in [
        ("1", "xdp+packet", "the driver runs XDP programs"),
        ("2", "packet", "1 receive queue for 2 workers"),
    ] {
        let pair = VethPair::new()?;
        let own = format!("{}/24", VethPair::ATLAS_V4);
        let options = ["--workers", workers, "--address", &own];
        let place = (&pair.server, library.root());
        let server = serve(atlas, place, &format!("auto:{interface}"), &options)?;
        let mut client = Client::connect(&pair.client, at(VethPair::ATLAS_V4, PORT)?)?;
        let (head, _) = client.exchange("GET", &name(4097), "")?;
        ensure!(head.status == 200, "{}", head.status);
        drop(client);
        let said = server.stop()?.stderr;
        let choice = format!("--link auto: {choice}:{interface};");
        ensure!(
            said.contains(&choice) && said.contains(why),
            "{workers}: {said}"
        );
    }
    Ok(Outcome::Passed)
}

/// The server that is tried.
struct Subject<'a> {
    atlas: &'a Path,
    library: &'a Library,
}

impl Subject<'_> {
    fn start(&self, namespace: &Namespace, link: &str, options: &[&str]) -> Result<Server> {
        let link = format!("{link}:{}", VethPair::SERVER_INTERFACE);
        serve(self.atlas, (namespace, self.library.root()), &link, options)
    }
}

/// Fetches a small file.
fn serves(client: &Namespace, address: &str) -> Result<()> {
    let fetch = || {
        let mut client = Client::connect(client, at(address, PORT)?)?;
        let (head, body) = client.exchange("GET", &name(4097), "")?;
        ensure!(head.status == 200, "{}", head.status);
        files::content(4097).check(0, &body)
    };
    fetch().with_context(|| format!("from {address}"))
}

/// There is no way to the address.
fn refuses(client: &Namespace, address: &str) -> Result<()> {
    let to = at(address, PORT)?;
    let outcome = client.enter(|| Ok(TcpStream::connect_timeout(&to, LIMIT)))?;
    let error = outcome.err().map(|error| error.kind());
    let expected = [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
    ensure!(
        error.is_some_and(|kind| expected.contains(&kind)),
        "{to}: {error:?}"
    );
    Ok(())
}

/// Begins a download, of which the client does not read the rest.
fn begin_download(client: &Namespace, address: &str) -> Result<Client> {
    let mut client = Client::connect(client, at(address, PORT)?)?;
    client.ask("GET", &name(LARGE_BYTES), "")?;
    let head = client.read_head()?;
    ensure!(head.status == 200, "{address}: {}", head.status);
    client.read_checked(files::content(LARGE_BYTES), 0, 1 << 20)?;
    Ok(client)
}

/// The download ends before its end.
fn was_cut(mut client: Client) -> Result<()> {
    let rest = client.read_to_end()?.len() as u64;
    ensure!(rest < LARGE_BYTES - (1 << 20), "the download went on");
    Ok(())
}

fn come_and_go(subject: &Subject<'_>, workers: u32) -> Result<Outcome> {
    let pair = VethPair::with_queues(workers)?;
    let (host, client) = (&pair.server, &pair.client);
    let interface = VethPair::SERVER_INTERFACE;
    // So that packets to an address that is gone are refused at once, and not dropped.
    host.forward()?;
    host.set("ipv4/icmp_ratelimit", "0")?;
    host.set("ipv6/icmp/ratelimit", "0")?;
    for address in [VIRTUAL, VIRTUAL_V6] {
        host.ip(&format!("route add unreachable {address}"))?;
    }
    client.ip(&format!("route add {VIRTUAL} via {}", VethPair::KERNEL_V4))?;
    client.ip(&format!(
        "route add {VIRTUAL_V6} via {}",
        VethPair::KERNEL_V6
    ))?;
    let mut server = subject.start(host, "xdp", &["--workers", &workers.to_string()])?;
    serves(client, VethPair::KERNEL_V4)?;
    for (address, bits, place, label) in [
        (LATER, 24, interface, ""),
        (LATER_V6, 64, interface, ""),
        // As `ifconfig` does it; the kernel then gives the label for the interface's name.
        (VIRTUAL, 32, "lo", "label lo:0"),
        (VIRTUAL_V6, 128, "lo", ""),
    ] {
        let at = format!("{address}/{bits} dev {place}");
        host.ip(&format!("addr add {at} {label}"))?;
        server.await_log(&format!("the host has {address} now"))?;
        // The other workers know a moment later.
        for _ in 0..4 * workers {
            serves(client, address)?;
        }
        let download = begin_download(client, address)?;
        host.ip(&format!("addr del {at}"))?;
        server.await_log(&format!("the host has {address} no more"))?;
        was_cut(download)?;
        if place == "lo" {
            refuses(client, address)?;
        }
    }
    serves(client, VethPair::KERNEL_V4)?;
    server.stop().map(|_| Outcome::Passed)
}
