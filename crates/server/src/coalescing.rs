//! When a worker without work looks again: coalesced wake-ups.
//!
//! A wake-up costs a switch of threads, an interrupt and a round, whether it brings one frame or ten. So
//! while they come faster than one in [`Coalescing::new`]'s time, the worker does not wait for the next
//! one: it pauses for that time, and then handles what has come together. This is what a NIC does with
//! its interrupts (`ethtool -C rx-usecs`); what it costs and brings is in
//! `docs/decisions/0015-wake-ups.md`.
//!
//! It refuses to pause twice without finding work in between, so an idle server is woken by the first
//! frame. Bounded by the pause: nothing waits longer for being handled with others.

use clock::Duration;

/// Decides how the worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coalescing {
    pause: Duration,
    /// The last wait for a descriptor ended within a pause's time, and every pause since found work.
    is_busy: bool,
    /// The worker has paused and found nothing since.
    has_paused: bool,
}

/// How to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// For so long, whatever comes.
    Pause(Duration),
    /// Until a descriptor is ready, or the timeout.
    Wait,
}

impl Coalescing {
    /// Pauses of `pause`; none if it is zero.
    #[must_use]
    pub const fn new(pause: Duration) -> Self {
        Self {
            pause,
            is_busy: false,
            has_paused: false,
        }
    }

    /// How to sleep when the next timer is due in `timeout`.
    #[must_use]
    pub fn sleep(&mut self, timeout: Duration) -> Sleep {
        if !self.is_busy || self.has_paused || self.pause.is_zero() {
            return Sleep::Wait;
        }
        self.has_paused = true;
        Sleep::Pause(self.pause.min(timeout))
    }

    /// A round made progress.
    pub fn on_progress(&mut self) {
        self.has_paused = false;
    }

    /// A wait for descriptors took `waited`.
    pub fn on_waited(&mut self, waited: Duration) {
        self.is_busy = waited < self.pause;
        self.has_paused = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{Coalescing, Sleep};
    use clock::Duration;

    const PAUSE: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(99);
    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn an_idle_worker_waits_for_the_first_frame() {
        let mut coalescing = Coalescing::new(PAUSE);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
        coalescing.on_waited(PAUSE);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }

    #[test]
    fn wake_ups_that_come_faster_than_the_pause_are_coalesced_as_long_as_pauses_find_work() {
        let mut coalescing = Coalescing::new(PAUSE);
        coalescing.on_waited(SHORT);
        for _ in 0..3 {
            assert_eq!(coalescing.sleep(LONG), Sleep::Pause(PAUSE));
            coalescing.on_progress();
        }
        assert_eq!(coalescing.sleep(LONG), Sleep::Pause(PAUSE));
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait, "paused, found nothing");
        coalescing.on_waited(LONG);
        coalescing.on_progress();
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait, "a long wait");
    }

    #[test]
    fn a_timer_that_is_due_sooner_ends_the_pause() {
        let mut coalescing = Coalescing::new(PAUSE);
        coalescing.on_waited(SHORT);
        assert_eq!(coalescing.sleep(SHORT), Sleep::Pause(SHORT));
    }

    #[test]
    fn without_a_pause_every_sleep_is_a_wait() {
        let mut coalescing = Coalescing::new(Duration::ZERO);
        coalescing.on_waited(Duration::ZERO);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }
}
