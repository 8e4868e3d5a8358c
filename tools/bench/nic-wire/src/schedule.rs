//! What is due when: items leave in the order of their moments, equal ones in the order they came.
//!
//! It holds what clients send for their distance, and received frames that others overtake. No
//! clock; it refuses nothing. Bounded by what is put in.

use std::collections::BTreeMap;

use clock::{Duration, Instant};
use testbed::random::Random;

/// Items by the moment they are due.
#[derive(Debug)]
pub struct Schedule<T> {
    /// By moment, and by the order they came in.
    items: BTreeMap<(Instant, u64), T>,
    count: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<T> Schedule<T> {
    /// Adds an item.
    pub fn push(&mut self, due: Instant, item: T) {
        self.items.insert((due, self.count), item);
        self.count += 1;
    }

    /// Takes the first item if it is due.
    pub fn take_due(&mut self, now: Instant) -> Option<T> {
        let first = self.items.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the first item is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.items.first_key_value().map(|((due, _), _)| *due)
    }
}

/// The constant distance of each connection: evenly spread over a range, by its number and a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
    /// Another seed, other distances.
    pub seed: u64,
}

impl Distances {
    /// The round trip of a connection.
    #[must_use]
    pub fn of(&self, connection: u32) -> Duration {
        let spread = self.most.saturating_sub(self.least).as_nanos();
        let spread = u64::try_from(spread).unwrap_or(u64::MAX);
        if spread == 0 {
            return self.least;
        }
        let mixed = u128::from(Random::new(self.seed ^ u64::from(connection)).next());
        let share = (mixed * u128::from(spread)) >> 64;
        self.least + Duration::from_nanos(u64::try_from(share).unwrap_or(spread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_when_due_and_ties_in_the_order_they_came() {
        let mut schedule = Schedule::default();
        for (due, item) in [(5, 'b'), (3, 'a'), (5, 'c'), (9, 'd')] {
            schedule.push(Instant::from_nanos(due), item);
        }
        assert_eq!(schedule.take_due(Instant::from_nanos(2)), None);
        let mut left = Vec::new();
        while let Some(item) = schedule.take_due(Instant::from_nanos(5)) {
            left.push(item);
        }
        assert_eq!(left, ['a', 'b', 'c']);
        assert_eq!(schedule.next_due(), Some(Instant::from_nanos(9)));
    }

    #[test]
    fn distances_stay_in_their_range_and_fill_it() {
        let (least, most) = (Duration::from_millis(10), Duration::from_millis(40));
        let distances = Distances {
            least,
            most,
            seed: 1,
        };
        let all: Vec<_> = (0..1000).map(|index| distances.of(index)).collect();
        assert!(all.iter().all(|it| (least..=most).contains(it)));
        let sum: Duration = all.iter().sum();
        assert!((24..=26).contains(&(sum / 1000).as_millis()), "{sum:?}");
        let same = Distances {
            most: least,
            ..distances
        };
        assert_eq!(same.of(77), least);
    }
}
