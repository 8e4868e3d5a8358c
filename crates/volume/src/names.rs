//! An index of a catalogue's names, for those who look many up.
//!
//! A binary search among a million names reads twenty of them, each in a cache line of its own or two;
//! with the index a look-up reads one. Bounded by sixteen to thirty-two bytes for each object.

use std::hash::{DefaultHasher, Hasher as _};

use crate::catalogue::as_u64;
use crate::{Catalogue, Entry};

/// Where each name of a catalogue is among [`Catalogue::entries`]: an open-addressed hash table, at most
/// half full, so a search ends after a few steps.
///
/// The hash has no secret key: the names are the operator's, and who asks for names adds none.
#[derive(Clone, Debug)]
pub struct NameIndex {
    /// A power of two of them.
    buckets: Box<[Bucket]>,
}

/// The upper half of a name's hash, and one more than the place of its entry; zero: empty.
#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    hash: u32,
    place: u32,
}

impl NameIndex {
    /// The index of a catalogue that does not change.
    ///
    /// # Panics
    /// With 2^32 - 1 objects or more, for which no catalogue area has room
    /// ([`CATALOGUE_BYTES_MAX`](crate::CATALOGUE_BYTES_MAX)).
    #[must_use]
    pub fn new(catalogue: &Catalogue) -> Self {
        let entries = catalogue.entries();
        let buckets = (entries.len() * 2).next_power_of_two();
        let mut index = Self {
            buckets: vec![Bucket::default(); buckets].into_boxed_slice(),
        };
        for (place, entry) in (1_u32..).zip(entries) {
            let hash = hash_of(&entry.name);
            let mut bucket = index.first(hash);
            while index.buckets[bucket].place != 0 {
                bucket = index.next(bucket);
            }
            let hash = upper_half(hash);
            index.buckets[bucket] = Bucket { hash, place };
        }
        index
    }

    /// The place of the object of this name among the entries of the catalogue that the index was made
    /// of; the same as [`Catalogue::index_of`].
    #[must_use]
    pub fn index_of(&self, catalogue: &Catalogue, name: &str) -> Option<usize> {
        let hash = hash_of(name);
        let mut bucket = self.first(hash);
        loop {
            let found = self.buckets[bucket];
            let index = usize::try_from(found.place).ok()?.checked_sub(1)?;
            if found.hash == upper_half(hash) && *catalogue.entries()[index].name == *name {
                return Some(index);
            }
            bucket = self.next(bucket);
        }
    }

    /// The object of this name; the same as [`Catalogue::find`].
    #[must_use]
    pub fn find<'c>(&self, catalogue: &'c Catalogue, name: &str) -> Option<&'c Entry> {
        let index = self.index_of(catalogue, name)?;
        Some(&catalogue.entries()[index])
    }

    /// Where the search for a hash begins.
    fn first(&self, hash: u64) -> usize {
        let first = hash & (as_u64(self.buckets.len()) - 1);
        usize::try_from(first).expect("invariant: less than a usize")
    }

    const fn next(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }
}

fn hash_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

fn upper_half(hash: u64) -> u32 {
    u32::try_from(hash >> 32).expect("invariant: half of the bits")
}
