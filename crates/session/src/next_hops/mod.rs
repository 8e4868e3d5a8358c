//! What is known of the stations that frames to clients go to, so that the frames follow an address
//! which moves to another station: a router that fails over, a bond, a virtual machine that migrates.
//!
//! A frame to a client goes to the MAC address its last segment came from, and there is no routing table.
//! That is not enough for a client that only receives: once a flight is lost it has nothing to send. So
//! two more things are kept.
//!
//! - [`Neighbors`]: addresses on our link and the MAC addresses they are at, as stations have told us by
//!   ARP (RFC 826) and neighbour discovery (RFC 4861). Only a station that speaks to one of our
//!   addresses makes an entry; an announcement to all changes the entries there are.
//! - [`Routers`]: MAC addresses that segments of clients elsewhere come from, and when the last one did.
//!
//! A virtual address is the exception: packets to it come from a load balancer that takes none back, so frames
//! from it go to one of the [`Gateways`] that the host's routing table has.
//!
//! Who can send frames on our link can make us send elsewhere, as with any host that speaks ARP. Refused:
//! changes by neighbour advertisements without the override flag.
//!
//! Bounds: [`NEIGHBORS_MAX`] addresses and [`ROUTERS_MAX`] routers, those of last use; [`GATEWAYS_MAX`] gateways;
//! [`ADDRESSES_ASKED_MAX`] questions at once and one for an address in [`ASK_INTERVAL`]; one change that
//! all clients are searched for in [`MOVE_INTERVAL`].

use core::net::IpAddr;

use clock::{Duration, Instant};
use wire::{MacAddress, Path};

/// Addresses whose stations are known. Behind a router there is one; hosts on our link that speak to us
/// have one each, and beyond this many the one that spoke least lately is forgotten.
pub(crate) const NEIGHBORS_MAX: usize = 256;

/// Routers from which segments come: more are on no link that we know of. `[guess]`
pub(crate) const ROUTERS_MAX: usize = 8;

/// Gateways: a host has one for each family, or two that stand in for each other. `[guess]`
pub(crate) const GATEWAYS_MAX: usize = 8;

/// Addresses of one station that are asked for at once.
pub(crate) const ADDRESSES_ASKED_MAX: usize = 4;

/// An address is asked for at most this often (RFC 1122 s2.3.2.1).
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Changes of stations that concern clients are followed at most this often: each is a search through all
/// connections, some microseconds for a thousand. Stations announce themselves more than once.
const MOVE_INTERVAL: Duration = Duration::from_millis(100);

/// A router is silent when no client's segment came by it for this long: longer than the round trips in
/// which acknowledgments come, and shorter than two timeouts of the least that TCP waits (200 ms, doubled).
const SILENCE_MIN: Duration = Duration::from_millis(400);

/// A station that announced an address may be the router which took over for this long afterwards: as long
/// as a connection whose segments are not acknowledged lives ([`crate::Config::send_timeout`], by default).
const ANNOUNCEMENT_AGE_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct NextHops {
    pub(crate) neighbors: Neighbors,
    pub(crate) routers: Routers,
    pub(crate) gateways: Gateways,
}

impl NextHops {
    pub(crate) fn new() -> Self {
        Self {
            neighbors: Neighbors::new(),
            routers: Routers::new(),
            gateways: Gateways::default(),
        }
    }

    /// A client opened its connection by this path, or moved to it. If it is not on our link, it came by a
    /// router.
    pub(crate) fn note_router(&mut self, now: Instant, path: &Path) {
        if !self.neighbors.knows(path.source) {
            self.routers.note(now, path);
        }
    }

    /// Where to send instead of `current`, which left two segments in a row unanswered: to another router
    /// from which clients' segments came, after the last of `current`'s, or to the station that announced
    /// an address since. `None`: `current` still brings segments, or no other is known.
    pub(crate) fn other_than(&self, now: Instant, current: MacAddress) -> Option<MacAddress> {
        let heard_at = self.routers.heard_at(current);
        if heard_at.is_some_and(|at| now.since(at) < SILENCE_MIN) {
            return None;
        }
        let is_later = |at: Instant| heard_at.is_none_or(|heard| at >= heard);
        let announced = self.neighbors.announced.filter(|(mac, at)| {
            *mac != current && is_later(*at) && now.since(*at) < ANNOUNCEMENT_AGE_MAX
        });
        let router = self.routers.latest_but(current);
        let router = router.filter(|(_, at)| is_later(*at));
        router.or(announced).map(|(mac, _)| mac)
    }
}

/// What changed by what a station said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// Nothing.
    Nothing,
    /// The address was not known.
    New,
    /// The address was at this MAC address before.
    Moved(MacAddress),
    /// The address is not known, and was said to all stations: its station may have taken over from
    /// another. At most once in [`MOVE_INTERVAL`].
    Announced,
}

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    address: IpAddr,
    mac: MacAddress,
    /// When it last spoke.
    spoke_at: Instant,
    asked_at: Option<Instant>,
}

/// Addresses on our link; see the module.
#[derive(Debug)]
pub(crate) struct Neighbors {
    entries: Vec<Neighbor>,
    /// When the last change of an entry was followed.
    moved_at: Option<Instant>,
    /// The last station that announced an address which is not known, to all stations.
    announced: Option<(MacAddress, Instant)>,
}

impl Neighbors {
    fn new() -> Self {
        Self {
            entries: Vec::with_capacity(NEIGHBORS_MAX),
            moved_at: None,
            announced: None,
        }
    }

    /// Whether a station on our link has said that it has `address`.
    pub(crate) fn knows(&self, address: IpAddr) -> bool {
        self.entries.iter().any(|entry| entry.address == address)
    }

    /// A station at `mac` says that it has `address`; `is_to_us`: to one of our addresses.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: MacAddress,
        is_to_us: bool,
    ) -> Learned {
        let is_early = self
            .moved_at
            .is_some_and(|at| now.since(at) < MOVE_INTERVAL);
        let known = self
            .entries
            .iter_mut()
            .find(|entry| entry.address == address);
        match known {
            Some(entry) if entry.mac == mac => {
                entry.spoke_at = now;
                Learned::Nothing
            }
            Some(_) if is_early => Learned::Nothing,
            Some(entry) => {
                let before = entry.mac;
                (entry.mac, entry.spoke_at) = (mac, now);
                self.moved_at = Some(now);
                Learned::Moved(before)
            }
            None if is_to_us => {
                self.insert(now, address, mac);
                Learned::New
            }
            None => {
                let is_early =
                    (self.announced).is_some_and(|(_, at)| now.since(at) < MOVE_INTERVAL);
                if is_early {
                    return Learned::Nothing;
                }
                self.announced = Some((mac, now));
                Learned::Announced
            }
        }
    }

    fn insert(&mut self, now: Instant, address: IpAddr, mac: MacAddress) {
        let neighbor = Neighbor {
            address,
            mac,
            spoke_at: now,
            asked_at: None,
        };
        if self.entries.len() < NEIGHBORS_MAX {
            self.entries.push(neighbor);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|entry| entry.spoke_at) {
            *oldest = neighbor;
        }
    }

    /// The addresses to ask for, of the family of `like`, when a station at `mac` does not answer; at most
    /// [`ADDRESSES_ASKED_MAX`], and none that was asked for within [`ASK_INTERVAL`].
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        mac: MacAddress,
        like: IpAddr,
    ) -> impl Iterator<Item = IpAddr> + use<'_> {
        self.entries
            .iter_mut()
            .filter(move |entry| {
                let is_early = (entry.asked_at).is_some_and(|at| now.since(at) < ASK_INTERVAL);
                entry.mac == mac && entry.address.is_ipv4() == like.is_ipv4() && !is_early
            })
            .take(ADDRESSES_ASKED_MAX)
            .map(move |entry| {
                entry.asked_at = Some(now);
                entry.address
            })
    }
}

/// Routers of our link by which everything else is reached, the best first; see the module.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    entries: Vec<(IpAddr, MacAddress)>,
}

impl Gateways {
    /// Takes these in place of those there were, [`GATEWAYS_MAX`] at most. Returns those that are at another
    /// MAC address than before: the address, the MAC address it was at, and the one it is at.
    pub(crate) fn set(
        &mut self,
        gateways: &[(IpAddr, MacAddress)],
    ) -> Vec<(IpAddr, MacAddress, MacAddress)> {
        let entries = gateways.iter().copied().take(GATEWAYS_MAX).collect();
        let before = core::mem::replace(&mut self.entries, entries);
        let moved = |(address, to): &(IpAddr, MacAddress)| {
            let (_, from) = before.iter().find(|(known, _)| known == address)?;
            (from != to).then_some((*address, *from, *to))
        };
        self.entries.iter().filter_map(moved).collect()
    }

    /// The same path, from a gateway: from the one that the packet came from, if it came from one. As it is,
    /// if none is known.
    pub(crate) fn path_of(&self, path: Path) -> Path {
        let is_of_family =
            |(address, _): &&(IpAddr, MacAddress)| address.is_ipv4() == path.source.is_ipv4();
        let mut of_family = self.entries.iter().filter(is_of_family);
        let best = of_family.clone().next();
        match best {
            Some((_, mac)) if of_family.all(|(_, mac)| *mac != path.source_mac) => Path {
                source_mac: *mac,
                ..path
            },
            _ => path,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Router {
    mac: MacAddress,
    /// When the last acceptable segment of a client came from it.
    heard_at: Instant,
    /// The first client that came by it.
    first: IpAddr,
    /// Another client came by it, too: a host would have one address, as a rule.
    has_more: bool,
}

/// Stations from which the segments of clients come that are not on our link; see the module.
#[derive(Debug)]
pub(crate) struct Routers {
    entries: Vec<Router>,
    /// Index of the one that was heard last.
    last: usize,
}

impl Routers {
    fn new() -> Self {
        Self {
            entries: Vec::with_capacity(ROUTERS_MAX),
            last: 0,
        }
    }

    /// An acceptable segment came from `mac`. For every segment: it costs one comparison while segments
    /// come by one router.
    pub(crate) fn hear(&mut self, now: Instant, mac: MacAddress) {
        if let Some(router) = self.entries.get_mut(self.last)
            && router.mac == mac
        {
            router.heard_at = now;
            return;
        }
        let place = self.entries.iter().position(|router| router.mac == mac);
        if let Some(place) = place
            && let Some(router) = self.entries.get_mut(place)
        {
            router.heard_at = now;
            self.last = place;
        }
    }

    /// A client that is not on our link opened its connection by `mac`, or moved to it.
    fn note(&mut self, now: Instant, path: &Path) {
        let (mac, first) = (path.source_mac, path.source);
        if let Some(router) = self.entries.iter_mut().find(|router| router.mac == mac) {
            router.has_more |= router.first != first;
            return self.hear(now, mac);
        }
        let router = Router {
            mac,
            heard_at: now,
            first,
            has_more: false,
        };
        if self.entries.len() < ROUTERS_MAX {
            self.entries.push(router);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|entry| entry.heard_at) {
            *oldest = router;
        }
    }

    fn heard_at(&self, mac: MacAddress) -> Option<Instant> {
        let router = self.entries.iter().find(|router| router.mac == mac);
        router.map(|router| router.heard_at)
    }

    /// The router of several clients, other than `current`, that was heard last, and when.
    fn latest_but(&self, current: MacAddress) -> Option<(MacAddress, Instant)> {
        let is_other = |router: &&Router| router.mac != current && router.has_more;
        let others = self.entries.iter().filter(is_other);
        let latest = others.max_by_key(|router| router.heard_at);
        latest.map(|router| (router.mac, router.heard_at))
    }
}

#[cfg(test)]
mod tests;
