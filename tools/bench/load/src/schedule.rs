//! What is asked next, and when: a seeded shuffle of the URLs, and a player's pace.
//!
//! No clock and no I/O: moments come in as arguments. It refuses to ask for the same URL twice
//! before all others had their turn: each pass has the order of the first. Bounded by: four bytes for
//! each URL.

use std::time::Duration;

use crate::random::Random;

/// How much is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Without end: time ends the run.
    Endless,
    /// So many requests.
    Requests(u64),
    /// Each URL once.
    Once,
}

/// The order URLs are asked in, apart for each server: a connection leads to one.
#[derive(Debug)]
pub(crate) struct Schedule {
    orders: Vec<Order>,
    amount: Amount,
}

#[derive(Debug)]
struct Order {
    urls: Vec<u32>,
    next: usize,
}

impl Schedule {
    /// Shuffles the URLs of each server.
    pub(crate) fn new(servers: Vec<Vec<u32>>, amount: Amount, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let orders = servers
            .into_iter()
            .map(|mut urls| {
                random.shuffle(&mut urls);
                Order { urls, next: 0 }
            })
            .collect();
        Self { orders, amount }
    }

    /// The URL to ask that server for next; none when all has been asked.
    pub(crate) fn next(&mut self, server: usize) -> Option<u32> {
        let order = self.orders.get_mut(server)?;
        if order.next == order.urls.len() {
            if self.amount == Amount::Once {
                return None;
            }
            order.next = 0;
        }
        let url = *order.urls.get(order.next)?;
        if let Amount::Requests(left) = &mut self.amount {
            *left = left.checked_sub(1)?;
        }
        order.next += 1;
        Some(url)
    }

    /// Whether that server is not to be asked any more.
    pub(crate) fn is_exhausted(&self, server: usize) -> bool {
        match self.amount {
            Amount::Endless => false,
            Amount::Requests(left) => left == 0,
            Amount::Once => self
                .orders
                .get(server)
                .is_none_or(|order| order.next == order.urls.len()),
        }
    }

    /// Whether nobody is to be asked any more.
    pub(crate) fn is_over(&self) -> bool {
        (0..self.orders.len()).all(|server| self.is_exhausted(server))
    }
}

/// A player's pace: a chunk each `every`. What comes later than that has let the player run dry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) every: Duration,
}

impl Pace {
    /// When to ask for the next chunk, after one that was due to be asked at `due` and was
    /// complete at `now`.
    pub(crate) fn next_due(self, due: Duration, now: Duration) -> Duration {
        let next = due + self.every;
        // A player that ran dry starts counting anew: it does not ask for all it missed at once.
        next.max(now)
    }

    /// By how much a chunk that took so long was late; none when it was in time.
    pub(crate) fn lateness(self, took: Duration) -> Option<Duration> {
        took.checked_sub(self.every).filter(|late| !late.is_zero())
    }
}

/// Least wait before a connection that failed is tried again.
const BACK_OFF_MIN: Duration = Duration::from_millis(20);

/// Doublings of it: the longest wait is 64 times as long.
const BACK_OFF_DOUBLINGS_MAX: u32 = 6;

/// The wait after so many failures (above 0) in a row: doubled each time, and half of it random,
/// so that connections reset together do not come back together.
pub(crate) fn back_off(failures: u32, random: &mut Random) -> Duration {
    let doublings = failures.saturating_sub(1).min(BACK_OFF_DOUBLINGS_MAX);
    let whole = BACK_OFF_MIN * 2_u32.pow(doublings);
    whole / 2 + random.up_to(whole / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(schedule: &mut Schedule, count: usize) -> Vec<u32> {
        (0..count).filter_map(|_| schedule.next(0)).collect()
    }

    #[test]
    fn once_asks_each_url_once_and_each_server_for_its_own() {
        let mut schedule = Schedule::new(vec![(0..100).collect(), vec![100]], Amount::Once, 1);
        assert_eq!(schedule.next(1), Some(100));
        assert_eq!(schedule.next(1), None);
        assert!(schedule.is_exhausted(1) && !schedule.is_over());
        let mut asked = pass(&mut schedule, 200);
        assert_ne!(asked, (0..100).collect::<Vec<_>>(), "shuffled");
        asked.sort_unstable();
        assert_eq!(asked, (0..100).collect::<Vec<_>>());
        assert!(schedule.is_over());
        assert_eq!(schedule.next(2), None, "no such server");
    }

    #[test]
    fn a_seed_names_an_order_and_each_pass_keeps_it() {
        let new = |seed| Schedule::new(vec![(0..50).collect()], Amount::Endless, seed);
        let (mut one, mut same, mut other) = (new(1), new(1), new(2));
        let first = pass(&mut one, 50);
        assert_eq!(first, pass(&mut same, 50));
        assert_ne!(first, pass(&mut other, 50));
        assert_eq!(first, pass(&mut one, 50), "the second pass");
        assert!(!one.is_over());
    }

    #[test]
    fn requests_end_at_their_number() {
        let mut schedule = Schedule::new(vec![vec![7]], Amount::Requests(3), 1);
        assert_eq!(pass(&mut schedule, 10), [7, 7, 7]);
        assert!(schedule.is_over());
    }

    #[test]
    fn a_pace_is_kept_and_a_late_chunk_is_not_caught_up_with() {
        let second = Duration::from_secs(1);
        let pace = Pace { every: 4 * second };
        assert_eq!(pace.next_due(10 * second, 11 * second), 14 * second);
        assert_eq!(pace.next_due(10 * second, 14 * second), 14 * second);
        assert_eq!(pace.next_due(10 * second, 23 * second), 23 * second);
        assert_eq!(pace.lateness(4 * second), None);
        let late = 4 * second + Duration::from_nanos(1);
        assert_eq!(pace.lateness(late), Some(Duration::from_nanos(1)));
    }

    #[test]
    fn back_off_doubles_up_to_its_limit() {
        let mut random = Random::new(1);
        for (failures, doublings) in [(1, 0), (2, 1), (7, 6), (8, 6), (u32::MAX, 6)] {
            let whole = BACK_OFF_MIN * 2_u32.pow(doublings);
            let wait = back_off(failures, &mut random);
            assert!(wait >= whole / 2 && wait <= whole, "{failures}: {wait:?}");
        }
    }
}
