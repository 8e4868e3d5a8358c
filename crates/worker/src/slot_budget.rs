//! How many slots may be in use: being read into, filled, or on loan to the link's device. One limit for all three, for
//! each worker by itself; and another for how many of them are on loan.
//!
//! Clients with large windows want more than a worker can send, and a disk that is faster than the worker or the link
//! reads it all at once. The bytes then wait for their turn and leave the processor's caches meanwhile, and a device that
//! writes to memory through a few ways of the last-level cache pushes them out sooner: each byte is written to memory
//! and read again. So no read begins beyond a limit of slots in use. Reads that are held back begin in the order of
//! their turns.
//!
//! **Loans** are as many as keep the device busy, as byte queue limits are in Linux (`lib/dynamic_queue_limits.c`): if
//! frames waited for a slot to come back, and then all had, the device may have run dry, and more may be on loan. If
//! two were always left, fewer will do. So a loan lasts no longer because a device's ring is deep, and a link that is full
//! shows: frames wait.
//!
//! **Slots in use** are as many as keep link and worker busy. What counts is time in which the worker had nothing
//! to do, reads were held back, no frame waited for the link, and less than half of the loans that may be was left when
//! the next slot came back. With [`WAIT_MOST`] of it the limit rises; with next to none it falls.
//!
//! **Progress.** One slot may always be in use. A device that returns nothing for a [`PERIOD`] gets more loans, and loans
//! that last longer than [`OVERDUE_AFTER`] do not count, so that a device which forgets some costs these slots and not the
//! service.
//!
//! Slots that are kept for bursts to come are not in use: they are bounded by themselves, and given up when no other is
//! free (`session::kept_slots`). None is filled to be kept while reads are held back or the link is full, or were a
//! [`PERIOD`] ago, but for a path that loses: a slot that leaves at once is in the caches still, and one that waits for its next bursts is not.
//!
//! It refuses to go below [`LEAST`], where system calls would have less to share, and above the slots there are.

use clock::{Duration, Instant};

/// Always permitted, and at start: 512 KiB in slots of 64 KiB. If there are fewer than twice as many slots: half of them.
pub const LEAST: usize = 8;

/// Loans permitted at start: a disk's completions of one round, usually.
const LOANS_AT_START: usize = 4;

/// Always permitted: a device that has more than it needs, and keeps them long, returns one at some time.
const LOANS_LEAST: usize = 1;

/// For so long waits are added up; at its end the limit may fall, by a sixteenth.
const PERIOD: Duration = Duration::from_millis(8);

/// With less waiting in a period the limit falls.
const WAIT_LEAST: Duration = Duration::from_micros(40);

/// With so much, a fiftieth of a period, the limit rises, by an eighth.
const WAIT_MOST: Duration = Duration::from_micros(160);

/// But not sooner after the last change, so that one late completion does not raise it far.
const RISE_AFTER: Duration = Duration::from_millis(1);

/// A loan that lasts longer is not counted: 1 MiB takes so long at 9 Mb/s.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// How long a worker that holds reads or frames back waits before it asks again for slots on loan, of which nothing tells.
/// Twice as long each time that none came, up to [`link::FULL_RETRY_AFTER`].
const LOOK_AFTER: Duration = Duration::from_micros(100);

/// What is added up from one change of the limit to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    began: Instant,
    /// How long the worker waited, as far as that counts.
    waited: Duration,
    /// Fewest slots that were left on loan when one came back that frames had waited for; `usize::MAX`: none did.
    lent_least: usize,
}

/// The limits, and the waits that they follow.
#[derive(Debug)]
pub(super) struct SlotBudget {
    limit: usize,
    most: usize,
    loans_limit: usize,
    /// Reads are held back in this round.
    is_held: bool,
    /// When reads were last held back, or the link was full.
    busy_at: Option<Instant>,
    period: Period,
    /// Since when the worker waits.
    waits_since: Option<Instant>,
    /// Waits since a slot last came back. Whether they count is seen when the next does.
    waited: Duration,
    /// Since when frames wait for a slot to come back.
    blocked_since: Option<Instant>,
    /// By slot: since when it is on loan.
    lent_since: Vec<Option<Instant>>,
    lent_count: usize,
    /// Loans that do not count.
    overdue_count: usize,
    /// When to ask for slots on loan next, and how long after the last round.
    looks_at: Option<Instant>,
    look_after: Duration,
}

impl SlotBudget {
    /// Up to `most`: the slots.
    pub(super) fn new(most: usize) -> Self {
        Self {
            limit: Self::least(most),
            most,
            loans_limit: LOANS_AT_START,
            is_held: false,
            busy_at: None,
            period: Period::new(Instant::ZERO),
            waits_since: None,
            waited: Duration::ZERO,
            blocked_since: None,
            lent_since: vec![None; most],
            lent_count: 0,
            overdue_count: 0,
            looks_at: None,
            look_after: Duration::ZERO,
        }
    }

    fn least(most: usize) -> usize {
        LEAST.min(most.div_ceil(2))
    }

    /// Slots that may be in use now.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// A round begins, and with it a wait ends.
    pub(super) fn begin_round(&mut self, now: Instant) {
        self.is_held = false;
        if let Some(since) = self.waits_since.take() {
            self.waited = self.waited.saturating_add(now.since(since));
        }
    }

    /// The device was asked for slots on loan, and whether it gave any back: the limits follow.
    pub(super) fn adapt(&mut self, now: Instant, is_any_back: bool) {
        let lent = self.counted_lent();
        self.adapt_loans(now, is_any_back, lent);
        if is_any_back || lent == 0 {
            if lent * 2 < self.loans_limit {
                self.period.waited = self.period.waited.saturating_add(self.waited);
            }
            self.waited = Duration::ZERO;
        }
        let elapsed = now.since(self.period.began);
        if self.period.waited >= WAIT_MOST && elapsed >= RISE_AFTER {
            self.limit = (self.limit + self.limit / 8 + 1).min(self.most);
        } else if elapsed < PERIOD {
            return;
        } else if self.period.waited < WAIT_LEAST {
            let less = self.limit - (self.limit / 16).max(1);
            self.limit = less.max(Self::least(self.most)).min(self.limit);
        }
        if elapsed >= PERIOD {
            self.find_overdue(now);
        }
        if (2..usize::MAX).contains(&self.period.lent_least) {
            self.loans_limit = self.loans_limit.saturating_sub(1).max(LOANS_LEAST);
        }
        self.period = Period::new(now);
    }

    /// More loans, if the device has run dry or returns none.
    fn adapt_loans(&mut self, now: Instant, is_any_back: bool, lent: usize) {
        let Some(since) = self.blocked_since else {
            return;
        };
        if is_any_back {
            self.period.lent_least = self.period.lent_least.min(lent);
        }
        let is_late = now.since(since) >= PERIOD;
        if is_any_back && lent == 0 || is_late {
            self.loans_limit = (self.loans_limit + self.loans_limit / 4 + 1).min(self.most.max(1));
        }
        if is_any_back || is_late {
            self.blocked_since = None;
        }
    }

    fn find_overdue(&mut self, now: Instant) {
        let is_overdue = |since: &Instant| now.since(*since) > OVERDUE_AFTER;
        let lent = self.lent_since.iter().flatten();
        self.overdue_count = lent.filter(|since| is_overdue(since)).count();
    }

    /// Loans that count.
    const fn counted_lent(&self) -> usize {
        self.lent_count.saturating_sub(self.overdue_count)
    }

    /// Whether another read may begin beside so many slots in use.
    pub(super) const fn permit(&self, in_use: usize) -> bool {
        in_use.saturating_sub(self.overdue_count) < self.limit
    }

    /// A read that is wanted was not permitted.
    pub(super) const fn hold(&mut self) {
        self.is_held = true;
    }

    /// Whether reads were held back, or the link was full, a moment ago.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.busy_at.is_some_and(|at| now.since(at) < PERIOD)
    }

    /// Whether another slot may be on loan. If not, a frame waits until one has come back.
    pub(super) fn permit_loan(&mut self, now: Instant) -> bool {
        let is_permitted = self.counted_lent() < self.loans_limit;
        if !is_permitted {
            self.blocked_since.get_or_insert(now);
        }
        is_permitted
    }

    /// Whether frames wait for a slot to come back.
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// A slot is on loan.
    pub(super) fn lend(&mut self, now: Instant, slot: u32) {
        if let Some(since) = self.lent_since.get_mut(slot as usize) {
            self.lent_count += usize::from(since.is_none());
            *since = Some(now);
        }
    }

    /// And no more.
    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some(since) = self.lent_since.get_mut(slot as usize) {
            self.lent_count -= usize::from(since.take().is_some());
        }
    }

    /// A round ends. If it found nothing to do the worker waits, and asks for slots on loan if it needs some.
    pub(super) fn end_round(&mut self, now: Instant, has_progressed: bool, is_link_full: bool) {
        self.looks_at = None;
        if self.is_held || is_link_full {
            self.busy_at = Some(now);
        }
        if has_progressed {
            self.look_after = Duration::ZERO;
            return;
        }
        if is_link_full {
            return;
        }
        if self.is_held && !self.is_blocked() {
            self.waits_since = Some(now);
        }
        if (self.is_held || self.is_blocked()) && self.lent_count > 0 {
            self.look_after = (self.look_after * 2).clamp(LOOK_AFTER, link::FULL_RETRY_AFTER);
            self.looks_at = Some(now + self.look_after);
        }
    }

    /// When what is held back may go on even if nothing wakes the worker.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let can_rise = self.limit < self.most && self.counted_lent() == 0;
        let rises = self.waits_since.filter(|_| can_rise).map(|since| {
            let waited = self.period.waited.saturating_add(self.waited);
            let enough = since + WAIT_MOST.saturating_sub(waited);
            enough.max(self.period.began + RISE_AFTER)
        });
        rises.into_iter().chain(self.looks_at).min()
    }
}

impl Period {
    const fn new(began: Instant) -> Self {
        Self {
            began,
            waited: Duration::ZERO,
            lent_least: usize::MAX,
        }
    }
}

#[cfg(test)]
impl SlotBudget {
    /// The limit is this now.
    pub(super) const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(100);
    const TICK: Duration = Duration::from_nanos(1);

    /// At the beginning of a period.
    fn budget(limit: usize, most: usize) -> SlotBudget {
        SlotBudget {
            limit,
            period: Period::new(START),
            ..SlotBudget::new(most)
        }
    }

    impl SlotBudget {
        /// Waits from `since` on for so long, with a read held back; then this slot comes back.
        fn wait(&mut self, since: Instant, waited: Duration, back: Option<u32>) {
            self.hold();
            self.end_round(since, false, false);
            self.begin_round(since + waited);
            back.into_iter().for_each(|slot| self.give_back(slot));
            self.adapt(since + waited, back.is_some());
        }

        fn lend_all(&mut self, slots: core::ops::Range<u32>) {
            slots.for_each(|slot| self.lend(START, slot));
        }
    }

    /// The limit when the worker has waited for so long, and so much time has passed.
    fn limit_after(limit: usize, most: usize, waited: Duration, passed: Duration) -> usize {
        let mut budget = budget(limit, most);
        budget.wait(START, waited, None);
        budget.begin_round(START + passed.max(waited));
        budget.adapt(START + passed.max(waited), false);
        budget.limit
    }

    #[test]
    fn slots_are_permitted_below_the_limit() {
        let budget = SlotBudget::new(512);
        assert!(budget.permit(0) && budget.permit(LEAST - 1) && !budget.permit(LEAST));
        let limits = [1, 2, 8, 14, 15, 64].map(|most| SlotBudget::new(most).limit);
        assert_eq!(limits, [1, 1, 4, 7, 8, 8]);
    }

    #[test]
    fn one_loan_is_permitted_however_long_a_device_keeps_many() {
        let mut budget = budget(64, 64);
        budget.lend_all(0..16);
        let mut now = START;
        for slot in 0..12 {
            assert!(!budget.permit_loan(now), "{} are lent", budget.lent_count);
            now += PERIOD;
            budget.give_back(slot);
            // Back within the period in which frames waited, and four are left at least.
            budget.blocked_since = Some(now);
            budget.adapt(now, true);
            assert!(budget.loans_limit >= LOANS_LEAST);
        }
        (12..16).for_each(|slot| budget.give_back(slot));
        assert!(budget.permit_loan(now));
    }

    #[test]
    fn the_limit_falls_to_the_least_while_the_worker_hardly_waits() {
        let short = WAIT_LEAST.saturating_sub(TICK);
        assert_eq!(limit_after(512, 512, short, PERIOD), 480);
        assert_eq!(limit_after(512, 512, WAIT_LEAST, PERIOD), 512);
        let early = PERIOD.saturating_sub(TICK);
        assert_eq!(limit_after(512, 512, short, early), 512);
        for (limit, after) in [(LEAST + 2, LEAST + 1), (LEAST + 1, LEAST), (LEAST, LEAST)] {
            assert_eq!(limit_after(limit, 512, Duration::ZERO, PERIOD), after);
        }
        assert_eq!(limit_after(8, 16, Duration::ZERO, PERIOD), 8);
    }

    #[test]
    fn the_limit_rises_to_the_most_when_the_worker_waits() {
        let short = WAIT_MOST.saturating_sub(TICK);
        assert_eq!(limit_after(64, 100, short, RISE_AFTER), 64);
        assert_eq!(limit_after(64, 100, WAIT_MOST, RISE_AFTER), 73);
        let soon = RISE_AFTER.saturating_sub(TICK);
        assert_eq!(limit_after(64, 100, WAIT_MOST, soon), 64);
        assert_eq!(limit_after(97, 100, WAIT_MOST, RISE_AFTER), 100);
        assert_eq!(limit_after(100, 100, WAIT_MOST, RISE_AFTER), 100);
    }

    #[test]
    fn waits_of_a_period_are_added_up_and_a_timer_ends_them() {
        let mut budget = budget(64, 100);
        let half = WAIT_MOST / 2;
        budget.wait(START, half, None);
        budget.hold();
        budget.end_round(START + half * 2, false, false);
        assert_eq!(budget.next_timeout(), Some(START + RISE_AFTER));
        budget.end_round(START + RISE_AFTER, false, false);
        let ends = START + RISE_AFTER + half;
        assert_eq!(budget.next_timeout(), Some(ends));
        budget.begin_round(ends);
        budget.adapt(ends, false);
        assert_eq!((budget.limit, budget.period), (73, Period::new(ends)));
    }

    #[test]
    fn a_worker_waits_for_nothing_without_reads_held_back_or_with_a_full_link() {
        let mut budget = budget(LEAST, 512);
        let after = START + RISE_AFTER;
        budget.end_round(START, false, false);
        assert_eq!(budget.next_timeout(), None);
        budget.begin_round(after);
        budget.adapt(after, false);
        // The link says that it is full.
        budget.hold();
        budget.end_round(after, false, true);
        assert_eq!(budget.next_timeout(), None);
        budget.begin_round(after + RISE_AFTER);
        budget.adapt(after + RISE_AFTER, false);
        assert_eq!((budget.limit, budget.waited), (LEAST, Duration::ZERO));
        // Nor if no more are there.
        budget.set_limit(512);
        budget.hold();
        budget.end_round(after, false, false);
        assert_eq!(budget.next_timeout(), None);
    }

    #[test]
    fn a_wait_while_frames_wait_for_the_link_does_not_count() {
        let mut budget = budget(LEAST, 512);
        budget.lend_all(0..4);
        assert!(!budget.permit_loan(START));
        budget.wait(START, RISE_AFTER, Some(0));
        assert_eq!(budget.limit, LEAST);
    }

    #[test]
    fn a_wait_counts_if_less_than_half_of_the_loans_are_left() {
        for (lent, limit) in [(2, LEAST + 2), (3, LEAST)] {
            let mut budget = budget(LEAST, 512);
            budget.lend_all(0..lent);
            budget.wait(START, RISE_AFTER / 2, None);
            // Nothing has come back: that is not decided.
            assert_eq!(budget.period.waited, Duration::ZERO);
            budget.wait(START + RISE_AFTER / 2, RISE_AFTER / 2, Some(0));
            assert_eq!((budget.limit, budget.waited), (limit, Duration::ZERO));
        }
    }

    #[test]
    fn as_many_slots_are_lent_as_keep_the_device_busy() {
        let after = |is_blocked: bool, left: u32| {
            let mut budget = budget(LEAST, 512);
            budget.lend_all(0..4);
            assert!(!is_blocked || !budget.permit_loan(START));
            (left..4).for_each(|slot| budget.give_back(slot));
            budget.adapt(START + PERIOD - TICK, left < 4);
            budget.adapt(START + PERIOD, false);
            budget.loans_limit
        };
        assert_eq!([0, 1, 2, 3].map(|left| after(true, left)), [6, 4, 3, 3]);
        assert_eq!([0, 1, 2, 3].map(|left| after(false, left)), [4; 4]);
        // None has come back for a period.
        assert_eq!(after(true, 4), 6);
    }

    #[test]
    fn the_worker_is_busy_while_reads_are_held_back_or_the_link_is_full() {
        for (is_held, is_link_full) in [(true, false), (false, true)] {
            let mut budget = budget(64, 512);
            budget.end_round(START, true, false);
            assert!(!budget.is_busy(START));
            if is_held {
                budget.hold();
            }
            budget.end_round(START, true, is_link_full);
            assert!(budget.is_busy(START + PERIOD - TICK) && !budget.is_busy(START + PERIOD));
        }
    }

    #[test]
    fn slots_on_loan_are_asked_for_less_and_less_often_until_one_comes() {
        let mut budget = budget(64, 512);
        let looks = |budget: &mut SlotBudget, has_progressed| {
            budget.end_round(START, has_progressed, false);
            budget.looks_at.map(|at| at.since(START).as_micros())
        };
        budget.lend_all(0..1);
        assert_eq!(looks(&mut budget, false), None);
        budget.hold();
        let found = [false, false, false, false, true, false].map(|it| looks(&mut budget, it));
        assert_eq!(
            found,
            [Some(100), Some(200), Some(400), Some(500), None, Some(100)]
        );
        // Frames that wait need them, too.
        budget.begin_round(START);
        budget.lend_all(1..4);
        assert!(!budget.permit_loan(START));
        assert!(looks(&mut budget, false).is_some());
    }

    #[test]
    fn a_loan_that_lasts_for_more_than_a_second_does_not_count() {
        let mut budget = budget(1, 2);
        budget.loans_limit = 1;
        budget.lend(START, 0);
        budget.adapt(START + OVERDUE_AFTER, false);
        assert!(!budget.permit(1) && !budget.permit_loan(START + OVERDUE_AFTER));
        budget.adapt(START + OVERDUE_AFTER + PERIOD, false);
        budget.loans_limit = 1;
        assert!(budget.permit(1) && budget.permit_loan(START + OVERDUE_AFTER + PERIOD));
        budget.give_back(0);
        budget.adapt(START + OVERDUE_AFTER + PERIOD * 2, false);
        assert!(!budget.permit(1));
    }
}
