//! A server at the host's own addresses (`--link xdp:IFACE` or `auto:IFACE` without `--address`): it has
//! its port, and the host's kernel has all else, before, meanwhile and after.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::files::{self, LARGE_BYTES, Library, name};
use super::setup::{PORT, at, serve};
use testbed::client::Client;
use testbed::namespace::VethPair;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Of the kernel's services at the same address, TCP and UDP.
const KERNEL_PORT: u16 = 8090;
/// Where nobody listens.
const CLOSED_PORT: u16 = 81;
/// Longest wait for the kernel's services.
const LIMIT: Duration = Duration::from_secs(10);

const ADDRESSES: [&str; 2] = [VethPair::KERNEL_V4, VethPair::KERNEL_V6];

/// Kinds of link. On a veth pair, whose device segments TCP, `auto` is `xdp+packet`.
const LINKS: [&str; 2] = ["xdp", "auto"];

/// All of them, each on a veth pair of its own.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    suite.run("auto chooses by driver and queues", || {
        chooses(atlas, library)
    });
    for link in LINKS {
        let subject = Subject {
            atlas,
            link,
            files: library,
        };
        let what = format!("{link} shared address: the host keeps its services");
        suite.run(&what, || beside_the_kernel(&subject));
        for (name, signal) in [("SIGTERM", Signal::TERM), ("SIGKILL", Signal::KILL)] {
            let what = format!("{link} shared address: {name} leaves the interface as it was");
            suite.run(&what, || left_as_it_was(&subject, signal));
        }
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
    link: &'a str,
    files: &'a Library,
}

impl Subject<'_> {
    fn start(&self, pair: &VethPair) -> Result<Server> {
        let link = format!("{}:{}", self.link, VethPair::SERVER_INTERFACE);
        serve(self.atlas, (&pair.server, self.files.root()), &link, &[])
    }
}

/// Transfers from the server while the kernel's services at the same address are used.
fn beside_the_kernel(subject: &Subject<'_>) -> Result<Outcome> {
    let pair = VethPair::new()?;
    let echoes = ADDRESSES.map(|address| Echo::start(&pair, address));
    let _echoes = echoes.into_iter().collect::<Result<Vec<_>>>()?;
    let server = subject.start(&pair)?;
    for address in ADDRESSES {
        let mut client = Client::connect(&pair.client, at(address, PORT)?)?;
        client.ask("GET", &name(LARGE_BYTES), "")?;
        let head = client.read_head()?;
        ensure!(head.status == 200, "{address}: {}", head.status);
        let content = files::content(LARGE_BYTES);
        let half = LARGE_BYTES / 2;
        client.read_checked(content, 0, half)?;
        uses_services(&pair).context("in mid-transfer")?;
        client.read_checked(content, half, LARGE_BYTES - half)?;
    }
    let stopped = server.stop()?;
    if subject.link == "auto" {
        let choice = format!("--link auto: xdp+packet:{};", VethPair::SERVER_INTERFACE);
        ensure!(stopped.stderr.contains(&choice), "{}", stopped.stderr);
    }
    uses_services(&pair).context("afterwards")?;
    Ok(Outcome::Passed)
}

/// The kernel's TCP and UDP answer, and refuse where nobody listens.
fn uses_services(pair: &VethPair) -> Result<()> {
    for address in ADDRESSES {
        pair.client.enter(|| {
            exchange_tcp(at(address, KERNEL_PORT)?).context("TCP")?;
            exchange_udp(at(address, KERNEL_PORT)?).context("UDP")?;
            refused(at(address, CLOSED_PORT)?)
        })?;
    }
    Ok(())
}

fn exchange_tcp(to: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    ensure!(answer == *b"ping", "{answer:?}");
    Ok(())
}

fn exchange_udp(to: SocketAddr) -> Result<()> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.send_to(b"ping", to)?;
    let mut answer = [0; 4];
    let (_, from) = socket.recv_from(&mut answer)?;
    ensure!(answer == *b"ping" && from == to, "{answer:?} from {from}");
    Ok(())
}

fn refused(to: SocketAddr) -> Result<()> {
    let outcome = TcpStream::connect_timeout(&to, LIMIT);
    let is_refused = matches!(&outcome, Err(error) if error.kind() == ErrorKind::ConnectionRefused);
    ensure!(is_refused, "{to}: {outcome:?}");
    Ok(())
}

/// Services of the kernel's at an address, TCP and UDP: each sends back what it gets, and ends at a
/// connection without text or a datagram without any.
struct Echo<'a> {
    pair: &'a VethPair,
    to: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl<'a> Echo<'a> {
    fn start(pair: &'a VethPair, address: &str) -> Result<Self> {
        let to = at(address, KERNEL_PORT)?;
        let sockets = || Ok((TcpListener::bind(to)?, UdpSocket::bind(to)?));
        let (listener, socket) = pair.server.enter(sockets)?;
        let tcp = thread::spawn(move || {
            let mut bytes = [0; 4];
            while let Ok((mut stream, _)) = listener.accept() {
                if stream.read_exact(&mut bytes).is_err() {
                    return;
                }
                let _ = stream.write_all(&bytes);
            }
        });
        let udp = thread::spawn(move || {
            let mut bytes = [0; 4];
            while let Ok((1.., from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes, from);
            }
        });
        Ok(Self {
            pair,
            to,
            threads: vec![tcp, udp],
        })
    }
}

impl Drop for Echo<'_> {
    fn drop(&mut self) {
        let to = self.to;
        let ended = self.pair.server.enter(|| {
            drop(TcpStream::connect_timeout(&to, LIMIT)?);
            let any = SocketAddr::new(to.ip(), 0);
            UdpSocket::bind(any)?.send_to(&[], to)?;
            Ok(())
        });
        match ended {
            Ok(()) => {
                for thread in self.threads.drain(..) {
                    let _ = thread.join();
                }
            }
            Err(error) => eprintln!("the services at {to} go on: {error:#}"),
        }
    }
}

/// Whether an XDP program is on the server's interface.
fn has_program(pair: &VethPair) -> Result<bool> {
    let interface = VethPair::SERVER_INTERFACE;
    let link = pair.server.ip(&format!("-d link show {interface}"))?;
    Ok(link.contains("prog/xdp"))
}

/// However it ends, the program is gone, and the kernel has the port again.
fn left_as_it_was(subject: &Subject<'_>, signal: Signal) -> Result<Outcome> {
    let pair = VethPair::new()?;
    ensure!(!has_program(&pair)?, "a program before the start");
    let server = subject.start(&pair)?;
    ensure!(has_program(&pair)?, "no program while it serves");
    let mut client = Client::connect(&pair.client, at(VethPair::KERNEL_V4, PORT)?)?;
    let (head, _) = client.exchange("GET", &name(4097), "")?;
    ensure!(head.status == 200, "{}", head.status);
    drop(client);
    server.signal(signal)?;
    server.wait()?;
    ensure!(!has_program(&pair)?, "its program is still there");
    for address in ADDRESSES {
        pair.client.enter(|| refused(at(address, PORT)?))?;
    }
    // And again: nothing keeps a second start from the interface.
    let server = subject.start(&pair).context("a second start")?;
    server.stop()?;
    Ok(Outcome::Passed)
}
