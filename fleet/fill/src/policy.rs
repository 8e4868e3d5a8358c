//! Which object leaves when there is no room: S3-FIFO (Yang and others, SOSP 2023), by bytes.
//!
//! Three queues. New objects enter `small`, a tenth of the bytes. What is asked for again while it is there goes to
//! `main`; the rest leaves, and its name is kept in `ghost`: who comes back from there goes to `main` at once. An object of
//! `main` that was asked for since its last turn has another turn. So a scan, a title that everybody's crawler reads
//! once, goes through `small` and leaves the rest alone, where LRU would lose all of it.
//!
//! Requests arrive as counts, seconds later, which this rule does not mind: it keeps no order of use. Pure; time is no
//! part of it. Bounded by the objects that are held: as many names are in `ghost`, and twice as many entries in the other
//! two queues, or `ENTRIES_FREE`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// An object's name.
pub type Name = Arc<str>;

/// Of how many bytes one is for newcomers.
const SMALL_PART: u64 = 10;
/// The most requests that count: turns that an object has in `main` without another one.
const TURNS_MAX: u8 = 3;
/// Requests while an object is in `small` that lead it to `main`. The first one may be why it is there.
const REQUESTS_FOR_MAIN: u8 = 2;

/// So many entries of objects that are gone may always be in the queues.
const ENTRIES_FREE: usize = 64;

/// The order in which objects leave.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    objects: HashMap<Name, Object>,
    /// The oldest first. Entries of objects that are elsewhere by now are left out when their turn comes.
    small: VecDeque<(Name, u64)>,
    main: VecDeque<(Name, u64)>,
    small_bytes: u64,
    main_bytes: u64,
    ghost: VecDeque<(Name, u64)>,
    ghosts: HashMap<Name, u64>,
    /// Tells entries of one name apart.
    entries: u64,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    size_bytes: u64,
    requests: u8,
    is_in_main: bool,
    /// Its entry in the queue.
    entry: u64,
}

impl Policy {
    /// An object has come. One that is there already has another size.
    pub fn insert(&mut self, name: &Name, size_bytes: u64) {
        if let Some(object) = self.objects.get_mut(name) {
            let bytes = if object.is_in_main {
                &mut self.main_bytes
            } else {
                &mut self.small_bytes
            };
            *bytes = *bytes - object.size_bytes + size_bytes;
            object.size_bytes = size_bytes;
            return;
        }
        let is_in_main = self.ghosts.remove(name).is_some();
        self.enqueue(name, size_bytes, 0, is_in_main);
    }

    /// An object was there before this process: among those that have proved themselves, to leave before later ones.
    pub fn restore(&mut self, name: &Name, size_bytes: u64) {
        if !self.objects.contains_key(name) {
            self.enqueue(name, size_bytes, 0, true);
        }
    }

    /// An object was asked for, so often.
    pub fn requested(&mut self, name: &str, count: u64) {
        if let Some(object) = self.objects.get_mut(name) {
            let count = u8::try_from(count).unwrap_or(u8::MAX);
            object.requests = object.requests.saturating_add(count).min(TURNS_MAX);
        }
    }

    /// An object has gone, for another reason than room.
    pub fn remove(&mut self, name: &str) {
        if let Some(object) = self.objects.remove(name) {
            self.forget_bytes(object);
        }
    }

    /// The object that leaves next, of those that may. It is gone from here. Those that may not keep their places and turns.
    pub fn evict(&mut self, may_leave: impl Fn(&str) -> bool) -> Option<Name> {
        let mut passed_over = Vec::new();
        let victim = self.search(may_leave, &mut passed_over);
        for (name, entry, is_in_main) in passed_over.into_iter().rev() {
            let queue = if is_in_main {
                &mut self.main
            } else {
                &mut self.small
            };
            queue.push_front((name, entry));
        }
        victim
    }

    fn search(
        &mut self,
        may_leave: impl Fn(&str) -> bool,
        passed_over: &mut Vec<(Name, u64, bool)>,
    ) -> Option<Name> {
        // Ends: each turn takes an entry away, moves one to `main`, or one of the turns of an object.
        loop {
            let all_bytes = self.small_bytes + self.main_bytes;
            let is_small_over = self.small_bytes >= all_bytes / SMALL_PART;
            let from_main = self.small.is_empty() || (!is_small_over && !self.main.is_empty());
            let queue = if from_main {
                &mut self.main
            } else {
                &mut self.small
            };
            let (name, entry) = queue.pop_front()?;
            let object = self
                .objects
                .get(&name)
                .copied()
                .filter(|it| it.entry == entry);
            let Some(object) = object else {
                continue;
            };
            if !may_leave(&name) {
                passed_over.push((name, entry, from_main));
                continue;
            }
            self.objects.remove(&name);
            self.forget_bytes(object);
            let requests = object.requests;
            if from_main && requests > 0 {
                self.enqueue(&name, object.size_bytes, requests - 1, true);
            } else if !from_main && requests >= REQUESTS_FOR_MAIN {
                self.enqueue(&name, object.size_bytes, 0, true);
            } else {
                if !from_main {
                    self.remember(&name);
                }
                return Some(name);
            }
        }
    }

    /// Bytes of all objects.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    fn enqueue(&mut self, name: &Name, size_bytes: u64, requests: u8, is_in_main: bool) {
        self.entries += 1;
        let object = Object {
            size_bytes,
            requests,
            is_in_main,
            entry: self.entries,
        };
        self.objects.insert(Arc::clone(name), object);
        let (queue, bytes) = if is_in_main {
            (&mut self.main, &mut self.main_bytes)
        } else {
            (&mut self.small, &mut self.small_bytes)
        };
        queue.push_back((Arc::clone(name), self.entries));
        *bytes += size_bytes;
        self.drop_old_entries();
    }

    /// Drops entries of objects that are gone or elsewhere, once they are more than the others.
    fn drop_old_entries(&mut self) {
        let entries = self.small.len() + self.main.len();
        if entries <= 2 * self.objects.len() + ENTRIES_FREE {
            return;
        }
        let objects = &self.objects;
        for queue in [&mut self.small, &mut self.main] {
            queue.retain(|(name, entry)| objects.get(name).is_some_and(|it| it.entry == *entry));
        }
    }

    fn forget_bytes(&mut self, object: Object) {
        if object.is_in_main {
            self.main_bytes -= object.size_bytes;
        } else {
            self.small_bytes -= object.size_bytes;
        }
    }

    fn remember(&mut self, name: &Name) {
        self.entries += 1;
        self.ghosts.insert(Arc::clone(name), self.entries);
        self.ghost.push_back((Arc::clone(name), self.entries));
        // As many names as objects.
        while self.ghost.len() > self.objects.len().max(1) {
            if let Some((name, entry)) = self.ghost.pop_front()
                && self.ghosts.get(&name) == Some(&entry)
            {
                self.ghosts.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::Random;

    fn name(text: &str) -> Name {
        text.into()
    }

    #[test]
    fn what_nobody_asked_for_leaves_first_and_what_comes_back_stays() {
        let mut policy = Policy::default();
        for index in 0..10 {
            policy.insert(&name(&format!("old{index}")), 10);
        }
        policy.requested("old3", 2);
        policy.requested("absent", 1);
        assert_eq!(policy.evict(|_| true).as_deref(), Some("old0"));
        assert_eq!(policy.evict(|_| true).as_deref(), Some("old1"));
        // From the ghost queue to the main one: what is new leaves before it.
        policy.insert(&name("old0"), 10);
        let mut left = Vec::new();
        while let Some(name) = policy.evict(|_| true) {
            left.push(name.to_string());
        }
        assert_eq!(left.len(), 9);
        assert_eq!(policy.bytes(), 0);
        let place = |wanted: &str| left.iter().position(|it| it == wanted).unwrap();
        assert!(place("old9") < place("old3"), "{left:?}");
    }

    #[test]
    fn what_may_not_leave_stays_and_the_search_ends() {
        let mut policy = Policy::default();
        for text in ["a", "b", "c"] {
            policy.insert(&name(text), 1);
            policy.requested(text, 9);
        }
        assert_eq!(policy.evict(|_| false), None);
        assert_eq!(policy.bytes(), 3);
        let only_b = |it: &str| it == "b";
        assert_eq!(policy.evict(only_b).as_deref(), Some("b"));
        assert_eq!(policy.evict(only_b), None);
        let turns = policy.objects["a"].requests;
        assert_eq!((turns, policy.small.len()), (TURNS_MAX, 2));
        policy.remove("a");
        policy.remove("a");
        policy.insert(&name("c"), 7);
        assert_eq!(policy.bytes(), 7);
    }

    #[test]
    fn the_ghost_queue_has_no_more_names_than_there_are_objects() {
        let mut policy = Policy::default();
        for index in 0..1_000 {
            policy.insert(&name(&index.to_string()), 1);
            if index >= 100 {
                policy.evict(|_| true);
            }
        }
        assert!(policy.ghost.len() <= 100 && policy.ghosts.len() <= policy.ghost.len());
        assert_eq!(policy.objects.len(), 100);
        assert!(policy.small.len() + policy.main.len() <= 200);
    }

    #[test]
    fn objects_that_come_and_go_for_other_reasons_than_room_leave_no_entries() {
        let mut policy = Policy::default();
        policy.insert(&name("stays"), 1);
        policy.requested("stays", 1);
        for index in 0..10_000 {
            let name = name(&(index % 7).to_string());
            if index % 2 == 0 {
                policy.insert(&name, 1);
            } else {
                policy.restore(&name, 1);
            }
            policy.remove(&name);
        }
        let entries = policy.small.len() + policy.main.len();
        assert!(entries <= 2 + ENTRIES_FREE, "{entries}");
        assert_eq!(policy.evict(|_| true).as_deref(), Some("stays"));
    }

    /// A rule that is tried with a trace.
    trait Rule {
        fn requested(&mut self, name: &Name) -> bool;
        fn insert_within(&mut self, name: &Name, size_bytes: u64, capacity_bytes: u64);
    }

    impl Rule for Policy {
        fn requested(&mut self, name: &Name) -> bool {
            let is_there = self.objects.contains_key(name);
            Policy::requested(self, name, 1);
            is_there
        }

        fn insert_within(&mut self, name: &Name, size_bytes: u64, capacity_bytes: u64) {
            while self.bytes() + size_bytes > capacity_bytes {
                self.evict(|_| true).unwrap();
            }
            self.insert(name, size_bytes);
        }
    }

    /// The least recently used leaves.
    #[derive(Default)]
    struct Lru {
        objects: HashMap<Name, (u64, u64)>,
        by_use: BTreeMap<u64, Name>,
        bytes: u64,
        uses: u64,
    }

    impl Rule for Lru {
        fn requested(&mut self, name: &Name) -> bool {
            self.uses += 1;
            let Some((used, _)) = self.objects.get_mut(name) else {
                return false;
            };
            self.by_use.remove(used);
            *used = self.uses;
            self.by_use.insert(self.uses, Arc::clone(name));
            true
        }

        fn insert_within(&mut self, name: &Name, size_bytes: u64, capacity_bytes: u64) {
            while self.bytes + size_bytes > capacity_bytes {
                let (_, oldest) = self.by_use.pop_first().unwrap();
                self.bytes -= self.objects.remove(&oldest).unwrap().1;
            }
            self.uses += 1;
            self.objects
                .insert(Arc::clone(name), (self.uses, size_bytes));
            self.by_use.insert(self.uses, Arc::clone(name));
            self.bytes += size_bytes;
        }
    }

    const OBJECTS: u64 = 20_000;
    const REQUESTS: usize = 400_000;

    /// Requests by Zipf's law with this exponent, and after each so many a scan: 2,000 objects in a row, each once.
    fn trace(exponent: f64, scan_every: usize) -> Vec<u64> {
        let mut random = Random::new(0x5EED);
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for rank in 1..=OBJECTS {
            #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
            let weight = (rank as f64).powf(-exponent);
            sum += weight;
            sums.push(sum);
        }
        let mut trace = Vec::new();
        let mut scanned = OBJECTS;
        while trace.len() < REQUESTS {
            #[expect(clippy::cast_precision_loss, reason = "53 bits are left")]
            let part = (random.draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
            let rank = sums.partition_point(|it| *it < part);
            trace.push(u64::try_from(rank).unwrap());
            if scan_every > 0 && trace.len() % scan_every == 0 {
                trace.extend(scanned..scanned + 2_000);
                scanned += 2_000;
            }
        }
        trace
    }

    /// Of the requests for objects that come back, those that found theirs: parts of 1000.
    fn hit_ratio(rule: &mut impl Rule, trace: &[u64], capacity_bytes: u64) -> u64 {
        let (mut hits, mut requests) = (0, 0);
        for object in trace {
            let name = name(&object.to_string());
            // 1 to 8 MB, as segments of a ladder have.
            let size_bytes = (1 + object % 8) * 1_000_000;
            let is_there = rule.requested(&name);
            if !is_there {
                rule.insert_within(&name, size_bytes, capacity_bytes);
            }
            if *object < OBJECTS {
                requests += 1;
                hits += u64::from(is_there);
            }
        }
        hits * 1_000 / requests
    }

    #[test]
    fn the_hit_ratio_is_above_that_of_lru_and_far_above_with_scans() {
        // A tenth of all bytes.
        let capacity_bytes = OBJECTS * 4_500_000 / 10;
        let mut found = Vec::new();
        for (exponent, scan_every, gain) in [
            (0.7, 0, 30),
            (1.0, 0, 10),
            (0.7, 10_000, 50),
            (1.0, 10_000, 30),
        ] {
            let trace = trace(exponent, scan_every);
            let lru = hit_ratio(&mut Lru::default(), &trace, capacity_bytes);
            let ours = hit_ratio(&mut Policy::default(), &trace, capacity_bytes);
            println!(
                "Zipf {exponent}, a scan each {scan_every}: S3-FIFO {ours}, LRU {lru} of 1000"
            );
            found.push((exponent, scan_every, ours, lru, ours >= lru + gain));
        }
        assert!(found.iter().all(|it| it.4), "{found:?}");
    }
}
