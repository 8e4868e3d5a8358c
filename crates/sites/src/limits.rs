//! Limits by client network: how many connections and requests of one network a site or a rule takes.
//!
//! A network is what [`network_of`] says: an IPv4 address, or an IPv6 network of 64 bits. One table is for all limits
//! and all workers: each entry is a word that they change without a lock, so that a limit is one of the server, on
//! whichever worker a client's connections are. What a word is for is a part of a keyed hash; that two networks
//! have the same one is once in a hundred thousand.
//!
//! It refuses to grow, and to wait. Where a network's entry has no room, its connections are not counted, and of
//! its requests the entry that would be free first is forgotten: who has so many networks that this happens has no limit by
//! network. Bounds: [`ENTRIES_MAX`] entries each of connections and of requests; none without a limit.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::networks::network_of;

/// Networks that are known at once, by their connections and by their requests: 8 bytes for each of both.
pub const ENTRIES_MAX: usize = 65_536;
/// Places that an entry may have.
const WAYS: usize = 8;
/// Most connections a limit may be.
pub const CONNECTIONS_MAX: u16 = u16::MAX;
/// Most requests a second a limit may be.
pub const REQUESTS_PER_SECOND_MAX: u64 = 1000;
/// Most requests that may come at once.
pub const BURST_MAX: u32 = 100_000;

/// Bits of an entry of connections that are their count; the others are what it is for.
const COUNT_BITS: u32 = u16::BITS;
/// Bits of an entry of requests that are a time; the others are what it is for.
const TIME_BITS: u32 = 44;
/// Nanoseconds of a tick of such a time, 16 us, as a power of two: the bits are enough for nine years.
const TICK_BITS: u32 = 14;

/// A limit of a site or a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Connections of a network that are sent replies at once; `None`: as many as there are.
    connections: Option<u16>,
    /// How fast requests may come; `None`: as fast as they do.
    requests: Option<RequestRate>,
    /// Tells it from other limits of the same [`crate::Sites`].
    pub(crate) number: u32,
}

impl Limit {
    /// So many connections, and requests so fast.
    #[must_use]
    pub const fn new(connections: Option<u16>, requests: Option<RequestRate>) -> Self {
        Self {
            connections,
            requests,
            number: 0,
        }
    }
}

/// How fast requests may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestRate {
    /// Nanoseconds between two; 1,000,000 at least ([`REQUESTS_PER_SECOND_MAX`]).
    pub interval_ns: u64,
    /// How many may come before their time.
    pub burst: u32,
}

/// What is known of networks under limits.
#[derive(Debug)]
pub(crate) struct Counted {
    hasher: RandomState,
    connections: Box<[AtomicU64]>,
    requests: Box<[AtomicU64]>,
}

/// A connection that is counted, until this is dropped.
#[derive(Debug)]
pub struct Held {
    counted: Arc<Counted>,
    limit: u32,
    network: IpAddr,
    /// The entry; `None`: there was no room.
    place: Option<usize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let entry = self
            .place
            .and_then(|place| self.counted.connections.get(place));
        if let Some(entry) = entry {
            let less = |word: u64| match count_of(word) {
                // Nobody else takes an entry that counts something.
                0 => None,
                1 => Some(0),
                _ => Some(word - 1),
            };
            let before = entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            debug_assert!(before.is_ok(), "a connection that is held was counted");
        }
    }
}

impl Counted {
    pub(crate) fn new() -> Self {
        let entries = || (0..ENTRIES_MAX).map(|_| AtomicU64::new(0)).collect();
        Self {
            hasher: RandomState::new(),
            connections: entries(),
            requests: entries(),
        }
    }

    /// Whether a request of `source`, which came on a connection that `held` counts, is within `limit` at `now_ns`, the
    /// workers' time. If it is, the connection is counted under that limit.
    pub(crate) fn admit(
        self: &Arc<Self>,
        limit: &Limit,
        source: IpAddr,
        now_ns: u64,
        held: &mut Option<Box<Held>>,
    ) -> bool {
        let network = network_of(source);
        let hash = self.hasher.hash_one((limit.number, network));
        let is_same = |held: &Held| {
            held.limit == limit.number
                && held.network == network
                && Arc::ptr_eq(&held.counted, self)
        };
        if let Some(most) = limit.connections
            && !held.as_deref().is_some_and(is_same)
        {
            *held = None;
            let Ok(place) = self.enter(hash, most) else {
                return false;
            };
            *held = Some(Box::new(Held {
                counted: Arc::clone(self),
                limit: limit.number,
                network,
                place,
            }));
        }
        (limit.requests).is_none_or(|rate| self.take(hash, rate, now_ns >> TICK_BITS))
    }

    /// Counts a connection more: its entry, or `None` if there is no room. `Err`: there are `most` already.
    fn enter(&self, hash: u64, most: u16) -> Result<Option<usize>, ()> {
        let name = name_of(hash, COUNT_BITS);
        let places = places_of(hash);
        let entries = || {
            places
                .clone()
                .filter_map(|place| Some((place, self.connections.get(place)?)))
        };
        for (place, entry) in entries() {
            let more = |word: u64| {
                let is_known = word & !COUNT_MASK == name && count_of(word) > 0;
                (is_known && count_of(word) < u64::from(most)).then(|| word + 1)
            };
            match entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
                Ok(_) => return Ok(Some(place)),
                Err(word) if word & !COUNT_MASK == name && count_of(word) > 0 => return Err(()),
                Err(_) => {}
            }
        }
        let free = entries().find(|(_, entry)| {
            let taken = entry.compare_exchange(0, name | 1, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        });
        Ok(free.map(|(place, _)| place))
    }

    /// Whether a request comes in its time, by the generic cell rate algorithm (ITU-T I.371): an entry is the time at
    /// which the next one is due if each came as late as it may.
    fn take(&self, hash: u64, rate: RequestRate, now: u64) -> bool {
        let name = name_of(hash, TIME_BITS);
        let interval = (rate.interval_ns >> TICK_BITS).max(1);
        let early_max = interval * u64::from(rate.burst);
        let next = |due: u64| {
            let due = due.max(now);
            (due - now <= early_max).then(|| name | (due + interval) & TIME_MASK)
        };
        let entries = || places_of(hash).filter_map(|place| self.requests.get(place));
        for entry in entries() {
            let known =
                |word: u64| (word & !TIME_MASK == name && word != 0).then_some(word & TIME_MASK);
            let more = |word: u64| known(word).and_then(next);
            match entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
                Ok(_) => return true,
                Err(word) if known(word).is_some() => return false,
                Err(_) => {}
            }
        }
        let forgotten = entries().min_by_key(|entry| entry.load(Ordering::Relaxed) & TIME_MASK);
        if let (Some(entry), Some(word)) = (forgotten, next(now)) {
            entry.store(word, Ordering::Relaxed);
        }
        true
    }
}

const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

const fn count_of(word: u64) -> u64 {
    word & COUNT_MASK
}

/// What tells an entry from others at its places: the hash's bits that are above so many, never none.
const fn name_of(hash: u64, bits: u32) -> u64 {
    let name = hash >> bits << bits;
    if name == 0 { 1 << bits } else { name }
}

/// Where an entry may be: by the hash's low bits, which no name has.
fn places_of(hash: u64) -> core::ops::Range<usize> {
    const GROUPS: u64 = (ENTRIES_MAX / WAYS) as u64;
    let first = usize::try_from(hash % GROUPS).unwrap_or_default() * WAYS;
    first..first + WAYS
}

const _: () = assert!(ENTRIES_MAX / WAYS <= 1 << COUNT_BITS && ENTRIES_MAX.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn of_connections(most: u16, number: u32) -> Limit {
        Limit {
            connections: Some(most),
            requests: None,
            number,
        }
    }

    #[test]
    fn connections_of_a_network_are_counted_until_they_are_given_back() {
        for (first, same, other) in [
            ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
            ("fd00::1", "fd00::ffff:0:0:2", "fd00:0:0:1::1"),
        ] {
            let counted = Arc::new(Counted::new());
            let limit = of_connections(2, 1);
            let admit = |source, held: &mut Option<Box<Held>>| {
                counted.admit(&limit, address(source), 0, held)
            };
            let (mut one, mut two, mut three) = (None, None, None);
            assert!(admit(first, &mut one) && admit(same, &mut two));
            // The next request of a connection that is counted.
            assert!(admit(first, &mut one));
            assert!(!admit(first, &mut three) && three.is_none());
            assert!(admit(other, &mut three));
            drop(one);
            let mut four = None;
            assert!(admit(same, &mut four));
            drop((two, three, four));
            let is_empty = |entry: &AtomicU64| entry.load(Ordering::Relaxed) == 0;
            assert!(counted.connections.iter().all(is_empty), "nothing is kept");
        }
    }

    #[test]
    fn a_connection_counts_under_the_limit_of_its_last_request() {
        let counted = Arc::new(Counted::new());
        let (a, b) = (of_connections(1, 1), of_connections(1, 2));
        let source = address("10.0.0.1");
        let (mut one, mut two) = (None, None);
        assert!(counted.admit(&a, source, 0, &mut one));
        assert!(counted.admit(&b, source, 0, &mut two), "another limit");
        assert!(!counted.admit(&b, source, 0, &mut one));
        assert!(one.is_none(), "the one that it had is given back");
        assert!(counted.admit(&a, source, 0, &mut two));
        assert!(!counted.admit(&a, source, 0, &mut one));
        // After a reload there is another table.
        let anew = Arc::new(Counted::new());
        assert!(anew.admit(&a, source, 0, &mut one));
        assert!(anew.admit(&a, address("10.0.0.2"), 0, &mut two));
        assert!(counted.admit(&a, source, 0, &mut None));
    }

    #[test]
    fn requests_come_at_their_rate_and_so_many_before_their_time() {
        let rate = RequestRate {
            interval_ns: SECOND / 10,
            burst: 2,
        };
        let limit = Limit {
            connections: None,
            requests: Some(rate),
            number: 1,
        };
        let counted = Arc::new(Counted::new());
        let admit = |source, now_ns| counted.admit(&limit, address(source), now_ns, &mut None);
        for start in [0, 1000 * SECOND] {
            let at = |tenths: u64| start + tenths * SECOND / 10;
            for is_admitted in [true, true, true, false, false] {
                assert_eq!(admit("10.0.0.1", at(0)), is_admitted);
            }
            assert!(admit("10.0.0.2", at(0)), "another network");
            // A tick is less than a thousandth of the interval.
            assert!(!admit("10.0.0.1", at(1) - SECOND / 1000));
            assert!(admit("10.0.0.1", at(1)) && !admit("10.0.0.1", at(1)));
            assert!(admit("10.0.0.1", at(3)) && admit("10.0.0.1", at(3)));
            assert!(!admit("10.0.0.1", at(3)));
        }
    }

    #[test]
    fn what_has_no_room_is_not_counted_and_what_is_due_first_is_forgotten() {
        let counted = Counted::new();
        // Of one group: names differ above the bits of both kinds.
        let hash = |n: u64| n << 50 | 5;
        let entered: Vec<_> = (1..=9).map(|n| counted.enter(hash(n), 1)).collect();
        assert!(
            entered[..8]
                .iter()
                .all(|place| matches!(place, Ok(Some(_))))
        );
        assert_eq!(entered[8], Ok(None));
        assert_eq!(counted.enter(hash(1), 1), Err(()));
        let rate = RequestRate {
            interval_ns: SECOND,
            burst: 0,
        };
        for n in 1..=8 {
            assert!(counted.take(hash(n), rate, n));
        }
        assert!(counted.take(hash(9), rate, 9), "in place of the first");
        assert!(counted.take(hash(1), rate, 9));
        assert!(!counted.take(hash(8), rate, 9) && !counted.take(hash(9), rate, 9));
    }

    #[test]
    fn threads_count_as_one() {
        const MOST: u16 = 50;
        let counted = Arc::new(Counted::new());
        let limit = of_connections(MOST, 1);
        let taken = std::thread::scope(|scope| {
            let take = || {
                let held = (0..40).map(|_| {
                    let mut held = None;
                    counted.admit(&limit, address("10.0.0.1"), 0, &mut held);
                    held
                });
                held.flatten().collect::<Vec<_>>()
            };
            // The entry is there before they begin.
            let first = take();
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(take)).collect();
            let mut all = first;
            for thread in threads {
                all.extend(thread.join().unwrap());
            }
            all.len()
        });
        assert_eq!(taken, usize::from(MOST));
        assert!(counted.admit(&limit, address("10.0.0.1"), 0, &mut None));
    }
}
