//! The hash table from a segment's four-tuple to the index of its connection: one look-up, fixed
//! capacity.
//!
//! Half-open connections, connections and TIME-WAIT entries are in tables of their own, because they
//! differ in size; a [`TableIndex`] says which table and where. The hash is keyed (SipHash-1-3), so
//! an attacker cannot choose tuples that collide.
//!
//! ```text
//!   slots:    [ tag, entry ] [ 0 ] [ tag, entry ] ...     open addressing, at most half full
//!                      |                    |
//!   entries:  [ tuple, index ] [ free -> ] [ tuple, index ] ...
//! ```
//!
//! Removal moves later slots of the run back instead of leaving a tombstone, so the table never has
//! to be rebuilt: its memory has a constant size from the start, and no operation costs more than
//! one run of slots.

use core::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

/// Both ends of a connection, ours first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FourTuple {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

/// The table that holds a connection, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableIndex {
    /// Index into the half-open table.
    HalfOpen(u32),
    /// Index into the table of connections.
    Connection(u32),
    /// Index into the TIME-WAIT table.
    TimeWait(u32),
}

/// What the search for a tuple in a [`Table`] begins with: a part of the tuple's hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableTag(u32);

/// Ends the list of free entries.
const NONE: u32 = u32::MAX;

/// One slot of the hash table.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The low half of the tuple's hash, at which the search for the tuple begins. 0 marks an empty
    /// slot, so a hash of 0 is stored as 1.
    tag: u32,
    /// Index into the entries.
    entry: u32,
}

const EMPTY: Slot = Slot {
    tag: 0,
    entry: NONE,
};

/// What a slot points to.
#[derive(Clone, Copy, Debug)]
enum Entry<V> {
    Used(FourTuple, V),
    /// The next free entry, or [`NONE`].
    Free(u32),
}

/// The index of all four-tuples of a worker; or a table of other values by four-tuple.
pub struct Table<V = TableIndex> {
    /// A power of two, at least twice the capacity: an empty slot ends every search.
    slots: Vec<Slot>,
    /// Grows to the capacity reserved at start, and then reuses what is free.
    entries: Vec<Entry<V>>,
    first_free: u32,
    used: usize,
    capacity: usize,
    key: [u8; 16],
}

impl<V: Copy> Table<V> {
    /// Room for `capacity` tuples, allocated now; `key` is secret.
    ///
    /// # Panics
    /// If `capacity` is 2^30 or more.
    #[must_use]
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        assert!(capacity < 1 << 30, "a table has fewer than 2^30 entries");
        Self {
            slots: vec![EMPTY; (2 * capacity).next_power_of_two().max(2)],
            entries: Vec::with_capacity(capacity),
            first_free: NONE,
            used: 0,
            capacity,
            key,
        }
    }

    /// What the search for `tuple` begins with.
    #[must_use]
    pub fn tag(&self, tuple: &FourTuple) -> TableTag {
        TableTag(tag(&self.key, tuple))
    }

    /// The slot at which a search begins: to be asked for before the search.
    #[must_use]
    pub fn first_slot(&self, tag: TableTag) -> &(impl Sized + use<V>) {
        &self.slots[self.home(tag.0)]
    }

    /// The entry that a search most likely ends with: to be asked for before the search.
    #[must_use]
    pub fn first_entry(&self, tag: TableTag) -> Option<&(impl Sized + use<V>)> {
        let slot = self.slots[self.home(tag.0)];
        self.entries.get(slot.entry as usize)
    }

    /// The table and index of `tuple`.
    #[must_use]
    pub fn find(&self, tuple: &FourTuple) -> Option<V> {
        self.find_tagged(self.tag(tuple), tuple)
    }

    /// The same, with the tuple's [`Table::tag`].
    #[must_use]
    pub fn find_tagged(&self, tag: TableTag, tuple: &FourTuple) -> Option<V> {
        let slot = self.search(tag.0, tuple).ok()?;
        match self.entries[self.slots[slot].entry as usize] {
            Entry::Used(_, index) => Some(index),
            Entry::Free(_) => None,
        }
    }

    /// Inserts `tuple`, or changes its index.
    ///
    /// # Panics
    /// If the table is full: its capacity is the sum of the tables it points into.
    pub fn set(&mut self, tuple: FourTuple, index: V) {
        let tag = tag(&self.key, &tuple);
        match self.search(tag, &tuple) {
            Ok(slot) => self.entries[self.slots[slot].entry as usize] = Entry::Used(tuple, index),
            Err(slot) => {
                assert!(
                    self.used < self.capacity,
                    "the table indexes what other tables bound"
                );
                let entry = self.store(Entry::Used(tuple, index));
                self.slots[slot] = Slot { tag, entry };
                self.used += 1;
            }
        }
    }

    /// Removes `tuple`.
    pub fn remove(&mut self, tuple: &FourTuple) {
        let Ok(slot) = self.search(tag(&self.key, tuple), tuple) else {
            return;
        };
        let entry = self.slots[slot].entry;
        self.entries[entry as usize] = Entry::Free(self.first_free);
        self.first_free = entry;
        self.used -= 1;
        self.close_gap(slot);
    }

    /// Tuples recorded.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether no tuple is recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The slot of `tuple`, or the empty slot that ended the search for it.
    fn search(&self, tag: u32, tuple: &FourTuple) -> Result<usize, usize> {
        let mut slot = self.home(tag);
        loop {
            let Slot { tag: found, entry } = self.slots[slot];
            if found == 0 {
                return Err(slot);
            }
            let is_it = found == tag
                && matches!(&self.entries[entry as usize], Entry::Used(used, _) if used == tuple);
            if is_it {
                return Ok(slot);
            }
            slot = self.after(slot);
        }
    }

    /// Where the search for a tag begins.
    const fn home(&self, tag: u32) -> usize {
        tag as usize & (self.slots.len() - 1)
    }

    const fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Steps from one slot to another, around the end.
    const fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }

    /// Empties a slot, and moves back later slots of its run that a search would no longer find.
    fn close_gap(&mut self, mut gap: usize) {
        let mut slot = gap;
        loop {
            slot = self.after(slot);
            let moved = self.slots[slot];
            if moved.tag == 0 {
                break;
            }
            // Its search begins at or before the gap and would end there, so it moves.
            if self.steps(self.home(moved.tag), slot) >= self.steps(gap, slot) {
                self.slots[gap] = moved;
                gap = slot;
            }
        }
        self.slots[gap] = EMPTY;
    }

    /// Stores an entry in a free one, else in the capacity reserved at start.
    fn store(&mut self, entry: Entry<V>) -> u32 {
        let free = self.first_free;
        if let Some(freed) = self.entries.get_mut(free as usize) {
            if let Entry::Free(next) = *freed {
                self.first_free = next;
            }
            *freed = entry;
            return free;
        }
        let index = u32::try_from(self.entries.len());
        self.entries.push(entry);
        index.expect("invariant: new() bounds the capacity below 2^30")
    }
}

impl<V> core::fmt::Debug for Table<V> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter
            .debug_struct("Table")
            .field("len", &self.used)
            .finish_non_exhaustive()
    }
}

/// See [`Slot::tag`].
#[expect(
    clippy::cast_possible_truncation,
    reason = "half of a hash is as good a hash"
)]
fn tag(key: &[u8; 16], tuple: &FourTuple) -> u32 {
    let mut hasher = SipHasher13::new_with_key(key);
    hash_tuple(&mut hasher, tuple);
    (hasher.finish() as u32).max(1)
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
    use core::net::{Ipv4Addr, SocketAddr};
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{FourTuple, Table, TableIndex};

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: "10.0.0.2:80".parse().unwrap(),
            peer: format!("10.0.0.1:{port}").parse().unwrap(),
        }
    }

    #[test]
    fn tuples_are_found_moved_and_forgotten() {
        let mut table = Table::new(2, [7; 16]);
        table.set(tuple(1), TableIndex::HalfOpen(3));
        table.set(tuple(2), TableIndex::Connection(4));
        assert_eq!(table.find(&tuple(1)), Some(TableIndex::HalfOpen(3)));
        table.set(tuple(1), TableIndex::TimeWait(9));
        assert_eq!(table.find(&tuple(1)), Some(TableIndex::TimeWait(9)));
        table.remove(&tuple(1));
        assert_eq!(table.find(&tuple(1)), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    #[should_panic(expected = "what other tables bound")]
    fn exceeding_the_capacity_panics() {
        let mut table = Table::new(1, [0; 16]);
        table.set(tuple(1), TableIndex::HalfOpen(0));
        table.set(tuple(2), TableIndex::HalfOpen(1));
    }

    /// Connections come and go for as long as the server runs, in a table nine tenths full.
    #[test]
    fn replacing_tuples_does_not_reallocate_the_table() {
        const CAPACITY: u32 = 16_384 + 4096 + 16_384;
        const LIVE: u32 = CAPACITY * 9 / 10;
        let name = |n: u32| FourTuple {
            local: "10.0.0.2:80".parse().unwrap(),
            peer: SocketAddr::new(
                Ipv4Addr::from(n / 60_000 + 7).into(),
                u16::try_from(n % 60_000 + 1).unwrap(),
            ),
        };
        let mut table = Table::new(CAPACITY as usize, [7; 16]);
        // Where its memory is, and how much of it.
        let memory = |table: &Table| {
            let (slots, entries) = (&table.slots, &table.entries);
            (
                (slots.as_ptr(), slots.capacity()),
                (entries.as_ptr(), entries.capacity()),
            )
        };
        let at_start = memory(&table);
        for n in 0..LIVE {
            table.set(name(n), TableIndex::HalfOpen(n));
        }
        for n in LIVE..LIVE + 400_000 {
            table.remove(&name(n - LIVE));
            table.set(name(n), TableIndex::HalfOpen(n));
            assert_eq!(memory(&table), at_start, "after {n}");
        }
        assert_eq!(table.len(), LIVE as usize);
        for n in 400_000..400_000 + LIVE {
            assert_eq!(table.find(&name(n)), Some(TableIndex::HalfOpen(n)));
        }
        assert_eq!(table.find(&name(399_999)), None);
        // To the last entry.
        for n in 0..CAPACITY - LIVE {
            table.set(name(n), TableIndex::TimeWait(n));
        }
        assert_eq!(table.len(), CAPACITY as usize);
        assert_eq!(memory(&table), at_start);
    }

    proptest! {
        /// Few slots and as many tuples as there is room for: runs are long and go around the end.
        #[test]
        fn the_table_agrees_with_a_btree_map(
            capacity in 1usize..20,
            key in any::<[u8; 16]>(),
            steps in proptest::collection::vec((0u16..25, any::<bool>()), 0..300),
        ) {
            let mut table = Table::new(capacity, key);
            let mut twin = BTreeMap::new();
            for (step, (port, is_removal)) in steps.into_iter().enumerate() {
                if is_removal {
                    table.remove(&tuple(port));
                    twin.remove(&port);
                } else if twin.contains_key(&port) || twin.len() < capacity {
                    let index = u32::try_from(step).unwrap();
                    table.set(tuple(port), TableIndex::Connection(index));
                    twin.insert(port, TableIndex::Connection(index));
                }
                prop_assert_eq!(table.len(), twin.len());
                prop_assert_eq!(table.is_empty(), twin.is_empty());
                for port in 0..25 {
                    prop_assert_eq!(table.find(&tuple(port)), twin.get(&port).copied());
                }
            }
        }
    }
}
