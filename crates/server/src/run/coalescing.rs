//! When a worker without work looks again: coalesced wake-ups.
//!
//! A wake-up costs a switch of threads, an interrupt and a round, whether it brings one frame or ten. So
//! while they come faster than one in a pause's time ([`Pauses`]), the worker does not wait for the next
//! one: it pauses for that time, and then handles what has come together. This is what a NIC does with
//! its interrupts (`ethtool -C rx-usecs`); what it costs and brings is in
//! `docs/develop/decisions/0015-wake-ups.md`.
//!
//! Only acknowledgments, frames as short (SYN, FIN) and timers wait for the end of a pause. A request ends it where the link
//! tells one from an acknowledgment ([`link::Link::request_fd`]), and so do a name that is found, a read that completes, and
//! mail.
//!
//! Clients' timers that are due in a pause wait for its end, too, so the bursts of many clients leave in one round: pacing's
//! schedule may be [`TIMERS_WAIT_MAX`] ahead of the clock at least, and none waits longer.
//!
//! It refuses to pause twice without finding work in between, so an idle server is woken by the first
//! frame. Bounded by the pause: nothing waits longer for being handled with others.

use clock::Duration;

/// Shortest and longest pause by round-trip times: with 2 ms most wake-ups are spared, and a viewer notices nothing.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// Timers wait for the end of a pause for so long at most.
pub(crate) const TIMERS_WAIT_MAX: Duration = tcp::pacing::AHEAD_MIN;

/// A pause is so small a part of the shortest round-trip time: what acknowledgments make room for waits for its end. After
/// a loss it is a sixteenth, since three eighths of the time count then.
const ROUND_TRIP_PARTS: u32 = 6;

/// How long pauses are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pauses {
    /// So long, as the operator says; zero: there are none.
    Fixed(Duration),
    /// A sixth of the shortest round-trip time of the clients, a sixteenth after a loss, but 100 us at least and 2 ms
    /// at most.
    ByRoundTrip,
}

/// Decides how the worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Coalescing {
    pauses: Pauses,
    pause: Duration,
    /// The last wait for a descriptor ended within a pause's time, and every pause since found work.
    is_busy: bool,
    /// The worker has paused and found nothing since.
    has_paused: bool,
}

/// How to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sleep {
    /// For so long, however many frames come that are no requests.
    Pause(Duration),
    /// Until a descriptor is ready, or the timeout.
    Wait,
}

impl Coalescing {
    /// With such pauses, at first the shortest.
    #[must_use]
    pub(crate) const fn new(pauses: Pauses) -> Self {
        Self {
            pauses,
            pause: match pauses {
                Pauses::Fixed(pause) => pause,
                Pauses::ByRoundTrip => PAUSE_MIN,
            },
            is_busy: false,
            has_paused: false,
        }
    }

    /// The shortest round-trip time of the clients is this now; `None`: nobody is there.
    pub(crate) fn on_round_trip(&mut self, shortest: Option<Duration>) {
        if self.pauses == Pauses::ByRoundTrip {
            let part = shortest.unwrap_or_default() / ROUND_TRIP_PARTS;
            self.pause = part.clamp(PAUSE_MIN, PAUSE_MAX);
        }
    }

    /// How to sleep when devices that wake nobody are to be asked in `look_after`, or a timer would be late.
    #[must_use]
    pub(crate) fn sleep(&mut self, look_after: Duration) -> Sleep {
        let pause = self.pause.min(look_after);
        if !self.is_busy || self.has_paused || pause.is_zero() {
            return Sleep::Wait;
        }
        self.has_paused = true;
        Sleep::Pause(pause)
    }

    /// A round made progress.
    pub(crate) fn on_progress(&mut self) {
        self.has_paused = false;
    }

    /// A wait for descriptors took `waited`.
    pub(crate) fn on_waited(&mut self, waited: Duration) {
        self.is_busy = waited < self.pause;
        self.has_paused = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{Coalescing, Pauses, Sleep};
    use clock::Duration;

    const PAUSE: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(99);
    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn an_idle_worker_waits_for_the_first_frame() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
        coalescing.on_waited(PAUSE);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }

    #[test]
    fn wake_ups_that_come_faster_than_the_pause_are_coalesced_as_long_as_pauses_find_work() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
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
    fn a_device_that_is_to_be_asked_sooner_ends_the_pause() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
        coalescing.on_waited(SHORT);
        assert_eq!(coalescing.sleep(SHORT), Sleep::Pause(SHORT));
        coalescing.on_progress();
        assert_eq!(coalescing.sleep(Duration::ZERO), Sleep::Wait);
    }

    #[test]
    fn without_a_pause_every_sleep_is_a_wait() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(Duration::ZERO));
        coalescing.on_waited(Duration::ZERO);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }

    #[test]
    fn pauses_are_a_part_of_the_shortest_round_trip_time_within_their_limits() {
        let pause = |pauses, shortest| {
            let mut coalescing = Coalescing::new(pauses);
            coalescing.on_round_trip(shortest);
            coalescing.on_waited(Duration::ZERO);
            coalescing.sleep(LONG)
        };
        let micros = Duration::from_micros;
        for (shortest, expected) in [
            (None, 100),
            (Some(599), 100),
            (Some(606), 101),
            (Some(9_000), 1_500),
            (Some(11_994), 1_999),
            (Some(12_006), 2_000),
            (Some(200_000), 2_000),
        ] {
            let found = pause(Pauses::ByRoundTrip, shortest.map(micros));
            assert_eq!(found, Sleep::Pause(micros(expected)), "{shortest:?}");
        }
        let fixed = pause(Pauses::Fixed(PAUSE), Some(micros(16_000)));
        assert_eq!(fixed, Sleep::Pause(PAUSE), "as the operator says");
    }
}
