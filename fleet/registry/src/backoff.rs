//! How long to wait before asking again: twice as long each time, with jitter, up to a limit.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// The waits between attempts that fail.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// An attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// How long to wait now: half to all of the time whose double is next, so that a thousand clients of a registry
    /// that comes back do not come at once.
    pub(crate) fn wait(&mut self) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(LONGEST);
        let random = u32::try_from(RandomState::new().hash_one(0_u8) % 1024).unwrap_or_default();
        longest / 2 + longest / 2 * random / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_begin_anew() {
        let mut backoff = Backoff::new();
        let mut longest = FIRST;
        for _ in 0..20 {
            let wait = backoff.wait();
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
            longest = (longest * 2).min(LONGEST);
        }
        assert_eq!(longest, LONGEST);
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }
}
