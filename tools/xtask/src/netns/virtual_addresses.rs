//! Virtual addresses: the host's that come and go and that are on loopback, an address that keepalived moves,
//! and one behind a load balancer with direct server return.
//!
//! IPVS itself is not tried: a host that forwards stands in for its director. It does what LVS-DR does: the
//! packets to the address reach it, and it sends them on to the server's MAC address with the client's address and
//! the virtual one in them. As a director it takes none of the server's packets: it has no way to the clients.
//! Bounded by the limits of `Client`, curl and `Server::await_log`.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::files::{self, LARGE_BYTES, Library, name};
use super::setup::{PORT, at, serve};
use testbed::client::Client;
use testbed::curl::Curl;
use testbed::namespace::{Namespace, VethPair};
use testbed::process::{Process, run as run_command};
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};
use testbed::{find_program, scratch_directory};

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
    for workers in [1, 2] {
        let what = format!("addresses of the host come and go, {workers} workers");
        suite.run(&what, || come_and_go(&subject, workers));
    }
    suite.run("an address of keepalived's comes and goes", || {
        moved_by_keepalived(&subject)
    });
    for link in ["packet", "xdp shared"] {
        let what = format!("{link}: an address behind a stand-in for an LVS-DR director");
        suite.run(&what, || behind_a_director(&subject, link));
    }
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

fn moved_by_keepalived(subject: &Subject<'_>) -> Result<Outcome> {
    let Some(keepalived) = find_program("keepalived") else {
        return Ok(Outcome::Skipped("keepalived is not installed".to_owned()));
    };
    let pair = VethPair::new()?;
    let scratch = scratch_directory("keepalived")?;
    let config = scratch.path().join("keepalived.conf");
    let interface = VethPair::SERVER_INTERFACE;
    let text = format!(
        "global_defs {{\n vrrp_version 3\n}}\nvrrp_instance try {{\n state BACKUP\n interface {interface}\n \
         virtual_router_id 7\n priority 100\n advert_int 0.1\n virtual_ipaddress {{\n {LATER}/24\n }}\n}}\n"
    );
    fs::write(&config, text).context("writing keepalived's configuration")?;
    let mut server = subject.start(&pair.server, "xdp", &[])?;
    let mut command = pair.server.command("env");
    command.arg(keepalived).args(["--dont-fork", "--vrrp"]);
    command.arg("--use-file").arg(&config);
    for (option, file) in [("--pid", "pid"), ("--vrrp_pid", "vrrp_pid")] {
        command.arg(option).arg(scratch.path().join(file));
    }
    command.stdout(std::process::Stdio::null());
    command.stderr(std::process::Stdio::null());
    let mut keepalived = Process::spawn_tree("keepalived", &mut command)?;
    server.await_log(&format!("the host has {LATER} now"))?;
    serves(&pair.client, LATER)?;
    let download = begin_download(&pair.client, LATER)?;
    keepalived.signal(rustix::process::Signal::TERM)?;
    server.await_log(&format!("the host has {LATER} no more"))?;
    was_cut(download)?;
    keepalived.wait_out(LIMIT)?;
    serves(&pair.client, VethPair::KERNEL_V4)?;
    server.stop().map(|_| Outcome::Passed)
}

/// What packets pass on their way to the server, and back:
///
/// ```text
///  viewer ── router ──┬── director ──┐
///                     │            bridge "near"
///                     └──────────────┴── server
/// ```
struct Network {
    viewer: Namespace,
    router: Namespace,
    director: Namespace,
    server: Namespace,
    _switch: Namespace,
}

impl Network {
    fn new() -> Result<Self> {
        let switch = Namespace::new("switch")?;
        switch.ip("link add near type bridge")?;
        switch.ip("link set near up")?;
        let network = Self {
            viewer: Namespace::new("viewer")?,
            router: Namespace::new("router")?,
            director: Namespace::new("director")?,
            server: Namespace::new("s")?,
            _switch: switch,
        };
        let Self {
            viewer,
            router,
            director,
            server,
            _switch: switch,
        } = &network;
        for (namespace, interface, host) in [
            (router, "near0", "254"),
            (director, "near1", "253"),
            (server, VethPair::SERVER_INTERFACE, "1"),
        ] {
            namespace.join_bridge(switch, "near", interface)?;
            let addresses = [format!("10.77.0.{host}/24"), format!("fd77::{host}/64")];
            namespace.bring_up(interface, &addresses.each_ref().map(String::as_str))?;
        }
        router.ip(&format!(
            "link add far0 type veth peer name far0 netns {}",
            viewer.name()
        ))?;
        for (namespace, host) in [(router, "254"), (viewer, "9")] {
            let addresses = [format!("10.79.0.{host}/24"), format!("fd79::{host}/64")];
            namespace.bring_up("far0", &addresses.each_ref().map(String::as_str))?;
        }
        for forwarding in [router, director] {
            forwarding.forward()?;
        }
        for (inner, family) in [("10.77.0.254", "-4"), ("fd77::254", "-6")] {
            server.ip(&format!("{family} route add default via {inner}"))?;
        }
        viewer.ip("-4 route add default via 10.79.0.254")?;
        viewer.ip("-6 route add default via fd79::254")?;
        // To the router the addresses are hosts of its network. It gives up soon on those that do not answer.
        for (address, family) in [(VIRTUAL, "ipv4"), (VIRTUAL_V6, "ipv6")] {
            router.ip(&format!("route add {address} dev near0"))?;
            router.set(&format!("{family}/neigh/near0/retrans_time_ms"), "50")?;
        }
        Ok(network)
    }

    /// The router has the addresses at the director from now on, which sends what comes to the server's.
    fn direct(&self, to: [&str; 2]) -> Result<()> {
        let director = &self.director;
        let mac = run_command(director.command("cat").arg("/sys/class/net/near1/address"))?;
        // It leaves by the interface it came by, as with LVS-DR; a plain router would say so.
        director.set("ipv4/conf/all/send_redirects", "0")?;
        director.set("ipv4/conf/near1/send_redirects", "0")?;
        for (address, server) in [VIRTUAL, VIRTUAL_V6].into_iter().zip(to) {
            let at = format!("lladdr {} dev near0 nud permanent", mac.trim());
            self.router.ip(&format!("neigh replace {address} {at}"))?;
            director.ip(&format!("route add {address} via {server} dev near1"))?;
        }
        Ok(())
    }
}

fn behind_a_director(subject: &Subject<'_>, link: &str) -> Result<Outcome> {
    let network = Network::new()?;
    let interface = VethPair::SERVER_INTERFACE;
    let (server, to) = match link.strip_suffix(" shared") {
        Some(kind) => {
            // As on every real server of LVS-DR: its kernel does not answer for what is on loopback.
            for setting in ["arp_ignore", "arp_announce"] {
                let value = if setting == "arp_ignore" { "1" } else { "2" };
                network
                    .server
                    .set(&format!("ipv4/conf/{interface}/{setting}"), value)?;
            }
            network
                .server
                .ip(&format!("addr add {VIRTUAL}/32 dev lo"))?;
            network
                .server
                .ip(&format!("addr add {VIRTUAL_V6}/128 dev lo"))?;
            let server = subject.start(&network.server, kind, &[])?;
            (server, ["10.77.0.1", "fd77::1"])
        }
        None => {
            let own = [
                format!("{VIRTUAL}/32,noarp"),
                format!("{VIRTUAL_V6}/128,noarp"),
            ];
            let [v4, v6] = own.each_ref().map(String::as_str);
            let options = [
                "--address",
                "10.77.0.2/24",
                "--address",
                "fd77::2/64",
                "--address",
                v4,
                "--address",
                v6,
            ];
            let server = subject.start(&network.server, link, &options)?;
            (server, ["10.77.0.2", "fd77::2"])
        }
    };
    // Nobody has the addresses: the server does not say that it does.
    for address in [VIRTUAL, VIRTUAL_V6] {
        refuses(&network.router, address)?;
    }
    network.direct(to)?;
    for address in [VIRTUAL, VIRTUAL_V6] {
        serves(&network.viewer, address)?;
        let url = format!("http://{}{}", at(address, PORT)?, name(LARGE_BYTES));
        let mut curl = Curl::start(&network.viewer, &[url])?;
        curl.read_checked(files::content(LARGE_BYTES), 0, LARGE_BYTES)?;
        curl.finish()?;
    }
    server.stop().map(|_| Outcome::Passed)
}
