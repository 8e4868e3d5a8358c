//! Names that were asked for and are not there, until somebody wants to know them.
//!
//! However often a name is asked for, it is one entry. It refuses to grow: of more than [`MISSED_OF_WORKER_MAX`] names the one that came
//! first is forgotten, and names longer than [`NAME_BYTES_MAX`] are not told.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use super::NAME_BYTES_MAX;

/// Most names of a worker that wait to be told.
pub const MISSED_OF_WORKER_MAX: usize = 4096;

/// Most bytes of all names, with their places in a table that is half empty.
pub(super) const BYTES_MAX: usize =
    MISSED_OF_WORKER_MAX * (NAME_BYTES_MAX + size_of::<Missed>() + 16);

/// A name that was asked for and is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missed {
    /// The site's number ([`sites::Found::number`]).
    pub site: u16,
    /// The directory's number ([`session::LookupPlan::directory`]).
    pub directory: u16,
    /// As it was looked up.
    pub path: Box<str>,
    /// How often it was asked for.
    pub requests: u64,
    /// When that was last, Unix seconds.
    pub last: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MissedNames {
    /// A ring, once it is full.
    names: Vec<Missed>,
    /// Where a name is in it.
    places: HashTable<usize>,
    /// Which one came first, once it is full.
    oldest: usize,
    hasher: RandomState,
    forgotten_count: u64,
}

impl MissedNames {
    /// This name is not there.
    pub(crate) fn note(&mut self, site: u16, directory: u16, path: &str, unix_seconds: u64) {
        let hash = self.hasher.hash_one((site, directory, path));
        let names = &self.names;
        let is_it = |place: &usize| {
            let name = names.get(*place);
            name.is_some_and(|name| {
                (name.site, name.directory, &*name.path) == (site, directory, path)
            })
        };
        if let Some(&place) = self.places.find(hash, is_it)
            && let Some(name) = self.names.get_mut(place)
        {
            name.requests += 1;
            name.last = unix_seconds;
            return;
        }
        if path.len() > NAME_BYTES_MAX {
            return;
        }
        let missed = Missed {
            site,
            directory,
            path: path.into(),
            requests: 1,
            last: unix_seconds,
        };
        self.insert(hash, missed);
    }

    fn insert(&mut self, hash: u64, missed: Missed) {
        let Self {
            names,
            places,
            oldest,
            hasher,
            forgotten_count,
        } = self;
        let place = if names.len() < MISSED_OF_WORKER_MAX {
            names.push(missed);
            names.len() - 1
        } else {
            let place = *oldest;
            *oldest = (place + 1) % MISSED_OF_WORKER_MAX;
            let before = std::mem::replace(&mut names[place], missed);
            let hash = before.hash(hasher);
            if let Ok(entry) = places.find_entry(hash, |&other| other == place) {
                entry.remove();
            }
            *forgotten_count += 1;
            place
        };
        places.insert_unique(hash, place, |&place| names[place].hash(hasher));
    }

    /// All names, in no order. They are not told again, unless they are asked for again.
    pub(crate) fn take(&mut self) -> Vec<Missed> {
        self.places.clear();
        self.oldest = 0;
        std::mem::take(&mut self.names)
    }

    /// Keeps names that were taken and reached nobody. None may have come since.
    pub(crate) fn put_back(&mut self, names: Vec<Missed>) {
        debug_assert!(self.names.is_empty(), "names came since these were taken");
        for missed in names {
            self.insert(missed.hash(&self.hasher), missed);
        }
    }

    /// How many names were forgotten before anybody wanted to know them.
    pub(crate) const fn forgotten_count(&self) -> u64 {
        self.forgotten_count
    }
}

impl Missed {
    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one((self.site, self.directory, &*self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::{MISSED_OF_WORKER_MAX, Missed, MissedNames, NAME_BYTES_MAX};

    fn missed(site: u16, path: &str, requests: u64, last: u64) -> Missed {
        let path = path.into();
        Missed {
            site,
            directory: 0,
            path,
            requests,
            last,
        }
    }

    #[test]
    fn a_name_is_one_entry_however_often_it_is_asked_for() {
        let mut names = MissedNames::default();
        for second in 1..=10_000 {
            names.note(1, 0, "/a", second);
        }
        names.note(2, 0, "/a", 5);
        let expected = [missed(1, "/a", 10_000, 10_000), missed(2, "/a", 1, 5)];
        assert_eq!(names.take(), expected);
        assert_eq!(names.take(), []);
        names.note(1, 0, "/a", 7);
        assert_eq!(names.take(), [missed(1, "/a", 1, 7)]);
        names.note(1, 0, "/a", 8);
        names.note(1, 1, "/a", 8);
        let beneath = Missed {
            directory: 1,
            ..missed(1, "/a", 1, 8)
        };
        assert_eq!(names.take(), [missed(1, "/a", 1, 8), beneath]);
    }

    #[test]
    fn what_reached_nobody_is_put_back_and_told_with_what_comes_later() {
        let mut names = MissedNames::default();
        names.note(1, 0, "/a", 5);
        names.note(1, 0, "/b", 6);
        let taken = names.take();
        names.put_back(taken);
        names.note(1, 0, "/a", 7);
        let expected = [missed(1, "/a", 2, 7), missed(1, "/b", 1, 6)];
        assert_eq!(names.take(), expected);
    }

    #[test]
    fn of_too_many_names_those_that_came_first_are_forgotten() {
        let mut names = MissedNames::default();
        for number in 0..10_000 {
            names.note(0, 0, &format!("/{number}"), 1);
            // It is known all the time, which does not help it.
            names.note(0, 0, "/0", 1);
        }
        let forgotten = names.forgotten_count();
        let mut paths: Vec<Box<str>> = names.take().into_iter().map(|it| it.path).collect();
        assert_eq!(paths.len(), MISSED_OF_WORKER_MAX);
        assert!(paths.contains(&"/9999".into()) && !paths.contains(&"/1".into()));
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), MISSED_OF_WORKER_MAX, "each is there once");
        assert!(
            forgotten >= 10_000 - MISSED_OF_WORKER_MAX as u64,
            "{forgotten}"
        );
    }

    #[test]
    fn a_name_may_be_so_long_and_no_longer() {
        let mut names = MissedNames::default();
        let long = "x".repeat(NAME_BYTES_MAX);
        names.note(0, 0, &long, 1);
        names.note(0, 0, &format!("{long}x"), 1);
        assert_eq!(names.take(), [missed(0, &long, 1, 1)]);
    }
}
