//! The shortest round-trip time of the clients that are there now: what a delay of the server's own is to be
//! small beside.
//!
//! A time is kept for [`SPAN`] to twice that, so that a near client that has gone does not count for ever. It
//! refuses nothing. Bounded: two times.

use clock::{Duration, Instant};

/// How long a time counts at least. A client that asks for something every few seconds is heard within
/// its reply. `[guess]`
const SPAN: Duration = Duration::from_secs(1);

/// The time of a path that has lost counts as one in so many parts of itself. A delay makes a burst of what is acknowledged
/// meanwhile, which a small buffer does not take.
const LOSSY_PARTS: u32 = 8;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortestRtt {
    /// When the present span began.
    since: Instant,
    /// The shortest of the present span, and of the one before.
    present: Option<Duration>,
    before: Option<Duration>,
}

impl ShortestRtt {
    pub(crate) const fn new() -> Self {
        Self {
            since: Instant::ZERO,
            present: None,
            before: None,
        }
    }

    /// A client with this round-trip time was heard. `has_lost`: its bursts are small, after a loss.
    pub(crate) fn note(&mut self, now: Instant, rtt: Duration, has_lost: bool) {
        self.turn(now);
        let rtt = if has_lost { rtt / LOSSY_PARTS } else { rtt };
        self.present = Some(self.present.map_or(rtt, |shortest| shortest.min(rtt)));
    }

    /// The shortest time that counts; `None` if nobody was heard.
    pub(crate) fn get(&mut self, now: Instant) -> Option<Duration> {
        self.turn(now);
        match (self.present, self.before) {
            (Some(present), Some(before)) => Some(present.min(before)),
            (some, None) | (None, some) => some,
        }
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.since(self.since);
        if passed < SPAN {
            return;
        }
        let present = self.present.take();
        self.before = present.filter(|_| passed < SPAN + SPAN);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::{SPAN, ShortestRtt};
    use clock::{Duration, Instant};

    const NEAR: Duration = Duration::from_millis(1);
    const FAR: Duration = Duration::from_millis(40);

    #[test]
    fn the_shortest_counts_until_the_span_behind_its_own_is_over() {
        let start = Instant::from_millis(5_000);
        let mut shortest = ShortestRtt::new();
        assert_eq!(shortest.get(start), None);
        shortest.note(start, FAR, false);
        shortest.note(start, NEAR, false);
        shortest.note(start, FAR, false);
        assert_eq!(shortest.get(start), Some(NEAR));
        let next = start + SPAN;
        shortest.note(next, FAR, false);
        assert_eq!(shortest.get(next), Some(NEAR));
        let last = next + (SPAN - Duration::from_nanos(1));
        assert_eq!(shortest.get(last), Some(NEAR));
        assert_eq!(shortest.get(next + SPAN), Some(FAR));
        assert_eq!(shortest.get(next + SPAN + SPAN), None);
    }

    #[test]
    fn what_was_heard_before_a_silence_does_not_count() {
        let start = Instant::from_millis(5_000);
        let mut shortest = ShortestRtt::new();
        shortest.note(start, NEAR, false);
        assert_eq!(shortest.get(start + SPAN + SPAN), None);
    }

    #[test]
    fn an_eighth_of_the_time_of_a_path_that_has_lost_counts() {
        let start = Instant::from_millis(5_000);
        let lossy = |near| {
            let mut shortest = ShortestRtt::new();
            shortest.note(start, near, false);
            shortest.note(start, FAR, true);
            shortest.get(start)
        };
        let counts = FAR / 8;
        assert_eq!(lossy(FAR), Some(counts));
        assert_eq!(lossy(counts), Some(counts));
        assert_eq!(lossy(NEAR), Some(NEAR));
    }
}
