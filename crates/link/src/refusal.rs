//! How long a device has refused every frame.
//!
//! A device whose queue is full takes the same frame a little later. A device that refuses for
//! longer is stuck, or will never take this frame; keeping the frame would block all frames behind
//! it. This module refuses to read a clock and to drop the frame: the link does. Bound: one period.

use clock::Instant;

use crate::REFUSED_FOR_MAX;

/// The time since the device first refused a frame, after it last took one or the link dropped one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusalPeriod {
    /// When the first and the last refusal were.
    period: Option<(Instant, Instant)>,
}

impl RefusalPeriod {
    /// Records that a frame was refused at `now`. Returns whether the device has refused for
    /// [`REFUSED_FOR_MAX`]; if so, the next refusal starts a new period.
    ///
    /// A refusal more than [`REFUSED_FOR_MAX`] after the last one also starts a new period: no frame
    /// was offered in between, so the device may have had room.
    pub(crate) fn record(&mut self, now: Instant) -> bool {
        let first = match self.period {
            Some((first, last)) if now.since(last) <= REFUSED_FOR_MAX => first,
            _ => now,
        };
        let is_limit_reached = now.since(first) >= REFUSED_FOR_MAX;
        self.period = (!is_limit_reached).then_some((first, now));
        is_limit_reached
    }

    /// Ends the period: a frame was taken or dropped.
    pub(crate) const fn reset(&mut self) {
        self.period = None;
    }
}

const _: () = assert!(
    REFUSED_FOR_MAX.as_nanos() >= 4 * crate::FULL_RETRY_AFTER.as_nanos(),
    "a refused frame is offered several times before it is dropped"
);

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::RefusalPeriod;
    use crate::REFUSED_FOR_MAX;

    const START: Instant = Instant::from_millis(7);
    const STEP: Duration = Duration::from_nanos(1);

    #[test]
    fn the_period_ends_at_the_limit_and_a_new_one_starts() {
        let mut refusals = RefusalPeriod::default();
        assert!(!refusals.record(START));
        let limit = START + REFUSED_FOR_MAX;
        assert!(!refusals.record(START + (REFUSED_FOR_MAX - STEP)));
        assert!(refusals.record(limit));
        assert!(!refusals.record(limit), "a new period");
        assert!(!refusals.record(limit + (REFUSED_FOR_MAX - STEP)));
        assert!(refusals.record(limit + REFUSED_FOR_MAX));
    }

    #[test]
    fn a_taken_frame_ends_the_period() {
        let mut refusals = RefusalPeriod::default();
        assert!(!refusals.record(START));
        refusals.reset();
        assert!(!refusals.record(START + REFUSED_FOR_MAX));
        assert!(refusals.record(START + 2 * REFUSED_FOR_MAX));
    }

    #[test]
    fn refusals_further_apart_than_the_limit_start_a_new_period() {
        let mut refusals = RefusalPeriod::default();
        assert!(!refusals.record(START));
        let later = START + (REFUSED_FOR_MAX + STEP);
        assert!(!refusals.record(later));
        assert!(refusals.record(later + REFUSED_FOR_MAX));
    }
}
