//! Whether the origin fails, or one object of it.
//!
//! An origin that cannot be reached, or says that it is asked too fast, fails as a whole. One that refuses or breaks at
//! objects does if [`FAILURES_IN_ROW_MAX`] of them fail one after the other: a bucket may have objects that are archived
//! or belong to somebody else, and an origin that is busy refuses one request of many. An object that has failed before
//! says nothing new. While the origin fails, every failure is the origin's. Pure: time and randomness come in as arguments.

use crate::backoff::Backoff;
use crate::fault::{Fault, Kind};
use crate::random::Random;

/// Objects that fail in a row, none for the second time, after which the origin fails.
pub const FAILURES_IN_ROW_MAX: u32 = 16;

/// The origin, as far as requests have told.
#[derive(Debug, Default)]
pub struct OriginHealth {
    backoff: Backoff,
    failures_in_row: u32,
}

impl OriginHealth {
    /// Takes a success of what began then: whether it ended a failure of the origin.
    pub fn succeeded(&mut self, began_ms: u64) -> bool {
        self.failures_in_row = 0;
        self.backoff.succeeded(began_ms)
    }

    /// Takes a failure of an object: how long to wait, milliseconds, if it is the origin's. Of an object that can have no name
    /// here the origin was not asked.
    pub fn failed(
        &mut self,
        now_ms: u64,
        fault: &Fault,
        has_failed_before: bool,
        random: &mut Random,
    ) -> Option<u64> {
        if fault.kind == Kind::Name {
            return None;
        }
        self.failures_in_row += u32::from(!has_failed_before);
        let is_of_origin = fault.kind.is_of_origin()
            || self.is_failing()
            || self.failures_in_row >= FAILURES_IN_ROW_MAX;
        is_of_origin.then(|| self.backoff.failed(now_ms, fault.retry_after_ms, random))
    }

    /// Takes a failure of a listing, which is always the origin's: how long to wait, milliseconds.
    pub fn listing_failed(&mut self, now_ms: u64, fault: &Fault, random: &mut Random) -> u64 {
        self.backoff.failed(now_ms, fault.retry_after_ms, random)
    }

    /// Whether it fails.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.backoff.failures() > 0
    }

    /// Failures in a row, each after a wait.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.backoff.failures()
    }

    /// When it is asked again, milliseconds; 0 if it does not fail.
    #[must_use]
    pub const fn due_ms(&self) -> u64 {
        self.backoff.due_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails so often with this kind, each time another object, and says after how many it was the origin's.
    fn first_of_origin(kind: Kind) -> Option<u32> {
        let (mut health, mut random) = (OriginHealth::default(), Random::new(1));
        let fault = Fault::new(kind, "");
        (1..100).find(|_| health.failed(0, &fault, false, &mut random).is_some())
    }

    #[test]
    fn an_origin_fails_at_once_or_by_many_objects_in_a_row() {
        for kind in Kind::ALL {
            let expected = match kind {
                Kind::Connect | Kind::Throttled => Some(1),
                Kind::Name => None,
                _ => Some(FAILURES_IN_ROW_MAX),
            };
            assert_eq!(first_of_origin(kind), expected, "{kind:?}");
        }
    }

    #[test]
    fn objects_that_come_or_have_failed_before_are_no_failure_of_the_origin() {
        let (mut health, mut random) = (OriginHealth::default(), Random::new(1));
        let fault = Fault::new(Kind::Denied, "");
        for _ in 0..10 {
            for _ in 1..FAILURES_IN_ROW_MAX {
                assert_eq!(health.failed(0, &fault, false, &mut random), None);
            }
            for _ in 0..100 {
                assert_eq!(health.failed(0, &fault, true, &mut random), None);
            }
            assert!(!health.succeeded(0));
        }
        assert!(!health.is_failing());
    }

    #[test]
    fn while_the_origin_fails_each_failure_is_the_origins() {
        let (mut health, mut random) = (OriginHealth::default(), Random::new(1));
        let connect = Fault::new(Kind::Connect, "");
        health.failed(0, &connect, false, &mut random);
        for failures in 2..10 {
            let now_ms = health.due_ms();
            let broken = Fault::new(Kind::Checksum, "");
            assert!(health.failed(now_ms, &broken, true, &mut random).is_some());
            assert_eq!(health.failures(), failures);
        }
        let began_ms = health.due_ms();
        assert!(health.succeeded(began_ms));
        assert!(!health.is_failing());
    }

    #[test]
    fn what_was_in_flight_when_it_failed_and_comes_says_nothing() {
        let (mut health, mut random) = (OriginHealth::default(), Random::new(1));
        let throttled = Fault {
            retry_after_ms: Some(30_000),
            ..Fault::new(Kind::Throttled, "")
        };
        assert_eq!(
            health.failed(5, &throttled, false, &mut random),
            Some(30_000)
        );
        for began_ms in [0, 5, 30_004] {
            assert!(!health.succeeded(began_ms), "{began_ms}");
            assert_eq!(health.due_ms(), 30_005);
        }
        assert!(health.succeeded(30_005));
        assert_eq!(health.due_ms(), 0);
    }
}
