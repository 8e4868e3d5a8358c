//! From a segment's four-tuple to what we keep of its connection: one look-up, fixed capacity.
//!
//! Half-open connections, connections and TIME-WAIT live in tables of their own, since they differ
//! in size and rights; the index tells which and where. The hash is keyed (SipHash-1-3), so nobody
//! outside can choose tuples that collide.

use core::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// Both ends of a connection, ours first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FourTuple {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

/// Where a connection is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Index into the half-open table.
    HalfOpen(u32),
    /// Index into the table of connections.
    Connection(u32),
    /// Index into the TIME-WAIT table.
    TimeWait(u32),
}

/// The index of all four-tuples of a worker.
pub struct Table {
    entries: HashTable<(FourTuple, Place)>,
    capacity: usize,
    key: [u8; 16],
}

impl Table {
    /// Room for `capacity` tuples, allocated now; `key` is secret.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        Self {
            entries: HashTable::with_capacity(capacity),
            capacity,
            key,
        }
    }

    /// Where `tuple` is kept.
    #[must_use]
    pub fn find(&self, tuple: &FourTuple) -> Option<Place> {
        let hash = hash(&self.key, tuple);
        self.entries
            .find(hash, |entry| entry.0 == *tuple)
            .map(|entry| entry.1)
    }

    /// Records or moves `tuple`.
    ///
    /// # Panics
    /// If the table is full: its capacity is the sum of the tables it points into.
    pub fn set(&mut self, tuple: FourTuple, place: Place) {
        let key = self.key;
        let hash_of = hash(&key, &tuple);
        if let Some(entry) = self.entries.find_mut(hash_of, |entry| entry.0 == tuple) {
            entry.1 = place;
            return;
        }
        assert!(
            self.entries.len() < self.capacity,
            "the table indexes what other tables bound"
        );
        self.entries
            .insert_unique(hash_of, (tuple, place), |entry| hash(&key, &entry.0));
    }

    /// Forgets `tuple`.
    pub fn remove(&mut self, tuple: &FourTuple) {
        let hash = hash(&self.key, tuple);
        if let Ok(entry) = self.entries.find_entry(hash, |entry| entry.0 == *tuple) {
            entry.remove();
        }
    }

    /// Tuples recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no tuple is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter
            .debug_struct("Table")
            .field("len", &self.entries.len())
            .finish_non_exhaustive()
    }
}

fn hash(key: &[u8; 16], tuple: &FourTuple) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hash_tuple(&mut hasher, tuple);
    hasher.finish()
}

/// Feeds a tuple to a keyed hash; also used for initial sequence numbers.
pub(crate) fn hash_tuple(hasher: &mut SipHasher13, tuple: &FourTuple) {
    for end in [tuple.local, tuple.peer] {
        match end.ip() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        hasher.write_u16(end.port());
    }
}

#[cfg(test)]
mod tests {
    use super::{FourTuple, Place, Table};

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: "10.0.0.2:80".parse().unwrap(),
            peer: format!("10.0.0.1:{port}").parse().unwrap(),
        }
    }

    #[test]
    fn tuples_are_found_moved_and_forgotten() {
        let mut table = Table::new(2, [7; 16]);
        table.set(tuple(1), Place::HalfOpen(3));
        table.set(tuple(2), Place::Connection(4));
        assert_eq!(table.find(&tuple(1)), Some(Place::HalfOpen(3)));
        table.set(tuple(1), Place::TimeWait(9));
        assert_eq!(table.find(&tuple(1)), Some(Place::TimeWait(9)));
        table.remove(&tuple(1));
        assert_eq!(table.find(&tuple(1)), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    #[should_panic(expected = "what other tables bound")]
    fn more_than_its_capacity_is_a_mistake_of_ours() {
        let mut table = Table::new(1, [0; 16]);
        table.set(tuple(1), Place::HalfOpen(0));
        table.set(tuple(2), Place::HalfOpen(1));
    }
}
