//! When an origin or an object that failed is asked again: later each time, and not by all edges at once.
//!
//! The delay doubles from [`FIRST_MS`] up to [`MOST_MS`], and a random half of it is left out ("equal jitter"), so
//! that edges which failed together do not come back together, and none comes back at once. An origin that says when
//! (`Retry-After`) is believed, up to [`RETRY_AFTER_MS_MAX`]. Pure: time and randomness come in as arguments.

use crate::random::Random;

/// The first delay, milliseconds.
pub const FIRST_MS: u64 = 1_000;
/// The longest delay of this rule, milliseconds.
pub const MOST_MS: u64 = 5 * 60_000;
/// The longest `Retry-After` that is believed, milliseconds.
pub const RETRY_AFTER_MS_MAX: u64 = 60 * 60_000;

/// Failures in a row, and when the next attempt is due.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Backoff {
    failures: u32,
    due_ms: u64,
}

impl Backoff {
    /// Takes a failure; `retry_after_ms` is what the origin said, if it did. Returns the delay, milliseconds.
    pub fn failed(&mut self, now_ms: u64, retry_after_ms: Option<u64>, random: &mut Random) -> u64 {
        let told = retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MS_MAX);
        // Failures of requests that were in flight together are one; the latest moment that the origin says counts.
        if self.failures > 0 && now_ms < self.due_ms {
            self.due_ms = self.due_ms.max(now_ms + told);
            return self.due_ms - now_ms;
        }
        let longest = FIRST_MS
            .checked_shl(self.failures.min(32))
            .map_or(MOST_MS, |delay| delay.min(MOST_MS));
        let delay = longest / 2 + random.below(longest / 2 + 1);
        self.failures = self.failures.saturating_add(1);
        self.due_ms = self.due_ms.max(now_ms + delay.max(told));
        self.due_ms - now_ms
    }

    /// Takes a success of an attempt that began then: whether it ends the failures. One that was in flight when another
    /// failed does not.
    pub fn succeeded(&mut self, began_ms: u64) -> bool {
        began_ms >= self.due_ms && std::mem::take(self).failures > 0
    }

    /// Failures in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the next attempt is due, milliseconds; 0 before any failure.
    #[must_use]
    pub const fn due_ms(&self) -> u64 {
        self.due_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_half_of_each_is_random() {
        let mut random = Random::new(1);
        let mut backoff = Backoff::default();
        let mut now_ms = 0;
        for failure in 0..40_u32 {
            let longest = (FIRST_MS << failure.min(20)).min(MOST_MS);
            let delay = backoff.failed(now_ms, None, &mut random);
            assert!(
                (longest / 2..=longest).contains(&delay),
                "{failure}: {delay}"
            );
            now_ms = backoff.due_ms();
        }
        assert_eq!(backoff.failures(), 40);
        assert!(!backoff.succeeded(now_ms - 1));
        assert_eq!(backoff.failures(), 40);
        assert!(backoff.succeeded(now_ms));
        assert!(!backoff.succeeded(now_ms));
        assert_eq!(backoff.due_ms(), 0);
    }

    #[test]
    fn two_edges_that_failed_together_do_not_come_back_together() {
        let delay = |seed| Backoff::default().failed(0, None, &mut Random::new(seed));
        assert_ne!(delay(1), delay(2));
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let mut random = Random::new(1);
        let mut backoff = Backoff::default();
        let delay = backoff.failed(0, None, &mut random);
        assert_eq!(backoff.failed(1, None, &mut random), delay - 1);
        assert_eq!(backoff.failures(), 1);
        backoff.failed(delay, None, &mut random);
        assert_eq!(backoff.failures(), 2);
    }

    #[test]
    fn requests_that_fail_together_are_one_failure_also_if_the_origin_says_when() {
        let mut random = Random::new(1);
        let mut backoff = Backoff::default();
        for now_ms in 0..32 {
            backoff.failed(now_ms, Some(1_000), &mut random);
            assert_eq!(backoff.failures(), 1);
            assert_eq!(backoff.due_ms(), now_ms + 1_000);
        }
        assert_eq!(backoff.failed(40, Some(30_000), &mut random), 30_000);
        assert_eq!(
            backoff.failed(50, Some(0), &mut random),
            29_990,
            "not sooner"
        );
        assert_eq!(backoff.failures(), 1);
    }

    #[test]
    fn what_the_origin_says_is_believed_up_to_an_hour() {
        let mut random = Random::new(1);
        for (told, most) in [(7_200_000, RETRY_AFTER_MS_MAX), (30_000, 30_000)] {
            let delay = Backoff::default().failed(5, Some(told), &mut random);
            assert_eq!(delay, most);
        }
        // Less than the rule's own delay does not shorten it.
        assert!(Backoff::default().failed(5, Some(0), &mut random) >= FIRST_MS / 2);
    }
}
