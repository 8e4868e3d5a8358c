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
//! A station that does not answer is asked for its addresses (neighbour unreachability detection, RFC 4861 s7.3).
//! While it was asked in vain ([`NextHops::is_gone`]), no other station is left for it.
//!
//! Who can send frames on our link can make us send elsewhere, as with any host that speaks ARP. Refused:
//! changes by neighbour advertisements without the override flag, but in answer to such a question.
//!
//! Bounds: [`NEIGHBORS_MAX`] addresses and [`ROUTERS_MAX`] routers, those of last use; [`GATEWAYS_MAX`] gateways;
//! [`ADDRESSES_ASKED_MAX`] addresses at once, each asked for [`QUESTIONS_MAX`] times, once in [`ASK_INTERVAL`];
//! one change that all clients are searched for in [`MOVE_INTERVAL`].

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

/// An address is asked for at most this often (RFC 1122 s2.3.2.1), and a question that was not answered is
/// repeated after it (RFC 4861 s10, `RETRANS_TIMER`).
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Questions for an address, one after the other without being asked for anew (RFC 4861 s10,
/// `MAX_UNICAST_SOLICIT`).
const QUESTIONS_MAX: u32 = 3;

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
        let is_other = |mac: MacAddress| mac != current && !self.is_gone(now, mac);
        let announced = self.neighbors.announced.filter(|(mac, at)| {
            is_other(*mac) && is_later(*at) && now.since(*at) < ANNOUNCEMENT_AGE_MAX
        });
        let router = self.routers.latest(is_other);
        let router = router.filter(|(_, at)| is_later(*at));
        router.or(announced).map(|(mac, _)| mac)
    }

    /// Whether a station was asked for its addresses [`ASK_INTERVAL`] ago or earlier, and has not answered
    /// since, nor brought a segment of any client.
    pub(crate) fn is_gone(&self, now: Instant, mac: MacAddress) -> bool {
        let Some(since) = self.neighbors.asked_in_vain_since(mac) else {
            return false;
        };
        let is_heard = self.routers.heard_at(mac).is_some_and(|at| at >= since);
        now.since(since) >= ASK_INTERVAL && !is_heard
    }
}

/// What changed by what a station said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// Nothing.
    Nothing,
    /// The address is still at this MAC address. At most once in [`MOVE_INTERVAL`].
    Confirmed,
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
    /// When it was last asked for.
    asked_at: Option<Instant>,
    /// It was asked for and did not speak since.
    unanswered: Option<Unanswered>,
}

/// Questions that were not answered.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    /// When the first one was asked.
    since: Instant,
    count: u32,
    /// Our address that asks.
    from: IpAddr,
}

/// A question for an address, from one of ours of the same family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    /// Our address.
    pub(crate) from: IpAddr,
    /// The address that is asked for.
    pub(crate) address: IpAddr,
}

impl Neighbor {
    /// When it is due to be asked for again, without being doubted anew.
    fn ask_again_at(&self) -> Option<Instant> {
        let unanswered = self.unanswered?;
        let is_due = unanswered.count < QUESTIONS_MAX;
        is_due.then_some(self.asked_at? + ASK_INTERVAL)
    }

    fn ask(&mut self, now: Instant, from: IpAddr) -> Question {
        self.asked_at = Some(now);
        let unanswered = self.unanswered.get_or_insert(Unanswered {
            since: now,
            count: 0,
            from,
        });
        unanswered.count += 1;
        Question {
            from: unanswered.from,
            address: self.address,
        }
    }
}

/// Addresses on our link; see the module.
#[derive(Debug)]
pub(crate) struct Neighbors {
    entries: Vec<Neighbor>,
    /// When an address is to be asked for again.
    pub(crate) ask_again_at: Option<Instant>,
    /// When the last change of an entry was followed.
    moved_at: Option<Instant>,
    /// The last station that announced an address which is not known, to all stations.
    announced: Option<(MacAddress, Instant)>,
}

impl Neighbors {
    fn new() -> Self {
        Self {
            entries: Vec::with_capacity(NEIGHBORS_MAX),
            ask_again_at: None,
            moved_at: None,
            announced: None,
        }
    }

    /// Whether a station on our link has said that it has `address`.
    pub(crate) fn knows(&self, address: IpAddr) -> bool {
        self.entries.iter().any(|entry| entry.address == address)
    }

    /// Whether `address` is at this MAC address, as far as we know.
    pub(crate) fn is_at(&self, address: IpAddr, mac: MacAddress) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.address == address && entry.mac == mac)
    }

    /// Whether `address` was asked for and has not spoken since.
    pub(crate) fn is_asked(&self, address: IpAddr) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.address == address && entry.unanswered.is_some())
    }

    /// Since when the station at `mac` has not answered; `None`: it was not asked for, or has spoken since.
    fn asked_in_vain_since(&self, mac: MacAddress) -> Option<Instant> {
        let of_station = self.entries.iter().filter(|entry| entry.mac == mac);
        let unanswered = of_station.clone().filter_map(|entry| entry.unanswered);
        let since = unanswered.map(|questions| questions.since).min()?;
        of_station
            .max_by_key(|entry| entry.spoke_at)
            .is_some_and(|entry| entry.spoke_at < since)
            .then_some(since)
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
                let is_early = now.since(entry.spoke_at) < MOVE_INTERVAL;
                (entry.spoke_at, entry.unanswered) = (now, None);
                if is_early {
                    Learned::Nothing
                } else {
                    Learned::Confirmed
                }
            }
            Some(_) if is_early => Learned::Nothing,
            Some(entry) => {
                let before = entry.mac;
                (entry.mac, entry.spoke_at, entry.unanswered) = (mac, now, None);
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
            unanswered: None,
        };
        if self.entries.len() < NEIGHBORS_MAX {
            self.entries.push(neighbor);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|entry| entry.spoke_at) {
            *oldest = neighbor;
        }
    }

    /// What to ask when a station at `mac` does not answer: for its addresses of the family of `from`, one of
    /// ours; at most [`ADDRESSES_ASKED_MAX`], and none that was asked for within [`ASK_INTERVAL`].
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        mac: MacAddress,
        from: IpAddr,
    ) -> impl Iterator<Item = Question> + use<'_> {
        let again_at = now + ASK_INTERVAL;
        let entries = self.entries.iter_mut().filter(move |entry| {
            let is_early = (entry.asked_at).is_some_and(|at| now.since(at) < ASK_INTERVAL);
            entry.mac == mac && entry.address.is_ipv4() == from.is_ipv4() && !is_early
        });
        let ask_again_at = &mut self.ask_again_at;
        entries.take(ADDRESSES_ASKED_MAX).map(move |entry| {
            ask_again_at.get_or_insert(again_at);
            entry.ask(now, from)
        })
    }

    /// The next question that is to be repeated at `now`; `None`: no more.
    pub(crate) fn ask_again(&mut self, now: Instant) -> Option<Question> {
        let is_due = |entry: &&mut Neighbor| entry.ask_again_at().is_some_and(|at| at <= now);
        let due = self.entries.iter_mut().find(is_due);
        let question = due.and_then(|entry| Some(entry.ask(now, entry.unanswered?.from)));
        if question.is_none() {
            let next = self.entries.iter().filter_map(Neighbor::ask_again_at);
            self.ask_again_at = next.min();
        }
        question
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

    /// The router of several clients among these that was heard last, and when.
    fn latest(&self, is_other: impl Fn(MacAddress) -> bool) -> Option<(MacAddress, Instant)> {
        let is_candidate = |router: &&Router| router.has_more && is_other(router.mac);
        let others = self.entries.iter().filter(is_candidate);
        let latest = others.max_by_key(|router| router.heard_at);
        latest.map(|router| (router.mac, router.heard_at))
    }
}

#[cfg(test)]
mod tests;
