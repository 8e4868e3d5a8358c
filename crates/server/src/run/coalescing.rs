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
//! mail. Where the worker uses most of a processor ([`BUSY_SHARES`]), mail alone does: its clients wait for its time. How long it
//! waits for the processor that others use, or a hypervisor has, does not count.
//!
//! Clients' timers that are due in a pause wait for its end, too, so the bursts of many clients leave in one round, but none for
//! longer than [`TIMERS_WAIT_MAX`].
//!
//! It refuses to pause twice without finding work in between, so an idle server is woken by the first
//! frame. Bounded by the pause: nothing waits longer for being handled with others.

use clock::{Duration, Instant};

/// Shortest and longest pause by round-trip times: with 2 ms most wake-ups are spared, and a viewer notices nothing.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// Timers wait for the end of a pause for so long at most. Pacing makes up for four times as much.
pub(crate) const TIMERS_WAIT_MAX: Duration = Duration::from_millis(1);

/// A pause is so small a part of the shortest round-trip time: what acknowledgments make room for waits for its end. After
/// a loss it is a 48th, since an eighth of the time counts then.
const ROUND_TRIP_PARTS: u32 = 6;

/// Nothing but mail ends a pause once the worker uses more than one part in the first number of a processor, until it uses less
/// than one in the second, since such pauses save some.
const BUSY_SHARES: (u32, u32) = (2, 3);
/// Looked at over so much time, or longer if the worker does not sleep.
const BUSY_OVER: Duration = Duration::from_millis(100);

/// How long pauses are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pauses {
    /// So long, as the operator says; zero: there are none.
    Fixed(Duration),
    /// A sixth of the shortest round-trip time of the clients, a 48th after a loss, but 100 us at least and 2 ms
    /// at most.
    ByRoundTrip,
}

/// Decides how the worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Coalescing {
    pauses: Pauses,
    pause: Duration,
    /// The last wait for a descriptor ended within a pause's time, and every pause since found work.
    is_woken_often: bool,
    /// The worker has paused and found nothing since.
    has_paused: bool,
    processor_use: ProcessorUse,
}

/// How much of a processor the worker used lately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ProcessorUse {
    /// When it was looked at last, and the thread's processor time then.
    last: Option<(Instant, Duration)>,
    /// So much that nothing but mail is to end a pause.
    is_much: bool,
}

impl ProcessorUse {
    /// Nothing is known yet.
    const NONE: Self = Self {
        last: None,
        is_much: false,
    };

    /// Looks again, if it is time.
    fn look(&mut self, now: Instant, processor_time: impl FnOnce() -> Duration) {
        let Some((at, before)) = self.last else {
            self.last = Some((now, processor_time()));
            return;
        };
        let passed = now.since(at);
        if passed < BUSY_OVER {
            return;
        }
        let used = processor_time();
        let (begin, end) = BUSY_SHARES;
        let share = if self.is_much { end } else { begin };
        self.is_much = used.saturating_sub(before) * share > passed;
        self.last = Some((now, used));
    }
}

/// The processor time that the calling thread has used so far (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// How to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sleep {
    /// For so long, however many frames come that are no requests.
    Pause(Duration),
    /// For so long, whatever comes but mail.
    WholePause(Duration),
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
            is_woken_often: false,
            has_paused: false,
            processor_use: ProcessorUse::NONE,
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
        if !self.is_woken_often || self.has_paused || pause.is_zero() {
            return Sleep::Wait;
        }
        self.has_paused = true;
        if self.processor_use.is_much {
            Sleep::WholePause(pause)
        } else {
            Sleep::Pause(pause)
        }
    }

    /// A round made progress.
    pub(crate) fn on_progress(&mut self) {
        self.has_paused = false;
    }

    /// The worker slept in this way, from when until when. `processor_time`: [`processor_time`] of its thread.
    pub(crate) fn on_slept(
        &mut self,
        sleep: Sleep,
        from: Instant,
        until: Instant,
        processor_time: impl FnOnce() -> Duration,
    ) {
        self.processor_use.look(until, processor_time);
        if sleep == Sleep::Wait {
            self.is_woken_often = until.since(from) < self.pause;
            self.has_paused = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Coalescing, Pauses, Sleep};
    use clock::{Duration, Instant};

    const PAUSE: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(99);
    const LONG: Duration = Duration::from_secs(1);
    const START: Instant = Instant::from_millis(1000);

    /// A wait of so long.
    fn wait(coalescing: &mut Coalescing, waited: Duration) {
        coalescing.on_slept(Sleep::Wait, START, START + waited, || Duration::ZERO);
    }

    /// The worker used so much of so much time, a sleep each millisecond. How it sleeps then.
    fn sleep_after(coalescing: &mut Coalescing, used: Duration, passed: Duration) -> Sleep {
        let from = coalescing.processor_use.last;
        let (from, before) = from.unwrap_or((START, Duration::ZERO));
        let millis = u32::try_from(passed.as_millis()).unwrap();
        for milli in 0..=millis {
            let now = from + passed / millis * milli;
            coalescing.on_slept(Sleep::Wait, now, now, || before + used / millis * milli);
        }
        coalescing.sleep(LONG)
    }

    #[test]
    fn an_idle_worker_waits_for_the_first_frame() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
        wait(&mut coalescing, PAUSE);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }

    #[test]
    fn wake_ups_that_come_faster_than_the_pause_are_coalesced_as_long_as_pauses_find_work() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
        wait(&mut coalescing, SHORT);
        for _ in 0..3 {
            assert_eq!(coalescing.sleep(LONG), Sleep::Pause(PAUSE));
            coalescing.on_progress();
        }
        assert_eq!(coalescing.sleep(LONG), Sleep::Pause(PAUSE));
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait, "paused, found nothing");
        wait(&mut coalescing, LONG);
        coalescing.on_progress();
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait, "a long wait");
    }

    #[test]
    fn a_device_that_is_to_be_asked_sooner_ends_the_pause() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(PAUSE));
        wait(&mut coalescing, SHORT);
        assert_eq!(coalescing.sleep(SHORT), Sleep::Pause(SHORT));
        coalescing.on_progress();
        assert_eq!(coalescing.sleep(Duration::ZERO), Sleep::Wait);
    }

    #[test]
    fn without_a_pause_every_sleep_is_a_wait() {
        let mut coalescing = Coalescing::new(Pauses::Fixed(Duration::ZERO));
        wait(&mut coalescing, Duration::ZERO);
        assert_eq!(coalescing.sleep(LONG), Sleep::Wait);
    }

    #[test]
    fn pauses_are_a_part_of_the_shortest_round_trip_time_within_their_limits() {
        let pause = |pauses, shortest| {
            let mut coalescing = Coalescing::new(pauses);
            coalescing.on_round_trip(shortest);
            wait(&mut coalescing, Duration::ZERO);
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

    #[test]
    fn pauses_are_whole_from_half_of_a_processor_to_a_third() {
        let mut coalescing = Coalescing::new(Pauses::ByRoundTrip);
        let (pause, whole) = (Sleep::Pause(PAUSE), Sleep::WholePause(PAUSE));
        for (used, expected) in [
            (500, pause),
            (501, whole),
            (334, whole),
            (333, pause),
            (500, pause),
        ] {
            let used = Duration::from_millis(used);
            let found = sleep_after(&mut coalescing, used, LONG);
            assert_eq!(found, expected, "{used:?} of a second");
        }
    }

    /// A minute of work is forgotten once the worker has done nothing for so long.
    #[test]
    fn what_counts_is_the_last_tenth_of_a_second() {
        let mut coalescing = Coalescing::new(Pauses::ByRoundTrip);
        let minute = Duration::from_secs(60);
        let busy = sleep_after(&mut coalescing, minute, minute);
        assert_eq!(busy, Sleep::WholePause(PAUSE));
        let millis = Duration::from_millis;
        let found = sleep_after(&mut coalescing, Duration::ZERO, millis(99));
        assert_eq!(found, Sleep::WholePause(PAUSE));
        let found = sleep_after(&mut coalescing, Duration::ZERO, millis(100));
        assert_eq!(found, Sleep::Pause(PAUSE));
    }

    #[test]
    fn the_processor_time_of_a_thread_is_its_own() {
        let before = super::processor_time();
        let mut other = Duration::ZERO;
        std::thread::scope(|scope| {
            let spin = || {
                while super::processor_time() < Duration::from_millis(5) {}
                super::processor_time()
            };
            other = scope.spawn(spin).join().unwrap();
        });
        assert!(other >= Duration::from_millis(5));
        assert!(super::processor_time() - before < other);
    }
}
