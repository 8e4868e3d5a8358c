//! How many reads may be in flight: no more than the worker keeps up with.
//!
//! Clients with large windows want more than a worker can send, and a disk that is faster than the worker reads it all
//! at once. The bytes then wait for their turn and leave the processor's caches meanwhile, which costs most where they are
//! sealed. So reads are held back beyond a limit. It falls while the worker hardly ever waits for the disk with reads held
//! back, and rises when it does for an eighth of the time. Reads that are held back begin in the order of their turns.
//!
//! It refuses to go below [`LEAST`], where system calls would have less to share, and above the slots there are.

use clock::{Duration, Instant};

/// Always permitted, and at start: 2 MiB in slots of 64 KiB. Sealing costs the same with up to 64 slots in turn, and half as
/// much again with 512 (`atlas-bench stages seal --slots`). If there are fewer than twice as many slots: half of them.
const LEAST: usize = 32;

/// For so long waits are added up; at its end the limit may fall.
const PERIOD: Duration = Duration::from_millis(8);

/// With less waiting in a period the limit falls: a thirty-second of it.
const WAIT_LEAST: Duration = Duration::from_micros(250);

/// With so much the limit rises, at once: an eighth.
const WAIT_MOST: Duration = Duration::from_millis(1);

/// The limit, and the waits that it follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadsInFlight {
    limit: usize,
    most: usize,
    /// Reads are held back in this round.
    is_held: bool,
    period_began: Instant,
    /// How long the worker waited for the disk in this period.
    waited: Duration,
    /// Since when it waits.
    waits_since: Option<Instant>,
}

impl ReadsInFlight {
    /// Up to `most`: the slots.
    pub(super) fn new(most: usize) -> Self {
        Self {
            limit: Self::least(most),
            most,
            is_held: false,
            period_began: Instant::ZERO,
            waited: Duration::ZERO,
            waits_since: None,
        }
    }

    fn least(most: usize) -> usize {
        LEAST.min(most.div_ceil(2))
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self, now: Instant) {
        self.is_held = false;
        if let Some(since) = self.waits_since.take() {
            self.waited = self.waited.saturating_add(now.since(since));
        }
        let is_over = now.since(self.period_began) >= PERIOD;
        if self.waited >= WAIT_MOST {
            self.limit = (self.limit + self.limit / 4 + 1).min(self.most);
        } else if is_over && self.waited < WAIT_LEAST {
            let less = self.limit - (self.limit / 16).max(1);
            self.limit = less.max(Self::least(self.most));
        } else if !is_over {
            return;
        }
        self.period_began = now;
        self.waited = Duration::ZERO;
    }

    /// Whether another read may begin beside those in flight.
    pub(super) const fn permit(&self, in_flight: usize) -> bool {
        in_flight < self.limit
    }

    /// A read that is wanted was not permitted.
    pub(super) const fn hold(&mut self) {
        self.is_held = true;
    }

    /// The round found nothing to do: the worker waits, for the disk if reads are held back.
    pub(super) fn end_empty_round(&mut self, now: Instant) {
        self.waits_since = self.is_held.then_some(now);
    }

    /// When reads that are held back may begin even if nothing completes.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let since = self.waits_since.filter(|_| self.limit < self.most)?;
        Some(since + WAIT_MOST.saturating_sub(self.waited))
    }
}

#[cfg(test)]
impl ReadsInFlight {
    /// The limit is this now.
    pub(super) const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(100);

    /// At the beginning of a period, with a read held back.
    fn held(limit: usize, most: usize) -> ReadsInFlight {
        let mut reads = ReadsInFlight {
            limit,
            period_began: START,
            ..ReadsInFlight::new(most)
        };
        reads.hold();
        reads
    }

    /// The limit when the worker has waited for so long, and so much time has passed.
    fn limit_after(mut reads: ReadsInFlight, waited: Duration, passed: Duration) -> usize {
        reads.end_empty_round(START);
        reads.begin_round(START + waited);
        reads.begin_round(START + passed.max(waited));
        reads.limit
    }

    const TICK: Duration = Duration::from_nanos(1);

    #[test]
    fn reads_are_permitted_below_the_limit() {
        let reads = ReadsInFlight::new(512);
        assert!(reads.permit(0) && reads.permit(LEAST - 1));
        assert!(!reads.permit(LEAST));
        let limits = [1, 2, 16, 63, 64].map(|most| ReadsInFlight::new(most).limit);
        assert_eq!(limits, [1, 1, 8, 32, 32]);
    }

    #[test]
    fn the_limit_falls_to_the_least_while_the_worker_hardly_waits() {
        let short = WAIT_LEAST.saturating_sub(TICK);
        assert_eq!(limit_after(held(512, 512), short, PERIOD), 480);
        assert_eq!(limit_after(held(512, 512), WAIT_LEAST, PERIOD), 512);
        let early = PERIOD.saturating_sub(TICK);
        assert_eq!(limit_after(held(512, 512), short, early), 512);
        for (limit, after) in [(LEAST + 3, LEAST + 1), (LEAST + 1, LEAST), (LEAST, LEAST)] {
            assert_eq!(limit_after(held(limit, 512), Duration::ZERO, PERIOD), after);
        }
        assert_eq!(limit_after(held(8, 16), Duration::ZERO, PERIOD), 8);
    }

    #[test]
    fn the_limit_rises_to_the_most_when_the_worker_waits() {
        let short = WAIT_MOST.saturating_sub(TICK);
        assert_eq!(limit_after(held(64, 100), short, short), 64);
        assert_eq!(limit_after(held(64, 100), WAIT_MOST, WAIT_MOST), 81);
        assert_eq!(limit_after(held(81, 100), WAIT_MOST, WAIT_MOST), 100);
        assert_eq!(limit_after(held(100, 100), WAIT_MOST, WAIT_MOST), 100);
    }

    #[test]
    fn waits_of_a_period_are_added_up() {
        let mut reads = held(64, 100);
        let half = WAIT_MOST / 2;
        reads.end_empty_round(START);
        reads.begin_round(START + half);
        assert_eq!((reads.limit, reads.waited), (64, half));
        reads.hold();
        reads.end_empty_round(START + half * 2);
        assert_eq!(reads.next_timeout(), Some(START + half * 3));
        reads.begin_round(START + half * 3);
        assert_eq!((reads.limit, reads.waited), (81, Duration::ZERO));
    }

    #[test]
    fn a_worker_without_reads_held_back_does_not_wait_for_the_disk() {
        let mut reads = ReadsInFlight::new(100);
        reads.begin_round(START);
        reads.end_empty_round(START);
        assert_eq!(reads.next_timeout(), None);
        reads.begin_round(START + WAIT_MOST);
        assert_eq!(reads.limit, LEAST);
        // Nor does one that may not begin more.
        let mut reads = held(100, 100);
        reads.end_empty_round(START);
        assert_eq!(reads.next_timeout(), None);
    }
}
