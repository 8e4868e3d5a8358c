//! The clocks, and waiting for them.
//!
//! Frames carry the kernel's stamp of when it got them, on the clock of the day; delays are counted
//! on the clock that never jumps. Both are read once per batch and the stamp becomes an age: a
//! stamp from the future, or older than [`AGE_MAX`], means that the day's clock was set meanwhile,
//! and the frame counts as having arrived just now.

use std::num::NonZeroU64;

use clock::{Duration, Instant};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Longest time a frame can have waited for us and still be believed.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The monotonic clock, from the moment this was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Duration,
}

/// Both clocks, read together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Instant,
    /// Since 1970.
    pub(crate) today: Duration,
}

impl Clock {
    /// Starts at zero, and asks for timers as fine as they are: by default the kernel may let us
    /// sleep 50 us longer than asked, to wake us together with others.
    pub(crate) fn start() -> Self {
        // Failing costs precision, which is measured and told anyway.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self {
            start: duration(clock_gettime(ClockId::Monotonic)),
        }
    }

    pub(crate) fn now(self) -> Instant {
        let since_boot = duration(clock_gettime(ClockId::Monotonic));
        Instant::ZERO + since_boot.saturating_sub(self.start)
    }

    pub(crate) fn read(self) -> Reading {
        Reading {
            now: self.now(),
            today: duration(clock_gettime(ClockId::Realtime)),
        }
    }

    /// Sleeps until `moment`, or until a signal comes.
    pub(crate) fn sleep_until(self, moment: Instant) {
        let since_boot = self.start + moment.since(Instant::ZERO);
        // Interrupted is as good as slept: the caller looks around and comes back.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(since_boot));
    }
}

impl Reading {
    /// When a frame with this stamp arrived.
    pub(crate) fn arrival(&self, stamp: Option<Duration>) -> Instant {
        let age = stamp.and_then(|stamp| self.today.checked_sub(stamp));
        let age = age.filter(|age| *age <= AGE_MAX).unwrap_or_default();
        Instant::ZERO + self.now.since(Instant::ZERO + age)
    }
}

/// A duration as the kernel takes it; one beyond what it can count as the longest it can.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

fn duration(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::{AGE_MAX, Duration, Instant, Reading};

    #[test]
    fn a_stamp_becomes_an_arrival() {
        let reading = Reading {
            now: Instant::from_millis(5_000),
            today: Duration::from_secs(1_000_000),
        };
        let ago = |age: Duration| reading.arrival(Some(reading.today - age));
        assert_eq!(ago(Duration::ZERO), Instant::from_millis(5_000));
        assert_eq!(ago(Duration::from_millis(7)), Instant::from_millis(4_993));
        assert_eq!(ago(AGE_MAX), Instant::from_millis(4_000));
    }

    #[test]
    fn a_stamp_that_cannot_be_is_not_believed() {
        let reading = Reading {
            now: Instant::from_millis(500),
            today: Duration::from_secs(1_000_000),
        };
        let now = reading.now;
        assert_eq!(reading.arrival(None), now);
        let older = reading.today - AGE_MAX - Duration::from_nanos(1);
        assert_eq!(reading.arrival(Some(older)), now);
        let future = reading.today + Duration::from_nanos(1);
        assert_eq!(reading.arrival(Some(future)), now);
        let before_the_start = reading.today - Duration::from_millis(501);
        assert_eq!(reading.arrival(Some(before_the_start)), Instant::ZERO);
    }
}
