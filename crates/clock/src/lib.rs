//! Time as the data path sees it: nanoseconds since the worker started.
//!
//! It refuses to read a clock. `server` reads one once per loop and hands the value down as an
//! argument; the simulator hands down a virtual one. A `u64` of nanoseconds lasts 584 years.
//!
//! [`UnixTime`] is for what people and file systems date: replies and files. It is no [`Instant`],
//! because the wall clock may be set at any time.

#![no_std]
#![forbid(unsafe_code)]

use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A moment: nanoseconds since the worker started. Never decreases between two calls into a room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The worker's start.
    pub const ZERO: Self = Self(0);
    /// Later than any moment that a worker can reach.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the worker's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment `micros` microseconds after the worker's start (saturating).
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// The moment `millis` milliseconds after the worker's start (saturating).
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the worker's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the worker's start.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the worker's start.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time passed from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A moment by the wall clock: since 1970-01-01, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnixTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl UnixTime {
    /// Whole seconds since 1970; 0 before.
    #[must_use]
    pub fn whole_seconds(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0)
    }

    /// Nanoseconds from `earlier` to `self`; negative if `earlier` is later.
    #[must_use]
    pub fn nanos_since(self, earlier: Self) -> i128 {
        let nanos = |time: Self| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
        nanos(self) - nanos(earlier)
    }
}

/// The earlier of two moments, if there is one.
#[must_use]
pub fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (some, None) | (None, some) => some,
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::FAR_FUTURE`].
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::ZERO`].
    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, UnixTime, earlier};

    #[test]
    fn the_earlier_of_two_moments_is_the_only_one_if_there_is_one() {
        let (one, two) = (Some(Instant::from_nanos(1)), Some(Instant::from_nanos(2)));
        assert_eq!((earlier(one, two), earlier(two, one)), (one, one));
        assert_eq!((earlier(None, two), earlier(two, None)), (two, two));
        assert_eq!(earlier(None, None), None);
    }

    #[test]
    fn wall_clock_times_differ_by_nanoseconds_either_way() {
        let time = |seconds, nanos| UnixTime { seconds, nanos };
        for (later, earlier, nanos) in [
            (time(1, 0), time(0, 999_999_999), 1),
            (time(0, 999_999_999), time(1, 0), -1),
            (time(0, 0), time(-1, 5), 999_999_995),
            (time(7, 7), time(7, 7), 0),
            (
                time(i64::MAX, u32::MAX),
                time(i64::MIN, 0),
                i128::from(u64::MAX) * 1_000_000_000 + i128::from(u32::MAX),
            ),
        ] {
            assert_eq!(later.nanos_since(earlier), nanos, "{later:?} {earlier:?}");
        }
        assert_eq!(
            (time(-1, 9).whole_seconds(), time(5, 9).whole_seconds()),
            (0, 5)
        );
    }

    #[test]
    fn addition_saturates_at_the_far_future() {
        assert_eq!(Instant::from_nanos(1) + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(
            Instant::from_nanos(1) + Duration::from_nanos(2),
            Instant::from_nanos(3)
        );
    }

    #[test]
    fn since_is_zero_for_a_later_moment() {
        let (early, late) = (Instant::from_micros(5), Instant::from_micros(9));
        assert_eq!(late.since(early), Duration::from_micros(4));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
