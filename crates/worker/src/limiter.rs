//! Rate limit for log lines.
//!
//! A repeated event is logged once in [`LINE_EVERY`], with the number of repetitions since the last
//! line. It refuses to allocate and to read a clock. Bound: two words per limiter.

use clock::{Duration, Instant};

/// Time between two lines about the same thing.
pub const LINE_EVERY: Duration = Duration::from_secs(10);

/// Decides about one kind of line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limiter {
    told_at: Option<Instant>,
    /// How often it happened since then without a line.
    untold: u64,
}

impl Limiter {
    /// Records that it happened `count` times, at least once. `Some` if the last of them is to be
    /// logged now, with the number of earlier ones without a line.
    pub fn admit(&mut self, now: Instant, count: u64) -> Option<u64> {
        if self.told_at.is_some_and(|told| now < told + LINE_EVERY) {
            self.untold += count;
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold) + count.saturating_sub(1))
    }

    /// The number of events without a line, when they are due to be logged without a new event.
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.untold > 0 && self.told_at.is_some_and(|told| now >= told + LINE_EVERY);
        is_due.then(|| {
            self.told_at = Some(now);
            std::mem::take(&mut self.untold)
        })
    }
}

/// The suffix of a line that stands for several events.
#[must_use]
pub fn and_more(before: u64) -> String {
    match before {
        0 => String::new(),
        before => format!(" (and {before} more like it before)"),
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE_EVERY, Limiter, and_more};
    use clock::{Duration, Instant};

    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn the_first_event_is_logged_and_the_next_after_the_interval() {
        let mut limiter = Limiter::default();
        let start = Instant::from_millis(5);
        assert_eq!(limiter.admit(start, 1), Some(0));
        assert_eq!(limiter.admit(start, 1), None);
        assert_eq!(limiter.admit(start + (LINE_EVERY - NANO), 4), None);
        assert_eq!(limiter.admit(start + LINE_EVERY, 3), Some(7));
        assert_eq!(limiter.admit(start + LINE_EVERY, 1), None);
    }

    #[test]
    fn events_without_a_line_are_logged_after_the_interval() {
        let mut limiter = Limiter::default();
        let start = Instant::ZERO;
        assert_eq!(limiter.poll(start), None);
        limiter.admit(start, 1);
        assert_eq!(limiter.poll(start + LINE_EVERY), None, "nothing is untold");
        limiter.admit(start, 1);
        limiter.admit(start, 1);
        assert_eq!(limiter.poll(start + (LINE_EVERY - NANO)), None);
        assert_eq!(limiter.poll(start + LINE_EVERY), Some(2));
        assert_eq!(limiter.poll(start + LINE_EVERY + LINE_EVERY), None);
        assert_eq!(
            limiter.admit(start + LINE_EVERY, 1),
            None,
            "that was a line too"
        );
    }

    #[test]
    fn a_line_for_one_event_has_no_number() {
        assert_eq!(and_more(0), "");
        assert_eq!(and_more(3), " (and 3 more like it before)");
    }
}
