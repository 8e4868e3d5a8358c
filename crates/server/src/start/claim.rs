//! Claims our addresses before they are used: a lock against a second server, an interface that
//! carries frames, and probes for other hosts that use them (RFC 5227, RFC 4862).
//!
//! It refuses to serve at an address that another host uses: two hosts at one address silently reset
//! each other's connections. It refuses to be kept from starting by a local user who is no server, and to report `ready` while the interface is down. It waits,
//! because carrier may take long at boot, until a signal ends the server.
//!
//! Bounds: the wait for the interface has none; the probes take [`ProbeTimes::total`].

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use clock::Instant;
use link::{InterfaceState, InterfaceWatch, Link, Received};
use rustix::process::geteuid;
use session::{AddressCheck, AddressConflict, ProbeTimes};
use tracing::{debug, info, warn};
use wire::{HEADERS_BYTES_MAX, Offload, Outgoing};

use crate::failure::Failure;
use crate::run::signals::Signals;
use crate::run::wait::{self, Source};
use crate::settings::{LinkChoice, MacSetting, Settings};
use crate::start::privileges::Identity;

/// Most frames handled between two readings of the clock.
const FRAMES_AT_ONCE_MAX: usize = 256;

/// Locks on our addresses, each on one interface of this network namespace. The kernel releases them
/// when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Locks {
    sockets: Vec<(String, UnixDatagram)>,
}

impl Locks {
    /// Their names, and sockets for a process that takes over.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub(crate) fn share(&self) -> io::Result<(Vec<String>, Vec<OwnedFd>)> {
        let each = self.sockets.iter().map(|(name, socket)| {
            let socket = socket.as_fd().try_clone_to_owned()?;
            Ok((name.clone(), socket))
        });
        let each: io::Result<Vec<_>> = each.collect();
        Ok(each?.into_iter().unzip())
    }
}

/// The name of the lock on an address.
fn lock_name(settings: &Settings, address: IpAddr) -> String {
    format!("atlas/{}/{address}", settings.link.interface())
}

/// Whether a server runs that has one of our addresses on our interface. Takes no lock.
#[must_use]
pub(crate) fn is_locked(settings: &Settings, identity: &Identity) -> bool {
    let is_held = |address: IpAddr| {
        let name = lock_name(settings, address);
        !matches!(
            holder(&name, identity),
            Holder::Nobody | Holder::Stranger(_)
        )
    };
    let mut addresses = settings.addresses.iter().map(|cidr| cidr.address());
    addresses.any(is_held)
}

/// Locks our addresses on our interface. What `inherit` has of a name is locked already.
///
/// Two packet sockets on one interface do not receive each other's frames, so a probe would not find
/// a second server on this host.
///
/// Any local user can take the name of a lock, and must not keep the server from starting by that: a name
/// that belongs to a user who cannot be a server is warned of, and served without.
///
/// # Errors
/// Another server has the lock.
pub(crate) fn lock(
    settings: &Settings,
    identity: &Identity,
    mut inherit: impl FnMut(&str) -> Option<UnixDatagram>,
) -> Result<Locks, Failure> {
    let mut addresses: Vec<IpAddr> = settings.own_addresses();
    if settings.link.relayed_at().is_some() {
        // Only the relay sees them; the host's kernel refuses the ports to a second one.
        addresses.clear();
    }
    let mut sockets = Vec::new();
    for address in addresses {
        let name = lock_name(settings, address);
        let socket = match inherit(&name) {
            Some(socket) => Some(socket),
            None => lock_one(settings, identity, address)?,
        };
        sockets.extend(socket.map(|socket| (name, socket)));
    }
    Ok(Locks { sockets })
}

/// Who has the name of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// It was released.
    Nobody,
    /// Root, the user who starts this server, or the one it becomes: another server.
    Server,
    /// The kernel does not tell: believed to be another server.
    Unknown,
    /// Any other user, by number.
    Stranger(u32),
}

fn holder(name: &str, identity: &Identity) -> Holder {
    let own = geteuid().as_raw();
    match link::abstract_name_owner(name) {
        Ok(None) => Holder::Nobody,
        Ok(Some(user)) => {
            let later = identity.new_owner().map(|(user, _)| user);
            let is_server = user == 0 || user == own || Some(user) == later;
            if is_server {
                Holder::Server
            } else {
                Holder::Stranger(user)
            }
        }
        Err(error) => {
            debug!("whose socket @{name} is cannot be told: {error}");
            Holder::Unknown
        }
    }
}

/// `None`: a stranger has the name.
fn lock_one(
    settings: &Settings,
    identity: &Identity,
    address: IpAddr,
) -> Result<Option<UnixDatagram>, Failure> {
    let name = lock_name(settings, address);
    let bind =
        || SocketAddr::from_abstract_name(&name).and_then(|name| UnixDatagram::bind_addr(&name));
    let refuse = |error: &io::Error, problem: String| {
        let what = format!(
            "{} {address} on {}: {problem}",
            settings.addresses_origin,
            settings.link.interface()
        );
        let remedy = format!("stop that one (`ss -xap | grep @{name}` names it) or use another");
        Failure::of_error(error, what, remedy)
    };
    let mut outcome = bind();
    if is_taken(&outcome) {
        match holder(&name, identity) {
            Holder::Nobody => outcome = bind(),
            Holder::Server | Holder::Unknown => {}
            Holder::Stranger(user) => {
                warn!(
                    "{address} is not locked: user {user}, who is neither root nor a user of this server, \
                     has taken the name of the lock; another server with this address would not be \
                     noticed; end that process (`ss -xap | grep @{name}` names it) and start again"
                );
                return Ok(None);
            }
        }
    }
    outcome.map(Some).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => refuse(&error, "another server has it".into()),
        _ => refuse(&error, format!("it cannot be locked: {error}")),
    })
}

fn is_taken<T>(outcome: &io::Result<T>) -> bool {
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::AddrInUse)
}

/// Waits for the interface, then probes the network for our addresses, unless they are held by this host already. `None`: a signal asked the
/// server to end meanwhile.
///
/// # Errors
/// Another host uses one of the addresses, or the interface was removed.
pub(crate) fn claim<L: Link>(
    link: &mut L,
    settings: &Settings,
    signals: &Signals,
    is_held: bool,
    clock: impl Fn() -> Instant,
) -> Result<Option<InterfaceWatch>, Failure> {
    let interface = settings.link.interface();
    let mut watch = InterfaceWatch::open(interface).map_err(refuse)?;
    warn_of_forwarding(settings);
    let mut clash = None;
    loop {
        if !wait_for_frames(&mut watch, signals)? {
            return Ok(None);
        }
        if !settings.is_address_checked || is_held {
            return Ok(Some(watch));
        }
        let times = probe_times(&settings.link, watch.state())?;
        let started = clock();
        let check = AddressCheck::new(
            started,
            link.capabilities().mac,
            &settings.answered_addresses(),
            times,
        );
        if !probe(link, check, signals, &clock, &mut clash)? {
            return Ok(None);
        }
        if let Some(conflict) = clash {
            return Err(refuse_conflict(settings, conflict));
        }
        debug!(
            milliseconds = clock().since(started).as_millis(),
            "nobody has the addresses"
        );
        // Probes sent while the interface was down reached no host.
        watch.take_change().map_err(refuse)?;
        if watch.state().carries_frames() {
            return Ok(Some(watch));
        }
    }
}

/// The link worked when it was opened, so this is about the moment.
fn refuse(error: impl std::fmt::Display) -> Failure {
    Failure::NotNow(format!("--link: {error}"))
}

fn refuse_conflict(settings: &Settings, conflict: AddressConflict) -> Failure {
    let AddressConflict { address, mac } = conflict;
    Failure::not_now(
        format!(
            "{} {address}: the station {mac} on {} has that address",
            settings.addresses_origin,
            settings.link.interface()
        ),
        "choose one that nobody has, or take it from that station; if it answers for every address \
         (proxy ARP), set address_check = false in the configuration file",
    )
}

/// On a tap only this host is at the other end, unless the tap is a port of a bridge.
fn probe_times(link: &LinkChoice, state: InterfaceState) -> Result<ProbeTimes, Failure> {
    let is_host_alone = match link {
        LinkChoice::Tap(name) => !state.has_master && !link::is_macvtap(name).map_err(refuse)?,
        _ => false,
    };
    Ok(if is_host_alone {
        ProbeTimes::HOST
    } else {
        ProbeTimes::NETWORK
    })
}

/// Why an interface carries no frames, and what to do about it.
pub(crate) fn down_reason(name: &str, state: InterfaceState) -> String {
    if state.is_up {
        format!("{name} has no carrier: waiting for it; see that its cable or its other end is up")
    } else {
        format!("{name} is down: waiting for it; ip link set {name} up")
    }
}

/// Waits until the interface carries frames; `false`: a signal asked the server to end.
fn wait_for_frames(watch: &mut InterfaceWatch, signals: &Signals) -> Result<bool, Failure> {
    let mut told = None;
    while !watch.state().carries_frames() {
        let down_reason = down_reason(watch.name(), watch.state());
        if told.as_ref() != Some(&down_reason) {
            warn!("{down_reason}");
            told = Some(down_reason);
        }
        if signals.termination_requested() {
            return Ok(false);
        }
        let sources = [
            Source::readable(signals.wake_fd()),
            Source::readable(watch.poll_fd()),
        ];
        sleep(&sources, None, signals)?;
        watch.take_change().map_err(refuse)?;
    }
    if told.is_some() {
        info!("{} carries frames", watch.name());
    }
    Ok(!signals.termination_requested())
}

/// Sends every probe; `false`: a signal asked the server to end. Stops at the first conflict.
fn probe<L: Link>(
    link: &mut L,
    mut check: AddressCheck,
    signals: &Signals,
    clock: &impl Fn() -> Instant,
    clash: &mut Option<AddressConflict>,
) -> Result<bool, Failure> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    loop {
        if signals.termination_requested() {
            return Ok(false);
        }
        let now = clock();
        let mut sink = |Received { frame, checksum }: Received<'_>| {
            *clash = clash.or_else(|| check.judge(frame, checksum));
        };
        link.receive(now, FRAMES_AT_ONCE_MAX, &mut sink)
            .map_err(refuse)?;
        if clash.is_some() || check.is_over(now) {
            return Ok(true);
        }
        while let Some(length) = check.poll_probe(now, &mut buffer) {
            let frame = Outgoing {
                headers: &buffer[..length],
                payload: &[],
                offload: Offload::default(),
            };
            // A probe that the link does not take counts as lost; there are several for that.
            if let Err(error) = link.transmit(now, &frame) {
                debug!("a question about an address was not sent: {error}");
            }
        }
        let left = check.poll_timeout().since(now);
        let mut sources = [Source::readable(signals.wake_fd()); 2];
        let mut count = 1;
        if let Some(fd) = link.poll_fd() {
            sources[1] = Source::readable(fd);
            count = 2;
        }
        sleep(&sources[..count], Some(left), signals)?;
    }
}

fn sleep(
    sources: &[Source<'_>],
    timeout: Option<Duration>,
    signals: &Signals,
) -> Result<(), Failure> {
    wait::wait(sources, timeout).map_err(|error| Failure::Broken(format!("ppoll: {error}")))?;
    signals.drain();
    Ok(())
}

/// Warns that a kernel that forwards packets also forwards ours, if it shares our MAC.
fn warn_of_forwarding(settings: &Settings) {
    let interface = settings.link.interface();
    // An XDP program takes our packets before the kernel could forward them.
    let is_packet = matches!(settings.link, LinkChoice::Packet(_));
    if settings.mac != MacSetting::Interface || !is_packet {
        return;
    }
    let addresses = settings.own_addresses();
    for (version, sysctl, is_used) in [
        (
            "ipv4",
            "net.ipv4.ip_forward",
            addresses.iter().any(IpAddr::is_ipv4),
        ),
        (
            "ipv6",
            "net.ipv6.conf.all.forwarding",
            addresses.iter().any(IpAddr::is_ipv6),
        ),
    ] {
        let file = format!("/proc/sys/net/{version}/conf/{interface}/forwarding");
        // Without IPv6 there is no such file, and nothing is forwarded.
        let forwards = fs::read_to_string(&file).is_ok_and(|text| text.trim() != "0");
        if is_used && forwards {
            warn!(
                "--mac interface: this host forwards packets from {interface}, also those sent to \
                 the server; set {file} to 0 (of a container: docker run --sysctl {sysctl}=0), or drop \
                 them in the table raw (the page configuration.md of the documentation)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use link::{InterfaceState, InterfaceWatch};
    use session::ProbeTimes;

    use super::{down_reason, probe_times};
    use crate::settings::LinkChoice;

    fn state(is_up: bool, has_master: bool) -> InterfaceState {
        InterfaceState {
            is_up,
            has_master,
            has_carrier: false,
            ..InterfaceWatch::open("lo").unwrap().state()
        }
    }

    #[test]
    fn each_down_reason_has_a_remedy() {
        assert_eq!(
            down_reason("eth0", state(false, false)),
            "eth0 is down: waiting for it; ip link set eth0 up"
        );
        let no_carrier = down_reason("eth0", state(true, false));
        assert!(no_carrier.starts_with("eth0 has no carrier: waiting for it; see"));
    }

    #[test]
    fn a_tap_without_a_bridge_is_probed_quickly() {
        // Any interface that is no macvtap will do.
        let tap = LinkChoice::Tap("lo".into());
        let packet = LinkChoice::Packet("lo".into());
        let times = |link, has_master| probe_times(link, state(true, has_master)).unwrap();
        assert_eq!(times(&tap, false), ProbeTimes::HOST);
        assert_eq!(times(&tap, true), ProbeTimes::NETWORK);
        assert_eq!(times(&packet, false), ProbeTimes::NETWORK);
        assert!(ProbeTimes::HOST.total() < ProbeTimes::NETWORK.total() / 10);
    }
}
