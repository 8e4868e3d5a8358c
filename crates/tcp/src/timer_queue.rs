//! Deadlines of many connections: an indexed heap, one entry per connection.
//!
//! A busy connection moves its deadline *later* with each ACK, and a later deadline is not recorded:
//! the key comes due at the old one and is set again then. What is left are the deadlines of pacing: one
//! comes due for each frame. So each entry of the heap has four children, which makes it half as high as
//! with two; and a key that came due leaves its place to the next one that is set, mostly itself.
//!
//! Deadlines are exact, keys come due in their order, and the size is known at start. A timing wheel
//! would have neither the order within a tick nor an exact next deadline
//! (docs/develop/decisions/0023-cost-of-a-turn.md).

use clock::Instant;

/// Marks a key that is not in the heap.
const ABSENT: u32 = u32::MAX;
/// Children of an entry: those at place p are at places `CHILDREN * p + 1` and behind it.
const CHILDREN: usize = 4;

/// The queue. Keys are dense: `0..capacity`.
#[derive(Debug)]
pub struct TimerQueue {
    /// Each entry is due no later than its children.
    heap: Vec<Entry>,
    /// The place of each key in `heap`.
    places: Vec<u32>,
    /// The first entry's key came due and was taken; the entry is void.
    is_first_void: bool,
}

type Entry = (Instant, u32);

impl TimerQueue {
    /// Room for keys `0..capacity`, allocated now.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(
            capacity < ABSENT as usize,
            "a timer queue has fewer than 2^32 - 1 keys"
        );
        Self {
            // A void entry may be beside those of all keys.
            heap: Vec::with_capacity(capacity + 1),
            places: vec![ABSENT; capacity],
            is_first_void: false,
        }
    }

    /// Makes the key come due no later than `deadline`. A deadline later than the one already set is
    /// not recorded: the key comes due early, and its owner then sets it again.
    pub fn set(&mut self, key: u32, deadline: Instant) {
        let place = self.places[key as usize];
        if place != ABSENT {
            if deadline < self.heap[place as usize].0 {
                self.fill_first();
                // Filling may have moved it.
                let place = self.places[key as usize] as usize;
                self.sift_up(place, (deadline, key));
            }
        } else if self.is_first_void {
            self.is_first_void = false;
            self.sift_down(0, (deadline, key));
        } else {
            let place = self.heap.len();
            self.heap.push((deadline, key));
            self.sift_up(place, (deadline, key));
        }
    }

    /// Removes the key from the queue.
    pub fn clear(&mut self, key: u32) {
        if self.places[key as usize] == ABSENT {
            return;
        }
        self.fill_first();
        let place = self.places[key as usize] as usize;
        self.places[key as usize] = ABSENT;
        let last = self.heap.pop();
        if let Some(last) = last.filter(|_| place < self.heap.len()) {
            if place > 0 && last.0 < self.heap[parent_of(place)].0 {
                self.sift_up(place, last);
            } else {
                self.sift_down(place, last);
            }
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_first_void {
            let children = self.heap.iter().take(1 + CHILDREN).skip(1);
            return children.map(|(deadline, _)| *deadline).min();
        }
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// Keys with early deadlines, the one with the earliest among them: to be asked for before they are
    /// due.
    pub fn first_keys(&self) -> impl Iterator<Item = u32> + '_ {
        let (from, count) = if self.is_first_void {
            (1, CHILDREN)
        } else {
            (0, 1)
        };
        self.heap.iter().skip(from).take(count).map(|(_, key)| *key)
    }

    /// Takes out a key whose deadline is `now` or earlier.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.fill_first();
        let (deadline, key) = *self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.places[key as usize] = ABSENT;
        self.is_first_void = true;
        Some(key)
    }

    /// Puts the last entry into the first place, if that one is void.
    fn fill_first(&mut self) {
        if !self.is_first_void {
            return;
        }
        self.is_first_void = false;
        let last = self.heap.pop();
        if let Some(last) = last.filter(|_| !self.heap.is_empty()) {
            self.sift_down(0, last);
        }
    }

    /// Puts an entry at `place`, or nearer to the first place if it is due earlier than what is there.
    fn sift_up(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = parent_of(place);
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// Puts an entry at `place`, or farther from the first place if what is there is due earlier.
    fn sift_down(&mut self, mut place: usize, entry: Entry) {
        while let Some(child) = self.earliest_child(place)
            && self.heap[child].0 < entry.0
        {
            self.put(place, self.heap[child]);
            place = child;
        }
        self.put(place, entry);
    }

    fn earliest_child(&self, place: usize) -> Option<usize> {
        let from = CHILDREN * place + 1;
        let rest = self.heap.get(from..)?;
        let Some([a, b, c, d]) = rest.first_chunk::<CHILDREN>() else {
            let places = (from..).zip(rest);
            return places
                .min_by_key(|(_, entry)| entry.0)
                .map(|(place, _)| place);
        };
        // Sums and not branches, which would be predicted wrong as often as not.
        let (one, other) = (usize::from(b.0 < a.0), 2 + usize::from(d.0 < c.0));
        let is_other = c.0.min(d.0) < a.0.min(b.0);
        Some(from + if is_other { other } else { one })
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = to_u32(place);
    }
}

const fn parent_of(place: usize) -> usize {
    (place - 1) / CHILDREN
}

/// A place in the heap as it is stored; `new` bounds it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "new() bounds the capacity below 2^32 - 1"
)]
const fn to_u32(place: usize) -> u32 {
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

    #[test]
    fn a_key_that_came_due_leaves_its_place_to_the_next_that_is_set() {
        let at = Instant::from_nanos;
        let mut queue = TimerQueue::new(3);
        for (key, nanos) in [(0, 1), (1, 2), (2, 3)] {
            queue.set(key, at(nanos));
        }
        assert_eq!(queue.pop_due(at(1)), Some(0));
        assert_eq!(queue.next_deadline(), Some(at(2)));
        assert!(queue.first_keys().any(|key| key == 1));
        queue.set(0, at(4));
        assert_eq!(queue.next_deadline(), Some(at(2)));
        let due: Vec<u32> = core::iter::from_fn(|| queue.pop_due(at(4))).collect();
        assert_eq!(due, [1, 2, 0]);
        assert_eq!(
            (queue.next_deadline(), queue.first_keys().count()),
            (None, 0)
        );
    }

    proptest! {
        /// As many keys as make the heap five high.
        #[test]
        fn keys_come_due_in_order(
            steps in proptest::collection::vec((0u32..100, 0u64..50, 0u8..6), 0..400),
        ) {
            let mut queue = TimerQueue::new(100);
            let mut twin = [None; 100];
            for (key, nanos, what) in steps {
                let slot = &mut twin[key as usize];
                if what == 0 {
                    queue.clear(key);
                    *slot = None;
                } else if what == 1 {
                    let due = queue.pop_due(Instant::from_nanos(nanos));
                    let least = twin.iter().flatten().min().copied();
                    prop_assert_eq!(due.is_some(), least.is_some_and(|least| least <= nanos));
                    if let Some(due) = due {
                        prop_assert_eq!(twin[due as usize].take(), least);
                    }
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
