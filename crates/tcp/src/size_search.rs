//! The search for the largest packet that a path carries (RFC 4821 s7, RFC 8899 s5.3), for a
//! connection whose packets are smaller than its peer and our link permit.
//!
//! A round of the search first tries that limit, then halves the range between the largest size that
//! passed and the least that did not. After a round the next one waits, because paths change
//! (docs/develop/decisions/0021-path-mtu.md). All sizes are payload of one packet, bytes.
//!
//! It refuses to know how a probe is sent and how its loss is detected. Bounded: of one round at most
//! [`PROBE_LOSSES_MAX`] probes are lost for each size, and there are no more sizes than halvings of
//! the range down to [`STEP_BYTES`], and the limit.

use clock::{Duration, Instant};

/// A round ends when the largest size that passed and the least that did not are so close.
pub const STEP_BYTES: u16 = 16;
/// Probes of one size that are lost before the size counts as too large. One may be lost for another
/// reason.
pub const PROBE_LOSSES_MAX: u8 = 2;
/// From the loss of a probe to the next one (RFC 8899 s5.1.1: at least a second), and from a guess to
/// the first.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// From the end of a round, or a router's report, to the next round (RFC 8899 s5.1.1:
/// `PMTU_RAISE_TIMER`; RFC 8201 s4 forbids less than five minutes after a report).
pub const RAISE_INTERVAL: Duration = Duration::from_secs(600);

/// See the module. The largest size that passed, RFC 4821's search_low, is the one in use, which
/// each method is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeSearch {
    /// The most that peer and link permit.
    limit: u16,
    /// The least size that did not pass in this round (search_high, plus one); else above the limit.
    too_large: u16,
    /// The size of the next probe.
    next_bytes: u16,
    /// How many probes of that size were lost.
    losses: u8,
    /// When it may be sent.
    next_at: Instant,
}

impl SizeSearch {
    /// The first round begins at `at`.
    #[must_use]
    pub const fn new(at: Instant, limit: u16) -> Self {
        Self {
            limit,
            too_large: limit + 1,
            next_bytes: limit,
            losses: 0,
            next_at: at,
        }
    }

    /// The most that peer and link permit.
    #[must_use]
    pub const fn limit(&self) -> u16 {
        self.limit
    }

    /// The size of the probe to send at `now`, if one is due; `current` is the size in use.
    #[must_use]
    pub fn due(&self, now: Instant, current: u16) -> Option<u16> {
        (self.next_at <= now && self.next_bytes > current).then_some(self.next_bytes)
    }

    /// A probe of what is now `current` passed.
    pub fn on_passed(&mut self, now: Instant, current: u16) {
        self.choose(now, now, current);
    }

    /// A probe was lost, and nothing else.
    pub fn on_lost(&mut self, now: Instant, probe_bytes: u16, current: u16) {
        if probe_bytes < self.too_large {
            self.losses += 1;
            if self.losses < PROBE_LOSSES_MAX {
                self.next_at = now + PROBE_INTERVAL;
                return;
            }
            self.too_large = probe_bytes;
        } else if self.next_bytes > current {
            // A report said so before, and what to try next.
            self.next_at = now + PROBE_INTERVAL;
            return;
        }
        self.choose(now + PROBE_INTERVAL, now, current);
    }

    /// A probe was lost with others (RFC 4821 s7.6.4): it is repeated.
    pub fn on_inconclusive(&mut self, now: Instant) {
        self.next_at = now + PROBE_INTERVAL;
    }

    /// A router reports that it dropped a probe, and that `fits` bytes pass it. They are tried next:
    /// a forged report raises nothing.
    pub fn on_reported(&mut self, fits: u16, current: u16) {
        if fits + 1 < self.too_large {
            self.too_large = fits + 1;
            self.next_bytes = fits.max(current);
            self.losses = 0;
        }
    }

    /// What this round assumes was refuted: it begins again, at once. No new round begins.
    pub fn hasten(&mut self, now: Instant) {
        if self.next_at <= now + PROBE_INTERVAL {
            *self = Self::new(now, self.limit);
        }
    }

    /// From now on peer and link permit no more than `limit`.
    pub fn lower_limit(&mut self, limit: u16) {
        self.limit = self.limit.min(limit);
        self.too_large = self.too_large.min(self.limit + 1);
        self.next_bytes = self.next_bytes.min(self.limit);
    }

    /// What to try at `at`, or that this round is over.
    fn choose(&mut self, at: Instant, now: Instant, current: u16) {
        if self.too_large.saturating_sub(current) <= STEP_BYTES && self.too_large <= self.limit {
            *self = Self::new(now + RAISE_INTERVAL, self.limit);
            return;
        }
        self.losses = 0;
        self.next_at = at;
        self.next_bytes = if self.too_large > self.limit {
            self.limit
        } else {
            current + (self.too_large - current) / 2
        };
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};

    use super::{PROBE_INTERVAL, PROBE_LOSSES_MAX, RAISE_INTERVAL, STEP_BYTES, SizeSearch};

    const START: Instant = Instant::from_millis(1000);
    const LIMIT: u16 = 1460;
    const BASE: u16 = 1160;

    /// A round on a path that carries `path_bytes`, with a router that reports or drops silently:
    /// the size found, when the round ended, probes sent and probes lost.
    fn round(path_bytes: u16, has_router: bool) -> (u16, Instant, u32, u32) {
        let mut search = SizeSearch::new(START, LIMIT);
        let (mut now, mut current, mut sent, mut lost) = (START, BASE, 0, 0);
        while current < LIMIT && search.next_at.since(now) < RAISE_INTERVAL {
            now = now.max(search.next_at);
            let Some(probe) = search.due(now, current) else {
                break;
            };
            sent += 1;
            now += Duration::from_millis(100);
            if probe <= path_bytes {
                current = probe;
                search.on_passed(now, current);
            } else {
                lost += 1;
                if has_router {
                    search.on_reported(path_bytes, current);
                }
                search.on_lost(now, probe, current);
            }
        }
        (current, now, sent, lost)
    }

    #[test]
    fn the_limit_is_tried_first_and_at_its_time() {
        let search = SizeSearch::new(START, LIMIT);
        let before = Instant::from_nanos(START.as_nanos() - 1);
        assert_eq!(search.due(before, BASE), None);
        assert_eq!(search.due(START, BASE), Some(LIMIT));
        assert_eq!(search.due(START, LIMIT), None, "nothing is larger");
        assert_eq!(
            round(LIMIT, false),
            (LIMIT, START + Duration::from_millis(100), 1, 0)
        );
    }

    #[test]
    fn every_path_is_found_to_within_a_step_by_few_probes() {
        for path in BASE..LIMIT {
            let (found, ended, sent, lost) = round(path, false);
            assert!(
                found <= path && path - found < STEP_BYTES,
                "{path}: {found}"
            );
            // The limit, and halvings of 300 bytes down to 16.
            assert!(sent <= 12 && lost <= 12, "{path}: {sent} {lost}");
            assert!(ended < START + Duration::from_secs(15), "{path}");
        }
    }

    #[test]
    fn a_size_is_too_large_after_so_many_losses_and_not_one_fewer() {
        let mut search = SizeSearch::new(START, LIMIT);
        let mut now = START;
        for _ in 1..PROBE_LOSSES_MAX {
            search.on_lost(now, LIMIT, BASE);
            assert_eq!(search.due(now, BASE), None, "not at once");
            now += PROBE_INTERVAL;
            assert_eq!(search.due(now, BASE), Some(LIMIT));
        }
        search.on_lost(now, LIMIT, BASE);
        now += PROBE_INTERVAL;
        assert_eq!(search.due(now, BASE), Some(BASE + 150));
    }

    #[test]
    fn a_probe_that_was_lost_with_others_is_repeated() {
        let mut search = SizeSearch::new(START, LIMIT);
        for _ in 0..5 {
            search.on_inconclusive(START);
        }
        assert_eq!(search.due(START, BASE), None);
        assert_eq!(search.due(START + PROBE_INTERVAL, BASE), Some(LIMIT));
    }

    #[test]
    fn a_round_under_way_is_hastened_and_the_next_one_is_not() {
        for (at, hastened) in [(PROBE_INTERVAL, true), (RAISE_INTERVAL, false)] {
            let mut search = SizeSearch::new(START + at, LIMIT);
            search.hasten(START);
            assert_eq!(search.due(START, BASE).is_some(), hastened);
        }
    }

    #[test]
    fn a_round_ends_at_its_step_and_the_next_one_begins_later() {
        for (range, ends) in [(STEP_BYTES, true), (STEP_BYTES + 1, false)] {
            let current = LIMIT - range;
            let mut search = SizeSearch::new(START, LIMIT);
            for _ in 0..PROBE_LOSSES_MAX {
                search.on_lost(START, LIMIT, current);
            }
            let soon = START + PROBE_INTERVAL;
            assert_eq!(search.due(soon, current).is_none(), ends);
            if ends {
                let later = START + RAISE_INTERVAL;
                let before = Instant::from_nanos(later.as_nanos() - 1);
                assert_eq!(search.due(before, current), None);
                assert_eq!(search.due(later, current), Some(LIMIT));
            }
        }
    }

    #[test]
    fn a_report_about_a_probe_saves_the_rest_of_the_round() {
        // The limit is lost once, and what the router said passes.
        assert_eq!(
            round(1400, true),
            (
                1400,
                START + PROBE_INTERVAL + Duration::from_millis(200),
                2,
                1
            )
        );
        // It says that no more than the size in use passes: the round is over.
        assert_eq!(
            round(BASE, true),
            (BASE, START + Duration::from_millis(100), 1, 1)
        );
    }

    #[test]
    fn a_lower_limit_is_what_is_tried() {
        let mut search = SizeSearch::new(START, LIMIT);
        search.lower_limit(LIMIT + 1);
        assert_eq!(
            (search.due(START, BASE), search.limit()),
            (Some(LIMIT), LIMIT)
        );
        search.lower_limit(1300);
        assert_eq!(
            (search.due(START, BASE), search.limit()),
            (Some(1300), 1300)
        );
    }
}
