//! Deadlines of many connections: an indexed binary heap, one entry per connection.
//!
//! A timing wheel would make `set` O(1), but most calls of `set` change nothing here: a busy
//! connection moves its deadline *later* with each ACK, and a later deadline is not recorded; the
//! key comes due at the old one and is set again then. This costs a few heap operations for each
//! connection and RTO; deadlines are exact, and the size is known at start.

use clock::Instant;

/// Marks a key that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// The queue. Keys are dense: `0..capacity`.
#[derive(Debug)]
pub struct TimerQueue {
    heap: Vec<(Instant, u32)>,
    /// The position of each key in `heap`.
    positions: Vec<u32>,
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
            positions: vec![ABSENT; capacity],
        }
    }

    /// Makes the key come due no later than `deadline`. A deadline later than the one already set is
    /// not recorded: the key comes due early, and its owner then sets it again.
    pub fn set(&mut self, key: u32, deadline: Instant) {
        let position = self.positions[key as usize];
        if position == ABSENT {
            let position = self.heap.len();
            self.heap.push((deadline, key));
            self.positions[key as usize] = to_u32(position);
            self.sift_up(position);
        } else if deadline < self.heap[position as usize].0 {
            self.heap[position as usize].0 = deadline;
            self.sift_up(position as usize);
        }
    }

    /// Removes the key from the queue.
    pub fn clear(&mut self, key: u32) {
        let position = self.positions[key as usize];
        if position != ABSENT {
            self.remove(position as usize);
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// The key with the earliest deadline, and two with early ones: to be asked for before they are due.
    pub fn first_keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.heap.iter().take(3).map(|(_, key)| *key)
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

    fn remove(&mut self, position: usize) {
        let (_, key) = self.heap.swap_remove(position);
        self.positions[key as usize] = ABSENT;
        if let Some((_, moved)) = self.heap.get(position) {
            self.positions[*moved as usize] = to_u32(position);
            let position = self.sift_up(position);
            self.sift_down(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) -> usize {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].0 <= self.heap[position].0 {
                break;
            }
            self.swap(position, parent);
            position = parent;
        }
        position
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let mut least = position;
            for child in [2 * position + 1, 2 * position + 2] {
                if child < self.heap.len() && self.heap[child].0 < self.heap[least].0 {
                    least = child;
                }
            }
            if least == position {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.positions[self.heap[one].1 as usize] = to_u32(one);
        self.positions[self.heap[other].1 as usize] = to_u32(other);
    }
}

/// A position in the heap as it is stored; `new` bounds it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "new() bounds the capacity below 2^32 - 1"
)]
const fn to_u32(position: usize) -> u32 {
    position as u32
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
