//! Address conflict detection: whether another station uses one of our addresses, before we use it
//! and while we use it.
//!
//! [`AddressCheck`] runs before: it sends ARP probes for IPv4 (RFC 5227 s2.1) and does duplicate
//! address detection for IPv6 (RFC 4862 s5.4). Its caller sends its frames, passes received frames
//! and the time to it, and serves only if no conflict was found. While an address is in use, the
//! conductor detects other stations that claim it, and defends it ([`DEFEND_INTERVAL`]).
//!
//! It refuses to give an address up: RFC 5227 s2.4 (c) permits that to a server whose address its
//! clients know. It refuses to answer for an address that is still being checked.
//!
//! Bounds: [`ProbeTimes::probes`] frames for each address.

use core::net::{IpAddr, Ipv6Addr};

use clock::{Duration, Instant};
use wire::{ArpOperation, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress};

/// An address is defended, and its conflict reported, at most this often (RFC 5227 s1.1).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Another station claims one of our addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressConflict {
    /// The address.
    pub address: IpAddr,
    /// The MAC address of that station.
    pub mac: MacAddress,
}

/// How many probes are sent for each address before it is used, and the time between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeTimes {
    /// Probes for each address.
    pub probes: u32,
    /// Time between two probes, and from the last one to the end of the check.
    pub interval: Duration,
}

impl ProbeTimes {
    /// On a network: 600 ms in all. RFC 5227 s1.1 takes up to 9 s, though without frame loss one
    /// round trip is enough; RFC 4862 s5.1 sends one solicitation and waits 1 s. We send three
    /// probes, because one may be lost. `[guess]`
    pub const NETWORK: Self = Self {
        probes: 3,
        interval: Duration::from_millis(200),
    };
    /// On a link whose other end is this host's kernel (TAP), which answers at once: 20 ms in all.
    pub const HOST: Self = Self {
        probes: 2,
        interval: Duration::from_millis(10),
    };

    /// From the first probe to the end of the check.
    #[must_use]
    pub fn total(self) -> Duration {
        self.interval.saturating_mul(self.probes)
    }
}

/// Probes whether another station uses our addresses.
#[derive(Clone, Debug)]
pub struct AddressCheck {
    mac: MacAddress,
    addresses: Vec<IpAddr>,
    times: ProbeTimes,
    /// Rounds begun: in each round one probe is sent for every address.
    rounds: u32,
    /// Index of the next address of this round; equal to their count when the round is complete.
    next: usize,
    /// When the next round begins, or the check ends.
    due: Instant,
}

impl AddressCheck {
    /// A check that begins at `now`; `mac` is ours.
    #[must_use]
    pub fn new(now: Instant, mac: MacAddress, addresses: &[IpAddr], times: ProbeTimes) -> Self {
        Self {
            mac,
            addresses: addresses.to_vec(),
            times,
            rounds: 0,
            next: addresses.len(),
            due: now,
        }
    }

    /// Writes the next probe due at `now` and returns its length; `None`: nothing is due.
    pub fn poll_probe(
        &mut self,
        now: Instant,
        buffer: &mut [u8; HEADERS_BYTES_MAX],
    ) -> Option<usize> {
        if self.next == self.addresses.len() && self.rounds < self.times.probes && now >= self.due {
            self.rounds += 1;
            self.next = 0;
            self.due = now + self.times.interval;
        }
        let address = *self.addresses.get(self.next)?;
        self.next += 1;
        Some(match address {
            IpAddr::V4(address) => wire::emit_arp_probe(buffer, self.mac, address),
            // RFC 4862 s5.4.2: from the unspecified address, to the solicited-node group.
            IpAddr::V6(address) => {
                let nobody = Ipv6Addr::UNSPECIFIED;
                wire::emit_neighbor_solicitation(buffer, self.mac, nobody, address)
            }
        })
    }

    /// When [`AddressCheck::poll_probe`] next has work, or the check is over.
    #[must_use]
    pub const fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Whether every probe was sent and its interval has passed. If there was no conflict, the
    /// addresses can be used.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let is_all_asked = self.rounds >= self.times.probes && self.next == self.addresses.len();
        is_all_asked && now >= self.due
    }

    /// Checks a received frame for a conflict with our addresses.
    #[must_use]
    pub fn judge(&self, frame: &[u8], checksum: ChecksumState) -> Option<AddressConflict> {
        let incoming = wire::parse_frame(frame, checksum).ok()?;
        let conflict = claim(&incoming).or_else(|| question(&incoming))?;
        // A switch or an access point may send our own frames back to us.
        let is_other = conflict.mac != self.mac;
        (is_other && self.addresses.contains(&conflict.address)).then_some(conflict)
    }
}

/// The station that claims an address: the sender of any ARP packet (RFC 5227 s2.1.1) or of a
/// neighbour advertisement (RFC 4862 s5.4.4).
pub(crate) fn claim(incoming: &Incoming<'_>) -> Option<AddressConflict> {
    match *incoming {
        Incoming::Arp(arp) if !arp.sender_address.is_unspecified() => Some(AddressConflict {
            address: IpAddr::V4(arp.sender_address),
            mac: arp.sender_mac,
        }),
        Incoming::NeighborAdvertisement {
            path,
            target,
            target_link,
            ..
        } => Some(AddressConflict {
            address: IpAddr::V6(target),
            mac: target_link.unwrap_or(path.source_mac),
        }),
        _ => None,
    }
}

/// The station that probes for the same address as we do: by RFC 5227 s2.1.1 and RFC 4862 s5.4.3
/// neither may use it then.
fn question(incoming: &Incoming<'_>) -> Option<AddressConflict> {
    match *incoming {
        Incoming::Arp(arp)
            if arp.operation == ArpOperation::Request && arp.sender_address.is_unspecified() =>
        {
            Some(AddressConflict {
                address: IpAddr::V4(arp.target_address),
                mac: arp.sender_mac,
            })
        }
        Incoming::NeighborSolicitation { path, target, .. } if path.source.is_unspecified() => {
            Some(AddressConflict {
                address: IpAddr::V6(target),
                mac: path.source_mac,
            })
        }
        _ => None,
    }
}

/// The conflicts of addresses in use.
#[derive(Clone, Debug)]
pub(crate) struct Defense {
    /// When each address was last defended, in the order of the addresses.
    last: Vec<Option<Instant>>,
    /// The last reportable conflict, until it is polled.
    told: Option<AddressConflict>,
}

impl Defense {
    /// For this many addresses.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            last: vec![None; count],
            told: None,
        }
    }

    /// Another station claims the address at this index. Returns whether to defend the address and
    /// report the conflict: at most once in [`DEFEND_INTERVAL`], so that two stations that both
    /// defend one address do not flood the network.
    pub(crate) fn note(&mut self, now: Instant, place: usize, conflict: AddressConflict) -> bool {
        let Some(last) = self.last.get_mut(place) else {
            return false;
        };
        if last.is_some_and(|last| now.since(last) < DEFEND_INTERVAL) {
            return false;
        }
        *last = Some(now);
        self.told = Some(conflict);
        true
    }

    /// Takes the last conflict out.
    pub(crate) const fn take(&mut self) -> Option<AddressConflict> {
        self.told.take()
    }
}

#[cfg(test)]
mod tests;
