//! Follows the host's addresses where the server shares them, and the gateways by which its virtual addresses
//! answer.
//!
//! Each worker does so for itself; the first also tells the link, and the log. The kernel's notifications wake
//! the worker. What it answers by, it asks the kernel: the default routes by the interface, and where their
//! gateways are, of which the kernel has a table of neighbours. A gateway that is not in the table is sent an
//! empty datagram to, so that the kernel asks for it.
//!
//! What could not be asked, or not be applied, is tried again after [`REREAD_INTERVAL`], until it succeeds.
//!
//! It refuses to reread more often than once in [`REREAD_INTERVAL`], and to log the same twice. Bounds: those of
//! [`HostAddresses`] and of [`routes::gateways`]; one reading of the host's addresses for each change, and for
//! each interval while something fails.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use clock::{Duration, Instant};
use diskmap::Disk;
use link::{InterfaceWatch, Link, SetupError};
use tracing::{error, info, warn};
use wire::MacAddress;
use worker::Worker;

use crate::start::host_addresses::HostAddresses;
use crate::start::routes;

/// Notifications wake the worker no sooner than this after it has read: a router daemon changes thousands of
/// routes at once. What failed is tried again after it, too.
pub(crate) const REREAD_INTERVAL: Duration = Duration::from_millis(100);

/// How long a gateway on the link may take to answer the kernel's question.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(20);

/// Where nobody listens (RFC 863 would discard it).
const DISCARD_PORT: u16 = 9;

/// See the module.
#[derive(Debug)]
pub(crate) struct AddressWatch {
    /// The addresses that are served, if they are the host's; `None`: our own, which do not change.
    served: Option<HostAddresses>,
    /// Those to which the link takes frames, as the log says. The first worker has it do so, for all.
    taken_by_link: Vec<IpAddr>,
    has_virtual: bool,
    is_first: bool,
    /// What failed at the last attempt; it is tried again. `None`: everything is as the host has it.
    failure: Option<String>,
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
            taken_by_link: addresses.all.clone(),
            served: is_shared.then_some(addresses),
            has_virtual,
            is_first,
            failure: None,
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

    /// Looks at what was notified, and at what failed before. Returns when to look again, if sooner than usual.
    pub(crate) fn look<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        watch: &mut InterfaceWatch,
        worker: &mut Worker<L, D>,
    ) -> Option<Instant> {
        let is_changed = watch.take_address_change();
        if self.is_due(now, is_changed) {
            let interface = watch.name();
            let read = || HostAddresses::read(interface);
            let addresses = self.follow_addresses(interface, read, worker);
            let routes = self.follow_routes(|| routes::gateways(interface));
            self.note(now, addresses.and(routes));
        }
        let is_missing = self.has_virtual && self.follow_gateways(now, watch, worker);
        if is_changed && is_missing {
            return Some(now + ANSWER_TIME);
        }
        // Then it is woken again.
        (now < self.quiet_until).then_some(self.quiet_until)
    }

    fn is_due(&self, now: Instant, is_changed: bool) -> bool {
        is_changed || self.failure.is_some() && now >= self.quiet_until
    }

    /// It was looked at `now`, with this outcome.
    fn note(&mut self, now: Instant, outcome: Result<(), String>) {
        self.quiet_until = now + REREAD_INTERVAL;
        let failure = outcome.err();
        if failure == self.failure {
            return;
        }
        match &failure {
            _ if !self.is_first => {}
            Some(failure) => error!("{failure}: it is tried again"),
            None => info!("the host's addresses and routes are followed again"),
        }
        self.failure = failure;
    }

    fn follow_addresses<L: Link, D: Disk>(
        &mut self,
        interface: &str,
        read: impl FnOnce() -> io::Result<HostAddresses>,
        worker: &mut Worker<L, D>,
    ) -> Result<(), String> {
        let Some(before) = &self.served else {
            return Ok(());
        };
        let addresses =
            read().map_err(|error| format!("the host's addresses cannot be listed: {error}"))?;
        if addresses != *before {
            let reset_count = worker.set_addresses(&addresses.all, &addresses.virtual_addresses);
            if self.is_first && addresses.left_out_count != before.left_out_count {
                addresses.warn_of_left_out(interface);
            }
            if reset_count > 0 {
                warn!("{reset_count} connections of addresses that are gone are reset");
            }
        }
        self.has_virtual = !addresses.virtual_addresses.is_empty();
        let addresses = self.served.insert(addresses);
        if self.is_first && addresses.all != self.taken_by_link {
            worker.share_addresses(&addresses.all).map_err(|error| {
                format!("the XDP program cannot be told of the host's addresses: {error}")
            })?;
            // Only now is it true: until then the host's kernel answers at the new addresses.
            tell(&self.taken_by_link, &addresses.all);
            self.taken_by_link.clone_from(&addresses.all);
        }
        Ok(())
    }

    fn follow_routes(
        &mut self,
        read: impl FnOnce() -> io::Result<Vec<IpAddr>>,
    ) -> Result<(), String> {
        if self.has_virtual {
            let error = |error| format!("the host's routes cannot be read: {error}");
            self.routes = read().map_err(error)?;
        }
        Ok(())
    }

    /// Tells the worker where the gateways are, if that has changed. Returns whether one is missing.
    fn follow_gateways<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        watch: &mut InterfaceWatch,
        worker: &mut Worker<L, D>,
    ) -> bool {
        let gateways = self.find_gateways(|address| watch.neighbor(address));
        let is_missing = gateways.len() < self.routes.len();
        if is_missing && self.is_first {
            let is_known = |route: &IpAddr| gateways.iter().any(|(address, _)| address == route);
            let missing = self.routes.iter().filter(|route| !is_known(route));
            missing.for_each(|&route| have_asked_for(route, watch.index()));
        }
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

    /// Where the gateways are that the kernel knows: where they were, if it does not say.
    fn find_gateways(
        &self,
        mut ask: impl FnMut(IpAddr) -> Result<Option<MacAddress>, SetupError>,
    ) -> Vec<(IpAddr, MacAddress)> {
        let before = |address| {
            let mut known = self.gateways.iter().flatten();
            known.find(|(gateway, _)| *gateway == address)
        };
        let find = |&address: &IpAddr| match ask(address) {
            Ok(mac) => mac.map(|mac| (address, mac)),
            Err(_) => before(address).copied(),
        };
        self.routes.iter().filter_map(find).collect()
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

fn tell(before: &[IpAddr], now: &[IpAddr]) {
    for address in now.iter().filter(|it| !before.contains(it)) {
        info!("the host has {address} now: it is served");
    }
    for address in before.iter().filter(|it| !now.contains(it)) {
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;

    use clock::{Duration, Instant};
    use link::SetupError;
    use wire::MacAddress;
    use worker::testing::{Setup, World};

    use super::{AddressWatch, REREAD_INTERVAL};
    use crate::start::host_addresses::HostAddresses;

    const START: Instant = Instant::from_millis(5);

    fn addresses(texts: &[&str]) -> HostAddresses {
        HostAddresses {
            all: texts.iter().map(|text| text.parse().unwrap()).collect(),
            ..HostAddresses::default()
        }
    }

    /// A world whose client is connected to one of the host's addresses, and what follows them.
    fn following(is_first: bool) -> (World, AddressWatch) {
        let world = World::connected(Setup::default());
        let served = addresses(&["10.77.0.2"]);
        (world, AddressWatch::new(served, true, is_first).unwrap())
    }

    fn look(
        world: &mut World,
        watch: &mut AddressWatch,
        now: Instant,
        listed: io::Result<HostAddresses>,
    ) {
        let outcome = watch.follow_addresses("eth0", || listed, &mut world.worker);
        watch.note(now, outcome);
        while world.step().progressed {}
        world.client.receive(world.now);
    }

    fn assert_is_tried_again(watch: &AddressWatch, failed_at: Instant) {
        let again = failed_at + REREAD_INTERVAL;
        assert!(!watch.is_due(again - Duration::from_nanos(1), false));
        assert!(watch.is_due(again, false));
    }

    #[test]
    fn what_the_link_was_not_told_it_is_told_again() {
        let (mut world, mut watch) = following(true);
        let both = addresses(&["10.77.0.2", "10.77.0.3"]);
        world.worker.link_mut().refuse_next_share(libc::ENOMEM);
        look(&mut world, &mut watch, START, Ok(both.clone()));
        assert!(world.worker.link().shared_addresses().is_empty());
        assert_eq!(watch.taken_by_link, addresses(&["10.77.0.2"]).all);
        assert_is_tried_again(&watch, START);
        look(
            &mut world,
            &mut watch,
            START + REREAD_INTERVAL,
            Ok(both.clone()),
        );
        assert_eq!(world.worker.link().shared_addresses(), both.all);
        assert_eq!(watch.taken_by_link, both.all);
        assert!(!watch.is_due(START + REREAD_INTERVAL * 9, false));
    }

    #[test]
    fn a_listing_that_fails_changes_nothing_and_is_made_again() {
        let (mut world, mut watch) = following(true);
        let failed = || Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        let mut now = START;
        for _ in 0..2 {
            look(&mut world, &mut watch, now, failed());
            assert_eq!(world.client.resets, 0);
            assert_is_tried_again(&watch, now);
            now += REREAD_INTERVAL;
        }
        let other = addresses(&["10.77.0.3"]);
        look(&mut world, &mut watch, now, Ok(other.clone()));
        assert_eq!(world.client.resets, 1, "its address is gone");
        assert_eq!(world.worker.link().shared_addresses(), other.all);
        assert!(!watch.is_due(now + REREAD_INTERVAL * 9, false));
    }

    #[test]
    fn only_the_first_worker_tells_the_link() {
        let (mut world, mut watch) = following(false);
        look(&mut world, &mut watch, START, Ok(addresses(&["10.77.0.3"])));
        assert!(world.worker.link().shared_addresses().is_empty());
        assert!(!watch.is_due(START + REREAD_INTERVAL, false));
    }

    #[test]
    fn gateways_that_the_kernel_does_not_say_stay_where_they_were() {
        let gateways: [IpAddr; 3] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(IpAddr::from);
        let mac = |number| MacAddress([2, 0, 0, 0, 0, number]);
        let (_, mut watch) = following(true);
        watch.has_virtual = true;
        watch.follow_routes(|| Ok(gateways.to_vec())).unwrap();
        let found = watch.find_gateways(|address| Ok((address != gateways[1]).then(|| mac(1))));
        assert_eq!(found, [(gateways[0], mac(1)), (gateways[2], mac(1))]);
        watch.gateways = Some(found);
        let found = watch.find_gateways(|address| {
            if address == gateways[0] {
                Ok(Some(mac(2)))
            } else {
                Err(SetupError::NoInterface {
                    name: "eth0".into(),
                })
            }
        });
        assert_eq!(found, [(gateways[0], mac(2)), (gateways[2], mac(1))]);
        let failed = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(watch.follow_routes(failed).is_err());
        assert_eq!(watch.routes, gateways);
    }
}
