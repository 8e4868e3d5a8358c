//! Limits of the answers that anybody can provoke: challenge ACKs (RFC 5961 s7) and resets.
//!
//! Each second permits a number of answers that nobody can predict. A fixed number, shared by all
//! connections, is a side channel: an attacker who sends as many segments as use it up learns from the
//! answers that are missing whether a forged segment took one (Cao et al., *Off-Path TCP Exploits:
//! Global Rate Limit Considered Dangerous*, USENIX Security 2016).
//!
//! Bounded: one counter. Refused: a limit for each peer, which would need a table that forged addresses
//! fill.

use core::hash::Hasher;

use clock::Instant;
use siphasher::sip::SipHasher13;

/// Which answers are limited. Each has allowances of its own: what one of them discloses says nothing
/// of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// Challenge ACKs.
    Challenges,
    /// Resets for segments that belong to no connection.
    Resets,
}

/// The limit of one kind of answers.
#[derive(Clone)]
pub struct AnswerLimit {
    key: [u8; 16],
    answers: Answers,
    per_second: u32,
    /// The second that is counted, and the answers that it still permits.
    second: Option<(u64, u32)>,
}

impl AnswerLimit {
    /// Permits `per_second` answers in a second on average: from half as many to one and a half times as
    /// many, less one. `key` is secret and new at each start. It may be that of [`crate::Listener`]: what
    /// is hashed has other lengths.
    ///
    /// # Panics
    /// If half of `per_second` is nothing.
    #[must_use]
    pub const fn new(key: [u8; 16], answers: Answers, per_second: u32) -> Self {
        assert!(per_second > 1, "half of a limit permits something");
        Self {
            key,
            answers,
            per_second,
            second: None,
        }
    }

    /// From now on `per_second` answers are permitted in a second on average, and none counts of those that
    /// this second has had.
    ///
    /// # Panics
    /// If half of `per_second` is nothing.
    pub const fn set_per_second(&mut self, per_second: u32) {
        *self = Self::new(self.key, self.answers, per_second);
    }

    /// Whether another answer may be sent now, which is counted. `now` never decreases.
    pub fn take(&mut self, now: Instant) -> bool {
        let second = now.as_millis() / 1000;
        let mut left = match self.second {
            Some((counted, left)) if counted == second => left,
            _ => self.allowance(second),
        };
        let is_permitted = left > 0;
        left = left.saturating_sub(1);
        self.second = Some((second, left));
        is_permitted
    }

    /// How many answers a second permits.
    fn allowance(&self, second: u64) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u8(match self.answers {
            Answers::Challenges => 1,
            Answers::Resets => 2,
        });
        hasher.write_u64(second);
        let random = hasher.finish() % u64::from(self.per_second);
        let random = u32::try_from(random).expect("invariant: less than a u32");
        self.per_second / 2 + random
    }
}

impl core::fmt::Debug for AnswerLimit {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret, and so is what is left.
        formatter
            .debug_struct("AnswerLimit")
            .field("answers", &self.answers)
            .field("per_second", &self.per_second)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{AnswerLimit, Answers};

    const PER_SECOND: u32 = 100;

    fn limit(answers: Answers) -> AnswerLimit {
        AnswerLimit::new([7; 16], answers, PER_SECOND)
    }

    /// The answers of each of some seconds.
    fn permitted(mut limit: AnswerLimit, seconds: u64) -> Vec<u32> {
        let count = |second| {
            let now = Instant::from_millis(second * 1000 + 999);
            (0..10 * PER_SECOND)
                .map(|_| u32::from(limit.take(now)))
                .sum()
        };
        (0..seconds).map(count).collect()
    }

    #[test]
    fn each_second_permits_its_allowance_and_not_one_more() {
        let mut limit = limit(Answers::Challenges);
        let second = Instant::from_millis(5000);
        let most = limit.allowance(5);
        for _ in 0..most {
            assert!(limit.take(second));
        }
        let last = second + Duration::from_nanos(999_999_999);
        assert!(!limit.take(second) && !limit.take(last));
        assert!(limit.take(last + Duration::from_nanos(1)));
    }

    #[test]
    fn allowances_lie_between_half_and_one_and_a_half_and_differ() {
        let counts = permitted(limit(Answers::Resets), 2000);
        assert_eq!(counts.iter().min(), Some(&(PER_SECOND / 2)));
        assert_eq!(counts.iter().max(), Some(&(PER_SECOND * 3 / 2 - 1)));
        let mean = counts.iter().sum::<u32>() / 2000;
        assert!((95..=105).contains(&mean), "{mean}");
    }

    #[test]
    fn allowances_depend_on_key_and_kind() {
        let challenges = permitted(limit(Answers::Challenges), 20);
        assert_ne!(challenges, permitted(limit(Answers::Resets), 20));
        let other_key = AnswerLimit::new([8; 16], Answers::Challenges, PER_SECOND);
        assert_ne!(challenges, permitted(other_key, 20));
    }

    #[test]
    fn the_least_limit_is_two() {
        let two = permitted(AnswerLimit::new([7; 16], Answers::Resets, 2), 100);
        assert!(two.iter().all(|count| [1, 2].contains(count)));
        let one = std::panic::catch_unwind(|| AnswerLimit::new([7; 16], Answers::Resets, 1));
        assert!(one.is_err());
    }
}
