//! The command line.

use std::net::{Ipv4Addr, SocketAddrV4};

use clap::{Args, ValueEnum};

/// Most connections of an attack: the ports of one address, those below 1024 left out.
pub const PEERS_MAX: u32 = 64_000;

const EXAMPLES: &str = "\
Examples, in a network namespace made for it:
  SYNs from forged addresses, as many as this core can send, for ten seconds:
    atlas-bench attack syn-flood --interface wire1 --server 10.77.0.2:80 --seconds 10
  10,000 clients that request an object and then close their windows:
    atlas-bench attack shut-window --interface wire1 --server 10.77.0.2:80 --connections 10000";

/// What the peers do.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SYNs from forged addresses
    SynFlood,
    /// As `syn-flood`, to an address that nobody has: what sending alone costs
    Nobody,
    /// SYNs from --connections ports, again each second, and never the ACK of the handshake
    HalfOpen,
    /// Handshake, request, then a window of 0 for ever (sockstress)
    ShutWindow,
    /// Handshake, request, then a window of two bytes, acknowledged at once
    TinyWindow,
    /// Handshake, request, then one segment each second
    SlowReader,
}

impl Kind {
    /// Whether its connections are to be completed.
    pub(crate) const fn completes(self) -> bool {
        matches!(self, Self::ShutWindow | Self::TinyWindow | Self::SlowReader)
    }
}

/// Attacks a server: floods it, or holds its connections.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AttackArgs {
    /// What the peers do
    #[arg(value_enum)]
    pub kind: Kind,
    /// The interface, in a network namespace made for it
    #[arg(long, value_name = "NAME")]
    pub interface: String,
    /// The server, on the network of the interface
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub server: SocketAddrV4,
    /// The address the peers have, all of them; nobody else's
    #[arg(long, value_name = "ADDRESS", default_value = "10.77.200.1")]
    pub address: Ipv4Addr,
    /// What they request
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PEERS_MAX)))]
    pub connections: u32,
    /// Connections opened a second
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub open_rate: u32,
    /// Most SYNs of a flood a second (default: what the core can send)
    #[arg(long, value_name = "N")]
    pub rate: Option<u32>,
    /// Ends after so many seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Prints the report as one line of JSON
    #[arg(long)]
    pub json: bool,
}
