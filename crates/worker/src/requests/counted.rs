//! How often objects are asked for, for the most asked of them, in bounded memory.
//!
//! Objects that are asked for most have an entry each. Of all others a sketch (count-min, conservatively updated) keeps
//! how often they were asked for, which is never too little, and too much by what others add that share all of its counters. One that
//! comes to more than the least of some entries takes its place; how often that one was asked for goes into the sketch.
//!
//! Until there are more objects than entries, all counts are exact. It refuses to grow: [`COUNTED_MAX`] entries with names of
//! [`NAME_BYTES_MAX`], and a sketch of 128 KiB, once it is needed.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use super::NAME_BYTES_MAX;

/// Most objects of a worker that have an entry.
pub const COUNTED_MAX: usize = 4096;
/// Rows of the sketch, each with another part of the hash.
const ROWS: usize = 4;
/// Counters of a row.
const COLUMNS: usize = 8192;
/// Entries of which the least may have to go: looking at all of them would cost more than it is worth.
const CANDIDATES: usize = 16;

/// Most bytes of all entries and the sketch. An entry has a name, its count, and its place in a table that is half empty.
pub(super) const BYTES_MAX: usize =
    COUNTED_MAX * (NAME_BYTES_MAX + size_of::<Counted>() + 32) + ROWS * COLUMNS * size_of::<u32>();

/// How often an object was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The site's number ([`sites::Found::number`]).
    pub site: u16,
    /// The directory's number ([`session::LookupPlan::directory`]).
    pub directory: u16,
    /// As it was looked up.
    pub path: Arc<str>,
    /// How often, since the worker began: this many, or up to `excess_max` fewer.
    pub requests: u64,
    /// The part of `requests` that may be those of other objects, by the sketch.
    pub excess_max: u64,
    /// When that was last, Unix seconds.
    pub last: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CountedObjects {
    entries: Vec<Counted>,
    /// Where an object is in them.
    places: HashTable<usize>,
    /// Rows one behind the other; empty until there are more objects than entries.
    sketch: Vec<u32>,
    /// The entry from which on the next candidates are.
    next_candidate: usize,
    hasher: RandomState,
}

impl CountedObjects {
    /// This object was asked for.
    pub(crate) fn count(&mut self, site: u16, directory: u16, path: &str, unix_seconds: u64) {
        let hash = self.hasher.hash_one((site, directory, path));
        let entries = &self.entries;
        let is_it = |place: &usize| {
            let entry = entries.get(*place);
            entry.is_some_and(|entry| {
                (entry.site, entry.directory, &*entry.path) == (site, directory, path)
            })
        };
        if let Some(&place) = self.places.find(hash, is_it)
            && let Some(entry) = self.entries.get_mut(place)
        {
            entry.requests += 1;
            entry.last = unix_seconds;
            return;
        }
        if path.len() > NAME_BYTES_MAX {
            return;
        }
        let counted = |requests| Counted {
            site,
            directory,
            path: path.into(),
            requests,
            // This request is the object's own.
            excess_max: requests - 1,
            last: unix_seconds,
        };
        if self.entries.len() < COUNTED_MAX {
            self.entries.push(counted(1));
            self.insert(hash, self.entries.len() - 1);
            return;
        }
        let requests = self.add_to_sketch(hash);
        let place = self.least_candidate();
        if self.entries[place].requests >= requests {
            return;
        }
        let before = std::mem::replace(&mut self.entries[place], counted(requests));
        let hash_before = before.hash(&self.hasher);
        if let Ok(entry) = (self.places).find_entry(hash_before, |&other| other == place) {
            entry.remove();
        }
        self.raise_in_sketch(hash_before, before.requests);
        self.insert(hash, place);
    }

    /// Entries from `from` on, `most` at most, and from where on there are more.
    pub(crate) fn page(&self, from: usize, most: usize) -> (Vec<Counted>, Option<usize>) {
        let rest = self.entries.get(from..).unwrap_or_default();
        let page = rest.get(..most).unwrap_or(rest);
        let next = (page.len() < rest.len()).then(|| from + page.len());
        (page.to_vec(), next)
    }

    fn insert(&mut self, hash: u64, place: usize) {
        let Self {
            entries,
            places,
            hasher,
            ..
        } = self;
        places.insert_unique(hash, place, |&place| entries[place].hash(hasher));
    }

    fn least_candidate(&mut self) -> usize {
        let from = self.next_candidate;
        self.next_candidate = (from + CANDIDATES) % COUNTED_MAX;
        let candidates = (from..from + CANDIDATES).map(|place| place % COUNTED_MAX);
        let least = candidates.min_by_key(|&place| self.entries[place].requests);
        least.unwrap_or(from)
    }

    /// Adds one; how often it was asked for then.
    fn add_to_sketch(&mut self, hash: u64) -> u64 {
        if self.sketch.is_empty() {
            self.sketch = vec![0; ROWS * COLUMNS];
        }
        let before = columns(hash).map(|place| self.sketch[place]).min();
        let requests = u64::from(before.unwrap_or(0)) + 1;
        self.raise_in_sketch(hash, requests);
        requests
    }

    fn raise_in_sketch(&mut self, hash: u64, requests: u64) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        for place in columns(hash) {
            let counter = &mut self.sketch[place];
            *counter = requests.max(*counter);
        }
    }
}

impl Counted {
    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one((self.site, self.directory, &*self.path))
    }
}

/// The counters of the sketch that a hash has.
fn columns(hash: u64) -> impl Iterator<Item = usize> {
    const _: () = assert!(COLUMNS.is_power_of_two() && COLUMNS <= 1 << 16 && ROWS * 16 <= 64);
    (0..ROWS).map(move |row| {
        let part = usize::try_from(hash >> (16 * row) & 0xffff).unwrap_or_default();
        row * COLUMNS + part % COLUMNS
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{COUNTED_MAX, CountedObjects, NAME_BYTES_MAX};

    fn all(objects: &CountedObjects) -> HashMap<(u16, String), u64> {
        let (entries, next) = objects.page(0, COUNTED_MAX);
        assert_eq!(next, None);
        let count = entries.len();
        let all: HashMap<_, _> = (entries.into_iter())
            .map(|it| ((it.site, it.path.to_string()), it.requests))
            .collect();
        assert_eq!(all.len(), count, "each is there once");
        all
    }

    #[test]
    fn as_long_as_there_is_room_counts_are_exact() {
        let mut objects = CountedObjects::default();
        for number in 0..COUNTED_MAX {
            for _ in 0..=number % 3 {
                objects.count(1, 0, &format!("/{number}"), 7);
            }
        }
        let all = all(&objects);
        assert_eq!(all.len(), COUNTED_MAX);
        for number in 0..COUNTED_MAX {
            let requests = all[&(1, format!("/{number}"))];
            assert_eq!(requests, number as u64 % 3 + 1);
        }
        assert!(objects.sketch.is_empty());
        let (entries, _) = objects.page(0, COUNTED_MAX);
        assert!(entries.iter().all(|entry| entry.excess_max == 0));
        // Of another site, or in another directory, it is another object.
        let mut objects = CountedObjects::default();
        for (site, directory, second) in [(1, 0, 1), (2, 0, 2), (2, 0, 3), (2, 1, 4)] {
            objects.count(site, directory, "/a", second);
        }
        let (entries, _) = objects.page(0, 8);
        let told = entries
            .iter()
            .map(|it| (it.site, it.directory, it.requests, it.last));
        assert!(told.eq([(1, 0, 1, 1), (2, 0, 2, 3), (2, 1, 1, 4)]));
    }

    #[test]
    fn those_asked_for_most_are_found_among_many() {
        const OBJECTS: usize = 50_000;
        const POPULAR: usize = 200;
        let mut objects = CountedObjects::default();
        // Each popular one once for every 250 others, beginning when the table is full of those.
        for round in 0..OBJECTS * 4 {
            objects.count(0, 0, &format!("/rare/{}", round % OBJECTS), 1);
            if round > COUNTED_MAX {
                let popular = round % POPULAR;
                objects.count(0, 0, &format!("/popular/{popular}"), 1);
            }
        }
        let all = all(&objects);
        let each = ((OBJECTS * 4 - COUNTED_MAX) / POPULAR) as u64;
        for popular in 0..POPULAR {
            let requests = all.get(&(0, format!("/popular/{popular}")));
            let requests = requests.copied().unwrap_or_default();
            // The sketch counts 50,000 others in 8,192 counters a row, four times each.
            assert!(requests >= each - 1, "{popular}: {requests} of {each}");
            assert!(requests <= each + 200, "{popular}: {requests} of {each}");
        }
        assert_eq!(all.len(), COUNTED_MAX);
    }

    #[test]
    fn no_object_was_asked_for_less_than_its_count_without_the_excess() {
        const OBJECTS: u64 = 20_000;
        let mut objects = CountedObjects::default();
        // Object N is asked for N % 7 + 1 times, in rounds.
        for round in 0..7 {
            for number in (0..OBJECTS).filter(|number| number % 7 >= round) {
                objects.count(0, 0, &number.to_string(), 1);
            }
        }
        let (entries, _) = objects.page(0, COUNTED_MAX);
        let mut excess_max = 0;
        for entry in entries {
            let number: u64 = entry.path.parse().unwrap();
            let requests = number % 7 + 1;
            assert!(entry.requests >= requests, "{entry:?}");
            assert!(entry.requests - entry.excess_max <= requests, "{entry:?}");
            excess_max = excess_max.max(entry.excess_max);
        }
        assert!(excess_max > 0, "the sketch was not used");
    }

    #[test]
    fn pages_have_each_entry_once() {
        let mut objects = CountedObjects::default();
        for number in 0..10 {
            objects.count(0, 0, &format!("/{number}"), 1);
        }
        let (mut from, mut sizes) = (Some(0), Vec::new());
        while let Some(place) = from {
            let (page, next) = objects.page(place, 4);
            sizes.push(page.len());
            from = next;
        }
        assert_eq!(sizes, [4, 4, 2]);
        assert_eq!(objects.page(10, 4), (Vec::new(), None));
        assert_eq!(objects.page(11, 4), (Vec::new(), None));
    }

    #[test]
    fn a_name_may_be_so_long_and_no_longer() {
        let mut objects = CountedObjects::default();
        let long = "x".repeat(NAME_BYTES_MAX);
        objects.count(0, 0, &long, 1);
        objects.count(0, 0, &format!("{long}x"), 1);
        assert_eq!(all(&objects).len(), 1);
    }
}
