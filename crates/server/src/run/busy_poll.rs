//! For how long a worker without work looks again at once, before it sleeps.
//!
//! Each round has the kernel poll the network device ([`link::XdpConfig::busy_poll_us`]), so that frames need
//! no interrupt and no wake-up. It is what the sysctl net.core.busy_poll does for `poll(2)`: poll for a set
//! time, then sleep. Chosen by the operator (`busy_poll_us`);
//! `docs/develop/decisions/0031-busy-polling-by-choice.md` says what it costs.
//!
//! It refuses to poll an idle device for ever: only work begins the time again, not a wake-up. Bounded by the
//! time it was made with.

use clock::{Duration, Instant};

/// Decides whether the worker looks again or sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BusyPoll {
    most: Duration,
    /// The last round that made progress; at first, the start.
    idle_since: Instant,
}

impl BusyPoll {
    /// Polls for `most` without work; never if it is zero.
    #[must_use]
    pub(crate) const fn new(most: Duration, now: Instant) -> Self {
        Self {
            most,
            idle_since: now,
        }
    }

    /// The round that began at `now` made progress.
    pub(crate) const fn on_progress(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// The device cannot be polled: from now on the worker sleeps at once.
    pub(crate) const fn stop(&mut self) {
        self.most = Duration::ZERO;
    }

    /// Whether it was chosen, and not stopped.
    #[must_use]
    pub(crate) const fn is_on(&self) -> bool {
        !self.most.is_zero()
    }

    /// Whether another round follows one without progress that began at `now`.
    #[must_use]
    pub(crate) fn goes_on(&self, now: Instant) -> bool {
        now.since(self.idle_since) < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::BusyPoll;
    use clock::{Duration, Instant};

    const START: Instant = Instant::from_millis(7);
    const MOST: Duration = Duration::from_micros(50);
    const STEP: Duration = Duration::from_nanos(1);

    #[test]
    fn it_polls_for_its_time_after_work_and_then_sleeps() {
        let mut polling = BusyPoll::new(MOST, START);
        for begun in [START, START + Duration::from_secs(1)] {
            polling.on_progress(begun);
            assert!(polling.goes_on(begun));
            assert!(polling.goes_on(begun + (MOST - STEP)));
            assert!(!polling.goes_on(begun + MOST));
            // A wake-up without work does not begin the time again.
            assert!(!polling.goes_on(begun + 2 * MOST));
        }
    }

    #[test]
    fn without_a_time_or_a_device_to_poll_it_sleeps_at_once() {
        let mut polling = BusyPoll::new(Duration::ZERO, START);
        assert!(!polling.is_on() && !polling.goes_on(START));
        polling.on_progress(START);
        assert!(!polling.goes_on(START));
        let mut stopped = BusyPoll::new(MOST, START);
        assert!(stopped.is_on());
        stopped.stop();
        stopped.on_progress(START);
        assert!(!stopped.is_on() && !stopped.goes_on(START));
    }
}
