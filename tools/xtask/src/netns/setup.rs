//! What a group of checks needs: namespaces, a link, and a server on it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use super::identities::Identities;
use testbed::client::Client;
use testbed::namespace::{Namespace, VethPair};
use testbed::rivals::{NginxConfig, nginx_program};
use testbed::server::Server;
use testbed::undo::Undo;

/// Port of Atlas on its own address.
pub(super) const PORT: u16 = 80;

/// Port of Atlas for HTTP over TLS.
pub(crate) const HTTPS_PORT: u16 = 443;

/// Where the reference runs: loopback of the client's namespace, never on the link under test.
pub(crate) const REFERENCE: &str = "127.0.0.1:8080";

/// Part of the packets that are dropped, in each direction.
const LOSS: &str = "0.02";

/// The MTU of most networks.
pub(crate) const USUAL_MTU_BYTES: u32 = 1_500;

/// The TAP interface Atlas makes.
const TAP: &str = "atlas0";

/// The interface that every namespace has.
const LOOPBACK: &str = "lo";

/// The kinds of link a server can have, as its command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    /// `AF_PACKET` on one end of a veth pair; clients are at the other end.
    Packet,
    /// `AF_XDP` there.
    Xdp,
    /// Both there: `AF_XDP` receives, `AF_PACKET` sends.
    #[value(name = "xdp+packet")]
    XdpPacket,
    /// A TAP; clients are the kernel it is plugged into.
    Tap,
    /// A relay at all addresses of the namespace that clients are in, too.
    Relay,
}

impl LinkKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::XdpPacket => "xdp+packet",
            Self::Tap => "tap",
            Self::Relay => "relay",
        }
    }

    /// Whether an XDP program takes the server's frames.
    pub(crate) const fn has_xdp(self) -> bool {
        matches!(self, Self::Xdp | Self::XdpPacket)
    }
}

/// Where server and clients are.
#[derive(Debug)]
enum Wiring {
    /// Namespaces joined by a veth pair.
    Veth(VethPair),
    /// One namespace.
    Tap(Namespace),
    /// One namespace, whose loopback has the server's addresses.
    Relay(Namespace),
}

/// Which internet protocol a check uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn address(self) -> Result<IpAddr> {
        let text = match self {
            Self::V4 => VethPair::ATLAS_V4,
            Self::V6 => VethPair::ATLAS_V6,
        };
        text.parse()
            .with_context(|| format!("not an address: {text}"))
    }
}

/// The server that is tried.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Its binary.
    pub(crate) program: PathBuf,
    pub(crate) workers: u32,
    /// Whether slots are lent to the link, although on a veth the kernel copies them.
    pub(crate) lends: bool,
    /// Of the interfaces at both ends.
    pub(crate) mtu_bytes: u32,
}

/// Namespaces and how to start a server in them.
#[derive(Debug)]
pub(crate) struct Setup {
    kind: LinkKind,
    wiring: Wiring,
    subject: Subject,
}

impl Setup {
    /// A server with so many workers on the usual network.
    pub(crate) fn usual(kind: LinkKind, program: &Path, workers: u32) -> Result<Self> {
        Self::new(
            kind,
            Subject {
                program: program.to_owned(),
                workers,
                lends: false,
                mtu_bytes: USUAL_MTU_BYTES,
            },
        )
    }

    /// Makes the namespaces. AF_XDP sockets need a queue for each worker.
    pub(crate) fn new(kind: LinkKind, subject: Subject) -> Result<Self> {
        let wiring = match kind {
            LinkKind::Tap => Wiring::Tap(Namespace::new("t")?),
            LinkKind::Relay => Wiring::Relay(loopback_with_addresses()?),
            kind if kind.has_xdp() => Wiring::Veth(VethPair::with_queues(subject.workers)?),
            _ => Wiring::Veth(VethPair::new()?),
        };
        let mtu_bytes = subject.mtu_bytes;
        let setup = Self {
            kind,
            wiring,
            subject,
        };
        if let Wiring::Veth(pair) = &setup.wiring {
            for (namespace, interface) in [
                (&pair.server, VethPair::SERVER_INTERFACE),
                (&pair.client, VethPair::CLIENT_INTERFACE),
            ] {
                namespace.ip(&format!("link set {interface} mtu {mtu_bytes}"))?;
            }
        }
        Ok(setup)
    }

    /// The link's name in check names, with the number of workers if there are several, and with the MTU
    /// if it is not the usual one.
    pub(crate) fn name(&self) -> String {
        let lent = if self.lends() { " with slots lent" } else { "" };
        let mtu = match self.subject.mtu_bytes {
            USUAL_MTU_BYTES => String::new(),
            other => format!(" at MTU {other}"),
        };
        match (self.kind.name(), self.subject.workers) {
            (kind, 1) => format!("{kind}{lent}{mtu}"),
            (kind, workers) => format!("{kind}{lent}{mtu}, {workers} workers,"),
        }
    }

    /// Whether slots are lent to the link.
    pub(crate) fn lends(&self) -> bool {
        self.subject.lends
    }

    /// Whether it is a TAP.
    pub(crate) fn is_tap(&self) -> bool {
        matches!(self.wiring, Wiring::Tap(_))
    }

    /// Whether something on the way can lose frames, or go down. Loopback is the host's TCP's alone.
    pub(crate) fn has_wire(&self) -> bool {
        !matches!(self.wiring, Wiring::Relay(_))
    }

    /// Whether the link is told that its interface was down for a moment: a packet socket is; a TAP
    /// hears of it only when something is sent, and AF_XDP while it lasts.
    pub(crate) fn is_told_of_down(&self) -> bool {
        self.kind == LinkKind::Packet
    }

    /// Where clients run.
    pub(crate) fn client(&self) -> &Namespace {
        match &self.wiring {
            Wiring::Veth(pair) => &pair.client,
            Wiring::Tap(namespace) | Wiring::Relay(namespace) => namespace,
        }
    }

    /// Where the server runs.
    pub(crate) fn server(&self) -> &Namespace {
        match &self.wiring {
            Wiring::Veth(pair) => &pair.server,
            Wiring::Tap(namespace) | Wiring::Relay(namespace) => namespace,
        }
    }

    /// The interface Atlas sits on, as the server's namespace calls it.
    pub(crate) fn interface(&self) -> &'static str {
        match self.wiring {
            Wiring::Veth(_) => VethPair::SERVER_INTERFACE,
            Wiring::Tap(_) => TAP,
            Wiring::Relay(_) => LOOPBACK,
        }
    }

    /// Where Atlas listens.
    pub(crate) fn address(&self, family: Family) -> Result<SocketAddr> {
        Ok(SocketAddr::new(family.address()?, PORT))
    }

    /// Where Atlas listens for TLS.
    pub(crate) fn https_address(&self, family: Family) -> Result<SocketAddr> {
        Ok(SocketAddr::new(family.address()?, HTTPS_PORT))
    }

    /// Starts the server, on the port of TLS too if it has identities.
    pub(crate) fn start(
        &self,
        root: &Path,
        config: Option<&Path>,
        identities: Option<&Identities>,
    ) -> Result<Server> {
        let mut command = self.server().command("env");
        command.arg(&self.subject.program).arg("serve").arg(root);
        command.arg("--link");
        let place = if self.has_wire() {
            self.interface()
        } else {
            "::"
        };
        command.arg(format!("{}:{place}", self.kind.name()));
        command.args(["--workers", &self.subject.workers.to_string()]);
        command.args(["--address", &format!("{}/24", VethPair::ATLAS_V4)]);
        command.args(["--address", &format!("{}/64", VethPair::ATLAS_V6)]);
        command.args(["--http", &PORT.to_string()]);
        if self.lends() {
            command.args(["--zero-copy", "on"]);
        }
        if let Some(identities) = identities {
            command.args(["--https", &HTTPS_PORT.to_string()]);
            command.args(identities.atlas_options());
        }
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        Server::atlas(&mut command)
    }

    /// A connection to Atlas.
    pub(crate) fn connect(&self, family: Family) -> Result<Client> {
        Client::connect(self.client(), self.address(family)?)
    }

    /// Starts nginx as the reference, beside the clients; `None` if it is not installed.
    pub(crate) fn start_reference(&self, root: &Path) -> Result<Option<Server>> {
        if nginx_program().is_none() {
            return Ok(None);
        }
        let config = NginxConfig::reference(root, REFERENCE.parse()?)?;
        config.start(self.client(), None).map(Some)
    }

    /// Drops packets at random in both directions until the guard goes; `Err` says why not.
    pub(crate) fn lose_packets(&self) -> std::result::Result<Undo, String> {
        self.client().lose_packets(self.client_interface(), LOSS)
    }

    fn client_interface(&self) -> &'static str {
        match self.wiring {
            Wiring::Veth(_) => VethPair::CLIENT_INTERFACE,
            Wiring::Tap(_) => TAP,
            Wiring::Relay(_) => LOOPBACK,
        }
    }
}

fn loopback_with_addresses() -> Result<Namespace> {
    let namespace = Namespace::new("r")?;
    for address in [VethPair::ATLAS_V4, VethPair::ATLAS_V6] {
        namespace.ip(&format!("address add {address} dev {LOOPBACK}"))?;
    }
    Ok(namespace)
}

/// Starts Atlas in a namespace on a link there, as typed, on port 80.
pub(super) fn serve(
    atlas: &Path,
    (namespace, root): (&Namespace, &Path),
    link: &str,
    options: &[&str],
) -> Result<Server> {
    let mut command = namespace.command("env");
    command.arg(atlas).arg("serve").arg(root);
    command.args(["--link", link, "--http", &PORT.to_string()]);
    Server::atlas(command.args(options))
}

/// An address and a port.
pub(super) fn at(address: &str, port: u16) -> Result<SocketAddr> {
    let address: IpAddr = address.parse().context("an address")?;
    Ok(SocketAddr::new(address, port))
}
