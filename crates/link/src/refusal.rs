//! How long a device has refused frames without taking one.
//!
//! A device that is out of room for a moment takes the same frame a little later. One that refuses
//! for longer is stuck, or will never take this frame; holding the frame would then stop everything
//! behind it. It refuses to read a clock and to decide what follows: the link asks.

use clock::Instant;

use crate::REFUSED_FOR_MAX;

/// The refusals since a frame was last taken or given up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    /// When the first and the last of them were.
    period: Option<(Instant, Instant)>,
}

impl Refusals {
    /// A frame was refused at `now`. Returns whether the device has refused for
    /// [`REFUSED_FOR_MAX`]; if so, what is refused next begins anew.
    ///
    /// A refusal that comes longer than that after the last one begins anew, too: nobody asked in
    /// between, so nothing says that the device would have refused.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        let first = match self.period {
            Some((first, last)) if now.since(last) <= REFUSED_FOR_MAX => first,
            _ => now,
        };
        let is_over = now.since(first) >= REFUSED_FOR_MAX;
        self.period = (!is_over).then_some((first, now));
        is_over
    }

    /// A frame was taken or given up.
    pub(crate) const fn end(&mut self) {
        self.period = None;
    }
}

const _: () = assert!(
    REFUSED_FOR_MAX.as_nanos() >= 4 * crate::FULL_RETRY_AFTER.as_nanos(),
    "a refused frame is offered several times before it is given up"
);

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::Refusals;
    use crate::REFUSED_FOR_MAX;

    const START: Instant = Instant::from_millis(7);
    const STEP: Duration = Duration::from_nanos(1);

    #[test]
    fn a_device_may_refuse_for_the_limit_and_no_longer() {
        let mut refusals = Refusals::default();
        assert!(!refusals.is_over(START));
        let limit = START + REFUSED_FOR_MAX;
        assert!(!refusals.is_over(START + (REFUSED_FOR_MAX - STEP)));
        assert!(refusals.is_over(limit));
        assert!(!refusals.is_over(limit), "what comes next begins anew");
        assert!(!refusals.is_over(limit + (REFUSED_FOR_MAX - STEP)));
        assert!(refusals.is_over(limit + REFUSED_FOR_MAX));
    }

    #[test]
    fn a_frame_that_was_taken_begins_anew() {
        let mut refusals = Refusals::default();
        assert!(!refusals.is_over(START));
        refusals.end();
        assert!(!refusals.is_over(START + REFUSED_FOR_MAX));
        assert!(refusals.is_over(START + 2 * REFUSED_FOR_MAX));
    }

    #[test]
    fn refusals_long_apart_are_not_one() {
        let mut refusals = Refusals::default();
        assert!(!refusals.is_over(START));
        let later = START + (REFUSED_FOR_MAX + STEP);
        assert!(!refusals.is_over(later));
        assert!(refusals.is_over(later + REFUSED_FOR_MAX));
    }
}
