//! Whether an address of ours is another station's: before it is used, and while it is.
//!
//! [`AddressCheck`] asks before: ARP probes for IPv4 (RFC 5227 s2.1), duplicate address detection
//! for IPv6 (RFC 4862 s5.4). Whoever starts the server carries its frames and its time, and serves
//! only if nobody answered. While an address is used, the conductor hears of others that claim it
//! and defends it ([`DEFEND_INTERVAL`]).
//!
//! It refuses to give an address up: a server whose address its clients know is what RFC 5227
//! s2.4 (c) is written for. It refuses to answer for an address that is still being checked.
//!
//! Bounds: [`ProbeTimes::probes`] frames for each address.

use core::net::{IpAddr, Ipv6Addr};

use clock::{Duration, Instant};
use wire::{ArpOperation, ChecksumState, HEADERS_BYTES_MAX, Incoming, MacAddress};

/// An address is defended, and its conflict told of, at most this often (RFC 5227 s1.1).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Another station says that it has an address of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressConflict {
    /// The address.
    pub address: IpAddr,
    /// The MAC of who says so.
    pub mac: MacAddress,
}

/// How often each address is asked for before it is used, and how long an answer is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeTimes {
    /// Questions about each address.
    pub probes: u32,
    /// From one to the next, and from the last to the end.
    pub interval: Duration,
}

impl ProbeTimes {
    /// On a network: 600 ms in all. RFC 5227 s1.1 would have up to 9 s, of which a network that
    /// loses no frame needs less than one round trip; RFC 4862 s5.1 has one question and 1 s. Three
    /// questions stay, because one may be lost. `[guess]`
    pub const NETWORK: Self = Self {
        probes: 3,
        interval: Duration::from_millis(200),
    };
    /// On a wire with only this host's kernel at its other end, which answers while it is asked: 20
    /// ms in all.
    pub const HOST: Self = Self {
        probes: 2,
        interval: Duration::from_millis(10),
    };

    /// From the first question to the end.
    #[must_use]
    pub fn total(self) -> Duration {
        self.interval.saturating_mul(self.probes)
    }
}

/// Asks whether anybody has our addresses.
#[derive(Clone, Debug)]
pub struct AddressCheck {
    mac: MacAddress,
    addresses: Vec<IpAddr>,
    times: ProbeTimes,
    /// Rounds begun: in each, every address is asked for once.
    rounds: u32,
    /// The next address of this round; none are left when it is their count.
    next: usize,
    /// When the next round begins, or the check ends.
    due: Instant,
}

impl AddressCheck {
    /// Begins at `now`; `mac` is ours.
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

    /// Writes the next question due at `now` and returns its length; `None`: nothing is due.
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
            // RFC 4862 s5.4.2: from nobody, to the group of whoever has it.
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

    /// Whether every question was asked and waited for. If there was no conflict, the addresses are
    /// ours.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let is_all_asked = self.rounds >= self.times.probes && self.next == self.addresses.len();
        is_all_asked && now >= self.due
    }

    /// What a received frame says of our addresses.
    #[must_use]
    pub fn judge(&self, frame: &[u8], checksum: ChecksumState) -> Option<AddressConflict> {
        let incoming = wire::parse_frame(frame, checksum).ok()?;
        let conflict = claim(&incoming).or_else(|| question(&incoming))?;
        // What we sent may come back to us, from a switch or a radio.
        let is_other = conflict.mac != self.mac;
        (is_other && self.addresses.contains(&conflict.address)).then_some(conflict)
    }
}

/// Who says that it has an address: the sender of any ARP packet (RFC 5227 s2.1.1), and of a
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
        } => Some(AddressConflict {
            address: IpAddr::V6(target),
            mac: target_link.unwrap_or(path.source_mac),
        }),
        _ => None,
    }
}

/// Who is about to take an address, like us: RFC 5227 s2.1.1 and RFC 4862 s5.4.3 let neither have
/// it then.
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
    /// The last conflict told of, until it is asked for.
    told: Option<AddressConflict>,
}

impl Defense {
    /// Of so many addresses.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            last: vec![None; count],
            told: None,
        }
    }

    /// Another station claims the address at this place. Returns whether the address is to be
    /// defended, and the conflict told of: once in [`DEFEND_INTERVAL`], so that two stations that
    /// both defend one address do not flood the network.
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

    /// The last conflict, once.
    pub(crate) const fn take(&mut self) -> Option<AddressConflict> {
        self.told.take()
    }
}

#[cfg(test)]
mod tests;
