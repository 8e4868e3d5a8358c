//! Deadlines of many connections: an indexed binary heap, one entry per connection.
//!
//! A timing wheel would make setting O(1), but most settings here change nothing: a busy
//! connection moves its deadline *later* with each ACK, and a later deadline is left where it is
//! and looked at again when the old one comes due. What remains is a few heap moves per connection
//! and RTO, exact deadlines, and a bound known at start.

use clock::Instant;

/// Marks a key that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// The queue. Keys are dense: `0..capacity`.
#[derive(Debug)]
pub struct TimerQueue {
    heap: Vec<(Instant, u32)>,
    /// Where each key stands in `heap`.
    places: Vec<u32>,
}

impl TimerQueue {
    /// Room for keys `0..capacity`, allocated now.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(
            capacity < ABSENT as usize,
            "a timer queue has fewer than 2^32 - 1 keys"
        );
        Self {
            heap: Vec::with_capacity(capacity),
            places: vec![ABSENT; capacity],
        }
    }

    /// The key must be looked at no later than `deadline`. A deadline later than the one already
    /// set is not recorded: the key comes due early, and is then set again by its owner.
    pub fn set(&mut self, key: u32, deadline: Instant) {
        let place = self.places[key as usize];
        if place == ABSENT {
            let place = self.heap.len();
            self.heap.push((deadline, key));
            self.places[key as usize] = index(place);
            self.rise(place);
        } else if deadline < self.heap[place as usize].0 {
            self.heap[place as usize].0 = deadline;
            self.rise(place as usize);
        }
    }

    /// The key needs no look any more.
    pub fn clear(&mut self, key: u32) {
        let place = self.places[key as usize];
        if place != ABSENT {
            self.remove(place as usize);
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// Takes out a key whose deadline is `now` or earlier.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let (deadline, key) = *self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(0);
        Some(key)
    }

    fn remove(&mut self, place: usize) {
        let (_, key) = self.heap.swap_remove(place);
        self.places[key as usize] = ABSENT;
        if let Some((_, moved)) = self.heap.get(place) {
            self.places[*moved as usize] = index(place);
            let place = self.rise(place);
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.heap[child].0 < self.heap[least].0 {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.places[self.heap[one].1 as usize] = index(one);
        self.places[self.heap[other].1 as usize] = index(other);
    }
}

/// A place in the heap; `new` made sure it fits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "new() bounds the capacity below 2^32 - 1"
)]
const fn index(place: usize) -> u32 {
    place as u32
}

#[cfg(test)]
mod tests {
    use clock::Instant;
    use proptest::prelude::*;

    use super::TimerQueue;

    #[test]
    fn a_later_deadline_is_not_recorded_and_an_earlier_one_is() {
        let mut queue = TimerQueue::new(1);
        queue.set(0, Instant::from_nanos(5));
        queue.set(0, Instant::from_nanos(9));
        assert_eq!(queue.next_deadline(), Some(Instant::from_nanos(5)));
        queue.set(0, Instant::from_nanos(3));
        assert_eq!(queue.pop_due(Instant::from_nanos(2)), None);
        assert_eq!(queue.pop_due(Instant::from_nanos(3)), Some(0));
        assert_eq!(queue.next_deadline(), None);
    }

    proptest! {
        #[test]
        fn keys_come_due_in_order(
            steps in proptest::collection::vec((0u32..20, 0u64..50, 0u8..4), 0..200),
        ) {
            let mut queue = TimerQueue::new(20);
            let mut twin = [None; 20];
            for (key, nanos, what) in steps {
                let slot = &mut twin[key as usize];
                if what == 0 {
                    queue.clear(key);
                    *slot = None;
                } else {
                    queue.set(key, Instant::from_nanos(nanos));
                    *slot = Some(slot.map_or(nanos, |old: u64| old.min(nanos)));
                }
                let least = twin.iter().flatten().min().copied();
                prop_assert_eq!(queue.next_deadline().map(Instant::as_nanos), least);
            }
            let mut last = 0;
            while let Some(deadline) = queue.next_deadline() {
                let key = queue.pop_due(deadline).unwrap();
                prop_assert_eq!(twin[key as usize].take(), Some(deadline.as_nanos()));
                prop_assert!(deadline.as_nanos() >= last);
                last = deadline.as_nanos();
            }
            prop_assert!(twin.iter().all(Option::is_none));
        }
    }
}
