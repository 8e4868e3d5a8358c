//! When connections may be opened and may ask: at a rate, all held until every one stands, or each at
//! its own even distance.
//!
//! Without a period a connection asks as soon as its reply is complete. With one it asks every so many
//! seconds, as a player that fetches a chunk of so many seconds; the first moments are spread evenly
//! over one period. A reply that takes longer than the period is late: the next is asked for at once,
//! and the moments missed are not made up for. No clock. It refuses nothing. Bounded by one alarm and
//! one moment for each connection.

use clock::{Duration, Instant};

use crate::schedule::Schedule;

/// So many a second, evenly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    interval: Duration,
    /// How far behind it may be to catch up.
    catch_up: Duration,
    /// `None`: it has not begun.
    next_at: Option<Instant>,
}

impl Rate {
    /// `per_second` is above 0.
    pub(crate) fn new(per_second: u32, catch_up: Duration) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            catch_up,
            next_at: None,
        }
    }

    /// Whether it is time for one more, which is counted then.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let next_at = self.next_at.unwrap_or(now);
        if now < next_at {
            return false;
        }
        let is_lost = now.since(next_at) > self.catch_up;
        self.next_at = Some(if is_lost { now } else { next_at } + self.interval);
        true
    }
}

/// Whose turn it is to ask.
#[derive(Debug)]
pub(crate) struct Pace {
    every: Option<Duration>,
    /// Connections of lower numbers may ask.
    released: u32,
    /// When each may ask next; empty without a period.
    due: Vec<Instant>,
    alarms: Schedule<u32>,
}

impl Pace {
    /// Holds all from number `first` on, until they are released.
    pub(crate) fn new(every: Option<Duration>, first: u32) -> Self {
        Self {
            every,
            released: first,
            due: Vec::new(),
            alarms: Schedule::default(),
        }
    }

    /// Lets one more connection of `total` ask at `now`, or at its moment of the period that begins:
    /// its number. `None` if all may ask.
    pub(crate) fn release(&mut self, now: Instant, total: u32) -> Option<u32> {
        if self.released >= total {
            return None;
        }
        let released = self.released;
        self.released += 1;
        if let Some(every) = self.every {
            if self.due.is_empty() {
                let part = every / total;
                self.due.extend((0..total).map(|index| now + part * index));
            }
            let due = self.due.get(released as usize).copied();
            self.alarms.push(due.unwrap_or(now), released);
        }
        Some(released)
    }

    /// Whether all of `total` connections may ask.
    pub(crate) const fn has_released(&self, total: u32) -> bool {
        self.released >= total
    }

    /// How long nothing may be asked although all is well.
    pub(crate) fn idle_max(&self) -> Duration {
        self.every.unwrap_or(Duration::ZERO)
    }

    /// Whether a connection may ask; if so, its next moment is set.
    pub(crate) fn may_ask(&mut self, connection: u32, now: Instant) -> bool {
        if connection >= self.released {
            return false;
        }
        let Some((every, due)) = self.every.zip(self.due.get_mut(connection as usize)) else {
            return true;
        };
        if now < *due {
            self.alarms.push(*due, connection);
            return false;
        }
        *due = (*due + every).max(now);
        true
    }

    /// The next connection whose moment has come.
    pub(crate) fn take_alarm(&mut self, now: Instant) -> Option<u32> {
        self.alarms.take_due(now)
    }

    /// When the next moment comes.
    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.next_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_rate_is_kept_and_a_long_pause_is_not_made_up_for() {
        let mut rate = Rate::new(1000, Duration::from_millis(10));
        let mut taken = |millis| std::iter::from_fn(|| rate.take(at(millis)).then_some(())).count();
        assert_eq!(taken(0), 1);
        assert_eq!(taken(9), 9);
        assert_eq!(taken(10_000), 1, "not 9,991");
        assert_eq!(taken(10_000), 0);
    }

    #[test]
    fn connections_are_held_until_they_are_released() {
        let mut pace = Pace::new(None, 0);
        assert!(!pace.may_ask(0, at(1)));
        assert!(!pace.has_released(2));
        assert_eq!(pace.release(at(1), 2), Some(0));
        assert_eq!(
            (pace.may_ask(0, at(1)), pace.may_ask(1, at(1))),
            (true, false)
        );
        assert_eq!(pace.release(at(1), 2), Some(1));
        assert_eq!(pace.release(at(1), 2), None);
        assert!(pace.has_released(2) && pace.take_alarm(at(9)).is_none());
        let mut later = Pace::new(None, 7);
        assert_eq!(later.release(at(1), 8), Some(7));
    }

    #[test]
    fn viewers_ask_once_a_period_spread_over_it() {
        let mut pace = Pace::new(Some(Duration::from_millis(1000)), 0);
        while pace.release(at(0), 4).is_some() {}
        let mut asked = Vec::new();
        for now in 0..2000 {
            while let Some(index) = pace.take_alarm(at(now)) {
                assert!(pace.may_ask(index, at(now)));
                asked.push((now, index));
                // The reply is there at once.
                assert!(!pace.may_ask(index, at(now)));
            }
        }
        let expected = [(0, 0), (250, 1), (500, 2), (750, 3)];
        let second = expected.map(|(now, index)| (now + 1000, index));
        assert_eq!(asked, [expected, second].concat());
    }

    #[test]
    fn a_reply_that_takes_longer_than_a_period_makes_the_next_request_late() {
        let mut pace = Pace::new(Some(Duration::from_millis(1000)), 0);
        while pace.release(at(0), 1).is_some() {}
        assert!(pace.may_ask(0, at(0)));
        assert!(pace.may_ask(0, at(1000)), "just in time");
        assert!(pace.may_ask(0, at(2001)));
        assert!(pace.may_ask(0, at(5000)));
        assert!(pace.may_ask(0, at(5000)));
        assert!(!pace.may_ask(0, at(5001)), "one was missed for good");
    }
}
