//! Where the server is on the network: the kind of link and its interface, its MAC address, its addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use clock::Duration;
use link::ZeroCopy;

use super::key::{ADDRESS_DEFAULT, MAC_DEFAULT};
use super::{ADDRESSES_MAX, Origin};
use crate::failure::Failure;
use crate::settings::cidr::Cidr;
use crate::start::routes;

/// Behind an address that another station answers ARP and neighbour discovery for.
const VIRTUAL: &str = ",noarp";

/// The interface that every network namespace has.
const LOOPBACK: &str = "lo";

/// The interface to serve on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LinkChoice {
    /// A TAP interface of this name, made if it does not exist.
    Tap(String),
    /// An existing interface, through an `AF_PACKET` socket.
    Packet(String),
    /// An existing interface, through `AF_XDP` sockets.
    Xdp(String),
    /// An existing interface: `AF_XDP` sockets receive, packet sockets send.
    XdpPacket(String),
    /// An existing interface, in the way that is best there.
    Auto(String),
    /// A second TCP stack in this process, between it and the host's sockets at this address of the host's.
    Relay(IpAddr),
}

impl LinkChoice {
    /// The kind, as it is written before the colon, and the interface's name.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Tap(name) => ("tap", name),
            Self::Packet(name) => ("packet", name),
            Self::Xdp(name) => ("xdp", name),
            Self::XdpPacket(name) => ("xdp+packet", name),
            Self::Auto(name) => ("auto", name),
            Self::Relay(_) => ("relay", LOOPBACK),
        }
    }

    /// The kind, as it is written before the colon.
    pub(crate) fn kind(&self) -> &'static str {
        self.parts().0
    }

    /// The interface's name. A relay has none, and is well as long as loopback is.
    #[must_use]
    pub(crate) fn interface(&self) -> &str {
        self.parts().1
    }

    /// Whether the other end is this host: there is no MAC address to share, and no device to read frames.
    pub(crate) const fn is_private(&self) -> bool {
        matches!(self, Self::Tap(_) | Self::Relay(_))
    }

    /// The host's address that a relay takes clients at.
    pub(crate) const fn relayed_at(&self) -> Option<IpAddr> {
        match self {
            Self::Relay(address) => Some(*address),
            _ => None,
        }
    }

    /// Whether addresses can be shared with the host, by an XDP program; they are, if none is named.
    pub(super) const fn can_share_addresses(&self) -> bool {
        matches!(self, Self::Xdp(_) | Self::XdpPacket(_) | Self::Auto(_))
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = self.parts();
        match self.relayed_at() {
            Some(address) => write!(formatter, "{kind}:{address}"),
            None => write!(formatter, "{kind}:{name}"),
        }
    }
}

/// Which MAC address the server is reached at on an existing interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MacSetting {
    /// One of its own.
    Own,
    /// The interface's, shared with the kernel.
    Interface,
}

/// Whether the name is an interface's is for the link room to say, which also knows whether there
/// is such an interface.
pub(super) fn parse_link(text: &str, origin: &Origin) -> Result<LinkChoice, Failure> {
    let refuse = |problem: &str| {
        Failure::refused(
            format!("{origin} {text}: {problem}"),
            "write tap:NAME for a TAP interface; packet:IFACE, xdp:IFACE, xdp+packet:IFACE or \
             auto:IFACE for an existing one; relay:ADDRESS, an address of this host's, for none",
        )
    };
    if text == "auto" {
        let interface = routes::default_route_interface().ok_or_else(|| {
            // DHCP may be on its way.
            Failure::not_now(
                format!("{origin} auto: no interface has a default route"),
                "name one: auto:IFACE",
            )
        })?;
        return Ok(LinkChoice::Auto(interface));
    }
    if text == "relay" {
        return Ok(LinkChoice::Relay(Ipv4Addr::LOCALHOST.into()));
    }
    let (kind, name) = text
        .split_once(':')
        .ok_or_else(|| refuse("no kind of link"))?;
    match kind {
        "tap" => Ok(LinkChoice::Tap(name.into())),
        "packet" => Ok(LinkChoice::Packet(name.into())),
        "xdp" => Ok(LinkChoice::Xdp(name.into())),
        "xdp+packet" => Ok(LinkChoice::XdpPacket(name.into())),
        "auto" => Ok(LinkChoice::Auto(name.into())),
        "relay" => {
            let address = name.parse().map_err(|_| refuse("not an address"))?;
            Ok(LinkChoice::Relay(address))
        }
        _ => Err(refuse("unknown kind of link")),
    }
}

/// Whose MAC: on a TAP, or behind a relay, there is none to share, since the interface's is the host's end. The host's own
/// addresses are reached at the interface's.
pub(super) fn parse_mac(
    text: Option<&str>,
    origin: &Origin,
    link: &LinkChoice,
    is_address_shared: bool,
) -> Result<MacSetting, Failure> {
    match (text, link) {
        (None | Some("interface"), _) if is_address_shared => Ok(MacSetting::Interface),
        (Some("own"), _) if is_address_shared => Err(Failure::refused(
            format!("{origin} own: the host's own addresses are at the interface's"),
            "leave it out, or name addresses of the server's own with --address",
        )),
        _ => parse_own_mac(text.unwrap_or(MAC_DEFAULT), origin, link),
    }
}

fn parse_own_mac(text: &str, origin: &Origin, link: &LinkChoice) -> Result<MacSetting, Failure> {
    match (text, link) {
        ("own", _) => Ok(MacSetting::Own),
        ("interface", link) if !link.is_private() => Ok(MacSetting::Interface),
        ("interface", _) => Err(Failure::refused(
            format!("{origin} interface: means nothing with {link}"),
            "leave it out, or use --link packet:IFACE",
        )),
        (other, _) => Err(Failure::refused(
            format!("{origin} {other}: unknown MAC address"),
            "write own or interface",
        )),
    }
}

/// Frames of a TAP or a relay are copied to whoever reads it.
pub(super) fn parse_zero_copy(
    text: Option<&str>,
    origin: &Origin,
    link: &LinkChoice,
) -> Result<ZeroCopy, Failure> {
    match (text, link) {
        (None | Some("auto"), _) => Ok(ZeroCopy::Auto),
        (Some("off"), _) => Ok(ZeroCopy::Off),
        (Some("on"), link) if !link.is_private() => Ok(ZeroCopy::On),
        (Some("on"), _) => Err(Failure::refused(
            format!("{origin} on: means nothing with {link}"),
            "leave it out, or use --link packet:IFACE",
        )),
        (Some(other), _) => Err(Failure::refused(
            format!("{origin} {other}: unknown choice"),
            "write auto, on or off",
        )),
    }
}

/// How long a worker polls the device before it sleeps; zero: not at all. Only AF_XDP sockets have their
/// device polled.
pub(super) fn check_busy_poll(
    microseconds: u64,
    origin: &Origin,
    link: &LinkChoice,
    has_coalescing: bool,
) -> Result<Duration, Failure> {
    let refuse = |problem: &str, remedy| {
        let problem = format!("{origin} {microseconds}: {problem}");
        Err(Failure::refused(problem, remedy))
    };
    if microseconds == 0 {
        return Ok(Duration::ZERO);
    }
    match link {
        LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_) if has_coalescing => refuse(
            "a worker that polls does not pause, and coalesce_us says how long it pauses",
            "leave out one of the two",
        ),
        LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_) => Ok(Duration::from_micros(microseconds)),
        LinkChoice::Auto(_) => refuse(
            "auto may choose a link whose device cannot be polled",
            "leave it out, or use --link xdp:IFACE or xdp+packet:IFACE",
        ),
        LinkChoice::Tap(_) | LinkChoice::Packet(_) | LinkChoice::Relay(_) => refuse(
            "only AF_XDP links have their device polled",
            "leave it out, or use --link xdp:IFACE or xdp+packet:IFACE",
        ),
    }
}

/// The addresses of a server that was given none and shares none: where this host alone sees them announced. On a network they would be anybody's.
pub(super) fn default_addresses(
    link: &LinkChoice,
    origin: &Origin,
) -> Result<Vec<String>, Failure> {
    if link.is_private() {
        return Ok(vec![ADDRESS_DEFAULT.into()]);
    }
    Err(Failure::refused(
        format!("{origin} {link}: no address to serve at"),
        "name one that no host has: --address ADDRESS/BITS, or address = [...] in the configuration file",
    ))
}

/// The addresses, and those of them that are given with [`VIRTUAL`].
pub(super) fn parse_addresses(
    texts: &[String],
    origin: &Origin,
) -> Result<(Vec<Cidr>, Vec<IpAddr>), Failure> {
    if texts.is_empty() || texts.len() > ADDRESSES_MAX {
        return Err(Failure::refused(
            format!("{origin}: {} addresses", texts.len()),
            format!("give 1 to {ADDRESSES_MAX}"),
        ));
    }
    let mut addresses: Vec<Cidr> = Vec::new();
    let mut virtual_addresses = Vec::new();
    for text in texts {
        let without = text.strip_suffix(VIRTUAL);
        let cidr = Cidr::parse(without.unwrap_or(text)).map_err(|error| {
            Failure::refused(format!("{origin} {text}: {error}"), error.remedy())
        })?;
        if addresses
            .iter()
            .any(|other| other.address() == cidr.address())
        {
            return Err(Failure::refused(
                format!("{origin} {text}: the address is given twice"),
                "leave one of them out",
            ));
        }
        addresses.push(cidr);
        if without.is_some() {
            virtual_addresses.push(cidr.address());
        }
    }
    Ok((addresses, virtual_addresses))
}
