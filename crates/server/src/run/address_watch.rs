//! Follows the host's addresses where the server shares them, and the gateways by which its virtual addresses
//! answer.
//!
//! Each worker does so for itself; the first also tells the link, and the log. The kernel's notifications wake
//! the worker. What it answers by, it asks the kernel: the default routes by the interface, and where their
//! gateways are, of which the kernel has a table of neighbours. A gateway that is not in the table is sent an
//! empty datagram to, so that the kernel asks for it.
//!
//! It refuses to reread more often than once in [`REREAD_INTERVAL`], and to log the same twice. Bounds: those of
//! [`HostAddresses`] and of [`routes::gateways`]; one reading of the host's addresses for each change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use clock::{Duration, Instant};
use diskmap::Disk;
use link::{InterfaceWatch, Link};
use tracing::{error, info, warn};
use wire::MacAddress;
use worker::Worker;

use crate::start::host_addresses::HostAddresses;
use crate::start::routes;

/// Notifications wake the worker no sooner than this after it has read: a router daemon changes thousands of
/// routes at once.
pub(crate) const REREAD_INTERVAL: Duration = Duration::from_millis(100);

/// How long a gateway on the link may take to answer the kernel's question.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(20);

/// Where nobody listens (RFC 863 would discard it).
const DISCARD_PORT: u16 = 9;

/// See the module.
#[derive(Debug)]
pub(crate) struct AddressWatch {
    /// The addresses that are served, if they are the host's; `None`: our own, which do not change.
    shared: Option<HostAddresses>,
    has_virtual: bool,
    is_first: bool,
    /// Gateways of the default routes, the best first.
    routes: Vec<IpAddr>,
    /// Where those of them are that the kernel knows; `None`: that was never asked.
    gateways: Option<Vec<(IpAddr, MacAddress)>>,
    /// Notifications wake nobody until then.
    quiet_until: Instant,
}

impl AddressWatch {
    /// For addresses as they were at start, which are the host's if `is_shared`. `None`: there is nothing to
    /// follow.
    #[must_use]
    pub(crate) fn new(addresses: HostAddresses, is_shared: bool, is_first: bool) -> Option<Self> {
        let has_virtual = !addresses.virtual_addresses.is_empty();
        (is_shared || has_virtual).then(|| Self {
            shared: is_shared.then_some(addresses),
            has_virtual,
            is_first,
            routes: Vec::new(),
            gateways: None,
            quiet_until: Instant::ZERO,
        })
    }

    /// Whether a notification is to wake the worker.
    #[must_use]
    pub(crate) fn is_waiting(&self, now: Instant) -> bool {
        now >= self.quiet_until
    }

    /// Looks at what was notified. Returns when to look again, if sooner than usual.
    pub(crate) fn look<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        watch: &mut InterfaceWatch,
        worker: &mut Worker<L, D>,
    ) -> Option<Instant> {
        let is_changed = watch.take_address_change();
        if is_changed {
            self.quiet_until = now + REREAD_INTERVAL;
            self.follow_addresses(watch.name(), worker);
        }
        if is_changed && self.has_virtual {
            self.routes = routes::gateways(watch.name());
        }
        let is_missing = self.has_virtual && self.follow_gateways(now, watch, worker);
        if is_changed && is_missing {
            return Some(now + ANSWER_TIME);
        }
        // Then it is woken again.
        (now < self.quiet_until).then_some(self.quiet_until)
    }

    fn follow_addresses<L: Link, D: Disk>(&mut self, interface: &str, worker: &mut Worker<L, D>) {
        let Some(before) = &self.shared else {
            return;
        };
        let addresses = match HostAddresses::read(interface) {
            Ok(addresses) => addresses,
            Err(error) => {
                error!("the host's addresses cannot be listed: {error}");
                return;
            }
        };
        if addresses == *before {
            return;
        }
        let reset_count = worker.set_addresses(&addresses.all, &addresses.virtual_addresses);
        if self.is_first {
            if let Err(error) = worker.share_addresses(&addresses.all) {
                error!("the XDP program cannot be told of the host's addresses: {error}");
            }
            tell(before, &addresses);
            if addresses.left_out_count != before.left_out_count {
                addresses.warn_of_left_out(interface);
            }
        }
        if reset_count > 0 {
            warn!("{reset_count} connections of addresses that are gone are reset");
        }
        self.has_virtual = !addresses.virtual_addresses.is_empty();
        self.shared = Some(addresses);
    }

    /// Tells the worker where the gateways are, if that has changed. Returns whether one is missing.
    fn follow_gateways<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        watch: &mut InterfaceWatch,
        worker: &mut Worker<L, D>,
    ) -> bool {
        let mut gateways = Vec::new();
        for &address in &self.routes {
            match watch.neighbor(address) {
                Some(mac) => gateways.push((address, mac)),
                None if self.is_first => have_asked_for(address, watch.index()),
                None => {}
            }
        }
        let is_missing = gateways.len() < self.routes.len();
        if self.gateways.as_ref() == Some(&gateways) {
            return is_missing;
        }
        worker.set_gateways(now, &gateways);
        if self.is_first && !is_missing {
            tell_gateways(watch.name(), &gateways);
        }
        self.gateways = Some(gateways);
        is_missing
    }
}

/// Has the kernel ask for a neighbour of an interface. It does so before it sends anything; whether it gets to
/// is looked at later.
fn have_asked_for(address: IpAddr, interface_index: u32) {
    let (from, to): (IpAddr, SocketAddr) = match address {
        IpAddr::V4(_) => (
            Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::new(address, DISCARD_PORT),
        ),
        IpAddr::V6(address) => (
            Ipv6Addr::UNSPECIFIED.into(),
            SocketAddrV6::new(address, DISCARD_PORT, 0, interface_index).into(),
        ),
    };
    let _ = UdpSocket::bind((from, 0)).and_then(|socket| socket.send_to(&[], to));
}

fn tell(before: &HostAddresses, now: &HostAddresses) {
    for address in now.all.iter().filter(|it| !before.all.contains(it)) {
        info!("the host has {address} now: it is served");
    }
    for address in before.all.iter().filter(|it| !now.all.contains(it)) {
        info!("the host has {address} no more: it is not served");
    }
}

fn tell_gateways(interface: &str, gateways: &[(IpAddr, MacAddress)]) {
    if gateways.is_empty() {
        info!(
            "no default route leaves by {interface}: what virtual addresses send goes where the packets to them \
             come from"
        );
    }
    for (address, mac) in gateways {
        info!("what virtual addresses send goes to the gateway {address} at {mac}");
    }
}
